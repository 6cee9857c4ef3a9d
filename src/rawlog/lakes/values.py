"""What a run of ingest passes between plan, work and commit: all of it picklable."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rawlog import registry
from rawlog.io.storage import exists
from rawlog.lakes.parquet import WrittenFile
from rawlog.lakes.removal import OldFile, ThinnedFile
from rawlog.lakes.rewrites import LakeReplicas
from rawlog.lakes.state import History, RowRange, UnitSources
from rawlog.model.errors import AccessError, RawlogError
from rawlog.model.finding import Finding, Severity
from rawlog.model.format import Family, File
from rawlog.model.job import Outcome, SplitResult
from rawlog.model.outline import Reading
from rawlog.model.report import Entry
from rawlog.model.store import Store
from rawlog.model.table import RECORDS, Table
from rawlog.reading import rows
from rawlog.reading.inspect import FileCheck
from rawlog.reading.parts import Part, plan
from rawlog.reading.select import Selection, Tally
from rawlog.reading.settlement import settles
from rawlog.reading.tree import Tree, open_tree

if TYPE_CHECKING:
    import pyarrow as pa

#: The file and byte of a finding, as far as it has them.
FindingPlace = tuple[str | None, int | None]


# ----------------------------------------------------------------------------------------------------------------------
# Folds: tables that are a state, not a stream, such as consumer offsets or a cluster's topics.
# They consist of units (a partition, a store, a cluster): when a file of a unit is new or has changed, the whole unit is folded again,
# and its rows replace the old ones. Units that a run does not see stay as they are.


@dataclass(frozen=True, slots=True)
class Fold:
    """A unit of a folded table that is to be folded again."""

    table: str
    unit: str
    files: tuple[File, ...]

    @property
    def size(self) -> int:
        """The bytes of its files."""
        return sum(file.size for file in self.files)

    def state(self, selection: str) -> UnitSources:
        """Its files, for the lake to record."""
        return UnitSources(selection, {file.path: (file.size, file.modified) for file in self.files})


def family_of(table: str) -> Family | None:
    """The family that folds a table; None for one that is decoded, file by file."""
    return next((family for family in registry.families() if family.makes(table)), None)


def due(
    table: str, tree: Tree, history: History, selection: str, earlier: LakeReplicas | None = None
) -> Iterator[Fold]:
    """The units of a table whose files are not as the lake recorded them. Of what the lake has from `earlier` replicas, only a better one
    is folded, and its rows replace theirs.
    """
    family = family_of(table)
    assert family is not None
    for name, files in family.store_class.units(table, tree.files_for(family, table)).items():
        unit = name if earlier is None else earlier.unit(name, history.units)
        if unit is None:
            continue
        before = history.units.get(unit)
        fold = Fold(table, unit, (*files, *(_unseen_files(unit, files, before) if unit == name else ())))
        if before != fold.state(selection) or any(file.modified is None for file in files):
            yield fold


def _unseen_files(unit: str, files: Sequence[File], before: UnitSources | None) -> list[File]:
    """Files of the unit that the lake recorded and this run did not get, although they still exist."""
    seen = {file.path for file in files}
    missing = {path for path in before.sources if path not in seen and exists(path)} if before is not None else set()
    if not missing:
        return []
    roots = [unit] if exists(unit) else sorted({os.path.dirname(path) for path in missing})
    try:
        return [file for file in open_tree(roots) if file.path in missing]
    except AccessError:
        return []


def fold(unit: Fold, table: Table, selection: Selection) -> Iterator[pa.RecordBatch]:
    """The rows of a unit. DataError if it cannot be folded."""
    tree = Tree((), unit.files)
    for part in plan(tree, table, selection):
        yield from rows.read(part, table, selection)


def by_unit(folds: Sequence[Fold]) -> list[tuple[Fold, ...]]:
    """Folds of the same files together: what one of them reads, the others reuse."""
    groups: dict[str, list[Fold]] = {}
    for fold in folds:
        groups.setdefault(fold.unit, []).append(fold)
    return [tuple(group) for group in groups.values()]


def units(folds: Sequence[Fold], selection: str) -> Mapping[str, UnitSources]:
    """What the lake records of folds of one table."""
    return {fold.unit: fold.state(selection) for fold in folds}


@dataclass(frozen=True, slots=True)
class SplitParts:
    """A range of bytes of a file, as a part for each of the tables that need it."""

    parts: tuple[tuple[str, Part], ...]
    #: Whether the same pass checks and measures the file, and the files next to it that this needs.
    is_checked: bool = False
    near: tuple[File, ...] = ()

    @property
    def file(self) -> File:
        """The file that all the parts are of."""
        return self.parts[0][1].file

    @property
    def start(self) -> int:
        """The first byte."""
        return self.parts[0][1].start or 0

    @property
    def stop(self) -> int | None:
        """Where the range ends; None: at the end of the file."""
        return self.parts[0][1].stop

    @property
    def size(self) -> int:
        """The number of bytes."""
        return self.parts[0][1].size


@dataclass(frozen=True, slots=True)
class PartProgress:
    """How far a part was read for one table: up to byte `stop`, through `frames` frames.

    `mark` identifies the bytes before `stop`; `rows` are those of `records` that came from the part.
    """

    table: str
    part: Part
    stop: int
    frames: int
    mark: int = 0
    rows: tuple[RowRange, ...] = ()


@dataclass(frozen=True, slots=True)
class SettledSpans:
    """The spans of a store that is read in the pieces of `part`, not as it is stored. `part` is all of the store. `reached` is how far the
    first pass read each span.
    """

    part: Part
    spans: tuple[SplitParts, ...]
    reached: tuple[PartProgress, ...]

    @property
    def size(self) -> int:
        """The number of bytes."""
        return sum(span.size for span in self.spans)


@dataclass(frozen=True, slots=True)
class IngestSplit:
    """What one split does: files to inspect alone, groups of files to inspect together, spans to decode, units to fold."""

    run: str
    files: tuple[File, ...] = ()
    groups: tuple[Store, ...] = ()
    spans: tuple[SplitParts, ...] = ()
    folds: tuple[Fold, ...] = ()
    #: Data files of the lake from which rows of rewritten sources are removed.
    old_files: tuple[OldFile, ...] = ()
    tree: Store | None = None
    #: Data files of the lake's table `findings` that are searched for findings on several files together.
    found_in: tuple[str, ...] = ()
    #: What is decoded once more, because of stores that are settled; and the number of the split whose rows it replaces.
    settled: tuple[SettledSpans, ...] = ()
    replaces: int | None = None


@dataclass(frozen=True, slots=True)
class IngestSplitResult(SplitResult):
    """The files that a split wrote, what they hold, and the result of verification."""

    written: tuple[WrittenFile, ...]
    reached: tuple[PartProgress, ...] = ()
    folded: tuple[Fold, ...] = ()
    notes: tuple[str, ...] = ()
    files: tuple[File, ...] = ()
    #: Summaries that checks of several files need; and the results for splits of files, to be merged, with their first byte.
    summaries: Mapping[str, Any] = field(default_factory=dict)
    checked: tuple[tuple[int, FileCheck], ...] = ()
    errors: int = 0
    warnings: int = 0
    #: Where those are that say by themselves that rows are missing: see `losing`.
    losing: tuple[FindingPlace, ...] = ()
    #: What transforms of the rows counted.
    tallies: tuple[Tally, ...] = ()
    #: What was not decoded, and why.
    decoded: Tally = field(default_factory=Counter)
    #: Files in which errors were found; and the data files from which rows were removed.
    damaged: tuple[str, ...] = ()
    thinned: tuple[ThinnedFile, ...] = ()
    #: Codes and paths of earlier findings on several files together.
    joint: frozenset[tuple[str, str]] = frozenset()
    #: The facts that identify the stores that were inspected, by directory.
    stores: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: What `repair` would keep of the stores that were inspected, by directory; and the number of the split whose rows this one replaces.
    readings: Mapping[str, Reading] = field(default_factory=dict)
    replaces: int | None = None
    #: What should be there and is not: stores of which there is nothing.
    absent: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True)
class IngestResult(Outcome):
    """What a run added to the lake, and what it left out."""

    run: str
    lake: str
    tables: Mapping[str, int]
    files: int
    size: int
    unchanged: int
    errors: int
    warnings: int
    #: Files that were rewritten and left out, with the reason; their rows were not changed.
    refused: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    #: What `repair` would report of the stores that were read; and how many findings on other files say that rows are missing.
    losses: tuple[Entry, ...] = ()
    losing: int = 0

    @property
    def verdict(self) -> str:
        return "damaged" if self.errors else "suspect" if self.warnings else "clean"


def losing(findings: Iterable[Finding], file: File | None = None) -> tuple[FindingPlace, ...]:
    """Where the findings are that say by themselves that rows are missing: errors. Those of a system whose stores are settled do so only
    in a log, `file`: of everything else the diagnosis of the store says what is lost.
    """
    settled = {family.name for family in registry.families() if family.store_class.can("reading")}
    is_log = file is not None and settles(file, RECORDS)
    return tuple(
        (finding.path, finding.position)
        for finding in findings
        if finding.severity is Severity.ERROR and (is_log or finding.code.partition(".")[0] not in settled)
    )


def unexplained(places: Iterable[FindingPlace], entries: Iterable[Entry]) -> int:
    """How many findings say that rows are missing, without those in bytes that the diagnosis of a store expects to be dropped: what is
    after the end of a log.
    """
    expected: dict[str | None, list[tuple[int, int]]] = {}
    for entry in entries:
        if entry.is_expected and entry.start is not None and entry.stop is not None:
            expected.setdefault(entry.path, []).append((entry.start, entry.stop))
    return sum(
        position is None or not any(start <= position < stop for start, stop in expected.get(path, ()))
        for path, position in places
    )


class RecutError(RawlogError):
    """Files whose planned boundaries do not fit their frames: they must be read whole."""

    def __init__(self, paths: Iterable[str]) -> None:
        self.paths = frozenset(paths)
        super().__init__(f"{len(self.paths)} files must be read whole")


class DistrustError(RawlogError):
    """Files that were rewritten and are damaged now: their rows must not replace the sound ones that the lake has."""

    def __init__(self, paths: Iterable[str]) -> None:
        self.paths = frozenset(paths)
        super().__init__(f"{len(self.paths)} rewritten files are damaged")
