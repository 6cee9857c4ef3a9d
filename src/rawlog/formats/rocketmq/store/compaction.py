"""The logs of compaction topics in a repaired store. A lost message is taken from the commit log, where only its physical offset differs;
one that is lost there too is covered and removed from the topic's queue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from rawlog.formats.rocketmq import COMPACTION_LOG, below_root
from rawlog.formats.rocketmq.kernels import entries as fields
from rawlog.formats.rocketmq.layouts import (
    BATCH_UNIT,
    BLANK,
    HEAD,
    LARGEST_BODY,
    MAGIC_BLANK,
)
from rawlog.formats.rocketmq.messages import Messages
from rawlog.formats.rocketmq.store.dispatch import DerivedEntries, Queue, derive_from
from rawlog.formats.rocketmq.store.placeholders import SMALLEST_FILLER, covering
from rawlog.formats.rocketmq.store.rewrite import batch_units, copy, drop
from rawlog.formats.rocketmq.units import COMPACTION_QUEUE
from rawlog.io.output import Folder
from rawlog.io.storage import Source
from rawlog.io.walk import walk
from rawlog.model.errors import DataError
from rawlog.model.format import File
from rawlog.model.report import Action, Report

FORMATS = ("rocketmq.compactionlog", "rocketmq.compactioncq")
Find = Callable[[Queue, int], bytes | None]
"""(queue, number) -> the bytes of that message in the commit log, None if it is not there."""


def write_compacted(files: Sequence[File], folder: Folder, find: Find, report: Report) -> None:
    """Copy the logs and queues of compaction topics; those with damage are repaired in the copy."""
    logs, queues = ([file for file in files if file.format == name and file.problem is None] for name in FORMATS)
    paired = {(file.place.topic, file.place.partition, file.place.start_offset): file for file in queues}
    for log in logs:
        queue = paired.pop((log.place.topic, log.place.partition, log.place.start_offset), None)
        _write(log, queue, folder, find, report)
    for file in paired.values():
        drop(report, "left out, its log is missing", file.path, 0, file.size)


def _write(log: File, queue: File | None, folder: Folder, find: Find, report: Report) -> None:
    sound, units, end = _sound(log)
    holes = _holes(log, sound, end)
    for file in (log, queue):
        if file is not None:
            copy(folder, file, report)
    rows, is_damaged = units_of(queue) if queue is not None else (np.empty(0, BATCH_UNIT.dtype), False)
    if not holes and not is_damaged:
        return
    start = log.place.start_offset or 0
    rows_at = {int(row["physical_offset"]) - start: row for row in rows}
    restored: dict[int, bytes] = {}
    patches: list[tuple[int, bytes]] = []
    for first, stop in holes:
        at = first
        for position in sorted(place for place in rows_at if first <= place < stop):
            number, size = int(rows_at[position]["base_offset"]), int(rows_at[position]["size"])
            raw = find((str(log.place.topic), int(log.place.partition or 0)), number)
            if raw is None or len(raw) != size or position < at or position + size > stop:
                continue
            if position != at and position - at < SMALLEST_FILLER:
                continue
            patches += _fillers(start, at, position, report, log)
            where = HEAD.at("physical_offset")
            restored[position] = raw[:where] + (start + position).to_bytes(8, "big") + raw[where + 8 :]
            patches.append((position, restored[position]))
            reason = f"message {number} restored from the commit log"
            report.add(Action.REBUILT, reason, log.path, start=position, stop=position + size)
            at = position + size
        patches += _fillers(start, at, stop, report, log)
    with folder.change(below_root(log)) as out:
        for position, data in patches:
            out.seek(position)
            out.write(data)
    if queue is None:
        return
    lost = sorted(int(row["base_offset"]) for at, row in rows_at.items() if at not in sound and at not in restored)
    if lost:
        report.count("messages_lost", len(lost))
        reason = f"{len(lost):,} messages of the compaction topic are lost, the first is {lost[0]}"
        report.add(Action.LOST, reason, log.path)
    if is_damaged:
        report.add(Action.REBUILT, "damaged; rebuilt from its log", queue.path)
    kept = {at: row for at, row in rows_at.items() if at in sound or at in restored}
    if is_damaged:
        kept = {int(row["physical_offset"]) - start: row for row in units} | kept
    change_queue(folder, queue, b"".join(kept[at].tobytes() for at in sorted(kept)))


def _sound(log: File) -> tuple[dict[int, int], NDArray[np.void], int]:
    """The positions and sizes of a log's sound messages, the units a queue has for them, and the end of the entries."""
    sound: dict[int, int] = {}
    end = 0
    derived = DerivedEntries()
    try:
        for frames in walk(log, COMPACTION_LOG, errors="skip"):
            rows = Messages.take(frames, log)
            rows = rows.where(rows.crc_ok & ~rows.stale)
            sound.update(zip(rows.positions.tolist(), rows[fields.F_SIZE].tolist(), strict=True))
            derive_from(rows, derived, with_keys=False)
            end = frames.reached_in_file
            if frames.status.is_damage and frames.last:
                end = log.size
    except DataError:
        end = log.size
    units = derived.queue((str(log.place.topic), int(log.place.partition or 0)))
    return sound, batch_units(units), end


def _holes(log: File, sound: dict[int, int], end: int) -> list[tuple[int, int]]:
    """The stretches of a log before its end that are not sound messages, nor a blank entry at the end."""
    holes, at = [], 0
    for position, size in sorted(sound.items()):
        if position > at:
            holes.append((at, position))
        at = max(at, position + size)
    with Source(log.path) as source:
        head = source.read(at, BLANK.size)
        tail = source.read(at, end - at).rstrip(b"\0") if end > at else b""
    is_blank = len(head) == BLANK.size and int.from_bytes(head[4:], "big", signed=True) == MAGIC_BLANK
    if tail and not (is_blank and int.from_bytes(head[:4], "big") == log.size - at):
        holes.append((at, at + len(tail)))
    return holes


def units_of(queue: File) -> tuple[NDArray[np.void], bool]:
    """The units of a queue, and whether it is damaged."""
    with Source(queue.path) as source:
        data = np.frombuffer(source.read(0, source.size), np.uint8)
    frames = COMPACTION_QUEUE.scan(data, 0)
    return BATCH_UNIT.take(data, frames.starts), frames.status.is_damage


def _fillers(start: int, first: int, stop: int, report: Report, log: File) -> list[tuple[int, bytes]]:
    """Fillers over a stretch, which no queue shows; a rest that is too small for one is zeroed."""
    if first >= stop:
        return []
    drop(report, "could not be kept", log.path, first, stop)
    patches = []
    while stop - first >= SMALLEST_FILLER:
        size = min(stop - first, LARGEST_BODY)
        if 0 < stop - first - size < SMALLEST_FILLER:
            size -= SMALLEST_FILLER
        patches.append((first, covering(start + first, size, 1, None)))
        first += size
    if first < stop:
        patches.append((first, bytes(stop - first)))
    return patches


def change_queue(folder: Folder, queue: File, units: bytes) -> None:
    """Give a queue file other units, and after them the mark that it had after its own, if any."""
    with Source(queue.path) as source:
        data = np.frombuffer(source.read(0, source.size), np.uint8)
    rows = BATCH_UNIT.view(data)
    marks = rows[(rows["physical_offset"] == -1) & (rows["size"] == 0)]
    new = units + (marks[:1].tobytes() if len(marks) else b"")
    with folder.change(below_root(queue)) as out:
        out.write(new[: data.size])
        out.write(bytes(max(0, data.size - len(new))))
