"""What the verbs share that write something: their arguments, and the printing of their Report."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rawlog.cli import engine, options, output
from rawlog.core.text import printable

if TYPE_CHECKING:
    from rawlog.core.report import Report

F = TypeVar("F", bound=Callable[..., Any])


def arguments(function: F) -> F:
    """SRC, DST and the options of every verb that rewrites stores."""
    for decorate in (
        options.json_flag,
        engine.engine_by_size,
        click.option("--force", is_flag=True, help="Replace DST if it exists; it is replaced only if all goes well."),
        click.option("--option", "own", multiple=True, metavar="NAME=VALUE", help="What only some systems understand."),
        click.argument("target", metavar="DST"),
        click.argument("source", type=options.PATH, metavar="SRC"),
    ):
        function = decorate(function)
    return function


def show(report: Report, *, as_json: bool, closing: str | None = None) -> int:
    """Print what a verb did, and a line at the end, its own if it has one; the exit code says whether anything was lost."""
    if as_json:
        output.json_line(report.as_json())
    else:
        for text in report.lines():
            output.line(text)
        output.line(_closing(report) if closing is None else closing)
    output.flush()
    return report.exit_code


def _closing(report: Report) -> str:
    """The last line: where the result is, and whether something is wrong with it."""
    where = printable(report.target)
    done = (
        f"{report.verb}: nothing written{f' to {where}' if where else ''}"
        if report.is_dry_run
        else f"{report.verb}: {where}"
    )
    problems = report.problems()
    return done + (f"; {' and '.join(problems)}, see above" if problems else "")
