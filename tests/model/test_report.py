"""Reports: what an operation did, for machines."""

from __future__ import annotations

import pytest

from rawlog.model.report import (
    Action,
    Entry,
    Report,
    SeriousNote,
)


def test_a_place_at_zero_is_in_the_json_of_an_entry() -> None:
    """The first byte and the first offset were left out: 0 was taken for nothing known."""
    entry = Entry(Action.LOST, "gone", "file", start=0, stop=4, first_offset=0, stop_offset=1)
    assert entry.as_json() == {
        "action": "lost", "reason": "gone", "path": "file", "start": 0, "stop": 4, "first_offset": 0, "stop_offset": 1,
    }  # fmt: skip
    assert Entry(Action.KEPT).as_json() == {"action": "kept"}


@pytest.mark.parametrize(
    ("action", "code"),
    [
        (Action.KEPT, 0),
        (Action.MOVED, 0),
        (Action.ADDED, 0),
        (Action.REBUILT, 0),
        (Action.REMOVED, 0),
        (Action.CHANGED, 1),
        (Action.DROPPED, 1),
        (Action.LOST, 1),
        (Action.UNDECIDED, 1),
    ],
)
def test_the_exit_code_follows_from_what_was_done(action: Action, code: int) -> None:
    """Whole files that were put back made `repair` end with 1, and patched fields made `rescue` end with 0."""
    report = Report(parts={"orders-0": Report()})
    report.parts["orders-0"].add(action, "why", "a.log")
    assert report.exit_code == code
    assert report.is_whole is (code == 0)
    assert bool(report.problems()) is (code == 1)


def test_what_is_left_out_remains_or_is_serious_gives_1() -> None:
    assert Report().exit_code == 0
    assert Report(left_out=["a"]).exit_code == 1
    assert Report(parts={"one": Report(left_out=["a"])}).exit_code == 1
    assert Report(not_loaded=["orders-0.abc-delete"]).exit_code == 0
    assert Report(notes=["a note"]).exit_code == 0
    assert Report(notes=[SeriousNote("a note")]).exit_code == 1
    assert Report(counts={"warnings": 1}).exit_code == 0  # ingest counts findings; what is lost is an entry


def test_losses_are_the_last_of_what_is_wrong() -> None:
    """`repair` of a metadata log named the lost records between eight lines on files that it dropped."""
    report = Report(verb="repair", source="a", target="b")
    report.add(Action.LOST, "not in any sound batch", "a/1.log", first_offset=5, stop_offset=6)
    report.add(Action.DROPPED, "not in the log that is kept", "a/0.log", start=0, stop=9)
    report.add(Action.CHANGED, "renamed", "a/2.log")
    assert [line.split()[0] for line in report.problem_lines()] == ["dropped", "changed", "lost"]


def test_files_that_the_same_was_done_to_are_one_line() -> None:
    """Compacting an Ambry store of 10 messages printed eight lines on files that Ambry writes again."""
    report = Report(verb="compact", source="a", target="b")
    for number in range(5):
        report.add(Action.DROPPED, "not needed", f"a/{number}_index", is_expected=True)
    report.add(Action.DROPPED, "not needed, too", "a/bloom", is_expected=True)
    assert report.done_lines() == ["dropped 5 files: not needed", "dropped a/bloom: not needed, too"]
    assert len([line for line in report.all_done_lines() if line.startswith("dropped")]) == 6


def test_places_in_one_file_are_not_files() -> None:
    """Three stretches of one commit-log file were three files that were dropped."""
    report = Report(verb="repair", source="a", target="b")
    for number in range(5):
        report.add(Action.DROPPED, "no message", "a/0", start=number * 10, stop=number * 10 + 5, is_expected=True)
    assert not [line for line in report.done_lines() if "files" in line]
