"""The records of many snappy and lz4 batches decompressed in one call, in the framings that Kafka's own writers give them."""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.kernels import inline, kernel
from rawlog.kernels.gather import SLACK
from rawlog.kernels.ints import read_i32, read_i64, read_u8, read_u32_le
from rawlog.kernels.types import I64, U8, Int, OutI64, OutU8
from rawlog.kernels.unpack import NOT_TAKEN, put_literal, unpack_lz4, unpack_snappy

NONE, SNAPPY, LZ4 = 0, 2, 3
# 82 "SNAPPY" 00, version 1, compatible with 1; then blocks, each after its length.
XERIAL, XERIAL_VERSIONS, XERIAL_HEADER = -0x7DACB1BEAFAFA700, 0x0000000100000001, 16
# Version 1, independent blocks of 64 KiB, no checksum of content or blocks: 04224d18 60 40 82; then blocks, each after its length.
LZ4_MAGIC, LZ4_FLAGS, LZ4_HEADER, LZ4_BLOCK, LZ4_STORED = 0x184D2204, (0x60, 0x40, 0x82), 7, 65536, 0x80000000


@inline
def snappy_stream(data: Any, start: Any, stop: Any, out: Any, to: Any, most: Any) -> Any:
    """A xerial stream, or one block alone. -> bytes written, or NOT_TAKEN"""
    if stop - start < XERIAL_HEADER or read_i64(data, start) != XERIAL:
        return unpack_snappy(data, start, stop, out, to, most)
    if read_i64(data, start + 8) != XERIAL_VERSIONS:
        return np.int64(NOT_TAKEN)
    position, done = np.int64(start + XERIAL_HEADER), np.int64(0)
    while position < stop:
        if stop - position < 4:
            return np.int64(NOT_TAKEN)
        size = read_i32(data, position)
        position += 4
        if size < 0 or stop - position < size:
            return np.int64(NOT_TAKEN)
        made = unpack_snappy(data, position, position + size, out, to + done, most - done)
        if made < 0:
            return np.int64(NOT_TAKEN)
        done += made
        position += size
    return done


@inline
def lz4_frame(data: Any, start: Any, stop: Any, out: Any, to: Any, most: Any) -> Any:
    """A frame with the header that Kafka writes. -> bytes written, or NOT_TAKEN"""
    if stop - start < LZ4_HEADER or read_u32_le(data, start) != LZ4_MAGIC:
        return np.int64(NOT_TAKEN)
    for index in range(3):
        if read_u8(data, start + 4 + index) != LZ4_FLAGS[index]:
            return np.int64(NOT_TAKEN)
    position, done = np.int64(start + LZ4_HEADER), np.int64(0)
    while stop - position >= 4:
        mark = read_u32_le(data, position)
        position += 4
        if mark == 0:
            return done  # what is after the frame is not looked at
        size = mark & (LZ4_STORED - 1)
        if size > LZ4_BLOCK or stop - position < size:
            return np.int64(NOT_TAKEN)
        room = min(np.int64(most - done), np.int64(LZ4_BLOCK))
        if mark & LZ4_STORED:
            if size > room or out.size - to - done - SLACK < size:
                return np.int64(NOT_TAKEN)
            put_literal(out, to + done, data, position, size)
            made = np.int64(size)
        else:
            made = unpack_lz4(data, position, position + size, out, to + done, room)
            if made < 0:
                return np.int64(NOT_TAKEN)
        done += made
        position += size
    return np.int64(NOT_TAKEN)


@kernel
def unpack_payloads(
    data: U8,
    starts: I64,
    stops: I64,
    codecs: I64,
    counts: I64,
    first: Int,
    limit: Int,
    total: Int,
    out: OutU8,
    made: Int,
    sizes: OutI64,
) -> Any:
    """Lay the payloads of batches from `first` on end to end into `out`, after the `made` bytes that are there. -> (next, made)

    Ends in front of the first that the library must look at, or has to find room for; `limit` is the most one of them may hold, `total`
    all together. A batch of no records has no payload.
    """
    for index in range(first, starts.size):
        sizes[index] = 0
        if counts[index] == 0:
            continue
        start, stop = np.int64(starts[index]), np.int64(stops[index])
        most = min(np.int64(limit), np.int64(total - made))
        size = np.int64(NOT_TAKEN)
        if codecs[index] == SNAPPY:
            size = snappy_stream(data, start, stop, out, made, most)
        elif codecs[index] == LZ4:
            size = lz4_frame(data, start, stop, out, made, most)
        elif codecs[index] == NONE and stop - start <= min(most, np.int64(out.size - made - SLACK)):
            put_literal(out, made, data, start, stop - start)
            size = stop - start
        if size < 0:
            return index, made
        sizes[index] = size
        made += size
    return starts.size, made
