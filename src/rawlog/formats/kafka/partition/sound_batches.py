"""Sound batches among damaged bytes: where they are, and which of them make a log whose offsets rise.

The checksum of a batch covers neither its base offset nor its leader epoch. A batch that is where the ones around it leave room for
exactly its offsets gets its offset back; one that is nowhere in order is put where its offsets say, if there is room.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rawlog.formats.kafka.log.heads import Heads, heads
from rawlog.formats.kafka.log.kernels.heads import find_batch
from rawlog.formats.kafka.log.layouts import BATCH, OUTLINE, SMALLEST_LENGTH
from rawlog.formats.kafka.log.segment import scan
from rawlog.kernels import byte_view
from rawlog.model.frames import Bytes, Frames
from rawlog.model.status import Status

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
class Choice:
    """Batches by number, in the order to write them; new base offsets for some; those that no place was found for."""

    order: list[int]
    rebased: dict[int, int]
    moved: list[int]
    dropped: list[int]


def choose(head: Heads, first: int, stop: int, end: int | None = None, *, is_gapless: bool = False) -> Choice:
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
        return Choice(chain, {}, [], [])
    on_chain = set(chain)
    rest = [number for number in range(base.size) if number not in on_chain]
    rebased = rebase(rest, chain, head["crc"].tolist(), bases, lasts, first, stop if stop != HUGE else end)
    order = sorted([*chain, *rebased], key=lambda number: rebased.get(number, bases[number]))
    moved, dropped = [], []
    starts = [rebased.get(number, bases[number]) for number in order]
    ends = [rebased.get(number, bases[number]) + lasts[number] - bases[number] for number in order]
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
    return Choice(order, rebased, moved, dropped)


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
            if skipped >= max(score, 0) and bases[number] - end == lasts[number - 1] - bases[number - 1] + 2:
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
            score += room == 0 or (number + 2 == len(bases) and room == lasts[number + 1] - bases[number + 1] + 1)
        if score > best:
            best, final = score, number
    chain: list[int] = []
    while final >= 0:
        chain.append(final)
        final = before[final]
    return chain[::-1]


def is_too_high(before: int, base: int, last: int, end: int) -> bool:
    """Whether the last batch of a log leaves offsets out after the one `before`, and would end where the log did if it left none out."""
    return base > before + 1 and end == before + 1 + last - base + 1


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
        if following - before - 1 == lasts[number] - bases[number] + 1:
            rebased[number] = before + 1
    return rebased


def set_field(data: NDArray[np.uint8], position: int, field: str, value: int) -> None:
    """Set a field that no checksum covers."""
    size = BATCH.after(field) - BATCH.at(field)
    at = position + BATCH.at(field)
    data[at : at + size] = np.frombuffer(value.to_bytes(size, "big", signed=True), np.uint8)
