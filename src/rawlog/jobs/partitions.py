"""Partitions of a lake's tables: how rows are divided into data files so that readers can skip most of them.

A cut is a column and a unit of it. Iceberg requires that a data file holds one value of every cut; `divide` does that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rawlog.core.errors import AccessError, unknown
from rawlog.core.tables import Table

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("topic", "partition")
#: Units of time, as numpy calls them.
UNITS = {"hour": "h", "day": "D", "month": "M", "year": "Y"}
NAMES = (*COLUMNS, *UNITS)


@dataclass(frozen=True, slots=True)
class Cut:
    """A column by whose values, or by whose hour, day, month or year, a table is partitioned."""

    column: str
    unit: str = "identity"

    @property
    def name(self) -> str:
        """Its name in Iceberg."""
        return self.column if self.unit == "identity" else f"{self.column}_{self.unit}"

    @property
    def transform(self) -> Any:
        """PyIceberg's transform."""
        from pyiceberg import transforms

        return getattr(transforms, f"{self.unit.capitalize()}Transform")()

    def __str__(self) -> str:
        return self.name


def check_names(names: Sequence[str]) -> tuple[str, ...]:
    """The names of `--partition-by`; OptionError for an unknown one."""
    for name in names:
        if name not in NAMES:
            raise unknown("partitioning", name, NAMES)
    return tuple(dict.fromkeys(names))


def cuts_of(table: Table, names: Sequence[str]) -> tuple[Cut, ...]:
    """The cuts among the names that a table's rows allow: those of its columns, and of its time if it has one."""
    cuts: list[Cut] = []
    for name in names:
        if name in UNITS:
            cuts += [Cut(table.times[0], name)] if table.times is not None else []
        elif name in table.names:
            cuts.append(Cut(name))
    return tuple(cuts)


def parse_cuts(table: Any) -> tuple[Cut, ...]:
    """The cuts of an Iceberg table. AccessError if it has some that rawlog cannot write."""
    cuts = []
    for field in table.spec().fields:
        unit = str(field.transform)
        if unit not in ("identity", *UNITS):
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

    if unit != "identity":
        times = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False).view("datetime64[us]")
        whole = pa.array(times.astype(f"datetime64[{UNITS[unit]}]").astype(np.int64))
        column = pa.compute.if_else(column.is_valid(), whole, None)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    coded = column.dictionary_encode("encode")
    return coded.indices.to_numpy(zero_copy_only=False).astype(np.int64), coded.dictionary.to_pylist()


def _mask(chosen: np.ndarray[Any, np.dtype[np.bool_]]) -> pa.Array:
    import pyarrow as pa

    return pa.array(chosen)
