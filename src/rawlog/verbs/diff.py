"""`diff`: which records two places do not agree on."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from rawlog.model.difference import (
    Difference,
    DisorderError,
    Tally,
)
from rawlog.model.errors import DONE, FOUND
from rawlog.model.job import Job, Split, SplitResult, Stage
from rawlog.model.report import SeriousNote
from rawlog.model.store import Store, unread_size
from rawlog.model.table import RECORDS
from rawlog.model.text import ROWS, html_table
from rawlog.model.verb import Option, verb
from rawlog.reading.options import Format, Note, Path
from rawlog.reading.select import Selection
from rawlog.reading.tree import Tree
from rawlog.verbs.options import (
    Comparing,
    Page,
    check_page,
    divide_options,
    log_note,
    open_sources,
    readable,
    selection_of,
    write_page,
)

if TYPE_CHECKING:
    from rawlog.reading.compare import Pair
    from rawlog.reading.settlement import PartSummary


@verb(
    group="check and repair",
    examples=(
        "rawlog diff kafka-logs/ restored/",
        "rawlog diff a/orders-0 b/orders-0 --columns value --limit 5 --json",
    ),
    more="Exit codes: 0 the same; 1 differences or damage; 2 wrong usage; 3 cannot be read.",
    doing="comparing",
)
def diff(
    a: Annotated[Path, "A"],
    b: Annotated[Path, "B"],
    *,
    limit: Annotated[
        int, Option("List at most N differences of each partition or store; all are counted.", least=1, metavar="N")
    ] = 1000,
    format: Format = None,
    html: Page = None,
    note: Note | None = None,
    **selection: Unpack[Comparing],
) -> Differences:
    """Show the differences between two places.

    Records are compared by topic, partition and offset, whatever their batches and compression: what only one side has, as ranges of
    offsets, and which columns differ. Blob stores are compared blob by blob, clusters by their settings. If each side is one partition, its
    name does not matter.

    Returns Differences: iterate over it, or ask whether it `is_same`. Its `notes` say what was passed over with `errors`; `damage` has
    those notes that count. Raises DataError at damage unless `errors` says otherwise, OptionError for an unknown name, AccessError for a
    path that does not exist.

    >>> import rawlog
    >>> same = rawlog.diff("samples/kafka", "samples/kafka").is_same
    """
    from rawlog.reading.parts import choose_replicas
    from rawlog.reading.rows import check_names

    reading, running = divide_options(selection)
    rows = selection_of(reading)
    engine, trees = open_sources((a, b), running, format=format, note=note)
    trees = [choose_replicas(readable(tree, note), rows, note or log_note) for tree in trees]
    check_names(trees, RECORDS, rows, note)
    check_page(html, (*trees[0].sources, *trees[1].sources))
    differences = engine.run(Diff(trees[1], rows, limit), trees[0], running.get("progress"))
    for text in differences.notes:
        (note or log_note)(text)
    if html is not None:
        from rawlog.pages.results import diff_page

        page = diff_page(differences.tally, os.fspath(a), os.fspath(b), differences.damage)
        write_page(html, page, (*trees[0].sources, *trees[1].sources))
    return differences


# The job ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DiffResult(SplitResult):
    """The result of one split, and what was noted while its files were read."""

    tally: Tally
    notes: tuple[str, ...] = ()
    #: What the diagnosis of both sides needs.
    summaries: tuple[PartSummary, ...] = ()
    #: Why the records could not be compared as they are stored.
    failure: DisorderError | None = None
    #: The splits whose results this one replaces.
    replaces: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SettlingPair:
    """The splits of a pair, by number, whose stores are settled, with the summaries of their files."""

    pairs: tuple[tuple[int, Pair], ...]
    a: Store
    b: Store
    is_compared: bool


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
        rows = ([difference.as_json()[name] for name in names] for difference in self.tally.items[:ROWS])
        return html_table(names, rows, repr(self))


class Diff(Job[DiffResult, Differences]):
    """Compare a tree, the first side, with another. Damage raises, unless the selection says to stop or skip."""

    def __init__(self, other: Tree, selection: Selection | None = None, limit: int | None = None) -> None:
        """`limit` is the number of differences that are listed for each partition or store; all of them are counted."""
        self.other: Tree | None = other
        self.selection = selection or Selection()
        self.limit = limit
        self._splits: list[Split] = []

    def plan(self, tree: Tree) -> list[Split]:
        """A split for each pair of partitions or stores; large logs in several."""
        from rawlog.reading.compare import pairs

        assert self.other is not None
        splits = pairs(tree, self.other, self.selection)
        self._splits = [Split(number, pair.size, pair) for number, pair in enumerate(splits)]
        return list(self._splits)

    def work(self, split: Split, stage: Stage) -> DiffResult:
        """Compare one pair, or settle its stores."""
        from rawlog.reading.compare import compare

        if isinstance(split.content, SettlingPair):
            return self._settle(split.number, split.content)
        pair: Pair = split.content
        notes: list[str] = []
        summaries: list[PartSummary] = []
        tally, failure = Tally(), None
        try:
            tally = compare(pair, self.selection, self.limit, notes.append, None, summaries)
        except DisorderError as error:
            if not self._settles(pair):
                raise
            failure = error
        stage.advance(split.size)
        return DiffResult(split.number, tally, tuple(notes), tuple(summaries), failure)

    def _settles(self, pair: Pair) -> bool:
        """Whether the stores of a pair are settled: not if the comparison ends at the first damage."""
        from rawlog.reading.settlement import settles

        is_able = any(settles(file, RECORDS) for file in (*pair.a, *pair.b))
        return is_able and pair.family is None and self.selection.errors != "stop"

    def follow(self, results: Sequence[DiffResult]) -> list[Split]:
        """What `repair` would keep of the stores of each pair. Those that were read in part only if something was passed over."""
        from rawlog.reading.settlement import merge_parts

        if any(isinstance(split.content, SettlingPair) for split in self._splits):
            return []
        by_number = {result.number: result for result in results}
        by_pair: dict[tuple[object, object], list[tuple[int, Pair]]] = {}
        for split in self._splits:
            if self._settles(split.content):
                by_pair.setdefault((split.content.a, split.content.b), []).append((split.number, split.content))
        is_bounded = not self.selection.replace(where=None, text=None).takes_every_row
        settling = []
        for ranges in by_pair.values():
            pair_results = [by_number[number] for number, _ in ranges]
            is_troubled = any(isinstance(note, SeriousNote) for result in pair_results for note in result.notes)
            has_failed = any(result.failure is not None for result in pair_results)
            if is_bounded and not is_troubled and not has_failed:
                continue
            wholes = [
                part for result in pair_results for part in result.summaries if not part.start and part.stop is None
            ]
            summaries = merge_parts({part.file.path: part for part in wholes}.values())
            a, b = (Store(files).with_summaries(summaries) for files in (ranges[0][1].a, ranges[0][1].b))
            settling.append(SettlingPair(tuple(ranges), a, b, not has_failed))
        first = len(self._splits)
        splits = [
            Split(first + at, unread_size(pair.a) + unread_size(pair.b), pair) for at, pair in enumerate(settling)
        ]
        self._splits += splits
        return splits

    def _settle(self, number: int, settling: SettlingPair) -> DiffResult:
        """Compare a pair again if one of its sides has rows that `repair` would not keep as they are."""
        from rawlog.reading.compare import compare
        from rawlog.reading.settlement import notes_on, reading_of

        readings = {store.path: reading_of(store) for store in (settling.a, settling.b) if store}
        notes = [note for reading in readings.values() for note in notes_on(reading)]
        if settling.is_compared and all(reading.pieces is None for reading in readings.values()):
            return DiffResult(number, Tally(), tuple(notes))
        tally = Tally(self.limit)
        whole = [pair for _, pair in settling.pairs if pair.start is None]
        for pair in whole:
            tally.take(compare(replace(pair, stop=None), self.selection, self.limit, notes.append, readings))
        return DiffResult(number, tally, tuple(notes), replaces=tuple(at for at, _ in settling.pairs))

    def commit(self, results: Sequence[DiffResult]) -> Differences:
        """Add up, and join runs that were cut between two splits."""
        replaced = {number for result in results for number in result.replaces}
        results = [result for result in results if result.number not in replaced]
        result = Tally()
        for part in results:
            result.take(part.tally)
        result.items = _join_runs(result.items)
        return Differences(result, tuple(dict.fromkeys(note for result in results for note in result.notes)))

    def __getstate__(self) -> dict[str, object]:
        # The other tree stays where it was planned: a split names its files.
        return {"other": None, "selection": self.selection, "limit": self.limit, "_splits": []}


def _join_runs(items: Sequence[Difference]) -> list[Difference]:
    joined: list[Difference] = []
    for difference in items:
        last = joined[-1] if joined else None
        if (
            last is not None
            and last.stop is not None
            and last.stop == difference.start
            and (last.change, last.what, last.name, last.columns)
            == (difference.change, difference.what, difference.name, difference.columns)
        ):
            joined[-1] = replace(last, stop=difference.stop, count=last.count + difference.count)
        else:
            joined.append(difference)
    return joined
