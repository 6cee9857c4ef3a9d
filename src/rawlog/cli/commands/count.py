"""`rawlog count`: the number of rows."""

from __future__ import annotations

from typing import Any

import click

from rawlog.cli import options, output


@click.command(
    epilog=options.examples(
        "rawlog count kafka-logs/ --topic orders --since -1d",
        "rawlog count kafka-logs/ --isolation read_committed --json",
        "rawlog count kafka-logs/ --topic orders --decode value=auto --where \"value.status = 'PAID'\"",
        "rawlog count store/ --table rocketmq.messages",
    )
)
@options.paths
@options.table
@options.selection(columns=False)
@options.decode
@options.json_flag
@click.pass_context
def command(
    ctx: click.Context, /, paths: tuple[str, ...], table: str, as_format: str | None, as_json: bool, **given: Any
) -> None:
    """Print the number of rows that `rawlog cat` prints with the same options.

    Where the headers of batches have the number, they alone are read, whatever the codec, and no checksum is compared: `rawlog verify`
    does that, and so does --errors skip. Offsets that do not rise or belong into another file are reported, with exit code 1.
    """
    from rawlog.cli.output import Notes
    from rawlog.verbs import functions

    given["decode"] = options.as_written(given.get("decode") or ())
    notes = Notes()
    total = functions.count(paths, table=table, format=as_format, note=notes, **options.selecting(given))
    if as_json:
        output.json_line({"count": total})
    else:
        output.line(str(total))
    output.flush()
    ctx.exit(notes.code)
