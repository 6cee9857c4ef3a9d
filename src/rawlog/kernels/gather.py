"""Copying spans of bytes, the part of decoding that costs most.

`copy_wide` moves 32 bytes at a time and may read and write up to 31 bytes too many: both sides need SLACK spare
bytes after the span. `copy_exact` touches nothing else. `copy` asks, and takes the wide way where it may.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from rawlog.core.status import BAD_LENGTH, FULL, OK
from rawlog.kernels import inline, kernel, twin, written
from rawlog.kernels.types import I64, U8, Int, OutI32, OutU8

SLACK = 32
LONG = 1024
"""From here on the C library's copy is faster than steps of 32 bytes."""


def _plain_copy32(out: Any, to: Any, data: Any, start: Any) -> None:
    assert 0 <= to <= out.size - SLACK
    assert 0 <= start <= data.size - SLACK
    out[to : to + SLACK] = data[start : start + SLACK]


def _plain_copy_exact(out: Any, to: Any, data: Any, start: Any, size: Any) -> None:
    if size > 0:
        assert 0 <= to <= out.size - size
        assert 0 <= start <= data.size - size
        out[to : to + size] = data[start : start + size]


def _plain_prefetch(data: Any, position: Any) -> None:
    pass


@cache
def _intrinsics() -> tuple[Any, Any, Any]:
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils
    from numba.extending import intrinsic

    def pointers(context: Any, builder: Any, signature: Any, arguments: Any) -> tuple[Any, Any]:
        out = context.make_array(signature.args[0])(context, builder, arguments[0])
        data = context.make_array(signature.args[2])(context, builder, arguments[2])
        return (
            builder.gep(out.data, [arguments[1]], inbounds=True),
            builder.gep(data.data, [arguments[3]], inbounds=True),
        )

    @intrinsic
    def copy32(typing: Any, out: Any, to: Any, data: Any, start: Any) -> Any:
        written(out)

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            target, source = pointers(context, builder, signature, arguments)
            vector = ir.VectorType(ir.IntType(8), SLACK).as_pointer()
            value = builder.load(builder.bitcast(source, vector), align=1)
            builder.store(value, builder.bitcast(target, vector), align=1)
            return context.get_dummy_value()

        return types.void(out, types.int64, data, types.int64), codegen

    @intrinsic
    def copy_exact(typing: Any, out: Any, to: Any, data: Any, start: Any, size: Any) -> Any:
        written(out)

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            target, source = pointers(context, builder, signature, arguments)
            with builder.if_then(builder.icmp_signed(">", arguments[4], ir.Constant(ir.IntType(64), 0))):
                cgutils.raw_memcpy(builder, target, source, arguments[4], 1)  # type: ignore[no-untyped-call]
            return context.get_dummy_value()

        return types.void(out, types.int64, data, types.int64, types.int64), codegen

    @intrinsic
    def prefetch(typing: Any, data: Any, position: Any) -> Any:
        """Ask for the cache line of a byte that will be read soon; one outside the data does no harm."""

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array = context.make_array(signature.args[0])(context, builder, arguments[0])
            pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
            function = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
                builder.module,
                ir.FunctionType(ir.VoidType(), [pointer, number, number, number]),
                "llvm.prefetch.p0",
            )
            place = builder.gep(array.data, [arguments[1]])
            builder.call(function, [place, number(0), number(3), number(1)])
            return context.get_dummy_value()

        return types.void(data, types.int64), codegen

    return copy32, copy_exact, prefetch


copy32 = twin(_plain_copy32, lambda: _intrinsics()[0])
copy_exact = twin(_plain_copy_exact, lambda: _intrinsics()[1])
prefetch = twin(_plain_prefetch, lambda: _intrinsics()[2])


@inline
def copy_wide(out: Any, to: Any, data: Any, start: Any, size: Any) -> None:
    """Copy in steps of 32 bytes; SLACK bytes after both spans must exist."""
    step = np.int64(0)
    while step < size:
        copy32(out, to + step, data, start + step)
        step += SLACK


@inline
def copy(out: Any, to: Any, data: Any, start: Any, size: Any) -> None:
    """Copy a span that lies inside both arrays, the fastest way its place allows."""
    if size < LONG and data.size - start - size >= SLACK and out.size - to - size >= SLACK:
        copy_wide(out, to, data, start, size)
    else:
        copy_exact(out, to, data, start, size)


@kernel
def gather_spans(data: U8, starts: I64, sizes: I64, out: OutU8, offsets: OutI32) -> Any:
    """Lay spans of `data` end to end into `out`, and Arrow offsets (one more than spans) into `offsets`.

    A size below zero is a null and takes no bytes. -> (count, bytes written, status); FULL: no room for the next
    """
    written = np.int64(0)
    offsets[0] = 0
    for index in range(starts.size):
        start, size = np.int64(starts[index]), np.int64(sizes[index])
        if size > 0:
            if start < 0 or start > data.size or data.size - start < size:
                return index, written, BAD_LENGTH
            if out.size - written < size:
                return index, written, FULL
            copy(out, written, data, start, size)
            written += size
        offsets[index + 1] = written
    return starts.size, written, OK


@kernel
def gather_nullable(data: U8, starts: I64, sizes: I64, out: OutU8, offsets: OutI32, valid: OutU8) -> Any:
    """Lay spans inside `data` end to end into `out`, which has room; a size below zero clears its bit of `valid`. -> nulls"""
    written, nulls = np.int64(0), np.int64(0)
    offsets[0] = 0
    for index in range(starts.size):
        size = np.int64(sizes[index])
        if size >= 0:
            copy(out, written, data, np.int64(starts[index]), size)
            written += size
        else:
            valid[index >> 3] = valid[index >> 3] & (0xFF ^ (1 << (index & 7)))
            nulls += 1
        offsets[index + 1] = written
    return nulls


@kernel
def splice_spans(
    data: U8, begin: Int, end: Int, starts: I64, stops: I64, pieces: U8, places: I64, sizes: I64, out: OutU8
) -> Any:
    """Copy `data` from `begin` to `end` into `out` with other bytes in some spans, which are in order and do not overlap: span n becomes
    `sizes[n]` bytes of `pieces` from `places[n]` on. -> (count, bytes written, status); FULL: no room
    """
    position, written = np.int64(begin), np.int64(0)
    for index in range(starts.size):
        start, stop, size = np.int64(starts[index]), np.int64(stops[index]), np.int64(sizes[index])
        place = np.int64(places[index])
        if start < position or stop < start or end < stop or place < 0 or size < 0 or pieces.size - place < size:
            return index, written, BAD_LENGTH
        if out.size - written < start - position + size:
            return index, written, FULL
        copy(out, written, data, position, start - position)
        written += start - position
        copy(out, written, pieces, place, size)
        written += size
        position = stop
    if out.size - written < end - position:
        return starts.size, written, FULL
    copy(out, written, data, position, end - position)
    return starts.size, written + end - position, OK
