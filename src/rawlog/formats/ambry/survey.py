"""One look at a whole store, shared by all rules over its files: every message, every index entry, every bloom."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from rawlog.errors import RawlogError
from rawlog.format import File
from rawlog.formats.ambry.bloom import Bloom, read_bloom
from rawlog.formats.ambry.index import IndexFile
from rawlog.formats.ambry.paths import capacity, segment_of, start_of
from rawlog.formats.ambry.state import Operation
from rawlog.formats.ambry.store import Store, operations, read_messages, stores
from rawlog.formats.ambry.structures import Cursor
from rawlog.storage import Source

Place = tuple[int, int]


@dataclass
class Survey:
    """A store and all that stands in it; places are (number of the segment, position)."""

    store: Store
    messages: dict[Place, Operation] = field(default_factory=dict)
    indexes: list[IndexFile] = field(default_factory=list)
    blooms: dict[tuple[int, int], tuple[str, Bloom]] = field(default_factory=dict)
    capacities: list[int | None] = field(default_factory=list)
    #: Where the messages of each segment begin, in order.
    places: list[list[int]] = field(default_factory=list)

    def between(self, number: int, start: int, stop: int) -> list[int]:
        """Where messages of a segment begin, from `start` to before `stop`."""
        places = self.places[number]
        return places[bisect_left(places, start) : bisect_left(places, stop)]

    def number(self, index: IndexFile) -> int:
        """The number of the segment that an index file belongs to; -1: none of the live ones."""
        segments = self.store.segments()
        return segments.index(index.segment) if index.segment in segments else -1


def look(store: Store) -> Survey:
    """Read a store whole, once. What cannot be read is left out: the rules over single files tell of it."""
    found = Survey(store)
    for number, file in enumerate(store.logs):
        found.places.append([])
        with Source(file.path) as source:
            found.capacities.append(capacity(source.read(0, 64)))
        try:
            for messages in read_messages(file, errors="skip"):
                for operation in operations(messages, number):
                    found.messages[number, operation.offset] = operation
                    found.places[number].append(operation.offset)
        except RawlogError as error:
            store.problems.append((file.path, error))
    found.indexes = [index for index in store.indexes() if index.segment in store.segments()]
    segments = store.segments()
    for file in store.bloom_files:
        segment = segment_of(file.path)
        try:
            with Source(file.path) as source:
                bloom = read_bloom(Cursor(source.read(0, source.size)))
        except RawlogError:
            continue
        if bloom.crc_ok and segment in segments:
            found.blooms[segments.index(segment), start_of(file.path)] = (file.path, bloom)
    return found


@lru_cache(maxsize=1)
def _looked(files: tuple[File, ...]) -> tuple[Survey, ...]:
    return tuple(look(store) for store in stores(files) if store.logs)


def surveys(files: Sequence[File]) -> tuple[Survey, ...]:
    """The stores among files, each read once however many rules ask."""
    return _looked(tuple(files))
