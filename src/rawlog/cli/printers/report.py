"""Prints reports: what a verb did, a line at the end, and the exit code; the plan of `rescue`; what verbs show. Live verbs stop cleanly."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

from rawlog.cli import output
from rawlog.cli.command import Call, Detail
from rawlog.cli.logs import INTERRUPTED, say
from rawlog.cli.printers import Json
from rawlog.model.errors import DONE, FOUND, OptionError
from rawlog.model.text import offset_range, printable
from rawlog.model.verb import Kind, Line, Option, Section, Tone

if TYPE_CHECKING:
    from rawlog.model.report import Report

Unit = Mapping[str, Any]
#: Before the second line of a sentence that is too long for a terminal.
FURTHER = "    "
STYLES: dict[Tone | None, dict[str, Any]] = {
    Tone.TITLE: {"bold": True},
    Tone.GOOD: {"fg": "green"},
    Tone.BAD: {"fg": "red"},
    Tone.CHANGED: {"fg": "yellow"},
}


def show(call: Call, *, as_json: Json = False) -> int:
    """Print what a verb did."""
    return print_report(call, call.run(), as_json=as_json)


def show_rescue(call: Call, *, as_json: Json = False) -> int:
    """Print the plan of a rescue, and what it did."""
    report = call.run()
    if not as_json and call.detail is not Detail.QUIET:
        show_plan(report, every=call.detail is Detail.ALL or report.is_dry_run)
    return print_report(call, report, as_json=as_json)


def show_converted(call: Call, *, as_json: Json = False) -> int:
    """Print what was converted, or what would be lost and was not accepted."""
    from rawlog.lakes.targets import LossError

    try:
        report = call.run()
    except LossError as error:
        if as_json:
            lost = {loss.column: {"rows": loss.rows, "first": loss.place} for loss in error.lost}
            output.json_line({"refused": True, "lost": lost, "rows": error.rows})
        say(error.message("--accept-loss "))
        return FOUND
    closing = "nothing was written" if report.is_dry_run else f"{report.verb}: {printable(report.target)}"
    return print_report(call, report, as_json=as_json, closing=closing)


def print_report(call: Call, report: Report, *, as_json: bool, closing: str | None = None) -> int:
    """Print what a verb did; then a line with the verdict, its own if it has one; and last what was lost, changed or is not certain. The
    exit code says whether anything was.
    """
    if as_json:
        output.json_line(report.as_json())
    else:
        done = {Detail.QUIET: list, Detail.NORMAL: report.done_lines, Detail.ALL: report.all_done_lines}
        for text in done[call.detail]():
            output.sentence(text, FURTHER)
        problems = report.problem_lines()
        verdict = _verdict(report) if closing is None else closing
        if problems:
            output.sentence(f"{verdict}:", fg="red", bold=True)
        else:
            output.sentence(verdict)
        for text in problems:
            output.sentence(f"  {text}", f"  {FURTHER}")
    output.flush()
    return report.exit_code


def _verdict(report: Report) -> str:
    """Where the result is, and whether something is wrong with it."""
    where = printable(report.target)
    done = (
        f"{report.verb}: nothing written{f' to {where}' if where else ''}"
        if report.is_dry_run
        else f"{report.verb}: {where}"
    )
    problems = report.problems()
    return done + (f"; {' and '.join(problems)}" if problems else "")


# The plan of a rescue -----------------------------------------------------------------------------------------------------


def show_plan(done: Report, *, every: bool) -> None:
    """The decisions as tables: partitions, and the replicas that were found; without `every` only those where something is missing, or is
    not certain.
    """
    planned: Sequence[Unit] = done.facts.get("plan", ())
    units = [unit for unit in planned if every or any(unit[what] for what in ("lost", "undecided", "divergent"))]
    table(
        ("partition", "result", "lost", "undecided", "divergent", "decided by"),
        [
            (
                unit["name"],
                unit["action"] if unit["action"] != "rescue" else offset_range(unit["start"], unit["end"]),
                spans(unit["lost"]),
                spans(unit["undecided"]),
                spans(unit["divergent"]),
                unit["reason"],
            )
            for unit in units
        ],
    )
    if not units:
        return
    output.line()
    table(
        ("partition", "disk", "state", "offsets", "leader epochs", "damage", "use"),
        [
            (
                unit["name"] if not number else "",
                copy["disk"],
                copy["state"],
                offset_range(copy["start"], copy["end"]),
                copy["lineage"],
                spans(copy["damage"]),
                copy["use"],
            )
            for unit in units
            for number, copy in enumerate(unit["copies"])
        ],
    )
    output.line()


def spans(runs: Sequence[Mapping[str, Any]]) -> str:
    """Ranges of offsets in a cell."""
    texts = [
        f"offsets from {run['start']:,} on" if run["stop"] is None else offset_range(run["start"], run["stop"])
        for run in runs
    ]
    return ", ".join(texts[:3]) + (f", {len(texts) - 3:,} more" if len(texts) > 3 else "")


def table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table without columns that have nothing in them."""
    from rawlog.cli.grid import fold_rows

    kept = [index for index in range(len(names)) if any(row[index] for row in rows)]
    if not kept:
        return
    heads = [output.style(names[index], bold=True) for index in kept]
    for line in fold_rows([heads, *([printable(row[index]) for index in kept] for row in rows)]):
        output.line(line)


# What verbs show: rows for machines, text for people ----------------------------------------------------------------------


def show_items(call: Call, *, as_json: Json = False) -> int:
    """Print what a verb shows as it is read; the exit code says whether something was found, or could not be read."""
    from rawlog.model.report import SeriousNote

    code = DONE
    for item in call.run().items():
        if item.is_finding:
            code = FOUND
        if item.note is not None:
            is_serious = item.is_finding and not isinstance(item.note, SeriousNote)
            call.notes(SeriousNote(item.note) if is_serious else item.note)
        if as_json and item.row is not None:
            output.json_line(item.row)
        elif not as_json and isinstance(item.text, Line):
            output.sentence(printable(item.text.text), FURTHER, **STYLES.get(item.text.tone, {}))
        elif not as_json and isinstance(item.text, Section):
            _print_section(item.text, call.detail)
    output.flush()
    return call.notes.code or code


def _print_section(section: Section, detail: Detail) -> None:
    from rawlog.cli.grid import fold_rows, numeric

    if not section.rows:
        return
    output.line(f"{section.title} ({len(section.rows):,})")
    most = None if detail is Detail.ALL else section.most
    rows = [[_style(cell) for cell in row] for row in section.rows[:most]]
    if section.head:
        filled = [index for index in range(len(section.head)) if any(row[index] for row in rows)]
        rows = [[row[index] for index in filled] for row in (section.head, *rows)]
    right = [False, *numeric(rows[bool(section.head) :])[1:]]  # the first column names what the row is of
    for line in fold_rows(rows, right, "  "):
        output.line(line)
    if most is not None and len(section.rows) > most:
        output.line(f"  ... and {len(section.rows) - most:,} more; -v shows them")


def _style(cell: str | Line) -> str:
    line = Line(cell) if isinstance(cell, str) else cell
    style = STYLES.get(line.tone)
    return printable(line.text) if style is None else output.style(printable(line.text), **style)


def show_run(call: Call, *, as_json: Json = False) -> int:
    """Run a verb, and print what it did."""
    return _show_run(call, as_json)


def show_record(
    call: Call,
    *,
    more_topics: Annotated[
        tuple[str, ...],
        Option("The same as TOPIC.", "-t", "--topic", metavar="TOPIC", is_repeated=True, kind=Kind.TEXT),
    ] = (),
    as_json: Json = False,
) -> int:
    """Record, and print what was recorded."""
    call.arguments["topics"] = (*call.arguments["topics"], *more_topics)
    if "as_" not in call.arguments and call.arguments["to"].endswith(".parquet"):
        call.arguments["as_"] = "parquet"
    return _show_run(call, as_json)


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
    return _show_run(call, as_json)


def _run(call: Call) -> Report:
    """Run a verb. Ctrl-C and SIGTERM end it in good order, a second one at once."""
    stop = threading.Event()
    with call.progress() as bar, _stop_event(stop):
        assert bar is not None
        report: Report = call.function(stop=stop, progress=bar, note=lambda text: say(text, "note"))
    return report


def _show_run(call: Call, as_json: bool) -> int:
    """Run a verb, and print what it did; the exit code."""
    report = _run(call)
    verb = f"{report.verb}: {printable(report.source)} to {printable(report.target)}"
    code = print_report(
        call, report, as_json=as_json, closing=f"{verb}: nothing was sent" if report.is_dry_run else verb
    )
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
