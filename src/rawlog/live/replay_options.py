"""What a replay is asked for: what to send, where to, and when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rawlog.live.cluster import TopicPartition
from rawlog.live.sources import LakePartition, NativePartition, RowStream
from rawlog.model.errors import OptionError, unknown
from rawlog.reading.select import Selection

PARTITIONING = ("original", "key", "round-robin")
TIMESTAMPS = ("original", "now", "shift")
PACES = ("max", "recorded")


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How to replay. `topic` is the target of all records whose topic is not in `topic_map`.

    With `keep_transactions` those of native partitions are repeated where batches are passed on; elsewhere the selection says which
    records of transactions are sent, as plain records.
    """

    topic_map: Mapping[str, str] = field(default_factory=dict)
    topic: str | None = None
    partition_by: Literal["original", "key", "round-robin"] = "original"
    timestamps: Literal["original", "now", "shift"] = "original"
    pace: Literal["max", "recorded"] = "max"
    speed: float = 1.0
    rate: float | None = None
    loop: int = 1
    keep_batches: bool = False
    keep_transactions: bool = False
    checkpoint: str | None = None
    create_topics: bool = False
    partitions: int | None = None
    dry_run: bool = False
    selection: Selection = field(default_factory=lambda: Selection(isolation="read_committed"))

    def __post_init__(self) -> None:
        for what, value, choices in (
            ("partitioning", self.partition_by, PARTITIONING),
            ("kind of timestamps", self.timestamps, TIMESTAMPS),
            ("pace", self.pace, PACES),
        ):
            if value not in choices:
                raise unknown(what, value, choices)
        if self.rate is not None and not self.rate > 0:
            raise OptionError(f"rate {self.rate}: more than 0 expected")
        if not self.speed > 0:
            raise OptionError(f"speed {self.speed}: more than 0 expected")
        if self.rate is not None and self.pace == "recorded":
            raise OptionError("--rate and --pace recorded (or --speed) exclude one another")
        if self.loop < 0:
            raise OptionError("loop: 0 (for ever) or a number of rounds expected")

    @property
    def is_paced(self) -> bool:
        return self.rate is not None or self.pace == "recorded"

    def target_of(self, topic: str | None) -> str:
        """The topic that records of a topic go to."""
        if topic is not None and topic in self.topic_map:
            return self.topic_map[topic]
        target = self.topic or topic
        if target is None:
            raise OptionError("the records have no topic of their own: name one with --to-topic")
        return target

    def lane_of(self, partition: TopicPartition) -> TopicPartition:
        """The partition that records of a partition go to, where they keep their numbers."""
        return TopicPartition(self.target_of(partition.topic), partition.partition)


@dataclass(frozen=True, slots=True)
class Source:
    """What is replayed: partitions whose batches are passed on, or streams of rows. `named` says where it is from.

    `lake` are the partitions of a lake that has transactions.
    """

    named: str
    native: list[NativePartition] | None
    streams: list[RowStream]
    lake: list[LakePartition] | None = None

    @property
    def size(self) -> int:
        return sum(partition.size for partition in self.native or ())


__all__ = ["ReplayOptions", "Source"]
