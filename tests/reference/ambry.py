"""A slow, obvious decoder of Ambry log segments, written from the specification. Imports nothing of rawlog."""

from __future__ import annotations

import base64
import struct
import uuid
import zlib
from dataclasses import dataclass, field, replace
from typing import Any

from tests.reference.kafka import java_string

HEADER_SIZES = {1: 34, 2: 38, 3: 40}
UPDATE_KINDS = ("DELETE", "TTL_UPDATE", "UNDELETE")
BLOB_TYPES = ("DataBlob", "MetadataBlob")
SMALLEST_PAYLOAD = 11


class Cut(Exception):
    """The bytes end before the structure does."""


class Wrong(Exception):
    """The bytes are no such structure."""


def crc_field(data: bytes) -> bytes:
    return struct.pack(">Q", zlib.crc32(data))


@dataclass
class Key:
    raw: bytes
    version: int
    partition: int
    uuid: str
    account: int = -1
    container: int = -1

    @property
    def text(self) -> str:
        return base64.urlsafe_b64encode(self.raw).decode().rstrip("=")


def read_key(data: bytes, at: int, stop: int) -> Key:
    def need(size: int) -> None:
        if stop - at < size:
            raise Cut

    need(2)
    (version,) = struct.unpack_from(">h", data, at)
    if not 1 <= version <= 7:
        raise Wrong
    start = 2 if version == 1 else 8
    need(start + 14 if version < 6 else start + 26)
    partition_version, partition = struct.unpack_from(">hq", data, at + start)
    if partition_version != 1:
        raise Wrong
    account = container = -1
    if version >= 2:
        flags, account, container = data[at + 2], *struct.unpack_from(">hh", data, at + 4)
        if version >= 3 and flags & 3 > 1:
            raise Wrong
        if version >= 5 and flags & 0x18 == 0x18:
            raise Wrong
    if version >= 6:
        raw = data[at : at + start + 26]
        return Key(raw, version, partition, str(uuid.UUID(bytes=raw[-16:])), account, container)
    (size,) = struct.unpack_from(">i", data, at + start + 10)
    if size < 0:
        raise Wrong
    need(start + 14 + size)
    raw = data[at : at + start + 14 + size]
    return Key(raw, version, partition, java_string(raw[start + 14 :]), account, container)


@dataclass
class Header:
    version: int
    life_version: int
    payload: int
    encryption_key: int
    properties: int
    update: int
    user_metadata: int
    blob: int
    size: int


def read_header(data: bytes, at: int) -> Header:
    """By the rules of verifyHeader."""
    left = len(data) - at
    if left < 2:
        raise Cut
    (version,) = struct.unpack_from(">h", data, at)
    if version not in HEADER_SIZES:
        raise Wrong
    size = HEADER_SIZES[version]
    if left < size:
        raise Cut
    if data[at + size - 8 : at + size] != crc_field(data[at : at + size - 8]):
        raise Wrong
    life, encryption = 0, -1
    if version == 1:
        payload, properties, update, meta, blob = struct.unpack_from(">qiiii", data, at + 2)
    elif version == 2:
        payload, encryption, properties, update, meta, blob = struct.unpack_from(">qiiiii", data, at + 2)
    else:
        life, payload, encryption, properties, update, meta, blob = struct.unpack_from(">hqiiiii", data, at + 2)
    if payload <= 0 or life < 0:
        raise Wrong
    if properties > 0:
        if update != -1 or meta <= 0 or blob <= 0:
            raise Wrong
    elif not (update > 0 and properties == meta == blob == encryption == -1):
        raise Wrong
    return Header(version, life, payload, encryption, properties, update, meta, blob, size)


@dataclass
class Message:
    position: int
    size: int
    header: Header
    key: Key
    kind: str | None = None
    crc_ok: bool = True
    readable: bool = True
    properties: dict[str, Any] = field(default_factory=dict)
    encryption_key: bytes | None = None
    user_metadata: bytes | None = None
    blob_type: str | None = None
    is_compressed: bool | None = None
    content: bytes | None = None
    account: int = -1
    container: int = -1
    time: int = -1
    new_expiry: int | None = None


class Reader:
    def __init__(self, data: bytes, at: int, stop: int) -> None:
        self.data, self.at, self.stop, self.start = data, at, stop, at
        self.crc_ok = True

    def take(self, size: int) -> bytes:
        if size < 0 or self.stop - self.at < size:
            raise Wrong
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, form: str) -> int:
        return int(struct.unpack(">" + form, self.take(struct.calcsize(">" + form)))[0])

    def record(self) -> None:
        self.start = self.at

    def close(self) -> None:
        if crc_field(self.data[self.start : self.at]) != self.take(8):
            self.crc_ok = False


def sized(reader: Reader) -> bytes:
    reader.record()
    if reader.number("h") != 1:
        raise Wrong
    content = reader.take(reader.number("i"))
    reader.close()
    return content


def properties(reader: Reader) -> dict[str, Any]:
    reader.record()
    if reader.number("h") != 1:
        raise Wrong
    serde = reader.number("h")
    if not 1 <= serde <= 5:
        raise Wrong
    found: dict[str, Any] = {"properties_version": serde, "time_to_live": reader.number("q")}
    found["is_private"] = reader.number("b") == 1
    found["creation_time"], found["properties_blob_size"] = reader.number("q"), reader.number("q")

    def text() -> str:
        return java_string(reader.take(reader.number("i")))

    for name in ("content_type", "owner_id", "service_id"):
        found[name] = text()
    found["account_id"] = found["container_id"] = -1
    found["is_encrypted"] = False
    for name in ("content_encoding", "filename", "reserved_metadata_blob_id"):
        found[name] = None
    if serde >= 2:
        found["account_id"], found["container_id"] = reader.number("h"), reader.number("h")
    if serde >= 3:
        found["is_encrypted"] = reader.number("b") == 1
    if serde >= 4:
        found["content_encoding"], found["filename"] = text() or None, text() or None
    if serde >= 5:
        found["reserved_metadata_blob_id"] = text() or None
    reader.close()
    return found


def blob(reader: Reader, message: Message) -> None:
    reader.record()
    version = reader.number("h")
    if version not in (1, 2, 3):
        raise Wrong
    kind = reader.number("h") if version >= 2 else 0
    compressed = reader.number("b") == 1 if version >= 3 else False
    size = reader.number("q")
    if size < 0 or size > 2**31 - 1:
        raise Wrong
    content = reader.take(size)
    if kind not in (0, 1):
        raise Wrong
    message.blob_type, message.is_compressed, message.content = BLOB_TYPES[kind], compressed, content
    reader.close()


def update(reader: Reader, message: Message) -> None:
    reader.record()
    version = reader.number("h")
    kind = "DELETE"
    if version == 1:
        reader.take(1)
    elif version in (2, 3):
        message.account, message.container, message.time = reader.number("h"), reader.number("h"), reader.number("q")
        if version == 3:
            number = reader.number("h")
            if not 0 <= number <= 2 or reader.number("h") != 1:
                raise Wrong
            kind = UPDATE_KINDS[number]
            if kind == "TTL_UPDATE":
                message.new_expiry = reader.number("q")
    else:
        raise Wrong
    message.kind = kind
    reader.close()


def last_record_end(data: bytes, message: Message) -> int | None:
    """Where the last record ends by its own size, None if it does not say."""
    header, first = message.header, message.header.size + len(message.key.raw)
    if header.properties > 0:
        at = header.blob
        if at < first or message.size - at < 13:
            return None
        (version,) = struct.unpack_from(">h", data, message.position + at)
        if version not in (1, 2, 3):
            return None
        head = {1: 10, 2: 12, 3: 13}[version]
        (size,) = struct.unpack_from(">q", data, message.position + at + head - 8)
        return at + head + size + 8 if 0 <= size <= 2**31 - 1 else None
    (version,) = struct.unpack_from(">h", data, message.position + first)
    if version in (1, 2):
        return first + {1: 11, 2: 22}[version]
    if version != 3 or message.size - first < 18:
        return None
    (kind,) = struct.unpack_from(">h", data, message.position + first + 14)
    return first + (34 if kind == 1 else 26)


def read_records(data: bytes, message: Message) -> None:
    reader = Reader(
        data, message.position + message.header.size + len(message.key.raw), message.position + message.size
    )
    try:
        if message.header.properties > 0:
            message.kind = "PUT"
            if message.header.encryption_key != -1:
                message.encryption_key = sized(reader)
            message.properties = properties(reader)
            message.account, message.container = message.properties["account_id"], message.properties["container_id"]
            message.time = message.properties["creation_time"]
            message.user_metadata = sized(reader)
            blob(reader, message)
        else:
            update(reader, message)
    except Wrong:
        message.readable = False
    message.crc_ok = reader.crc_ok and message.readable


def first_position(data: bytes) -> int | None:
    """Where the messages begin; None for a segment header that is damaged or cut."""

    def sealed(start: int, size: int) -> bool:
        piece = data[start : start + size]
        return len(piece) == size and piece[-8:] == crc_field(piece[:-8])

    if not data:
        return 0
    version = int.from_bytes(data[:2], "big", signed=True)
    if version in HEADER_SIZES:
        return 0
    if version == 0 and len(data) >= 2 and sealed(0, 18):
        return 18
    if version == 0 and len(data) < 18:
        return None
    after = int.from_bytes(data[18:20], "big")
    if version != 0 and not (after in HEADER_SIZES and sealed(18, HEADER_SIZES[after])):
        return 0
    return None


def decode(data: bytes) -> list[Message]:
    """The messages of a log segment up to the first that is none: cut, damaged in its header, or of a size that lies."""
    position = first_position(data)
    found: list[Message] = []
    if position is None:
        return found
    while position < len(data):
        try:
            header = read_header(data, position)
            key = read_key(data, position + header.size, len(data))
            size = header.size + len(key.raw) + header.payload
            if len(data) - position < size:
                raise Cut
            if header.payload < SMALLEST_PAYLOAD:
                raise Wrong
            message = Message(position, size, header, key)
            if not begins(data, position + size):
                if last_record_end(data, message) != size and len(data) - position > size:
                    raise Wrong
                if not last_record_ok(data, message) and hides(data, message):
                    raise Wrong
        except (Cut, Wrong):
            return found
        read_records(data, message)
        found.append(message)
        position += size
    return found


def begins(data: bytes, position: int) -> bool:
    """Whether a sound header is there."""
    try:
        read_header(data, position)
    except (Cut, Wrong):
        return False
    return True


def last_record_ok(data: bytes, message: Message) -> bool:
    """Whether the last record of a message has its checksum after it."""
    first = message.header.size + len(message.key.raw)
    start = message.header.blob if message.header.properties > 0 else first
    piece = data[message.position + start : message.position + message.size]
    return start >= first and len(piece) > 8 and piece[-8:] == crc_field(piece[:-8])


def hides(data: bytes, message: Message) -> bool:
    """Whether another message begins inside a message, after its key: bytes of it are missing."""
    first = message.header.size + len(message.key.raw)
    for position in range(message.position + first, message.position + message.size):
        try:
            header = read_header(data, position)
            read_key(data, position + header.size, len(data))
            return True
        except (Cut, Wrong):
            continue
    return False


def microseconds(milliseconds: int) -> int | None:
    return None if milliseconds == -1 or abs(milliseconds) > (2**63 - 1) // 1000 else milliseconds * 1000


def ids(message: Message) -> tuple[int, int]:
    if message.account != -1 or message.container != -1:
        return message.account, message.container
    return message.key.account, message.key.container


def message_row(message: Message) -> dict[str, Any]:
    """A row of `ambry.messages`, but for what the path and the other files tell."""
    known = message.properties
    row: dict[str, Any] = {
        "position": message.position, "size": message.size, "kind": message.kind, "header_version": message.header.version,
        "life_version": message.header.life_version, "key": message.key.raw, "blob_id": message.key.text,
        "key_version": message.key.version, "partition": message.key.partition, "account_id": ids(message)[0],
        "container_id": ids(message)[1], "uuid": message.key.uuid, "crc_ok": message.crc_ok,
        "operation_timestamp": microseconds(message.time), "user_metadata": message.user_metadata,
        "encryption_key": message.encryption_key, "blob_type": message.blob_type, "is_compressed": message.is_compressed,
        "blob_size": None if message.content is None else len(message.content), "content": message.content,
        "new_expiry": message.new_expiry,
    }  # fmt: skip
    for name in ("properties_version", "time_to_live", "is_private", "properties_blob_size", "content_type", "owner_id",
                 "service_id", "is_encrypted", "content_encoding", "filename", "reserved_metadata_blob_id"):  # fmt: skip
        row[name] = known.get(name)
    row["creation_time"] = microseconds(known.get("creation_time", -1))
    return row


def record_row(message: Message) -> dict[str, Any]:
    """A row of `records`, but for its headers."""
    number = message.key.partition
    return {
        "key": message.key.raw, "value": message.content, "topic": "/".join(map(str, ids(message))),
        "partition": number if 0 <= number < 2**31 else None, "offset": message.position, "timestamp": microseconds(message.time),
        "timestampType": 0,
    }  # fmt: skip


def rows_by_table(data: bytes) -> dict[str, list[dict[str, Any]]]:
    """What is read in front of the first damage: of `records`, also of a wrong checksum."""
    records, messages = [], []
    for message in decode(data):
        if not message.readable:
            break
        messages.append(message_row(message))
    for message in decode(data):
        if not message.crc_ok:
            break
        records.append(record_row(message))
    return {"records": records, "ambry.messages": messages}


def _signed64(value: int) -> int:
    value %= 1 << 64
    return value - (1 << 64) if value >> 63 else value


def bucket(value: int, capacity: int) -> int:
    """The bit that a hash stands for in a bloom filter."""
    return abs(_signed64(value)) % capacity


def murmur3(data: bytes) -> tuple[int, int]:
    """MurmurHash3 x64 128, seed 0, with the tail bytes taken as signed numbers."""
    full, c1, c2 = 1 << 64, 0x87C37B91114253D5, 0x4CF5AD432745937F

    def rotate(value: int, by: int) -> int:
        return (value << by | value >> (64 - by)) % full

    def mix(value: int) -> int:
        value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD % full
        value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 % full
        return value ^ value >> 33

    h1 = h2 = 0
    whole = len(data) // 16 * 16
    for at in range(0, whole, 16):
        k1, k2 = (int.from_bytes(data[at + half : at + half + 8], "little") for half in (0, 8))
        h1 ^= rotate(k1 * c1 % full, 31) * c2 % full
        h1 = ((rotate(h1, 27) + h2) * 5 + 0x52DCE729) % full
        h2 ^= rotate(k2 * c2 % full, 33) * c1 % full
        h2 = ((rotate(h2, 31) + h1) * 5 + 0x38495AB5) % full
    tail = [0, 0]
    for number, byte in enumerate(data[whole:]):
        tail[number // 8] ^= ((byte - 256 if byte > 127 else byte) << 8 * (number % 8)) % full
    h2 ^= rotate(tail[1] * c2 % full, 33) * c1 % full
    h1 ^= rotate(tail[0] * c1 % full, 31) * c2 % full
    h1, h2 = h1 ^ len(data), h2 ^ len(data)
    h1 = (h1 + h2) % full
    h2 = (h2 + h1) % full
    h1, h2 = mix(h1), mix(h2)
    h1 = (h1 + h2) % full
    return h1, (h2 + h1) % full


def order(raw: bytes) -> tuple[Any, ...]:
    """A key as Ambry compares it (specification 4.4): equal for keys that are one blob."""
    key = read_key(raw, 0, len(raw))
    group = {1: 1, 2: 2, 3: 3, 4: 3, 5: 3, 6: 4, 7: 4}[key.version]
    if group == 4:
        halves = raw[18:26], raw[26:34]
        return (group, *(int.from_bytes(half, "big", signed=True) for half in halves))
    text = java_string(raw[16 if group == 1 else 22 :]).encode("utf-16-be")
    number = int.from_bytes(raw[4 if group == 1 else 10 :][:8], "big", signed=True)
    if group == 3:
        return group, text
    if group == 1:
        return group, number, text
    parts = (raw[3:4], raw[4:6], raw[6:8])
    return (group, *(int.from_bytes(part, "big", signed=True) for part in parts), number, text)


DELETE, TTL, UNDELETE = 1, 2, 4


@dataclass
class Entry:
    """An entry of the index as a live store adds it."""

    kind: str
    place: tuple[int, int]
    flags: int
    expires: int
    original: int
    account: int
    container: int
    life: int

    @property
    def acts(self) -> str:
        return (
            "DELETE"
            if self.flags & DELETE
            else "UNDELETE"
            if self.flags & UNDELETE
            else "TTL_UPDATE"
            if self.flags & TTL
            else "PUT"
        )


def find(entries: list[Entry]) -> Entry | None:
    """The state of a blob (15.2)."""
    for entry in reversed(entries):
        if entry.acts != "TTL_UPDATE":
            latest = entries[-1]
            if latest.flags & TTL and not entry.flags & TTL:
                return replace(entry, flags=entry.flags | TTL, expires=latest.expires)
            return entry
    return None


def refused(kind: str, life: int, state: Entry | None) -> bool:
    """Whether a message cannot follow a state (14, step 5)."""
    if state is None:
        return False
    if kind == "PUT" or life < state.life:
        return True
    if kind == "DELETE":
        return state.acts == "DELETE" and state.life >= life
    return kind == "TTL_UPDATE" and (state.acts == "DELETE" or bool(state.flags & TTL))


def add(
    entries: list[Entry], kind: str, place: tuple[int, int], expires: int, account: int, container: int, life: int
) -> None:
    """Append the entry that a live store would add for a message (10.3)."""
    made = Entry(kind, place, 0, expires, -1, account, container, life)
    if kind == "PUT":
        made.original = place[1]
        entries.append(made)
        return
    before = entries[-1] if kind == "UNDELETE" and entries else find(entries)
    made.expires = -1
    flags = before.flags if before else 0
    if before:
        made.account, made.container, made.expires = before.account, before.container, before.expires
    if kind == "DELETE":
        made.flags = (flags | DELETE) & ~UNDELETE
        if before and before.flags == 0 and before.place[0] == place[0]:
            made.original = before.place[1]
    elif kind == "TTL_UPDATE":
        made.flags, made.expires = (flags | TTL) & ~UNDELETE, -1
        if before and before.place[0] == place[0]:
            made.original = before.place[1]
    else:
        made.flags = (flags | UNDELETE) & ~DELETE
    entries.append(made)
