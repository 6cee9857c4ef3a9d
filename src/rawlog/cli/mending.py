"""What the verbs share that write a new directory from a store or partition: `repair`, `rebuild`, `compact`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from rawlog.cli import options, output
from rawlog.cli.errors import DONE, FOUND
from rawlog.errors import OptionError, UnknownFormatError
from rawlog.text import printable

F = TypeVar("F", bound=Callable[..., Any])


def arguments(function: F) -> F:
    """SRC, DST and what every such verb takes."""
    for decorate in (
        options.json_flag,
        click.option("--option", "own", multiple=True, metavar="NAME=VALUE", help="What only some systems understand."),
        click.argument("target", metavar="DST"),
        click.argument("source", type=options.PATH, metavar="SRC"),
    ):
        function = decorate(function)
    return function


def told(own: tuple[str, ...], **given: str | None) -> dict[str, str]:
    """The options of `--option` and of the verb itself. OptionError for one without a value."""
    pairs = [text.partition("=") for text in own]
    if any(not mark for _, mark, _ in pairs):
        raise OptionError(f"--option {' '.join(own)}: NAME=VALUE expected")
    chosen = {name: value for name, _, value in pairs}
    return chosen | {name: value for name, value in given.items() if value is not None}


def run(ctx: click.Context, verb: str, source: str, target: str, chosen: Mapping[str, str], *, as_json: bool) -> None:
    """Do a verb's work with the one family that has it and files at `source`; tell what came of it."""
    from rawlog import registry
    from rawlog.tree import open_tree

    tree = open_tree(source)
    able = [family for family in registry.families() if verb in family.works]
    found = [family for family in able if any(file.system == family.name for file in tree)]
    if not found:
        names = ", ".join(family.title for family in able)
        raise UnknownFormatError(f"{source}: nothing here to {verb}; these systems can be: {names}")
    if len(found) > 1:
        names = " and ".join(family.name for family in found)
        raise OptionError(f"{source}: files of {names}; name the directory of one of them")
    files = [file for file in tree if file.system == found[0].name]
    account = found[0].works[verb](files, target, chosen)
    if as_json:
        output.json_line(account.as_json())
    else:
        for text in account.lines():
            output.line(printable(text))
        output.line(f"{verb}: {printable(target)}" + ("" if account.is_whole else "; something was lost, see above"))
    output.flush()
    ctx.exit(DONE if account.is_whole else FOUND)
