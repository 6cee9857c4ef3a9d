"""Upkeep of a lake: what it holds; expire old snapshots, remove leftovers, join small data files.

Safe next to readers and writers: nothing is removed that was current within the time of grace, or that a living writer may be about to
commit. Manifests are read, directories listed and files deleted in tasks; only names come to the driver. `Expire` expires snapshots and
finds the files that only those list; `Orphans` finds the files that no snapshot lists; `Remove` deletes what they found.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rawlog.io.output import scratch
from rawlog.io.storage import file_system, is_remote, owned_listing
from rawlog.lakes.lake import Lake, append, exchange, living, remove_file
from rawlog.lakes.names import Cut, data_path, known_tables, order_id, parse_cuts, parse_order, same_files
from rawlog.lakes.parquet import ROW_GROUP, Sheets, WrittenFile, check_order, merge_sorted, order_of
from rawlog.lakes.payload import fit_batch, stored
from rawlog.lakes.state import everything, history_of, newest_first
from rawlog.model.errors import AccessError, missing
from rawlog.model.job import (
    Job,
    Split,
    SplitResult,
    Stage,
    packed,
)
from rawlog.model.table import Table
from rawlog.reading.tree import Tree

if TYPE_CHECKING:
    import pyarrow as pa

# ----------------------------------------------------------------------------------------------------------------------
# Join: the rows of small data files of a lake written into few large ones, as a job. One commit per table exchanges the files.
#
# The rows of a table that has a sort order are merged in it; those of others keep the order in which they were added. Folded tables are
# left as they are: their files are replaced unit by unit.

#: About the size of a joined data file. Those below an eighth of it are small; fewer small ones than this are left as they are.
TARGET, SHARE, FEW = 256 << 20, 8, 4
#: Rows that are read at a time; and files that are merged at a time.
ROWS, STREAMS = 1 << 16, 64


@dataclass(frozen=True, slots=True)
class Lot:
    """Small data files of one table and partition that together make about one large file."""

    run: str
    table: str
    urls: tuple[str, ...]
    size: int
    cuts: tuple[Cut, ...]
    #: The columns that the data files have.
    stored: Table
    #: The columns that the rows are sorted by, and those of the data files that are not in this order yet.
    order: tuple[str, ...] = ()
    unsorted: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class JoinResult(SplitResult):
    """The files of a lot, and those with their rows."""

    table: str
    old: tuple[str, ...]
    written: tuple[WrittenFile, ...]


class Join(Job[JoinResult, Mapping[str, tuple[int, int]]]):
    """Joins the small data files of some tables of a lake that is open for writing. The outcome: how many there were and are, by table."""

    def __init__(
        self,
        lake: Lake,
        names: Sequence[str] | None = None,
        target: int = TARGET,
        sort_by: Sequence[str] | None = None,
    ) -> None:
        """`names` are those of tables in the lake, None for all; `target` is about the size of a joined file. `sort_by` are columns that
        the tables are to be sorted by from now on: data files in another order are written again too. OptionError for unknown columns.
        """
        self.lake: Lake | None = lake
        self.stage = lake.path
        self.names, self.target = names, target
        self.sort_by = None if sort_by is None else check_order(sort_by, list(known_tables().values()))
        self.runs: dict[str, str] = {}
        #: The order that each table is to have, if one is asked for.
        self.orders: dict[str, tuple[str, ...]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "lake": None}

    def lots(self) -> list[Lot]:
        """What there is to join."""
        lake = self.lake
        assert lake is not None
        all_lots: list[Lot] = []
        for name in self.names if self.names is not None else lake.tables():
            if name not in known_tables():
                continue
            table = lake.load(name)
            if table is None:
                raise AccessError(f"{lake.path}: table {name} no longer exists")
            if not history_of(table).units:
                all_lots += self._lots_of(name, table)
        return all_lots

    def _lots_of(self, name: str, table: Any) -> list[Lot]:
        """Small data files of the same partition, and those in another order than is asked for, in the order they were added."""
        assert self.lake is not None
        columns = self.lake.table_of(name)
        assert columns is not None
        order = parse_order(table) if self.sort_by is None else order_of(columns, self.sort_by)
        if self.sort_by is not None:
            self.orders[name] = order
        number = order_id(table, order)
        with self.lake.access():
            files = [task.file for task in table.scan().plan_files() if not task.delete_files]
        unsorted = {str(file.file_path) for file in files if order and (not number or file.sort_order_id != number)}
        by_partition: dict[str, list[Any]] = {}
        for file in files:
            is_wanted = file.file_size_in_bytes < self.target // SHARE or (
                self.sort_by is not None and str(file.file_path) in unsorted
            )
            if is_wanted and file.spec_id == table.spec().spec_id:
                by_partition.setdefault(repr(file.partition), []).append(file)
        lots = [
            lot
            for partition_files in by_partition.values()
            for lot in packed(
                sorted(partition_files, key=lambda small: str(small.file_path)),
                lambda small: int(small.file_size_in_bytes),
                self.target,
            )
            if len(lot) >= FEW or (self.sort_by is not None and any(str(small.file_path) in unsorted for small in lot))
        ]
        if not lots:
            return []
        if name not in self.runs:
            self.runs[name] = "" if self.lake.writer is None else self.lake.writer.new_run()
        cuts = parse_cuts(table)
        return [
            Lot(
                self.runs[name],
                name,
                tuple(str(small.file_path) for small in lot),
                sum(int(small.file_size_in_bytes) for small in lot),
                cuts,
                stored(columns),
                order,
                frozenset(str(small.file_path) for small in lot) & unsorted,
            )
            for lot in lots
        ]

    def plan(self, tree: Tree) -> list[Split]:
        """A split for each lot; the tree is not used."""
        assert self.lake is not None
        assert self.lake.writer is not None, "only inside `with`"
        return [Split(number, lot.size, lot) for number, lot in enumerate(self.lots())]

    def work(self, split: Split, stage: Stage) -> JoinResult:
        """Write the rows of a lot. AccessError if a data file cannot be read."""
        import pyarrow as pa

        lot: Lot = split.content
        table = lot.stored
        path = data_path(stage.path, lot.table, lot.run)
        sheets = Sheets(lambda _: path, f"joined-{stage.name}", {table.name: lot.cuts}, {table.name: lot.order})
        try:
            with scratch() as folder:
                for batch in _Merge(lot, folder).rows() if lot.order else _all_rows(lot):
                    sheets.add(table, batch)
            stage.advance(lot.size)
            return JoinResult(split.number, lot.table, lot.urls, sheets.close())
        except BaseException as error:
            sheets.discard()
            if isinstance(error, (OSError, pa.ArrowException)) and not isinstance(error, AccessError):
                raise AccessError(f"{lot.table}: {str(error).splitlines()[0]}") from None
            raise

    def commit(self, results: Sequence[JoinResult]) -> Mapping[str, tuple[int, int]]:
        """Exchange the files, one commit per table. AccessError if another run changed them meanwhile."""
        counts: dict[str, tuple[int, int]] = {}
        assert self.lake is not None
        for name, order in self.orders.items():
            self.lake.sort(name, order)
        for name in dict.fromkeys(result.table for result in results):
            old = {path for result in results if result.table == name for path in result.old}
            joined = [file for result in results if result.table == name for file in result.written]
            self._exchange(name, old, joined)
            counts[name] = len(old), len(joined)
        return counts

    def clean(self) -> None:
        """Remove what was written and not committed."""
        assert self.lake is not None
        for run in filter(None, self.runs.values()):
            self.lake.sweep(run)

    def _exchange(self, name: str, old: set[str], joined: list[WrittenFile]) -> None:
        lake = self.lake
        assert lake is not None
        summary = {"rawlog.joined": self.runs[name]}

        def exchange_files(target: Any, _: object) -> None:
            present = {str(task.file.file_path) for task in target.scan().plan_files()}
            if not old <= present:
                raise AccessError(f"{lake.path}: {name} was changed meanwhile; nothing was joined")
            exchange(target, joined, summary, old.__contains__)

        lake.change(lambda: lake.load(name), None, exchange_files)


def _all_rows(lot: Lot) -> Iterator[pa.RecordBatch]:
    """The rows of a lot, one file after another."""
    for url in lot.urls:
        yield from _rows(url, lot.stored)


def _rows(path: str, table: Table, streams: int = 1) -> Iterator[pa.RecordBatch]:
    """The rows of a data file. So many files may be read at a time: together they hold about a row group in memory."""
    import pyarrow.parquet as pq

    system, inner = file_system(path)
    with pq.ParquetFile(system.open_input_file(inner)) as file:
        metadata = file.metadata
        size = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
        each = size // max(metadata.num_rows, 1) + 1
        for batch in file.iter_batches(max(1, min(ROWS, ROW_GROUP // streams // each))):
            yield fit_batch(table, batch)


class _Merge:
    """The rows of a lot in its order, with little memory: files that are not sorted are sorted into temporary ones first."""

    def __init__(self, lot: Lot, folder: str) -> None:
        self.lot, self.folder, self.count = lot, folder, 0

    def rows(self) -> Iterator[pa.RecordBatch]:
        """All rows, sorted."""
        paths: list[str] = []
        for url in self.lot.urls:
            paths += self._sort_files([url], is_sorted=False) if url in self.lot.unsorted else [url]
        while len(paths) > STREAMS:
            batch, paths = paths[:STREAMS], paths[STREAMS:]
            paths += self._sort_files(batch, is_sorted=True)
        yield from self._merge_files(paths)

    def _merge_files(self, paths: Sequence[str]) -> Iterator[pa.RecordBatch]:
        streams = [_rows(path, self.lot.stored, len(paths)) for path in paths]
        for table in merge_sorted(streams, self.lot.order):
            yield from table.to_batches()

    def _sort_files(self, paths: Sequence[str], *, is_sorted: bool) -> list[str]:
        """Temporary files with the rows of others, each of them sorted: one if the others are."""
        table = self.lot.stored
        self.count += 1
        sheets = Sheets(lambda _: self.folder, f"run-{self.count}", orders={table.name: self.lot.order})
        for batch in self._merge_files(paths) if is_sorted else _rows(paths[0], table):
            sheets.add(table, batch)
        return [written.path for written in sheets.close()]


#: While somebody writes, files up to this age may belong to a commit that is under way.
YOUNG = 3600
#: Lists of manifests, manifests and files of one split.
LISTS, MANIFESTS, FILES = 50, 20, 500


@dataclass(frozen=True, slots=True)
class Look:
    """What one split looks at: lists of manifests or manifests of one table (True: of snapshots that are kept), or a directory."""

    table: str
    #: PyIceberg's way to files, with the settings of the catalog.
    io: Any = None
    lists: tuple[tuple[str, bool], ...] = ()
    manifests: tuple[tuple[Any, bool], ...] = ()
    folder: str | None = None
    lake: str = ""
    until: float = 0.0


@dataclass(frozen=True, slots=True)
class LookResult(SplitResult):
    """What a split saw of a table."""

    table: str
    #: Manifests and data files by path, with their size, of snapshots that are kept and of others.
    manifests: Mapping[str, tuple[Any, bool]] = field(default_factory=dict)
    kept: frozenset[str] = frozenset()
    others: Mapping[str, int] = field(default_factory=dict)
    #: The files in a directory that are old enough, with their size.
    there: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UnlistedFiles:
    """What a job found in a table: how many snapshots it expired, and which files nobody needs any more, with their sizes."""

    expired: int = 0
    files: Mapping[str, int] = field(default_factory=dict)


class _Reach(Job[LookResult, Mapping[str, UnlistedFiles]]):
    """What the two jobs that look for files have in common: lists of manifests are read first, then manifests, each once."""

    def __init__(self, lake: Lake, names: Sequence[str] | None, grace: float) -> None:
        self.lake: Lake | None = lake
        self.names, self.grace = names, grace
        self.stage = lake.path
        self.count = 0
        #: PyIceberg's way to the files of each table.
        self.io: dict[str, Any] = {}
        self.are_read = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "lake": None, "io": {}}

    def _tables(self) -> list[str]:
        assert self.lake is not None
        return list(self.names) if self.names is not None else self.lake.tables()

    def _number(self, looks: Iterable[Look]) -> list[Split]:
        splits = [Split(self.count + number, 1, look) for number, look in enumerate(looks)]
        self.count += len(splits)
        return splits

    def _lists(self, name: str, table: Any, snapshots: Iterable[tuple[Any, bool]]) -> list[Look]:
        self.io[name] = table.io
        named = [(snapshot.manifest_list, is_kept) for snapshot, is_kept in snapshots]
        return [Look(name, table.io, lists=share) for share in packed(named, lambda _: 1, LISTS)]

    def _manifests(self, results: Sequence[LookResult]) -> list[Look]:
        """Each manifest once: one that any kept snapshot lists is kept."""
        by_table: dict[str, dict[str, tuple[Any, bool]]] = {}
        for result in results:
            manifests = by_table.setdefault(result.table, {})
            for path, (manifest, is_kept) in result.manifests.items():
                manifests[path] = manifest, is_kept or (path in manifests and manifests[path][1])
        looks = []
        for name, manifests in by_table.items():
            if all(is_kept for _, is_kept in manifests.values()) and not self._needs_kept:
                continue
            looks += [
                Look(name, self.io[name], manifests=share)
                for share in packed(list(manifests.values()), lambda _: 1, MANIFESTS)
            ]
        return looks

    #: Whether manifests are read although all of them are kept.
    _needs_kept = False

    def work(self, split: Split, stage: Stage) -> LookResult:
        """Read the split's part of the metadata, or list its directory. AccessError if that is not possible."""
        look: Look = split.content
        try:
            seen = _look(split.number, look)
        except AccessError:
            raise
        except ImportError:
            raise missing("PyIceberg (where the task runs)", "lake") from None
        except Exception as error:
            raise AccessError(f"{look.table}: {str(error).splitlines()[0] if str(error) else error!r}") from None
        stage.advance(split.size)
        return seen

    @abstractmethod
    def commit(self, results: Sequence[LookResult]) -> Mapping[str, UnlistedFiles]:
        """What was found, by table."""


def _look(number: int, look: Look) -> LookResult:
    from pyiceberg.manifest import read_manifest_list

    if look.folder is not None:
        entries = owned_listing(look.lake, look.folder)
        sizes = {entry.path: entry.size for entry in entries if entry.modified is None or entry.modified < look.until}
        return LookResult(number, look.table, there=sizes)
    manifests: dict[str, tuple[Any, bool]] = {}
    for path, is_kept in look.lists:
        for manifest in read_manifest_list(look.io.new_input(path)):
            earlier = manifests.get(manifest.manifest_path)
            manifests[manifest.manifest_path] = manifest, is_kept or (earlier is not None and earlier[1])
    kept: set[str] = set()
    others: dict[str, int] = {}
    for manifest, is_kept in look.manifests:
        for entry in manifest.fetch_manifest_entry(look.io, discard_deleted=True):
            if is_kept:
                kept.add(str(entry.data_file.file_path))
            else:
                others[str(entry.data_file.file_path)] = int(entry.data_file.file_size_in_bytes)
    return LookResult(number, look.table, manifests, frozenset(kept), others)


class Expire(_Reach):
    """Expires snapshots that were replaced longer ago than `grace` seconds, of a lake that is open for writing.

    A new snapshot first repeats their record of sources, so that nothing is ever ingested twice. The outcome has the files below each
    table that only they listed.
    """

    def __init__(
        self, lake: Lake, names: Sequence[str] | None = None, grace: float = 0, *, dry_run: bool = False
    ) -> None:
        super().__init__(lake, names, grace)
        self.dry_run = dry_run
        self.old: dict[str, list[int]] = {}
        self.lists: dict[str, list[str]] = {}

    def plan(self, tree: Tree) -> list[Split]:
        """Splits for the lists of manifests of tables with something to expire; the tree is not used."""
        assert self.lake is not None
        looks: list[Look] = []
        for name in self._tables():
            table = load_table(self.lake, name)
            self.old[name] = expirable(table, self.grace)
            if self.old[name]:
                old = set(self.old[name])
                snapshots = [(snapshot, snapshot.snapshot_id not in old) for snapshot in table.snapshots()]
                self.lists[name] = [snapshot.manifest_list for snapshot, is_kept in snapshots if not is_kept]
                looks += self._lists(name, table, snapshots)
        return self._number(looks)

    def follow(self, results: Sequence[LookResult]) -> list[Split]:
        """The manifests, of tables where some are listed by old snapshots only."""
        if self.are_read:
            return []
        self.are_read = True
        return self._number(self._manifests(results))

    def commit(self, results: Sequence[LookResult]) -> Mapping[str, UnlistedFiles]:
        """Expire the snapshots, one table after another."""
        lake = self.lake
        assert lake is not None
        unlisted = {}
        for name, old in self.old.items():
            if not old:
                continue
            table_results = [result for result in results if result.table == name]
            kept = same_files(path for result in table_results for path in result.kept)
            files = {path: size for result in table_results for path, size in result.others.items()}
            manifests: dict[str, tuple[Any, bool]] = {}
            for result in table_results:
                for path, (manifest, is_kept) in result.manifests.items():
                    manifests[path] = manifest, is_kept or (path in manifests and manifests[path][1])
            kept |= same_files(path for path, (_, is_kept) in manifests.items() if is_kept)
            files |= {
                path: int(manifest.manifest_length) for path, (manifest, is_kept) in manifests.items() if not is_kept
            }
            files |= dict.fromkeys(self.lists[name], 0)
            if not self.dry_run:
                _forget(lake, name, old)
            unlisted[name] = UnlistedFiles(len(old), _removable(lake, name, files, kept))
        return unlisted


def expirable(table: Any, grace: float) -> list[int]:
    """The snapshots whose successor is older than the time of grace: only a reader that began before may still use them."""
    until = (time.time() - grace) * 1000
    newest = newest_first(table)
    return [old.snapshot_id for after, old in pairwise(newest) if after.timestamp_ms < until]


def _forget(lake: Lake, name: str, old: Sequence[int]) -> None:
    lake.change(lambda: load_table(lake, name), None, lambda table, history: append(table, (), everything(history)))

    def forget(table: Any, _: object) -> None:
        present = {snapshot.snapshot_id for snapshot in table.snapshots()}
        table.maintenance.expire_snapshots().by_ids([number for number in old if number in present]).commit()

    lake.change(lambda: load_table(lake, name), None, forget)


def _removable(lake: Lake, name: str, files: Mapping[str, int], kept: set[str]) -> dict[str, int]:
    """The table's own files that only old snapshots list."""
    (below,) = same_files([f"{lake.folder_of(name)}/x"])
    root = below.removesuffix("x")
    removable = {}
    for path, size in files.items():
        (identity,) = same_files([path])
        if identity not in kept and identity.startswith(root):
            removable[path] = size
    return removable


class Orphans(_Reach):
    """Finds the files below the tables of a lake that no snapshot lists, left by dead runs, failed commits and expiry.

    Those that are younger than `grace` seconds, or that a living writer may be about to commit, are left out.
    """

    _needs_kept = True

    def __init__(self, lake: Lake, names: Sequence[str] | None = None, grace: float = 0) -> None:
        super().__init__(lake, names, grace)
        self.tables: dict[str, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "tables": {}}

    def plan(self, tree: Tree) -> list[Split]:
        """A split for the directory of each table; the tree is not used."""
        assert self.lake is not None
        lake = self.lake
        own_name = None if lake.writer is None else lake.writer.name
        is_busy = not is_remote(lake.path) and any(name != own_name for name in living(lake.path))
        until = time.time() - (max(self.grace, YOUNG) if is_busy else self.grace)
        return self._number(
            Look(name, folder=lake.folder_of(name), lake=lake.path, until=until) for name in self._tables()
        )

    def follow(self, results: Sequence[LookResult]) -> list[Split]:
        """The metadata, once everything is listed: what is committed from now on is not among it."""
        assert self.lake is not None
        if not self.io:
            looks: list[Look] = []
            for name in self._tables():
                table = load_table(self.lake, name)
                self.tables[name] = table
                looks += self._lists(name, table, [(snapshot, True) for snapshot in table.snapshots()])
            if looks:
                return self._number(looks)
        if self.are_read:
            return []
        self.are_read = True
        return self._number(self._manifests(results))

    def commit(self, results: Sequence[LookResult]) -> Mapping[str, UnlistedFiles]:
        """What was found; nothing is removed."""
        unlisted = {}
        for name, table in self.tables.items():
            table_results = [result for result in results if result.table == name]
            listed = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
            listed |= {snapshot.manifest_list for snapshot in table.snapshots()}
            listed |= {path for result in table_results for path in (*result.manifests, *result.kept)}
            named = same_files(listed)
            sizes = {path: size for result in table_results for path, size in result.there.items()}
            unlisted[name] = UnlistedFiles(
                0, {path: size for path, size in sizes.items() if not same_files([path]) <= named}
            )
        return unlisted


class Remove(Job[SplitResult, None]):
    """Deletes files of a lake, in tasks. One that is gone already is fine."""

    def __init__(self, lake: Lake, files: Mapping[str, Iterable[str]]) -> None:
        """`files` are paths, by table."""
        self.lake: Lake | None = lake
        self.stage = self.path = lake.path
        self.files = {name: list(paths) for name, paths in files.items()}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "lake": None, "files": {}}

    def plan(self, tree: Tree) -> list[Split]:
        """Splits of some hundred files each; the tree is not used."""
        assert self.lake is not None
        contents: list[tuple[Any, tuple[str, ...]]] = []
        for name, paths in self.files.items():
            io = load_table(self.lake, name).io if paths else None
            contents += [(io, share) for share in packed(paths, lambda _: 1, FILES)]
        return [Split(number, len(content[1]), content) for number, content in enumerate(contents)]

    def work(self, split: Split, stage: Stage) -> SplitResult:
        """Delete the files of a split."""
        io, paths = split.content
        for path in paths:
            remove_file(self.path, path, io)
            stage.advance(1)
        return SplitResult(split.number)

    def commit(self, results: Sequence[SplitResult]) -> None:
        """Nothing is left to do."""


#: Runs a job to its end.
Run = Callable[[Job[Any, Any]], Any]


def run_here(job: Job[Any, Any]) -> Any:
    """Run a job in this thread, one split after another."""
    splits = job.plan(Tree((), ()))
    done: list[Any] = []
    while splits:
        done += [job.work(split, Stage(str(job.stage), f"{split.number:05d}")) for split in splits]
        splits = job.follow(done)
    return job.commit(done)


def load_table(lake: Lake, name: str) -> Any:
    """A table of a lake. AccessError if it no longer exists."""
    table = lake.load(name)
    if table is None:
        raise AccessError(f"{lake.path}: table {name} no longer exists")
    return table


#: Data files below this size are small.
SMALL = TARGET // SHARE


@dataclass(frozen=True, slots=True)
class TableStatus:
    """A table of a lake: rows, data files with their bytes, snapshots, the sources it knows, the time of its last change."""

    name: str
    rows: int
    files: int
    small: int
    size: int
    snapshots: int
    sources: int
    changed: float | None


@dataclass(slots=True)
class TableChange:
    """What upkeep did to a table, or would do in a dry run."""

    name: str
    expired: int = 0
    removed: list[str] = field(default_factory=list)
    removed_size: int = 0
    joined: int = 0
    written: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether there was nothing to do."""
        return not (self.expired or self.removed or self.joined)


def status(lake: Lake) -> Iterator[TableStatus]:
    """What every table of a lake holds, from its metadata alone."""
    for name in lake.tables():
        table = load_table(lake, name)
        history = history_of(table)
        with lake.access():
            tasks = list(table.scan().plan_files())
        newest = next(iter(newest_first(table)), None)
        yield TableStatus(
            name,
            sum(task.file.record_count for task in tasks),
            len(tasks),
            sum(task.file.file_size_in_bytes < SMALL for task in tasks),
            sum(task.file.file_size_in_bytes for task in tasks),
            len(table.snapshots()),
            len(history.sources) or sum(len(unit.sources) for unit in history.units.values()),
            None if newest is None else newest.timestamp_ms / 1000,
        )


def keep(
    lake: Lake,
    run: Run,
    *,
    expire_after: float | None,
    clean_after: float | None,
    compact: bool = False,
    target: int = TARGET,
    sort_by: Sequence[str] | None = None,
    dry_run: bool = False,
) -> list[TableChange]:
    """Join, expire and remove, as asked, by jobs that `run` runs. What was done to each table, or would be."""
    changes = {name: TableChange(name) for name in lake.tables() if name in known_tables()}
    if compact:
        for name, counts in _join_small(lake, run, target, sort_by, dry_run=dry_run).items():
            changes[name].joined, changes[name].written = counts
    outcomes: list[Mapping[str, UnlistedFiles]] = []
    if expire_after is not None:
        outcomes.append(run(Expire(lake, list(changes), expire_after, dry_run=dry_run)))
        _remove(lake, run, outcomes[-1], dry_run=dry_run)
    if clean_after is not None:
        outcomes.append(run(Orphans(lake, list(changes), clean_after)))
        _remove(lake, run, outcomes[-1], dry_run=dry_run)
    for outcome in outcomes:
        for name, unlisted in outcome.items():
            change = changes[name]
            change.expired += unlisted.expired
            change.removed += [path for path in unlisted.files if path not in change.removed]
            change.removed_size += sum(unlisted.files.values())
    return list(changes.values())


def _join_small(
    lake: Lake, run: Run, target: int, sort_by: Sequence[str] | None, *, dry_run: bool
) -> Mapping[str, tuple[int, int]]:
    job = Join(lake, target=target, sort_by=sort_by)
    if dry_run:
        lots = job.lots()
        names = dict.fromkeys(lot.table for lot in lots)
        by_table = {name: [lot for lot in lots if lot.table == name] for name in names}
        return {
            name: (sum(len(lot.urls) for lot in table_lots), len(table_lots)) for name, table_lots in by_table.items()
        }
    try:
        done: Mapping[str, tuple[int, int]] = run(job)
        return done
    finally:
        job.clean()


def _remove(lake: Lake, run: Run, unlisted: Mapping[str, UnlistedFiles], *, dry_run: bool) -> None:
    if not dry_run and any(files.files for files in unlisted.values()):
        run(Remove(lake, {name: files.files for name, files in unlisted.items()}))
