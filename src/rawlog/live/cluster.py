"""A cluster: its brokers, who leads which partition, where partitions begin and end, and how to wait until that is known again.

Errors that pass by themselves (a leader that moves, a broker that restarts) are retried with growing pauses until the settings' patience
ends; all others are raised at once.
"""

from __future__ import annotations

import fnmatch
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self, TypeVar

from rawlog.formats.kafka.internal.codec import Message
from rawlog.live import client
from rawlog.live.client import (
    MOVED,
    NOT_AUTHORIZED,
    RETRIABLE,
    TOPIC_EXISTS,
    UNKNOWN_TOPIC,
    BrokerError,
    Connection,
    Disconnected,
    explain_code,
    refusal,
)
from rawlog.live.settings import Settings
from rawlog.model.errors import unknown
from rawlog.model.report import Action, Report

END, BEGINNING = -1, -2
"""Timestamps of ListOffsets."""
TOPIC_RESOURCE = 2
GROUP, TRANSACTION = 0, 1
"""The kinds of keys that a coordinator is asked for by."""

T = TypeVar("T")


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads a partition, in which epoch; `node` is -1 while nobody does."""

    node: int
    epoch: int


@dataclass(slots=True)
class TopicMetadata:
    """A topic as the metadata has it."""

    name: str
    id: bytes
    is_internal: bool
    partitions: dict[int, Leader] = field(default_factory=dict)


class Cancelled(Exception):
    """Somebody asked to stop while we waited."""


def interrupted_report(verb: str, source: str, target: str) -> Report:
    """The Report of a verb that was stopped before it began."""
    report = Report(verb, source, target)
    report.counts |= {"records": 0, "bytes": 0, "acknowledged": 0, "failed": 0}
    report.add(Action.LOST, "interrupted before anything was sent or stored")
    report.facts |= {"interrupted": True, "seconds": 0.0}
    return report


class Backoff:
    """Pauses that grow, until the patience ends. `progress` begins again."""

    def __init__(self, settings: Settings, is_stopped: Callable[[], bool] | None = None) -> None:
        self.settings, self._is_stopped = settings, is_stopped
        self.progress()

    def progress(self) -> None:
        """Something worked."""
        self._pause = self.settings.backoff
        self._since: float | None = None
        self.retries = 0

    def wait(self, error: BrokerError) -> None:
        """Pause before another attempt. The error itself, if there were too many; Cancelled if we are asked to stop."""
        now = time.monotonic()
        if self._since is None:  # the first error: before it there may have been nothing to do for hours
            self._since = now
        if now - self._since > self.settings.patience:
            raise error
        self.retries += 1
        stop = time.monotonic() + self._pause * random.uniform(0.8, 1.2)
        while (left := stop - time.monotonic()) > 0:
            if self._is_stopped is not None and self._is_stopped():
                raise Cancelled
            time.sleep(min(left, 0.1))
        self._pause = min(2 * self._pause, self.settings.longest_backoff)


class Cluster:
    """Connections to the brokers of a cluster. Use as a context manager.

    >>> from rawlog.live import Cluster, Settings
    >>> with Cluster(Settings.load("localhost:9092")) as cluster:  # doctest: +SKIP
    ...     topics = cluster.topics(["orders*"])
    """

    def __init__(self, settings: Settings, is_stopped: Callable[[], bool] | None = None) -> None:
        self.settings, self.is_stopped = settings, is_stopped
        self.id: str | None = None
        self.brokers: dict[int, tuple[str, int]] = {}
        self._connections: dict[int, Connection] = {}
        self._spare: dict[int, Connection] = {}
        self._first: Connection | None = None
        self.throttled_ms = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all connections."""
        first = (self._first,) if self._first else ()
        for connection in (*self._connections.values(), *self._spare.values(), *first):
            self.throttled_ms += connection.throttled_ms
            connection.close()
        self._connections, self._spare, self._first = {}, {}, None

    def backoff(self) -> Backoff:
        """Pauses for one thing that is tried again and again."""
        return Backoff(self.settings, self.is_stopped)

    # Connections --------------------------------------------------------------------------------------------------------

    def any(self) -> Connection:
        """A connection to some broker: an open one, else a new one to a bootstrap address or a known broker."""
        for connection in (self._first, *self._connections.values()):
            if connection is not None and connection.is_open and not connection.pending:
                return connection
        last: BrokerError | None = None
        addresses = list(dict.fromkeys([*self.settings.bootstrap, *self.brokers.values()]))
        for host, port in addresses:
            try:
                self._first = Connection(host, port, self.settings)
                return self._first
            except BrokerError as error:
                if not isinstance(error, Disconnected):
                    raise
                last = error
        assert last is not None
        if len(addresses) > 1:
            raise Disconnected(f"no broker can be reached; the last one tried: {last}")
        raise last

    def node(self, number: int) -> Connection:
        """The connection to a broker. Disconnected if it is not known or cannot be reached."""
        connection = self._connections.get(number)
        if connection is not None and connection.is_open:
            return connection
        if number not in self.brokers:
            raise Disconnected(f"broker {number} is not in the cluster's metadata")
        self._connections[number] = Connection(*self.brokers[number], self.settings)
        return self._connections[number]

    def idle(self, number: int) -> Connection:
        """A connection to a broker on which nothing is on its way, for a question in between: records may be, on the other one."""
        for connections in (self._connections, self._spare):
            connection = connections.get(number)
            if connection is not None and connection.is_open and not connection.pending:
                return connection
        if number not in self.brokers or number not in self._connections:
            return self.node(number)
        self._spare[number] = Connection(*self.brokers[number], self.settings)
        return self._spare[number]

    def drop(self, number: int) -> None:
        """End the connections to a broker: what is on its way there is of no interest any more."""
        for connections in (self._connections, self._spare):
            connection = connections.pop(number, None)
            if connection is not None:
                self.throttled_ms += connection.throttled_ms
                connection.close()

    def retry(self, what: Callable[[], T]) -> T:
        """Do something, again and again while it fails with errors that pass by themselves."""
        backoff = self.backoff()
        while True:
            try:
                return what()
            except BrokerError as error:
                is_known = bool(self.brokers)  # of a first connection that fails the user wants to hear at once
                if not (isinstance(error, Disconnected) and is_known) and error.code not in RETRIABLE:
                    raise
                backoff.wait(error)

    # Metadata -----------------------------------------------------------------------------------------------------------

    def metadata(self, names: Sequence[str] | None) -> Message:
        """What the cluster says of topics, None for all; the brokers are kept."""
        topics = None if names is None else [{"name": name} for name in names]
        answer = self.any().ask(client.METADATA, {"topics": topics, "allowAutoTopicCreation": False})
        self.brokers = {broker["nodeId"]: (broker["host"], broker["port"]) for broker in answer["brokers"]}
        self.id = answer["clusterId"]
        return answer

    def topics(self, patterns: Sequence[str]) -> dict[str, TopicMetadata]:
        """The topics that names or globs mean. A name that does not exist is an OptionError with the nearest ones; a glob may match none,
        and matches no internal topic unless it begins as one.
        """
        return self.retry(lambda: self._topics(patterns))

    def _topics(self, patterns: Sequence[str]) -> dict[str, TopicMetadata]:
        globs = [pattern for pattern in patterns if any(char in pattern for char in "*?[")]
        answer = self.metadata(None if globs else list(patterns))
        rows = {row["name"]: row for row in answer["topics"] if row["name"] is not None}
        topics: dict[str, TopicMetadata] = {}
        for pattern in patterns:
            if pattern in globs:
                for name, row in rows.items():
                    is_hidden = (row["isInternal"] or name.startswith("__")) and not pattern.startswith("_")
                    if fnmatch.fnmatchcase(name, pattern) and not is_hidden:
                        topics[name] = _topic(row)
                continue
            row = rows.get(pattern)
            if row is None or row["errorCode"] == UNKNOWN_TOPIC:
                raise self._unknown_topic(pattern)
            topics[pattern] = _topic(row)
        return dict(sorted(topics.items()))

    def _unknown_topic(self, name: str) -> Exception:
        names = [row["name"] for row in self.metadata(None)["topics"] if row["name"] and not row["isInternal"]]
        return unknown("topic", name, names or ["(the cluster has no topics)"])

    def leaders(self, partitions: Iterable[TopicPartition], ids: Mapping[str, bytes]) -> dict[TopicPartition, Leader]:
        """Who leads partitions now; waits until each has a leader. BrokerError for a topic that was deleted or created again."""
        wanted = list(partitions)
        return self.retry(lambda: self._leaders(wanted, ids))

    def _leaders(self, wanted: list[TopicPartition], ids: Mapping[str, bytes]) -> dict[TopicPartition, Leader]:
        answer = self.metadata(sorted({partition.topic for partition in wanted}))
        topic_rows = {row["name"]: row for row in answer["topics"]}
        rows = {
            name: {row["partitionIndex"]: row for row in topic["partitions"]}
            for name, topic in topic_rows.items()
            if not topic["errorCode"]
        }
        leaders: dict[TopicPartition, Leader] = {}
        for partition in wanted:
            topic_row = topic_rows.get(partition.topic)
            if topic_row is None or topic_row["errorCode"] in NOT_AUTHORIZED:
                raise refusal(
                    f"topic {partition.topic}", UNKNOWN_TOPIC if topic_row is None else topic_row["errorCode"]
                )
            if topic_row["errorCode"]:
                raise refusal(f"topic {partition.topic}", topic_row["errorCode"])
            check_id(partition.topic, ids.get(partition.topic), topic_row.get("topicId"))
            leader = rows[partition.topic].get(partition.partition)
            if leader is None:
                raise refusal(f"partition {partition}", UNKNOWN_TOPIC)
            if leader["leaderId"] < 0 or leader["leaderId"] not in self.brokers:
                raise refusal(f"partition {partition}", leader["errorCode"] if leader["errorCode"] in MOVED else 5)
            leaders[partition] = Leader(leader["leaderId"], leader["leaderEpoch"])
        return leaders

    # Offsets ------------------------------------------------------------------------------------------------------------

    def offsets(
        self,
        times: Mapping[TopicPartition, int],
        ids: Mapping[str, bytes],
        *,
        isolation: int = 0,
    ) -> dict[TopicPartition, int]:
        """The first offset of each partition with a time (ms) at or after the one given; BEGINNING and END mean what they say. -1 where no
        record is that young.
        """
        return self.retry(lambda: self._offsets(times, ids, isolation))

    def _offsets(
        self, times: Mapping[TopicPartition, int], ids: Mapping[str, bytes], isolation: int
    ) -> dict[TopicPartition, int]:
        offsets: dict[TopicPartition, int] = {}
        by_node: dict[int, list[TopicPartition]] = {}
        for partition, leader in self._leaders(list(times), ids).items():
            by_node.setdefault(leader.node, []).append(partition)
        for node, partitions in sorted(by_node.items()):
            topics = by_topic(
                partitions, lambda of_node: {"partitionIndex": of_node.partition, "timestamp": times[of_node]}
            )
            answer = self.idle(node).ask(client.LIST_OFFSETS, {"isolationLevel": isolation, "topics": topics})
            for topic in answer["topics"]:
                for row in topic["partitions"]:
                    partition = TopicPartition(topic["name"], row["partitionIndex"])
                    if row["errorCode"]:
                        raise refusal(f"partition {partition}: its offsets", row["errorCode"])
                    offsets[partition] = row["offset"]
        if missing := times.keys() - offsets.keys():
            raise BrokerError(f"partition {min(missing)}: no answer about its offsets")
        return offsets

    # Coordinators -------------------------------------------------------------------------------------------------------

    def coordinator(self, key: str, kind: int) -> Connection:
        """The connection to the broker that looks after a group or a transactional id."""
        answer = self.any().ask(client.FIND_COORDINATOR, {"key": key, "keyType": kind})
        if answer["errorCode"]:
            what = "group" if kind == GROUP else "transactional id"
            raise refusal(f"{what} {key!r}", answer["errorCode"], answer["errorMessage"])
        self.brokers.setdefault(answer["nodeId"], (answer["host"], answer["port"]))
        return self.idle(answer["nodeId"])

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offsets that a group has committed; partitions without one are not there."""
        wanted = list(partitions)

        def ask() -> dict[TopicPartition, int]:
            topics = by_topic(wanted, lambda partition: partition.partition, "partitionIndexes")
            answer = self.coordinator(group, GROUP).ask(client.OFFSET_FETCH, {"groupId": group, "topics": topics})
            if answer["errorCode"]:
                raise refusal(f"group {group!r}", answer["errorCode"])
            offsets = {}
            for topic in answer["topics"]:
                for row in topic["partitions"]:
                    if row["errorCode"]:
                        raise refusal(f"group {group!r}", row["errorCode"])
                    if row["committedOffset"] >= 0:
                        offsets[TopicPartition(topic["name"], row["partitionIndex"])] = row["committedOffset"]
            return offsets

        return self.retry(ask)

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets for a group that has no members."""

        def ask() -> None:
            topics = by_topic(
                offsets,
                lambda partition: {
                    "partitionIndex": partition.partition,
                    "committedOffset": offsets[partition],
                    "committedMetadata": "",
                },
            )
            answer = self.coordinator(group, GROUP).ask(client.OFFSET_COMMIT, {"groupId": group, "topics": topics})
            for topic in answer["topics"]:
                for row in topic["partitions"]:
                    if row["errorCode"] in (22, 25, 27):
                        raise BrokerError(
                            f"group {group!r}: it has active members, so that nobody else can commit offsets for it; "
                            f"stop them, or choose another group",
                            row["errorCode"],
                        )
                    if row["errorCode"]:
                        raise refusal(f"group {group!r}: commit", row["errorCode"])

        if offsets:
            self.retry(ask)

    # Topics -------------------------------------------------------------------------------------------------------------

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic with the cluster's default replication; one that exists is left as it is."""
        row = {
            "name": name,
            "numPartitions": partitions,
            "replicationFactor": -1,
            "configs": [],
        }
        answer = self.retry(lambda: self.any().ask(client.CREATE_TOPICS, {"topics": [row], "timeoutMs": 30_000}))
        for result in answer["topics"]:
            if result["errorCode"] not in (0, TOPIC_EXISTS):
                raise refusal(f"topic {name}: create", result["errorCode"], result["errorMessage"])
        self.wait_for_topic(name)

    def wait_for_topic(self, name: str) -> None:
        """Wait until a topic that was created is in the metadata, with leaders."""

        def seen() -> None:
            for row in self.metadata([name])["topics"]:
                _topic(row)

        self.retry(seen)

    def configs(self, topic: str, names: Sequence[str]) -> dict[str, str]:
        """Settings of a topic; empty if we may not ask."""
        request = {
            "resources": [{"resourceType": TOPIC_RESOURCE, "resourceName": topic, "configurationKeys": list(names)}]
        }
        answer = self.retry(lambda: self.any().ask(client.DESCRIBE_CONFIGS, request))
        configs: dict[str, str] = {}
        for result in answer["results"]:
            if result["errorCode"] and result["errorCode"] not in NOT_AUTHORIZED:
                raise refusal(f"topic {topic}: settings", result["errorCode"], result["errorMessage"])
            configs |= {row["name"]: row["value"] for row in result["configs"] if row["value"] is not None}
        return configs


def _topic(answer: Message) -> TopicMetadata:
    if answer["errorCode"] in NOT_AUTHORIZED or (answer["errorCode"] and answer["errorCode"] not in RETRIABLE):
        raise refusal(f"topic {answer['name']}", answer["errorCode"])
    if answer["errorCode"] or not answer["partitions"]:
        raise BrokerError(f"topic {answer['name']}: {explain_code(answer['errorCode'] or 5)}", answer["errorCode"] or 5)
    topic = TopicMetadata(answer["name"], answer.get("topicId") or bytes(16), answer["isInternal"])
    for row in answer["partitions"]:
        topic.partitions[row["partitionIndex"]] = Leader(row["leaderId"], row["leaderEpoch"])
    return topic


def check_id(topic: str, first_id: bytes | None, current_id: bytes | None) -> None:
    """BrokerError if a topic is not the one that we began with, but another one under its name."""
    if first_id and any(first_id) and current_id and any(current_id) and bytes(first_id) != bytes(current_id):
        raise BrokerError(
            f"topic {topic}: it was deleted and created again; what follows would belong to another topic"
        )


def by_topic(
    partitions: Iterable[TopicPartition], row: Callable[[TopicPartition], Any], name: str = "partitions"
) -> list[Message]:
    """Rows about partitions as requests have them: one entry for each topic."""
    rows_by_topic: dict[str, list[Any]] = {}
    for partition in partitions:
        rows_by_topic.setdefault(partition.topic, []).append(row(partition))
    return [{"name": topic, name: rows} for topic, rows in rows_by_topic.items()]


def ids_of(topics: Mapping[str, TopicMetadata]) -> dict[str, bytes]:
    """The ids of topics by name."""
    return {name: topic.id for name, topic in topics.items()}
