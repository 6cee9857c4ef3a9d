"""Writing messages: PUTs and updates of every version, hard-deleted PUTs, and rows of `records` as a log segment.

Callers give what a message means; sizes, offsets and checksums are computed here.

Of rows: a record whose key is a blob id keeps it; any other key gives a new id, the same one each time. Without a `kind` among its headers
a record is a PUT. A time before 1970 is written as unknown: Ambry refuses to recover a message that has one. Kernels encode the usual rows;
`encode_row` encodes the rest, one by one, and raises for what no message can hold.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rawlog.formats.ambry import keys
from rawlog.formats.ambry.kernels import encode as kernels
from rawlog.formats.ambry.layouts import (
    BLOB_TYPES,
    BLOBS,
    CRC_SIZE,
    HEADERS,
    KIND_OF_UPDATE,
    LARGEST_CONTENT,
    NONE,
    SEGMENT_HEADER,
    SEGMENT_VERSION,
    Kind,
)
from rawlog.formats.ambry.log import decode
from rawlog.io.checksums import crc32
from rawlog.kernels import byte_view, hashes
from rawlog.kernels.gather import SLACK
from rawlog.model.errors import (
    CorruptError,
    EncodeError,
    OptionError,
    unknown,
)
from rawlog.model.format import File, Judge, Want
from rawlog.model.frames import Bytes, Frames
from rawlog.model.status import Status
from rawlog.model.table import RECORDS

CAPACITY = 1 << 30
"""The size of a new log segment, in bytes."""
NAMESPACE = uuid.UUID("6ba7b812-9dad-11d1-80b4-00c04fd430c8")
OPTIONS = ("partition", "account", "container", "capacity", "service")
PART_ROWS, PART_BYTES = 1 << 14, 16 << 20
"""How much is encoded at once: what is known of so many rows stays near the processor."""


def seal(record: bytes) -> bytes:
    """A record followed by its checksum field."""
    return record + crc32(record).to_bytes(CRC_SIZE, "big")


def _int(value: int, size: int) -> bytes:
    try:
        return value.to_bytes(size, "big", signed=True)
    except OverflowError:
        raise EncodeError(f"{value} does not fit into {size} bytes") from None


def _text(value: str | None) -> bytes:
    raw = (value or "").encode("utf-8", "surrogateescape")
    return _int(len(raw), 4) + raw


def segment_header(capacity: int) -> bytes:
    """What a log segment begins with."""
    return seal(_int(SEGMENT_VERSION, 2) + _int(capacity, 8))


@dataclass(frozen=True, slots=True, kw_only=True)
class Properties:
    """What a blob's owner says of it."""

    blob_size: int
    creation_time: int
    service_id: str | None = None
    owner_id: str | None = None
    content_type: str | None = None
    is_private: bool = False
    time_to_live: int = NONE
    account_id: int = NONE
    container_id: int = NONE
    is_encrypted: bool = False
    content_encoding: str | None = None
    filename: str | None = None
    reserved_metadata_blob_id: str | None = None

    def encode(self, serde: int = 5) -> bytes:
        """The properties record. EncodeError if the version cannot hold what is there."""
        if serde not in (1, 2, 3, 4, 5):
            raise EncodeError(f"properties version {serde}: 1 to 5 expected")
        record = _int(1, 2) + _int(serde, 2) + _int(self.time_to_live, 8) + _int(self.is_private, 1)
        record += _int(self.creation_time, 8) + _int(self.blob_size, 8)
        record += _text(self.content_type) + _text(self.owner_id) + _text(self.service_id)
        late = {
            2: (self.account_id != NONE or self.container_id != NONE),
            3: self.is_encrypted,
            4: bool(self.content_encoding or self.filename),
            5: bool(self.reserved_metadata_blob_id),
        }
        lost = [version for version, is_present in late.items() if is_present and version > serde]
        if lost:
            raise EncodeError(f"properties version {serde} cannot hold what came with version {lost[0]}")
        if serde >= 2:
            record += _int(self.account_id, 2) + _int(self.container_id, 2)
        if serde >= 3:
            record += _int(self.is_encrypted, 1)
        if serde >= 4:
            record += _text(self.content_encoding) + _text(self.filename)
        if serde >= 5:
            record += _text(self.reserved_metadata_blob_id)
        return seal(record)


def _with_size(content: bytes) -> bytes:
    """An encryption key or user metadata record."""
    return seal(_int(1, 2) + _int(len(content), 4) + content)


def blob_record(content: bytes, *, version: int = 3, blob_type: int = 0, is_compressed: bool = False) -> bytes:
    """A blob record. EncodeError if the version cannot hold what is asked."""
    if version not in BLOBS:
        raise EncodeError(f"blob record version {version}: 1 to 3 expected")
    if len(content) > LARGEST_CONTENT:
        raise EncodeError(f"content of {len(content):,} bytes, {LARGEST_CONTENT:,} at most")
    if (version == 1 and blob_type) or (version < 3 and is_compressed) or blob_type not in (0, 1):
        raise EncodeError(f"blob record version {version} cannot say type {blob_type}, compressed {is_compressed}")
    record = _int(version, 2)
    if version >= 2:
        record += _int(blob_type, 2)
    if version >= 3:
        record += _int(is_compressed, 1)
    return seal(record + _int(len(content), 8) + content)


def put_message(
    key: bytes,
    properties: Properties,
    content: bytes,
    *,
    user_metadata: bytes = b"",
    encryption_key: bytes | None = None,
    blob_type: int = 0,
    is_compressed: bool = False,
    life_version: int = 0,
    header_version: int = 3,
    properties_version: int = 5,
    blob_version: int = 3,
) -> bytes:
    """A PUT. EncodeError for what its versions cannot hold."""
    if encryption_key is not None and header_version == 1:
        raise EncodeError("a message header V1 has no place for an encryption key")
    first = HEADERS[header_version].size + len(key) if header_version in HEADERS else 0
    records = [] if encryption_key is None else [_with_size(encryption_key)]
    records += [properties.encode(properties_version), _with_size(user_metadata)]
    records.append(blob_record(content, version=blob_version, blob_type=blob_type, is_compressed=is_compressed))
    at = [first]
    for record in records:
        at.append(at[-1] + len(record))
    offsets = {
        "encryption_key_offset": NONE if encryption_key is None else at[0],
        "blob_properties_offset": at[-4],
        "user_metadata_offset": at[-3],
        "blob_offset": at[-2],
    }
    return _message(header_version, life_version, key, b"".join(records), offsets)


def update_message(
    kind: Kind,
    key: bytes,
    *,
    time: int,
    account_id: int = NONE,
    container_id: int = NONE,
    new_expiry: int = NONE,
    life_version: int = 0,
    header_version: int = 3,
    record_version: int = 3,
) -> bytes:
    """A DELETE, TTL_UPDATE or UNDELETE. EncodeError for what its versions cannot hold."""
    if (
        kind not in KIND_OF_UPDATE
        or record_version not in (1, 2, 3)
        or (record_version < 3 and kind is not Kind.DELETE)
    ):
        raise EncodeError(f"update record version {record_version} cannot hold a {kind.name}")
    if kind is Kind.UNDELETE and header_version != 3:
        raise EncodeError("an UNDELETE is written with header V3 only")
    record = _int(record_version, 2)
    if record_version == 1:
        record += b"\1"
    else:
        record += _int(account_id, 2) + _int(container_id, 2) + _int(time, 8)
    if record_version == 3:
        record += _int(KIND_OF_UPDATE.index(kind), 2) + _int(1, 2)
        if kind is Kind.TTL_UPDATE:
            record += _int(new_expiry, 8)
    first = HEADERS[header_version].size + len(key) if header_version in HEADERS else 0
    return _message(header_version, life_version, key, seal(record), {"update_offset": first})


def _message(version: int, life_version: int, key: bytes, payload: bytes, offsets: dict[str, int]) -> bytes:
    layout = HEADERS.get(version)
    if layout is None:
        raise EncodeError(f"message header version {version}: 1 to 3 expected")
    if version < 3 and life_version:
        raise EncodeError(f"a message header V{version} has no life version")
    if life_version < 0:
        raise EncodeError(f"life version {life_version}: 0 or more expected")
    keys.parse(key)
    values = {"version": version, "life_version": life_version, "payload_size": len(payload)} | offsets
    header = b"".join(_int(values.get(item.name, NONE), item.size) for item in layout.fields if item.name != "crc")
    return seal(header) + key + payload


def hard_delete(message: bytes, *, texts: Sequence[str] = ()) -> bytes:
    """A PUT after Ambry's hard delete: user metadata and content zeroed, everything else and all sizes as they were.

    `texts` are properties, such as `owner_id`, that become hyphens too. CorruptError if it is no PUT, or one that is not sound.
    """
    import numpy as np

    from rawlog.formats.ambry.log import Messages, message_error, scan

    frames = scan(np.frombuffer(message, np.uint8), 0)
    messages = Messages(frames)
    if len(frames) != 1 or int(frames.stops[0]) != len(message) or messages["kind"][0] != Kind.PUT:
        raise CorruptError("not one whole PUT", position=0)
    if not messages.sound[0]:
        raise message_error(messages, 0)
    at, size = int(messages["user_metadata_at"][0]), int(messages["user_metadata_size"][0])
    content, version = int(messages["content_size"][0]), int(messages["blob_version"][0])
    blob = blob_record(bytes(content), version=version, blob_type=int(messages["blob_type"][0]))
    head = bytearray(message[:at])
    for name in texts:
        start, length = (int(messages[f"{name}_{part}"][0]) for part in ("start", "size"))
        if length > 0:
            head[start : start + length] = b"-" * length
    if texts:
        first = int(messages["properties_at"][0])
        head[first:] = seal(bytes(head[first:-CRC_SIZE]))
    return bytes(head) + _with_size(bytes(size)) + blob


# Rows of `records` as messages -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What options say of rows that do not say it themselves."""

    capacity: int = CAPACITY
    partition: int | None = None
    account: int | None = None
    container: int | None = None
    service: str = "rawlog"

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> WriteOptions:
        """OptionError for an option that does not exist, or a number that does not fit."""
        for name in options:
            if name not in OPTIONS:
                raise unknown("option of ambry", name, OPTIONS)
        numbers = {
            name: _number(name, options[name], bits)
            for name, bits in (("partition", 64), ("account", 16), ("container", 16), ("capacity", 64))
            if name in options
        }
        write_options = cls(service=options.get("service", "rawlog"), **numbers)
        if write_options.capacity <= SEGMENT_HEADER.size:
            raise OptionError(f"capacity {write_options.capacity:,}: more than {SEGMENT_HEADER.size} expected")
        return write_options


def _number(name: str, text: str, bits: int) -> int:
    try:
        number = int(text)
    except ValueError:
        raise OptionError(f"{name} {text!r}: a number expected") from None
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise OptionError(f"{name} {text!r}: a number of {bits} bits expected")
    return number


def encode_batch(batch: pa.RecordBatch, first: int, write_options: WriteOptions) -> Iterator[Frames]:
    """Encode rows in parts; `first` is the number of the first row. EncodeError for a row that no message can hold."""
    for part in _parts(batch):
        yield encode_part(part, first, write_options)
        first += part.num_rows


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    ends, start = np.cumsum(_spans(batch.column("value"))[1]), 0
    while start < batch.num_rows:
        done = int(ends[start - 1]) if start else 0
        stop = max(int(np.searchsorted(ends, done + PART_BYTES, side="right")), start + 1)
        stop = min(stop, start + PART_ROWS)
        yield batch.slice(start, stop - start)
        start = stop


def encode_part(batch: pa.RecordBatch, first: int, write_options: WriteOptions) -> Frames:
    """The messages of at least one row, end to end."""
    columns = {name: _spans(batch.column(name)) for name in ("key", "value")}
    columns["topic"] = _spans(pc.fill_null(batch.column("topic"), "None"))
    rows = _defaults(batch, first, write_options)
    for name, place in (("key", kernels.KEY), ("value", kernels.CONTENT), ("topic", kernels.TOPIC)):
        rows[:, place], rows[:, place + 1] = columns[name][:2]
    rows[:, kernels.SIZE_TOLD] = columns["value"][1]
    service = byte_view(write_options.service.encode("utf-8", "surrogateescape"))
    headers, raw_keys = _headers(batch), columns["key"][2]
    odd_messages: dict[int, bytes] = {}
    odd_rows = kernels.read_rows(*headers, raw_keys, service.size, rows)
    for time in (kernels.CREATION, kernels.UPDATE_TIME):
        np.maximum(rows[:, time], NONE, out=rows[:, time])
    if odd_rows:
        for row in np.flatnonzero(rows[:, kernels.IS_ODD]).tolist():
            odd_messages[row] = encode_row(_row(batch, row), first + row, write_options)
            rows[row, kernels.SIZE] = len(odd_messages[row])
    _name_rows(rows, columns["topic"][2], raw_keys)
    stops = np.cumsum(rows[:, kernels.SIZE])
    starts, size = stops - rows[:, kernels.SIZE], int(stops[-1])
    out = np.empty(size + SLACK, np.uint8)
    _, _, code = kernels.write_messages(rows, starts, raw_keys, columns["value"][2], headers[4], service, out)
    assert code == Status.OK
    for row, message in odd_messages.items():
        out[starts[row] : stops[row]] = np.frombuffer(message, np.uint8)
    return Frames(out[:size], starts, stops, size, Status.OK)


def _name_rows(rows: NDArray[np.int64], topics: Bytes, raw_keys: Bytes) -> None:
    """Give each row whose key is no blob id a new uuid."""
    longest = int(rows[:, kernels.TOPIC_SIZE].max() + 2 * rows[:, kernels.KEY_SIZE].max())
    namespace = byte_view(NAMESPACE.bytes)
    name = np.empty(namespace.size + longest + kernels.NAME_ROOM + SLACK, np.uint8)
    scratch, words = np.empty(hashes.SCRATCH, np.uint8), np.empty(hashes.STEPS, np.int64)
    kernels.name_rows(rows, topics, raw_keys, namespace, name, scratch, words)


def _defaults(batch: pa.RecordBatch, first: int, write_options: WriteOptions) -> NDArray[np.int64]:
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
    rows[:, kernels.ACCOUNT] = ids[:, 0] if write_options.account is None else write_options.account
    rows[:, kernels.CONTAINER] = ids[:, 1] if write_options.container is None else write_options.container
    rows[:, kernels.NAMED_PARTITION] = partitions
    named = np.where(partitions == kernels.NO_PARTITION, 0, partitions)
    rows[:, kernels.PARTITION] = named if write_options.partition is None else write_options.partition
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
    """All headers end to end: where each row's end, names, values, and which values are valid."""
    lists = batch.column("headers")
    sizes = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    ends = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)))
    names, values = lists.flatten().flatten()
    valid = values.is_valid().to_numpy(zero_copy_only=False) & names.is_valid().to_numpy(zero_copy_only=False)
    return ends, *_ends(names), *_ends(values), valid


def _topic_numbers(topics: pa.Array) -> NDArray[np.int64]:
    """Account and container of each row by its topic."""
    encoded = topics.dictionary_encode()
    pairs = np.array([*map(_topic_ids, encoded.dictionary.to_pylist()), (NONE, NONE)], np.int64)
    ids: NDArray[np.int64] = pairs[pc.fill_null(encoded.indices, len(pairs) - 1).to_numpy()]
    return ids


def _topic_ids(topic: str | None) -> tuple[int, int]:
    """Account and container of a topic that looks like theirs."""
    account, _, container = (topic or "").partition("/")
    try:
        ids = int(account), int(container)
    except ValueError:
        return NONE, NONE
    return ids if all(-(1 << 15) <= number < 1 << 15 for number in ids) else (NONE, NONE)


def _row(batch: pa.RecordBatch, index: int) -> dict[str, Any]:
    single = batch.slice(index, 1)
    row: dict[str, Any] = single.drop_columns(["timestamp"]).to_pylist()[0]
    return row | {"timestamp": single.column("timestamp").cast(pa.int64())[0].as_py()}


def encode_row(row: dict[str, Any], number: int, write_options: WriteOptions) -> bytes:
    """The message of a row of `records`, with its timestamp in microseconds. EncodeError if no message can hold it."""
    headers = {item["key"]: item["value"] for item in row["headers"] or () if item and item["value"] is not None}

    def integer(name: str, default: int) -> int:
        try:
            return int(headers[name]) if name in headers else default
        except ValueError:
            raise EncodeError(f"header {name} is not a number") from None

    def text(name: str, default: str | None = None) -> str | None:
        return headers[name].decode("utf-8", "surrogateescape") if name in headers else default

    try:
        ids = _topic_ids(row["topic"])
        account = integer("account_id", ids[0] if write_options.account is None else write_options.account)
        container = integer("container_id", ids[1] if write_options.container is None else write_options.container)
        key = _identity(row, number, write_options, account, container)
        milliseconds = NONE if row["timestamp"] is None else row["timestamp"] // 1000
        kind = headers.get("kind", b"PUT").decode("ascii", "replace")
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
            service_id=text("service_id", write_options.service),
            owner_id=text("owner_id"),
            content_type=text("content_type", kernels.DEFAULT_TYPE.tobytes().decode()),
            is_private=headers.get("is_private") == b"true",
            time_to_live=integer("time_to_live", NONE),
            account_id=account,
            container_id=container,
            is_encrypted=headers.get("is_encrypted") == b"true",
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
            is_compressed=headers.get("is_compressed") == b"true",
            life_version=life,
        )
    except EncodeError as error:
        raise EncodeError(f"row {number:,}: {error}") from None


def _identity(row: dict[str, Any], number: int, write_options: WriteOptions, account: int, container: int) -> bytes:
    """The blob id of a record: its key if it is an id, else one derived from key and place."""
    raw = row["key"]
    if raw is not None:
        try:
            if len(keys.parse(raw).raw) == len(raw):
                return bytes(raw)
        except CorruptError:
            pass
    place = f"{row['topic']}/{row['partition']}/{row['offset'] if row['offset'] is not None else number}/"
    name = uuid.uuid5(NAMESPACE, place + ("" if raw is None else raw.hex()))
    partition = (row["partition"] or 0) if write_options.partition is None else write_options.partition
    try:
        return keys.make(6, partition, str(name), account_id=account, container_id=container)
    except OverflowError:
        raise EncodeError(f"account {account} or container {container} does not fit into 2 bytes") from None


# Rows of `records` as a log segment, and which of them would read back with other values ------------------------------------------


def encode(batches: Iterable[pa.RecordBatch], options: Mapping[str, str]) -> Iterator[bytes]:
    """The bytes of a log segment. EncodeError for what no message can hold, or past the segment's capacity."""
    write_options = WriteOptions.from_options(options)
    yield segment_header(write_options.capacity)
    size, number = SEGMENT_HEADER.size, 0
    for batch in batches:
        for frames in encode_batch(batch, number, write_options):
            if size + frames.reached > write_options.capacity:
                row = number + int(np.argmax(frames.stops + size > write_options.capacity))
                raise EncodeError(
                    f"row {row:,}: past the segment's capacity of {write_options.capacity:,} bytes; raise `capacity`"
                )
            yield frames.data.tobytes()
            size += frames.reached
            number += len(frames)


def losses(options: Mapping[str, str]) -> Judge:
    """What rows of `records` would read back otherwise than they are: they are written and read, and compared.

    OptionError for an option that does not exist.
    """
    write_options = WriteOptions.from_options(options)
    seen, start, end = 0, 0, SEGMENT_HEADER.size

    def judge(batch: pa.RecordBatch) -> dict[str, NDArray[np.bool_]]:
        nonlocal seen, start, end
        parts, at = [], 0
        for frames in encode_batch(batch, seen, write_options):
            segments, positions = np.empty((2, len(frames)), np.int64)
            start, end = kernels.place_messages(
                frames.sizes, start, end, write_options.capacity, SEGMENT_HEADER.size, segments, positions
            )
            parts.append(_changed_columns(batch.slice(at, len(frames)), frames, positions))
            at += len(frames)
        seen += at
        return {name: np.concatenate([part[name] for part in parts]) for name in RECORDS.names} if parts else {}

    return judge


def _changed_columns(
    batch: pa.RecordBatch, frames: Frames, positions: NDArray[np.int64]
) -> dict[str, NDArray[np.bool_]]:
    """Which rows differ from what their messages say, by column. A row without an offset may be anywhere."""
    parts: dict[str, list[NDArray[np.bool_]]] = {name: [] for name in RECORDS.names}
    at = 0
    for again in decode(frames, Want(RECORDS, File("", 0))):
        before = batch.slice(at, again.num_rows)
        for name, differs in parts.items():
            old, new = before.column(name), again.column(name)
            if name == "headers":
                differs.append(_lists_differ(old, new))
            elif name == "offset":
                new = pa.array(positions[at : at + again.num_rows])
                differs.append(_mask(pc.not_equal(old, new)))
            else:
                differs.append(_differ(old, new))
        at += again.num_rows
    assert at == len(frames), "a message of ours that cannot be read"
    return {name: np.concatenate(differs) for name, differs in parts.items()}


def _differ(old: pa.Array, new: pa.Array) -> NDArray[np.bool_]:
    """Where two columns of one type differ: null is equal to null, and to nothing else."""
    differ: NDArray[np.bool_] = _mask(pc.not_equal(old, new)) | (_mask(old.is_valid()) != _mask(new.is_valid()))
    return differ


def _lists_differ(old: pa.Array, new: pa.Array) -> NDArray[np.bool_]:
    """Where two columns of headers differ; no list is not an empty one."""
    sizes = [pc.fill_null(pc.list_value_length(column), 0).to_numpy() for column in (old, new)]
    differ: NDArray[np.bool_] = (sizes[0] != sizes[1]) | (_mask(old.is_valid()) != _mask(new.is_valid()))
    rows = np.repeat(np.arange(differ.size), np.where(differ, 0, sizes[0]))
    pairs = [
        column.flatten().filter(pa.array(np.repeat(~differ, size)))
        for column, size in zip((old, new), sizes, strict=True)
    ]
    for old_part, new_part in zip(*(pair.flatten() for pair in pairs), strict=True):
        differ[rows[_differ(old_part, new_part)]] = True
    return differ


def _mask(test: Any) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = pc.fill_null(test, False).to_numpy(zero_copy_only=False)
    return mask
