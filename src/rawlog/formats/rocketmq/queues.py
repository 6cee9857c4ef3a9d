"""Consume queues: plain, batch and ext units as rows of `rocketmq.queues`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog.core.errors import CorruptError, DataError
from rawlog.core.format import NO_TIME, File, Spans, Want
from rawlog.core.frames import Bytes, Frames
from rawlog.core.layout import Layout
from rawlog.core.status import Status
from rawlog.formats.rocketmq.layouts import BATCH_UNIT, EXT_END, EXT_UNIT, UNIT
from rawlog.formats.rocketmq.reader import MOST_MS, micros
from rawlog.kernels import columns

SIZES = {UNIT.size: UNIT, BATCH_UNIT.size: BATCH_UNIT}


def fixed_frames(data: Bytes, layout: Layout, valid: NDArray[np.bool_], kind: int = 0) -> Frames:
    """Units of one size up to the first that is not valid: zeros to the end are padding, else damage."""
    count = int(np.argmin(valid)) if not valid.all() else int(valid.size)
    reached = count * layout.size
    starts = np.arange(count, dtype=np.int64) * layout.size
    if reached == data.size:
        status = Status.OK
    elif not data[reached:].any():
        status = Status.PADDING
    elif count == valid.size:
        status = Status.TRUNCATED
    else:
        status = Status.BAD_VALUE
    return Frames(data, starts, starts + layout.size, reached, status, kind=kind)


def units(data: Bytes, layout: Layout) -> NDArray[Any]:
    """The whole units of a stretch of bytes."""
    return layout.view(np.ascontiguousarray(data))


def scan_plain(data: Bytes, kind: int) -> Frames:
    """Units whose address is not negative and whose size is above zero; the first other one ends the queue."""
    rows = units(data, UNIT)
    return fixed_frames(data, UNIT, (rows["physical_offset"] >= 0) & (rows["size"] > 0), kind)


def scan_batch(data: Bytes, kind: int) -> Frames:
    """Units of batches; the first that points to nothing ends the queue."""
    rows = units(data, BATCH_UNIT)
    valid = (rows["physical_offset"] >= 0) & (rows["size"] > 0) & (rows["base_offset"] >= 0) & (rows["batch_size"] > 0)
    frames = fixed_frames(data, BATCH_UNIT, valid, kind)
    at = frames.reached // BATCH_UNIT.size
    if frames.status is Status.BAD_VALUE and int(rows["physical_offset"][at]) == -1 and int(rows["size"][at]) == 0:
        # The mark behind the last unit of a compaction topic's queue.
        frames = Frames(
            data, frames.starts, frames.stops, frames.reached, _end_of(data, frames.reached + BATCH_UNIT.size), kind
        )
    return frames


def _end_of(data: Bytes, position: int) -> Status:
    return Status.BAD_VALUE if data[position:].any() else Status.PADDING


def scan_ext(data: Bytes, kind: int) -> Frames:
    """Units one behind the other; a size of -1 ends the file."""
    starts: list[int] = []
    stops: list[int] = []
    position, status = 0, Status.OK
    while position < data.size:
        left = data.size - position
        size = int.from_bytes(bytes(data[position : position + 2]), "big", signed=True)
        if size == 0 and not data[position:].any():
            status = Status.PADDING
            break
        if size == EXT_END and left >= 2:
            starts.append(position)
            position += 2
            stops.append(position)
            # What follows the mark is whatever was there; nobody reads it.
            status = Status.OK if position == data.size else Status.PADDING
            break
        if size < EXT_UNIT.size:
            status = Status.TRUNCATED if left < 2 else Status.BAD_LENGTH
            break
        if left < size:
            status = Status.TRUNCATED
            break
        starts.append(position)
        position += size
        stops.append(position)
    return Frames(data, np.array(starts, np.int64), np.array(stops, np.int64), position, status, kind=kind)


def fault(frames: Frames) -> DataError:
    """A unit that cannot be, with sound or foreign bytes behind it."""
    return CorruptError(
        "a unit that points to nothing, with other bytes after it; a broker ends the queue here and cuts the rest off",
        position=frames.reached_in_file,
        found=bytes(frames.data[frames.reached : frames.reached + UNIT.size]).hex(" "),
    )


def resync_plain(data: Bytes, position: int, kind: int) -> int:
    """The next unit that can be, or -1."""
    return _resync(data, position, UNIT, ("physical_offset", "size"))


def resync_batch(data: Bytes, position: int, kind: int) -> int:
    """The next unit that can be, or -1."""
    return _resync(data, position, BATCH_UNIT, ("physical_offset", "size", "batch_size"))


def _resync(data: Bytes, position: int, layout: Layout, names: tuple[str, ...]) -> int:
    """The next unit of the same raster that is not zero and can be."""
    first = -(-position // layout.size)
    rows = units(data[first * layout.size :], layout)
    valid = np.ones(len(rows), np.bool_)
    for name in names:
        valid &= rows[name] >= (0 if name == "physical_offset" else 1)
    found = np.flatnonzero(valid)
    return int(first + found[0]) * layout.size if found.size else -1


def decode_plain(frames: Frames, want: Want) -> Iterator[pa.RecordBatch]:
    """Rows of `rocketmq.queues`."""
    rows = UNIT.take(frames.data, frames.starts)
    numbers = ((want.file.place.start_offset or 0) + frames.positions) // UNIT.size
    yield _batch(frames, want, "plain", rows, numbers)


def decode_batch(frames: Frames, want: Want) -> Iterator[pa.RecordBatch]:
    """Rows of `rocketmq.queues`."""
    rows = BATCH_UNIT.take(frames.data, frames.starts)
    yield _batch(frames, want, "batch", rows, rows["base_offset"].astype(np.int64))


def decode_ext(frames: Frames, want: Want) -> Iterator[pa.RecordBatch]:
    """Rows of `rocketmq.queues`; the mark that ends a file is none."""
    whole = EXT_UNIT.take(np.concatenate((frames.data, np.zeros(EXT_UNIT.size, np.uint8))), frames.starts)
    keep = whole["size"] != EXT_END
    frames = Frames(
        frames.data, frames.starts[keep], frames.stops[keep], frames.reached, frames.status, base=frames.base
    )
    if len(frames):
        yield _batch(frames, want, "ext", whole[keep], None)


def _batch(
    frames: Frames, want: Want, kind: str, rows: NDArray[Any], numbers: NDArray[np.int64] | None
) -> pa.RecordBatch:
    count, fields = len(frames), rows.dtype.names or ()

    def number(name: str, type: str) -> pa.Array:
        return (
            columns.integers(rows[name].astype(np.int64), type)
            if name in fields
            else columns.constant(None, type, count)
        )

    made = {
        "topic": columns.constant(want.file.place.topic, "string", count),
        "queue_id": columns.constant(want.file.place.partition, "int", count),
        "queue_offset": columns.constant(None, "bigint", count)
        if numbers is None
        else columns.integers(numbers, "bigint"),
        "physical_offset": number("physical_offset", "bigint"),
        "size": number("size", "int"),
        "tag_hash": number("tag_hash", "bigint"),
        "kind": columns.constant(kind, "string", count),
        "batch_size": number("batch_size", "int"),
        "path": columns.constant(want.file.path, "string", count),
        "store_timestamp": columns.constant(None, "timestamp", count),
    }
    if "store_timestamp" in fields:
        made["store_timestamp"] = micros(rows["store_timestamp"].astype(np.int64))
    return columns.batch(want.table, made, count)


def spans_plain(frames: Frames, file: File) -> Spans:
    """The number of each unit."""
    numbers = ((file.place.start_offset or 0) + frames.positions) // UNIT.size
    return Spans(numbers, numbers + 1, records=np.zeros(len(frames), np.int64))


def spans_batch(frames: Frames, file: File) -> Spans:
    """The offsets and the time of each unit."""
    rows = BATCH_UNIT.take(frames.data, frames.starts)
    base, times = rows["base_offset"].astype(np.int64), rows["store_timestamp"].astype(np.int64)
    fits = (times <= MOST_MS) & (times >= -MOST_MS)
    stored = np.where(fits, np.where(fits, times, 0) * 1000, NO_TIME)
    return Spans(base, base + rows["batch_size"], stored, stored, np.zeros(len(frames), np.int64))
