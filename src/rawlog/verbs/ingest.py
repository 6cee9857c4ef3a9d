"""`ingest`: everything at some paths as tables of a lake. The job is `lakes/ingest.py`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Event
from typing import TYPE_CHECKING, Annotated, Literal, Unpack, overload

from rawlog.engines.choice import choose
from rawlog.model.errors import OptionError, RawlogError
from rawlog.model.report import Action, Report
from rawlog.model.table import RECORDS
from rawlog.model.text import counted
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
    from rawlog.lakes.values import IngestResult


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
    grown. The rows of files that were compacted, truncated or replaced meanwhile are replaced (`on_rewrite`). Tables of a state (a
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
    from rawlog.reading.names import check_names
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
    from rawlog.io.files import writing
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
    from rawlog.model.plan import Reading
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
