"""Topics and partitions that a selection names and that are not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rawlog
from rawlog.model.errors import OptionError
from rawlog.model.table import RECORDS
from rawlog.reading.rows import check_names
from rawlog.reading.select import Selection
from tests.data.golden import golden_path

KAFKA = golden_path("kafka", "broker-3.9.2", "data")
ROCKETMQ = golden_path("rocketmq", "broker-5.3.3", "store")
AMBRY = golden_path("ambry", "store-small")


@pytest.mark.parametrize(
    ("path", "table", "how", "message"),
    [
        (KAFKA, "records", {"topic": "codec-nne"}, "unknown topic 'codec-nne'; did you mean codec-none"),
        (KAFKA, "records", {"topic": ["codec-none", "codec-gzp"]}, "did you mean codec-gzip"),
        (KAFKA, "files", {"topic": "codec-nne"}, "did you mean codec-none"),
        (KAFKA, "kraft.partitions", {"topic": "codec-nne"}, "did you mean codec-none"),
        (KAFKA, "records", {"partition": 77}, "unknown partition 77; known: 0 to "),
        (KAFKA, "records", {"topic": "codec-none", "partition": 9}, "unknown partition 9; known: 0 to 1$"),
        (ROCKETMQ, "records", {"topic": "gold_order"}, "did you mean gold_orders"),
        (ROCKETMQ, "rocketmq.messages", {"topic": "gold_order"}, "did you mean gold_orders"),
        (AMBRY, "records", {"topic": "999/999"}, "unknown topic '999/999'"),
    ],
)
def test_a_name_that_is_not_there_is_answered_with_the_nearest(
    path: Path, table: str, how: dict[str, Any], message: str
) -> None:
    """It gave no rows, and exit code 0: a typing error looked like an empty topic."""
    with pytest.raises(OptionError, match=message):
        rawlog.read(path, table=table, **how)


def test_a_commit_log_alone_tells_its_topics(tmp_path: Path) -> None:
    """Without queues and settings next to it, only the messages show it."""
    folder = tmp_path / "commitlog"
    folder.mkdir()
    for file in sorted((ROCKETMQ / "commitlog").iterdir()):
        (folder / file.name).write_bytes(file.read_bytes())
    assert rawlog.read(tmp_path, topic="gold_orders").num_rows == 165
    with pytest.raises(OptionError, match="did you mean gold_orders"):
        rawlog.read(tmp_path, topic="gold_order")


def test_a_pattern_that_matches_nothing_is_a_note() -> None:
    notes: list[str] = []
    tree = rawlog.open(KAFKA)
    check_names(tree, RECORDS, Selection(topics=("zz*", "codec-*")), notes.append)
    check_names(tree, RECORDS, Selection(topics=("codec-none",), partitions=(0, 1, 2)), notes.append)
    check_names(tree, RECORDS, Selection(topics=("nope",)), notes.append, may_come=True)
    assert notes[:2] == ["--topic zz*: no topic matches", "--partition 0 to 2: there is no 2"]
    assert notes[2].startswith("unknown topic 'nope'")


def test_an_id_where_nothing_has_one_is_an_error() -> None:
    with pytest.raises(
        OptionError, match="--id: .*kafka.* has no ids; only messages of rocketmq and blobs of ambry have ids"
    ):
        rawlog.read(KAFKA, id="x")
    with pytest.raises(OptionError, match="kafka has no ids"):
        rawlog.read(KAFKA, table="kafka.batches", id="x")


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two topics as tables: a lake, a Parquet file, lines of JSON."""
    folder, chosen = tmp_path_factory.mktemp("tables"), {"topic": ["codec-none", "codec-gzip"], "engine": "local"}
    rawlog.ingest(KAFKA, folder / "lake", **chosen)
    for name in ("parquet", "jsonl"):
        rawlog.convert(KAFKA, folder / f"rows.{name}", to=name, **chosen)
    return {"lake": folder / "lake", "parquet": folder / "rows.parquet", "jsonl": folder / "rows.jsonl"}


@pytest.mark.parametrize("kind", ["lake", "parquet", "jsonl"])
def test_names_in_tables_are_checked_too(kind: str, tables: dict[str, Path], tmp_path: Path) -> None:
    """A misspelt topic of a lake gave an empty result and a note."""
    given: dict[str, Any] = {"to": "jsonl", "engine": "local"}
    with pytest.raises(OptionError, match="unknown topic 'codec-nne'; did you mean codec-none"):
        rawlog.convert(tables[kind], tmp_path / "x", topic=["codec-gzip", "codec-nne"], **given)
    with pytest.raises(OptionError, match="unknown partition 9; known: 0 to 1$"):
        rawlog.convert(tables[kind], tmp_path / "x", topic="codec-none", partition=9, **given)
    assert not (tmp_path / "x").exists()
    notes: list[str] = []
    report = rawlog.convert(tables[kind], tmp_path / "none", topic="zz*", note=notes.append, **given)
    assert report.counts["rows"] == 0
    assert "--topic zz*: no topic matches" in notes
    wanted = rawlog.read(KAFKA, topic="codec-none").num_rows
    assert rawlog.convert(tables[kind], tmp_path / "some", topic="codec-none", **given).counts["rows"] == wanted


@pytest.mark.parametrize("kind", ["lake", "parquet", "logs"])
def test_a_replay_of_a_missing_topic_is_refused_before_a_broker_is_asked(kind: str, tables: dict[str, Path]) -> None:
    """It sent nothing and was content, also for a directory of logs."""
    with pytest.raises(OptionError, match="unknown topic 'codec-nne'; did you mean codec-none"):
        rawlog.replay({**tables, "logs": KAFKA}[kind], brokers="localhost:1", topic="codec-nne")


def test_a_restore_of_a_lake_checks_names(tables: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="unknown topic 'codec-nne'; did you mean codec-none"):
        rawlog.restore(tables["lake"], tmp_path / "out", topic="codec-nne")
