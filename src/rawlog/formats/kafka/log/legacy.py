"""Message sets of magic 0 and 1 into Arrow columns: wrappers decompressed, statuses turned into errors."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog.formats.kafka.log.heads import Heads, take
from rawlog.formats.kafka.log.kernels import records as kernels
from rawlog.formats.kafka.log.kernels.records import NO_APPEND_TIME
from rawlog.formats.kafka.log.layouts import (
    CODEC_MASK,
    CODECS,
    ENTRY_V0,
    ENTRY_V1,
    MAGIC_V2,
    OUTLINE,
    Attributes,
)
from rawlog.formats.kafka.log.records import (
    SLICE_BYTES,
    SLICE_ROWS,
    TIMESTAMP,
    BinaryBuffers,
    Columns,
    TooMuch,
    fitting,
    join_slices,
    timestamp_types,
)
from rawlog.io.compression import decompress
from rawlog.kernels import byte_view
from rawlog.kernels import columns as make
from rawlog.kernels.gather import SLACK
from rawlog.model.errors import CorruptError, DataError, LimitError
from rawlog.model.frames import Bytes, Frames
from rawlog.model.status import Status

LAYOUTS = (ENTRY_V0, ENTRY_V1)
OPENED = 64 << 20
"""A wrapper that grows beyond this is not opened for its first offset."""
ANY_OFFSET = 1 << 62
LAST_LEGACY_CODEC = 3  # zstd came with magic 2

_WORDS = {
    Status.BAD_LENGTH: "a length that does not fit",
    Status.BAD_COUNT: "a wrapper that holds no whole entry",
    Status.BAD_VALUE: "an offset that is invalid",
    Status.BAD_MAGIC: "an entry of another magic than 0 or 1",
    Status.BAD_CODEC: "a compressed entry inside a compressed one",
    Status.BAD_CRC: "an inner entry whose checksum does not match",
}


@dataclass(slots=True)
class Spans:
    """Where the entries of every frame lie, plain ones in the file's bytes or in a copy, wrapped ones decompressed.

    Of a slice of one wrapper, `first` is the number of entries before it, `begin` where those of the wrapper begin.
    """

    data: Bytes
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    kinds: NDArray[np.int64]
    counts: NDArray[np.int64]
    bases: NDArray[np.int64]
    first: int = 0
    begin: int | None = None


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
    """The wanted columns of all records in entries of magic 0 and 1, whose own checksums are right, in one piece.

    As `reader.decode_columns`: CorruptError for the first frame that cannot be read, TooMuch where several hold too much.
    """
    try:
        return join_slices(decode_legacy_slices(data, starts, stops, columns, head=head, limit=limit, total=total))
    except LimitError as error:
        raise error.at(position=int(starts[0])) from None


def decode_legacy_slices(
    data: Bytes,
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    columns: AbstractSet[str],
    *,
    head: Heads,
    limit: int,
    total: int,
) -> Iterator[Columns]:
    """The same, but a lone wrapper of more than SLICE_ROWS or SLICE_BYTES comes in slices, once all of its entries are checked."""
    spans = unwrap(data, starts, stops, head, limit=limit, total=total)
    rows = int(spans.counts.sum())
    if starts.size > 1 and rows > SLICE_ROWS:
        raise TooMuch(fitting(np.cumsum(spans.counts), SLICE_ROWS))
    if starts.size > 1 or (rows <= SLICE_ROWS and int(spans.stops[0] - spans.starts[0]) <= SLICE_BYTES):
        yield _decode(spans, starts, columns, head)
        return
    parts = _cut(spans)
    for part in parts:
        _decode(part, starts, frozenset(), head)
    for part in parts:
        yield _decode(part, starts, columns, head)


def _cut(spans: Spans) -> list[Spans]:
    """The entries of a lone wrapper in slices."""
    parts: list[Spans] = []
    position, stop, count, row = int(spans.starts[0]), int(spans.stops[0]), int(spans.counts[0]), 0
    while row < count:
        rows, reached = kernels.skip_entries(spans.data, position, stop, count - row, SLICE_ROWS, SLICE_BYTES)
        ends = {"starts": np.array([position]), "stops": np.array([reached]), "counts": np.array([rows], np.int64)}
        parts.append(replace(spans, **ends, first=row, begin=int(spans.starts[0])))
        row, position = row + int(rows), int(reached)
    return parts


def _decode(spans: Spans, starts: NDArray[np.int64], columns: AbstractSet[str], head: Heads) -> Columns:
    room = int(spans.counts.sum())
    buffers = _Buffers(columns, room, int((spans.stops - spans.starts).sum()))
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
        buffers.with_key,
        buffers.with_value,
        *buffers.numbers,
        *buffers.payloads,
    )
    if status != Status.OK:
        frame = int(np.searchsorted(np.cumsum(spans.counts), count, side="right"))
        begin = int(spans.starts[frame]) if spans.begin is None else spans.begin
        raise _fault(frame, int(position) - begin, Status(status), starts, head)
    arrays = buffers.arrays(room)
    if "timestampType" in columns:
        kinds = np.where(head["magic"] == 0, kernels.NO_TIMESTAMP_TYPE, append.astype(np.int64))
        arrays["timestampType"] = timestamp_types(kinds, spans.counts, room)
    return Columns(arrays, room, spans.counts, first=spans.first, far=int(buffers.nulls[3]))


def starts_plain(data: Bytes, starts: NDArray[np.int64]) -> bool:
    """Whether the first frame looks like an uncompressed entry of magic 0 or 1."""
    if not starts.size:
        return False
    magic, attributes = data[starts[0] + OUTLINE.at("magic")], data[starts[0] + ENTRY_V0.at("attributes")]
    return bool(magic <= 1 and not attributes & CODEC_MASK)


def decode_plain(
    data: Bytes, starts: NDArray[np.int64], stops: NDArray[np.int64], columns: AbstractSet[str]
) -> Columns:
    """The wanted columns of the uncompressed entries of magic 0 and 1 that come first, their checksums checked.

    Ends in front of the first frame that is anything else, or damaged: that is for `decode_legacy` and others. Nothing is asked of each
    frame apart, which for entries of a hundred bytes would cost more than reading them.
    """
    room = starts.size
    buffers = _Buffers(columns, room, int((stops - starts).sum()))
    types = np.empty(room, np.int32)
    offsets, times, times_valid = buffers.numbers
    count = kernels.decode_plain_entries(
        byte_view(data),
        starts,
        stops,
        buffers.with_key,
        buffers.with_value,
        offsets,
        times,
        times_valid,
        types,
        *buffers.payloads,
    )
    arrays = buffers.arrays(count)
    if "timestampType" in columns:
        arrays["timestampType"] = pa.array(types[:count])
    return Columns(arrays, count, np.ones(count, np.int64))


class _Buffers:
    """The columns of entries while a kernel fills them."""

    def __init__(self, columns: AbstractSet[str], room: int, size: int) -> None:
        self.columns = columns
        self.with_key, self.with_value = "key" in columns, "value" in columns
        self.keys = BinaryBuffers(room, size) if self.with_key else BinaryBuffers.nothing()
        self.values = BinaryBuffers(room, size) if self.with_value else BinaryBuffers.nothing()
        self.offset_buffer, self.time_buffer = pa.allocate_buffer(room * 8), pa.allocate_buffer(room * 8)
        self.times_valid = np.full((room + 7) // 8, 0xFF, np.uint8)
        self.nulls = np.zeros(4, np.int64)

    @property
    def numbers(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
        """Offsets, times, and which rows have one."""
        offsets, times = np.frombuffer(self.offset_buffer, np.int64), np.frombuffer(self.time_buffer, np.int64)
        return offsets, times, self.times_valid

    @property
    def payloads(self) -> tuple[NDArray[Any], ...]:
        """The buffers of keys and values, and the counts of nulls."""
        keys, values = self.keys, self.values
        return keys.offsets, keys.values, keys.valid, values.offsets, values.values, values.valid, self.nulls

    def arrays(self, count: int) -> dict[str, pa.Array]:
        """The first `count` rows as columns; entries of magic 0 and 1 have no headers."""
        null_times, null_keys, null_values, _ = self.nulls.tolist()
        arrays: dict[str, pa.Array] = {}
        if "offset" in self.columns:
            arrays["offset"] = pa.Array.from_buffers(pa.int64(), count, [None, self.offset_buffer], 0)
        if "timestamp" in self.columns:
            valid = pa.py_buffer(self.times_valid) if null_times else None
            arrays["timestamp"] = pa.Array.from_buffers(TIMESTAMP, count, [valid, self.time_buffer], null_times)
        if self.with_key:
            arrays["key"] = self.keys.array(count, null_keys)
        if self.with_value:
            arrays["value"] = self.values.array(count, null_values)
        if "headers" in self.columns:
            arrays["headers"] = make.empty_headers(count)
        return arrays


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
        unwrapped_size = 0
        window: Any = memoryview(source)  # type: ignore[arg-type]
        for index in range(starts.size):
            piece: Any = window[int(starts[index]) : int(stops[index])]
            if wrapped[index]:
                piece = _unwrap_value(piece, int(head["magic"][index]), int(codec[index]), int(starts[index]), limit)
            unwrapped_size += len(piece)
            if unwrapped_size > total and index > 0:
                raise TooMuch(index)
            sizes[index] = len(piece)
            pieces.append(piece)
        last = np.cumsum(sizes)
        first = last - sizes
        # What is large is not copied; the spare bytes let every copy out of it be a wide one.
        is_lone_piece = len(pieces) == 1 and len(pieces[0]) > SLICE_BYTES
        source = byte_view(pieces[0] if is_lone_piece else b"".join((*pieces, bytes(SLACK))))
    counts, bases = np.zeros(starts.size, np.int64), np.zeros(starts.size, np.int64)
    kinds = kinds.astype(np.int64)
    frame, position, status = kernels.measure_spans(source, first, last, kinds, head["last_offset"], counts, bases)
    if status != Status.OK:
        raise _fault(int(frame), int(position) - int(first[frame]), Status(status), starts, head)
    return Spans(source, first, last, kinds, counts, bases)


def open_wrappers(frames: Frames, head: Heads) -> Heads:
    """The headers of frames, with the first offset and the number of records of each wrapper: only its content tells them, and it is read
    once for everybody who asks. A wrapper that cannot be opened keeps its last offset and -1.

    The first offset is right if the wrapper's own offset is, which no checksum covers; it is below 0 where that is invalid.
    """
    if not (head["record_count"] < 0).any():
        return head
    with_contents = Heads(head.values.copy(), head.summary)
    numbers, spans, counts = frames.share(_contents)
    with_contents["base_offset"][numbers] = head["last_offset"][numbers] - spans
    with_contents["record_count"][numbers] = counts
    return with_contents


def has_open_wrappers(frames: Frames) -> bool:
    """Whether somebody opened the wrappers among frames already."""
    return frames.shared(_contents) is not None


def _contents(frames: Frames) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The numbers of the wrappers that can be opened, how far the last offset in each is from the first, and how many entries it has."""
    head = take(frames.data, frames.starts, frames.stops, check_crc=False)
    window: Any = memoryview(byte_view(frames.data))  # type: ignore[arg-type]
    rows: list[tuple[int, int, int]] = []
    start, offset, kind = np.zeros(1, np.int64), np.full(1, ANY_OFFSET), np.full(1, kernels.RELATIVE, np.int64)
    count, base = np.zeros(1, np.int64), np.zeros(1, np.int64)
    for number in np.flatnonzero(head.sound & (head["record_count"] < 0) & (head["magic"] != MAGIC_V2)).tolist():
        entry = window[int(frames.starts[number]) : int(frames.stops[number])]
        try:
            content = _unwrap_value(entry, int(head["magic"][number]), int(head.codec[number]), 0, OPENED)
        except DataError:
            continue
        data = byte_view(content)
        stop = np.array([data.size], np.int64)
        _, _, status = kernels.measure_spans(data, start, stop, kind, offset, count, base)
        first = int.from_bytes(bytes(data[: OUTLINE.after("base_offset")]), "big", signed=True)
        span = ANY_OFFSET - int(base[0]) - first
        if status == Status.OK and 0 <= span <= ANY_OFFSET:
            rows.append((number, span, int(count[0])))
    numbers, spans, counts = np.array(rows, np.int64).reshape(-1, 3).T
    return numbers, spans, counts


def holds_older(wrapper: Frames, head: Heads, limit: int) -> bool:
    """Whether a compressed entry of magic 1 has an entry of magic 0 inside."""
    try:
        inside = unwrap(wrapper.data, wrapper.starts, wrapper.stops, head, limit=limit, total=limit)
    except DataError:
        return False
    return bool(kernels.any_older(inside.data, int(inside.starts[0]), int(inside.stops[0]), int(inside.counts[0])))


def _unwrap_value(entry: Any, magic: int, codec: int, start: int, limit: int) -> Any:
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
