"""Opened: the files that may be shown, each under a name; and Scope, some of them.

A name in a request is only ever looked up here. It is never joined to a path, so that no request leads to another file.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from rawlog import registry
from rawlog.io.storage import is_remote, local_path
from rawlog.model.errors import AccessError, UnrecognisedError
from rawlog.model.format import File
from rawlog.model.store import Store
from rawlog.model.table import RECORDS, Table
from rawlog.model.text import counted, valid_text
from rawlog.reading.tree import Tree, open_tree

#: The files are listed again when the list is so many seconds old, and so many times as old as listing took.
FRESH, PATIENCE = 3.0, 20


@dataclass(slots=True)
class FolderListing:
    """A directory: the names of what is in it."""

    folders: dict[str, None] = field(default_factory=dict)
    files: dict[str, None] = field(default_factory=dict)


@dataclass(frozen=True)
class Scope:
    """A file, or all files below a directory. `wide` has whole stores, so that the indexes next to a file are used."""

    name: str
    tree: Tree
    wide: Tree
    file: File | None = None

    @cached_property
    def paths(self) -> frozenset[str]:
        """The paths of its files."""
        return frozenset(file.path for file in self.tree)

    @property
    def default_table(self) -> Table:
        """Records where there are any; of a file that has none, its own first table."""
        names = self.tree.tables
        if RECORDS.name in names:
            return RECORDS
        return registry.table_named(next((name for name in names if name not in ("files", "findings")), "files"))


class Listing:
    """The files of one look at the paths, by name."""

    def __init__(self, tree: Tree, left_out: Sequence[str] = ()) -> None:
        self.tree, self.left_out = tree, tuple(left_out)
        self.files: dict[str, File] = {}
        self.names: dict[str, str] = {}
        self.folders: dict[str, FolderListing] = {"": FolderListing()}
        roots = _bases(tree.roots)
        for file in tree:
            name = valid_text(_name(file.path, roots))
            self.files[name], self.names[file.path] = file, name
            above, _, last = name.rpartition("/")
            self._folder(above).files[last] = None

    def _folder(self, name: str) -> FolderListing:
        folder = self.folders.get(name)
        if folder is None:
            folder = self.folders[name] = FolderListing()
            above, _, last = name.rpartition("/")
            self._folder(above).folders[last] = None
        return folder

    def scope(self, name: str) -> Scope:
        """What a name refers to. AccessError if nothing here has it."""
        if name == "":
            return Scope("", self.tree, self.tree)
        file = self.files.get(name)
        if file is not None:
            group = () if file.place.group is None else self.tree.group_of(file)
            return Scope(name, Tree((file.path,), (file,)), Tree((file.path,), tuple(group) or (file,)), file)
        if name not in self.folders:
            raise AccessError(f"{name}: no file or directory of this name was opened")
        files = tuple(self.files[below] for below in self._below(name))
        groups = {file.place.group for file in files} - {None}
        wide = tuple(file for file in self.tree if file.place.group in groups) if groups else ()
        paths = {file.path for file in wide}
        return Scope(
            name, Tree((name,), files), Tree((name,), (*wide, *(file for file in files if file.path not in paths)))
        )

    def _below(self, name: str) -> Iterable[str]:
        folder = self.folders[name]
        yield from (f"{name}/{file}" if name else file for file in folder.files)
        for inner in folder.folders:
            yield from self._below(f"{name}/{inner}" if name else inner)

    def folder_of(self, store: Store) -> str:
        """The name of the directory that all files of a store are in; that of the file if it is a store of its own."""
        if store[0].place.group is None:
            return self.names[store[0].path]
        names = [self.names[file.path].rpartition("/")[0] for file in store]
        shared = names[0].split("/")
        for other in names[1:]:
            parts = other.split("/")
            while shared != parts[: len(shared)]:
                shared.pop()
        return "/".join(shared)

    def store_at(self, name: str) -> Store | None:
        """The one store whose files a directory has, at their top."""
        for store in self.stores_below(name):
            if self.folder_of(store) == name:
                return store
        return None

    def stores_below(self, name: str) -> list[Store]:
        """The stores with files in a directory; a recording is one file."""
        files = [self.files[below] for below in self._below(name)]
        readable = registry.formats_with(RECORDS)
        first = {file.place.group or file.path: file for file in files if file.place.group or file.format in readable}
        return [self.tree.group_of(file) for file in first.values()]


class OpenedPaths:
    """The paths to show. Their files are listed again now and then: a live log grows."""

    def __init__(self, paths: Sequence[str], *, format: str | None = None) -> None:
        """AccessError for a path that does not exist, UnknownFormatError if none has a file of a known format or is a lake."""
        self.paths = tuple(path if is_remote(path) else os.path.abspath(local_path(path)) for path in paths)
        self.format = format
        self._lock = threading.Lock()
        self._listing = self._list()
        from rawlog.lakes.names import is_lake

        if not any(file.format for file in self._listing.tree) and not any(map(is_lake, self.paths)):
            raise UnrecognisedError(f"{', '.join(paths)}: no file of any known format here, and no lake")

    def listing(self) -> Listing:
        """The files that are there, or were a moment ago."""
        with self._lock:
            age = time.monotonic() - self._at
            if age > max(FRESH, PATIENCE * self._took):
                self._listing = self._list()
            return self._listing

    def _list(self) -> Listing:
        start = time.monotonic()
        tree = open_tree(self.paths, format=self.format)
        kept, left_out = _inside(tree)
        self._at = time.monotonic()
        self._took = self._at - start
        return Listing(kept, left_out)


def _inside(tree: Tree) -> tuple[Tree, list[str]]:
    """The tree without files that a symbolic link leads to outside of what was opened; and what is to be said of those."""
    roots = [os.path.realpath(_base(root)) for root in tree.roots if not is_remote(root)]
    real: dict[str, str] = {}

    def is_inside(path: str) -> bool:
        if is_remote(path):
            return True
        above, name = os.path.split(local_path(path))
        if above not in real:
            real[above] = os.path.realpath(above)
        full = os.path.join(real[above], name)
        if os.path.islink(full):
            full = os.path.realpath(full)
        return any(full == root or full.startswith(root.rstrip("/") + "/") for root in roots)

    kept = tuple(file for file in tree if is_inside(file.path))
    if len(kept) == len(tree):
        return tree, []
    links = f"{counted(len(tree) - len(kept), 'file')} left out: symbolic links lead out of what was opened"
    return Tree(tree.roots, kept), [f"{links}. To show them, open what they lead to as well."]


def check_inside(opened: OpenedPaths, files: Iterable[File]) -> None:
    """AccessError if a file that was opened has become a symbolic link to somewhere else."""
    tree = Tree(opened.paths, tuple(files))
    if len(_inside(tree)[0]) < len(tree):
        raise AccessError("a symbolic link leads out of what was opened")


def _base(root: str) -> str:
    """The directory or file of a root; of a glob the directory before the first mark."""
    path = local_path(root) if not is_remote(root) else root
    if is_remote(root) or os.path.lexists(path) or not any(mark in path for mark in "*?["):
        return path.rstrip("/") or "/"
    parts = path.split("/")
    return "/".join(parts[: next(at for at, part in enumerate(parts) if any(mark in part for mark in "*?["))]) or "/"


def _bases(roots: Sequence[str]) -> list[tuple[str, str]]:
    """Each root with a short name of its own, the longest first."""
    taken: dict[str, str] = {}
    for root in roots:
        base = _base(root)
        plain = base.rstrip("/").rpartition("/")[2] or "files"
        name, number = plain, 1
        while taken.get(name, base) != base:
            number += 1
            name = f"{plain} ({number})"
        taken[name] = base
    return sorted(((base, name) for name, base in taken.items()), key=lambda pair: -len(pair[0]))


def _name(path: str, roots: Sequence[tuple[str, str]]) -> str:
    """The name of a file: that of its root, and its path below it."""
    plain = path if is_remote(path) else local_path(path)
    for base, name in roots:
        if plain == base:
            return name
        inside = base if base.endswith("/") else base + "/"
        if plain.startswith(inside):
            return f"{name}/{plain[len(inside) :]}"
    return plain.lstrip("/")


@dataclass(frozen=True, slots=True)
class Measure:
    """What `ls` says of a store: the records that consumers get, its first offset for them, and its end offset; None: not known."""

    records: int | None = None
    start: int | None = None
    end: int | None = None


class Measures:
    """What is known of stores. A file is read again only if it changed."""

    def __init__(self) -> None:
        self._by_file: dict[tuple[str, int, float | None], tuple[int | None, int | None, int | None]] = {}

    def of(self, store: Store, until: float) -> Measure:
        """Measure a store; nothing is known of it if there is no time left."""
        readable = registry.formats_with(RECORDS)
        sound = (file for file in store if file.place.state is None and file.problem is None)
        logs = [file for file in sound if file.format in readable]
        values = []
        for file in logs:
            key = (file.path, file.size, file.modified)
            if key not in self._by_file:
                if time.monotonic() > until:
                    return Measure()
                self._by_file[key] = _measured(file, store)
            values.append(self._by_file[key])
        counts = [count for count, _, _ in values]
        starts = [start for _, start, _ in values if start is not None]
        ends = [end for _, _, end in values if end is not None]
        number = None if None in counts or not counts else sum(count or 0 for count in counts)
        is_ordered = all(registry.formats()[str(file.format)].ordered for file in logs)
        return Measure(number, min(starts, default=None), max(ends, default=None)) if is_ordered else Measure(number)


def _measured(file: File, store: Store) -> tuple[int | None, int | None, int | None]:
    """The records of a file, its start and its end, for consumers."""
    from rawlog.reading.inspect import file_values, records_below

    row = file_values(file)
    format = registry.formats()[str(file.format)]
    floor = format.codec.floor(file, store) if format.can("floor") else None
    count, start = row.get("records"), row.get("start_offset")
    if floor is not None and count is not None:
        count, start = count - records_below(file, floor), max(floor, start or 0)
    return count, start if row.get("end_offset") is not None else None, row.get("end_offset")
