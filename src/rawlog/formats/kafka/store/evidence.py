"""What other files know of the beginning and the end of a log: evidence of records that no segment has. All verbs go by it.

At the end: the high watermark and the recovery point, snapshots of producers, indexes without their segment. At the beginning retention
explains what is missing, unless something contradicts it: an index without its segment, which retention would have deleted with it; a log
start or a first leader epoch before the first segment. A broker that crashed shortly after it deleted a segment may leave the last two as
they were; one that stopped cleanly does not. A snapshot of producers contradicts nothing: those of a stop inside of a segment stay when
retention deletes that segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rawlog.core.format import File
from rawlog.formats.kafka.checkpoints import (
    HIGH_WATERMARK,
    LARGEST,
    LOG_START,
    RECOVERY_POINT,
    offsets_in,
    parse_epochs,
)
from rawlog.formats.kafka.indexes import scan_index, scan_timeindex
from rawlog.formats.kafka.layouts import INDEX_ENTRY, TIME_INDEX_ENTRY
from rawlog.formats.kafka.paths import MARK, METADATA_TOPIC, split
from rawlog.formats.kafka.store.extents import bytes_of
from rawlog.formats.kafka.store.identity import is_tiered_topic, parent_of
from rawlog.io.storage import exists

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


def _indexed(index: File) -> int:
    """How many offsets an index says its segment has at least; 0 for an empty one, and for one whose entries do not rise."""
    layout = INDEX_ENTRY if index.format == "kafka.index" else TIME_INDEX_ENTRY
    data = bytes_of(index)
    frames = scan_index(data, 0) if layout is INDEX_ENTRY else scan_timeindex(data, 0)
    entries = layout.take(data, frames.starts)["relative_offset"].astype(np.int64)
    if not entries.size or entries[0] < 0 or (np.diff(entries) < 0).any():
        return 0
    return int(entries[-1]) + 1


def _epochs(files: Sequence[File]) -> list[tuple[int, int]] | None:
    """The leader epochs of the checkpoint with their first offsets; None where there is none, or it cannot be read."""
    file = next((one for one in files if one.format == "kafka.epochs" and one.place.state is None), None)
    return None if file is None or file.problem is not None else parse_epochs(bytes(bytes_of(file)[:LARGEST]))


__all__ = ["Trace", "first_trace", "last_trace"]
