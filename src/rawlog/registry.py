"""The registry: every family rawlog knows, found by name. Nothing else in the package names a format."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import lru_cache

from rawlog.core.errors import UnknownFormatError, unknown
from rawlog.core.format import Family, Format, Lookup
from rawlog.core.tables import COMMON, Table
from rawlog.core.verb import Verb

FAMILIES = ("kafka", "kraft", "rocketmq", "replay", "ambry")
"""In the order in which recognition asks them: the head of a recording is almost all zeros, and DLedger's is one too."""


@lru_cache(maxsize=1)
def families() -> tuple[Family, ...]:
    """All families, in the order in which recognition asks them."""
    return tuple(importlib.import_module(f"rawlog.formats.{name}").FAMILY for name in FAMILIES)


@lru_cache(maxsize=1)
def formats() -> dict[str, Format]:
    """All formats by name."""
    return {format.name: format for family in families() for format in family.formats}


def family(name: str) -> Family:
    """The family of that name; OptionError if there is none."""
    for candidate in families():
        if candidate.name == name:
            return candidate
    raise unknown("system", name, [candidate.name for candidate in families()])


def format_named(name: str) -> Format:
    """The format of that name; UnknownFormatError with the nearest names if there is none.

    A family's name stands for its format that can be written.
    """
    known = formats()
    if name in known:
        return known[name]
    for candidate in families():
        if candidate.name == name:
            for format in candidate.formats:
                if format.is_written or len(candidate.formats) == 1:
                    return format
    raise UnknownFormatError(str(unknown("format", name, known)))


@lru_cache(maxsize=1)
def verbs() -> dict[str, Verb]:
    """The verbs that only one family has, by name."""
    return {name: verb for family in families() for name, verb in family.verbs.items()}


@lru_cache(maxsize=1)
def tables() -> dict[str, Table]:
    """All tables by name: the common ones, then each family's own."""
    found = {table.name: table for table in COMMON}
    for one in families():
        for table in one.tables:
            found[table.name] = table
    return found


def table_named(name: str) -> Table:
    """The table of that name; OptionError with the nearest names if there is none."""
    known = tables()
    if name in known:
        return known[name]
    raise unknown("table", name, known)


def reading_options(given: Mapping[str, str]) -> dict[str, str]:
    """Options of the families' own by their right names, however they are written (at_offset, atoffset).

    OptionError for one that no family has.
    """
    known = {name.lower(): name for one in families() for name in one.options}
    found = {}
    for name, value in given.items():
        plain = name.replace("_", "").replace("-", "").lower()
        if plain not in known:
            raise unknown("option", name, known.values())
        found[known[plain]] = value
    return found


def formats_with(table: Table) -> set[str]:
    """The names of the formats that can be read as a table."""
    return {
        format.name
        for format in formats().values()
        if format.decode is not None and any(candidate.name == table.name for candidate in format.tables)
    }


def lookup(table: Table, system: str | None = None) -> Lookup | None:
    """How rows of a table are found by key and id; of a table that every system has, those of one system."""
    name = table.name.partition(".")[0] if "." in table.name else system
    return next((one.lookup for one in families() if one.name == name), None)
