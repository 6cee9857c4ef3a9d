"""Real brokers start on restored directories, hand out every record, take more, and leave a directory that verifies clean.

Each version starts three times: on a broker's directory restored whole, on the same after partitions of a lake were dropped into it, and
on one restored as of a moment, with a topic renamed.
"""

from __future__ import annotations

import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

import rawlog
from rawlog.engines import choice
from rawlog.lakes.ingest import Ingest
from rawlog.model.recovery import RestoreOptions
from rawlog.model.report import Report
from rawlog.reading.select import Selection
from rawlog.reading.tree import Tree, open_tree
from rawlog.verbs.restore import Restore
from tests.conftest import needed, running
from tests.data.golden import golden_path
from tests.formats.kafka.log.test_golden import milliseconds
from tests.services.kafka import KAFKA_3, KAFKA_4, KafkaBroker, consume_all

pytestmark = pytest.mark.broker

#: A broker that deletes whatever is older than some minutes, and looks every two seconds. Golden data is older: restored topics must say
#: that they are kept, and restored offsets must be new. They are kept for longer than a busy machine takes to come to them.
HASTY = {
    "log.retention.ms": "60000",
    "log.retention.check.interval.ms": "2000",
    "log.initial.task.delay.ms": "500",
    "offsets.retention.minutes": "10",
    "offsets.retention.check.interval.ms": "2000",
    "log.cleaner.enable": "false",
}
Rows = dict[tuple[str, int], list[tuple[Any, ...]]]
T = TypeVar("T")
#: Seconds to wait for what a broker does after its start.
PATIENCE = 40


def restored(source: Path | str, target: Path, **asked: Any) -> Report:
    tree = Tree((str(source),), ()) if (Path(source) / "catalog.db").is_file() else open_tree(source)
    with Restore(str(target), RestoreOptions(**asked)) as job:
        return choice.run(job, tree)


def rows_of(path: Path, isolation: str = "read_uncommitted") -> Rows:
    """What consumers should get of every topic of users, by partition."""
    found: Rows = defaultdict(list)
    for row in rawlog.read(path, isolation=isolation).to_pylist():
        if not row["topic"].startswith("__"):
            headers = [(one["key"].partition("\0")[0], one["value"]) for one in row["headers"]]  # librdkafka: C strings
            time = milliseconds(row["timestamp"])
            one = (row["offset"], row["key"], row["value"], headers, -1 if time is None else time)
            found[row["topic"], row["partition"]].append(one)
    return found


def consumed(broker: KafkaBroker, partitions: list[tuple[str, int]], isolation: str = "read_uncommitted") -> Rows:
    """Everything a real consumer gets of these partitions."""
    found: Rows = defaultdict(list)
    for message in consume_all(broker, partitions, isolation):
        kind, time = message.timestamp()
        one = (message.offset(), message.key(), message.value(), message.headers() or [], time if kind else -1)
        found[message.topic(), message.partition()].append(one)
    return found


def settled(ask: Callable[[], T], is_right: Callable[[T], bool]) -> T:
    """What a broker answers, once that is right: it loads offsets, and ends open transactions, some time after it serves."""
    end = time.monotonic() + PATIENCE
    while not is_right(answer := ask()) and time.monotonic() < end:
        time.sleep(0.5)
    return answer


def differing(found: Rows, expected: Rows) -> list[tuple[str, int]]:
    return [place for place in sorted({*found, *expected}) if found.get(place, []) != expected.get(place, [])]


def same(found: Rows, expected: Rows) -> None:
    for place in differing(found, expected):
        assert found.get(place, []) == expected.get(place, []), place


def produced(broker: KafkaBroker, partitions: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """One more record in each partition: where it went."""
    from confluent_kafka import Producer

    delivered: dict[tuple[str, int], int] = {}

    def done(error: Any, message: Any) -> None:
        assert error is None, error
        delivered[message.topic(), message.partition()] = message.offset()

    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    for topic, number in partitions:
        producer.produce(topic, key=b"more", value=b"one more", partition=number, on_delivery=done)
    assert producer.flush(60) == 0
    return delivered


def committed(broker: KafkaBroker, groups: list[str]) -> set[tuple[str, str, int, int]]:
    from confluent_kafka import ConsumerGroupTopicPartitions
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    found = set()
    for group in groups:
        [future] = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
        for one in future.result(30).topic_partitions:
            found.add((group, one.topic, one.partition, one.offset))
    return found


def commits_of(path: Path) -> set[tuple[str, str, int, int]]:
    rows = rawlog.read(path, table="kafka.offsets").to_pylist()
    return {
        (row["group"], row["topic"], row["partition"], row["committed_offset"])
        for row in rows
        if row["is_current"] and not row["deleted"]
    }


@dataclass
class Source:
    """A directory that a real broker left, cleanly stopped."""

    version: str
    path: Path

    @property
    def moment(self) -> int:
        """A time (ms) at which some transactions are decided and others are not: in the middle of the markers."""
        rows = rawlog.read(self.path, table="kafka.records", topic="transactions", where="is_control").to_pylist()
        times = sorted(milliseconds(row["timestamp"]) or 0 for row in rows)
        return times[len(times) // 2]


@pytest.fixture(scope="module", params=[KAFKA_3, KAFKA_4])
def source(request: pytest.FixtureRequest) -> Source:
    return Source(request.param, golden_path("kafka", f"broker-{request.param}", "data"))


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    shutil.rmtree(tmp_path, ignore_errors=True)


def clean(path: Path) -> None:
    findings = [one for one in rawlog.verify(path) if str(one.severity) != "info"]
    assert not findings, [(one.code, one.path, one.message) for one in findings]


def test_a_broker_serves_a_restored_directory_and_goes_on(source: Source, scratch: Path) -> None:
    from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

    target = scratch / "data"
    report = restored(source.path, target)
    assert report.is_whole, report.lines()
    clean(target)
    expected, wanted = rows_of(source.path), rows_of(source.path, "read_committed")
    ends = {name: one.facts["end_offset"] for name, one in report.parts.items()}
    places = sorted(
        (name.rpartition("-")[0], int(name.rpartition("-")[2])) for name in ends if not name.startswith("__")
    )
    with needed():
        broker = KafkaBroker(source.version, target, HASTY).__enter__()
    try:
        same(consumed(broker, places), expected)
        settings = ConfigResource(ResourceType.TOPIC, "segments-by-size")
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        found = admin.describe_configs([settings])[settings].result(30)
        assert found["retention.ms"].value == "-1"
        offsets = commits_of(source.path)
        assert len(offsets) > 2
        groups = sorted({group for group, *_ in offsets})
        assert settled(lambda: committed(broker, groups), lambda found: found >= offsets) >= offsets
        delivered = produced(broker, [place for place in places if not place[0].startswith("transaction")])
        for (topic, number), offset in delivered.items():
            assert offset == ends[f"{topic}-{number}"], topic
        # Transactions that were open are ended by the coordinator, whose state was carried along.
        known = [place for place in places if place[0] != "transaction-open" and place not in delivered]
        expected = {place: wanted[place] for place in known}
        same(
            settled(lambda: consumed(broker, known, "read_committed"), lambda found: not differing(found, expected)),
            expected,
        )
    finally:
        broker.stop()
    clean(target)
    lake = scratch / "lake"
    chosen = ("transactions", "codec-none", "edge-cases")
    with Ingest(str(lake), selection=Selection(topics=chosen)) as job:
        job.complete(lambda: choice.run(job, open_tree(source.path)))
    dropped = restored(lake, target, topics=chosen, partitions_only=True, overwrite=True)
    assert set(dropped.parts) == {
        "transactions-0",
        "transactions-1",
        "codec-none-0",
        "codec-none-1",
        "edge-cases-0",
    }
    try:
        broker.start()
        places = [place for place in places if place[0] in chosen]
        served = consumed(broker, places)
        same(served, {place: wanted[place] for place in places})
        produced(broker, places)
    finally:
        broker.__exit__(None, None, None)
    clean(target)


def as_of(source: Source, moment: int) -> Rows:
    """What a transactional consumer should get as of a moment, by every record and marker of the log."""
    found: Rows = defaultdict(list)
    ends: dict[tuple[str, int, int], list[tuple[int, bool]]] = defaultdict(list)
    rows = rawlog.read(source.path, table="kafka.records").to_pylist()
    for row in rows:
        if row["is_control"] and (milliseconds(row["timestamp"]) or 0) < moment:
            ends[row["topic"], row["partition"], row["producer_id"]].append((row["offset"], row["control_type"] == 1))
    whole = rows_of(source.path)
    for row in rows:
        place, time = (row["topic"], row["partition"]), milliseconds(row["timestamp"])
        if row["is_control"] or (time is not None and time >= moment):
            continue
        if row["is_transactional"]:
            following = [good for at, good in ends[(*place, row["producer_id"])] if at > row["offset"]]
            if not following or not following[0]:
                continue
        found[place] += [one for one in whole.get(place, ()) if one[0] == row["offset"]]
    then = rawlog.read(source.path, table="kraft.topics", option={"atTimestamp": str(moment - 1)})["topic"].to_pylist()
    return {place: rows for place, rows in found.items() if rows and place[0] in then}


def test_a_moment_is_restored_with_a_topic_renamed(source: Source, scratch: Path) -> None:
    target = scratch / "data"
    moment = source.moment
    report = restored(source.path, target, until=moment * 1000, rename={"codec-none": "renamed"})
    assert report.counts["records_cut"]
    assert report.counts["transactions_aborted"]
    clean(target)
    expected = as_of(source, moment)
    for number in (0, 1):
        expected["renamed", number] = expected.pop(("codec-none", number))
    places = sorted(expected)
    with running(KafkaBroker(source.version, target, HASTY)) as broker:
        same(consumed(broker, places, "read_committed"), expected)
        offsets = commits_of(target)
        groups = sorted({group for group, *_ in commits_of(source.path)})
        assert settled(lambda: committed(broker, groups), lambda found: found == offsets) == offsets
        produced(broker, places)
        assert "codec-none" not in {topic for topic, _ in rows_of(target)}
    clean(target)
