"""Every verb of the command line is a function of `rawlog` with the same name and options, and its example runs."""

from __future__ import annotations

import doctest
import inspect
import re
import zipfile
from pathlib import Path
from typing import Any

import click
import pytest

import rawlog
from rawlog import verbs as declared
from rawlog.cli import cli

ROOT = Path(__file__).parents[2]
#: Verbs that are only for a terminal.
NO_FUNCTION = {"sql", "submit", "completion"}
#: `rawlog.formats` is the package of the formats.
OTHER_NAME = {"formats": "list_formats"}
#: How rows are printed.
PRINTING = {
    "verbose",
    "quiet",
    "progress_shown",
    "log_format",
    "as_json",
    "as_csv",
    "raw",
    "delimiter",
    "template",
    "arrow",
    "expanded",
    "wide",
    "form",
}
#: What is another function in Python, or only changes what is printed.
ONLY_COMMAND = {
    "tail": {"follow", "limit"},  # rawlog.follow
    "verify": {"list_rules"},  # rawlog.rules
    "ls": {"every"},  # --all: which lines are printed
    "browse": {"is_opened"},
    "record": {"more_topics"},
    "replay": {"more_sources", "sql"},  # rawlog.replay takes the answer of rawlog.query
}
#: `-o N` is `start="N"` and `last=N`; the others have no text form.
ONLY_PYTHON = {"note", "progress", "last", "topic_pattern", "stop"}


def verbs() -> dict[str, click.Command]:
    context = click.Context(cli, **cli.context_settings)
    found = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None and name not in NO_FUNCTION}


def function_of(verb: str) -> Any:
    return getattr(rawlog, OTHER_NAME.get(verb, verb))


def options_of(function: Any) -> set[str]:
    """The names of all parameters."""
    return set(inspect.signature(function).parameters)


def names_of(verb: str, command: click.Command) -> set[str]:
    """The options of a command under the names that a function has."""
    names = set()
    for one in command.params:
        name = str(one.name)
        if name in PRINTING | ONLY_COMMAND.get(verb, set()) | {"help"}:
            continue
        names.add(name)
    return names


@pytest.mark.parametrize("verb", verbs())
def test_a_verb_is_a_function_with_the_same_options(verb: str) -> None:
    assert options_of(function_of(verb)) - ONLY_PYTHON == names_of(verb, verbs()[verb])


@pytest.mark.parametrize("name", [name for name in rawlog.__all__ if not name.startswith("_") and name != "Log"])
def test_the_docstring_has_an_example_that_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    function = getattr(rawlog, name)
    (tmp_path / "samples").symlink_to(ROOT / "samples")
    monkeypatch.chdir(tmp_path)
    if name == "lake":
        rawlog.ingest("samples/replay", "out/python-lake", engine="local")
    [test] = doctest.DocTestFinder(recurse=False).find(function, name, globs={})
    assert len(test.examples) >= 2, f"rawlog.{name} has no example"
    assert doctest.DocTestRunner().run(test).failed == 0


def test_all_names_are_in_the_types_too() -> None:
    """`if TYPE_CHECKING` is what mypy and editors see; the table of verbs is what Python sees."""
    text = Path(str(rawlog.__file__)).read_text()
    names = set(rawlog.__all__) - {"__version__"}
    assert {name for name in names if re.search(rf"^    .*\b{name}\b", text, re.MULTILINE)} == names
    assert {*declared.VERBS, *declared.FUNCTIONS} - set(OTHER_NAME) == names


def test_a_notebook_shows_every_option() -> None:
    """`rawlog.read?` showed `**selection`; what could be chosen was in the documentation only."""
    shown = str(inspect.signature(rawlog.read))
    for option in ("topic", "since", "columns", "where", "decode"):
        assert f"{option}: " in shown
    assert "Unpack" not in shown
    assert "errors: Literal['raise', 'stop', 'skip'] = 'raise'" in shown.replace("typing.", "")


def test_an_unknown_option_is_an_error(tmp_path: Path) -> None:
    """Functions that take typed keywords got any others, too: `rawlog.verify(path, only=...)` would have checked all rules."""
    with pytest.raises(TypeError, match="unexpected keyword argument 'only'"):
        rawlog.verify(tmp_path, only=["kafka"])  # type: ignore[call-arg]
    with pytest.raises(rawlog.errors.OptionError, match="unknown option 'colums'; did you mean columns"):
        rawlog.read(ROOT / "samples/replay", colums=["offset"])  # type: ignore[call-arg]


def test_the_wheel_says_that_it_is_typed(tmp_path: Path) -> None:
    from hatchling.builders.wheel import WheelBuilder

    [made] = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    assert "rawlog/py.typed" in zipfile.ZipFile(made).namelist()
