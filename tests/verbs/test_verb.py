"""Verbs that only show something, and verbs of one family: the library and the command line give the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from click.testing import CliRunner

import rawlog
from rawlog.cli import cli
from rawlog.cli.command import command_of
from rawlog.model.errors import OptionError
from rawlog.model.verb import DECLARED, Item, Line, Option, Section, Tone, verb
from rawlog.verbs.groups import Shown

SAMPLES = Path(__file__).parent.parent.parent / "samples"


def test_the_library_gives_the_rows_that_the_command_prints() -> None:
    rows = [json.loads(json.dumps(row)) for row in rawlog.cluster(SAMPLES / "kafka", topic="codec-none")]
    done = CliRunner().invoke(cli, ["cluster", str(SAMPLES / "kafka"), "--topic", "codec-none", "--json"])
    assert done.exit_code == 0
    assert [json.loads(line) for line in done.stdout.splitlines()] == rows
    assert {row["topic"] for row in rows if row["table"] == "partitions"} == {"codec-none"}


def test_a_verb_that_writes_gives_a_report(tmp_path: Path) -> None:
    report = rawlog.extract(SAMPLES / "ambry", to=tmp_path / "blobs")
    assert report.is_whole
    assert report.counts["blobs"] == len((tmp_path / "blobs" / "manifest.jsonl").read_text().splitlines())
    with pytest.raises(OptionError, match="lie inside one another"):
        rawlog.extract(SAMPLES / "ambry", to=SAMPLES / "ambry" / "out")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"errors": "skipp"}, "did you mean skip"),
        ({"at_offset": -1}, "0 or more"),
        ({"at_time": "soon"}, "ISO 8601"),
        ({"topic": "codec-non"}, "did you mean codec-none"),
        ({"log": True, "diff": "1..2"}, "exclude one another"),
        ({"at_offset": 1, "at_time": 2}, "exclude one another"),
    ],
)
def test_wrong_options_are_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        rawlog.cluster(SAMPLES / "kafka", **options)


def test_wrong_options_of_other_verbs_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="did you mean id"):
        rawlog.extract(SAMPLES / "ambry", to=tmp_path / "blobs", names="ids")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="did you mean stop"):
        rawlog.groups(SAMPLES / "kafka", errors="stopp")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="unknown group"):
        rawlog.groups(SAMPLES / "kafka", group="nobody")
    with pytest.raises(OptionError, match="unknown topic"):
        rawlog.transactions(SAMPLES / "kafka", topic="nothing")


def test_a_topic_that_existed_before_is_only_noted() -> None:
    shown = rawlog.cluster(SAMPLES / "kafka", topic="unheard-of", at_offset=100)
    assert [note for note in shown.notes if "unheard-of" in note]


def test_what_is_shown_is_read_once() -> None:
    """`cluster --log` of a large metadata log is printed record by record, not collected first."""
    read: list[int] = []

    def items() -> Iterator[Item]:
        for number in range(3):
            read.append(number)
            yield Item({"number": number}, is_finding=number == 2)

    shown = Shown(items(), ["left.log is left out"])
    assert read == [0]
    assert [item.row for item in shown.items()] == [None, *({"number": number} for number in range(3))]
    shown = Shown(items())
    assert read == [0, 1, 2, 0]
    assert (len(shown), shown.has_findings, shown.notes) == (3, True, [])
    assert list(shown) == list(shown) == [{"number": number} for number in range(3)]


def test_a_new_verb_needs_nothing_but_its_function() -> None:
    @verb(group="look", examples=("rawlog survey kafka-logs",), more="Exit codes: 1 always.")
    def survey(
        path: Annotated[str, "DIR"],
        *,
        most: Annotated[int, Option("Show at most N files.", least=0, metavar="N")] = 3,
    ) -> Shown:
        """Look at the files of `path`."""
        names = sorted(file.name for file in Path(path).iterdir())[:most]
        items = [Item(note="looking")]
        items += [Item({"path": name}, Line(f"\x1b[31m{name}", Tone.BAD)) for name in names]
        items += [Item(text=Section("Files", [["a", Line("b", Tone.GOOD)], ["c", "d"]], most=1)), Item(is_finding=True)]
        return Shown(items)

    command = command_of(DECLARED.pop("survey"))
    page = CliRunner().invoke(command, ["--help"]).output
    assert "Look at the files of DIR." in page
    assert "--most N" in page
    done = CliRunner().invoke(command, [str(SAMPLES / "kafka"), "--most", "1"])
    assert done.exit_code == 1
    assert "looking" in done.stderr
    assert "\x1b" not in done.stdout
    assert done.stdout.splitlines()[1:] == ["Files (2)", "  a  b", "  ... and 1 more; -v shows them"]
    rows = CliRunner().invoke(command, [str(SAMPLES / "kafka"), "--json"]).stdout.splitlines()
    assert len(rows) == 3
