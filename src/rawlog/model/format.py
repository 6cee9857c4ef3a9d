"""Format: what rawlog can do with one kind of file, as a value. Family: the formats of one system.

Abilities are functions; one that a format lacks is None. They are usually `Deferred`, so that naming every format
imports neither NumPy nor the compiler.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Protocol

from rawlog.model.cache import Sharing
from rawlog.model.finding import (
    Account,
    Prediction,
    Rule,
    Startup,
)
from rawlog.model.layout import Layout
from rawlog.model.table import Table
from rawlog.model.verb import Verb

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from rawlog.io.output import Folder, Output
    from rawlog.io.storage import Source
    from rawlog.model.difference import Difference
    from rawlog.model.errors import DataError
    from rawlog.model.explain import Node
    from rawlog.model.frames import Bytes, Frames
    from rawlog.model.groups import Group
    from rawlog.model.recovery import Asked, RescueAsked, Rescuer, Restorer
    from rawlog.model.report import Report
    from rawlog.model.store import Copies, Panel, Store
    from rawlog.model.transactions import Transactions

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

    `group` names what belongs together (a partition directory); `start_offset` is the one in the name, or what `Family.settle` says;
    `state` is a word for a file that the system itself would not load (`deleted`, `cleaned`, `stray` …), else None. `sealed` is set by
    `Family.settle` for a file that the system does not append to any more, because another one follows it. `remote` is set for
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
    `Format.context` made of the group. `compact`: a text that is the same in every row may come as a dictionary column.
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
    rows that a frame gives in the table `records`, -1 where only decoding tells. `min_is_exact` is false where rows may
    lie before `min_time` (it is then only what the frame says of itself).
    """

    start_offset: NDArray[np.int64] | None = None
    stop_offset: NDArray[np.int64] | None = None
    min_time: NDArray[np.int64] | None = None
    max_time: NDArray[np.int64] | None = None
    records: NDArray[np.int64] | None = None
    min_is_exact: bool = True


NO_TIME = -(1 << 63)


class Undone(Protocol):
    """What says which offsets of a file belong to transactions that were aborted, or that nothing decides. Picklable."""

    def for_part(self, start: int | None, stop: int | None) -> Undone:
        """The same for the part of the file from byte `start` to `stop`."""

    def undone(self, frames: Frames) -> NDArray[np.int64]:
        """The first and the last offset of each frame of such a transaction, in order, and 1 if that is still open at the end, else 0."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A part of a partition that is stored at a place that was not named: `path` is its directory here, `text` says what is missing."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One kind of file, and all that can be done with it."""

    name: str
    title: str
    files: str
    layouts: tuple[Layout, ...] = ()
    tables: tuple[Table, ...] = ()
    #: Columns of `records` that survive being written and read again.
    carries: frozenset[str] = frozenset()
    #: By name and place: path -> Place, or None if the file is not of this format.
    match: Callable[[str], Place | None] | None = None
    #: By the first bytes: (head, size of the file) -> whether they are of this format.
    sniff: Callable[[bytes, int], bool] | None = None
    #: (head, size of the file) -> Origin; raises DataError for an invalid header.
    begin: Callable[[bytes, int], Origin] | None = None
    #: Where frames may begin if the header is damaged, the likeliest first. Without it they are searched for from the first byte on.
    presume: Callable[[Source], Sequence[Origin]] | None = None
    #: Offsets rise through a file, and from file to file of a group by their places' `start_offset`.
    ordered: bool = False
    #: Offsets are positions in bytes: the last N rows are counted, not reckoned from the end offset.
    by_position: bool = False
    #: Read in one piece, from the first byte on: files that one checksum covers, or that are text.
    whole: bool = False
    #: The same from the whole opened file, for formats whose head alone does not tell; `begin` is not asked then.
    survey: Callable[[Source], Origin] | None = None
    #: (bytes, kind) -> Frames, from the first byte on.
    scan: Callable[[Bytes, int], Frames] | None = None
    #: (frames, want) -> batches of exactly want.table.schema; before raising a DataError whose position is that of a
    #: frame, everything in front of that frame has been yielded.
    decode: Callable[[Frames, Want], Iterator[pa.RecordBatch]] | None = None
    #: (frames, wants) -> for runs of frames, in order, how many frames they are and the rows for each of the wants: several tables from one
    #: decoding, `records` and a table with the same message bytes (`Table.payload`). It may end early, at damage or at anything unusual:
    #: the frames that are left are decoded for one table at a time. None: all of them are.
    decode_together: Callable[[Frames, Sequence[Want]], Iterator[tuple[int, Sequence[pa.RecordBatch]]]] | None = None
    #: (frames, file) -> Spans; raises as decode does for frames whose checksum is wrong.
    spans: Callable[[Frames, File], Spans] | None = None
    #: (file, its group's files, start, stop) -> what is shown every window of those bytes (`see`), and then made small (`close`): what the
    #: checks of the group need to know of the file. Those of neighbouring splits `merge`; `rises` says whether that gave the right thing.
    summary: Callable[[File, Sequence[File], int, int | None], Any] | None = None
    #: (frames whose checksums are right, file) -> how often something occurs: aspect (`codec`) -> label (`zstd`) -> number and
    #: bytes.
    tally: Callable[[Frames, File], Mapping[str, Mapping[str, tuple[int, int]]]] | None = None
    #: The formats of files that a summary looks into: those of the same start, and those of the whole group.
    near: tuple[str, ...] = ()
    #: (file, start, stop, the offset that the next file begins at) -> rows of `records` by the headers of frames alone, without comparing
    #: checksums, and up to which byte those tell it of frames whose offsets rise and belong into the file.
    count: Callable[[File, int, int | None, int | None], tuple[int, int]] | None = None
    #: (bytes, position, kind) -> the next position >= position where a frame credibly begins, or -1.
    resync: Callable[[Bytes, int, int], int] | None = None
    #: Whether every frame has a checksum, and `resync` gives only beginnings of frames whose checksum is right.
    checked: bool = False
    #: Whether a system appends to the file and cuts off, when it starts, what is no frame at its end: such bytes are an unfinished frame.
    appended: bool = False
    #: (frames whose status is damage) -> the error that says what is there.
    fault: Callable[[Frames], DataError] | None = None
    #: (frames, file) -> the first offset of each frame and the one after its last, by headers or positions alone, for a format whose files
    #: continue one another: reading notes those that do not rise, or that belong into another file, and ends with 1. Of an `ordered`
    #: format they are those of rows; of others they are addresses in all of the files together.
    offsets: Callable[[Frames, File], tuple[NDArray[np.int64], NDArray[np.int64]]] | None = None
    #: (the files of a group, first, stop) -> whether `offsets` that no file has, between two that follow one another, are lost; not if
    #: compaction took them out, or may have.
    is_lost: Callable[[Sequence[File], int, int], bool] | None = None
    #: (the files of a group, one of them, where its frames end) -> what the others say against it: it is a copy of another one, a file is
    #: missing between it and the next, frames were where only noise is. Reading notes each, and ends with 1.
    contradicted: Callable[[Sequence[File], File, int], Iterator[str]] | None = None
    #: (frames, file) -> the positions of frames that are rows, but not at their place: reading says so, and ends with 1.
    misplaced: Callable[[Frames, File], NDArray[np.int64]] | None = None
    #: (frames with one frame, file) -> the parts of that frame, to the last bit.
    explain: Callable[[Frames, File], list[Node]] | None = None
    #: (head, file) -> the parts of the file's own header.
    explain_header: Callable[[bytes, File], list[Node]] | None = None
    #: (file, its group's files) -> facts from the whole group that decoding needs (aborted transactions …). Their `last_stable_offset`,
    #: if they have one, is where rows begin that may still change: a stream stops there.
    context: Callable[[File, Sequence[File], Mapping[str, str]], Any] | None = None
    #: (file, its group's files) -> what says which offsets belong to transactions that were aborted; None: there are no transactions.
    undone: Callable[[File, Sequence[File]], Undone | None] | None = None
    #: (file, its group's files) -> the first offset that the system would still hand out, where it lies inside the file.
    floor: Callable[[File, Sequence[File]], int | None] | None = None
    #: (file, its group's files, offset or None, time in µs or None) -> a frame's position, at or before the first wanted row.
    seek: Callable[[File, Sequence[File], int | None, int | None], int] | None = None
    #: (file, its group's files, table, Selection) -> byte ranges, cut at frames, outside of which there is no wanted row; None: unknown.
    pick: Callable[[File, Sequence[File], Table, Any], list[tuple[int, int | None]] | None] | None = None
    #: (file, its group's files, bytes a piece) -> positions of frames, known without reading the file, at which to cut it.
    cuts: Callable[[File, Sequence[File], int], list[int]] | None = None
    #: (batches of `records`, options) -> the bytes of a file, in pieces.
    encode: Callable[[Iterable[pa.RecordBatch], Mapping[str, str]], Iterator[bytes]] | None = None
    #: (batches of `records`, the Output of a directory, options) -> the number of rows. For formats whose rows go to several files at once;
    #: nothing appears in the directory unless all of it is whole.
    write: Callable[[Iterable[pa.RecordBatch], Output, Mapping[str, str]], int] | None = None
    #: The same in splits that are written anywhere, at the same time, and joined in one place; None: one writer takes all rows.
    splits: SplitWriter | None = None
    #: (options) -> what is shown batch after batch of `records` and says which rows would read back otherwise, by column.
    losses: Callable[[Mapping[str, str]], Judge] | None = None
    #: (a store, the directory to fill, keep, options) -> Report: the same frames without the rows that `keep` says no to.
    sift: Callable[[Store, Folder, Keep, Mapping[str, str]], Report] | None = None
    #: (the stores that were sifted, their reports, the directory they are in) -> the report on all of them, with what that directory
    #: says of itself and of them written into it.
    around: Callable[[Sequence[Store], Sequence[Report], Folder], Report] | None = None
    #: Checks over one file's frames.
    rules: Sequence[Rule[Any]] | Callable[[], Sequence[Rule[Any]]] = ()

    @property
    def family(self) -> str:
        return self.name.split(".", 1)[0]

    @property
    def is_written(self) -> bool:
        """Whether rows of `records` can be written in this format, as a file or as a directory."""
        return self.encode is not None or self.write is not None

    @property
    def all_rules(self) -> Sequence[Rule[Any]]:
        return self.rules() if callable(self.rules) else self.rules

    def abilities(self) -> list[str]:
        """What can be done, in the words of `rawlog formats`."""
        can = {
            "read": self.decode is not None,
            "verify": bool(self.rules),
            "explain": self.explain is not None,
            "write": self.is_written,
        }
        return [name for name, there in can.items() if there]


class UnknownFile(Enum):
    """What a verb that writes stores again does with a file that no format knows."""

    #: Copy it unchanged.
    COPY = auto()
    #: Leave it out and name it in `Report.left_out`: the verb ends with 1.
    LEAVE = auto()
    #: Leave it out with a note: the system makes it again by itself (a lock, the log of a database).
    REMAKE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """A verb that writes stores of a family again, below a new directory: a policy that the family's one writer applies.

    A source is never changed. Stores are rewritten anywhere, in any order.
    """

    #: (a store, the directory to fill, options) -> Report. With `aside` a fourth argument: the directory for what is cut, or None.
    do: Callable[..., Report]
    #: The names of the options that it understands. Of `now` (milliseconds) and `at_once` (how many stores share the machine's memory)
    #: the job sets the default.
    options: tuple[str, ...] = ()
    #: (the family's files, options) -> the stores to rewrite, in order; None: all the files are one.
    stores: Callable[[Sequence[File], Mapping[str, str]], Sequence[Store]] | None = None
    #: (the stores, their reports, the directory they are in) -> the report on all of them, with what that directory says of itself and
    #: of them written into it. None: nothing is written around stores.
    join: Callable[[Sequence[Store], Sequence[Report], Folder], Report] | None = None
    #: The option that names another directory, for what is cut.
    aside: str | None = None
    #: The codes of findings that it leaves as they are. A dry run reports those of the source; else the result itself is verified.
    unrepaired: tuple[str, ...] = ()
    #: A store is one file, and so is its result: `do` writes a file named like the last part of the store's name. Stores are named by
    #: their path below the directory that was asked for.
    one_file: bool = False
    #: `do` takes a fourth argument, for `erase`: the Keep that says which rows of `records` stay; None: all of them.
    keeps: bool = False
    #: Of an erased record only the content goes; its place, its id, and rows without a value stay.
    content_only: bool = False
    #: The offset of a record is its number in a file: those after an erased one get others.
    renumbers: bool = False


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
    """The formats of one system, with what concerns several of its files at once."""

    name: str
    title: str
    formats: tuple[Format, ...]
    #: Tables made from a whole group or tree: table name -> (files, options) -> batches of that table's schema.
    folds: Mapping[str, Callable[[Sequence[File], Mapping[str, str]], Iterator[pa.RecordBatch]]] = field(
        default_factory=dict
    )
    fold_tables: tuple[Table, ...] = ()
    #: (name of a folded table, or None for rules over several files; file) -> whether it is made of that file; None: of all files of
    #: the family's own formats. A family may so look at files of another (KRaft's metadata log is an ordinary Kafka log).
    takes: Callable[[str | None, File], bool] | None = None
    #: The system among whose partitions its own directories are: they are not repaired as that one's, nor is it in their way.
    host: str | None = None
    #: As Format.summary, for files of other families that it `takes`: what its own checks over several files need to know of them. None
    #: for a file that they do not ask about.
    summary: Callable[[File, Sequence[File], int, int | None], Any] | None = None
    #: (name of a folded table, its files) -> the files in sets that concern nothing but themselves, each under a name that stays;
    #: None: one for each group.
    units: Callable[[str, Sequence[File]], Mapping[str, Sequence[File]]] | None = None
    #: The names of options that its tables understand, beyond those that every table does.
    options: tuple[str, ...] = ()
    #: Checks of the files of one group (a partition) against one another; each takes the group's files.
    group_rules: Sequence[Rule[Any]] | Callable[[], Sequence[Rule[Any]]] = ()
    #: (the files of a group) -> the account of every offset in it, for each partition or queue. For `verify --complete`.
    accounts: Callable[[Sequence[File]], Sequence[Account]] | None = None
    #: (its files in a tree) -> the accounts of stores that should be there and of which nothing is. For `verify --complete`.
    absent: Callable[[Sequence[File]], Sequence[Account]] | None = None
    #: (the files of a group) -> what the system would do with them when it starts.
    predictions: Callable[[Sequence[File]], Sequence[Prediction]] | None = None
    #: (its files in a tree) -> for the directories of each node, what the system would do with them when it starts; what it would do
    #: with each group in them is left out.
    startups: Callable[[Sequence[File]], Sequence[Startup]] | None = None
    #: Each of its files is a store of its own: it has accounts without a group.
    is_single: bool = False
    #: Checks of two replicas of one group against each other; each takes Replicas. None: their records are compared.
    replica_rules: Callable[[], Sequence[Rule[Any]]] | None = None
    #: (a store) -> its name in the system, by its place alone; None if nothing can be a replica of it. Stores with different names are
    #: not replicas.
    store_name: Callable[[Store], str | None] | None = None
    #: (stores whose names were found more than once) -> those that are replicas of one another, by their identity, the best first. Names,
    #: sizes, indexes and small files tell that; data is not read.
    copies: Callable[[Sequence[Store]], Sequence[Copies]] | None = None
    #: (a store) -> the facts by which `copies` identifies it, from small files; a fact that is not known is empty. A lake records them: the
    #: store may be gone, or another one of the same name, when the next run looks.
    facts: Callable[[Store], tuple[str, ...]] | None = None
    #: How its rows are found by key and id; None: by an equal column `key`, and they have no ids.
    lookup: Lookup | None = None
    #: (files of a tree) -> names of topics that are known without reading data, of files whose places do not tell one.
    topics: Callable[[Sequence[File]], Iterable[str]] | None = None
    #: (path of a file that no format knows, below the directory of a store or the one around stores; whether it is that of a store) -> what
    #: is done with it when the store is written again. None: it is copied. It is asked after `Rewrite.do`, and only about files that `do`
    #: neither wrote at the same place nor named in its report (in `left_out`, or in an entry, KEPT for example): a family that decides
    #: on some of them itself finds them in `Store.unknown`. `erase` and `rescue` copy none of them: they name what is not made again.
    unknown_files: Callable[[str, bool], UnknownFile] | None = None
    #: What writes a store again, by its verb: `rebuild`, `repair`, `compact`.
    rewrites: Mapping[str, Rewrite] = field(default_factory=dict)
    #: (a batch with key and headers of `records`) -> an id that all copies of a record share, null where there is none: what is erased
    #: is so in every copy.
    copy_ids: Callable[[pa.RecordBatch], pa.Array] | None = None
    #: (a batch of `records` that are erased) -> such ids of others that are parts of them and go with them; None: only their copies do.
    part_ids: Callable[[pa.RecordBatch], pa.Array] | None = None
    #: (files of a tree) -> parts of their stores that exist, as the files say, and are not among them: they cannot be erased from.
    elsewhere: Callable[[Sequence[File]], Sequence[Elsewhere]] | None = None
    #: (a batch of `records`) -> the same with the key and headers that its rows had before they were written in this system.
    restore: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None
    #: (the family's files of a tree) -> the same, with what they say of one another in their places: which of them the system
    #: would not load now (`state`), where a file begins in a log of several (`start_offset`), and which store it is of (`group`). Files
    #: that others describe, and that are stored in another form, may be added.
    settle: Callable[[Sequence[File]], Sequence[File]] | None = None
    #: (files, what to do at damage: raise, stop or skip) -> the consumer groups that they know.
    groups: Callable[[Sequence[File], str], Sequence[Group]] | None = None
    #: (files) -> a sentence on each file or directory that has groups which cannot be read.
    unread_groups: Callable[[Sequence[File]], Iterable[str]] | None = None
    #: (files, what to do at damage) -> the transactions in them.
    transactions: Callable[[Sequence[File], str], Transactions] | None = None
    #: (a store with its summaries) -> what `report` shows of it that only this system has: a cluster, blobs, queues. Files that a summary
    #: covers are not read again.
    overview: Callable[[Store], Iterable[Panel]] | None = None
    #: Operations that only this family has, by name: `rawlog NAME` on the command line.
    verbs: Mapping[str, Verb] = field(default_factory=dict)
    #: (what is asked for, the path of the target) -> how the verb `restore` makes a data directory that the system starts on.
    restorer: Callable[[Asked, Path], Restorer] | None = None
    #: (what is asked for, the path of the target) -> how the verb `rescue` makes one whole store of the copies on several disks.
    rescuer: Callable[[RescueAsked, Path], Rescuer] | None = None
    #: (file) -> whether the rescuer of this family looks at it; None: at the files of the family's own formats.
    rescues: Callable[[File], bool] | None = None
    #: (its files on one side, those on the other, Selection) -> differences, and now and then how many more things are alike. For
    #: families whose records are not compared one by one; `compared` names the table whose files these are (see `takes`).
    compare: Callable[[Sequence[File], Sequence[File], Any], Iterator[Difference | int]] | None = None
    compared: str | None = None
    #: Checks over a whole tree; each takes the family's files in it.
    rules: Sequence[Rule[Any]] | Callable[[], Sequence[Rule[Any]]] = ()

    @property
    def all_rules(self) -> Sequence[Rule[Any]]:
        return self.rules() if callable(self.rules) else self.rules

    @property
    def all_group_rules(self) -> Sequence[Rule[Any]]:
        return self.group_rules() if callable(self.group_rules) else self.group_rules

    @property
    def has_surroundings(self) -> bool:
        """Whether its stores are in a directory that has files of its own: a log directory around partitions."""
        return any(one.join is not None and not one.one_file for one in self.rewrites.values())

    def files_for(self, table: str | None, files: Iterable[File]) -> list[File]:
        """The files that a folded table is made of, or, for None, that rules over several files look at."""
        if self.takes is None:
            return [file for file in files if file.system == self.name]
        return [file for file in files if self.takes(table, file)]

    def units_for(self, table: str, files: Sequence[File]) -> Mapping[str, Sequence[File]]:
        """The files of a folded table in sets that can be folded one by one, by name."""
        if self.units is not None:
            return self.units(table, files)
        units: dict[str, list[File]] = {}
        for file in files:
            units.setdefault(file.place.group or file.path, []).append(file)
        return units

    @property
    def tables(self) -> tuple[Table, ...]:
        """The family's own tables, without the ones that every system has."""
        seen: dict[str, Table] = {}
        for table in (*(table for format in self.formats for table in format.tables), *self.fold_tables):
            if "." in table.name:
                seen.setdefault(table.name, table)
        return tuple(seen.values())


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
