"""The frame of every page: its head with style, scripts and policy, its heading and its foot."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from importlib import resources
from typing import Any

from rawlog import __version__
from rawlog.model.text import FIRST_DAY, LAST_DAY, plain_time, printable, size_text, to_json
from rawlog.model.verb import Line, Tone

#: So many paths are in a title.
TITLED = 2
#: Every request is forbidden; scripts and styles are only those of the page itself, by their digests.
POLICY = (
    "default-src 'none'; script-src {scripts}; style-src {styles}; img-src data:; base-uri 'none'; form-action 'none'"
)


@cache
def asset(name: str) -> str:
    """A file that comes with the package."""
    return (resources.files("rawlog.pages") / "assets" / name).read_text("utf-8")


def document(title: str, *content: Safe, has_charts: bool = False) -> str:
    """A whole page. `title` is plain text; `has_charts` brings the library that draws them."""
    style = asset("style.css") + (asset("uPlot.min.css") if has_charts else "")
    scripts = [*([_charts()] if has_charts else []), asset("page.js")]
    policy = POLICY.format(scripts=" ".join(map(_digest, scripts)), styles=_digest(style))
    head = joined(
        (
            Safe('<meta charset="utf-8">'),
            Safe(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
            Safe('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Safe('<meta name="color-scheme" content="light dark"><meta name="referrer" content="no-referrer">'),
            Safe(f'<meta name="generator" content="rawlog {__version__}">'),
            tag("title", text(title)),
            Safe(f"<style>{style}</style>"),
        )
    )
    skip = Safe('<a class="skip" href="#content">Skip to the content</a>')
    body = joined((skip, *content, _foot(), *(Safe(f"<script>{source}</script>") for source in scripts)))
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def heading(kind: str, title: str, *more: Safe) -> Safe:
    """The top of a page: what kind of page it is, and of what."""
    mark = Safe(
        '<svg class="mark" viewBox="0 0 24 24" aria-hidden="true"><rect x="2" y="4" width="20" height="4" rx="1"/>'
        '<rect x="2" y="10" width="13" height="4" rx="1"/><rect x="2" y="16" width="17" height="4" rx="1"/></svg>'
    )
    return tag("header", tag("p", mark, f"rawlog {kind}", class_="kind"), tag("h1", text(title, None)), *more)


def title_of(roots: Sequence[str]) -> str:
    """The paths that a page is about, in a few words."""
    return ", ".join(roots) if len(roots) <= TITLED else f"{roots[0]} and {len(roots) - 1:,} more paths"


def paths(roots: Sequence[str]) -> Safe:
    """All paths, where the title has only some."""
    return (
        details(f"All {len(roots):,} paths", tag("ul", *(tag("li", tag("code", root)) for root in roots)))
        if len(roots) > TITLED
        else Safe("")
    )


def main(*content: Safe) -> Safe:
    """The content of a page."""
    return tag("main", *content, id="content")


def section(title: str, *content: Safe, name: str | None = None, about: str = "") -> Safe:
    """A part of a page with its heading."""
    lead = (tag("p", about, class_="about"),) if about else ()
    return tag("section", tag("h2", title), *lead, *content, id=name)


def _foot() -> Safe:
    return tag(
        "footer",
        tag(
            "p",
            f"Made by rawlog {__version__} from the files alone. This page makes no request; nothing in it was sent anywhere.",
        ),
    )


@cache
def _charts() -> str:
    """uPlot with its license, which every copy must have."""
    return f"/*!\n{asset('uPlot-LICENSE').strip()}\n*/\n{asset('uPlot.iife.min.js')}"


def _digest(source: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(source.encode()).digest()).decode() + "'"


# ----------------------------------------------------------------------------------------------------------------------
# Markup: text made safe for a page, and tables, bars and commands made of it.


#: Longer text from data is cut in tables.
CHARACTERS = 300
_TONES = {Tone.GOOD: "good", Tone.BAD: "bad", Tone.CHANGED: "warn", Tone.TITLE: "lead"}


class Safe(str):
    """Markup: it goes into a page as it is. Made by this package only, of text that `text` has made safe."""

    __slots__ = ()


class Size(int):
    """A number of bytes, shown as people read it and sorted as a number."""

    __slots__ = ()


Cell = Any
"""What a cell may be: Safe, text, bytes, a Line with its tone, a number, or None."""


def text(value: Cell, most: int | None = CHARACTERS) -> Safe:
    """Any value as safe text: escaped, and with visible escapes instead of control characters and changes of direction."""
    if isinstance(value, Safe):
        return value
    if value is None:
        return Safe("")
    if isinstance(value, Line):
        inner = text(value.text, most)
        return Safe(f'<span class="{_TONES[value.tone]}">{inner}</span>') if value.tone in _TONES else inner
    if isinstance(value, bool):
        return Safe("yes" if value else "no")
    if isinstance(value, int):
        return Safe(f"{value:,}")
    if isinstance(value, float):
        return Safe(f"{value:,.1f}" if abs(value) < 100 else f"{value:,.0f}")
    shown = printable(value) if isinstance(value, (str, bytes)) else printable(to_json(value))
    if most is not None and len(shown) > most:
        shown = shown[: most - 1] + "…"
    return Safe(escape(shown))


def joined(parts: Iterable[str]) -> Safe:
    """Pieces of markup, one after the other. Plain text among them is made safe."""
    return Safe("".join(text(part, None) for part in parts))


def tag(name: str, *content: Cell, **attributes: Any) -> Safe:
    """An element. `class_` is `class`; `_` in other names is `-`; a value of None or False is left out."""
    pairs = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        plain = key.rstrip("_").replace("_", "-")
        pairs.append(f" {plain}" if value is True else f' {plain}="{text(str(value), None)}"')
    return Safe(f"<{name}{''.join(pairs)}>{joined(content)}</{name}>")


def time_text(microseconds: int | None) -> str:
    """A time for people: `2024-09-11 09:12:23 UTC`."""
    if microseconds is None:
        return ""
    whole = plain_time(microseconds)
    return f"{whole[:19].replace('T', ' ')} UTC" if FIRST_DAY <= microseconds <= LAST_DAY else whole


def when(microseconds: int | None) -> Safe:
    """The same in a table, without its zone, on one line: all times of a page are UTC."""
    return (
        tag("span", time_text(microseconds).removesuffix(" UTC"), class_="t") if microseconds is not None else Safe("")
    )


def rate(number: float, seconds: float, what: str) -> str:
    """How many in a time, per the unit that gives a readable number: `12.5 records/s`, `3 records/h`."""
    for unit, size in (("s", 1), ("min", 60), ("h", 3600)):
        if number / seconds * size >= 0.95:
            return (
                f"{number / seconds * size:,.3g} {what}/{unit}"
                if number / seconds * size < 1000
                else f"{number / seconds * size:,.0f} {what}/{unit}"
            )
    return f"{number / seconds * 86400:,.2g} {what}/d"


def duration(seconds: float) -> str:
    """A length of time for people: `3 d 4 h`, `12 min`, `0.4 s`."""
    for unit, size, lower, small in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if seconds >= size:
            whole, rest = divmod(int(seconds), size)
            return f"{whole:,} {unit}" + (f" {rest // small} {lower}" if rest >= small else "")
    return f"{seconds:.3g} s"


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    caption: str,
    *,
    sortable: bool = False,
    filtered: bool = False,
    kind: str = "",
    whole: bool = True,
) -> Safe:
    """A table with a caption for screen readers, in a region that scrolls by itself. Numbers are aligned at the right.

    With `sortable` its headings are buttons; with `filtered` a box above it hides rows without the typed text. Unless it is `whole`,
    columns with nothing in them are left out.
    """
    if not whole:
        used = [at for at in range(len(head)) if any(text(row[at]) for row in rows)]
        head, rows = [head[at] for at in used], [[row[at] for at in used] for row in rows]
    numeric = [
        bool(rows)
        and all(
            (isinstance(row[at], (int, float)) and not isinstance(row[at], bool)) or row[at] is None for row in rows
        )
        for at in range(len(head))
    ]
    heads = joined(
        tag("th", tag("button", name, type="button") if sortable else name, scope="col", class_="n" if number else None)
        for name, number in zip(head, numeric, strict=True)
    )
    body = joined(
        tag("tr", *(_cell(value, number) for value, number in zip(row, numeric, strict=True))) for row in rows
    )
    drawn = tag(
        "table",
        tag("caption", caption, class_="sr"),
        tag("thead", tag("tr", heads)),
        tag("tbody", body),
        class_=f"{kind}{' sortable' if sortable else ''}".strip() or None,
    )
    region = tag("div", drawn, class_="scroll", tabindex="0", role="region", aria_label=caption)
    if not filtered or len(rows) < 8:
        return region
    box = tag(
        "label",
        f"Show only rows of “{caption}” with ",
        Safe('<input type="search" data-filter autocomplete="off" spellcheck="false">'),
        class_="filter",
    )
    return tag("div", box, region, class_="filtered")


def _cell(value: Cell, number: bool) -> Safe:
    exact = f"{value}" if number and isinstance(value, (int, float)) else None
    shown = text(value)
    if isinstance(value, Line) and value.tone in _TONES:
        return tag("td", shown, class_=f"is-{_TONES[value.tone]}")
    if isinstance(value, Size):
        return tag("td", size_text(value), class_="n", data_value=str(int(value)))
    is_plain = isinstance(value, (str, bytes)) and not isinstance(value, Safe)
    longest = max(map(len, shown.split()), default=0) if is_plain else 0
    words = "words" if len(shown) > 40 and "<" not in shown else None
    return tag("td", shown, class_="n" if number else "long" if longest > 24 else words, data_value=exact)


def bar(share: float, label: Cell = "") -> Safe:
    """A number with a bar next to it; `share` is between 0 and 1."""
    width = round(max(0.0, min(1.0, share)) * 100, 1)
    drawn = f'<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true"><rect width="{width}" height="8"/></svg>'
    return Safe(f'<span class="barred">{drawn}<span>{text(label)}</span></span>')


def command(line: str) -> Safe:
    """A command to copy: a click selects all of it."""
    return tag("code", text(line, None), class_="command")


def details(summary: Cell, *content: Cell, is_open: bool = False, **attributes: Any) -> Safe:
    """Content that opens with a click or a key."""
    return tag("details", tag("summary", summary), *content, open=is_open, **attributes)


def facts(pairs: Iterable[tuple[str, Cell]]) -> Safe:
    """Names and values as a description list; those without a value are left out."""
    return tag(
        "dl",
        *(tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs if value not in (None, "")),
        class_="facts",
    )


def prose(about: str) -> Safe:
    """Plain paragraphs; text between backquotes is code."""
    paragraphs = []
    for paragraph in about.split("\n\n"):
        pieces = " ".join(paragraph.split()).split("`")
        paragraphs.append(
            tag(
                "p",
                *(tag("code", text(piece, None)) if at % 2 else text(piece, None) for at, piece in enumerate(pieces)),
            )
        )
    return joined(paragraphs)
