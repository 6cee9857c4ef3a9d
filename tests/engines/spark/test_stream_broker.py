"""A stream over the directory of a real broker that writes, rolls and deletes segments meanwhile."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import rawlog
from rawlog.engines.sql import functions
from rawlog.model.errors import AccessError
from tests.engines.spark.test_stream import Query, logs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.services.kafka import KafkaBroker

pytestmark = pytest.mark.broker
PARTITIONS, SEGMENT, KEPT = 2, 1 << 20, 2 << 20
VALUE = bytes(range(256)) * 8  # what a broker would compress badly, and does not


class Topic:
    """A topic that is written to, and all that was."""

    def __init__(self, broker: KafkaBroker, name: str, **settings: str) -> None:
        from confluent_kafka import Producer
        from confluent_kafka.admin import AdminClient, NewTopic

        self.admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        self.admin.create_topics([NewTopic(name, PARTITIONS, 1, config=settings)])[name].result(60)
        self.name = name
        self.folders = [broker.data_dir / f"{name}-{number}" for number in range(PARTITIONS)]
        self.sent: dict[tuple[int, int], bytes] = {}
        # Kafka's own hash of keys, as the Java client has it.
        self.producer = Producer({"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2", "linger.ms": 20})

    def send(self, count: int) -> None:
        """So many records more, and wait until they are there."""

        def delivered(error: Any, message: Any) -> None:
            assert error is None, error
            self.sent[message.partition(), message.offset()] = message.key()

        for number in range(len(self.sent), len(self.sent) + count):
            self.producer.produce(self.name, VALUE, key=b"key %d" % number, on_delivery=delivered)
            self.producer.poll(0)
        assert self.producer.flush(60) == 0

    def keep(self, size: int) -> None:
        """Set how much retention leaves of each partition; -1 for all."""
        from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

        entry = ConfigEntry("retention.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
        changed = ConfigResource(ConfigResource.Type.TOPIC, self.name, incremental_configs=[entry])
        for done in self.admin.incremental_alter_configs([changed]).values():
            done.result(60)

    def moved(self, before: list[int]) -> bool:
        """Whether every partition begins later than before."""
        return all(now > then for now, then in zip(self.firsts(), before, strict=True))

    def firsts(self) -> list[int]:
        return [int(logs(folder)[0].stem) for folder in self.folders]


def wait(until: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 90
    while not until():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


@pytest.mark.slow
def test_every_record_once_over_rolls_and_retention(spark: SparkSession, kafka_4: KafkaBroker, tmp_path: Path) -> None:
    topic = Topic(kafka_4, "streamed", **{"segment.bytes": str(SEGMENT)})
    source, out = f"{kafka_4.data_dir}/streamed-*", tmp_path / "out"

    def start() -> Any:
        frame = spark.readStream.format("rawlog").option("maxBytesPerTrigger", "1m").load(source)
        frame = frame.select("partition", "offset", "key", "value")
        writer = frame.writeStream.format("parquet").option("checkpointLocation", f"{out}/checkpoint")
        return writer.trigger(processingTime="200 milliseconds").start(f"{out}/data")

    query = start()
    try:
        for round in range(3):
            before = topic.firsts() if round else [0] * PARTITIONS
            topic.send(4000)  # some 8 MB: each partition rolls a few times
            query.processAllAvailable()
            topic.keep(KEPT)
            wait(lambda: topic.moved(before), "retention deletes what was read")  # noqa: B023
            topic.keep(-1)  # no more than that, however slow this machine is
            if round == 1:
                query.stop()
                query = start()
        query.processAllAvailable()
    finally:
        query.stop()
    table = pa.Table.from_batches(spark.read.parquet(f"{out}/data").toArrow().to_batches())
    assert len(table) == len(topic.sent) == 12000
    found = zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True)
    assert dict(zip(found, table["key"].to_pylist(), strict=True)) == topic.sent
    assert set(table["value"].to_pylist()) == {VALUE}
    assert (
        functions.kafka_partition(table["key"], pa.array([PARTITIONS] * len(table))).to_pylist()
        == table["partition"].to_pylist()
    )


@pytest.mark.slow
def test_a_gap_that_retention_made_is_reported(kafka_4: KafkaBroker, tmp_path: Path) -> None:
    topic = Topic(kafka_4, "lost", **{"segment.bytes": str(SEGMENT)})
    source, checkpoint = Path(f"{kafka_4.data_dir}/lost-*"), {}
    topic.send(100)
    first = Query(source, checkpoint).all()
    assert len(first) == 100
    topic.send(8000)
    topic.keep(KEPT)
    wait(lambda: topic.moved([0] * PARTITIONS), "retention deletes what was not read")
    copy = tmp_path / "copy"

    def copied() -> bool:
        """All folders as they were at one moment, while the broker goes on deleting."""
        before = topic.firsts()
        shutil.rmtree(copy, ignore_errors=True)
        with suppress(shutil.Error):  # a file that went away meanwhile
            for folder in topic.folders:
                shutil.copytree(
                    folder, copy / folder.name, ignore=lambda _, names: [name for name in names if "deleted" in name]
                )
            return topic.firsts() == before
        return False

    wait(copied, "a copy of what retention left")
    moved = {"end": checkpoint["end"].replace(str(kafka_4.data_dir), str(copy))}
    with pytest.raises(AccessError, match="deleted before they were read; set failOnDataLoss to false"):
        Query(copy / "lost-*", dict(moved)).batch()
    found = Query(copy / "lost-*", dict(moved), failOnDataLoss="false").all()
    assert found == rawlog.read(copy).to_pylist()


@pytest.mark.slow
def test_read_committed_as_a_real_consumer(kafka_4: KafkaBroker) -> None:
    from confluent_kafka import Consumer, Producer, TopicPartition

    topic = Topic(kafka_4, "decided")
    source, checkpoint = Path(f"{kafka_4.data_dir}/decided-*"), {}
    one, other = (
        Producer({"bootstrap.servers": kafka_4.bootstrap, "transactional.id": name, "linger.ms": 5})
        for name in ("decided-one", "decided-other")
    )
    consumer = Consumer(
        {"bootstrap.servers": kafka_4.bootstrap, "group.id": "decided", "isolation.level": "read_committed",
         "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )  # fmt: skip
    consumer.assign([TopicPartition("decided", 0, 0)])

    def stream() -> list[int]:
        return [row["offset"] for row in Query(source, checkpoint, isolation="read_committed").all()]

    def send(producer: Any, count: int) -> None:
        for number in range(count):
            producer.produce(topic.name, b"%d" % number, partition=0)
        assert producer.flush(60) == 0

    def consumed() -> list[int]:
        """What the consumer gets until nothing more comes."""
        found: list[int] = []
        while (message := consumer.poll(3 if found else 20)) is not None:
            assert message.error() is None
            found.append(message.offset())
        return found

    for producer in (one, other):
        producer.init_transactions(60)
    one.begin_transaction()
    other.begin_transaction()
    send(one, 5)
    send(other, 5)
    one.commit_transaction(60)  # decided, but `other` began before its end
    send(other, 3)
    other.abort_transaction(60)
    one.begin_transaction()
    send(one, 4)
    for count in (5, 4):
        expected = consumed()
        assert len(expected) == count
        found: list[int] = []
        wait(lambda: bool(found.extend(stream()) or found), "markers are written a moment later")  # noqa: B023
        assert found + stream() == expected
        if count == 5:
            one.commit_transaction(60)
    consumer.close()
