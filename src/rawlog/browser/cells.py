"""Values on a page: short ones in rows, whole ones by themselves. All of it is text, whatever it holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from rawlog.core.text import counted, to_json
from rawlog.pages.markup import Safe, details, joined, tag, text

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
            spaced([joined((tag("b", text(one["key"], 60)), "=", cell(_short(one["value"])))) for one in value[:8]])
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
        f"{at:>8}  {cut[at : at + 16].hex(' '):<47}  {''.join(chr(one) if 32 <= one < 127 else '·' for one in cut[at : at + 16])}"
        for at in range(0, min(len(cut), DIGITS), 16)
    ]
    hexes = details(
        f"Hex ({more})", tag("pre", Safe("\n".join(text(line, None) for line in digits)), class_="hex", tabindex="0")
    )
    return joined((shown, hexes))


def spaced(parts: Sequence[Safe]) -> list[Safe]:
    """Parts with spaces between them."""
    return [one for part in parts for one in (part, Safe(" "))]
