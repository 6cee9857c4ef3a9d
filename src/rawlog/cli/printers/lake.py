"""Prints what `ingest` took and what `lake` shows or maintains."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING, Any

from rawlog.cli import logs, output
from rawlog.cli.command import Call
from rawlog.cli.logs import say
from rawlog.cli.printers import Json
from rawlog.model.errors import DONE
from rawlog.model.text import counted, printable, size_text

if TYPE_CHECKING:
    from rawlog.model.report import Report


def show_ingested(call: Call, *, as_json: Json = False) -> int:
    """Print what a run took; with --follow each run, and all of them in sum."""
    if call.value("follow"):  # without a bar: most of the time it waits
        with _stop_event() as stop:
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
def _stop_event() -> Iterator[Event]:
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
    return f"{read}, {counted(rows, 'row')}; {_verdict(done)}"


def _verdict(done: Report) -> str:
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
        output.line(_verdict(done) if is_clean else f"{_verdict(done)}: {numbers}; see the table findings")
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
