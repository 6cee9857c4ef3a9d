"""`verify --complete` of recordings: how many entries there are, and where others must have been."""

from __future__ import annotations

from pathlib import Path

import pytest

import rawlog
from tests.data.golden import golden_path


def test_what_the_recorder_wrote_is_complete() -> None:
    for version in ("v0", "v1", "v2"):
        found = rawlog.verify(golden_path("replay", version), complete=True)
        assert found.verdict == "clean"
        assert len(found.accounts) > 1
        for one in found.accounts:
            rows = rawlog.read(one.path, columns=["offset"]).num_rows
            assert (one.unit, one.present, one.stop, one.unexplained) == ("entry", rows, rows, 0)
            assert (one.topic, one.control, one.expired, one.open_transactions) == (None, None, None, None)


@pytest.mark.parametrize("cut", [1, 30, 50])
def test_an_unfinished_end_is_no_missing_entry(cut: int, tmp_path: Path) -> None:
    """It is what a recorder leaves that was stopped: nothing confirms the entry, and all verbs say the same."""
    whole = golden_path("replay", "v2", "basic.log").read_bytes()
    path = tmp_path / "messages.log"
    path.write_bytes(whole[:-cut])
    assert rawlog.verify(path).verdict == "clean"
    found = rawlog.verify(path, complete=True)
    [one] = found.accounts
    assert [item.code for item in found] == ["replay.recording.unfinished"]
    assert one.unexplained == 0
    assert one.present == rawlog.read(path, columns=["offset"]).num_rows
    assert found.verdict == "clean"


def test_a_stretch_that_is_no_entry_is_found_with_its_place() -> None:
    path = golden_path("replay", "damaged", "v2-hole.log")
    found = rawlog.verify(path, complete=True, rule="replay.complete.unexplained")
    [item] = found
    assert (item.position, item.size, item.offset) == (237, 44, 4)
    assert [(one.present, one.unexplained) for one in found.accounts] == [(9, 1)]


def test_a_rule_that_is_named_runs_without_asking_for_all() -> None:
    [item] = rawlog.verify(golden_path("replay", "damaged", "v2-hole.log"), rule="replay.complete.unexplained")
    assert item.offset == 4


def test_a_damaged_header_is_no_missing_entry(tmp_path: Path) -> None:
    whole = golden_path("replay", "v2", "basic.log").read_bytes()
    path = tmp_path / "messages.log"
    path.write_bytes(b"\0\0\0\6" + whole[4:])
    found = rawlog.verify(path, complete=True)
    assert [item.code for item in found] == ["replay.recording.header"]
    assert [one.unexplained for one in found.accounts] == [0]
