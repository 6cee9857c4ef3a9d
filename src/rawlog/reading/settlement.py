"""Settlement: which frames of a store count for verbs that read everything, by the one diagnosis of its family.

They decode optimistically, and make what the diagnosis needs in the same pass. Once all parts of a store are read, the family says what
`repair` would keep. Only a store of which that is not what is stored is read again, by pieces of its files in the order of its log.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from rawlog import registry
from rawlog.io.storage import is_view, listing
from rawlog.io.walk import walk
from rawlog.model.errors import AccessError
from rawlog.model.format import Family, File
from rawlog.model.frames import Frames
from rawlog.model.plan import Patch, Reading
from rawlog.model.report import Action, Entry, Report, SeriousNote
from rawlog.model.status import Status
from rawlog.model.store import Store
from rawlog.model.table import RECORDS, Table
from rawlog.reading.inspect import Summaries, family_store, near, summaries_of
from rawlog.reading.parts import Part

if TYPE_CHECKING:
    from rawlog.reading.tree import Tree

T = TypeVar("T")


def settles(file: File, table: Table) -> bool:
    """Whether a file is a log with rows of a table, and its family can settle it."""
    format = registry.formats().get(str(file.format))
    if format is None or file.place.state is not None or file.problem is not None:
        return False
    is_log = any(other is RECORDS for other in format.tables) and any(
        other.name == table.name for other in format.tables
    )
    return is_log and _family_of((file,)) is not None


def _family_of(files: Sequence[File]) -> Family | None:
    """The family that settles a store. One that keeps its logs among those of another comes first."""
    able = [
        family for family in registry.families() if family.files_for(None, files) and family.store_class.can("reading")
    ]
    return min(able, key=lambda family: family.host is None, default=None)


def reading_of(store: Store) -> Reading:
    """What `repair` would keep of a store. Its logs are read where it has no summaries of them."""
    family = _family_of(store)
    if family is None:
        return Reading()
    reading = family_store(store, family).reading()
    # A healthy store, the common case, needs no listing of its directory.
    return Reading() if reading != Reading() and _is_partial(store) else reading


def _is_partial(store: Store) -> bool:
    """Whether more files of its log are next to those that were named: then what is not here is not lost, and rows are as stored."""
    logs = [file for file in store if settles(file, RECORDS) and not is_view(file.path)]
    names = {file.path for file in store}
    matches = {file.path.rpartition("/")[0]: registry.formats()[str(file.format)].match for file in logs}
    for folder, match in matches.items():
        with contextlib.suppress(AccessError):
            others = [entry.path for entry in listing(folder or ".") if entry.path not in names]
            if match is not None and any(match(path) is not None for path in others):
                return True
    return False


def report_reading(reading: Reading, report: Report) -> None:
    """Add to a report what `repair` would report. What is only at another place counts as well: rows are not read as they are stored."""
    for entry in reading.entries:
        if entry.action is Action.MOVED:
            report.notes.append(SeriousNote(entry.line()))
        elif entry.action is not Action.KEPT:
            report.entries.append(entry)
    report.notes += reading.notes


def notes_on(reading: Reading) -> list[str]:
    """The same as notes, those that count among them."""
    altered = [SeriousNote(entry.line()) for entry in reading.entries if entry.is_alteration]
    return [*altered, *reading.notes]


def absent_stores(tree: Tree) -> list[Entry]:
    """What a tree should have and of which nothing is there, for verbs that read all of it."""
    entries: list[Entry] = []
    for family in registry.families():
        files = tree.store_for(family)
        for account in family.store_class.absent(files) if files else ():
            offsets = (account.start, account.stop) if account.stop > account.start else (None, None)
            reason = f"{account.topic}-{account.partition}: no file of it is here, although other files list it"
            entries.append(Entry(Action.LOST, reason, account.path, None, None, *offsets))
    return entries


# What a pass makes for the diagnosis ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PartSummary:
    """What a pass over a part of a file made; `fits` says that it ends where the next part begins."""

    file: File
    start: int
    stop: int | None
    summaries: Summaries | None
    fits: bool


class PartFold:
    """Makes the summary of a part while its rows are read: `see` is shown every window."""

    def __init__(self, part: Part, near: Sequence[File]) -> None:
        self.part, self.fits, self.is_ended = part, False, False
        file, format = part.file, registry.formats()[str(part.file.format)]
        self.summaries = summaries_of(file, format, Store((file, *near)), part.start or 0, part.stop)

    def see(self, frames: Frames) -> None:
        """Take in a window."""
        if self.summaries is not None:
            self.summaries.see(frames)
        stop, size = self.part.stop, self.part.file.size
        at_end = stop is None or stop >= size
        self.fits = at_end or (frames.status is Status.OK and frames.reached_in_file == stop)
        self.is_ended = frames.last

    def close(self) -> PartSummary:
        """The summary. There is no summary of a part that was not read to its end."""
        summaries = self.summaries.close() if self.summaries is not None and self.is_ended else None
        return PartSummary(self.part.file, self.part.start or 0, self.part.stop, summaries, self.fits)


class StoreFold:
    """Makes the summaries of parts that are read one after another."""

    def __init__(self, tree: Tree, table: Table) -> None:
        self.tree, self.table = tree, table
        self.summaries: list[PartSummary] = []
        self._current: PartFold | None = None

    def watch(self, parts: Iterable[tuple[Part, T]]) -> Iterator[tuple[Part, T]]:
        """The parts as they are; each is folded while it is read."""
        for part, selection in parts:
            if settles(part.file, self.table) and part.reading is None:
                self._current = PartFold(part, near(part.file, self.tree.group_of(part.file)))
            yield part, selection
            if self._current is not None:
                self.summaries.append(self._current.close())
                self._current = None

    def see(self, frames: Frames) -> None:
        """Take in a window of the part that is read."""
        if self._current is not None:
            self._current.see(frames)


def merge_parts(parts: Iterable[PartSummary]) -> dict[str, Summaries]:
    """The summaries of files that were read whole, by path."""
    by_path: dict[str, list[PartSummary]] = {}
    for part in parts:
        by_path.setdefault(part.file.path, []).append(part)
    whole_files: dict[str, Summaries] = {}
    for path, several in by_path.items():
        several.sort(key=lambda part: part.start)
        position: int | None = 0
        whole: Summaries | None = None
        for part in several:
            if part.summaries is None or part.start != position or not part.fits:
                break
            whole = part.summaries if whole is None else whole.merge(part.summaries)
            position = part.stop
        else:
            is_whole = position is None or position >= several[0].file.size
            if whole is not None and is_whole and (len(several) == 1 or whole.rises):
                whole_files[path] = whole
    return whole_files


# What is read again -----------------------------------------------------------------------------------------------------


def settled_parts(
    parts: Iterable[tuple[Part, T]], readings: Mapping[str, Reading], tree: Tree
) -> Iterator[tuple[Part, T]]:
    """Parts, each with what belongs to it; those of stores that are read in pieces joined to one. `readings` are by store."""
    done: set[str] = set()
    for part, selection in parts:
        key = store_key(part.file)
        if key not in readings or readings[key].pieces is None:
            yield part, selection
        elif key not in done:
            done.add(key)
            yield settled_part(tree.group_of(part.file), part.file, readings[key]), selection


def settled_part(store: Sequence[File], log: File, reading: Reading) -> Part:
    """All of a store, in the pieces of a reading; `log` is one of its logs."""
    logs = [file for file in store if file.format == log.format and file.place.state is None]
    return Part((*logs, *(file for file in store if file not in logs)), reading=reading)


def store_key(file: File) -> str:
    """What identifies the store of a file."""
    return file.place.group or file.path


def settled_frames(part: Part) -> Iterator[tuple[File, Frames]]:
    """The frames of a part that is read in pieces, each run with its file, corrected."""
    assert part.reading is not None
    files = {file.path: file for file in part.files}
    for piece in part.reading.pieces or ():
        file = files[piece.path]
        patches = part.reading.patches.get(piece.path, ())
        format = registry.formats()[str(file.format)]
        for frames in walk(file, format, start=piece.start, stop=piece.stop, errors="skip"):
            yield file, _patch(frames, patches)


def _patch(frames: Frames, patches: Sequence[Patch]) -> Frames:
    """Frames with some of their bytes set."""
    end = frames.base + frames.data.size
    first = bisect_left(patches, (frames.base, b""))
    inside = patches[first : bisect_left(patches, (end, b""), first)]
    inside = [(position, data) for position, data in inside if position + len(data) <= end]
    if not inside:
        return frames
    data = frames.data.copy()
    for position, value in inside:
        at = position - frames.base
        data[at : at + len(value)] = np.frombuffer(value, np.uint8)
    return replace(frames, data=data)
