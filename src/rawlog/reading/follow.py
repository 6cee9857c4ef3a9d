"""Follow: the rows that are added to a growing log, each once. `tail -f` and `rawlog.follow` use it.

A Following keeps a position in the lines of files (`lines.py`); the Spark stream moves its marks itself.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from threading import Event
from typing import TYPE_CHECKING, Any

from rawlog import registry
from rawlog.core.errors import OptionError
from rawlog.core.format import File
from rawlog.core.tables import Table
from rawlog.io.storage import is_remote, local_path
from rawlog.reading.last import INTERVAL, last_rows
from rawlog.reading.lines import Follower, Line, Mark, Position, are_marked, from_position, to_position
from rawlog.reading.replicas import choose
from rawlog.reading.rows import Note, Rows, dict_rows, read_all
from rawlog.reading.select import Selection, limited
from rawlog.reading.tree import Tree, open_tree

if TYPE_CHECKING:
    import pyarrow as pa

#: A Following reads so many bytes of a line before it gives their rows.
STEP = 64 << 20


def check_table(table: Table) -> None:
    """OptionError for a table that cannot be followed, because its rows are not made from the frames of single files."""
    if not registry.formats_with(table) or any(table.name in family.folds for family in registry.families()):
        raise OptionError(f"table {table.name} cannot be followed: it is made from whole files")


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a file looked like when it was read."""

    size: int
    modified: float | None
    identity: int | None


class Following:
    """The rows that are added to some paths, each once: files grow, and new files are read too.

    Iterate over it for rows as dicts, or use `batches()` for Arrow; both wait for more rows. `poll()` gives what is there now and
    does not wait. `position` says how far it has read, as JSON: give it to a new Following to continue there.
    """

    def __init__(
        self,
        paths: Sequence[str],
        table: Table,
        selection: Selection | None = None,
        *,
        format: str | None = None,
        position: Position | None = None,
        note: Note | None = None,
    ) -> None:
        """Nothing is read yet. Without `position` and `skip`, it begins with the first row. OptionError for a table of another kind."""
        check_table(table)
        chosen = selection or Selection()
        self.paths, self.format, self.table, self.note = list(paths), format, table, note
        self.selection = chosen.replace(last=None, limit=None)
        self.limit = chosen.limit
        #: Seconds between two looks at the files, and how it waits.
        self.every = INTERVAL
        self.pause: Callable[[float], None] = time.sleep
        self.stop: Event | None = None
        #: Rows that come first: the last ones of the files at the time of `skip`.
        self.first: Iterator[pa.RecordBatch] = iter(())
        self._follower = Follower(table, self.selection, self.selection.errors, strict=False, note=note)
        self._marks = from_position(position)
        self._seen: dict[str, _Seen] = {}
        self._refused: set[str] = set()

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""
        return self.selection.wanted(self.table).schema

    @property
    def position(self) -> Position:
        """How far it has read, as JSON."""
        return to_position(self._marks)

    def skip(self, tree: Tree) -> dict[str, int]:
        """Continue after everything that is in `tree` now; up to which byte each of its files counts as read."""
        ends: dict[str, int] = {}
        for key, line in self._follower.lines(self._readable(tree)).items():
            mark = self._marks[key] = self._follower.end(line)
            index = line.index(mark) or 0
            for number, file in enumerate(line.files):
                ends[file.path] = file.size if number < index else mark.position if number == index else 0
            self._look(line)
        return ends

    def skip_to_last(self, rows: Rows, count: int) -> None:
        """Continue after the rows of a tree, but give the last `count` of them first."""
        ends = self.skip(rows.tree)
        self.first = last_rows(rows, count, ends)

    def poll(self) -> Iterator[pa.RecordBatch]:
        """The rows that were added since the last call. DataError at damage, unless the selection says otherwise."""
        tree = self._chosen(self._readable(open_tree(self.paths, format=self.format)))
        for key, line in self._follower.lines(tree).items():
            if any(self._seen.get(file.path) != _seen(file) for file in line.files):
                yield from self._added(key, line)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as Arrow batches. It waits for more, until `stop` is set or there were as many rows as the limit says."""
        return limited(self._every(), self.limit)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The rows as dicts, waiting for more."""
        for batch in self.batches():
            yield from dict_rows(batch)

    def __repr__(self) -> str:
        return f"<rawlog.Following {self.table.name} of {', '.join(self.paths)}>"

    def _every(self) -> Iterator[pa.RecordBatch]:
        yield from self.first
        self.first = iter(())
        while True:
            begun = time.monotonic()
            yield from self.poll()
            if self.stop is not None and self.stop.is_set():
                return
            seconds = max(self.every, 4 * (time.monotonic() - begun))
            if self.stop is not None:
                self.stop.wait(seconds)
            else:
                self.pause(seconds)

    def _readable(self, tree: Tree) -> Tree:
        """The tree without files that cannot be opened; each of them is noted once."""
        for file in tree:
            if file.problem is not None and file.path not in self._refused:
                self._refused.add(file.path)
                self._say(file, file.problem)
        return replace(tree, files=tuple(file for file in tree if file.problem is None))

    def _chosen(self, tree: Tree) -> Tree:
        """The tree with the replicas that are followed: those that were before, else the best. A choice is noted once."""
        return choose(tree, self.selection, self._note_once, table=self.table, prefer=are_marked(self._marks))

    def _note_once(self, text: str) -> None:
        if self.note is not None and text not in self._refused:
            self._refused.add(text)
            self.note(text)

    def _look(self, line: Line) -> None:
        for file in line.files:
            self._seen[file.path] = _seen(file)

    def _added(self, key: str, line: Line) -> Iterator[pa.RecordBatch]:
        mark = self._placed(line, self._marks[key]) if key in self._marks else Mark.before(line.files[0])
        while True:
            reached, _ = self._follower.step(line, mark, STEP)
            if reached == mark:
                break
            parts = [(part, self.selection) for part in self._follower.parts(line, mark, reached)]
            yield from read_all(parts, self.table, self.note)
            self._marks[key] = mark = reached
        self._marks[key] = mark
        self._look(line)

    def _placed(self, line: Line, mark: Mark) -> Mark:
        """Where to continue in a line whose files have changed."""
        index = line.index(mark)
        file = None if index is None else line.files[index]
        if file is not None and not line.is_numbered:
            before = self._seen.get(file.path)
            if before is not None and before.identity != _seen(file).identity:
                self._say(file, "was replaced; it is read from its beginning")
                return Mark.before(file)
            if file.size < mark.position:
                self._say(file, "became smaller; it is read from its beginning")
                return Mark.before(file)
        if file is not None and file.size < mark.position and file is line.files[-1]:
            # A broker truncates its log and continues: what is left has been shown already.
            self._say(file, "was cut back; rows after the cut are shown as they come")
            return self._follower.end(line)
        return self._follower.located(line, mark)

    def _say(self, file: File, what: str) -> None:
        if self.note is not None:
            self.note(f"{file.path}: {what}")


def _seen(file: File) -> _Seen:
    identity = None
    if not is_remote(file.path):
        with contextlib.suppress(OSError):
            identity = os.stat(local_path(file.path)).st_ino
    return _Seen(file.size, file.modified, identity)


__all__ = ["Following", "check_table"]
