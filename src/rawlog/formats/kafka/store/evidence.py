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

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rawlog.core.format import File
from rawlog.formats.kafka.checkpoints import (
    CLEANER,
    HIGH_WATERMARK,
    LARGEST,
    LOG_START,
    RECOVERY_POINT,
    offsets_in,
    parse_epochs,
)
from rawlog.formats.kafka.heads import Heads, heads
from rawlog.formats.kafka.indexes import scan_index, scan_timeindex
from rawlog.formats.kafka.layouts import INDEX_ENTRY, TIME_INDEX_ENTRY, Attributes
from rawlog.formats.kafka.paths import MARK, METADATA_TOPIC, split
from rawlog.formats.kafka.store.extents import bytes_of
from rawlog.formats.kafka.store.identity import is_known_topic, is_tiered_topic, parent_of
from rawlog.formats.kafka.store.state import Producers
from rawlog.io.storage import exists
from rawlog.io.walk import walk

INDEXES = ("kafka.index", "kafka.timeindex", "kafka.txnindex")


class Trace(NamedTuple):
    """An offset that a log began at or had reached, and what says so. `is_certain`: nothing else explains it. `is_remote`: the records are
    in remote storage.
    """

    offset: int
    reason: str
    is_certain: bool = True
    is_remote: bool = False

    @property
    def text(self) -> str:
        """What says so, and what else may explain it."""
        return (
            self.reason if self.is_certain else f"{self.reason}; lost, or deleted by retention shortly before a crash"
        )


def first_trace(files: Sequence[File]) -> Trace | None:
    """Where a partition's log began, if that is before its first segment and retention does not explain it."""
    segments = [one for one in files if one.format == "kafka.log" and one.place.state is None and one.problem is None]
    place = segments[0].place if segments else None
    if place is None or place.topic in (None, METADATA_TOPIC) or place.partition is None or place.group is None:
        return None
    first = min(one.place.start_offset or 0 for one in segments)
    folder, traces = parent_of(place.group), list[Trace]()
    # A broker renames the log first: a crash in between leaves the index.
    deleted = {one.place.start_offset for one in files if one.place.state == "deleted"}
    for one in files:
        base = one.place.start_offset or 0
        if one.format in INDEXES and one.place.state is None and base < first and base not in deleted:
            traces.append(Trace(base, f"{split(one.path)[1]} is there without its segment"))
    stated = {}
    start, epochs = offsets_in(folder, LOG_START).get((str(place.topic), place.partition)), _epochs(files)
    if start is not None and start < first:
        stated[max(start, 0)] = f"{LOG_START} says that the log begins there"
    if epochs and epochs[0][1] < first:
        stated[max(epochs[0][1], 0)] = f"the first leader epoch, {epochs[0][0]}, begins there"
    if not traces and not stated:
        return None
    is_stopped = bool(stated) and exists(f"{folder}/{MARK}")
    traces += [Trace(offset, reason, is_stopped) for offset, reason in stated.items()]
    if is_tiered_topic(folder, str(place.topic)):
        return Trace(min(traces).offset, "remote storage has them", is_remote=True)
    return min(traces, key=lambda one: (one.offset, not one.is_certain))


def last_trace(files: Sequence[File]) -> Trace:
    """How far a partition's log had reached, by anything but its batches: the offset after the last one; 0 if nothing says it."""
    segments = [one for one in files if one.format == "kafka.log" and one.place.state is None]
    names = {one.place.start_offset or 0 for one in segments}
    traces = [Trace(0, "")]
    for one in files:
        base = one.place.start_offset or 0
        if one.place.state is not None:
            continue
        # One of the same name as a segment may have been renamed with it.
        if one.format == "kafka.snapshot" and base not in names:
            traces.append(Trace(base, "a snapshot of the producers was taken after them"))
        elif one.format in INDEXES[:2] and base > max(names, default=0):
            traces.append(Trace(base + _indexed(one), f"{split(one.path)[1]} is there without its segment"))
    place = segments[0].place if segments else None
    if place is not None and place.topic is not None and place.partition is not None and place.group is not None:
        for name in (HIGH_WATERMARK, RECOVERY_POINT):
            offset = offsets_in(parent_of(place.group), name).get((place.topic, place.partition), 0)
            traces.append(Trace(offset, f"{name} counts them"))
    return max(traces, key=lambda one: one.offset)


def are_undecided(files: Sequence[File], runs: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
    """Of runs of offsets, first and last, that are missing inside of a log: whether nothing tells if compaction took them out, or they are
    lost. To be asked of a topic that nothing shows to be compacted. The log is read again, unless the other files decide.
    """
    nothing = np.zeros(len(runs), np.bool_)
    files = [one for one in files if one.place.state is None and one.problem is None]
    segments = [one for one in files if one.format == "kafka.log"]
    if not runs or not segments or any(one.place.remote for one in files):
        return nothing
    place = segments[0].place
    if place.topic is not None and place.partition is not None and place.group is not None:
        folder = parent_of(place.group)
        # Where the cleaner has a line, it has not come further than that.
        if (place.topic, place.partition) in offsets_in(folder, CLEANER) or is_known_topic(folder, place.topic):
            return nothing
    bases = {one.place.start_offset or 0 for one in segments}
    named = [np.empty(0, np.int64)]
    for one in files:
        base = one.place.start_offset or 0
        if one.format in (*INDEXES, "kafka.snapshot") and base not in bases:
            named.append(np.array([base], np.int64))
        if one.format in INDEXES[:2]:
            named.append(base + _entries(one))
    offsets, spans = np.unique(np.concatenate(named)), np.array(runs, np.int64).reshape(-1, 2)
    unnamed = np.searchsorted(offsets, spans[:, 0]) == np.searchsorted(offsets, spans[:, 1], side="right")
    return np.asarray(unnamed) if unnamed.any() and not _is_broken(segments) else nothing


def _is_broken(segments: Sequence[File]) -> bool:
    """Whether the sequence numbers of a producer do not follow one another, or the marker of a transaction is missing."""
    from rawlog.formats.kafka import LOG

    producers, unmarked = Producers(), dict[int, int]()
    for segment in sorted(segments, key=lambda one: one.place.start_offset or 0):
        for frames in walk(segment, LOG, errors="skip"):
            head = heads(frames, check_crc=False)
            producers.add(frames, head, segment.path)
            if _lacks_marker(head, unmarked):
                return True
    return any(one.code == "sequence" for one in producers.finish().oddities)


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
    """The offsets that an index or time index names, less that of its segment; none if they do not rise."""
    layout = INDEX_ENTRY if index.format == "kafka.index" else TIME_INDEX_ENTRY
    data = bytes_of(index)
    frames = scan_index(data, 0) if layout is INDEX_ENTRY else scan_timeindex(data, 0)
    entries = layout.take(data, frames.starts)["relative_offset"].astype(np.int64)
    is_rising = entries.size and entries[0] >= 0 and not (np.diff(entries) < 0).any()
    return entries if is_rising else entries[:0]


def _indexed(index: File) -> int:
    """How many offsets an index says its segment has at least; 0 for an empty one, and for one whose entries do not rise."""
    return int(_entries(index).max(initial=-1)) + 1


def _epochs(files: Sequence[File]) -> list[tuple[int, int]] | None:
    """The leader epochs of the checkpoint with their first offsets; None where there is none, or it cannot be read."""
    file = next((one for one in files if one.format == "kafka.epochs" and one.place.state is None), None)
    return None if file is None or file.problem is not None else parse_epochs(bytes(bytes_of(file)[:LARGEST]))


__all__ = ["Trace", "are_undecided", "first_trace", "last_trace"]
