"""Small HTML tables, for notebooks: `_repr_html_` of what users hold. All text from files is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import Enum
from typing import Any

from rawlog.core.text import printable, to_json

#: So many rows are shown in a notebook, and so many characters of one value.
ROWS, CHARACTERS = 20, 80


#: The look of rawlog's pages, in the colours of the notebook where it has some.
_STYLE = """
.rawlog{--line:var(--jp-border-color2,#dde2e8);--soft:var(--jp-ui-font-color2,#535e6b);font:13.5px/1.5 system-ui,sans-serif;max-width:100%}
.rawlog .scroll{overflow:auto;max-height:420px;border:1px solid var(--line);border-radius:8px}
.rawlog table{border-collapse:collapse;margin:0;width:100%;font-size:13px}
.rawlog th,.rawlog td{text-align:left;vertical-align:top;padding:4px 12px;border-bottom:1px solid var(--line);max-width:60ch}
.rawlog td{font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
.rawlog th{color:var(--soft);font-weight:600;white-space:nowrap}
.rawlog td.n,.rawlog th.n{text-align:right;white-space:nowrap}
.rawlog td.t{white-space:nowrap}
.rawlog .null{color:var(--soft);font-style:italic}
.rawlog .bad,.rawlog .warn{border-radius:999px;padding:0 9px;font-weight:600}
.rawlog .bad{background:#fce6e4;color:#a8201a}.rawlog .warn{background:#fcf0d6;color:#7d4b00}
.rawlog p{margin:4px 0 8px;color:var(--soft)}
"""
_TONES = {"error": "bad", "warning": "warn", "lost": "bad", "dropped": "warn"}


def html_table(
    names: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "", *, shows_null: bool = False
) -> str:
    """A table with a line of names, and a caption above it. Numbers are aligned at the right; `shows_null` is for data."""
    every = [list(row) for row in rows]
    kinds = [_kind([row[at] for row in every if at < len(row)]) for at in range(len(names))]
    heads = "".join(f"<th{kind}>{_text(name)}</th>" for name, kind in zip(names, kinds, strict=True))
    body = "".join(
        f"<tr>{''.join(f'<td{kind}>{_cell(value, shows_null)}</td>' for value, kind in zip(row, kinds, strict=False))}</tr>"
        for row in every
    )
    head = html_note(caption) if caption else ""
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="rawlog"><style>{_STYLE}</style>{head}<div class="scroll">{table}</div></div>'


def _kind(column: Sequence[Any]) -> str:
    there = [value for value in column if value is not None]
    if there and all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in there):
        return ' class="n"'
    return ' class="t"' if there and all(isinstance(value, datetime) for value in there) else ""


def _cell(value: Any, shows_null: bool) -> str:
    """A value in a table. In data, no value and an empty one differ."""
    if value is None:
        return '<span class="null">null</span>' if shows_null else ""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    tone = _TONES.get(str(value)) if isinstance(value, Enum) else None
    return _text(value) if tone is None else f'<span class="{tone}">{_text(value)}</span>'


def html_note(text: str) -> str:
    """A line of text."""
    from html import escape

    return f"<p>{escape(printable(text))}</p>"


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        text = value.isoformat()
    else:
        text = printable(value) if isinstance(value, (str, bytes)) else printable(to_json(value))
    from html import escape

    return escape(text if len(text) <= CHARACTERS else text[: CHARACTERS - 1] + "…")
