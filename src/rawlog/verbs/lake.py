"""`lake`: what a lake holds, and its maintenance. The work is in `lakes/upkeep.py`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from rawlog.engines.choice import choose
from rawlog.model.errors import OptionError
from rawlog.model.job import Job
from rawlog.model.report import Report
from rawlog.model.text import parse_duration
from rawlog.model.verb import Option, verb
from rawlog.reading.options import Path
from rawlog.reading.select import parse_columns
from rawlog.reading.tree import Tree
from rawlog.verbs.options import CatalogName, Running, settings_of

if TYPE_CHECKING:
    from rawlog.lakes.upkeep import TableStatus


@verb(
    group="ask",
    examples=(
        "rawlog lake lake",
        "rawlog lake lake --compact --expire-snapshots --remove-orphans",
        "rawlog lake lake --compact --sort-by topic,timestamp",
        "rawlog lake lake --remove-orphans --older-than 7d --dry-run",
    ),
    doing="tidying",
)
def lake(
    path: Annotated[Path, "LAKE"],
    *,
    expire_snapshots: Annotated[
        bool,
        "Remove snapshots that were replaced longer ago than --older-than, and the files that only these snapshots list.",
    ] = False,
    remove_orphans: Annotated[
        bool, "Remove files that no snapshot names and that are older than --older-than."
    ] = False,
    compact: Annotated[bool, "Write the rows of small data files into few large ones."] = False,
    older_than: Annotated[
        str | float,
        Option("Keep what was current within this time: 30m, 24h, 7d. Readers may still use it.", metavar="AGE"),
    ] = "24h",
    target_size: Annotated[
        int | None,
        Option(
            "About the size of the data files that --compact writes.  [default: 268435456]",
            least=1 << 20,
            metavar="BYTES",
        ),
    ] = None,
    sort_by: Annotated[
        str | Sequence[str] | None,
        Option(
            "With --compact: sort tables by these columns from now on, and write data files in another order again; "
            "`default`: the order of new tables.",
            metavar="A,B",
            is_repeated=False,
        ),
    ] = None,
    dry_run: Annotated[bool, "Only report what would be done."] = False,
    catalog: CatalogName = None,
    **running: Unpack[Running],
) -> Report:
    """Show what a lake holds, or maintain it.

    Without options, it lists the tables with their rows, data files, snapshots and sources. Maintenance is safe while others read and while
    `ingest` runs: what was current within `older_than` stays, and so does what a run may be about to commit.

    Returns a Report with a part for each table. Without options, the parts have rows, files, small_files, bytes, snapshots, sources,
    changed; with options expired_snapshots, removed_files, removed_bytes, joined_files, made_files. AccessError if there is no lake at
    `path`.

    >>> import rawlog
    >>> report = rawlog.lake("out/python-lake")
    """
    from rawlog.lakes.join import TARGET, Join
    from rawlog.lakes.lake import Lake
    from rawlog.lakes.upkeep import keep, status

    is_kept = expire_snapshots or remove_orphans or compact
    if dry_run and not is_kept:
        raise OptionError("--dry-run goes with --expire-snapshots, --remove-orphans or --compact")
    if sort_by is not None and not compact:
        raise OptionError("--sort-by goes with --compact")
    order = parse_columns(sort_by)
    grace = parse_duration(older_than)
    settings = settings_of(running)
    store = Lake(os.fspath(path), catalog=catalog)
    report = Report("lake", store.path, store.path, is_dry_run=dry_run)
    if not is_kept:
        report.parts = {table.name: _table_report(table) for table in status(store)}
        return report

    def run(job: Job[Any, Any]) -> Any:
        size = sum(lot.size for lot in job.lots()) if isinstance(job, Join) else 0
        return choose(size=size, **settings).run(job, Tree((), ()), running.get("progress"))

    with store:
        for upkeep in keep(
            store,
            run,
            expire_after=grace if expire_snapshots else None,
            clean_after=grace if remove_orphans else None,
            compact=compact,
            target=target_size or TARGET,
            sort_by=order,
            dry_run=dry_run,
        ):
            part = report.parts[upkeep.name] = Report("lake", is_dry_run=dry_run)
            part.counts = {
                "expired_snapshots": upkeep.expired,
                "removed_files": len(upkeep.removed),
                "removed_bytes": upkeep.removed_size,
                "joined_files": upkeep.joined,
                "made_files": upkeep.written,
            }
    return report


def _table_report(table: TableStatus) -> Report:
    """What a table holds."""
    from rawlog.model.text import plain_time

    changed = None if table.changed is None else plain_time(int(table.changed * 1000) * 1000)
    held = Report("lake", facts={"changed": changed})
    held.counts = {"rows": table.rows, "files": table.files, "small_files": table.small, "bytes": table.size}
    held.counts |= {"snapshots": table.snapshots, "sources": table.sources}
    return held
