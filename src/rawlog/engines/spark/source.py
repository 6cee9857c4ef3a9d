"""The data source `rawlog`: every table of every format, for batch and streaming reads.

Column pruning is by `.schema(…)` or the option `columns`: Spark 4.3 prunes nothing by itself, and its filter pushdown
gives wrong rows when two branches share a source, so there is none here.
"""

from __future__ import annotations

import fnmatch
import gc
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from rawlog import registry
from rawlog.engines.spark import daemon, options
from rawlog.engines.spark.options import LATEST, MODES, Offsets, Request
from rawlog.io.storage import exists, is_remote
from rawlog.model.errors import AccessError, DataError, OptionError, unknown
from rawlog.model.format import File
from rawlog.model.report import SeriousNote
from rawlog.model.store import Store
from rawlog.model.table import JSON, arrow_type
from rawlog.reading import parts, rows
from rawlog.reading.field_paths import field_column
from rawlog.reading.follow import Follower, Line, Mark, are_marked, from_position, to_position
from rawlog.reading.follow import Position as Offset
from rawlog.reading.parts import Part, choose_replicas, cut
from rawlog.reading.rows import Rows
from rawlog.reading.select import Selection
from rawlog.reading.tree import Tree, open_tree

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# ----------------------------------------------------------------------------------------------------------------------
# Splits: what one Spark task reads, how they are packed, and how a task turns them into the batches Spark expects.

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


def choose_subtree(tree: Tree, request: Request, files: Iterable[File] | None = None) -> Subtree:
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


def read_splits(splits: InputPartition, request: Request, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
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


daemon.hush()


class RawlogSource(DataSource):
    """`spark.read.format("rawlog").option("table", "records").load(path)`, and the same with `readStream`.

    Paths are files, directories, globs or URLs, as everywhere in rawlog. Options, none of them needed:

    - `table` (records), `columns` (`offset,key`; or give a `.schema(…)`), `includeHeaders` (true)
    - `topic` (globs), `subscribe` (names), `subscribePattern` (a regular expression); `partition` (`0,3`); `pathGlobFilter`
    - `startingOffsets`, `endingOffsets` (exclusive): `earliest`, `latest`, a number, or `{"orders": {"0": 23}}`, where -2 is
      earliest and -1 latest; a partition that is not named is read whole
    - `startingTimestamp`, `endingTimestamp` (exclusive): ISO 8601, epoch milliseconds, or an age such as `-2h`
    - `where`: an expression over the columns, as `rawlog cat --where` takes it
    - `isolation`: `read_uncommitted` or `read_committed`: without aborted transactions, and up to the first that is undecided
    - `replicas`: of several replicas of a partition `best` (default) reads one, `all` reads every one, `refuse` is an error
    - `decode`: `value=auto,key=avro`: keys and values decoded, as JSON text, or as nested columns where all rows are of one topic with an
      Avro schema; `schemas`: a directory, a file or a registry's URL instead of the topic `_schemas` among the files
    - `mode`: `FAILFAST` ends at the first damage; `PERMISSIVE` reads every sound row, also after a damaged header of a file, and
      warns in the executor's log; `DROPMALFORMED` does too, and drops files that cannot be read at all
    - `splitSize` (bytes a task; 128m, less for little data)
    - streams: `maxBytesPerTrigger`, `maxFilesPerTrigger`, `maxRecordsPerTrigger`; `failOnDataLoss` (true: a file that is gone
      before it was read to its end stops the query)
    """

    @classmethod
    def name(cls) -> str:
        """What `format(…)` takes."""
        return "rawlog"

    def schema(self) -> str:
        """The table's columns, or those that the options ask for, as DDL."""
        return options.parse(self.options).wanted.ddl

    def reader(self, schema: StructType) -> DataSourceReader:
        """For `spark.read`. OptionError for an option or a column that is not one."""
        return BatchReader(*spark_schema(options.parse(self.options), schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For `spark.readStream`. OptionError for an option or a column that is not one."""
        return StreamReader(*spark_schema(options.parse(self.options), schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """For `df.write`: rows of `records` into the files of a system, named by the option `to`; see `rawlog.engines.spark.sink`.

        OptionError for an option that is not one, EncodeError for columns that `records` does not have.
        """
        from rawlog.engines.spark import sink

        return sink.writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """For `df.writeStream`: each batch as files of a system, below a directory; see `rawlog.engines.spark.sink`."""
        from rawlog.engines.spark import sink

        return sink.stream_writer(self.options, schema)


class BatchReader(DataSourceReader):
    """Reads what is there when the plan is made."""

    def __init__(self, request: Request, schema: pa.Schema) -> None:
        for bound in (request.starting.common, *request.starting.each.values()):
            if bound == LATEST:
                raise OptionError("option startingOffsets: latest leaves nothing to read in a batch query")
        self.request, self.schema = options.bounded(request), schema

    def partitions(self) -> list[InputPartition]:
        """The tasks, planned on the driver from names, sizes and indexes."""
        tree = choose_replicas(
            open_tree(self.request.paths), self.request.selection, log.info, table=self.request.whole_table
        )
        return plan(tree, self.request)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return read_splits(partition, self.request, self.schema)


def plan(tree: Tree, request: Request) -> list[InputPartition]:
    """The tasks that together read a table of a tree."""
    table = Rows(tree, request.table, request.selection).table
    chosen = choose_subtree(tree, request)
    check_partitions(tree, request.starting, request.ending)
    able = registry.formats_with(table)
    size = split_size(request, sum(file.size for file in chosen if file.format in able))
    by_bounds: dict[tuple[int | None, int | None], list[File]] = {}
    for file in chosen:
        by_bounds.setdefault((request.starting.of(file), request.ending.of(file)), []).append(file)
    planned: list[tuple[Part, Selection]] = []
    for files in by_bounds.values():
        selection = request.selection_of(files[0])
        chosen_files = choose_subtree(tree, request, files)
        planned += [(part, selection) for part in parts.plan(chosen_files, table, selection, split_size=size)]
    return pack(planned, size)


def check_partitions(tree: Tree, *bounds: Offsets) -> None:
    """OptionError if an offset is given for a partition that is not there."""
    names = {f"{file.place.topic}-{file.place.partition}" for file in tree if file.place.partition is not None}
    for bound in bounds:
        for topic, partition in bound.each:
            if f"{topic}-{partition}" not in names:
                raise unknown("partition", f"{topic}-{partition}", names)


def register(spark: SparkSession) -> None:
    """Teach a session, classic or Connect, the format `rawlog`."""
    spark.dataSource.register(RawlogSource)


# ----------------------------------------------------------------------------------------------------------------------
# The streaming side of the data source: a directory of growing logs, each row exactly once, across restarts.
# A stream's offset is JSON, a Mark for each line of files (see `rawlog.reading.follow`):
#     {"kafka.log /data/orders-0": {"file": "00000000000000000042.log", "position": 1204, "frames": 7, "offset": 49}}
# It says by itself what a batch holds, so that a restart reads the same rows again, or none of them.


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what was added to the files of a tree since the last batch, and files that are new."""

    def __init__(self, request: Request, schema: pa.Schema) -> None:
        table = request.whole_table
        if table.offsets is None or registry.maker(table) is not None:
            raise OptionError(f"table {table.name} cannot be followed: its rows are not appended one after another")
        if request.ending or request.selection.until is not None:
            raise OptionError("options endingOffsets and endingTimestamp: a stream has no end; use a batch query")
        self.request, self.schema = request, schema
        self.follower = Follower(table, request.selection, MODES[request.mode], request.fail_on_data_loss)
        self.frozen: Tree | None = None
        #: The lines that had something to read when the last batch was planned, each with the end of that batch.
        self.left: list[tuple[Line, Mark]] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "left": []}  # tasks do not need it

    def initialOffset(self) -> Offset:
        """Where a stream without a checkpoint begins: nothing read, or all where the latest offset is asked for."""
        marks: dict[str, Mark] = {}
        for key, line in self.follower.lines(self._read({})).items():
            if self.request.starting.of(line.files[0]) == LATEST:
                marks[key], _ = self.follower.step(line, Mark.before(line.files[0]))
        return to_position(marks)

    def getDefaultReadLimit(self) -> ReadLimit:
        """What one batch may read, as the options say."""
        if self.request.max_bytes is not None:
            return ReadMaxBytes(self.request.max_bytes)
        if self.request.max_records is not None:
            return ReadMaxRows(self.request.max_records)
        return ReadAllAvailable() if self.request.max_files is None else ReadMaxFiles(self.request.max_files)

    def prepareForTriggerAvailableNow(self) -> None:
        """Look at the files now; what is added later is left to a later run."""
        self.frozen = self._tree()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """How far the next batch goes. DataError at damage, unless the mode passes it over; AccessError for lost data."""
        bounded = not isinstance(limit, ReadAllAvailable)
        size = self.request.max_bytes if bounded else None
        files = self.request.max_files if bounded else None
        records = self.request.max_records if bounded else None
        marks = from_position(start)
        self.left = []
        waiting: list[tuple[int, Line, Mark]] = []
        for key, line in self.follower.lines(self._read(marks)).items():
            mark = self.follower.locate(line, marks[key]) if key in marks else self._first(line)
            if (left := line.size_after(mark)) > 0:
                waiting.append((left, line, mark))
        if files is not None:  # those not written to for longest go first, so that none waits for ever
            waiting.sort(key=lambda item: item[1].files[item[1].index(item[2]) or 0].modified or 0.0)
        total = sum(left for left, _, _ in waiting)
        for left, line, mark in waiting:
            if files == 0:
                self.left.append((line, mark))
                continue
            share = None if size is None else max(1, size * left // total)
            record_limit = None if records is None else max(1, records * left // total)
            reached, touched = self.follower.step(line, mark, share, files, record_limit)
            files = None if files is None else files - touched
            self.left.append((line, reached))
            if touched or line.key in marks:
                marks[line.key] = reached
        return to_position(marks)

    def reportLatestOffset(self) -> Offset | None:
        """For `latestOffset` in the progress of a query: what is left after the batch that was planned last, by line and in all.

        Records are those that offsets tell, as in Kafka's logs.
        """
        lines: dict[str, dict[str, int]] = {}
        for line, mark in self.left:
            if (size := line.size_after(mark)) <= 0:
                continue
            lines[line.key] = {"bytes": size}
            if line.is_numbered and not line.format.by_position and mark.offset is not None:
                with suppress(AccessError):  # deleted meanwhile
                    lines[line.key]["records"] = max(0, (self.follower.end(line).offset or 0) - mark.offset)
        total = {name: sum(line_lag.get(name, 0) for line_lag in lines.values()) for name in ("bytes", "records")}
        return {"lag": total, "lines": lines}

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """The tasks of one batch. AccessError if files of it are gone."""
        # Which replicas were chosen is in `end`.
        lines, before = self.follower.lines(choose_subtree(self._tree(), self.request)), from_position(start)
        line_parts: list[tuple[Line, Part]] = []
        for key, stop in from_position(end).items():
            if before.get(key) == stop:
                continue
            if key not in lines:
                self.follower.lost(f"{key}: gone, with rows of a batch that was begun")
                continue
            line = lines[key]
            begin = before[key] if key in before else self._first(line)
            line_parts += [(line, part) for part in self.follower.parts(line, begin, stop)]
        size = split_size(self.request, sum(part.size for _, part in line_parts))
        parts = [
            (piece, self.request.selection_of(piece.file))
            for line, part in line_parts
            for piece in cut(part, line.group, size)
        ]
        return pack(parts, size)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return read_splits(partition, self.request, self.schema)

    def _read(self, marks: Mapping[str, Mark]) -> Subtree:
        """The files that are read: of replicas the one that was read before, else the best."""
        request, tree = self.request, self.frozen or self._tree()
        read = choose_replicas(tree, request.selection, table=request.whole_table, prefer=are_marked(marks))
        return choose_subtree(read, request)

    def _tree(self) -> Tree:
        try:
            return open_tree(self.request.paths)
        except AccessError:
            if not any(mark in path for path in self.request.paths for mark in "*?["):
                raise
            return Tree(self.request.paths, ())  # nothing matches the pattern yet

    def _first(self, line: Line) -> Mark:
        """Where an unread line begins: at its first file, or at the frame that holds the offset asked for."""
        start = self.request.starting.of(line.files[0])
        mark = None if start is None or start < 0 else self.follower.seek(line, start)
        return Mark.before(line.files[0]) if mark is None else mark
