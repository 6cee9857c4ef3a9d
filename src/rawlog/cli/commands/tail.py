"""`rawlog tail`: the last rows of a table, and with -f the rows that are added."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any

import click

from rawlog.cli import options, output
from rawlog.cli.commands.cat import prepare, reading, run
from rawlog.model.errors import DONE


@click.command(
    epilog=options.examples(
        "rawlog tail kafka-logs/orders-0 -n 5 --json",
        "rawlog tail -f kafka-logs/ --topic orders --format '%o %v\\n'",
        more="The last rows of each partition: -o -N. `rawlog cat --help` explains --format and the exit codes.",
    )
)
@click.option("-n", "--lines", type=click.IntRange(0), default=10, show_default=True, help="How many rows.")
@click.option(
    "-f", "--follow", is_flag=True, help="Continue as rows are added, in growing and in new files; Ctrl-C ends it."
)
@click.option(
    "--limit", type=click.IntRange(0), metavar="N", help="The same as -n; with -f: end after so many rows in all."
)
@options.paths
@options.table
@options.selection(limit=False)
@options.decode
@options.output
@click.pass_context
def command(
    ctx: click.Context, /, lines: int, follow: bool, limit: int | None, paths: tuple[str, ...], **given: Any
) -> None:
    """Print the last rows: those that `rawlog cat` prints last with the same options. Rows before them are not decoded."""
    from rawlog.verbs import functions

    if follow:
        ctx.exit(_follow(paths, given, lines, limit))
    if limit is not None:
        is_given = ctx.get_parameter_source("lines") is not click.core.ParameterSource.DEFAULT
        lines = min(lines, limit) if is_given else limit
    ctx.exit(run(given, functions.tail, paths=paths, lines=lines))


def _follow(paths: tuple[str, ...], given: dict[str, Any], lines: int, limit: int | None) -> int:
    """Print the last rows, then those that are added, until Ctrl-C or the limit."""
    from rawlog.cli.output import Notes
    from rawlog.verbs import functions

    printer = prepare(given)

    def wait(seconds: float) -> None:
        printer.flush()
        _pause(seconds)

    found = functions.follow(paths, lines=lines, limit=limit, note=Notes(), **reading(given, printer))
    found.pause = wait
    with printer, _ended_by_interrupt():
        printer.begin(found.schema)
        for batch in found.batches():
            printer.write(batch)
    output.flush()
    return DONE


def _pause(seconds: float) -> None:
    """Wait, unless the reader of our output ends."""
    try:
        import select

        watch = select.poll()
        watch.register(sys.stdout.fileno(), 0)
    except (ImportError, AttributeError, OSError, ValueError):
        time.sleep(seconds)
        return
    if watch.poll(seconds * 1000):
        raise BrokenPipeError


@contextlib.contextmanager
def _ended_by_interrupt() -> Any:
    """Ctrl-C ends following."""
    with contextlib.suppress(KeyboardInterrupt):
        yield
