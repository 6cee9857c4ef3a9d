"""One lake of all golden directories of five systems: what real systems said of them, and nothing else, is in it."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars
import pytest

import rawlog
from rawlog.lakes.lake import Lake
from tests.data import duck
from tests.data import rocketmq_stores as rocketmq
from tests.data.ambry_stores import expected as ambry_expected
from tests.data.golden import GOLDEN, kafka_brokers, kafka_cases
from tests.data.recordings import ingest, stored

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
AMBRY = ("store-small", "store-ops", "store-compacted", "store-crashed")
SOURCES = [
    *(GOLDEN / "kafka" / broker / "data" for broker in kafka_brokers()),
    *(GOLDEN / "replay" / version for version in ("v0", "v1", "v2")),
    *(GOLDEN / "ambry" / name for name in AMBRY),
]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("golden") / "lake"
    ingest(path, *sources())
    return path


def sources() -> list[Path]:
    return [*SOURCES, *(rocketmq.store(name) for name in rocketmq.ALL)]


def files_of(lake: Path, name: str) -> list[str]:
    """The data files of a table as PyIceberg alone finds them."""
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("rawlog", type="sql", uri=f"sqlite:///{lake}/catalog.db")
    return [task.file.file_path.removeprefix("file://") for task in catalog.load_table(name).scan().plan_files()]


def rows_of(lake: Path, name: str) -> list[dict[str, Any]]:
    """The rows of a table with their payload."""
    return stored(lake, name)


def milliseconds(moment: datetime | None) -> int | None:
    return None if moment is None else (moment - EPOCH) // timedelta(milliseconds=1)


def test_kafka_records_are_those_of_real_consumers(lake: Path) -> None:
    by_folder: dict[str, list[dict[str, Any]]] = {}
    for row in rows_of(lake, "kafka.records"):
        if not row["is_control"]:
            by_folder.setdefault(row["path"].rpartition("/")[0], []).append(row)
    for case in kafka_cases():
        rows = sorted(by_folder.get(str(case.path), []), key=lambda row: row["offset"])
        found = [
            (
                row["offset"],
                milliseconds(row["timestamp"]),
                row["key"],
                row["value"],
                [(header["key"], header["value"]) for header in row["headers"]],
            )
            for row in rows
            if row["offset"] >= case.log_start
        ]
        assert found == [(one.offset, one.timestamp, one.key, one.value, one.headers) for one in case.records], str(
            case
        )


def test_blobs_and_messages_are_as_the_stores_say(lake: Path) -> None:
    messages = Counter(row["path"].rpartition("/")[0] for row in rows_of(lake, "ambry.messages"))
    for name in AMBRY:
        assert messages[str(GOLDEN / "ambry" / name)] == len(ambry_expected(name)["messages"]), name
    held = Counter(row["path"].partition("/store/")[0] for row in rows_of(lake, "rocketmq.messages"))
    for name in rocketmq.BROKERS:
        reported = len(rocketmq.expected(name, "messages"))
        assert held[str(rocketmq.store(name).parent)] == reported, name


def test_recordings_have_as_many_entries_as_the_tool_counted(lake: Path) -> None:
    entries = Counter(row["path"] for row in rows_of(lake, "replay.entries"))
    for line in json.loads((GOLDEN / "replay" / "manifest.json").read_text()):
        if line["file"].startswith(("v0/", "v1/", "v2/")):
            assert entries[str(GOLDEN / "replay" / line["file"])] == line["cat"]["lines"], line["file"]


def test_every_table_is_what_the_files_read_as(lake: Path) -> None:
    tree = rawlog.open([str(path) for path in sources()])
    names = [name for name in Lake(str(lake)).tables() if name not in ("rawlog.jobs", "rawlog.findings")]
    assert {name.removeprefix("rawlog.") for name in names} == set(tree.tables) - {"findings"}
    for name in names:
        raw = tree.table(name.removeprefix("rawlog."), errors="skip").to_arrow()
        found = duck.ask(f"SELECT count(*) FROM read_parquet({files})")[0][0] if (files := files_of(lake, name)) else 0
        assert found == raw.num_rows, name
        if raw.num_rows < 20_000:
            assert sorted(map(repr, rows_of(lake, name))) == sorted(map(repr, raw.to_pylist())), name
    assert polars.read_parquet(files_of(lake, "kafka.batches")).height == tree.table("kafka.batches").count()
