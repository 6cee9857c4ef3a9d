"""CRC-32C (Castagnoli) and CRC-32 (IEEE) inside kernels, for spans too short to be worth a call each.

CRC-32C uses the processor's instruction where the host has it, three streams at a time, CRC-32 its carry-less multiplication; else,
and as the plain twin, 16 tables. Long single spans are the business of `rawlog.io.checksums`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawlog.kernels import (
    host_has,
    inline,
    kernel,
)
from rawlog.kernels.ints import read_i64_le, read_u8, read_u32_le
from rawlog.kernels.types import (
    I64,
    U8,
    Int,
    OutI64,
)
from rawlog.model.status import BAD_LENGTH, OK

CASTAGNOLI = 0x82F63B78
IEEE = 0xEDB88320
ALL = 0xFFFFFFFF
LANE = 1024
"""Bytes of each of the three streams that are summed side by side; a short lane follows for what is left."""
SHORT_LANE = 128


def _tables(polynomial: int) -> NDArray[np.int64]:
    """tables[k, b]: what byte b adds to the sum when k more bytes follow it."""
    row = np.arange(256, dtype=np.int64)
    for _ in range(8):
        row = (row >> 1) ^ np.where(row & 1, polynomial, 0)
    tables = np.empty((16, 256), np.int64)
    tables[0] = row
    for k in range(1, 16):
        tables[k] = (tables[k - 1] >> 8) ^ row[tables[k - 1] & 0xFF]
    return tables


def _zeros(size: int) -> NDArray[np.int64]:
    """zeros[k, b]: byte k of a sum, being b, after `size` zero bytes more."""
    row = CASTAGNOLI_TABLES[0]
    bits = np.int64(1) << np.arange(32, dtype=np.int64)
    for _ in range(size):
        bits = (bits >> 8) ^ row[bits & 0xFF]
    values = np.arange(256, dtype=np.int64)
    zeros = np.zeros((4, 256), np.int64)
    for k in range(4):
        for bit in range(8):
            zeros[k] ^= np.where((values >> bit) & 1, bits[8 * k + bit], 0)
    return zeros


CASTAGNOLI_TABLES, IEEE_TABLES = _tables(CASTAGNOLI), _tables(IEEE)
INSTRUCTION = host_has("sse4.2")


def _step_intrinsic(bits: int, width: int) -> Any:
    """The instruction over one word: sum and word in, sum out, all as int64."""
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    @intrinsic
    def step(typing: Any, crc: Any, word: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            sum_type, word_type = ir.IntType(width), ir.IntType(bits)
            function = builder.module.declare_intrinsic(
                f"llvm.x86.sse42.crc32.{width}.{bits}", (), ir.FunctionType(sum_type, [sum_type, word_type])
            )
            crc, word = arguments
            if width < 64:
                crc, word = builder.trunc(crc, sum_type), builder.trunc(word, word_type)
            result = builder.call(function, [crc, word])
            return result if width == 64 else builder.zext(result, ir.IntType(64))

        return types.int64(types.int64, types.int64), codegen

    return step


@inline
def of_words(tables: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """The sum over 16 bytes, given as four numbers of 32 bits into whose first the running sum was mixed."""
    return (
        tables[15, a & 0xFF]
        ^ tables[14, (a >> 8) & 0xFF]
        ^ tables[13, (a >> 16) & 0xFF]
        ^ tables[12, a >> 24]
        ^ tables[11, b & 0xFF]
        ^ tables[10, (b >> 8) & 0xFF]
        ^ tables[9, (b >> 16) & 0xFF]
        ^ tables[8, b >> 24]
        ^ tables[7, c & 0xFF]
        ^ tables[6, (c >> 8) & 0xFF]
        ^ tables[5, (c >> 16) & 0xFF]
        ^ tables[4, c >> 24]
        ^ tables[3, d & 0xFF]
        ^ tables[2, (d >> 8) & 0xFF]
        ^ tables[1, (d >> 16) & 0xFF]
        ^ tables[0, d >> 24]
    )


@inline
def update_by_tables(tables: Any, crc: Any, data: Any, start: Any, stop: Any) -> Any:
    """A running sum (already inverted) over `data[start:stop]`, 16 bytes a step."""
    position = np.int64(start)
    while stop - position >= 16:
        a = crc ^ read_u32_le(data, position)
        b = read_u32_le(data, position + 4)
        c = read_u32_le(data, position + 8)
        d = read_u32_le(data, position + 12)
        crc = of_words(tables, a, b, c, d)
        position += 16
    while stop - position >= 4:
        a = crc ^ read_u32_le(data, position)
        crc = tables[3, a & 0xFF] ^ tables[2, (a >> 8) & 0xFF] ^ tables[1, (a >> 16) & 0xFF] ^ tables[0, a >> 24]
        position += 4
    while position < stop:
        crc = (crc >> 8) ^ tables[0, (crc ^ read_u8(data, position)) & 0xFF]
        position += 1
    return crc


@inline
def behind_zeros(zeros: Any, crc: Any) -> Any:
    """The sum after as many zero bytes as `zeros` was made for."""
    return zeros[0, crc & 0xFF] ^ zeros[1, (crc >> 8) & 0xFF] ^ zeros[2, (crc >> 16) & 0xFF] ^ zeros[3, crc >> 24]


if INSTRUCTION:
    LANE_ZEROS, SHORT_LANE_ZEROS = _zeros(LANE), _zeros(SHORT_LANE)
    step64, step8 = _step_intrinsic(64, 64), _step_intrinsic(8, 32)

    @inline
    def three_lanes(zeros: Any, lane: Any, crc: Any, data: Any, position: Any, stop: Any) -> Any:
        """The instruction has a latency of three cycles: three independent streams keep it busy."""
        while stop - position >= 3 * lane:
            second, third, after = np.int64(0), np.int64(0), position + lane
            while position < after:
                crc = step64(crc, read_i64_le(data, position))
                second = step64(second, read_i64_le(data, position + lane))
                third = step64(third, read_i64_le(data, position + 2 * lane))
                position += 8
            crc = behind_zeros(zeros, behind_zeros(zeros, crc) ^ second) ^ third
            position += 2 * lane
        return crc, position

    @kernel
    def sum_crc32c(data: U8, start: Int, stop: Int) -> Any:
        """CRC-32C of `data[start:stop]`, which must lie inside the data."""
        crc, position = np.int64(ALL), np.int64(start)
        crc, position = three_lanes(LANE_ZEROS, LANE, crc, data, position, stop)
        crc, position = three_lanes(SHORT_LANE_ZEROS, SHORT_LANE, crc, data, position, stop)
        while stop - position >= 8:
            crc = step64(crc, read_i64_le(data, position))
            position += 8
        while position < stop:
            crc = step8(crc, read_u8(data, position))
            position += 1
        return crc ^ ALL

else:

    @kernel
    def sum_crc32c(data: U8, start: Int, stop: Int) -> Any:
        """CRC-32C of `data[start:stop]`, which must lie inside the data."""
        return update_by_tables(CASTAGNOLI_TABLES, np.int64(ALL), data, start, stop) ^ ALL


@kernel
def sum_crc32c_by_tables(data: U8, start: Int, stop: Int) -> Any:
    """The same without the instruction: what other processors run."""
    return update_by_tables(CASTAGNOLI_TABLES, np.int64(ALL), data, start, stop) ^ ALL


# ----------------------------------------------------------------------------------------------------------------------
# CRC-32 by carry-less multiplication: 16 bytes a step, four lanes of 16 where a span is long.
# After Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ", Intel 2009. Some three times as fast as tables on
# spans of a hundred bytes, ten times on long ones. Only where the host has the instruction.


FOLD_STEP, FOLD_LANES = 16, 4
FOLD_LONG = 4 * FOLD_LANES * FOLD_STEP
"""From so many bytes on, four lanes side by side are worth their beginning and end."""
# x^(n+32) and x^(n-32) modulo the polynomial, for the distance n of one block and of four; x^64; the polynomial and its inverse:
# all bit-reflected.
FOLD_ONE, FOLD_FOUR = (0x01751997D0, 0x00CCAA009E), (0x0154442BD4, 0x01C6E41596)
FOLD_64 = 0x0163CD6124
POLYNOMIAL, INVERSE = 0x01DB710641, 0x01F7011641
HAS_MULTIPLICATION = host_has("pclmul", "sse4.1")


def _fold_intrinsic(*, long: bool) -> Any:
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils
    from numba.extending import intrinsic

    tools: Any = cgutils
    word, byte, wide, pair = ir.IntType(64), ir.IntType(8), ir.IntType(128), ir.VectorType(ir.IntType(64), 2)
    quad = ir.VectorType(ir.IntType(32), 4)
    first_half = ir.Constant(ir.IntType(32), 0)

    def constant(low: int, high: int = 0) -> Any:
        return ir.Constant(pair, [low, high])

    def number(value: int) -> Any:
        return ir.Constant(word, value)

    @intrinsic
    def fold_crc32(typing: Any, crc: Any, data: Any, start: Any, size: Any) -> Any:
        """The running sum (inverted) after `size` bytes: at least 16, FOLD_LONG with lanes.

        What is more than a multiple of 16 comes first, moved to the end of a block of its own: zeros in front change no sum. The sum so
        far then reaches into the second block where the first has fewer than its four bytes.
        """

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            crc, array_value, start, size = arguments
            array = context.make_array(signature.args[1])(context, builder, array_value)
            multiply = tools.get_or_insert_function(
                builder.module, ir.FunctionType(pair, [pair, pair, byte]), "llvm.x86.pclmulqdq"
            )

            def times(left: Any, right: Any, which: int) -> Any:
                return builder.call(multiply, [left, right, ir.Constant(byte, which)])

            def folded(value: Any, by: Any) -> Any:
                return builder.xor(times(value, by, 0x00), times(value, by, 0x11))

            def load(position: Any) -> Any:
                pointer = builder.gep(array.data, [position], inbounds=True)
                return builder.load(builder.bitcast(pointer, pair.as_pointer()), align=1)

            def shifted(value: Any, bits: int) -> Any:
                return builder.bitcast(builder.lshr(builder.bitcast(value, wide), ir.Constant(wide, bits)), pair)

            def widened(value: Any) -> Any:
                return builder.insert_element(constant(0), value, first_half)

            def each(width: int, body: Callable[[Any], None]) -> None:
                """Go over whole steps of so many bytes; `at` is after them."""
                base = builder.load(at)
                count = builder.udiv(builder.sub(stop, base), number(width))
                with tools.for_range(builder, count) as loop:
                    body(builder.add(base, builder.mul(loop.index, number(width))))
                builder.store(builder.add(base, builder.mul(count, number(width))), at)

            fold_one, fold_four = constant(*FOLD_ONE), constant(*FOLD_FOUR)
            stop = builder.add(start, size)
            partial = builder.add(builder.and_(builder.sub(size, number(1)), number(FOLD_STEP - 1)), number(1))
            after = builder.mul(builder.sub(number(FOLD_STEP), partial), number(8))
            first = builder.bitcast(builder.xor(load(start), widened(crc)), wide)
            state = tools.alloca_once_value(
                builder, builder.bitcast(builder.shl(first, builder.zext(after, wide)), pair)
            )
            inside = builder.icmp_unsigned(">=", partial, number(4))
            shift = builder.select(inside, number(32), builder.mul(partial, number(8)))
            over = tools.alloca_once_value(builder, widened(builder.lshr(crc, shift)))
            at = tools.alloca_once_value(builder, builder.add(start, partial))

            def one_block(position: Any) -> None:
                block = builder.xor(load(position), builder.load(over))
                builder.store(builder.xor(folded(builder.load(state), fold_one), block), state)
                builder.store(constant(0), over)

            def four_blocks(position: Any) -> None:
                for lane, slot in enumerate(lanes):
                    block = load(builder.add(position, number(lane * FOLD_STEP)))
                    builder.store(builder.xor(folded(builder.load(slot), fold_four), block), slot)

            lanes = [tools.alloca_once(builder, pair) for _ in range(FOLD_LANES)]
            if long:
                position = builder.load(at)
                one_block(position)
                builder.store(builder.load(state), lanes[0])
                for lane, slot in enumerate(lanes[1:], 1):
                    builder.store(load(builder.add(position, number(lane * FOLD_STEP))), slot)
                builder.store(builder.add(position, number(FOLD_LANES * FOLD_STEP)), at)
                each(FOLD_LANES * FOLD_STEP, four_blocks)
                value = builder.load(lanes[0])
                for slot in lanes[1:]:
                    value = builder.xor(folded(value, fold_one), builder.load(slot))
                builder.store(value, state)
            each(FOLD_STEP, one_block)
            # 128 bits to 64, 64 to 32.
            value = builder.load(state)
            mask = builder.bitcast(ir.Constant(quad, [0xFFFFFFFF, 0, 0xFFFFFFFF, 0]), pair)
            value = builder.xor(shifted(value, 64), times(value, fold_one, 0x10))
            value = builder.xor(shifted(value, 32), times(builder.and_(value, mask), constant(FOLD_64), 0x00))
            reduce = constant(POLYNOMIAL, INVERSE)
            part = times(builder.and_(value, mask), reduce, 0x10)
            part = times(builder.and_(part, mask), reduce, 0x00)
            value = builder.bitcast(builder.xor(value, part), quad)
            return builder.zext(builder.extract_element(value, ir.Constant(ir.IntType(32), 1)), word)

        return types.int64(types.int64, data, types.int64, types.int64), codegen

    return fold_crc32


fold_short: Any = _fold_intrinsic(long=False) if HAS_MULTIPLICATION else None
fold_long: Any = _fold_intrinsic(long=True) if HAS_MULTIPLICATION else None


if HAS_MULTIPLICATION:

    @kernel
    def sum_crc32(data: U8, start: Int, stop: Int) -> Any:
        """CRC-32 of `data[start:stop]`, which must lie inside the data."""
        size = np.int64(stop - start)
        if size < FOLD_STEP:
            return update_by_tables(IEEE_TABLES, np.int64(ALL), data, start, stop) ^ ALL
        if size < FOLD_LONG:
            return fold_short(np.int64(ALL), data, np.int64(start), size) ^ ALL
        return fold_long(np.int64(ALL), data, np.int64(start), size) ^ ALL

else:

    @kernel
    def sum_crc32(data: U8, start: Int, stop: Int) -> Any:
        """CRC-32 of `data[start:stop]`, which must lie inside the data."""
        return update_by_tables(IEEE_TABLES, np.int64(ALL), data, start, stop) ^ ALL


@kernel
def sum_crc32_by_tables(data: U8, start: Int, stop: Int) -> Any:
    """The same without the multiplication: what other processors run."""
    return update_by_tables(IEEE_TABLES, np.int64(ALL), data, start, stop) ^ ALL


@kernel
def crc32c_spans(data: U8, starts: I64, stops: I64, out: OutI64) -> Any:
    """CRC-32C of every span. -> (count, position, status); BAD_LENGTH at a span that leaves the data"""
    for index in range(starts.size):
        start, stop = np.int64(starts[index]), np.int64(stops[index])
        if start < 0 or stop < start or stop > data.size:
            return index, start, BAD_LENGTH
        out[index] = sum_crc32c(data, start, stop)
    return starts.size, np.int64(data.size), OK


@kernel
def crc32_spans(data: U8, starts: I64, stops: I64, out: OutI64) -> Any:
    """CRC-32 of every span. -> (count, position, status); BAD_LENGTH at a span that leaves the data"""
    for index in range(starts.size):
        start, stop = np.int64(starts[index]), np.int64(stops[index])
        if start < 0 or stop < start or stop > data.size:
            return index, start, BAD_LENGTH
        out[index] = sum_crc32(data, start, stop)
    return starts.size, np.int64(data.size), OK
