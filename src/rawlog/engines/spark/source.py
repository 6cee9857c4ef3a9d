"""The data source `rawlog`: every table of every format, for batch and streaming reads.

Column pruning is by `.schema(…)` or the option `columns`: Spark 4.3 prunes nothing by itself, and its filter pushdown
gives wrong rows when two branches share a source, so there is none here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
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
from rawlog.engines.spark import daemon, options, splits
from rawlog.engines.spark.options import LATEST, MODES, Offsets, Request
from rawlog.engines.spark.splits import Subtree
from rawlog.model.errors import AccessError, OptionError, unknown
from rawlog.model.format import File
from rawlog.reading import parts
from rawlog.reading.follow import Follower, Line, Mark, are_marked, from_position, to_position
from rawlog.reading.follow import Position as Offset
from rawlog.reading.parts import Part, choose, cut
from rawlog.reading.parts import choose as choose_replicas
from rawlog.reading.rows import Rows
from rawlog.reading.select import Selection
from rawlog.reading.tree import Tree, open_tree

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


log = logging.getLogger("rawlog.spark")
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
        return BatchReader(*splits.spark_schema(options.parse(self.options), schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For `spark.readStream`. OptionError for an option or a column that is not one."""
        return StreamReader(*splits.spark_schema(options.parse(self.options), schema))

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
        tree = choose(open_tree(self.request.paths), self.request.selection, log.info, table=self.request.whole_table)
        return plan(tree, self.request)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return splits.read(partition, self.request, self.schema)


def plan(tree: Tree, request: Request) -> list[InputPartition]:
    """The tasks that together read a table of a tree."""
    table = Rows(tree, request.table, request.selection).table
    chosen = splits.choose(tree, request)
    check_partitions(tree, request.starting, request.ending)
    able = registry.formats_with(table)
    size = splits.split_size(request, sum(file.size for file in chosen if file.format in able))
    by_bounds: dict[tuple[int | None, int | None], list[File]] = {}
    for file in chosen:
        by_bounds.setdefault((request.starting.of(file), request.ending.of(file)), []).append(file)
    planned: list[tuple[Part, Selection]] = []
    for files in by_bounds.values():
        selection = request.selection_of(files[0])
        chosen_files = splits.choose(tree, request, files)
        planned += [(part, selection) for part in parts.plan(chosen_files, table, selection, split_size=size)]
    return splits.pack(planned, size)


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
        lines, before = self.follower.lines(splits.choose(self._tree(), self.request)), from_position(start)
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
        size = splits.split_size(self.request, sum(part.size for _, part in line_parts))
        parts = [
            (piece, self.request.selection_of(piece.file))
            for line, part in line_parts
            for piece in cut(part, line.group, size)
        ]
        return splits.pack(parts, size)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return splits.read(partition, self.request, self.schema)

    def _read(self, marks: Mapping[str, Mark]) -> Subtree:
        """The files that are read: of replicas the one that was read before, else the best."""
        request, tree = self.request, self.frozen or self._tree()
        read = choose_replicas(tree, request.selection, table=request.whole_table, prefer=are_marked(marks))
        return splits.choose(read, request)

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
