"""Charts: figures that uPlot draws from data in the page, each with its numbers as a table; and strips of offsets as SVG."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rawlog.core.profile import Offsets, Series, Sizes
from rawlog.core.text import counted, offset_range
from rawlog.pages.markup import Safe, Size, details, duration, table, tag, text, when

#: So many points a chart has, and so many rows its table.
POINTS, ROWS = 96, 24
#: How wide a strip of offsets is, in units of its own.
STRIP = 1000


def over_time(series: Series, name: str) -> Safe:
    """Records and bytes per second over time."""
    if not series:
        return Safe("")
    near, far = series.usual()
    shown = near.coarse(POINTS)
    width, rows = shown.width, shown.rows()
    starts, records, sizes = _filled(rows, shown.level)
    data = {
        "kind": "time",
        "x": starts,
        "width": round(width, 3),
        "series": [
            {"label": "records per second", "unit": "records/s", "values": [_short(one / width) for one in records]},
            {"label": "bytes per second", "unit": "B/s", "values": [_short(one / width) for one in sizes]},
        ],
    }
    coarse = series.coarse(ROWS)
    lines = [(when(start), count, Size(size), _short(count / coarse.width)) for start, count, size in coarse.rows()]
    heads = (f"from (each {duration(coarse.width)})", "records", "bytes", "records per second")
    note = f"{counted(far, 'record')} with far earlier or later times: only in the table." if far else ""
    return figure(data, f"Throughput of {name}", heads, lines, note)


def _filled(rows: list[tuple[int, int, int]], level: int) -> tuple[list[float], list[int], list[int]]:
    """Buckets in seconds, with empty ones where time went by without records: one at each end of such a time."""
    made: list[tuple[int, int, int]] = []
    step = 1 << level
    for row in rows:
        if made and row[0] - made[-1][0] > step:
            made += [(empty, 0, 0) for empty in dict.fromkeys((made[-1][0] + step, row[0] - step))]
        made.append(row)
    return [round(start / 1e6, 3) for start, _, _ in made], [one for _, one, _ in made], [one for _, _, one in made]


def of_sizes(sizes: Sizes, name: str) -> Safe:
    """How many messages have which size."""
    rows = sizes.rows()
    if not rows:
        return Safe("")
    labels = [_power(low) for low, _, _ in rows]
    data = {
        "kind": "bars",
        "labels": labels,
        "series": [{"label": "messages", "unit": "messages", "values": [one for *_, one in rows]}],
    }
    total = max(1, sizes.count)
    lines = [
        ("0 B" if not high else f"{low:,} to {high:,} B", count, round(100 * count / total, 2))
        for low, high, count in rows
    ]
    return figure(data, f"Message sizes of {name}", ("size of key and value", "messages", "percent"), lines)


def _power(size: int) -> str:
    """A power of two: `16 KiB`."""
    for unit, least in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= least:
            return f"{size // least} {unit}"
    return f"{size} B"


def figure(
    data: dict[str, Any], title: str, head: Sequence[str], rows: Sequence[Sequence[Any]], note: str = ""
) -> Safe:
    """A chart with its table. `note` says what the chart leaves out."""
    source = Safe(json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"))
    plot = tag(
        "div",
        class_="plot",
        role="img",
        tabindex="0",
        aria_label=f"{title}. Arrow keys move through it; a table follows.",
    )
    return tag(
        "figure",
        tag("figcaption", title),
        _legend(data),
        plot,
        tag("p", class_="reading", aria_live="polite"),
        Safe(f'<script type="application/json">{source}</script>'),
        tag("p", note, class_="about") if note else "",
        details("Numbers as a table", table(head, rows, title)),
        class_="chart",
    )


def _legend(data: dict[str, Any]) -> Safe:
    marks = (Safe("<i></i>"), Safe('<i class="two"></i>'))
    return tag(
        "p",
        *(tag("span", mark, one["label"]) for mark, one in zip(marks, data["series"], strict=False)),
        class_="legend",
    )


def strip(offsets: Offsets, name: str) -> Safe:
    """The offsets of a partition as a strip from the first to the last, with its gaps; and the gaps as a table."""
    gaps = offsets.largest()
    if not gaps or offsets.start is None or offsets.stop is None:
        return Safe("")
    first, span = offsets.start, max(1, offsets.covered)
    drawn = [f'<rect class="there" width="{STRIP}" height="20"/>']
    for gap in gaps:
        left, wide = (gap.start - first) * STRIP / span, max(2.0, gap.size * STRIP / span)
        what = text(f"{offset_range(gap.start, gap.stop)} are not there")
        drawn.append(
            f'<rect class="gap" x="{min(left, STRIP - wide):.2f}" width="{wide:.2f}" height="20"><title>{what}</title></rect>'
        )
    missing = f"{counted(offsets.count, 'gap')}, {counted(offsets.missing, 'offset')} not there"
    label = text(f"Offsets {first:,} to {offsets.stop - 1:,} of {name}: {missing}")
    picture = Safe(
        f'<svg class="strip" viewBox="0 0 {STRIP} 20" preserveAspectRatio="none" role="img" aria-label="{label}">{"".join(drawn)}</svg>'
    )
    lines = [(one.start, one.stop - 1, one.size, when(one.before), when(one.after)) for one in gaps]
    more = f"; the {len(gaps)} largest are listed" if offsets.count > len(gaps) else ""
    ends = tag("p", tag("span", f"{first:,}"), tag("span", f"{offsets.stop - 1:,}"), class_="ends")
    head = ("first missing", "last missing", "offsets", "last record before", "first record after")
    return tag(
        "figure",
        tag(
            "figcaption",
            f"{name}: {counted(offsets.count, 'gap')}, {counted(offsets.missing, 'offset')} not there{more}",
        ),
        picture,
        ends,
        details("Gaps as a table", table(head, lines, f"Gaps of {name}")),
        class_="gaps",
    )


def _short(value: float) -> float:
    """Four digits are enough for a chart."""
    return float(f"{value:.4g}")
