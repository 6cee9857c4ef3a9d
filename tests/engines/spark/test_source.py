"""The source `rawlog`, batch reads: options, schemas, tasks; and the same rows from Spark as from rawlog itself.

Most of it needs no JVM: readers are called as Spark calls them.
"""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import rawlog
from rawlog import registry
from rawlog.engines.spark import options, source
from rawlog.io import walk
from rawlog.model.errors import (
    CorruptError,
    DataError,
    LimitError,
    OptionError,
    UnknownFormatError,
)
from rawlog.model.format import File
from rawlog.reading.parts import Part
from tests.data.golden import golden_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REPLAY = golden_path("replay", "v2")
KAFKA = golden_path("kafka", "broker-4.3.0", "data")
SEGMENTS = golden_path("kafka", "broker-4.3.0", "data", "segments-by-size-0")


def make_reader(path: Path | str | list[str], schema: pa.Schema | None = None, **given: str) -> Any:
    """A batch reader as Spark makes one."""
    from pyspark.sql.pandas.types import from_arrow_schema

    from rawlog.engines.spark.source import RawlogSource

    where = {"paths": json.dumps(path)} if isinstance(path, list) else {"path": str(path)}
    table = options.parse({**where, **given}).wanted
    return RawlogSource({**where, **given}).reader(from_arrow_schema(schema or table.schema))


def tasks_of(reader: Any) -> list[list[pa.RecordBatch]]:
    """The batches of each task; everything is pickled on the way, as it would be."""
    reader = pickle.loads(pickle.dumps(reader))
    return [list(reader.read(pickle.loads(pickle.dumps(task)))) for task in reader.partitions()]


def read(path: Path | str | list[str], schema: pa.Schema | None = None, **given: str) -> pa.Table:
    reader = make_reader(path, schema, **given)
    batches = [batch for task in tasks_of(reader) for batch in task]
    for batch in batches:
        batch.validate(full=True)
    return pa.Table.from_batches(batches, schema=reader.schema)


def by_rows(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


def table_paths() -> Iterator[tuple[str, Path]]:
    for name in registry.tables():
        for path in (REPLAY, KAFKA):
            if name in rawlog.open(path).tables:
                yield name, path


# ------------------------------------------------------------------ without Spark's JVM


@pytest.mark.parametrize(("table", "path"), list(table_paths()), ids=str)
def test_every_table_reads_as_it_does_locally(table: str, path: Path) -> None:
    expected = rawlog.read(path, table=table)
    assert read(path, table=table).equals(expected)
    assert by_rows(read(path, table=table, splitSize="2000")) == by_rows(expected)


@pytest.mark.parametrize("table", list(registry.tables()))
def test_schema_is_exactly_what_spark_expects(table: str) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    arrow = registry.table_named(table).schema
    assert to_arrow_schema(from_arrow_schema(arrow), timezone="UTC").equals(arrow)


def test_a_large_segment_is_read_by_several_tasks() -> None:
    segment = max(SEGMENTS.glob("*.log"), key=lambda path: path.stat().st_size)
    tasks = tasks_of(make_reader(segment, splitSize="4096"))
    assert len([task for task in tasks if task]) > 2


def test_small_files_share_tasks_and_order_is_kept(tmp_path: Path) -> None:
    for number in range(50):
        shutil.copy(REPLAY / "basic.log", tmp_path / f"{number:02}.log")
    reader = make_reader(tmp_path, table="replay.entries")
    tasks = reader.partitions()
    assert len(tasks) == 2
    paths = [part.file.path for task in tasks for part, _ in task.parts]
    assert paths == sorted(paths)
    assert len(paths) == 50


def test_spark_stand_in_for_no_partitions_reads_nothing() -> None:
    from pyspark.sql.datasource import InputPartition

    reader = make_reader(KAFKA, topic="no-such-topic")
    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []


def test_paths_are_absolute_and_take_every_form(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutil.copy(REPLAY / "basic.log", tmp_path / "a.log")
    shutil.copy(REPLAY / "find.log", tmp_path / "b,c.log")
    monkeypatch.chdir(tmp_path)
    both = read([str(tmp_path / "a.log"), str(tmp_path / "b,c.log")])
    assert read(tmp_path).equals(both)
    assert read(".").equals(both)
    assert read(f"file://{tmp_path}").equals(both)
    assert read(f"file:{tmp_path}").equals(both)
    assert read("*.log").equals(both)
    assert options.parse({"path": "a.log"}).paths == (str(tmp_path / "a.log"),)
    assert options.parse({"path": "s3a://bucket/x"}).paths == ("s3://bucket/x",)


def test_path_glob_filter_is_by_file_name_and_keeps_the_indexes(tmp_path: Path) -> None:
    assert read(SEGMENTS, pathGlobFilter="00000000000000000000.*").equals(
        rawlog.read(SEGMENTS / "00000000000000000000.log")
    )
    task = make_reader(SEGMENTS, pathGlobFilter="*.log", splitSize="4096").partitions()
    assert len(task) > 2


# ------------------------------------------------------------------ options


@pytest.mark.parametrize(
    ("given", "nearest"),
    [
        ({"tabel": "records"}, "table"),
        ({"startingoffset": "1"}, "startingOffsets"),
        ({"table": "recrods"}, "records"),
        ({"mode": "permisive"}, "PERMISSIVE"),
        ({"columns": "offest"}, "offset"),
        ({"isolation": "read_comitted"}, "read_committed"),
    ],
)
def test_unknown_names_are_answered_with_the_nearest(given: dict[str, str], nearest: str) -> None:
    with pytest.raises(OptionError, match=f"did you mean .*{nearest}"):
        options.parse({"path": "x", **given})


@pytest.mark.parametrize(
    "given",
    [
        {"splitSize": "many"},
        {"splitSize": "0"},
        {"partition": "a"},
        {"startingOffsets": "soon"},
        {"startingOffsets": '{"orders": 3}'},
        {"startingOffsets": '{"orders": {"0": "3"}}'},
        {"startingOffsets": '{"orders": {"0": -3}}'},
        {"endingOffsets": "earliest"},
        {"endingOffsets": '{"orders": {"0": -2}}'},
        {"startingTimestamp": "yesterday"},
        {"includeHeaders": "maybe"},
        {"maxFilesPerTrigger": "0"},
        {"subscribePattern": "("},
        {"subscribe": "a", "topic": "b"},
        {"subscribe": " "},
        {"columns": ","},
        {"startingOffsets": "1", "table": "files"},
    ],
)
def test_values_that_cannot_be_are_refused_by_name(given: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="|".join([*given, "column", "table"])):
        options.parse({"path": "x", **given})


def test_no_path_is_an_error() -> None:
    with pytest.raises(OptionError, match="no path"):
        options.parse({"table": "records"})


@pytest.mark.parametrize(
    ("text", "size"),
    [("1000", 1000), ("64k", 65536), ("128MB", 128 << 20), ("1g", 1 << 30), ("2 MiB", 2 << 20), ("7b", 7)],
)
def test_sizes_are_written_as_spark_writes_them(text: str, size: int) -> None:
    assert options.parse({"path": "x", "splitSize": text}).split_size == size


def test_topics_by_glob_list_and_pattern() -> None:
    names = lambda **given: set(read(KAFKA, columns="topic", **given)["topic"].to_pylist())  # noqa: E731
    assert names(topic="segments-by-*") == {"segments-by-size", "segments-by-time"}
    assert names(subscribe="segments-by-size,trimmed") == {"segments-by-size", "trimmed"}
    assert names(subscribePattern="segments-by-(size|time)") == {"segments-by-size", "segments-by-time"}
    assert set(read(KAFKA, topic="transactions", partition="1")["partition"].to_pylist()) == {1}


def test_a_partition_is_what_its_system_calls_a_queue() -> None:
    store = golden_path("rocketmq", "broker-4.9.7")
    given = {"table": "rocketmq.messages", "columns": "physical_offset,queue_id"}
    every = read(store, **given).to_pylist()
    wanted = [row for row in every if row["queue_id"] == 1]
    assert 0 < len(wanted) < len(every)
    assert read(store, partition="1", **given).to_pylist() == wanted


def test_a_recording_takes_the_topic_that_is_asked_for() -> None:
    table = read(REPLAY / "basic.log", topic="orders")
    assert set(table["topic"].to_pylist()) == {"orders"}
    assert table.num_rows == rawlog.read(REPLAY / "basic.log").num_rows


def test_offsets_as_numbers_words_and_json() -> None:
    def offsets(**given: str) -> list[int]:
        return sorted(read(SEGMENTS, columns="offset", **given)["offset"].to_pylist())

    every = offsets()
    low, high = every[10], every[-10]
    assert offsets(startingOffsets="earliest", endingOffsets="latest") == every
    assert offsets(startingOffsets=str(low)) == [offset for offset in every if offset >= low]
    assert offsets(startingOffsets=str(low), endingOffsets=str(high)) == [n for n in every if low <= n < high]
    both = {
        "startingOffsets": f'{{"segments-by-size":{{"0":{low}}}}}',
        "endingOffsets": f'{{"segments-by-size":{{"0":{high}}}}}',
    }
    assert offsets(**both) == [offset for offset in every if low <= offset < high]
    assert (
        offsets(startingOffsets='{"segments-by-size":{"0":-2}}', endingOffsets='{"segments-by-size":{"0":-1}}') == every
    )


def test_json_offsets_bind_only_their_partition() -> None:
    given = {
        "startingOffsets": '{"transactions": {"0": 20}}',
        "subscribe": "transactions",
        "columns": "partition,offset",
    }
    found = read(KAFKA, **given).to_pylist()
    assert min(row["offset"] for row in found if row["partition"] == 0) >= 20
    assert min(row["offset"] for row in found if row["partition"] == 1) < 20


def test_offsets_of_a_partition_that_is_not_there_are_refused() -> None:
    with pytest.raises(OptionError, match="did you mean .*transactions-1"):
        read(KAFKA, startingOffsets='{"transaction": {"1": 20}}')


def test_a_batch_cannot_begin_at_the_latest_offset() -> None:
    with pytest.raises(OptionError, match="startingOffsets"):
        read(KAFKA, startingOffsets="latest")


def test_times_are_half_open() -> None:
    times = rawlog.read(SEGMENTS, columns=["timestamp"])["timestamp"].cast(pa.int64()).to_pylist()
    low, high = sorted(set(times))[1], sorted(set(times))[-2]
    given = {"startingTimestamp": str(low // 1000), "endingTimestamp": str(high // 1000)}
    assert read(SEGMENTS, columns="timestamp", **given).num_rows == sum(low <= time < high for time in times)


def test_isolation_is_as_locally() -> None:
    expected = rawlog.read(KAFKA, topic="transactions", isolation="read_committed")
    assert read(KAFKA, topic="transactions", isolation="read_committed").equals(expected)
    assert expected.num_rows < rawlog.read(KAFKA, topic="transactions").num_rows


# ------------------------------------------------------------------ columns


def test_columns_are_pruned_by_option_and_by_schema_in_the_given_order() -> None:
    expected = rawlog.read(SEGMENTS, columns=["offset", "key"])
    assert read(SEGMENTS, columns="offset, key").equals(expected)
    full = registry.table_named("records").schema
    assert read(SEGMENTS, pa.schema([full.field("offset"), full.field("key")])).equals(expected)


def test_headers_can_be_left_out() -> None:
    names = registry.table_named("records").names
    assert tuple(read(SEGMENTS, includeHeaders="false").schema.names) == names[:7]
    assert tuple(read(SEGMENTS, includeHeaders="true").schema.names) == names


def test_a_given_schema_is_checked() -> None:
    with pytest.raises(OptionError, match="did you mean offset"):
        make_reader(SEGMENTS, pa.schema([("ofset", pa.int64())]))
    with pytest.raises(OptionError, match="offset of records is bigint, not int"):
        make_reader(SEGMENTS, pa.schema([("offset", pa.int32())]))


def test_not_null_in_a_given_schema_is_honoured_or_refused() -> None:
    strict = pa.schema([pa.field("offset", pa.int64(), nullable=False)])
    assert read(SEGMENTS, strict).schema.equals(strict)
    with pytest.raises(OptionError, match="topic is NOT NULL"):
        read(REPLAY, pa.schema([pa.field("topic", pa.string(), nullable=False)]))


# ------------------------------------------------------------------ batches, tasks, modes


def test_batches_are_neither_tiny_nor_huge() -> None:
    def make(size: int, count: int) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"value": pa.array([b"x" * size] * count, pa.binary())})

    small = [make(100, 10) for _ in range(3000)]
    sizes = [batch.nbytes for batch in source.resize(small)]
    assert all(size >= source.SMALLEST_BATCH for size in sizes[:-1])
    large = [make(1 << 20, 50), make(10, 0), make(5, 3)]
    pieces = list(source.resize(large))
    assert max(batch.nbytes for batch in pieces) <= source.LARGEST_BATCH
    assert pa.Table.from_batches(pieces).equals(pa.Table.from_batches(large).combine_chunks())


def test_tasks_are_sized_by_the_machine_between_4_and_128_mb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    request = options.parse({"path": "x"})
    assert source.split_size(request, 100) == source.SMALLEST_TASK
    assert source.split_size(request, 800 << 20) == 100 << 20
    assert source.split_size(request, 1 << 40) == source.TASK_SIZE


def test_modes_fail_pass_over_or_drop(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.log"
    shutil.copy(golden_path("replay", "damaged", "v2-hole.log"), damaged)
    with pytest.raises(CorruptError, match=r"damaged\.log: byte 237"):
        read(damaged)
    for mode in ("PERMISSIVE", "DROPMALFORMED"):
        assert read(damaged, mode=mode).equals(rawlog.read(damaged, errors="skip"))


def rows_of_task(path: Path, format: str, **given: str) -> pa.Table:
    """The rows of a task for one file that is taken to be of a format."""
    part = Part((File(str(path), path.stat().st_size, None, format),))
    request = options.parse({"path": str(path), **given})
    task = source.Splits(((part, request.selection),))
    schema = request.wanted.schema
    return pa.Table.from_batches(source.read_splits(task, request, schema), schema)


def test_a_damaged_header_of_a_file_is_damage_as_any_other(caplog: pytest.LogCaptureFixture) -> None:
    """It ended reading whatever the mode, and DROPMALFORMED dropped all rows of the file."""
    path = golden_path("replay", "damaged", "v1-version-3.log")
    sound = rawlog.read(path, format="replay.recording", errors="skip")
    assert sound.num_rows
    caplog.clear()
    with pytest.raises(DataError, match="unsupported protocol version: 3"):
        rows_of_task(path, "replay.recording", mode="FAILFAST")
    assert not caplog.messages
    for mode in ("PERMISSIVE", "DROPMALFORMED"):
        caplog.clear()
        assert rows_of_task(path, "replay.recording", mode=mode).equals(sound)
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "v1-version-3.log: byte 0: 20 damaged bytes skipped" in caplog.text


def test_only_dropmalformed_drops_a_file_that_cannot_be_read_at_all(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that is read as a whole, and larger than the limit for such."""
    monkeypatch.setattr(walk, "LARGEST_WHOLE", 1)
    path = Path(SEGMENTS) / "leader-epoch-checkpoint"
    for mode in ("FAILFAST", "PERMISSIVE"):
        with pytest.raises(LimitError, match="more than the limit"):
            rows_of_task(path, "kafka.epochs", table="kafka.epochs", mode=mode)
    assert rows_of_task(path, "kafka.epochs", table="kafka.epochs", mode="DROPMALFORMED").num_rows == 0
    assert "the file is dropped" in caplog.text


def test_nothing_to_read_as_the_table_is_said() -> None:
    with pytest.raises(UnknownFormatError, match=r"nothing here can be read as kafka\.batches"):
        make_reader(REPLAY, table="kafka.batches").partitions()


# ------------------------------------------------------------------ with Spark


def load(spark: SparkSession, path: Path, **given: str) -> DataFrame:
    return spark.read.format("rawlog").options(**given).load(str(path))


def test_spark_gives_the_same_rows(spark: SparkSession) -> None:
    for table, path in (*table_paths(), ("records", SEGMENTS)):
        frame = load(spark, path, table=table)
        found, expected = frame.toArrow(), rawlog.read(path, table=table)
        assert found.schema.names == expected.schema.names
        assert by_rows(found) == by_rows(expected), table


def test_count_select_and_sql(spark: SparkSession) -> None:
    expected = rawlog.read(KAFKA, topic="segments-by-*")
    frame = load(spark, KAFKA, topic="segments-by-*", splitSize="8k")
    assert frame.count() == expected.num_rows
    frame.createOrReplaceTempView("segment_records")
    rows = spark.sql("SELECT topic, max(offset) AS last FROM segment_records GROUP BY topic").collect()
    assert {row.topic for row in rows} == {"segments-by-size", "segments-by-time"}
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW v USING rawlog OPTIONS (path '{SEGMENTS}', table 'kafka.batches')")
    assert spark.sql("SELECT count(*) AS n FROM v").first().n == rawlog.read(SEGMENTS, table="kafka.batches").num_rows


def test_two_branches_of_one_load_do_not_disturb_each_other(spark: SparkSession) -> None:
    frame = load(spark, SEGMENTS, columns="offset")
    one, two = frame.filter("offset = 3"), frame.filter("offset = 4")
    assert sorted(row.offset for row in one.union(two).collect()) == [3, 4]
    assert frame.count() == rawlog.read(SEGMENTS).num_rows


def test_schema_on_read_prunes(spark: SparkSession) -> None:
    frame = spark.read.format("rawlog").schema("offset bigint, timestamp timestamp").load(str(SEGMENTS))
    assert frame.columns == ["offset", "timestamp"]
    assert frame.toArrow()["offset"].to_pylist() == rawlog.read(SEGMENTS)["offset"].to_pylist()


def test_errors_reach_the_user_with_their_place(spark: SparkSession) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match=r"v2-hole\.log: byte 237: invalid key size"):
        load(spark, golden_path("replay", "damaged", "v2-hole.log")).count()
    with pytest.raises(PySparkException, match="unknown option 'tabel'; did you mean table"):
        load(spark, SEGMENTS, tabel="records")
    with pytest.raises(PySparkException, match="no such file or directory"):
        load(spark, SEGMENTS / "absent").count()
    with pytest.raises(PySparkException, match="did you mean offset"):
        spark.read.format("rawlog").schema("ofset bigint").load(str(SEGMENTS)).count()


def test_an_expression_chooses_rows() -> None:
    expected = rawlog.read(SEGMENTS, where="offset % 2 = 0")
    assert read(SEGMENTS, where="offset % 2 = 0").equals(expected)
    with pytest.raises(OptionError, match="offfset"):
        read(SEGMENTS, where="offfset = 1")


def test_a_statement_reads_what_it_needs(spark: SparkSession) -> None:
    """Spark pushes nothing into Python sources: the columns and the conditions come from the text of the statement."""
    from rawlog.spark import sql

    where = "topic = 'segments-by-size' AND offset BETWEEN 5 AND 9 AND timestamp >= '2020-01-01'"
    frame = sql(f"SELECT offset, value FROM records WHERE {where} AND key IS NOT NULL ORDER BY offset", KAFKA, spark)
    asked = rawlog.read(SEGMENTS, from_offset=5, to_offset=10, where="key IS NOT NULL", columns=["offset", "value"])
    assert frame.toArrow().to_pylist() == asked.to_pylist()
    counted = sql("SELECT topic, count(*) AS n FROM records GROUP BY topic", KAFKA, spark).toArrow().to_pylist()
    assert {row["topic"]: row["n"] for row in counted}["segments-by-size"] == rawlog.count(SEGMENTS)


@pytest.mark.parametrize(
    "where",
    [
        "offset >= 250",
        "offset BETWEEN 100 AND 110",
        "topic = 'segments-by-size' AND offset < 20",
        "topic = 'segments-by-size' AND partition = 0 AND offset = 77 AND key IS NOT NULL",
    ],
)
def test_an_expression_prunes_as_sql_does(where: str) -> None:
    """The option `where`, and so a temporary view with it, read all files: 1.1 GB where `rawlog.spark.sql` read 6 MB."""

    def bytes_of(reader: Any) -> int:
        return sum(
            part.size for task in reader.partitions() if isinstance(task, source.Splits) for part, _ in task.parts
        )

    assert bytes_of(make_reader(KAFKA, where=where)) < bytes_of(make_reader(KAFKA)) / 2
    for others in (
        {},
        {"startingOffsets": "30"},
        {"topic": "segments-by-size"},
        {"endingOffsets": "105"},
        {"partition": "0"},
    ):
        names = {"startingOffsets": "from_offset", "endingOffsets": "to_offset"}
        given: Any = {names.get(key, key): int(value) if value.isdigit() else value for key, value in others.items()}
        assert by_rows(read(SEGMENTS, where=where, **others)) == by_rows(rawlog.read(SEGMENTS, where=where, **given)), (
            others
        )


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("topic IN ('a', 'b.c') AND partition = 3", {"subscribePattern": r"a|b\.c", "partition": "3"}),
        ("offset > 4 AND offset < 9", {"startingOffsets": "5", "endingOffsets": "9"}),
        ("timestamp = '1970-01-01 00:00:00.0015'", {"startingTimestamp": "1", "endingTimestamp": "2"}),
        ("key = X'6b'", {"where": "key IN (x'6b')"}),
        ("length(key) = 1", {}),
    ],
)
def test_bounds_become_options(where: str, expected: dict[str, str]) -> None:
    from rawlog.engines.spark.query import _options
    from rawlog.engines.sql import Bounds, bounds_of
    from rawlog.model.table import RECORDS

    bounds = bounds_of(f"SELECT offset FROM records WHERE {where}", {"records": RECORDS}, "spark")
    assert _options(bounds.get("records", Bounds())) == expected
    options.parse({"path": str(SEGMENTS), **expected})
