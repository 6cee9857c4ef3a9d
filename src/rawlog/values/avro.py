"""Avro: schemas as types, and the two ways to walk over values of them.

`run` walks over many bodies at once with a kernel, by a small program made of the schema; what it meets are entries, of which
`avro_values` makes columns and JSON texts and `avro_edit` masked bodies. A schema that contains itself, or has too many parts, has no
program: `Walk`, the kernel's plain twin, goes over single bodies of any schema.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from rawlog.kernels import byte_view
from rawlog.values import kernels as k

if TYPE_CHECKING:
    from numpy.typing import NDArray

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
MOST_NODES = 10_000
MOST_DEPTH = 64
#: What the branches of all unions leave out: for each branch, the parts of the others.
MOST_FILLS = 1 << 18
#: Parts of a schema whose types are shared; the length of its text limits them too.
MOST_SHARED = 1 << 18
#: Digits of a decimal type: more take too long to be written as text.
MOST_PRECISION = 1000
#: Words that the entries of one call may take before bodies are decoded in several calls.
MOST_WORDS = 1 << 25
#: Values inside one another in a single body: a JSON text that is nested more deeply cannot be read by most programs.
MOST_NESTED = 500
#: Values that take no bytes, such as nulls of an array, in a single body.
MOST_FREE = 1 << 16


class SchemaError(ValueError):
    """A schema that cannot be used, with the reason."""


class NoColumns(SchemaError):
    """A schema without columns: it contains itself, or has too many parts."""


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


class _Parser:
    """Makes types of schemas. Each use of a type is a type of its own, so that each has its own columns."""

    def __init__(self, schemas: Sequence[Any] = ()) -> None:
        self.count = 0
        #: Types that schemas define by name, with the namespace inside of each.
        self.named: dict[str, tuple[Any, str]] = {}
        for schema in schemas:
            self._define(schema, "")

    def _define(self, schema: Any, space: str) -> None:
        """Learn the names of all types that a schema defines."""
        if isinstance(schema, list):
            for branch in schema:
                self._define(branch, space)
        elif isinstance(schema, dict):
            kind = schema.get("type")
            if kind in ("record", "error", "enum", "fixed"):
                full = _full_name(schema, space)
                space = full.rpartition(".")[0]
                self.named[full] = schema, space
                for field_ in schema.get("fields") or () if kind in ("record", "error") else ():
                    if isinstance(field_, dict):
                        self._define(field_.get("type"), space)
            else:
                for name in ("items", "values", "type"):
                    self._define(schema.get(name), space)

    def parse(self, schema: Any, space: str, above: tuple[str, ...]) -> Type:
        """The type of a schema. NoColumns if it contains itself, SchemaError if it is not a schema."""
        self.count += 1
        self._limit(above)
        if isinstance(schema, list):
            return Type("union", inner=[self.parse(branch, space, (*above, "")) for branch in schema])
        if isinstance(schema, str):
            if schema in PRIMITIVES:
                return Type(schema)
            full = schema if "." in schema or not space else f"{space}.{schema}"
            definition = self.named.get(full) or self.named.get(schema)
            if definition is None:
                raise SchemaError(f"the type {schema!r} is not defined")
            return self.parse(*definition, above)
        if not isinstance(schema, dict):
            raise SchemaError(f"{schema!r} is not a schema")
        kind = schema.get("type")
        if kind in ("record", "error", "enum", "fixed"):
            return self._complex(schema, kind, space, above)
        if kind == "array":
            return Type("array", inner=[self.parse(schema.get("items"), space, (*above, ""))])
        if kind == "map":
            return Type("map", inner=[self.parse(schema.get("values"), space, (*above, ""))])
        return _with_logical(self.parse(kind, space, (*above, "")), schema)

    def _limit(self, above: tuple[str, ...]) -> None:
        if self.count > MOST_NODES or len(above) > MOST_DEPTH:
            raise NoColumns(f"more than {MOST_NODES:,} parts")

    def _complex(self, schema: dict[str, Any], kind: str, space: str, above: tuple[str, ...]) -> Type:
        full = _full_name(schema, space)
        if full in above:
            raise NoColumns(f"{full} contains itself")
        inner_space = full.rpartition(".")[0]
        if kind == "enum":
            symbols = schema.get("symbols")
            if not isinstance(symbols, list) or not all(isinstance(symbol, str) for symbol in symbols):
                raise SchemaError(f"enum {full}: no symbols")
            default = schema.get("default")
            return Type("enum", full, symbols=tuple(symbols), default=default if default in symbols else None)
        if kind == "fixed":
            size = schema.get("size")
            if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 1 << 31:
                raise SchemaError(f"fixed {full}: invalid size {size!r}")
            return _with_logical(Type("fixed", full, size=size), schema)
        listed = schema.get("fields")
        if not isinstance(listed, list) or not all(isinstance(each, dict) and "type" in each for each in listed):
            raise SchemaError(f"record {full}: no fields")
        inner = [self.parse(each["type"], inner_space, (*above, full)) for each in listed]
        names = tuple(str(each.get("name")) for each in listed)
        aliases = tuple(tuple(map(str, each.get("aliases") or ())) for each in listed)
        defaults = tuple(each.get("default", NO_DEFAULT) for each in listed)
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
        full = _full_name(schema, space)
        if full not in self.shared:
            shared = self.shared[full] = Type(kind, full)
            complete = super()._complex(schema, kind, space, ())
            for attribute in fields(Type):
                setattr(shared, attribute.name, getattr(complete, attribute.name))
        return self.shared[full]


def _full_name(schema: Mapping[str, Any], space: str) -> str:
    """The name of a type with its namespace; `space` is that around it."""
    name = str(schema.get("name"))
    if "." in name:
        return name
    inner = schema.get("namespace", space)
    return f"{inner}.{name}" if inner else name


def _with_logical(type: Type, schema: Mapping[str, Any]) -> Type:
    """The type with the logical type of its schema, if that is a valid one."""
    logical = schema.get("logicalType")
    if not isinstance(logical, str) or type.kind not in ("int", "long", "bytes", "string", "fixed"):
        return type
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if logical == "decimal":
        if not isinstance(precision, int) or not isinstance(scale, int) or precision < 1:
            return type
        if not 0 <= scale <= precision <= MOST_PRECISION:
            return type  # as in Java: such a logical type is ignored
        return Type(type.kind, type.name, logical, type.size, precision, scale)
    return Type(type.kind, type.name, logical, type.size)


def parse(text: str, referenced: Sequence[str] = ()) -> Type:
    """The type that a schema's text describes, with a column for each of its parts. `referenced` are the texts of schemas that it uses.
    NoColumns if only `Walk` reads its values, SchemaError if it is not valid.
    """
    return _parsed(_Parser, text, referenced)


def parse_shared(text: str, referenced: Sequence[str] = ()) -> Type:
    """The same for `Walk`: types may contain themselves. SchemaError if it is not valid."""
    return _parsed(_SharedParser, text, referenced)


def _parsed(parser: type[_Parser], text: str, referenced: Sequence[str]) -> Type:
    schemas = [loaded_schema(each) for each in (*referenced, text)]
    try:
        return parser(schemas).parse(schemas[-1], "", ())
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
        nodes = self._compile_part(type, depth)
        if type.is_marked:
            self.steps.append([k.CLOSE, type.mark, 0, 0])
            nodes = [type.mark, *nodes]
        return nodes

    def _compile_part(self, type: Type, depth: int) -> list[int]:
        self.depth = max(self.depth, depth)
        if type.kind == "null":
            return []
        if type.kind == "record":
            return [node for inner in type.inner for node in self._compile(inner, depth)]
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
        branches, jumps = [], []
        for number, branch in enumerate(type.inner):
            self.targets[first + number][0] = len(self.steps)
            branches.append(self._compile(branch, depth))
            jumps.append(len(self.steps))
            self.steps.append([k.JUMP, 0, 0, 0])
        for jump in jumps:
            self.steps[jump][2] = len(self.steps)
        for number in range(len(type.inner)):
            start = len(self.fills)
            self.fills += [node for other, nodes in enumerate(branches) if other != number for node in nodes]
            self.targets[first + number][1:] = [start, len(self.fills)]
            if len(self.fills) > MOST_FILLS:
                raise NoColumns(f"more than {MOST_FILLS:,} parts of unions")
        return [type.node, *(node for nodes in branches for node in nodes)]

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
    """What a program met in some bodies. `status`, `ends` and `sized` are those of each body; a body is sized if items in it have their
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
    sizes = np.where(program.stride == 0, 0, capacity * program.stride)
    base = np.cumsum(sizes) - sizes
    used = int(sizes.sum())
    words = np.empty(max(1, used), np.int64)
    done = 0
    while True:
        done, result = k.decode_avro(
            view, starts, stops, done, program.program, program.target_table, program.fill_list, program.row_list,
            base, program.stride, capacity, program.child, words, count, before, stack, status, ends, sized,
        )  # fmt: skip
        if result != k.FULL:
            return Entries(view, words, base, program.stride, count, status, ends, sized)
        # Nodes that lack room move to the end with twice as much: the others stay, so that all of it takes time by the entries.
        for full in np.flatnonzero(before > capacity).tolist():
            capacity[full] = max(64, 2 * capacity[full], before[full])
            held, size = (int(number[full] * program.stride[full]) for number in (count, capacity))
            if used + size > words.size:
                words = np.concatenate((words[:used], np.empty(max(used, size), np.int64)))
            words[used : used + held] = words[base[full] : base[full] + held]
            base[full] = used
            used += size


# One by one -------------------------------------------------------------------------------------------------------------


class Ended(Exception):
    """A body that does not fit its schema."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


#: A part of a value: its type, and what a subclass of Walk passes down to it.
Part = tuple[Type, Any]


class Walk:
    """One body from its begin to its end, in plain Python: what the kernel does, for any schema.

    Subclasses say what becomes of each part. Parts that hold others are iterators over those, so that no value is nested too deeply for
    Python; depth and number of values are limited.
    """

    def __init__(self, body: bytes) -> None:
        self.body, self.at = body, 0

    def run(self, type: Type, about: Any = None) -> None:
        """Visit all parts of a value. Ended if the body does not fit."""
        open_: list[Iterator[Part]] = [iter([(type, about)])]
        free = 0
        while open_:
            part = next(open_[-1], None)
            if part is None:
                open_.pop()
                continue
            start = self.at
            inside = self.visit(*part)
            if inside is not None:
                if len(open_) > MOST_NESTED:
                    raise Ended(k.LIMIT)
                open_.append(inside)
            if self.at == start:
                free += 1
                if free > MOST_FREE:
                    raise Ended(k.LIMIT)

    def visit(self, type: Type, about: Any) -> Iterator[Part] | None:
        """Take in a part; what is inside of it, if it holds others."""
        raise NotImplementedError

    def leaf(self, type: Type) -> Any:
        """The value of a part that holds no others."""
        kind = type.kind
        if kind == "null":
            return None
        if kind == "string":
            return self.text()
        if kind in ("int", "long"):
            value = self.long()
            if kind == "int" and not -k.INT_MAX - 1 <= value <= k.INT_MAX:
                raise Ended(k.CORRUPT)
            return value
        if kind == "boolean":
            return self.take(1) != b"\0"
        if kind in _FLOATS:
            code, size = _FLOATS[kind]
            return struct.unpack(code, self.take(size))[0]
        if kind == "enum":
            return type.symbols[self.index(len(type.symbols))]
        return self.take(type.size if kind == "fixed" else self.size())

    def take(self, size: int) -> bytes:
        """The next bytes."""
        if len(self.body) - self.at < size:
            raise Ended(k.TRUNCATED)
        self.at += size
        return self.body[self.at - size : self.at]

    def size(self) -> int:
        """A number of bytes."""
        size = self.long()
        if size < 0:
            raise Ended(k.CORRUPT)
        return size

    def text(self) -> str:
        """A string, or the key of a map."""
        try:
            return self.take(self.size()).decode()
        except UnicodeDecodeError:
            raise Ended(k.CORRUPT) from None

    def index(self, count: int) -> int:
        """The number of a branch or a symbol."""
        index = self.long()
        if not 0 <= index < count:
            raise Ended(k.CORRUPT)
        return index

    def block(self) -> tuple[int, bool]:
        """The number of items in the next block of an array or a map, and whether their size is before them."""
        count = self.long()
        if count >= 0:
            return count, False
        self.long()
        return -count, True

    def long(self) -> int:
        """A number of 64 bits in zigzag."""
        if self.at < len(self.body) and (byte := self.body[self.at]) < 0x80:  # most have one byte
            self.at += 1
            return (byte >> 1) ^ -(byte & 1)
        value = 0
        for shift in range(0, 70, 7):
            if self.at >= len(self.body):
                raise Ended(k.TRUNCATED)
            byte = self.body[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                value &= (1 << 64) - 1
                return (value >> 1) ^ -(value & 1)
        raise Ended(k.CORRUPT)


_FLOATS = {"float": ("<f", 4), "double": ("<d", 8)}


def encoded_leaf(type: Type, value: Any) -> bytes:
    """The bytes of a value that holds no others."""
    kind = type.kind
    if kind in ("int", "long"):
        return encoded_long(value)
    if kind == "boolean":
        return b"\1" if value else b"\0"
    if kind in _FLOATS:
        return struct.pack(_FLOATS[kind][0], value)
    if kind == "enum":
        return encoded_long(type.symbols.index(value))
    data = value.encode("utf-8", "replace") if kind == "string" else value or b""
    return data if kind in ("fixed", "null") else encoded_long(len(data)) + data


def encoded_long(value: int) -> bytes:
    """A number of 64 bits in zigzag, as Avro writes lengths, branches and numbers."""
    data, left = bytearray(), (value << 1) ^ (value >> 63)
    while left >= 0x80:
        data.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes((*data, left))
