"""State: what the snapshots of a table record of the sources that its rows came from.

It is in the summary of each commit, so rows and the record of them arrive together. A commit records what it changed; one that is
a *base* records everything, and nothing older need be read or kept.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

#: Text from this size on is kept compressed.
PACKED = 1 << 14


@dataclass(frozen=True, slots=True)
class Taken:
    """How much of a source file a table holds: every byte before `stop`, in `frames` frames.

    `size` and `modified` are the file's own when it was last read; `mark` is a checksum of some of the bytes before `stop`: it tells
    a file that grew from another of the same name.
    """

    size: int
    modified: float | None
    stop: int
    frames: int
    mark: int


@dataclass(frozen=True, slots=True)
class Folded:
    """What the rows of a unit of a folded table were made of: the selection, and size and time of every file."""

    selection: str
    sources: Mapping[str, tuple[int, float | None]]


@dataclass(frozen=True, slots=True)
class History:
    """What a table's snapshots record: the runs; for each source how far it is in and under which selection; the folded units."""

    runs: frozenset[str]
    sources: Mapping[str, Taken]
    selections: Mapping[str, str]
    units: Mapping[str, Folded]


def history_of(table: Any | None) -> History:
    """What a table (None: it does not exist) has ingested, from its snapshots: the newest first, back to the last base."""
    runs: set[str] = set()
    sources: dict[str, Taken] = {}
    selections: dict[str, str] = {}
    units: dict[str, Folded] = {}
    for snapshot in newest_first(table):
        summary = snapshot.summary.additional_properties if snapshot.summary is not None else {}
        if "rawlog.run" in summary:
            runs.add(summary["rawlog.run"])
        others = dict(_unpacked(summary.get("rawlog.selections", "[]")))
        for path, *values in _unpacked(summary.get("rawlog.sources", "[]")):
            if path not in sources:
                sources[path] = Taken(*values)
                selections[path] = others.get(path, summary.get("rawlog.selection", ""))
        for name, selection, made_of in _unpacked(summary.get("rawlog.units", "[]")):
            units.setdefault(name, Folded(selection, {path: (size, modified) for path, size, modified in made_of}))
        if "rawlog.base" in summary:
            break
    return History(frozenset(runs), sources, selections, units)


def newest_first(table: Any | None) -> list[Any]:
    """The snapshots of a table."""
    return [] if table is None else sorted(table.snapshots(), key=lambda one: -(one.sequence_number or 0))


def summary_of(run: str, sources: Mapping[str, Taken], selection: str, units: Mapping[str, Folded]) -> dict[str, str]:
    """The record of the sources that a commit changed."""
    summary = {"rawlog.run": run, "rawlog.selection": selection, "rawlog.sources": _sources(sources)}
    return {**summary, "rawlog.units": _units(units)} if units else summary


def everything(history: History) -> dict[str, str]:
    """The record of a base: everything that the snapshots up to it record."""
    others = [[path, selection] for path, selection in history.selections.items() if selection]
    return {
        "rawlog.base": "true",
        "rawlog.sources": _sources(history.sources),
        "rawlog.selections": _packed(others),
        "rawlog.units": _units(history.units),
    }


def _sources(sources: Mapping[str, Taken]) -> str:
    return _packed([[path, *asdict(taken).values()] for path, taken in sources.items()])


def _units(units: Mapping[str, Folded]) -> str:
    return _packed(
        [
            [name, unit.selection, [[path, size, modified] for path, (size, modified) in unit.sources.items()]]
            for name, unit in units.items()
        ]
    )


def _packed(values: list[Any]) -> str:
    text = json.dumps(values, separators=(",", ":"))
    return text if len(text) < PACKED else "z:" + base64.b64encode(zlib.compress(text.encode())).decode()


def _unpacked(text: str) -> list[list[Any]]:
    if text.startswith("z:"):
        text = zlib.decompress(base64.b64decode(text[2:])).decode()
    loaded: list[list[Any]] = json.loads(text)
    return loaded
