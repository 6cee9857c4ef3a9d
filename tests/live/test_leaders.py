"""Leaders that move between two brokers in the middle of a replay and a recording: nothing is lost, nothing is there twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest

import rawlog
from tests.live.test_brokers import rows
from tests.live.test_transactions import interleaved
from tests.services.cluster import KafkaCluster
from tests.services.kafka import KAFKA_4

pytestmark = pytest.mark.broker
BATCHES, ROWS, SIZE = 6, 30_000, 150
TWO = {
    "offsets.topic.replication.factor": "2",
    "transaction.state.log.replication.factor": "2",
    "auto.create.topics.enable": "false",
}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    from tests.conftest import running

    with running(KafkaCluster(KAFKA_4, tmp_path_factory.mktemp("two"), count=2, properties=TWO)) as cluster:
        yield cluster


def topic_of(cluster: KafkaCluster, name: str, partitions: int) -> str:
    """A topic on both brokers, led by each of them in turn."""
    from confluent_kafka.admin import NewTopic

    assignment = [[1, 2] if number % 2 == 0 else [2, 1] for number in range(partitions)]
    made = NewTopic(name, partitions, replica_assignment=assignment, config={"min.insync.replicas": "2"})
    admin = cluster.admin()
    admin.create_topics([made])[name].result(60)
    cluster.wait_in_sync([name])
    return name


def test_nothing_is_lost_or_doubled_when_leaders_move(two: KafkaCluster, tmp_path: Path) -> None:
    topic = topic_of(two, "plain", 2)
    done: list[Any] = []

    def follow() -> None:
        count = BATCHES * ROWS
        done.append(rawlog.record(topic, tmp_path / "one", brokers=two.bootstrap, limit=count, timeout="4m"))

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(BATCHES):
            if number in (2, 4):  # what was sent before is on its way
                for partition in (0, 1):
                    two.lead(topic, partition, (1, 2)[(partition + number // 2) % 2])
            keys = [b"%08d" % (number * ROWS + index) for index in range(ROWS)]
            columns = {"key": keys, "value": [bytes(SIZE)] * ROWS, "partition": [0, 1] * (ROWS // 2)}
            yield pa.RecordBatch.from_pydict(columns, schema)

    schema = pa.schema({"key": pa.binary(), "value": pa.binary(), "partition": pa.int32()})
    thread = Thread(target=follow)
    thread.start()
    sent = rawlog.replay(
        pa.RecordBatchReader.from_batches(schema, batches()), brokers=two.bootstrap, to_topic=topic, timestamps="now"
    )
    thread.join(300)
    assert sent.is_whole, sent.lines()
    assert sent.facts["retries"]
    assert done[0].is_whole, done[0].lines()
    for number, part in rows(tmp_path / "one").items():
        assert [row[0] for row in part] == [b"%08d" % index for index in range(number, BATCHES * ROWS, 2)]
    assert rawlog.record(topic, tmp_path / "two", brokers=two.bootstrap, until_end=True).is_whole
    for number in (0, 1):
        pair = tmp_path / "one" / f"{topic}-{number}", tmp_path / "two" / f"{topic}-{number}"
        assert rawlog.diff(*pair).is_same


def test_transactions_are_repeated_while_leaders_move(two: KafkaCluster, tmp_path: Path) -> None:
    topic, copy = topic_of(two, "transactions", 3), topic_of(two, "repeated", 3)
    interleaved(two, topic, rounds=6, seed=5)  # type: ignore[arg-type]
    assert rawlog.record(topic, tmp_path / "one", brokers=two.bootstrap, until_end=True).is_whole
    moves: list[int] = []

    def progress(_: Any) -> None:
        if len(moves) < 3:
            moves.append(len(moves))
            two.lead(copy, moves[-1], (2, 1, 2)[moves[-1]])

    sent = rawlog.replay(tmp_path / "one", brokers=two.bootstrap, topic_map={topic: copy}, progress=progress)
    assert sent.is_whole, sent.lines()
    assert rawlog.record(copy, tmp_path / "two", brokers=two.bootstrap, until_end=True).is_whole
    for isolation in ("read_committed", "read_uncommitted"):  # markers of two brokers may change places
        assert rows(tmp_path / "two", isolation=isolation) == rows(tmp_path / "one", isolation=isolation)
