"""Indexes are used to begin near what is asked for, and trusted only where they tell the truth."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

import rawlog
from rawlog.io.storage import Source
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
