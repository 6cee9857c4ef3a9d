"""The end of a log: its last rows without decoding the rest, and the rows that come after them while it grows."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rawlog import registry
from rawlog.core.errors import AccessError, DataError, TruncatedError
from rawlog.core.format import File
from rawlog.core.status import Status
from rawlog.core.tables import Table
from rawlog.io.storage import is_remote, local_path
from rawlog.io.walk import walk
from rawlog.reading.parts import Part, plan
from rawlog.reading.rows import Note, Rows, read
from rawlog.reading.select import Selection
from rawlog.reading.tree import Tree, open_tree

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(slots=True)
class Scanned:
    """The windows of a part, found without decoding: pieces of it, where they end, and what stopped the scan."""

    pieces: list[Part] = field(default_factory=list)
    reached: int | None = None
    first: int = 0
    left: int = 0
    error: DataError | None = None


def scan(part: Part, selection: Selection) -> Scanned:
    """Walk a part's frames once and cut it into pieces of a few megabytes. AccessError if it cannot be read."""
    result = Scanned(reached=part.start, first=part.first)
    format = registry.formats()[str(part.file.format)]
    try:
        for frames in walk(
            part.file, format, start=part.start, stop=part.stop, first=part.first, errors=selection.errors
        ):
            if len(frames):
                result.pieces.append(replace(part, start=frames.base, stop=frames.reached_in_file, first=frames.first))
            result.reached = frames.reached_in_file
            result.first = frames.first + len(frames)
            if frames.last and frames.status is Status.TRUNCATED:
                result.left = frames.data.size - frames.reached
    except DataError as error:
        result.error = error
    return result


def is_framed(table: Table) -> bool:
    """Whether a table's rows come from the frames of single files."""
    return bool(registry.formats_with(table))


def last_rows(rows: Rows, count: int, ends: Mapping[str, int] | None = None) -> Iterator[pa.RecordBatch]:
    """The last `count` rows of a table, in order. Damage that is met raises DataError after them.

    `ends` says for some files where to stop, though they may have grown since: a Follower shows what comes after.
    """
    if count == 0:
        return
    if not is_framed(rows.table):
        last = _Last(count)
        for batch in rows.batches():
            last.add(batch)
        yield from last.batches()
        return
    found: deque[pa.RecordBatch] = deque()
    failure: DataError | None = None
    for part, selection in reversed(list(rows.part_selections())):
        if (end := (ends or {}).get(part.file.path)) is not None:
            if end <= (part.start or 0):
                continue
            part = replace(part, stop=end if part.stop is None else min(part.stop, end))
        scanned = scan(part, selection)
        failure = failure or scanned.error
        if scanned.left and rows.note is not None:
            rows.note(
                f"{part.file.path}: byte {scanned.reached:,}: the last {scanned.left:,} bytes are an unfinished frame"
            )
        for piece in reversed(scanned.pieces):
            kept = _Last(count)
            try:
                for batch in read(piece, rows.table, selection, rows.note):
                    kept.add(batch)
            except DataError as error:
                failure = failure or error
            found.extendleft(reversed(kept.batches()))
            count -= min(count, kept.rows)
            if count == 0 or failure:
                break
        if count == 0 or failure:
            break
    yield from found
    if failure is not None:
        raise failure


class _Last:
    """The last `count` rows of those that are added."""

    def __init__(self, count: int) -> None:
        self.count, self.rows = count, 0
        self._kept: deque[pa.RecordBatch] = deque()

    def add(self, batch: pa.RecordBatch) -> None:
        self._kept.append(batch)
        self.rows += batch.num_rows
        while self.rows - self._kept[0].num_rows >= self.count:
            self.rows -= self._kept.popleft().num_rows

    def batches(self) -> list[pa.RecordBatch]:
        drop = max(0, self.rows - self.count)
        return [batch.slice(drop if index == 0 else 0) for index, batch in enumerate(self._kept)]


@dataclass(slots=True)
class _State:
    """How far a file has been read, and what it looked like then."""

    position: int | None = None
    first: int = 0
    size: int = -1
    modified: float | None = None
    identity: int | None = None


class Follower:
    """Gives the rows that are added to some paths, each once: files grow, and new ones are taken up."""

    def __init__(
        self, paths: Sequence[str], format: str | None, table: Table, selection: Selection, note: Note | None = None
    ) -> None:
        """Nothing is read yet. Call `skip` to begin at the present end."""
        self.paths, self.format, self.table = list(paths), format, table
        self.selection = selection.replace(last=None, limit=None)
        self.note = note
        self.ends: dict[str, int] = {}
        self._states: dict[str, _State] = {}
        self._refused: set[str] = set()

    def skip(self, tree: Tree) -> None:
        """Take everything that is in `tree` now as read: each of its files up to the byte that `ends` says."""
        parts = plan(tree, self.table, self.selection.replace(from_offset=None, since=None))
        newest = {part.file.place.group: part.file.path for part in parts if part.file.place.group is not None}
        for part in parts:
            file = part.file
            state = self._states[file.path] = self._seen(file)
            if file.place.group is not None and newest[file.place.group] != file.path:
                self.ends[file.path] = state.position = file.size  # an older segment: it will not grow
                continue
            with contextlib.suppress(AccessError):
                scanned = scan(part, self.selection)
                state.position, state.first = scanned.reached, scanned.first
                if scanned.error is None:
                    self.ends[file.path] = scanned.reached or 0

    def poll(self) -> Iterator[pa.RecordBatch]:
        """The rows added since the last call. Raises DataError at damage, unless the selection says otherwise."""
        tree = open_tree(self.paths, format=self.format)
        changed = tuple(file for file in tree if self._has_changed(file))
        if not changed:
            return
        for part in plan(Tree(tree.roots, changed), self.table, self.selection.replace(from_offset=None, since=None)):
            yield from self._added(part)

    def _has_changed(self, file: File) -> bool:
        if file.problem is not None:
            if file.path not in self._refused and self.note is not None:
                self.note(f"{file.path}: {file.problem}")
            self._refused.add(file.path)
            return False
        if file.format is None or file.size == 0:
            return False
        state = self._states.get(file.path)
        return state is None or (state.size, state.modified) != (file.size, file.modified)

    def _seen(self, file: File) -> _State:
        identity = None
        if not is_remote(file.path):
            with contextlib.suppress(OSError):
                identity = os.stat(local_path(file.path)).st_ino
        return _State(size=file.size, modified=file.modified, identity=identity)

    def _added(self, part: Part) -> Iterator[pa.RecordBatch]:
        file, now = part.file, self._seen(part.file)
        before = self._states.get(file.path)
        if before is not None and not self._restarted(before, now, part):
            now.position, now.first = before.position, before.first
        scanned = scan(replace(part, start=now.position, first=now.first), self.selection)
        if isinstance(scanned.error, TruncatedError) and not scanned.pieces:
            return  # not even its header is there yet
        for piece in scanned.pieces:
            yield from read(piece, self.table, self.selection, self.note)
        now.position, now.first = scanned.reached, scanned.first
        self._states[file.path] = now
        if scanned.error is not None:
            raise scanned.error

    def _restarted(self, before: _State, now: _State, part: Part) -> bool:
        """Whether a file is to be read anew: it was replaced, or cut and begun again."""
        if before.identity != now.identity:
            self._say(part.file, "was replaced; it is read from its beginning")
            return True
        if before.position is None or now.size >= before.position:
            return False
        if part.file.place.group is None:
            self._say(part.file, "became smaller; it is read from its beginning")
            return True
        # A broker cuts its log back and goes on: what is left has been shown already.
        self._say(part.file, "was cut back; rows behind the cut are shown as they come")
        scanned = scan(part, self.selection.replace(errors="stop"))
        before.position, before.first = scanned.reached, scanned.first
        return False

    def _say(self, file: File, what: str) -> None:
        if self.note is not None:
            self.note(f"{file.path}: {what}")
