"""SQL in the browser: one statement over what was opened, confined to it; and exports of rows and answers."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

from rawlog import registry
from rawlog.model.errors import (
    DataError,
    LimitError,
    OptionError,
    RawlogError,
    unknown,
)
from rawlog.model.table import RECORDS
from rawlog.model.text import counted
from rawlog.pages.browser import shell
from rawlog.pages.browser.files import OpenedPaths
from rawlog.pages.browser.rows import cell, kind, with_spaces
from rawlog.pages.browser.shell import Query, anchor, key, link
from rawlog.pages.browser.statement import (
    CANCELLED,
    Statement,
    Statements,
    views_of,
)
from rawlog.pages.browser.views import Views
from rawlog.pages.frame import (
    Safe,
    details,
    joined,
    section,
    tag,
    text,
)
from rawlog.reading.parts import Part, choose_replicas
from rawlog.reading.rows import Rows, dict_rows
from rawlog.reading.select import Selection

if TYPE_CHECKING:
    import pyarrow as pa

#: Rows of an answer that are shown, the bytes that they may have, and seconds that a statement may take.
SHOWN, SHOWN_BYTES, SECONDS = 500, 64 << 20, 20.0
#: So many lines of an error are shown.
MOST_LINES = 20
#: An export ends with an error after so many rows, bytes or seconds.
MOST_ROWS, MOST_BYTES, MOST_SECONDS = 5_000_000, 4 << 30, 900.0
KINDS = {
    "jsonl": "application/x-ndjson",
    "csv": "text/csv; charset=utf-8",
    "arrow": "application/vnd.apache.arrow.stream",
}


def sql_page(opened: OpenedPaths, statements: Statements, query: Query) -> str:
    """A box for a statement, its answer, and the tables that it may name."""
    sql = query.get("q", "")
    box = Safe(
        '<textarea name="q" rows="5" data-key="/" spellcheck="false" autocomplete="off" aria-label="SQL" '
        f'placeholder="a question about the tables below">\n{shell.attribute(sql)}</textarea>'
    )
    button = Safe('<button type="submit">Run</button>')
    form = tag(
        "form",
        box,
        tag("p", button, tag("span", " ", key("Ctrl"), "+", key("Enter"), class_="keys")),
        class_="sql",
        action="sql",
        method="get",
    )
    about = (
        f"DuckDB's SQL. A statement may read the tables below and nothing else; it ends after {SECONDS:.0f} seconds."
    )
    parts = [section("SQL", form, about=about)]
    if sql.strip():
        parts.append(_answer(opened, statements, query, sql))
    parts.append(_tables(opened))
    return shell.page("SQL", "", *parts, here="sql")


def _errors(query: Query) -> str:
    """What to do at damage: it is an error, unless it is to be left out."""
    return "skip" if query.get("errors") == "skip" else "raise"


def _answer(opened: OpenedPaths, statements: Statements, query: Query, sql: str) -> Safe:
    errors = _errors(query)
    statement = _statement(opened, sql, errors, SHOWN + 1)
    try:
        with statements.answering(statement, query.ending, seconds=SECONDS) as answer:
            names = answer.schema.names
            rows = list(_bounded_rows(answer.batches()))
    except RawlogError as error:
        message = str(error)
        if message == CANCELLED:
            message = f"The statement took more than {SECONDS:.0f} seconds and was cancelled. `rawlog query` has no such limit."
        reason = Safe("\n".join(text(line, 2000) for line in message.splitlines()[:MOST_LINES]))
        parts = [tag("p", reason, class_="error", role="alert")]
        if isinstance(error, DataError):
            parts.append(anchor("Answer without what is damaged", link("sql", q=sql, errors="skip"), class_="button"))
        return section("Answer", *parts)
    lines = [
        tag("tr", *(tag("td", cell(row[name]), class_=kind(row[name])) for name in names), data_row=True)
        for row in rows[:SHOWN]
    ]
    head = tag(
        "tr", *(tag("th", text(name), scope="col", class_=kind(rows[0][name]) if rows else None) for name in names)
    )
    caption = f"the first {SHOWN:,} rows" if len(rows) > SHOWN else counted(len(rows), "row")
    caption += ", without what is damaged" if errors == "skip" else ""
    grid = tag("table", tag("caption", caption, class_="sr"), tag("thead", head), tag("tbody", *lines), class_="rows")
    exports = [
        anchor(label, link("answer", q=sql, as_=form, errors=errors), class_="button", download=True)
        for form, label in shell.FORMS
    ]
    turn = tag(
        "p",
        tag("span", f"{caption}. Export all of them as "),
        *with_spaces(exports),
        class_="turn",
    )
    return section(
        "Answer",
        tag("div", grid, class_="scroll tall", tabindex="0", role="region", aria_label=caption),
        turn,
        name="answer",
    )


def _statement(opened: OpenedPaths, sql: str, errors: str, rows: int | None = None) -> Statement:
    return Statement(sql.strip().removesuffix(";"), opened.paths, opened.listing().tree, errors, rows)


def _bounded_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    """Rows for a page. OptionError if they are too large."""
    size = 0
    for batch in batches:
        size += batch.nbytes
        if size > SHOWN_BYTES:
            raise OptionError(
                f"The first rows have more than {SHOWN_BYTES >> 20} MiB: choose fewer columns or shorter values, or use `rawlog query`."
            )
        yield from dict_rows(batch)


def _tables(opened: OpenedPaths) -> Safe:
    try:
        views = views_of(opened)
    except RawlogError as error:
        return section("Tables", tag("p", text(str(error))))
    tables = []
    for view in views:
        longest = max(view.names, key=len)
        name = ".".join(longest)
        columns = tag("p", ", ".join(f"{column.name} {column.type}" for column in view.table.columns), class_="about")
        tables.append(details(joined((tag("code", name), " ", text(view.table.about))), columns))
    return section("Tables", *tables, name="tables")


def export_rows(views: Views, query: Query) -> tuple[str, str, Generator[bytes]]:
    """The rows of a search: media type, file name, and the bytes in pieces. They end with an error at damage, unless that is skipped."""
    listing, scope = views.scope(query)
    table = registry.table_named(query["table"]) if "table" in query else scope.default_table
    form = _form(query)
    selection = query.selection(listing.tree if table is RECORDS else None).replace(errors=_errors(query))
    rows = _ScopedRows(choose_replicas(scope.wide, selection, table=table), table, selection)
    rows.paths = scope.paths
    plain = "".join(
        character if character.isalnum() or character in "-._" else "-"
        for character in scope.name.rpartition("/")[2] or "rows"
    )
    return KINDS[form], f"{plain}.{form}", _limit(_write_rows(form, rows.schema, rows.batches()))


class _ScopedRows(Rows):
    """Rows of some of the files of a tree; the others are there for their indexes."""

    paths: frozenset[str] = frozenset()

    def part_selections(self) -> Iterator[tuple[Part, Selection]]:
        """The parts of these files, in order."""
        return (pair for pair in super().part_selections() if any(file.path in self.paths for file in pair[0].files))


def export_answer(opened: OpenedPaths, statements: Statements, query: Query) -> tuple[str, str, Generator[bytes]]:
    """The rows of a statement. OptionError if it is invalid."""
    form, sql = _form(query), query.get("q", "")
    if not sql.strip():
        raise OptionError("no question: SQL expected")
    statement = _statement(opened, sql, _errors(query))

    def pieces() -> Iterator[bytes]:
        with statements.answering(statement, query.ending, seconds=SECONDS, in_all=MOST_SECONDS) as answer:
            yield b""  # what is wrong with it is an answer, not a broken download
            yield from _write_rows(form, answer.schema, answer.batches())

    return KINDS[form], f"answer.{form}", _limit(pieces())


def _form(query: Query) -> str:
    kind = query.get("as", "jsonl")
    if kind not in KINDS:
        raise unknown("form", kind, KINDS)
    return kind


def _write_rows(kind: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
    from rawlog.reading.render import csv_header, csv_lines, json_lines

    if kind == "arrow":
        yield from _arrow(schema, batches)
        return
    lines = json_lines(schema) if kind == "jsonl" else csv_lines(schema)
    if kind == "csv":
        yield csv_header(schema)
    rows = 0
    for batch in batches:
        rows += batch.num_rows
        if rows > MOST_ROWS:
            raise LimitError(f"more than {MOST_ROWS:,} rows: `rawlog cat` and `rawlog convert` have no such limit")
        yield from (bytes(piece) for piece in lines.pieces(batch))


def _arrow(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
    import pyarrow as pa

    written: list[bytes] = []
    with pa.ipc.new_stream(pa.PythonFile(_Pieces(written.append), mode="w"), schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            yield b"".join(written)
            written.clear()
    yield b"".join(written)


class _Pieces:
    """A file whose bytes are taken away as they are written."""

    closed = False

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self.take = take

    def write(self, data: bytes) -> int:
        self.take(bytes(data))
        return len(data)

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False


def _limit(pieces: Iterator[bytes]) -> Generator[bytes]:
    """The pieces, up to limits: after those the download breaks off, so that nobody takes it for all of it."""
    import time

    end, size = time.monotonic() + MOST_SECONDS, 0
    for piece in pieces:
        size += len(piece)
        if size > MOST_BYTES or time.monotonic() > end:
            raise LimitError(
                "the export is larger than the browser gives: `rawlog cat` and `rawlog convert` have no such limit"
            )
        yield piece
