"""Journals in plain Python, slow and obvious: the system that writes them, and a decoder. Imports nothing from rawlog.

`python -m tests.sixth.reference` writes the golden files again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

HEADER = struct.Struct(">4siqq")
ENTRY = struct.Struct(">IIiiqq")
POSITION = struct.Struct(">qq")
MAGIC = 0x4A454E54
LARGEST = 1_000_000
NO_TIME = -(1 << 63)


class Entry(NamedTuple):
    number: int
    key: bytes | None
    value: bytes | None
    timestamp: int | None = 1_700_000_000_000_000


def crc32c(data: bytes) -> int:
    """CRC-32C, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def encode(entry: Entry) -> bytes:
    key_size, value_size = (-1 if one is None else len(one) for one in (entry.key, entry.value))
    time = NO_TIME if entry.timestamp is None else entry.timestamp
    rest = struct.pack(">iiqq", key_size, value_size, entry.number, time) + (entry.key or b"") + (entry.value or b"")
    made = struct.pack(">II", MAGIC, crc32c(rest)) + rest
    return made + bytes(-len(made) % 8)


def segment(entries: Iterable[Entry], first: int = 0, previous_stop: int = -1) -> bytes:
    return HEADER.pack(b"JRNL", 1, first, previous_stop) + b"".join(map(encode, entries))


def index(data: bytes) -> bytes:
    """The index of a segment."""
    return b"".join(POSITION.pack(row["number"], row["position"]) for row in decode(data) if row["number"] % 8 == 0)


def decode(data: bytes) -> list[dict[str, Any]]:
    """The entries before the first damage, as rows of `journal.entries`; times in microseconds."""
    rows: list[dict[str, Any]] = []
    if len(data) < HEADER.size or HEADER.unpack_from(data)[:2] != (b"JRNL", 1):
        return rows
    at = HEADER.size
    while len(data) - at >= ENTRY.size:
        magic, crc, key_size, value_size, number, time = ENTRY.unpack_from(data, at)
        if magic != MAGIC or not -1 <= key_size <= LARGEST or not -1 <= value_size <= LARGEST:
            break
        key_at = at + ENTRY.size
        value_at = key_at + max(key_size, 0)
        end = value_at + max(value_size, 0)
        size = -(-(end - at) // 8) * 8
        if at + size > len(data) or crc32c(data[at + 8 : end]) != crc:
            break
        key = None if key_size < 0 else data[key_at:value_at]
        value = None if value_size < 0 else data[value_at:end]
        when = None if time == NO_TIME else time
        row = {
            "position": at,
            "size": size,
            "number": number,
            "timestamp": when,
            "key": key,
            "value": value,
            "crc": crc,
        }
        rows.append(row)
        at += size
    return rows


def write(folder: Path, *segments: list[Entry]) -> Path:
    """A journal of these segments, as the system writes it."""
    folder.mkdir(parents=True)
    stop = -1
    for entries in segments:
        first = entries[0].number
        data = segment(entries, first, stop)
        (folder / f"{first:020d}.journal").write_bytes(data)
        (folder / f"{first:020d}.positions").write_bytes(index(data))
        stop = entries[-1].number + 1
    return folder


def orders() -> list[list[Entry]]:
    """The entries of the golden journal: null and empty keys and values, no time, skipped numbers, three segments."""
    odd = [Entry(0, b"a", b"first"), Entry(1, None, b"no key"), Entry(2, b"", b""), Entry(3, b"b", None, None)]
    first = [*odd, *(Entry(number, b"k%d" % (number % 3), b"v" * number) for number in range(4, 20))]
    second = [Entry(number, b"key", b"value %d" % number) for number in (20, 21, 24, 25, 32, 33)]
    return [first, second, [Entry(40, b"key", b"the last segment"), Entry(41, None, None, None)]]


GOLDEN = Path(__file__).parent / "golden"

if __name__ == "__main__":
    write(GOLDEN / "orders", *orders())
