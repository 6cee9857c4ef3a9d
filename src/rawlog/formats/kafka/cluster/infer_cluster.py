"""A cluster whose metadata is lost, or older than its data: what the directories of its partitions say of it.

They tell names, numbers and ids of topics, and which broker had a partition. They do not tell settings, users, quotas, who led or who was
in sync; that is listed as unknown.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rawlog.formats.kafka.checkpoints import CLEANER, offsets_in
from rawlog.formats.kafka.cluster.broker_disks import Disk
from rawlog.formats.kafka.cluster.fold import level_text
from rawlog.formats.kafka.cluster.internal_topics import DEFAULT_PARTITIONS, partition_of
from rawlog.formats.kafka.cluster.metadata import METADATA_VERSION, NO_LEADER, UNASSIGNED
from rawlog.formats.kafka.cluster.metadata_replicas import ClusterMetadata
from rawlog.formats.kafka.cluster.new_cluster import DEFAULT_LEVEL, INTERNAL_CONFIGS
from rawlog.formats.kafka.cluster.restore import NEVER
from rawlog.formats.kafka.cluster.state import Topic
from rawlog.formats.kafka.internal.codec import Message, uuid_text
from rawlog.formats.kafka.internal.messages import CONSUMER_OFFSETS, TRANSACTION_STATE
from rawlog.model.text import counted

SHOWN = 5
MOST_PARTITIONS = 1000
#: Brokers that are not known by their ids have this one and those below it.
UNKNOWN_NODE = -2
#: Topics in which a hash of the key's name chooses the partition, so that their number of partitions must be the old one.
HASHED = (CONSUMER_OFFSETS, TRANSACTION_STATE)


@dataclass(frozen=True, slots=True)
class PartitionDirectory:
    """A directory of a partition. `newest` is the time (ms) of its newest record, -1 if it has none; `names` are groups or transactional
    ids in it, if it is of a topic that is divided by them.
    """

    topic: str
    partition: int
    topic_id: bytes | None
    path: str
    node: int | None = None
    largest_epoch: int = 0
    newest: int = -1
    names: frozenset[str] = frozenset()


def rebuild(
    metadata: ClusterMetadata, directories: Sequence[PartitionDirectory], disks: Iterable[Disk], cluster_id: str | None
) -> None:
    """Add to the metadata what only directories tell: every topic if no metadata was found, else those that it may be too old to know.

    Afterwards `metadata.verdict` says `known` for every directory that is used, `replaced` for one of a topic that exists with another id.
    """
    by_topic: dict[str, list[PartitionDirectory]] = {}
    for directory in directories:
        if directory.topic not in NEVER and metadata.verdict(directory.topic, directory.topic_id) == "unknown":
            by_topic.setdefault(directory.topic, []).append(directory)
    for topic, new_directories in list(by_topic.items()):
        rival = metadata.state.topic_ids.get(topic)
        known_directories = [
            directory for directory in directories if directory.topic == topic and directory.topic_id == rival
        ]
        if rival is not None and not _replaces(metadata, topic, new_directories, rival, known_directories):
            del by_topic[topic]
    metadata.is_rebuilt = not metadata.is_found
    nameless = [
        topic
        for topic, new_directories in sorted(by_topic.items())
        if _add_topic(metadata, topic, new_directories, cluster_id or "")
    ]
    if nameless:
        metadata.unknown.append(
            f"ids of {counted(len(nameless), 'topic')} ({_few(nameless)}): no directory tells them, so they get new ones"
        )
    if metadata.is_rebuilt:
        metadata.state.features[METADATA_VERSION] = DEFAULT_LEVEL
        metadata.notes.append(
            f"no metadata could be read: {counted(len(by_topic), 'topic')} were rebuilt from the directories of their partitions"
        )
        metadata.unknown += [
            "settings of topics: all have default settings, and no record is deleted by age or size",
            "users, access rules, quotas, delegation tokens and settings of groups",
            f"the metadata.version of the cluster: {level_text(METADATA_VERSION, DEFAULT_LEVEL)} is used",
            "who led each partition and which replicas were in sync",
            "topics without a directory on any of these disks, and partitions above the highest number found",
        ]
    elif by_topic:
        metadata.unknown.append(
            f"{counted(len(by_topic), 'topic')} not in the metadata, which may be older than they are ({_few(by_topic)}): kept, with "
            "default settings; perhaps the cluster had deleted them"
        )
    _note_compacted(metadata, by_topic, disks)


def _replaces(
    metadata: ClusterMetadata,
    topic: str,
    new_directories: Sequence[PartitionDirectory],
    rival: bytes,
    known_directories: Sequence[PartitionDirectory],
) -> bool:
    """Whether directories with an unknown topic id are of a newer topic than the one in the metadata: their records are newer. The older
    topic counts as deleted.
    """
    state = metadata.state
    is_newer = max(directory.newest for directory in new_directories) > max(
        (directory.newest for directory in known_directories), default=-1
    )
    used, left_out = (new_directories, known_directories) if is_newer else (known_directories, new_directories)
    metadata.unknown.append(
        f"which topic {topic} existed last: the metadata, which may be older than the topic, knows it with another id than "
        f"{_few(x.path for x in new_directories)}. Used is {_few(x.path for x in used)}, whose records are the newest; left out: "
        f"{_few(x.path for x in left_out) or 'none'}"
    )
    if is_newer:
        state.removed[rival] = topic
        del state.topics[rival], state.topic_ids[topic]
    else:
        state.removed |= {directory.topic_id: topic for directory in new_directories if directory.topic_id is not None}
    return is_newer


def _add_topic(
    metadata: ClusterMetadata, topic: str, directories: Sequence[PartitionDirectory], cluster_id: str
) -> bool:
    """One topic: the id that its newest directories have, and all partitions up to the highest. Whether it got a new id."""
    state = metadata.state
    known_id = _newest_id(metadata, topic, directories)
    used = [directory for directory in directories if directory.topic_id in (None, known_id)]
    topic_id = derive_topic_id(cluster_id, topic) if known_id is None else known_id
    numbers = {directory.partition for directory in used}
    count = partition_count(topic, [(directory.partition, directory.names) for directory in used])
    if count is None:
        count = max(numbers) + 1
        metadata.unknown.append(f"the number of partitions of {topic}: its records fit no number; {count:,} are used")
    elif count > max(numbers) + 1:
        metadata.notes.append(f"{topic} had {count:,} partitions: only so do its records belong where they are")
    missing = sorted(set(range(min(count, len(numbers) + MOST_PARTITIONS))) - numbers)
    if missing:
        metadata.notes.append(
            f"{topic}: {counted(len(missing), 'partition')} on no disk ({_few(missing)}); empty in the result"
        )
    topic_state = Topic(topic)
    for number in [*sorted(numbers), *missing]:
        replicas = [directory for directory in used if directory.partition == number]
        nodes = sorted({directory.node for directory in replicas if directory.node is not None})
        nodes += [
            UNKNOWN_NODE - index
            for index, _ in enumerate(directory for directory in replicas if directory.node is None)
        ]
        topic_state.partitions[number] = _partition(
            topic_id, number, nodes, max((directory.largest_epoch for directory in replicas), default=0)
        )
    state.topics[topic_id] = topic_state
    state.topic_ids[topic] = topic_id
    metadata.guessed.add(topic)
    return known_id is None


def _newest_id(metadata: ClusterMetadata, topic: str, directories: Sequence[PartitionDirectory]) -> bytes | None:
    """The id of a topic: of several, the one with the newest records, or that most brokers have."""
    by_id: dict[bytes, list[PartitionDirectory]] = {}
    for directory in directories:
        if directory.topic_id is not None:
            by_id.setdefault(directory.topic_id, []).append(directory)
    if not by_id:
        return None
    best = max(
        by_id,
        key=lambda key: (
            max(directory.newest for directory in by_id[key]),
            len({directory.node for directory in by_id[key]}),
            key,
        ),
    )
    left_out = [directory for key, others_of_id in by_id.items() if key != best for directory in others_of_id]
    metadata.state.removed |= {key: topic for key in by_id if key != best}
    if left_out:
        metadata.unknown.append(
            f"which topic {topic} existed last: it has {len(by_id)} ids, as if it was deleted and created again. "
            f"{uuid_text(best)} is used: its records are the newest; left out: {_few(directory.path for directory in left_out)}"
        )
    return best


def derive_topic_id(cluster_id: str, topic: str) -> bytes:
    """An id for a topic that has none, the same in every run."""
    for salt in range(256):
        raw = hashlib.blake2b(f"{cluster_id}/{topic}/{salt}".encode(), digest_size=16).digest()
        if any(raw[:8]) and not uuid_text(raw).startswith("-"):
            return raw
    raise AssertionError


def partition_count(topic: str, partitions: Sequence[tuple[int, Iterable[str]]]) -> int | None:
    """How many partitions a topic has of which these were found, with the names of groups or transactional ids in them; None if no number
    fits all names.
    """
    places = [(number, name) for number, names in partitions for name in names]
    least = max((number for number, _ in partitions), default=-1) + 1
    if topic not in HASHED or not places:
        return least
    # Names fit the default by chance far less often than a small number.
    counts: tuple[int, ...] = (DEFAULT_PARTITIONS, least, *range(least + 1, MOST_PARTITIONS))
    for count in counts:
        if count >= least and all(partition_of(name, count) == number for number, name in places):
            return count
    return None


def _partition(topic: bytes, number: int, nodes: list[int], epoch: int) -> Message:
    return {
        "partitionId": number,
        "topicId": topic,
        "replicas": nodes,
        "isr": [],
        "removingReplicas": [],
        "addingReplicas": [],
        "leader": NO_LEADER,
        "leaderRecoveryState": 0,
        "leaderEpoch": epoch,
        "partitionEpoch": 0,
        "directories": [UNASSIGNED] * len(nodes),
        "eligibleLeaderReplicas": [],
        "lastKnownElr": [],
    }


def _note_compacted(metadata: ClusterMetadata, topics: Mapping[str, object], disks: Iterable[Disk]) -> None:
    """Topics that a cleaner had worked on had `cleanup.policy=compact`: that much of their settings is known."""
    cleaned = {topic for disk in disks for topic, _ in offsets_in(disk.path, CLEANER)}
    compacted = sorted(topic for topic in cleaned & set(topics) if topic not in INTERNAL_CONFIGS)
    if compacted:
        metadata.unknown.append(
            f"settings of {_few(compacted)}, where only cleanup.policy=compact is certain: set it again to have the topics compacted"
        )


def _few(names: Iterable[object]) -> str:
    """The first few of many names."""
    texts = [str(name) for name in names]
    more = f" and {len(texts) - SHOWN:,} more" if len(texts) > SHOWN else ""
    return ", ".join(texts[:SHOWN]) + more
