"""Reader: the nested columns of one Avro schema, for values that were written with it or with other versions of it.

The rules are Avro's: fields are matched by name or alias, missing ones get their default, numbers may become wider, text and bytes may
become one another, and unions are resolved branch by branch. All of it is done by columns, on what the kernel found in the bodies.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rawlog.kernels.columns import nullable_spans
from rawlog.model.text import FIRST_DAY, LAST_DAY
from rawlog.values.avro import NO_DEFAULT, SchemaError, Type
from rawlog.values.avro_values import (
    DAY_US,
    LARGEST_DECIMAL,
    MICROSECOND,
    decimal128,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rawlog.values.avro import Entries

MOST_DIGITS = 38
MIN_DAY, MAX_DAY = -719_162, 2_932_896
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
        return pa.struct([pa.field(name, column_type(one)) for name, one in zip(type.names, type.inner, strict=True)])
    if type.kind == "array":
        return pa.list_(pa.field("element", column_type(type.inner[-1])))
    if type.kind == "map":
        return pa.map_(pa.string(), column_type(type.inner[-1]))
    if type.kind == "union":
        members = [column_type(one) for one in type.inner if one.kind != "null"]
        if len(set(members)) > 1:
            return pa.struct([pa.field(f"member{number}", one) for number, one in enumerate(members)])
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
    if (kind, logical) in (("int", "time-millis"), ("long", "time-micros")):
        return pa.string()
    simple = {
        "boolean": pa.bool_(),
        "int": pa.int32(),
        "long": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
    }
    return simple.get(kind, pa.binary() if kind in ("bytes", "fixed") else pa.string())


class Reader:
    """Columns of a schema. Picklable."""

    def __init__(self, type: Type) -> None:
        """SchemaError if the schema has no columns."""
        self.type, self.arrow = type, column_type(type)

    def columns(self, writer: Type, entries: Entries, valid: NDArray[np.bool_]) -> tuple[pa.Array, NDArray[np.bool_]]:
        """The values of bodies, and which of them fit. SchemaError if no value of the writer's schema does."""
        made = _Projection(entries, valid.copy())
        array = made.make(writer, self.type, valid, np.arange(valid.size))
        return array, made.good


class _Projection:
    """Makes arrays of a reader's types from entries of a writer's. `rows` are the bodies that entries are of; `good` those that fit."""

    def __init__(self, entries: Entries, good: NDArray[np.bool_]) -> None:
        self.entries, self.good = entries, good
        self._types: dict[int, pa.DataType] = {}

    def type_of(self, reader: Type) -> pa.DataType:
        """The type of a column, made once for each of the reader's types."""
        if id(reader) not in self._types:
            self._types[id(reader)] = column_type(reader)
        return self._types[id(reader)]

    def fail(self, rows: NDArray[np.int64]) -> None:
        self.good[rows] = False

    def make(self, writer: Type, reader: Type, valid: NDArray[np.bool_], rows: NDArray[np.int64]) -> pa.Array:
        """An array with a value for each entry; those that are not `valid` are null."""
        if writer.kind == "union":
            return self._from_union(writer, reader, valid, rows)
        if reader.kind == "union":
            return self._to_union(writer, reader, valid, rows)
        if writer.kind == "null" or reader.kind == "null":
            if writer.kind != reader.kind:
                self.fail(rows[valid])
            return pa.nulls(valid.size, self.type_of(reader))
        if reader.kind != writer.kind and reader.kind not in _WIDER.get(writer.kind, ()):
            raise SchemaError(f"{writer.kind} cannot be read as {reader.kind}")
        if reader.kind == "record":
            return self._record(writer, reader, valid, rows)
        if reader.kind in ("array", "map"):
            return self._list(writer, reader, valid, rows)
        return self._leaf(writer, reader, valid, rows)

    # Parts --------------------------------------------------------------------------------------------------------------

    def _from_union(self, writer: Type, reader: Type, valid: NDArray[np.bool_], rows: NDArray[np.int64]) -> pa.Array:
        branch = self.entries.values(writer.node)[:, 0]
        members: dict[int, list[tuple[NDArray[np.bool_], pa.Array]]] = {}
        for number, one in enumerate(writer.inner):
            own = valid & (branch == number)
            try:
                member, array = self._member(one, reader, own, rows)
            except SchemaError:
                self.fail(rows[own])
                continue
            if one.kind != "null":
                members.setdefault(member, []).append((own, array))
        return self._joined(reader, {member: _merged(some) for member, some in members.items()}, valid.size)

    def _to_union(self, writer: Type, reader: Type, valid: NDArray[np.bool_], rows: NDArray[np.int64]) -> pa.Array:
        member, array = self._member(writer, reader, valid, rows)
        return self._joined(reader, {member: (valid, array)} if member >= 0 else {}, valid.size)

    def _member(
        self, writer: Type, reader: Type, valid: NDArray[np.bool_], rows: NDArray[np.int64]
    ) -> tuple[int, pa.Array]:
        """Which member of a reader's union values are, -1 for null, and the values; of another type they are the member 0."""
        if reader.kind != "union" or writer.kind == "union":
            return 0, self.make(writer, reader, valid, rows)
        number = next((n for n, one in enumerate(reader.inner) if _is_same(writer, one)), None)
        if number is None:
            wider = _WIDER.get(writer.kind, ())
            number = next((n for n, one in enumerate(reader.inner) if one.kind in (writer.kind, *wider)), None)
        if number is None:
            raise SchemaError(f"{writer.kind} is not in the union")
        array = self.make(writer, reader.inner[number], valid, rows)
        if reader.inner[number].kind == "null":
            return -1, array
        return sum(one.kind != "null" for one in reader.inner[:number]), array

    def _joined(self, reader: Type, members: dict[int, tuple[NDArray[np.bool_], pa.Array]], size: int) -> pa.Array:
        """The values of all members of a reader's union, in one column."""
        type = self.type_of(reader)
        if all(array.type == type for _, array in members.values()):
            return _merged(list(members.values()))[1] if members else pa.nulls(size, type)
        children = [
            members[index][1] if index in members else pa.nulls(size, type.field(index).type)
            for index in range(type.num_fields)
        ]
        is_null = ~np.logical_or.reduce([own for own, _ in members.values()])
        return pa.StructArray.from_arrays(children, fields=list(type), mask=pa.array(is_null))

    def _record(self, writer: Type, reader: Type, valid: NDArray[np.bool_], rows: NDArray[np.int64]) -> pa.Array:
        type = self.type_of(reader)
        children = []
        written = {name: number for number, name in reversed(list(enumerate(writer.names)))}
        for number, (name, one) in enumerate(zip(reader.names, reader.inner, strict=True)):
            known = [name, *(reader.aliases[number] if reader.aliases else ())]
            there = next((written[each] for each in known if each in written), None)
            if there is not None:
                children.append(self.make(writer.inner[there], one, valid, rows))
                continue
            default = reader.defaults[number] if reader.defaults else NO_DEFAULT
            if default is NO_DEFAULT:
                raise SchemaError(f"field {name} of {reader.name} was not written, and has no default")
            children.append(_repeated(one, default, valid.size))
        return pa.StructArray.from_arrays(children, fields=list(type), mask=pa.array(~valid))

    def _list(self, writer: Type, reader: Type, valid: NDArray[np.bool_], rows: NDArray[np.int64]) -> pa.Array:
        items = int(self.entries.count[writer.item])
        offsets = np.zeros(valid.size + 1, np.int32)
        offsets[1:] = self.entries.values(writer.node)[:, 0]
        all_, own = np.ones(items, np.bool_), np.repeat(rows, np.diff(offsets))
        inner = self.make(writer.inner[-1], reader.inner[-1], all_, own)
        mask = pa.array(~valid)
        type = self.type_of(reader)
        if reader.kind == "array":
            return pa.ListArray.from_arrays(pa.array(offsets), inner, type=type, mask=mask)
        keys = self._leaf(writer.inner[0], Type("string"), all_, own)
        if keys.null_count:  # a key that is not text: its body does not count any more
            keys = pc.fill_null(keys, "")
        return pa.MapArray.from_arrays(pa.array(offsets), keys, inner, type=type, mask=mask)

    # Leaves -------------------------------------------------------------------------------------------------------------

    def _leaf(self, writer: Type, reader: Type, valid: NDArray[np.bool_], rows: NDArray[np.int64]) -> pa.Array:
        words = self.entries.values(writer.node)
        if writer.kind in (*_TEXT, "fixed"):
            return self._bytes(writer, reader, valid, rows)
        values = np.ascontiguousarray(words[:, 0])
        type = _leaf_type(reader)
        if writer.kind == "boolean":
            return pa.array(values != 0, mask=~valid)
        if writer.kind == "enum":
            return self._enum(writer, reader, values, valid, rows)
        if writer.kind == "float":
            return pa.array(values.astype(np.uint32).view(np.float32), mask=~valid).cast(type)
        if writer.kind == "double":
            return pa.array(values.view(np.float64), mask=~valid)
        if pa.types.is_floating(type):
            numbers = values.astype(np.float32 if reader.kind == "float" else np.float64)
            return pa.array(numbers, type, mask=~valid)
        return self._number(reader, type, values, valid, rows)

    def _number(
        self,
        reader: Type,
        type: pa.DataType,
        values: NDArray[np.int64],
        valid: NDArray[np.bool_],
        rows: NDArray[np.int64],
    ) -> pa.Array:
        """Whole numbers, dates and times. What a calendar does not have does not fit."""
        low, high, scale = -(1 << 63), (1 << 63) - 1, 1
        if pa.types.is_timestamp(type):
            scale = MICROSECOND[str(reader.logical)]
            low, high = FIRST_DAY // scale, LAST_DAY // scale
        elif pa.types.is_date(type):
            low, high = MIN_DAY, MAX_DAY
        elif pa.types.is_string(type):
            scale = 1000 if reader.logical == "time-millis" else 1
            low, high = 0, DAY_US // scale - 1
        fits = (values >= low) & (values <= high)
        self.fail(rows[valid & ~fits])
        valid = valid & fits
        numbers = np.where(valid, values, 0) * scale
        if pa.types.is_string(type):
            return pa.array(numbers, pa.int64(), mask=~valid).cast(pa.time64("us")).cast(pa.string())
        if pa.types.is_date(type) or type == pa.int32():
            return pa.array(numbers.astype(np.int32), pa.int32(), mask=~valid).cast(type)
        return pa.array(numbers, type, mask=~valid)

    def _enum(
        self, writer: Type, reader: Type, values: NDArray[np.int64], valid: NDArray[np.bool_], rows: NDArray[np.int64]
    ) -> pa.Array:
        known = frozenset(reader.symbols)
        shown = [one if one in known else reader.default for one in writer.symbols] or [None]
        unknown = np.array([one is None for one in shown])[values]
        self.fail(rows[valid & unknown])
        return pa.array(shown, pa.string()).take(pa.array(values, mask=~valid))

    def _bytes(self, writer: Type, reader: Type, valid: NDArray[np.bool_], rows: NDArray[np.int64]) -> pa.Array:
        words = self.entries.values(writer.node)
        starts, sizes = np.ascontiguousarray(words[:, 0]), np.ascontiguousarray(words[:, 1])
        if writer.kind == "fixed" and writer.size != reader.size:
            raise SchemaError(f"fixed {writer.name}: another size")
        made = nullable_spans(self.entries.data, starts, np.where(valid, sizes, -1))
        if reader.logical == "decimal":
            if writer.logical == "decimal" and writer.scale != reader.scale:
                raise SchemaError("decimals of another scale")
            return self._decimals(made, reader, rows)
        type = _leaf_type(reader)
        if pa.types.is_binary(type):
            return made
        try:
            return made.cast(pa.string())
        except pa.ArrowInvalid:
            return self._texts(made, rows)

    def _texts(self, made: pa.Array, rows: NDArray[np.int64]) -> pa.Array:
        """Texts of which some are not UTF-8: those do not fit."""
        texts: list[str | None] = []
        for row, one in zip(rows.tolist(), made.to_pylist(), strict=True):
            try:
                texts.append(None if one is None else one.decode())
            except UnicodeDecodeError:
                self.good[row] = False
                texts.append(None)
        return pa.array(texts, pa.string())

    def _decimals(self, made: pa.Array, reader: Type, rows: NDArray[np.int64]) -> pa.Array:
        """Exact decimals. One with more digits than its precision does not fit."""
        is_text = reader.precision > MOST_DIGITS
        found = None if is_text else decimal128(made, reader)
        if found is not None:
            return found
        values: list[Decimal | None] = []
        for row, one in zip(rows.tolist(), made.to_pylist(), strict=True):
            is_long = one is not None and len(one) > LARGEST_DECIMAL
            number = None if one is None or is_long else int.from_bytes(one, "big", signed=True)
            if is_long or (number is not None and abs(number) >= 10**reader.precision):
                self.good[row] = False
                number = None
            values.append(None if number is None else _scaled(number, reader.scale))
        if is_text:
            return pa.array([None if one is None else format(one, "f") for one in values], pa.string())
        return pa.array(values, _leaf_type(reader))


def _merged(parts: list[tuple[NDArray[np.bool_], pa.Array]]) -> tuple[NDArray[np.bool_], pa.Array]:
    """Columns that have values in different rows as one, and the rows."""
    if len(parts) == 1:
        return parts[0]
    place = np.full(parts[0][0].size, -1, np.int64)
    for number, (own, _) in enumerate(parts):
        place[own] = number * place.size + np.flatnonzero(own)
    array = pa.concat_arrays([array for _, array in parts]).take(pa.array(place, mask=place < 0))
    return place >= 0, array


def _scaled(number: int, scale: int) -> Decimal:
    sign, digits = int(number < 0), tuple(map(int, str(abs(number))))
    return Decimal((sign, digits, -scale))


def _is_same(writer: Type, reader: Type) -> bool:
    short = [one.name.rpartition(".")[2] for one in (writer, reader)]
    return writer.kind == reader.kind and short[0] == short[1]


def _repeated(type: Type, default: Any, count: int) -> pa.Array:
    """A default as a column. SchemaError if it is not one of its type."""
    try:
        one = pa.array([_value(type, default)], column_type(type))
    except (pa.ArrowException, ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise SchemaError(f"a default that is not of its type: {error}") from None
    return one.take(pa.array(np.zeros(count, np.int64)))


def _value(type: Type, given: Any) -> Any:
    """A default, which is JSON, as a value of a column."""
    if type.kind == "union":
        members = [one for one in type.inner if one.kind != "null"]
        if given is None or not members:
            return None
        chosen = members[0]
        made = _value(chosen, given)
        return made if column_type(type) == column_type(chosen) else {"member0": made}
    if type.kind == "record":
        return {
            name: _value(one, given[name] if name in given else (type.defaults[number] if type.defaults else None))
            for number, (name, one) in enumerate(zip(type.names, type.inner, strict=True))
        }
    if type.kind == "array":
        return [_value(type.inner[-1], one) for one in given]
    if type.kind == "map":
        return [(name, _value(type.inner[-1], one)) for name, one in given.items()]
    if type.kind in ("bytes", "fixed"):
        raw = given.encode("latin-1")
        if type.logical == "decimal":
            made = _scaled(int.from_bytes(raw, "big", signed=True), type.scale)
            return made if type.precision <= MOST_DIGITS else format(made, "f")
        return raw
    if type.kind == "long" and type.logical in MICROSECOND:
        return given * MICROSECOND[type.logical]
    if pa.types.is_string(_leaf_type(type)) and isinstance(given, int):
        micros = given * (1000 if type.logical == "time-millis" else 1)
        return pa.scalar(micros, pa.time64("us")).cast(pa.string()).as_py()
    return float(given) if type.kind in ("float", "double") else given
