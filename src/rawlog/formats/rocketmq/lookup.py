"""Messages found by key and by id, as RocketMQ's own queries find them.

A key is one of those in the property KEYS, which are separated by spaces, or the unique key that the client gave the message. An id is
that unique key, or the broker's own: the address of the broker that stored the message, and where in its commit log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rawlog.core.format import File, Want
from rawlog.core.tables import Table

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from rawlog.core.frames import Frames

UNIQUE_KEY = "UNIQ_KEY"
SIZES = (32, 56)
"""Digits of a broker's message id: of an IPv4 and of an IPv6 address, each with port and position."""
_COLUMNS = {"key": ("keys", "unique_key"), "id": ("message_id", "unique_key", "source_message_id")}


def columns(table: Table, what: str) -> tuple[str, ...]:
    """The columns that tell the keys or ids of a table's rows."""
    if table.name == "records":
        return ("key", "headers") if what == "key" else ("headers",)
    return tuple(name for name in _COLUMNS[what] if name in table.names)


def by_key(batch: pa.RecordBatch, key: bytes) -> pa.Array:
    """Which rows have a key among their keys, as all of them, or as their unique key."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = _is(_unique_keys(batch), key)
    name = next((one for one in ("key", "keys") if one in batch.schema.names), None)
    if name is None:
        return found
    keys = batch.column(name).cast(pa.binary())
    # Most rows do not hold the bytes at all; the few that do are taken apart.
    held = pc.fill_null(pc.match_substring(keys, key), False).to_numpy(zero_copy_only=False)
    mask = np.zeros(batch.num_rows, np.bool_)
    for row in np.flatnonzero(held).tolist():
        value = keys[row].as_py()
        mask[row] = value == key or (key != b"" and key in value.split(b" "))
    return pc.or_(found, pa.array(mask))


def by_id(batch: pa.RecordBatch, id: str) -> pa.Array:
    """Which rows have an id: the unique key, or the broker's message id where the table tells it."""
    import pyarrow.compute as pc

    found = _is(_unique_keys(batch), id.encode())
    for name in ("message_id", "source_message_id"):
        if name in batch.schema.names:
            found = pc.or_(found, _is(batch.column(name), id.upper().encode()))
    return found


def frames(found: Frames, file: File, id: str) -> NDArray[np.bool_] | None:
    """Which messages have a broker's message id; None if it is none."""
    if address(id) is None:
        return None
    from rawlog.core.errors import DataError
    from rawlog.formats.rocketmq.decoder import decode
    from rawlog.formats.rocketmq.tables import MESSAGES

    mask = np.zeros(len(found), np.bool_)
    want = Want(MESSAGES.subset(("position", "message_id")), file, 0)
    try:
        for batch in decode(found, want):
            hits = _is(batch.column("message_id"), id.upper().encode()).to_numpy(zero_copy_only=False)
            at = np.searchsorted(found.positions, batch.column("position").to_numpy()[hits])
            mask[at] = True
    except DataError:
        pass  # decoding the rows meets it again
    return mask


def address(id: str) -> int | None:
    """The physical offset at the end of a broker's message id; None if it is none."""
    if len(id) not in SIZES:
        return None
    try:
        return int.from_bytes(bytes.fromhex(id)[-8:], "big", signed=True)
    except ValueError:
        return None


def _unique_keys(batch: pa.RecordBatch) -> pa.Array:
    """The unique key of each row: of a name that is there twice the last counts."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if "unique_key" in batch.schema.names:
        return batch.column("unique_key")
    if "headers" not in batch.schema.names:
        return pa.nulls(batch.num_rows, pa.binary())
    headers = batch.column("headers")
    pairs, rows = headers.flatten(), pc.list_parent_indices(headers)
    named = pc.equal(pairs.field("key"), UNIQUE_KEY)
    values, rows = pairs.field("value").filter(named), rows.filter(named).to_numpy(zero_copy_only=False)
    last = np.full(batch.num_rows, -1, np.int64)
    last[rows] = np.arange(len(rows))
    return values.take(pa.array(last, mask=last < 0))


def _is(values: pa.Array, wanted: bytes) -> pa.Array:
    """Which values are these bytes; null is none of them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.fill_null(pc.equal(values.cast(pa.binary()), pa.scalar(wanted, pa.binary())), False)
