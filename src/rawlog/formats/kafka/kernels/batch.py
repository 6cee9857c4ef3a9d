"""Walking a log from batch to batch, and taking the numbers of many batch headers at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.formats.kafka.layouts import BATCH, OUTLINE, SMALLEST_LENGTH
from rawlog.kernels import kernel
from rawlog.kernels.crc import sum_crc32c
from rawlog.kernels.ints import read_i8, read_i16, read_i32, read_i64, read_u32
from rawlog.status import BAD_LENGTH, BAD_MAGIC, FULL, OK, TRUNCATED

LENGTH, OVERHEAD, MAGIC, OUTLINE_SIZE = OUTLINE.at("length"), OUTLINE.after("length"), OUTLINE.at("magic"), OUTLINE.size
BATCH_SIZE, BASE_OFFSET, CRC, CRC_START = BATCH.size, BATCH.at("base_offset"), BATCH.at("crc"), BATCH.after("crc")
ATTRIBUTES, RECORD_COUNT = BATCH.at("attributes"), BATCH.at("record_count")
BASE_TIMESTAMP, MAX_TIMESTAMP = BATCH.at("base_timestamp"), BATCH.at("max_timestamp")

FIELDS = 6
"""Rows of `take_headers_v2`."""
BASE_OFFSETS, BASE_TIMES, MAX_TIMES, COUNTS, FLAGS, CRC_OK = range(FIELDS)


@kernel
def scan_batches(data: Any, start: Any, starts: Any, stops: Any) -> Any:
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


@kernel
def take_headers_v2(data: Any, starts: Any, stops: Any, with_crc: Any, out: Any) -> Any:
    """Numbers of every batch of magic 2, a row a field, a column a batch. -> (count, position, status)

    With `with_crc`, the row CRC_OK tells whether the checksum is right, and is 1 without. The spans must lie
    inside the data.
    """
    for index in range(starts.size):
        start, stop = np.int64(starts[index]), np.int64(stops[index])
        if stop - start < OUTLINE_SIZE:
            return index, start, BAD_LENGTH
        if read_i8(data, start + MAGIC) != 2:
            return index, start, BAD_MAGIC
        if stop - start < BATCH_SIZE:
            return index, start, BAD_LENGTH
        out[BASE_OFFSETS, index] = read_i64(data, start + BASE_OFFSET)
        out[BASE_TIMES, index] = read_i64(data, start + BASE_TIMESTAMP)
        out[MAX_TIMES, index] = read_i64(data, start + MAX_TIMESTAMP)
        out[COUNTS, index] = read_i32(data, start + RECORD_COUNT)
        out[FLAGS, index] = read_i16(data, start + ATTRIBUTES)
        out[CRC_OK, index] = 1
        if with_crc and sum_crc32c(data, start + CRC_START, stop) != read_u32(data, start + CRC):
            out[CRC_OK, index] = 0
    return starts.size, np.int64(data.size), OK
