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
