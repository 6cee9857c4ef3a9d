"""The data source `rawlog`: every table of every format, for batch and streaming reads; and the sink, for a DataFrame of `records`.

Column pruning is by `.schema(…)` or the option `columns`: Spark 4.3 prunes nothing by itself, and its filter pushdown
gives wrong rows when two branches share a source, so there is none here.

The sink writes the files of a message system in two phases. Every task writes below a stage next to the target; the driver then joins what
the winning attempts wrote, or removes all of it. Formats that are written in splits (Kafka's partitions) are encoded in the tasks; of
others the tasks stage their rows and the driver encodes them.

Each batch of a stream is a target of its own, `PATH/batch-000000000012`, which gets its name in one step. A batch that is run again after a
crash finds its name taken: it was written. `PATH/query.json` names the query, so that one with another checkpoint, whose batches have other
rows, is refused.
"""

from __future__ import annotations

import difflib
import fnmatch
import gc
import json
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
    WriterCommitMessage,
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
from rawlog.engines.spark.options import LATEST, MODES, Offsets, Request, absolute
from rawlog.io.output import Output, make_directory, remove_stage, writing
from rawlog.io.storage import Source, exists, is_remote
from rawlog.lakes.targets import (
    PLAIN,
    FormatOutlet,
    LossError,
    WrittenSplit,
    as_records,
    check_columns,
    make_stage_directory,
    outlet,
    total_losses,
)
from rawlog.model.errors import AccessError, DataError, OptionError, unknown
from rawlog.model.format import File
from rawlog.model.report import SeriousNote
from rawlog.model.store import Store
from rawlog.model.table import JSON, RECORDS, arrow_type, field_column
from rawlog.reading import parts, rows
from rawlog.reading.follow import Follower, Line, Mark, are_marked, from_position, to_position
from rawlog.reading.follow import Position as Offset
from rawlog.reading.parts import Part, choose_replicas, cut
from rawlog.reading.rows import Rows
from rawlog.reading.select import Selection
from rawlog.reading.tree import Tree, open_tree

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


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
        """For `df.write`: rows of `records` into the files of a system, named by the option `to`; see `SinkWriter`.

        OptionError for an option that is not one, EncodeError for columns that `records` does not have.
        """
        return writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """For `df.writeStream`: each batch as files of a system, below a directory; see `StreamSinkWriter`."""
        return stream_writer(self.options, schema)


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


# The sink ------------------------------------------------------------------------------------------------------------------------

OWN = ("to", "path", "acceptLoss")
QUERY = "query.json"
SPILL = "rows.arrow"


@dataclass
class Message(WriterCommitMessage):
    """What one task wrote, with its number among the tasks."""

    number: int
    split: WrittenSplit


def writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> SinkWriter:
    """The writer for a DataFrame of this schema. OptionError for unknown options, EncodeError for columns that `records` does not have."""
    target = _target(options, schema, overwrite)
    target.check()
    return SinkWriter(target)


def stream_writer(options: Mapping[str, str], schema: StructType) -> StreamSinkWriter:
    """The same for a stream. OptionError also if there is no checkpoint location: it identifies the query."""
    rest = dict(options)
    named = [name for name in rest if name.lower() == "checkpointlocation"]
    if not named:
        raise OptionError('no checkpoint: .option("checkpointLocation", …) is needed, it identifies the query')
    location = absolute(rest.pop(named[0]))
    return StreamSinkWriter(_target(rest, schema, False), location)


def _target(options: Mapping[str, str], schema: StructType, overwrite: bool) -> FormatOutlet:
    rest = dict(options)
    named = {name.lower(): rest.pop(name) for name in list(rest) if name.lower() in {option.lower() for option in OWN}}
    if "to" not in named:
        raise OptionError('no target: .option("to", "kafka") says what to write')
    if "path" not in named:
        raise OptionError("no path: save(path) says where to write")
    if named["to"] in PLAIN:
        raise OptionError(f'to {named["to"]}: Spark writes that itself, df.write.format("{named["to"]}")')
    accepted = [name.strip() for name in named.get("acceptloss", "").split(",") if name.strip()]
    for name in rest:
        if difflib.get_close_matches(name.lower(), [option.lower() for option in OWN], cutoff=0.75):
            raise unknown("option", name, OWN)
    target = outlet(named["to"], absolute(named["path"]), options=rest, accepted=accepted, overwrite=overwrite)
    assert isinstance(target, FormatOutlet)
    if is_remote(target.path):
        raise OptionError(f"{target.path}: the sink writes to a path that driver and tasks share; convert takes a URL")
    check_columns(pa.schema([(name, pa.null()) for name in schema.names]))
    if not {"key", "value"} & set(schema.names):
        raise OptionError(f"columns {', '.join(schema.names)}: key or value expected, as in {', '.join(RECORDS.names)}")
    return target


class SinkWriter(DataSourceArrowWriter):
    """Writes a DataFrame to an outlet."""

    def __init__(self, target: FormatOutlet) -> None:
        self.target = target
        self.stage = Output(target.path).hand_over()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        """The rows of one task."""
        return _write_task(self.target, self.stage, iterator)

    def commit(self, messages: list[Message | None]) -> None:  # type: ignore[override]
        """Join what the winning attempts wrote. OptionError, with nothing written, if a loss was not accepted."""
        try:
            _join(self.target, messages, f"{self.stage}/all")
        finally:
            remove_stage(self.stage)

    def abort(self, messages: list[Message | None]) -> None:  # type: ignore[override]
        """Remove what was written."""
        remove_stage(self.stage)


class StreamSinkWriter(DataSourceStreamArrowWriter):
    """Writes each batch of a stream once, as a target of its own below a directory."""

    def __init__(self, target: FormatOutlet, checkpoint: str) -> None:
        self.target, self.checkpoint = target, checkpoint
        self.stage = Output(target.path).hand_over()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        """The rows of one task of a batch."""
        return _write_task(self.target, self.stage, iterator)

    def commit(self, messages: list[Message | None], batchId: int) -> None:  # type: ignore[override]  # noqa: N803
        """Join what the tasks wrote, unless the batch was written before. AccessError if the directory belongs to another query."""
        self._claim()
        ending = "" if self.target.is_directory else ".log"
        path = f"{self.target.path}/batch-{batchId:012d}{ending}"
        try:
            if not exists(path) and any(message is not None and message.split.rows for message in messages):
                batch_target = outlet(
                    self.target.format, path, options=self.target.options, accepted=self.target.accepted
                )
                assert isinstance(batch_target, FormatOutlet)
                _join(batch_target, messages, f"{self.stage}/all-{batchId}")
        finally:
            self.abort(messages, batchId)

    def abort(self, messages: list[Message | None], batchId: int) -> None:  # type: ignore[override]  # noqa: N803
        """Remove what the tasks of a batch wrote. The stage itself is for the next batch; the next query removes it."""
        for folder in (
            f"{self.stage}/all-{batchId}",
            *(message.split.folder for message in messages if message is not None),
        ):
            remove_stage(folder)

    def _claim(self) -> None:
        """Write the id of the query into the directory; AccessError if there is another one."""
        with Source(f"{self.checkpoint}/metadata") as source:
            query = json.loads(source.read(0, source.size))["id"]
        make_directory(self.target.path)
        path = f"{self.target.path}/{QUERY}"
        if not exists(path):
            with writing(path) as file:
                file.write(json.dumps({"id": query}).encode())
        with Source(path) as source:
            owner = json.loads(source.read(0, source.size))["id"]
        if owner != query:
            raise AccessError(
                f"{self.target.path}: has batches of another query, or of this one with another checkpoint; choose another path"
            )


def _write_task(target: FormatOutlet, stage: str, iterator: Iterator[pa.RecordBatch]) -> Message:
    """What one task writes, in a directory of its own."""
    from pyspark import TaskContext

    context = TaskContext.get()
    number, attempt = (context.partitionId(), context.taskAttemptId()) if context is not None else (0, 0)
    folder = f"{stage}/{number:05d}-{attempt}"
    rows = (as_records(batch) for batch in iterator)
    return Message(number, target.write(rows, folder, "rows") if target.divides else spill(rows, folder))


def _join(target: FormatOutlet, messages: Iterable[Message | None], folder: str) -> None:
    """Make what the winning attempts wrote appear. OptionError, with nothing written, if a loss was not accepted."""
    written = sorted((message for message in messages if message is not None), key=lambda message: message.number)
    splits = [message.split for message in written]
    if not target.divides:
        splits = [target.write(spilled(splits), folder, "rows")]
    lost = total_losses(split.lost for split in splits)
    refused = [loss for name, loss in lost.items() if name not in target.accepted]
    if refused:
        error = LossError(target.format, refused, sum(split.rows for split in splits), target.accepted)
        raise OptionError(error.message('.option("acceptLoss", …) with '))
    target.join(splits)


def spill(batches: Iterable[pa.RecordBatch], folder: str) -> WrittenSplit:
    """Lay rows aside. AccessError if they cannot be written."""
    make_stage_directory(folder)
    path, rows = os.path.join(folder, SPILL), 0
    try:
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, RECORDS.schema, options=options) as out:
            for batch in batches:
                out.write_batch(batch)
                rows += batch.num_rows
    except OSError as error:
        raise AccessError(f"{path}: {error.strerror or error}") from None
    return WrittenSplit(folder, rows, path)


def spilled(splits: Iterable[WrittenSplit]) -> Iterator[Any]:
    """The rows that tasks laid aside, in the order of the tasks."""
    for split in splits:
        with pa.OSFile(split.content, "rb") as file, pa.ipc.open_stream(file) as stream:
            yield from stream
