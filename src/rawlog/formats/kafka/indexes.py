"""The binary files next to a segment: offset, time and transaction index, and snapshots of producer state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog.formats.kafka.log.layouts import (
    INDEX_ENTRY,
    NONE,
    SNAPSHOT_ENTRY,
    SNAPSHOT_HEADER,
    TIME_INDEX_ENTRY,
    TXN_INDEX_ENTRY,
)
from rawlog.io.checksums import crc32c
from rawlog.kernels import columns
from rawlog.model.errors import CorruptError, DataError
from rawlog.model.explain import Node, layout_nodes, milliseconds
from rawlog.model.format import (
    NO_TIME,
    File,
    Origin,
    Want,
)
from rawlog.model.frames import Bytes, Frames
from rawlog.model.layout import Layout
from rawlog.model.status import Status

MOST_MS = ((1 << 63) - 1) // 1000
ZERO_IS_REAL = 1
"""The kind of a time index of exactly one entry: only there is an entry of zeros no padding."""


def _stride(data: Bytes, layout: Layout, start: int, count: int, status: Status, reached: int | None = None) -> Frames:
    starts = start + np.arange(count, dtype=np.int64) * layout.size
    reached = start + count * layout.size if reached is None else reached
    return Frames(data, starts, starts + layout.size, reached, status)


def _scan_padded(data: Bytes, layout: Layout, zero_is_real: bool) -> Frames:
    """Entries up to the zeros that fill an active segment's index."""
    count = data.size // layout.size
    status = Status.OK if data.size % layout.size == 0 else Status.TRUNCATED
    if count and not zero_is_real:
        filled = data[: count * layout.size].reshape(count, layout.size).any(axis=1)
        if not filled.all():
            count = int(np.argmin(filled))
            status = Status.PADDING if not data[count * layout.size :].any() else Status.BAD_VALUE
    return _stride(data, layout, 0, count, status)


def scan_index(data: Bytes, kind: int) -> Frames:
    """The entries of an offset index."""
    return _scan_padded(data, INDEX_ENTRY, False)


def begin_timeindex(head: bytes, size: int) -> Origin:
    """A time index of one entry may say time 0 at offset 0."""
    return Origin(0, ZERO_IS_REAL if size == TIME_INDEX_ENTRY.size else 0)


def scan_timeindex(data: Bytes, kind: int) -> Frames:
    """The entries of a time index."""
    return _scan_padded(data, TIME_INDEX_ENTRY, kind == ZERO_IS_REAL)


def scan_txnindex(data: Bytes, kind: int) -> Frames:
    """The entries of a transaction index, which is never padded."""
    count = data.size // TXN_INDEX_ENTRY.size
    status = Status.OK if data.size % TXN_INDEX_ENTRY.size == 0 else Status.TRUNCATED
    frames = _stride(data, TXN_INDEX_ENTRY, 0, count, status)
    versions = data[frames.starts]  # Kafka takes the version to be the first byte
    if versions.any():
        bad = int(np.argmax(versions != 0))
        return _stride(data, TXN_INDEX_ENTRY, 0, bad, Status.BAD_MAGIC)
    return frames


def scan_snapshot(data: Bytes, kind: int) -> Frames:
    """The entries of a snapshot, whose one checksum covers the whole file."""
    empty = _stride(data, SNAPSHOT_ENTRY, SNAPSHOT_HEADER.size, 0, Status.OK)
    if data.size < SNAPSHOT_HEADER.size:
        return _stride(data, SNAPSHOT_ENTRY, 0, 0, Status.TRUNCATED if data.size else Status.OK)
    head = SNAPSHOT_HEADER.take(data, np.zeros(1, np.int64))[0]
    if int(head["version"]) != 1:
        return _stride(data, SNAPSHOT_ENTRY, 0, 0, Status.BAD_MAGIC)
    if crc32c(data, SNAPSHOT_HEADER.after("crc"), data.size) != int(head["crc"]):
        return _stride(data, SNAPSHOT_ENTRY, 0, 0, Status.BAD_CRC)
    present = (data.size - SNAPSHOT_HEADER.size) // SNAPSHOT_ENTRY.size
    count = int(head["count"])
    if not 0 <= count <= present:
        return _stride(data, SNAPSHOT_ENTRY, SNAPSHOT_HEADER.size, present, Status.BAD_COUNT)
    if count == 0:
        return empty
    return _stride(data, SNAPSHOT_ENTRY, SNAPSHOT_HEADER.size, count, Status.OK)


_WORDS = {
    Status.BAD_MAGIC: "a version that does not exist",
    Status.BAD_CRC: "the checksum does not match the content",
    Status.BAD_COUNT: "fewer entries than the count says",
    Status.BAD_VALUE: "an entry of zeros, and others after it",
}


def fault(frames: Frames) -> DataError:
    """What is wrong where the scan of one of these files stopped."""
    return CorruptError(_WORDS.get(frames.status, "damage"), position=frames.reached_in_file)


def _decoder(layout: Layout, more: Callable[[NDArray[Any], File], dict[str, NDArray[np.int64]]]) -> Any:
    def decode(frames: Frames, want: Want) -> Iterator[pa.RecordBatch]:
        if not len(frames):
            return
        raw = layout.take(frames.data, frames.starts)
        numbers = {field.name: raw[field.name].astype(np.int64) for field in layout.fields}
        numbers |= more(raw, want.file)
        made: dict[str, pa.Array] = {}
        for column in want.table.columns:
            if column.name in ("topic", "partition"):
                made[column.name] = columns.constant(getattr(want.file.place, column.name), column.type, len(frames))
            elif column.name == "path":
                made[column.name] = columns.constant(want.file.path, column.type, len(frames))
            elif column.type == "timestamp":
                made[column.name] = _times(numbers[column.name])
            else:
                made[column.name] = columns.integers(numbers[column.name], column.type)
        yield columns.batch(want.table, made, len(frames))

    return decode


def _times(milliseconds: NDArray[np.int64]) -> pa.Array:
    known = (milliseconds != NONE) & (np.abs(milliseconds) <= MOST_MS) & (milliseconds != NO_TIME)
    return columns.timestamps(np.where(known, milliseconds, 0) * 1000, known)


def _with_base(raw: NDArray[Any], file: File) -> dict[str, NDArray[np.int64]]:
    return {"offset": raw["relative_offset"].astype(np.int64) + (file.place.start_offset or 0)}


def _with_snapshot(raw: NDArray[Any], file: File) -> dict[str, NDArray[np.int64]]:
    return {"snapshot_offset": np.full(len(raw), file.place.start_offset or 0, np.int64)}


decode_index = _decoder(INDEX_ENTRY, _with_base)
decode_timeindex = _decoder(TIME_INDEX_ENTRY, _with_base)
decode_txnindex = _decoder(TXN_INDEX_ENTRY, lambda raw, file: {})
decode_snapshot = _decoder(SNAPSHOT_ENTRY, _with_snapshot)


def _explainer(layout: Layout) -> Any:
    def explain(frames: Frames, file: File) -> list[Node]:
        start = int(frames.starts[0])
        base = file.place.start_offset or 0
        meanings: dict[str, Callable[[int], str]] = {
            "timestamp": lambda value: "none" if value == NONE else milliseconds(value),
            "relative_offset": lambda value: f"offset {base + value:,}",
        }
        nodes = layout_nodes(layout, frames.data, start, frames.base, meanings)
        return [Node(frames.base + start, layout.size, f"{layout.name}, number {frames.first}", children=nodes)]

    return explain


explain_index = _explainer(INDEX_ENTRY)
explain_timeindex = _explainer(TIME_INDEX_ENTRY)
explain_txnindex = _explainer(TXN_INDEX_ENTRY)
explain_snapshot = _explainer(SNAPSHOT_ENTRY)


def explain_snapshot_header(head: bytes, file: File) -> list[Node]:
    """Version, checksum and count in front of the entries."""
    data = np.frombuffer(head, np.uint8)
    return [Node(0, SNAPSHOT_HEADER.size, SNAPSHOT_HEADER.name, children=layout_nodes(SNAPSHOT_HEADER, data, 0, 0))]
