"""The command line: a table of verbs, each a module that is imported when it is used. `main` is the console entry.

To add a verb: a module below `commands` with a click command named `command`, and its line in VERBS. Verbs that only one family has are
registered by it (`Family.verbs`), not here.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import sys
from functools import partial
from typing import Any

import click

from rawlog import __version__
from rawlog.cli import logs
from rawlog.cli.logs import CLOSED_PIPE, guarded, quiet_output

#: verb -> (group of `--help`, module, one line of help). A verb whose module is not there yet is not shown.
VERBS: dict[str, tuple[str, str, str]] = {
    "formats": ("look", "rawlog.cli.commands.formats", "List every format: family, files, what can be done with it."),
    "ls": ("look", "rawlog.cli.commands.ls", "List what is there: system, topic, offsets, times, counts, state."),
    "cat": ("look", "rawlog.cli.commands.cat", "Print the rows of a table."),
    "head": ("look", "rawlog.cli.commands.head", "Print the first rows."),
    "tail": ("look", "rawlog.cli.commands.tail", "Print the last rows; -f follows a live log."),
    "count": ("look", "rawlog.cli.commands.count", "Print the number of rows."),
    "find": ("look", "rawlog.cli.commands.find", "Look for a text, key or id in the records of all systems."),
    "explain": ("look", "rawlog.cli.commands.explain", "Show the bytes of a frame, field by field."),
    "report": (
        "look",
        "rawlog.cli.commands.report",
        "Write one page: what is here, is it healthy, what to do.",
    ),
    "browse": ("look", "rawlog.cli.commands.browse", "Serve a local web page to walk files, records and bytes."),
    "verify": ("check and repair", "rawlog.cli.commands.verify", "Check everything: findings and a verdict."),
    "diff": ("check and repair", "rawlog.cli.commands.diff", "Show what two places do not agree on."),
    "convert": (
        "move",
        "rawlog.cli.commands.convert",
        "Convert rows to another system or to Parquet, JSON lines, CSV.",
    ),
    "restore": ("move", "rawlog.cli.commands.restore", "Write a data directory that a real broker starts on."),
    "erase": ("move", "rawlog.cli.commands.erase", "Write a copy without chosen records or blobs."),
    "repair": (
        "check and repair",
        "rawlog.cli.commands.repair",
        "Write a repaired copy; report what was kept, cut and rebuilt.",
    ),
    "rebuild": ("check and repair", "rawlog.cli.commands.rebuild", "Write a copy with its derived files rebuilt."),
    "rescue": (
        "check and repair",
        "rawlog.cli.commands.rescue",
        "Put the replicas on the disks of a dead cluster together into one directory.",
    ),
    "compact": ("move", "rawlog.cli.commands.compact", "Write a compacted copy, as the real system would make it."),
    "query": ("ask", "rawlog.cli.commands.query", "Answer a question in SQL; the tables of the paths are views."),
    "sql": ("ask", "rawlog.cli.commands.sql", "Open a prompt for SQL that keeps its session."),
    "ingest": ("ask", "rawlog.cli.commands.ingest", "Decode everything into a lake of queryable tables."),
    "lake": ("ask", "rawlog.cli.commands.lake", "Show what a lake holds, or maintain it."),
    "record": ("live", "rawlog.cli.commands.record", "Record topics of a live cluster to files."),
    "replay": ("live", "rawlog.cli.commands.replay", "Send recorded records to topics of a live cluster."),
    "mirror": ("live", "rawlog.cli.commands.mirror", "Copy topics from one live cluster to another."),
    "submit": ("set up", "rawlog.cli.commands.submit", "Run a verb on a Spark cluster; rawlog's code is sent with it."),
    "completion": (
        "set up",
        "rawlog.cli.commands.completion",
        "Complete verbs, options and paths in a shell: bash, zsh, fish.",
    ),
    "doctor": ("set up", "rawlog.cli.commands.doctor", "Check this installation, and say what is missing."),
}
GROUPS = ("look", "check and repair", "move", "ask", "live", "set up")


class Verbs(click.Group):
    """A group that knows its verbs without importing them, and ends with the exit codes that rawlog promises."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs that work, in the order of the table, then those of families."""
        from rawlog.verbs.family import verbs

        there = [name for name, (_, module, _) in VERBS.items() if importlib.util.find_spec(module) is not None]
        return [*there, *verbs()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of a verb."""
        if cmd_name not in VERBS:
            return _family_command(cmd_name)
        if importlib.util.find_spec(VERBS[cmd_name][1]) is None:
            return None
        command: click.Command = importlib.import_module(VERBS[cmd_name][1]).command
        command.name = cmd_name
        command.short_help = VERBS[cmd_name][2]
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
        from rawlog.verbs.family import verbs

        shown = {name: (VERBS[name][0], VERBS[name][2]) for name in self.list_commands(ctx) if name in VERBS}
        shown |= {name: (verb.group, verb.summary) for name, verb in verbs().items()}
        width = max(map(len, shown))
        for group in GROUPS:
            lines = [(name.ljust(width), text) for name, (own, text) in shown.items() if own == group]
            if lines:
                with formatter.section(group[0].upper() + group[1:]):
                    formatter.write_dl(lines)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a verb; if the reader of the output ends, that is not an error. If no file was recognised, say how to name a format."""
        from rawlog.model.errors import UnrecognisedError

        try:
            return super().invoke(ctx)
        except UnrecognisedError as error:
            verb = self.get_command(ctx, str(ctx.invoked_subcommand))
            if verb is None or all("--as" not in option.opts for option in verb.params):
                raise
            first, *others = str(error).split("\n")
            raise UnrecognisedError("\n".join([f"{first}; --as FORMAT names one", *others])) from None
        except BrokenPipeError:
            quiet_output()
            ctx.exit(CLOSED_PIPE)

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run the command line and end the process with its exit code."""
        given = args[0] if args else extra.get("args")
        logs.begin(sys.argv[1:] if given is None else list(given))
        run = partial(super().main, *args, **extra, standalone_mode=False)
        if not standalone_mode:
            return run()
        raise SystemExit(guarded(run))


def _family_command(name: str) -> click.Command | None:
    """The command of a verb that only one family has."""
    from rawlog.cli.family_verb import command_of
    from rawlog.verbs.family import verbs

    verb = verbs().get(name)
    return None if verb is None else command_of(name, verb)


@click.group(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="""\b
Examples:
  rawlog ls kafka-logs/
  rawlog cat kafka-logs/ --topic orders --since -2h --json
  rawlog verify kafka-logs/

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
    gc.set_threshold(50_000)  # importing makes many objects and no garbage
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy starts threads for an algebra that is not used here
    _spare_pandas(sys.argv[1:])
    cli.main(prog_name="rawlog")


def _spare_pandas(arguments: list[str]) -> None:
    """Keep pyarrow from importing pandas where it is installed: half a second that verbs without Spark have no use for."""
    verb = next((argument for argument in arguments if not argument.startswith("-")), "")
    if VERBS.get(verb, ("", "", ""))[0] in ("look", "check and repair"):
        sys.meta_path.insert(0, _NoPandas())


class _NoPandas:
    """A finder of modules (its base class would import a dozen others)."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is not used here", name=fullname)
