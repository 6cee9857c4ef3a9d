"""The keyword options that functions share, typed: which rows, how a job runs; and what they mean."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from rawlog import registry
from rawlog.model.errors import OptionError, unknown
from rawlog.model.format import MAX_DECOMPRESSED, MAX_HEADERS
from rawlog.model.job import Progress
from rawlog.model.report import SeriousNote
from rawlog.model.table import RECORDS, Table
from rawlog.model.text import parse_time
from rawlog.model.verb import Kind, Option
from rawlog.reading.select import (
    Selection,
    Transform,
    parse_columns,
    parse_offset_option,
)
from rawlog.reading.tree import Tree, Unreadable

if TYPE_CHECKING:
    from rawlog.values.mask import Mask
    from rawlog.values.registry import Catalog

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

# Parameters that several verbs have. A group below is a set of them; what its docstring begins with is their heading in the help.

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
    Option("Only these topics; may be given again.", "-t", "--topic", metavar="GLOB", section=READ),
]
Partitions = Annotated[
    int | Sequence[int] | None,
    Option("Only these partitions: 3, 0,2 or 4-7.", kind=Kind.PARTITIONS, metavar="N", section=READ),
]
Since = Annotated[
    Time | None,
    Option("Start at this time: ISO 8601, epoch milliseconds, or -2h.", metavar="TIME", section=READ),
]
Until = Annotated[Time | None, Option("Stop before this time.", metavar="TIME", section=READ)]
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
    ),
]
ShowSecrets = Annotated[bool, "Show salts, keys and passwords of a metadata log instead of ********."]
Page = Annotated[Path | None, Option("Also write a self-contained HTML page.", metavar="OUT", section=OUTPUT)]
Columns = Annotated[
    str | Sequence[str] | None,
    Option("Only these columns, in this order.", metavar="A,B", is_repeated=False, section=READ),
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
Force = Annotated[bool, Option("Replace DST if it exists; it is replaced only if all goes well.", section=OUTPUT)]
SystemOptions = Annotated[Mapping[str, object] | None, Option("Options of single systems.", metavar="NAME=VALUE")]
CatalogName = Annotated[
    str | None,
    Option("A catalog of PyIceberg's configuration, or a file NAME.db, instead of the lake's own.", metavar="NAME"),
]


class Limits(TypedDict, total=False):
    """Limits: so that a small file cannot use all memory."""

    max_decompressed: Annotated[
        int,
        Option(
            "Let one compressed part grow to at most this size.",
            kind=Kind.SIZE,
            default=MAX_DECOMPRESSED,
            metavar="SIZE",
        ),
    ]
    max_headers: Annotated[
        int, Option("Read at most N headers of a record.", default=MAX_HEADERS, least=0, metavar="N")
    ]


class Bounding(Limits, total=False):
    """What to read: rows or records by place, time and condition."""

    #: A topic, or several; `*`, `?` and `[…]` match names.
    topic: Topics
    #: All topics whose whole name matches this regular expression.
    topic_pattern: str | None
    partition: Partitions
    from_offset: Annotated[int | None, Option("Start at this offset.", metavar="N")]
    to_offset: Annotated[int | None, Option("Stop before this offset.", metavar="N")]
    since: Since
    until: Until
    where: Annotated[
        str | None, Option("Only rows for which an SQL expression over the columns is true.", metavar="EXPR")
    ]


class Matching(Bounding, total=False):
    """What to read: rows, for `cat`, `count`, `diff`, `convert` and others."""

    #: As kcat's -o: "beginning", "end", "N", "-N" (the last N of each partition), "s@MS", "e@MS".
    start: Annotated[
        str | int | Sequence[str] | None,
        Option("As in kcat: beginning, end, N, -N (the last N of each partition), s@MS, e@MS.", "-o", metavar="OFFSET"),
    ]
    #: The last N rows of each partition.
    last: int | None
    key: Annotated[str | bytes | None, Option("Only rows with this key.", metavar="TEXT")]
    id: Annotated[str | None, Option("Only the message (RocketMQ) or blob (Ambry) with this id.", metavar="ID")]
    find: Annotated[str | None, Option("Only rows whose value contains this text.", metavar="TEXT")]
    isolation: Annotated[
        Literal["read_uncommitted", "read_committed"],
        Option("read_committed leaves aborted transactions out.", default="read_uncommitted"),
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


class Engine(TypedDict, total=False):
    """Engine: what runs a job."""

    engine: Annotated[
        Literal["local", "spark"] | None,
        Option(
            "local runs in this process, without a JVM.  [default: $RAWLOG_ENGINE, else local; spark from 8 GiB on, where it is installed]"
        ),
    ]
    threads: Annotated[
        int | None, Option("Use N threads with --engine local.  [default: one per core]", least=1, metavar="N")
    ]


class Spark(TypedDict, total=False):
    """Spark: where it runs, and its settings."""

    master: Annotated[
        str | None,
        Option(
            "Where Spark runs: local[*], spark://…, sc://…  [default: $SPARK_REMOTE, $SPARK_MASTER, else local[*]]",
            metavar="URL",
        ),
    ]
    conf: Annotated[
        Mapping[str, str] | Sequence[str] | None,
        Option("A setting of Spark; may be given again.", metavar="K=V"),
    ]


class Asking(Decoding, Spark, total=False):
    """What to read: and what answers, for `query` and `sql`."""

    catalog: Annotated[
        str | None,
        Option(
            "The lake in a catalog of PyIceberg's configuration, or in a file NAME.db; it needs no PATH.",
            metavar="NAME",
        ),
    ]
    engine: Annotated[
        Literal["spark", "duckdb", "local"] | None,
        Option(
            "duckdb (or local) works in this process, without a JVM, in DuckDB's SQL; the extra `duckdb`.  [default: $RAWLOG_ENGINE, else "
            "spark where it is installed]",
            section="Engine",
        ),
    ]
    errors: Annotated[
        Literal["raise", "skip"],
        Option("At damage in a file: end with exit code 1, or continue after it.", default="raise"),
    ]
    replicas: Replicas


class Running(Engine, Spark, total=False):
    """Engine: where a job runs."""

    #: Called now and then, from any thread, with how far the job is.
    progress: Callable[[Progress], None] | None


class Verifying(Limits, Running, total=False):
    """Engine: where `verify` and `report` run, and their limits."""


class NewCluster(TypedDict, total=False):
    """New cluster: which one starts on what is written."""

    node_id: Annotated[
        int,
        Option(
            "The node.id of the new broker; of the first one if there are several.", default=1, least=0, metavar="N"
        ),
    ]
    cluster_id: Annotated[str | None, Option("The id of the new cluster.  [default: a random one]", metavar="ID")]
    metadata_version: Annotated[
        str | int | None,
        Option("Such as 3.9-IV0 or 21.  [default: that of the source; 3.9-IV0 if it has none]", metavar="RELEASE"),
    ]
    keep_retention: Annotated[bool, "Keep retention settings, even if a broker then deletes old records."]


class Rescuing(NewCluster, Running, total=False):
    """New cluster: the one that `rescue` makes, and where the job runs."""


class Comparing(Choosing, Running, total=False):
    """What to read: rows and columns, and where the job runs, for `diff`."""


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
        Option("What to do with values that are neither JSON nor decoded if fields are masked.  [default: refuse]"),
    ]


class Restoring(NewCluster, Masking, Decoding, Running, total=False):
    """New cluster: the one that `restore` makes; masks, decoding, and where the job runs."""


class Erasing(Bounding, Decoding, Running, total=False):
    """What to erase: records by place, time and condition, besides those that are named."""


class Converting(Matching, Masking, Decoding, Running, total=False):
    """What to read: rows, for `convert`."""

    limit: Annotated[int | None, Option("Convert at most N rows.", "-n", "--limit", least=0, metavar="N")]
    #: Only these columns, or fields such as "value.user", for parquet, jsonl and csv.
    columns: Columns
    #: What only some source systems understand.
    source_option: OwnOptions


def selection_of(given: Mapping[str, Any], *, as_bytes: bool = False) -> Selection:
    """The Selection that keyword options describe. OptionError for an unknown one, and for those that contradict one another.

    With `as_bytes` values stay bytes, also if they are decoded for `where` or for masks.
    """
    fields: dict[str, Any] = {}
    own: dict[str, object] = {}
    for name, value in given.items():
        if value is None:
            continue
        if name in _PLAIN:
            fields[name] = value
        elif name in _READ:
            field, read = _READ[name]
            fields[field] = read(value)
        elif name in ("option", "source_option"):
            own |= dict(value)
        elif name == "show_secrets":
            own |= {"showSecrets": "true"} if value else {}
        elif name not in ("start", "find", *Masking.__annotations__, *Decoding.__annotations__):
            own[name] = value
    fields |= _starts(given.get("start"), fields)
    if given.get("find") is not None:
        fields["where"] = _finding(str(given["find"]), fields.get("where"))
    if own:
        fields["options"] = _own(own)
    return Selection(**fields, transforms=transforms_of(given, as_bytes=as_bytes))


def transforms_of(given: Mapping[str, Any], *, as_bytes: bool = False) -> tuple[Transform, ...]:
    """The changes of rows that keyword options ask for. OptionError for invalid ones.

    With `as_bytes` values stay bytes: decoding then serves `where` and masks of fields, and one of them must be asked for to have that.
    """
    mask = _mask_of(given)
    if not given.get("decode"):
        if given.get("schemas") is not None:
            raise OptionError("--decode is missing: SIDE=HOW, such as value=auto")
        return () if mask is None else (mask,)
    from rawlog.values.mask import SchemaMask
    from rawlog.values.transform import Decode, parse_decode

    wishes = parse_decode(given["decode"])
    source = None if given.get("schemas") is None else os.fspath(given["schemas"])
    has_where = given.get("where") is not None or given.get("find") is not None
    if mask is None:
        return (Decode(wishes, source, is_shown=not (as_bytes and has_where)),)
    changes: list[Transform] = [Decode(wishes, source, is_shown=False)] if has_where else []
    changes.append(SchemaMask.of(mask, wishes, source))
    return (*changes,) if as_bytes else (*changes, Decode(wishes, source, is_tested=False))


def _mask_of(given: Mapping[str, Any]) -> Mask | None:
    if not given.get("mask"):
        if any(given.get(name) for name in Masking.__annotations__):
            raise OptionError("--mask is missing: FIELD=HOW, such as value.card=hash")
        return None
    from rawlog.values.mask import parse_mask

    keep_sizes, other = bool(given.get("mask_keep_sizes")), given.get("mask_other") or "refuse"
    return parse_mask(given["mask"], given.get("mask_secret_file"), keep_sizes=keep_sizes, other=other)


def bound(
    selection: Selection, tree: Tree, table: Table | None = None, schemas: Callable[[], Catalog] | None = None
) -> Selection:
    """The selection with the schemas that decoding needs. OptionError for a table whose rows have nothing to decode.

    `schemas` finds them where no place was named and the tree has none.
    """
    if not selection.transforms:
        return selection
    from rawlog.values.mask import SchemaMask
    from rawlog.values.transform import Decode, bind

    decodes = any(isinstance(one, Decode | SchemaMask) for one in selection.transforms)
    if table is not None and table.name != RECORDS.name and decodes:
        raise OptionError(f"--decode: rows of records are decoded, not those of {table.name}")
    return bind(selection, tree, schemas)


def _names(value: str | Iterable[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _numbers(value: int | Iterable[int]) -> tuple[int, ...]:
    return (value,) if isinstance(value, int) else tuple(value)


def _key(value: str | bytes) -> bytes:
    return os.fsencode(value) if isinstance(value, str) else bytes(value)


_PLAIN = ("topic_pattern", "from_offset", "to_offset", "last", "id", "where", "limit", "isolation", "errors", "max_decompressed",
          "max_headers", "replicas")  # fmt: skip
_READ: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "topic": ("topics", _names),
    "partition": ("partitions", _numbers),
    "since": ("since", parse_time),
    "until": ("until", parse_time),
    "columns": ("columns", parse_columns),
    "key": ("key", _key),
}


def _starts(given: str | int | Sequence[str] | None, fields: Mapping[str, Any]) -> dict[str, Any]:
    """What kcat's forms of `-o` mean."""
    texts = () if given is None else (str(given),) if isinstance(given, (str, int)) else tuple(given)
    found: dict[str, Any] = {}
    for text in texts:
        for name, value in parse_offset_option(text).items():
            if fields.get(name) is not None or name in found:
                raise OptionError(f"-o {text}: --{name.replace('_', '-')} is given already")
            found[name] = value
    if found.get("last") is not None and {**fields, **found}.get("from_offset") is not None:
        raise OptionError("-o from the end and --from-offset exclude one another")
    return found


def _finding(text: str, where: str | None) -> str:
    quoted = text.replace("\\", "\\\\").replace("'", "\\'")
    contains = f"contains(value, '{quoted}')"
    return contains if where is None else f"({where}) AND {contains}"


def _own(given: Mapping[str, object]) -> dict[str, str]:
    """Options that only some systems have. OptionError for one that no system has."""
    try:
        return registry.reading_options({name: str(value) for name, value in given.items()})
    except OptionError as error:
        known = {*Selecting.__annotations__, *(name for family in registry.families() for name in family.options)}
        name = next(name for name in given if _is_unknown(name))
        raise unknown("option", name, known) from error


def _is_unknown(name: str) -> bool:
    try:
        registry.reading_options({name: ""})
    except OptionError:
        return True
    return False


def option_texts(given: Mapping[str, object] | None, **more: object) -> dict[str, str]:
    """Options of a system as texts under the names that it knows: `delete.retention.ms` is `delete_retention_ms`. None is left out."""
    every = {name.replace(".", "_").replace("-", "_"): value for name, value in (given or {}).items()}
    every |= {name: value for name, value in more.items() if value is not None}
    return {
        name: ("true" if value else "false") if isinstance(value, bool) else str(value) for name, value in every.items()
    }


def noted(text: str) -> None:
    """The note of callers that give none: lost rows are a warning in the log, the choice of a replica is information, all else is for
    debugging.
    """
    import logging

    from rawlog.reading.parts import Choice

    log = logging.getLogger("rawlog")
    level = logging.WARNING if isinstance(text, SeriousNote) else logging.DEBUG
    log.log(logging.INFO if isinstance(text, Choice) else level, "%s", text)


def readable(tree: Tree, note: Note | None) -> Tree:
    """The tree without files that cannot be read, each of them noted. Without `note` nothing is left out: reading raises."""
    if note is None:
        return tree
    for file in tree:
        if file.problem is not None:
            note(Unreadable(f"{file.path}: {file.problem}"))
    return replace(tree, files=tuple(file for file in tree if file.problem is None))


def whole_paths(paths: Iterable[str]) -> list[str]:
    """Local paths made absolute: a task on another machine has another working directory."""
    from rawlog.io.storage import is_remote, local_path

    return [path if is_remote(path) else os.path.abspath(local_path(path)) for path in paths]


def listed(paths: Paths) -> list[str]:
    """One path or several, as texts."""
    if isinstance(paths, (str, os.PathLike)):
        return [os.fspath(paths)]
    return [os.fspath(path) for path in paths]
