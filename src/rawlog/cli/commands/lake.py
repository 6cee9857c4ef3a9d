"""`rawlog lake`: what a lake holds, and its upkeep."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from rawlog.cli import options, output
from rawlog.core.errors import OptionError
from rawlog.core.text import counted, printable, size_text

if TYPE_CHECKING:
    from rawlog.jobs.lake import Lake
    from rawlog.jobs.lake.upkeep import Change, TableStatus

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


class Age(click.ParamType):  # type: ignore[type-arg]
    """A span of time: `30m`, `24h`, `7d`."""

    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The seconds of it."""
        if isinstance(value, (int, float)):
            return float(value)
        number, unit = value[:-1], value[-1:]
        if unit not in UNITS or not number.isdecimal():
            self.fail(f"{value!r}: a number and s, m, h, d or w expected, as 24h", param, ctx)
        return float(int(number) * UNITS[unit])


@click.command()
@click.argument("path", type=options.PATH, metavar="LAKE")
@click.option(
    "--expire-snapshots", is_flag=True, help="Expire snapshots that were replaced longer ago than --older-than."
)
@click.option(
    "--remove-orphans", is_flag=True, help="Remove files that no snapshot lists and that are older than --older-than."
)
@click.option("--compact", is_flag=True, help="Write the rows of small data files into few large ones.")
@click.option(
    "--older-than",
    type=Age(),
    default="24h",
    show_default=True,
    metavar="AGE",
    help="A time of grace for readers: 30m, 24h, 7d.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be done, and do nothing.")
@click.option(
    "--catalog",
    metavar="NAME",
    help="A catalog of PyIceberg's configuration, or a file NAME.db, instead of the lake's own.",
)
@options.json_flag
def command(path: str, as_json: bool, **given: Any) -> None:
    """What a lake holds, and its upkeep.

    Without options, it lists the tables with their rows, data files, snapshots and sources. Upkeep is safe while others read, and while
    `ingest` runs: what was current within --older-than stays, and so does what a run may be about to commit.

    \b
    rawlog lake lake
    rawlog lake lake --compact --expire-snapshots --remove-orphans
    """
    from rawlog.jobs.lake import Lake
    from rawlog.jobs.lake.upkeep import keep, status

    asked = given["expire_snapshots"] or given["remove_orphans"] or given["compact"]
    if given["dry_run"] and not asked:
        raise OptionError("--dry-run goes with --expire-snapshots, --remove-orphans or --compact")
    lake = Lake(path, catalog=given["catalog"])
    if not asked:
        _status(lake, list(status(lake)), as_json)
        return
    grace = given["older_than"]
    with lake:
        changes = keep(
            lake,
            expire_after=grace if given["expire_snapshots"] else None,
            clean_after=grace if given["remove_orphans"] else None,
            compact=given["compact"],
            dry_run=given["dry_run"],
        )
        _changes(list(changes), as_json, given["dry_run"])


def _status(lake: Lake, tables: list[TableStatus], as_json: bool) -> None:
    from rawlog.cli.grid import aligned

    def when(one: TableStatus) -> str | None:
        if one.changed is None:
            return None
        return datetime.fromtimestamp(one.changed, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    if as_json:
        for one in tables:
            output.json_line(
                {
                    "table": one.name,
                    "rows": one.rows,
                    "files": one.files,
                    "small_files": one.small,
                    "bytes": one.size,
                    "snapshots": one.snapshots,
                    "sources": one.sources,
                    "changed": when(one),
                }
            )
        return
    rows = [["table", "rows", "files", "size", "snapshots", "sources", "changed"]]
    for one in tables:
        counts = [f"{count:,}" for count in (one.rows, one.files)]
        more = [size_text(one.size), f"{one.snapshots:,}", f"{one.sources:,}", when(one) or ""]
        rows.append([printable(one.name), *counts, *more])
    for text in aligned(rows, [False, True, True, True, True, True, False]):
        output.line(text)
    output.line()
    total = size_text(sum(one.size for one in tables))
    output.line(
        f"{counted(len(tables), 'table')}, {total} in {counted(sum(one.files for one in tables), 'data file')}: {printable(lake.path)}"
    )


def _changes(changes: list[Change], as_json: bool, dry_run: bool) -> None:
    if as_json:
        for one in changes:
            output.json_line(
                {
                    "table": one.name,
                    "expired_snapshots": one.expired,
                    "removed_files": len(one.removed),
                    "removed_bytes": one.removed_size,
                    "joined_files": one.joined,
                    "made_files": one.made,
                    "dry_run": dry_run,
                }
            )
        return
    for one in changes:
        if one.is_empty:
            continue
        words = []
        if one.joined:
            words.append(f"{one.joined:,} small files into {one.made:,}")
        if one.expired:
            words.append(f"{one.expired:,} snapshots expired")
        if one.removed:
            words.append(f"{counted(len(one.removed), 'file')} removed ({size_text(one.removed_size)})")
        output.line(f"{printable(one.name)}: {'; '.join(words)}")
    done = sum(not one.is_empty for one in changes)
    if not done:
        output.line("nothing to do")
    elif dry_run:
        output.line("a dry run: nothing was changed")
