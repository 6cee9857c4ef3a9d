"""`rawlog repair`: a repaired copy."""

from __future__ import annotations

from typing import Any

import click

from rawlog.cli import options, output
from rawlog.cli import options as engine


@click.command(
    epilog=options.examples(
        "rawlog repair /var/kafka-logs repaired/",
        "rawlog repair orders-0/ repaired/ --dry-run --json",
        "rawlog repair orders-0/ repaired/ --quarantine cut/",
        more="Exit codes: 0 done, nothing lost; 1 something was dropped, corrected or left out, or findings remain; 2 wrong usage; "
        "3 cannot be read or written.",
    )
)
@output.arguments
@click.option(
    "--policy",
    metavar="NAME",
    help="salvage (default) keeps all that is sound, broker (RocketMQ: cut) what the real system would, strict refuses.",
)
@click.option("--dry-run", is_flag=True, help="Only report what would be kept, cut and rebuilt.")
@click.option(
    "--quarantine", metavar="DIR", help="Kafka: keep what is cut here, and the records in it that can still be read."
)
@click.option(
    "--move", is_flag=True, help="RocketMQ: close holes, so that later messages change their physical offsets."
)
@options.html
@click.pass_context
def command(ctx: click.Context, /, source: str, target: str, own: tuple[str, ...], as_json: bool, **given: Any) -> None:
    """Copy SRC to DST with everything that is sound in it, so that the real system opens it. Every loss is reported with its place.

    SRC is never changed, DST must not exist yet. Files that are derived from the data are rebuilt.
    """
    from rawlog.verbs import functions

    with engine.running(given, "repairing") as running:
        done = functions.repair(source, target, option=options.pairs(own), **given, **running)
    ctx.exit(output.show(done, as_json=as_json))
