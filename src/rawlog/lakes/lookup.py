"""Lookup: rows of `rawlog.records` found by what other rows refer to them by, whatever the order of either table.

A row group is looked at if its statistics allow it. Those that were read last are kept, so that tables in a similar order are read once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from rawlog.io.storage import file_system
from rawlog.model.errors import AccessError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

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
