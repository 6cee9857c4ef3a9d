"""Small HTML tables, for notebooks: `_repr_html_` of what users hold. All text from files is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from html import escape
from typing import Any

from rawlog.core.text import printable, to_json

#: So many rows are shown in a notebook, and so many characters of one value.
ROWS, CHARACTERS = 20, 80


def html_table(names: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "") -> str:
    """A table with a line of names, and a caption below it."""
    heads = "".join(f"<th>{_text(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{_text(value)}</td>' for value in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>{html_note(caption) if caption else ''}"


def html_note(text: str) -> str:
    """A line of text."""
    return f"<p>{escape(printable(text))}</p>"


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        text = value.isoformat()
    else:
        text = printable(value) if isinstance(value, (str, bytes)) else printable(to_json(value))
    return escape(text if len(text) <= CHARACTERS else text[: CHARACTERS - 1] + "…")
