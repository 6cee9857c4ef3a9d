"""`rawlog ingest`: from directories of broker files to tables that people query."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING, Any

import click

from rawlog.cli import (
    logs,
    options,
    output,
)
from rawlog.cli import (
    options as engine,
)
from rawlog.cli.logs import say
from rawlog.model.errors import DONE
from rawlog.model.text import counted, printable, size_text

if TYPE_CHECKING:
    from rawlog.model.report import Report


@click.command(
    epilog=options.examples(
        "rawlog ingest kafka-logs/ --to lake",
        "rawlog ingest kafka-logs/ rocketmq-store/ --to lake --tables records,kafka.batches --since -7d",
        "rawlog ingest kafka-logs/ --to lake --follow --every 10",
        more="Exit codes: 0 done; 1 damage was found, files were refused, or values were not decoded; 2 wrong usage; 3 cannot be read or "
        "written.",
    )
)
@options.paths
@click.option(
    "--to",
    required=True,
    type=options.PATH,
    metavar="LAKE",
    help="The lake: a directory or a URL; created if it does not exist.",
)
@click.option("--tables", metavar="A,B", help="Only these tables.  [default: all that the files have]")
@click.option("--topic", multiple=True, metavar="GLOB", help="Only these topics; may be given again.")
@click.option("--partition", multiple=True, type=options.Partitions(), metavar="N", help="Only these partitions.")
@click.option("--since", metavar="TIME", help="Only rows from a time on: ISO 8601, epoch milliseconds, or -2h.")
@click.option("--until", metavar="TIME", help="Only rows up to a time, which is left out.")
@options.replicas
@options.mask
@options.decode
@click.option(
    "--partition-by",
    metavar="A,B",
    help="Cut the data files of new tables by topic, partition, hour, day, month, year or bucket(N, COLUMN).",
)
@click.option(
    "--sort-by",
    metavar="A,B",
    help="Sort the data files of new tables by these columns, whichever a table has.  [default: topic, partition, offset; "
    "or the place in the files]",
)
@click.option(
    "--on-rewrite",
    type=click.Choice(("replace", "keep", "refuse")),
    default="replace",
    show_default=True,
    help="The rows of files that were compacted, truncated or replaced since the last run: replace them; keep them, and take only "
    "later offsets; refuse the files.",
)
@click.option("-f", "--follow", is_flag=True, help="Continue: take what is new until interrupted.")
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
@click.option(
    "--metrics",
    type=options.PATH,
    metavar="FILE",
    help="Write the numbers of each run to a file: for Prometheus if its name ends in .prom, else as JSON.",
)
@engine.engine
@options.json_flag
def command(
    paths: tuple[str, ...], as_format: str | None, to: str, follow: bool, every: float, as_json: bool, **given: Any
) -> int:
    """Decode everything into a lake of queryable tables.

    Every file is recognised, verified and decoded; the rows become Parquet files of Iceberg tables: records, files, findings and jobs
    in namespace rawlog, and the tables of each system in its own. Run again, it takes only what is new, and continues in files that
    have grown. The rows of files that were compacted, truncated or replaced meanwhile are replaced (--on-rewrite). Tables that are a
    state (a cluster's topics, committed offsets, the blobs of a store) are replaced by what the files say now. The bytes of a message
    are stored once, in records. Damage does not stop it: sound rows are stored, findings say what is lost, the exit code is 1. With
    --mask only records, files and findings are filled. With --decode the table records has value_json, value_fields (nested columns
    of each topic), value_schema and value_error next to the bytes. Several runs may work at the same time. --since does not change
    tables whose rows have no time.
    """
    from rawlog.cli.output import Notes
    from rawlog.verbs import functions

    given |= {"topic": given["topic"] or None, "partition": options.numbers(given["partition"])}
    given |= {"format": as_format, "note": Notes(), "decode": given["decode"] or None}
    if follow:  # without a bar: most of the time it waits
        with _stopping() as stop:
            runs = functions.ingest(paths, to, follow=True, stop=stop, every=every, **engine.chosen(given), **given)
            return _show_runs(runs, as_json)
    with engine.running(given, "ingesting") as running:
        done = functions.ingest(paths, to, **given, **running)
    _remark(done, set())
    if as_json:
        output.json_line(done.as_json())
    else:
        _show(done, given["catalog"])
    code: int = done.exit_code
    return code


def _remark(done: Report, said: set[str]) -> None:
    """Print what the user should know besides the numbers, once."""
    words = [f"{one.path}: {one.reason}" for one in done.entries if one.path is not None]
    for text, kind in (*((word, "") for word in words), *((note, "note") for note in done.notes)):
        if text not in said:
            say(text, kind, "info" if kind else "warning")
            said.add(text)
    if logs.is_json():
        rows = {f"rows.{name}": count for name, count in done.facts["tables"].items()}
        seconds = {f"seconds.{phase}": number for phase, number in done.facts["seconds"].items()}
        logs.write("warning" if done.exit_code else "info", _line(done), {**done.counts, **rows, **seconds})


def _show_runs(runs: Iterator[Report], as_json: bool) -> int:
    """Print each run of --follow, and all of them in sum; the exit code."""
    every: list[Report] = []
    said: set[str] = set()
    for done in runs:
        every.append(done)
        _remark(done, said)
        if as_json:
            output.json_line(done.as_json())
        else:
            output.line(_line(done))
        output.flush()
    totals = _totals(every)
    if as_json:
        output.json_line({"runs": len(every), **totals})
    else:
        rows = counted(sum(totals["tables"].values()), "row")
        output.line(f"stopped: {counted(len(every), 'run')}, {counted(totals['bytes'], 'byte')}, {rows}")
    return max((done.exit_code for done in every), default=DONE)


@contextmanager
def _stopping() -> Iterator[Event]:
    """An event that SIGINT and SIGTERM set. A run that is under way is finished; a second signal ends it."""
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


def _totals(every: list[Report]) -> dict[str, Any]:
    tables: dict[str, int] = {}
    for done in every:
        for name, count in done.facts["tables"].items():
            tables[name] = tables.get(name, 0) + count
    sums = {name: sum(done.counts[name] for done in every) for name in ("bytes", "errors", "warnings")}
    return {**sums, "tables": tables}


def _line(done: Report) -> str:
    rows = sum(done.facts["tables"].values())
    read = f"{counted(done.counts['files'], 'file')}, {size_text(done.counts['bytes'])}"
    return f"{read}, {counted(rows, 'row')}; {_verdict(done)}"


def _verdict(done: Report) -> str:
    """What the source is like. A run whose exit code is 1 does not end with "clean" alone."""
    from rawlog.values.reasons import SIDES, Undecoded

    counts = {
        side: sum(one.number for one in done.notes if isinstance(one, Undecoded) and one.side == side) for side in SIDES
    }
    undecoded = " and ".join(counted(number, side) for side, number in counts.items() if number)
    verdict = str(done.facts["verdict"])
    was = "was" if sum(counts.values()) == 1 else "were"
    return f"{verdict}, but {undecoded} {was} not decoded" if undecoded and verdict == "clean" else verdict


def _show(done: Report, catalog: str | None) -> None:
    from rawlog.cli.grid import aligned

    counts, lake = done.counts, printable(done.target)
    if counts["files"]:
        rows = [["table", "rows added"], *([name, f"{count:,}"] for name, count in done.facts["tables"].items())]
        for text in aligned(rows, [False, True]):
            output.line(text)
        output.line()
        read = f"{counted(counts['files'], 'file')}, {size_text(counts['bytes'])} decoded"
        output.line(read + (f"; {counts['unchanged']:,} unchanged" if counts["unchanged"] else ""))
        found = f"{counted(counts['errors'], 'error')}, {counted(counts['warnings'], 'warning')}"
        is_clean = not counts["errors"] + counts["warnings"]
        output.line(_verdict(done) if is_clean else f"{_verdict(done)}: {found}; see the table findings")
    else:
        output.line(f"nothing new: {counted(counts['unchanged'], 'file')} as before")
    output.line(f"lake: {lake}")
    question = "SELECT * FROM findings"
    output.line(f"  rawlog query '{question}' {lake if catalog is None else f'--catalog {printable(catalog)}'}")
    if catalog is None:
        output.line(f'  pyiceberg.catalog.load_catalog("rawlog", type="sql", uri="sqlite:///{lake}/catalog.db")')
