"""The source `rawlog`, streaming: every row of a growing directory exactly once.

`Query` plays Spark's part of the protocol without a JVM, restarts included; the last tests ask Spark itself.
"""

from __future__ import annotations

import json
import logging
import pickle
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import rawlog
from rawlog.engines.spark import options
from rawlog.io.storage import Source
from rawlog.model.errors import (
    AccessError,
    CorruptError,
    OptionError,
    TruncatedError,
)
from rawlog.reading import follow
from tests.data.golden import golden_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDING = golden_path("replay", "v2", "basic.log")
SEGMENTS = golden_path("kafka", "broker-4.3.0", "data", "segments-by-size-0")
COMPACTED = golden_path("kafka", "broker-4.3.0", "data", "compacted-0")


class Query:
    """One run of a streaming query; `checkpoint` outlives it."""

    def __init__(self, path: Path, checkpoint: dict[str, Any], **given: str) -> None:
        from pyspark.sql.pandas.types import from_arrow_schema

        from rawlog.engines.spark.source import RawlogSource

        all_given = {"path": str(path), **given}
        schema = from_arrow_schema(options.parse(all_given).wanted.schema)
        self.reader: Any = RawlogSource(all_given).streamReader(schema)
        self.checkpoint = checkpoint
        if "end" not in checkpoint:
            checkpoint["end"] = json.dumps(self.reader.initialOffset())
        elif "start" in checkpoint:  # a batch was planned and perhaps not finished: Spark runs it again
            checkpoint["again"] = True

    def batch(self, limit: Any = None) -> list[dict[str, Any]] | None:
        """The rows of the next batch, None if there is none."""
        limit = limit or self.reader.getDefaultReadLimit()
        if not self.checkpoint.pop("again", False):
            end = json.dumps(self.reader.latestOffset(json.loads(self.checkpoint["end"]), limit))
            if end == self.checkpoint["end"]:
                return None
            self.checkpoint |= {"start": self.checkpoint["end"], "end": end}
        rows = self.rows(json.loads(self.checkpoint["start"]), json.loads(self.checkpoint["end"]))
        del self.checkpoint["start"]
        return rows

    def rows(self, start: Any, end: Any) -> list[dict[str, Any]]:
        worker = pickle.loads(pickle.dumps(self.reader))
        tasks = pickle.loads(pickle.dumps(self.reader.partitions(start, end)))
        return [row for task in tasks for batch in worker.read(task) for row in batch.to_pylist()]

    def all(self) -> list[dict[str, Any]]:
        """The rows of all batches until there are none."""
        found: list[dict[str, Any]] = []
        while (rows := self.batch()) is not None:
            found += rows
        return found


def rows_of(path: Path, **selection: Any) -> list[dict[str, Any]]:
    return rawlog.read(path, **selection).to_pylist()


def logs(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))


def pieces(data: bytes, rng: random.Random) -> Iterator[bytes]:
    """The bytes in pieces that end anywhere."""
    while data:
        size = rng.choice((1, 7, 60, 61, 300, 5000, 20000))
        yield data[:size]
        data = data[size:]


# ------------------------------------------------------------------ exactly once


@pytest.mark.parametrize("table", ["records", "replay.entries"])
@pytest.mark.parametrize("seed", range(3))
def test_a_growing_recording_is_read_exactly_once(tmp_path: Path, table: str, seed: int) -> None:
    source = tmp_path / "in"
    source.mkdir()
    rng, checkpoint, found = random.Random(seed), {}, []
    query = Query(source, checkpoint, table=table)
    for piece in pieces(RECORDING.read_bytes(), rng):
        with (source / "basic.log").open("ab") as file:
            file.write(piece)
        if rng.random() < 0.5:
            query = Query(source, checkpoint, table=table)
        found += query.batch() or []
    expected = rows_of(source / "basic.log", table=table)
    assert found == expected
    assert len(found) > 10


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"maxBytesPerTrigger": "2000"},
        {"maxFilesPerTrigger": "1"},
        {"maxRecordsPerTrigger": "7"},
        {"splitSize": "1k"},
    ],
)
@pytest.mark.parametrize("seed", range(2))
def test_growing_and_rolling_segments_are_read_exactly_once(tmp_path: Path, given: dict[str, str], seed: int) -> None:
    source = tmp_path / "segments-by-size-0"
    source.mkdir()
    rng, checkpoint, found = random.Random(seed), {}, []
    query = Query(tmp_path, checkpoint, **given)
    for log in logs(SEGMENTS):
        shutil.copy(log.with_suffix(".index"), source)
        for piece in pieces(log.read_bytes(), rng):
            with (source / log.name).open("ab") as file:
                file.write(piece)
            if rng.random() < 0.3:
                query = Query(tmp_path, checkpoint, **given)
            if rng.random() < 0.7:
                found += query.batch() or []
    found += query.all()
    assert found == rows_of(SEGMENTS)


def test_a_batch_that_was_planned_is_the_same_after_a_restart(tmp_path: Path) -> None:
    source = tmp_path / "segments-by-size-0"
    source.mkdir()
    first, second, *_ = logs(SEGMENTS)
    shutil.copy(first, source)
    checkpoint: dict[str, Any] = {}
    Query(tmp_path, checkpoint)
    query = Query(tmp_path, checkpoint)
    end = query.reader.latestOffset(json.loads(checkpoint["end"]), query.reader.getDefaultReadLimit())
    before = query.rows({}, end)
    shutil.copy(second, source)
    assert Query(tmp_path, checkpoint).rows({}, end) == before == rows_of(first)


def test_limits_bound_a_batch_and_every_line_moves(tmp_path: Path) -> None:
    for name in ("a-0", "b-0"):
        shutil.copytree(SEGMENTS, tmp_path / name)
    query = Query(tmp_path, {}, maxBytesPerTrigger="4000")
    total = sum(log.stat().st_size for log in logs(SEGMENTS)) * 2
    first = query.batch()
    assert first is not None
    assert {row["topic"] for row in first} == {"a", "b"}
    batches = 1
    while query.batch() is not None:
        batches += 1
    assert batches >= total // (4000 * 4)


def test_a_batch_has_so_many_records(tmp_path: Path) -> None:
    """Whole frames, so that it may be fewer; the first frame is read even if it has more."""
    logs = tmp_path / "logs"
    for topic in ("a", "b"):
        given = [{"value": b"%d" % number} for number in range(60)]
        rawlog.write(logs, given, format="kafka", topic=topic, partition=0, batch_records=5, segment_bytes=600)
    query, sizes = Query(logs, {}, maxRecordsPerTrigger="20"), []
    while (rows := query.batch()) is not None:
        sizes.append(len(rows))
    assert sum(sizes) == 120
    assert max(sizes) <= 20
    assert len(sizes) <= 8
    small = Query(logs, {}, maxRecordsPerTrigger="1")
    assert len(small.batch() or []) == 10, "a frame of each line"


def test_progress_tells_what_is_left(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    for topic, count in (("a", 60), ("b", 10)):
        given = [{"value": b"%d" % number} for number in range(count)]
        rawlog.write(logs, given, format="kafka", topic=topic, partition=0, batch_records=5, segment_bytes=600)
    size = sum(path.stat().st_size for path in logs.rglob("*.log"))
    query = Query(logs, {}, maxRecordsPerTrigger="14")
    done = 0
    while (rows := query.batch()) is not None:
        done += len(rows)
        found = query.reader.reportLatestOffset()
        assert found["lag"]["records"] == 70 - done
        assert (found["lag"]["bytes"] > 0) == (done < 70)
        assert found["lag"]["bytes"] < size
        assert json.loads(json.dumps(found)) == found
    assert query.reader.reportLatestOffset() == {"lag": {"bytes": 0, "records": 0}, "lines": {}}


def test_a_frame_larger_than_the_limit_is_read(tmp_path: Path) -> None:
    shutil.copy(RECORDING, tmp_path / "basic.log")
    assert Query(tmp_path, {}, maxBytesPerTrigger="1").all() == rows_of(RECORDING)


def test_an_offset_is_stable_text(tmp_path: Path) -> None:
    shutil.copytree(SEGMENTS, tmp_path / "b-0")
    shutil.copytree(SEGMENTS, tmp_path / "a-0")
    shutil.copy(RECORDING, tmp_path / "z.log")
    checkpoint: dict[str, Any] = {}
    Query(tmp_path, checkpoint).all()
    end = json.loads(checkpoint["end"])
    last = logs(SEGMENTS)[-1]
    assert list(end) == [f"kafka.log {tmp_path}/a-0", f"kafka.log {tmp_path}/b-0", f"replay.recording {tmp_path}/z.log"]
    assert end[f"kafka.log {tmp_path}/a-0"]["file"] == last.name
    assert end[f"kafka.log {tmp_path}/a-0"]["position"] == last.stat().st_size
    assert end[f"kafka.log {tmp_path}/a-0"]["offset"] == rows_of(SEGMENTS)[-1]["offset"] + 1
    assert Query(tmp_path, checkpoint).batch() is None


def test_available_now_ends_with_what_was_there(tmp_path: Path) -> None:
    source = tmp_path / "segments-by-size-0"
    source.mkdir()
    first, second, *_ = logs(SEGMENTS)
    shutil.copy(first, source)
    cut = len(second.read_bytes()) // 2
    (source / second.name).write_bytes(second.read_bytes()[:cut])
    expected = rows_of(source)
    checkpoint: dict[str, Any] = {}
    query = Query(tmp_path, checkpoint, maxBytesPerTrigger="1k")
    query.reader.prepareForTriggerAvailableNow()
    found = query.batch() or []
    (source / second.name).write_bytes(second.read_bytes())
    found += query.all()
    assert found == expected
    assert found + Query(tmp_path, checkpoint).all() == rows_of(source)


def test_once_ignores_the_limits(tmp_path: Path) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    shutil.copytree(SEGMENTS, tmp_path / "segments-by-size-0")
    query = Query(tmp_path, {}, maxBytesPerTrigger="10", maxFilesPerTrigger="1")
    assert query.batch(ReadAllAvailable()) == rows_of(SEGMENTS)


# ------------------------------------------------------------------ where it begins


def test_a_stream_can_begin_at_the_end(tmp_path: Path) -> None:
    data = RECORDING.read_bytes()
    (tmp_path / "basic.log").write_bytes(data[: len(data) // 2])
    before = len(rows_of(tmp_path))
    checkpoint: dict[str, Any] = {}
    assert Query(tmp_path, checkpoint, startingOffsets="latest").batch() is None
    (tmp_path / "basic.log").write_bytes(data)
    assert Query(tmp_path, checkpoint, startingOffsets="latest").all() == rows_of(RECORDING)[before:]


@pytest.mark.parametrize("form", ["{}", '{{"segments-by-size": {{"0": {}}}}}'])
def test_a_stream_can_begin_at_an_offset(tmp_path: Path, form: str) -> None:
    shutil.copytree(SEGMENTS, tmp_path / "segments-by-size-0")
    expected = rows_of(SEGMENTS)
    start = expected[len(expected) // 2 + 3]["offset"]
    query = Query(tmp_path, {}, startingOffsets=form.format(start), maxBytesPerTrigger="5k")
    assert query.all() == [row for row in expected if row["offset"] >= start]


def test_an_empty_directory_or_pattern_is_waited_for(tmp_path: Path) -> None:
    checkpoint: dict[str, Any] = {}
    query = Query(tmp_path / "*.log", checkpoint)
    assert query.batch() is None
    shutil.copy(RECORDING, tmp_path / "basic.log")
    assert query.all() == rows_of(RECORDING)
    assert Query(tmp_path, {}, topic="x").batch() is not None


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"table": "files"}, "cannot be followed"),
        ({"endingOffsets": "5"}, "endingOffsets"),
        ({"endingTimestamp": "5"}, "endingTimestamp"),
    ],
)
def test_what_a_stream_cannot_do_is_refused(tmp_path: Path, given: dict[str, str], word: str) -> None:
    with pytest.raises(OptionError, match=word):
        Query(tmp_path, {}, **given)


# ------------------------------------------------------------------ damage and loss


@pytest.fixture
def half_read(tmp_path: Path) -> tuple[Path, dict[str, Any], int]:
    """Segments of which a query has read a part of the second; the next offset it wants."""
    source = tmp_path / "segments-by-size-0"
    shutil.copytree(SEGMENTS, source)
    one, two, *_ = logs(source)
    checkpoint: dict[str, Any] = {}
    query = Query(tmp_path, checkpoint, maxBytesPerTrigger=str(one.stat().st_size + two.stat().st_size // 2))
    rows = query.batch()
    assert rows
    (mark,) = json.loads(checkpoint["end"]).values()
    assert mark["file"] == two.name
    assert mark["offset"] == rows[-1]["offset"] + 1
    return source, checkpoint, mark["offset"]


def test_retention_of_what_was_read_loses_nothing(half_read: tuple[Path, dict[str, Any], int]) -> None:
    source, checkpoint, offset = half_read
    logs(source)[0].unlink()
    assert Query(source, checkpoint).all() == [row for row in rows_of(SEGMENTS) if row["offset"] >= offset]


def test_a_segment_deleted_unread_is_reported(
    half_read: tuple[Path, dict[str, Any], int], caplog: pytest.LogCaptureFixture
) -> None:
    source, checkpoint, offset = half_read
    one, two, three, *_ = logs(source)
    one.unlink()
    two.rename(two.with_suffix(".log.deleted"))
    with pytest.raises(AccessError, match=rf"{offset} to {int(three.stem) - 1} .* failOnDataLoss"):
        Query(source, checkpoint).batch()
    with caplog.at_level(logging.WARNING):
        found = Query(source, checkpoint, failOnDataLoss="false").all()
    assert found == [row for row in rows_of(SEGMENTS) if row["offset"] >= int(three.stem)]
    assert "deleted before they were read" in caplog.text


def test_a_segment_rewritten_by_compaction_is_taken_up_by_its_offset(
    half_read: tuple[Path, dict[str, Any], int],
) -> None:
    """Compaction replaces a closed segment by a smaller file of the same name: positions in it mean nothing any more."""
    source, checkpoint, offset = half_read
    two = logs(source)[1]
    starts = [row["position"] for row in rows_of(two, table="kafka.batches")]
    two.write_bytes(two.read_bytes()[starts[1] :])  # the first batch was cleaned away
    assert Query(source, checkpoint).all() == [row for row in rows_of(SEGMENTS) if row["offset"] >= offset]


def test_files_of_a_begun_batch_that_are_gone_are_reported(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    shutil.copy(RECORDING, source / "basic.log")
    query = Query(source, {})
    end = query.reader.latestOffset({}, query.reader.getDefaultReadLimit())
    (source / "basic.log").unlink()
    with pytest.raises(AccessError, match=r"basic\.log: gone"):
        query.reader.partitions({}, end)


def test_a_recording_that_shrank_is_reported(tmp_path: Path) -> None:
    shutil.copy(RECORDING, tmp_path / "basic.log")
    checkpoint: dict[str, Any] = {}
    Query(tmp_path, checkpoint).all()
    small = golden_path("replay", "v2", "find.log")
    shutil.copy(small, tmp_path / "basic.log")
    with pytest.raises(AccessError, match=r"basic\.log was read up to byte"):
        Query(tmp_path, checkpoint).batch()
    assert Query(tmp_path, checkpoint, failOnDataLoss="false").all() == rows_of(small)


def test_damage_fails_behind_the_sound_rows_or_is_passed_over(tmp_path: Path) -> None:
    damaged = golden_path("replay", "damaged", "v2-hole.log")
    shutil.copy(damaged, tmp_path / "damaged.log")
    query = Query(tmp_path, {})
    sound = query.batch()
    assert sound == rows_of(damaged, errors="stop")
    assert sound
    with pytest.raises(CorruptError, match="byte 237"):
        query.batch()
    assert Query(tmp_path, {}, mode="PERMISSIVE").all() == rows_of(damaged, errors="skip")


def test_a_torn_segment_with_a_successor_is_reported(tmp_path: Path) -> None:
    source = tmp_path / "segments-by-size-0"
    shutil.copytree(SEGMENTS, source)
    one = logs(source)[0]
    one.write_bytes(one.read_bytes()[:-5])
    query = Query(tmp_path, {})
    assert query.batch() == rows_of(one)
    with pytest.raises(TruncatedError, match="ends inside a frame"):
        query.batch()
    assert Query(tmp_path, {}, failOnDataLoss="false").all() == rows_of(source)


def test_a_successor_made_in_advance_does_not_close_a_file(tmp_path: Path) -> None:
    """Preallocated files are zeros where nothing was written yet, and the next one may be there before its turn."""
    source = tmp_path / "segments-by-size-0"
    source.mkdir()
    one, two, *_ = logs(SEGMENTS)
    checkpoint: dict[str, Any] = {}
    found: list[dict[str, Any]] = []
    half = len(one.read_bytes()) // 2
    for first, second in ((half, 0), (len(one.read_bytes()), 0), (len(one.read_bytes()), len(two.read_bytes()))):
        (source / one.name).write_bytes(one.read_bytes()[:first].ljust(40_000, b"\0"))
        (source / two.name).write_bytes(two.read_bytes()[:second].ljust(40_000, b"\0"))
        if first == half:  # a frame that is not whole would be damage in the middle of zeros: end with a whole one
            stops = [row["position"] + row["size"] for row in rows_of(one, table="kafka.batches")]
            whole = max(stop for stop in stops if stop <= half)
            (source / one.name).write_bytes(one.read_bytes()[:whole].ljust(40_000, b"\0"))
        found += Query(tmp_path, checkpoint).all()
    assert found == rows_of(one) + rows_of(two)


def test_room_made_in_advance_is_not_read_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a preallocated file, and of one that waits behind it, a look takes a few kilobytes, however large they are."""
    source = tmp_path / "segments-by-size-0"
    source.mkdir()
    one, two, *_ = logs(SEGMENTS)
    (source / one.name).write_bytes(one.read_bytes() + bytes(1 << 20))
    (source / two.name).write_bytes(bytes(1 << 20))
    query = Query(tmp_path, {})
    assert query.all() == rows_of(one)
    sizes: list[int] = []
    real = Source.read_into

    def spy(self: Source, position: int, target: memoryview) -> int:
        sizes.append(len(target))
        return real(self, position, target)

    monkeypatch.setattr(Source, "read_into", spy)
    assert query.batch() is None
    assert 0 < sum(sizes) < 64 << 10
    (source / two.name).write_bytes(two.read_bytes() + bytes(1 << 20))
    assert query.all() == rows_of(two)


def test_read_committed_waits_for_what_is_undecided(tmp_path: Path) -> None:
    source = tmp_path / "transactions-0"
    source.mkdir()
    golden = golden_path("kafka", "broker-4.3.0", "data", "transactions-0")
    steps = [
        (log, row["position"] + row["size"]) for log in logs(golden) for row in rows_of(log, table="kafka.batches")
    ]
    checkpoint: dict[str, Any] = {}
    found: list[dict[str, Any]] = []
    waited = 0
    for log, stop in steps:  # a batch more each time, as a broker writes them
        (source / log.name).write_bytes(log.read_bytes()[:stop])
        there = rows_of(source, isolation="read_committed")
        rows = Query(tmp_path, checkpoint, isolation="read_committed").all()
        found += rows
        assert found == there
        waited += len(there) < len(rows_of(source))
    assert found == rows_of(golden, isolation="read_committed")
    assert waited > 3
    assert len(found) < len(rows_of(golden))


def test_an_index_saves_walking_the_backlog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "segments-by-size-0"
    shutil.copytree(SEGMENTS, source)
    monkeypatch.setattr(follow, "NEAR", 4096)
    query = Query(tmp_path, {})
    jumps: list[int] = []
    real = follow.Follower._jump

    def spy(self: Any, line: Any, file: Any, mark: Any, limit: int) -> Any:
        jumped = real(self, line, file, mark, limit)
        jumps.append(jumped.position - mark.position)
        return jumped

    monkeypatch.setattr(follow.Follower, "_jump", spy)
    assert query.all() == rows_of(SEGMENTS)
    assert max(jumps) > 4096


# ------------------------------------------------------------------ with Spark


def collect(spark: SparkSession, source: Path, out: Path, **given: str) -> Any:
    """A started query that writes what it reads to Parquet."""
    frame = spark.readStream.format("rawlog").options(**given).load(str(source))
    return frame.writeStream.format("parquet").option("checkpointLocation", f"{out}/checkpoint")


def results(spark: SparkSession, out: Path) -> list[int]:
    return sorted(row.offset for row in spark.read.parquet(f"{out}/data").select("offset").collect())


def test_spark_follows_a_growing_directory_across_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    source, out = tmp_path / "in" / "segments-by-size-0", tmp_path / "out"
    source.mkdir(parents=True)
    rng = random.Random(7)
    segments = logs(SEGMENTS)
    for half in (segments[:2], segments[2:]):
        query = collect(spark, source.parent, out).trigger(processingTime="100 milliseconds").start(f"{out}/data")
        try:
            for log in half:
                for size in (1, 100, 61, 5000, -1):  # in the middle of a frame, mostly
                    data = log.read_bytes()[(source / log.name).stat().st_size if (source / log.name).exists() else 0 :]
                    with (source / log.name).open("ab") as file:
                        file.write(data if size < 0 else data[:size])
                    time.sleep(0.2)
            if half[0] is segments[0]:
                while query.lastProgress is None:  # Spark does not take up a checkpoint without a whole first batch
                    time.sleep(0.1)
                time.sleep(rng.random())  # stopped wherever it is, perhaps in the middle of a batch
            else:
                query.processAllAvailable()
        finally:
            query.stop()
    assert results(spark, out) == [row["offset"] for row in rows_of(SEGMENTS)]


def test_spark_available_now_reads_in_limited_batches_and_ends(spark: SparkSession, tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    shutil.copytree(SEGMENTS, source / "segments-by-size-0")
    writer = collect(spark, source, out, maxBytesPerTrigger="20k")
    query = writer.trigger(availableNow=True).start(f"{out}/data")
    assert query.awaitTermination(120)
    assert query.exception() is None
    progress = [one for one in query.recentProgress if one["numInputRows"]]
    assert len(progress) >= 3
    lags = [json.loads(one["sources"][0]["latestOffset"])["lag"]["bytes"] for one in progress]
    assert lags == sorted(lags, reverse=True)
    assert lags[0] > lags[-1] == 0
    assert results(spark, out) == [row["offset"] for row in rows_of(SEGMENTS)]


def test_spark_reports_loss_as_the_query_error(spark: SparkSession, tmp_path: Path) -> None:
    source, out = tmp_path / "in" / "segments-by-size-0", tmp_path / "out"
    source.mkdir(parents=True)
    one, two, three, *_ = logs(SEGMENTS)
    shutil.copy(one, source)
    (source / two.name).write_bytes(two.read_bytes()[:3000])
    collect(spark, source, out).trigger(availableNow=True).start(f"{out}/data").awaitTermination(120)
    (source / one.name).unlink()
    (source / two.name).unlink()
    shutil.copy(three, source)
    query = collect(spark, source, out).trigger(availableNow=True).start(f"{out}/data")
    with pytest.raises(Exception, match="deleted before they were read"):
        query.awaitTermination(120)
