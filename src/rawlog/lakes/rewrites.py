"""Rewritten sources: files that hold other bytes than those that were ingested, and files that others took the place of.

A log is rewritten when it is compacted, truncated and continued, or when its topic is deleted and created again. The rows that came
from the old bytes are then replaced by those of the new ones. A file that is gone loses its rows only if its offsets belong to another
file now: what retention has deleted, or a disk has lost, stays in the lake.

Rows are removed from a table's data files: a file that holds such rows is written again without them, in a task; the commit that adds the
new rows exchanges the two. Which data files may hold them is known from the bounds in Iceberg's manifests. Older snapshots keep the old
files.
"""

from __future__ import annotations

import os
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rawlog import registry
from rawlog.io.storage import Source, exists, file_system, is_remote, place_of
from rawlog.io.walk import walk
from rawlog.lakes.parquet import Sheets, WrittenFile
from rawlog.lakes.payload import ROW, SPLIT, fit_batch, stored
from rawlog.lakes.state import History, RowRange, SourceProgress
from rawlog.model.errors import AccessError, DataError, unknown
from rawlog.model.format import File
from rawlog.model.store import Store
from rawlog.model.table import FILES, FINDINGS, RECORDS, Table
from rawlog.model.text import counted
from rawlog.reading.parts import contradict, copies, facts_of
from rawlog.reading.tree import Tree

if TYPE_CHECKING:
    import pyarrow as pa


# ----------------------------------------------------------------------------------------------------------------------
# Replicas of what a lake has already: a partition that was ingested from another directory is continued where that one ended.
#
# A lake knows its sources by path. For a store that is not among them, the stores that are get compared with it by identity. How far those
# go is in the lake's table `files`. So ingesting one disk of a cluster today and another one tomorrow takes each record once.

#: So many continued partitions get a note each.
SHOWN = 5


@dataclass(slots=True)
class LakeReplicas:
    """Which stores of a tree are replicas of stores that a lake has from other directories. Directories of the tree are the keys."""

    #: The directories that the lake has.
    others: dict[str, tuple[str, ...]] = field(default_factory=dict)
    #: What the partition or store is called.
    names: dict[str, str] = field(default_factory=dict)
    #: Those of which the lake has a better replica.
    stale: set[str] = field(default_factory=set)
    #: Those of which the lake has nothing yet.
    fresh: set[str] = field(default_factory=set)
    #: For each source of the lake that is in a replica: the directory in the tree.
    paths: dict[str, str] = field(default_factory=dict)
    #: With which selection those were ingested, if there was one.
    selections: dict[str, str] = field(default_factory=dict)
    #: How far the lake goes, by table and directory in the tree.
    ends: dict[tuple[str, str], int] = field(default_factory=dict)

    @classmethod
    def find(cls, tree: Tree, histories: Mapping[str, History], files: Any) -> LakeReplicas:
        """The replicas that a lake with these histories has. `files` is its table of that name, None if there is none."""
        replicas = cls()
        files_by_path = {file.path: file for file in tree}
        files_by_store: dict[str, list[File]] = {}
        for path, taken in _sources(histories):
            file = files_by_path[path] if path in files_by_path else known_file(path, taken)
            if file is not None and file.place.group is not None:
                files_by_store.setdefault(file.place.group, []).append(file)
        store_paths = {store.path for store in tree.groups}
        stores = {
            group: Store(group_files) for group, group_files in files_by_store.items() if group not in store_paths
        }
        for copy in copies([*tree.groups, *stores.values()]) if stores else ():
            # What a directory is now may not be what the lake took from it: the topic may have been created again.
            facts, known_facts = copy.identity.facts, histories[FILES.name].stores
            elsewhere = tuple(
                path for path in copy.paths if path in stores and not contradict(known_facts.get(path, ()), facts)
            )
            for path in copy.paths if elsewhere else ():
                if path in store_paths:
                    replicas.others[path], replicas.names[path] = elsewhere, copy.identity.name
                    replicas.fresh |= set() if path in files_by_store else {path}
                    replicas.stale |= {path} if copy.paths[0] in stores else set()
                    replicas.paths |= {file.path: path for other in elsewhere for file in stores[other]}
        if replicas.paths and files is not None:
            replicas._look_up(files, histories)
        return replicas

    def _look_up(self, files: Any, histories: Mapping[str, History]) -> None:
        """How far the lake goes, according to its table `files`."""
        fields = ("path", "end_offset")
        rows = files.scan(row_filter=among("path", sorted(self.paths)), selected_fields=fields).to_arrow().to_pylist()
        reached = {row["path"]: row["end_offset"] or 0 for row in rows}
        for table, history in histories.items():
            for path, group in self.paths.items():
                if path in history.sources:
                    if chosen := history.selections.get(path):
                        self.selections[group] = chosen
                    key = (table, group)
                    self.ends[key] = max(self.ends.get(key, 0), reached.get(path, 0))

    def unit(self, name: str, units: Collection[str]) -> str | None:
        """The name under which a lake has a unit of a folded table; None if what it has is better than the unit."""
        if name in self.stale:
            return None
        return next((other for other in self.others.get(name, ()) if name not in units and other in units), name)

    def rest(self, table: str, file: File, store: Store, taken: SourceProgress | None) -> SourceProgress | None:
        """What a table has of a file, in this or another replica; None: nothing."""
        end = self.ends.get((table, store.path))
        if end is None:
            return taken
        format, start = registry.formats()[str(file.format)], file.place.start_offset
        everything = SourceProgress(file.size, file.modified, file.size, 0, 0)
        if start is None or format.by_position:
            return everything
        if start >= end:
            return taken
        following = store.following(file)
        if not format.ordered or not format.can("spans") or (following is not None and following <= end):
            return everything
        position = position_of(file, store, end)
        return (
            taken if taken is not None and taken.stop >= position else SourceProgress(file.size, None, position, 0, 0)
        )

    def notes(self) -> list[str]:
        """What was found, in words."""
        texts = []
        for path, others in sorted(self.others.items()):
            if path in self.fresh:
                chosen = self.selections.get(path)
                limit = f" (ingested with {chosen}; rows left out then stay out)" if chosen else ""
                where = f"{', '.join(others)}{limit}"
                texts.append(
                    f"{self.names[path]} is in the lake from {where}: of {path}, only offsets after those are taken"
                )
        rest = len(texts) - SHOWN
        return texts if rest <= 0 else [*texts[:SHOWN], f"the same for {counted(rest, 'other')}"]


def among(column: str, values: Sequence[str]) -> Any:
    """PyIceberg's expression for a column with one of some values; its type hints are those of another form."""
    from pyiceberg import expressions

    make: Any = expressions.In
    return make(column, values)


def _sources(histories: Mapping[str, History]) -> Iterable[tuple[str, SourceProgress]]:
    """The sources of all tables, each once."""
    return {path: taken for history in histories.values() for path, taken in history.sources.items()}.items()


def known_file(path: str, taken: SourceProgress) -> File | None:
    """A source as a file, recognised by its place; it may not exist any more."""
    for format in registry.formats().values():
        place = format.match(path) if format.match is not None else None
        if place is not None:
            return File(path, taken.size, taken.modified, format.name, place)
    return None


def position_of(file: File, store: Store, offset: int) -> int:
    """Where the first frame begins that goes beyond an offset; the end of the file if there is none."""
    format = registry.formats()[str(file.format)]
    start = format.codec.seek(file, store, offset, None) if format.can("seek") else 0
    for frames in walk(file, format, start=start or None, errors="stop"):
        try:
            stops = format.codec.spans(frames, file).stop_offset
        except DataError:
            stops = None
        if stops is None:
            return int(frames.base + frames.starts[0])
        beyond = (stops > offset).nonzero()[0]
        if len(beyond):
            return int(frames.base + frames.starts[beyond[0]])
        start = frames.reached_in_file
    return start


#: What is done with the rows of a source that was rewritten: replace them; keep them and take only later offsets; refuse the source.
POLICIES = ("replace", "keep", "refuse")
#: Bytes at either end of what was ingested whose checksum identifies it.
MARK = 4096
#: Files that are looked at at the same time: it is mostly waiting.
READERS = 32


def check_policy(name: str) -> str:
    """The name of a policy; OptionError for an unknown one."""
    if name not in POLICIES:
        raise unknown("policy", name, POLICIES)
    return name


# What identifies bytes ------------------------------------------------------------------------------------------------


def mark(path: str, stop: int) -> int | None:
    """A checksum of the first and the last bytes before `stop`; None if the file cannot be read."""
    try:
        with Source(path) as source:
            return mark_of(source, stop)
    except AccessError:
        return None


def mark_of(source: Source, stop: int) -> int:
    """The same of an open file. AccessError if it cannot be read."""
    head = source.read(0, min(MARK, stop))
    tail = head if stop <= MARK else source.read(stop - MARK, MARK)
    return zlib.crc32(tail, zlib.crc32(head))


def read_marks(wanted: Collection[tuple[str, int]]) -> dict[tuple[str, int], int | None]:
    """The marks of several files up to given positions, read side by side."""
    if len(wanted) < 2:
        return {place: mark(*place) for place in wanted}
    with ThreadPoolExecutor(min(READERS, len(wanted)), thread_name_prefix="rawlog-marks") as pool:
        return dict(zip(wanted, pool.map(lambda place: mark(*place), wanted), strict=True))


# Other names of known files -------------------------------------------------------------------------------------------


def known_names(files: Iterable[File], sources: Collection[str]) -> dict[str, File]:
    """Files in directories that the lake knows by other paths, such as through a symbolic link: by path, under the name in the lake."""
    local = [file for file in files if not is_remote(file.path)]
    folders = {_folder(file.path) for file in local}
    lake_folders = {_folder(path) for path in sources if not is_remote(path)}
    others, new_folders = lake_folders - folders, folders - lake_folders
    if not others or not new_folders:
        return {}
    places = {place_of(folder): folder for folder in sorted(others) if os.path.isdir(folder)}
    names = {folder: places[place] for folder in new_folders if (place := place_of(folder)) in places}
    renamed = {}
    for file in local:
        folder = _folder(file.path)
        if folder in names and (named := _rename(file, folder, names[folder])) is not None:
            renamed[file.path] = named
    return renamed


def _folder(path: str) -> str:
    return path.rpartition("/")[0] or os.path.dirname(path)


def _rename(file: File, folder: str, other: str) -> File | None:
    """A file of one directory under the name of another; None if the directory that it belongs to has no such name."""
    path, group = f"{other}{file.path[len(folder) :]}", file.place.group
    if group is None:
        return replace(file, path=path)
    below = folder[len(group) :] if folder.startswith(group) else None
    if below is None or not other.endswith(below):
        return None
    return replace(file, path=path, place=replace(file.place, group=other[: len(other) - len(below)]))


# What was rewritten ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class RewritePlan:
    """What a run does about sources that were rewritten."""

    policy: str
    #: Why files are left out, by path.
    refused: dict[str, str] = field(default_factory=dict)
    #: The sources whose rows are removed, by table.
    removed: dict[str, set[str]] = field(default_factory=dict)
    #: Where files continue whose earlier rows stay, by table and path.
    kept: dict[tuple[str, str], SourceProgress] = field(default_factory=dict)

    def refuse(self, path: str, why: str) -> None:
        """Leave a file out of all tables; its rows stay."""
        self.refused[path] = why
        for paths in self.removed.values():
            paths.discard(path)

    def notes(self) -> list[str]:
        """What is done, in words."""
        replaced = {path for name, paths in self.removed.items() if name not in _ABOUT_FILES for path in paths}
        kept = {path for _, path in self.kept}
        notes = []
        if replaced:
            notes.append(f"{counted(len(replaced), 'file')} rewritten since the last run: the rows were replaced")
        if kept:
            notes.append(
                f"{counted(len(kept), 'file')} rewritten since the last run: the rows were kept, and only later offsets taken"
            )
        return notes


_ABOUT_FILES = (FILES.name, FINDINGS.name)


@dataclass(slots=True)
class Comparison:
    """Compares a tree with what the tables of a lake record of it."""

    policy: str
    files: Sequence[File]
    histories: Mapping[str, History]
    is_unlike: Callable[..., bool]
    group_of: Callable[[File], Store]
    #: Whether the selection of the run takes a file for a table; and the selection as the lake records it.
    takes: Callable[[File, Table], bool]
    selection: str
    replicas: LakeReplicas
    #: The lake's table `files`, None if there is none.
    lake_files: Any
    #: Files that were rewritten and are damaged now.
    damaged: Collection[str] = ()
    #: Other paths of the same bytes, such as those of a copy in remote storage, by path.
    same_bytes: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def run(self, tables: Sequence[Table]) -> RewritePlan:
        """What was rewritten, and what is done about it in some tables."""
        rewrites = RewritePlan(self.policy)
        changed = {table: self._changed_files(table) for table in (*tables, FILES, FINDINGS)}
        marks = read_marks(
            {
                (file.path, ingested.stop)
                for pairs in changed.values()
                for file, ingested in pairs
                if ingested.mark and 0 < ingested.stop <= file.size
            }
        )
        rewritten: dict[str, dict[str, File]] = {}
        for table, pairs in changed.items():
            files = rewritten[table.name] = {}
            for file, taken in pairs:
                why = why_replaced(file, taken, marks)
                if why is None:
                    continue
                if table.name in _ABOUT_FILES or not self._is_refused(rewrites, file, table, why):
                    files[file.path] = file
        for table in tables:
            kept = {path: file for path, file in rewritten[table.name].items() if path not in rewrites.refused}
            self._decide(rewrites, table, kept)
        self._supersede(rewrites, tables, {path for files in rewritten.values() for path in files})
        return rewrites

    def _changed_files(self, table: Table) -> list[tuple[File, SourceProgress]]:
        sources = self.histories[table.name].sources
        return [
            (file, sources[file.path])
            for file in (self.files if sources else ())
            if file.path in sources
            and file.problem is None
            and self.is_unlike(file, table)
            and (table.name in _ABOUT_FILES or self.takes(file, table))
        ]

    def _is_refused(self, rewrites: RewritePlan, file: File, table: Table, why: str) -> bool:
        able = file.format in registry.formats_with(table) and file.place.state is None
        is_lasting = file.format in registry.formats_with(RECORDS)
        if file.path in self.damaged:
            why = f"{why}, and it is damaged now: repair it first"
        elif self._is_narrower(file.path, table):
            why = f"{why}; {NARROWER}"
        elif not able:
            why = f"{why}, and is not of a format of {table.name} any more"
        elif why != UNREADABLE and self.policy != "refuse":
            if self.policy == "replace" or not is_lasting or registry.formats()[str(file.format)].ordered:
                return False
            why = f"{why}; it has no offsets, so that nothing says what follows the rows that are kept"
        rewrites.refuse(file.path, why)
        return True

    def _decide(self, rewrites: RewritePlan, table: Table, rewritten: Mapping[str, File]) -> None:
        """Replace the rows of rewritten files, or continue after them."""
        is_log = registry.formats_with(RECORDS)
        kept: list[File] = []
        for path, file in rewritten.items():
            if self.policy == "keep" and file.format in is_log and self._is_other(file):
                rewrites.kept[table.name, path] = SourceProgress(file.size, None, 0, 0, 0)
                continue
            # Of what the lake has from other replicas too, no row is removed: it would not be taken again.
            is_shared = file.place.group in self.replicas.others
            if file.format in is_log and (self.policy == "keep" or is_shared):
                kept.append(file)
            else:
                rewrites.removed.setdefault(table.name, set()).add(path)
        ends = self._ends(table, {str(file.place.group) for file in kept}) if kept else {}
        for file in kept:
            store = self.group_of(file)
            end, following = ends.get(str(file.place.group), 0), store.following(file)
            done = following is not None and following <= end
            position = file.size if done else position_of(file, store, end)
            rewrites.kept[table.name, file.path] = SourceProgress(file.size, None, position, 0, 0)

    def _is_other(self, file: File) -> bool:
        """Whether the directory of a file is another unit of data than it was, such as a topic that was created again."""
        facts = self.histories[FILES.name].stores.get(str(file.place.group), ())
        return contradict(facts, self.group_of(file).share(facts_of))

    def _ends(self, table: Table, groups: Collection[str]) -> dict[str, int]:
        """How far the lake goes in some directories, according to its table `files`."""
        paths = {
            path: os.path.dirname(path)
            for path in self.histories[table.name].sources
            if os.path.dirname(path) in groups
        }
        if self.lake_files is None or not paths:
            return {}
        scan = self.lake_files.scan(row_filter=among("path", sorted(paths)), selected_fields=("path", "end_offset"))
        ends: dict[str, int] = {}
        for row in scan.to_arrow().to_pylist():
            group = paths[row["path"]]
            ends[group] = max(ends.get(group, 0), row["end_offset"] or 0)
        return ends

    # Files that are gone ----------------------------------------------------------------------------------------------

    def _supersede(self, rewrites: RewritePlan, tables: Sequence[Table], rewritten: set[str]) -> None:
        """Remove the rows of deleted files whose offsets another log has now.

        That log was rewritten, or it is new or has grown and the deleted file was a log itself.
        """
        covers = _Covers(self.files)
        all_tables = (*tables, FILES, FINDINGS)
        gone: dict[str, File] = {}
        for table in all_tables:
            for path, taken in self.histories[table.name].sources.items():
                if path in covers.here or (
                    self.same_bytes and any(other in covers.here for other in self.same_bytes.get(path, ()))
                ):
                    continue  # it is still there, perhaps elsewhere
                if path not in gone and covers.may_cover(path) and (file := known_file(path, taken)) is not None:
                    gone[path] = file
        is_log = registry.formats_with(RECORDS)
        lost = {(str(file.place.group), file.place.start_offset) for file in gone.values() if file.format in is_log}
        exist: dict[str, bool] = {}
        lost_logs = [file for file in gone.values() if file.format in is_log]
        over = [log for file in lost_logs if (log := covers.log_of(file)) is not None]
        taken_up = {log.path for log in over if any(self._is_new(log, table) for table in all_tables)}
        for path, file in gone.items():
            log = covers.log_of(file)
            if log is None or log.path in rewrites.refused:
                continue
            # A file that describes a log, such as a snapshot of its producers, goes with the offsets of one that was rewritten before it.
            is_stale = file.format not in is_log and covers.is_after(file, rewritten | taken_up)
            is_lost = (str(file.place.group), file.place.start_offset) in lost
            for table in all_tables:
                if path not in self.histories[table.name].sources:
                    continue
                if log.path not in rewritten and not is_stale and not (is_lost and self._is_new(log, table)):
                    continue
                if path not in exist:
                    exist[path] = exists(path)
                if exist[path]:
                    continue
                if table.name not in _ABOUT_FILES and not self.takes(log, table):
                    continue
                is_kept = self.policy == "keep" or file.place.group in self.replicas.others
                is_narrower = table.name not in _ABOUT_FILES and self._is_narrower(path, table)
                if self.policy == "refuse" or is_narrower:
                    why = f"has offsets that were ingested from {path}, which is gone"
                    rewrites.refuse(log.path, f"{why}; {NARROWER}" if is_narrower else why)
                elif not (is_kept and file.format in is_log):
                    rewrites.removed.setdefault(table.name, set()).add(path)

    def _is_narrower(self, path: str, table: Table) -> bool:
        """Whether this run would leave out rows of a source that were ingested before."""
        return bool(self.selection) and self.histories[table.name].selections.get(path, "") != self.selection

    def _is_new(self, log: File, table: Table) -> bool:
        """Whether a log is new or has changed since it was ingested into a table, or since it was last inspected."""
        recorded = [self.histories[name].sources.get(log.path) for name in (FILES.name, FINDINGS.name, table.name)]
        # By size: a file that was only touched did not take up the offsets of another one.
        is_unknown = recorded[0] is None or recorded[1] is None
        return is_unknown or any(taken is not None and taken.size != log.size for taken in recorded)


class _Covers:
    """Which log of a directory has which offsets."""

    def __init__(self, files: Iterable[File]) -> None:
        is_log = registry.formats_with(RECORDS)
        self.here: set[str] = set()
        self.logs: dict[str, dict[int, File]] = {}
        self.first: dict[str, str] = {}
        for file in files:
            self.here.add(file.path)
            group, start = file.place.group, file.place.start_offset
            if group is None or start is None or file.format not in is_log or file.place.state is not None:
                continue
            self.logs.setdefault(group, {})[start] = file
            self.first[group] = min(self.first.get(group, file.path), file.path)
        self.starts = {group: sorted(logs) for group, logs in self.logs.items()}

    def may_cover(self, path: str) -> bool:
        """Whether a file is gone and a log may have its offsets; not what retention deleted, whose names are before those of all logs."""
        folder = path.rpartition("/")[0]
        return folder in self.first and path not in self.here and path > self.first[folder]

    def is_after(self, gone: File, rewritten: Collection[str]) -> bool:
        """Whether a rewritten log of the same directory begins at or before a missing file."""
        logs = self.logs.get(str(gone.place.group), {})
        return any(start <= (gone.place.start_offset or 0) and log.path in rewritten for start, log in logs.items())

    def log_of(self, gone: File) -> File | None:
        """The log with the offsets of a missing file; None if they are before all logs."""
        group, start = gone.place.group, gone.place.start_offset
        if group not in self.starts or start is None or gone.place.state is not None:
            return None
        at = bisect_right(self.starts[group], start)
        return self.logs[group][self.starts[group][at - 1]] if at else None


NARROWER = "it was ingested with another selection, so that replacing its rows might lose some: run without a selection"
UNREADABLE = "cannot be read, so that it is not known whether it was rewritten"


def why_replaced(file: File, taken: SourceProgress, marks: Mapping[tuple[str, int], int | None]) -> str | None:
    """Why a file is no longer the one that was ingested, or None if it may have grown."""
    if file.size < taken.stop:
        return f"has {file.size:,} bytes, {taken.stop:,} were ingested: it was truncated or replaced"
    if taken.stop == 0 or taken.mark == 0:  # 0: it was only inspected
        return None
    mark_now = marks[file.path, taken.stop]
    if mark_now is None:
        return UNREADABLE
    return None if mark_now == taken.mark else "holds other bytes than were ingested: it was rewritten or replaced"


# Removal: rows taken out of a table's data files ---------------------------------------------------------------------------------

PATH, CODE = "path", "code"
#: Between a code and a path; neither has it.
BETWEEN = "\n"
#: Rows that are read at a time.
ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class Removal:
    """Which rows are to be removed: those of some paths, findings with some codes at some paths, or some ranges of rows of `records`."""

    paths: frozenset[str] = frozenset()
    ranges: tuple[RowRange, ...] = ()
    #: Codes and paths.
    findings: frozenset[tuple[str, str]] = frozenset()

    @property
    def columns(self) -> list[str]:
        """The columns that identify rows."""
        if self.ranges:
            return [SPLIT, ROW]
        return [PATH, CODE] if self.findings else [PATH]

    @property
    def values(self) -> list[str]:
        """The values of the first of these columns, sorted."""
        if self.ranges:
            return sorted({split for split, _, _ in self.ranges})
        return sorted({*self.paths, *(path for _, path in self.findings)})

    def only(self, values: Collection[str]) -> Removal:
        """What is to be removed of rows with some values of the first column."""
        wanted = set(values)
        return Removal(
            self.paths & wanted,
            tuple(rows for rows in self.ranges if rows[0] in wanted),
            frozenset(finding for finding in self.findings if finding[1] in wanted),
        )

    def mask(self, batch: pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which rows of a batch are to be removed."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if not self.ranges:
            paths = batch.column(PATH).cast(pa.string())
            chosen = pc.is_in(paths, value_set=pa.array(sorted(self.paths), pa.string()))
            if self.findings:
                pairs = pa.array(sorted(f"{code}{BETWEEN}{path}" for code, path in self.findings), pa.string())
                codes_and_paths = pc.binary_join_element_wise(batch.column(CODE).cast(pa.string()), paths, BETWEEN)
                chosen = pc.or_(chosen, pc.is_in(codes_and_paths, value_set=pairs))
            return np.asarray(chosen.fill_null(False).to_numpy(zero_copy_only=False), np.bool_)
        numbers = batch.column(ROW).fill_null(-1).to_numpy()
        splits = batch.column(SPLIT).cast(pa.string()).dictionary_encode()
        codes = splits.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        names = {name: code for code, name in enumerate(splits.dictionary.to_pylist())}
        mask = np.zeros(batch.num_rows, np.bool_)
        for split, first, stop in self.ranges:
            if split in names:
                mask |= (codes == names[split]) & (numbers >= first) & (numbers < stop)
        return mask


@dataclass(frozen=True, slots=True)
class OldFile:
    """A data file that may hold rows to be removed."""

    table: str
    url: str
    size: int
    removal: Removal
    #: The columns that it has.
    stored: Table


@dataclass(frozen=True, slots=True)
class ThinnedFile:
    """A data file that held rows to be removed, how many, and the files with the rest of its rows."""

    table: str
    url: str
    rows: int
    written: tuple[WrittenFile, ...] = field(default=())


def findings_among(urls: Iterable[str], codes: Collection[str]) -> set[tuple[str, str]]:
    """Code and path of the findings with some codes in data files of `findings`. AccessError if one cannot be read."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    findings: set[tuple[str, str]] = set()
    wanted = pa.array(sorted(codes), pa.string())
    for url in urls:
        system, inner = file_system(url)
        try:
            with pq.ParquetFile(system.open_input_file(inner)) as file:
                for batch in file.iter_batches(ROWS, columns=[CODE, PATH]):
                    chosen = batch.filter(pc.is_in(batch.column(CODE).cast(pa.string()), value_set=wanted))
                    findings.update(zip(*(chosen.column(name).to_pylist() for name in (CODE, PATH)), strict=True))
        except (OSError, pa.ArrowException) as error:
            if isinstance(error, AccessError):
                raise
            raise AccessError(f"{url}: {str(error).splitlines()[0]}") from None
    return findings


def old_files(lake: Any, columns: Table, table: Any, removal: Removal, without: Collection[str] = ()) -> list[OldFile]:
    """The data files of an Iceberg table that may hold rows to be removed, by the bounds in its manifests.

    `columns` is the table as rawlog knows it. `without` are data files that are known not to.
    """
    name = columns.name
    column = removal.columns[0]
    field_ids = [field.field_id for field in table.schema().fields if field.name == column]
    values = removal.values
    if not values or not field_ids:
        return []
    with lake.access():
        tasks = list(table.scan().plan_files())
    if any(task.delete_files for task in tasks):
        raise AccessError(f"{lake.path}: table {name} has delete files; compact it with the engine that wrote them")
    files = []
    for task in tasks:
        least, greatest = (
            (bounds or {}).get(field_ids[0]) for bounds in (task.file.lower_bounds, task.file.upper_bounds)
        )
        chosen = _between(values, least, greatest)
        if chosen and str(task.file.file_path) not in without:
            part = removal.only(chosen)
            files.append(
                OldFile(name, str(task.file.file_path), int(task.file.file_size_in_bytes), part, stored(columns))
            )
    return files


def _between(values: Sequence[str], least: bytes | None, greatest: bytes | None) -> Sequence[str]:
    """Those of some sorted values that are within the bounds of a data file; an upper bound may be cut short, and is then raised."""
    start = 0 if least is None else bisect_left(values, least, key=str.encode)
    if greatest is None:
        return values[start:]
    stop = start
    while stop < len(values) and values[stop].encode() <= greatest:
        stop += 1
    return values[start:stop]


def thin(old: OldFile, sheets: Sheets) -> ThinnedFile | None:
    """Write the rows of a data file that stay to `sheets`, which has nothing else; None if no row of it is to be removed.

    AccessError if it cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    system, path = file_system(old.url)
    try:
        with pq.ParquetFile(system.open_input_file(path)) as file:
            count = 0
            for batch in file.iter_batches(ROWS, columns=old.removal.columns):
                count += int(old.removal.mask(batch).sum())
            if count == 0:
                return None
            if count < file.metadata.num_rows:
                for batch in file.iter_batches(ROWS):
                    kept = pa.array(~old.removal.mask(batch))
                    sheets.add(old.stored, fit_batch(old.stored, batch.filter(kept)))
    except (OSError, pa.ArrowException) as error:
        if isinstance(error, AccessError):
            raise
        raise AccessError(f"{old.url}: {str(error).splitlines()[0]}") from None
    return ThinnedFile(old.table, old.url, count, sheets.close())


def rows_of(
    paths: Iterable[str], history: History, systems: Iterable[Any]
) -> tuple[dict[str, tuple[RowRange, ...]], set[str]]:
    """Which rows of `records` came from some sources, and the sources whose rows are unknown.

    A lake of an older rawlog did not record it. Then the rows of the systems' tables (Iceberg tables `systems`) that came from the
    source tell it, if each of them refers to a row of `records`.
    """
    rows = {path: history.rows[path] for path in paths if path in history.rows}
    missing = {path for path in paths if path not in rows}
    if not missing:
        return rows, set()
    ranges_by_path: dict[str, dict[str, tuple[int, int]]] = {}
    unclear: set[str] = set()
    for table in systems:
        for path, split, row in _references(table, missing):
            if row is None:
                unclear.add(path)
                continue
            ranges = ranges_by_path.setdefault(path, {})
            least, greatest = ranges.get(split, (row, row))
            ranges[split] = min(least, row), max(greatest, row)
    for path in ranges_by_path.keys() - unclear:
        rows[path] = tuple((split, first, last + 1) for split, (first, last) in ranges_by_path[path].items())
    return rows, missing - rows.keys()


def _references(table: Any, paths: Collection[str]) -> Iterable[tuple[str, str, int | None]]:
    from pyiceberg import expressions

    make: Any = expressions.In
    names = {field.name for field in table.schema().fields}
    if not {PATH, SPLIT, ROW} <= names:
        scan = table.scan(row_filter=make(PATH, sorted(paths)), selected_fields=(PATH,))
        return ((row[PATH], "", None) for row in scan.to_arrow().to_pylist())
    scan = table.scan(row_filter=make(PATH, sorted(paths)), selected_fields=(PATH, SPLIT, ROW))
    return ((row[PATH], row[SPLIT], row[ROW]) for row in scan.to_arrow().to_pylist())


def merge_ranges(rows: Mapping[str, Iterable[RowRange]]) -> tuple[RowRange, ...]:
    """The ranges of several sources, joined where one begins at the end of another."""
    joined: list[RowRange] = []
    for split, first, stop in sorted(row_range for ranges in rows.values() for row_range in ranges):
        if joined and joined[-1][0] == split and joined[-1][2] >= first:
            joined[-1] = split, joined[-1][1], max(stop, joined[-1][2])
        else:
            joined.append((split, first, stop))
    return tuple(joined)
