"""`rawlog completion`: the script that makes a shell complete verbs, options, paths and names; `--install` sets it up.

All shells ask rawlog itself for what may follow. Topics, groups, tables and columns come from the paths before them on the command line.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import click
from click.shell_completion import get_completion_class

from rawlog.cli import output
from rawlog.model.errors import DONE, RawlogError
from rawlog.model.table import RECORDS
from rawlog.model.verb import Kind, Parameter, verb

if TYPE_CHECKING:
    from rawlog.reading.tree import Tree

#: So many directories, and files of each, are looked at for names; and so many bytes are read for the names of groups.
MOST_FOLDERS, MOST_FILES, MOST_BYTES = 20_000, 20, 16 << 20
SHELLS = ("bash", "zsh", "fish")
#: Ends the line that `--install` adds to a start file, so that it is added once.
MARK = "# rawlog completion"


@verb(
    group="set up",
    examples=(
        "rawlog completion --install",
        "rawlog completion zsh --install",
        "rawlog completion bash > ~/.local/share/bash-completion/completions/rawlog",
    ),
)
def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"] | None, "SHELL"] = None,
    *,
    install: Annotated[bool, "Set it up for this user. Without SHELL: for the shell of $SHELL."] = False,
) -> int:
    """Complete verbs, options and paths in a shell: bash, zsh, fish.

    It prints the script for `shell`, or installs it. The script is stored where the shell looks for scripts of a user; fish needs no more.
    bash and zsh also get one line at the end of ~/.bashrc or ~/.zshrc. New shells complete verbs, options and files, and the
    topics, groups, tables and columns of the paths before them.
    """
    ctx = click.get_current_context()
    name = shell or Path(os.environ.get("SHELL", "")).name
    if name not in SHELLS or (shell is None and not install):
        raise click.UsageError(f"Which shell? Name one of {', '.join(SHELLS)}.", ctx)
    script_class = get_completion_class(name)
    assert script_class is not None
    script = script_class(ctx.find_root().command, {}, "rawlog", "_RAWLOG_COMPLETE").source()
    if install:
        _install(name, script)
    else:
        click.echo(script)
    return DONE


def _install(shell: str, script: str) -> None:
    """Store the script, make the shell read it, and print what was done. AccessError if a file cannot be written."""
    from rawlog.io.output import writing

    path = _place(shell)
    with writing(path, overwrite=True) as file:
        file.write(script.encode())
    output.line(f"wrote {path}")
    start = _start_file(shell)
    if start is not None:
        named, added = shlex.quote(str(path)), _add_line(start[0], start[1].format(path=shlex.quote(str(path))))
        output.line(f"added a line to {start[0]}" if added else f"{start[0]} has the line for it already")
        output.line(f"for this shell: . {named}")
    output.flush()


def _place(shell: str) -> Path:
    """Where a shell looks for the completion scripts of a user."""
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return {
        "bash": data / "bash-completion" / "completions" / "rawlog",
        "zsh": data / "zsh" / "site-functions" / "_rawlog",
        "fish": config / "fish" / "completions" / "rawlog.fish",
    }[shell]


def _start_file(shell: str) -> tuple[Path, str] | None:
    """The file that an interactive shell reads first, and the line that it needs; None for fish, which needs no line."""
    if shell == "bash":
        return Path.home() / ".bashrc", "[ -r {path} ] && . {path}"
    if shell == "zsh":
        folder = Path(os.environ.get("ZDOTDIR") or Path.home())
        return folder / ".zshrc", "(( $+functions[compdef] )) || {{ autoload -Uz compinit && compinit }}; . {path}"
    return None


def _add_line(path: Path, line: str) -> bool:
    """Append a line to a file of the user's; False if it is there. Only appended, so that mode, owner and links stay."""
    from rawlog.io.output import unwritable

    try:
        before = path.read_bytes() if path.exists() else b""
        if MARK.encode() in before:
            return False
        with open(path, "ab") as file:
            file.write(b"" if not before or before.endswith(b"\n") else b"\n")
            file.write(f"{line}  {MARK}\n".encode())
    except OSError as error:
        raise unwritable(str(path), error) from None
    return True


# Names ----------------------------------------------------------------------------------------------------------------------

Complete = Callable[[click.Context, click.Parameter, str], list[str]]


#: A shell inserts a name as it is: one with `$(…)` or a line break in it would be a command on the user's line.
_PLAIN = re.compile(r"[\w.,:%@=+/-]+")


def completer(parameter: Parameter) -> Complete | None:
    """What completes the values of an option, with names that mean nothing to a shell; None if a shell or click knows better."""
    names = {"topic": _topics, "group": _groups, "columns": _columns, "tables": _several_tables}.get(parameter.name)
    complete = _tables if parameter.kind is Kind.TABLE else names
    if complete is None:
        return None
    return lambda ctx, param, incomplete: [name for name in complete(ctx, param, incomplete) if _PLAIN.fullmatch(name)]


def _topics(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Topics of the paths, those of users first. They come from the names of files: no file is opened."""
    names = {topic for path in _paths(ctx) for topic in _topics_below(path)}
    return sorted((name for name in names if name.startswith(incomplete)), key=lambda name: (name[:1] == "_", name))


def _topics_below(path: str) -> Iterator[str]:
    from rawlog import registry

    matches = [format.match for format in registry.formats().values() if format.match is not None]
    for folder, _, files in islice(os.walk(path), MOST_FOLDERS):
        places = (match(os.path.join(folder, name)) for name in sorted(files)[:MOST_FILES] for match in matches)
        topic = next((place.topic for place in places if place is not None and place.topic is not None), None)
        if topic is not None:
            yield topic


def _groups(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Groups of the paths, if the files that have them are small."""
    from rawlog import registry

    tree = _tree(ctx)
    if tree is None:
        return []
    names: set[str] = set()
    for family in registry.families():
        files = family.files_for(f"{family.name}.groups", tree.files)
        if family.groups is not None and 0 < sum(file.size for file in files) <= MOST_BYTES:
            with suppress(RawlogError):
                names |= {group.name for group in family.groups(files, "skip")}
    return sorted(name for name in names if name.startswith(incomplete))


def _tables(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Tables that the paths have, or all of them where no path is given yet."""
    from rawlog import registry

    tree = _tree(ctx)
    return [name for name in (tree.tables if tree else registry.tables()) if name.startswith(incomplete)]


def _several_tables(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The last of several tables with commas between them."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _tables(ctx, param, last)]


def _columns(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The last of several columns, by the declaration of the table that is chosen."""
    from rawlog import registry

    before, comma, last = incomplete.rpartition(",")
    table = registry.tables().get(str(ctx.params.get("table") or RECORDS.name), RECORDS)
    taken = before.split(",")
    return [f"{before}{comma}{name}" for name in table.names if name.startswith(last) and name not in taken]


def _paths(ctx: click.Context) -> list[str]:
    """The local paths among the arguments given so far."""
    from rawlog.io.storage import is_remote, local_path

    arguments = [parameter.name or "" for parameter in ctx.command.params if isinstance(parameter, click.Argument)]
    # Words are left over where the option that is completed has no value yet.
    values = [*(ctx.params.get(name) for name in arguments), *ctx.args]
    texts = [text for value in values for text in ((value,) if isinstance(value, str) else value or ())]
    return [local_path(text) for text in texts if not is_remote(text) and os.path.exists(local_path(text))]


def _tree(ctx: click.Context) -> Tree | None:
    """The files at the paths; None if there is no path."""
    from rawlog.reading.tree import open_tree

    paths = _paths(ctx)
    with suppress(RawlogError):
        return open_tree(paths) if paths else None
    return None
