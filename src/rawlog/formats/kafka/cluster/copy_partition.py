"""A partition written again for `restore` and `rescue`: the batches that `repair` keeps, with all derived files rebuilt.

With a time to stop at, the copy has what was written before it: batches that also have later records are rewritten without those, and
transactions that were open at that time are aborted. A partition without damage is read once; what its batches are is found out while they
are copied.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog.formats.kafka.checkpoints import log_start
from rawlog.formats.kafka.cluster.internal_topics import Endings
from rawlog.formats.kafka.log.heads import Heads, heads
from rawlog.formats.kafka.log.layouts import MAGIC_V2, NONE, OUTLINE, Attributes
from rawlog.formats.kafka.log.records import TooMuch, milliseconds
from rawlog.formats.kafka.log.segment import decode_run, only, pieces, sound, unwrapped_counts
from rawlog.formats.kafka.log.writer import BatchFields, encode_batch
from rawlog.formats.kafka.partition.erase import keep_records
from rawlog.formats.kafka.partition.lineage import Copy, DamagedBytes, Share
from rawlog.formats.kafka.partition.markers import Transaction
from rawlog.formats.kafka.partition.outline import Outline, outline
from rawlog.formats.kafka.partition.repair import BrokerCut, Lost, Repair, Salvage, write_with_markers
from rawlog.formats.kafka.partition.rewrite import NewSegment, rewrite, segments_of
from rawlog.formats.kafka.partition.segment_outline import FARTHEST, HUGE, Extent, PlainExtent, set_field
from rawlog.formats.kafka.partition.writer import Derivation, PartitionWriter, SegmentLimits, metadata_file
from rawlog.formats.kafka.paths import split
from rawlog.io.output import Folder
from rawlog.io.storage import Source
from rawlog.io.walk import describe, walk
from rawlog.kernels import byte_view
from rawlog.model.errors import AccessError, CorruptError, DataError
from rawlog.model.format import File
from rawlog.model.frames import Frames
from rawlog.model.outline import Run
from rawlog.model.report import Action, Report
from rawlog.model.status import Status
from rawlog.model.table import RECORDS

LIMIT = 1 << 28
COUNTS = (
    "segments", "batches", "records", "bytes", "batches_rewritten", "records_cut", "transactions_aborted",
    "transactions_committed", "offsets_committed", "bytes_lost",
)  # fmt: skip
"""What is counted for each partition.

Its facts are `end_offset`, and where known `log_start` (the first offset that a consumer gets, if later than that of the log),
`largest_epoch` and `largest_producer`.
"""
#: Appends more to a partition, after its records, and reports it.
Closing = Callable[[PartitionWriter, Report], object]


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """How a partition is written: the id of its topic, up to which time (ms, not included), and whether open transactions are ended, as
    `endings` says: by default they are aborted.
    """

    topic_id: str
    until: int | None = None
    abort_open: bool = True
    errors: str = "raise"
    index_interval: int = 4096
    endings: Endings = field(default_factory=Endings)


def partition_report() -> Report:
    """An empty report on one partition. `records` does not count those of compressed message sets that cannot be decompressed."""
    return Report(counts=dict.fromkeys(COUNTS, 0))


class BatchSource(Protocol):
    """Where the batches of a partition come from, in the segments that they are to be in."""

    report: Report

    def segments(self, writer: PartitionWriter) -> Iterator[NewSegment]:
        """The segments in order, as `Policy.segments` says."""


@dataclass(slots=True)
class PartitionCopy:
    """One attempt at writing a partition: the batches of a source up to a time, ends of open transactions, and what `closing` appends.
    `advance` is called with the number of bytes that are done.
    """

    folder: Path
    options: CopyOptions
    source: BatchSource
    advance: Callable[[int], None] = lambda size: None
    closing: Closing | None = None
    report: Report = field(default_factory=partition_report)
    writer: PartitionWriter | None = None
    #: Batches of producers that lost all their records, each with the name and time of its segment: written as bare headers if anything
    #: follows, so that sequences continue.
    emptied: list[tuple[int, float | None, Frames, Heads]] = field(default_factory=list)
    #: The name of the segment that is written to.
    base: int = NONE
    #: Records were cut since the last batch that was written.
    has_cut: bool = False
    # What every policy says.
    limits: SegmentLimits | None = None
    derivation: Derivation | None = None
    interval: int = 4096
    metadata: bytes | None = None

    def write(self, start: int) -> PartitionWriter:
        """Write the partition into the folder, which exists and is empty; `start` is the first offset of its log."""
        self.interval, self.metadata = self.options.index_interval, metadata_file(self.options.topic_id)
        return rewrite(Folder(self.folder), self, log_start=start)

    def discard(self) -> None:
        """Remove what was written: it is to be written in another way."""
        if self.writer is not None:
            self.writer.discard()

    def segments(self, writer: PartitionWriter) -> Iterator[NewSegment]:
        """The segments of the source, markers for open transactions, and the appended records."""
        self.writer = writer
        place: tuple[int, float | None] = (NONE, None)
        for segment in self.source.segments(writer):
            place = place if segment.base is None else (segment.base, segment.modified)
            if self.options.until is None:
                yield replace(segment, batches=self.counted(segment.batches))
                continue
            for frames, head in segment.batches:
                yield from self.before_time(place, frames, head, self.options.until)
        if self.options.abort_open:
            yield NewSegment(None, self.abort_open(writer))
        if self.closing is not None:
            self.closing(writer, self.report)

    def counted(self, batches: Iterable[tuple[Frames, Heads]]) -> Iterator[tuple[Frames, Heads]]:
        """Batches as they are, counted."""
        for frames, head in batches:
            self.count(frames, head)
            yield frames, head
            self.advance(int(frames.sizes.sum()))

    def count(self, frames: Frames, head: Heads) -> None:
        """Count the records of batches, and note the largest producer id."""
        if not len(frames):
            return
        counts: NDArray[np.int64] = head["record_count"]
        if (counts < 0).any():
            _, counts = unwrapped_counts(frames, head, LIMIT)
        self.report.count("records", int(counts[(counts > 0) & ~head.has(Attributes.CONTROL)].sum()))
        largest = max(self.report.facts.get("largest_producer", NONE), int(head["producer_id"].max()))
        if largest >= 0:
            self.report.facts["largest_producer"] = largest

    def summarise(self, floor: int | None) -> Report:
        """Report what was written, without what was kept as it is. `floor` is the first offset that a consumer gets, if the log begins
        before it.
        """
        writer, report = self.writer, self.report
        assert writer is not None
        report.counts |= {"segments": writer.segments, "batches": writer.batches, "bytes": writer.bytes}
        report.facts["end_offset"] = writer.end_offset
        epochs = writer.derivation.epochs.rows
        report.facts["largest_epoch"] = max([0, *(epoch for epoch, _ in epochs)])
        if floor is not None and floor <= writer.end_offset:
            report.facts["log_start"] = floor
        report.entries[:0] = [entry for entry in self.source.report.entries if entry.action is not Action.KEPT]
        report.notes[:0] = self.source.report.notes
        cut = [entry for entry in report.entries if entry.action is Action.DROPPED and not entry.is_expected]
        report.count("bytes_lost", sum((entry.stop or 0) - (entry.start or 0) for entry in cut))
        return report

    # Cutting at a time ------------------------------------------------------------------------------------------------

    def before_time(
        self, place: tuple[int, float | None], frames: Frames, head: Heads, until: int
    ) -> Iterator[NewSegment]:
        """Batches, or what is left of them, for the segment at a place."""
        late = head["max_timestamp"] >= until
        if self.report.counts[
            "records_cut"
        ]:  # a batch without records that holds the end of the log: there is another end now
            late |= (head["record_count"] == 0) & (head["max_timestamp"] == NONE)
        first = 0
        for stop in [*(np.flatnonzero(np.diff(late.astype(np.int8))) + 1).tolist(), len(frames)]:
            run, run_head = frames.slice(first, stop), head.slice(first, stop)
            if stop > first and late[first]:
                for start, end in pieces(run, run_head):
                    yield from self.cut(place, run.slice(start, end), run_head.slice(start, end), until)
            elif stop > first:
                yield from self.put(place, run, run_head)
            first = stop
        self.advance(int(frames.sizes.sum()))

    def cut(self, place: tuple[int, float | None], frames: Frames, head: Heads, until: int) -> Iterator[NewSegment]:
        """What is left of batches of one kind that have records at or after the time."""
        try:
            decoded = decode_run(frames, head, {"timestamp"}, LIMIT)
        except TooMuch as full:
            for part in (slice(0, full.fits), slice(full.fits, len(frames))):
                start, stop = part.start, part.stop
                yield from self.cut(place, frames.slice(start, stop), head.slice(start, stop), until)
            return
        keep = milliseconds(decoded.arrays["timestamp"]) < until
        counts = np.bincount(decoded.batch_index, minlength=len(frames)).astype(np.int64)
        control = head.has(Attributes.CONTROL)
        self.report.count("records_cut", int(np.count_nonzero(~keep & ~control[decoded.batch_index])))
        retain = (head["magic"] == MAGIC_V2) & (head["producer_id"] >= 0) & ~control
        rewritten = keep_records(frames, head, counts, keep, retain=retain)
        self.report.count("batches_rewritten", rewritten.rebuilt)
        self.has_cut |= not bool(keep.all())
        for index in range(len(rewritten.frames)):
            batch, batch_head = rewritten.frames.slice(index, index + 1), rewritten.head.slice(index, index + 1)
            if batch_head["record_count"][0] == 0 and counts[rewritten.sources[index]] > 0:
                self.emptied.append((*place, batch, batch_head))
            else:
                yield from self.put(place, batch, batch_head)

    def put(self, place: tuple[int, float | None], frames: Frames, head: Heads) -> Iterator[NewSegment]:
        """Batches as they are, and before them the bare headers that waited for something to follow."""
        assert self.writer is not None
        for base, modified, batches, batches_head in [*self.emptied, (*place, frames, head)]:
            first, end = int(batches_head["base_offset"][0]), self.writer.end_offset
            first = min(first, base) if base != self.base else first  # a segment may begin after its name
            if self.has_cut and self.writer.batches and end < first and batches_head["magic"][0] == MAGIC_V2:
                # What was cut in between would seem to be lost.
                rows = self.writer.derivation.epochs.rows
                fields = BatchFields(base_offset=end, last_offset=first - 1, leader_epoch=rows[-1][0] if rows else NONE)
                empty = encode_batch(pa.RecordBatch.from_pylist([], schema=RECORDS.schema), fields)
                yield NewSegment(None, [(empty.frames, empty.head)])
            yield NewSegment(None if base == self.base else base, [(batches, batches_head)], modified)
            self.base = base
        self.has_cut = False
        self.emptied.clear()
        self.count(frames, head)

    def abort_open(self, writer: PartitionWriter) -> Iterator[tuple[Frames, Heads]]:
        """A marker for every transaction that has none."""
        now = self.options.until - 1 if self.options.until is not None else int(time.time() * 1000)
        yield from self.options.endings.markers(writer, now, self.report)


# One directory ----------------------------------------------------------------------------------------------------------


def copy_directory(
    files: Sequence[File],
    folder: Path,
    options: CopyOptions,
    advance: Callable[[int], None] = lambda size: None,
    closing: Closing | None = None,
) -> Report:
    """Copy a partition's files into a folder, which exists and is empty: what `repair` keeps of them, and reported as it does.

    DataError at damage unless the options say `stop` (nothing after it is copied) or `skip` (all sound batches are).
    """
    segments = segments_of(files)
    start = segments[0].place.start_offset or 0
    floor = max((offset for segment in segments if (offset := log_start(segment, files)) is not None), default=None)
    plain = PlainBatches(segments)
    copy = PartitionCopy(folder, options, plain, advance, closing)
    try:
        copy.write(start)
    except DataError:
        if options.errors == "raise":
            raise
        log = outline(files, plain.extents)
    else:
        log = outline(files, plain.extents)
        if is_plain(log):
            plain.report.notes += [str(gap) for gap in log.gaps]
            return copy.summarise(floor)

    def salvage(transactions: Sequence[Transaction]) -> Repair:
        policy = BrokerCut if options.errors == "stop" else Salvage
        return policy(log, options.index_interval, None, None, transactions)

    copy.discard()
    return _write_repaired(PartitionCopy(folder, options, plain, closing=closing), salvage, start, [files]).summarise(
        floor
    )


def _write_repaired(
    copy: PartitionCopy,
    source: Callable[[Sequence[Transaction]], Repair],
    start: int,
    evidence: Sequence[Sequence[File]],
) -> PartitionCopy:
    """Write a log that may have damage, with the markers of transactions that damage took and the files of a replica still know."""

    def attempt(transactions: Sequence[Transaction]) -> tuple[Repair, PartitionWriter]:
        nonlocal copy
        copy.discard()
        advance = copy.advance if copy.writer is None else lambda size: None  # its bytes are counted once
        batches = source(transactions)
        copy = PartitionCopy(copy.folder, copy.options, batches, advance, copy.closing)
        return batches, copy.write(start)

    batches, writer, transactions = write_with_markers(attempt, evidence)
    is_cut = copy.report.counts["records_cut"] > 0
    batches.report_losses(transactions, writer.end_offset if is_cut else None)
    return copy


def is_plain(log: Outline) -> bool:
    """Whether a log is as it should be: its batches can be copied as they are."""
    if log.lost or log.corrections or log.placed or any(gap.is_lost for gap in log.gaps):
        return False
    is_named = all(piece.start == log.extents[piece.segment].first for piece in log.pieces)
    return is_named and not any(log.fates(number) for number in range(len(log.extents)))


class PlainBatches:
    """The batches of segments as they are. DataError at the first thing that `repair` would drop, move or change."""

    def __init__(self, segments: Sequence[File]) -> None:
        self.files, self.report = segments, Report()
        #: What the segments that were read so far cover.
        self.extents: dict[str, Extent] = {}
        #: The position of the last batch that was read, its first offset, and the one after its last.
        self.last_batch = (0, 0, 0)

    def segments(self, writer: PartitionWriter) -> Iterator[NewSegment]:
        """Every segment."""
        for number, file in enumerate(self.files):
            following = self.files[number + 1].place.start_offset if number + 1 < len(self.files) else None
            yield NewSegment(file.place.start_offset or 0, self.batches(file, following), file.modified)

    def batches(self, segment: File, following: int | None) -> Iterator[tuple[Frames, Heads]]:
        """The batches of a segment; the next one begins at an offset, or there is none."""
        from rawlog.formats.kafka import LOG

        plain = PlainExtent(segment)
        reached, status = 0, Status.OK
        for frames in walk(segment, LOG):
            reached, status = frames.reached_in_file, frames.status
            if status is Status.TRUNCATED and frames.last and following is not None:
                raise describe(LOG, frames, segment.path)
            head = heads(frames)
            _, error = sound(frames, head)
            if error is not None:
                raise error.at(path=segment.path, format=LOG.name)
            before = plain.following - 1
            plain.add(frames, head)
            if not plain.is_plain or (following is not None and plain.has_batches and plain.following > following):
                raise _misplaced_error(frames, head, before, following).at(path=segment.path, format=LOG.name)
            if len(frames):
                span = (int(head["base_offset"][-1]), int(head["last_offset"][-1]) + 1)
                self.last_batch = (int(frames.positions[-1]), *span)
            yield frames, head
        if segment.size > reached and status is not Status.PADDING:
            place = {"start": reached, "stop": segment.size, "is_expected": True}
            self.report.add(Action.DROPPED, "an unfinished batch at the end of the log", segment.path, **place)
        elif (extent := plain.extent()) is not None:
            self.extents[segment.path] = extent


def _misplaced_error(frames: Frames, head: Heads, before: int, following: int | None) -> CorruptError:
    """The first batch whose offset does not follow those before it, or is after the beginning of the next segment."""
    last = head["last_offset"]
    ends = np.concatenate(([before], last[:-1]))
    is_wrong = (last <= ends) | ((head["base_offset"] <= ends) & (head["magic"] == MAGIC_V2))
    if following is not None:
        is_wrong |= last >= following
    at = int(np.argmax(is_wrong)) if is_wrong.any() else 0
    return CorruptError(
        f"offset {int(head['base_offset'][at])} after {int(ends[at])}",
        position=int(frames.positions[at]),
        field="base_offset",
    )


# ----------------------------------------------------------------------------------------------------------------------
# A partition put together from several replicas: chosen runs of their outlines, written as one log.
# Where nothing is damaged the runs are whole segments, and their bytes are copied as they are.


#: A segment that grows by what other replicas give it ends here: an index holds no larger position.
LARGEST_SEGMENT = 1 << 30


@dataclass(frozen=True, slots=True)
class PartitionUnion:
    """What a partition is put together from. `floor` is the first offset that consumers get, if the log begins before it; `aside` are
    runs that contradict the result, by the name of their disk.
    """

    runs: tuple[Run, ...]
    start: int = 0
    floor: int | None = None
    aside: tuple[tuple[str, tuple[Run, ...]], ...] = ()
    #: The files of the only replica: it is repaired.
    files: tuple[File, ...] = ()
    #: Offsets that no replica has, first and last; the damaged bytes there; and the files of each replica, which may know of
    #: transactions that ended among them.
    lost: tuple[Lost, ...] = ()
    damage: tuple[DamagedBytes, ...] = ()
    evidence: tuple[tuple[File, ...], ...] = ()

    @property
    def size(self) -> int:
        logs = sum(file.size for file in self.files if file.format == "kafka.log")
        return logs + sum(run.stop - run.start for run in self.runs)


def runs_between(copy: Copy, start: int, stop: int) -> Iterator[Run]:
    """The runs of a copy with offsets in a range, cut to it."""
    for run in copy.runs:
        if run.end > start and run.first < stop:
            yield replace(run, first=max(run.first, start), end=min(run.end, stop))


def runs_of_pieces(copies: dict[int, Copy], pieces: list[Share]) -> tuple[Run, ...]:
    """The runs of the pieces of a result, in order."""
    return tuple(run for piece in pieces for run in runs_between(copies[piece.copy], piece.start, piece.stop))


def copy_union(
    content: PartitionUnion,
    folder: Path,
    options: CopyOptions,
    advance: Callable[[int], None] = lambda size: None,
    closing: Closing | None = None,
) -> Report:
    """Write the runs of several replicas into a folder, which exists and is empty."""
    source = partial(UnionBatches, content)
    copy = PartitionCopy(folder, options, source(), advance, closing)
    return _write_repaired(copy, source, content.start, content.evidence).summarise(content.floor)


class UnionBatches(Repair):
    """The batches of runs of several replicas, one after the other, and lost markers of transactions between them."""

    def __init__(self, content: PartitionUnion, transactions: Sequence[Transaction] = ()) -> None:
        super().__init__(transactions=transactions)
        self.content = content
        #: The offset in the name of the segment that is being written, and its size so far.
        self.base, self.size = NONE, 0

    def segments(self, writer: PartitionWriter) -> Iterator[NewSegment]:
        """Every run. A segment begins where one of the replica does that it is from, unless its beginning is written already."""
        self.damage += self.content.lost
        for damaged in self.content.damage:
            with suppress(AccessError), Source(damaged.path) as source:
                self.ledger.cut(byte_view(source.read(damaged.start, damaged.stop - damaged.start)))
        before: Run | None = None
        for run in self.content.runs:
            name, before = _segment_name(run, before), run
            for frames, head in self.batches(writer, run):
                base = self.begins(writer, name, head)
                if base is not None and self.base != NONE:
                    yield NewSegment(None, self.markers_before(base, run.file))
                self.base = self.base if base is None else base
                self.size = int(frames.sizes.sum()) + (self.size if base is None else 0)
                batches = self.insert_markers(run.file, frames, head) if self.damage else [(frames, head)]
                yield NewSegment(base, batches, run.file.modified)
        for run in self.content.runs[-1:]:
            yield NewSegment(None, self.markers_before(HUGE, run.file))

    def batches(self, writer: PartitionWriter, run: Run) -> Iterator[tuple[Frames, Heads]]:
        """The batches of one run. What the survey found to be sound and is not any more is lost, and reported."""
        from rawlog.formats.kafka import LOG

        self.report_corrections(run)
        is_read = False
        for frames in walk(run.file, LOG, start=run.start, stop=run.stop, errors="skip"):
            whole, head = select_batches(correct_offsets(frames, run), run, writer.end_offset)
            if len(whole):
                is_read = True
                yield whole, head
        if not is_read and run.first < run.end:
            place = {"first_offset": run.first, "stop_offset": run.end}
            self.report.add(Action.LOST, "it could be read before, and cannot now", run.file.path, **place)

    def report_corrections(self, run: Run) -> None:
        """Report the fields of a run's batches that are written with another value than the stored one."""
        place = {"start": run.start, "stop": run.stop, "first_offset": run.first, "stop_offset": run.end}
        if run.stored is not None:
            self.report.add(Action.CHANGED, f"base offset set to {run.first}", run.file.path, **place)
        if run.stored_lineage is not None:
            self.report.add(Action.CHANGED, f"leader epoch set to {run.lineage}", run.file.path, **place)

    def begins(self, writer: PartitionWriter, base: int, head: Heads) -> int | None:
        """The offset that a new segment is named by, `base` if it can be; None to go on with the one that is being written."""
        end = writer.end_offset
        first, last = int(head["base_offset"][0]), int(head["last_offset"][-1])
        if int(head["magic"][0]) != MAGIC_V2:
            first = max(end, base)  # of a wrapper only the content tells its first offset
        if self.base == NONE:
            return min(base, first)
        if base > self.base and base >= end:
            return base
        is_full = self.size > LARGEST_SEGMENT or last - self.base > FARTHEST
        return max(end, min(first, end)) if is_full else None


def _segment_name(run: Run, before: Run | None) -> int:
    """The offset in the name of a run's segment; where the run begins, if it does not fit that name or the run before it in the replica."""
    name, path = run.file.place.start_offset or 0, run.file.path
    is_alone = before is None or before.file.path == path or split(before.file.path)[0] != split(path)[0]
    return name if name <= run.first and (is_alone or (before is not None and before.end <= name)) else run.first


def correct_offsets(frames: Frames, run: Run) -> Frames:
    """The batches of a window with the offset and epoch that they must have; neither is covered by their checksums."""
    if not run.is_corrected:
        return frames
    frames = replace(frames, data=frames.data.copy())
    for start in frames.starts.tolist():
        if run.stored is not None:  # of magic 0 and 1 the last offset is the one that is stored
            is_new = frames.data[start + OUTLINE.at("magic")] == MAGIC_V2
            set_field(frames.data, start, "base_offset", run.first if is_new else run.end - 1)
        if run.stored_lineage is not None:
            set_field(frames.data, start, "leader_epoch", run.lineage)
    return frames


def select_batches(frames: Frames, run: Run, end: int) -> tuple[Frames, Heads]:
    """The sound batches of a window that lie entirely in a run and after `end`, the end of the written log."""
    head = heads(frames)
    if not len(frames):
        return frames, head
    first = max(run.first, end)
    keep = head.sound & (head["last_offset"] >= first) & (head["last_offset"] < run.end)
    keep &= (head["base_offset"] >= first) | (head["magic"] != MAGIC_V2)
    return (frames, head) if bool(np.all(keep)) else (only(frames, keep), head.only(keep))
