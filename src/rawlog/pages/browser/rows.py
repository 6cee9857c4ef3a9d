"""A page of rows: so many from a place on, within a time, each with the frame that it is in; and where the next page begins."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rawlog import registry
from rawlog.io.walk import describe, walk
from rawlog.model.errors import AccessError, DataError, OptionError
from rawlog.model.finding import Finding
from rawlog.model.format import File
from rawlog.model.frames import Frames
from rawlog.model.report import SeriousNote
from rawlog.model.table import Table
from rawlog.model.text import counted, to_json
from rawlog.pages.browser.files import Listing, Scope
from rawlog.pages.frame import Safe, details, joined, tag, text
from rawlog.reading.inspect import RuleChoice, check_file
from rawlog.reading.parts import Part, choose_replicas, cut, plan
from rawlog.reading.rows import Decoder, Loss, Rows, dict_rows, is_past, read
from rawlog.reading.select import Selection

if TYPE_CHECKING:
    import pyarrow as pa


# ----------------------------------------------------------------------------------------------------------------------
# Values on a page: short ones in rows, whole ones by themselves. All of it is text, whatever it holds.


#: So many characters of a value are in a row, so many bytes of it by itself, and so many of those as hex digits.
CHARACTERS, SHOWN, DIGITS = 200, 64 << 10, 4096


def kind(value: Any) -> str | None:
    """How a cell with a value looks: numbers at the right, bytes in a fixed width."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return "n"
    return "v" if isinstance(value, (bytes, list, dict, tuple)) else None


def cell(value: Any) -> Safe:
    """A value in a row: short, on one line. No value and an empty one differ."""
    if value is None:
        return tag("span", "null", class_="null")
    if isinstance(value, datetime):
        return tag("span", f"{value:%Y-%m-%d %H:%M:%S}.{value.microsecond // 1000:03}", class_="t")
    if isinstance(value, (bytes, str)):
        if not value:
            return tag("span", "empty", class_="null")
        more = (
            f" ({len(value):,} {'bytes' if isinstance(value, bytes) else 'characters'})"
            if len(value) > CHARACTERS
            else ""
        )
        return joined((text(value[:CHARACTERS], CHARACTERS * 4), tag("span", more, class_="soft") if more else ""))
    if isinstance(value, list) and value and isinstance(value[0], dict) and set(value[0]) == {"key", "value"}:
        return joined(
            with_spaces(
                [
                    joined((tag("b", text(header["key"], 60)), "=", cell(_short(header["value"]))))
                    for header in value[:8]
                ]
            )
        )
    return Safe("") if value == [] else text(value, CHARACTERS)


def _short(value: Any) -> Any:
    return value[:80] if isinstance(value, (bytes, str)) else value


def whole(value: Any) -> Safe:
    """A value whole, as far as a page can show it: JSON with its lines, other text as it is, bytes as hex digits as well."""
    if isinstance(value, (dict, list)):  # a decoded value with columns
        value = to_json(value)
    if not isinstance(value, (bytes, str)) or not value:
        return cell(value)
    raw = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
    cut = raw[:SHOWN]
    more = f"the first {len(cut):,} of {len(raw):,} bytes" if len(raw) > len(cut) else counted(len(raw), "byte")
    lines = None
    if len(raw) == len(cut) and raw[:1] in (b"{", b"["):
        try:
            lines = json.dumps(json.loads(raw), indent=2, ensure_ascii=False).split("\n")
        except (ValueError, RecursionError):
            lines = None
    if lines is None:
        lines = cut.decode("utf-8", "backslashreplace").split("\n")
    shown = tag("pre", joined(Safe(text(line, None) + "\n") for line in lines), class_="value", tabindex="0")
    digits = [
        f"{at:>8}  {cut[at : at + 16].hex(' '):<47}  {''.join(chr(byte) if 32 <= byte < 127 else '·' for byte in cut[at : at + 16])}"
        for at in range(0, min(len(cut), DIGITS), 16)
    ]
    hexes = details(
        f"Hex ({more})", tag("pre", Safe("\n".join(text(line, None) for line in digits)), class_="hex", tabindex="0")
    )
    return joined((shown, hexes))


def with_spaces(parts: Sequence[Safe]) -> list[Safe]:
    """Parts with spaces between them."""
    return [item for part in parts for item in (part, Safe(" "))]


#: The most rows of a page, the seconds that one may take, and the bytes around its rows that are checked.
ROWS, MOST_ROWS, SECONDS, CHECKED = 100, 1000, 3.0, 32 << 20
#: Pieces in which the end of a file is looked for.
PIECE = 4 << 20


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a page begins: a frame of a file, and rows of it to skip. Of tables that are not made of frames, only rows to skip."""

    file: str = ""
    position: int = 0
    number: int = 0
    skip: int = 0

    def __str__(self) -> str:
        return f"{self.position}.{self.number}.{self.skip}.{self.file}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """The cursor of a text. OptionError if it is not one."""
        parts = text.split(".", 3)
        if len(parts) != 4 or not all(number.isdecimal() and len(number) < 20 for number in parts[:3]):
            raise OptionError(f"{text!r} is not a place in the files")
        return cls(parts[3], int(parts[0]), int(parts[1]), int(parts[2]))


@dataclass(frozen=True, slots=True)
class Row:
    """A row, and its frame: `size` bytes at `position` of a file; None where a table is not made of frames."""

    values: Mapping[str, Any]
    file: File | None = None
    position: int = 0
    size: int = 0


@dataclass(slots=True)
class Page:
    """Rows, in order; where the next page begins; and why this one ended, if not at the end of the files."""

    rows: list[Row] = field(default_factory=list)
    next: Cursor | None = None
    is_late: bool = False
    searched: int = 0
    notes: dict[str, None] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    has_damage: bool = False

    def note(self, text: str) -> None:
        """Remember a sentence once."""
        self.notes[text] = None
        self.has_damage |= isinstance(text, SeriousNote)


class _End(Exception):
    """The page is full, or its time is over."""


def rows_of(
    listing: Listing,
    scope: Scope,
    table: Table,
    selection: Selection,
    *,
    cursor: Cursor | None = None,
    most: int = ROWS,
    seconds: float | None = None,
) -> Page:
    """The first `most` rows from a cursor on, in so many seconds. RawlogError if table or selection do not fit; damage is a note."""
    page = Page()
    tree = choose_replicas(scope.wide, selection, page.note, table=table)
    rows = Rows(tree, table, selection)
    deadline = time.monotonic() + (SECONDS if seconds is None else seconds)
    with contextlib.suppress(_End):
        if table.name in ("files", "findings") or not registry.formats_with(table):
            _plain(rows, scope, page, cursor or Cursor(), most, deadline)
        else:
            _frame_rows(rows, listing, scope, page, cursor, most, deadline)
    page.findings = _findings(page)
    return page


def last_rows(scope: Scope, table: Table, selection: Selection, most: int) -> Page:
    """The last rows of some files. Files are read from their last piece on, where something tells where frames begin."""
    page = Page()
    tree = choose_replicas(scope.wide, selection, page.note, table=table)
    Rows(tree, table, selection)
    if table.name in ("files", "findings") or not registry.formats_with(table):
        raise OptionError(f"the last rows of {table.name} cannot be found without reading all of them")
    deadline = time.monotonic() + SECONDS
    parts = [part for part in plan(tree, table, selection) if part.file.path in scope.paths]
    for part in reversed(parts):
        for piece in reversed(cut(part, tree.group_of(part.file), PIECE, reading=False)):
            last = Page()
            with contextlib.suppress(_End):
                _part(piece, table, selection, last, None, 1 << 62, deadline, "")
            page.rows = [*last.rows, *page.rows][-most:]
            page.notes |= last.notes
            if last.is_late:
                page.is_late = True
            if len(page.rows) >= most or last.is_late:
                page.findings = _findings(page)
                return page
    page.findings = _findings(page)
    return page


def _plain(rows: Rows, scope: Scope, page: Page, cursor: Cursor, most: int, deadline: float) -> None:
    """Rows of a table that is made of whole files."""
    seen = 0
    for part, selection in rows.part_selections():
        if not any(file.path in scope.paths for file in part.files):
            continue
        page.searched += part.size
        for batch in read(part, rows.table, selection, page.note):
            for values in dict_rows(batch):
                seen += 1
                if seen <= cursor.skip:
                    continue
                if len(page.rows) == most:
                    page.next = Cursor(skip=seen - 1)
                    raise _End
                page.rows.append(Row(values))
        if time.monotonic() > deadline:
            page.next, page.is_late = Cursor(skip=seen), True
            raise _End


def _frame_rows(
    rows: Rows, listing: Listing, scope: Scope, page: Page, cursor: Cursor | None, most: int, deadline: float
) -> None:
    """Rows with the frames that they are in."""
    for part, selection in rows.part_selections():
        if part.file.path not in scope.paths:
            continue
        name = listing.names[part.file.path]
        if cursor is not None:
            if name != cursor.file or (part.stop is not None and part.stop <= cursor.position):
                continue
            if (part.start or 0) < cursor.position:
                part = replace(part, start=cursor.position, first=cursor.number)
        elif time.monotonic() > deadline:
            page.next, page.is_late = Cursor(name, part.start or 0, part.first), True
            raise _End
        _part(part, rows.table, selection, page, cursor, most, deadline, name)
        cursor = None
    if cursor is not None:
        raise OptionError("this place is not in the files any more: begin the search again")


def _part(
    part: Part,
    table: Table,
    selection: Selection,
    page: Page,
    cursor: Cursor | None,
    most: int,
    deadline: float,
    name: str,
) -> None:
    decoder = Decoder(part, table, selection, page.note)
    format, file, skip = decoder.format, part.file, 0 if cursor is None else cursor.skip
    try:
        for frames in walk(file, format, start=part.start, stop=part.stop, first=part.first, errors="skip"):
            page.searched += int(frames.sizes.sum())
            for at, batch in _locate_rows(decoder, frames, 0, len(frames)):
                position, size, number = int(frames.positions[at]), int(frames.sizes[at]), frames.first + at
                for count, values in enumerate(dict_rows(batch)):
                    if count < skip:
                        continue
                    if len(page.rows) >= most:
                        page.next = Cursor(name, position, number, count)
                        raise _End
                    page.rows.append(Row(values, file, position, size))
                skip = 0
            if frames.status.is_damage:
                page.note(Loss(str(describe(format, frames, file.path)).splitlines()[0]))
            if format.ordered and is_past(frames, format, file, selection.to_offset):
                return
            if time.monotonic() > deadline and not frames.last:
                page.next = Cursor(name, frames.reached_in_file, frames.first + len(frames))
                page.is_late = True
                raise _End
    except (DataError, AccessError) as error:
        page.note(Loss(str(error).splitlines()[0]))


def _locate_rows(decoder: Decoder, frames: Frames, start: int, stop: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The wanted rows of frames, each with the number of its frame: frames without any are passed over in halves."""
    import pyarrow as pa

    if start >= stop:
        return
    batches = [batch for batch in decoder.see(frames.slice(start, stop)) if batch.num_rows]
    if not batches:
        return
    if stop - start == 1:
        for batch in pa.Table.from_batches(batches).combine_chunks().to_batches():
            yield start, batch
        return
    middle = (start + stop) // 2
    yield from _locate_rows(decoder, frames, start, middle)
    yield from _locate_rows(decoder, frames, middle, stop)


def _findings(page: Page) -> list[Finding]:
    """What the rules of their formats find in the frames of a page."""
    findings: dict[Finding, None] = {}
    left = CHECKED
    for file, start, stop in _spans(page.rows):
        left -= stop - start
        if left < 0:
            page.note("not all of these rows were checked for damage: verify does that")
            break
        for finding in check_file(file, RuleChoice(), start=start, stop=stop).findings:
            if finding.position is not None:
                findings[finding] = None
    return list(findings)


def _spans(rows: list[Row]) -> list[tuple[File, int, int]]:
    """Stretches of files that have the frames of some rows, neighbours together."""
    spans: list[tuple[File, int, int]] = []
    for row in rows:
        if row.file is None:
            continue
        stop = row.position + row.size
        if spans and spans[-1][0] is row.file and spans[-1][1] <= row.position <= spans[-1][2]:
            spans[-1] = (row.file, spans[-1][1], max(spans[-1][2], stop))
        else:
            spans.append((row.file, row.position, stop))
    return spans
