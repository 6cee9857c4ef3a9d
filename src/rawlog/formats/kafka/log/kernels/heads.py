"""Walking a log from batch to batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.formats.kafka.log.layouts import (
    BATCH,
    CODEC_MASK,
    ENTRY_V0,
    ENTRY_V1,
    MAGIC_V2,
    NONE,
    OUTLINE,
    SMALLEST_BATCH,
    SMALLEST_LENGTH,
)
from rawlog.kernels import inline, kernel
from rawlog.kernels.crc import sum_crc32, sum_crc32c
from rawlog.kernels.ints import read_i8, read_i16, read_i32, read_i64, read_u32, wrap_i64
from rawlog.kernels.types import I64, U8, Bool, Int, OutI64, OutI64x2
from rawlog.model.status import BAD_CRC, BAD_LENGTH, BAD_MAGIC, FULL, OK, TRUNCATED

LENGTH, OVERHEAD, OUTLINE_SIZE = OUTLINE.at("length"), OUTLINE.after("length"), OUTLINE.size


@kernel
def scan_batches(data: U8, start: Int, starts: OutI64, stops: OutI64) -> Any:
    """Write where every whole batch or entry from `start` on begins and ends. -> (count, position, status)

    Only the outline is looked at, which all magics share; what a batch is worth is for others to say.
    """
    count, position, end = 0, np.int64(start), np.int64(data.size)
    while position < end:
        if count == starts.size:
            return count, position, FULL
        # Kafka's file reader wants one byte more than the outline.
        if end - position <= OUTLINE_SIZE:
            return count, position, TRUNCATED
        size = read_i32(data, position + LENGTH)
        if size < SMALLEST_LENGTH:
            return count, position, BAD_LENGTH
        if end - position - OVERHEAD < size:
            return count, position, TRUNCATED
        starts[count] = position
        position += OVERHEAD + size
        stops[count] = position
        count += 1
    return count, position, OK


# ----------------------------------------------------------------------------------------------------------------------
# The numbers in front of every batch or entry, of any magic, taken for a whole window at once.


NAMES = (
    "base_offset",
    "last_offset",
    "leader_epoch",
    "magic",
    "crc",
    "attributes",
    "base_timestamp",
    "max_timestamp",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "record_count",
    "computed_crc",
    "state",
)
(
    BASE_OFFSET,
    LAST_OFFSET,
    LEADER_EPOCH,
    MAGIC,
    CRC,
    ATTRIBUTES,
    BASE_TIMESTAMP,
    MAX_TIMESTAMP,
    PRODUCER_ID,
    PRODUCER_EPOCH,
    BASE_SEQUENCE,
    RECORD_COUNT,
    COMPUTED_CRC,
    STATE,
) = range(len(NAMES))
WRAPPER = -1
"""The record count of a compressed entry of magic 0 or 1: only its content tells."""

_MAGIC = OUTLINE.at("magic")
_SIZE_V2, _CRC_V2, _COVERED_V2 = BATCH.size, BATCH.at("crc"), BATCH.after("crc")
_EPOCH, _ATTRIBUTES = BATCH.at("leader_epoch"), BATCH.at("attributes")
_DELTA, _BASE_TIME, _MAX_TIME = BATCH.at("last_offset_delta"), BATCH.at("base_timestamp"), BATCH.at("max_timestamp")
_PRODUCER, _PRODUCER_EPOCH = BATCH.at("producer_id"), BATCH.at("producer_epoch")
_SEQUENCE, _COUNT = BATCH.at("base_sequence"), BATCH.at("record_count")
_CRC_LEGACY, _COVERED_LEGACY, _ATTRIBUTES_LEGACY = ENTRY_V0.at("crc"), ENTRY_V0.after("crc"), ENTRY_V0.at("attributes")
_TIME_V1 = ENTRY_V1.at("timestamp")
SMALLEST_V0, SMALLEST_V1 = ENTRY_V0.size + 4, ENTRY_V1.size + 4


@inline
def take_v2(data: Any, start: Any, stop: Any, with_crc: Any, out: Any, index: Any) -> Any:
    """The fields of a batch of magic 2; what is wrong with it, or OK."""
    if stop - start < _SIZE_V2:
        return BAD_LENGTH
    out[LAST_OFFSET, index] = wrap_i64(read_i64(data, start) + read_i32(data, start + _DELTA))
    out[LEADER_EPOCH, index] = read_i32(data, start + _EPOCH)
    out[CRC, index] = read_u32(data, start + _CRC_V2)
    out[ATTRIBUTES, index] = read_i16(data, start + _ATTRIBUTES)
    out[BASE_TIMESTAMP, index] = read_i64(data, start + _BASE_TIME)
    out[MAX_TIMESTAMP, index] = read_i64(data, start + _MAX_TIME)
    out[PRODUCER_ID, index] = read_i64(data, start + _PRODUCER)
    out[PRODUCER_EPOCH, index] = read_i16(data, start + _PRODUCER_EPOCH)
    out[BASE_SEQUENCE, index] = read_i32(data, start + _SEQUENCE)
    out[RECORD_COUNT, index] = read_i32(data, start + _COUNT)
    out[COMPUTED_CRC, index] = sum_crc32c(data, start + _COVERED_V2, stop) if with_crc else out[CRC, index]
    return OK if out[COMPUTED_CRC, index] == out[CRC, index] else BAD_CRC


@inline
def take_legacy(data: Any, start: Any, stop: Any, with_crc: Any, out: Any, index: Any) -> Any:
    """The fields of an entry of magic 0 or 1; what is wrong with it, or OK."""
    magic = out[MAGIC, index]
    if stop - start < (SMALLEST_V0 if magic == 0 else SMALLEST_V1):
        return BAD_LENGTH
    attributes = read_i8(data, start + _ATTRIBUTES_LEGACY)
    time = np.int64(NONE) if magic == 0 else read_i64(data, start + _TIME_V1)
    out[LAST_OFFSET, index] = out[BASE_OFFSET, index]
    out[LEADER_EPOCH, index] = NONE
    out[CRC, index] = read_u32(data, start + _CRC_LEGACY)
    out[ATTRIBUTES, index] = attributes
    out[BASE_TIMESTAMP, index] = time
    out[MAX_TIMESTAMP, index] = time
    out[PRODUCER_ID, index] = NONE
    out[PRODUCER_EPOCH, index] = NONE
    out[BASE_SEQUENCE, index] = NONE
    out[RECORD_COUNT, index] = 1 if attributes & CODEC_MASK == 0 else WRAPPER
    out[COMPUTED_CRC, index] = sum_crc32(data, start + _COVERED_LEGACY, stop) if with_crc else out[CRC, index]
    return OK if out[COMPUTED_CRC, index] == out[CRC, index] else BAD_CRC


@kernel
def take_heads(data: U8, starts: I64, stops: I64, with_crc: Bool, out: OutI64x2) -> Any:
    """Fill a column of `out` for every frame; its row STATE says whether the frame is one: OK, BAD_MAGIC, BAD_LENGTH, BAD_CRC.

    Without `with_crc` checksums count as right. The spans must lie inside the data.
    -> (frames that are not sound, attributes of any frame, whether any is of magic 2, whether any is not)
    """
    unsound, attributes, newer, older = np.int64(0), np.int64(0), False, False
    for index in range(starts.size):
        start, stop = np.int64(starts[index]), np.int64(stops[index])
        for row in range(out.shape[0]):
            out[row, index] = NONE
        out[BASE_OFFSET, index] = read_i64(data, start)
        magic = read_i8(data, start + _MAGIC)
        out[MAGIC, index] = magic
        if magic == MAGIC_V2:
            newer = True
            out[STATE, index] = take_v2(data, start, stop, with_crc, out, index)
        else:
            older = True
            if magic == 0 or magic == 1:
                out[STATE, index] = take_legacy(data, start, stop, with_crc, out, index)
            else:
                out[STATE, index] = BAD_MAGIC
        attributes |= out[ATTRIBUTES, index]
        if out[STATE, index] != OK:
            unsound += 1
    return unsound, attributes, newer, older


# ----------------------------------------------------------------------------------------------------------------------
# Finding batches among bytes that may be anything.


AT_LENGTH, AT_OVERHEAD, AT_MAGIC, SIZE = BATCH.at("length"), BATCH.after("length"), BATCH.at("magic"), BATCH.size
AT_BASE_OFFSET, AT_CRC, CRC_START = BATCH.at("base_offset"), BATCH.at("crc"), BATCH.after("crc")
CRC_LEGACY, COVERED_LEGACY = ENTRY_V0.at("crc"), ENTRY_V0.after("crc")
AT_RECORD_COUNT, LAST_OFFSET_DELTA = BATCH.at("record_count"), BATCH.at("last_offset_delta")


@inline
def is_entry(data: Any, position: Any, magic: Any) -> Any:
    """Whether an entry of magic 0 or 1 with a right checksum is at `position`."""
    size = read_i32(data, position + AT_LENGTH)
    if size < (SMALLEST_V0 if magic == 0 else SMALLEST_V1) - AT_OVERHEAD or data.size - position - AT_OVERHEAD < size:
        return False
    # Zeros, or bytes that say nothing, are no entry: the checksum of what follows must have been written on purpose.
    if read_i64(data, position) < 0 or read_u32(data, position + CRC_LEGACY) == 0:
        return False
    return sum_crc32(data, position + COVERED_LEGACY, position + AT_OVERHEAD + size) == read_u32(
        data, position + CRC_LEGACY
    )


@kernel
def find_batch(data: U8, start: Int) -> Any:
    """The first position from `start` on where a whole batch or entry with a right checksum is, or -1."""
    for position in range(np.int64(start), np.int64(data.size) - SMALLEST_V0 + 1):
        magic = read_i8(data, position + AT_MAGIC)
        if magic == 0 or magic == 1:
            if is_entry(data, position, magic):
                return np.int64(position)
            continue
        if magic != MAGIC_V2 or data.size - position < SIZE:
            continue
        size = read_i32(data, position + AT_LENGTH)
        if size < SMALLEST_BATCH or data.size - position - AT_OVERHEAD < size:
            continue
        count, delta = read_i32(data, position + AT_RECORD_COUNT), read_i32(data, position + LAST_OFFSET_DELTA)
        if count < 0 or delta < 0 or count > delta + 1 or read_i64(data, position + AT_BASE_OFFSET) < 0:
            continue
        if sum_crc32c(data, position + CRC_START, position + AT_OVERHEAD + size) == read_u32(data, position + AT_CRC):
            return np.int64(position)
    return np.int64(-1)


# ----------------------------------------------------------------------------------------------------------------------
# Which batches of a segment get an index entry, and where a segment is full: LogSegment.recover and LogSegment.shouldRoll.


MOST = (1 << 31) - 1
"""The largest offset, less the segment's base, that an index can name."""

INDEXING_STATE = 8
"""What is carried from window to window of one segment, by place."""
POSITION, INDEXED, MAX_TIME, MAX_TIME_OFFSET, LAST_TIME, ENTRIES, TIME_ENTRIES, FIRST_TIME = range(INDEXING_STATE)

LIMITS = 5
"""When a segment is full, and how far index entries lie apart, by place."""
SEGMENT_BYTES, SEGMENT_MS, MOST_ENTRIES, MOST_TIME_ENTRIES, INTERVAL = range(LIMITS)


@kernel
def index_batches(
    base: Int, sizes: I64, last_offsets: I64, max_times: I64, limits: I64, state: OutI64, out: OutI64x2
) -> Any:
    """Take in the batches of a window. -> (count, position in the segment, status); FULL: the next one needs a new segment

    `out` has four rows: offset and position of the offset entries, time and offset of the time entries; each counts from this
    window's first, so `state` tells how many there are by what its counts grew.
    """
    entries, times = state[ENTRIES], state[TIME_ENTRIES]
    for index in range(sizes.size):
        position, time, last = state[POSITION], np.int64(max_times[index]), np.int64(last_offsets[index])
        size = np.int64(sizes[index])
        if last - base > MOST:
            return index, position, FULL
        if position > 0:
            waited = time - state[FIRST_TIME] if state[FIRST_TIME] >= 0 else np.int64(0)
            if position > limits[SEGMENT_BYTES] - size or waited > limits[SEGMENT_MS]:
                return index, position, FULL
            # Of the time index one slot is kept for the closing entry.
            if state[ENTRIES] >= limits[MOST_ENTRIES] or state[TIME_ENTRIES] >= limits[MOST_TIME_ENTRIES] - 1:
                return index, position, FULL
        else:
            state[FIRST_TIME] = time
        if time > state[MAX_TIME]:
            state[MAX_TIME] = time
            state[MAX_TIME_OFFSET] = last
        if position - state[INDEXED] > limits[INTERVAL]:
            row = state[ENTRIES] - entries
            out[0, row] = last - base
            out[1, row] = position
            state[ENTRIES] += 1
            if state[MAX_TIME] > state[LAST_TIME]:
                row = state[TIME_ENTRIES] - times
                out[2, row] = state[MAX_TIME]
                out[3, row] = state[MAX_TIME_OFFSET] - base
                state[TIME_ENTRIES] += 1
                state[LAST_TIME] = state[MAX_TIME]
            state[INDEXED] = position
        state[POSITION] = position + size
    return sizes.size, state[POSITION], OK
