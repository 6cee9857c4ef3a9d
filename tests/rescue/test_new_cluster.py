"""A real cluster of three nodes dies; new brokers start on what `rescue` wrote: three of them, or one where the metadata is lost.

The cluster lives once for all tests. It dies with one transaction open, in which a group has committed an offset.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import rawlog
from tests.conftest import needed, running
from tests.data.golden import golden_path
from tests.rescue.judge import consume
from tests.services import free_ports
from tests.services.cluster import JUDGE, KafkaCluster
from tests.services.kafka import KAFKA_3, KAFKA_4, KafkaBroker

pytestmark = pytest.mark.broker

TOPICS = {"wide": (2, 3), "narrow": (3, 1)}
KEYS = [(topic, number) for topic, (count, _) in TOPICS.items() for number in range(count)]
SETTINGS = {"retention.ms": "86400000", "min.insync.replicas": "2"}


@dataclass
class Dead:
    """The disks of a dead cluster, and what was acknowledged: values by partition and offset."""

    disks: list[Path]
    acknowledged: dict[tuple[str, int], dict[int, bytes]] = field(default_factory=lambda: {key: {} for key in KEYS})
    #: Written in the transaction that was open at death.
    pending: dict[tuple[str, int], dict[int, bytes]] = field(default_factory=lambda: {key: {} for key in KEYS})
    topic_ids: dict[str, str] = field(default_factory=dict)
    committed: int = 0


def produce(producer: Any, into: dict[tuple[str, int], dict[int, bytes]], count: int, label: str) -> None:
    def done(error: Any, message: Any) -> None:
        assert error is None, error
        into[message.topic(), message.partition()][message.offset()] = message.value()

    for at in range(count):
        topic, number = KEYS[at % len(KEYS)]
        producer.produce(topic, value=f"{label} {at}".encode(), partition=number, on_delivery=done)
    assert producer.flush(60) == 0


def live(cluster: KafkaCluster, dead: Dead) -> None:
    """Write with and without transactions, commit offsets of a group, and leave one transaction open."""
    from confluent_kafka import Consumer, Producer, TopicPartition
    from confluent_kafka.admin import NewTopic

    new = [
        NewTopic(name, count, replicas, config=SETTINGS if replicas > 1 else {})
        for name, (count, replicas) in TOPICS.items()
    ]
    admin = cluster.admin()
    for future in admin.create_topics(new).values():
        future.result(30)
    cluster.wait_for_leaders(list(TOPICS))
    settings = {"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0}
    produce(Producer({**settings, "enable.idempotence": True}), dead.acknowledged, 60, "plain")
    done = Producer({**settings, "transactional.id": "done"})
    done.init_transactions(60)
    done.begin_transaction()
    produce(done, dead.acknowledged, 20, "committed")
    done.commit_transaction(60)
    consumer = Consumer(
        {**settings, "group.id": "readers", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["wide"])
    while not consumer.assignment():
        consumer.poll(0.5)
    dead.committed = 5
    consumer.commit(offsets=[TopicPartition("wide", 0, dead.committed)], asynchronous=False)
    group = consumer.consumer_group_metadata()
    opened = Producer({**settings, "transactional.id": "open"})
    opened.init_transactions(60)
    opened.begin_transaction()
    produce(opened, dead.pending, 10, "pending")
    opened.send_offsets_to_transaction([TopicPartition("wide", 0, 9)], group, 60)
    cluster.wait_in_sync()
    cluster.kill()
    consumer.close()


@pytest.fixture(scope="module")
def dead(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dead]:
    folder = tmp_path_factory.mktemp("dead")
    with needed():
        cluster = KafkaCluster(KAFKA_4, folder).__enter__()
    made = Dead([folder / str(node) / "0" for node in cluster.nodes])
    try:
        live(cluster, made)
    finally:
        cluster.__exit__(None, None, None)
    rows = rawlog.read(made.disks[0], table="kraft.topics").to_pylist()
    made.topic_ids = {row["topic"]: row["topic_id"] for row in rows}
    yield made
    shutil.rmtree(folder, ignore_errors=True)


def check(bootstrap: str, dead: Dead) -> None:
    """Everything acknowledged is served at its offset, under both isolation levels; what was pending is aborted."""
    committed, _ = consume(bootstrap, KEYS, "read_committed")
    plain, ends = consume(bootstrap, KEYS, "read_uncommitted")
    for key in KEYS:
        assert {offset: row[1] for offset, row in committed[key].items()} == dead.acknowledged[key], key
        assert {offset: row[1] for offset, row in plain[key].items()} == dead.acknowledged[key] | dead.pending[key], key
        assert ends[key][1] > max(plain[key])


def group_offset(bootstrap: str) -> int:
    from confluent_kafka import ConsumerGroupTopicPartitions
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    [future] = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("readers")]).values()
    [found] = [one.offset for one in future.result(30).topic_partitions if (one.topic, one.partition) == ("wide", 0)]
    return int(found)


def test_three_brokers_start_with_all_replicas_in_sync(dead: Dead, tmp_path: Path) -> None:
    from confluent_kafka import Producer

    report = rawlog.rescue(dead.disks, to=tmp_path / "new", brokers=3)
    assert not report.lost
    assert report.facts["nodes"] == [1, 2, 3]
    assert (
        "controller.quorum.voters=1@host-1:9093,2@host-2:9093,3@host-3:9093" in report.facts["server_properties"]["2"]
    )
    homes = {node: tmp_path / "new" / f"broker-{node}" for node in (1, 2, 3)}
    for node, home in homes.items():
        assert not [one for one in rawlog.verify(home) if str(one.severity) == "error"], node
        assert {
            row["topic"]: row["topic_id"] for row in rawlog.read(home, table="kraft.topics").to_pylist()
        } == dead.topic_ids
    settings = rawlog.read(homes[2], table="kraft.configs", where="resource_name = 'wide'").to_pylist()
    assert {(row["name"], row["value"]) for row in settings} >= {("min.insync.replicas", "2"), ("retention.ms", "-1")}
    with KafkaCluster(
        KAFKA_4, tmp_path, folders={node: [home] for node, home in homes.items()}, properties=JUDGE
    ) as new:
        new.wait_for_leaders()
        new.wait_in_sync()
        placed = new.partitions(list(TOPICS))
        assert all(len(replicas) == TOPICS[topic][1] for (topic, _), (_, _, replicas) in placed.items())
        assert {replicas[0] for (topic, _), (_, _, replicas) in placed.items() if topic == "narrow"} == {1, 2, 3}
        check(new.bootstrap, dead)
        assert group_offset(new.bootstrap) == dead.committed
        more: dict[tuple[str, int], dict[int, bytes]] = {key: {} for key in KEYS}
        produce(Producer({"bootstrap.servers": new.bootstrap, "acks": "all", "log_level": 0}), more, 10, "more")
        opened = Producer({"bootstrap.servers": new.bootstrap, "transactional.id": "open", "log_level": 0})
        opened.init_transactions(60)
        opened.begin_transaction()
        produce(opened, more, 5, "again")
        opened.commit_transaction(60)


def test_a_broker_starts_where_all_metadata_is_lost(dead: Dead, tmp_path: Path) -> None:
    disks = [Path(shutil.copytree(disk, tmp_path / str(at))) for at, disk in enumerate(dead.disks)]
    for disk in disks:
        shutil.rmtree(disk / "__cluster_metadata-0")
        (disk / "bootstrap.checkpoint").unlink()
    (disks[1] / "meta.properties").unlink()
    report = rawlog.rescue(disks, to=tmp_path / "new")
    assert any("settings of topics" in one for one in report.facts["unknown"])
    assert not report.lost
    with KafkaBroker(KAFKA_4, tmp_path / "new", JUDGE) as broker:
        check(broker.bootstrap, dead)
        assert group_offset(broker.bootstrap) == dead.committed
    found = {row["topic"]: row["topic_id"] for row in rawlog.read(tmp_path / "new", table="kraft.topics").to_pylist()}
    assert found == dead.topic_ids


class WrittenSettings(KafkaBroker):
    """A broker that starts with exactly the settings that `rescue` wrote; only the ports are free ones."""

    def _configure(self) -> None:
        broker, controller = free_ports(2)
        self.bootstrap = f"localhost:{broker}"
        text = Path(f"{self.data_dir}.server.properties").read_text("ascii")
        text = text.replace(":9092", f":{broker}").replace(":9093", f":{controller}")
        (self._home / "server.properties").write_text(text, "ascii")


@pytest.mark.parametrize("version", [KAFKA_3, KAFKA_4])
def test_a_broker_starts_with_exactly_the_settings_that_were_written(version: str, tmp_path: Path) -> None:
    """The settings that were printed had no listeners: a broker of 3.9.2 ended at once with exactly these."""
    source = golden_path("kafka", f"broker-{version}", "data")
    target = tmp_path / "new cluster ü"
    rawlog.rescue(source, to=target, topic="segments-by-size")
    expected = rawlog.read(source / "segments-by-size-0")["offset"].to_pylist()
    with running(WrittenSettings(version, target)) as broker:
        found, _ = consume(broker.bootstrap, [("segments-by-size", 0)], "read_uncommitted")
        assert sorted(found["segments-by-size", 0]) == expected
