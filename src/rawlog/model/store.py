"""Store: the files of one unit of data, as the system itself would name it: a partition, a message store, a recording."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, overload

from rawlog.model.cache import Sharing
from rawlog.model.format import File
from rawlog.model.verb import Section


@dataclass(frozen=True, slots=True)
class Identity:
    """Which unit of data a store is. Stores of one tree with equal identities are replicas.

    `name` is what its system calls it, such as `orders-0`; `facts` are what else is known: ids of its cluster and topic.
    """

    system: str
    name: str
    facts: tuple[str, ...] = ()


class Store(Sequence[File], Sharing):
    """Files that belong together, in the order of their tree. What is asked of each of them costs the same however many there are."""

    def __init__(self, files: Iterable[File], name: str = "") -> None:
        """`name` is that of its directory next to other stores."""
        self.files = tuple(files)
        self.name = name
        #: The files in its directory that no format knows, for verbs that write it again.
        self.unknown: tuple[File, ...] = ()
        #: What a pass over files found, by path: whoever compares files with one another need not read those again.
        self.summaries: dict[str, Any] = {}
        self._shared: dict[object, Any] = {}

    @classmethod
    def of(cls, files: Sequence[File]) -> Store:
        """These files as a store; the same object if they are one."""
        return files if isinstance(files, Store) else cls(files)

    def find(self, format: str, start_offset: int | None, state: str | None = None) -> File | None:
        """The readable file of a format that begins at an offset; the first one if there are several."""
        return self._places.get((format, state), {}).get(start_offset)

    def starts(self, format: str | None, state: str | None = None) -> Sequence[int]:
        """Where the files of a format begin, sorted."""
        return self._starts.get((format, state), ())

    def following(self, file: File) -> int | None:
        """Where the next file of the same format begins."""
        starts = self.starts(file.format, file.place.state)
        at = bisect_right(starts, -1 if file.place.start_offset is None else file.place.start_offset)
        return starts[at] if at < len(starts) else None

    @property
    def path(self) -> str:
        """Its directory; its only file if it has none."""
        return self.files[0].place.group or self.files[0].path

    @cached_property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @cached_property
    def modified(self) -> float:
        """When the newest of the files was changed."""
        return max((file.modified or 0 for file in self.files), default=0)

    def with_summaries(self, summaries: Mapping[str, Any]) -> Store:
        """The same store with what passes over its files found, by path."""
        made = Store(self.files, self.name)
        made.unknown = self.unknown
        made.summaries = {file.path: summaries[file.path] for file in self.files if file.path in summaries}
        return made

    @cached_property
    def _places(self) -> dict[tuple[str | None, str | None], dict[int | None, File]]:
        places: dict[tuple[str | None, str | None], dict[int | None, File]] = {}
        for file in self.files:
            if file.problem is None:
                places.setdefault((file.format, file.place.state), {}).setdefault(file.place.start_offset, file)
        return places

    @cached_property
    def _starts(self) -> dict[tuple[str | None, str | None], list[int]]:
        starts: dict[tuple[str | None, str | None], set[int]] = {}
        for file in self.files:
            if file.place.start_offset is not None:
                starts.setdefault((file.format, file.place.state), set()).add(file.place.start_offset)
        return {key: sorted(found) for key, found in starts.items()}

    @overload
    def __getitem__(self, index: int) -> File: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[File]: ...

    def __getitem__(self, index: int | slice) -> File | Sequence[File]:
        return self.files[index]

    def __len__(self) -> int:
        return len(self.files)

    def __iter__(self) -> Iterator[File]:
        return iter(self.files)

    def __reduce__(self) -> tuple[object, ...]:
        return (_store, (self.files, self.name, self.summaries, self.unknown))

    def __repr__(self) -> str:
        where = self.path if self.files else "empty"
        return f"Store({where!r}, {len(self.files)} files)"


def _store(files: tuple[File, ...], name: str, summaries: dict[str, Any], unknown: tuple[File, ...]) -> Store:
    made = Store(files, name)
    made.unknown = unknown
    made.summaries = summaries
    return made


@dataclass(frozen=True, slots=True)
class Copies:
    """The replicas of one unit of data, the best first; `evidence` says in words what is known of each."""

    identity: Identity
    stores: tuple[Store, ...]
    evidence: tuple[str, ...]

    @classmethod
    def ranked(
        cls, identity: Identity, stores: Sequence[Store], ranks: Sequence[tuple[tuple[int, ...], str]]
    ) -> Copies:
        """Stores by their ranks, each a key and the evidence for it: the greatest key first, equal ones in the order given."""
        order = sorted(range(len(stores)), key=lambda at: ranks[at][0], reverse=True)
        return cls(identity, tuple(stores[at] for at in order), tuple(ranks[at][1] for at in order))

    @property
    def best(self) -> Store:
        return self.stores[0]

    @property
    def paths(self) -> list[str]:
        """The directories of the replicas."""
        return [store.path for store in self.stores]

    def preferring(self, is_preferred: Callable[[Store], bool]) -> Copies:
        """The same with the replicas that are preferred first."""
        ranks = [((int(is_preferred(store)),), text) for store, text in zip(self.stores, self.evidence, strict=True)]
        return Copies.ranked(self.identity, self.stores, ranks)


def unread_size(store: Store) -> int:
    """The bytes that checks of a store read: not those of files that a pass has seen."""
    return sum(file.size for file in store if file.path not in store.summaries)


def joined(files: Iterable[File], stores: Iterable[Store]) -> Store:
    """All files of several stores, with what is known of the last file of each: where a log ends."""
    made = Store(files)
    for store in stores:
        known = [file for file in store if file.path in store.summaries]
        if known:
            last = max(known, key=lambda file: file.place.start_offset or 0)
            made.summaries[last.path] = store.summaries[last.path]
    return made


def stores_below(groups: Mapping[str, Sequence[File]]) -> list[Store]:
    """A store for each directory, in order, named by its path below the deepest directory that holds all of them."""
    paths = [folder.rstrip("/").split("/") for folder in sorted(groups)]
    shared = 0
    while all(shared < len(path) - 1 for path in paths) and len({path[shared] for path in paths}) == 1:
        shared += 1
    return [Store(groups[folder], "/".join(path[shared:])) for path, folder in zip(paths, sorted(groups), strict=True)]


def stores_of_files(files: Sequence[File], roots: Sequence[str]) -> list[Store]:
    """A store for each file, named by its path below the root that it was found at; by its own name if it was asked for itself."""
    made = []
    for file in files:
        inside = (root.rstrip("/") for root in roots if file.path.startswith(f"{root.rstrip('/')}/"))
        above = max(inside, key=len, default=file.path.rpartition("/")[0])
        made.append(Store((file,), file.path[len(above) :].lstrip("/")))
    return made


# ----------------------------------------------------------------------------------------------------------------------
# Panel: a table that `report` shows of one store, and that only its system has.


class Look(StrEnum):
    """How a panel is drawn: as rows; with a bar for the numbers of the second column; as a map, whose cells are coloured by their tone."""

    TABLE = "table"
    BARS = "bars"
    MAP = "map"


@dataclass(frozen=True, slots=True)
class Panel:
    """A section of a page about one system. `about` says what it shows and what to look for."""

    system: str
    section: Section
    about: str = ""
    look: Look = Look.TABLE
    #: The store that it is about, where there may be several.
    path: str = ""
