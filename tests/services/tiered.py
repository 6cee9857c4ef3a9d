"""A real Kafka broker with tiered storage: Kafka's own LocalTieredStorage, from the test jar of its storage module.

As a program it writes the golden data: `python -m tests.services.tiered TARGET`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any

from tests.services.jars import class_path
from tests.services.kafka import KAFKA_4, BrokerError, KafkaBroker, consume_all

STORAGE = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
COPY_SECONDS = 90
TOPIC = "tiered"


def tiered_broker(data_dir: Path, tier: Path) -> KafkaBroker:
    """A broker 4.x, not started, that copies finished segments to a directory below `tier` and soon deletes its own."""
    tier.mkdir(parents=True, exist_ok=True)
    return KafkaBroker(
        KAFKA_4,
        data_dir,
        {
            "remote.log.storage.system.enable": "true",
            "remote.log.storage.manager.class.name": STORAGE,
            "remote.log.storage.manager.class.path": class_path(f"kafka-storage-test-{KAFKA_4}"),
            "remote.log.storage.manager.impl.prefix": "rsm.config.",
            "rsm.config.dir": str(tier),
            "remote.log.metadata.manager.listener.name": "PLAINTEXT",
            "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
            "rlmm.config.remote.log.metadata.topic.num.partitions": "2",
            "remote.log.manager.task.interval.ms": "500",
            "log.retention.check.interval.ms": "500",
            "log.initial.task.delay.ms": "500",
            "log.cleaner.backoff.ms": "500",
        },
    )


SETTINGS = {
    "remote.storage.enable": "true",
    "internal.segment.bytes": "2000",
    "local.retention.ms": "1",
    "retention.ms": "-1",
    "file.delete.delay.ms": "100",
}


def fill(broker: KafkaBroker, topic: str = TOPIC, codec: str = "none") -> list[tuple[Any, ...]]:
    """Write records and transactions, some of them aborted, to a topic of two partitions, and wait until its first segments are in remote
    storage alone; what a real consumer gets of it then, by partition and offset.
    """
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for made in admin.create_topics([NewTopic(topic, 2, 1, config=SETTINGS)]).values():
        made.result(60)
    settings = {"bootstrap.servers": broker.bootstrap, "transactional.id": "tiered", "linger.ms": 5}
    producer = Producer(settings | {"compression.type": codec})
    producer.init_transactions(60)
    for number in range(24):
        producer.begin_transaction()
        for one in range(8):
            key, value = f"key-{one % 5}", f"value {number} {one} " + "x" * 40
            producer.produce(topic, value, key, partition=one % 2, timestamp=1_700_000_000_000 + number * 1000 + one)
        producer.flush(60)
        if number % 4 == 1:
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)
    wait_for_copies(broker, topic)
    return consumed(broker, topic)


def fill_compacted(broker: KafkaBroker, topic: str) -> None:
    """Write keys again and again to a compacted topic, in compressed batches, and wait until a broker has compacted it."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "internal.segment.bytes": "2000"}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for made in admin.create_topics([NewTopic(topic, 1, 1, config=settings)]).values():
        made.result(60)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "compression.type": "lz4"})
    for number in range(40):
        for one in range(5):
            producer.produce(topic, f"state {number} of {one}", f"key-{one}")
        producer.flush(60)
    deadline = time.monotonic() + COPY_SECONDS
    while True:  # everything before the active segment is compacted
        segments = sorted(int(path.stem) for path in (broker.data_dir / f"{topic}-0").glob("*.log"))
        checkpoint = broker.data_dir / "cleaner-offset-checkpoint"
        if checkpoint.exists() and f"{topic} 0 {segments[-1]}" in checkpoint.read_text().splitlines() and segments[-1]:
            return
        if time.monotonic() > deadline:
            raise BrokerError(f"{topic} is not compacted\n{broker.output_tail()}")
        time.sleep(0.2)


def consumed(
    broker: KafkaBroker, topic: str = TOPIC, isolation: str = "read_uncommitted", count: int = 2
) -> list[tuple[Any, ...]]:
    """What a real consumer gets of a topic, by partition and offset."""
    partitions = [(topic, number) for number in range(count)]
    found = consume_all(broker, partitions, isolation)
    return sorted((one.partition(), one.offset(), one.timestamp()[1], one.key(), one.value()) for one in found)


def wait_for_copies(broker: KafkaBroker, topic: str) -> None:
    """Wait until only the last segments of a topic's partitions are on disk."""
    deadline = time.monotonic() + COPY_SECONDS
    while True:
        folders = sorted(broker.data_dir.glob(f"{topic}-[0-9]"))
        if folders and all(len(list(folder.glob("*.log"))) == 1 for folder in folders):
            starts = [int(path.stem) for folder in folders for path in folder.glob("*.log")]
            if all(starts) and not any(list(folder.glob("*.deleted")) for folder in folders):
                return
        if time.monotonic() > deadline:
            raise BrokerError(f"segments are not copied to remote storage\n{broker.output_tail()}")
        time.sleep(0.2)


def write_golden(target: Path) -> None:
    """The golden data: a log directory after a clean stop, its remote storage, and what a consumer got."""
    shutil.rmtree(target, ignore_errors=True)
    scratch = target / "scratch"
    expected: dict[str, Any] = {}
    with tiered_broker(scratch / "data", scratch / "tier") as broker:
        for isolation in ("read_uncommitted", "read_committed"):
            got = fill(broker) if isolation == "read_uncommitted" else consumed(broker, isolation=isolation)
            expected[isolation] = [[*row[:3], row[3].decode(), row[4].decode()] for row in got]
    kept = (f"{TOPIC}-*", "__remote_log_metadata-*", "*-checkpoint", "meta.properties")
    for pattern in kept:
        for path in (scratch / "data").glob(pattern):
            copy = shutil.copytree if path.is_dir() else shutil.copy
            (target / "data").mkdir(parents=True, exist_ok=True)
            copy(path, target / "data" / path.name)
    shutil.copytree(scratch / "tier" / "kafka-tiered-storage", target / "kafka-tiered-storage")
    (target / "expected.json").write_text(json.dumps(expected, indent=0) + "\n")
    shutil.rmtree(scratch)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the golden data of tiered storage.")
    parser.add_argument("target", type=Path)
    write_golden(parser.parse_args().target)


if __name__ == "__main__":
    main()
