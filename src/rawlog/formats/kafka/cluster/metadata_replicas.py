"""The cluster's metadata as the disks of a dead cluster have it: elected from several logs, or inferred from partitions.

Raft: of two logs the one with the higher last epoch is further, of equal epochs the longer one; an offset with the same epoch in two logs
has the same batch in both, and so has everything before it. Snapshots have only what was committed. So the log that is furthest is used to
its end, what is damaged in it is taken from others, and a log that goes on in an older epoch is left out from there on.

Where the metadata is lost, or older than the data, the directories of partitions tell names, numbers and ids of topics, and which broker
had a partition. They do not tell settings, users, quotas, who led or who was in sync; that is listed as unknown.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rawlog.formats.kafka.checkpoints import CLEANER, offsets_in
from rawlog.formats.kafka.cluster.broker_disks import LARGEST_TEXT, Disk, Disks
from rawlog.formats.kafka.cluster.fold import level_text
from rawlog.formats.kafka.cluster.internal_topics import DEFAULT_PARTITIONS, partition_of
from rawlog.formats.kafka.cluster.metadata import METADATA_VERSION, NO_LEADER, UNASSIGNED
from rawlog.formats.kafka.cluster.metadata_batches import Batch
from rawlog.formats.kafka.cluster.metadata_log import MetadataStore, stores
from rawlog.formats.kafka.cluster.new_cluster import DEFAULT_LEVEL, INTERNAL_CONFIGS
from rawlog.formats.kafka.cluster.restore import NEVER
from rawlog.formats.kafka.cluster.state import State, Topic
from rawlog.formats.kafka.internal.codec import Message, uuid_text
from rawlog.formats.kafka.internal.messages import CONSUMER_OFFSETS, TRANSACTION_STATE
from rawlog.formats.kafka.partition.lineage import Copy, Lineage, LogOutline, unite
from rawlog.formats.kafka.paths import QUORUM_FORMAT, snapshot_id, takes
from rawlog.io.storage import Source
from rawlog.model.errors import RawlogError
from rawlog.model.format import File
from rawlog.model.outline import Intervals
from rawlog.model.report import SeriousNote
from rawlog.model.text import counted

End = tuple[int, int]
"""How far a log goes: its last epoch, and the offset after its last batch."""
Run = tuple[int, int]
"""Offsets, half-open."""
EMPTY: End = (-1, 0)


@dataclass(slots=True)
class ClusterMetadata:
    """What is known of a dead cluster, and how certain it is.

    `path` is the metadata directory that goes furthest; None if no metadata could be read: then `state` is empty until it is rebuilt from
    the directories of the partitions. `end` is how far it goes, and below the offset `committed` all of it was certainly committed.
    """

    state: State
    path: str | None = None
    end: End = EMPTY
    committed: int = 0
    #: A majority of the voters' logs was there, so the cluster knew nothing more: a topic that is not in it was deleted.
    is_newest: bool = False
    #: It was put together from the directories of partitions: nothing in it says who led or was in sync.
    is_rebuilt: bool = False
    #: Topics of which only directories tell.
    guessed: set[str] = field(default_factory=set)
    #: Offsets of the metadata log that no disk has.
    missing: list[Run] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    #: What cannot be known, in sentences.
    unknown: list[str] = field(default_factory=list)

    @property
    def is_found(self) -> bool:
        """Whether any metadata could be read."""
        return self.path is not None

    @property
    def partitions(self) -> dict[tuple[str, int], Message]:
        """Every partition that the cluster has, with the fields of a PartitionRecord (`replicas`, `isr`, `leader`, `leaderEpoch` …)."""
        return {
            (name, number): partition
            for name, key in self.state.topic_ids.items()
            for number, partition in self.state.topics[key].partitions.items()
        }

    def verdict(self, topic: str, topic_id: bytes | None) -> str:
        """What the cluster says of a directory: its topic is `known`, was `deleted`, or was `replaced` by one of the same name with
        another id; `unknown` if the metadata may be older than that topic.
        """
        if topic_id is None:
            return "known" if topic in self.state.topic_ids else "deleted" if self.is_newest else "unknown"
        if topic_id in self.state.topics:
            return "known"
        if not self.is_newest and topic_id not in self.state.removed:
            return "unknown"
        return "replaced" if topic in self.state.topic_ids else "deleted"


# One log ------------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class MetadataReplica:
    """The metadata directory of one controller, and its log as its outline says."""

    store: MetadataStore
    log: Copy
    is_damaged: bool

    @classmethod
    def of(cls, number: int, store: MetadataStore, node: int | None) -> MetadataReplica:
        """The replica with a number."""
        log = store.outline
        missing = Intervals.closed((first, last) for first, last in log.lost if last is not None)
        summary = LogOutline(tuple(log.runs()), start=store.start, missing=missing)
        is_damaged = not store.is_as_written or bool(summary.runs and summary.runs[0].first != store.start)
        return cls(store, Copy(number, store.folder, store.folder, summary, node), is_damaged)

    @property
    def node(self) -> int | None:
        return self.log.node

    @property
    def end(self) -> End:
        """How far the log goes."""
        return (self.log.written_epoch, self.log.sound_end) if self.log.runs else EMPTY

    @property
    def snapshot_end(self) -> int:
        """The offset that the newest snapshot reaches."""
        return max(((snapshot_id(file.path) or (0, 0))[0] for file in self.store.snapshots), default=0)

    def agrees_until(self, best: MetadataReplica) -> int:
        """The offset up to which the log equals the best one; a follower of the best one would truncate the rest."""
        if self is best or not best.log.runs:
            return self.end[1]
        return Lineage(best.log.epochs, best.end[1]).common(self.log)


# All of them -------------------------------------------------------------------------------------------------------------


def elect(files: Sequence[File], disks: Disks) -> ClusterMetadata:
    """The metadata that a leader elected from these disks would have. Damage is noted and never raises; `path` of the result is None if
    there is no metadata at all.
    """
    notes: list[str] = []
    readable: list[File] = []
    for file in files:
        if not (takes("kraft.topics", file) or takes(None, file)) or disks.of(file) is None:
            continue
        if file.problem is None:
            readable.append(file)
        elif takes("kraft.topics", file):
            notes.append(f"{file.path}: {file.problem}: not used")
    directories = stores(readable)
    for store in directories:
        notes += [
            SeriousNote(f"{path}: of another metadata log, not used: {reason}")
            for path, reason in store.foreign.items()
        ]
    replicas = [
        MetadataReplica.of(number, store.settled, getattr(disks.of(store.files[0]), "node", None))
        for number, store in enumerate(store for store in directories if store.segments or store.snapshots)
    ]
    has_logs = any(replica.end != EMPTY for replica in replicas)
    snapshots = [file for replica in replicas for file in replica.store.snapshots]
    if not has_logs and not any(snapshot_id(file.path) != (0, 0) for file in snapshots):
        return _from_bootstrap(directories, notes)
    best = max(replicas, key=lambda replica: (replica.end, not replica.is_damaged))
    cluster = _fold_logs(best, [replica for replica in replicas if replica is not best])
    cluster.notes[:0] = notes
    _judge(cluster, best, replicas, _voters(cluster.state, files, disks))
    if not cluster.is_newest:
        _recall_removed(cluster, replicas)
    return cluster


def _from_bootstrap(stores: Iterable[MetadataStore], notes: list[str]) -> ClusterMetadata:
    """The metadata of a cluster that was restored and not started yet, if there is any."""
    for store in stores:
        if store.bootstrap is None:
            continue
        state = State()
        try:
            store.load(state, store.bootstrap, "skip")
        except RawlogError as error:
            notes.append(str(error))
            continue
        if state.topic_ids:
            return ClusterMetadata(state, store.folder, is_newest=True, notes=notes)
    return ClusterMetadata(State(), notes=notes)


def _fold_logs(best: MetadataReplica, others: Sequence[MetadataReplica]) -> ClusterMetadata:
    """The state after the furthest log, from the newest whole snapshot on any disk."""
    store, cluster = best.store, ClusterMetadata(State(), best.store.folder)
    snapshots = [file for replica in (best, *others) for file in replica.store.snapshots]
    joined = MetadataStore([*store.segments, *snapshots], store.folder)
    whole = next((file for file in joined.newest_first if joined.is_whole(file)), None)
    named = max((snapshot_id(file.path) or (0, 0) for file in snapshots), default=(0, 0))
    cluster.notes += [
        f"{file.path}: this snapshot of the metadata is damaged: not used"
        for file in snapshots
        if not joined.is_whole(file)
    ]
    start = (snapshot_id(whole.path) or (0, 0))[0] if whole is not None else 0
    if not best.is_damaged and start >= store.start:
        cluster.state = joined.fold(errors="skip")
    else:
        _replay(cluster, joined, whole, best, others)
    cluster.end = (cluster.state.epoch, cluster.state.end_offset)
    if (named[1], named[0]) > cluster.end:
        cluster.missing.append((cluster.end[1], named[0]))
    return cluster


def _replay(
    cluster: ClusterMetadata,
    joined: MetadataStore,
    whole: File | None,
    best: MetadataReplica,
    others: Sequence[MetadataReplica],
) -> None:
    """Fold the log of the best replica; batches of other replicas with the same history fill its damage."""
    state = cluster.state
    batches = _union(best, others)
    base = whole
    if base is None and (not batches or batches[0].first > 0):
        base = next(iter(joined.newest_first), None)
        if base is not None:
            cluster.notes.append(
                f"{base.path}: no snapshot of the metadata is whole: what can be read of this one is used"
            )
    if base is not None:
        offset, epoch = snapshot_id(base.path) or (0, 0)
        joined.load(state, base, "skip")
        state.end_offset, state.epoch = offset, epoch
        if best.end[0] < epoch:
            return  # the logs end before the snapshot
    borrowed: dict[str, list[Batch]] = {}
    for batch in batches:
        if batch.end <= state.end_offset:
            continue
        if batch.first > state.end_offset:
            cluster.missing.append((state.end_offset, batch.first))
        batch.replay(state)
        if batch.file not in best.store.segments:
            borrowed.setdefault(batch.file.path, []).append(batch)
    for path, batches_of_file in borrowed.items():
        many = counted(len(batches_of_file), "batch", "batches")
        cluster.notes.append(
            f"{best.store.folder} is damaged: {many} from offset {batches_of_file[0].first:,} on are taken from {path}"
        )


def _union(best: MetadataReplica, others: Sequence[MetadataReplica]) -> list[Batch]:
    """The batches of the best log, and between them those of others up to where each agrees with it."""
    replicas = [best, *sorted(others, key=lambda replica: replica.end, reverse=True)]
    limits = [(replica.log, replica.agrees_until(best)) for replica in replicas]
    union = unite(limits, 0, max(limit for _, limit in limits), is_compacted=False)
    batches = {replica.log.number: replica.store.log.batches for replica in replicas}
    return [
        batch
        for piece in union.pieces
        for batch in batches[piece.copy]
        if piece.start <= batch.first and batch.end <= piece.stop
    ]


def _recall_removed(cluster: ClusterMetadata, replicas: Sequence[MetadataReplica]) -> None:
    """Note the topics as deleted that existed before the snapshot that the state begins with, and are not in it.

    The record that removed such a topic is before the snapshot, and perhaps on no disk.
    """
    whole = [file for replica in replicas for file in replica.store.snapshots if replica.store.is_whole(file)]
    begun = max(((snapshot_id(file.path) or (0, 0))[0] for file in whole), default=0)
    before = State()
    for store in (replica.store for replica in replicas):
        for file in store.snapshots:
            if file in whole and (snapshot_id(file.path) or (0, 0))[0] < begun:
                store.load(before, file, "skip")
        for rows in store.rows(store.segments, "skip"):
            for value, offset, control in zip(rows.values, rows.offsets, rows.controls, strict=True):
                if not control and offset < begun:
                    before.add(offset, value or b"")
    names = {**before.removed, **{key: topic.name for key, topic in before.topics.items()}}
    cluster.state.removed |= {key: name for key, name in names.items() if key not in cluster.state.topics}


# How certain it is ---------------------------------------------------------------------------------------------------------


def _voters(state: State, files: Sequence[File], disks: Disks) -> set[int]:
    """The controllers that vote, as the log says, or the files with the state of the election; those also tell of later elections."""
    if state.voters:
        return {int(voter["voterId"]) for voter in state.voters}
    quorum_states = (
        _quorum_state(file) for file in files if file.format == QUORUM_FORMAT and disks.of(file) is not None
    )
    return {int(voter["voterId"]) for fields in quorum_states for voter in fields.get("currentVoters") or ()}


def _quorum_state(file: File) -> dict[str, list[dict[str, int]]]:
    try:
        with Source(file.path) as source:
            fields = json.loads(source.read(0, LARGEST_TEXT))
    except (RawlogError, ValueError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _judge(
    cluster: ClusterMetadata, best: MetadataReplica, replicas: Sequence[MetadataReplica], voters: set[int]
) -> None:
    """Note how much of the metadata was committed, what was left out, and what may be missing."""
    reached: dict[int, int] = {}
    sound = {replica.node for replica in replicas if not replica.is_damaged}
    for replica in replicas:
        agreed, (epoch, end) = replica.agrees_until(best), replica.end
        if agreed < end and replica.log.runs:
            cluster.notes.append(
                f"{replica.store.folder}: offsets {agreed:,} to {end - 1:,} of the metadata log, epoch {epoch}, are left "
                f"out: a later leader (epoch {best.end[0]}) did not have them"
            )
        if replica.node is not None:
            reached[replica.node] = max(reached.get(replica.node, 0), agreed, replica.snapshot_end)
    cluster.committed = min(cluster.end[1], max(replica.snapshot_end for replica in replicas))
    if voters:
        majority = len(voters) // 2 + 1
        present = [offset for node, offset in reached.items() if node in voters]
        cluster.is_newest = len(voters & sound) >= majority
        if cluster.is_newest:
            common_end = sorted(present, reverse=True)[majority - 1]
            cluster.committed = max(cluster.committed, min(common_end, cluster.end[1]))
        else:
            cluster.unknown.append(
                f"undamaged logs of {len(voters & sound)} of {counted(len(voters), 'controller')} were found: what the cluster "
                f"changed after offset {cluster.end[1]:,} of its metadata is not known"
            )
        if cluster.committed < cluster.end[1] and cluster.is_newest:
            cluster.notes.append(
                f"offsets {cluster.committed:,} to {cluster.end[1] - 1:,} of the metadata log are on fewer than {majority} of "
                f"{len(voters)} controllers: perhaps they were not committed. They are used, as a leader elected from these disks would"
            )
    else:
        cluster.unknown.append(
            "which controllers voted is not known, so the cluster may have known more than these disks"
        )
    for start, stop in cluster.missing:
        cluster.unknown.append(
            SeriousNote(
                f"offsets {start:,} to {stop - 1:,} of the metadata log are on no disk: what they changed is not known"
            )
        )
    if cluster.state.problems:
        first = cluster.state.problems[0]
        cluster.notes.append(
            f"{counted(len(cluster.state.problems), 'metadata record')} could not be applied; the first at offset {first.offset:,}: "
            f"{first.message}"
        )
    if cluster.state.open_transaction is not None:
        cluster.notes.append(
            f"a metadata transaction was open from offset {cluster.state.open_transaction:,} on: its changes are left out, as by a "
            "new leader"
        )


# A cluster whose metadata is lost, or older than its data ------------------------------------------------------------------------

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
