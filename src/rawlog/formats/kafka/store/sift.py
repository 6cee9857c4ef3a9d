"""A copy of a partition without some of its records: the same batches at the same offsets, only emptier.

Nothing but the chosen records goes: batches keep their first and last offset, epochs, producers and transactions, control batches
stay as they are, and a batch that loses all its records stays as a bare header, so that producers and offsets go on where they were.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawlog.core.errors import DataError
from rawlog.core.format import File, Keep
from rawlog.core.frames import Frames
from rawlog.core.report import Account
from rawlog.core.status import Status
from rawlog.core.tables import RECORDS
from rawlog.core.text import counted
from rawlog.formats.kafka.checkpoints import log_start
from rawlog.formats.kafka.heads import Heads, heads
from rawlog.formats.kafka.layouts import MAGIC_V2, Attributes
from rawlog.formats.kafka.log import decode_bounded, only, pieces, sound
from rawlog.formats.kafka.store.derived import Limits
from rawlog.formats.kafka.store.filtering import keep_records
from rawlog.formats.kafka.store.partition_writer import PartitionWriter
from rawlog.formats.kafka.store.rebuild import gap_notes, keep_beside, keep_times, segments_of
from rawlog.io.walk import describe, walk
from rawlog.kernels import columns

MOST_RANGES = 100_000


@dataclass(slots=True)
class Sifted(Account):
    """What is left of a partition, and what was removed: `offsets` are first and last of every run of them."""

    records: int = 0
    removed: int = 0
    offsets: list[tuple[int, int]] = field(default_factory=list)
    batches: int = 0
    batches_rewritten: int = 0
    bytes: int = 0
    end_offset: int = 0

    def remove(self, offsets: NDArray[np.int64]) -> None:
        """Note offsets that rise."""
        self.removed += offsets.size
        if not offsets.size:
            return
        edges = np.flatnonzero(offsets[1:] - offsets[:-1] != 1)[:MOST_RANGES]
        firsts, lasts = offsets[np.concatenate(([0], edges + 1))], offsets[np.concatenate((edges, [offsets.size - 1]))]
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
            if self.offsets and self.offsets[-1][1] + 1 == first:
                self.offsets[-1] = (self.offsets[-1][0], last)
            elif len(self.offsets) < MOST_RANGES:
                self.offsets.append((first, last))

    def lines(self) -> list[str]:
        """Which offsets went, then the counts."""
        runs = [f"{first:,}" if first == last else f"{first:,} to {last:,}" for first, last in self.offsets[:50]]
        more = f" and {len(self.offsets) - 50:,} more runs" if len(self.offsets) > 50 else ""
        what = (
            f"{counted(self.removed, 'record')} removed: offsets {', '.join(runs)}{more}"
            if self.removed
            else "nothing removed"
        )
        rewritten = counted(self.batches_rewritten, "batch", "batches")
        return [*self.notes, what, f"{counted(self.records, 'record')} kept, {rewritten} rewritten"]


def sift_partition(files: Sequence[File], folder: str, keep: Keep, options: Mapping[str, str]) -> Sifted:
    """Fill `folder`, an empty directory, with the partition that `files` are of, less the records that `keep` says no to.

    `index_interval_bytes` among the options is the topic's. DataError for damage, which is for repair to mend.
    """
    limits = Limits.told(options)
    segments = segments_of(files)
    report = Sifted(notes=gap_notes(files))
    writer = PartitionWriter(Path(folder), None, interval=limits.index_interval_bytes)
    try:
        for segment in segments:
            _sift_segment(segment, files, writer, keep, report, is_last=segment is segments[-1])
        writer.close()
    finally:
        writer.abandon()
    keep_beside(files, Path(folder))
    keep_times(segments, Path(folder))
    report.batches, report.bytes, report.end_offset = writer.batches, writer.bytes, writer.end_offset
    return report


def _sift_segment(
    segment: File, files: Sequence[File], writer: PartitionWriter, keep: Keep, report: Sifted, *, is_last: bool
) -> None:
    from rawlog.formats.kafka import LOG

    base, begun = segment.place.start_offset or 0, False
    floor = log_start(segment, files)
    start = max((one for one in (keep.start, floor) if one is not None), default=None)
    for frames in walk(segment, LOG, errors="raise"):
        head = heads(frames)
        _, error = sound(frames, head)
        if error is not None:
            raise error.at(path=segment.path, format=LOG.name)
        if frames.last and frames.status is Status.TRUNCATED:
            if not is_last:
                raise describe(LOG, frames, segment.path)
            report.notes.append(
                f"{segment.path}: {frames.data.size - frames.reached:,} bytes of an unfinished batch left out"
            )
        inside = np.ones(len(frames), np.bool_)
        if start is not None:
            inside &= head["last_offset"] >= start
        if keep.stop is not None:
            inside &= head["base_offset"] < keep.stop
        if not inside.all():
            frames, head = only(frames, inside), head.only(inside)
        try:
            for part, own in _sifted(frames, head, segment, keep, report, start):
                if not len(part):
                    continue
                if not begun:
                    writer.begin(base)
                    begun = True
                writer.append(part, own)
        except DataError as fault:
            fault.position = None if fault.position is None else fault.position + frames.base
            raise fault.at(path=segment.path, format=LOG.name) from None
    if is_last and not begun and keep.stop is None:
        writer.begin(base)  # an empty segment tells where the log ends


def _sifted(
    frames: Frames, head: Heads, segment: File, keep: Keep, report: Sifted, start: int | None
) -> Iterator[tuple[Frames, Heads]]:
    """The frames with what stays of them, some at a time."""
    for first, stop in pieces(frames, head):
        some, own = frames.slice(first, stop), head.slice(first, stop)
        counts, mask = _chosen(some, own, segment, keep, report, start)
        made = keep_records(some, own, counts, mask)
        report.batches_rewritten += made.rebuilt
        yield made.frames, made.head


def _chosen(
    frames: Frames, head: Heads, segment: File, keep: Keep, report: Sifted, start: int | None
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """How many records each frame holds, and which of all stay. Control records always do."""
    control = head.has(Attributes.CONTROL)
    data, own = (only(frames, ~control), head.only(~control)) if control.any() else (frames, head)
    counts = np.where(control, head["record_count"], 0)
    if not len(data):
        return counts, np.ones(int(counts.sum()), np.bool_)
    own = Heads(np.ascontiguousarray(own.values))
    names = (set(keep.columns) & _OF_RECORDS) | {"offset"}
    numbers, masks = np.zeros(len(data), np.int64), []
    for some, _, found in decode_bounded(data, own, names, keep.limit, keep.max_headers):
        at = int(np.searchsorted(data.starts, some.starts[0]))
        numbers[at : at + len(some)] += found.counts
        arrays: dict[str, Any] = dict(found.arrays)
        for name, value in (("topic", segment.place.topic), ("partition", segment.place.partition)):
            arrays[name] = columns.constant(value, RECORDS.column(name).type, found.count)
        offsets = found.arrays["offset"].to_numpy()
        stays = keep.test(columns.batch(RECORDS.subset(keep.columns), arrays, found.count))
        trimmed = offsets < start if start is not None else np.zeros(offsets.size, np.bool_)
        removed = ~stays & ~trimmed
        if removed.any():
            report.remove(offsets[removed])
        masks.append(stays & ~trimmed)
        report.records += int(masks[-1].sum())
    counts[~control] = numbers
    mask = np.ones(int(counts.sum()), np.bool_)
    if masks:
        mask[np.repeat(~control, counts)] = np.concatenate(masks)
    assert head["magic"].max(initial=0) <= MAGIC_V2
    return counts, mask


_OF_RECORDS = frozenset({"key", "value", "offset", "timestamp", "timestampType", "headers"})
