"""The keyword options that functions share, typed: which rows, how a job runs; and what they mean."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from rawlog import registry
from rawlog.model.errors import OptionError, unknown
from rawlog.model.report import SeriousNote
from rawlog.model.table import RECORDS, Table
from rawlog.model.text import parse_time
from rawlog.reading.parts import Choice
from rawlog.reading.select import (
    Selection,
    Transform,
    parse_columns,
    parse_offset_option,
)
from rawlog.reading.tree import Tree, Unreadable

if TYPE_CHECKING:
    from rawlog.model.job import Progress
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


class Bounding(TypedDict, total=False):
    """Which rows or records, by place, time and condition; and the limits of reading them."""

    #: A topic, or several; `*`, `?` and `[…]` match names.
    topic: str | Sequence[str] | None
    #: All topics whose whole name matches this regular expression.
    topic_pattern: str | None
    partition: int | Sequence[int] | None
    from_offset: int | None
    #: Up to this offset, which is left out.
    to_offset: int | None
    #: From a time on: ISO 8601, epoch milliseconds, a datetime, or an age such as "-2h".
    since: Time | None
    #: Up to a time, which is left out.
    until: Time | None
    #: Only those for which an SQL expression over the columns is true: "value.user = 'alice'".
    where: str | None
    #: The largest size that one compressed part may grow to, in bytes.
    max_decompressed: int
    #: The most headers that one record may have.
    max_headers: int


class Matching(Bounding, total=False):
    """Which rows: the options of `cat`, `count`, `diff`, `convert` and others."""

    #: As kcat's -o: "beginning", "end", "N", "-N" (the last N of each partition), "s@MS", "e@MS".
    start: str | int | Sequence[str] | None
    #: The last N rows of each partition.
    last: int | None
    key: str | bytes | None
    #: A message id of RocketMQ, or a blob id of Ambry.
    id: str | None
    #: Only rows whose value contains this text.
    find: str | None
    isolation: Literal["read_uncommitted", "read_committed"]
    #: At damage: raise DataError, stop reading the file, or skip what is damaged.
    errors: Literal["raise", "stop", "skip"]
    #: Show salts, keys and passwords of a metadata log instead of ********.
    show_secrets: bool
    #: Of replicas of one partition or store: read the best one (default), read all, or raise OptionError.
    replicas: Literal["best", "all", "refuse"]


class Decoding(TypedDict, total=False):
    """How keys and values are decoded, for functions that read rows."""

    #: SIDE=HOW, separated by commas, or a mapping: {"value": "auto"}. Sides: key, value. How: auto, avro, protobuf, json, string, raw;
    #: after auto or avro, @latest or @N gives nested columns of that version of the schema, and @written JSON text.
    decode: str | Sequence[str] | Mapping[str, str] | None
    #: Where schemas come from: a directory, a file or the URL of a registry; by default the topic _schemas among the files.
    schemas: Path | None


class Counting(Matching, Decoding, total=False):
    """Which rows, for `count`; `where` sees decoded keys and values."""

    limit: int | None
    #: What only some systems understand: now (Ambry), atOffset, atTimestamp (KRaft).
    option: Mapping[str, object] | None


class Choosing(Matching, total=False):
    """Which rows and columns."""

    columns: str | Sequence[str] | None
    #: What only some systems understand: now (Ambry), atOffset, atTimestamp (KRaft).
    option: Mapping[str, object] | None


class Searching(Choosing, total=False):
    """Which rows and columns, and how many rows, for `find`."""

    limit: int | None


class Showing(Choosing, Decoding, total=False):
    """Which rows and columns, and how they are decoded, for `head`, `tail` and `follow`."""


class Selecting(Showing, total=False):
    """Which rows and columns, and how many rows, for `read` and `cat`."""

    limit: int | None


class Running(TypedDict, total=False):
    """Where a job runs."""

    #: "local": in threads of this process; "spark". $RAWLOG_ENGINE sets the default: else Spark runs jobs of 8 GiB and more, if installed.
    engine: Literal["local", "spark"] | None
    #: Where Spark runs: "local[*]", "spark://…", "sc://…".
    master: str | None
    #: Settings of Spark.
    conf: Mapping[str, str] | Sequence[str] | None
    #: Threads of the local engine; by default one per core.
    threads: int | None
    #: Called now and then, from any thread, with how far the job is.
    progress: Callable[[Progress], None] | None


class Comparing(Choosing, Running, total=False):
    """Which rows and columns, and where the job runs, for `diff`."""


class Masking(TypedDict, total=False):
    """What is masked in rows that are shared, for `convert`, `ingest`, `restore` and `replay`."""

    #: FIELD=HOW, separated by commas, or a mapping: {"value.card": "hash"}. Fields: key, value, value.user, headers.trace, timestamp. How:
    #: drop, hash, digits (other digits and letters), fixed:TEXT, and for the timestamp shift:-30d.
    mask: str | Sequence[str] | Mapping[str, str] | None
    #: A file with the secret of hash and digits; by default it is in $RAWLOG_MASK_SECRET.
    mask_secret_file: Path | None
    #: Keep the sizes of masked keys, values and fields.
    mask_keep_sizes: bool
    #: What is done with keys and values that are neither JSON nor decoded if fields of them are masked. Default: OptionError, and
    #: nothing is written.
    mask_other: Literal["refuse", "keep", "drop", "hash"]


class Erasing(Bounding, Decoding, Running, total=False):
    """Which records `erase` removes, besides those that are named, and where the job runs."""


class Converting(Matching, Masking, Decoding, Running, total=False):
    """Which rows, and where the job runs, for `convert`."""

    limit: int | None
    #: Only these columns, or fields such as "value.user", for parquet, jsonl and csv.
    columns: str | Sequence[str] | None
    #: What only some source systems understand.
    source_option: Mapping[str, object] | None


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
    from rawlog.values.mask_encoded import SchemaMask
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
    from rawlog.values.mask_encoded import SchemaMask
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
