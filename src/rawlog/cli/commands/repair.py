"""`rawlog repair`: a repaired copy."""

from __future__ import annotations

from typing import Any

import click

from rawlog.cli import mending


@click.command(
    epilog="Exit codes: 0 done, nothing lost; 1 something had to be dropped, or findings remain; 2 wrong usage; "
    "3 cannot be read or written."
)
@mending.arguments
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
@click.pass_context
def command(
    ctx: click.Context,
    /,
    source: str,
    target: str,
    own: tuple[str, ...],
    policy: str | None,
    dry_run: bool,
    quarantine: str | None,
    move: bool,
    **given: Any,
) -> None:
    """Copy SRC to DST with all that is sound in it, so that the real system opens it; every loss is reported with its place.

    SRC is never changed, DST must not exist yet. Files that are derived from the data are rebuilt.
    """
    chosen = mending.told(own, policy=policy, quarantine=quarantine, move="true" if move else None)
    mending.run(ctx, "repair", source, target, chosen, given, dry_run=dry_run)
