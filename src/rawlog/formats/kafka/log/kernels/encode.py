"""The buffers of Arrow columns into records of magic 2 and entries of magic 0 and 1.

`plan_batches` says which rows share a batch and how long each record is; `encode_records_v2` then writes the records into room
that fits them exactly, and `seal_batches` the headers in front, once what they cover is in place (compressed or not).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.formats.kafka.log.kernels.heads import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_SEQUENCE,
    BASE_TIMESTAMP,
    LAST_OFFSET,
    LEADER_EPOCH,
    MAX_TIMESTAMP,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    RECORD_COUNT,
)
from rawlog.formats.kafka.log.kernels.records import NO_APPEND_TIME
from rawlog.formats.kafka.log.layouts import BATCH, ENTRY_V0, ENTRY_V1, MAGIC_V2, NONE
from rawlog.kernels import inline, kernel
from rawlog.kernels.crc import sum_crc32, sum_crc32c
from rawlog.kernels.gather import copy
from rawlog.kernels.ints import (
    read_varint,
    read_varlong,
    size_varint,
    size_varlong,
    wrap_i64,
    write_i8,
    write_i16,
    write_i32,
    write_i64,
    write_varint,
    write_varlong,
)
from rawlog.kernels.types import I32, I64, U8, Bools, I64x2, Int, OutI64, OutU8
from rawlog.model.status import BAD_LENGTH, BAD_VALUE, BAD_VARINT, FULL, OK, TRAILING

MOST = (1 << 31) - 1
"""The largest offset delta, and the most bytes after a batch's length."""
HEADER, OVERHEAD = BATCH.size, BATCH.after("length")

_LENGTH, _EPOCH, _MAGIC = BATCH.at("length"), BATCH.at("leader_epoch"), BATCH.at("magic")
_CRC, _COVERED, _ATTRIBUTES = BATCH.at("crc"), BATCH.after("crc"), BATCH.at("attributes")
_DELTA, _BASE_TIME, _MAX_TIME = BATCH.at("last_offset_delta"), BATCH.at("base_timestamp"), BATCH.at("max_timestamp")
_PRODUCER, _PRODUCER_EPOCH = BATCH.at("producer_id"), BATCH.at("producer_epoch")
_SEQUENCE, _COUNT = BATCH.at("base_sequence"), BATCH.at("record_count")
_OLD_LENGTH, _OLD_CRC, _OLD_COVERED = ENTRY_V0.at("length"), ENTRY_V0.at("crc"), ENTRY_V0.after("crc")
_OLD_MAGIC, _OLD_ATTRIBUTES, _OLD_TIME = ENTRY_V0.at("magic"), ENTRY_V0.at("attributes"), ENTRY_V1.at("timestamp")
_KEY_V0, _KEY_V1 = ENTRY_V0.at("key_length"), ENTRY_V1.at("key_length")
SIZE_FIELD = 4


@inline
def size_bytes(size: Any) -> Any:
    """What a key or value of `size` bytes takes with its length; -1 is a null."""
    return size_varint(size) + (max(0, size))


@inline
def put_sized(out: Any, position: Any, data: Any, start: Any, size: Any) -> Any:
    """Write a length and the bytes; -1 is a null. -> next position"""
    position = write_varint(out, position, size)
    if size > 0:
        copy(out, position, data, start, size)
        return position + size
    return position


@inline
def span_size(ends: Any, nulls: Any, index: Any) -> Any:
    """The size of a value by its Arrow offsets, -1 for a null."""
    if nulls[index]:
        return np.int64(-1)
    return np.int64(ends[index + 1]) - np.int64(ends[index])


@kernel
def plan_batches(
    previous: Int,
    offsets: I64,
    times: I64,
    breaks: Bools,
    key_ends: I32,
    key_nulls: Bools,
    value_ends: I32,
    value_nulls: Bools,
    header_starts: I32,
    header_stops: I32,
    name_ends: I32,
    content_ends: I32,
    content_nulls: Bools,
    most_records: Int,
    most_bytes: Int,
    most_time: Int,
    sizes: OutI64,
    firsts: OutI64,
    payloads: OutI64,
) -> Any:
    """Cut rows into batches. -> (batches, rows, status)

    `sizes` takes each record's bytes after its own length, `firsts` every batch's first row, `payloads` the bytes of its records. A
    batch ends before a row that `breaks` marks, that would make it too large, or whose offset or time is too far off.
    BAD_VALUE: a row whose offset is not above the one before it; BAD_LENGTH: a record that no batch can hold.
    """
    batch, last = -1, np.int64(previous)
    base, base_time, count, filled = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    for row in range(offsets.size):
        offset, time = np.int64(offsets[row]), np.int64(times[row])
        if offset <= last:
            return batch + 1, row, BAD_VALUE
        last = offset
        body = np.int64(1) + size_bytes(span_size(key_ends, key_nulls, row))
        body += size_bytes(span_size(value_ends, value_nulls, row))
        first, stop = np.int64(header_starts[row]), np.int64(header_stops[row])
        body += size_varint(stop - first)
        for header in range(first, stop):
            body += size_bytes(np.int64(name_ends[header + 1]) - np.int64(name_ends[header]))
            body += size_bytes(span_size(content_ends, content_nulls, header))
        whole = np.int64(0)
        if batch >= 0:
            size = body + size_varlong(time - base_time) + size_varint((offset - base) & MOST)
            whole = size_varint(size) + size
        if (
            batch < 0
            or breaks[row]
            or count >= most_records
            or filled + whole > most_bytes
            or offset - base > MOST
            or time - base_time > most_time
            or base_time - time > most_time
        ):
            batch += 1
            if batch == firsts.size:
                return batch, row, FULL
            firsts[batch] = row
            base, base_time, count, filled = offset, time, np.int64(0), np.int64(0)
            size = body + 2
            whole = size_varint(size) + size
        if whole > MOST - (HEADER - OVERHEAD):
            return batch + 1, row, BAD_LENGTH
        sizes[row] = size
        count += 1
        filled += whole
        payloads[batch] = filled
    return batch + 1, offsets.size, OK


@kernel
def measure_records(
    base_offset: Int,
    base_time: Int,
    offsets: I64,
    times: I64,
    key_ends: I32,
    key_nulls: Bools,
    value_ends: I32,
    value_nulls: Bools,
    header_starts: I32,
    header_stops: I32,
    name_ends: I32,
    content_ends: I32,
    content_nulls: Bools,
    sizes: OutI64,
) -> Any:
    """The size of every record of one batch whose bases are given. -> (rows, bytes of all, status)"""
    filled = np.int64(0)
    for row in range(offsets.size):
        size = np.int64(1) + size_bytes(span_size(key_ends, key_nulls, row))
        size += size_bytes(span_size(value_ends, value_nulls, row))
        first, stop = np.int64(header_starts[row]), np.int64(header_stops[row])
        size += size_varint(stop - first)
        for header in range(first, stop):
            size += size_bytes(np.int64(name_ends[header + 1]) - np.int64(name_ends[header]))
            size += size_bytes(span_size(content_ends, content_nulls, header))
        delta = np.int64(offsets[row]) - base_offset
        if delta < 0 or delta > MOST:
            return row, filled, BAD_VALUE
        size += size_varlong(np.int64(times[row]) - base_time) + size_varint(delta)
        sizes[row] = size
        filled += size_varint(size) + size
        if filled > MOST - (HEADER - OVERHEAD):
            return row, filled, BAD_LENGTH
    return offsets.size, filled, OK


@kernel
def encode_records_v2(
    offsets: I64,
    times: I64,
    key_ends: I32,
    key_nulls: Bools,
    keys: U8,
    value_ends: I32,
    value_nulls: Bools,
    values: U8,
    header_starts: I32,
    header_stops: I32,
    name_ends: I32,
    names: U8,
    content_ends: I32,
    content_nulls: Bools,
    contents: U8,
    sizes: I64,
    firsts: I64,
    base_offsets: I64,
    base_times: I64,
    starts: I64,
    out: OutU8,
) -> Any:
    """Write the records of batch i, rows firsts[i] to firsts[i + 1], from starts[i] on. -> (rows, position, status)

    `sizes` is what the measure found; `out` needs SLACK bytes more than the records for every copy to be a wide one.
    """
    position = np.int64(0)
    for batch in range(starts.size):
        position = np.int64(starts[batch])
        base, base_time = np.int64(base_offsets[batch]), np.int64(base_times[batch])
        for row in range(firsts[batch], firsts[batch + 1]):
            position = write_varint(out, position, np.int64(sizes[row]))
            write_i8(out, position, 0)
            position = write_varlong(out, position + 1, np.int64(times[row]) - base_time)
            position = write_varint(out, position, np.int64(offsets[row]) - base)
            size = span_size(key_ends, key_nulls, row)
            position = put_sized(out, position, keys, np.int64(key_ends[row]), size)
            size = span_size(value_ends, value_nulls, row)
            position = put_sized(out, position, values, np.int64(value_ends[row]), size)
            first, stop = np.int64(header_starts[row]), np.int64(header_stops[row])
            position = write_varint(out, position, stop - first)
            for header in range(first, stop):
                size = np.int64(name_ends[header + 1]) - np.int64(name_ends[header])
                position = put_sized(out, position, names, np.int64(name_ends[header]), size)
                size = span_size(content_ends, content_nulls, header)
                position = put_sized(out, position, contents, np.int64(content_ends[header]), size)
    return firsts[starts.size], position, OK


@kernel
def seal_batches(out: OutU8, starts: I64, stops: I64, heads: I64x2) -> Any:
    """Write the header of every batch `out[starts[i]:stops[i]]`, whose records are in place. -> (count, position, status)

    `heads` has a row for each of `kernels.heads.NAMES`; length and checksum are computed.
    """
    for index in range(starts.size):
        start, stop = np.int64(starts[index]), np.int64(stops[index])
        if stop - start < HEADER or stop - start - OVERHEAD > MOST:
            return index, start, BAD_LENGTH
        base = np.int64(heads[BASE_OFFSET, index])
        write_i64(out, start, base)
        write_i32(out, start + _LENGTH, stop - start - OVERHEAD)
        write_i32(out, start + _EPOCH, np.int64(heads[LEADER_EPOCH, index]))
        write_i8(out, start + _MAGIC, MAGIC_V2)
        write_i16(out, start + _ATTRIBUTES, np.int64(heads[ATTRIBUTES, index]))
        write_i32(out, start + _DELTA, np.int64(heads[LAST_OFFSET, index]) - base)
        write_i64(out, start + _BASE_TIME, np.int64(heads[BASE_TIMESTAMP, index]))
        write_i64(out, start + _MAX_TIME, np.int64(heads[MAX_TIMESTAMP, index]))
        write_i64(out, start + _PRODUCER, np.int64(heads[PRODUCER_ID, index]))
        write_i16(out, start + _PRODUCER_EPOCH, np.int64(heads[PRODUCER_EPOCH, index]))
        write_i32(out, start + _SEQUENCE, np.int64(heads[BASE_SEQUENCE, index]))
        write_i32(out, start + _COUNT, np.int64(heads[RECORD_COUNT, index]))
        write_i32(out, start + _CRC, sum_crc32c(out, start + _COVERED, stop))
    return starts.size, np.int64(out.size), OK


@inline
def put_field(out: Any, position: Any, data: Any, start: Any, size: Any) -> Any:
    """Write a length of four bytes and what it counts; -1 is a null. -> next position"""
    write_i32(out, position, size)
    if size > 0:
        copy(out, position + SIZE_FIELD, data, start, size)
        return position + SIZE_FIELD + size
    return position + SIZE_FIELD


@kernel
def encode_entries(
    magic: Int,
    attributes: I64,
    offsets: I64,
    times: I64,
    key_ends: I32,
    key_nulls: Bools,
    keys: U8,
    value_ends: I32,
    value_nulls: Bools,
    values: U8,
    out: OutU8,
    stops: OutI64,
) -> Any:
    """Write an entry of magic 0 or 1 for every row, end to end; `stops` takes their ends. -> (rows, position, status)

    FULL: no room for the next row; BAD_LENGTH: it is longer than an entry can be.
    """
    position = np.int64(0)
    fixed = _KEY_V0 if magic == 0 else _KEY_V1
    for row in range(offsets.size):
        key_size, value_size = span_size(key_ends, key_nulls, row), span_size(value_ends, value_nulls, row)
        size = fixed + 2 * SIZE_FIELD + max(key_size, np.int64(0)) + max(value_size, np.int64(0))
        if size - OVERHEAD > MOST:
            return row, position, BAD_LENGTH
        if out.size - position < size:
            return row, position, FULL
        write_i64(out, position, np.int64(offsets[row]))
        write_i32(out, position + _OLD_LENGTH, size - OVERHEAD)
        write_i8(out, position + _OLD_MAGIC, magic)
        write_i8(out, position + _OLD_ATTRIBUTES, np.int64(attributes[row]))
        if magic == 1:
            write_i64(out, position + _OLD_TIME, np.int64(times[row]))
        after = put_field(out, position + fixed, keys, np.int64(key_ends[row]), key_size)
        put_field(out, after, values, np.int64(value_ends[row]), value_size)
        write_i32(out, position + _OLD_CRC, sum_crc32(out, position + _OLD_COVERED, position + size))
        position += size
        stops[row] = position
    return offsets.size, position, OK


# ----------------------------------------------------------------------------------------------------------------------
# The records of batches of magic 2 that are to stay, written again with their times against another base.


FIRST_KEPT = -(1 << 63)
"""A new base that is not given: the time of the first record that stays."""
GROWTH = 14
"""What a record may gain: four bytes of its length, nine of its time, and its attributes."""


@kernel
def filter_records_v2(
    data: U8,
    starts: I64,
    stops: I64,
    firsts: I64,
    keep: Bools,
    base_times: I64,
    append_times: I64,
    new_bases: OutI64,
    max_times: OutI64,
    out: OutU8,
    out_starts: OutI64,
    out_stops: OutI64,
) -> Any:
    """Write the kept records of `data[starts[i]:stops[i]]`, rows firsts[i] to firsts[i + 1] of `keep`. -> (batches, position, status)

    `new_bases` gives the base of their times, and takes it where it says FIRST_KEPT; `max_times` takes the latest time that stays.
    Of a failure the position is where the record begins.
    """
    filled = np.int64(0)
    for batch in range(starts.size):
        position, stop = np.int64(starts[batch]), np.int64(stops[batch])
        base, new_base = np.int64(base_times[batch]), np.int64(new_bases[batch])
        append_time, latest = np.int64(append_times[batch]), np.int64(FIRST_KEPT)
        out_starts[batch] = filled
        for row in range(firsts[batch], firsts[batch + 1]):
            start = position
            size, position = read_varint(data, position, stop)
            if position < 0:
                return batch, start, BAD_VARINT
            if size < 1 or stop - position < size:
                return batch, start, BAD_LENGTH
            end = position + size
            if not keep[row]:
                position = end
                continue
            # The first byte is the record's attributes, which nobody uses and Kafka writes as 0.
            delta, position = read_varlong(data, position + 1, end)
            if position < 0:
                return batch, start, BAD_VARINT
            time: Any = append_time
            if append_time == NO_APPEND_TIME:
                time = wrap_i64(base + delta)
            if new_base == FIRST_KEPT:
                new_base = time
            latest = max(latest, time)
            rest = end - position
            delta = wrap_i64(time - new_base)
            if out.size - filled < rest + GROWTH + 2:
                return batch, start, FULL
            filled = write_varint(out, filled, np.int64(1) + size_varlong(delta) + rest)
            write_i8(out, filled, 0)
            filled = write_varlong(out, filled + 1, delta)
            copy(out, filled, data, position, rest)
            filled += rest
            position = end
        if position != stop:
            return batch, position, TRAILING
        new_bases[batch] = new_base
        max_times[batch] = latest
        out_stops[batch] = filled
    return starts.size, np.int64(data.size), OK


# ----------------------------------------------------------------------------------------------------------------------
# The records of batches of magic 2 put together in larger ones, with offsets and times against new bases.


(FILLED, COUNT, BASE_TIME, MAX_TIME, BATCH_INDEX, POSITION, ROW, SKIP, MOST_MERGED, FIXED_TIME, SHIFT) = range(11)
"""What the kernel keeps from call to call: bytes and records in `out`, their times, the place in the input (batch, byte in `data` or 0 for
its start, record), records still to skip; and what it is given: the most bytes in `out`, a time for all records, a shift of times."""
STATE = 11


@kernel
def merge_records_v2(
    data: U8, starts: I64, stops: I64, counts: I64, base_times: I64, append_times: I64, out: OutU8, state: OutI64
) -> Any:
    """Append the records of `data[starts[i]:stops[i]]` to `out`, as far as it has room. -> (batches that are done, position, status)

    FULL: `out` is to be emptied before the next record; a record that is too large for an empty `out` is FULL with a count of 0.
    Otherwise a status says what is wrong with the record at the position.
    """
    filled, count = np.int64(state[FILLED]), np.int64(state[COUNT])
    base, top = np.int64(state[BASE_TIME]), np.int64(state[MAX_TIME])
    most, fixed, shift, skip = (
        state[MOST_MERGED],
        np.int64(state[FIXED_TIME]),
        np.int64(state[SHIFT]),
        np.int64(state[SKIP]),
    )
    batch, position, row = np.int64(state[BATCH_INDEX]), np.int64(state[POSITION]), np.int64(state[ROW])
    status = OK
    while batch < starts.size:
        stop = np.int64(stops[batch])
        if row == 0:
            position = np.int64(starts[batch])
        base_time, append_time = np.int64(base_times[batch]), np.int64(append_times[batch])
        while row < counts[batch]:
            size, inner = read_varint(data, position, stop)
            if inner < 0:
                status = BAD_VARINT
                break
            if size < 1 or stop - inner < size:
                status = BAD_LENGTH
                break
            end = inner + size
            if skip > 0:
                skip -= 1
                row += 1
                position = end
                continue
            # The first byte is the record's attributes, which nobody uses and Kafka writes as 0.
            delta, inner = read_varlong(data, inner + 1, end)
            if inner < 0:
                status = BAD_VARINT
                break
            _, inner = read_varint(data, inner, end)
            if inner < 0:
                status = BAD_VARINT
                break
            time: Any = append_time
            if fixed != NO_APPEND_TIME:
                time = fixed
            elif append_time == NO_APPEND_TIME:
                time = wrap_i64(base_time + delta)
            if shift != 0 and time != NONE:
                time = wrap_i64(time + shift)
            if count == 0:
                base, top = time, time
            rest = end - inner
            delta = wrap_i64(time - base)
            length = np.int64(1) + size_varlong(delta) + size_varint(count) + rest
            if most - filled < length + size_varint(length):
                status = FULL
                break
            filled = write_varint(out, filled, length)
            write_i8(out, filled, 0)
            filled = write_varlong(out, filled + 1, delta)
            filled = write_varint(out, filled, count)
            copy(out, filled, data, inner, rest)
            filled += rest
            top = max(top, time)
            count += 1
            row += 1
            position = end
        if status != OK:
            break
        if position != stop:
            status = TRAILING
            break
        batch += 1
        row = np.int64(0)
    state[FILLED], state[COUNT], state[BASE_TIME], state[MAX_TIME] = filled, count, base, top
    state[BATCH_INDEX], state[POSITION], state[ROW], state[SKIP] = batch, position, row, skip
    return batch, position, status
