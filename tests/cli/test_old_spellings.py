"""Options that were renamed: the spelling of the last release works for one more, with a note on stderr."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from rawlog.cli import cli
from rawlog.cli.command import Command

SAMPLES = Path(__file__).parent.parent.parent / "samples"
#: A command line that has everything else that the verb needs, and a value for the option.
LINES = {
    ("convert", "--to"): (["SRC", "DST"], "parquet"),
    ("record", "--as"): (["orders", "--to", "out", "--brokers", "host:9092"], "parquet"),
    ("record", "--output"): (["orders", "--brokers", "host:9092"], "out"),
    ("replay", "-t"): (["recording", "--brokers", "host:9092"], "orders"),
    ("report", "--output"): (["kafka-logs"], "report.html"),
    ("rescue", "--brokers"): (["disk1", "disk2", "--plan"], "3"),
}


def commands() -> dict[str, Command]:
    context = click.Context(cli)
    every = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    return {name: command for name, command in every.items() if isinstance(command, Command)}


def test_every_old_spelling_has_a_command_line_here() -> None:
    assert LINES.keys() == {(name, old) for name, command in commands().items() for old in command.old}


@pytest.mark.parametrize(("verb", "old"), LINES)
def test_an_old_spelling_means_the_new_one_and_says_so(verb: str, old: str, capsys: pytest.CaptureFixture[str]) -> None:
    command, (words, value) = commands()[verb], LINES[verb, old]
    new = command.old[old]
    expected = command.make_context(verb, [*words, new, value]).params
    assert value in map(str, expected.values())
    assert capsys.readouterr().err == ""
    joined = f"{old}={value}" if old.startswith("--") else f"{old}{value}"
    for spelling in ([old, value], [joined]):
        assert command.make_context(verb, [*words, *spelling]).params == expected
        assert f"{old} is now {new}; the next release does not know {old}" in capsys.readouterr().err


@pytest.mark.parametrize(("verb", "old"), LINES)
def test_the_help_shows_the_new_spelling_only(verb: str, old: str) -> None:
    command = commands()[verb]
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    assert old not in known
    assert command.old[old] in known


def test_a_word_after_two_dashes_is_no_option(capsys: pytest.CaptureFixture[str]) -> None:
    context = commands()["convert"].make_context("convert", ["--format", "csv", "--", "--to", "DST"])
    assert context.params["source"] == ("--to",)
    assert capsys.readouterr().err == ""


def test_verbs_run_with_old_spellings(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    done = CliRunner().invoke(cli, ["report", str(SAMPLES / "replay"), "--output", str(page)])
    assert page.exists()
    assert "--output is now --to" in done.stderr
    rows = tmp_path / "rows"
    done = CliRunner().invoke(cli, ["convert", str(SAMPLES / "kafka" / "transactions-0"), str(rows), "--to", "jsonl"])
    assert done.exit_code == 0, done.output
    assert rows.exists()
    assert "--to is now --format" in done.stderr
