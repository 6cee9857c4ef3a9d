"""Whole recordings by the real tool: read as it prints them and as the topics they were made from, written byte for byte."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rawlog
from rawlog.model.errors import EncodeError, OptionError
from rawlog.model.table import RECORDS
from rawlog.testing.formats import plain
from tests.data.golden import ReplayCase, golden_path, replay_cases
from tests.reference import replay

T = 1_706_868_930


def rows(path: Path, table: str = "records", **selection: Any) -> list[dict[str, Any]]:
    return plain(rawlog.read(path, table=table, **selection))


@pytest.mark.parametrize("case", replay_cases(), ids=str)
def test_a_recording_reads_as_the_real_tool_prints_it(case: ReplayCase) -> None:
    found = rows(case.path)
    assert [replay.as_go_prints(row["value"]) for row in found] == [line["data"] for line in case.printed]
    assert len(found) == case.count
    if case.version == 2:
        assert [replay.as_go_prints(row["key"] or b"") for row in found] == [line["key"] for line in case.printed]
    else:
        assert {row["key"] for row in found} == {None}


def test_transaction_markers_stand_among_the_messages_as_recorded() -> None:
    [case] = [case for case in replay_cases() if case.name == "v2/txn.log"]
    found = rows(case.path)
    markers = [row for row in found if row["key"] in (b"\0\0\0\0", b"\0\0\0\1") and len(row["value"]) == 6]
    assert len(markers) == 4
    messages = [(row["key"], row["value"], row["timestamp"] // 10**6) for row in found if row not in markers]
    assert messages == [(r.key or None, r.value or b"", (r.timestamp or 0) // 1000) for r in case.topic or []]


def test_a_recording_of_a_group_holds_all_partitions_of_the_topic() -> None:
    [case] = [case for case in replay_cases() if case.name == "v2/group.log"]
    found = Counter((row["key"], row["value"]) for row in rows(case.path))
    assert found == Counter((record.key or None, record.value or b"") for record in case.topic or [])


@pytest.mark.parametrize("case", replay_cases(), ids=str)
def test_entries_say_where_they_stand(case: ReplayCase) -> None:
    data = case.path.read_bytes()
    entries = rows(case.path, "replay.entries")
    assert {(row["path"], row["version"]) for row in entries} == {(str(case.path), case.version)}
    assert [row["number"] for row in entries] == list(range(case.count))
    for row in entries:
        assert data[row["position"] : row["position"] + row["size"]].endswith((row["key"] or b"") + row["value"])
    assert sum(row["size"] for row in entries) + (20 if case.version else 0) == len(data)


def test_worked_examples_of_the_specification_are_written_byte_for_byte(tmp_path: Path) -> None:
    examples = {
        2: (
            [(T, b"user-123", b"Hello, World!"), (T, None, b"Hello, World!")],
            "2fbd6dbb6a6a4417a026abeec2af08da2b4af45202727c9871a18dc87e1ebf98",
        ),
        1: (
            [(T, None, b"Hello, World!"), (T + 1, None, b"second")],
            "bdc783d01b2b6c5ac5902864269a98087a05f435edd0f6cdedf1033c5826b0e1",
        ),
        0: (
            [(1_770_027_330.123456, None, b"hello")],
            "76c49e00e9c6a40e3ff505fa2142594bd55ac8cdb40966c6ee2141d7f9efb53c",
        ),
    }
    for version, (entries, digest) in examples.items():
        table = pa.table(
            {
                "key": pa.array([key for _, key, _ in entries], pa.binary()),
                "value": pa.array([value for _, _, value in entries], pa.binary()),
                "timestamp": pa.array([round(time * 10**6) for time, _, _ in entries], pa.timestamp("us", "UTC")),
            }
        )
        path = tmp_path / f"v{version}.log"
        assert rawlog.write(path, table, format="replay", version=version) == len(entries)
        assert hashlib.sha256(path.read_bytes()).hexdigest() == digest


def test_version_2_is_what_is_written_unless_asked_otherwise(tmp_path: Path) -> None:
    rawlog.write(tmp_path / "x", pa.table({"value": [b"v"], "timestamp": stamp(0)}), format="replay.recording")
    assert (tmp_path / "x").read_bytes() == replay.encode(2, [(0, None, b"v")])


@pytest.mark.parametrize("version", ["3", "-1", "two", ""])
def test_a_version_that_does_not_exist_is_refused(tmp_path: Path, version: str) -> None:
    with pytest.raises(OptionError, match="0, 1 or 2"):
        rawlog.write(tmp_path / "x", pa.table({"value": [b"v"]}), format="replay", version=version)
    assert not list(tmp_path.iterdir())


def stamp(*micros: int | None) -> pa.Array:
    return pa.array(micros, pa.timestamp("us", "UTC"))


def record(**changes: Any) -> pa.Table:
    """A row that every version keeps as it is, but for the changes."""
    row: dict[str, Any] = {
        "key": None, "value": b"v", "topic": None, "partition": None, "offset": 0, "timestamp": T * 10**6,
        "timestampType": 0, "headers": [],
    }  # fmt: skip
    return pa.Table.from_pylist([{**row, **changes}], schema=RECORDS.schema)


LOSSES: list[tuple[int, str, Any, Any]] = [
    # version, column, what is written, what is read again
    (2, "key", b"", None),
    (1, "key", b"k", None),
    (0, "key", b"k", None),
    (2, "value", None, b""),
    (1, "value", None, b""),
    (0, "value", None, b""),
    (2, "topic", "orders", None),
    (2, "partition", 0, None),
    (2, "offset", 7, 0),
    (2, "timestamp", T * 10**6 + 1000, T * 10**6),
    (1, "timestamp", -1, -1_000_000),
    (2, "timestamp", None, replay.NO_TIME * 10**6),
    (0, "timestamp", None, replay.NO_TIME * 10**6),
    (2, "timestampType", 1, 0),
    (2, "headers", [{"key": "h", "value": b"x"}], []),
]


@pytest.mark.parametrize(("version", "column", "written", "read"), LOSSES)
def test_a_loss_is_refused_unless_it_is_accepted_by_name(
    tmp_path: Path, version: int, column: str, written: Any, read: Any
) -> None:
    path, table = tmp_path / "x.log", record(**{column: written})
    others = [name for name in RECORDS.names if name != column]
    with pytest.raises(EncodeError, match=rf"{column} \(1 of 1 row, first row 0\)"):
        rawlog.write(path, table, format="replay", version=version, accept_loss=others)
    assert not list(tmp_path.iterdir())
    rawlog.write(path, table, format="replay", version=version, accept_loss=[column])
    [row] = rows(path)
    assert row[column] == read
    assert rawlog.verify(path).errors == 0


def test_what_is_kept_is_no_loss(tmp_path: Path) -> None:
    for version in (0, 1, 2):
        rawlog.write(tmp_path / f"{version}", record(), format="replay", version=version)
    rawlog.write(tmp_path / "key", record(key=b"k"), format="replay")
    rawlog.write(tmp_path / "micros", record(timestamp=T * 10**6 + 1), format="replay", version=0)
    assert len(list(tmp_path.iterdir())) == 5


def test_all_losses_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(EncodeError) as caught:
        rawlog.write(tmp_path / "x", record(topic="t", partition=1, value=None), format="replay", accept_loss=["value"])
    assert "accept_loss=partition,topic,value" in str(caught.value)


@pytest.mark.parametrize("time", [-(1 << 62), (1 << 62), 253_402_300_800 * 10**6])
def test_a_time_that_version_0_cannot_spell_is_refused(tmp_path: Path, time: int) -> None:
    with pytest.raises(EncodeError, match="row 0: a time outside"):
        rawlog.write(tmp_path / "x", record(timestamp=time), format="replay", version=0)
    assert not list(tmp_path.iterdir())


def test_a_value_that_no_reader_takes_is_refused(tmp_path: Path) -> None:
    for size, fits in ((replay.LIMIT, True), (replay.LIMIT + 1, False)):
        table = record(value=bytes(size))
        if fits:
            rawlog.write(tmp_path / "x", table, format="replay")
            assert (tmp_path / "x").stat().st_size == 20 + 24 + size
            assert rawlog.open(tmp_path / "x").table("records").count() == 1
            (tmp_path / "x").unlink()
        else:
            with pytest.raises(EncodeError, match="row 0: a key or value above 104,857,600 bytes"):
                rawlog.write(tmp_path / "x", table, format="replay")
    assert not list(tmp_path.iterdir())


def test_slices_and_several_batches_are_written_like_one_table(tmp_path: Path) -> None:
    whole = rawlog.read(golden_path("replay", "v2", "basic.log"))
    batches = [whole.slice(start, 9).combine_chunks() for start in range(0, whole.num_rows, 9)]
    table = pa.concat_tables(batches)
    assert len(table.to_batches()) > 1
    rawlog.write(tmp_path / "x", table, format="replay")
    assert (tmp_path / "x").read_bytes() == golden_path("replay", "v2", "basic.log").read_bytes()
    part = whole.slice(10, 5).drop_columns("offset")
    rawlog.write(tmp_path / "y", part, format="replay")
    assert [row["value"] for row in rows(tmp_path / "y")] == whole.column("value").to_pylist()[10:15]
