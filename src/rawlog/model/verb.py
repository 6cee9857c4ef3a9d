"""Verb: an operation that only one family has, as plain data. The command line and the library make their own form of it.

A verb that writes returns a Report. One that only shows something yields `Shown` values: rows for machines, text for people.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rawlog.model.format import File
    from rawlog.model.report import Report


class Kind(StrEnum):
    """What the value of a parameter is."""

    TEXT = "text"
    #: A whole number, 0 or more.
    NUMBER = "number"
    FLAG = "flag"
    #: A time as users write it; the verb gets it as microseconds.
    TIME = "time"
    CHOICE = "choice"
    #: The directory that the verb writes: the verb gets a Folder to fill. It may not be, contain or lie inside a source.
    TARGET = "target"


@dataclass(frozen=True, slots=True)
class Parameter:
    """An option of a verb. `at_offset` is `--at-offset` on the command line. The value of one that `is_repeated` is a tuple."""

    name: str
    help: str
    kind: Kind = Kind.TEXT
    default: Any = None
    choices: tuple[str, ...] = ()
    is_repeated: bool = False
    is_required: bool = False
    metavar: str | None = None

    @property
    def empty(self) -> Any:
        """The value if the option is not given."""
        return () if self.is_repeated else False if self.kind is Kind.FLAG else self.default


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """What a verb is called for, what it takes, and the function that does it.

    `group` is its heading in `rawlog --help`, `summary` its line there, `help` its own page. `paths` is what that page calls the paths.
    """

    group: str
    summary: str
    help: str
    exit_codes: str
    #: Commands for the help, each a line that begins with `rawlog`.
    examples: tuple[str, ...] = ()
    parameters: tuple[Parameter, ...]
    #: (files at the paths, the paths as they were given, a value for each parameter) -> what was written, or what to show.
    run: Callable[[Sequence[File], Sequence[str], Mapping[str, Any]], Report | Iterator[Shown]]
    paths: str = "PATH"


# What a verb shows --------------------------------------------------------------------------------------------------------


class Tone(StrEnum):
    """How text is highlighted on a terminal, where that is possible."""

    TITLE = "title"
    GOOD = "good"
    BAD = "bad"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class Line:
    """A line of text; also a cell of a section. It may hold any characters: whoever prints it escapes them."""

    text: str = ""
    tone: Tone | None = None


@dataclass(frozen=True, slots=True)
class Section:
    """Rows of cells under a title with their number; at most `most` are shown. A section without rows is not shown.

    `head` names the columns.
    """

    title: str
    rows: Sequence[Sequence[str | Line]]
    most: int | None = None
    head: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Shown:
    """One thing to show: `row` to machines, `text` to people, `note` to both, apart from the rest. `is_finding` makes the exit code 1."""

    row: Mapping[str, Any] | None = None
    text: Line | Section | None = None
    note: str | None = None
    is_finding: bool = False
