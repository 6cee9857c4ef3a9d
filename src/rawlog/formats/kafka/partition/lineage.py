"""Which history of a partition its replicas share, where a replica leaves it, and which replica each part of the result is taken from.

Everything here works on the outlines of the replicas (`Copy`): runs of sound batches, never single batches. Logs are compared by
their leader epochs as Kafka's own replica fetcher does it: a follower asks the leader where the follower's last epoch ends, and truncates
there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from rawlog.formats.kafka.log.layouts import NONE
from rawlog.formats.kafka.partition.evidence import Trace
from rawlog.model.outline import Intervals, Run
from rawlog.model.recovery import Span

Epochs = tuple[tuple[int, int], ...]
"""Leader epochs with their first offsets, both rising."""


@dataclass(frozen=True, slots=True)
class DamagedBytes:
    """Bytes of a segment that are not of its log: no sound batches, or such as belong elsewhere. `first` and `end` are the offsets that the
    batches around them leave to them; None where nothing tells the end.
    """

    path: str
    start: int
    stop: int
    first: int
    end: int | None


@dataclass(frozen=True, slots=True)
class LogOutline:
    """The outline of a replica, without its batches. `start` is the first offset of the log, `traced` its end according to other files."""

    runs: tuple[Run, ...] = ()
    damage: tuple[DamagedBytes, ...] = ()
    start: int = 0
    traced: int = 0
    #: Offsets (half-open) that were there and are not: damaged, or missing for no other reason.
    missing: Intervals = field(default_factory=Intervals)
    #: Offsets (half-open) that are not there, and that compaction may have taken out if the topic is compacted.
    gaps: Intervals = field(default_factory=Intervals)
    #: Those of them, first and last, of which nothing tells whether it did.
    undecided: tuple[tuple[int, int], ...] = ()
    #: Batches show that the log was compacted.
    is_compacted: bool = False
    #: It is damaged after its last sound batch, and nothing tells how far it went.
    is_open: bool = False
    #: Where damaged batches after the last sound one end by their own headers; 0 if there are none.
    claimed: int = 0
    #: The disk could read all of its segments.
    is_readable: bool = True
    #: The last batch, if offsets are missing before it and no other bytes are between: where it begins in its file, the offset after the
    #: batch before it, and its own.
    tail: tuple[int, int, int] | None = None

    @property
    def end(self) -> int:
        """The offset after the last sound batch."""
        return self.runs[-1].end if self.runs else self.start

    def settle(self, ends: Iterable[int]) -> LogOutline:
        """The same with the ends of the other replicas as evidence: no checksum covers the offset of a batch, and nothing follows the last
        one. If another replica ends in the gap before it, and one byte of its offset is all that differs, it belongs directly after the
        batch before it.
        """
        if self.tail is None:
            return self
        (position, first, stored), run = self.tail, self.runs[-1]
        if not _is_flipped(stored, first) or not any(first < end <= stored for end in ends):
            return self
        end = first + run.end - stored
        batch = replace(run, start=position, first=first, end=end, count=1, since=run.until, stored=stored)
        before = () if run.first >= stored else (replace(run, stop=position, end=first, count=run.count - 1),)
        gaps, missing = (offsets.subtract([(first, stored)]) for offsets in (self.gaps, self.missing))
        undecided = tuple(gap for gap in self.undecided if gap != (first, stored - 1))
        runs = (*self.runs[:-1], *before, batch)
        return replace(self, runs=runs, gaps=gaps, undecided=undecided, missing=missing, tail=None)


@dataclass(frozen=True, slots=True)
class Copy:
    """One replica of a partition as it was found. `rank` is 0 for one that its broker would load, higher for those that count less."""

    number: int
    disk: str
    path: str
    log: LogOutline = LogOutline()
    node: int | None = None
    state: str = ""
    rank: int = 0
    checkpoint: Epochs = ()
    log_start: int | None = None
    high_watermark: int | None = None
    size: int = 0
    #: Where the log began, if that is before its first segment and retention does not explain it.
    first_trace: Trace | None = None

    @property
    def runs(self) -> tuple[Run, ...]:
        return self.log.runs

    @property
    def damage(self) -> tuple[DamagedBytes, ...]:
        return self.log.damage

    @property
    def start(self) -> int:
        return self.log.start

    @property
    def sound_end(self) -> int:
        """The offset after the last sound batch."""
        return self.log.end

    @property
    def end(self) -> int:
        """Where the log ends, or at least ended before it was damaged."""
        started = [start for _, start in self.checkpoint]
        reached = max(self.sound_end, self.log.claimed)
        return max([reached, *(start for start in started if start <= self.sound_end or self.damage)])

    @property
    def batches(self) -> int:
        """The number of its sound batches."""
        return sum(run.count for run in self.runs)

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
        return max((run.lineage for run in self.runs), default=NONE)

    @property
    def epochs(self) -> Epochs:
        """The leader epochs of the log: those of its batches, and those of the checkpoint in which nothing was written."""
        return _history(self)

    @property
    def suspects(self) -> list[Run]:
        """Runs with an epoch or offset that was corrected: no checksum covers these."""
        return [run for run in self.runs if run.is_corrected]


def _history(copy: Copy) -> Epochs:
    history: list[tuple[int, int]] = []
    for run in copy.runs:
        epoch = run.lineage
        if epoch != NONE and (not history or epoch > history[-1][0]):
            history.append((epoch, run.first))
    for epoch, start in copy.checkpoint:
        at = bisect_right(history, (epoch, -1))
        has_epoch = at < len(history) and history[at][0] == epoch
        after = history[at + has_epoch][1] if at + has_epoch < len(history) else max(copy.end, copy.sound_end)
        if has_epoch and start <= history[at][1] and (at == 0 or start >= history[at - 1][1]):
            history[at] = (epoch, start)  # its first batches may be damaged, or were compacted
        elif not has_epoch and start <= after and (at == 0 or start >= history[at - 1][1]):
            history.insert(at, (epoch, start))
    return tuple(history)


def _is_flipped(stored: int, expected: int) -> bool:
    """Whether one byte of an offset differs from what is expected."""
    different = (stored ^ expected) & ((1 << 64) - 1)
    return different > 0 and any(different & ~(0xFF << shift) == 0 for shift in range(0, 64, 8))


# Comparing logs ---------------------------------------------------------------------------------------------------------


def end_of_epoch(epochs: Epochs, end: int, epoch: int) -> tuple[int, int]:
    """The largest epoch of a log up to a given one, and its end: the answer of a leader to a follower."""
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
        leader_epoch, leader_epoch_end = end_of_epoch(leader, leader_end, epoch)
        replica_epoch, replica_epoch_end = end_of_epoch(epochs, end, leader_epoch)
        if replica_epoch == leader_epoch:
            return min(leader_epoch_end, replica_epoch_end)
        epoch = replica_epoch


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


def coverage(copy: Copy, *, is_compacted: bool) -> Intervals:
    """The offsets of which a copy has all that there is. What a compacted log lacks between its batches was taken out of it; in another
    log it is missing, also before the first batch.
    """
    missing = list(copy.log.missing)
    if not is_compacted:
        missing += copy.log.gaps
        missing += [(copy.start, copy.runs[0].first)] if copy.runs else []
    return Intervals([(copy.start, copy.sound_end)]).subtract(missing)


@dataclass(frozen=True, slots=True)
class Share:
    """Offsets of the result, and the copy that they are taken from."""

    copy: int
    start: int
    stop: int
    reason: str = ""


@dataclass(slots=True)
class Union:
    """The pieces of the result in order, and the offsets between its first and its last that no copy has."""

    pieces: list[Share] = field(default_factory=list)
    missing: Intervals = field(default_factory=Intervals)


def unite(copies: Sequence[tuple[Copy, int]], start: int, end: int, *, is_compacted: bool) -> Union:
    """Take all that copies have from `start` to `end`: from the first copy what it has, and from each of the others only what those before
    lack. Each copy comes with the offset up to which it counts.
    """
    pieces: list[Share] = []
    taken = Intervals()
    for doubtful in (False, True):
        for copy, limit in copies:
            ranges = coverage(copy, is_compacted=is_compacted).intersection([(start, min(limit, end))])
            if not doubtful:
                ranges = ranges.subtract((run.first, run.end) for run in copy.suspects)
            pieces += [Share(copy.number, first, stop) for first, stop in ranges.subtract(taken)]
            taken = taken.union(ranges)
    pieces.sort(key=lambda piece: piece.start)
    return Union(_join_pieces(pieces), Intervals([(taken[0][0] if taken else start, end)]).subtract(taken))


def _join_pieces(pieces: Sequence[Share]) -> list[Share]:
    """Pieces in order, those of one copy that follow one another as one."""
    joined: list[Share] = []
    for piece in pieces:
        if joined and joined[-1].copy == piece.copy and joined[-1].stop == piece.start:
            joined[-1] = replace(joined[-1], stop=piece.stop)
        else:
            joined.append(piece)
    return joined


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
