"""The functions that ask: query, cluster, groups, transactions, ingest, lake."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, Unpack, overload

from rawlog.engines.choice import choose
from rawlog.model.errors import OptionError, RawlogError
from rawlog.model.job import Job, Progress
from rawlog.model.report import Action, Report
from rawlog.model.table import RECORDS, Table
from rawlog.model.text import ROWS, counted, html_note, html_table, parse_duration
from rawlog.model.verb import Option, verb
from rawlog.reading.select import parse_columns
from rawlog.reading.tree import Tree, open_known, open_tree
from rawlog.verbs.check import settings_of
from rawlog.verbs.options import (
    OUTPUT,
    Asking,
    CatalogName,
    Decoding,
    Format,
    Masking,
    Note,
    Partitions,
    Path,
    Paths,
    Replicas,
    Running,
    Since,
    Time,
    Topics,
    Until,
    listed,
    noted,
    selection_of,
    whole_paths,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from rawlog.engines.duckdb import Engine
    from rawlog.lakes.ingest import Ingest
    from rawlog.lakes.upkeep import TableStatus
    from rawlog.lakes.values import Ingested

#: The heading of options of `ingest --follow`.
FOLLOWING = "Following"
#: Seconds in which a path that does not exist is noticed, before a JVM is started for nothing.
PATIENCE = 0.3


# SQL ----------------------------------------------------------------------------------------------------------------------


class Answer:
    """The rows that a statement gives: iterate over it for dicts, `batches()` gives Arrow, `to_arrow()` all of them.

    Each time it is read, the statement is answered again. Use it as a context manager, or call `close()`, to end its session.
    """

    def __init__(self, engine: Engine, sql: str) -> None:
        """OptionError if the statement is not understood."""
        self.engine, self.sql = engine, sql
        self._answer: Any = engine.ask(sql)
        self.schema: pa.Schema = self._answer.schema
        self.table: Table = self._answer.table

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, one batch at a time. DataError at damage in the files."""
        answer, self._answer = self._answer or self.engine.ask(self.sql), None
        found: Iterator[pa.RecordBatch] = answer.batches()
        return found

    def to_arrow(self) -> pa.Table:
        """All rows in memory."""
        import pyarrow as pa

        return pa.Table.from_batches(list(self.batches()), schema=self.schema)

    def close(self) -> None:
        """End the session."""
        self.engine.close()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        import pyarrow as pa

        reader = pa.RecordBatchReader.from_batches(self.schema, self.batches())
        return reader.__arrow_c_stream__(requested_schema)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        from rawlog.reading.rows import dict_rows

        for batch in self.batches():
            yield from dict_rows(batch)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<rawlog.Answer {', '.join(self.schema.names)}>"

    def _repr_html_(self) -> str:
        """The first rows as a table, for a notebook."""
        try:
            rows = list(itertools.islice(self, ROWS + 1))
        except RawlogError as error:
            return html_note(f"{self!r}: {str(error).splitlines()[0]}")
        more = f"the first {ROWS} rows" if len(rows) > ROWS else counted(len(rows), "row")
        return html_table(self.schema.names, (list(row.values()) for row in rows[:ROWS]), more, shows_null=True)


@verb(
    group="ask",
    examples=(
        "rawlog query 'SELECT topic, count(*) FROM records GROUP BY topic' kafka-logs/",
        "rawlog query 'SELECT * FROM old ANTI JOIN new USING (topic, partition, offset)' old=a/ new=b/ --json",
        "rawlog query 'SELECT * FROM findings' --catalog lakehouse",
        "rawlog query 'SELECT kafka_partition(key, 6) AS p, count(*) FROM records GROUP BY p' kafka-logs/ --engine duckdb",
    ),
    more="Exit codes: 0 answered; 1 damage, or some keys or values were not decoded; 2 wrong usage; 3 cannot be read.",
)
def query(
    sql: Annotated[str, "SQL"],
    paths: Annotated[Paths | Mapping[str, Path], Option("PATH", is_required=False)] = (),
    *,
    note: Note | None = None,
    progress: Callable[[Progress], None] | None = None,
    **options: Unpack[Asking],
) -> Answer:
    """Answer a question in SQL; the tables of the paths are views.

    A PATH is files or a lake that `ingest` made. Its views are records, files, findings and the tables of its systems, under their short or
    full names: batches, kafka.batches, kafka.records. With name=PATH they are name.records and so on, and name alone is its records, so
    that one statement can use several paths. `catalog` is a lake too: the one whose tables a catalog has. SQL - is read from standard
    input.

    Returns an Answer: iterate over it for dicts, or use `to_arrow()`. Several paths may be a dict: its names are schemas (`old.records`).
    `note` gets a sentence about each choice of a replica. OptionError if the SQL is not understood; DataError at damage unless `errors` is
    "skip"; AccessError for a path that does not exist.

    >>> import rawlog
    >>> rows = list(rawlog.query("SELECT count(*) AS n FROM records", "samples/kafka", engine="duckdb"))
    """
    sql = sql.strip().removesuffix(";")
    if not sql.strip():
        raise OptionError("no question: SQL expected")
    session = open_engine(paths, sql, note=note, progress=progress, **options)
    try:
        return Answer(session, sql)
    except BaseException:
        session.close()
        raise


def open_engine(
    paths: Paths | Mapping[str, Path],
    first: str | None = None,
    *,
    catalog: str | None = None,
    engine: str | None = None,
    master: str | None = None,
    conf: Mapping[str, str] | Sequence[str] | None = None,
    errors: str = "raise",
    replicas: str = "best",
    decode: str | Sequence[str] | Mapping[str, str] | None = None,
    schemas: Path | None = None,
    note: Note | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Engine:
    """A session that answers SQL over the views of the paths. What the `first` statement needs is prepared while Spark starts.

    OptionError for options that contradict one another, AccessError for a path that does not exist.
    """
    from rawlog.engines.sql.views import View, sources, views

    if isinstance(paths, Mapping):
        paths = [f"{name}={os.fspath(path)}" for name, path in paths.items()]
    asked = sources(listed(paths), catalog)

    def found() -> list[View]:
        reading = selection_of({"errors": errors, "replicas": replicas, "decode": decode, "schemas": schemas})
        return [view for source in asked for view in views(source, reading, note or noted)]

    chosen = choose(engine=engine, master=master, conf=conf)
    if chosen.name != "spark":
        from rawlog.engines.duckdb import DuckEngine

        return DuckEngine(found())
    from rawlog.engines.spark.query import SparkEngine
    from rawlog.engines.spark.session import is_embedded

    embedded = is_embedded(master)
    started: list[Any] = []

    def look() -> SparkEngine:
        made = SparkEngine(lambda: started[0], found(), embedded=embedded)
        if first is not None:
            made.prepare(first)
        return made

    # Looking at the paths, and decoding what is small, takes as long as the JVM needs to start: both at once, but a bad path is
    # reported before Spark is started.
    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        with suppress(TimeoutError):
            looking.result(timeout=PATIENCE)
        brief = first is not None and catalog is None and _are_small(path for source in asked for path in source.paths)
        started.append(chosen.start(progress, brief=brief))
        return looking.result()


def _are_small(paths: Iterable[str]) -> bool:
    """Whether all files at some paths together are small, without looking further than that."""
    from rawlog.engines.spark.query import SMALL
    from rawlog.io.storage import is_remote, listing

    size = 0
    for path in paths:
        if is_remote(path):
            return False
        for entry in listing(path):
            size += entry.size
            if size > SMALL:
                return False
    return True


# A cluster ----------------------------------------------------------------------------------------------------------------


class Shown:
    """What a verb of one family shows, as rows: iterate over it for dicts. `notes` are sentences about what was left out."""

    def __init__(self, shown: Iterable[Any]) -> None:
        every = list(shown)
        self.rows: list[dict[str, Any]] = [dict(one.row) for one in every if one.row is not None]
        self.notes: list[str] = [one.note for one in every if one.note is not None]
        #: Whether damage or a difference was found.
        self.has_findings = any(one.is_finding for one in every)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"<rawlog.Shown {counted(len(self.rows), 'row')}>"

    def _repr_html_(self) -> str:
        """The first rows as a table, for a notebook."""
        shown = [({"table": row.get("table", "")}, {k: v for k, v in row.items() if k != "table"}) for row in self.rows]
        rows = [(head["table"], rest) for head, rest in shown[:ROWS]]
        return html_table(("table", "row"), rows, repr(self))


def cluster(
    paths: Paths,
    *,
    at_offset: int | None = None,
    at_time: Time | None = None,
    log: bool = False,
    diff: str | None = None,
    topic: str | Sequence[str] = (),
    show_secrets: bool = False,
    errors: Literal["raise", "stop", "skip"] = "raise",
) -> Shown:
    """The cluster whose metadata log is at `paths`: brokers, topics, partitions, settings. Returns rows, each with its `table`.

    `at_offset` or `at_time` show it as it was; `log` gives what happened, record by record; `diff` "A..B" what changed between two offsets
    or times. AccessError if there is no metadata log; DataError at damage unless `errors` says otherwise.

    >>> import rawlog
    >>> topics = [row["topic"] for row in rawlog.cluster("samples/kafka") if row["table"] == "topics"]
    """
    given = {"at_offset": at_offset, "at_time": at_time, "log": log or None, "diff": diff, "topic": topic or None}
    return _shown("cluster", paths, {**given, "show_secrets": show_secrets or None, "errors": errors})


def groups(
    paths: Paths,
    *,
    group: str | Sequence[str] = (),
    topic: str | Sequence[str] = (),
    errors: Literal["raise", "stop", "skip"] = "raise",
) -> Shown:
    """The consumer groups at `paths`: rows with `table` "groups", "members" and "offsets" (committed and end offsets, lag).

    AccessError if there is no group; OptionError for one that does not exist; DataError at damage unless `errors` says otherwise.

    >>> import rawlog
    >>> lags = {row["group"]: row["lag"] for row in rawlog.groups("samples/kafka") if row["table"] == "groups"}
    """
    return _shown("groups", paths, {"group": group or None, "topic": topic or None, "errors": errors})


def transactions(
    paths: Paths,
    *,
    id: str | Sequence[str] = (),
    topic: str | Sequence[str] = (),
    errors: Literal["raise", "stop", "skip"] = "raise",
) -> Shown:
    """The transactions at `paths`: rows with `table` "open", "ids" (as the coordinator wrote them) and "aborted".

    One that hangs has `is_hanging`, and `advice` says what to do. AccessError if there are none; OptionError for an id or topic that does
    not exist; DataError at damage unless `errors` says otherwise.

    >>> import rawlog
    >>> hanging = [row for row in rawlog.transactions("samples/kafka") if row.get("is_hanging")]
    """
    return _shown("transactions", paths, {"id": id or None, "topic": topic or None, "errors": errors})


def _shown(verb: str, paths: Paths, given: Mapping[str, Any]) -> Shown:
    from rawlog.verbs.family import run_verb

    found = run_verb(verb, paths, {name: value for name, value in given.items() if value is not None})
    assert not isinstance(found, Report)
    return Shown(found)


# The lake -----------------------------------------------------------------------------------------------------------------


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
        bool, Option("Continue: take what is new until interrupted.", "-f", "--follow", section=FOLLOWING)
    ] = False,
    **options: Unpack[Ingesting],
) -> Report | Iterator[Report]:
    """Decode everything into a lake of queryable tables.

    Every file is recognised, verified and decoded; the rows become Parquet files of Iceberg tables: records, files, findings and jobs in
    namespace rawlog, and the tables of each system in its own. Run again, it takes only what is new, and continues in files that have
    grown. The rows of files that were compacted, truncated or replaced meanwhile are replaced (`on_rewrite`). Tables that are a state (a
    cluster's topics, committed offsets, the blobs of a store) are replaced by what the files say now. The bytes of a message are stored
    once, in records. Damage does not stop it: sound rows are stored, findings say what is lost, the exit code is 1. With `mask` only
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
    asked = selection_of({name: options.get(name) for name in names})
    decode = next((one for one in asked.transforms if isinstance(one, Decode)), None)
    asked = asked.replace(transforms=tuple(one for one in asked.transforms if one is not decode))
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
        check_names(tree, RECORDS, asked, options.get("note"), may_come=follow)
        return tree, Ingest(
            path,
            catalog=options.get("catalog"),
            tables=parse_columns(options.get("tables")),
            selection=asked,
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
        stop, every = options.get("stop") or Event(), options.get("every", 5.0)
        runs = _follow(following, look, lambda one: engine.run(following, one, progress, session), stop, every)
        return _measured_runs(runs, metrics, path)
    with _measured(metrics, path) as measure:
        tree, job = begin()
        with job:
            report = _ingested(tree, job.complete(lambda: engine.run(job, tree, progress)), job)
        report.notes[:0] = left_out
        measure(report)
        return report


def _follow(
    job: Ingest, look: Callable[[], Tree], run: Callable[[Tree], Ingested], stop: Event, every: float
) -> Iterator[Report]:
    """Ingest until `stop` is set; a run that is under way is finished."""
    from rawlog.lakes.ingest import follow

    with job:
        for outcome in follow(job, look, run, stop, every):
            yield _ingested(None, outcome, job)


@contextmanager
def _measured(path: Path | None, target: str) -> Iterator[Callable[[Report], None]]:
    """A function that writes the numbers of a run to a file. That a run failed is written there, too."""
    from rawlog.io.files import writing
    from rawlog.model import report as metrics

    def write(found: Iterable[metrics.Metric]) -> None:
        if path is not None:
            with writing(path, overwrite=True) as file:
                file.write(metrics.as_text(os.fspath(path), "ingest", target, list(found)).encode())

    try:
        yield lambda report: write(metrics.metrics_of(report, time.time()))
    except OptionError:  # nothing has run; the file itself may be what is wrong
        raise
    except Exception:
        with suppress(RawlogError):
            write(metrics.failed(time.time()))
        raise


def _measured_runs(runs: Iterator[Report], path: Path | None, target: str) -> Iterator[Report]:
    with _measured(path, target) as measure:
        for report in runs:
            measure(report)
            yield report


def _ingested(tree: Tree | None, outcome: Ingested, job: Ingest) -> Report:
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
def lake(
    path: Annotated[Path, "LAKE"],
    *,
    expire_snapshots: Annotated[
        bool, "Remove snapshots that were replaced longer ago than --older-than, and the files that only they list."
    ] = False,
    remove_orphans: Annotated[
        bool, "Remove files that no snapshot names and that are older than --older-than."
    ] = False,
    compact: Annotated[bool, "Write the rows of small data files into few large ones."] = False,
    older_than: Annotated[
        str | float, Option("Keep what was current within this time, for readers: 30m, 24h, 7d.", metavar="AGE")
    ] = "24h",
    target_size: Annotated[
        int | None,
        Option(
            "About the size of the data files that --compact writes.  [default: 268435456]",
            least=1 << 20,
            metavar="BYTES",
        ),
    ] = None,
    sort_by: Annotated[
        str | Sequence[str] | None,
        Option(
            "With --compact: sort tables by these columns from now on, whichever a table has, and write data files in another order again; "
            "`default` is the order of new tables.",
            metavar="A,B",
            is_repeated=False,
        ),
    ] = None,
    dry_run: Annotated[bool, "Only report what would be done."] = False,
    catalog: CatalogName = None,
    **running: Unpack[Running],
) -> Report:
    """Show what a lake holds, or maintain it.

    Without options, its tables with their rows, data files, snapshots and sources. Maintenance is safe while others read and while `ingest`
    runs: what was current within `older_than` stays, and so does what a run may be about to commit.

    Returns a Report with a part for each table. Without options, the parts have rows, files, small_files, bytes, snapshots, sources,
    changed; with options expired_snapshots, removed_files, removed_bytes, joined_files, made_files. AccessError if there is no lake at
    `path`.

    >>> import rawlog
    >>> report = rawlog.lake("out/python-lake")
    """
    from rawlog.lakes.join import TARGET, Join
    from rawlog.lakes.lake import Lake
    from rawlog.lakes.upkeep import keep, status

    is_kept = expire_snapshots or remove_orphans or compact
    if dry_run and not is_kept:
        raise OptionError("--dry-run goes with --expire-snapshots, --remove-orphans or --compact")
    if sort_by is not None and not compact:
        raise OptionError("--sort-by goes with --compact")
    order = parse_columns(sort_by)
    grace = parse_duration(older_than)
    settings = settings_of(running)
    found = Lake(os.fspath(path), catalog=catalog)
    report = Report("lake", found.path, found.path, is_dry_run=dry_run)
    if not is_kept:
        report.parts = {one.name: _held(one) for one in status(found)}
        return report

    def run(job: Job[Any, Any]) -> Any:
        size = sum(lot.size for lot in job.lots()) if isinstance(job, Join) else 0
        return choose(size=size, **settings).run(job, Tree((), ()), running.get("progress"))

    with found:
        for one in keep(
            found,
            run,
            expire_after=grace if expire_snapshots else None,
            clean_after=grace if remove_orphans else None,
            compact=compact,
            target=target_size or TARGET,
            sort_by=order,
            dry_run=dry_run,
        ):
            part = report.parts[one.name] = Report("lake", is_dry_run=dry_run)
            part.counts = {
                "expired_snapshots": one.expired,
                "removed_files": len(one.removed),
                "removed_bytes": one.removed_size,
                "joined_files": one.joined,
                "made_files": one.written,
            }
    return report


def _held(one: TableStatus) -> Report:
    """What a table holds."""
    from rawlog.model.text import plain_time

    changed = None if one.changed is None else plain_time(int(one.changed * 1000) * 1000)
    held = Report("lake", facts={"changed": changed})
    held.counts = {"rows": one.rows, "files": one.files, "small_files": one.small, "bytes": one.size}
    held.counts |= {"snapshots": one.snapshots, "sources": one.sources}
    return held
