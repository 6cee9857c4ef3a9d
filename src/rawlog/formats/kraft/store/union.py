"""A partition put together from several replicas: the batches of chosen stretches of their segments, written as one log.

It is `restore`'s copy of a partition with another source. Where nothing is damaged the stretches are whole segments, and their bytes are
copied as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from rawlog.core.format import File, Place
from rawlog.core.frames import Frames
from rawlog.core.report import Action, Report
from rawlog.formats.kafka.heads import Heads
from rawlog.formats.kafka.layouts import BATCH, MAGIC_V2, NONE
from rawlog.formats.kafka.log import only
from rawlog.formats.kafka.store.lineage import Copy, Piece
from rawlog.formats.kafka.store.partition_writer import PartitionWriter, metadata_file
from rawlog.formats.kafka.store.rewrite import NewSegment, rewrite
from rawlog.formats.kraft.store.carrying import Carrier
from rawlog.io.output import Folder
from rawlog.io.walk import walk

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
    from rawlog.formats.kafka.heads import heads

    head = heads(frames)
    if not len(frames):
        return frames, head
    keep = (head["last_offset"] >= stretch.first) & (head["last_offset"] < stretch.end)
    keep &= (head["base_offset"] >= stretch.first) | (head["magic"] != MAGIC_V2)
    return (frames, head) if bool(np.all(keep)) else (only(frames, keep), head.only(keep))
