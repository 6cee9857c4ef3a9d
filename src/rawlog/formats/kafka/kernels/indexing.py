"""Which batches of a segment get an index entry, and where a segment is full: LogSegment.recover and LogSegment.shouldRoll."""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.core.status import FULL, OK
from rawlog.kernels import kernel
from rawlog.kernels.types import I64, Int, OutI64, OutI64x2

MOST = (1 << 31) - 1
"""The largest offset, less the segment's base, that an index can name."""

STATE = 8
"""What is carried from window to window of one segment, by place."""
POSITION, INDEXED, MAX_TIME, MAX_TIME_OFFSET, LAST_TIME, ENTRIES, TIME_ENTRIES, FIRST_TIME = range(STATE)

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
