"""Headers alone: what they tell is what reading every byte tells, for a small part of the bytes."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

import rawlog
from rawlog.formats.kafka.log.seek import skim
from rawlog.formats.kafka.partition import transactions
from rawlog.io.storage import Source
from rawlog.model.errors import DataError
from tests.reference import kafka

SIZE = 8_000


def make(folder: Path, seed: int, batches: int = 300) -> Path:
    """A log of large batches, among them the transactions of three producers, in two segments."""
    rng, opened = random.Random(seed), set[int]()
    folder.mkdir(parents=True)
    pieces: list[bytes] = []
    bases: list[int] = []
    for offset in range(batches):
        producer = rng.randrange(1, 4)
        marker = producer in opened and rng.random() < 0.2
        bases.append(offset)
        if marker:
            opened.discard(producer)
            record = kafka.encode_record(0, 0, struct.pack(">hh", 0, rng.randrange(2)), struct.pack(">hi", 0, 1))
        else:
            opened.add(producer)
            record = kafka.encode_record(0, 0, b"k", rng.randbytes(SIZE))
        pieces.append(
            kafka.encode_batch(
                record,
                record_count=1,
                base_offset=offset,
                base_timestamp=1000,
                max_timestamp=1000,
                producer_id=producer,
                producer_epoch=0,
                base_sequence=-1,
                is_transactional=True,
                is_control=marker,
            )
        )
    half = batches // 2
    (folder / f"{0:020d}.log").write_bytes(b"".join(pieces[:half]))
    (folder / f"{bases[half]:020d}.log").write_bytes(b"".join(pieces[half:]))
    return folder


@pytest.fixture
def bytes_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    read: list[int] = []
    original = Source.read_into

    def counted(self: Source, position: int, target: memoryview) -> int:
        got = original(self, position, target)
        read.append(got)
        return got

    monkeypatch.setattr(Source, "read_into", counted)
    return read


def test_count_reads_headers_only(tmp_path: Path, bytes_read: list[int]) -> None:
    """`count` read every byte of the log to compare checksums that nobody had asked for."""
    folder = make(tmp_path / "orders-0", 1)
    rows = rawlog.open(folder).table("records")
    expected = rows.to_arrow().num_rows
    size = sum(path.stat().st_size for path in folder.glob("*.log"))
    bytes_read.clear()
    assert rows.count() == expected
    assert sum(bytes_read) < size // 10


@pytest.mark.parametrize("seed", range(3))
def test_transactions_are_known_from_headers(tmp_path: Path, seed: int, bytes_read: list[int]) -> None:
    folder = make(tmp_path / "orders-0", seed)
    files = rawlog.open(folder).files
    size = sum(file.size for file in files)
    transactions._fold_log.cache_clear()
    bytes_read.clear()
    found, pending = transactions.of_partition(files)
    assert sum(bytes_read) < size // 10
    checked = transactions._fold_sound(files)
    assert pending == checked.open_transactions()
    assert list(zip(found.producers, found.firsts, found.ends, strict=True)) == [
        (one.producer_id, one.first_offset, one.last_offset) for one in checked.aborted
    ]


@pytest.mark.parametrize("seed", range(6))
def test_damage_changes_nothing(tmp_path: Path, seed: int) -> None:
    """A flipped bit in a header, in a length, in a marker: what checked batches tell is still what counts."""
    folder = make(tmp_path / "orders-0", seed, batches=60)
    rng = random.Random(seed)
    for path in folder.glob("*.log"):
        data = bytearray(path.read_bytes())
        starts = [int(at) for window in skim(rawlog.open(path).files[0]) for at in window.positions]
        for start in rng.sample(starts, 4):
            data[start + rng.choice([8, 10, 11, 22, 44, 60, 70])] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
    files = rawlog.open(folder).files
    found, pending = transactions.of_partition(files)
    checked = transactions._fold_sound(files)
    assert pending == checked.open_transactions()
    aborted = {(one.producer_id, one.last_offset) for one in checked.aborted}
    assert {(int(p), int(e)) for p, e in zip(found.producers, found.ends, strict=True)} >= aborted


def test_a_length_that_leads_nowhere_is_still_an_error(tmp_path: Path) -> None:
    folder = make(tmp_path / "orders-0", 1, batches=40)
    path = min(folder.glob("*.log"))
    data = bytearray(path.read_bytes())
    second = int(next(iter(skim(rawlog.open(path).files[0]))).positions[1])
    data[second + 8 : second + 12] = b"\0\0\0\5"
    path.write_bytes(data)
    with pytest.raises(DataError):
        rawlog.open(path).table("records").count()
