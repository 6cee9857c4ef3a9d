"""Small files that hold far more than memory: rows and headers are bounded as bytes are (issue 13, A3)."""

from __future__ import annotations

import gzip
import io
import os
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings

import rawlog
from rawlog.formats.kafka.log import records as reader
from rawlog.formats.kafka.log.heads import Heads, heads
from rawlog.formats.kafka.log.segment import (
    decode_bounded,
    only,
    pieces,
    scan,
)
from rawlog.kernels import byte_view
from rawlog.model.errors import CorruptError, LimitError
from rawlog.model.frames import Frames
from tests.data import memory
from tests.reference import kafka as reference
from tests.reference.strategies import Sample, logs

MOST = 64 << 20
ZSTD, GZIP = 4, 1


def varint(value: int) -> bytes:
    value = value << 1 if value >= 0 else (-value << 1) - 1
    out = b""
    while value >= 0x80:
        out += bytes((value & 0x7F | 0x80,))
        value >>= 7
    return out + bytes((value,))


def packed(head: bytes, piece: bytes, count: int, codec: int = ZSTD) -> bytes:
    """`head` and then `piece` so many times, compressed without ever being in memory."""
    out = io.BytesIO()
    writer = (
        zstandard.ZstdCompressor().stream_writer(out, closefd=False)
        if codec == ZSTD
        else gzip.GzipFile(fileobj=out, mode="wb")
    )
    many = max(1, (1 << 20) // len(piece))
    with writer:
        writer.write(head)
        for _ in range(count // many):
            writer.write(piece * many)
        writer.write(piece * (count % many))
    return out.getvalue()


def many_headers(count: int) -> bytes:
    """A batch with one record that has nothing but so many empty headers."""
    inside = bytes((0, 0, 0, 1, 1)) + varint(count)
    return batch(packed(varint(len(inside) + 2 * count) + inside, bytes(2), count), 1)


def many_records(count: int) -> bytes:
    """A batch of so many records that hold nothing, all with the same offset, which no checksum forbids."""
    return batch(packed(b"", bytes((12, 0, 0, 0, 1, 1, 0)), count), count)


def headers_everywhere(records: int, each: int) -> bytes:
    """A batch of records with some headers each: far too many together."""
    inside = bytes((0, 0, 0, 1, 1)) + varint(each) + bytes(2 * each)
    return batch(packed(b"", varint(len(inside)) + inside, records), records)


def batch(content: bytes, count: int, codec: int = ZSTD) -> bytes:
    covered = struct.pack(">hiqqqhii", codec, max(count - 1, 0), 0, 0, -1, -1, -1, count) + content
    return struct.pack(">qiibI", 0, 9 + len(covered), 0, 2, reference.crc32c(covered)) + covered


def many_entries(count: int) -> bytes:
    """A wrapper of magic 1 around so many entries without key and value."""
    entry = reference.encode_entry(1, 0, None, None, timestamp=0)
    return reference.encode_entry(1, 0, None, packed(b"", entry, count, GZIP), timestamp=0, attributes=GZIP)


def stored(folder: Path, data: bytes) -> Path:
    path = folder / "bomb-0" / f"{0:020}.log"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    return path


BOMBS = {
    "headers of one record": lambda: many_headers(MOST // 2 - 100),
    "records": lambda: many_records(MOST // 7 - 100),
    "headers of many records": lambda: headers_everywhere(32_000, 1000),
    "several batches": lambda: many_records(400_000) * 60,
    "entries of magic 1": lambda: many_entries(MOST // 34 - 100),
}


def one_value(size: int) -> bytes:
    """A batch with one record whose value is so many zeros."""
    inside = bytes((0, 0, 0, 1)) + varint(size)
    return batch(packed(varint(len(inside) + size + 1) + inside, bytes(1), size + 1), 1)


READ, ALL = ("head -n 1 --json", "verify"), ("head -n 1 --json", "verify", "tail -n 1", "explain --at 0")
VERBS = [(name, verb) for name in BOMBS for verb in (ALL if name == "headers of many records" else READ)]


@pytest.mark.parametrize(("name", "verb"), VERBS)
def test_a_small_file_never_takes_much_memory(tmp_path: Path, name: str, verb: str) -> None:
    """`head -n 1` of a batch of 24 KB took 7.4 GB for 131 million headers, 3.3 GB for 38 million records; `verify` up to 2.1 GB."""
    path = stored(tmp_path, BOMBS[name]())
    assert path.stat().st_size < 1 << 20
    command, *options = verb.split()
    ended = memory.rawlog(command, path, *options)
    assert ended.megabytes < memory.LARGEST, ended
    assert ended.code in (0, 1), ended
    assert "Traceback" not in ended.err
    assert "internal" not in ended.err


@pytest.mark.parametrize("verb", ["head -n 1 --json", "convert --to parquet"])
def test_a_large_value_is_written_in_pieces(tmp_path: Path, verb: str) -> None:
    """A value of 256 MB took 3.9 GB as JSON, which has six bytes for a zero, and 1.3 GB as Parquet."""
    path = stored(tmp_path, one_value(MOST - 100))
    command, *options = verb.split()
    target = [tmp_path / "rows.parquet"] if command == "convert" else []
    ended = memory.rawlog(command, path, *target, *options)
    assert ended.code == 0, ended.err
    assert ended.megabytes < memory.LARGEST


def test_a_large_value_is_the_same_without_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = reference.encode_record(0, 0, b"key", bytes(range(256)) * 8, [("h", b"v")])
    for one in (record, reference.encode_record(0, 0, None, None)):
        path = stored(tmp_path / str(len(one)), reference.encode_batch(one, record_count=1))
        whole = rawlog.read(path)
        monkeypatch.setattr(reader, "SLICE_BYTES", 1)
        assert rawlog.read(path).equals(whole)
        monkeypatch.undo()


def test_writers_take_large_batches_a_slice_at_a_time(tmp_path: Path) -> None:
    path = stored(tmp_path, many_records(4_000_000))
    ended = memory.rawlog("convert", path, tmp_path / "rows.parquet", "--to", "parquet")
    assert (ended.code, ended.out) == (0, f"4,000,000 rows\nconvert: {tmp_path / 'rows.parquet'}\n"), ended
    assert ended.megabytes < memory.LARGEST


def test_the_limit_is_an_option_and_an_error_with_its_place(tmp_path: Path) -> None:
    good = batch(zstandard.compress(bytes((12, 0, 0, 0, 1, 1, 0))), 1)
    path = stored(tmp_path, good + many_headers(5000))
    assert [len(row) for row in rawlog.read(path)["headers"].to_pylist()] == [0, 5000]
    with pytest.raises(
        LimitError, match=r"record 0: 5,000 headers, more than the limit of 4,999; --max-headers raises it"
    ) as caught:
        rawlog.read(path, max_headers=4999)
    assert (caught.value.path, caught.value.position) == (str(path), len(good))
    assert rawlog.read(path, max_headers=4999, errors="skip").num_rows == 1
    assert rawlog.read(path, max_headers=4999, columns=["offset"]).num_rows == 2
    with pytest.raises(LimitError, match="--max-decompressed raises it"):
        rawlog.read(path, max_decompressed=5000)
    assert "kafka.log.limit" not in {one.code for one in rawlog.verify(path)}
    for limits in ({"max_headers": 4999}, {"max_decompressed": 5000}):
        [found] = [one for one in rawlog.verify(path, **limits) if one.code == "kafka.log.limit"]
        assert (found.severity, found.position) == ("warning", len(good))
    found_codes = {one.code for one in rawlog.verify(path, max_headers=4999)}
    assert found_codes == {"kafka.log.limit", "kafka.log.order", "kafka.partition.displaced"}


def test_a_large_genuine_batch_is_read_whole(tmp_path: Path) -> None:
    """A batch of a million small records is legal, and so are thousands of headers."""
    count = 1_000_000
    records = b"".join(
        varint(len(body)) + body for body in (b"\0\0" + varint(number) + b"\1\1\0" for number in range(count))
    )
    path = stored(tmp_path, batch(zstandard.compress(records), count))
    assert rawlog.read(path, columns=["offset"]).column("offset").to_pylist() == list(range(count))
    assert next(rawlog.open(path).table().batches()).num_rows == reader.SLICE_ROWS
    assert rawlog.verify(path).verdict == "clean"
    assert rawlog.read(path, last=3)["offset"].to_pylist() == [count - 3, count - 2, count - 1]
    assert rawlog.read(path, where="offset = 900000").num_rows == 1


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices of a few records, so that small batches have several."""
    monkeypatch.setattr(reader, "SLICE_ROWS", 3)
    monkeypatch.setattr(reader, "SLICE_BYTES", 200)
    monkeypatch.setattr(reader, "SLICE_HEADERS", 4)


@given(sample=logs())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_slices_give_the_rows_of_the_whole(sample: Sample, tiny: None) -> None:
    frames = scan(byte_view(sample.data), 0)
    head = heads(frames)
    kinds = head["magic"] == 2
    for index in range(len(frames)):
        one, own = frames.slice(index, index + 1), head.slice(index, index + 1)
        parts = [columns for _, _, columns in decode_bounded(one, own, set(reader.COLUMNS), MOST, 1 << 20)]
        assert [part.first for part in parts] == np.cumsum([0, *(part.count for part in parts)])[:-1].tolist()
        assert all(part.count <= 3 for part in parts)
    for kind in (True, False):
        some, own = _only(frames, head, kinds == kind)
        if not len(some):
            continue
        parts = [columns for _, _, columns in decode_bounded(some, own, set(reader.COLUMNS), MOST, 1 << 20)]
        found = [row for part in parts for row in pa.table(part.arrays).to_pylist()]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reader, "SLICE_ROWS", 1 << 18)
            patch.setattr(reader, "SLICE_BYTES", 1 << 26)
            patch.setattr(reader, "SLICE_HEADERS", 1 << 18)
            whole = [columns for _, _, columns in decode_bounded(some, own, set(reader.COLUMNS), MOST, 1 << 20)]
        assert found == [row for part in whole for row in pa.table(part.arrays).to_pylist()]


def _only(frames: Frames, head: Heads, mask: np.ndarray) -> tuple[Frames, Heads]:
    return only(frames, mask), head.only(mask)


@pytest.mark.parametrize("count", [10, 12])
@pytest.mark.parametrize("at", [0, 5, 9])
def test_a_large_batch_is_read_whole_or_not_at_all(tiny: None, count: int, at: int, tmp_path: Path) -> None:
    """Slices are given only once all of them are known to be sound; the error is that of the whole batch."""
    records = [reference.encode_record(number, number, b"k", b"v" * 9) for number in range(10)]
    if count == 10:
        records[at] = b"\x0e" + bytes((0, 0, 0, 1, 1, 0x7F, 0))
    data = reference.encode_batch(b"".join(records), record_count=count, base_timestamp=0, max_timestamp=9)
    good = reference.encode_batch(records[at - 1] if at else b"", record_count=int(at > 0), base_offset=20)
    path = stored(tmp_path, data + good)
    message = (
        f"record {at} of 10, byte {len(b''.join(records[:at]))} of the records"
        if count == 10
        else "10 records, 12 declared"
    )
    seen = []
    with pytest.raises(CorruptError, match=message):
        seen.extend(rawlog.open(path).table().batches())
    assert not seen
    assert rawlog.read(path, errors="skip").num_rows == int(at > 0)


@pytest.mark.parametrize("verb", ["compact", "erase", "convert"])
def test_verbs_that_rewrite_batches_never_take_much_memory(tmp_path: Path, verb: str) -> None:
    """`compact` of 8 KB with 12 million records took 918 MB, `erase` of 19 KB with 30 million 764 MB."""
    path = stored(tmp_path, many_records(MOST // 7 - 100))
    options = {"compact": ["--roll"], "erase": ["--key", "a"], "convert": ["--to", "kafka", "--where", "offset > 0"]}
    ended = memory.rawlog(verb, path.parent, tmp_path / "out", *options[verb])
    assert ended.megabytes < memory.LARGEST, ended
    # erase keeps the batch, and reports what verify finds in it
    assert ended.code == (0 if verb == "convert" else 1), ended
    if verb == "compact":
        assert "records in one batch, more than the 4,194,304 that can be rewritten" in ended.err
        assert not (tmp_path / "out").exists()


def test_many_batches_with_many_records_are_taken_a_few_at_a_time() -> None:
    data = byte_view(many_records(1_000_000) * 9)
    frames = scan(data, 0)
    assert list(pieces(frames, heads(frames))) == [(0, 4), (4, 8), (8, 9)]


def test_texts_larger_than_the_limit_are_not_read(tmp_path: Path) -> None:
    """Checkpoints and the like are read whole: one of 4 GB that takes no place on the disk took all memory."""
    path = stored(tmp_path, batch(zstandard.compress(bytes((12, 0, 0, 0, 1, 1, 0))), 1))
    for large in (path.parent / "leader-epoch-checkpoint", tmp_path / "meta.properties"):
        large.touch()
        os.truncate(large, 1 << 32)
    found = {one.code: one for one in rawlog.verify(tmp_path)}
    assert {"kafka.epochs.header", "kafka.meta.header"} <= set(found)
    assert "more than the limit of 67,108,864" in found["kafka.meta.header"].message
    assert rawlog.read(tmp_path).num_rows == 1


def test_a_snapshot_that_declares_more_entries_than_it_has(tmp_path: Path) -> None:
    path = stored(tmp_path, batch(zstandard.compress(bytes((12, 0, 0, 0, 1, 1, 0))), 1))
    body = struct.pack(">i", 0x7FFFFFFF) + bytes(100)
    head = struct.pack(">hI", 1, reference.crc32c(body))
    (path.parent / f"{1:020}.snapshot").write_bytes(head + body)
    assert "kafka.snapshot.framing" in {one.code for one in rawlog.verify(tmp_path)}
