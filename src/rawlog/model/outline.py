"""The nouns of an outline: what one copy of a log has, in which bytes of which file, and what it does not have. Intervals are of either."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from rawlog.model.format import File

if TYPE_CHECKING:
    from rawlog.model.report import Entry

# ----------------------------------------------------------------------------------------------------------------------
# Intervals: half-open ranges of numbers, in order and apart from one another, with the arithmetic that everybody needs.

Interval = tuple[int, int]


class Intervals(tuple[Interval, ...]):
    """Ranges `(start, stop)`, each without its `stop`, sorted; those that overlap or touch are one."""

    __slots__ = ()

    def __new__(cls, ranges: Iterable[Sequence[int]] = ()) -> Self:
        joined: list[Interval] = []
        for start, stop in sorted((start, stop) for start, stop in ranges if start < stop):
            if joined and start <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(joined[-1][1], stop))
            else:
                joined.append((start, stop))
        return super().__new__(cls, joined)

    @classmethod
    def closed(cls, ranges: Iterable[Sequence[int]]) -> Intervals:
        """The same of ranges that are given by their first and last number."""
        return cls((first, last + 1) for first, last in ranges)

    @property
    def total(self) -> int:
        """How many numbers are in them."""
        return sum(stop - start for start, stop in self)

    def union(self, ranges: Iterable[Sequence[int]]) -> Intervals:
        """What either has."""
        return Intervals((*self, *ranges))

    def intersection(self, ranges: Iterable[Sequence[int]]) -> Intervals:
        """What both have."""
        others = _intervals(ranges)
        return Intervals(
            (max(start, first), min(stop, end)) for start, stop in self for first, end in others.around(start, stop)
        )

    def subtract(self, ranges: Iterable[Sequence[int]]) -> Intervals:
        """What is left of them without others."""
        taken = _intervals(ranges)
        left: list[Interval] = []
        for start, stop in self:
            for first, end in taken.around(start, stop):
                left.append((start, first))
                start = end
            left.append((start, stop))
        return Intervals(left)

    def around(self, start: int, stop: int) -> tuple[Interval, ...]:
        """Those of them that have a number of a range."""
        if start >= stop:
            return ()
        return self[bisect_right(self, start, key=itemgetter(1)) : bisect_right(self, stop - 1, key=itemgetter(0))]


def _intervals(ranges: Iterable[Sequence[int]]) -> Intervals:
    return ranges if isinstance(ranges, Intervals) else Intervals(ranges)


# Millions of ranges, as a compacted log has them: arrays with a row for each, its first and its last offset.


Ranges = NDArray[np.int64]


def clipped(rows: Ranges, start: int, stop: int) -> Ranges:
    """Ranges, cut at two offsets."""
    inside = np.stack([np.maximum(rows[:, 0], start), np.minimum(rows[:, 1], stop - 1)], axis=1)
    return inside[inside[:, 0] <= inside[:, 1]]


def between(rows: Ranges, start: int, stop: int) -> Ranges:
    """What is between ranges that are in order of their first offsets, from `start` to `stop`."""
    reached = np.maximum.accumulate(np.concatenate(([start - 1], rows[:, 1])))
    begins = np.concatenate((rows[:, 0], [stop]))
    left_out = np.stack([reached + 1, begins - 1], axis=1)
    return left_out[left_out[:, 0] <= left_out[:, 1]]


def intersected(rows: Ranges, ranges: Intervals) -> tuple[Ranges, Ranges]:
    """What of ranges is in others, and what is not: both in order if the ranges are."""
    stops, starts = (np.array([edges[end] for edges in ranges], np.int64) for end in (1, 0))
    at = np.searchsorted(stops, rows[:, 0], side="right")
    touches = at < len(ranges)
    touches[touches] = starts[at[touches]] <= rows[touches, 1]
    parts = Intervals.closed(rows[touches].tolist())
    inside, outside = (
        np.array([(start, stop - 1) for start, stop in part], np.int64).reshape(-1, 2)
        for part in (parts.intersection(ranges), parts.subtract(ranges))
    )
    rest = np.concatenate((rows[~touches], outside))
    return inside, rest[np.argsort(rest[:, 0], kind="stable")]


def total(rows: Ranges) -> int:
    """How many offsets are in ranges that do not overlap."""
    return int((rows[:, 1] - rows[:, 0] + 1).sum())


@dataclass(frozen=True, slots=True)
class Run:
    """Sound frames of one lineage that follow one another in a file, with no other bytes between. Gaps in the addresses do not end it.

    `start` and `stop` are bytes, `first` and `end` addresses, all half-open; `lineage` is the leader epoch; `since` and `until` are the
    times (ms) of the first frame and the latest one, or -1. `stored` is the address that a single frame has in the file, if it is wrong;
    `stored_lineage` the wrong lineage of all of them.
    """

    file: File
    start: int
    stop: int
    first: int
    end: int
    lineage: int
    count: int
    since: int
    until: int
    stored: int | None = None
    stored_lineage: int | None = None

    @property
    def is_corrected(self) -> bool:
        """Whether a field of its frames is wrong in the file."""
        return self.stored is not None or self.stored_lineage is not None

    def follows(self, before: Run) -> bool:
        """Whether it goes on where another one ends."""
        is_same = before.file.path == self.file.path and before.lineage == self.lineage
        is_same = is_same and before.stored_lineage == self.stored_lineage
        return (
            is_same and before.stop == self.start and before.stored is self.stored is None and before.end <= self.first
        )

    def after(self, before: Run) -> Run:
        """Both as one."""
        since = before.since if before.since >= 0 else self.since
        return replace(
            before,
            stop=self.stop,
            end=self.end,
            count=before.count + self.count,
            since=since,
            until=max(before.until, self.until),
        )


def extend(runs: list[Run], following: Iterable[Run]) -> None:
    """Add runs that come after those of a list; one that goes on where the last one ends becomes part of it."""
    for run in following:
        if runs and run.follows(runs[-1]):
            runs[-1] = run.after(runs[-1])
        else:
            runs.append(run)


@dataclass(frozen=True, slots=True)
class SetAside:
    """Sound frames that are not of the log: a copy of others, or of another log. `first` and `end` are the addresses that they say."""

    file: File
    start: int
    stop: int
    first: int
    end: int
    reason: str


# What the one diagnosis of a store keeps of it, for verbs that read everything (convert, ingest, diff).


#: Bytes to set in a file before its frames are decoded: the position, and the bytes.
Patch = tuple[int, bytes]


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of a file: sound frames that follow one another in the file and in the log."""

    path: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Reading:
    """The frames of a store that `repair` would keep, in the order of its log, and what it would report of the others. Picklable."""

    #: Everything outside of them is no row. None: the rows are those that are stored.
    pieces: tuple[Piece, ...] | None = None
    #: Fields that are corrected, by path, in the order of their positions; they change no frame's size.
    patches: Mapping[str, tuple[Patch, ...]] = field(default_factory=dict)
    entries: tuple[Entry, ...] = ()
    notes: tuple[str, ...] = ()
