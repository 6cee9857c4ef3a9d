"""Avro values read one by one, as JSON: those of a schema without columns, because it contains itself or has too many parts.

fastavro is not used here: it hides which branch of a union was written, counts enums and branches from the end for negative numbers, makes
millions of nulls from a few bytes, and a value that is nested a hundred thousand times ends the process. Nothing here calls itself for a
value inside another one, and depth and number of values are limited.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from rawlog.core.text import safe_json
from rawlog.schemas import kernels as k
from rawlog.schemas.avro import Type, parse_shared
from rawlog.schemas.avro_values import Unfit, decimal_text, float_text, number_column, shown_text

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
