"""Format: what rawlog can do with one kind of file, as a value. Family: the formats of one system.

What can be done with a file is in the module that the format names, which is imported when it is first needed: naming every format
imports neither NumPy nor the compiler.
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TypeVar

from rawlog.model.errors import refusal
from rawlog.model.finding import Rule
from rawlog.model.layout import Layout
from rawlog.model.table import Table

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from rawlog.io.output import Folder, Output
    from rawlog.io.storage import Source
    from rawlog.model.errors import DataError
    from rawlog.model.explain import Node
    from rawlog.model.frames import Bytes, Frames
    from rawlog.model.groups import Group, Transactions
    from rawlog.model.store import Store


@contextmanager
def lasting() -> Iterator[None]:
    """Inside, many objects are made that all stay, as for a million files: Python does not look for garbage among them, again and again."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


# What several consumers of one object need and only one of them should compute: checksums of a window, the state of a store.


T = TypeVar("T")


class Sharing:
    """An object whose class has a dict `_shared`, in which results are kept."""

    __slots__ = ()
    _shared: dict[object, Any]

    def share(self, make: Callable[[Self], T]) -> T:
        """What `make` gives for this object, computed once for everybody who asks."""
        if make not in self._shared:
            self._shared[make] = make(self)
        return self._shared[make]  # type: ignore[no-any-return]

    def shared(self, make: Callable[[Self], T]) -> T | None:
        """What `make` gave for this object, if somebody asked already."""
        return self._shared.get(make)


MAX_DECOMPRESSED, MAX_HEADERS = 64 << 20, 1 << 20
"""Limits of reading, unless the caller says otherwise: the bytes that one compressed part may grow to, the headers of one record."""
#: Which rows of a batch would read back otherwise than they are, by column.
Judge = Callable[["pa.RecordBatch"], "Mapping[str, NDArray[np.bool_]]"]


class Deferred:
    """A function that is imported when it is first called: `Deferred("rawlog.formats.replay.recording", "scan")`."""

    def __init__(self, module: str, name: str) -> None:
        self.module = module
        self.name = name
        self._function: Callable[..., Any] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._function is None:
            self._function = getattr(importlib.import_module(self.module), self.name)
        return self._function(*args, **kwargs)

    def __reduce__(self) -> tuple[object, ...]:
        return (Deferred, (self.module, self.name))

    def __repr__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True, slots=True)
class Place:
    """What a file's name and surroundings say of its content.

    `group` names what belongs together (a partition directory); `start_offset` is the one in the name, or what `Store.settle` says;
    `state` is a word for a file that the system itself would not load (`deleted`, `cleaned`, `stray` …), else None. `sealed` is set by
    `Store.settle` for a file that the system does not append to any more, because another one follows it. `remote` is set for
    a copy in the system's remote storage: the name that the file has, or had, on the system's own disk.
    """

    topic: str | None = None
    partition: int | None = None
    start_offset: int | None = None
    group: str | None = None
    state: str | None = None
    sealed: bool = False
    remote: str | None = None

    def __reduce__(self) -> tuple[object, ...]:
        # The fields as they are: what a dataclass does by itself takes several times as long, and splits carry millions.
        values = (self.topic, self.partition, self.start_offset, self.group, self.state, self.sealed, self.remote)
        return Place, values


@dataclass(frozen=True, slots=True)
class File:
    """A file that was found: recognised (`format`), or not; `problem` says why it cannot be read."""

    path: str
    size: int
    modified: float | None = None
    format: str | None = None
    place: Place = Place()
    problem: str | None = None

    @property
    def system(self) -> str | None:
        return self.format.split(".", 1)[0] if self.format else None

    def check_readable(self) -> None:
        """AccessError if it cannot be read."""
        if self.problem is not None:
            raise refusal(self.path, self.problem)

    def __reduce__(self) -> tuple[object, ...]:
        return File, (self.path, self.size, self.modified, self.format, self.place, self.problem)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the frames of a file begin, and what its header says of their kind."""

    position: int = 0
    kind: int = 0


@dataclass(frozen=True, slots=True)
class Want:
    """What a decoder is asked for: a table cut to the wanted columns, of which file, within which bounds.

    `limit` is the largest size a compressed part may grow to, `max_headers` the most headers of one record; `context` is what
    `Codec.context` made of the group. `compact`: a text that is the same in every row may come as a dictionary column.
    """

    table: Table
    file: File
    limit: int = MAX_DECOMPRESSED
    context: Any = None
    options: Mapping[str, str] = field(default_factory=dict)
    max_headers: int = MAX_HEADERS
    compact: bool = False


@dataclass(frozen=True, slots=True)
class Spans:
    """What frames cover, one value per frame, known without decoding them. None: the format does not say.

    Offsets are half-open ranges; times are microseconds, `NO_TIME` where a frame has none; `records` is the number of
    rows that a frame gives in the table `records`, -1 where only decoding tells. `min_is_exact` is false, for all frames or for
    each, where rows may lie before `min_time` (it is then only what the frame says of itself).
    """

    start_offset: NDArray[np.int64] | None = None
    stop_offset: NDArray[np.int64] | None = None
    min_time: NDArray[np.int64] | None = None
    max_time: NDArray[np.int64] | None = None
    records: NDArray[np.int64] | None = None
    min_is_exact: bool | NDArray[np.bool_] = True


class Offsets(NamedTuple):
    """The first offset of each frame and the one after its last. `is_compacted`: frames show that compaction removed offsets.
    `is_numbered`: producers numbered frames, so that their numbers may show a loss.
    """

    first: NDArray[np.int64]
    stop: NDArray[np.int64]
    is_compacted: bool = False
    is_numbered: bool = False


class ExpectedGaps(NamedTuple):
    """Which gaps between the frames of a store say nothing: those before `stop`; and, unless `named` is None, those that have none of these
    offsets, as long as nothing numbers the frames.
    """

    stop: int
    named: NDArray[np.int64] | None


NO_TIME = -(1 << 63)


class Undone(Protocol):
    """Tells the offsets of a file that belong to aborted or undecided transactions. Picklable."""

    def for_part(self, start: int | None, stop: int | None) -> Undone:
        """The same for the part of the file from byte `start` to `stop`."""

    def undone(self, frames: Frames) -> NDArray[np.int64]:
        """The first and the last offset of each frame of such a transaction, in order, and 1 if that is still open at the end, else 0."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A part of a partition in a place that was not named: `path` is its directory here, `text` says what is missing."""

    topic: str
    partition: int
    path: str
    text: str


@dataclass(frozen=True, slots=True)
class Keep:
    """Which rows of `records` stay: `test` is shown batches of `columns`, and is true for these. What lies wholly outside of `start` to
    `stop` is not copied.

    `limit` is the largest size a compressed part may grow to.
    """

    columns: tuple[str, ...]
    test: Callable[[pa.RecordBatch], NDArray[np.bool_]]
    start: int | None = None
    stop: int | None = None
    limit: int = MAX_DECOMPRESSED
    max_headers: int = MAX_HEADERS


@dataclass(frozen=True, slots=True)
class SplitWriter:
    """How rows are written in several splits at once.

    `write` takes batches and an empty directory, fills it, and returns what it has (picklable); `join` takes what was returned for all
    splits, in the order of the rows, with their directories, and makes the whole appear at the target.
    """

    write: Callable[[Iterable[pa.RecordBatch], Folder, Mapping[str, str]], Any]
    join: Callable[[Sequence[tuple[str, Any]], Output, Mapping[str, str]], int]


class Codec(Protocol):
    """What rawlog can do with one kind of file: the functions of the module that a Format names.

    A module implements what its files allow. `scan` and, for tables, `decode` are the least; an ability that it does not define is one
    that the format does not have (`Format.can`).
    """

    #: The structures of the file, for its page in the documentation.
    LAYOUTS: tuple[Layout, ...]

    def begin(self, head: bytes, size: int, /) -> Origin:
        """Where frames begin, by the first bytes and the size of the file. DataError for an invalid header."""

    def survey(self, source: Source, /) -> Origin:
        """The same from the whole opened file, where the head alone does not tell; `begin` is not asked then."""

    def presume(self, source: Source, /) -> Sequence[Origin]:
        """Where frames may begin if the header is damaged, the likeliest first. Without it they are searched for from the first byte."""

    def scan(self, data: Bytes, kind: int, /) -> Frames:
        """The whole frames of a window of bytes, from its first byte on."""

    def resync(self, data: Bytes, position: int, kind: int, /) -> int:
        """The next position from `position` on where a frame credibly begins, or -1."""

    def fault(self, frames: Frames, /) -> DataError:
        """What is wrong where a scan stopped at damage."""

    def decode(self, frames: Frames, want: Want, /) -> Iterator[pa.RecordBatch]:
        """Batches of exactly `want.table.schema`. Before it raises a DataError with the position of a frame, it has yielded all rows of
        the frames before that one.
        """

    def decode_together(
        self, frames: Frames, wants: Sequence[Want], /
    ) -> Iterator[tuple[int, Sequence[pa.RecordBatch]]]:
        """Several tables from one decoding: for runs of frames, in order, how many frames they are and the rows for each of the wants.

        The tables are `records` and one with the same message bytes (`Table.payload`). It may end early, at damage or at anything
        unusual: the frames that are left are decoded for one table at a time.
        """

    def spans(self, frames: Frames, file: File, /) -> Spans:
        """What frames cover. Raises as `decode` does for frames whose checksum is wrong."""

    def offsets(self, frames: Frames, file: File, /) -> Offsets:
        """The offsets of frames, by headers or positions where these tell them.

        For a format whose files continue one another: reading notes frames that do not rise or belong into another file. Of an
        `ordered` format they are those of rows; of others they are addresses in all of the files together.
        """

    def misplaced(self, frames: Frames, file: File, /) -> NDArray[np.int64]:
        """The positions of frames that are rows, but not at their place: reading reports them."""

    def count(
        self, file: File, start: int, stop: int | None, following: int | None, see: Callable[[Offsets], None], /
    ) -> tuple[int, int]:
        """Rows of `records` by the headers of frames alone, without comparing checksums, and the byte up to which they tell it.

        `following` is the offset that the next file begins at: frames after it, or whose offsets do not rise, are not counted. `see` is
        shown the offsets of frames that are.
        """

    def tally(self, frames: Frames, file: File, /) -> Mapping[str, Mapping[str, tuple[int, int]]]:
        """How often something occurs in sound frames: aspect (`codec`) -> label (`zstd`) -> number and bytes."""

    def seek(self, file: File, group: Sequence[File], offset: int | None, time: int | None, /) -> int:
        """The position of a frame at or before the first wanted row. Time is in microseconds."""

    def cuts(self, file: File, group: Sequence[File], size: int, /) -> list[int]:
        """Positions of frames at which to cut the file into pieces of about `size` bytes, known without reading it."""

    def pick(
        self, file: File, group: Sequence[File], table: Table, selection: Any, /
    ) -> list[tuple[int, int | None]] | None:
        """Byte ranges, cut at frames, outside of which there is no row that a Selection takes; None: unknown."""

    def explain(self, frames: Frames, file: File, /) -> list[Node]:
        """The parts of a single frame, to the last bit."""

    def explain_header(self, head: bytes, file: File, /) -> list[Node]:
        """The parts of the file's header."""

    def encode(self, batches: Iterable[pa.RecordBatch], options: Mapping[str, str], /) -> Iterator[bytes]:
        """The bytes of a file with these rows of `records`, in pieces."""

    def losses(self, options: Mapping[str, str], /) -> Judge:
        """What is shown batches of `records` and answers which rows would read back otherwise, by column."""

    def rules(self) -> Sequence[Rule[Any]]:
        """Checks over one file's frames."""

    # What needs the other files of a store:

    def summary(self, file: File, group: Sequence[File], start: int, stop: int | None, /) -> Any:
        """What is shown every window of these bytes (`see`) and then made small (`close`): what checks of the group need of the file.

        Those of neighbouring splits `merge`; `rises` says whether that gave the right thing.
        """

    def lost_offsets(self, group: Sequence[File], first: int, stop: int, /) -> Sequence[tuple[int, int]]:
        """Of offsets from `first` to before `stop`, some of which no file has: the ranges that are lost, each half-open. Compaction cannot
        have removed them.
        """

    def expected_gaps(self, group: Sequence[File], /) -> ExpectedGaps:
        """Which gaps inside of files need not be asked about, by other files than those with frames."""

    def contradicted(self, group: Sequence[File], file: File, end: int, /) -> Iterator[str]:
        """What other files say against one whose frames end at `end`: it is a copy, or the next file is missing."""

    def context(self, file: File, group: Sequence[File], options: Mapping[str, str], /) -> Any:
        """Facts of the whole group that decoding needs (aborted transactions …). A stream stops at their `last_stable_offset`."""

    def undone(self, file: File, group: Sequence[File], /) -> Undone | None:
        """What says which offsets belong to aborted transactions; None: there are no transactions."""

    def floor(self, file: File, group: Sequence[File], /) -> int | None:
        """The first offset that the system would still serve, where it lies inside the file."""

    def write(self, batches: Iterable[pa.RecordBatch], output: Output, options: Mapping[str, str], /) -> int:
        """Write rows of `records` as the files of a directory, which appear only when all are whole. Returns the number of rows."""

    @property
    def splits(self) -> SplitWriter:
        """The same in splits that are written anywhere, at the same time, and joined in one place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One kind of file: its names, its tables, how it is recognised without NumPy, and the module that does everything else."""

    name: str
    title: str
    files: str
    #: The module that implements what can be done with the file (see Codec), imported when first needed. `package.module:NAME` is an object
    #: in a module. None: the file is only listed.
    module: str | None = None
    tables: tuple[Table, ...] = ()
    #: Columns of `records` that survive being written and read again; none: the format cannot be written.
    carries: frozenset[str] = frozenset()
    #: By name and place: path -> Place, or None if the file is not of this format.
    match: Callable[[str], Place | None] | None = None
    #: By the first bytes: (head, size of the file) -> whether they are of this format.
    sniff: Callable[[bytes, int], bool] | None = None
    #: Offsets rise through a file, and from file to file of a group by their places' `start_offset`.
    ordered: bool = False
    #: Offsets are positions in bytes: the last N rows are counted, not reckoned from the end offset.
    by_position: bool = False
    #: Read in one piece, from the first byte on: files that one checksum covers, or that are text.
    whole: bool = False
    #: Whether every frame has a checksum, and `resync` gives only beginnings of frames whose checksum is right.
    checked: bool = False
    #: Whether a system appends to the file and cuts off, when it starts, what is no frame at its end: such bytes are an unfinished frame.
    appended: bool = False
    #: Whether there are checks over one file's frames, beyond those that every format has.
    has_rules: bool = False
    #: The formats of files that a summary looks into: those of the same start, and those of the whole group.
    near: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        return self.name.split(".", 1)[0]

    @property
    def codec(self) -> Codec:
        """The module that implements the format. Ask `can` first for what not every format has."""
        assert self.module is not None, f"{self.name} is only listed"
        return _codec(self.module)

    def can(self, ability: str) -> bool:
        """Whether the format has an ability: the name of a function of Codec."""
        assert hasattr(Codec, ability), ability
        return self.module is not None and hasattr(self.codec, ability)

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The structures of the file."""
        return getattr(self.codec, "LAYOUTS", ()) if self.module is not None else ()

    @property
    def is_written(self) -> bool:
        """Whether rows of `records` can be written in this format, as a file or as a directory."""
        return bool(self.carries)

    @property
    def all_rules(self) -> Sequence[Rule[Any]]:
        """The checks over one file's frames."""
        return self.codec.rules() if self.can("rules") else ()

    def abilities(self) -> list[str]:
        """What can be done, in the words of `rawlog formats`; the module is not imported for it."""
        can = {
            "read": bool(self.tables),
            "verify": self.has_rules,
            "explain": self.module is not None,
            "write": self.is_written,
        }
        return [name for name, there in can.items() if there]


@lru_cache(maxsize=256)
def _codec(module: str) -> Codec:
    name, _, object = module.partition(":")
    imported: Any = importlib.import_module(name)
    codec: Codec = getattr(imported, object) if object else imported
    return codec


class UnknownFile(Enum):
    """What happens to an unknown file when its store is rewritten."""

    #: Copy it unchanged.
    COPY = auto()
    #: Leave it out and name it in `Report.left_out`: the verb ends with 1.
    LEAVE = auto()
    #: Leave it out with a note: the system makes it again by itself (a lock, the log of a database).
    REMAKE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """How rows of a system are found by a key or an id, where that is more than an equal column `key`."""

    #: What its ids are the ids of.
    named: str
    #: (table, "key" or "id") -> the columns that the tests below look at; empty: rows of that table have none.
    columns: Callable[[Table, str], tuple[str, ...]]
    #: (a batch with those columns, the id) -> which rows have it.
    by_id: Callable[[pa.RecordBatch, str], pa.Array]
    #: (a batch with those columns, the key) -> which rows have it; None: those whose column `key` is equal.
    by_key: Callable[[pa.RecordBatch, bytes], pa.Array] | None = None
    #: (frames, file, the id) -> which frames have an id that their rows in `records` do not tell; None: no frame has.
    frames: Callable[[Frames, File, str], NDArray[np.bool_] | None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The formats of one system, and the class of its stores, which does what concerns several files at once."""

    name: str
    title: str
    formats: tuple[Format, ...]
    #: `package.module:NAME` of the class of its stores, imported when first needed. None: its files are only read one by one.
    store: str | None = None
    #: Tables that are made of several files: `Store.rows_of`.
    folds: tuple[Table, ...] = ()
    #: The system among whose partitions its own directories are: it looks at files of that one too (`Store.takes`; KRaft's metadata log is
    #: an ordinary Kafka log). They are not repaired as that one's, nor is it in their way.
    host: str | None = None
    #: Each of its files is a store of its own, and so is what is written of it: a file named like the last part of the store's name.
    is_single: bool = False
    #: The names of options that its tables understand, beyond those that every table does.
    options: tuple[str, ...] = ()
    #: (a batch of `records`) -> the same with the key and headers that its rows had before they were written in this system.
    restore: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None
    #: (files, what to do at damage: raise, stop or skip) -> the consumer groups that they know.
    groups: Callable[[Sequence[File], str], Sequence[Group]] | None = None
    #: (files) -> a sentence on each file or directory that has groups which cannot be read.
    unread_groups: Callable[[Sequence[File]], Iterable[str]] | None = None
    #: (files, what to do at damage) -> the transactions in them.
    transactions: Callable[[Sequence[File], str], Transactions] | None = None

    @property
    def store_class(self) -> type[Store]:
        """The class of its stores. Ask `Store.can` for what not every system has."""
        return _store_class(self.store or "rawlog.model.store:Store")

    def looks_at(self, system: str | None) -> bool:
        """Whether files of a system may concern it."""
        return system is not None and system in (self.name, self.host)

    def makes(self, table: Table | str) -> bool:
        """Whether it makes a table of several files."""
        return any(fold.name == (table if isinstance(table, str) else table.name) for fold in self.folds)

    def files_for(self, table: str | None, files: Iterable[File]) -> list[File]:
        """The files that a folded table is made of, or, for None, that rules over several files look at."""
        near = [file for file in files if self.looks_at(file.system)]
        if not near or not self.store_class.can("takes"):
            return [file for file in near if file.system == self.name]
        return [file for file in near if self.store_class.takes(table, file)]

    @property
    def tables(self) -> tuple[Table, ...]:
        """The family's own tables, without the ones that every system has."""
        seen: dict[str, Table] = {}
        for table in (*(table for format in self.formats for table in format.tables), *self.folds):
            if "." in table.name:
                seen.setdefault(table.name, table)
        return tuple(seen.values())


@lru_cache(maxsize=32)
def _store_class(name: str) -> type[Store]:
    module, _, kind = name.partition(":")
    store_class: type[Store] = getattr(importlib.import_module(module), kind)
    return store_class


@dataclass(slots=True)
class Replicas(Sharing):
    """What a rule over two replicas sees: the files of both, and what rules share. One side may have none."""

    name: str
    a: Sequence[File]
    b: Sequence[File]
    _shared: dict[object, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Inspection(Sharing):
    """What a rule sees of a file: the window it is at, its own memory of the windows before, and what rules share."""

    file: File
    format: Format
    frames: Frames
    memory: dict[str, Any] = field(default_factory=dict)
    limit: int = MAX_DECOMPRESSED
    max_headers: int = MAX_HEADERS
    _shared: dict[object, Any] = field(default_factory=dict)
    #: Where the bytes end that are checked; None: with the file.
    end: int | None = None
