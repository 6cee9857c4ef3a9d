"""Replicas of what a lake has already: a partition that was ingested from another directory is continued where that one ended.

A lake knows its sources by path. For a store that is not among them, the stores that are get compared with it by identity. How far those
go is in the lake's table `files`. So ingesting one disk of a cluster today and another one tomorrow takes each record once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rawlog import registry
from rawlog.io.walk import walk
from rawlog.lakes.state import History, SourceProgress
from rawlog.model.errors import DataError
from rawlog.model.format import File
from rawlog.model.store import Store
from rawlog.model.table import FILES
from rawlog.model.text import counted
from rawlog.reading.parts import contradict, copies
from rawlog.reading.tree import Tree

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
