"""Questions in SQL over files and lakes: every table of a path is a view of a Spark session.

The views of one path are its tables by name: `records`, `files`, `findings`, and those of its systems, `batches` or `kafka.batches`.
Of several named paths, `old=DIR`, they are `old.records` and so on, and `old` alone is its records.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rawlog import errors, registry
from rawlog.errors import AccessError, DataError, OptionError, RawlogError, UnknownFormatError, unknown
from rawlog.jobs.lake import Lake, is_lake, known_tables
from rawlog.storage import is_remote, local_path
from rawlog.tables import COMMON, Column, Table
from rawlog.tree import open_tree

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Load = Callable[["SparkSession", Sequence[str] | None], "DataFrame"]

_NAMED = re.compile(r"([A-Za-z_]\w*)=(.+)", re.DOTALL)
_TOKEN = re.compile(
    r"""(?P<skip>\s+|--[^\n]*|/\*.*?\*/)|(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|`(?P<quoted>(?:[^`]|``)*)`"""
    r"""|(?P<word>[^\W\d]\w*)|(?P<number>\d[\w.]*)|(?P<mark>.)""",
    re.DOTALL,
)
#: Words behind which a dotted name is a column's again.
_ENDS_FROM = frozenset(
    {
        *("select", "where", "group", "order", "having", "limit", "on", "using", "union", "except", "intersect"),
        *("window", "qualify", "cluster", "distribute", "sort", "set"),
    }
)
#: Spark's errors about what was asked: syntax and access rules, data that an expression cannot take.
_ASKED = re.compile(r"SQLSTATE: (?:42|22|0A|21|2B|54)")
_RAISED = re.compile(r"^rawlog\.errors\.(\w+): (.*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Source:
    """Paths that are asked together, under a name or none."""

    name: str | None
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class View:
    """A table as SQL sees it: the dotted names it answers to, its columns, and how Spark reads some of them."""

    names: tuple[tuple[str, ...], ...]
    table: Table
    load: Load


def sources(paths: Sequence[str]) -> list[Source]:
    """The sources that `PATH` and `name=PATH` arguments make; those without a name belong together.

    OptionError for a name that comes twice.
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


def views(source: Source, mode: str = "FAILFAST") -> list[View]:
    """The views of a source. AccessError if it is not there, UnknownFormatError if nothing of it can be read."""
    lakes = [path for path in source.paths if is_lake(path)]
    if lakes and len(source.paths) > 1:
        raise OptionError(f"{lakes[0]} is a lake: give it a name of its own, as lake={lakes[0]}")
    tables = _lake_views(lakes[0]) if lakes else _file_views(source.paths, mode)
    prefix = () if source.name is None else (source.name,)
    return [
        View(tuple((*prefix, *name) for name in names), table, load)
        for names, (table, load) in zip(_names(list(tables), source.name is not None), tables.values(), strict=True)
    ]


def _names(tables: list[str], named: bool) -> list[list[tuple[str, ...]]]:
    """The names of each table: as it is called; in short if that is clear; nothing at all for the records of a named path."""
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


def _file_views(paths: Sequence[str], mode: str) -> dict[str, tuple[Table, Load]]:
    absolute = [path if is_remote(path) else os.path.abspath(local_path(path)) for path in paths]
    tree = open_tree(absolute)
    if not any(file.format for file in tree):
        raise UnknownFormatError(f"{', '.join(paths)}: no file of any known format here, and no lake")

    def loading(name: str) -> Load:
        def load(spark: SparkSession, columns: Sequence[str] | None) -> DataFrame:
            reader = spark.read.format("rawlog").option("table", name).option("mode", mode)
            if columns is not None:
                reader = reader.option("columns", ",".join(columns))
            return reader.load(absolute)

        return load

    return {name: (registry.table_named(name), loading(name)) for name in tree.tables}


def _lake_views(path: str) -> dict[str, tuple[Table, Load]]:
    lake = Lake(path)
    known = known_tables()

    def loading(name: str) -> Load:
        def load(spark: SparkSession, columns: Sequence[str] | None) -> DataFrame:
            ddl = known[name].ddl
            files = lake.data_files(name)
            # Spark 4.3 has no Iceberg runtime: the snapshot's Parquet files are read as they are.
            return spark.read.schema(ddl).parquet(*files) if files else spark.createDataFrame([], ddl)

        return load

    names = [name for name in lake.tables() if name in known]
    return {name.removeprefix("rawlog."): (known[name], loading(name)) for name in names}


class Question:
    """A session with the views of some sources."""

    def __init__(self, spark: SparkSession, given: Sequence[View]) -> None:
        self.spark = spark
        self.views = {name: view for view in given for name in view.names}

    def ask(self, sql: str) -> DataFrame:
        """The answer, not yet computed. OptionError if Spark does not understand the question."""
        text, needed = rewrite(sql, self.views)
        words = _words(sql)
        if words is None and not needed:
            needed = {"_".join(names): view for names, view in self.views.items() if names}
        try:
            return self._analysed(text, needed, words)
        except OptionError:
            if words is None:
                raise
            # Spark names the columns it knows; it should know them all.
            return self._analysed(text, needed, None)

    def _analysed(self, text: str, needed: dict[str, View], words: set[str] | None) -> DataFrame:
        with translated(self.views):
            for name, view in needed.items():
                frame = view.load(self.spark, None if words is None else _needed_columns(view.table, words))
                frame.createOrReplaceTempView(name)
            return self.spark.sql(text)

    def collect(self, frame: DataFrame) -> pa.Table:
        """The rows of an answer. DataError at damage in the files, as the mode says."""
        with translated(self.views):
            return frame.toArrow()


def rewrite(sql: str, known: dict[tuple[str, ...], View]) -> tuple[str, dict[str, View]]:
    """The SQL with dotted names as names of temporary views, which have no dots, and the views that it may need."""
    tokens = list(_TOKEN.finditer(sql))
    meaning = [index for index, token in enumerate(tokens) if token.lastgroup != "skip"]
    out = [token[0] for token in tokens]
    needed: dict[str, View] = {}
    in_from = False
    at = 0
    while at < len(meaning):
        token = tokens[meaning[at]]
        word = (token["word"] or "").lower()
        if word in ("from", "join", "table"):
            in_from = True
        elif word in _ENDS_FROM:
            in_from = False
        chain = _chain(tokens, meaning, at)
        names = tuple(name.lower() for name in chain)
        for count in range(len(names), 0, -1):
            # Elsewhere than behind FROM a dotted name may be a column's: only one that goes on is a table's for sure.
            sure = count == 1 or in_from or count < len(names)
            if names[:count] in known and sure:
                name = "_".join(names[:count])
                needed[name] = known[names[:count]]
                if count > 1:
                    out[meaning[at]] = name
                    for gone in range(meaning[at] + 1, meaning[at + 2 * (count - 1)] + 1):
                        out[gone] = ""
                break
        at += max(1, 2 * len(chain) - 1)
    return "".join(out), needed


def _chain(tokens: Sequence[re.Match[str]], meaning: Sequence[int], at: int) -> list[str]:
    """The names of `a.b.c` that begins at a token; none if it is no name."""
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


def _words(sql: str) -> set[str] | None:
    """Every name in a query, or None if it may want columns that it does not name."""
    tokens = [token for token in _TOKEN.finditer(sql) if token.lastgroup != "skip"]
    words = [(token["word"] or token["quoted"] or token[0]).lower() for token in tokens]
    if not words or words[0] not in ("select", "with"):
        return None
    for index, word in enumerate(words):
        if word == "*" and words[max(0, index - 2) : index + 2] != ["count", "(", "*", ")"]:
            return None
        if word in ("natural", "|") or (word in ("table", "from") and words[index - 1] in ("(", ";")):
            return None
    return set(words)


def _needed_columns(table: Table, words: set[str]) -> list[str]:
    """The columns that a query names; the narrowest one if it only counts."""
    named = [column.name for column in table.columns if column.name.lower() in words]
    narrow = [column.name for column in table.columns if column.type in ("int", "bigint")]
    return named or narrow[:1] or [table.columns[0].name]


def table_of(frame: DataFrame) -> Table:
    """The columns of an answer as a table."""
    return Table("answer", *(Column(field.name, field.dataType.simpleString()) for field in frame.schema.fields))


class translated:  # noqa: N801
    """A block in which Spark's errors become rawlog's, in a line."""

    def __init__(self, known: dict[tuple[str, ...], View] | None = None) -> None:
        self.known = known or {}

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and isinstance(error, Exception) and not isinstance(error, RawlogError):
            raise self.of(error) from error

    def of(self, error: Exception) -> RawlogError:
        """The error of ours that an error of Spark's stands for."""
        text = str(error)
        if (raised := _raised(text)) is not None:
            return raised
        condition = error.getCondition() if hasattr(error, "getCondition") else None
        if condition == "TABLE_OR_VIEW_NOT_FOUND" and self.known:
            name = str(error.getMessageParameters().get("relationName", "")).replace("`", "")  # type: ignore[attr-defined]
            return unknown("table", name, {".".join(names) for names in self.known if names})
        line = re.sub(r"^\[[\w.]+\] ", "", text.strip().partition("\n")[0])
        line = re.sub(r"\s*SQLSTATE: \w+.*", "", line).strip().removesuffix(".")
        where = re.search(r"\(?line (\d+),? pos (\d+)\)?", text)
        place = f" (line {where[1]}, column {int(where[2]) + 1})" if where else ""
        if _ASKED.search(text) or (condition is not None and condition.startswith("PARSE")):
            return OptionError(line + place)
        return AccessError(f"Spark: {line or type(error).__name__}")


def _raised(text: str) -> RawlogError | None:
    """The error that our own code raised inside a Python worker of Spark's, from the traceback."""
    every = list(_RAISED.finditer(text))
    if not every:
        return None
    found = every[-1]
    kind = getattr(errors, found[1], None)
    if not (isinstance(kind, type) and issubclass(kind, RawlogError)):
        return None
    if issubclass(kind, DataError):
        rest = text[found.end() :].lstrip("\n").split("\n")
        context = list(_hex_lines(rest))
        return kind(found[2], context="\n".join(context) or None)
    return kind(found[2])


def _hex_lines(lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        if not re.match(r"\s+[\d,]+  [0-9a-f]{2} ", line):
            return
        yield line


__all__ = ["Question", "Source", "View", "sources", "table_of", "views"]
