"""`rawlog formats`: what rawlog knows, without importing what reads it."""

from __future__ import annotations

import click

from rawlog import registry
from rawlog.cli import output
from rawlog.cli.grid import aligned
from rawlog.cli.options import examples, json_flag


@click.command(epilog=examples("rawlog formats", "rawlog formats --json"))
@json_flag
def command(as_json: bool) -> None:
    """List every format: its family, its files, what can be done with it, and the tables it is read as."""
    from rawlog.verbs.doctor import list_formats

    if as_json:
        output.json_rows(list_formats())
        return
    for number, family in enumerate(registry.families()):
        if number:
            output.line()
        output.line(output.style(f"{family.name}: {family.title}", bold=True))
        rows = [
            (
                format.name,
                ", ".join(format.abilities()) or "recognise",
                format.title,
                format.files,
            )
            for format in family.formats
        ]
        for line in aligned(rows, indent="  "):
            output.line(line)
        tables = ["records"] if any("records" in [t.name for t in f.tables] for f in family.formats) else []
        tables += [table.name for table in family.tables]
        output.line(f"  tables: {', '.join(tables) or 'none yet'}")
