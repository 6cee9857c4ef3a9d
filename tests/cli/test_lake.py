"""`rawlog lake`: what a lake holds, and its upkeep next to readers and writers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rawlog.lakes.ingest import Ingest
from rawlog.lakes.lake import Lake
from tests.data.recordings import expected, held, ingest, record

Run = Callable[..., Any]
RUNS = 6


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A lake of several runs, with many small files and snapshots, and its logs: where they belong, and a copy to restore them from.

    A lake knows its place, so each test has it at the same one.
    """
    place, copy = (tmp_path_factory.mktemp(name) / "place" for name in ("lake", "stored"))
    for number in range(RUNS):
        record(place / "logs" / f"{number}.log", 10, first=number * 100)
        ingest(place / "lake", place / "logs")
    shutil.copytree(place, copy)
    return place, copy


@pytest.fixture
def place(stored: tuple[Path, Path]) -> Path:
    """The directory of the lake and its logs, as no test has changed it."""
    place, copy = stored
    shutil.rmtree(place)
    shutil.copytree(copy, place)
    return place


@pytest.fixture
def logs(place: Path) -> Path:
    return place / "logs"


@pytest.fixture
def lake(place: Path) -> Path:
    return place / "lake"


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
    from rawlog.model.job import Stage
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
        (["nowhere"], 3, "no such file or directory"),
        (["."], 3, "not a lake"),
        (["lake", "--dry-run"], 2, "--dry-run goes with"),
        (["lake", "--older-than", "soon"], 2, "such as 30s, 5m, 1h30m or 7d expected"),
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


UPKEEP = ("--remove-orphans", "--expire-snapshots", "--compact")


def files_in(*folders: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()}


def test_links_out_of_a_lake_are_not_followed_by_what_deletes(run: Run, lake: Path, logs: Path, tmp_path: Path) -> None:
    """Directories that links in a lake lead to were listed as parts of it, and their files removed as orphans or as leftovers."""
    other = tmp_path / "other"
    for name in ("a", "run", "records/data/20240101T000000-0123abcd.1", "table"):
        (other / name).mkdir(parents=True)
        (other / name / "precious.parquet").write_bytes(b"precious")
    data = lake / "rawlog" / "records" / "data"
    (data / "link").symlink_to(other / "a")
    (data / "20240101T000000-0123abcd.1").symlink_to(other / "run")
    (data / "file.parquet").symlink_to(other / "a" / "precious.parquet")
    (lake / "replay" / "elsewhere").symlink_to(other / "records")
    (lake / "rawlog" / "files").rename(other / "table" / "files")
    (lake / "rawlog" / "files").symlink_to(other / "table" / "files")
    (other / "table" / "files" / "stray.parquet").write_bytes(b"in another place")
    before = files_in(other)
    ran = run("lake", lake, "--remove-orphans", "--older-than", "0s")
    assert (ran.code, ran.text) == (0, "nothing to do\n")
    assert files_in(other) == before
    assert ingest(lake, logs).files == 0
    assert files_in(other).items() >= before.items()
    assert len(held(lake)) == 10 * RUNS


@pytest.mark.parametrize("is_moved", [False, True])
def test_a_lake_that_was_copied_or_moved_is_refused(run: Run, lake: Path, is_moved: bool) -> None:
    """The catalog names the files of the original: all files of the copy were orphans, and removed (34 of 34)."""
    copy = lake.parent / "copy"
    shutil.copytree(lake, copy)
    if is_moved:
        shutil.rmtree(lake)
    before = files_in(copy, lake)
    for option, *more in product(UPKEEP, ("--json", "--dry-run")):
        ran = run("lake", copy, option, "--older-than", "0s", *more)
        assert (ran.code, ran.text) == (3, "")
        assert "has metadata of another place" in ran.err
    assert files_in(copy, lake) == before
    if is_moved:
        lake.symlink_to(copy)
        assert run("lake", copy, *UPKEEP, "--older-than", "0s").code == 0
        assert len(held(lake)) == 10 * RUNS


def test_a_copy_without_files_of_the_original_is_said_to_be_one(run: Run, lake: Path) -> None:
    """Only a file system's error was shown, which names a file of the other lake."""
    copy = lake.parent / "copy"
    shutil.copytree(lake, copy)
    for path in (lake / "rawlog" / "records" / "metadata").glob("*.avro"):
        path.unlink()
    for verb in (("lake", copy), ("query", "select count(*) from records", copy)):
        ran = run(*verb)
        assert (ran.code, ran.text) == (3, "")
        assert "has metadata of another place" in ran.err
    ran = run("lake", lake)
    assert ran.code == 3
    assert "another place" not in ran.err


@pytest.mark.parametrize("is_moved", [False, True])
def test_nothing_is_ingested_into_a_copy_of_a_lake(run: Run, lake: Path, logs: Path, is_moved: bool) -> None:
    """It added files of the copy to the tables of the original, and removed old metadata of the original."""
    copy = lake.parent / "copy"
    shutil.copytree(lake, copy)
    leftover = copy / "rawlog" / "records" / "data" / "20240101T000000-0123abcd.1" / "a.parquet"
    leftover.parent.mkdir()
    leftover.write_bytes(b"of a dead run")
    if is_moved:
        shutil.rmtree(lake)
    before = files_in(copy, lake)
    record(logs / "new.log", 5, first=9000)
    ran = run("ingest", logs, "--to", copy, "--engine", "local")
    assert ran.code == 3
    assert "has metadata of another place" in ran.err
    assert files_in(copy, lake) == before


def test_a_lake_of_another_catalog_keeps_its_files(run: Run, lake: Path, logs: Path) -> None:
    """A catalog that does not have the tables named no file: those of all runs were removed as leftovers."""
    before = files_in(lake)
    ran = run("ingest", logs, "--to", lake, "--catalog", lake.parent / "other.db", "--engine", "local")
    assert ran.code == 0, ran.err
    assert files_in(lake).items() >= before.items()


def change_metadata(lake: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Give the table of records other metadata, as whoever made a lake could."""
    import sqlite3

    table = Lake(str(lake)).load("rawlog.records")
    path = Path(table.metadata_location.removeprefix("file://"))
    metadata = json.loads(path.read_text())
    change(metadata)
    (path.parent / "hostile.metadata.json").write_text(json.dumps(metadata))
    with sqlite3.connect(lake / "catalog.db") as catalog:
        place = f"file://{path.parent}/hostile.metadata.json"
        catalog.execute("UPDATE iceberg_tables SET metadata_location = ? WHERE table_name = 'records'", (place,))


def test_metadata_that_name_files_elsewhere_remove_none(run: Run, lake: Path, logs: Path) -> None:
    """PyIceberg removes the metadata files that the log of a table names, whatever they are, when there are too many."""
    victim = lake.parent / "victim"
    victim.write_text("precious")

    def change(metadata: dict[str, Any]) -> None:
        metadata["properties"]["write.metadata.previous-versions-max"] = "1"
        metadata["metadata-log"].insert(0, {"metadata-file": f"file://{victim}", "timestamp-ms": 1})

    change_metadata(lake, change)
    record(logs / "new.log", 5, first=9000)
    ran = run("ingest", logs, "--to", lake, "--engine", "local")
    assert (ran.code, victim.exists()) == (3, True)
    assert "has metadata of another place" in ran.err


@pytest.mark.parametrize("name", ["py-io-impl", "write.py-location-provider.impl"])
def test_a_lake_runs_no_code(
    run: Run, lake: Path, logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A table may name a class for PyIceberg to import and call: opening a lake of somebody else ran it."""
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.syspath_prepend(tmp_path)
    change_metadata(lake, lambda metadata: metadata["properties"].update({name: "evil.Files"}))
    for arguments in (
        ("lake", lake),
        ("lake", lake, "--compact"),
        ("query", "SELECT * FROM records", lake, "--engine", "duckdb"),
        ("ingest", logs, "--to", lake, "--engine", "local"),
        ("convert", lake, tmp_path / "rows.jsonl", "--to", "jsonl", "--engine", "local"),
        ("report", lake, "-o", tmp_path / "page.html", "--engine", "local"),
    ):
        ran = run(*arguments)
        assert ran.code == 3, arguments
        assert f"names Python code to run ({name})" in ran.err
    assert not (tmp_path / "ran").exists()
