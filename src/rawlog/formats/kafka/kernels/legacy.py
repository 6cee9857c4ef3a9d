"""Entries of magic 0 and 1 into the buffers of Arrow columns.

A span is either one plain entry, or what a wrapper decompressed to: entries of the same layout, end to end. An entry is read by
its own magic, whatever the wrapper's; time and offset are the wrapper's to decide (AbstractLegacyRecordBatch).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.core.status import BAD_CODEC, BAD_COUNT, BAD_CRC, BAD_LENGTH, BAD_MAGIC, BAD_VALUE, FULL, OK
from rawlog.formats.kafka.kernels.heads import SMALLEST_V0, SMALLEST_V1
from rawlog.formats.kafka.kernels.records import MOST_MS, clear_bit, put_bytes
from rawlog.formats.kafka.layouts import CODEC_MASK, ENTRY_V0, ENTRY_V1, NONE, OUTLINE, SMALLEST_LENGTH, Attributes
from rawlog.kernels import inline, kernel
from rawlog.kernels.crc import sum_crc32
from rawlog.kernels.gather import SLACK
from rawlog.kernels.ints import read_i8, read_i32, read_i64, read_u32, wrap_i64
from rawlog.kernels.types import I64, U8, Bool, Int, OutI32, OutI64, OutU8

LENGTH, OVERHEAD, MAGIC, OUTLINE_SIZE = OUTLINE.at("length"), OUTLINE.after("length"), OUTLINE.at("magic"), OUTLINE.size
CRC, COVERED, ATTRIBUTES = ENTRY_V0.at("crc"), ENTRY_V0.after("crc"), ENTRY_V0.at("attributes")
TIME = ENTRY_V1.at("timestamp")
KEY_V0, KEY_V1 = ENTRY_V0.at("key_length"), ENTRY_V1.at("key_length")

LOG_APPEND_TIME = int(Attributes.LOG_APPEND_TIME)
NO_TIMESTAMP_TYPE = -1
"""What Kafka calls NoTimestampType: entries of magic 0 have no time of any kind."""

PLAIN, ABSOLUTE, RELATIVE = 0, 1, 2
"""What a span is: one entry; a wrapper of magic 0, with absolute offsets inside; one of magic 1, with relative ones."""


@inline
def entry_end(data: Any, position: Any, stop: Any) -> Any:
    """Where the entry at `position` ends: -1 if it is cut, -2 if its length is invalid."""
    if stop - position <= OUTLINE_SIZE:
        return np.int64(-1)
    size = read_i32(data, position + LENGTH)
    if size < SMALLEST_LENGTH:
        return np.int64(-2)
    return np.int64(-1) if stop - position - OVERHEAD < size else np.int64(position + OVERHEAD + size)


@inline
def entry_payload(data: Any, start: Any, end: Any, magic: Any) -> Any:
    """Where key and value of an entry lie that is long enough for its magic. -> (key, its size, value, its size); key -1: beyond its end"""
    position = start + (KEY_V0 if magic == 0 else KEY_V1)
    key_size = read_i32(data, position)
    key_at = position + 4
    room = end - key_at - 4
    if room < key_size:
        return np.int64(-1), key_size, key_at, key_size
    position = key_at + max(key_size, np.int64(0))
    value_size = read_i32(data, position)
    if end - position - 4 < value_size:
        return np.int64(-1), key_size, position + 4, value_size
    return np.int64(key_at), key_size, position + 4, value_size


@inline
def put_nullable(out: Any, valid: Any, row: Any, end: Any, data: Any, start: Any, size: Any, wide: Any) -> Any:
    """Add a value to what reaches to `end`, or a null where its size is below zero. -> the new end"""
    if size < 0:
        clear_bit(valid, row)
        return end
    put_bytes(out, end, data, start, size, wide)
    return end + size


@kernel
def measure_spans(data: U8, starts: I64, stops: I64, kinds: I64, offsets: I64, counts: OutI64, bases: OutI64) -> Any:
    """Count the entries of every span, and find what to add to the offsets inside. -> (span, position, status)

    A cut last entry inside a wrapper is dropped, as by Kafka; a wrapper must hold at least one whole entry.
    """
    for span in range(starts.size):
        position, stop, count, last = np.int64(starts[span]), np.int64(stops[span]), 0, np.int64(0)
        bases[span] = 0
        while position < stop:
            end = entry_end(data, position, stop)
            if end == -2:
                return span, position, BAD_LENGTH
            if end == -1:
                break
            last = read_i64(data, position)
            count += 1
            position = end
        counts[span] = count
        if count == 0:
            return span, np.int64(starts[span]), BAD_COUNT
        if kinds[span] == RELATIVE and offsets[span] != 0:
            if offsets[span] < last:
                return span, np.int64(starts[span]), BAD_VALUE
            bases[span] = wrap_i64(offsets[span] - last)
    return starts.size, np.int64(data.size), OK


@kernel
def any_older(data: U8, start: Int, stop: Int, count: Int) -> Any:
    """Whether one of the entries at `start`, which `measure_spans` has walked, is of magic 0."""
    position = np.int64(start)
    for _ in range(count):
        if read_i8(data, position + MAGIC) == 0:
            return True
        position = np.int64(entry_end(data, position, stop))
    return False


@kernel
def skip_entries(data: U8, start: Int, stop: Int, count: Int, rows: Int, size: Int) -> Any:
    """How many of the `count` entries at `start`, which `measure_spans` has walked, make a slice of at most so many rows and bytes.
    -> (rows, position)

    The first is always in it.
    """
    position, found = np.int64(start), np.int64(0)
    while found < count and found < rows:
        end = np.int64(entry_end(data, position, stop))
        if found > 0 and end - start > size:
            break
        found += 1
        position = end
    return found, position


@kernel
def decode_entries(
    data: U8,
    starts: I64,
    stops: I64,
    kinds: I64,
    counts: I64,
    bases: I64,
    append_times: I64,
    no_append_time: Int,
    check_crc: Bool,
    with_key: Bool,
    with_value: Bool,
    offsets: OutI64,
    times: OutI64,
    times_valid: OutU8,
    key_offsets: OutI32,
    keys: OutU8,
    keys_valid: OutU8,
    value_offsets: OutI32,
    values: OutU8,
    values_valid: OutU8,
    nulls: OutI64,
) -> Any:
    """Decode the entries of all spans, which `measure_spans` has counted. -> (count, position, status)

    `nulls` takes the number of null times, keys and values, and of the times beyond what microseconds can hold: these are null, and
    their place in `times` has the milliseconds.
    """
    row = 0
    key_end, value_end = np.int64(0), np.int64(0)
    if with_key:
        key_offsets[0] = 0
    if with_value:
        value_offsets[0] = 0
    for span in range(starts.size):
        position, stop = np.int64(starts[span]), np.int64(stops[span])
        wide = data.size - stop >= SLACK
        if offsets.size - row < counts[span]:
            return row, position, FULL
        for _ in range(counts[span]):
            start = position
            end = entry_end(data, position, stop)
            magic = read_i8(data, start + MAGIC)
            if magic != 0 and magic != 1:
                return row, start, BAD_MAGIC
            if end - start < (SMALLEST_V0 if magic == 0 else SMALLEST_V1):
                return row, start, BAD_LENGTH
            if kinds[span] != PLAIN:
                if read_i8(data, start + ATTRIBUTES) & CODEC_MASK != 0:
                    return row, start, BAD_CODEC
                if check_crc and sum_crc32(data, start + COVERED, end) != read_u32(data, start + CRC):
                    return row, start, BAD_CRC
            key_at, key_size, value_at, value_size = entry_payload(data, start, end, magic)
            if key_at < 0:
                return row, start, BAD_LENGTH
            nulls[1] += key_size < 0
            nulls[2] += value_size < 0
            if with_key:
                key_end = put_nullable(keys, keys_valid, row, key_end, data, key_at, key_size, wide)
            if with_value:
                value_end = put_nullable(values, values_valid, row, value_end, data, value_at, value_size, wide)

            time = np.int64(append_times[span])
            if time == no_append_time:
                time = np.int64(NONE) if magic == 0 else read_i64(data, start + TIME)
            far = time > MOST_MS or time < -MOST_MS
            times[row] = time if far else time * 1000
            if far or time == NONE:
                clear_bit(times_valid, row)
                nulls[0] += 1
                nulls[3] += far
            offsets[row] = wrap_i64(bases[span] + read_i64(data, start))
            row += 1
            if with_key:
                key_offsets[row] = key_end
            if with_value:
                value_offsets[row] = value_end
            position = end
    return row, np.int64(data.size), OK


@kernel
def decode_plain_entries(
    data: U8,
    starts: I64,
    stops: I64,
    with_key: Bool,
    with_value: Bool,
    offsets: OutI64,
    times: OutI64,
    times_valid: OutU8,
    types: OutI32,
    key_offsets: OutI32,
    keys: OutU8,
    keys_valid: OutU8,
    value_offsets: OutI32,
    values: OutU8,
    values_valid: OutU8,
    nulls: OutI64,
) -> Any:
    """Check and decode entries up to the first that is not a sound, uncompressed one of magic 0 or 1. -> how many

    What `take_heads`, `measure_spans` and `decode_entries` do in turn, in one go, for what needs nothing else. `types` takes the kind of
    time of every entry, `nulls` the number of null times, keys and values.
    """
    key_end, value_end = np.int64(0), np.int64(0)
    if with_key:
        key_offsets[0] = 0
    if with_value:
        value_offsets[0] = 0
    for row in range(starts.size):
        start, end = np.int64(starts[row]), np.int64(stops[row])
        magic = read_i8(data, start + MAGIC)
        if (magic != 0 and magic != 1) or end - start < (SMALLEST_V0 if magic == 0 else SMALLEST_V1):
            return row
        attributes = read_i8(data, start + ATTRIBUTES)
        if attributes & CODEC_MASK != 0 or sum_crc32(data, start + COVERED, end) != read_u32(data, start + CRC):
            return row
        time = np.int64(NONE) if magic == 0 else read_i64(data, start + TIME)
        key_at, key_size, value_at, value_size = entry_payload(data, start, end, magic)
        if key_at < 0 or time > MOST_MS or time < -MOST_MS:
            return row
        wide = data.size - end >= SLACK
        nulls[1] += key_size < 0
        nulls[2] += value_size < 0
        if with_key:
            key_end = put_nullable(keys, keys_valid, row, key_end, data, key_at, key_size, wide)
        if with_value:
            value_end = put_nullable(values, values_valid, row, value_end, data, value_at, value_size, wide)
        times[row] = time * 1000
        if time == NONE:
            clear_bit(times_valid, row)
            nulls[0] += 1
        types[row] = NO_TIMESTAMP_TYPE if magic == 0 else (1 if attributes & LOG_APPEND_TIME else 0)
        offsets[row] = read_i64(data, start)
        if with_key:
            key_offsets[row + 1] = key_end
        if with_value:
            value_offsets[row + 1] = value_end
    return starts.size
