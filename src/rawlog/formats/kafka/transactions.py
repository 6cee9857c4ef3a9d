"""Transactions as the log alone tells them: which ranges were aborted, and up to where everything is decided.

Batches are walked in offset order; a producer's transactional batches since its last marker are one transaction, and the
marker says how it ended. Epochs are not compared, as Kafka does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rawlog.errors import DataError
from rawlog.format import File
from rawlog.formats.kafka.layouts import Attributes, ControlType

if TYPE_CHECKING:
    from rawlog.formats.kafka.heads import Heads
    from rawlog.frames import Frames

NO_OFFSET = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Transactions:
    """The decided and undecided transactions of a partition.

    `ends` are the ends of aborted ranges, sorted, with their producers and first offsets; `last_stable_offset` is the first
    offset of the oldest transaction without a marker. `committed_only` leaves out what a read_committed consumer never sees.
    """

    producers: NDArray[np.int64]
    firsts: NDArray[np.int64]
    ends: NDArray[np.int64]
    last_stable_offset: int = NO_OFFSET
    committed_only: bool = False

    def takes(self, head: Heads) -> NDArray[np.bool_]:
        """Which batches are to be read."""
        if not self.committed_only:
            return np.ones(len(head), np.bool_)
        return (head["base_offset"] < self.last_stable_offset) & ~self.aborted(head)

    def aborted(self, head: Heads) -> NDArray[np.bool_]:
        """Which batches belong to a transaction that was aborted."""
        result = np.zeros(len(head), np.bool_)
        candidates = np.flatnonzero(head.has(Attributes.TRANSACTIONAL) & ~head.has(Attributes.CONTROL))
        if not candidates.size or not self.ends.size:
            return result
        base, producer = head["base_offset"][candidates], head["producer_id"][candidates]
        for one, offset, number in zip(candidates.tolist(), base.tolist(), producer.tolist(), strict=True):
            # Ranges of one producer do not overlap: the first that ends behind the batch decides.
            later = int(np.searchsorted(self.ends, offset, side="right"))
            mine = np.flatnonzero(self.producers[later:] == number)
            result[one] = bool(mine.size) and bool(self.firsts[later + int(mine[0])] <= offset)
        return result


@dataclass(slots=True)
class _Open:
    """The walk so far: open transactions by producer, and aborted ranges."""

    firsts: dict[int, int] = field(default_factory=dict)
    aborted: list[tuple[int, int, int]] = field(default_factory=list)

    def add(self, frames: Frames, head: Heads) -> None:
        """The batches of a window; those whose checksum is wrong say nothing."""
        transactional = np.flatnonzero(head.has(Attributes.TRANSACTIONAL) & head.sound)
        if not transactional.size:
            return
        control = head.has(Attributes.CONTROL)
        base, producer, count = head["base_offset"], head["producer_id"], head["record_count"]
        for index in transactional.tolist():
            number = int(producer[index])
            if not control[index]:
                self.firsts.setdefault(number, int(base[index]))
            elif count[index]:
                first = self.firsts.pop(number, None)
                if first is not None and _marker(frames, index) == ControlType.ABORT:
                    self.aborted.append((number, first, int(base[index])))


def _marker(frames: Frames, index: int) -> int | None:
    """The type of the first control record of a batch."""
    from rawlog.formats.kafka.reader import decode_columns

    one = frames.slice(index, index + 1)
    try:
        decoded = decode_columns(one.data, one.starts, one.stops, {"key"}, limit=1 << 16)
    except DataError:
        return None
    return control_type(decoded.arrays["key"][0].as_py()) if decoded.count else None


def control_type(key: bytes | None) -> int | None:
    """The type that a control record's key names: int16 version, int16 type."""
    if key is None or len(key) < 4:
        return None
    return int.from_bytes(key[2:4], "big", signed=True)


def context(file: File, group: Sequence[File], options: Mapping[str, str]) -> Transactions | None:
    """The partition's transactions, where what is asked for depends on them."""
    committed_only = options.get("isolation") == "read_committed"
    if not committed_only and "aborted" not in options.get("columns", "").split(","):
        return None
    segments = tuple(one for one in group if one.format == file.format and one.place.state == file.place.state)
    found = _walk(segments)
    return Transactions(found.producers, found.firsts, found.ends, found.last_stable_offset, committed_only)


@lru_cache(maxsize=4)
def _walk(segments: tuple[File, ...]) -> Transactions:
    from rawlog.formats.kafka import LOG
    from rawlog.formats.kafka.heads import heads
    from rawlog.walk import walk

    state = _Open()
    for segment in sorted(segments, key=lambda one: one.place.start_offset or 0):
        for frames in walk(segment, LOG, errors="skip"):
            state.add(frames, heads(frames))
    state.aborted.sort(key=lambda one: one[2])
    ranges = np.array(state.aborted, np.int64).reshape(-1, 3)
    stable = min(state.firsts.values(), default=NO_OFFSET)
    return Transactions(ranges[:, 0].copy(), ranges[:, 1].copy(), ranges[:, 2].copy(), stable)
