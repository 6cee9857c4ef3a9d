"""Kafka itself as the judge: partitions made at random on running brokers, read by rawlog, by Kafka's dump tool and by a consumer."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest

import rawlog
from tests.data.golden import DumpCase, dumps_in
from tests.formats.kafka.log.test_golden import compare_batches, milliseconds
from tests.services.kafka import KafkaBroker, consume_all, dump_log_segments

pytestmark = pytest.mark.broker

PARTITIONS = 5
TOPICS = 5
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
START = 1_700_000_000_000


def topic_settings(draw: random.Random) -> dict[str, str]:
    return {
        "compression.type": draw.choice(("producer", "producer", *CODECS[1:], "uncompressed")),
        "message.timestamp.type": draw.choice(("CreateTime", "CreateTime", "LogAppendTime")),
        "segment.ms": str(draw.choice((60_000, 3_600_000, 604_800_000))),
        "index.interval.bytes": str(draw.choice((0, 512, 4096))),
        "max.message.bytes": "4000000",
        "retention.ms": "-1",
    }


def random_bytes(draw: random.Random, most: int) -> bytes | None:
    kind = draw.random()
    if kind < 0.15:
        return None
    if kind < 0.25:
        return b""
    alphabet = b"abcdefghijklmnopqrstuvwxyz0123456789"
    return bytes(draw.choice(alphabet) for _ in range(draw.randrange(1, most)))


def fill(broker: KafkaBroker, topic: str, draw: random.Random) -> None:
    """Runs of producers, each with settings of its own; some write transactions, and end them either way."""
    from confluent_kafka import Producer

    clock = START
    for number in range(6):
        transactional = draw.random() < 0.5
        settings: dict[str, Any] = {
            "bootstrap.servers": broker.bootstrap,
            "compression.type": draw.choice(CODECS),
            "linger.ms": draw.choice((0, 20)),
            "batch.num.messages": draw.choice((1, 7, 500)),
            "enable.idempotence": transactional or draw.random() < 0.5,
            "message.max.bytes": 3_000_000,
        }
        if transactional:
            settings["transactional.id"] = f"{topic}-{number}"
        producer = Producer(settings)
        if transactional:
            producer.init_transactions(30)
        for _ in range(draw.randrange(1, 4)):
            if transactional:
                producer.begin_transaction()
            for _ in range(draw.randrange(1, 120)):
                clock += draw.choice((0, 1, 50, 40_000, -30_000))
                headers = [
                    (draw.choice(("a", "b", "trace-id")), random_bytes(draw, 10))
                    for _ in range(draw.choice((0, 0, 1, 3)))
                ]
                producer.produce(
                    topic,
                    key=random_bytes(draw, 12),
                    value=random_bytes(draw, draw.choice((8, 200, 3000))),
                    partition=draw.randrange(PARTITIONS),
                    timestamp=clock,
                    headers=headers,
                )
            producer.flush(30)
            if transactional and draw.random() < 0.5:
                producer.abort_transaction(30)
            elif transactional:
                producer.commit_transaction(30)


def consumed(broker: KafkaBroker, topic: str, isolation: str) -> dict[int, list[tuple[Any, ...]]]:
    """Everything a real consumer gets of a topic, by partition."""
    found: dict[int, list[tuple[Any, ...]]] = {number: [] for number in range(PARTITIONS)}
    for message in consume_all(broker, [(topic, number) for number in range(PARTITIONS)], isolation):
        kind, time = message.timestamp()
        found[message.partition()].append(
            (message.offset(), message.key(), message.value(), message.headers() or [], kind - 1, time)
        )
    return found


def read(folder: Path, **selection: Any) -> list[tuple[Any, ...]]:
    return [
        (
            row["offset"],
            row["key"],
            row["value"],
            [(header["key"], header["value"]) for header in row["headers"]],
            row["timestampType"],
            milliseconds(row["timestamp"]),
        )
        for row in rawlog.read(folder, **selection).to_pylist()
    ]


@pytest.fixture(scope="module")
def made() -> dict[str, list[str]]:
    """The topics that were filled on each broker, so that both tests look at the same ones."""
    return {}


def topics_on(broker: KafkaBroker, made: dict[str, list[str]]) -> list[str]:
    from confluent_kafka.admin import AdminClient, NewTopic

    if broker.version not in made:
        draw = random.Random(f"rawlog {broker.version}")
        names = [f"judged-{number}" for number in range(TOPICS)]
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        new = [NewTopic(name, PARTITIONS, 1, config=topic_settings(draw)) for name in names]
        for done in admin.create_topics(new).values():
            done.result(30)
        for name in names:
            fill(broker, name, draw)
        made[broker.version] = names
    return made[broker.version]


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_a_consumer_gets_the_same_records(kafka: KafkaBroker, made: dict[str, list[str]], isolation: str) -> None:
    total = 0
    for topic in topics_on(kafka, made):
        for number, expected in consumed(kafka, topic, isolation).items():
            assert read(kafka.data_dir / f"{topic}-{number}", isolation=isolation) == expected, f"{topic}-{number}"
            total += len(expected)
    assert total > 1000


def test_the_dump_tool_sees_the_same_batches_and_records(
    kafka: KafkaBroker, made: dict[str, list[str]], tmp_path: Path
) -> None:
    files = [
        path
        for topic in topics_on(kafka, made)
        for number in range(PARTITIONS)
        for path in sorted((kafka.data_dir / f"{topic}-{number}").glob("*.log"))
    ]
    text = dump_log_segments(kafka.version, files, "--deep-iteration", "--print-data-log")
    cases = list(dumps_in(text, kafka.version, Path("/")))
    assert [case.path for case in cases] == files
    batches = sum(compare_batches(case) + compare_records(case) for case in cases)
    assert batches > 500
    assert rawlog.verify(files).verdict == "clean"


def compare_records(case: DumpCase) -> int:
    rows = rawlog.read(case.path, table="kafka.records").to_pylist()
    lines = [line for batch in case.batches for line in batch.records]
    assert len(rows) == len(lines), case.path
    for row, line in zip(rows, lines, strict=True):
        found = re.match(
            r"offset: (\d+) (CreateTime|LogAppendTime): (-?\d+) keySize: (-?\d+) valueSize: (-?\d+) sequence: (-?\d+)",
            line,
        )
        assert found is not None, line
        offset, kind, time, key, value, sequence = found.groups()
        assert (row["offset"], row["timestampType"]) == (int(offset), int(kind == "LogAppendTime")), line
        assert milliseconds(row["timestamp"]) == int(time), line
        sizes = [-1 if row[name] is None else len(row[name]) for name in ("key", "value")]
        assert sizes == [int(key), int(value)], line
        assert row["sequence"] == int(sequence), line
        names = re.search(r"headerKeys: \[([^\]]*)\]", line)
        if names is not None:
            assert [header["key"] for header in row["headers"]] == [name for name in names[1].split(",") if name], line
    return 0


def test_a_running_brokers_directory_verifies_without_errors(kafka: KafkaBroker, made: dict[str, list[str]]) -> None:
    topics = topics_on(kafka, made)
    found = rawlog.verify([kafka.data_dir / f"{topic}-{number}" for topic in topics for number in range(PARTITIONS)])
    assert found.errors == 0, [str(one) for one in found if one.severity == "error"]
