"""Keys and headers of `records` as the properties of messages, and back.

Headers become properties in their order, the key becomes KEYS. What properties cannot say (an empty or null value, bytes that separate
them, a key next to a header of the name KEYS) is in one more property, MARK, from which `restore` gives rows back as they were:
`K` means that KEYS before it is the key and no header, anything else is JSON with key and headers, values in base64.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rawlog.core.errors import EncodeError
from rawlog.core.tables import HEADERS, arrow_type
from rawlog.formats.rocketmq.layouts import CRC_PROPERTY, NAME_VALUE, PAIR_END

MARK = b"__RAWLOG"
KEY_ONLY = b"K"
KEYS = b"KEYS"
_BETWEEN, _BEHIND = bytes([NAME_VALUE]), bytes([PAIR_END])


def encode(keys: pa.Array, headers: pa.Array) -> pa.Array:
    """The property string of every row. EncodeError for a header without a name."""
    names, values, ends = _flat(headers)
    good = _storable(names) & _storable(values)
    for reserved in (MARK, CRC_PROPERTY):
        good &= ~_is(names, reserved)
    pairs = pc.binary_join_element_wise(names, _BETWEEN, pc.fill_null(values, b""), _BEHIND, b"")
    pairs = pc.if_else(pa.array(good), pairs, pa.scalar(b"", pa.binary()))
    native = _runs(pairs, ends)

    has_key = _mask(keys.is_valid())
    fits, named = _storable(keys), _sums(_is(names, KEYS), ends) > 0
    exact = _sums(~good, ends) == 0
    same = _last_named(names, values, ends, keys)
    plain = exact & np.where(named, same, ~has_key)
    alone = exact & ~named & has_key & fits
    if plain.all():
        return native
    shown = pc.binary_join_element_wise(pa.scalar(KEYS, pa.binary()), _BETWEEN, pc.fill_null(keys, b""), _BEHIND, b"")
    shown = pc.if_else(pa.array(has_key & fits & ~named), shown, pa.scalar(b"", pa.binary()))
    marks: list[bytes] | NDArray[Any] = np.where(alone, KEY_ONLY, b"").tolist()
    for row in np.flatnonzero(~plain & ~alone).tolist():
        marks[row] = _marked(keys[row].as_py(), headers[row].as_py())
    mark = pa.array([MARK + _BETWEEN + one + _BEHIND if one else b"" for one in marks], pa.binary())
    return pc.binary_join_element_wise(native, shown, mark, b"")


def restore(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows with the key and headers that `encode` was given, wherever MARK is the last of their headers except the entry's checksum."""
    headers = batch.column("headers")
    if not len(headers):
        return batch
    names, values, ends = _flat(headers)
    sizes = np.diff(ends)
    summed = (sizes > 0) & _at(_is(names, CRC_PROPERTY), ends[1:] - 1)
    last = ends[1:] - 1 - summed
    marked = (sizes > summed) & _at(_is(names, MARK), last)
    if not marked.any():
        return batch
    alone = marked & (sizes > 1 + summed) & _at(_is(names, KEYS), last - 1) & _at(_is(values, KEY_ONLY), last)
    found = {row: _read(values[int(last[row])].as_py()) for row in np.flatnonzero(marked & ~alone).tolist()}
    restored = {row: pair for row, pair in found.items() if pair is not None}
    drop = np.zeros(len(names), np.bool_)
    drop[last[alone]] = drop[last[alone] - 1] = True
    drop[ends[1:][alone & summed] - 1] = True
    kept = pa.array(~drop)
    made = _lists(names.filter(kept), values.filter(kept), sizes - (2 + summed) * alone)
    keys = batch.column("key")
    if restored:
        keys_list, headers_list = keys.to_pylist(), made.to_pylist()
        for row, (key, pairs) in restored.items():
            keys_list[row], headers_list[row] = key, pairs
        keys, made = pa.array(keys_list, pa.binary()), pa.array(headers_list, made.type)
    arrays = {"key": keys, "headers": made}
    return pa.RecordBatch.from_arrays(
        [arrays.get(name, batch.column(name)) for name in batch.schema.names], schema=batch.schema
    )


def _flat(headers: Any) -> tuple[pa.Array, pa.Array, NDArray[np.int64]]:
    """Names and values of all headers end to end, and where those of each row end. A null list is an empty one."""
    sizes = pc.fill_null(pc.list_value_length(headers), 0).to_numpy().astype(np.int64)
    names, values = headers.flatten().flatten()
    ends = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))
    if names.null_count:
        at = int(np.argmax(_mask(names.is_null())))
        row = int(np.searchsorted(ends, at, side="right")) - 1
        raise EncodeError(f"row {row:,}: a header without a name, which RocketMQ does not know")
    return names.cast(pa.binary()), values, ends


def _storable(array: pa.Array) -> NDArray[np.bool_]:
    """Which texts survive as a property's name or value: there, not empty, and without a separator."""
    good = _mask(pc.greater(pc.binary_length(array), 0))
    for separator in (_BETWEEN, _BEHIND):
        good &= ~_mask(pc.match_substring(array, separator))
    return good


def _mask(test: Any) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = pc.fill_null(test, False).to_numpy(zero_copy_only=False)
    return found.copy()


def _is(array: pa.Array, text: bytes) -> NDArray[np.bool_]:
    return _mask(pc.equal(array, pa.scalar(text, pa.binary())))


def _at(mask: NDArray[np.bool_], positions: NDArray[np.int64]) -> NDArray[np.bool_]:
    """What a mask says at positions, which may lie outside of it where the answer is not looked at."""
    return mask[np.clip(positions, 0, mask.size - 1)] if mask.size else np.zeros(positions.size, np.bool_)


def _sums(mask: NDArray[np.bool_], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many of each row's headers a mask marks."""
    before = np.concatenate((np.zeros(1, np.int64), np.cumsum(mask, dtype=np.int64)))
    return before[ends[1:]] - before[ends[:-1]]


def _runs(pieces: pa.Array, ends: NDArray[np.int64]) -> pa.Array:
    """The pieces of each row as one."""
    pieces = pieces.combine_chunks() if isinstance(pieces, pa.ChunkedArray) else pieces
    _, offsets, data = pieces.buffers()
    if offsets is None or not len(pieces):
        return pa.repeat(pa.scalar(b"", pa.binary()), ends.size - 1)
    inner = np.frombuffer(offsets, np.int32)[pieces.offset : pieces.offset + len(pieces) + 1]
    return pa.Array.from_buffers(pa.binary(), ends.size - 1, [None, pa.py_buffer(inner[ends].copy()), data])


def _last_named(names: pa.Array, values: pa.Array, ends: NDArray[np.int64], keys: pa.Array) -> NDArray[np.bool_]:
    """Whether a row's last header of the name KEYS, which reading takes for the key, is its key."""
    found = np.flatnonzero(_is(names, KEYS))
    same = np.zeros(ends.size - 1, np.bool_)
    if found.size:
        rows = np.searchsorted(ends, found, side="right") - 1
        latest = np.concatenate((rows[1:] != rows[:-1], [True]))
        rows, found = rows[latest], found[latest]
        same[rows] = _mask(pc.equal(values.take(pa.array(found)), keys.take(pa.array(rows))))
    return same


def _lists(names: pa.Array, values: pa.Array, sizes: NDArray[np.int64]) -> pa.Array:
    kind = arrow_type(HEADERS)
    ends = np.concatenate(([0], np.cumsum(sizes)))
    pairs = pa.StructArray.from_arrays([names.cast(pa.string()), values], fields=list(kind.value_type))
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pairs, type=kind)


def _marked(key: bytes | None, pairs: list[dict[str, Any]] | None) -> bytes:
    """Key and headers in full, as text."""
    value = {"key": _text(key), "headers": [[pair["key"], _text(pair["value"])] for pair in pairs or ()]}
    return json.dumps(value, separators=(",", ":")).encode()


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _read(text: bytes | None) -> tuple[bytes | None, list[dict[str, Any]]] | None:
    """What `_marked` wrote; None for anything else, which is then a header like others."""
    try:
        value = json.loads(text or b"")
        pairs = [{"key": str(name), "value": _data(one)} for name, one in value["headers"]]
        return _data(value["key"]), pairs
    except (ValueError, TypeError, KeyError):
        return None


def _data(text: Any) -> bytes | None:
    return None if text is None else base64.b64decode(text, validate=True)
