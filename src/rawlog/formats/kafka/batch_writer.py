"""One batch with header fields of its own: what was read is written again as it was, and transactions get their markers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rawlog.core.errors import EncodeError
from rawlog.core.status import OK, Status
from rawlog.core.tables import RECORDS
from rawlog.formats.kafka.heads import Heads
from rawlog.formats.kafka.kernels.heads import NAMES
from rawlog.formats.kafka.layouts import CODEC_MASK, CODECS, MAGIC_V2, NONE, Attributes, ControlType
from rawlog.formats.kafka.writer import Batching, Encoded, Rows, encode_v2, kernels


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
) -> Encoded:
    """One batch of magic 2 of these rows of `records`, whose offsets must rise within what the fields say.

    EncodeError for offsets outside of the batch, or more than it can hold.
    """
    batching = Batching(codec, level).check()
    rows = Rows.of(records)
    count = rows.offsets.size
    if not count and (fields.base_offset is None or fields.last_offset is None):
        raise EncodeError("a batch without records needs its first and last offset given")
    base = int(rows.offsets[0]) if fields.base_offset is None else fields.base_offset
    last = int(rows.offsets[-1]) if fields.last_offset is None else fields.last_offset
    if not 0 <= base <= last <= base + kernels.MOST or (count and int(rows.offsets[-1]) > last):
        raise EncodeError(f"offsets {base:,} to {last:,} in one batch")
    if count and (np.diff(rows.offsets) <= 0).any():
        at = int(np.argmax(np.diff(rows.offsets) <= 0))
        raise EncodeError(f"offset {int(rows.offsets[at + 1]):,} after {int(rows.offsets[at]):,}: offsets must rise")
    first_time = int(rows.times[0]) if count else NONE
    base_time = first_time if fields.base_timestamp is None else fields.base_timestamp
    if fields.delete_horizon is not None:
        base_time = fields.delete_horizon
    sizes = np.empty(count, np.int64)
    reached, payload, status = kernels.measure_records(
        base, base_time, rows.offsets, rows.times, *rows.measured(), sizes
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
    return Encoded(*encode_v2(rows, head, firsts, sizes, payloads, batching), count)


def encode_marker(
    offset: int,
    timestamp: int,
    *,
    producer_id: int,
    producer_epoch: int,
    commit: bool,
    coordinator_epoch: int = 0,
    leader_epoch: int = NONE,
) -> Encoded:
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
