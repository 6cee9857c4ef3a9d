"""Sources that are no files of a message system: Parquet and JSON lines as `convert` writes them, and the data files of a lake."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import uuid
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from rawlog.io.storage import file_system, split_query
from rawlog.lakes.targets import ENDINGS, TEXT_CODECS
from rawlog.model.errors import AccessError, CorruptError, OptionError, UnknownFormatError
from rawlog.model.format import File
from rawlog.model.table import Table
from rawlog.reading.select import Selection, partition_column
from rawlog.reading.tree import Tree

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from rawlog.lakes.payload import Payloads
    from rawlog.values.registry import Catalog


# ----------------------------------------------------------------------------------------------------------------------
# Lines: rows of a table as JSON lines, as `convert` writes them: bytes are text or base64, a time is text.
# A block of lines is read by Arrow's own parser where the result is the same. That parser is strict: what it does not accept (a number
# with a fraction for a whole one, a time in another form, damage) is read value by value, which is slower and accepts it or says what is
# wrong.


BLOCK = 4 << 20
#: Bytes that are not text: an object where others are a string.
BASE64 = re.compile(rb'\{\s*"base64"\s*:\s*"([A-Za-z0-9+/]*={0,2})"\s*\}')
#: A number as only Arrow's parser takes it.
INFINITE = re.compile(rb"[:,\[]\s*-?Inf")
TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?Z$"
ALPHABET = np.zeros(256, np.uint8)
ALPHABET[list(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")] = np.arange(64)
PAD = ord("=")


def read_lines(file: IO[bytes], table: Table, check: Callable[[list[str]], None]) -> Iterator[pa.RecordBatch]:
    """The rows of a file of JSON lines. `check` is given the names of a row now and then. ValueError, TypeError, KeyError or
    AttributeError for what is no row of the table.
    """
    rest, before = b"", 0
    while True:
        data = file.read(BLOCK)
        text = rest + data
        whole, newline, rest = text.rpartition(b"\n") if data else (text, b"", b"")
        batch, fault = block_at_once(whole, table, check), None
        if batch is None:
            rows, fault = sound_rows(whole, before)
            batch = batch_of(rows, table, check)
        if batch is not None:
            yield batch
        if fault is not None:
            raise fault
        if not data:
            return
        before += whole.count(b"\n") + bool(newline)


def sound_rows(whole: bytes, before: int) -> tuple[list[dict[str, Any]], ValueError | None]:
    """The values of some lines up to one that is no row, and what is wrong with that; `before` is the number of lines before them."""
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(whole.split(b"\n"), before + 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            return rows, ValueError(f"line {number}, column {error.colno}: {error.msg}")
        except (ValueError, RecursionError) as error:
            what = "values nested too deeply" if isinstance(error, RecursionError) else str(error)
            return rows, ValueError(f"line {number}: {what}")
        if not isinstance(row, dict):
            return rows, ValueError(f"line {number}: not an object")
        rows.append(row)
    return rows, None


def batch_of(rows: list[dict[str, Any]], table: Table, check: Callable[[list[str]], None]) -> pa.RecordBatch | None:
    """The rows of some values, one at a time; None if there is no row."""
    import pyarrow as pa

    if not rows:
        return None
    check(list(rows[0]))
    columns = [
        pa.array([_value(row.get(field.name), field.type) for row in rows], field.type) for field in table.schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=table.schema)


def _value(value: Any, type: pa.DataType) -> Any:
    """What JSON says of a value of this type."""
    import pyarrow as pa

    if value is None:
        return None
    if pa.types.is_binary(type):
        return base64.b64decode(value["base64"], validate=True) if isinstance(value, dict) else value.encode()
    if pa.types.is_timestamp(type):
        from rawlog.model.text import parse_time

        return parse_time(value)
    if pa.types.is_list(type):
        return [_value(item, type.value_type) for item in value]
    if pa.types.is_struct(type):
        return {field.name: _value(value.get(field.name), field.type) for field in type}
    return value


# All at once -------------------------------------------------------------------------------------------------------


class _Otherwise(Exception):
    """Something that is left to the slower way."""


def block_at_once(whole: bytes, table: Table, check: Callable[[list[str]], None]) -> pa.RecordBatch | None:
    """The rows of some lines, read by Arrow; None where that might not come to what `batch_of` makes of `sound_rows`."""
    import pyarrow as pa
    import pyarrow.json

    # An object on each line and nothing else: between the rows of a block there can be no other `}` and `{` on two lines.
    count = whole.count(b"\n") + 1
    if not (whole.startswith(b"{") and whole.endswith(b"}") and whole.count(b"}\n{") == count - 1):
        return None
    if b"Inf" in whole and INFINITE.search(whole):
        return None
    mark = f"\0{uuid.uuid4().hex}"  # none of the values begins with it
    text = BASE64.sub(rb'"\\u0000' + mark[1:].encode() + rb'\1"', whole) if b'"base64"' in whole else whole
    try:
        if not whole.isascii():
            whole.decode()  # Arrow looks at values only, and only at those of its columns
        schema = pa.schema([(field.name, _as_text(field.type)) for field in table.schema])
        rows = pyarrow.json.read_json(
            pa.BufferReader(text),
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(text) + 1),
            parse_options=pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        ).combine_chunks()
        if rows.num_rows != count:
            return None
        check(list(json.loads(whole.partition(b"\n")[0])))
        columns = [_convert(rows.column(field.name).combine_chunks(), field.type, mark) for field in table.schema]
        return pa.RecordBatch.from_arrays(columns, schema=table.schema)
    except (_Otherwise, pa.ArrowException, ValueError, RecursionError):
        return None


def _as_text(type: pa.DataType) -> pa.DataType:
    """The type as which Arrow reads a column: bytes and times are text first."""
    import pyarrow as pa

    if pa.types.is_binary(type) or pa.types.is_timestamp(type):
        return pa.string()
    if pa.types.is_list(type):
        return pa.list_(_as_text(type.value_type))
    if pa.types.is_struct(type):
        return pa.struct([(field.name, _as_text(field.type)) for field in type])
    if pa.types.is_map(type):
        raise _Otherwise
    return type


def _convert(array: pa.Array, type: pa.DataType, mark: str) -> pa.Array:
    """What was read as text, as what it is."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_list(type):
        values = _convert(array.values, type.value_type, mark)
        return pa.ListArray.from_arrays(array.offsets, values, type=type, mask=array.is_null())
    if pa.types.is_struct(type):
        fields = [_convert(array.field(number), field.type, mark) for number, field in enumerate(type)]
        return pa.StructArray.from_arrays(fields, fields=list(type), mask=array.is_null())
    if pa.types.is_timestamp(type):
        if pc.all(pc.match_substring_regex(array, TIME), min_count=0).as_py() is False:
            raise _Otherwise
        return array.cast(type)
    if not pa.types.is_string(array.type):
        return array
    marked = pc.fill_null(pc.starts_with(array, mark), False)
    if not pc.any(marked, min_count=0).as_py():
        return array.cast(type)
    if not pa.types.is_binary(type):
        raise _Otherwise
    decoded = decode_base64(pc.utf8_slice_codeunits(array.filter(marked), len(mark)))
    return pc.replace_with_mask(array.cast(type), marked, decoded)


def decode_base64(texts: pa.Array) -> pa.Array:
    """Bytes of texts in base64, whose letters are right and whose padding is at the end. _Otherwise for a text that ends too early."""
    import pyarrow as pa

    offsets = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
    sizes = np.diff(offsets)
    if (sizes % 4).any():
        raise _Otherwise
    data = np.frombuffer(texts.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    ends = offsets[1:] - offsets[0]
    filled = sizes > 0
    pads = np.zeros(sizes.size, np.int64)
    pads[filled] = (data[ends[filled] - 1] == PAD).astype(np.int64) + (data[ends[filled] - 2] == PAD)
    decoded = _threes(data)
    keep, stops = np.ones(decoded.size, np.bool_), ends // 4 * 3
    keep[stops[pads > 0] - 1] = False
    keep[stops[pads > 1] - 2] = False
    starts = np.zeros(sizes.size + 1, np.int32)
    np.cumsum(sizes // 4 * 3 - pads, out=starts[1:])
    buffers = [None, pa.py_buffer(starts), pa.py_buffer(decoded[keep])]
    return pa.Array.from_buffers(pa.binary(), sizes.size, buffers)


def _threes(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Three bytes for each four letters."""
    fours = ALPHABET[data].reshape(-1, 4)
    threes = np.empty((fours.shape[0], 3), np.uint8)
    threes[:, 0] = fours[:, 0] << 2 | fours[:, 1] >> 4
    threes[:, 1] = fours[:, 1] << 4 | fours[:, 2] >> 2
    threes[:, 2] = fours[:, 2] << 6 | fours[:, 3]
    return threes.reshape(-1)


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
    from rawlog.lakes.lake import Lake
    from rawlog.lakes.names import lake_name

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
            keys: list[Any] = []
            for name in ORDER:
                least = []
                if name in names:
                    index = next(i for i in range(len(file.schema)) if file.schema.column(i).path == name)
                    groups = [file.metadata.row_group(i).column(index) for i in range(file.num_row_groups)]
                    least = [
                        group.statistics.min for group in groups if group.statistics and group.statistics.has_min_max
                    ]
                keys.append((bool(least), min(least) if least else 0))
            return (*keys, path)
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
        footer_names = _from_footer(file.path, names) if kind_of(file.path) == "parquet" else None
        if footer_names is None:
            rest.append(file)
        else:
            yield footer_names
    for file in rest:
        if kind_of(file.path) != "parquet":
            for batch in _checked_batches(file, table, None):
                yield _distinct(batch.select(list(names)))
            continue
        with _parquet_file(file.path) as opened:
            for batch in opened.iter_batches(columns=[name for name in names if name in opened.schema_arrow.names]):
                yield _distinct(batch)


def _from_footer(path: str, names: tuple[str, ...]) -> set[tuple[str, int | None]] | None:
    """What the footer of a Parquet file says of the topics and partitions in it; None if it does not say all of it."""
    with _parquet_file(path) as file:
        places = {file.schema.column(i).path: i for i in range(len(file.schema))}
        pairs: set[tuple[str, int | None]] = set()
        for group in range(file.num_row_groups):
            values: list[Any] = []
            for name in names:
                about = file.metadata.row_group(group).column(places[name]).statistics if name in places else None
                if about is None or not about.has_min_max or about.min != about.max or about.null_count != 0:
                    return None
                values.append(about.min)
            pairs.add((values[0], values[1] if len(values) > 1 else None))
        return pairs


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
    from rawlog.lakes.names import is_lake

    if len(tree.roots) != 1 or not is_lake(tree.roots[0]):
        return None
    from rawlog.lakes.lake import Lake

    return Lake(tree.roots[0]).payloads()


def lake_schemas(tree: Tree) -> Catalog:
    """The schemas in the records of a lake: those of the registry's topic, if it was ingested. Nothing else is read."""
    from rawlog.lakes.names import is_lake
    from rawlog.values.registry import TOPIC, Catalog, catalog_of

    if len(tree.roots) != 1 or not is_lake(tree.roots[0]):
        return Catalog()
    import pyarrow.dataset as ds

    schema_rows: list[tuple[int, bytes | None, bytes | None]] = []
    size = 0
    for file in tree:
        system, inner = file_system(file.path)
        rows = ds.dataset(inner, filesystem=system, format="parquet")
        for batch in rows.to_batches(columns=["offset", "key", "value"], filter=ds.field("topic") == TOPIC):
            size += batch.nbytes
            if size > LARGEST_TOPIC:
                raise AccessError(f"topic {TOPIC}: more than {LARGEST_TOPIC:,} bytes; --schemas names another place")
            schema_rows += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return catalog_of((key, value, offset) for offset, key, value in sorted(schema_rows, key=lambda row: row[0]))


def read_sheet(
    file: File, table: Table, selection: Selection, *, in_order: bool = False, payloads: Payloads | None = None
) -> Iterator[pa.RecordBatch]:
    """The wanted rows of a file. `in_order` asks for those of each partition by their offsets, as far as memory allows.

    `payloads` are those of the lake that the file belongs to. UnknownFormatError for a file that is not what its name says, or that has no
    column of the table, CorruptError where that shows after its first rows; OptionError for one of a lake whose message bytes are
    elsewhere, without `payloads`.
    """
    batches = _checked_batches(file, table, payloads)
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


def _checked_batches(file: File, table: Table, payloads: Payloads | None) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    kind = kind_of(file.path)
    if kind == "csv":
        raise OptionError(
            f"{file.path}: CSV does not tell bytes from text; convert to jsonl or parquet what is to be read again"
        )
    is_begun = False
    try:
        for batch in _jsonl(file.path, table) if kind == "jsonl" else _parquet(file.path, table, payloads):
            arrays = []
            for field in table.schema:
                if field.name in batch.schema.names:
                    arrays.append(batch.column(field.name).cast(field.type))
                else:
                    arrays.append(pa.nulls(batch.num_rows, field.type))
            yield pa.RecordBatch.from_arrays(arrays, schema=table.schema)
            is_begun = True
    except OptionError:
        raise
    except (pa.ArrowException, ValueError, TypeError, KeyError, AttributeError) as error:
        if isinstance(error, OSError):
            raise AccessError(f"{file.path}: {error}") from None
        if is_begun:
            raise CorruptError(f"not all are rows of {table.name} as {kind}: {_line(error)}", path=file.path) from None
        raise UnknownFormatError(f"{file.path}: no rows of {table.name} as {kind}: {_line(error)}") from None
    except OSError as error:
        if isinstance(error, AccessError):
            raise
        raise AccessError(f"{file.path}: {error.strerror or error}") from None


def _line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _check_names(names: list[str], table: Table) -> None:
    if not set(names) & set(table.names):
        raise ValueError(f"its columns are {', '.join(names[:8])}")


def _parquet(path: str, table: Table, payloads: Payloads | None) -> Iterator[pa.RecordBatch]:
    from rawlog.lakes.payload import check_complete, stored

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
        _check_names(file.schema_arrow.names, table)
        columns = [name for name in table.names if name in file.schema_arrow.names]
        repeating = _repeating_columns(file)
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
            piece = batch.slice(start, stop - start)
            plain = [
                column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
                for column in piece.columns
            ]
            yield pa.RecordBatch.from_arrays(plain, names=piece.schema.names)
            start = stop


def _repeating_columns(file: Any) -> list[str]:
    """The columns of bytes and text in which the file has each value once, whatever the number of rows."""
    columns = set()
    for group in range(file.num_row_groups):
        for number in range(file.metadata.num_columns):
            column = file.metadata.row_group(group).column(number)
            if column.physical_type == "BYTE_ARRAY" and {"RLE_DICTIONARY", "PLAIN_DICTIONARY"} & set(column.encodings):
                columns.add(column.path_in_schema)
    return sorted(name for name in columns if "." not in name)


@contextlib.contextmanager
def _open_text(path: str) -> Iterator[Any]:
    """The bytes of a text file, decompressed by its name."""
    import pyarrow as pa

    system, inner = file_system(path)
    named, _ = split_query(path)
    codec = next((codec for codec, ending in TEXT_CODECS.items() if ending and named.endswith(ending)), None)
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(system.open_input_stream(inner, compression=None))
        yield file if codec is None else stack.enter_context(pa.CompressedInputStream(file, codec))


def _jsonl(path: str, table: Table) -> Iterator[pa.RecordBatch]:
    with _open_text(path) as file:
        yield from read_lines(file, table, lambda names: _check_names(names, table))


def source_tree(
    paths: list[str],
    table: Table,
    format: str | None = None,
    note: Callable[[str], None] | None = None,
    *,
    without_unreadable: bool = False,
) -> Tree:
    """What is to be converted: the data files of a lake, or a tree of files. Errors and notes as those of `open_known`."""
    from rawlog.lakes.names import is_lake
    from rawlog.reading.tree import open_known

    if len(paths) == 1 and is_lake(paths[0]):
        return lake_tree(os.path.abspath(paths[0]), table)
    return open_known(
        paths,
        format=format,
        note=note,
        knows=lambda file: kind_of(file.path) is not None,
        without_unreadable=without_unreadable,
    )
