"""The frame of every page: its head with style, scripts and policy, its heading and its foot."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib import resources

from rawlog import __version__
from rawlog.pages.markup import Safe, details, joined, tag, text

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
    body = joined((skip, *content, _foot(), *(Safe(f"<script>{one}</script>") for one in scripts)))
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
        details(f"All {len(roots):,} paths", tag("ul", *(tag("li", tag("code", one)) for one in roots)))
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
