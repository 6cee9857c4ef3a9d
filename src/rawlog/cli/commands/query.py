"""`rawlog query`: SQL over files and lakes."""

from __future__ import annotations

import sys
from typing import Any

import click

from rawlog.cli import asking, options, output
from rawlog.core.errors import OptionError


@click.command()
@click.argument("sql", metavar="SQL")
@click.argument("paths", nargs=-1, required=True, type=options.PATH, metavar="PATH...")
@asking.asking
def command(sql: str, paths: tuple[str, ...], **given: Any) -> None:
    """Ask in SQL; the tables of the paths are views.

    A PATH is files or a lake that `ingest` made. Its views are records, files, findings and the tables of its systems, in short or
    whole: batches, kafka.batches, kafka.records. With name=PATH they are name.records and so on, and name alone is its records, so
    that several paths can be asked in one statement. SQL - is read from standard input.

    \b
    rawlog query 'SELECT topic, count(*) FROM records GROUP BY topic' kafka-logs/
    rawlog query 'SELECT * FROM old ANTI JOIN new USING (topic, partition, offset)' old=a/ new=b/ --json
    rawlog query 'SELECT kafka_partition(key, 6) AS p, count(*) FROM records GROUP BY p' kafka-logs/ --engine duckdb
    """
    if sql == "-":
        sql = sys.stdin.read()
    sql = sql.strip().removesuffix(";")
    if not sql.strip():
        raise OptionError("no question: SQL expected")
    with asking.open_engine(given, paths, sql) as engine:
        asking.show(given, lambda: engine.ask(sql))
    output.flush()
