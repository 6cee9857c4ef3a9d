"""Figures of the site: byte layouts as rulers, and real sample files as maps of their frames. SVG, made from declarations and data."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from rawlog.model.layout import Layout

COLOURS = ("#cfe3f7", "#d8efd3", "#fbe3c0", "#ead7f3", "#f8d3d3", "#d3efef", "#eeeab8", "#e0e0e0")
STYLE = "font-family: ui-monospace, Menlo, Consolas, monospace; font-size: 12px"
WIDE = 900


def slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _svg(width: float, height: float, title: str, body: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" role="img" style="{STYLE}">'
        f'<title>{escape(title)}</title><rect width="100%" height="100%" fill="#ffffff"/>{"".join(body)}</svg>\n'
    )


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(text)}</text>'


def layout(one: Layout) -> str:
    """A structure, 16 bytes in a row: what is at which byte."""
    cell, high, left = 52, 34, 44
    body = [_text(left + column * cell + cell / 2 - 8, 14, f"+{column}", 'fill="#666"') for column in range(16)]
    for row in range((one.size + 15) // 16):
        body.append(_text(4, 20 + row * high + 21, str(row * 16), 'fill="#666"'))
    for number, field in enumerate(one.fields):
        at, left_over = one.at(field.name), field.size
        is_first = True
        while left_over:
            row, column = divmod(at, 16)
            count = min(left_over, 16 - column)
            x, y, wide = left + column * cell, 20 + row * high, count * cell
            colour = COLOURS[number % len(COLOURS)]
            body.append(
                f"<g><title>{escape(field.name)}: byte {one.at(field.name)}, {field.size} bytes, {escape(field.type)}</title>"
                f'<rect x="{x}" y="{y}" width="{wide}" height="{high - 4}" fill="{colour}" stroke="#555"/>'
            )
            room = max(1, int((wide - 6) / 7.3))
            name = field.name if is_first else "…"
            body.append(_text(x + 4, y + 19, name if len(name) <= room else name[: room - 1] + "…") + "</g>")
            at, left_over, is_first = at + count, left_over - count, False
    rows = (one.size + 15) // 16
    return _svg(left + 16 * cell + 4, 24 + rows * high, f"{one.name}, {one.size} bytes", body)


class Box(NamedTuple):
    """A stretch of a file in a map."""

    start: int
    size: int
    kind: str
    title: str


def file_map(
    title: str,
    files: Sequence[tuple[str, Sequence[Box]]],
    marks: Mapping[str, Sequence[int]] | None = None,
    mark: str = "",
) -> str:
    """Files as bars, to one scale; their frames as boxes in the colour of their kind. `marks` point at bytes of some files."""
    kinds = list(dict.fromkeys(box.kind for _, boxes in files for box in boxes))
    longest = max(box.start + box.size for _, boxes in files for box in boxes)
    scale = (WIDE - 20) / longest
    body: list[str] = []
    for row, (name, boxes) in enumerate(files):
        y = 8 + row * 52
        body.append(_text(10, y + 11, name))
        for box in boxes:
            colour = COLOURS[kinds.index(box.kind) % len(COLOURS)]
            wide = max(box.size * scale, 1.0)
            body.append(
                f'<g><title>{escape(box.title)}</title><rect x="{10 + box.start * scale:.1f}" y="{y + 16}" '
                f'width="{wide:.1f}" height="24" fill="{colour}" stroke="#555" stroke-width="0.5"/></g>'
            )
        for at in (marks or {}).get(name, ()):
            x = 10 + at * scale
            body.append(f'<path d="M{x:.1f} {y + 40} l-5 8 h10 z" fill="#b3261e"/>')
    y, x = 8 + len(files) * 52 + 14, 10.0
    for number, kind in enumerate(kinds):
        body.append(
            f'<rect x="{x:.0f}" y="{y - 11}" width="14" height="14" fill="{COLOURS[number % len(COLOURS)]}" stroke="#555"/>'
        )
        body.append(_text(x + 20, y, kind))
        x += 40 + 7.4 * len(kind)
    if mark:
        body.append(f'<path d="M{x + 6:.0f} {y - 9} l-5 8 h10 z" fill="#b3261e"/>' + _text(x + 18, y, mark))
    body.append(_text(WIDE - 190, y, f"full width: {longest:,} bytes", 'fill="#666"'))
    return _svg(WIDE, y + 10, title, body)


class Bar(NamedTuple):
    """A ratio in a chart."""

    label: str
    ratio: float


def ratios(title: str, bars: Sequence[Bar], less: str, more: str) -> str:
    """Ratios as bars to the left and right of 1, on a logarithmic scale: losses are red."""
    left, high, wide = 430, 20, 400
    reach = max([1.0, *(abs(math.log10(bar.ratio)) for bar in bars)])
    middle = left + wide * (0.5 if any(bar.ratio < 1 for bar in bars) else 0.05)
    scale = min(middle - left, left + wide - middle) / reach if middle > left + 30 else (left + wide - middle) / reach
    body = [_text(middle + 4, 14, more, 'fill="#666"')]
    if any(bar.ratio < 1 for bar in bars):
        body.append(_text(left, 14, less, 'fill="#666"'))
    for row, bar in enumerate(bars):
        y, size = 22 + row * high, math.log10(bar.ratio) * scale
        colour = "#9ccc8f" if size >= 0 else "#e59a94"
        body.append(_text(4, y + 13, bar.label))
        body.append(
            f'<rect x="{min(middle, middle + size):.1f}" y="{y + 2}" width="{max(abs(size), 0.5):.1f}" height="{high - 5}" '
            f'fill="{colour}" stroke="#555" stroke-width="0.5"/>'
        )
        body.append(
            _text(max(middle, middle + size) + 4, y + 13, f"{bar.ratio:.2f}" if bar.ratio < 10 else f"{bar.ratio:.0f}")
        )
    bottom = 24 + len(bars) * high
    body.append(f'<path d="M{middle:.1f} 18 V{bottom}" stroke="#555"/>')
    return _svg(WIDE, bottom + 6, title, body)
