"""What of some topics to read, for a recording or a mirror: what was asked for, and the offsets that it means in a cluster."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rawlog.live.client import OUT_OF_RANGE, BrokerError
from rawlog.live.cluster import BEGINNING, END, Cluster, TopicMetadata, TopicPartition, ids_of
from rawlog.live.sources import LakePartition, NativePartition, RowStream
from rawlog.model.errors import OptionError, RawlogError, unknown
from rawlog.reading.select import Selection


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """What to record, and when it is enough. `rows` chooses records by key, text or expression; only some forms can do that."""

    topics: tuple[str, ...]
    selection: Selection = field(default_factory=Selection)
    until_end: bool = False
    group: str | None = None
    max_bytes: int | None = None
    seconds: float | None = None
    resume: bool = False
    markers: bool = False

    @property
    def filters_rows(self) -> bool:
        """Whether records are chosen by what they hold."""
        return self.selection.key is not None or self.selection.where is not None

    @property
    def has_end(self) -> bool:
        """Whether the recording ends by itself."""
        chosen = self.selection
        bounds = (chosen.to_offset, chosen.until, chosen.limit, self.max_bytes, self.seconds)
        return self.until_end or any(bound is not None for bound in bounds)


@dataclass(slots=True)
class Bounds:
    """Where each partition begins and, where that is known, ends."""

    starts: dict[TopicPartition, int]
    stops: dict[TopicPartition, int]
    #: Partitions whose first offset was asked for and is deleted already.
    late: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    #: Partitions that end before the first offset that was asked for.
    short: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    #: Partitions that cannot be continued, and why.
    refused: dict[TopicPartition, RawlogError] = field(default_factory=dict)


def find_bounds(
    cluster: Cluster, topics: Mapping[str, TopicMetadata], options: RecordOptions, resumed: Mapping[TopicPartition, int]
) -> Bounds:
    """The first and last offset of each partition that the options mean."""
    selection = options.selection
    partitions = [TopicPartition(name, number) for name, topic in topics.items() for number in sorted(topic.partitions)]
    if selection.partitions:
        missing = set(selection.partitions) - {partition.partition for partition in partitions}
        if missing:
            raise OptionError(f"partition {min(missing)}: {', '.join(topics)} has {len(partitions)} partitions")
        partitions = [partition for partition in partitions if partition.partition in selection.partitions]
    ids, isolation = ids_of(topics), int(selection.isolation == "read_committed")
    first = cluster.offsets(dict.fromkeys(partitions, BEGINNING), ids)
    end = cluster.offsets(dict.fromkeys(partitions, END), ids, isolation=isolation)
    wanted: dict[TopicPartition, int] = dict(first)
    if selection.from_offset is not None:
        wanted = dict.fromkeys(partitions, selection.from_offset)
    elif selection.last is not None:
        wanted = {partition: max(first[partition], end[partition] - selection.last) for partition in partitions}
    elif selection.since is not None:
        at_time = cluster.offsets(dict.fromkeys(partitions, selection.since // 1000), ids)
        wanted = {
            partition: at_time[partition] if at_time[partition] >= 0 else end[partition] for partition in partitions
        }
    elif options.group is not None:
        wanted |= cluster.committed(options.group, partitions)
    wanted |= {partition: offset for partition, offset in resumed.items() if partition in wanted}
    late = {partition: (offset, first[partition]) for partition, offset in wanted.items() if offset < first[partition]}
    starts = {partition: max(offset, first[partition]) for partition, offset in wanted.items()}
    short = _short(cluster, {partition: offset for partition, offset in starts.items() if offset > end[partition]}, ids)
    refused: dict[TopicPartition, RawlogError] = {}
    for partition, (wanted_offset, found_end) in short.items():
        if partition in resumed or selection.from_offset is None:
            refused[partition] = BrokerError(
                f"partition {partition}: offset {wanted_offset:,} is the next one, but the log ends at {found_end:,}: it was cut back, "
                f"or this belongs to another topic",
                OUT_OF_RANGE,
            )
        elif not options.until_end and selection.to_offset is None:
            refused[partition] = OptionError(
                f"partition {partition}: offset {wanted_offset:,} is asked for, the log ends at {found_end:,}"
            )
    stops: dict[TopicPartition, int] = {}
    if options.until_end:
        stops = dict(end)
    if selection.to_offset is not None:
        stops = {
            partition: min(stops.get(partition, selection.to_offset), selection.to_offset) for partition in partitions
        }
    if selection.until is not None and selection.until <= time.time() * 1_000_000:
        stops = stops_at(cluster, selection.until, stops, end, ids)
    return Bounds(starts, stops, late, short, refused)


def _short(
    cluster: Cluster, starts: Mapping[TopicPartition, int], ids: Mapping[str, bytes]
) -> dict[TopicPartition, tuple[int, int]]:
    """Partitions that end before an offset, also with their open transactions; the offset, and where they end."""
    ends = cluster.offsets(dict.fromkeys(starts, END), ids) if starts else {}
    return {partition: (offset, ends[partition]) for partition, offset in starts.items() if offset > ends[partition]}


def stops_at(
    cluster: Cluster,
    until: int,
    stops: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    ids: Mapping[str, bytes],
) -> dict[TopicPartition, int]:
    """The offsets at which records of a time begin; the ends, where there are none."""
    at_time = cluster.offsets(dict.fromkeys(end, -(-until // 1000)), ids)
    return {
        partition: min(stops.get(partition, 1 << 62), at_time[partition] if at_time[partition] >= 0 else end[partition])
        for partition in end
    }


# What a replay is asked for: what to send, where to, and when.


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
