"""The options that choose rows, declared once: the command line, Python, the Spark source and the web page take them from here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Annotated, Any, Literal, TypedDict

from rawlog import registry
from rawlog.model.errors import OptionError, unknown
from rawlog.model.format import MAX_DECOMPRESSED, MAX_HEADERS
from rawlog.model.text import parse_time
from rawlog.model.verb import Kind, Option, Parameter, SearchField, members_of
from rawlog.reading.select import (
    Selection,
    Transform,
    parse_columns,
    parse_offset_option,
)

Path = str | os.PathLike[str]
Paths = Path | Iterable[Path]
Time = str | int | datetime
#: Gets a sentence about each thing that was left out: see `Unreadable`, `Unrecognised` and `Loss`.
Note = Callable[[str], None]
#: The options of the command line that give the fields of a Selection.
NAMES = {
    "topics": "--topic", "topic_pattern": "--topic", "partitions": "--partition", "from_offset": "--from-offset",
    "to_offset": "--to-offset", "last": "-o", "starts": "-o", "since": "--since", "until": "--until", "key": "--key", "id": "--id",
}  # fmt: skip
READ, OUTPUT = "What to read", "Output"
Format = Annotated[
    str | None,
    Option("Read every file as this format, whatever it looks like.", "--as", metavar="FORMAT", section=READ),
]
TableName = Annotated[
    str,
    Option(
        "Table to read: records, files, findings, or one of a system (`rawlog formats` lists them).",
        kind=Kind.TABLE,
        metavar="NAME",
        section=READ,
    ),
]
Topics = Annotated[
    str | Sequence[str] | None,
    Option(
        "Only these topics; may be given again.",
        "-t",
        "--topic",
        metavar="GLOB",
        section=READ,
        field=SearchField(5, "topic", "Topic", "orders or order*"),
    ),
]
TopicNames = Annotated[
    str | Sequence[str], Option("Only these topics; may be given again.", "-t", "--topic", metavar="GLOB")
]
Partitions = Annotated[
    int | Sequence[int] | None,
    Option(
        "Only these partitions: 3, 0,2 or 4-7.",
        kind=Kind.PARTITIONS,
        metavar="N",
        section=READ,
        spark="partition",
        field=SearchField(6, "partition", "Partition", "0"),
    ),
]
Since = Annotated[
    Time | None,
    Option(
        "Start at this time: ISO 8601, epoch milliseconds, or -2h.",
        kind=Kind.TIME,
        metavar="TIME",
        section=READ,
        spark="startingTimestamp",
        field=SearchField(3, "since", "Since", "2024-09-11T09:12 or -2h", "t"),
    ),
]
Until = Annotated[
    Time | None,
    Option(
        "Stop before this time.",
        kind=Kind.TIME,
        metavar="TIME",
        section=READ,
        spark="endingTimestamp",
        field=SearchField(4, "until", "Until", "not included"),
    ),
]
Errors = Annotated[
    Literal["raise", "stop", "skip"],
    Option("At damage: end with exit code 1; stop reading the file; or continue after it.", default="raise"),
]
Replicas = Annotated[
    Literal["best", "all", "refuse"],
    Option(
        "If there are several replicas of a partition or store: read the best one, read all, or end with an error.",
        default="best",
        section=READ,
        spark="replicas",
    ),
]
ShowSecrets = Annotated[bool, "Show salts, keys and passwords of a metadata log instead of ********."]
Columns = Annotated[
    str | Sequence[str] | None,
    Option("Only these columns, in this order.", metavar="A,B", is_repeated=False, section=READ, spark="columns"),
]
Limit = Annotated[int | None, Option("Print at most N rows.", "-n", "--limit", least=0, metavar="N", section=READ)]
OwnOptions = Annotated[
    Mapping[str, object] | None,
    Option(
        "Options of single systems: now=TIME (ambry), atOffset=N, atTimestamp=TIME (kraft).",
        metavar="NAME=VALUE",
        section=READ,
    ),
]


class Limits(TypedDict, total=False):
    """Limits: so that a small file cannot use all memory."""

    max_decompressed: Annotated[
        int,
        Option(
            "Let one compressed part grow to at most this size.",
            kind=Kind.SIZE,
            default=MAX_DECOMPRESSED,
            spark="maxDecompressed",
            metavar="SIZE",
        ),
    ]
    max_headers: Annotated[
        int,
        Option("Read at most N headers of a record.", default=MAX_HEADERS, least=0, metavar="N", spark="maxHeaders"),
    ]


class Bounding(Limits, total=False):
    """What to read: rows or records by place, time and condition."""

    #: A topic, or several; `*`, `?` and `[…]` match names.
    topic: Topics
    #: All topics whose whole name matches this regular expression.
    topic_pattern: str | None
    partition: Partitions
    from_offset: Annotated[
        int | None,
        Option("Start at this offset.", metavar="N", field=SearchField(1, "from", "From offset", "42", "o")),
    ]
    to_offset: Annotated[
        int | None,
        Option("Stop before this offset.", metavar="N", field=SearchField(2, "to", "To offset", "not included")),
    ]
    since: Since
    until: Until
    where: Annotated[
        str | None,
        Option(
            "Only rows for which an SQL expression over the columns is true.",
            metavar="EXPR",
            spark="where",
            field=SearchField(10, "where", "Where", "length(value) > 100", "w"),
        ),
    ]


class Matching(Bounding, total=False):
    """What to read: rows, for `cat`, `count`, `diff`, `convert` and others."""

    #: As kcat's -o: "beginning", "end", "N", "-N" (the last N of each partition), "s@MS", "e@MS".
    start: Annotated[
        str | int | Sequence[str] | None,
        Option(
            "Read from here, as in kcat: beginning, end, N, -N (the last N of each partition), s@MS, e@MS.",
            "-o",
            metavar="OFFSET",
        ),
    ]
    #: The last N rows of each partition.
    last: int | None
    key: Annotated[
        str | bytes | None,
        Option("Only rows with this key.", metavar="TEXT", field=SearchField(7, "key", "Key", "the whole key", "k")),
    ]
    id: Annotated[
        str | None,
        Option(
            "Only the message (RocketMQ) or blob (Ambry) with this id.",
            metavar="ID",
            field=SearchField(9, "id", "Id", "message or blob id", "i"),
        ),
    ]
    find: Annotated[str | None, Option("Only rows whose value contains this text.", metavar="TEXT")]
    isolation: Annotated[
        Literal["read_uncommitted", "read_committed"],
        Option("read_committed leaves aborted transactions out.", default="read_uncommitted", spark="isolation"),
    ]
    errors: Errors
    show_secrets: ShowSecrets
    replicas: Replicas


class Decoding(TypedDict, total=False):
    """Decoding: what keys and values mean."""

    #: SIDE=HOW, separated by commas, or a mapping: {"value": "auto"}. Sides: key, value. How: auto, avro, protobuf, json, string, raw;
    #: after auto or avro, @latest or @N gives nested columns of that version of the schema, and @written JSON text.
    decode: Annotated[
        str | Sequence[str] | Mapping[str, str] | None,
        Option(
            "Decode value or key: auto, avro, protobuf, json, string or raw. After the first three, @latest or @N gives nested columns of "
            "that version of the schema, and @written JSON text.",
            metavar="SIDE=HOW,…",
            field=SearchField(11, "decode", "Decode", "value=auto", "d"),
        ),
    ]
    schemas: Annotated[
        Path | None,
        Option(
            "Where schemas come from: a directory, a file, or the URL of a registry.  [default: topic _schemas among the files]",
            metavar="PLACE",
        ),
    ]


class Counting(Matching, Decoding, total=False):
    """What to read: rows, for `count`; `where` sees decoded keys and values."""

    limit: Annotated[int | None, Option("Count at most N rows.", "-n", "--limit", least=0, metavar="N")]
    option: OwnOptions


class Choosing(Matching, total=False):
    """What to read: rows and columns."""

    columns: Columns
    option: OwnOptions


class Searching(Choosing, total=False):
    """What to read: rows and columns, for `find`."""

    limit: Limit


class Showing(Choosing, Decoding, total=False):
    """What to read: rows and columns, and how they are decoded, for `head`, `tail` and `follow`."""


class Selecting(Showing, total=False):
    """What to read: rows and columns, for `read` and `cat`."""

    limit: Limit


class Masking(TypedDict, total=False):
    """Masking: what is hidden in rows that are shared."""

    #: FIELD=HOW, separated by commas, or a mapping: {"value.card": "hash"}. Fields: key, value, value.user, headers.trace, timestamp. How:
    #: drop, hash, digits (other digits and letters), fixed:TEXT, and for the timestamp shift:-30d.
    mask: Annotated[
        str | Sequence[str] | Mapping[str, str] | None,
        Option(
            "Mask key, value, value.user, value.items[*].sku or headers.name by drop, hash, digits or fixed:TEXT; timestamp=shift:-30d.",
            metavar="FIELD=HOW,…",
        ),
    ]
    mask_secret_file: Annotated[
        Path | None,
        Option("File with the secret for hash and digits.  [default: $RAWLOG_MASK_SECRET]", metavar="FILE"),
    ]
    mask_keep_sizes: Annotated[bool, "Keep the sizes of masked keys, values and fields."]
    mask_other: Annotated[
        Literal["refuse", "keep", "drop", "hash"] | None,
        Option("If fields are masked: what to do with values that are neither JSON nor decoded.  [default: refuse]"),
    ]


def texts(value: str | Iterable[str]) -> tuple[str, ...]:
    """One text or several, as a tuple."""
    return (value,) if isinstance(value, str) else tuple(value)


def _numbers(value: int | Iterable[int]) -> tuple[int, ...]:
    return (value,) if isinstance(value, int) else tuple(value)


def _key(value: str | bytes) -> bytes:
    return os.fsencode(value) if isinstance(value, str) else bytes(value)


_PLAIN = ("topic_pattern", "from_offset", "to_offset", "last", "id", "where", "limit", "isolation", "errors", "max_decompressed",
          "max_headers", "replicas")  # fmt: skip


_READ: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "topic": ("topics", texts),
    "partition": ("partitions", _numbers),
    "since": ("since", parse_time),
    "until": ("until", parse_time),
    "columns": ("columns", parse_columns),
    "key": ("key", _key),
}


def _starts(start: str | int | Sequence[str] | None, fields: Mapping[str, Any]) -> dict[str, Any]:
    """What kcat's forms of `-o` mean."""
    texts = () if start is None else (str(start),) if isinstance(start, (str, int)) else tuple(start)
    starts: dict[str, Any] = {}
    for text in texts:
        for name, value in parse_offset_option(text).items():
            if fields.get(name) is not None or name in starts:
                raise OptionError(f"-o {text}: --{name.replace('_', '-')} is given already")
            starts[name] = value
    if starts.get("last") is not None and {**fields, **starts}.get("from_offset") is not None:
        raise OptionError("-o from the end and --from-offset exclude one another")
    return starts


def _finding(text: str, where: str | None) -> str:
    quoted = text.replace("\\", "\\\\").replace("'", "\\'")
    contains = f"contains(value, '{quoted}')"
    return contains if where is None else f"({where}) AND {contains}"


def _check_family_options(options: Mapping[str, object]) -> dict[str, str]:
    """Options that only some systems have. OptionError for one that no system has."""
    try:
        return registry.reading_options({name: str(value) for name, value in options.items()})
    except OptionError as error:
        names = {*Selecting.__annotations__, *(name for family in registry.families() for name in family.options)}
        name = next(name for name in options if _is_unknown(name))
        raise unknown("option", name, names) from error


def _is_unknown(name: str) -> bool:
    try:
        registry.reading_options({name: ""})
    except OptionError:
        return True
    return False


def listed(paths: Paths) -> list[str]:
    """One path or several, as texts."""
    if isinstance(paths, (str, os.PathLike)):
        return [os.fspath(paths)]
    return [os.fspath(path) for path in paths]


def selection_from(options: Mapping[str, Any], transforms: tuple[Transform, ...] = ()) -> Selection:
    """The Selection that options of the groups above describe; those for masks and decoding are `transforms`.

    OptionError for an unknown option, and for those that contradict one another.
    """
    fields: dict[str, Any] = {}
    family_options: dict[str, object] = {}
    for name, value in options.items():
        if value is None:
            continue
        if name in _PLAIN:
            fields[name] = value
        elif name in _READ:
            field, read = _READ[name]
            fields[field] = read(value)
        elif name in ("option", "source_option"):
            family_options |= dict(value)
        elif name == "show_secrets":
            family_options |= {"showSecrets": "true"} if value else {}
        elif name not in ("start", "find", *Masking.__annotations__, *Decoding.__annotations__):
            family_options[name] = value
    fields |= _starts(options.get("start"), fields)
    if options.get("find") is not None:
        fields["where"] = _finding(str(options["find"]), fields.get("where"))
    if family_options:
        fields["options"] = _check_family_options(family_options)
    return Selection(**fields, transforms=transforms)


def field_of(option: str) -> str:
    """The field of a Selection that an option gives."""
    return _READ[option][0] if option in _READ else option


@cache
def options_in(place: Literal["spark", "field"]) -> tuple[Parameter, ...]:
    """The options of `cat` that the Spark source takes too, or that the search of the web page has a field for."""
    return tuple(option for option in members_of(Selecting) if getattr(option, place) is not None)
