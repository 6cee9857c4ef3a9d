"""Which offsets of a partition are there, in which segment, and which are missing: one diagnosis for `verify`, `repair` and `restore`.

A batch carries its own offsets, so the name of a segment is only a hint. Batches outside the range that the names leave to their segment
belong to the log all the same if nothing else has their offsets: the segment was renamed, or swapped with another one.

Offsets that are missing between two segments are a loss, unless compaction took them out. That is known from the cleaner's checkpoint,
from the settings of the topic, or from what compaction leaves in the batches. Damage near a gap explains nothing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby

import numpy as np
from numpy.typing import NDArray

from rawlog.core.errors import DataError, LostError
from rawlog.core.format import File
from rawlog.core.frames import Bytes, Frames
from rawlog.core.report import Action
from rawlog.core.status import Status
from rawlog.formats.kafka.checkpoints import CLEANER, offsets_in
from rawlog.formats.kafka.heads import Heads
from rawlog.formats.kafka.indexes import scan_index, scan_timeindex
from rawlog.formats.kafka.layouts import INDEX_ENTRY, MAGIC_V2, NONE, OUTLINE, TIME_INDEX_ENTRY, Attributes
from rawlog.formats.kafka.legacy import unwrap
from rawlog.formats.kafka.paths import INTERNAL
from rawlog.formats.kafka.store.identity import is_compacted_topic, parent_of
from rawlog.formats.kafka.store.leader_epochs import Correction, EpochRuns
from rawlog.formats.kafka.store.salvage import (
    HUGE,
    NEAR,
    PADDING,
    UNFINISHED,
    Chosen,
    Found,
    choose,
    find_sound,
    longest,
)
from rawlog.io.storage import Source, is_remote, is_view, local_path
from rawlog.kernels import byte_view

LIMIT = 64 << 20
"""A wrapper that grows beyond this is not opened for its first offset."""
FAR = 1 << 62
CACHED = 8 << 20
"""What was found in a segment without damage is kept in memory up to this size; of a larger one it is looked for again."""
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets `first` to `last` that are missing before the segment `file`; or after it at the end of the log, as a `trace` shows."""

    first: int
    last: int
    file: File
    trace: str = ""

    @property
    def is_end(self) -> bool:
        """Whether they are missing at the end of the log."""
        return bool(self.trace)

    def __str__(self) -> str:
        return f"offsets {self.first} to {self.last} are missing{self.trace and ': '}{self.trace}"


@dataclass(frozen=True, slots=True)
class Piece:
    """Batches of one segment, by number, that follow one another in the log. Nothing before `start` is expected in it."""

    segment: int
    numbers: tuple[int, ...] | None  # None: all that were chosen of a segment that is as it should be
    first: int
    last: int
    start: int


@dataclass(slots=True)
class Extent:
    """What the sound batches of one segment cover. `stop` is where the next segment begins by its name."""

    file: File
    first: int
    stop: int
    #: First and last offsets of the batches that are in the range of the segment, neighbours put together.
    covered: NDArray[np.int64]
    #: The largest offset of a batch that shows the work of compaction, or -1.
    mark: int = NONE
    found: Found | None = None
    #: Which batches are of the log, and where each begins; None for a segment without damage whose batches are in order and in its range.
    chosen: Chosen | None = None
    bases: NDArray[np.int64] | None = None
    #: Batches outside of the range, by number, with their first and last offsets.
    strays: dict[int, Span] = field(default_factory=dict)
    has_batches: bool = False
    has_damage: bool = False
    #: How many of its batches are compressed entries of magic 0 or 1.
    wrappers: int = 0
    #: The leader epochs of its batches; None: to be taken from `found`.
    epochs: EpochRuns | None = None

    def is_before(self, stop: int) -> bool:
        """Whether everything in it is before an offset."""
        return not len(self.covered) or int(self.covered[-1][1]) < stop


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of a sound batch that is not at its place, and why. `base` is the first offset that it says, or is to have."""

    action: Action
    reason: str
    base: int


@dataclass(slots=True)
class Continuity:
    """A partition's segments put together. `pieces` are in the order of their offsets."""

    extents: list[Extent]
    pieces: list[Piece]
    gaps: list[Gap]
    #: Runs of offsets that were there, or must have been, and are not: the last is None where nothing says how far they went.
    lost: list[tuple[int, int | None]]
    #: Batches that are put at their offsets from outside of their segment's range, by segment and number.
    placed: dict[int, set[int]]
    #: The leader epochs that are wrong.
    corrections: list[Correction]

    def fates(self, segment: int) -> dict[int, Fate]:
        """The batches of a segment, by number, that are dropped, put elsewhere, or get another base offset."""
        extent = self.extents[segment]
        if extent.found is None or extent.chosen is None:
            return {}
        chosen, placed = extent.chosen, self.placed.get(segment, set())
        base, last = _offsets(extent.found, extent.bases, chosen)
        kept = set(in_order(extent, placed)) if placed else set()
        made = {}
        for number in sorted({*chosen.dropped, *chosen.moved, *chosen.rebased}):
            first = int(base[number])
            offsets = f"offsets {first:,} to {int(last[number]):,}"
            if number in chosen.rebased:
                said = int(extent.found.head["base_offset"][number])
                reason = (
                    f"a base offset that does not fit: {said:,} where the batches around it leave room for {first:,}"
                )
                made[number] = Fate(Action.CHANGED, reason, first)
            elif number in chosen.moved or (number in placed and number not in kept):
                made[number] = Fate(Action.MOVED, f"{offsets} out of order", first)
            elif number not in placed:
                made[number] = Fate(Action.DROPPED, f"{offsets} exist already, or are invalid", first)
        return made


def continuity(files: Sequence[File], known: Mapping[str, Extent] | None = None) -> Continuity:
    """Put the segments among a partition's files together. `known` are extents of segments that were read already, by path."""
    files = [one for one in files if one.place.state is None and one.problem is None]
    segments = sorted(
        (one for one in files if one.format == "kafka.log"), key=lambda one: (one.place.start_offset or 0, one.path)
    )
    names = [one.place.start_offset or 0 for one in segments]
    extents = []
    for number, file in enumerate(segments):
        stop = next((one for one in names[number + 1 :] if one > names[number]), HUGE)
        extent = (known or {}).get(file.path)
        if extent is None or not extent.is_before(stop):
            extent = read_extent(file, stop)
        extent.stop = stop
        extents.append(extent)
    placed = _place(extents)
    pieces = _pieces(extents, placed)
    gaps = _gaps(extents, pieces, segments)
    gaps = [one for one in gaps if one.first >= _cleaned_up_to(files, extents)] if gaps else []
    gaps += _end_gap(files, extents, pieces)
    lost = _lost(extents, pieces, gaps, placed)
    return Continuity(extents, pieces, gaps, lost, placed, _epochs(extents, pieces).corrections(files))


# One segment -------------------------------------------------------------------------------------------------------


def bytes_of(file: File) -> Bytes:
    """A segment's bytes: mapped where the system can, so that memory is not the limit."""
    if not is_remote(file.path) and not is_view(file.path) and file.size:
        return byte_view(np.memmap(local_path(file.path), np.uint8, "r"))
    with Source(file.path) as source:
        data = bytearray(source.size)
        position = 0
        while position < source.size:
            try:
                source.read_into(position, memoryview(data)[position:])
                break
            except LostError as lost:  # zeros are there instead, of which no batch is made
                position = lost.stop
    return byte_view(data)


def batches_of(extent: Extent, data: Bytes) -> tuple[Found, Chosen]:
    """The sound batches of a segment, and which of them are of the log."""
    found = extent.found if extent.found is not None else find_sound(data, sealed=extent.file.place.sealed)
    return found, extent.chosen or Chosen(list(range(len(found.head))), {}, [], [])


class Plain:
    """The extent of a segment without damage, window by window. None comes out if its batches are not in order, or before its name.

    A segment may be read in splits: those that do not begin with it know nothing of what comes before, and are joined in order.
    """

    def __init__(self, file: File, *, inside: bool = False) -> None:
        self.file, self.first = file, file.place.start_offset or 0
        self.covered: list[NDArray[np.int64]] = [np.empty((0, 2), np.int64)]
        self.mark, self.end, self.following = NONE, 0, self.first
        self.is_plain, self.has_batches, self.wrappers = True, False, 0
        self.epochs = EpochRuns()
        self.inside = inside
        #: Of a split inside of a segment: the first and last offset and the position of its first batch, and whether it is a wrapper.
        self.begins: tuple[int, int, int, bool] | None = None

    def add(self, frames: Frames, head: Heads) -> None:
        """Take in sound batches that follow those before them."""
        if not len(head) or not self.is_plain:
            return
        positions, sizes = frames.positions, frames.sizes
        base, last = _bases(head, self.following), head["last_offset"]
        if not self.has_batches and head["record_count"][0] < 0:
            base = np.concatenate(([_first_offset(frames, head, 0)], base[1:]))
        before = np.concatenate(([self.following - 1], last[:-1]))
        if self.inside and not self.has_batches:
            before[0] = base[0] - 1
            self.begins = (int(base[0]), int(last[0]), int(positions[0]), bool(head["record_count"][0] < 0))
        self.is_plain = bool((last >= base).all() and (base > before).all())
        self.is_plain &= bool(last[-1] - self.first < 1 << 31)
        ends = np.concatenate(([self.end], (positions + sizes)[:-1]))
        # What is missing at the beginning of a segment may be what repair gave up there.
        adjacent = positions == ends
        adjacent[0] &= self.has_batches
        self.mark = max(self.mark, _mark(head, base, before, adjacent))
        self.covered.append(_merged(base, last))
        self.wrappers += int((head["record_count"] < 0).sum())
        self.epochs.add(head)
        self.end, self.following, self.has_batches = int(positions[-1] + sizes[-1]), int(last[-1]) + 1, True

    def join(self, following: Plain) -> None:
        """Take in the split that follows this one."""
        self.is_plain &= following.is_plain
        if following.begins is None or not self.is_plain:
            return
        base, last, position, is_wrapper = following.begins
        rows = np.concatenate(following.covered)
        if self.inside and not self.has_batches:
            self.begins = following.begins
        else:
            if is_wrapper:
                rows[0, 0] = base = min(base, self.following)
            self.is_plain = base >= self.following
            if self.has_batches and position == self.end and base > self.following:
                self.mark = max(self.mark, last)
        self.mark = max(self.mark, following.mark)
        self.wrappers += following.wrappers
        self.epochs.join(following.epochs)
        self.covered.append(rows)
        self.close()
        self.end, self.following, self.has_batches = following.end, following.following, True

    def close(self) -> None:
        """Put the offsets of all windows together."""
        rows = np.concatenate(self.covered)
        self.covered = [_merged(rows[:, 0], rows[:, 1])]

    def extent(self) -> Extent | None:
        if not self.is_plain:
            return None
        self.close()
        made = Extent(self.file, self.first, HUGE, self.covered[0], self.mark, has_batches=self.has_batches)
        made.wrappers, made.epochs = self.wrappers, self.epochs
        return made


def read_extent(file: File, stop: int) -> Extent:
    """The extent of any segment."""
    data = bytes_of(file)
    found = find_sound(data, sealed=file.place.sealed)
    first = file.place.start_offset or 0
    damaged = any(one.reason != PADDING for one in found.holes)
    if not damaged:
        plain = Plain(file)
        plain.add(Frames(data, found.starts, found.stops, data.size, Status.OK), found.head)
        made = plain.extent()
        if made is not None and made.is_before(stop):
            made.found = found if file.size <= CACHED else None
            return made
    head = _with_first_offsets(data, found)
    chosen = choose(head, first, stop)
    base, last = _offsets(found, head["base_offset"], chosen)
    order = np.array(chosen.order, np.int64)
    sure = np.ones(len(found.head), np.bool_)
    sure[[*chosen.moved, *chosen.rebased]] = False
    follows = (order[1:] == order[:-1] + 1) & sure[order[1:]] & sure[order[:-1]]
    adjacent = follows & (found.starts[order[1:]] == found.stops[order[:-1]])
    before = np.concatenate(([first - 1], last[order][:-1]))
    adjacent = np.concatenate(([False], adjacent))[: order.size]
    mark = _mark(Heads(found.head.values[:, order]), base[order], before, adjacent)
    own = {number: (int(base[number]), int(last[number])) for number in chosen.dropped}
    strays = {
        number: (low, high)
        for number, (low, high) in own.items()
        if 0 <= low <= high < HUGE and high - low < 1 << 31 and (low < first or high >= stop)
    }
    covered = _merged(base[order], last[order])
    bases = head["base_offset"]
    wrappers = int((found.head["record_count"] < 0).sum())
    return Extent(file, first, stop, covered, mark, found, chosen, bases, strays, bool(len(head)), damaged, wrappers)


def _bases(head: Heads, first: int) -> NDArray[np.int64]:
    """First offsets. A wrapper's is known only from inside: take the one after the batch before it."""
    base, last = head["base_offset"], head["last_offset"]
    wrapped = head["record_count"] < 0
    if not wrapped.any():
        return base
    before = np.concatenate(([first - 1], last[:-1]))
    return np.where(wrapped, np.minimum(base, before + 1), base)


def _with_first_offsets(data: Bytes, found: Found) -> Heads:
    """The headers, with the first offsets of compressed entries of magic 0 and 1, as their content says."""
    wrapped = np.flatnonzero((found.head["record_count"] < 0) & (found.head["magic"] != MAGIC_V2)).tolist()
    if not wrapped:
        return found.head
    head = Heads(found.head.values.copy())
    frames = Frames(data, found.starts, found.stops, data.size, Status.OK)
    for number in wrapped:
        head["base_offset"][number] = _first_offset(frames, found.head, number)
    return head


def _first_offset(frames: Frames, head: Heads, number: int) -> int:
    """The first offset in a compressed entry of magic 0 or 1; its last one if the content cannot be read."""
    inside = _opened(frames, head, number)
    return int(head["last_offset"][number]) if inside is None else inside[0]


def _opened(frames: Frames, head: Heads, number: int) -> tuple[int, int] | None:
    """The first offset in a compressed entry of magic 0 or 1, and how many entries it holds; None if the content cannot be read.

    The first offset is right if the entry's own offset is, which no checksum covers; it is below 0 where that is invalid.
    """
    one, own, last = frames.slice(number, number + 1), head.slice(number, number + 1), int(head["last_offset"][number])
    plain = Heads(own.values.copy())
    plain["last_offset"][:] = FAR  # inner offsets of magic 1 count from it
    try:
        inside = unwrap(one.data, one.starts, one.stops, plain, limit=LIMIT, total=LIMIT)
    except DataError:
        return None
    at, first, end = int(inside.starts[0]), 0, 0
    for index in range(int(inside.counts[0])):
        raw = bytes(inside.data[at : at + OUTLINE.after("length")])
        end = int.from_bytes(raw[: OUTLINE.after("base_offset")], "big", signed=True)
        first = end if not index else first
        at += OUTLINE.after("length") + int.from_bytes(raw[OUTLINE.at("length") :], "big", signed=True)
    return (last - (end - first), int(inside.counts[0])) if first <= end else None


def _offsets(
    found: Found, bases: NDArray[np.int64] | None, chosen: Chosen
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First and last offsets, those that are set right among them."""
    base = (found.head["base_offset"] if bases is None else bases).copy()
    last = found.head["last_offset"].copy()
    for number, new in chosen.rebased.items():
        last[number] = new + (last[number] - base[number])  # in this order: a wrong offset may be any 64 bits
        base[number] = new
    return base, last


def _mark(head: Heads, base: NDArray[np.int64], before: NDArray[np.int64], adjacent: NDArray[np.bool_]) -> int:
    """The largest offset that shows the work of compaction: a batch with fewer records than offsets, one with a delete horizon, one that
    follows another one directly and yet leaves offsets out.
    """
    if not len(head):
        return NONE
    last, count = head["last_offset"], head["record_count"]
    thin = (count >= 0) & (head["magic"] == MAGIC_V2) & (count < last - head["base_offset"] + 1)
    # Repair holds the end of a log with such a batch; those of the cleaner keep the time of the batch that was there.
    thin &= ~((count == 0) & (head["producer_id"] == NONE) & (head["max_timestamp"] == NONE))
    marked = thin | head.has(Attributes.DELETE_HORIZON) | (adjacent & (base > before + 1))
    return int(last[marked].max()) if marked.any() else NONE


def _merged(base: NDArray[np.int64], last: NDArray[np.int64]) -> NDArray[np.int64]:
    """Ranges in order, neighbours put together."""
    if not base.size:
        return np.empty((0, 2), np.int64)
    new = np.concatenate(([True], base[1:] != last[:-1] + 1))
    starts = np.flatnonzero(new)
    stops = np.concatenate((starts[1:], [base.size])) - 1
    return np.stack([base[starts], last[stops]], axis=1)


# All of them -------------------------------------------------------------------------------------------------------


def _place(extents: Sequence[Extent]) -> dict[int, set[int]]:
    """Which batches outside their segments' ranges have offsets that no other batch has: those are where the log misses them.

    A wrong base offset could be any. So beyond the end of the log only what follows it is taken: with the end itself, or in a run.
    """
    strays = []
    for index, one in enumerate(extents):
        lows, highs = ({number: span[end] for number, span in one.strays.items()} for end in (0, 1))
        follow = set(longest(list(one.strays), lows, highs))
        # Those that follow one another in the file come first: a batch with a wrong offset may cover any of them.
        strays += [(number not in follow, span, index, number) for number, span in one.strays.items()]
    if not strays:
        return {}
    runs = np.concatenate([one.covered for one in extents])
    taken = sorted(map(tuple, runs.tolist()))
    placed: dict[int, set[int]] = {}
    end = taken[-1][1] if taken else NONE
    for _, (low, high), index, number in sorted(strays):
        if taken and low > end + 1 and not _in_run(extents[index], number, end):
            continue
        at = bisect_right(taken, (low, HUGE))
        before = taken[at - 1][1] if at else NONE
        following = taken[at][0] if at < len(taken) else HUGE
        if before < low and high < following:
            taken.insert(at, (low, high))
            end = max(end, high)
            placed.setdefault(index, set()).add(number)
    return placed


def _in_run(extent: Extent, number: int, end: int) -> bool:
    """Whether a batch beyond the end of the log is near it, and its segment as a whole is displaced, or a run of batches in it."""
    low, high = extent.strays[number]
    if low > end + max(NEAR, end):
        return False
    if not len(extent.covered):
        return True
    around = [extent.strays.get(number - 1), extent.strays.get(number + 1)]
    return any(one is not None and (one[1] + 1 == low or high + 1 == one[0]) for one in around)


def _pieces(extents: Sequence[Extent], placed: Mapping[int, set[int]]) -> list[Piece]:
    """The log in the order of its offsets. A segment is one piece, unless batches of others belong among its own."""
    if not placed:
        return [
            Piece(index, None, int(one.covered[0][0]), int(one.covered[-1][1]), one.first)
            for index, one in enumerate(extents)
            if len(one.covered)
        ]
    edges = sorted(
        low for index, numbers in placed.items() for low, _ in (extents[index].strays[one] for one in numbers)
    )
    parts: list[tuple[int, int, int, tuple[int, ...] | None, bool]] = []
    for index, one in enumerate(extents):
        if len(one.covered):
            for low, high, numbers in _between(one, edges):
                parts.append((low, high, index, numbers, True))
        for number in placed.get(index, ()):
            parts.append((*one.strays[number], index, (number,), False))
    parts.sort(key=lambda part: part[0])
    pieces: list[Piece] = []
    begun: set[int] = set()
    for index, run in groupby(parts, key=lambda part: part[2]):
        several = list(run)
        low, name, end = several[0][0], extents[index].first, pieces[-1].last if pieces else NONE
        fits = several[0][4] and index not in begun and end < name <= low
        begun.add(index)
        whole = len(several) == 1 and several[0][3] is None
        numbers = None if whole else tuple(chain.from_iterable(part[3] or () for part in several))
        pieces.append(Piece(index, numbers, low, several[-1][1], name if fits else low))
    return pieces


def _between(extent: Extent, edges: Sequence[int]) -> Iterable[tuple[int, int, tuple[int, ...] | None]]:
    """The own batches of a segment, cut where batches of others come between."""
    low, high = int(extent.covered[0][0]), int(extent.covered[-1][1])
    cuts = edges[bisect_left(edges, low) : bisect_right(edges, high)]
    if extent.chosen is None or extent.found is None:
        if not cuts:
            return [(low, high, None)]
        extent = _numbered(extent)
    assert extent.chosen is not None
    assert extent.found is not None
    base, last = _offsets(extent.found, extent.bases, extent.chosen)
    order = extent.chosen.order
    parts = []
    starts = [int(base[number]) for number in order]
    for start, stop in zip([low, *cuts], [*cuts, HUGE], strict=True):
        inside = order[bisect_left(starts, start) : bisect_left(starts, stop)]
        if inside:
            parts.append((int(base[inside[0]]), int(last[inside[-1]]), tuple(inside)))
    return parts


def _numbered(extent: Extent) -> Extent:
    """A segment without damage, with its batches by number."""
    if extent.found is None:
        extent.found = find_sound(bytes_of(extent.file), sealed=extent.file.place.sealed)
    extent.chosen = Chosen(list(range(len(extent.found.head))), {}, [], [])
    return extent


def _epochs(extents: Sequence[Extent], pieces: Sequence[Piece]) -> EpochRuns:
    """The leader epochs of the batches that are of the log, in its order."""
    runs = EpochRuns()
    for piece in pieces:
        extent = extents[piece.segment]
        if piece.numbers is None and extent.epochs is not None:
            runs.join(extent.epochs)
            continue
        assert extent.found is not None
        assert extent.chosen is not None
        order = extent.chosen.order if piece.numbers is None else list(piece.numbers)
        head = Heads(extent.found.head.values[:, order].copy())
        head["base_offset"][:] = _offsets(extent.found, extent.bases, extent.chosen)[0][order]
        runs.add(head)
    return runs


def _gaps(extents: Sequence[Extent], pieces: Sequence[Piece], segments: Sequence[File]) -> list[Gap]:
    """What is missing between segments, whatever the reason."""
    gaps = []
    end: int | None = None
    seen: set[int] = set()
    for piece in pieces:
        # Inside of a segment damage or compaction took something out, and says so itself.
        if end is not None and end < piece.start and piece.segment not in seen:
            gaps.append(Gap(end, piece.start - 1, segments[piece.segment]))
        end = piece.last + 1
        seen.add(piece.segment)
    if extents and end is not None and not extents[-1].has_batches and end < extents[-1].first:
        gaps.append(Gap(end, extents[-1].first - 1, segments[-1]))
    return gaps


def _end_gap(files: Sequence[File], extents: Sequence[Extent], pieces: Sequence[Piece]) -> list[Gap]:
    """What is missing at the end: a snapshot of the producers is named by an offset that the log had reached, and the cleaner keeps it; the
    index of a segment that is gone says how far that one went.
    """
    if not extents:
        return []
    # One of the same name as a segment may have been renamed with it.
    names = {one.first for one in extents}
    snapshots = {one.place.start_offset or 0 for one in files if one.format == "kafka.snapshot"}
    taken, trace = max(snapshots - names, default=0), "a snapshot of the producers was taken after them"
    for one in files:
        base = one.place.start_offset or 0
        if one.format in ("kafka.index", "kafka.timeindex") and base > max(names):
            reached = base + _indexed(one)
            if reached > taken:
                taken, trace = reached, f"{base:020d}.{one.format[6:]} is there without its segment"
    end = max((one.last + 1 for one in pieces), default=extents[-1].first)
    if not extents[-1].has_batches:
        end = max(end, extents[-1].first)
    last = extents[pieces[-1].segment] if pieces and extents[-1].has_batches else extents[-1]
    # An unfinished batch at the end is normal, and says itself that something is missing; not so in a segment that others follow.
    holes = last.found.holes if last.found is not None and not last.file.place.sealed else []
    is_unfinished = any(one.reason == UNFINISHED for one in holes)
    return [Gap(end, taken - 1, extents[-1].file, trace)] if taken > end and not is_unfinished else []


def _indexed(index: File) -> int:
    """How many offsets an index says its segment has at least; 0 for an empty one, and for one whose entries do not rise."""
    layout = INDEX_ENTRY if index.format == "kafka.index" else TIME_INDEX_ENTRY
    data = bytes_of(index)
    frames = scan_index(data, 0) if layout is INDEX_ENTRY else scan_timeindex(data, 0)
    entries = layout.take(data, frames.starts)["relative_offset"].astype(np.int64)
    if not entries.size or entries[0] < 0 or (np.diff(entries) < 0).any():
        return 0
    return int(entries[-1]) + 1


def _cleaned_up_to(files: Sequence[File], extents: Sequence[Extent]) -> int:
    """The offset up to which compaction may have taken out what is missing; 0 if the topic is not compacted."""
    place = files[0].place
    if place.topic in INTERNAL.values():
        return HUGE
    mark = max((one.mark for one in extents), default=NONE)
    if place.topic is not None and place.partition is not None and place.group is not None:
        folder = parent_of(place.group)
        dirty = offsets_in(folder, CLEANER).get((place.topic, place.partition))
        if dirty is not None:  # a follower copies what its leader compacted, beyond what it did itself
            return HUGE if mark >= dirty else dirty
        if mark == NONE and is_compacted_topic(folder, place.topic):
            return HUGE
    return HUGE if mark != NONE or any(map(_is_marked_inside, extents)) else 0


def _is_marked_inside(extent: Extent) -> bool:
    """Whether a compressed entry of magic 0 or 1 leaves out offsets between its own entries."""
    if extent.wrappers == 0:
        return False
    data = bytes_of(extent.file)
    found = extent.found if extent.found is not None else find_sound(data, sealed=extent.file.place.sealed)
    frames = Frames(data, found.starts, found.stops, data.size, Status.OK)
    for number in np.flatnonzero(found.head["record_count"] < 0).tolist():
        inside = _opened(frames, found.head, number)
        last = int(found.head["last_offset"][number])
        if inside is not None and inside[1] < last - inside[0] + 1:
            return True
    return False


def _lost(
    extents: Sequence[Extent], pieces: Sequence[Piece], gaps: Sequence[Gap], placed: Mapping[int, set[int]]
) -> list[tuple[int, int | None]]:
    """The gaps, and the offsets around every place where bytes are no sound batch or a batch has no place in the log."""
    spans: list[tuple[int, int | None]] = [(one.first, one.last) for one in gaps]
    first: dict[int, int] = {}
    for at, piece in enumerate(pieces):
        first.setdefault(piece.segment, at)
    for index, one in enumerate(extents):
        if one.found is not None and one.chosen is not None and (one.has_damage or one.chosen.dropped):
            spans += _around_damage(index, extents, pieces, first.get(index), placed.get(index, set()))
    if not spans:
        return []
    rows = [tuple(row) for one in extents for row in one.covered.tolist()]
    rows += [extents[index].strays[number] for index, numbers in placed.items() for number in numbers]
    return _without(spans, sorted(rows))


def _around_damage(
    index: int, extents: Sequence[Extent], pieces: Sequence[Piece], at: int | None, placed: set[int]
) -> Iterable[tuple[int, int | None]]:
    """For each place of damage the offsets between the batches around it."""
    extent = extents[index]
    assert extent.found is not None
    assert extent.chosen is not None
    found, chosen = extent.found, extent.chosen
    base, last = _offsets(found, extent.bases, chosen)
    bases, lasts = base.tolist(), last.tolist()
    kept = in_order(extent, placed)
    cut = [one.start for one in found.holes if one.reason != PADDING]
    cut += [int(found.starts[number]) for number in chosen.dropped if number not in placed]
    cut += [int(found.starts[number]) for number in placed.difference(kept)]
    edges = found.starts[kept]
    end = max((piece.last + 1 for piece in pieces[: at or 0]), default=0)
    # Where the next segment begins, whether anything is left of it or not.
    starts = sorted([one.start for one in pieces] + [one.first for one in extents[index + 1 :] if not len(one.covered)])
    for position in cut:
        place = int(np.searchsorted(edges, position))
        if place:
            low = lasts[kept[place - 1]] + 1
        elif not kept or extent.first <= bases[kept[0]]:
            low = max(end, extent.first) if kept else extent.first
        else:
            low = end if at else bases[kept[0]]
        high: int | None
        if place < len(kept):
            high = bases[kept[place]] - 1
        elif kept:
            high = next((one - 1 for one in starts if one >= low), None)
        else:
            high = None if extent.stop == HUGE else extent.stop - 1
        if high is None or low <= high:
            yield low, high


def in_order(extent: Extent, placed: set[int]) -> list[int]:
    """The batches of a segment that are of the log and follow one another in the file as they do in the log."""
    assert extent.found is not None
    assert extent.chosen is not None
    base, last = _offsets(extent.found, extent.bases, extent.chosen)
    numbers = sorted(set(extent.chosen.order).difference(extent.chosen.moved) | placed)
    return longest(numbers, base.tolist(), last.tolist())


def _without(spans: Iterable[tuple[int, int | None]], covered: Sequence[Span]) -> list[tuple[int, int | None]]:
    """Ranges joined where they touch, without the offsets that are there."""
    joined: list[tuple[int, int]] = []
    for low, high in sorted((first, HUGE if last is None else last) for first, last in spans):
        if joined and low <= joined[-1][1] + (joined[-1][1] < HUGE):
            joined[-1] = (joined[-1][0], max(joined[-1][1], high))
        else:
            joined.append((low, high))
    left: list[tuple[int, int]] = []
    for low, high in joined:
        at = max(bisect_right(covered, (low, HUGE)) - 1, 0)
        while at < len(covered) and covered[at][0] <= high and low <= high:
            start, stop = covered[at]
            if stop >= low:
                if start > low:
                    left.append((low, start - 1))
                low = stop + 1
            at += 1
        if low <= high:
            left.append((low, high))
    return [(low, None if high == HUGE else high) for low, high in left]
