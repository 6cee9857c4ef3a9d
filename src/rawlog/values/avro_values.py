"""Avro values as columns and as JSON texts, from the entries of many bodies; texts of single bodies from a walk.

Columns are those of a reader's schema, for values that were written with it or with other versions of it. The rules are Avro's: fields
are matched by name or alias, missing ones get their default, numbers may become wider, text and bytes may become one another, and unions
are resolved branch by branch. Texts are made by the same steps, without a reader's schema.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from decimal import Context, Decimal
from json.encoder import encode_basestring as _quoted
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rawlog.kernels.columns import nullable_spans, spans
from rawlog.model.text import FIRST_DAY, LAST_DAY, safe_json
from rawlog.values import kernels as k
from rawlog.values.avro import NO_DEFAULT, Ended, Entries, Part, SchemaError, Type, Walk, parse_shared
from rawlog.values.documents import float_text, fragments, json_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    #: Which entries have a value; None: all of them.
    Valid = NDArray[np.bool_] | None
    #: The bodies that entries are of; None: each entry is a body.
    Rows = NDArray[np.int64] | None

#: Bytes of a decimal: more take too long to be written as text.
LARGEST_DECIMAL = 4096
MOST_DIGITS = 38
MICROSECOND = {
    "timestamp-millis": 1000,
    "timestamp-micros": 1,
    "local-timestamp-millis": 1000,
    "local-timestamp-micros": 1,
}
NANOSECONDS = ("timestamp-nanos", "local-timestamp-nanos")
DAY_US = 86_400_000_000
MIN_DAY, MAX_DAY = -719_162, 2_932_896
#: Characters of a time with a date and six digits of a second.
TIME_SIZE = 26
_TEXT = ("bytes", "string")
#: What the reader's type may be, besides the writer's own.
_WIDER = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}


def column_type(type: Type) -> pa.DataType:
    """The type of a column for values of a schema, the same whatever they are. SchemaError if there is none."""
    if type.kind == "record":
        names = [name.lower() for name in type.names]
        if not names or len(set(names)) < len(names):
            raise SchemaError(f"record {type.name}: no columns: it has no fields, or some differ only in case")
        columns = zip(type.names, type.inner, strict=True)
        return pa.struct([pa.field(name, column_type(inner)) for name, inner in columns])
    if type.kind == "array":
        return pa.list_(pa.field("element", column_type(type.inner[-1])))
    if type.kind == "map":
        return pa.map_(pa.string(), column_type(type.inner[-1]))
    if type.kind == "union":
        members = [column_type(branch) for branch in type.inner if branch.kind != "null"]
        if len(set(members)) > 1:
            return pa.struct([pa.field(f"member{number}", member) for number, member in enumerate(members)])
        return members[0] if members else pa.string()
    return _leaf_type(type)


def _leaf_type(type: Type) -> pa.DataType:
    kind, logical = type.kind, type.logical
    if logical == "decimal" and kind in ("bytes", "fixed"):
        return pa.decimal128(type.precision, type.scale) if type.precision <= MOST_DIGITS else pa.string()
    if kind == "long" and logical in MICROSECOND:
        return pa.timestamp("us", "UTC" if str(logical).startswith("timestamp") else None)
    if kind == "int" and logical == "date":
        return pa.date32()
    if _is_time_of_day(type):
        return pa.string()
    simple = {
        "boolean": pa.bool_(),
        "int": pa.int32(),
        "long": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
    }
    return simple.get(kind, pa.binary() if kind in ("bytes", "fixed") else pa.string())


def _is_time_of_day(type: Type) -> bool:
    return (type.kind, type.logical) in (("int", "time-millis"), ("long", "time-micros"))


class Reader:
    """Columns of a schema. Picklable."""

    def __init__(self, type: Type) -> None:
        """SchemaError if the schema has no columns."""
        self.type, self.arrow = type, column_type(type)

    def columns(self, writer: Type, entries: Entries, valid: NDArray[np.bool_]) -> tuple[pa.Array, NDArray[np.bool_]]:
        """The values of bodies, and which of them fit. SchemaError if no value of the writer's schema does."""
        arrays = _Arrays(entries, valid.copy())
        return arrays.make(writer, self.type, None if valid.all() else valid, None), arrays.good


def texts(type: Type, entries: Entries, valid: NDArray[np.bool_]) -> tuple[pa.Array, NDArray[np.bool_]]:
    """The values of bodies as JSON texts, and which of them have one: unions without a wrapper, bytes as base64, decimals and times as
    text.
    """
    arrays = _TextArrays(entries, valid.copy())
    return json_text(arrays.make(type, type, None if valid.all() else valid, None)), arrays.good


class _Arrays:
    """Makes arrays of a reader's types from entries of a writer's. `good` are the bodies whose values fit."""

    def __init__(self, entries: Entries, good: NDArray[np.bool_]) -> None:
        self.entries, self.good = entries, good
        self._types: dict[int, pa.DataType] = {}
        self._places: dict[int, dict[str, int]] = {}

    def type_of(self, reader: Type) -> pa.DataType:
        """The type of a column, made once for each of the reader's types."""
        if id(reader) not in self._types:
            self._types[id(reader)] = column_type(reader)
        return self._types[id(reader)]

    def count(self, rows: Rows) -> int:
        """How many entries there are."""
        return self.good.size if rows is None else rows.size

    def fail(self, rows: Rows, chosen: NDArray[np.bool_]) -> None:
        """Note that some entries do not fit: their bodies do not."""
        self.good[np.flatnonzero(chosen) if rows is None else rows[chosen]] = False

    def make(self, writer: Type, reader: Type, valid: Valid, rows: Rows) -> pa.Array:
        """An array with a value for each entry; those that are not `valid` are null."""
        if writer.kind == "union":
            return self.from_union(writer, reader, valid, rows)
        if reader.kind == "union":
            member, array = self._member(writer, reader, valid, rows)
            chosen = {member: (_flags(valid, len(array)), array)} if member >= 0 else {}
            return self._joined(reader, chosen, len(array))
        if writer.kind == "null" or reader.kind == "null":
            count = self.count(rows)
            if writer.kind != reader.kind:
                self.fail(rows, _flags(valid, count))
            return self.nulls(reader, count)
        if reader.kind != writer.kind and reader.kind not in _WIDER.get(writer.kind, ()):
            raise SchemaError(f"{writer.kind} cannot be read as {reader.kind}")
        if reader.kind == "record":
            return self._record(writer, reader, valid, rows)
        if reader.kind in ("array", "map"):
            return self._list(writer, reader, valid, rows)
        return self.leaf(writer, reader, valid, rows)

    def nulls(self, reader: Type, count: int) -> pa.Array:
        """A column without values."""
        return pa.nulls(count, self.type_of(reader))

    # Parts --------------------------------------------------------------------------------------------------------------

    def from_union(self, writer: Type, reader: Type, valid: Valid, rows: Rows) -> pa.Array:
        """Values of a writer's union: each branch as the reader's type, or as a member of the reader's union."""
        branch = self.entries.values(writer.node)[:, 0]
        members: dict[int, list[tuple[NDArray[np.bool_], pa.Array]]] = {}
        for number, inner in enumerate(writer.inner):
            chosen = _narrowed(valid, branch == number)
            try:
                member, array = self._member(inner, reader, chosen, rows)
            except SchemaError:
                self.fail(rows, chosen)
                continue
            if inner.kind != "null":
                members.setdefault(member, []).append((chosen, array))
        return self._joined(reader, {member: _merged(parts) for member, parts in members.items()}, branch.size)

    def _member(self, writer: Type, reader: Type, valid: Valid, rows: Rows) -> tuple[int, pa.Array]:
        """Which member of a reader's union values are, -1 for null, and the values; of another type they are the member 0."""
        if reader.kind != "union" or writer.kind == "union":
            return 0, self.make(writer, reader, valid, rows)
        number = next((n for n, branch in enumerate(reader.inner) if _is_same(writer, branch)), None)
        if number is None:
            kinds = (writer.kind, *_WIDER.get(writer.kind, ()))
            number = next((n for n, branch in enumerate(reader.inner) if branch.kind in kinds), None)
        if number is None:
            raise SchemaError(f"{writer.kind} is not in the union")
        array = self.make(writer, reader.inner[number], valid, rows)
        if reader.inner[number].kind == "null":
            return -1, array
        return sum(branch.kind != "null" for branch in reader.inner[:number]), array

    def _joined(self, reader: Type, members: dict[int, tuple[NDArray[np.bool_], pa.Array]], size: int) -> pa.Array:
        """The values of all members of a reader's union, in one column."""
        type = self.type_of(reader)
        if all(array.type == type for _, array in members.values()):
            return _merged(list(members.values()))[1] if members else pa.nulls(size, type)
        children = [
            members[index][1] if index in members else pa.nulls(size, type.field(index).type)
            for index in range(type.num_fields)
        ]
        is_null = ~np.logical_or.reduce([chosen for chosen, _ in members.values()])
        return pa.StructArray.from_arrays(children, fields=list(type), mask=pa.array(is_null))

    def _record(self, writer: Type, reader: Type, valid: Valid, rows: Rows) -> pa.Array:
        count = self.count(rows)
        if not reader.inner:
            return pa.array([{} if has else None for has in _flags(valid, count)], pa.struct([]))
        if writer is reader:
            children = [self.make(inner, inner, valid, rows) for inner in writer.inner]
        else:
            children = [self._field(writer, reader, number, valid, rows) for number in range(len(reader.inner))]
        fields = [pa.field(name, child.type) for name, child in zip(reader.names, children, strict=True)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=_mask_array(valid))

    def _field(self, writer: Type, reader: Type, number: int, valid: Valid, rows: Rows) -> pa.Array:
        """A field of the reader's record: as it was written under its name or an alias, else its default."""
        places = self.places_of(writer)
        names = (reader.names[number], *(reader.aliases[number] if reader.aliases else ()))
        place = next((places[name] for name in names if name in places), None)
        if place is not None:
            return self.make(writer.inner[place], reader.inner[number], valid, rows)
        default = reader.defaults[number] if reader.defaults else NO_DEFAULT
        if default is NO_DEFAULT:
            raise SchemaError(f"field {names[0]} of {reader.name} was not written, and has no default")
        return _repeated(reader.inner[number], default, self.count(rows))

    def places_of(self, writer: Type) -> dict[str, int]:
        """The numbers of the fields of a record by name; of equal names the first counts."""
        if id(writer) not in self._places:
            self._places[id(writer)] = {name: number for number, name in reversed(list(enumerate(writer.names)))}
        return self._places[id(writer)]

    def _list(self, writer: Type, reader: Type, valid: Valid, rows: Rows) -> pa.Array:
        ends = self.entries.values(writer.node)[:, 0]
        offsets = np.zeros(ends.size + 1, np.int32)
        offsets[1:] = ends
        item_rows = np.repeat(np.arange(ends.size) if rows is None else rows, np.diff(offsets))
        items = self.make(writer.inner[-1], reader.inner[-1], None, item_rows)
        if reader.kind == "array":
            type = pa.list_(pa.field("element", items.type))
            return pa.ListArray.from_arrays(pa.array(offsets), items, type=type, mask=_mask_array(valid))
        keys = self._strings(self._bytes(writer.inner[0], None), item_rows)
        if keys.null_count:  # a key that is not text: its body does not count any more
            keys = pc.fill_null(keys, "")
        return pa.MapArray.from_arrays(pa.array(offsets), keys, items, mask=_mask_array(valid))

    # Leaves -------------------------------------------------------------------------------------------------------------

    def leaf(self, writer: Type, reader: Type, valid: Valid, rows: Rows) -> pa.Array:
        """Values that hold no others."""
        type = _leaf_type(reader)
        if writer.kind in (*_TEXT, "fixed"):
            return self._runs(writer, reader, type, valid, rows)
        if writer.kind == "enum":
            return self._enum(writer, reader, valid, rows)
        array = self.plain(writer, valid)
        if array is not None:
            return array.cast(type)
        values = self.numbers(writer)
        if pa.types.is_floating(type):
            return pa.array(
                values.astype(np.float32 if reader.kind == "float" else np.float64), type, mask=_mask(valid)
            )
        return self._number(reader, type, values, valid, rows)

    def numbers(self, writer: Type) -> Numbers:
        """The words of entries that have one each."""
        return np.ascontiguousarray(self.entries.values(writer.node)[:, 0])

    def plain(self, writer: Type, valid: Valid) -> pa.Array | None:
        """Truth values and floating numbers; None for other kinds."""
        if writer.kind == "boolean":
            return pa.array(self.numbers(writer) != 0, mask=_mask(valid))
        if writer.kind == "float":
            return pa.array(self.numbers(writer).astype(np.uint32).view(np.float32), mask=_mask(valid))
        if writer.kind == "double":
            return pa.array(self.numbers(writer).view(np.float64), mask=_mask(valid))
        return None

    def _number(self, reader: Type, type: pa.DataType, values: Numbers, valid: Valid, rows: Rows) -> pa.Array:
        """Whole numbers, dates and times. What a calendar does not have does not fit."""
        low, high, scale = _calendar(reader)
        if low is not None:
            fits = (values >= low) & (values <= high)
            if not fits.all():
                self.fail(rows, ~fits if valid is None else valid & ~fits)
                valid = _narrowed(valid, fits)
        return _dated(type, values, valid, scale)

    def _enum(self, writer: Type, reader: Type, valid: Valid, rows: Rows) -> pa.Array:
        values, symbols = self.numbers(writer), frozenset(reader.symbols)
        shown = [symbol if symbol in symbols else reader.default for symbol in writer.symbols] or [None]
        is_unknown = np.array([symbol is None for symbol in shown])[values]
        self.fail(rows, _narrowed(valid, is_unknown))
        return pa.array(shown, pa.string()).take(pa.array(values, mask=_mask(valid)))

    def _bytes(self, writer: Type, valid: Valid) -> pa.Array:
        """Runs of bytes."""
        words = self.entries.values(writer.node)
        starts, sizes = np.ascontiguousarray(words[:, 0]), np.ascontiguousarray(words[:, 1])
        if valid is None:
            return spans(self.entries.data, starts, sizes)
        return nullable_spans(self.entries.data, starts, np.where(valid, sizes, -1))

    def _runs(self, writer: Type, reader: Type, type: pa.DataType, valid: Valid, rows: Rows) -> pa.Array:
        if writer.kind == "fixed" and writer.size != reader.size:
            raise SchemaError(f"fixed {writer.name}: another size")
        runs = self._bytes(writer, valid)
        if reader.logical == "decimal":
            if writer.logical == "decimal" and writer.scale != reader.scale:
                raise SchemaError("decimals of another scale")
            return self._decimals(runs, reader, rows)
        return runs if pa.types.is_binary(type) else self._strings(runs, rows)

    def _strings(self, runs: pa.Array, rows: Rows) -> pa.Array:
        """Bytes as text; those that are not UTF-8 do not fit."""
        try:
            return runs.cast(pa.string())
        except pa.ArrowInvalid:
            return self._each(runs, rows, bytes.decode)

    def _each(self, runs: pa.Array, rows: Rows, text_of: Any) -> pa.Array:
        """The texts of values one by one; those for which there is a ValueError do not fit."""
        strings: list[str | None] = []
        for place, value in enumerate(runs.to_pylist()):
            try:
                strings.append(None if value is None else text_of(value))
            except ValueError:
                self.good[place if rows is None else rows[place]] = False
                strings.append(None)
        return pa.array(strings, pa.string())

    def _decimals(self, runs: pa.Array, reader: Type, rows: Rows) -> pa.Array:
        """Exact decimals. One with more digits than its precision does not fit."""
        type = _leaf_type(reader)
        decimals = None if pa.types.is_string(type) else _decimal128(runs, reader)
        if decimals is not None:
            return decimals
        strings = self._each(runs, rows, lambda value: _decimal_text(value, reader.scale, reader.precision))
        return strings if pa.types.is_string(type) else strings.cast(type)


class _TextArrays(_Arrays):
    """The same for JSON texts: what a calendar does not have stays a number, and a union has the text of its branch."""

    def nulls(self, reader: Type, count: int) -> pa.Array:
        return pa.nulls(count)

    def from_union(self, writer: Type, reader: Type, valid: Valid, rows: Rows) -> pa.Array:
        branch = self.entries.values(writer.node)[:, 0]
        parts = []
        for number, inner in enumerate(writer.inner):
            if inner.kind != "null":
                chosen = _narrowed(valid, branch == number)
                parts.append((chosen, self.make(inner, inner, chosen, rows)))
        if len(parts) < 2:
            return parts[0][1] if parts else pa.nulls(branch.size)
        return fragments(_merged([(chosen, json_text(array)) for chosen, array in parts])[1])

    def leaf(self, writer: Type, reader: Type, valid: Valid, rows: Rows) -> pa.Array:
        if writer.kind in (*_TEXT, "fixed"):
            return self._run_texts(writer, valid, rows)
        if writer.kind == "enum":
            return pa.array(writer.symbols or ("",), pa.string()).take(
                pa.array(self.numbers(writer), mask=_mask(valid))
            )
        array = self.plain(writer, valid)
        if array is None:
            return _number_texts(writer, self.numbers(writer), valid)
        if not pa.types.is_floating(array.type):
            return array
        if pc.all(pc.is_finite(array)).as_py() is not False:
            return fragments(array.cast(pa.float64()).cast(pa.string()))
        return fragments([None if value is None else float_text(value) for value in array.to_pylist()])

    def _run_texts(self, writer: Type, valid: Valid, rows: Rows) -> pa.Array:
        runs = self._bytes(writer, valid)
        if writer.logical == "decimal":
            decimals = _decimal128(runs, writer) if writer.precision <= MOST_DIGITS and writer.scale < 6 else None
            if decimals is not None:
                return decimals.cast(pa.string())
            return self._each(runs, rows, lambda value: _decimal_text(value, writer.scale))
        return self._strings(runs, rows) if writer.kind == "string" else runs


def _flags(valid: Valid, count: int) -> NDArray[np.bool_]:
    return np.ones(count, np.bool_) if valid is None else valid


def _narrowed(valid: Valid, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return chosen if valid is None else valid & chosen


def _mask(valid: Valid) -> NDArray[np.bool_] | None:
    return None if valid is None else ~valid


def _mask_array(valid: Valid) -> pa.Array | None:
    return None if valid is None else pa.array(~valid)


def _merged(parts: list[tuple[NDArray[np.bool_], pa.Array]]) -> tuple[NDArray[np.bool_], pa.Array]:
    """Columns that have values in different rows as one, and the rows."""
    if len(parts) == 1:
        return parts[0]
    place = np.full(parts[0][0].size, -1, np.int64)
    for number, (chosen, _) in enumerate(parts):
        place[chosen] = number * place.size + np.flatnonzero(chosen)
    array = pa.concat_arrays([array for _, array in parts]).take(pa.array(place, mask=place < 0))
    return place >= 0, array


def _is_same(writer: Type, reader: Type) -> bool:
    short = [type.name.rpartition(".")[2] for type in (writer, reader)]
    return writer.kind == reader.kind and short[0] == short[1]


# Numbers, dates and times -----------------------------------------------------------------------------------------------


def _calendar(type: Type) -> tuple[int | None, int, int]:
    """The least and the greatest number that is a date or a time of a type, and how many microseconds one is; None for other types."""
    if type.kind == "long" and type.logical in MICROSECOND:
        scale = MICROSECOND[type.logical]
        return FIRST_DAY // scale, LAST_DAY // scale, scale
    if type.kind == "int" and type.logical == "date":
        return MIN_DAY, MAX_DAY, 1
    if _is_time_of_day(type):
        scale = 1000 if type.logical == "time-millis" else 1
        return 0, DAY_US // scale - 1, scale
    return None, 0, 1


def _dated(type: pa.DataType, values: Numbers, valid: Valid, scale: int) -> pa.Array:
    """Numbers, which the calendar has, as a column of a type."""
    numbers = (values if valid is None else np.where(valid, values, 0)) * scale
    mask = _mask(valid)
    if pa.types.is_string(type):
        return pa.array(numbers, pa.int64(), mask=mask).cast(pa.time64("us")).cast(pa.string())
    if pa.types.is_date(type) or type == pa.int32():
        return pa.array(numbers.astype(np.int32), pa.int32(), mask=mask).cast(type)
    return pa.array(numbers, type, mask=mask)


def _number_texts(type: Type, values: Numbers, valid: Valid) -> pa.Array:
    """Whole numbers, dates and times as JSON. What a calendar does not have stays a number."""
    low, high, scale = _calendar(type)
    if low is None:
        if type.logical in NANOSECONDS:
            return _nano_texts(type, values, valid)
        return pa.array(values.astype(np.int32) if type.kind == "int" else values, mask=_mask(valid))
    fits = (values >= low) & (values <= high)
    is_whole = bool(fits.all())
    dates = _dated(_leaf_type(type), values, valid if is_whole else _narrowed(valid, fits), scale)
    shown = _time_fragments(dates) if pa.types.is_timestamp(dates.type) else dates.cast(pa.string())
    if is_whole:
        return shown
    numbers = pa.array(values).cast(pa.string())
    return fragments(_merged([(_narrowed(valid, fits), json_text(shown)), (_narrowed(valid, ~fits), numbers)])[1])


def _nano_texts(type: Type, values: Numbers, valid: Valid) -> pa.Array:
    """Nanoseconds as times with six digits: the rest is cut off only if it is zero, else the number stays."""
    zone = "" if str(type.logical).startswith("local") else "Z"
    whole = _time_text(pa.array(values // 1000, pa.timestamp("us"))).to_pylist()
    return fragments(
        [
            None if not has else str(value) if value % 1000 else json.dumps(text + zone)
            for has, value, text in zip(_flags(valid, values.size), values.tolist(), whole, strict=True)
        ]
    )


def _time_fragments(times: pa.Array) -> pa.Array:
    """Times as JSON: the same texts in quotes. All have the same size, so that a table of bytes is filled by columns."""
    tail = b'Z"' if times.type.tz else b'"'
    text = pc.fill_null(times.cast(pa.timestamp("us")), 0).cast(pa.string())
    size, count = TIME_SIZE + 1 + len(tail), len(text)
    data = np.frombuffer(text.buffers()[2] or b"", np.uint8)
    if not count or data.size != count * TIME_SIZE:
        return fragments([None if time is None else json.dumps(time) for time in _time_text(times).to_pylist()])
    table = np.empty((count, size), np.uint8)
    table[:, 1 : 1 + TIME_SIZE] = data.reshape(count, TIME_SIZE)
    table[:, 0], table[:, 11] = ord('"'), ord("T")
    table[:, 1 + TIME_SIZE :] = np.frombuffer(tail, np.uint8)
    offsets = pa.py_buffer(np.arange(0, (count + 1) * size, size, dtype=np.int32))
    return fragments(pa.Array.from_buffers(pa.string(), count, [_bitmap(times), offsets, pa.py_buffer(table)]))


def _time_text(times: pa.Array) -> pa.Array:
    """Times as ISO 8601 with six digits; with a Z where they have a time zone. `strftime` would take fifteen times as long."""
    text = times.cast(pa.timestamp("us")).cast(pa.string())
    text = pc.binary_replace_slice(text, start=10, stop=11, replacement="T")
    return pc.binary_join_element_wise(text, "Z", "") if times.type.tz else text


# Decimals ---------------------------------------------------------------------------------------------------------------


def _decimal_text(value: bytes, scale: int, precision: int | None = None) -> str:
    """A decimal as text, without an exponent. ValueError if it has thousands of digits, or more than its precision."""
    if len(value) > LARGEST_DECIMAL:
        raise ValueError("a decimal of thousands of digits")
    number = int.from_bytes(value, "big", signed=True)
    if precision is not None and abs(number) >= 10**precision:
        raise ValueError("a decimal with more digits than its precision")
    return format(Context(prec=4 * LARGEST_DECIMAL).scaleb(Decimal(number), -scale), "f")


def _decimal128(runs: pa.Array, type: Type) -> pa.Array | None:
    """Big-endian numbers of any length as decimals of 16 bytes; None if one of them does not fit."""
    count = len(runs)
    _, offsets, buffer = runs.buffers()
    edges = np.frombuffer(offsets, np.int32, count + 1, runs.offset * 4).astype(np.int64)
    sizes = np.diff(edges)
    if count == 0 or buffer is None or sizes.max() > 16:
        return pa.nulls(count, pa.decimal128(type.precision, type.scale)) if runs.null_count == count else None
    data = np.frombuffer(buffer, np.uint8)
    out = np.zeros((count, 16), np.uint8)
    there = np.flatnonzero(sizes > 0)
    out[there[data[edges[:-1][there]] >= 128]] = 255
    for byte in range(int(sizes.max())):
        there = np.flatnonzero(sizes > byte)
        out[there, byte] = data[edges[1:][there] - 1 - byte]
    arrow = pa.decimal128(type.precision, type.scale)
    decimals = pa.Array.from_buffers(arrow, count, [_bitmap(runs), pa.py_buffer(out)])
    try:
        decimals.validate(full=True)
    except pa.ArrowInvalid:
        return None
    return decimals


def _bitmap(array: pa.Array) -> pa.Buffer | None:
    """Which values of an array are there; None if all are."""
    if array.null_count == 0:
        return None
    return pa.py_buffer(np.packbits(array.is_valid().to_numpy(zero_copy_only=False), bitorder="little"))


# Defaults ---------------------------------------------------------------------------------------------------------------


def _repeated(type: Type, default: Any, count: int) -> pa.Array:
    """A default as a column. SchemaError if it is not of its type."""
    try:
        value = pa.array([_value(type, default)], column_type(type))
    except (pa.ArrowException, ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise SchemaError(f"a default that is not of its type: {error}") from None
    return value.take(pa.array(np.zeros(count, np.int64)))


def _value(type: Type, default: Any) -> Any:
    """A default, which is JSON, as a value of a column."""
    if type.kind == "union":
        members = [branch for branch in type.inner if branch.kind != "null"]
        if default is None or not members:
            return None
        value = _value(members[0], default)
        return value if column_type(type) == column_type(members[0]) else {"member0": value}
    if type.kind == "record":
        return {
            name: _value(
                inner, default[name] if name in default else (type.defaults[number] if type.defaults else None)
            )
            for number, (name, inner) in enumerate(zip(type.names, type.inner, strict=True))
        }
    if type.kind == "array":
        return [_value(type.inner[-1], item) for item in default]
    if type.kind == "map":
        return [(name, _value(type.inner[-1], item)) for name, item in default.items()]
    if type.kind in ("bytes", "fixed"):
        raw = default.encode("latin-1")
        if type.logical == "decimal":
            number = Decimal(_decimal_text(raw, type.scale))
            return number if type.precision <= MOST_DIGITS else format(number, "f")
        return raw
    if type.kind == "long" and type.logical in MICROSECOND:
        return default * MICROSECOND[type.logical]
    if pa.types.is_string(_leaf_type(type)) and isinstance(default, int):
        micros = default * (1000 if type.logical == "time-millis" else 1)
        return pa.scalar(micros, pa.time64("us")).cast(pa.string()).as_py()
    return float(default) if type.kind in ("float", "double") else default


# One by one -------------------------------------------------------------------------------------------------------------


class SingleReader:
    """Values of a schema without columns as JSON texts, body by body.

    fastavro is not used: it hides which branch of a union was written, counts enums and branches from the end for negative numbers, makes
    millions of nulls from a few bytes, and a value that is nested a hundred thousand times ends the process.
    """

    def __init__(self, text: str, referenced: Sequence[str] = ()) -> None:
        """SchemaError if the schema is not valid."""
        self.type = parse_shared(text, referenced)

    def read(self, body: bytes) -> tuple[int, str | None, int]:
        """How a body ended, its value as JSON text, and how many bytes are left after it."""
        walk = _TextWalk(body)
        try:
            walk.run(self.type, "")
        except Ended as ended:
            return ended.status, None, 0
        return k.OK, safe_json("".join(walk.pieces)), len(body) - walk.at


class _TextWalk(Walk):
    """Writes each part as JSON; what is passed down is the text before it."""

    def __init__(self, body: bytes) -> None:
        super().__init__(body)
        self.pieces: list[str] = []

    def visit(self, type: Type, about: Any) -> Iterator[Part] | None:
        self.pieces.append(about)
        while type.kind == "union":
            type = type.inner[self.index(len(type.inner))]
        if type.kind == "record":
            return self._fields(type)
        if type.kind in ("array", "map"):
            return self._items(type)
        self.pieces.append(self._leaf_text(type))
        return None

    def _fields(self, type: Type) -> Iterator[Part]:
        mark = "{"
        for name, inner in zip(type.names, type.inner, strict=True):
            yield inner, f"{mark}{_quoted(name)}:"
            mark = ","
        self.pieces.append("}" if type.names else "{}")

    def _items(self, type: Type) -> Iterator[Part]:
        first, last = "[]" if type.kind == "array" else "{}"
        mark = first
        while count := self.block()[0]:
            for _ in range(count):
                name = f"{_quoted(self.text())}:" if type.kind == "map" else ""
                yield type.inner[-1], mark + name
                mark = ","
        self.pieces.append(first + last if mark == first else last)

    def _leaf_text(self, type: Type) -> str:
        value = self.leaf(type)
        if isinstance(value, str):
            return _quoted(value)
        if type.kind in ("int", "long"):
            return str(value) if type.logical is None else _number_text(type, value)
        if isinstance(value, float):
            return float_text(value)
        if not isinstance(value, bytes):
            return json.dumps(value)
        if type.logical == "decimal":
            try:
                return _quoted(_decimal_text(value, type.scale))
            except ValueError:
                raise Ended(k.LIMIT) from None
        return _quoted(base64.b64encode(value).decode())


def _number_text(type: Type, value: int) -> str:
    """A date or a time as text; what a calendar does not have as a number."""
    return str(json_text(_number_texts(type, np.array([value], np.int64), None))[0].as_py())
