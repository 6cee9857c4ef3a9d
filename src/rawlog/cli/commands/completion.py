"""`rawlog completion`: the script that makes a shell complete verbs, options and paths."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from rawlog.cli.options import examples

SHELLS = ("bash", "zsh", "fish")


@click.command(
    short_help="Print the completion script of a shell.",
    epilog=examples(
        "rawlog completion bash > ~/.local/share/bash-completion/completions/rawlog",
        'rawlog completion zsh > "${fpath[1]}/_rawlog"',
        "rawlog completion fish > ~/.config/fish/completions/rawlog.fish",
    ),
)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a SHELL."""
    completion = get_completion_class(shell)
    assert completion is not None
    click.echo(completion(ctx.find_root().command, {}, "rawlog", "_RAWLOG_COMPLETE").source())
