"""`rawlog tail`: the last rows of a table, and with -f the rows to come."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from rawlog.cli import options, output
from rawlog.cli.errors import DONE

if TYPE_CHECKING:
    from rawlog.cli.following import Follower

#: Seconds between two looks at the files; a look that takes long is followed by a longer pause.
INTERVAL = 0.25


@click.command()
@click.option("-n", "--lines", "count", type=click.IntRange(0), default=10, show_default=True, help="How many rows.")
@click.option(
    "-f", "--follow", is_flag=True, help="Go on as rows are added, in growing and in new files; Ctrl-C ends it."
)
@click.option(
    "--limit", type=click.IntRange(0), metavar="N", help="The same as -n; with -f: end after so many rows in all."
)
@options.paths
@options.table
@options.selection(limit=False)
@options.output
@click.pass_context
def command(
    ctx: click.Context, /, count: int, follow: bool, limit: int | None, paths: tuple[str, ...], **given: Any
) -> None:
    """Print the last rows: those that `rawlog cat` with the same options prints last. Earlier ones are not decoded.

    The last rows of each partition: -o -N. The options are told by `rawlog cat --help`.

    \b
    rawlog tail kafka-logs/orders-0 -n 5 --json
    rawlog tail -f kafka-logs/ --topic orders --format '%o %v\\n'
    """
    from rawlog import registry
    from rawlog.cli.following import Follower, is_framed, last_rows
    from rawlog.cli.reading import Reading
    from rawlog.core.errors import OptionError

    table = registry.table_named(given["table"])
    selection = options.selection_of(given)
    if follow and not is_framed(table):
        raise OptionError(f"table {table.name} cannot be followed: it is made from whole files")
    if follow and selection.isolation == "read_committed":
        raise OptionError("tail -f shows records before their transaction ends: it cannot be read_committed")
    if limit is not None and not follow:
        told = ctx.get_parameter_source("count") is not click.core.ParameterSource.DEFAULT
        count, limit = (min(count, limit) if told else limit), None
    printer = output.printer(given, table)
    if printer.columns is not None:
        selection = selection.replace(columns=printer.columns)
    selection.needed(table)
    reading = Reading(paths, given["as_format"])
    rows = reading.rows(table.name, selection, may_come=follow) if not follow or _is_readable(reading, table) else None
    with printer, _ended_by_interrupt(follow):
        follower = None
        if follow:
            follower = Follower(paths, given["as_format"], table, selection, reading.note)
            follower.skip(reading.tree)
        printer.begin(selection.wanted(table).schema)
        left = limit
        ends = None if follower is None else follower.ends
        for batch in last_rows(rows, count, ends) if rows is not None else ():
            left = _print(printer, batch, left)
        if follower is not None:
            _follow(printer, follower, left)
    output.flush()
    ctx.exit(reading.code if not follow else DONE)


def _is_readable(reading: Any, table: Any) -> bool:
    """Whether there is anything yet; a follower waits for what is not."""
    return table.name in reading.tree.tables


def _print(printer: output.Printer, batch: Any, left: int | None) -> int | None:
    if left is None:
        printer.write(batch)
        return None
    printer.write(batch.slice(0, left))
    return max(0, left - int(batch.num_rows))


def _follow(printer: output.Printer, follower: Follower, left: int | None) -> None:
    while left != 0:
        printer.flush()
        begun = time.monotonic()
        for batch in follower.poll():
            left = _print(printer, batch, left)
            if left == 0:
                return
        printer.flush()
        _pause(max(INTERVAL, 4 * (time.monotonic() - begun)))


def _pause(seconds: float) -> None:
    """Wait, unless whoever reads our output goes away."""
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
def _ended_by_interrupt(follow: bool) -> Any:
    """Ctrl-C is how following ends."""
    try:
        yield
    except KeyboardInterrupt:
        if not follow:
            raise
