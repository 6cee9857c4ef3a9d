"""`rawlog query`: SQL over files and lakes, and how a wrong question is answered."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import rawlog
from rawlog.model.errors import RawlogError
from tests.data.recordings import damage, ingest, record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logs")
    record(folder / "a.log", 50)
    return folder


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, logs: Path) -> Path:
    path = tmp_path_factory.mktemp("lakes") / "lake"
    ingest(path, logs)
    return path


@pytest.fixture
def ask(run: Run, spark: SparkSession) -> Run:
    return lambda *given: run("query", *given)


@pytest.fixture(params=["spark", "duckdb"])
def ask_any(run: Run, request: pytest.FixtureRequest) -> Run:
    """Ask each of the engines in turn."""
    if request.param == "spark":
        request.getfixturevalue("spark")
    return lambda *given: run("query", *given, "--engine", request.param)


def test_files_and_lakes_give_the_same_answer(ask_any: Run, logs: Path, lake: Path) -> None:
    sql = "SELECT count(*) AS n, max(r.offset) AS last, max(octet_length(value)) AS bytes FROM records r WHERE key IS NOT NULL"
    answers = [ask_any(sql, path, "--json") for path in (logs, lake)]
    assert [answer.code for answer in answers] == [0, 0], answers[0].err
    assert answers[0].rows == answers[1].rows
    plain = [row for row in rawlog.read(logs).to_pylist() if row["key"] is not None]
    assert answers[0].rows == [{"n": len(plain), "last": 49, "bytes": max(len(row["value"]) for row in plain)}]


def test_a_system_table_of_a_lake_is_complete(ask_any: Run, logs: Path, lake: Path) -> None:
    """Its message bytes are stored in `records`: with them, without them, in a join, and only in a condition."""
    for sql in (
        "SELECT * FROM entries ORDER BY number",
        "SELECT number, key, octet_length(value) AS n FROM entries ORDER BY number",
        "SELECT number, position FROM entries ORDER BY number",
        "SELECT count(*) AS n FROM entries WHERE key IS NOT NULL",
        "SELECT e.number, e.value = r.value AS same FROM entries e JOIN records r ON r.offset = e.number ORDER BY 1",
    ):
        answers = [ask_any(sql, path, "--json") for path in (logs, lake)]
        assert [answer.code for answer in answers] == [0, 0], answers[1].err
        assert answers[0].rows == answers[1].rows, sql
        assert answers[0].rows


def test_every_form_of_output(ask: Run, logs: Path) -> None:
    sql = "SELECT offset, key, timestamp FROM records WHERE offset IN (1, 2) ORDER BY offset"
    assert ask(sql, logs, "--csv").text.splitlines()[0] == "offset,key,timestamp"
    assert ask(sql, logs, "--format", "%o=%k\\n").text == "1=key 1\n2=key 2\n"
    assert set(ask(sql, logs).text.split()[:3]) == {"offset", "key", "timestamp"}
    table = pa.ipc.open_stream(ask(sql, logs, "--arrow").out).read_all()
    assert table.column("key").to_pylist() == [b"key 1", b"key 2"]
    assert ask("SELECT value FROM records LIMIT 1", logs, "--raw").text.startswith("value 0")
    assert ask("SELECT 1.5D AS d, CAST(1 AS DECIMAL(5,2)) AS c, DATE'2024-01-02' AS t", logs, "--json").code == 0


def test_system_tables_by_short_and_by_whole_name(ask: Run, logs: Path, lake: Path) -> None:
    for path in (logs, lake):
        for name in ("entries", "replay.entries", "replay_entries"):
            ran = ask(f"SELECT count(*) AS n FROM {name}", path, "--json")
            assert ran.rows == [{"n": 50}], ran.err
    assert ask("SELECT count(*) AS n FROM rawlog.jobs", lake, "--json").rows == [{"n": 1}]
    assert ask("SELECT state FROM files", lake, "--json").rows == [{"state": "ok"}]
    assert ask("SELECT * FROM findings", lake).code == 0


def test_several_paths_by_name(ask_any: Run, logs: Path, lake: Path) -> None:
    sql = "SELECT count(*) AS n FROM old JOIN new.records AS r ON old.offset = r.offset JOIN new.entries AS e ON e.number = r.offset"
    ran = ask_any(sql, f"old={logs}", f"new={lake}", "--json")
    assert ran.rows == [{"n": 50}], ran.err


def test_a_question_without_a_table_and_one_from_standard_input(ask: Run, logs: Path) -> None:
    assert ask("SELECT 1 AS one", logs, "--json").rows == [{"one": 1}]
    assert "records" in ask("SHOW TABLES", logs).text


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT count(*) FROM record", "unknown table 'record'; did you mean records"),
        ("SELECT ofset FROM records", "unknown column 'ofset'; did you mean offset? (line 1, column 8)"),
        ("SELECT r.ofset FROM records r", "unknown column 'ofset'; did you mean offset?"),
        (
            "SELECT kafka_partitions(key, 3) FROM records",
            "unknown function 'kafka_partitions'; did you mean kafka_partition",
        ),
        ("SELEC 1", "Syntax error at or near 'SELEC' (line 1, column 1)"),
        ("SELECT offset / 0 FROM records", "Division by zero"),
        ("SELECT fnord(1)", "fnord"),
        (" ", "no question"),
    ],
)
def test_a_wrong_question_is_exit_code_2_in_a_line(ask: Run, logs: Path, sql: str, words: str) -> None:
    ran = ask(sql, logs)
    assert ran.code == 2
    assert words in ran.err
    assert ran.err.count("\n") <= 2
    assert "java" not in ran.err.lower()
    assert ran.text == ""


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT count(*) FROM record", "unknown table 'record'; did you mean records"),
        ("SELECT ofset FROM records", "unknown column 'ofset'; did you mean offset"),
        ("SELECT r.ofset FROM records r", "unknown column 'ofset'; did you mean offset"),
        ("SELECT kafka_partitions(key, 3) FROM records", "did you mean kafka_partition"),
        ("SELEC 1", 'syntax error at or near "SELEC"'),
        ("SELECT CAST('a' AS INTEGER)", "Could not convert string 'a' to INT32"),
    ],
)
def test_duckdb_complains_in_a_line_too(run: Run, logs: Path, sql: str, words: str) -> None:
    ran = run("query", sql, logs, "--engine", "duckdb")
    assert (ran.code, ran.text) == (2, "")
    assert words in ran.err
    assert ran.err.count("\n") <= 2


def test_damage_is_exit_code_1_with_its_place(ask_any: Run, tmp_path: Path) -> None:
    ask = ask_any
    path = record(tmp_path / "a.log", 50)
    damage(path, 9)
    ran = ask("SELECT sum(r.offset) AS n FROM records r", path)
    assert ran.code == 1
    assert f"replay.recording: {path}: byte " in ran.err
    assert "Traceback" not in ran.err
    skipped = ask("SELECT count(*) AS n FROM records", path, "--errors", "skip", "--json")
    assert skipped.rows == [{"n": len(rawlog.read(path, errors="skip"))}]


def test_paths_that_cannot_be_asked(ask: Run, tmp_path: Path, lake: Path) -> None:
    ran = ask("SELECT 1", tmp_path / "nowhere")
    assert (ran.code, "no such file or directory" in ran.err) == (3, True)
    (tmp_path / "noise").write_bytes(b"\x00\x01\x02")
    ran = ask("SELECT 1", tmp_path)
    assert (ran.code, "no file of any known format" in ran.err) == (3, True)
    ran = ask("SELECT 1", lake, tmp_path)
    assert (ran.code, "is a lake: give it a name" in ran.err) == (2, True)
    assert ask("SELECT 1", f"a={lake}", f"a={lake}").code == 2
    assert ask("SELECT 1", lake, "--conf", "fnord").code == 2
    assert ask("SELECT 1", lake, "--engine", "duckdb", "--master", "local[2]").code == 2


# How an answer comes ---------------------------------------------------------------------------------------------------


def test_an_answer_is_streamed_in_order_and_its_damage_is_told_behind_the_sound_rows(spark: SparkSession) -> None:
    """The driver never holds more than a partition or two: rows of the first are there before the last are computed."""
    from rawlog.engines.spark.query import SparkEngine

    engine = SparkEngine(lambda: spark, [], embedded=True)
    sql = "SELECT id, if(id < 150000, id, raise_error('too far')) AS x FROM range(0, 200000, 1, 8)"
    with engine:
        answer = engine.ask(sql)
        assert answer.schema.names == ["id", "x"]
        seen = []
        with pytest.raises(RawlogError, match="too far") as caught:
            for batch in answer.batches():
                seen += batch.column("id").to_pylist()
        assert "\n" not in str(caught.value)
        assert seen == list(range(len(seen)))
        assert len(seen) >= 100_000
        ordered = engine.ask("SELECT id FROM range(0, 50000, 1, 4) ORDER BY id DESC")
        assert [row for batch in ordered.batches() for row in batch.column(0).to_pylist()] == list(range(49999, -1, -1))


def test_small_tables_are_staged_and_large_ones_read_through_the_source(
    spark: SparkSession, logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rawlog.engines.spark import query
    from rawlog.engines.spark.query import SparkEngine
    from rawlog.engines.sql import Source, views

    folder = tmp_path / "logs"
    record(folder / "a.log", 20)
    sql = "SELECT offset, key, headers FROM records ORDER BY offset"

    def rows(engine: SparkEngine) -> list[Any]:
        return [row for batch in engine.ask(sql).batches() for row in batch.to_pylist()]

    def plan(engine: SparkEngine) -> str:
        return str(spark.sql(engine.read(sql)[0])._jdf.queryExecution().toString())

    with SparkEngine(lambda: spark, views(Source(None, (str(folder),))), embedded=True) as engine:
        engine.prepare(sql)
        staged = rows(engine)
        assert ".parquet" in plan(engine)
        record(folder / "a.log", 30)  # it grew: the next question sees it
        engine.refresh()
        assert len(rows(engine)) == 30
        held = engine._stage.folder if engine._stage else None
    assert held is not None
    assert not held.exists()
    record(folder / "a.log", 20)
    monkeypatch.setattr(query, "SMALL", 0)
    with SparkEngine(lambda: spark, views(Source(None, (str(folder),))), embedded=True) as engine:
        assert rows(engine) == staged
        assert ".parquet" not in plan(engine)


@pytest.mark.parametrize("end", ["interrupt", "mistake"])
def test_what_ends_the_reading_of_files_ends_the_query(
    run: Run, logs: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """DuckDB made wrong usage of an interrupt, and of our own mistakes: "reading the stream failed: Unknown error"."""
    from rawlog.engines.sql import Files

    def batches(*_: object) -> Any:
        if end == "interrupt":
            signal.raise_signal(signal.SIGINT)  # the main thread's; this may be another one, which then goes on
        else:
            raise ZeroDivisionError("oops")
        yield from ()

    monkeypatch.setattr(Files, "batches", batches)
    ran = run("query", "SELECT * FROM records", logs, "--engine", "duckdb")
    assert ran.code == (130 if end == "interrupt" else 70)
    assert "registered" not in ran.err
