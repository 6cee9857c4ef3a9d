"""Table: what a path can be read as. Names and types are a contract; the types are written as Spark writes them.

A field of a value is named as a column is: `value.user.name`. Declaring a table needs no Arrow; `Table.schema` builds the Arrow schema,
exact to nullability and time zone, on first use.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from rawlog.model.errors import OptionError, unknown
from rawlog.model.text import is_text

if TYPE_CHECKING:
    import pyarrow as pa


_TOKEN = re.compile(r"[A-Za-z_][A-Za-z_0-9]*|`(?:[^`]|``)*`|[0-9]+|[<>,:()]")
_WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
JSON = "json"
"""The type of a column of JSON texts. Spark calls it string."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name, its Spark type, and what it means."""

    name: str
    type: str
    note: str = ""


class Table:
    """A named list of columns.

    `offsets` and `times` name the columns that hold the first and the last offset or time of a row, where it has such:
    selections go by them. They need not be among the wanted columns.

    `payload` and `row_key` relate a system's table to `records`, as own column -> column of `records`. `payload`: the columns that hold
    the bytes of a message, which a lake stores once, in `records`. `row_key`: the columns that together identify a message.
    """

    def __init__(
        self,
        name: str,
        *columns: Column,
        about: str = "",
        offsets: tuple[str, str] | None = None,
        times: tuple[str, str] | None = None,
        payload: Mapping[str, str] | None = None,
        row_key: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.columns = columns
        self.about = about
        self.offsets = offsets
        self.times = times
        self.payload: Mapping[str, str] = payload or {}
        self.row_key: Mapping[str, str] = row_key or {}

    @property
    def system(self) -> str | None:
        """The system whose table it is; None of one that every system has."""
        return self.name.partition(".")[0] if "." in self.name else None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @cached_property
    def schema(self) -> pa.Schema:
        """The Arrow schema, as Spark demands it of a data source."""
        import pyarrow as pa

        return pa.schema([pa.field(column.name, arrow_type(column.type)) for column in self.columns])

    @property
    def ddl(self) -> str:
        """The schema as Spark's DDL text."""
        return ", ".join(
            f"{_quote(column.name)} {'string' if column.type == JSON else column.type}" for column in self.columns
        )

    def column(self, name: str) -> Column:
        """The column of that name; OptionError with the nearest names if there is none."""
        for column in self.columns:
            if column.name == name:
                return column
        raise unknown(f"column of {self.name}", name, self.names)

    def subset(self, names: Iterable[str]) -> Table:
        """The same table with these columns only, in this order."""
        return self.with_columns(*(self.column(name) for name in names))

    def with_columns(self, *columns: Column) -> Table:
        """The same table with other columns."""
        return Table(
            self.name,
            *columns,
            about=self.about,
            offsets=self.offsets,
            times=self.times,
            payload=self.payload,
            row_key=self.row_key,
        )

    def __repr__(self) -> str:
        return f"Table({self.name!r}: {', '.join(self.names)})"


@lru_cache(maxsize=256)
def arrow_type(ddl: str) -> pa.DataType:
    """The Arrow type that Spark pairs with a type of its own."""
    tokens = _TOKEN.findall(ddl)
    result = _parse(tokens)
    assert not tokens, f"type {ddl!r}"
    return result


def _parse(tokens: list[str]) -> pa.DataType:
    import pyarrow as pa

    word = tokens.pop(0)
    if word == "array":
        _expect(tokens, "<")
        inner = _parse(tokens)
        _expect(tokens, ">")
        return pa.list_(pa.field("element", inner))
    if word == "map":
        _expect(tokens, "<")
        key = _parse(tokens)
        _expect(tokens, ",")
        value = _parse(tokens)
        _expect(tokens, ">")
        return pa.map_(key, value)
    if word == "struct":
        fields = []
        _expect(tokens, "<")
        while True:
            name = tokens.pop(0)
            _expect(tokens, ":")
            name = name[1:-1].replace("``", "`") if name.startswith("`") else name
            fields.append(pa.field(name, _parse(tokens)))
            if tokens.pop(0) == ">":
                return pa.struct(fields)
    if word == "decimal":
        _expect(tokens, "(")
        precision = int(tokens.pop(0))
        _expect(tokens, ",")
        scale = int(tokens.pop(0))
        _expect(tokens, ")")
        return pa.decimal128(precision, scale)
    return {
        JSON: pa.json_(),
        "binary": pa.binary(),
        "string": pa.string(),
        "boolean": pa.bool_(),
        "tinyint": pa.int8(),
        "smallint": pa.int16(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestamp_ntz": pa.timestamp("us"),
    }[word]


def _expect(tokens: list[str], token: str) -> None:
    first = tokens.pop(0)
    assert first == token, f"{token} expected, {first} found"


def spark_type(arrow: pa.DataType, naive: str = "timestamp") -> str:
    """Spark's name of an Arrow type; Arrow's own name where Spark has no such type. `naive` is that of times without a time zone."""
    from pyarrow import types

    if types.is_list(arrow) or types.is_large_list(arrow):
        return f"array<{spark_type(arrow.value_type, naive)}>"
    if types.is_map(arrow):
        return f"map<{spark_type(arrow.key_type, naive)},{spark_type(arrow.item_type, naive)}>"
    if types.is_struct(arrow):
        return f"struct<{','.join(f'{_plain_name(field.name)}:{spark_type(field.type, naive)}' for field in arrow)}>"
    if types.is_timestamp(arrow):
        return "timestamp" if arrow.tz else naive
    if str(arrow) == "extension<arrow.json>":
        return JSON
    if types.is_decimal128(arrow):
        return f"decimal({arrow.precision},{arrow.scale})"
    simple = {"bool": "boolean", "int8": "tinyint", "int16": "smallint", "int32": "int", "int64": "bigint"}
    simple |= {"halffloat": "float", "date32[day]": "date", "large_string": "string", "large_binary": "binary"}
    return simple.get(str(arrow), str(arrow))


def _plain_name(name: str) -> str:
    return name if _WORD.fullmatch(name) else _quote(name)


def _quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


HEADERS = "array<struct<key:string,value:binary>>"

RECORDS = Table(
    "records",
    Column("key", "binary"),
    Column("value", "binary"),
    Column("topic", "string"),
    Column("partition", "int"),
    Column("offset", "bigint"),
    Column("timestamp", "timestamp"),
    Column("timestampType", "int", "0 create, 1 log append"),
    Column("headers", HEADERS, "in order, duplicates and null values kept"),
    about="one row per message, the same for all systems, in the shape of Spark's own Kafka source",
    offsets=("offset", "offset"),
    times=("timestamp", "timestamp"),
)

FILES = Table(
    "files",
    Column("path", "string"),
    Column("system", "string"),
    Column("format", "string"),
    Column("size", "bigint"),
    Column("modified", "timestamp"),
    Column("topic", "string"),
    Column("partition", "int"),
    Column("start_offset", "bigint"),
    Column("end_offset", "bigint", "exclusive"),
    Column("min_timestamp", "timestamp"),
    Column("max_timestamp", "timestamp"),
    Column("frames", "bigint", "whole frames"),
    Column("records", "bigint"),
    Column("valid_size", "bigint", "bytes up to the last whole frame"),
    Column("state", "string", "ok, truncated, damaged, empty, unknown; null: recognised, not read"),
    about="what is there: one row per file",
)

FINDINGS = Table(
    "findings",
    Column("code", "string"),
    Column("severity", "string", "error, warning, info"),
    Column("path", "string"),
    Column("format", "string"),
    Column("position", "bigint"),
    Column("size", "bigint"),
    Column("offset", "bigint"),
    Column("message", "string"),
    Column("expected", "string"),
    Column("found", "string"),
    about="what verification has to say: one row per finding",
)

COMMON = (RECORDS, FILES, FINDINGS)


# Names of fields: `value.user.name`, `value.items[0]`, `headers.trace`, and the columns of a table that they are of --------------

#: A name, or a number for an item of a list; EVERY leads to all of them.
Step = str | int
EVERY = -1
_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d{1,9}|\*)\]")


def parse_steps(text: str) -> list[Step]:
    """`value.items[*].sku` -> its names and numbers. ValueError if it is anything else."""
    steps: list[Step] = []
    at = 0
    while at < len(text):
        match = _STEP.match(text, at)
        if match is None:
            raise ValueError(f"{text!r}: not the name of a field")
        steps.append(match[1] if match[1] is not None else EVERY if match[2] == "*" else int(match[2]))
        at = match.end()
    return steps


def parse_path(text: str) -> tuple[str, tuple[Step, ...]]:
    """`value.items[0].sku` -> the column and the steps from there. OptionError if it is anything else."""
    if not is_text(text):
        raise OptionError(f"{text!r}: not UTF-8")
    try:
        steps = parse_steps(text)
    except ValueError:
        steps = [EVERY]
    if EVERY in steps:
        raise OptionError(f"{text!r}: a field such as value.user or value.items[0].sku expected")
    if not steps or not isinstance(steps[0], str):
        raise OptionError(f"{text!r}: a field such as value.user expected")
    return steps[0], tuple(steps[1:])


def has_fields(column: Column) -> bool:
    """Whether values of a column have fields that can be named."""
    return column.type in ("binary", JSON, HEADERS) or column.type.startswith("struct<")


def field_path(table: Table, text: str) -> tuple[str, tuple[Step, ...]]:
    """The column that a name is of, and the steps from there; none for a column itself. OptionError for an unknown one."""
    if text in table.names or not re.search(r"[.\[]", text):
        return table.column(text).name, ()
    name, steps = parse_path(text)
    if not has_fields(table.column(name)):
        raise OptionError(f"{text!r}: column {name} of {table.name} has no fields")
    if table.column(name).type == HEADERS:
        steps = (text[len(name) + 1 :],)
    return name, steps


def field_column(table: Table, text: str) -> Column:
    """A column of a table, or a field of one as a column: text, the bytes of a header, or what a nested column has there."""
    name, steps = field_path(table, text)
    column = table.column(name)
    if not steps:
        return column
    if column.type == HEADERS:
        return Column(text, "binary")
    if not column.type.startswith("struct<"):
        return Column(text, "string")
    return Column(text, spark_type(_inner(arrow_type(column.type), steps, text), "timestamp_ntz"))


def _inner(type: pa.DataType, steps: tuple[Step, ...], text: str) -> pa.DataType:
    from pyarrow import types

    for step in steps:
        if types.is_struct(type) and isinstance(step, str):
            if type.get_field_index(step) < 0:
                raise OptionError(f"{text!r}: no field {step!r}; there are {', '.join(field.name for field in type)}")
            type = type.field(step).type
        elif types.is_list(type) and isinstance(step, int):
            type = type.value_type
        else:
            raise OptionError(f"{text!r}: {step!r} is not a field of {spark_type(type)}")
    return type
