"""`rawlog convert`: any records to another form, or a log without some of its records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rawlog.cli import (
    options,
    output,
)
from rawlog.cli import (
    options as engine,
)
from rawlog.cli import (
    output as report,
)
from rawlog.cli.logs import say
from rawlog.model.errors import FOUND
from rawlog.model.text import printable

if TYPE_CHECKING:
    from rawlog.lakes.loss_check import LossError

EXIT_HELP = """
Exit codes: 0 done; 1 a loss that was not accepted (nothing is written then), rows lost to damage under --errors stop or skip, or values
that were not decoded; 2 wrong usage; 3 cannot be read or written. An existing target is not changed unless --force is given.
"""


@click.command(
    epilog=options.examples(
        "rawlog convert kafka-logs/ rows.parquet --to parquet --topic 'orders*'",
        "rawlog convert kafka-logs/ orders.parquet --to parquet --topic orders --decode value=auto",
        "rawlog convert kafka-logs/orders-0 store/ --to rocketmq --accept-loss offset",
        "rawlog convert kafka-logs/ clean/ --to kafka --drop-key alice",
        "rawlog convert kafka-logs/ shared/ --to kafka --mask value.card=hash,key=hash --mask-secret-file secret.txt",
        "rawlog convert kafka-logs/ shared/ --to kafka --topic orders --mask value.card=hash --decode value=auto",
        more=EXIT_HELP,
    )
)
@click.argument("source", nargs=-1, required=True, type=options.PATH, metavar="SRC...")
@click.argument("target", type=options.PATH, metavar="DST")
@click.option("--to", required=True, metavar="FORMAT", help="parquet, jsonl, csv, kafka, replay, rocketmq or ambry.")
@click.option("--as", "as_format", metavar="FORMAT", help="Read every file as this format, whatever it looks like.")
@options.table
@options.selection(own="--source-option")
@options.decode
@options.mask
@click.option("--drop-key", multiple=True, metavar="TEXT", help="Leave out records with this key; may be given again.")
@click.option(
    "--drop-keys", type=click.Path(), metavar="FILE", help="Leave out records with these keys: a file, one per line."
)
@click.option(
    "--option",
    "target_options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Of the target: codec=zstd, batch_bytes=65536 …",
)
@click.option("--accept-loss", multiple=True, metavar="A,B", help="Columns that the target may lose or change.")
@click.option("--force", is_flag=True, help="Replace what is at DST.")
@click.option("--dry-run", is_flag=True, help="Only report what would be lost, and write nothing.")
@engine.engine_by_size
@options.json_flag
@click.pass_context
def command(
    ctx: click.Context,
    /,
    source: tuple[str, ...],
    target: str,
    as_format: str | None,
    target_options: tuple[str, ...],
    as_json: bool,
    **given: Any,
) -> None:
    """Convert the records of SRC, files of any system or a lake, to another form at DST.

    \b
    parquet, jsonl, csv   one file if DST has that ending (rows.parquet, rows.jsonl.gz), else a directory with several files;
                          of any --table
    kafka                 a log directory; from Kafka itself the batches stay as they are and only records are left out,
                          unless --option asks for others (codec, batch_bytes, magic …)
    replay                a kafka-replay recording
    rocketmq, ambry       a store directory

    What the target cannot keep is refused by the name of its column, with a count and the place of the first, until --accept-loss
    names it. From Kafka to Kafka, --drop-key and --where leave records out while all others keep their offsets, times and
    transactions; what was removed is reported.
    """
    from rawlog.cli.output import Notes
    from rawlog.lakes.loss_check import LossError
    from rawlog.verbs import functions

    try:
        with engine.running(given, "converting") as running:
            asked = options.selecting(given)
            asked["source_option"] = asked.pop("option")
            done = functions.convert(
                source,
                target,
                format=as_format,
                option=options.pairs(target_options),
                note=Notes(),
                **asked,
                **given,
                **running,
            )
    except LossError as error:
        ctx.exit(refuse(error, as_json=as_json))
    closing = "nothing was written" if done.is_dry_run else f"{done.verb}: {printable(done.target)}"
    ctx.exit(report.show(done, as_json=as_json, closing=closing))


def refuse(error: LossError, *, as_json: bool) -> int:
    """Print what would be lost and was not accepted; the exit code."""
    if as_json:
        lost = {one.column: {"rows": one.rows, "first": one.place} for one in error.lost}
        output.json_line({"refused": True, "lost": lost, "rows": error.rows})
    say(error.message("--accept-loss "))
    return FOUND
