"""Store: the files of one unit of data, as the system itself would name it: a partition, a message store, a recording.

A system's class of stores says what it can do with them. A method that it does not define is an ability that it does not have, or has as
every system does.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, overload

from rawlog.model.cache import Sharing
from rawlog.model.format import Elsewhere, File, Lookup, UnknownFile
from rawlog.model.verb import Section

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from rawlog.io.output import Folder
    from rawlog.model.difference import Difference
    from rawlog.model.finding import Account, Prediction, Rule, Startup
    from rawlog.model.format import Keep
    from rawlog.model.plan import Reading
    from rawlog.model.recovery import RescueOptions, Rescuer, RestoreOptions, Restorer
    from rawlog.model.report import Report

Method = TypeVar("Method", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Identity:
    """Which unit of data a store is. Stores of one tree with equal identities are replicas.

    `name` is what its system calls it, such as `orders-0`; `facts` are what else is known: ids of its cluster and topic.
    """

    system: str
    name: str
    facts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """Marks a method of a store's class as a verb that writes a store again: `repair`, `rebuild`, `compact`, `erase`.

    It is a policy that the system's one writer applies: (the directory to fill, options) -> Report, with a third argument where a field
    says so. A source is never changed. Stores are rewritten anywhere, in any order.
    """

    #: The names of the options that it understands. Of `now` (milliseconds) and `at_once` (how many stores share the machine's memory)
    #: the job sets the default.
    options: tuple[str, ...] = ()
    #: The option that names another directory, for what is cut; the third argument is that directory, or None.
    aside: str | None = None
    #: The codes of findings that it leaves as they are. A dry run reports those of the source; else the result itself is verified.
    unrepaired: tuple[str, ...] = ()
    #: The third argument, for `erase`, is the Keep that says which rows of `records` stay; None: all of them.
    keeps: bool = False
    #: Of an erased record only the content goes; its place, its id, and rows without a value stay.
    content_only: bool = False
    #: The offset of a record is its number in a file: those after an erased one get others.
    renumbers: bool = False

    def __call__(self, method: Method) -> Method:
        method.__dict__["rewrite"] = self
        return method


class Store(Sequence[File], Sharing):
    """Files that belong together, in the order of their tree. What is asked of each of them costs the same however many there are.

    A system's class of stores defines what the system can do. Its module is imported when files of the system are met, so its methods
    import what is large themselves.
    """

    #: Stores are in a directory that has files of its own, a log directory around partitions: `join` writes these.
    has_surroundings: ClassVar[bool] = False
    #: The table whose files `compare` compares; None: all files of the system.
    compared: ClassVar[str | None] = None
    #: What people call a store.
    unit: ClassVar[str] = "partition"
    #: What writes a store again, by verb: the methods that `Rewrite` marks.
    rewrites: ClassVar[Mapping[str, Rewrite]] = {}

    def __init_subclass__(cls) -> None:
        marked = {name: getattr(method, "rewrite", None) for name, method in vars(cls).items()}
        cls.rewrites = {**cls.rewrites, **{name: mark for name, mark in marked.items() if isinstance(mark, Rewrite)}}

    @classmethod
    def can(cls, ability: str) -> bool:
        """Whether the system has a method of its own, so that it is more than what every store can do."""
        assert hasattr(Store, ability), ability
        return any(ability in vars(kind) for kind in cls.__mro__[: cls.__mro__.index(Store)])

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
    def of(cls, files: Sequence[File]) -> Self:
        """These files as a store of this class; the same object if they are one."""
        if isinstance(files, cls):
            return files
        store = cls(files)
        if isinstance(files, Store):
            store.name, store.unknown = files.name, files.unknown
            store.summaries, store._shared = files.summaries, files._shared
        return store

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

    def with_summaries(self, summaries: Mapping[str, Any]) -> Self:
        """The same store with what passes over its files found, by path."""
        store = type(self)(self.files, self.name)
        store.unknown = self.unknown
        store.summaries = {file.path: summaries[file.path] for file in self.files if file.path in summaries}
        return store

    # What a system says of one of its stores ----------------------------------------------------------------------------

    def system_name(self) -> str | None:
        """What the system calls it, by its place alone; None if nothing can be a replica of it. Stores with different names are not
        replicas.
        """
        return None

    def facts(self) -> tuple[str, ...]:
        """The facts by which `copies` identifies it, from small files; a fact that is not known is empty.

        A lake records them: the store may be gone, or another one of the same name, when the next run looks.
        """
        return ()

    def accounts(self) -> Sequence[Account]:
        """The account of every offset in it, for each partition or queue. For `verify --complete`."""
        return ()

    def predictions(self) -> Sequence[Prediction]:
        """What the system would do with it when it starts."""
        return ()

    def reading(self) -> Reading:
        """Which of its frames `repair` would keep, and what it would report. Files without a summary are read for it."""
        from rawlog.model.plan import Reading

        return Reading()

    def overview(self) -> Iterable[Panel]:
        """What `report` shows of it that only this system has. Files that a summary covers are not read again."""
        return ()

    def inventory(self) -> Section | None:
        """What `ls` shows of it in the words of its system: a table; or, without a title, cells of the line of the store itself."""
        return None

    def rows_of(self, table: str, options: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
        """The rows of a table that is made of several files (`Family.folds`), from the files of one of its `units`."""
        raise NotImplementedError(table)

    def sift(self, folder: Folder, keep: Keep, options: Mapping[str, str]) -> Report:
        """Write its frames without the rows that `keep` refuses."""
        raise NotImplementedError

    # What a system says of several stores, of a tree, or of any of them ---------------------------------------------------

    @classmethod
    def settle(cls, files: Sequence[File]) -> Sequence[File]:
        """The system's files of a tree, with what they say of one another in their places: which of them the system would not load now
        (`state`), where a file begins in a log of several (`start_offset`), and which store it is of (`group`).

        Files that others describe, and that are stored in another form, may be added.
        """
        return files

    @classmethod
    def takes(cls, table: str | None, file: File) -> bool:
        """Whether a folded table, or for None the rules over several files, are made of a file of the system or its host.

        Without it: every file of the system's own formats.
        """
        raise NotImplementedError

    @classmethod
    def units(cls, table: str, files: Sequence[File]) -> Mapping[str, Sequence[File]]:
        """The files of a folded table in sets that concern nothing but themselves, each under a name that stays; here each group."""
        units: dict[str, list[File]] = {}
        for file in files:
            units.setdefault(file.place.group or file.path, []).append(file)
        return units

    @classmethod
    def stores(cls, verb: str, files: Sequence[File], options: Mapping[str, str]) -> Sequence[Store]:
        """The stores that a verb rewrites, in order; here all files are one."""
        groups = {file.place.group for file in files if file.place.partition is not None}
        name = str(groups.pop()).rpartition("/")[2] if len(groups) == 1 else str(files[0].system)
        return [cls(files, name)]

    @classmethod
    def join(cls, verb: str, stores: Sequence[Store], reports: Sequence[Report], folder: Folder) -> Report:
        """The report on all rewritten or sifted stores, after writing what the directory around them says of itself and of them."""
        from rawlog.model.report import Report

        return Report(parts={store.name: report for store, report in zip(stores, reports, strict=True)})

    @classmethod
    def unknown_file(cls, path: str, in_store: bool) -> UnknownFile:
        """What is done with a file that no format knows when a store is written again, by its path below the directory of a store or the
        one around stores.

        It is asked after the rewrite, and only about files that this neither wrote at the same place nor named in its report (in
        `left_out`, or in an entry, KEPT for example): a system that decides on some of them itself finds them in `Store.unknown`. `erase`
        and `rescue` copy none of them: they name what is not made again.
        """
        return UnknownFile.COPY

    @classmethod
    def is_internal(cls, topic: str) -> bool:
        """Whether a topic is one that the system makes for itself."""
        return False

    @classmethod
    def summary(cls, file: File, group: Sequence[File], start: int, stop: int | None) -> Any:
        """As Codec.summary, for files of the host that it `takes`: what its rules over several files need of them. None for other files."""
        return None

    @classmethod
    def rules(cls) -> Sequence[Rule[Any]]:
        """Checks of the files of one store against one another; each takes the store."""
        return ()

    @classmethod
    def tree_rules(cls) -> Sequence[Rule[Any]]:
        """Checks over a whole tree; each takes the system's files in it."""
        return ()

    @classmethod
    def replica_rules(cls) -> Sequence[Rule[Any]]:
        """Checks of two replicas against each other; each takes Replicas. Without them their records are compared."""
        return ()

    @classmethod
    def copies(cls, stores: Sequence[Store]) -> Sequence[Copies]:
        """Of stores whose names were found more than once, those that are replicas of one another, by their identity, the best first.

        Names, sizes, indexes and small files tell that; data is not read.
        """
        return ()

    @classmethod
    def absent(cls, files: Sequence[File]) -> Sequence[Account]:
        """The accounts of stores that are missing from a tree as a whole. For `verify --complete`."""
        return ()

    @classmethod
    def startups(cls, files: Sequence[File]) -> Sequence[Startup]:
        """For the directories of each node in a tree, what the system would do with them when it starts, without `predictions`."""
        return ()

    @classmethod
    def topics(cls, files: Sequence[File]) -> Iterable[str]:
        """Names of topics that are known without reading data, of files in a tree whose places do not tell one."""
        return ()

    @classmethod
    def elsewhere(cls, files: Sequence[File]) -> Sequence[Elsewhere]:
        """Parts of stores in a tree that exist, as the files say, and are not among them: they cannot be erased from."""
        return ()

    @classmethod
    def compare(cls, a: Sequence[File], b: Sequence[File], selection: Any) -> Iterator[Difference | int]:
        """The differences of the files on two sides, and now and then how many more things are alike. Without it records are compared."""
        raise NotImplementedError

    @classmethod
    def lookup(cls) -> Lookup | None:
        """How rows are found by key and id; None: by an equal column `key`, and they have no ids."""
        return None

    @classmethod
    def copy_ids(cls, batch: pa.RecordBatch) -> pa.Array:
        """By key and headers of `records`, an id that all copies of a record share, null where there is none: what is erased is so in
        every copy.
        """
        raise NotImplementedError

    @classmethod
    def part_ids(cls, batch: pa.RecordBatch) -> pa.Array:
        """Of `records` that are erased, such ids of others that are parts of them and go with them."""
        raise NotImplementedError

    @classmethod
    def restorer(cls, options: RestoreOptions, target: Path) -> Restorer:
        """How the verb `restore` makes a data directory that the system starts on."""
        raise NotImplementedError

    @classmethod
    def rescuer(cls, options: RescueOptions, target: Path) -> Rescuer:
        """How the verb `rescue` makes one whole store of the copies on several disks."""
        raise NotImplementedError

    @classmethod
    def rescues(cls, file: File) -> bool:
        """Whether the rescuer looks at a file. Without it: at the files of the system's own formats."""
        raise NotImplementedError

    # Its files ------------------------------------------------------------------------------------------------------------

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
        return {key: sorted(numbers) for key, numbers in starts.items()}

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
        return (_store, (type(self), self.files, self.name, self.summaries, self.unknown))

    def __repr__(self) -> str:
        where = self.path if self.files else "empty"
        return f"{type(self).__name__}({where!r}, {len(self.files)} files)"


def _store(
    kind: type[Store], files: tuple[File, ...], name: str, summaries: dict[str, Any], unknown: tuple[File, ...]
) -> Store:
    store = kind(files, name)
    store.unknown = unknown
    store.summaries = summaries
    return store


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


def join_stores(files: Iterable[File], stores: Iterable[Store]) -> Store:
    """All files of several stores, with what is known of the last file of each: where a log ends."""
    whole = Store(files)
    for store in stores:
        summarised = [file for file in store if file.path in store.summaries]
        if summarised:
            last = max(summarised, key=lambda file: file.place.start_offset or 0)
            whole.summaries[last.path] = store.summaries[last.path]
    return whole


def stores_below(groups: Mapping[str, Sequence[File]]) -> list[Store]:
    """A store for each directory, in order, named by its path below the deepest directory that holds all of them."""
    paths = [folder.rstrip("/").split("/") for folder in sorted(groups)]
    shared = 0
    while all(shared < len(path) - 1 for path in paths) and len({path[shared] for path in paths}) == 1:
        shared += 1
    return [Store(groups[folder], "/".join(path[shared:])) for path, folder in zip(paths, sorted(groups), strict=True)]


def stores_of_files(files: Sequence[File], roots: Sequence[str]) -> list[Store]:
    """A store for each file, named by its path below the root that it was found at; by its own name if it was asked for itself."""
    stores = []
    for file in files:
        inside = (root.rstrip("/") for root in roots if file.path.startswith(f"{root.rstrip('/')}/"))
        above = max(inside, key=len, default=file.path.rpartition("/")[0])
        stores.append(Store((file,), file.path[len(above) :].lstrip("/")))
    return stores


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
