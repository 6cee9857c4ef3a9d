"""DuckDB as an engine: in this process, without a JVM, for quick queries. The SQL dialect is DuckDB's.

Raw files are Arrow streams that DuckDB opens when it scans them, with only the columns that the statement names. Tables of a lake are
datasets, of which it reads what it needs; those whose message bytes are in another table are streams too.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Self

import pyarrow as pa

from rawlog.engines import sql as views
from rawlog.engines.sql import ALL, Bounds, Directory, Files, View, bounds_of, functions
from rawlog.lakes.parquet import dataset
from rawlog.model.errors import AccessError, OptionError, RawlogError, install_command, missing, unknown
from rawlog.model.table import JSON, Column, Table, spark_type

# ----------------------------------------------------------------------------------------------------------------------
# Engine: what runs SQL statements; Answer: the result of one.


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a statement: its columns, known at once, and a stream of batches, computed as it is read."""

    schema: pa.Schema
    table: Table
    stream: Callable[[], Iterator[pa.RecordBatch]]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, batch by batch; can be called once. DataError at damage in the files."""
        return self.stream()


class Engine(ABC):
    """A session that knows the views of some sources. Use as a context manager."""

    #: The dialect of its SQL, as sqlglot calls it.
    dialect: str

    def __init__(self, sources: Sequence[View]) -> None:
        self.views: Mapping[tuple[str, ...], View] = {name: view for view in sources for name in view.names if name}
        self._bounds: tuple[str, bool, Mapping[str, Bounds]] = ("", True, {})
        # Their names in the engines, which a statement may use as well.
        self._spelled = {("_".join(name),): view for name, view in self.views.items()} | dict(self.views)

    #: How fields of JSON texts are written in the engine's SQL.
    spelling = views.Spelling(
        lambda column, type, path: f"{column}.{path}" if "<" in type else f"json_field({column}, '{path}')",
        lambda column, type: f"json_of({column})" if type == "binary" else column,
    )

    @abstractmethod
    def ask(self, sql: str) -> Answer:
        """The result of a statement. OptionError if it is invalid."""

    @abstractmethod
    def cancel(self) -> None:
        """Stop the running statement; from another thread or a signal handler."""

    @abstractmethod
    def functions(self) -> Sequence[str]:
        """The names of the functions that SQL can call."""

    def close(self) -> None:  # noqa: B027 - not all hold something
        """Release what the session holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self, sql: str) -> tuple[str, dict[str, View]]:
        """The statement with table names that the engine knows, and the views it uses."""
        rewritten, needed = views.rewrite(sql, self._spelled)
        held = {column.name.lower(): column.type for view in needed.values() for column in view.table.columns}
        texts = {
            name: type for name, type in held.items() if type in ("binary", "string", JSON) or type[:7] == "struct<"
        }
        return views.expand(rewritten, texts, self.spelling), needed

    def bounds(self, rewritten: str, needed: Mapping[str, View], *, utc: bool = True) -> dict[str, Bounds]:
        """Which rows of its views a rewritten statement can need, by name; the same when it is asked again."""
        if self._bounds[:2] != (rewritten, utc):
            tables = {name: view.table for name, view in needed.items()}
            self._bounds = rewritten, utc, bounds_of(rewritten, tables, self.dialect, utc=utc)
        return {name: self._bounds[2].get(name, ALL) for name in needed}

    def hollow(self, sql: str) -> dict[str, View]:
        """All views, for a statement that needs only their names and columns, such as SHOW TABLES; none for other statements."""
        if views.column_words(sql) is not None or self.read(sql)[1]:
            return {}
        return {"_".join(name): view for name, view in self.views.items()}

    def refresh(self) -> None:
        """List the files again: they may have grown."""
        for directory in {id(source): source for source in self._directories()}.values():
            directory.refresh()

    def _directories(self) -> Iterator[Directory]:
        for view in self.views.values():
            if isinstance(view.rows, Files):
                yield view.rows.directory

    def names(self) -> list[str]:
        """The names of the tables, dotted."""
        return sorted({".".join(name) for name in self.views})


def answer_table(schema: pa.Schema) -> Table:
    """The columns of a result as a table."""
    return Table("answer", *(Column(field.name, spark_type(field.type)) for field in schema))


_DUCK_TYPES = {"binary": "BLOB", "string": "VARCHAR", "int": "INTEGER", "bigint": "BIGINT"}
_MISSING = (
    ("column", re.compile(r'column (?:named )?"([^"]+)" (?:not found|that)|does not have a column named "([^"]+)"')),
    ("table", re.compile(r"Table with name (\S+) does not exist")),
    ("function", re.compile(r"Function with name (\S+) does not exist")),
)
BATCH = 1 << 16
#: Columns of rawlog's tables that are reserved words of DuckDB.
RESERVED = frozenset({"offset", "group"})
#: Words after which an expression, and so a column, comes.
_BEFORE_COLUMN = frozenset(
    {
        *(
            "select",
            "distinct",
            "all",
            "by",
            "group by",
            "order by",
            "partition by",
            "where",
            "on",
            "having",
            "qualify",
        ),
        *(
            "and",
            "or",
            "not",
            "when",
            "then",
            "else",
            "case",
            "between",
            "in",
            "like",
            "ilike",
            "as",
            "from",
            "using",
            "interval",
        ),
        *("exclude", "replace", "rename", "returning", "set", "escape", "any", "some", "glob"),
    }
)


class _Stream:
    """Rows as Arrow's capsule: DuckDB opens it for every scan, and once or twice to see the columns."""

    def __init__(self, engine: DuckEngine, table: Table, batches: Callable[[], Iterator[pa.RecordBatch]]) -> None:
        self.engine, self.table, self.batches = engine, table, batches

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return pa.RecordBatchReader.from_batches(self.table.schema, self._read()).__arrow_c_stream__(requested_schema)

    def _read(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self.batches()
        except (Exception, KeyboardInterrupt) as error:  # DuckDB keeps only its text
            self.engine.failure = error
            raise


class DuckEngine(Engine):
    """Runs statements with DuckDB in this process."""

    dialect = "duckdb"
    spelling = views.Spelling(
        lambda column, type, path: (
            f"{column}.{path}" if "<" in type else f"json_field({_as_bytes(column, type)}, '{path}')"
        ),
        lambda column, type: f"TRY_CAST({f'json_of({column})' if type == 'binary' else column} AS JSON)",
    )

    def __init__(self, sources: Sequence[View]) -> None:
        """AccessError if DuckDB is not installed."""
        super().__init__(sources)
        try:
            import duckdb
        except ImportError as error:
            otherwise = "--engine spark" if find_spec("pyspark") else install_command("spark")
            raise missing("DuckDB", "duckdb", otherwise=otherwise) from error
        #: What ended a stream that DuckDB read.
        self.failure: Exception | KeyboardInterrupt | None = None
        self._duckdb: Any = duckdb
        self._connection: Any = duckdb.connect()
        for setting in (
            "TimeZone = 'UTC'",
            "python_enable_replacements = false",
            "autoinstall_known_extensions = false",
        ):
            self._connection.execute(f"SET {setting}")
        self._registered: set[str] = set()

    def ask(self, sql: str) -> Answer:
        """The result, computed as it is read. OptionError if the statement is invalid."""
        rewritten, needed = self.read(sql)
        rewritten = quote_reserved(rewritten)
        words, bounds = views.column_words(sql), self.bounds(rewritten, needed)
        self._register_functions(views.words_of(rewritten))
        for name, view in self.hollow(sql).items():
            self._connection.register(name, view.table.schema.empty_table())
        for name, view in needed.items():
            columns = views.needed_columns(view.table, words)
            self._connection.register(name, self._relation(view, columns, bounds[name]))
        try:
            relation = self._connection.sql(rewritten)
            if relation is None:  # a statement without rows
                return Answer(pa.schema([]), answer_table(pa.schema([])), lambda: iter(()))
            reader = relation.to_arrow_reader(BATCH)
        except Exception as error:
            raise self._translate(error, needed) from error
        kinds = [pa.json_() if str(kind) == "JSON" else None for kind in relation.types]
        pairs = zip(reader.schema, kinds, strict=True)
        schema = pa.schema([pa.field(field.name, kind or _plain(field.type)) for field, kind in pairs])
        return Answer(schema, answer_table(schema), lambda: self._stream(reader, schema, needed))

    def _stream(self, reader: Any, schema: pa.Schema, needed: dict[str, View]) -> Iterator[pa.RecordBatch]:
        try:
            for batch in reader:
                arrays = [_cast(column, field.type) for column, field in zip(batch.columns, schema, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)
        except Exception as error:
            raise self._translate(error, needed) from error

    def _relation(self, view: View, columns: Sequence[str], bounds: Bounds) -> Any:
        rows, table = view.rows, view.table.subset(columns)
        if isinstance(rows, Files):
            return _Stream(self, table, lambda: rows.batches(columns, bounds))
        files, plain = rows.files(bounds), rows.plain(columns)
        if not files:
            return view.table.schema.empty_table()
        if plain is not None:
            return dataset(files, plain)
        payloads = rows.lake.payloads()
        return _Stream(self, table, lambda: payloads.read(files, rows.table, columns))

    def _register_functions(self, words: set[str]) -> None:
        for function in functions.LIBRARY:
            if function.name in words and function.name not in self._registered:
                self._registered.add(function.name)
                self._connection.create_function(
                    function.name,
                    function.call,
                    [_DUCK_TYPES[kind] for kind in function.arguments],
                    _DUCK_TYPES[function.gives],
                    type="arrow",
                    null_handling="special",  # ours know nulls
                )

    def _translate(self, error: Exception, needed: dict[str, View]) -> RawlogError:
        if self.failure is not None:
            failure, self.failure = self.failure, None
            if not isinstance(failure, RawlogError):
                raise failure
            return failure
        if isinstance(error, RawlogError):
            return error
        message = str(error)
        for kind, pattern in _MISSING:
            if match := pattern.search(message):
                name = next(group for group in match.groups() if group).rstrip("!")
                return unknown(kind, name, self._names_of_kind(kind, needed))
        line = re.sub(r"^[\w ]*Error: ", "", message.strip().partition("\n")[0]).removesuffix(".")
        if isinstance(error, self._duckdb.InterruptException):
            return OptionError("cancelled")
        statement_errors = (self._duckdb.ProgrammingError, self._duckdb.DataError, self._duckdb.NotSupportedError)
        return OptionError(line) if isinstance(error, statement_errors) else AccessError(f"DuckDB: {line}")

    def _names_of_kind(self, kind: str, needed: dict[str, View]) -> Sequence[str]:
        if kind == "table":
            return self.names()
        if kind == "function":
            return self.functions()
        return sorted({name for view in needed.values() for name in view.table.names})

    def functions(self) -> list[str]:
        """DuckDB's functions and rawlog's."""
        rows = self._connection.cursor().execute("SELECT DISTINCT function_name FROM duckdb_functions()").fetchall()
        return sorted({name for (name,) in rows if name.isidentifier()} | set(functions.NAMES))

    def confine(self, memory: int) -> None:
        """From now on statements reach the views only, no file, network or setting, and use so many bytes of memory."""
        for setting in (
            "temp_directory = ''",
            f"memory_limit = '{memory >> 20} MiB'",
            "threads = 2",
            "enable_external_access = false",
            "lock_configuration = true",
        ):
            self._connection.execute(f"SET {setting}")

    def cancel(self) -> None:
        """Interrupt the statement that runs."""
        with suppress(Exception):
            self._connection.interrupt()

    def close(self) -> None:
        """Close the database and drop the reference to it: DuckDB warns at the end of the interpreter otherwise."""
        self._connection.close()
        self._connection = None


def _as_bytes(column: str, type: str) -> str:
    return column if type == "binary" else f"encode(CAST({column} AS VARCHAR))"


def quote_reserved(sql: str) -> str:
    """The statement with quotes around columns such as `offset`, so that they are not taken for DuckDB's keywords.

    The words around decide: after `SELECT`, a comma or an operator it is a column, after a complete expression, as in
    `LIMIT 5 OFFSET 3`, a keyword.
    """
    import sqlglot
    from sqlglot.errors import SqlglotError

    try:
        tokens = sqlglot.tokenize(sql, read="duckdb")
    except SqlglotError:
        return sql  # DuckDB says what is wrong
    words = [sql[token.start : token.end + 1] for token in tokens]
    lower = ["", "", *(" ".join(word.lower().split()) for word in words), ""]
    out, copied = [], 0
    for number, (token, word) in enumerate(zip(tokens, words, strict=True)):
        at = number + 2
        if lower[at] in RESERVED and _is_column(lower[at - 2], lower[at - 1], lower[at], lower[at + 1]):
            out += [sql[copied : token.start], f'"{word}"']
            copied = token.end + 1
    return "".join(out) + sql[copied:]


def _is_column(before: str, previous: str, word: str, following: str) -> bool:
    if word == "group" and (following == "by" or previous == "within"):
        return False
    if previous == "*" and before in ("select", "distinct", ",", ".", "("):  # all columns, not a product
        return False
    is_mark = not any(letter.isalnum() or letter in "_\"'$?" for letter in previous)
    expects_column = previous in _BEFORE_COLUMN or (is_mark and previous not in (")", "]", "}"))
    return expects_column or following in ("", ",", ")", "from", ";")  # else it is a name for the expression before it


def _cast(column: pa.Array, type: pa.DataType) -> pa.Array:
    if isinstance(type, pa.JsonType):
        return pa.ExtensionArray.from_storage(type, column.cast(type.storage_type))
    return column.cast(type)


def _plain(type: pa.DataType) -> pa.DataType:
    """An Arrow type as rawlog's tables have it: one time zone, lists of `element`."""
    if pa.types.is_timestamp(type) and type.tz is not None:
        return pa.timestamp("us", "UTC")
    if pa.types.is_map(type):
        return pa.map_(_plain(type.key_type), _plain(type.item_type))
    if pa.types.is_list(type):
        return pa.list_(pa.field("element", _plain(type.value_type)))
    if pa.types.is_struct(type):
        return pa.struct([pa.field(field.name, _plain(field.type)) for field in type])
    return type
