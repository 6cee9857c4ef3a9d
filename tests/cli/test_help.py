"""The help of every verb: plain sentences, and examples that the command line understands."""

from __future__ import annotations

import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from rawlog.cli import cli


def parent() -> click.Context:
    """The context of the command line itself: a command keeps the names of its help option from the first context that it meets."""
    return click.Context(cli, **cli.context_settings)


def commands() -> dict[str, click.Command]:
    context = parent()
    found = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None}


def examples(command: click.Command) -> list[str]:
    """The lines below `Examples:` in a command's help, up to the first empty one."""
    text = command.get_help(click.Context(command, parent(), info_name=command.name, max_content_width=200))
    lines = [line.strip() for line in text.splitlines()]
    assert "Examples:" in lines, f"{command.name}: no examples"
    start = lines.index("Examples:") + 1
    stop = lines.index("", start) if "" in lines[start:] else len(lines)
    return lines[start:stop]


@pytest.mark.parametrize("name", commands())
def test_every_verb_has_examples_that_parse(name: str) -> None:
    command = commands()[name]
    found = examples(command)
    assert found
    for line in found:
        words = shlex.split(line.rpartition("|")[2].partition(" > ")[0])
        assert words[:2] == ["rawlog", name], line
        assert command.make_context(name, words[2:], parent()).params, line


def test_the_help_of_rawlog_has_examples_that_parse() -> None:
    for line in examples(cli):
        verb, *words = shlex.split(line)[1:]
        assert commands()[verb].make_context(verb, words, parent()).params, line


@pytest.mark.parametrize("words", [("ingest", "x"), ("report", "x"), ("record", "t"), ("extract", "x")])
def test_a_target_that_is_missing_is_wrong_usage(words: tuple[str, str]) -> None:
    """Options that must be given were let through: `ingest` without --to ended as an internal error."""
    verb, argument = words
    with pytest.raises(click.MissingParameter):
        commands()[verb].make_context(verb, [argument], parent())


def test_the_help_and_the_readme_tell_the_three_verbs_that_bring_data_back_apart() -> None:
    """Nobody knew which of `repair`, `rescue` and `restore` to take, and the help of each explained it alone."""
    shown = " ".join(CliRunner().invoke(cli, ["--help"]).stdout.split())
    assert (
        "repair: one broker, damaged. rescue: several disks of a dead cluster. restore: into a new broker, or back to a moment."
        in shown
    )
    [line] = [
        line for line in (Path(__file__).parents[2] / "README.md").read_text().splitlines() if "bring data back" in line
    ]
    assert all(f"[{verb}](docs/{verb}.md)" in line for verb in ("repair", "rescue", "restore"))
