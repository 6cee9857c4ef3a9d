"""The manual page rawlog(1), made from the table of commands: `python -m rawlog.cli.manual [FILE]`.

It needs nothing but click, so that a wheel can be built with it: see hatch_build.py.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click

from rawlog import __version__
from rawlog.cli import GROUPS, cli

#: What is worth to know about more than one verb.
EXIT_CODES = (
    ("0", "clean, whole, the same"),
    ("1", "damage, differences, loss, something corrected or left out"),
    ("2", "wrong usage"),
    ("3", "something cannot be read or written, or no file of a known format is there"),
)
VARIABLES = (
    ("RAWLOG_LOG_FORMAT", "how messages on stderr are printed if no option says so: text or json"),
    ("RAWLOG_ENGINE", "where jobs run if no option says so: local or spark"),
    ("RAWLOG_BOOTSTRAP, RAWLOG_CLIENT_CONFIG", "brokers and client settings of record, replay and mirror"),
    ("SPARK_MASTER, SPARK_REMOTE", "the cluster of jobs that run on Spark"),
    ("XDG_CACHE_HOME", "where compiled kernels and the archive of Spark's classes are kept; ~/.cache otherwise"),
    ("NO_COLOR", "no colours"),
)


class ManualEntry(NamedTuple):
    """A verb with what its help says."""

    group: str
    name: str
    summary: str
    usage: str
    text: str
    options: list[tuple[str, str]]
    epilog: str


def entries() -> Iterator[ManualEntry]:
    """The verbs by group, in the order of `rawlog --help`."""
    top = click.Context(cli, info_name="rawlog", **cli.context_settings)
    groups = {declaration.name: declaration.group for declaration in cli.declarations()} | {"submit": "set up"}
    commands = [(name, cli.get_command(top, name)) for name in cli.list_commands(top)]
    for group in GROUPS:
        for name, command in commands:
            if command is not None and groups[name] == group:
                yield _entry(group, name, command, top)


def _entry(group: str, name: str, command: click.Command, top: click.Context) -> ManualEntry:
    context = click.Context(command, parent=top, info_name=name)
    options = [
        option for option in command.get_params(context) if isinstance(option, click.Option) and option.name != "help"
    ]
    records = [option.get_help_record(context) for option in options]
    usage = " ".join(["rawlog", name, *command.collect_usage_pieces(context)])
    text = re.sub(r"(?m)^\x08$", "", command.help or "").split("\f")[0]
    return ManualEntry(
        group, name, command.get_short_help_str(200), usage, text.strip(), [record for record in records if record is not None],
        (command.epilog or "").replace("\b\n", "").strip(),
    )  # fmt: skip


def page() -> str:
    """rawlog(1) in the macros of man(7)."""
    parts = [
        f'.TH RAWLOG 1 "" "rawlog {__version__}" "User Commands"',
        f".SH NAME\nrawlog \\- {_plain('read, verify, repair, convert and query the files of message systems')}",
        ".SH SYNOPSIS\n.B rawlog\n.I VERB\n[\\fIOPTIONS\\fR] [\\fIPATH\\fR...]",
        f".SH DESCRIPTION\n{_paragraphs(cli.help or '')}",
        f".SH EXIT STATUS\n{_list_options(EXIT_CODES)}",
        f".SH ENVIRONMENT\n{_list_options(VARIABLES)}",
    ]
    before = ""
    for entry in entries():
        if entry.group != before:
            parts.append(f".SH {_plain(entry.group.upper())}")
            before = entry.group
        parts.append(
            f".SS {entry.name}\n{_plain(entry.summary)}\n.PP\n\\fB{_plain(entry.usage)}\\fR\n.PP\n{_paragraphs(entry.text)}\n"
            f"{_list_options(entry.options)}\n{_show_lines(entry.epilog)}"
        )
    parts.append(
        ".SH SEE ALSO\nThe same with examples: \\fBrawlog\\fR \\fIVERB\\fR \\fB\\-\\-help\\fR. "
        "What a finding means: \\fBrawlog verify \\-\\-rules\\fR."
    )
    return "\n".join(parts) + "\n"


def _plain(text: str) -> str:
    """Text for roff: no line of it is a macro, and a dash stays one."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"(?m)^(?=[.'])", r"\\&", text)


def _paragraphs(text: str) -> str:
    blocks = re.split(r"\n\s*\n", re.sub(r"(?m)^[ \t]+", "", text.strip()))
    return "\n.PP\n".join(_plain(block) for block in blocks)


def _list_options(pairs: list[tuple[str, str]] | tuple[tuple[str, str], ...]) -> str:
    return "\n".join(f".TP\n\\fB{_plain(name)}\\fR\n{_plain(text)}" for name, text in pairs)


def _show_lines(text: str) -> str:
    """Lines as they are."""
    return f".PP\n.nf\n{_plain(text)}\n.fi" if text else ""


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(page(), encoding="utf-8")
    else:
        sys.stdout.write(page())
