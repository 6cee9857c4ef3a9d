"""The outline of one segment: its sound batches among damaged bytes, which of them make a log whose offsets rise, and what they cover.

The checksum of a batch covers neither its base offset nor its leader epoch. A batch that is where the ones around it leave room for
exactly its offsets gets its offset back; one that is nowhere in order is put where its offsets say, if there is room. A segment whose
batches are in order is read window by window; of others each batch is known by its number.

Epochs never fall along a log. Of the runs of batches with the same epoch, those stay that make the heaviest sequence that never falls; a
batch that agrees with the checkpoint weighs more. A single batch that contradicts the checkpoint while the batches next to it agree
with the checkpoint is wrong too. In a metadata log an epoch begins with a control batch, the change of its leader: what follows that
batch without a gap, up to the next control batch, is of one epoch, and most batches outvote one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rawlog.formats.kafka.log.heads import Heads, heads
from rawlog.formats.kafka.log.kernels.heads import find_batch
from rawlog.formats.kafka.log.layouts import BATCH, MAGIC_V2, NONE, OUTLINE, SMALLEST_LENGTH, Attributes
from rawlog.formats.kafka.log.records import open_wrappers
from rawlog.formats.kafka.log.segment import may_begin, scan
from rawlog.formats.kafka.paths import METADATA_TOPIC
from rawlog.io.storage import Source
from rawlog.io.walk import walk
from rawlog.kernels import byte_view
from rawlog.model.errors import LostError, RawlogError
from rawlog.model.format import File
from rawlog.model.frames import Bytes, Frames
from rawlog.model.outline import Run, extend
from rawlog.model.status import Status

# Leader epochs -------------------------------------------------------------------------------------------------------------------

MOST_RUNS = 1 << 14
"""Of more runs than this only the last ones are weighed against one another: the work grows with the square."""


@dataclass(slots=True)
class EpochRun:
    """Batches of one epoch that follow one another, by the base offsets of the first and the last. `end` is the offset after them;
    `is_control`: they begin with a control batch.
    """

    epoch: int
    first: int
    last: int
    count: int
    end: int
    is_control: bool = False


@dataclass(frozen=True, slots=True)
class Correction:
    """The right epoch of the batches whose base offsets are `first` to `last`."""

    first: int
    last: int
    wrong: int
    right: int

    @property
    def reason(self) -> str:
        """For people."""
        return f"leader epoch {self.wrong} set to {self.right}, by the batches around it or the epoch checkpoint"

    def is_wrong(self, head: Heads) -> NDArray[np.bool_]:
        """Which batches have the wrong epoch."""
        bases, is_new = head["base_offset"], head["magic"] == MAGIC_V2
        inside = (bases >= self.first) & (bases <= self.last) & is_new
        return np.asarray(inside & (head["leader_epoch"] == self.wrong))


class EpochRuns:
    """The leader epochs of a log as they were read; `is_metadata` for a metadata log."""

    def __init__(self, *, is_metadata: bool = False) -> None:
        self.runs: list[EpochRun] = []
        self.is_metadata = is_metadata

    def add(self, head: Heads) -> None:
        """Take in batches in the order of their offsets. Those without an epoch do not count."""
        has_epoch = (head["magic"] == MAGIC_V2) & (head["leader_epoch"] != NONE)
        epochs, bases, lasts = (head[name][has_epoch] for name in ("leader_epoch", "base_offset", "last_offset"))
        if not epochs.size:
            return
        is_control = head.has(Attributes.CONTROL)[has_epoch] & self.is_metadata
        is_edge = (epochs[1:] != epochs[:-1]) | is_control[1:] | (self.is_metadata & (bases[1:] != lasts[:-1] + 1))
        edges = np.concatenate(([0], np.flatnonzero(is_edge) + 1, [epochs.size])).tolist()
        for start, stop in pairwise(edges):
            place = int(epochs[start]), int(bases[start]), int(bases[stop - 1])
            self._append(EpochRun(*place, stop - start, int(lasts[stop - 1]) + 1, bool(is_control[start])))

    def join(self, following: EpochRuns) -> None:
        """Take in the batches that follow these."""
        for run in following.runs:
            self._append(replace(run))

    def _append(self, run: EpochRun) -> None:
        before = self.runs[-1] if self.runs else None
        if before is not None and before.epoch == run.epoch and (not self.is_metadata or _goes_on(before, run)):
            before.last, before.end, before.count = run.last, run.end, before.count + run.count
        else:
            self.runs.append(run)

    def corrections(self, files: Sequence[File]) -> list[Correction]:
        """The wrong epochs, with the right ones."""
        return self.corrections_with(epochs_in(tuple(files)))

    def corrections_with(self, checkpoint: NDArray[np.int64] | Sequence[tuple[int, int]] | None) -> list[Correction]:
        """The same with the rows of the epoch checkpoint, epochs and their first offsets."""
        table = None if checkpoint is None or not len(checkpoint) else np.array(checkpoint, np.int64).reshape(-1, 2)
        if table is not None and ((np.diff(table, axis=0) <= 0).any() or (table < 0).any()):
            table = None
        terms = self._terms()
        runs = [_elect(term, table) for term in terms]
        stated = [_stated_epoch(table, run) for run in runs]
        if all(run.epoch >= 0 for run in runs) and all(before.epoch <= run.epoch for before, run in pairwise(runs)):
            chain = list(range(len(runs)))
        else:
            chain = _heaviest_chain(runs, stated)
        right = {index: runs[index].epoch for index in chain}
        agrees = {index: stated[index] == runs[index].epoch for index in chain}
        for at, index in enumerate(chain):
            stated_epoch = stated[index]
            around = [chain[place] for place in (at - 1, at + 1) if 0 <= place < len(chain)]
            low = right[chain[at - 1]] if at else 0
            high = runs[chain[at + 1]].epoch if at + 1 < len(chain) else stated_epoch
            if (
                stated_epoch is None
                or high is None
                or runs[index].count > 1
                or agrees[index]
                or not low <= stated_epoch <= high
            ):
                continue
            # Alone in the log it is wrong too: a broker writes an epoch into the checkpoint before its first batch.
            if all(agrees[neighbour] for neighbour in around):
                right[index] = stated_epoch
        kept = sorted(chain)
        for index in range(len(runs)):
            if index not in right:
                right[index] = _neighbour_epoch(index, kept, right, stated[index])
        return [
            Correction(run.first, run.last, run.epoch, right[index])
            for index, term in enumerate(terms)
            for run in term
            if right[index] != run.epoch
        ]

    def _terms(self) -> list[list[EpochRun]]:
        """The runs, those together that are of one epoch whatever they say."""
        terms: list[list[EpochRun]] = []
        for run in self.runs:
            if terms and self.is_metadata and _goes_on(terms[-1][-1], run):
                terms[-1].append(run)
            else:
                terms.append([run])
        return terms


def _goes_on(before: EpochRun, run: EpochRun) -> bool:
    """Whether a run of a metadata log cannot begin an epoch: it follows another one without a gap or a control batch between."""
    return before.end == run.first and not run.is_control


def _elect(term: Sequence[EpochRun], table: NDArray[np.int64] | None) -> EpochRun:
    """Runs of one term as one run, with the epoch of most of their batches; the lowest of several."""
    if len(term) == 1:
        return term[0]
    votes: Counter[int] = Counter()
    for run in term:
        votes[run.epoch] += run.count * (3 if _stated_epoch(table, run) == run.epoch else 2)
    epoch = max(sorted(votes, key=abs), key=votes.__getitem__)
    count = sum(run.count for run in term if run.epoch == epoch)
    return EpochRun(epoch, term[0].first, term[-1].last, count, term[-1].end, term[0].is_control)


def epochs_in(files: Sequence[File]) -> NDArray[np.int64] | None:
    """The rows of the leader epoch checkpoint; None where there is none, or it says nothing."""
    from rawlog.formats.kafka import EPOCH_FILE
    from rawlog.formats.kafka.texts import line

    for file in files:
        if file.format == "kafka.epochs" and file.place.state is None and file.problem is None:
            try:
                frames = next(iter(walk(file, EPOCH_FILE, errors="stop")))
            except RawlogError:
                return None
            rows = [[int(part) for part in line(frames, index).split()] for index in range(len(frames))]
            table = np.array(rows, np.int64).reshape(-1, 2)
            return table if len(table) else None
    return None


def _stated_epoch(table: NDArray[np.int64] | None, run: EpochRun) -> int | None:
    """The epoch in the checkpoint for a run's offsets; None if there is none, or several."""
    if table is None:
        return None
    first, last = (int(np.searchsorted(table[:, 1], offset, side="right")) - 1 for offset in (run.first, run.last))
    return int(table[first, 0]) if first >= 0 and (first == last or int(table[first, 0]) == run.epoch) else None


def _heaviest_chain(runs: Sequence[EpochRun], stated: Sequence[int | None]) -> list[int]:
    """The heaviest sequence of runs, by number, in which epochs never fall; of equal ones, the one with lower epochs."""
    offset = max(0, len(runs) - MOST_RUNS)
    recent = runs[offset:]
    epochs = np.array([run.epoch for run in recent], np.int64)
    weights = np.array(
        [
            2 * run.count + (stated_epoch == run.epoch) * run.count
            for run, stated_epoch in zip(recent, stated[offset:], strict=True)
        ]
    )
    best = np.zeros(len(recent), np.int64)
    before = np.full(len(recent), NONE, np.int64)
    for index in range(len(recent)):
        if epochs[index] < 0:
            continue
        fits = np.flatnonzero((epochs[:index] <= epochs[index]) & (best[:index] > 0))
        top = int(fits[np.argmax(best[fits])]) if fits.size else NONE
        best[index] = weights[index] + (best[top] if top >= 0 else 0)
        before[index] = top
    if not best.any():
        return []
    ends = np.flatnonzero(best == best.max())
    index = int(ends[np.argmin(epochs[ends])])
    chain = []
    while index >= 0:
        chain.append(offset + index)
        index = int(before[index])
    return chain[::-1]


def _neighbour_epoch(index: int, kept: Sequence[int], right: dict[int, int], stated: int | None) -> int:
    """The right epoch of a run out of line: that of the checkpoint if it fits, else that of the run before or after it."""
    at = int(np.searchsorted(np.array(kept, np.int64), index))
    low = right[kept[at - 1]] if at else None
    high = right[kept[at]] if at < len(kept) else None
    if stated is not None and (low is None or low <= stated) and (high is None or stated <= high):
        return stated
    return low if low is not None else high if high is not None else NONE


# The segment ---------------------------------------------------------------------------------------------------------------------

WINDOW = 16 << 20
PADDING = "zeros of preallocation"
UNFINISHED = "an unfinished batch"
HUGE = (1 << 63) - 1
FARTHEST = (1 << 31) - 1
"""How far an offset may be after the name of its segment: an index holds no larger difference."""
NEAR = 4096
"""So many offsets after the end a batch may still belong to the log."""


@dataclass(frozen=True, slots=True)
class Hole:
    """Bytes of a segment that are not a sound batch, and why."""

    start: int
    stop: int
    reason: str


@dataclass(slots=True)
class SoundBatches:
    """The sound batches of a segment in the order of the file, and what is between them."""

    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    head: Heads
    holes: list[Hole]


def find_sound(data: Bytes, *, sealed: bool = False) -> SoundBatches:
    """Every sound batch of a segment, also after damage. In a `sealed` segment, one that others follow, zeros at the end are an
    unfinished batch: a broker preallocates only the segment that it appends to.
    """
    data = byte_view(data)
    starts: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
    stops: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
    parts: list[NDArray[np.int64]] = []
    holes: list[Hole] = []
    for frames, head, hole in _runs(data, sealed):
        if len(frames):
            starts.append(frames.positions)
            stops.append(frames.stops + frames.base)
            parts.append(head.values)
        if hole is not None:
            holes.append(hole)
    from rawlog.formats.kafka.log.kernels.heads import NAMES

    values = np.concatenate([np.empty((len(NAMES), 0), np.int64), *parts], axis=1)
    return SoundBatches(np.concatenate(starts), np.concatenate(stops), Heads(values), holes)


def _runs(data: Bytes, sealed: bool) -> Iterator[tuple[Frames, Heads, Hole | None]]:
    """Runs of sound batches, each with the hole after it."""
    position, window, size = 0, WINDOW, data.size
    while position < size:
        part = data[position : position + window]
        frames = scan(part, 0)
        frames = Frames(frames.data, frames.starts, frames.stops, frames.reached, frames.status, base=position)
        head = heads(frames)
        good = head.sound
        if not good.all():
            bad = int(np.argmin(good))
            start, stop = int(frames.positions[bad]), int(frames.stops[bad]) + position
            reason = {Status.BAD_CRC: "checksum", Status.BAD_MAGIC: "magic"}.get(Status(head["state"][bad]), "length")
            # Its length is trusted if it leads to another batch; else it may have swallowed some.
            near = _batch_near(data, frames, bad)
            if near is not None:
                stop = near
            elif stop < size and not is_batch(data, stop):
                stop = _next_batch(data, start + 1)
            hole = Hole(start, stop, reason) if stop > start else None
            yield frames.slice(0, bad), head.slice(0, bad), hole
            position = stop
            continue
        reached = frames.reached_in_file
        if reached >= size:
            yield frames, head, None
            return
        if position + window < size and frames.status is not Status.BAD_LENGTH and not _is_long(data, reached, size):
            yield frames, head, None  # the batch goes on after the window
            window = WINDOW if len(frames) else window * 2
            position = reached
            continue
        near = _batch_near(data, frames, len(frames))
        if near is not None:
            yield frames, head, None
            position = near
            continue
        stop = _next_batch(data, reached + 1)
        zeros = stop == size and not sealed and not data[reached:].any()
        tail = PADDING if zeros else UNFINISHED if stop == size else "length"
        yield frames, head, Hole(reached, stop, tail)
        position = stop


def _is_long(data: Bytes, position: int, size: int) -> bool:
    """Whether the batch at a position claims to reach beyond the file, or is not a batch."""
    if size - position <= OUTLINE.size:
        return True
    at = position + OUTLINE.at("length")
    length = int.from_bytes(data[at : at + 4].tobytes(), "big", signed=True)
    return length < SMALLEST_LENGTH or position + OUTLINE.after("length") + length > size


def _batch_near(data: Bytes, frames: Frames, count: int) -> int | None:
    """Where a sound batch begins inside the last bytes of the one before it: both had zeros there, and some of them are gone."""
    if not count:
        return None
    end = int(frames.stops[count - 1]) + frames.base
    first = max(int(frames.positions[count - 1]) + 1, end - OUTLINE.after("base_offset") + 1)
    return next((at for at in range(first, end) if is_batch(data, at)), None)


def _next_batch(data: Bytes, position: int) -> int:
    """Where the next sound batch begins, or the end."""
    following = int(find_batch(data, position))
    return data.size if following < 0 else following


def is_batch(data: Bytes, position: int) -> bool:
    """Whether a sound batch is at a position."""
    if _is_long(data, position, data.size):
        return False
    at = position + OUTLINE.at("length")
    length = int.from_bytes(data[at : at + 4].tobytes(), "big", signed=True)
    return int(find_batch(data[position : position + OUTLINE.after("length") + length], 0)) == 0


# Which of them make a log ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BatchOrder:
    """Batches by number, in the order to write them; new base offsets for some; those that no place was found for."""

    order: list[int]
    rebased: dict[int, int]
    moved: list[int]
    dropped: list[int]


def choose(head: Heads, first: int, stop: int, end: int | None = None, *, is_gapless: bool = False) -> BatchOrder:
    """The batches of a segment, which holds offsets from `first` up to `stop`, in an order in which offsets rise.

    The longest chain of batches is right; of equally long ones, that in which most batches begin where the one before ends. A batch off
    the chain gets another offset only if it is alone between two others that leave room for exactly its offsets. What follows the last
    one is `stop`, or the `end` of the log that other files say it had. In a log that `is_gapless` a batch far ahead is wrong, unless
    another one joins it.
    """
    base, last = head["base_offset"].copy(), head["last_offset"].copy()
    # Of a compressed entry of magic 0 or 1 only the last offset is known here.
    usable = (base >= first) & (last >= base) & (last < stop) & (last - first <= FARTHEST)
    if is_gapless:
        joins = base[1:] == last[:-1] + 1
        is_joined = np.concatenate(([False], joins)) | np.concatenate((joins, [False]))
        sizes = np.where(usable, last - base + 1, 0)
        usable &= is_joined[: base.size] | (base <= first + np.cumsum(sizes) + NEAR)
    bases, lasts = base.tolist(), last.tolist()
    if usable.all() and (base[1:] > last[:-1]).all():
        chain = list(range(base.size))
    else:
        chain = longest_chain(
            [number for number in range(base.size) if usable[number]],
            bases,
            lasts,
            first,
            stop if stop != HUGE else end,
        )
    if end is not None and chain and chain[-1] == base.size - 1:
        before = lasts[chain[-2]] if len(chain) > 1 else first - 1
        if is_too_high(before, bases[chain[-1]], lasts[chain[-1]], end):
            chain.pop()
    if len(chain) == base.size:
        return BatchOrder(chain, {}, [], [])
    on_chain = set(chain)
    rest = [number for number in range(base.size) if number not in on_chain]
    rebased = rebase(rest, chain, head["crc"].tolist(), bases, lasts, first, stop if stop != HUGE else end)
    order = sorted([*chain, *rebased], key=lambda number: rebased.get(number, bases[number]))
    moved, dropped = [], []
    starts = [rebased.get(number, bases[number]) for number in order]
    ends = [
        start + count_offsets(bases[number], lasts[number]) - 1 for start, number in zip(starts, order, strict=True)
    ]
    for number in sorted((number for number in rest if number not in rebased), key=lambda number: bases[number]):
        at = bisect_right(starts, bases[number])
        before = ends[at - 1] if at else first - 1
        # After the end of the last segment only what is near it: an offset that is wrong could be any.
        near = before + max(NEAR, before - first + 1) if stop == HUGE else stop
        following = starts[at] if at < len(starts) else near
        if usable[number] and before < bases[number] and lasts[number] < following:
            order.insert(at, number)
            starts.insert(at, bases[number])
            ends.insert(at, lasts[number])
            moved.append(number)
        else:
            dropped.append(number)
    return BatchOrder(order, rebased, moved, dropped)


Offsets = Sequence[int] | Mapping[int, int]


def longest_chain(
    numbers: Sequence[int], bases: Offsets, lasts: Offsets, first: int | None = None, stop: int | None = None
) -> list[int]:
    """The most batches, in the order of the file, of which each begins after the one before; of equally many, those with the most that
    begin right where the one before ends, or leave exactly the room of the one batch between them. Before them something ends at `first`,
    after them something begins at `stop`.
    """
    ends = sorted({lasts[number] for number in numbers})
    # The best chain that ends at most at each offset: a tree of prefix maxima of (batches and joins, last batch).
    tree: list[tuple[int, int]] = [(0, -1)] * (len(ends) + 1)
    joined: dict[int, tuple[int, int]] = {} if first is None else {first - 1: (0, -1)}
    before: dict[int, int] = {}
    scores: dict[int, int] = {}
    best, final = 0, -1
    weight = 2 * len(bases) + 1
    for number in numbers:
        score, previous = joined.get(bases[number] - 1, (-1, -1))
        score += 1 if score >= 0 else 0
        if first is not None and number:
            end = first - 1 if number == 1 else lasts[number - 2]
            skipped = scores.get(number - 2, -1) if number > 1 else 0
            if skipped >= max(score, 0) and bases[number] - end - 1 == count_offsets(
                bases[number - 1], lasts[number - 1]
            ):
                score, previous = skipped + 1, number - 2 if number > 1 else -1
        at = bisect_left(ends, bases[number])
        while at:
            if tree[at][0] > score:
                score, previous = tree[at]
            at &= at - 1
        score, before[number] = max(score, 0) + weight, previous
        scores[number] = score
        at, end = bisect_left(ends, lasts[number]) + 1, lasts[number]
        if joined.get(end, (-1, -1))[0] < score:
            joined[end] = (score, number)
        while at <= len(ends):
            if tree[at][0] < score:
                tree[at] = (score, number)
            at += at & -at
        if stop is not None:
            room = stop - lasts[number] - 1
            is_next_last = number + 2 == len(bases)
            score += room == 0 or (is_next_last and room == count_offsets(bases[number + 1], lasts[number + 1]))
        if score > best:
            best, final = score, number
    chain: list[int] = []
    while final >= 0:
        chain.append(final)
        final = before[final]
    return chain[::-1]


def count_offsets(base: int, last: int) -> int:
    """How many offsets a batch covers. A base offset that is damaged may be any 64 bits: the last offset, which is computed from it, then
    begins again with the lowest.
    """
    return (last - base) % (1 << 64) + 1


def is_too_high(before: int, base: int, last: int, end: int) -> bool:
    """Whether the last batch of a log leaves offsets out after the one `before`, and would end where the log did if it left none out."""
    return base > before + 1 and end == before + 1 + count_offsets(base, last)


def is_misread(stored: int, expected: int) -> bool:
    """Whether the offset of a batch that follows another one directly is damaged, rather than one after a gap: it is lower than expected,
    far beyond it, or one bit away.
    """
    return stored < expected or stored > expected + NEAR or (stored ^ expected).bit_count() == 1


def rebase(
    rest: Sequence[int],
    chain: Sequence[int],
    checksums: Sequence[int],
    bases: Sequence[int],
    lasts: Sequence[int],
    first: int,
    stop: int | None,
) -> dict[int, int]:
    """Batches alone between two others whose offsets leave exactly their room. No checksum of any magic covers the offset."""
    alone: dict[int, list[int]] = {}
    for number in rest:
        alone.setdefault(bisect_left(chain, number), []).append(number)
    taken = {(bases[number], lasts[number], checksums[number]) for number in chain}
    rebased: dict[int, int] = {}
    for at, numbers in alone.items():
        number = numbers[0]
        is_copy = (bases[number], lasts[number], checksums[number]) in taken
        following = bases[chain[at]] if at < len(chain) else stop
        if len(numbers) > 1 or is_copy or following is None or not chain:
            continue
        before = lasts[chain[at - 1]] if at else first - 1
        if following - before - 1 == count_offsets(bases[number], lasts[number]):
            rebased[number] = before + 1
    return rebased


def set_field(data: NDArray[np.uint8], position: int, field: str, value: int) -> None:
    """Set a field that no checksum covers."""
    size = BATCH.after(field) - BATCH.at(field)
    at = position + BATCH.at(field)
    data[at : at + size] = np.frombuffer(value.to_bytes(size, "big", signed=True), np.uint8)


# What they cover ------------------------------------------------------------------------------------------------------


CACHED = 8 << 20
"""What was found in a segment without damage is kept in memory up to this size; of a larger one it is looked for again."""
Span = tuple[int, int]


@dataclass(slots=True)
class Extent:
    """What the sound batches of one segment cover. `stop` is where the next segment begins by its name."""

    file: File
    first: int
    stop: int
    #: First and last offsets of the batches that are in the range of the segment, neighbours put together.
    covered: NDArray[np.int64]
    #: The last offset of a batch that only compaction writes so, or -1.
    cleaned: int = NONE
    sound: SoundBatches | None = None
    #: Which batches are of the log, and where each begins; None for a segment without damage whose batches are in order and in its range.
    choice: BatchOrder | None = None
    bases: NDArray[np.int64] | None = None
    #: Batches outside of the range, by number, with their first and last offsets.
    strays: dict[int, Span] = field(default_factory=dict)
    has_batches: bool = False
    has_damage: bool = False
    #: The leader epochs of its batches; None: to be taken from `sound`.
    epochs: EpochRuns | None = None
    #: Its batches as runs, where it is without damage and in order; and the first offset of the last batch.
    runs: list[Run] = field(default_factory=list)
    last_base: int = NONE

    def is_crash_tail(self, hole: Hole) -> bool:
        """Whether bytes are what a crash leaves at the end of a log: an unfinished batch, zeros, or after a batch anything that is none."""
        if hole.reason == PADDING:
            return True
        is_last = hole.stop >= self.file.size and not self.file.place.sealed and self.stop == HUGE
        return hole.reason == UNFINISHED and is_last and (hole.start > 0 or may_begin(bytes_of(self.file)))

    def is_before(self, stop: int) -> bool:
        """Whether everything in it is before an offset."""
        return not len(self.covered) or int(self.covered[-1][1]) < stop

    def is_beyond(self, end: int | None) -> bool:
        """Whether its last batch follows a gap, and would end at the `end` of the log without that gap."""
        if not len(self.covered) or int(self.covered[-1][0]) != self.last_base:
            return False
        before = int(self.covered[-2][1]) if len(self.covered) > 1 else self.first - 1
        last = int(self.covered[-1][1])
        end = _gapless_end(self.file, before, self.last_base, last) if end is None else end
        return end is not None and is_too_high(before, self.last_base, last, end)

    def sound_and_choice(self) -> tuple[SoundBatches, BatchOrder]:
        """Its sound batches, and the choice among them; searched again if they are not in memory."""
        if self.sound is None:
            self.sound = find_sound(bytes_of(self.file), sealed=self.file.place.sealed)
        if self.choice is None:
            self.choice = _choose_all(self.sound)
        return self.sound, self.choice

    def offsets(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First and last offsets of its sound batches, those that are set right among them."""
        sound, choice = self.sound_and_choice()
        if self.bases is None:
            self.bases = _open_wrappers(bytes_of(self.file), sound)["base_offset"]
        return _offsets(sound, self.bases, choice)

    def rebase(self, firsts: Mapping[int, int]) -> None:
        """Give batches outside of the range, by number, other first offsets."""
        if not firsts:
            return
        _, choice = self.sound_and_choice()
        self.choice = replace(choice, rebased={**choice.rebased, **firsts})
        bases, lasts = self.offsets()
        self.strays |= {number: (int(bases[number]), int(lasts[number])) for number in firsts}

    def in_order(self, placed: set[int]) -> list[int]:
        """The batches that are of the log and follow one another in the file as they do in the log."""
        base, last = self.offsets()
        _, choice = self.sound_and_choice()
        numbers = sorted(set(choice.order).difference(choice.moved) | placed)
        return longest_chain(numbers, base.tolist(), last.tolist())


class PlainExtent:
    """The extent of a segment without damage, window by window. None comes out if its batches are not in order, or before its name.

    A segment may be read in splits: those that do not begin with it know nothing of what comes before, and are joined in order.
    """

    def __init__(self, file: File, *, inside: bool = False) -> None:
        self.file, self.first = file, file.place.start_offset or 0
        self.covered: list[NDArray[np.int64]] = [np.empty((0, 2), np.int64)]
        self.cleaned, self.end, self.following = NONE, 0, self.first
        self.is_plain, self.has_batches = True, False
        self.epochs = EpochRuns(is_metadata=file.place.topic == METADATA_TOPIC)
        self.runs: list[Run] = []
        self.last_base = NONE
        self.inside = inside
        #: Of a split inside of a segment: the first offset of its first batch, and whether that is a wrapper.
        self.begins: tuple[int, bool] | None = None

    def add(self, frames: Frames, head: Heads) -> None:
        """Take in sound batches that follow those before them."""
        if not len(head) or not self.is_plain:
            return
        positions, sizes = frames.positions, frames.sizes
        head = open_wrappers(frames, head)
        base, last = _bases(head, self.following), head["last_offset"]
        if not self.has_batches:
            base[0] = head["base_offset"][0]
        before = np.concatenate(([self.following - 1], last[:-1]))
        if self.inside and not self.has_batches:
            before[0] = base[0] - 1
            self.begins = (int(base[0]), bool(head["record_count"][0] < 0))
        self.is_plain = bool((last >= base).all() and (base > before).all())
        self.is_plain &= bool(last[-1] - self.first <= FARTHEST)
        self.cleaned = max(self.cleaned, _last_cleaned(head))
        self.covered.append(_merge_ranges(base, last))
        self.epochs.add(head)
        extend(self.runs, runs_of(self.file, positions, positions + sizes, head, base))
        self.last_base = int(base[-1])
        self.end, self.following, self.has_batches = int(positions[-1] + sizes[-1]), int(last[-1]) + 1, True

    def join(self, following: PlainExtent) -> None:
        """Take in the split that follows this one."""
        self.is_plain &= following.is_plain
        if following.begins is None or not self.is_plain:
            return
        base, is_wrapper = following.begins
        rows = np.concatenate(following.covered)
        if self.inside and not self.has_batches:
            self.begins = following.begins
        else:
            if is_wrapper:
                rows[0, 0] = base = min(base, self.following)
            self.is_plain = base >= self.following
        self.cleaned = max(self.cleaned, following.cleaned)
        self.epochs.join(following.epochs)
        extend(self.runs, following.runs)
        self.last_base = following.last_base
        self.covered.append(rows)
        self.close()
        self.end, self.following, self.has_batches = following.end, following.following, True

    def close(self) -> None:
        """Put the offsets of all windows together."""
        rows = np.concatenate(self.covered)
        self.covered = [_merge_ranges(rows[:, 0], rows[:, 1])]

    def extent(self) -> Extent | None:
        if not self.is_plain:
            return None
        self.close()
        extent = Extent(self.file, self.first, HUGE, self.covered[0], self.cleaned, has_batches=self.has_batches)
        extent.epochs, extent.runs = self.epochs, self.runs
        extent.last_base = self.last_base
        return extent


def runs_of(
    file: File, starts: NDArray[np.int64], stops: NDArray[np.int64], head: Heads, firsts: NDArray[np.int64]
) -> Iterator[Run]:
    """Sound batches in the order of the file as runs of one epoch. `firsts` are their first offsets."""
    if not len(head):
        return
    epochs, last, times = head["leader_epoch"], head["last_offset"], head["max_timestamp"]
    is_edge = (epochs[1:] != epochs[:-1]) | (starts[1:] != stops[:-1]) | (firsts[1:] <= last[:-1])
    for start, stop in pairwise([0, *(np.flatnonzero(is_edge) + 1).tolist(), len(head)]):
        yield Run(
            file,
            int(starts[start]),
            int(stops[stop - 1]),
            int(firsts[start]),
            int(last[stop - 1]) + 1,
            int(epochs[start]),
            stop - start,
            int(times[start]),
            int(times[start:stop].max()),
        )


def read_extent(file: File, stop: int, end: int | None = None) -> Extent:
    """The extent of any segment. `end` is the end of the log according to other files, for the last segment."""
    data = bytes_of(file)
    sound = find_sound(data, sealed=file.place.sealed)
    first = file.place.start_offset or 0
    damaged = any(hole.reason != PADDING for hole in sound.holes)
    if not damaged:
        plain = PlainExtent(file)
        plain.add(Frames(data, sound.starts, sound.stops, data.size, Status.OK), sound.head)
        extent = plain.extent()
        if extent is not None and extent.is_before(stop) and not extent.is_beyond(end):
            extent.sound = sound if file.size <= CACHED else None
            return extent
    head = _open_wrappers(data, sound)
    if end is None and stop == HUGE and len(head) > 1 and sound.stops[-2] == sound.starts[-1]:
        end = _gapless_end(
            file, int(head["last_offset"][-2]), int(head["base_offset"][-1]), int(head["last_offset"][-1])
        )
    choice = choose(head, first, stop, end, is_gapless=file.place.topic == METADATA_TOPIC)
    base, last = _offsets(sound, head["base_offset"], choice)
    order = np.array(choice.order, np.int64)
    is_sure = ~np.isin(order, [*choice.moved, *choice.rebased])
    cleaned = _last_cleaned(Heads(head.values[:, order[is_sure]]))
    dropped = {number: (int(base[number]), int(last[number])) for number in choice.dropped}
    strays = {
        number: (low, high)
        for number, (low, high) in dropped.items()
        if 0 <= low <= high < HUGE and high - low <= FARTHEST and (low < first or high >= stop)
    }
    covered = _merge_ranges(base[order], last[order])
    bases = head["base_offset"]
    return Extent(file, first, stop, covered, cleaned, sound, choice, bases, strays, bool(len(head)), damaged)


def _gapless_end(file: File, before: int, base: int, last: int) -> int | None:
    """Where a metadata log ends, if the base offset of its last batch is damaged: it has no gaps, so the batch follows the one `before`."""
    count = count_offsets(base, last)
    is_gapless = file.place.topic == METADATA_TOPIC and count <= FARTHEST
    return before + 1 + count if is_gapless and is_misread(base, before + 1) else None


def bytes_of(file: File) -> Bytes:
    """A segment's bytes: mapped where the system can, so that memory is not the limit."""
    with Source(file.path) as source:
        if (mapped := source.map()) is not None:
            return byte_view(mapped)
        data = bytearray(source.size)
        position = 0
        while position < source.size:
            try:
                source.read_into(position, memoryview(data)[position:])
                break
            except LostError as lost:  # zeros are there instead, of which no batch is made
                position = lost.stop
    return byte_view(data)


def batches_of(extent: Extent, data: Bytes) -> tuple[SoundBatches, BatchOrder]:
    """The sound batches of a segment, and which of them are of the log."""
    sound = extent.sound if extent.sound is not None else find_sound(data, sealed=extent.file.place.sealed)
    return sound, extent.choice or _choose_all(sound)


def _choose_all(sound: SoundBatches) -> BatchOrder:
    return BatchOrder(list(range(len(sound.head))), {}, [], [])


def _offsets(
    sound: SoundBatches, bases: NDArray[np.int64], choice: BatchOrder
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    base, last = bases.copy(), sound.head["last_offset"].copy()
    numbers, firsts = (np.array(list(values), np.int64) for values in (choice.rebased, choice.rebased.values()))
    last[numbers] = firsts + (
        last[numbers] - base[numbers]
    )  # in this order, of arrays: a wrong offset may be any 64 bits
    base[numbers] = firsts
    return base, last


def _open_wrappers(data: Bytes, sound: SoundBatches) -> Heads:
    """The headers of sound batches, with what the content of compressed entries of magic 0 and 1 says."""
    return open_wrappers(Frames(data, sound.starts, sound.stops, data.size, Status.OK), sound.head)


def _bases(head: Heads, first: int) -> NDArray[np.int64]:
    """First offsets. The first offset of an unreadable wrapper is unknown: take the one after the batch before it."""
    base, last = head["base_offset"].copy(), head["last_offset"]
    wrapped = head["record_count"] < 0
    if not wrapped.any():
        return base
    before = np.concatenate(([first - 1], last[:-1]))
    return np.where(wrapped, np.minimum(base, before + 1), base)


def _last_cleaned(head: Heads) -> int:
    """The last offset of a batch that only compaction writes so: with fewer records than offsets, or with a delete horizon. -1 if none."""
    return int(head["last_offset"][head.cleaned].max(initial=NONE))


def _merge_ranges(base: NDArray[np.int64], last: NDArray[np.int64]) -> NDArray[np.int64]:
    """Ranges in order, neighbours put together."""
    if not base.size:
        return np.empty((0, 2), np.int64)
    new = np.concatenate(([True], base[1:] != last[:-1] + 1))
    starts = np.flatnonzero(new)
    stops = np.concatenate((starts[1:], [base.size])) - 1
    return np.stack([base[starts], last[stops]], axis=1)
