"""Folds: tables that are a state, not a stream, such as consumer offsets or a cluster's topics.

They consist of units (a partition, a store, a cluster): when a file of a unit is new or has changed, the whole unit is folded again, and
its rows replace the old ones. Units that a run does not see stay as they are.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rawlog import registry
from rawlog.core.errors import AccessError
from rawlog.core.format import Family, File
from rawlog.core.tables import Table
from rawlog.io.storage import exists
from rawlog.jobs.ingest.replicas import Earlier
from rawlog.jobs.lake import Folded, History
from rawlog.reading import rows
from rawlog.reading.parts import plan
from rawlog.reading.select import Selection
from rawlog.reading.tree import Tree, open_tree

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Fold:
    """A unit of a folded table that is to be folded again."""

    table: str
    unit: str
    files: tuple[File, ...]

    @property
    def size(self) -> int:
        """The bytes of its files."""
        return sum(file.size for file in self.files)

    def state(self, selection: str) -> Folded:
        """Its files, for the lake to record."""
        return Folded(selection, {file.path: (file.size, file.modified) for file in self.files})


def family_of(table: str) -> Family | None:
    """The family that folds a table; None for one that is decoded, file by file."""
    return next((family for family in registry.families() if table in family.folds), None)


def due(table: str, tree: Tree, history: History, selection: str, earlier: Earlier | None = None) -> Iterator[Fold]:
    """The units of a table whose files are not as the lake recorded them. Of what the lake has from `earlier` replicas, only a better one
    is folded, and its rows replace theirs.
    """
    family = family_of(table)
    assert family is not None
    for name, files in family.units_for(table, tree.files_for(family, table)).items():
        unit = name if earlier is None else earlier.unit(name, history.units)
        if unit is None:
            continue
        before = history.units.get(unit)
        fold = Fold(table, unit, (*files, *(_unseen(unit, files, before) if unit == name else ())))
        if before != fold.state(selection) or any(file.modified is None for file in files):
            yield fold


def _unseen(unit: str, files: Sequence[File], before: Folded | None) -> list[File]:
    """Files of the unit that the lake recorded and that still exist, although this run was not given them."""
    seen = {file.path for file in files}
    missing = {path for path in before.sources if path not in seen and exists(path)} if before is not None else set()
    if not missing:
        return []
    roots = [unit] if exists(unit) else sorted({os.path.dirname(path) for path in missing})
    try:
        return [file for file in open_tree(roots) if file.path in missing]
    except AccessError:
        return []


def fold(one: Fold, table: Table, selection: Selection) -> Iterator[pa.RecordBatch]:
    """The rows of a unit. DataError if it cannot be folded."""
    tree = Tree((), one.files)
    for part in plan(tree, table, selection):
        yield from rows.read(part, table, selection)


def by_unit(folds: Sequence[Fold]) -> list[tuple[Fold, ...]]:
    """Folds of the same files together: what one of them reads, the others reuse."""
    groups: dict[str, list[Fold]] = {}
    for one in folds:
        groups.setdefault(one.unit, []).append(one)
    return [tuple(group) for group in groups.values()]


def units(folds: Sequence[Fold], selection: str) -> Mapping[str, Folded]:
    """What the lake records of folds of one table."""
    return {one.unit: one.state(selection) for one in folds}
