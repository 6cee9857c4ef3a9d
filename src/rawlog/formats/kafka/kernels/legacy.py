"""Entries of magic 0 and 1 into the buffers of Arrow columns.

A span is either one plain entry, or what a wrapper decompressed to: entries of the same layout, end to end. An entry is read by
its own magic, whatever the wrapper's; time and offset are the wrapper's to decide (AbstractLegacyRecordBatch).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.formats.kafka.kernels.heads import SMALLEST_V0, SMALLEST_V1
from rawlog.formats.kafka.kernels.records import MOST_MS, clear_bit, put_bytes
from rawlog.formats.kafka.layouts import CODEC_MASK, ENTRY_V0, ENTRY_V1, NONE, OUTLINE, SMALLEST_LENGTH
from rawlog.kernels import inline, kernel
from rawlog.kernels.crc import sum_crc32
from rawlog.kernels.gather import SLACK
from rawlog.kernels.ints import read_i8, read_i32, read_i64, read_u32, wrap_i64
from rawlog.status import BAD_CODEC, BAD_COUNT, BAD_CRC, BAD_LENGTH, BAD_MAGIC, BAD_VALUE, FULL, OK

LENGTH, OVERHEAD, MAGIC, OUTLINE_SIZE = OUTLINE.at("length"), OUTLINE.after("length"), OUTLINE.at("magic"), OUTLINE.size
CRC, COVERED, ATTRIBUTES = ENTRY_V0.at("crc"), ENTRY_V0.after("crc"), ENTRY_V0.at("attributes")
TIME = ENTRY_V1.at("timestamp")
KEY_V0, KEY_V1 = ENTRY_V0.at("key_length"), ENTRY_V1.at("key_length")

PLAIN, ABSOLUTE, RELATIVE = 0, 1, 2
"""What a span is: one entry; a wrapper of magic 0, with absolute offsets inside; one of magic 1, with relative ones."""


@inline
def entry_end(data: Any, position: Any, stop: Any) -> Any:
    """Where the entry at `position` ends: -1 if it is cut, -2 if its length cannot be."""
    if stop - position <= OUTLINE_SIZE:
        return np.int64(-1)
    size = read_i32(data, position + LENGTH)
    if size < SMALLEST_LENGTH:
        return np.int64(-2)
    return np.int64(-1) if stop - position - OVERHEAD < size else np.int64(position + OVERHEAD + size)


@kernel
def measure_spans(data: Any, starts: Any, stops: Any, kinds: Any, offsets: Any, counts: Any, bases: Any) -> Any:
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
def decode_entries(
    data: Any,
    starts: Any,
    stops: Any,
    kinds: Any,
    counts: Any,
    bases: Any,
    append_times: Any,
    no_append_time: Any,
    check_crc: Any,
    with_key: Any,
    with_value: Any,
    offsets: Any,
    times: Any,
    times_valid: Any,
    key_offsets: Any,
    keys: Any,
    keys_valid: Any,
    value_offsets: Any,
    values: Any,
    values_valid: Any,
    nulls: Any,
) -> Any:
    """Decode the entries of all spans, which `measure_spans` has counted. -> (count, position, status)

    `nulls` takes the number of null times, keys and values.
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
            position = start + (KEY_V0 if magic == 0 else KEY_V1)
            size = read_i32(data, position)
            position += 4
            if size >= 0:
                if end - position - 4 < size:
                    return row, start, BAD_LENGTH
                if with_key:
                    put_bytes(keys, key_end, data, position, size, wide)
                    key_end += size
                position += size
            else:
                nulls[1] += 1
                if with_key:
                    clear_bit(keys_valid, row)
            size = read_i32(data, position)
            position += 4
            if size >= 0:
                if end - position < size:
                    return row, start, BAD_LENGTH
                if with_value:
                    put_bytes(values, value_end, data, position, size, wide)
                    value_end += size
                position += size
            else:
                nulls[2] += 1
                if with_value:
                    clear_bit(values_valid, row)

            time = np.int64(append_times[span])
            if time == no_append_time:
                time = np.int64(NONE) if magic == 0 else read_i64(data, start + TIME)
            if time > MOST_MS or time < -MOST_MS:
                return row, start, BAD_VALUE
            times[row] = time * 1000
            if time == NONE:
                clear_bit(times_valid, row)
                nulls[0] += 1
            offsets[row] = wrap_i64(bases[span] + read_i64(data, start))
            row += 1
            if with_key:
                key_offsets[row] = key_end
            if with_value:
                value_offsets[row] = value_end
            position = end
    return row, np.int64(data.size), OK
