"""Partitions of a lake's tables: how rows are divided into data files so that readers can skip most of them.

A cut is a column and a unit of it. Iceberg requires that a data file holds one value of every cut; `divide` does that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rawlog.core.errors import AccessError, OptionError, unknown
from rawlog.core.status import OK
from rawlog.core.tables import Table
from rawlog.kernels import byte_view
from rawlog.kernels.hashes import murmur3_spans

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("topic", "partition")
#: Units of time, as numpy calls them.
UNITS = {"hour": "h", "day": "D", "month": "M", "year": "Y"}
NAMES = (*COLUMNS, *UNITS)
#: The types of columns whose hash Iceberg defines, of those that rawlog's tables have.
HASHED = frozenset({"string", "binary", "tinyint", "smallint", "int", "bigint", "timestamp", "date"})
#: More buckets than a lake has a use for: each is at least one data file per split.
MOST_BUCKETS = 4096
_TERM = re.compile(r"\s*(\w+)\s*\(\s*([^,()]*?)\s*(?:,\s*([^,()]*?)\s*)?\)\s*")
_BUCKET = re.compile(r"bucket\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class Cut:
    """A column by whose values, by whose hour, day, month or year, or by whose hash (`bucket[16]`) a table is partitioned."""

    column: str
    unit: str = "identity"

    @property
    def name(self) -> str:
        """Its name in Iceberg."""
        return self.column if self.unit == "identity" else f"{self.column}_{self.unit.partition('[')[0]}"

    @property
    def transform(self) -> Any:
        """PyIceberg's transform."""
        from pyiceberg.transforms import parse_transform

        return parse_transform(self.unit)

    def __str__(self) -> str:
        count = _BUCKET.fullmatch(self.unit)
        return self.name if count is None else f"bucket({count[1]}, {self.column})"


def parse_terms(given: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """The terms of `--partition-by`, which commas separate unless they are within parentheses."""
    if given is None:
        return None
    texts = [given] if isinstance(given, str) else given
    return tuple(one.strip() for text in texts for one in re.split(r",(?![^()]*\))", text) if one.strip())


def check_names(names: Sequence[str], tables: Sequence[Table]) -> tuple[str, ...]:
    """The terms of `--partition-by`; OptionError for one that is unknown, or for a column that none of the tables has."""
    for name in names:
        if "(" in name:
            _check_bucket(name, tables)
        elif name not in NAMES:
            raise unknown("partitioning", name, (*NAMES, "bucket(N, COLUMN)"))
    return tuple(dict.fromkeys(names))


def _check_bucket(name: str, tables: Sequence[Table]) -> None:
    parsed = _TERM.fullmatch(name)
    if parsed is None or parsed[1] != "bucket" or parsed[3] is None:
        raise OptionError(
            f"partitioning {name!r}: rawlog writes bucket(N, COLUMN), such as bucket(16, key), and no other transform with arguments"
        )
    if not parsed[2].isdecimal() or not 1 <= int(parsed[2]) <= MOST_BUCKETS:
        raise OptionError(f"partitioning {name!r}: the number of buckets must be from 1 to {MOST_BUCKETS:,}")
    types = {table.column(parsed[3]).type for table in tables if parsed[3] in table.names}
    if not types:
        raise unknown("column", parsed[3], {one for table in tables for one in table.names})
    if not types & HASHED:
        raise OptionError(f"partitioning {name!r}: Iceberg defines no bucket of {min(types)}")


def cuts_of(table: Table, names: Sequence[str]) -> tuple[Cut, ...]:
    """The cuts among the terms that a table's rows allow: those of its columns, and of its time if it has one.

    A column whose bytes a lake stores in `records` is not one that other tables can be partitioned by.
    """
    cuts: list[Cut] = []
    for name in names:
        if name in UNITS:
            cuts += [Cut(table.times[0], name)] if table.times is not None else []
        elif (parsed := _TERM.fullmatch(name)) is not None:
            column = parsed[3]
            if column in table.names and column not in table.payload and table.column(column).type in HASHED:
                cuts.append(Cut(column, f"bucket[{int(parsed[2])}]"))
        elif name in table.names:
            cuts.append(Cut(name))
    return tuple(cuts)


def parse_cuts(table: Any) -> tuple[Cut, ...]:
    """The cuts of an Iceberg table. AccessError if it has some that rawlog cannot write."""
    cuts = []
    for field in table.spec().fields:
        unit = str(field.transform)
        if unit not in ("identity", *UNITS) and not _BUCKET.fullmatch(unit):
            raise AccessError(f"table {'.'.join(table.name())} is partitioned by {unit}, which rawlog cannot write")
        cuts.append(Cut(table.schema().find_column_name(field.source_id), unit))
    return tuple(cuts)


def divide(batch: pa.RecordBatch, cuts: Sequence[Cut]) -> Iterator[tuple[tuple[object, ...], pa.RecordBatch]]:
    """The rows of each partition in a batch, with the partition's values."""
    codes = np.zeros(batch.num_rows, np.int64)
    values: list[list[object]] = []
    for cut in cuts:
        numbers, found = _coded(batch.column(cut.column), cut.unit)
        codes = codes * len(found) + numbers
        values.append(found)
    present = np.unique(codes)
    for code in present.tolist():
        rows = batch if present.size == 1 else batch.filter(_mask(codes == code))
        key: list[object] = []
        for found in reversed(values):
            code, at = divmod(code, len(found))
            key.append(found[at])
        yield tuple(reversed(key)), rows


def _coded(column: pa.Array, unit: str) -> tuple[np.ndarray[Any, np.dtype[np.int64]], list[object]]:
    """A column as numbers, and the value of each number."""
    import pyarrow as pa

    if (count := _BUCKET.fullmatch(unit)) is not None:
        column = _buckets(column, int(count[1]))
    elif unit != "identity":
        times = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False).view("datetime64[us]")
        whole = pa.array(times.astype(f"datetime64[{UNITS[unit]}]").astype(np.int64))
        column = pa.compute.if_else(column.is_valid(), whole, None)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    coded = column.dictionary_encode("encode")
    return coded.indices.to_numpy(zero_copy_only=False).astype(np.int64), coded.dictionary.to_pylist()


def _buckets(column: pa.Array, count: int) -> pa.Array:
    """The bucket of each value, as Iceberg defines it: of the bytes, or of a number as eight bytes."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        return _buckets(column.dictionary, count).take(column.indices)
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        column = column.cast(pa.binary())
        _, offsets, content = column.buffers()
        places = np.zeros(len(column) + 1, np.int64)
        if offsets is not None and len(column):
            places = np.frombuffer(offsets, np.int32)[column.offset :][: len(column) + 1].astype(np.int64)
        data = byte_view(b"" if content is None else content)
        starts, stops = np.ascontiguousarray(places[:-1]), np.ascontiguousarray(places[1:])
    else:
        whole = column.cast(pa.int32()) if pa.types.is_date(column.type) else column
        numbers = whole.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        data = byte_view(np.ascontiguousarray(numbers, "<i8").view(np.uint8))
        starts = np.arange(len(column), dtype=np.int64) * 8
        stops = starts + 8
    out = np.empty(len(column), np.int64)
    _, _, status = murmur3_spans(data, starts, stops, out)
    assert status == OK, "the spans are those of an Arrow array"
    nulls = column.is_null().to_numpy(zero_copy_only=False)
    return pa.array((out & 0x7FFF_FFFF) % count, pa.int64(), mask=nulls)


def _mask(chosen: np.ndarray[Any, np.dtype[np.bool_]]) -> pa.Array:
    import pyarrow as pa

    return pa.array(chosen)
