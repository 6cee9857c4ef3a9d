"""Records replayed at once leave the state that they leave one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rawlog
from rawlog.formats.kafka.cluster import metadata_batches
from rawlog.formats.kafka.cluster.metadata_batches import Replay
from rawlog.formats.kafka.cluster.metadata_log import MetadataStore, Moment
from rawlog.formats.kafka.cluster.state import State
from rawlog.formats.kafka.internal.codec import UNKNOWN
from rawlog.formats.kafka.internal.messages import encode_framed
from rawlog.formats.kafka.paths import takes
from tests.data.kraft import BROKERS, data_dir
from tests.reference.kraft import Cluster

IDS = [bytes([number]) * 16 for number in range(3)]
NODES = [b"\1" * 16, b"\2" * 16, bytes(16)]
UNKNOWN_TAG = [(40, b"later")]


replicas: st.SearchStrategy[Any] = st.lists(st.integers(0, 4), max_size=3)


def sometimes(value: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | value


directories = st.lists(st.sampled_from(NODES), max_size=3)
place = {"topicId": st.sampled_from(IDS), "partitionId": st.integers(0, 2)}
numbers = st.integers(0, 3)
tags = st.just({}) | st.just({}) | st.just({}) | st.just({UNKNOWN: UNKNOWN_TAG})


def messages(type: str, version: int = 0, /, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    """Records of a type in their frames, a few of them with a tag that no schema knows."""
    return st.builds(
        lambda message, more: encode_framed(type, {**message, **more}, version), st.fixed_dictionaries(fields), tags
    )


def added_later(version: int, value: st.SearchStrategy[Any]) -> dict[str, st.SearchStrategy[Any]]:
    """The fields of partitions that only later versions have; of lists of replicas, `value` says whether they may be missing."""
    fields: dict[str, st.SearchStrategy[Any]] = {}
    if version > 0:
        fields["directories"] = directories if value is replicas else sometimes(directories)
    if version > 1:
        fields |= dict.fromkeys(("eligibleLeaderReplicas", "lastKnownElr"), sometimes(replicas))
    return fields


ARRAYS = ("replicas", "isr", "removingReplicas", "addingReplicas")


def partitions(version: int) -> st.SearchStrategy[bytes]:
    fields = dict.fromkeys(ARRAYS, replicas)
    fields |= dict.fromkeys(("leader", "leaderEpoch", "partitionEpoch", "leaderRecoveryState"), numbers)
    return messages("PartitionRecord", version, **place, **fields, **added_later(version, replicas))


def changes(version: int) -> st.SearchStrategy[bytes]:
    fields = dict.fromkeys(ARRAYS, sometimes(replicas))
    fields |= {"leader": st.integers(-2, 3), "leaderRecoveryState": st.integers(-1, 1)}
    return messages("PartitionChangeRecord", version, **place, **fields, **added_later(version, sometimes(replicas)))


topics = messages("TopicRecord", name=st.sampled_from("ab"), topicId=st.sampled_from(IDS))
removals = messages("RemoveTopicRecord", topicId=st.sampled_from(IDS))
configs = messages(
    "ConfigRecord",
    resourceType=st.sampled_from((2, 4)),
    resourceName=st.sampled_from(("a", "b", "é")),
    name=st.sampled_from("xy"),
    value=sometimes(st.sampled_from("12")),
)
others = st.sampled_from(
    [
        encode_framed("NoOpRecord", {}),
        encode_framed("NoOpRecord", {UNKNOWN: UNKNOWN_TAG}),
        encode_framed("FeatureLevelRecord", {"name": "metadata.version", "featureLevel": 25}),
        encode_framed("ProducerIdsRecord", {"brokerId": 1, "brokerEpoch": 2, "nextProducerId": 3}),
        encode_framed("FenceBrokerRecord", {"id": 1, "epoch": 2}),
    ]
)
cleared = st.sampled_from([encode_framed("ClearElrRecord", {"topicName": name}) for name in ("a", "")])
brackets = st.sampled_from(
    [encode_framed(name, {}) for name in ("BeginTransactionRecord", "EndTransactionRecord", "AbortTransactionRecord")]
)
partition = st.integers(0, 2).flatmap(partitions)
change = st.integers(0, 2).flatmap(changes)
daily = st.one_of(change, change, change, partition, configs, cleared)
"""What happens to topics that stay."""
ordinary = st.one_of(change, change, change, partition, partition, topics, removals, configs, others, cleared)


@st.composite
def odd(draw: st.DrawFn) -> bytes:
    """A record that Kafka does not write: cut, with more behind it, with a changed byte, or with a number longer than it needs to be."""
    value = draw(ordinary)
    at = draw(st.integers(0, len(value) - 1))
    kind = draw(st.integers(0, 3))
    if kind == 0:
        return value[:at]
    if kind == 1:
        return value + draw(st.binary(min_size=1, max_size=3))
    if kind == 2:
        return value[:at] + bytes([value[at] ^ draw(st.integers(1, 255))]) + value[at + 1 :]
    return value[:at] + bytes([value[at] | 0x80, 0]) + value[at + 1 :]


def one_by_one(values: Sequence[bytes]) -> State:
    state = State()
    for offset, value in enumerate(values):
        state.add(offset, value)
    return state


def rows(values: Sequence[bytes | None], first: int = 0) -> pa.RecordBatch:
    count = len(values)
    return pa.record_batch(
        {
            "value": pa.array(values, pa.binary()),
            "offset": pa.array(range(first, first + count), pa.int64()),
            "is_control": pa.array([False] * count),
            "control_type": pa.nulls(count, pa.int32()),
        }
    )


def at_once(values: Sequence[bytes], cuts: Sequence[int]) -> State:
    state = State()
    for start, stop in zip((0, *cuts), (*cuts, len(values)), strict=True):
        records = Replay(state)
        records.add(rows(values[start:stop], start))
        records.flush()
    return state


def agree(values: Sequence[bytes], cuts: Sequence[int]) -> None:
    """Compare three ways to replay records: at once, one by one, and the reference."""
    state, cluster = at_once(values, cuts), Cluster()
    assert state == one_by_one(values)
    for number, value in enumerate(values):
        cluster.add(number, value)
    assert {key: topic.name for key, topic in state.topics.items()} == cluster.names
    assert {
        (key, number): {name: value for name, value in message.items() if name != UNKNOWN}
        for key, topic in state.topics.items()
        for number, message in topic.partitions.items()
    } == {
        key: {name: value for name, value in message.items() if name != UNKNOWN}
        for key, message in cluster.partitions.items()
    }
    assert {
        (*resource, name): value for resource, values in state.configs.items() for name, value in values.items()
    } == cluster.settings


def beginning() -> list[bytes]:
    """Every topic, with its partitions."""
    lists = {name: [1, 2] for name in ARRAYS}
    values = []
    for topic_id, name in zip(IDS, "abc", strict=True):
        values.append(encode_framed("TopicRecord", {"name": name, "topicId": topic_id}))
        message = {"topicId": topic_id, "leader": 1, "leaderEpoch": 0, "partitionEpoch": 0, **lists}
        values += [encode_framed("PartitionRecord", {**message, "partitionId": number}) for number in range(3)]
    return values


logs = st.builds(lambda first, more: first + more, st.sampled_from(([], beginning())), st.lists(ordinary, max_size=60))
steady_logs = st.lists(daily, max_size=60).map(lambda more: beginning() + more)


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of few records are replayed at once too."""
    monkeypatch.setattr(metadata_batches, "LEAST", 1)


@settings(max_examples=120, deadline=None)
@given(logs | steady_logs, st.data())
def test_records_as_kafka_writes_them(values: list[bytes], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(values)), max_size=3)))
    agree(values, cuts)


@settings(max_examples=100, deadline=None)
@given(st.lists(ordinary | ordinary | brackets | odd(), max_size=60).map(lambda more: beginning() + more), st.data())
def test_odd_records_and_transactions(values: list[bytes], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(values)), max_size=3)))
    assert at_once(values, cuts) == one_by_one(values)


def test_eligible_leaders_that_are_cleared_stay_cleared() -> None:
    """A record that clears them comes after the change that names them, and a later change of something else must not bring them back."""
    place = {"topicId": IDS[0], "partitionId": 1}
    named = encode_framed("PartitionChangeRecord", {**place, "eligibleLeaderReplicas": [2], "lastKnownElr": [1]}, 2)
    other = encode_framed("PartitionChangeRecord", {**place, "leader": 2}, 2)
    cleared = encode_framed("ClearElrRecord", {"topicName": "a"})
    for cuts in ([], [12], [13]):
        agree([*beginning(), named, cleared, other], cuts)
    state = at_once([*beginning(), named, cleared, other], [])
    assert state.topics[IDS[0]].partitions[1]["eligibleLeaderReplicas"] == []
    assert at_once([*beginning(), named, other], []).topics[IDS[0]].partitions[1]["eligibleLeaderReplicas"] == [2]


@pytest.mark.parametrize("broker", BROKERS)
def test_the_logs_of_real_brokers(broker: str) -> None:
    log = MetadataStore(
        [file for file in rawlog.open(data_dir(broker) / "__cluster_metadata-0").files if takes("kraft.topics", file)]
    )
    expected = State()
    for records in log.rows(log.segments, "raise"):
        for offset, value, control, kind in zip(
            records.offsets, records.values, records.controls, records.kinds, strict=True
        ):
            if control:
                expected.add_control(offset, kind or 0, value or b"")
            else:
                expected.add(offset, value or b"")
    state = State()
    log._replay(state, Moment(), "raise")
    assert state.end_offset > 0
    assert (state.topics, state.configs, state.brokers, state.features) == (
        expected.topics,
        expected.configs,
        expected.brokers,
        expected.features,
    )
    assert (state.records, state.problems, state.leader, state.voters, state.kraft_version) == (
        expected.records,
        expected.problems,
        expected.leader,
        expected.voters,
        expected.kraft_version,
    )
