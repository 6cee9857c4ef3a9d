"""`rawlog convert`: any records to another form, or a log without some of its records."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rawlog.cli import engine, options, output
from rawlog.cli.errors import DONE, FOUND, say
from rawlog.cli.mending import told
from rawlog.core.errors import AccessError
from rawlog.core.text import counted, printable

if TYPE_CHECKING:
    from rawlog.jobs.convert import Converted, Outlet

EXIT_HELP = """
Exit codes: 0 done; 1 a loss that was not accepted (nothing is written then), or rows lost to damage under --errors stop or skip; 2 wrong
usage; 3 cannot be read or written. An existing target is left alone unless --force.
"""


@click.command(epilog=EXIT_HELP)
@click.argument("source", nargs=-1, required=True, type=options.PATH, metavar="SRC...")
@click.argument("target", type=options.PATH, metavar="DST")
@click.option("--to", required=True, metavar="FORMAT", help="parquet, jsonl, csv, kafka, replay, rocketmq or ambry.")
@click.option("--as", "as_format", metavar="FORMAT", help="Read every file as this format, whatever it looks like.")
@options.table
@options.selection(columns=False, own="--source-option")
@click.option("--drop-key", multiple=True, metavar="TEXT", help="Leave records of this key out; may be given again.")
@click.option(
    "--drop-keys", type=click.Path(), metavar="FILE", help="Leave records of these keys out: one a line of a file."
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
@click.option("--dry-run", is_flag=True, help="Say what would be lost, and write nothing.")
@engine.engine_by_size
@options.json_flag
@click.pass_context
def command(ctx: click.Context, /, source: tuple[str, ...], target: str, as_json: bool, **given: Any) -> None:
    """Convert the records of SRC, files of any system or a lake, to another form at DST.

    \b
    parquet, jsonl, csv   one file if DST is named so (rows.parquet, rows.jsonl.gz), else a directory with a file a share;
                          of any --table
    kafka                 a log directory; from Kafka itself the batches stay as they are and only records go, unless
                          --option asks for others (codec, batch_bytes, magic …)
    replay                a kafka-replay recording
    rocketmq, ambry       a store directory

    What the target cannot keep is refused by the name of its column, with a count and the place of the first, until --accept-loss
    names it. From Kafka to Kafka, --drop-key and --where leave records out while all others keep their offsets, times and
    transactions; what was removed is told.

    \b
    rawlog convert kafka-logs/ rows.parquet --to parquet --topic 'orders*'
    rawlog convert kafka-logs/orders-0 store/ --to rocketmq --accept-loss offset
    rawlog convert kafka-logs/ clean/ --to kafka --drop-key alice
    """
    from rawlog import registry
    from rawlog.jobs.convert import outlet

    engine.check(given)
    made = outlet(
        given["to"],
        target,
        table=registry.table_named(given["table"]),
        options=told(given["target_options"]),
        accepted=[name.strip() for text in given["accept_loss"] for name in text.split(",") if name.strip()],
        overwrite=given["force"],
    )
    ctx.exit(run(source, made, dropped_keys(given), given, as_json=as_json))


def dropped_keys(given: dict[str, Any]) -> list[bytes]:
    """The keys of `--drop-key` and `--drop-keys`. AccessError for a file that cannot be read."""
    keys = [os.fsencode(text) for text in given["drop_key"]]
    if given["drop_keys"] is not None:
        try:
            lines = Path(given["drop_keys"]).read_bytes().split(b"\n")
        except OSError as error:
            raise AccessError(f"{given['drop_keys']}: {error.strerror or error}") from None
        keys += [line.removesuffix(b"\r") for line in lines if line.removesuffix(b"\r")]
    return keys


def run(source: tuple[str, ...], made: Outlet, drop: list[bytes], given: dict[str, Any], *, as_json: bool) -> int:
    """Convert, and tell what came of it; the exit code."""
    from rawlog.io.storage import is_remote, local_path
    from rawlog.jobs.convert import Convert, source_tree
    from rawlog.jobs.target import LossError
    from rawlog.reading.names import check_names

    selection = options.selection_of(given)
    paths = [path if is_remote(path) else os.path.abspath(local_path(path)) for path in source]
    inputs = [given["drop_keys"]] if given["drop_keys"] is not None else []
    with Convert(made, selection=selection, drop=drop, dry_run=given["dry_run"], inputs=inputs) as job:
        tree = source_tree(paths, made.table, given["as_format"])
        check_names(tree, made.table, selection, lambda text: say(text, "note"))
        engine.choose(given, sum(file.size for file in tree))
        try:
            outcome = engine.run(given, "converting", job, tree)
        except LossError as error:
            if as_json:
                output.json_line({"refused": True, **_losses(error.lost), "rows": error.rows})
            say(error.told("--accept-loss "))
            return FOUND
    for note in outcome.notes:
        say(note, "note")
    if as_json:
        output.json_line(_summary(outcome, made, dry_run=given["dry_run"]))
    else:
        _show(outcome, made, dry_run=given["dry_run"])
    output.flush()
    return FOUND if outcome.damaged or (given["dry_run"] and outcome.refused) else DONE


def _losses(lost: Any) -> dict[str, Any]:
    return {"lost": {one.column: {"rows": one.rows, "first": one.place} for one in lost}}


def _summary(outcome: Converted, made: Outlet, *, dry_run: bool) -> dict[str, Any]:
    return {
        "target": made.path,
        "rows": outcome.rows,
        "dropped": outcome.dropped,
        **_losses(outcome.lost.values()),
        "partitions": {name: account.as_json() for name, account in outcome.accounts.items()},
        "dry_run": dry_run,
    }


def _show(outcome: Converted, made: Outlet, *, dry_run: bool) -> None:
    for name, account in outcome.accounts.items():
        output.line(printable(name))
        for text in account.lines():
            output.line(f"  {printable(text)}")
    for one in outcome.lost.values():
        output.line(printable(f"lost or changed: {one}"))
    if dry_run:
        output.line(f"{counted(outcome.rows, 'row')}; nothing was written")
        return
    dropped = f", {outcome.dropped:,} left out" if outcome.dropped else ""
    output.line(f"{counted(outcome.rows, 'row')}{dropped}: {printable(made.path)}")
