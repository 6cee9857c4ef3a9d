"""Finding batches among bytes that may be anything."""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.formats.kafka.kernels.heads import SMALLEST_V0, SMALLEST_V1
from rawlog.formats.kafka.layouts import BATCH, ENTRY_V0, MAGIC_V2, SMALLEST_BATCH
from rawlog.kernels import inline, kernel
from rawlog.kernels.crc import sum_crc32, sum_crc32c
from rawlog.kernels.ints import read_i8, read_i32, read_i64, read_u32
from rawlog.kernels.types import U8, Int

LENGTH, OVERHEAD, MAGIC, SIZE = BATCH.at("length"), BATCH.after("length"), BATCH.at("magic"), BATCH.size
BASE_OFFSET, CRC, CRC_START = BATCH.at("base_offset"), BATCH.at("crc"), BATCH.after("crc")
CRC_LEGACY, COVERED_LEGACY = ENTRY_V0.at("crc"), ENTRY_V0.after("crc")
RECORD_COUNT, LAST_OFFSET_DELTA = BATCH.at("record_count"), BATCH.at("last_offset_delta")


@inline
def is_entry(data: Any, position: Any, magic: Any) -> Any:
    """Whether an entry of magic 0 or 1 with a right checksum is at `position`."""
    size = read_i32(data, position + LENGTH)
    if size < (SMALLEST_V0 if magic == 0 else SMALLEST_V1) - OVERHEAD or data.size - position - OVERHEAD < size:
        return False
    # Zeros, or bytes that say nothing, are no entry: the checksum of what follows must have been written on purpose.
    if read_i64(data, position) < 0 or read_u32(data, position + CRC_LEGACY) == 0:
        return False
    return sum_crc32(data, position + COVERED_LEGACY, position + OVERHEAD + size) == read_u32(
        data, position + CRC_LEGACY
    )


@kernel
def find_batch(data: U8, start: Int) -> Any:
    """The first position from `start` on where a whole batch or entry with a right checksum is, or -1."""
    for position in range(np.int64(start), np.int64(data.size) - SMALLEST_V0 + 1):
        magic = read_i8(data, position + MAGIC)
        if magic == 0 or magic == 1:
            if is_entry(data, position, magic):
                return np.int64(position)
            continue
        if magic != MAGIC_V2 or data.size - position < SIZE:
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
