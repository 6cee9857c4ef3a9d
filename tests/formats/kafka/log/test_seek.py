"""Indexes are used to begin near what is asked for, and trusted only where they tell the truth."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import numpy as np
import pytest

import rawlog
from rawlog.formats.kafka.log import segment
from rawlog.io.storage import Source
from rawlog.model.format import File
from rawlog.reading.select import Selection
from tests.reference import kafka

BATCHES, RECORDS = 3000, 50
START = 1_700_000_000_000


@pytest.fixture(scope="module")
def partition(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A segment of some 18 MB with the indexes a broker would have written."""
    folder = tmp_path_factory.mktemp("seek") / "orders-0"
    folder.mkdir()
    body = b"".join(kafka.encode_record(delta, delta, b"key", bytes(100)) for delta in range(RECORDS))
    log, index, times, since = bytearray(), bytearray(), bytearray(), 0
    for number in range(BATCHES):
        base, time = number * RECORDS, START + number * 1000
        batch = kafka.encode_batch(
            body, record_count=RECORDS, base_offset=base, base_timestamp=time, max_timestamp=time + RECORDS - 1
        )
        if since > 4096:
            index += struct.pack(">ii", base + RECORDS - 1, len(log))
            times += struct.pack(">qi", time + RECORDS - 1, base + RECORDS - 1)
            since = 0
        log += batch
        since += len(batch)
    for suffix, data in ((".log", log), (".index", index), (".timeindex", times)):
        (folder / f"{0:020d}{suffix}").write_bytes(data)
    assert rawlog.verify(folder).verdict == "clean"
    return folder


@pytest.fixture
def read_bytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes of the log were read."""
    sizes: list[int] = []
    original = Source.read_into

    def counted(self: Source, position: int, target: memoryview) -> int:
        got = original(self, position, target)
        if self.path.endswith(".log"):
            sizes.append(got)
        return got

    monkeypatch.setattr(Source, "read_into", counted)
    return sizes


@pytest.mark.parametrize("offset", [0, 1, 77_777, BATCHES * RECORDS - 1])
def test_a_point_read_reads_little(offset: int, partition: Path, read_bytes: list[int]) -> None:
    (row,) = rawlog.read(partition, from_offset=offset, limit=1).to_pylist()
    assert row["offset"] == offset
    assert sum(read_bytes) < 1_000_000


def test_a_time_is_found_through_the_index(partition: Path, read_bytes: list[int]) -> None:
    (row,) = rawlog.read(partition, since=START + 2_000_010, limit=1).to_pylist()
    assert row["offset"] == 2000 * RECORDS + 10
    assert sum(read_bytes) < 1_000_000


def test_rows_from_an_offset_on_are_the_same_without_an_index(partition: Path, tmp_path: Path) -> None:
    lone = tmp_path / "orders-0"
    lone.mkdir()
    (lone / f"{0:020d}.log").symlink_to(partition / f"{0:020d}.log")
    for selection in ({"from_offset": 149_000}, {"since": START + 2_990_000}, {"from_offset": 10, "to_offset": 20}):
        assert rawlog.read(partition, **selection).equals(rawlog.read(lone, **selection))


def test_an_index_that_lies_is_not_followed(partition: Path, tmp_path: Path) -> None:
    for change in (1, -3, 10_000_000):
        folder = tmp_path / f"lies{change}-0"
        folder.mkdir()
        (folder / f"{0:020d}.log").symlink_to(partition / f"{0:020d}.log")
        data = bytearray((partition / f"{0:020d}.index").read_bytes())
        for at in range(0, len(data), 8):
            offset, position = struct.unpack_from(">ii", data, at)
            struct.pack_into(">ii", data, at, offset, position + change)
        (folder / f"{0:020d}.index").write_bytes(data)
        assert rawlog.read(folder, from_offset=77_777, limit=2)["offset"].to_pylist() == [77_777, 77_778]
        assert rawlog.open(folder).table().count() == BATCHES * RECORDS
        parts = rawlog.open(folder).table().parts(split_size=4 << 20)
        assert len(parts) > 1, "cut by walking where the index is no help"


def test_reading_ends_where_nothing_more_is_wanted(partition: Path, read_bytes: list[int]) -> None:
    rows = rawlog.read(partition, to_offset=120)
    assert rows["offset"].to_pylist() == list(range(120))
    assert sum(read_bytes) < 1_000_000


def test_segments_outside_of_what_is_wanted_are_not_opened(
    partition: Path, tmp_path: Path, read_bytes: list[int]
) -> None:
    """Of three segments, the wanted rows are in the second; the first lacks an index that could tell."""
    folder = tmp_path / "orders-0"
    folder.mkdir()
    log = (partition / f"{0:020d}.log").read_bytes()
    size = len(log) // BATCHES
    for base, stop in ((0, 1000), (1000, 2000), (2000, BATCHES)):
        (folder / f"{base * RECORDS:020d}.log").write_bytes(log[base * size : stop * size])
    wanted = {"from_offset": 1000 * RECORDS, "to_offset": 1000 * RECORDS + 7}
    assert rawlog.read(folder, **wanted)["offset"].to_pylist() == list(range(1000 * RECORDS, 1000 * RECORDS + 7))
    assert sum(read_bytes) < 1_000_000
    wide = {"from_offset": 1000 * RECORDS - 1, "to_offset": 2000 * RECORDS + 1}
    assert rawlog.read(folder, **wanted | wide).num_rows == 1000 * RECORDS + 2


def random_times(folder: Path, seed: int) -> None:
    """Segments whose times rise, fall, repeat, are negative or missing, by create or append time, with the time indexes of a broker."""
    rng, offset = random.Random(seed), 0
    folder.mkdir()
    for _ in range(3):
        log, index, times = bytearray(), bytearray(), bytearray()
        base, largest, at, indexed, top = offset, -1, 0, 0, -1
        for _ in range(rng.randrange(1, 25)):
            count, is_appended = rng.randrange(1, 6), rng.random() < 0.4
            stamps = [rng.choice([-1, -7, 0, rng.randrange(60), 10, offset]) for _ in range(count)]
            body = b"".join(
                kafka.encode_record(delta, stamp - stamps[0], b"k", bytes(rng.randrange(90)))
                for delta, stamp in enumerate(stamps)
            )
            highest = max(stamps)
            batch = kafka.encode_batch(
                body,
                record_count=count,
                base_offset=offset,
                codec=rng.choice([0, 0, 1]),
                timestamp_type=int(is_appended),
                base_timestamp=stamps[0],
                max_timestamp=highest,
            )
            offset += count
            if highest > largest:
                largest, at = highest, offset - 1
            if len(log) - indexed > 150:
                index += struct.pack(">ii", offset - 1 - base, len(log))
                if largest > top:
                    times += struct.pack(">qi", largest, at - base)
                    top = largest
                indexed = len(log)
            log += batch
        if largest > top:
            times += struct.pack(">qi", largest, at - base)
        for suffix, data in ((".log", log), (".index", index), (".timeindex", times)):
            (folder / f"{base:020d}{suffix}").write_bytes(data)


@pytest.mark.parametrize("seed", range(8))
def test_a_span_of_any_times_has_the_rows_of_a_full_read(seed: int, tmp_path: Path) -> None:
    """With create time a record may be older than all before it: no header and no index may leave it out."""
    folder = tmp_path / "orders-0"
    random_times(folder, seed)
    rows = rawlog.read(folder, columns=["offset", "timestamp"])
    offsets, times = rows["offset"].to_pylist(), rows["timestamp"].cast("int64").to_pylist()
    rng = random.Random(seed)
    for _ in range(12):
        since, until = (rng.choice([None, rng.randrange(-10, 70)]) for _ in range(2))
        bounds = {name: value for name, value in (("since", since), ("until", until)) if value is not None}
        expected = [
            offset
            for offset, time in zip(offsets, times, strict=True)
            if (since is None or (time is not None and time >= since * 1000))
            and (until is None or (time is not None and time < until * 1000))
        ]
        assert rawlog.read(folder, columns=["offset"], **bounds)["offset"].to_pylist() == expected, bounds


def test_batches_with_append_time_after_the_span_are_not_decoded() -> None:
    """All records of such a batch have one time, which the header tells; with create time it tells only the latest and the first."""
    data = b"".join(
        kafka.encode_batch(
            kafka.encode_record(0, 0, b"k", b"v") + kafka.encode_record(1, -500, b"k", b"v"),
            record_count=2,
            base_offset=number * 2,
            timestamp_type=number % 2,
            base_timestamp=1000 * number,
            max_timestamp=1000 * number,
        )
        for number in range(1, 7)
    )
    file = File("00000000000000000002.log", len(data), None, "kafka.log")
    frames = segment.scan(np.frombuffer(data, np.uint8), 0)
    taken = Selection(until=3_000_000).takes_frames(segment.spans(frames, file))
    assert taken is not None
    assert taken.tolist() == [True, True, False, True, False, True]
