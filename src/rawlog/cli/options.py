"""The options that verbs share: what to read, which rows and columns, and how to print them."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from rawlog.cli import logs
from rawlog.cli.logs import Bar
from rawlog.model.errors import OptionError

F = TypeVar("F", bound=Callable[..., Any])

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


class Size(click.ParamType[int]):
    """A number of bytes: `4096`, `64M`, `1GiB` (powers of 1024)."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = _SIZE.fullmatch(str(value).strip())
        if match is None:
            self.fail(f"{value!r}: a size such as 64M or 1GiB expected", param, ctx)
        return int(float(match[1]) * 1024 ** _POWERS[match[2].lower()])


class Partitions(click.ParamType[tuple[int, ...]]):
    """Partition numbers: `3`, `0,2` or `4-7`."""

    name = "partitions"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        found: list[int] = []
        for part in str(value).split(","):
            match = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", part)
            if match is None or (match[2] and int(match[2]) - int(match[1]) > 100_000):
                self.fail(f"{value!r}: a partition such as 3, 0,2 or 4-7 expected", param, ctx)
            found += range(int(match[1]), int(match[2] or match[1]) + 1)
        return tuple(found)


#: The options that choose rows and columns.
SELECTION = ("topic", "partition", "from_offset", "to_offset", "since", "until", "start", "key", "id", "find", "where", "columns",
             "limit", "isolation", "errors", "max_decompressed", "max_headers", "show_secrets", "replicas", "decode",
             "schemas")  # fmt: skip
PATH = click.Path()  # any text, and the shell completes files


def paths(function: F) -> F:
    """The paths, and the format to read them as."""
    function = click.option(
        "--as", "as_format", metavar="FORMAT", help="Read every file as this format, whatever it looks like."
    )(function)
    return click.argument("paths", nargs=-1, required=True, type=PATH, metavar="PATH...")(function)


def _apply(function: F, options: list[Callable[[F], F]]) -> F:
    for option in reversed(options):
        function = option(function)
    return function


def table(function: F) -> F:
    """Which table to read the paths as."""
    option = click.option(
        "--table",
        default="records",
        show_default=True,
        metavar="NAME",
        shell_complete=_complete_tables,
        help="Table to read: records, files, findings, or one of a system (`rawlog formats` lists them).",
    )
    return option(function)


def _complete_tables(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from rawlog import registry

    return [name for name in registry.tables() if name.startswith(incomplete)]


def selection(*, columns: bool = True, limit: bool = True, own: str = "--option") -> Callable[[F], F]:
    """Which rows, and of these which columns; `own` is the option for what only some systems understand."""
    options: list[Callable[[Any], Any]] = [
        click.option("--topic", multiple=True, metavar="GLOB", help="Only these topics; may be given again."),
        click.option(
            "--partition", multiple=True, type=Partitions(), metavar="N", help="Only these partitions: 3, 0,2 or 4-7."
        ),
        click.option("--from-offset", type=int, metavar="N", help="From this offset on."),
        click.option("--to-offset", type=int, metavar="N", help="Up to this offset, which is left out."),
        click.option("--since", metavar="TIME", help="From a time on: ISO 8601, epoch milliseconds, or -2h."),
        click.option("--until", metavar="TIME", help="Up to a time, which is left out."),
        click.option(
            "-o",
            "start",
            multiple=True,
            metavar="OFFSET",
            help="As kcat's: beginning, end, N, -N (the last N of each partition), s@MS, e@MS.",
        ),
        click.option("--key", metavar="TEXT", help="Only rows with this key."),
        click.option("--id", metavar="ID", help="Only the message (RocketMQ) or blob (Ambry) with this id."),
        click.option("--find", metavar="TEXT", help="Only rows whose value contains this text."),
        click.option("--where", metavar="EXPR", help="Only rows for which an SQL expression over the columns is true."),
    ]
    if columns:
        options.append(click.option("--columns", metavar="A,B", help="Only these columns, in this order."))
    if limit:
        options.append(click.option("-n", "--limit", type=click.IntRange(0), metavar="N", help="At most so many rows."))
    options += [
        click.option(
            "--isolation",
            type=click.Choice(["read_uncommitted", "read_committed"]),
            default="read_uncommitted",
            show_default=True,
            help="read_committed leaves aborted transactions out.",
        ),
        errors,
        replicas,
        limits,
        click.option(
            own,
            "own",
            multiple=True,
            metavar="NAME=VALUE",
            help="What only some systems understand: now=TIME (ambry), atOffset=N, atTimestamp=TIME (kraft).",
        ),
        show_secrets,
    ]
    return lambda function: _apply(function, options)


def limits(function: F) -> F:
    """Limits, so that a small file cannot use all memory."""
    options: list[Callable[[Any], Any]] = [
        click.option(
            "--max-decompressed",
            type=Size(),
            default="64M",
            show_default=True,
            metavar="SIZE",
            help="Largest size that one compressed part may grow to.",
        ),
        click.option(
            "--max-headers",
            type=click.IntRange(0),
            default=1 << 20,
            show_default=True,
            metavar="N",
            help="Most headers that one record may have.",
        ),
    ]
    return _apply(function, options)


def show_secrets(function: F) -> F:
    """Whether secrets of a cluster's metadata are shown."""
    return click.option(
        "--show-secrets", is_flag=True, help="Show salts, keys and passwords of a metadata log instead of ********."
    )(function)


def decode(function: F) -> F:
    """How keys and values are decoded."""
    options: list[Callable[[Any], Any]] = [
        click.option(
            "--decode",
            multiple=True,
            metavar="SIDE=HOW,…",
            help="Decode value or key: auto, avro, protobuf, json, string or raw. With @latest or @N after the first three: nested columns "
            "of that version of the schema; with @written: JSON text.",
        ),
        click.option(
            "--schemas",
            type=PATH,
            metavar="PLACE",
            help="Where schemas come from: a directory, a file, or a registry's URL.  [default: topic _schemas among the files]",
        ),
    ]
    return _apply(function, options)


def as_written(given: Iterable[str]) -> tuple[str, ...]:
    """What `--decode` asks for, with JSON text where it does not ask for columns: for rows that are printed."""
    parts = [part.strip() for text in given for part in text.split(",")]
    return tuple(
        f"{part}@written" if part.rpartition("=")[2] in ("auto", "avro", "protobuf") else part for part in parts
    )


def mask(function: F) -> F:
    """What is masked in rows that are shared."""
    options: list[Callable[[Any], Any]] = [
        click.option(
            "--mask",
            multiple=True,
            metavar="FIELD=HOW,…",
            help="Mask key, value, value.user, value.items[*].sku or headers.name by drop, hash, digits or fixed:TEXT; "
            "timestamp=shift:-30d.",
        ),
        click.option(
            "--mask-secret-file",
            type=PATH,
            metavar="FILE",
            help="The secret of hash and digits.  [default: $RAWLOG_MASK_SECRET]",
        ),
        click.option("--mask-keep-sizes", is_flag=True, help="Masked keys, values and fields keep their sizes."),
        click.option(
            "--mask-other",
            type=click.Choice(["refuse", "keep", "drop", "hash"]),
            help="What is done with values that are neither JSON nor decoded if fields are masked.  [default: refuse]",
        ),
    ]
    return _apply(function, options)


def errors(function: F) -> F:
    """What to do at damage."""
    option = click.option(
        "--errors",
        type=click.Choice(["raise", "stop", "skip"]),
        default="raise",
        show_default=True,
        help="At damage: end with exit code 1; stop reading the file; or continue after it.",
    )
    return option(function)


def replicas(function: F) -> F:
    """Which of several replicas are read."""
    option = click.option(
        "--replicas",
        type=click.Choice(["best", "all", "refuse"]),
        default="best",
        show_default=True,
        help="Of replicas of one partition or store: read the best, read every one, or end with an error.",
    )
    return option(function)


def output(function: F) -> F:
    """How rows are printed."""
    options: list[Callable[[Any], Any]] = [
        click.option("--json", "as_json", is_flag=True, help="One JSON object per line."),
        click.option("--csv", "as_csv", is_flag=True, help="Comma-separated, with a line of names."),
        click.option("--raw", is_flag=True, help="Only the values, as they are, each followed by the delimiter."),
        click.option("--delimiter", metavar="TEXT", help=r"What follows each value of --raw.  [default: \n]"),
        click.option(
            "--format",
            "template",
            metavar="TEXT",
            help=r"As rpk's: '%t %p %o %k %v\n'; see `rawlog cat --help`.",
        ),
        click.option("--arrow", is_flag=True, help="An Arrow IPC stream."),
        click.option("--expanded", is_flag=True, help="One field per line, every value whole."),
        click.option(
            "--wide", is_flag=True, help="All columns, every value whole, whatever the width of the terminal."
        ),
        bytes_form,
    ]
    return _apply(function, options)


def new_cluster(function: F) -> F:
    """--node-id, --cluster-id, --metadata-version, --keep-retention: of the cluster that starts on what is written."""
    options: list[Callable[[F], F]] = [
        click.option(
            "--node-id",
            type=click.IntRange(0),
            default=1,
            show_default=True,
            metavar="N",
            help="The node.id of the new broker; of the first one if there are several.",
        ),
        click.option("--cluster-id", metavar="ID", help="The id of the new cluster.  [default: a random one]"),
        click.option(
            "--metadata-version",
            metavar="RELEASE",
            help="Such as 3.9-IV0 or 21.  [default: that of the source; 3.9-IV0 if it has none]",
        ),
        click.option(
            "--keep-retention", is_flag=True, help="Keep retention settings, even if a broker then deletes old records."
        ),
    ]
    return _apply(function, options)


def json_flag(function: F) -> F:
    """`--json` alone, for verbs that do not print rows."""
    return click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")(function)


def html(function: F) -> F:
    """`--html OUT`: a page next to what is printed."""
    return click.option("--html", "html", type=PATH, metavar="OUT", help="Write a self-contained page as well.")(
        function
    )


def bytes_form(function: F) -> F:
    """One form for all binary values."""
    option = click.option(
        "--bytes",
        "form",
        type=click.Choice(["base64", "hex", "escape"]),
        help="Every binary value in this one form.  [default: text where it is UTF-8, else base64]",
    )
    return option(function)


def selecting(given: dict[str, Any]) -> dict[str, Any]:
    """Take the options of a selection out of `given`: as the keywords of the functions of `rawlog`."""
    found: dict[str, Any] = {name: given.pop(name) for name in SELECTION if name in given}
    for name in ("topic", "start", "decode"):
        if name in found:
            found[name] = found[name] or None
    if "partition" in found:
        found["partition"] = numbers(found["partition"])
    if "key" in found and found["key"] is not None:
        found["key"] = os.fsencode(found["key"])
    if "own" in given:
        found["option"] = pairs(given.pop("own"))
    return found


def numbers(given: Iterable[tuple[int, ...]]) -> tuple[int, ...] | None:
    """The partitions of `--partition`, None for all of them."""
    return tuple(number for part in given for number in part) or None


def pairs(given: Iterable[str], option: str = "--option", form: str = "NAME=VALUE") -> dict[str, str] | None:
    """The texts NAME=VALUE of an option as a dict; None if there are none. OptionError for one without `=`."""
    given = list(given)
    split = [text.partition("=") for text in given]
    if any(not mark for _, mark, _ in split):
        raise OptionError(f"{option} {' '.join(given)}: {form} expected")
    return {name: value for name, _, value in split} or None


def examples(*commands: str, more: str = "") -> str:
    """The last part of a command's help: examples, one per line, and what comes after them."""
    if not commands:
        return more
    lines = "\n".join(f"  {command}" for command in commands)
    return f"\b\nExamples:\n{lines}\n\n{more}"


# ----------------------------------------------------------------------------------------------------------------------
# The options of verbs that run jobs: where they run, and with which settings; and their progress on a terminal.


ENGINES = ("local", "spark")
NAMES = ("engine", "master", "conf", "threads")


def spark(function: F) -> F:
    """Where Spark runs, and its settings."""
    function = click.option("--conf", multiple=True, metavar="K=V", help="A setting of Spark; may be given again.")(
        function
    )
    return click.option(
        "--master",
        metavar="URL",
        help="Where Spark runs: local[*], spark://…, sc://… [default: $SPARK_REMOTE, $SPARK_MASTER, else local[*]]",
    )(function)


def engine(function: F) -> F:
    """What runs the job: Spark by default, where it is installed."""
    return click.option(
        "--engine",
        type=click.Choice(ENGINES),
        help="local: in this process, without a JVM.  [default: $RAWLOG_ENGINE, else spark where it is installed]",
    )(_threads(spark(logs.option(function))))


def engine_by_size(function: F) -> F:
    """What runs the job: this process by default, and Spark if it is large."""
    return click.option(
        "--engine",
        type=click.Choice(ENGINES),
        help="local: in this process, without a JVM.  [default: $RAWLOG_ENGINE, else local; from 8 GiB on spark, where it is installed]",
    )(_threads(spark(logs.option(function))))


def _threads(function: F) -> F:
    return click.option(
        "--threads", type=click.IntRange(1), metavar="N", help="Threads of --engine local.  [default: one per core]"
    )(function)


@contextmanager
def running(given: dict[str, Any], what: str) -> Iterator[dict[str, Any]]:
    """Take the options of the engine out of `given`, as keywords; the progress of the job is drawn meanwhile."""
    found = chosen(given)
    with Bar(what) as bar:
        yield {**found, "progress": bar}


def chosen(given: dict[str, Any]) -> dict[str, Any]:
    """Take the options of the engine out of `given`, as keywords."""
    return {name: given.pop(name) for name in NAMES if name in given}


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show on a terminal what takes a moment, until it is done."""
    shown = sys.stderr.isatty() and not logs.is_json()
    if shown:
        sys.stderr.write(f"\r\x1b[K{what} …")
        sys.stderr.flush()
    try:
        yield
    finally:
        if shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
