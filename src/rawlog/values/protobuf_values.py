"""Protobuf messages into columns and JSON texts, many at once. Level by level: the messages in a field are read like those around them.

The library is the judge. What the loop cannot tell (a message in two pieces, two members of a oneof, groups, most well-known types, damage)
is left to it, message by message, and tests compare both.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rawlog.kernels import byte_view
from rawlog.kernels.columns import spans
from rawlog.kernels.ints import MAX_64
from rawlog.model.text import FIRST_DAY, LAST_DAY, text_of
from rawlog.values import wire_kernels as k
from rawlog.values.avro import SchemaError
from rawlog.values.documents import float_text, json_text
from rawlog.values.protobuf import (
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
    MessageLayout,
    MessageSchema,
    to_json,
)  # fmt: skip

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Messages in messages: the library refuses more.
MOST_DEPTH = 90
#: Words that one call of the kernel may fill.
MOST_WORDS = 1 << 23
#: From here on Arrow writes whole numbers with an exponent.
WHOLE = 1e7

if TYPE_CHECKING:
    Numbers = NDArray[np.int64]
    Flags = NDArray[np.bool_]


def rows_at_once(layout: MessageLayout) -> int:
    """How many messages may be read in one call."""
    return max(1, MOST_WORDS // max(1, 4 * len(layout.fields)))


@dataclass(slots=True)
class Level:
    """Messages of one type as they were read. What is there of a field is in row `place`."""

    values: NDArray[np.int64]
    sizes: NDArray[np.int64]
    seen: NDArray[np.int64]
    ends: NDArray[np.int64]
    items: Numbers
    item_sizes: Numbers
    base: Numbers
    status: Numbers

    def items_of(self, place: int) -> tuple[Numbers, Numbers]:
        """The items of a repeated field, and their sizes."""
        part = slice(int(self.base[place]), int(self.base[place] + (self.ends[place][-1] if self.ends.size else 0)))
        return self.items[part], self.item_sizes[part]


def scan(layout: MessageLayout, data: NDArray[np.uint8], starts: Numbers, stops: Numbers) -> Level:
    """Read messages. Items of repeated fields are counted first: memory is what they take."""
    shape = len(layout.fields), starts.size
    values, sizes, seen, ends = (np.zeros(shape, np.int64) for _ in range(4))
    status, chosen = np.zeros(starts.size, np.int64), np.zeros(layout.choices, np.int64)
    count, before, base = (np.zeros(shape[0], np.int64) for _ in range(3))
    items = item_sizes = np.zeros(0, np.int64)
    for is_filling in (False, True) if layout.is_repeated.any() else (True,):
        if is_filling:
            base = np.concatenate(([0], np.cumsum(count))).astype(np.int64)
            items, item_sizes = np.empty(base[-1], np.int64), np.empty(base[-1], np.int64)
            base, count = base[:-1].copy(), np.zeros(shape[0], np.int64)
            seen[:] = 0
        k.scan_messages(
            data, starts, stops, layout.numbers, layout.wires, layout.is_repeated, layout.choice, chosen, base,
            is_filling, values, sizes, seen, ends, items, item_sizes, count, before, status,
        )  # fmt: skip
    return Level(values, sizes, seen, ends, items, item_sizes, base, status)


class Messages:
    """Makes an array of messages of one type. `is_unusual` are those that the library must read instead."""

    def __init__(self, data: Any, starts: Numbers, stops: Numbers) -> None:
        self.data, self.starts, self.stops = byte_view(data), starts, stops
        self.is_unusual = np.zeros(starts.size, np.bool_)

    def make(self, layout: MessageLayout, level: Level | None = None) -> pa.Array:
        """The array; what it has for an unusual message means nothing. `level`: the scan of the messages, if there was one."""
        owners = np.arange(self.starts.size)
        if level is None:
            return self.messages(layout, self.starts, self.stops, owners, 0)
        return self._made(layout, level, owners, 0)

    def messages(self, layout: MessageLayout, starts: Numbers, stops: Numbers, owners: Numbers, depth: int) -> pa.Array:
        """Messages at some places; `owners` are the outermost ones that they are in."""
        step = rows_at_once(layout)
        if starts.size > step:
            parts = [slice(first, first + step) for first in range(0, starts.size, step)]
            arrays = [self.messages(layout, starts[part], stops[part], owners[part], depth) for part in parts]
            return pa.concat_arrays(arrays)
        return self._made(layout, scan(layout, self.data, starts, stops), owners, depth)

    def _made(self, layout: MessageLayout, level: Level, owners: Numbers, depth: int) -> pa.Array:
        self.is_unusual[owners[level.status == k.UNUSUAL]] = True
        for place in layout.required:
            self.is_unusual[owners[level.seen[place] == 0]] = True
        if layout.name == TIMESTAMP:
            return self.timestamps(level, owners)
        if layout.name in WRAPPERS:
            return self.leaves(layout.fields[0], level.values[0], level.sizes[0], owners)
        if layout.is_known or depth > MOST_DEPTH:
            self.is_unusual[owners] = True
            return self.unknown(layout, owners.size)
        arrays = [self._field(layout, place, level, owners, depth) for place in range(len(layout.fields))]
        return self.joined(layout, arrays, owners.size)

    def _field(self, layout: MessageLayout, place: int, level: Level, owners: Numbers, depth: int) -> pa.Array:
        field = layout.fields[place]
        if not field.is_repeated:
            values, sizes, seen = level.values[place], level.sizes[place], level.seen[place] != 0
            is_shown = self.is_shown(field, values, sizes, seen)
            rows = np.flatnonzero(is_shown)
            if not rows.size:
                return self.nothing(layout, place, owners.size)
            items = self._values(layout, place, values[rows], sizes[rows], owners[rows], depth)
            return spread(items, rows, owners.size)
        values, sizes = level.items_of(place)
        if not values.size:
            return self.nothing(layout, place, owners.size)
        offsets = np.concatenate(([0], level.ends[place]))
        inside = np.repeat(owners, np.diff(offsets))
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            inner = layout.inner(place)
            entries = scan(inner, self.data, values, values + sizes)
            self.is_unusual[inside[entries.status != k.OK]] = True  # the library leaves out entries with more in them
            keys = self.keys(inner.fields[0], entries.values[0], entries.sizes[0], inside)
            self._refuse_equal(keys, np.repeat(np.arange(owners.size), np.diff(offsets)), inside)
            has = entries.seen[1] != 0
            if inner.fields[1].message_type is not None and not has.all():
                self.is_unusual[inside[~has]] = True  # an empty message
                entries.values[1][~has] = entries.sizes[1][~has] = 0
            items = self._values(inner, 1, entries.values[1], entries.sizes[1], inside, depth)
            return self.mapped(keys, items, offsets)
        return self.listed(self._values(layout, place, values, sizes, inside, depth), offsets)

    def _refuse_equal(self, keys: pa.Array, maps: Numbers, owners: Numbers) -> None:
        """Of equal keys in a map the last counts: left to the library."""
        codes = keys.dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
        both = maps * (int(codes.max(initial=0)) + 1) + codes
        order = np.argsort(both, kind="stable")
        again = np.flatnonzero(np.diff(both[order]) == 0) + 1
        self.is_unusual[owners[order[again]]] = True

    def _values(
        self, layout: MessageLayout, place: int, values: Numbers, sizes: Numbers, owners: Numbers, depth: int
    ) -> pa.Array:
        if layout.fields[place].type == MESSAGE:
            return self.messages(layout.inner(place), values, values + sizes, owners, depth + 1)
        return self.leaves(layout.fields[place], values, sizes, owners)

    def leaves(self, field: Any, values: Numbers, sizes: Numbers, owners: Numbers) -> pa.Array:
        """Values of a field that is no message, as Arrow has them."""
        if field.type == STRING:
            return self._texts(values, sizes, owners)
        if field.type == BYTES:
            return self._bytes(values, sizes)
        if field.type == ENUM:
            return self._symbols(field, values, owners)
        return _number(field.type, values)

    def _bytes(self, values: Numbers, sizes: Numbers) -> pa.Array:
        return spans(self.data, np.ascontiguousarray(values), np.ascontiguousarray(sizes))

    def _texts(self, values: Numbers, sizes: Numbers, owners: Numbers) -> pa.Array:
        runs = self._bytes(values, sizes)
        try:
            return runs.cast(pa.string())
        except pa.ArrowInvalid:
            texts = [text_of(run) for run in runs.to_pylist()]
            self.is_unusual[owners[[text is None for text in texts]]] = True
            return pa.array([text or "" for text in texts], pa.string())

    def _symbols(self, field: Any, values: Numbers, owners: Numbers) -> pa.Array:
        """Names of an enum's values. A number that has none stays one if the enum is open."""
        names = {int(value.number): str(value.name) for value in reversed(field.enum_type.values)}
        distinct, codes = np.unique(values.astype(np.int32), return_inverse=True)
        is_new = np.array([value not in names for value in distinct.tolist()], np.bool_)
        if is_new.any() and field.enum_type.is_closed:
            self.is_unusual[owners[is_new[codes]]] = True
        return self.symbols([names.get(value, value) for value in distinct.tolist()]).take(pa.array(codes))

    # What the forms differ in -------------------------------------------------------------------------------------------

    def is_shown(self, field: Any, values: Numbers, sizes: Numbers, seen: Flags) -> Flags:
        """Which messages have a value of a field that is not repeated."""
        raise NotImplementedError

    def nothing(self, layout: MessageLayout, place: int, count: int) -> pa.Array:
        """A field that no message has, or items of which none has any."""
        raise NotImplementedError

    def unknown(self, layout: MessageLayout, count: int) -> pa.Array:
        """Messages that the library must read."""
        raise NotImplementedError

    def joined(self, layout: MessageLayout, arrays: Sequence[pa.Array], count: int) -> pa.Array:
        """Messages from their fields."""
        raise NotImplementedError

    def listed(self, items: pa.Array, offsets: Numbers) -> pa.Array:
        """A repeated field from its items."""
        raise NotImplementedError

    def keys(self, field: Any, values: Numbers, sizes: Numbers, owners: Numbers) -> pa.Array:
        """The keys of maps."""
        raise NotImplementedError

    def mapped(self, keys: pa.Array, items: pa.Array, offsets: Numbers) -> pa.Array:
        """A map from its entries."""
        raise NotImplementedError

    def symbols(self, names: Sequence[str | int]) -> pa.Array:
        """Names of an enum's values, or numbers."""
        raise NotImplementedError

    def timestamps(self, level: Level, owners: Numbers) -> pa.Array:
        """Times from seconds and nanoseconds."""
        raise NotImplementedError


class JsonMessages(Messages):
    """ProtoJSON with the field names of the schema, as the library's `MessageToDict` has it."""

    def is_shown(self, field: Any, values: Numbers, sizes: Numbers, seen: Flags) -> Flags:
        if field.has_presence:
            return seen
        if field.type in (STRING, BYTES):
            values = sizes
        if field.type in (INT32, UINT32, SINT32, ENUM):
            values = values & 0xFFFFFFFF
        return np.not_equal(values, 0)

    def nothing(self, layout: MessageLayout, place: int, count: int) -> pa.Array:
        return pa.nulls(count, pa.string())

    def unknown(self, layout: MessageLayout, count: int) -> pa.Array:
        return pa.nulls(count, pa.string())

    def joined(self, layout: MessageLayout, arrays: Sequence[pa.Array], count: int) -> pa.Array:
        shown = [
            _glued(f"{json.dumps(field.name)}:", texts)
            for field, texts in zip(layout.fields, arrays, strict=True)
            if texts.null_count < count
        ]
        if not shown:
            return pa.array(["{}"]).take(pa.array(np.zeros(count, np.int64)))
        empty = np.logical_and.reduce([texts.is_null().to_numpy(zero_copy_only=False) for texts in shown])
        if empty.any():  # Arrow leaves out a row without any text, instead of an empty one
            shown[0] = pc.if_else(pa.array(empty), "", shown[0])
        return _glued("{", pc.binary_join_element_wise(*shown, ",", null_handling="skip"), "}")

    def listed(self, items: pa.Array, offsets: Numbers) -> pa.Array:
        return self._enclosed("[", items, "]", offsets)

    def mapped(self, keys: pa.Array, items: pa.Array, offsets: Numbers) -> pa.Array:
        return self._enclosed("{", _glued(keys, ":", items), "}", offsets)

    def _enclosed(self, first: str, items: pa.Array, last: str, offsets: Numbers) -> pa.Array:
        """Texts with commas between them; null where there is none."""
        lists = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pc.fill_null(items, "null"))
        return pc.if_else(
            pa.array(np.diff(offsets) > 0),
            _glued(first, pc.binary_join(lists, ","), last),
            pa.scalar(None, pa.string()),
        )

    def keys(self, field: Any, values: Numbers, sizes: Numbers, owners: Numbers) -> pa.Array:
        texts = self.leaves(field, values, sizes, owners)
        return texts if field.type in (STRING, INT64, UINT64, FIXED64, SFIXED64, SINT64) else _glued('"', texts, '"')

    def symbols(self, names: Sequence[str | int]) -> pa.Array:
        return pa.array([json.dumps(name) for name in names], pa.string())

    def leaves(self, field: Any, values: Numbers, sizes: Numbers, owners: Numbers) -> pa.Array:
        array = super().leaves(field, values, sizes, owners)
        if field.type == ENUM:
            return array
        if field.type in (STRING, BYTES):
            return json_text(array)
        if pa.types.is_floating(array.type):
            return _float_texts(array)
        text = array.cast(pa.string())
        return _glued('"', text, '"') if array.type in (pa.int64(), pa.uint64()) and field.type not in SHORT else text

    def timestamps(self, level: Level, owners: Numbers) -> pa.Array:
        """RFC 3339, with as many digits of a second as are needed: 0, 3, 6 or 9."""
        seconds, nanos = instants(level)
        is_far = (
            (seconds < FIRST_DAY // 1_000_000) | (seconds > LAST_DAY // 1_000_000) | (nanos < 0) | (nanos > 999_999_999)
        )
        self.is_unusual[owners[is_far]] = True
        text = pa.array(np.where(is_far, 0, seconds), pa.timestamp("s")).cast(pa.string())
        text = pc.binary_replace_slice(text, start=10, stop=11, replacement="T")
        nanos = np.where(is_far, 0, nanos)
        if not nanos.any():
            return _glued('"', text, 'Z"')
        distinct, codes = np.unique(nanos, return_inverse=True)
        fraction = pa.array(map(_fraction, distinct.tolist()), pa.string()).take(pa.array(codes))
        return _glued('"', text, fraction, 'Z"')


#: Numbers of 32 bits that are read as wider ones: JSON has them without quotes.
SHORT = (UINT32, FIXED32)


def _fraction(nanos: int) -> str:
    if nanos == 0:
        return ""
    text = f".{nanos:09}"
    return text[:4] if text.endswith("000000") else text[:7] if text.endswith("000") else text


def _float_texts(array: pa.Array) -> pa.Array:
    """Numbers as Python writes them in JSON: whole ones with a zero after the point, what JSON does not have as text."""
    values = array.to_numpy(zero_copy_only=False)
    text = array.cast(pa.string())
    with np.errstate(invalid="ignore"):
        is_whole = values == np.trunc(values)
    is_short = is_whole & (np.abs(values) < WHOLE)
    if is_short.any():
        text = pc.if_else(pa.array(is_short), _glued(text, ".0"), text)
    rest = np.flatnonzero(~np.isfinite(values) | (is_whole & ~is_short))
    if rest.size:
        mask = np.zeros(len(text), np.bool_)
        mask[rest] = True
        shown = pa.array([float_text(float(value)) for value in text.take(pa.array(rest)).to_pylist()], pa.string())
        text = pc.replace_with_mask(text, pa.array(mask), shown)
    return text


def _glued(*parts: Any) -> pa.Array:
    """Texts put together; null where a part is."""
    return pc.binary_join_element_wise(*(pa.scalar(part) if isinstance(part, str) else part for part in parts), "")


# Both forms -------------------------------------------------------------------------------------------------------------


def spread(array: pa.Array, rows: Numbers, count: int) -> pa.Array:
    """Values of some rows among all; the others are null."""
    if rows.size == count:
        return array
    place = np.full(count, -1, np.int64)
    place[rows] = np.arange(rows.size)
    return array.take(pa.array(place, mask=place < 0))


def instants(level: Level) -> tuple[Numbers, Numbers]:
    """The seconds and nanoseconds of times."""
    return level.values[0], level.values[1].astype(np.int32).astype(np.int64)


def _number(type: int, values: Numbers) -> pa.Array:
    """Numbers from their bits."""
    if type in (INT32, ENUM):
        return pa.array(values.astype(np.int32))
    if type == SINT32:
        low = values & 0xFFFFFFFF
        return pa.array(((low >> 1) ^ -(low & 1)).astype(np.int32))
    if type == SINT64:
        return pa.array(((values >> 1) & np.int64(MAX_64)) ^ -(values & 1))
    if type in (UINT32, FIXED32):
        return pa.array(values & 0xFFFFFFFF)
    if type == SFIXED32:
        return pa.array(values.astype(np.uint32).view(np.int32))
    if type in (UINT64, FIXED64):
        return pa.array(np.ascontiguousarray(values).view(np.uint64))
    if type == FLOAT:
        return pa.array(values.astype(np.uint32).view(np.float32))
    if type == DOUBLE:
        return pa.array(np.ascontiguousarray(values).view(np.float64))
    return pa.array(values != 0) if type == BOOL else pa.array(values)


# Columns ----------------------------------------------------------------------------------------------------------------

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

    def __init__(self, schema: MessageSchema, path: tuple[int, ...]) -> None:
        """SchemaError if the message has no columns: it contains itself, or has no fields."""
        self.schema, self.path, self.name = schema, path, schema.messages[path]
        self.arrow, self._read = self._columns()

    def __getstate__(self) -> tuple[MessageSchema, tuple[int, ...]]:
        return self.schema, self.path

    def __setstate__(self, state: tuple[MessageSchema, tuple[int, ...]]) -> None:
        self.schema, self.path = state
        self.name = self.schema.messages[self.path]
        self.arrow, self._read = self._columns()

    def _columns(self) -> tuple[pa.DataType, Read]:
        return _ColumnTypes().message(self.schema.message(self.path).DESCRIPTOR, ())

    def value(self, body: bytes) -> Any:
        """A value as Arrow takes it. ValueError if the body is not such a message, or the columns cannot have its value."""
        from google.protobuf.message import DecodeError

        message = self.schema.message(self.path)()
        try:
            message.ParseFromString(body)
        except DecodeError as error:
            raise ValueError(str(error)) from None
        return self._read(message)


class _ColumnTypes:
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
        columns = [(field, *self.field(field, (*above, name))) for field in descriptor.fields]
        reads = [(field.name, read, _has_presence(field)) for field, _, read in columns]

        def read_all(message: Any) -> dict[str, Any]:
            return {
                name: None if presence and not message.HasField(name) else read(getattr(message, name))
                for name, read, presence in reads
            }

        return pa.struct([pa.field(field.name, type) for field, type, _ in columns]), read_all

    def field(self, field: Any, above: tuple[str, ...]) -> tuple[pa.DataType, Read]:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key, key_read = self._item(field.message_type.fields_by_name["key"], above)
            item, read = self._item(field.message_type.fields_by_name["value"], above)
            return pa.map_(key, item), lambda value: [
                (key_read(name), read(item_value)) for name, item_value in value.items()
            ]
        type, read = self._item(field, above)
        if field.is_repeated:
            return pa.list_(pa.field("element", type)), lambda value: [read(item_value) for item_value in value]
        return type, read

    def _item(self, field: Any, above: tuple[str, ...]) -> tuple[pa.DataType, Read]:
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

    def nothing(self, layout: MessageLayout, place: int, count: int) -> pa.Array:
        field = layout.fields[place]
        type, _ = _ColumnTypes().field(field, ())
        return (
            pa.array([[]], type).take(pa.array(np.zeros(count, np.int64)))
            if field.is_repeated
            else pa.nulls(count, type)
        )

    def unknown(self, layout: MessageLayout, count: int) -> pa.Array:
        return pa.nulls(count, pa.string())

    def joined(self, layout: MessageLayout, arrays: Sequence[pa.Array], count: int) -> pa.Array:
        by_name = {field.name: array for field, array in zip(layout.fields, arrays, strict=True)}
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
        return pa.array([str(name) for name in names], pa.string())

    def leaves(self, field: Any, values: Any, sizes: Any, owners: Any) -> pa.Array:
        array = super().leaves(field, values, sizes, owners)
        type = _SIMPLE[field.type]
        return array if array.type == type else array.cast(type)

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
    shown = to_json(type(message), message.SerializeToString())
    value = json.loads(shown)
    return value if isinstance(value, str) else shown
