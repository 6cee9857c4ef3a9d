"""`rawlog query`: SQL over files and lakes, and how a wrong question is answered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import rawlog
from rawlog.errors import OptionError
from rawlog.spark import query
from rawlog.tables import RECORDS
from tests.jobs.recordings import damage, ingest, record

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


def test_files_and_lakes_give_the_same_answer(ask: Run, logs: Path, lake: Path) -> None:
    sql = "SELECT count(*) AS n, max(offset) AS last, sum(length(value)) AS bytes FROM records WHERE key IS NOT NULL"
    answers = [ask(sql, path, "--json") for path in (logs, lake)]
    assert [answer.code for answer in answers] == [0, 0], answers[0].err
    assert answers[0].rows == answers[1].rows
    plain = [row for row in rawlog.read(logs).to_pylist() if row["key"] is not None]
    assert answers[0].rows == [{"n": len(plain), "last": 49, "bytes": sum(len(row["value"]) for row in plain)}]


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


def test_several_paths_by_name(ask: Run, logs: Path, lake: Path) -> None:
    sql = "SELECT count(*) AS n FROM old JOIN new.records USING (offset) JOIN new.entries AS e ON e.number = offset"
    ran = ask(sql, f"old={logs}", f"new={lake}", "--json")
    assert ran.rows == [{"n": 50}], ran.err


def test_a_question_without_a_table_and_one_from_standard_input(ask: Run, logs: Path) -> None:
    assert ask("SELECT 1 AS one", logs, "--json").rows == [{"one": 1}]
    assert "records" in ask("SHOW TABLES", logs).text


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT count(*) FROM record", "unknown table 'record'; did you mean records"),
        ("SELECT ofset FROM records", "Did you mean one of the following? [`offset`"),
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


def test_damage_is_exit_code_1_with_its_place(ask: Run, tmp_path: Path) -> None:
    path = record(tmp_path / "a.log", 50)
    damage(path, 9)
    ran = ask("SELECT sum(offset) AS n FROM records", path)
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
    assert (ran.code, "give it a name of its own" in ran.err) == (2, True)
    assert ask("SELECT 1", f"a={lake}", f"a={lake}").code == 2
    assert ask("SELECT 1", lake, "--conf", "fnord").code == 2


# Without Spark --------------------------------------------------------------------------------------------------------

VIEW = query.View((), RECORDS, lambda spark, columns: None)  # type: ignore[arg-type,return-value]
KNOWN = dict.fromkeys([("records",), ("kafka", "batches"), ("batches",), ("a",), ("a", "records")], VIEW)


@pytest.mark.parametrize(
    ("sql", "rewritten", "needed"),
    [
        ("SELECT 1 FROM kafka.batches", "SELECT 1 FROM kafka_batches", {"kafka_batches"}),
        ("SELECT 1 FROM `Kafka` . `batches` b", "SELECT 1 FROM kafka_batches b", {"kafka_batches"}),
        ("SELECT a.records FROM a", "SELECT a.records FROM a", {"a"}),
        ("SELECT a.records.offset FROM a.records", "SELECT a_records.offset FROM a_records", {"a_records"}),
        ("SELECT 1 FROM a, a.records", "SELECT 1 FROM a, a_records", {"a", "a_records"}),
        ("SELECT 'FROM a.records' -- a.records", "SELECT 'FROM a.records' -- a.records", set()),
        ("SELECT 1 FROM (SELECT 2 FROM batches)", "SELECT 1 FROM (SELECT 2 FROM batches)", {"batches"}),
        ("SELECT 1 FROM elsewhere.records", "SELECT 1 FROM elsewhere.records", set()),
    ],
)
def test_dotted_names_become_names_of_views(sql: str, rewritten: str, needed: set[str]) -> None:
    text, views = query.rewrite(sql, KNOWN)
    assert text == rewritten
    assert set(views) == needed


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("SELECT count(*) FROM records", ["partition"]),
        ("SELECT topic, sum(length(`value`)) FROM records GROUP BY topic", ["value", "topic"]),
        ("SELECT Offset FROM records WHERE KEY = 'value'", ["key", "offset"]),
        ("WITH r AS (SELECT offset FROM records) SELECT count( * ) FROM r", ["offset"]),
        ("SELECT * FROM records", None),
        ("SELECT r.* FROM records r", None),
        ("SELECT offset * 2 FROM records", None),
        ("SELECT offset FROM records NATURAL JOIN records", None),
        ("FROM records", None),
        ("SELECT offset FROM (TABLE records)", None),
        ("DESCRIBE records", None),
    ],
)
def test_only_columns_that_a_query_names_are_read(sql: str, columns: list[str] | None) -> None:
    words = query._words(sql)
    assert (None if words is None else query._needed_columns(RECORDS, words)) == columns


def test_names_of_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "day=1").mkdir()
    assert query.sources(["x", "day=1", "A=y"]) == [query.Source(None, ("x", "day=1")), query.Source("a", ("y",))]
    with pytest.raises(OptionError, match="twice"):
        query.sources(["a=x", "A=y"])
