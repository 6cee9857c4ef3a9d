"""What other files know of the beginning, the end and the holes of a log: evidence of records that no segment has. All verbs go by it.

At the end: the high watermark and the recovery point, snapshots of producers, indexes without their segment. At the beginning retention
explains what is missing, unless something contradicts it: an index without its segment, which retention would have deleted with it; a log
start or a first leader epoch before the first segment. A broker that crashed shortly after it deleted a segment may leave the last two as
they were; one that stopped cleanly does not. A snapshot of producers contradicts nothing: those of a stop inside of a segment stay when
retention deletes that segment.

Inside of a log a hole is a loss, or compaction made it. Where nothing tells the cleanup policy of the topic, these show a loss: an index
or a snapshot of producers without its segment, which compaction would have deleted with it; an index entry for an offset that is missing,
which it would have left out; a transaction without its marker; of producers that number their records one without a key before the hole,
or a key twice in batches of several records: compaction takes out both. The numbers themselves show nothing, since it takes out whole
batches. Topics with remote storage are never compacted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rawlog.formats.kafka.checkpoints import CLEANER, HIGH_WATERMARK, LOG_START, RECOVERY_POINT, offsets_in
from rawlog.formats.kafka.entries import scan_padded
from rawlog.formats.kafka.log.heads import Heads, heads
from rawlog.formats.kafka.log.layouts import INDEX_ENTRY, NONE, TIME_INDEX_ENTRY, Attributes
from rawlog.formats.kafka.partition.identity import is_compacted_topic, is_known_topic, is_tiered_topic, parent_of
from rawlog.formats.kafka.partition.segment_outline import HUGE, bytes_of, epochs_in
from rawlog.formats.kafka.paths import INTERNAL, LARGEST_OFFSET, MARK, METADATA_TOPIC, split
from rawlog.io.storage import exists
from rawlog.io.walk import walk
from rawlog.model.errors import DataError
from rawlog.model.format import MAX_DECOMPRESSED, MAX_HEADERS, File
from rawlog.model.frames import Frames

LOOK = 16 << 20
"""So many bytes of a log are searched for records that compaction would have taken out."""
INDEXES = ("kafka.index", "kafka.timeindex", "kafka.txnindex")
COMPACTED = frozenset(INTERNAL.values()) - {INTERNAL["kafka.remote"]}
"""The internal topics that brokers compact."""


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
            end = min(base + _count_indexed(file), LARGEST_OFFSET)
            traces.append(Trace(end, f"{split(file.path)[1]} is there without its segment"))
    # A leader notes where its epoch begins, at the latest with its first batch.
    if (epochs := epochs_in(files)) is not None:
        epoch, start = epochs[-1].tolist()
        traces.append(Trace(start, f"leader epoch {epoch} begins after them"))
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


def index_traces(files: Sequence[File]) -> list[int]:
    """Offsets of indexes whose segment is missing or empty: compaction would have deleted or rebuilt them."""
    deleted = {file.place.start_offset for file in files if file.place.state == "deleted"}
    sizes = {
        file.place.start_offset or 0: file.size
        for file in files
        if file.format == "kafka.log" and file.place.state is None
    }
    offsets = []
    for file in files:
        base = file.place.start_offset or 0
        if file.format not in INDEXES or file.place.state is not None or sizes.get(base) or base in deleted:
            continue
        if base not in sizes or (file.format in INDEXES[:2] and _count_indexed(file)):
            offsets.append(base)
    return sorted(offsets)


class GapVerdicts(NamedTuple):
    """Of runs of missing offsets: which compaction explains, and of which nothing tells whether it does. The others are lost."""

    compacted: NDArray[np.bool_]
    undecided: NDArray[np.bool_]


def judge_gaps(
    files: Sequence[File], runs: NDArray[np.int64], cleaned: int = NONE, *, has_damage: bool = False
) -> GapVerdicts:
    """What explains runs of offsets, first and last, that are missing inside of a log: decided here for every verb.

    `cleaned` is the last offset of a batch that only compaction writes so, or -1. Where the cleanup policy is not known the log is read
    again, unless the other files decide; not where it `has_damage`, which takes away records and markers, too.
    """
    compacted, undecided = np.zeros((2, len(runs)), np.bool_)
    if not len(runs):
        return GapVerdicts(compacted, undecided)
    is_named = _has_offset(np.array(index_traces(files), np.int64), runs)
    compacted = (runs[:, 0] < cleaned_before(files, cleaned)) & ~is_named
    named = None if compacted.all() else named_offsets(files)
    if named is None:
        return GapVerdicts(compacted, undecided)
    undecided = ~compacted & ~_has_offset(named, runs)
    segments = sorted(
        (file for file in files if file.format == "kafka.log" and _is_loaded(file)),
        key=lambda segment: segment.place.start_offset or 0,
    )
    if undecided.any() and not has_damage:
        undecided &= runs[:, 0] <= _first_uncleaned(segments, int(runs[undecided, 0].max()))
    if undecided.any() and not has_damage:
        for first, last in _unmarked_spans(segments):
            undecided &= (runs[:, 1] < first) | (runs[:, 0] > last)
    return GapVerdicts(compacted, undecided)


def cleaned_before(files: Sequence[File], cleaned: int = NONE) -> int:
    """The offset before which compaction explains what is missing in a log; 0 if nothing shows compaction. `cleaned` is the last offset of
    a batch that only compaction writes so, or -1.
    """
    place = files[0].place
    if place.topic == METADATA_TOPIC:
        return 0
    if place.topic in COMPACTED:
        return HUGE
    if place.topic is not None and place.partition is not None and place.group is not None:
        folder = parent_of(place.group)
        dirty = offsets_in(folder, CLEANER).get((place.topic, place.partition))
        if dirty is not None:  # a follower copies what its leader compacted, beyond what it did itself
            return HUGE if cleaned >= dirty else dirty
        if cleaned == NONE and is_compacted_topic(folder, place.topic):
            return HUGE
    return HUGE if cleaned != NONE else 0


def _has_offset(offsets: NDArray[np.int64], runs: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which runs have one of the offsets, which rise."""
    return np.asarray(np.searchsorted(offsets, runs[:, 0]) < np.searchsorted(offsets, runs[:, 1], side="right"))


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


def _first_uncleaned(segments: Sequence[File], stop: int) -> int:
    """The offset of the first record that no log has before offsets that compaction took out: one without a key, or a later one of a key;
    HUGE if there is none before `stop` in the first LOOK bytes of the log.

    In batches of one record a key may be there twice: a follower that was away has what it had itself, and after that what its leader
    compacted meanwhile. Of batches with several records that would leave some in part, which their headers tell. Only batches with a
    sequence number count: by these, verbs that look know which logs to ask about, without reading every compacted log twice.
    """
    from rawlog.formats.kafka import LOG

    keys, position = set[bytes](), 0
    for segment in segments:
        try:
            for frames in walk(segment, LOG, errors="skip"):
                for offsets, batch_keys, is_shared in _keys(frames):
                    for offset, key, shared in zip(offsets, batch_keys, is_shared, strict=True):
                        if offset >= stop:
                            return HUGE
                        if key is None or (shared and key in keys):
                            return offset
                        if shared:
                            keys.add(key)
                position += int(frames.sizes.sum())
                if position >= LOOK:
                    return HUGE
        except DataError:  # what cannot be decoded shows nothing
            return HUGE
    return HUGE


def _keys(frames: Frames) -> Iterator[tuple[list[int], list[bytes | None], list[bool]]]:
    """Offsets and keys of the records with sequence numbers in a window, and whether each is in a batch of several records."""
    from rawlog.formats.kafka.log.segment import decode_bounded, only, pieces

    head = heads(frames)
    is_data = head.sound & (head["base_sequence"] >= 0) & ~head.has(Attributes.CONTROL)
    frames, head = only(frames, is_data), head.only(is_data)
    for start, stop in pieces(frames, head):
        part = frames.slice(start, stop), head.slice(start, stop)
        for _, part_head, columns in decode_bounded(*part, {"offset", "key"}, MAX_DECOMPRESSED, MAX_HEADERS):
            rows = np.repeat(part_head["record_count"] > 1, columns.counts)
            yield columns.arrays["offset"].to_pylist(), columns.arrays["key"].to_pylist(), rows.tolist()


def _unmarked_spans(segments: Sequence[File]) -> Iterator[tuple[int, int]]:
    """The offsets in which the marker of a transaction is missing: between two batches of a producer whose epoch rises from one to the
    other. Compaction keeps the marker as long as it keeps a record of the transaction.
    """
    from rawlog.formats.kafka import LOG

    unmarked: dict[int, tuple[int, int]] = {}
    for segment in segments:
        for frames in walk(segment, LOG, errors="skip"):
            yield from _unmarked_in(heads(frames, check_crc=False), unmarked)


def _unmarked_in(head: Heads, unmarked: dict[int, tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The same for a window. `unmarked` has the last batches of the transactions without a marker so far: epoch and last offset, by
    producer.
    """
    chosen = np.flatnonzero(head.has(Attributes.TRANSACTIONAL) & head.sound)
    order = chosen[np.argsort(head["producer_id"][chosen], kind="stable")]
    names = ("producer_id", "producer_epoch", "base_offset", "last_offset")
    ids, epochs, bases, lasts = (head[name][order] for name in names)
    is_data, is_same = ~head.has(Attributes.CONTROL)[order], ids[1:] == ids[:-1]
    for at in np.flatnonzero(is_same & is_data[1:] & is_data[:-1] & (epochs[1:] > epochs[:-1])).tolist():
        yield int(lasts[at]), int(bases[at + 1])
    begins = np.flatnonzero(np.concatenate(([True], ~is_same))[: ids.size] & is_data)
    for number, epoch, base in zip(*(column[begins].tolist() for column in (ids, epochs, bases)), strict=True):
        last_epoch, last = unmarked.get(number, (epoch, base))
        if last_epoch < epoch:
            yield last, base
    ends = np.flatnonzero(np.concatenate((~is_same, [True]))[: ids.size])
    for at in ends.tolist():
        unmarked.pop(int(ids[at]), None)
        if is_data[at]:
            unmarked[int(ids[at])] = int(epochs[at]), int(lasts[at])


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
