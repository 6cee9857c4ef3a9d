"""Tree: the files found at some paths, each recognised by its place, its name or its first bytes."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePath

from rawlog import registry
from rawlog.io.storage import (
    ListedFile,
    Source,
    is_marked,
    is_remote,
    kind_problem,
    listing,
    local_path,
    split_query,
)
from rawlog.model.errors import DENIED, AccessError, UnrecognisedError
from rawlog.model.format import (
    Family,
    File,
    Place,
    lasting,
)
from rawlog.model.report import SeriousNote
from rawlog.model.store import Store
from rawlog.model.table import RECORDS, Table
from rawlog.model.text import ROWS, counted, html_table, size_text

log = logging.getLogger("rawlog")

HEAD = 4096
#: Files whose first bytes are read at the same time.
READERS = 32


@dataclass(frozen=True, repr=False)
class Tree:
    """What is there, in reading order: by system, topic, partition and offset."""

    roots: tuple[str, ...]
    files: tuple[File, ...]
    #: Files that were found and are not read, because another replica is.
    unread: tuple[File, ...] = ()

    @cached_property
    def tables(self) -> tuple[str, ...]:
        """The names of the tables that these files can be read as."""
        tables = registry.tables_of(file.system for file in self.files)
        return tuple(name for name, table in tables.items() if self.has(table))

    def has(self, table: Table) -> bool:
        """Whether these files can be read as a table."""
        maker = registry.maker(table)
        if table.name in ("files", "findings") or (maker is not None and self.files_for(maker, table.name)):
            return True
        return bool(registry.formats_with(table) & self._formats)

    @cached_property
    def _formats(self) -> set[str]:
        return {file.format for file in self.files if file.format}

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """Every place that is read, so that none of them is written to.

        These are the roots, the matches of globs in an object store, and the targets of symbolic links.
        """
        globs = any(is_remote(root) and any(mark in split_query(root)[0] for mark in "*?[") for root in self.roots)
        files = (*self.files, *self.unread)
        local = [file.path for file in files if not is_remote(file.path)]
        linked = (path for path in local if os.path.islink(path))
        folders = {os.path.dirname(folder) or os.curdir for folder in _one_per_folder(map(local_path, local))}
        elsewhere = (folder for folder in sorted(folders) if os.path.realpath(folder) != os.path.abspath(folder))
        return (
            *self.roots,
            *linked,
            *elsewhere,
            *((file.path for file in files if is_remote(file.path)) if globs else ()),
        )

    def files_for(self, family: Family, table: str) -> list[File]:
        """The files that a folded table of a family is made of, looked for once."""
        if (family.name, table) not in self._folded:
            self._folded[family.name, table] = family.files_for(table, self.files)
        return self._folded[family.name, table]

    @cached_property
    def _folded(self) -> dict[tuple[str, str], list[File]]:
        return {}

    def store_for(self, family: Family) -> Store:
        """The files of a family that checks over several stores look at, as one store: what checks learn of them is learnt once."""
        if family.name not in self._by_family:
            self._by_family[family.name] = Store(family.files_for(None, self.files))
        return self._by_family[family.name]

    @cached_property
    def _by_family(self) -> dict[str, Store]:
        return {}

    def group_of(self, file: File) -> Store:
        """The files that belong with one: its partition, its store."""
        return Store((file,)) if file.place.group is None else self._groups[file.place.group]

    @property
    def groups(self) -> list[Store]:
        """The groups of files, in the order of their first files."""
        return list(self._groups.values())

    @cached_property
    def _groups(self) -> dict[str, Store]:
        groups: dict[str, list[File]] = {}
        for file in self.files:
            if file.place.group is not None:
                groups.setdefault(file.place.group, []).append(file)
        return {name: Store(files) for name, files in groups.items()}

    def __len__(self) -> int:
        return len(self.files)

    def __iter__(self) -> Iterator[File]:
        return iter(self.files)

    def __repr__(self) -> str:
        where = ", ".join(self.roots[:3]) + (", …" if len(self.roots) > 3 else "")
        return f"<rawlog.{type(self).__name__} {where}: {counted(len(self.files), 'file')}, {size_text(self.size)}>"

    def _repr_html_(self) -> str:
        """The first files as a table, for a notebook."""
        names = ("path", "format", "size", "topic", "partition")
        rows = ((f.path, f.format, size_text(f.size), f.place.topic, f.place.partition) for f in self.files[:ROWS])
        return html_table(names, rows, repr(self))

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(file.size for file in self.files)


def open_tree(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], *, format: str | None = None) -> Tree:
    """Walk `paths` and recognise every file; `format` overrules recognition. AccessError for a path that is not there."""
    with lasting():
        return _open_tree(paths, format)


class Unreadable(SeriousNote):
    """A note that a path or file could not be read and was left out."""

    __slots__ = ()


class Unrecognised(Unreadable):
    """A note that a path has no file of a known format and was left out; `format` names one."""

    __slots__ = ()


def open_known(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    format: str | None = None,
    note: Callable[[str], None] | None = None,
    knows: Callable[[File], bool] | None = None,
    must_know: bool = True,
    without_unreadable: bool = False,
) -> Tree:
    """The tree that a verb reads: as `open_tree`, but it is never taken for one if nothing is there.

    UnknownFormatError if no path has a file of a known format, AccessError if no file can be read, unless not `must_know`. A path that
    has none is noted, if others have some; so is one that does not exist, or AccessError is raised for it without `note`. `knows` says
    which files the verb reads besides those of known formats. With `without_unreadable`, what cannot be read and has no known format, such
    as a directory, is noted and left out: for verbs that do not name it in their result. Verbs that follow what is written use
    `open_tree`: what is not there may come.
    """
    roots = [os.fspath(paths)] if isinstance(paths, (str, os.PathLike)) else [os.fspath(path) for path in paths]
    absent: list[AccessError] | None = None if note is None or len(roots) < 2 else []
    origins: dict[str, str] | None = {} if len(roots) > 1 else None
    with lasting():
        tree = _open_tree(roots, format, absent, origins)
    if absent and not tree.roots:
        raise absent[0]
    recognised = [file for file in tree if file.format is not None or (knows is not None and knows(file))]
    if origins is None:
        with_files = set(tree.roots) if recognised else set()
    else:
        with_files = {origins[file.path] for file in recognised if file.path in origins}
        if repeats := _repeats(tree.roots):
            occupied = _occupied(file.path for file in recognised)
            with_files |= {root for root, path in repeats.items() if path in occupied}
    unknown = [f"{root}: {_without_known(root)}" for root in tree.roots if root not in with_files]
    if must_know and not recognised:
        if len(tree) and all(file.problem is not None for file in tree):
            next(iter(tree)).check_readable()
        raise UnrecognisedError("\n".join([*unknown, *map(str, absent or ())]))
    unread = [file for file in tree if file.format is None and file.problem is not None] if without_unreadable else []
    texts = (*(str(error) for error in absent or ()), *(f"{file.path}: {file.problem}" for file in unread))
    for text in (*map(Unreadable, texts), *map(Unrecognised, unknown)):
        (note or log.warning)(text)
    return replace(tree, files=tuple(file for file in tree if file not in unread)) if unread else tree


def _without_known(root: str) -> str:
    """What a path without a file of a known format is."""
    if not is_remote(root) and os.path.exists(local_path(root)) and not os.access(local_path(root), os.R_OK):
        return DENIED
    if is_remote(root) or os.path.isdir(local := local_path(root)) or not os.path.exists(local):
        return "no file of any known format here"
    if (problem := kind_problem(os.stat(local).st_mode)) is not None:
        return problem
    return "an empty file" if os.path.getsize(local) == 0 else "not a file of any known format"


def _open_tree(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    format: str | None,
    absent: list[AccessError] | None = None,
    origins: dict[str, str] | None = None,
) -> Tree:
    """The tree. `absent` gets the errors of paths that are not there, which else are raised; `origins` the path that each file is from."""
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    roots = tuple(os.fspath(path) for path in paths)
    forced = None if format is None else registry.format_named(format)
    if any(is_marked(root) for root in roots):
        registry.families()  # the path may be one of a view that a family knows
    entries: dict[str, ListedFile] = {}
    folders: list[str] = []
    present = []
    repeats = _repeats(roots)
    for root in roots:
        try:
            if root in repeats:
                present.append(root)
                continue
            for entry in listing(root, folders):
                entries.setdefault(entry.path, entry)
                if origins is not None:
                    origins.setdefault(entry.path, root)
            present.append(root)
        except AccessError as error:
            if absent is None:
                raise
            absent.append(error)
    roots = tuple(present)
    named = {repeats.get(root, root).rstrip("/") for root in roots}
    if forced is None:
        recognised = _recognise_all(entries.values())
        files = {file.path: file for file in _leave_copies(tuple(recognised), named)}
        files |= {file.path: file for file in _misplaced_folders(folders, files)}
    else:
        files = {entry.path: _as(entry, forced.name) for entry in entries.values()}
    del entries
    # A forced format is one of files that are there: none are added that they describe.
    settled = [file for file in _settle(files.values()) if forced is None or file.path in files]
    files = {}
    for file in settled:
        if file.path.rstrip("/") in named and file.place.state is not None:
            # Asked for by name: read it although the system itself would not.
            file = replace(file, place=replace(file.place, state=None))
        files[file.path] = file
    return Tree(roots, tuple(sorted(files.values(), key=_order)))


def _repeats(roots: Sequence[str]) -> dict[str, str]:
    """The local roots that an earlier or wider one contains, however they are spelled, with their paths as that one's listing has them: no
    file is read twice.
    """
    if len(roots) < 2:
        return {}
    local = {root: local_path(root) for root in roots if not is_remote(root)}
    real = {root: os.path.realpath(path) for root, path in local.items() if os.path.exists(path)}
    homes: dict[str, str] = {}
    for root, path in real.items():
        homes.setdefault(path, root)
    repeats: dict[str, str] = {}
    for root, path in real.items():
        widest = next(place for place in (*map(str, reversed(PurePath(path).parents)), path) if place in homes)
        if (home := homes[widest]) != root:
            repeats[root] = local[home] if path == widest else os.path.join(local[home], os.path.relpath(path, widest))
    return repeats


def _occupied(paths: Iterable[str]) -> set[str]:
    """Some files, and the directories that they are in or below."""
    occupied: set[str] = set()
    for path in paths:
        while path and path not in occupied:
            occupied.add(path)
            path = path.rpartition("/")[0]
    return occupied


def _one_per_folder(paths: Iterable[str]) -> Iterable[str]:
    """A path of each directory."""
    return {path.rpartition("/")[0]: path for path in paths}.values()


def _settle(files: Iterable[File]) -> list[File]:
    """The files with what those of one system say of one another."""
    by_system: dict[str | None, list[File]] = {}
    for file in files:
        by_system.setdefault(file.system, []).append(file)
    for family in registry.families_of(by_system):
        if family.name in by_system and not family.is_single:
            by_system[family.name] = list(family.store_class.settle(by_system[family.name]))
    return [file for group in by_system.values() for file in group]


def _as(entry: ListedFile, name: str) -> File:
    match = registry.formats()[name].match
    place = match(entry.path) if match is not None else None
    return File(entry.path, entry.size, entry.modified, name, place or Place(), entry.problem)


def _recognise_all(entries: Iterable[ListedFile]) -> Iterator[File]:
    """The files that entries are; those of an object store whose first bytes are needed are read side by side: it is mostly waiting."""
    unclear: list[ListedFile] = []
    modules = registry.modules()
    for entry in entries:
        file = _place(entry, modules)
        if file.format is not None or not is_remote(entry.path):
            yield file if file.format is not None else _sniff(file)
        else:
            unclear.append(entry)
    if unclear:
        from concurrent.futures import ThreadPoolExecutor  # takes longer to import than a small file to read

        with ThreadPoolExecutor(min(READERS, len(unclear)), thread_name_prefix="rawlog-heads") as pool:
            yield from pool.map(recognise, unclear)


def _leave_copies(files: Sequence[File], named: Collection[str]) -> Iterator[File]:
    """The files, without a format for what only its first bytes say is a log, next to one of the same system whose name says it: no system
    reads a `….log.bak` there, and its rows are those of the log again. One that is `named` is what was asked for.
    """
    logs = registry.formats_with(RECORDS)
    homes = {(_folder(file), file.system) for file in files if file.format in logs and file.place.group is not None}
    for file in files:
        is_copy = file.format is not None and file.place == Place() and (_folder(file), file.system) in homes
        yield replace(file, format=None) if is_copy and file.path.rstrip("/") not in named else file


def _folder(file: File) -> str:
    return file.path.rpartition("/")[0]


def _misplaced_folders(folders: Iterable[str], files: Mapping[str, File]) -> list[File]:
    """Directories under the name of a file. One that has known files is what it looks like: a topic may be named `checkpoint`."""
    occupied = _occupied(_one_per_folder(path for path, file in files.items() if file.format is not None))
    modules = registry.modules()
    entries = (ListedFile(path, 0, None, kind_problem(stat.S_IFDIR)) for path in dict.fromkeys(folders))
    return [
        file for entry in entries if entry.path not in occupied and (file := _place(entry, modules)).format is not None
    ]


def recognise(entry: ListedFile) -> File:
    """The file that an entry of a listing is: by place and name first, by its first bytes where those say nothing."""
    file = _place(entry, registry.modules())
    return file if file.format is not None else _sniff(file)


def _place(entry: ListedFile, modules: Sequence[str]) -> File:
    """The file that an entry is, by place and name. Families after the one that knows it are not imported."""
    for module in modules:
        for format in registry.formats_with_places(module):
            place = format.match(entry.path) if format.match is not None else None
            if place is not None:
                return File(entry.path, entry.size, entry.modified, format.name, place, entry.problem)
    return File(entry.path, entry.size, entry.modified, problem=entry.problem)


def _sniff(file: File) -> File:
    """A file that its name says nothing of, by its first bytes."""
    if file.problem is not None or file.size == 0:
        return file
    try:
        with Source(file.path) as source:
            head = source.read(0, HEAD)
    except AccessError as error:
        return replace(file, problem=str(error).removeprefix(f"{file.path}: "))
    for format in registry.formats().values():
        if format.sniff is not None and format.sniff(head, file.size):
            return replace(file, format=format.name)
    return file


def _order(file: File) -> tuple[object, ...]:
    place = file.place
    return (
        file.system or "~",
        place.topic or "",
        -1 if place.partition is None else place.partition,
        place.group or "",
        file.format or "",
        -1 if place.start_offset is None else place.start_offset,
        file.path,
    )
