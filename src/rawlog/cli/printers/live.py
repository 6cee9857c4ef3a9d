"""Runs the verbs that talk to live brokers, with a clean stop, and prints their reports."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

from rawlog.cli.command import Call
from rawlog.cli.logs import INTERRUPTED, say
from rawlog.cli.printers import Json
from rawlog.cli.printers.report import print_report
from rawlog.model.errors import OptionError
from rawlog.model.text import printable
from rawlog.model.verb import Kind, Option

if TYPE_CHECKING:
    from rawlog.model.report import Report

Quiet = Annotated[bool, Option("Show no progress.", section="Output")]


def show(call: Call, *, quiet: Quiet = False, as_json: Json = False) -> int:
    """Run a verb, and print what it did."""
    return _show(_run(call, quiet), as_json)


def show_record(
    call: Call,
    *,
    more_topics: Annotated[
        tuple[str, ...],
        Option("The same as TOPIC.", "-t", "--topic", metavar="TOPIC", is_repeated=True, kind=Kind.TEXT),
    ] = (),
    quiet: Quiet = False,
    as_json: Json = False,
) -> int:
    """Record, and print what was recorded."""
    call.arguments["topics"] = (*call.arguments["topics"], *more_topics)
    if "as_" not in call.arguments and call.arguments["to"].endswith(".parquet"):
        call.arguments["as_"] = "parquet"
    return _show(_run(call, quiet), as_json)


def show_replay(
    call: Call,
    *,
    more_sources: Annotated[
        tuple[str, ...], Option("The same as SRC.", "-i", "--input", metavar="SRC", is_repeated=True, kind=Kind.PATH)
    ] = (),
    sql: Annotated[
        str | None,
        Option(
            "Send the rows that this statement selects from SRC; they need columns of `records`.",
            "--query",
            metavar="SQL",
        ),
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> int:
    """Replay files, or the answer of a question to them, and print what was sent."""
    paths: Any = (*call.arguments["source"], *more_sources)
    if not paths:
        raise OptionError("no source is named: SRC expected")
    if sql is not None:
        from rawlog.verbs.query import query

        with query(sql, paths, engine="duckdb") as answer:
            paths = answer.to_arrow()
    call.arguments["source"] = paths
    return _show(_run(call, quiet), as_json)


def _run(call: Call, quiet: bool) -> Report:
    """Run a verb. Ctrl-C and SIGTERM end it in good order, a second one at once."""
    stop = threading.Event()
    with call.progress() as bar, _stop_event(stop):
        assert bar is not None
        bar.active = bar.active and not quiet
        report: Report = call.function(stop=stop, progress=bar, note=lambda text: say(text, "note"))
    return report


def _show(report: Report, as_json: bool) -> int:
    """Print what a verb did, a summary line at the end; the exit code."""
    verb = f"{report.verb}: {printable(report.source)} to {printable(report.target)}"
    code = print_report(report, as_json=as_json, closing=f"{verb}: nothing was sent" if report.is_dry_run else verb)
    return INTERRUPTED if report.facts.get("interrupted") and "error" not in report.facts else code


@contextmanager
def _stop_event(stop: threading.Event) -> Iterator[None]:
    def end(number: int, _: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
