"""Maintenance of a lake as jobs: what only old snapshots list is removed, and no row is read on the driver."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rawlog.lakes import upkeep
from rawlog.lakes.ingest import Ingest
from rawlog.lakes.lake import Lake
from rawlog.lakes.upkeep import (
    Expire,
    Orphans,
    Remove,
    run_here,
)
from rawlog.model.job import Stage
from rawlog.reading.tree import Tree, open_tree
from tests.data.changing_logs import numbered, write
from tests.data.recordings import expected, held, ingest, record
from tests.lakes.test_ingest import orphans

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOTHING = Tree((), ())


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A lake with rows that were replaced twice."""
    for count in (20, 30, 40):
        record(tmp_path / "in" / "a.log", count, first=count * 100)
        record(tmp_path / "in" / f"{count}.log", 5, first=count)
        ingest(tmp_path / "lake", tmp_path / "in")
    return tmp_path / "lake"


def test_expiry_removes_what_only_old_snapshots_list(lake: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.parquet"
    outside.write_bytes(b"not ours")
    before = sum(1 for _ in lake.rglob("*.parquet"))
    with Lake(str(lake)) as opened:
        tried = run_here(Expire(opened, grace=0, dry_run=True))
        assert tried["rawlog.files"].files
        assert sum(1 for _ in lake.rglob("*.parquet")) == before
        changes = upkeep.keep(opened, run_here, expire_after=0, clean_after=None)
    assert {change.name: len(change.removed) for change in changes if change.expired} == {
        name: len(one.files) for name, one in tried.items()
    }
    assert sum(1 for _ in lake.rglob("*.parquet")) < before
    with Lake(str(lake)) as opened:
        left = run_here(Orphans(opened, grace=0))
        assert not [path for one in left.values() for path in one.files if path.endswith((".parquet", ".avro"))]
    for name in ("rawlog.records", "rawlog.files", "replay.entries"):
        assert held(lake, name) == expected(tmp_path / "in", table=name.removeprefix("rawlog."))
    assert outside.exists()
    assert ingest(lake, tmp_path / "in").files == 0


def test_within_the_time_of_grace_nothing_is_removed(lake: Path) -> None:
    before = sorted(lake.rglob("*"))
    with Lake(str(lake)) as opened:
        assert not any(one.files for one in run_here(Expire(opened, grace=3600)).values())
        assert not any(one.files for one in run_here(Orphans(opened, grace=3600)).values())
    assert sorted(path for path in lake.rglob("*") if path in before) == before


def test_spark_does_the_same(lake: Path, tmp_path: Path, spark: SparkSession) -> None:
    from rawlog.engines.spark import engine

    with Lake(str(lake)) as opened:
        tried = run_here(Expire(opened, grace=0, dry_run=True))
        found = engine.run(Expire(opened, grace=0), NOTHING, spark)
        assert {name: (one.expired, set(one.files)) for name, one in found.items()} == {
            name: (one.expired, set(one.files)) for name, one in tried.items()
        }
        engine.run(Remove(opened, {name: one.files for name, one in found.items()}), NOTHING, spark)
        left = engine.run(Orphans(opened, grace=0), NOTHING, spark)
        engine.run(Remove(opened, {name: one.files for name, one in left.items()}), NOTHING, spark)
    assert orphans(lake) == set()
    assert held(lake) == expected(tmp_path / "in")


def test_rows_of_inspected_files_are_replaced_without_a_read_on_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plan, follow and commit are the driver's: they read no row of the lake."""
    import pyarrow.parquet as pq
    from pyiceberg.io.pyarrow import ArrowScan

    logs, lake = tmp_path / "logs", tmp_path / "lake"
    write(logs, numbered(30), topic="orders")
    write(logs, numbered(30), topic="others")
    ingest(lake, logs)
    write(logs, numbered(40), topic="orders")
    reads: list[str] = []

    def watched(kind: Any, name: str) -> Any:
        real = getattr(kind, name)

        def read(*arguments: Any, **named: Any) -> Any:
            reads.append(name)
            return real(*arguments, **named)

        return read

    for kind, name in ((pq.ParquetFile, "iter_batches"), (ArrowScan, "to_table"), (ArrowScan, "to_record_batches")):
        monkeypatch.setattr(kind, name, watched(kind, name))
    tree = open_tree(str(logs))
    with Ingest(str(lake)) as job:
        splits, done = job.plan(tree), []
        while splits:
            assert not reads
            done += [job.work(split, Stage(str(lake), f"{split.number:05d}")) for split in splits]
            reads.clear()
            splits = job.follow(done)
        assert "files" in {one.table for some in done for one in some.thinned}
        job.commit(done)
        assert not reads
    rows = [row for row in held(lake, "rawlog.files") if Path(row["path"]).exists()]
    assert rows == expected(logs, table="files")
