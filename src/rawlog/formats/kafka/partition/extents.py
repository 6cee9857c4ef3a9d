"""The extent of a segment: which offsets its sound batches cover, whether it is damaged, and where compaction was at work in it.

A segment whose batches are in order is read window by window; of others each batch is known by its number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rawlog.formats.kafka.log.heads import Heads
from rawlog.formats.kafka.log.layouts import NONE
from rawlog.formats.kafka.log.legacy import open_wrappers
from rawlog.formats.kafka.partition.leader_epochs import EpochRuns
from rawlog.formats.kafka.partition.sound_batches import (
    FARTHEST,
    HUGE,
    PADDING,
    UNFINISHED,
    Choice,
    Hole,
    SoundBatches,
    choose,
    find_sound,
    is_misread,
    is_too_high,
    longest_chain,
)
from rawlog.formats.kafka.paths import METADATA_TOPIC
from rawlog.io.storage import Source
from rawlog.kernels import byte_view
from rawlog.model.errors import LostError
from rawlog.model.format import File
from rawlog.model.frames import Bytes, Frames
from rawlog.model.outline import Run, extend
from rawlog.model.status import Status

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
    choice: Choice | None = None
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
        """Whether bytes are what a crash leaves at the end of a log: an unfinished batch, zeros, or anything that is no batch."""
        is_last = hole.stop >= self.file.size and not self.file.place.sealed and self.stop == HUGE
        return hole.reason == PADDING or (hole.reason == UNFINISHED and is_last)

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

    def sound_and_choice(self) -> tuple[SoundBatches, Choice]:
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
    is_gapless = file.place.topic == METADATA_TOPIC and last - base <= FARTHEST
    return before + 1 + last - base + 1 if is_gapless and is_misread(base, before + 1) else None


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


def batches_of(extent: Extent, data: Bytes) -> tuple[SoundBatches, Choice]:
    """The sound batches of a segment, and which of them are of the log."""
    sound = extent.sound if extent.sound is not None else find_sound(data, sealed=extent.file.place.sealed)
    return sound, extent.choice or _choose_all(sound)


def _choose_all(sound: SoundBatches) -> Choice:
    return Choice(list(range(len(sound.head))), {}, [], [])


def _offsets(
    sound: SoundBatches, bases: NDArray[np.int64], choice: Choice
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    base, last = bases.copy(), sound.head["last_offset"].copy()
    for number, new in choice.rebased.items():
        last[number] = new + (last[number] - base[number])  # in this order: a wrong offset may be any 64 bits
        base[number] = new
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


__all__ = ["Extent", "PlainExtent", "Span", "batches_of", "bytes_of", "read_extent"]
