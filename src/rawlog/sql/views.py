"""The tables of some paths in SQL: their names, their columns, and where their rows are.

The views of one path are its tables by name: `records`, `files`, `findings`, and those of its systems, `batches` or `kafka.batches`.
Of several named paths, `old=DIR`, they are `old.records` and so on, and `old` alone is its records.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rawlog import registry
from rawlog.core.errors import DataError, OptionError, UnknownFormatError
from rawlog.core.tables import COMMON, Table
from rawlog.io.storage import is_remote, local_path
from rawlog.reading import rows
from rawlog.reading.parts import Part, plan
from rawlog.reading.select import Selection
from rawlog.reading.tree import Tree, open_tree

if TYPE_CHECKING:
    import pyarrow as pa

    from rawlog.jobs.lake import Lake

_NAMED = re.compile(r"([A-Za-z_]\w*)=(.+)", re.DOTALL)

log = logging.getLogger("rawlog.sql")


@dataclass(frozen=True, slots=True)
class Source:
    """Paths that are queried together, with a name or without."""

    name: str | None
    paths: tuple[str, ...]


class Directory:
    """The files of a source. `errors` is what to do at damage: `raise`, or `skip` it."""

    def __init__(self, paths: Sequence[str], errors: str) -> None:
        self.paths = [path if is_remote(path) else os.path.abspath(local_path(path)) for path in paths]
        self.errors = errors
        self.tree = open_tree(self.paths)
        if not any(file.format for file in self.tree):
            raise UnknownFormatError(f"{', '.join(paths)}: no file of any known format here, and no lake")

    def refresh(self) -> None:
        """List the files again: some may be new, others deleted."""
        self.tree = open_tree(self.paths)

    @property
    def state(self) -> int:
        """A number that changes when the files do."""
        return hash(tuple((file.path, file.size, file.modified) for file in self.tree))


@dataclass(frozen=True, slots=True)
class Files:
    """A table that is read from raw files."""

    directory: Directory
    table: Table

    def parts(self) -> list[Part]:
        """What there is to read, one part of a file each."""
        return plan(self.directory.tree, self.table, Selection(errors=self.directory.errors))

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows, batch by batch. DataError at damage, unless it is to be skipped."""
        selection = Selection(columns=None if columns is None else tuple(columns), errors=self.directory.errors)
        for part in self.parts():
            try:
                yield from rows.read(part, self.table, selection)
            except DataError as error:
                if self.directory.errors != "skip":
                    raise
                # An error that is raised although damage is skipped concerns the whole file: its header.
                log.warning("%s; the file is left out", str(error).splitlines()[0])


@dataclass(frozen=True, slots=True)
class LakeTable:
    """A table of a lake: Parquet files that hold its rows now."""

    lake: Lake
    table: Table
    name: str

    def files(self) -> list[str]:
        """The URLs of the Parquet files of the newest snapshot."""
        return self.lake.data_files(self.name)

    def plain(self, columns: Sequence[str]) -> Table | None:
        """The table without the columns that may be stored in `rawlog.records`; None if some of them are wanted."""
        from rawlog.jobs.lake.payload import needs_payload

        if not self.table.payload or not self.lake.has_references(self.name):
            return self.table
        if needs_payload(self.table, columns):
            return None
        return self.table.subset([name for name in self.table.names if name not in self.table.payload])


@dataclass(frozen=True, slots=True)
class View:
    """A table in SQL: its dotted names, and where its rows are."""

    names: tuple[tuple[str, ...], ...]
    rows: Files | LakeTable

    @property
    def table(self) -> Table:
        return self.rows.table


def sources(paths: Sequence[str]) -> list[Source]:
    """The sources of `PATH` and `name=PATH` arguments; those without a name make one source.

    OptionError for a name that is given twice.
    """
    plain = [path for path in paths if _name_of(path) is None]
    found = [Source(None, tuple(plain))] if plain else []
    for path in paths:
        named = _name_of(path)
        if named is None:
            continue
        if any(source.name == named[0] for source in found):
            raise OptionError(f"name {named[0]} is given twice")
        found.append(Source(*named))
    return found


def _name_of(path: str) -> tuple[str, tuple[str, ...]] | None:
    match = _NAMED.fullmatch(path)
    if match is None or os.path.lexists(path):
        return None
    return match[1].lower(), (match[2],)


def views(source: Source, errors: str = "raise") -> list[View]:
    """The views of a source. AccessError if it does not exist, UnknownFormatError if it has no file of a known format."""
    from rawlog.jobs.lake import is_lake

    lakes = [path for path in source.paths if is_lake(path)]
    if lakes and len(source.paths) > 1:
        raise OptionError(f"{lakes[0]} is a lake: give it a name of its own, as lake={lakes[0]}")
    tables: Mapping[str, Files | LakeTable] = _lake_tables(lakes[0]) if lakes else _file_tables(source.paths, errors)
    prefix = () if source.name is None else (source.name,)
    return [
        View(tuple((*prefix, *name) for name in names), found)
        for names, found in zip(_names(list(tables), source.name is not None), tables.values(), strict=True)
    ]


def _names(tables: list[str], named: bool) -> list[list[tuple[str, ...]]]:
    """The names of each table: its full name; the short one if it is unique; the empty one for the records of a named path."""
    short = [name.rpartition(".")[2] for name in tables]
    common = {table.name for table in COMMON}
    result: list[list[tuple[str, ...]]] = []
    for name, last in zip(tables, short, strict=True):
        space, _, own = name.rpartition(".")
        names: list[tuple[str, ...]] = [(space, own)] if space else [(own,), ("rawlog", own)]
        if space and short.count(last) == 1 and last not in common:
            names.append((last,))
        if named and name == "records":
            names.append(())
        result.append(names)
    return result


def _file_tables(paths: Sequence[str], errors: str) -> dict[str, Files]:
    directory = Directory(paths, errors)
    return {name: Files(directory, registry.table_named(name)) for name in directory.tree.tables}


def _lake_tables(path: str) -> dict[str, LakeTable]:
    from rawlog.jobs.lake import Lake, known_tables

    lake, known = Lake(path), known_tables()
    names = [name for name in lake.tables() if name in known]
    return {name.removeprefix("rawlog."): LakeTable(lake, known[name], name) for name in names}


__all__ = ["Directory", "Files", "LakeTable", "Source", "Tree", "View", "sources", "views"]
