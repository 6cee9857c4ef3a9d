"""The shell around every page of the browser: head, navigation, search, keys. The style is that of all of rawlog's pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rawlog import __version__
from rawlog.browser.request import FIELDS, Query, link
from rawlog.core.text import printable
from rawlog.pages.markup import Safe, details, joined, tag, text

KEYS = (
    ("/", "search for a text"),
    ("o", "go to an offset"),
    ("t", "go to a time"),
    ("k", "search for a key"),
    ("i", "search for an id"),
    ("w, d", "an expression; how values are decoded"),
    ("b", "go to a byte of a file"),
    ("j or ↓, K or ↑", "next or previous row"),
    ("Enter", "open the row"),
    ("n", "next page or next frame"),
    ("p", "previous frame; back"),
    ("G", "the last rows"),
    ("u", "up: the directory, the file"),
    ("h", "home"),
    ("r", "records"),
    ("f", "findings"),
    ("s", "SQL"),
    ("e", "export"),
    ("Escape", "leave a field"),
    ("?", "this list"),
)

#: The forms of an export, with how each is shown.
FORMS = (("jsonl", "JSON lines"), ("csv", "CSV"), ("arrow", "Arrow"))


def document(title: str, *content: Safe) -> str:
    """A whole page. Style and scripts are files of the server: nothing in a page can bring its own."""
    head = joined(
        (
            Safe('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'),
            Safe('<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'),
            tag("title", text(f"{title} · rawlog", 200)),
            Safe('<link rel="stylesheet" href="assets/style.css"><link rel="stylesheet" href="assets/browse.css">'),
            Safe('<script src="assets/page.js" defer></script><script src="assets/browse.js" defer></script>'),
        )
    )
    skip = Safe('<a class="skip" href="#content">Skip to the content</a>')
    foot = tag(
        "footer", tag("p", f"rawlog {__version__}. Read-only: nothing is changed. Press ", key("?"), " for keys.")
    )
    body = joined((skip, *content, foot))
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def page(title: str, name: str, *content: Safe, here: str = "") -> str:
    """A page about a name: navigation at the top, then the content."""
    mark = Safe(
        '<svg class="mark" viewBox="0 0 24 24" aria-hidden="true"><rect x="2" y="4" width="20" height="4" rx="1"/>'
        '<rect x="2" y="10" width="13" height="4" rx="1"/><rect x="2" y="16" width="17" height="4" rx="1"/></svg>'
    )
    links = (
        ("Files", link("at", in_=name), None, "files"),
        ("Records", link("rows", in_=name), "r", "rows"),
        ("Findings", link("findings", in_=name), "f", "findings"),
        ("SQL", link("sql"), "s", "sql"),
        ("Keys", link("keys"), "?", "keys"),
    )
    items = (
        tag(
            "a",
            label,
            key(letter) if letter else "",
            href=where,
            data_key=letter,
            aria_current="page" if at == here else None,
        )
        for label, where, letter, at in links
    )
    top = tag(
        "header",
        tag(
            "div",
            tag("p", mark, "rawlog browse", class_="kind"),
            tag("nav", *items, aria_label="Views"),
            class_="bar-top",
        ),
        crumbs(name),
        tag("h1", text(title, 300)),
    )
    return document(title, top, tag("main", *content, id="content"))


def crumbs(name: str) -> Safe:
    """The way to a name, each step a link."""
    parts = name.split("/") if name else []
    made = [anchor("all", link("at"), data_key="h u" if len(parts) == 1 else "h")]
    for at, part in enumerate(parts):
        up = "u" if at == len(parts) - 2 else None
        made.append(anchor(text(part, 120), link("at", in_="/".join(parts[: at + 1])), data_key=up))
    return tag("nav", Safe(' <span class="sep">/</span> '.join(made)), class_="crumbs", aria_label="Place")


def key(letter: str) -> Safe:
    """A key of the keyboard."""
    return tag("kbd", letter)


def anchor(label: object, where: str, **attributes: object) -> Safe:
    """A link."""
    return tag("a", label, href=where, **attributes)


def search(query: Query, tables: Sequence[str], chosen: str) -> Safe:
    """The form that searches rows of a scope: by offset, time, key, text, id or expression."""
    fields = []
    for name, (label, letter, hint) in FIELDS.items():
        box = Safe(
            f'<input name="{name}" value="{attribute(query.get(name, ""))}" placeholder="{text(hint)}"'
            f'{f" data-key={chr(34)}{letter}{chr(34)}" if letter else ""} autocomplete="off" spellcheck="false">'
        )
        fields.append(tag("label", tag("span", label, key(letter) if letter else ""), box, class_=f"f-{name}"))
    options = joined(
        Safe(f'<option value="{text(one)}"{" selected" if one == chosen else ""}>{text(one)}</option>')
        for one in tables
    )
    choice = tag("label", tag("span", "Table"), Safe(f'<select name="table">{options}</select>'))
    hidden = Safe(f'<input type="hidden" name="in" value="{attribute(query.get("in", ""))}">')
    button = Safe('<button type="submit">Show rows</button>')
    return tag("form", hidden, choice, *fields, button, class_="search", action="rows", method="get", role="search")


def attribute(value: str) -> Safe:
    """A value of a form, which must come back as it is: escaped, and nothing else."""
    from html import escape

    return Safe(escape(value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")))


def notes(sentences: Sequence[str]) -> Safe:
    """What is to be said of a page: damage that was passed over, a choice of replicas."""
    if not sentences:
        return Safe("")
    items = [tag("li", text(one, 600)) for one in sentences[:20]]
    more = [tag("li", f"and {len(sentences) - 20:,} more")] if len(sentences) > 20 else []
    return tag("ul", *items, *more, class_="notes said", role="status")


def message(title: str, sentence: str) -> str:
    """A page that says what is wrong."""
    return page(title, "", tag("section", tag("p", text(sentence, 4000), class_="error", role="alert")))


def keys_page() -> str:
    """What the keys do."""
    rows = joined(
        tag("div", tag("dt", *(key(one) for one in keys.split(" or "))), tag("dd", what)) for keys, what in KEYS
    )
    return page("Keys", "", tag("section", tag("dl", rows, class_="keys")), here="keys")


def command_line(parts: Sequence[str]) -> Safe:
    """The command that does the same."""
    import shlex

    line = " ".join(shlex.quote(printable(one)) for one in parts)
    return details("As a command", tag("code", text(line, None), class_="command"))


def hidden_fields(given: Mapping[str, str]) -> Safe:
    """Parameters that a form passes on."""
    return joined(
        Safe(f'<input type="hidden" name="{text(name)}" value="{attribute(value)}">') for name, value in given.items()
    )
