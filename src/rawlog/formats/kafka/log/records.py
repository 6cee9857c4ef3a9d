"""Records into Arrow columns: batches of magic 2, and message sets of magic 0 and 1. Memory, decompression, statuses turned into errors.

`decode_slices` gives what records say themselves; what their batch says (producer, epoch, codec) is for the caller
to repeat by `Columns.counts`. Control batches are decoded like any other. Memory is bounded by rows, bytes and headers: a batch that
holds more comes in several slices.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog.formats.kafka.log.heads import Heads, take
from rawlog.formats.kafka.log.kernels import records as kernels
from rawlog.formats.kafka.log.kernels.records import NO_APPEND_TIME, unpack_payloads
from rawlog.formats.kafka.log.layouts import (
    BATCH,
    CODEC_MASK,
    CODECS,
    ENTRY_V0,
    ENTRY_V1,
    MAGIC_V2,
    NONE,
    OUTLINE,
    SMALLEST_RECORD,
    Attributes,
)
from rawlog.io import compression
from rawlog.io.compression import decompress
from rawlog.io.walk import memory
from rawlog.kernels import byte_view
from rawlog.kernels import columns as make
from rawlog.kernels.columns import constant
from rawlog.kernels.gather import SLACK
from rawlog.kernels.ints import read_varint, read_varlong
from rawlog.model.errors import CorruptError, DataError, LimitError, UnsupportedError
from rawlog.model.format import MAX_HEADERS
from rawlog.model.frames import Bytes, Frames
from rawlog.model.status import Status
from rawlog.model.table import HEADERS, arrow_type
from rawlog.model.text import java_text

COLUMNS = frozenset({"key", "value", "offset", "timestamp", "timestampType", "headers"})
"""The columns that `decode_columns` knows."""
USUAL_RATIO, LARGEST_BLOCK = 3, 128 << 10
"""What payloads mostly decompress to at most, times their size, and more than a block of any codec: room is made where it is not enough."""
LARGEST_WINDOW = (1 << 31) - 1 - SLACK
"""Arrow's binary columns hold less than 2 GiB: more payload than this must be cut by the caller."""
SLICE_ROWS, SLICE_BYTES, SLICE_HEADERS = 1 << 18, 32 << 20, 1 << 18
"""What is decoded at a time, unless a record alone holds more."""
NO_HEADERS = -1
"""Instead of SLICE_HEADERS: headers are only checked."""
WHOLE_ROWS, WHOLE_HEADERS = 1 << 22, 1 << 22
"""The most records and headers of one batch for those who need all of its columns at once."""
TIMESTAMP = pa.timestamp("us", "UTC")

_NOTHING = np.empty(0, np.uint8)
_NO_OFFSETS = np.empty(1, np.int32)
_WORDS = {
    Status.BAD_VARINT: "a variable-length number that does not end",
    Status.BAD_LENGTH: "a length that does not fit",
    Status.TRAILING: "bytes after the last record",
}


class TooMuch(Exception):
    """The batches hold more than is decoded at a time; the first `fits` of them do not."""

    def __init__(self, fits: int) -> None:
        super().__init__(fits)
        self.fits = fits


@dataclass(frozen=True, slots=True)
class Columns:
    """Decoded columns by name, the number of rows, and how many of them each batch gave (in order).

    `replaced` are the rows with a header key that is not UTF-8, which reads as Java's clients show it. `first` is the number of the
    first row in its batch, where a batch comes in several slices. `far` is the number of times that microseconds cannot hold: they are
    null in the column, and `milliseconds` gives them.
    """

    arrays: dict[str, pa.Array]
    count: int
    counts: NDArray[np.int64]
    replaced: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    first: int = 0
    far: int = 0

    @property
    def batch_index(self) -> NDArray[np.int64]:
        """For every row, which of the batches it came from."""
        return np.repeat(np.arange(self.counts.size, dtype=np.int64), self.counts)


@dataclass(slots=True)
class _Payloads:
    """Where the records of every batch lie: in the file's own bytes, or decompressed, end to end.

    Of a slice of one batch, `first` is the number of records before it, `begin` where the records of the batch begin and `declared`
    their number.
    """

    data: Bytes
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    counts: NDArray[np.int64]
    base_offsets: NDArray[np.int64]
    base_times: NDArray[np.int64]
    append_times: NDArray[np.int64]
    first: int = 0
    begin: int | None = None
    declared: int | None = None

    @property
    def size(self) -> int:
        return int((self.stops - self.starts).sum())

    def slice(self, start: int, stop: int, first: int, count: int) -> _Payloads:
        """Some of the records of a lone batch."""
        ends = np.array([start], np.int64), np.array([stop], np.int64)
        origin = (int(self.starts[0]), int(self.counts[0]))
        return replace(
            self, starts=ends[0], stops=ends[1], counts=np.array([count], np.int64), first=first, begin=origin[0],
            declared=origin[1],
        )  # fmt: skip


def decode_columns(
    data: Bytes,
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    columns: AbstractSet[str],
    *,
    head: Heads | None = None,
    limit: int = compression.DEFAULT_LIMIT,
    total: int = LARGEST_WINDOW,
    max_headers: int = MAX_HEADERS,
) -> Columns:
    """As `decode_slices`, in one piece. LimitError for a batch of more than WHOLE_ROWS records or WHOLE_HEADERS headers."""
    slices = decode_slices(data, starts, stops, columns, head=head, limit=limit, total=total, max_headers=max_headers)
    try:
        return join_slices(slices)
    except LimitError as error:
        raise error.at(position=int(starts[0])) from None


def join_slices(slices: Iterator[Columns]) -> Columns:
    """The slices of one batch in one piece; what came in one is not copied. LimitError for more than is meant to be in memory at once."""
    parts: list[Columns] = []
    rows = headers = 0
    for part in slices:
        parts.append(part)
        rows += part.count
        headers += len(part.arrays["headers"].values) if "headers" in part.arrays else 0
        if len(parts) > 1 and (rows > WHOLE_ROWS or headers > WHOLE_HEADERS):
            what = (
                f"more than {WHOLE_ROWS:,} records or {WHOLE_HEADERS:,} headers in one batch, which cannot be rewritten"
            )
            raise LimitError(what, layout=BATCH.name, field="record_count")
    if len(parts) == 1:
        return parts[0]
    arrays = {name: pa.concat_arrays([part.arrays[name] for part in parts]) for name in parts[0].arrays}
    replaced = np.concatenate([part.first + part.replaced for part in parts])
    return Columns(arrays, rows, np.array([rows], np.int64), replaced, far=sum(part.far for part in parts))


def decode_slices(
    data: Bytes,
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    columns: AbstractSet[str],
    *,
    head: Heads | None = None,
    limit: int = compression.DEFAULT_LIMIT,
    total: int = LARGEST_WINDOW,
    max_headers: int = MAX_HEADERS,
) -> Iterator[Columns]:
    """The wanted columns (of COLUMNS) of all records in the batches `data[starts[i]:stops[i]]`, which scan found.

    All batches come in one piece, but a lone batch of more than SLICE_ROWS, SLICE_BYTES or SLICE_HEADERS comes in slices. `head` is what
    is known of the batches already, their checksums checked; without it they are checked here. `limit` bounds what one batch may
    decompress to, and `max_headers` the headers of one record. `total`, if given, bounds what several batches may decompress to, and
    SLICE_ROWS and SLICE_HEADERS what they may hold: TooMuch says how many of them fit, before anything is given.

    Raises CorruptError for the first batch that is damaged, with its position in `data`, before any of its records is given: wrong
    checksum, record, count or codec stream. LimitError for one that is larger than the limits, UnsupportedError for magic 0 and 1.
    """
    assert columns <= COLUMNS, columns - COLUMNS
    data = byte_view(data)
    starts, stops = np.ascontiguousarray(starts, np.int64), np.ascontiguousarray(stops, np.int64)
    if head is None:
        head = take(data, starts, stops)
        if not head.sound.all():
            raise _unsound_error(head, starts)
    _check(head, starts)
    bounded = starts.size == 1 or total < LARGEST_WINDOW
    if bounded:
        _check_rows(head)
    payloads = _payloads(data, starts, stops, head, limit, total)
    assert payloads.size <= LARGEST_WINDOW, "more than an Arrow column holds: cut the window"
    counts = head["record_count"]
    decoded = None
    if starts.size != 1 or (payloads.size <= SLICE_BYTES and int(counts[0]) <= SLICE_ROWS):
        decoded = _decode(payloads, starts, columns, max_headers, largest=SLICE_HEADERS if bounded else payloads.size)
    if decoded is not None:
        yield _complete(decoded, head, counts, columns)
        return
    for part in _slices(payloads, starts, columns, max_headers):
        decoded = _decode(part, starts, columns, max_headers, largest=part.size)
        assert decoded is not None, "a slice is never cut"
        yield _complete(replace(decoded, first=part.first), head, part.counts, columns)


def _complete(decoded: Columns, head: Heads, counts: NDArray[np.int64], columns: AbstractSet[str]) -> Columns:
    if "timestampType" in columns:
        kinds = head.has(Attributes.LOG_APPEND_TIME)
        is_create_time = not head.any(Attributes.LOG_APPEND_TIME)
        types = constant(0, "int", decoded.count) if is_create_time else timestamp_types(kinds, counts, decoded.count)
        decoded.arrays["timestampType"] = types
    return replace(decoded, counts=counts)


def _check_rows(head: Heads) -> None:
    """TooMuch for several batches whose headers name more records than are decoded at a time."""
    counts = head["record_count"]
    if counts.size > 1 and int(counts.sum()) > SLICE_ROWS:
        raise TooMuch(fitting(np.cumsum(counts), SLICE_ROWS))


def fitting(ends: NDArray[Any], most: int) -> int:
    """How many batches stay below a bound, by the running sum: at least one, and not all."""
    return min(max(int(np.searchsorted(ends, most, side="right")), 1), ends.size - 1)


def _slices(
    payloads: _Payloads, positions: NDArray[np.int64], columns: AbstractSet[str], max_headers: int
) -> list[_Payloads]:
    """The records of a lone batch in slices. All of them are checked here, so that a batch is read whole or not at all."""
    position, stop, count = int(payloads.starts[0]), int(payloads.stops[0]), int(payloads.counts[0])
    if count > payloads.size // SMALLEST_RECORD:
        raise _record_error(payloads, positions, 0, position, Status.BAD_COUNT)
    parts: list[_Payloads] = []
    row = 0
    while row < count:
        rows, reached = kernels.skip_records_v2(
            payloads.data, position, stop, count - row, SLICE_ROWS, SLICE_BYTES, SLICE_HEADERS
        )
        last = row + int(rows) == count
        part = payloads.slice(position, stop if last else int(reached), row, int(rows))
        _decode(part, positions, columns & {"headers"}, max_headers, largest=NO_HEADERS)
        parts.append(part)
        row, position = row + int(rows), int(reached)
    return parts


def timestamp_types(kinds: NDArray[Any], counts: NDArray[np.int64], count: int) -> pa.Array:
    """The column of what kind of time rows have, from one kind per batch; nearly always there is only one."""
    if not kinds.size or (kinds == kinds[0]).all():
        return constant(int(kinds[0]) if kinds.size else None, "int", count)
    return pa.array(np.repeat(kinds.astype(np.int32), counts))


def _check(head: Heads, starts: NDArray[np.int64]) -> None:
    """What can be said of batches by their headers alone; the first one with a fault is named."""
    usual = not head.mixed and not head.any(CODECS.index("zstd")) and starts.size and head["magic"][0] == MAGIC_V2
    if usual and head["record_count"].min() >= 0:
        return
    codecs = head.codec
    faulty = (head["record_count"] < 0) | (codecs >= len(CODECS)) | (head["magic"] != MAGIC_V2)
    if not faulty.any():
        return
    index = int(np.argmax(faulty))
    start, count, magic = int(starts[index]), int(head["record_count"][index]), int(head["magic"][index])
    if magic != MAGIC_V2:
        raise UnsupportedError(f"magic {magic}, 2 expected", position=start, layout=BATCH.name, found=magic)
    if count < 0:
        raise _fault(f"record count {count}", start, "record_count", "at least 0", count)
    codec = int(codecs[index])
    raise _fault(f"codec {codec}, 0 to {len(CODECS) - 1} expected", start, "attributes", "0 to 4", codec)


def _unsound_error(head: Heads, starts: NDArray[np.int64]) -> CorruptError:
    index = int(np.argmin(head.sound))
    what = {Status.BAD_CRC: "crc", Status.BAD_LENGTH: "length", Status.BAD_MAGIC: "magic"}[Status(head["state"][index])]
    return _fault(f"{what} does not fit the batch", int(starts[index]), what)


def _payloads(
    data: Bytes, starts: NDArray[np.int64], stops: NDArray[np.int64], head: Heads, limit: int, total: int
) -> _Payloads:
    """The bytes of the records, decompressed where they must be."""
    counts, firsts = head["record_count"], starts + BATCH.size
    append_times = np.full(starts.size, kernels.NO_APPEND_TIME, np.int64)
    if head.any(Attributes.LOG_APPEND_TIME):
        np.copyto(append_times, head["max_timestamp"], where=head.has(Attributes.LOG_APPEND_TIME))
    if head.any(CODEC_MASK):
        data, firsts, stops = _decompress(data, firsts, stops, head.codec, counts, limit, total)
    return _Payloads(data, firsts, stops, counts, head["base_offset"], head["base_timestamp"], append_times)


def payloads_of(
    frames: Frames, head: Heads, limit: int
) -> tuple[Bytes, NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Where the records of sound batches of magic 2 lie, decompressed where they must be: the bytes, first and last position of each
    batch, and the time of all of its records where it has log append time (else NO_APPEND_TIME).
    """
    payloads = _payloads(frames.data, frames.starts, frames.stops, head, limit, limit)
    return payloads.data, payloads.starts, payloads.stops, payloads.append_times


def _decompress(
    data: Bytes,
    firsts: NDArray[np.int64],
    stops: NDArray[np.int64],
    codecs: NDArray[np.int64],
    counts: NDArray[np.int64],
    limit: int,
    total: int,
) -> tuple[Bytes, NDArray[np.int64], NDArray[np.int64]]:
    """All payloads end to end in one buffer. A batch of no records is not looked at, as by Kafka.

    Snappy and lz4 as Kafka writes them are the kernel's; what it leaves is for the libraries, one batch at a time.
    """
    window: Any = memoryview(data)  # type: ignore[arg-type]
    out = memory(USUAL_RATIO * int((stops - firsts).sum()) + LARGEST_BLOCK)
    sizes, index, written = np.zeros(firsts.size, np.int64), 0, 0
    while True:
        index, written = unpack_payloads(data, firsts, stops, codecs, counts, index, limit, total, out, written, sizes)
        if index == firsts.size:
            break
        first, codec = int(firsts[index]), int(codecs[index])
        try:
            piece = compression.decompress(CODECS[codec], window[first : int(stops[index])], limit=limit)
        except DataError as error:
            raise error.at(position=first - BATCH.size, layout=BATCH.name) from None
        size = len(piece)
        if written + size > total and index > 0:
            raise TooMuch(index)
        if size > SLICE_BYTES and firsts.size == 1:
            # As it is: a copy of something so large would be too much.
            return byte_view(piece), np.zeros(1, np.int64), np.array([size], np.int64)
        if out.size - written - SLACK < size:
            larger = memory(2 * (written + size) + LARGEST_BLOCK)
            larger[:written] = out[:written]
            out = larger
        memoryview(out.data)[written : written + size] = piece
        sizes[index] = size
        index, written = index + 1, written + size
    ends = np.cumsum(sizes)
    # The spare bytes let every copy out of it be a wide one.
    return byte_view(out[: written + SLACK]), ends - sizes, ends


def _decode(
    payloads: _Payloads,
    positions: NDArray[np.int64],
    columns: AbstractSet[str],
    max_headers: int,
    *,
    largest: int,
) -> Columns | None:
    """Bound, fill, trim. `positions` are the batches' own, for errors. None for a lone batch of more than `largest` headers."""
    total = payloads.size
    room = min(int(payloads.counts.sum()), total // SMALLEST_RECORD)
    # One large record: its key and value are taken from the payload as they are, since a copy would be too much.
    is_lone_record = room == 1 and total > SLICE_BYTES
    with_key, with_value = "key" in columns and not is_lone_record, "value" in columns and not is_lone_record
    offsets, times = pa.allocate_buffer(room * 8), pa.allocate_buffer(room * 8)
    keys = BinaryBuffers(room, total) if with_key else BinaryBuffers.nothing()
    values = BinaryBuffers(room, total) if with_value else BinaryBuffers.nothing()
    times_valid = np.full((room + 7) // 8, 0xFF, np.uint8)
    header_offsets = pa.allocate_buffer((room + 1) * 4)
    header_starts = np.empty(room, np.int64)
    totals = np.zeros(kernels.TOTALS, np.int64)
    count, position, status = kernels.decode_records_v2(
        payloads.data,
        payloads.starts,
        payloads.stops,
        payloads.counts,
        payloads.base_offsets,
        payloads.base_times,
        payloads.append_times,
        with_key,
        with_value,
        np.frombuffer(offsets, np.int64),
        np.frombuffer(times, np.int64),
        times_valid,
        keys.offsets,
        keys.values,
        keys.valid,
        values.offsets,
        values.values,
        values.valid,
        np.frombuffer(header_offsets, np.int32),
        header_starts,
        totals,
    )
    if status != Status.OK:
        raise _record_error(payloads, positions, int(count), int(position), Status(status))
    if "headers" in columns and totals[kernels.HEADERS] > min(max_headers, largest):
        ends = np.frombuffer(header_offsets, np.int32)[: count + 1]
        _check_headers(payloads, positions, ends, max_headers)
        if positions.size > 1 and ends[-1] > largest:
            raise TooMuch(fitting(ends[np.cumsum(payloads.counts)], largest))
        if ends[-1] > largest:
            return None
    arrays: dict[str, pa.Array] = {}
    if "offset" in columns:
        arrays["offset"] = pa.Array.from_buffers(pa.int64(), count, [None, offsets.slice(0, count * 8)], 0)
    if "timestamp" in columns:
        nulls = int(totals[kernels.NULL_TIMES])
        valid = pa.py_buffer(times_valid) if nulls else None
        arrays["timestamp"] = pa.Array.from_buffers(TIMESTAMP, count, [valid, times.slice(0, count * 8)], nulls)
    if with_key:
        arrays["key"] = keys.array(count, int(totals[kernels.NULL_KEYS]))
    if with_value:
        arrays["value"] = values.array(count, int(totals[kernels.NULL_VALUES]))
    if is_lone_record:
        arrays |= _lone_columns(payloads, columns & {"key", "value"})
    replaced = np.empty(0, np.int64)
    if "headers" in columns:
        arrays["headers"], replaced = _headers(payloads, header_offsets, header_starts[:count], totals)
    return Columns(arrays, int(count), payloads.counts, replaced, far=int(totals[kernels.FAR_TIMES]))


def _lone_columns(payloads: _Payloads, names: AbstractSet[str]) -> dict[str, pa.Array]:
    """Key and value of the only record, which has been checked, without a copy."""
    data, stop = payloads.data, int(payloads.stops[0])
    _, position = read_varint(data, int(payloads.starts[0]), stop)
    _, position = read_varlong(data, position + 1, stop)
    _, position = read_varint(data, position, stop)
    arrays: dict[str, pa.Array] = {}
    for name in ("key", "value"):
        size, position = (int(number) for number in read_varint(data, position, stop))
        if name in names:
            ends = pa.py_buffer(np.array([position, position + max(size, 0)], np.int32))
            parts = [None, ends, pa.py_buffer(data)]
            arrays[name] = pa.Array.from_buffers(pa.binary(), 1, parts) if size >= 0 else pa.nulls(1, pa.binary())
        position += max(size, 0)
    return arrays


def milliseconds(times: pa.Array) -> NDArray[np.int64]:
    """The times of a decoded `timestamp` column as the records have them, also those that it cannot hold; -1 for none."""
    raw: NDArray[np.int64] = np.frombuffer(times.buffers()[1], np.int64)[times.offset : times.offset + len(times)]
    if not times.null_count:
        return raw // 1000
    valid = times.is_valid().to_numpy(zero_copy_only=False)
    # Below a null is what the kernel left there: -1 as microseconds, or the milliseconds of a time beyond them.
    return np.where(valid | (raw == NONE * 1000), raw // 1000, raw)


def _check_headers(
    payloads: _Payloads, positions: NDArray[np.int64], ends: NDArray[np.int32], max_headers: int
) -> None:
    """LimitError for the first record with more headers than the limit."""
    numbers = np.diff(ends)
    if numbers.size and numbers.max() > max_headers:
        row = int(np.argmax(numbers > max_headers))
        index, number = _locate(payloads, row)
        raise LimitError(
            f"record {payloads.first + number}: {int(numbers[row]):,} headers, more than the limit of {max_headers:,}; "
            "--max-headers raises it",
            position=int(positions[index]),
            layout=BATCH.name,
            field="headers",
            expected=max_headers,
            found=int(numbers[row]),
        )


class BinaryBuffers:
    """The buffers of a binary column while a kernel fills them."""

    def __init__(self, room: int, total: int) -> None:
        self.offset_buffer = pa.allocate_buffer((room + 1) * 4, resizable=True)
        self.value_buffer = pa.allocate_buffer(total + SLACK, resizable=True)
        self.offsets = np.frombuffer(self.offset_buffer, np.int32)
        self.values = np.frombuffer(self.value_buffer, np.uint8)
        self.valid = np.full((room + 7) // 8, 0xFF, np.uint8)

    @classmethod
    def nothing(cls) -> BinaryBuffers:
        """For a column that is not wanted."""
        self = cls.__new__(cls)
        self.offsets, self.values, self.valid = _NO_OFFSETS, _NOTHING, _NOTHING
        return self

    def array(self, count: int, nulls: int, type: pa.DataType | None = None) -> pa.Array:
        """The column of what was filled; memory beyond it goes back to the pool."""
        size = int(self.offsets[count])
        self.offsets, self.values = _NO_OFFSETS, _NOTHING  # views must not outlive a resize
        self.value_buffer.resize(size, shrink_to_fit=True)
        self.offset_buffer.resize((count + 1) * 4, shrink_to_fit=True)
        valid = pa.py_buffer(self.valid) if nulls else None
        return pa.Array.from_buffers(type or pa.binary(), count, [valid, self.offset_buffer, self.value_buffer], nulls)


def _headers(
    payloads: _Payloads, offsets: pa.Buffer, starts: NDArray[np.int64], totals: NDArray[np.int64]
) -> tuple[pa.Array, NDArray[np.int64]]:
    """The headers column, of exactly the size that the first kernel found, and the rows with a key that is not UTF-8."""
    kind = arrow_type(HEADERS)
    lists = offsets.slice(0, (starts.size + 1) * 4)
    count = int(totals[kernels.HEADERS])
    rows = np.empty(0, np.int64)
    if not count:
        return pa.ListArray.from_buffers(kind, starts.size, [None, lists], 0, 0, [_no_pairs()]), rows
    keys = BinaryBuffers(count, int(totals[kernels.HEADER_KEY_BYTES]))
    values = BinaryBuffers(count, int(totals[kernels.HEADER_VALUE_BYTES]))
    row_offsets = np.frombuffer(offsets, np.int32)[: starts.size + 1]
    _, nulls, _ = kernels.decode_headers_v2(
        payloads.data, row_offsets, starts, keys.offsets, keys.values, values.offsets, values.values, values.valid
    )
    names = keys.array(count, 0, pa.string())
    try:
        names.validate(full=True)
    except pa.ArrowInvalid:
        names, not_utf8 = java_strings(names.cast(pa.binary()))
        rows = np.unique(np.searchsorted(row_offsets, not_utf8, side="right") - 1)
    pairs = pa.StructArray.from_arrays([names, values.array(count, int(nulls))], fields=list(kind.value_type))
    return pa.ListArray.from_buffers(kind, starts.size, [None, lists], 0, 0, [pairs]), rows


def java_strings(raw: pa.Array) -> tuple[pa.Array, NDArray[np.int64]]:
    """Text as Java's clients decode it, and which values are not UTF-8."""
    texts: list[str | None] = []
    not_utf8: list[int] = []
    for number, value in enumerate(raw.to_pylist()):
        try:
            texts.append(None if value is None else value.decode())
        except UnicodeDecodeError:
            texts.append(java_text(value))
            not_utf8.append(number)
    return pa.array(texts, pa.string()), np.array(not_utf8, np.int64)


@cache
def _no_pairs() -> pa.Array:
    """What the lists of a column without any header point into."""
    return pa.array([], arrow_type(HEADERS).value_type)


# What went wrong --------------------------------------------------------------------------------------------------


def _fault(message: str, position: int, field: str, expected: object = None, found: object = None) -> CorruptError:
    return CorruptError(message, position=position, layout=BATCH.name, field=field, expected=expected, found=found)


def _record_error(
    payloads: _Payloads, positions: NDArray[np.int64], count: int, position: int, status: Status
) -> CorruptError:
    """`count` rows were good; the next one begins at `position` of the payloads."""
    assert status != Status.FULL, "room for fewer rows than the batches can hold"
    index, number = _locate(payloads, count)
    declared = int(payloads.counts[index]) if payloads.declared is None else payloads.declared
    begin = int(payloads.starts[index]) if payloads.begin is None else payloads.begin
    number += payloads.first
    if status == Status.TRAILING:  # after the last record of the batch before the one that comes next
        index = int(np.searchsorted(np.cumsum(payloads.counts), count, side="left"))
        extra = int(payloads.stops[index]) - position
        return _fault(f"{extra} bytes after the last record", int(positions[index]), "record_count")
    if status == Status.BAD_COUNT and position == begin and number == 0:
        size = int(payloads.stops[index] - payloads.starts[index])
        if declared > size // SMALLEST_RECORD:
            what = f"record count {declared:,}, but only {size:,} bytes of records"
            return _fault(what, int(positions[index]), "record_count", found=declared)
    if status in (Status.BAD_VARINT, Status.BAD_COUNT) and position >= int(payloads.stops[index]):
        return _fault(f"{number} records, {declared} declared", int(positions[index]), "record_count", declared, number)
    short = status == Status.BAD_COUNT and int(payloads.stops[index]) - position < SMALLEST_RECORD
    words = _WORDS.get(Status.BAD_LENGTH if short else status, "an impossible header count")
    return _fault(
        f"record {number} of {declared}, byte {position - begin} of the records: {words}",
        int(positions[index]),
        "timestamp" if status == Status.BAD_VALUE else "records",
    )


def _locate(payloads: _Payloads, row: int) -> tuple[int, int]:
    """Which batch a row belongs to, and its number there."""
    ends = np.cumsum(payloads.counts)
    index = min(int(np.searchsorted(ends, row, side="right")), ends.size - 1)
    return index, row - int(ends[index] - payloads.counts[index])


# Message sets of magic 0 and 1 ---------------------------------------------------------------------------------------------------

LAYOUTS = (ENTRY_V0, ENTRY_V1)
OPENED = 64 << 20
"""A wrapper that grows beyond this is not opened for its first offset."""
ANY_OFFSET = 1 << 62
LAST_LEGACY_CODEC = 3  # zstd came with magic 2

_LEGACY_WORDS = {
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

    As `decode_columns`: CorruptError for the first frame that cannot be read, TooMuch where several hold too much.
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
        yield _decode_entries(spans, starts, columns, head)
        return
    parts = _cut(spans)
    for part in parts:
        _decode_entries(part, starts, frozenset(), head)
    for part in parts:
        yield _decode_entries(part, starts, columns, head)


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


def _decode_entries(spans: Spans, starts: NDArray[np.int64], columns: AbstractSet[str], head: Heads) -> Columns:
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
        raise _legacy_fault(frame, int(position) - begin, Status(status), starts, head)
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
        raise _legacy_fault(int(frame), int(position) - int(first[frame]), Status(status), starts, head)
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


def _legacy_fault(frame: int, at: int, status: Status, starts: NDArray[np.int64], head: Heads) -> CorruptError:
    layout = LAYOUTS[int(head["magic"][frame])]
    inside = "inside the wrapper, " if head.codec[frame] else ""
    return CorruptError(
        f"{inside}byte {at}: {_LEGACY_WORDS.get(status, 'damage')}",
        position=int(starts[frame]),
        layout=layout.name,
        field=OUTLINE.fields[0].name,
    )
