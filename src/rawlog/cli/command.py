"""Commands made from verbs: the signature of a verb gives arguments, options and help; a printer of its result prints what it returns."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property, partial
from typing import Any

import click

from rawlog.cli import logs
from rawlog.cli.logs import Bar, say
from rawlog.cli.output import Notes
from rawlog.model.errors import OptionError
from rawlog.model.text import parse_size
from rawlog.model.verb import HELP, LAST, OPTIONS, Declaration, Kind, Parameter, parameters_of

#: How results are printed: the type that a verb returns, or the name of a verb with options of its own, and a function `module:name`. Its
#: keyword parameters are options of the command line too.
PRINTERS = {
    "Rows": "printers.rows:show",
    "find": "printers.rows:show_found",
    "tail": "printers.rows:show_last",
    "int": "printers.rows:show_count",
    "Listing": "printers.listing:show",
    "Explanation": "printers.explanation:show",
    "Findings": "printers.findings:show",
    "Differences": "printers.findings:show_differences",
    "Report": "printers.report:show",
    "Shown": "printers.report:show_items",
    "rescue": "printers.report:show_rescue",
    "convert": "printers.report:show_converted",
    "ingest": "printers.report:show_ingested",
    "lake": "printers.report:show_lake",
    "formats": "printers.setup:show_formats",
    "doctor": "printers.setup:show_doctor",
    "Overview": "printers.setup:show_overview",
    "Server": "printers.setup:show_server",
    "Answer": "printers.rows:show_answer",
    "record": "printers.report:show_record",
    "replay": "printers.report:show_replay",
    "mirror": "printers.report:show_run",
    "sql": "sql:show",
    "completion": "command:show_nothing",
}


class Detail(Enum):
    """How much is printed for people. JSON always has everything."""

    QUIET = "quiet"
    NORMAL = "normal"
    ALL = "verbose"


# A call -------------------------------------------------------------------------------------------------------------------


@dataclass
class Call:
    """A verb with the options that a user gave, which its printer runs."""

    declaration: Declaration
    #: What the user gave, as keywords of the function.
    arguments: dict[str, Any]
    detail: Detail = Detail.NORMAL
    #: Whether progress is shown; None: on a terminal.
    progresses: bool | None = None
    notes: Notes = field(default_factory=Notes)

    def __post_init__(self) -> None:
        self.notes.is_quiet = self.detail is Detail.QUIET

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """The parameters of the function by name."""
        return {parameter.name: parameter for parameter in self.declaration.parameters}

    def value(self, name: str) -> Any:
        """What was given for a parameter, else its default."""
        return self.arguments.get(name, self.parameters[name].empty)

    def run(self, **more: Any) -> Any:
        """Call the function; notes are printed, and progress is drawn meanwhile."""
        with self.progress() as bar:
            if bar is not None and "progress" in self.parameters:
                more.setdefault("progress", bar)
            return self.function(**more)

    def function(self, **more: Any) -> Any:
        """Call the function without drawing progress."""
        if "note" in self.parameters:
            more.setdefault("note", self.notes)
        return self.declaration.function(**{**self.arguments, **more})

    def progress(self) -> AbstractContextManager[Bar | None]:
        """A bar for the progress of a function that reports it, and of any other if it was asked for: it then shows the time."""
        if "progress" not in self.parameters and not self.progresses:
            return nullcontext()
        shown = False if self.detail is Detail.QUIET and not self.progresses else self.progresses
        return Bar(self.declaration.doing or self.declaration.name, shown)

    def track(self, bar: Bar | None, rows: int) -> None:
        """Let a bar show how many rows were printed."""
        if bar is not None:
            bar(replace(bar.now, rows=rows))


def show_nothing(call: Call) -> int:
    """Run a verb that prints itself."""
    code: int = call.function()
    return code


def command_of(declaration: Declaration) -> click.Command:
    """The command of a verb."""
    show = _printer(declaration)
    printing = [parameter for parameter in parameters_of(show) if parameter.name != "call"]
    declared = [parameter for parameter in declaration.parameters if not parameter.is_python_only]
    parameters = [
        *declared,
        *(parameter for parameter in printing if parameter.name not in {other.name for other in declared}),
    ]

    def callback(**values: Any) -> None:
        context = click.get_current_context()
        arguments = {
            parameter.name: _value(parameter, values[parameter.name])
            for parameter in parameters
            if parameter.is_argument or context.get_parameter_source(parameter.name) not in _UNSET
        }
        printed = {
            parameter.name: arguments.pop(parameter.name, parameter.empty)
            for parameter in printing
            if parameter.name in _names(parameters)
        }
        detail = Detail.ALL if values["verbose"] else Detail.QUIET if values["quiet"] else Detail.NORMAL
        context.exit(show(Call(declaration, arguments, detail, values["progress_shown"]), **printed))

    params = [*[_parameter(parameter) for parameter in parameters], *_common()]
    if any(parameter.name == "threads" for parameter in declared):
        params.append(_log_format())
    return Command(
        declaration.name,
        callback=callback,
        params=params,
        help=_keep_lines(declaration.help),
        short_help=declaration.summary,
        epilog=examples(*declaration.examples, more=declaration.more),
        old={old: max(parameter.spellings, key=len) for parameter in parameters for old in parameter.old},
    )


_UNSET = (click.core.ParameterSource.DEFAULT, click.core.ParameterSource.DEFAULT_MAP)


def _names(parameters: Iterable[Parameter]) -> set[str]:
    return {parameter.name for parameter in parameters}


def _printer(declaration: Declaration) -> Callable[..., int]:
    """The function that prints the result of a verb."""
    place = PRINTERS.get(declaration.name) or PRINTERS[declaration.result.partition("[")[0].strip("'")]
    module, _, name = place.partition(":")
    printer: Callable[..., int] = getattr(importlib.import_module(f"rawlog.cli.{module}"), name)
    return printer


class Command(click.Command):
    """A command whose help has its options by sections, and that takes spellings of an earlier release, with a note."""

    def __init__(self, *arguments: Any, old: dict[str, str] | None = None, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.old = old or {}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words of a command line."""
        for at, word in enumerate(args):
            if word == "--":
                break
            name, mark, value = word.partition("=")
            if name[:2] in self.old and name[:2] != "--" and len(word) > 2:
                name, mark, value = word[:2], "=", word[2:]
            if name in self.old:
                say(f"{name} is now {self.old[name]}; the next release does not know {name}", "note")
                args[at] = f"{self.old[name]}{mark}{value}"
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options by sections."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                sections.setdefault(getattr(parameter, "section", HELP), []).append(record)
        titles = [OPTIONS, *(title for title in sections if title not in (OPTIONS, *LAST)), *LAST]
        for title in titles:
            if title in sections:
                with formatter.section(title):
                    formatter.write_dl(sections[title])


class SectionOption(click.Option):
    """An option with its section of the help."""

    section = OPTIONS


def examples(*commands: str, more: str = "") -> str:
    """The last part of a command's help: examples, one per line, and what comes after them."""
    if not commands:
        return more
    lines = "\n".join(f"  {command}" for command in commands)
    return f"\b\nExamples:\n{lines}\n\n{more}"


def _keep_lines(help: str) -> str:
    """Help whose indented blocks click does not wrap."""
    return "\n\n".join(f"\b\n{block}" if block.startswith("  ") else block for block in help.split("\n\n"))


# Parameters ---------------------------------------------------------------------------------------------------------------


class Size(click.ParamType[int]):
    """A number of bytes: `4096`, `64M`, `1GiB` (powers of 1024)."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_size(str(value))
        except OptionError as error:
            self.fail(str(error), param, ctx)


class Partitions(click.ParamType[tuple[int, ...]]):
    """Partition numbers: `3`, `0,2` or `4-7`."""

    name = "partitions"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        numbers: list[int] = []
        for part in str(value).split(","):
            match = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", part)
            if match is None or (match[2] and int(match[2]) - int(match[1]) > 100_000):
                self.fail(f"{value!r}: a partition such as 3, 0,2 or 4-7 expected", param, ctx)
            numbers += range(int(match[1]), int(match[2] or match[1]) + 1)
        return tuple(numbers)


PATH = click.Path(readable=False)  # any text, and the shell completes files; what cannot be read is no wrong usage


def _parameter(parameter: Parameter) -> click.Parameter:
    """A parameter of a verb as one of a command."""
    kind = _type(parameter)
    if parameter.is_argument:
        metavar = f"{parameter.metavar}..." if parameter.is_repeated else parameter.metavar
        return click.Argument(
            [parameter.name],
            nargs=-1 if parameter.is_repeated else 1,
            required=parameter.is_required,
            type=kind,
            metavar=metavar if parameter.is_required else f"[{metavar}]",
        )
    names = [*parameter.spellings, parameter.name]
    option: SectionOption
    if parameter.kind is Kind.FLAG:
        option = SectionOption(names, is_flag=True, help=parameter.help)
    else:
        default = None if parameter.is_required or parameter.is_repeated else _default_text(parameter)
        more = (
            {} if default is None else {"default": default, "show_default": True}
        )  # click takes a default of None for a value
        option = SectionOption(
            names,
            type=kind,
            multiple=parameter.is_repeated,
            required=parameter.is_required,
            metavar=parameter.metavar,
            help=parameter.help,
            shell_complete=partial(_complete, parameter),
            **more,
        )
    option.section = parameter.section
    return option


def _complete(parameter: Parameter, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """What completes the values of an option. Names are looked up by `completion`, which is imported only here: when a shell asks."""
    from rawlog.cli.completion import completer

    complete = completer(parameter) or param.type.shell_complete
    return complete(ctx, param, incomplete)


def _default_text(parameter: Parameter) -> Any:
    if parameter.kind is Kind.SIZE and parameter.default:
        return f"{parameter.default >> 20}M"
    return parameter.default


def _type(parameter: Parameter) -> click.ParamType[Any]:
    if parameter.choices:
        return click.Choice(parameter.choices)
    if parameter.kind is Kind.NUMBER:
        return (
            click.INT
            if parameter.least is None
            else click.IntRange(int(parameter.least), None if parameter.most is None else int(parameter.most))
        )
    if parameter.kind is Kind.DECIMAL:
        return click.FLOAT if parameter.least is None else click.FloatRange(parameter.least)
    types: dict[Kind, click.ParamType[Any]] = {Kind.SIZE: Size(), Kind.PARTITIONS: Partitions(), Kind.PATH: PATH}
    return types.get(parameter.kind, click.STRING)


def _value(parameter: Parameter, value: Any) -> Any:
    """A value of the command line as the function takes it."""
    if parameter.kind is Kind.PARTITIONS:
        return tuple(number for part in value for number in part)
    if parameter.kind is Kind.PAIRS:
        return pairs(value, max(parameter.spellings, key=len), parameter.metavar or "NAME=VALUE")
    return value


def pairs(texts: Sequence[str], option: str, form: str) -> dict[str, str]:
    """The texts NAME=VALUE of an option as a dict. OptionError for one without `=`. Where a form ends in `,…`, commas separate them."""
    form, several, _ = form.partition(",…")
    parts = [part for text in texts for part in (text.split(",") if several else [text]) if part or not several]
    split = [text.partition("=") for text in parts]
    if any(not mark for _, mark, _ in split):
        raise OptionError(f"{option} {' '.join(texts)}: {form} expected")
    return {name: value for name, _, value in split}


def _common() -> list[click.Option]:
    """What every verb has: how much it prints."""
    texts = {
        ("-v", "--verbose"): "Print everything, also what is sound.",
        ("-q", "--quiet"): "Print only the result, and what was lost or is wrong; no notes, no progress.",
        ("progress_shown", "--progress/--no-progress"): "Show progress on stderr.  [default: on a terminal]",
    }
    options: list[click.Option] = []
    for names, help in texts.items():
        option = SectionOption(names, is_flag=True, default=None, help=help)
        option.section = "Output"
        options.append(option)
    return options


def _log_format() -> click.Option:
    """How messages are printed. `logs.begin` obeys it: it counts for wrong usage, too."""
    option = SectionOption(
        [logs.OPTION],
        type=click.Choice(logs.FORMATS),
        expose_value=False,
        help="json: messages and progress on stderr are one JSON object per line.  [default: $RAWLOG_LOG_FORMAT, else text]",
    )
    option.section = "Output"
    return option
