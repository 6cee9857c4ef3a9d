"""CRC-32C (Castagnoli) and CRC-32 (IEEE) inside kernels, for spans too short to be worth a call each.

CRC-32C uses the processor's instruction where the host has it, three streams at a time, CRC-32 its carry-less multiplication; else,
and as the plain twin, 16 tables. Long single spans are the business of `rawlog.io.checksums`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawlog.kernels import (
    clmul,
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


if clmul.INSTRUCTION:
    FOLD_STEP, FOLD_LONG = clmul.STEP, clmul.LONG
    fold_short, fold_long = clmul.fold_short, clmul.fold_long

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
