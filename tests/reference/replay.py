"""kafka-replay recordings, plainly: what the real tool reads from the same bytes, and a verdict on how the file ends.

Written from specs/kafka-replay.md. Imports nothing of rawlog.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

HEADER_SIZE = 20
LIMIT = 104_857_600  # the largest key or value that the real reader takes
NO_TIME = -62_135_596_800  # what the recorder stores for a record without a timestamp
TIME_V0 = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", re.ASCII)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIXED_SIZE = {0: 35, 1: 16, 2: 24}  # bytes of an entry before its key and value


@dataclass(frozen=True)
class Entry:
    """One message. `time` is whole seconds in v1 and v2; in v0 microseconds, or None if the text is no time."""

    number: int
    position: int
    size: int
    time: int | None
    key: bytes | None  # None if the stored size is 0: the format cannot say "empty"
    value: bytes

    def time_us(self, version: int) -> int | None:
        """Microseconds since 1970 for any version; may be outside int64."""
        return self.time if version == 0 or self.time is None else self.time * 1_000_000


@dataclass(frozen=True)
class Verdict:
    """How reading ended.

    kind: `clean`; `empty` (0 bytes: good in v0, refused by later tools); `truncated-header`; `unknown-version`;
    `truncated-tail` (position, and `missing` bytes as far as is known); `trailing-zeros` (position of the first
    zero byte that is no part of a real entry); `bad-length` (position of the entry, field, value).
    """

    kind: str
    position: int = 0
    field: str | None = None
    value: int | None = None
    missing: int | None = None


def version_of(data: bytes) -> int | None:
    """The version that the first bytes tell, None if they tell none."""
    if TIME_V0.match(data):
        return 0
    if len(data) >= 4:
        (version,) = struct.unpack(">i", data[:4])
        if version in (1, 2):
            return int(version)
    return None


def decode(data: bytes, version: int | None = None) -> tuple[list[Entry], int, Verdict]:
    """Every message that the real tool would read, the end of the last one, and how it ended.

    `version` 0 forces the headerless reading (only old tools do it, and they take any text for a time).
    """
    if version != 0:
        if not data:
            return [], 0, Verdict("empty")
        found = version_of(data)
        if found is None:
            if len(data) < HEADER_SIZE:
                return [], 0, Verdict("truncated-header", missing=HEADER_SIZE - len(data))
            return [], 0, Verdict("unknown-version", 0, "version", struct.unpack(">i", data[:4])[0])
        if found != 0 and len(data) < HEADER_SIZE:
            return [], 0, Verdict("truncated-header", missing=HEADER_SIZE - len(data))
        version = found

    entries: list[Entry] = []
    position = 0 if version == 0 else HEADER_SIZE
    while position < len(data):
        rest = data[position:]
        key_size, value_size, bad = _sizes(version, rest)
        if bad:
            field, value = bad
            return entries, position, Verdict("bad-length", position, field, value)
        if value_size is None or key_size is None or len(rest) < FIXED_SIZE[version] + key_size + value_size:
            break
        fixed = FIXED_SIZE[version]
        size = fixed + key_size + value_size
        entries.append(
            Entry(
                number=len(entries),
                position=position,
                size=size,
                time=time_v0(rest[:27]) if version == 0 else struct.unpack(">q", rest[:8])[0],
                key=rest[fixed : fixed + key_size] or None,
                value=rest[fixed + key_size : size],
            )
        )
        position += size

    zeros = _trailing_zeros(data, entries, position, version)
    if zeros is not None:
        return entries, position, Verdict("trailing-zeros", zeros)
    if position < len(data):
        needed = FIXED_SIZE[version] + (key_size or 0) + (value_size or 0)
        return entries, position, Verdict("truncated-tail", position, missing=needed - len(rest))
    return entries, position, Verdict("clean", position)


def _sizes(version: int, rest: bytes) -> tuple[int | None, int | None, tuple[str, int] | None]:
    """Key size, value size (None: not in the bytes), and the first bad one; each is judged as soon as it is whole."""
    sizes: dict[str, int | None] = {"key": 0, "value": None}
    fields = {0: [("value", 27)], 1: [("value", 8)], 2: [("key", 8), ("value", 16)]}[version]
    if version == 2:
        sizes["key"] = None
    for field, at in fields:
        if len(rest) < at + 8:
            break
        (size,) = struct.unpack(">q", rest[at : at + 8])
        if not 0 <= size <= LIMIT:
            return None, None, (field, size)
        sizes[field] = size
    return sizes["key"], sizes["value"], None


def _trailing_zeros(data: bytes, entries: list[Entry], reached: int, version: int) -> int | None:
    """Where a tail of nothing but zeros begins: false messages, and the rest that is too short for one.

    In v1 and v2 a few zeros alone prove nothing: every real time begins with four of them. A whole time of zeros does.
    """
    if data[reached:].strip(b"\0"):
        return None
    start = reached
    for entry in reversed(entries):
        if data[entry.position : entry.position + entry.size].strip(b"\0"):
            break
        start = entry.position
    enough = 1 if version == 0 else 8
    return start if len(data) - start >= enough else None


def time_v0(text: bytes) -> int | None:
    """Microseconds since 1970 of `2026-02-02T10:15:30.123456Z`; None if it is not such a time."""
    if not TIME_V0.fullmatch(text):
        return None
    try:
        when = datetime.strptime(text.decode("ascii"), "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
    except ValueError:
        return None
    return (when - EPOCH) // timedelta(microseconds=1)


def encode(version: int, entries: list[tuple[int, bytes | None, bytes | None]]) -> bytes:
    """A recording of (time, key, value), as the tool of that version writes it.

    Time as in `Entry.time`. None and empty become one, as in the real tool; versions 0 and 1 drop the key.
    """
    out = b"" if version == 0 else struct.pack(">i", version) + bytes(16)
    for time, key, value in entries:
        key, value = key or b"", value or b""
        if version == 0:
            when = EPOCH + timedelta(microseconds=time)
            out += f"{when:%Y-%m-%dT%H:%M:%S}.{when.microsecond:06d}Z".encode().rjust(27, b"0")
            out += struct.pack(">q", len(value)) + value
        elif version == 1:
            out += struct.pack(">qq", time, len(value)) + value
        else:
            out += struct.pack(">qqq", time, len(key), len(value)) + key + value
    return out


def as_go_prints(data: bytes) -> str:
    """Text as Go's JSON writes it: one U+FFFD for each byte that is not UTF-8 (Python: one for each sequence)."""
    text = ""
    while data:
        for size in (1, 2, 3, 4):
            try:
                text += data[:size].decode("utf-8")
            except UnicodeDecodeError:
                continue
            break
        else:
            text, size = text + "\ufffd", 1
        data = data[size:]
    return text
