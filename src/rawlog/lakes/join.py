"""Join: the rows of small data files of a lake written into few large ones, as a job. One commit per table exchanges the files.

The rows of a table that has a sort order are merged in it; those of others keep the order in which they were added. Folded tables are
left as they are: their files are replaced unit by unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rawlog.io.output import scratch
from rawlog.io.storage import file_system
from rawlog.lakes import commits
from rawlog.lakes.lake import Lake
from rawlog.lakes.names import Cut, data_path, known_tables, order_id, parse_cuts, parse_order
from rawlog.lakes.parquet import ROW_GROUP, Sheets, WrittenFile, check_order, merge_sorted, order_of
from rawlog.lakes.payload import fit_batch, stored
from rawlog.lakes.state import history_of
from rawlog.model.errors import AccessError
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

        def exchange(target: Any, _: object) -> None:
            present = {str(task.file.file_path) for task in target.scan().plan_files()}
            if not old <= present:
                raise AccessError(f"{lake.path}: {name} was changed meanwhile; nothing was joined")
            commits.exchange(target, joined, summary, old.__contains__)

        lake.change(lambda: lake.load(name), None, exchange)


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
