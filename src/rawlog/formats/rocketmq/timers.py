"""Small files of fixed units: timer log, timer wheel, checkpoints, DLedger's index."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog.core.errors import CorruptError, DataError
from rawlog.core.format import Want
from rawlog.core.frames import Bytes, Frames
from rawlog.core.layout import Layout
from rawlog.core.status import Status
from rawlog.formats.rocketmq.layouts import (
    CHECKPOINT,
    CHECKPOINT_SIZE,
    DLEDGER_INDEX,
    MAGIC_BLANK,
    TIMER_BLANK,
    TIMER_CHECK,
    TIMER_PRECISION_MS,
    TIMER_UNIT,
    WHEEL_SLOT,
)
from rawlog.formats.rocketmq.queues import fixed_frames
from rawlog.formats.rocketmq.reader import MOST_MS, micros
from rawlog.kernels import columns


def scan_timer_log(data: Bytes, kind: int) -> Frames:
    """Units of 52 bytes; a blank one covers the rest of the file."""
    rows = TIMER_UNIT.view(np.ascontiguousarray(data))
    # A blank one may be as large as a unit; its magic stands in the same place.
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


def fault(frames: Frames) -> DataError:
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


__all__ = ["CHECKPOINT_SIZE", "decode_checkpoint", "decode_timer_log", "decode_wheel", "fault", "scan_checkpoint",
           "scan_dledger_index", "scan_timer_check", "scan_timer_log", "scan_wheel"]  # fmt: skip
