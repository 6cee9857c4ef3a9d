"""Entries of a commit log, written."""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.formats.rocketmq.kernels.entries import (
    BLANK_SIZE,
    BODY_LENGTH,
    BORN_TIME,
    BORN_V6,
    CRC,
    FLAG,
    HEAD_SIZE,
    HOST_SIZE,
    MAGIC,
    PHYSICAL,
    PREPARED,
    PROPERTIES_SIZE,
    QUEUE_ID,
    QUEUE_OFFSET,
    RECONSUME,
    STORE_V6,
    STORED_SIZE,
    SYS_FLAG,
    TAIL_SIZE,
    TOPIC_SIZE_V1,
    TOPIC_SIZE_V2,
    TOTAL,
    body_crc,
    hosts_more,
)
from rawlog.formats.rocketmq.layouts import (
    CRC_MASK,
    CRC_PROPERTY,
    CRC_PROPERTY_SIZE,
    FIXED_V4,
    MAGIC_V1,
    MAGIC_V2,
    NAME_VALUE,
    PAIR_END,
    V6_MORE,
)
from rawlog.kernels import inline, kernel
from rawlog.kernels.crc import sum_crc32
from rawlog.kernels.gather import copy
from rawlog.kernels.ints import (
    write_i8,
    write_i16,
    write_i32,
    write_i64,
)
from rawlog.kernels.types import (
    I32,
    I64,
    U8,
    AnyI64x2,
    Bool,
    I64x2,
    Int,
    OutI64,
    OutU8,
    U8x2,
)

NUMBERS = 11
"""Rows of the array of numbers, by place."""
(
    N_QUEUE_ID,
    N_FLAG,
    N_QUEUE_OFFSET,
    N_PHYSICAL,
    N_SYS_FLAG,
    N_BORN_TIME,
    N_STORE_TIME,
    N_RECONSUME,
    N_PREPARED,
    N_VERSION,
    N_AT,
) = range(NUMBERS)
CRC_NAME = np.frombuffer(CRC_PROPERTY, np.uint8)
CRC_DIGITS = CRC_PROPERTY_SIZE - len(CRC_PROPERTY) - 2
CRC_SIZE = CRC_PROPERTY_SIZE


@kernel
def measure_entries(
    numbers: I64x2, body_offsets: I32, topic_offsets: I32, property_offsets: I32, crc_property: Bool, sizes: OutI64
) -> None:
    """How many bytes each entry takes."""
    for row in range(sizes.size):
        size = FIXED_V4 + hosts_more(np.int64(numbers[N_SYS_FLAG, row])) + PROPERTIES_SIZE
        size += TOPIC_SIZE_V2 if numbers[N_VERSION, row] == 2 else TOPIC_SIZE_V1
        size += np.int64(body_offsets[row + 1]) - np.int64(body_offsets[row])
        size += np.int64(topic_offsets[row + 1]) - np.int64(topic_offsets[row])
        size += np.int64(property_offsets[row + 1]) - np.int64(property_offsets[row])
        sizes[row] = size + CRC_SIZE if crc_property else size


@kernel
def place_entries(sizes: I64, start: Int, file_size: Int, addresses: OutI64) -> Any:
    """Where entries go in a log of files of one size, `start` being where it ends: none crosses a file, and room for a blank one is left.

    -> where the log ends then, or -1 - row if an entry fits no file
    """
    address = np.int64(start)
    for row in range(sizes.size):
        size = np.int64(sizes[row])
        if size + BLANK_SIZE > file_size:
            return -1 - np.int64(row)
        room = file_size - address % file_size
        if size + BLANK_SIZE > room:
            address += room
        addresses[row] = address
        address += size
    return address


@inline
def put_crc(out: Any, start: Any, at: Any) -> None:
    """Write the property with the checksum of the entry from `start` to `at`, least significant digit first."""
    value = sum_crc32(out, start, at) & CRC_MASK
    for index in range(CRC_NAME.size):
        out[at + index] = CRC_NAME[index]
    at += CRC_NAME.size
    out[at] = NAME_VALUE
    for index in range(CRC_DIGITS):
        out[at + 1 + index] = 48 + value % 10
        value //= 10
    out[at + 1 + CRC_DIGITS] = PAIR_END


@kernel
def encode_entries(
    numbers: AnyI64x2,
    born_hosts: U8x2,
    store_hosts: U8x2,
    body_offsets: I32,
    bodies: U8,
    topic_offsets: I32,
    topics: U8,
    property_offsets: I32,
    properties: U8,
    crc_property: Bool,
    sizes: I64,
    out: OutU8,
) -> None:
    """Write every entry at `numbers[N_AT]` of `out`; hosts are rows of 20 bytes, of which IPv4 uses the first 8."""
    for row in range(sizes.size):
        start, flag = np.int64(numbers[N_AT, row]), np.int64(numbers[N_SYS_FLAG, row])
        two = numbers[N_VERSION, row] == 2
        write_i32(out, start + TOTAL, np.int64(sizes[row]))
        write_i32(out, start + MAGIC, np.int64(MAGIC_V2) if two else np.int64(MAGIC_V1))
        write_i32(out, start + QUEUE_ID, np.int64(numbers[N_QUEUE_ID, row]))
        write_i32(out, start + FLAG, np.int64(numbers[N_FLAG, row]))
        write_i64(out, start + QUEUE_OFFSET, np.int64(numbers[N_QUEUE_OFFSET, row]))
        write_i64(out, start + PHYSICAL, np.int64(numbers[N_PHYSICAL, row]))
        write_i32(out, start + SYS_FLAG, flag)
        write_i64(out, start + BORN_TIME, np.int64(numbers[N_BORN_TIME, row]))
        at = start + HEAD_SIZE
        host = HOST_SIZE + V6_MORE if flag & BORN_V6 else HOST_SIZE
        for index in range(host):
            out[at + index] = born_hosts[row, index]
        at += host
        write_i64(out, at, np.int64(numbers[N_STORE_TIME, row]))
        at += STORED_SIZE
        host = HOST_SIZE + V6_MORE if flag & STORE_V6 else HOST_SIZE
        for index in range(host):
            out[at + index] = store_hosts[row, index]
        at += host
        write_i32(out, at + RECONSUME, np.int64(numbers[N_RECONSUME, row]))
        write_i64(out, at + PREPARED, np.int64(numbers[N_PREPARED, row]))
        body = np.int64(body_offsets[row])
        size = np.int64(body_offsets[row + 1]) - body
        write_i32(out, at + BODY_LENGTH, size)
        at += TAIL_SIZE
        copy(out, at, bodies, body, size)
        write_i32(out, start + CRC, body_crc(out, at, size))
        at += size
        topic = np.int64(topic_offsets[row])
        size = np.int64(topic_offsets[row + 1]) - topic
        if two:
            write_i16(out, at, size)
            at += TOPIC_SIZE_V2
        else:
            write_i8(out, at, size)
            at += TOPIC_SIZE_V1
        copy(out, at, topics, topic, size)
        at += size
        pairs = np.int64(property_offsets[row])
        size = np.int64(property_offsets[row + 1]) - pairs
        write_i16(out, at, size + CRC_SIZE if crc_property else size)
        at += PROPERTIES_SIZE
        copy(out, at, properties, pairs, size)
        at += size
        if crc_property:
            put_crc(out, start, at)


@kernel
def renew_crcs(numbers: AnyI64x2, property_offsets: I32, sizes: I64, out: OutU8) -> None:
    """Where entries end with the property of their checksum, write it again: they are at another address now."""
    for row in range(sizes.size):
        if np.int64(property_offsets[row + 1]) - np.int64(property_offsets[row]) < CRC_SIZE:
            continue
        start = np.int64(numbers[N_AT, row])
        at = start + np.int64(sizes[row]) - CRC_SIZE
        named: Any = out[at + CRC_NAME.size] == NAME_VALUE and out[at + CRC_SIZE - 1] == PAIR_END
        for index in range(CRC_NAME.size):
            named = named and out[at + index] == CRC_NAME[index]
        if named:
            put_crc(out, start, at)
