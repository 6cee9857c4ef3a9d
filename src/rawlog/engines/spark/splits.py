"""Splits: what one Spark task reads, how they are packed, and how a task turns them into the batches Spark expects."""

from __future__ import annotations

import fnmatch
import gc
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from rawlog import registry
from rawlog.engines.spark.options import Request
from rawlog.io.storage import exists, is_remote
from rawlog.model.errors import AccessError, DataError, OptionError
from rawlog.model.format import File
from rawlog.model.report import SeriousNote
from rawlog.model.store import Store
from rawlog.model.table import JSON, arrow_type
from rawlog.reading import rows
from rawlog.reading.field_paths import field_column
from rawlog.reading.parts import Part
from rawlog.reading.select import Selection
from rawlog.reading.tree import Tree

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

TASK_SIZE = 128 << 20
SMALLEST_TASK = 4 << 20
#: What opening a file costs, in bytes that could be read meanwhile: thousands of tiny files do not end in one task.
OPENING = 64 << 10
SMALLEST_BATCH, LARGEST_BATCH = 1 << 20, 16 << 20

log = logging.getLogger("rawlog.spark")


@dataclass
class Splits(InputPartition):
    """The work of one task: parts, each with the selection that holds for it."""

    parts: tuple[tuple[Part, Selection], ...] = ()


@dataclass(frozen=True, repr=False)
class Subtree(Tree):
    """Some files of a tree, which still know the others of their group."""

    _: KW_ONLY
    whole: Tree

    def group_of(self, file: File) -> Store:
        """The files that belong with one, chosen or not."""
        return self.whole.group_of(file)


def choose(tree: Tree, request: Request, files: Iterable[File] | None = None) -> Subtree:
    """The files of a tree that a request wants by their names."""
    names = tuple(
        file
        for file in (tree.files if files is None else files)
        if request.glob is None or fnmatch.fnmatchcase(_name(file.path), request.glob)
    )
    return Subtree(tree.roots, names, tree.unread, whole=tree)


def _name(path: str) -> str:
    path = path.partition("?")[0] if is_remote(path) else path
    return path.rpartition("/")[2]


def split_size(request: Request, total: int) -> int:
    """Bytes a task: as asked, or 128 MB, less where that would leave cores of this machine without work."""
    if request.split_size is not None:
        return request.split_size
    share = -(-total // max(2, os.cpu_count() or 2))
    return min(TASK_SIZE, max(SMALLEST_TASK, share))


def pack(parts: Sequence[tuple[Part, Selection]], size: int) -> list[InputPartition]:
    """Tasks of about `size` bytes, in order; at least two where there are two parts."""
    weights = [part.size + OPENING for part, _ in parts]
    target = max(1, min(size, -(-sum(weights) // 2)))
    tasks: list[InputPartition] = []
    held: list[tuple[Part, Selection]] = []
    weight = 0
    for pair, part_weight in zip(parts, weights, strict=True):
        if held and weight + part_weight > target + target // 4:
            tasks.append(Splits(tuple(held)))
            held, weight = [], 0
        held.append(pair)
        weight += part_weight
    return [*tasks, Splits(tuple(held))] if held else tasks


def spark_schema(request: Request, schema: StructType) -> tuple[Request, pa.Schema]:
    """The request for the columns of Spark's schema, and that schema as Arrow.

    OptionError if the user gave a schema with a column that the table does not have, or has with another type.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    table = request.selection.transformed(request.whole_table)
    if not schema.fields:
        raise OptionError(f"the schema names no column of {table.name}; these are: {', '.join(table.names)}")
    arrow = to_arrow_schema(schema, timezone="UTC")
    for field, spark_field in zip(arrow, schema.fields, strict=True):
        column = field_column(table, field.name)
        if field.type != arrow_type("string" if column.type == JSON else column.type):
            shown = spark_field.dataType.simpleString()
            raise OptionError(
                f"column {column.name} of {table.name} is {column.type}, not {shown} as in the given schema"
            )
    return replace(request, selection=request.selection.replace(columns=tuple(arrow.names))), arrow


def read(splits: InputPartition, request: Request, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of one task as Spark wants them. DataError at damage if the mode says so."""
    if not isinstance(splits, Splits):
        return  # what Spark gives for "no partitions"
    gc.freeze()  # the collection Spark asks for after each task then costs nothing
    yield from resize(_fit(batch, schema) for batch in _rows(splits, request))


def _rows(splits: Splits, request: Request) -> Iterator[pa.RecordBatch]:
    table = registry.table_named(request.table)
    whole_selection = request.selection.begun()
    for part, selection in splits.parts:
        chosen = selection.replace(columns=whole_selection.columns, transforms=whole_selection.transforms)
        try:
            yield from rows.read(part, table, chosen, _note)
        except AccessError as error:
            # A broker deletes by its own clock, perhaps between the plan of a batch and its reading.
            if request.fail_on_data_loss or exists(part.file.path):
                raise
            log.warning("%s: deleted before it was read", error)
        except DataError as error:
            # What is still raised while damage is skipped concerns the file as a whole: it is too large, or of a version that is unknown.
            if request.mode != "DROPMALFORMED":
                raise
            log.warning("%s; the file is dropped", str(error).splitlines()[0])
    for note in whole_selection.judge([whole_selection.tallies]) if whole_selection.transforms else ():
        log.warning("%s", note)


def _note(text: str) -> None:
    """Damage and rows that are not at their place are a warning in the executor's log; an unfinished last frame is not."""
    log.log(logging.WARNING if isinstance(text, SeriousNote) else logging.DEBUG, "%s", text)


def _fit(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch under Spark's schema, which differs at most in what may be null."""
    if batch.schema.equals(schema):
        return batch
    columns = [array.storage if isinstance(array, pa.ExtensionArray) else array for array in batch.columns]
    for array, field in zip(batch.columns, schema, strict=True):
        if not field.nullable and array.null_count:
            raise OptionError(f"column {field.name} is NOT NULL in the given schema, but there are rows without it")
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def resize(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of 1 to 16 MB: smaller ones cost Spark per batch, larger ones per byte."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        held.append(batch)
        size += batch.nbytes
        if size >= SMALLEST_BATCH:
            yield from _slice(held, size)
            held, size = [], 0
    if held:
        yield from _slice(held, size)


def _slice(held: list[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    if len(held) > 1:
        held = pa.Table.from_batches(held).combine_chunks().to_batches()
    for batch in held:
        pieces = -(-size // LARGEST_BATCH)
        step = -(-batch.num_rows // pieces)
        for start in range(0, batch.num_rows, step):
            yield batch.slice(start, step)
