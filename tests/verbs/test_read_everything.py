"""Verbs that read everything give the rows that `repair` would keep, and report the same losses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import rawlog
from rawlog.io.storage import Source
from rawlog.model.report import Action
from tests.data.golden import GOLDEN

PLACE = "orders-0"


def write(path: Path, offsets: range) -> Path:
    """A partition with a batch of three records for every third offset, and its only segment."""
    rows = [
        {"topic": "orders", "partition": 0, "offset": n, "timestamp": n * 1000, "value": b"%d" % n} for n in offsets
    ]
    rawlog.write(path, rows, format="kafka", batch_records=3)
    return next((path / PLACE).glob("*.log"))


def batches(log: Path) -> list[tuple[int, int]]:
    """Where the batches of a segment begin and end."""
    data, at, found = log.read_bytes(), 0, []
    while at < len(data):
        stop = at + 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        found.append((at, stop))
        at = stop
    return found


def wound(log: Path, number: int, offset: int) -> None:
    """Give a batch another base offset, which no checksum covers."""
    data = bytearray(log.read_bytes())
    at = batches(log)[number][0]
    data[at : at + 8] = offset.to_bytes(8, "big")
    log.write_bytes(data)


@pytest.fixture
def wounded(tmp_path: Path) -> Path:
    """A partition of twelve records, the second batch of which says that it begins at offset 1."""
    wound(write(tmp_path / "wounded", range(12)), 1, 1)
    return tmp_path / "wounded"


def lines(path: Path) -> list[tuple[int, str]]:
    return [(row["offset"], row["value"]) for row in map(json.loads, path.read_text().splitlines())]


def lake_rows(lake: Path) -> list[tuple[int, bytes]]:
    files = lake.glob("rawlog/records/data/**/*.parquet")
    tables = [pq.read_table(file, partitioning=None) for file in files]
    return sorted((row["offset"], row["value"]) for table in tables for row in table.to_pylist())


def test_convert_puts_a_batch_with_a_wrong_base_offset_at_its_place(tmp_path: Path, wounded: Path) -> None:
    """The wrong offsets went into the result, where nothing tells any more that they are wrong."""
    report = rawlog.convert(wounded, tmp_path / "rows.jsonl", to="jsonl", errors="skip")
    assert lines(tmp_path / "rows.jsonl") == [(n, str(n)) for n in range(12)]
    assert [entry.action for entry in report.entries] == [Action.CHANGED]
    assert report.exit_code == 1


@pytest.mark.parametrize("errors", ["raise", "skip"])
def test_segments_with_swapped_names_are_converted_in_the_order_of_their_offsets(tmp_path: Path, errors: Any) -> None:
    log = write(tmp_path / "logs", range(12))
    data = log.read_bytes()
    middle = batches(log)[2][0]
    log.write_bytes(data[middle:])
    log.with_name("00000000000000000006.log").write_bytes(data[:middle])
    for name in ("index", "timeindex"):
        log.with_suffix(f".{name}").unlink(missing_ok=True)
    report = rawlog.convert(tmp_path / "logs", tmp_path / "rows.jsonl", to="jsonl", errors=errors)
    assert lines(tmp_path / "rows.jsonl") == [(n, str(n)) for n in range(12)]
    assert report.exit_code == 1


def test_convert_names_the_records_that_a_checkpoint_counts_and_no_segment_has(tmp_path: Path) -> None:
    write(tmp_path / "logs", range(12))
    (tmp_path / "logs/replication-offset-checkpoint").write_text("0\n1\norders 0 20\n")
    report = rawlog.convert(tmp_path / "logs", tmp_path / "rows.jsonl", to="jsonl")
    assert report.lost == [(12, 19)]
    assert report.exit_code == 1


def test_diff_compares_what_does_not_ascend(tmp_path: Path, wounded: Path) -> None:
    """It refused with "offset does not ascend" exactly when one wants to see what differs."""
    write(tmp_path / "sound", range(12))
    found = rawlog.diff(wounded, tmp_path / "sound", errors="skip")
    assert found.is_same
    assert len(found.damage) == 1
    assert "base offset" in found.damage[0]
    assert found.exit_code == 1


@pytest.mark.parametrize("tail", [bytes(200), b"\7" * 200])
def test_ingest_counts_no_loss_in_what_is_after_the_end(tmp_path: Path, tail: bytes) -> None:
    """Ambry does not start on it, so it is an error; `convert` and `repair` dropped it with 0, and `ingest` reported a loss."""
    store = tmp_path / "9"
    shutil.copytree(GOLDEN / "ambry" / "store-small", store)
    with (store / "2_0_log").open("ab") as log:
        log.write(tail)
    assert rawlog.verify(store).errors == 1
    assert rawlog.convert(store, tmp_path / "rows.jsonl", errors="skip").exit_code == 0
    report = rawlog.ingest(store, tmp_path / "lake", engine="local")
    assert (report.exit_code, report.counts["errors"]) == (0, 1)
    (store / "1_0_log").write_bytes((store / "1_0_log").read_bytes()[:-100])
    report = rawlog.ingest(store, tmp_path / "other", engine="local")
    assert report.exit_code == 1


def test_a_corrected_source_is_ingested_once_also_when_it_goes_on(tmp_path: Path, wounded: Path) -> None:
    lake = tmp_path / "lake"
    report = rawlog.ingest(wounded, to=lake, engine="local")
    assert report.exit_code == 1
    assert report.with_action(Action.CHANGED)
    assert lake_rows(lake) == [(n, b"%d" % n) for n in range(12)]
    rawlog.ingest(wounded, to=lake, engine="local")
    assert lake_rows(lake) == [(n, b"%d" % n) for n in range(12)]

    longer = write(tmp_path / "longer", range(18))
    log = next((wounded / PLACE).glob("*.log"))
    with log.open("ab") as file:
        file.write(longer.read_bytes()[log.stat().st_size :])
    rawlog.ingest(wounded, to=lake, engine="local")
    assert lake_rows(lake) == [(n, b"%d" % n) for n in range(18)]


@pytest.mark.parametrize("verb", ["convert", "diff"])
def test_a_sound_log_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    """What the diagnosis of a store needs is made while its rows are decoded."""
    log = write(tmp_path / "logs", range(3000))
    shutil.copytree(tmp_path / "logs", tmp_path / "others")
    counts: dict[str, int] = {}
    read_into, map_file = Source.read_into, Source.map

    def counting(source: Source, position: int, room: memoryview) -> int:
        count = read_into(source, position, room)
        counts[source.path] = counts.get(source.path, 0) + count
        return count

    def mapping(source: Source) -> Any:
        counts[source.path] = counts.get(source.path, 0) + source.size
        return map_file(source)

    monkeypatch.setattr(Source, "read_into", counting)
    monkeypatch.setattr(Source, "map", mapping)
    if verb == "convert":
        rawlog.convert(tmp_path / "logs", tmp_path / "rows.jsonl", to="jsonl")
    else:
        assert rawlog.diff(tmp_path / "logs", tmp_path / "others").exit_code == 0
    assert counts[str(log)] <= log.stat().st_size + 4096
