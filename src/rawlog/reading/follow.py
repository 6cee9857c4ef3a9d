"""The end of a table: its last rows, without decoding those before them; and the rows that are added to a growing log, each once.

`tail` reads the last rows; `tail -f` and `rawlog.follow` go on from there. A Following keeps a position in the frames of files; the Spark
stream moves its marks itself.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from threading import Event
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rawlog import registry
from rawlog.io.storage import Source, is_remote, local_path
from rawlog.io.walk import HEAD, describe, walk
from rawlog.model.errors import AccessError, DataError, OptionError, TruncatedError
from rawlog.model.format import File, Format
from rawlog.model.frames import Frames
from rawlog.model.status import Status
from rawlog.model.store import Store
from rawlog.model.table import Column, Table
from rawlog.model.text import offset_range
from rawlog.reading.parts import Part, choose_replicas, whole
from rawlog.reading.rows import (
    GapNote,
    Loss,
    Note,
    Order,
    Rows,
    damaged_end,
    dict_rows,
    read,
    read_all,
    skipped,
    unfinished,
)
from rawlog.reading.select import Selection, holds_text, limit_rows
from rawlog.reading.tree import Tree, open_tree

if TYPE_CHECKING:
    import pyarrow as pa


# The last rows -------------------------------------------------------------------------------------------------------------------

#: Seconds between two looks at the files; a look that takes long is followed by a longer pause.
INTERVAL = 0.25


class LastRows(Rows):
    """The last `count` rows of a table, in order."""

    def __init__(self, tree: Tree, table: str | Table, selection: Selection | None, count: int) -> None:
        super().__init__(tree, table, selection)
        self.last = count

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, one batch at a time. DataError at damage, after the rows that could be read."""
        rows = Rows(self.tree, self.table, self.selection.begun())
        rows.note = self.note
        return last_rows(rows, self.last)

    def count(self) -> int:
        """The number of rows."""
        return sum(batch.num_rows for batch in self.batches())


@dataclass(slots=True)
class _Scanned:
    """The windows of a part, found without decoding: pieces of it, where they end, and what stopped the scan."""

    pieces: list[Part] = field(default_factory=list)
    reached: int | None = None
    error: DataError | None = None
    #: What was passed over.
    notes: list[str] = field(default_factory=list)


def _scan(part: Part, selection: Selection, order: Order) -> _Scanned:
    """Walk a part's frames once and cut it into pieces of a few megabytes. AccessError if it cannot be read."""
    result = _Scanned(reached=part.start)
    format = registry.formats()[str(part.file.format)]
    try:
        for frames in walk(
            part.file, format, start=part.start, stop=part.stop, first=part.first, errors=selection.errors
        ):
            if result.reached is not None and frames.base > result.reached:
                result.notes.append(skipped(part.file, result.reached, frames.base))
            if len(frames) and order.offsets is not None:
                # The window as one frame: what is missing inside of it is noted when it is read.
                first = order.offsets(frames.slice(0, 1), part.file)
                last = order.offsets(frames.slice(len(frames) - 1, len(frames)), part.file)
                order.follow(first._replace(stop=last.stop), np.array([frames.base == result.reached]))
            if len(frames):
                result.pieces.append(replace(part, start=frames.base, stop=frames.reached_in_file, first=frames.first))
            result.reached = reached = frames.reached_in_file
            if frames.last and frames.status is Status.TRUNCATED:
                result.notes.append(
                    unfinished(
                        part.file,
                        reached,
                        (part.file.size if part.stop is None else part.stop) - reached,
                        is_followed=part.is_followed,
                    )
                )
            elif frames.last and frames.status.is_damage and selection.errors != "raise":
                result.notes.append(damaged_end(part, frames, selection.errors))
    except DataError as error:
        result.error = error
    if part.file.size == 0 and part.following is not None:
        result.notes.append(GapNote.between(part.file, part.file.place.start_offset or 0, part.following))
    return result


def last_rows(rows: Rows, count: int, ends: Mapping[str, int] | None = None) -> Iterator[pa.RecordBatch]:
    """The last `count` rows of a table, in order. At damage, DataError is raised after them.

    `ends` says at which byte to stop in some files, which may have grown since: a Following gives the rows after that.
    """
    if count == 0:
        return
    if not registry.formats_with(rows.table):
        last = _Last(count)
        for batch in rows.batches():
            last.add(batch)
        yield from last.batches()
        return
    batches: deque[pa.RecordBatch] = deque()
    failure: DataError | None = None
    say = rows.say
    for part, selection in reversed(list(rows.part_selections())):
        if (end := (ends or {}).get(part.file.path)) is not None:
            if end <= (part.start or 0):
                continue
            part = replace(part, stop=end if part.stop is None else min(part.stop, end))
        order = Order(part, registry.formats()[str(part.file.format)], say)
        scanned = _scan(part, selection, order)
        failure = failure or scanned.error
        if say is not None:
            for text in scanned.notes:
                say(text)
        for piece in reversed(scanned.pieces):
            kept = _Last(count)
            try:
                for batch in read(piece, rows.table, selection, say):
                    kept.add(batch)
            except DataError as error:
                failure = failure or error
            batches.extendleft(reversed(kept.batches()))
            count -= min(count, kept.rows)
            if count == 0 or failure:
                break
        order.note_missing()
        if count == 0 or failure:
            break
    yield from batches
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


# ----------------------------------------------------------------------------------------------------------------------
# Records in which a text was found, in any system, with the places where it was found.


FOUND_IN = "found_in"


class FoundRows(Rows):
    """The rows of `records` that have a text. `found_in` names the places, separated by commas.

    Ids are looked up first, by the indexes of systems that have them; then, unless only ids are wanted, all records are searched.
    """

    def __init__(self, rows: Rows, text: bytes, places: Sequence[str]) -> None:
        super().__init__(rows.tree, rows.table, rows.selection)
        self.note, self.text, self.places = rows.note, text, tuple(places)
        self.records = rows.table
        self.table = Table(
            self.records.name, Column(FOUND_IN, "string"), *self.records.columns, about=self.records.about
        )

    @property
    def schema(self) -> pa.Schema:
        """The columns that are shown."""
        return self.table.subset([FOUND_IN, *self.selection.wanted(self.records).names]).schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, one batch at a time. DataError at damage."""
        for batch in limit_rows(self._find_rows(), self.selection.limit):
            yield batch.select(self.schema.names)

    def _find_rows(self) -> Iterator[pa.RecordBatch]:
        places = [place for place in self.places if place != "id"]
        seen: set[tuple[object, ...]] = set()
        if "id" in self.places:
            for batch in self._rows(id=self.text.decode("utf-8", "replace")):
                seen.update(_where(batch))
                yield self._mark_rows(batch, places, is_id=True)
        if places:
            for batch in self._rows(text=self.text):
                marked = self._mark_rows(batch, places, is_id=False)
                marked = marked.filter(marked.column(FOUND_IN).is_valid())
                yield marked.filter([place not in seen for place in _where(marked)]) if seen else marked

    def _rows(self, **wanted: object) -> Iterator[pa.RecordBatch]:
        selection = self.selection.replace(columns=None, limit=None, **wanted)
        rows = Rows(self.tree, self.records, selection)
        rows.note = self.note
        return rows.batches()

    def _mark_rows(self, batch: pa.RecordBatch, places: Sequence[str], *, is_id: bool) -> pa.RecordBatch:
        """The rows with where the text is; null where it is in none of the places."""
        import pyarrow as pa

        masks = [holds_text(batch.column(place), self.text).to_pylist() for place in places]
        columns = []
        for row in range(batch.num_rows):
            named = [place for place, mask in zip(places, masks, strict=True) if mask[row]]
            columns.append(",".join(["id", *named] if is_id else named) or None)
        return batch.add_column(0, FOUND_IN, pa.array(columns, pa.string()))


def _where(batch: pa.RecordBatch) -> Iterator[tuple[object, ...]]:
    return zip(*(batch.column(name).to_pylist() for name in ("topic", "partition", "offset")), strict=True)


# ----------------------------------------------------------------------------------------------------------------------
# Lines of growing files, and marks that say how far they were read.
# A *line* is a sequence of files that continue one another: the segments of a partition, or one file by itself. A Mark is the place in a
# line up to which it was read. A Mark is always after a whole frame, so that an unfinished frame is read later. It also has the logical
# offset, which finds the place again in files that were compacted or deleted meanwhile. (For that, the offset in the files' names and
# those of `Format.spans` must be of one kind.)
# A position is a Mark for each line, as JSON: `Position`. Spark keeps it in its checkpoint. `Follower` moves marks and keeps no state.


#: Less than this is walked; for more, an index is asked first.
NEAR = 8 << 20

#: A Mark for each line, as JSON.
Position = dict[str, Any]

log = logging.getLogger("rawlog.follow")


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a line was read: `frames` whole frames of `file` lie before byte `position`, and `offset` comes next."""

    file: str
    position: int = 0
    frames: int = 0
    offset: int | None = None

    @staticmethod
    def before(file: File) -> Mark:
        """The mark of a file of which nothing was read."""
        return Mark(_name(file), offset=file.place.start_offset)

    def to_json(self) -> dict[str, Any]:
        """The mark as JSON; equal marks give equal text."""
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Mark:
        """The mark that `to_json` gave."""
        return Mark(value["file"], value["position"], value["frames"], value["offset"])


@dataclass(frozen=True, slots=True)
class Line:
    """Files that continue one another, in order, and all files of their group."""

    key: str
    format: Format
    files: tuple[File, ...]
    group: Sequence[File]

    @property
    def is_numbered(self) -> bool:
        """Whether the files' own names say at which offset each begins, so that it stays the same."""
        first = self.files[0]
        place = self.format.match(first.path) if self.format.match is not None else None
        return first.place.remote is not None or (place is not None and place.start_offset is not None)

    def index(self, mark: Mark) -> int | None:
        """The number of the file that a mark is in, None if it is gone."""
        return next((index for index, file in enumerate(self.files) if _name(file) == mark.file), None)

    def undecided(self, mark: Mark) -> Sequence[File]:
        """The group without the files before the mark's: every transaction that began there ended before the mark came this far."""
        earlier = {file.path for file in self.files[: self.index(mark) or 0]}
        return [file for file in self.group if file.path not in earlier]

    def size_after(self, mark: Mark) -> int:
        """The bytes after a mark."""
        return sum(file.size for file in self.files[self.index(mark) or 0 :]) - mark.position


def _name(file: File) -> str:
    return file.place.remote or file.path.rpartition("/")[2]


def _folder(file: File) -> str:
    """Where the files are that continue one another: of a copy in remote storage, the directory that the system itself has."""
    return str(file.place.group) if file.place.remote is not None else file.path.rpartition("/")[0]


def lines_of(tree: Tree, table: Table, selection: Selection) -> dict[str, Line]:
    """The lines of a tree that hold wanted rows, by a lasting key. AccessError for a file that cannot be read."""
    able, selection = registry.formats_with(table), selection.suited(table)
    files_by_line: dict[str, list[File]] = {}
    for file in tree:
        if file.format not in able or file.place.state is not None or not selection.takes_file(file):
            continue
        # A running broker may have created the next file already: the end of this one may still be written.
        file = replace(file, place=replace(file.place, sealed=False))
        file.check_readable()
        # Files that continue one another are in one folder; a group may be wider: all queues of a store.
        numbered = file.place.group is not None and file.place.start_offset is not None
        files_by_line.setdefault(f"{file.format} {_folder(file) if numbered else file.path}", []).append(file)
    return {
        key: Line(key, registry.formats()[str(files[0].format)], tuple(files), tree.group_of(files[0]))
        for key, files in sorted(files_by_line.items())
    }


def are_marked(marks: Mapping[str, Mark]) -> Callable[[Store], bool]:
    """A test whether a store has been read before, according to marks."""
    folders = {key.partition(" ")[2] for key in marks}
    return lambda store: any(file.path in folders or _folder(file) in folders for file in store)


def to_position(marks: Mapping[str, Mark]) -> Position:
    """Marks as JSON."""
    return {key: marks[key].to_json() for key in sorted(marks)}


def from_position(position: Position | None) -> dict[str, Mark]:
    """The marks that `to_position` gave."""
    return {key: Mark.from_json(value) for key, value in (position or {}).items()}


@dataclass(frozen=True, slots=True)
class Follower:
    """Moves marks forward, for one table and selection. `errors` is what damage does; `strict` makes lost data an error.

    Without `strict`, `note` gets a sentence about lost data; without `note`, that sentence is a warning in the log.
    """

    table: Table
    selection: Selection
    errors: str = "raise"
    strict: bool = True
    note: Note | None = None

    def lines(self, tree: Tree) -> dict[str, Line]:
        """The lines of a tree that hold wanted rows, by a lasting key. AccessError for a file that cannot be read."""
        return lines_of(tree, self.table, self.selection)

    def step(
        self, line: Line, mark: Mark, size: int | None = None, files: int | None = None, records: int | None = None
    ) -> tuple[Mark, int]:
        """The next mark, `size` bytes, `files` files and `records` records further at most, and the number of files that were read for it.

        For `read_committed`, it is not after the first transaction that is still open. DataError if damage follows the mark.
        """
        reached, touched = self.advance(line, mark, size, files, records)
        decided = self.stable(line, mark, reached)
        return decided, touched if decided == reached or decided != mark else 0

    def parts(self, line: Line, start: Mark, stop: Mark) -> Iterator[Part]:
        """The parts between two marks, each with what the other files of its line say about it."""
        for part in self.between(line, start, stop):
            full = whole(part.file, line.undecided(start), self.table, self.selection)
            yield replace(full, start=part.start, stop=part.stop, first=part.first)

    def end(self, line: Line) -> Mark:
        """The mark after the last whole frame of a line. Only the last file that has frames is read."""
        begun = next((file for file in reversed(line.files) if self._is_begun(line, file)), line.files[0])
        mark = Mark.before(begun)
        with contextlib.suppress(DataError):  # damage is reported where it is read
            mark, _ = self.advance(line, mark)
        return mark

    def between(self, line: Line, start: Mark, stop: Mark) -> Iterator[Part]:
        """What is between two marks of a line; both are located first."""
        start, stop = self.locate(line, start), self.locate(line, stop)
        first, last = line.index(start) or 0, line.index(stop) or 0
        for index in range(first, last + 1):
            file = line.files[index]
            begin = start if index == first else Mark.before(file)
            end = stop.position if index == last else None
            if begin.position < (file.size if end is None else end):
                yield Part((file,), begin.position or None, end, begin.frames)

    def locate(self, line: Line, mark: Mark) -> Mark:
        """The mark itself if its place is what it was, else the place of the same offset in the files there are now.

        AccessError if what follows the mark is gone.
        """
        index = line.index(mark)
        size = None if index is None else line.files[index].size
        if index is not None and mark.position <= line.files[index].size and self._continues(line, index, mark):
            return mark
        if not line.is_numbered or mark.offset is None:
            what = "is gone" if size is None else f"is now {size:,} bytes"
            self.lost(f"{line.key}: {mark.file} was read up to byte {mark.position:,} and {what}")
            return Mark.before(line.files[0])
        earliest = line.files[0].place.start_offset or 0
        if earliest > mark.offset:
            self.lost(f"{line.key}: {offset_range(mark.offset, earliest)} deleted before they were read")
        elif size is not None and mark.position > size and index == len(line.files) - 1:
            self.lost(f"{line.files[index].path}: was read up to byte {mark.position:,} and is now {size:,} bytes")
        place = self.seek(line, mark.offset)
        if place is not None and (place.file, place.position) == (mark.file, mark.position):
            return mark
        if place is None:
            self.lost(f"{line.key}: {mark.file} was read up to byte {mark.position:,} and is gone")
            later = [file for file in line.files if (file.place.start_offset or 0) > mark.offset]
            place = Mark.before(later[0] if later else line.files[-1])
        return place

    def _continues(self, line: Line, index: int, mark: Mark) -> bool:
        """Whether the frame at a mark, if there is one already, is certainly the one that should follow."""
        file = line.files[index]
        if (
            not line.format.can("spans")
            or not line.is_numbered
            or mark.offset is None
            or mark.position in (0, file.size)
        ):
            return True
        if self._is_blank(file, mark.position):
            return True
        for frames in walk(file, line.format, start=mark.position, first=mark.frames, errors="stop", window=64 << 10):
            if not len(frames):
                return not frames.status.is_damage
            try:
                starts = line.format.codec.spans(frames.slice(0, 1), file).start_offset
            except DataError:
                return True  # a frame begins here; reading it reports that it is damaged
            return starts is None or int(starts[0]) == mark.offset
        return True

    def seek(self, line: Line, offset: int) -> Mark | None:
        """The place of the first frame that reaches beyond an offset, or the end of the line.

        None if frames do not tell their offsets, or the files' names tell others.
        """
        if not line.format.can("spans") or not line.is_numbered:
            return None
        index = max((i for i, file in enumerate(line.files) if (file.place.start_offset or 0) <= offset), default=0)
        mark = Mark.before(line.files[index])
        for file in line.files[index:]:
            mark = Mark(_name(file), offset=offset)
            start = line.format.codec.seek(file, line.group, offset, None) if line.format.can("seek") else None
            for frames in walk(file, line.format, start=start, errors="stop"):
                if not len(frames):
                    continue
                stops = _stop_offsets(line.format, frames, file)
                if stops is None:
                    return None
                beyond = np.flatnonzero(stops > offset)
                if beyond.size:
                    at = int(beyond[0])
                    return replace(mark, position=int(frames.positions[at]), frames=frames.first + at)
                mark = replace(mark, position=frames.reached_in_file, frames=frames.first + len(frames))
        return mark

    def stable(self, line: Line, start: Mark, reached: Mark) -> Mark:
        """The mark `reached`, or for `read_committed` the place of the first open transaction after `start`, if that comes first."""
        if self.selection.isolation != "read_committed" or reached.offset is None:
            return reached
        part = whole(line.files[line.index(start) or 0], line.undecided(start), self.table, self.selection)
        undecided = getattr(part.context, "last_stable_offset", None)
        if undecided is None or reached.offset <= undecided:
            return reached
        return (self.seek(line, undecided) or start) if undecided > (start.offset or 0) else start

    def lost(self, what: str) -> None:
        """Report that unread data is gone: AccessError if `strict`, else a note or a warning."""
        if self.strict:
            raise AccessError(f"{what}; set failOnDataLoss to false to go on without it")
        if self.note is not None:
            self.note(Loss(what))
        else:
            log.warning("%s", what)

    def advance(
        self, line: Line, mark: Mark, size: int | None = None, files: int | None = None, records: int | None = None
    ) -> tuple[Mark, int]:
        """As far after a mark as whole frames allow, `size` bytes, `files` files and `records` records at most, but one frame at least.

        Also gives the number of files that were read. DataError if damage follows the mark directly.
        """
        touched, allowance = 0, None if records is None else _Allowance(records)
        while True:
            index = line.index(mark) or 0
            file, following = line.files[index], line.files[index + 1 : index + 2]
            reached, finished = self._reach(line, file, mark, size, following, allowance)
            taken = reached.position - mark.position
            touched += bool(taken)
            if not finished:
                return reached, touched
            mark = Mark.before(following[0])
            size = None if size is None else size - taken
            used_up = allowance is not None and allowance.left <= 0
            if used_up or (size is not None and size <= 0) or (files is not None and touched >= files):
                return mark, touched

    def _reach(
        self,
        line: Line,
        file: File,
        mark: Mark,
        size: int | None,
        following: Sequence[File],
        allowance: _Allowance | None = None,
    ) -> tuple[Mark, bool]:
        """The same in one file; and whether nothing more will be written to it."""
        begun = any(self._is_begun(line, later) for later in following)
        if not begun and self._is_blank(file, mark.position):
            return mark, False  # space allocated in advance: nothing is written there yet
        limit = file.size if size is None else min(file.size, mark.position + size)
        jumped = mark if allowance is not None else self._jump(line, file, mark, limit)
        reached, last = self._walk(line, file, jumped, limit, allowance, at_least=mark.position)
        if jumped != mark and reached == jumped:  # the index led astray
            reached, last = self._walk(line, file, mark, limit, allowance, at_least=mark.position)
        if last is None:
            return reached, False
        stuck = reached == mark
        if last.status.is_damage and self.errors == "raise":
            if stuck:
                raise describe(line.format, last, file.path)
            return reached, False
        if last.status not in (Status.TRUNCATED, Status.PADDING):
            return reached, bool(following)
        # Space for more. A file that follows may have been created in advance: only one with a frame in it closes this one.
        if not begun:
            return reached, False
        if last.status is Status.TRUNCATED and stuck and self.strict:
            raise TruncatedError(
                "ends inside a frame, although another file follows; set failOnDataLoss to false to go on there",
                path=file.path,
                position=reached.position,
                format=line.format.name,
            )
        return reached, last.status is Status.PADDING or not self.strict

    def _is_blank(self, file: File, position: int) -> bool:
        """Whether there are zeros where a frame would begin; checking all of them each time would read whole files for nothing."""
        with Source(file.path) as source:
            head = source.read(position, HEAD)
        return len(head) == HEAD and not any(head)

    def _is_begun(self, line: Line, file: File) -> bool:
        """Whether a file holds a whole frame."""
        if not line.format.can("begin") and not line.format.can("survey") and self._is_blank(file, 0):
            return False
        with contextlib.suppress(DataError):
            return any(len(frames) for frames in walk(file, line.format, errors="stop", window=64 << 10))
        return False

    def _jump(self, line: Line, file: File, mark: Mark, limit: int) -> Mark:
        """A place further on, before the limit, that an index gives without reading what is between."""
        if not line.format.can("cuts") or limit - mark.position < NEAR:
            return mark
        places = [at for at in line.format.codec.cuts(file, line.group, NEAR // 2) if mark.position < at < limit]
        return replace(mark, position=max(places)) if places else mark

    def _walk(
        self, line: Line, file: File, mark: Mark, limit: int, allowance: _Allowance | None, *, at_least: int
    ) -> tuple[Mark, Frames | None]:
        """The mark after the last whole frame up to `limit`, or after one frame from `at_least`; the last window if that was reached."""
        errors = "stop" if self.errors == "raise" else self.errors
        start = mark.position or None
        for frames in walk(file, line.format, start=start, stop=file.size, first=mark.frames, errors=errors):
            if isinstance(frames.error, TruncatedError):  # the file's own header is not whole yet
                return mark, None
            if len(frames):
                count = int(np.searchsorted(frames.stops + frames.base, limit, side="right"))
                if not count and mark.position > at_least:
                    return mark, None
                count = max(count, 1)
                if allowance is not None:
                    count = allowance.take(line.format, frames.slice(0, count), file)
                    if not count:
                        return mark, None
                mark = _after(frames.slice(0, count), mark, line.format, file)
                if count < len(frames):
                    return mark, None
            if frames.last:
                return mark, frames
        return mark, None


class _Allowance:
    """How many more records may be read. The first frame is always allowed, however many it holds."""

    def __init__(self, records: int) -> None:
        self.left = records
        self.is_fresh = True

    def take(self, layout: Format, frames: Frames, file: File) -> int:
        """How many of some frames may be read; their records are subtracted."""
        ends = np.cumsum(_record_counts(layout, frames, file))
        count = int(np.searchsorted(ends, self.left, side="right"))
        count = max(count, 1) if self.is_fresh else count
        self.is_fresh = False
        self.left -= int(ends[count - 1]) if count else 0
        return count


def _record_counts(layout: Format, frames: Frames, file: File) -> NDArray[np.int64]:
    """The records of each frame: as it says itself, else by its offsets, else one."""
    counts = np.ones(len(frames), np.int64)
    if not layout.can("spans"):
        return counts
    with contextlib.suppress(DataError):  # it is reported where it is read
        spans = layout.codec.spans(frames, file)
        if spans.start_offset is not None and spans.stop_offset is not None and not layout.by_position:
            counts = np.maximum(spans.stop_offset - spans.start_offset, 0)
        if spans.records is not None:
            counts = np.where(spans.records >= 0, spans.records, counts)
    return counts


def _stop_offsets(layout: Format, frames: Frames, file: File) -> NDArray[np.int64] | None:
    """Where each frame's offsets end, -1 for a damaged one; None if frames do not tell."""
    try:
        return layout.codec.spans(frames, file).stop_offset
    except DataError:
        stops = np.full(len(frames), -1, np.int64)
        for index in range(len(frames)):
            with contextlib.suppress(DataError):
                stop = layout.codec.spans(frames.slice(index, index + 1), file).stop_offset
                stops[index] = -1 if stop is None else stop[0]
        return stops


def _after(frames: Frames, mark: Mark, layout: Format, file: File) -> Mark:
    """The mark after some frames."""
    offset = mark.offset
    if layout.can("spans"):
        with contextlib.suppress(DataError):  # a wrong checksum is reported where it is read
            stops = layout.codec.spans(frames.slice(len(frames) - 1, len(frames)), file).stop_offset
            offset = offset if stops is None else int(stops[0])
    return Mark(mark.file, frames.base + int(frames.stops[-1]), frames.first + len(frames), offset)


#: A Following reads so many bytes of a line before it gives their rows.
STEP = 64 << 20


def check_table(table: Table) -> None:
    """OptionError for a table that cannot be followed, because its rows are not made from the frames of single files."""
    if not registry.formats_with(table) or registry.maker(table) is not None:
        raise OptionError(f"table {table.name} cannot be followed: it is made from whole files")


@dataclass(frozen=True, slots=True)
class _FileState:
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
        self.interval = INTERVAL
        self.pause: Callable[[float], None] = time.sleep
        self.stop: Event | None = None
        #: Rows that come first: the last ones of the files at the time of `skip`.
        self.first: Iterator[pa.RecordBatch] = iter(())
        self._follower = Follower(table, self.selection, self.selection.errors, strict=False, note=note)
        self._marks = from_position(position)
        self._state_of: dict[str, _FileState] = {}
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
        tree = self._choose(self._readable(open_tree(self.paths, format=self.format)))
        for key, line in self._follower.lines(tree).items():
            if any(self._state_of.get(file.path) != _state_of(file) for file in line.files):
                yield from self._read_added(key, line)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as Arrow batches. It waits for more, until `stop` is set or there were as many rows as the limit says."""
        return limit_rows(self._all_batches(), self.limit)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The rows as dicts, waiting for more."""
        for batch in self.batches():
            yield from dict_rows(batch)

    def __repr__(self) -> str:
        return f"<rawlog.Following {self.table.name} of {', '.join(self.paths)}>"

    def _all_batches(self) -> Iterator[pa.RecordBatch]:
        yield from self.first
        self.first = iter(())
        while True:
            begun = time.monotonic()
            yield from self.poll()
            if self.stop is not None and self.stop.is_set():
                return
            seconds = max(self.interval, 4 * (time.monotonic() - begun))
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

    def _choose(self, tree: Tree) -> Tree:
        """The tree with the replicas that are followed: those that were before, else the best. A choice is noted once."""
        return choose_replicas(tree, self.selection, self._note_once, table=self.table, prefer=are_marked(self._marks))

    def _note_once(self, text: str) -> None:
        if self.note is not None and text not in self._refused:
            self._refused.add(text)
            self.note(text)

    def _look(self, line: Line) -> None:
        for file in line.files:
            self._state_of[file.path] = _state_of(file)

    def _read_added(self, key: str, line: Line) -> Iterator[pa.RecordBatch]:
        mark = self._place(line, self._marks[key]) if key in self._marks else Mark.before(line.files[0])
        while True:
            reached, _ = self._follower.step(line, mark, STEP)
            if reached == mark:
                break
            parts = [(part, self.selection) for part in self._follower.parts(line, mark, reached)]
            yield from read_all(parts, self.table, self.note)
            self._marks[key] = mark = reached
        self._marks[key] = mark
        self._look(line)

    def _place(self, line: Line, mark: Mark) -> Mark:
        """Where to continue in a line whose files have changed."""
        index = line.index(mark)
        file = None if index is None else line.files[index]
        if file is not None and not line.is_numbered:
            before = self._state_of.get(file.path)
            if before is not None and before.identity != _state_of(file).identity:
                self._say(file, "was replaced; it is read from its beginning")
                return Mark.before(file)
            if file.size < mark.position:
                self._say(file, "became smaller; it is read from its beginning")
                return Mark.before(file)
        if file is not None and file.size < mark.position and file is line.files[-1]:
            # A broker truncates its log and continues: what is left has been shown already.
            self._say(file, "was cut back; rows after the cut are shown as they come")
            return self._follower.end(line)
        return self._follower.locate(line, mark)

    def _say(self, file: File, what: str) -> None:
        if self.note is not None:
            self.note(f"{file.path}: {what}")


def _state_of(file: File) -> _FileState:
    identity = None
    if not is_remote(file.path):
        with contextlib.suppress(OSError):
            identity = os.stat(local_path(file.path)).st_ino
    return _FileState(file.size, file.modified, identity)
