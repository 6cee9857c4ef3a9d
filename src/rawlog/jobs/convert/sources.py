"""Sources that are no files of a message system: Parquet and JSON lines as `convert` writes them, and the data files of a lake."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from rawlog.core.errors import AccessError, CorruptError, OptionError
from rawlog.core.format import File
from rawlog.core.tables import Table
from rawlog.io.storage import file_system, split_query
from rawlog.jobs.convert.lines import read_lines
from rawlog.jobs.convert.outlets import ENDINGS, TEXT_CODECS
from rawlog.reading.select import Selection, partition_column
from rawlog.reading.tree import Tree
from rawlog.schemas.catalog import TOPIC, Catalog, catalog_of

if TYPE_CHECKING:
    import pyarrow as pa

    from rawlog.jobs.lake.payload import Payloads

#: So many bytes of a registry's topic are read at most.
LARGEST_TOPIC = 1 << 30

BATCH_ROWS, BATCH_BYTES = 1 << 14, 32 << 20
#: Files up to this size are put in the order of their rows where the target needs it.
LARGEST_SORTED = 1 << 30
#: ... unless their rows take so many times the size of the file, and more than so many bytes.
MOST_RATIO, LEAST_SORTED = 8, 64 << 20
ORDER = ("topic", "partition", "offset")


def kind_of(path: str) -> str | None:
    """What a file is by its name: parquet, jsonl or csv; None for anything else."""
    path, _ = split_query(path)
    bare = path
    for ending in TEXT_CODECS.values():
        bare = bare.removesuffix(ending) if ending else bare
    for kind, endings in ENDINGS.items():
        if (path if kind == "parquet" else bare).endswith(endings):
            return kind
    return None


def lake_tree(path: str, table: Table) -> Tree:
    """The data files of a table of a lake. AccessError if it has no such table."""
    from rawlog.jobs.lake import Lake, lake_name

    lake = Lake(path)
    name = lake_name(table)
    if name not in lake.tables():
        raise AccessError(f"{path}: this lake has no table {name}; it has {', '.join(lake.tables())}")
    files = [File(file, _size(file)) for file in lake.data_files(name)]
    return Tree((path,), tuple(sorted(files, key=lambda file: _first(file.path))))


def _size(path: str) -> int:
    system, inner = file_system(path)
    return int(system.get_file_info(inner).size or 0)


def _first(path: str) -> tuple[Any, ...]:
    """The least topic, partition and offset of a Parquet file, by its footer; such files are in order of them."""
    import pyarrow.parquet as pq

    system, inner = file_system(path)
    try:
        with pq.ParquetFile(system.open_input_file(inner)) as file:
            names = file.schema_arrow.names
            found: list[Any] = []
            for name in ORDER:
                least = []
                if name in names:
                    index = next(i for i in range(len(file.schema)) if file.schema.column(i).path == name)
                    groups = [file.metadata.row_group(i).column(index) for i in range(file.num_row_groups)]
                    least = [one.statistics.min for one in groups if one.statistics and one.statistics.has_min_max]
                found.append((bool(least), min(least) if least else 0))
            return (*found, path)
    except (OSError, ValueError, OverflowError):
        return ((False, 0), (False, 0), (False, 0), path)


def sheets(tree: Tree) -> list[File]:
    """The files of a tree that are tables, by their names."""
    return [file for file in tree if file.format is None and file.problem is None and kind_of(file.path) is not None]


def sheet_names(tree: Tree, table: Table) -> Iterator[set[tuple[str, int | None]]]:
    """The topics and partitions in tables, a few at a time: those that footers of Parquet files tell, then those of rows."""
    partition = partition_column(table)
    if "topic" not in table.names:
        return
    names, rest = ("topic", *([partition] if partition else ())), []
    for file in sheets(tree):
        found = _from_footer(file.path, names) if kind_of(file.path) == "parquet" else None
        if found is None:
            rest.append(file)
        else:
            yield found
    for file in rest:
        if kind_of(file.path) != "parquet":
            for batch in _checked(file, table, None):
                yield _distinct(batch.select(list(names)))
            continue
        with _parquet_file(file.path) as opened:
            for batch in opened.iter_batches(columns=[name for name in names if name in opened.schema_arrow.names]):
                yield _distinct(batch)


def _from_footer(path: str, names: tuple[str, ...]) -> set[tuple[str, int | None]] | None:
    """What the footer of a Parquet file says of the topics and partitions in it; None if it does not say all of it."""
    with _parquet_file(path) as file:
        places = {file.schema.column(i).path: i for i in range(len(file.schema))}
        found: set[tuple[str, int | None]] = set()
        for group in range(file.num_row_groups):
            values: list[Any] = []
            for name in names:
                about = file.metadata.row_group(group).column(places[name]).statistics if name in places else None
                if about is None or not about.has_min_max or about.min != about.max or about.null_count != 0:
                    return None
                values.append(about.min)
            found.add((values[0], values[1] if len(values) > 1 else None))
        return found


def _distinct(batch: pa.RecordBatch) -> set[tuple[str, int | None]]:
    """The topics and partitions in a batch of both, or of topics; rows without a topic have none."""
    import pyarrow as pa

    if "topic" not in batch.schema.names:
        return set()
    rows = pa.Table.from_batches([batch]).group_by(batch.schema.names).aggregate([]).to_pylist()
    return {(row.pop("topic"), next(iter(row.values()), None)) for row in rows if row["topic"] is not None}


@contextlib.contextmanager
def _parquet_file(path: str) -> Iterator[Any]:
    """A Parquet file. CorruptError if it is not one, AccessError if it cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    system, inner = file_system(path)
    try:
        with pq.ParquetFile(system.open_input_file(inner)) as file:
            yield file
    except pa.ArrowInvalid as error:
        raise CorruptError(f"not Parquet: {_line(error)}", path=path) from None
    except OSError as error:
        raise AccessError(f"{path}: {error.strerror or error}") from None


def lake_payloads(tree: Tree) -> Payloads | None:
    """Where the message bytes are that data files of a lake refer to; None if the tree is not one of a lake."""
    from rawlog.jobs.lake import Lake, is_lake

    return Lake(tree.roots[0]).payloads() if len(tree.roots) == 1 and is_lake(tree.roots[0]) else None


def lake_schemas(tree: Tree) -> Catalog:
    """The schemas in the records of a lake: those of the registry's topic, if it was ingested. Nothing else is read."""
    from rawlog.jobs.lake import is_lake

    if len(tree.roots) != 1 or not is_lake(tree.roots[0]):
        return Catalog()
    import pyarrow.dataset as ds

    found: list[tuple[int, bytes | None, bytes | None]] = []
    size = 0
    for file in tree:
        system, inner = file_system(file.path)
        rows = ds.dataset(inner, filesystem=system, format="parquet")
        for batch in rows.to_batches(columns=["offset", "key", "value"], filter=ds.field("topic") == TOPIC):
            size += batch.nbytes
            if size > LARGEST_TOPIC:
                raise AccessError(f"topic {TOPIC}: more than {LARGEST_TOPIC:,} bytes; --schemas names another place")
            found += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return catalog_of((key, value, offset) for offset, key, value in sorted(found, key=lambda row: row[0]))


def read_sheet(
    file: File, table: Table, selection: Selection, *, in_order: bool = False, payloads: Payloads | None = None
) -> Iterator[pa.RecordBatch]:
    """The wanted rows of a file. `in_order` asks for those of each partition by their offsets, as far as memory allows.

    `payloads` are those of the lake that the file belongs to. CorruptError for a file that is not what its name says, or that has no
    column of the table; OptionError for one of a lake whose message bytes are elsewhere, without `payloads`.
    """
    batches = _checked(file, table, payloads)
    if in_order and file.size <= LARGEST_SORTED:
        batches = _in_order(batches, table, max(LEAST_SORTED, MOST_RATIO * file.size))
    for batch in batches:
        chosen = selection.apply(batch, table)
        if chosen.num_rows:
            yield chosen


def _in_order(batches: Iterator[pa.RecordBatch], table: Table, most: int) -> Iterator[pa.RecordBatch]:
    """The rows in order, if they take at most so many bytes, else as they come."""
    import pyarrow as pa

    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size > most:
            yield from held
            yield from batches
            return
    whole = pa.Table.from_batches(held, schema=table.schema)
    if set(ORDER) <= set(table.names):
        whole = whole.sort_by([(name, "ascending") for name in ORDER])
    yield from whole.to_batches(max_chunksize=BATCH_ROWS)


def _checked(file: File, table: Table, payloads: Payloads | None) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    kind = kind_of(file.path)
    if kind == "csv":
        raise OptionError(
            f"{file.path}: CSV does not tell bytes from text; convert to jsonl or parquet what is to be read again"
        )
    try:
        for batch in _jsonl(file.path, table) if kind == "jsonl" else _parquet(file.path, table, payloads):
            arrays = []
            for one in table.schema:
                if one.name in batch.schema.names:
                    arrays.append(batch.column(one.name).cast(one.type))
                else:
                    arrays.append(pa.nulls(batch.num_rows, one.type))
            yield pa.RecordBatch.from_arrays(arrays, schema=table.schema)
    except OptionError:
        raise
    except (pa.ArrowException, ValueError, TypeError, KeyError, AttributeError) as error:
        if isinstance(error, OSError):
            raise AccessError(f"{file.path}: {error}") from None
        raise CorruptError(f"no rows of {table.name} as {kind}: {_line(error)}", path=file.path) from None
    except OSError as error:
        if isinstance(error, AccessError):
            raise
        raise AccessError(f"{file.path}: {error.strerror or error}") from None


def _line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _known(names: list[str], table: Table) -> None:
    if not set(names) & set(table.names):
        raise ValueError(f"its columns are {', '.join(names[:8])}")


def _parquet(path: str, table: Table, payloads: Payloads | None) -> Iterator[pa.RecordBatch]:
    from rawlog.jobs.lake.payload import check_complete, stored

    if payloads is None:
        check_complete(path)
    elif table.payload:
        yield from payloads.complete(_parquet_rows(path, stored(table)), table)
        return
    yield from _parquet_rows(path, table)


def _parquet_rows(path: str, table: Table) -> Iterator[pa.RecordBatch]:
    import pyarrow.parquet as pq

    system, inner = file_system(path)
    with pq.ParquetFile(system.open_input_file(inner)) as file:
        _known(file.schema_arrow.names, table)
        columns = [name for name in table.names if name in file.schema_arrow.names]
        repeating = _repeating(file)
    with pq.ParquetFile(system.open_input_file(inner), read_dictionary=repeating) as file:
        yield from _bounded_batches(file, columns)


def _bounded_batches(file: Any, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Batches of a Parquet file, of BATCH_ROWS and BATCH_BYTES at most, except for a single row.

    A value that occurs in many rows is in the file once. It stays so until the rows are cut into batches.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=columns):
        sizes = np.zeros(batch.num_rows, np.int64)
        for array in batch.columns:
            if pa.types.is_dictionary(array.type):
                sizes += pc.fill_null(pc.binary_length(array.dictionary).take(array.indices), 0).to_numpy()
        ends = np.cumsum(sizes)
        start = 0
        while start < batch.num_rows:
            before = int(ends[start - 1]) if start else 0
            stop = max(int(np.searchsorted(ends, before + BATCH_BYTES, side="right")), start + 1)
            some = batch.slice(start, stop - start)
            plain = [one.dictionary_decode() if pa.types.is_dictionary(one.type) else one for one in some.columns]
            yield pa.RecordBatch.from_arrays(plain, names=some.schema.names)
            start = stop


def _repeating(file: Any) -> list[str]:
    """The columns of bytes and text in which the file has each value once, whatever the number of rows."""
    found = set()
    for group in range(file.num_row_groups):
        for number in range(file.metadata.num_columns):
            column = file.metadata.row_group(group).column(number)
            if column.physical_type == "BYTE_ARRAY" and {"RLE_DICTIONARY", "PLAIN_DICTIONARY"} & set(column.encodings):
                found.add(column.path_in_schema)
    return sorted(name for name in found if "." not in name)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[Any]:
    """The bytes of a text file, decompressed by its name."""
    import pyarrow as pa

    system, inner = file_system(path)
    named, _ = split_query(path)
    codec = next((codec for codec, ending in TEXT_CODECS.items() if ending and named.endswith(ending)), None)
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(system.open_input_stream(inner, compression=None))
        yield file if codec is None else stack.enter_context(pa.CompressedInputStream(file, codec))


def _jsonl(path: str, table: Table) -> Iterator[pa.RecordBatch]:
    with _opened(path) as file:
        yield from read_lines(file, table, lambda names: _known(names, table))


def source_tree(
    paths: list[str], table: Table, format: str | None = None, note: Callable[[str], None] | None = None
) -> Tree:
    """What is to be converted: the data files of a lake, or a tree of files. Errors and notes as those of `open_known`."""
    from rawlog.jobs.lake import is_lake
    from rawlog.reading.tree import open_known

    if len(paths) == 1 and is_lake(paths[0]):
        return lake_tree(os.path.abspath(paths[0]), table)
    return open_known(paths, format=format, note=note, knows=lambda file: kind_of(file.path) is not None)
