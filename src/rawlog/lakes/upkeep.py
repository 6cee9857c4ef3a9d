"""Upkeep of a lake: what it holds; expire old snapshots, remove leftovers, join small data files.

Safe next to readers and writers: nothing is removed that was current within the time of grace, or that a living writer may be about to
commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rawlog.lakes.join import SHARE, TARGET, Join
from rawlog.lakes.lake import Lake
from rawlog.lakes.names import known_tables
from rawlog.lakes.reach import (
    Expire,
    Orphans,
    Remove,
    Run,
    UnlistedFiles,
    load_table,
    run_here,
)
from rawlog.lakes.state import history_of, newest_first

#: Seconds that a snapshot stays after it was replaced, and that a file stays that no snapshot lists, unless an option says otherwise.
GRACE = 24 * 3600
#: Data files below this size are small.
SMALL = TARGET // SHARE


@dataclass(frozen=True, slots=True)
class TableStatus:
    """A table of a lake: rows, data files with their bytes, snapshots, the sources it knows, the time of its last change."""

    name: str
    rows: int
    files: int
    small: int
    size: int
    snapshots: int
    sources: int
    changed: float | None


@dataclass(slots=True)
class Change:
    """What upkeep did to a table, or would do in a dry run."""

    name: str
    expired: int = 0
    removed: list[str] = field(default_factory=list)
    removed_size: int = 0
    joined: int = 0
    written: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether there was nothing to do."""
        return not (self.expired or self.removed or self.joined)


def status(lake: Lake) -> Iterator[TableStatus]:
    """What every table of a lake holds, from its metadata alone."""
    for name in lake.tables():
        table = load_table(lake, name)
        history = history_of(table)
        with lake.access():
            tasks = list(table.scan().plan_files())
        newest = next(iter(newest_first(table)), None)
        yield TableStatus(
            name,
            sum(task.file.record_count for task in tasks),
            len(tasks),
            sum(task.file.file_size_in_bytes < SMALL for task in tasks),
            sum(task.file.file_size_in_bytes for task in tasks),
            len(table.snapshots()),
            len(history.sources) or sum(len(unit.sources) for unit in history.units.values()),
            None if newest is None else newest.timestamp_ms / 1000,
        )


def expire(lake: Lake, name: str, grace: float = GRACE, *, dry_run: bool = False) -> int:
    """Expire snapshots of a table that were replaced longer ago than the time of grace, here and now, and remove what only they listed;
    how many snapshots.
    """
    unlisted = run_here(Expire(lake, [name], grace, dry_run=dry_run)).get(name, UnlistedFiles())
    if not dry_run:
        run_here(Remove(lake, {name: unlisted.files}))
    return int(unlisted.expired)


def orphans(lake: Lake, name: str, grace: float = GRACE, *, dry_run: bool = False) -> list[tuple[str, int]]:
    """Remove the files below a table that no snapshot lists, here and now. Path and size of each."""
    unlisted = run_here(Orphans(lake, [name], grace))[name]
    if not dry_run:
        run_here(Remove(lake, {name: unlisted.files}))
    return list(unlisted.files.items())


def join(lake: Lake, name: str) -> tuple[int, int]:
    """Write the rows of small data files of a table into few large ones, here and now; how many there were, and are."""
    job = Join(lake, [name])
    try:
        counts: tuple[int, int] = run_here(job).get(name, (0, 0))
        return counts
    finally:
        job.clean()


def keep(
    lake: Lake,
    run: Run,
    *,
    expire_after: float | None,
    clean_after: float | None,
    compact: bool = False,
    target: int = TARGET,
    sort_by: Sequence[str] | None = None,
    dry_run: bool = False,
) -> list[Change]:
    """Join, expire and remove, as asked, by jobs that `run` runs. What was done to each table, or would be."""
    changes = {name: Change(name) for name in lake.tables() if name in known_tables()}
    if compact:
        for name, counts in _join_small(lake, run, target, sort_by, dry_run=dry_run).items():
            changes[name].joined, changes[name].written = counts
    outcomes: list[Mapping[str, UnlistedFiles]] = []
    if expire_after is not None:
        outcomes.append(run(Expire(lake, list(changes), expire_after, dry_run=dry_run)))
        _remove(lake, run, outcomes[-1], dry_run=dry_run)
    if clean_after is not None:
        outcomes.append(run(Orphans(lake, list(changes), clean_after)))
        _remove(lake, run, outcomes[-1], dry_run=dry_run)
    for outcome in outcomes:
        for name, unlisted in outcome.items():
            change = changes[name]
            change.expired += unlisted.expired
            change.removed += [path for path in unlisted.files if path not in change.removed]
            change.removed_size += sum(unlisted.files.values())
    return list(changes.values())


def _join_small(
    lake: Lake, run: Run, target: int, sort_by: Sequence[str] | None, *, dry_run: bool
) -> Mapping[str, tuple[int, int]]:
    job = Join(lake, target=target, sort_by=sort_by)
    if dry_run:
        lots = job.lots()
        names = dict.fromkeys(lot.table for lot in lots)
        by_table = {name: [lot for lot in lots if lot.table == name] for name in names}
        return {
            name: (sum(len(lot.urls) for lot in table_lots), len(table_lots)) for name, table_lots in by_table.items()
        }
    try:
        done: Mapping[str, tuple[int, int]] = run(job)
        return done
    finally:
        job.clean()


def _remove(lake: Lake, run: Run, unlisted: Mapping[str, UnlistedFiles], *, dry_run: bool) -> None:
    if not dry_run and any(files.files for files in unlisted.values()):
        run(Remove(lake, {name: files.files for name, files in unlisted.items()}))
