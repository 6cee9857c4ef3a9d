"""Avro bodies as Arrow columns, without a container file.

A schema becomes a small program that a kernel runs over many bodies at once; its entries then become Arrow arrays. A schema that contains
itself, or has too many parts, has no columns: see `recursive`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rawlog.kernels import byte_view
from rawlog.schemas import kernels as k

if TYPE_CHECKING:
    from numpy.typing import NDArray

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
MOST_NODES = 10_000
MOST_DEPTH = 64
#: What the branches of all unions leave out: for each branch, the parts of the others.
MOST_FILLS = 1 << 18
#: Parts of a schema whose types are shared; the length of its text limits them too.
MOST_SHARED = 1 << 18
#: Digits of a decimal type, and bytes of a value of it: more take too long to be written as text.
MOST_PRECISION, LARGEST_DECIMAL = 1000, 4096
#: Words that the entries of one call may take before bodies are decoded in several calls.
MOST_WORDS = 1 << 25
MICROSECOND = {
    "timestamp-millis": 1000,
    "timestamp-micros": 1,
    "local-timestamp-millis": 1000,
    "local-timestamp-micros": 1,
}
DAY_US = 86_400_000_000
#: Characters of a time with a date and six digits of a second.
TIME_SIZE = 26
#: The years 1 to 9999: other times stay numbers.
MIN_US, MAX_US = -62_135_596_800_000_000, 253_402_300_799_999_999


class SchemaError(ValueError):
    """A schema that cannot be used, with the reason."""


class NoColumns(SchemaError):
    """A schema without columns: it contains itself, or has too many parts."""


class Unfit(ValueError):
    """A value that no column can have: a string that is not UTF-8, or a decimal of thousands of digits."""


class _NoDefault:
    """What fields without a default have."""

    def __reduce__(self) -> str:
        return "NO_DEFAULT"


NO_DEFAULT = _NoDefault()


@dataclass(slots=True)
class Type:
    """A type of a schema. `inner` are the fields of a record, the branches of a union, or the one type of items."""

    kind: str
    name: str = ""
    logical: str | None = None
    size: int = 0
    precision: int = 0
    scale: int = 0
    symbols: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    inner: list[Type] = field(default_factory=list)
    #: Of a record: the defaults and aliases of its fields, for values that were written with another version of it.
    defaults: tuple[Any, ...] = ()
    aliases: tuple[tuple[str, ...], ...] = ()
    #: Of an enum: the symbol for those that it does not know.
    default: str | None = None
    node: int = -1
    item: int = -1
    #: Whether it is noted where its bytes begin and end, and the node that has both.
    is_marked: bool = False
    mark: int = -1


# Parsing ----------------------------------------------------------------------------------------------------------------


class NamedTypes:
    """The types that schemas define by name, with the namespace inside of each."""

    def __init__(self, schemas: Sequence[Any] = ()) -> None:
        self.named: dict[str, tuple[Any, str]] = {}
        for one in schemas:
            self.define(one, "")

    def define(self, schema: Any, space: str) -> None:
        """Learn the names of all types that a schema defines."""
        if isinstance(schema, list):
            for one in schema:
                self.define(one, space)
        elif isinstance(schema, dict):
            kind = schema.get("type")
            if kind in ("record", "error", "enum", "fixed"):
                full = full_name(schema, space)
                self.named[full] = (schema, full.rpartition(".")[0])
                space = full.rpartition(".")[0]
                for one in schema.get("fields") or () if kind in ("record", "error") else ():
                    if isinstance(one, dict):
                        self.define(one.get("type"), space)
            else:
                for name in ("items", "values", "type"):
                    self.define(schema.get(name), space)

    def resolved(self, schema: Any, space: str) -> tuple[Any, str]:
        """A schema, or the one that a name is of, and the namespace that names in it are of. SchemaError for an unknown name."""
        if not isinstance(schema, str) or schema in PRIMITIVES:
            return schema, space
        full = schema if "." in schema or not space else f"{space}.{schema}"
        known = self.named.get(full) or self.named.get(schema)
        if known is None:
            raise SchemaError(f"the type {schema!r} is not defined")
        return known


class _Parser(NamedTypes):
    def __init__(self, schemas: Sequence[Any] = ()) -> None:
        super().__init__(schemas)
        self.count = 0

    def parse(self, schema: Any, space: str, above: tuple[str, ...]) -> Type:
        """The type of a schema. NoColumns if it contains itself, SchemaError if it is not a schema."""
        self.count += 1
        self._limit(above)
        if isinstance(schema, list):
            return Type("union", inner=[self.parse(one, space, (*above, "")) for one in schema])
        if isinstance(schema, str):
            if schema in PRIMITIVES:
                return Type(schema)
            return self.parse(*self.resolved(schema, space), above)
        if not isinstance(schema, dict):
            raise SchemaError(f"{schema!r} is not a schema")
        kind = schema.get("type")
        if kind in ("record", "error", "enum", "fixed"):
            return self._complex(schema, kind, space, above)
        if kind == "array":
            return Type("array", inner=[self.parse(schema.get("items"), space, (*above, ""))])
        if kind == "map":
            return Type("map", inner=[self.parse(schema.get("values"), space, (*above, ""))])
        found = self.parse(kind, space, (*above, ""))
        return with_logical(found, schema)

    def _limit(self, above: tuple[str, ...]) -> None:
        if self.count > MOST_NODES or len(above) > MOST_DEPTH:
            raise NoColumns(f"more than {MOST_NODES:,} parts")

    def _complex(self, schema: dict[str, Any], kind: str, space: str, above: tuple[str, ...]) -> Type:
        full = full_name(schema, space)
        if full in above:
            raise NoColumns(f"{full} contains itself")
        inner_space = full.rpartition(".")[0]
        if kind == "enum":
            symbols = schema.get("symbols")
            if not isinstance(symbols, list) or not all(isinstance(one, str) for one in symbols):
                raise SchemaError(f"enum {full}: no symbols")
            default = schema.get("default")
            return Type("enum", full, symbols=tuple(symbols), default=default if default in symbols else None)
        if kind == "fixed":
            size = schema.get("size")
            if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 1 << 31:
                raise SchemaError(f"fixed {full}: invalid size {size!r}")
            return with_logical(Type("fixed", full, size=size), schema)
        listed = schema.get("fields")
        if not isinstance(listed, list) or not all(isinstance(one, dict) and "type" in one for one in listed):
            raise SchemaError(f"record {full}: no fields")
        inner = [self.parse(one["type"], inner_space, (*above, full)) for one in listed]
        names = tuple(str(one.get("name")) for one in listed)
        aliases = tuple(tuple(map(str, one.get("aliases") or ())) for one in listed)
        defaults = tuple(one.get("default", NO_DEFAULT) for one in listed)
        return Type("record", full, names=names, inner=inner, defaults=defaults, aliases=aliases)


class _SharedParser(_Parser):
    """Each type with a name is one Type, wherever it is used, so that types may contain themselves and do not grow."""

    def __init__(self, schemas: Sequence[Any] = ()) -> None:
        super().__init__(schemas)
        self.shared: dict[str, Type] = {}

    def _limit(self, above: tuple[str, ...]) -> None:
        if self.count > MOST_SHARED:
            raise SchemaError(f"more than {MOST_SHARED:,} parts")

    def _complex(self, schema: dict[str, Any], kind: str, space: str, above: tuple[str, ...]) -> Type:
        full = full_name(schema, space)
        if full not in self.shared:
            made = self.shared[full] = Type(kind, full)
            found = super()._complex(schema, kind, space, ())
            for one in fields(Type):
                setattr(made, one.name, getattr(found, one.name))
        return self.shared[full]


def full_name(schema: Mapping[str, Any], space: str) -> str:
    """The name of a type with its namespace; `space` is that around it."""
    name = str(schema.get("name"))
    if "." in name:
        return name
    inner = schema.get("namespace", space)
    return f"{inner}.{name}" if inner else name


def with_logical(found: Type, schema: Mapping[str, Any]) -> Type:
    """The type with the logical type of its schema, if that is a valid one."""
    logical = schema.get("logicalType")
    if not isinstance(logical, str) or found.kind not in ("int", "long", "bytes", "string", "fixed"):
        return found
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if logical == "decimal":
        if not isinstance(precision, int) or not isinstance(scale, int) or precision < 1:
            return found
        if not 0 <= scale <= precision <= MOST_PRECISION:
            return found  # as in Java: such a logical type is ignored
        return Type(found.kind, found.name, logical, found.size, precision, scale)
    return Type(found.kind, found.name, logical, found.size)


def parse(text: str, referenced: Sequence[str] = ()) -> Type:
    """The type that a schema's text describes; `referenced` are the texts of schemas that it uses. NoColumns if values must be read one by
    one, SchemaError if it is not valid.
    """
    return _parsed(_Parser, text, referenced)


def parse_shared(text: str, referenced: Sequence[str] = ()) -> Type:
    """The same for values that are read one by one: types may contain themselves. SchemaError if it is not valid."""
    return _parsed(_SharedParser, text, referenced)


def _parsed(parser: type[_Parser], text: str, referenced: Sequence[str]) -> Type:
    loaded = [loaded_schema(one) for one in (*referenced, text)]
    try:
        return parser(loaded).parse(loaded[-1], "", ())
    except RecursionError:
        raise SchemaError("types are nested too deeply") from None


def loaded_schema(text: str) -> Any:
    """A schema from its text. SchemaError if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"not JSON: {error}") from None


# Programs ---------------------------------------------------------------------------------------------------------------

_OPERATIONS = {
    "boolean": k.BOOL,
    "int": k.INT,
    "long": k.LONG,
    "float": k.FLOAT,
    "double": k.DOUBLE,
    "bytes": k.BYTES,
    "string": k.BYTES,
}


class Program:
    """A type as steps for the kernel. Its nodes are the columns of entries that the steps fill."""

    def __init__(self, type: Type) -> None:
        self.type = type
        self.steps: list[list[int]] = []
        self.targets: list[list[int]] = []
        self.fills: list[int] = []
        self.strides: list[int] = []
        self.children: list[int] = []
        self.depth = 0
        self.rows = self._compile(type, 0)
        self.steps.append([k.END, 0, 0, 0])
        self.program = np.array(self.steps, np.int64)
        self.target_table = np.array(self.targets, np.int64).reshape(-1, 3)
        self.fill_list = np.array(self.fills, np.int64)
        self.row_list = np.array(self.rows, np.int64)
        self.stride, self.child = np.array(self.strides, np.int64), np.array(self.children, np.int64)

    def _node(self, stride: int, child: int = -1) -> int:
        self.strides.append(stride)
        self.children.append(child)
        return len(self.strides) - 1

    def _compile(self, type: Type, depth: int) -> list[int]:
        """Append the steps of a type; the nodes that have one entry for each entry of the part around it."""
        if type.is_marked:
            type.mark = self._node(2)
            self.steps.append([k.MARK, type.mark, 0, 0])
        made = self._compile_part(type, depth)
        if type.is_marked:
            self.steps.append([k.CLOSE, type.mark, 0, 0])
            made = [type.mark, *made]
        return made

    def _compile_part(self, type: Type, depth: int) -> list[int]:
        self.depth = max(self.depth, depth)
        if type.kind == "null":
            return []
        if type.kind == "record":
            return [node for one in type.inner for node in self._compile(one, depth)]
        if type.kind == "union":
            return self._union(type, depth)
        if type.kind in ("array", "map"):
            return self._loop(type, depth)
        if type.kind == "enum":
            type.node = self._node(1)
            self.steps.append([k.ENUM, type.node, len(type.symbols), 0])
        elif type.kind == "fixed":
            type.node = self._node(2)
            self.steps.append([k.FIXED, type.node, type.size, 0])
        else:
            type.node = self._node(2 if type.kind in ("bytes", "string") else 1)
            self.steps.append([_OPERATIONS[type.kind], type.node, 0, 0])
        return [type.node]

    def _union(self, type: Type, depth: int) -> list[int]:
        type.node = self._node(1)
        first = len(self.targets)
        self.targets += [[0, 0, 0] for _ in type.inner]
        self.steps.append([k.UNION, type.node, len(type.inner), first])
        own, jumps = [], []
        for number, one in enumerate(type.inner):
            self.targets[first + number][0] = len(self.steps)
            own.append(self._compile(one, depth))
            jumps.append(len(self.steps))
            self.steps.append([k.JUMP, 0, 0, 0])
        for jump in jumps:
            self.steps[jump][2] = len(self.steps)
        for number in range(len(type.inner)):
            start = len(self.fills)
            self.fills += [node for other, nodes in enumerate(own) if other != number for node in nodes]
            self.targets[first + number][1:] = [start, len(self.fills)]
            if len(self.fills) > MOST_FILLS:
                raise NoColumns(f"more than {MOST_FILLS:,} parts of unions")
        return [type.node, *(node for nodes in own for node in nodes)]

    def _loop(self, type: Type, depth: int) -> list[int]:
        type.item = self._node(0)
        type.node = self._node(1, type.item)
        begin = len(self.steps)
        self.steps.append([k.LOOP, type.node, 0, begin + 1])
        if type.kind == "map":
            keys = Type("string")
            type.inner = [keys, type.inner[-1]]
            keys.node = self._node(2)
            self.steps.append([k.BYTES, keys.node, 0, 0])
        self._compile(type.inner[-1], depth + 1)
        self.steps.append([k.NEXT, type.node, len(self.steps) + 1, begin + 1])
        self.steps[begin][2] = len(self.steps)
        return [type.node]


@dataclass(slots=True)
class Entries:
    """What a program found in some bodies. `status`, `ends` and `sized` are those of each body; one is sized if items in it have their
    size in bytes before them.
    """

    data: NDArray[np.uint8]
    words: NDArray[np.int64]
    base: NDArray[np.int64]
    stride: NDArray[np.int64]
    count: NDArray[np.int64]
    status: NDArray[np.int64]
    ends: NDArray[np.int64]
    sized: NDArray[np.bool_]

    def values(self, node: int) -> NDArray[np.int64]:
        start, stride = int(self.base[node]), int(self.stride[node])
        return self.words[start : start + int(self.count[node]) * stride].reshape(-1, stride)


def rows_at_once(program: Program) -> int:
    """How many bodies may be decoded in one call: a schema with thousands of parts takes much memory for each."""
    return max(1, MOST_WORDS // max(1, int(program.stride.sum())))


def run(program: Program, data: Any, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> Entries:
    """Decode bodies. Memory grows with the entries that are found, and those are bounded by the bytes."""
    view = byte_view(data)
    nodes = program.stride.size
    capacity = np.full(nodes, starts.size, np.int64)
    capacity[program.stride == 0] = (1 << 62) - 1
    count, before = np.zeros(nodes, np.int64), np.empty(nodes, np.int64)
    status, ends = np.zeros(starts.size, np.int64), stops.astype(np.int64).copy()
    sized = np.zeros(starts.size, np.bool_)
    stack = np.zeros(program.depth + 1, np.int64)
    words, base = _arena(program, capacity)
    done = 0
    while True:
        done, full, result = k.decode_avro(
            view, starts, stops, done, program.program, program.target_table, program.fill_list, program.row_list,
            base, program.stride, capacity, program.child, words, count, before, stack, status, ends, sized,
        )  # fmt: skip
        if result != k.FULL:
            return Entries(view, words, base, program.stride, count, status, ends, sized)
        grown = capacity.copy()
        grown[full] = max(64, 2 * grown[full])
        bigger, places = _arena(program, grown)
        for node in range(nodes):
            size = int(count[node] * program.stride[node])
            bigger[places[node] : places[node] + size] = words[base[node] : base[node] + size]
        words, base, capacity = bigger, places, grown


def _arena(program: Program, capacity: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    sizes = np.where(program.stride == 0, 0, capacity * program.stride)
    base = np.concatenate(([0], np.cumsum(sizes)))
    return np.empty(max(1, int(base[-1])), np.int64), base[:-1].copy()


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
        low, high = MIN_US // MICROSECOND[kind], MAX_US // MICROSECOND[kind]
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
