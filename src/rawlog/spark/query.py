"""Spark as the engine of questions in SQL: embedded, on a cluster, or through Spark Connect."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rawlog.core.errors import OptionError
from rawlog.core.tables import RECORDS, Column, Table
from rawlog.io.storage import is_remote
from rawlog.reading.select import Selection
from rawlog.schemas.transform import Decode
from rawlog.spark.complaints import translated
from rawlog.spark.session import check_endpoint, is_connect
from rawlog.spark.shipping import ship
from rawlog.spark.staging import Stage
from rawlog.sql import functions, text
from rawlog.sql.bounds import Bounds
from rawlog.sql.engine import Answer, Engine
from rawlog.sql.views import Files, LakeTable, View

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from rawlog.jobs.lake.payload import Payloads

#: Bytes a task. An answer comes to the driver a task's rows at a time, which may be ten times as many bytes once decompressed.
SPLIT = "32m"


class SparkEngine(Engine):
    """Questions to a Spark session. It may still be starting: `session` is called when it is needed."""

    dialect = "spark"

    def __init__(self, session: Callable[[], SparkSession], given: Sequence[View], *, embedded: bool) -> None:
        """`embedded` says that the session runs on this machine alone, and reads its files."""
        super().__init__(given)
        self._session = session
        self._spark: SparkSession | None = None
        self._stage = Stage() if embedded else None
        self._registered: set[str] = set()
        self._created: set[str] = set()

    @property
    def spark(self) -> SparkSession:
        """The session, started by now. AccessError if it does not start."""
        if self._spark is None:
            self._spark = self._session()
            ship(self._spark)
        return self._spark

    def prepare(self, sql: str) -> None:
        """Decode what a statement will want and can be staged; Spark may be starting meanwhile. DataError at damage."""
        if self._stage is None:
            return
        words = text.column_words(sql)
        rewritten, needed = self.read(sql)
        bounds = self.bounds(rewritten, needed)
        for name, view in needed.items():
            if isinstance(view.rows, Files):
                self._stage.get(view.rows, text.needed_columns(view.table, words), bounds[name])

    def ask(self, sql: str) -> Answer:
        """The answer, not yet computed. OptionError if Spark does not understand the question."""
        frame, complaints = self._asked(sql)
        schema = _arrow_schema(frame)
        return Answer(schema, _table_of(frame), lambda: self._stream(frame, schema, complaints))

    def frame(self, sql: str) -> DataFrame:
        """The answer as a DataFrame of the session. OptionError if Spark does not understand the question."""
        return self._asked(sql)[0]

    def _asked(self, sql: str) -> tuple[DataFrame, translated]:
        rewritten, needed = self.read(sql)
        words = text.column_words(sql)
        complaints = self._complaints(needed)
        for name, view in self.hollow(sql).items():
            self._create(name, self.spark.createDataFrame([], view.table.ddl))
        try:
            with complaints:
                return self._analysed(rewritten, needed, words), complaints
        except OptionError as error:
            if words is None or not any(
                repr(name) in str(error) for view in needed.values() for name in view.table.names
            ):
                raise
            with complaints:  # a column that is there was not read: the text did not tell that it is wanted
                return self._analysed(rewritten, needed, None), complaints

    def _analysed(self, rewritten: str, needed: dict[str, View], words: set[str] | None) -> DataFrame:
        self._register_functions(text.words_of(rewritten))
        zone = str(self.spark.conf.get("spark.sql.session.timeZone")).upper()
        bounds = self.bounds(rewritten, needed, utc=zone in ("UTC", "ETC/UTC", "Z", "+00:00"))
        for name, view in needed.items():
            self._create(name, self._load(view, text.needed_columns(view.table, words), bounds[name]))
        return self.spark.sql(rewritten)

    def _stream(self, frame: DataFrame, schema: pa.Schema, complaints: translated) -> Iterator[pa.RecordBatch]:
        with complaints:
            yield from stream(frame, schema)

    def _create(self, name: str, frame: DataFrame) -> None:
        frame.createOrReplaceTempView(name)
        self._created.add(name)

    def cancel(self) -> None:
        """Cancel the jobs of this session."""
        if self._spark is None:
            return
        with suppress(Exception):  # it may just have ended
            if is_connect(self._spark):
                self._spark.interruptAll()
            else:
                self._spark.sparkContext.cancelAllJobs()

    def functions(self) -> list[str]:
        """Spark's functions and rawlog's."""
        names = [row[0].rpartition(".")[2] for row in self.spark.sql("SHOW FUNCTIONS").collect()]
        return sorted({*names, *functions.NAMES})

    def close(self) -> None:
        """Remove the views and what was staged; the session stays."""
        if self._spark is not None:
            for name in self._created:
                with suppress(Exception):  # the session may be gone
                    self._spark.catalog.dropTempView(name)
        if self._stage is not None:
            self._stage.close()

    def _complaints(self, needed: dict[str, View]) -> translated:
        return translated(
            tables=self.names,
            columns=lambda: {name for view in needed.values() for name in view.table.names},
            functions=self.functions,
        )

    # Where rows come from -------------------------------------------------------------------------

    def _load(self, view: View, columns: Sequence[str], bounds: Bounds) -> DataFrame:
        if isinstance(view.rows, LakeTable):
            return self._lake_table(view.rows, columns, bounds)
        files = view.rows
        if self._stage is not None:
            staged = self._stage.get(files, columns, bounds)
            if staged.path is not None:
                ddl = files.table.subset(staged.columns).ddl
                return self.spark.read.schema(ddl).parquet(staged.path.as_uri())
        self._register_source()
        check_endpoint(self.spark, files.directory.paths)
        mode = "FAILFAST" if files.directory.errors == "raise" else "DROPMALFORMED"
        reader = self.spark.read.format("rawlog").option("table", files.table.name).option("mode", mode)
        reader = reader.option("replicas", files.directory.reading.replicas).options(**_options(bounds))
        if files.stored.name == RECORDS.name:
            for one in files.directory.reading.transforms:
                reader = reader.options(**one.options) if isinstance(one, Decode) else reader
        return reader.option("columns", ",".join(columns)).option("splitSize", SPLIT).load(files.directory.paths)

    def _lake_table(self, rows: LakeTable, columns: Sequence[str], bounds: Bounds) -> DataFrame:
        # Spark 4.3 has no Iceberg runtime: the snapshot's Parquet files are read as they are.
        files, plain = rows.files(bounds), rows.plain(columns)
        if not files:
            return self.spark.createDataFrame([], rows.table.ddl)
        check_endpoint(self.spark, files)
        if plain is not None and not any(is_remote(file) for file in files):
            return self.spark.read.schema(plain.ddl).parquet(*files)
        # Nor has it jars for object stores. Tasks read those with pyarrow, and payloads that are stored in another table.
        payloads = rows.lake.payloads() if plain is None else None
        listed = self.spark.createDataFrame([(file,) for file in files], "file string").repartition(len(files))
        return listed.mapInArrow(_reading(rows.table, columns, payloads), rows.table.subset(columns).ddl)

    def _register_source(self) -> None:
        if "rawlog" not in self._registered:
            from rawlog.spark import source

            source.register(self.spark)
            self._registered.add("rawlog")

    def _register_functions(self, words: set[str]) -> None:
        from rawlog.spark.functions import register_functions

        missing = (words & set(functions.NAMES)) - self._registered
        if missing:
            register_functions(self.spark, missing)
            self._registered |= missing


def _options(bounds: Bounds) -> dict[str, str]:
    """The options of the data source that read only what is within bounds."""
    chosen = bounds.selection(Selection())
    made = {
        "subscribePattern": chosen.topic_pattern,
        "partition": ",".join(map(str, chosen.partitions)) or None,
        "startingOffsets": None if chosen.from_offset is None or chosen.from_offset < 0 else str(chosen.from_offset),
        "endingOffsets": None if chosen.to_offset is None or chosen.to_offset < 0 else str(chosen.to_offset),
        # In milliseconds, of which the range has those that it begins and ends in.
        "startingTimestamp": None if chosen.since is None or chosen.since < 0 else str(chosen.since // 1000),
        "endingTimestamp": None if chosen.until is None or chosen.until < 0 else str(-(-chosen.until // 1000)),
        "where": chosen.where,
    }
    return {name: value for name, value in made.items() if value is not None}


def stream(frame: DataFrame, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a DataFrame in order, a batch at a time: the driver holds a partition or two, never all of them."""
    import pyarrow as pa

    if is_connect(frame.sparkSession):  # it streams by itself
        connected: Any = frame
        client = connected.sparkSession.client
        for table in client.to_table_as_iterator(connected._plan.to_proto(client), {}):
            if isinstance(table, pa.Table):
                yield from table.cast(schema).to_batches()
        return
    from pyspark.errors.exceptions.captured import unwrap_spark_exception
    from pyspark.serializers import NoOpSerializer
    from pyspark.util import _local_iterator_from_socket

    jvm: Any = frame.sparkSession._jvm
    with unwrap_spark_exception():
        served = jvm.PythonRDD.toLocalIteratorAndServe(frame._jdf.toArrowBatchRdd(), True)
        for message in _local_iterator_from_socket(served, NoOpSerializer()):
            yield pa.ipc.read_record_batch(pa.py_buffer(message), schema)


def _reading(
    table: Table, columns: Sequence[str], payloads: Payloads | None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A task that reads Parquet files of a lake, wherever they are, with their payloads if they are elsewhere."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from rawlog.jobs.sheet import dataset

        for batch in batches:
            files = batch.column(0).to_pylist()
            if payloads is not None:
                yield from payloads.read(files, table, columns)
                continue
            for file in files:
                yield from dataset([file], table.subset(columns)).to_batches(batch_size=1 << 15)

    return read


def _arrow_schema(frame: DataFrame) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(frame.schema, timezone="UTC")


def _table_of(frame: DataFrame) -> Table:
    return Table("answer", *(Column(field.name, field.dataType.simpleString()) for field in frame.schema.fields))


__all__ = ["SparkEngine", "stream"]
