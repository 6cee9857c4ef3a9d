"""Rows of `records` as a log segment: one blob a record, with all that its headers say of it.

A record whose key is a blob id keeps it; any other key gives a new id, the same one each time. Without a `kind` among its headers a
record is a PUT.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog.errors import CorruptError, EncodeError, OptionError, unknown
from rawlog.format import File, Judge, Want
from rawlog.formats.ambry import keys
from rawlog.formats.ambry.kernels.texts import HEADERS as KNOWN
from rawlog.formats.ambry.layouts import BLOB_TYPES, NONE, SEGMENT_HEADER, Kind
from rawlog.formats.ambry.store_writer import CAPACITY, StoreWriter
from rawlog.formats.ambry.writer import Properties, put_message, segment_header, update_message
from rawlog.frames import Frames
from rawlog.storage import new_directory
from rawlog.tables import RECORDS

NAMESPACE = uuid.UUID("6ba7b812-9dad-11d1-80b4-00c04fd430c8")
OPTIONS = ("partition", "account", "container", "capacity", "service")
_NUMBERS = frozenset(name for name, _, how, _ in KNOWN if how == 0)


def encode(batches: Iterable[pa.RecordBatch], options: Mapping[str, str]) -> Iterator[bytes]:
    """The bytes of a log segment. EncodeError for what no message can hold, or past the segment's capacity."""
    capacity = check_options(options)
    yield segment_header(capacity)
    size, number = SEGMENT_HEADER.size, 0
    for batch in batches:
        pieces = []
        for row in _rows(batch):
            piece = encode_row(row, number, options)
            size += len(piece)
            if size > capacity:
                raise EncodeError(
                    f"row {number:,}: past the segment's capacity of {capacity:,} bytes; raise `capacity`"
                )
            pieces.append(piece)
            number += 1
        yield b"".join(pieces)


def write(batches: Iterable[pa.RecordBatch], target: str, options: Mapping[str, str], overwrite: bool = False) -> int:
    """Rows of `records` as a whole store: log segments as they fill, index, blooms and descriptor; the number of rows."""
    capacity, number = check_options(options), 0
    with new_directory(target, overwrite=overwrite) as stage:
        store = StoreWriter(stage, capacity=capacity)
        try:
            for batch in batches:
                for row in _rows(batch):
                    store.append(encode_row(row, number, options))
                    number += 1
            store.close()
        finally:
            store.abandon()
    return number


def check_options(options: Mapping[str, str]) -> int:
    """The capacity of a segment. OptionError for options that are none, or no numbers."""
    for name in options:
        if name not in OPTIONS:
            raise unknown("option of ambry", name, OPTIONS)
    for name in ("partition", "account", "container"):
        _number(options, name, 0)
    capacity = _number(options, "capacity", CAPACITY)
    if capacity <= SEGMENT_HEADER.size:
        raise OptionError(f"capacity {capacity:,}: more than {SEGMENT_HEADER.size} expected")
    return capacity


def _rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    times = batch.column("timestamp").cast(pa.int64()).to_pylist()
    for index, row in enumerate(batch.drop_columns(["timestamp"]).to_pylist()):
        row["timestamp"] = times[index]
        yield row


def _number(options: Mapping[str, str], name: str, default: int) -> int:
    try:
        return int(options.get(name, default))
    except ValueError:
        raise OptionError(f"{name} {options[name]!r}: a number expected") from None


def _identity(row: dict[str, Any], number: int, options: Mapping[str, str], account: int, container: int) -> bytes:
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
    partition = _number(options, "partition", row["partition"] or 0)
    return keys.make(6, partition, str(name), account_id=account, container_id=container)


def encode_row(row: dict[str, Any], number: int, options: Mapping[str, str]) -> bytes:
    """The message of one row of `records`."""
    told = {item["key"]: item["value"] for item in row["headers"] or () if item["value"] is not None}

    def integer(name: str, default: int) -> int:
        try:
            return int(told[name]) if name in told else default
        except ValueError:
            raise EncodeError(f"row {number:,}: header {name} is no number") from None

    def text(name: str) -> str | None:
        return told[name].decode("utf-8", "surrogateescape") if name in told else None

    ids = _topic_ids(row["topic"])
    account = integer("account_id", _number(options, "account", ids[0]))
    container = integer("container_id", _number(options, "container", ids[1]))
    key = _identity(row, number, options, account, container)
    milliseconds = NONE if row["timestamp"] is None else row["timestamp"] // 1000
    kind = told.get("kind", b"PUT").decode("ascii", "replace")
    if kind not in Kind.__members__:
        raise EncodeError(f"row {number:,}: header kind {kind!r}: {', '.join(Kind.__members__)} expected")
    life = integer("life_version", 0)
    try:
        if kind != "PUT":
            return update_message(
                Kind[kind],
                key,
                time=integer("update_time", milliseconds),
                account_id=account,
                container_id=container,
                new_expiry=integer("new_expiry", NONE),
                life_version=life,
            )
        content = row["value"] or b""
        properties = Properties(
            blob_size=integer("blob_size", len(content)),
            creation_time=integer("creation_time", milliseconds),
            service_id=text("service_id") if "service_id" in told else options.get("service", "rawlog"),
            owner_id=text("owner_id"),
            content_type=text("content_type") if "content_type" in told else "application/octet-stream",
            is_private=told.get("is_private") == b"true",
            time_to_live=integer("time_to_live", NONE),
            account_id=account,
            container_id=container,
            is_encrypted=told.get("is_encrypted") == b"true",
            content_encoding=text("content_encoding"),
            filename=text("filename"),
            reserved_metadata_blob_id=text("reserved_metadata_blob_id"),
        )
        blob_type = BLOB_TYPES.index(text("blob_type") or BLOB_TYPES[0])
        return put_message(
            key,
            properties,
            content,
            blob_type=blob_type,
            is_compressed=told.get("is_compressed") == b"true",
            life_version=life,
        )
    except (EncodeError, ValueError) as error:
        raise EncodeError(f"row {number:,}: {error}") from None


def _topic_ids(topic: str | None) -> tuple[int, int]:
    """Account and container of a topic that looks like theirs."""
    account, _, container = (topic or "").partition("/")
    try:
        found = int(account), int(container)
    except ValueError:
        return NONE, NONE
    return found if all(-(1 << 15) <= one < 1 << 15 for one in found) else (NONE, NONE)


def losses(options: Mapping[str, str]) -> Judge:
    """What rows of `records` would read back otherwise than they are: they are written and read, and compared.

    OptionError for options that are none.
    """
    capacity = check_options(options)
    seen, start, end = 0, 0, SEGMENT_HEADER.size

    def judge(batch: pa.RecordBatch) -> dict[str, NDArray[np.bool_]]:
        nonlocal seen, start, end
        messages = [encode_row(row, seen + index, options) for index, row in enumerate(_rows(batch))]
        seen += len(messages)
        positions = np.empty(len(messages), np.int64)
        for index, message in enumerate(messages):
            if end + len(message) > capacity:  # as `StoreWriter` goes on to the next segment
                start, end = start + end, SEGMENT_HEADER.size
            positions[index] = start + end
            end += len(message)
        return _compared(batch, messages, positions)

    return judge


def _compared(
    batch: pa.RecordBatch, messages: list[bytes], positions: NDArray[np.int64]
) -> dict[str, NDArray[np.bool_]]:
    from rawlog.formats.ambry.reader import decode, scan

    frames: Frames = scan(np.frombuffer(b"".join(messages), np.uint8), 0)
    assert len(frames) == len(messages), "a message of ours that cannot be read"
    again = pa.Table.from_batches(list(decode(frames, Want(RECORDS, File("", 0)))))
    lost = {}
    for name in RECORDS.names:
        before, after = batch.column(name), again.column(name)
        if name == "timestamp":
            before, after = before.cast(pa.int64()), after.cast(pa.int64())
        values = positions.tolist() if name == "offset" else after.to_pylist()
        lost[name] = np.array(
            [one != other and not (name == "offset" and one is None)
             for one, other in zip(before.to_pylist(), values, strict=True)], np.bool_,
        )  # fmt: skip
    return lost
