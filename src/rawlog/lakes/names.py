"""Names in a lake: its tables, its catalog, its URL, and the data files of a unit."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rawlog import registry
from rawlog.io.storage import is_remote, local_path
from rawlog.kernels import byte_view
from rawlog.kernels.hashes import murmur3_spans
from rawlog.model.errors import AccessError, OptionError, unknown
from rawlog.model.status import OK
from rawlog.model.table import COMMON, Column, Table

if TYPE_CHECKING:
    import pyarrow as pa


CATALOG = "catalog.db"

JOBS = Table(
    "jobs",
    Column("run", "string"),
    Column("started", "timestamp"),
    Column("finished", "timestamp"),
    Column("version", "string", "of rawlog"),
    Column("paths", "array<string>"),
    Column("selection", "string", "as JSON; empty: everything"),
    Column("files", "bigint", "files that were new or had grown"),
    Column("size", "bigint", "bytes read"),
    Column("tables", "map<string,bigint>", "rows added, by table"),
    Column("errors", "bigint"),
    Column("warnings", "bigint"),
    Column("verdict", "string", "clean, suspect, damaged"),
    about="one row per run that added something",
)


def lake_name(table: Table | str) -> str:
    """The name of a table in a lake: those that every system has are in the namespace `rawlog`."""
    name = table if isinstance(table, str) else table.name
    return name if "." in name else f"rawlog.{name}"


def data_path(lake: str, table: Table | str, run: str) -> str:
    """The directory of the data files that a run adds to a table."""
    return f"{lake}/{lake_name(table).replace('.', '/')}/data/{run}"


def known_tables() -> dict[str, Table]:
    """Every table that a lake may hold, by its name there."""
    tables: Iterable[Table] = (*COMMON, JOBS, *registry.tables().values())
    return {lake_name(table): table for table in tables}


def check_url(path: str) -> None:
    """OptionError for a URL with credentials or settings in it: it would be readable in the lake's metadata."""
    if is_remote(path):
        scheme, rest = path.split("://", 1)
        if "@" in rest.split("/", 1)[0] or "?" in rest:
            bare = f"{scheme}://{rest.split('@', 1)[-1].partition('?')[0]}"
            raise OptionError(
                f"{bare}: credentials and settings in a URL would be kept in the lake; give them by the environment (AWS_…)"
            )


def is_lake(path: str) -> bool:
    """Whether a path is a lake with its own catalog, or the catalog of one that is elsewhere."""
    if is_remote(path):
        return False
    local = local_path(path)
    return os.path.isfile(os.path.join(local, CATALOG)) or is_catalog_file(local)


def is_catalog_file(name: str) -> bool:
    """Whether the name of a catalog is that of a SQLite file."""
    return not is_remote(name) and name.endswith(".db") and os.path.isfile(local_path(name))


def unit_mark(unit: str) -> str:
    """The prefix of the names of a unit's data files."""
    return hashlib.blake2b(unit.encode(errors="surrogatepass"), digest_size=8).hexdigest()


def same_files(paths: Iterable[str]) -> set[str]:
    """What identifies files, however their paths are written: `file:/a` (as Java writes it), `file:///a`, `/a`, or through a link."""
    folders: dict[str, str] = {}
    identities = set()
    for path in paths:
        if is_remote(path):
            scheme, rest = path.split("://", 1)
            identities.add(f"{'s3' if scheme in ('s3a', 's3n') else scheme}://{rest}")
            continue
        folder, name = os.path.split(local_path(path))
        if folder not in folders:
            folders[folder] = os.path.realpath(folder)
        identities.add(f"{folders[folder]}/{name}")
    return identities


def url(path: str) -> str:
    """A path as it is written in Iceberg's metadata."""
    # Not percent-encoded: PyIceberg does not decode.
    return path if "://" in path else f"file://{path}"


# ----------------------------------------------------------------------------------------------------------------------
# Order: the sort order in the metadata of an Iceberg table, and which data files have it.
# Readers learn it from the table's sort order and from the `sort_order_id` of each data file: a file without one is not sorted.


def parse_order(table: Any) -> tuple[str, ...]:
    """The columns that an Iceberg table is sorted by. Nothing if it is not, or in a way that rawlog does not write."""
    return _columns(table, table.sort_order())


def order_id(table: Any, order: Sequence[str]) -> int | None:
    """The number of an order in a table's metadata; None if the table has no such order."""
    if not order:
        return None
    return next(
        (number for number, sort_order in table.sort_orders().items() if _columns(table, sort_order) == tuple(order)),
        None,
    )


def set_order(transaction: Any, order: Sequence[str]) -> None:
    """Sort a table from now on. Data files that are there stay as they are."""
    from pyiceberg.table.sorting import NullOrder
    from pyiceberg.transforms import IdentityTransform

    with transaction.update_sort_order() as update:
        for name in order:
            update.asc(name, IdentityTransform(), NullOrder.NULLS_FIRST)


def _columns(table: Any, order: Any) -> tuple[str, ...]:
    """The columns of an order that is ascending, nulls first, without transforms; nothing if it is another one."""
    from pyiceberg.table.sorting import NullOrder, SortDirection
    from pyiceberg.transforms import IdentityTransform

    columns = []
    for field in order.fields:
        name = table.schema().find_column_name(field.source_id)
        is_plain = isinstance(field.transform, IdentityTransform) and field.direction == SortDirection.ASC
        if name is None or not is_plain or field.null_order != NullOrder.NULLS_FIRST:
            return ()
        columns.append(name)
    return tuple(columns)


# ----------------------------------------------------------------------------------------------------------------------
# Partitions of a lake's tables: how rows are divided into data files so that readers can skip most of them.
# A cut is a column and a unit of it. Iceberg requires that a data file holds one value of every cut; `divide` does that.


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


def parse_terms(terms: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """The terms of `--partition-by`, which commas separate unless they are within parentheses."""
    if terms is None:
        return None
    texts = [terms] if isinstance(terms, str) else terms
    return tuple(term.strip() for text in texts for term in re.split(r",(?![^()]*\))", text) if term.strip())


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
        raise unknown("column", parsed[3], {column for table in tables for column in table.names})
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
        numbers, column_values = _encode(batch.column(cut.column), cut.unit)
        codes = codes * len(column_values) + numbers
        values.append(column_values)
    present = np.unique(codes)
    for code in present.tolist():
        rows = batch if present.size == 1 else batch.filter(_mask(codes == code))
        key: list[object] = []
        for column_values in reversed(values):
            code, at = divmod(code, len(column_values))
            key.append(column_values[at])
        yield tuple(reversed(key)), rows


def _encode(column: pa.Array, unit: str) -> tuple[np.ndarray[Any, np.dtype[np.int64]], list[object]]:
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


def _mask(is_chosen: np.ndarray[Any, np.dtype[np.bool_]]) -> pa.Array:
    import pyarrow as pa

    return pa.array(is_chosen)
