"""`rawlog head`: the first rows of a table."""

from __future__ import annotations

from typing import Any

import click

from rawlog.cli import options
from rawlog.cli.commands.cat import run


@click.command(
    epilog=options.examples(
        "rawlog head kafka-logs/orders-0",
        "rawlog head -n 3 kafka-logs/ --table kafka.batches --json",
        more="`rawlog cat --help` explains --format and the exit codes.",
    )
)
@click.option(
    "-n", "--lines", "--limit", "lines", type=click.IntRange(0), default=10, show_default=True, help="How many rows."
)
@options.paths
@options.table
@options.selection(limit=False)
@options.decode
@options.output
@click.pass_context
def command(ctx: click.Context, /, lines: int, paths: tuple[str, ...], **given: Any) -> None:
    """Print the first rows: those that `rawlog cat` prints first with the same options."""
    from rawlog.verbs import functions

    ctx.exit(run(given, functions.head, paths=paths, lines=lines))
