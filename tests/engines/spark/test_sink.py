"""The sink `rawlog`: DataFrames become the files of a system, all of them or none.

Most of it needs no JVM: writers are called as Spark calls them, everything pickled on the way.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import rawlog
from rawlog.engines.spark import source
from rawlog.model.errors import AccessError, EncodeError, OptionError
from rawlog.model.table import RECORDS
from tests.data.golden import golden_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = 1_700_000_000_000
KAFKA = golden_path("kafka", "broker-4.3.0", "data")


def rows_of(offsets: range | list[int], partition: int = 0, **changes: Any) -> pa.RecordBatch:
    rows = [
        {"key": b"k%d" % number, "value": b"v%d" % number, "topic": "orders", "partition": partition, "offset": number,
         "timestamp": (T + number) * 1000, "timestampType": 0, "headers": []} | changes
        for number in offsets
    ]  # fmt: skip
    return pa.RecordBatch.from_pylist(rows, schema=RECORDS.schema)


def make_writer(path: Path, /, *, overwrite: bool = False, schema: pa.Schema = RECORDS.schema, **options: str) -> Any:
    from pyspark.sql.pandas.types import from_arrow_schema

    from rawlog.engines.spark.source import RawlogSource

    given = {"path": str(path), **options}
    return pickle.loads(pickle.dumps(RawlogSource(given).writer(from_arrow_schema(schema), overwrite)))


def save(path: Path, tasks: list[list[pa.RecordBatch]], **options: Any) -> None:
    """What Spark does: each task a copy of the writer, the driver another."""
    writer = make_writer(path, **options)
    messages = []
    for number, batches in enumerate(tasks):
        message = pickle.loads(pickle.dumps(writer)).write(iter(batches))
        message.number = number
        messages.append(pickle.loads(pickle.dumps(message)))
    pickle.loads(pickle.dumps(writer)).commit(messages)


@pytest.fixture(autouse=True)
def _attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of a task there is no number of an attempt, by which Spark tells their places apart."""
    count = iter(range(10**6))

    class Context:
        def partitionId(self) -> int:
            return next(count)

        def taskAttemptId(self) -> int:
            return 0

    monkeypatch.setattr("pyspark.TaskContext.get", Context)


def test_rows_of_a_partition_that_come_in_several_tasks_are_put_together(tmp_path: Path) -> None:
    """As the source gives them: a task a stretch of the log, in any order of the tasks."""
    tasks = [[rows_of(range(20, 30))], [rows_of(range(10)), rows_of(range(5), 1)], [], [rows_of(range(12, 20))]]
    save(tmp_path / "out", tasks, to="kafka", batch_records="4")
    assert [one["offset"] for one in rawlog.read(tmp_path / "out", partition=0).to_pylist()] == [
        *range(10),
        *range(12, 30),
    ]
    assert rawlog.read(tmp_path / "out", partition=1).num_rows == 5
    assert rawlog.verify(tmp_path / "out").verdict == "clean"
    assert [one.name for one in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    "options", [{}, {"codec": "zstd"}, {"magic": "1"}, {"magic": "1", "codec": "gzip"}, {"magic": "0"}]
)
def test_rows_without_offsets_are_numbered_in_the_order_of_the_tasks(options: dict[str, str], tmp_path: Path) -> None:
    bare = [one.drop_columns(["offset"]) for one in (rows_of(range(3)), rows_of(range(3, 8)), rows_of(range(8, 9)))]
    schema = bare[0].schema
    accept = "timestamp,timestampType,headers"
    save(tmp_path / "out", [[bare[0]], [bare[1], bare[2]], []], to="kafka", schema=schema, acceptLoss=accept, batch_records="2",
         **options)  # fmt: skip
    found = rawlog.read(tmp_path / "out").to_pylist()
    assert [(one["offset"], one["value"]) for one in found] == [(n, b"v%d" % n) for n in range(9)]
    assert rawlog.verify(tmp_path / "out").errors == 0


def test_rows_out_of_order_are_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(
        EncodeError, match=r"offsets 0 to 9 and 5 to 14 came in different tasks; .*repartition\(\"topic\""
    ):
        save(tmp_path / "out", [[rows_of(range(10))], [rows_of(range(5, 15))]], to="kafka")
    with pytest.raises(
        EncodeError, match=r"offset 3 after 9: offsets must rise; sort them \(in Spark: df\.repartition"
    ):
        save(tmp_path / "out", [[rows_of(range(10)), rows_of([3])]], to="kafka")
    with pytest.raises(EncodeError, match="some rows have an offset, others have none"):
        none = rows_of(range(3), offset=None)
        save(tmp_path / "out", [[rows_of(range(10))], [none]], to="kafka")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("to", "options"), [("replay", {}), ("rocketmq", {"commitlog_size": "65536", "queue_size": "2000"}), ("ambry", {})]
)
def test_formats_of_one_writer_get_the_rows_in_the_order_of_the_tasks(
    to: str, options: dict[str, str], tmp_path: Path
) -> None:
    tasks = [[rows_of(range(4)), rows_of(range(4, 6))], [], [rows_of(range(6, 20))]]
    save(tmp_path / "out", tasks, to=to, acceptLoss=",".join(RECORDS.names), **options)
    found = rawlog.read(tmp_path / "out")
    assert found.column("value").to_pylist() == [b"v%d" % number for number in range(20)]
    assert [one.name for one in tmp_path.iterdir()] == ["out"]


def test_modes(tmp_path: Path) -> None:
    save(tmp_path / "out", [[rows_of(range(3))]], to="kafka")
    with pytest.raises(AccessError, match="orders-0: exists already"):
        save(tmp_path / "out", [[rows_of(range(3))]], to="kafka")
    save(tmp_path / "out", [[rows_of(range(3), 1)]], to="kafka")
    save(tmp_path / "out", [[rows_of(range(7), 1)]], to="kafka", overwrite=True)
    assert rawlog.read(tmp_path / "out").num_rows == 10
    for to in ("replay", "rocketmq", "ambry"):
        with pytest.raises(AccessError, match="exists already"):
            make_writer(tmp_path / "out", to=to)
    assert [one.name for one in tmp_path.iterdir()] == ["out"]


def test_a_loss_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    tasks = [[rows_of(range(3))], [rows_of(range(3, 5), timestampType=2)], [rows_of(range(5, 6), timestamp=1)]]
    with pytest.raises(
        OptionError, match=r"timestampType \(2 of 6 rows, first orders-0 offset 3\), timestamp \(1 of 6"
    ):
        save(tmp_path / "out", tasks, to="kafka")
    with pytest.raises(OptionError, match=r"acceptLoss"):
        save(tmp_path / "out", tasks, to="replay")
    assert not list(tmp_path.iterdir())
    save(tmp_path / "out", tasks, to="kafka", acceptLoss="timestamp, timestampType")


def test_abort_removes_what_tasks_wrote(tmp_path: Path) -> None:
    writer = make_writer(tmp_path / "out", to="kafka")
    message = writer.write(iter([rows_of(range(10))]))
    assert len(list(tmp_path.iterdir())) == 1
    writer.abort([message, None])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, r'no target: \.option\("to", "kafka"\)'),
        ({"to": "kafak"}, "did you mean kafka"),
        ({"to": "kafka", "kodec": "zstd"}, "unknown option of kafka 'kodec'; did you mean codec"),
        ({"to": "kafka", "acceptLos": "key"}, "unknown option 'acceptLos'; did you mean acceptLoss"),
        ({"to": "kafka", "acceptLoss": "kee"}, "did you mean key"),
        ({"to": "parquet"}, r'Spark writes that itself, df\.write\.format\("parquet"\)'),
        ({"to": "kafka", "path": "s3://bucket/x"}, "needs a local path"),
        ({"to": "replay", "path": "s3://bucket/x"}, "path that driver and tasks share"),
    ],
)
def test_options_that_are_none_are_told_before_anything_is_done(
    options: dict[str, str], why: str, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=why):
        make_writer(tmp_path / "out", **options)
    assert not list(tmp_path.iterdir())


def test_columns_that_are_none_are_told(tmp_path: Path) -> None:
    with pytest.raises(EncodeError, match="no column of records: x"):
        make_writer(tmp_path / "out", to="kafka", schema=pa.schema([("x", pa.int64()), ("key", pa.binary())]))
    with pytest.raises(OptionError, match="key or value expected"):
        make_writer(tmp_path / "out", to="kafka", schema=pa.schema([("topic", pa.string())]))


# With Spark --------------------------------------------------------------------------------------------------------


def test_spark_writes_what_it_read(spark: SparkSession, tmp_path: Path) -> None:
    source = str(KAFKA / "segments-by-size-0")
    frame = spark.read.format("rawlog").option("splitSize", "4k").load(source)
    assert frame.rdd.getNumPartitions() > 2
    frame.write.format("rawlog").option("to", "kafka").option("codec", "lz4").mode("append").save(str(tmp_path / "out"))
    assert rawlog.read(tmp_path / "out").to_pylist() == rawlog.read(source).to_pylist()
    assert rawlog.verify(tmp_path / "out").verdict == "clean"
    mixed = spark.read.format("rawlog").load(str(tmp_path / "out")).repartition(3)
    tidy = mixed.repartition("topic", "partition").sortWithinPartitions("topic", "partition", "offset")
    tidy.write.format("rawlog").option("to", "kafka").mode("overwrite").save(str(tmp_path / "out"))
    assert rawlog.read(tmp_path / "out").to_pylist() == rawlog.read(source).to_pylist()
    with pytest.raises(Exception, match="repartition"):
        mixed.write.format("rawlog").option("to", "kafka").mode("append").save(str(tmp_path / "mixed"))
    assert [one.name for one in tmp_path.iterdir()] == ["out"]


def test_spark_makes_a_recording_and_a_store(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.range(0, 50, 1, 4).selectExpr(
        "CAST(CONCAT('k', id) AS BINARY) AS key", "CAST(CONCAT('v', id) AS BINARY) AS value",
        "'orders' AS topic", "CAST(id % 2 AS INT) AS partition",
        "array(named_struct('key', 'h', 'value', CAST('x' AS BINARY))) AS headers",
        "timestamp_millis(1700000000000 + id * 1000) AS timestamp",
    )  # fmt: skip
    writer = (
        frame.write.format("rawlog").option("acceptLoss", "topic,partition,headers,offset,timestampType").mode("append")
    )
    writer.option("to", "replay").save(str(tmp_path / "x.log"))
    assert rawlog.read(tmp_path / "x.log").column("value").to_pylist() == [b"v%d" % number for number in range(50)]
    store = frame.write.format("rawlog").option("to", "rocketmq").option("commitlog_size", "65536").mode("append")
    store.option("queue_size", "2000").option("index_slots", "50").option("index_entries", "200").save(
        str(tmp_path / "store")
    )
    found = rawlog.read(tmp_path / "store", partition=1).to_pylist()
    assert [one["value"] for one in found] == [b"v%d" % number for number in range(1, 50, 2)]
    assert [one.name for one in sorted(tmp_path.iterdir())] == ["store", "x.log"]


def test_the_job_convert_runs_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    from rawlog.engines.spark import engine
    from rawlog.lakes.sources import source_tree
    from rawlog.lakes.targets import outlet
    from rawlog.verbs.convert import Convert

    def convert(to: str, path: Path, source: Path, drop: tuple[bytes, ...] = (), **options: str) -> Any:
        made = outlet(to, str(path), options=options)
        with Convert(made, drop=drop) as job:
            return engine.run(job, source_tree([str(source)], RECORDS), spark)

    source = KAFKA / "segments-by-size-0"
    keys = [one for one in rawlog.read(source).column("key").to_pylist() if one]
    convert("kafka", tmp_path / "sifted", source, (keys[0],))
    kept = [one for one in rawlog.read(source).to_pylist() if one["key"] != keys[0]]
    assert rawlog.read(tmp_path / "sifted").to_pylist() == kept
    convert("parquet", tmp_path / "x.parquet", source)
    convert("kafka", tmp_path / "again", tmp_path / "x.parquet", codec="snappy")
    assert rawlog.read(tmp_path / "again").to_pylist() == rawlog.read(source).to_pylist()
    assert {one.name for one in tmp_path.iterdir()} == {"sifted", "x.parquet", "again"}


def test_a_task_that_dies_in_the_middle_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """The worker ends by a signal while it writes, its other task having written all: neither is seen afterwards."""
    from pyspark.sql.functions import udf

    def killed(number: int) -> bytes:
        import os
        import signal
        import time

        if number == 15_000:
            time.sleep(1)
            os.kill(os.getpid(), signal.SIGKILL)
        return b"v"

    rows = spark.range(0, 20_000, 1, 2).selectExpr(
        "id", "'orders' AS topic", "CAST(0 AS INT) AS partition", "id AS offset"
    )
    frame = rows.withColumn("value", udf(killed, "binary", useArrow=False)("id")).drop("id")
    with pytest.raises(Exception, match=r"(?i)crash|exit|EOF|worker"):
        frame.write.format("rawlog").option("to", "kafka").mode("append").save(str(tmp_path / "out"))
    assert not list(tmp_path.iterdir())


def test_sink_module_names_its_options() -> None:
    assert set(source.OWN) == {"to", "path", "acceptLoss"}


# Streams ------------------------------------------------------------------------------------------------------------------


def stream_writer(path: Path, checkpoint: Path, query: str = "one", **options: str) -> Any:
    """A writer as Spark makes it for a query."""
    from pyspark.sql.pandas.types import from_arrow_schema

    from rawlog.engines.spark.source import RawlogSource

    checkpoint.mkdir(exist_ok=True)
    (checkpoint / "metadata").write_text(json.dumps({"id": query}))
    given = {"path": str(path), "checkpointLocation": str(checkpoint), **options}
    return pickle.loads(pickle.dumps(RawlogSource(given).streamWriter(from_arrow_schema(RECORDS.schema), False)))


def save_batch(writer: Any, number: int, tasks: list[list[pa.RecordBatch]], *, fail: bool = False) -> None:
    messages = []
    for index, batches in enumerate(tasks):
        message = pickle.loads(pickle.dumps(writer)).write(iter(batches))
        message.number = index
        messages.append(pickle.loads(pickle.dumps(message)))
    if fail:
        pickle.loads(pickle.dumps(writer)).abort([*messages, None], number)
    else:
        pickle.loads(pickle.dumps(writer)).commit(messages, number)


def offsets_of(path: Path) -> list[int]:
    return sorted(row["offset"] for row in rawlog.read(path).to_pylist())


def test_a_batch_of_a_stream_is_written_once(tmp_path: Path) -> None:
    """One that is run again, because Spark died before it recorded it as done, changes nothing; a failed one leaves nothing."""
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"
    writer = stream_writer(out, checkpoint, to="kafka")
    save_batch(writer, 0, [[rows_of(range(10))], [rows_of(range(5), 1)]])
    save_batch(writer, 1, [[rows_of(range(10, 20))]], fail=True)
    save_batch(writer, 1, [[rows_of(range(10, 20))], []])
    again = stream_writer(out, checkpoint, to="kafka")
    save_batch(again, 1, [[rows_of(range(10, 20))]])
    save_batch(again, 2, [[], []])
    save_batch(again, 3, [[rows_of(range(20, 22))]])
    assert sorted(one.name for one in out.iterdir()) == [*(f"batch-00000000000{n}" for n in (0, 1, 3)), "query.json"]
    assert offsets_of(out) == sorted([*range(22), *range(5)])
    assert rawlog.verify(out / "batch-000000000001").verdict == "clean"


def test_a_stream_of_recordings_is_a_file_for_each_batch(tmp_path: Path) -> None:
    writer = stream_writer(tmp_path / "out", tmp_path / "checkpoint", to="replay", acceptLoss=",".join(RECORDS.names))
    for number in range(3):
        save_batch(
            writer,
            number,
            [[rows_of(range(number * 4, number * 4 + 2))], [rows_of(range(number * 4 + 2, number * 4 + 4))]],
        )
    values = [row["value"] for row in rawlog.read(tmp_path / "out").to_pylist()]
    assert values == [b"v%d" % number for number in range(12)]


def test_batches_of_another_query_are_refused(tmp_path: Path) -> None:
    """Its batches have the same numbers and other rows: they would be taken for written."""
    writer = stream_writer(tmp_path / "out", tmp_path / "checkpoint", to="kafka")
    save_batch(writer, 0, [[rows_of(range(10))]])
    other = stream_writer(tmp_path / "out", tmp_path / "other", "two", to="kafka")
    with pytest.raises(AccessError, match="another query"):
        save_batch(other, 0, [[rows_of(range(100, 110))]])
    with pytest.raises(OptionError, match="checkpointLocation"):
        from rawlog.engines.spark import source

        source.stream_writer({"path": str(tmp_path / "x"), "to": "kafka"}, None)  # type: ignore[arg-type]


def test_spark_writes_a_stream_exactly_once_across_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"

    def run() -> None:
        frame = spark.readStream.format("rawlog").option("maxRecordsPerTrigger", "40").load(str(source))
        writer = (
            frame.writeStream.format("rawlog").option("to", "kafka").option("checkpointLocation", str(tmp_path / "c"))
        )
        query = writer.trigger(availableNow=True).start(str(out))
        query.awaitTermination(300)
        assert query.exception() is None

    for first in (0, 100):
        given = [{"value": b"%d" % number, "offset": number} for number in range(first, first + 100)]
        rawlog.write(source / str(first), given, format="kafka", topic=f"t{first}", partition=0, batch_records=10)
        run()
    found = [row["value"] for row in rawlog.read(out).to_pylist()]
    assert sorted(found) == sorted(b"%d" % number for number in range(200))
    # As if Spark had died after the sink had written the last batch.
    last = max((tmp_path / "c" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink()
    run()
    assert len(rawlog.read(out)) == 200
