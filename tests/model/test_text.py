from __future__ import annotations

import pytest

from rawlog.model.report import Report
from rawlog.model.text import counted, offset_range


@pytest.mark.parametrize(
    ("count", "what", "expected"),
    [(0, "file", "0 files"), (1, "file", "1 file"), (2000, "file", "2,000 files"), (1, "entry", "1 entry"), (2, "entry", "2 entries"),
     (3, "batch", "3 batches"), (1, "data file", "1 data file")],
)  # fmt: skip
def test_things_are_counted_in_words(count: int, what: str, expected: str) -> None:
    """`1 files` was printed in many places."""
    assert counted(count, what) == expected


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [(5, 10, "offsets 5 to 9"), (5, 6, "offset 5"), (0, 1_000_000, "offsets 0 to 999,999"), (7, 7, "no offsets from 7 on")],
)  # fmt: skip
def test_a_range_of_offsets_includes_both_ends(start: int, stop: int, expected: str) -> None:
    """`ls` printed the exclusive end, other verbs the inclusive one."""
    assert offset_range(start, stop) == expected


def test_a_report_counts_one_thing_as_one() -> None:
    report = Report(counts={"records_kept": 1, "batches": 2, "entries": 1, "bytes": 1})
    assert report.lines() == ["1 record kept, 2 batches, 1 entry, 1 byte"]
