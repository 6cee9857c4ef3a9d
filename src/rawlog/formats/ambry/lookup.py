"""Blobs found by their id, in every table that tells it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rawlog.core.errors import OptionError
from rawlog.core.tables import Table
from rawlog.formats.ambry.keys import from_text

if TYPE_CHECKING:
    import pyarrow as pa


def columns(table: Table, what: str) -> tuple[str, ...]:
    """The columns that tell the ids of a table's rows; keys are compared as everywhere."""
    if what == "key":
        return ()
    return next(((name,) for name in ("key", "blob_id") if name in table.names), ())


def by_id(batch: pa.RecordBatch, id: str) -> pa.Array:
    """Which rows are of a blob; none if the text is no blob id."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        raw = from_text(id)
    except OptionError:  # perhaps it is an id of another system that is at the same place
        return pa.repeat(False, batch.num_rows)
    if "key" in batch.schema.names:
        found = pc.equal(batch.column("key"), pa.scalar(raw, pa.binary()))
    else:
        found = pc.equal(batch.column("blob_id"), id.rstrip("="))
    return pc.fill_null(found, False)
