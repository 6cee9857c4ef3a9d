"""Records of magic 2 into the buffers of Arrow columns.

One call decodes the batches of a whole window. Every length is checked before it is followed; a record must fill
its length exactly, a batch must hold exactly its count of records and nothing after them (DefaultRecord.readFrom,
DefaultRecordBatch). Headers are checked here and copied by a second kernel, which then knows their sizes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.formats.kafka.log.kernels.heads import SMALLEST_V0, SMALLEST_V1
from rawlog.formats.kafka.log.layouts import (
    CODEC_MASK,
    ENTRY_V0,
    ENTRY_V1,
    NONE,
    OUTLINE,
    SMALLEST_LENGTH,
    SMALLEST_RECORD,
    Attributes,
)
from rawlog.kernels import inline, kernel
from rawlog.kernels.crc import sum_crc32
from rawlog.kernels.gather import LONG, SLACK, copy_exact, copy_wide
from rawlog.kernels.ints import (
    read_i8,
    read_i32,
    read_i64,
    read_u8,
    read_u32,
    read_u32_le,
    read_varint,
    read_varlong,
    wrap_i64,
)
from rawlog.kernels.types import I32, I64, U8, Bool, Int, OutI32, OutI64, OutU8
from rawlog.kernels.unpack import NOT_TAKEN, put_literal, unpack_lz4, unpack_snappy
from rawlog.model.status import (
    BAD_CODEC,
    BAD_COUNT,
    BAD_CRC,
    BAD_LENGTH,
    BAD_MAGIC,
    BAD_VALUE,
    BAD_VARINT,
    FULL,
    OK,
    TRAILING,
)

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


# ----------------------------------------------------------------------------------------------------------------------
# The records of many snappy and lz4 batches decompressed in one call, in the framings that Kafka's own writers give them.


NO_CODEC, SNAPPY, LZ4 = 0, 2, 3
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
        elif codecs[index] == NO_CODEC and stop - start <= min(most, np.int64(out.size - made - SLACK)):
            put_literal(out, made, data, start, stop - start)
            size = stop - start
        if size < 0:
            return index, made
        sizes[index] = size
        made += size
    return starts.size, made


# ----------------------------------------------------------------------------------------------------------------------
# Entries of magic 0 and 1 into the buffers of Arrow columns.
# A span is either one plain entry, or what a wrapper decompressed to: entries of the same layout, end to end. An entry is read by its own
# magic, whatever the wrapper's; time and offset are the wrapper's to decide (AbstractLegacyRecordBatch).


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
