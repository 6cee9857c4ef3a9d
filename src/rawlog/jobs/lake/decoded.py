"""Decoded: the columns of decoded values that the table `records` of a lake has. Those of topics grow from run to run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rawlog.core.tables import Table
from rawlog.schemas.fields import join
from rawlog.schemas.transform import added_columns, fields_column

if TYPE_CHECKING:
    import pyarrow as pa

_SIDES = ("key", "value")
#: Structs with a column for each topic.
FIELDS = tuple(f"{side}_fields" for side in _SIDES)
#: Columns that `records` has where values were decoded.
DECODED = frozenset([*FIELDS, *(column.name for side in _SIDES for column in added_columns(side))])


def schema_of(table: Any) -> pa.Schema:
    """The columns of an Iceberg table in Arrow's types, as rawlog has them."""
    import pyarrow as pa
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    from rawlog.core.tables import arrow_type, spark_type

    made = schema_to_pyarrow(table.schema(), include_field_ids=False)
    return pa.schema([(one.name, arrow_type(spark_type(one.type, naive="timestamp_ntz"))) for one in made])


def with_decoded(table: Table, schema: pa.Schema) -> Table:
    """A table with those columns of decoded values that the lake's has."""
    more = []
    for side in _SIDES:
        more += [column for column in added_columns(side) if column.name in schema.names]
        if (name := f"{side}_fields") in schema.names:
            more.append(fields_column(side, schema.field(name).type))
    return table.with_columns(*table.columns, *more)


def is_narrow(schema: pa.Schema, table: Table) -> bool:
    """Whether a lake's table lacks columns, or topics or fields of decoded ones. SchemaError if it has one of another type."""
    if not set(table.names) <= set(schema.names):
        return True
    pairs = [(schema.field(name).type, table.schema.field(name).type) for name in FIELDS if name in table.names]
    return any(not join(has, wanted).equals(has) for has, wanted in pairs)
