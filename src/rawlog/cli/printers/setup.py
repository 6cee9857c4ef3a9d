"""Prints what is about rawlog itself: formats, the installation; and the address of the local web page."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from rawlog import registry
from rawlog.cli import output
from rawlog.cli.command import Call
from rawlog.cli.grid import fold_rows
from rawlog.cli.logs import say
from rawlog.cli.printers import Json
from rawlog.model.errors import DONE, FOUND
from rawlog.model.text import counted, printable, size_text
from rawlog.model.verb import Option

COLOURS = {"ok": "green", "missing": "yellow", "error": "red"}


def show_formats(call: Call, *, as_json: Json = False) -> int:
    """Print every format, by family."""
    if as_json:
        output.json_rows(call.run())
        return DONE
    for number, family in enumerate(registry.families()):
        if number:
            output.line()
        output.line(output.style(f"{family.name}: {family.title}", bold=True))
        rows = [
            (
                format.name,
                ", ".join(format.abilities()) or "recognise",
                format.title,
                format.files,
            )
            for format in family.formats
        ]
        for line in fold_rows(rows, indent="  "):
            output.line(line)
        tables = ["records"] if any("records" in [t.name for t in f.tables] for f in family.formats) else []
        tables += [table.name for table in family.tables]
        output.sentence(f"  tables: {', '.join(tables) or 'none yet'}", "    ")
    return DONE


def show_doctor(call: Call, *, as_json: Json = False) -> int:
    """Print what was looked at, and advice."""
    checks = call.run()
    for check in checks:
        if as_json:
            output.json_line(asdict(check))
            continue
        rows = [
            [output.style(check.state.ljust(7), fg=COLOURS[check.state]), check.check.ljust(14), printable(check.found)]
        ]
        rows += [["", "", printable(check.advice)]] if check.advice else []
        for line in fold_rows(rows):
            output.line(line)
    output.flush()
    return FOUND if any(check.state == "error" for check in checks) else DONE


def show_overview(call: Call, *, as_json: Json = False) -> int:
    """Print the verdict of a report, and what to do next."""
    overview, target = call.run(), call.arguments["output"]
    if as_json:
        output.json_line({**overview.as_json(), "output": target})
    else:
        colour = {"damaged": "red", "clean": "green"}.get(overview.verdict, "yellow")
        what = f"{counted(overview.records, 'record')}, {size_text(overview.size)} in {counted(overview.files, 'file')}"
        output.line(f"{output.style(overview.verdict, fg=colour, bold=True)}: {what}")
        for step in overview.steps:
            output.sentence(f"  {printable(step.text)}", "  ")
            output.line(f"    {printable(step.command)}")
        output.line(printable(target))
    output.flush()
    return int(overview.findings.exit_code or call.notes.code)


def show_server(
    call: Call,
    *,
    is_opened: Annotated[bool, Option("Open the page in the browser of this machine.", "--open")] = False,
    as_json: Json = False,
) -> int:
    """Print the address of the web page, and serve it until Ctrl-C."""
    from rawlog.pages.browser.server import is_loopback

    with call.run() as server:
        if as_json:
            output.json_line({"url": server.url, "host": server.host, "port": server.port})
        else:
            output.line(f"Browse at {server.url}")
            output.line("Press Ctrl-C to end.")
        output.flush()
        if not is_loopback(server.host):
            say(
                f"{server.host} can be reached from other machines, and what is sent is not encrypted",
                "warning",
                "warning",
            )
        if is_opened:
            import webbrowser

            webbrowser.open(server.url)
        server.wait()
    return DONE
