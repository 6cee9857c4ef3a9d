"""Arrow arrays from what kernels and files give: small builders that every reader shares."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog.model.frames import Bytes
from rawlog.model.status import OK
from rawlog.model.table import Table, arrow_type
from rawlog.model.text import to_json, valid_text

TIMESTAMP = pa.timestamp("us", "UTC")


def constant(value: Any, type: str, count: int, *, compact: bool = False) -> pa.Array:
    """An array of one value over and over; null where the value is None. `compact`: a text may come as a dictionary."""
    return _constant(value, type, 1 << max(10, (count - 1).bit_length()), compact).slice(0, count)


@lru_cache(maxsize=64)
def _constant(value: Any, type: str, count: int, compact: bool) -> pa.Array:
    """Kept, since every batch of a file asks for the same topic, partition and path."""
    arrow = arrow_type(type)
    if isinstance(value, str):
        value = valid_text(value)
        if compact:
            return pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), pa.array([value], arrow))
    return pa.nulls(count, arrow) if value is None else pa.repeat(pa.scalar(value, arrow), count)


def integers(values: NDArray[Any], type: str, valid: NDArray[np.bool_] | None = None) -> pa.Array:
    """An integer column of a table's type, null where `valid` is false."""
    arrow = arrow_type(type)
    mask = None if valid is None or valid.all() else ~valid
    return pa.array(np.ascontiguousarray(values, str(arrow)), arrow, mask=mask)


def timestamps(microseconds: NDArray[np.int64], valid: NDArray[np.bool_] | None = None) -> pa.Array:
    """A timestamp column, null where `valid` is false."""
    return integers(microseconds, "bigint", valid).view(TIMESTAMP)


def booleans(values: NDArray[Any]) -> pa.Array:
    """A boolean column."""
    return pa.array(np.asarray(values, np.bool_))


def spans(
    data: Bytes, starts: NDArray[np.int64], sizes: NDArray[np.int64], valid: NDArray[np.bool_] | None = None
) -> pa.Array:
    """A binary column of runs of `data`, all of which the caller has checked to lie inside it."""
    from rawlog.kernels.gather import gather_spans

    count = starts.size
    sizes = sizes if valid is None else np.where(valid, sizes, 0)
    total = int(sizes.sum())
    if total > 0x7FFF_FFFF:
        raise ValueError("a batch of binary values past 2 GiB: the reader must cut it")
    offsets = pa.allocate_buffer((count + 1) * 4)
    values = pa.allocate_buffer(total + 64)
    gather_spans(
        data,
        np.ascontiguousarray(starts, np.int64),
        np.ascontiguousarray(sizes, np.int64),
        np.frombuffer(values, np.uint8),
        np.frombuffer(offsets, np.int32),
    )
    mask = None if valid is None or valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    nulls = 0 if valid is None else int(count - valid.sum())
    return pa.BinaryArray.from_buffers(pa.binary(), count, [mask, offsets, values.slice(0, total)], nulls)


def nullable_spans(data: Bytes, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> pa.Array:
    """As `spans`, null where a size is below zero."""
    from rawlog.kernels.gather import gather_nullable

    count, total = starts.size, int(np.maximum(sizes, 0).sum())
    if total > 0x7FFF_FFFF:
        raise ValueError("a batch of binary values past 2 GiB: the reader must cut it")
    offsets, values = pa.allocate_buffer((count + 1) * 4), pa.allocate_buffer(total + 64)
    valid = np.full((count + 7) // 8, 0xFF, np.uint8)
    nulls = gather_nullable(
        data, starts, sizes, np.frombuffer(values, np.uint8), np.frombuffer(offsets, np.int32), valid
    )
    mask = pa.py_buffer(valid) if nulls else None
    return pa.BinaryArray.from_buffers(pa.binary(), count, [mask, offsets, values.slice(0, total)], int(nulls))


class Splice(NamedTuple):
    """Spans of a column's data, by the rows that they are in, and which of some pieces takes the place of each."""

    rows: NDArray[np.int64]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    pieces: list[bytes]
    chosen: NDArray[np.int64]


class Splices:
    """Bytes that take the place of others in the values of a binary column."""

    def __init__(self, column: pa.Array) -> None:
        self.column = column
        count = len(column)
        _, offsets, buffer = column.buffers()
        self.places = (
            np.frombuffer(offsets, np.int32, count + 1, column.offset * 4).astype(np.int64)
            if count
            else np.zeros(1, np.int64)
        )
        self.data = np.frombuffer(buffer, np.uint8) if buffer is not None else np.empty(0, np.uint8)
        self.valid = column.is_valid().to_numpy(zero_copy_only=False).copy() if count else np.empty(0, np.bool_)
        self._pieces: list[bytes] = []
        self._size = 0
        self._spans: list[NDArray[np.int64]] = []

    def put(self, splice: Splice) -> None:
        """Put pieces into the place of spans, which must not overlap any others."""
        sizes = np.fromiter(map(len, splice.pieces), np.int64, len(splice.pieces))
        begins = self._size + np.cumsum(sizes) - sizes
        spans = [splice.rows, splice.starts, splice.stops, begins[splice.chosen], sizes[splice.chosen]]
        self._spans.append(np.stack(spans).astype(np.int64))
        self._pieces += splice.pieces
        self._size += int(sizes.sum())

    def replace(self, rows: NDArray[np.int64], values: Sequence[bytes | None]) -> None:
        """Put other values into the place of whole ones; None is null."""
        self.valid[rows] = np.fromiter((value is not None for value in values), np.bool_, len(values))
        pieces = [value or b"" for value in values]
        self.put(Splice(rows, self.places[:-1][rows], self.places[1:][rows], pieces, np.arange(len(pieces))))

    def growth(self) -> NDArray[np.int64]:
        """By how many bytes each value grows."""
        growth = np.zeros(len(self.column), np.int64)
        for rows, starts, stops, _, sizes in self._spans:
            np.add.at(growth, rows, sizes - (stops - starts))
        return growth

    def result(self) -> pa.Array:
        """The column with the other bytes."""
        from rawlog.kernels.gather import splice_spans

        if not self._spans:
            return self.column
        spans = np.concatenate(self._spans, axis=1)
        _, starts, stops, begins, sizes = np.ascontiguousarray(spans[:, np.lexsort((spans[1], spans[0]))])
        edges = np.concatenate(([0], np.cumsum(np.diff(self.places) + self.growth())))
        total = int(edges[-1])
        if total > 0x7FFF_FFFF:
            raise ValueError("a batch of binary values past 2 GiB: the reader must cut it")
        values, pieces = pa.allocate_buffer(total + 64), np.frombuffer(b"".join(self._pieces), np.uint8)
        begin, end, out = int(self.places[0]), int(self.places[-1]), np.frombuffer(values, np.uint8)
        _, written, status = splice_spans(self.data, begin, end, starts, stops, pieces, begins, sizes, out)
        assert (written, status) == (total, OK)
        mask = None if self.valid.all() else pa.py_buffer(np.packbits(self.valid, bitorder="little"))
        buffers = [mask, pa.py_buffer(edges.astype(np.int32)), values.slice(0, total)]
        return pa.Array.from_buffers(self.column.type, len(self.column), buffers)


def empty_headers(count: int) -> pa.Array:
    """A headers column in which no row has any."""
    from rawlog.model.table import HEADERS

    arrow = arrow_type(HEADERS)
    offsets = pa.array(np.zeros(count + 1, np.int32))
    return pa.ListArray.from_arrays(offsets, pa.array([], arrow.value_type), type=arrow)


def batch(table: Table, columns: Mapping[str, pa.Array], count: int) -> pa.RecordBatch:
    """A batch of a table's schema from columns by name; a column that is a dictionary stays one."""
    arrays = [columns[name] for name in table.names]
    if not arrays:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))
    schema = table.schema
    for number, array in enumerate(arrays):
        if pa.types.is_dictionary(array.type):
            schema = schema.set(number, schema.field(number).with_type(array.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@dataclass(frozen=True, slots=True)
class Marks:
    """What the columns of a batch cannot hold although the file has it: header keys and topics whose bytes are not UTF-8, which read as
    these texts, and times beyond what microseconds can hold, which are null (`far`).
    """

    keys: frozenset[str] = frozenset()
    topics: frozenset[str] = frozenset()
    far: bool = False

    @classmethod
    def of(cls, schema: pa.Schema) -> Marks:
        """The marks of rows of this schema."""
        text = (schema.metadata or {}).get(MARKS)
        if text is None:
            return cls()
        value = json.loads(text)
        return cls(frozenset(value["keys"]), frozenset(value["topics"]), value["far"])

    def __bool__(self) -> bool:
        return bool(self.keys or self.topics or self.far)

    def __or__(self, other: Marks) -> Marks:
        return Marks(self.keys | other.keys, self.topics | other.topics, self.far or other.far)

    def on(self, schema: pa.Schema) -> pa.Schema:
        """The schema with these marks, if there are any."""
        if not self:
            return schema
        value = {"keys": sorted(self.keys), "topics": sorted(self.topics), "far": self.far}
        return schema.with_metadata({**(schema.metadata or {}), MARKS: to_json(value).encode()})


def marked(rows: pa.RecordBatch, marks: Marks) -> pa.RecordBatch:
    """The batch with these marks."""
    return rows.replace_schema_metadata(marks.on(rows.schema).metadata) if marks else rows


def keeping_marks(schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> pa.Schema:
    """The schema of a table of these batches, marked if one of them is."""
    marks = Marks()
    for batch in batches:
        marks |= Marks.of(batch.schema)
    return marks.on(schema)


MARKS = b"rawlog.marks"
