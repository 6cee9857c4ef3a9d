"""Metadata records that would become far more in memory than they are in a file (issue 13, A3)."""

from __future__ import annotations

from pathlib import Path

import pytest

import rawlog
from rawlog.formats.kafka.internal import codec, topics
from rawlog.model.errors import LimitError
from tests.data import memory
from tests.formats.kafka.log.test_limits import batch, packed, varint
from tests.reference import kafka as reference

FEATURE = bytes((1, 12, 0, 17)) + b"metadata.version" + bytes((0, 7, 0))


def stored(folder: Path, data: bytes) -> Path:
    path = folder / "__cluster_metadata-0" / f"{0:020}.log"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    return path


def log_of(*values: bytes) -> bytes:
    return b"".join(
        reference.encode_batch(reference.encode_record(0, 0, None, value), record_count=1, base_offset=offset)
        for offset, value in enumerate(values)
    )


def test_a_record_above_the_limit_is_an_error_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = stored(tmp_path, log_of(FEATURE, FEATURE))
    assert rawlog.read(path, table="kraft.metadata").num_rows == 2
    first = path.stat().st_size // 2
    path.write_bytes(log_of(FEATURE, FEATURE + bytes(100)))
    monkeypatch.setattr(codec, "LARGEST_MESSAGE", 100)
    with pytest.raises(
        LimitError, match="offset 1: FeatureLevelRecord version 0: 120 bytes, more than the limit of 100"
    ) as caught:
        rawlog.read(path, table="kraft.metadata")
    assert (caught.value.path, caught.value.position) == (str(path), first)
    assert rawlog.verify(tmp_path).verdict == "suspect"


def test_records_become_values_some_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = stored(tmp_path, log_of(*[FEATURE] * 7))
    whole = rawlog.read(path, table="kraft.metadata")
    monkeypatch.setattr(topics, "MOST_ROWS", 2)
    assert rawlog.read(path, table="kraft.metadata").equals(whole)


def test_names_that_are_not_utf8_are_read_as_in_kafka(tmp_path: Path) -> None:
    """`cat --table kraft.metadata` showed such a record raw, and the fold refused it."""
    odd = bytes((1, 12, 0, 4)) + b"a\xffb" + bytes((0, 7, 0))
    path = stored(tmp_path, log_of(FEATURE, odd))
    rows = rawlog.read(path, table="kraft.metadata").to_pylist()
    assert [row["type"] for row in rows] == ["FEATURE_LEVEL_RECORD"] * 2
    assert "a\ufffdb" in rows[1]["value"]
    assert "a\ufffdb" in rawlog.read(tmp_path, table="kraft.features")["name"].to_pylist()


def test_a_small_file_never_takes_much_memory(tmp_path: Path) -> None:
    """`verify` of 24 KB with one record of 38 million end points took more than 5 GB and did not end."""
    count = (64 << 20) // 7 - 100
    head = bytes((1, 0, 0)) + bytes(28) + codec.write_uvarint(count + 1)
    size = len(head) + 7 * count - 1  # the last zero is the number of the record's headers
    inside = bytes((0, 0, 0, 1)) + varint(size)
    record = varint(len(inside) + size + 1) + inside + head
    content = packed(record, bytes((1, 1, 0, 0, 0, 0, 0)), count)
    path = stored(tmp_path, batch(content, 1))
    ended = memory.rawlog("verify", path.parent)
    assert ended.megabytes < memory.LARGEST, ended.err
    assert ended.code == 1, ended.err
    assert "more than the limit of 16,777,216" in ended.out
