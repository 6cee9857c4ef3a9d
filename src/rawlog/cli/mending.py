"""What the verbs share that write a new directory from a store or partition: `repair`, `rebuild`, `compact`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rawlog.account import Account
from rawlog.cli import options, output
from rawlog.cli.errors import DONE, FOUND
from rawlog.errors import OptionError, UnknownFormatError
from rawlog.text import printable

if TYPE_CHECKING:
    from rawlog.format import Family, File

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


@dataclass(slots=True)
class Several(Account):
    """What came of the parts of a directory that different families know, by the family."""

    parts: dict[str, Account] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Whether nothing was lost in any of them."""
        return all(one.is_whole for one in self.parts.values())

    def as_json(self) -> dict[str, Any]:
        """Each part's own account."""
        return {**{name: one.as_json() for name, one in self.parts.items()}, "is_whole": self.is_whole}

    def lines(self) -> list[str]:
        """Each part's own account, under its name."""
        return [text for name, one in self.parts.items() for text in (name, *(f"  {line}" for line in one.lines()))]


def _shares(able: Sequence[Family], files: Sequence[File]) -> list[tuple[Family, list[File]]]:
    """Which family works on which files. One that looks into directories of another has those for itself: a metadata log is an ordinary
    log, but must not be mended as one.
    """
    claimed: dict[str | None, str] = {}
    for family in able:
        for file in family.files_for(None, files):
            if file.system != family.name:
                claimed[file.place.group] = family.name
    shares = []
    for family in able:
        claims = family.name in claimed.values()
        own = [
            file
            for file in files
            if claimed.get(file.place.group) == family.name
            or (file.system == family.name and not claims and file.place.group not in claimed)
        ]
        if own:
            shares.append((family, own, claims))
    if len(shares) > 1:  # what only stands beside the data of others is no work of its own
        shares = [one for one in shares if one[0].takes is None or any(file.place.topic for file in one[1])]
    if sum(not claims for _, _, claims in shares) > 1:
        names = " and ".join(family.name for family, _, _ in shares)
        raise OptionError(f"files of {names} are here; name the directory of one of them")
    return [(family, own) for family, own, _ in shares]


def run(ctx: click.Context, verb: str, source: str, target: str, chosen: Mapping[str, str], *, as_json: bool) -> None:
    """Do a verb's work with the family that has it and files at `source`; tell what came of it."""
    from rawlog import registry
    from rawlog.tree import open_tree

    tree = open_tree(source)
    able = [family for family in registry.families() if verb in family.works]
    shares = _shares(able, tree.files)
    if not shares:
        names = ", ".join(family.title for family in able)
        raise UnknownFormatError(f"{source}: nothing here to {verb}; these systems can be: {names}")
    accounts = {}
    for family, files in shares:
        groups = {file.place.group for file in files if file.place.partition is not None}
        alone = len(shares) == 1 or len(groups) != 1
        place = target if alone else f"{target}/{str(groups.pop()).rpartition('/')[2]}"
        accounts[family.name] = family.works[verb](files, place, chosen)
    account = next(iter(accounts.values())) if len(accounts) == 1 else Several(accounts)
    if as_json:
        output.json_line(account.as_json())
    else:
        for text in account.lines():
            output.line(printable(text))
        output.line(f"{verb}: {printable(target)}" + ("" if account.is_whole else "; something was lost, see above"))
    output.flush()
    ctx.exit(DONE if account.is_whole else FOUND)
