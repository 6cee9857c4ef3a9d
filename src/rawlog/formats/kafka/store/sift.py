"""A copy of a partition without some of its records: the same batches at the same offsets, only emptier.

Nothing but the chosen records goes: batches keep their first and last offset, epochs, producers and transactions, control batches
stay as they are, and a batch that loses all its records stays as a bare header, so that producers and offsets go on where they were.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawlog.core.errors import DataError
from rawlog.core.format import File, Keep
from rawlog.core.frames import Frames
from rawlog.core.report import Action, Report
from rawlog.core.store import Store
from rawlog.core.tables import RECORDS
from rawlog.core.text import counted
from rawlog.formats.kafka.checkpoints import log_start
from rawlog.formats.kafka.heads import Heads
from rawlog.formats.kafka.layouts import MAGIC_V2, Attributes
from rawlog.formats.kafka.log import decode_bounded, only, pieces
from rawlog.formats.kafka.messages import CONSUMER_OFFSETS, TRANSACTION_STATE
from rawlog.formats.kafka.store.derived import Derivation, Limits
from rawlog.formats.kafka.store.filtering import keep_records
from rawlog.formats.kafka.store.partition_writer import PartitionWriter
from rawlog.formats.kafka.store.rewrite import (
    NewSegment,
    new_report,
    report_gaps,
    rewrite,
    segments_of,
    topic_id_of,
    whole_batches,
)
from rawlog.io.output import Folder
from rawlog.kernels import columns

MOST_RANGES, SHOWN = 100_000, 50
"""So many runs of removed offsets are reported, and so many are shown to people."""


def erase(store: Store, folder: Folder, options: Mapping[str, str], keep: Keep | None = None) -> Report:
    """The verb `erase`: a partition without the records that `keep` says no to. What that means for a coordinator is noted."""
    report = sift(store, folder, keep or Keep((), lambda batch: np.ones(batch.num_rows, np.bool_)), options)
    means = COORDINATED.get(str(store[0].place.topic))
    if means is not None and report.counts["removed"]:
        report.notes.append(means)
    return report


COORDINATED = {
    CONSUMER_OFFSETS: "committed offsets or groups were removed: these groups go on from an earlier commit, if there is one",
    TRANSACTION_STATE: "states of transactions were removed: a transaction of theirs that is open stays open until it times out",
}
"""What it means if records of the topics of coordinators are erased."""


def sift(store: Store, folder: Folder, keep: Keep, options: Mapping[str, str]) -> Report:
    """Fill an empty directory with a partition, less the records that `keep` says no to.

    `index_interval_bytes` among the options is the topic's. DataError for damage, which `repair` handles.
    """
    report = new_report(records=0, removed=0, batches_rewritten=0, gaps=0, bytes_lost=0)
    corrections = report_gaps(store, report, is_copy=True)
    policy = Sifting(store, report, keep, Limits.from_options(options).index_interval_bytes)
    writer = rewrite(folder, policy, corrections=corrections)
    if policy.removed:
        report.add(Action.REMOVED, policy.text())
    report.counts |= {"batches": writer.batches, "bytes": writer.bytes}
    report.facts |= {"end_offset": writer.end_offset, "offsets": [list(one) for one in policy.removed]}
    return report


class Sifting:
    """The policy of erasing: every batch, without the records that are not to stay."""

    limits: Limits | None = None
    derivation: Derivation | None = None

    def __init__(self, files: Sequence[File], report: Report, keep: Keep, interval: int) -> None:
        self.files, self.report, self.keep, self.interval = files, report, keep, interval
        self.metadata = topic_id_of(files)
        #: First and last of the runs of offsets that were removed.
        self.removed: list[tuple[int, int]] = []

    def text(self) -> str:
        """How many records were removed, and the first of their offsets."""
        runs = [f"{first:,}" if first == last else f"{first:,} to {last:,}" for first, last in self.removed[:SHOWN]]
        more = f" and {len(self.removed) - SHOWN:,} more runs" if len(self.removed) > SHOWN else ""
        return f"{counted(self.report.counts['removed'], 'record')}: offsets {', '.join(runs)}{more}"

    def segments(self, writer: PartitionWriter) -> Iterator[NewSegment]:
        """Each segment of the source that has anything left. An empty segment at the end says where the log ends."""
        logs = segments_of(self.files)
        for file in logs:
            is_last = file is logs[-1]
            is_optional = not is_last or self.keep.stop is not None
            batches = self._batches(file, is_last=is_last)
            yield NewSegment(file.place.start_offset or 0, batches, file.modified, is_optional)

    def _batches(self, file: File, *, is_last: bool) -> Iterator[tuple[Frames, Heads]]:
        keep, floor = self.keep, log_start(file, self.files)
        start = max((one for one in (keep.start, floor) if one is not None), default=None)
        for frames, head in whole_batches(file, self.report, is_last=is_last, is_tail_lost=False):
            inside = np.ones(len(frames), np.bool_)
            if start is not None:
                inside &= head["last_offset"] >= start
            if keep.stop is not None:
                inside &= head["base_offset"] < keep.stop
            if not inside.all():
                frames, head = only(frames, inside), head.only(inside)
            try:
                yield from self._sifted(frames, head, file, start)
            except DataError as fault:
                fault.position = None if fault.position is None else fault.position + frames.base
                raise fault.at(path=file.path, format="kafka.log") from None

    def _sifted(self, frames: Frames, head: Heads, file: File, start: int | None) -> Iterator[tuple[Frames, Heads]]:
        """The frames with what stays of them, some at a time."""
        for first, stop in pieces(frames, head):
            some, own = frames.slice(first, stop), head.slice(first, stop)
            counts, mask = self._chosen(some, own, file, start)
            made = keep_records(some, own, counts, mask)
            self.report.count("batches_rewritten", made.rebuilt)
            yield made.frames, made.head

    def _chosen(
        self, frames: Frames, head: Heads, file: File, start: int | None
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """How many records each frame holds, and which of all stay. Control records always do."""
        keep, control = self.keep, head.has(Attributes.CONTROL)
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
            for name, value in (("topic", file.place.topic), ("partition", file.place.partition)):
                arrays[name] = columns.constant(value, RECORDS.column(name).type, found.count)
            offsets = found.arrays["offset"].to_numpy()
            stays = keep.test(columns.batch(RECORDS.subset(keep.columns), arrays, found.count))
            trimmed = offsets < start if start is not None else np.zeros(offsets.size, np.bool_)
            removed = ~stays & ~trimmed
            if removed.any():
                self._remove(offsets[removed])
            masks.append(stays & ~trimmed)
            self.report.count("records", int(masks[-1].sum()))
        counts[~control] = numbers
        mask = np.ones(int(counts.sum()), np.bool_)
        if masks:
            mask[np.repeat(~control, counts)] = np.concatenate(masks)
        assert head["magic"].max(initial=0) <= MAGIC_V2
        return counts, mask

    def _remove(self, offsets: NDArray[np.int64]) -> None:
        """Note offsets that rise."""
        self.report.count("removed", offsets.size)
        edges = np.flatnonzero(offsets[1:] - offsets[:-1] != 1)[:MOST_RANGES]
        firsts, lasts = offsets[np.concatenate(([0], edges + 1))], offsets[np.concatenate((edges, [offsets.size - 1]))]
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
            if self.removed and self.removed[-1][1] + 1 == first:
                self.removed[-1] = (self.removed[-1][0], last)
            elif len(self.removed) < MOST_RANGES:
                self.removed.append((first, last))


_OF_RECORDS = frozenset({"key", "value", "offset", "timestamp", "timestampType", "headers"})
