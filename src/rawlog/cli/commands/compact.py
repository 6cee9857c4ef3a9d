"""`rawlog compact`: a compacted copy."""

from __future__ import annotations

import click

from rawlog.cli import mending


@click.command(epilog="Exit codes: 0 done; 1 damage found; 2 wrong usage; 3 cannot be read or written.")
@mending.arguments
@click.pass_context
def command(ctx: click.Context, /, source: str, target: str, own: tuple[str, ...], as_json: bool) -> None:
    """Copy SRC to DST without what the real system's own compaction would drop. SRC is never touched."""
    mending.run(ctx, "compact", source, target, mending.told(own), as_json=as_json)
