"""`rawlog rebuild`: a copy with its derived files rebuilt."""

from __future__ import annotations

from typing import Any

import click

from rawlog.cli import mending


@click.command(epilog="Exit codes: 0 done; 1 damage found; 2 wrong usage; 3 cannot be read or written.")
@mending.arguments
@click.pass_context
def command(ctx: click.Context, /, source: str, target: str, own: tuple[str, ...], **given: Any) -> None:
    """Copy SRC to DST with every derived file rebuilt from the data: indexes, producer snapshots and epochs; consume queues
    and key index; index segments and blooms. SRC is never changed, DST must not exist yet. Damaged data is for `repair`.
    """
    mending.run(ctx, "rebuild", source, target, mending.told(own), given)
