"""One look at a whole store, shared by all rules over its files: every message, every index entry, every bloom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from rawlog.core.errors import RawlogError
from rawlog.core.format import File
from rawlog.formats.ambry.bloom import Bloom, read_bloom
from rawlog.formats.ambry.index import IndexFile
from rawlog.formats.ambry.paths import capacity, segment_of, start_of
from rawlog.formats.ambry.store.state import Catalog, Fold, fold
from rawlog.formats.ambry.store.store import Store, read_catalog, stores
from rawlog.formats.ambry.structures import Cursor
from rawlog.io.storage import Source


@dataclass
class Survey:
    """A store and all that stands in it; segments go by their numbers."""

    store: Store
    catalog: Catalog
    indexes: list[IndexFile] = field(default_factory=list)
    blooms: dict[tuple[int, int], tuple[str, Bloom]] = field(default_factory=dict)
    capacities: list[int | None] = field(default_factory=list)

    def between(self, number: int, start: int, stop: int) -> NDArray[np.int64]:
        """Where messages of a segment begin, from `start` to before `stop`."""
        places = self.catalog.offset[self.catalog.rows_in(number)]
        return places[slice(*np.searchsorted(places, [start, stop]).tolist())]

    def number(self, index: IndexFile) -> int:
        """The number of the segment that an index file belongs to."""
        return self.numbered[index.path]

    @cached_property
    def numbered(self) -> dict[str, int]:
        numbers = {segment: number for number, segment in enumerate(self.store.segments())}
        return {index.path: numbers[index.segment] for index in self.indexes}

    @cached_property
    def folded(self) -> Fold:
        """The messages as a live store would have taken them, one after the other."""
        return fold(self.catalog)

    def place(self, row: int) -> tuple[str, int, int]:
        """Path, position and size of a message."""
        catalog = self.catalog
        return self.store.logs[int(catalog.segment[row])].path, int(catalog.offset[row]), int(catalog.size[row])


def look(store: Store) -> Survey:
    """Read a store whole, once. What cannot be read is left out: the rules over single files tell of it."""
    segments = store.segments()
    found = Survey(store, read_catalog(store))
    for file in store.logs:
        with Source(file.path) as source:
            found.capacities.append(capacity(source.read(0, 64)))
    found.indexes = [index for index in store.indexes() if index.segment in segments]
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


def surveys(files: Sequence[File]) -> Iterator[Survey]:
    """The stores among files, each read once however many rules ask."""
    return iter(_looked(tuple(files)))
