"""Which partitions the cluster's metadata assigns to which node and log directory, as far as a metadata log in a log directory tells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from rawlog.core.errors import DataError, RawlogError
from rawlog.core.format import File, Place
from rawlog.formats.kafka.internal import read_records
from rawlog.formats.kafka.messages import decode_record, framed_types
from rawlog.formats.kafka.paths import METADATA_TOPIC, split
from rawlog.formats.kafka.store.logs import sound_end
from rawlog.io.storage import exists, listing

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


class Assignment(NamedTuple):
    """The nodes that have a replica of a partition, in which directory of each, and those that are still to get one."""

    replicas: tuple[int, ...]
    directories: tuple[bytes, ...]
    adding: frozenset[int]

    def directory_on(self, node: int) -> bytes | None:
        """The id of the directory that has the replica of a node; None if the cluster does not know it."""
        at = self.replicas.index(node)
        found = self.directories[at] if at < len(self.directories) else None
        return None if found in NO_DIRECTORY else found


@dataclass
class Assignments:
    """Topics by id, their partitions, and the log directories that brokers have registered."""

    topics: dict[bytes, str] = field(default_factory=dict)
    partitions: dict[bytes, dict[int, Assignment]] = field(default_factory=dict)
    directories: dict[int, frozenset[bytes]] = field(default_factory=dict)
    #: Whether there is any record at all.
    has_records: bool = False

    @cached_property
    def names(self) -> dict[tuple[str, int], Assignment]:
        """The partitions by the name of their topic and their number, once all records are in."""
        found = {}
        for topic, name in self.topics.items():
            found.update({(name, number): one for number, one in self.partitions.get(topic, {}).items()})
        return found

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
            self._partition(message)
        elif kind == "UnregisterBrokerRecord":
            self.directories.pop(message["brokerId"], None)
        elif kind in ("RegisterBrokerRecord", "BrokerRegistrationChangeRecord"):
            found = frozenset(map(bytes, message.get("logDirs") or ()))
            if found or kind == "RegisterBrokerRecord":
                self.directories[message["brokerId"]] = found

    def _partition(self, message: dict[str, Any]) -> None:
        own = self.partitions.setdefault(bytes(message["topicId"]), {})
        before = own.get(message["partitionId"], Assignment((), (), frozenset()))
        replicas, adding = message.get("replicas"), message.get("addingReplicas")
        given = message.get("directories")
        kept = before.directories if replicas is None or list(replicas) == list(before.replicas) else ()
        directories = kept if given is None else tuple(map(bytes, given))
        own[message["partitionId"]] = Assignment(
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
    found, pending = Assignments(), list[tuple[str, dict[str, Any]]]()
    is_open = False
    kinds = {key: one.name for key, one in framed_types().items() if one.name in _WANTED}
    for kind, message in _records(path, kinds):
        found.has_records = True
        if kind == "BeginTransactionRecord":
            is_open, pending = True, []
        elif kind in ("EndTransactionRecord", "AbortTransactionRecord"):
            for one in pending if kind == "EndTransactionRecord" else ():
                found.apply(*one)
            is_open, pending = False, []
        elif is_open:
            pending.append((kind, message))
        else:
            found.apply(kind, message)
    return found


def _records(folder: str, kinds: dict[int, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The records of the newest whole snapshot, and those of the log after it."""
    try:
        entries = [one for one in listing(folder) if one.problem is None and split(one.path)[0] == folder]
    except RawlogError:
        return
    snapshots = sorted((one for one in entries if one.path.endswith(".checkpoint")), key=lambda one: one.path)
    start = 0
    for entry in reversed(snapshots):
        file = _file(entry.path, entry.size, 0)
        if sound_end(file).position == file.size:
            start = int(split(entry.path)[1].partition("-")[0])
            yield from _decoded([file], kinds, 0, None)
            break
    logs = sorted((one for one in entries if one.path.endswith(".log")), key=lambda one: one.path)
    for entry in logs:
        name = split(entry.path)[1].removesuffix(".log")
        file = _file(entry.path, entry.size, int(name) if name.isdecimal() else 0)
        end = sound_end(file)
        yield from _decoded([file], kinds, start, end.offset)
        if end.position < file.size:
            return


def _file(path: str, size: int, start: int) -> File:
    return File(path, size, format="kafka.log", place=Place(start_offset=start, group=split(path)[0]))


def _decoded(
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
