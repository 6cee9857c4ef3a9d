"""The readable table: columns side by side, every value made safe for a terminal, long ones cut to fit it."""

from __future__ import annotations

import shutil
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rawlog.cli import output
from rawlog.core.text import formed, plain_time, printable

if TYPE_CHECKING:
    import pyarrow as pa

#: So many rows are looked at to choose the widths.
PAGE = 200
#: The widest padding where the output is no terminal; longer values are shown whole and push the rest aside.
WIDEST = 48
NARROWEST = 6


def width_of(text: str) -> int:
    """The number of cells that a terminal uses for a text."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(unicodedata.combining(character) != 0 for character in text)


def cut(text: str, width: int) -> str:
    """The text in at most `width` cells, with a mark where something is missing."""
    if width_of(text) <= width:
        return text
    taken, cells = [], 0
    for character in text:
        cells += width_of(character)
        if cells > width - 1:
            break
        taken.append(character)
    return "".join(taken) + "…"


def pad(text: str, width: int, *, right: bool = False) -> str:
    """The text filled up to `width` cells."""
    room = " " * max(0, width - width_of(text))
    return room + text if right else text + room


class GridPrinter(output.Printer):
    """Rows as a table; the first rows choose the widths, all others flow."""

    def __init__(self, form: str | None = None, *, in_order: bool = False) -> None:
        """Long columns are last, unless the columns are wanted in their own order."""
        self.form, self.in_order = form, in_order
        self._order: list[int] = []
        self._held: list[list[str]] = []
        self._widths: list[int] | None = None
        self._names: list[str] = []
        self._right: list[bool] = []
        self._cut = output.is_terminal()

    def begin(self, schema: pa.Schema) -> None:
        import pyarrow as pa

        fields = list(schema)
        self._order = list(range(len(fields)))
        if not self.in_order:
            self._order.sort(key=lambda index: is_long(fields[index].type))
        fields = [fields[index] for index in self._order]
        self._names = [field.name for field in fields]
        self._right = [pa.types.is_integer(field.type) or pa.types.is_floating(field.type) for field in fields]

    def write(self, batch: pa.RecordBatch) -> None:
        for start in range(0, batch.num_rows, 1000):
            piece = batch.slice(start, 1000)
            columns = [cells(piece.column(index), self.form) for index in self._order]
            self._held += [list(row) for row in zip(*columns, strict=True)]
            if self._widths is not None or len(self._held) >= PAGE:
                self._show()

    def flush(self) -> None:
        self._show()
        super().flush()

    def end(self) -> None:
        if self._widths is None and not self._held and not self._names:
            return
        self._show()

    def _show(self) -> None:
        if self._widths is None:
            if not self._held:
                return
            self._widths = self._choose()
            head = self._row(self._names, [False] * len(self._names))
            output.line(output.style(head, bold=True))
        for row in self._held:
            output.line(self._row(row, self._right))
        self._held = []

    def _choose(self) -> list[int]:
        rows = self._held[:PAGE]
        widths = [
            max(width_of(name), max(width_of(row[index]) for row in rows)) for index, name in enumerate(self._names)
        ]
        if not self._cut:
            return [min(width, WIDEST) for width in widths]
        spare = shutil.get_terminal_size().columns - 2 * (len(widths) - 1)
        # Shorten the widest column until all fit, none below a few cells.
        while sum(widths) > spare and max(widths) > NARROWEST:
            widest = max(range(len(widths)), key=widths.__getitem__)
            others = sorted(widths)[-2] if len(widths) > 1 else NARROWEST
            widths[widest] = max(min(widths[widest] - 1, others), NARROWEST, widths[widest] - (sum(widths) - spare))
        return widths

    def _row(self, values: Sequence[str], right: Sequence[bool]) -> str:
        assert self._widths is not None
        texts = []
        for value, width, numeric in zip(values, self._widths, right, strict=True):
            texts.append(pad(cut(value, width) if self._cut else value, width, right=numeric))
        return "  ".join(texts).rstrip()


def is_long(type: pa.DataType) -> bool:
    """Whether values of a type may be of any length, so that they are best at the end of a line."""
    import pyarrow as pa

    return bool(pa.types.is_binary(type) or pa.types.is_nested(type))


def cells(column: pa.Array, form: str | None = None) -> list[str]:
    """The values of a column for people: null is empty, bytes are text with escapes, nested values are JSON."""
    import pyarrow as pa

    from rawlog.reading.render import is_text, plain_json, values_of

    if is_text(column.type):
        if form is not None and (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
            return ["" if value is None else formed(value, form) for value in values_of(column)]
        return ["" if value is None else printable(value) for value in values_of(column)]
    if pa.types.is_timestamp(column.type) and column.type.unit == "us":
        return ["" if time is None else plain_time(time) for time in column.cast(pa.int64()).to_pylist()]
    if pa.types.is_nested(column.type):
        return ["" if text in ("null", "[]", "{}") else printable(text) for text in plain_json(column, form)]
    return ["" if value is None else printable(str(value)) for value in column.to_pylist()]


def aligned(rows: Sequence[Sequence[str]], right: Sequence[bool] = (), indent: str = "") -> list[str]:
    """Short lists for people: rows of cells as lines of equal columns."""
    if not rows:
        return []
    count = max(map(len, rows))
    full = [[*row, *[""] * (count - len(row))] for row in rows]
    widths = [max(width_of(row[index]) for row in full) for index in range(count)]
    sides = [*right, *[False] * (count - len(right))]
    return [
        (indent + "  ".join(pad(row[index], widths[index], right=sides[index]) for index in range(count))).rstrip()
        for row in full
    ]
