"""Which history of a partition its replicas share, where a replica leaves it, and which replica each part of the result is taken from.

Everything here works on what surveys of the replicas found (`Copy`): runs of sound batches, never single batches. Logs are compared by
their leader epochs as Kafka's own replica fetcher does it: a follower asks the leader where the follower's last epoch ends, and truncates
there.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from rawlog.formats.kafka.log.layouts import NONE
from rawlog.formats.kafka.partition.evidence import Trace
from rawlog.formats.kafka.partition.leader_epochs import EpochRuns
from rawlog.formats.kafka.partition.leader_epochs import Run as EpochRun
from rawlog.model.recovery import Span

Epochs = tuple[tuple[int, int], ...]
"""Leader epochs with their first offsets, both rising."""


@dataclass(frozen=True, slots=True)
class Run:
    """Sound batches of one leader epoch that follow one another in a segment, with no other bytes between.

    `start` and `stop` are bytes, `first` and `end` offsets, all half-open; `since` and `until` are the times (ms) of the first batch and
    the latest one.
    """

    path: str
    base: int
    start: int
    stop: int
    first: int
    end: int
    epoch: int
    count: int
    since: int
    until: int
    modified: float | None = None
    #: One batch whose offset is wrong, which no checksum covers; `first` and `end` are the right ones.
    is_moved: bool = False


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of a segment that are not sound batches. `first` is the offset after the batch before them; `end` is the offset that they
    reach up to, as the next batch, the next segment or their own header say; None where nothing tells it. With a `count` of offsets they
    are one sound batch, of an `epoch`, whose header says another offset (`said`).
    """

    path: str
    start: int
    stop: int
    first: int
    end: int | None
    is_last: bool = False
    count: int | None = None
    said: int = NONE
    epoch: int = NONE
    base: int = 0
    modified: float | None = None


@dataclass(frozen=True, slots=True)
class Copy:
    """One replica of a partition as it was found. `rank` is 0 for one that its broker would load, higher for those that count less.

    `start` is the offset that the log begins at by its first segment, `traced` an offset that it had reached by what other files say.
    """

    number: int
    disk: str
    path: str
    runs: tuple[Run, ...] = ()
    damage: tuple[Damage, ...] = ()
    node: int | None = None
    state: str = ""
    rank: int = 0
    start: int = 0
    traced: int = 0
    checkpoint: Epochs = ()
    log_start: int | None = None
    high_watermark: int | None = None
    is_compacted: bool = False
    size: int = 0
    #: Where the log began, if that is before its first segment and retention does not explain it.
    first_trace: Trace | None = None
    #: Offsets that are missing between its segments, first and last, of which nothing tells whether compaction took them out.
    undecided: tuple[tuple[int, int], ...] = ()

    @property
    def sound_end(self) -> int:
        """The offset after the last sound batch."""
        return self.runs[-1].end if self.runs else self.start

    @property
    def end(self) -> int:
        """Where the log ends, or at least ended before it was damaged."""
        claimed = [one.end for one in self.damage if one.end is not None]
        started = [start for _, start in self.checkpoint]
        return max([self.sound_end, *claimed, *(one for one in started if one <= self.sound_end or self.damage)])

    @property
    def is_blank(self) -> bool:
        """Whether it tells nothing of the partition's history."""
        return not self.runs and not self.checkpoint

    @property
    def last_epoch(self) -> int:
        return self.epochs[-1][0] if self.epochs else NONE

    @property
    def written_epoch(self) -> int:
        """The last epoch in which something was written."""
        right = _corrected(self.runs, self.checkpoint)
        return max((right.get(one.first, one.epoch) for one in self.runs), default=NONE)

    @property
    def epochs(self) -> Epochs:
        """The leader epochs of the log: those of its batches, and those of the checkpoint in which nothing was written."""
        return _history(self)

    @property
    def suspects(self) -> frozenset[Run]:
        """Runs whose epoch or offset does not fit those around them: no checksum covers these."""
        wrong = _corrected(self.runs, self.checkpoint)
        return frozenset(one for one in self.runs if one.first in wrong or one.is_moved)

    @property
    def right_epochs(self) -> dict[int, int]:
        """The right epochs of runs that have a wrong one, by their first offsets."""
        return _corrected(self.runs, self.checkpoint)


def _corrected(runs: Sequence[Run], checkpoint: Epochs) -> dict[int, int]:
    """The right epochs of runs that have a wrong one, by first offset."""
    known = [one for one in runs if one.epoch != NONE]
    if all(a.epoch <= b.epoch for a, b in pairwise(known)) and _agrees(known, checkpoint):
        return {}
    found = EpochRuns()
    for one in known:
        if found.runs and found.runs[-1].epoch == one.epoch:
            found.runs[-1].last = one.first
            found.runs[-1].count += one.count
        else:
            found.runs.append(EpochRun(one.epoch, one.first, one.first, one.count))
    wrong: dict[int, int] = {}
    for change in found.corrected(checkpoint):
        for one in known:
            if change.first <= one.first <= change.last and one.epoch == change.wrong:
                wrong[one.first] = change.right
    # A broker writes an epoch into the checkpoint before its first batch: a single batch is rather wrong than the checkpoint.
    stated = {one.first: epoch_at(checkpoint, one.first) for one in known}
    alone = [one for one in known if stated[one.first] not in (NONE, one.epoch)]
    agreeing = sum(one.count for one in known if stated[one.first] == one.epoch)
    if all(one.count == 1 for one in alone) and (len(alone) == 1 or agreeing >= len(alone)):
        wrong |= {one.first: stated[one.first] for one in alone}
    return wrong


def _agrees(runs: Sequence[Run], checkpoint: Epochs) -> bool:
    """Whether no run has an epoch that the checkpoint contradicts."""
    starts = [start for _, start in checkpoint]
    for one in runs:
        at = bisect_right(starts, one.first) - 1
        if at >= 0 and checkpoint[at][0] != one.epoch:
            return False
    return True


def _history(copy: Copy) -> Epochs:
    right = _corrected(copy.runs, copy.checkpoint)
    made: list[tuple[int, int]] = []
    for run in copy.runs:
        epoch = right.get(run.first, run.epoch)
        if epoch != NONE and (not made or epoch > made[-1][0]):
            made.append((epoch, run.first))
    for epoch, start in copy.checkpoint:
        at = bisect_right(made, (epoch, -1))
        there = at < len(made) and made[at][0] == epoch
        after = made[at + there][1] if at + there < len(made) else max(copy.end, copy.sound_end)
        if there and start <= made[at][1] and (at == 0 or start >= made[at - 1][1]):
            made[at] = (epoch, start)  # its first batches may be damaged, or were compacted
        elif not there and start <= after and (at == 0 or start >= made[at - 1][1]):
            made.insert(at, (epoch, start))
    return tuple(made)


# Comparing logs ---------------------------------------------------------------------------------------------------------


def end_of_epoch(epochs: Epochs, end: int, epoch: int) -> tuple[int, int]:
    """The largest epoch of a log that is not above one, and where it ends: what a leader answers to a follower that asks."""
    at = bisect_right(epochs, (epoch, 1 << 63)) - 1
    if at < 0:
        return epoch, epochs[0][1] if epochs else end
    return epochs[at][0], epochs[at + 1][1] if at + 1 < len(epochs) else end


def common_end(leader: Epochs, leader_end: int, epochs: Epochs, end: int) -> int:
    """The offset up to which a log has what the leader has: where a replica fetcher truncates it. Without epochs, the shorter end."""
    if not leader or not epochs:
        return min(leader_end, end)
    epoch = epochs[-1][0]
    while True:
        theirs, their_end = end_of_epoch(leader, leader_end, epoch)
        own, own_end = end_of_epoch(epochs, end, theirs)
        if own == theirs:
            return min(their_end, own_end)
        epoch = own


@dataclass(slots=True)
class Lineage:
    """The history that the result has: epochs with their first offsets, and where it ends."""

    epochs: Epochs
    end: int

    def common(self, copy: Copy) -> int:
        """Up to which offset a copy belongs to it."""
        return common_end(self.epochs, self.end, copy.epochs, copy.end)

    def extend(self, copy: Copy) -> bool:
        """Go on with the end of a copy that nothing contradicts; False if there is no such end."""
        if copy.end <= self.end or self.common(copy) < self.end:
            return False
        last = self.epochs[-1][0] if self.epochs else NONE
        tail, _ = end_of_epoch(copy.epochs, copy.end, (1 << 62)) if copy.epochs else (NONE, 0)
        at_end = epoch_at(copy.epochs, self.end)
        if self.epochs and copy.epochs and (at_end < last or tail < last):
            return False
        self.epochs = (*self.epochs, *((epoch, start) for epoch, start in copy.epochs if epoch > last))
        self.end = copy.end
        return True


def epoch_at(epochs: Epochs, offset: int) -> int:
    """The epoch that the record at an offset is of; -1 if nothing tells it."""
    at = bisect_right([start for _, start in epochs], offset) - 1
    return epochs[at][0] if at >= 0 else NONE


# What copies cover ------------------------------------------------------------------------------------------------------


def covered(copy: Copy, *, is_compacted: bool) -> Iterator[tuple[int, int]]:
    """The ranges of offsets of which a copy has all that there is, in order. Offsets between two segments of a compacted log were taken
    out of it; in another log they are missing.
    """
    broken = sorted((one.path, one.start) for one in copy.damage)
    start = end = copy.start
    before: Run | None = None
    for run in copy.runs:
        here = bisect_left(broken, (run.path, run.start))
        is_cut = here > (0 if before is None else bisect_left(broken, (before.path, before.stop)))
        # A log may begin after the offset in the name of its first segment only where it was compacted.
        is_gap = run.first > end and (before is None or before.path != run.path) and not is_compacted
        if is_cut or is_gap:
            if end > start:
                yield start, end
            start = run.first
        end, before = max(end, run.end), run
    if end > start:
        yield start, end


def gaps_between(runs: Sequence[Run]) -> list[tuple[int, int]]:
    """The offsets, first and last, that are missing between two segments of a copy."""
    return [
        (before.end, after.first - 1)
        for before, after in pairwise(runs)
        if before.path != after.path and before.end < after.first
    ]


def subtract(ranges: Iterable[tuple[int, int]], taken: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """What is left of ranges without those that are taken, which are sorted and apart from one another."""
    left: list[tuple[int, int]] = []
    stops = [stop for _, stop in taken]
    for start, stop in ranges:
        at = bisect_right(stops, start)
        while start < stop and at < len(taken) and taken[at][0] < stop:
            if taken[at][0] > start:
                left.append((start, taken[at][0]))
            start = max(start, taken[at][1])
            at += 1
        if start < stop:
            left.append((start, stop))
    return left


@dataclass(frozen=True, slots=True)
class Piece:
    """Offsets of the result, and the copy that they are taken from."""

    copy: int
    start: int
    stop: int
    reason: str = ""


@dataclass(slots=True)
class Union:
    """The pieces of the result in order, and the offsets between its first and its last that no copy has."""

    pieces: list[Piece] = field(default_factory=list)
    missing: list[tuple[int, int]] = field(default_factory=list)


def unite(copies: Sequence[tuple[Copy, int]], start: int, end: int, *, is_compacted: bool) -> Union:
    """Take all that copies have from `start` to `end`: from the first copy what it has, and from each of the others only what those before
    lack. Each copy comes with the offset up to which it counts.
    """
    pieces: list[Piece] = []
    taken: list[tuple[int, int]] = []
    for doubtful in (False, True):
        for copy, limit in copies:
            bounds = (start, min(limit, end))
            ranges = [
                (max(a, bounds[0]), min(b, bounds[1]))
                for a, b in covered(copy, is_compacted=is_compacted)
                if a < bounds[1] and b > bounds[0]
            ]
            wrong = [] if doubtful else merged((one.first, one.end) for one in copy.suspects)
            ranges = subtract(ranges, wrong)
            for first, stop in subtract(ranges, taken):
                pieces.append(Piece(copy.number, first, stop))
            taken = merged([*taken, *ranges])
    pieces.sort(key=lambda one: one.start)
    return Union(
        _joined(pieces), subtract([(taken[0][0], end)], taken) if taken else [(start, end)] if end > start else []
    )


def merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges sorted, those that touch joined."""
    made: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if stop <= start:
            continue
        if made and start <= made[-1][1]:
            made[-1] = (made[-1][0], max(made[-1][1], stop))
        else:
            made.append((start, stop))
    return made


def _joined(pieces: Sequence[Piece]) -> list[Piece]:
    made: list[Piece] = []
    for one in pieces:
        if made and made[-1].copy == one.copy and made[-1].stop == one.start:
            made[-1] = replace(made[-1], stop=one.stop)
        else:
            made.append(one)
    return made


def times_around(copies: Iterable[Copy], start: int, stop: int | None) -> tuple[int | None, int | None]:
    """The time (ms) of the latest batch before a range of offsets and of the earliest one after it, among copies."""
    runs = [run for copy in copies for run in copy.runs]
    before = [run.until for run in runs if run.end <= start and run.until >= 0]
    inside = [run for run in runs if run.first < start < run.end and run.since >= 0]
    after = [run.since for run in runs if stop is not None and run.first >= stop and run.since >= 0]
    before += [run.since for run in inside]
    return max(before, default=None), min(after, default=None)


def span(copies: Iterable[Copy], start: int, stop: int | None, reason: str) -> Span:
    """A range of offsets with the times around it."""
    since, until = times_around(copies, start, stop)
    return Span(start, stop, reason, since, until)
