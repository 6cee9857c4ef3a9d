"""Sorting: rows of a table in the order of some columns, ascending, nulls first, as Iceberg and Arrow both define it.

What fits into memory is sorted there; `merged` puts sorted streams of rows together with little memory. Sorting is stable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rawlog.core.errors import OptionError, unknown
from rawlog.core.tables import Table

if TYPE_CHECKING:
    import pyarrow as pa

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


def order_of(table: Table, asked: Sequence[str] | None) -> tuple[str, ...]:
    """The columns that a table is sorted by: those asked for that it has, or else its natural order.

    A column whose bytes a lake stores in `records` is not one that other tables can be sorted by.
    """
    if asked is None or tuple(asked) == (DEFAULT,):
        return natural_order(table)
    has = [name for name in asked if name in table.names and name not in table.payload]
    return tuple(name for name in has if table.column(name).type in SORTABLE) or natural_order(table)


def check_order(names: Sequence[str], tables: Sequence[Table]) -> tuple[str, ...]:
    """The columns of `--sort-by`; OptionError for one that no table has, or that has no order."""
    if tuple(names) == (DEFAULT,):
        return (DEFAULT,)
    if not names:
        raise OptionError("--sort-by: name at least one column")
    for name in names:
        types = {table.column(name).type for table in tables if name in table.names}
        if not types:
            raise unknown("column", name, {DEFAULT, *(one for table in tables for one in table.names)})
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

    made = []
    for name in order:
        column = rows.column(name)
        column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if pa.types.is_dictionary(column.type):
            if len(column.dictionary) == 1 and not column.null_count:
                continue  # one topic, nearly always
            column = column.dictionary_decode()
        made.append(column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column)
    return made


def _is_sorted(keys: Sequence[pa.Array]) -> bool:
    import pyarrow.compute as pc

    #: Neighbours that are equal in all columns so far; None: all of them.
    equal: Any = None
    for column in keys:
        if len(column) < 2:
            return True
        one, two = column.slice(0, len(column) - 1), column.slice(1)
        falls, same = pc.less(two, one), pc.equal(one, two)
        if column.null_count:
            falls = pc.or_(pc.fill_null(falls, False), pc.and_(one.is_valid(), two.is_null()))
            same = pc.or_(pc.fill_null(same, False), pc.and_(one.is_null(), two.is_null()))
        if pc.any(falls if equal is None else pc.and_(falls, equal)).as_py():
            return False
        equal = same if equal is None else pc.and_(equal, same)
        if not pc.any(equal).as_py():
            return True
    return True


def key_at(rows: Any, order: Sequence[str], at: int) -> Key:
    """The key of one row of a table or batch."""
    import pyarrow as pa

    found = []
    for name in order:
        value = rows.column(name)[at]
        if pa.types.is_timestamp(value.type):
            value = value.cast(pa.int64())
        plain = value.as_py()
        found.append((plain is not None, plain if plain is not None else 0))
    return tuple(found)


# Streams --------------------------------------------------------------------------------------------------------------


def merged(streams: Sequence[Iterator[pa.RecordBatch]], order: Sequence[str]) -> Iterator[pa.Table]:
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
