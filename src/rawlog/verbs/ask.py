"""The functions that ask: query, cluster, groups, transactions, ingest, lake."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import Event
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

from rawlog.engines.choice import choose
from rawlog.model.errors import OptionError, RawlogError
from rawlog.model.job import Job, Progress
from rawlog.model.report import Action, Report
from rawlog.model.table import RECORDS, Table
from rawlog.model.text import ROWS, counted, html_note, html_table
from rawlog.reading.names import check_names
from rawlog.reading.rows import dict_rows
from rawlog.reading.select import parse_columns
from rawlog.reading.tree import Tree, open_known, open_tree
from rawlog.verbs.check import settings_of
from rawlog.verbs.options import (
    Decoding,
    Masking,
    Note,
    Path,
    Paths,
    Running,
    Time,
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

#: Seconds in which a path that does not exist is noticed, before a JVM is started for nothing.
PATIENCE = 0.3
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


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


def query(
    sql: str,
    paths: Paths | Mapping[str, Path] = (),
    *,
    catalog: str | None = None,
    engine: Literal["spark", "duckdb", "local"] | None = None,
    master: str | None = None,
    conf: Mapping[str, str] | Sequence[str] | None = None,
    errors: Literal["raise", "skip"] = "raise",
    replicas: Literal["best", "all", "refuse"] = "best",
    decode: str | Sequence[str] | Mapping[str, str] | None = None,
    schemas: Path | None = None,
    note: Note | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Answer:
    """Answer a question in SQL; the tables of the paths are views. Returns an Answer: iterate over it for dicts, or use `to_arrow()`.

    A path is files or a lake. With several paths, give a dict: its names are schemas (`old.records`). `catalog` is one of PyIceberg's
    configuration, or a file NAME.db, that has a lake; it needs no path. `engine` "duckdb" (or "local")
    works without a JVM. Of replicas of one partition or store the best is read, all of them, or OptionError is raised, as `replicas` says;
    `note` gets a sentence about each choice. `decode` and `schemas` are those of `rawlog.read`. OptionError if the SQL is not understood;
    DataError at damage unless `errors` is "skip"; AccessError for a path that does not exist.

    >>> import rawlog
    >>> rows = list(rawlog.query("SELECT count(*) AS n FROM records", "samples/kafka", engine="duckdb"))
    """
    sql = sql.strip().removesuffix(";")
    if not sql.strip():
        raise OptionError("no question: SQL expected")
    reading: dict[str, Any] = {
        "errors": errors,
        "replicas": replicas,
        "decode": decode,
        "schemas": schemas,
        "note": note,
    }
    session = open_engine(
        paths, sql, catalog=catalog, engine=engine, master=master, conf=conf, progress=progress, **reading
    )
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
    """The options of `ingest`."""

    #: Only these tables.
    tables: str | Sequence[str] | None
    topic: str | Sequence[str] | None
    partition: int | Sequence[int] | None
    #: Of replicas of one partition or store: take the best one (default), take all, or raise OptionError.
    replicas: Literal["best", "all", "refuse"]
    since: Time | None
    until: Time | None
    #: Cut the data files of new tables by topic, partition, hour, day, month, year or bucket(N, COLUMN).
    partition_by: str | Sequence[str] | None
    #: Sort the data files of new tables by these columns, whichever a table has.
    sort_by: str | Sequence[str] | None
    #: The rows of files that were rewritten since the last run: replace them (default); keep them, and take only later offsets; or
    #: refuse such files.
    on_rewrite: Literal["replace", "keep", "refuse"]
    #: A catalog of PyIceberg's configuration, or a file NAME.db, instead of the lake's own.
    catalog: str | None
    #: Read every file as this format.
    format: str | None
    note: Note | None
    #: With `follow`: how often it looks, in seconds, and an event that ends it.
    every: float
    stop: Event | None
    #: A file that gets the numbers of each run: in the text form of Prometheus if its name ends in `.prom`, else as JSON.
    metrics: Path | None


@overload
def ingest(paths: Paths, to: Path, *, follow: Literal[False] = False, **options: Unpack[Ingesting]) -> Report: ...
@overload
def ingest(paths: Paths, to: Path, *, follow: Literal[True], **options: Unpack[Ingesting]) -> Iterator[Report]: ...
def ingest(paths: Paths, to: Path, *, follow: bool = False, **options: Unpack[Ingesting]) -> Report | Iterator[Report]:
    """Recognise, verify and decode everything at `paths` into the lake at `to`, a directory of Iceberg tables. Returns a Report.

    Run again, it takes only what is new. Its counts are files, unchanged, refused, bytes, errors and warnings; `facts["tables"]` has the
    rows added to each table. Damage does not raise: it is in the lake's table `findings`. With `follow`, the result is an iterator with
    a Report for each run that took something; it ends when `stop` is set. OptionError for unknown names, or if the lake is in a source.

    >>> import rawlog
    >>> report = rawlog.ingest("samples/kafka", "out/python-lake", engine="local")
    """
    from rawlog.io.output import refuse_nested
    from rawlog.lakes.ingest import Ingest
    from rawlog.lakes.names import parse_terms
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
    if outcome.errors:
        report.add(Action.LOST, f"{counted(outcome.errors, 'error')} in the source; the table findings lists them")
    return report


def lake(
    path: Path,
    *,
    expire_snapshots: bool = False,
    remove_orphans: bool = False,
    compact: bool = False,
    older_than: str | float = "24h",
    target_size: int | None = None,
    sort_by: str | Sequence[str] | None = None,
    dry_run: bool = False,
    catalog: str | None = None,
    **running: Unpack[Running],
) -> Report:
    """The tables of a lake, and its maintenance. Returns a Report with a part for each table.

    Without options, the parts have what each table holds: rows, files, small_files, bytes, snapshots, sources, changed. With options,
    they have what was done: expired_snapshots, removed_files, removed_bytes, joined_files, made_files. What was current within
    `older_than` ("30m", "24h", "7d", or seconds) stays. `compact` writes data files of about `target_size` bytes (256 MiB). With `sort_by`
    the tables are sorted by other columns from now on, and data files in another order are written again. All of it runs where `engine`
    says. AccessError if there is no lake at `path`.

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
    grace = age(older_than)
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
                "made_files": one.made,
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


def age(given: str | float) -> float:
    """The seconds of a time span: `30m`, `24h`, `7d`, or a number. OptionError for another text."""
    if isinstance(given, (int, float)):
        return float(given)
    number, unit = given[:-1], given[-1:]
    if unit not in UNITS or not number.isdecimal():
        raise OptionError(f"{given!r}: a number and s, m, h, d or w expected, as 24h")
    return float(int(number) * UNITS[unit])
