"""`rawlog report`: one page that says what is here, whether it is healthy, and what to do."""

from __future__ import annotations

from typing import Any

import click

from rawlog.cli import options, output
from rawlog.cli import options as engine
from rawlog.model.text import counted, printable, size_text


@click.command(
    epilog=options.examples(
        "rawlog report /var/kafka-logs -o report.html",
        "rawlog report disk1/ disk2/ -o cluster.html",
        "rawlog report lake -o lake.html",
        "rawlog report /var/kafka-logs -o report.html --json",
        more="Exit codes: 0 no errors and no warnings; 1 errors or warnings; 2 wrong usage; 3 something could not be read or written.",
    )
)
@click.argument("paths", nargs=-1, required=True, type=options.PATH, metavar="PATH...")
@click.option(
    "-o",
    "--output",
    required=True,
    type=options.PATH,
    metavar="OUT",
    help="The page to write; replaced if it exists.",
)
@click.option("--as", "as_format", metavar="FORMAT", help="Read every file as this format, whatever it looks like.")
@options.limits
@engine.engine_by_size
@options.json_flag
@click.pass_context
def command(ctx: click.Context, /, paths: tuple[str, ...], as_format: str | None, as_json: bool, **given: Any) -> None:
    """Write one page about everything at the PATHs: what is here, is it healthy, what to do next. Nothing at the PATHs is changed.

    Then for every system and topic: size, records, throughput over time, message sizes, codecs, keys, gaps, producers, transactions,
    consumer lag, findings by cause with the commands that help. The page is one file, opens without a network and is safe to pass on:
    it shows keys, topics and paths, no values.
    """
    from rawlog.cli.output import Notes
    from rawlog.verbs import functions

    notes, target = Notes(), given.pop("output")
    with engine.running(given, "reading") as running:
        found = functions.report(paths, target, format=as_format, note=notes, **given, **running)
    if as_json:
        output.json_line({**found.as_json(), "output": target})
    else:
        colour = {"damaged": "red", "clean": "green"}.get(found.verdict, "yellow")
        what = f"{counted(found.records, 'record')}, {size_text(found.size)} in {counted(found.files, 'file')}"
        output.line(f"{output.style(found.verdict, fg=colour, bold=True)}: {what}")
        for step in found.steps:
            output.line(f"  {printable(step.text)}")
            output.line(f"    {printable(step.command)}")
        output.line(printable(target))
    output.flush()
    ctx.exit(found.findings.exit_code or notes.code)
