"""The records of batches of magic 2 put together in larger ones, with offsets and times against new bases."""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.core.status import BAD_LENGTH, BAD_VARINT, FULL, OK, TRAILING
from rawlog.formats.kafka.kernels.records import NO_APPEND_TIME
from rawlog.formats.kafka.layouts import NONE
from rawlog.kernels import kernel
from rawlog.kernels.gather import copy
from rawlog.kernels.ints import wrap_i64, write_i8
from rawlog.kernels.types import I64, U8, OutI64, OutU8
from rawlog.kernels.varint import read_varint, read_varlong, size_varint, size_varlong, write_varint, write_varlong

(FILLED, COUNT, BASE_TIME, MAX_TIME, BATCH_INDEX, POSITION, ROW, SKIP, MOST, FIXED_TIME, SHIFT) = range(11)
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
    most, fixed, shift, skip = state[MOST], np.int64(state[FIXED_TIME]), np.int64(state[SHIFT]), np.int64(state[SKIP])
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
