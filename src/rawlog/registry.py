"""The registry: every family rawlog knows, found by name. Nothing else in the package names a format."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from functools import lru_cache

from rawlog.model.errors import OptionError, UnknownFormatError, unknown
from rawlog.model.format import Family, Format, Lookup
from rawlog.model.table import COMMON, Table

FAMILIES = ("kafka", "kraft", "rocketmq", "replay", "ambry")
"""In the order in which recognition asks them: the head of a recording is almost all zeros, and so is that of a DLedger file.

A name without a dot is a package of `rawlog.formats`; one with a dot is a module anywhere.
"""

HOMES = {"kraft": "kafka.cluster"}
"""The packages of families that are not in one of their own name."""

VARIABLE = "RAWLOG_FAMILIES"
"""The environment variable that adds families: full names of modules, separated by commas. They are asked after those above."""


def modules() -> tuple[str, ...]:
    """The modules of all families, in the order in which recognition asks them."""
    return _modules(os.environ.get(VARIABLE, ""))


@lru_cache(maxsize=8)
def _modules(added: str) -> tuple[str, ...]:
    own = (name if "." in name else f"rawlog.formats.{HOMES.get(name, name)}" for name in FAMILIES)
    return (*own, *(name.strip() for name in added.split(",") if name.strip()))


def families() -> tuple[Family, ...]:
    """All families, in the order in which recognition asks them. OptionError if one cannot be used, with the reason."""
    return _families(modules())


@lru_cache(maxsize=8)
def _families(names: tuple[str, ...]) -> tuple[Family, ...]:
    found: dict[str, tuple[str, Family]] = {}
    for module in names:
        family = _imported(module)
        if family.name in found:
            raise OptionError(f"two families are named {family.name!r}: {found[family.name][0]} and {module}")
        for name in (*(one.name for one in family.formats), *(one.name for one in family.tables)):
            if not name.startswith(f"{family.name}."):
                raise OptionError(f"{module}: the name {name!r} must begin with {family.name + '.'!r}")
        found[family.name] = module, family
    return tuple(family for _, family in found.values())


def _imported(name: str) -> Family:
    """The family of a module. Whatever a module raises when it is imported is an OptionError: the user named it."""
    try:
        module = importlib.import_module(name)
    except Exception as error:
        why = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
        raise OptionError(f"family {name!r} cannot be imported: {why} (see {VARIABLE})") from error
    family = getattr(module, "FAMILY", None)
    if not isinstance(family, Family):
        what = "has no FAMILY" if family is None else "has a FAMILY that is not a rawlog.model.format.Family"
        raise OptionError(f"family {name!r}: the module {what} (see {VARIABLE})")
    return family


def formats() -> dict[str, Format]:
    """All formats by name."""
    return _formats(modules())


@lru_cache(maxsize=8)
def _formats(names: tuple[str, ...]) -> dict[str, Format]:
    return {format.name: format for family in _families(names) for format in family.formats}


def family(name: str) -> Family:
    """The family of that name; OptionError if there is none."""
    for candidate in families():
        if candidate.name == name:
            return candidate
    raise unknown("system", name, [candidate.name for candidate in families()])


def format_named(name: str) -> Format:
    """The format of that name; UnknownFormatError with the nearest names if there is none.

    A family's name means its format that can be written.
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


def tables() -> dict[str, Table]:
    """All tables by name: the common ones, then each family's own."""
    return _tables(modules())


@lru_cache(maxsize=8)
def _tables(names: tuple[str, ...]) -> dict[str, Table]:
    found = {table.name: table for table in COMMON}
    for one in _families(names):
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


def formats_with(table: Table) -> frozenset[str]:
    """The names of the formats that can be read as a table."""
    return _formats_with(modules(), table.name)


@lru_cache(maxsize=512)
def _formats_with(names: tuple[str, ...], table: str) -> frozenset[str]:
    return frozenset(
        format.name for format in _formats(names).values() if any(candidate.name == table for candidate in format.tables)
    )


def lookup(table: Table, system: str | None = None) -> Lookup | None:
    """How rows of a table are found by key and id; of a table that every system has, those of one system."""
    name = table.name.partition(".")[0] if "." in table.name else system
    return next((one.store_class.lookup() for one in families() if one.name == name), None)
