"""Join: the rows of small data files of a lake written into few large ones, as a job. One commit per table exchanges the files.

Rows and their order stay the same. Folded tables are left as they are: their files are replaced unit by unit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rawlog.core.errors import AccessError
from rawlog.core.tables import Table
from rawlog.io.storage import file_system
from rawlog.jobs.job import Done, Job, Split, Stage, packed
from rawlog.jobs.lake import Lake, commits
from rawlog.jobs.lake.names import data_path, known_tables, url
from rawlog.jobs.lake.payload import fitted, stored
from rawlog.jobs.lake.state import history_of
from rawlog.jobs.partitions import Cut, parse_cuts
from rawlog.jobs.sheet import Sheets, Written
from rawlog.reading.tree import Tree

#: About the size of a joined data file. Those below an eighth of it are small; fewer small ones than this are left as they are.
TARGET, SHARE, FEW = 256 << 20, 8, 4
#: Rows that are read at a time.
ROWS = 1 << 16


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


@dataclass(frozen=True, slots=True)
class Joined(Done):
    """The files of a lot, and those with their rows."""

    table: str
    old: tuple[str, ...]
    written: tuple[Written, ...]


class Join(Job[Joined, Mapping[str, tuple[int, int]]]):
    """Joins the small data files of some tables of a lake that is open for writing. The outcome: how many there were and are, by table."""

    def __init__(self, lake: Lake, names: Sequence[str] | None = None, target: int = TARGET) -> None:
        """`names` are those of tables in the lake, None for all; `target` is about the size of a joined file."""
        self.lake: Lake | None = lake
        self.stage = lake.path
        self.names, self.target = names, target
        self.runs: dict[str, str] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "lake": None}

    def lots(self) -> list[Lot]:
        """What there is to join."""
        lake = self.lake
        assert lake is not None
        found: list[Lot] = []
        for name in self.names if self.names is not None else lake.tables():
            table = lake.load(name)
            if table is None:
                raise AccessError(f"{lake.path}: table {name} no longer exists")
            if name in known_tables() and not history_of(table).units:
                found += self._lots_of(name, table)
        return found

    def _lots_of(self, name: str, table: Any) -> list[Lot]:
        """Small data files of the same partition, in the order they were added."""
        assert self.lake is not None
        with self.lake.access():
            files = [task.file for task in table.scan().plan_files() if not task.delete_files]
        by_partition: dict[str, list[Any]] = {}
        for file in files:
            if file.file_size_in_bytes < self.target // SHARE and file.spec_id == table.spec().spec_id:
                by_partition.setdefault(repr(file.partition), []).append(file)
        lots = [
            lot
            for some in by_partition.values()
            for lot in packed(
                sorted(some, key=lambda one: str(one.file_path)), lambda one: int(one.file_size_in_bytes), self.target
            )
            if len(lot) >= FEW
        ]
        if not lots:
            return []
        if name not in self.runs:
            self.runs[name] = "" if self.lake.writer is None else self.lake.writer.new_run()
        cuts, known = parse_cuts(table), self.lake.table_of(name)
        assert known is not None
        return [
            Lot(
                self.runs[name],
                name,
                tuple(str(one.file_path) for one in lot),
                sum(int(one.file_size_in_bytes) for one in lot),
                cuts,
                stored(known),
            )
            for lot in lots
        ]

    def plan(self, tree: Tree) -> list[Split]:
        """A split for each lot; the tree is not used."""
        assert self.lake is not None
        assert self.lake.writer is not None, "only inside `with`"
        return [Split(number, lot.size, lot) for number, lot in enumerate(self.lots())]

    def work(self, split: Split, stage: Stage) -> Joined:
        """Write the rows of a lot. AccessError if a data file cannot be read."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        lot: Lot = split.content
        table = lot.stored
        path = data_path(stage.path, lot.table, lot.run)
        sheets = Sheets(lambda _: path, f"joined-{stage.name}", {table.name: lot.cuts})
        try:
            for one in lot.urls:
                system, inner = file_system(one)
                with pq.ParquetFile(system.open_input_file(inner)) as file:
                    for batch in file.iter_batches(ROWS):
                        sheets.add(table, fitted(table, batch))
            stage.advance(lot.size)
            return Joined(split.number, lot.table, lot.urls, sheets.close())
        except BaseException as error:
            sheets.discard()
            if isinstance(error, (OSError, pa.ArrowException)) and not isinstance(error, AccessError):
                raise AccessError(f"{lot.table}: {str(error).splitlines()[0]}") from None
            raise

    def commit(self, done: Sequence[Joined]) -> Mapping[str, tuple[int, int]]:
        """Exchange the files, one commit per table. AccessError if another run changed them meanwhile."""
        counts: dict[str, tuple[int, int]] = {}
        for name in dict.fromkeys(one.table for one in done):
            old = {path for one in done if one.table == name for path in one.old}
            made = [url(file.path) for one in done if one.table == name for file in one.written]
            self._exchange(name, old, made)
            counts[name] = len(old), len(made)
        return counts

    def clean(self) -> None:
        """Remove what was written and not committed."""
        assert self.lake is not None
        for run in filter(None, self.runs.values()):
            self.lake.sweep(run)

    def _exchange(self, name: str, old: set[str], made: list[str]) -> None:
        lake = self.lake
        assert lake is not None
        summary = {"rawlog.joined": self.runs[name]}

        def exchange(target: Any, _: object) -> None:
            present = {str(task.file.file_path) for task in target.scan().plan_files()}
            if not old <= present:
                raise AccessError(f"{lake.path}: {name} was changed meanwhile; nothing was joined")
            commits.exchange(target, made, summary, old.__contains__)

        lake.change(lambda: lake.load(name), None, exchange)
