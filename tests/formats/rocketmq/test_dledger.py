"""A store whose commit log DLedger wrote: messages inside of its entries, after the format (specs: 48 bytes of head before each)."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

import rawlog
from rawlog.model.errors import OptionError
from tests.data.rocketmq_rewriting import rebuilt, repaired
from tests.formats.rocketmq.test_conformance import message
from tests.reference import rocketmq as reference

FILE, HEAD = 4096, 48
SIZES = {"commitlog_size": str(FILE), "queue_size": "2000", "index_slots": "50", "index_entries": "150"}


def dledger(root: Path, count: int = 60) -> list[reference.Message]:
    """A store of `count` messages in two queues, over several files, each closed by DLedger's own blank entry."""
    folder, made = root / "dledger-n0" / "data", []
    folder.mkdir(parents=True)
    data, position = b"", 0
    for number in range(count):
        one = message(
            queue_id=number % 2,
            queue_offset=number // 2,
            body=b"body-%d" % number,
            properties=b"TAGS\x01a\x02KEYS\x01key-%d\x02" % number,
            stored=1_700_000_000_000 + number,
        )
        size = HEAD + len(reference.encode(one))
        room = FILE - position % FILE
        if size + 8 > room:
            data += struct.pack(">ii", -1, room) + bytes(room - 8)
            position += room
        one.physical_offset = position + HEAD
        entry = reference.encode(one)
        data += struct.pack(">iiqqqiiii", 1, size, number, 3, position, 0, 0, 0, len(entry)) + entry
        position += size
        made.append(one)
    data += bytes(-len(data) % FILE)
    for start in range(0, len(data), FILE):
        (folder / f"{start:020}").write_bytes(data[start : start + FILE])
    for queue in (0, 1):
        units = [
            struct.pack(">qiq", one.physical_offset, len(reference.encode(one)), reference.java_hash("a"))
            for one in made
            if one.queue_id == queue
        ]
        path = root / "consumequeue" / "OrderTopic" / str(queue) / ("0" * 20)
        path.parent.mkdir(parents=True)
        path.write_bytes(b"".join(units).ljust(2000, b"\0"))
    return made


def test_messages_of_dledger_entries_are_read_and_sound(tmp_path: Path) -> None:
    made = dledger(tmp_path)
    rows = rawlog.read(tmp_path, table="rocketmq.messages").to_pylist()
    assert [(row["physical_offset"], row["body"]) for row in rows] == [(one.physical_offset, one.body) for one in made]
    assert not any(row["stale"] for row in rows)
    assert len(rawlog.read(tmp_path)) == len(made)
    findings = rawlog.verify(tmp_path)
    assert not findings.errors, list(findings)
    assert not [each for each in findings if each.severity == "warning"], list(findings)


def test_queues_of_a_dledger_log_are_rebuilt_as_they_were(tmp_path: Path) -> None:
    dledger(tmp_path / "store")
    rebuilt(tmp_path / "store", tmp_path / "out", SIZES)
    for path in (tmp_path / "store" / "consumequeue").rglob("0" * 20):
        assert (tmp_path / "out" / path.relative_to(tmp_path / "store")).read_bytes() == path.read_bytes()


def test_a_message_is_found_by_key_and_by_queue_offset(tmp_path: Path) -> None:
    made = dledger(tmp_path / "store")
    rebuilt(tmp_path / "store", tmp_path / "out", SIZES)
    for root in (tmp_path / "store", tmp_path / "out"):
        [row] = rawlog.read(root, key="key-31").to_pylist()
        assert row["value"] == made[31].body


def test_a_dledger_log_is_repaired_by_moving_its_messages_into_a_plain_one(tmp_path: Path) -> None:
    made = dledger(tmp_path / "store")
    with pytest.raises(OptionError, match="with move"):
        repaired(tmp_path / "store", tmp_path / "out", SIZES)
    report = repaired(tmp_path / "store", tmp_path / "out", SIZES | {"move": "true"})
    assert report.is_whole, report.lines()
    rows = rawlog.read(tmp_path / "out", table="rocketmq.messages").to_pylist()
    assert [row["body"] for row in rows] == [one.body for one in made]
    assert rows[1]["physical_offset"] == rows[0]["size"]
    assert rawlog.verify(tmp_path / "out").verdict == "clean", list(rawlog.verify(tmp_path / "out"))
