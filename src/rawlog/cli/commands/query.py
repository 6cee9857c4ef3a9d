"""`rawlog query`: Spark SQL over files and lakes."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import click

from rawlog.cli import engine, options, output
from rawlog.errors import OptionError


@click.command()
@click.argument("sql", metavar="SQL")
@click.argument("paths", nargs=-1, required=True, type=options.PATH, metavar="PATH...")
@options.output
@click.option(
    "--errors",
    type=click.Choice(["raise", "skip"]),
    default="raise",
    show_default=True,
    help="At damage in a file: end with exit code 1, or go on behind it.",
)
@engine.spark
def command(sql: str, paths: tuple[str, ...], errors: str, **given: Any) -> None:
    """Ask in SQL, Spark's; the tables of the paths are views.

    A PATH is files or a lake that `ingest` made. Its views are records, files, findings and the tables of its systems, in short or
    whole: batches, kafka.batches, kafka.records. With name=PATH they are name.records and so on, and name alone is its records, so
    that several paths can be asked in one statement. SQL - is read from standard input.

    \b
    rawlog query 'SELECT topic, count(*) FROM records GROUP BY topic' kafka-logs/
    rawlog query 'SELECT * FROM old ANTI JOIN new USING (topic, partition, offset)' old=a/ new=b/ --json
    """
    from rawlog.spark import query

    if sql == "-":
        sql = sys.stdin.read()
    if not sql.strip():
        raise OptionError("no question: SQL expected")
    engine.settings(given["conf"])
    asked = query.sources(paths)
    mode = "FAILFAST" if errors == "raise" else "DROPMALFORMED"
    # Looking at the paths takes as long as the JVM needs to start: both at once, but a bad path is told first.
    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(lambda: [view for source in asked for view in query.views(source, mode)])
        if not looking.done():
            engine.quick(looking)
        session = engine.start(given)
        question = query.Question(session, looking.result())
    frame = question.ask(sql)
    schema = query.table_of(frame)
    printer = output.printer(given, schema)
    with engine.waiting("asking"):
        answer = question.collect(frame)
    if printer.columns is not None:
        answer = answer.select(list(printer.columns))
    with printer:
        printer.begin(answer.schema)
        for batch in answer.to_batches():
            printer.write(batch)
