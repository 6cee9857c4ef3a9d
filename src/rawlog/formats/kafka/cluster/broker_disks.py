"""The log directories of several brokers: which broker and cluster each belongs to, and whether they belong together."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rawlog.formats.kafka.cluster.metadata import DIRECTORIES
from rawlog.formats.kafka.cluster.state import State
from rawlog.formats.kafka.internal.codec import uuid_bytes, uuid_text
from rawlog.formats.kafka.paths import METADATA_DIRECTORY, METADATA_TOPIC, directory_place, split
from rawlog.formats.kafka.texts import properties, topic_id
from rawlog.io.storage import Places, Source, exists, refuse_locked
from rawlog.model.errors import OptionError, RawlogError
from rawlog.model.format import File
from rawlog.model.text import counted, whole_number

META, LOCK = "meta.properties", ".lock"
LARGEST_TEXT = 1 << 20
#: Formats of files that only the top of a log directory has.
AT_TOP = ("kafka.meta", "kafka.checkpoint")


@dataclass(frozen=True, slots=True)
class Disk:
    """A log directory of a broker, as its `meta.properties` describes it; what that does not say is None.

    `is_zookeeper`: it is of a cluster with ZooKeeper (`version=0`). `is_inferred`: the node is known only from the cluster's metadata.
    """

    path: str
    node: int | None = None
    cluster_id: str | None = None
    directory_id: bytes | None = None
    is_zookeeper: bool = False
    is_inferred: bool = False

    @property
    def name(self) -> str:
        """The disk in a few words: its node, if known, and its path."""
        return self.path if self.node is None else f"node {self.node}, {self.path}"


@dataclass(slots=True)
class Disks:
    """The log directories that are used, by path; `notes` are the decisions on others and on what they lack."""

    by_path: dict[str, Disk]
    cluster_id: str | None = None
    notes: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[Disk]:
        return iter(self.by_path.values())

    def of(self, file: File) -> Disk | None:
        """The disk that a file is on; None for one of a disk that is not used."""
        return self.by_path.get(_disk_path(file) or "")

    @property
    def nodes(self) -> list[int]:
        """The nodes whose disks are here."""
        return sorted({disk.node for disk in self if disk.node is not None})


def find_disks(roots: Sequence[str], files: Sequence[File]) -> Disks:
    """The log directories among the files of some roots.

    OptionError for directories of several clusters, for two copies of one disk, for one that a running broker uses, and if there are
    none at all.
    """
    disks: dict[str, Disk] = {}
    notes: list[str] = []
    places = Places(notes)
    paths = sorted({path for path in map(_disk_path, files) if path is not None})
    for path in paths:
        if not places.is_new(path):
            continue
        disks[path], note = read_disk(path)
        notes += [] if note is None else [note]
    notes += [f"{root}: no file of a log directory: nothing is used" for root in _empty(roots, paths)]
    if not disks:
        raise OptionError(f"{', '.join(roots)}: no log directory of a Kafka broker")
    _refuse_mixed(disks.values())
    _refuse_copies(disks.values())
    for path in disks:
        refuse_locked(path, LOCK)
    notes += _double_notes(disks, files)
    ids = {disk.cluster_id for disk in disks.values() if disk.cluster_id is not None}
    return Disks(disks, next(iter(ids), None), notes)


def read_disk(path: str) -> tuple[Disk, str | None]:
    """What the `meta.properties` of a log directory says, and a note on what is wrong with it."""
    name = f"{path}/{META}" if path else META
    try:
        if not exists(name):
            return Disk(path), f"{path}: no {META}: its broker is not known from it"
        with Source(name) as source:
            fields = properties(source.read(0, LARGEST_TEXT))
    except (RawlogError, ValueError):
        return Disk(path), f"{path}: {META} cannot be read: its broker is not known from it"
    node, directory_text = fields.get("node.id", fields.get("broker.id", "")), fields.get("directory.id")
    try:
        directory = None if directory_text is None else uuid_bytes(directory_text)
    except ValueError:
        directory = None
    disk = Disk(
        path,
        whole_number(node),
        fields.get("cluster.id") or None,
        directory,
        is_zookeeper="node.id" not in fields and fields.get("version") == "0",
    )
    lacks = [field_name for field_name, value in (("node", disk.node), ("cluster", disk.cluster_id)) if value is None]
    return disk, f"{path}: {META} does not name its {' and '.join(lacks)}" if lacks else None


def _disk_path(file: File) -> str | None:
    """The log directory that a file is in; None if nothing says that it is in one."""
    place = file.place
    if place.topic is not None and place.partition is not None and place.group is not None:
        return split(place.group)[0]
    folder, name = split(file.path)
    if name == "bootstrap.checkpoint":
        return folder if directory_place(folder).topic is None else None
    return folder if file.format in AT_TOP or name == META else None


def _empty(roots: Iterable[str], paths: Collection[str]) -> Iterator[str]:
    """The roots that are not in, at or around a log directory."""
    for root in dict.fromkeys(roots):
        base = root.rstrip("/")
        if not any(f"{path}/".startswith(f"{base}/") or f"{base}/".startswith(f"{path}/") for path in paths):
            yield root


def _refuse_mixed(disks: Iterable[Disk]) -> None:
    by_cluster: dict[str, list[str]] = {}
    for disk in disks:
        if disk.cluster_id is not None:
            by_cluster.setdefault(disk.cluster_id, []).append(disk.path)
    if len(by_cluster) > 1:
        parts = "; ".join(f"cluster {name}: {', '.join(paths)}" for name, paths in sorted(by_cluster.items()))
        raise OptionError(
            f"the directories belong to {len(by_cluster)} clusters: {parts}. Name the directories of one cluster"
        )


def _refuse_copies(disks: Iterable[Disk]) -> None:
    by_id: dict[bytes, str] = {}
    for disk in disks:
        if disk.directory_id is None:
            continue
        if disk.directory_id in by_id:
            raise OptionError(
                f"{by_id[disk.directory_id]} and {disk.path} are copies of one disk (directory.id "
                f"{uuid_text(disk.directory_id)}): name one of them"
            )
        by_id[disk.directory_id] = disk.path


def _double_notes(disks: Mapping[str, Disk], files: Sequence[File]) -> Iterator[str]:
    """A note on every two disks of one node with the same partition: no broker would start on them."""
    paths: dict[tuple[int, str], str] = {}
    noted: set[tuple[str, str]] = set()
    for group in sorted({file.place.group for file in files if file.place.group is not None}):
        path, name = split(group)
        disk = disks.get(path)
        if disk is None or disk.node is None or name == METADATA_DIRECTORY:
            continue
        first_path = paths.setdefault((disk.node, name), path)
        if first_path != path and (first_path, path) not in noted:
            noted.add((first_path, path))
            yield f"{first_path} and {path} are both of node {disk.node} and both have {name}: perhaps copies of one disk"


# Disks that do not say whose they are ------------------------------------------------------------------------------------


def infer_nodes(disks: Disks, state: State, partitions: Mapping[str, Iterable[tuple[bytes | None, str, int]]]) -> None:
    """Give disks without a readable node the only one that can have them, where the cluster's metadata tells; each is noted.

    `partitions` are (topic id, topic, partition) of each disk, by path.
    """
    for disk in list(disks):
        if disk.node is not None:
            continue
        disk_partitions = [key for key in partitions.get(disk.path, ()) if key[1] != METADATA_TOPIC]
        possible = _possible_nodes(disks, state, disk_partitions)
        if len(possible) == 1:
            [node] = possible
            disks.by_path[disk.path] = replace(disk, node=node, is_inferred=True)
            disks.notes.append(
                f"{disk.path}: taken for a disk of node {node}, the only one that can have its partitions"
            )
        else:
            many = f"nodes {', '.join(map(str, sorted(possible)))} can" if possible else "no node of the cluster can"
            disks.notes.append(
                f"{disk.path}: its broker is not known; {many} have its {counted(len(disk_partitions), 'partition')}"
            )


def _possible_nodes(disks: Disks, state: State, partitions: Sequence[tuple[bytes | None, str, int]]) -> set[int]:
    """The nodes that may own a disk with these partitions."""
    directory_ids = {disk.directory_id for disk in disks if disk.directory_id is not None}
    possible: set[int] | None = None
    for disk_topic_id, topic, number in partitions:
        key = disk_topic_id if disk_topic_id is not None else state.topic_ids.get(topic)
        topic_state = state.topics.get(key) if key is not None else None
        partition = topic_state.partitions.get(number) if topic_state is not None else None
        if partition is None:
            continue
        pairs = zip(partition["replicas"], partition["directories"], strict=False)
        nodes = {node for node, directory in pairs if directory in DIRECTORIES or directory not in directory_ids}
        possible = nodes if possible is None else possible & nodes
    complete = {
        node for node, broker in state.brokers.items() if broker["logDirs"] and set(broker["logDirs"]) <= directory_ids
    }
    return (set(state.brokers) if possible is None else possible) - complete


# ----------------------------------------------------------------------------------------------------------------------
# The partitions on disk compared with those the cluster knows: strays, and what is missing.


LARGEST = 1 << 20


@dataclass(frozen=True, slots=True)
class DiskMismatch:
    """A partition on disk that should not be there (`kind` is `stray`), or one that should be and is not (`missing`)."""

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
    directories: dict[str, _Directory] = {}
    for file in files:
        if file.format == "kafka.meta" and file.problem is None:
            disk, _ = read_disk(split(file.path)[0])
            is_other = cluster_id is not None and disk.cluster_id not in (None, cluster_id)
            if not is_other and (disk.node, disk.cluster_id) != (None, None):
                directories[disk.path] = _Directory(disk.node, disk.directory_id, {}, {})
    for file in files:
        place = file.place
        if place.topic is None or place.partition is None or place.group is None or place.topic == METADATA_TOPIC:
            continue
        directory = directories.get(split(place.group)[0])
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
    return directories


def _state_of(folder: str) -> str | None:
    name = split(folder)[1]
    return next((word for word in ("delete", "stray", "future") if name.endswith(f"-{word}")), None)


def compare(files: Sequence[File], state: State, cluster_id: str | None) -> list[DiskMismatch]:
    """What does not fit, in the log directories of the cluster that are among the files."""
    directories = _directories(files, cluster_id)
    mismatches = [mismatch for directory in directories.values() for mismatch in _strays(directory, state)]
    mismatches += _missing(directories, state)
    return sorted(mismatches, key=lambda mismatch: (mismatch.kind, mismatch.topic, mismatch.partition, mismatch.path))


def _strays(directory: _Directory, state: State) -> Iterator[DiskMismatch]:
    for (topic, number), (folder, word) in directory.partitions.items():
        reason = None
        if word == "stray":
            reason = "a broker has marked it as one already"
        elif word is not None:
            continue
        elif folder not in directory.ids:
            reason = "it has no partition.metadata with its topic id"
        elif directory.ids[folder] not in state.topics:
            reason = f"the cluster has no topic with the id {uuid_text(directory.ids[folder])}"
        elif state.topics[directory.ids[folder]].name != topic:
            reason = f"its topic id is that of {state.topics[directory.ids[folder]].name}"
        elif number not in state.topics[directory.ids[folder]].partitions:
            reason = "the topic has no such partition"
        else:
            replicas = state.topics[directory.ids[folder]].partitions[number]["replicas"]
            if directory.node is not None and directory.node not in replicas:
                reason = f"its replicas are on {replicas}, not on {directory.node}"
        if reason is not None:
            yield DiskMismatch("stray", topic, number, folder, reason)


def _missing(directories: dict[str, _Directory], state: State) -> Iterator[DiskMismatch]:
    """Replicas that a given directory should have. Where the cluster does not say which directory, all of the node's must be given."""
    nodes = {directory.node for directory in directories.values()} - {None}
    for node in sorted(nodes, key=str):
        own_directories = {path: directory for path, directory in directories.items() if directory.node == node}
        paths_by_id = {directory.id: path for path, directory in own_directories.items() if directory.id is not None}
        broker = state.brokers.get(node) if node is not None else None
        complete = broker is None or not broker["logDirs"] or set(broker["logDirs"]) <= set(paths_by_id)
        for topic in state.topics.values():
            for number, partition in topic.partitions.items():
                if node not in partition["replicas"]:
                    continue
                assigned = partition["directories"][partition["replicas"].index(node)]
                if assigned in DIRECTORIES:
                    if not complete:
                        continue
                    places = list(own_directories)
                elif assigned in paths_by_id:
                    places = [paths_by_id[assigned]]
                else:
                    continue
                if not any(_has(own_directories[path], topic.name, number) for path in places):
                    yield DiskMismatch("missing", topic.name, number, places[0], f"node {node} should have it")


def _has(directory: _Directory, topic: str, number: int) -> bool:
    folder = directory.partitions.get((topic, number))
    return folder is not None and folder[1] in (None, "future")
