"""The tables of some paths in SQL: their names, their columns, and where their rows are.

The views of one path are its tables by name: `records`, `files`, `findings`, and those of its systems, `batches` or `kafka.batches`.
Of several named paths, `old=DIR`, they are `old.records` and so on, and `old` alone is its records.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rawlog import registry
from rawlog.core.errors import AccessError, DataError, OptionError
from rawlog.core.report import SeriousNote
from rawlog.core.tables import COMMON, Table
from rawlog.io.storage import is_remote, local_path
from rawlog.reading import rows
from rawlog.reading.parts import Part, plan
from rawlog.reading.replicas import choose
from rawlog.reading.select import Selection, limited
from rawlog.reading.tree import Tree, open_known, open_tree
from rawlog.schemas.transform import bind
from rawlog.sql.bounds import Bounds

if TYPE_CHECKING:
    import pyarrow as pa

    from rawlog.jobs.lake import Lake

_NAMED = re.compile(r"([A-Za-z_]\w*)=(.+)", re.DOTALL)

log = logging.getLogger("rawlog.sql")

#: No bounds: all rows.
ALL = Bounds()


@dataclass(frozen=True, slots=True)
class Source:
    """Paths that are queried together, with a name or without."""

    name: str | None
    paths: tuple[str, ...]
    #: The catalog of the lake that it is, if that is not the lake's own.
    catalog: str | None = None


class Directory:
    """The files of a source. `reading` says what to do at damage (`raise`, or `skip` it) and which replicas are read."""

    def __init__(self, paths: Sequence[str], reading: Selection, note: Callable[[str], None] | None = None) -> None:
        """`note` gets the choice of replicas. OptionError if replicas are refused."""
        self.paths = [path if is_remote(path) else os.path.abspath(local_path(path)) for path in paths]
        self.tree = open_known(self.paths, note=note)
        self.paths = list(self.tree.roots)
        self.reading, self.note = bind(reading, self.tree), note
        self._chosen: dict[str, Tree] = {}
        choose(self.tree, reading, note)

    def refresh(self) -> None:
        """List the files again: some may be new, others deleted."""
        self.tree = open_tree(self.paths)
        self._chosen = {}

    def use(self, tree: Tree) -> None:
        """Read these files instead of all that were found."""
        self.tree, self._chosen = tree, {}

    @property
    def errors(self) -> str:
        """What to do at damage."""
        return self.reading.errors

    def chosen(self, table: Table) -> Tree:
        """The files whose rows a table has: of replicas those that are read."""
        if table.name not in self._chosen:
            self._chosen[table.name] = choose(self.tree, self.reading, table=table)
        return self._chosen[table.name]

    @property
    def state(self) -> int:
        """A number that changes when the files do."""
        return hash(tuple((file.path, file.size, file.modified) for file in self.tree))


@dataclass(frozen=True, slots=True)
class Files:
    """A table that is read from raw files."""

    directory: Directory
    #: The table as the files have it.
    stored: Table

    @property
    def table(self) -> Table:
        """The table as queries see it: decoded, if that is asked for."""
        return self.directory.reading.made(self.stored)

    def parts(self, bounds: Bounds = ALL) -> list[Part]:
        """What there is to read, one part of a file each; within bounds, only what may have such rows."""
        return plan(self.directory.chosen(self.stored), self.stored, bounds.selection(self.directory.reading))

    def batches(self, columns: Sequence[str] | None = None, bounds: Bounds = ALL) -> Iterator[pa.RecordBatch]:
        """The rows within bounds, batch by batch. DataError at damage, unless it is to be skipped."""
        return limited(self._batches(columns, bounds), bounds.limit)

    def _note(self, text: str) -> None:
        """Pass on what counts: damage that was passed over, rows that are not at their place."""
        if isinstance(text, SeriousNote) and self.directory.note is not None:
            self.directory.note(text)

    def _batches(self, columns: Sequence[str] | None, bounds: Bounds) -> Iterator[pa.RecordBatch]:
        selection = bounds.selection(self.directory.reading).begun()
        selection = selection.replace(columns=None if columns is None else tuple(columns), limit=None)
        listener = rows.Listener(self.directory.tree, self._note)
        for part in self.parts(bounds):
            try:
                yield from rows.read(part, self.stored, selection, listener)
            except DataError as error:
                if self.directory.errors != "skip":
                    raise
                # An error that is raised although damage is skipped concerns the whole file: its header.
                log.warning("%s; the file is left out", str(error).splitlines()[0])
        for text in selection.judge([selection.tallies]) if selection.transforms else ():
            if self.directory.note is not None:
                self.directory.note(text)


@dataclass(frozen=True, slots=True)
class LakeTable:
    """A table of a lake: Parquet files that hold its rows now."""

    lake: Lake
    table: Table
    name: str

    def files(self, bounds: Bounds = ALL) -> list[str]:
        """The URLs of the Parquet files of the newest snapshot that may have rows within bounds."""
        return self.lake.data_files(self.name, bounds.row_filter(self.table) if bounds else None)

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


def sources(paths: Sequence[str], catalog: str | None = None) -> list[Source]:
    """The sources of `PATH` and `name=PATH` arguments; those without a name make one source: the lake in a `catalog`, if one is given.

    OptionError for a name that is given twice, and for several paths of one lake.
    """
    plain = [path for path in paths if _name_of(path) is None]
    if catalog is not None and len(plain) > 1:
        raise OptionError(f"--catalog {catalog} is one lake; give other paths a name, as logs={plain[1]}")
    found = [Source(None, tuple(plain), catalog)] if plain or catalog is not None else []
    if not paths and not found:
        raise OptionError("nothing to ask: name a path, or a catalog with --catalog")
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


def views(source: Source, reading: Selection | None = None, note: Callable[[str], None] | None = None) -> list[View]:
    """The views of a source; `note` gets the choice of replicas.

    AccessError if it does not exist, UnknownFormatError if it has no file of a known format.
    """
    from rawlog.jobs.lake import is_lake

    lakes = (
        [path for path in source.paths if is_lake(path)] if source.catalog is None else [f"catalog {source.catalog}"]
    )
    if lakes and len(source.paths) > 1:
        raise OptionError(f"{lakes[0]} is a lake: give it a name of its own, as lake={lakes[0]}")
    if lakes and reading is not None and reading.transforms and note is not None:
        note(
            f"{lakes[0]}: --decode does not change a lake: `rawlog ingest --decode` fills value_json and value_fields "
            "(`value_fields.orders.total`); "
            f"`rawlog convert {lakes[0]} orders.parquet --to parquet --topic orders --decode value=auto` gives nested columns"
        )
    tables: Mapping[str, Files | LakeTable] = (
        _lake_tables(source) if lakes else _file_tables(source.paths, reading or Selection(), note)
    )
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


def _file_tables(paths: Sequence[str], reading: Selection, note: Callable[[str], None] | None) -> dict[str, Files]:
    directory = Directory(paths, reading, note)
    return {name: Files(directory, registry.table_named(name)) for name in directory.tree.tables}


def _lake_tables(source: Source) -> dict[str, LakeTable]:
    from rawlog.jobs.lake import Lake, known_tables

    lake, known = Lake(source.paths[0] if source.paths else None, catalog=source.catalog), known_tables()
    names = [name for name in lake.tables() if name in known]
    if source.catalog is not None and not names:
        raise AccessError(f"catalog {source.catalog}: it has no table of a lake; `rawlog ingest --catalog` makes them")
    return {name.removeprefix("rawlog."): LakeTable(lake, lake.table_of(name) or known[name], name) for name in names}


__all__ = ["Directory", "Files", "LakeTable", "Source", "Tree", "View", "sources", "views"]
