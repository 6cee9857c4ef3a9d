"""Intervals: half-open ranges of numbers, in order and apart from one another, with the arithmetic that everybody needs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Self

import numpy as np
from numpy.typing import NDArray

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
