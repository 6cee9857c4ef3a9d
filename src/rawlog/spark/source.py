"""The data source `rawlog`: every table of every format, for batch and streaming reads.

Column pruning is by `.schema(…)` or the option `columns`: Spark 4.3 prunes nothing by itself, and its filter pushdown
gives wrong rows when two branches share a source, so there is none here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from rawlog import registry
from rawlog.core.errors import OptionError, unknown
from rawlog.core.format import File
from rawlog.reading import parts
from rawlog.reading.parts import Part
from rawlog.reading.replicas import choose
from rawlog.reading.rows import Rows
from rawlog.reading.select import Selection
from rawlog.reading.tree import Tree, open_tree
from rawlog.spark import daemon, options, splits
from rawlog.spark.options import LATEST, Offsets, Request

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
        from rawlog.spark.stream import StreamReader

        return StreamReader(*splits.spark_schema(options.parse(self.options), schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """For `df.write`: rows of `records` into the files of a system, named by the option `to`; see `rawlog.spark.sink`.

        OptionError for an option that is not one, EncodeError for columns that `records` does not have.
        """
        from rawlog.spark import sink

        return sink.writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """For `df.writeStream`: each batch as files of a system, below a directory; see `rawlog.spark.sink`."""
        from rawlog.spark import sink

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
    found: list[tuple[Part, Selection]] = []
    for files in by_bounds.values():
        selection = request.selection_of(files[0])
        some = splits.choose(tree, request, files)
        found += [(part, selection) for part in parts.plan(some, table, selection, split_size=size)]
    return splits.pack(found, size)


def check_partitions(tree: Tree, *bounds: Offsets) -> None:
    """OptionError if an offset is given for a partition that is not there."""
    known = {f"{file.place.topic}-{file.place.partition}" for file in tree if file.place.partition is not None}
    for bound in bounds:
        for topic, partition in bound.each:
            if f"{topic}-{partition}" not in known:
                raise unknown("partition", f"{topic}-{partition}", known)


def register(spark: SparkSession) -> None:
    """Teach a session, classic or Connect, the format `rawlog`."""
    spark.dataSource.register(RawlogSource)
