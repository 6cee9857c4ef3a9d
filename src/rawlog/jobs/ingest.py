"""Ingest: recognise, verify and decode everything in a tree into the tables of a lake.

Plan: what each table does not hold yet, by its own snapshots. Work: Parquet files of one split's rows. Commit: one for each table.
Nothing is taken twice and nothing is lost, whenever a run dies: a byte counts as taken by the same commit that adds its rows.
"""

from __future__ import annotations

import json
import os
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rawlog import __version__, registry
from rawlog.errors import AccessError, RawlogError, unknown
from rawlog.findings import Findings
from rawlog.format import File
from rawlog.frames import Frames
from rawlog.inspection import file_row, inspect_file, inspect_tree
from rawlog.jobs.job import Done, Job, Outcome, Split, Stage
from rawlog.jobs.lake import JOBS, History, Lake, Taken, lake_name
from rawlog.jobs.sheet import Sheet, Written
from rawlog.rows import Part, plan, read
from rawlog.select import Selection
from rawlog.storage import Source, is_remote
from rawlog.tables import FILES, FINDINGS, RECORDS, Table
from rawlog.tree import Tree

if TYPE_CHECKING:
    import pyarrow as pa

#: Bytes of input a split: what a task takes a second or so for, and one Parquet file a table.
SMALLEST, LARGEST = 16 << 20, 128 << 20
SPLITS = 8
#: Bytes at either end of what was taken that stand for all of it.
MARK = 4096


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a file and the tables that want it."""

    part: Part
    tables: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Task:
    """What one split does: files to look at whole, pieces to decode."""

    run: str
    files: tuple[File, ...] = ()
    pieces: tuple[Piece, ...] = ()


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a part was read for one table: up to byte `stop`, through `frames` frames."""

    table: str
    part: Part
    stop: int
    frames: int


@dataclass(frozen=True, slots=True)
class Decoded(Done):
    """The files that a split wrote, what they hold, and what verification said."""

    written: tuple[Written, ...]
    reached: tuple[Reached, ...] = ()
    files: tuple[File, ...] = ()
    errors: int = 0
    warnings: int = 0


@dataclass(frozen=True, slots=True)
class Ingested(Outcome):
    """What a run added to the lake, and what it had to leave."""

    run: str
    lake: str
    tables: Mapping[str, int]
    files: int
    size: int
    unchanged: int
    errors: int
    warnings: int
    #: Files that are no longer what was taken from them, with the reason; nothing of them was touched.
    refused: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        return "damaged" if self.errors else "suspect" if self.warnings else "clean"


class Recut(RawlogError):
    """Files whose planned boundaries do not fit their frames: they must be read whole."""

    def __init__(self, paths: Iterable[str]) -> None:
        self.paths = frozenset(paths)
        super().__init__(f"{len(self.paths)} files must be read whole")


@dataclass(frozen=True)
class Pending(Tree):
    """Some files of a tree, which still belong with the others."""

    whole: Tree = field(default=Tree((), ()))

    def group_of(self, file: File) -> Sequence[File]:
        """The files that belong with one, also those that are not pending."""
        return self.whole.group_of(file)


class Ingest(Job[Decoded, Ingested]):
    """Take a tree into a lake. Use as a context manager: it holds the lake's lock and removes what a failed run left."""

    def __init__(
        self,
        lake: str,
        *,
        catalog: str | None = None,
        tables: Sequence[str] | None = None,
        selection: Selection | None = None,
    ) -> None:
        """`tables` are names of tables to fill, all that the files have if None. OptionError for an unknown one.

        AccessError if `lake` is none and cannot be made one.
        """
        if tables is not None:
            for name in tables:
                registry.table_named(name)
        self.names = None if tables is None else tuple(dict.fromkeys(tables))
        self.selection = (selection or Selection()).replace(errors="skip", columns=None, limit=None)
        self.lake: Lake | None = Lake(lake, catalog=catalog, create=True)
        self.stage = self.lake.path
        self.uncut: frozenset[str] = frozenset()
        self._plan: _Plan | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "lake": None, "_plan": None}

    def __enter__(self) -> Ingest:
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
        """Run with an engine; once more, with some files read whole, if their indexes turn out to lie about where frames begin."""
        try:
            return run()
        except Recut as recut:
            self.uncut |= recut.paths
            return run()

    # Plan -------------------------------------------------------------------------------------------------------------

    def plan(self, tree: Tree) -> list[Split]:
        """Splits for all that the lake's tables do not hold yet."""
        assert self.lake is not None
        if self._plan is not None:
            self.lake.sweep(self._plan.run)
        self._plan = planned = _Plan(self.lake, self._inside(tree), self._tables(tree), self.selection, self.uncut)
        tasks = [Task(planned.run, files=files) for files in _packed(planned.to_inspect, lambda file: file.size)]
        tasks += [Task(planned.run, pieces=pieces) for pieces in _packed(planned.pieces, lambda piece: piece.part.size)]
        return [Split(number, _size(task), task) for number, task in enumerate(tasks)]

    def _inside(self, tree: Tree) -> Tree:
        """The files that are wanted: none of the lake itself."""
        assert self.lake is not None
        lake = self.lake.path + "/"
        kept = (file for file in tree if self.selection.takes_file(file) and not file.path.startswith(lake))
        return Tree(tree.roots, tuple(kept))

    def _tables(self, tree: Tree) -> list[Table]:
        """The tables to fill by decoding: without `files` and `findings`, which come of looking, and what is made of other tables."""
        folded = {name for family in registry.families() for name in family.folds}
        able = [name for name in tree.tables if name not in (FILES.name, FINDINGS.name) and name not in folded]
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
        sheets = _Sheets(stage, task.run)
        try:
            if task.files:
                return self._inspect(split.number, task, sheets, stage)
            return self._decode(split.number, task, sheets, stage)
        except BaseException:
            sheets.discard()
            raise

    def _inspect(self, number: int, task: Task, sheets: _Sheets, stage: Stage) -> Decoded:
        errors = warnings = 0
        for file in task.files:
            found = inspect_file(file, None, lambda frames: stage.advance(frames.reached, len(frames)))
            errors += found.errors
            warnings += found.warnings
            for batch in found.to_arrow().to_batches():
                sheets[FINDINGS].add(batch)
            sheets[FILES].add(file_row(file))
        return Decoded(number, sheets.close(), files=task.files, errors=errors, warnings=warnings)

    def _decode(self, number: int, task: Task, sheets: _Sheets, stage: Stage) -> Decoded:
        reached: list[Reached] = []
        for piece in task.pieces:
            for name in piece.tables:
                table = registry.table_named(name)
                trace = _Trace(piece.part, stage if name == piece.tables[0] else None)
                try:
                    for batch in read(piece.part, table, self.selection, None, trace.see):
                        sheets[table].add(batch)
                except AccessError:
                    # Gone before it was opened, as the oldest segments of a live log are: left out, and looked for next time.
                    if trace.windows or os.path.lexists(piece.part.file.path) or is_remote(piece.part.file.path):
                        raise
                    continue
                reached.append(Reached(name, piece.part, trace.stop, trace.frames))
        return Decoded(number, sheets.close(), reached=tuple(reached))

    # Commit -----------------------------------------------------------------------------------------------------------

    def commit(self, done: Sequence[Decoded]) -> Ingested:
        """One commit for each table, the one for `jobs` last. What an earlier call committed stays as it is."""
        assert self.lake is not None
        assert self._plan is not None
        return _Commit(self.lake, self._plan, done).run()


class _Plan:
    """What is to be done, and what the lake held when that was decided."""

    def __init__(
        self, lake: Lake, tree: Tree, tables: Sequence[Table], selection: Selection, uncut: frozenset[str]
    ) -> None:
        self.run = time.strftime("%Y%m%dT%H%M%S", time.gmtime()) + "-" + uuid.uuid4().hex[:8]
        self.started = time.time()
        self.tree, self.tables, self.selection, self.uncut = tree, tables, selection, uncut
        self.chosen = _selection_text(selection)
        self.histories: dict[str, History] = {
            table.name: lake.history(lake_name(table)) for table in (*tables, FILES, FINDINGS)
        }
        self.refused: dict[str, str] = {}
        self.starts: dict[str, dict[str, Taken | None]] = {table.name: self._pending(table) for table in tables}
        self.to_inspect = [file for file in tree if file.path not in self.refused and self._is_unlike(file, FILES, FINDINGS)]
        self.pieces = self._cut()

    def _is_unlike(self, file: File, *tables: Table) -> bool:
        """Whether a file is not as it was when it was last looked at."""
        for table in tables:
            taken = self.histories[table.name].sources.get(file.path)
            if taken is None or (taken.size, taken.modified) != (file.size, file.modified) or file.modified is None:
                return True
        return False

    def _pending(self, table: Table) -> dict[str, Taken | None]:
        """The files of which a table lacks something, each with how much it has."""
        able = registry.formats_with(table)
        sources = self.histories[table.name].sources
        pending: dict[str, Taken | None] = {}
        for file in self.tree:
            if file.format not in able or file.place.state is not None or file.problem is not None:
                continue
            taken = sources.get(file.path)
            if taken is not None:
                if not self._is_unlike(file, table):
                    continue
                why = _replaced(file, taken)
                if why is not None:
                    self.refused[file.path] = why
                    continue
                if file.size == taken.stop:
                    continue
            pending[file.path] = taken
        return {path: taken for path, taken in pending.items() if path not in self.refused}

    def _cut(self) -> list[Piece]:
        """The pieces of all pending files, each once for all the tables that want it."""
        files = {file.path: file for file in self.tree}
        cuts: dict[str, list[Part]] = {}
        wanted: dict[tuple[str, int | None, int | None], tuple[Part, list[str]]] = {}
        for table in self.tables:
            fresh = [path for path in self.starts[table.name] if path not in cuts]
            for size, paths in ((None, self.uncut), (LARGEST, frozenset(fresh) - self.uncut)):
                group = tuple(files[path] for path in fresh if path in paths)
                for part in plan(Pending(self.tree.roots, group, self.tree), table, self.selection, split_size=size):
                    cuts.setdefault(part.file.path, []).append(part)
            for path, taken in self.starts[table.name].items():
                for part in _rest(cuts.get(path, []), taken):
                    wanted.setdefault((path, part.start, part.stop), (part, []))[1].append(table.name)
        order = {path: number for number, path in enumerate(files)}
        pieces = [Piece(part, tuple(names)) for part, names in wanted.values()]
        return sorted(pieces, key=lambda piece: (order[piece.part.file.path], piece.part.start or 0))

    def notes(self) -> list[str]:
        """What the user should know of sources that were taken under another selection."""
        others: dict[str, set[str]] = {}
        for table in self.tables:
            for file in self.tree:
                earlier = self.histories[table.name].selections.get(file.path)
                if earlier is not None and earlier != self.chosen:
                    others.setdefault(earlier, set()).add(file.path)
        return [
            f"{len(paths):,} files were taken before with {earlier or 'no selection'}; rows left out then stay out"
            for earlier, paths in sorted(others.items())
            if earlier
        ]


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


class _Sheets:
    """The data files of one attempt at a split, opened as tables are met."""

    def __init__(self, stage: Stage, run: str) -> None:
        self.stage, self.run = stage, run
        self.open: dict[str, Sheet] = {}

    def __getitem__(self, table: Table) -> Sheet:
        if table.name not in self.open:
            folder = f"{self.stage.path}/{lake_name(table).replace('.', '/')}/data/{self.run}"
            self.open[table.name] = Sheet(f"{folder}/{self.stage.name}.parquet", table)
        return self.open[table.name]

    def close(self) -> tuple[Written, ...]:
        return tuple(written for sheet in self.open.values() if (written := sheet.close()) is not None)

    def discard(self) -> None:
        for sheet in self.open.values():
            sheet.discard()


class _Commit:
    """The end of a run: what the splits wrote becomes part of the tables."""

    def __init__(self, lake: Lake, planned: _Plan, done: Sequence[Decoded]) -> None:
        self.lake, self.plan, self.done = lake, planned, done
        self.errors = sum(one.errors for one in done)
        self.warnings = sum(one.warnings for one in done)
        self.rows: dict[str, int] = {}
        self.files: dict[str, list[str]] = {}
        for one in done:
            for written in one.written:
                self._count(written)

    def _count(self, written: Written) -> None:
        self.files.setdefault(written.table, []).append(written.path)
        self.rows[written.table] = self.rows.get(written.table, 0) + written.rows

    def run(self) -> Ingested:
        planned = self.plan
        sources = {table.name: self._sources(table) for table in planned.tables}
        looked = [file for one in self.done for file in one.files]
        together = self._together() if looked else Findings()
        for table in planned.tables:
            before = {path: planned.starts[table.name][path] for path in sources[table.name]}
            self._commit(table, sources[table.name], before=before)
        if looked:
            seen = {file.path: _looked_at(file) for file in looked}
            self._commit(FILES, seen, replacing=_paths_in(self._known(FILES, seen)))
            self._commit(FINDINGS, seen, replacing=self._old_findings(seen, together))
        for table in (RECORDS, FILES, FINDINGS, JOBS):
            self.lake.ensure(table)
        size = sum(reached.stop - (reached.part.start or 0) for reached in self._first_reached())
        outcome = self._outcome(len({*(file.path for file in looked), *(p for s in sources.values() for p in s)}), size)
        if looked or any(sources.values()):
            self._write_job(outcome)
        return outcome

    def _commit(self, table: Table, sources: Mapping[str, Taken], **more: Any) -> None:
        if sources:
            self.lake.commit(
                table, self.plan.run, self.files.get(table.name, []), sources, selection=self.plan.chosen, **more
            )
        else:
            self.lake.ensure(table)

    def _sources(self, table: Table) -> dict[str, Taken]:
        """How far every source of a table is now. Recut if a file's parts do not meet."""
        by_path: dict[str, list[Reached]] = {}
        for one in self.done:
            for reached in one.reached:
                if reached.table == table.name:
                    by_path.setdefault(reached.part.file.path, []).append(reached)
        gaps: set[str] = set()
        taken: dict[str, Taken] = {}
        for path, parts in by_path.items():
            parts.sort(key=lambda reached: reached.part.start or 0)
            gaps |= {path for reached in parts[:-1] if reached.stop != reached.part.stop}
            before = self.plan.starts[table.name][path]
            file = parts[0].part.file
            frames = (before.frames if before is not None else 0) + sum(reached.frames for reached in parts)
            stop = max(parts[-1].stop, before.stop if before is not None else 0)
            taken[path] = Taken(file.size, file.modified, stop, frames, _mark(path, stop))
        if gaps:
            raise Recut(gaps)
        return taken

    def _first_reached(self) -> Iterator[Reached]:
        """Each piece once, whatever the number of its tables."""
        seen: set[tuple[str, int | None]] = set()
        for one in self.done:
            for reached in one.reached:
                key = (reached.part.file.path, reached.part.start)
                if key not in seen:
                    seen.add(key)
                    yield reached

    def _together(self) -> Findings:
        """What the files say of one another, written as one more data file."""
        found = inspect_tree(self.plan.tree)
        self.errors += found.errors
        self.warnings += found.warnings
        self._write(FINDINGS, "tree", found.to_arrow().to_batches())
        return found

    def _write(self, table: Table, name: str, batches: Iterable[pa.RecordBatch]) -> None:
        sheet = Sheet(f"{self.lake.data_path(lake_name(table), self.plan.run)}/{name}.parquet", table)
        for batch in batches:
            sheet.add(batch)
        written = sheet.close()
        if written is not None:
            self._count(written)

    def _known(self, table: Table, paths: Iterable[str]) -> list[str]:
        known = self.plan.histories[table.name].sources
        return [path for path in paths if path in known]

    def _old_findings(self, seen: Mapping[str, Taken], together: Findings) -> Any:
        """An expression for the findings that the new ones replace: on the files looked at, and on files together."""
        from pyiceberg.expressions import And, In, Or

        table = self.lake.load(lake_name(FINDINGS))
        if table is None or table.current_snapshot() is None:
            return None
        by_path = _paths_in(self._known(FINDINGS, seen))
        codes = [one.code for family in registry.families() for one in family.all_rules]
        here = {file.path for file in self.plan.tree}
        if not codes:
            return by_path
        with self.lake.told():
            rows = table.scan(row_filter=In("code", codes), selected_fields=("path",)).to_arrow()
        old = sorted({path for path in rows.column("path").to_pylist() if path in here})
        if not old:
            return by_path
        joint = And(In("code", codes), In("path", old))
        return joint if by_path is None else Or(by_path, joint)

    def _outcome(self, files: int, size: int) -> Ingested:
        tables = {lake_name(table): self.rows.get(table.name, 0) for table in (*self.plan.tables, FILES, FINDINGS)}
        return Ingested(
            self.plan.run,
            self.lake.path,
            tables,
            files,
            size,
            len(self.plan.tree) - files - len(self.plan.refused),
            self.errors,
            self.warnings,
            tuple(sorted(self.plan.refused.items())),
            tuple(self.plan.notes()),
        )

    def _write_job(self, outcome: Ingested) -> None:
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
        self.lake.commit(JOBS, outcome.run, self.files[JOBS.name], {})


def _size(task: Task) -> int:
    return sum(file.size for file in task.files) + sum(piece.part.size for piece in task.pieces)


def _rest(parts: Sequence[Part], taken: Taken | None) -> Iterator[Part]:
    """What is left of a file's parts behind what was taken, up to the size it had when it was listed."""
    for part in parts:
        if part.stop is None:
            part = replace(part, stop=part.file.size)
        if taken is None or taken.stop <= (part.start or 0):
            yield part
        elif part.stop is None or part.stop > taken.stop:
            yield replace(part, start=taken.stop, first=taken.frames)


def _packed(items: Sequence[Any], size_of: Callable[[Any], int]) -> list[tuple[Any, ...]]:
    """Runs of items, in order, worth a split each."""
    target = min(max(sum(map(size_of, items)) // SPLITS, SMALLEST), LARGEST)
    runs: list[tuple[Any, ...]] = []
    run: list[Any] = []
    size = 0
    for item in items:
        if run and size + size_of(item) > target:
            runs.append(tuple(run))
            run, size = [], 0
        run.append(item)
        size += size_of(item)
    return [*runs, tuple(run)] if run else runs


def _mark(path: str, stop: int) -> int:
    """A checksum of the first and the last bytes of what was taken."""
    try:
        with Source(path) as source:
            head = source.read(0, min(MARK, stop))
            tail = source.read(max(0, stop - MARK), min(MARK, stop))
    except AccessError:
        return 0
    return zlib.crc32(tail, zlib.crc32(head))


def _replaced(file: File, taken: Taken) -> str | None:
    """Why a file is no longer the one that was taken, or None if it may have grown."""
    if file.size < taken.stop:
        return f"has {file.size:,} bytes, {taken.stop:,} were taken from it: it was cut or replaced"
    if _mark(file.path, taken.stop) != taken.mark:
        return "holds other bytes than were taken from it: it was rewritten or replaced"
    return None


def _looked_at(file: File) -> Taken:
    return Taken(file.size, file.modified, file.size, 0, 0)


def _paths_in(paths: Sequence[str]) -> Any:
    from pyiceberg.expressions import In

    return In("path", paths) if paths else None


def _selection_text(selection: Selection) -> str:
    names = ("topics", "topic_pattern", "partitions", "from_offset", "to_offset", "since", "until", "key", "where")
    given = {name: getattr(selection, name) for name in names if getattr(selection, name) not in ((), None)}
    return json.dumps(given, default=repr) if given else ""
