"""What the verbs share that write a new directory from a store or partition: `repair`, `rebuild`, `compact`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rawlog.account import Account
from rawlog.cli import options, output
from rawlog.cli.errors import DONE, FOUND
from rawlog.errors import AccessError, OptionError, UnknownFormatError, unknown
from rawlog.storage import replace_directory
from rawlog.text import printable

if TYPE_CHECKING:
    from rawlog.format import Family, File

F = TypeVar("F", bound=Callable[..., Any])


def arguments(function: F) -> F:
    """SRC, DST and what every such verb takes."""
    for decorate in (
        options.json_flag,
        click.option(
            "--force", is_flag=True, help="Replace DST if it is there; it stays as it is unless all goes well."
        ),
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
    chosen = {_plain(name): value for name, _, value in pairs}
    return chosen | {name: value for name, value in given.items() if value is not None}


def _plain(name: str) -> str:
    """The name of an option as families know it: `delete.retention.ms` is `delete_retention_ms`."""
    return name.replace(".", "_").replace("-", "_")


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


def run(
    ctx: click.Context,
    verb: str,
    source: str,
    target: str,
    chosen: Mapping[str, str],
    *,
    as_json: bool,
    force: bool = False,
    dry_run: bool = False,
) -> None:
    """Do a verb's work with the family that has it and files at `source`; tell what came of it."""
    from rawlog import registry
    from rawlog.tree import open_tree

    tree = open_tree(source)
    able = [family for family in registry.families() if verb in family.works]
    shares = _shares(able, tree.files)
    if not shares:
        names = ", ".join(family.title for family in able)
        raise UnknownFormatError(f"{source}: nothing here to {verb}; these systems can be: {names}")
    _check_options(verb, chosen, [family for family, _ in shares])
    with _scratch() if dry_run else _place(target, force=force, several=len(shares) > 1) as folder:
        account = _work(verb, shares, folder, chosen, dry_run=dry_run)
    _name_target(account, folder, target)
    if as_json:
        output.json_line(account.as_json() | ({"dry_run": True} if dry_run else {}))
    else:
        for text in account.lines():
            output.line(printable(text))
        done = f"{verb}: nothing written to {printable(target)}" if dry_run else f"{verb}: {printable(target)}"
        lost = "something would be lost" if dry_run else "something was lost"
        output.line(done + ("" if account.is_whole else f"; {lost}, see above"))
    output.flush()
    ctx.exit(DONE if account.is_whole else FOUND)


def _work(
    verb: str, shares: Sequence[tuple[Family, list[File]]], folder: str, chosen: Mapping[str, str], *, dry_run: bool
) -> Account:
    accounts: dict[str, Account] = {}
    for family, files in shares:
        groups = {file.place.group for file in files if file.place.partition is not None}
        alone = len(shares) == 1 or len(groups) != 1
        place = folder if alone else f"{folder}/{str(groups.pop()).rpartition('/')[2]}"
        known = family.work_options.get(verb, ())
        own = {name: value for name, value in chosen.items() if name in known}
        if dry_run and "dry_run" in known:
            own["dry_run"] = "true"
        accounts[family.name] = family.works[verb](files, place, own)
    return next(iter(accounts.values())) if len(accounts) == 1 else Several(accounts)


def _check_options(verb: str, chosen: Mapping[str, str], families: Sequence[Family]) -> None:
    """OptionError for a name that none of the families knows."""
    known = {name for family in families for name in family.work_options.get(verb, ())}
    for name in chosen:
        if name not in known:
            raise unknown(f"option of {' and '.join(family.name for family in families)} for {verb}", name, known)


@contextmanager
def _scratch() -> Iterator[str]:
    """For a work that is only to be told of: one that cannot do so without writing writes here."""
    with tempfile.TemporaryDirectory(prefix="rawlog-") as scratch:
        yield f"{scratch}/told"


@contextmanager
def _place(target: str, *, force: bool, several: bool) -> Iterator[str]:
    """Where works write so that all of it appears as `target`, or nothing: there, or beside it if one alone could not see to that."""
    if not (several or (force and os.path.exists(target))):
        yield target
        return
    final = Path(target).absolute()
    if final.exists() and (not force or not final.is_dir()):
        raise AccessError(f"{target}: exists already; choose another name" + ("" if force else " or use --force"))
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        beside = tempfile.TemporaryDirectory(prefix=f".{final.name}.", suffix=".tmp", dir=final.parent)
    except OSError as error:
        raise AccessError(f"{target}: {error.strerror or error}") from None
    with beside as folder:
        yield f"{folder}/{final.name}"
        replace_directory(Path(folder) / final.name, final)


def _name_target(account: Any, folder: str, target: str) -> None:
    """Tell the name that was asked for, not the one it was written under."""
    parts = [*getattr(account, "parts", {}).values(), *getattr(account, "partitions", {}).values()]
    for one in parts:
        _name_target(one, folder, target)
    if isinstance(getattr(account, "target", None), str):
        account.target = account.target.replace(folder, target, 1)
