"""The command of a verb that only one family has: options from its parameters, and the result printed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from rawlog.cli import options, output
from rawlog.cli import output as report
from rawlog.cli.logs import say
from rawlog.model.errors import DONE, FOUND
from rawlog.model.text import printable
from rawlog.model.verb import (
    Kind,
    Line,
    Parameter,
    Section,
    Shown,
    Tone,
    Verb,
)

STYLES: dict[Tone | None, dict[str, Any]] = {
    Tone.TITLE: {"bold": True},
    Tone.GOOD: {"fg": "green"},
    Tone.BAD: {"fg": "red"},
    Tone.CHANGED: {"fg": "yellow"},
}


def command_of(name: str, verb: Verb) -> click.Command:
    """The click command of a family's verb."""

    def callback(paths: tuple[str, ...], as_json: bool, **given: Any) -> None:
        from rawlog.model.report import Report
        from rawlog.verbs.family import run_verb

        result = run_verb(name, paths, given)
        shown = report.show(result, as_json=as_json) if isinstance(result, Report) else _show(result, as_json=as_json)
        output.flush()
        click.get_current_context().exit(shown)

    parameters: list[click.Parameter] = [
        click.Argument(["paths"], nargs=-1, required=True, type=options.PATH, metavar=f"{verb.paths}..."),
        *map(_option, verb.parameters),
        click.Option(["--json", "as_json"], is_flag=True, help="One JSON object per line."),
    ]
    return click.Command(
        name,
        callback=callback,
        params=parameters,
        help=verb.help,
        short_help=verb.summary,
        epilog=options.examples(*verb.examples, more=f"Exit codes: {verb.exit_codes}"),
    )


def _option(one: Parameter) -> click.Option:
    """A parameter as an option of the command line."""
    names = [f"--{one.name.replace('_', '-')}", one.name]
    if one.kind is Kind.FLAG:
        return click.Option(names, is_flag=True, help=one.help)
    kind: click.ParamType[Any] = click.STRING
    if one.kind is Kind.NUMBER:
        kind = click.IntRange(0)
    elif one.kind is Kind.CHOICE:
        kind = click.Choice(one.choices)
    return click.Option(
        names,
        type=kind,
        multiple=one.is_repeated,
        required=one.is_required,
        default=one.default,
        show_default=one.default is not None,
        metavar=one.metavar,
        help=one.help,
    )


def _show(shown: Iterator[Shown], *, as_json: bool) -> int:
    code = DONE
    for one in shown:
        if one.is_finding:
            code = FOUND
        if one.note is not None:
            say(one.note, "note")
        if as_json and one.row is not None:
            output.json_line(one.row)
        elif not as_json and isinstance(one.text, Line):
            output.line(_styled(one.text))
        elif not as_json and isinstance(one.text, Section):
            _print_section(one.text)
    return code


def _print_section(section: Section) -> None:
    from rawlog.cli.grid import aligned

    if not section.rows:
        return
    output.line(f"{section.title} ({len(section.rows):,})")
    rows = [section.head, *section.rows[: section.most]] if section.head else section.rows[: section.most]
    for line in aligned([[_styled(cell) for cell in row] for row in rows], indent="  "):
        output.line(line)
    if section.most is not None and len(section.rows) > section.most:
        output.line(f"  ... and {len(section.rows) - section.most:,} more; --json shows them")


def _styled(cell: str | Line) -> str:
    line = Line(cell) if isinstance(cell, str) else cell
    return output.style(printable(line.text), **STYLES.get(line.tone, {}))
