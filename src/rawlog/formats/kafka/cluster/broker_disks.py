"""The log directories of several brokers: which broker and cluster each belongs to, and whether they belong together."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rawlog.formats.kafka.cluster.metadata import DIRECTORIES
from rawlog.formats.kafka.cluster.paths import METADATA_DIRECTORY
from rawlog.formats.kafka.cluster.state import State
from rawlog.formats.kafka.internal.codec import uuid_bytes, uuid_text
from rawlog.formats.kafka.paths import METADATA_TOPIC, directory_place, split
from rawlog.formats.kafka.properties import properties, topic_id
from rawlog.io.storage import Places, Source, exists, refuse_locked
from rawlog.model.errors import OptionError, RawlogError
from rawlog.model.format import File
from rawlog.model.text import counted

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
        return sorted({one.node for one in self if one.node is not None})


def find_disks(roots: Sequence[str], files: Sequence[File]) -> Disks:
    """The log directories among the files of some roots.

    OptionError for directories of several clusters, for two copies of one disk, for one that a running broker uses, and if there are
    none at all.
    """
    found: dict[str, Disk] = {}
    notes: list[str] = []
    places = Places(notes)
    paths = sorted({path for path in map(_disk_path, files) if path is not None})
    for path in paths:
        if not places.is_new(path):
            continue
        found[path], why = read_disk(path)
        notes += [] if why is None else [why]
    notes += [
        f"{root} was named twice: used once" for root in sorted({root for root in roots if roots.count(root) > 1})
    ]
    notes += [f"{root}: no file of a log directory: nothing is used" for root in _empty(roots, paths)]
    if not found:
        raise OptionError(f"{', '.join(roots)}: no log directory of a Kafka broker")
    _refuse_mixed(found.values())
    _refuse_copies(found.values())
    for path in found:
        refuse_locked(path, LOCK)
    notes += _doubled(found, files)
    ids = {one.cluster_id for one in found.values() if one.cluster_id is not None}
    return Disks(found, next(iter(ids), None), notes)


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
    node, own = fields.get("node.id", fields.get("broker.id", "")), fields.get("directory.id")
    try:
        directory = None if own is None else uuid_bytes(own)
    except ValueError:
        directory = None
    disk = Disk(
        path,
        int(node) if node.isdecimal() else None,
        fields.get("cluster.id") or None,
        directory,
        is_zookeeper="node.id" not in fields and fields.get("version") == "0",
    )
    lacks = [what for what, value in (("node", disk.node), ("cluster", disk.cluster_id)) if value is None]
    return disk, f"{path}: {META} does not name its {' and '.join(lacks)}" if lacks else None


def _disk_path(file: File) -> str | None:
    """The log directory that a file is in; None if nothing says that it is in one."""
    place = file.place
    if place.topic is not None and place.partition is not None and place.group is not None:
        return split(place.group)[0]
    folder, name = split(file.path)
    is_top = file.format in AT_TOP or name in (META, "bootstrap.checkpoint")
    return folder if is_top and directory_place(folder).topic is None else None


def _empty(roots: Iterable[str], paths: Collection[str]) -> Iterator[str]:
    """The roots that are not in, at or around a log directory."""
    for root in dict.fromkeys(roots):
        base = root.rstrip("/")
        if not any(f"{path}/".startswith(f"{base}/") or f"{base}/".startswith(f"{path}/") for path in paths):
            yield root


def _refuse_mixed(disks: Iterable[Disk]) -> None:
    by_cluster: dict[str, list[str]] = {}
    for one in disks:
        if one.cluster_id is not None:
            by_cluster.setdefault(one.cluster_id, []).append(one.path)
    if len(by_cluster) > 1:
        parts = "; ".join(f"cluster {name}: {', '.join(paths)}" for name, paths in sorted(by_cluster.items()))
        raise OptionError(f"the directories are of {len(by_cluster)} clusters: {parts}. Name those of one cluster")


def _refuse_copies(disks: Iterable[Disk]) -> None:
    by_id: dict[bytes, str] = {}
    for one in disks:
        if one.directory_id is None:
            continue
        if one.directory_id in by_id:
            raise OptionError(
                f"{by_id[one.directory_id]} and {one.path} are copies of one disk (directory.id "
                f"{uuid_text(one.directory_id)}): name one of them"
            )
        by_id[one.directory_id] = one.path


def _doubled(disks: Mapping[str, Disk], files: Sequence[File]) -> Iterator[str]:
    """A note on every two disks of one node that have the same partition, which no broker would start on."""
    seen: dict[tuple[int, str], str] = {}
    noted: set[tuple[str, str]] = set()
    for group in sorted({file.place.group for file in files if file.place.group is not None}):
        path, name = split(group)
        disk = disks.get(path)
        if disk is None or disk.node is None or name == METADATA_DIRECTORY:
            continue
        other = seen.setdefault((disk.node, name), path)
        if other != path and (other, path) not in noted:
            noted.add((other, path))
            yield f"{other} and {path} are both of node {disk.node} and both have {name}: perhaps copies of one disk"


# Disks that do not say whose they are ------------------------------------------------------------------------------------


def infer_nodes(disks: Disks, state: State, partitions: Mapping[str, Iterable[tuple[bytes | None, str, int]]]) -> None:
    """Give disks without a readable node the only one that can have them, where the cluster's metadata tells; each is noted.

    `partitions` are (topic id, topic, partition) of each disk, by path.
    """
    for disk in list(disks):
        if disk.node is not None:
            continue
        there = [key for key in partitions.get(disk.path, ()) if key[1] != METADATA_TOPIC]
        possible = _possible_nodes(disks, state, there)
        if len(possible) == 1:
            [node] = possible
            disks.by_path[disk.path] = replace(disk, node=node, is_inferred=True)
            disks.notes.append(
                f"{disk.path}: taken for a disk of node {node}, the only one that can have its partitions"
            )
        else:
            many = f"nodes {', '.join(map(str, sorted(possible)))} can" if possible else "no node of the cluster can"
            disks.notes.append(
                f"{disk.path}: its broker is not known; {many} have its {counted(len(there), 'partition')}"
            )


def _possible_nodes(disks: Disks, state: State, there: Sequence[tuple[bytes | None, str, int]]) -> set[int]:
    """The nodes that should have these partitions on a disk that is not among the known ones."""
    known = {one.directory_id for one in disks if one.directory_id is not None}
    possible: set[int] | None = None
    for own, topic, number in there:
        key = own if own is not None else state.topic_ids.get(topic)
        found = state.topics.get(key) if key is not None else None
        partition = found.partitions.get(number) if found is not None else None
        if partition is None:
            continue
        pairs = zip(partition["replicas"], partition["directories"], strict=False)
        nodes = {node for node, directory in pairs if directory in DIRECTORIES or directory not in known}
        possible = nodes if possible is None else possible & nodes
    complete = {node for node, broker in state.brokers.items() if broker["logDirs"] and set(broker["logDirs"]) <= known}
    return (set(state.brokers) if possible is None else possible) - complete


# ----------------------------------------------------------------------------------------------------------------------
# The partitions on disk compared with those the cluster knows: strays, and what is missing.


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
