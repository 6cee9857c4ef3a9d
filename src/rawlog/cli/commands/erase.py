"""`rawlog erase`: a copy without chosen records or blobs."""

from __future__ import annotations

from typing import Any

import click

from rawlog.cli import engine, options, report


@click.command(
    epilog=options.examples(
        "rawlog erase /var/kafka-logs/customers-0 out/ --key customer-17",
        "rawlog erase /var/kafka-logs out/ --keys keys.txt --json",
        "rawlog erase /data/ambry/9 out/ --blob AAYIAQSSAAgAAQAAAAAAAAAJ",
        more="Exit codes: 0 done; 2 wrong usage, or a blob that does not exist; 3 cannot be read or written.",
    )
)
@click.argument("source", type=options.PATH, metavar="SRC")
@click.argument("target", metavar="DST")
@click.option("--blob", multiple=True, metavar="ID", help="A blob of Ambry to erase; may be given again.")
@click.option("--key", multiple=True, metavar="TEXT", help="A key whose Kafka records are erased; may be given again.")
@click.option("--keys", type=click.Path(), metavar="FILE", help="A file with such keys, one per line.")
@click.option(
    "--force",
    is_flag=True,
    help="Replace what exists at DST: Kafka partitions one by one, an Ambry store as a whole.",
)
@engine.engine_by_size
@options.json_flag
@click.pass_context
def command(ctx: click.Context, /, source: str, target: str, as_json: bool, **given: Any) -> None:
    """Copy SRC to DST without chosen records or blobs. SRC is never changed.

    Kafka logs: the records with these keys are left out. All others keep their offsets, times, producers and transactions, as after
    Kafka's own log cleaner, and indexes are rebuilt. `rawlog convert --to kafka --where 'NOT …'` does the same with an expression.

    Ambry stores: the content of these blobs is overwritten with zeros, as Ambry's own hard delete does; sizes, positions, index and
    checksums of the copy are correct.
    """
    from rawlog import api
    from rawlog.cli.notes import Notes

    with engine.running(given, "erasing") as running:
        done = api.erase(source, target, note=Notes(), **given, **running)
    ctx.exit(report.show(done, as_json=as_json))
