"""`rawlog replay`: recorded records to topics of a live cluster."""

from __future__ import annotations

from typing import Any

import click

from rawlog.cli import live, options
from rawlog.model.errors import OptionError

EXIT_HELP = """
Exit codes: 0 every record was acknowledged; 1 some were not, which the output names; 2 wrong usage; 3 the source cannot be read, or the
cluster cannot be reached or refuses; 130 interrupted. With --checkpoint the same command continues where it stopped.
"""


@click.command(
    epilog=options.examples(
        "rawlog replay recording/ -b localhost:9092 --topic-map orders=orders-copy",
        "rawlog replay messages.log -b localhost:9092 --to-topic orders --pace recorded --speed 10",
        "rawlog replay lake/ -F client.properties --rate 1000 --partition-by key --checkpoint orders.state",
        more=EXIT_HELP,
    )
)
@click.argument("source", nargs=-1, type=options.PATH, metavar="SRC...")
@live.connection
@click.option("-i", "--input", "more_sources", multiple=True, type=options.PATH, metavar="SRC", help="The same as SRC.")
@click.option("--topic-map", multiple=True, metavar="OLD=NEW,…", help="Topics that get another name.")
@click.option("-t", "--to-topic", metavar="TOPIC", help="The topic of all records that --topic-map does not name.")
@click.option(
    "--partition-by",
    type=click.Choice(["original", "key", "round-robin"]),
    default="original",
    show_default=True,
    help="key: as Java's default partitioner. Records without a partition go round-robin.",
)
@click.option(
    "--timestamps",
    type=click.Choice(["original", "now", "shift"]),
    default="original",
    show_default=True,
    help="shift: the first record is now, all others as far from it as they were.",
)
@click.option("--pace", type=click.Choice(["recorded", "max"]), default="max", show_default=True, help="How fast.")
@click.option("--speed", type=float, metavar="X", help="So many times as fast as recorded.")
@click.option("--rate", type=float, metavar="N", help="So many records per second, evenly spaced.")
@click.option(
    "--loop", type=int, default=1, show_default=True, metavar="N", help="Repeat the source N times; 0: until Ctrl-C."
)
@click.option(
    "--keep-batches", is_flag=True, help="Send the batches of partition directories as they are, however small."
)
@click.option(
    "--checkpoint", type=options.PATH, metavar="FILE", help="Keep in a file what was acknowledged; continue from it."
)
@click.option("--create-topic", "create_topics", is_flag=True, help="Create topics that do not exist.")
@click.option("--partitions", type=click.IntRange(1), metavar="N", help="Partitions of topics that are created.")
@click.option("--topic", multiple=True, metavar="GLOB", help="Only these topics of SRC; may be given again.")
@click.option(
    "--partition", multiple=True, type=options.Partitions(), metavar="N", help="Only these partitions: 3, 0,2 or 4-7."
)
@click.option("--from-offset", type=int, metavar="N", help="From this offset on.")
@click.option("--to-offset", type=int, metavar="N", help="Up to this offset, which is left out.")
@click.option("--since", metavar="TIME", help="From a time on: ISO 8601, epoch milliseconds, or -2h.")
@click.option("--until", metavar="TIME", help="Up to a time, which is left out.")
@click.option("--key", metavar="TEXT", help="Only records with this key.")
@click.option("--find", metavar="TEXT", help="Only records whose value contains this text.")
@click.option("--where", metavar="EXPR", help="Only records for which an SQL expression over the columns is true.")
@click.option("-l", "--limit", type=click.IntRange(1), metavar="N", help="At most so many records.")
@click.option(
    "--isolation",
    type=click.Choice(["read_uncommitted", "read_committed"]),
    help="read_committed sends committed transactions as plain records, without aborted ones. Default: transactions are repeated.",
)
@options.errors
@options.decode
@options.mask
@click.option(
    "--query", "sql", metavar="SQL", help="Send the rows of a question to SRC; its columns are those of `records`."
)
@click.option("--dry-run", is_flag=True, help="Read everything and look at the topics, but send nothing.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
@options.json_flag
@click.pass_context
def command(
    ctx: click.Context,
    /,
    source: tuple[str, ...],
    more_sources: tuple[str, ...],
    topic_map: tuple[str, ...],
    sql: str | None,
    quiet: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Send the records of SRC to topics of a live cluster: partition directories, a kafka-replay file, Parquet, or a lake.

    Each record is acknowledged by all in-sync replicas and is there once, also if brokers restart or leaders move meanwhile. Without
    --topic-map or --to-topic each goes to the topic of its own name. Key, value, headers and time are kept; offsets are given by the
    broker. Transactions of partition directories and lakes are repeated as transactions, unless rows are chosen or paced. Small
    batches are put together unless --keep-batches is given.
    """
    from rawlog.verbs import functions

    paths = (*source, *more_sources)
    if not paths:
        raise OptionError("no source is named: SRC expected")
    given["partition"] = options.numbers(given["partition"])
    given["topic"] = given["topic"] or None
    pairs = [pair for text in topic_map for pair in text.split(",") if pair]
    with live.running(given, "replaying", quiet) as running:
        records: Any = paths
        if sql is not None:
            with functions.query(sql, paths, engine="duckdb") as answer:
                records = answer.to_arrow()
        done = functions.replay(records, topic_map=options.pairs(pairs, "--topic-map", "OLD=NEW"), **given, **running)
    ctx.exit(live.show(done, as_json=as_json))
