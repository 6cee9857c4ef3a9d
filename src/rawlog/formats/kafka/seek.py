"""Using the index files beside a segment: to begin near an offset or a time, and to cut a segment for several readers.

An index is only trusted where the batch it points at stands there whole, with a right checksum and the offset it names.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rawlog.core.errors import RawlogError
from rawlog.core.format import File
from rawlog.core.store import Store
from rawlog.formats.kafka.layouts import BATCH, INDEX_ENTRY, MAGIC_V2, SMALLEST_BATCH, TIME_INDEX_ENTRY
from rawlog.formats.kafka.skim import hopped
from rawlog.io.checksums import crc32c
from rawlog.io.storage import Source

LARGEST_INDEX = 64 << 20
LARGEST_CHECKED_BATCH = 64 << 20


def _beside(file: File, group: Sequence[File], format: str) -> File | None:
    return Store.of(group).find(format, file.place.start_offset, file.place.state)


def index_entries(file: File, group: Sequence[File]) -> NDArray[np.int64]:
    """The (offset, position) rows of a segment's offset index, up to the first that does not increase."""
    found = _beside(file, group, "kafka.index")
    if found is None or found.size > LARGEST_INDEX:
        return np.empty((0, 2), np.int64)
    try:
        with Source(found.path) as source:
            data = np.frombuffer(source.read(0, source.size), np.uint8)
    except RawlogError:
        return np.empty((0, 2), np.int64)
    raw = INDEX_ENTRY.view(data)
    rows = np.stack(
        [raw["relative_offset"].astype(np.int64) + (file.place.start_offset or 0), raw["position"].astype(np.int64)], 1
    )
    rising = np.ones(len(rows), np.bool_)
    rising[:1] = rows[:1, 1] > 0
    rising[1:] = (rows[1:] > rows[:-1]).all(axis=1)
    stop = int(np.argmin(rising)) if not rising.all() else len(rows)
    return rows[:stop]


def time_entries(file: File, group: Sequence[File]) -> NDArray[np.int64]:
    """The (milliseconds, offset) rows of a segment's time index, up to the first that does not increase."""
    found = _beside(file, group, "kafka.timeindex")
    if found is None or found.size > LARGEST_INDEX:
        return np.empty((0, 2), np.int64)
    try:
        with Source(found.path) as source:
            data = np.frombuffer(source.read(0, source.size), np.uint8)
    except RawlogError:
        return np.empty((0, 2), np.int64)
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


def stands(source: Source, position: int, offset: int) -> bool:
    """Whether a sound batch begins at `position` that reaches up to `offset` or, of a set appended at once, begins before it."""
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
    """A batch's position not behind the first row at `offset` or `since` (microseconds); 0 where no index helps."""
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
                if stands(source, position, entry_offset):
                    return int(position)
    except RawlogError:
        return 0
    return 0


def cuts(file: File, group: Sequence[File], size: int) -> list[int]:
    """Positions of batches about `size` bytes apart: from the offset index, where it reaches; else from the lengths of large batches."""
    return _indexed_cuts(file, group, size) or hopped(file, size)


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
            if stands(source, int(positions[at]), int(rows[at, 0])):
                marks.append(int(positions[at]))
                wanted = int(positions[at]) + size
            else:
                return []
    if not marks or file.size - marks[-1] > 4 * size:
        return []
    return marks
