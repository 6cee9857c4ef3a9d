"""`rawlog query`: SQL over files and lakes."""

from __future__ import annotations

import sys
from typing import Any

import click

from rawlog.cli import asking, options, output


@click.command(
    epilog=options.examples(
        "rawlog query 'SELECT topic, count(*) FROM records GROUP BY topic' kafka-logs/",
        "rawlog query 'SELECT * FROM old ANTI JOIN new USING (topic, partition, offset)' old=a/ new=b/ --json",
        "rawlog query 'SELECT * FROM findings' --catalog lakehouse",
        "rawlog query 'SELECT kafka_partition(key, 6) AS p, count(*) FROM records GROUP BY p' kafka-logs/ --engine duckdb",
    )
)
@click.argument("sql", metavar="SQL")
@click.argument("paths", nargs=-1, type=options.PATH, metavar="[PATH...]")
@asking.asking
@click.pass_context
def command(ctx: click.Context, /, sql: str, paths: tuple[str, ...], **given: Any) -> None:
    """Answer a question in SQL; the tables of the paths are views.

    A PATH is files or a lake that `ingest` made. Its views are records, files, findings and the tables of its systems, under their
    short or full names: batches, kafka.batches, kafka.records. With name=PATH they are name.records and so on, and name alone is its
    records, so that one statement can use several paths. --catalog is a lake too: the one whose tables a catalog has. SQL - is read from
    standard input. Exit code 1: with --decode, some keys or values were not decoded.
    """
    from rawlog.verbs import functions

    if sql == "-":
        sql = sys.stdin.read()
    with asking.engine_options(given) as chosen:
        answer = functions.query(sql, paths, **chosen)
    with answer:
        asking.show(given, answer)
    output.flush()
    ctx.exit(chosen["note"].code)
