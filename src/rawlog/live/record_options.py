"""What of some topics to read, for a recording or a mirror: what was asked for, and the offsets that it means in a cluster."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from rawlog.live.client import OUT_OF_RANGE, BrokerError
from rawlog.live.cluster import (
    BEGINNING,
    END,
    Cluster,
    Topic,
    TopicPartition,
    ids_of,
)
from rawlog.model.errors import OptionError, RawlogError
from rawlog.reading.select import Selection


@dataclass(frozen=True, slots=True)
class Asked:
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
    cluster: Cluster, topics: Mapping[str, Topic], asked: Asked, resumed: Mapping[TopicPartition, int]
) -> Bounds:
    """The first and last offset of each partition that the options mean."""
    chosen = asked.selection
    partitions = [TopicPartition(name, number) for name, topic in topics.items() for number in sorted(topic.partitions)]
    if chosen.partitions:
        missing = set(chosen.partitions) - {one.partition for one in partitions}
        if missing:
            raise OptionError(f"partition {min(missing)}: {', '.join(topics)} has {len(partitions)} partitions")
        partitions = [one for one in partitions if one.partition in chosen.partitions]
    ids, isolation = ids_of(topics), int(chosen.isolation == "read_committed")
    first = cluster.offsets(dict.fromkeys(partitions, BEGINNING), ids)
    end = cluster.offsets(dict.fromkeys(partitions, END), ids, isolation=isolation)
    wanted: dict[TopicPartition, int] = dict(first)
    if chosen.from_offset is not None:
        wanted = dict.fromkeys(partitions, chosen.from_offset)
    elif chosen.last is not None:
        wanted = {one: max(first[one], end[one] - chosen.last) for one in partitions}
    elif chosen.since is not None:
        found = cluster.offsets(dict.fromkeys(partitions, chosen.since // 1000), ids)
        wanted = {one: found[one] if found[one] >= 0 else end[one] for one in partitions}
    elif asked.group is not None:
        wanted |= cluster.committed(asked.group, partitions)
    wanted |= {one: offset for one, offset in resumed.items() if one in wanted}
    late = {one: (offset, first[one]) for one, offset in wanted.items() if offset < first[one]}
    starts = {one: max(offset, first[one]) for one, offset in wanted.items()}
    short = _short(cluster, {one: offset for one, offset in starts.items() if offset > end[one]}, ids)
    refused: dict[TopicPartition, RawlogError] = {}
    for one, (wanted_offset, found_end) in short.items():
        if one in resumed or chosen.from_offset is None:
            refused[one] = BrokerError(
                f"partition {one}: offset {wanted_offset:,} is the next one, but the log ends at {found_end:,}: it was cut back, or this "
                f"belongs to another topic",
                OUT_OF_RANGE,
            )
        elif not asked.until_end and chosen.to_offset is None:
            refused[one] = OptionError(
                f"partition {one}: offset {wanted_offset:,} is asked for, the log ends at {found_end:,}"
            )
    stops: dict[TopicPartition, int] = {}
    if asked.until_end:
        stops = dict(end)
    if chosen.to_offset is not None:
        stops = {one: min(stops.get(one, chosen.to_offset), chosen.to_offset) for one in partitions}
    if chosen.until is not None and chosen.until <= time.time() * 1_000_000:
        stops = stops_at(cluster, chosen.until, stops, end, ids)
    return Bounds(starts, stops, late, short, refused)


def _short(
    cluster: Cluster, starts: Mapping[TopicPartition, int], ids: Mapping[str, bytes]
) -> dict[TopicPartition, tuple[int, int]]:
    """Partitions that end before an offset, also with their open transactions; the offset, and where they end."""
    ends = cluster.offsets(dict.fromkeys(starts, END), ids) if starts else {}
    return {one: (offset, ends[one]) for one, offset in starts.items() if offset > ends[one]}


def stops_at(
    cluster: Cluster,
    until: int,
    stops: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    ids: Mapping[str, bytes],
) -> dict[TopicPartition, int]:
    """The offsets at which records of a time begin; the ends, where there are none."""
    found = cluster.offsets(dict.fromkeys(end, -(-until // 1000)), ids)
    return {one: min(stops.get(one, 1 << 62), found[one] if found[one] >= 0 else end[one]) for one in end}


__all__ = ["Asked", "Bounds", "find_bounds", "stops_at"]
