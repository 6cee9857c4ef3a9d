"""Files of entries of one size, next to a segment: how they are scanned, decoded, explained and compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog.formats.kafka.log.layouts import NONE
from rawlog.kernels import columns
from rawlog.model.errors import CorruptError, DataError
from rawlog.model.explain import Node, layout_nodes, milliseconds
from rawlog.model.finding import Mark
from rawlog.model.format import NO_TIME, File, Inspection, Want
from rawlog.model.frames import Bytes, Frames
from rawlog.model.layout import Layout
from rawlog.model.status import Status

MOST_MS = ((1 << 63) - 1) // 1000
More = Callable[[NDArray[Any], File], dict[str, NDArray[np.int64]]]
"""Columns that are made of entries and of the name of their file."""


def frames_of(data: Bytes, layout: Layout, start: int, count: int, status: Status) -> Frames:
    """So many entries from a position on."""
    starts = start + np.arange(count, dtype=np.int64) * layout.size
    return Frames(data, starts, starts + layout.size, start + count * layout.size, status)


def scan_padded(data: Bytes, layout: Layout, zero_is_real: bool) -> Frames:
    """Entries up to the zeros that fill an active segment's index."""
    count = data.size // layout.size
    status = Status.OK if data.size % layout.size == 0 else Status.TRUNCATED
    if count and not zero_is_real:
        filled = data[: count * layout.size].reshape(count, layout.size).any(axis=1)
        if not filled.all():
            count = int(np.argmin(filled))
            status = Status.PADDING if not data[count * layout.size :].any() else Status.BAD_VALUE
    return frames_of(data, layout, 0, count, status)


_WORDS = {
    Status.BAD_MAGIC: "a version that does not exist",
    Status.BAD_CRC: "the checksum does not match the content",
    Status.BAD_COUNT: "fewer entries than the count says",
    Status.BAD_VALUE: "an entry of zeros, and others after it",
}


def fault(frames: Frames) -> DataError:
    """What is wrong where the scan of such a file stopped."""
    return CorruptError(_WORDS.get(frames.status, "damage"), position=frames.reached_in_file)


def decode_entries(frames: Frames, want: Want, layout: Layout, more: More) -> Iterator[pa.RecordBatch]:
    """Entries as rows: their fields, those that `more` adds, and those of the file's place."""
    if not len(frames):
        return
    raw = layout.take(frames.data, frames.starts)
    numbers = {field.name: raw[field.name].astype(np.int64) for field in layout.fields}
    numbers |= more(raw, want.file)
    arrays: dict[str, pa.Array] = {}
    for column in want.table.columns:
        if column.name in ("topic", "partition"):
            arrays[column.name] = columns.constant(getattr(want.file.place, column.name), column.type, len(frames))
        elif column.name == "path":
            arrays[column.name] = columns.constant(want.file.path, column.type, len(frames))
        elif column.type == "timestamp":
            arrays[column.name] = _times(numbers[column.name])
        else:
            arrays[column.name] = columns.integers(numbers[column.name], column.type)
    yield columns.batch(want.table, arrays, len(frames))


def _times(milliseconds: NDArray[np.int64]) -> pa.Array:
    valid = (milliseconds != NONE) & (np.abs(milliseconds) <= MOST_MS) & (milliseconds != NO_TIME)
    return columns.timestamps(np.where(valid, milliseconds, 0) * 1000, valid)


def with_base(raw: NDArray[Any], file: File) -> dict[str, NDArray[np.int64]]:
    """The offset of entries that are relative to the offset in the file's name."""
    return {"offset": raw["relative_offset"].astype(np.int64) + (file.place.start_offset or 0)}


def explain_entry(frames: Frames, file: File, layout: Layout) -> list[Node]:
    """The fields of one entry."""
    start = int(frames.starts[0])
    base = file.place.start_offset or 0
    meanings: dict[str, Callable[[int], str]] = {
        "timestamp": lambda value: "none" if value == NONE else milliseconds(value),
        "relative_offset": lambda value: f"offset {base + value:,}",
    }
    nodes = layout_nodes(layout, frames.data, start, frames.base, meanings)
    return [Node(frames.base + start, layout.size, f"{layout.name}, number {frames.first}", children=nodes)]


def rising(
    seen: Inspection,
    values: NDArray[np.int64],
    what: str,
    *,
    strictly: bool = True,
    floor: int = int(np.iinfo(np.int64).min),
) -> Iterator[Mark]:
    """Marks for entries that do not follow the one before them, also across windows; the first must follow `floor`."""
    if not values.size:
        return
    before = np.concatenate(([seen.memory.get(what, floor)], values[:-1]))
    wrong = values <= before if strictly else values < before
    for index in np.flatnonzero(wrong).tolist():
        yield Mark(
            f"{what} {int(values[index])} follows {int(before[index])}"
            if before[index] > floor
            else f"{what} {int(values[index])} is negative",
            position=int(seen.frames.positions[index]),
            size=int(seen.frames.sizes[index]),
            expected=f"{'above' if strictly else 'at least'} {int(before[index])}",
            found=int(values[index]),
        )
    seen.memory[what] = int(values[-1])


def column(seen: Inspection, layout: Layout, name: str) -> NDArray[np.int64]:
    """One field of the entries of a window."""
    values: NDArray[np.int64] = layout.take(seen.frames.data, seen.frames.starts)[name].astype(np.int64)
    return values
