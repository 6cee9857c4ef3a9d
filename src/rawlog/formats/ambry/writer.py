"""Writing messages: PUTs and updates of every version, and what a hard delete leaves of one.

Callers give what a message means; sizes, offsets and checksums are computed here.
"""

from __future__ import annotations

from dataclasses import dataclass

from rawlog.core.errors import CorruptError, EncodeError
from rawlog.formats.ambry import keys
from rawlog.formats.ambry.layouts import (
    BLOBS,
    CRC_SIZE,
    HEADERS,
    KIND_OF_UPDATE,
    LARGEST_CONTENT,
    NONE,
    SEGMENT_VERSION,
    Kind,
)
from rawlog.io.checksums import crc32


def sealed(record: bytes) -> bytes:
    """A record with its checksum field behind it."""
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
    return sealed(_int(SEGMENT_VERSION, 2) + _int(capacity, 8))


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
        lost = [version for version, there in late.items() if there and version > serde]
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
        return sealed(record)


def _sized(content: bytes) -> bytes:
    """An encryption key or user metadata record."""
    return sealed(_int(1, 2) + _int(len(content), 4) + content)


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
    return sealed(record + _int(len(content), 8) + content)


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
    records = [] if encryption_key is None else [_sized(encryption_key)]
    records += [properties.encode(properties_version), _sized(user_metadata)]
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
        raise EncodeError(f"update record version {record_version} cannot be a {kind.name}")
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
    return _message(header_version, life_version, key, sealed(record), {"update_offset": first})


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
    return sealed(header) + key + payload


def hard_deleted(message: bytes) -> bytes:
    """A PUT after Ambry's hard delete: user metadata and content zeroed, everything else and all sizes as they were.

    CorruptError if it is no PUT, or one that is not sound.
    """
    import numpy as np

    from rawlog.formats.ambry.reader import Messages, scan, trouble

    frames = scan(np.frombuffer(message, np.uint8), 0)
    messages = Messages(frames)
    if len(frames) != 1 or int(frames.stops[0]) != len(message) or messages["kind"][0] != Kind.PUT:
        raise CorruptError("not one whole PUT", position=0)
    if not messages.sound[0]:
        raise trouble(messages, 0)
    at, size = int(messages["user_metadata_at"][0]), int(messages["user_metadata_size"][0])
    content, version = int(messages["content_size"][0]), int(messages["blob_version"][0])
    blob = blob_record(bytes(content), version=version, blob_type=int(messages["blob_type"][0]))
    return message[:at] + _sized(bytes(size)) + blob
