"""`rawlog completion`: the script that makes a shell complete verbs, options and paths; `--install` sets it up."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated, Literal

import click
from click.shell_completion import get_completion_class

from rawlog.cli import output
from rawlog.model.errors import DONE
from rawlog.model.verb import verb

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
    bash and zsh also get one line at the end of ~/.bashrc or ~/.zshrc. New shells complete verbs, options, names of tables, and files.
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
