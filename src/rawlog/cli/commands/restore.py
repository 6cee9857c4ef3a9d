"""`rawlog restore`: a data directory that a real broker starts on."""

from __future__ import annotations

from typing import Any

import click

from rawlog.cli import options, output
from rawlog.cli import options as engine


@click.command(
    epilog=options.examples(
        "rawlog restore /var/kafka-logs /restored --until 2024-09-11T09:00:00Z",
        "rawlog restore /disk1 /disk2 /disk3 /restored",
        "rawlog restore lake /restored --topic 'orders*' --rename orders=orders-old",
        more="Exit codes: 0 everything was restored; 1 something was lost, corrected or is damaged; 2 wrong usage; 3 cannot be read or "
        "written.",
    )
)
@click.argument("source", nargs=-1, required=True, type=options.PATH, metavar="SRC...")
@click.argument("target", type=options.PATH, metavar="DST")
@click.option("--topic", multiple=True, metavar="GLOB", help="Only these topics; may be given again.")
@click.option("--rename", multiple=True, metavar="OLD=NEW", help="Give a topic another name; may be given again.")
@click.option("--until", metavar="TIME", help="As it was at a time: ISO 8601, epoch milliseconds, or -2h.")
@click.option(
    "--partitions-only", is_flag=True, help="Only partition directories, to add to the directory of an existing broker."
)
@click.option("--no-offsets", is_flag=True, help="Leave out the committed offsets of consumer groups.")
@options.new_cluster
@options.errors
@options.decode
@options.mask
@click.option(
    "--replicas",
    type=click.Choice(["best", "refuse"]),
    default="best",
    show_default=True,
    help="Of replicas of one partition: restore the best, or end with an error.",
)
@click.option("--force", is_flag=True, help="Replace DST if it exists.")
@engine.engine_by_size
@options.json_flag
@click.pass_context
def command(ctx: click.Context, /, source: tuple[str, ...], target: str, as_json: bool, **given: Any) -> None:
    """Write a data directory that a single-node Kafka broker starts on with the topics of SRC in it.

    SRC is a broker's directory or several, a lake made by `ingest`, Parquet files, or anything that can be read as records. From a
    broker's directory every batch is copied as it is, with offsets, epochs and topic ids; settings, users and access rights come from
    its metadata log. Of replicas of one partition the best is restored as a whole, and that is noted. Offsets of consumer groups are
    committed again. Retention by age is switched off; otherwise a broker would delete old records at once. With --until, transactions
    that were open at that time are aborted. With --mask records are written again, and offsets of groups and settings of topics are
    left out. SRC is never changed. Damage ends the restore with an error unless --errors skip is given.
    """
    from rawlog.verbs import functions

    given["rename"] = options.pairs(given["rename"], "--rename", "OLD=NEW")
    with engine.running(given, "restoring") as running:
        done = functions.restore(source, target, **given, **running)
    ctx.exit(output.show(done, as_json=as_json))
