"""Which names the log segments of a store had, and which segment the entries of each index file are of.

Names decide about the order of all messages. A segment may have got another name, or its file may have been swapped with another one: the
index files, or else the times of the messages, say what it was.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rawlog.formats.ambry.index import IndexFile
from rawlog.formats.ambry.layouts import NONE
from rawlog.formats.ambry.paths import Segment
from rawlog.formats.ambry.store.evidence import Evidence
from rawlog.formats.ambry.store.state import Catalog, Damage, fold, is_refused, updates_before_put
from rawlog.formats.ambry.store.store import BlobStore


@dataclass
class Naming:
    """The names of log segments, settled by `settle`; `renamed` are the new ones, by number, each with the reason."""

    store: BlobStore
    catalog: Catalog
    evidence: Evidence
    #: The row of the message of each entry, -1 without one; and which entries say something of this store.
    rows: NDArray[np.int64]
    trusted: NDArray[np.bool_]
    #: The damaged bytes of segments, by number; and the numbers of those whose header is damaged.
    damages: Sequence[tuple[int, Damage]]
    headers: Collection[int]
    renamed: list[tuple[int, Segment, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.names = list(self.store.segments)

    @cached_property
    def damaged(self) -> set[int]:
        return {number for number, _ in self.damages} | set(self.headers)

    def settle(self) -> None:
        """Give segments the names that their index files, or the times of their messages, say they had."""
        if all(segment.name for segment in self.names):
            names = self._by_index()
            if names != self.names:
                now, then = self._disorder(self.names), self._disorder(names)
                is_lost = any(name not in self.names for name in names)
                if then < now or (is_lost and then <= now):
                    self._rename(names, "its index files say so")
            by_time, now = self._by_time(), self._disorder(self.names)
            if by_time != self.names and now[0] and self._disorder(by_time) < now:
                self._find_logs()  # index files belong to the segments that had their names
                self._rename(by_time, "its messages come there by their times")
                return
        self._find_logs()

    def _by_index(self) -> list[Segment]:
        """The names that index files give: each segment's is that of the files that have most of its messages."""
        own, evidence = self.store.segments, self.evidence
        names = list(own)
        if not evidence.segments:
            return names
        good = (self.rows >= 0) & self.trusted
        score = np.zeros((len(own), len(evidence.segments)), np.int64)
        np.add.at(score, (self.catalog.segment[self.rows[good]], evidence.segment[good]), 1)
        total = np.bincount(evidence.segment[self.trusted], minlength=len(evidence.segments))
        for number, segment in enumerate(own):
            best = int(np.argmax(score[number]))
            if score[number].max() * 2 < total[best] and number not in self.damaged:
                continue  # most of these index files are not of this segment, which is sound
            mine = score[number][evidence.segments.index(segment)] if segment in evidence.segments else 0
            if score[number].max() > mine and score[:, best].argmax() == number:
                names[number] = evidence.segments[best]
        return _distinct(names, own)

    def _find_logs(self) -> None:
        """The log segment, by number, that the entries of each index file are of; -1 for one that is lost.

        It is the one that has the most of their messages. A file without any goes by its name; if that segment is sound, the file is of a
        damaged one that has another name.
        """
        evidence, sizes = self.evidence, [file.size for file in self.store.logs]
        named = {name: number for number, name in enumerate(self.names)}
        good = np.flatnonzero((self.rows >= 0) & (self.trusted | evidence.is_weak))
        score = np.zeros((len(evidence.files), len(sizes)), np.int64)
        np.add.at(score, (evidence.file[good], self.catalog.segment[self.rows[good]]), 1)
        found = np.full(len(evidence.files), NONE, np.int64)
        for number, index in enumerate(evidence.files):
            mine = score[number]
            own = named.get(index.segment, NONE)
            found[number] = own if not mine.any() or (own >= 0 and mine[own] == mine.max()) else int(np.argmax(mine))
            if not mine.any() and own >= 0 and own not in self.damaged and index.end <= sizes[own]:
                found[number] = max(self.damaged, key=lambda log: self._overlap(log, index), default=own)
        #: The number of the segment of each entry, and of each index file.
        self.where = found[evidence.file] if len(evidence.files) else np.empty(0, np.int64)
        self.logs_of_files = found

    def _overlap(self, number: int, index: IndexFile) -> int:
        """How many damaged bytes of a segment are where an index file says that its messages are."""
        return sum(
            max(0, min(one.stop, index.end) - max(one.start, index.start)) for log, one in self.damages if log == number
        )

    def _rename(self, names: list[Segment], why: str) -> None:
        for number, (old, new) in enumerate(zip(self.names, names, strict=True)):
            if old != new:
                self.renamed.append((number, new, why))
        self.names = names

    def _by_time(self) -> list[Segment]:
        """The same names, given in the order of the segments' times."""
        times = [self._time(number) for number in range(len(self.names))]
        order = sorted(range(len(self.names)), key=lambda number: (times[number], self.names[number].order))
        result = list(self.names)
        for number, name in zip(order, sorted(self.names, key=lambda one: one.order), strict=True):
            result[number] = name
        return result

    def _time(self, number: int) -> float:
        times = self.catalog.time[self.catalog.rows_in(number)]
        times = times[times != NONE]
        return float(np.median(times)) if times.size else float("inf")

    def _disorder(self, names: Sequence[Segment]) -> tuple[int, int]:
        """How many messages cannot follow those before them, and how many segments are before older ones, if they have these names."""
        order = sorted(range(len(names)), key=lambda number: names[number].order)
        rank = np.empty(len(names), np.int64)
        rank[order] = np.arange(len(names))
        where = rank[self.catalog.segment]
        moved = self.catalog.take(np.lexsort((self.catalog.offset, where)))
        wrong = is_refused(moved, fold(moved, drop=True).wrong).sum() + updates_before_put(moved).sum()
        times = [one for one in (self._time(number) for number in order) if one != float("inf")]
        return int(wrong), sum(before > after for before, after in itertools.pairwise(times))


def _distinct(names: list[Segment], own: list[Segment]) -> list[Segment]:
    """Names of which no two are the same: a segment whose name another one gets takes one that is free now."""
    taken = {new for new, old in zip(names, own, strict=True) if new != old}
    free = [old for new, old in zip(names, own, strict=True) if new != old and old not in taken]
    moved = [new == old and new in taken for new, old in zip(names, own, strict=True)]
    if len(set(names)) < len(names) and sum(moved) != len(names) - len(set(names)):
        return own
    if sum(moved) > len(free):
        return own
    return [free.pop(0) if is_moved else new for new, is_moved in zip(names, moved, strict=True)]
