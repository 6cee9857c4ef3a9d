"""Diff: two trees compared, one partition, store or range of a log at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rawlog.compare.pairs import Pair, compare, pairs
from rawlog.core.difference import Difference, Tally
from rawlog.jobs.job import Done, Job, Outcome, Split, Stage
from rawlog.reading.select import Selection
from rawlog.reading.tree import Tree


@dataclass(frozen=True, slots=True)
class Compared(Done):
    """The result of one split."""

    tally: Tally


@dataclass(frozen=True, slots=True)
class Differences(Outcome):
    """The differences, in the order of the first side's files."""

    tally: Tally


class Diff(Job[Compared, Differences]):
    """Compare a tree, the first side, with another. Damage raises, unless the selection says to stop or skip."""

    def __init__(self, other: Tree, selection: Selection | None = None, limit: int | None = None) -> None:
        """`limit` is the number of differences that are listed for each partition or store; all of them are counted."""
        self.other: Tree | None = other
        self.selection = selection or Selection()
        self.limit = limit

    def plan(self, tree: Tree) -> list[Split]:
        """A split for each pair of partitions or stores; large logs in several."""
        assert self.other is not None
        found = pairs(tree, self.other, self.selection)
        return [Split(number, pair.size, pair) for number, pair in enumerate(found)]

    def work(self, split: Split, stage: Stage) -> Compared:
        """Compare one pair."""
        pair: Pair = split.task
        tally = compare(pair, self.selection, self.limit)
        stage.advance(split.size)
        return Compared(split.number, tally)

    def commit(self, done: Sequence[Compared]) -> Differences:
        """Add up, and join runs that were cut between two splits."""
        result = Tally()
        for one in done:
            result.take(one.tally)
        result.items = _joined(result.items)
        return Differences(result)

    def __getstate__(self) -> dict[str, object]:
        # The other tree stays where it was planned: a split names its files.
        return {"other": None, "selection": self.selection, "limit": self.limit}


def _joined(items: Sequence[Difference]) -> list[Difference]:
    joined: list[Difference] = []
    for one in items:
        last = joined[-1] if joined else None
        if (
            last is not None
            and last.stop is not None
            and last.stop == one.start
            and (last.change, last.what, last.name, last.columns) == (one.change, one.what, one.name, one.columns)
        ):
            joined[-1] = replace(last, stop=one.stop, count=last.count + one.count)
        else:
            joined.append(one)
    return joined
