"""The log directories of nodes: whose each of them is, what is in it, and what a broker would do that starts on it.


`predictions` is about the log of one partition, `startups` about the log directories of each node: who they are, what the metadata log
in them says of their partitions, and names at which a broker ends. Which directories a broker is given, its roles and where its
`metadata.log.dir` is, are settings that no directory holds: the directories of one node are taken to be all that it has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from rawlog.formats.kafka.checkpoints import HIGH_WATERMARK, LOG_START, RECOVERY_POINT, is_written, offsets_in, parse
from rawlog.formats.kafka.epochs import parse_epochs
from rawlog.formats.kafka.internal.codec import uuid_bytes, uuid_text
from rawlog.formats.kafka.log.heads import heads
from rawlog.formats.kafka.log.segment import scan
from rawlog.formats.kafka.partition.identity import (
    BOOTSTRAP,
    META,
    METADATA_DIRECTORY,
    NO_DIRECTORY,
    Assignments,
    End,
    assignments_in,
    parent_of,
    sound_end,
    trusted_end,
)
from rawlog.formats.kafka.partition.survey import SegmentFold
from rawlog.formats.kafka.partition.writer import METADATA
from rawlog.formats.kafka.paths import (
    EPOCHS,
    MARK,
    METADATA_TOPIC,
    OFFSET_CHECKPOINTS,
    REMOTE_CACHE,
    PartitionName,
    partition_name,
    split,
)
from rawlog.formats.kafka.texts import check_meta, parse_quorum, properties, topic_id
from rawlog.io.storage import Source, exists, folders_in, is_remote, listing
from rawlog.kernels import byte_view
from rawlog.model.errors import AccessError, RawlogError
from rawlog.model.finding import Effect, Prediction, Startup
from rawlog.model.format import File
from rawlog.model.store import Store
from rawlog.model.text import counted, missing_text, whole_number

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
        return whole_number(number)

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
    def is_counted(self) -> bool:
        """Whether a checkpoint lists all partitions that its broker had: it was stopped cleanly, and wrote one then."""
        return self.is_marked and any(is_written(self.path, name) for name in COUNTING)

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
class NodeDirectories:
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


def node_of(path: str) -> NodeDirectories:
    """A node by one of its log directories alone."""
    meta = f"{path}/{META}"
    return NodeDirectories((LogDirectory(path, _read_meta(meta) if exists(meta) else None),))


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


def nodes(files: Sequence[File]) -> list[NodeDirectories]:
    """The nodes of the log directories among some files; computed once."""
    return Store.of(files).share(_nodes)


def _nodes(store: Store) -> list[NodeDirectories]:
    by_node: dict[object, list[LogDirectory]] = {}
    for directory in _directories(store):
        is_known = directory.is_identified and directory.cluster is not None and directory.node is not None
        key = (directory.cluster, directory.node) if is_known else directory.path
        by_node.setdefault(key, []).append(directory)
    if len(by_node) > 1:
        _adopt(by_node)
    return [NodeDirectories(tuple(directories)) for directories in by_node.values()]


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


# ----------------------------------------------------------------------------------------------------------------------
# Partitions that should be in a log directory and are not: decided here for `verify`, `verify --complete`, `repair` and predictions.
# A partition is expected in a directory whose `recovery-point-offset-checkpoint` or `replication-offset-checkpoint` lists it, and in the
# one that the cluster's metadata assigns it to. Where the metadata names a node and no directory, all directories that the node has
# registered must be here.


#: The checkpoints that a broker writes of the partitions it has, and of no others. (The cleaner's keeps lines of deleted topics.)
COUNTING = (RECOVERY_POINT, HIGH_WATERMARK)
Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class MissingPartition:
    """A partition of which nothing is there: neither a segment nor, unless `has_directory`, its directory.

    The offsets from `first` to before `stop` are those that `checkpoint` counts; none where no checkpoint lists it.
    - `is_expected`: it should be in this directory; otherwise a broker makes it only if this is all the node has.
    - `is_certain`: it was here; otherwise the broker may never have had it, or only a part of the directory was copied.
    - `is_adding`: the cluster is about to add this replica.
    """

    key: Key
    directory: str
    checkpoint: str | None = None
    first: int = 0
    stop: int = 0
    has_directory: bool = False
    is_adding: bool = False
    is_expected: bool = True
    is_certain: bool = True

    @property
    def is_lost(self) -> bool:
        """Whether something that was here is gone."""
        return self.is_expected and self.is_certain and not self.is_adding

    def __str__(self) -> str:
        name, what = split(self.directory)[1], "has no segment" if self.has_directory else "is not here"
        if self.is_adding:
            return f"{name} {what}: the cluster is about to add this replica"
        if self.checkpoint is None and not self.is_certain:
            return f"{name} {what}: the cluster's metadata assigns it to this directory, and its broker had not made it yet"
        if self.checkpoint is None:
            return f"{name} {what}, although the cluster's metadata assigns it to this directory"
        if self.stop <= self.first:
            return f"{name} {what}, although {split(self.checkpoint)[1]} lists it, without records"
        return f"{name} {what}: {missing_text(self.first, self.stop - 1)}, which {split(self.checkpoint)[1]} counts"


def missing_partitions(node: NodeDirectories) -> list[MissingPartition]:
    """The partitions missing in the directories of a node, by path: no segment of them is here."""
    present: set[Key] = set()
    for directory in node.directories:
        filled = _paths_with_segments(directory)
        present |= {key for key, path in directory.loaded.items() if path in filled}
    by_key: dict[Key, MissingPartition] = {}
    for directory in node.directories:
        for missing in (*_missing_by_checkpoint(node, directory, present), *_missing_by_metadata(node, directory)):
            if missing.key not in present:
                by_key.setdefault(missing.key, missing)
    return sorted(by_key.values(), key=lambda partition: partition.directory)


def _missing_by_checkpoint(
    node: NodeDirectories, directory: LogDirectory, present: set[Key]
) -> Iterator[MissingPartition]:
    """What the checkpoints of a directory list. Directories that were copied without what a log directory says of itself are a part of
    one; a partition that a broker has put aside was deleted or moved; one whose topic the cluster does not know any more is gone rightly.
    Without a metadata log only partitions with records count, and none for certain if more are gone than are there: these were copied.
    """
    starts, assignments = offsets_in(directory.path, LOG_START), node.assignments
    stops: dict[Key, tuple[int, str]] = {}
    for name in COUNTING:
        for key, stop in offsets_in(directory.path, name).items():
            stops[key] = max(stops.get(key, (-1, "")), (stop, f"{directory.path}/{name}"))
    is_whole = directory.meta is not None or directory.has_metadata
    is_part = assignments is None and len(stops.keys() - present) > len(stops.keys() & present)
    for key, (stop, checkpoint) in stops.items():
        topic, number = key
        has_directory = key in directory.loaded
        if topic == METADATA_TOPIC or "/" in topic or key in directory.aside:
            continue
        if not has_directory and (not is_whole or (assignments is not None and not _is_replica(node, key))):
            continue
        first = max(starts.get(key, 0), 0)
        path = f"{directory.path}/{topic}-{number}"
        is_certain = has_directory or assignments is not None or (stop > first and not is_part)
        is_adding = _is_adding(node, key)
        yield MissingPartition(
            key, path, checkpoint, first, max(stop, first), has_directory, is_adding, is_certain=is_certain
        )


def _missing_by_metadata(node: NodeDirectories, directory: LogDirectory) -> Iterator[MissingPartition]:
    """What the cluster's metadata assigns to a directory. After a clean stop checkpoints list all that the broker had: it had no other."""
    if node.assignments is None or node.id is None:
        return
    futures = {
        (partition.topic, partition.partition)
        for partition in directory.partitions.values()
        if partition.state == "future"
    }
    for key, assignment in node.assignments.names.items():
        if node.id not in assignment.replicas or key in futures:
            continue
        directory_id = assignment.directory_on(node.id)
        if directory_id is None or directory_id == directory.id:
            path, is_adding = f"{directory.path}/{key[0]}-{key[1]}", _is_adding(node, key)
            is_expected = directory_id is not None or node.is_complete
            yield MissingPartition(
                key,
                path,
                has_directory=key in directory.loaded,
                is_adding=is_adding,
                is_expected=is_expected,
                is_certain=not directory.is_counted,
            )


def _is_replica(node: NodeDirectories, key: Key) -> bool:
    assert node.assignments is not None
    assignment = node.assignments.names.get(key)
    return assignment is not None and (node.id is None or node.id in assignment.replicas)


def _is_adding(node: NodeDirectories, key: Key) -> bool:
    assignment = None if node.assignments is None else node.assignments.names.get(key)
    return assignment is not None and node.id in assignment.adding


def _paths_with_segments(directory: LogDirectory) -> set[str]:
    """The partition directories of a log directory that have a segment. A bucket is listed once: every listing is a request."""
    if is_remote(directory.path):
        return {split(entry.path)[0] for entry in listing(directory.path) if entry.path.endswith(".log")}
    return {path for path in directory.loaded.values() if has_segment(path)}


def has_segment(directory: str) -> bool:
    """Whether a partition directory has a segment that a broker would load."""
    try:
        return any(split(entry.path)[1].endswith(".log") for entry in listing(directory))
    except AccessError:
        return False


# Would a broker start on this, and what would it do? -----------------------------------------------------------------------------

LARGEST_READ = 64 << 20
QUORUM = "quorum-state"
METADATA_VERSION = b"metadata.version"
STRAY = "a broker renames it to -stray"

# The log of one partition ------------------------------------------------------------------------------------------------


def predictions(files: Sequence[File]) -> list[Prediction]:
    """What a broker would do with the log of a partition: cut it, empty it, take it for shorter than it is, or not start."""
    store = Store.of(files)
    place = store[0].place
    if place.topic is None or place.group is None or place.remote or any(file.place.state for file in store[:1]):
        return []
    if is_remote(place.group):
        return []
    return store.share(_predictions)


def _predictions(store: Store) -> list[Prediction]:
    return list(_Load(store).predictions())


class _Load:
    """A broker that loads one partition directory."""

    def __init__(self, store: Store) -> None:
        self.store, self.path = store, store.path
        self.name, self.folder = split(store.path)[1], parent_of(store.path)
        place = store[0].place
        self.key = (str(place.topic), int(place.partition or 0))
        self.is_metadata = place.topic == METADATA_TOPIC
        logs = [
            file for file in store if file.format == "kafka.log" and file.place.state is None and file.problem is None
        ]
        self.segments = sorted(logs, key=lambda file: file.place.start_offset or 0)
        #: A controller checks its whole log at every start.
        self.is_clean = not self.is_metadata and exists(f"{self.folder}/{MARK}")
        self.start = 0 if self.is_metadata else offsets_in(self.folder, LOG_START).get(self.key, 0)

    def predictions(self) -> Iterator[Prediction]:
        if not self.segments:
            if not self.is_metadata:
                message = f"{self.name} has no segment: a broker makes an empty log"
                yield Prediction(Effect.EMPTIES, self.path, message, max(self.start, 0))
            return
        if self._damaged_abort() is not None:
            yield Prediction(Effect.REFUSES, self.path, f"{self.name}: {self._damaged_abort()}")
            return
        predictions, end = self._recover()
        yield from predictions
        if any(prediction.effect is Effect.REFUSES for prediction in predictions):
            return
        if end < self.start:
            message = f"{self.name} ends at offset {end}, and {LOG_START} says that it starts at {self.start}: a broker deletes all of it"
            yield Prediction(Effect.EMPTIES, self.path, message, self.start)

    def _recover(self) -> tuple[list[Prediction], int]:
        """The effects of loading on the segments, and the end of the log after it."""
        first, predictions = self._first_unflushed(), list[Prediction]()
        end = self.segments[-1].place.start_offset or 0
        for number, segment in enumerate(self.segments):
            is_last = number == len(self.segments) - 1
            base = segment.place.start_offset or 0
            index = self.store.find("kafka.index", base)
            is_checked = index is None or (not self.is_clean and number >= first)
            if not is_checked:
                if is_last:
                    more, end = self._trust_index(segment, index)
                    predictions += more
                continue
            if self._is_misnamed(segment):
                message = f"{self.name}: {split(segment.path)[1]} holds offsets before {base}, the one in its name: a broker ends there"
                return [Prediction(Effect.REFUSES, self.path, message)], base
            reached = self._sound_end(segment)
            cut = segment.size - reached.position
            end = base if reached.offset is None else reached.offset
            if cut and (not self.is_clean or is_last):
                later = 0 if self.is_clean else len(self.segments) - number - 1
                message = f"{self.name} is cut at offset {end}: no sound batch in {counted(cut, 'byte')} after it"
                message += f", and {counted(later, 'later segment')} deleted" if later else ""
                predictions.append(Prediction(Effect.CUTS, self.path, message, end))
                if not self.is_clean:
                    break
        return predictions, end

    def _first_unflushed(self) -> int:
        """The number of the segment that has the recovery point: recovery begins with it."""
        point = 0 if self.is_metadata else offsets_in(self.folder, RECOVERY_POINT).get(self.key, 0)
        starts = [segment.place.start_offset or 0 for segment in self.segments]
        return max((number for number, start in enumerate(starts) if start <= point), default=0)

    def _trust_index(self, segment: File, index: File | None) -> tuple[list[Prediction], int]:
        """The last segment of a log that is not checked: its end is found from the last entry of its index on."""
        base, sound = segment.place.start_offset or 0, self._sound_end(segment)
        fold = self.store.summaries.get(segment.path)
        if sound.position == segment.size and isinstance(fold, SegmentFold) and "index" not in fold.marks:
            return [], base if sound.offset is None else sound.offset
        reached = trusted_end(segment, index)
        if reached.is_fatal:
            message = (
                f"{self.name}: byte {reached.position:,} of {split(segment.path)[1]} is not a batch, and {MARK} says that the broker "
                "stopped cleanly: "
                "a broker does not start; without that file it cuts the log there"
            )
            return [Prediction(Effect.REFUSES, self.path, message)], base
        end = base if reached.offset is None else reached.offset
        if reached.offset is None and sound.offset is not None:
            message = (
                f"{self.name}: records {base:,} to {sound.offset - 1:,} are there and not served: the offset index points at no batch, "
                f"so a broker ends the log at offset {base:,}"
            )
            return [Prediction(Effect.HIDES, self.path, message, base)], base
        if reached.position < segment.size:
            left = segment.size - reached.position
            message = f"{self.name}: {counted(left, 'byte')} after offset {end - 1} stay, and new records are appended after them"
            return [Prediction(Effect.KEEPS, self.path, message, end)], end
        return [], end

    def _sound_end(self, segment: File) -> End:
        fold = self.store.summaries.get(segment.path)
        if not isinstance(fold, SegmentFold):
            return sound_end(segment)
        return End(fold.sound_position, fold.sound_offset)

    def _is_misnamed(self, segment: File) -> bool:
        fold = self.store.summaries.get(segment.path)
        first = fold.first if isinstance(fold, SegmentFold) else None
        return first is not None and first.last < (segment.place.start_offset or 0)

    def _damaged_abort(self) -> str | None:
        """A transaction index of a version that does not exist."""
        for file in self.store:
            if file.format == "kafka.txnindex" and file.place.state is None and file.size and file.problem is None:
                with Source(file.path) as source:
                    if source.read(0, 1) != b"\0":
                        return f"{split(file.path)[1]} has an unknown version: a broker does not start"
        return None


# The directories of a node -----------------------------------------------------------------------------------------------


def startups(files: Sequence[File]) -> list[Startup]:
    """For the log directories of each node, what a broker would do besides what it does with single logs. No broker starts on a bucket."""
    local = [file for file in files if not is_remote(file.path)]
    return [
        Startup(
            "kafka", tuple(directory.path for directory in node.directories), node.id, tuple(_node_predictions(node))
        )
        for node in nodes(local)
    ]


def _node_predictions(node: NodeDirectories) -> Iterator[Prediction]:
    yield from _predict_identity(node)
    yield from _predict_names(node)
    for directory in node.directories:
        yield from _predict_texts(node, directory)
    if not node.is_zookeeper and all(directory.meta is not None for directory in node.directories):
        yield from _predict_bootstrap(node)
        yield from _predict_metadata(node)
    for directory in node.directories:
        logs = len(directory.loaded)
        if not directory.is_marked and logs:
            message = f"no {MARK}: a broker checks {counted(logs, 'log')} from their recovery points on"
            yield Prediction(Effect.RECOVERS, directory.path, message)


def _predict_identity(node: NodeDirectories) -> Iterator[Prediction]:
    """Whether a broker accepts who the directories are."""
    ids = Counter(directory.id for directory in node.directories if directory.id is not None)
    for directory in node.directories:
        if directory.meta is None:
            if directory.is_kraft:
                yield Prediction(Effect.REFUSES, directory.path, f"no {META}: a broker does not start")
        elif not directory.is_identified:
            # Without a version it is taken for one of ZooKeeper's, and is read.
            ends = node.fails_at(directory) or directory.meta.get("version") != "1"
            what = "does not start" if ends else "starts without this directory"
            message = f"{META} lacks version, cluster.id or node.id: a broker {what}"
            yield Prediction(Effect.REFUSES if ends else Effect.OFFLINE, f"{directory.path}/{META}", message)
        elif directory.id is not None and ids[directory.id] > 1:
            message = f"another directory has the same directory.id {(directory.meta or {}).get('directory.id')}: a broker does not start"
            yield Prediction(Effect.REFUSES, f"{directory.path}/{META}", message)
    for directory in [directory for directory in node.directories if directory.has_metadata][1:]:
        message = f"a second {METADATA_DIRECTORY}: a broker does not start"
        yield Prediction(Effect.REFUSES, f"{directory.path}/{METADATA_DIRECTORY}", message)


def _predict_names(node: NodeDirectories) -> Iterator[Prediction]:
    """Directories that a broker does not know, or knows twice."""
    places: dict[tuple[str, int], str] = {}
    for directory in node.directories:
        for name in directory.unknown_folders:
            message = f"{name} is not a valid name of a partition directory: a broker does not start"
            yield Prediction(Effect.REFUSES, f"{directory.path}/{name}", message)
        for key, path in directory.loaded.items():
            if key in places:
                message = f"{split(path)[1]} is also in {split(places[key])[0]}: a broker does not start"
                yield Prediction(Effect.REFUSES, path, message)
            places.setdefault(key, path)


def _predict_texts(node: NodeDirectories, directory: LogDirectory) -> Iterator[Prediction]:
    """Small files that a broker cannot read: it then stops using the directory, and ends if that has the metadata."""
    ends = node.fails_at(directory)
    effect = Effect.REFUSES if ends else Effect.OFFLINE
    what = "a broker does not start" if ends else "a broker starts without this directory"
    for name in OFFSET_CHECKPOINTS:
        if not _is_readable(f"{directory.path}/{name}", parse):
            yield Prediction(effect, f"{directory.path}/{name}", f"{name} cannot be read: {what}")
    for path in directory.loaded.values():
        if not _is_readable(f"{path}/{EPOCHS}", _check_epochs):
            yield Prediction(effect, path, f"{split(path)[1]}: {EPOCHS} cannot be read: {what}")
        if not _is_readable(f"{path}/{METADATA}", topic_id):
            if _is_readable(f"{path}/{METADATA}", _check_not_empty):
                yield Prediction(effect, path, f"{split(path)[1]}: {METADATA} cannot be read: {what}")
            else:
                message = f"{split(path)[1]}: {METADATA} is empty: a broker does not start"
                yield Prediction(Effect.REFUSES, path, message)
    path = f"{directory.path}/{METADATA_DIRECTORY}/{QUORUM}"
    if directory.has_metadata and not _is_readable(path, parse_quorum):
        yield Prediction(Effect.REFUSES, path, f"{QUORUM} cannot be read: a broker does not start")


def _is_readable(path: str, check: object) -> bool:
    """Whether a text can be parsed, or is not there at all."""
    assert callable(check)
    try:
        with Source(path) as source:
            check(source.read(0, min(source.size, LARGEST_READ)))
    except AccessError:
        return not exists(path)
    except (RawlogError, ValueError, KeyError):
        return False
    return True


def _check_not_empty(data: bytes) -> None:
    if not data:
        raise ValueError("empty")


def _check_epochs(data: bytes) -> None:
    if parse_epochs(data) is None:
        raise ValueError(EPOCHS)


def _predict_bootstrap(node: NodeDirectories) -> Iterator[Prediction]:
    """What a new cluster would start from: it is read at every start, also where there is a metadata log. No checksum is looked at."""
    has_metadata = any(directory.has_metadata for directory in node.directories)
    for directory in node.directories:
        path = f"{directory.path}/{BOOTSTRAP}"
        if directory.has_metadata == has_metadata and not _is_readable(path, _check_bootstrap):
            yield Prediction(Effect.REFUSES, path, f"{BOOTSTRAP} has no metadata.version: a broker does not start")


def _check_bootstrap(data: bytes) -> None:
    """ValueError for bytes that are no batches, or sound batches without the level of the metadata."""
    frames = scan(byte_view(data), 0)
    if frames.status.is_damage or (heads(frames).all_sound and METADATA_VERSION not in data[: frames.reached]):
        raise ValueError(BOOTSTRAP)


def _predict_metadata(node: NodeDirectories) -> Iterator[Prediction]:
    """The effects of the cluster's metadata on partition directories."""
    assignments = node.assignments
    loaded = {key: path for directory in node.directories for key, path in directory.loaded.items()}
    if assignments is None:
        if loaded:
            where = (
                "is not here" if not any(directory.has_metadata for directory in node.directories) else "has no record"
            )
            message = (
                f"{METADATA_DIRECTORY} {where}: unless metadata.log.dir or another controller has it, a broker renames "
                f"{'all ' if len(loaded) > 1 else ''}{counted(len(loaded), 'partition directory', 'partition directories')} to -stray"
            )
            yield Prediction(Effect.RENAMES, node.directories[0].path, message)
        return
    for key, path in loaded.items():
        topic = topic_id_in(path)  # one that cannot be read fails before anything is done with it
        why = _stray_reason(topic, key[1], node, assignments)
        if why is None and topic and assignments.topics.get(topic, key[0]) != key[0]:
            message = f"{split(path)[1]} has the topic id of {assignments.topics[topic]}: a broker does not serve it"
            yield Prediction(Effect.OFFLINE, path, message)
        elif why is not None:
            again = ", and serves an empty partition instead" if _is_assigned_here(key, node, assignments) else ""
            yield Prediction(Effect.RENAMES, path, f"{split(path)[1]}: {why}: {STRAY}{again}")
    for missing in missing_partitions(node):
        if not missing.has_directory and _is_assigned_here(missing.key, node, assignments):
            message = f"{split(missing.directory)[1]} is not here: a broker makes an empty one"
            yield Prediction(Effect.CREATES, missing.directory, message, 0)


def _is_assigned_here(key: tuple[str, int], node: NodeDirectories, assignments: Assignments) -> bool:
    return key in assignments.names and node.id in assignments.names[key].replicas


def _stray_reason(topic: bytes | None, number: int, node: NodeDirectories, assignments: Assignments) -> str | None:
    """Why a broker takes a partition directory for a stray; None if it does not."""
    if topic is None:
        return f"no {METADATA}"
    partition = assignments.partitions.get(topic, {}).get(number)
    if not topic:
        return None
    if partition is None:
        return "the cluster has no such partition with its topic id"
    if node.id not in partition.replicas:
        return f"its replicas are on {list(partition.replicas)}, not on {node.id}"
    return None
