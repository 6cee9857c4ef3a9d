"""`rawlog lake`: what a lake holds, and its upkeep next to readers and writers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rawlog.jobs.ingest import Ingest
from rawlog.jobs.lake import Lake
from tests.jobs.recordings import expected, held, ingest, record

Run = Callable[..., Any]
RUNS = 6


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return tmp_path / "logs"


@pytest.fixture
def lake(tmp_path: Path, logs: Path) -> Path:
    """A lake of several runs: many small files, many snapshots."""
    for number in range(RUNS):
        record(logs / f"{number}.log", 10, first=number * 100)
        ingest(tmp_path / "lake", logs)
    return tmp_path / "lake"


def test_status_tells_what_the_tables_hold(run: Run, lake: Path) -> None:
    rows = {row["table"]: row for row in run("lake", lake, "--json").rows}
    records = rows["rawlog.records"]
    assert (records["rows"], records["files"], records["sources"]) == (10 * RUNS, RUNS, RUNS)
    assert records["snapshots"] == RUNS
    ran = run("lake", lake)
    assert ran.code == 0
    assert ran.text.splitlines()[0].split()[:3] == ["table", "rows", "files"]


def test_upkeep_leaves_every_row_and_all_that_is_known_of_sources(run: Run, lake: Path, logs: Path) -> None:
    before = {name: held(lake, name) for name in Lake(str(lake)).tables()}
    upkeep = ("lake", lake, "--compact", "--expire-snapshots", "--remove-orphans", "--older-than", "0s", "--json")
    dry = {row["table"]: row for row in run(*upkeep, "--dry-run").rows}
    assert {row["table"]: row["files"] for row in run("lake", lake, "--json").rows}["rawlog.records"] == RUNS
    did = {row["table"]: row for row in run(*upkeep).rows}
    assert (dry["rawlog.records"]["joined_files"], did["rawlog.records"]["joined_files"]) == (RUNS, RUNS)
    assert did["rawlog.records"]["made_files"] == 1
    assert did["rawlog.records"]["expired_snapshots"] >= RUNS - 1
    assert did["rawlog.records"]["removed_files"] > RUNS
    status = {row["table"]: row for row in run("lake", lake, "--json").rows}
    assert status["rawlog.records"]["files"] == 1
    assert status["rawlog.records"]["snapshots"] <= 2
    assert {name: held(lake, name) for name in before} == before
    # Whoever opens the files without a catalog finds no row twice either.
    assert sum(pq.read_metadata(path).num_rows for path in lake.glob("rawlog/records/data/**/*.parquet")) == 10 * RUNS
    assert ingest(lake, logs).files == 0, "what was taken is still known"
    record(logs / "new.log", 5, first=9000)
    ingest(lake, logs)
    assert held(lake) == expected(logs)
    assert run(*upkeep[:-3]).code == 0


def test_nothing_is_taken_from_under_a_reader_within_the_time_of_grace(run: Run, lake: Path) -> None:
    table = Lake(str(lake)).load("rawlog.records")
    early = table.scan(snapshot_id=table.snapshots()[0].snapshot_id)
    (lake / "rawlog" / "records" / "data" / "stray.parquet").write_bytes(b"on its way")
    ran = run("lake", lake, "--expire-snapshots", "--remove-orphans", "--compact")
    assert ran.code == 0
    assert early.to_arrow().num_rows == 10
    assert (lake / "rawlog" / "records" / "data" / "stray.parquet").exists()


def test_what_a_run_is_about_to_commit_is_left_alone(run: Run, lake: Path, logs: Path) -> None:
    from rawlog.jobs import Stage
    from rawlog.reading.tree import open_tree

    record(logs / "late.log", 7, first=9000)
    with Ingest(str(lake)) as job:
        splits = job.plan(open_tree(str(logs)))
        done = [job.work(split, Stage(str(job.stage), f"{split.number}-x")) for split in splits]
        run("lake", lake, "--expire-snapshots", "--remove-orphans", "--compact", "--older-than", "0s")
        job.commit(done)
    assert held(lake) == expected(logs)


def test_a_lake_that_a_link_leads_to_has_no_orphans(run: Run, lake: Path, tmp_path: Path) -> None:
    """Metadata name files by the path of the lake when they were written. By another path, all files were removed as orphans."""
    (tmp_path / "link").symlink_to(lake)
    files = sorted(path for path in lake.rglob("*") if path.is_file())
    run("lake", tmp_path / "link", "--remove-orphans", "--older-than", "0s")
    assert sorted(path for path in lake.rglob("*") if path.is_file()) == files
    assert len(held(lake)) == 10 * RUNS


def test_orphans_are_removed_and_said(run: Run, lake: Path) -> None:
    stray = lake / "rawlog" / "records" / "data" / "stray.parquet"
    stray.write_bytes(b"left behind")
    ran = run("lake", lake, "--remove-orphans", "--older-than", "0s", "--dry-run")
    assert "rawlog.records: 1 file removed" in ran.text
    assert "nothing was changed" in ran.text
    assert stray.exists()
    run("lake", lake, "--remove-orphans", "--older-than", "0s")
    assert not stray.exists()
    assert "nothing to do" in run("lake", lake, "--remove-orphans", "--older-than", "0s").text


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        (["nowhere"], 3, "not a lake"),
        (["lake", "--dry-run"], 2, "--dry-run goes with"),
        (["lake", "--older-than", "soon"], 2, "a number and s, m, h, d or w expected"),
        (["lake", "--compacted"], 2, "--compact"),
    ],
)
def test_bad_input_is_told_in_a_line(
    run: Run, lake: Path, monkeypatch: pytest.MonkeyPatch, given: list[str], code: int, words: str
) -> None:
    monkeypatch.chdir(lake.parent)
    ran = run("lake", *given)
    assert ran.code == code
    assert words in ran.err
