"""The partitions on disk compared with those the cluster knows: strays, and what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rawlog.core.errors import RawlogError
from rawlog.core.format import File
from rawlog.formats.kafka.paths import METADATA_TOPIC, split
from rawlog.formats.kafka.showing import uuid_text
from rawlog.formats.kafka.texts import topic_id
from rawlog.formats.kraft.names import DIRECTORIES
from rawlog.formats.kraft.store.disks import read_disk
from rawlog.formats.kraft.store.state import State
from rawlog.io.storage import Source

LARGEST = 1 << 20


@dataclass(frozen=True, slots=True)
class Odd:
    """A partition that is on disk and should not be, or that should be and is not. `kind` is `stray` or `missing`."""

    kind: str
    topic: str
    partition: int
    path: str
    why: str


@dataclass(slots=True)
class _Directory:
    """A log directory: whose it is, and the partition directories in it."""

    node: int | None
    id: bytes | None
    partitions: dict[tuple[str, int], tuple[str, str | None]]
    ids: dict[str, bytes]


def _text(path: str) -> bytes:
    with Source(path) as source:
        return source.read(0, LARGEST)


def _directories(files: Sequence[File], cluster_id: str | None) -> dict[str, _Directory]:
    """The log directories of a cluster among some files, by path."""
    found: dict[str, _Directory] = {}
    for file in files:
        if file.format == "kafka.meta" and file.problem is None:
            disk, _ = read_disk(split(file.path)[0])
            is_other = cluster_id is not None and disk.cluster_id not in (None, cluster_id)
            if not is_other and (disk.node, disk.cluster_id) != (None, None):
                found[disk.path] = _Directory(disk.node, disk.directory_id, {}, {})
    for file in files:
        place = file.place
        if place.topic is None or place.partition is None or place.group is None or place.topic == METADATA_TOPIC:
            continue
        directory = found.get(split(place.group)[0])
        if directory is None:
            continue
        folder_state = _state_of(place.group)
        directory.partitions.setdefault((place.topic, place.partition), (place.group, folder_state))
        if folder_state is None:
            directory.partitions[place.topic, place.partition] = (place.group, None)
        if file.format == "kafka.partition" and file.problem is None and folder_state is None:
            try:
                directory.ids[place.group] = topic_id(_text(file.path))
            except (RawlogError, ValueError):
                continue
    return found


def _state_of(folder: str) -> str | None:
    name = split(folder)[1]
    return next((word for word in ("delete", "stray", "future") if name.endswith(f"-{word}")), None)


def compare(files: Sequence[File], state: State, cluster_id: str | None) -> list[Odd]:
    """What does not fit, in the log directories of the cluster that are among the files."""
    directories = _directories(files, cluster_id)
    found = [odd for one in directories.values() for odd in _strays(one, state)]
    found += _missing(directories, state)
    return sorted(found, key=lambda odd: (odd.kind, odd.topic, odd.partition, odd.path))


def _strays(directory: _Directory, state: State) -> Iterator[Odd]:
    for (topic, number), (folder, word) in directory.partitions.items():
        why = None
        if word == "stray":
            why = "a broker has marked it as one already"
        elif word is not None:
            continue
        elif folder not in directory.ids:
            why = "it has no partition.metadata with its topic id"
        elif directory.ids[folder] not in state.topics:
            why = f"the cluster has no topic with the id {uuid_text(directory.ids[folder])}"
        elif state.topics[directory.ids[folder]].name != topic:
            why = f"its topic id is that of {state.topics[directory.ids[folder]].name}"
        elif number not in state.topics[directory.ids[folder]].partitions:
            why = "the topic has no such partition"
        else:
            replicas = state.topics[directory.ids[folder]].partitions[number]["replicas"]
            if directory.node is not None and directory.node not in replicas:
                why = f"its replicas are on {replicas}, not on {directory.node}"
        if why is not None:
            yield Odd("stray", topic, number, folder, why)


def _missing(directories: dict[str, _Directory], state: State) -> Iterator[Odd]:
    """Replicas that a given directory should have. Where the cluster does not say which directory, all of the node's must be given."""
    nodes = {one.node for one in directories.values()} - {None}
    for node in sorted(nodes, key=str):
        mine = {path: one for path, one in directories.items() if one.node == node}
        known = {one.id: path for path, one in mine.items() if one.id is not None}
        broker = state.brokers.get(node) if node is not None else None
        complete = broker is None or not broker["logDirs"] or set(broker["logDirs"]) <= set(known)
        for topic in state.topics.values():
            for number, one in topic.partitions.items():
                if node not in one["replicas"]:
                    continue
                assigned = one["directories"][one["replicas"].index(node)]
                if assigned in DIRECTORIES:
                    if not complete:
                        continue
                    places = list(mine)
                elif assigned in known:
                    places = [known[assigned]]
                else:
                    continue
                if not any(_has(mine[path], topic.name, number) for path in places):
                    yield Odd("missing", topic.name, number, places[0], f"node {node} should have it")


def _has(directory: _Directory, topic: str, number: int) -> bool:
    there = directory.partitions.get((topic, number))
    return there is not None and there[1] in (None, "future")
