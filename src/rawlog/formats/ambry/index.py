"""Index segments: the entries of a run of consecutive messages of one log segment, sorted by key.

Authority: IndexSegment and PersistentIndex, versions 0 to 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog.formats.ambry import Segment, layouts, segment_of, start_of
from rawlog.formats.ambry.kernels.blooms import add_spans, have_spans
from rawlog.formats.ambry.kernels.messages import key_sizes, write_entries
from rawlog.formats.ambry.keys import Identities, identities, uuid_bytes, uuid_spans
from rawlog.formats.ambry.keys import order as order_of
from rawlog.formats.ambry.layouts import (
    BLOOM_SPARE,
    BLOOM_TABLE,
    CRC_SIZE,
    INDEXES,
    NONE,
    RESET_KIND_SIZE,
    RESET_LIFE_SIZE,
    VALUES,
    Flag,
    Kind,
)
from rawlog.formats.ambry.structures import Cursor, Whole, kind_name
from rawlog.io.checksums import crc32
from rawlog.io.storage import Source
from rawlog.kernels import byte_view, columns
from rawlog.model.errors import (
    CorruptError,
    DataError,
    EncodeError,
    OptionError,
    RawlogError,
    TruncatedError,
    UnsupportedError,
)
from rawlog.model.explain import Node
from rawlog.model.finding import Rule
from rawlog.model.format import File, Origin, Want
from rawlog.model.frames import Bytes, Frames
from rawlog.model.status import Status

# ----------------------------------------------------------------------------------------------------------------------
# Bloom filters of index segments: which keys a segment may hold.
# Authority: com.github.ambry.utils.BloomFilter, which came from Cassandra with its MurmurHash3 whose last bytes are sign-extended.


LAYOUTS = (
    layouts.INDEX_V2,
    layouts.INDEX_V1,
    layouts.INDEX_V0,
    layouts.VALUE_V3,
    layouts.VALUE_V1,
    layouts.VALUE_V0,
)
WORD = 8


@dataclass(slots=True)
class Bloom:
    """A filter: how many bits a key sets, and the bits."""

    hash_count: int
    words: NDArray[np.uint64]
    crc_ok: bool = True

    @property
    def capacity(self) -> int:
        return int(self.words.size) * 64

    def add(self, item: bytes) -> None:
        """Add one item."""
        self.add_keys(np.frombuffer(item, np.uint8), np.zeros(1, np.int64), np.full(1, len(item), np.int64))

    def add_keys(self, data: Bytes, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        """Add items that are in `data`."""
        starts, sizes = _whole(starts), _whole(sizes)
        add_spans(byte_view(data), starts, sizes, self.hash_count, self.words.view(np.int64))

    def has(self, item: bytes) -> bool:
        """Whether the item may have been added; false is certain."""
        return bool(self.have(np.frombuffer(item, np.uint8), np.zeros(1, np.int64), np.full(1, len(item), np.int64))[0])

    def have(self, data: Bytes, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which items in `data` may have been added; false is certain."""
        out = np.empty(starts.size, np.bool_)
        starts, sizes = _whole(starts), _whole(sizes)
        have_spans(byte_view(data), starts, sizes, self.hash_count, self.words.view(np.int64), out)
        return out

    def have_keys(self, data: Bytes, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which keys may be there, by all their bytes or, as some stores have it, by their uuid alone."""
        return self.have(data, starts, sizes) | self.have(data, *uuid_spans(byte_view(data), starts, sizes))

    def has_key(self, raw: bytes) -> bool:
        """Whether a key may be there."""
        return self.has(raw) or self.has(uuid_bytes(raw))

    def encode(self) -> bytes:
        body = (
            self.hash_count.to_bytes(4, "big")
            + int(self.words.size).to_bytes(4, "big")
            + self.words.astype(">u8").tobytes()
        )
        return body + crc32(body).to_bytes(CRC_SIZE, "big")


def make(elements: int, probability: float = 0.01) -> Bloom:
    """An empty bloom filter, as large as Ambry's for so many keys. OptionError for a probability that is not in Ambry's table."""
    if probability not in BLOOM_TABLE:
        raise OptionError(f"bloom probability {probability}: one of {', '.join(map(str, BLOOM_TABLE))} expected")
    hash_count, per_element = BLOOM_TABLE[probability]
    return Bloom(hash_count, np.zeros(((elements * per_element + BLOOM_SPARE - 1) >> 6) + 1, np.uint64))


def read_bloom(cursor: Cursor) -> Bloom:
    """A bloom file. CorruptError for invalid numbers."""
    hash_count = cursor.number("hash_count", "i32", "bits set for a key")
    words = cursor.number("word_count", "i32", "words of 64 bits")
    if not 0 < hash_count <= 64 or words <= 0:
        raise CorruptError(f"{hash_count} hashes in {words} words", position=cursor.base, field="hash_count")
    raw = cursor.raw("words", words * WORD, "bits")
    return Bloom(hash_count, np.frombuffer(raw, ">u8").astype(np.uint64), cursor.crc())


def _whole(array: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.ascontiguousarray(array, np.int64)


class BloomSummary:
    """A bloom file as the one pass over it found it: the filter, None if the file is damaged."""

    rises = True

    def __init__(self, file: File, files: Sequence[File] = (), start: int = 0, stop: int | None = None) -> None:
        self.bloom: Bloom | None = None

    def see(self, frames: Frames) -> None:
        """Take in the file, which is one frame."""
        if len(frames):
            self.bloom = read_bloom(Cursor(frames.data.tobytes()))

    def close(self) -> BloomSummary:
        return self

    def merge(self, following: BloomSummary) -> BloomSummary:
        """A bloom is never cut; the frame is in one of the splits."""
        self.bloom = self.bloom or following.bloom
        return self


def sound_bloom(file: File, summary: object = None) -> Bloom | None:
    """The bloom in a file, if it can be read and its checksum is right; `summary` is what a pass over the file found."""
    if isinstance(summary, BloomSummary):
        return summary.bloom
    try:
        with Source(file.path) as source:
            bloom = read_bloom(Cursor(source.read(0, source.size)))
    except RawlogError:
        return None
    return bloom if bloom.crc_ok else None


KINDS = pa.array([kind.name for kind in sorted(Kind)])
VERSION_BITS = 8
Integers = NDArray[np.integer[Any]]
MAX_ENTRIES = 10_000
MAX_BYTES = 20 << 20
PROBABILITY = 0.01
LATEST = 4
#: The latest time that an index value holds.
LATEST_SECOND = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Header:
    """What precedes the entries."""

    version: int
    entry_size: int
    value_size: int
    log_end: int
    last_modified: int | None
    reset_key: bytes | None
    reset_kind: int | None
    reset_life: int | None
    size: int


def read_header(cursor: Cursor) -> Header:
    """The header of an index file. DataError if it is cut, of no known version, or contradicts itself."""
    version = cursor.version(tuple(INDEXES))
    layout = INDEXES[version]
    number = {
        item.name: cursor.number(item.name, f"i{item.size * 8}", item.note)
        for item in layout.fields
        if item.name != "version"
    }
    value_size = VALUES[version].size
    if number["value_size"] != value_size:
        raise CorruptError(
            f"value size {number['value_size']}, {value_size} expected in version {version}",
            position=layout.at("value_size"),
            layout=layout.name,
            field="value_size",
            expected=value_size,
            found=number["value_size"],
        )
    entry_size = number["entry_size"] if version >= 2 else number["key_size"] + value_size
    if not value_size < entry_size < 1 << 24:
        raise CorruptError(
            f"entry size {entry_size}", position=2, layout=layout.name, field="entry_size", found=entry_size
        )
    key = kind = life = None
    if version >= 1:
        key = cursor.key("reset key")
        kind = cursor.number("reset key type", "i16", kind_name)
        if version >= 4:
            life = cursor.number("reset key life version", "i16")
    assert RESET_KIND_SIZE == RESET_LIFE_SIZE == 2
    return Header(
        version,
        entry_size,
        value_size,
        number["log_end_offset"],
        number.get("last_modified"),
        key,
        kind,
        life,
        cursor.position,
    )


def begin(head: bytes, size: int) -> Origin:
    """Where the entries begin; the kind holds their version and size."""
    if size == 0:
        return Origin(0, 0)
    header = read_header(Cursor(head))
    body = size - header.size - CRC_SIZE
    if body < 0 or body % header.entry_size:
        raise TruncatedError(
            f"{max(body, 0):,} bytes of entries of {header.entry_size} bytes: the file is cut, or its header is wrong",
            position=header.size if header.size <= size else 0,
            layout=INDEXES[header.version].name,
            field="entry_size",
            found=header.entry_size,
        )
    return Origin(header.size, header.version | header.entry_size << VERSION_BITS)


def scan(data: Bytes, kind: int) -> Frames:
    """The whole entries of a window; the checksum after the last of them is not one."""
    size = kind >> VERSION_BITS
    if not size:
        none = np.empty(0, np.int64)
        return Frames(data, none, none, 0, Status.OK, kind)
    count = int(data.size) // size
    starts = np.arange(count, dtype=np.int64) * size
    left = int(data.size) - count * size
    return Frames(
        data, starts, starts + size, count * size, Status.OK if left in (0, CRC_SIZE) else Status.TRUNCATED, kind
    )


@dataclass(frozen=True, slots=True)
class Entries:
    """Entries of index files, one column per field. Key number i is `data[starts[i] : starts[i] + sizes[i]]`."""

    data: Bytes
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    size: Integers
    offset: Integers
    flags: Integers
    expires: Integers
    original_offset: Integers
    operation_time: Integers
    account_id: Integers
    container_id: Integers
    life_version: Integers

    @property
    def kind(self) -> NDArray[np.int64]:
        """DELETE if it has that flag, else UNDELETE, else TTL_UPDATE; PUT without any."""
        flags = self.flags
        return np.where(
            flags & Flag.DELETE,
            int(Kind.DELETE),
            np.where(
                flags & Flag.UNDELETE,
                int(Kind.UNDELETE),
                np.where(flags & Flag.TTL_UPDATE, int(Kind.TTL_UPDATE), int(Kind.PUT)),
            ),
        )

    def key(self, number: int) -> bytes:
        """The key of one entry."""
        at = int(self.starts[number])
        return self.data[at : at + int(self.sizes[number])].tobytes()

    @property
    def keys(self) -> list[bytes]:
        raw = self.data.tobytes()
        return [raw[at : at + size] for at, size in zip(self.starts.tolist(), self.sizes.tolist(), strict=True)]

    @property
    def identities(self) -> Identities:
        """Which blob each entry is of."""
        return identities(self.data, self.starts, self.sizes)

    @property
    def uuid_spans(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where the uuid alone is in each key, which blooms may be made of, and its size."""
        return uuid_spans(self.data, self.starts, self.sizes)

    def firsts(self, *file: Integers) -> NDArray[np.bool_]:
        """Which entries are the first of their blob, by place in the log: it is their key that an index file repeats. With the number of
        each entry's `file`: the first of their blob in their file.
        """
        identity = self.identities
        order = np.lexsort((self.offset, identity.low, identity.high, identity.group, *file))
        result = np.zeros(order.size, np.bool_)
        result[order] = identity.begins(order)
        for number in file:
            result[order] |= np.diff(number[order], prepend=-1) != 0
        return result

    def take(self, rows: Any) -> Entries:
        """Some of the entries."""
        columns = (getattr(self, field.name)[rows] for field in fields(self) if field.name != "data")
        return Entries(self.data, *columns)

    @classmethod
    def join(cls, parts: Sequence[Entries]) -> Entries:
        """The entries of several files one after the other."""
        if not parts:
            none = np.empty(0, np.int64)
            return cls(np.empty(0, np.uint8), *(none for _ in range(len(fields(cls)) - 1)))
        before = np.cumsum([0, *(part.data.size for part in parts[:-1])])
        columns = (
            np.concatenate([getattr(part, field.name) for part in parts])
            for field in fields(cls)
            if field.name not in ("data", "starts")
        )
        starts = np.concatenate([part.starts + size for part, size in zip(parts, before.tolist(), strict=True)])
        return cls(byte_view(np.concatenate([part.data for part in parts])), starts, *columns)

    def __len__(self) -> int:
        return int(self.starts.size)


def read_entries(frames: Frames) -> Entries:
    """The entries of frames. CorruptError at the first without a key."""
    version, entry_size = frames.kind & (1 << VERSION_BITS) - 1, frames.kind >> VERSION_BITS
    data = byte_view(frames.data)
    sizes = np.empty(len(frames), np.int64)
    bad, _, _ = key_sizes(data, np.ascontiguousarray(frames.starts), entry_size - VALUES[version].size, sizes)
    if bad < len(frames):
        at = int(frames.positions[bad])
        raise CorruptError("an entry without a key", position=at, field="key", expected="a blob id")
    raw = VALUES[version].take(frames.data, frames.starts + sizes)
    names = raw.dtype.names or ()

    def column(name: str, missing: int) -> NDArray[np.int64]:
        return raw[name].astype(np.int64) if name in names else np.full(len(frames), missing, np.int64)

    expires = column("expires_at", NONE)
    if version == 0:  # milliseconds; what seconds cannot hold is never
        expires = np.where((expires >= 0) & (expires // 1000 <= LATEST_SECOND), expires // 1000, NONE)
    return Entries(
        data,
        frames.starts,
        sizes,
        column("size", 0),
        column("offset", 0),
        column("flags", 0),
        np.where(expires < 0, NONE, expires),
        column("original_message_offset", NONE),
        column("operation_time", NONE),
        column("account_id", NONE),
        column("container_id", NONE),
        column("life_version", 0),
    )


def decode(frames: Frames, want: Want) -> Iterator[pa.RecordBatch]:
    """Entries as rows of `ambry.index`."""
    error: DataError | None = None
    whole = frames
    try:
        entries = read_entries(frames)
    except CorruptError as damage:
        error = damage
        frames = frames.slice(0, int(np.searchsorted(frames.positions, damage.position or 0)))
        entries = read_entries(frames)
    if len(frames):
        arrays: dict[str, pa.Array] = {}
        for column in want.table.columns:
            if column.name == "path":
                arrays["path"] = columns.constant(want.file.path, "string", len(frames))
            elif column.name == "key":
                arrays["key"] = columns.spans(entries.data, entries.starts, entries.sizes)
            elif column.name == "kind":
                arrays["kind"] = KINDS.take(pa.array(entries.kind))
            else:
                arrays[column.name] = columns.integers(
                    getattr(entries, _FIELD.get(column.name, column.name)), column.type
                )
        yield columns.batch(want.table, arrays, len(frames))
    if error is not None:
        raise error
    if whole.last:
        check_crc(want.file.path, int(whole.positions[-1]))


def check_crc(path: str, position: int) -> None:
    """CorruptError, at `position`, if an index file's closing checksum is not that of the bytes before it."""
    with Source(path) as source:
        raw = source.read(0, source.size)
    stored, computed = int.from_bytes(raw[-CRC_SIZE:], "big"), crc32(raw[:-CRC_SIZE])
    if stored != computed:
        raise CorruptError(
            f"checksum of the index {stored:016x}, {computed:016x} expected",
            position=position,
            field="crc",
            expected=f"{computed:016x}",
            found=f"{stored:016x}",
        )


_FIELD = {"position": "offset"}


@dataclass(slots=True)
class IndexFile:
    """An index file read whole."""

    path: str
    segment: Segment
    start: int
    header: Header
    entries: Entries
    crc_ok: bool

    @property
    def end(self) -> int:
        return self.header.log_end


def read_index(path: str) -> IndexFile:
    """A whole index file. DataError if it cannot be read; a wrong checksum is only noted."""
    with Source(path) as source:
        raw = source.read(0, source.size)
    try:
        return parse_index(path, raw)
    except DataError as error:
        raise error.at(path=path, format="ambry.index") from None


def parse_index(path: str, raw: bytes) -> IndexFile:
    """The index file that `raw` holds; the path tells its segment."""
    header = read_header(Cursor(raw))
    body = len(raw) - header.size - CRC_SIZE
    if body < 0 or body % header.entry_size:
        raise TruncatedError(f"{body:,} bytes of entries of {header.entry_size} each", position=header.size)
    data = np.frombuffer(raw, np.uint8)[header.size : header.size + body]
    entries = read_entries(scan(data, header.version | header.entry_size << VERSION_BITS))
    stored = int.from_bytes(raw[-CRC_SIZE:], "big")
    segment = segment_of(path)
    if segment is None:
        raise UnsupportedError("not the name of an index segment", path=path)
    return IndexFile(path, segment, start_of(path), header, entries, stored == crc32(raw[:-CRC_SIZE]))


class BloomFile(Whole):
    """A bloom file, which is one structure."""

    LAYOUTS = (layouts.BLOOM,)

    def summary(self, file: File, group: Sequence[File], start: int, stop: int | None) -> BloomSummary:
        """The pass over a bloom file."""
        return BloomSummary(file, group, start, stop)


BLOOM = BloomFile("bloom filter", read_bloom)


class IndexSummary:
    """An index file as the one pass over it found it: its bytes. It is small, and never cut."""

    rises = True

    def __init__(self, file: File, files: Sequence[File] = (), start: int = 0, stop: int | None = None) -> None:
        self.path, self.start = file.path, start
        self._pieces: list[bytes] = []
        #: The whole file; None if its header could not be read.
        self.raw: bytes | None = None

    def see(self, frames: Frames) -> None:
        """Take in a window of entries."""
        if not self._pieces and not self.start:
            with Source(self.path) as source:
                self._pieces.append(source.read(0, frames.base))
        end = frames.data.size if frames.last else frames.reached
        self._pieces.append(frames.data[:end].tobytes())

    def close(self) -> IndexSummary:
        """Put the windows together."""
        self.raw, self._pieces = b"".join(self._pieces) if self._pieces else None, []
        return self

    def merge(self, following: IndexSummary) -> IndexSummary:
        """Take in the split that follows."""
        if self.raw is not None:
            self.raw += following.raw or b""
        return self

    def index(self) -> IndexFile:
        """The index file. DataError if it cannot be read; a wrong checksum is only noted."""
        if self.raw is None:
            return read_index(self.path)
        try:
            return parse_index(self.path, self.raw)
        except DataError as error:
            raise error.at(path=self.path, format="ambry.index") from None


def explain_header(head: bytes, file: File) -> list[Node]:
    """The header of an index file."""
    if not head:
        return []
    cursor = Cursor(head)
    header = read_header(cursor)
    return [Node(0, header.size, INDEXES[header.version].name, children=cursor.nodes)]


def explain(frames: Frames, file: File) -> list[Node]:
    """One entry: key, value and padding."""
    version = frames.kind & (1 << VERSION_BITS) - 1
    start, stop = int(frames.starts[0]), int(frames.stops[0])
    cursor = Cursor(frames.data[start:stop].tobytes(), base=frames.base + start)
    cursor.key()
    layout = VALUES[version]
    with cursor.group("value"):
        for item in layout.fields:
            if item.type == "u1":
                cursor.raw(item.name, 1, "uint8", item.note)
            else:
                cursor.number(item.name, f"i{item.size * 8}", item.note)
    if cursor.left:
        cursor.raw("padding", cursor.left, meaning="up to the size of the longest entry")
    nodes = [Node(frames.base + start, stop - start, f"{layout.name}, number {frames.first}", children=cursor.nodes)]
    if frames.last and frames.data.size - stop == CRC_SIZE:
        closing = frames.data[stop:].tobytes()
        stored, what = int.from_bytes(closing, "big"), "over the whole file before it"
        nodes.append(
            Node(
                frames.base + stop,
                CRC_SIZE,
                "crc",
                "crc32",
                stored,
                what,
                closing.hex(" "),
                inside="the end of the file",
            )
        )
    return nodes


# Writing index files and their blooms as Ambry does, from entries in the order of their messages ---------------------------------


def runs(
    entries: Entries,
    segment: NDArray[np.int32],
    *,
    max_entries: int = MAX_ENTRIES,
    starts: frozenset[tuple[int, int]] = frozenset(),
) -> Iterator[slice]:
    """Cut entries into index files where Ambry cuts them (§10.4), and at `starts` (segment, offset)."""
    count = len(entries)
    sizes_before = np.concatenate(([0], np.cumsum(entries.sizes + VALUES[LATEST].size)))
    cuts = np.flatnonzero(np.diff(segment)) + 1
    if starts:
        start_offsets = np.array([place for _, place in starts], np.int64)
        candidates = np.flatnonzero(np.isin(entries.offset, start_offsets))
        start_rows = [row for row in candidates.tolist() if (int(segment[row]), int(entries.offset[row])) in starts]
        cuts = np.union1d(cuts, np.array(start_rows, np.int64))
    at = 0
    while at < count:
        border = int(cuts[place]) if (place := int(np.searchsorted(cuts, at, side="right"))) < cuts.size else count
        full = int(
            np.searchsorted(sizes_before, sizes_before[at] + MAX_BYTES)
        )  # the entry that reaches the limit is the last one
        stop = min(border, at + max_entries, max(full, at + 1))
        yield slice(at, stop)
        at = stop


def encode_index(run: Entries, *, version: int = LATEST, last_modified: int | None = None, least: int = 0) -> bytes:
    """The bytes of an index file with these entries, which are in log order. EncodeError where an old version cannot hold the keys.

    Equal keys are written with the bytes of the first of them. Without `last_modified` it is the latest time of an operation. An entry
    takes `least` bytes at least, as older releases had it.
    """
    from rawlog.formats.ambry.writer import seal  # which needs more than reading does

    leader, order = _sorted(run)
    value_size, key_size = VALUES[version].size, int(run.sizes.max())
    if version < 2 and (run.sizes != key_size).any():
        raise EncodeError(f"an index of version {version} has keys of one size only")
    entry_size = max(key_size + value_size, least if version >= 2 else 0)
    end = int(run.offset[-1]) + int(run.size[-1])
    head = version.to_bytes(2, "big") + (key_size if version < 2 else entry_size).to_bytes(4, "big")
    head += value_size.to_bytes(4, "big") + end.to_bytes(8, "big")
    if version >= 1:
        modified = int(run.operation_time.max()) if last_modified is None else last_modified
        head += modified.to_bytes(8, "big", signed=True) + run.key(0) + int(run.kind[0]).to_bytes(2, "big")
        if version >= 4:
            head += int(run.life_version[0]).to_bytes(2, "big", signed=True)
    body = np.zeros(len(run) * entry_size, np.uint8)
    values = _values(run, version)[order]
    write_entries(run.data, run.starts[leader], run.sizes[leader], values, entry_size, body)
    return seal(head + body.tobytes())


def _sorted(run: Entries) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The entries by key and place in the log, and for each of them, in this order, the first entry of its blob."""
    identity = run.identities
    if identity.is_odd.any():
        places = [order_of(key) for key in run.keys]
        order = np.array(sorted(range(len(run)), key=lambda row: (places[row], int(run.offset[row]))), np.int64)
    else:
        order = identity.sorted(run.offset)
    begins = identity.begins(order)
    first = np.minimum.reduceat(order, np.flatnonzero(begins))
    return first[np.cumsum(begins) - 1], order


def _values(run: Entries, version: int) -> NDArray[np.uint8]:
    """The values of entries, a row of bytes each."""
    layout = VALUES[version]
    values = np.zeros(len(run), layout.dtype)
    expires = run.expires.astype(np.int64)
    by_name = {
        "size": run.size,
        "offset": run.offset,
        "flags": run.flags,
        "expires_at": np.where(expires == NONE, NONE, expires * 1000) if version == 0 else expires,
        "original_message_offset": run.original_offset,
        "operation_time": run.operation_time,
        "account_id": run.account_id,
        "container_id": run.container_id,
        "life_version": run.life_version,
    }
    for name in layout.dtype.names or ():
        values[name] = by_name[name]
    return values.view(np.uint8).reshape(len(run), layout.size)


def bloom_of(
    run: Entries,
    *,
    max_entries: int = MAX_ENTRIES,
    probability: float = PROBABILITY,
    like: Bloom | None = None,
    by_uuid: bool = False,
) -> Bloom:
    """The bloom of a sealed index file; `like` gives its dimensions, else the store's settings do."""
    bloom = make(max(max_entries, len(run)), probability)
    if like is not None:
        bloom = Bloom(like.hash_count, like.words * 0)
    distinct = np.unique(_sorted(run)[0])
    starts, sizes = run.uuid_spans if by_uuid else (run.starts, run.sizes)
    bloom.add_keys(run.data, starts[distinct], sizes[distinct])
    return bloom


def summary(file: File, group: Sequence[File], start: int, stop: int | None) -> IndexSummary:
    """The pass over an index file."""
    return IndexSummary(file, group, start, stop)


def rules() -> Sequence[Rule[Any]]:
    """Checks over the entries of an index file."""
    from rawlog.formats.ambry.rules import index_rules

    return index_rules()
