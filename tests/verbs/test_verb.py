"""Verbs that only one family has: run by the library and by the command line, from what the family registered."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rawlog import registry
from rawlog.cli import cli
from rawlog.model.errors import OptionError
from rawlog.model.format import File
from rawlog.model.report import Report
from rawlog.model.verb import (
    Kind,
    Line,
    Parameter,
    Section,
    Shown,
    Tone,
    Verb,
)
from rawlog.verbs.groups import run_verb

SAMPLES = Path(__file__).parent.parent.parent / "samples"


def test_the_library_gives_the_rows_that_the_command_prints() -> None:
    shown = run_verb("cluster", SAMPLES / "kafka", {"topic": "codec-none", "at_offset": None})
    assert not isinstance(shown, Report)
    rows = [json.loads(json.dumps(one.row)) for one in shown if one.row is not None]
    done = CliRunner().invoke(cli, ["cluster", str(SAMPLES / "kafka"), "--topic", "codec-none", "--json"])
    assert done.exit_code == 0
    assert [json.loads(line) for line in done.stdout.splitlines()] == rows
    assert {row["topic"] for row in rows if row["table"] == "partitions"} == {"codec-none"}


def test_a_verb_that_writes_gives_a_report(tmp_path: Path) -> None:
    report = run_verb("extract", SAMPLES / "ambry", {"to": tmp_path / "blobs"})
    assert isinstance(report, Report)
    assert report.is_whole
    assert report.counts["blobs"] == len((tmp_path / "blobs" / "manifest.jsonl").read_text().splitlines())
    with pytest.raises(OptionError, match="lie inside one another"):
        run_verb("extract", SAMPLES / "ambry", {"to": SAMPLES / "ambry" / "out"})


@pytest.mark.parametrize(
    ("verb", "given", "said"),
    [
        ("clusters", {}, "did you mean cluster"),
        ("cluster", {"topics": "a"}, "did you mean topic"),
        ("cluster", {"errors": "skipp"}, "did you mean skip"),
        ("cluster", {"at_offset": -1}, "0 or more"),
        ("cluster", {"at_time": "soon"}, "ISO 8601"),
        ("cluster", {"topic": "codec-non"}, "did you mean codec-none"),
        ("cluster", {"log": True, "diff": "1..2"}, "exclude one another"),
        ("extract", {}, "to is required"),
    ],
)
def test_wrong_options_are_refused(verb: str, given: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        shown = run_verb(verb, SAMPLES / "kafka", given)
        assert not isinstance(shown, Report)
        list(shown)


def test_a_topic_that_existed_before_is_only_noted() -> None:
    shown = run_verb("cluster", SAMPLES / "kafka", {"topic": "unheard-of", "at_offset": 100})
    assert not isinstance(shown, Report)
    assert [one.note for one in shown if one.note and "unheard-of" in one.note]


def survey(files: Sequence[File], roots: Sequence[str], options: Mapping[str, Any]) -> Iterator[Shown]:
    """A verb of a family that rawlog does not know."""
    yield Shown(note="looking")
    for file in files[: options["most"]]:
        yield Shown({"path": file.path}, Line(f"\x1b[31m{Path(file.path).name}", Tone.BAD))
    yield Shown(text=Section("Files", [["a", Line("b", Tone.GOOD)], ["c", "d"]], most=1))
    yield Shown(is_finding=True)


def test_a_new_verb_needs_nothing_but_its_registration(monkeypatch: pytest.MonkeyPatch) -> None:
    verb = Verb(
        group="look",
        summary="Look at the files.",
        help="Look at the files of DIR.",
        exit_codes="1 always.",
        paths="DIR",
        parameters=(Parameter("most", "At most so many.", Kind.NUMBER, 3),),
        run=survey,
    )
    monkeypatch.setattr(registry, "verbs", lambda: {"survey": verb})
    assert "survey" in CliRunner().invoke(cli, ["--help"]).output.partition("Check and repair:")[0]
    page = CliRunner().invoke(cli, ["survey", "--help"]).output
    assert "DIR..." in page
    assert "--most" in page
    done = CliRunner().invoke(cli, ["survey", str(SAMPLES / "kafka"), "--most", "1"])
    assert done.exit_code == 1
    assert "looking" in done.stderr
    assert "\x1b" not in done.stdout
    assert done.stdout.splitlines()[1:] == ["Files (2)", "  a  b", "  ... and 1 more; --json shows them"]
    rows = CliRunner().invoke(cli, ["survey", str(SAMPLES / "kafka"), "--json"]).stdout.splitlines()
    assert len(rows) == 3
