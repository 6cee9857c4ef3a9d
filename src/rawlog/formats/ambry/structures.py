"""The small structures of a store: tokens, descriptor, cleanup token, compaction log.

Each is read by one function, which tells both the values and, through its cursor, every field with its bytes for `explain`.
Authority: StoreFindToken, StoreDescriptor, PersistentIndex's HardDeleter, CompactionLog, RemoteTokenTracker.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rawlog.formats.ambry import keys
from rawlog.formats.ambry.keys import order
from rawlog.formats.ambry.layouts import (
    BLOB_TYPES,
    CRC_SIZE,
    ENVELOPE,
    KEYS,
    KIND_OF_UPDATE,
    LONGEST_NAME,
    METADATA_V2,
    METADATA_V3,
    NONE,
    ORIGINAL_SIZE,
    Kind,
)
from rawlog.io.checksums import crc32
from rawlog.io.compression import decompress
from rawlog.model.errors import CorruptError, DataError, LimitError, TruncatedError, UnsupportedError
from rawlog.model.explain import Node, milliseconds
from rawlog.model.format import File
from rawlog.model.frames import Bytes, Frames
from rawlog.model.status import Status
from rawlog.model.text import java_text

if TYPE_CHECKING:
    import pyarrow as pa


TOKEN_TYPES = ("Uninitialized", "JournalBased", "IndexBased")
PHASES = ("PREPARE", "COPY", "COMMIT", "CLEANUP", "DONE")
_SIZES = {"i8": 1, "i16": 2, "i32": 4, "i64": 8}


class Cursor:
    """A place in bytes that moves on with every field read, and remembers them all as nodes."""

    def __init__(self, data: bytes, position: int = 0, base: int = 0) -> None:
        self.data, self.position, self.base = data, position, base
        self.nodes: list[Node] = []

    @property
    def left(self) -> int:
        return len(self.data) - self.position

    def take(self, size: int, name: str) -> bytes:
        """The next bytes. TruncatedError if they are not there, CorruptError for an invalid size."""
        if size < 0:
            raise CorruptError(f"{name} of {size} bytes", position=self.base + self.position, field=name, found=size)
        if self.left < size:
            raise TruncatedError(
                f"{name} of {size:,} bytes, {self.left:,} are left", position=self.base + self.position, field=name
            )
        piece = self.data[self.position : self.position + size]
        self.position += size
        return piece

    def _add(self, raw: bytes, name: str, type: str, value: Any, meaning: str = "") -> None:
        self.nodes.append(
            Node(self.base + self.position - len(raw), len(raw), name, type, value, meaning, raw.hex(" "))
        )

    def number(self, name: str, type: str, meaning: str | Callable[[int], str] = "") -> int:
        raw = self.take(_SIZES[type], name)
        value = int.from_bytes(raw, "big", signed=True)
        self._add(raw, name, f"int{len(raw) * 8}", value, meaning if isinstance(meaning, str) else meaning(value))
        return value

    def version(self, supported: tuple[int, ...], name: str = "version") -> int:
        value = self.number(name, "i16")
        if value not in supported:
            raise UnsupportedError(
                f"{name} {value}, {' or '.join(map(str, supported))} expected",
                position=self.base + self.position - 2,
                field=name,
                expected=supported,
                found=value,
            )
        return value

    def raw(self, name: str, size: int, type: str = "bytes", meaning: str = "") -> bytes:
        piece = self.take(size, name)
        self._add(piece, name, type, piece, meaning)
        return piece

    def text(self, name: str, meaning: str = "") -> str:
        size = self.number(f"{name} size", "i32")
        piece = self.take(size, name)
        value = java_text(piece)
        self._add(piece, name, "text", value, meaning)
        return value

    def key(self, name: str = "key") -> bytes:
        try:
            key = keys.parse(self.data, self.position)
        except CorruptError as error:
            error.position = self.base + self.position
            raise
        with self.group(name, f"{key.text}, uuid {key.uuid}"):
            layout = KEYS[key.version]
            for item in layout.fields:
                if item.name == "uuid":
                    self._add(self.take(item.size, "uuid"), "uuid", "bytes", key.uuid)
                elif item.name == "flags":
                    self._flags(key)
                else:
                    self.number(item.name, f"i{item.size * 8}", item.note)
            if key.version < 6:
                piece = self.take(len(key.raw) - layout.size, "uuid")
                self._add(piece, "uuid", "text", key.uuid)
        return key.raw

    def _flags(self, key: keys.Key) -> None:
        parts = [key.id_type if key.version >= 3 else "ignored in V2"]
        if key.is_encrypted:
            parts.append("encrypted")
        if key.data_type:
            parts.append(key.data_type)
        if key.version == 7:
            parts.append("NON_AMBRY" if key.flags & 0x80 else "AMBRY")
        self._add(self.take(1, "flags"), "flags", "uint8", key.flags, ", ".join(parts))

    def crc(self, start: int = 0) -> bool:
        """The checksum field of everything from `start` to here; whether it is right."""
        computed = crc32(self.data[start : self.position])
        raw = self.take(CRC_SIZE, "crc")
        stored = int.from_bytes(raw, "big")
        right = stored == computed
        covers = (self.base + start, self.base + self.position - CRC_SIZE)
        self._add(raw, "crc", "crc32", stored, "right" if right else f"WRONG, {computed:016x} expected")
        self.nodes[-1].covers = covers
        return right

    @contextlib.contextmanager
    def group(self, name: str, meaning: str = "") -> Iterator[Node]:
        """The fields read inside become children of one node."""
        outer, start = self.nodes, self.position
        node = Node(self.base + start, 0, name, meaning=meaning)
        outer.append(node)
        self.nodes = node.children
        try:
            yield node
        finally:
            self.nodes = outer
            node.size = self.position - start


@dataclass(frozen=True, slots=True)
class Offset:
    """A place in the log: the name of a segment and a position in it."""

    segment: str
    position: int


def read_offset(cursor: Cursor, name: str = "offset") -> Offset:
    """A place in the log."""
    with cursor.group(name):
        cursor.version((0,))
        return Offset(cursor.text("segment"), cursor.number("offset", "i64"))


@dataclass(slots=True)
class Token:
    """How far a reader of the store has come."""

    version: int
    type: str = TOKEN_TYPES[0]
    incarnation_id: str | None = None
    session_id: str | None = None
    offset: Offset | None = None
    inclusive: bool | None = None
    key: bytes | None = None
    reset_key: bytes | None = None


def read_token(cursor: Cursor, name: str = "token") -> Token:
    """A StoreFindToken of version 0 to 3."""
    with cursor.group(name) as node:
        token = Token(cursor.version((0, 1, 2, 3)))
        if token.version == 0:
            _read_token_v0(cursor, token)
        else:
            if token.version == 1:
                token.session_id = cursor.text("session id")
            number = cursor.number("type", "i16", lambda value: TOKEN_TYPES[value] if 0 <= value < 3 else "unknown")
            if not 0 <= number < len(TOKEN_TYPES):
                raise CorruptError(f"token type {number}, 0 to 2 expected", position=cursor.base + cursor.position - 2)
            token.type = TOKEN_TYPES[number]
            if number:
                _read_token_body(cursor, token, journal=number == 1)
        node.meaning = token.type
        return token


def _read_token_v0(cursor: Cursor, token: Token) -> None:
    token.session_id = cursor.text("session id")
    journal = cursor.number("journal offset", "i64", "-1 none")
    index = cursor.number("index start offset", "i64", "-1 none")
    if index != NONE:
        token.type, token.offset, token.key = TOKEN_TYPES[2], Offset("", index), cursor.key()
    elif journal != NONE:
        token.type, token.offset = TOKEN_TYPES[1], Offset("", journal)


def _read_token_body(cursor: Cursor, token: Token, *, journal: bool) -> None:
    if token.version >= 2:
        token.incarnation_id = cursor.text("incarnation id")
        token.session_id = cursor.text("session id")
    token.offset = read_offset(cursor)
    if not journal:
        token.key = cursor.key()
    elif token.version >= 2:
        token.inclusive = cursor.number("inclusive", "i8") == 1
    if token.version >= 3 and cursor.number("has reset key", "i8") == 1:
        token.reset_key = cursor.key("reset key")
        cursor.number("reset key type", "i16", kind_name)
        cursor.number("reset key life version", "i16")


def kind_name(number: int) -> str:
    """The name of a kind in an index file."""
    return Kind(number).name if 0 <= number < len(Kind) else "unknown"


def update_name(number: int) -> str:
    """The name of a kind in an update record."""
    return KIND_OF_UPDATE[number].name if 0 <= number < len(KIND_OF_UPDATE) else "unknown"


@dataclass(slots=True)
class Descriptor:
    """Who a store is."""

    incarnation_id: str
    crc_ok: bool = True


def read_descriptor(cursor: Cursor) -> Descriptor:
    """`StoreDescriptor`."""
    cursor.version((0,))
    descriptor = Descriptor(cursor.text("incarnation id"))
    descriptor.crc_ok = cursor.crc()
    return descriptor


@dataclass(slots=True)
class CleanupToken:
    """How far hard delete has come, and the blobs that it was about to zero."""

    start: Token
    end: Token
    paused: bool = False
    pending: list[bytes] = field(default_factory=list)
    crc_ok: bool = True


def read_cleanup_token(cursor: Cursor) -> CleanupToken:
    """`cleanuptoken`."""
    version = cursor.version((0, 1))
    token = CleanupToken(read_token(cursor, "start token"), read_token(cursor, "end token"))
    if version == 1:
        token.paused = cursor.number("paused", "i8") == 1
    count = cursor.number("count", "i32", "blobs about to be zeroed")
    for _ in range(_credible(cursor, count)):
        with cursor.group("blob read options"):
            if cursor.version((0, 1)) == 1:
                read_offset(cursor)
            else:
                cursor.number("offset", "i64")
            cursor.number("message size", "i64")
            cursor.number("expires at", "i64", "milliseconds, -1 never")
            token.pending.append(cursor.key())
    for _ in range(count):
        with cursor.group("recovery info"):
            cursor.number("info size", "i32")
            cursor.number("header version", "i16")
            cursor.number("user metadata version", "i16")
            cursor.number("user metadata size", "i32")
            if cursor.number("blob version", "i16") >= 2:
                cursor.number("blob type", "i16")
            cursor.number("blob size", "i64")
            cursor.key()
    token.crc_ok = cursor.crc()
    return token


def _credible(cursor: Cursor, count: int) -> int:
    if not 0 <= count <= cursor.left:
        raise CorruptError(f"count {count:,} in {cursor.left:,} bytes", position=cursor.base + cursor.position - 4)
    return count


@dataclass(slots=True)
class Cycle:
    """One round of a compaction: the segments it replaces and how far it came."""

    reference_time: int
    segments: list[str]
    times: tuple[int, int, int, int]

    @property
    def phase(self) -> str:
        for number, time in enumerate(self.times):
            if time == NONE:
                return PHASES[number]
        return PHASES[-1]


@dataclass(slots=True)
class Compaction:
    """A compaction log."""

    start_time: int
    current: int
    cycles: list[Cycle] = field(default_factory=list)
    crc_ok: bool = True

    @property
    def phase(self) -> str:
        return self.cycles[self.current].phase if 0 <= self.current < len(self.cycles) else PHASES[-1]

    @property
    def segments(self) -> list[str]:
        """The segments that the current cycle replaces."""
        return self.cycles[self.current].segments if 0 <= self.current < len(self.cycles) else []


def read_compaction(cursor: Cursor) -> Compaction:
    """`<store>_compactionLog`, version 0 to 2."""
    version = cursor.version((0, 1, 2))
    start = cursor.number("start time", "i64", milliseconds)
    if version >= 1 and cursor.number("has start offset", "i8") == 1:
        read_offset(cursor, "start offset of the last index segment")
    compaction = Compaction(start, cursor.number("current cycle", "i32"))
    for number in range(_credible(cursor, cursor.number("cycles", "i32"))):
        with cursor.group(f"cycle {number}") as node:
            compaction.cycles.append(_read_cycle(cursor))
            node.meaning = compaction.cycles[-1].phase
    if version >= 2:
        for _ in range(_credible(cursor, cursor.number("offsets", "i32", "before and after, for tokens"))):
            read_offset(cursor, "before")
            read_offset(cursor, "after")
    compaction.crc_ok = cursor.crc()
    return compaction


def _read_cycle(cursor: Cursor) -> Cycle:
    with cursor.group("details"):
        version = cursor.version((0, 1))
        reference = cursor.number("reference time", "i64", milliseconds)
        if version == 1:
            cursor.number("is full range", "i8")
        count = _credible(cursor, cursor.number("segments", "i32"))
        names = [cursor.text("segment") for _ in range(count)]
    times = tuple(
        cursor.number(name, "i64", "milliseconds, -1 not yet")
        for name in ("copy start", "commit start", "cleanup start", "cycle end")
    )
    if cursor.number("has safe token", "i8") == 1:
        read_token(cursor, "safe token")
    return Cycle(reference, names, times)  # type: ignore[arg-type]


@dataclass(slots=True)
class Tracker:
    """The last tokens seen from peers, by host and replica path."""

    tokens: list[tuple[str, Token]] = field(default_factory=list)
    crc_ok: bool = True


def read_tracker(cursor: Cursor) -> Tracker:
    """`remoteTokenTracker`: entries until the checksum is all that is left."""
    cursor.version((0,))
    tracker = Tracker()
    while cursor.left > CRC_SIZE:
        with cursor.group("peer"):
            name = cursor.text("host and replica path")
            cursor.number("timestamp", "i64", milliseconds)
            tracker.tokens.append((name, read_token(cursor)))
    tracker.crc_ok = cursor.crc()
    return tracker


def read_replica_tokens(cursor: Cursor) -> Tracker:
    """`replicaTokens` of a disk: how far the replicas on it have read their peers."""
    version = cursor.version((0, 1))
    tracker = Tracker()
    while cursor.left > CRC_SIZE:
        with cursor.group("replica"):
            cursor.version((1,), "partition version")
            number = cursor.number("partition", "i64")
            host, path = cursor.text("host"), cursor.text("replica path")
            cursor.number("port", "i32")
            cursor.number("total bytes read", "i64")
            if version == 1:
                cursor.number("replica type", "i16", "0 disk, 1 cloud")
            tracker.tokens.append((f"{number} {host}:{path}", read_token(cursor)))
    tracker.crc_ok = cursor.crc()
    return tracker


# The same as formats: each file is one frame, sound to its checksum or damaged ---------------------------------------------


class Whole:
    """A format whose file is one structure, read by one function."""

    def __init__(self, name: str, read: Callable[[Cursor], Any]) -> None:
        self.name, self.read = name, read

    def scan(self, data: Bytes, kind: int) -> Frames:
        """One frame if the structure is whole; TRUNCATED if it is not; damage if it is invalid or its checksum is wrong."""
        none = np.empty(0, np.int64)
        if not data.size:
            return Frames(data, none, none, 0, Status.OK)
        cursor = Cursor(data.tobytes())
        try:
            structure = self.read(cursor)
        except TruncatedError:
            return Frames(data, none, none, 0, Status.TRUNCATED)
        except DataError as error:
            wrong_version = error.field is not None and "version" in error.field
            return Frames(data, none, none, 0, Status.BAD_MAGIC if wrong_version else Status.BAD_VALUE)
        if not structure.crc_ok:
            return Frames(data, none, none, 0, Status.BAD_CRC)
        if cursor.left:
            return Frames(data, none, none, 0, Status.TRAILING)
        return Frames(data, np.zeros(1, np.int64), np.array([cursor.position]), cursor.position, Status.OK)

    def fault(self, frames: Frames) -> DataError:
        """What is wrong with the file."""
        cursor = Cursor(frames.data.tobytes())
        try:
            structure = self.read(cursor)
        except DataError as error:
            return error
        if not structure.crc_ok:
            return CorruptError(f"checksum of the {self.name} does not match", position=0, field="crc")
        return CorruptError(f"{cursor.left:,} bytes after the {self.name}", position=0)

    def explain(self, frames: Frames, file: File) -> list[Node]:
        """Every field."""
        cursor = Cursor(frames.data[: int(frames.stops[0])].tobytes(), base=frames.base)
        self.read(cursor)
        return [Node(frames.base, cursor.position, self.name, children=cursor.nodes)]


DESCRIPTOR = Whole("store descriptor", read_descriptor)
CLEANUP = Whole("cleanup token", read_cleanup_token)
COMPACTION = Whole("compaction log", read_compaction)
TRACKER = Whole("remote token tracker", read_tracker)
REPLICA_TOKENS = Whole("replica tokens", read_replica_tokens)


# ----------------------------------------------------------------------------------------------------------------------
# What the content of a blob record may be beyond plain bytes: a list of chunks, or an envelope round compressed bytes.


ALGORITHMS = ("LZ4", "ZSTD")
ENVELOPE_VERSION = 1
LZ4_RATIO = 255
"""The most bytes that one byte of an LZ4 block expands to."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a blob: the key it is stored under, and its size."""

    key: bytes
    size: int


@dataclass(frozen=True, slots=True)
class Metadata:
    """The content of a metadata blob."""

    version: int
    total_size: int
    chunks: tuple[Chunk, ...]
    chunk_size: int | None = None


def read_metadata(cursor: Cursor) -> Metadata:
    """Metadata content of version 2 or 3. DataError for anything else."""
    start = cursor.base + cursor.position
    version = cursor.version((2, 3))
    chunks = []
    chunk_size: int | None = None
    if version == 2:
        chunk_size, total = cursor.number("chunk size", "i32"), cursor.number("total size", "i64")
        if chunk_size <= 0 or total <= 0:
            raise CorruptError(f"{total:,} bytes in chunks of {chunk_size:,}", position=start, layout=METADATA_V2.name)
        for number in range(_bounded(-(-total // chunk_size), cursor)):
            size = min(chunk_size, total - number * chunk_size)
            chunks.append(Chunk(cursor.key(f"chunk {number}"), size))
    else:
        total, count = cursor.number("total size", "i64"), cursor.number("count", "i32")
        for number in range(_bounded(count, cursor)):
            with cursor.group(f"chunk {number}"):
                size = cursor.number("size", "i64")
                chunks.append(Chunk(cursor.key(), size))
        if sum(chunk.size for chunk in chunks) != total or any(chunk.size < 1 for chunk in chunks):
            raise CorruptError(
                f"chunks of {sum(chunk.size for chunk in chunks):,} bytes, {total:,} expected",
                position=start,
                layout=METADATA_V3.name,
                field="total_size",
            )
    if not chunks:
        raise CorruptError("metadata without chunks", position=start)
    if cursor.left:
        raise CorruptError(f"{cursor.left:,} bytes after the chunks", position=start)
    return Metadata(version, total, tuple(chunks), chunk_size)


def _bounded(count: int, cursor: Cursor) -> int:
    if not 0 <= count <= cursor.left:
        raise CorruptError(f"{count:,} chunks in {cursor.left:,} bytes", position=cursor.base + cursor.position)
    return count


def parse_metadata(content: bytes) -> Metadata:
    """The chunks of a metadata blob. DataError for other content."""
    return read_metadata(Cursor(content))


def open_envelope(content: bytes, limit: int = 1 << 28) -> tuple[str, bytes]:
    """The algorithm and the plain bytes of compressed content. DataError if the envelope is invalid or does not open; LimitError if it
    declares more than `limit` bytes.
    """
    algorithm, size, start = read_envelope(content)
    if size > limit:
        raise LimitError(
            f"{size:,} bytes when decompressed, more than the limit of {limit:,}; --max-decompressed raises it",
            position=0,
            expected=limit,
            found=size,
        )
    plain = _inflate(algorithm, content[start:], size)
    if len(plain) != size:
        raise CorruptError(f"decompressed to {len(plain):,} bytes, {size:,} expected", position=0, found=len(plain))
    return algorithm, plain


def read_envelope(content: bytes) -> tuple[str, int, int]:
    """The algorithm, the plain size and where the compressed bytes begin. CorruptError if it is no envelope."""
    name_size = content[ENVELOPE.at("name_size")] if len(content) >= ENVELOPE.size else 0
    start = ENVELOPE.size + name_size + ORIGINAL_SIZE
    if not 1 <= name_size <= LONGEST_NAME or content[0] != ENVELOPE_VERSION or len(content) < start:
        raise CorruptError("no compression envelope", position=0, layout=ENVELOPE.name)
    name = content[ENVELOPE.size : ENVELOPE.size + name_size]
    size = int.from_bytes(content[start - ORIGINAL_SIZE : start], "big", signed=True)
    if not name.isascii() or name.decode() not in ALGORITHMS:
        raise CorruptError(
            f"compression {name!r}, {' or '.join(ALGORITHMS)} expected", position=ENVELOPE.size, found=name
        )
    if size < 0:
        raise CorruptError(f"{size} bytes when decompressed", position=start - ORIGINAL_SIZE, found=size)
    return name.decode(), size, start


def _inflate(algorithm: str, data: bytes, size: int) -> bytes:
    if algorithm == "ZSTD":
        return bytes(decompress("zstd", data, limit=size))
    import lz4.block

    if size > LZ4_RATIO * len(data):
        raise CorruptError(f"LZ4 block: {len(data):,} bytes declare {size:,}", position=0)
    try:
        return bytes(lz4.block.decompress(data, uncompressed_size=size)) if size else b""
    except lz4.block.LZ4BlockError as error:
        raise CorruptError(f"LZ4 block: {error}", position=0) from None


# Blobs and their chunks among rows of `records` ----------------------------------------------------------------------------


def copy_ids(batch: pa.RecordBatch) -> pa.Array:
    """The blob of each row, as bytes that are equal for equal blobs."""
    import pyarrow as pa

    return pa.array([None if key is None else order(key) for key in batch.column("key").to_pylist()], pa.binary())


def part_ids(batch: pa.RecordBatch) -> pa.Array:
    """The ids of the chunks of large blobs; those of encrypted blobs are unknown."""
    import pyarrow as pa

    ids = []
    for headers, value in zip(batch.column("headers").to_pylist(), batch.column("value").to_pylist(), strict=True):
        fields = {header["key"]: header["value"] for header in headers or ()}
        if value is None or fields.get("blob_type") != BLOB_TYPES[1].encode():
            continue
        try:
            plain = open_envelope(value)[1] if fields.get("is_compressed") == b"true" else value
            ids += [order(chunk.key) for chunk in parse_metadata(plain).chunks]
        except DataError:
            continue  # zeros of one that is erased already, or encrypted
    return pa.array(ids, pa.binary())
