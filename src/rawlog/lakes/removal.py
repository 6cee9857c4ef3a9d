"""Removal: rows taken out of a table's data files: those of sources that were rewritten, or that were inspected again.

A data file that holds such rows is written again without them, in a task; the commit that adds the new rows exchanges the two. Which data
files may hold them is known from the bounds in Iceberg's manifests. Older snapshots keep the old files.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rawlog.io.storage import file_system
from rawlog.lakes.parquet import Sheets, WrittenFile
from rawlog.lakes.payload import ROW, SPLIT, fit_batch, stored
from rawlog.lakes.state import History, RowRange
from rawlog.model.errors import AccessError
from rawlog.model.table import Table

if TYPE_CHECKING:
    import pyarrow as pa

PATH, CODE = "path", "code"
#: Between a code and a path; neither has it.
BETWEEN = "\n"
#: Rows that are read at a time.
ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class Removal:
    """Which rows are to be removed: those of some paths, findings with some codes at some paths, or some ranges of rows of `records`."""

    paths: frozenset[str] = frozenset()
    ranges: tuple[RowRange, ...] = ()
    #: Codes and paths.
    findings: frozenset[tuple[str, str]] = frozenset()

    @property
    def columns(self) -> list[str]:
        """The columns that identify rows."""
        if self.ranges:
            return [SPLIT, ROW]
        return [PATH, CODE] if self.findings else [PATH]

    @property
    def values(self) -> list[str]:
        """The values of the first of these columns, sorted."""
        if self.ranges:
            return sorted({split for split, _, _ in self.ranges})
        return sorted({*self.paths, *(path for _, path in self.findings)})

    def only(self, values: Collection[str]) -> Removal:
        """What is to be removed of rows with some values of the first column."""
        wanted = set(values)
        return Removal(
            self.paths & wanted,
            tuple(rows for rows in self.ranges if rows[0] in wanted),
            frozenset(finding for finding in self.findings if finding[1] in wanted),
        )

    def mask(self, batch: pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which rows of a batch are to be removed."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if not self.ranges:
            paths = batch.column(PATH).cast(pa.string())
            chosen = pc.is_in(paths, value_set=pa.array(sorted(self.paths), pa.string()))
            if self.findings:
                pairs = pa.array(sorted(f"{code}{BETWEEN}{path}" for code, path in self.findings), pa.string())
                codes_and_paths = pc.binary_join_element_wise(batch.column(CODE).cast(pa.string()), paths, BETWEEN)
                chosen = pc.or_(chosen, pc.is_in(codes_and_paths, value_set=pairs))
            return np.asarray(chosen.fill_null(False).to_numpy(zero_copy_only=False), np.bool_)
        numbers = batch.column(ROW).fill_null(-1).to_numpy()
        splits = batch.column(SPLIT).cast(pa.string()).dictionary_encode()
        codes = splits.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        names = {name: code for code, name in enumerate(splits.dictionary.to_pylist())}
        mask = np.zeros(batch.num_rows, np.bool_)
        for split, first, stop in self.ranges:
            if split in names:
                mask |= (codes == names[split]) & (numbers >= first) & (numbers < stop)
        return mask


@dataclass(frozen=True, slots=True)
class OldFile:
    """A data file that may hold rows to be removed."""

    table: str
    url: str
    size: int
    removal: Removal
    #: The columns that it has.
    stored: Table


@dataclass(frozen=True, slots=True)
class ThinnedFile:
    """A data file that held rows to be removed, how many, and the files with the rest of its rows."""

    table: str
    url: str
    rows: int
    written: tuple[WrittenFile, ...] = field(default=())


def findings_among(urls: Iterable[str], codes: Collection[str]) -> set[tuple[str, str]]:
    """Code and path of the findings with some codes in data files of `findings`. AccessError if one cannot be read."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    findings: set[tuple[str, str]] = set()
    wanted = pa.array(sorted(codes), pa.string())
    for url in urls:
        system, inner = file_system(url)
        try:
            with pq.ParquetFile(system.open_input_file(inner)) as file:
                for batch in file.iter_batches(ROWS, columns=[CODE, PATH]):
                    chosen = batch.filter(pc.is_in(batch.column(CODE).cast(pa.string()), value_set=wanted))
                    findings.update(zip(*(chosen.column(name).to_pylist() for name in (CODE, PATH)), strict=True))
        except (OSError, pa.ArrowException) as error:
            if isinstance(error, AccessError):
                raise
            raise AccessError(f"{url}: {str(error).splitlines()[0]}") from None
    return findings


def old_files(lake: Any, columns: Table, table: Any, removal: Removal, without: Collection[str] = ()) -> list[OldFile]:
    """The data files of an Iceberg table that may hold rows to be removed, by the bounds in its manifests.

    `columns` is the table as rawlog knows it. `without` are data files that are known not to.
    """
    name = columns.name
    column = removal.columns[0]
    field_ids = [field.field_id for field in table.schema().fields if field.name == column]
    values = removal.values
    if not values or not field_ids:
        return []
    with lake.access():
        tasks = list(table.scan().plan_files())
    if any(task.delete_files for task in tasks):
        raise AccessError(f"{lake.path}: table {name} has delete files; compact it with the engine that wrote them")
    files = []
    for task in tasks:
        least, greatest = (
            (bounds or {}).get(field_ids[0]) for bounds in (task.file.lower_bounds, task.file.upper_bounds)
        )
        chosen = _between(values, least, greatest)
        if chosen and str(task.file.file_path) not in without:
            part = removal.only(chosen)
            files.append(
                OldFile(name, str(task.file.file_path), int(task.file.file_size_in_bytes), part, stored(columns))
            )
    return files


def _between(values: Sequence[str], least: bytes | None, greatest: bytes | None) -> Sequence[str]:
    """Those of some sorted values that are within the bounds of a data file; an upper bound may be cut short, and is then raised."""
    start = 0 if least is None else bisect_left(values, least, key=str.encode)
    if greatest is None:
        return values[start:]
    stop = start
    while stop < len(values) and values[stop].encode() <= greatest:
        stop += 1
    return values[start:stop]


def thin(old: OldFile, sheets: Sheets) -> ThinnedFile | None:
    """Write the rows of a data file that stay to `sheets`, which has nothing else; None if no row of it is to be removed.

    AccessError if it cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    system, path = file_system(old.url)
    try:
        with pq.ParquetFile(system.open_input_file(path)) as file:
            count = 0
            for batch in file.iter_batches(ROWS, columns=old.removal.columns):
                count += int(old.removal.mask(batch).sum())
            if count == 0:
                return None
            if count < file.metadata.num_rows:
                for batch in file.iter_batches(ROWS):
                    kept = pa.array(~old.removal.mask(batch))
                    sheets.add(old.stored, fit_batch(old.stored, batch.filter(kept)))
    except (OSError, pa.ArrowException) as error:
        if isinstance(error, AccessError):
            raise
        raise AccessError(f"{old.url}: {str(error).splitlines()[0]}") from None
    return ThinnedFile(old.table, old.url, count, sheets.close())


def rows_of(
    paths: Iterable[str], history: History, systems: Iterable[Any]
) -> tuple[dict[str, tuple[RowRange, ...]], set[str]]:
    """Which rows of `records` came from some sources, and the sources whose rows are unknown.

    A lake of an older rawlog did not record it. Then the rows of the systems' tables (Iceberg tables `systems`) that came from the
    source tell it, if each of them refers to a row of `records`.
    """
    rows = {path: history.rows[path] for path in paths if path in history.rows}
    missing = {path for path in paths if path not in rows}
    if not missing:
        return rows, set()
    ranges_by_path: dict[str, dict[str, tuple[int, int]]] = {}
    unclear: set[str] = set()
    for table in systems:
        for path, split, row in _references(table, missing):
            if row is None:
                unclear.add(path)
                continue
            ranges = ranges_by_path.setdefault(path, {})
            least, greatest = ranges.get(split, (row, row))
            ranges[split] = min(least, row), max(greatest, row)
    for path in ranges_by_path.keys() - unclear:
        rows[path] = tuple((split, first, last + 1) for split, (first, last) in ranges_by_path[path].items())
    return rows, missing - rows.keys()


def _references(table: Any, paths: Collection[str]) -> Iterable[tuple[str, str, int | None]]:
    from pyiceberg import expressions

    make: Any = expressions.In
    names = {field.name for field in table.schema().fields}
    if not {PATH, SPLIT, ROW} <= names:
        scan = table.scan(row_filter=make(PATH, sorted(paths)), selected_fields=(PATH,))
        return ((row[PATH], "", None) for row in scan.to_arrow().to_pylist())
    scan = table.scan(row_filter=make(PATH, sorted(paths)), selected_fields=(PATH, SPLIT, ROW))
    return ((row[PATH], row[SPLIT], row[ROW]) for row in scan.to_arrow().to_pylist())


def merge_ranges(rows: Mapping[str, Iterable[RowRange]]) -> tuple[RowRange, ...]:
    """The ranges of several sources, joined where one begins at the end of another."""
    joined: list[RowRange] = []
    for split, first, stop in sorted(row_range for ranges in rows.values() for row_range in ranges):
        if joined and joined[-1][0] == split and joined[-1][2] >= first:
            joined[-1] = split, joined[-1][1], max(stop, joined[-1][2])
        else:
            joined.append((split, first, stop))
    return tuple(joined)
