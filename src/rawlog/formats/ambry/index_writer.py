"""Writing index segments and blooms as Ambry does, from entries in the order of their messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from rawlog.errors import EncodeError
from rawlog.formats.ambry import keys
from rawlog.formats.ambry.bloom import Bloom, make
from rawlog.formats.ambry.layouts import NONE, VALUES
from rawlog.formats.ambry.state import Entry
from rawlog.formats.ambry.writer import sealed

MAX_ENTRIES = 10_000
MAX_BYTES = 20 << 20
PROBABILITY = 0.01
LATEST = 4


@dataclass(slots=True)
class Run:
    """The entries of one index file, in log order."""

    segment: int
    entries: list[Entry] = field(default_factory=list)
    size: int = 0
    last_modified: int | None = None

    @property
    def start(self) -> int:
        return self.entries[0].offset

    @property
    def end(self) -> int:
        return self.entries[-1].offset + self.entries[-1].size


def runs(
    entries: Iterable[Entry],
    *,
    max_entries: int = MAX_ENTRIES,
    starts: frozenset[tuple[int, int]] = frozenset(),
    version: int = LATEST,
) -> Iterator[Run]:
    """Entries cut into index files where Ambry cuts them (§10.4), and at `starts` if those are given."""
    run: Run | None = None
    for entry in entries:
        size = len(entry.key) + VALUES[version].size
        full = run is not None and (len(run.entries) >= max_entries or run.size >= MAX_BYTES)
        if run is None or full or run.segment != entry.segment or entry.place in starts:
            if run is not None:
                yield run
            run = Run(entry.segment)
        run.entries.append(entry)
        run.size += size
    if run is not None:
        yield run


def encode_index(run: Run, *, version: int = LATEST) -> bytes:
    """The bytes of an index file. EncodeError where an old version cannot hold the keys."""
    first_bytes: dict[bytes, bytes] = {}
    rows = []
    for entry in run.entries:
        identity = keys.order(entry.key)
        rows.append((identity, entry.offset, first_bytes.setdefault(identity, entry.key), entry))
    rows.sort(key=lambda row: row[:2])
    value_size = VALUES[version].size
    key_size = max(len(entry.key) for entry in run.entries)
    if version < 2 and any(len(row[2]) != key_size for row in rows):
        raise EncodeError(f"an index of version {version} has keys of one size only")
    entry_size = max(key_size, max(len(row[2]) for row in rows)) + value_size
    head = version.to_bytes(2, "big") + (key_size if version < 2 else entry_size).to_bytes(4, "big")
    head += value_size.to_bytes(4, "big") + run.end.to_bytes(8, "big")
    first = run.entries[0]
    if version >= 1:
        modified = run.last_modified
        if modified is None:
            modified = max(entry.time for entry in run.entries)
        head += modified.to_bytes(8, "big", signed=True) + first.key + int(first.kind).to_bytes(2, "big")
        if version >= 4:
            head += first.life_version.to_bytes(2, "big", signed=True)
    body = b"".join((row[2] + _value(row[3], version)).ljust(entry_size, b"\0") for row in rows)
    return sealed(head + body)


def _value(entry: Entry, version: int) -> bytes:
    def number(value: int, size: int) -> bytes:
        return value.to_bytes(size, "big", signed=True)

    out = number(entry.size, 8) + number(entry.offset, 8) + bytes([entry.flags])
    if version == 0:
        return (
            out
            + number(entry.expires if entry.expires == NONE else entry.expires * 1000, 8)
            + number(entry.original, 8)
        )
    out += number(entry.expires, 4) + number(entry.original, 8) + number(entry.time, 4)
    out += number(entry.account_id, 2) + number(entry.container_id, 2)
    return out if version < 3 else out + number(entry.life_version, 2)


def bloom_of(
    run: Run, *, max_entries: int = MAX_ENTRIES, probability: float = PROBABILITY, like: Bloom | None = None
) -> Bloom:
    """The bloom of a sealed index file; `like` gives its dimensions, else the store's settings do."""
    distinct: dict[bytes, bytes] = {}
    for entry in run.entries:
        distinct.setdefault(keys.order(entry.key), entry.key)
    found = make((), max(max_entries, len(run.entries)), probability)
    if like is not None:
        found = Bloom(like.hash_count, like.words * 0)
    for raw in distinct.values():
        found.add(raw)
    return found
