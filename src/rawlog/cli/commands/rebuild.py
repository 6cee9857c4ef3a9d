"""`rawlog rebuild`: a copy with its derived files rebuilt."""

from __future__ import annotations

from typing import Any

import click

from rawlog.cli import options, output
from rawlog.cli import options as engine


@click.command(
    epilog=options.examples(
        "rawlog rebuild /var/kafka-logs/orders-0 rebuilt/",
        "rawlog rebuild /var/rocketmq/store rebuilt/ --json",
        more="Exit codes: 0 done; 1 damage found; 2 wrong usage; 3 cannot be read or written.",
    )
)
@output.arguments
@click.pass_context
def command(ctx: click.Context, /, source: str, target: str, own: tuple[str, ...], as_json: bool, **given: Any) -> None:
    """Copy SRC to DST with every derived file rebuilt from the data.

    Derived files are indexes, producer snapshots and epochs; consume queues and key index; index segments and bloom filters. SRC is
    never changed, DST must not exist yet. Damaged data is for `rawlog repair`.
    """
    from rawlog.verbs import functions

    with engine.running(given, "rebuilding") as running:
        done = functions.rebuild(source, target, option=options.pairs(own), **given, **running)
    ctx.exit(output.show(done, as_json=as_json))
