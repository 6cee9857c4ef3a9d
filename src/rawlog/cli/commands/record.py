"""`rawlog record`: topics of a live cluster to files."""

from __future__ import annotations

from typing import Any

import click

from rawlog.cli import live, options

EXIT_HELP = """
Exit codes: 0 everything asked for is stored; 1 something is missing, which the output names; 2 wrong usage; 3 the cluster cannot be
reached or refuses; 130 interrupted before the end that was asked for. What is stored is valid in each case; --resume continues.
"""


@click.command(
    epilog=options.examples(
        "rawlog record orders --to recording/ -b localhost:9092 --until-end",
        "rawlog record 'orders*' --to orders.parquet --as parquet -F client.properties --since -2h --until-end",
        "rawlog record orders --to messages.log --as replay -b localhost:9092 --limit 1000 --find ERROR",
        more=EXIT_HELP,
    )
)
@click.argument("topics", nargs=-1, metavar="TOPIC...")
@click.option(
    "--to", "--output", "target", required=True, type=options.PATH, metavar="DST", help="Where the recording goes."
)
@click.option(
    "--as",
    "as_",
    type=click.Choice(["native", "replay", "parquet", "lake"]),
    default="native",
    show_default=True,
    help="native: partition directories; replay: a kafka-replay file; parquet; lake.",
)
@live.connection
@click.option("-t", "--topic", "more_topics", multiple=True, metavar="TOPIC", help="The same as TOPIC.")
@click.option(
    "-p",
    "--partition",
    multiple=True,
    type=options.Partitions(),
    metavar="N",
    help="Only these partitions: 3, 0,2 or 4-7.",
)
@click.option("--from-offset", type=int, metavar="N", help="From this offset on.")
@click.option("--to-offset", type=int, metavar="N", help="Up to this offset, which is left out.")
@click.option("--since", metavar="TIME", help="From a time on: ISO 8601, epoch milliseconds, or -2h.")
@click.option("--until", metavar="TIME", help="Up to a time, which is left out.")
@click.option(
    "-o", "start", multiple=True, metavar="OFFSET", help="As kcat's: beginning, end, N, -N (the last N), s@MS, e@MS."
)
@click.option("--until-end", is_flag=True, help="Stop at the end that each partition has now; otherwise wait for more.")
@click.option("-g", "--group", metavar="G", help="Begin where this group stopped, and commit what is stored.")
@click.option("-l", "--limit", type=click.IntRange(1), metavar="N", help="Stop after so many records.")
@click.option("--max-bytes", type=options.Size(), metavar="SIZE", help="Stop after so many bytes: 64M, 1GiB.")
@click.option("-T", "--timeout", metavar="TIME", help="Stop after a time: 30s, 5m.")
@click.option("--key", metavar="TEXT", help="Only records with this key.")
@click.option("--find", metavar="TEXT", help="Only records whose value contains this text.")
@click.option("--where", metavar="EXPR", help="Only records for which an SQL expression over the columns is true.")
@click.option(
    "--isolation",
    type=click.Choice(["read_uncommitted", "read_committed"]),
    default="read_uncommitted",
    show_default=True,
    help="read_committed stops at open transactions, and leaves aborted ones out where records are chosen.",
)
@click.option(
    "--markers", is_flag=True, help="With --as replay: keep transaction markers as entries, as kafka-replay does."
)
@click.option(
    "--option", "own", multiple=True, metavar="NAME=VALUE", help="Of native segments: segment_bytes=134217728 …"
)
@click.option("--resume", is_flag=True, help="Continue the recording at DST.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
@options.json_flag
@click.pass_context
def command(
    ctx: click.Context,
    /,
    topics: tuple[str, ...],
    target: str,
    more_topics: tuple[str, ...],
    quiet: bool,
    as_json: bool,
    own: tuple[str, ...],
    **given: Any,
) -> None:
    """Record the topics TOPIC (names or globs) of a live cluster to DST.

    \b
    native    partition directories as a broker has them: the batches exactly as they were sent, with indexes; whole batches only
    replay    a kafka-replay file of version 2: time in seconds, key, value; DST.offsets.json says where to resume
    parquet   a Parquet file or directory
    lake      tables of a lake, as `rawlog ingest` makes them

    Without an end (--until-end, --to-offset, --until, --limit, --max-bytes, --timeout) it goes on until Ctrl-C. Passwords come from the
    file of -F or from $RAWLOG_KAFKA_SASL_PASSWORD, never from the command line.
    """
    from rawlog.verbs import functions

    given["partition"] = options.numbers(given["partition"])
    given["start"] = given["start"] or None
    with live.running(given, "recording", quiet) as running:
        done = functions.record((*topics, *more_topics), target, option=options.pairs(own), **given, **running)
    ctx.exit(live.show(done, as_json=as_json))
