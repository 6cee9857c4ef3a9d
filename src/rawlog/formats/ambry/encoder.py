"""Messages from columns: a blob a row of `records`, with all that its headers say of it.

A record whose key is a blob id keeps it; any other key gives a new id, the same one each time. Without a `kind` among its headers a
record is a PUT. A time before 1970 is written as unknown: Ambry refuses to recover a message that has one. Kernels make what is said as
usual; `encode_row` makes the rest, one by one, and raises for what no message can hold.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rawlog.core.errors import CorruptError, EncodeError, OptionError, unknown
from rawlog.core.frames import Bytes, Frames
from rawlog.core.status import Status
from rawlog.formats.ambry import keys
from rawlog.formats.ambry.kernels import encode as kernels
from rawlog.formats.ambry.layouts import BLOB_TYPES, NONE, SEGMENT_HEADER, Kind
from rawlog.formats.ambry.store.store_writer import CAPACITY
from rawlog.formats.ambry.writer import Properties, put_message, update_message
from rawlog.kernels import blocks, byte_view, sha1
from rawlog.kernels.gather import SLACK

NAMESPACE = uuid.UUID("6ba7b812-9dad-11d1-80b4-00c04fd430c8")
OPTIONS = ("partition", "account", "container", "capacity", "service")
PART_ROWS, PART_BYTES = 1 << 14, 16 << 20
"""How much is encoded at once: what is known of so many rows stays near the processor."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What options say of rows that do not say it themselves."""

    capacity: int = CAPACITY
    partition: int | None = None
    account: int | None = None
    container: int | None = None
    service: str = "rawlog"

    @classmethod
    def told(cls, options: Mapping[str, str]) -> Choice:
        """OptionError for options that are none, or no numbers that can be."""
        for name in options:
            if name not in OPTIONS:
                raise unknown("option of ambry", name, OPTIONS)
        numbers = {
            name: _number(name, options[name], bits)
            for name, bits in (("partition", 64), ("account", 16), ("container", 16), ("capacity", 64))
            if name in options
        }
        made = cls(service=options.get("service", "rawlog"), **numbers)
        if made.capacity <= SEGMENT_HEADER.size:
            raise OptionError(f"capacity {made.capacity:,}: more than {SEGMENT_HEADER.size} expected")
        return made


def _number(name: str, text: str, bits: int) -> int:
    try:
        number = int(text)
    except ValueError:
        raise OptionError(f"{name} {text!r}: a number expected") from None
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise OptionError(f"{name} {text!r}: a number of {bits} bits expected")
    return number


def encode_batch(batch: pa.RecordBatch, first: int, choice: Choice) -> Iterator[Frames]:
    """The messages of rows, of which the first has the number `first`, in parts. EncodeError for what no message can hold."""
    for part in _parts(batch):
        yield encode_part(part, first, choice)
        first += part.num_rows


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    ends, start = np.cumsum(_spans(batch.column("value"))[1]), 0
    while start < batch.num_rows:
        done = int(ends[start - 1]) if start else 0
        stop = max(int(np.searchsorted(ends, done + PART_BYTES, side="right")), start + 1)
        stop = min(stop, start + PART_ROWS)
        yield batch.slice(start, stop - start)
        start = stop


def encode_part(batch: pa.RecordBatch, first: int, choice: Choice) -> Frames:
    """The messages of rows, of which there is at least one, end to end."""
    columns = {name: _spans(batch.column(name)) for name in ("key", "value")}
    columns["topic"] = _spans(pc.fill_null(batch.column("topic"), "None"))
    rows = _defaults(batch, first, choice)
    for name, place in (("key", kernels.KEY), ("value", kernels.CONTENT), ("topic", kernels.TOPIC)):
        rows[:, place], rows[:, place + 1] = columns[name][:2]
    rows[:, kernels.SIZE_TOLD] = columns["value"][1]
    service = byte_view(choice.service.encode("utf-8", "surrogateescape"))
    headers, raw_keys = _headers(batch), columns["key"][2]
    odd: dict[int, bytes] = {}
    odd_rows = kernels.read_rows(*headers, raw_keys, service.size, rows)
    for time in (kernels.CREATION, kernels.UPDATE_TIME):
        np.maximum(rows[:, time], NONE, out=rows[:, time])
    if odd_rows:
        for row in np.flatnonzero(rows[:, kernels.IS_ODD]).tolist():
            odd[row] = encode_row(_row(batch, row), first + row, choice)
            rows[row, kernels.SIZE] = len(odd[row])
    _name_rows(rows, columns["topic"][2], raw_keys)
    stops = np.cumsum(rows[:, kernels.SIZE])
    starts, size = stops - rows[:, kernels.SIZE], int(stops[-1])
    out = np.empty(size + SLACK, np.uint8)
    _, _, code = kernels.write_messages(rows, starts, raw_keys, columns["value"][2], headers[4], service, out)
    assert code == Status.OK
    for row, message in odd.items():
        out[starts[row] : stops[row]] = np.frombuffer(message, np.uint8)
    return Frames(out[:size], starts, stops, size, Status.OK)


def _name_rows(rows: NDArray[np.int64], topics: Bytes, raw_keys: Bytes) -> None:
    """Give rows whose key is no blob id the uuid of a new one."""
    longest = int(rows[:, kernels.TOPIC_SIZE].max() + 2 * rows[:, kernels.KEY_SIZE].max())
    namespace = byte_view(NAMESPACE.bytes)
    name = np.empty(namespace.size + longest + kernels.NAME_ROOM + SLACK, np.uint8)
    scratch, words = np.empty(blocks.SCRATCH, np.uint8), np.empty(sha1.STEPS, np.int64)
    kernels.name_rows(rows, topics, raw_keys, namespace, name, scratch, words)


def _defaults(batch: pa.RecordBatch, first: int, choice: Choice) -> NDArray[np.int64]:
    """What is known of rows before their headers are read."""
    rows = np.zeros((batch.num_rows, len(kernels.FIELDS)), np.int64)
    micros, timed = _integers(batch.column("timestamp").cast(pa.int64()), 0)
    partitions, _ = _integers(batch.column("partition").cast(pa.int64()), kernels.NO_PARTITION)
    offsets, numbered = _integers(batch.column("offset"), 0)
    ids = _topic_numbers(batch.column("topic"))
    rows[:, kernels.KIND] = Kind.PUT
    for name in ("content_type", "owner_id", "service_id", "content_encoding", "filename", "reserved_metadata_blob_id"):
        rows[:, kernels.FIELDS.index(f"{name}_size")] = NONE
    rows[:, kernels.TTL] = rows[:, kernels.NEW_EXPIRY] = NONE
    rows[:, kernels.CREATION] = rows[:, kernels.UPDATE_TIME] = np.where(timed, micros // 1000, NONE)
    rows[:, kernels.ACCOUNT] = ids[:, 0] if choice.account is None else choice.account
    rows[:, kernels.CONTAINER] = ids[:, 1] if choice.container is None else choice.container
    rows[:, kernels.NAMED_PARTITION] = partitions
    known = np.where(partitions == kernels.NO_PARTITION, 0, partitions)
    rows[:, kernels.PARTITION] = known if choice.partition is None else choice.partition
    rows[:, kernels.NAMED_OFFSET] = np.where(numbered, offsets, first + np.arange(batch.num_rows))
    return rows


def _integers(array: pa.Array, missing: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The numbers of a column, and which of them are there."""
    return pc.fill_null(array, missing).to_numpy(), array.is_valid().to_numpy(zero_copy_only=False)


def _spans(array: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.int64], Bytes]:
    """Where each value of a binary or text column begins, its size, and the bytes; a null has none."""
    ends, data = _ends(array)
    sizes = np.diff(ends).astype(np.int64)
    if array.null_count:
        sizes[array.is_null().to_numpy(zero_copy_only=False)] = 0
    return ends[:-1].astype(np.int64), sizes, data


def _ends(array: pa.Array) -> tuple[NDArray[np.int32], Bytes]:
    _, offsets, data = array.buffers()
    if not len(array) or offsets is None:
        return np.zeros(len(array) + 1, np.int32), byte_view(b"")
    ends = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    return ends, byte_view(b"" if data is None else data)


def _headers(batch: pa.RecordBatch) -> tuple[Any, Any, Bytes, Any, Bytes, Any]:
    """All headers end to end: where those of each row end, names, values, and which values are there."""
    lists = batch.column("headers")
    sizes = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    ends = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)))
    names, values = lists.flatten().flatten()
    told = values.is_valid().to_numpy(zero_copy_only=False) & names.is_valid().to_numpy(zero_copy_only=False)
    return ends, *_ends(names), *_ends(values), told


def _topic_numbers(topics: pa.Array) -> NDArray[np.int64]:
    """Account and container of each row by its topic."""
    encoded = topics.dictionary_encode()
    known = np.array([*map(_topic_ids, encoded.dictionary.to_pylist()), (NONE, NONE)], np.int64)
    found: NDArray[np.int64] = known[pc.fill_null(encoded.indices, len(known) - 1).to_numpy()]
    return found


def _topic_ids(topic: str | None) -> tuple[int, int]:
    """Account and container of a topic that looks like theirs."""
    account, _, container = (topic or "").partition("/")
    try:
        found = int(account), int(container)
    except ValueError:
        return NONE, NONE
    return found if all(-(1 << 15) <= one < 1 << 15 for one in found) else (NONE, NONE)


def _row(batch: pa.RecordBatch, index: int) -> dict[str, Any]:
    one = batch.slice(index, 1)
    row: dict[str, Any] = one.drop_columns(["timestamp"]).to_pylist()[0]
    return row | {"timestamp": one.column("timestamp").cast(pa.int64())[0].as_py()}


def encode_row(row: dict[str, Any], number: int, choice: Choice) -> bytes:
    """The message of one row of `records`, its timestamp in microseconds. EncodeError for what no message can hold."""
    told = {item["key"]: item["value"] for item in row["headers"] or () if item and item["value"] is not None}

    def integer(name: str, default: int) -> int:
        try:
            return int(told[name]) if name in told else default
        except ValueError:
            raise EncodeError(f"header {name} is no number") from None

    def text(name: str, default: str | None = None) -> str | None:
        return told[name].decode("utf-8", "surrogateescape") if name in told else default

    try:
        ids = _topic_ids(row["topic"])
        account = integer("account_id", ids[0] if choice.account is None else choice.account)
        container = integer("container_id", ids[1] if choice.container is None else choice.container)
        key = _identity(row, number, choice, account, container)
        milliseconds = NONE if row["timestamp"] is None else row["timestamp"] // 1000
        kind = told.get("kind", b"PUT").decode("ascii", "replace")
        if kind not in Kind.__members__:
            raise EncodeError(f"header kind {kind!r}: {', '.join(Kind.__members__)} expected")
        life = integer("life_version", 0)
        if kind != "PUT":
            return update_message(
                Kind[kind],
                key,
                time=max(integer("update_time", milliseconds), NONE),
                account_id=account,
                container_id=container,
                new_expiry=integer("new_expiry", NONE),
                life_version=life,
            )
        content = row["value"] or b""
        properties = Properties(
            blob_size=integer("blob_size", len(content)),
            creation_time=max(integer("creation_time", milliseconds), NONE),
            service_id=text("service_id", choice.service),
            owner_id=text("owner_id"),
            content_type=text("content_type", kernels.DEFAULT_TYPE.tobytes().decode()),
            is_private=told.get("is_private") == b"true",
            time_to_live=integer("time_to_live", NONE),
            account_id=account,
            container_id=container,
            is_encrypted=told.get("is_encrypted") == b"true",
            content_encoding=text("content_encoding"),
            filename=text("filename"),
            reserved_metadata_blob_id=text("reserved_metadata_blob_id"),
        )
        blob_type = text("blob_type") or BLOB_TYPES[0]
        if blob_type not in BLOB_TYPES:
            raise EncodeError(f"header blob_type {blob_type!r}: {', '.join(BLOB_TYPES)} expected")
        return put_message(
            key,
            properties,
            content,
            blob_type=BLOB_TYPES.index(blob_type),
            is_compressed=told.get("is_compressed") == b"true",
            life_version=life,
        )
    except EncodeError as error:
        raise EncodeError(f"row {number:,}: {error}") from None


def _identity(row: dict[str, Any], number: int, choice: Choice, account: int, container: int) -> bytes:
    """The blob id of a record: its key if that is one, else one made of key and place."""
    raw = row["key"]
    if raw is not None:
        try:
            if len(keys.parse(raw).raw) == len(raw):
                return bytes(raw)
        except CorruptError:
            pass
    place = f"{row['topic']}/{row['partition']}/{row['offset'] if row['offset'] is not None else number}/"
    name = uuid.uuid5(NAMESPACE, place + ("" if raw is None else raw.hex()))
    partition = (row["partition"] or 0) if choice.partition is None else choice.partition
    try:
        return keys.make(6, partition, str(name), account_id=account, container_id=container)
    except OverflowError:
        raise EncodeError(f"account {account} or container {container} does not fit into 2 bytes") from None
