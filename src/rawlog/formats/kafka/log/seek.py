"""Finding batches without reading a whole segment: by its index files, to begin near an offset or a time and to cut it for several
readers; and by the headers of its batches alone.

An index is only trusted where the batch it points at is there whole, with a right checksum and the offset it names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rawlog.formats.kafka.log.heads import Heads, take
from rawlog.formats.kafka.log.layouts import (
    BATCH,
    INDEX_ENTRY,
    MAGIC_V2,
    OUTLINE,
    SMALLEST_BATCH,
    SMALLEST_LENGTH,
    TIME_INDEX_ENTRY,
    Attributes,
)
from rawlog.io.storage import Source, is_remote
from rawlog.io.walk import walk
from rawlog.model.errors import RawlogError
from rawlog.model.format import File, Offsets
from rawlog.model.frames import Frames
from rawlog.model.status import Status
from rawlog.model.store import Store

LARGEST_INDEX = 64 << 20
LARGEST_CHECKED_BATCH = 64 << 20
HEAD = 96
"""Bytes that are read of a batch: its header, and all of a transaction marker."""
COUNT = 512
"""Batches at a time."""
SMALL = 32 * HEAD
"""Below this mean size of batches, and in object stores, the file is read as it is."""
_LENGTH, _AFTER = OUTLINE.at("length"), OUTLINE.after("length")


def _next_to(file: File, group: Sequence[File], format: str) -> File | None:
    return Store.of(group).find(format, file.place.start_offset, file.place.state)


def _index_bytes(file: File, group: Sequence[File], format: str) -> NDArray[np.uint8]:
    """The bytes of an index of a segment; none if it does not exist, is too large or cannot be read."""
    index = _next_to(file, group, format)
    if index is None or index.size > LARGEST_INDEX:
        return np.empty(0, np.uint8)
    try:
        with Source(index.path) as source:
            return np.frombuffer(source.read(0, source.size), np.uint8)
    except RawlogError:
        return np.empty(0, np.uint8)


def index_entries(file: File, group: Sequence[File]) -> NDArray[np.int64]:
    """The (offset, position) rows of a segment's offset index, up to the first that does not increase."""
    raw = INDEX_ENTRY.view(_index_bytes(file, group, "kafka.index"))
    rows = np.stack(
        [raw["relative_offset"].astype(np.int64) + (file.place.start_offset or 0), raw["position"].astype(np.int64)], 1
    )
    rising = np.ones(len(rows), np.bool_)
    first = raw[:1]  # zeros are padding
    rising[:1] = (
        (first["position"] >= 0)
        & (first["relative_offset"] >= 0)
        & ((first["position"] > 0) | (first["relative_offset"] > 0))
    )
    rising[1:] = (rows[1:] > rows[:-1]).all(axis=1)
    stop = int(np.argmin(rising)) if not rising.all() else len(rows)
    return rows[:stop]


def last_indexed(file: File, group: Sequence[File]) -> int:
    """The offset in the last entry of a segment's offset index; that of the segment if there is none. Few bytes are read: the entries of
    a segment that is being written are followed by zeros, and the last one is searched for.
    """
    first = file.place.start_offset or 0
    index = _next_to(file, group, "kafka.index")
    if index is None:
        return first
    try:
        with Source(index.path) as source:
            low, high = 0, source.size // INDEX_ENTRY.size
            middle = high - 1
            while low < high:
                entry = source.read(middle * INDEX_ENTRY.size, INDEX_ENTRY.size)
                low, high = (middle + 1, high) if any(entry) else (low, middle)
                middle = (low + high) // 2
            if low == 0:
                return first
            data = np.frombuffer(source.read((low - 1) * INDEX_ENTRY.size, INDEX_ENTRY.size), np.uint8)
    except RawlogError:
        return first
    return first + max(0, int(INDEX_ENTRY.view(data)["relative_offset"][0]))


def time_entries(file: File, group: Sequence[File]) -> NDArray[np.int64]:
    """The (milliseconds, offset) rows of a segment's time index, up to the first that does not increase."""
    data = _index_bytes(file, group, "kafka.timeindex")
    raw = TIME_INDEX_ENTRY.view(data)
    rows = np.stack(
        [raw["timestamp"].astype(np.int64), raw["relative_offset"].astype(np.int64) + (file.place.start_offset or 0)], 1
    )
    rising = np.ones(len(rows), np.bool_)
    # Zeros are padding, unless they are all there is.
    rising[:1] = data.size == TIME_INDEX_ENTRY.size or data[: TIME_INDEX_ENTRY.size].any()
    rising[1:] = rows[1:, 0] > rows[:-1, 0]
    stop = int(np.argmin(rising)) if not rising.all() else len(rows)
    return rows[:stop]


def is_batch_at(source: Source, position: int, offset: int) -> bool:
    """Whether a sound batch begins at `position` that reaches up to `offset` or, of a set appended at once, begins before it."""
    from rawlog.io.checksums import crc32c

    if position < 0 or source.size - position < BATCH.size:
        return False
    head = source.read(position, BATCH.size)
    fields = BATCH.take(np.frombuffer(head, np.uint8), np.zeros(1, np.int64))[0]
    length = int(fields["length"])
    if int(fields["magic"]) != MAGIC_V2 or length < SMALLEST_BATCH or length > LARGEST_CHECKED_BATCH:
        return False
    if int(fields["base_offset"]) > offset:
        return False
    whole = np.frombuffer(source.read(position, BATCH.after("length") + length), np.uint8)
    if whole.size < BATCH.after("length") + length:
        return False
    return int(crc32c(whole, BATCH.after("crc"), whole.size)) == int(fields["crc"])


def seek(file: File, group: Sequence[File], offset: int | None, since: int | None) -> int:
    """A batch's position not after the first row at `offset` or `since` (microseconds); 0 where no index helps."""
    bound = offset
    if since is not None:
        times = time_entries(file, group)
        # Everything up to an entry's offset is no later than its time.
        before = times[times[:, 0] < -(-since // 1000)]  # microseconds of a far time would not fit
        if len(before):
            bound = max(int(before[-1, 1]), bound or 0)
    if bound is None:
        return 0
    rows = index_entries(file, group)
    rows = rows[rows[:, 0] <= bound]
    if not len(rows):
        return 0
    try:
        with Source(file.path) as source:
            for entry_offset, position in rows[::-1][:3].tolist():
                if is_batch_at(source, position, entry_offset):
                    return int(position)
    except RawlogError:
        return 0
    return 0


def cuts(file: File, group: Sequence[File], size: int) -> list[int]:
    """Positions of batches about `size` bytes apart: from the offset index, where it reaches; else from the lengths of large batches."""
    return _indexed_cuts(file, group, size) or hop_positions(file, size)


def _indexed_cuts(file: File, group: Sequence[File], size: int) -> list[int]:
    rows = index_entries(file, group)
    marks: list[int] = []
    if not len(rows):
        return marks
    positions = rows[:, 1]
    with Source(file.path) as source:
        wanted = size
        while wanted < file.size:
            at = int(np.searchsorted(positions, wanted))
            if at >= len(rows):
                break
            if is_batch_at(source, int(positions[at]), int(rows[at, 0])):
                marks.append(int(positions[at]))
                wanted = int(positions[at]) + size
            else:
                return []
    if not marks or file.size - marks[-1] > 4 * size:
        return []
    return marks


# Headers without records: a small read for each batch where batches are large ----------------------------------------


@dataclass(frozen=True, slots=True)
class BatchHeaders:
    """The headers of batches that follow one another, with no checksum compared. `frames` has the first bytes of each batch only."""

    frames: Frames
    head: Heads
    positions: NDArray[np.int64]
    sizes: NDArray[np.int64]


def skim(file: File, start: int = 0, stop: int | None = None) -> Iterator[BatchHeaders]:
    """The headers of the batches that begin at `start` to before `stop`; after damage, those that `walk` finds again."""
    for window, after in _hops(file, start, stop):
        yield window
        start = after
    if start < (file.size if stop is None else stop):
        yield from _walk_headers(file, start, stop)


def _hops(file: File, start: int, stop: int | None) -> Iterator[tuple[BatchHeaders, int]]:
    """Batches found from length to length, each time with their end, as long as that is possible and saves reads."""
    if is_remote(file.path):
        return
    with Source(file.path) as source:
        end = source.size if stop is None else min(stop, source.size)
        while start < end:
            window, start = _hop(source, start, end)
            if window is None or window.sizes.mean() < SMALL:
                return
            yield window, start


def _hop(source: Source, position: int, end: int) -> tuple[BatchHeaders | None, int]:
    """The next batches by their lengths, and where they end."""
    data = np.zeros(COUNT * HEAD, np.uint8)
    room = memoryview(data.data)
    positions: list[int] = []
    sizes: list[int] = []
    while len(positions) < COUNT and position < end:
        at = len(positions) * HEAD
        read_size = source.read_into(position, room[at : at + HEAD])
        length = int.from_bytes(room[at + _LENGTH : at + _AFTER], "big", signed=True)
        if read_size < OUTLINE.size or length < SMALLEST_LENGTH or source.size - position - _AFTER < length:
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
    return BatchHeaders(frames, head, places, lengths), position


def _walk_headers(file: File, start: int, stop: int | None) -> Iterator[BatchHeaders]:
    from rawlog.formats.kafka import LOG

    for frames in walk(file, LOG, start=start, stop=stop, errors="skip"):
        if len(frames):
            head = take(frames.data, frames.starts, frames.stops, check_crc=False)
            yield BatchHeaders(frames, head, frames.positions, frames.sizes)


def count(
    file: File, start: int, stop: int | None, following: int | None, see: Callable[[Offsets], None]
) -> tuple[int, int]:
    """The number of records from `start` on without control records, and the byte up to which headers tell it.

    It ends before a batch whose header does not have the number, and before a window with offsets that do not rise or are not between the
    file's name and `following`. No checksum is compared, whatever the codec. `see` is called with the offsets of the counted batches.
    """
    total, end = 0, file.place.start_offset or 0
    for head, after in _headers(file, start, stop):
        counts, firsts, stops = head["record_count"], head["base_offset"], head["last_offset"] + 1
        if not head.sound.all() or (counts < 0).any():
            break
        is_rising = (firsts >= np.concatenate(([end], stops[:-1]))).all()
        end = int(stops[-1])
        if not is_rising or (following is not None and end > following):
            break
        see(Offsets(firsts, stops, bool(head.cleaned.any()), bool((head["base_sequence"] >= 0).any())))
        total += int(counts[~head.has(Attributes.CONTROL)].sum())
        start = after
    return total, start


def _headers(file: File, start: int, stop: int | None) -> Iterator[tuple[Heads, int]]:
    """The headers of batches up to damage, a window at a time, each with its end."""
    from rawlog.formats.kafka import LOG

    for window, after in _hops(file, start, stop):
        yield window.head, after
        start = after
    for frames in walk(file, LOG, start=start, stop=stop, errors="stop"):
        if len(frames):
            yield take(frames.data, frames.starts, frames.stops, check_crc=False), frames.reached_in_file


def is_sound(file: File, position: int, size: int) -> bool:
    """Whether a batch's checksum is right."""
    with Source(file.path) as source:
        data = np.frombuffer(source.read(position, size), np.uint8)
    if data.size < BATCH.size:
        return False
    return bool(take(data, np.zeros(1, np.int64), np.array([data.size], np.int64)).all_sound)


def hop_positions(file: File, size: int) -> list[int]:
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
