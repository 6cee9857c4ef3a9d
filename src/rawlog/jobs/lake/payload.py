"""Payload: the bytes of a message are stored once in a lake, in `rawlog.records`; rows of a system's own table refer to them.

Two columns make the reference, in both tables: `lake_split` names the split of a run that wrote the row, `lake_row` counts its rows of
`records`. Where `lake_row` of a system's row is null, the row holds its payload itself. `Payloads` puts the two together again: it reads
both tables forward, so it needs little memory and keeps the order of the rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from rawlog.core.errors import AccessError, OptionError
from rawlog.core.tables import RECORDS, Column, Table
from rawlog.io.storage import file_system
from rawlog.jobs.sheet import dataset
from rawlog.kernels.columns import constant
from rawlog.schemas.reasons import SIDES
from rawlog.schemas.transform import added_columns

if TYPE_CHECKING:
    import pyarrow as pa

SPLIT, ROW = "lake_split", "lake_row"
REFERENCE = (
    Column(SPLIT, "string", "of the row of rawlog.records that holds the payload: the split of a run that wrote it"),
    Column(ROW, "bigint", "of the same row: its number in that split; null: the payload is in this row"),
)
#: Columns that `records` has where values were decoded.
DECODED = frozenset(column.name for side in SIDES for column in added_columns(side))
#: Rows that are read and completed at a time, and about how many bytes of payload.
ROWS, BYTES = 1 << 14, 64 << 20
#: Splits that are read side by side.
SPLITS = 4
#: Rows that are searched for at a time where the order of `records` was changed.
SEARCHED = 1 << 10

Rows = NDArray[np.int64]


@lru_cache(maxsize=64)
def stored(table: Table) -> Table:
    """A table as a lake stores it: `records`, and tables whose rows may refer to it, have two more columns."""
    refers = table.name == RECORDS.name or table.payload
    return table.with_columns(*table.columns, *REFERENCE) if refers and ROW not in table.names else table


def fitted(table: Table, batch: Any) -> Any:
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

        held, first = pa.RecordBatch.from_pylist([], RECORDS.schema), self.rows
        for batch in rows:
            while batch.num_rows:
                same = _same(batch, held, table)
                used, found = int(same.max(initial=-1)) + 1, int(np.flatnonzero(same >= 0).max(initial=-1)) + 1
                # Rows after the last one that was found may be in the next batch of `records`.
                is_short = found < batch.num_rows and held.num_rows - used <= batch.num_rows - found
                more = next(records, None) if is_short else None
                done = batch.num_rows if more is None else found
                if done:
                    yield table, self._referring(batch.slice(0, done), table, same[:done], first)
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

    def _referring(self, batch: pa.RecordBatch, table: Table, same: Rows, first: int) -> pa.RecordBatch:
        import pyarrow as pa

        refers = same >= 0
        if not refers.any():
            return self.keep(batch)
        every = bool(refers.all())
        own = None if every else pa.array(np.arange(batch.num_rows), mask=refers)
        for name in table.payload:
            column = batch.column(name)
            emptied = pa.nulls(len(column), column.type) if every else column.take(own)
            batch = batch.set_column(batch.schema.get_field_index(name), batch.schema.field(name), emptied)
        return self._with_reference(batch, same + first if every else np.where(refers, same + first, -1))

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


def _same(batch: pa.RecordBatch, records: pa.RecordBatch, table: Table) -> Rows:
    """For each row of a system's table the row of `records` that is the same message with the same payload; -1: there is none."""
    import pyarrow as pa

    count = batch.num_rows
    if not records.num_rows:
        return np.full(count, -1, np.int64)
    front = records if records.num_rows == count else records.slice(0, count)
    if front.num_rows == count and _all_equal(batch, front, table):  # nearly always
        return np.arange(count)
    own, theirs = _codes(batch, records, table)
    _, mine, other = np.intersect1d(own, theirs, return_indices=True)
    equal = _equal(batch.take(pa.array(mine)), records.take(pa.array(other)), table)
    same = np.full(count, -1, np.int64)
    same[mine[equal]] = other[equal]
    return same


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of `records` without dictionaries."""
    return batch.cast(RECORDS.schema)


def _all_equal(batch: pa.RecordBatch, records: pa.RecordBatch, table: Table) -> bool:
    """Whether two batches hold the same messages with the same payload, row by row."""
    for own, theirs in (*table.row_key.items(), *table.payload.items()):
        one, two = batch.column(own), records.column(theirs)
        if not _is_same(one, two) and not (one if one.type == two.type else one.cast(two.type)).equals(two):
            return False
    return True


def _is_same(one: pa.Array, two: pa.Array) -> bool:
    """Whether two columns are the same memory, as they are where one decoding made both: then nothing need be compared."""
    is_simple = one.type.num_fields == 0 and not hasattr(one, "dictionary")
    if not is_simple or (one.type, one.offset, len(one)) != (two.type, two.offset, len(two)):
        return False
    pairs = zip(one.buffers(), two.buffers(), strict=False)
    return all((mine and mine.address) == (other and other.address) for mine, other in pairs)


def _equal(batch: pa.RecordBatch, records: pa.RecordBatch, table: Table) -> NDArray[np.bool_]:
    """Which rows hold the same payload; where nested columns differ in any row, none is taken for the same."""
    import pyarrow as pa
    import pyarrow.compute as pc

    equal = np.ones(batch.num_rows, np.bool_)
    for name, other in table.payload.items():
        one, two = batch.column(name), records.column(other)
        if one.equals(two):
            continue
        if pa.types.is_nested(one.type):
            return np.zeros(batch.num_rows, np.bool_)
        both = pc.and_(one.is_null(), two.is_null())
        equal &= pc.or_(both, pc.fill_null(pc.equal(one, two), False)).to_numpy(zero_copy_only=False)
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
class DataFile:
    """A data file of `rawlog.records`, with the least and greatest `lake_split` in it; None: not known."""

    url: str
    least: str | None
    greatest: str | None

    def may_hold(self, split: str) -> bool:
        """Whether rows of a split may be in it."""
        return self.least is None or self.greatest is None or self.least <= split <= self.greatest


@dataclass(frozen=True, slots=True)
class Payloads:
    """Where the payloads of a lake are. Picklable: tasks read with it."""

    files: tuple[DataFile, ...]
    #: Data files that older snapshots list, and that the newest one does not because sources were rewritten: a table that refers to
    #: their rows is about to be changed too, or a run died before it was.
    former: tuple[DataFile, ...] = ()

    def read(self, files: Sequence[str], table: Table, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows of data files of a system's table, with their payload, in order."""
        asked = stored(table).subset([*columns, SPLIT, ROW])
        for file in files:
            batches = dataset([file], asked).to_batches(batch_size=ROWS, batch_readahead=1, fragment_readahead=1)
            yield from self.complete(batches, table)

    def complete(self, batches: Iterable[pa.RecordBatch], table: Table) -> Iterator[pa.RecordBatch]:
        """Rows of a system's table with the payload that they refer to, in place of the reference. AccessError if it is missing."""
        with _Reading(self, table) as reading:
            for batch in batches:
                if ROW not in batch.schema.names:  # of a file from before there were references
                    yield batch
                    continue
                start = 0
                while start < batch.num_rows:
                    made = reading.completed(batch.slice(start))
                    yield made
                    start += made.num_rows


@dataclass(slots=True)
class _Reading:
    """One pass over `records`, next to a pass over a system's table."""

    payloads: Payloads
    table: Table
    cursors: dict[str, list[_Cursor]] = field(default_factory=dict)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for cursors in self.cursors.values():
            for cursor in cursors:
                cursor.close()

    def completed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The first rows of a batch, as many as fit into memory, at least one."""
        wanted = {own: theirs for own, theirs in self.table.payload.items() if own in batch.schema.names}
        columns = list(dict.fromkeys(wanted.values()))
        if not wanted:
            return batch.drop_columns([SPLIT, ROW])
        place, found = _gather(batch, lambda split, rows: self._next(split, rows, columns))
        stop = _first(batch, place)
        if stop == 0:
            # Another program may have written `records` in another order: a few rows are looked for in all of it.
            batch = batch.slice(0, SEARCHED)
            for files in (self.payloads.files, self.payloads.former):
                place, found = _gather(
                    batch,
                    lambda split, rows, files=files: self._search(split, rows, columns, files),  # type: ignore[misc]
                )
                stop = _first(batch, place)
                if stop:
                    break
            if stop == 0:
                split, row = (batch.column(name)[0].as_py() for name in (SPLIT, ROW))
                raise AccessError(
                    f"{self.table.name}: the payload of a row is no longer in rawlog.records ({SPLIT} {split}, {ROW} {row})"
                )
        return _filled(batch.slice(0, stop), place[:stop], found, wanted)

    def _next(self, split: str, rows: Rows, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Some rows of a split, read on from where the last ones were."""
        if split not in self.cursors:
            files = [one.url for one in self.payloads.files if one.least is not None and one.may_hold(split)]
            self.cursors[split] = [_Cursor(file, split, columns) for file in files]
        for other in [one for one in self.cursors if one != split and len(self.cursors) > SPLITS]:
            for cursor in self.cursors.pop(other):
                cursor.close()
        for cursor in self.cursors[split]:
            yield from (batch for _, batch in cursor.rows(int(rows.min()), int(rows.max())))

    def _search(
        self, split: str, rows: Rows, columns: list[str], among: Sequence[DataFile]
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a split, wherever they are in some data files."""
        from pyarrow import dataset as ds

        files = [one.url for one in among if one.may_hold(split)]
        chosen = (ds.field(SPLIT) == split) & ds.field(ROW).isin(rows.tolist())
        if files:
            yield from dataset(files, stored(RECORDS).subset([*columns, SPLIT, ROW])).to_batches(filter=chosen)


def _first(batch: pa.RecordBatch, place: Rows) -> int:
    """The first row of a batch that refers to a payload that was not found; the number of rows if there is no such row."""
    missing = np.flatnonzero(batch.column(ROW).is_valid().to_numpy(zero_copy_only=False) & (place < 0))
    return int(missing[0]) if missing.size else batch.num_rows


def _gather(
    batch: pa.RecordBatch, rows_of: Callable[[str, Rows], Iterator[pa.RecordBatch]]
) -> tuple[Rows, list[pa.RecordBatch]]:
    """Rows of `records`, and for each row of a batch which of them has its payload; -1: it has its own, or was not found."""
    place = np.full(batch.num_rows, -1, np.int64)
    found: list[pa.RecordBatch] = []
    numbers = batch.column(ROW).fill_null(-1).to_numpy()
    splits = batch.column(SPLIT).dictionary_encode()
    codes = splits.indices.fill_null(-1).to_numpy()
    count = 0
    for code, split in enumerate(splits.dictionary.to_pylist()):
        mine = np.flatnonzero(codes == code)
        for payload in rows_of(split, numbers[mine]):
            at = _places(payload.column(ROW).to_numpy(), numbers[mine])
            place[mine[at >= 0]] = at[at >= 0] + count
            found.append(payload)
            count += payload.num_rows
    return place, found


class _Cursor:
    """The rows of one split in one data file of `records`, read forward."""

    def __init__(self, url: str, split: str, columns: Sequence[str]) -> None:
        self.url, self.split, self.columns = url, split, columns
        self.held: list[tuple[Rows, pa.RecordBatch]] = []
        self._open()

    def _open(self) -> None:
        self.passed, self.size = -1, 0
        self.held.clear()
        self.batches = self._read()

    def close(self) -> None:
        self.batches.close()
        self.held.clear()

    def rows(self, first: int, last: int) -> list[tuple[Rows, pa.RecordBatch]]:
        """Rows from `first` up to `last`, and some around them; not all of them if they take too much memory."""
        if first <= self.passed:  # they were read before
            self.close()
            self._open()
        while self.held and int(self.held[0][0][-1]) < first:
            rows, batch = self.held.pop(0)
            self.passed = int(rows[-1])
            self.size -= batch.nbytes
        while (not self.held or int(self.held[-1][0][-1]) < last) and (self.size < BYTES or not self.held):
            read = next(self.batches, None)
            if read is None:
                break
            if int(read[0][-1]) < first:
                self.passed = int(read[0][-1])
                continue
            self.held.append(read)
            self.size += read[1].nbytes
        return self.held

    def _read(self) -> Generator[tuple[Rows, pa.RecordBatch], None, None]:
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        system, path = file_system(self.url)
        try:
            with pq.ParquetFile(system.open_input_file(path)) as file:
                groups = [
                    group for group in range(file.num_row_groups) if self._may_hold(file.metadata.row_group(group))
                ]
                for batch in file.iter_batches(ROWS, groups, [SPLIT, ROW, *self.columns]):
                    is_mine = pc.fill_null(pc.equal(batch.column(SPLIT), self.split), False)
                    mine = batch if pc.all(is_mine).as_py() else batch.filter(is_mine)
                    if mine.num_rows:
                        yield mine.column(ROW).to_numpy(), mine
        except (OSError, pa.ArrowException) as error:
            raise AccessError(f"{self.url}: {str(error).splitlines()[0]}") from None

    def _may_hold(self, group: Any) -> bool:
        for number in range(group.num_columns):
            column = group.column(number)
            if column.path_in_schema == SPLIT and column.statistics is not None and column.statistics.has_min_max:
                return bool(column.statistics.min <= self.split <= column.statistics.max)
        return True


def _places(rows: Rows, wanted: Rows) -> Rows:
    """Where each wanted number is among some rows, -1 where it is not."""
    if not rows.size:
        return np.full(wanted.size, -1, np.int64)
    order = np.argsort(rows, kind="stable")
    at = np.minimum(np.searchsorted(rows, wanted, sorter=order), rows.size - 1)
    return np.where(rows[order[at]] == wanted, order[at], -1)


def _filled(
    batch: pa.RecordBatch,
    place: Rows,
    found: Sequence[pa.RecordBatch],
    wanted: dict[str, str],
) -> pa.RecordBatch:
    """A batch with its payload: that of row `place` of what was found, its own where that is -1."""
    import pyarrow as pa

    refers = place >= 0
    if not refers.any():
        return batch.drop_columns([SPLIT, ROW])
    payload = pa.Table.from_batches(found)
    arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
    for own, theirs in wanted.items():
        type = batch.schema.field(own).type
        chosen = pa.concat_arrays(payload.column(theirs).take(pa.array(place[refers])).cast(type).chunks)
        if not refers.all():
            at = np.arange(batch.num_rows)
            at[refers] = batch.num_rows + np.arange(int(refers.sum()))
            chosen = pa.concat_arrays([arrays[own], chosen]).take(pa.array(at))
        arrays[own] = chosen
    kept = [one for one in batch.schema if one.name not in (SPLIT, ROW)]
    return pa.RecordBatch.from_arrays([arrays[one.name] for one in kept], schema=pa.schema(kept))
