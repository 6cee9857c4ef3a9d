"""Would a broker start on this, and what would it do? Predicted from the files alone, and compared with real brokers in `tests/startup`.

`predictions` is about the log of one partition, `startups` about the log directories of each node: who they are, what the metadata log
in them says of their partitions, and names at which a broker ends. Which directories a broker is given, its roles and where its
`metadata.log.dir` is, are settings that no directory holds: the directories of one node are taken to be all that it has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rawlog.formats.kafka.checkpoints import LOG_START, RECOVERY_POINT, offsets_in, parse
from rawlog.formats.kafka.epochs import parse_epochs
from rawlog.formats.kafka.log.heads import heads
from rawlog.formats.kafka.log.segment import scan
from rawlog.formats.kafka.partition.identity import (
    BOOTSTRAP,
    META,
    METADATA_DIRECTORY,
    Assignments,
    End,
    parent_of,
    sound_end,
    trusted_end,
)
from rawlog.formats.kafka.partition.log_directories import (
    LogDirectory,
    NodeDirectories,
    missing_partitions,
    nodes,
    topic_id_in,
)
from rawlog.formats.kafka.partition.survey import SegmentFold
from rawlog.formats.kafka.partition.writer import METADATA
from rawlog.formats.kafka.paths import EPOCHS, MARK, METADATA_TOPIC, OFFSET_CHECKPOINTS, split
from rawlog.formats.kafka.properties import parse_quorum, topic_id
from rawlog.io.storage import Source, exists, is_remote
from rawlog.kernels import byte_view
from rawlog.model.errors import AccessError, RawlogError
from rawlog.model.finding import Effect, Prediction, Startup
from rawlog.model.format import File
from rawlog.model.store import Store
from rawlog.model.text import counted

LARGEST_TEXT = 64 << 20
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
            check(source.read(0, min(source.size, LARGEST_TEXT)))
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
            again = ", and serves an empty partition instead" if _is_replica(key, node, assignments) else ""
            yield Prediction(Effect.RENAMES, path, f"{split(path)[1]}: {why}: {STRAY}{again}")
    for missing in missing_partitions(node):
        if not missing.has_directory and _is_replica(missing.key, node, assignments):
            message = f"{split(missing.directory)[1]} is not here: a broker makes an empty one"
            yield Prediction(Effect.CREATES, missing.directory, message, 0)


def _is_replica(key: tuple[str, int], node: NodeDirectories, assignments: Assignments) -> bool:
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
