"""Transactions that are replayed: real brokers wrote the source, and the target must have the same records, markers and offsets."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

import rawlog
from rawlog.live.cluster import TopicPartition
from rawlog.live.replayer import Checkpoint, PartitionProgress
from rawlog.live.sending import Stop, TransactionPlan
from rawlog.live.sources import Marker
from tests.live.test_brokers import fill, new_topic, recorded, rows
from tests.services.kafka import KafkaBroker

A, B, C = (TopicPartition("t", number) for number in range(3))
FIELDS = ["partition", "offset", "key", "value", "timestamp", "headers"]
FIELDS += ["is_transactional", "is_control", "control_type", "aborted"]


# Which markers belong together -----------------------------------------------------------------------------------------------


def stop(partition: TopicPartition, producer: int, number: int, time: int) -> Stop:
    return Stop(partition, producer, number, is_marker=True, is_commit=True, time=time)


def test_markers_of_one_transaction_are_found_by_their_times() -> None:
    first = [(A, Marker(7, 0, False, 100)), (B, Marker(7, 0, False, 103))]
    second = [(A, Marker(7, 0, True, 150)), (C, Marker(7, 0, True, 149))]
    plan = TransactionPlan([first[0], second[0], first[1], second[1]])
    assert [plan.number(A, 7, 0), plan.number(A, 7, 1), plan.number(A, 7, 2)] == [0, 1, 2]
    assert [plan.number(B, 7, 0), plan.number(C, 7, 0)] == [0, 1]
    assert plan.is_turn(7, 0)
    assert not plan.is_turn(7, plan.number(C, 7, 0)), (
        "what a transaction commits must not be sent in the one before, which is aborted"
    )
    plan.passed(A, 7, 0)
    assert not plan.is_turn(7, 1)
    plan.passed(B, 7, 0)
    assert plan.is_turn(7, 1)


def test_a_transaction_is_ended_when_all_its_partitions_are_there() -> None:
    plan = TransactionPlan(
        [
            (A, Marker(1, 0, True, 10)),
            (A, Marker(2, 0, True, 20)),
            (B, Marker(2, 0, True, 12)),
            (B, Marker(3, 0, True, 30)),
        ]
    )
    assert plan.next_end([stop(A, 1, 0, 10), stop(B, 2, 0, 12)], {1: {A}, 2: {B}}) == stop(A, 1, 0, 10)
    plan.passed(A, 1, 0)
    assert plan.next_end([stop(A, 2, 0, 20), stop(B, 2, 0, 12)], {2: {A, B}}) == stop(B, 2, 0, 12)
    assert plan.next_end([Stop(A, 1, 5)], {}) is None


def test_markers_in_different_orders_do_not_block_each_other() -> None:
    """Two transactions that end at the same time: A has the marker of 1 before that of 2, B the other way round."""
    plan = TransactionPlan(
        [
            (A, Marker(1, 0, True, 10)),
            (A, Marker(2, 0, True, 13)),
            (B, Marker(2, 0, True, 11)),
            (B, Marker(1, 0, True, 12)),
        ]
    )
    assert plan.next_end([stop(A, 1, 0, 10), stop(B, 2, 0, 11)], {1: {A, B}, 2: {A, B}}) == stop(A, 1, 0, 10)


def test_a_marker_belongs_to_the_transaction_that_is_nearer_in_time() -> None:
    """Seen with a real broker: the marker of B was the first of the second transaction, and was taken for the last of the first one."""
    first = [(A, Marker(2, 0, True, 55)), (C, Marker(2, 0, True, 55))]
    second = [(B, Marker(2, 0, True, 222)), (A, Marker(2, 0, True, 223)), (C, Marker(2, 0, True, 223))]
    plan = TransactionPlan([*first, *second])
    assert [plan.number(one, 2, 0) for one in (A, B, C)] == [0, 1, 0]
    assert [plan.number(one, 2, 1) for one in (A, C)] == [1, 1]


def test_a_transaction_that_is_open_elsewhere_is_not_ended_if_another_can_be() -> None:
    """Both have partitions to come; that of 1 would get a marker too early in C."""
    plan = TransactionPlan(
        [
            (A, Marker(1, 0, True, 10)),
            (C, Marker(1, 0, True, 11)),
            (B, Marker(2, 0, True, 20)),
            (C, Marker(2, 0, True, 21)),
        ]
    )
    stops = [stop(A, 1, 0, 10), stop(B, 2, 0, 20), Stop(C, 3, 0)]
    assert plan.next_end(stops, {1: {A, C}, 2: {B}}) == stop(B, 2, 0, 20)


def test_checkpoints_are_read_as_they_were_written(tmp_path: Path) -> None:
    made = Checkpoint(
        "x", "source", None, "run", 5, {9: (6, 2)}, {A: PartitionProgress(10, 20, {-1: 4, 9: 6}, {9: 6}, {9: 2})}
    )
    made.write(str(tmp_path / "state"))
    assert Checkpoint.read(str(tmp_path / "state")) == made


# Real brokers ----------------------------------------------------------------------------------------------------------------


class Client:
    """A transactional producer of the source."""

    def __init__(self, broker: KafkaBroker, topic: str, name: str) -> None:
        self.topic, self.name = topic, name
        self.producer = Producer(
            {"bootstrap.servers": broker.bootstrap, "transactional.id": f"{topic}-{name}", "linger.ms": 0}
        )
        self.producer.init_transactions(30)
        self.number = 0

    def send(self, partitions: list[int], count: int = 3) -> None:
        """Records in a transaction, which is begun if there is none."""
        for partition in partitions:
            for _ in range(count):
                self.number += 1
                self.producer.produce(
                    self.topic,
                    f"{self.name}-{self.number}".encode(),
                    b"k",
                    partition,
                    timestamp=1_700_000_000_000 + self.number,
                )
        self.producer.flush(30)

    def transaction(self, partitions: list[int], *, commit: bool = True) -> None:
        self.producer.begin_transaction()
        self.send(partitions)
        self.end(commit=commit)

    def end(self, *, commit: bool) -> None:
        self.producer.commit_transaction(30) if commit else self.producer.abort_transaction(30)


def interleaved(broker: KafkaBroker, topic: str, rounds: int = 8, seed: int = 1) -> None:
    """Transactions of three producers over three partitions, some open at the same time, with plain records in between."""
    draw = random.Random(seed)
    clients = [Client(broker, topic, name) for name in "pqr"]
    for number in range(rounds):
        open_now = [one for one in clients if draw.random() < 0.7]
        for one in open_now:
            one.producer.begin_transaction()
        for _ in range(2):
            for one in draw.sample(open_now, len(open_now)):
                one.send(draw.sample(range(3), draw.randrange(1, 4)), draw.randrange(1, 4))
            fill(broker, topic, 6, partitions=3, seed=number)
        for one in draw.sample(open_now, len(open_now)):
            one.end(commit=draw.random() < 0.6)


def table(path: Path) -> list[dict[str, Any]]:
    """Every record and marker with its offset; of a marker only what it says."""
    found = rawlog.read(path, table="kafka.records", columns=FIELDS).to_pylist()
    for row in found:
        if row["is_control"]:
            row |= {"timestamp": None, "value": None}
    return sorted(found, key=lambda row: (row["partition"], row["offset"]))


@pytest.mark.broker
def test_transactions_are_replayed_as_they_were(kafka: KafkaBroker, tmp_path: Path) -> None:
    topic, copy = new_topic(kafka, 3), new_topic(kafka, 3)
    interleaved(kafka, topic)
    assert recorded(kafka, topic, tmp_path / "one").is_whole
    sent = rawlog.replay(tmp_path / "one", brokers=kafka.bootstrap, topic_map={topic: copy})
    assert sent.is_whole, sent.lines()
    assert recorded(kafka, copy, tmp_path / "two").is_whole
    assert table(tmp_path / "two") == table(tmp_path / "one")
    ends = Counter(row["control_type"] for row in table(tmp_path / "one") if row["is_control"])
    assert ends[0]
    assert ends[1]
    for number in range(3):
        for isolation in ("read_uncommitted", "read_committed"):
            pair = tmp_path / "one" / f"{topic}-{number}", tmp_path / "two" / f"{copy}-{number}"
            assert rawlog.diff(*pair, isolation=isolation).is_same


@pytest.mark.broker
def test_transactions_of_a_lake_are_replayed_as_they_were(kafka_4: KafkaBroker, tmp_path: Path) -> None:
    topic, copy = new_topic(kafka_4, 3), new_topic(kafka_4, 3)
    interleaved(kafka_4, topic, rounds=3, seed=2)
    assert recorded(kafka_4, topic, tmp_path / "one").is_whole
    assert recorded(kafka_4, topic, tmp_path / "lake", as_="lake").is_whole
    sent = rawlog.replay(tmp_path / "lake", brokers=kafka_4.bootstrap, topic_map={topic: copy})
    assert sent.is_whole, sent.lines()
    assert recorded(kafka_4, copy, tmp_path / "two").is_whole
    assert table(tmp_path / "two") == table(tmp_path / "one")


@pytest.mark.broker
def test_a_transaction_without_an_end_is_aborted(kafka_4: KafkaBroker, tmp_path: Path) -> None:
    topic, copy = new_topic(kafka_4, 3), new_topic(kafka_4, 3)
    client = Client(kafka_4, topic, "p")
    client.transaction([0, 1])
    client.producer.begin_transaction()
    client.send([0, 2])
    assert recorded(kafka_4, topic, tmp_path / "one").is_whole
    client.end(commit=True)
    sent = rawlog.replay(tmp_path / "one", brokers=kafka_4.bootstrap, topic_map={topic: copy})
    assert sent.is_whole, sent.lines()
    assert any("1 transaction that the source does not end" in note for note in sent.notes), sent.notes
    recorded(kafka_4, copy, tmp_path / "two")
    assert rows(tmp_path / "two", isolation="read_committed") == rows(tmp_path / "one", isolation="read_committed")
    assert rows(tmp_path / "two") == rows(tmp_path / "one")


@pytest.mark.broker
def test_a_killed_replay_of_transactions_continues_exactly_once(kafka: KafkaBroker, tmp_path: Path) -> None:
    """It is killed twice, wherever it is then: open transactions are aborted by the next one, and sent again from their first record."""
    topic, copy = new_topic(kafka, 3), new_topic(kafka, 3)
    interleaved(kafka, topic, rounds=25, seed=3)
    assert recorded(kafka, topic, tmp_path / "one").is_whole
    state, total = tmp_path / "state.json", rawlog.count(tmp_path / "one")
    command = [
        sys.executable, "-m", "rawlog", "replay", str(tmp_path / "one"), "-b", kafka.bootstrap, "--topic-map", f"{topic}={copy}",
        "--checkpoint", str(state), "--quiet",
    ]  # fmt: skip
    for share in (0.1, 0.4):
        process = subprocess.Popen(command)
        while process.poll() is None and (not state.exists() or done(state) < share * total):
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
    last = rawlog.replay(tmp_path / "one", brokers=kafka.bootstrap, topic_map={topic: copy}, checkpoint=state)
    assert last.is_whole, last.lines()
    recorded(kafka, copy, tmp_path / "two")
    found, expected = (rows(tmp_path / name, isolation="read_committed") for name in ("two", "one"))
    for number in expected:
        assert Counter(map(repr, found[number])) == Counter(map(repr, expected[number]))
    assert by_producer(found) == by_producer(expected)


def done(state: Path) -> int:
    """The records that a checkpoint knows of."""
    return sum(row[2] for row in json.loads(state.read_bytes())["partitions"])


def by_producer(found: dict[int, list[tuple[Any, ...]]]) -> dict[tuple[int, bytes], list[bytes]]:
    """The values of each producer in each partition, in their order."""
    made: dict[tuple[int, bytes], list[bytes]] = {}
    for number, part in found.items():
        for key, value, _, _ in part:
            name = value[:1] if key == b"k" else b"plain"
            made.setdefault((number, name), []).append(value)
    return made
