"""Offsets that are missing inside a file: verbs that look report those that compaction does not explain, and read nothing twice for it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

import rawlog
from rawlog.formats.kafka.partition import outline
from rawlog.reading.follow import LastRows
from rawlog.reading.rows import Rows
from rawlog.reading.select import Selection
from rawlog.reading.tree import open_tree
from tests.data.golden import GOLDEN
from tests.reference import kafka
from tests.wounds.kafka import node

TIME = datetime(2026, 11, 1, tzinfo=UTC)


def notes_of(path: Path, verb: str, errors: str = "raise") -> list[str]:
    """What a verb says about the files that it reads."""
    notes: list[str] = []
    selection = Selection(errors=errors)
    tree = open_tree([path])
    rows = LastRows(tree, "records", selection, 1_000_000) if verb == "tail" else Rows(tree, "records", selection)
    rows.note = notes.append
    if verb == "count":
        rows.count()
    else:
        list(rows.batches())
    return [note for note in notes if "missing" in note]


def cut_out(segment: Path, number: int) -> None:
    """Cut a batch out of a segment."""
    data = segment.read_bytes()
    at, size, _ = kafka.frames(data)[0][number]
    segment.write_bytes(data[:at] + data[at + size :])


def with_gaps(folder: Path) -> Path:
    """A partition of which every third offset is missing, and nothing tells whether it is compacted."""
    rows = [{"key": b"k", "value": b"v", "offset": n, "timestamp": TIME} for n in range(3000) if n % 3]
    rawlog.write(folder, rows, format="kafka", topic="t", partition=0, batch_records=1)
    return folder / "t-0"


def nothing_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the log is read again")

    monkeypatch.setattr(outline, "outline", refuse)


@pytest.mark.parametrize("errors", ["raise", "skip"])
@pytest.mark.parametrize("verb", ["cat", "count", "tail"])
def test_a_batch_that_is_cut_out_is_named_once(verb: str, errors: str, tmp_path: Path) -> None:
    """They asked only between files, and said nothing of a batch that was cut out of one."""
    root = tmp_path / "node"
    root.mkdir()
    node(root)
    cut_out(root / "orders-0" / f"{27:020}.log", 2)
    [note] = notes_of(root, verb, errors)
    assert note.endswith(f"{27:020}.log: offsets 33 to 35 missing inside this file")


@pytest.mark.parametrize("verb", ["cat", "count", "tail"])
@pytest.mark.parametrize("broker", ["broker-4.3.0", "legacy/broker-0.10.2.2"])
def test_what_compaction_removed_is_not_missing(verb: str, broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing_is_read_again(monkeypatch)
    for folder in sorted((GOLDEN / "kafka" / broker / "data").glob("*compacted*")):
        assert notes_of(folder, verb) == []


@pytest.mark.parametrize("verb", ["cat", "count", "tail"])
def test_gaps_that_nothing_contradicts_are_not_asked_about(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = with_gaps(tmp_path / "data")
    nothing_is_read_again(monkeypatch)
    assert notes_of(folder, verb) == []


@pytest.mark.parametrize("verb", ["cat", "count", "tail"])
def test_an_index_entry_for_a_missing_offset_shows_a_loss(verb: str, tmp_path: Path) -> None:
    """Of many gaps only those with such an entry are lost; each is named, up to a few."""
    folder = with_gaps(tmp_path / "data")
    [segment] = folder.glob("*.log")
    index = segment.with_suffix(".index").read_bytes()
    first, second = (int(segment.stem) + int.from_bytes(index[at : at + 4], "big") for at in (0, 8))
    data = segment.read_bytes()
    batches = kafka.frames(data)[0]
    kept = [
        data[at : at + size]
        for at, size, _ in batches
        if int.from_bytes(data[at : at + 8], "big") not in (first, second)
    ]
    segment.write_bytes(b"".join(kept))
    found = notes_of(folder, verb)
    assert len(found) == 2
    assert f"{first:,}" in found[0]
    assert f"{second:,}" in found[1]
