"""What log directories offer to a restore: their partitions, and what their cluster knew at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rawlog.formats.kafka import LOG
from rawlog.formats.kafka.cluster.broker_disks import read_disk
from rawlog.formats.kafka.cluster.metadata_log import MetadataStore, Moment, clusters
from rawlog.formats.kafka.cluster.new_cluster import TOPIC
from rawlog.formats.kafka.cluster.paths import takes
from rawlog.formats.kafka.cluster.state import State
from rawlog.formats.kafka.partition.leader_epochs import epochs_in
from rawlog.formats.kafka.paths import METADATA_TOPIC, split
from rawlog.formats.kafka.properties import topic_id
from rawlog.io.storage import Source
from rawlog.model.errors import OptionError, RawlogError
from rawlog.model.format import File
from rawlog.model.recovery import Offer, RestoreOptions, TopicFacts

LARGEST_TEXT = 1 << 20


@dataclass(frozen=True, slots=True)
class Directory:
    """A partition directory of the source."""

    files: tuple[File, ...]

    @property
    def path(self) -> str:
        return str(self.files[0].place.group)

    @property
    def segments(self) -> list[File]:
        """The log segments that a broker would load."""
        return [file for file in self.files if file.format == LOG.name and file.place.state is None]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files if file.format == LOG.name)


def read_offer(files: Sequence[File], stores: Sequence[Sequence[File]], options: RestoreOptions) -> Offer:
    """The partitions of log directories and the state of their cluster, as of a time. Topics asked for by name are always included.

    OptionError for a partition that was found more than once, or for several clusters.
    """
    offer = Offer({})
    directories: dict[tuple[str, int], list[Directory]] = {}
    for group in stores:
        place, content = group[0].place, Directory(tuple(group))
        if content.segments and place.topic not in (None, METADATA_TOPIC) and place.partition is not None:
            directories.setdefault((str(place.topic), place.partition), []).append(content)
    offer.state = _state(files, options, offer)
    offer.partitions = {key: _only(key, candidates, offer) for key, candidates in directories.items()}
    on_disk = {key: topic_id_of(content.files) for key, content in offer.partitions.items()}
    _leave_strays(offer, on_disk, options)
    if offer.state is not None:
        offer.ids |= offer.state.topic_ids
        for name, topic_id in offer.state.topic_ids.items():
            epochs = {
                number: partition["leaderEpoch"]
                for number, partition in offer.state.topics[topic_id].partitions.items()
            }
            offer.known[name] = TopicFacts(epochs, offer.state.configs.get((TOPIC, name), {}))
    return offer


def _only(key: tuple[str, int], directories: Sequence[Directory], offer: Offer) -> Directory:
    """The directory of a partition. If several are not replicas of one another, the cluster's topic id decides; OptionError if it does
    not.
    """
    if len(directories) == 1:
        return directories[0]
    known_id = None if offer.state is None else offer.state.topic_ids.get(key[0])
    fitting = [
        directory for directory in directories if known_id is not None and topic_id_of(directory.files) == known_id
    ]
    if len(fitting) != 1:
        paths = ", ".join(directory.path for directory in directories)
        raise OptionError(
            f"{key[0]}-{key[1]} was found more than once ({paths}); name the directory to use, or give all to `rawlog rescue`"
        )
    for directory in directories:
        if directory is not fitting[0]:
            offer.notes.append(
                f"{directory.path} is left out: its topic was deleted, and created again under the same name"
            )
    return fitting[0]


def _leave_strays(offer: Offer, on_disk: Mapping[tuple[str, int], bytes | None], options: RestoreOptions) -> None:
    """Leave out partitions that the cluster does not know, and partitions of deleted topics."""
    later: set[str] = set()
    for (topic, number), disk_id in on_disk.items():
        if disk_id is not None:
            offer.ids.setdefault(topic, disk_id)
        if offer.state is None or topic in options.topics:
            continue
        known_id = offer.state.topic_ids.get(topic)
        if known_id is None and options.until is not None:
            later.add(topic)
        elif known_id is None or (disk_id is not None and disk_id != known_id):
            why = "the cluster does not know the topic" if known_id is None else "its topic was deleted"
            offer.notes.append(f"{topic}-{number} is left out: {why}; --topic {topic} restores it nevertheless")
        else:
            continue
        del offer.partitions[topic, number]
    if later:
        offer.notes.append(f"{len(later):,} topics were created after that time: {', '.join(sorted(later))}")


def topic_id_of(group: Sequence[File]) -> bytes | None:
    """The id of the topic that a partition directory is of, as its own file says; None if that is missing or damaged."""
    for file in group:
        if file.format == "kafka.partition" and file.problem is None:
            try:
                with Source(file.path) as source:
                    return topic_id(source.read(0, LARGEST_TEXT))
            except (RawlogError, ValueError):
                return None
    return None


def _is_blank(replica: MetadataStore, errors: str) -> bool:
    """Whether there is only what a new cluster starts from, without a topic: the metadata log is elsewhere, or does not exist yet.

    A directory that was restored and not started yet has its topics there.
    """
    return not replica.segments and not replica.snapshots and not replica.fold(errors=errors).topic_ids


def _state(files: Sequence[File], options: RestoreOptions, offer: Offer) -> State | None:
    """What the cluster knew at that time, if its metadata log is among the files."""
    errors = options.errors
    stores: list[MetadataStore] = clusters([file for file in files if takes("kraft.topics", file)])
    filled_stores = [store for store in stores if not _is_blank(store, errors)]
    if not filled_stores:
        offer.notes.append(
            "no metadata log: the number of partitions comes from the directories, and settings are the defaults"
        )
        return None
    if len(filled_stores) > 1:
        names = ", ".join(str(store.cluster_id or store.folder) for store in filled_stores)
        raise OptionError(f"metadata of several clusters was found ({names}); name the directories of one")
    if options.until is None:
        return filled_stores[0].fold(errors=errors)
    try:
        return filled_stores[0].fold(Moment(time=options.until - 1), errors)
    except OptionError:
        offer.notes.append(
            "the metadata log does not reach back to that time: topics and settings are those at its end"
        )
        return filled_stores[0].fold(errors=errors)


# ----------------------------------------------------------------------------------------------------------------------
# Replicas that may lack records: what the cluster's metadata says of the broker whose directory was given.


SHOWN = 20
ADVICE = "records that were committed may be missing; `rawlog rescue` with the disks of all brokers takes them from the others"


def stale_replicas(partitions: Mapping[tuple[str, int], Any], state: State) -> dict[str, str]:
    """Why these directories may lack records, by the name of the partition: their broker was not in sync when the metadata ended."""
    node_of = lru_cache(maxsize=None)(lambda folder: read_disk(folder)[0].node)
    reasons: dict[str, str] = {}
    for (topic, number), content in sorted(partitions.items()):
        key = state.topic_ids.get(topic)
        partition = None if key is None else state.topics[key].partitions.get(number)
        if partition is None:
            continue
        node = node_of(split(content.files[0].place.group or "")[0])
        # The last broker that stops leaves the in-sync replicas too, and stays eligible to lead.
        synced = [*partition["isr"], *(partition["eligibleLeaderReplicas"] or ())] or list(
            partition["lastKnownElr"] or ()
        )
        if node is None or node in synced or not synced:
            continue
        why = f"this replica comes from node {node}, which was not in sync ({_numbers(synced)})"
        if node not in partition["replicas"]:
            why = f"this replica comes from node {node}, which is not assigned to the partition ({_numbers(partition['replicas'])})"
        epochs = epochs_in(content.files)
        if epochs is not None and int(epochs[-1][0]) < partition["leaderEpoch"]:
            why += f"; its log ends in leader epoch {int(epochs[-1][0])}, the cluster was in {partition['leaderEpoch']}"
        reasons[f"{topic}-{number}"] = why
    return reasons


def stale_notes(stale: Mapping[str, str]) -> Iterator[str]:
    """A line for each, but not for thousands."""
    for name, why in list(stale.items())[:SHOWN]:
        yield f"{name}: {why}: {ADVICE}"
    if len(stale) > SHOWN:
        yield f"{len(stale) - SHOWN:,} more partitions whose replica here was not in sync"


def passed_end(name: str, committed: int, end: int) -> str:
    """A sentence on a log that ends before an offset that a group has committed."""
    return f"{name}: a group has committed offset {committed:,}, this log ends at {end:,}: {ADVICE}"


def _numbers(nodes: Sequence[int]) -> str:
    many = "nodes" if len(nodes) > 1 else "node"
    return f"{many} {', '.join(map(str, sorted(nodes)))}"
