"""Where the batches of a metadata log belong, whatever file they are in and whatever their uncovered fields say.

A metadata log has no gaps and is never compacted, so batches that are next to one another in a file have offsets next to one another. No
checksum covers a batch's base offset and epoch; its number of records is covered. Many batches that agree outvote one that does not.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

from rawlog.formats.kafka.cluster.metadata_log import sound_batches
from rawlog.formats.kafka.internal.messages import control_type
from rawlog.formats.kafka.log.heads import heads
from rawlog.formats.kafka.log.layouts import BATCH, MAGIC_V2, Attributes
from rawlog.formats.kafka.log.segment import decode_run
from rawlog.formats.kafka.partition.sound_batches import find_sound
from rawlog.io.storage import Source
from rawlog.kernels import byte_view
from rawlog.model.format import File
from rawlog.model.frames import Frames
from rawlog.model.status import Status

NUMBERS = ("base_offset", "last_offset", "leader_epoch", "crc", "max_timestamp")
#: So far beyond all that is known an offset is taken for damaged where no other batch confirms it.
FAR = 1 << 16


@dataclass(slots=True)
class Batch:
    """A sound batch: its bytes in a file, and the offset and epoch that it says and that it gets."""

    file: File
    start: int
    stop: int
    said: int
    count: int
    said_epoch: int
    is_control: bool
    crc: int
    #: Of its last record, milliseconds.
    time: int
    first: int
    epoch: int

    def records(self) -> Iterator[tuple[bool, int | None, bytes | None]]:
        """Whether a record is a control record, then of which kind; and its value."""
        with Source(self.file.path) as source:
            data = byte_view(source.read(self.start, self.stop - self.start))
        stops = np.array([data.size], np.int64)
        frames = Frames(data, np.zeros(1, np.int64), stops, data.size, Status.OK)
        arrays = decode_run(frames, heads(frames), {"key", "value"}, 1 << 28).arrays
        for key, value in zip(*(arrays[name].to_pylist() for name in ("key", "value")), strict=True):
            yield self.is_control, control_type(key) if self.is_control else None, value

    def uncovered_fields(self) -> Iterator[tuple[str, bytes]]:
        """The fields that no checksum covers, as they should be."""
        for name, value in (("base_offset", self.first), ("leader_epoch", self.epoch)):
            yield name, value.to_bytes(BATCH.after(name) - BATCH.at(name), "big", signed=True)

    @property
    def end(self) -> int:
        return self.first + self.count

    @property
    def is_rebased(self) -> bool:
        return self.first != self.said

    @property
    def is_changed(self) -> bool:
        return self.is_rebased or self.epoch != self.said_epoch


def read_batches(file: File) -> list[Batch]:
    """The sound batches of a file, in its order, also after damage."""
    with Source(file.path) as source:
        data = byte_view(source.read(0, source.size))
    found = find_sound(data)
    frames = Frames(data, found.starts, found.stops, data.size, Status.OK)
    control = found.head.has(Attributes.CONTROL)
    made: list[Batch] = []
    for index in np.flatnonzero(sound_batches(frames) & (found.head["magic"] == MAGIC_V2)).tolist():
        head = {name: int(found.head[name][index]) for name in NUMBERS}
        base, epoch = head["base_offset"], head["leader_epoch"]
        count = head["last_offset"] - base + 1
        place = (int(found.starts[index]), int(found.stops[index]))
        is_control = bool(control[index])
        made.append(
            Batch(file, *place, base, count, epoch, is_control, head["crc"], head["max_timestamp"], base, epoch)
        )
    return made


@dataclass(slots=True)
class Placed:
    """Batches in the order of their offsets, and those that got no place, each with the reason."""

    batches: list[Batch]
    dropped: list[tuple[Batch, str]]


def place_batches(segments: Sequence[File], known_end: int = 0) -> Placed:
    """The sound batches of all segments of a log, each at its offset. `known_end` is an offset that the log is known to have reached."""
    dropped: list[tuple[Batch, str]] = []
    seen: set[tuple[int, int, int]] = set()
    groups: list[list[Batch]] = []
    neighbours: dict[int, tuple[Batch | None, Batch | None]] = {}
    for segment in segments:
        for run in _runs(read_batches(segment)):
            kept: list[Batch] = []
            for one in run:
                key = (one.crc, one.count, one.said)
                if key in seen:
                    dropped.append((one, "a copy of another batch"))
                else:
                    seen.add(key)
                    kept.append(one)
            groups += _agreed(kept)
            for at, one in enumerate(kept):
                before, after = kept[at - 1] if at else None, kept[at + 1] if at + 1 < len(kept) else None
                neighbours[id(one)] = (before, after)
    taken = _Taken()
    loose: list[Batch] = []
    for group in sorted(groups, key=len, reverse=True):
        if len(group) > 1:
            for one in group:
                if one.first < 0 or not taken.add(one):
                    loose.append(one)
        else:
            loose += group
    certain = {one.crc for one in taken.batches}
    known_end = max([known_end, taken.end, *((one.place.start_offset or 0) for one in segments)])
    # Those that fit without a gap first, where they say before where others say: what is left over is judged by what they leave.
    for least, only_said in ((2, True), (2, False), (1, True), (1, False), (0, True), (0, False)):
        waiting, loose = loose, []
        for one in waiting:
            if one.crc in certain:
                dropped.append((one, "a copy of another batch"))
                continue
            around = (None, None) if only_said else neighbours[id(one)]
            found = _best(one, around, taken, least, known_end, only_said=only_said)
            if found is None:
                loose.append(one)
            else:
                one.first = found
                taken.add(one)
                certain.add(one.crc)
    dropped += [(one, "its offsets belong to other batches, or are far from all others") for one in loose]
    for one, epoch in zip(taken.batches, right_epochs(taken.batches), strict=True):
        one.epoch = epoch
    return Placed(taken.batches, dropped)


def _runs(batches: Iterable[Batch]) -> Iterator[list[Batch]]:
    """Batches that follow one another in a file without other bytes between."""
    run: list[Batch] = []
    for one in batches:
        if run and run[-1].stop != one.start:
            yield run
            run = []
        run.append(one)
    if run:
        yield run


def _agreed(run: Sequence[Batch]) -> list[list[Batch]]:
    """A run in groups of batches whose offsets follow one another; a batch that contradicts both its neighbours gets the offsets that
    are missing between them.
    """
    groups: list[list[Batch]] = []
    for one in run:
        if groups and groups[-1][-1].end == one.first:
            groups[-1].append(one)
        else:
            groups.append([one])
    at = 1
    while at + 1 < len(groups):
        before, here, after = groups[at - 1 : at + 2]
        if len(here) == 1 and before[-1].end + here[0].count == after[0].first:
            here[0].first = before[-1].end
            groups[at - 1 : at + 2] = [[*before, *here, *after]]
        else:
            at += 1
    return groups


def _best(
    one: Batch,
    around: tuple[Batch | None, Batch | None],
    taken: _Taken,
    least: int,
    known_end: int,
    *,
    only_said: bool,
) -> int | None:
    """The offset for a batch that no other confirms: one that joins `least` sides of what is placed, its own first."""
    before, after = around
    choices = [one.said]
    if not only_said and one.start == 0 and one.file.place.start_offset is not None:
        choices.append(one.file.place.start_offset)
    follows = before is not None and taken.has(before)
    leads = after is not None and taken.has(after)
    if before is not None and follows:
        fits = taken.joins(before.end, one.count) == 2 and not taken.is_free(one.said, one.count)
        if fits or _is_flipped(one.said, before.end, after=True):
            choices.insert(0, before.end)
    if after is not None and leads and _is_flipped(one.said, after.first - one.count, after=False):
        choices.insert(0, after.first - one.count)
    for first in choices:
        if first < 0 or not taken.is_free(first, one.count):
            continue
        joins = taken.joins(first, one.count)
        if joins >= least and (joins or first <= known_end + FAR):
            return first
    return None


def _is_flipped(said: int, expected: int, *, after: bool) -> bool:
    """Whether an offset is a damaged one rather than one after a gap: out of order, far off, or one bit away from what is expected."""
    difference = said - expected if after else expected - said
    return difference < 0 or difference > FAR or (said ^ expected).bit_count() == 1


def is_gapped(batches: Sequence[Batch], follows: Sequence[bool]) -> bool:
    """Whether batches that should follow one another say that some between them are missing: not where only one says so. `follows` tells
    of which batches the bytes follow those of the one before.
    """
    afters = [*batches[1:], None]
    return any(
        one.is_rebased and (not joins or _is_gap(one, after))
        for one, after, joins in zip(batches, afters, follows, strict=True)
    )


def _is_gap(one: Batch, after: Batch | None) -> bool:
    if after is None:
        return not _is_flipped(one.said, one.first, after=True)
    return one.said + one.count == after.said and one.said > one.first


class _Taken:
    """The offsets that are given to batches."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self._starts: list[int] = []
        self._placed: set[int] = set()

    @property
    def end(self) -> int:
        return self.batches[-1].end if self.batches else 0

    def has(self, one: Batch) -> bool:
        return id(one) in self._placed

    def is_free(self, first: int, count: int) -> bool:
        at = bisect_right(self._starts, first)
        return (at == 0 or self.batches[at - 1].end <= first) and (
            at == len(self._starts) or first + count <= self._starts[at]
        )

    def joins(self, first: int, count: int) -> int:
        """On how many sides a range touches what is taken, or the beginning of the log."""
        at = bisect_right(self._starts, first)
        before = self.batches[at - 1].end == first if at else first == 0
        return int(before) + int(at < len(self._starts) and self._starts[at] == first + count)

    def add(self, one: Batch) -> bool:
        """Give a batch its offsets, if they are free."""
        if not self.is_free(one.first, one.count):
            return False
        at = bisect_right(self._starts, one.first)
        self.batches.insert(at, one)
        self._starts.insert(at, one.first)
        self._placed.add(id(one))
        return True


class Header(Protocol):
    """What the epoch of a batch is judged by."""

    @property
    def first(self) -> int: ...

    @property
    def end(self) -> int: ...

    @property
    def said_epoch(self) -> int: ...

    @property
    def is_control(self) -> bool: ...


def right_epochs(batches: Sequence[Header]) -> list[int]:
    """The epochs of batches in their order. An epoch begins with a control batch, the change of its leader: between two of them most
    batches outvote one. Epochs never fall.
    """
    spans: list[list[Header]] = []
    for one in batches:
        if not spans or one.is_control or spans[-1][-1].end != one.first:
            spans.append([])
        spans[-1].append(one)
    votes = [Counter(one.said_epoch for one in span) for span in spans]
    epochs = [max(sorted(found, key=abs), key=found.__getitem__) for found in votes]
    keep = _rising(epochs, [max(found.values()) for found in votes])
    last = next((epochs[at] for at in keep), -1)
    kept, made = set(keep), []
    for at, span in enumerate(spans):
        last = epochs[at] if at in kept else last
        made += [last] * len(span)
    return made


def _rising(values: Sequence[int], weights: Sequence[int]) -> list[int]:
    """The numbers of values that never fall and weigh most together."""
    if all(before <= after for before, after in pairwise(values)):
        return list(range(len(values)))
    best: list[int] = []
    back: list[int] = []
    for at, value in enumerate(values):
        before = max((one for one in range(at) if values[one] <= value), key=lambda one: best[one], default=-1)
        best.append(weights[at] + (best[before] if before >= 0 else 0))
        back.append(before)
    chain: list[int] = []
    at = max(range(len(values)), key=lambda one: best[one], default=-1)
    while at >= 0:
        chain.append(at)
        at = back[at]
    return chain[::-1]
