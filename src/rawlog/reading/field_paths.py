"""Names of fields: `value.user.name`, `value.items[0]`, `headers.trace`, and the columns of a table that they are of."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rawlog.model.errors import OptionError
from rawlog.model.table import (
    HEADERS,
    JSON,
    Column,
    Table,
    arrow_type,
    spark_type,
)
from rawlog.model.text import is_text

if TYPE_CHECKING:
    import pyarrow as pa

#: A name, or a number for an item of a list.
Step = str | int
_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d{1,9})\]")


def parse_path(text: str) -> tuple[str, tuple[Step, ...]]:
    """`value.items[0].sku` -> the column and the steps from there. OptionError if it is anything else."""
    if not is_text(text):
        raise OptionError(f"{text!r}: not UTF-8")
    steps: list[Step] = []
    at = 0
    while at < len(text):
        match = _STEP.match(text, at)
        if match is None:
            raise OptionError(f"{text!r}: a field such as value.user or value.items[0].sku expected")
        steps.append(match[1] if match[1] is not None else int(match[2]))
        at = match.end()
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
