"""Records in which a text was found, in any system, with the places where it was found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rawlog.core.tables import Column, Table
from rawlog.reading.rows import Rows
from rawlog.reading.select import holds_text, limited

if TYPE_CHECKING:
    import pyarrow as pa

PLACES = ("key", "value", "headers", "id")
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
        for batch in limited(self._found(), self.selection.limit):
            yield batch.select(self.schema.names)

    def _found(self) -> Iterator[pa.RecordBatch]:
        places = [place for place in self.places if place != "id"]
        seen: set[tuple[object, ...]] = set()
        if "id" in self.places:
            for batch in self._rows(id=self.text.decode("utf-8", "replace")):
                seen.update(_where(batch))
                yield self._marked(batch, places, is_id=True)
        if places:
            for batch in self._rows(text=self.text):
                marked = self._marked(batch, places, is_id=False)
                marked = marked.filter(marked.column(FOUND_IN).is_valid())
                yield marked.filter([one not in seen for one in _where(marked)]) if seen else marked

    def _rows(self, **wanted: object) -> Iterator[pa.RecordBatch]:
        selection = self.selection.replace(columns=None, limit=None, **wanted)
        rows = Rows(self.tree, self.records, selection)
        rows.note = self.note
        return rows.batches()

    def _marked(self, batch: pa.RecordBatch, places: Sequence[str], *, is_id: bool) -> pa.RecordBatch:
        """The rows with where the text is; null where it is in none of the places."""
        import pyarrow as pa

        masks = [holds_text(batch.column(place), self.text).to_pylist() for place in places]
        found = []
        for row in range(batch.num_rows):
            named = [place for place, mask in zip(places, masks, strict=True) if mask[row]]
            found.append(",".join(["id", *named] if is_id else named) or None)
        return batch.add_column(0, FOUND_IN, pa.array(found, pa.string()))


def _where(batch: pa.RecordBatch) -> Iterator[tuple[object, ...]]:
    return zip(*(batch.column(name).to_pylist() for name in ("topic", "partition", "offset")), strict=True)
