"""Reports: what an operation did, for machines."""

from __future__ import annotations

from rawlog.core.report import Action, Entry


def test_a_place_at_zero_is_in_the_json_of_an_entry() -> None:
    """The first byte and the first offset were left out: 0 was taken for nothing known."""
    entry = Entry(Action.LOST, "gone", "file", start=0, stop=4, first_offset=0, stop_offset=1)
    assert entry.as_json() == {
        "action": "lost", "reason": "gone", "path": "file", "start": 0, "stop": 4, "first_offset": 0, "stop_offset": 1,
    }  # fmt: skip
    assert Entry(Action.KEPT).as_json() == {"action": "kept"}
