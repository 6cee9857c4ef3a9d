"""Ingest: recognise, verify and decode everything in a tree into the tables of a lake.

Plan: what each table does not hold yet, according to its own snapshots. Work: Parquet files with the rows of one split. Commit: one for
each table. Nothing is ingested twice and nothing is lost, whenever a run dies: the commit that adds rows also records their source bytes.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from rawlog import __version__, registry
from rawlog.io.output import refuse_nested
from rawlog.io.storage import is_remote, remembering, stored_path
from rawlog.io.walk import walk
from rawlog.lakes import ingest_plan
from rawlog.lakes.ingest_plan import (
    DistrustError,
    FindingPlace,
    IngestResult,
    IngestSplit,
    IngestSplitResult,
    PartProgress,
    Plan,
    RecutError,
    SettledSpans,
    SplitParts,
    by_unit,
    fold,
    joint_codes,
    losing,
    splits_of,
    unexplained,
)
from rawlog.lakes.lake import Lake, OvertakenError
from rawlog.lakes.names import JOBS, Cut, check_names, check_url, data_path, known_tables, lake_name, unit_mark
from rawlog.lakes.parquet import Sheets, WrittenFile, check_order
from rawlog.lakes.payload import References, stored
from rawlog.lakes.rewrites import check_policy, findings_among, mark, thin
from rawlog.lakes.state import RowRange, SourceProgress
from rawlog.lakes.upkeep import keep, run_here
from rawlog.model.errors import AccessError, DataError, OptionError, RawlogError, unknown
from rawlog.model.finding import Findings
from rawlog.model.format import File, lasting
from rawlog.model.frames import Frames
from rawlog.model.job import Job, Split, Stage
from rawlog.model.outline import Reading
from rawlog.model.report import Entry
from rawlog.model.store import Store, join_stores, unread_size
from rawlog.model.table import FILES, FINDINGS, RECORDS, Table
from rawlog.reading.inspect import FileCheck, RuleChoice, check_file, file_rows, inspect_group, inspect_tree
from rawlog.reading.parts import choose_replicas, facts_of
from rawlog.reading.rows import Decoder, decode_streams
from rawlog.reading.select import Selection, Tally
from rawlog.reading.settlement import absent_stores, reading_of, settled_frames, settled_part, settles, store_key
from rawlog.reading.tree import Tree
from rawlog.values.transform import Decode, bind

if TYPE_CHECKING:
    import pyarrow as pa


#: How often a run is planned again because others ingested its sources, or because a file's index is wrong.
ATTEMPTS = 10


class Ingest(Job[IngestSplitResult, IngestResult]):
    """Ingest a tree into a lake. Use as a context manager: it removes leftovers of dead runs, and its own if it fails."""

    def __init__(
        self,
        lake: str,
        *,
        catalog: str | None = None,
        tables: Sequence[str] | None = None,
        selection: Selection | None = None,
        partition_by: Sequence[str] | None = None,
        sort_by: Sequence[str] | None = None,
        on_rewrite: str = "replace",
        decode: Decode | None = None,
    ) -> None:
        """`tables` are names of tables to fill, None for all that the files have. OptionError for an unknown one.

        `partition_by` is how new tables are partitioned: by topic, partition, hour, day, month, year or `bucket(N, COLUMN)`. `sort_by`
        are the columns that the rows of their data files are sorted by, whichever a table has. `on_rewrite` says what is done with the
        rows of files that were rewritten since the last run: `replace` them, `keep` them and take only later offsets, or `refuse` the
        files. `decode` puts decoded values next to the bytes of `records`.
        AccessError if `lake` is not a lake and cannot become one.
        """
        if tables is not None:
            for name in tables:
                registry.table_named(name)
        self.names = None if tables is None else tuple(dict.fromkeys(tables))
        #: Which rows, and how they are masked; and the same with the schemas of the tree that was planned.
        self.chosen = (selection or Selection()).replace(errors="skip", columns=None, limit=None)
        self.selection = self.chosen
        self.partition_by = None if partition_by is None else check_names(partition_by, list(known_tables().values()))
        self.sort_by = None if sort_by is None else check_order(sort_by, list(known_tables().values()))
        self.on_rewrite = check_policy(on_rewrite)
        self.lake: Lake | None = Lake(lake, catalog=catalog, create=True)
        self.stage = self.lake.path
        #: What decodes values, and the same with the schemas of the tree that was planned.
        self.decode_options = None if decode is None else Decode(decode.wishes, decode.source, keeps_bytes=True)
        self.decode: Decode | None = None
        self._decode_notes: list[str] = []
        self.cuts: Mapping[str, Sequence[Cut]] = {}
        self.orders: Mapping[str, Sequence[str]] = {}
        self.uncut: frozenset[str] = frozenset()
        self.damaged: frozenset[str] = frozenset()
        self._plan: Plan | None = None
        self._splits = 0
        self._merged: list[FileCheck] | None = None
        self._is_replaced = self._is_settled = False
        #: The splits that decode spans, by number.
        self._decoding: dict[int, IngestSplit] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "lake": None, "_plan": None, "_merged": None, "_decoding": {}}

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
                self.lake.sweep(self._plan.run, self._plan.histories)
        finally:
            self.lake.__exit__()

    def complete(self, run: Callable[[], IngestResult]) -> IngestResult:
        """Run with an engine, and again while the plan turns out to be wrong.

        It is wrong if an index is wrong about where frames begin (such files are then read whole), if a file that was rewritten turns out
        to be damaged (its rows are then not replaced), or if another run has ingested some of the sources meanwhile (the rest is planned
        again).
        """
        self.damaged = frozenset()
        for _ in range(ATTEMPTS):
            try:
                return run()
            except RecutError as recut:
                self.uncut |= recut.paths
            except DistrustError as distrusted:
                self.damaged |= distrusted.paths
            except OvertakenError:
                continue
        return run()

    # Plan -------------------------------------------------------------------------------------------------------------

    def plan(self, tree: Tree) -> list[Split]:
        """Splits for everything that the lake's tables do not hold yet."""
        with lasting():
            return self._plan_tree(tree)

    def _plan_tree(self, tree: Tree) -> list[Split]:
        assert self.lake is not None
        refuse_nested(self.lake.path, tree.sources)
        for root in tree.roots:
            check_url(root)
        if self._plan is not None:
            self.lake.sweep(self._plan.run, self._plan.histories)
        replica_notes: list[str] = []
        self._bind(tree)
        self.selection = bind(self.chosen, tree)
        with remembering():
            tree = choose_replicas(tree, self.selection, replica_notes.append)
            self._plan = planned = Plan(
                self.lake,
                self._inside(tree),
                tree,
                self._tables(tree),
                self.selection,
                self.uncut,
                self.partition_by,
                replica_notes,
                self.on_rewrite,
                self.damaged,
                self.sort_by,
            )
        planned.check_masked()
        self.cuts, self.orders = planned.cuts, planned.orders
        self._splits, self._merged, self._is_replaced, self._is_settled = 0, None, False, False
        splits = [
            IngestSplit(planned.run, files=files) for files in splits_of(planned.to_inspect, lambda file: file.size)
        ]
        splits += [IngestSplit(planned.run, spans=spans) for spans in splits_of(planned.spans, lambda span: span.size)]
        units = by_unit([folding for folds in planned.folds.values() for folding in folds])
        for run in splits_of(units, lambda unit: sum(folding.size for folding in unit)):
            splits.append(IngestSplit(planned.run, folds=tuple(folding for unit in run for folding in unit)))
        splits += [
            IngestSplit(planned.run, old_files=old_files)
            for old_files in splits_of(planned.old_files, lambda file: file.size)
        ]
        numbered = self._number(splits)
        self._decoding = {split.number: split.content for split in numbered if split.content.spans}
        return numbered

    def _bind(self, tree: Tree) -> None:
        """Find the schemas for the tree, and the columns of topics that the lake has already."""
        assert self.lake is not None
        self.decode, self._decode_notes = None, []
        if self.decode_options is not None:
            present = self.lake.table_of(lake_name(RECORDS)) or RECORDS
            self.decode, self._decode_notes = self.decode_options.bound(tree, self.selection).joined(present.schema)

    def _number(self, splits: Sequence[IngestSplit]) -> list[Split]:
        first, self._splits = self._splits, self._splits + len(splits)
        return [Split(first + number, _size(content), content) for number, content in enumerate(splits)]

    def follow(self, results: Sequence[IngestSplitResult]) -> list[Split]:
        """Once all files are read: files whose splits do not fit together, each in one split; and checks of several files together.
        Then again the spans of stores whose rows `repair` would not keep as they are stored. Then, once it is known which files were
        inspected: their earlier rows of `files` and `findings` are removed.
        """
        planned = self._plan
        assert planned is not None
        if self._merged is None and (splits := self._after_reading(planned, results)):
            return self._number(splits)
        if not self._is_settled:
            self._is_settled = True
            if splits := self._splits_to_settle(planned, results):
                return self._number(splits)
        if self._is_replaced:
            return []
        self._is_replaced = True
        assert self.lake is not None
        old_files = planned.replace_inspected(self.lake, results, self._merged or ())
        return self._number(
            [IngestSplit(planned.run, old_files=files) for files in splits_of(old_files, lambda file: file.size)]
        )

    def _after_reading(self, planned: Plan, results: Sequence[IngestSplitResult]) -> list[IngestSplit]:
        again: list[File] = []
        self._merged = _merge_files(results, again)
        summaries = {path: summary for result in results for path, summary in result.summaries.items()}
        summaries |= {checked.file.path: checked.summary for checked in self._merged if checked.summary is not None}
        stores = [group.with_summaries(summaries) for group in planned.groups]
        splits = [IngestSplit(planned.run, files=(file,)) for file in again]
        splits += [IngestSplit(planned.run, groups=groups) for groups in splits_of(stores, unread_size)]
        if again or self._merged or any(result.files for result in results):
            splits.append(IngestSplit(planned.run, tree=join_stores(planned.tree.files, stores)))
            assert self.lake is not None
            files = planned.list_findings(self.lake)
            splits += [IngestSplit(planned.run, found_in=urls) for urls in splits_of(files, lambda _: 0)]
        return splits

    def _splits_to_settle(self, planned: Plan, results: Sequence[IngestSplitResult]) -> list[IngestSplit]:
        """The splits with spans of stores that are read in pieces, once more; each such store where its first span was."""
        readings = {
            key: reading for result in results for key, reading in result.readings.items() if reading.pieces is not None
        }
        results_by_number = {result.number: result for result in results}
        spans: dict[str, list[SplitParts]] = {}
        reached: dict[str, list[PartProgress]] = {}
        owners: dict[str, int] = {}
        for number, split in self._decoding.items():
            for span in split.spans:
                if (key := store_key(span.file)) in readings and _is_of_log(span):
                    owners.setdefault(key, number)
                    spans.setdefault(key, []).append(span)
                    of_file = [
                        reach for reach in results_by_number[number].reached if reach.part.file.path == span.file.path
                    ]
                    reached.setdefault(key, []).extend(
                        reach for reach in of_file if (reach.part.start or 0) == span.start
                    )
        again = []
        for number, split in self._decoding.items():
            rest = tuple(span for span in split.spans if store_key(span.file) not in spans or not _is_of_log(span))
            if len(rest) == len(split.spans):
                continue
            settled = []
            for key in (key for key, owner in owners.items() if owner == number):
                log = spans[key][0].file
                part = settled_part(planned.whole.group_of(log), log, readings[key])
                settled.append(SettledSpans(part, tuple(spans[key]), tuple(reached[key])))
            plain = tuple(replace(span, is_checked=False) for span in rest)
            again.append(replace(split, spans=plain, settled=tuple(settled), replaces=number))
        return again

    def _inside(self, tree: Tree) -> Tree:
        """The files that are wanted, without those of the lake itself."""
        assert self.lake is not None
        lake = self.lake.path + "/"
        kept = (file for file in tree if self.selection.takes_file(file) and not file.path.startswith(lake))
        return replace(tree, files=tuple(kept))

    def _tables(self, tree: Tree) -> list[Table]:
        """The tables to fill by decoding or folding: without `files` and `findings`, which inspection fills."""
        able = [name for name in tree.tables if name not in (FILES.name, FINDINGS.name)]
        if self.selection.transforms:  # other tables have the same bytes under other names
            able = [name for name in able if name == RECORDS.name]
            if others := [name for name in self.names or () if name not in (RECORDS.name, FILES.name, FINDINGS.name)]:
                raise OptionError(f"tables {', '.join(others)}: masked rows can only be ingested as `records`")
        if self.names is not None:
            for name in self.names:
                if name not in tree.tables and name not in registry.tables():
                    raise unknown("table", name, tree.tables)
            able = [name for name in able if name in self.names]
        return [registry.table_named(name) for name in able]

    # Work -------------------------------------------------------------------------------------------------------------

    def work(self, split: Split, stage: Stage) -> IngestSplitResult:
        """Inspect the split's files, decode its spans, and write the rows as Parquet below the lake."""
        with remembering():
            return self._work(split, stage)

    def _work(self, split: Split, stage: Stage) -> IngestSplitResult:
        content: IngestSplit = split.content
        sheets = Sheets(lambda table: data_path(stage.path, table, content.run), stage.name, self.cuts, self.orders)
        try:
            if content.spans or content.replaces is not None:
                return self._decode(split.number, content, sheets, stage)
            if content.old_files:
                return self._thin(split.number, content, stage)
            if content.folds:
                return self._fold(split.number, content, sheets, stage)
            if content.found_in:
                return IngestSplitResult(
                    split.number, (), joint=frozenset(findings_among(content.found_in, joint_codes()))
                )
            if content.files:
                return self._inspect(split.number, content, sheets, stage)
            return self._compare(split.number, content, sheets, stage)
        except BaseException:
            sheets.discard()
            raise

    def _inspect(self, number: int, content: IngestSplit, sheets: Sheets, stage: Stage) -> IngestSplitResult:
        all_findings = Findings()
        damaged = []
        lost: list[FindingPlace] = []
        rows: list[dict[str, Any]] = []
        for file in content.files:
            checked = check_file(
                file, RuleChoice(), lambda frames: stage.advance(frames.reached, len(frames)), measure=True
            )
            findings = _finish(checked, rows)
            lost += losing(findings, file)
            damaged += _add(all_findings, findings, file)
        self._report(all_findings, sheets, rows)
        return IngestSplitResult(
            number,
            sheets.close(),
            files=content.files,
            errors=all_findings.errors,
            warnings=all_findings.warnings,
            losing=tuple(lost),
            damaged=tuple(damaged),
        )

    def _compare(self, number: int, content: IngestSplit, sheets: Sheets, stage: Stage) -> IngestSplitResult:
        findings = Findings()
        stores: dict[str, tuple[str, ...]] = {}
        readings: dict[str, Reading] = {}
        for group in content.groups:
            findings.items += inspect_group(group).items
            with suppress(RawlogError):  # what cannot be read is a finding already
                readings[group.path] = reading_of(group)
            if any(facts := facts_of(group)):
                stores[group.path] = facts
        absent: list[Entry] = []
        if content.tree is not None:
            around = Tree((), content.tree.files)
            findings.items += inspect_tree(around, None, content.tree.summaries).items
            with suppress(RawlogError):  # what cannot be read is a finding already
                absent = absent_stores(around)
        stage.advance(_size(content))
        self._report(findings, sheets)
        return IngestSplitResult(
            number,
            sheets.close(),
            errors=findings.errors,
            warnings=findings.warnings,
            losing=losing(findings),
            stores=stores,
            readings=readings,
            absent=tuple(absent),
        )

    def _report(self, findings: Findings, sheets: Sheets, files: Sequence[dict[str, Any]] = ()) -> None:
        """Write what was found, and the rows of the files that it was found in."""
        for batch in findings.to_arrow().to_batches():
            sheets.add(FINDINGS, batch)
        sheets.add(FILES, file_rows(files))

    def _decode(self, number: int, content: IngestSplit, sheets: Sheets, stage: Stage) -> IngestSplitResult:
        """Each span is read once, for all the tables that want it and for verification."""
        reached: list[PartProgress] = []
        all_findings = Findings()
        files: list[File] = []
        damaged: list[str] = []
        summaries: dict[str, Any] = {}
        splits: list[tuple[int, FileCheck]] = []
        rows: list[dict[str, Any]] = []
        references = References(f"{content.run}/{stage.name}")
        decoded: Tally = Counter()
        lost: list[FindingPlace] = []
        selection = self.selection.begun()
        all_spans = (*content.spans, *(span for settled in content.settled for span in settled.spans))
        narrowed = _narrow(self.decode, all_spans)
        records = stored(RECORDS if narrowed is None else narrowed.table(RECORDS))
        for span in content.spans:
            decode = None if narrowed is None else narrowed.begin()
            taking = _SpanIngest(span, selection, sheets, stage, references, records, decode)
            checked = taking.run()
            if decode is not None:
                undecoded = list(decode.findings(span.file)) if content.replaces is None else []
                all_findings.items += undecoded
                lost += losing(undecoded)
                decoded += decode.counts
            reached += taking.reached()
            if checked is None:
                continue
            if span.start or (span.stop is not None and span.stop < span.file.size):
                splits.append((span.start, checked))
                continue
            findings = _finish(checked, rows)
            lost += losing(findings, span.file)
            damaged += _add(all_findings, findings, span.file)
            files.append(span.file)
            if checked.summary is not None:
                summaries[span.file.path] = checked.summary
        for settled in content.settled:
            decode = None if narrowed is None else narrowed.begin()
            reached += _take_settled(settled, selection, sheets, stage, references, records, decode)
            decoded += Counter() if decode is None else decode.counts
        if content.replaces is None:
            self._report(all_findings, sheets, rows)
        return IngestSplitResult(
            number,
            sheets.close(),
            reached=tuple(reached),
            files=tuple(files),
            summaries=summaries,
            checked=tuple(splits),
            errors=all_findings.errors,
            warnings=all_findings.warnings,
            losing=tuple(lost),
            tallies=selection.tallies,
            decoded=decoded,
            damaged=tuple(damaged),
            replaces=content.replaces,
        )

    def _thin(self, number: int, content: IngestSplit, stage: Stage) -> IngestSplitResult:
        """Write data files of the lake again without the rows of rewritten sources."""
        thinned = []
        for at, old in enumerate(content.old_files):
            sheets = Sheets(
                lambda table: data_path(stage.path, table, content.run), f"{stage.name}-{at}", self.cuts, self.orders
            )
            try:
                thinned_file = thin(old, sheets)
            except BaseException:
                sheets.discard()
                raise
            stage.advance(old.size)
            if thinned_file is not None:
                thinned.append(thinned_file)
        return IngestSplitResult(number, (), thinned=tuple(thinned))

    def _fold(self, number: int, content: IngestSplit, sheets: Sheets, stage: Stage) -> IngestSplitResult:
        notes: list[str] = []
        folded = []
        for folding in content.folds:
            table = registry.table_named(folding.table)
            mark = unit_mark(folding.unit)
            try:
                for batch in fold(folding, table, self.selection):
                    sheets.add(table, batch, mark)
            except (AccessError, DataError) as error:
                # All of it or nothing: a part of a state would be wrong.
                sheets.forget(table, mark)
                notes.append(f"{folding.table} of {folding.unit} stays as it was: {str(error).splitlines()[0]}")
                continue
            sheets.finish(table, mark)
            folded.append(folding)
            stage.advance(folding.size)
        return IngestSplitResult(number, sheets.close(), folded=tuple(folded), notes=tuple(notes))

    # Commit -----------------------------------------------------------------------------------------------------------

    def commit(self, results: Sequence[IngestSplitResult]) -> IngestResult:
        """One commit for each table, `records` first and `jobs` last. What an earlier call committed stays as it is."""
        assert self.lake is not None
        assert self._plan is not None
        results = _without_replaced(results)
        notes = self.selection.judge(result.tallies for result in results if result.tallies)
        records = RECORDS
        if self.decode is not None:
            records = self.decode.table(RECORDS)
            notes += [*self._decode_notes, *self.decode.judge(sum((result.decoded for result in results), Counter()))]
        outcome = Commit(self.lake, self._plan, results, self._merged or (), records).run()
        return replace(outcome, notes=(*outcome.notes, *notes)) if notes else outcome


class _SpanIngest:
    """Ingests one span of a file: each window of frames is decoded for each of the tables."""

    def __init__(
        self,
        span: SplitParts,
        selection: Selection,
        sheets: Sheets,
        stage: Stage,
        references: References,
        records: Table,
        decode: Decode | None = None,
    ) -> None:
        """`records` is that table as the split writes it: with the columns of decoded values, if there is a `decode`."""
        self.span, self.sheets, self.stage, self.references, self.decode = span, sheets, stage, references, decode
        self.records = records
        tables = [(registry.table_named(name), part) for name, part in span.parts]
        self.decoders = [Decoder(part, table, selection.suited(table), compact=True) for table, part in tables]
        self.stop, self.frames, self.windows = span.start, 0, 0
        self.first_row = references.rows
        #: Where a decoder stopped at an unknown version, and after how many frames. Verification reports it; rows before it are ingested.
        self.ended: dict[str, tuple[int, int]] = {}
        self.failure: BaseException | None = None
        self.is_gone = False

    def run(self) -> FileCheck | None:
        """Read the span; the result of verification, if it is to be checked. Raises what writing raised."""
        file, part = self.span.file, self.span.parts[0][1]
        checked: FileCheck | None = None
        error: RawlogError | None = None
        if self.span.is_checked:
            store = Store((file, *self.span.near))
            checked = check_file(
                file,
                RuleChoice(),
                self.guarded,
                store=store,
                start=part.start,
                stop=part.stop,
                first=part.first,
                measure=True,
            )
            error = checked.error
        else:
            try:
                format = registry.formats()[str(file.format)]
                for frames in walk(file, format, start=part.start, stop=part.stop, first=part.first, errors="skip"):
                    self.see(frames)
            except AccessError as raised:
                error = raised
            except DataError:  # a header that is invalid
                pass
        if self.failure is not None:
            raise self.failure
        if error is not None:
            # It was deleted before it was opened, as happens to the oldest segments of a live log: left out; the next run looks again.
            if self.windows or os.path.lexists(stored_path(file.path)) or is_remote(file.path):
                raise error
            self.is_gone = True
        return checked

    def guarded(self, frames: Frames) -> None:
        """See a window; a failure to write is kept for later, so that it is not reported as a defect of the file."""
        if self.failure is None:
            try:
                self.see(frames)
            except BaseException as failure:
                self.failure = failure

    def see(self, frames: Frames) -> None:
        """Add the rows of a window to every table; message bytes that two of them have are stored in `records` only."""
        self.windows += 1
        self.frames += len(frames)
        self.stage.advance(max(0, frames.reached_in_file - self.stop), len(frames))
        self.stop = frames.reached_in_file
        decoders = [decoder for decoder in self.decoders if decoder.table.name not in self.ended]
        streams = zip(decoders, decode_streams(decoders, frames), strict=True)
        tables = {decoder.table: self._rows(decoder, rows) for decoder, rows in streams}
        records = tables.pop(RECORDS, None)
        for table, rows in tables.items():
            if table.payload and records is not None:
                for owner, batch in self.references.share(table, rows, records):
                    self._add(owner, batch)
                records = None
                continue
            for batch in rows:
                self.sheets.add(stored(table), self.references.keep(batch) if table.payload else batch)
        for batch in records or ():
            self._add(RECORDS, self.references.number(batch))

    def _add(self, table: Table, batch: pa.RecordBatch) -> None:
        """Add rows as the lake stores them; those of `records` are decoded, if that is asked for."""
        if self.decode is not None and table is RECORDS:
            self.sheets.add(self.records, self.decode.apply(batch, RECORDS).select(list(self.records.names)))
            return
        self.sheets.add(stored(table), batch)

    def _rows(self, decoder: Decoder, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of a window; none of later ones once the decoder cannot go on."""
        try:
            for batch in rows:
                self.stage.advance(0, 0, batch.num_rows)
                yield batch
        except DataError:
            self.ended[decoder.table.name] = self.stop, self.frames

    def reached(self) -> list[PartProgress]:
        """How far the span was ingested into each table."""
        if self.is_gone:
            return []
        at = self.stop, self.frames
        marks: dict[int, int] = {}
        reaches = []
        for name, part in self.span.parts:
            stop, frames = self.ended.get(name, at)
            is_last = part.stop is None or part.stop >= part.file.size
            if stop not in marks:
                marks[stop] = (mark(part.file.path, stop) or 0) if is_last else 0
            rows = self.references.since(self.first_row) if name == RECORDS.name else ()
            reaches.append(PartProgress(name, part, stop, frames, marks[stop], rows))
        return reaches


def _take_settled(
    settled: SettledSpans,
    selection: Selection,
    sheets: Sheets,
    stage: Stage,
    references: References,
    records: Table,
    decode: Decode | None,
) -> list[PartProgress]:
    """Ingest spans of a store in the order of its log, corrected; how far they were read, as the first pass found it."""
    takings: dict[str, list[_SpanIngest]] = {}
    rows: dict[tuple[str, int], list[RowRange]] = {}
    for span in settled.spans:
        taking = _SpanIngest(span, selection, sheets, stage, references, records, decode)
        takings.setdefault(span.file.path, []).append(taking)
    for file, frames in settled_frames(settled.part):
        for taking in takings.get(file.path, ()):
            span, first = taking.span, references.rows
            stop = file.size if span.stop is None else span.stop
            inside = np.searchsorted(frames.positions, (span.start, stop)).tolist()
            if inside[1] > inside[0]:
                taking.see(frames.slice(*inside))
                rows.setdefault((file.path, span.start), []).extend(references.since(first))
    reached = []
    for reach in settled.reached:
        ranges = rows.get((reach.part.file.path, reach.part.start or 0), ()) if reach.table == RECORDS.name else ()
        reached.append(replace(reach, rows=tuple(ranges)))
    return reached


def _is_of_log(span: SplitParts) -> bool:
    """Whether a span is of a log that is settled."""
    return settles(span.file, RECORDS)


def _without_replaced(results: Sequence[IngestSplitResult]) -> list[IngestSplitResult]:
    """The results of all splits. Of one whose rows another one replaces, only what was found in its files counts."""
    replaced = {result.replaces for result in results}
    kept = []
    for result in results:
        if result.number in replaced:
            written = tuple(sheet for sheet in result.written if sheet.table in (FILES.name, FINDINGS.name))
            result = replace(result, written=written, reached=(), tallies=(), decoded=Counter())
        kept.append(result)
    return kept


def _narrow(decode: Decode | None, spans: Sequence[SplitParts]) -> Decode | None:
    """What decodes values of a split: it writes columns of its own topics only, where places tell them."""
    topics = {span.file.place.topic for span in spans}
    if decode is None or None in topics:
        return decode
    return decode.for_topics([topic for topic in topics if topic is not None])


def _finish(checked: FileCheck, rows: list[dict[str, Any]]) -> Findings:
    """The findings on a file that was read whole; its row of `files` is added to others."""
    assert checked.measure is not None
    rows.append(checked.measure.values())
    return checked.finish(RuleChoice())


def _add(findings: Findings, file_findings: Findings, file: File) -> list[str]:
    """Add the findings of a file to others; its path, if there are errors among them."""
    findings.add(file_findings)
    return [file.path] if file_findings.errors else []


def _merge_files(results: Sequence[IngestSplitResult], again: list[File]) -> list[FileCheck]:
    """The files that were read in splits, each merged; those whose splits do not fit together are added to `again`."""
    splits: dict[str, list[tuple[int, FileCheck]]] = {}
    for result in results:
        for start, checked in result.checked:
            splits.setdefault(checked.file.path, []).append((start, checked))
    merged = []
    for parts in splits.values():
        parts.sort(key=lambda pair: pair[0])
        first = parts[0][1]
        if all(first.merge(following, RuleChoice()) for _, following in parts[1:]):
            merged.append(first)
        else:
            again.append(first.file)
    return merged


def _size(content: IngestSplit) -> int:
    folded = {folding.unit: folding.size for folding in content.folds}
    looked_at = (
        _bytes(content.files) + sum(map(unread_size, content.groups)) + sum(old.size for old in content.old_files)
    )
    settled = sum(settled_spans.size for settled_spans in content.settled)
    return looked_at + sum(span.size for span in content.spans) + settled + sum(folded.values())


def _bytes(files: Sequence[File]) -> int:
    return sum(file.size for file in files)


# ----------------------------------------------------------------------------------------------------------------------
# Follow: ingest again and again, as the files grow, until asked to stop.


#: After so many commits, snapshots that were replaced more than so many seconds ago are expired: there would be thousands in a day.
TIDY_AFTER, GRACE = 50, 3600


def follow(
    job: Ingest, look: Callable[[], Tree], run: Callable[[Tree], IngestResult], stop: Event, interval: float
) -> Iterator[IngestResult]:
    """What each run added, as it is committed; the current run is finished when `stop` is set.

    `look` lists the files and `run` ingests a listing; it looks every `interval` seconds.
    """
    seen: dict[str, tuple[int, float | None]] | None = None
    commits = 0
    while not stop.is_set():
        tree = look()
        now = {file.path: (file.size, file.modified) for file in tree}
        if now != seen:
            outcome = job.complete(lambda tree=tree: run(tree))  # type: ignore[misc]
            seen = now
            if outcome.files or outcome.refused:
                yield outcome
                commits += 1
                if commits % TIDY_AFTER == 0:
                    _tidy(job)
        stop.wait(interval)


def _tidy(job: Ingest) -> None:
    assert job.lake is not None
    keep(job.lake, run_here, expire_after=GRACE, clean_after=None)


# Commit: what the splits wrote becomes part of the tables ------------------------------------------------------------------------


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
            units=ingest_plan.units(folds, self.plan.chosen),
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
            self.losing += ingest_plan.losing(findings, checked.file)
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
            unexplained(self.losing, self.losses),
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
