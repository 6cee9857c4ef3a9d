"""State: what the snapshots of a table record of the sources that its rows came from.

It is in the summary of each commit, so rows and the record of them arrive together. A commit records what it changed; one that is
a *base* records everything, and nothing older need be read or kept.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rawlog.model.format import File

#: Text from this size on is kept compressed.
PACKED = 1 << 14
#: How much of such a list is decoded at a time, in characters; it is divided between two lists in it.
PIECE, BETWEEN = 1 << 20, "],["


class SourceProgress(NamedTuple):
    """How much of a source file a table holds: every byte before `stop`, in `frames` frames.

    `size` and `modified` are the file's own when it was last read; `mark` is a checksum of some of the bytes before `stop`: it tells
    a file that grew from another of the same name.
    """

    size: int
    modified: float | None
    stop: int
    frames: int
    mark: int


#: Rows of `rawlog.records` that one split of a run wrote, one after another: `lake_split`, the first `lake_row`, the one after the last.
RowRange = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class UnitSources:
    """What the rows of a unit of a folded table were made of: the selection, and size and time of every file."""

    selection: str
    sources: Mapping[str, tuple[int, float | None]]


@dataclass(frozen=True, slots=True)
class History:
    """What a table's snapshots record: the runs; for each source how far it is in and under which selection, if there was one; the
    folded units.
    """

    runs: frozenset[str]
    sources: Mapping[str, SourceProgress]
    selections: Mapping[str, str]
    units: Mapping[str, UnitSources]
    #: Of `rawlog.records`: which of its rows came from a source. A source that is missing here was ingested by an older rawlog.
    rows: Mapping[str, tuple[RowRange, ...]] = field(default_factory=dict)
    #: Of `rawlog.files`: the facts that identified a store when it was last inspected, by directory.
    stores: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class Memory:
    """What is in memory already of the sources that tables record: used instead of copies, since there may be millions."""

    def __init__(self, files: Iterable[File] = ()) -> None:
        self.files = {file.path: file for file in files}
        self.paths: dict[str, str] = {}

    def taken(self, path: str, size: int, modified: float | None, stop: int, *more: int) -> tuple[str, SourceProgress]:
        """A path and what a table holds of it."""
        file = self.files.get(path)
        if file is None:
            path = self.paths.setdefault(path, path)
        else:
            path = file.path
            size = file.size if size == file.size else size
            modified = file.modified if modified == file.modified else modified
        return path, SourceProgress(size, modified, size if stop == size else stop, *more)


def history_of(table: Any | None, memory: Memory | None = None) -> History:
    """What a table (None: it does not exist) has ingested, from its snapshots: the newest first, back to the last base."""
    memory = memory or Memory()
    runs: set[str] = set()
    sources: dict[str, SourceProgress] = {}
    selections: dict[str, str] = {}
    units: dict[str, UnitSources] = {}
    rows: dict[str, list[RowRange] | None] = {}
    #: Sources whose rows a newer commit removed: what older ones record of them is void.
    removed: set[str] = set()
    stores: dict[str, tuple[str, ...]] = {}
    for snapshot in newest_first(table):
        summary = snapshot.summary.additional_properties if snapshot.summary is not None else {}
        if "rawlog.run" in summary:
            runs.add(summary["rawlog.run"])
        others, selection = dict(_unpack(summary.get("rawlog.selections", "[]"))), summary.get("rawlog.selection", "")
        ranges = _unpack(summary["rawlog.rows"]) if "rawlog.rows" in summary else None
        for path, *values in _unpack(summary.get("rawlog.sources", "[]")):
            if path in removed:
                continue
            if path not in sources:
                path, taken = memory.taken(path, *values)
                sources[path] = taken
                if chosen := others.get(path, selection):
                    selections[path] = chosen
            if ranges is None:
                rows[path] = None
        for path, new_ranges in ranges or ():
            if path in removed:
                continue
            if new_ranges is None:
                rows[path] = None
            elif (ranges_so_far := rows.setdefault(path, [])) is not None:
                ranges_so_far.extend((split, first, stop) for split, first, stop in new_ranges)
        for name, chosen, files in _unpack(summary.get("rawlog.units", "[]")):
            units.setdefault(name, UnitSources(chosen, {path: (size, modified) for path, size, modified in files}))
        for path, *facts in _unpack(summary.get("rawlog.stores", "[]")):
            stores.setdefault(path, tuple(facts))
        removed.update(_unpack(summary.get("rawlog.removed", "[]")))
        if "rawlog.base" in summary:
            break
    known_rows = {path: tuple(known_ranges) for path, known_ranges in rows.items() if known_ranges is not None}
    return History(frozenset(runs), sources, selections, units, known_rows, stores)


def newest_first(table: Any | None) -> list[Any]:
    """The snapshots of a table."""
    return [] if table is None else sorted(table.snapshots(), key=lambda snapshot: -(snapshot.sequence_number or 0))


def summary_of(
    run: str,
    sources: Mapping[str, SourceProgress],
    selection: str,
    units: Mapping[str, UnitSources],
    *,
    removed: Collection[str] = (),
    rows: Mapping[str, Collection[RowRange]] | None = None,
    stores: Mapping[str, tuple[str, ...]] | None = None,
) -> dict[str, str]:
    """The record of the sources that a commit changed. `removed` are sources whose earlier rows it removes."""
    summary = {"rawlog.run": run, "rawlog.selection": selection, "rawlog.sources": _sources(sources)}
    if rows is not None:
        summary["rawlog.rows"] = _rows(rows)
    if stores:
        summary["rawlog.stores"] = _stores(stores)
    if removed:
        summary["rawlog.removed"] = _pack(sorted(removed))
    return {**summary, "rawlog.units": _units(units)} if units else summary


def everything(history: History) -> dict[str, str]:
    """The record of a base: everything that the snapshots up to it record."""
    others = [[path, selection] for path, selection in history.selections.items()]
    summary = {
        "rawlog.base": "true",
        "rawlog.sources": _sources(history.sources),
        "rawlog.selections": _pack(others),
        "rawlog.units": _units(history.units),
    }
    if history.rows:
        summary["rawlog.rows"] = _rows({path: history.rows.get(path) for path in history.sources})
    if history.stores:
        summary["rawlog.stores"] = _stores(history.stores)
    return summary


def is_replacing(snapshot: Any) -> bool:
    """Whether a snapshot removed rows of rewritten sources."""
    return snapshot.summary is not None and "rawlog.removed" in snapshot.summary.additional_properties


def _sources(sources: Mapping[str, SourceProgress]) -> str:
    return _pack(
        [[path, taken.size, taken.modified, taken.stop, taken.frames, taken.mark] for path, taken in sources.items()]
    )


def _stores(stores: Mapping[str, tuple[str, ...]]) -> str:
    return _pack([[path, *facts] for path, facts in stores.items()])


def _rows(rows: Mapping[str, Iterable[RowRange] | None]) -> str:
    """None: the rows of a source are not known."""
    return _pack([[path, None if ranges is None else list(ranges)] for path, ranges in rows.items()])


def _units(units: Mapping[str, UnitSources]) -> str:
    return _pack(
        [
            [name, unit.selection, [[path, size, modified] for path, (size, modified) in unit.sources.items()]]
            for name, unit in units.items()
        ]
    )


def _pack(values: Any) -> str:
    text = json.dumps(values, separators=(",", ":"))
    return text if len(text) < PACKED else "z:" + base64.b64encode(zlib.compress(text.encode())).decode()


def _unpack(text: str) -> Iterator[Any]:
    """The values of a list, decoded some at a time: the lists of a million sources take more memory than what is kept of them."""
    if text.startswith("z:"):
        text = zlib.decompress(base64.b64decode(text[2:])).decode()
    start = 0
    while len(text) - start > PIECE:
        stop = text.find(BETWEEN, start + PIECE)
        if stop < 0:
            break
        # In a path the mark may be part of a text: then what is before it is no list, and it is decoded with what follows.
        try:
            values = json.loads(f"{text[start : stop + 1]}]" if start == 0 else f"[{text[start : stop + 1]}]")
        except ValueError:
            break
        yield from values
        start = stop + len(BETWEEN) - 1
    yield from json.loads(text if start == 0 else f"[{text[start:]}")
