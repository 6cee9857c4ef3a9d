"""The data source `rawlog`: every table of every format, for batch and streaming reads.

Column pruning is by `.schema(…)` or the option `columns`: Spark 4.3 prunes nothing by itself, and its filter pushdown
gives wrong rows when two branches share a source, so there is none here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from rawlog import registry, rows
from rawlog.errors import OptionError, unknown
from rawlog.format import File
from rawlog.rows import Part, Rows
from rawlog.select import Selection
from rawlog.spark import options, splits
from rawlog.spark.options import LATEST, Offsets, Request
from rawlog.tree import Tree, open_tree

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class RawlogSource(DataSource):
    """`spark.read.format("rawlog").option("table", "records").load(path)`; options as in `rawlog.spark.options`."""

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

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """For `spark.readStream`. OptionError for an option or a column that is not one."""
        from rawlog.spark.stream import StreamReader

        return StreamReader(*splits.spark_schema(options.parse(self.options), schema))


class BatchReader(DataSourceReader):
    """Reads what is there when the plan is made."""

    def __init__(self, request: Request, schema: pa.Schema) -> None:
        for bound in (request.starting.common, *request.starting.each.values()):
            if bound == LATEST:
                raise OptionError("option startingOffsets: latest leaves nothing to read in a batch query")
        self.request, self.schema = request, schema

    def partitions(self) -> list[InputPartition]:
        """The tasks, planned on the driver from names, sizes and indexes."""
        return plan(open_tree(self.request.paths), self.request)

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
    parts: list[tuple[Part, Selection]] = []
    for files in by_bounds.values():
        selection = request.selection_of(files[0])
        some = splits.choose(tree, request, files)
        parts += [(part, selection) for part in rows.plan(some, table, selection, split_size=size)]
    return splits.pack(parts, size)


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
