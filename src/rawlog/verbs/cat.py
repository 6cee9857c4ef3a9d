"""The verbs that read rows: `cat`, `head`, `tail`, `count`, `find`; in Python also `open`, `read`, `rows`, `follow`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from threading import Event
from typing import TYPE_CHECKING, Annotated, Unpack

from rawlog import registry
from rawlog.model.errors import AccessError, OptionError, unknown
from rawlog.model.table import Table
from rawlog.model.text import ROWS, counted, html_table, printable, size_text
from rawlog.model.verb import Option, verb
from rawlog.reading.options import (
    NAMES,
    Counting,
    Format,
    Note,
    Paths,
    Searching,
    Selecting,
    Showing,
    TableName,
    listed,
)
from rawlog.reading.tree import Tree, open_known, open_tree
from rawlog.verbs.options import bind_schemas, log_note, readable, selection_of

if TYPE_CHECKING:
    import pyarrow as pa

    from rawlog.reading.follow import Following, Position
    from rawlog.reading.rows import Rows
    from rawlog.reading.select import Selection

# ----------------------------------------------------------------------------------------------------------------------
# The verbs that read rows: `cat`, `head`, `tail`, `count`; in Python also `open`, `read`, `rows`, `follow`.

#: Seconds between two looks of `follow`.
INTERVAL = 0.25

TEMPLATE_HELP = r"""\b
--format prints each row by a pattern, as rpk's does:
  \t \n \r \\ \xNN             tab, line end, carriage return, backslash, any byte
  %t %k %v  %T %K %V           topic, key, value; their lengths (kcat's %s %S: value)
  %p %o %d %i                  partition, offset, timestamp in ms, number of the row
  %h{%k=%v } %H                headers, each by a pattern of its own; their number
  %e %x %y %a{compression}     leader epoch, producer id and epoch, attributes
                               (with --table kafka.records)
  %% %{ %}                     the characters themselves
  text:     {hex} {base64} {base64raw} {unpack[>iq$]}
  numbers:  {ascii} {hex} {hex64}…{hex4} {big64}…{big8} {little64}… {byte} {bool}
  time:     {strftime[%F %T]} {go[2006-01-02T15:04:05Z07:00]}
  A null text prints nothing; a null number is -1.

""".replace(r"\b", "\b", 1)  # click's mark for "leave these lines as they are"

EXIT_HELP = """
Exit codes: 0 all rows were read; 1 damage, rows lost to it, rows that are not at their place, or, with --decode, values that were not
decoded; 2 wrong usage; 3 a file cannot be opened, or a path has no file of a known format. Such files are named on stderr and the rest is
read. An unfinished last frame is normal in a live log and only noted, unless another file follows it.
"""


#: So many topics are named in one line.
TOPICS = 8


class Log(Tree):
    """A tree whose tables can be read: the result of `rawlog.open`."""

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that files are in directories of, sorted, those of users first."""
        systems = {
            (file.place.topic, file.system)
            for file in self.files
            if file.place.topic is not None and file.system is not None and file.place.state is None
        }
        internal = {topic for topic, system in systems if registry.family(system).store_class.is_internal(topic)}
        return tuple(sorted({topic for topic, _ in systems}, key=lambda topic: (topic in internal, topic)))

    def __repr__(self) -> str:
        named = self.topics
        if not named:
            return super().__repr__()
        more = f" and {len(named) - TOPICS:,} more" if len(named) > TOPICS else ""
        return f"{super().__repr__()[:-1]}; topics {', '.join(printable(name) for name in named[:TOPICS])}{more}>"

    def _repr_html_(self) -> str:
        """The topics as a table, for a notebook; the files where there are no topics."""
        named = self.topics
        if not named:
            return super()._repr_html_()
        rows = []
        for name in named[:ROWS]:
            files = [file for file in self.files if file.place.topic == name]
            partitions = {file.place.partition for file in files}
            rows.append((name, len(partitions), len(files), size_text(sum(file.size for file in files))))
        note = f"{counted(len(named), 'topic')} in {', '.join(self.roots[:3])}: {counted(len(self.files), 'file')}"
        return html_table(("topic", "partitions", "files", "size"), rows, note)

    def table(self, name: str = "records", **selection: Unpack[Selecting]) -> Rows:
        """A table of these files, as a stream; options as for `rawlog.read`.

        OptionError for an unknown table, column, topic or partition; UnknownFormatError if no file has that table.
        """
        from rawlog.reading.parts import choose_replicas
        from rawlog.reading.rows import Rows, check_names

        chosen = bind_schemas(selection_of(selection), self, registry.table_named(name))
        tree = choose_replicas(self, chosen, log_note, table=registry.table_named(name))
        rows = Rows(tree, name, chosen)
        rows.note = log_note
        check_names(tree, rows.table, chosen)
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
    return open_rows(paths, table, format, selection_of(selection), note)


@verb(
    group="look",
    examples=(
        "rawlog cat kafka-logs/ --topic 'orders*' --since -2h",
        "rawlog cat kafka-logs/orders-0 -o -10 --format '%p@%o %k %v\\n'",
        "rawlog cat kafka-logs/ --topic orders --decode value=auto --where \"value.status = 'PAID'\" --json",
        "rawlog cat s3://backup/store --table rocketmq.messages --where \"tags = 'paid'\" --json",
    ),
    more=TEMPLATE_HELP + EXIT_HELP,
)
def cat(
    paths: Annotated[Paths, "PATH"],
    *,
    table: TableName = "records",
    format: Format = None,
    note: Note | None = None,
    **selection: Unpack[Selecting],
) -> Rows:
    """Show the rows of a table. Topics of users come first.

    Returns Rows: those of `rawlog.rows`, topics of users first.

    >>> import rawlog
    >>> rows = rawlog.cat("samples/kafka", topic="codec-*", since="2020-01-01")
    """
    rows = open_rows(paths, table, format, selection_of(selection), note)
    rows.users_first = True
    return rows


@verb(
    group="look",
    examples=("rawlog head kafka-logs/orders-0", "rawlog head -n 3 kafka-logs/ --table kafka.batches --json"),
    more="`rawlog cat --help` explains --format and the exit codes.",
)
def head(
    paths: Annotated[Paths, "PATH"],
    *,
    lines: Annotated[int, Option("Print N rows.", "-n", "--lines", "--limit", least=0, metavar="N")] = 10,
    table: TableName = "records",
    format: Format = None,
    note: Note | None = None,
    **selection: Unpack[Showing],
) -> Rows:
    """Show the first rows.

    The rows are the first ones of `rawlog cat` with the same options.

    Returns Rows; errors as `rawlog.rows`.

    >>> import rawlog
    >>> first = list(rawlog.head("samples/kafka", lines=3))
    """
    rows = open_rows(paths, table, format, selection_of(selection).replace(limit=lines), note)
    rows.users_first = True
    return rows


@verb(
    group="look",
    examples=(
        "rawlog tail kafka-logs/orders-0 -n 5 --json",
        "rawlog tail -f kafka-logs/ --topic orders --format '%o %v\\n'",
    ),
    more="The last rows of each partition: -o -N. `rawlog cat --help` explains --format and the exit codes.",
)
def tail(
    paths: Annotated[Paths, "PATH"],
    *,
    lines: Annotated[int, Option("Print N rows.", "-n", "--lines", least=0, metavar="N")] = 10,
    table: TableName = "records",
    format: Format = None,
    note: Note | None = None,
    **selection: Unpack[Showing],
) -> Rows:
    """Show the last rows; -f follows a live log.

    The rows are the last ones of `rawlog cat` with the same options. Earlier rows are not decoded.

    Returns Rows; errors as `rawlog.rows`. `rawlog.follow` is `tail -f`.

    >>> import rawlog
    >>> last = list(rawlog.tail("samples/kafka", lines=3, topic="transactions"))
    """
    from rawlog.reading.follow import LastRows

    rows = open_rows(paths, table, format, selection_of(selection), note)
    last = LastRows(rows.tree, rows.table, rows.selection, lines)
    last.note = rows.note
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
    from rawlog.reading.parts import choose_replicas

    rows, wanted = selection_of(selection).replace(limit=limit), registry.table_named(table)
    check_table(wanted)
    if rows.isolation == "read_committed":
        raise OptionError("tail -f shows records before their transaction ends: it cannot be read_committed")
    rows.needed(wanted)
    tree = open_tree(paths, format=format)
    rows = bind_schemas(rows, tree, wanted)
    following = Following(listed(paths), wanted, rows, format=format, position=position, note=note or log_note)
    following.interval, following.stop = every, stop
    if position is None and lines is not None:
        kept = choose_replicas(readable(tree, note), rows, note or log_note, table=wanted)
        if wanted.name in kept.tables:
            last = _table(kept, wanted, rows.replace(limit=None), note, may_come=True)
            following.skip_to_last(last, lines)
        else:
            following.skip(kept)  # nothing to read yet
    return following


@verb(
    group="look",
    examples=(
        "rawlog count kafka-logs/ --topic orders --since -1d",
        "rawlog count kafka-logs/ --isolation read_committed --json",
        "rawlog count kafka-logs/ --topic orders --decode value=auto --where \"value.status = 'PAID'\"",
        "rawlog count store/ --table rocketmq.messages",
    ),
)
def count(
    paths: Annotated[Paths, "PATH"],
    *,
    table: TableName = "records",
    format: Format = None,
    note: Note | None = None,
    **selection: Unpack[Counting],
) -> int:
    """Count rows.

    It counts the rows that `rawlog cat` shows with the same options. If the headers of batches have the number, `count` reads only the
    headers and compares no checksums; `rawlog verify` compares them, and so does `errors` skip. Offsets that do not rise or belong in
    another file are reported, with exit code 1.

    Returns the number. Errors as `rawlog.rows`.

    >>> import rawlog
    >>> number = rawlog.count("samples/kafka", isolation="read_committed")
    """
    rows = open_rows(paths, table, format, selection_of(selection), note)
    number = rows.count()
    if rows.table.name == "records" and rows.selection.takes_every_row and (others := _not_counted(rows)):
        (note or log_note)(f"not counted: {others}; `rawlog ls` shows how many")
    return number


def _not_counted(rows: Rows) -> str:
    """What is in the files, but not for consumers, in a few words."""
    tree = rows.tree
    able = registry.formats_with(rows.table)
    logs = [file for file in tree if file.size and file.format in able and rows.selection.takes_file(file)]
    marks = sorted({file.place.state for file in logs if file.place.state is not None})
    others = [f"files marked {' or '.join(marks)}"] if marks else []
    served = ((file, registry.formats()[str(file.format)]) for file in logs if file.place.state is None)
    if any(
        format.can("floor") and format.codec.floor(file, tree.group_of(file)) is not None for file, format in served
    ):
        others.append("records below the log start")
    return ", ".join(others)


def open_rows(paths: Paths, table: str, format: str | None, selection: Selection, note: Note | None) -> Rows:
    """The rows of a table at some paths: the best replicas, with the schemas that decoding needs."""
    from rawlog.reading.parts import choose_replicas

    wanted = registry.table_named(table)
    selection.needed(wanted)
    reads_data = wanted.name not in ("files", "findings")
    tree = open_known(paths, format=format, note=note, must_know=reads_data)
    selection = bind_schemas(selection, tree, wanted)
    if reads_data:
        kept = readable(tree, note)
        if not any(file.format for file in kept):
            raise AccessError(f"{', '.join(tree.roots)}: nothing here can be read")
        tree = choose_replicas(kept, selection, note or log_note, table=wanted)
    return _table(tree, wanted, selection, note)


def _table(tree: Tree, table: Table, selection: Selection, note: Note | None, *, may_come: bool = False) -> Rows:
    """A table of a tree, with notes on options that do not change it. OptionError for an unknown name, unless it `may_come`."""
    from rawlog.reading.rows import Rows, check_names

    rows = Rows(tree, table, selection)
    rows.note = note or log_note
    if note is not None:
        for name in selection.unused(table):
            note(f"{NAMES[name]} does not change {table.name}: it has no column for it")
    check_names(tree, table, selection, note, may_come=may_come)
    return rows


# ----------------------------------------------------------------------------------------------------------------------
# `find`: a text, key or id in the records of all systems.

#: Places that `find` looks at, and states that `ls` knows.
PLACES = ("key", "value", "headers", "id")


@verb(
    group="look",
    examples=(
        "rawlog find user-4711 /var/kafka-logs /var/rocketmq/store",
        "rawlog find 7F0000010B2C18B4AAC2 store --in id --json",
        "rawlog find '\"card\":\"4111' kafka-logs --in value --topic 'orders*' -n 10",
    ),
    more="Exit codes: 0 everything was searched; 1 damage; 2 wrong usage; 3 some files could not be read.",
)
def find(
    text: Annotated[str | bytes, "TEXT"],
    paths: Annotated[Paths, "PATH"],
    *,
    within: Annotated[
        str | Sequence[str],
        Option(
            "Look only here; may be given again. Ids are found by an index where one exists.", "--in", choices=PLACES
        ),
    ] = PLACES,
    format: Format = None,
    note: Note | None = None,
    **selection: Unpack[Searching],
) -> Rows:
    """Look for a text, key or id in the records of all systems.

    `text` is looked for in keys, values and headers, and among message ids and blob ids.

    Returns Rows whose column `found_in` says where it was found. Errors as `rawlog.rows`; OptionError for an empty text or an unknown
    place.

    >>> import rawlog
    >>> hits = [(row["topic"], row["offset"], row["found_in"]) for row in rawlog.find("key-602", "samples/kafka")]
    """
    from rawlog.reading.follow import FoundRows

    places = listed(within)
    for place in places:
        if place not in PLACES:
            raise unknown("place", place, PLACES)
    if not text or not places:
        raise OptionError(f"name a text to look for, and at least one of {', '.join(PLACES)} to look in")
    chosen = selection_of(selection)
    if chosen.transforms:
        raise OptionError("a text is looked for in bytes, which are not decoded: `rawlog cat --decode` has --where")
    rows = open_rows(paths, "records", format, chosen, note)
    return FoundRows(rows, os.fsencode(text) if isinstance(text, str) else text, places)
