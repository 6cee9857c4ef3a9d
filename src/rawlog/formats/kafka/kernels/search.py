"""Finding batches among bytes that may be anything."""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.formats.kafka.layouts import BATCH, MAGIC_V2, SMALLEST_BATCH
from rawlog.kernels import kernel
from rawlog.kernels.crc import sum_crc32c
from rawlog.kernels.ints import read_i8, read_i32, read_i64, read_u32

LENGTH, OVERHEAD, MAGIC, SIZE = BATCH.at("length"), BATCH.after("length"), BATCH.at("magic"), BATCH.size
BASE_OFFSET, CRC, CRC_START = BATCH.at("base_offset"), BATCH.at("crc"), BATCH.after("crc")
RECORD_COUNT, LAST_OFFSET_DELTA = BATCH.at("record_count"), BATCH.at("last_offset_delta")


@kernel
def find_batch(data: Any, start: Any) -> Any:
    """The first position from `start` on where a whole batch of magic 2 with a right checksum stands, or -1."""
    for position in range(np.int64(start), np.int64(data.size) - SIZE + 1):
        if read_i8(data, position + MAGIC) != MAGIC_V2:
            continue
        size = read_i32(data, position + LENGTH)
        if size < SMALLEST_BATCH or data.size - position - OVERHEAD < size:
            continue
        count, delta = read_i32(data, position + RECORD_COUNT), read_i32(data, position + LAST_OFFSET_DELTA)
        if count < 0 or delta < 0 or count > delta + 1 or read_i64(data, position + BASE_OFFSET) < 0:
            continue
        if sum_crc32c(data, position + CRC_START, position + OVERHEAD + size) == read_u32(data, position + CRC):
            return np.int64(position)
    return np.int64(-1)
