"""Entries of a commit log: found, checked and taken apart into fields."""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.formats.rocketmq.layouts import (
    BATCH_MASK,
    BLANK,
    CRC_MASK,
    DLEDGER,
    DLEDGER_BLANK,
    DLEDGER_BLANK_MAGIC,
    DLEDGER_MAGIC,
    FILLER_FLAG,
    FIXED_V4,
    HEAD,
    HOST_V4,
    INNER,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES,
    SMALLEST_V1,
    SMALLEST_V2,
    STORED,
    TAIL,
    TOPIC_V1,
    TOPIC_V2,
    TRANSACTION_MASK,
    V6_MORE,
    SysFlag,
)
from rawlog.kernels import inline, kernel
from rawlog.kernels.crc import sum_crc32
from rawlog.kernels.gather import prefetch
from rawlog.kernels.ints import read_i8, read_i16, read_i32, read_i64
from rawlog.kernels.types import I64, U8, Bool, Bools, Int, OutI64, OutI64x2
from rawlog.model.status import BAD_LENGTH, BAD_MAGIC, FULL, OK, TRUNCATED

TOTAL, MAGIC, CRC, QUEUE_ID, FLAG = (HEAD.at(name) for name in ("total_size", "magic", "body_crc", "queue_id", "flag"))
QUEUE_OFFSET, PHYSICAL, SYS_FLAG = HEAD.at("queue_offset"), HEAD.at("physical_offset"), HEAD.at("sys_flag")
BORN_TIME, AFTER_SYS_FLAG = HEAD.at("born_timestamp"), HEAD.after("sys_flag")
AFTER_BORN = HEAD.size + HOST_V4.size
AFTER_STORED = AFTER_BORN + STORED.size
RECONSUME, PREPARED, BODY_LENGTH = (
    TAIL.at("reconsume_times"),
    TAIL.at("prepared_transaction_offset"),
    TAIL.at("body_length"),
)
TAIL_SIZE, HEAD_SIZE, STORED_SIZE, HOST_SIZE = TAIL.size, HEAD.size, STORED.size, HOST_V4.size
BODY_LENGTH_BACK = TAIL.size - TAIL.at("body_length")
TOPIC_SIZE_V1, TOPIC_SIZE_V2, PROPERTIES_SIZE = TOPIC_V1.size, TOPIC_V2.size, PROPERTIES.size
BORN_V6, STORE_V6 = int(SysFlag.BORNHOST_V6), int(SysFlag.STOREHOST_V6)
BLANK_SIZE, DLEDGER_SIZE, DLEDGER_BLANK_SIZE = BLANK.size, DLEDGER.size, DLEDGER_BLANK.size
DLEDGER_SIZE_AT, DLEDGER_BODY_SIZE = DLEDGER.at("size"), DLEDGER.at("body_size")

FIELDS = 23
"""Rows of the array that `decode_entries` fills, by place."""
(
    F_START,
    F_SIZE,
    F_VERSION,
    F_CRC,
    F_QUEUE_ID,
    F_FLAG,
    F_QUEUE_OFFSET,
    F_PHYSICAL,
    F_SYS_FLAG,
    F_BORN_TIME,
    F_BORN_HOST,
    F_STORE_TIME,
    F_STORE_HOST,
    F_RECONSUME,
    F_PREPARED,
    F_BODY,
    F_BODY_SIZE,
    F_TOPIC,
    F_TOPIC_SIZE,
    F_PROPERTIES,
    F_PROPERTIES_SIZE,
    F_CRC_OK,
    F_FRAME,
) = range(FIELDS)


AHEAD = 4096
"""How far ahead of a scan cache lines are prefetched, for what reads the entries afterwards."""
MOST_AHEAD, LINE = 2048, 64
ODD = 6
"""What `decode_entries` counts, by place."""
O_BAD_CRC, O_STALE, O_COMPRESSED, O_TRANSACTION, O_PACKED, O_FILLER = range(ODD)
COMPRESSED = int(SysFlag.COMPRESSED)
ODD_FLAGS = COMPRESSED | TRANSACTION_MASK | BATCH_MASK


@inline
def hosts_more(sys_flag: Any) -> Any:
    """Bytes that the two hosts take beyond those of IPv4."""
    more = np.int64(0)
    if sys_flag & BORN_V6:
        more += V6_MORE
    if sys_flag & STORE_V6:
        more += V6_MORE
    return more


@inline
def check_message(data: Any, position: Any, size: Any, magic: Any) -> Any:
    """Whether the parts of the message of `size` bytes at `position`, all inside the data, add up to it."""
    two = magic == MAGIC_V2
    if size < (SMALLEST_V2 if two else SMALLEST_V1):
        return False
    fixed = FIXED_V4 + hosts_more(read_i32(data, position + SYS_FLAG))
    if size < fixed:
        return False
    body = read_i32(data, position + fixed - BODY_LENGTH_BACK)
    left = size - fixed
    if body < 0 or body > left:
        return False
    left -= body
    at = position + fixed + body
    if two:
        if left < TOPIC_SIZE_V2:
            return False
        topic = read_i16(data, at)
        at += TOPIC_SIZE_V2
        left -= TOPIC_SIZE_V2
    else:
        if left < TOPIC_SIZE_V1:
            return False
        topic = read_i8(data, at)
        at += TOPIC_SIZE_V1
        left -= TOPIC_SIZE_V1
    if topic < 0 or left - topic < PROPERTIES_SIZE:
        return False
    return read_i16(data, at + topic) == left - topic - PROPERTIES_SIZE


@inline
def frame_size(data: Any, position: Any) -> Any:
    """The size of the whole, sound frame at `position`. -> (size, status)"""
    left = np.int64(data.size) - position
    if left < BLANK_SIZE:
        return np.int64(0), TRUNCATED
    first, second = read_i32(data, position + TOTAL), read_i32(data, position + MAGIC)
    if second == MAGIC_V1 or second == MAGIC_V2:  # noqa: SIM109
        if first < SMALLEST_V1:
            return np.int64(0), BAD_LENGTH
        if left < first:
            return np.int64(0), TRUNCATED
        if not check_message(data, position, first, second):
            return np.int64(0), BAD_LENGTH
        return first, OK
    if second == MAGIC_BLANK:
        if first < BLANK_SIZE:
            return np.int64(0), BAD_LENGTH
        return first, (TRUNCATED if left < first else OK)
    if first == DLEDGER_MAGIC:
        if second < DLEDGER_SIZE:
            return np.int64(0), BAD_LENGTH
        if left < DLEDGER_SIZE:
            return np.int64(0), TRUNCATED
        body = read_i32(data, position + DLEDGER_BODY_SIZE)
        if body != second - DLEDGER_SIZE:
            return np.int64(0), BAD_LENGTH
        if left < second:
            return np.int64(0), TRUNCATED
        if body > 0:
            if body < SMALLEST_V1:
                return np.int64(0), BAD_LENGTH
            inner = position + DLEDGER_SIZE
            magic = read_i32(data, inner + MAGIC)
            if magic != MAGIC_V1 and magic != MAGIC_V2:
                return np.int64(0), BAD_MAGIC
            if read_i32(data, inner + TOTAL) != body or not check_message(data, inner, body, magic):
                return np.int64(0), BAD_LENGTH
        return second, OK
    if first == DLEDGER_BLANK_MAGIC and second >= DLEDGER_BLANK_SIZE:
        return second, (TRUNCATED if left < second else OK)
    return np.int64(0), BAD_MAGIC


@kernel
def scan_entries(data: U8, start: Int, starts: OutI64, stops: OutI64) -> Any:
    """Write where every whole entry from `start` on begins and ends. -> (count, position, status)"""
    count, position, end = 0, np.int64(start), np.int64(data.size)
    while position < end:
        if count == starts.size:
            return count, position, FULL
        size, status = frame_size(data, position)
        if status != OK:
            return count, position, status
        starts[count] = position
        for line in range(position + AHEAD, min(position + AHEAD + min(size, MOST_AHEAD), end), LINE):
            prefetch(data, line)
        position += size
        stops[count] = position
        count += 1
    return count, position, OK


@inline
def body_crc(data: Any, start: Any, size: Any) -> Any:
    """The checksum that a message stores for its body."""
    return sum_crc32(data, start, start + size) & CRC_MASK if size else np.int64(0)


@inline
def message_start(data: Any, start: Any, stop: Any) -> Any:
    """Where the message of a frame begins, -1 if it has no message."""
    magic = read_i32(data, start + MAGIC)
    if magic == MAGIC_V1 or magic == MAGIC_V2:  # noqa: SIM109
        return np.int64(start)
    if read_i32(data, start) == DLEDGER_MAGIC and stop - start > DLEDGER_SIZE:
        return np.int64(start + DLEDGER_SIZE)
    return np.int64(-1)


@kernel
def decode_entries(data: U8, starts: I64, stops: I64, with_crc: Bool, address: Int, out: OutI64x2, odd: OutI64) -> Any:
    """Take the messages among frames that `scan_entries` found apart into the rows of `out`. -> (count, position, status)

    `address` is that of the first byte of the data, below 0 if unknown. `odd` counts what most messages are not (`O_…`).
    """
    row = 0
    for frame in range(starts.size):
        start = message_start(data, np.int64(starts[frame]), np.int64(stops[frame]))
        if start < 0:
            continue
        if row == out.shape[1]:
            return row, np.int64(starts[frame]), FULL
        size, sys_flag = read_i32(data, start + TOTAL), read_i32(data, start + SYS_FLAG)
        physical = read_i64(data, start + PHYSICAL)
        flag = read_i32(data, start + FLAG)
        if address >= 0 and physical != address + start:
            odd[O_STALE] += 1
        if sys_flag & ODD_FLAGS:
            odd[O_COMPRESSED] += sys_flag & COMPRESSED
            odd[O_TRANSACTION] += (sys_flag & TRANSACTION_MASK) != 0
            odd[O_PACKED] += (sys_flag & BATCH_MASK) == BATCH_MASK
        odd[O_FILLER] += flag == FILLER_FLAG
        out[F_START, row] = start
        out[F_SIZE, row] = size
        out[F_CRC, row] = read_i32(data, start + CRC)
        out[F_QUEUE_ID, row] = read_i32(data, start + QUEUE_ID)
        out[F_FLAG, row] = flag
        out[F_QUEUE_OFFSET, row] = read_i64(data, start + QUEUE_OFFSET)
        out[F_PHYSICAL, row] = physical
        out[F_SYS_FLAG, row] = sys_flag
        out[F_BORN_TIME, row] = read_i64(data, start + BORN_TIME)
        at = start + HEAD_SIZE
        out[F_BORN_HOST, row] = at
        at = start + (AFTER_BORN + V6_MORE if sys_flag & BORN_V6 else AFTER_BORN)
        out[F_STORE_TIME, row] = read_i64(data, at)
        at += STORED_SIZE
        out[F_STORE_HOST, row] = at
        at += HOST_SIZE + V6_MORE if sys_flag & STORE_V6 else HOST_SIZE
        out[F_RECONSUME, row] = read_i32(data, at + RECONSUME)
        out[F_PREPARED, row] = read_i64(data, at + PREPARED)
        body = read_i32(data, at + BODY_LENGTH)
        at += TAIL_SIZE
        out[F_BODY, row] = at
        out[F_BODY_SIZE, row] = body
        if with_crc:
            good = body_crc(data, at, body) == read_i32(data, start + CRC)
            out[F_CRC_OK, row] = good
            odd[O_BAD_CRC] += not good
        at += body
        if read_i32(data, start + MAGIC) == MAGIC_V2:
            out[F_VERSION, row] = 2
            topic = read_i16(data, at)
            at += TOPIC_SIZE_V2
        else:
            out[F_VERSION, row] = 1
            topic = read_i8(data, at)
            at += TOPIC_SIZE_V1
        out[F_TOPIC, row] = at
        out[F_TOPIC_SIZE, row] = topic
        at += topic
        out[F_PROPERTIES_SIZE, row] = read_i16(data, at)
        out[F_PROPERTIES, row] = at + PROPERTIES_SIZE
        out[F_FRAME, row] = frame
        row += 1
    return row, np.int64(data.size), OK


@kernel
def find_entry(data: U8, start: Int) -> Any:
    """The first position from `start` on where a message begins whose parts and checksum are right. -1: none"""
    end = np.int64(data.size)
    position = np.int64(start)
    while end - position >= SMALLEST_V1:
        magic = read_i32(data, position + MAGIC)
        if magic == MAGIC_V1 or magic == MAGIC_V2:  # noqa: SIM109
            size = read_i32(data, position + TOTAL)
            if size >= SMALLEST_V1 and size <= end - position and check_message(data, position, size, magic):
                fixed = FIXED_V4 + hosts_more(read_i32(data, position + SYS_FLAG))
                body = read_i32(data, position + fixed - BODY_LENGTH_BACK)
                if body_crc(data, position + fixed, body) == read_i32(data, position + CRC):
                    ledger = position - DLEDGER_SIZE
                    whole = size + DLEDGER_SIZE
                    if (
                        ledger >= start
                        and read_i32(data, ledger) == DLEDGER_MAGIC
                        and read_i32(data, ledger + DLEDGER_SIZE_AT) == whole
                    ):
                        return ledger
                    return position
        position += 1
    return np.int64(-1)


# ----------------------------------------------------------------------------------------------------------------------
# Messages inside the body of an inner batch.


SIZE, INNER_FLAG, INNER_BODY_LENGTH, INNER_HEAD_SIZE = (
    INNER.at("size"),
    INNER.at("flag"),
    INNER.at("body_length"),
    INNER.size,
)
INNER_PROPERTIES_SIZE = PROPERTIES.size
SMALLEST = INNER.size + PROPERTIES.size
INNER_FIELDS = 7
"""Rows of the array that `unpack_inner` fills, by place."""
I_PARENT, I_NUMBER, I_FLAG, I_BODY, I_BODY_SIZE, I_PROPERTIES, I_PROPERTIES_SIZE = range(INNER_FIELDS)


@kernel
def unpack_inner(
    data: U8, starts: I64, sizes: I64, packed: Bools, properties: I64, properties_sizes: I64, out: OutI64x2
) -> Any:
    """A row for every message: of those that are not packed what is given, of the others each inner one. -> (count, parent, status)"""
    count = 0
    for parent in range(starts.size):
        position, end = np.int64(starts[parent]), np.int64(starts[parent]) + np.int64(sizes[parent])
        if not packed[parent]:
            if count == out.shape[1]:
                return count, parent, FULL
            out[I_PARENT, count] = parent
            out[I_NUMBER, count] = 0
            out[I_BODY, count] = position
            out[I_BODY_SIZE, count] = sizes[parent]
            out[I_PROPERTIES, count] = properties[parent]
            out[I_PROPERTIES_SIZE, count] = properties_sizes[parent]
            count += 1
            continue
        number = 0
        while position < end:
            if count == out.shape[1]:
                return count, parent, FULL
            if end - position < SMALLEST:
                return count, parent, BAD_LENGTH
            size, body = read_i32(data, position + SIZE), read_i32(data, position + INNER_BODY_LENGTH)
            if size < SMALLEST or size > end - position or body < 0 or body > size - SMALLEST:
                return count, parent, BAD_LENGTH
            after = position + INNER_HEAD_SIZE + body
            pairs = read_i16(data, after)
            if pairs != size - SMALLEST - body:
                return count, parent, BAD_LENGTH
            out[I_PARENT, count] = parent
            out[I_NUMBER, count] = number
            out[I_FLAG, count] = read_i32(data, position + INNER_FLAG)
            out[I_BODY, count] = position + INNER_HEAD_SIZE
            out[I_BODY_SIZE, count] = body
            out[I_PROPERTIES, count] = after + INNER_PROPERTIES_SIZE
            out[I_PROPERTIES_SIZE, count] = pairs
            count += 1
            number += 1
            position += size
    return count, starts.size, OK
