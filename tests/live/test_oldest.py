"""The oldest release that is supported, 2.8 with ZooKeeper: requests in older versions, topics by name, batches checked in other ways."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

import rawlog
from rawlog.live.client import BrokerError
from rawlog.live.cluster import Cluster, TopicPartition, ids_of
from rawlog.live.fetch import Fetcher
from rawlog.live.settings import Settings
from tests.live.test_brokers import fill, log_of, new_topic, recorded, rows, transactions
from tests.services.kafka import KAFKA_2, KafkaBroker, ZooKeeperBroker

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def oldest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    from tests.conftest import running

    broker = ZooKeeperBroker(KAFKA_2, tmp_path_factory.mktemp("oldest"))
    with running(broker):
        yield broker


def test_records_and_transactions_are_the_same_after_a_replay(oldest: KafkaBroker, tmp_path: Path) -> None:
    topic, copy = new_topic(oldest), new_topic(oldest)
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        fill(oldest, topic, 60, codec=codec)
    transactions(oldest, topic)
    assert recorded(oldest, topic, tmp_path / "one", group=f"g-{topic}").is_whole
    for number in (0, 1):
        assert log_of(tmp_path / "one", f"{topic}-{number}") == log_of(oldest.data_dir, f"{topic}-{number}")
    assert rawlog.verify(tmp_path / "one").verdict == "clean"
    sent = rawlog.replay(tmp_path / "one", brokers=oldest.bootstrap, to_topic=copy)
    assert sent.is_whole, sent.lines()
    assert (sent.counts["acknowledged"], sent.counts["failed"]) == (5 * 60 + 3 * 30, 0)
    assert recorded(oldest, copy, tmp_path / "two").is_whole
    for number in (0, 1):
        found = rawlog.diff(tmp_path / "one" / f"{topic}-{number}", tmp_path / "two" / f"{copy}-{number}")
        assert found.is_same, found.lines()
    committed = {"isolation": "read_committed"}
    assert rows(tmp_path / "two", **committed) == rows(tmp_path / "one", **committed)
    assert recorded(oldest, topic, tmp_path / "rest", group=f"g-{topic}").counts["records"] == 0


def test_times_of_the_broker_become_times_of_the_records(oldest: KafkaBroker, tmp_path: Path) -> None:
    """A batch that says that its times are those of the broker is refused with error 32; later releases clear that bit."""
    topic, copy = new_topic(oldest, message_timestamp_type="LogAppendTime"), new_topic(oldest)
    fill(oldest, topic, 100)
    recorded(oldest, topic, tmp_path / "one")
    for keep_batches in (False, True):
        sent = rawlog.replay(tmp_path / "one", brokers=oldest.bootstrap, to_topic=copy, keep_batches=keep_batches)
        assert sent.is_whole, sent.lines()
    recorded(oldest, copy, tmp_path / "two")
    assert rows(tmp_path / "two") == {number: part + part for number, part in rows(tmp_path / "one").items()}


def test_a_mirror_keeps_offsets(oldest: KafkaBroker, tmp_path: Path) -> None:
    topic, exact = new_topic(oldest), f"made-{time.time_ns()}"
    fill(oldest, topic, 200)
    given: dict[str, Any] = {"brokers": oldest.bootstrap, "to": oldest.bootstrap, "until_end": True}
    done = rawlog.mirror(topic, topic_map={topic: exact}, exact=True, create_topics=True, **given)
    assert done.is_whole, done.lines()
    recorded(oldest, topic, tmp_path / "one")
    recorded(oldest, exact, tmp_path / "exact")
    for number in (0, 1):
        assert rawlog.diff(tmp_path / "one" / f"{topic}-{number}", tmp_path / "exact" / f"{exact}-{number}").is_same


def test_nothing_is_lost_or_doubled_when_the_broker_is_killed(oldest: KafkaBroker, tmp_path: Path) -> None:
    topic, copy = new_topic(oldest), new_topic(oldest)
    fill(oldest, topic, 1200)
    recorded(oldest, topic, tmp_path / "one")
    done: list[Any] = []

    def run() -> None:
        done.append(rawlog.replay(tmp_path / "one", brokers=oldest.bootstrap, to_topic=copy, rate=600))

    thread = Thread(target=run, daemon=True)
    thread.start()
    with Cluster(Settings.load(oldest.bootstrap)) as cluster:
        while cluster.offsets({TopicPartition(copy, 0): -1}, {})[TopicPartition(copy, 0)] < 100:
            assert thread.is_alive()
            time.sleep(0.05)
    oldest.kill()
    oldest.restart()
    while thread.is_alive():
        assert oldest.running, oldest.output_tail()
        thread.join(1)
    assert done[0].is_whole, done[0].lines()
    assert done[0].facts["retries"]
    recorded(oldest, copy, tmp_path / "two")
    assert rows(tmp_path / "two") == rows(tmp_path / "one")


def test_a_topic_that_is_created_again_is_noticed_while_it_is_read(oldest: KafkaBroker) -> None:
    """This release knows topics by name only when it is asked for records. While a topic is deleted it refuses; a reader that pauses for
    longer than that got the records of the new topic as if they were those of the old one.
    """
    topic = new_topic(oldest, 1)
    fill(oldest, topic, 50, partitions=1)
    with Cluster(Settings.load(oldest.bootstrap)) as cluster:
        ids = ids_of(cluster.topics([topic]))
        fetcher = Fetcher(cluster, {TopicPartition(topic, 0): 0}, ids, ahead=False)
        while fetcher.positions[TopicPartition(topic, 0)] < 50:
            fetcher.poll(1.0)
        admin = AdminClient({"bootstrap.servers": oldest.bootstrap})
        admin.delete_topics([topic])[topic].result()
        while True:
            try:
                new_topic(oldest, 1, topic)
                break
            except KafkaException:  # it is not gone yet
                time.sleep(0.05)
        fill(oldest, topic, 100, partitions=1)
        with pytest.raises(BrokerError, match="created again"):
            while True:
                assert not fetcher.poll(1.0)
