"""Commit: what the splits wrote becomes part of the tables, one commit each, together with a record of its sources."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rawlog import __version__, registry
from rawlog.lakes import values
from rawlog.lakes.ingest_plan import Plan
from rawlog.lakes.lake import Lake
from rawlog.lakes.names import JOBS, data_path, lake_name
from rawlog.lakes.parquet import Sheets, WrittenFile
from rawlog.lakes.state import RowRange, SourceProgress
from rawlog.lakes.values import (
    DistrustError,
    IngestResult,
    IngestSplitResult,
    PartProgress,
    RecutError,
)
from rawlog.model.finding import Findings
from rawlog.model.format import File
from rawlog.model.table import (
    FILES,
    FINDINGS,
    RECORDS,
    Table,
)
from rawlog.reading.inspect import FileCheck, RuleChoice, file_rows

if TYPE_CHECKING:
    import pyarrow as pa


class Commit:
    """The end of a run: what the splits wrote becomes part of the tables."""

    def __init__(
        self,
        lake: Lake,
        planned: Plan,
        results: Sequence[IngestSplitResult],
        merged: Sequence[FileCheck] = (),
        records: Table = RECORDS,
    ) -> None:
        """`merged` are files that were read in splits: their rows of `files` and `findings` are written here. `records` is the table of
        that name with the columns that the splits wrote.
        """
        self.records = records
        self.lake, self.plan, self.results, self.merged = lake, planned, results, merged
        self.errors = sum(result.errors for result in results)
        self.warnings = sum(result.warnings for result in results)
        self.losing = [place for result in results for place in result.losing]
        readings = {path: reading for result in results for path, reading in result.readings.items()}
        self.losses = [entry for result in results for entry in result.absent]
        self.losses += [entry for _, reading in sorted(readings.items()) for entry in reading.entries]
        self.rows: dict[str, int] = {}
        self.files: dict[str, list[WrittenFile]] = {}
        self.damaged = {path for result in results for path in result.damaged}
        #: Data files from which rows are removed, by table, and the files with the rest of their rows.
        self.old: dict[str, list[str]] = {}
        for result in results:
            for written in result.written:
                self._count(written)
            for thinned in result.thinned:
                self.old.setdefault(thinned.table, []).append(thinned.url)
                self.files.setdefault(thinned.table, []).extend(thinned.written)

    def _count(self, written: WrittenFile) -> None:
        self.files.setdefault(written.table, []).append(written)
        self.rows[written.table] = self.rows.get(written.table, 0) + written.rows

    def run(self) -> IngestResult:
        planned = self.plan
        sources = {table.name: self._sources(table) for table in planned.tables}
        inspected = [file for result in self.results for file in result.files] + [check.file for check in self.merged]
        if self.merged:
            self._write_merged()
        if distrusted := self.damaged & {path for paths in planned.rewritten.removed.values() for path in paths}:
            raise DistrustError(distrusted)
        for table in sorted(planned.tables, key=_order):
            self._commit_rows(table, sources[table.name])
        folded = [table for table in planned.folded if self._commit_fold(table)]
        if inspected:
            progress_by_path = {
                path: source for table_sources in sources.values() for path, source in table_sources.items()
            }
            seen = {file.path: _inspected_state(file, progress_by_path.get(file.path)) for file in inspected}
            stores = {path: facts for result in self.results for path, facts in result.stores.items()}
            self._commit_inspected(FILES, seen, stores=stores)
            self._commit_inspected(FINDINGS, seen)
        for table in (self.records, FILES, FINDINGS, JOBS):
            self.lake.ensure(table, planned.cuts.get(table.name, ()), planned.orders.get(table.name, ()))
        size = sum(reached.stop - (reached.part.start or 0) for reached in self._first_reached())
        outcome = self._outcome(
            len({*(file.path for file in inspected), *(p for s in sources.values() for p in s)}), size
        )
        if inspected or folded or any(sources.values()):
            self._write_job(outcome)
        return outcome

    def _commit_rows(self, table: Table, sources: Mapping[str, SourceProgress]) -> None:
        """Add what was decoded to a table; rows of sources that were rewritten are removed by the same commit."""
        recorded, removed = self.plan.histories[table.name].sources, self.plan.rewritten.removed.get(table.name, ())
        rows: dict[str, list[RowRange]] | None = None
        if table.name == RECORDS.name:
            rows = {}
            for result in self.results:
                for reached in result.reached:
                    if reached.table == table.name and reached.rows:
                        rows.setdefault(reached.part.file.path, []).extend(reached.rows)
        self._commit(
            table,
            sources,
            before={path: recorded.get(path) for path in (*sources, *removed)},
            cuts=self.plan.cuts[table.name],
            removed=removed,
            old=self.old.get(table.name, ()),
            rows=rows,
        )

    def _commit_inspected(self, table: Table, seen: Mapping[str, SourceProgress], **more: Any) -> None:
        """Add the rows of files that were inspected, in place of their earlier ones."""
        recorded, gone = self.plan.histories[table.name].sources, self.plan.rewritten.removed.get(table.name, ())
        self._commit(
            table,
            seen,
            before={path: recorded.get(path) for path in (*seen, *gone)},
            removed=gone,
            old=self.old.get(table.name, ()),
            replaced=self.plan.replaced.get(table.name),
            seen_files=self.plan.seen_files.get(table.name, frozenset()),
            **more,
        )

    def _commit(self, table: Table, sources: Mapping[str, SourceProgress], **more: Any) -> None:
        table = self.records if table.name == RECORDS.name else table
        if sources or more.get("removed"):
            self.lake.commit(
                table,
                self.plan.run,
                self.files.get(table.name, []),
                sources,
                selection=self.plan.chosen,
                order=self.plan.orders.get(table.name, ()),
                **more,
            )
        else:
            self.lake.ensure(table, more.get("cuts", ()), self.plan.orders.get(table.name, ()))

    def _commit_fold(self, table: Table) -> bool:
        """Replace the units of a folded table that were folded again; whether there were any."""
        folds = [fold for result in self.results for fold in result.folded if fold.table == table.name]
        if not folds:
            self.lake.ensure(table)
            return False
        units = self.plan.histories[table.name].units
        self.lake.commit(
            table,
            self.plan.run,
            self.files.get(table.name, []),
            {},
            units=values.units(folds, self.plan.chosen),
            units_before={fold.unit: units.get(fold.unit) for fold in folds},
        )
        return True

    def _sources(self, table: Table) -> dict[str, SourceProgress]:
        """How far every source of a table is ingested now. RecutError if the parts of a file do not fit together."""
        by_path: dict[str, list[PartProgress]] = {}
        for result in self.results:
            for reached in result.reached:
                if reached.table == table.name:
                    by_path.setdefault(reached.part.file.path, []).append(reached)
        gaps: set[str] = set()
        progress: dict[str, SourceProgress] = {}
        for path, parts in by_path.items():
            parts.sort(key=lambda reached: reached.part.start or 0)
            gaps |= {path for reached in parts[:-1] if reached.stop != reached.part.stop}
            before = self.plan.starts[table.name][path]
            file = parts[0].part.file
            frames = (before.frames if before is not None else 0) + sum(reached.frames for reached in parts)
            stop, mark = parts[-1].stop, parts[-1].mark
            if before is not None and before.stop > stop:
                stop, mark = before.stop, before.mark
            progress[path] = SourceProgress(file.size, file.modified, stop, frames, mark)
        if gaps:
            raise RecutError(gaps)
        return progress

    def _first_reached(self) -> Iterator[PartProgress]:
        """Each span once, whatever the number of its tables."""
        seen: set[tuple[str, int | None]] = set()
        for result in self.results:
            for reached in result.reached:
                key = (reached.part.file.path, reached.part.start)
                if key not in seen:
                    seen.add(key)
                    yield reached

    def _write_merged(self) -> None:
        """Rows of `files` and `findings` for files that were read in splits, as one more data file of each table."""
        all_findings, rows = Findings(), []
        for checked in self.merged:
            assert checked.measure is not None
            rows.append(checked.measure.values())
            findings = checked.finish(RuleChoice())
            self.losing += values.losing(findings, checked.file)
            all_findings.add(findings)
            self.damaged |= {checked.file.path} if findings.errors else set()
        self.errors += all_findings.errors
        self.warnings += all_findings.warnings
        self._write(FILES, "merged", [file_rows(rows)])
        self._write(FINDINGS, "merged", all_findings.to_arrow().to_batches())

    def _write(self, table: Table, name: str, batches: Iterable[pa.RecordBatch]) -> None:
        """Write one more data file, unless an earlier call has committed it."""
        if self.plan.run in self.lake.history(lake_name(table)).runs:
            return
        sheets = Sheets(
            lambda sheet_table: data_path(self.lake.path, sheet_table, self.plan.run), name, orders=self.plan.orders
        )
        for batch in batches:
            sheets.add(table, batch)
        for written in sheets.close():
            self._count(written)

    def _outcome(self, files: int, size: int) -> IngestResult:
        tables = (*self.plan.tables, *self.plan.folded, FILES, FINDINGS)
        rows_by_table = {lake_name(table): self.rows.get(table.name, 0) for table in tables}
        return IngestResult(
            self.plan.run,
            self.lake.path,
            rows_by_table,
            files,
            size,
            len(self.plan.tree) - files - len(self.plan.refused),
            self.errors,
            self.warnings,
            tuple(sorted(self.plan.refused.items())),
            (*self.plan.notes(), *(note for result in self.results for note in result.notes)),
            tuple(self.losses),
            values.unexplained(self.losing, self.losses),
        )

    def _write_job(self, outcome: IngestResult) -> None:
        import pyarrow as pa

        row = {
            "run": outcome.run,
            "started": int(self.plan.started * 1e6),
            "finished": int(time.time() * 1e6),
            "version": __version__,
            "paths": list(self.plan.tree.roots),
            "selection": self.plan.chosen,
            "files": outcome.files,
            "size": outcome.size,
            "tables": list(outcome.tables.items()),
            "errors": outcome.errors,
            "warnings": outcome.warnings,
            "verdict": outcome.verdict,
        }
        self._write(JOBS, "job", [pa.RecordBatch.from_pylist([row], schema=JOBS.schema)])
        self.lake.commit(JOBS, outcome.run, self.files.get(JOBS.name, []), {})


def _order(table: Table) -> tuple[bool, bool]:
    """Tables of messages last: until all of them are committed, their state tells that a log was rewritten. Of those `records` first: rows
    of the others refer to its rows.
    """
    is_of_messages = bool(registry.formats_with(table) & registry.formats_with(RECORDS))
    return is_of_messages, table.name != RECORDS.name


def _inspected_state(file: File, taken: SourceProgress | None) -> SourceProgress:
    """The state of a file that was inspected; `taken` is that of its rows in another table, if it was read for one."""
    stop, mark = (file.size, 0) if taken is None else (taken.stop, taken.mark)
    return SourceProgress(file.size, file.modified, stop, 0, mark)
