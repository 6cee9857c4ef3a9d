"""Payload: the bytes of a message are stored once in a lake, in `rawlog.records`; rows of a system's own table refer to them.

Two columns make the reference, in both tables: `lake_split` names the split of a run that wrote the row, `lake_row` counts its rows of
`records`. Where `lake_row` of a system's row is null, the row holds its payload itself. `Payloads` puts the two together again, with little
memory, in the order of the system's table.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from rawlog.io.storage import file_system
from rawlog.kernels.columns import constant
from rawlog.lakes.parquet import dataset
from rawlog.model.errors import AccessError, OptionError
from rawlog.model.table import RECORDS, Column, Table
from rawlog.values.transform import added_columns, fields_column, join

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

# ----------------------------------------------------------------------------------------------------------------------
# Lookup: rows of `rawlog.records` found by what other rows refer to them by, whatever the order of either table.
#
# A row group is looked at if its statistics allow it. Those that were read last are kept, so that tables in a similar order are read once.

SPLIT, ROW = "lake_split", "lake_row"
#: Files that are open at a time; rows whose references are kept; bits of the number of a row within its split.
FILES, KNOWN, BITS = 8, 1 << 22, 40
#: Rows of a large row group that are read at a time, at least.
LEAST = 16

Rows = NDArray[np.int64]
#: The least and the greatest value of columns of `records`.
Bounds = Mapping[str, tuple[Any, Any]]


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file of `rawlog.records`, with the least and greatest `lake_split` in it; None: not known."""

    url: str
    least: str | None
    greatest: str | None

    def may_hold(self, split: str) -> bool:
        """Whether rows of a split may be in it."""
        return self.least is None or self.greatest is None or self.least <= split <= self.greatest


@dataclass(frozen=True, slots=True)
class LookupResult:
    """Rows of `records`, and for each reference the number of its row; -1: not found, or no reference."""

    place: Rows
    rows: Sequence[pa.Table]


@dataclass(frozen=True, slots=True)
class _References:
    """What the rows of a row group are referred to by, sorted, and where those rows are; None: in the same order."""

    splits: Sequence[str]
    keys: Rows
    order: Rows | None


@dataclass(slots=True)
class Lookup:
    """Finds rows with some columns of `records`. Use as a context manager: it keeps files open."""

    columns: Sequence[str]
    #: About how many bytes of found rows it gives at a time; twice as many of row groups are kept.
    limit: int
    files: OrderedDict[str, pq.ParquetFile] = field(default_factory=OrderedDict)
    bounds: dict[tuple[str, int], dict[str, tuple[Any, Any]]] = field(default_factory=dict)
    references: OrderedDict[tuple[str, int], _References] = field(default_factory=OrderedDict)
    kept: OrderedDict[tuple[str, int], pa.Table] = field(default_factory=OrderedDict)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self.files.values():
            file.close()
        self.files.clear()
        self.kept.clear()
        self.references.clear()

    def find(self, files: Iterable[DataFile], splits: pa.Array, numbers: Rows, bounds: Bounds) -> LookupResult:
        """The rows with these splits (null: nothing is looked for) and numbers, as many as fit into memory; `bounds` are those of other
        columns of theirs. AccessError if a file cannot be read.
        """
        import pyarrow as pa

        place = np.full(len(numbers), -1, np.int64)
        coded = splits.cast(pa.string()).dictionary_encode()
        codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        names: list[str] = coded.dictionary.to_pylist()
        referring = np.flatnonzero(codes >= 0)
        wanted, inverse = np.unique(codes[referring] << BITS | numbers[referring], return_inverse=True)
        where = np.full(wanted.size, -1, np.int64)
        tables: list[pa.Table] = []
        count = size = 0
        for file, group in self._candidates(files, names, bounds) if wanted.size else ():
            if size >= self.limit:
                break
            ordinals, which = _match_rows(self._references(file, group), names, wanted)
            if not ordinals.size:
                continue
            rows = self._rows(file, group, ordinals)
            where[which[: rows.num_rows]] = count + np.arange(rows.num_rows)
            tables.append(rows)
            count += rows.num_rows
            size += rows.nbytes
            if count >= wanted.size:
                break
        place[referring] = where[inverse]
        return LookupResult(place, tables)

    def _candidates(
        self, files: Iterable[DataFile], names: Sequence[str], bounds: Bounds
    ) -> Iterator[tuple[DataFile, int]]:
        """The row groups that may have such rows."""
        for file in files:
            held = [name for name in names if file.may_hold(name)]
            if not held:
                continue
            wanted: Bounds = {**bounds, SPLIT: (min(held), max(held))}
            for group in range(self._open(file.url).num_row_groups):
                present = self._bounds(file.url, group)
                if all(
                    name not in present or (present[name][0] <= last and first <= present[name][1])
                    for name, (first, last) in wanted.items()
                ):
                    yield file, group

    def _open(self, url: str) -> pq.ParquetFile:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if url not in self.files:
            while len(self.files) >= FILES:
                self.files.popitem(last=False)[1].close()
            system, path = file_system(url)
            try:
                self.files[url] = pq.ParquetFile(system.open_input_file(path), read_dictionary=[SPLIT])
            except (OSError, pa.ArrowException) as error:
                raise AccessError(f"{url}: {str(error).splitlines()[0]}") from None
        self.files.move_to_end(url)
        return self.files[url]

    def _bounds(self, url: str, group: int) -> dict[str, tuple[Any, Any]]:
        """The statistics of a row group, of columns whose bounds may be asked for."""
        if (url, group) not in self.bounds:
            metadata = self._open(url).metadata.row_group(group)
            bounds: dict[str, tuple[Any, Any]] = {}
            for number in range(metadata.num_columns):
                column = metadata.column(number)
                if column.path_in_schema not in (SPLIT, *BOUNDED):
                    continue
                statistics = column.statistics
                if statistics is not None and statistics.has_min_max:
                    bounds[column.path_in_schema] = statistics.min, statistics.max
            self.bounds[url, group] = bounds
        return self.bounds[url, group]

    def _references(self, file: DataFile, group: int) -> _References:
        key = (file.url, group)
        if key not in self.references:
            table = self._read(file, group, [SPLIT, ROW]).unify_dictionaries()
            splits = table.column(SPLIT).combine_chunks()
            codes = splits.indices.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
            numbers = table.column(ROW).combine_chunks()
            keys = codes << BITS | numbers.fill_null(0).to_numpy(zero_copy_only=False)
            if numbers.null_count or splits.null_count:
                keys[(numbers.is_null().to_numpy(False) | splits.is_null().to_numpy(False))] = -1
            order = None if np.all(keys[1:] >= keys[:-1]) else np.argsort(keys, kind="stable")
            self.references[key] = _References(
                splits.dictionary.to_pylist(), keys if order is None else keys[order], order
            )
            while (
                len(self.references) > 1
                and sum(references.keys.size for references in self.references.values()) > KNOWN
            ):
                self.references.popitem(last=False)
        self.references.move_to_end(key)
        return self.references[key]

    def _rows(self, file: DataFile, group: int, ordinals: Rows) -> pa.Table:
        """Some rows of a row group, or the first of them if they take too much memory."""
        import pyarrow as pa

        key = (file.url, group)
        if key not in self.kept:
            if self._size(file.url, group) > 2 * self.limit:
                return self._stream_rows(file, group, ordinals)
            self.kept[key] = self._read(file, group, self.columns)
            while len(self.kept) > 1 and sum(table.nbytes for table in self.kept.values()) > 2 * self.limit:
                self.kept.popitem(last=False)
        self.kept.move_to_end(key)
        rows = self.kept[key]
        first, last = int(ordinals[0]), int(ordinals[-1])
        if last - first + 1 == ordinals.size:
            return rows.slice(first, ordinals.size)
        return rows.take(pa.array(ordinals))

    def _size(self, url: str, group: int) -> int:
        metadata = self._open(url).metadata.row_group(group)
        columns = [metadata.column(number) for number in range(metadata.num_columns)]
        wanted = [column for column in columns if column.path_in_schema.partition(".")[0] in self.columns]
        return sum(column.total_uncompressed_size for column in wanted)

    def _stream_rows(self, file: DataFile, group: int, ordinals: Rows) -> pa.Table:
        """Some rows of a row group that is too large to be kept."""
        import pyarrow as pa

        opened = self._open(file.url)
        each = self._size(file.url, group) // max(opened.metadata.row_group(group).num_rows, 1) + 1
        batches: list[pa.RecordBatch] = []
        start = size = 0
        try:
            for batch in opened.iter_batches(max(LEAST, self.limit // each), [group], list(self.columns)):
                inside = ordinals[(ordinals >= start) & (ordinals < start + batch.num_rows)] - start
                start += batch.num_rows
                if inside.size:
                    batches.append(batch.take(pa.array(inside)))
                    size += batches[-1].nbytes
                if size >= self.limit or start > int(ordinals[-1]):
                    break
        except (OSError, pa.ArrowException) as error:
            raise AccessError(f"{file.url}: {str(error).splitlines()[0]}") from None
        return pa.Table.from_batches(batches)

    def _read(self, file: DataFile, group: int, columns: Sequence[str]) -> pa.Table:
        import pyarrow as pa

        try:
            return self._open(file.url).read_row_group(group, list(columns), use_threads=False)
        except (OSError, pa.ArrowException) as error:
            raise AccessError(f"{file.url}: {str(error).splitlines()[0]}") from None


#: Columns of `records` whose bounds say which row groups can be left out.
BOUNDED = ("topic", "partition", "offset")


def bounds_of(batch: pa.RecordBatch, row_key: Mapping[str, str]) -> Bounds:
    """The bounds of the rows that a batch of a system's table refers to, as far as the columns of the row key that it has tell them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    bounds = {}
    for name, referred in row_key.items():
        if referred in BOUNDED and name in batch.schema.names and not batch.column(name).null_count:
            column = batch.column(name)
            column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
            extremes = pc.min_max(column)
            bounds[referred] = extremes["min"].as_py(), extremes["max"].as_py()
    return bounds


def _match_rows(references: _References, names: Sequence[str], wanted: Rows) -> tuple[Rows, Rows]:
    """Which rows of a row group are wanted, in its order, and which of the wanted ones each is."""
    if not references.keys.size:
        return wanted[:0], wanted[:0]
    codes = {name: code for code, name in enumerate(references.splits)}
    translated = np.array([codes.get(name, -1) for name in names], np.int64)
    translated_codes = translated[wanted >> BITS]
    keys = np.where(translated_codes >= 0, translated_codes << BITS | (wanted & ((1 << BITS) - 1)), -2)
    at = np.minimum(np.searchsorted(references.keys, keys), references.keys.size - 1)
    which = np.flatnonzero(references.keys[at] == keys)
    ordinals = at[which] if references.order is None else references.order[at[which]]
    if ordinals.size > 1 and np.any(ordinals[1:] < ordinals[:-1]):
        sorted_ = np.argsort(ordinals, kind="stable")
        ordinals, which = ordinals[sorted_], which[sorted_]
    return ordinals, which


# ----------------------------------------------------------------------------------------------------------------------
# Decoded: the columns of decoded values that the table `records` of a lake has. Those of topics grow from run to run.


_SIDES = ("key", "value")
#: Structs with a column for each topic.
FIELDS = tuple(f"{side}_fields" for side in _SIDES)
#: Columns that `records` has where values were decoded.
DECODED = frozenset([*FIELDS, *(column.name for side in _SIDES for column in added_columns(side))])


def schema_of(table: Any) -> pa.Schema:
    """The columns of an Iceberg table in Arrow's types, as rawlog has them."""
    import pyarrow as pa
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    from rawlog.model.table import arrow_type, spark_type

    schema = schema_to_pyarrow(table.schema(), include_field_ids=False)
    return pa.schema([(field.name, arrow_type(spark_type(field.type, naive="timestamp_ntz"))) for field in schema])


def with_decoded(table: Table, schema: pa.Schema) -> Table:
    """A table with those columns of decoded values that the lake's has."""
    more = []
    for side in _SIDES:
        more += [column for column in added_columns(side) if column.name in schema.names]
        if (name := f"{side}_fields") in schema.names:
            more.append(fields_column(side, schema.field(name).type))
    return table.with_columns(*table.columns, *more)


def is_narrow(schema: pa.Schema, table: Table) -> bool:
    """Whether a lake's table lacks columns, or topics or fields of decoded ones. SchemaError if it has one of another type."""
    if not set(table.names) <= set(schema.names):
        return True
    pairs = [(schema.field(name).type, table.schema.field(name).type) for name in FIELDS if name in table.names]
    return any(not join(has, wanted).equals(has) for has, wanted in pairs)


REFERENCE = (
    Column(SPLIT, "string", "of the row of rawlog.records that holds the payload: the split of a run that wrote it"),
    Column(ROW, "bigint", "of the same row: its number in that split; null: the payload is in this row"),
)
#: Rows that are read and completed at a time, and about how many bytes of payload.
ROWS, BYTES = 1 << 14, 64 << 20


@lru_cache(maxsize=64)
def stored(table: Table) -> Table:
    """A table as a lake stores it: `records`, and tables whose rows may refer to it, have two more columns."""
    refers = table.name == RECORDS.name or table.payload
    return table.with_columns(*table.columns, *REFERENCE) if refers and ROW not in table.names else table


def fit_batch(table: Table, batch: Any) -> Any:
    """A batch with all columns of a table: those that it lacks are null."""
    import pyarrow as pa

    empty = [field for field in table.schema if field.name not in batch.schema.names]
    for field_ in empty:
        batch = batch.append_column(field_, pa.nulls(batch.num_rows, field_.type))
    return batch.select(table.schema.names).cast(table.schema)


def needs_payload(table: Table, columns: Iterable[str]) -> bool:
    """Whether some of the columns may be stored in `rawlog.records` only."""
    return any(name in table.payload for name in columns)


# Writing --------------------------------------------------------------------------------------------------------------


class References:
    """Numbers the rows of `records` that one split writes, and makes rows of systems' tables refer to them.

    A row refers only to one that holds the very same bytes; every other row keeps its payload.
    """

    def __init__(self, name: str) -> None:
        """`name` is that of the attempt at the split, different from all others of the lake."""
        self.split = hashlib.blake2b(name.encode(), digest_size=12).hexdigest()
        self.rows = 0

    def number(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of `records`, with what others refer to them by."""
        first, self.rows = self.rows, self.rows + batch.num_rows
        return self._with_reference(batch, np.arange(first, self.rows))

    def since(self, first: int) -> tuple[tuple[str, int, int], ...]:
        """The rows of `records` from a number on, as a range; nothing if there is none."""
        return ((self.split, first, self.rows),) if self.rows > first else ()

    def share(
        self, table: Table, rows: Iterator[pa.RecordBatch], records: Iterator[pa.RecordBatch]
    ) -> Iterator[tuple[Table, pa.RecordBatch]]:
        """The rows of a system's table and of `records` for the same frames, as they are to be stored. Both are in the same order."""
        import pyarrow as pa

        held, first = _no_records(), self.rows
        for batch in rows:
            while batch.num_rows:
                same = _same(batch, held, table)
                used, matched = int(same.max(initial=-1)) + 1, int(np.flatnonzero(same >= 0).max(initial=-1)) + 1
                # Rows after the last one that was found may be in the next batch of `records`.
                is_short = matched < batch.num_rows and held.num_rows - used <= batch.num_rows - matched
                more = next(records, None) if is_short else None
                done = batch.num_rows if more is None else matched
                if done:
                    yield table, self._refer(batch.slice(0, done), table, same[:done], first)
                held, first, batch = held.slice(used), first + used, batch.slice(done)
                if more is not None:
                    if held.nbytes > BYTES:  # rows of `records` that no row refers to
                        held, first = held.slice(held.num_rows), first + held.num_rows
                    yield RECORDS, self.number(more)
                    held = pa.concat_batches([_plain(held), _plain(more)]) if held.num_rows else more
        for more in records:
            yield RECORDS, self.number(more)

    def keep(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of a system's table that keep their payload."""
        return self._with_reference(batch, np.full(batch.num_rows, -1))

    def _refer(self, batch: pa.RecordBatch, table: Table, same: Rows, first: int) -> pa.RecordBatch:
        import pyarrow as pa

        refers = same >= 0
        if not refers.any():
            return self.keep(batch)
        is_complete = bool(refers.all())
        kept = None if is_complete else pa.array(np.arange(batch.num_rows), mask=refers)
        for name in table.payload:
            column = batch.column(name)
            emptied = pa.nulls(len(column), column.type) if is_complete else column.take(kept)
            batch = batch.set_column(batch.schema.get_field_index(name), batch.schema.field(name), emptied)
        return self._with_reference(batch, same + first if is_complete else np.where(refers, same + first, -1))

    def _with_reference(self, batch: pa.RecordBatch, numbers: Rows) -> pa.RecordBatch:
        import pyarrow as pa

        count = batch.num_rows
        if count and numbers.min() >= 0:
            split = constant(self.split, "string", count, compact=True)
            row = pa.array(numbers, pa.int64())
        else:
            mask = numbers < 0
            codes = pa.array(np.zeros(count, np.int32), mask=mask)
            split = pa.DictionaryArray.from_arrays(codes, pa.array([self.split], pa.string()))
            row = pa.array(numbers, pa.int64(), mask=mask)
        schema = pa.schema([*batch.schema, pa.field(SPLIT, split.type), pa.field(ROW, pa.int64())])
        return pa.RecordBatch.from_arrays([*batch.columns, split, row], schema=schema)


@lru_cache(maxsize=1)
def _no_records() -> pa.RecordBatch:
    import pyarrow as pa

    return pa.RecordBatch.from_pylist([], RECORDS.schema)


def _same(batch: pa.RecordBatch, records: pa.RecordBatch, table: Table) -> Rows:
    """For each row of a system's table the row of `records` that is the same message with the same payload; -1: there is none."""
    import pyarrow as pa

    count = batch.num_rows
    if not records.num_rows:
        return np.full(count, -1, np.int64)
    front = records if records.num_rows == count else records.slice(0, count)
    if front.num_rows == count and _all_equal(batch, front, table):  # nearly always
        return np.arange(count)
    codes, record_codes = _codes(batch, records, table)
    _, rows, record_rows = np.intersect1d(codes, record_codes, return_indices=True)
    equal = _equal(batch.take(pa.array(rows)), records.take(pa.array(record_rows)), table)
    same = np.full(count, -1, np.int64)
    same[rows[equal]] = record_rows[equal]
    return same


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of `records` without dictionaries."""
    return batch.cast(RECORDS.schema)


def _all_equal(batch: pa.RecordBatch, records: pa.RecordBatch, table: Table) -> bool:
    """Whether two batches hold the same messages with the same payload, row by row."""
    for name, other in (*table.row_key.items(), *table.payload.items()):
        column, record_column = batch.column(name), records.column(other)
        if not _is_same(column, record_column) and not (
            column if column.type == record_column.type else column.cast(record_column.type)
        ).equals(record_column):
            return False
    return True


def _is_same(first: pa.Array, second: pa.Array) -> bool:
    """Whether two columns are the same memory, as they are where one decoding made both: then nothing need be compared."""
    is_simple = first.type.num_fields == 0 and not hasattr(first, "dictionary")
    if not is_simple or (first.type, first.offset, len(first)) != (second.type, second.offset, len(second)):
        return False
    pairs = zip(first.buffers(), second.buffers(), strict=False)
    return all((buffer and buffer.address) == (other_buffer and other_buffer.address) for buffer, other_buffer in pairs)


def _equal(batch: pa.RecordBatch, records: pa.RecordBatch, table: Table) -> NDArray[np.bool_]:
    """Which rows hold the same payload; where nested columns differ in any row, none is taken for the same."""
    import pyarrow as pa
    import pyarrow.compute as pc

    equal = np.ones(batch.num_rows, np.bool_)
    for name, other in table.payload.items():
        column, record_column = batch.column(name), records.column(other)
        if column.equals(record_column):
            continue
        if pa.types.is_nested(column.type):
            return np.zeros(batch.num_rows, np.bool_)
        both = pc.and_(column.is_null(), record_column.is_null())
        equal &= pc.or_(both, pc.fill_null(pc.equal(column, record_column), False)).to_numpy(zero_copy_only=False)
    return equal


def _codes(batch: pa.RecordBatch, records: pa.RecordBatch, table: Table) -> tuple[Rows, Rows]:
    """A number for each row of both tables, the same where the row key is."""
    import pyarrow as pa

    codes = np.zeros(batch.num_rows + records.num_rows, np.int64)
    for name, other in table.row_key.items():
        type = RECORDS.schema.field(other).type
        both = pa.concat_arrays([batch.column(name).cast(type), records.column(other).cast(type)])
        indices = both.dictionary_encode("encode").indices.to_numpy().astype(np.int64)
        if indices.any():
            codes = np.unique(codes * (int(indices.max()) + 1) + indices, return_inverse=True)[1]
    return codes[: batch.num_rows], codes[batch.num_rows :]


# Reading --------------------------------------------------------------------------------------------------------------


def check_complete(path: str) -> None:
    """OptionError for a Parquet file of a lake that holds only a part of its payload: read alone, it would lose the rest."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    system, inner = file_system(path)
    with pq.ParquetFile(system.open_input_file(inner)) as file:
        names = set(file.schema_arrow.names)
        if ROW not in names or names - DECODED == set(stored(RECORDS).names):
            return
        if any(pc.count(batch.column(ROW)).as_py() for batch in file.iter_batches(columns=[ROW])):
            raise OptionError(
                f"{path}: belongs to a lake, and message bytes are in the table rawlog.records: name the lake"
            )


@dataclass(frozen=True, slots=True)
class Payloads:
    """Where the payloads of a lake are. Picklable: tasks read with it."""

    files: tuple[DataFile, ...]
    #: Data files that older snapshots list, and that the newest one does not because sources were rewritten: a table that refers to
    #: their rows is about to be changed too, or a run died before it was.
    former: tuple[DataFile, ...] = ()

    def read(self, files: Sequence[str], table: Table, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows of data files of a system's table, with their payload, in order."""
        # Where data files have rows of several splits, the row key says where to look.
        is_mixed = any(file.least != file.greatest for file in self.files)
        more = [name for name, other in table.row_key.items() if is_mixed and other in BOUNDED and name not in columns]
        subset = stored(table).subset([*columns, *more, SPLIT, ROW])
        for file in files:
            batches = dataset([file], subset).to_batches(batch_size=ROWS, batch_readahead=1, fragment_readahead=1)
            for batch in self.complete(batches, table):
                yield batch.select(list(columns)) if more else batch

    def complete(self, batches: Iterable[pa.RecordBatch], table: Table) -> Iterator[pa.RecordBatch]:
        """Rows of a system's table with the payload that they refer to, in place of the reference. AccessError if it is missing."""
        with _Reading(self, table) as reading:
            for batch in batches:
                if ROW not in batch.schema.names:  # of a file from before there were references
                    yield batch
                    continue
                start = 0
                while start < batch.num_rows:
                    completed = reading.completed(batch.slice(start))
                    yield completed
                    start += completed.num_rows


class _Reading:
    """One pass over a system's table, whose rows are completed."""

    def __init__(self, payloads: Payloads, table: Table) -> None:
        self.payloads, self.table = payloads, table
        self.lookup: Lookup | None = None
        #: Rows that are completed at a time: fewer where they are large and far apart in `records`.
        self.count = ROWS

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.lookup is not None:
            self.lookup.__exit__()

    def completed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The first rows of a batch, as many as fit into memory, at least one."""
        wanted = {name: other for name, other in self.table.payload.items() if name in batch.schema.names}
        if not wanted:
            return batch.drop_columns([SPLIT, ROW])
        if self.lookup is None:
            self.lookup = Lookup(list(dict.fromkeys(wanted.values())), BYTES)
        while True:
            rows = batch.slice(0, self.count)
            for files in (self.payloads.files, self.payloads.former):
                result = self._look_up(rows, files)
                stop = _first(rows, result.place)
                if stop:
                    self.count = min(self.count * 2, ROWS) if stop == rows.num_rows else self.count
                    return _fill(rows.slice(0, stop), result.place[:stop], result.rows, wanted)
            if rows.num_rows == 1:
                split, row = (batch.column(name)[0].as_py() for name in (SPLIT, ROW))
                raise AccessError(
                    f"{self.table.name}: the payload of a row is no longer in rawlog.records ({SPLIT} {split}, {ROW} {row})"
                )
            self.count = max(rows.num_rows // 8, 1)

    def _look_up(self, batch: pa.RecordBatch, files: Sequence[DataFile]) -> LookupResult:
        assert self.lookup is not None
        numbers = batch.column(ROW).fill_null(-1).to_numpy()
        return self.lookup.find(files, batch.column(SPLIT), numbers, bounds_of(batch, self.table.row_key))


def _first(batch: pa.RecordBatch, place: Rows) -> int:
    """The first row of a batch whose payload was not found; the number of rows if there is no such row."""
    missing = np.flatnonzero(batch.column(ROW).is_valid().to_numpy(zero_copy_only=False) & (place < 0))
    return int(missing[0]) if missing.size else batch.num_rows


def _fill(
    batch: pa.RecordBatch,
    place: Rows,
    tables: Sequence[pa.Table],
    wanted: dict[str, str],
) -> pa.RecordBatch:
    """A batch with its payload: that of row `place` of what was found, its own where that is -1."""
    import pyarrow as pa

    refers = place >= 0
    if not refers.any():
        return batch.drop_columns([SPLIT, ROW])
    payload = pa.concat_tables(tables)
    first, numbers = int(place[0]), place[refers]
    is_run = numbers.size == place.size and bool(np.all(place == np.arange(first, first + place.size)))
    arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
    for name, other in wanted.items():
        type = batch.schema.field(name).type
        column = payload.column(other)
        chosen = column.slice(first, place.size) if is_run else column.take(pa.array(numbers))
        chosen = chosen.cast(type).combine_chunks()
        if not refers.all():
            at = np.arange(batch.num_rows)
            at[refers] = batch.num_rows + np.arange(int(refers.sum()))
            chosen = pa.concat_arrays([arrays[name], chosen]).take(pa.array(at))
        arrays[name] = chosen
    kept = [field for field in batch.schema if field.name not in (SPLIT, ROW)]
    return pa.RecordBatch.from_arrays([arrays[field.name] for field in kept], schema=pa.schema(kept))
