"""`rawlog ingest`: from directories of broker files to tables people query."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from rawlog.cli import engine, options, output
from rawlog.cli.errors import DONE, FOUND, say
from rawlog.text import printable, size_text

if TYPE_CHECKING:
    from rawlog.jobs.ingest import Ingested


@click.command()
@options.paths
@click.option(
    "--to", "lake", required=True, type=options.PATH, metavar="LAKE", help="The lake: a directory, made if new."
)
@click.option("--tables", metavar="A,B", help="Only these tables, by name.  [default: all that the files have]")
@click.option("--topic", multiple=True, metavar="GLOB", help="Only these topics; may be given again.")
@click.option("--partition", multiple=True, type=options.Partitions(), metavar="N", help="Only these partitions.")
@click.option("--since", metavar="TIME", help="Only rows from a time on: ISO 8601, epoch milliseconds, or -2h.")
@click.option("--until", metavar="TIME", help="Only rows up to a time, which is left out.")
@click.option("--catalog", metavar="NAME", help="A catalog of PyIceberg's configuration instead of the lake's own.")
@engine.engine
@options.json_flag
def command(paths: tuple[str, ...], as_format: str | None, lake: str, as_json: bool, **given: Any) -> int:
    """Decode everything into a lake of queryable tables.

    Every file is recognised, verified and decoded; the rows become Parquet files of Iceberg tables: records, files, findings and
    jobs in namespace rawlog, and the tables of each system in its own. Run again, it takes only what is new, and goes on in files
    that have grown where it ended. Damage does not stop it: sound rows go in, findings say what is lost, the exit code is 1.

    \b
    rawlog ingest kafka-logs/ --to lake
    rawlog query 'SELECT topic, count(*) FROM records GROUP BY topic' lake
    """
    from rawlog.jobs.ingest import Ingest
    from rawlog.select import Selection, parse_columns, parse_time
    from rawlog.storage import is_remote, local_path
    from rawlog.tree import open_tree

    engine.check(given)
    selection = Selection(
        topics=tuple(given["topic"]),
        partitions=tuple(number for part in given["partition"] for number in part),
        since=None if given["since"] is None else parse_time(given["since"]),
        until=None if given["until"] is None else parse_time(given["until"]),
    )
    # A lake outlives the directory it was made from: paths in it are whole.
    whole = [path if is_remote(path) else os.path.abspath(local_path(path)) for path in paths]
    tree = open_tree(whole, format=as_format)
    tables = parse_columns(given["tables"])
    with Ingest(lake, catalog=given["catalog"], tables=tables, selection=selection) as job:
        outcome = job.complete(lambda: engine.run(given, "ingesting", job, tree))
    for path, why in outcome.refused:
        say(f"{path}: {why}; left out, nothing in the lake was changed")
    for note in outcome.notes:
        say(note, "note")
    if as_json:
        output.json_line(_summary(outcome))
    else:
        _show(outcome, given["catalog"])
    return FOUND if outcome.errors or outcome.warnings or outcome.refused else DONE


def _summary(outcome: Ingested) -> dict[str, Any]:
    return {
        "verdict": outcome.verdict,
        "files": outcome.files,
        "unchanged": outcome.unchanged,
        "refused": len(outcome.refused),
        "bytes": outcome.size,
        "errors": outcome.errors,
        "warnings": outcome.warnings,
        "tables": dict(outcome.tables),
        "run": outcome.run,
        "lake": outcome.lake,
    }


def _show(outcome: Ingested, catalog: str | None) -> None:
    from rawlog.cli.grid import aligned

    if outcome.files:
        rows = [["table", "rows added"], *([name, f"{count:,}"] for name, count in outcome.tables.items())]
        for text in aligned(rows, [False, True]):
            output.line(text)
        output.line()
        read = f"{_some(outcome.files, 'file')}, {size_text(outcome.size)} decoded"
        output.line(read + (f"; {outcome.unchanged:,} unchanged" if outcome.unchanged else ""))
        found = f"{_some(outcome.errors, 'error')}, {_some(outcome.warnings, 'warning')}"
        output.line(
            f"{outcome.verdict}: {found}; see the table findings" if outcome.errors + outcome.warnings else "clean"
        )
    else:
        output.line(f"nothing new: {_some(outcome.unchanged, 'file')} as before")
    output.line(f"lake: {printable(outcome.lake)}")
    question = "SELECT * FROM findings"
    output.line(f"  rawlog query '{question}' {printable(outcome.lake)}")
    if catalog is None:
        uri = f"sqlite:///{outcome.lake}/catalog.db"
        output.line(f'  pyiceberg.catalog.load_catalog("rawlog", type="sql", uri="{printable(uri)}")')


def _some(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
