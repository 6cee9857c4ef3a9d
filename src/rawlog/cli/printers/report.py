"""Prints reports: what a verb did, a line at the end, the exit code; plans of `rescue`; lakes; what verbs show. Live verbs stop cleanly."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any

from rawlog.cli import logs, output
from rawlog.cli.command import Call, Detail
from rawlog.cli.logs import INTERRUPTED, say
from rawlog.cli.printers import Json
from rawlog.model.errors import DONE, FOUND, OptionError
from rawlog.model.text import counted, offset_range, printable, size_text
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
    return show_run(call, as_json=as_json)


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
    return show_run(call, as_json=as_json)


def _run(call: Call) -> Report:
    """Run a verb. Ctrl-C and SIGTERM end it in good order, a second one at once."""
    stop = threading.Event()
    with call.progress() as bar, _stop_event(stop):
        assert bar is not None
        report: Report = call.function(stop=stop, progress=bar, note=lambda text: say(text, "note"))
    return report


def show_run(call: Call, *, as_json: Json = False) -> int:
    """Run a live verb, and print what it did; the exit code."""
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


# Lakes ---------------------------------------------------------------------------------------------------------------------------


def show_ingested(call: Call, *, as_json: Json = False) -> int:
    """Print what a run took; with --follow each run, and all of them in sum."""
    if call.value("follow"):  # without a bar: most of the time it waits
        with _stopping() as stop:
            return _show_runs(call.function(stop=stop), as_json)
    report = call.run()
    _remark(report, set())
    if as_json:
        output.json_line(report.as_json())
    else:
        _show_ingested(report, call.value("catalog"))
    return int(report.exit_code)


def show_lake(call: Call, *, as_json: Json = False) -> int:
    """Print what a lake holds, or what was done to it."""
    is_kept = any(call.value(name) for name in ("expire_snapshots", "remove_orphans", "compact"))
    with call.progress() as bar:
        report = call.function(**({"progress": bar} if is_kept else {}))
    if as_json:
        for name, part in report.parts.items():
            more = {"dry_run": report.is_dry_run} if is_kept else {"changed": part.facts["changed"]}
            output.json_line({"table": name, **part.counts, **more})
    elif is_kept:
        _show_changes(report)
    else:
        _show_lake(report)
    return DONE


def _remark(done: Report, printed: set[str]) -> None:
    """Print what the user should know besides the numbers, once."""
    words = [f"{entry.path}: {entry.reason}" for entry in done.entries if entry.path is not None]
    for text, kind in (*((word, "") for word in words), *((note, "note") for note in done.notes)):
        if text not in printed:
            say(text, kind, "info" if kind else "warning")
            printed.add(text)
    if logs.is_json():
        rows = {f"rows.{name}": count for name, count in done.facts["tables"].items()}
        seconds = {f"seconds.{phase}": number for phase, number in done.facts["seconds"].items()}
        logs.write("warning" if done.exit_code else "info", _line(done), {**done.counts, **rows, **seconds})


def _show_runs(runs: Iterator[Report], as_json: bool) -> int:
    """Print each run of --follow, and all of them in sum; the exit code."""
    reports: list[Report] = []
    printed: set[str] = set()
    for done in runs:
        reports.append(done)
        _remark(done, printed)
        if as_json:
            output.json_line(done.as_json())
        else:
            output.line(_line(done))
        output.flush()
    totals = _totals(reports)
    if as_json:
        output.json_line({"runs": len(reports), **totals})
    else:
        rows = counted(sum(totals["tables"].values()), "row")
        output.line(f"stopped: {counted(len(reports), 'run')}, {counted(totals['bytes'], 'byte')}, {rows}")
    return max((done.exit_code for done in reports), default=DONE)


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


def _totals(reports: list[Report]) -> dict[str, Any]:
    tables: dict[str, int] = {}
    for done in reports:
        for name, count in done.facts["tables"].items():
            tables[name] = tables.get(name, 0) + count
    sums = {name: sum(done.counts[name] for done in reports) for name in ("bytes", "errors", "warnings")}
    return {**sums, "tables": tables}


def _line(done: Report) -> str:
    rows = sum(done.facts["tables"].values())
    read = f"{counted(done.counts['files'], 'file')}, {size_text(done.counts['bytes'])}"
    return f"{read}, {counted(rows, 'row')}; {_source_verdict(done)}"


def _source_verdict(done: Report) -> str:
    """What the source is like. A run whose exit code is 1 does not end with "clean" alone, nor one whose code is 0 with "damaged"."""
    from rawlog.values.reasons import SIDES, Undecoded

    counts = {
        side: sum(note.number for note in done.notes if isinstance(note, Undecoded) and note.side == side)
        for side in SIDES
    }
    undecoded = " and ".join(counted(number, side) for side, number in counts.items() if number)
    verdict = str(done.facts["verdict"])
    if verdict != "clean" and not done.exit_code:
        return f"{verdict}, but no record is lost"
    was = "was" if sum(counts.values()) == 1 else "were"
    return f"{verdict}, but {undecoded} {was} not decoded" if undecoded and verdict == "clean" else verdict


def _show_ingested(done: Report, catalog: str | None) -> None:
    from rawlog.cli.grid import align_rows

    counts, lake = done.counts, printable(done.target)
    if counts["files"]:
        rows = [["table", "rows added"], *([name, f"{count:,}"] for name, count in done.facts["tables"].items())]
        for text in align_rows(rows, [False, True]):
            output.line(text)
        output.line()
        read = f"{counted(counts['files'], 'file')}, {size_text(counts['bytes'])} decoded"
        output.line(read + (f"; {counts['unchanged']:,} unchanged" if counts["unchanged"] else ""))
        numbers = f"{counted(counts['errors'], 'error')}, {counted(counts['warnings'], 'warning')}"
        is_clean = not counts["errors"] + counts["warnings"]
        output.line(
            _source_verdict(done) if is_clean else f"{_source_verdict(done)}: {numbers}; see the table findings"
        )
    else:
        output.line(f"nothing new: {counted(counts['unchanged'], 'file')} as before")
    output.line(f"lake: {lake}")
    question = "SELECT * FROM findings"
    output.line(f"  rawlog query '{question}' {lake if catalog is None else f'--catalog {printable(catalog)}'}")
    if catalog is None:
        output.line(f'  pyiceberg.catalog.load_catalog("rawlog", type="sql", uri="sqlite:///{lake}/catalog.db")')


def _show_lake(held: Report) -> None:
    from rawlog.cli.grid import fit_columns

    names = ("table", "rows", "files", "size", "snapshots", "sources", "changed")
    rows: list[Sequence[str]] = [names]
    for name, table in held.parts.items():
        numbers = [f"{table.counts[key]:,}" for key in ("rows", "files", "snapshots", "sources")]
        size = size_text(table.counts["bytes"])
        rows.append([printable(name), *numbers[:2], size, *numbers[2:], table.facts["changed"] or ""])
    for text in fit_columns(names, rows, ("table", "changed"), "", ("snapshots", "sources")):
        output.line(text)
    output.line()
    files = counted(held.total("files"), "data file")
    where = printable(held.source)
    output.line(f"{counted(len(held.parts), 'table')}, {size_text(held.total('bytes'))} in {files}: {where}")


def _show_changes(done: Report) -> None:
    is_changed = False
    for name, table in done.parts.items():
        counts, words = table.counts, []
        if counts["joined_files"]:
            words.append(f"{counts['joined_files']:,} small files into {counts['made_files']:,}")
        if counts["expired_snapshots"]:
            words.append(f"{counts['expired_snapshots']:,} snapshots expired")
        if counts["removed_files"]:
            words.append(f"{counted(counts['removed_files'], 'file')} removed ({size_text(counts['removed_bytes'])})")
        if words:
            is_changed = True
            output.line(f"{printable(name)}: {'; '.join(words)}")
    if not is_changed:
        output.line("nothing to do")
    elif done.is_dry_run:
        output.line("a dry run: nothing was changed")
