"""The command line, made from the declarations of verbs. `main` is the console entry.

To add a verb: a function with `@verb` in a module below `rawlog.verbs`, and its line in the list there.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from rawlog import __version__
from rawlog import verbs as declared
from rawlog.cli import logs
from rawlog.cli.logs import CLOSED_PIPE, guarded, quiet_output

if TYPE_CHECKING:
    from rawlog.model.verb import Declaration

#: Verbs that are only for a terminal, and their modules.
TERMINAL = {"sql": "rawlog.cli.sql", "submit": "rawlog.cli.submit", "completion": "rawlog.cli.completion"}
GROUPS = ("look", "check and repair", "move", "ask", "live", "set up")


class Verbs(click.Group):
    """A group that knows its verbs without importing them, and ends with the exit codes that rawlog promises."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs, in the order of their list."""
        return [*declared.VERBS, *TERMINAL]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a verb; its module is imported now."""
        from rawlog.cli.command import command_of
        from rawlog.model.verb import DECLARED

        if cmd_name in declared.VERBS:
            return command_of(declared.declaration(cmd_name))
        if cmd_name not in TERMINAL:
            return None
        module = importlib.import_module(TERMINAL[cmd_name])
        command: click.Command = command_of(DECLARED[cmd_name]) if cmd_name in DECLARED else module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Answer an unknown verb with the nearest ones."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            from rawlog.model.errors import unknown

            raise click.UsageError(str(unknown("verb", args[0], self.list_commands(ctx))), ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The verbs by group, without importing any of them."""
        shown = {declaration.name: (declaration.group, declaration.summary) for declaration in self.declarations()}
        shown["submit"] = ("set up", str(getattr(self.get_command(ctx, "submit"), "short_help", "")))
        width = max(map(len, shown))
        for group in GROUPS:
            lines = [(name.ljust(width), text) for name, (section, text) in shown.items() if section == group]
            if lines:
                with formatter.section(group[0].upper() + group[1:]):
                    formatter.write_dl(lines)

    def declarations(self) -> Iterator[Declaration]:
        """The declarations of all verbs."""
        from rawlog.model.verb import DECLARED

        yield from map(declared.declaration, declared.VERBS)
        for name, module in TERMINAL.items():
            importlib.import_module(module)
            if name in DECLARED:
                yield DECLARED[name]

    def invoke(self, ctx: click.Context) -> Any:
        """Run a verb; if the reader of the output ends, that is not an error. An error without a next step gets the one of this verb."""
        from rawlog.model.errors import RawlogError

        try:
            return super().invoke(ctx)
        except RawlogError as error:
            name = str(ctx.invoked_subcommand)
            command = self.get_command(ctx, name)
            assert command is not None
            options = {spelling for parameter in command.params for spelling in parameter.opts}
            raise error.advise(logs.next_step(error, name, options)) from error.__cause__
        except BrokenPipeError:
            quiet_output()
            ctx.exit(CLOSED_PIPE)

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run the command line and end the process with its exit code."""
        arguments = args[0] if args else extra.get("args")
        logs.begin(sys.argv[1:] if arguments is None else list(arguments))
        run = partial(super().main, *args, **extra, standalone_mode=False)
        if not standalone_mode:
            return run()
        raise SystemExit(guarded(run))


@click.group(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="""\b
Examples:
  rawlog ls kafka-logs/
  rawlog cat kafka-logs/ --topic orders --since -2h --json
  rawlog verify kafka-logs/

repair: one broker, damaged. rescue: several disks of a dead cluster. restore: into a new broker, or back to a moment.

Exit codes: 0 clean; 1 damage, differences or loss; 2 wrong usage; 3 cannot be read or written. `rawlog VERB --help` shows the options and
examples of a verb; each verb is also a Python function: rawlog.verify("kafka-logs/").""",
)
@click.version_option(__version__, prog_name="rawlog")
def cli() -> None:
    """Read, verify, repair, convert and query the files that Kafka, KRaft, kafka-replay, RocketMQ and Ambry leave on disk.

    A PATH is a file, a directory, a glob or a URL (s3://, gs://, file://); files are recognised by place, name and first bytes.
    """


def main() -> None:
    """The console entry."""
    _open_streams()
    gc.set_threshold(200_000)  # importing makes many objects and no garbage
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy starts threads for an algebra that is not used here
    _spare_pandas(sys.argv[1:])
    is_default = (
        signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    )  # `__main__` sets it, until there is somebody to handle it
    if is_default:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        cli.main(prog_name="rawlog")
    finally:
        if is_default:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _open_streams() -> None:
    """Give standard streams that are closed a file: else the next one that is opened has their number, and what is printed goes into it.
    Writing to standard output fails as it would without one; messages get lost.
    """
    for number, name, mode in ((0, "stdin", os.O_RDONLY), (1, "stdout", os.O_RDONLY), (2, "stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, mode)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, open(number, "r" if number == 0 else "w", encoding="utf-8"))  # noqa: SIM115


def _spare_pandas(arguments: list[str]) -> None:
    """Keep pyarrow from importing pandas where it is installed: half a second that verbs without Spark have no use for."""
    verb = next((argument for argument in arguments if not argument.startswith("-")), "")
    if verb in declared.VERBS and declared.declaration(verb).group in ("look", "check and repair"):
        sys.meta_path.insert(0, _NoPandas())


class _NoPandas:
    """A finder of modules (its base class would import a dozen others)."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is not used here", name=fullname)
