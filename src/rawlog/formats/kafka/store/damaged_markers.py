"""Transaction markers that can still be read in damaged bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rawlog.core.frames import Bytes
from rawlog.formats.kafka.heads import take
from rawlog.formats.kafka.layouts import BATCH, MAGIC_V2, Attributes, ControlType
from rawlog.io.checksums import crc32c, crc32c_spans

MARKER_SIZE = 78
"""A control batch that ends a transaction: a header and one record of 17 bytes."""
MARKER_LENGTH = (MARKER_SIZE - BATCH.after("length")).to_bytes(4, "big")
MARKER_KEY = BATCH.size + 5
"""Where its record has its key: version and type. After it, a byte of length, and the value: version and coordinator epoch."""
MARKER_MAGIC, MARKER_COUNT = bytes([MAGIC_V2]), (1).to_bytes(4, "big")
MARKER_ATTRIBUTES = int(Attributes.TRANSACTIONAL | Attributes.CONTROL).to_bytes(2, "big")
LARGEST_STRETCH = 64 << 20
"""So many damaged bytes are searched for what is left of a marker."""


@dataclass(frozen=True, slots=True)
class Witness:
    """A marker as damaged bytes have it. `certain`: changing one byte makes its checksum right."""

    producer_id: int
    offset: int
    epoch: int
    kind: int
    coordinator_epoch: int
    timestamp: int
    certain: bool


def witnesses(data: Bytes) -> Iterator[Witness]:
    """The transaction markers that can be read in damaged bytes."""
    if not 0 < data.size <= LARGEST_STRETCH:
        return
    text = data.tobytes()
    at = text.find(MARKER_LENGTH)
    while at >= 0:
        start = at - BATCH.at("length")
        if start >= 0 and len(text) - start >= MARKER_SIZE and _may_be_marker(text, start):
            one = _witness(np.frombuffer(text[start : start + MARKER_SIZE], np.uint8))
            if one is not None:
                yield one
        at = text.find(MARKER_LENGTH, at + 1)


def _may_be_marker(text: bytes, start: int) -> bool:
    """Whether at most one of the fields that all markers have in common is wrong: a cheap test before an expensive one."""
    fields = (("magic", MARKER_MAGIC), ("attributes", MARKER_ATTRIBUTES), ("record_count", MARKER_COUNT))
    return sum(text[start + BATCH.at(name) : start + BATCH.after(name)] == value for name, value in fields) >= 2


def _witness(batch: NDArray[np.uint8]) -> Witness | None:
    certain = _corrected(batch)
    batch = batch if certain is None else certain
    head = take(batch, np.zeros(1, np.int64), np.array([MARKER_SIZE], np.int64), check_crc=False)
    text = batch.tobytes()
    wanted = int(Attributes.TRANSACTIONAL | Attributes.CONTROL)
    if head["magic"][0] != MAGIC_V2 or head["attributes"][0] != wanted or head["record_count"][0] != 1:
        return None
    kind = int.from_bytes(text[MARKER_KEY + 2 : MARKER_KEY + 4], "big", signed=True)
    if kind not in (ControlType.ABORT, ControlType.COMMIT) or head["producer_id"][0] < 0:
        return None
    coordinator = int.from_bytes(text[MARKER_KEY + 7 : MARKER_KEY + 11], "big", signed=True)
    names = ("producer_id", "base_offset", "producer_epoch")
    number, offset, epoch = (int(head[name][0]) for name in names)
    return Witness(number, offset, epoch, kind, coordinator, int(head["max_timestamp"][0]), certain is not None)


def _corrected(batch: NDArray[np.uint8]) -> NDArray[np.uint8] | None:
    """A batch with the one byte changed that makes its checksum right; None if there is no such byte, or more than one."""
    first = BATCH.at("attributes")
    stored = int.from_bytes(batch[BATCH.at("crc") : first].tobytes(), "big")
    computed = crc32c(batch[first:])
    if sum(1 for byte in (stored ^ computed).to_bytes(4, "big") if byte) <= 1:
        return batch  # what is wrong is the checksum, or nothing that it covers
    size = batch.size - first
    tries = np.tile(batch[first:], (size * 255, 1))
    places, changes = np.divmod(np.arange(size * 255), 255)
    tries[np.arange(size * 255), places] ^= (changes + 1).astype(np.uint8)
    starts = np.arange(size * 255, dtype=np.int64) * size
    right = np.flatnonzero(crc32c_spans(tries.reshape(-1), starts, starts + size) == stored)
    if right.size != 1:
        return None
    return np.concatenate((batch[:first], tries[int(right[0])]))


__all__ = ["Witness", "witnesses"]
