"""`rawlog compact`: a compacted copy."""

from __future__ import annotations

from typing import Any

import click

from rawlog.cli import options, output
from rawlog.cli import options as engine


@click.command(
    epilog=options.examples(
        "rawlog compact /var/kafka-logs/customers-0 compacted/",
        "rawlog compact /var/kafka-logs compacted/ --topic 'customers*' --option delete.retention.ms=0 --roll",
        "rawlog compact ambry-store/ compacted/ --now 2024-09-11T09:00:00Z",
        more="Exit codes: 0 done; 1 records were lost, or files left out; 2 wrong usage; 3 cannot be read or written.",
    )
)
@output.arguments
@click.option("--topic", multiple=True, metavar="GLOB", help="Kafka: only these topics; may be given again.")
@click.option(
    "--now", metavar="TIME", help="The time to compare ages with: ISO 8601 or epoch milliseconds.  [default: now]"
)
@click.option(
    "--memory",
    type=options.Size(),
    metavar="SIZE",
    help="Kafka: for the map of keys, default 128M; less takes more rounds.",
)
@click.option("--roll", is_flag=True, help="Kafka: compact the active segment too, as if a new one had been begun.")
@click.pass_context
def command(ctx: click.Context, /, source: str, target: str, own: tuple[str, ...], as_json: bool, **given: Any) -> None:
    """Copy SRC to DST without what the real system's own compaction would drop. SRC is never changed.

    --option gives a topic's settings: `delete.retention.ms`, `min.compaction.lag.ms`, `segment.bytes` and others under Kafka's names.
    """
    from rawlog.cli.output import Notes
    from rawlog.verbs import functions

    with engine.running(given, "compacting") as running:
        done = functions.compact(source, target, option=options.pairs(own), note=Notes(), **given, **running)
    ctx.exit(output.show(done, as_json=as_json))
