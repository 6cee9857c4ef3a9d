"""Whose a partition is: `partition.metadata`, and where else its topic's id can be found when that file is damaged or gone."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from rawlog.formats.kafka.internal.codec import uuid_text
from rawlog.formats.kafka.internal.messages import decode_record, framed_types
from rawlog.formats.kafka.internal.topics import read_records
from rawlog.formats.kafka.log.heads import heads
from rawlog.formats.kafka.log.layouts import INDEX_ENTRY, OUTLINE
from rawlog.formats.kafka.log.segment import scan
from rawlog.formats.kafka.partition.writer import METADATA
from rawlog.formats.kafka.paths import INTERNAL, METADATA_TOPIC, directory_place, split
from rawlog.formats.kafka.texts import properties, topic_id
from rawlog.io.storage import Source, exists, listing
from rawlog.io.walk import walk
from rawlog.model.errors import AccessError, DataError, RawlogError
from rawlog.model.format import File, Place
from rawlog.model.status import Status

# ----------------------------------------------------------------------------------------------------------------------
# How far a broker reads a log when it loads it: to the first batch that is not sound, or, after a clean stop, as the index leads it.


WINDOW = 4 << 20
#: Entries at the end of an index that a broker looks at first.
_WARM = 8192 // INDEX_ENTRY.size


class End(NamedTuple):
    """The end of reading: a byte position and the next offset; None if no batch was read. `is_fatal`: a broker gives up at that position
    and does not start.
    """

    position: int
    offset: int | None
    is_fatal: bool = False


def sound_end(segment: File) -> End:
    """The end of the sound batches that a segment begins with: where recovery cuts it."""
    from rawlog.formats.kafka import LOG

    position, offset = 0, None
    for frames in walk(segment, LOG, errors="stop"):
        head = heads(frames)
        good = len(frames) if head.all_sound else int(np.argmin(head.sound))
        if good:
            offset = int(head["last_offset"][good - 1]) + 1
            position = int(frames.positions[good - 1] + frames.sizes[good - 1])
        if good < len(frames):
            break
    return End(position, offset)


def trusted_end(segment: File, index: File | None) -> End:
    """The end of the last segment as a broker finds it after a clean stop: from the last entry of the index on, by lengths alone."""
    target, position = _last_entry(segment, index)
    offset: int | None = None
    window = WINDOW
    with Source(segment.path) as source:
        while 0 <= position < source.size:
            part = np.frombuffer(source.read(position, window), np.uint8)
            frames = scan(part, 0)
            if len(frames):
                last = heads(frames)["last_offset"]
                if offset is not None or bool((last >= target).any()):
                    offset = int(last[-1]) + 1
            is_cut = frames.status in (Status.TRUNCATED, Status.PADDING) and position + part.size < source.size
            position += frames.reached
            if not is_cut:
                left = source.size - position
                # A batch that would go on after the end of the file ends the log, whatever its magic is.
                is_fatal = frames.status.is_damage and frames.status is not Status.BAD_MAGIC
                is_fatal |= frames.status is Status.PADDING and left > OUTLINE.size
                return End(position, offset, is_fatal)
            window = WINDOW if len(frames) else window * 2
        return End(max(0, min(position, source.size)), offset)


def _last_entry(segment: File, index: File | None) -> tuple[int, int]:
    """The offset of the last entry of an index, zeros included, and the position at which a broker begins to look for it."""
    base = segment.place.start_offset or 0
    if index is None or index.size < INDEX_ENTRY.size:
        return base, 0
    with Source(index.path) as source:
        data = np.frombuffer(source.read(0, source.size // INDEX_ENTRY.size * INDEX_ENTRY.size), np.uint8)
    raw = INDEX_ENTRY.view(data)
    offsets, positions = raw["relative_offset"].astype(np.int64) + base, raw["position"].astype(np.int64)
    target = int(offsets[-1])
    warm = max(0, len(offsets) - 1 - _WARM)
    if offsets[warm] < target:
        low, high = warm, len(offsets) - 1
    elif offsets[0] > target:
        return target, 0
    else:
        low, high = 0, warm
    while low < high:
        middle = (low + high + 1) // 2
        if offsets[middle] > target:
            high = middle - 1
        elif offsets[middle] < target:
            low = middle
        else:
            low = high = middle
    return target, int(positions[low])


LARGEST_TEXT = 1 << 20
META, BOOTSTRAP = "meta.properties", "bootstrap.checkpoint"
TOPIC = 2
"""The type of a topic among the resources that have settings."""
_METADATA_DIRECTORY = f"{METADATA_TOPIC}-0"


@dataclass(frozen=True, slots=True)
class Identity:
    """The right content of a partition's `partition.metadata`, None for no such file. `change` is the reason for a new content."""

    path: str
    size: int = 0
    data: bytes | None = None
    change: str | None = None


def identity(files: Sequence[File]) -> Identity | None:
    """Whose a partition is: as its own file says, or its topic's id as the log directory around it tells. None where nothing is to
    be said: brokers without KRaft do without.
    """
    place = next((file.place for file in files if file.place.group is not None), Place())
    metadata_file = next((file for file in files if file.format == "kafka.partition" and file.problem is None), None)
    path = f"{place.group}/{METADATA}" if metadata_file is None else metadata_file.path
    if metadata_file is not None:
        data = _text(metadata_file.path)
        try:
            topic_id(data)
        except ValueError:
            pass
        else:
            return Identity(path, metadata_file.size, data)
    source = parent_of(place.group or "")
    if metadata_file is None and (place.topic in (None, METADATA_TOPIC) or not _is_kraft(source)):
        return None
    uuid = None if place.topic is None else _find_topic_id(source, place.topic)
    if uuid is not None:
        rebuilt = f"version: 0\ntopic_id: {uuid_text(uuid)}".encode()
        what = "missing" if metadata_file is None else "damaged"
        return Identity(
            path,
            0 if metadata_file is None else metadata_file.size,
            rebuilt,
            f"{what}; the topic's id is known from elsewhere",
        )
    if metadata_file is None:
        return None
    return Identity(path, metadata_file.size, None, "damaged, and the topic's id is not known from elsewhere")


def parent_of(folder: str) -> str:
    """The directory around another one."""
    return split(folder)[0] or ("/" if folder.startswith("/") else ".")


def _text(path: str) -> bytes:
    with Source(path) as source:
        return source.read(0, min(source.size, LARGEST_TEXT))


def _is_kraft(source: str) -> bool:
    """Whether a log directory is one of a cluster that goes by topic ids."""
    try:
        return exists(f"{source}/{META}") and properties(_text(f"{source}/{META}")).get("version") == "1"
    except (RawlogError, ValueError):
        return False


def _find_topic_id(source: str, topic: str) -> bytes | None:
    """The id of a topic as the metadata log in a log directory has it; else as the topic's other partitions agree on it."""
    uuid = _id_in_metadata(f"{source}/{_METADATA_DIRECTORY}", topic)
    if uuid is not None:
        return uuid
    others = set(_ids_in_partitions(source, topic))
    return others.pop() if len(others) == 1 else None


def _id_in_metadata(folder: str, topic: str) -> bytes | None:
    """The id of a topic after all that the snapshots and the log of a metadata directory hold."""
    types = {schema.name: key for key, schema in framed_types().items()}
    created, removed = types["TopicRecord"], types["RemoveTopicRecord"]
    uuid: bytes | None = None
    try:
        for key, message in _metadata_records(folder):
            if key == created and message["name"] == topic:
                uuid = bytes(message["topicId"])
            elif key == removed and message["topicId"] == uuid:
                uuid = None
    except RawlogError:
        return None
    return uuid


def is_known_topic(source: str, topic: str) -> bool:
    """Whether the metadata log in a log directory has a topic, and so its settings."""
    return _id_in_metadata(f"{source}/{_METADATA_DIRECTORY}", topic) is not None


def is_compacted_topic(source: str, topic: str) -> bool:
    """Whether the metadata in a log directory says that a topic is compacted, or was."""
    return any("compact" in value.split(",") for value in _settings(source, topic, "cleanup.policy"))


def is_tiered_topic(source: str, topic: str) -> bool:
    """Whether a topic has segments in remote storage, or had: as the metadata log in a log directory says; without one, as the list of
    remote segments does, if the directory has a part of it.
    """
    if exists(f"{source}/{_METADATA_DIRECTORY}"):
        return "true" in _settings(source, topic, "remote.storage.enable")
    name = INTERNAL["kafka.remote"]
    try:
        return any(True for _ in listing(f"{glob.escape(source)}/{name}-*"))
    except AccessError:
        return False


def _settings(source: str, topic: str, name: str) -> list[str]:
    """All values that a setting of a topic has had, as the metadata log in a log directory says; up to damage. A restored node has no log
    yet: it begins with `bootstrap.checkpoint`.
    """
    changed = next(key for key, schema in framed_types().items() if schema.name == "ConfigRecord")
    values = []
    folder = f"{source}/{_METADATA_DIRECTORY}"
    try:
        for key, message in _metadata_records(folder if exists(folder) else f"{source}/{BOOTSTRAP}"):
            if key == changed and (message["resourceType"], message["resourceName"]) == (TOPIC, topic):
                values += [message["value"] or ""] if message["name"] == name else []
    except RawlogError:
        pass
    return values


def _metadata_records(folder: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """All records that can be read in a metadata directory, those of its snapshots first; or in one file."""
    if not exists(folder):
        return
    entries = [
        entry for entry in listing(folder) if entry.problem is None and entry.path.endswith((".log", ".checkpoint"))
    ]
    # The log says what came after a snapshot; each kind is in the order of its offsets.
    entries.sort(key=lambda entry: (entry.path.endswith(".log"), entry.path))
    files = [
        File(entry.path, entry.size, format="kafka.log", place=Place(start_offset=0, group=folder)) for entry in entries
    ]
    for _, batch in read_records(files, ("value", "is_control"), "skip"):
        for value, control in zip(*(batch.column(name).to_pylist() for name in ("value", "is_control")), strict=True):
            if control or not value:
                continue
            try:
                key, _, message = decode_record(value)
            except DataError:
                continue
            yield key, message


def _ids_in_partitions(source: str, topic: str) -> Iterator[bytes]:
    """The ids in the other partitions of a topic, if this is a log directory."""
    if not exists(f"{source}/{META}"):
        return
    for entry in listing(source):
        folder, name = split(entry.path)
        place = directory_place(folder)
        if name != METADATA or place.topic != topic or place.state is not None:
            continue
        try:
            yield topic_id(_text(entry.path))
        except (RawlogError, ValueError):
            continue


# ----------------------------------------------------------------------------------------------------------------------
# Which partitions the cluster's metadata assigns to which node and log directory, as far as a metadata log in a log directory tells.


METADATA_DIRECTORY = f"{METADATA_TOPIC}-0"
#: Ids that stand for no directory: not known yet, not assigned, lost.
NO_DIRECTORY = frozenset(number.to_bytes(16, "big") for number in range(3))
#: The frame of a metadata record: its version, then its type as one byte.
_FRAME = 2
_WANTED = (
    "RegisterBrokerRecord",
    "UnregisterBrokerRecord",
    "BrokerRegistrationChangeRecord",
    "TopicRecord",
    "PartitionRecord",
    "PartitionChangeRecord",
    "RemoveTopicRecord",
    "BeginTransactionRecord",
    "EndTransactionRecord",
    "AbortTransactionRecord",
)


class ReplicaPlacement(NamedTuple):
    """The nodes with a replica of a partition, the directory of each, and the nodes about to get one."""

    replicas: tuple[int, ...]
    directories: tuple[bytes, ...]
    adding: frozenset[int]

    def directory_on(self, node: int) -> bytes | None:
        """The id of the directory that has the replica of a node; None if the cluster does not know it."""
        at = self.replicas.index(node)
        directory = self.directories[at] if at < len(self.directories) else None
        return None if directory in NO_DIRECTORY else directory


@dataclass
class Assignments:
    """Topics by id, their partitions, and the log directories that brokers have registered."""

    topics: dict[bytes, str] = field(default_factory=dict)
    partitions: dict[bytes, dict[int, ReplicaPlacement]] = field(default_factory=dict)
    directories: dict[int, frozenset[bytes]] = field(default_factory=dict)
    #: Whether there is any record at all.
    has_records: bool = False

    @cached_property
    def names(self) -> dict[tuple[str, int], ReplicaPlacement]:
        """The partitions by the name of their topic and their number, once all records are in."""
        assignments = {}
        for topic, name in self.topics.items():
            assignments.update(
                {(name, number): assignment for number, assignment in self.partitions.get(topic, {}).items()}
            )
        return assignments

    def apply(self, kind: str, message: dict[str, Any]) -> None:
        """Replay a record as a controller does."""
        self.has_records = True
        if kind == "TopicRecord":
            self.topics[bytes(message["topicId"])] = message["name"]
            self.partitions[bytes(message["topicId"])] = {}
        elif kind == "RemoveTopicRecord":
            self.topics.pop(bytes(message["topicId"]), None)
            self.partitions.pop(bytes(message["topicId"]), None)
        elif kind in ("PartitionRecord", "PartitionChangeRecord"):
            self._apply_partition(message)
        elif kind == "UnregisterBrokerRecord":
            self.directories.pop(message["brokerId"], None)
        elif kind in ("RegisterBrokerRecord", "BrokerRegistrationChangeRecord"):
            directories = frozenset(map(bytes, message.get("logDirs") or ()))
            if directories or kind == "RegisterBrokerRecord":
                self.directories[message["brokerId"]] = directories

    def _apply_partition(self, message: dict[str, Any]) -> None:
        partitions = self.partitions.setdefault(bytes(message["topicId"]), {})
        before = partitions.get(message["partitionId"], ReplicaPlacement((), (), frozenset()))
        replicas, adding = message.get("replicas"), message.get("addingReplicas")
        stated = message.get("directories")
        kept = before.directories if replicas is None or list(replicas) == list(before.replicas) else ()
        directories = kept if stated is None else tuple(map(bytes, stated))
        partitions[message["partitionId"]] = ReplicaPlacement(
            before.replicas if replicas is None else tuple(replicas),
            directories,
            before.adding if adding is None else frozenset(adding),
        )


def assignments_in(folder: str) -> Assignments | None:
    """What a broker learns from the metadata log in a log directory when it starts: a controller cuts the log at the first damage. None
    if there is no metadata directory.
    """
    path = f"{folder}/{METADATA_DIRECTORY}"
    if not exists(path):
        return None
    assignments, pending = Assignments(), list[tuple[str, dict[str, Any]]]()
    is_open = False
    kinds = {key: schema.name for key, schema in framed_types().items() if schema.name in _WANTED}
    for kind, message in _records(path, kinds):
        assignments.has_records = True
        if kind == "BeginTransactionRecord":
            is_open, pending = True, []
        elif kind in ("EndTransactionRecord", "AbortTransactionRecord"):
            for record in pending if kind == "EndTransactionRecord" else ():
                assignments.apply(*record)
            is_open, pending = False, []
        elif is_open:
            pending.append((kind, message))
        else:
            assignments.apply(kind, message)
    return assignments


def _records(folder: str, kinds: dict[int, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The records of the newest whole snapshot, and those of the log after it."""
    try:
        entries = [entry for entry in listing(folder) if entry.problem is None and split(entry.path)[0] == folder]
    except RawlogError:
        return
    snapshots = sorted((entry for entry in entries if entry.path.endswith(".checkpoint")), key=lambda entry: entry.path)
    start = 0
    for entry in reversed(snapshots):
        file = _file(entry.path, entry.size, 0)
        if sound_end(file).position == file.size:
            start = int(split(entry.path)[1].partition("-")[0])
            yield from _decode_records([file], kinds, 0, None)
            break
    logs = sorted((entry for entry in entries if entry.path.endswith(".log")), key=lambda entry: entry.path)
    for entry in logs:
        name = split(entry.path)[1].removesuffix(".log")
        file = _file(entry.path, entry.size, int(name) if name.isdecimal() else 0)
        end = sound_end(file)
        yield from _decode_records([file], kinds, start, end.offset)
        if end.position < file.size:
            return


def _file(path: str, size: int, start: int) -> File:
    return File(path, size, format="kafka.log", place=Place(start_offset=start, group=split(path)[0]))


def _decode_records(
    files: Sequence[File], kinds: dict[int, str], start: int, stop: int | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The records of these kinds, of offsets from `start` to before `stop`."""
    names = ("offset", "value", "is_control")
    for _, batch in read_records(files, names, "stop"):
        for offset, value, control in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
            if stop is not None and offset >= stop:
                return
            if control or not value or offset < start or len(value) < _FRAME or value[1] not in kinds:
                continue
            try:
                key, _, message = decode_record(value)
            except DataError:
                continue
            yield kinds[key], message
