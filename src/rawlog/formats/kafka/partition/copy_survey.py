"""The survey of a replica: what its segments hold, as runs of sound batches and the damage between them. It reads every byte once.

The result does not grow with the size of a partition, only with its number of segments, of changes of leader, and of damaged places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rawlog.formats.kafka.log.heads import Heads, heads
from rawlog.formats.kafka.log.layouts import MAGIC_V2, NONE, Attributes
from rawlog.formats.kafka.partition.lineage import Damage, Run
from rawlog.formats.kafka.partition.salvage import find_sound
from rawlog.io.storage import Source
from rawlog.io.walk import walk
from rawlog.kernels import byte_view
from rawlog.model.errors import AccessError
from rawlog.model.format import File
from rawlog.model.frames import Frames
from rawlog.model.status import Status

LARGEST_SEARCH = 64 << 20
"""In a larger damaged place no batches are looked for that a wrong length has hidden."""
FAR = 1 << 31
"""No batch is so far from the beginning of its segment."""


@dataclass(frozen=True, slots=True)
class SegmentSurvey:
    """What one segment holds. `is_unfinished`: its last batch is not whole, as a crash leaves it. `tail` is the last batch of the log, if
    offsets are missing before it.
    """

    path: str
    base: int
    size: int
    runs: tuple[Run, ...] = ()
    damage: tuple[Damage, ...] = ()
    is_compacted: bool = False
    is_unfinished: bool = False
    tail: Run | None = None


def survey_segment(
    file: File, following: int | None, advance: Callable[[int], None] = lambda size: None
) -> SegmentSurvey:
    """Read a segment. `following` is the offset that the next segment of the log begins at. What a disk cannot read any more is damaged."""
    from rawlog.formats.kafka import LOG

    made = _Survey(file, following)
    try:
        for frames in walk(file, LOG, errors="skip"):
            made.see(frames)
            advance(frames.reached_in_file - frames.base)
    except AccessError:
        made.status = Status.BAD_VALUE
    return made.close()


@dataclass(slots=True)
class _Survey:
    """The state of one pass over a segment."""

    file: File
    following: int | None
    runs: list[Run] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    is_compacted: bool = False
    reached: int = 0
    status: Status = Status.OK
    #: The log before its last batch, to give that one up if the batches after it contradict it: number of runs, and the last of them.
    before: tuple[int, Run | None] = (0, None)
    #: The offsets of the last batch, whether some are missing before it, and whether records were taken out of it.
    last: tuple[int, int] = (0, 0)
    is_after_gap: bool = False
    is_thin: bool = False
    #: Only the headers of damaged batches say that something is missing before the last batch.
    is_claimed: bool = False

    @property
    def base(self) -> int:
        return self.file.place.start_offset or 0

    @property
    def end(self) -> int:
        return self.runs[-1].end if self.runs else self.base

    def see(self, frames: Frames) -> None:
        """Take in a window."""
        if frames.base > self.reached:
            self.lose(self.reached, frames.base)
        head = heads(frames)
        if len(frames):
            state = head.sound
            edges = [0, *(np.flatnonzero(state[1:] != state[:-1]) + 1).tolist(), len(frames)]
            for start, stop in pairwise(edges):
                self.add_some(frames.slice(start, stop), head.slice(start, stop))
        self.reached, self.status = frames.reached_in_file, frames.status

    def firsts(self, head: Heads) -> NDArray[np.int64]:
        """The first offsets of batches. Only the content of a wrapper tells it: the one after the batch before it is taken."""
        wrapped = head["record_count"] < 0
        if not wrapped.any():
            return head["base_offset"]
        before = np.concatenate(([self.end], head["last_offset"][:-1] + 1))
        return np.where(wrapped, np.minimum(before, head["last_offset"]), head["base_offset"])

    def is_rising(self, head: Heads, firsts: NDArray[np.int64]) -> bool:
        """Whether batches go on from those before, inside of the segment."""
        last = head["last_offset"]
        inside = int(last[-1]) - self.base < FAR and (self.following is None or int(last[-1]) < self.following)
        return inside and int(firsts[0]) >= self.end and bool((firsts[1:] > last[:-1]).all() and (last >= firsts).all())

    def add_all(self, frames: Frames, head: Heads, firsts: NDArray[np.int64]) -> None:
        """Sound batches in order, as runs of one epoch."""
        epochs, last = head["leader_epoch"], head["last_offset"]
        self._look_for_gaps(frames, head, firsts)
        self.last = int(firsts[-1]), int(last[-1]) + 1
        edges = [0, *(np.flatnonzero(epochs[1:] != epochs[:-1]) + 1).tolist(), len(frames)]
        positions, times = frames.positions, head["max_timestamp"]
        for start, stop in pairwise(edges):
            span = int(positions[start]), int(positions[stop - 1]) + int(frames.sizes[stop - 1])
            self.add(
                Run(
                    self.file.path, self.base, *span, int(firsts[start]), int(last[stop - 1]) + 1, int(epochs[start]), stop - start,
                    int(times[start]), int(times[start:stop].max()), self.file.modified,
                )
            )  # fmt: skip
        if len(frames) > 1 and edges[-1] - edges[-2] > 1:
            self.remember(frames, head)

    def _look_for_gaps(self, frames: Frames, head: Heads, firsts: NDArray[np.int64]) -> None:
        """See whether the log was compacted: offsets are missing between batches next to one another, or in them. What is missing before
        the last batch counts only if more batches follow: perhaps the offset of that batch is wrong.
        """
        last = head["last_offset"]
        follows = bool(self.runs) and self.runs[-1].stop == int(frames.positions[0])
        claimed = None if follows else self.claimed_end(int(frames.positions[0]))
        ends = np.concatenate(([self.end if follows else int(firsts[0])], last[:-1] + 1))
        thin = (head["record_count"] >= 0) & (head["record_count"] < last - head["base_offset"] + 1)
        thin |= head.has(Attributes.DELETE_HORIZON)
        gaps = firsts > ends
        was_gap = self.is_after_gap and not self.is_claimed
        self.is_compacted |= was_gap or self.is_thin or bool(gaps[:-1].any() or thin[:-1].any())
        self.is_claimed = len(firsts) == 1 and claimed is not None and int(firsts[0]) > claimed
        self.is_after_gap, self.is_thin = bool(gaps[-1]) or self.is_claimed, bool(thin[-1])

    def claimed_end(self, position: int) -> int | None:
        """Where damaged batches end, by their own headers, that end at a byte."""
        return self.damage[-1].end if self.damage and self.damage[-1].stop == position else None

    def remember(self, frames: Frames, head: Heads) -> None:
        """Keep what the log is without its last batch."""
        at = len(frames) - 1
        run = self.runs[-1]
        shorter = replace(
            run, stop=int(frames.positions[at]), end=int(head["last_offset"][at - 1]) + 1, count=run.count - 1
        )
        self.before = (len(self.runs) - 1, shorter)

    def add(self, run: Run) -> None:
        """A run that follows; it goes on with the one before where nothing is between them."""
        number = len(self.runs)
        if self.runs and self.runs[-1].epoch == run.epoch and self.runs[-1].stop == run.start:
            last = self.runs[-1]
            self.before = (number - 1, last)
            since = last.since if last.since >= 0 else run.since
            self.runs[-1] = replace(
                last,
                stop=run.stop,
                end=run.end,
                count=last.count + run.count,
                since=since,
                until=max(last.until, run.until),
            )
        else:
            self.before = (number, None)
            self.runs.append(run)

    def add_some(self, frames: Frames, head: Heads) -> None:
        """Batches that are all sound, or all damaged."""
        firsts = self.firsts(head)
        if head.sound[0] and self.is_rising(head, firsts):
            self.add_all(frames, head, firsts)
            return
        for index in range(len(frames)):
            self.add_one(frames.slice(index, index + 1), head.slice(index, index + 1))

    def add_one(self, frames: Frames, head: Heads) -> None:
        """A batch that may be damaged or out of order. No checksum covers its offset: where the batches after it contradict it, not they
        but it is wrong.
        """
        start = int(frames.positions[0])
        stop = start + int(frames.sizes[0])
        if not head.sound[0]:
            self.lose(start, stop, self.claimed(head, start))
            return
        firsts = self.firsts(head)
        if self.is_rising(head, firsts):
            self.add_all(frames, head, firsts)
            return
        first, last = int(firsts[0]), int(head["last_offset"][0])
        is_inside = first <= last < self.base + FAR and (self.following is None or last < self.following)
        if is_inside and self.runs and self.is_last_wrong(first):
            self.give_up(stop=start)
            self.add_all(frames, head, firsts)
        else:
            count = last - int(head["base_offset"][0]) + 1 if head["magic"][0] == MAGIC_V2 else None
            self.lose(start, stop, count=count, said=first, epoch=int(head["leader_epoch"][0]))

    def is_last_wrong(self, first: int) -> bool:
        """Whether not a batch that begins at an offset, but the one before it is out of order: there is a gap before that one."""
        number, shorter = self.before
        end = shorter.end if shorter is not None else self.runs[number - 1].end if number else self.base
        if not end <= first < self.runs[-1].end or self.last[0] <= end:
            return False
        return _is_flipped(self.last[0], end) or not _is_flipped(first, self.runs[-1].end)

    def give_up(self, stop: int) -> Run:
        """Take the last batch, which ends at a byte, for damaged; what it was."""
        number, shorter = self.before
        run, start = self.runs[-1], self.runs[-1].start if shorter is None else shorter.stop
        self.runs = [*self.runs[:number], *([] if shorter is None else [shorter])]
        first, end = self.last
        self.is_after_gap = self.is_thin = False
        self.lose(start, stop, count=end - first, said=first, epoch=run.epoch)
        return replace(run, start=start, stop=stop, first=first, end=end, count=1, since=run.until)

    def claimed(self, head: Heads, position: int) -> int | None:
        """Where a damaged batch ends by its own header, if that follows what is before it."""
        base, last, count = (int(head[name][0]) for name in ("base_offset", "last_offset", "record_count"))
        before = self.claimed_end(position)
        if (
            base == (self.end if before is None else before)
            and base <= last < base + (1 << 20)
            and 0 <= count <= last - base + 1
        ):
            return last + 1
        return None

    def lose(
        self,
        start: int,
        stop: int,
        end: int | None = None,
        *,
        count: int | None = None,
        said: int = NONE,
        epoch: int = NONE,
    ) -> None:
        """Bytes that are not sound batches; with a `count` of offsets they are one, in a wrong place."""
        last = self.damage[-1] if self.damage else None
        if last is not None and last.stop == start and count is None:
            self.damage[-1] = replace(last, stop=stop, end=end, count=None)
        else:
            place = (self.file.path, start, stop, self.end, end)
            self.damage.append(Damage(*place, False, count, said, epoch, self.base, self.file.modified))

    def close(self) -> SegmentSurvey:
        """What the segment holds, with the bytes after its last batch judged."""
        size, is_unfinished = self.file.size, False
        if size > self.reached and self.status is not Status.PADDING:
            is_unfinished = self.status is Status.TRUNCATED
            if not is_unfinished or self.following is not None:
                self.lose(self.reached, size)
                is_unfinished = False
        tail = None
        if self.is_after_gap and self.following is None:
            tail = self.give_up(self.runs[-1].stop)
        self.damage = [left for one in self._placed() for left in self._searched(one)]
        self.runs.sort(key=lambda run: run.start)
        found = (tuple(self.runs), tuple(self._placed()), self.is_compacted or self.is_thin)
        return SegmentSurvey(self.file.path, self.base, size, *found, is_unfinished, tail)

    def _searched(self, lost: Damage) -> list[Damage]:
        """What is left of a damaged place when sound batches in it are found: a wrong length may have hidden some."""
        if lost.count is not None or lost.stop - lost.start > LARGEST_SEARCH:
            return [lost]
        try:
            with Source(self.file.path) as source:
                data = byte_view(source.read(lost.start, lost.stop - lost.start))
        except AccessError:
            return [lost]
        found = find_sound(data, sealed=True)
        left, start, reached = [], lost.start, lost.first
        limit = lost.end if lost.end is not None else self.following if self.following is not None else self.base + FAR
        names = ("base_offset", "last_offset", "leader_epoch", "max_timestamp", "magic")
        columns = (found.starts, found.stops, *(found.head[name] for name in names))
        for first_byte, stop_byte, first, last, epoch, time, magic in zip(
            *(one.tolist() for one in columns), strict=True
        ):
            if magic != MAGIC_V2 or not reached <= first <= last < limit:
                continue
            place = (self.file.path, self.base, lost.start + first_byte, lost.start + stop_byte, first, last + 1)
            self.runs.append(Run(*place, epoch, 1, time, time, self.file.modified))
            if place[2] > start:
                left.append(replace(lost, start=start, stop=place[2], first=reached, end=first, is_last=False))
            start, reached = place[3], last + 1
        return [*left, *([replace(lost, start=start, first=reached)] if start < lost.stop else [])]

    def _placed(self) -> list[Damage]:
        """The damaged places with the offsets that they reach up to, where the batches after them tell."""
        made: list[Damage] = []
        starts = np.array([run.start for run in self.runs], np.int64)
        for one in self.damage:
            at = int(np.searchsorted(starts, one.start))
            first = self.runs[at - 1].end if at else self.base
            if made and made[-1].stop == one.start and made[-1].is_last and made[-1].end is not None:
                first = made[-1].end
            end = self.runs[at].first if at < len(self.runs) else one.end
            made.append(replace(one, first=first, end=end, is_last=at == len(self.runs)))
        return made


def joined(
    segments: Sequence[SegmentSurvey], *, is_compacted: bool = False, other_ends: Sequence[int] = ()
) -> tuple[list[Run], list[Damage], bool]:
    """The runs and damaged places of a log, of its segments in order, and whether it was compacted. Batches that are in two segments are
    taken from the first. A sound batch with a wrong offset, where exactly its number of offsets is missing, is a run in its right place.

    What is missing before the last batch of a compacted log was perhaps taken out; not if a replica goes on there and ends before where
    that batch says to be. `other_ends` are the ends of the other replicas.
    """
    runs: list[Run] = []
    damage: list[Damage] = []
    ordered = sorted(segments, key=lambda one: one.base)
    is_compacted = is_compacted or any(one.is_compacted for one in ordered)
    for number, one in enumerate(ordered):
        following = ordered[number + 1].base if number + 1 < len(ordered) else None
        places = [
            replace(lost, end=following) if lost.is_last and following is not None else lost for lost in one.damage
        ]
        tail, runs_here = one.tail, list(one.runs)
        if tail is not None:
            first = one.damage[-1].first
            is_wrong = not is_compacted or any(first < end <= tail.first for end in other_ends)
            if not is_wrong or not _is_flipped(tail.first, first):
                runs_here, places = [*one.runs, tail], places[:-1]
        right = [lost for lost in places if _is_misplaced(lost, following)]
        for run in sorted([*runs_here, *map(_placed_run, right)], key=lambda run: run.start):
            reached = runs[-1].end if runs else 0
            if run.end > reached:
                runs.append(replace(run, first=max(run.first, reached)))
        damage += [lost for lost in places if lost not in right]
    return runs, damage, is_compacted


def sound_end(segments: Sequence[SegmentSurvey]) -> int:
    """Where a log ends, without a last batch that offsets are missing before."""
    return max((run.end for one in segments for run in one.runs), default=0)


def _is_flipped(said: int, expected: int) -> bool:
    """Whether one byte of an offset differs from what is expected."""
    different = (said ^ expected) & ((1 << 64) - 1)
    return different > 0 and any(different & ~(0xFF << shift) == 0 for shift in range(0, 64, 8))


def _is_misplaced(lost: Damage, following: int | None) -> bool:
    """Whether damage is one sound batch that belongs where it is, whatever its offset says."""
    if lost.count is None:
        return False
    if lost.end is None and lost.is_last and following is None:
        return _is_flipped(lost.said, lost.first)
    return lost.end is not None and lost.end - lost.first == lost.count


def _placed_run(lost: Damage) -> Run:
    """The run that a batch with a wrong offset is."""
    place = (lost.path, lost.base, lost.start, lost.stop, lost.first, lost.first + (lost.count or 0))
    return Run(*place, lost.epoch, 1, NONE, NONE, lost.modified, is_moved=True)
