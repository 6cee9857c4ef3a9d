"""`rawlog compact`: a compacted copy."""

from __future__ import annotations

from typing import Any

import click

from rawlog.cli import mending
from rawlog.cli.options import Size


@click.command(epilog="Exit codes: 0 done; 1 records were lost; 2 wrong usage; 3 cannot be read or written.")
@mending.arguments
@click.option("--topic", multiple=True, metavar="GLOB", help="Kafka: only these topics; may be given again.")
@click.option("--now", metavar="TIME", help="The time to judge by: ISO 8601 or epoch milliseconds; default the clock.")
@click.option(
    "--memory", type=Size(), metavar="SIZE", help="Kafka: for the map of keys, default 128M; less takes more rounds."
)
@click.option("--roll", is_flag=True, help="Kafka: compact the active segment too, as if a new one had been begun.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    source: str,
    target: str,
    own: tuple[str, ...],
    topic: tuple[str, ...],
    now: str | None,
    memory: int | None,
    roll: bool,
    **given: Any,
) -> None:
    """Copy SRC to DST without what the real system's own compaction would drop. SRC is never touched.

    A topic's settings go by `--option`: `delete.retention.ms`, `min.compaction.lag.ms`, `segment.bytes` and others under Kafka's names.
    """
    chosen = mending.told(
        own,
        topic=",".join(topic) if topic else None,
        now=now,
        memory=None if memory is None else str(memory),
        roll="true" if roll else None,
    )
    mending.run(ctx, "compact", source, target, chosen, given)
