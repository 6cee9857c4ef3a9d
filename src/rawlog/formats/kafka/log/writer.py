"""Rows of `records` as batches of magic 2, or entries of magic 0 and 1, with the headers a broker would have given them.

Lengths, deltas, counts and checksums are computed here. Where the bytes go is for `partition_writer` to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog.formats.kafka.log.heads import Heads
from rawlog.formats.kafka.log.kernels import encode
from rawlog.formats.kafka.log.kernels.heads import NAMES, WRAPPER
from rawlog.formats.kafka.log.layouts import (
    BATCH,
    CODEC_MASK,
    CODECS,
    ENTRY_V1,
    MAGIC_V2,
    NONE,
    Attributes,
    ControlType,
)
from rawlog.io import compression
from rawlog.kernels import byte_view
from rawlog.kernels.gather import SLACK
from rawlog.model.errors import EncodeError, OptionError, unknown
from rawlog.model.frames import Bytes, Frames
from rawlog.model.status import OK, Status
from rawlog.model.table import RECORDS

BATCH_BYTES = 256 << 10
"""Bytes of records in a batch, before compression, unless another size is asked for."""
LAST_LEGACY_CODEC = 3
NO_LIMIT = 1 << 62
kernels: Any = encode
"""Their many arguments come as tuples, which the type checker cannot count."""


def _freeze(array: NDArray[Any], type: Any) -> NDArray[Any]:
    """The same, read-only: a kernel is compiled once more for every mixture of arrays that may be written to."""
    view = np.ascontiguousarray(array, type).view()
    view.flags.writeable = False
    return view


_NO_ENDS = _freeze(np.zeros(1), np.int32)
_NO_NULLS = _freeze(np.zeros(0), np.bool_)
_NO_BYTES = byte_view(b"")


@dataclass(frozen=True, slots=True)
class Batching:
    """How rows become batches. `most_time` is the longest time in ms that one may span."""

    codec: str = "none"
    level: int | None = None
    records: int = NO_LIMIT
    bytes: int = BATCH_BYTES
    most_time: int = NO_LIMIT
    magic: int = MAGIC_V2
    leader_epoch: int = 0

    def check(self) -> Batching:
        """OptionError for a codec or level that there is none of."""
        if self.codec not in CODECS:
            raise unknown("codec", self.codec, CODECS)
        if self.magic != MAGIC_V2 and CODECS.index(self.codec) > LAST_LEGACY_CODEC:
            raise OptionError(
                f"codec {self.codec}: magic {self.magic} knows {', '.join(CODECS[: LAST_LEGACY_CODEC + 1])}"
            )
        if self.level is not None:
            compression.compress(self.codec, b"", self.level)
        return self


@dataclass(frozen=True, slots=True)
class EncodedBatches:
    """Batches end to end, and their headers; `rows` is how many rows they hold."""

    frames: Frames
    head: Heads
    rows: int


@dataclass(frozen=True, slots=True)
class RowBuffers:
    """The buffers of rows of `records`, as kernels take them. Times are ms, -1 for none."""

    offsets: NDArray[np.int64]
    times: NDArray[np.int64]
    kinds: NDArray[np.int64]
    keys: tuple[NDArray[np.int32], NDArray[np.bool_], Bytes]
    values: tuple[NDArray[np.int32], NDArray[np.bool_], Bytes]
    header_starts: NDArray[np.int32]
    header_stops: NDArray[np.int32]
    names: tuple[NDArray[np.int32], NDArray[np.bool_], Bytes]
    contents: tuple[NDArray[np.int32], NDArray[np.bool_], Bytes]

    @classmethod
    def of(cls, batch: pa.RecordBatch, first: int | None = None) -> RowBuffers:
        """The buffers of a batch; offsets count from `first` if it is given. EncodeError for a null offset or header name."""
        count = batch.num_rows
        offsets: Any = batch.column("offset")
        if first is not None:
            offsets = np.arange(first, first + count, dtype=np.int64)
        elif offsets.null_count:
            raise EncodeError(f"row {int(np.argmax(_nulls(offsets))):,} has no offset, others have; give all or none")
        else:
            offsets = offsets.to_numpy()
        micros: Any = batch.column("timestamp").cast(pa.int64())
        times = np.full(count, NONE, np.int64)
        if micros.null_count:
            has_time = ~_nulls(micros)
            times[has_time] = micros.fill_null(0).to_numpy()[has_time] // 1000
        else:
            times = micros.to_numpy() // 1000
        kinds = batch.column("timestampType").fill_null(0).to_numpy().astype(np.int64)
        starts, stops, names, contents = _headers(batch.column("headers"))
        return cls(
            _freeze(offsets, np.int64),
            _freeze(times, np.int64),
            kinds,
            _binary(batch.column("key")),
            _binary(batch.column("value")),
            starts,
            stops,
            names,
            contents,
        )

    def size_arguments(self) -> tuple[Any, ...]:
        """The arguments that tell sizes, in the order of the kernels."""
        return (
            *self.keys[:2], *self.values[:2], self.header_starts, self.header_stops, self.names[0], *self.contents[:2],
        )  # fmt: skip

    def whole(self) -> tuple[Any, ...]:
        """The arguments that tell sizes and bytes."""
        return (
            *self.keys, *self.values, self.header_starts, self.header_stops, self.names[0], self.names[2], *self.contents,
        )  # fmt: skip

    def breaks(self) -> NDArray[np.bool_]:
        """Rows that cannot share a batch with the one before: of another kind of time, or, with log append time, another time."""
        breaks = np.zeros(self.offsets.size, np.bool_)
        append = self.kinds == 1
        breaks[1:] = (append[1:] != append[:-1]) | (append[1:] & (self.times[1:] != self.times[:-1]))
        return breaks


def _nulls(array: Any) -> NDArray[np.bool_]:
    if not array.null_count:
        return np.zeros(len(array), np.bool_)
    nulls: NDArray[np.bool_] = array.is_null().to_numpy(zero_copy_only=False)
    return nulls


def _binary(array: Any) -> tuple[NDArray[np.int32], NDArray[np.bool_], Bytes]:
    """Offsets, nulls and bytes of a binary or string column."""
    if not len(array):
        return _NO_ENDS, _NO_NULLS, _NO_BYTES
    _, offsets, values = array.buffers()
    ends = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    return _freeze(ends, np.int32), _freeze(_nulls(array), np.bool_), byte_view(values if values is not None else b"")


def _headers(lists: Any) -> tuple[NDArray[np.int32], NDArray[np.int32], Any, Any]:
    """First and last header of every row, and the columns of names and contents."""
    if not len(lists):
        none = _freeze(np.zeros(0), np.int32)
        return none, none, (_NO_ENDS, _NO_NULLS, _NO_BYTES), (_NO_ENDS, _NO_NULLS, _NO_BYTES)
    ends = np.frombuffer(lists.buffers()[1], np.int32)[lists.offset : lists.offset + len(lists) + 1]
    starts, stops = ends[:-1], ends[1:]
    if lists.null_count:
        stops = np.where(_nulls(lists), starts, stops)
    pairs = lists.values
    names, contents = pairs.field(0), pairs.field(1)
    if pairs.null_count or names.null_count:
        for at in np.flatnonzero(_nulls(pairs) | _nulls(names)).tolist():
            row = int(np.searchsorted(ends, at, side="right")) - 1
            if 0 <= row < len(lists) and starts[row] <= at < stops[row]:
                raise EncodeError(f"row {row:,}: a header without a name, which Kafka does not know")
    return _freeze(starts, np.int32), _freeze(stops, np.int32), _binary(names), _binary(contents)


def encode_rows(rows: RowBuffers, batching: Batching, previous: int = NONE, *, whole: bool = True) -> EncodedBatches:
    """Rows as batches. Without `whole` the last batch, which might take more, is left out (`EncodedBatches.rows` says where it begins).

    EncodeError if offsets do not rise above `previous` and one another, or a record is longer than a batch can be.
    """
    count = rows.offsets.size
    sizes, firsts = np.empty(count, np.int64), np.empty(count + 1, np.int64)
    payloads = np.empty(count, np.int64)
    batches, reached, status = kernels.plan_batches(
        previous,
        rows.offsets,
        rows.times,
        rows.breaks(),
        *rows.size_arguments(),
        batching.records,
        batching.bytes,
        batching.most_time,
        sizes,
        firsts,
        payloads,
    )
    if status == Status.BAD_VALUE:
        offset, before = int(rows.offsets[reached]), int(rows.offsets[reached - 1]) if reached else previous
        what = (
            f"offset {offset:,} after {before:,}: offsets must rise" if before != NONE else f"offset {offset:,} below 0"
        )
        raise EncodeError(what)
    if status != OK:
        raise EncodeError(f"offset {int(rows.offsets[reached]):,}: a record longer than a batch can be (2 GiB)")
    batches = int(batches)
    firsts[batches] = count
    if not whole and batches:
        batches -= 1
    firsts, payloads = firsts[: batches + 1], payloads[:batches]
    if batching.magic != MAGIC_V2:
        return encode_legacy(rows, batching, firsts)
    heads = _new_heads(rows, firsts, batching)
    return EncodedBatches(*encode_v2(rows, heads, firsts, sizes, payloads, batching), int(firsts[batches]))


def _new_heads(rows: RowBuffers, firsts: NDArray[np.int64], batching: Batching) -> Heads:
    """Headers of batches that no producer is known of."""
    head = Heads(np.full((len(NAMES), firsts.size - 1), NONE, np.int64))
    first, last = firsts[:-1], firsts[1:] - 1
    head["base_offset"][:] = rows.offsets[first]
    head["last_offset"][:] = rows.offsets[last]
    head["leader_epoch"][:] = batching.leader_epoch
    head["magic"][:] = batching.magic
    append = np.where(rows.kinds[first] == 1, int(Attributes.LOG_APPEND_TIME), 0)
    head["attributes"][:] = append | CODECS.index(batching.codec)
    head["base_timestamp"][:] = rows.times[first]
    if first.size:
        head["max_timestamp"][:] = np.maximum.reduceat(rows.times[: firsts[-1]], first)
    head["record_count"][:] = np.diff(firsts)
    head["state"][:] = OK
    return head


def encode_v2(
    rows: RowBuffers,
    head: Heads,
    firsts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    payloads: NDArray[np.int64],
    batching: Batching,
) -> tuple[Frames, Heads]:
    """The bytes of batches whose headers are known except for lengths and checksums."""
    stops = np.cumsum(payloads + BATCH.size)
    starts = stops - payloads - BATCH.size
    size = int(stops[-1]) if stops.size else 0
    out = np.empty(size + SLACK, np.uint8)
    kernels.encode_records_v2(
        rows.offsets, rows.times, *rows.whole(), sizes, firsts, np.ascontiguousarray(head["base_offset"]),
        np.ascontiguousarray(head["base_timestamp"]), starts + BATCH.size, out,
    )  # fmt: skip
    if batching.codec != "none":
        out, starts, stops = _compress(out, starts, stops, batching)
        size = out.size
    sealed, _, status = kernels.seal_batches(out, starts, stops, head.values)
    if status != OK:
        raise EncodeError(f"offset {int(head['base_offset'][sealed]):,}: a batch longer than 2 GiB")
    return Frames(out[:size], starts, stops, size, Status.OK), head


def _compress(
    data: Bytes, starts: NDArray[np.int64], stops: NDArray[np.int64], batching: Batching
) -> tuple[Bytes, NDArray[np.int64], NDArray[np.int64]]:
    """The same batches with their records compressed, room for the headers left."""
    window: Any = memoryview(data)  # type: ignore[arg-type]
    pieces: list[Any] = []
    room = bytes(BATCH.size)
    for start, stop in zip((starts + BATCH.size).tolist(), stops.tolist(), strict=True):
        pieces += (
            room,
            compression.compress(batching.codec, window[start:stop], batching.level) if stop > start else b"",
        )
    ends = np.cumsum(np.array([len(piece) for piece in pieces], np.int64).reshape(-1, 2).sum(axis=1))
    begins = np.concatenate((np.zeros(1, np.int64), ends[:-1])) if ends.size else ends
    return np.frombuffer(bytearray().join(pieces), np.uint8), begins, ends


# Magic 0 and 1 ---------------------------------------------------------------------------------------------------


def encode_legacy(rows: RowBuffers, batching: Batching, firsts: NDArray[np.int64]) -> EncodedBatches:
    """Entries: one per record, or, with a codec, a wrapper for what would be a batch."""
    count = int(firsts[-1]) if firsts.size else 0
    append = int(Attributes.LOG_APPEND_TIME) if batching.magic == 1 else 0
    attributes = np.where(rows.kinds[:count] == 1, append, 0)
    times = rows.times[:count]
    if batching.codec == "none":
        data, stops = _entries(batching.magic, attributes, rows.offsets[:count], times, rows.keys, rows.values)
        singles = np.arange(count + 1, dtype=np.int64)
        return _legacy_frames(data, stops, rows, singles, batching, attributes, 1)
    offsets = rows.offsets[:count]
    if batching.magic == 1:  # relative inside, the wrapper's own is that of the last
        offsets = offsets - np.repeat(offsets[firsts[:-1]], np.diff(firsts))
    data, stops = _entries(batching.magic, attributes, offsets, times, rows.keys, rows.values)
    begins = np.concatenate((np.zeros(1, np.int64), stops))
    window: Any = memoryview(data)  # type: ignore[arg-type]
    pieces = [
        compression.compress(
            batching.codec,
            window[int(begins[first]) : int(begins[stop])],
            batching.level,
            broken_lz4_header=batching.magic == 0,
        )
        for first, stop in zip(firsts[:-1].tolist(), firsts[1:].tolist(), strict=True)
    ]
    wrapped = pa.array([bytes(piece) for piece in pieces], pa.binary())
    codec = CODECS.index(batching.codec)
    first, last = firsts[:-1], firsts[1:] - 1
    tops = np.maximum.reduceat(times, first) if first.size else times
    nothing = _binary(pa.nulls(len(pieces), pa.binary()))
    kinds = attributes[first] | codec
    data, stops = _entries(batching.magic, kinds, rows.offsets[last], tops, nothing, _binary(wrapped))
    return _legacy_frames(data, stops, rows, firsts, batching, kinds, WRAPPER)


def _entries(
    magic: int,
    attributes: NDArray[np.int64],
    offsets: NDArray[np.int64],
    times: NDArray[np.int64],
    keys: tuple[Any, Any, Any],
    values: tuple[Any, Any, Any],
) -> tuple[Bytes, NDArray[np.int64]]:
    """Entries end to end, and where each ends."""
    count = offsets.size
    stops = np.empty(count, np.int64)
    if not count:
        return _NO_BYTES, stops
    size = count * (ENTRY_V1.size + kernels.SIZE_FIELD)
    size += int(keys[0][count]) - int(keys[0][0]) + int(values[0][count]) - int(values[0][0])
    out = np.empty(size + SLACK, np.uint8)
    reached, position, status = kernels.encode_entries(
        magic, _freeze(attributes, np.int64), _freeze(offsets, np.int64), _freeze(times, np.int64),
        *keys, *values, out, stops,
    )  # fmt: skip
    if status != OK:
        raise EncodeError(f"offset {int(offsets[reached]):,}: longer than an entry can be (2 GiB)")
    return out[: int(position)], stops


def _legacy_frames(
    data: Bytes,
    stops: NDArray[np.int64],
    rows: RowBuffers,
    firsts: NDArray[np.int64],
    batching: Batching,
    attributes: NDArray[np.int64],
    count: int,
) -> EncodedBatches:
    head = _new_heads(rows, firsts, batching)
    head["leader_epoch"][:] = NONE
    head["attributes"][:] = attributes
    head["record_count"][:] = count
    if batching.magic == 0:
        head["base_timestamp"][:] = head["max_timestamp"][:] = NONE
    starts = np.concatenate((np.zeros(1, np.int64), stops[:-1])) if stops.size else stops
    frames = Frames(data, starts, stops, data.size, Status.OK)
    return EncodedBatches(frames, head, int(firsts[-1]) if firsts.size else 0)


# ----------------------------------------------------------------------------------------------------------------------
# One batch with header fields of its own: what was read is written again as it was, and transactions get their markers.


@dataclass(frozen=True, slots=True)
class BatchFields:
    """What a batch's header says beyond what its records tell. None: as the records have it.

    `append_time` makes it a batch with log append time; `delete_horizon` is in ms. A batch without records needs `base_offset` and
    `last_offset`; `max_timestamp` is its alone.
    """

    base_offset: int | None = None
    last_offset: int | None = None
    leader_epoch: int = NONE
    base_timestamp: int | None = None
    max_timestamp: int = NONE
    append_time: int | None = None
    delete_horizon: int | None = None
    producer_id: int = NONE
    producer_epoch: int = NONE
    base_sequence: int = NONE
    is_transactional: bool = False
    is_control: bool = False

    @classmethod
    def of(cls, head: Heads, index: int) -> BatchFields:
        """The fields of a batch that was read."""
        values = {name: int(head[name][index]) for name in NAMES}
        bits = Attributes(values["attributes"] & ~CODEC_MASK & 0x7F)
        append, horizon = bits & Attributes.LOG_APPEND_TIME, bits & Attributes.DELETE_HORIZON
        return cls(
            base_offset=values["base_offset"],
            last_offset=values["last_offset"],
            leader_epoch=values["leader_epoch"],
            base_timestamp=values["base_timestamp"],
            max_timestamp=values["max_timestamp"],
            append_time=values["max_timestamp"] if append else None,
            delete_horizon=values["base_timestamp"] if horizon else None,
            producer_id=values["producer_id"],
            producer_epoch=values["producer_epoch"],
            base_sequence=values["base_sequence"],
            is_transactional=bool(bits & Attributes.TRANSACTIONAL),
            is_control=bool(bits & Attributes.CONTROL),
        )


def encode_batch(
    records: pa.RecordBatch, fields: BatchFields, codec: str = "none", level: int | None = None
) -> EncodedBatches:
    """One batch of magic 2 of these rows of `records`, whose offsets must rise within what the fields say.

    EncodeError for offsets outside of the batch, or more than it can hold.
    """
    batching = Batching(codec, level).check()
    rows = RowBuffers.of(records)
    count = rows.offsets.size
    if not count and (fields.base_offset is None or fields.last_offset is None):
        raise EncodeError("a batch without records needs its first and last offset given")
    base = int(rows.offsets[0]) if fields.base_offset is None else fields.base_offset
    last = int(rows.offsets[-1]) if fields.last_offset is None else fields.last_offset
    if not 0 <= base <= last <= base + kernels.MOST or (count and int(rows.offsets[-1]) > last):
        raise EncodeError(f"offsets {base:,} to {last:,} in one batch")
    falls = rows.offsets[1:] <= rows.offsets[:-1]
    if falls.any():
        at = int(np.argmax(falls))
        raise EncodeError(f"offset {int(rows.offsets[at + 1]):,} after {int(rows.offsets[at]):,}: offsets must rise")
    first_time = int(rows.times[0]) if count else NONE
    base_time = first_time if fields.base_timestamp is None else fields.base_timestamp
    if fields.delete_horizon is not None:
        base_time = fields.delete_horizon
    sizes = np.empty(count, np.int64)
    reached, payload, status = kernels.measure_records(
        base, base_time, rows.offsets, rows.times, *rows.size_arguments(), sizes
    )
    if status == Status.BAD_VALUE:
        raise EncodeError(f"offset {int(rows.offsets[reached]):,} in a batch that begins at {base:,}")
    if status != OK:
        raise EncodeError("more bytes than a batch can hold (2 GiB)")
    bits = Attributes(0)
    bits |= Attributes.LOG_APPEND_TIME if fields.append_time is not None else bits
    bits |= Attributes.TRANSACTIONAL if fields.is_transactional else bits
    bits |= Attributes.CONTROL if fields.is_control else bits
    bits |= Attributes.DELETE_HORIZON if fields.delete_horizon is not None else bits
    top = int(rows.times.max()) if count else fields.max_timestamp
    values = {
        "base_offset": base,
        "last_offset": last,
        "leader_epoch": fields.leader_epoch,
        "magic": MAGIC_V2,
        "attributes": int(bits) | CODECS.index(codec),
        "base_timestamp": base_time,
        "max_timestamp": top if fields.append_time is None else fields.append_time,
        "producer_id": fields.producer_id,
        "producer_epoch": fields.producer_epoch,
        "base_sequence": fields.base_sequence,
        "record_count": count,
        "state": OK,
    }
    head = Heads(np.array([[values.get(name, NONE)] for name in NAMES], np.int64))
    firsts, payloads = np.array([0, count], np.int64), np.array([payload], np.int64)
    return EncodedBatches(*encode_v2(rows, head, firsts, sizes, payloads, batching), count)


def encode_marker(
    offset: int,
    timestamp: int,
    *,
    producer_id: int,
    producer_epoch: int,
    commit: bool,
    coordinator_epoch: int = 0,
    leader_epoch: int = NONE,
) -> EncodedBatches:
    """The control batch that ends a transaction (EndTxnMarker, version 0)."""
    kind = ControlType.COMMIT if commit else ControlType.ABORT
    row = {
        "key": (0).to_bytes(2, "big") + int(kind).to_bytes(2, "big"),
        "value": (0).to_bytes(2, "big") + coordinator_epoch.to_bytes(4, "big", signed=True),
        "offset": offset,
        "timestamp": timestamp * 1000,
        "headers": [],
    }
    records = pa.RecordBatch.from_pylist([row], schema=RECORDS.schema)
    fields = BatchFields(
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
    )
    return encode_batch(records, fields)
