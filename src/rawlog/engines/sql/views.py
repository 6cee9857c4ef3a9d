"""The tables of some paths in SQL: their names, their columns, and where their rows are.

The views of one path are its tables by name: `records`, `files`, `findings`, and those of its systems, `batches` or `kafka.batches`.
Of several named paths, `old=DIR`, they are `old.records` and so on, and `old` alone is its records.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from rawlog import registry
from rawlog.engines.sql.bounds import Bounds
from rawlog.io.storage import is_remote, local_path
from rawlog.model.errors import AccessError, DataError, OptionError
from rawlog.model.report import SeriousNote
from rawlog.model.table import COMMON, Table
from rawlog.reading import rows
from rawlog.reading.parts import Part, choose, plan
from rawlog.reading.select import Selection, limit_rows
from rawlog.reading.tree import Tree, open_known, open_tree
from rawlog.values.transform import bind

if TYPE_CHECKING:
    import pyarrow as pa

    from rawlog.lakes.lake import Lake


# ----------------------------------------------------------------------------------------------------------------------
# Reading SQL far enough to know which tables and columns a statement needs; the engines do the rest.
# Tables have dotted names, `kafka.batches` or `old.records`, but the names of temporary views have no dots: `rewrite` replaces them. What
# is uncertain is left as it is, and more columns are read rather than too few.


V = TypeVar("V")
Name = tuple[str, ...]

_TOKEN = re.compile(
    r"""(?P<skip>\s+|--[^\n]*|/\*.*?\*/)|(?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.)*")|`(?P<quoted>(?:[^`]|``)*)`"""
    r"""|(?P<word>[^\W\d]\w*)|(?P<number>\d[\w.]*)|(?P<mark>.)""",
    re.DOTALL,
)
#: A field after a column: `:user.name`, `:items[0].sku`.
_PATH = re.compile(r""":((?:[^\W\d]\w*)(?:\.[^\W\d]\w*|\[\d{1,9}\])*)""")
#: Words that end a list of tables: after them, a dotted name is that of a column.
_ENDS_FROM = frozenset(
    {
        *("select", "where", "group", "order", "having", "limit", "on", "using", "union", "except", "intersect"),
        *("window", "qualify", "cluster", "distribute", "sort", "set"),
    }
)


def rewrite(sql: str, views_by_name: Mapping[Name, V]) -> tuple[str, dict[str, V]]:
    """The SQL with dotted names as names of temporary views, which have no dots, and the views that it may need."""
    tokens = list(_TOKEN.finditer(sql))
    meaning = [index for index, token in enumerate(tokens) if token.lastgroup != "skip"]
    out = [token[0] for token in tokens]
    needed: dict[str, V] = {}
    in_from = False
    at = 0
    while at < len(meaning):
        token = tokens[meaning[at]]
        word = (token["word"] or "").lower()
        if word in ("from", "join", "table", "describe", "desc"):
            in_from = True
        elif word in _ENDS_FROM:
            in_from = False
        chain = _chain(tokens, meaning, at)
        names = tuple(name.lower() for name in chain)
        for count in range(len(names), 0, -1):
            # Outside FROM a dotted name may be that of a column: only one with more parts surely begins with a table.
            sure = count == 1 or in_from or count < len(names)
            if names[:count] in views_by_name and sure:
                name = "_".join(names[:count])
                needed[name] = views_by_name[names[:count]]
                if count > 1:
                    out[meaning[at]] = name
                    for gone in range(meaning[at] + 1, meaning[at + 2 * (count - 1)] + 1):
                        out[gone] = ""
                break
        at += max(1, 2 * len(chain) - 1)
    return "".join(out), needed


@dataclass(frozen=True, slots=True)
class Spelling:
    """How an engine writes what `value:user` and `json(value)` mean. Each gets the column and its type."""

    field: Callable[[str, str, str], str]
    json: Callable[[str, str], str]


def expand(sql: str, columns: Mapping[str, str], spelling: Spelling) -> str:
    """The SQL with `value:user.name[0]`, a field of a JSON text, and `json(value)` as calls of functions.

    `columns` are the columns that hold texts or bytes, in lower case, with their types. Inside brackets and braces a colon means
    something else.
    """
    tokens = list(_TOKEN.finditer(sql))
    out = [token[0] for token in tokens]
    depth, at = 0, 0
    while at < len(tokens):
        mark = tokens[at][0]
        depth += (mark in ("[", "{")) - (mark in ("]", "}"))
        end = _name_end(tokens, at)
        if end is None or (at and tokens[at - 1][0] in (".", ":", "'")):
            at += 1
            continue
        name = (tokens[end - 1]["word"] or tokens[end - 1]["quoted"] or "").lower()
        chain = "".join(out[at:end])
        path = _PATH.match(sql, tokens[end - 1].end()) if name in columns and depth == 0 else None
        if path is not None:
            out[at] = spelling.field(chain, columns[name], path[1])
            stop = next((n for n in range(end, len(tokens)) if tokens[n].start() >= path.end()), len(tokens))
            out[at + 1 : stop] = [""] * (stop - at - 1)
            at = stop
            continue
        if chain.lower() == "json" and (inner := _argument(tokens, end)) is not None:
            begin, close = inner
            name = (tokens[close - 1]["word"] or tokens[close - 1]["quoted"] or "").lower()
            if name in columns:
                out[at] = spelling.json("".join(out[begin:close]), columns[name])
                out[at + 1 : close + 1] = [""] * (close - at)
                at = close + 1
                continue
        at = end
    return "".join(out)


def _name_end(tokens: Sequence[re.Match[str]], at: int) -> int | None:
    """The token after the dotted name that begins at one; None if none begins there."""
    if tokens[at]["word"] is None and tokens[at]["quoted"] is None:
        return None
    while at + 2 < len(tokens) and tokens[at + 1][0] == "." and (tokens[at + 2]["word"] or tokens[at + 2]["quoted"]):
        at += 2
    return at + 1


def _argument(tokens: Sequence[re.Match[str]], at: int) -> tuple[int, int] | None:
    """The tokens of a dotted name that alone is in the parentheses after a function's name: its first, and the closing one."""
    if at + 1 >= len(tokens) or tokens[at][0] != "(":
        return None
    end = _name_end(tokens, at + 1)
    return None if end is None or end >= len(tokens) or tokens[end][0] != ")" else (at + 1, end)


def _chain(tokens: Sequence[re.Match[str]], meaning: Sequence[int], at: int) -> list[str]:
    """The names of `a.b.c` that begins at a token; empty if the token is not a name."""
    names: list[str] = []
    while at < len(meaning):
        token = tokens[meaning[at]]
        name = token["word"] or token["quoted"]
        if name is None:
            break
        names.append(name)
        if at + 2 >= len(meaning) or tokens[meaning[at + 1]][0] != ".":
            break
        at += 2
    return names


def words_of(sql: str) -> set[str]:
    """Every name in a statement, in lower case; text in double quotes may be one."""
    words = {(token["word"] or token["quoted"] or "").lower() for token in _TOKEN.finditer(sql)}
    return words | {token[0][1:-1].lower() for token in _TOKEN.finditer(sql) if token[0].startswith('"')}


def column_words(sql: str) -> set[str] | None:
    """Names that include all columns of a query; None if it may need columns without naming them."""
    tokens = [token for token in _TOKEN.finditer(sql) if token.lastgroup != "skip"]
    words = [(token["word"] or token["quoted"] or token[0]).lower() for token in tokens]
    if not words or words[0] not in ("select", "with"):
        return None
    for index, word in enumerate(words):
        if word == "*" and words[max(0, index - 2) : index + 2] != ["count", "(", "*", ")"]:
            return None
        if word in ("natural", "|", "columns") or (word in ("table", "from") and words[index - 1] in ("(", ";")):
            return None
    return words_of(sql)


def needed_columns(table: Table, words: Collection[str] | None) -> list[str]:
    """The columns that a query names, all for None; the narrowest one if it only counts."""
    if words is None:
        return list(table.names)
    named = [column.name for column in table.columns if column.name.lower() in words]
    narrow = [column.name for column in table.columns if column.type in ("int", "bigint")]
    return named or narrow[:1] or [table.columns[0].name]


def statements(text: str) -> tuple[list[str], str]:
    """The statements of a text that end in `;`, without empty ones, and the text after the last one."""
    texts: list[str] = []
    start = 0
    for token in _TOKEN.finditer(text):
        if token.lastgroup == "mark" and token[0] == ";":
            texts.append(text[start : token.start()])
            start = token.end()
    return [statement.strip() for statement in texts if has_meaning(statement)], text[start:]


def has_meaning(text: str) -> bool:
    """Whether a text has more than spaces and comments."""
    return any(token.lastgroup != "skip" for token in _TOKEN.finditer(text))


_NAMED = re.compile(r"([A-Za-z_]\w*)=(.+)", re.DOTALL)

log = logging.getLogger("rawlog.engines.sql")

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
        return self.directory.reading.transformed(self.stored)

    def parts(self, bounds: Bounds = ALL) -> list[Part]:
        """What there is to read, one part of a file each; within bounds, only what may have such rows."""
        return plan(self.directory.chosen(self.stored), self.stored, bounds.selection(self.directory.reading))

    def batches(self, columns: Sequence[str] | None = None, bounds: Bounds = ALL) -> Iterator[pa.RecordBatch]:
        """The rows within bounds, batch by batch. DataError at damage, unless it is to be skipped."""
        return limit_rows(self._batches(columns, bounds), bounds.limit)

    def _note(self, text: str) -> None:
        """Pass on notes about skipped damage and misplaced rows."""
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
        from rawlog.lakes.payload import needs_payload

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
    all_sources = [Source(None, tuple(plain), catalog)] if plain or catalog is not None else []
    if not paths and not all_sources:
        raise OptionError("nothing to ask: name a path, or a catalog with --catalog")
    for path in paths:
        named = _name_of(path)
        if named is None:
            continue
        if any(source.name == named[0] for source in all_sources):
            raise OptionError(f"name {named[0]} is given twice")
        all_sources.append(Source(*named))
    return all_sources


def _name_of(path: str) -> tuple[str, tuple[str, ...]] | None:
    match = _NAMED.fullmatch(path)
    if match is None or os.path.lexists(path):
        return None
    return match[1].lower(), (match[2],)


def views(source: Source, reading: Selection | None = None, note: Callable[[str], None] | None = None) -> list[View]:
    """The views of a source; `note` gets the choice of replicas.

    AccessError if it does not exist, UnknownFormatError if it has no file of a known format.
    """
    from rawlog.lakes.names import is_lake

    lakes = (
        [path for path in source.paths if is_lake(path)] if source.catalog is None else [f"catalog {source.catalog}"]
    )
    if lakes and len(source.paths) > 1:
        raise OptionError(f"{lakes[0]} is a lake: give it a name, as in lake={lakes[0]}")
    if lakes and reading is not None and reading.transforms and note is not None:
        note(
            f"{lakes[0]}: --decode does not change a lake: `rawlog ingest --decode` fills value_json and value_fields "
            "(`value_fields.orders.total`); "
            f"`rawlog convert {lakes[0]} orders.parquet --format parquet --topic orders --decode value=auto` gives nested columns"
        )
    tables: Mapping[str, Files | LakeTable] = (
        _lake_tables(source) if lakes else _file_tables(source.paths, reading or Selection(), note)
    )
    prefix = () if source.name is None else (source.name,)
    return [
        View(tuple((*prefix, *name) for name in names), rows)
        for names, rows in zip(_names(list(tables), source.name is not None), tables.values(), strict=True)
    ]


def _names(tables: list[str], named: bool) -> list[list[tuple[str, ...]]]:
    """The names of each table: its full name; the short one if it is unique; the empty one for the records of a named path."""
    short = [name.rpartition(".")[2] for name in tables]
    common = {table.name for table in COMMON}
    result: list[list[tuple[str, ...]]] = []
    for name, last in zip(tables, short, strict=True):
        space, _, table_name = name.rpartition(".")
        names: list[tuple[str, ...]] = [(space, table_name)] if space else [(table_name,), ("rawlog", table_name)]
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
    from rawlog.lakes.lake import Lake
    from rawlog.lakes.names import known_tables

    lake, tables = Lake(source.paths[0] if source.paths else None, catalog=source.catalog), known_tables()
    names = [name for name in lake.tables() if name in tables]
    if source.catalog is not None and not names:
        raise AccessError(f"catalog {source.catalog}: it has no table of a lake; `rawlog ingest --catalog` makes them")
    return {name.removeprefix("rawlog."): LakeTable(lake, lake.table_of(name) or tables[name], name) for name in names}
