"""The readable table: columns side by side, every value made safe for a terminal, long ones cut to fit it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

import click

from rawlog.cli import output
from rawlog.cli.logs import say
from rawlog.model.text import formed, plain_time, printable, width_of, wrapped

if TYPE_CHECKING:
    import pyarrow as pa

#: So many rows are looked at to choose the widths.
PAGE = 200
#: The widest padding where the output is no terminal.
WIDEST = 48
#: The most cells of one value where the output is no terminal; --wide has no limit.
MOST = 200
#: The fewest cells of a value of any length; times and numbers are always whole.
NARROWEST = 12
#: Columns that are left out last if a terminal is too narrow for all, and those that are left out first.
MAIN = ("topic", "partition", "offset", "timestamp", "value", "key")
#: So many columns that are left out are named.
NAMED = 6
#: As many cells a value of any length gets before a minor column is shown.
ROOMY = 32
LEAST = ("timestampType", "timestamp_type", "path", "magic", "batch_position", "sequence", "producer_epoch")


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


def cut_middle(text: str, width: int) -> str:
    """The text in at most `width` cells, with a mark in its middle: names that begin alike differ at the end."""
    if width_of(text) <= width:
        return text
    head = cut(text, max(2, (width + 1) // 2))
    tail = cut(text[::-1], max(1, width - width_of(head)) + 1)[-2::-1]
    return head + tail


def pad(text: str, width: int, *, right: bool = False) -> str:
    """The text filled up to `width` cells."""
    room = " " * max(0, width - width_of(text))
    return room + text if right else text + room


class GridPrinter(output.Printer):
    """Rows as a table; the first rows choose the columns and widths, all others flow.

    On a terminal the table is as wide as that. If it is too narrow for all columns, the least important ones are left out, and a note says
    which. With `is_wide` nothing is cut or left out.
    """

    def __init__(self, form: str | None = None, *, in_order: bool = False, is_wide: bool = False) -> None:
        """Long columns are last, unless the columns are wanted in their own order; then none is left out."""
        self.form, self.in_order, self.is_wide = form, in_order, is_wide
        self._order: list[int] = []
        self._held: list[list[str]] = []
        self._shown: list[int] = []
        self._widths: list[int] = []
        self._names: list[str] = []
        self._right: list[bool] = []
        self._whole: list[bool] = []
        self._cut = output.is_terminal() and not is_wide

    def begin(self, schema: pa.Schema) -> None:
        import pyarrow as pa

        fields = list(schema)
        self._order = list(range(len(fields)))
        if not self.in_order:
            places = {field.name: _place(field, "offset" in schema.names) for field in fields}
            self._order.sort(key=lambda index: places[fields[index].name])
        fields = [fields[index] for index in self._order]
        self._names = [field.name for field in fields]
        self._right = [pa.types.is_integer(field.type) or pa.types.is_floating(field.type) for field in fields]
        self._whole = [not (is_long(field.type) or pa.types.is_string(field.type)) for field in fields]

    def write(self, batch: pa.RecordBatch) -> None:
        for start in range(0, batch.num_rows, 1000):
            piece = batch.slice(start, 1000)
            columns = [cells(piece.column(index), self.form) for index in self._order]
            self._held += [list(row) for row in zip(*columns, strict=True)]
            if self._shown or len(self._held) >= PAGE:
                self._show()

    def flush(self) -> None:
        self._show()
        super().flush()

    def end(self) -> None:
        self._show()

    def _show(self) -> None:
        if not self._held:
            return
        if not self._shown:
            self._choose()
            output.line(output.style(self._row(self._names, [False] * len(self._names)), bold=True))
        for row in self._held:
            output.line(self._row(row, self._right))
        self._held = []

    def _choose(self) -> None:
        """Choose the columns that are shown, and their widths."""
        rows = self._held[:PAGE]
        natural = [max(width_of(row[index]) for row in (self._names, *rows)) for index in range(len(self._names))]
        self._shown = list(range(len(self._names)))
        if not self._cut:
            self._widths = [min(width, WIDEST) for width in natural]
            return
        width = shutil.get_terminal_size().columns
        least = [
            wanted if whole else min(wanted, max(NARROWEST, width_of(name)))
            for wanted, whole, name in zip(natural, self._whole, self._names, strict=True)
        ]
        if not self.in_order:
            roomy = [max(low, min(wanted, ROOMY)) for low, wanted in zip(least, natural, strict=True)]
            self._leave_out(roomy, least, width, rows)
        self._widths = fit_widths(
            [natural[index] for index in self._shown], [least[index] for index in self._shown], width
        )

    def _leave_out(self, roomy: Sequence[int], least: Sequence[int], width: int, rows: Sequence[Sequence[str]]) -> None:
        """Leave out empty columns and the least important ones until the rest has room, then any until the rest fits."""
        empty = [index for index in self._shown if not any(row[index] for row in rows)]
        minor = [self._names.index(name) for name in LEAST if name in self._names]
        first = list(dict.fromkeys([*empty[::-1], *minor]))
        others = [index for index in self._shown[::-1] if index not in first]
        others.sort(key=lambda index: self._names[index] in MAIN)
        gone: list[int] = []
        for index, wanted in [*((column, roomy) for column in first), *((column, least) for column in others)]:
            if sum(wanted[column] + 2 for column in self._shown) - 2 <= width or len(self._shown) == 1:
                continue
            gone.append(index)
            self._shown.remove(index)
        if gone:
            names = ", ".join(self._names[index] for index in sorted(gone)[:NAMED])
            more = f" and {len(gone) - NAMED} more" if len(gone) > NAMED else ""
            say(f"too narrow for all columns; left out: {names}{more} (--expanded or --wide shows them)", "note")

    def _row(self, values: Sequence[str], right: Sequence[bool]) -> str:
        texts = []
        for index, width in zip(self._shown, self._widths, strict=True):
            value = values[index] if self.is_wide else cut(values[index], width if self._cut else MOST)
            texts.append(pad(value, width, right=right[index]))
        return "  ".join(texts).rstrip()


def fit_widths(natural: Sequence[int], least: Sequence[int], width: int) -> list[int]:
    """Widths of columns that fit into `width` cells with two between them: the widest are shortened first, none below its least."""
    widths = list(natural)
    spare = width - 2 * (len(widths) - 1)
    while sum(widths) > spare:
        open_ = [index for index in range(len(widths)) if widths[index] > least[index]]
        if not open_:
            break
        widths[max(open_, key=widths.__getitem__)] -= 1
    return widths


class ExpandedPrinter(output.Printer):
    """Rows one field per line, whole, with a line between rows."""

    def __init__(self, form: str | None = None) -> None:
        self.form = form
        self._count = 0

    def write(self, batch: pa.RecordBatch) -> None:
        names = [printable(name) for name in batch.schema.names]
        width = max(map(width_of, names), default=0)
        columns = [cells(column, self.form) for column in batch.columns]
        for row in zip(*columns, strict=True):
            self._count += 1
            output.line(output.style(f"row {self._count:,}", bold=True))
            for name, value in zip(names, row, strict=True):
                output.line(f"  {pad(name, width)}  {value}".rstrip())


#: Columns of records that are last, in whatever type they are decoded, and what decoding says of them, which comes after them.
LAST = ("key", "value", "headers")
ABOUT = ("key_error", "key_schema", "value_error", "value_schema")


def _place(field: pa.Field, is_record: bool) -> int:
    """Where a column goes: values of any length are at the end of a line."""
    if is_record and field.name in ABOUT:
        return len(LAST) + 1
    if is_record and field.name in LAST:
        return 1 + LAST.index(field.name)
    return int(is_long(field.type))


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
        return ["" if time is None else plain_time(time) for time in column.view(pa.int64()).to_pylist()]
    if pa.types.is_nested(column.type):
        return ["" if text in ("null", "[]", "{}") else printable(text) for text in plain_json(column, form)]
    return ["" if value is None else printable(str(value)) for value in column.to_pylist()]


def align_rows(rows: Sequence[Sequence[str]], right: Sequence[bool] = (), indent: str = "") -> list[str]:
    """Short lists for people: rows of cells as lines of equal columns."""
    full, widths, sides = _columns(rows, right)
    return [_joined(row, widths, sides, indent) for row in full]


def _columns(rows: Sequence[Sequence[str]], right: Sequence[bool]) -> tuple[list[list[str]], list[int], list[bool]]:
    """The rows with as many cells each, the widths of their columns, and which of them are aligned to the right."""
    count = max(map(len, rows), default=0)
    full = [[*row, *[""] * (count - len(row))] for row in rows]
    widths = [max(_cell_width(row[index]) for row in full) for index in range(count)]
    return full, widths, [*right, *[False] * (count - len(right))]


def _cell_width(cell: str) -> int:
    return width_of(click.unstyle(cell))


def _joined(cells: Iterable[str], widths: Sequence[int], right: Sequence[bool], indent: str) -> str:
    """Cells as a line. Those that are in colour are as wide as what is seen of them."""
    texts = [
        pad(cell, width + width_of(cell) - _cell_width(cell), right=is_right)
        for cell, width, is_right in zip(cells, widths, right, strict=True)
    ]
    return (indent + "  ".join(texts)).rstrip()


#: The fewest cells of a name on a narrow terminal, and of a sentence.
SHORTEST, SENTENCE = 12, 30
#: Before the second line of a row.
FOLD = "    "


def fit_rows(rows: Sequence[Sequence[str]], right: Sequence[bool] = (), indent: str = "") -> list[str]:
    """As `align_rows`; if a terminal is too narrow, the names in the first column are shortened in their middle."""
    lines = align_rows(rows, right, indent)
    excess = excess_of(lines)
    if excess <= 0:
        return lines
    width = max(SHORTEST, max(width_of(row[0]) for row in rows) - excess)
    return align_rows([[cut_middle(row[0], width), *row[1:]] for row in rows], right, indent)


def fit_columns(
    names: Sequence[str],
    rows: Sequence[Sequence[str]],
    left: Collection[str] = (),
    indent: str = "",
    least: Sequence[str] = (),
) -> list[str]:
    """Rows of columns with these names as lines; `left` are those of words. On a narrow terminal without the columns that matter least,
    and then with shorter names in the first one.
    """
    columns = list(range(len(names)))
    for name in (None, *least):
        if name in names:
            columns.remove(names.index(name))
        elif name is not None:
            continue
        cells = [[row[column] for column in columns] for row in rows]
        right = [names[column] not in left for column in columns]
        lines = align_rows(cells, right, indent)
        if not excess_of(lines):
            return lines
    return fit_rows(cells, right, indent)


def fold_rows(rows: Sequence[Sequence[str]], right: Sequence[bool] = (), indent: str = "") -> list[str]:
    """As `align_rows`, and nothing is left out on a narrow terminal: sentences continue below themselves; if that is not enough, the
    columns that have no room on a line are on a second one.
    """
    lines = align_rows(rows, right, indent)
    if not excess_of(lines):
        return lines
    full, natural, sides = _columns(rows, right)
    room = shutil.get_terminal_size().columns - len(indent)
    texts = [[click.unstyle(row[index]) for row in full] for index in range(len(natural))]
    least = [_least(column, width) for column, width in zip(texts, natural, strict=True)]
    widths = fit_widths(natural, least, room)
    parts = _parts(widths, room)
    if len(parts) > 1:
        # A sentence that is on a line of its own may be as long as that.
        widths = [max(narrow, min(width, room - len(FOLD))) for narrow, width in zip(least, natural, strict=True)]
        parts = _parts(widths, room)
    return [line for row in full for line in _folded(row, widths, sides, parts, indent)]


def _least(column: Sequence[str], width: int) -> int:
    """The fewest cells for a column: those of its longest word if it has sentences, else all."""
    if not any(width_of(text) > SENTENCE and " " in text for text in column):
        return width
    return min(width, max(SENTENCE, *(width_of(word) for text in column for word in text.split())))


def _parts(widths: Sequence[int], room: int) -> list[range]:
    """The columns that are together on a line."""
    parts, start, used = [], 0, widths[0]
    for index, width in list(enumerate(widths))[1:]:
        used += 2 + width
        if used > room:
            parts.append(range(start, index))
            start, used = index, len(FOLD) + width
    return [*parts, range(start, len(widths))]


def _folded(
    row: Sequence[str], widths: Sequence[int], right: Sequence[bool], parts: Sequence[range], indent: str
) -> list[str]:
    """A row as one line or a few; a part of it without any text has none."""
    lines = []
    for part in parts:
        cells = [
            [row[index]]
            if _cell_width(row[index]) <= widths[index]
            else wrapped(click.unstyle(row[index]), widths[index])
            for index in part
        ]
        for number in range(max(map(len, cells))):
            line = [cell[number] if number < len(cell) else "" for cell in cells]
            start = indent if part.start == 0 else indent + FOLD
            text = _joined(line, [widths[index] for index in part], [right[index] for index in part], start)
            lines += [text] if text.strip() or part.start == 0 else []
    return lines


#: What a column of numbers has.
NUMBER = re.compile(r"[-+]?[\d,.]+|\?")


def numeric(rows: Sequence[Sequence[str]]) -> list[bool]:
    """Which columns have numbers only: they are aligned to the right."""
    count = max(map(len, rows), default=0)
    columns = [[click.unstyle(row[index]) for row in rows if index < len(row) and row[index]] for index in range(count)]
    return [bool(column) and all(NUMBER.fullmatch(text) for text in column) for column in columns]


def excess_of(lines: Iterable[str]) -> int:
    """By how many cells the longest line is wider than the terminal; 0 if it is not, or if there is none."""
    if not output.is_terminal():
        return 0
    return max((0, *(_cell_width(line) - shutil.get_terminal_size().columns for line in lines)))
