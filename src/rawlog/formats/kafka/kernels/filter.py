"""The records of batches of magic 2 that are to stay, written again with their times against another base."""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.core.status import BAD_LENGTH, BAD_VARINT, FULL, OK, TRAILING
from rawlog.formats.kafka.kernels.records import NO_APPEND_TIME
from rawlog.kernels import kernel
from rawlog.kernels.gather import copy
from rawlog.kernels.ints import wrap_i64, write_i8
from rawlog.kernels.types import I64, U8, Bools, OutI64, OutU8
from rawlog.kernels.varint import read_varint, read_varlong, size_varlong, write_varint, write_varlong

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
