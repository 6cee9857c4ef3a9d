"""What a request asks for: its parameters, the selection that they describe, and links with other ones."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode

from rawlog.core.errors import OptionError
from rawlog.core.times import parse_time
from rawlog.reading.select import Selection
from rawlog.reading.tree import Tree

#: The fields of a search, with how each is shown and the key that leads to it.
FIELDS = {
    "from": ("From offset", "o", "42"),
    "to": ("To offset", "", "not included"),
    "since": ("Since", "t", "2024-09-11T09:12 or -2h"),
    "until": ("Until", "", "not included"),
    "topic": ("Topic", "", "orders or order*"),
    "partition": ("Partition", "", "0"),
    "key": ("Key", "k", "the whole key"),
    "text": ("Text", "/", "in key, value or headers"),
    "id": ("Id", "i", "message or blob id"),
    "where": ("Where", "w", "length(value) > 100"),
    "decode": ("Decode", "d", "value=auto"),
}
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
        for one in calls:
            one()


class Query(dict[str, str]):
    """The parameters of a request. Those that are empty are left out."""

    ending: Ending

    @classmethod
    def parse(cls, raw: bytes, ending: Ending | None = None) -> Query:
        """The parameters of a query string. OptionError if it is too long."""
        if len(raw) > LONGEST:
            raise OptionError(f"the request has {len(raw):,} bytes, more than {LONGEST:,}")
        pairs = parse_qsl(raw.decode("latin-1"), errors="surrogateescape", max_num_fields=_MOST_FIELDS)
        made = cls({name: value for name, value in pairs if value})
        made.ending = ending or Ending()
        return made

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
        given: dict[str, Any] = {"errors": "skip"}
        for name, field in (("from", "from_offset"), ("to", "to_offset")):
            if name in self:
                given[field] = self.number(name)
        for name in ("since", "until"):
            if name in self:
                given[name] = parse_time(self[name])
        if "key" in self:
            given["key"] = self["key"].encode("utf-8", "surrogateescape")
        if "text" in self:
            given["text"] = self["text"].encode("utf-8", "surrogateescape")
        if "topic" in self:
            given["topics"] = (self["topic"],)
        if "partition" in self:
            given["partitions"] = (self.number("partition", (1 << 31) - 1),)
        for name in ("id", "where"):
            if name in self:
                given[name] = self[name]
        if "decode" not in self or tree is None:
            return Selection(**given)
        from rawlog.schemas.transform import Decode, bind, parse_decode

        return bind(Selection(**given, transforms=(Decode(parse_decode(self["decode"]), None),)), tree).begun()


def link(page: str, given: Mapping[str, object] | None = None, **more: object) -> str:
    """The address of a page, relative to the one that it is on: it never has the token. A parameter of None is left out."""
    every = {**(given or {}), **{name.rstrip("_"): value for name, value in more.items()}}
    shown = {name: str(value) for name, value in every.items() if value is not None and value != ""}
    return page + ("?" + urlencode(shown, errors="surrogateescape") if shown else "")
