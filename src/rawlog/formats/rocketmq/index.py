"""The key index: its geometry, its entries as rows of `rocketmq.keys`, and looking a key up as a broker does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog.formats.rocketmq.layouts import (
    DEFAULT_ENTRIES,
    DEFAULT_SLOTS,
    INDEX_ENTRY,
    INDEX_HEADER,
    SLOT,
)
from rawlog.formats.rocketmq.messages import micros
from rawlog.formats.rocketmq.units import UnitFile, fixed_frames, times_of
from rawlog.io.storage import Source
from rawlog.kernels import columns
from rawlog.model.errors import CorruptError, DataError, TruncatedError
from rawlog.model.finding import Rule
from rawlog.model.format import File, Inspection, Origin, Want
from rawlog.model.frames import Bytes, Frames

if TYPE_CHECKING:
    from rawlog.model.explain import Node

LAYOUTS = (INDEX_HEADER, SLOT, INDEX_ENTRY)
SEARCH = 1 << 20
RATIO = DEFAULT_ENTRIES // DEFAULT_SLOTS
SAMPLE = 16
SEARCHED = 1 << 20
"""The largest file whose number of slots is searched for."""
MOST_STEPS = 1 << 20
"""Links that a look-up follows in one slot: a chain that bites its tail must end."""


@dataclass(frozen=True, slots=True)
class Header:
    """The forty bytes at the front of an index file, and how many slots and entries the rest has."""

    begin_timestamp: int
    end_timestamp: int
    begin: int
    end: int
    used_slots: int
    count: int
    slots: int
    entries: int

    @property
    def entries_at(self) -> int:
        return INDEX_HEADER.size + self.slots * SLOT.size


def read_header(source: Source) -> Header:
    """The header with the numbers of slots and entries, which the file does not state. CorruptError if none fit its content."""
    head = source.read(0, INDEX_HEADER.size)
    if len(head) < INDEX_HEADER.size:
        raise TruncatedError(
            f"header of {len(head)} bytes, {INDEX_HEADER.size} expected", position=0, layout=INDEX_HEADER.name
        )
    row = np.frombuffer(head, INDEX_HEADER.dtype)[0]
    fields = [int(row[field.name]) for field in INDEX_HEADER.fields]
    count = max(1, fields[5])
    slots = _slots(source, fields[2], fields[3], count)
    room = source.size - INDEX_HEADER.size - slots * SLOT.size
    return Header(fields[0], fields[1], fields[2], fields[3], fields[4], count, slots, room // INDEX_ENTRY.size)


def _slots(source: Source, begin: int, end: int, count: int) -> int:
    """The number of slots for which first and last entry are where the header says."""
    body = source.size - INDEX_HEADER.size
    unit = SLOT.size + RATIO * INDEX_ENTRY.size
    usual = body // unit
    if count <= 1:
        return max(0, usual)
    if body % unit == 0 and _fits(source, usual, begin, end, count):
        return usual
    if body % SLOT.size:
        return _slots_of_cut(source, begin, count)
    step = INDEX_ENTRY.size // SLOT.size
    data = np.frombuffer(source.read(0, source.size), np.uint8)
    words = data[: data.size // 4 * 4].view(">i4")
    first = (body // SLOT.size) % step
    most = (body - count * INDEX_ENTRY.size) // SLOT.size
    at = INDEX_ENTRY.at("physical_offset")
    for low in range(first, most + 1, step * SEARCH):
        slots = np.arange(low, min(low + step * SEARCH, most + 1), step, dtype=np.int64)
        keep = np.ones(slots.size, np.bool_)
        for number, address in ((1, begin), (count - 1, end)):
            where = (INDEX_HEADER.size + slots * SLOT.size + number * INDEX_ENTRY.size + at) // 4
            keep &= (words[where].astype(np.int64) << 32) + (words[where + 1].astype(np.int64) & 0xFFFF_FFFF) == address
        for candidate in slots[keep].tolist():
            if _fits(source, candidate, begin, end, count):
                return int(candidate)
    return _slots_of_cut(source, begin, count)


def _slots_of_cut(source: Source, begin: int, count: int) -> int:
    """The number of slots of a file whose end is missing: the first entries must be where their slots say."""
    data = np.frombuffer(source.read(0, source.size), np.uint8)
    words = data[: data.size // 4 * 4].view(">i4").astype(np.int64)
    head, unit = INDEX_HEADER.size // 4, INDEX_ENTRY.size // 4
    most = words.size - head - 2 * unit
    slots = np.arange(1, max(1, most + 1), dtype=np.int64)
    at = head + slots + unit
    keep = (words[at + 1] << 32) + (words[at + 2] & 0xFFFF_FFFF) == begin
    for candidate in slots[keep].tolist():
        present = min(count, (words.size - head - candidate) // unit)
        numbers = np.arange(1, min(present, 2 * SAMPLE))
        hashes = words[head + candidate + numbers * unit]
        if numbers.size and (hashes >= 0).all():
            newest = words[head + hashes % candidate]
            if ((newest >= numbers) & (newest < count)).all():
                return int(candidate)
    raise _geometry(source.size)


def _geometry(size: int) -> CorruptError:
    return CorruptError(
        f"no number of slots makes the entries of this file of {size:,} bytes begin and end where its header says",
        position=0,
        layout=INDEX_HEADER.name,
    )


def _fits(source: Source, slots: int, begin: int, end: int, count: int) -> bool:
    if slots <= 0:
        return False
    at = INDEX_HEADER.size + slots * SLOT.size
    if source.size - at < count * INDEX_ENTRY.size:
        return False
    first, last = (_entry(source, at, number) for number in (1, count - 1))
    if int(first["physical_offset"]) != begin or int(last["physical_offset"]) != end or int(last["key_hash"]) < 0:
        return False
    room = (source.size - at) // INDEX_ENTRY.size
    if _slot(source, int(last["key_hash"]), slots) != count - 1:
        return False
    # The slots of the oldest and newest entries lead to them or to newer ones; with another number of slots some do not.
    for number in (*range(1, min(count, SAMPLE)), *range(max(1, count - SAMPLE), count)):
        entry = _entry(source, at, number)
        if int(entry["key_hash"]) < 0 or not number <= _slot(source, int(entry["key_hash"]), slots) <= room:
            return False
    return True


def _slot(source: Source, hash: int, slots: int) -> int:
    raw = source.read(INDEX_HEADER.size + hash % slots * SLOT.size, SLOT.size)
    return int.from_bytes(raw, "big", signed=True)


def _entry(source: Source, at: int, number: int) -> Any:
    raw = source.read(at + number * INDEX_ENTRY.size, INDEX_ENTRY.size)
    return np.frombuffer(raw.ljust(INDEX_ENTRY.size, b"\0"), INDEX_ENTRY.dtype)[0]


def survey(source: Source) -> Origin:
    """Entries begin after the header, the slots and the entry that is never used; the kind is the number of slots."""
    if not source.size:
        return Origin()
    header = read_header(source)
    return Origin(header.entries_at + INDEX_ENTRY.size, header.slots)


def presume(source: Source) -> list[Origin]:
    """Where entries begin if the header does not fit: after as many slots as lead to the first entries.

    Brokers make four times as many entries as slots unless their settings say otherwise, which only small files are searched for.
    """
    words = (source.size - INDEX_HEADER.size) // SLOT.size
    unit = INDEX_ENTRY.size // SLOT.size
    usual = words // (1 + RATIO * unit)
    others = range(words % unit, words - unit, unit) if source.size <= SEARCHED else ()
    slots = next((count for count in (usual, *others) if count > 0 and _leads(source, count)), None)
    return [] if slots is None else [Origin(INDEX_HEADER.size + slots * SLOT.size + INDEX_ENTRY.size, slots)]


def _leads(source: Source, slots: int) -> bool:
    """Whether the first entries exist, and their slots lead to them or to newer entries of the slot."""
    at = INDEX_HEADER.size + slots * SLOT.size
    room = (source.size - at) // INDEX_ENTRY.size
    for number in range(1, min(room, SAMPLE)):
        entry = _entry(source, at, number)
        hash = int(entry["key_hash"])
        if not hash and not int(entry["physical_offset"]):
            return number > 1
        newest = _slot(source, hash, slots) if hash >= 0 else -1
        if not number <= newest < room or int(_entry(source, at, newest)["key_hash"]) % slots != hash % slots:
            return False
    return room > 1


def scan(data: Bytes, kind: int) -> Frames:
    """Entries up to the zeros that were never written."""
    rows = INDEX_ENTRY.view(np.ascontiguousarray(data))
    written = np.zeros(len(rows), np.bool_)
    for name in INDEX_ENTRY.dtype.names or ():
        written |= rows[name] != 0
    # An entry of zeros is one if another follows: the key whose hash is 0, of the very first message.
    last = int(np.flatnonzero(written)[-1]) + 1 if written.any() else 0
    valid = (np.arange(len(rows)) < last) & (rows["key_hash"] >= 0) & (rows["previous"] >= 0)
    return fixed_frames(data, INDEX_ENTRY, valid, kind)


def fault(frames: Frames) -> DataError:
    """What is wrong with the entry at which the scan stopped."""
    return CorruptError(
        "an entry whose hash or link is negative",
        position=frames.reached_in_file,
        layout=INDEX_ENTRY.name,
        field="key_hash",
    )


def resync(data: Bytes, position: int, kind: int) -> int:
    """The next possible entry at a multiple of the entry size, or -1."""
    first = -(-position // INDEX_ENTRY.size)
    rows = INDEX_ENTRY.view(np.ascontiguousarray(data[first * INDEX_ENTRY.size :]))
    hits = np.flatnonzero((rows["key_hash"] > 0) & (rows["previous"] >= 0))
    return int(first + hits[0]) * INDEX_ENTRY.size if hits.size else -1


def context(file: File, group: Sequence[File], options: Mapping[str, str]) -> int:
    """The time that the entries of the file count from."""
    with Source(file.path) as source:
        head = source.read(0, INDEX_HEADER.size)
    at = INDEX_HEADER.at("begin_timestamp")
    return int.from_bytes(head[at : at + 8], "big", signed=True)


def decode(frames: Frames, want: Want) -> Iterator[pa.RecordBatch]:
    """Rows of `rocketmq.keys`."""
    rows = INDEX_ENTRY.take(frames.data, frames.starts)
    count = len(frames)
    begin = int(want.context or 0)
    times = rows["seconds"].astype(np.int64) * 1000 + begin
    numbers = (frames.positions - INDEX_HEADER.size - frames.kind * SLOT.size) // INDEX_ENTRY.size
    arrays = {
        "path": columns.constant(want.file.path, "string", count),
        "key_hash": columns.integers(rows["key_hash"].astype(np.int64), "int"),
        "physical_offset": columns.integers(rows["physical_offset"].astype(np.int64), "bigint"),
        "timestamp": micros(times),
        "previous": columns.integers(rows["previous"].astype(np.int64), "int"),
        "number": columns.integers(numbers, "int"),
    }
    yield columns.batch(want.table, arrays, count)


def explain(frames: Frames, file: File) -> list[Node]:
    """One entry."""
    return UnitFile(INDEX_ENTRY, "key index entry").explain(frames, file)


def explain_header(head: bytes, file: File) -> list[Node]:
    """The forty bytes before the slots, the slots, and the entry that is never used."""
    from rawlog.model.explain import Node, layout_nodes

    nodes = layout_nodes(INDEX_HEADER, np.frombuffer(head, np.uint8), 0, 0, times_of(INDEX_HEADER))
    header = Node(0, INDEX_HEADER.size, INDEX_HEADER.name, children=nodes)
    with Source(file.path) as source:
        index_header = read_header(source)
    slots = Node(
        header.size,
        index_header.slots * SLOT.size,
        "slots",
        value=index_header.slots,
        meaning=f"{index_header.used_slots:,} of them used",
    )
    unused = Node(index_header.entries_at, INDEX_ENTRY.size, "entry 0", meaning="never used")
    return [header, slots, unused]


def rules() -> Sequence[Rule[Inspection]]:
    """Checks over the entries of an index file."""
    from rawlog.formats.rocketmq.rules import key_index

    return key_index()


def java_hash(text: str) -> int:
    """Java's String.hashCode: over UTF-16 code units, wrapped to 32 bits."""
    value = 0
    raw = text.encode("utf-16-be", "surrogatepass")
    for index in range(0, len(raw), 2):
        value = (value * 31 + (raw[index] << 8 | raw[index + 1])) & 0xFFFF_FFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def key_hash(topic: str, key: str) -> int:
    """The hash of a key in the index: without its sign, and 0 for the number without a positive one."""
    value = java_hash(f"{topic}#{key}")
    return 0 if value == -(1 << 31) else abs(value)


class Index:
    """An index file opened for look-ups; use as a context manager. DataError if its header is invalid."""

    def __init__(self, path: str) -> None:
        self.source = Source(path)
        try:
            self.header = read_header(self.source)
        except BaseException:
            self.source.close()
            raise

    def look_up(self, hash: int) -> list[int]:
        """The physical offsets of a hash, the newest first. CorruptError if the chain leaves the file or does not descend."""
        header = self.header
        addresses: list[int] = []
        if not header.slots:
            return addresses
        slot = INDEX_HEADER.size + hash % header.slots * SLOT.size
        number = int.from_bytes(self.source.read(slot, SLOT.size), "big", signed=True)
        for _ in range(MOST_STEPS):
            if number <= 0:
                return addresses
            if number >= header.count:
                break
            row = _entry(self.source, header.entries_at, number)
            if int(row["key_hash"]) == hash:
                addresses.append(int(row["physical_offset"]))
            previous = int(row["previous"])
            if previous >= number:
                break
            number = previous
        raise CorruptError(
            f"slot {hash % header.slots}: a chain that does not end", path=self.source.path, position=slot
        )

    def last_address(self) -> int:
        """The physical offset of its last entry, which is the highest; -1 if it has none."""
        last = self.header.count - 1
        return int(_entry(self.source, self.header.entries_at, last)["physical_offset"]) if last > 0 else -1

    def last_before(self, milliseconds: int) -> int | None:
        """The physical offset of the newest entry whose second had ended by a time, None if there is none: store times do not fall."""
        low, high = 1, self.header.count
        while low < high:
            middle = (low + high) // 2
            seconds = int(_entry(self.source, self.header.entries_at, middle)["seconds"])
            if self.header.begin_timestamp + (seconds + 1) * 1000 <= milliseconds:
                low = middle + 1
            else:
                high = middle
        return int(_entry(self.source, self.header.entries_at, low - 1)["physical_offset"]) if low > 1 else None

    def table(self) -> NDArray[Any]:
        """All entries, number 0 included."""
        size = self.header.count * INDEX_ENTRY.size
        raw = self.source.read(self.header.entries_at, size)
        return np.frombuffer(raw[: len(raw) // INDEX_ENTRY.size * INDEX_ENTRY.size], INDEX_ENTRY.dtype)

    def newest(self, most: int) -> NDArray[Any]:
        """The last entries, as many as wanted."""
        first = max(1, self.header.count - most)
        size = (self.header.count - first) * INDEX_ENTRY.size
        raw = self.source.read(self.header.entries_at + first * INDEX_ENTRY.size, size)
        return np.frombuffer(raw[: len(raw) // INDEX_ENTRY.size * INDEX_ENTRY.size], INDEX_ENTRY.dtype)

    def slots(self) -> NDArray[Any]:
        return np.frombuffer(self.source.read(INDEX_HEADER.size, self.header.slots * SLOT.size), ">i4")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.source.close()
