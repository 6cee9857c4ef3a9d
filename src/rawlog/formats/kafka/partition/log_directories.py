"""The log directories of nodes: whose each of them is, and what is in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from rawlog.formats.kafka.internal.codec import uuid_bytes, uuid_text
from rawlog.formats.kafka.partition.identity import (
    BOOTSTRAP,
    META,
    METADATA_DIRECTORY,
    NO_DIRECTORY,
    Assignments,
    assignments_in,
    parent_of,
)
from rawlog.formats.kafka.partition.writer import METADATA
from rawlog.formats.kafka.paths import (
    MARK,
    METADATA_TOPIC,
    REMOTE_CACHE,
    PartitionName,
    partition_name,
    split,
)
from rawlog.formats.kafka.properties import check_meta, properties, topic_id
from rawlog.io.storage import Source, exists, folders_in
from rawlog.model.errors import RawlogError
from rawlog.model.format import File
from rawlog.model.store import Store

LARGEST_TEXT = 1 << 20
#: Formats of files that only the top of a log directory has.
AT_TOP = ("kafka.meta", "kafka.checkpoint", "kafka.cleanshutdown")


@dataclass(frozen=True)
class LogDirectory:
    """One entry of `log.dirs`. `meta` has the settings of its `meta.properties`; it is None without one, and empty if it is unreadable."""

    path: str
    meta: dict[str, str] | None = None

    @property
    def is_identified(self) -> bool:
        """Whether a broker would accept its `meta.properties`."""
        try:
            check_meta("\n".join(f"{key}={value}" for key, value in (self.meta or {}).items()).encode())
        except (ValueError, KeyError):
            return False
        return True

    @property
    def is_zookeeper(self) -> bool:
        """Whether it is of a cluster with ZooKeeper."""
        return (self.meta or {}).get("version") == "0"

    @property
    def node(self) -> int | None:
        number = (self.meta or {}).get("node.id", (self.meta or {}).get("broker.id", ""))
        return int(number) if number.isdecimal() else None

    @property
    def cluster(self) -> str | None:
        return (self.meta or {}).get("cluster.id")

    @property
    def id(self) -> bytes | None:
        """Its `directory.id`."""
        try:
            return uuid_bytes((self.meta or {}).get("directory.id", ""))
        except ValueError:
            return None

    @cached_property
    def is_marked(self) -> bool:
        """Whether its broker was stopped cleanly."""
        return exists(f"{self.path}/{MARK}")

    @cached_property
    def has_metadata(self) -> bool:
        return METADATA_DIRECTORY in self.folders

    @cached_property
    def is_kraft(self) -> bool:
        """Whether it is certainly of a cluster without ZooKeeper."""
        return (self.meta or {}).get("version") == "1" or self.has_metadata or exists(f"{self.path}/{BOOTSTRAP}")

    @cached_property
    def folders(self) -> frozenset[str]:
        """The names of its sub-directories."""
        return frozenset(folders_in(self.path))

    @cached_property
    def partitions(self) -> dict[str, PartitionName]:
        """Its partition directories by name, those that a broker has put aside among them."""
        names = {name: partition_name(name) for name in sorted(self.folders)}
        return {
            name: partition
            for name, partition in names.items()
            if partition is not None and partition.topic != METADATA_TOPIC
        }

    @property
    def unknown_folders(self) -> list[str]:
        """The sub-directories at whose names a broker ends."""
        return [name for name in sorted(self.folders) if name != REMOTE_CACHE and partition_name(name) is None]

    @cached_property
    def loaded(self) -> dict[tuple[str, int], str]:
        """The paths of the partitions that a broker would load."""
        return {
            (partition.topic, partition.partition): f"{self.path}/{name}"
            for name, partition in self.partitions.items()
            if partition.state is None
        }

    @cached_property
    def aside(self) -> set[tuple[str, int]]:
        """The partitions whose directories a broker has renamed."""
        return {
            (partition.topic, partition.partition)
            for partition in self.partitions.values()
            if partition.state is not None
        }

    @cached_property
    def assignments(self) -> Assignments | None:
        """What the metadata log in it says; None if there is none."""
        return assignments_in(self.path) if self.has_metadata else None


@dataclass(frozen=True)
class Node:
    """The log directories of one node. A directory without an owner is a node of its own."""

    directories: tuple[LogDirectory, ...]

    @property
    def id(self) -> int | None:
        return self.directories[0].node

    @property
    def is_zookeeper(self) -> bool:
        return self.directories[0].is_zookeeper

    @property
    def is_kraft(self) -> bool:
        return self.directories[0].is_kraft

    @cached_property
    def assignments(self) -> Assignments | None:
        """What the node would read of the cluster's metadata; None if none of its directories has a metadata log with any record."""
        assignments = next(
            (directory.assignments for directory in self.directories if directory.assignments is not None), None
        )
        return assignments if assignments is not None and assignments.has_records else None

    @property
    def is_complete(self) -> bool:
        """Whether all log directories that the node has registered are here."""
        registered = None if self.assignments is None or self.id is None else self.assignments.directories.get(self.id)
        return (
            registered is not None
            and bool(registered)
            and registered <= {directory.id for directory in self.directories}
        )

    def fails_at(self, directory: LogDirectory) -> bool:
        """Whether the node ends if it cannot use one of its directories: the last one, or the one with the metadata."""
        return directory.has_metadata or len(self.directories) == 1


def node_of(path: str) -> Node:
    """A node by one of its log directories alone."""
    meta = f"{path}/{META}"
    return Node((LogDirectory(path, _read_meta(meta) if exists(meta) else None),))


def infer_identity(path: str) -> bytes | None:
    """The `meta.properties` that a log directory without one must have had; None if that is not known for certain.

    The directories next to it tell the id of the cluster, if its metadata has registered them. It is the only directory of a node, of those
    that are not here, to which the metadata assigns all of its partitions.
    """
    directory, above = LogDirectory(path), parent_of(path)
    others = [node_of(f"{above}/{name}").directories[0] for name in folders_in(above) if name != split(path)[1]]
    others = [other for other in others if other.is_identified and not other.is_zookeeper and other.id is not None]
    assignments = next(
        (candidate.assignments for candidate in (directory, *others) if candidate.assignments is not None), None
    )
    if assignments is None:
        return None
    others = [
        other
        for other in others
        if other.id in assignments.directories.get(other.node if other.node is not None else -1, ())
    ]
    clusters = {other.cluster for other in others}
    places: set[tuple[int, bytes]] | None = None
    for (_, number), folder in directory.loaded.items():
        topic = topic_id_in(folder)
        assignment = None if topic is None else assignments.partitions.get(topic, {}).get(number)
        if assignment is not None:
            pairs = set(zip(assignment.replicas, assignment.directories, strict=False))
            places = pairs if places is None else places & pairs
    places = {(node, directory_id) for node, directory_id in places or () if directory_id not in NO_DIRECTORY}
    places -= {(other.node, other.id) for other in others if other.node is not None and other.id is not None}
    if len(clusters) != 1 or len(places) != 1:
        return None
    [cluster], [(node, directory_id)] = clusters, places
    return f"version=1\ncluster.id={cluster}\nnode.id={node}\ndirectory.id={uuid_text(directory_id)}\n".encode()


def topic_id_in(folder: str) -> bytes | None:
    """The topic id of a partition directory; None if it has none, empty if it cannot be read."""
    path = f"{folder}/{METADATA}"
    if not exists(path):
        return None
    try:
        with Source(path) as source:
            return topic_id(source.read(0, LARGEST_TEXT))
    except (RawlogError, ValueError):
        return b""


def nodes(files: Sequence[File]) -> list[Node]:
    """The nodes of the log directories among some files; computed once."""
    return Store.of(files).share(_nodes)


def _nodes(store: Store) -> list[Node]:
    by_node: dict[object, list[LogDirectory]] = {}
    for directory in _directories(store):
        is_known = directory.is_identified and directory.cluster is not None and directory.node is not None
        key = (directory.cluster, directory.node) if is_known else directory.path
        by_node.setdefault(key, []).append(directory)
    if len(by_node) > 1:
        _adopt(by_node)
    return [Node(tuple(directories)) for directories in by_node.values()]


def _adopt(by_node: dict[object, list[LogDirectory]]) -> None:
    """Give directories with an invalid `meta.properties` to the only node, if there is only one."""
    others = [key for key in by_node if isinstance(key, tuple)]
    orphans = [key for key in by_node if not isinstance(key, tuple)]
    for key in orphans:
        [directory] = by_node[key]
        if len(others) == 1 and directory.meta is not None and not directory.is_zookeeper:
            by_node[others[0]].append(directory)
            del by_node[key]


def _directories(files: Sequence[File]) -> list[LogDirectory]:
    """The log directories: those with a `meta.properties`; those that have none, and other files that only log directories have. A
    controller has `bootstrap.checkpoint` next to its metadata log, and no other.

    A directory whose `meta.properties` is there and was not named is not one: only a part of it was named.
    """
    metas = {split(file.path)[0]: file for file in files if file.format == "kafka.meta"}
    groups: dict[str, set[bool]] = {}
    for file in files:
        place = file.place
        if place.topic is not None and place.partition is not None and place.group is not None and not place.remote:
            groups.setdefault(parent_of(place.group), set()).add(place.topic == METADATA_TOPIC)
    tops = {split(file.path)[0] for file in files if file.format in AT_TOP}
    tops |= {
        folder
        for folder, kinds in groups.items()
        if True in kinds and (len(kinds) == 2 or exists(f"{folder}/{BOOTSTRAP}"))
    }
    directories = []
    for path in sorted(tops):
        if path in metas:
            file = metas[path]
            directories.append(LogDirectory(path, {} if file.problem is not None else _read_meta(file.path)))
        elif not exists(f"{path}/{META}") and path in groups:
            directories.append(LogDirectory(path))
    return directories


def _read_meta(path: str) -> dict[str, str]:
    try:
        with Source(path) as source:
            return properties(source.read(0, LARGEST_TEXT))
    except (RawlogError, ValueError):
        return {}
