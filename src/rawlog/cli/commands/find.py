"""`rawlog find`: a text anywhere in the records of any system."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rawlog.cli import options
from rawlog.cli.commands import cat

if TYPE_CHECKING:
    from rawlog.reading.rows import Rows


@click.command(
    epilog=options.examples(
        "rawlog find user-4711 /var/kafka-logs /var/rocketmq/store",
        "rawlog find 7F0000010B2C18B4AAC2 store --in id --json",
        "rawlog find '\"card\":\"4111' kafka-logs --in value --topic 'orders*' -n 10",
        more="Exit codes: 0 everything was searched; 1 damage; 2 wrong usage; 3 some files could not be read.",
    )
)
@click.argument("text", metavar="TEXT")
@options.paths
@click.option(
    "--in",
    "within",
    multiple=True,
    type=click.Choice(["key", "value", "headers", "id"]),
    help="Only look at this place; may be given again. Ids are found by index where one exists.",
)
@options.selection()
@options.output
@click.pass_context
def command(ctx: click.Context, /, text: str, paths: tuple[str, ...], within: tuple[str, ...], **given: Any) -> None:
    """Look for TEXT in the keys, values and headers of all records at the PATHs, and among message ids and blob ids."""
    from rawlog.reading.tail import PLACES
    from rawlog.verbs import functions

    def read(table: str, **asked: Any) -> Rows:
        return functions.find(text, paths, within=within or PLACES, **asked)

    ctx.exit(cat.run({**given, "table": "records"}, read, missing=f"{text!r} was not found"))
