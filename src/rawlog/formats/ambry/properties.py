"""What `records` shows of a message in its headers: kind, life version and the properties, as text."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog.formats.ambry.layouts import BLOB_TYPES, Kind
from rawlog.formats.ambry.reader import KINDS, Messages, text_column
from rawlog.tables import HEADERS, arrow_type

_TYPE = arrow_type(HEADERS)
_BOOLEANS = pa.array([b"false", b"true"], pa.binary())
_BLOB_TYPES = pa.array([name.encode() for name in BLOB_TYPES], pa.binary())

#: Header, what it is made of, how it is written; in upstream's order of the fields.
PUT_HEADERS = (
    ("time_to_live", "time_to_live", "number"),
    ("is_private", "is_private", "boolean"),
    ("creation_time", "creation_time", "number"),
    ("blob_size", "properties_blob_size", "number"),
    ("content_type", "content_type", "text"),
    ("owner_id", "owner_id", "text"),
    ("service_id", "service_id", "text"),
    ("account_id", "account_id", "number"),
    ("container_id", "container_id", "number"),
    ("is_encrypted", "is_encrypted", "boolean"),
    ("content_encoding", "content_encoding", "text or null"),
    ("filename", "filename", "text or null"),
    ("reserved_metadata_blob_id", "reserved_metadata_blob_id", "text or null"),
    ("blob_type", "blob_type", "blob type"),
    ("is_compressed", "is_compressed", "boolean"),
)
UPDATE_HEADERS = (("update_time", "update_time", "number"), ("new_expiry", "new_expiry", "number"))


def headers(messages: Messages) -> pa.Array:
    """The headers column of messages."""
    count = len(messages)
    kind = messages["kind"]
    put = kind == Kind.PUT
    names, values, present = ["kind", "life_version"], [], []
    values += [KINDS.take(pa.array(kind)).cast(pa.binary()), _numbers(messages["life_version"])]
    present += [np.ones(count, np.bool_), np.ones(count, np.bool_)]
    for name, field, how in PUT_HEADERS:
        there = put if name not in ("account_id", "container_id") else np.ones(count, np.bool_)
        value = _value(messages, field, how)
        if value.null_count:
            there = there & ~np.asarray(value.is_null())
        if name == "is_encrypted":
            there = there & (messages["serde"] >= 3)
        if there.any():
            names.append(name)
            values.append(value)
            present.append(there)
    for name, field, how in UPDATE_HEADERS:
        there = ~put if name == "update_time" else kind == Kind.TTL_UPDATE
        if there.any():
            names.append(name)
            values.append(_value(messages, field, how))
            present.append(there)
    return _interleave(names, values, present, count)


def _value(messages: Messages, field: str, how: str) -> pa.Array:
    if how == "number":
        return _numbers(messages[field])
    if how == "boolean":
        return _BOOLEANS.take(pa.array((messages[field] == 1).astype(np.int8)))
    if how == "blob type":
        return _BLOB_TYPES.take(pa.array(np.maximum(messages[field], 0)))
    return text_column(messages, field, empty_is_null=how == "text or null").cast(pa.binary())


def _numbers(values: NDArray[np.int64]) -> pa.Array:
    if values.size and (values == values[0]).all():
        return pa.repeat(pa.scalar(str(int(values[0])).encode(), pa.binary()), values.size)
    return pa.array(values).cast(pa.string()).cast(pa.binary())


def _interleave(names: list[str], values: list[pa.Array], present: list[NDArray[np.bool_]], count: int) -> pa.Array:
    """Columns of values, each with a name, as one list a row."""
    there = np.stack(present, axis=1)
    rows, which = np.nonzero(there)
    flat = pa.concat_arrays(values).take(pa.array(which * count + rows))
    pairs = pa.StructArray.from_arrays(
        [pa.array(names, pa.string()).take(pa.array(which)), flat], fields=list(_TYPE.value_type)
    )
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(there.sum(axis=1), out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), pairs, type=_TYPE)
