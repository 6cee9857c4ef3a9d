"""`rawlog mirror`: topics of one live cluster to another."""

from __future__ import annotations

from typing import Any

import click

from rawlog.cli import live, options

EXIT_HELP = """
Exit codes: 0 every record was acknowledged; 1 some were not, which the output names; 2 wrong usage; 3 a cluster cannot be reached or
refuses; 130 interrupted before the end that was asked for.
"""


@click.command(
    epilog=options.examples(
        "rawlog mirror 'orders*' -b old:9092 --to new:9092 --exact --create-topic --until-end",
        "rawlog mirror orders -b localhost:9092 --to localhost:9092 --topic-map orders=orders-copy --group mirror",
        more=EXIT_HELP,
    )
)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@live.connection
@click.option("--to", metavar="HOST:PORT", help="Brokers of the target.")
@click.option("--to-config", type=options.PATH, metavar="FILE", help="Client properties for the target.")
@click.option("--topic-map", multiple=True, metavar="OLD=NEW,…", help="Topics that get another name.")
@click.option(
    "--exact",
    is_flag=True,
    help="Keep offsets: into empty topics, or to continue such a mirror. A partition where that is impossible is named; the others go on.",
)
@click.option("--create-topic", "create_topics", is_flag=True, help="Create topics that do not exist.")
@click.option(
    "--partition", multiple=True, type=options.Partitions(), metavar="N", help="Only these partitions: 3, 0,2 or 4-7."
)
@click.option("--from-offset", type=int, metavar="N", help="From this offset on.")
@click.option("--to-offset", type=int, metavar="N", help="Up to this offset, or the end of its batch.")
@click.option("--since", metavar="TIME", help="From a time on: ISO 8601, epoch milliseconds, or -2h.")
@click.option("--until-end", is_flag=True, help="Stop at the end that each partition has now; otherwise wait for more.")
@click.option("--group", metavar="G", help="Begin where this group stopped, and commit what is acknowledged.")
@click.option("--timeout", metavar="TIME", help="Stop after a time: 30s, 5m.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
@options.json_flag
@click.pass_context
def command(
    ctx: click.Context, /, topics: tuple[str, ...], topic_map: tuple[str, ...], quiet: bool, as_json: bool, **given: Any
) -> None:
    """Copy the topics TOPIC (names or globs) of the cluster of -b to the cluster of --to, without a file in between.

    Records are passed on as batches, each acknowledged by all in-sync replicas. Aborted transactions are left out, and others become
    plain records. With --exact each record keeps its offset.
    """
    from rawlog.verbs import functions

    given["partition"] = options.numbers(given["partition"])
    pairs = [pair for text in topic_map for pair in text.split(",") if pair]
    with live.running(given, "mirroring", quiet) as running:
        done = functions.mirror(topics, topic_map=options.pairs(pairs, "--topic-map", "OLD=NEW"), **given, **running)
    ctx.exit(live.show(done, as_json=as_json))
