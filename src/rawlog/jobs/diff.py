"""Diff: two trees compared, one partition, store or range of a log at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rawlog.compare.pairs import Pair, compare, pairs
from rawlog.core.difference import Difference, Tally
from rawlog.core.errors import DONE, FOUND
from rawlog.core.html import ROWS, html_table
from rawlog.core.report import SeriousNote
from rawlog.jobs.job import Done, Job, Split, Stage
from rawlog.reading.select import Selection
from rawlog.reading.tree import Tree


@dataclass(frozen=True, slots=True)
class Compared(Done):
    """The result of one split, and what was noted while its files were read."""

    tally: Tally
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, repr=False)
class Differences:
    """What both sides do not agree on, in the order of the first side's files. Iterate over it for each Difference. `notes` say what was
    passed over: damage, rows that are not at their place.
    """

    tally: Tally
    notes: tuple[str, ...] = ()

    @property
    def is_same(self) -> bool:
        """Whether there is no difference."""
        return self.tally.is_same

    @property
    def exit_code(self) -> int:
        """How a comparison ends: 0 if there is no difference and no damage was passed over, else 1."""
        return DONE if self.is_same and not self.damage else FOUND

    @property
    def damage(self) -> list[str]:
        """The notes on damage that was passed over: what it holds was not compared."""
        return [note for note in self.notes if isinstance(note, SeriousNote)]

    @property
    def unlisted(self) -> int:
        """How many differences were counted and not listed."""
        return self.tally.unlisted

    def summary(self) -> dict[str, Any]:
        """How many things are alike, differ, or are only on one side."""
        return self.tally.summary()

    def __iter__(self) -> Iterator[Difference]:
        return iter(self.tally.items)

    def __len__(self) -> int:
        return len(self.tally.items)

    def __repr__(self) -> str:
        counts = (
            f"{self.tally.only_in_a:,} only in a, {self.tally.only_in_b:,} only in b, {self.tally.differs:,} differ"
        )
        return f"<rawlog.Differences {'same' if self.is_same else 'different'}: {self.tally.alike:,} alike, {counts}>"

    def _repr_html_(self) -> str:
        """The first differences as a table, for a notebook."""
        names = ("change", "what", "name", "from_offset", "to_offset", "count", "columns")
        rows = ([one.as_json()[name] for name in names] for one in self.tally.items[:ROWS])
        return html_table(names, rows, repr(self))


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
        pair: Pair = split.content
        notes: list[str] = []
        tally = compare(pair, self.selection, self.limit, notes.append)
        stage.advance(split.size)
        return Compared(split.number, tally, tuple(notes))

    def commit(self, done: Sequence[Compared]) -> Differences:
        """Add up, and join runs that were cut between two splits."""
        result = Tally()
        for one in done:
            result.take(one.tally)
        result.items = _joined(result.items)
        return Differences(result, tuple(dict.fromkeys(note for one in done for note in one.notes)))

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
