"""The numbers in front of every batch or entry, of any magic, taken for a whole window at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.core.status import BAD_CRC, BAD_LENGTH, BAD_MAGIC, OK
from rawlog.formats.kafka.layouts import BATCH, CODEC_MASK, ENTRY_V0, ENTRY_V1, MAGIC_V2, NONE, OUTLINE
from rawlog.kernels import inline, kernel
from rawlog.kernels.crc import sum_crc32, sum_crc32c
from rawlog.kernels.ints import read_i8, read_i16, read_i32, read_i64, read_u32, wrap_i64
from rawlog.kernels.types import I64, U8, Bool, OutI64x2

NAMES = (
    "base_offset",
    "last_offset",
    "leader_epoch",
    "magic",
    "crc",
    "attributes",
    "base_timestamp",
    "max_timestamp",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "record_count",
    "computed_crc",
    "state",
)
(
    BASE_OFFSET,
    LAST_OFFSET,
    LEADER_EPOCH,
    MAGIC,
    CRC,
    ATTRIBUTES,
    BASE_TIMESTAMP,
    MAX_TIMESTAMP,
    PRODUCER_ID,
    PRODUCER_EPOCH,
    BASE_SEQUENCE,
    RECORD_COUNT,
    COMPUTED_CRC,
    STATE,
) = range(len(NAMES))
WRAPPER = -1
"""The record count of a compressed entry of magic 0 or 1: only its content tells."""

_MAGIC = OUTLINE.at("magic")
_SIZE_V2, _CRC_V2, _COVERED_V2 = BATCH.size, BATCH.at("crc"), BATCH.after("crc")
_EPOCH, _ATTRIBUTES = BATCH.at("leader_epoch"), BATCH.at("attributes")
_DELTA, _BASE_TIME, _MAX_TIME = BATCH.at("last_offset_delta"), BATCH.at("base_timestamp"), BATCH.at("max_timestamp")
_PRODUCER, _PRODUCER_EPOCH = BATCH.at("producer_id"), BATCH.at("producer_epoch")
_SEQUENCE, _COUNT = BATCH.at("base_sequence"), BATCH.at("record_count")
_CRC_LEGACY, _COVERED_LEGACY, _ATTRIBUTES_LEGACY = ENTRY_V0.at("crc"), ENTRY_V0.after("crc"), ENTRY_V0.at("attributes")
_TIME_V1 = ENTRY_V1.at("timestamp")
SMALLEST_V0, SMALLEST_V1 = ENTRY_V0.size + 4, ENTRY_V1.size + 4


@inline
def take_v2(data: Any, start: Any, stop: Any, with_crc: Any, out: Any, index: Any) -> Any:
    """The fields of a batch of magic 2; what is wrong with it, or OK."""
    if stop - start < _SIZE_V2:
        return BAD_LENGTH
    out[LAST_OFFSET, index] = wrap_i64(read_i64(data, start) + read_i32(data, start + _DELTA))
    out[LEADER_EPOCH, index] = read_i32(data, start + _EPOCH)
    out[CRC, index] = read_u32(data, start + _CRC_V2)
    out[ATTRIBUTES, index] = read_i16(data, start + _ATTRIBUTES)
    out[BASE_TIMESTAMP, index] = read_i64(data, start + _BASE_TIME)
    out[MAX_TIMESTAMP, index] = read_i64(data, start + _MAX_TIME)
    out[PRODUCER_ID, index] = read_i64(data, start + _PRODUCER)
    out[PRODUCER_EPOCH, index] = read_i16(data, start + _PRODUCER_EPOCH)
    out[BASE_SEQUENCE, index] = read_i32(data, start + _SEQUENCE)
    out[RECORD_COUNT, index] = read_i32(data, start + _COUNT)
    out[COMPUTED_CRC, index] = sum_crc32c(data, start + _COVERED_V2, stop) if with_crc else out[CRC, index]
    return OK if out[COMPUTED_CRC, index] == out[CRC, index] else BAD_CRC


@inline
def take_legacy(data: Any, start: Any, stop: Any, with_crc: Any, out: Any, index: Any) -> Any:
    """The fields of an entry of magic 0 or 1; what is wrong with it, or OK."""
    magic = out[MAGIC, index]
    if stop - start < (SMALLEST_V0 if magic == 0 else SMALLEST_V1):
        return BAD_LENGTH
    attributes = read_i8(data, start + _ATTRIBUTES_LEGACY)
    time = np.int64(NONE) if magic == 0 else read_i64(data, start + _TIME_V1)
    out[LAST_OFFSET, index] = out[BASE_OFFSET, index]
    out[LEADER_EPOCH, index] = NONE
    out[CRC, index] = read_u32(data, start + _CRC_LEGACY)
    out[ATTRIBUTES, index] = attributes
    out[BASE_TIMESTAMP, index] = time
    out[MAX_TIMESTAMP, index] = time
    out[PRODUCER_ID, index] = NONE
    out[PRODUCER_EPOCH, index] = NONE
    out[BASE_SEQUENCE, index] = NONE
    out[RECORD_COUNT, index] = 1 if attributes & CODEC_MASK == 0 else WRAPPER
    out[COMPUTED_CRC, index] = sum_crc32(data, start + _COVERED_LEGACY, stop) if with_crc else out[CRC, index]
    return OK if out[COMPUTED_CRC, index] == out[CRC, index] else BAD_CRC


@kernel
def take_heads(data: U8, starts: I64, stops: I64, with_crc: Bool, out: OutI64x2) -> Any:
    """Fill a column of `out` for every frame; its row STATE says whether the frame is one: OK, BAD_MAGIC, BAD_LENGTH, BAD_CRC.

    Without `with_crc` checksums count as right. The spans must lie inside the data.
    -> (frames that are not sound, attributes of any frame, whether any is of magic 2, whether any is not)
    """
    unsound, attributes, newer, older = np.int64(0), np.int64(0), False, False
    for index in range(starts.size):
        start, stop = np.int64(starts[index]), np.int64(stops[index])
        for row in range(out.shape[0]):
            out[row, index] = NONE
        out[BASE_OFFSET, index] = read_i64(data, start)
        magic = read_i8(data, start + _MAGIC)
        out[MAGIC, index] = magic
        if magic == MAGIC_V2:
            newer = True
            out[STATE, index] = take_v2(data, start, stop, with_crc, out, index)
        else:
            older = True
            if magic == 0 or magic == 1:
                out[STATE, index] = take_legacy(data, start, stop, with_crc, out, index)
            else:
                out[STATE, index] = BAD_MAGIC
        attributes |= out[ATTRIBUTES, index]
        if out[STATE, index] != OK:
            unsound += 1
    return unsound, attributes, newer, older
