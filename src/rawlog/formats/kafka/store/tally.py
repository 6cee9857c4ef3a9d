"""How many offsets of a stretch of log are records of which kind: a fold that can be cut anywhere, as that of the producers.

A stretch cannot know how a transaction ends whose marker comes later, nor how many records one had whose marker it begins with. So it
counts, for every producer, the records before its first marker and after its last one; neighbours put them together.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rawlog.core.frames import Frames
from rawlog.formats.kafka.heads import Heads
from rawlog.formats.kafka.layouts import MAGIC_V2, NONE, Attributes, ControlType
from rawlog.formats.kafka.store.state import marker_fields

ABORT, COMMIT = int(ControlType.ABORT), int(ControlType.COMMIT)
MOST_SPANS = 20


@dataclass(slots=True)
class Ended:
    """The transactional records of one producer: how many come before its first marker, of which type that is, how many are of aborted
    transactions between markers, and how many come after the last one.
    """

    lead: int = 0
    first: int = NONE
    aborted: int = 0
    tail: int = 0

    def join(self, following: Ended) -> None:
        """Take in the stretch that follows."""
        if self.first == NONE:
            self.lead += following.lead
            self.first, self.aborted, self.tail = following.first, following.aborted, following.tail
            return
        self.tail += following.lead
        if following.first != NONE:
            self.aborted += following.aborted + (self.tail if following.first == ABORT else 0)
            self.tail = following.tail


@dataclass(slots=True)
class Tally:
    """The counts of a stretch. Batches that end before `floor` do not count, nor do records before it."""

    floor: int = 0
    control: int = 0
    #: Offsets inside of batches that have no record any more: compaction took them out.
    removed: int = 0
    #: Offsets that only an empty batch keeps, which repair wrote at the end of a log; and the first of them.
    kept_places: int = 0
    places: list[tuple[int, int]] = field(default_factory=list)
    #: The last offset of a batch that only compaction writes so.
    cleaned: int = NONE
    producers: dict[int, Ended] = field(default_factory=dict)

    def add(self, frames: Frames, head: Heads) -> None:
        """Take in a window's sound batches."""
        last = head["last_offset"]
        own = head.sound & (head["magic"] == MAGIC_V2) & (last >= self.floor)
        if not own.any():
            return
        span = last - np.maximum(head["base_offset"], self.floor) + 1
        count = np.clip(head["record_count"], 0, np.maximum(span, 0))
        empty = own & (head["record_count"] == 0) & (head["producer_id"] == NONE) & (head["max_timestamp"] == NONE)
        if empty.any():
            self.kept_places += int(span[empty].sum())
            rows = zip(head["base_offset"][empty].tolist(), last[empty].tolist(), strict=True)
            self.places = [*self.places, *rows][:MOST_SPANS]
        thin = own & ~empty & (count < span)
        marked = thin | (own & head.has(Attributes.DELETE_HORIZON))
        if marked.any():
            self.removed += int((span - count)[thin].sum())
            self.cleaned = max(self.cleaned, int(last[marked].max()))
        control = own & head.has(Attributes.CONTROL)
        self.control += int(count[control].sum())
        if head.any(Attributes.TRANSACTIONAL):
            self._transactions(frames, head, own, control, count)

    def _transactions(
        self,
        frames: Frames,
        head: Heads,
        own: NDArray[np.bool_],
        control: NDArray[np.bool_],
        count: NDArray[np.int64],
    ) -> None:
        """Count the records of every transaction in the window by how it ends."""
        chosen = np.flatnonzero(own & head.has(Attributes.TRANSACTIONAL) & ~(control & (head["record_count"] == 0)))
        if not chosen.size:
            return
        chosen = chosen[np.argsort(head["producer_id"][chosen], kind="stable")]
        kinds = np.full(chosen.size, NONE, np.int64)
        is_marker = control[chosen]
        if is_marker.any():
            kinds[is_marker] = marker_fields(frames, chosen[is_marker])[0]
            ends_one = np.isin(kinds, (ABORT, COMMIT))
            chosen, kinds = chosen[~is_marker | ends_one], kinds[~is_marker | ends_one]
            if not chosen.size:
                return
        number, is_marker = head["producer_id"][chosen], kinds != NONE
        records = np.where(is_marker, 0, count[chosen])
        others = np.concatenate(([True], number[1:] != number[:-1]))
        # A run is the records of one producer up to a marker, that included.
        starts = np.flatnonzero(others | np.concatenate(([False], is_marker[:-1])))
        sums = np.add.reduceat(records, starts)
        ends = kinds[np.concatenate((starts[1:], [chosen.size])) - 1]
        firsts = np.flatnonzero(others[starts])
        for first, stop in zip(firsts.tolist(), [*firsts[1:].tolist(), starts.size], strict=True):
            made = Ended(int(sums[first]), int(ends[first]))
            if made.first != NONE and stop - first > 1:
                is_open = ends[stop - 1] == NONE
                made.tail = int(sums[stop - 1]) if is_open else 0
                made.aborted = int(sums[first + 1 : stop][ends[first + 1 : stop] == ABORT].sum())
            self._join(int(number[starts[first]]), made)

    def _join(self, number: int, ended: Ended) -> None:
        mine = self.producers.get(number)
        if mine is None:
            self.producers[number] = ended
        else:
            mine.join(ended)

    def merge(self, following: Tally) -> None:
        """Take in the stretch that follows this one, which is used up."""
        self.control += following.control
        self.removed += following.removed
        self.kept_places += following.kept_places
        self.places = [*self.places, *following.places][:MOST_SPANS]
        self.cleaned = max(self.cleaned, following.cleaned)
        for number, ended in following.producers.items():
            self._join(number, ended)

    @property
    def aborted(self) -> int:
        """The records of aborted transactions, if nothing comes before this stretch."""
        return sum(one.aborted + (one.lead if one.first == ABORT else 0) for one in self.producers.values())
