"""Upkeep of a lake: what it holds; expire old snapshots, remove leftovers, join small data files.

Safe next to readers and writers: nothing is removed that was current within the time of grace, or that a living writer may be about to
commit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from rawlog.core.errors import AccessError
from rawlog.io.storage import is_remote, listing
from rawlog.jobs.job import Stage
from rawlog.jobs.lake import Lake, commits
from rawlog.jobs.lake.join import SHARE, TARGET, Join
from rawlog.jobs.lake.names import same_files
from rawlog.jobs.lake.state import everything, history_of, newest_first
from rawlog.jobs.lake.writers import living
from rawlog.reading.tree import Tree

#: Seconds that a snapshot stays after it was replaced, and that a file stays that no snapshot lists, unless an option says otherwise.
GRACE = 24 * 3600
#: While somebody writes, files up to this age may belong to a commit that is under way.
YOUNG = 3600
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
    made: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether there was nothing to do."""
        return not (self.expired or self.removed or self.joined)


def status(lake: Lake) -> Iterator[TableStatus]:
    """What every table of a lake holds, from its metadata alone."""
    for name in lake.tables():
        table = _loaded(lake, name)
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
    """Expire snapshots that were replaced longer ago than the time of grace; their number.

    A new snapshot first repeats their record of sources, so that nothing is ever ingested twice.
    """
    old = _expirable(_loaded(lake, name), grace)
    if dry_run or not old:
        return len(old)
    lake.change(
        lambda: _loaded(lake, name), None, lambda table, history: commits.append(table, (), everything(history))
    )

    def forget(table: Any, _: object) -> None:
        present = {snapshot.snapshot_id for snapshot in table.snapshots()}
        table.maintenance.expire_snapshots().by_ids([one for one in old if one in present]).commit()

    lake.change(lambda: _loaded(lake, name), None, forget)
    return len(old)


def _expirable(table: Any, grace: float) -> list[int]:
    """The snapshots whose successor is older than the time of grace: only a reader that began before may still use them."""
    until = (time.time() - grace) * 1000
    newest = newest_first(table)
    return [old.snapshot_id for after, old in pairwise(newest) if after.timestamp_ms < until]


def orphans(lake: Lake, name: str, grace: float = GRACE, *, dry_run: bool = False) -> list[tuple[str, int]]:
    """Remove the files below a table that no snapshot lists, left by dead runs, failed commits and expiry. Path and size of each."""
    table = _loaded(lake, name)
    own = None if lake.writer is None else lake.writer.name
    busy = not is_remote(lake.path) and any(name != own for name in living(lake.path))
    until = time.time() - (max(grace, YOUNG) if busy else grace)
    # Listed first: what is committed from now on is not among them.
    there = [entry for entry in listing(_folder(lake, name)) if entry.modified is None or entry.modified < until]
    named = same_files(_named(lake, _loaded(lake, name)))
    found = [(entry.path, entry.size) for entry in there if not same_files([entry.path]) <= named]
    if not dry_run:
        for path, _ in found:
            lake.remove(path, table)
    return found


def _named(lake: Lake, table: Any) -> set[str]:
    """Every file that a table's metadata list."""
    with lake.access():
        named = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
        for snapshot in table.snapshots():
            named.add(snapshot.manifest_list)
            named |= {manifest.manifest_path for manifest in snapshot.manifests(table.io)}
    return named | lake.named(table)


def join(lake: Lake, name: str, *, dry_run: bool = False, target: int = TARGET) -> tuple[int, int]:
    """Write the rows of small data files of a table into few large ones, here and now; how many there were, and are."""
    job = Join(lake, [name], target)
    if dry_run:
        lots = job.lots()
        return sum(len(lot.urls) for lot in lots), len(lots)
    splits = job.plan(Tree((), ()))
    try:
        done = [job.work(split, Stage(lake.path, f"{split.number:05d}")) for split in splits]
        return job.commit(done).get(name, (0, 0))
    finally:
        job.clean()


def keep(
    lake: Lake,
    *,
    expire_after: float | None,
    clean_after: float | None,
    compact: Callable[[], Mapping[str, tuple[int, int]]] | None = None,
    target: int = TARGET,
    dry_run: bool = False,
) -> Iterator[Change]:
    """Join, expire and remove, as asked. What was done to each table, or would be. `compact` runs the job that joins data files."""
    joined = compact() if compact is not None and not dry_run else {}
    for name in lake.tables():
        change = Change(name)
        if compact is not None:
            change.joined, change.made = (
                join(lake, name, dry_run=True, target=target) if dry_run else joined.get(name, (0, 0))
            )
        if expire_after is not None:
            change.expired = expire(lake, name, expire_after, dry_run=dry_run)
        if clean_after is not None:
            found = orphans(lake, name, clean_after, dry_run=dry_run)
            change.removed = [path for path, _ in found]
            change.removed_size = sum(size for _, size in found)
        yield change


def _loaded(lake: Lake, name: str) -> Any:
    table = lake.load(name)
    if table is None:
        raise AccessError(f"{lake.path}: table {name} no longer exists")
    return table


def _folder(lake: Lake, name: str) -> str:
    return f"{lake.path}/{name.replace('.', '/')}"
