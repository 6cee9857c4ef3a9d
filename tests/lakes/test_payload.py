"""A lake stores the payload of a message once, and every table of it can be read whole."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rawlog
from rawlog.engines import choice
from rawlog.engines.duckdb import DuckEngine
from rawlog.engines.sql import Source, views
from rawlog.formats.kafka.tables import KAFKA_RECORDS
from rawlog.lakes import ingest as ingesting
from rawlog.lakes import lake as commits
from rawlog.lakes import payload, upkeep
from rawlog.lakes.ingest import Ingest
from rawlog.lakes.lake import Lake
from rawlog.lakes.names import known_tables
from rawlog.lakes.parquet import Sheet
from rawlog.lakes.payload import ROW, SPLIT, References
from rawlog.lakes.sources import source_tree
from rawlog.lakes.targets import outlet
from rawlog.model.errors import AccessError, OptionError
from rawlog.model.table import RECORDS, Table
from rawlog.reading.tree import Tree, open_tree
from rawlog.verbs import restore
from rawlog.verbs.convert import Convert
from tests.data import duck
from tests.data import rocketmq_stores as rocketmq
from tests.data.golden import GOLDEN
from tests.data.recordings import expected, held, ingest, ordered, record, stored

FAMILIES = {
    "kafka.records": [GOLDEN / "kafka"],
    "replay.entries": [GOLDEN / "replay" / version for version in ("v0", "v1", "v2")],
    "ambry.messages": [GOLDEN / "ambry"],
    "rocketmq.messages": [rocketmq.store(name) for name in rocketmq.ALL],
}


def write_topic(folder: Path, topic: str, count: int, *, first: int = 0, size: int = 200) -> None:
    """A Kafka partition with values that do not compress, null values and headers."""
    rows = [
        {
            "key": b"key %d" % number if number % 3 else None,
            "value": None if number % 7 == 3 else os.urandom(size),
            "offset": number,
            "timestamp": 1_700_000_000_000_000 + number * 1000,
            "headers": [{"key": "number", "value": b"%d" % number}] * (number % 3),
        }
        for number in range(first, first + count)
    ]
    schema = pa.schema([RECORDS.schema.field(name) for name in rows[0]])
    rawlog.write(folder, pa.Table.from_pylist(rows, schema=schema), format="kafka", topic=topic, partition=0)


def ask(lake: Path, sql: str) -> list[dict[str, Any]]:
    """The rows that `rawlog query --engine duckdb` gives."""
    with DuckEngine(views(Source(None, (str(lake),)))) as engine:
        return [row for batch in engine.ask(sql).batches() for row in batch.to_pylist()]


def bytes_of(lake: Path, name: str, columns: Iterator[str] | list[str]) -> int:
    """The size of columns in the Parquet files of a table, by their footers."""
    wanted, size = set(columns), 0
    for path in Lake(str(lake)).data_files(name):
        footer = pq.ParquetFile(path.removeprefix("file://")).metadata
        for group in range(footer.num_row_groups):
            chunks = (footer.row_group(group).column(number) for number in range(footer.num_columns))
            size += sum(one.total_compressed_size for one in chunks if one.path_in_schema.partition(".")[0] in wanted)
    return size


def without_references(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ingest write as it did before payloads were stored once: lakes from then must stay readable."""
    plain = lambda table: table  # noqa: E731
    monkeypatch.setattr(ingesting, "stored", plain)
    monkeypatch.setattr("rawlog.lakes.lake.stored", plain)

    def every(self: References, table: Table, rows: Any, records: Any) -> Iterator[tuple[Table, pa.RecordBatch]]:
        yield from ((table, batch) for batch in rows)
        yield from ((RECORDS, batch) for batch in records)

    monkeypatch.setattr(References, "share", every)
    monkeypatch.setattr(References, "number", lambda self, batch: batch)
    monkeypatch.setattr(References, "keep", lambda self, batch: batch)


# Stored once, read whole ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_a_system_table_reads_as_its_files_do(tmp_path: Path, name: str) -> None:
    """All golden files of a family: damaged ones, control records, records below the log start, inner batches."""
    ingest(tmp_path / "lake", *FAMILIES[name])
    wanted = expected(*FAMILIES[name], table=name)
    found = ask(tmp_path / "lake", f"SELECT * FROM {name}")
    assert ordered(found) == wanted
    own = [f'"{column}"' for column in known_tables()[name].payload]
    assert ordered(ask(tmp_path / "lake", f"SELECT {own[0]}, path FROM {name}")) == ordered(
        [{own[0].strip('"'): row[own[0].strip('"')], "path": row["path"]} for row in wanted]
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_payload_is_stored_once(tmp_path: Path, name: str) -> None:
    """Only rows that are not in `records` keep payload in the system's table."""
    lake = tmp_path / "lake"
    ingest(lake, *FAMILIES[name])
    own = known_tables()[name].payload
    rows = [
        row
        for path in Lake(str(lake)).data_files(name)
        for row in pq.read_table(path.removeprefix("file://")).to_pylist()
    ]
    assert any(row[ROW] is not None for row in rows)
    assert all(row[column] is None for row in rows for column in own if row[ROW] is not None)
    keeping = [row for row in rows if row[ROW] is None]
    if name == "kafka.records":
        visible = {(row["topic"], row["partition"], row["offset"]) for row in held(lake)}
        kept = [row for row in keeping if (row["topic"], row["partition"], row["offset"]) in visible]
        assert {row["is_control"] for row in keeping} == {True, False}, (
            "control records, and records below the log start"
        )
        assert len(kept) < len(rows) / 100
    if name == "replay.entries":
        assert not keeping


def test_the_size_of_a_lake_is_that_of_its_messages(tmp_path: Path) -> None:
    """A lake was twice as large as its messages: 138 MB in `records` and the same 138 MB in `kafka.records`."""
    write_topic(tmp_path / "logs", "orders", 5000, size=1000)
    ingest(tmp_path / "lake", tmp_path / "logs")
    size = bytes_of(tmp_path / "lake", "rawlog.records", ["key", "value", "headers"])
    assert size > 4_000_000
    assert bytes_of(tmp_path / "lake", "kafka.records", [*KAFKA_RECORDS.names, SPLIT, ROW]) < size / 50
    assert stored(tmp_path / "lake", "kafka.records") == expected(tmp_path / "logs", table="kafka.records")


def test_a_query_without_payload_does_not_read_records(tmp_path: Path) -> None:
    """The join is left out: the data files of `records` may even be missing."""
    write_topic(tmp_path / "logs", "orders", 100)
    lake = tmp_path / "lake"
    ingest(lake, tmp_path / "logs")
    for path in Lake(str(lake)).data_files("rawlog.records"):
        Path(path.removeprefix("file://")).unlink()
    assert ask(lake, "SELECT count(*) AS n, max(offset) AS last FROM kafka.records WHERE NOT is_control") == [
        {"n": 100, "last": 99}
    ]
    with pytest.raises(AccessError):
        ask(lake, "SELECT value FROM kafka.records")


def test_other_engines_join_by_two_columns(tmp_path: Path) -> None:
    """The statement of docs/lake.md."""
    write_topic(tmp_path / "logs", "orders", 300)
    ingest(tmp_path / "lake", tmp_path / "logs")
    lake = Lake(str(tmp_path / "lake"))
    system, records = lake.data_files("kafka.records"), lake.data_files("rawlog.records")
    joined = duck.ask(
        f"SELECT k.offset, CASE WHEN k.lake_row IS NULL THEN k.value ELSE r.value END FROM read_parquet({system}) k"
        f" LEFT JOIN read_parquet({records}) r ON r.lake_split = k.lake_split AND r.lake_row = k.lake_row ORDER BY 1"
    )
    assert joined == [(row["offset"], row["value"]) for row in rawlog.read(tmp_path / "logs").to_pylist()]


def test_copies_of_a_partition_are_not_mixed(tmp_path: Path) -> None:
    """Two files with the same topic, partition and offsets, but other values: every row keeps its own."""
    for folder in ("one", "two"):
        write_topic(tmp_path / folder, "orders", 200)
    ingest(tmp_path / "lake", tmp_path / "one", tmp_path / "two")
    wanted = expected(tmp_path / "one", tmp_path / "two", table="kafka.records")
    assert ordered(ask(tmp_path / "lake", "SELECT * FROM kafka.records")) == wanted
    assert len(wanted) == 400


# Lakes from before, selections, interruptions --------------------------------------------------------------------------


def test_a_lake_from_before_stays_readable_and_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake, logs = tmp_path / "lake", tmp_path / "logs"
    write_topic(logs, "orders", 100)
    with monkeypatch.context() as patch:
        without_references(patch)
        ingest(lake, logs)
    loaded = Lake(str(lake)).load("kafka.records")
    assert ROW not in {field.name for field in loaded.schema().fields}
    assert ordered(ask(lake, "SELECT * FROM kafka.records")) == expected(logs, table="kafka.records")
    write_topic(logs, "payments", 100, first=50)
    ingest(lake, logs)
    assert ordered(ask(lake, "SELECT * FROM kafka.records")) == expected(logs, table="kafka.records")
    assert held(lake) == expected(logs)
    assert Lake(str(lake)).load("kafka.records").properties["rawlog.lake"] == "2", "an older rawlog must not read it"
    restored = tmp_path / "restored"
    run_restore(lake, restored)
    assert rawlog.read(restored).to_pylist() == rawlog.read(logs).to_pylist()


def test_a_table_that_is_ingested_alone_keeps_its_payload(tmp_path: Path) -> None:
    lake, logs = tmp_path / "lake", tmp_path / "logs"
    write_topic(logs, "orders", 100)
    ingest(lake, logs, tables=["kafka.records"])
    assert held(lake) == []
    assert stored(lake, "kafka.records") == expected(logs, table="kafka.records")
    ingest(lake, logs)
    assert held(lake) == expected(logs)
    write_topic(logs, "payments", 100)
    ingest(lake, logs)
    assert ordered(ask(lake, "SELECT * FROM kafka.records")) == expected(logs, table="kafka.records")


def test_a_table_that_is_ingested_later_keeps_its_payload(tmp_path: Path) -> None:
    lake, logs = tmp_path / "lake", tmp_path / "logs"
    write_topic(logs, "orders", 100)
    ingest(lake, logs, tables=["records"])
    ingest(lake, logs)
    assert stored(lake, "kafka.records") == expected(logs, table="kafka.records")


def test_a_selection_by_another_time_than_that_of_records(tmp_path: Path) -> None:
    """`records` goes by the time a message was born, `rocketmq.messages` by that it was stored: each has rows that the other lacks."""
    source = rocketmq.store(rocketmq.ALL[0])
    times = sorted(row["store_timestamp"] for row in rawlog.read(str(source), table="rocketmq.messages").to_pylist())
    middle = int(times[len(times) // 2].timestamp() * 1e6)
    from rawlog.reading.select import Selection

    ingest(tmp_path / "lake", source, selection=Selection(since=middle))
    wanted = rawlog.read(
        str(source), table="rocketmq.messages", since=times[len(times) // 2], errors="skip"
    ).to_pylist()
    assert 0 < len(wanted) < len(times)
    assert stored(tmp_path / "lake", "rocketmq.messages") == ordered(wanted)


DYING = """
import os, sys
from pathlib import Path
from rawlog.lakes.lake import Lake
from tests.data.recordings import ingest
commit, left = Lake.commit, [int(sys.argv[1])]
def dying(self, *given, **more):
    if left[0] == 0:
        os._exit(9)
    left[0] -= 1
    return commit(self, *given, **more)
Lake.commit = dying
ingest(Path(sys.argv[2]), Path(sys.argv[3]))
"""


@pytest.mark.parametrize("commits", [0, 1, 2, 3])
def test_killed_between_two_tables_no_payload_is_lost(tmp_path: Path, commits: int) -> None:
    """`records` is committed first, so a table that refers to it never comes alone."""
    lake, logs = tmp_path / "lake", tmp_path / "logs"
    write_topic(logs, "orders", 100)
    died = subprocess.run(
        [sys.executable, "-c", DYING, str(commits), str(lake), str(logs)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        check=False,
    )
    assert died.returncode == 9
    opened = Lake(str(lake))
    if "kafka.records" in opened.tables():
        stored(lake, "kafka.records")
    ingest(lake, logs)
    assert stored(lake, "kafka.records") == expected(logs, table="kafka.records")
    assert held(lake) == expected(logs)


def test_a_run_that_loses_a_race_refers_to_nothing_that_is_not_there(tmp_path: Path) -> None:
    """Another run takes the same files between plan and commit; the loser's data files are gone with its references."""
    lake, logs = tmp_path / "lake", tmp_path / "logs"
    write_topic(logs, "orders", 100)
    with Ingest(str(lake)) as job:
        tree = open_tree(str(logs))

        def run() -> Any:
            splits = job.plan(tree)
            from rawlog.model.job import Stage

            done = [job.work(split, Stage(str(job.stage), f"{split.number}-x")) for split in splits]
            if not ran:
                ran.append(ingest(lake, logs, tables=["kafka.records"]))
            done += [job.work(split, Stage(str(job.stage), f"{split.number}-y")) for split in job.follow(done)]
            return job.commit(done)

        ran: list[Any] = []
        job.complete(run)
    assert stored(lake, "kafka.records") == expected(logs, table="kafka.records")
    assert held(lake) == expected(logs)


# Everything that reads or writes a lake ---------------------------------------------------------------------------------


def run_restore(lake: Path, target: Path) -> None:
    job = restore.Restore(str(target), restore.RestoreOptions(partitions_only=True))
    with job:
        choice.run(job, Tree((str(lake),), ()))


def test_restore_gives_the_same_bytes_as_from_a_lake_with_payload_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = tmp_path / "logs"
    for topic in ("orders", "payments"):
        write_topic(logs, topic, 400)
    ingest(tmp_path / "now", logs)
    with monkeypatch.context() as patch:
        without_references(patch)
        ingest(tmp_path / "before", logs)
    for name in ("now", "before"):
        run_restore(tmp_path / name, tmp_path / f"from-{name}")
    files = {path.relative_to(tmp_path / "from-before") for path in (tmp_path / "from-before").rglob("*.log")}
    assert len(files) == 2
    for path in files:
        assert (tmp_path / "from-now" / path).read_bytes() == (tmp_path / "from-before" / path).read_bytes()
    assert rawlog.read(tmp_path / "from-now").to_pylist() == rawlog.read(logs).to_pylist()


def test_convert_gives_the_whole_table(tmp_path: Path) -> None:
    logs, lake = tmp_path / "logs", tmp_path / "lake"
    write_topic(logs, "orders", 300)
    ingest(lake, logs)
    target = tmp_path / "rows.parquet"
    table = KAFKA_RECORDS
    with Convert(outlet("parquet", str(target), table=table)) as job:
        choice.run(job, source_tree([str(lake)], table))
    assert ordered(pq.read_table(target).to_pylist()) == expected(logs, table="kafka.records")


def test_a_data_file_that_is_named_alone_is_refused(tmp_path: Path) -> None:
    """Read as plain Parquet, its messages would be empty: that would be a silent loss."""
    logs, lake = tmp_path / "logs", tmp_path / "lake"
    write_topic(logs, "orders", 30)
    ingest(lake, logs)
    (file,) = [path.removeprefix("file://") for path in Lake(str(lake)).data_files("kafka.records")]
    with pytest.raises(OptionError, match="name the lake"), Convert(outlet("jsonl", str(tmp_path / "x.jsonl"))) as job:
        choice.run(job, open_tree([file]))
    with pytest.raises(OptionError, match="name the lake"):
        run_restore(Path(file).parent, tmp_path / "restored")


def test_partitions_far_times_and_several_splits(tmp_path: Path) -> None:
    """Rows of one split are in several data files, in both tables."""
    lake, logs = tmp_path / "lake", tmp_path / "logs"
    for topic in ("a", "b", "c"):
        write_topic(logs, topic, 60)
    rows = [{"value": b"%d" % number, "timestamp": number * 50_000_000_000_000_000} for number in range(20)]
    schema = pa.schema([("value", pa.binary()), ("timestamp", pa.timestamp("us", "UTC"))])
    rawlog.write(logs, pa.Table.from_pylist(rows, schema=schema), format="kafka", topic="far", partition=0)
    ingest(lake, logs, rocketmq.store(rocketmq.ALL[0]), partition_by=["topic", "day"])
    found = ask(lake, "SELECT key, value, headers, topic, offset FROM kafka.records WHERE topic <> 'far'")
    wanted = [
        row
        for row in rawlog.read(
            logs, table="kafka.records", columns=["key", "value", "headers", "topic", "offset"]
        ).to_pylist()
        if row["topic"] != "far"
    ]
    assert ordered(found) == ordered(wanted)
    assert len(ask(lake, "SELECT value FROM kafka.records WHERE topic = 'far' AND value IS NOT NULL")) == 20
    bodies = ask(lake, "SELECT path, position, body FROM rocketmq.messages")
    source = rawlog.read(
        str(rocketmq.store(rocketmq.ALL[0])), table="rocketmq.messages", columns=["path", "position", "body"]
    )
    assert ordered(bodies) == ordered(source.to_pylist())


def test_joining_small_files_keeps_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake, logs = tmp_path / "lake", tmp_path / "logs"
    for number in range(5):
        write_topic(logs, f"topic-{number}", 50)
        record(tmp_path / "recordings" / f"{number}.log", 20, first=number * 100)
        ingest(lake, logs, tmp_path / "recordings")
    for names in (["rawlog.records"], ["kafka.records", "replay.entries"]):
        with Lake(str(lake)) as opened:
            job = upkeep.Join(opened, names)
            assert upkeep.run_here(job) == dict.fromkeys(names, (5, 1))
            job.clean()
            upkeep.keep(opened, upkeep.run_here, expire_after=0, clean_after=0)
        for name, source in (("kafka.records", logs), ("replay.entries", tmp_path / "recordings")):
            assert ordered(ask(lake, f"SELECT * FROM {name}")) == expected(source, table=name)


@pytest.mark.parametrize(("rows", "size"), [(7, 1 << 20), (100, 50_000), (1000, 20_000)])
def test_any_size_of_batches_gives_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, size: int
) -> None:
    """Rows that refer and rows that keep their payload, in batches that are cut anywhere to save memory."""
    ingest(tmp_path / "lake", *FAMILIES["rocketmq.messages"], partition_by=["day"])
    monkeypatch.setattr(payload, "BYTES", size)
    monkeypatch.setattr(payload, "ROWS", rows)
    name = "rocketmq.messages"
    assert stored(tmp_path / "lake", name) == expected(*FAMILIES[name], table=name)


def test_records_in_another_order_are_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another engine may sort `records` when it compacts it; and little memory may be left."""
    lake, logs = tmp_path / "lake", tmp_path / "logs"
    write_topic(logs, "orders", 3000)
    ingest(lake, logs)
    monkeypatch.setattr(payload, "BYTES", 10_000)
    monkeypatch.setattr(payload, "ROWS", 100)
    assert stored(lake, "kafka.records") == expected(logs, table="kafka.records")
    opened = Lake(str(lake))
    (file,) = opened.data_files("rawlog.records")
    rows = pq.read_table(file.removeprefix("file://")).sort_by([(ROW, "descending")])
    path = lake / "rawlog" / "records" / "data" / "sorted.parquet"
    sheet = Sheet(str(path), payload.stored(RECORDS))
    for batch in rows.to_batches():
        sheet.add(batch)
    made = sheet.close()
    assert made is not None
    commits.exchange(opened.load("rawlog.records"), [made], {}, lambda name: not name.endswith("sorted.parquet"))
    assert stored(lake, "kafka.records") == expected(logs, table="kafka.records")


def test_payload_that_is_gone_is_an_error(tmp_path: Path) -> None:
    """Rows that another program deleted from `records` are missed in the system's table: not shown as empty."""
    lake, logs = tmp_path / "lake", tmp_path / "logs"
    write_topic(logs, "orders", 30)
    ingest(lake, logs)
    Lake(str(lake)).load("rawlog.records").delete("offset = 7")
    with pytest.raises(AccessError, match="no longer in rawlog.records"):
        ask(lake, "SELECT value FROM kafka.records")
    assert len(ask(lake, "SELECT offset FROM kafka.records")) == 30


# What refers to what --------------------------------------------------------------------------------------------------


def shared_rows(
    own: list[list[int]], theirs: list[list[int]], other: set[int]
) -> tuple[list[int | None], list[int | None]]:
    """For rows of `kafka.records` with these offsets the number of the row of `records` that each refers to, and its key. Rows of
    `records` with the offsets `other` have other bytes.
    """

    def batch(table: Table, offsets: list[int], key: bytes) -> pa.RecordBatch:
        rows = [
            {
                "topic": "t",
                "partition": 0,
                "offset": one,
                "key": b"%d" % one + (key if one in other else b""),
                "headers": [],
            }
            for one in offsets
        ]
        return pa.RecordBatch.from_pylist([dict.fromkeys(table.names) | row for row in rows], table.schema)

    mine = (batch(KAFKA_RECORDS, offsets, b"") for offsets in own)
    records = (batch(RECORDS, offsets, b"!") for offsets in theirs)
    made = list(References("split").share(KAFKA_RECORDS, mine, records))
    found = [row for table, one in made if table is KAFKA_RECORDS for row in one.to_pylist()]
    assert [row["offset"] for row in found] == [offset for offsets in own for offset in offsets]
    stored = [row for table, one in made if table is RECORDS for row in one.to_pylist()]
    assert [row["offset"] for row in stored] == [offset for offsets in theirs for offset in offsets]
    for row in found:
        if row[ROW] is not None:
            assert stored[row[ROW]]["offset"] == row["offset"]
            assert row["key"] is None
        else:
            assert row["key"] is not None
    return [row[ROW] for row in found], [row["offset"] for row in found]


@pytest.mark.parametrize(
    ("own", "theirs", "other", "refers"),
    [
        ([[0, 1, 2]], [[0, 1, 2]], set(), [0, 1, 2]),
        ([[0, 1, 2], [3, 4]], [[0, 2], [3, 4]], set(), [0, None, 1, 2, 3]),  # 1 is a control record
        ([[0, 1], [2, 3]], [[0], [2, 3]], set(), [0, None, 1, 2]),  # at the end of a batch
        ([[0, 1], [2, 3]], [[0, 1, 2, 3]], set(), [0, 1, 2, 3]),  # cut elsewhere
        ([[0, 1, 2, 3]], [[0], [1, 2], [3]], set(), [0, 1, 2, 3]),
        ([[0, 1], [2, 3]], [[2, 3]], set(), [None, None, 0, 1]),  # the first are below the log start
        ([[0, 1, 2, 3]], [[0, 1, 2, 3]], {1, 2}, [0, None, None, 3]),  # other bytes
        ([[0, 1]], [], set(), [None, None]),
        ([[0]], [[0, 1, 2]], set(), [0]),
        ([[0, 5], [6]], [[0, 1], [5, 6]], {1}, [0, 2, 3]),
    ],
)
def test_rows_refer_to_the_row_with_the_same_bytes(
    own: list[list[int]], theirs: list[list[int]], other: set[int], refers: list[int | None]
) -> None:
    assert shared_rows(own, theirs, other)[0] == refers
