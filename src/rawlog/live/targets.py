"""The topics that a replay or a mirror writes to: their partitions, their settings, and where they ended before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rawlog.core.errors import OptionError, unknown
from rawlog.core.text import counted
from rawlog.live.cluster import END, Cluster, Leader, Topic, TopicPartition, ids_of
from rawlog.live.errors import UNKNOWN_TOPIC

DEFAULT_LIMIT = 1_048_588
"""A topic's max.message.bytes unless it says otherwise."""
DAY_MS = 86_400_000


def check_topic_map(topic_map: Mapping[str, str], topics: Iterable[str]) -> None:
    """OptionError for a topic that is to get another name and that the source does not have: with a typing error in the map, records would
    go to the topic of their own name.
    """
    known = sorted(topics)
    for name in topic_map:
        if name not in known:
            raise unknown("topic in the topic map", name, known)


class Targets:
    """The topics that records go to, looked up when they are first needed, and what they take.

    With `create` a topic that does not exist is created, with `partitions` partitions if that is given.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        create: bool = False,
        partitions: int | None = None,
        timestamps: str = "original",
        dry_run: bool = False,
    ) -> None:
        self.cluster, self.timestamps, self.dry_run = cluster, timestamps, dry_run
        self.create, self.partitions = create, partitions
        self.topics: dict[str, Topic] = {}
        self.notes: list[str] = []
        self._limits: dict[str, int] = {}
        self._numbers: dict[str, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self.ids: dict[str, bytes] = {}

    def exists(self, name: str) -> bool:
        """Whether the cluster has a topic now. Nothing is created."""
        answer = self.cluster.retried(lambda: self.cluster.metadata([name]))
        return any(one["name"] == name and one["errorCode"] != UNKNOWN_TOPIC for one in answer["topics"])

    def need(self, name: str, partition: int = 0, largest: int | None = None) -> Topic:
        """A topic that has a partition. OptionError if it does not exist or has too few. One that is created gets so many that `largest`
        is among them, or what the cluster gives by default (-1).
        """
        topic = self.topics.get(name)
        if topic is None:
            topic = self._find(name, partition if largest is None else largest)
        if partition not in topic.partitions:
            raise OptionError(
                f"topic {name} has {counted(len(topic.partitions), 'partition')}, the source has records of partition {partition}; "
                f"choose --partition-by key or round-robin, or a topic with more partitions"
            )
        return topic

    def _find(self, name: str, partition: int) -> Topic:
        if self.create and not self.dry_run:
            self.cluster.create_topic(name, self.partitions or partition + 1 or -1)
        try:
            topic = self.cluster.topics([name])[name]
        except OptionError:
            if not (self.create and self.dry_run):
                raise
            return self._imagine(name, self.partitions or partition + 1 or 1)
        self.topics[name], self._numbers[name] = topic, len(self._numbers)
        self.ids |= ids_of({name: topic})
        names = ("max.message.bytes", "message.timestamp.type", "cleanup.policy", "retention.ms")
        configs = self.cluster.configs(name, names)
        self._limits[name] = int(configs.get("max.message.bytes", DEFAULT_LIMIT))
        if configs.get("message.timestamp.type") == "LogAppendTime" and self.timestamps != "now":
            self.notes.append(
                f"topic {name}: message.timestamp.type is LogAppendTime; the broker gives records its own time"
            )
        retention = int(configs.get("retention.ms", -1))
        if "delete" in configs.get("cleanup.policy", "delete") and retention >= 0 and self.timestamps == "original":
            self.notes.append(
                f"topic {name}: retention.ms is {retention:,} ({retention / DAY_MS:,.1f} days); the broker deletes records that are older"
            )
        lanes = [TopicPartition(name, number) for number in topic.partitions]
        self._ends |= self.cluster.offsets(dict.fromkeys(lanes, END), self.ids)
        return topic

    def _imagine(self, name: str, count: int) -> Topic:
        """The topic that a dry run would create."""
        topic = Topic(name, bytes(16), False, {number: Leader(-1, -1) for number in range(count)})
        self.topics[name], self._numbers[name] = topic, len(self._numbers)
        self._limits[name] = DEFAULT_LIMIT
        self.notes.append(f"topic {name}: it does not exist and would be created with {counted(count, 'partition')}")
        return topic

    def limit(self, name: str) -> int:
        """The largest batch that a topic takes."""
        self.need(name)
        return self._limits[name]

    def end(self, one: TopicPartition) -> int:
        """Where a partition ended when the replay began."""
        return self._ends.get(one, 0)

    def number_of(self, name: str) -> int:
        return self._numbers[name]

    def key_of(self, one: TopicPartition) -> int:
        return self._numbers[one.topic] << 32 | one.partition

    def lane(self, key: int) -> TopicPartition:
        names: dict[int, str] = {number: name for name, number in self._numbers.items()}
        return TopicPartition(names[key >> 32], key & 0xFFFF_FFFF)


__all__ = ["Targets", "check_topic_map"]
