"""The functions that ask: query, cluster, ingest, lake."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

from rawlog.api.check import settings_of
from rawlog.api.options import Note, Path, Paths, Running, Time, listed, selection_of, whole_paths
from rawlog.core.errors import OptionError, RawlogError
from rawlog.core.html import ROWS, html_note, html_table
from rawlog.core.report import Action, Report
from rawlog.core.tables import RECORDS, Table
from rawlog.core.text import counted
from rawlog.engines.choice import choose
from rawlog.jobs.job import Progress
from rawlog.reading.names import check_names
from rawlog.reading.rows import dict_rows
from rawlog.reading.select import parse_columns
from rawlog.reading.tree import Tree, open_tree

if TYPE_CHECKING:
    import pyarrow as pa

    from rawlog.jobs.ingest import Ingest, Ingested
    from rawlog.jobs.lake.upkeep import TableStatus
    from rawlog.sql.engine import Engine

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
        return html_table(self.schema.names, (list(row.values()) for row in rows[:ROWS]), more)


def query(
    sql: str,
    paths: Paths | Mapping[str, Path],
    *,
    engine: Literal["spark", "duckdb", "local"] | None = None,
    master: str | None = None,
    conf: Mapping[str, str] | Sequence[str] | None = None,
    errors: Literal["raise", "skip"] = "raise",
    progress: Callable[[Progress], None] | None = None,
) -> Answer:
    """Answer a question in SQL; the tables of the paths are views. Returns an Answer: iterate over it for dicts, or use `to_arrow()`.

    A path is files or a lake. With several paths, give a dict: its names are schemas (`old.records`). `engine` "duckdb" (or "local")
    works without a JVM. OptionError if the SQL is not understood; DataError at damage unless `errors` is "skip"; AccessError for a path
    that does not exist.

    >>> import rawlog
    >>> rows = list(rawlog.query("SELECT count(*) AS n FROM records", "samples/kafka", engine="duckdb"))
    """
    sql = sql.strip().removesuffix(";")
    if not sql.strip():
        raise OptionError("no question: SQL expected")
    session = open_engine(paths, sql, engine=engine, master=master, conf=conf, errors=errors, progress=progress)
    try:
        return Answer(session, sql)
    except BaseException:
        session.close()
        raise


def open_engine(
    paths: Paths | Mapping[str, Path],
    first: str | None = None,
    *,
    engine: str | None = None,
    master: str | None = None,
    conf: Mapping[str, str] | Sequence[str] | None = None,
    errors: str = "raise",
    progress: Callable[[Progress], None] | None = None,
) -> Engine:
    """A session that answers SQL over the views of the paths. What the `first` statement needs is prepared while Spark starts.

    OptionError for options that contradict one another, AccessError for a path that does not exist.
    """
    from rawlog.sql.views import View, sources, views

    if isinstance(paths, Mapping):
        paths = [f"{name}={os.fspath(path)}" for name, path in paths.items()]
    asked = sources(listed(paths))

    def found() -> list[View]:
        return [view for source in asked for view in views(source, errors)]

    chosen = choose(engine=engine, master=master, conf=conf)
    if chosen.name != "spark":
        from rawlog.sql.duck import DuckEngine

        return DuckEngine(found())
    from rawlog.spark.query import SparkEngine
    from rawlog.spark.session import is_embedded

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
        brief = first is not None and _are_small(path for source in asked for path in source.paths)
        started.append(chosen.start(progress, brief=brief))
        return looking.result()


def _are_small(paths: Iterable[str]) -> bool:
    """Whether all files at some paths together are small, without looking further than that."""
    from rawlog.io.storage import is_remote, listing
    from rawlog.spark.staging import SMALL

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
    from rawlog.core.report import Report
    from rawlog.jobs.verb import run_verb

    given = {"at_offset": at_offset, "at_time": at_time, "log": log or None, "diff": diff, "topic": topic or None}
    given |= {"show_secrets": show_secrets or None, "errors": errors}
    found = run_verb("cluster", paths, {name: value for name, value in given.items() if value is not None})
    assert not isinstance(found, Report)
    return Shown(found)


# The lake -----------------------------------------------------------------------------------------------------------------


class Ingesting(Running, total=False):
    """The options of `ingest`."""

    #: Only these tables.
    tables: str | Sequence[str] | None
    topic: str | Sequence[str] | None
    partition: int | Sequence[int] | None
    since: Time | None
    until: Time | None
    #: Cut the data files of new tables by topic, partition, hour, day, month or year.
    partition_by: str | Sequence[str] | None
    #: A catalog of PyIceberg's configuration, or a file NAME.db, instead of the lake's own.
    catalog: str | None
    #: Read every file as this format.
    format: str | None
    note: Note | None
    #: With `follow`: how often it looks, in seconds, and an event that ends it.
    every: float
    stop: Event | None


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
    from rawlog.jobs.ingest import Ingest

    engine = choose(**settings_of(options, Ingesting.__annotations__))
    asked = selection_of({name: options.get(name) for name in ("topic", "partition", "since", "until")})
    roots = whole_paths(
        listed(paths)
    )  # a lake is used longer than the directory it was made from: its paths are absolute
    format, progress = options.get("format"), options.get("progress")

    def look() -> Tree:
        return open_tree(roots, format=format)

    tree, path = look(), os.fspath(to)
    refuse_nested(path, tree.sources)
    check_names(tree, RECORDS, asked, options.get("note"), may_come=follow)
    catalog, tables = options.get("catalog"), parse_columns(options.get("tables"))
    partition_by = parse_columns(options.get("partition_by"))
    job = Ingest(path, catalog=catalog, tables=tables, selection=asked, partition_by=partition_by)
    if follow:
        session = engine.start(progress) if engine.name == "spark" else None
        stop = options.get("stop") or Event()
        return _follow(job, look, lambda one: engine.run(job, one, progress, session), stop, options.get("every", 5.0))
    with job:
        return _ingested(tree, job.complete(lambda: engine.run(job, tree, progress)))


def _follow(
    job: Ingest, look: Callable[[], Tree], run: Callable[[Tree], Ingested], stop: Event, every: float
) -> Iterator[Report]:
    """Ingest until `stop` is set; a run that is under way is finished."""
    from rawlog.jobs.ingest.follow import follow

    with job:
        for outcome in follow(job, look, run, stop, every):
            yield _ingested(None, outcome)


def _ingested(tree: Tree | None, outcome: Ingested) -> Report:
    """What a run did, as a Report."""
    report = Report("ingest", "" if tree is None else ", ".join(tree.roots), outcome.lake)
    report.facts = {
        "verdict": outcome.verdict,
        "tables": dict(outcome.tables),
        "run": outcome.run,
        "lake": outcome.lake,
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
    dry_run: bool = False,
    catalog: str | None = None,
) -> Report:
    """The tables of a lake, and its maintenance. Returns a Report with a part for each table.

    Without options, the parts have what each table holds: rows, files, small_files, bytes, snapshots, sources, changed. With options,
    they have what was done: expired_snapshots, removed_files, removed_bytes, joined_files, made_files. What was current within
    `older_than` ("30m", "24h", "7d", or seconds) stays. AccessError if there is no lake at `path`.

    >>> import rawlog
    >>> report = rawlog.lake("out/python-lake")
    """
    from rawlog.jobs.lake import Lake
    from rawlog.jobs.lake.upkeep import keep, status

    is_kept = expire_snapshots or remove_orphans or compact
    if dry_run and not is_kept:
        raise OptionError("--dry-run goes with --expire-snapshots, --remove-orphans or --compact")
    grace = age(older_than)
    found = Lake(os.fspath(path), catalog=catalog)
    report = Report("lake", found.path, found.path, is_dry_run=dry_run)
    if not is_kept:
        report.parts = {one.name: _held(one) for one in status(found)}
        return report
    with found:
        for one in keep(
            found,
            expire_after=grace if expire_snapshots else None,
            clean_after=grace if remove_orphans else None,
            compact=compact,
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
    from rawlog.core.text import plain_time

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
