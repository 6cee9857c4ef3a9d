"""The last rows of a table, without decoding the rows before them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from rawlog import registry
from rawlog.io.walk import walk
from rawlog.model.errors import DataError
from rawlog.model.status import Status
from rawlog.model.table import Column, Table
from rawlog.reading.parts import Part
from rawlog.reading.rows import GapNote, Order, Rows, damaged_end, read, skipped, unfinished
from rawlog.reading.select import Selection, holds_text, limit_rows
from rawlog.reading.tree import Tree

if TYPE_CHECKING:
    import pyarrow as pa


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
