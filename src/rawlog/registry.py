"""The registry: every family rawlog knows, found by name. Nothing else in the package names a format."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Any

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
    return (*map(_home, FAMILIES), *(name.strip() for name in added.split(",") if name.strip()))


def _home(name: str) -> str:
    """The module of a name in FAMILIES."""
    return name if "." in name else f"rawlog.formats.{HOMES.get(name, name)}"


def _is_extended() -> bool:
    """Whether there are families of others: then all are imported at once, and what is wrong with one is said before anything is read."""
    return bool(os.environ.get(VARIABLE)) or any("." in name for name in FAMILIES)


def families() -> tuple[Family, ...]:
    """All families, in the order in which recognition asks them. OptionError if one cannot be used, with the reason."""
    return _families(modules())


@lru_cache(maxsize=8)
def _families(names: tuple[str, ...]) -> tuple[Family, ...]:
    by_name: dict[str, tuple[str, Family]] = {}
    for module in names:
        family = _imported(module)
        if family.name in by_name:
            raise OptionError(f"two families are named {family.name!r}: {by_name[family.name][0]} and {module}")
        tables = (*family.tables, *family.folds)
        for name in (*(format.name for format in family.formats), *(table.name for table in tables)):
            if not name.startswith(f"{family.name}."):
                raise OptionError(f"{module}: the name {name!r} must begin with {family.name + '.'!r}")
        by_name[family.name] = module, family
    return tuple(family for _, family in by_name.values())


@lru_cache(maxsize=64)
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


def families_of(systems: Iterable[str | None]) -> tuple[Family, ...]:
    """The families of these names. No other is imported."""
    names = set(systems)
    present = families() if _is_extended() else map(_imported, map(_home, (name for name in FAMILIES if name in names)))
    return tuple(family for family in present if family.name in names)


def families_near(systems: Iterable[str | None]) -> tuple[Family, ...]:
    """The families that files of these systems concern: their own, and those among whose files they are. No other is imported."""
    names = set(systems)
    hosted = (name for name, home in HOMES.items() if home.partition(".")[0] in names)
    present = families() if _is_extended() else families_of({*names, *hosted})
    return tuple(family for family in present if any(map(family.looks_at, names)))


def family(name: str) -> Family:
    """The family of that name; OptionError if there is none."""
    for candidate in families_of([name]):
        return candidate
    raise unknown("system", name, [candidate.name for candidate in families()])


def maker(table: Table) -> Family | None:
    """The family that makes a table of several files; None if its rows are those of single files."""
    return next((family for family in families_of([table.system]) if family.makes(table)), None)


class _Formats(Mapping[str, Format]):
    """All formats by name. A family is imported when a format of it is looked up, or when a loop comes to it."""

    def __init__(self) -> None:
        self._imported: dict[str, Format] = {}

    def __getitem__(self, name: str) -> Format:
        if name not in self._imported:
            system = name.partition(".")[0]
            if system not in FAMILIES:
                raise KeyError(name)
            self._imported |= {format.name: format for format in _imported(_home(system)).formats}
        return self._imported[name]

    def __iter__(self) -> Iterator[str]:
        return (format.name for name in FAMILIES for format in _imported(_home(name)).formats)

    def __len__(self) -> int:
        return sum(1 for _ in self)


_FORMATS = _Formats()


def formats() -> Mapping[str, Format]:
    """All formats by name."""
    return _formats(modules()) if _is_extended() else _FORMATS


@lru_cache(maxsize=8)
def _formats(names: tuple[str, ...]) -> dict[str, Format]:
    return {format.name: format for family in _families(names) for format in family.formats}


@lru_cache(maxsize=64)
def formats_with_places(module: str) -> tuple[Format, ...]:
    """The formats of the family of a module whose files are recognised by name and place."""
    return tuple(format for format in _imported(module).formats if format.match is not None)


def format_named(name: str) -> Format:
    """The format of that name; UnknownFormatError with the nearest names if there is none.

    A family's name means its format that can be written.
    """
    with contextlib.suppress(KeyError):
        return formats()[name]
    for candidate in families():
        if candidate.name == name:
            for format in candidate.formats:
                if format.is_written or len(candidate.formats) == 1:
                    return format
    raise UnknownFormatError(str(unknown("format", name, formats())))


def tables() -> dict[str, Table]:
    """All tables by name: the common ones, then each family's own."""
    return _tables(families())


def tables_of(systems: Iterable[str | None]) -> dict[str, Table]:
    """The tables that files of these systems may be read as, by name."""
    return _tables(families_near(systems))


def _tables(families: Iterable[Family]) -> dict[str, Table]:
    everything = (*COMMON, *(table for family in families for table in family.tables))
    return {table.name: table for table in everything}


def table_named(name: str) -> Table:
    """The table of that name; OptionError with the nearest names if there is none."""
    table = _tables(families_of([name.partition(".")[0]])).get(name)
    if table is None:
        raise unknown("table", name, tables())
    return table


def reading_options(given: Mapping[str, str]) -> dict[str, str]:
    """Options of the families' own by their right names, however they are written (at_offset, atoffset).

    OptionError for one that no family has.
    """
    if not given:
        return {}
    names = {name.lower(): name for family in families() for name in family.options}
    options = {}
    for name, value in given.items():
        plain = name.replace("_", "").replace("-", "").lower()
        if plain not in names:
            raise unknown("option", name, names.values())
        options[names[plain]] = value
    return options


class _FormatsWith(AbstractSet[str]):
    """The names of the formats with a table. Only the families of names that are asked about are imported."""

    def __init__(self, table: str) -> None:
        self._table = table
        self._answers: dict[object, bool] = {}

    def __contains__(self, name: object) -> bool:
        answer = self._answers.get(name)
        if answer is None:
            format = formats().get(name) if isinstance(name, str) else None
            answer = format is not None and any(table.name == self._table for table in format.tables)
            self._answers[name] = answer
        return answer

    def __iter__(self) -> Iterator[str]:
        system, mark, _ = self._table.partition(".")
        near = (format.name for family in families_of([system]) for format in family.formats) if mark else formats()
        return (name for name in near if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return any(True for _ in self)

    @classmethod
    def _from_iterable(cls, names: Iterable[Any]) -> AbstractSet[Any]:
        return frozenset(names)


def formats_with(table: Table) -> AbstractSet[str]:
    """The names of the formats that can be read as a table."""
    return _formats_with(table.name, modules())


@lru_cache(maxsize=64)
def _formats_with(table: str, names: tuple[str, ...]) -> AbstractSet[str]:
    return _FormatsWith(table)


def lookup(table: Table, system: str | None = None) -> Lookup | None:
    """How rows of a table are found by key and id; of a table that every system has, those of one system."""
    name = table.system or system
    return next((family.store_class.lookup() for family in families_of([name]) if family.name == name), None)
