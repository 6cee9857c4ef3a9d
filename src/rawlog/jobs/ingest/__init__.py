"""Ingest: recognise, verify and decode everything in a tree into the tables of a lake.

Plan: what each table does not hold yet, by its own snapshots. Work: Parquet files of one split's rows. Commit: one for each table.
Nothing is taken twice and nothing is lost, whenever a run dies: a byte counts as taken by the same commit that adds its rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from rawlog import registry
from rawlog.errors import AccessError, DataError, unknown
from rawlog.findings import Findings
from rawlog.format import File
from rawlog.frames import Frames
from rawlog.inspection import Measure, inspect_file, inspect_group
from rawlog.jobs.ingest.commit import Commit
from rawlog.jobs.ingest.folds import by_unit, fold
from rawlog.jobs.ingest.plan import Plan, packed
from rawlog.jobs.ingest.values import Decoded, Ingested, Reached, Recut, Task
from rawlog.jobs.job import Job, Split, Stage
from rawlog.jobs.lake import Lake, Overtaken
from rawlog.jobs.lake.names import check_url, lake_name, unit_mark
from rawlog.jobs.partitions import Cut, check_names
from rawlog.jobs.sheet import Sheets
from rawlog.output import refuse_nested
from rawlog.parts import Part
from rawlog.rows import read
from rawlog.select import Selection
from rawlog.storage import is_remote
from rawlog.tables import FILES, FINDINGS, Table
from rawlog.tree import Tree

__all__ = ["Ingest", "Ingested"]

#: How often a run is planned anew because others took its sources, or because a file's index lies.
ATTEMPTS = 10


class Ingest(Job[Decoded, Ingested]):
    """Take a tree into a lake. Use as a context manager: it removes what dead runs left, and what it left itself if it fails."""

    def __init__(
        self,
        lake: str,
        *,
        catalog: str | None = None,
        tables: Sequence[str] | None = None,
        selection: Selection | None = None,
        partition_by: Sequence[str] | None = None,
    ) -> None:
        """`tables` are names of tables to fill, all that the files have if None. OptionError for an unknown one.

        `partition_by` says how tables that are new are cut into partitions: by topic, partition, hour, day, month or year.
        AccessError if `lake` is none and cannot be made one.
        """
        if tables is not None:
            for name in tables:
                registry.table_named(name)
        self.names = None if tables is None else tuple(dict.fromkeys(tables))
        self.selection = (selection or Selection()).replace(errors="skip", columns=None, limit=None)
        check_names(partition_by or ())
        self.lake: Lake | None = Lake(lake, catalog=catalog, create=True)
        self.stage = self.lake.path
        self.partition_by = None if partition_by is None else check_names(partition_by)
        self.cuts: Mapping[str, Sequence[Cut]] = {}
        self.uncut: frozenset[str] = frozenset()
        self._plan: Plan | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "lake": None, "_plan": None}

    def __enter__(self) -> Self:
        assert self.lake is not None
        self.lake.__enter__()
        try:
            self.lake.sweep()
        except BaseException:
            self.lake.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self.lake is not None
        try:
            if self._plan is not None:
                self.lake.sweep(self._plan.run)
        finally:
            self.lake.__exit__()

    def complete(self, run: Callable[[], Ingested]) -> Ingested:
        """Run with an engine, and again as long as the plan turns out not to hold.

        That is so where indexes lie about where frames begin (those files are read whole then), and where another run took
        some of the sources meanwhile (what is left is planned anew).
        """
        for _ in range(ATTEMPTS):
            try:
                return run()
            except Recut as recut:
                self.uncut |= recut.paths
            except Overtaken:
                continue
        return run()

    # Plan -------------------------------------------------------------------------------------------------------------

    def plan(self, tree: Tree) -> list[Split]:
        """Splits for all that the lake's tables do not hold yet."""
        assert self.lake is not None
        refuse_nested(self.lake.path, tree.sources)
        for root in tree.roots:
            check_url(root)
        if self._plan is not None:
            self.lake.sweep(self._plan.run)
        self._plan = planned = Plan(
            self.lake,
            self._inside(tree),
            tree,
            self._tables(tree),
            self.selection,
            self.uncut,
            self.partition_by,
        )
        self.cuts = planned.cuts
        tasks = [Task(planned.run, files=files) for files in packed(planned.to_inspect, lambda file: file.size)]
        tasks += [Task(planned.run, groups=groups) for groups in packed(planned.groups, _bytes)]
        tasks += [Task(planned.run, pieces=pieces) for pieces in packed(planned.pieces, lambda piece: piece.size)]
        units = by_unit([one for folds in planned.folds.values() for one in folds])
        for run in packed(units, lambda unit: sum(one.size for one in unit)):
            tasks.append(Task(planned.run, folds=tuple(one for unit in run for one in unit)))
        return [Split(number, _size(task), task) for number, task in enumerate(tasks)]

    def _inside(self, tree: Tree) -> Tree:
        """The files that are wanted: none of the lake itself."""
        assert self.lake is not None
        lake = self.lake.path + "/"
        kept = (file for file in tree if self.selection.takes_file(file) and not file.path.startswith(lake))
        return Tree(tree.roots, tuple(kept))

    def _tables(self, tree: Tree) -> list[Table]:
        """The tables to fill by decoding or folding: without `files` and `findings`, which come of looking."""
        able = [name for name in tree.tables if name not in (FILES.name, FINDINGS.name)]
        if self.names is not None:
            for name in self.names:
                if name not in tree.tables and name not in registry.tables():
                    raise unknown("table", name, tree.tables)
            able = [name for name in able if name in self.names]
        return [registry.table_named(name) for name in able]

    # Work -------------------------------------------------------------------------------------------------------------

    def work(self, split: Split, stage: Stage) -> Decoded:
        """Look at the split's files, decode its pieces, and write what comes of it as Parquet below the lake."""
        task: Task = split.task
        sheets = Sheets(lambda table: _data_path(stage.path, table, task.run), stage.name, self.cuts)
        try:
            if task.pieces:
                return self._decode(split.number, task, sheets, stage)
            if task.folds:
                return self._fold(split.number, task, sheets, stage)
            return self._inspect(split.number, task, sheets, stage)
        except BaseException:
            sheets.discard()
            raise

    def _inspect(self, number: int, task: Task, sheets: Sheets, stage: Stage) -> Decoded:
        every = Findings()
        for file in task.files:
            measure = Measure(file)

            def see(frames: Frames, measure: Measure = measure) -> None:
                measure.see(frames)
                stage.advance(frames.reached, len(frames))

            every.items += inspect_file(file, None, see).items
            sheets.add(FILES, measure.row())
        for group in task.groups:
            every.items += inspect_group(group).items
            stage.advance(_bytes(group))
        for batch in every.to_arrow().to_batches():
            sheets.add(FINDINGS, batch)
        return Decoded(number, sheets.close(), files=task.files, errors=every.errors, warnings=every.warnings)

    def _decode(self, number: int, task: Task, sheets: Sheets, stage: Stage) -> Decoded:
        reached: list[Reached] = []
        for piece in task.pieces:
            for name, part in piece.parts:
                table = registry.table_named(name)
                trace = _Trace(part, stage if part is piece.parts[0][1] else None)
                try:
                    for batch in read(part, table, self.selection, None, trace.see):
                        sheets.add(table, batch)
                        stage.advance(0, 0, batch.num_rows)
                except AccessError:
                    # Gone before it was opened, as the oldest segments of a live log are: left out, and looked for again.
                    if trace.windows or os.path.lexists(part.file.path) or is_remote(part.file.path):
                        raise
                    continue
                except DataError:
                    # A header that cannot be, a version nobody knows: verification says so; what came before it is in.
                    pass
                reached.append(Reached(name, part, trace.stop, trace.frames))
        return Decoded(number, sheets.close(), reached=tuple(reached))

    def _fold(self, number: int, task: Task, sheets: Sheets, stage: Stage) -> Decoded:
        notes: list[str] = []
        folded = []
        for one in task.folds:
            table = registry.table_named(one.table)
            mark = unit_mark(one.unit)
            try:
                for batch in fold(one, table, self.selection):
                    sheets.add(table, batch, mark)
            except (AccessError, DataError) as error:
                # Whole or not at all: part of a state would be a wrong one.
                sheets.forget(table, mark)
                notes.append(f"{one.table} of {one.unit} stays as it was: {str(error).splitlines()[0]}")
                continue
            sheets.finish(table, mark)
            folded.append(one)
            stage.advance(one.size)
        return Decoded(number, sheets.close(), folded=tuple(folded), notes=tuple(notes))

    # Commit -----------------------------------------------------------------------------------------------------------

    def commit(self, done: Sequence[Decoded]) -> Ingested:
        """One commit for each table, the one for `jobs` last. What an earlier call committed stays as it is."""
        assert self.lake is not None
        assert self._plan is not None
        return Commit(self.lake, self._plan, done).run()


class _Trace:
    """How far the windows of a part go."""

    def __init__(self, part: Part, stage: Stage | None) -> None:
        self.stage = stage
        self.stop = part.start or 0
        self.frames = self.windows = 0

    def see(self, frames: Frames) -> None:
        self.windows += 1
        self.frames += len(frames)
        if self.stage is not None:
            self.stage.advance(max(0, frames.reached_in_file - self.stop), len(frames))
        self.stop = frames.reached_in_file


def _data_path(lake: str, table: Table, run: str) -> str:
    return f"{lake}/{lake_name(table).replace('.', '/')}/data/{run}"


def _size(task: Task) -> int:
    folded = {one.unit: one.size for one in task.folds}
    looked_at = _bytes(task.files) + sum(map(_bytes, task.groups))
    return looked_at + sum(piece.size for piece in task.pieces) + sum(folded.values())


def _bytes(files: Sequence[File]) -> int:
    return sum(file.size for file in files)
