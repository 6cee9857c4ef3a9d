"""Sheet: a Parquet file of one table, written row group by row group with bounded memory; Sheets: those of a split."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rawlog.io.output import make_directory, unwritable
from rawlog.io.storage import file_system, is_remote
from rawlog.lakes.names import UNITS, Cut, divide
from rawlog.model.errors import OptionError, unknown
from rawlog.model.table import JSON, Table
from rawlog.model.text import FIRST_DAY, LAST_DAY

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


# ----------------------------------------------------------------------------------------------------------------------
# Sorting: rows of a table in the order of some columns, ascending, nulls first, as Iceberg and Arrow both define it.
# What fits into memory is sorted there; `merge_sorted` puts sorted streams of rows together with little memory. Sorting is stable.


#: The types of columns that rows can be sorted by.
SORTABLE = frozenset({"string", "binary", "boolean", "tinyint", "smallint", "int", "bigint", "timestamp", "date"})
#: Where a row is from, in tables of which no other order is known.
PLACE = ("path", "position")
#: The word for the order that a table has if nobody asks for another.
DEFAULT = "default"

#: A row's values of the columns that it is sorted by, in a form that Python compares: a null comes first.
Key = tuple[tuple[bool, Any], ...]


def natural_order(table: Table) -> tuple[str, ...]:
    """The order of a table if nobody asks for another: topic, partition and offset, or the place in the files.

    A table with a position of its own (a commit log) keeps the order of its log.
    """
    if table.offsets is not None and {"topic", "partition"} <= set(table.names):
        return ("topic", "partition", table.offsets[0])
    return tuple(name for name in PLACE if name in table.names)


def order_of(table: Table, columns: Sequence[str] | None) -> tuple[str, ...]:
    """The columns that a table is sorted by: those asked for that it has, or else its natural order.

    A column whose bytes a lake stores in `records` is not one that other tables can be sorted by.
    """
    if columns is None or tuple(columns) == (DEFAULT,):
        return natural_order(table)
    present = [name for name in columns if name in table.names and name not in table.payload]
    return tuple(name for name in present if table.column(name).type in SORTABLE) or natural_order(table)


def check_order(names: Sequence[str], tables: Sequence[Table]) -> tuple[str, ...]:
    """The columns of `--sort-by`; OptionError for one that no table has, or that has no order."""
    if tuple(names) == (DEFAULT,):
        return (DEFAULT,)
    if not names:
        raise OptionError("--sort-by: name at least one column")
    for name in names:
        types = {table.column(name).type for table in tables if name in table.names}
        if not types:
            raise unknown("column", name, {DEFAULT, *(column for table in tables for column in table.names)})
        if not types & SORTABLE:
            raise OptionError(f"column {name!r}: rows cannot be sorted by {min(types)}")
    return tuple(dict.fromkeys(names))


# In memory ------------------------------------------------------------------------------------------------------------


def in_order(rows: pa.Table, order: Sequence[str]) -> pa.Table:
    """The same rows, sorted; the very same table if they are sorted already."""
    import pyarrow as pa
    import pyarrow.compute as pc

    keys = _keys(rows, order)
    if _is_sorted(keys):
        return rows
    # Where Arrow puts nulls is asked for in other ways by its versions: that they come first is a column of its own.
    parts = [part for key in keys for part in ((key.is_valid(), key) if key.null_count else (key,))]
    names = [f"{number}" for number in range(len(parts))]
    by = [(name, "ascending") for name in names]
    return rows.take(pc.sort_indices(pa.table(dict(zip(names, parts, strict=True))), by))


def _keys(rows: pa.Table, order: Sequence[str]) -> list[pa.Array]:
    """The columns that vary, in one piece each; times as numbers."""
    import pyarrow as pa

    keys = []
    for name in order:
        column = rows.column(name)
        column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if pa.types.is_dictionary(column.type):
            if len(column.dictionary) == 1 and not column.null_count:
                continue  # one topic, nearly always
            column = column.dictionary_decode()
        keys.append(column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column)
    return keys


def _is_sorted(keys: Sequence[pa.Array]) -> bool:
    import pyarrow.compute as pc

    #: Neighbours that are equal in all columns so far; None: all of them.
    equal: Any = None
    for column in keys:
        if len(column) < 2:
            return True
        rows, following = column.slice(0, len(column) - 1), column.slice(1)
        falls, same = pc.less(following, rows), pc.equal(rows, following)
        if column.null_count:
            falls = pc.or_(pc.fill_null(falls, False), pc.and_(rows.is_valid(), following.is_null()))
            same = pc.or_(pc.fill_null(same, False), pc.and_(rows.is_null(), following.is_null()))
        if pc.any(falls if equal is None else pc.and_(falls, equal)).as_py():
            return False
        equal = same if equal is None else pc.and_(equal, same)
        if not pc.any(equal).as_py():
            return True
    return True


def key_at(rows: Any, order: Sequence[str], at: int) -> Key:
    """The key of one row of a table or batch."""
    import pyarrow as pa

    key = []
    for name in order:
        value = rows.column(name)[at]
        if pa.types.is_timestamp(value.type):
            value = value.cast(pa.int64())
        plain = value.as_py()
        key.append((plain is not None, plain if plain is not None else 0))
    return tuple(key)


# Streams --------------------------------------------------------------------------------------------------------------


def merge_sorted(streams: Sequence[Iterator[pa.RecordBatch]], order: Sequence[str]) -> Iterator[pa.Table]:
    """The rows of sorted streams in one sorted stream. One batch of each stream is in memory at a time."""
    import pyarrow as pa

    held: list[tuple[Iterator[pa.RecordBatch], pa.Table]] = []
    for stream in streams:
        if (rows := _next(stream)) is not None:
            held.append((stream, rows))
    while len(held) > 1:
        # No row that is not in memory yet comes before the last one of the stream that ends first.
        limit = min(key_at(rows, order, rows.num_rows - 1) for _, rows in held)
        taken: list[pa.Table] = []
        left: list[tuple[Iterator[pa.RecordBatch], pa.Table]] = []
        for stream, rows in held:
            stop = _stop(rows, order, limit)
            taken.append(rows.slice(0, stop))
            rest: pa.Table | None = rows.slice(stop) if stop < rows.num_rows else _next(stream)
            if rest is not None:
                left.append((stream, rest))
        held = left
        yield in_order(pa.concat_tables(taken), order)
    for stream, rows in held:
        yield rows
        while (more := _next(stream)) is not None:
            yield more


def _next(stream: Iterator[pa.RecordBatch]) -> pa.Table | None:
    import pyarrow as pa

    for batch in stream:
        if batch.num_rows:
            return pa.Table.from_batches([batch])
    return None


def _stop(rows: pa.Table, order: Sequence[str], limit: Key) -> int:
    """How many of some sorted rows are not after a key."""
    low, high = 0, rows.num_rows
    while low < high:
        middle = (low + high) // 2
        if key_at(rows, order, middle) <= limit:
            low = middle + 1
        else:
            high = middle
    return low


#: Bytes of Arrow data that become a row group.
ROW_GROUP = 64 << 20
#: Rows of a page, where its bytes do not end it before, and rows that Parquet's writer takes at a time: each costs more time than rows.
PAGE_ROWS, WRITE_ROWS = 1 << 20, 1 << 14
#: Bytes that writing takes for each element of a list, however little it holds.
ELEMENT_COST = 32
#: Marks the files of rows with times that Python's calendar does not have.
FAR = "far"
#: Of a split that writes many partitions: bytes in memory in all, and files that are open at once.
MOST_HELD, MOST_OPEN = 4 * ROW_GROUP, 200


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A data file that is complete: its table, path, number of rows, partition (name and value of each cut) and order of rows."""

    table: str
    path: str
    rows: int
    partition: tuple[tuple[str, Any], ...] = ()
    order: tuple[str, ...] = ()


class Sheet:
    """Takes batches of a table; the file exists once a row group is full, and is complete once `close` returns.

    With an `order`, the rows of each row group are sorted. Where they do not follow those of the row group before, the file ends and
    another one begins: every file is sorted, however many rows there are.
    """

    def __init__(
        self,
        path: str,
        table: Table,
        codec: str = "zstd",
        *,
        far: bool = False,
        partition: tuple[tuple[str, Any], ...] = (),
        order: Sequence[str] = (),
    ) -> None:
        """`far`: it holds times that Python's calendar does not have; PyIceberg could not read statistics of them."""
        self.path, self.table, self.codec, self.far = path, table, codec, far
        self.partition, self.order = partition, tuple(order)
        self.rows = 0
        self._held: list[pa.RecordBatch] = []
        self.size = 0
        self._writer: pq.ParquetWriter | None = None
        #: The files that ended before this one, the rows of this one so far, and the key of the last of them.
        self.earlier: list[WrittenFile] = []
        self._flushed = 0
        self._last: Key | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Keep a batch; AccessError if the file cannot be written."""
        if not batch.num_rows:
            return
        self._held.append(batch)
        self.size += batch.nbytes + _elements(batch) * ELEMENT_COST
        self.rows += batch.num_rows
        if self.size >= ROW_GROUP:
            self.flush()

    def close(self, *, empty: bool = False) -> WrittenFile | None:
        """Finish the file; None if it has no row, unless an `empty` file is wanted."""
        if not self.rows and not empty:
            return None
        self.flush()
        try:
            self._writer = self._writer or self._open()
            return self._end()
        except OSError as error:
            raise unwritable(self.path, error) from None

    def _end(self) -> WrittenFile:
        """Finish the file of this moment."""
        assert self._writer is not None
        self._writer.close()
        return WrittenFile(self.table.name, self.path, self._flushed, self.partition, self.order)

    def discard(self) -> None:
        """Remove the file, if it was begun, and those before it."""
        if self._writer is not None:
            with contextlib.suppress(Exception):
                self._writer.close()
        for path in [written.path for written in self.earlier] + ([self.path] if self._writer is not None else []):
            if not is_remote(path):
                with contextlib.suppress(OSError):
                    os.unlink(path)

    def flush(self) -> None:
        """Write what is held as a row group."""
        import pyarrow as pa

        if not self._held:
            return
        try:
            if self._writer is None:
                self._writer = self._open(_dictionaries(self._held))
            schema = self._writer.schema
            rows = pa.Table.from_batches([_fit(batch, schema) for batch in self._held], schema=schema)
            self._held, self.size = [], 0
            rows = rows.unify_dictionaries()
            if self.order:
                rows = in_order(rows, self.order)
                if self._last is not None and key_at(rows, self.order, 0) < self._last:
                    self._begin_another(schema)
                self._last = key_at(rows, self.order, rows.num_rows - 1)
            self._flushed += rows.num_rows
            self._writer.write_table(rows, row_group_size=rows.num_rows)
        except OSError as error:
            raise unwritable(self.path, error) from None

    def _begin_another(self, schema: pa.Schema) -> None:
        """End the file and begin the next one, with columns as they come."""
        import pyarrow as pa

        self.earlier.append(self._end())
        stem = self.earlier[0].path.removesuffix(".parquet")
        self.path, self._flushed = f"{stem}-next{len(self.earlier)}.parquet", 0
        self._writer = self._open([column.name for column in schema if pa.types.is_dictionary(column.type)])

    def _open(self, dictionaries: Sequence[str] = ()) -> pq.ParquetWriter:
        """`dictionaries` are columns that come as such: the writer takes them as they are, and the file does not show it."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = self.table.schema
        for name in dictionaries:
            at = schema.get_field_index(name)
            schema = schema.set(at, schema.field(at).with_type(pa.dictionary(pa.int32(), schema.field(at).type)))

        if not is_remote(self.path):
            make_directory(os.path.dirname(self.path))
        columns = self.table.columns
        # Names repeat; other values vary too much for a dictionary to pay off. Message bodies are plain: delta lengths are quicker for
        # random bytes; JSON is slower to write, slower to read and larger with them.
        repeated = [column.name for column in columns if column.type == "string" or column.name == "partition"]
        rising = {
            column.name: "DELTA_BINARY_PACKED"
            for column in columns
            if column.type in ("bigint", "timestamp") and column.name not in repeated
        }
        return pq.ParquetWriter(
            self.path,
            schema,
            store_schema=not dictionaries,
            max_rows_per_page=PAGE_ROWS,
            write_batch_size=WRITE_ROWS,
            compression=self.codec,
            use_dictionary=repeated or False,
            column_encoding=rising,
            # Statistics of message bodies would put whole messages into the footer.
            write_statistics=[
                column.name
                for column in columns
                if "<" not in column.type
                and column.type != JSON
                and (column.type != "binary" or column.name == "key")
                and not (self.far and column.type == "timestamp")
            ],
        )


def _dictionaries(batches: Sequence[pa.RecordBatch]) -> list[str]:
    """The columns that come as dictionaries in all of some batches."""
    import pyarrow as pa

    names = [{column.name for column in batch.schema if pa.types.is_dictionary(column.type)} for batch in batches]
    return sorted(set.intersection(*names))


def _fit(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The same rows with dictionaries where a schema has them, and only there."""
    if batch.schema.equals(schema):
        return batch
    pairs = list(zip(batch.columns, schema, strict=True))
    columns = [column if column.type == field.type else column.cast(field.type) for column, field in pairs]
    return type(batch).from_arrays(columns, schema=schema)


def dataset(files: Sequence[str], table: Table) -> Any:
    """The rows of Parquet files of one file system, with exactly a table's columns. AccessError if it cannot be reached."""
    from pyarrow import dataset as ds

    systems = [file_system(file) for file in files]
    return ds.dataset(
        [path for _, path in systems],
        schema=table.schema,
        format="parquet",
        filesystem=systems[0][0] if systems else None,
    )


def _elements(batch: pa.RecordBatch) -> int:
    """The number of values in lists."""
    import pyarrow as pa

    return sum(len(array.flatten()) for array in batch.columns if pa.types.is_list(array.type))


def _by_calendar(rows: pa.RecordBatch, table: Table) -> list[tuple[bool, pa.RecordBatch]]:
    """Rows with a time that Python's calendar does not have, and the others, separately: nearly always there are only others."""
    import pyarrow as pa
    import pyarrow.compute as pc

    far = None
    for column in table.columns:
        if column.type == "timestamp":
            bounds = pc.min_max(rows.column(column.name))
            least, greatest = bounds["min"].value, bounds["max"].value
            if least is None or (least >= FIRST_DAY and greatest <= LAST_DAY):
                continue
            times = rows.column(column.name).cast(pa.int64())
            outside = pc.fill_null(pc.or_(pc.less(times, FIRST_DAY), pc.greater(times, LAST_DAY)), False)
            far = outside if far is None else pc.or_(far, outside)
    if far is None:
        return [(False, rows)]
    return [(True, rows.filter(far)), (False, rows.filter(pc.invert(far)))]


class Sheets:
    """The data files that one attempt at a split writes: one for each table, or for each partition or unit of it.

    `path_of` gives the directory of a table's data files; `name` is the attempt's, and part of every file name. `cuts` and `orders` say
    how the rows of tables are partitioned and sorted.
    """

    def __init__(
        self,
        path_of: Callable[[Table], str],
        name: str,
        cuts: Mapping[str, Sequence[Cut]] | None = None,
        orders: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.path_of, self.name, self.cuts, self.orders = path_of, name, cuts or {}, orders or {}
        self.open: dict[tuple[object, ...], Sheet] = {}
        self.written: list[WrittenFile] = []
        self.count = 0

    def add(self, table: Table, batch: pa.RecordBatch, unit: str = "") -> None:
        """Add a batch to the files of its table. AccessError if one cannot be written."""
        if not batch.num_rows:
            return
        cuts = self.cuts.get(table.name, ())
        for key, rows in divide(batch, cuts) if cuts else (((), batch),):
            for far, sheet_rows in _by_calendar(rows, table):
                self._sheet(table, unit, (*key, FAR) if far else key).add(sheet_rows)
        if cuts:
            self._slim()

    def close(self) -> tuple[WrittenFile, ...]:
        """Finish all files."""
        for key in list(self.open):
            self._close(key)
        return tuple(self.written)

    def finish(self, table: Table, unit: str) -> None:
        """Finish the files of a unit."""
        for place in ((table.name, unit), (table.name, unit, FAR)):
            if place in self.open:
                self._close(place)

    def forget(self, table: Table, unit: str) -> None:
        """Remove the files of a unit."""
        for place in ((table.name, unit), (table.name, unit, FAR)):
            if place in self.open:
                self.open.pop(place).discard()

    def discard(self) -> None:
        """Remove all files."""
        for sheet in self.open.values():
            sheet.discard()

    def _sheet(self, table: Table, unit: str, key: tuple[object, ...]) -> Sheet:
        place = (table.name, unit, *key)
        if place not in self.open:
            if len(self.open) >= MOST_OPEN:
                self._close(next(iter(self.open)))
            far = key[-1:] == (FAR,)
            number = f"-{self.count}" if self.cuts.get(table.name) else "-far" if far else ""
            self.count += 1
            name = f"{unit}-{self.name}" if unit else self.name
            # PyIceberg cannot name a day that Python's calendar does not have.
            pairs = zip(self.cuts.get(table.name, ()), key, strict=False)
            partition = tuple((cut.name, None if far and cut.unit in UNITS else value) for cut, value in pairs)
            self.open[place] = Sheet(
                f"{self.path_of(table)}/{name}{number}.parquet",
                table,
                far=far,
                partition=partition,
                order=self.orders.get(table.name, ()),
            )
        return self.open[place]

    def _close(self, place: tuple[object, ...]) -> None:
        sheet = self.open.pop(place)
        written = sheet.close()
        self.written += sheet.earlier if written is None else [*sheet.earlier, written]

    def _slim(self) -> None:
        """Write out the largest sheets while all together hold more than a few row groups."""
        while sum(sheet.size for sheet in self.open.values()) > MOST_HELD:
            max(self.open.values(), key=lambda sheet: sheet.size).flush()
