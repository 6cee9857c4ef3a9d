"""Records of magic 2 into the buffers of Arrow columns.

One call decodes the batches of a whole window. Every length is checked before it is followed; a record must fill
its length exactly, a batch must hold exactly its count of records and nothing after them (DefaultRecord.readFrom,
DefaultRecordBatch). Headers are checked here and copied by a second kernel, which then knows their sizes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.core.status import BAD_COUNT, BAD_LENGTH, BAD_VARINT, FULL, OK, TRAILING
from rawlog.formats.kafka.layouts import NONE, SMALLEST_RECORD
from rawlog.kernels import inline, kernel
from rawlog.kernels.gather import LONG, SLACK, copy_exact, copy_wide
from rawlog.kernels.ints import wrap_i64
from rawlog.kernels.types import I32, I64, U8, Bool, Int, OutI32, OutI64, OutU8
from rawlog.kernels.varint import read_varint, read_varlong

MOST_MS = ((1 << 63) - 1) // 1000
"""The latest millisecond that microseconds can hold."""
NO_APPEND_TIME = -(1 << 63)
"""In `append_times`: the records have times of their own."""

TOTALS = 7
"""Sums that `decode_records_v2` leaves, by place."""
NULL_TIMES, NULL_KEYS, NULL_VALUES, HEADERS, HEADER_KEY_BYTES, HEADER_VALUE_BYTES, FAR_TIMES = range(TOTALS)


@inline
def clear_bit(bitmap: Any, index: Any) -> None:
    """Mark a row as null in an Arrow validity bitmap that began as all ones."""
    bitmap[index >> 3] = bitmap[index >> 3] & (0xFF ^ (1 << (index & 7)))


@inline
def put_bytes(out: Any, to: Any, data: Any, start: Any, size: Any, wide: Any) -> None:
    """Copy a checked span; `wide` says that SLACK bytes may be read and written after it."""
    if wide and size < LONG:
        copy_wide(out, to, data, start, size)
    else:
        copy_exact(out, to, data, start, size)


@kernel
def check_headers(data: U8, position: Int, end: Int, count: Int, totals: OutI64) -> Any:
    """Walk the headers of one record and add up their sizes. -> (next position, status)"""
    key_bytes, value_bytes = 0, 0
    for _ in range(count):
        size, position = read_varint(data, position, end)
        if position < 0:
            return position, BAD_VARINT
        if size < 0 or end - position < size:
            return position, BAD_LENGTH
        key_bytes += size
        position += size
        size, position = read_varint(data, position, end)
        if position < 0:
            return position, BAD_VARINT
        if size > 0:
            if end - position < size:
                return position, BAD_LENGTH
            value_bytes += size
            position += size
    totals[HEADERS] += count
    totals[HEADER_KEY_BYTES] += key_bytes
    totals[HEADER_VALUE_BYTES] += value_bytes
    return position, OK


@kernel
def decode_records_v2(
    data: U8,
    starts: I64,
    stops: I64,
    counts: I64,
    base_offsets: I64,
    base_times: I64,
    append_times: I64,
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
    header_offsets: OutI32,
    header_starts: OutI64,
    totals: OutI64,
) -> Any:
    """Decode the records in `data[starts[i]:stops[i]]` of every batch i. -> (count, position, status)

    Of a failure `count` tells the records before it and `position` where the record begins. `keys` and `values`
    need SLACK bytes more than all spans together (unless not asked for); the bitmaps must be all ones.
    `header_starts[n]` is where the headers of record n begin, `header_offsets` counts them. A time beyond what microseconds can hold
    is null; its place in `times` has the milliseconds.
    """
    row = 0
    key_end, value_end = np.int64(0), np.int64(0)
    if with_key:
        key_offsets[0] = 0
    if with_value:
        value_offsets[0] = 0
    header_offsets[0] = 0
    for batch in range(starts.size):
        position, stop = np.int64(starts[batch]), np.int64(stops[batch])
        count = np.int64(counts[batch])
        base_offset, base_time = np.int64(base_offsets[batch]), np.int64(base_times[batch])
        append_time = np.int64(append_times[batch])
        wide = data.size - stop >= SLACK
        if count == 0:
            continue
        if count < 0 or count > (stop - position) // SMALLEST_RECORD:
            return row, position, BAD_COUNT
        if offsets.size - row < count:
            return row, position, FULL
        for _ in range(count):
            start = position
            size, position = read_varint(data, position, stop)
            if position < 0:
                return row, start, BAD_VARINT
            if size < 1 or stop - position < size:
                return row, start, BAD_LENGTH
            end = position + size
            # The first byte is the record's attributes, which nobody uses.
            time_delta, position = read_varlong(data, position + 1, end)
            if position < 0:
                return row, start, BAD_VARINT
            offset_delta, position = read_varint(data, position, end)
            if position < 0:
                return row, start, BAD_VARINT

            size, position = read_varint(data, position, end)
            if position < 0:
                return row, start, BAD_VARINT
            if size >= 0:
                if end - position < size:
                    return row, start, BAD_LENGTH
                if with_key:
                    put_bytes(keys, key_end, data, position, size, wide)
                    key_end += size
                position += size
            else:
                totals[NULL_KEYS] += 1
                if with_key:
                    clear_bit(keys_valid, row)

            size, position = read_varint(data, position, end)
            if position < 0:
                return row, start, BAD_VARINT
            if size >= 0:
                if end - position < size:
                    return row, start, BAD_LENGTH
                if with_value:
                    put_bytes(values, value_end, data, position, size, wide)
                    value_end += size
                position += size
            else:
                totals[NULL_VALUES] += 1
                if with_value:
                    clear_bit(values_valid, row)

            headers, position = read_varint(data, position, end)
            if position < 0:
                return row, start, BAD_VARINT
            if headers != 0:
                if headers < 0 or headers > end - position:
                    return row, start, BAD_COUNT
                header_starts[row] = position
                position, status = check_headers(data, position, end, headers, totals)
                if status != OK:
                    return row, start, status
            if position != end:
                return row, start, BAD_LENGTH

            time: Any = append_time
            if append_time == NO_APPEND_TIME:
                time = wrap_i64(base_time + time_delta)
            far = time > MOST_MS or time < -MOST_MS
            times[row] = time if far else time * 1000
            if far or time == NONE:
                clear_bit(times_valid, row)
                totals[NULL_TIMES] += 1
                totals[FAR_TIMES] += far
            offsets[row] = wrap_i64(base_offset + offset_delta)
            row += 1
            if with_key:
                key_offsets[row] = key_end
            if with_value:
                value_offsets[row] = value_end
            header_offsets[row] = totals[HEADERS]
        if position != stop:
            return row, position, TRAILING
    return row, np.int64(data.size), OK


@kernel
def decode_headers_v2(
    data: U8,
    header_offsets: I32,
    header_starts: I64,
    key_offsets: OutI32,
    keys: OutU8,
    value_offsets: OutI32,
    values: OutU8,
    values_valid: OutU8,
) -> Any:
    """Copy the headers that `decode_records_v2` has found and checked. -> (count, position, status)

    The position is the number of null values. `keys` and `values` need SLACK bytes more than they will hold.
    """
    count, key_end, value_end, nulls = 0, np.int64(0), np.int64(0), np.int64(0)
    key_offsets[0] = 0
    value_offsets[0] = 0
    end = np.int64(data.size)
    for row in range(header_starts.size):
        headers = np.int64(header_offsets[row + 1]) - np.int64(header_offsets[row])
        if headers == 0:
            continue
        position = np.int64(header_starts[row])
        for _ in range(headers):
            size, position = read_varint(data, position, end)
            put_bytes(keys, key_end, data, position, size, end - position - size >= SLACK)
            key_end += size
            position += size
            size, position = read_varint(data, position, end)
            if size >= 0:
                put_bytes(values, value_end, data, position, size, end - position - size >= SLACK)
                value_end += size
                position += size
            else:
                clear_bit(values_valid, count)
                nulls += 1
            count += 1
            key_offsets[count] = key_end
            value_offsets[count] = value_end
    return count, nulls, OK


@kernel
def skip_records_v2(data: U8, start: Int, stop: Int, count: Int, rows: Int, size: Int, headers: Int) -> Any:
    """How many of the `count` records at `start` make a slice of at most so many rows, bytes and headers. -> (rows, position)

    The first record is always in it. A record that cannot be read makes a slice of its own, up to `stop`.
    """
    position, found, inside = np.int64(start), np.int64(0), np.int64(0)
    while found < count and found < rows:
        length, at = read_varint(data, position, stop)
        if at < 0 or length < 1 or stop - at < length:
            break
        end = np.int64(at + length)
        _, at = read_varlong(data, at + 1, end)
        if at >= 0:
            _, at = read_varint(data, at, end)
        for _ in range(2):
            if at >= 0:
                length, at = read_varint(data, at, end)
            if at >= 0 and length > 0:
                at = at + length if end - at >= length else np.int64(-1)
        more = np.int64(0)
        if at >= 0:
            more, at = read_varint(data, at, end)
        if at < 0 or more < 0 or more > end - at:
            break
        if found > 0 and (inside + more > headers or end - start > size):
            break
        inside += more
        found += 1
        position = end
    if found == 0:
        return np.int64(1), np.int64(stop)
    return found, position
