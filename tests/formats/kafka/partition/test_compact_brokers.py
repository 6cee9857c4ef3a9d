"""The real cleaner judges compaction: the same partitions, at the same state, cleaned by a broker and by rawlog, must come out the same.

A topic is held back (a dirty ratio of 1 is never exceeded) while it is filled and copied, then let go; the time at which the cleaner ran
is read from the delete horizons that it wrote. Batches without compression must be equal byte for byte.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import rawlog
from rawlog.formats.kafka.checkpoints import offsets_in
from tests.data.kafka_rewriting import rewritten
from tests.services.kafka import KafkaBroker

pytestmark = pytest.mark.broker

TOPICS, PARTITIONS = 10, 2
CODECS = ("none", "none", "gzip", "snappy", "lz4", "zstd")
HELD, LET_GO = {"min.cleanable.dirty.ratio": "1.0"}, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.0"}
PATIENCE = 60


@dataclass
class Topic:
    name: str
    settings: dict[str, str]
    keys: int
    codec: str
    transactional: bool
    retention: int
    producers: list[Any] = field(default_factory=list)

    @property
    def segment_bytes(self) -> str:
        return self.settings.get("segment.bytes") or self.settings["internal.segment.bytes"]


def make_topics(broker: KafkaBroker, draw: random.Random) -> list[Topic]:
    topics = []
    for number in range(TOPICS):
        retention = draw.choice((0, 0, 1, 60_000, 86_400_000))
        size = draw.choice(("1200", "2000", "5000"))
        settings = {
            "cleanup.policy": "delete",  # a compacted topic takes no record without a key
            "segment.bytes" if broker.version.startswith("3.") else "internal.segment.bytes": size,
            "delete.retention.ms": str(retention),
            "index.interval.bytes": draw.choice(("0", "300", "4096")),
            "message.timestamp.type": draw.choice(("CreateTime", "CreateTime", "LogAppendTime")),
            **HELD,
        }
        topics.append(
            Topic(
                f"compacted-by-both-{number}",
                settings,
                keys=draw.choice((1, 4, 30, 10_000)),
                codec=draw.choice(CODECS),
                transactional=number % 2 == 0,
                retention=retention,
            )
        )
    return topics


def fill(broker: KafkaBroker, topic: Topic, draw: random.Random, *, null_keys: bool, leave_open: bool) -> None:
    """Random records: few or many keys, deletes, headers, transactions of several producers, some of them aborted."""
    if not topic.producers:
        topic.producers = [make_producer(broker, topic, number, draw) for number in range(2 + topic.transactional)]
    clock = int(time.time() * 1000) - 3_600_000
    for turn in range(draw.randrange(5, 9)):
        number = draw.randrange(len(topic.producers)) if turn else 0
        producer, transactional = topic.producers[number], topic.transactional and number < 2
        if transactional:
            producer.begin_transaction()
        for _ in range(draw.randrange(1, 25)):
            clock += draw.choice((0, 1, 50, -30))
            key: bytes | None = b"key-%d" % draw.randrange(topic.keys)
            if null_keys and draw.random() < 0.05:
                key = None
            value = None if draw.random() < 0.25 else draw.randbytes(draw.choice((0, 5, 60, 150)))
            headers = [(draw.choice(("a", "trace")), draw.choice((b"", b"x" * 9, None)))] * draw.choice((0, 0, 1, 2))
            place = draw.randrange(PARTITIONS)
            producer.produce(topic.name, key=key, value=value, partition=place, timestamp=clock, headers=headers)
        producer.flush(30)
        if transactional and draw.random() < 0.4:
            producer.abort_transaction(30)
        elif transactional:
            producer.commit_transaction(30)
    if topic.transactional and leave_open:
        topic.producers[0].begin_transaction()
        for place in range(PARTITIONS):
            topic.producers[0].produce(topic.name, key=b"key-0", value=b"undecided", partition=place)
        topic.producers[0].flush(30)
        for number in range(60):  # so that closed segments follow the first that is undecided
            topic.producers[2].produce(
                topic.name, key=b"key-%d" % number, value=bytes(100), partition=number % PARTITIONS
            )
        topic.producers[2].flush(30)


def make_producer(broker: KafkaBroker, topic: Topic, number: int, draw: random.Random) -> Any:
    from confluent_kafka import Producer

    transactional = topic.transactional and number < 2
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "log_level": 0,
        "compression.type": topic.codec,
        "linger.ms": 5,
        "batch.num.messages": draw.choice((1, 4) if int(topic.segment_bytes) < 5000 else (1, 5, 20)),
        "enable.idempotence": transactional or draw.random() < 0.6,
    }
    if transactional:
        settings |= {"transactional.id": f"{topic.name}-{number}", "transaction.timeout.ms": 600_000}
    producer = Producer(settings)
    if transactional:
        producer.init_transactions(30)
    return producer


def alter(broker: KafkaBroker, resources: Sequence[tuple[str, str]], settings: dict[str, str]) -> None:
    """Set some settings of topics ("topic", name) or of the broker ("broker", "1"), the others left as they are."""
    from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
    ]
    asked = [ConfigResource(kind, name, incremental_configs=entries) for kind, name in resources]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for done in admin.incremental_alter_configs(asked).values():
        done.result(30)


def partitions_of(topics: Sequence[Topic]) -> list[tuple[Topic, int]]:
    return [(topic, number) for topic in topics for number in range(PARTITIONS)]


def copied(broker: KafkaBroker, topics: Sequence[Topic], target: Path) -> None:
    """The partitions as they are now, and what the cleaner knows of them."""
    target.mkdir(parents=True)
    checkpoint = broker.data_dir / "cleaner-offset-checkpoint"
    if checkpoint.exists():
        shutil.copy2(checkpoint, target)
    for topic, number in partitions_of(topics):
        shutil.copytree(broker.data_dir / f"{topic.name}-{number}", target / f"{topic.name}-{number}")


def cleaned(broker: KafkaBroker, expected: dict[tuple[str, int], int]) -> None:
    """Wait until the cleaner has come as far as it can everywhere."""
    deadline = time.monotonic() + PATIENCE
    while True:
        offsets = offsets_in(str(broker.data_dir), "cleaner-offset-checkpoint")
        missing = {one: offset for one, offset in expected.items() if offsets.get(one, 0) != offset}
        if not missing:
            return
        assert time.monotonic() < deadline, (missing, {one: offsets.get(one) for one in missing}, broker.output_tail())
        time.sleep(0.2)


def batches(folder: Path, **selection: Any) -> list[dict[str, Any]]:
    rows = rawlog.read(folder, table="kafka.batches", **selection).to_pylist()
    return [row | {"path": Path(row["path"]).name} for row in rows]


def ran_at(folder: Path, before: Path, retention: int) -> int | None:
    """When the cleaner ran, by the horizons that were not there before."""
    known = {row["delete_horizon"] for row in batches(before)}
    new = {row["delete_horizon"] for row in batches(folder)} - known - {None}
    assert len(new) <= 1, new
    return None if not new else round(new.pop().timestamp() * 1000) - retention


def logs(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.log"))}


def compare(theirs: Path, ours: Path, codec: str) -> int:
    """Batch by batch and record by record; without compression byte by byte."""
    if codec == "none":
        assert logs(ours) == logs(theirs)
    assert sorted(logs(ours)) == sorted(logs(theirs))
    ignored = ("crc", "size", "position", "crc_ok")
    left, right = (
        [{name: value for name, value in row.items() if name not in ignored} for row in batches(one)]
        for one in (ours, theirs)
    )
    assert left == right
    left, right = (
        [row | {"path": "", "batch_position": 0} for row in rawlog.read(one, table="kafka.records").to_pylist()]
        for one in (ours, theirs)
    )
    assert left == right
    listed = [
        sorted((path.name, path.read_bytes()) for path in one.glob("*.txnindex") if path.stat().st_size)
        for one in (ours, theirs)
    ]
    assert listed[0] == listed[1]
    return len(left)


@dataclass
class Judged:
    broker: KafkaBroker
    topics: list[Topic]
    #: Where a copy from before each round is, and one from after it.
    rounds: list[tuple[Path, Path]] = field(default_factory=list)


@pytest.fixture(scope="module", params=["3", "4"])
def judged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judged]:
    from confluent_kafka.admin import AdminClient, NewTopic

    broker: KafkaBroker = request.getfixturevalue(f"kafka_{request.param}")
    scratch = tmp_path_factory.mktemp(f"compact-{broker.version}")
    draw = random.Random(f"compact {broker.version}")
    topics = make_topics(broker, draw)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    new = [NewTopic(topic.name, PARTITIONS, 1, config=topic.settings) for topic in topics]
    for done in admin.create_topics(new).values():
        done.result(30)
    alter(broker, [("broker", "1")], {"log.cleaner.backoff.ms": "100"})
    made = Judged(broker, topics)
    names = [("topic", topic.name) for topic in topics]
    for number in range(3):
        for topic in topics:
            fill(broker, topic, draw, null_keys=number == 0, leave_open=number == 2)
        before, after = scratch / f"before-{number}", scratch / f"after-{number}"
        copied(broker, topics, before)
        expected = {}
        for topic, partition in partitions_of(topics):
            folder = before / f"{topic.name}-{partition}"
            report = rewritten("compact", folder, scratch / f"tried-{number}" / folder.name, segment_bytes=100)
            expected[topic.name, partition] = report.facts["first_dirty"]
        alter(broker, names, LET_GO)
        cleaned(broker, expected)
        alter(broker, names, HELD)
        copied(broker, topics, after)
        made.rounds.append((before, after))
    yield made
    for topic in topics:
        topic.producers.clear()
    alter(broker, [("broker", "1")], {"log.cleaner.backoff.ms": "15000"})
    for done in admin.delete_topics([topic.name for topic in topics]).values():
        done.result(30)


@pytest.mark.parametrize("number", range(3))
def test_rawlog_leaves_what_the_real_cleaner_leaves(judged: Judged, number: int, tmp_path: Path) -> None:
    before, after = judged.rounds[number]
    compared = horizons = worked = 0
    for topic, partition in partitions_of(judged.topics):
        name = f"{topic.name}-{partition}"
        options = {
            "delete.retention.ms": str(topic.retention),
            "segment.bytes": topic.segment_bytes,
            "index.interval.bytes": topic.settings["index.interval.bytes"],
        }
        now = ran_at(after / name, before / name, topic.retention)
        if now is not None:
            options["now"] = str(now)
            horizons += 1
        worked += rewritten("compact", before / name, tmp_path / name, **options).counts["rounds"]
        compared += compare(after / name, tmp_path / name, topic.codec)
        assert rawlog.verify(tmp_path / name).errors == 0
    assert compared > 200
    assert worked >= PARTITIONS * TOPICS // 2
    assert horizons >= PARTITIONS * TOPICS // 4


def test_a_map_that_is_too_small_takes_the_same_rounds(kafka: KafkaBroker, tmp_path: Path) -> None:
    """With the least memory that a cleaner takes the map is full inside a segment, and the next round begins there."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    topic = Topic("compacted-in-rounds", {}, 60_000, "none", False, 0)
    settings = {"cleanup.policy": "compact", "segment.bytes": str(1 << 20), **HELD}
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for done in admin.create_topics([NewTopic(topic.name, PARTITIONS, 1, config=settings)]).values():
        done.result(30)
    alter(
        kafka,
        [("broker", "1")],
        {"log.cleaner.backoff.ms": "100", "log.cleaner.dedupe.buffer.size": str((1 << 20) + 1)},
    )
    try:
        producer = Producer({"bootstrap.servers": kafka.bootstrap, "queue.buffering.max.messages": 1_000_000})
        draw = random.Random("rounds")
        for _ in range(120_000):
            producer.produce(topic.name, key=b"%d" % draw.randrange(topic.keys), value=b"0123456789", partition=0)
        producer.flush(60)
        copied(kafka, [topic], tmp_path / "before")
        options = {"segment.bytes": str(1 << 20), "memory": str((1 << 20) + 1)}
        report = rewritten(
            "compact", tmp_path / "before" / f"{topic.name}-0", tmp_path / "ours" / f"{topic.name}-0", **options
        )
        assert report.counts["rounds"] > 1
        alter(kafka, [("topic", topic.name)], LET_GO)
        cleaned(kafka, {(topic.name, 0): report.facts["first_dirty"]})
        assert logs(kafka.data_dir / f"{topic.name}-0") == logs(tmp_path / "ours" / f"{topic.name}-0")
    finally:
        alter(
            kafka,
            [("broker", "1")],
            {"log.cleaner.backoff.ms": "15000", "log.cleaner.dedupe.buffer.size": str(128 << 20)},
        )
        for done in admin.delete_topics([topic.name]).values():
            done.result(30)
