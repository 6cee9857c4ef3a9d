"""Message sets of magic 0 and 1 into Arrow columns: wrappers decompressed, statuses turned into errors."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog import columns as make
from rawlog.compression import decompress
from rawlog.errors import CorruptError, DataError
from rawlog.formats.kafka.heads import Heads
from rawlog.formats.kafka.kernels import legacy as kernels
from rawlog.formats.kafka.kernels.records import NO_APPEND_TIME
from rawlog.formats.kafka.layouts import CODECS, ENTRY_V0, ENTRY_V1, OUTLINE, Attributes
from rawlog.formats.kafka.reader import TIMESTAMP, BinaryBuffers, Columns, TooMuch
from rawlog.frames import Bytes, Frames
from rawlog.kernels import byte_view
from rawlog.kernels.gather import SLACK
from rawlog.status import Status

NO_TIMESTAMP_TYPE = -1
"""What Kafka calls NoTimestampType: entries of magic 0 have no time of any kind."""
LAYOUTS = (ENTRY_V0, ENTRY_V1)
LAST_LEGACY_CODEC = 3  # zstd came with magic 2

_WORDS = {
    Status.BAD_LENGTH: "a length that does not fit",
    Status.BAD_COUNT: "a wrapper that holds no whole entry",
    Status.BAD_VALUE: "an offset or time that cannot be",
    Status.BAD_MAGIC: "an entry of another magic than 0 or 1",
    Status.BAD_CODEC: "a compressed entry inside a compressed one",
    Status.BAD_CRC: "an inner entry whose checksum does not match",
}


@dataclass(slots=True)
class Spans:
    """Where the entries of every frame lie, plain ones in the file's bytes or in a copy, wrapped ones decompressed."""

    data: Bytes
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    kinds: NDArray[np.int64]
    counts: NDArray[np.int64]
    bases: NDArray[np.int64]


def decode_legacy(
    data: Bytes,
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    columns: AbstractSet[str],
    *,
    head: Heads,
    limit: int,
    total: int,
) -> Columns:
    """The wanted columns of all records in entries of magic 0 and 1, whose own checksums are right.

    As `reader.decode_columns`: CorruptError for the first frame that cannot be read, TooMuch where several hold too much.
    """
    spans = unwrap(data, starts, stops, head, limit=limit, total=total)
    room = int(spans.counts.sum())
    size = int((spans.stops - spans.starts).sum())
    with_key, with_value = "key" in columns, "value" in columns
    keys = BinaryBuffers(room, size) if with_key else BinaryBuffers.nothing()
    values = BinaryBuffers(room, size) if with_value else BinaryBuffers.nothing()
    offsets, times = np.empty(room, np.int64), np.empty(room, np.int64)
    times_valid = np.full((room + 7) // 8, 0xFF, np.uint8)
    nulls = np.zeros(3, np.int64)
    append = head.has(Attributes.LOG_APPEND_TIME) & (head["magic"] == 1)
    count, position, status = kernels.decode_entries(
        spans.data,
        spans.starts,
        spans.stops,
        spans.kinds,
        spans.counts,
        spans.bases,
        np.where(append, head["max_timestamp"], np.int64(NO_APPEND_TIME)),
        np.int64(NO_APPEND_TIME),
        True,
        with_key,
        with_value,
        offsets,
        times,
        times_valid,
        keys.offsets,
        keys.values,
        keys.valid,
        values.offsets,
        values.values,
        values.valid,
        nulls,
    )
    if status != Status.OK:
        frame = int(np.searchsorted(np.cumsum(spans.counts), count, side="right"))
        raise _fault(frame, int(position) - int(spans.starts[frame]), Status(status), starts, head)
    arrays: dict[str, pa.Array] = {}
    if "offset" in columns:
        arrays["offset"] = pa.array(offsets)
    if "timestamp" in columns:
        valid = pa.py_buffer(times_valid) if nulls[0] else None
        arrays["timestamp"] = pa.Array.from_buffers(TIMESTAMP, room, [valid, pa.py_buffer(times)], int(nulls[0]))
    if with_key:
        arrays["key"] = keys.array(room, int(nulls[1]))
    if with_value:
        arrays["value"] = values.array(room, int(nulls[2]))
    if "headers" in columns:
        arrays["headers"] = make.empty_headers(room)
    if "timestampType" in columns:
        kinds = np.where(head["magic"] == 0, NO_TIMESTAMP_TYPE, append.astype(np.int64))
        arrays["timestampType"] = make.integers(np.repeat(kinds, spans.counts), "int")
    return Columns(arrays, room, spans.counts)


def unwrap(
    data: Bytes, starts: NDArray[np.int64], stops: NDArray[np.int64], head: Heads, *, limit: int, total: int
) -> Spans:
    """The entries of every frame laid bare and counted."""
    codec, wrapped = head.codec, head.codec > 0
    kinds = np.where(wrapped, np.where(head["magic"] == 0, kernels.ABSOLUTE, kernels.RELATIVE), kernels.PLAIN)
    source = byte_view(data)
    first, last = starts, stops
    if wrapped.any():
        pieces: list[Any] = []
        sizes = stops - starts
        made = 0
        window: Any = memoryview(source)  # type: ignore[arg-type]
        for index in range(starts.size):
            piece: Any = window[int(starts[index]) : int(stops[index])]
            if wrapped[index]:
                piece = _unwrapped(piece, int(head["magic"][index]), int(codec[index]), int(starts[index]), limit)
            made += len(piece)
            if made > total and index > 0:
                raise TooMuch(index)
            sizes[index] = len(piece)
            pieces.append(piece)
        last = np.cumsum(sizes)
        first = last - sizes
        source = byte_view(b"".join((*pieces, bytes(SLACK))))
    counts, bases = np.zeros(starts.size, np.int64), np.zeros(starts.size, np.int64)
    kinds = kinds.astype(np.int64)
    frame, position, status = kernels.measure_spans(source, first, last, kinds, head["last_offset"], counts, bases)
    if status != Status.OK:
        raise _fault(int(frame), int(position) - int(first[frame]), Status(status), starts, head)
    return Spans(source, first, last, kinds, counts, bases)


def holds_older(wrapper: Frames, head: Heads, limit: int) -> bool:
    """Whether a compressed entry of magic 1 has an entry of magic 0 inside."""
    try:
        inside = unwrap(wrapper.data, wrapper.starts, wrapper.stops, head, limit=limit, total=limit)
    except DataError:
        return False
    position, stop = int(inside.starts[0]), int(inside.stops[0])
    for _ in range(int(inside.counts[0])):
        if inside.data[position + OUTLINE.at("magic")] == 0:
            return True
        length = bytes(inside.data[position + OUTLINE.at("length") : position + OUTLINE.after("length")])
        position += OUTLINE.after("length") + int.from_bytes(length, "big")
    assert position <= stop
    return False


def _unwrapped(entry: Any, magic: int, codec: int, start: int, limit: int) -> Any:
    """What the value of a wrapper decompresses to."""
    layout = LAYOUTS[magic]
    if codec > LAST_LEGACY_CODEC:
        raise CorruptError(
            f"codec {codec} in an entry of magic {magic}",
            position=start,
            layout=layout.name,
            field="attributes",
            found=codec,
        )
    key = int.from_bytes(entry[layout.at("key_length") : layout.size], "big", signed=True)
    at = layout.size + max(key, 0)
    size = int.from_bytes(entry[at : at + 4], "big", signed=True) if len(entry) - at >= 4 else -1
    if size < 0 or len(entry) - at - 4 < size:
        raise CorruptError("a wrapper without content", position=start, layout=layout.name, found=size)
    try:
        content = decompress(CODECS[codec], entry[at + 4 : at + 4 + size], limit=limit, broken_lz4_header=magic == 0)
    except DataError as error:
        raise error.at(position=start, layout=layout.name) from None
    return content


def _fault(frame: int, at: int, status: Status, starts: NDArray[np.int64], head: Heads) -> CorruptError:
    layout = LAYOUTS[int(head["magic"][frame])]
    inside = "inside the wrapper, " if head.codec[frame] else ""
    return CorruptError(
        f"{inside}byte {at}: {_WORDS.get(status, 'damage')}",
        position=int(starts[frame]),
        layout=layout.name,
        field=OUTLINE.fields[0].name,
    )
