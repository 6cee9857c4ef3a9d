"""`rawlog ingest`: its options, its words, its exit codes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import rawlog
from rawlog.cli.logs import Bar
from rawlog.lakes.ingest_plan import IngestResult
from rawlog.model.job import Progress
from tests.data import duck
from tests.data.golden import golden_path
from tests.data.recordings import damage, expected, held, ingest, record, stored

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Run = Callable[..., Any]
SAMPLES = Path(__file__).parents[2] / "samples"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    record(tmp_path / "logs" / "a.log", 50)
    return tmp_path / "logs"


def test_summary_for_people_tells_what_was_added_and_where(run: Run, tmp_path: Path, logs: Path) -> None:
    ran = run("ingest", logs, "--to", tmp_path / "lake", "--engine", "local")
    assert ran.code == 0, ran.err
    lines = ran.text.splitlines()
    assert lines[0].split() == ["table", "rows", "added"]
    assert ["rawlog.records", "50"] in [line.split() for line in lines]
    assert "clean" in lines
    assert f"lake: {tmp_path / 'lake'}" in lines
    assert "load_catalog" in lines[-1]
    again = run("ingest", logs, "--to", tmp_path / "lake", "--engine", "local")
    assert (again.code, again.text.splitlines()[0]) == (0, "nothing new: 1 file as before")


def test_summary_for_machines_is_one_line_of_json(run: Run, tmp_path: Path, logs: Path) -> None:
    (row,) = run("ingest", logs, "--to", tmp_path / "lake", "--engine", "local", "--json").rows
    assert row["verdict"] == "clean"
    assert (row["files"], row["unchanged"], row["refused"]) == (1, 0, 0)
    assert row["tables"]["replay.entries"] == 50
    assert row["lake"] == str(tmp_path / "lake")


def test_damage_is_exit_code_1_and_the_sound_rows_are_in(run: Run, tmp_path: Path, logs: Path) -> None:
    damage(logs / "a.log", 9)
    ran = run("ingest", logs, "--to", tmp_path / "lake", "--engine", "local")
    assert ran.code == 1
    assert "damaged: 1 error" in ran.text
    assert held(tmp_path / "lake") == expected(logs)


def test_a_rewritten_file_is_replaced_or_refused_with_exit_code_1(run: Run, tmp_path: Path, logs: Path) -> None:
    run("ingest", logs, "--to", tmp_path / "lake", "--engine", "local")
    record(logs / "a.log", 70, first=7)
    ran = run("ingest", logs, "--to", tmp_path / "lake", "--engine", "local", "--on-rewrite", "refuse")
    assert ran.code == 1
    assert "a.log: holds other bytes than were ingested" in ran.err
    ran = run("ingest", logs, "--to", tmp_path / "lake", "--engine", "local")
    assert ran.code == 0
    assert "1 file rewritten since the last run: the rows were replaced" in ran.err


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        (["nowhere", "--to", "lake"], 3, "nowhere: no such file or directory"),
        (["logs", "--to", "logs"], 2, "inside one another"),
        (["logs", "--to", "other"], 3, "holds other files"),
        (["logs", "--to", "other/file"], 3, "is a file; a lake is a directory"),
        (["logs"], 2, "--to"),
        (["logs", "--to", "lake", "--tables", "fnord"], 2, "unknown table 'fnord'"),
        (["logs", "--to", "lake", "--since", "fnord"], 2, "ISO 8601"),
        (["logs", "--to", "lake", "--catalog", "fnord"], 2, "catalog 'fnord'"),
        (["logs", "--to", "lake", "--master", "local[2]"], 2, "--engine local"),
        (["logs", "--to", "s3://nowhere/lake"], 2, "--catalog"),
        (["logs", "--to", "lake", "--partition-by", "fnord"], 2, "unknown partitioning 'fnord'"),
    ],
)
def test_bad_input_is_told_in_a_line(
    run: Run, tmp_path: Path, logs: Path, monkeypatch: pytest.MonkeyPatch, given: list[str], code: int, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_bytes(b"x")
    ran = run("ingest", *given, "--engine", "local")
    assert ran.code == code
    assert words in ran.err
    assert ran.text == ""


def test_paths_in_the_lake_are_whole(run: Run, tmp_path: Path, logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run("ingest", "logs", "--to", "lake", "--engine", "local")
    (row,) = held(tmp_path / "lake", "rawlog.files")
    assert row["path"] == str(logs / "a.log")


def test_rows_by_time_and_tables_by_name(run: Run, tmp_path: Path, logs: Path) -> None:
    since = 1_700_000_000_000 + 40_000
    ran = run(
        *("ingest", logs, "--to", tmp_path / "lake", "--engine", "local", "--json"),
        *("--since", since, "--tables", "records"),
    )
    assert ran.rows[0]["tables"] == {"rawlog.records": 10, "rawlog.files": 1, "rawlog.findings": 0}


@pytest.fixture(scope="module")
def sample_lake(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, IngestResult]:
    """All samples in a lake, and what ingest said of it."""
    lake = tmp_path_factory.mktemp("samples") / "lake"
    return lake, ingest(lake, SAMPLES)


def test_the_samples_of_all_systems_are_in_the_lake_as_they_read(sample_lake: tuple[Path, IngestResult]) -> None:
    lake, outcome = sample_lake
    systems = {name.partition(".")[0] for name in outcome.tables}
    assert systems == {"rawlog", "kafka", "kraft", "replay", "rocketmq", "ambry"}
    for name, count in outcome.tables.items():
        table = name.removeprefix("rawlog.")
        if table == "findings":
            continue
        plain = rawlog.read(str(SAMPLES), table=table, errors="skip")
        assert (name, count) == (name, plain.num_rows)
        assert stored(lake, name) == sorted(plain.to_pylist(), key=repr), name
    found = sorted((finding.as_row() for finding in rawlog.verify(str(SAMPLES))), key=repr)
    assert held(lake, "rawlog.findings") == found


def test_one_statement_joins_three_systems(
    run: Run, spark: SparkSession, sample_lake: tuple[Path, IngestResult]
) -> None:
    """Spark over the lake says what DuckDB says of its Parquet files, which PyIceberg names."""
    from pyiceberg.catalog import load_catalog

    lake, _ = sample_lake
    sql = """
        SELECT k.topic, m.topic AS other, count(*) AS n, count(DISTINCT b.blob_id) AS blobs
        FROM {kafka.records} k JOIN {rocketmq.messages} m ON k.`offset` = m.queue_offset
        JOIN {ambry.blobs} b ON octet_length(b.key) > m.queue_id
        WHERE NOT k.is_control AND k.`partition` = 0 GROUP BY k.topic, m.topic ORDER BY k.topic, m.topic
    """
    catalog = load_catalog("rawlog", type="sql", uri=f"sqlite:///{lake}/catalog.db")
    plain = sql.replace("`", '"')
    for name in re.findall(r"{([a-z.]+)}", sql):
        files = [task.file.file_path.removeprefix("file://") for task in catalog.load_table(name).scan().plan_files()]
        plain = plain.replace(f"{{{name}}}", f"read_parquet({files})")
    ran = run("query", re.sub(r"[{}]", "", sql), lake, "--json")
    assert ran.code == 0, ran.err
    assert [tuple(row.values()) for row in ran.rows] == duck.ask(plain)
    assert ran.rows


def test_the_same_on_spark(run: Run, spark: SparkSession, tmp_path: Path, logs: Path) -> None:
    ran = run("ingest", logs, "--to", tmp_path / "lake", "--json")
    assert ran.code == 0, ran.err
    assert ran.rows[0]["tables"]["rawlog.records"] == 50
    assert held(tmp_path / "lake") == expected(logs)


def test_progress_tells_rows_bytes_and_the_time_left() -> None:
    bar = Bar("ingesting")
    bar(Progress(250, 1000, rows=7654))
    assert (
        bar.text(2.0) == "ingesting  25 %  250 B  7,654 rows  125 B/s  2 s"
    )  # the first seconds say nothing of the rest
    assert bar.text(10.0) == "ingesting  25 %  250 B  7,654 rows  25 B/s  10 s  31 s left"


def test_following_takes_what_arrives_and_ends_cleanly(tmp_path: Path, logs: Path) -> None:
    """A real process, stopped by a signal: everything that had arrived is in, and the last line says how much."""
    whole = (logs / "a.log").read_bytes()
    (logs / "a.log").write_bytes(whole[: len(whole) // 2])
    command = [sys.executable, "-m", "rawlog", "ingest", str(logs), "--to", str(tmp_path / "lake"), "--engine", "local"]
    running = subprocess.Popen(
        [*command, "--follow", "--every", "0.2", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert running.stdout is not None
    first = json.loads(running.stdout.readline())
    assert 0 < first["tables"]["rawlog.records"] < 50
    with (logs / "a.log").open("ab") as file:
        file.write(whole[len(whole) // 2 :])
    second = json.loads(running.stdout.readline())
    assert first["tables"]["rawlog.records"] + second["tables"]["rawlog.records"] == 50
    running.send_signal(signal.SIGTERM)
    rest, errors = running.communicate(timeout=60)
    assert running.returncode == 0, errors.decode()
    (last,) = map(json.loads, rest.splitlines())
    assert (last["runs"], last["tables"]["rawlog.records"]) == (2, 50)
    assert held(tmp_path / "lake") == expected(logs)


def test_a_run_that_lost_no_record_says_so(run: Run, tmp_path: Path) -> None:
    """An index with wrong content gave "damaged" alone, and exit code 0."""
    name = "segments-by-size-0"
    shutil.copytree(golden_path("kafka", "broker-4.3.0", "data", name), tmp_path / name)
    for index in (tmp_path / name).glob("*.index"):
        index.write_bytes(bytes(reversed(index.read_bytes())))
    ran = run("ingest", tmp_path / name, "--to", tmp_path / "lake", "--engine", "local")
    assert ran.code == 0, ran.err
    assert any(line.startswith("damaged, but no record is lost: ") for line in ran.text.splitlines()), ran.text
