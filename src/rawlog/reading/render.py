"""Render: Arrow batches as lines of text, fast: JSON, CSV, and any pattern of columns and literals.

A Leaf writes one column as text, one piece per row; Lines weaves the pieces of a batch with literals into bytes ready to be written.
Types that no kernel knows are written by `plain_json`, the slow twin that says what the text is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog.kernels import byte_view
from rawlog.kernels import text as kernels
from rawlog.model.errors import unknown
from rawlog.model.text import (
    binary_value,
    formed,
    plain_time,
    to_json,
)

#: The forms of `--bytes`: every binary value as a string in one form.
FORMS = ("base64", "hex", "escape")
NOTHING = byte_view(b"")
_SLACK = 64
PIECE = 8 << 20
"""Rows of more bytes than this are written in pieces."""
STEP = 3 << 18
"""Bytes of one value that are written at a time; whole groups of base64."""
Spans = NDArray[np.int64]
#: (column, sink, starts, stops): write one piece per row into the sink and tell where each begins and ends.
Leaf = Callable[[pa.Array, "Sink", Spans, Spans], None]


class Sink:
    """Bytes being written, in memory that is kept from batch to batch. Room is address space: untouched pages cost nothing."""

    def __init__(self) -> None:
        self.buffer = np.empty(1 << 16, np.uint8)
        self.filled = 0

    def room(self, size: int) -> NDArray[np.uint8]:
        """The buffer, with `size` bytes and slack after what is filled."""
        need = self.filled + size + _SLACK
        if self.buffer.size < need:
            grown = np.empty(max(need, self.buffer.size * 2), np.uint8)
            grown[: self.filled] = self.buffer[: self.filled]
            self.buffer = grown
        return self.buffer

    def add(self, pieces: Sequence[bytes], starts: Spans, stops: Spans) -> None:
        """Append pieces made elsewhere."""
        sizes = np.fromiter((len(piece) for piece in pieces), np.int64, len(pieces))
        data = b"".join(pieces)
        out = self.room(len(data))
        out[self.filled : self.filled + len(data)] = np.frombuffer(data, np.uint8)
        stops[:] = self.filled + np.cumsum(sizes)
        starts[:] = stops - sizes
        self.filled += len(data)


class Lines:
    """Rows as text: literal, column, literal, column … literal."""

    def __init__(self, columns: Sequence[tuple[str, Leaf]], literals: Sequence[bytes]) -> None:
        assert len(literals) == len(columns) + 1
        self._names = [name for name, _ in columns]
        self._weave = _Weave([leaf for _, leaf in columns], literals)
        self._out = Sink()

    def render(self, batch: pa.RecordBatch) -> memoryview:
        """The text of a batch, valid until the next call."""
        rows = batch.num_rows
        arrays = [batch.column(name) for name in self._names]
        self._out.filled = 0
        spans = np.empty((2, rows), np.int64)
        self._weave.write(arrays, np.ones(rows, np.uint8), self._out, spans[0], spans[1])
        return self._out.buffer.data[: self._out.filled]

    def pieces(self, batch: pa.RecordBatch) -> Iterator[memoryview | bytes]:
        """The text of a batch in pieces of bounded size, however large a value is; each is valid until the next is asked for."""
        if batch.nbytes <= PIECE:
            yield self.render(batch)
        elif batch.num_rows > 1:
            half = batch.num_rows // 2
            yield from self.pieces(batch.slice(0, half))
            yield from self.pieces(batch.slice(half))
        else:
            yield from self._weave.stream([batch.column(name) for name in self._names])
            self._out = Sink()


class Streaming:
    """A leaf that can also write one large value in pieces."""

    def __init__(self, write: Leaf, stream: Callable[[pa.Array], Iterator[bytes]]) -> None:
        self.write, self.stream = write, stream

    def __call__(self, array: pa.Array, sink: Sink, starts: Spans, stops: Spans) -> None:
        self.write(array, sink, starts, stops)


def _stream_value(leaf: Leaf, array: pa.Array) -> Iterator[bytes]:
    """The text of the one value of an array, in pieces if it is large."""
    if isinstance(leaf, Streaming) and array.nbytes > PIECE and array.is_valid()[0].as_py():
        yield from leaf.stream(array)
        return
    sink = Sink()
    leaf(array, sink, np.empty(1, np.int64), np.empty(1, np.int64))
    yield sink.buffer[: sink.filled].tobytes()


def _halves(array: pa.Array) -> Iterator[pa.Array]:
    """An array in parts that are small, or hold one value."""
    if array.nbytes <= PIECE or len(array) == 1:
        yield array
        return
    half = len(array) // 2
    yield from _halves(array.slice(0, half))
    yield from _halves(array.slice(half))


class _Weave:
    def __init__(self, leaves: Sequence[Leaf], literals: Sequence[bytes]) -> None:
        self.leaves = leaves
        self.literals = byte_view(b"".join(literals) + bytes(_SLACK))
        self.edges = np.cumsum([0, *map(len, literals)], dtype=np.int64)
        self.pieces = Sink()

    def write(
        self, arrays: Sequence[pa.Array], valid: NDArray[np.uint8], sink: Sink, starts: Spans, stops: Spans
    ) -> None:
        rows, pieces = starts.size, self.pieces
        pieces.filled = 0
        begins = np.empty((len(self.leaves), rows), np.int64)
        ends = np.empty((len(self.leaves), rows), np.int64)
        for index, (leaf, array) in enumerate(zip(self.leaves, arrays, strict=True)):
            leaf(array, pieces, begins[index], ends[index])
        out = sink.room(pieces.filled + rows * (int(self.edges[-1]) + 4))
        _, sink.filled, _ = kernels.weave(
            pieces.buffer, begins, ends, self.literals, self.edges, valid, out, sink.filled, starts, stops
        )

    def stream(self, arrays: Sequence[pa.Array]) -> Iterator[bytes]:
        """One row in pieces."""
        self.pieces = Sink()
        literals = [self.literals[start:stop].tobytes() for start, stop in pairwise(self.edges.tolist())]
        for literal, leaf, array in zip(literals, self.leaves, arrays, strict=False):
            yield literal
            yield from _stream_value(leaf, array)
        yield literals[-1]


# ------------------------------------------------------------------ what the buffers of an array hold


def _bits(buffer: pa.Buffer | None, offset: int, rows: int) -> NDArray[np.uint8]:
    if buffer is None:
        return np.ones(rows, np.uint8)
    return np.unpackbits(np.frombuffer(buffer, np.uint8), bitorder="little", count=offset + rows)[offset:]


def _valid(array: pa.Array) -> NDArray[np.uint8]:
    if pa.types.is_null(array.type):
        return np.zeros(len(array), np.uint8)
    return _bits(array.buffers()[0] if array.null_count else None, array.offset, len(array))


def _numbers(array: pa.Array) -> NDArray[np.int64]:
    buffer = array.buffers()[1]
    if buffer is None or not len(array):
        return np.zeros(len(array), np.int64)
    kind = np.dtype("int64" if pa.types.is_timestamp(array.type) else str(array.type))
    return np.frombuffer(buffer, kind)[array.offset : array.offset + len(array)].astype(np.int64)


def runs(array: pa.Array) -> tuple[NDArray[np.uint8], Spans, Spans]:
    """The bytes of a binary or string array, and where each value begins and ends in them."""
    _, offsets, data = array.buffers()
    rows = len(array)
    if offsets is None or not rows:
        return NOTHING, np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    large = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    stored = np.frombuffer(offsets, "i8" if large else "i4")[array.offset : array.offset + rows + 1]
    edges: Spans = stored.astype(np.int64)
    return NOTHING if data is None else byte_view(data), edges[:-1], edges[1:]


def is_text(type: pa.DataType) -> bool:
    """Whether values of a type are runs of bytes."""
    kinds = (pa.types.is_binary, pa.types.is_string, pa.types.is_large_binary, pa.types.is_large_string)
    return any(kind(type) for kind in kinds)


def is_bytes(type: pa.DataType) -> bool:
    """Whether values of a type are bytes that need not be text."""
    return bool(pa.types.is_binary(type) or pa.types.is_large_binary(type))


# ------------------------------------------------------------------ leaves


def text_leaf(style: int, null: bytes = b"") -> Leaf:
    """Bytes or text in one of the styles of `rawlog.kernels.text`."""
    literal = byte_view(null)

    def write(array: pa.Array, sink: Sink, starts: Spans, stops: Spans) -> None:
        _write_text(*runs(array), _valid(array), style, literal, sink, starts, stops)

    return Streaming(write, lambda array: _stream_text(array, style))


def _stream_text(array: pa.Array, style: int) -> Iterator[bytes]:
    """One large value in a style, some of its bytes at a time."""
    data, [begin], [end] = runs(array)
    before = after = b""
    if style in (kernels.JSON, kernels.PLAIN):
        if kernels.is_utf8(data, begin, end):
            before = after = b'"' if style == kernels.JSON else b""
        else:
            style, before, after = kernels.BASE64, b'{"base64":"', b'"}'
    elif style >= kernels.JSON_BASE64:
        before = after = b'"'
    quotes = style == kernels.JSON or style >= kernels.JSON_BASE64
    yield before
    while begin < end:
        stop = min(begin + STEP, end)
        while stop < end and style in (kernels.JSON, kernels.PLAIN) and data[stop] & 0xC0 == 0x80:
            stop -= 1  # a character is not cut
        sink, spans = Sink(), (np.empty(1, np.int64), np.empty(1, np.int64))
        part = np.array([begin], np.int64), np.array([stop], np.int64)
        _write_text(data, *part, np.ones(1, np.uint8), style, NOTHING, sink, *spans)
        yield sink.buffer[int(quotes) : sink.filled - int(quotes)].tobytes()
        begin = stop
    yield after


def _write_text(
    data: NDArray[np.uint8],
    begins: Spans,
    ends: Spans,
    valid: NDArray[np.uint8],
    style: int,
    null: NDArray[np.uint8],
    sink: Sink,
    starts: Spans,
    stops: Spans,
) -> None:
    total = int((ends - begins).sum())
    rate = 1 if style == kernels.RAW else kernels.TEXT_RATE
    out = sink.room(total * rate + begins.size * (kernels.TEXT_EXTRA + null.size))
    _, sink.filled, _ = kernels.write_text(data, begins, ends, valid, style, null, out, sink.filled, starts, stops)


def integer_leaf(null: bytes = b"", values: Callable[[pa.Array], NDArray[np.int64]] | None = None) -> Leaf:
    """Whole numbers: the array's own, or what `values` makes of it (then never null)."""
    literal = byte_view(null)

    def write(array: pa.Array, sink: Sink, starts: Spans, stops: Spans) -> None:
        numbers = _numbers(array) if values is None else values(array)
        valid = _valid(array) if values is None else np.ones(len(array), np.uint8)
        out = sink.room(len(array) * (kernels.INTEGER_SIZE + literal.size))
        _, sink.filled, _ = kernels.write_integers(numbers, valid, literal, out, sink.filled, starts, stops)

    return write


def boolean_leaf(null: bytes = b"") -> Leaf:
    """`true` and `false`."""
    literal = byte_view(null)

    def write(array: pa.Array, sink: Sink, starts: Spans, stops: Spans) -> None:
        buffer = array.buffers()[1] if len(array) else None
        values = _bits(buffer, array.offset, len(array))
        out = sink.room(len(array) * (kernels.BOOLEAN_SIZE + literal.size))
        _, sink.filled, _ = kernels.write_booleans(values, _valid(array), literal, out, sink.filled, starts, stops)

    return write


def time_leaf(*, quoted: bool, null: bytes = b"") -> Leaf:
    """Timestamps in microseconds as ISO 8601."""
    literal = byte_view(null)

    def write(array: pa.Array, sink: Sink, starts: Spans, stops: Spans) -> None:
        out = sink.room(len(array) * (kernels.TIME_SIZE + literal.size))
        numbers = _numbers(array)
        _, sink.filled, _ = kernels.write_times(
            numbers, _valid(array), quoted, literal, out, sink.filled, starts, stops
        )

    return write


def python_leaf(make: Callable[[pa.Array], list[bytes]]) -> Leaf:
    """Pieces made in Python: the slow way for what no kernel knows."""

    def write(array: pa.Array, sink: Sink, starts: Spans, stops: Spans) -> None:
        sink.add(make(array), starts, stops)

    return write


# ------------------------------------------------------------------ JSON


def json_lines(schema: pa.Schema, form: str | None = None) -> Lines:
    """One JSON object a line. `form` gives binary values as strings in that form (OptionError for an unknown one)."""
    columns = [(field.name, json_leaf(field.type, form)) for field in schema]
    return Lines(columns, _object_literals(schema.names, b"}\n"))


def _object_literals(names: Sequence[str], end: bytes) -> list[bytes]:
    keys = [f"{'{' if index == 0 else ','}{to_json(name)}:".encode() for index, name in enumerate(names)]
    return [*keys, end if names else b"{" + end]


_JSON_STYLES = {
    None: kernels.JSON,
    "base64": kernels.JSON_BASE64,
    "hex": kernels.JSON_HEX,
    "escape": kernels.JSON_ESCAPE,
}


def json_leaf(type: pa.DataType, form: str | None = None) -> Leaf:
    """What writes a column of a type as JSON."""
    if form not in _JSON_STYLES:
        raise unknown("form of bytes", str(form), FORMS)
    if isinstance(type, pa.JsonType):
        return stored_leaf(text_leaf(kernels.RAW, b"null"))
    if is_text(type):
        return text_leaf(_JSON_STYLES[form] if is_bytes(type) else kernels.JSON, b"null")
    if pa.types.is_signed_integer(type) or type in (pa.uint8(), pa.uint16(), pa.uint32()):
        return integer_leaf(b"null")
    if pa.types.is_boolean(type):
        return boolean_leaf(b"null")
    if pa.types.is_timestamp(type) and type.unit == "us":
        return time_leaf(quoted=True, null=b"null")
    if pa.types.is_struct(type):
        return _struct_leaf(type, form)
    if pa.types.is_map(type) and is_text(type.key_type):
        return _map_leaf(type, form)
    if pa.types.is_list(type):
        return _list_leaf(type, form)
    return python_leaf(lambda array: [piece.encode() for piece in plain_json(array, form)])


def stored_leaf(leaf: Leaf) -> Leaf:
    """What writes the texts of a column of JSON."""
    return lambda array, sink, starts, stops: leaf(array.storage, sink, starts, stops)


def _struct_leaf(type: pa.DataType, form: str | None) -> Leaf:
    fields = [type.field(index) for index in range(type.num_fields)]
    woven = _Weave(
        [json_leaf(field.type, form) for field in fields],
        _object_literals([field.name for field in fields], b"}"),
    )

    def write(array: pa.Array, sink: Sink, starts: Spans, stops: Spans) -> None:
        children = [array.field(index) for index in range(len(fields))]
        woven.write(children, _valid(array), sink, starts, stops)

    return Streaming(write, lambda array: woven.stream([array.field(index) for index in range(len(fields))]))


def _list_leaf(type: pa.DataType, form: str | None) -> Leaf:
    element = json_leaf(type.value_type, form)
    pieces = Sink()

    def write(array: pa.Array, sink: Sink, starts: Spans, stops: Spans) -> None:
        edges = array.offsets.to_numpy().astype(np.int64)
        items = array.values.slice(edges[0], edges[-1] - edges[0])
        pieces.filled = 0
        begins, ends = np.empty((2, len(items)), np.int64)
        element(items, pieces, begins, ends)
        _join(pieces, begins, ends, edges - edges[0], _valid(array), b"[]", sink, starts, stops)

    def stream(array: pa.Array) -> Iterator[bytes]:
        between = b"["
        for part in _halves(array.flatten()):
            yield between
            if len(part) == 1:
                yield from _stream_value(element, part)
            else:
                sink = Sink()
                whole = pa.ListArray.from_arrays(pa.array([0, len(part)], pa.int32()), part)
                write(whole, sink, np.empty(1, np.int64), np.empty(1, np.int64))
                yield sink.buffer[1 : sink.filled - 1].tobytes()
            between = b","
        yield b"]"

    return Streaming(write, stream)


def _map_leaf(type: pa.DataType, form: str | None) -> Leaf:
    # The key of a JSON object is a string whatever it holds, so a key that is not UTF-8 is escaped.
    key = text_leaf(kernels.JSON) if not is_bytes(type.key_type) else text_leaf(kernels.JSON_ESCAPE)
    entry = _Weave([key, json_leaf(type.item_type, form)], [b"", b":", b""])
    pieces = Sink()

    def write(array: pa.Array, sink: Sink, starts: Spans, stops: Spans) -> None:
        edges = array.offsets.to_numpy().astype(np.int64)
        items = array.values.slice(edges[0], edges[-1] - edges[0])
        pieces.filled = 0
        begins, ends = np.empty((2, len(items)), np.int64)
        entry.write([items.field(0), items.field(1)], np.ones(len(items), np.uint8), pieces, begins, ends)
        _join(pieces, begins, ends, edges - edges[0], _valid(array), b"{}", sink, starts, stops)

    return write


def _join(
    pieces: Sink,
    begins: Spans,
    ends: Spans,
    edges: Spans,
    valid: NDArray[np.uint8],
    brackets: bytes,
    sink: Sink,
    starts: Spans,
    stops: Spans,
) -> None:
    out = sink.room(pieces.filled + begins.size + 4 * valid.size)
    _, sink.filled, _ = kernels.join(
        pieces.buffer, begins, ends, edges, valid, brackets[0], brackets[1], out, sink.filled, starts, stops
    )


# ------------------------------------------------------------------ CSV


def csv_lines(schema: pa.Schema, form: str | None = None, safe: Callable[[bytes], str] | None = None) -> Lines:
    """One line a row, fields in quotes where they need them; null is an empty field and an empty text is `""`.

    Nested columns are JSON. `safe` makes values fit for a terminal.
    """
    columns = [(field.name, csv_leaf(field.type, form, safe)) for field in schema]
    return Lines(columns, [b"", *[b","] * (len(columns) - 1), b"\n"])


def csv_header(schema: pa.Schema) -> bytes:
    """The line of column names."""
    return (",".join(schema.names) + "\n").encode()


def csv_leaf(type: pa.DataType, form: str | None, safe: Callable[[bytes], str] | None) -> Leaf:
    """What writes a column of a type as a field of CSV."""
    if pa.types.is_signed_integer(type):
        return integer_leaf()
    if pa.types.is_boolean(type):
        return boolean_leaf()
    if pa.types.is_timestamp(type) and type.unit == "us":
        return time_leaf(quoted=False)
    inner = plain_leaf(type, form, safe) if is_text(type) else json_leaf(type, form)
    pieces = Sink()

    def write(array: pa.Array, sink: Sink, starts: Spans, stops: Spans) -> None:
        pieces.filled = 0
        begins, ends = np.empty((2, len(array)), np.int64)
        inner(array, pieces, begins, ends)
        data = byte_view(pieces.buffer[: pieces.filled])
        _write_text(data, begins, ends, _valid(array), kernels.CSV, NOTHING, sink, starts, stops)

    def stream(array: pa.Array) -> Iterator[bytes]:
        last, needs = b"", False
        for piece in _stream_value(inner, array):
            needs = (
                needs or (not last and piece[:1] == b" ") or any(mark in piece for mark in (b'"', b",", b"\n", b"\r"))
            )
            last = piece[-1:] or last
        needs = needs or last in (b"", b" ")
        yield b'"' if needs else b""
        for piece in _stream_value(inner, array):
            yield piece.replace(b'"', b'""') if needs else piece
        yield b'"' if needs else b""

    return Streaming(write, stream)


_PLAIN_STYLES = {None: kernels.PLAIN, "base64": kernels.BASE64, "hex": kernels.HEX, "escape": kernels.ESCAPE}


def plain_leaf(type: pa.DataType, form: str | None, safe: Callable[[bytes], str] | None) -> Leaf:
    """Text as it is; bytes in a form, or as they are where they are UTF-8."""
    if form is not None and is_bytes(type):
        return text_leaf(_PLAIN_STYLES[form])
    if safe is None:
        return text_leaf(kernels.PLAIN)
    return python_leaf(lambda array: [b"" if value is None else safe(value).encode() for value in values_of(array)])


def values_of(array: pa.Array) -> list[bytes | None]:
    """The values of a text or binary array as bytes, whatever they hold."""
    data, begins, ends = runs(array)
    whole = bytes(data)
    rows = zip(begins.tolist(), ends.tolist(), _valid(array).tolist(), strict=True)
    return [whole[begin:end] if valid else None for begin, end, valid in rows]


# ------------------------------------------------------------------ the slow twin


def plain_json(array: pa.Array, form: str | None = None) -> list[str]:
    """The JSON text of each value, made one by one: what the kernels must give, and the way for types they do not know."""
    type = array.type
    if is_text(type):
        binary = is_bytes(type)
        return ["null" if value is None else _plain_text(value, form if binary else None) for value in values_of(array)]
    valid = _valid(array).tolist()
    if pa.types.is_timestamp(type) and type.unit == "us":
        times = _numbers(array).tolist()
        return [f'"{plain_time(time)}"' if here else "null" for time, here in zip(times, valid, strict=True)]
    if pa.types.is_struct(type):
        names = [to_json(type.field(index).name) for index in range(type.num_fields)]
        children = [plain_json(array.field(index), form) for index in range(type.num_fields)]
        rows: Any = zip(*children, strict=True) if children else [()] * len(array)
        texts = ["{" + ",".join(f"{n}:{v}" for n, v in zip(names, row, strict=True)) + "}" for row in rows]
        return [text if here else "null" for text, here in zip(texts, valid, strict=True)]
    if pa.types.is_map(type) and is_text(type.key_type):
        return _plain_items(array, valid, "{}", lambda items: _plain_entries(items, form))
    if pa.types.is_list(type):
        return _plain_items(array, valid, "[]", lambda items: plain_json(items, form))
    return [_plain_value(value) for value in array.to_pylist()]


def _plain_items(array: pa.Array, valid: list[int], brackets: str, make: Callable[[pa.Array], list[str]]) -> list[str]:
    edges = array.offsets.to_pylist()
    items = make(array.values.slice(edges[0], edges[-1] - edges[0]))
    ranges = [(start - edges[0], stop - edges[0]) for start, stop in pairwise(edges)]
    texts = [brackets[0] + ",".join(items[start:stop]) + brackets[1] for start, stop in ranges]
    return [text if here else "null" for text, here in zip(texts, valid, strict=True)]


def _plain_entries(items: pa.Array, form: str | None) -> list[str]:
    keys = items.field(0)
    names = plain_json(keys, "escape" if is_bytes(keys.type) else None)
    return [f"{name}:{value}" for name, value in zip(names, plain_json(items.field(1), form), strict=True)]


def _plain_text(value: bytes, form: str | None) -> str:
    return to_json(binary_value(value) if form is None else formed(value, form))


def _plain_value(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return to_json(str(value))
    return to_json(value)
