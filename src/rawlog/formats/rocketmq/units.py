"""Files of fixed units: consume queues, timer log and wheel, checkpoints, DLedger's index."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog.core.errors import CorruptError, DataError
from rawlog.core.format import NO_TIME, File, Spans, Want
from rawlog.core.frames import Bytes, Frames
from rawlog.core.layout import Layout
from rawlog.core.status import Status
from rawlog.formats.rocketmq.layouts import (
    BATCH_UNIT,
    CHECKPOINT,
    DLEDGER_INDEX,
    EXT_END,
    EXT_UNIT,
    MAGIC_BLANK,
    TIMER_BLANK,
    TIMER_CHECK,
    TIMER_PRECISION_MS,
    TIMER_UNIT,
    UNIT,
    WHEEL_SLOT,
)
from rawlog.formats.rocketmq.messages import MOST_MS, micros
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
        # The mark after the last unit of a compaction topic's queue.
        frames = Frames(
            data, frames.starts, frames.stops, frames.reached, _end_of(data, frames.reached + BATCH_UNIT.size), kind
        )
    return frames


def _end_of(data: Bytes, position: int) -> Status:
    return Status.BAD_VALUE if data[position:].any() else Status.PADDING


def scan_ext(data: Bytes, kind: int) -> Frames:
    """Units, each directly after the one before; a size of -1 ends the file."""
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
    """An invalid unit, with sound or foreign bytes after it."""
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
    """Rows of `rocketmq.queues`; the mark that ends a file gives no row."""
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


def scan_timer_log(data: Bytes, kind: int) -> Frames:
    """Units of 52 bytes; a blank one covers the rest of the file."""
    rows = TIMER_UNIT.view(np.ascontiguousarray(data))
    # A blank one may be as large as a unit; its magic is at the same place.
    frames = fixed_frames(data, TIMER_UNIT, (rows["size"] == TIMER_UNIT.size) & (rows["magic"] != MAGIC_BLANK), kind)
    left = data[frames.reached :]
    if frames.status in (Status.BAD_VALUE, Status.TRUNCATED) and left.size >= TIMER_BLANK.size:
        blank = np.frombuffer(bytes(left[: TIMER_BLANK.size]), TIMER_BLANK.dtype)[0]
        size = int(blank["size"])
        if int(blank["magic"]) == MAGIC_BLANK and size >= TIMER_BLANK.size:
            if size > left.size:
                return replace(frames, status=Status.TRUNCATED)
            stop = frames.reached + size
            status = Status.OK if stop == data.size else Status.BAD_VALUE if data[stop:].any() else Status.PADDING
            return replace(
                frames,
                starts=np.append(frames.starts, frames.reached),
                stops=np.append(frames.stops, stop),
                reached=stop,
                status=status,
            )
    return frames


def decode_timer_log(frames: Frames, want: Want) -> Iterator[pa.RecordBatch]:
    """Rows of `rocketmq.timers`."""
    keep = frames.sizes == TIMER_UNIT.size
    keep[keep] = TIMER_UNIT.take(frames.data, frames.starts[keep])["magic"] != MAGIC_BLANK
    rows, count = TIMER_UNIT.take(frames.data, frames.starts[keep]), int(keep.sum())
    written = rows["write_timestamp"].astype(np.int64)
    positions = frames.positions[keep] + (want.file.place.start_offset or 0)
    made = {
        "path": columns.constant(want.file.path, "string", count),
        "timer_position": columns.integers(positions, "bigint"),
        "previous_position": columns.integers(rows["previous_position"].astype(np.int64), "bigint"),
        "magic": columns.integers(rows["magic"].astype(np.int64), "int"),
        "write_timestamp": micros(written),
        "due_timestamp": micros(_held(written, MOST_MS + (1 << 32)) + rows["delay_ms"]),
        "physical_offset": columns.integers(rows["physical_offset"].astype(np.int64), "bigint"),
        "size": columns.integers(rows["message_size"].astype(np.int64), "int"),
        "topic_hash": columns.integers(rows["topic_hash"].astype(np.int64), "int"),
    }
    yield columns.batch(want.table, made, count)


def _held(times: NDArray[np.generic], most: int) -> NDArray[np.int64]:
    """Times beyond `most` brought back to it, so that the next step does not overflow; they stay beyond what a column holds."""
    return np.clip(times.astype(np.int64), -most, most)


def scan_wheel(data: Bytes, kind: int) -> Frames:
    """The used slots; those between were never used."""
    whole = data.size // WHEEL_SLOT.size * WHEEL_SLOT.size
    words = np.ascontiguousarray(data[:whole]).view(np.int64).reshape(-1, WHEEL_SLOT.size // 8)
    starts = np.flatnonzero(words.any(axis=1)).astype(np.int64) * WHEEL_SLOT.size
    status = Status.OK if whole == data.size else Status.TRUNCATED
    return Frames(data, starts, starts + WHEEL_SLOT.size, whole, status, kind=kind)


def decode_wheel(frames: Frames, want: Want) -> Iterator[pa.RecordBatch]:
    """Rows of `rocketmq.wheel`."""
    rows, count = WHEEL_SLOT.take(frames.data, frames.starts), len(frames)
    made = {
        "path": columns.constant(want.file.path, "string", count),
        "position": columns.integers(frames.positions, "bigint"),
        "due_timestamp": micros(_held(rows["time"], MOST_MS // TIMER_PRECISION_MS + 1) * TIMER_PRECISION_MS),
        "first_position": columns.integers(rows["first_position"].astype(np.int64), "bigint"),
        "last_position": columns.integers(rows["last_position"].astype(np.int64), "bigint"),
        "count": columns.integers(rows["count"].astype(np.int64), "int"),
        "magic": columns.integers(rows["magic"].astype(np.int64), "int"),
    }
    yield columns.batch(want.table, made, count)


def _whole_file(layout: Layout) -> Callable[[Bytes, int], Frames]:
    """One frame at the front of the file, the rest of which is zeros."""

    def scan(data: Bytes, kind: int) -> Frames:
        if data.size < layout.size:
            status = Status.TRUNCATED if data.size else Status.OK
            return Frames(data, np.empty(0, np.int64), np.empty(0, np.int64), 0, status, kind=kind)
        status = Status.OK
        if data.size > layout.size:
            status = Status.BAD_VALUE if data[layout.size :].any() else Status.PADDING
        return Frames(data, np.zeros(1, np.int64), np.full(1, layout.size, np.int64), layout.size, status, kind=kind)

    return scan


scan_checkpoint = _whole_file(CHECKPOINT)
scan_timer_check = _whole_file(TIMER_CHECK)


def scan_dledger_index(data: Bytes, kind: int) -> Frames:
    """Units of 32 bytes up to the zeros."""
    rows = DLEDGER_INDEX.view(np.ascontiguousarray(data))
    return fixed_frames(data, DLEDGER_INDEX, (rows["magic"] == 1) & (rows["size"] > 0), kind)


def foreign_bytes(frames: Frames) -> DataError:
    """Bytes where zeros or another unit belong."""
    return CorruptError("bytes that are no unit of this file", position=frames.reached_in_file)


def decode_checkpoint(frames: Frames, want: Want) -> Iterator[pa.RecordBatch]:
    """The row of `rocketmq.checkpoint`."""
    rows, count = CHECKPOINT.take(frames.data, frames.starts), len(frames)
    made = {"path": columns.constant(want.file.path, "string", count)}
    for field in CHECKPOINT.fields:
        values = rows[field.name].astype(np.int64)
        made[field.name] = micros(values) if field.name.endswith("timestamp") else columns.integers(values, "bigint")
    yield columns.batch(want.table, made, count)
