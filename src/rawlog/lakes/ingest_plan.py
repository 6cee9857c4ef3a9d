"""Plan: which bytes of which files each table of the lake lacks, according to the table's own snapshots; and what a run passes on.

All that plan, work and commit pass to one another can be pickled.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rawlog import registry
from rawlog.io.storage import below, exists
from rawlog.lakes.lake import Lake
from rawlog.lakes.names import Cut, cuts_of, lake_name, parse_cuts, parse_order
from rawlog.lakes.parquet import WrittenFile, order_of
from rawlog.lakes.rewrites import (
    Comparison,
    LakeReplicas,
    OldFile,
    Removal,
    ThinnedFile,
    known_names,
    merge_ranges,
    old_files,
    read_marks,
    rows_of,
    why_replaced,
)
from rawlog.lakes.state import History, Memory, RowRange, SourceProgress, UnitSources, history_of
from rawlog.model.errors import AccessError, OptionError, RawlogError
from rawlog.model.finding import Finding, Severity
from rawlog.model.format import Family, File
from rawlog.model.job import Outcome, SplitResult, packed
from rawlog.model.outline import Reading
from rawlog.model.report import Entry
from rawlog.model.store import Store
from rawlog.model.table import FILES, FINDINGS, RECORDS, Table
from rawlog.reading import rows
from rawlog.reading.inspect import FileCheck, near
from rawlog.reading.parts import Part, context_options, cut, plan, whole
from rawlog.reading.select import Selection, Tally
from rawlog.reading.settlement import settles
from rawlog.reading.tree import Tree, open_tree

if TYPE_CHECKING:
    import pyarrow as pa

#: The file and byte of a finding, as far as it has them.
FindingPlace = tuple[str | None, int | None]


# What passes between plan, work and commit: all of it picklable ------------------------------------------------------------------

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


# Plan ----------------------------------------------------------------------------------------------------------------------------

#: Bytes of input per split: about a second of work, and one Parquet file per table.
SMALLEST, LARGEST = 16 << 20, 128 << 20
SPLITS = 8
#: A file takes as long as so many more bytes, however small it is; and no split has more files than this.
FILE_COST, MOST_FILES = 256 << 10, 1000


class Plan:
    """What to do, and what the lake held when that was decided."""

    def __init__(
        self,
        lake: Lake,
        tree: Tree,
        whole: Tree,
        tables: Sequence[Table],
        selection: Selection,
        uncut: frozenset[str],
        partition_by: Sequence[str] | None = None,
        replica_notes: Sequence[str] = (),
        on_rewrite: str = "replace",
        damaged: frozenset[str] = frozenset(),
        sort_by: Sequence[str] | None = None,
    ) -> None:
        """`tree` are the wanted files of the `whole` tree, whose other files may be needed to understand them. `replica_notes` are notes on
        the replicas that were chosen. `on_rewrite` says what is done about files that were rewritten, those that are `damaged` excepted.

        OptionError if a table exists already with other partitions, or in another order, than are asked for.
        """
        assert lake.writer is not None, "only inside `with`"
        self.run = lake.writer.new_run()
        self.started = time.time()
        self.selection, self.uncut = selection, uncut
        self.tables = [table for table in tables if family_of(table.name) is None]
        self.folded = [table for table in tables if family_of(table.name) is not None]
        self.chosen = _selection_text(selection)
        loaded = {table.name: lake.load(lake_name(table)) for table in (*tables, FILES, FINDINGS)}
        memory = Memory(whole if any(lake_table is not None for lake_table in loaded.values()) else ())
        self.histories: dict[str, History] = {
            name: history_of(lake_table, memory) for name, lake_table in loaded.items()
        }
        del memory
        names = known_names(whole, {path for history in self.histories.values() for path in history.sources})
        self.tree, self.whole = _with_lake_names(tree, names), _with_lake_names(whole, names)
        self.chosen_replicas = tuple(replica_notes)
        takes_all = selection.replicas == "all"
        self.replicas = (
            LakeReplicas() if takes_all else LakeReplicas.find(self.whole, self.histories, loaded[FILES.name])
        )
        self.cuts = {table.name: _cuts(loaded[table.name], table, partition_by) for table in self.tables}
        self.orders = {
            table.name: _order(loaded[table.name], table, sort_by) for table in (*self.tables, FILES, FINDINGS)
        }
        self.folds = {
            table.name: list(due(table.name, self.whole, self.histories[table.name], self.chosen, self.replicas))
            for table in self.folded
        }
        self.same_bytes = _same_bytes(self.whole)
        compared = Comparison(
            on_rewrite,
            self.whole.files,
            self.histories,
            self._is_unlike,
            self.whole.group_of,
            lambda file, table: self.selection.suited(table).takes_file(file),
            self.chosen,
            self.replicas,
            loaded[FILES.name],
            damaged,
            self.same_bytes,
        )
        self.rewritten = compared.run(self.tables)
        #: Of `files` and `findings`: the rows that are replaced, and the data files that were searched for them.
        self.replaced: dict[str, Removal] = {}
        self.seen_files: dict[str, frozenset[str]] = {}
        self.old_files = self._removals(lake, loaded)
        self.refused = self.rewritten.refused
        pending = {table.name: self._pending(table) for table in self.tables}
        self.starts: dict[str, dict[str, SourceProgress | None]] = {
            name: {path: taken for path, taken in starts.items() if path not in self.refused}
            for name, starts in pending.items()
        }
        self.to_inspect = [
            file for file in self.tree if file.path not in self.refused and self._is_unlike(file, FILES, FINDINGS)
        ]
        inspected = {file.path for file in self.to_inspect}
        #: A group is inspected again when one of its files is new or has changed; as a whole, also if only some of it is wanted.
        self.groups = [group for group in self.whole.groups if any(file.path in inspected for file in group)]
        self.spans = self._cut(inspected)
        taken = {span.file.path for span in self.spans if span.is_checked}
        self.to_inspect = [file for file in self.to_inspect if file.path not in taken]

    def _is_unlike(self, file: File, *tables: Table) -> bool:
        """Whether a file has changed since it was last ingested or inspected."""
        for table in tables:
            taken = self.histories[table.name].sources.get(file.path)
            if taken is None or (taken.size, taken.modified) != (file.size, file.modified) or file.modified is None:
                return True
        return False

    def _removals(self, lake: Lake, loaded: dict[str, Any]) -> list[OldFile]:
        """The data files with rows of sources that were rewritten. A source is refused if nothing says which rows of `records` are its."""
        gone = self.rewritten.removed.get(RECORDS.name, set())
        systems = [loaded[table.name] for table in self.tables if table.payload and loaded[table.name] is not None]
        rows, unclear = rows_of(gone, self.histories[RECORDS.name], systems) if gone else ({}, set())
        for path in sorted(unclear):
            why = (
                "was rewritten; it was ingested by an older rawlog, and which rows of records came from it is not known"
            )
            self.rewritten.refuse(path, why)
        files: list[OldFile] = []
        for table in self.tables:
            paths = frozenset(self.rewritten.removed.get(table.name, ()))
            ranges = merge_ranges({path: rows[path] for path in paths}) if table.name == RECORDS.name else ()
            removal = Removal(ranges=ranges) if table.name == RECORDS.name else Removal(paths)
            if loaded[table.name] is not None and removal.values:
                files += old_files(lake, lake.table_of(lake_name(table)) or table, loaded[table.name], removal)
        return files

    # Rows of files that are inspected again ----------------------------------------------------------------------------

    def list_findings(self, lake: Lake) -> list[str]:
        """The data files of the lake's table `findings`, which may have findings on several files together."""
        return lake.data_files(lake_name(FINDINGS)) if joint_codes() else []

    def replace_inspected(
        self, lake: Lake, results: Sequence[IngestSplitResult], checks: Sequence[FileCheck]
    ) -> list[OldFile]:
        """The data files of `files` and `findings` that may have earlier rows of inspected files: new rows replace those."""
        inspected = {file.path for result in results for file in result.files} | {check.file.path for check in checks}
        if not inspected:
            return []
        files: list[OldFile] = []
        for table in (FILES, FINDINGS):
            sources = self.histories[table.name].sources
            paths = frozenset(
                path for path in (inspected | self.rewritten.removed.get(table.name, set())) if path in sources
            )
            joint = self._joint(results) if table.name == FINDINGS.name else frozenset()
            removal = self.replaced[table.name] = Removal(paths, findings=joint)
            lake_table = lake.load(lake_name(table))
            if lake_table is not None:
                self.seen_files[table.name] = frozenset(lake.data_files(lake_name(table)))
                files += old_files(lake, table, lake_table, removal)
        return files

    def _joint(self, results: Sequence[IngestSplitResult]) -> frozenset[tuple[str, str]]:
        """Earlier findings on several files together that were compared again. Such a finding names any of the files, perhaps one that
        has not changed itself.
        """
        in_groups = joint_codes(of_groups=True)
        grouped = {file.path for group in self.groups for file in group}
        wanted_paths = {file.path for file in self.tree} | {group.path for group in self.tree.groups}
        pairs = {pair for result in results for pair in result.joint}
        return frozenset(pair for pair in pairs if pair[1] in (grouped if pair[0] in in_groups else wanted_paths))

    def _pending(self, table: Table) -> dict[str, SourceProgress | None]:
        """The files of which a table lacks some bytes, each with what it has."""
        able, selection = registry.formats_with(table), self.selection.suited(table)
        sources = self.histories[table.name].sources
        removed = self.rewritten.removed.get(table.name, set())
        kept = {path: taken for (name, path), taken in self.rewritten.kept.items() if name == table.name}
        pending: dict[str, SourceProgress | None] = {}
        for file in self.whole:
            path = file.path
            if file.format not in able and path not in removed and path not in kept:
                continue
            if file.problem is not None or not selection.takes_file(file):
                continue
            if path in removed or path in kept:
                pending[path] = None if path in removed else kept[path]
                continue
            taken = sources.get(path)
            if taken is not None and (not self._is_unlike(file, table) or file.size == taken.stop):
                continue
            if taken is None and self.same_bytes and (replica := self._known_replica(file, sources)) is not None:
                why = why_replaced(
                    file, replica, read_marks({(file.path, replica.stop)} if replica.stop <= file.size else ())
                )
                if why is not None:
                    self.refused[file.path] = why
                    continue
                if file.size == replica.stop:
                    continue
                taken = replica
            if file.place.state is None:
                rest = self.replicas.rest(table.name, file, self.whole.group_of(file), taken)
                if rest is None or rest.stop < file.size:
                    pending[file.path] = rest
        return pending

    def _known_replica(self, file: File, sources: Mapping[str, SourceProgress]) -> SourceProgress | None:
        """What a table has of another file with the same bytes: local and remote copies of a segment are taken once."""
        return next((sources[path] for path in self.same_bytes.get(file.path, ()) if path in sources), None)

    def _cut(self, inspected: set[str]) -> list[SplitParts]:
        """The spans of all pending files, in the order of their places, each once for all tables that need it. Files that are new as a
        whole are checked by the pass that decodes them.
        """
        formats = registry.formats()
        tables = [(table, self.selection.suited(table), self.starts[table.name]) for table in self.tables]
        wishes = [(table, chosen, context_options(table, chosen), starts) for table, chosen, starts in tables if starts]
        all_spans: list[SplitParts] = []
        for file in sorted(self.whole, key=_order_of_place) if wishes else ():
            path, group, is_new = file.path, self.whole.group_of(file), True
            edges: dict[int, list[tuple[int | None, int | None, int]]] = {}
            wanted: dict[tuple[int | None, int | None], list[tuple[str, Part]]] = {}
            for table, chosen, options, starts in wishes:
                if path not in starts:
                    continue
                taken = starts[path]
                is_new &= taken is None
                part = whole(file, group, table, chosen, options, formats)
                begin = 0 if taken is None else taken.stop
                if begin not in edges:
                    start, first = (taken.stop, taken.frames) if taken is not None and taken.stop else (None, 0)
                    # Not beyond its size when it was listed: every table sees the same bytes of a file that grows.
                    ends = Part(part.files, start, file.size, first, part.context, part.floor)
                    spans = [ends] if path in self.uncut else cut(ends, group, LARGEST, reading=False)
                    edges[begin] = [(span.start, span.stop, span.first) for span in spans]
                for start, stop, first in edges[begin]:  # made directly: there may be millions
                    piece = Part(part.files, start, stop, first, part.context, part.floor)
                    wanted.setdefault((start, stop), []).append((table.name, piece))
            if wanted:
                is_checked = is_new and path in inspected
                nearby = near(file, group, formats) if is_checked else ()
                file_spans = [SplitParts(tuple(parts), is_checked, nearby) for parts in wanted.values()]
                all_spans += sorted(file_spans, key=lambda span: span.start)
        return all_spans

    def check_masked(self) -> None:
        """OptionError if the lake has rows of these files that were masked in another way or not at all, or any rows that were masked with
        another secret: such rows cannot be joined.
        """
        masks = _masks(self.chosen)
        for table in self.tables:
            selections, sources = self.histories[table.name].selections, self.histories[table.name].sources
            is_masked = bool(masks) or any(map(_masks, set(selections.values())))
            for file in self.tree if is_masked else ():
                earlier = _masks(selections.get(file.path, "")) if file.path in sources else masks
                if earlier != masks:
                    how = " and ".join(earlier) or "not masked"
                    raise OptionError(f"{file.path}: the lake has rows of this file that are {how}; use another lake")
            secrets = {_SECRET.findall(text)[-1] for text in set(selections.values()) if masks and _SECRET.search(text)}
            if secrets - set(_SECRET.findall(self.chosen)):
                raise OptionError(
                    "the lake has rows that were masked with another secret; use that one, or another lake"
                )

    def notes(self) -> list[str]:
        """Notes on sources that were ingested with another selection."""
        others: dict[str, set[str]] = {}
        for table in self.tables:
            selections = self.histories[table.name].selections
            for file in self.tree if selections else ():
                earlier = selections.get(file.path)
                if earlier is not None and earlier != self.chosen:
                    others.setdefault(earlier, set()).add(file.path)
        return [
            *self.chosen_replicas,
            *self.replicas.notes(),
            *self.rewritten.notes(),
            *(
                f"{len(paths):,} files were ingested before with {earlier}; rows left out then stay out"
                for earlier, paths in sorted(others.items())
            ),
        ]


def joint_codes(*, of_groups: bool = False) -> frozenset[str]:
    """The codes of findings on several files together: of one store, or of a whole tree as well."""
    families = registry.families()
    in_groups = {rule.code for family in families for rule in family.store_class.rules()}
    in_trees = {rule.code for family in families for rule in family.store_class.tree_rules()}
    return frozenset(in_groups if of_groups else in_groups | in_trees)


def _same_bytes(tree: Tree) -> dict[str, list[str]]:
    """For each file of which there is, or was, a copy in remote storage: the paths of the others with the same bytes."""
    alike: dict[tuple[str, str], list[str]] = {}
    for file in tree:
        if file.place.remote is not None and file.place.group is not None:
            key = (file.place.group, file.place.remote)
            alike.setdefault(key, [below(*key)]).append(file.path)
    return {path: paths for paths in alike.values() for path in paths}


def _cuts(lake_table: Any | None, table: Table, partition_by: Sequence[str] | None) -> tuple[Cut, ...]:
    """How a table is partitioned: as it was created, or as asked if it is new."""
    wanted = cuts_of(table, partition_by or ())
    if lake_table is None:
        return wanted
    present = parse_cuts(lake_table)
    if partition_by is not None and present != wanted:
        has = ", ".join(map(str, present)) or "nothing"
        raise OptionError(f"table {lake_name(table)} of the lake exists already, partitioned by {has}")
    return present


def _order(lake_table: Any | None, table: Table, sort_by: Sequence[str] | None) -> tuple[str, ...]:
    """The columns that a table is sorted by: as it was created, or as asked if it is new."""
    wanted = order_of(table, sort_by)
    if lake_table is None:
        return wanted
    present = parse_order(lake_table)
    if sort_by is not None and present != wanted and table.name not in (FILES.name, FINDINGS.name):
        has = f"sorted by {', '.join(present)}" if present else "not sorted"
        raise OptionError(
            f"table {lake_name(table)} of the lake exists already, {has}; `rawlog lake --compact --sort-by` changes it"
        )
    return present


def _order_of_place(file: File) -> tuple[str, int, int]:
    """Files of a partition one after another, in the order of their offsets: their rows then are in the order that most tables have."""
    place = file.place
    return (
        place.topic or "",
        -1 if place.partition is None else place.partition,
        -1 if place.start_offset is None or place.partition is None else place.start_offset,
    )


def splits_of(items: Sequence[Any], size_of: Callable[[Any], int]) -> list[tuple[Any, ...]]:
    """Runs of items, in order, each large enough for a split; not more than take about as long as a large file."""
    cost = [size_of(item) + FILE_COST for item in items]
    target = min(max(sum(cost) // SPLITS, SMALLEST), LARGEST)
    runs = packed(list(zip(items, cost, strict=True)), lambda pair: pair[1], target, MOST_FILES)
    return [tuple(item for item, _ in run) for run in runs]


def _with_lake_names(tree: Tree, names: Mapping[str, File]) -> Tree:
    """A tree with the names under which the lake knows some of its files."""
    return replace(tree, files=tuple(names.get(file.path, file) for file in tree)) if names else tree


_SECRET = re.compile("secret ([0-9a-f]{8})")


def _masks(selection: str) -> list[str]:
    """How rows were masked, by the text of a selection."""
    transforms = json.loads(selection).get("transforms", []) if selection else []
    return [text for text in transforms if text.startswith("masked ")]


def _selection_text(selection: Selection) -> str:
    names = ("topics", "topic_pattern", "partitions", "from_offset", "to_offset", "since", "until", "key", "where")
    options = {name: getattr(selection, name) for name in names if getattr(selection, name) not in ((), None)}
    options |= {"transforms": [str(transform) for transform in selection.transforms]} if selection.transforms else {}
    return json.dumps(options, default=repr) if options else ""
