"""MessageReader: the nested columns of one Protobuf message, for values that were written with any version of its schema.

Versions need no rules of their own: a body is read with the reader's message; missing fields have their defaults, unknown ones are left
out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from rawlog.model.text import FIRST_DAY, LAST_DAY
from rawlog.values.avro import SchemaError
from rawlog.values.protobuf import Compiled, to_json
from rawlog.values.protobuf_values import (
    BOOL,
    BYTES,
    DOUBLE,
    ENUM,
    FIXED32,
    FIXED64,
    FLOAT,
    GROUP,
    INT32,
    INT64,
    MESSAGE,
    SFIXED32,
    SFIXED64,
    SINT32,
    SINT64,
    STRING,
    TIMESTAMP,
    UINT32,
    UINT64,
    WRAPPERS,
    Layout,
    Level,
    Messages,
    instants,
)  # fmt: skip

MOST_FIELDS = 2000
#: Arrow's types for those of fields.
_SIMPLE = {
    DOUBLE: pa.float64(), FLOAT: pa.float32(), INT64: pa.int64(), UINT64: pa.decimal128(20, 0), INT32: pa.int32(),
    FIXED64: pa.decimal128(20, 0), FIXED32: pa.int64(), BOOL: pa.bool_(), STRING: pa.string(), BYTES: pa.binary(), UINT32: pa.int64(),
    ENUM: pa.string(), SFIXED32: pa.int32(), SFIXED64: pa.int64(), SINT32: pa.int32(), SINT64: pa.int64(),
}  # fmt: skip
Read = Callable[[Any], Any]


class MessageReader:
    """Columns of a message. Picklable."""

    def __init__(self, compiled: Compiled, path: tuple[int, ...]) -> None:
        """SchemaError if the message has no columns: it contains itself, or has no fields."""
        self.compiled, self.path, self.name = compiled, path, compiled.messages[path]
        self.arrow, self._read = self._made()

    def __getstate__(self) -> tuple[Compiled, tuple[int, ...]]:
        return self.compiled, self.path

    def __setstate__(self, state: tuple[Compiled, tuple[int, ...]]) -> None:
        self.compiled, self.path = state
        self.name = self.compiled.messages[self.path]
        self.arrow, self._read = self._made()

    def _made(self) -> tuple[pa.DataType, Read]:
        return _Columns().message(self.compiled.message(self.path).DESCRIPTOR, ())

    def value(self, body: bytes) -> Any:
        """A value as Arrow takes it. ValueError if the body is not such a message, or the columns cannot have its value."""
        from google.protobuf.message import DecodeError

        message = self.compiled.message(self.path)()
        try:
            message.ParseFromString(body)
        except DecodeError as error:
            raise ValueError(str(error)) from None
        return self._read(message)


class _Columns:
    """Makes a type, and what reads values of it, from descriptors."""

    def __init__(self) -> None:
        self.count = 0

    def message(self, descriptor: Any, above: tuple[str, ...]) -> tuple[pa.DataType, Read]:
        name = descriptor.full_name
        if name == TIMESTAMP:
            return pa.timestamp("us", "UTC"), _instant
        if name in WRAPPERS:
            return _SIMPLE[descriptor.fields_by_name["value"].type], lambda message: _plain(message.value)
        if name.startswith("google.protobuf."):
            return pa.string(), _text
        names = [field.name.lower() for field in descriptor.fields]
        if name in above or not names or len(set(names)) < len(names):
            raise SchemaError(
                f"message {name}: no columns: it contains itself, has no fields, or some differ only in case"
            )
        self.count += len(names)
        if self.count > MOST_FIELDS:
            raise SchemaError(f"more than {MOST_FIELDS:,} fields")
        made = [(field, *self.field(field, (*above, name))) for field in descriptor.fields]
        reads = [(field.name, read, _has_presence(field)) for field, _, read in made]

        def read_all(message: Any) -> dict[str, Any]:
            return {
                name: None if presence and not message.HasField(name) else read(getattr(message, name))
                for name, read, presence in reads
            }

        return pa.struct([pa.field(field.name, type) for field, type, _ in made]), read_all

    def field(self, field: Any, above: tuple[str, ...]) -> tuple[pa.DataType, Read]:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key, key_read = self._one(field.message_type.fields_by_name["key"], above)
            item, read = self._one(field.message_type.fields_by_name["value"], above)
            return pa.map_(key, item), lambda value: [(key_read(name), read(one)) for name, one in value.items()]
        type, read = self._one(field, above)
        if field.is_repeated:
            return pa.list_(pa.field("element", type)), lambda value: [read(one) for one in value]
        return type, read

    def _one(self, field: Any, above: tuple[str, ...]) -> tuple[pa.DataType, Read]:
        if field.type in (MESSAGE, GROUP):
            return self.message(field.message_type, above)
        if field.type == ENUM:
            symbols = {value.number: value.name for value in field.enum_type.values}
            return pa.string(), lambda number: symbols.get(number, str(number))
        return _SIMPLE[field.type], _string if field.type == STRING else _plain


class ColumnMessages(Messages):
    """The columns of messages: the same values as those that are read one by one."""

    def is_shown(self, field: Any, values: Any, sizes: Any, seen: Any) -> Any:
        return seen if field.has_presence else np.ones(seen.size, np.bool_)

    def nothing(self, layout: Layout, place: int, count: int) -> pa.Array:
        field = layout.fields[place]
        type, _ = _Columns().field(field, ())
        return (
            pa.array([[]], type).take(pa.array(np.zeros(count, np.int64)))
            if field.is_repeated
            else pa.nulls(count, type)
        )

    def unknown(self, layout: Layout, count: int) -> pa.Array:
        return pa.nulls(count, pa.string())

    def joined(self, layout: Layout, made: Sequence[pa.Array], count: int) -> pa.Array:
        by_name = {field.name: one for field, one in zip(layout.fields, made, strict=True)}
        names = [field.name for field in layout.declared]
        fields = [pa.field(name, by_name[name].type) for name in names]
        return pa.StructArray.from_arrays([by_name[name] for name in names], fields=fields)

    def listed(self, items: pa.Array, offsets: Any) -> pa.Array:
        type = pa.list_(pa.field("element", items.type))
        return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), items, type=type)

    def keys(self, field: Any, values: Any, sizes: Any, owners: Any) -> pa.Array:
        return self.leaves(field, values, sizes, owners)

    def mapped(self, keys: pa.Array, items: pa.Array, offsets: Any) -> pa.Array:
        return pa.MapArray.from_arrays(pa.array(offsets.astype(np.int32)), keys, items)

    def symbols(self, names: Sequence[str | int]) -> pa.Array:
        return pa.array([str(one) for one in names], pa.string())

    def leaves(self, field: Any, values: Any, sizes: Any, owners: Any) -> pa.Array:
        made = super().leaves(field, values, sizes, owners)
        type = _SIMPLE[field.type]
        return made if made.type == type else made.cast(type)

    def timestamps(self, level: Level, owners: Any) -> pa.Array:
        seconds, nanos = instants(level)
        is_far = (seconds < FIRST_DAY // 1_000_000) | (seconds > LAST_DAY // 1_000_000)
        micros = np.where(is_far, 0, seconds) * 1_000_000 + nanos // 1000
        is_far |= (nanos % 1000 != 0) | (micros < FIRST_DAY) | (micros > LAST_DAY)
        self.is_unusual[owners[is_far]] = True
        return pa.array(np.where(is_far, 0, micros), pa.timestamp("us", "UTC"))


def _has_presence(field: Any) -> bool:
    return bool(field.has_presence) and not field.is_repeated


def _plain(value: Any) -> Any:
    return value


def _string(value: Any) -> str:
    if not isinstance(value, str):  # proto2 gives bytes that are not UTF-8 as they are
        raise ValueError("a text that is not UTF-8")
    return value


def _instant(message: Any) -> int:
    micros = message.seconds * 1_000_000 + message.nanos // 1000
    if message.nanos % 1000 or not FIRST_DAY <= micros <= LAST_DAY:
        raise ValueError("a time that a column of microseconds cannot have")
    return int(micros)


def _text(message: Any) -> str:
    """Durations and other well-known types as ProtoJSON; a text without its quotes."""
    import json

    shown = to_json(type(message), message.SerializeToString())
    found = json.loads(shown)
    return found if isinstance(found, str) else shown
