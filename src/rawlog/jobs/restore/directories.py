"""What a broker's log directories offer to a restore: partitions batch for batch, and the cluster they belong to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rawlog.core.errors import OptionError, RawlogError
from rawlog.core.format import File
from rawlog.formats.kafka.paths import METADATA_TOPIC
from rawlog.formats.kafka.store.partition_writer import PartitionWriter
from rawlog.formats.kafka.texts import topic_id
from rawlog.formats.kraft.paths import takes
from rawlog.formats.kraft.store.blueprint import TOPIC
from rawlog.formats.kraft.store.carrying import Carried, Carrier, Wish
from rawlog.formats.kraft.store.replica import At, Replica, clusters
from rawlog.formats.kraft.store.state import State
from rawlog.io.storage import Source
from rawlog.reading.tree import Tree

LARGEST_TEXT = 1 << 20
Extra = Callable[[PartitionWriter], object]


class Content(Protocol):
    """Where the rows of one partition come from, to be carried anywhere."""

    @property
    def size(self) -> int:
        """The bytes that are read."""

    def carry(self, folder: Path, wish: Wish, advance: Callable[[int], None], extra: Extra | None) -> Carried:
        """Write the partition into a directory that is there and empty."""


@dataclass(frozen=True, slots=True)
class Known:
    """What a cluster knows of a topic: the leader epochs of its partitions, and its settings."""

    epochs: Mapping[int, int]
    configs: Mapping[str, str]


@dataclass(slots=True)
class Offer:
    """All that a source has: its partitions, the ids of its topics, what its cluster knows of them, and what is to be said of it."""

    partitions: dict[tuple[str, int], Content]
    ids: dict[str, bytes] = field(default_factory=dict)
    known: dict[str, Known] = field(default_factory=dict)
    state: State | None = None
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Directory:
    """A partition directory."""

    files: tuple[File, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files if file.format == "kafka.log")

    def carry(self, folder: Path, wish: Wish, advance: Callable[[int], None], extra: Extra | None) -> Carried:
        """Batch for batch."""
        return Carrier(folder, wish, advance).run(self.files, extra)


def offered(tree: Tree, until: int | None, errors: str, named: Sequence[str]) -> Offer:
    """The partitions of a tree and the state of its cluster, as of a time (µs, left out). `named` topics are wanted by all means.

    OptionError for a partition that is there twice, or for several clusters.
    """
    offer = Offer({})
    on_disk: dict[tuple[str, int], bytes | None] = {}
    for group in tree.groups:
        place = group[0].place
        segments = [one for one in group if one.format == "kafka.log" and one.place.state is None]
        if not segments or place.topic is None or place.partition is None or place.topic == METADATA_TOPIC:
            continue
        key = (place.topic, place.partition)
        if key in offer.partitions:
            raise OptionError(
                f"{place.topic}-{place.partition} is there more than once; name the directory to take it from"
            )
        offer.partitions[key] = Directory(tuple(group))
        on_disk[key] = _id_of(group)
    offer.state = _state(tree, until, errors, offer)
    _leave_strays(offer, on_disk, named, until)
    if offer.state is not None:
        offer.ids |= offer.state.topic_ids
        for name, own in offer.state.topic_ids.items():
            epochs = {number: one["leaderEpoch"] for number, one in offer.state.topics[own].partitions.items()}
            offer.known[name] = Known(epochs, offer.state.configs.get((TOPIC, name), {}))
    return offer


def _leave_strays(
    offer: Offer, on_disk: Mapping[tuple[str, int], bytes | None], named: Sequence[str], until: int | None
) -> None:
    """Leave out partitions that the cluster does not know, or of topics that it has deleted."""
    later: set[str] = set()
    for (topic, number), found in on_disk.items():
        if found is not None:
            offer.ids.setdefault(topic, found)
        if offer.state is None or topic in named:
            continue
        known = offer.state.topic_ids.get(topic)
        if known is None and until is not None:
            later.add(topic)
        elif known is None or (found is not None and found != known):
            why = "the cluster does not know the topic" if known is None else "it is of a topic that was deleted"
            offer.notes.append(f"{topic}-{number} is left out: {why}; --topic {topic} takes it all the same")
        else:
            continue
        del offer.partitions[topic, number]
    if later:
        offer.notes.append(f"{len(later):,} topics were made after that time: {', '.join(sorted(later))}")


def _id_of(group: Sequence[File]) -> bytes | None:
    for file in group:
        if file.format == "kafka.partition" and file.problem is None:
            try:
                with Source(file.path) as source:
                    return topic_id(source.read(0, LARGEST_TEXT))
            except (RawlogError, ValueError):
                return None
    return None


def _is_blank(replica: Replica, errors: str) -> bool:
    """Whether there is only what a new cluster starts from, with no topic in it: the metadata log is elsewhere, or not made yet.

    A directory that was restored and not started yet has its topics there.
    """
    return not replica.segments and not replica.snapshots and not replica.fold(errors=errors).topic_ids


def _state(tree: Tree, until: int | None, errors: str, offer: Offer) -> State | None:
    """What the cluster knew, then, if its metadata log is among the files."""
    every: list[Replica] = clusters([file for file in tree if takes("kraft.topics", file)])
    found = [one for one in every if not _is_blank(one, errors)]
    if not found:
        offer.notes.append(
            "there is no metadata log: topics have as many partitions as are found, and default settings"
        )
        return None
    if len(found) > 1:
        names = ", ".join(str(one.cluster_id or one.folder) for one in found)
        raise OptionError(f"metadata of several clusters is here ({names}); name the directories of one")
    if until is None:
        return found[0].fold(errors=errors)
    try:
        return found[0].fold(At(time=until - 1), errors)
    except OptionError:
        offer.notes.append(
            "the metadata log does not reach back to that time: topics and settings are those of its end"
        )
        return found[0].fold(errors=errors)
