"""Avro values as Arrow columns and JSON texts, from the entries that a program found in many bodies."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rawlog.model.text import FIRST_DAY, LAST_DAY, safe_json
from rawlog.values import kernels as k
from rawlog.values.avro import Entries, Type, parse_shared

if TYPE_CHECKING:
    from numpy.typing import NDArray


#: Bytes of a decimal: more take too long to be written as text.
LARGEST_DECIMAL = 4096
MICROSECOND = {
    "timestamp-millis": 1000,
    "timestamp-micros": 1,
    "local-timestamp-millis": 1000,
    "local-timestamp-micros": 1,
}
DAY_US = 86_400_000_000
#: Characters of a time with a date and six digits of a second.
TIME_SIZE = 26


class Unfit(ValueError):
    """A value that no column can have: a string that is not UTF-8, or a decimal of thousands of digits."""


# Columns ----------------------------------------------------------------------------------------------------------------


def to_arrow(type: Type, entries: Entries, count: int, valid: NDArray[np.bool_] | None = None) -> pa.Array:
    """The entries of a type as an array of `count` values; those that are not `valid` are null. Unfit if a value is read one by one."""
    return _Columns(entries).make(type, count, valid)


class _Columns:
    def __init__(self, entries: Entries) -> None:
        self.entries = entries

    def make(self, type: Type, count: int, valid: NDArray[np.bool_] | None) -> pa.Array:
        if type.kind == "null":
            return pa.nulls(count)
        if type.kind == "record":
            children = [self.make(one, count, valid) for one in type.inner]
            return _struct(children, type.names, count, valid)
        if type.kind == "union":
            return self._union(type, count, valid)
        if type.kind in ("array", "map"):
            return self._list(type, count, valid)
        return self._leaf(type, count, valid)

    def _union(self, type: Type, count: int, valid: NDArray[np.bool_] | None) -> pa.Array:
        branch = self.entries.values(type.node)[:, 0]
        made = []
        for number, one in enumerate(type.inner):
            if one.kind != "null":
                own = branch == number
                made.append((own, self.make(one, count, own if valid is None else own & valid)))
        if not made:
            return pa.nulls(count)
        return made[0][1] if len(made) == 1 else self._joined(made, count)

    def _joined(self, made: Sequence[tuple[NDArray[np.bool_], pa.Array]], count: int) -> pa.Array:
        """The branches of a union, each with the rows that have it, as one column."""
        return _coalesced([array for _, array in made], [f"member{index}" for index in range(len(made))], count)

    def _list(self, type: Type, count: int, valid: NDArray[np.bool_] | None) -> pa.Array:
        ends = self.entries.values(type.node)[:, 0]
        items = int(self.entries.count[type.item])
        offsets = np.zeros(count + 1, np.int32)
        offsets[1:] = ends
        mask = None if valid is None else pa.array(~valid)
        inner = self.make(type.inner[-1], items, None)
        if type.kind == "array":
            return pa.ListArray.from_arrays(pa.array(offsets), inner, mask=mask)
        keys = self._leaf(type.inner[0], items, None)
        return pa.MapArray.from_arrays(pa.array(offsets), keys, inner, mask=mask)

    def _leaf(self, type: Type, count: int, valid: NDArray[np.bool_] | None) -> pa.Array:
        words = self.entries.values(type.node)
        mask = None if valid is None else ~valid
        if type.kind in ("bytes", "string", "fixed"):
            return _bytes(type, self.entries.data, words, valid)
        values = words[:, 0]
        if type.kind == "boolean":
            return pa.array(values != 0, mask=mask)
        if type.kind == "float":
            return pa.array(values.astype(np.uint32).view(np.float32), mask=mask)
        if type.kind == "double":
            return pa.array(np.ascontiguousarray(values).view(np.float64), mask=mask)
        if type.kind == "enum":
            names = pa.array(type.symbols or ("",), pa.string())
            return names.take(pa.array(values, mask=mask))
        return number_column(type, values, mask)


def _struct(children: list[pa.Array], names: Sequence[str], count: int, valid: NDArray[np.bool_] | None) -> pa.Array:
    mask = None if valid is None else pa.array(~valid)
    if not children:
        return pa.array([{} if one else None for one in (np.ones(count) if valid is None else valid)], pa.struct([]))
    fields = [pa.field(name, one.type) for name, one in zip(names, children, strict=True)]
    return pa.StructArray.from_arrays(children, fields=fields, mask=mask)


def _coalesced(made: list[pa.Array], names: Sequence[str], count: int) -> pa.Array:
    """Several branches of a union as a struct with one member for each, as Spark's from_avro has it; a union of equal types is one."""
    kinds = {one.type for one in made}
    if len(kinds) == 1:
        return pc.coalesce(*made)
    none = np.logical_and.reduce([one.is_null().to_numpy(zero_copy_only=False) for one in made])
    return _struct(made, names, count, ~none if none.any() else None)


def _bytes(type: Type, data: NDArray[np.uint8], words: NDArray[np.int64], valid: NDArray[np.bool_] | None) -> pa.Array:
    from rawlog.kernels.columns import spans

    starts, sizes = np.ascontiguousarray(words[:, 0]), np.ascontiguousarray(words[:, 1])
    made = spans(data, starts, sizes) if valid is None else _nullable(data, starts, sizes, valid)
    if type.logical == "decimal":
        return decimals(made, type)
    if type.kind == "string":
        try:
            return made.cast(pa.string())
        except pa.ArrowInvalid:
            raise Unfit from None
    return made


def _nullable(
    data: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64], valid: NDArray[np.bool_]
) -> pa.Array:
    from rawlog.kernels.columns import nullable_spans

    return nullable_spans(data, starts, np.where(valid, sizes, -1))


def decimals(made: pa.Array, type: Type) -> pa.Array:
    """Exact decimals: as Arrow's where they fit the precision, else as text."""
    if type.precision <= 38:
        found = decimal128(made, type)
        if found is not None:
            return found
    texts = [None if one is None else decimal_text(one, type.scale) for one in made.to_pylist()]
    return pa.array(texts, pa.string())


def decimal_text(value: bytes, scale: int) -> str:
    """A decimal as text, without an exponent. Unfit if it has thousands of digits."""
    from decimal import Context, Decimal

    if len(value) > LARGEST_DECIMAL:
        raise Unfit
    number = Decimal(int.from_bytes(value, "big", signed=True))
    return format(Context(prec=4 * LARGEST_DECIMAL).scaleb(number, -scale), "f")


def decimal128(made: pa.Array, type: Type) -> pa.Array | None:
    """Big-endian numbers of any length as decimals of 16 bytes; None if one of them does not fit."""
    count = len(made)
    _, offsets, buffer = made.buffers()
    edges = np.frombuffer(offsets, np.int32, count + 1, made.offset * 4).astype(np.int64)
    sizes = np.diff(edges)
    if count == 0 or buffer is None or sizes.max() > 16:
        return pa.nulls(count, pa.decimal128(type.precision, type.scale)) if made.null_count == count else None
    data = np.frombuffer(buffer, np.uint8)
    out = np.zeros((count, 16), np.uint8)
    there = np.flatnonzero(sizes > 0)
    out[there[data[edges[:-1][there]] >= 128]] = 255
    for byte in range(int(sizes.max())):
        there = np.flatnonzero(sizes > byte)
        out[there, byte] = data[edges[1:][there] - 1 - byte]
    valid = made.is_valid()
    found = pa.Array.from_buffers(
        pa.decimal128(type.precision, type.scale),
        count,
        [None if made.null_count == 0 else _bitmap(valid), pa.py_buffer(out)],
    )
    try:
        found.validate(full=True)
    except pa.ArrowInvalid:
        return None
    return found


def _bitmap(valid: pa.Array) -> pa.Buffer:
    return pa.py_buffer(np.packbits(valid.to_numpy(zero_copy_only=False), bitorder="little"))


def number_column(type: Type, values: NDArray[np.int64], mask: NDArray[np.bool_] | None) -> pa.Array:
    """Whole numbers, dates and times. What a calendar does not have stays a number, in the whole column."""
    there = values if mask is None else values[~mask]
    kind = type.logical
    if kind in MICROSECOND and type.kind == "long":
        low, high = FIRST_DAY // MICROSECOND[kind], LAST_DAY // MICROSECOND[kind]
        if not there.size or (there.min() >= low and there.max() <= high):
            zone = "UTC" if kind.startswith("timestamp") else None
            scaled = np.where(mask, 0, values) if mask is not None else values
            return pa.array(scaled * MICROSECOND[kind], pa.timestamp("us", zone), mask=mask)
    if (
        kind == "date"
        and type.kind == "int"
        and (not there.size or (there.min() >= -719_162 and there.max() <= 2_932_896))
    ):
        return pa.array(values.astype(np.int32), pa.int32(), mask=mask).cast(pa.date32())
    if (type.kind, kind) in (("int", "time-millis"), ("long", "time-micros")):
        scale = 1000 if kind == "time-millis" else 1
        if not there.size or (there.min() >= 0 and there.max() < DAY_US // scale):
            scaled = np.where(mask, 0, values) if mask is not None else values
            times = pa.array(scaled * scale, pa.int64(), mask=mask).cast(pa.time64("us"))
            return pa.array(
                [None if one is None else one.isoformat("microseconds") for one in times.to_pylist()], pa.string()
            )
    if type.kind == "int":
        return pa.array(values.astype(np.int32), pa.int32(), mask=mask)
    return pa.array(values, pa.int64(), mask=mask)


# JSON -------------------------------------------------------------------------------------------------------------------


def to_json(type: Type, entries: Entries, count: int, valid: NDArray[np.bool_] | None = None) -> pa.Array:
    """The same values as JSON text: unions without a wrapper, bytes as base64, decimals and times as text. Unfit if
    values must be read one by one.
    """
    return json_text(_JsonColumns(entries).make(type, count, valid))


def json_text(array: pa.Array, form: str | None = "base64") -> pa.Array:
    """The values of an array as JSON text, null as null; binary ones in a form, without one as `rawlog cat` prints them."""
    from rawlog.kernels.columns import spans
    from rawlog.reading.render import Sink, json_leaf

    sink, places = Sink(), np.empty((2, len(array)), np.int64)
    json_leaf(array.type, form)(array, sink, places[0], places[1])
    starts, stops = places
    if len(array) and sink.filled < 1 << 31 and starts[0] == 0 and np.array_equal(starts[1:], stops[:-1]):
        offsets = np.concatenate(([0], stops)).astype(np.int32)  # one after another: the bytes stay where they are
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(sink.buffer[: sink.filled])]
        return pa.Array.from_buffers(pa.binary(), len(array), buffers).cast(pa.string())
    return spans(sink.buffer[: sink.filled], starts, stops - starts).cast(pa.string())


def fragments(texts: Sequence[str | None]) -> pa.Array:
    """Pieces of JSON that are written as they are."""
    return pa.ExtensionArray.from_storage(pa.json_(), pa.array(texts, pa.string()))


class _JsonColumns(_Columns):
    def _joined(self, made: Sequence[tuple[NDArray[np.bool_], pa.Array]], count: int) -> pa.Array:
        texts: list[str | None] = [None] * count
        for own, array in made:
            rows = np.flatnonzero(own)
            for row, text in zip(rows.tolist(), json_text(array.take(pa.array(rows))).to_pylist(), strict=True):
                texts[row] = text
        return fragments(texts)

    def _leaf(self, type: Type, count: int, valid: NDArray[np.bool_] | None) -> pa.Array:
        made = super()._leaf(type, count, valid)
        if pa.types.is_timestamp(made.type):
            return _time_fragments(made)
        if pa.types.is_date(made.type):
            return made.cast(pa.string())
        if pa.types.is_decimal(made.type):
            return made.cast(pa.string()) if type.scale < 6 else _decimal_text(made)
        if pa.types.is_floating(made.type):
            if pc.all(pc.is_finite(made)).as_py() is not False:
                return pa.ExtensionArray.from_storage(pa.json_(), made.cast(pa.float64()).cast(pa.string()))
            return fragments([None if one is None else float_text(one) for one in made.to_pylist()])
        if type.logical in (*MICROSECOND, "date", "time-millis", "time-micros") and pa.types.is_integer(made.type):
            return self._times(type, made)
        if type.logical in ("timestamp-nanos", "local-timestamp-nanos") and pa.types.is_integer(made.type):
            return self._nanos(type, made)
        return made

    def _times(self, type: Type, made: pa.Array) -> pa.Array:
        """Dates and times of which some are not in the calendar: those stay numbers."""
        texts: list[str | None] = []
        for value in made.to_pylist():
            if value is None:
                texts.append(None)
                continue
            one = number_column(type, np.array([value], np.int64), None)
            shown = one if pa.types.is_integer(one.type) or pa.types.is_string(one.type) else shown_text(one)
            texts.append(json.dumps(shown[0].as_py()))
        return fragments(texts)

    def _nanos(self, type: Type, made: pa.Array) -> pa.Array:
        """Nanoseconds as times with six digits: the rest is cut off only if it is zero, else the number stays."""
        texts: list[str | None] = []
        zone = "" if str(type.logical).startswith("local") else "Z"
        for value in made.to_pylist():
            if value is None:
                texts.append(None)
            elif value % 1000:
                texts.append(str(value))
            else:
                one = pa.array([value // 1000], pa.timestamp("us"))
                texts.append(json.dumps(_time_text(one)[0].as_py() + zone))
        return fragments(texts)


def shown_text(one: pa.Array) -> pa.Array:
    """Dates and times as text."""
    return _time_text(one) if pa.types.is_timestamp(one.type) else one.cast(pa.string())


def _time_fragments(made: pa.Array) -> pa.Array:
    """Times as JSON: the same texts in quotes. All have the same size, so that a table of bytes is filled by columns."""
    tail = b'Z"' if made.type.tz else b'"'
    text = pc.fill_null(made.cast(pa.timestamp("us")), 0).cast(pa.string())
    size, count = TIME_SIZE + 1 + len(tail), len(text)
    data = np.frombuffer(text.buffers()[2] or b"", np.uint8)
    if not count or data.size != count * TIME_SIZE:
        return fragments([None if one is None else json.dumps(one) for one in _time_text(made).to_pylist()])
    table = np.empty((count, size), np.uint8)
    table[:, 1 : 1 + TIME_SIZE] = data.reshape(count, TIME_SIZE)
    table[:, 0], table[:, 11] = ord('"'), ord("T")
    table[:, 1 + TIME_SIZE :] = np.frombuffer(tail, np.uint8)
    offsets = pa.py_buffer(np.arange(0, (count + 1) * size, size, dtype=np.int32))
    valid = None if made.null_count == 0 else _bitmap(made.is_valid())
    found = pa.Array.from_buffers(pa.string(), count, [valid, offsets, pa.py_buffer(table)])
    return pa.ExtensionArray.from_storage(pa.json_(), found)


def _time_text(made: pa.Array) -> pa.Array:
    """Times as ISO 8601 with six digits; with a Z where they have a time zone. `strftime` would take fifteen times as long."""
    text = made.cast(pa.timestamp("us")).cast(pa.string())
    text = pc.binary_replace_slice(text, start=10, stop=11, replacement="T")
    return pc.binary_join_element_wise(text, "Z", "") if made.type.tz else text


def _decimal_text(made: pa.Array) -> pa.Array:
    """Decimals as text without an exponent, which Arrow writes where there are many zeros after the point."""
    return pa.array([None if one is None else format(one, "f") for one in made.to_pylist()], pa.string())


def float_text(value: float) -> str:
    """A number as JSON; what JSON does not have is text."""
    if value != value:
        return '"NaN"'
    return '"Infinity"' if value == float("inf") else '"-Infinity"' if value == float("-inf") else json.dumps(value)


# ----------------------------------------------------------------------------------------------------------------------
# Avro values read one by one, as JSON: those of a schema without columns, because it contains itself or has too many parts.
# fastavro is not used here: it hides which branch of a union was written, counts enums and branches from the end for negative numbers,
# makes millions of nulls from a few bytes, and a value that is nested a hundred thousand times ends the process. Nothing here calls
# itself for a value inside another one, and depth and number of values are limited.


#: Values inside one another: a JSON text that is nested more deeply cannot be read by most programs.
MOST_NESTED = 500
#: Values that take no bytes, such as nulls of an array, in one body.
MOST_FREE = 1 << 16
_Step = tuple[str, Type]


class OneByOne:
    """The values of a schema, read one by one."""

    def __init__(self, text: str, referenced: Sequence[str] = ()) -> None:
        """SchemaError if the schema is not valid."""
        self.type = parse_shared(text, referenced)

    def read(self, body: bytes) -> tuple[int, str | None, int]:
        """How a body ended, its value as JSON text, and how many bytes are left after it."""
        walk = _Walk(body)
        try:
            walk.run(self.type)
        except _Ended as ended:
            return ended.status, None, 0
        return k.OK, safe_json("".join(walk.made)), len(body) - walk.at


class _Ended(Exception):
    """A body that does not fit its schema."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class _Walk:
    """A body from its begin to its end. Values that hold others are iterators, which give what they hold one after another."""

    def __init__(self, body: bytes) -> None:
        self.body, self.at, self.made = body, 0, [""]
        self.free = 0

    def run(self, type: Type) -> None:
        """Append the JSON text of a value. _Ended if the body does not fit."""
        open_: list[Iterator[_Step]] = [iter([("", type)])]
        while open_:
            step = next(open_[-1], None)
            if step is None:
                open_.pop()
                continue
            before, one = step
            self.made.append(before)
            start = self.at
            while one.kind == "union":
                one = one.inner[self._index(len(one.inner))]
            if one.kind in ("record", "array", "map"):
                if len(open_) > MOST_NESTED:
                    raise _Ended(k.LIMIT)
                open_.append(self._fields(one) if one.kind == "record" else self._items(one))
            else:
                self.made.append(self._leaf(one))
            if self.at == start:
                self.free += 1
                if self.free > MOST_FREE:
                    raise _Ended(k.LIMIT)

    def _fields(self, type: Type) -> Iterator[_Step]:
        mark = "{"
        for name, one in zip(type.names, type.inner, strict=True):
            yield f"{mark}{_quoted(name)}:", one
            mark = ","
        self.made.append("}" if type.names else "{}")

    def _items(self, type: Type) -> Iterator[_Step]:
        first, last = "[]" if type.kind == "array" else "{}"
        mark = first
        while count := self._long():
            if count < 0:
                count = -count
                self._long()  # the size of the block
            for _ in range(count):
                name = f"{_quoted(self._text())}:" if type.kind == "map" else ""
                yield mark + name, type.inner[-1]
                mark = ","
        self.made.append(first + last if mark == first else last)

    # Leaves -------------------------------------------------------------------------------------------------------------

    def _leaf(self, type: Type) -> str:
        kind = type.kind
        if kind == "null":
            return "null"
        if kind == "boolean":
            return "true" if self._bytes(1) != b"\0" else "false"
        if kind in ("int", "long"):
            value = self._long()
            if kind == "int" and not -k.INT_MAX - 1 <= value <= k.INT_MAX:
                raise _Ended(k.CORRUPT)
            return _number(type, value) if type.logical else str(value)
        if kind == "float":
            return float_text(struct.unpack("<f", self._bytes(4))[0])
        if kind == "double":
            return float_text(struct.unpack("<d", self._bytes(8))[0])
        if kind == "enum":
            return _quoted(type.symbols[self._index(len(type.symbols))])
        if kind == "string":
            return _quoted(self._text())
        found = self._bytes(type.size if kind == "fixed" else self._size())
        if type.logical == "decimal":
            try:
                return _quoted(decimal_text(found, type.scale))
            except Unfit:
                raise _Ended(k.LIMIT) from None
        return _quoted(base64.b64encode(found).decode())

    def _bytes(self, size: int) -> bytes:
        if len(self.body) - self.at < size:
            raise _Ended(k.TRUNCATED)
        self.at += size
        return self.body[self.at - size : self.at]

    def _size(self) -> int:
        size = self._long()
        if size < 0:
            raise _Ended(k.CORRUPT)
        return size

    def _text(self) -> str:
        try:
            return self._bytes(self._size()).decode()
        except UnicodeDecodeError:
            raise _Ended(k.CORRUPT) from None

    def _index(self, count: int) -> int:
        index = self._long()
        if not 0 <= index < count:
            raise _Ended(k.CORRUPT)
        return index

    def _long(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            if self.at >= len(self.body):
                raise _Ended(k.TRUNCATED)
            byte = self.body[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                value &= (1 << 64) - 1
                return (value >> 1) ^ -(value & 1)
        raise _Ended(k.CORRUPT)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _number(type: Type, value: int) -> str:
    """A date or a time as text; what a calendar does not have as a number."""
    one = number_column(type, np.array([value], np.int64), None)
    shown = one if pa.types.is_integer(one.type) or pa.types.is_string(one.type) else shown_text(one)
    return json.dumps(shown[0].as_py())
