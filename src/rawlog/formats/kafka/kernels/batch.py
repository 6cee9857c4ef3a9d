"""Walking a log from batch to batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.core.status import BAD_LENGTH, FULL, OK, TRUNCATED
from rawlog.formats.kafka.layouts import OUTLINE, SMALLEST_LENGTH
from rawlog.kernels import kernel
from rawlog.kernels.ints import read_i32
from rawlog.kernels.types import U8, Int, OutI64

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
