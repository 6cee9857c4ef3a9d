"""`--format`: rpk's grammar for printing records, compiled to columns and literals that `rawlog.reading.render` weaves.

`rawlog cat --help` tells the grammar (`rawlog.verbs.cat.TEMPLATE_HELP`).
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from rawlog.kernels import text as kernels
from rawlog.model.errors import OptionError
from rawlog.model.text import formed, plain_time
from rawlog.reading.render import (
    Leaf,
    Lines,
    integer_leaf,
    python_leaf,
    runs,
    text_leaf,
    values_of,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rawlog.model.table import Table

Safe = Callable[[bytes], str]
ToBytes = Callable[[bytes], bytes]
NumberText = Callable[[int], bytes]

_TEXT = {"t": "topic", "k": "key", "v": "value", "s": "value"}
_LENGTH = {"T": "topic", "K": "key", "V": "value", "S": "value"}
_NUMBER = {"p": "partition", "o": "offset", "e": "leader_epoch", "x": "producer_id", "y": "producer_epoch"}
_LIVE = {"[": "log start offset", "|": "last stable offset", "]": "high watermark"}
_CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


@dataclass(frozen=True, slots=True)
class Template:
    """A compiled `--format`."""

    lines: Lines
    columns: tuple[str, ...]


def compile_template(text: str, table: Table, form: str | None = None, safe: Safe | None = None) -> Template:
    """Compile a template for a table. OptionError for what the grammar or the table does not have."""
    return _Compiler(text, table, form, safe).run()


def unescape(text: str) -> bytes:
    r"""The bytes of a text with `\t`, `\n`, `\r`, `\0`, `\\` and `\xNN`. OptionError for another escape."""
    out, at = bytearray(), 0
    while at < len(text):
        if text[at] != "\\":
            out += text[at].encode("utf-8", "surrogateescape")
            at += 1
        else:
            piece, at = _slash(text, at)
            out += piece
    return bytes(out)


_SLASHES = {"t": b"\t", "n": b"\n", "r": b"\r", "0": b"\0", "\\": b"\\"}


def _slash(text: str, at: int) -> tuple[bytes, int]:
    following = text[at + 1 : at + 2]
    if following in _SLASHES and following:
        return _SLASHES[following], at + 2
    if following == "x":
        try:
            return bytes.fromhex(text[at + 2 : at + 4].ljust(2, "?")), at + 4
        except ValueError:
            pass
    raise OptionError(rf"{text!r}: {text[at : at + 4]!r} is not an escape; known: \t \n \r \0 \\ \xNN")


class _Compiler:
    def __init__(self, text: str, table: Table, form: str | None, safe: Safe | None) -> None:
        self.text, self.table, self.form, self.safe = text, table, form, safe
        self.pieces: list[tuple[str, Leaf]] = []
        self.literals = [bytearray()]

    def run(self) -> Template:
        at = 0
        while at < len(self.text):
            character = self.text[at]
            if character == "\\":
                piece, at = _slash(self.text, at)
                self.literals[-1] += piece
            elif character == "%":
                at = self.percent(at + 1)
            else:
                self.literals[-1] += character.encode("utf-8", "surrogateescape")
                at += 1
        names = tuple(dict.fromkeys(name for name, _ in self.pieces)) or (self.smallest(),)
        return Template(Lines(self.pieces, [bytes(literal) for literal in self.literals]), names)

    def smallest(self) -> str:
        """A column that costs little, where only the number of rows is wanted."""
        numbers = [column.name for column in self.table.columns if column.type in ("int", "bigint")]
        return (numbers or list(self.table.names))[0]

    def percent(self, at: int) -> int:
        verb = self.text[at : at + 1]
        if not verb:
            raise self.wrong("a lone % at the end")
        if verb in "%{}":
            self.literals[-1] += verb.encode()
            return at + 1
        modifier, after = None, at + 1
        if self.text[after : after + 1] == "{":
            modifier, after = _read_braces(self.text, after)
        if modifier is None and at + 1 < len(self.text) and self.text[at + 1] == "{":
            raise self.wrong(f"the brace after %{verb} is not closed")
        self.add(*self.leaf(verb, modifier))
        return after

    def add(self, column: str, leaf: Leaf) -> None:
        self.pieces.append((column, leaf))
        self.literals.append(bytearray())

    def leaf(self, verb: str, modifier: str | None) -> tuple[str, Leaf]:
        """The column that a verb prints and what writes it."""
        if verb in _TEXT:
            return self.column(_TEXT[verb], verb), self.text_verb(verb, modifier)
        if verb in _LENGTH:
            return self.column(_LENGTH[verb], verb), self.number_verb(modifier, _sizes)
        if verb in _NUMBER:
            return self.column(_NUMBER[verb], verb), self.number_verb(modifier, _numbers)
        if verb == "H":
            return self.column("headers", verb), self.number_verb(modifier, _counts)
        if verb == "i":
            return self.smallest(), self.number_verb(modifier, _Counter())
        if verb == "d":
            return self.column("timestamp", verb), self.time_verb(modifier)
        if verb == "h":
            return self.column("headers", verb), self.header_verb(modifier)
        if verb == "a":
            return self.attribute_verb(modifier)
        if verb in _LIVE:
            raise self.wrong(f"%{verb}, the partition's {_LIVE[verb]}, is known to a live broker only")
        verbs = "".join(sorted((*_TEXT, *_LENGTH, *_NUMBER, *"Hidha")))
        raise self.wrong(f"%{verb} is not known; these are: {' '.join('%' + name for name in verbs)}")

    def column(self, name: str, verb: str) -> str:
        if name not in self.table.names:
            hint = "; --table kafka.records has it" if name not in ("key", "value", "topic", "headers") else ""
            raise self.wrong(f"%{verb} needs the column {name}, which {self.table.name} has not{hint}")
        return name

    def wrong(self, why: str) -> OptionError:
        return OptionError(f"--format {self.text!r}: {why}")

    # -------------------------------------------------------------- text

    def text_verb(self, verb: str, modifier: str | None) -> Leaf:
        styles = {"hex": kernels.HEX, "base64": kernels.BASE64, "base64raw": kernels.BASE64_RAW}
        if modifier in styles:
            return text_leaf(styles[modifier])
        form = self.form if verb != "t" else None
        if not modifier and self.safe is None:
            return text_leaf(
                {None: kernels.RAW, "base64": kernels.BASE64, "hex": kernels.HEX, "escape": kernels.ESCAPE}[form]
            )
        convert = self.converter(verb, modifier)
        return python_leaf(lambda array: [b"" if value is None else convert(value) for value in values_of(array)])

    def converter(self, verb: str, modifier: str | None) -> ToBytes:
        if not modifier:
            form, safe = self.form if verb != "t" else None, self.safe
            if form is not None:
                return lambda value: formed(value, form).encode()
            return (lambda value: safe(value).encode()) if safe is not None else bytes
        if modifier == "hex":
            return lambda value: value.hex().encode()
        if modifier == "base64":
            return base64.b64encode
        if modifier == "base64raw":
            return lambda value: base64.b64encode(value).rstrip(b"=")
        if modifier.startswith("unpack"):
            pattern = self.enclosed(modifier.removeprefix("unpack"))
            return lambda value: unpack(pattern, value)
        raise self.wrong(f"{{{modifier}}} is not a text format: hex, base64, base64raw, unpack[…]")

    def enclosed(self, text: str) -> str:
        """What is between any number of pounds, braces or brackets and their likes."""
        pairs = {"#": "#", "{": "}", "[": "]"}
        mark = text[:1]
        depth = len(text) - len(text.lstrip(mark)) if mark in pairs and mark else 0
        if depth == 0 or not text.endswith(pairs[mark] * depth) or len(text) < 2 * depth:
            raise self.wrong(f"{text!r}: # … #, {{ … }} or [ … ] expected")
        return text[depth : len(text) - depth]

    # -------------------------------------------------------------- numbers

    def number_verb(self, modifier: str | None, values: Callable[[pa.Array], NDArray[np.int64]]) -> Leaf:
        if modifier in (None, "", "ascii", "number"):
            return integer_leaf(values=values)
        convert = self.number(str(modifier))
        return python_leaf(lambda array: [convert(value) for value in values(array).tolist()])

    def number(self, modifier: str) -> NumberText:
        if modifier in ("", "ascii", "number"):
            return lambda value: str(value).encode()
        if modifier == "bool":
            return lambda value: b"true" if value else b"false"
        if modifier == "hex":
            return lambda value: f"{value & (1 << 64) - 1:x}".encode()
        for bits in (64, 32, 16, 8, 4):
            if modifier == f"hex{bits}":
                return lambda value, bits=bits: f"{value & (1 << bits) - 1:0{bits // 4}x}".encode()  # type: ignore[misc]
            for name, order in (("big", "big"), ("little", "little")):
                if bits >= 8 and (modifier == f"{name}{bits}" or (bits == 8 and modifier == "byte")):
                    return lambda value, bits=bits, order=order: (value & (1 << bits) - 1).to_bytes(bits // 8, order)  # type: ignore[misc]
        raise self.wrong(
            f"{{{modifier}}} is not a number format: ascii, hex, hex64 … hex4, big64 … big8, little64 … little8, byte, bool"
        )

    def time_verb(self, modifier: str | None) -> Leaf:
        for name, render in (("strftime", strftime), ("go", go_time)):
            if modifier and modifier.startswith(name):
                pattern = self.enclosed(modifier.removeprefix(name))
                return python_leaf(lambda array, p=pattern, r=render: _times(array, p, r))  # type: ignore[misc]
        return self.number_verb(modifier, _milliseconds)

    # -------------------------------------------------------------- headers and attributes

    def header_verb(self, modifier: str | None) -> Leaf:
        if modifier is None:
            inner = self.nested("%k=%v")
            return python_leaf(lambda array: [b",".join(map(inner, row)) for row in _headers(array)])
        inner = self.nested(modifier)
        return python_leaf(lambda array: [b"".join(map(inner, row)) for row in _headers(array)])

    def nested(self, text: str) -> Callable[[tuple[bytes, bytes | None]], bytes]:
        """What prints one header."""
        steps: list[Callable[[tuple[bytes, bytes | None]], bytes]] = []
        at = 0
        while at < len(text):
            if text[at] == "\\":
                piece, at = _slash(text, at)
                steps.append(lambda _, piece=piece: piece)  # type: ignore[misc]
                continue
            if text[at] != "%":
                literal = text[at].encode("utf-8", "surrogateescape")
                steps.append(lambda _, piece=literal: piece)  # type: ignore[misc]
                at += 1
                continue
            verb, modifier, after = text[at + 1 : at + 2], None, at + 2
            if text[after : after + 1] == "{" and verb not in ("%", "{", "}"):
                modifier, after = _read_braces(text, after)
            at = after
            if verb in ("%", "{", "}") and verb:
                literal = verb.encode()
                steps.append(lambda _, piece=literal: piece)  # type: ignore[misc]
            elif verb in ("k", "v") and verb:
                convert = self.converter(verb if verb == "v" else "t", modifier)
                which = "kv".index(verb)
                steps.append(lambda header, i=which, c=convert: c(header[i] or b""))  # type: ignore[misc]
            elif verb in ("K", "V") and verb:
                number = self.number(modifier or "")
                which = "KV".index(verb)
                steps.append(lambda header, i=which, n=number: n(len(header[i] or b"")))  # type: ignore[misc]
            else:
                raise self.wrong(f"%{verb} is not known inside %h; %k %v %K %V are")
        return lambda header: b"".join(step(header) for step in steps)

    def attribute_verb(self, modifier: str | None) -> tuple[str, Leaf]:
        name, _, number = (modifier or "").partition(";")
        if name == "compression":
            column = self.column("codec", "a")
            if not number:
                return column, text_leaf(kernels.RAW)
            convert = self.number(number)
            return column, python_leaf(lambda array: [convert(_CODECS.get(value, -1)) for value in array.to_pylist()])
        columns = {
            "timestamp-type": "timestampType",
            "transactional-bit": "is_transactional",
            "control-bit": "is_control",
        }
        if name not in columns:
            raise self.wrong("%a needs {compression}, {timestamp-type}, {transactional-bit} or {control-bit}")
        return self.column(columns[name], "a"), self.number_verb(number or None, _numbers)


def _read_braces(text: str, at: int) -> tuple[str | None, int]:
    """What is in the braces that open at `at`, and where the text goes on; None if they do not close."""
    depth, position = 0, at
    while position < len(text):
        if text[position] == "{" and text[position - 1] != "%":
            depth += 1
        elif text[position] == "}" and text[position - 1] != "%":
            depth -= 1
            if depth == 0:
                return text[at + 1 : position], position + 1
        position += 1
    return None, at


class _Counter:
    """The number of each row, over all batches."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, array: pa.Array) -> NDArray[np.int64]:
        numbers = np.arange(self.count + 1, self.count + 1 + len(array), dtype=np.int64)
        self.count += len(array)
        return numbers


def _numbers(array: pa.Array) -> NDArray[np.int64]:
    return np.asarray(array.cast(pa.int64()).fill_null(-1), np.int64)


def _milliseconds(array: pa.Array) -> NDArray[np.int64]:
    numbers = np.asarray(array.cast(pa.int64()).fill_null(-1), np.int64)
    return np.where(np.asarray(array.is_null()), -1, numbers // 1000)


def _sizes(array: pa.Array) -> NDArray[np.int64]:
    _, begins, ends = runs(array)
    return np.where(np.asarray(array.is_null()), 0, ends - begins)


def _counts(array: pa.Array) -> NDArray[np.int64]:
    edges = np.asarray(array.offsets, np.int64)
    return np.where(np.asarray(array.is_null()), 0, np.diff(edges))


def _headers(array: pa.Array) -> list[list[tuple[bytes, bytes | None]]]:
    edges = np.asarray(array.offsets, np.int64)
    items = array.values.slice(edges[0], edges[-1] - edges[0])
    pairs = list(zip(values_of(items.field(0)), values_of(items.field(1)), strict=True))
    return [pairs[start - edges[0] : stop - edges[0]] for start, stop in pairwise(edges)]  # type: ignore[misc]


# ------------------------------------------------------------------ times


def _times(array: pa.Array, pattern: str, render: Callable[[str, int], str]) -> list[bytes]:
    values = array.cast(pa.int64()).to_pylist()
    return [b"" if value is None else render(pattern, value).encode() for value in values]


def strftime(pattern: str, microseconds: int) -> str:
    """strftime in UTC; a time outside the calendar's years as ISO 8601."""
    from datetime import UTC, datetime, timedelta

    try:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)).strftime(pattern)
    except (OverflowError, ValueError):
        return plain_time(microseconds)


#: Go's reference time, longest names first, and what strftime calls them.
_GO = (
    ("January", "%B"), ("Monday", "%A"), ("2006", "%Y"), ("-07:00", "+00:00"), ("Z07:00", "Z"), ("-0700", "+0000"), ("Z0700", "Z"),
    ("Jan", "%b"), ("Mon", "%a"), ("MST", "UTC"), ("15", "%H"), ("01", "%m"), ("02", "%d"), ("03", "%I"), ("04", "%M"), ("05", "%S"),
    ("06", "%y"), ("PM", "%p"), ("_2", "%e"), ("-07", "+00"),
)  # fmt: skip


def go_time(pattern: str, microseconds: int) -> str:
    """A time by Go's layout (`2006-01-02T15:04:05.000Z07:00`), in UTC."""
    out, at = [], 0
    while at < len(pattern):
        digits = len(pattern[at + 1 :]) - len(pattern[at + 1 :].lstrip("0")) if pattern[at] == "." else 0
        if digits:
            out.append("." + f"{microseconds % 10**6:06}".ljust(digits, "0")[:digits])
            at += 1 + digits
            continue
        for name, code in _GO:
            if pattern.startswith(name, at):
                out.append(strftime(code, microseconds))
                at += len(name)
                break
        else:
            out.append(pattern[at])
            at += 1
    return "".join(out)


# ------------------------------------------------------------------ unpack

_UNPACK = {"b": "b", "B": "B", "h": "h", "H": "H", "i": "i", "I": "I", "q": "q", "Q": "Q"}


def unpack(pattern: str, value: bytes) -> bytes:
    """Binary fields as text, by a pattern like Python's struct: `>hIq`, `c` or `.` a byte, `s` the rest, `$` the end."""
    order, at, out = ">", 0, bytearray()
    for character in pattern:
        if character in "<>":
            order = character
        elif character == "x":
            out += b" "
        elif character in _UNPACK:
            code = order + _UNPACK[character]
            if len(value) - at < struct.calcsize(code):
                return bytes(out) + b"<too short>"
            out += str(struct.unpack_from(code, value, at)[0]).encode()
            at += struct.calcsize(code)
        elif character in "c.":
            if at >= len(value):
                return bytes(out) + b"<too short>"
            out += value[at : at + 1]
            at += 1
        elif character == "s":
            out += value[at:]
            at = len(value)
        elif character == "$":
            if at < len(value):
                out += b"<bytes left over>"
        else:
            raise OptionError(f"unpack: {character!r} is not known; x < > b B h H i I q Q c . s $ are")
    return bytes(out)
