"""read_committed by the transaction index is what it is by the log alone, and what a consumer makes of a broker's answer."""

from __future__ import annotations

import heapq
import pickle
import random
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import rawlog
from rawlog import registry
from rawlog.formats.kafka.log import segment as log
from rawlog.formats.kafka.log.heads import heads
from rawlog.formats.kafka.partition import transactions
from rawlog.io.storage import Source
from rawlog.model.format import File
from rawlog.model.report import Action
from rawlog.reading.parts import plan
from rawlog.reading.rows import read
from rawlog.reading.select import Selection
from tests.data.golden import KafkaCase, kafka_cases
from tests.data.kafka_rewriting import rewritten
from tests.reference import kafka

SEGMENT = 20_000
GOLDEN = [case for case in kafka_cases() if list(case.path.glob("*.txnindex"))]


def batch(base: int, producer: int, count: int, *, transactional: bool = True, size: int = 40) -> bytes:
    records = b"".join(kafka.encode_record(delta, 0, b"k", bytes(size)) for delta in range(count))
    return kafka.encode_batch(
        records,
        record_count=count,
        base_offset=base,
        base_timestamp=1000,
        max_timestamp=1000,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=transactional,
    )


def marker(base: int, producer: int, kind: int) -> bytes:
    record = kafka.encode_record(0, 0, struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 1))
    return kafka.encode_batch(
        record,
        record_count=1,
        base_offset=base,
        base_timestamp=1000,
        max_timestamp=1000,
        producer_id=producer,
        producer_epoch=0,
        is_transactional=True,
        is_control=True,
    )


def make_log(folder: Path, seed: int, batches: int = 300) -> None:
    """Segments of a log in which several producers run transactions at once, some of which are never decided."""
    rng, offset, opened = random.Random(seed), 0, set[int]()
    log, base = bytearray(), 0
    folder.mkdir(parents=True)
    for _ in range(batches):
        if len(log) > SEGMENT:
            (folder / f"{base:020d}.log").write_bytes(log)
            log, base = bytearray(), offset
        producer = rng.randrange(1, 5)
        if rng.random() < 0.15:
            log += batch(offset, -1, 2, transactional=False)
            offset += 2
        elif producer in opened and rng.random() < 0.3:
            log += marker(offset, producer, rng.choice([0, 0, 1]))
            opened.discard(producer)
            offset += 1
        elif producer != 4 or offset > 100 * rng.random() * batches:
            count = rng.randrange(1, 4)
            log += batch(offset, producer, count)
            opened.add(producer)
            offset += count
    (folder / f"{base:020d}.log").write_bytes(log)


@pytest.fixture(params=range(6))
def partition(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A random partition with all that a broker keeps next to it."""
    make_log(tmp_path / "source" / "orders-0", request.param)
    folder = tmp_path / "orders-0"
    rewritten("rebuild", tmp_path / "source" / "orders-0", folder)
    assert list(folder.glob("*.txnindex"))
    return folder


def both(folder: Path) -> tuple[transactions.PartitionTransactions | None, transactions.PartitionTransactions]:
    files = tuple(rawlog.open(folder).files)
    logs = tuple(one for one in files if one.format == "kafka.log" and one.place.state is None)
    return transactions._read_indexes(files), transactions._walk(logs)


def same(one: transactions.PartitionTransactions, other: transactions.PartitionTransactions) -> bool:
    return one.last_stable_offset == other.last_stable_offset and all(
        getattr(one, name).tolist() == getattr(other, name).tolist() for name in ("producers", "firsts", "ends")
    )


@pytest.mark.parametrize("case", GOLDEN, ids=str)
def test_index_and_log_agree_on_golden_partitions(case: KafkaCase) -> None:
    indexed, walked = both(case.path)
    assert indexed is not None
    assert same(indexed, walked)


def committed(folder: Path, **selection: int) -> list[int]:
    rows = rawlog.read(folder, isolation="read_committed", columns=["offset"], **selection)
    return [int(offset) for offset in rows["offset"].to_pylist()]


def consume(folder: Path, start: int) -> Iterator[int]:
    """What a consumer hands out that fetches from `start` on, given what a broker answers (kafka-log.md §8.4)."""
    batches = [one for path in sorted(folder.glob("*.log")) for one in kafka.decode(path.read_bytes())]
    opened: dict[int, int] = {}
    aborted: list[tuple[int, int, int]] = []
    for one in batches:
        if one.is_transactional and not one.is_control:
            opened.setdefault(one.producer_id, one.base_offset)
        elif one.is_control:
            first = opened.pop(one.producer_id, None)
            if first is not None and kafka.control_type(one.records[0].key) == 0:
                aborted.append((first, one.base_offset, one.producer_id))
    stable = min(opened.values(), default=1 << 62)
    waiting = [(first, producer) for first, last, producer in aborted if last >= start]
    heapq.heapify(waiting)
    skipped: set[int] = set()
    for one in batches:
        if one.last_offset < start or one.base_offset >= stable:
            continue
        while waiting and waiting[0][0] <= one.last_offset:
            skipped.add(heapq.heappop(waiting)[1])
        if one.is_control:
            if kafka.control_type(one.records[0].key) == 0:
                skipped.discard(one.producer_id)
        elif not (one.is_transactional and one.producer_id in skipped):
            yield from (record.offset for record in one.records if record.offset >= start)


def test_index_log_and_consumer_agree_on_random_partitions(partition: Path) -> None:
    indexed, walked = both(partition)
    assert indexed is not None
    assert same(indexed, walked)
    assert committed(partition) == list(consume(partition, 0))
    last = max(int(path.stem) for path in partition.glob("*.log"))
    for start in (1, last - 7, last, last + 3):
        assert committed(partition, from_offset=start) == list(consume(partition, start))


def test_a_part_of_the_log_looks_ahead_for_the_markers_it_needs(partition: Path) -> None:
    """Planning read the whole partition on the driver to know what was aborted; a part now finds its own markers."""
    tree = rawlog.open(partition)
    table = registry.table_named("kafka.records")
    whole, _ = transactions.of_partition(tree.files)
    expected = {}
    for path in sorted(partition.glob("*.log")):
        frames = log.scan(np.fromfile(path, np.uint8), 0)
        head = heads(frames)
        expected |= dict(zip(head["base_offset"].tolist(), whole.aborted(head).tolist(), strict=True))
    assert any(expected.values())
    for size in (1 << 30, 9_000, 3_000):
        selection = Selection(columns=("offset", "aborted", "is_control"))
        found = {}
        for part in plan(tree, table, selection, split_size=size):
            for batch in read(pickle.loads(pickle.dumps(part)), table, selection):
                found |= {row["offset"]: row["aborted"] for row in batch.to_pylist()}
        assert {offset: found[offset] for offset in expected} == expected


def test_records_that_become_plain_ones_are_reported_by_what_decided_them(partition: Path, tmp_path: Path) -> None:
    """Those of transactions that were open at the end of the log were not counted: consumers get them, and may not have seen them."""
    waiting: dict[int, list[int]] = {}
    aborted: list[int] = []
    for path in sorted(partition.glob("*.log")):
        for one in kafka.decode(path.read_bytes()):
            if one.is_control:
                done = waiting.pop(one.producer_id, [])
                aborted += done if kafka.control_type(one.records[0].key) == 0 else []
            elif one.is_transactional:
                waiting.setdefault(one.producer_id, []).extend(record.offset for record in one.records)
    still = [offset for offsets in waiting.values() for offset in offsets]
    assert aborted
    assert still
    report = rawlog.convert(partition, tmp_path / "out", to="kafka", option={"codec": "none"}, engine="local")
    for name, offsets in (("aborted", aborted), ("open", still)):
        assert report.facts[name] == {"rows": len(offsets), "first": f"orders-0 offset {min(offsets)}"}
    reasons = [entry.reason for entry in report.with_action(Action.CHANGED)]
    assert any(f"{len(still)} record" in one and "of transactions that are open at the end" in one for one in reasons)
    again = rawlog.convert(partition, tmp_path / "few", to="kafka", isolation="read_committed", engine="local")
    assert not again.facts.keys() & {"aborted", "open"}


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def lie(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[18:26] = (1 << 40).to_bytes(8, "big")
    path.write_bytes(data)


def spoil(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("pattern", "harm"),
    [
        ("*.txnindex", Path.unlink),
        ("*.txnindex", lie),
        ("*.snapshot", Path.unlink),
        ("*.snapshot", spoil),
        ("*.snapshot", truncate),
        ("*.index", Path.unlink),
    ],
)
def test_files_that_do_not_hold_are_not_believed(pattern: str, harm: object, tmp_path: Path) -> None:
    make_log(tmp_path / "source" / "orders-0", 1)
    folder = tmp_path / "orders-0"
    rewritten("rebuild", tmp_path / "source" / "orders-0", folder)
    before = committed(folder)
    for path in list(folder.glob(pattern)):
        harm(path)  # type: ignore[operator]
    assert both(folder)[0] is None
    assert committed(folder) == before == list(consume(folder, 0))


def test_one_transaction_index_of_several_may_be_lost(tmp_path: Path) -> None:
    """A segment without aborts has none; that its aborts were only not listed, the log tells."""
    make_log(tmp_path / "source" / "orders-0", 1)
    folder = tmp_path / "orders-0"
    rewritten("rebuild", tmp_path / "source" / "orders-0", folder)
    before = committed(folder)
    indexes = sorted(path for path in folder.glob("*.txnindex") if path.stat().st_size)
    assert len(indexes) > 1
    indexes[0].unlink()
    assert both(folder)[0] is None
    assert committed(folder) == before
    assert "kafka.txnindex.mismatch" in {one.code for one in rawlog.verify(folder)}


def test_a_snapshot_beyond_the_end_of_the_log_is_not_believed(tmp_path: Path) -> None:
    """A log that lost its tail: what the snapshot says of the end is no longer so."""
    make_log(tmp_path / "source" / "orders-0", 2)
    folder = tmp_path / "orders-0"
    rewritten("rebuild", tmp_path / "source" / "orders-0", folder)
    last = max(folder.glob("*.log"))
    last.write_bytes(last.read_bytes()[: last.stat().st_size // 2])
    assert both(folder)[0] is None
    assert committed(folder) == list(consume(folder, 0))


def test_a_point_read_does_not_read_what_comes_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_log(tmp_path / "source" / "orders-0", 3, batches=3000)
    folder = tmp_path / "orders-0"
    rewritten("rebuild", tmp_path / "source" / "orders-0", folder)
    expected = committed(folder)
    seen: dict[str, int] = {}
    original = Source.read_into

    def counted(self: Source, position: int, target: memoryview) -> int:
        got = original(self, position, target)
        if self.path.endswith(".log"):
            seen[self.path] = seen.get(self.path, 0) + got
        return got

    monkeypatch.setattr(Source, "read_into", counted)
    transactions._read_indexes.cache_clear()
    transactions._fold_log.cache_clear()
    middle = expected[len(expected) // 2]
    assert committed(folder, from_offset=middle, limit=1) == [middle]
    segments = len(list(folder.glob("*.log")))
    assert segments > 10
    assert sum(seen.values()) < 3 * SEGMENT, seen


def test_a_deleted_segment_is_read_by_the_log(tmp_path: Path) -> None:
    """The files next to a segment that waits for its deletion say nothing of what is loaded."""
    make_log(tmp_path / "orders-0", 4)
    path = min((tmp_path / "orders-0").glob("*.log"))
    gone = path.rename(path.with_suffix(".log.deleted"))
    assert rawlog.read(gone, isolation="read_committed").num_rows > 0
    assert all(isinstance(one, File) for one in rawlog.open(gone).files)
