"""`rawlog head`: the first rows of a table."""

from __future__ import annotations

from typing import Any

import click

from rawlog.cli import options
from rawlog.cli.commands.cat import run


@click.command()
@click.option(
    "-n", "--lines", "--limit", "count", type=click.IntRange(0), default=10, show_default=True, help="How many rows."
)
@options.paths
@options.table
@options.selection(limit=False)
@options.output
@click.pass_context
def command(ctx: click.Context, /, count: int, paths: tuple[str, ...], **given: Any) -> None:
    """Print the first rows: those that `rawlog cat` with the same options prints first, whose help tells of the options."""
    ctx.exit(run(paths, given, limit=count))
