"""What other files know of the beginning, the end and the holes of a log: evidence of records that no segment has. All verbs go by it.

At the end: the high watermark and the recovery point, snapshots of producers, indexes without their segment. At the beginning retention
explains what is missing, unless something contradicts it: an index without its segment, which retention would have deleted with it; a log
start or a first leader epoch before the first segment. A broker that crashed shortly after it deleted a segment may leave the last two as
they were; one that stopped cleanly does not. A snapshot of producers contradicts nothing: those of a stop inside of a segment stay when
retention deletes that segment.

Inside of a log a hole is a loss, or compaction made it. Where nothing tells the cleanup policy of the topic, these show a loss: an index
or a snapshot of producers without its segment, which compaction would have deleted with it; an index entry for an offset that is missing,
which it would have left out; sequence numbers of producers that are broken; a transaction without its marker. Topics with remote storage
are never compacted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rawlog.formats.kafka.checkpoints import CLEANER, HIGH_WATERMARK, LOG_START, RECOVERY_POINT, offsets_in
from rawlog.formats.kafka.entries import scan_padded
from rawlog.formats.kafka.log.heads import Heads, heads
from rawlog.formats.kafka.log.layouts import INDEX_ENTRY, TIME_INDEX_ENTRY, Attributes
from rawlog.formats.kafka.partition.extents import bytes_of
from rawlog.formats.kafka.partition.identity import is_known_topic, is_tiered_topic, parent_of
from rawlog.formats.kafka.partition.leader_epochs import epochs_in
from rawlog.formats.kafka.partition.log_directories import LogDirectory, Node
from rawlog.formats.kafka.partition.state import Producers
from rawlog.formats.kafka.paths import MARK, METADATA_TOPIC, split
from rawlog.io.storage import exists, is_remote, listing
from rawlog.io.walk import walk
from rawlog.model.errors import AccessError
from rawlog.model.format import File

INDEXES = ("kafka.index", "kafka.timeindex", "kafka.txnindex")


class Trace(NamedTuple):
    """An offset at the start or the end of a log, and the evidence for it. `is_certain`: nothing else explains it. `is_remote`: the records
    are in remote storage.
    """

    offset: int
    reason: str
    is_certain: bool = True
    is_remote: bool = False

    @property
    def text(self) -> str:
        """The evidence, and another explanation of it."""
        return (
            self.reason if self.is_certain else f"{self.reason}; lost, or deleted by retention shortly before a crash"
        )


def first_trace(files: Sequence[File]) -> Trace | None:
    """The start of a partition's log, if it is before its first segment and retention does not explain it."""
    segments = [
        file for file in files if file.format == "kafka.log" and file.place.state is None and file.problem is None
    ]
    place = segments[0].place if segments else None
    if place is None or place.topic in (None, METADATA_TOPIC) or place.partition is None or place.group is None:
        return None
    first = min(file.place.start_offset or 0 for file in segments)
    folder, traces = parent_of(place.group), list[Trace]()
    # A broker renames the log first: a crash in between leaves the index.
    deleted = {file.place.start_offset for file in files if file.place.state == "deleted"}
    for file in files:
        base = file.place.start_offset or 0
        if file.format in INDEXES and file.place.state is None and base < first and base not in deleted:
            traces.append(Trace(base, f"{split(file.path)[1]} is there without its segment"))
    stated = {}
    start, epochs = offsets_in(folder, LOG_START).get((str(place.topic), place.partition)), epochs_in(files)
    if start is not None and start < first:
        stated[max(start, 0)] = f"{LOG_START} says that the log begins there"
    if epochs is not None and int(epochs[0, 1]) < first:
        stated[max(int(epochs[0, 1]), 0)] = f"the first leader epoch, {int(epochs[0, 0])}, begins there"
    if not traces and not stated:
        return None
    is_stopped = bool(stated) and exists(f"{folder}/{MARK}")
    traces += [Trace(offset, reason, is_stopped) for offset, reason in stated.items()]
    if is_tiered_topic(folder, str(place.topic)):
        return Trace(min(traces).offset, "remote storage has them", is_remote=True)
    return min(traces, key=lambda trace: (trace.offset, not trace.is_certain))


def last_trace(files: Sequence[File]) -> Trace:
    """How far a partition's log had reached, by anything but its batches: the offset after the last one; 0 if nothing says it."""
    segments = [file for file in files if file.format == "kafka.log" and file.place.state is None]
    names = {file.place.start_offset or 0 for file in segments}
    traces = [Trace(0, "")]
    for file in files:
        base = file.place.start_offset or 0
        if file.place.state is not None:
            continue
        # One of the same name as a segment may have been renamed with it.
        if file.format == "kafka.snapshot" and base not in names:
            traces.append(Trace(base, "a snapshot of the producers was taken after them"))
        elif file.format in INDEXES[:2] and base > max(names, default=0):
            traces.append(Trace(base + _count_indexed(file), f"{split(file.path)[1]} is there without its segment"))
    place = segments[0].place if segments else None
    if place is not None and place.topic is not None and place.partition is not None and place.group is not None:
        for name in (HIGH_WATERMARK, RECOVERY_POINT):
            offset = offsets_in(parent_of(place.group), name).get((place.topic, place.partition), 0)
            traces.append(Trace(offset, f"{name} counts them"))
    return max(traces, key=lambda trace: trace.offset)


def stated_end(files: Sequence[File]) -> int | None:
    """Where a log ends by what a clean stop leaves: a snapshot of the producers at its end, or the checkpoints next to the mark of the
    stop. What a crash leaves may be older than the end.
    """
    segments = [file for file in files if file.format == "kafka.log" and file.place.state is None]
    if not segments:
        return None
    last_name = max(segment.place.start_offset or 0 for segment in segments)
    snapshots = [
        file.place.start_offset or 0 for file in files if file.format == "kafka.snapshot" and not file.place.state
    ]
    ends = [offset for offset in snapshots if offset > last_name]
    place = segments[0].place
    if place.topic is not None and place.partition is not None and place.group is not None:
        folder = parent_of(place.group)
        checkpoints = (offsets_in(folder, name) for name in (HIGH_WATERMARK, RECOVERY_POINT))
        stated = [offsets.get((place.topic, place.partition), 0) for offsets in checkpoints]
        # In a bucket each question is a request: the mark matters only where a checkpoint says something.
        if (end := max(stated)) > last_name and exists(f"{folder}/{MARK}"):
            ends.append(end)
    return max(ends, default=None)


def index_traces(files: Sequence[File], segments: Collection[int]) -> list[int]:
    """Offsets of indexes whose segment is missing or empty: compaction would have deleted or rebuilt them. `segments` are the names of the
    segments with batches.
    """
    deleted = {file.place.start_offset for file in files if file.place.state == "deleted"}
    offsets = []
    for file in files:
        base = file.place.start_offset or 0
        if file.format in INDEXES and file.place.state is None and base not in segments and base not in deleted:
            is_empty = any(other.format == "kafka.log" and other.place.start_offset == base for other in files)
            if not is_empty or (file.format in INDEXES[:2] and _count_indexed(file)):
                offsets.append(base)
    return offsets


def are_undecided(files: Sequence[File], runs: NDArray[np.int64], *, has_damage: bool = False) -> NDArray[np.bool_]:
    """Of runs of offsets, first and last, that are missing inside of a log: whether nothing tells if compaction took them out, or they are
    lost. To be asked of a topic that nothing shows to be compacted. The log is read again, unless the other files decide, or it
    `has_damage`, which breaks the sequences of producers too.
    """
    named = named_offsets(files) if len(runs) else None
    if named is None:
        return np.zeros(len(runs), np.bool_)
    unnamed: NDArray[np.bool_] = np.searchsorted(named, runs[:, 0]) == np.searchsorted(named, runs[:, 1], side="right")
    segments = [file for file in files if file.format == "kafka.log" and _is_loaded(file)]
    is_open = bool(unnamed.any()) and (has_damage or not _is_broken(segments))
    return unnamed & is_open


def named_offsets(files: Sequence[File]) -> NDArray[np.int64] | None:
    """The offsets that indexes and snapshots of producers name, in order: compaction did not remove these. None where the policy of the
    topic is known, or no segment is here: then they decide nothing.
    """
    files = [file for file in files if _is_loaded(file)]
    segments = [file for file in files if file.format == "kafka.log"]
    if not segments or any(file.place.remote for file in files):
        return None
    place = segments[0].place
    if place.topic == METADATA_TOPIC:  # no cleaner works on it
        return None
    if place.topic is not None and place.partition is not None and place.group is not None:
        folder = parent_of(place.group)
        # Where the cleaner has a line, it has not come further than that.
        if (place.topic, place.partition) in offsets_in(folder, CLEANER) or is_known_topic(folder, place.topic):
            return None
    bases = {file.place.start_offset or 0 for file in segments}
    named = [np.empty(0, np.int64)]
    for file in files:
        base = file.place.start_offset or 0
        if file.format in (*INDEXES, "kafka.snapshot") and base not in bases:
            named.append(np.array([base], np.int64))
        if file.format in INDEXES[:2]:
            named.append(base + _entries(file))
    return np.unique(np.concatenate(named))


def _is_loaded(file: File) -> bool:
    return file.place.state is None and file.problem is None


def _is_broken(segments: Sequence[File]) -> bool:
    """Whether the sequence numbers of a producer do not follow one another, or the marker of a transaction is missing."""
    from rawlog.formats.kafka import LOG

    producers, unmarked = Producers(), dict[int, int]()
    for segment in sorted(segments, key=lambda segment: segment.place.start_offset or 0):
        for frames in walk(segment, LOG, errors="skip"):
            head = heads(frames, check_crc=False)
            producers.add(frames, head, segment.path)
            if _lacks_marker(head, unmarked):
                return True
    return any(oddity.code == "sequence" for oddity in producers.finish().oddities)


def _lacks_marker(head: Heads, unmarked: dict[int, int]) -> bool:
    """Whether a producer goes on in a later epoch, and the transaction before has no marker: compaction keeps the marker as long as it
    keeps a record of the transaction. `unmarked` has the epochs of the transactions without one so far, by producer.
    """
    chosen = np.flatnonzero(head.has(Attributes.TRANSACTIONAL) & head.sound)
    order = chosen[np.argsort(head["producer_id"][chosen], kind="stable")]
    ids, epochs, is_data = (
        head["producer_id"][order],
        head["producer_epoch"][order],
        ~head.has(Attributes.CONTROL)[order],
    )
    is_same = ids[1:] == ids[:-1]
    if (is_same & is_data[1:] & is_data[:-1] & (epochs[1:] > epochs[:-1])).any():
        return True
    firsts = np.concatenate(([True], ~is_same))[: ids.size] & is_data
    for number, epoch in zip(ids[firsts].tolist(), epochs[firsts].tolist(), strict=True):
        if unmarked.get(number, epoch) < epoch:
            return True
    lasts = np.concatenate((~is_same, [True]))[: ids.size]
    for number, epoch, is_open in zip(*(column[lasts].tolist() for column in (ids, epochs, is_data)), strict=True):
        unmarked.pop(number, None)
        if is_open:
            unmarked[number] = epoch
    return False


def _entries(index: File) -> NDArray[np.int64]:
    """The relative offsets in an index or time index; none if they do not rise."""
    layout = INDEX_ENTRY if index.format == "kafka.index" else TIME_INDEX_ENTRY
    data = bytes_of(index)
    frames = scan_padded(data, layout, False)
    entries = layout.take(data, frames.starts)["relative_offset"].astype(np.int64)
    is_rising = entries.size and entries[0] >= 0 and not (np.diff(entries) < 0).any()
    return entries if is_rising else entries[:0]


def _count_indexed(index: File) -> int:
    """The least number of offsets in a segment, by its index; 0 if the index is empty or its entries do not rise."""
    return int(_entries(index).max(initial=-1)) + 1


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
        counted = split(self.checkpoint)[1]
        return f"{name} {what}: offsets {self.first} to {self.stop - 1} are missing, which {counted} counts"


def missing_partitions(node: Node) -> list[MissingPartition]:
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


def _missing_by_checkpoint(node: Node, directory: LogDirectory, present: set[Key]) -> Iterator[MissingPartition]:
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


def _missing_by_metadata(node: Node, directory: LogDirectory) -> Iterator[MissingPartition]:
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
                is_certain=not directory.is_marked,
            )


def _is_replica(node: Node, key: Key) -> bool:
    assert node.assignments is not None
    assignment = node.assignments.names.get(key)
    return assignment is not None and (node.id is None or node.id in assignment.replicas)


def _is_adding(node: Node, key: Key) -> bool:
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
