"""Loops over the bytes of segments."""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.kernels import inline, kernel
from rawlog.kernels.crc import sum_crc32c
from rawlog.kernels.gather import copy
from rawlog.kernels.ints import (
    read_i32,
    read_u32,
    write_i32,
    write_i64,
)
from rawlog.model.status import (
    BAD_LENGTH,
    BAD_MAGIC,
    FULL,
    OK,
    PADDING,
    TRUNCATED,
)
from tests.sixth.journal.layouts import ALIGNMENT, ENTRY, ENTRY_MAGIC, LARGEST

# The compiler takes plain numbers of a module as constants: read the layout once, here.
MAGIC, AFTER_MAGIC = ENTRY.at("magic"), ENTRY.after("magic")
CRC, AFTER_CRC = ENTRY.at("crc"), ENTRY.after("crc")
KEY_SIZE, VALUE_SIZE = ENTRY.at("key_size"), ENTRY.at("value_size")
NUMBER, TIMESTAMP, SIZE = ENTRY.at("number"), ENTRY.at("timestamp"), ENTRY.size


@inline
def content_size(data: Any, position: Any) -> Any:
    """The bytes of the entry at `position` without padding: -1 if it is cut, -2 for an invalid length, -3 for another magic."""
    left = np.int64(data.size) - position
    if left < AFTER_MAGIC:
        return np.int64(-1)
    if read_u32(data, position + MAGIC) != ENTRY_MAGIC:
        return np.int64(-3)
    if left < SIZE:
        return np.int64(-1)
    key, value = np.int64(read_i32(data, position + KEY_SIZE)), np.int64(read_i32(data, position + VALUE_SIZE))
    if key < -1 or key > LARGEST or value < -1 or value > LARGEST:
        return np.int64(-2)
    return SIZE + max(key, np.int64(0)) + max(value, np.int64(0))


@inline
def padded(size: Any) -> Any:
    """A size with the zeros that follow, up to the next multiple of eight."""
    return (size + (ALIGNMENT - 1)) // ALIGNMENT * ALIGNMENT


@inline
def only_zeros(data: Any, start: Any) -> Any:
    """Whether nothing but zeros follows."""
    position = np.int64(start)
    while position < data.size and data[position] == 0:
        position += 1
    return position == data.size


@kernel
def scan_entries(data: Any, starts: Any, stops: Any) -> Any:
    """Write where every whole entry begins and ends, padding included. -> (count, position, status)"""
    count, position, end = 0, np.int64(0), np.int64(data.size)
    while position < end:
        if count == starts.size:
            return count, position, FULL
        size = content_size(data, position)
        if size < 0 and data[position] == 0 and only_zeros(data, position):
            return count, position, PADDING
        if size == -3:
            return count, position, BAD_MAGIC
        if size == -2:
            return count, position, BAD_LENGTH
        if size == -1 or end - position < padded(size):
            return count, position, TRUNCATED
        starts[count] = position
        position += padded(size)
        stops[count] = position
        count += 1
    return count, position, OK


@kernel
def find_entry(data: Any, start: Any) -> Any:
    """The first position from `start` on where a whole entry with the right checksum begins; -1 if there is none."""
    for position in range(np.int64(start), np.int64(data.size) - SIZE + 1):
        size = content_size(data, position)
        is_whole = size >= 0 and data.size - position >= padded(size)
        if is_whole and sum_crc32c(data, position + AFTER_CRC, position + size) == read_u32(data, position + CRC):
            return np.int64(position)
    return np.int64(-1)


@kernel
def encode_entries(
    numbers: Any,
    times: Any,
    key_ends: Any,
    keys: Any,
    has_key: Any,
    value_ends: Any,
    values: Any,
    has_value: Any,
    out: Any,
) -> Any:
    """Write entries end to end into `out`. `*_ends` are Arrow offsets. -> (count, position, status)"""
    position = np.int64(0)
    for index in range(numbers.size):
        key_start, value_start = np.int64(key_ends[index]), np.int64(value_ends[index])
        key, value = np.int64(key_ends[index + 1]) - key_start, np.int64(value_ends[index + 1]) - value_start
        if key > LARGEST or value > LARGEST:
            return index, position, BAD_LENGTH
        size = SIZE + key + value
        if out.size - position < padded(size):
            return index, position, FULL
        write_i32(out, position + MAGIC, ENTRY_MAGIC)
        write_i32(out, position + KEY_SIZE, key if has_key[index] else -1)
        write_i32(out, position + VALUE_SIZE, value if has_value[index] else -1)
        write_i64(out, position + NUMBER, numbers[index])
        write_i64(out, position + TIMESTAMP, times[index])
        copy(out, position + SIZE, keys, key_start, key)
        copy(out, position + SIZE + key, values, value_start, value)
        for padding in range(
            position + size, position + padded(size)
        ):  # a wide copy may have written a little too much
            out[padding] = 0
        write_i32(out, position + CRC, sum_crc32c(out, position + AFTER_CRC, position + size))
        position += padded(size)
    return numbers.size, position, OK
