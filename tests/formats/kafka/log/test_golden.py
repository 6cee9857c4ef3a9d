"""Directories that real brokers wrote, from 0.8.2 to 4.3, read as their own consumers and tools read them."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rawlog
from rawlog.formats.kafka.log.heads import heads
from rawlog.formats.kafka.log.records import open_wrappers
from rawlog.formats.kafka.log.segment import scan
from tests.data.golden import GOLDEN, DumpCase, KafkaCase, kafka_brokers, kafka_cases, kafka_dumps, vectors
from tests.reference import kafka

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
CLEAN = [broker for broker in kafka_brokers() if not broker.endswith("crashed")]


def milliseconds(moment: datetime | None) -> int | None:
    return None if moment is None else (moment - EPOCH) // timedelta(milliseconds=1)


@pytest.mark.parametrize("case", kafka_cases(), ids=lambda case: f"{case.broker}/{case.partition}")
def test_records_are_those_of_a_real_consumer(case: KafkaCase) -> None:
    table = rawlog.read(case.path)
    table.validate(full=True)
    found = [
        (
            row["topic"],
            row["partition"],
            row["offset"],
            milliseconds(row["timestamp"]),
            row["timestampType"],
            row["key"],
            row["value"],
            [(header["key"], header["value"]) for header in row["headers"]],
        )
        for row in table.to_pylist()
    ]
    expected = [
        (one.topic, one.partition, one.offset, one.timestamp, one.timestamp_type, one.key, one.value, one.headers)
        for one in case.records
    ]
    assert found == expected
    assert rawlog.open(case.path).table().count() == len(expected)


@pytest.mark.parametrize(
    "case",
    [case for case in kafka_cases() if case.committed_offsets is not None],
    ids=lambda case: f"{case.broker}/{case.partition}",
)
def test_read_committed_is_that_of_a_real_consumer(case: KafkaCase) -> None:
    rows = rawlog.read(case.path, isolation="read_committed", columns=["offset"])
    assert case.committed_offsets is not None
    assert rows["offset"].to_pylist() == list(case.committed_offsets)
    assert rawlog.open(case.path).table(isolation="read_committed").count() == rows.num_rows


@pytest.mark.parametrize("broker", kafka_brokers())
def test_batches_are_those_of_the_dump_tool(broker: str) -> None:
    seen = 0
    for case in kafka_dumps(broker):
        if case.path.suffix == ".log":
            seen += compare_batches(case)
    assert seen or broker.startswith("legacy")


def compare_batches(case: DumpCase) -> int:
    rows = rawlog.read(case.path, table="kafka.batches").to_pylist()
    assert len(rows) == len(case.batches), case.path
    for row, batch in zip(rows, case.batches, strict=True):
        found: dict[str, Any] = {
            "position": row["position"],
            "size": row["size"],
            "magic": row["magic"],
            "codec": row["codec"],
            "crc": row["crc"],
            "valid": row["crc_ok"],
            "last_offset": row["last_offset"],
            "base_offset": row["base_offset"],
            "count": row["record_count"],
            "base_sequence": row["base_sequence"],
            "producer_id": row["producer_id"],
            "producer_epoch": row["producer_epoch"],
            "leader_epoch": row["leader_epoch"],
            "is_transactional": row["is_transactional"],
            "is_control": row["is_control"],
            "delete_horizon": milliseconds(row["delete_horizon"]),
            "timestamp_type": row["timestamp_type"],
            "timestamp": -1 if row["max_timestamp"] is None else milliseconds(row["max_timestamp"]),
        }
        for name, value in found.items():
            said = getattr(batch, name)
            if said is not None:
                assert value == said, (case.path, batch.position, name)
    return len(rows)


def dumped(broker: str, name: str) -> Iterator[tuple[Path, list[str]]]:
    """The lines that Kafka's tool printed of each file."""
    text = gzip.decompress((GOLDEN / "kafka" / broker / "expected" / "dump" / name).read_bytes()).decode()
    for part in re.split(r"^Dumping ", text, flags=re.MULTILINE)[1:]:
        first, *lines = part.splitlines()
        yield GOLDEN / "kafka" / broker / "data" / first.strip(), lines


MODERN = [broker for broker in kafka_brokers() if not broker.startswith("legacy")]


@pytest.mark.parametrize("broker", MODERN)
def test_index_entries_are_those_of_the_dump_tool(broker: str) -> None:
    entries = 0
    for path, lines in dumped(broker, "all.indexes.txt.gz"):
        if "-delete/" in str(path):
            continue  # their indexes are padded, which the tool takes for entries
        said = [
            tuple(map(int, found.groups()))
            for line in lines
            if (found := re.match(r"offset: (\d+) position: (\d+)$", line))
        ]
        times = [
            tuple(map(int, found.groups()))
            for line in lines
            if (found := re.match(r"timestamp: (-?\d+) offset: (\d+)$", line))
        ]
        if path.suffix == ".index":
            rows = rawlog.read(path, table="kafka.index", columns=["offset", "position"]).to_pylist()
            said = [entry for entry in said if entry[1]]  # padding again
            assert [(row["offset"], row["position"]) for row in rows] == said, path
        elif path.suffix == ".timeindex":
            rows = rawlog.read(path, table="kafka.timeindex", columns=["timestamp", "offset"]).to_pylist()
            times = [entry for entry in times if entry[0]]
            assert [(milliseconds(row["timestamp"]), row["offset"]) for row in rows] == times, path
        else:
            continue
        entries += len(rows)
    assert entries > 20


@pytest.mark.parametrize("broker", MODERN)
def test_producer_snapshots_are_those_of_the_dump_tool(broker: str) -> None:
    names = {
        "producer_id": "producerId",
        "epoch": "producerEpoch",
        "coordinator_epoch": "coordinatorEpoch",
        "current_txn_first_offset": "currentTxnFirstOffset",
        "last_sequence": "lastSequence",
        "last_offset": "lastOffset",
        "offset_delta": "offsetDelta",
    }
    entries = 0
    for path, lines in dumped(broker, "all.snapshot.txt.gz"):
        rows = rawlog.read(path, table="kafka.producers").to_pylist()
        said = [line for line in lines if line.startswith("producerId")]
        assert len(rows) == len(said), path
        for row, line in zip(rows, said, strict=True):
            for ours, theirs in names.items():
                found = re.search(rf"\b{theirs}: (?:Optional(?:Long)?(?:\[|\.))?(-?\d+|None|empty)", line)
                if found is not None:
                    value = -1 if found.group(1) in ("None", "empty") else int(found.group(1))
                    assert row[ours] == value, (path, ours, line)
        entries += len(rows)
    assert entries > 5


@pytest.mark.parametrize("broker", CLEAN)
def test_directories_of_cleanly_stopped_brokers_verify_clean(broker: str) -> None:
    found = rawlog.verify(GOLDEN / "kafka" / broker / "data")
    assert found.verdict == "clean", [str(one) for one in found]
    assert found.frames > 50


@pytest.mark.parametrize("broker", [broker for broker in kafka_brokers() if broker.endswith("crashed")])
def test_a_crash_leaves_nothing_that_is_damage(broker: str) -> None:
    """A killed broker leaves padded indexes and no mark of a clean stop; its batches are whole, and it would cut none."""
    found = rawlog.verify(GOLDEN / "kafka" / broker / "data")
    assert found.verdict == "clean", [str(one) for one in found]


@pytest.mark.parametrize("name", [name for name in vectors() if re.match(r"v[012]-", name)])
def test_vectors_are_read(name: str, tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(vectors()[name])
    rows = rawlog.read(path, table="kafka.records")
    rows.validate(full=True)
    assert rows.num_rows
    assert rawlog.verify(path, skip=["kafka.log.order"]).errors == 0


@pytest.mark.parametrize("case", [case for case in kafka_cases() if case.broker.startswith("legacy")], ids=str)
def test_a_wrapper_that_is_opened_tells_its_first_offset_and_the_number_of_its_records(case: KafkaCase) -> None:
    for path in case.segments:
        data = np.frombuffer(path.read_bytes(), np.uint8)
        frames = scan(data, 0)
        head = open_wrappers(frames, heads(frames))
        batches = list(kafka.decode(path.read_bytes()))
        firsts = [batch.records[0].offset if batch.magic < 2 else batch.base_offset for batch in batches]
        assert head["base_offset"].tolist() == firsts
        assert head["last_offset"].tolist() == [batch.last_offset for batch in batches]
        assert head["record_count"].tolist() == [len(batch.records) for batch in batches]
