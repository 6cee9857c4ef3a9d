"""`rawlog count`: the number of rows."""

from __future__ import annotations

from typing import Any

import click

from rawlog.cli import options, output


@click.command()
@options.paths
@options.table
@options.selection(columns=False)
@options.json_flag
@click.pass_context
def command(ctx: click.Context, /, paths: tuple[str, ...], as_json: bool, **given: Any) -> None:
    """Print the number of rows that `rawlog cat` with the same options prints.

    Where the headers of batches tell the number, nothing else is read, and checksums are not compared: `rawlog verify` does that.
    """
    from rawlog import registry
    from rawlog.cli.reading import Reading

    table = registry.table_named(given["table"])
    selection = options.selection_of(given)
    selection.needed(table)
    reading = Reading(paths, given["as_format"])
    rows = reading.rows(table.name, selection)
    if rows is None:
        ctx.exit(reading.code)
    total = rows.count()
    if as_json:
        output.json_line({"count": total})
    else:
        output.line(str(total))
    output.flush()
    ctx.exit(reading.code)
