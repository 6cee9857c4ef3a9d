"""Verb: something that users can ask for, declared once.

A verb is a function with `@verb`. Its signature is the declaration: a parameter `Annotated[type, Option("help")]` is an option of the
command line too, one without `Annotated` is for Python alone. Options that several verbs share are TypedDicts, taken by `**name:
Unpack[Group]`. The command line, the signatures that notebooks show, the manual and the reference page are made from it.

A verb that only shows something gives `Item` values: rows for machines, text for people.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property, lru_cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

F = TypeVar("F", bound=Callable[..., Any])
#: The section of a command's help for options that are no member of a group.
OPTIONS = "Options"
#: Headings that come after all others.
HELP = "Help"
LAST = ("Output", "Limits", "Engine", "Spark", HELP)


class Kind(StrEnum):
    """What the value of a parameter is."""

    TEXT = "text"
    #: A whole number, 0 or more.
    NUMBER = "number"
    FLAG = "flag"
    CHOICE = "choice"
    #: A time as users write it: ISO 8601, epoch milliseconds, -2h.
    TIME = "time"
    #: A number with a fraction.
    DECIMAL = "decimal"
    #: A number of bytes: 4096, 64M, 1GiB.
    SIZE = "size"
    #: Numbers of partitions: 3, 0,2 or 4-7.
    PARTITIONS = "partitions"
    #: NAME=VALUE; the function gets a dict.
    PAIRS = "pairs"
    #: A path or a URL, which a shell completes.
    PATH = "path"
    #: The name of a table, which a shell completes.
    TABLE = "table"


@dataclass(frozen=True, slots=True)
class SearchField:
    """A field in the search of the web page: its place in the form, its name in addresses, and what people see."""

    place: int
    name: str
    label: str
    hint: str
    #: The key that leads to it.
    key: str = ""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a verb. `at_offset` is `--at-offset` on the command line. The value of one that `is_repeated` is a tuple."""

    name: str
    help: str
    kind: Kind = Kind.TEXT
    default: Any = None
    choices: tuple[str, ...] = ()
    is_repeated: bool = False
    is_required: bool = False
    metavar: str | None = None
    #: Its spellings on the command line, if not that of its name.
    names: tuple[str, ...] = ()
    #: Spellings that work for one more release, with a note.
    old: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    #: Its heading in the help.
    section: str = OPTIONS
    #: Its name as an option of the Spark source, if it is one.
    spark: str | None = None
    #: Its field in the search of the web page, if it has one.
    field: SearchField | None = None
    #: Whether it is a positional argument of the command line.
    is_argument: bool = False
    #: Whether only the library has it.
    is_python_only: bool = False
    annotation: Any = None

    @property
    def empty(self) -> Any:
        """The value if the option is not given."""
        return () if self.is_repeated else False if self.kind is Kind.FLAG else self.default

    @property
    def spellings(self) -> tuple[str, ...]:
        """What it is called on the command line."""
        return self.names or (f"--{self.name.rstrip('_').replace('_', '-')}",)


# A verb from the signature of a function ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, init=False)
class Option:
    """What `Annotated` says of a parameter: its help, its spellings if not that of its name, and what its type does not tell.

    `default` is that of a member of a group; a parameter has its own. `old` spellings work for one more release.
    """

    help: str
    names: tuple[str, ...]
    changes: Mapping[str, Any]

    def __init__(self, help: str, *names: str, **changes: Any) -> None:
        for name, value in (("help", help), ("names", names), ("changes", changes)):
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class Declaration:
    """A verb as its function declares it. `summary` is its line in `rawlog --help`, `help` its own page, `more` what follows the examples.

    `doing` is what its progress is called.
    """

    name: str
    group: str
    function: Callable[..., Any]
    examples: tuple[str, ...] = ()
    more: str = ""
    doing: str = ""

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """Its parameters in the order of the signature, members of groups included."""
        return parameters_of(self.function)

    @property
    def result(self) -> str:
        """The name of the type that it returns."""
        return str(inspect.signature(self.function).return_annotation)

    @property
    def summary(self) -> str:
        """The first sentence of its docstring."""
        return " ".join(self._paragraphs()[0].split())

    @property
    def help(self) -> str:
        """What its docstring says to users of the command line: all up to the paragraph on what the function returns."""
        names = {parameter.name: parameter for parameter in self.parameters if not parameter.is_python_only}

        def spell(match: re.Match[str]) -> str:
            parameter = names.get(match[1])
            if parameter is None:
                return match[0]
            return (
                (parameter.metavar or parameter.name.upper())
                if parameter.is_argument
                else max(parameter.spellings, key=len)
            )

        return re.sub(r"`(\w+)`", spell, "\n\n".join(self._paragraphs()))

    def _paragraphs(self) -> list[str]:
        paragraphs = re.split(r"\n\s*\n", inspect.getdoc(self.function) or "")
        ends = [at for at, text in enumerate(paragraphs) if text.startswith(("Returns", ">>>"))]
        return paragraphs[: min(ends, default=len(paragraphs))]


#: Every verb whose module was imported, by name.
DECLARED: dict[str, Declaration] = {}


def verb(
    *, group: str, examples: Sequence[str] = (), more: str = "", doing: str = "", name: str | None = None
) -> Callable[[F], F]:
    """Declare a function as a verb: see Declaration. Its signature is read when it is first needed."""

    def declare(function: F) -> F:
        called = name or function.__name__
        DECLARED[called] = Declaration(called, group, function, tuple(examples), more, doing)
        return function

    return declare


def parameters_of(function: Callable[..., Any]) -> tuple[Parameter, ...]:
    """The parameters of a function; of a group that it takes by `**name: Unpack[Group]` the members."""
    parameters: list[Parameter] = []
    for parameter in _source_signature(function).parameters.values():
        group = re.fullmatch(r"Unpack\[(\w+)\]", str(parameter.annotation))
        if group is not None:
            parameters += members_of(function.__globals__[group[1]])
        elif parameter.kind is not parameter.VAR_KEYWORD:
            parameters.append(_parameter(parameter, function.__globals__))
    return tuple(parameters)


def show_signature(function: Callable[..., Any]) -> None:
    """Let `help` and notebooks show types alone, and the members of groups as the parameters that they are."""
    if "__signature__" in vars(function):
        return
    plain = inspect.signature(function)
    parameters = {parameter.name: parameter for parameter in parameters_of(function)}
    shown = [
        parameter
        if parameters[parameter.name].is_python_only
        else parameter.replace(annotation=parameters[parameter.name].annotation)
        for parameter in plain.parameters.values()
        if parameter.name in parameters
    ]
    named = {parameter.name for parameter in shown}
    members = [
        inspect.Parameter(
            parameter.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=False if parameter.kind is Kind.FLAG else parameter.default,
            annotation=parameter.annotation,
        )
        for parameter in sorted(parameters.values(), key=lambda parameter: parameter.section in LAST)
        if parameter.name not in named
    ]
    rest = [
        parameter
        for parameter in plain.parameters.values()
        if parameter.kind is parameter.VAR_KEYWORD and "Unpack[" not in str(parameter.annotation)
    ]
    vars(function)["__written__"] = plain
    vars(function)["__signature__"] = plain.replace(parameters=[*shown, *members, *rest])


def _source_signature(function: Callable[..., Any]) -> inspect.Signature:
    """The signature as the source has it."""
    written = vars(function).get("__written__")
    return written if isinstance(written, inspect.Signature) else inspect.signature(function)


@lru_cache(maxsize=64)
def members_of(group: type) -> tuple[Parameter, ...]:
    """The options of a group. What the docstring of the group that declares one begins with, up to a colon, is its heading in the help."""
    types = get_type_hints(group, include_extras=True)
    return tuple(
        _describe(Parameter(name, ""), types[name], _section(group, name, written))
        for name, written in group.__annotations__.items()
    )


def _section(group: type, name: str, written: Any) -> str:
    """The heading of a member: groups that inherit it have the same object as its type (Python 3.11 does not tell bases of a TypedDict)."""
    module = sys.modules[getattr(written, "__forward_module__", None) or group.__module__]
    first = next(
        (
            other
            for other in vars(module).values()
            if is_typeddict(other)
            and other.__annotations__.get(name) is written
            and other.__module__ == module.__name__
        ),
        group,
    )
    return (first.__doc__ or OPTIONS).partition(":")[0]


def _parameter(written: inspect.Parameter, names: dict[str, Any]) -> Parameter:
    default = None if written.default is written.empty else written.default
    plain = Parameter(written.name, "", default=default, is_required=written.default is written.empty)
    is_argument = written.kind is not written.KEYWORD_ONLY
    if not isinstance(written.annotation, str):
        return replace(plain, is_python_only=True)
    try:
        type_ = eval(written.annotation, names)  # noqa: S307 - it is our own source
    except NameError:
        if "Annotated" in written.annotation:
            raise
        return replace(plain, is_python_only=True)
    return _describe(plain, type_, OPTIONS, is_argument=is_argument)


def _describe(plain: Parameter, type_: Any, section: str, *, is_argument: bool = False) -> Parameter:
    """A parameter with what its type and its `Option` say."""
    if get_origin(type_) is not Annotated:
        return replace(plain, is_python_only=True, annotation=type_, default=plain.default)
    type_, option = get_args(type_)[:2]
    if isinstance(option, str):
        option = Option(option)
    parameter = replace(plain, help=option.help, names=option.names, section=section, annotation=type_, **_facts(type_))
    parameter = replace(parameter, **option.changes)
    if is_argument and not option.names:
        return replace(parameter, is_argument=True, metavar=option.help, help="")
    return parameter


def _facts(type_: Any) -> dict[str, Any]:
    """What a type says of a parameter: its kind, its choices, and whether it may be given again."""
    members = _members(type_)
    origins = {get_origin(member) or member for member in members}
    is_repeated = bool({Sequence, Iterable} & origins)
    if bool in origins:
        return {"kind": Kind.FLAG}
    if Literal in origins:
        choices = next(get_args(member) for member in members if get_origin(member) is Literal)
        return {"kind": Kind.CHOICE, "choices": choices, "is_repeated": is_repeated}
    if os.PathLike in origins:
        return {"kind": Kind.PATH, "is_repeated": is_repeated}
    if Mapping in origins and not is_repeated:
        return {"kind": Kind.PAIRS, "is_repeated": True}
    if str not in origins and not is_repeated:
        return {"kind": Kind.DECIMAL if float in origins else Kind.NUMBER}
    return {"is_repeated": is_repeated}


def _members(type_: Any) -> list[Any]:
    if get_origin(type_) in (Union, UnionType):
        return [member for union_member in get_args(type_) for member in _members(union_member)]
    return [] if type_ is NoneType else [type_]


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
class Item:
    """One thing to show: `row` to machines, `text` to people, `note` to both, apart from the rest. `is_finding` makes the exit code 1."""

    row: Mapping[str, Any] | None = None
    text: Line | Section | None = None
    note: str | None = None
    is_finding: bool = False
