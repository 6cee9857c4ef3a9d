"""Makes the text of the public surface: verbs, options, functions, tables, rules, Spark options, exit codes, keys of JSON."""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from types import FunctionType
from typing import Any

import click

import rawlog
from rawlog import registry
from rawlog.cli import cli, manual
from rawlog.cli.logs import INTERNAL, INTERRUPTED
from rawlog.engines.spark import options as spark_options
from rawlog.model import errors
from rawlog.model.difference import Difference, Tally
from rawlog.model.finding import Account, Effect, Finding, Findings, Prediction, Severity, Startup
from rawlog.model.report import Action, Entry, Report
from rawlog.reading import options as reading_options
from rawlog.verbs import live, options

#: Types whose fields are the keys of what `--json` prints.
JSON_TYPES = (Account, Difference, Entry, Finding, Prediction, Report)
JSON_CHOICES = (Action, Effect, Severity)


def text() -> str:
    """The whole surface."""
    parts = {
        "commands": _commands(),
        "functions": _functions(),
        "exceptions": _exceptions(),
        "tables": _tables(),
        "formats": _formats(),
        "rules": sorted(f"{rule.code}: {rule.severity.value}" for rule in rawlog.rules()),
        "options of the Spark source": iter(spark_options.NAMES),
        "options of systems": (f"{family.name}: {name}" for family in registry.families() for name in family.options),
        "exit codes": _exit_codes(),
        "environment": (name for names, _ in manual.VARIABLES for name in names.split(", ")),
        "keys of JSON": _keys(),
    }
    return "\n".join(f"# {title}\n" + "".join(f"{line}\n" for line in lines) for title, lines in parts.items())


def _commands() -> Iterator[str]:
    """Each command with its arguments in order, then its options by name."""
    context = click.Context(cli, **cli.context_settings)
    for name in sorted(cli.list_commands(context)):
        command = cli.get_command(context, name)
        assert command is not None
        yield f"rawlog {name}"
        for argument in command.params:
            if isinstance(argument, click.Argument):
                yield f"  {argument.make_metavar(context)}{': ' + _kind(argument.type) if _kind(argument.type) else ''}"
        options = [option for option in command.params if isinstance(option, click.Option) and not option.hidden]
        for option in sorted(options, key=lambda option: max(option.opts, key=len)):
            yield f"  {_option(option)}"
        for old, new in sorted(getattr(command, "old", {}).items()):
            yield f"  {old}: now {new}, for one more release"


def _option(option: click.Option) -> str:
    names = " ".join(sorted((*option.opts, *option.secondary_opts), key=lambda name: (name.count("-"), name)))
    if option.is_flag:
        return names
    facts = [_kind(option.type)]
    facts += ["may be given again"] if option.multiple else []
    facts += ["required"] if option.required else []
    if isinstance(option.default, str | int | float) and not option.required:
        facts.append(f"default {option.default}")
    return f"{names}: {', '.join(facts)}"


def _kind(type_: click.ParamType[Any]) -> str:
    if isinstance(type_, click.Choice):
        return "|".join(map(str, type_.choices))
    if isinstance(type_, click.IntRange | click.FloatRange):
        least = "" if type_.min is None else type_.min
        return f"{'float' if isinstance(type_, click.FloatRange) else 'int'} {least}..{'' if type_.max is None else type_.max}"
    return "text" if isinstance(type_, click.Path) else type_.name


def _functions() -> Iterator[str]:
    """Each function of `rawlog` with its parameters; those of option groups are spelled out."""
    for name in sorted(rawlog.__all__):
        value = getattr(rawlog, name)
        if isinstance(value, type):
            yield f"rawlog.{name}"
            yield from (
                f"  {label}({', '.join(_parameters(method))})"
                for label, method in sorted(inspect.getmembers(value, inspect.isfunction))
                if not label.startswith("_") and method.__module__.startswith("rawlog.verbs")
            )
        elif callable(value):
            yield f"rawlog.{name} -> {_plain(str(inspect.signature(value).return_annotation))}"
            yield from (f"  {parameter}" for parameter in _parameters(value))
        else:
            yield f"rawlog.{name}"


def _parameters(function: Any) -> Iterator[str]:
    """Positional parameters in order, then keywords by name."""
    keywords = []
    for parameter in inspect.signature(_written(function)).parameters.values():
        match = re.fullmatch(r"Unpack\[(\w+)\]", str(parameter.annotation))
        if match is not None:
            assert function.__module__ is not None
            group = vars(importlib.import_module(function.__module__))[match[1]]
            keywords += [f"{name}=: {_plain(_source(kind))}" for name, kind in group.__annotations__.items()]
        elif parameter.kind is parameter.KEYWORD_ONLY:
            keywords.append(_parameter(parameter, "="))
        elif parameter.name != "self":
            yield ("**" if parameter.kind is parameter.VAR_KEYWORD else "") + _parameter(parameter)
    yield from sorted(keywords)


def _written(function: Any) -> Any:
    """A function as its source has it, with the groups that `rawlog` spells out for notebooks."""
    plain = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)
    plain.__annotations__, plain.__kwdefaults__ = function.__annotations__, function.__kwdefaults__
    return plain


def _parameter(parameter: inspect.Parameter, mark: str = "") -> str:
    return f"{parameter.name}{mark}: {_plain(_source(parameter.annotation))}"


def _source(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__forward_arg__", str(annotation))


def _plain(annotation: str) -> str:
    """A type without the text for people that `Annotated` adds."""
    tree = ast.parse(annotation.strip("'"), mode="eval")

    class Strip(ast.NodeTransformer):
        def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
            self.generic_visit(node)
            if isinstance(node.value, ast.Name) and node.value.id == "Annotated" and isinstance(node.slice, ast.Tuple):
                return node.slice.elts[0]
            return node

        def visit_Name(self, node: ast.Name) -> ast.AST:
            return self.visit(copy.deepcopy(_aliases()[node.id])) if node.id in _aliases() else node

    return ast.unparse(Strip().visit(tree))


@cache
def _aliases() -> dict[str, ast.expr]:
    """Types that verbs share, by name: those that tell more than their type."""
    trees = [ast.parse(inspect.getsource(module)) for module in (reading_options, options, live)]
    return {
        node.targets[0].id: node.value
        for tree in trees
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and "Annotated[" in ast.unparse(node.value)
    }


def _exceptions() -> Iterator[str]:
    for name, value in sorted(vars(importlib.import_module("rawlog.errors")).items()):
        if isinstance(value, type) and issubclass(value, Exception):
            yield f"{name}({', '.join(base.__name__ for base in value.__bases__)})"


def _tables() -> Iterator[str]:
    for name in sorted(registry.tables()):
        yield name
        yield from (f"  {column.name}: {column.type}" for column in registry.table_named(name).columns)


def _formats() -> Iterator[str]:
    for format in sorted(registry.formats().values(), key=lambda format: format.name):
        yield f"{format.name}: {', '.join(format.abilities()) or 'recognise'}"


def _exit_codes() -> Iterator[str]:
    yield f"done {errors.DONE}, found {errors.FOUND}, usage {errors.USAGE}, unreadable {errors.UNREADABLE}"
    yield f"internal error {INTERNAL}, interrupted {INTERRUPTED}"


def _keys() -> Iterator[str]:
    for type_ in JSON_TYPES:
        assert is_dataclass(type_)
        yield f"{type_.__name__}: {', '.join(field.name for field in fields(type_))}"
    for choice in JSON_CHOICES:
        yield f"{choice.__name__}: {', '.join(choice)}"
    yield f"Findings.summary: {', '.join(Findings(startups=[Startup('', ())]).summary())}"
    yield f"Startup: {', '.join(Startup('', (), node=0).as_json())}"
    yield f"Tally.summary: {', '.join(Tally().summary())}"
    yield f"formats: {', '.join(rawlog.list_formats()[0])}"


if __name__ == "__main__":
    sys.stdout.write(text())
