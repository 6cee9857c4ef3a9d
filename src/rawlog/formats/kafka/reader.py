"""Batches of magic 2 into Arrow columns: memory, decompression, and a status turned into an error.

`decode_columns` gives what records say themselves; what their batch says (producer, epoch, codec) is for the caller
to repeat by `Columns.counts`. Control batches are decoded like any other.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog import compression
from rawlog.columns import constant
from rawlog.errors import CorruptError, DataError, UnsupportedError
from rawlog.formats.kafka.heads import Heads, take
from rawlog.formats.kafka.kernels import records as kernels
from rawlog.formats.kafka.kernels.payloads import unpack_payloads
from rawlog.formats.kafka.layouts import BATCH, CODEC_MASK, CODECS, MAGIC_V2, SMALLEST_RECORD, Attributes
from rawlog.frames import Bytes
from rawlog.kernels import byte_view
from rawlog.kernels.gather import SLACK
from rawlog.status import Status
from rawlog.tables import HEADERS, arrow_type

COLUMNS = frozenset({"key", "value", "offset", "timestamp", "timestampType", "headers"})
"""The columns that `decode_columns` knows."""
USUAL_RATIO, LARGEST_BLOCK = 3, 128 << 10
"""What payloads mostly decompress to at most, times their size, and more than a block of any codec: room is made where it is not enough."""
LARGEST_WINDOW = (1 << 31) - 1 - SLACK
"""Arrow's binary columns hold less than 2 GiB: more payload than this must be cut by the caller."""
TIMESTAMP = pa.timestamp("us", "UTC")

_NOTHING = np.empty(0, np.uint8)
_NO_OFFSETS = np.empty(1, np.int32)
_WORDS = {
    Status.BAD_VARINT: "a variable-length number that does not end",
    Status.BAD_LENGTH: "a length that does not fit",
    Status.BAD_VALUE: "a timestamp beyond what microseconds can hold",
    Status.TRAILING: "bytes behind the last record",
}


class TooMuch(Exception):
    """The batches decompress to more than was asked for at a time; the first `fits` of them do not."""

    def __init__(self, fits: int) -> None:
        super().__init__(fits)
        self.fits = fits


@dataclass(frozen=True, slots=True)
class Columns:
    """Decoded columns by name, the number of rows, and how many of them each batch gave (in order)."""

    arrays: dict[str, pa.Array]
    count: int
    counts: NDArray[np.int64]

    @property
    def batch_index(self) -> NDArray[np.int64]:
        """For every row, which of the batches it came from."""
        return np.repeat(np.arange(self.counts.size, dtype=np.int64), self.counts)


@dataclass(slots=True)
class _Payloads:
    """Where the records of every batch lie: in the file's own bytes, or decompressed, end to end."""

    data: Bytes
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    counts: NDArray[np.int64]
    base_offsets: NDArray[np.int64]
    base_times: NDArray[np.int64]
    append_times: NDArray[np.int64]
    size: int


def decode_columns(
    data: Bytes,
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    columns: AbstractSet[str],
    *,
    head: Heads | None = None,
    limit: int = compression.DEFAULT_LIMIT,
    total: int = LARGEST_WINDOW,
) -> Columns:
    """The wanted columns (of COLUMNS) of all records in the batches `data[starts[i]:stops[i]]`, which scan found.

    `head` is what is known of the batches already, their checksums checked; without it they are checked here.
    `limit` bounds what one batch may decompress to, `total` what several may: TooMuch says how many fit. Raises
    CorruptError for the first batch that is damaged, with its position in `data`: wrong checksum, record, count,
    codec stream, timestamps that microseconds cannot hold, or a header key that is not UTF-8
    (`kafka.log.header-key`). UnsupportedError for magic 0 and 1.
    """
    assert columns <= COLUMNS, columns - COLUMNS
    data = byte_view(data)
    starts, stops = np.ascontiguousarray(starts, np.int64), np.ascontiguousarray(stops, np.int64)
    if head is None:
        head = take(data, starts, stops)
        if not head.sound.all():
            raise _unsound(head, starts)
    _check(head, starts)
    payloads = _payloads(data, starts, stops, head, limit, total)
    assert payloads.size <= LARGEST_WINDOW, "more than an Arrow column holds: cut the window"
    arrays, count = _decode(payloads, starts, columns)
    counts = head["record_count"]
    if "timestampType" in columns:
        if head.any(Attributes.LOG_APPEND_TIME):
            arrays["timestampType"] = timestamp_types(head.has(Attributes.LOG_APPEND_TIME), counts, count)
        else:
            arrays["timestampType"] = constant(0, "int", count)
    return Columns(arrays, count, counts)


def timestamp_types(kinds: NDArray[Any], counts: NDArray[np.int64], count: int) -> pa.Array:
    """The column of what kind of time rows have, from a kind a batch; nearly always there is but one."""
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
    found = int(codecs[index])
    raise _fault(f"codec {found}, 0 to {len(CODECS) - 1} expected", start, "attributes", "0 to 4", found)


def _unsound(head: Heads, starts: NDArray[np.int64]) -> CorruptError:
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
    size = int((stops - firsts).sum())
    return _Payloads(data, firsts, stops, counts, head["base_offset"], head["base_timestamp"], append_times, size)


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
    out = _memory(USUAL_RATIO * int((stops - firsts).sum()) + LARGEST_BLOCK)
    sizes, index, made = np.zeros(firsts.size, np.int64), 0, 0
    while True:
        index, made = unpack_payloads(data, firsts, stops, codecs, counts, index, limit, total, out, made, sizes)
        if index == firsts.size:
            break
        first, codec = int(firsts[index]), int(codecs[index])
        try:
            piece = compression.decompress(CODECS[codec], window[first : int(stops[index])], limit=limit)
        except DataError as error:
            raise error.at(position=first - BATCH.size, layout=BATCH.name) from None
        size = len(piece)
        if made + size > total and index > 0:
            raise TooMuch(index)
        if out.size - made - SLACK < size:
            larger = _memory(2 * (made + size) + LARGEST_BLOCK)
            larger[:made] = out[:made]
            out = larger
        memoryview(out.data)[made : made + size] = piece
        sizes[index] = size
        index, made = index + 1, made + size
    ends = np.cumsum(sizes)
    # The spare bytes let every copy out of it be a wide one.
    return byte_view(out[: made + SLACK]), ends - sizes, ends


def _memory(size: int) -> Bytes:
    """Bytes of Arrow's pool, which keeps its pages from window to window."""
    return np.frombuffer(pa.allocate_buffer(size), np.uint8)


def _decode(
    payloads: _Payloads, positions: NDArray[np.int64], columns: AbstractSet[str]
) -> tuple[dict[str, pa.Array], int]:
    """Bound, fill, trim. `positions` are the batches' own, for errors."""
    total = payloads.size
    room = min(int(payloads.counts.sum()), total // SMALLEST_RECORD)
    with_key, with_value = "key" in columns, "value" in columns
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
    if "headers" in columns:
        arrays["headers"] = _headers(payloads, positions, header_offsets, header_starts[:count], totals)
    return arrays, int(count)


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
    payloads: _Payloads,
    positions: NDArray[np.int64],
    offsets: pa.Buffer,
    starts: NDArray[np.int64],
    totals: NDArray[np.int64],
) -> pa.Array:
    """The headers column, of exactly the size that the first kernel found."""
    kind = arrow_type(HEADERS)
    lists = offsets.slice(0, (starts.size + 1) * 4)
    count = int(totals[kernels.HEADERS])
    if not count:
        return pa.ListArray.from_buffers(kind, starts.size, [None, lists], 0, 0, [_no_pairs()])
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
        raise _header_key_error(names, row_offsets, payloads, positions) from None
    pairs = pa.StructArray.from_arrays([names, values.array(count, int(nulls))], fields=list(kind.value_type))
    return pa.ListArray.from_buffers(kind, starts.size, [None, lists], 0, 0, [pairs])


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
    declared = int(payloads.counts[index])
    if status == Status.TRAILING:  # behind the last record of the batch before the one that comes next
        index = int(np.searchsorted(np.cumsum(payloads.counts), count, side="left"))
        extra = int(payloads.stops[index]) - position
        return _fault(f"{extra} bytes behind the last record", int(positions[index]), "record_count")
    if status == Status.BAD_COUNT and position == int(payloads.starts[index]) and number == 0:
        size = int(payloads.stops[index] - payloads.starts[index])
        if declared > size // SMALLEST_RECORD:
            what = f"record count {declared:,}, but only {size:,} bytes of records"
            return _fault(what, int(positions[index]), "record_count", found=declared)
    if status == Status.BAD_VARINT and position >= int(payloads.stops[index]):
        return _fault(f"{number} records, {declared} declared", int(positions[index]), "record_count", declared, number)
    words = _WORDS.get(status, "an impossible header count")
    at = position - int(payloads.starts[index])
    return _fault(f"record {number} of {declared}, byte {at} of the records: {words}", int(positions[index]), "records")


def _locate(payloads: _Payloads, row: int) -> tuple[int, int]:
    """Which batch a row belongs to, and its number there."""
    ends = np.cumsum(payloads.counts)
    index = min(int(np.searchsorted(ends, row, side="right")), ends.size - 1)
    return index, row - int(ends[index] - payloads.counts[index])


def _header_key_error(
    names: pa.Array, offsets: NDArray[np.int32], payloads: _Payloads, positions: NDArray[np.int64]
) -> CorruptError:
    """A key that is not UTF-8 cannot be a string, and replacing its bytes would lose them in silence."""
    for number, raw in enumerate(names.cast(pa.binary()).to_pylist()):
        try:
            raw.decode("utf-8")
        except UnicodeDecodeError:
            row = int(np.searchsorted(offsets, number, side="right")) - 1
            index, record = _locate(payloads, row)
            return _fault(f"record {record}: header key {raw!r} is not UTF-8", int(positions[index]), "headers")
    raise AssertionError("Arrow refuses a key that Python accepts")
