"""A lake has each record of a partition once, whichever replicas it is made of, together or one after another."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rawlog
from rawlog.lakes.lake import Lake
from rawlog.model.errors import OptionError
from rawlog.model.report import Report
from tests.data.golden import golden_path
from tests.data.replicas import base_log, broker, copy

DATA = golden_path("kafka", "broker-4.3.0", "data")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return base_log(tmp_path_factory.mktemp("base"))


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def take(lake: Path, *paths: Path, **options: Any) -> Report:
    return rawlog.ingest(paths, lake, engine="local", **options)


def held(lake: Path, table: str) -> pa.Table:
    found: Any = Lake(str(lake)).load(table)
    return found.scan().to_arrow()


def rows(lake: Path, table: str = "rawlog.records", column: str = "offset") -> list[Any]:
    return sorted(held(lake, table).column(column).to_pylist())


def disk(tmp_path: Path, node: int, base: Path, batches: int, **more: Any) -> Path:
    """The log directory of a broker, made again if it exists."""
    shutil.rmtree(tmp_path / f"disk{node}", ignore_errors=True)
    folder = broker(tmp_path / f"disk{node}", node)
    copy(base, folder, batches, **more)
    return folder


def test_all_disks_at_once_give_each_record_once(tmp_path: Path, base: Path, lake: Path) -> None:
    disks = [disk(tmp_path, node, base, batches) for node, batches in ((1, 20), (2, 40), (3, 31))]
    report = take(lake, *disks)
    assert rows(lake) == rows(lake, "kafka.records") == list(range(120))
    assert rows(lake, "kafka.batches", "base_offset") == list(range(0, 120, 3))
    assert any(note.startswith("orders-0 has 3 replicas") for note in report.notes)
    again = take(lake, *disks)
    assert again.counts["files"] == 0
    with pytest.raises(OptionError, match="orders-0 was found 3 times"):
        take(lake, *disks, replicas="refuse")


def test_one_disk_today_and_another_one_tomorrow(tmp_path: Path, base: Path, lake: Path) -> None:
    """The same partition from another directory was taken for another one: all rows were there twice."""
    take(lake, disk(tmp_path, 1, base, 20))
    report = take(lake, disk(tmp_path, 2, base, 31))
    assert rows(lake) == rows(lake, "kafka.records") == list(range(93))
    assert any("orders-0 is in the lake from" in note for note in report.notes)
    assert report.counts["bytes"] < 2000, "only the rest is decoded"
    take(lake, disk(tmp_path, 3, base, 10))
    assert rows(lake) == list(range(93)), "a replica that lags adds nothing"
    take(lake, disk(tmp_path, 1, base, 40))
    assert rows(lake) == list(range(120)), "the first one goes on where the second one ended"
    assert take(lake, tmp_path / "disk1", tmp_path / "disk2").facts["tables"]["rawlog.records"] == 0
    assert rows(lake, "kafka.batches", "base_offset") == list(range(0, 120, 3))


def test_replicas_with_other_segments_continue_one_another(tmp_path: Path, base: Path, lake: Path) -> None:
    other = base_log(tmp_path / "made", segment_bytes=400)
    take(lake, disk(tmp_path, 1, base, 21))
    take(lake, disk(tmp_path, 2, other, 33))
    take(lake, disk(tmp_path, 3, base, 40))
    assert rows(lake) == list(range(120))


def test_the_source_of_the_first_run_may_be_gone(tmp_path: Path, base: Path, lake: Path) -> None:
    take(lake, disk(tmp_path, 1, base, 20))
    shutil.rmtree(tmp_path / "disk1")
    take(lake, disk(tmp_path, 2, base, 40))
    assert rows(lake) == list(range(120))


def test_a_topic_that_was_created_again_is_taken_too(tmp_path: Path, base: Path, lake: Path) -> None:
    take(lake, disk(tmp_path, 1, base, 40, id="old"))
    take(lake, disk(tmp_path, 2, base, 10, id="new"))
    assert Counter(rows(lake)) == Counter([*range(120), *range(30)])


def test_all_replicas_on_request_and_such_a_lake_can_go_on_growing(tmp_path: Path, base: Path, lake: Path) -> None:
    """Lakes of earlier versions have the rows of all replicas."""
    disks = [disk(tmp_path, node, base, batches) for node, batches in ((1, 20), (2, 30))]
    take(lake, *disks, replicas="all")
    assert len(rows(lake)) == 60 + 90
    take(lake, disk(tmp_path, 1, base, 40), disks[1])
    assert Counter(rows(lake)) == Counter([*range(120), *range(60)])


def test_rows_that_a_selection_left_out_of_another_replica_stay_out_with_a_note(
    tmp_path: Path, base: Path, lake: Path
) -> None:
    take(lake, disk(tmp_path, 1, base, 20), until="1960-01-01")
    report = take(lake, disk(tmp_path, 2, base, 30))
    assert rows(lake) == list(range(60, 90))
    assert any("rows left out then stay out" in note for note in report.notes)


def test_a_table_that_the_lake_does_not_have_gets_all_rows(tmp_path: Path, base: Path, lake: Path) -> None:
    take(lake, disk(tmp_path, 1, base, 20), tables="kafka.batches")
    take(lake, disk(tmp_path, 2, base, 30))
    assert rows(lake) == list(range(90))
    assert rows(lake, "kafka.batches", "base_offset") == list(range(0, 90, 3))


def test_states_are_not_doubled(tmp_path: Path, lake: Path) -> None:
    """Committed offsets, groups, and what a cluster knows, from two of its brokers one after another."""
    for node in (1, 2):
        folder = tmp_path / f"disk{node}"
        for name in ("__consumer_offsets-0", "__consumer_offsets-1", "__consumer_offsets-2", "__cluster_metadata-0"):
            shutil.copytree(DATA / name, folder / name)
        text = (DATA / "meta.properties").read_text().replace("node.id=1", f"node.id={node}")
        (folder / "meta.properties").write_text(text)
        take(lake, folder)
        for table in ("kafka.offsets", "kafka.groups", "kraft.topics", "kraft.metadata"):
            assert held(lake, table).num_rows == rawlog.count(tmp_path / "disk1", table=table), table


def test_replicas_of_a_blob_store_are_taken_once(tmp_path: Path, lake: Path) -> None:
    for name in ("a", "b"):
        shutil.copytree(golden_path("ambry", "store-small"), tmp_path / name / "77")
        take(lake, tmp_path / name)
        assert held(lake, "ambry.blobs").num_rows == rawlog.count(tmp_path / "a", table="ambry.blobs")
        assert held(lake, "rawlog.records").num_rows == rawlog.count(tmp_path / "a")
