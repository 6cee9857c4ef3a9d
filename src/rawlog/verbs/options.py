"""The keyword options that functions share, typed: which rows, how a job runs; and what they mean."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, TypeVar

from rawlog import registry
from rawlog.model.errors import OptionError, RawlogError
from rawlog.model.job import Progress
from rawlog.model.report import SeriousNote
from rawlog.model.table import RECORDS, Table
from rawlog.model.verb import Option
from rawlog.reading.options import (
    OUTPUT,
    Bounding,
    Choosing,
    Columns,
    Decoding,
    Limits,
    Masking,
    Matching,
    Note,
    OwnOptions,
    Path,
    Paths,
    Replicas,
    listed,
    selection_from,
)
from rawlog.reading.select import (
    Selection,
    Transform,
)
from rawlog.reading.tree import Tree, Unreadable, open_known, open_tree

if TYPE_CHECKING:
    from rawlog.engines.choice import JobEngine
    from rawlog.values.mask import Mask
    from rawlog.values.registry import Catalog


Error = TypeVar("Error", bound=RawlogError)
#: Verbs that write stores of one system again, and verbs that need an ability of its stores.
REWRITES = ("repair", "rebuild", "compact", "erase")
RECOVERIES = {"rescue": "rescuer", "restore": "restorer"}


# Parameters that several verbs have. A group below is a set of them; what its docstring begins with is their heading in the help.

Page = Annotated[Path | None, Option("Also write a self-contained HTML page.", metavar="OUT", section=OUTPUT)]
Force = Annotated[bool, Option("Replace DST if it exists; it is replaced only if all goes well.", section=OUTPUT)]
SystemOptions = Annotated[Mapping[str, object] | None, Option("Options of single systems.", metavar="NAME=VALUE")]
CatalogName = Annotated[
    str | None,
    Option("A catalog of PyIceberg's configuration, or a file NAME.db, instead of the lake's own.", metavar="NAME"),
]


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
        Option(
            "Use this metadata version: 3.9-IV0, 21.  [default: that of the source; 3.9-IV0 if it has none]",
            metavar="RELEASE",
        ),
    ]
    keep_retention: Annotated[bool, "Keep retention settings, even if a broker then deletes old records."]


class Rescuing(NewCluster, Running, total=False):
    """New cluster: the one that `rescue` makes, and where the job runs."""


class Comparing(Choosing, Running, total=False):
    """What to read: rows and columns, and where the job runs, for `diff`."""


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


def selection_of(options: Mapping[str, Any], *, as_bytes: bool = False) -> Selection:
    """The Selection that keyword options describe, with masks and decoding. OptionError for an unknown one, and for those that contradict
    one another.

    With `as_bytes` values stay bytes, also if they are decoded for `where` or for masks.
    """
    return selection_from(options, transforms_of(options, as_bytes=as_bytes))


def transforms_of(options: Mapping[str, Any], *, as_bytes: bool = False) -> tuple[Transform, ...]:
    """The changes of rows that keyword options ask for. OptionError for invalid ones.

    With `as_bytes` values stay bytes: decoding then serves `where` and masks of fields, and one of them must be asked for to have that.
    """
    mask = _mask_of(options)
    if not options.get("decode"):
        if options.get("schemas") is not None:
            raise OptionError("--decode is missing: SIDE=HOW, such as value=auto")
        return () if mask is None else (mask,)
    from rawlog.values.mask import SchemaMask
    from rawlog.values.transform import Decode, parse_decode

    wishes = parse_decode(options["decode"])
    source = None if options.get("schemas") is None else os.fspath(options["schemas"])
    has_where = options.get("where") is not None or options.get("find") is not None
    if mask is None:
        return (Decode(wishes, source, is_shown=not (as_bytes and has_where)),)
    changes: list[Transform] = [Decode(wishes, source, is_shown=False)] if has_where else []
    changes.append(SchemaMask.of(mask, wishes, source))
    return (*changes,) if as_bytes else (*changes, Decode(wishes, source, is_tested=False))


def _mask_of(options: Mapping[str, Any]) -> Mask | None:
    if not options.get("mask"):
        if any(options.get(name) for name in Masking.__annotations__):
            raise OptionError("--mask is missing: FIELD=HOW, such as value.card=hash")
        return None
    from rawlog.values.mask import parse_mask

    keep_sizes, other = bool(options.get("mask_keep_sizes")), options.get("mask_other") or "refuse"
    return parse_mask(options["mask"], options.get("mask_secret_file"), keep_sizes=keep_sizes, other=other)


def bind_schemas(
    selection: Selection, tree: Tree, table: Table | None = None, schemas: Callable[[], Catalog] | None = None
) -> Selection:
    """The selection with the schemas that decoding needs. OptionError for a table whose rows have nothing to decode.

    `schemas` finds them where no place was named and the tree has none.
    """
    if not selection.transforms:
        return selection
    from rawlog.values.mask import SchemaMask
    from rawlog.values.transform import Decode, bind

    decodes = any(isinstance(transform, Decode | SchemaMask) for transform in selection.transforms)
    if table is not None and table.name != RECORDS.name and decodes:
        raise OptionError(f"--decode: only the table records is decoded, not {table.name}")
    return bind(selection, tree, schemas)


def option_texts(options: Mapping[str, object] | None, **more: object) -> dict[str, str]:
    """Options of a system as texts under the names that it knows: `delete.retention.ms` is `delete_retention_ms`. None is left out."""
    values = {name.replace(".", "_").replace("-", "_"): value for name, value in (options or {}).items()}
    values |= {name: value for name, value in more.items() if value is not None}
    return {
        name: ("true" if value else "false") if isinstance(value, bool) else str(value)
        for name, value in values.items()
    }


def log_note(text: str) -> None:
    """The note of callers that give none: lost rows are a warning in the log, the choice of a replica is information, all else is for
    debugging.
    """
    import logging

    from rawlog.reading.parts import ReplicaNote

    log = logging.getLogger("rawlog")
    level = logging.WARNING if isinstance(text, SeriousNote) else logging.DEBUG
    log.log(logging.INFO if isinstance(text, ReplicaNote) else level, "%s", text)


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


def instead(error: Error, tree: Tree, verb: str | None = None) -> Error:
    """An error for files of a system that the verb is not for, with the verbs that are for it. Of a system that has `verb` nothing is said:
    only the files that it needs are not there.
    """
    systems = {file.system for file in tree.files}
    shown = []
    for family in registry.families():
        if family.host is not None or not any(map(family.looks_at, systems)):
            continue
        kinds = [other.store_class for other in registry.families() if family.name in (other.name, other.host)]
        verbs = ["ls", "verify", *(verb for verb in REWRITES if any(verb in kind.rewrites for kind in kinds))]
        verbs += [verb for verb, ability in RECOVERIES.items() if any(kind.can(ability) for kind in kinds)]
        verbs += [verb for verb, reader in (("groups", family.groups), ("transactions", family.transactions)) if reader]
        if verb not in verbs:
            shown.append(f"for {family.title}: rawlog {', '.join(verbs)}")
    return error.advise("; ".join(shown) or f"rawlog ls {' '.join(tree.roots)} shows what is there")


# Where a job runs ---------------------------------------------------------------------------------------------------------


def check_page(html: Path | None, sources: Iterable[str]) -> None:
    """OptionError if the page would be in a source: before anything is done."""
    from rawlog.io.output import refuse_nested

    if html is not None:
        refuse_nested(os.fspath(html), sources)


def write_page(html: Path, page: str, sources: Iterable[str]) -> None:
    """Write a page; one that exists is replaced. OptionError if it would be in a source."""
    from rawlog.io.output import writing

    with writing(os.fspath(html), overwrite=True, sources=sources) as out:
        out.write(page.encode())


def open_sources(
    places: Sequence[Paths],
    running: Running,
    *,
    format: str | None = None,
    note: Note | None = None,
    must_know: bool = True,
) -> tuple[JobEngine, list[Tree]]:
    """The engine that a job over some places runs on, and a tree for each place, as `open_known` opens it. The door of every verb with an
    engine: on Spark local paths are absolute, because tasks may have another working directory.
    """
    from rawlog.engines.choice import choose

    trees = [open_known(listed(place), format=format, note=note, must_know=must_know) for place in places]
    engine = choose(sum(tree.size for tree in trees), **settings_of(running))
    if engine.name == "spark":
        trees = [open_tree(whole_paths(tree.roots), format=format) for tree in trees]
    return engine, trees


def settings_of(running: Running, names: Iterable[str] = ()) -> dict[str, Any]:
    """The options that choose an engine. TypeError for an option that is not known."""
    if extra := set(running) - {*Running.__annotations__, *names}:
        raise TypeError(f"unexpected keyword argument {min(extra)!r}")
    return {name: running.get(name) for name in ("engine", "master", "conf", "threads")}


def running_of(options: Mapping[str, Any], names: Iterable[str] = ()) -> Running:
    """The options of where a job runs. TypeError for an option that is not known."""
    settings_of(options, names)  # type: ignore[arg-type]
    return divide_options(options)[1]


def divide_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], Running]:
    """Options of the selection, and of where the job runs."""
    running = {name: value for name, value in options.items() if name in Running.__annotations__}
    others = {name: value for name, value in options.items() if name not in running}
    return others, running  # type: ignore[return-value]
