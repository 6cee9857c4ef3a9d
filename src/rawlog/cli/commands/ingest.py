"""`rawlog ingest`: from directories of broker files to tables people query."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING, Any

import click

from rawlog.cli import engine, options, output
from rawlog.cli.errors import DONE, FOUND, say
from rawlog.core.text import counted, printable, size_text

if TYPE_CHECKING:
    from rawlog.jobs.ingest import Ingest, Ingested
    from rawlog.reading.tree import Tree


@click.command()
@options.paths
@click.option(
    "--to",
    "lake",
    required=True,
    type=options.PATH,
    metavar="LAKE",
    help="The lake: a directory or a URL, created if new.",
)
@click.option("--tables", metavar="A,B", help="Only these tables, by name.  [default: all that the files have]")
@click.option("--topic", multiple=True, metavar="GLOB", help="Only these topics; may be given again.")
@click.option("--partition", multiple=True, type=options.Partitions(), metavar="N", help="Only these partitions.")
@click.option("--since", metavar="TIME", help="Only rows from a time on: ISO 8601, epoch milliseconds, or -2h.")
@click.option("--until", metavar="TIME", help="Only rows up to a time, which is left out.")
@click.option(
    "--partition-by",
    metavar="A,B",
    help="Partition new tables by topic, partition, hour, day, month or year.",
)
@click.option("-f", "--follow", is_flag=True, help="Continue until interrupted: ingest what is new.")
@click.option(
    "--every",
    type=click.FloatRange(0.1),
    default=5,
    show_default=True,
    metavar="SECONDS",
    help="How often --follow looks.",
)
@click.option(
    "--catalog",
    metavar="NAME",
    help="A catalog of PyIceberg's configuration, or a file NAME.db, instead of the lake's own.",
)
@engine.engine
@options.json_flag
def command(paths: tuple[str, ...], as_format: str | None, lake: str, as_json: bool, **given: Any) -> int:
    """Decode everything into a lake of queryable tables.

    Every file is recognised, verified and decoded; the rows become Parquet files of Iceberg tables: records, files, findings and
    jobs in namespace rawlog, and the tables of each system in its own. Run again, it ingests only what is new, and continues in files
    that have grown. Tables that are a state (a cluster's topics, committed offsets, the blobs of a store) are replaced by the current
    one. The bytes of a message are stored once, in records. Damage does not stop it: sound rows are ingested, findings list what is
    lost, the exit code is 1. Several runs may work side by side. A selection applies to tables that have its column: --since does not
    change tables without a time.

    \b
    rawlog ingest kafka-logs/ --to lake
    rawlog query 'SELECT topic, count(*) FROM records GROUP BY topic' lake
    """
    from rawlog.core.tables import RECORDS
    from rawlog.io.output import refuse_nested
    from rawlog.io.storage import is_remote, local_path
    from rawlog.jobs.ingest import Ingest
    from rawlog.reading.names import check_names
    from rawlog.reading.select import Selection, parse_columns, parse_time
    from rawlog.reading.tree import open_tree

    engine.choose(given)
    selection = Selection(
        topics=tuple(given["topic"]),
        partitions=tuple(number for part in given["partition"] for number in part),
        since=None if given["since"] is None else parse_time(given["since"]),
        until=None if given["until"] is None else parse_time(given["until"]),
    )
    # A lake may be used from another directory: paths in it are absolute.
    whole = [path if is_remote(path) else os.path.abspath(local_path(path)) for path in paths]
    partition_by = parse_columns(given["partition_by"])
    tables = parse_columns(given["tables"])

    def look() -> Tree:
        return open_tree(whole, format=as_format)

    tree = look()
    refuse_nested(lake, tree.sources)
    check_names(tree, RECORDS, selection, lambda text: say(text, "note"), may_come=given["follow"])
    with Ingest(lake, catalog=given["catalog"], tables=tables, selection=selection, partition_by=partition_by) as job:
        if given["follow"]:
            return _follow(job, look, given, as_json)
        outcome = job.complete(lambda: engine.run(given, "ingesting", job, tree))
    _remark(outcome, set())
    if as_json:
        output.json_line(_summary(outcome))
    else:
        _show(outcome, given["catalog"])
    return _code(outcome)


def _code(outcome: Ingested) -> int:
    return FOUND if outcome.errors or outcome.warnings or outcome.refused else DONE


def _remark(outcome: Ingested, said: set[str]) -> None:
    """Print refused files and notes, each once."""
    words = [f"{path}: {why}; left out, nothing in the lake was changed" for path, why in outcome.refused]
    for text, kind in (*((word, "") for word in words), *((note, "note") for note in outcome.notes)):
        if text not in said:
            say(text, kind)
            said.add(text)


def _follow(job: Ingest, look: Callable[[], Tree], given: dict[str, Any], as_json: bool) -> int:
    """Ingest until SIGINT or SIGTERM; the current run is finished, a second signal ends it."""
    from rawlog.jobs.ingest.follow import follow

    session = engine.start(given, bare=True) if given["engine"] == "spark" else None
    every: list[Ingested] = []
    said: set[str] = set()
    with _stopping() as stop:
        for outcome in follow(
            job, look, lambda tree: engine.run(given, "ingesting", job, tree, session), stop, given["every"]
        ):
            every.append(outcome)
            _remark(outcome, said)
            if as_json:
                output.json_line(_summary(outcome))
            else:
                output.line(_line(outcome))
            output.flush()
    if as_json:
        output.json_line({"runs": len(every), **_totals(every)})
    else:
        totals = _totals(every)
        output.line(
            f"stopped: {counted(len(every), 'run')}, {counted(totals['bytes'], 'byte')}, {counted(sum(totals['tables'].values()), 'row')}"
        )
    return max(map(_code, every), default=DONE)


@contextmanager
def _stopping() -> Iterator[Event]:
    """An event that SIGINT and SIGTERM set; the second time they do what they did before."""
    stop = Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, _: object) -> None:
        stop.set()
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, ask)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _totals(every: list[Ingested]) -> dict[str, Any]:
    tables: dict[str, int] = {}
    for outcome in every:
        for name, count in outcome.tables.items():
            tables[name] = tables.get(name, 0) + count
    return {
        "bytes": sum(outcome.size for outcome in every),
        "errors": sum(outcome.errors for outcome in every),
        "warnings": sum(outcome.warnings for outcome in every),
        "tables": tables,
    }


def _line(outcome: Ingested) -> str:
    rows = sum(outcome.tables.values())
    return f"{counted(outcome.files, 'file')}, {size_text(outcome.size)}, {counted(rows, 'row')}; {outcome.verdict}"


def _summary(outcome: Ingested) -> dict[str, Any]:
    return {
        "verdict": outcome.verdict,
        "files": outcome.files,
        "unchanged": outcome.unchanged,
        "refused": len(outcome.refused),
        "bytes": outcome.size,
        "errors": outcome.errors,
        "warnings": outcome.warnings,
        "tables": dict(outcome.tables),
        "run": outcome.run,
        "lake": outcome.lake,
    }


def _show(outcome: Ingested, catalog: str | None) -> None:
    from rawlog.cli.grid import aligned

    if outcome.files:
        rows = [["table", "rows added"], *([name, f"{count:,}"] for name, count in outcome.tables.items())]
        for text in aligned(rows, [False, True]):
            output.line(text)
        output.line()
        read = f"{counted(outcome.files, 'file')}, {size_text(outcome.size)} decoded"
        output.line(read + (f"; {outcome.unchanged:,} unchanged" if outcome.unchanged else ""))
        found = f"{counted(outcome.errors, 'error')}, {counted(outcome.warnings, 'warning')}"
        output.line(
            f"{outcome.verdict}: {found}; see the table findings" if outcome.errors + outcome.warnings else "clean"
        )
    else:
        output.line(f"nothing new: {counted(outcome.unchanged, 'file')} as before")
    output.line(f"lake: {printable(outcome.lake)}")
    if catalog is None or catalog.endswith(".db"):
        question = "SELECT * FROM findings"
        output.line(f"  rawlog query '{question}' {printable(catalog or outcome.lake)}")
    if catalog is None:
        uri = f"sqlite:///{outcome.lake}/catalog.db"
        output.line(f'  pyiceberg.catalog.load_catalog("rawlog", type="sql", uri="{printable(uri)}")')
