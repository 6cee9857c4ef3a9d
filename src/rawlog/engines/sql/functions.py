"""Functions that rawlog adds to SQL: what message systems compute, over whole Arrow columns.

Each takes and gives Arrow arrays of equal length; null in any argument gives null. Engines register them under their names.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rawlog.io.checksums import crc32c_spans
from rawlog.kernels import byte_view, hashes
from rawlog.model.table import parse_path
from rawlog.reading.fields import field_of
from rawlog.values.documents import to_json

_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_POSITIVE = 0x7FFF_FFFF


@dataclass(frozen=True, slots=True)
class Function:
    """A function of SQL: the Spark types of its arguments and of its result, and a sentence about it."""

    name: str
    arguments: tuple[str, ...]
    gives: str
    about: str
    call: Callable[..., pa.Array]


class _Bytes:
    """The bytes of a column of text or binary, as spans; those of nulls are empty."""

    def __init__(self, values: pa.Array | pa.ChunkedArray) -> None:
        column = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        column = column.cast(pa.binary())
        _, offsets, data = column.buffers()
        self.count = len(column)
        self.data = byte_view(b"" if data is None else data)
        places = np.zeros(self.count + 1, np.int64)
        if offsets is not None and self.count:
            places = np.frombuffer(offsets, np.int32)[column.offset : column.offset + self.count + 1].astype(np.int64)
        self.nulls = np.asarray(column.is_null())
        self.starts = np.ascontiguousarray(places[:-1])
        self.stops = np.where(self.nulls, self.starts, places[1:])


def _signed(values: NDArray[np.int64]) -> NDArray[np.int32]:
    return values.astype(np.uint32).view(np.int32)


def kafka_partition(key: Any, count: Any) -> pa.Array:
    """The partition, of `count`, where Kafka's producers put a record with this key."""
    spans = _Bytes(key)
    counts = _numbers(count)
    wanted, nulls = counts.values, spans.nulls | counts.nulls | (counts.values <= 0)
    out = np.empty(spans.count, np.int64)
    hashes.murmur2_spans(spans.data, spans.starts, spans.stops, out)
    return pa.array(((out & _POSITIVE) % np.where(nulls, 1, wanted)).astype(np.int32), pa.int32(), mask=nulls)


def java_hash(text: Any) -> pa.Array:
    """Java's `String.hashCode()` of text; null if it is not UTF-8."""
    spans = _Bytes(text)
    out = np.empty(spans.count, np.int64)
    hashes.java_hash_spans(spans.data, spans.starts, spans.stops, out)
    return pa.array(_signed(out & 0xFFFF_FFFF), pa.int32(), mask=spans.nulls | (out < 0))


def crc32c(data: Any) -> pa.Array:
    """The CRC-32C (Castagnoli) of bytes, as a number from 0 to 2³²-1."""
    spans = _Bytes(data)
    return pa.array(crc32c_spans(spans.data, spans.starts, spans.stops), pa.int64(), mask=spans.nulls)


def blob_id(key: Any) -> pa.Array:
    """The text form of an Ambry key, as clients write it: base64 for URLs without padding."""
    spans = _Bytes(key)
    sizes = spans.stops - spans.starts
    out = np.empty(int(((sizes + 2) // 3 * 4).sum()), np.uint8)
    offsets = np.zeros(spans.count + 1, np.int32)
    hashes.url_base64_spans(spans.data, spans.starts, spans.stops, out, offsets)
    valid = None if not spans.nulls.any() else pa.py_buffer(np.packbits(~spans.nulls, bitorder="little"))
    return pa.StringArray.from_buffers(spans.count, pa.py_buffer(offsets), pa.py_buffer(out), valid)


def msg_id(host: Any, *rest: Any) -> pa.Array:
    """RocketMQ's message id of a store host and a physical offset: `('10.0.0.1:10911', 42)`, or with the port apart."""
    column = host.combine_chunks() if isinstance(host, pa.ChunkedArray) else host
    texts = column.cast(pa.string()).dictionary_encode()
    offset = _numbers(rest[-1])
    nulls = np.asarray(column.is_null()) | offset.nulls
    if len(rest) == 1:
        addresses = [_host_and_port(text) for text in texts.dictionary.to_pylist()]
        front = pa.array(addresses, pa.string()).take(texts.indices)
    else:
        port = _numbers(rest[0])
        nulls |= port.nulls
        addresses = [_address(text) for text in texts.dictionary.to_pylist()]
        front = pc.binary_join_element_wise(
            pa.array(addresses, pa.string()).take(texts.indices), _hex(port.values, 4), ""
        )
    ids = pc.binary_join_element_wise(front, _hex(offset.values, 8), "")
    return pc.if_else(pa.array(nulls), pa.scalar(None, pa.string()), ids)


def json_field(data: Any, path: Any) -> pa.Array:
    """A field of a JSON text, as `user.name` or `items[0].sku`: strings without quotes, anything else as JSON; null if there is none."""
    column = _whole(data)
    paths = _whole(path).cast(pa.string()).dictionary_encode()
    if len(paths.dictionary) == 1 and not paths.null_count:
        return _field(column, paths.dictionary[0].as_py())
    fields = pa.nulls(len(column), pa.string())
    codes = paths.indices
    for code, text in enumerate(paths.dictionary.to_pylist()):
        fields = pc.if_else(pc.fill_null(pc.equal(codes, code), False), _field(column, text), fields)
    return fields


def _field(column: pa.Array, path: str) -> pa.Array:
    return field_of(column, parse_path(f"value.{path.removeprefix('$.')}")[1])


#: Escapes of a JSON text: two halves of a character, one half alone, any other.
_ESCAPES = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\."
)


def _whole_characters(escape: re.Match[str]) -> str:
    return r"\ufffd" if escape[1] else escape[0]


def json_of(data: Any) -> pa.Array:
    """Bytes that are a JSON text, as text; null if they are anything else. Halves of characters, which DuckDB refuses, are replaced."""
    texts: list[str | None] = []
    for value in _whole(data).cast(pa.binary()).to_pylist():
        try:
            texts.append(None if value is None else _ESCAPES.sub(_whole_characters, to_json(value)))
        except ValueError:
            texts.append(None)
    return pa.array(texts, pa.string())


def _whole(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    column = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    return column.cast(pa.binary()) if pa.types.is_large_binary(column.type) else column


@dataclass(frozen=True, slots=True)
class _Numbers:
    values: NDArray[np.int64]
    nulls: NDArray[np.bool_]


def _numbers(values: pa.Array | pa.ChunkedArray) -> _Numbers:
    column = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    nulls = np.asarray(column.is_null())
    return _Numbers(np.asarray(column.cast(pa.int64()).fill_null(0)), nulls)


def _hex(values: NDArray[np.int64], size: int) -> pa.Array:
    """Numbers as `size` bytes in hex, the highest first."""
    raw = np.ascontiguousarray(values.astype(">i8").view(np.uint8).reshape(-1, 8)[:, 8 - size :])
    digits = np.stack([_HEX[raw >> 4], _HEX[raw & 15]], axis=2).reshape(values.size, 2 * size)
    offsets = np.arange(values.size + 1, dtype=np.int32) * (2 * size)
    return pa.StringArray.from_buffers(values.size, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(digits)))


def _address(text: str | None) -> str | None:
    """An address in hex; null if it is invalid."""
    try:
        return ipaddress.ip_address((text or "").strip().strip("[]").removeprefix("/")).packed.hex().upper()
    except ValueError:
        return None


def _host_and_port(text: str | None) -> str | None:
    host, _, port = (text or "").rpartition(":")
    address = _address(host)
    if address is None or not port.isdecimal() or int(port) > 0xFFFF:
        return None
    return f"{address}{int(port):08X}"


LIBRARY = (
    Function("kafka_partition", ("binary", "int"), "int", "where Kafka's producers put a key", kafka_partition),
    Function("java_hash", ("string",), "int", "Java's String.hashCode", java_hash),
    Function("crc32c", ("binary",), "bigint", "CRC-32C of bytes", crc32c),
    Function("blob_id", ("binary",), "string", "an Ambry key as text", blob_id),
    Function("json_field", ("binary", "string"), "string", "a field of a JSON text: value:user.name", json_field),
    Function("json_of", ("binary",), "string", "bytes as a JSON text, null if they are not: json(value)", json_of),
    Function("msg_id", ("string", "bigint"), "string", "RocketMQ's id of a host and a physical offset", msg_id),
)
NAMES = {function.name: function for function in LIBRARY}
