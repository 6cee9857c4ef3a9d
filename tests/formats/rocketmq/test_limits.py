"""Small commit logs that hold far more than memory (issue 13, A3)."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest

import rawlog
from rawlog.formats.rocketmq import commitlog
from rawlog.formats.rocketmq.kernels import encode
from rawlog.formats.rocketmq.layouts import BATCH_MASK
from rawlog.kernels import byte_view
from rawlog.lakes.targets import LossCheck, LossError
from rawlog.model.errors import LimitError
from rawlog.model.format import Format
from tests.data import memory
from tests.data.golden import golden_path
from tests.reference import kafka as reference_kafka
from tests.reference import rocketmq as reference

STORE = golden_path("rocketmq", "5.1.4", "store")
COMPRESSED = 1 | 3 << 8
MOST = (64 << 20) - 100
HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])


def message(
    body: bytes,
    flag: int,
    *,
    topic: bytes = b"topic",
    properties: bytes = b"",
    born: int = 1_700_000_000_000,
    stored: int = 1_700_000_000_000,
) -> reference.Message:
    return reference.Message(
        0, 0, 1, 0, 0, 0, 0, 0, flag, born, HOST, stored, HOST, 0, 0, body, topic, properties
    )  # fmt: skip


def stored(folder: Path, *messages: reference.Message) -> Path:
    """A commit log of these messages, each at its place."""
    data = b""
    for number, one in enumerate(messages):
        one.physical_offset, one.queue_offset = len(data), number
        data += reference.encode(one)
    path = folder / "store" / "commitlog" / f"{0:020}"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    return path


def lost(path: Path) -> dict[str, int]:
    """The columns that a copy in another form would not have as they are, and in how many rows."""
    check = LossCheck(Format(name="jsonl", title="", files=""), {})
    with pytest.raises(LossError):
        list(check.over(rawlog.open(path).table().batches()))
    return {name: one.rows for name, one in check.lost.items()}


def inner(body: bytes, properties: bytes) -> bytes:
    """A message as it is inside of another."""
    head = struct.pack(">iiiii", 22 + len(body) + len(properties), 0, 0, 0, len(body))
    return head + body + struct.pack(">h", len(properties)) + properties


def packed(piece: bytes, count: int) -> bytes:
    """`piece` so many times, compressed without ever being in memory."""
    writer = zlib.compressobj(6)
    many = max(1, (1 << 20) // len(piece))
    parts = [writer.compress(piece * many) for _ in range(count // many)]
    return b"".join([*parts, writer.compress(piece * (count % many)), writer.flush()])


def test_many_batch_messages_are_taken_apart_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = rawlog.read(STORE)
    sizes = [one.num_rows for one in rawlog.open(STORE).table().batches()]
    monkeypatch.setattr(commitlog, "MOST_INNER", 40)
    assert rawlog.read(STORE).equals(whole)
    assert len(list(rawlog.open(STORE).table().batches())) > len(sizes)


def test_one_message_with_many_inside_is_taken_apart_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than 524,288 messages in one were an error that no option could change."""
    whole = rawlog.read(STORE)
    monkeypatch.setattr(commitlog, "MOST_INNER", 1)
    assert rawlog.read(STORE).equals(whole)


def test_a_large_body_is_read_alone_and_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = [bytes([number]) * 1000 for number in range(3)]
    inside = inner(b"first", b"KEYS\x01k\x02") + inner(b"second", b"")
    path = stored(
        tmp_path,
        *(message(zlib.compress(body), COMPRESSED) for body in bodies),
        message(zlib.compress(inside), COMPRESSED | BATCH_MASK),
        message(b"plain", 0),
    )
    whole = rawlog.read(path)
    assert whole["value"].to_pylist() == [*bodies, b"first", b"second", b"plain"]
    shown = rawlog.read(path, table="rocketmq.messages")
    for large in (0, 100, 999):
        monkeypatch.setattr(commitlog, "LARGE", large)
        assert rawlog.read(path).equals(whole)
        assert rawlog.read(path, table="rocketmq.messages").equals(shown)
        assert not rawlog.verify(path, rule=["rocketmq.commitlog.inner-batch", "rocketmq.commitlog.body"])


def test_the_limit_is_an_option_and_an_error_with_its_place(tmp_path: Path) -> None:
    """`verify` said that such a body was damaged."""
    first = message(b"plain", 0)
    path = stored(tmp_path, first, message(zlib.compress(bytes(5000)), COMPRESSED))
    with pytest.raises(LimitError, match="--max-decompressed raises it") as caught:
        rawlog.read(path, max_decompressed=4999)
    assert (caught.value.path, caught.value.position) == (str(path), len(reference.encode(first)))
    assert not {one.code for one in rawlog.verify(path)} & {"rocketmq.commitlog.limit", "rocketmq.commitlog.body"}
    found = {one.code: one for one in rawlog.verify(path, max_decompressed=4999)}
    assert found["rocketmq.commitlog.limit"].severity == "warning"
    assert "rocketmq.commitlog.body" not in found


def test_the_limit_of_a_compaction_log_is_a_finding(tmp_path: Path) -> None:
    """`verify` found nothing wrong with a log whose bodies no reader took: it did not decompress them."""
    log = tmp_path / "compaction" / "compactionLog" / "topic" / "0" / f"{0:020}"
    log.parent.mkdir(parents=True)
    log.write_bytes(reference.encode(message(zlib.compress(bytes(5000)), COMPRESSED)))
    assert not rawlog.verify(log)
    [finding] = rawlog.verify(log, max_decompressed=4999)
    assert (finding.code, finding.severity) == ("rocketmq.compactionlog.limit", "warning")


SMALL = inner(b"", b"")
PAIRS = inner(b"", b"\x01\x02" * 16383)
BOMBS = {
    "a body": lambda: message(packed(bytes(1000), MOST // 1000), COMPRESSED),
    "messages in one": lambda: message(packed(SMALL, MOST // len(SMALL)), COMPRESSED | BATCH_MASK),
    "properties of messages in one": lambda: message(packed(PAIRS, MOST // len(PAIRS)), COMPRESSED | BATCH_MASK),
}


@pytest.mark.parametrize(
    ("name", "verb"),
    [
        ("a body", "head -n 1 --json"),
        ("messages in one", "verify"),
        ("properties of messages in one", "head -n 1 --json"),
    ],
)
def test_a_small_file_never_takes_much_memory(tmp_path: Path, name: str, verb: str) -> None:
    """`head` took 3.5 GB for a body of 256 MB, 1.7 GB for properties."""
    path = stored(tmp_path, BOMBS[name]())
    assert path.stat().st_size < 1 << 20
    command, *options = verb.split()
    ended = memory.rawlog(command, path, *options)
    assert ended.megabytes < memory.LARGEST, ended.err
    assert ended.code == 0, ended.err


def test_far_times_are_null_and_never_an_error(tmp_path: Path) -> None:
    """A broker takes any number. The store time was "a store time that cannot be", a warning."""
    far = (1 << 63) - 1
    path = stored(tmp_path, message(b"", 0, born=far, stored=1), message(b"", 0, stored=far))
    rows = rawlog.read(path)
    assert rows["timestamp"].null_count == 1
    assert rawlog.open(path).table().count() == len(rows) == 2
    shown = rawlog.read(path, table="rocketmq.messages")
    assert (shown["born_timestamp"].null_count, shown["store_timestamp"].null_count) == (1, 1)
    found = [
        one
        for one in rawlog.verify(path)
        if one.code in ("rocketmq.commitlog.far-timestamp", "rocketmq.commitlog.time")
    ]
    assert [(one.code, one.severity) for one in found] == [("rocketmq.commitlog.far-timestamp", "info")] * 2
    assert lost(path) == {"timestamp": 1}


@pytest.mark.parametrize(
    "raw", [b"\xfe", b"\xe2\x82a", b"\xed\xa0\x80", b"a\xf0\x90\x80", b"\xf4\x90\x80\x80", b"\xc0\x80"]
)
def test_text_that_is_not_utf8_reads_and_hashes_as_in_java(tmp_path: Path, raw: bytes) -> None:
    """Tag hashes had one U+FFFD for each byte, so that `verify` said of a broker's queue that it differs."""
    properties = b"TAGS\x01" + raw + b"\x02" + raw + b"\x01v\x02"
    path = stored(tmp_path, message(b"", 0, topic=b"t" + raw, properties=properties))
    [row] = rawlog.read(path, table="rocketmq.messages").to_pylist()
    text = reference_kafka.java_string(raw)
    assert (row["topic"], row["tags"], dict(row["properties"])[text]) == (f"t{text}", text, "v")
    [row] = rawlog.read(path).to_pylist()
    assert row["headers"] == [{"key": "TAGS", "value": raw}, {"key": text, "value": b"v"}]
    assert encode.hash_utf8(byte_view(raw), 0, len(raw), 0) == reference.java_hash(text) & 0xFFFFFFFF
    assert rawlog.verify(path).verdict == "clean"
    assert lost(path) == {"topic": 1, "headers": 1}
