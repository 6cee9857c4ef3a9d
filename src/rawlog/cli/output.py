"""Printing rows: a readable table, JSON, CSV, raw values, a pattern, or an Arrow stream. Only this module writes to stdout."""

from __future__ import annotations

import io
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

import click

from rawlog.cli.logs import say
from rawlog.model.errors import DONE, FOUND, UNREADABLE, AccessError, OptionError
from rawlog.model.text import printable, to_json, wrapped

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


def sentence(text: str, indent: str = "", **how: Any) -> None:
    """A sentence for people, which the caller has made printable. On a terminal it continues, with an indent, on lines as wide as that."""
    width = shutil.get_terminal_size().columns if is_terminal() else sys.maxsize
    for part in wrapped(text, width, indent):
        line(style(part, **how) if how else part)


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
            raise OptionError("--format already names the columns: leave --columns out")
        return _LinesPrinter(template.lines, template.columns)
    if printing["arrow"]:
        return _ArrowPrinter()
    if printing["expanded"]:
        from rawlog.cli.grid import ExpandedPrinter

        return ExpandedPrinter(form)
    from rawlog.cli.grid import GridPrinter

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
