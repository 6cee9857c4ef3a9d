"""Spark as the engine of questions in SQL: embedded, on a cluster, or through Spark Connect."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rawlog.engines import sql as views
from rawlog.engines.duckdb import Answer, Engine
from rawlog.engines.spark.session import check_endpoint, is_connect, scratch, translated
from rawlog.engines.spark.shipping import ship
from rawlog.engines.sql import ALL, Bounds, Files, LakeTable, View, functions
from rawlog.engines.sql.functions import LIBRARY, Function
from rawlog.io.storage import is_remote
from rawlog.model.errors import OptionError, RawlogError
from rawlog.model.table import RECORDS, Column, Table
from rawlog.reading.parts import Part
from rawlog.reading.select import Selection
from rawlog.values.transform import Decode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from rawlog.lakes.payload import Payloads


# ----------------------------------------------------------------------------------------------------------------------
# The functions of `rawlog.engines.sql.functions` in a Spark session, as Arrow UDFs: whole columns to workers and back.


def register_functions(spark: SparkSession, names: Collection[str] | None = None) -> None:
    """Teach a session, classic or Connect, these functions of SQL, or all that there are."""
    for function in LIBRARY:
        if names is None or function.name in names:
            spark.udf.register(function.name, arrow_udf(function))


def arrow_udf(function: Function) -> Any:
    """A function of ours as one of Spark's, for use on columns."""
    from pyspark.sql.pandas import functions

    make: Any = functions.arrow_udf  # its types know only some of its forms

    def call(*columns: pa.Array) -> pa.Array:
        return function.call(*columns)

    call.__doc__, call.__name__ = function.call.__doc__, function.name
    return make(call, returnType=function.gives)


# ----------------------------------------------------------------------------------------------------------------------
# Small tables handed to an embedded Spark as Parquet, decoded here: while the JVM starts, and once for many questions.
# Reading them through the data source would start three kinds of Python workers first, for more time than the decoding takes. Large
# tables, and sessions elsewhere, go through the data source.


#: Bytes of input up to which a table is small, and of output past which it was not.
SMALL, LARGEST = 128 << 20, 512 << 20
ROW_GROUP = 1 << 17
#: Tables, or rows of them within some bounds, that are kept.
MOST = 32


def _ends_early(bounds: Bounds, parts: Sequence[Part]) -> bool:
    """Whether a LIMIT is reached soon, however large the files are: because each row that is read is wanted."""
    others = (bounds.from_offset, bounds.to_offset, bounds.since, bounds.until, bounds.keys)
    chosen = (bounds.topics, bounds.partitions)
    placed = all(part.file.place.topic is not None and part.file.place.partition is not None for part in parts)
    return bounds.limit is not None and not any(bound is not None for bound in (*others, *(() if placed else chosen)))


@dataclass(frozen=True, slots=True)
class StagedTable:
    """A table as it was at some time: the columns that were decoded, and the file they are in, None if it is too large."""

    state: int
    columns: tuple[str, ...]
    path: Path | None


class Stage:
    """A directory of staged tables; gone when it is closed, or else with the process."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="stage-", dir=scratch()))
        self._held: dict[tuple[int, Bounds], StagedTable] = {}
        self._lock = threading.Lock()
        self._count = 0

    def get(self, files: Files, columns: Sequence[str], bounds: Bounds = ALL) -> StagedTable:
        """The table with these columns, from before if its files are what they were. Only rows within bounds need to be in it.

        DataError at damage, as the files say.
        """
        with self._lock:
            state = files.directory.state
            for key in ((id(files), ALL), (id(files), bounds)):
                held = self._held.get(key)
                is_whole = held is not None and held.path is not None and set(columns) <= set(held.columns)
                if held is not None and held.state == state and (is_whole or (key[1] == bounds and held.path is None)):
                    return held
            held = self._held.get((id(files), bounds))
            if held is not None and held.state == state:
                columns = [name for name in files.table.names if name in {*columns, *held.columns}]
            if held is not None and held.path is not None:
                held.path.unlink(missing_ok=True)
            staged = StagedTable(state, tuple(columns), self._write(files, columns, bounds))
            self._held[id(files), bounds] = staged
            if len(self._held) > MOST:
                oldest = self._held.pop(next(key for key in self._held if key[1] != ALL))
                if oldest.path is not None:
                    oldest.path.unlink(missing_ok=True)
            return staged

    def _write(self, files: Files, columns: Sequence[str], bounds: Bounds) -> Path | None:
        parts = files.parts(bounds)
        if not _ends_early(bounds, parts) and sum(part.size for part in parts) > SMALL:
            return None
        self._count += 1
        path = self.folder / f"{self._count}.parquet"
        try:
            if self._fill(path, files, columns, bounds):
                return path
        except OSError as error:
            if isinstance(error, RawlogError):
                raise
            # No room for it here: Spark's tasks read it by themselves.
        path.unlink(missing_ok=True)
        return None

    def _fill(self, path: Path, files: Files, columns: Sequence[str], bounds: Bounds) -> bool:
        """Write a table's columns; False if that is more than a stage is for."""
        import pyarrow as pa
        from pyarrow import parquet

        schema = files.table.subset(columns).schema
        sink: Any
        with pa.OSFile(str(path), "wb") as sink, parquet.ParquetWriter(sink, schema, compression="none") as writer:
            for batch in files.batches(columns, bounds):
                writer.write_batch(batch, row_group_size=ROW_GROUP)
                if sink.tell() > LARGEST:
                    return False
        return True

    def close(self) -> None:
        """Remove all of it."""
        shutil.rmtree(self.folder, ignore_errors=True)


#: Bytes a task. An answer comes to the driver a task's rows at a time, which may be ten times as many bytes once decompressed.
SPLIT = "32m"


class SparkEngine(Engine):
    """Questions to a Spark session. It may still be starting: `session` is called when it is needed."""

    dialect = "spark"

    def __init__(self, session: Callable[[], SparkSession], sources: Sequence[View], *, embedded: bool) -> None:
        """`embedded` says that the session runs on this machine alone, and reads its files."""
        super().__init__(sources)
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
        words = views.column_words(sql)
        rewritten, needed = self.read(sql)
        bounds = self.bounds(rewritten, needed)
        for name, view in needed.items():
            if isinstance(view.rows, Files):
                self._stage.get(view.rows, views.needed_columns(view.table, words), bounds[name])

    def ask(self, sql: str) -> Answer:
        """The answer, not yet computed. OptionError if Spark does not understand the question."""
        frame, complaints = self._ask_frame(sql)
        schema = _arrow_schema(frame)
        return Answer(schema, _table_of(frame), lambda: self._stream(frame, schema, complaints))

    def frame(self, sql: str) -> DataFrame:
        """The answer as a DataFrame of the session. OptionError if Spark does not understand the question."""
        return self._ask_frame(sql)[0]

    def _ask_frame(self, sql: str) -> tuple[DataFrame, translated]:
        rewritten, needed = self.read(sql)
        words = views.column_words(sql)
        complaints = self._complaints(needed)
        for name, view in self.hollow(sql).items():
            self._create(name, self.spark.createDataFrame([], view.table.ddl))
        try:
            with complaints:
                return self._analyse(rewritten, needed, words), complaints
        except OptionError as error:
            if words is None or not any(
                repr(name) in str(error) for view in needed.values() for name in view.table.names
            ):
                raise
            with complaints:  # a column that is there was not read: the text did not tell that it is wanted
                return self._analyse(rewritten, needed, None), complaints

    def _analyse(self, rewritten: str, needed: dict[str, View], words: set[str] | None) -> DataFrame:
        self._register_functions(views.words_of(rewritten))
        zone = str(self.spark.conf.get("spark.sql.session.timeZone")).upper()
        bounds = self.bounds(rewritten, needed, utc=zone in ("UTC", "ETC/UTC", "Z", "+00:00"))
        for name, view in needed.items():
            self._create(name, self._load(view, views.needed_columns(view.table, words), bounds[name]))
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
            for transform in files.directory.reading.transforms:
                reader = reader.options(**transform.options) if isinstance(transform, Decode) else reader
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
            from rawlog.engines.spark import source

            source.register(self.spark)
            self._registered.add("rawlog")

    def _register_functions(self, words: set[str]) -> None:

        missing = (words & set(functions.NAMES)) - self._registered
        if missing:
            register_functions(self.spark, missing)
            self._registered |= missing


def _options(bounds: Bounds) -> dict[str, str]:
    """The options of the data source that read only what is within bounds."""
    selection = bounds.selection(Selection())
    options = {
        "subscribePattern": selection.topic_pattern,
        "partition": ",".join(map(str, selection.partitions)) or None,
        "startingOffsets": None
        if selection.from_offset is None or selection.from_offset < 0
        else str(selection.from_offset),
        "endingOffsets": None if selection.to_offset is None or selection.to_offset < 0 else str(selection.to_offset),
        # In milliseconds, of which the range has those that it begins and ends in.
        "startingTimestamp": None if selection.since is None or selection.since < 0 else str(selection.since // 1000),
        "endingTimestamp": None if selection.until is None or selection.until < 0 else str(-(-selection.until // 1000)),
        "where": selection.where,
    }
    return {name: value for name, value in options.items() if value is not None}


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
        from rawlog.lakes.parquet import dataset

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
