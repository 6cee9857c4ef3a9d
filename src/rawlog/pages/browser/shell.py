"""The shell around every page of the browser: head, navigation, search, keys. The style is that of all of rawlog's pages."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode

from rawlog import __version__
from rawlog.model.errors import OptionError
from rawlog.model.text import printable
from rawlog.model.verb import Kind, SearchField
from rawlog.pages.frame import Safe, details, joined, tag, text
from rawlog.reading.options import options_in, selection_from
from rawlog.reading.select import Selection
from rawlog.reading.tree import Tree

# ----------------------------------------------------------------------------------------------------------------------
# What a request asks for: its parameters, the selection that they describe, and links with other ones.


#: The field that searches for a text anywhere in a record; no option of `cat` does that.
TEXT = SearchField(8, "text", "Text", "in key, value or headers", "/")
#: The fields of a search, in their order on the page. They are declared with the options, in `reading/options.py`.
FIELDS = sorted(
    (TEXT, *(option.field for option in options_in("field") if option.field)), key=lambda field: field.place
)
#: Longer queries are refused.
LONGEST = 16 << 10
_MOST_FIELDS = 50


class Ending:
    """The end of a request: what is to be done when its answer is complete, or whoever asked is gone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: list[Callable[[], None]] | None = []

    def call(self, what: Callable[[], None]) -> None:
        """Call this at the end; at once if that has come."""
        with self._lock:
            if self._calls is not None:
                self._calls.append(what)
                return
        what()

    def end(self) -> None:
        """Call what is to be called, once."""
        with self._lock:
            calls, self._calls = self._calls or [], None
        for call in calls:
            call()


class Query(dict[str, str]):
    """The parameters of a request. Those that are empty are left out."""

    ending: Ending

    @classmethod
    def parse(cls, raw: bytes, ending: Ending | None = None) -> Query:
        """The parameters of a query string. OptionError if it is too long."""
        if len(raw) > LONGEST:
            raise OptionError(f"the request has {len(raw):,} bytes, more than {LONGEST:,}")
        pairs = parse_qsl(raw.decode("latin-1"), errors="surrogateescape", max_num_fields=_MOST_FIELDS)
        query = cls({name: value for name, value in pairs if value})
        query.ending = ending or Ending()
        return query

    def number(self, name: str, most: int = (1 << 63) - 1) -> int | None:
        """A whole number from 0 to `most`. OptionError for any other value."""
        value = self.get(name)
        if value is None:
            return None
        plain = value.replace(",", "").replace("_", "").strip()
        if not re.fullmatch(r"[0-9]{1,19}", plain) or int(plain) > most:
            raise OptionError(f"{name} {value!r}: a whole number up to {most:,} expected")
        return int(plain)

    def selection(self, tree: Tree | None = None) -> Selection:
        """The rows that are asked for, decoded with the schemas among the files of `tree`. OptionError for an invalid value."""
        options: dict[str, Any] = {"errors": "skip"}
        for option in options_in("field"):
            name = option.field.name if option.field else option.name
            if name not in self:
                continue
            if option.kind is Kind.NUMBER:
                options[option.name] = self.number(name)
            elif option.kind is Kind.PARTITIONS:
                options[option.name] = self.number(name, (1 << 31) - 1)
            else:
                options[option.name] = self[name]
        selection = selection_from(options)
        if TEXT.name in self:
            selection = selection.replace(text=self[TEXT.name].encode("utf-8", "surrogateescape"))
        if "decode" not in self or tree is None:
            return selection
        from rawlog.values.transform import Decode, bind, parse_decode

        decode = Decode(parse_decode(self["decode"]), None)
        return bind(selection.replace(transforms=(decode,)), tree).begun()


def link(page: str, parameters: Mapping[str, object] | None = None, **more: object) -> str:
    """The address of a page, relative to the one that it is on: it never has the token. A parameter of None is left out."""
    parts = {**(parameters or {}), **{name.rstrip("_"): value for name, value in more.items()}}
    shown = {name: str(value) for name, value in parts.items() if value is not None and value != ""}
    return page + ("?" + urlencode(shown, errors="surrogateescape") if shown else "")


KEYS = (
    ("/", "search for a text"),
    ("o", "go to an offset"),
    ("t", "go to a time"),
    ("k", "search for a key"),
    ("i", "search for an id"),
    ("w", "filter by an expression"),
    ("d", "choose how values are decoded"),
    ("b", "go to a byte of a file"),
    ("j or ↓", "next row"),
    ("K or ↑", "previous row"),
    ("Enter", "open the row"),
    ("n", "next page or next frame"),
    ("p", "previous frame, or back"),
    ("G", "the last rows"),
    ("u", "up, to the file or directory"),
    ("h", "home"),
    ("r", "records"),
    ("f", "findings"),
    ("s", "SQL"),
    ("e", "export"),
    ("Escape", "leave a field"),
    ("?", "this list of shortcuts"),
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
    shortcuts = tag("span", " Press ", key("?"), " for shortcuts.", class_="keys")
    foot = tag("footer", tag("p", f"rawlog {__version__}. Read-only: nothing is changed.", shortcuts))
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
        ("Shortcuts", link("keys"), "?", "keys"),
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
    steps = [anchor("all", link("at"), data_key="h u" if len(parts) == 1 else "h")]
    for at, part in enumerate(parts):
        up = "u" if at == len(parts) - 2 else None
        steps.append(anchor(text(part, 120), link("at", in_="/".join(parts[: at + 1])), data_key=up))
    return tag("nav", Safe(' <span class="sep">/</span> '.join(steps)), class_="crumbs", aria_label="Place")


def key(letter: str) -> Safe:
    """A key of the keyboard."""
    return tag("kbd", letter)


def anchor(label: object, where: str, **attributes: object) -> Safe:
    """A link."""
    return tag("a", label, href=where, **attributes)


def search(query: Query, tables: Sequence[str], chosen: str) -> Safe:
    """The form that searches rows of a scope: by offset, time, key, text, id or expression."""
    fields = []
    for field in FIELDS:
        name, label, letter, hint = field.name, field.label, field.key, field.hint
        box = Safe(
            f'<input name="{name}" value="{attribute(query.get(name, ""))}" placeholder="{text(hint)}"'
            f'{f" data-key={chr(34)}{letter}{chr(34)}" if letter else ""} autocomplete="off" spellcheck="false">'
        )
        fields.append(tag("label", tag("span", label, key(letter) if letter else ""), box, class_=f"f-{name}"))
    options = joined(
        Safe(f'<option value="{text(table)}"{" selected" if table == chosen else ""}>{text(table)}</option>')
        for table in tables
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
    items = [tag("li", text(sentence, 600)) for sentence in sentences[:20]]
    more = [tag("li", f"and {len(sentences) - 20:,} more")] if len(sentences) > 20 else []
    return tag("ul", *items, *more, class_="notes said", role="status")


def message(title: str, sentence: str) -> str:
    """A page that says what is wrong."""
    return page(title, "", tag("section", tag("p", text(sentence, 4000), class_="error", role="alert")))


def keys_page() -> str:
    """What the keys do."""
    rows = joined(
        tag("div", tag("dt", *(key(name) for name in keys.split(" or "))), tag("dd", what)) for keys, what in KEYS
    )
    return page("Shortcuts", "", tag("section", tag("dl", rows, class_="keys")), here="keys")


def command_line(parts: Sequence[str]) -> Safe:
    """The command that does the same."""
    import shlex

    line = " ".join(shlex.quote(printable(part)) for part in parts)
    return details("As a command", tag("code", text(line, None), class_="command"))


def hidden_fields(fields: Mapping[str, str]) -> Safe:
    """Parameters that a form passes on."""
    return joined(
        Safe(f'<input type="hidden" name="{text(name)}" value="{attribute(value)}">') for name, value in fields.items()
    )
