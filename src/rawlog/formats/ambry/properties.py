"""Columns of text made of messages: blob ids, uuids, and the headers of `records` with kind, life version and properties."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog.core.frames import Bytes
from rawlog.core.tables import HEADERS, arrow_type
from rawlog.core.text import java_text
from rawlog.formats.ambry.kernels import texts
from rawlog.formats.ambry.kernels.records import FIELDS
from rawlog.formats.ambry.reader import Messages
from rawlog.kernels.gather import SLACK

_TYPE = arrow_type(HEADERS)
_TEXT_ROWS = [FIELDS.index(field) + 1 for _, field, how, _ in texts.HEADERS if how in (texts.TEXT, texts.TEXT_OR_NONE)]
_NUMBER_ROOM = texts.LONGEST_NUMBER * len(texts.HEADERS)


def headers(messages: Messages) -> pa.Array:
    """The headers column of messages."""
    count = len(messages)
    text = int(np.maximum(messages.fields[_TEXT_ROWS], 0).sum())
    lists, key_ends, value_ends = (
        _buffer(4 * (size + 1)) for size in (count, count * texts.COUNT, count * texts.COUNT)
    )
    keys, values = _buffer(count * texts.NAME_BYTES + SLACK), _buffer(text + count * _NUMBER_ROOM + SLACK)
    made, _, _ = texts.write_headers(
        messages.data,
        messages.fields,
        _numbers(lists),
        _numbers(key_ends),
        np.frombuffer(keys, np.uint8),
        _numbers(value_ends),
        np.frombuffer(values, np.uint8),
        np.empty(texts.COUNT, np.int64),
    )
    pairs = pa.StructArray.from_arrays(
        [
            pa.Array.from_buffers(pa.string(), made, [None, key_ends, keys]),
            pa.Array.from_buffers(pa.binary(), made, [None, value_ends, values]),
        ],
        fields=list(_TYPE.value_type),
    )
    return pa.ListArray.from_arrays(pa.Array.from_buffers(pa.int32(), count + 1, [None, lists]), pairs, type=_TYPE)


def blob_ids(messages: Messages) -> pa.Array:
    """The text form of every key."""
    return text_ids(messages.data, messages["key_start"], messages["key_size"])


def text_ids(data: Bytes, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> pa.Array:
    """The text form of keys that stand in `data`."""
    return _texts(data, starts, sizes, texts.write_base64, int(sizes.sum()) * 4 // 3 + 4 * starts.size)


def uuids(messages: Messages) -> pa.Array:
    """The uuid of every key; in V1 to V5 any text may stand there."""
    room = int(messages["key_size"].sum()) + texts.UUID_TEXT * len(messages)
    return _texts(messages.data, messages["key_start"], messages["key_size"], texts.write_uuids, room)


def _texts(data: Bytes, starts: NDArray[np.int64], sizes: NDArray[np.int64], write: object, room: int) -> pa.Array:
    count = starts.size
    ends, out = _buffer(4 * (count + 1)), _buffer(room + SLACK)
    starts, sizes = np.ascontiguousarray(starts, np.int64), np.ascontiguousarray(sizes, np.int64)
    write(data, starts, sizes, np.frombuffer(out, np.uint8), _numbers(ends))  # type: ignore[operator]
    array = pa.Array.from_buffers(pa.binary(), count, [None, ends, out])
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([java_text(text) for text in array.to_pylist()], pa.string())


def _buffer(size: int) -> pa.Buffer:
    return pa.allocate_buffer(size)


def _numbers(buffer: pa.Buffer) -> NDArray[np.int32]:
    return np.frombuffer(buffer, np.int32)
