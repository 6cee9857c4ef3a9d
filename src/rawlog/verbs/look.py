"""The functions that look: open, read, rows, cat, head, tail, find, follow, count, ls, explain."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from threading import Event
from typing import TYPE_CHECKING, Any, Unpack

from rawlog import registry
from rawlog.model.errors import AccessError, OptionError, unknown
from rawlog.model.table import FILES, Table
from rawlog.reading.names import check_names
from rawlog.reading.parts import choose, copies
from rawlog.reading.rows import Loss, Rows, unfinished
from rawlog.reading.select import Selection
from rawlog.reading.tail import INTERVAL, PLACES, FoundRows, LastRows
from rawlog.reading.tree import (
    Tree,
    Unreadable,
    open_known,
    open_tree,
)
from rawlog.verbs.options import (
    NAMES,
    Counting,
    Note,
    Path,
    Paths,
    Searching,
    Selecting,
    Showing,
    bound,
    listed,
    noted,
    readable,
    selection_of,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from rawlog.model.format import File
    from rawlog.model.job import Progress
    from rawlog.model.store import Copies
    from rawlog.reading.explain import Explanation
    from rawlog.reading.follow import Following, Position

#: A batch of `ls` is ready when it has so many files, or so many bytes were read for it.
BATCH_FILES, BATCH_BYTES = 1000, 16 << 20
STATES = ("ok", "truncated", "damaged", "empty", "unknown")


class Log(Tree):
    """A tree whose tables can be read: the result of `rawlog.open`."""

    def table(self, name: str = "records", **selection: Unpack[Selecting]) -> Rows:
        """A table of these files, as a stream; options as for `rawlog.read`.

        OptionError for an unknown table, column, topic or partition; UnknownFormatError if no file has that table.
        """
        asked = bound(selection_of(selection), self, registry.table_named(name))
        tree = choose(self, asked, noted, table=registry.table_named(name))
        rows = Rows(tree, name, asked)
        rows.note = noted
        check_names(tree, rows.table, asked)
        return rows


def open(paths: Paths, *, format: str | None = None) -> Log:
    """Find the files at `paths` (files, directories, globs or URLs) and recognise each one. Returns a Log.

    `format` names the format of all files, whatever they look like. AccessError for a path that does not exist.

    >>> import rawlog
    >>> log = rawlog.open("samples/kafka")
    """
    tree = open_tree(paths, format=format)
    return Log(tree.roots, tree.files)


def read(
    paths: Paths, *, table: str = "records", format: str | None = None, **selection: Unpack[Selecting]
) -> pa.Table:
    """Read a table into memory. Returns a pyarrow Table; `rawlog.rows` is the same as a stream.

    Raises DataError at damage unless `errors` is "stop" or "skip", OptionError for an unknown name, AccessError for a missing path.

    >>> import rawlog
    >>> found = rawlog.read("samples/kafka", table="kafka.batches", columns=["base_offset", "codec"], limit=3)
    """
    return open(paths, format=format).table(table, **selection).to_arrow()


def rows(
    paths: Paths,
    *,
    table: str = "records",
    format: str | None = None,
    note: Note | None = None,
    **selection: Unpack[Selecting],
) -> Rows:
    """The rows of a table as a stream, in bounded memory. Returns Rows: iterate over it for dicts, `batches()` gives Arrow.

    With `note`, files that cannot be read are left out, and it gets a sentence about each; without it they raise AccessError.
    Other errors as `rawlog.read`.

    >>> import rawlog
    >>> offsets = [row["offset"] for row in rawlog.rows("samples/kafka", topic="transactions", limit=5)]
    """
    return _rows(paths, table, format, selection_of(selection), note)


def cat(
    paths: Paths,
    *,
    table: str = "records",
    format: str | None = None,
    note: Note | None = None,
    **selection: Unpack[Selecting],
) -> Rows:
    """The rows of a table: the same as `rawlog.rows`, under the name of the command.

    >>> import rawlog
    >>> rows = rawlog.cat("samples/kafka", topic="codec-*", since="2020-01-01")
    """
    return _rows(paths, table, format, selection_of(selection), note)


def head(
    paths: Paths,
    *,
    lines: int = 10,
    table: str = "records",
    format: str | None = None,
    note: Note | None = None,
    **selection: Unpack[Showing],
) -> Rows:
    """The first `lines` rows of a table. Returns Rows; errors as `rawlog.rows`.

    >>> import rawlog
    >>> first = list(rawlog.head("samples/kafka", lines=3))
    """
    return _rows(paths, table, format, selection_of(selection).replace(limit=lines), note)


def find(
    text: str | bytes,
    paths: Paths,
    *,
    within: str | Sequence[str] = PLACES,
    format: str | None = None,
    note: Note | None = None,
    **selection: Unpack[Searching],
) -> Rows:
    """The records of any system that have a text in their key, value or headers, or as their message or blob id.

    `within` names the places to look at: key, value, headers, id. By id alone indexes are used where they exist. Returns Rows whose
    column `found_in` says where it was found; errors as `rawlog.rows`, OptionError for an empty text or an unknown place.

    >>> import rawlog
    >>> hits = [(row["topic"], row["offset"], row["found_in"]) for row in rawlog.find("key-602", "samples/kafka")]
    """
    wanted = listed(within)
    for place in wanted:
        if place not in PLACES:
            raise unknown("place", place, PLACES)
    if not text or not wanted:
        raise OptionError("a text to look for, and a place to look at, are expected")
    asked = selection_of(selection)
    if asked.transforms:
        raise OptionError("a text is looked for in bytes, which are not decoded: `rawlog cat --decode` has --where")
    found = _rows(paths, "records", format, asked, note)
    return FoundRows(found, os.fsencode(text) if isinstance(text, str) else text, wanted)


def tail(
    paths: Paths,
    *,
    lines: int = 10,
    table: str = "records",
    format: str | None = None,
    note: Note | None = None,
    **selection: Unpack[Showing],
) -> Rows:
    """The last `lines` rows of a table; rows before them are not decoded. Returns Rows; errors as `rawlog.rows`.

    `rawlog.follow` is `tail -f`.

    >>> import rawlog
    >>> last = list(rawlog.tail("samples/kafka", lines=3, topic="transactions"))
    """
    found = _rows(paths, table, format, selection_of(selection), note)
    last = LastRows(found.tree, found.table, found.selection, lines)
    last.note = found.note
    return last


def follow(
    paths: Paths,
    *,
    lines: int | None = 0,
    position: Position | None = None,
    limit: int | None = None,
    every: float = INTERVAL,
    stop: Event | None = None,
    table: str = "records",
    format: str | None = None,
    note: Note | None = None,
    **selection: Unpack[Showing],
) -> Following:
    """Follow a growing log: the rows that are added, each once, in growing and in new files. Returns Following.

    Iterate over it for dicts, or over `batches()` for Arrow: both wait for more rows, until `stop` is set or `limit` rows came. `poll()`
    gives what is there now. The last `lines` rows come first; with `lines=None` all rows do. `position` continues where an earlier
    Following was: it is that object's `position`, which is JSON. Between two looks at the files pass `every` seconds.

    Raises OptionError for a table that cannot be followed and for `isolation="read_committed"`; DataError at damage as `rawlog.rows`.

    >>> import rawlog
    >>> new = rawlog.follow("samples/kafka", topic="transactions", lines=5)
    >>> last = [batch.num_rows for batch in new.first]
    """
    from rawlog.reading.follow import Following, check_table

    asked, wanted = selection_of(selection).replace(limit=limit), registry.table_named(table)
    check_table(wanted)
    if asked.isolation == "read_committed":
        raise OptionError("tail -f shows records before their transaction ends: it cannot be read_committed")
    asked.needed(wanted)
    tree = open_tree(paths, format=format)
    asked = bound(asked, tree, wanted)
    made = Following(listed(paths), wanted, asked, format=format, position=position, note=note or noted)
    made.every, made.stop = every, stop
    if position is None and lines is not None:
        kept = choose(readable(tree, note), asked, note or noted, table=wanted)
        if wanted.name in kept.tables:
            found = _table(kept, wanted, asked.replace(limit=None), note, may_come=True)
            made.skip_to_last(found, lines)
        else:
            made.skip(kept)  # nothing to read yet
    return made


def count(
    paths: Paths,
    *,
    table: str = "records",
    format: str | None = None,
    note: Note | None = None,
    **selection: Unpack[Counting],
) -> int:
    """The number of rows that `rawlog.rows` gives with the same options. Errors as there.

    Where the headers of batches have the number, they alone are read, whatever the codec, and no checksum is compared: `rawlog.verify`
    does that, and so does `errors="skip"`.

    >>> import rawlog
    >>> number = rawlog.count("samples/kafka", isolation="read_committed")
    """
    return _rows(paths, table, format, selection_of(selection), note).count()


class Listing(Rows):
    """The files at some paths, measured one after another: the table `files`. Its tree has the files in the same order."""

    progress: Callable[[int], None] | None = None
    #: Only files in one of these states; empty: all.
    states: Sequence[str] = ()
    #: The files of the rows that were given so far, in the same order.
    shown: list[File]

    @cached_property
    def replicas(self) -> list[Copies]:
        """The partitions and stores of which there are several replicas, each with the best first."""
        return copies(self.tree.groups)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows: batches of many small files, or of one large one, so that each is given as soon as it is ready."""
        import pyarrow as pa

        self.shown = []
        ready: list[dict[str, Any]] = []
        size = 0
        for file in self.tree:
            found = self._measured(file)
            size += file.size
            if not self.states or found["state"] in self.states:
                ready.append(found)
                self.shown.append(file)
            if ready and (len(ready) >= BATCH_FILES or size >= BATCH_BYTES):
                yield pa.RecordBatch.from_pylist(ready, schema=FILES.schema)
                ready, size = [], 0
        if ready:
            yield pa.RecordBatch.from_pylist(ready, schema=FILES.schema)

    def _measured(self, file: File) -> dict[str, Any]:
        from rawlog.reading.inspect import file_values

        found = file_values(file)
        if file.problem is not None and self.note is not None:
            self.note(Unreadable(f"{file.path}: {file.problem}"))
        elif self.note is not None and file.place.state is None:
            self._note_damage(file, found["state"], found.get("valid_size") or 0)
        if self.progress is not None:
            self.progress(file.size)
        return found

    def _note_damage(self, file: File, state: str | None, valid: int) -> None:
        """Note a file that is not whole, unless it is one that its system still writes to."""
        assert self.note is not None
        if state == "damaged":
            self.note(Loss(f"{file.path}: byte {valid:,}: damaged"))
        elif state == "truncated" and file.place.sealed:
            self.note(unfinished(file, valid, file.size - valid, is_followed=True))


def ls(
    paths: Paths,
    *,
    topic: str | Sequence[str] | None = None,
    partition: int | Sequence[int] | None = None,
    state: str | Sequence[str] | None = None,
    format: str | None = None,
    note: Note | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Listing:
    """What is at `paths`: a row of the table `files` for each file, with offsets, times, counts and state. Returns Listing, a kind of Rows.

    Every file is read once, checksums included. State: ok, truncated (ends inside a frame), damaged, empty, unknown. Damage does not
    raise; `note` gets a sentence about it. With `state` only files in such a state are listed. Replicas are all listed; `replicas` of the
    result says which there are, and which is the best. OptionError for an unknown topic, partition or state, AccessError for a path that
    does not exist.

    >>> import rawlog
    >>> states = {row["path"]: row["state"] for row in rawlog.ls("samples/kafka", topic="transactions")}
    """
    tree = open_known(paths, format=format, note=note, must_know=False)
    asked = selection_of({"topic": topic or None, "partition": () if partition is None else partition})
    check_names(tree, FILES, asked, note)
    narrow = bool(asked.topics or asked.partitions)
    files = tuple(f for f in tree if asked.takes_file(f) and not (narrow and f.place.topic is None))
    found = Listing(Tree(tree.roots, files), FILES)
    found.note = note or noted
    found.states = listed(state or ())
    for one in found.states:
        if one not in STATES:
            raise unknown("state", one, STATES)
    if progress is not None:
        found.progress = _counter(sum(file.size for file in files), progress)
    return found


def explain(
    path: Path,
    *,
    at: int | None = None,
    offset: int | None = None,
    number: int | None = None,
    html: Path | None = None,
    format: str | None = None,
    show_secrets: bool = False,
) -> Explanation:
    """The bytes of a frame, field by field: the frame with byte `at`, with `offset`, or of a `number`. Returns an Explanation.

    Without any of these: the file's header and its first frame. With `offset`, `path` may be the directory of a partition. `html` is a
    file to write as a self-contained page. OptionError if there is no such frame, DataError if it is damaged.

    >>> import rawlog
    >>> frame = rawlog.explain("samples/kafka/transactions-0", offset=0)
    """
    from rawlog.reading.explain import explain_frame

    tree = open_known(path, format=format)
    found = explain_frame(tree, at=at, offset=offset, number=number, show_secrets=show_secrets)
    if html is not None:
        from rawlog.io.files import writing

        with writing(os.fspath(html), overwrite=True, sources=tree.sources) as out:
            out.write(found.to_html().encode())
    return found


def _rows(paths: Paths, table: str, format: str | None, selection: Selection, note: Note | None) -> Rows:
    wanted = registry.table_named(table)
    selection.needed(wanted)
    reads_data = wanted.name not in ("files", "findings")
    tree = open_known(paths, format=format, note=note, must_know=reads_data)
    selection = bound(selection, tree, wanted)
    if reads_data:
        kept = readable(tree, note)
        if not any(file.format for file in kept):
            raise AccessError(f"{', '.join(tree.roots)}: nothing here can be read")
        tree = choose(kept, selection, note or noted, table=wanted)
    return _table(tree, wanted, selection, note)


def _table(tree: Tree, table: Table, selection: Selection, note: Note | None, *, may_come: bool = False) -> Rows:
    """A table of a tree, with notes on options that do not change it. OptionError for an unknown name, unless it `may_come`."""
    found = Rows(tree, table, selection)
    found.note = note or noted
    if note is not None:
        for name in selection.unused(table):
            note(f"{NAMES[name]} does not change {table.name}: it has no column for it")
    check_names(tree, table, selection, note, may_come=may_come)
    return found


def _counter(total: int, progress: Callable[[Progress], None]) -> Callable[[int], None]:
    from rawlog.model.job import Progress

    done = 0

    def step(size: int) -> None:
        nonlocal done
        done += size
        progress(Progress(done, total))

    return step
