"""Upkeep of a lake: what it holds; expire old snapshots, remove leftovers, join small data files.

Safe next to readers and writers: nothing is removed that was current within the time of grace, or that a living writer may be about to
commit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from rawlog.core.errors import AccessError
from rawlog.core.tables import Table
from rawlog.io.storage import is_remote, listing
from rawlog.jobs.lake import Lake, commits
from rawlog.jobs.lake.names import data_path, known_tables, lake_name, url
from rawlog.jobs.lake.payload import stored
from rawlog.jobs.lake.state import everything, history_of, newest_first
from rawlog.jobs.lake.writers import living
from rawlog.jobs.sheet import Sheet

#: Seconds that a snapshot stays after it was replaced, and that a file stays that no snapshot lists, unless an option says otherwise.
GRACE = 24 * 3600
#: While somebody writes, files up to this age may belong to a commit that is under way.
YOUNG = 3600
#: Data files below this size are small; joined ones are about as large as the second.
SMALL, JOINED = 32 << 20, 256 << 20
#: Fewer small files than this are left as they are.
FEW = 4


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
    named = _named(lake, _loaded(lake, name))
    found = [(entry.path, entry.size) for entry in there if url(entry.path) not in named]
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


def join(lake: Lake, name: str, *, dry_run: bool = False) -> tuple[int, int]:
    """Write the rows of small data files into few large ones; how many there were, and are. Rows and their order stay the same.

    Folded tables are left as they are: their files are replaced unit by unit.
    """
    table = _loaded(lake, name)
    known = known_tables().get(name)
    if known is None or history_of(table).units:
        return 0, 0
    lots = _lots(lake, table)
    if dry_run or not lots:
        return sum(map(len, lots)), len(lots)
    if lake.writer is None:
        raise AssertionError("only inside `with`")
    run = lake.writer.new_run()
    joined, made = [], []
    for number, lot in enumerate(lots):
        path = f"{data_path(lake.path, name, run)}/joined-{number}.parquet"
        made.append(_rewritten(lake, stored(known), lot, path))
        joined += lot
    old = {str(file.file_path) for file in joined}

    def exchange(target: Any, _: object) -> None:
        present = {str(task.file.file_path) for task in target.scan().plan_files()}
        if not old <= present:
            raise AccessError(f"{lake.path}: {name} was changed meanwhile; nothing was joined")
        commits.exchange(target, [url(path) for path in made], {"rawlog.joined": run}, old.__contains__)

    try:
        lake.change(lambda: _loaded(lake, name), None, exchange)
    finally:
        lake.sweep(run)
    return len(joined), len(made)


def _lots(lake: Lake, table: Any) -> list[list[Any]]:
    """Small data files of one partition that together make about one large file, in the order they were added."""
    with lake.access():
        tasks = [task for task in table.scan().plan_files() if not task.delete_files]
    small = [
        task.file
        for task in tasks
        if task.file.file_size_in_bytes < SMALL and task.file.spec_id == table.spec().spec_id
    ]
    by_partition: dict[str, list[Any]] = {}
    for file in small:
        by_partition.setdefault(repr(file.partition), []).append(file)
    lots: list[list[Any]] = []
    for files in by_partition.values():
        lot: list[Any] = []
        for file in sorted(files, key=lambda one: str(one.file_path)):
            lot.append(file)
            if sum(one.file_size_in_bytes for one in lot) >= JOINED:
                lots.append(lot)
                lot = []
        lots.append(lot)
    return [lot for lot in lots if len(lot) >= FEW]


def _rewritten(lake: Lake, table: Table, files: Sequence[Any], path: str) -> str:
    """One data file with the rows of several."""
    import pyarrow.parquet as pq

    sheet, iceberg = Sheet(path, table), _loaded(lake, lake_name(table))
    with lake.access():
        for file in files:
            with iceberg.io.new_input(str(file.file_path)).open() as stream:
                for batch in pq.ParquetFile(stream).iter_batches(1 << 16):
                    sheet.add(_as(table, batch))
    written = sheet.close()
    assert written is not None
    return written.path


def _as(table: Table, batch: Any) -> Any:
    """A batch with all columns of a table: those that it lacks are null."""
    import pyarrow as pa

    empty = [field for field in table.schema if field.name not in batch.schema.names]
    for field_ in empty:
        batch = batch.append_column(field_, pa.nulls(batch.num_rows, field_.type))
    return batch.select(table.schema.names).cast(table.schema)


def keep(
    lake: Lake, *, expire_after: float | None, clean_after: float | None, compact: bool, dry_run: bool = False
) -> Iterator[Change]:
    """Join, expire and remove, as asked, table by table. What was done to each, or would be."""
    for name in lake.tables():
        change = Change(name)
        if compact:
            change.joined, change.made = join(lake, name, dry_run=dry_run)
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
