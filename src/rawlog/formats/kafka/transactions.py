"""Transactions as the log alone tells them: which ranges were aborted, and up to where everything is decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from rawlog.format import File
from rawlog.formats.kafka.heads import Heads, heads
from rawlog.formats.kafka.layouts import Attributes
from rawlog.formats.kafka.producers import Producers

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


def context(file: File, group: Sequence[File], options: Mapping[str, str]) -> Transactions | None:
    """The partition's transactions, where what is asked for depends on them."""
    committed_only = options.get("isolation") == "read_committed"
    if not committed_only and "aborted" not in options.get("columns", "").split(","):
        return None
    segments = tuple(one for one in group if one.format == file.format and one.place.state == file.place.state)
    found = _walk(segments)
    return Transactions(found.producers, found.firsts, found.ends, found.last_stable_offset, committed_only)


def undecided(segments: tuple[File, ...]) -> dict[int, int]:
    """The first offsets of transactions without a marker, by producer."""
    return dict(_walked(segments)[1])


def _walk(segments: tuple[File, ...]) -> Transactions:
    return _walked(segments)[0]


@lru_cache(maxsize=4)
def _walked(segments: tuple[File, ...]) -> tuple[Transactions, tuple[tuple[int, int], ...]]:
    from rawlog.formats.kafka import LOG
    from rawlog.walk import walk

    state = Producers()
    for segment in sorted(segments, key=lambda one: one.place.start_offset or 0):
        for frames in walk(segment, LOG, errors="skip"):
            for _ in state.add(frames, heads(frames), transactional_only=True):
                pass  # what is odd about a producer is for verification to say
    ranges = sorted(((one.producer_id, one.first_offset, one.last_offset) for one in state.aborted), key=lambda r: r[2])
    table = np.array(ranges, np.int64).reshape(-1, 3)
    undone = state.open_transactions()
    stable = min(undone.values(), default=NO_OFFSET)
    return Transactions(table[:, 0].copy(), table[:, 1].copy(), table[:, 2].copy(), stable), tuple(undone.items())
