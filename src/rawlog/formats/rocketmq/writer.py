"""Writing commit logs: entries from columns, rows of `records` as entries.

Lengths, checksums and places are computed, never taken from the caller.
"""

from __future__ import annotations

import base64
import ipaddress
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rawlog.formats.rocketmq.kernels import encode as kernels
from rawlog.formats.rocketmq.kernels import entries as fields
from rawlog.formats.rocketmq.layouts import (
    BLANK,
    CODEC_SHIFT,
    CODEC_TYPES,
    CRC_PROPERTY,
    HOST_V4,
    HOST_V6,
    LARGEST_BODY,
    LARGEST_PROPERTIES,
    LARGEST_TOPIC_V1,
    MAGIC_BLANK,
    NAME_VALUE,
    PAIR_END,
    SysFlag,
)
from rawlog.formats.rocketmq.messages import Messages
from rawlog.io import compression
from rawlog.io.output import why_unsafe
from rawlog.kernels import byte_view, columns
from rawlog.kernels.gather import SLACK
from rawlog.model.errors import EncodeError, OptionError, unknown
from rawlog.model.format import Judge
from rawlog.model.frames import Bytes
from rawlog.model.table import HEADERS, arrow_type

# ----------------------------------------------------------------------------------------------------------------------
# Keys and headers of `records` as the properties of messages, and back.
# Headers become properties in their order, the key becomes KEYS. What properties cannot say (an empty or null value, bytes that separate
# them, a key next to a header of the name KEYS) is in one more property, MARK, from which `restore` gives rows back as they were: `K`
# means that KEYS before it is the key and no header, anything else is JSON with key and headers, values in base64.


MARK = b"__RAWLOG"
KEY_ONLY = b"K"
KEYS = b"KEYS"
_BETWEEN, _BEHIND = bytes([NAME_VALUE]), bytes([PAIR_END])


def encode(keys: pa.Array, headers: pa.Array) -> pa.Array:
    """The property string of every row. EncodeError for a header without a name."""
    names, values, ends = _flat(headers)
    good = _storable(names) & _storable(values)
    for reserved in (MARK, CRC_PROPERTY):
        good &= ~_is(names, reserved)
    pairs = pc.binary_join_element_wise(names, _BETWEEN, pc.fill_null(values, b""), _BEHIND, b"")
    pairs = pc.if_else(pa.array(good), pairs, pa.scalar(b"", pa.binary()))
    native = _runs(pairs, ends)

    has_key = _mask(keys.is_valid())
    fits, has_keys_header = _storable(keys), _sums(_is(names, KEYS), ends) > 0
    exact = _sums(~good, ends) == 0
    same = _last_named(names, values, ends, keys)
    plain = exact & np.where(has_keys_header, same, ~has_key)
    key_only = exact & ~has_keys_header & has_key & fits
    if plain.all():
        return native
    shown = pc.binary_join_element_wise(pa.scalar(KEYS, pa.binary()), _BETWEEN, pc.fill_null(keys, b""), _BEHIND, b"")
    shown = pc.if_else(pa.array(has_key & fits & ~has_keys_header), shown, pa.scalar(b"", pa.binary()))
    marks: list[bytes] | NDArray[Any] = np.where(key_only, KEY_ONLY, b"").tolist()
    for row in np.flatnonzero(~plain & ~key_only).tolist():
        marks[row] = _mark_text(keys[row].as_py(), headers[row].as_py())
    mark = pa.array([MARK + _BETWEEN + text + _BEHIND if text else b"" for text in marks], pa.binary())
    return pc.binary_join_element_wise(native, shown, mark, b"")


def restore(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows with the key and headers that `encode` was given, wherever MARK is the last of their headers except the entry's checksum."""
    headers = batch.column("headers")
    if not len(headers):
        return batch
    names, values, ends = _flat(headers)
    sizes = np.diff(ends)
    summed = (sizes > 0) & _at(_is(names, CRC_PROPERTY), ends[1:] - 1)
    last = ends[1:] - 1 - summed
    marked = (sizes > summed) & _at(_is(names, MARK), last)
    if not marked.any():
        return batch
    key_only = marked & (sizes > 1 + summed) & _at(_is(names, KEYS), last - 1) & _at(_is(values, KEY_ONLY), last)
    parsed = {row: _read(values[int(last[row])].as_py()) for row in np.flatnonzero(marked & ~key_only).tolist()}
    restored = {row: pair for row, pair in parsed.items() if pair is not None}
    drop = np.zeros(len(names), np.bool_)
    drop[last[key_only]] = drop[last[key_only] - 1] = True
    drop[ends[1:][key_only & summed] - 1] = True
    kept = pa.array(~drop)
    lists = _lists(names.filter(kept), values.filter(kept), sizes - (2 + summed) * key_only)
    keys = batch.column("key")
    if restored:
        keys_list, headers_list = keys.to_pylist(), lists.to_pylist()
        for row, (key, pairs) in restored.items():
            keys_list[row], headers_list[row] = key, pairs
        keys, lists = pa.array(keys_list, pa.binary()), pa.array(headers_list, lists.type)
    arrays = {"key": keys, "headers": lists}
    return pa.RecordBatch.from_arrays(
        [arrays.get(name, batch.column(name)) for name in batch.schema.names], schema=batch.schema
    )


def _flat(headers: Any) -> tuple[pa.Array, pa.Array, NDArray[np.int64]]:
    """Names and values of all headers end to end, and where each row's end. A null list counts as empty."""
    sizes = pc.fill_null(pc.list_value_length(headers), 0).to_numpy().astype(np.int64)
    names, values = headers.flatten().flatten()
    ends = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))
    if names.null_count:
        at = int(np.argmax(_mask(names.is_null())))
        row = int(np.searchsorted(ends, at, side="right")) - 1
        raise EncodeError(f"row {row:,}: a header without a name, which RocketMQ does not know")
    return names.cast(pa.binary()), values, ends


def _storable(array: pa.Array) -> NDArray[np.bool_]:
    """Which texts survive as a property's name or value: there, not empty, and without a separator."""
    good = _mask(pc.greater(pc.binary_length(array), 0))
    for separator in (_BETWEEN, _BEHIND):
        good &= ~_mask(pc.match_substring(array, separator))
    return good


def _mask(test: Any) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = pc.fill_null(test, False).to_numpy(zero_copy_only=False)
    return mask.copy()


def _is(array: pa.Array, text: bytes) -> NDArray[np.bool_]:
    return _mask(pc.equal(array, pa.scalar(text, pa.binary())))


def _at(mask: NDArray[np.bool_], positions: NDArray[np.int64]) -> NDArray[np.bool_]:
    """The mask at these positions; a position may lie outside where the answer does not matter."""
    return mask[np.clip(positions, 0, mask.size - 1)] if mask.size else np.zeros(positions.size, np.bool_)


def _sums(mask: NDArray[np.bool_], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many of each row's headers a mask marks."""
    before = np.concatenate((np.zeros(1, np.int64), np.cumsum(mask, dtype=np.int64)))
    return before[ends[1:]] - before[ends[:-1]]


def _runs(pieces: pa.Array, ends: NDArray[np.int64]) -> pa.Array:
    """The pieces of each row as one."""
    pieces = pieces.combine_chunks() if isinstance(pieces, pa.ChunkedArray) else pieces
    _, offsets, data = pieces.buffers()
    if offsets is None or not len(pieces):
        return pa.repeat(pa.scalar(b"", pa.binary()), ends.size - 1)
    inner = np.frombuffer(offsets, np.int32)[pieces.offset : pieces.offset + len(pieces) + 1]
    return pa.Array.from_buffers(pa.binary(), ends.size - 1, [None, pa.py_buffer(inner[ends].copy()), data])


def _last_named(names: pa.Array, values: pa.Array, ends: NDArray[np.int64], keys: pa.Array) -> NDArray[np.bool_]:
    """Whether a row's last header of the name KEYS, which reading takes for the key, is its key."""
    positions = np.flatnonzero(_is(names, KEYS))
    same = np.zeros(ends.size - 1, np.bool_)
    if positions.size:
        rows = np.searchsorted(ends, positions, side="right") - 1
        latest = np.concatenate((rows[1:] != rows[:-1], [True]))
        rows, positions = rows[latest], positions[latest]
        same[rows] = _mask(pc.equal(values.take(pa.array(positions)), keys.take(pa.array(rows))))
    return same


def _lists(names: pa.Array, values: pa.Array, sizes: NDArray[np.int64]) -> pa.Array:
    kind = arrow_type(HEADERS)
    ends = np.concatenate(([0], np.cumsum(sizes)))
    pairs = pa.StructArray.from_arrays([names.cast(pa.string()), values], fields=list(kind.value_type))
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pairs, type=kind)


def _mark_text(key: bytes | None, pairs: list[dict[str, Any]] | None) -> bytes:
    """Key and headers in full, as text."""
    value = {"key": _text(key), "headers": [[pair["key"], _text(pair["value"])] for pair in pairs or ()]}
    return json.dumps(value, separators=(",", ":")).encode()


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _read(text: bytes | None) -> tuple[bytes | None, list[dict[str, Any]]] | None:
    """What `_mark_text` wrote; None for anything else, which is then a header like others."""
    try:
        value = json.loads(text or b"")
        pairs = [{"key": str(name), "value": _data(data)} for name, data in value["headers"]]
        return _data(value["key"]), pairs
    except (ValueError, TypeError, KeyError):
        return None


def _data(text: Any) -> bytes | None:
    return None if text is None else base64.b64decode(text, validate=True)


LARGEST_TOPIC = 32767
OPTIONS = ("topic", "partition", "codec", "compress_over", "born_host", "store_host", "crc_property")
"""What decides about single entries."""
COMPRESS_OVER = 4096
STORE_HOST = "127.0.0.1:10911"


@dataclass(slots=True)
class Entries:
    """Messages to be written: numbers (`kernels.N_…`) a row, hosts as 20 bytes each, and the three parts of any size."""

    numbers: NDArray[np.int64]
    born_hosts: NDArray[np.uint8]
    store_hosts: NDArray[np.uint8]
    bodies: pa.Array
    topics: pa.Array
    properties: pa.Array
    crc_property: bool = False
    moves: bool = False
    """Whether entries that were stored elsewhere get new addresses, and so new checksums of the whole where they have one."""

    def __len__(self) -> int:
        return int(self.numbers.shape[1])

    def slice(self, start: int, stop: int) -> Entries:
        return Entries(
            self.numbers[:, start:stop],
            self.born_hosts[start:stop],
            self.store_hosts[start:stop],
            self.bodies.slice(start, stop - start),
            self.topics.slice(start, stop - start),
            self.properties.slice(start, stop - start),
            self.crc_property,
            self.moves,
        )

    def sizes(self) -> NDArray[np.int64]:
        """Bytes that each entry takes. EncodeError for a topic or properties too long."""
        topics, properties = binary(self.topics)[0], binary(self.properties)[0]
        self.numbers[kernels.N_VERSION] = np.where(
            np.diff(topics) > LARGEST_TOPIC_V1, 2, np.maximum(1, self.numbers[kernels.N_VERSION])
        )
        most = LARGEST_PROPERTIES - (kernels.CRC_SIZE if self.crc_property else 0)
        for lengths, limit, what in (
            (np.diff(topics), LARGEST_TOPIC, "a topic"),
            (np.diff(properties), most, "properties"),
        ):
            bad = np.flatnonzero(lengths > limit)
            if bad.size:
                raise EncodeError(f"row {bad[0]:,}: {what} of {int(lengths[bad[0]]):,} bytes, at most {limit:,} fit")
        sizes = np.empty(len(self), np.int64)
        kernels.measure_entries(self.numbers, binary(self.bodies)[0], topics, properties, self.crc_property, sizes)
        return sizes

    def encode(self, sizes: NDArray[np.int64], addresses: NDArray[np.int64], start: int, stop: int) -> Bytes:
        """The bytes of the log from address `start` to `stop`, zero where there is no entry."""
        self.numbers[kernels.N_PHYSICAL] = addresses
        self.numbers[kernels.N_AT] = addresses - start
        out = np.zeros(stop - start + SLACK, np.uint8)
        kernels.encode_entries(
            self.numbers,
            self.born_hosts,
            self.store_hosts,
            *binary(self.bodies),
            *binary(self.topics),
            *binary(self.properties),
            self.crc_property,
            sizes,
            out,
        )
        if self.moves:
            kernels.renew_crcs(self.numbers, binary(self.properties)[0], sizes, out)
        return out[: stop - start]


def binary(array: pa.Array) -> tuple[NDArray[np.int32], Bytes]:
    """Offsets and bytes of a binary or string column without nulls."""
    assert not array.null_count
    _, offsets, values = array.buffers()
    if offsets is None or not len(array):
        return np.zeros(len(array) + 1, np.int32), byte_view(b"")
    ends = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    return ends, byte_view(values if values is not None else b"")


def from_messages(rows: Messages, *, moves: bool = False) -> Entries:
    """What was decoded, ready to be encoded again: bodies as stored, properties to the last separator."""
    numbers = np.zeros((kernels.NUMBERS, len(rows)), np.int64)
    for to, source in (
        (kernels.N_QUEUE_ID, fields.F_QUEUE_ID),
        (kernels.N_FLAG, fields.F_FLAG),
        (kernels.N_QUEUE_OFFSET, fields.F_QUEUE_OFFSET),
        (kernels.N_PHYSICAL, fields.F_PHYSICAL),
        (kernels.N_SYS_FLAG, fields.F_SYS_FLAG),
        (kernels.N_BORN_TIME, fields.F_BORN_TIME),
        (kernels.N_STORE_TIME, fields.F_STORE_TIME),
        (kernels.N_RECONSUME, fields.F_RECONSUME),
        (kernels.N_PREPARED, fields.F_PREPARED),
        (kernels.N_VERSION, fields.F_VERSION),
    ):
        numbers[to] = rows[source]
    return Entries(
        numbers,
        _hosts(rows, fields.F_BORN_HOST),
        _hosts(rows, fields.F_STORE_HOST),
        columns.spans(rows.data, rows[fields.F_BODY], rows[fields.F_BODY_SIZE]),
        columns.spans(rows.data, rows[fields.F_TOPIC], rows[fields.F_TOPIC_SIZE]),
        columns.spans(rows.data, rows[fields.F_PROPERTIES], rows[fields.F_PROPERTIES_SIZE]),
        moves=moves,
    )


def _hosts(rows: Messages, field: int) -> NDArray[np.uint8]:
    """Twenty bytes from each host's first on; IPv4 uses eight of them. A message goes on for longer than that after both."""
    at = rows[field][:, None] + np.arange(HOST_V6.size)
    return np.ascontiguousarray(rows.data[np.minimum(at, rows.data.size - 1)])


def host_bytes(text: str) -> tuple[NDArray[np.uint8], bool]:
    """An `address:port` as twenty bytes, and whether it is IPv6. OptionError for other text."""
    address, _, port = text.rpartition(":")
    try:
        parsed: Any = ipaddress.ip_address(address.strip("[]"))
        raw = parsed.packed + int(port).to_bytes(4, "big", signed=True)
    except (ValueError, OverflowError):
        raise OptionError(f"host {text!r}: address:port expected, such as 10.0.0.2:10911") from None
    assert len(raw) in (HOST_V4.size, HOST_V6.size)
    return np.frombuffer(raw.ljust(HOST_V6.size, b"\0"), np.uint8), parsed.version == 6


def host_flags(born_is_v6: bool, store_is_v6: bool) -> int:
    """The bits of the sysflag for the sizes of hosts."""
    return int(SysFlag.BORNHOST_V6) * born_is_v6 | int(SysFlag.STOREHOST_V6) * store_is_v6


def blank(room: int) -> bytes:
    """The entry that closes a file with `room` bytes left."""
    return np.array([(room, MAGIC_BLANK)], BLANK.dtype).tobytes()


# Rows of `records` -----------------------------------------------------------------------------------------------------


def check_options(options: Mapping[str, str]) -> None:
    """OptionError for an invalid value of what decides about entries."""
    for name in ("partition", "compress_over"):
        text = options.get(name, "0")
        if not (text.isascii() and text.isdecimal()):
            raise OptionError(f"{name} {text!r}: a whole number expected")
    codec = options.get("codec", "none")
    if codec != "none" and codec not in CODEC_TYPES:
        raise unknown("codec of rocketmq", codec, ("none", *CODEC_TYPES))
    if options.get("crc_property", "false") not in ("true", "false"):
        raise unknown("value of crc_property", options["crc_property"], ("true", "false"))
    for name in ("store_host", "born_host"):
        host_bytes(options.get(name, STORE_HOST))


class Numbering:
    """What goes on from batch to batch: the next number of each queue, and the time, which never falls."""

    def __init__(self) -> None:
        self.next: dict[tuple[str, int], int] = {}
        self.queues: dict[str, int] = {}
        self.time = 1

    def number(self, topics: pa.Array, queue_ids: NDArray[np.int64], first_offsets: pa.Array) -> NDArray[np.int64]:
        """The queue offset of every row: a queue begins with what its first row wants, and has no gaps."""
        firsts = pc.fill_null(first_offsets, 0).to_numpy()
        encoded = topics.dictionary_encode()
        names, codes = encoded.dictionary.to_pylist(), np.asarray(encoded.indices, np.int64)
        joined = (codes << 32) | queue_ids
        order = np.argsort(joined, kind="stable")
        offsets = np.empty(joined.size, np.int64)
        for part in np.split(order, np.flatnonzero(np.diff(joined[order])) + 1):
            name, queue_id = names[int(codes[part[0]])], int(queue_ids[part[0]])
            first = self.next.get((name, queue_id), max(0, int(firsts[part[0]])))
            offsets[part] = first + np.arange(part.size)
            self.next[name, queue_id] = first + part.size
            self.queues[name] = max(queue_id, self.queues.get(name, 0))
        return offsets

    def times(self, born: NDArray[np.int64]) -> NDArray[np.int64]:
        stored = np.maximum.accumulate(np.maximum(born, self.time))
        self.time = int(stored[-1])
        return stored


def entries_of(batch: pa.RecordBatch, options: Mapping[str, str], numbering: Numbering) -> Entries:
    """The entries of rows, numbered on. EncodeError for what an entry cannot hold."""
    count = batch.num_rows
    topics, queues = _places(batch, options)
    micros = pc.fill_null(batch.column("timestamp").cast(pa.int64()), 0).to_numpy()
    born = micros // 1000
    numbers = np.zeros((kernels.NUMBERS, count), np.int64)
    numbers[kernels.N_QUEUE_ID] = queues
    numbers[kernels.N_QUEUE_OFFSET] = numbering.number(topics, queues, batch.column("offset"))
    numbers[kernels.N_BORN_TIME] = born
    numbers[kernels.N_STORE_TIME] = numbering.times(born)
    store_host, store_v6 = host_bytes(options.get("store_host", STORE_HOST))
    born_host, born_v6 = host_bytes(options.get("born_host", options.get("store_host", STORE_HOST)))
    numbers[kernels.N_SYS_FLAG] = host_flags(born_v6, store_v6)
    bodies, flags = _bodies(batch.column("value"), options)
    numbers[kernels.N_SYS_FLAG] |= flags
    return Entries(
        numbers,
        np.broadcast_to(born_host, (count, born_host.size)).copy(),
        np.broadcast_to(store_host, (count, store_host.size)).copy(),
        bodies,
        topics.cast(pa.binary()),
        encode(batch.column("key"), batch.column("headers")),
        options.get("crc_property", "false") == "true",
    )


def _places(batch: pa.RecordBatch, options: Mapping[str, str]) -> tuple[pa.Array, NDArray[np.int64]]:
    """Topic and queue of every row. EncodeError for a row without them."""
    topics = _fill_nulls(batch.column("topic"), options.get("topic"), "topic", pa.string())
    if pc.any(pc.equal(pc.binary_length(topics.cast(pa.binary())), 0)).as_py():
        raise EncodeError("a row without a topic: give one with topic=NAME")
    for name in pc.unique(topics).to_pylist():
        if (why := why_unsafe(name)) is not None:
            row = pc.index(topics, name).as_py()
            raise EncodeError(f"row {row:,}: topic {name!r} cannot be the name of a directory: {why}")
    queue_ids = _fill_nulls(batch.column("partition"), int(options.get("partition", "0")), "partition", pa.int32())
    queues = queue_ids.to_numpy().astype(np.int64)
    if (queues < 0).any():
        raise EncodeError("a queue id below zero")
    return topics, queues


def _fill_nulls(array: pa.Array, value: Any, name: str, type: pa.DataType) -> pa.Array:
    if array.null_count:
        if value is None:
            raise EncodeError(f"a row without a {name}: give one with {name}=…")
        array = pc.fill_null(array, pa.scalar(value, type))
    return array


def _bodies(values: pa.Array, options: Mapping[str, str]) -> tuple[pa.Array, NDArray[np.int64]]:
    """Bodies, compressed as options say, and their sysflag bits."""
    values = pc.fill_null(values, b"")
    codec, over = options.get("codec", "none"), int(options.get("compress_over", COMPRESS_OVER))
    flags = np.zeros(len(values), np.int64)
    lengths = np.diff(binary(values)[0])
    if codec != "none":
        large = lengths >= over
        if large.any():
            values = pa.array(
                [
                    bytes(compression.compress(codec, body)) if packed else body
                    for body, packed in zip(values.to_pylist(), large.tolist(), strict=True)
                ],
                pa.binary(),
            )
            flags[large] = int(SysFlag.COMPRESSED) | CODEC_TYPES[codec] << CODEC_SHIFT
            lengths = np.diff(binary(values)[0])
    bad = np.flatnonzero(lengths > LARGEST_BODY)
    if bad.size:
        raise EncodeError(
            f"row {bad[0]:,}: a body of {int(lengths[bad[0]]):,} bytes, at most {LARGEST_BODY:,} are taken by a broker"
        )
    return values, flags


def judge(options: Mapping[str, str]) -> Judge:
    """What says which rows of `records` would read back otherwise than they are, once `restore` has seen them."""
    numbering = Numbering()

    def losses(batch: pa.RecordBatch) -> dict[str, NDArray[np.bool_]]:
        time = batch.column("timestamp")
        topics, queues = _places(batch, options)
        numbers = numbering.number(topics, queues, batch.column("offset"))
        micros = pc.fill_null(time.cast(pa.int64()), 0).to_numpy()
        return {
            "value": _mask(batch.column("value").is_null()),
            "timestamp": _mask(time.is_null()) | (micros % 1000 != 0),
            "timestampType": _mask(pc.not_equal(batch.column("timestampType"), 0)),
            "topic": _mask(batch.column("topic").is_null()),
            "partition": _mask(batch.column("partition").is_null()),
            "offset": _mask(pc.not_equal(batch.column("offset"), pa.array(numbers))),
        }

    return losses
