"""A lake of an earlier rawlog is read, queried, extended and maintained by this one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import rawlog
from rawlog.lakes.lake import Lake
from tests.data.recordings import expected, stored
from tests.data.sample_lake import sample

VERSIONS = ("version-2",)
TABLES = ("rawlog.records", "kafka.records", "kafka.batches", "kafka.offsets", "kafka.groups", "replay.entries")


@pytest.fixture(params=VERSIONS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return sample(request.param, tmp_path)


def take(lake: Path, **options: Any) -> Any:
    return rawlog.ingest(lake.parent / "logs", lake, engine="local", **options)


def check(lake: Path) -> None:
    for table in TABLES:
        assert stored(lake, table) == expected(lake.parent / "logs", table=table.removeprefix("rawlog.")), table


def test_it_is_read_and_queried(lake: Path) -> None:
    offsets = [row["offset"] for row in stored(lake, "kafka.records") if row["topic"] == "orders"]
    assert sorted(offsets) == list(range(99))
    query = "SELECT count(*) AS n, max(octet_length(value)) AS longest FROM kafka.records WHERE topic = 'orders'"
    [row] = rawlog.query(query, lake, engine="duckdb").to_arrow().to_pylist()
    assert (row["n"], row["longest"]) == (99, 2)


def test_it_is_extended(lake: Path) -> None:
    report = take(lake)
    assert report.counts["refused"] == 0
    assert report.facts["tables"]["kafka.batches"] == 7, "only what is new is taken"
    check(lake)
    assert take(lake).counts["files"] == 0


def test_a_source_that_was_rewritten_since_is_replaced(lake: Path) -> None:
    """The old rawlog did not record which rows came from a source: the rows of the system's own table that refer to them say it."""
    logs = lake.parent / "logs"
    shutil.rmtree(logs / "orders-0")
    given = [{"key": b"k", "value": b"new %d" % offset, "offset": offset} for offset in range(45)]
    rawlog.write(logs, given, format="kafka", topic="orders", partition=0, batch_records=3, segment_bytes=900)
    report = take(lake)
    assert report.counts["refused"] == 0
    values = {row["value"] for row in stored(lake, "rawlog.records") if row["topic"] == "orders"}
    assert values == {row["value"] for row in given}


def test_it_is_maintained(lake: Path) -> None:
    take(lake)
    rawlog.lake(lake, compact=True, expire_snapshots=True, remove_orphans=True, older_than=0)
    check(lake)
    assert take(lake).counts["files"] == 0
    assert all(path.startswith(f"file://{lake}") for path in Lake(str(lake)).data_files("rawlog.records"))
