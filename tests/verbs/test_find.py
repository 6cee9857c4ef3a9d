"""`find`: a text, key or id in the records of any system."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import rawlog
from rawlog.cli import cli
from rawlog.model.errors import OptionError
from tests.data.golden import GOLDEN

KAFKA = GOLDEN / "kafka" / "broker-4.3.0" / "data"
ROCKETMQ = GOLDEN / "rocketmq" / "broker-5.3.3"


def write(folder: Path) -> Path:
    headers = [{"key": "trace-needle", "value": b"1"}, {"key": "x", "value": None}]
    rows = [
        {"key": b"a needle", "value": b"hay", "headers": []},
        {"key": None, "value": b"hay needle hay", "headers": headers},
        {"key": b"b", "value": None, "headers": [{"key": "h", "value": b"a needle"}]},
        {"key": b"c", "value": b"hay", "headers": []},
    ]
    rawlog.write(folder, rows, format="kafka", topic="t", partition=0)
    return folder


def test_the_text_is_found_in_key_value_and_headers(tmp_path: Path) -> None:
    folder = write(tmp_path / "log")
    found = {row["offset"]: row["found_in"] for row in rawlog.find("needle", folder)}
    assert found == {0: "key", 1: "value,headers", 2: "headers"}
    assert [row["offset"] for row in rawlog.find("needle", folder, within="headers")] == [1, 2]
    assert [row["offset"] for row in rawlog.find(b"needle", folder, limit=2)] == [0, 1]
    assert list(rawlog.find("nothing", folder)) == []


def test_columns_can_be_chosen(tmp_path: Path) -> None:
    rows = list(rawlog.find("needle", write(tmp_path / "log"), columns=["offset"], limit=1))
    assert rows == [{"found_in": "key", "offset": 0}]


@pytest.mark.parametrize("column", ["message_id", "unique_key"])
def test_messages_are_found_by_their_ids(column: str) -> None:
    messages = list(
        rawlog.rows(ROCKETMQ, table="rocketmq.messages", columns=[column, "topic", "queue_offset"], limit=40)
    )
    wanted = messages[2]
    found = list(rawlog.find(wanted[column], ROCKETMQ, within="id"))
    assert (wanted["topic"], wanted["queue_offset"]) in [(row["topic"], row["offset"]) for row in found]
    assert found[0]["found_in"] == "id"


def test_a_record_that_is_found_twice_is_shown_once() -> None:
    """An id that is also in the headers of its message is one hit."""
    message = next(iter(rawlog.rows(ROCKETMQ, table="rocketmq.messages", columns=["unique_key"], limit=1)))
    found = list(rawlog.find(message["unique_key"], ROCKETMQ))
    places = [(row["topic"], row["partition"], row["offset"]) for row in found]
    assert len(places) == len(set(places)) > 0


def test_blobs_are_found_by_their_ids() -> None:
    store = next(path for path in sorted((GOLDEN / "ambry").rglob("*_log")) if path.stat().st_size).parent
    blob = next(iter(rawlog.rows(store, table="ambry.messages", columns=["blob_id"])))["blob_id"]
    assert any("id" in row["found_in"] for row in rawlog.find(blob, store))


def test_wrong_usage_is_an_error() -> None:
    with pytest.raises(OptionError, match="did you mean headers"):
        rawlog.find("x", KAFKA, within="header")
    with pytest.raises(OptionError):
        rawlog.find("", KAFKA)


def test_the_command_line(tmp_path: Path) -> None:
    folder = write(tmp_path / "log")
    done = CliRunner().invoke(cli, ["find", "needle", str(folder), "--in", "key", "--in", "value", "--json"])
    assert done.exit_code == 0
    assert [json.loads(line)["found_in"] for line in done.stdout.splitlines()] == ["key", "value"]
    done = CliRunner().invoke(cli, ["find", "no such text", str(folder)])
    assert done.exit_code == 0
    assert "was not found" in done.stderr
