"""Copying spans of bytes, the part of decoding that costs most.

`copy_wide` moves 32 bytes at a time and may read and write up to 31 bytes too many: both sides need SLACK spare
bytes after the span. `copy_exact` touches nothing else. `copy` asks, and takes the wide way where it may.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from rawlog.kernels import inline, kernel, twin, written
from rawlog.kernels.ints import read_u8
from rawlog.kernels.types import I64, U8, Int, OutI32, OutI64, OutU8
from rawlog.model.status import BAD_LENGTH, FULL, OK

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


# ----------------------------------------------------------------------------------------------------------------------
# Fields of JSON texts, found without reading the rest of the text into values.


#: What is at the end of a path: nothing, text without or with escapes, anything else, null; or the text is not JSON up to there.
MISSING, TEXT, ESCAPED, OTHER, NULL, BROKEN = range(6)
QUOTE, BACKSLASH, COMMA, COLON = 0x22, 0x5C, 0x2C, 0x3A
OPEN, CLOSE, OPEN_LIST, CLOSE_LIST = 0x7B, 0x7D, 0x5B, 0x5D
SPACE, LETTER_N = 0x20, 0x6E


@inline
def after_space(data: Any, position: Any, end: Any) -> Any:
    """The position of the next byte that is no white space."""
    while position < end and read_u8(data, position) <= SPACE:
        position += 1
    return position


@inline
def after_text(data: Any, position: Any, end: Any) -> Any:
    """The position after a string whose first quote is at `position`, or -1; and whether it has escapes."""
    position += 1
    has_escapes = False
    while position < end:
        byte = read_u8(data, position)
        if byte == QUOTE:
            return position + 1, has_escapes
        if byte == BACKSLASH:
            has_escapes = True
            position += 1
        position += 1
    return np.int64(-1), has_escapes


@inline
def after_value(data: Any, position: Any, end: Any) -> Any:
    """The position after the value that begins at `position`, or -1."""
    if position >= end:
        return np.int64(-1)
    byte = read_u8(data, position)
    if byte == QUOTE:
        after, _ = after_text(data, position, end)
        return after
    if byte in (OPEN, OPEN_LIST):
        depth = 0
        while position < end:
            byte = read_u8(data, position)
            if byte == QUOTE:
                position, _ = after_text(data, position, end)
                if position < 0:
                    return np.int64(-1)
                continue
            if byte in (OPEN, OPEN_LIST):
                depth += 1
            elif byte in (CLOSE, CLOSE_LIST):
                depth -= 1
                if depth == 0:
                    return position + 1
            position += 1
        return np.int64(-1)
    start = position
    while position < end:
        byte = read_u8(data, position)
        if byte <= SPACE or byte in (COMMA, CLOSE, CLOSE_LIST, COLON, QUOTE):
            break
        position += 1
    return position if position > start else np.int64(-1)


@inline
def is_same(data: Any, start: Any, stop: Any, names: Any, first: Any, last: Any) -> Any:
    """Whether two runs of bytes are equal."""
    if stop - start != last - first:
        return False
    for index in range(stop - start):  # noqa: SIM110  (kernels have no generators)
        if read_u8(data, start + index) != names[first + index]:
            return False
    return True


@inline
def member_at(data: Any, position: Any, end: Any, names: Any, first: Any, last: Any) -> Any:
    """Where the value of a member of the object at `position` begins; -1: there is none, -2: not JSON."""
    position = after_space(data, position + 1, end)
    while position < end and read_u8(data, position) == QUOTE:
        after, has_escapes = after_text(data, position, end)
        if after < 0 or has_escapes:
            return np.int64(-2)  # a name with escapes is rare: Python compares it
        is_member = is_same(data, position + 1, after - 1, names, first, last)
        position = after_space(data, after, end)
        if position >= end or read_u8(data, position) != COLON:
            return np.int64(-2)
        position = after_space(data, position + 1, end)
        if is_member:
            return position
        position = after_value(data, position, end)
        if position < 0:
            return np.int64(-2)
        position = after_space(data, position, end)
        if position < end and read_u8(data, position) == COMMA:
            position = after_space(data, position + 1, end)
            if position >= end or read_u8(data, position) != QUOTE:
                return np.int64(-2)
    if position < end and read_u8(data, position) == CLOSE:
        return np.int64(-1)
    return np.int64(-2)


@inline
def item_at(data: Any, position: Any, end: Any, number: Any) -> Any:
    """Where an item of the array at `position` begins; -1: there is none, -2: not JSON."""
    position = after_space(data, position + 1, end)
    if position < end and read_u8(data, position) == CLOSE_LIST:
        return np.int64(-1)
    for _ in range(number):
        position = after_value(data, position, end)
        if position < 0:
            return np.int64(-2)
        position = after_space(data, position, end)
        if position >= end:
            return np.int64(-2)
        if read_u8(data, position) == CLOSE_LIST:
            return np.int64(-1)
        if read_u8(data, position) != COMMA:
            return np.int64(-2)
        position = after_space(data, position + 1, end)
    return position


@kernel
def find_fields(
    data: U8, starts: I64, stops: I64, names: U8, edges: I64, numbers: I64, begins: OutI64, ends: OutI64, kinds: OutI64
) -> Any:
    """Find a field of every text. The path has a name (its bytes in `names`) or, where `numbers` is not below 0, an item of a list.

    Of text the quotes are left out of `begins` and `ends`. -> number of texts
    """
    for row in range(starts.size):
        end = np.int64(stops[row])
        position = after_space(data, np.int64(starts[row]), end)
        kind = np.int64(OTHER)
        for step in range(numbers.size):
            byte = read_u8(data, position) if position < end else 0
            if byte == OPEN and numbers[step] < 0:
                target = member_at(data, position, end, names, np.int64(edges[step]), np.int64(edges[step + 1]))
            elif byte == OPEN_LIST and numbers[step] >= 0:
                target = item_at(data, position, end, np.int64(numbers[step]))
            else:
                target = np.int64(-1) if byte != 0 else np.int64(-2)
            if target < 0:
                kind = np.int64(MISSING) if target == -1 else np.int64(BROKEN)
                break
            position = target
        begins[row] = ends[row] = 0
        if kind == OTHER:
            after = after_value(data, position, end)
            if after < 0:
                kind = np.int64(BROKEN)
            else:
                begins[row], ends[row] = position, after
                byte = read_u8(data, position)
                if byte == QUOTE:
                    _, has_escapes = after_text(data, position, end)
                    kind = np.int64(ESCAPED) if has_escapes else np.int64(TEXT)
                    begins[row], ends[row] = position + 1, after - 1
                elif byte == LETTER_N:
                    kind = np.int64(NULL)
        kinds[row] = kind
    return starts.size
