"""Compaction against a plain implementation of the same rules, over random logs; the real cleaner judges in test_compact_brokers."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import rawlog
from rawlog.cli import cli
from rawlog.formats.kafka.partition import Partition
from rawlog.formats.kafka.partition.compact import Settings
from rawlog.formats.kafka.partition.writer import SegmentLimits, segment_name
from rawlog.model.errors import DataError, OptionError
from tests.data.golden import kafka_cases
from tests.data.kafka_rewriting import rewritten
from tests.reference import cleaner, kafka

T = 1_700_000_000_000
DAY = 86_400_000
FOREVER = {"producer_id_expiration_ms": str(1 << 60)}


class Writer:
    """A log as a leader would write it: random batches of a few producers, some in transactions."""

    def __init__(self, draw: random.Random, *, codec: int, keys: int) -> None:
        self.draw, self.codec, self.keys = draw, codec, keys
        self.offset, self.time = 0, T
        self.segments: dict[int, bytes] = {0: b""}
        self.sequences: dict[int, int] = {}
        self.open: set[int] = set()

    def add(self, data: bytes, count: int) -> None:
        self.offset += count
        self.segments[max(self.segments)] += data

    def roll(self) -> None:
        self.segments[self.offset] = b""

    def batch(self) -> None:
        draw = self.draw
        producer = draw.choice((-1, -1, 7, 8, 9))
        transactional = producer >= 8
        count = draw.randrange(1, 7)
        records = b""
        self.time += draw.randrange(100)
        for delta in range(count):
            key = None if draw.random() < 0.05 else b"k%d" % draw.randrange(self.keys)
            value = None if draw.random() < 0.3 else draw.randbytes(draw.randrange(20))
            headers = [("h", draw.choice((None, b"x")))] if draw.random() < 0.2 else []
            records += kafka.encode_record(delta, draw.randrange(-50, 50), key, value, headers)
        if transactional:
            self.open.add(producer)
        sequence = self.sequences.get(producer, 0) if producer >= 0 else -1
        self.sequences[producer] = sequence + count
        made = kafka.encode_batch(
            records,
            record_count=count,
            base_offset=self.offset,
            codec=self.codec,
            timestamp_type=draw.choice((kafka.CREATE_TIME, kafka.LOG_APPEND_TIME)),
            base_timestamp=self.time,
            max_timestamp=self.time + 50,
            leader_epoch=3,
            producer_id=producer,
            producer_epoch=1 if producer >= 0 else -1,
            base_sequence=sequence,
            is_transactional=transactional,
        )
        self.add(made, count)

    def marker(self, producer: int, *, commit: bool, epoch: int = 1) -> None:
        self.open.discard(producer)
        record = kafka.encode_record(0, 0, bytes((0, 0, 0, commit)), bytes(6))
        made = kafka.encode_batch(
            record, record_count=1, base_offset=self.offset, base_timestamp=self.time, max_timestamp=self.time, leader_epoch=3,
            producer_id=producer, producer_epoch=epoch, is_transactional=True, is_control=True,
        )  # fmt: skip
        self.add(made, 1)

    def fill(self) -> None:
        for _ in range(self.draw.randrange(10, 60)):
            if self.open and self.draw.random() < 0.4:
                bumped = self.draw.random() < 0.2  # as transaction.version 2 does: the marker's epoch is one higher
                self.marker(self.draw.choice(sorted(self.open)), commit=self.draw.random() < 0.5, epoch=1 + bumped)
            else:
                self.batch()
            if self.draw.random() < 0.15 and self.segments[max(self.segments)]:
                self.roll()


def put(folder: Path, segments: dict[int, bytes]) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for base, data in segments.items():
        (folder / segment_name(base, "log")).write_bytes(data)
    return folder


def logs(folder: Path) -> dict[int, bytes]:
    return {int(path.stem): path.read_bytes() for path in sorted(folder.glob("*.log"))}


def same(ours: dict[int, bytes], theirs: dict[int, bytes], *, exact: bool) -> None:
    assert sorted(ours) == sorted(theirs)
    for base in ours:
        if exact:
            assert ours[base] == theirs[base], base
        stated = [
            [{**vars_of(batch), "crc": 0, "size": 0, "position": 0} for batch in kafka.decode(data)]
            for data in (ours[base], theirs[base])
        ]
        assert stated[0] == stated[1], base


def vars_of(batch: kafka.Batch) -> dict[str, Any]:
    return {name: getattr(batch, name) for name in batch.__dataclass_fields__}


@pytest.mark.parametrize("seed", range(24))
def test_it_is_what_the_rules_say(seed: int, tmp_path: Path) -> None:
    """Three compactions of a growing log: horizons are set in one and run out in a later one."""
    draw = random.Random(f"compaction {seed}")
    writer = Writer(draw, codec=draw.choice((0, 0, 0, 1, 3, 4)), keys=draw.choice((1, 3, 20, 500)))
    retention, most_keys = draw.choice((0, 1, 1000)), draw.choice((37, 10_000))  # 1,024 bytes hold 37 keys
    dirty, now = 0, T + 10_000
    for turn in range(3):
        writer.fill()
        source = put(tmp_path / "t-0", writer.segments)
        size = draw.choice((300, 2000, 1 << 30))
        expected, first_dirty = cleaner.compact(
            writer.segments, now=now, retention=retention, most_keys=most_keys, segment_bytes=size, first_dirty=dirty
        )
        options = {
            "now": str(now),
            "delete.retention.ms": str(retention),
            "segment.bytes": str(size),
            "memory": "1024" if most_keys == 37 else str(1 << 20),
            "first_dirty": str(dirty),
        }
        target = tmp_path / f"out-{turn}" / "t-0"
        report = rewritten("compact", source, target, **options, **FOREVER)
        assert report.facts["first_dirty"] == first_dirty
        same(logs(target), expected, exact=writer.codec == 0)
        assert rawlog.verify(target).errors == 0, [str(one) for one in rawlog.verify(target)]
        if writer.codec == 0 or turn == 0:
            once_more = options | FOREVER | {"first_dirty": str(first_dirty)}
            again = rewritten("compact", target, tmp_path / f"again-{turn}" / "t-0", **once_more)
            assert again.counts["rounds"] == 0
            assert logs(tmp_path / f"again-{turn}" / "t-0") == logs(target)
        writer.segments = dict(expected)
        dirty, now = first_dirty, now + draw.choice((0, 500, 100_000))


def test_the_rewritten_batches_of_the_specification(tmp_path: Path) -> None:
    """kafka-log.md §6.7, by Kafka's own classes."""
    records = [
        kafka.encode_record(0, 0, b"k0", b"value-zero"),
        kafka.encode_record(1, 5, None, b"no-key"),
        kafka.encode_record(2, -3, b"k2", None),
        kafka.encode_record(3, 9, b"k3", b"x"),
    ]
    first = kafka.encode_batch(
        b"".join(records), record_count=4, base_offset=100, base_timestamp=T, max_timestamp=T + 9, leader_epoch=7,
        producer_id=4000, producer_epoch=3, base_sequence=10,
    )  # fmt: skip

    def compacted(*later: bytes) -> bytes:
        """The batch, compacted with records after it that have these keys."""
        more = b"".join(kafka.encode_record(delta, 0, key, b"") for delta, key in enumerate(later))
        after = kafka.encode_batch(
            more, record_count=len(later), base_offset=104, base_timestamp=T, max_timestamp=T, leader_epoch=7
        )
        source = put(tmp_path / "t-0", {100: first, 104: after, 200: b""})
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        rewritten("compact", source, tmp_path / "out" / "t-0", now=T + 1000, **FOREVER)
        data = (tmp_path / "out" / "t-0" / segment_name(100, "log")).read_bytes()
        return data[: data.index((104).to_bytes(8, "big"))]

    assert compacted(b"k0", b"k3").hex() == (
        "00000000000000640000003d00000007023a1f96680040000000030000018bd50bc7e80000018bcfe567fd0000000000000fa000030000000a00000001"
        "1600d5ffb25204046b320100"
    )
    assert compacted(b"k0", b"k2").hex() == (
        "00000000000000640000003b0000000702a9fd63fe0000000000030000018bcfe568090000018bcfe568090000000000000fa000030000000a00000001"
        "1200000604"
        "6b33027800"
    )
    assert compacted(b"k0", b"k2", b"k3").hex() == (
        "0000000000000064000000310000000702784690470000000000"
        "03ffffffffffffffff0000018bcfe568090000000000000fa000030000000a00000000"
    )


def test_the_active_segment_stays_unless_it_is_rolled(tmp_path: Path) -> None:
    record = [kafka.encode_record(delta, 0, b"k", b"%d" % delta) for delta in range(5)]
    data = kafka.encode_batch(b"".join(record), record_count=5, base_timestamp=T, max_timestamp=T)
    source = put(tmp_path / "t-0", {0: data})
    assert rewritten("compact", source, tmp_path / "a" / "t-0", now=T).counts["rounds"] == 0
    assert logs(tmp_path / "a" / "t-0") == {0: data}
    report = rewritten("compact", source, tmp_path / "b" / "t-0", now=T, roll="true")
    assert [report.counts[name] for name in ("rounds", "records_read", "records_kept")] == [1, 5, 1]
    assert report.facts["first_dirty"] == 5
    assert sorted(logs(tmp_path / "b" / "t-0")) == [0, 5]
    assert rawlog.read(tmp_path / "b" / "t-0")["offset"].to_pylist() == [4]


def test_what_is_younger_than_the_lag_stays(tmp_path: Path) -> None:
    segments = {}
    for number in range(4):
        record = kafka.encode_record(0, 0, b"k", b"%d" % number)
        time = T + 1000 * number
        segments[number] = kafka.encode_batch(
            record, record_count=1, base_offset=number, base_timestamp=time, max_timestamp=time
        )
    source = put(tmp_path / "t-0", segments)
    report = rewritten("compact", source, tmp_path / "a" / "t-0", now=T + 5000, min_compaction_lag_ms=3500)
    assert report.facts["first_uncleanable"] == 2
    assert rawlog.read(tmp_path / "a" / "t-0")["offset"].to_pylist() == [1, 2, 3]


def test_producers_that_are_silent_for_long_leave_nothing(tmp_path: Path) -> None:
    """The empty batch that holds a producer's last sequence goes once a broker would have forgotten the producer."""
    draw = random.Random(5)
    writer = Writer(draw, codec=0, keys=1)
    while writer.sequences.get(7) is None:
        writer.batch()
    for _ in range(3):
        writer.batch()
    writer.roll()
    source = put(tmp_path / "t-0", writer.segments)
    empty = {}
    for name, now in (("young", writer.time + 1000), ("old", writer.time + DAY + 1000)):
        rewritten("compact", source, tmp_path / name / "t-0", now=now)
        rows = rawlog.read(tmp_path / name / "t-0", table="kafka.batches").to_pylist()
        empty[name] = [
            row["producer_id"] for row in rows if row["record_count"] == 0 and row["last_offset"] + 1 != writer.offset
        ]
    assert len(empty["young"]) >= len(empty["old"])
    assert empty["old"] == []


@pytest.mark.parametrize(
    "case", [one for one in kafka_cases() if one.is_legacy and "compact" in one.partition], ids=str
)
def test_older_magics_keep_the_latest_of_every_key(case: Any, tmp_path: Path) -> None:
    rewritten("compact", case.path, tmp_path / "out" / case.path.name, roll="true", first_dirty=0)
    latest: dict[bytes, Any] = {}
    for row in rawlog.read(case.path).to_pylist():
        if row["key"] is not None:
            latest[row["key"]] = row
    expected = sorted((row for row in latest.values()), key=lambda row: row["offset"])
    found = rawlog.read(tmp_path / "out" / case.path.name).to_pylist()
    names = ("offset", "key", "value", "timestamp")
    assert [[row[name] for name in names] for row in found] == [[row[name] for name in names] for row in expected]
    assert rawlog.verify(tmp_path / "out").errors == 0


def test_damage_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    writer = Writer(random.Random(1), codec=0, keys=4)
    writer.fill()
    writer.roll()
    whole = dict(writer.segments)
    for base, at in ((0, 70), (0, 9)):
        broken = bytearray(whole[base])
        broken[at] ^= 0xFF
        source = put(tmp_path / "t-0", whole | {base: bytes(broken)})
        with pytest.raises(DataError):
            rewritten("compact", source, tmp_path / "out")
        assert not (tmp_path / "out").exists()
        assert [path.name for path in tmp_path.iterdir()] == ["t-0"]


def test_records_that_do_not_fill_their_batch_are_refused(tmp_path: Path) -> None:
    """A right checksum over records that cannot be walked: an error with its place, never a wrong log."""
    for body, count in (
        (b"\x14\0\0\0", 1),
        (kafka.encode_record(0, 0, b"k", b"v"), 2),
        (b"\x0c" + bytes(6), 1),
        (b"", 5),
    ):
        bad = kafka.encode_batch(body, record_count=count, base_timestamp=T, max_timestamp=T)
        source = put(tmp_path / "t-0", {0: bad, 10: b""})
        if body == b"\x0c" + bytes(6):  # a record of an empty key and value, which is sound
            rewritten("compact", source, tmp_path / f"sound-{count}" / "t-0")
            continue
        with pytest.raises(DataError) as failure:
            rewritten("compact", source, tmp_path / "out" / "t-0")
        assert failure.value.position == 0
        assert failure.value.path


def test_options_that_cannot_be_are_refused() -> None:
    for options in (
        {"memory": "5"},
        {"now": "soon"},
        {"roll": "perhaps"},
        {"delete.retention.ms": "-1"},
        {"segment.bytes": "1"},
    ):
        with pytest.raises(OptionError):
            Settings.from_options(options)
    with pytest.raises(OptionError, match="did you mean delete_retention_ms"):
        Settings.from_options({"delete.retention": "1"})
    assert set(Partition.rewrites["compact"].options) == {*Settings.__dataclass_fields__, "topic", "at_once"}
    assert set(Partition.rewrites["rebuild"].options) == {*SegmentLimits.__dataclass_fields__}
    assert set(Partition.rewrites["repair"].options) == {*SegmentLimits.__dataclass_fields__, "policy", "quarantine"}


def run(*words: object) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words])


def test_a_whole_directory_is_compacted_and_the_cleaner_checkpoint_is_written(tmp_path: Path) -> None:
    for number in range(5):
        writer = Writer(random.Random(number), codec=0, keys=3)
        writer.fill()
        for producer in sorted(writer.open):
            writer.marker(producer, commit=True)
        writer.roll()
        put(tmp_path / "logs" / f"{'orders' if number < 3 else 'other'}-{number}", writer.segments)
    (tmp_path / "logs" / "cleaner-offset-checkpoint").write_text("0\n2\norders 0 3\nother 4 1\n")
    (tmp_path / "logs" / "meta.properties").write_text("version=1\ncluster.id=5x23TTFuRgutaeyFbnMFcQ\nnode.id=1\n")
    result = run(
        "compact", tmp_path / "logs", tmp_path / "out", "--topic", "ord*", "--now", T + DAY, "--memory", "1M", "--json"
    )
    stated = json.loads(result.output)
    assert sorted(stated["parts"]) == ["orders-0", "orders-1", "orders-2"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "cleaner-offset-checkpoint", "meta.properties", "orders-0", "orders-1", "orders-2",
    ]  # fmt: skip
    lines = (tmp_path / "out" / "cleaner-offset-checkpoint").read_text().splitlines()
    assert lines[2:] == [f"orders {number} {stated['parts'][f'orders-{number}']['first_dirty']}" for number in range(3)]
    for number in range(3):  # each as it would be alone, from where the checkpoint says
        name = f"orders-{number}"
        rewritten("compact", tmp_path / "logs" / name, tmp_path / "alone" / name, now=T + DAY)
        assert logs(tmp_path / "alone" / name) == logs(tmp_path / "out" / name)
    again = run("compact", tmp_path / "out", tmp_path / "again", "--now", T + DAY)
    assert "nothing to compact" in again.output
    for number in range(3):
        assert logs(tmp_path / "again" / f"orders-{number}") == logs(tmp_path / "out" / f"orders-{number}")
