"""`ingest`: everything at some paths as tables of a lake. `lake`: what a lake holds, and its maintenance. The jobs are in `lakes/`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack, overload

from rawlog.engines.choice import choose
from rawlog.model.errors import OptionError, RawlogError
from rawlog.model.job import Job
from rawlog.model.report import Action, Report
from rawlog.model.table import RECORDS
from rawlog.model.text import counted, parse_duration
from rawlog.model.verb import Option, verb
from rawlog.reading.options import (
    OUTPUT,
    Decoding,
    Format,
    Masking,
    Note,
    Partitions,
    Path,
    Paths,
    Replicas,
    Since,
    Topics,
    Until,
    listed,
)
from rawlog.reading.select import parse_columns
from rawlog.reading.tree import Tree, open_known, open_tree
from rawlog.verbs.options import CatalogName, Running, selection_of, settings_of, whole_paths

if TYPE_CHECKING:
    from rawlog.lakes.ingest import Ingest
    from rawlog.lakes.ingest_plan import IngestResult
    from rawlog.lakes.upkeep import TableStatus

# ----------------------------------------------------------------------------------------------------------------------
# `ingest`: everything at some paths as tables of a lake. The job is `lakes/ingest.py`.

#: The heading of options of `ingest --follow`.
FOLLOWING = "Following"


class Ingesting(Masking, Decoding, Running, total=False):
    """What to read: of the files that `ingest` takes."""

    tables: Annotated[
        str | Sequence[str] | None,
        Option("Only these tables.  [default: all that the files have]", metavar="A,B", is_repeated=False),
    ]
    topic: Topics
    partition: Partitions
    replicas: Replicas
    since: Since
    until: Until
    partition_by: Annotated[
        str | Sequence[str] | None,
        Option(
            "Cut the data files of new tables by topic, partition, hour, day, month, year or bucket(N, COLUMN).",
            metavar="A,B",
            is_repeated=False,
            section=OUTPUT,
        ),
    ]
    sort_by: Annotated[
        str | Sequence[str] | None,
        Option(
            "Sort the data files of new tables by these columns, whichever a table has.  [default: topic, partition, offset; or the place "
            "in the files]",
            metavar="A,B",
            is_repeated=False,
            section=OUTPUT,
        ),
    ]
    on_rewrite: Annotated[
        Literal["replace", "keep", "refuse"],
        Option(
            "The rows of files that were compacted, truncated or replaced since the last run: replace them; keep them, and take only later "
            "offsets; refuse the files.",
            default="replace",
            section=OUTPUT,
        ),
    ]
    catalog: CatalogName
    format: Format
    note: Note | None
    #: With `follow`: how often it looks, in seconds, and an event that ends it.
    every: Annotated[
        float,
        Option("Look every SECONDS with --follow.", default=5, least=0.1, metavar="SECONDS", section=FOLLOWING),
    ]
    stop: Event | None
    metrics: Annotated[
        Path | None,
        Option(
            "Write the numbers of each run to a file: for Prometheus if its name ends in .prom, else as JSON.",
            metavar="FILE",
            section=OUTPUT,
        ),
    ]


@overload
def ingest(paths: Paths, to: Path, *, follow: Literal[False] = False, **options: Unpack[Ingesting]) -> Report: ...
@overload
def ingest(paths: Paths, to: Path, *, follow: Literal[True], **options: Unpack[Ingesting]) -> Iterator[Report]: ...
@verb(
    group="ask",
    examples=(
        "rawlog ingest kafka-logs/ --to lake",
        "rawlog ingest kafka-logs/ rocketmq-store/ --to lake --tables records,kafka.batches --since -7d",
        "rawlog ingest kafka-logs/ --to lake --follow --every 10",
    ),
    more="Exit codes: 0 done; 1 damage was found, files were refused, or values were not decoded; 2 wrong usage; 3 cannot be "
    "read or written.",
    doing="ingesting",
)
def ingest(
    paths: Annotated[Paths, "PATH"],
    to: Annotated[
        Path,
        Option(
            "The lake: a directory or a URL; created if it does not exist.",
            "-o",
            "--to",
            metavar="LAKE",
            section=OUTPUT,
        ),
    ],
    *,
    follow: Annotated[
        bool, Option("Continue with new data until interrupted.", "-f", "--follow", section=FOLLOWING)
    ] = False,
    **options: Unpack[Ingesting],
) -> Report | Iterator[Report]:
    """Decode everything into a lake of queryable tables.

    Every file is recognised, verified and decoded; the rows become Parquet files of Iceberg tables: records, files, findings and jobs in
    namespace rawlog, and the tables of each system in its own. Run again, it takes only what is new, and continues in files that have
    grown. If a file was compacted, truncated or replaced since, its rows are replaced (`on_rewrite`). Tables of a state (a
    cluster's topics, committed offsets, the blobs of a store) are replaced by the state in the files. The bytes of a message are stored
    once, in records. Damage does not stop the run: sound rows are stored, findings list each loss, the exit code is 1. With `mask` only
    records, files and findings are filled. With `decode` the table records has value_json, value_fields (nested columns of each topic),
    value_schema and value_error next to the bytes. Several runs may work at the same time. Without `engine`, Spark runs it where it is
    installed. `since` does not change tables whose rows have no time.

    Returns a Report. Its counts are files, unchanged, refused, bytes, errors and warnings; `facts["tables"]` has the rows added to each
    table. With `follow`, the result is an iterator with a Report for each run that took something; it ends when `stop` is set. OptionError
    for unknown names, or if the lake is in a source.

    >>> import rawlog
    >>> report = rawlog.ingest("samples/kafka", "out/python-lake", engine="local")
    """
    from rawlog.io.output import refuse_nested
    from rawlog.lakes.ingest import Ingest
    from rawlog.lakes.names import parse_terms
    from rawlog.reading.rows import check_names
    from rawlog.values.transform import Decode

    engine = choose(**settings_of(options, Ingesting.__annotations__))
    names = ("topic", "partition", "since", "until", "replicas", *Masking.__annotations__, *Decoding.__annotations__)
    rows = selection_of({name: options.get(name) for name in names})
    decode = next((transform for transform in rows.transforms if isinstance(transform, Decode)), None)
    rows = rows.replace(transforms=tuple(transform for transform in rows.transforms if transform is not decode))
    roots = whole_paths(
        listed(paths)
    )  # a lake is used longer than the directory it was made from: its paths are absolute
    format, progress = options.get("format"), options.get("progress")
    path, metrics = os.fspath(to), options.get("metrics")

    def look() -> Tree:
        return open_tree(roots, format=format)

    left_out: list[str] = []

    def begin() -> tuple[Tree, Ingest]:
        tree = look() if follow else open_known(roots, format=format, note=left_out.append)
        refuse_nested(path, tree.sources)
        if metrics is not None:
            refuse_nested(metrics, tree.sources)
        check_names(tree, RECORDS, rows, options.get("note"), may_come=follow)
        return tree, Ingest(
            path,
            catalog=options.get("catalog"),
            tables=parse_columns(options.get("tables")),
            selection=rows,
            partition_by=parse_terms(options.get("partition_by")),
            sort_by=parse_columns(options.get("sort_by")),
            on_rewrite=options.get("on_rewrite", "replace"),
            decode=decode,
        )

    if metrics is not None:
        refuse_nested(metrics, roots)
    if follow:
        _, following = begin()
        session = engine.start(progress) if engine.name == "spark" else None
        stop, interval = options.get("stop") or Event(), options.get("every", 5.0)
        runs = _follow(following, look, lambda tree: engine.run(following, tree, progress, session), stop, interval)
        return _measure_runs(runs, metrics, path)
    with _metrics_writer(metrics, path) as measure:
        tree, job = begin()
        with job:
            report = _report_of(tree, job.complete(lambda: engine.run(job, tree, progress)), job)
        report.notes[:0] = left_out
        measure(report)
        return report


def _follow(
    job: Ingest, look: Callable[[], Tree], run: Callable[[Tree], IngestResult], stop: Event, interval: float
) -> Iterator[Report]:
    """Ingest until `stop` is set; a run that is under way is finished."""
    from rawlog.lakes.ingest import follow

    with job:
        for outcome in follow(job, look, run, stop, interval):
            yield _report_of(None, outcome, job)


@contextmanager
def _metrics_writer(path: Path | None, target: str) -> Iterator[Callable[[Report], None]]:
    """A function that writes the metrics of a run to a file; a failure of the run is written, too."""
    from rawlog.io.output import writing
    from rawlog.model import report as metrics

    def write(numbers: Iterable[metrics.Metric]) -> None:
        if path is not None:
            with writing(path, overwrite=True) as file:
                file.write(metrics.as_text(os.fspath(path), "ingest", target, list(numbers)).encode())

    try:
        yield lambda report: write(metrics.metrics_of(report, time.time()))
    except OptionError:  # nothing has run; the file itself may be what is wrong
        raise
    except Exception:
        with suppress(RawlogError):
            write(metrics.failed(time.time()))
        raise


def _measure_runs(runs: Iterator[Report], path: Path | None, target: str) -> Iterator[Report]:
    with _metrics_writer(path, target) as measure:
        for report in runs:
            measure(report)
            yield report


def _report_of(tree: Tree | None, outcome: IngestResult, job: Ingest) -> Report:
    """What a run did, as a Report."""
    from rawlog.model.outline import Reading
    from rawlog.reading.settlement import report_reading

    seconds, job.seconds = job.seconds or {}, None
    report = Report("ingest", "" if tree is None else ", ".join(tree.roots), outcome.lake)
    report.facts = {
        "verdict": outcome.verdict,
        "tables": dict(outcome.tables),
        "run": outcome.run,
        "lake": outcome.lake,
        "seconds": {phase: round(number, 3) for phase, number in seconds.items()},
    }
    report.counts = {
        "files": outcome.files,
        "unchanged": outcome.unchanged,
        "refused": len(outcome.refused),
        "bytes": outcome.size,
        "errors": outcome.errors,
        "warnings": outcome.warnings,
    }
    report.notes = list(outcome.notes)
    for path, why in outcome.refused:
        report.add(Action.DROPPED, f"{why}; left out, nothing in the lake was changed", path)
    report_reading(Reading(entries=outcome.losses), report)
    if outcome.losing:
        what = counted(outcome.errors, "error") if outcome.errors else counted(outcome.warnings, "warning")
        report.add(Action.LOST, f"{what} in the source; the table findings lists them")
    return report


@verb(
    group="ask",
    examples=(
        "rawlog lake lake",
        "rawlog lake lake --compact --expire-snapshots --remove-orphans",
        "rawlog lake lake --compact --sort-by topic,timestamp",
        "rawlog lake lake --remove-orphans --older-than 7d --dry-run",
    ),
    doing="tidying",
)
# ----------------------------------------------------------------------------------------------------------------------
# `lake`: what a lake holds, and its maintenance. The work is in `lakes/upkeep.py`.

def lake(
    path: Annotated[Path, "LAKE"],
    *,
    expire_snapshots: Annotated[
        bool,
        "Remove snapshots that were replaced longer ago than --older-than, and the files that only these snapshots list.",
    ] = False,
    remove_orphans: Annotated[
        bool, "Remove files that no snapshot names and that are older than --older-than."
    ] = False,
    compact: Annotated[bool, "Write the rows of small data files into few large ones."] = False,
    older_than: Annotated[
        str | float,
        Option("Keep what was current within this time: 30m, 24h, 7d. Readers may still use it.", metavar="AGE"),
    ] = "24h",
    target_size: Annotated[
        int | None,
        Option(
            "Write data files of about this size with --compact.  [default: 268435456]",
            least=1 << 20,
            metavar="BYTES",
        ),
    ] = None,
    sort_by: Annotated[
        str | Sequence[str] | None,
        Option(
            "With --compact: sort tables by these columns from now on, and write data files in another order again; "
            "`default`: the order of new tables.",
            metavar="A,B",
            is_repeated=False,
        ),
    ] = None,
    dry_run: Annotated[bool, "Only report what would be done."] = False,
    catalog: CatalogName = None,
    **running: Unpack[Running],
) -> Report:
    """Show what a lake holds, or maintain it.

    Without options, it lists the tables with their rows, data files, snapshots and sources. Maintenance is safe while others read and while
    `ingest` runs: what was current within `older_than` stays, and so does what a run may be about to commit.

    Returns a Report with a part for each table. Without options, the parts have rows, files, small_files, bytes, snapshots, sources,
    changed; with options expired_snapshots, removed_files, removed_bytes, joined_files, made_files. AccessError if there is no lake at
    `path`.

    >>> import rawlog
    >>> report = rawlog.lake("out/python-lake")
    """
    from rawlog.lakes.lake import Lake
    from rawlog.lakes.upkeep import TARGET, Join, keep, status

    is_kept = expire_snapshots or remove_orphans or compact
    if dry_run and not is_kept:
        raise OptionError("--dry-run goes with --expire-snapshots, --remove-orphans or --compact")
    if sort_by is not None and not compact:
        raise OptionError("--sort-by goes with --compact")
    order = parse_columns(sort_by)
    grace = parse_duration(older_than)
    settings = settings_of(running)
    store = Lake(os.fspath(path), catalog=catalog)
    report = Report("lake", store.path, store.path, is_dry_run=dry_run)
    if not is_kept:
        report.parts = {table.name: _table_report(table) for table in status(store)}
        return report

    def run(job: Job[Any, Any]) -> Any:
        size = sum(lot.size for lot in job.lots()) if isinstance(job, Join) else 0
        return choose(size=size, **settings).run(job, Tree((), ()), running.get("progress"))

    with store:
        for upkeep in keep(
            store,
            run,
            expire_after=grace if expire_snapshots else None,
            clean_after=grace if remove_orphans else None,
            compact=compact,
            target=target_size or TARGET,
            sort_by=order,
            dry_run=dry_run,
        ):
            part = report.parts[upkeep.name] = Report("lake", is_dry_run=dry_run)
            part.counts = {
                "expired_snapshots": upkeep.expired,
                "removed_files": len(upkeep.removed),
                "removed_bytes": upkeep.removed_size,
                "joined_files": upkeep.joined,
                "made_files": upkeep.written,
            }
    return report


def _table_report(table: TableStatus) -> Report:
    """What a table holds."""
    from rawlog.model.text import plain_time

    changed = None if table.changed is None else plain_time(int(table.changed * 1000) * 1000)
    held = Report("lake", facts={"changed": changed})
    held.counts = {"rows": table.rows, "files": table.files, "small_files": table.small, "bytes": table.size}
    held.counts |= {"snapshots": table.snapshots, "sources": table.sources}
    return held
