"""Printing rows: a readable table, JSON, CSV, raw values, a pattern, or an Arrow stream. Only this module writes to stdout."""

from __future__ import annotations

import io
import shutil
import sys
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import click

from rawlog.cli.logs import say
from rawlog.model.errors import DONE, FOUND, UNREADABLE, AccessError, OptionError
from rawlog.model.text import formed, plain_time, printable, to_json

if TYPE_CHECKING:
    import pyarrow as pa

    from rawlog.model.table import Table
    from rawlog.reading.render import Lines


def write(data: bytes | memoryview) -> None:
    """Bytes to stdout. AccessError if they cannot be written; a closed pipe raises BrokenPipeError."""
    try:
        sys.stdout.buffer.write(data)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise AccessError(f"standard output: {error.strerror or error}") from None


def line(text: str = "") -> None:
    """A line of text for people, which the caller has made printable."""
    write(f"{text}\n".encode("utf-8", "backslashreplace"))


def json_line(value: Any) -> None:
    """A line of JSON."""
    write(f"{to_json(value)}\n".encode())


def json_rows(rows: Iterable[dict[str, Any]]) -> None:
    """A line of JSON for each row."""
    for row in rows:
        json_line(row)


def flush() -> None:
    """Send what is buffered."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise AccessError(f"standard output: {error.strerror or error}") from None


def is_terminal() -> bool:
    """Whether a person looks at stdout."""
    return sys.stdout.isatty()


class Printer(ABC):
    """Prints batches of one schema. Use as a context manager: leaving it prints what was held back."""

    #: The columns it needs, where it needs only some.
    columns: tuple[str, ...] | None = None

    def begin(self, schema: pa.Schema) -> None:  # noqa: B027 - most have nothing to print there
        """Print what comes before the first row."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Print rows."""

    def end(self) -> None:  # noqa: B027
        """Print what comes after the last row."""

    def flush(self) -> None:
        """Show everything written so far (a follower waits now)."""
        flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if not isinstance(error, BrokenPipeError):
            self.end()


def printer(printing: Mapping[str, Any], table: Table) -> Printer:
    """The printer that the output options ask for. OptionError if they contradict one another."""
    names = {"as_json": "--json", "as_csv": "--csv", "raw": "--raw", "template": "--format", "arrow": "--arrow"}
    names |= {"expanded": "--expanded", "wide": "--wide"}
    chosen = [option for name, option in names.items() if printing[name] not in (None, False)]
    if len(chosen) > 1:
        raise OptionError(f"{' and '.join(chosen)} exclude one another")
    if printing["delimiter"] is not None and not printing["raw"]:
        raise OptionError("--delimiter goes with --raw")
    form = printing["form"]
    if printing["as_json"] or printing["template"] == "json":
        return _JsonPrinter(form)
    if printing["as_csv"]:
        return _CsvPrinter(form)
    if printing["raw"]:
        return _raw_printer(printing, table)
    if printing["template"] is not None:
        from rawlog.cli.template import compile_template

        template = compile_template(printing["template"], table, form, safe=printable if is_terminal() else None)
        if printing.get("columns"):
            raise OptionError("--format names its columns itself: leave --columns out")
        return _LinesPrinter(template.lines, template.columns)
    if printing["arrow"]:
        return _ArrowPrinter()
    if printing["expanded"]:
        return ExpandedPrinter(form)
    return GridPrinter(form, in_order=bool(printing.get("columns")), is_wide=printing["wide"])


class _LinesPrinter(Printer):
    def __init__(self, lines: Lines | None = None, columns: tuple[str, ...] | None = None) -> None:
        self.lines = lines
        self.columns = columns

    def write(self, batch: pa.RecordBatch) -> None:
        assert self.lines is not None
        for piece in self.lines.pieces(batch):
            write(piece)


class _JsonPrinter(_LinesPrinter):
    def __init__(self, form: str | None) -> None:
        super().__init__()
        self.form = form

    def begin(self, schema: pa.Schema) -> None:
        from rawlog.reading.render import json_lines

        self.lines = json_lines(schema, self.form)


class _CsvPrinter(_LinesPrinter):
    def __init__(self, form: str | None) -> None:
        super().__init__()
        self.form = form

    def begin(self, schema: pa.Schema) -> None:
        from rawlog.reading.render import csv_header, csv_lines

        self.lines = csv_lines(schema, self.form, safe=printable if is_terminal() else None)
        write(csv_header(schema))


def _raw_printer(printing: Mapping[str, Any], table: Table) -> Printer:
    from rawlog.cli.template import unescape
    from rawlog.kernels.text import RAW
    from rawlog.model.table import JSON, arrow_type, field_column
    from rawlog.reading.render import (
        Lines,
        is_text,
        plain_leaf,
        stored_leaf,
    )
    from rawlog.reading.render import text_leaf as styled
    from rawlog.reading.select import parse_columns

    columns = parse_columns(printing.get("columns")) or ("value",)
    if len(columns) != 1:
        raise OptionError("--raw prints one column: name it with --columns")
    name = columns[0]
    kind = field_column(table, name).type
    type = arrow_type("string" if kind == JSON else kind)
    if not is_text(type):
        raise OptionError(f"--raw prints bytes or text; column {name} is {kind}")
    delimiter = unescape("\\n" if printing["delimiter"] is None else printing["delimiter"])
    exact = printing["form"] is None and not is_terminal()
    leaf = styled(RAW) if exact else plain_leaf(type, printing["form"], printable if is_terminal() else None)
    return _LinesPrinter(Lines([(name, stored_leaf(leaf) if kind == JSON else leaf)], [b"", delimiter]), columns)


class _ArrowPrinter(Printer):
    """An Arrow stream: the schema comes first even if no row follows."""

    def __init__(self) -> None:
        if is_terminal():
            raise OptionError("--arrow writes bytes that are not for a terminal: send them to a file or a pipe")
        self._writer: Any = None

    def begin(self, schema: pa.Schema) -> None:
        import pyarrow as pa

        self._writer = pa.ipc.new_stream(_Stdout(), schema)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def end(self) -> None:
        if self._writer is not None:
            self._writer.close()


class _Stdout(io.RawIOBase):
    """What Arrow takes for a file, with errors as ours."""

    def write(self, data: Any, /) -> int:
        view = memoryview(data)
        write(view)
        return view.nbytes

    def flush(self) -> None:
        flush()

    def writable(self) -> bool:
        return True


def style(text: str, **how: Any) -> str:
    """Text in colour, if a terminal shows it and NO_COLOR does not forbid it."""
    import os

    if not is_terminal() or os.environ.get("NO_COLOR"):
        return text
    return click.style(text, **how)


# ----------------------------------------------------------------------------------------------------------------------
# What a function notes while it works, printed to stderr; and the exit code that follows from it.


class Notes:
    """Give it to a function as `note`. A file that could not be read makes `code` 3; any other serious note, such as one on rows lost to
    damage or on values that were not decoded, makes it 1.
    """

    def __init__(self, is_quiet: bool = False) -> None:
        """Quiet ones print only what is serious."""
        self.code = DONE
        self.is_quiet = is_quiet

    def __call__(self, text: str) -> None:
        """Print a note."""
        from rawlog.model.report import SeriousNote
        from rawlog.reading.tree import Unreadable, Unrecognised

        if isinstance(text, Unreadable):
            self.code = UNREADABLE
            say(f"{text}; --as FORMAT names one" if isinstance(text, Unrecognised) else text)
            return
        if isinstance(text, SeriousNote):
            self.code = max(self.code, FOUND)
        elif self.is_quiet:
            return
        say(text, "note")


# The readable table --------------------------------------------------------------------------------------------------------------

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


class GridPrinter(Printer):
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
        self._cut = is_terminal() and not is_wide

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
            line(style(self._row(self._names, [False] * len(self._names)), bold=True))
        for row in self._held:
            line(self._row(row, self._right))
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


class ExpandedPrinter(Printer):
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
            line(style(f"row {self._count:,}", bold=True))
            for name, value in zip(names, row, strict=True):
                line(f"  {pad(name, width)}  {value}".rstrip())


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


#: The fewest cells of a name on a narrow terminal.
SHORTEST = 12


def fit_rows(rows: Sequence[Sequence[str]], right: Sequence[bool] = (), indent: str = "") -> list[str]:
    """As `align_rows`; if a terminal is too narrow, the names in the first column are shortened in their middle."""
    lines = align_rows(rows, right, indent)
    excess = excess_of(lines)
    if excess <= 0:
        return lines
    width = max(SHORTEST, max(width_of(row[0]) for row in rows) - excess)
    return align_rows([[cut_middle(row[0], width), *row[1:]] for row in rows], right, indent)


def excess_of(lines: Iterable[str]) -> int:
    """By how many cells the longest line is wider than the terminal; 0 if it is not, or if there is none."""
    if not is_terminal():
        return 0
    return max((0, *(width_of(click.unstyle(line)) - shutil.get_terminal_size().columns for line in lines)))
