"""A partition copied batch by batch: the same bytes in the same segments, with all derived files rebuilt.

With a time to stop at, the copy has what was written before it: batches that also have later records are rewritten without those, and
transactions that were open at that time are aborted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rawlog.formats.kafka.cluster.open_transactions import Endings
from rawlog.formats.kafka.log.heads import Heads, heads
from rawlog.formats.kafka.log.layouts import BATCH, MAGIC_V2, NONE, Attributes
from rawlog.formats.kafka.log.records import TooMuch, milliseconds
from rawlog.formats.kafka.log.segment import decode_run, only, pieces, sound, unwrapped_counts
from rawlog.formats.kafka.partition.continuity import continuity
from rawlog.formats.kafka.partition.erase import keep_records
from rawlog.formats.kafka.partition.extents import Extent, Plain
from rawlog.formats.kafka.partition.lineage import Copy, Piece
from rawlog.formats.kafka.partition.rewrite import NewSegment, rewrite, segments_of
from rawlog.formats.kafka.partition.writer import Derivation, Limits, PartitionWriter, metadata_file
from rawlog.formats.kafka.texts import log_start
from rawlog.io.output import Folder
from rawlog.io.walk import describe, walk
from rawlog.model.errors import CorruptError, DataError
from rawlog.model.format import File, Place
from rawlog.model.frames import Frames
from rawlog.model.report import Action, Report
from rawlog.model.status import Status

LIMIT = 1 << 28
COUNTS = (
    "segments", "batches", "records", "bytes", "batches_rewritten", "records_cut", "transactions_aborted",
    "transactions_committed", "offsets_committed", "bytes_lost",
)  # fmt: skip
"""What is counted for each partition.

Its facts are `end_offset`, and where known `log_start` (the first offset that a consumer gets, if later than that of the log),
`largest_epoch` and `largest_producer`.
"""


@dataclass(frozen=True, slots=True)
class Wish:
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


@dataclass(slots=True)
class Carrier:
    """The policy of `restore`: copies one partition. `advance` is called with the number of bytes that are done."""

    folder: Path
    wish: Wish
    advance: Callable[[int], None] = lambda size: None
    report: Report = field(default_factory=partition_report)
    #: Batches of producers that lost all their records, each with its segment: written as bare headers if anything follows, so that
    #: sequences continue.
    emptied: list[tuple[File, Frames, Heads]] = field(default_factory=list)
    base: int = NONE
    #: What the segments that were read so far cover, where they have no damage.
    extents: dict[str, Extent] = field(default_factory=dict)
    files: Sequence[File] = ()
    append_more: Callable[[PartitionWriter], object] | None = None
    # What every policy says.
    limits: Limits | None = None
    derivation: Derivation | None = None
    interval: int = 4096
    metadata: bytes | None = None

    def run(self, files: Sequence[File], extra: Callable[[PartitionWriter], object] | None = None) -> Report:
        """Copy a partition's files into the folder, which exists and is empty; `extra` may append more at the end.

        DataError at damage unless the wish says `stop` (nothing after it is copied) or `skip` (all valid batches after it are).
        """
        segments = segments_of(files)
        report, self.files, self.append_more = self.report, files, extra
        self.interval, self.metadata = self.wish.index_interval, metadata_file(self.wish.topic_id)
        writer = rewrite(Folder(self.folder), self, log_start=segments[0].place.start_offset or 0)
        floors = [floor for floor in (log_start(one, files) for one in segments) if floor is not None]
        self.summarise(writer, max(floors, default=None))
        return report

    def summarise(self, writer: PartitionWriter, floor: int | None) -> None:
        """Report what was written. `floor` is the first offset that a consumer gets, if the log begins before it."""
        report = self.report
        report.counts |= {"segments": writer.segments, "batches": writer.batches, "bytes": writer.bytes}
        report.facts["end_offset"] = writer.end_offset
        epochs = writer.derivation.epochs.rows
        report.facts["largest_epoch"] = max([0, *(epoch for epoch, _ in epochs)])
        if floor is not None and floor <= writer.end_offset:
            report.facts["log_start"] = floor

    def segments(self, writer: PartitionWriter) -> Iterator[NewSegment]:
        """The segments of the source, the markers of transactions that are aborted, and what is added at the end."""
        logs = segments_of(self.files)
        is_cut = False
        for segment in logs:
            if not (yield from self.segment(writer, segment, is_last=segment is logs[-1])):
                is_cut = True
                break
        is_cut |= self.report.counts["records_cut"] > 0
        self.note_gaps(self.files, writer.end_offset if is_cut else None)
        if self.wish.abort_open:
            yield NewSegment(None, self.abort_open(writer))
        if self.append_more is not None:
            self.append_more(writer)

    def segment(self, writer: PartitionWriter, segment: File, *, is_last: bool) -> Generator[NewSegment, None, bool]:
        """Copy one segment; whether the next one is copied too."""
        from rawlog.formats.kafka import LOG

        base = segment.place.start_offset or 0
        reached, status = 0, Status.OK
        plain: Plain | None = Plain(segment)
        for frames in walk(segment, LOG, errors=self.wish.errors):
            if frames.base > reached:
                self.lose(segment, reached, frames.base)
            size = frames.reached_in_file - frames.base
            reached, status = frames.reached_in_file, frames.status
            if status is Status.TRUNCATED and frames.last and not is_last and self.wish.errors == "raise":
                raise describe(LOG, frames, segment.path)
            if status.is_damage or (frames.last and status is Status.TRUNCATED):
                plain = None
            whole, head, broken = self.sound(segment, frames, max(writer.end_offset, base))
            if plain is not None and len(whole) == len(frames):
                plain.add(whole, head)
            else:
                plain = None
            if len(whole):
                yield from self.append(segment, whole, head)
            self.advance(size)
            if broken and self.wish.errors == "stop":
                self.lose(segment, broken, segment.size)
                return False
        if plain is not None and (made := plain.extent()) is not None:
            self.extents[segment.path] = made
        if segment.size > reached and status is Status.TRUNCATED and is_last:
            place = {"start": reached, "stop": segment.size, "is_expected": True}
            self.report.add(Action.DROPPED, "an unfinished batch at the end of the log", segment.path, **place)
        elif segment.size > reached and status is not Status.PADDING:
            self.lose(segment, reached, segment.size)
            return self.wish.errors != "stop"
        return True

    def note_gaps(self, files: Sequence[File], end: int | None) -> None:
        """Report the offsets that are missing between segments, up to where the copy was cut."""
        for gap in continuity(files, self.extents).gaps:
            if not gap.is_lost:
                self.report.notes.append(str(gap))
            elif end is None or gap.last < end:
                place = {"first_offset": gap.first, "stop_offset": gap.last + 1}
                self.report.add(Action.LOST, str(gap), gap.file.path, **place)

    def lose(self, segment: File, start: int, stop: int) -> None:
        """Report bytes that are not copied."""
        self.report.count("bytes_lost", stop - start)
        self.report.add(Action.DROPPED, "not valid batches", segment.path, start=start, stop=stop)

    def sound(self, segment: File, frames: Frames, following: int) -> tuple[Frames, Heads, int | None]:
        """The valid batches whose offsets rise, and the position of the first batch that is not one of them, if there is one."""
        head = heads(frames)
        good = head.sound.copy()
        error: DataError | None = None
        if not good.all():
            error = sound(frames, head)[1]
        ends = (
            np.maximum.accumulate(np.where(good, head["last_offset"], NONE)) if len(frames) else np.empty(0, np.int64)
        )
        before = np.maximum(np.concatenate(([following - 1], ends[:-1])), following - 1) if len(frames) else ends
        last_inside = head["last_offset"] - (segment.place.start_offset or 0) <= np.iinfo(np.int32).max
        ordered = (head["last_offset"] > before) & last_inside
        ordered &= (head["base_offset"] > before) | (head["magic"] != MAGIC_V2)
        if not ordered[good].all() and error is None:
            at = int(np.argmax(good & ~ordered))
            error = CorruptError(
                f"offset {int(head['base_offset'][at])} after {int(before[at])}",
                position=int(frames.positions[at]),
                field="base_offset",
            )
        good &= ordered
        if error is None or good.all():
            return frames, head, None
        if self.wish.errors == "raise":
            raise error.at(path=segment.path, format="kafka.log")
        bad = np.flatnonzero(~good)
        place = int(frames.positions[bad[0]])
        if self.wish.errors == "stop":
            good[bad[0] :] = False
        else:
            for index in bad.tolist():
                start = int(frames.positions[index])
                self.lose(segment, start, start + int(frames.sizes[index]))
        return only(frames, good), head.only(good), place

    # Cutting at a time ------------------------------------------------------------------------------------------------

    def append(self, segment: File, frames: Frames, head: Heads) -> Iterator[NewSegment]:
        """Batches, or what is left of them."""
        until = self.wish.until
        if until is None or bool((head["max_timestamp"] < until).all()):
            yield from self.write(segment, frames, head)
            return
        first = 0
        late = head["max_timestamp"] >= until
        edges = [*(np.flatnonzero(np.diff(late.astype(np.int8))) + 1).tolist(), len(frames)]
        for stop in edges:
            run, own = frames.slice(first, stop), head.slice(first, stop)
            if late[first]:
                for start, end in pieces(run, own):
                    yield from self.cut(segment, run.slice(start, end), own.slice(start, end), until)
            else:
                yield from self.write(segment, run, own)
            first = stop

    def cut(self, segment: File, frames: Frames, head: Heads, until: int) -> Iterator[NewSegment]:
        """What is left of batches of one kind that have records at or after the time."""
        try:
            decoded = decode_run(frames, head, {"timestamp"}, LIMIT)
        except TooMuch as full:
            yield from self.cut(segment, frames.slice(0, full.fits), head.slice(0, full.fits), until)
            yield from self.cut(
                segment, frames.slice(full.fits, len(frames)), head.slice(full.fits, len(frames)), until
            )
            return
        keep = milliseconds(decoded.arrays["timestamp"]) < until
        counts = np.bincount(decoded.batch_index, minlength=len(frames)).astype(np.int64)
        control = head.has(Attributes.CONTROL)
        self.report.count("records_cut", int(np.count_nonzero(~keep & ~control[decoded.batch_index])))
        retain = (head["magic"] == MAGIC_V2) & (head["producer_id"] >= 0) & ~control
        left = keep_records(frames, head, counts, keep, retain=retain)
        self.report.count("batches_rewritten", left.rebuilt)
        for index in range(len(left.frames)):
            one, own = left.frames.slice(index, index + 1), left.head.slice(index, index + 1)
            if own["record_count"][0] == 0 and counts[left.sources[index]] > 0:
                self.emptied.append((segment, one, own))
            else:
                yield from self.write(segment, one, own)

    def write(self, segment: File, frames: Frames, head: Heads) -> Iterator[NewSegment]:
        """Batches as they are, and before them the bare headers that waited for something to follow."""
        report = self.report
        for file, one, own in [*self.emptied, (segment, frames, head)]:
            base = file.place.start_offset or 0
            yield NewSegment(None if base == self.base else base, [(one, own)], file.modified)
            self.base = base
        self.emptied.clear()
        counts: NDArray[np.int64] = head["record_count"]
        if (counts < 0).any():
            _, counts = unwrapped_counts(frames, head, LIMIT)
        report.count("records", int(counts[(counts > 0) & ~head.has(Attributes.CONTROL)].sum()))
        largest = max(report.facts.get("largest_producer", NONE), int(head["producer_id"].max()))
        if largest >= 0:
            report.facts["largest_producer"] = largest

    def abort_open(self, writer: PartitionWriter) -> Iterator[tuple[Frames, Heads]]:
        """A marker for every transaction that has none."""
        now = self.wish.until - 1 if self.wish.until is not None else int(time.time() * 1000)
        yield from self.wish.endings.markers(writer, now, self.report)


# ----------------------------------------------------------------------------------------------------------------------
# A partition put together from several replicas: the batches of chosen stretches of their segments, written as one log.
# It is `restore`'s copy of a partition with another source. Where nothing is damaged the stretches are whole segments, and their bytes
# are copied as they are.


#: A segment that grows by what other replicas give it ends here: an index holds no larger position.
LARGEST_SEGMENT = 1 << 30
FAR = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Stretch:
    """Bytes `start` to `stop` of a segment, and of the batches there those from offset `first` to `end`.

    `epoch` is the right leader epoch of all of them, if theirs is wrong; with `is_moved` they are one batch, whose offset is wrong: it
    begins at `first`.
    """

    path: str
    base: int
    start: int
    stop: int
    first: int
    end: int
    modified: float | None = None
    epoch: int | None = None
    is_moved: bool = False

    @property
    def file(self) -> File:
        """The segment."""
        return File(self.path, self.stop, self.modified, "kafka.log", Place(start_offset=self.base))


@dataclass(frozen=True, slots=True)
class Merged:
    """What a partition is put together from. `floor` is the first offset that consumers get, if the log begins before it; `aside` are
    stretches that contradict the result, by the name of their disk.
    """

    stretches: tuple[Stretch, ...]
    start: int = 0
    floor: int | None = None
    aside: tuple[tuple[str, tuple[Stretch, ...]], ...] = ()

    @property
    def size(self) -> int:
        return sum(one.stop - one.start for one in self.stretches)


def stretches_of(copy: Copy, start: int, stop: int) -> Iterator[Stretch]:
    """Where the batches of a copy with offsets in a range are; runs that follow one another in a segment are one."""
    made: Stretch | None = None
    right = copy.right_epochs
    for run in copy.runs:
        if run.end <= start or run.first >= stop:
            continue
        first, end, epoch = max(run.first, start), min(run.end, stop), right.get(run.first)
        is_plain = not run.is_moved and epoch is None
        joins = made is not None and made.path == run.path and made.stop == run.start and made.end <= first
        if made is not None and joins and is_plain and not made.is_moved and made.epoch is None:
            made = replace(made, stop=run.stop, end=end)
            continue
        if made is not None:
            yield made
        made = Stretch(run.path, run.base, run.start, run.stop, first, end, run.modified, epoch, run.is_moved)
    if made is not None:
        yield made


def pieces_of(copies: dict[int, Copy], pieces: list[Piece]) -> tuple[Stretch, ...]:
    """The stretches of the pieces of a result, in order."""
    return tuple(one for piece in pieces for one in stretches_of(copies[piece.copy], piece.start, piece.stop))


@dataclass(slots=True)
class UnionCarrier(Carrier):
    """The policy of `rescue`: copies the stretches of several replicas, one after the other."""

    content: Merged = Merged(())
    writer: PartitionWriter | None = field(default=None, repr=False)
    #: The offset in the name of the segment that is being written, and its size so far.
    current: int = NONE
    segment_size: int = 0

    def unite(self, content: Merged, extra: Callable[[PartitionWriter], object] | None = None) -> Report:
        """Write the partition into the folder, which exists and is empty; `extra` may append more at the end."""
        self.content, self.append_more = content, extra
        self.interval, self.metadata = self.wish.index_interval, metadata_file(self.wish.topic_id)
        writer = rewrite(Folder(self.folder), self, log_start=content.start)
        self.summarise(writer, content.floor)
        return self.report

    def segments(self, writer: PartitionWriter) -> Iterator[NewSegment]:
        """Every stretch, the markers of transactions that are aborted, and what is added at the end."""
        self.writer = writer
        for stretch in self.content.stretches:
            yield from self.stretch(writer, stretch)
        if self.wish.abort_open:
            yield NewSegment(None, self.abort_open(writer))
        if self.append_more is not None:
            self.append_more(writer)

    def stretch(self, writer: PartitionWriter, stretch: Stretch) -> Iterator[NewSegment]:
        """The batches of one stretch. What the survey found to be sound and is not any more is lost, and reported."""
        from rawlog.formats.kafka import LOG

        file = stretch.file
        following = stretch.first
        self.report_corrections(stretch)
        for frames in walk(file, LOG, start=stretch.start, stop=stretch.stop, errors="skip"):
            whole, head = wanted(corrected(frames, stretch), stretch)
            whole, head, _ = (
                self.sound(file, whole, max(writer.end_offset, following)) if len(whole) else (whole, head, None)
            )
            if len(whole):
                yield from self.append(file, whole, head)
                following = int(head["last_offset"][-1]) + 1
            self.advance(frames.reached_in_file - frames.base)
        if following < stretch.end and following == stretch.first:
            place = {"first_offset": stretch.first, "stop_offset": stretch.end}
            self.report.add(Action.LOST, "it could be read before, and cannot now", stretch.path, **place)

    def report_corrections(self, stretch: Stretch) -> None:
        """Report the fields of a stretch's batches that are written with another value than the stored one."""
        place = {
            "start": stretch.start,
            "stop": stretch.stop,
            "first_offset": stretch.first,
            "stop_offset": stretch.end,
        }
        if stretch.is_moved:
            self.report.add(Action.CHANGED, f"base offset set to {stretch.first}", stretch.path, **place)
        if stretch.epoch is not None:
            self.report.add(Action.CHANGED, f"leader epoch set to {stretch.epoch}", stretch.path, **place)

    def write(self, segment: File, frames: Frames, head: Heads) -> Iterator[NewSegment]:
        """Batches as they are. A segment begins where one of the replica does that they are from, unless its beginning is written
        already.
        """
        base = self.begins(segment, head)
        self.current = self.current if base is None else base
        self.segment_size = int(frames.sizes.sum()) + (self.segment_size if base is None else 0)
        for new in super(UnionCarrier, self).write(segment, frames, head):
            yield NewSegment(base, new.batches, new.modified)

    def begins(self, segment: File, head: Heads) -> int | None:
        """The offset that a new segment is named by; None to go on with the one that is being written."""
        assert self.writer is not None
        base, end = segment.place.start_offset or 0, self.writer.end_offset
        first, last = int(head["base_offset"][0]), int(head["last_offset"][-1])
        if int(head["magic"][0]) != MAGIC_V2:
            first = max(end, base)  # of a wrapper only the content tells its first offset
        if self.current == NONE:
            return min(base, first)
        if base > self.current and base >= end:
            return base
        is_full = self.segment_size > LARGEST_SEGMENT or last - self.current > FAR
        return max(end, min(first, end)) if is_full else None


def corrected(frames: Frames, stretch: Stretch) -> Frames:
    """The batches of a window with the offset and epoch that they must have; neither is covered by their checksums."""
    if stretch.epoch is None and not stretch.is_moved:
        return frames
    data = frames.data.copy()
    for name, value in (("base_offset", stretch.first if stretch.is_moved else None), ("leader_epoch", stretch.epoch)):
        if value is not None:
            raw = np.frombuffer(value.to_bytes(BATCH.after(name) - BATCH.at(name), "big", signed=True), np.uint8)
            for start in frames.starts.tolist():
                data[start + BATCH.at(name) : start + BATCH.after(name)] = raw
    return replace(frames, data=data)


def wanted(frames: Frames, stretch: Stretch) -> tuple[Frames, Heads]:
    """The batches of a window whose offsets are in a stretch; one that is only partly in it is not."""
    from rawlog.formats.kafka.log.heads import heads

    head = heads(frames)
    if not len(frames):
        return frames, head
    keep = (head["last_offset"] >= stretch.first) & (head["last_offset"] < stretch.end)
    keep &= (head["base_offset"] >= stretch.first) | (head["magic"] != MAGIC_V2)
    return (frames, head) if bool(np.all(keep)) else (only(frames, keep), head.only(keep))
