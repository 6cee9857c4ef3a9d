"""RocketMQ's commit log, consume queues and key index in plain Python, slow and obvious. Imports nothing of rawlog.

Written from the format alone (specs/rocketmq-store.md): held to RocketMQ's own answers by the golden stores, and rawlog is held to it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

V1, V2, BLANK = 0xDAA320A7, 0xDAA320AB, 0xCBD43194


class Bad(Exception):
    """The bytes at this position are no entry."""

    def __init__(self, position: int, what: str) -> None:
        super().__init__(f"byte {position}: {what}")
        self.position = position


@dataclass
class Message:
    """One entry, its fields in stored order; the body as stored."""

    position: int
    size: int
    version: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born: int
    born_host: bytes
    stored: int
    store_host: bytes
    reconsumed: int
    prepared: int
    body: bytes
    topic: bytes
    properties: bytes

    @property
    def crc_ok(self) -> bool:
        return crc(self.body) == self.body_crc

    @property
    def pieces(self) -> list[tuple[bytes, bytes | None]]:
        """Every property in stored order; None where there is no separator."""
        found: list[tuple[bytes, bytes | None]] = []
        for piece in self.properties.split(b"\x02"):
            name, mark, value = piece.partition(b"\x01")
            if piece:
                found.append((name, value if mark else None))
        return found

    @property
    def shown(self) -> dict[bytes, bytes]:
        """What RocketMQ's parser takes: the last of a name, no empty names or values."""
        return {name: value for name, value in self.pieces if name and value}


def crc(data: bytes) -> int:
    return zlib.crc32(data) & 0x7FFFFFFF


def entry(data: bytes, position: int) -> Message | int:
    """The entry at a position, or the size of a blank one. EOFError if it is cut, Bad for anything else."""
    if len(data) - position < 8:
        raise EOFError
    size, magic = struct.unpack_from(">iI", data, position)
    if magic == BLANK:
        if size < 8:
            raise Bad(position, "blank size")
        if len(data) - position < size:
            raise EOFError
        return int(size)
    if magic not in (V1, V2):
        raise Bad(position, "magic")
    if size < 91:
        raise Bad(position, "size")
    if len(data) - position < size:
        raise EOFError
    raw, at = data[position : position + size], 8

    def take(form: str) -> tuple[int, ...]:
        nonlocal at
        if len(raw) - at < struct.calcsize(form):
            raise Bad(position, "parts")
        values = struct.unpack_from(form, raw, at)
        at += struct.calcsize(form)
        return values

    def run(length: int) -> bytes:
        nonlocal at
        if length < 0 or len(raw) - at < length:
            raise Bad(position, "parts")
        at += length
        return raw[at - length : at]

    body_crc, queue_id, flag, queue_offset, physical, sys_flag, born = take(">iiiqqiq")
    born_host = run(20 if sys_flag & 0x10 else 8)
    (stored,) = take(">q")
    store_host = run(20 if sys_flag & 0x20 else 8)
    reconsumed, prepared, body_size = take(">iqi")
    body = run(body_size)
    topic = run(*take(">b" if magic == V1 else ">h"))
    properties = run(*take(">h"))
    if at != size:
        raise Bad(position, "parts")
    return Message(
        position, size, 1 if magic == V1 else 2, body_crc, queue_id, flag, queue_offset, physical, sys_flag, born, born_host,
        stored, store_host, reconsumed, prepared, body, topic, properties,
    )  # fmt: skip


def messages(data: bytes) -> Iterator[Message]:
    """The messages of a file up to its end, its zeros or the first damage (Bad)."""
    position = 0
    while position < len(data):
        try:
            found = entry(data, position)
        except EOFError:
            return
        except Bad:
            if not data[position:].strip(b"\0"):
                return
            raise
        if isinstance(found, int):
            position += found
            continue
        yield found
        position += found.size


def inner(body: bytes) -> list[tuple[int, bytes, bytes]]:
    """Flag, body and properties of each message in an inner batch. ValueError for anything else."""
    found, position = [], 0
    while position < len(body):
        if len(body) - position < 22:
            raise ValueError("cut")
        size, _, _, flag, length = struct.unpack_from(">iiiii", body, position)
        if length < 0 or size < 22 + length or size > len(body) - position:
            raise ValueError("length")
        (properties,) = struct.unpack_from(">h", body, position + 20 + length)
        if properties != size - 22 - length:
            raise ValueError("properties")
        start = position + 20
        found.append((flag, body[start : start + length], body[start + length + 2 : position + size]))
        position += size
    return found


def encode(message: Message) -> bytes:
    """The bytes of an entry."""
    topic = struct.pack(">b" if message.version == 1 else ">h", len(message.topic)) + message.topic
    rest = b"".join(
        [
            struct.pack(">I", V1 if message.version == 1 else V2),
            struct.pack(
                ">iiiqqiq", crc(message.body), message.queue_id, message.flag, message.queue_offset, message.physical_offset,
                message.sys_flag, message.born,
            ),
            message.born_host,
            struct.pack(">q", message.stored),
            message.store_host,
            struct.pack(">iqi", message.reconsumed, message.prepared, len(message.body)),
            message.body,
            topic,
            struct.pack(">h", len(message.properties)),
            message.properties,
        ]
    )  # fmt: skip
    return struct.pack(">i", len(rest) + 4) + rest


def java_hash(text: str) -> int:
    """String.hashCode, signed."""
    value = 0
    raw = text.encode("utf-16-be")
    for index in range(0, len(raw), 2):
        value = (31 * value + int.from_bytes(raw[index : index + 2], "big")) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def index_keys(message: Message) -> list[int]:
    """The hashes that a key index holds of a message, in order."""
    if message.sys_flag & 0xC == 0xC:
        return []
    topic, shown = message.topic.decode(), message.shown
    keys = [shown[b"UNIQ_KEY"].decode()] if b"UNIQ_KEY" in shown else []
    keys += [piece for piece in shown.get(b"KEYS", b"").decode().split(" ") if piece]
    hashes = (java_hash(f"{topic}#{key}") for key in keys)
    return [0 if value == -(1 << 31) else abs(value) for value in hashes]


def units(data: bytes) -> list[tuple[int, int, int]]:
    """Address, size and tag hash of each unit of a plain queue, to the first that points to nothing."""
    found = []
    for position in range(0, len(data) - 19, 20):
        address, size, tag = struct.unpack_from(">qiq", data, position)
        if address < 0 or size <= 0:
            break
        found.append((address, size, tag))
    return found


def batch_units(data: bytes) -> list[tuple[int, int, int, int, int, int]]:
    """Address, size, tag hash, store time, first offset and messages of each unit of a batch queue, to the first that points to nothing."""
    found = []
    for position in range(0, len(data) - 45, 46):
        unit = struct.unpack_from(">qiqqqh", data, position)
        address, size, _, _, base, count = unit
        if address < 0 or size <= 0 or base < 0 or count <= 0:
            break
        found.append(unit)
    return found


def ext_units(data: bytes) -> list[tuple[int, int, int]]:
    """Size, tag hash and store time of each unit of an ext file, to its end mark, its zeros or a unit that is cut."""
    found, position = [], 0
    while len(data) - position >= 20:
        size, tag, stored = struct.unpack_from(">hqq", data, position)
        if size < 20 or len(data) - position < size:
            break
        found.append((size, tag, stored))
        position += size
    return found


def timer_units(data: bytes) -> list[tuple[int, int, int, int, int, int, int]]:
    """Previous position, magic, write time, delay, address, size and topic hash of each unit of a timer log, to the first other bytes."""
    found = []
    for position in range(0, len(data) - 51, 52):
        size, *unit = struct.unpack_from(">iqiqiqii", data, position)
        if size != 52 or unit[1] & 0xFFFFFFFF == BLANK:
            break
        found.append(tuple(unit))
    return found


def wheel_slots(data: bytes) -> list[tuple[int, int, int, int, int, int]]:
    """Position, time in steps, first and last position, count and magic of each slot that was ever used."""
    slots = [(position, *struct.unpack_from(">qqqii", data, position)) for position in range(0, len(data) - 31, 32)]
    return [slot for slot in slots if any(slot[1:])]
