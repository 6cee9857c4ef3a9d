"""Raw blocks of snappy and lz4, decompressed inside kernels: for many small ones, where a call of the library costs more than its work.

Each answers how many bytes it wrote, or NOT_TAKEN for a block that is damaged, unusual or too large for the room: the libraries then say
what is to be said of it, so that nothing is taken here that they would refuse.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.kernels import inline, kernel
from rawlog.kernels.gather import (
    LONG,
    SLACK,
    copy32,
    copy_exact,
    copy_wide,
)
from rawlog.kernels.ints import read_u8, read_u16_le, read_u32_le
from rawlog.kernels.types import U8, Int, OutU8

NOT_TAKEN = -1
LAST_LITERALS, LAST_SEQUENCES = 5, 8
"""An lz4 block with a match ends with at least so many literal bytes, and no match begins in so many last bytes of it."""


@inline
def put_literal(out: Any, to: Any, data: Any, start: Any, size: Any) -> None:
    """Copy bytes of the input that were checked to be there; `out` has SLACK bytes to spare after them."""
    if size < LONG and data.size - start - size >= SLACK:
        copy_wide(out, to, data, start, size)
    else:
        copy_exact(out, to, data, start, size)


@inline
def put_match(out: Any, to: Any, distance: Any, size: Any) -> None:
    """Repeat what was written `distance` bytes before; the two may overlap, and then the bytes repeat one another."""
    step = np.int64(0)
    if distance >= SLACK:
        while step < size:
            copy32(out, to + step, out, to + step - distance)
            step += SLACK
    else:
        while step < size:
            out[to + step] = out[to + step - distance]
            step += 1


@kernel
def unpack_snappy(data: U8, start: Int, stop: Int, out: OutU8, to: Int, most: Int) -> Any:
    """Decompress the block `data[start:stop]` to `out[to:]`, at most `most` bytes. -> bytes written, or NOT_TAKEN

    SLACK bytes of `out` after those may be written too.
    """
    size, shift, position = np.int64(0), 0, np.int64(start)
    while True:
        if position >= stop or shift > 28:
            return np.int64(NOT_TAKEN)
        byte = read_u8(data, position)
        position += 1
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    if size == 0 or size > most or out.size - to - SLACK < size:
        return np.int64(NOT_TAKEN)
    done = np.int64(0)
    while position < stop:
        tag = read_u8(data, position)
        position += 1
        kind = tag & 3
        if kind == 0:
            count = (tag >> 2) + 1
            if count > 60:
                width = count - 60
                if stop - position < width or stop - position < 4:
                    return np.int64(NOT_TAKEN)
                count = (read_u32_le(data, position) & ((1 << (8 * width)) - 1)) + 1
                position += width
            if stop - position < count or size - done < count:
                return np.int64(NOT_TAKEN)
            put_literal(out, to + done, data, position, count)
            position += count
        else:
            if kind == 1:
                if position >= stop:
                    return np.int64(NOT_TAKEN)
                count = ((tag >> 2) & 7) + 4
                distance = ((tag >> 5) << 8) | read_u8(data, position)
                position += 1
            elif kind == 2:
                if stop - position < 2:
                    return np.int64(NOT_TAKEN)
                count = (tag >> 2) + 1
                distance = read_u16_le(data, position)
                position += 2
            else:
                if stop - position < 4:
                    return np.int64(NOT_TAKEN)
                count = (tag >> 2) + 1
                distance = read_u32_le(data, position)
                position += 4
            if distance == 0 or distance > done or size - done < count:
                return np.int64(NOT_TAKEN)
            put_match(out, to + done, distance, count)
        done += count
    return done if done == size else np.int64(NOT_TAKEN)


@inline
def more_length(data: Any, position: Any, stop: Any, length: Any) -> Any:
    """The bytes that lengthen a length of 15. -> (length, next position); position -1 where they do not end"""
    while True:
        if position >= stop:
            return length, np.int64(-1)
        byte = read_u8(data, position)
        position += 1
        length += byte
        if byte < 255:
            return length, np.int64(position)


@kernel
def unpack_lz4(data: U8, start: Int, stop: Int, out: OutU8, to: Int, most: Int) -> Any:
    """Decompress the block `data[start:stop]` to `out[to:]`, at most `most` bytes. -> bytes written, or NOT_TAKEN

    SLACK bytes of `out` after those may be written too.
    """
    room = min(np.int64(most), np.int64(out.size - to - SLACK))
    position, done, matched = np.int64(start), np.int64(0), False
    while position < stop:
        token = read_u8(data, position)
        position += 1
        count = np.int64(token >> 4)
        if count == 15:
            count, position = more_length(data, position, stop, count)
            if position < 0:
                return np.int64(NOT_TAKEN)
        if stop - position < count or room - done < count:
            return np.int64(NOT_TAKEN)
        put_literal(out, to + done, data, position, count)
        position += count
        done += count
        if position == stop:
            return done if done > 0 and (not matched or count >= LAST_LITERALS) else np.int64(NOT_TAKEN)
        if stop - position < LAST_SEQUENCES:
            return np.int64(NOT_TAKEN)
        distance = read_u16_le(data, position)
        position += 2
        count = np.int64(token & 15)
        if count == 15:
            count, position = more_length(data, position, stop, count)
            if position < 0:
                return np.int64(NOT_TAKEN)
        count += 4
        if distance == 0 or distance > done or room - done < count:
            return np.int64(NOT_TAKEN)
        put_match(out, to + done, distance, count)
        done += count
        matched = True
    return np.int64(NOT_TAKEN)
