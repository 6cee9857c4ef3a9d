"""What earlier versions of rawlog wrote, and what this one wrote when it was stored, is read by this one: `tests/golden/upgrade`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import rawlog
from rawlog.live.replayer import Checkpoint, PartitionProgress, TopicPartition
from rawlog.model.errors import OptionError
from tests.data.golden import golden_path
from tests.data.recordings import expected, stored
from tests.data.sample_lake import MADE_IN, sample

VERSIONS = sorted(path.name.partition(".")[0] for path in golden_path("upgrade").glob("*.tar.gz"))


@pytest.fixture(params=VERSIONS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return sample(request.param, tmp_path, "upgrade").parent


def append(folder: Path, count: int) -> None:
    """`logs` as it would be with more records: the first are the same bytes."""
    kinds = range(30 + count)
    rows = [
        {
            "key": b"k%d" % (i % 5),
            "value": b"value %d" % i,
            "offset": i,
            "timestamp": 1_700_000_000_000_000 + i * 1_000_000,
        }
        for i in kinds
    ]
    shutil.rmtree(folder / "logs")
    rawlog.write(folder / "logs", rows, format="kafka", topic="orders", partition=0, batch_records=3, segment_bytes=900)


def test_a_lake_is_read_and_extended(folder: Path) -> None:
    lake, logs = folder / "lake", folder / "logs"
    for count in (0, 6):
        append(folder, count)
        report = rawlog.ingest(logs, lake, engine="local")
        assert report.counts["refused"] == 0
        assert report.facts["tables"].get("kafka.batches", 0) == count / 3, "only what is new is taken"
        for table in ("rawlog.records", "kafka.records", "kafka.batches"):
            assert stored(lake, table) == expected(logs, table=table.removeprefix("rawlog.")), table
    [row] = rawlog.query("SELECT count(*) AS n FROM records", lake, engine="duckdb").to_arrow().to_pylist()
    assert row["n"] == 36


def test_a_certificate_of_erasure_is_checked(folder: Path) -> None:
    check = {"certificate": folder / "erased.certificate.json"}
    assert list(rawlog.verify(folder / "erased", **check)) == []
    path = next(path for path in sorted((folder / "erased").rglob("*.log")) if path.stat().st_size)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert {one.code for one in rawlog.verify(folder / "erased", **check)} == {
        "kafka.log.crc",
        "rawlog.certificate.kept",
    }


def test_a_stream_continues_where_it_was(folder: Path) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    from rawlog.engines.spark.options import parse
    from rawlog.engines.spark.source import StreamReader

    position = json.loads((folder / "stream.json").read_text().replace(MADE_IN, str(folder)))
    reader = StreamReader(parse({"path": str(folder / "logs")}), rawlog.rows(folder / "logs").schema)
    assert reader.latestOffset(position, ReadAllAvailable()) == position
    append(folder, 6)
    end = reader.latestOffset(position, ReadAllAvailable())
    assert [mark["offset"] for mark in end.values()] == [36]
    tables = [table for part in reader.partitions(position, end) for table in reader.read(part)]
    assert [offset for table in tables for offset in table.column("offset").to_pylist()] == list(range(30, 36))


def test_a_checkpoint_of_a_replay_is_read(folder: Path) -> None:
    checkpoint = Checkpoint.read(str(folder / "replay.checkpoint"))
    assert (checkpoint.replay, checkpoint.run, checkpoint.writers) == (
        "replay-1",
        "3f2a",
        {-1: (4000, 0), 7: (4001, 2)},
    )
    assert checkpoint.partitions == {
        TopicPartition("orders", 0): PartitionProgress(20, 33, {-1: 4, 7: 19}, {7: 3}, {9: 2}),
        TopicPartition("Ünïcode", 3): PartitionProgress(0, 0),
    }


def test_a_checkpoint_of_a_later_version_is_not_taken_for_nothing(folder: Path) -> None:
    path = folder / "replay.checkpoint"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 99}))
    with pytest.raises(OptionError, match="a checkpoint of another version of rawlog; remove it to begin again"):
        Checkpoint.read(str(path))
