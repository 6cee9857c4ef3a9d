"""The headers of a segment's batches without their records: a small read for each batch where batches are large."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rawlog.core.format import File
from rawlog.core.frames import Frames
from rawlog.core.status import Status
from rawlog.formats.kafka.heads import Heads, take
from rawlog.formats.kafka.layouts import BATCH, OUTLINE, SMALLEST_LENGTH, Attributes
from rawlog.io.storage import Source, is_remote
from rawlog.io.walk import walk

HEAD = 96
"""Bytes that are read of a batch: its header, and all of a transaction marker."""
COUNT = 512
"""Batches at a time."""
SMALL = 32 * HEAD
"""Below this mean size of batches, and in object stores, the file is read as it is."""
_LENGTH, _AFTER = OUTLINE.at("length"), OUTLINE.after("length")


@dataclass(frozen=True, slots=True)
class Skimmed:
    """The headers of batches that follow one another, with no checksum compared. `frames` has the first bytes of each batch only."""

    frames: Frames
    head: Heads
    positions: NDArray[np.int64]
    sizes: NDArray[np.int64]


def skim(file: File, start: int = 0, stop: int | None = None) -> Iterator[Skimmed]:
    """The headers of the batches that begin at `start` to before `stop`; after damage, those that `walk` finds again."""
    for window, after in _hops(file, start, stop):
        yield window
        start = after
    if start < (file.size if stop is None else stop):
        yield from _walked(file, start, stop)


def _hops(file: File, start: int, stop: int | None) -> Iterator[tuple[Skimmed, int]]:
    """Batches by their lengths, each time with where they end, as long as that is possible and saves anything."""
    if is_remote(file.path):
        return
    with Source(file.path) as source:
        end = source.size if stop is None else min(stop, source.size)
        while start < end:
            window, start = _hop(source, start, end)
            if window is None or window.sizes.mean() < SMALL:
                return
            yield window, start


def _hop(source: Source, position: int, end: int) -> tuple[Skimmed | None, int]:
    """The next batches by their lengths, and where they end."""
    data = np.zeros(COUNT * HEAD, np.uint8)
    room = memoryview(data.data)
    positions: list[int] = []
    sizes: list[int] = []
    while len(positions) < COUNT and position < end:
        at = len(positions) * HEAD
        got = source.read_into(position, room[at : at + HEAD])
        length = int.from_bytes(room[at + _LENGTH : at + _AFTER], "big", signed=True)
        if got < OUTLINE.size or length < SMALLEST_LENGTH or source.size - position - _AFTER < length:
            break
        positions.append(position)
        sizes.append(_AFTER + length)
        position += _AFTER + length
    if not positions:
        return None, position
    places, lengths = np.array(positions, np.int64), np.array(sizes, np.int64)
    starts = np.arange(places.size, dtype=np.int64) * HEAD
    frames = Frames(data, starts, starts + np.minimum(lengths, HEAD), int(starts[-1]) + HEAD, Status.OK)
    head = take(data, frames.starts, frames.stops, check_crc=False)
    return Skimmed(frames, head, places, lengths), position


def _walked(file: File, start: int, stop: int | None) -> Iterator[Skimmed]:
    from rawlog.formats.kafka import LOG

    for frames in walk(file, LOG, start=start, stop=stop, errors="skip"):
        if len(frames):
            head = take(frames.data, frames.starts, frames.stops, check_crc=False)
            yield Skimmed(frames, head, frames.positions, frames.sizes)


def count(file: File, start: int, stop: int | None) -> tuple[int, int]:
    """The records from `start` on that are no control records, and up to which byte the headers of batches tell their number."""
    total = 0
    for window, after in _hops(file, start, stop):
        number = window.head["record_count"]
        if not window.head.sound.all() or (number < 0).any():
            break
        total += int(number[~window.head.has(Attributes.CONTROL)].sum())
        start = after
    return total, start


def is_sound(file: File, position: int, size: int) -> bool:
    """Whether a batch's checksum is right."""
    with Source(file.path) as source:
        data = np.frombuffer(source.read(position, size), np.uint8)
    if data.size < BATCH.size:
        return False
    return bool(take(data, np.zeros(1, np.int64), np.array([data.size], np.int64)).all_sound)


def hopped(file: File, size: int) -> list[int]:
    """Positions of batches about `size` bytes apart, found from length to length; none if that does not lead to the end."""
    marks: list[int] = []
    reached, wanted = 0, size
    for window, after in _hops(file, 0, None):
        for position in window.positions[window.positions >= wanted].tolist():
            if position >= wanted:
                marks.append(position)
                wanted = position + size
        reached = after
    return marks if marks and file.size - reached < size else []
