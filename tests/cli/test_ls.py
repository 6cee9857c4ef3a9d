"""`rawlog ls`: ranges, plurals, and directories with very many files."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import rawlog
from rawlog.cli.printers import listing as ls
from rawlog.model.format import File
from tests.data.golden import golden_path
from tests.data.replicas import base_log, broker, copy

SEGMENTS = golden_path("kafka", "broker-4.3.0", "data", "segments-by-size-0")


def test_start_and_end_offset_are_those_of_kafka(run: Any) -> None:
    """The text had the last offset and JSON the end offset, which is the number that Kafka's own tools print."""
    rows = [row for row in run("ls", SEGMENTS, "--json").rows if row["format"] == "kafka.log"]
    stop = max(row["end_offset"] for row in rows)
    _, heads, line, _ = run("ls", SEGMENTS).text.splitlines()
    cells = dict(zip(["name", *heads.split()], line.replace(" kB", "").split(), strict=False))
    assert (cells["start"], cells["end"]) == ("0", f"{stop:,}")


def test_one_line_per_partition_and_every_file_on_request(run: Any) -> None:
    lines = run("ls", SEGMENTS).text.splitlines()
    assert len(lines) == 4  # the system, the headings, the partition, the sum
    assert lines[2].split()[0] == "segments-by-size-0"
    assert len(run("ls", SEGMENTS, "--files").text.splitlines()) == 4 + len(list(SEGMENTS.iterdir()))


def test_damaged_files_are_named_and_chosen_by_state(tmp_path: Path, run: Any) -> None:
    folder = tmp_path / SEGMENTS.name
    shutil.copytree(SEGMENTS, folder)
    logs = sorted(folder.glob("*.log"))
    data = bytearray(logs[1].read_bytes())
    data[80] ^= 1
    logs[1].write_bytes(data)
    text = run("ls", tmp_path).text
    assert f"    {logs[1].name}" in text
    assert logs[0].name not in text
    assert next(line for line in text.splitlines() if "segments-by-size-0" in line).endswith("damaged")
    assert [row["path"] for row in run("ls", tmp_path, "--state", "damaged", "--json").rows] == [str(logs[1])]
    assert run("ls", tmp_path, "--state", "broken").code == 2
    assert [row["state"] for row in rawlog.ls(tmp_path, state="damaged")] == ["damaged"]


def test_a_narrow_terminal_has_shorter_lines(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ls.output, "is_terminal", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "70")
    assert max(map(len, run("ls", SEGMENTS).text.splitlines())) <= 70


def test_one_file_is_one_file(run: Any, log: Path) -> None:
    assert "1 file, " in run("ls", log).text


@pytest.mark.parametrize("name", ["{:020d}.index", "{:020d}.log", "x{}.bin"])
def test_many_empty_files_take_no_work_per_pair_and_no_table_per_file(
    name: str, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100,000 empty files took minutes: an Arrow table for each, and each index compared with all others."""
    folder = tmp_path / "topic-0"
    folder.mkdir()
    for number in range(2500):
        (folder / name.format(number)).touch()
    batches = []
    plain = ls._plain
    monkeypatch.setattr(ls, "_plain", lambda batch: batches.append(batch.num_rows) or plain(batch))
    monkeypatch.setattr(File, "__eq__", lambda *_: pytest.fail("files are compared with one another"))
    ran = run("ls", tmp_path)
    assert ran.code == (3 if name.endswith(".bin") else 0), ran.err
    assert batches == [1000, 1000, 500]
    assert ran.text.splitlines()[-1] == "2,500 files, 0 B, 0 records"


def test_replicas_are_marked_and_the_choice_is_printed_to_stderr(tmp_path: Path, run: Any) -> None:
    base = base_log(tmp_path / "base")
    for node, batches in ((1, 10), (2, 20)):
        copy(base, broker(tmp_path / "disks" / f"disk{node}", node), batches)
    disks = tmp_path / "disks"
    shown = run("ls", disks)
    best = f"{disks}/disk2/orders-0"
    worse, mark, chosen, chosen_mark = (
        line.strip() for line in shown.text.splitlines() if "orders" in line or "of 2 replicas" in line
    )
    assert worse.startswith(f"{disks}/disk1/orders-0 ")
    assert mark.startswith(f"1 of 2 replicas, the best is {best}")
    assert chosen.startswith(f"{best} ")
    assert chosen_mark.startswith("1 of 2 replicas, the best; leader epoch 0")
    assert f"orders-0 has 2 replicas: {best} is used" in run("ls", disks, "--json").err
    counted = run("count", disks)
    assert (counted.code, counted.text.strip()) == (0, "60")
    assert f"note: orders-0 has 2 replicas: {best} is used" in counted.err
    assert run("count", disks, "--replicas", "all").text.strip() == "90"
    refused = run("count", disks, "--replicas", "refuse")
    assert refused.code == 2
    assert f"{best}, {disks}/disk1/orders-0" in refused.err
    asked = run("query", "SELECT count(*) AS n FROM records", disks, "--engine", "duckdb", "--json")
    assert asked.rows == [{"n": 60}]
    assert "orders-0 has 2 replicas" in asked.err


def test_rocketmq_is_listed_by_topic_and_queue(run: Any) -> None:
    """A store was one line with 260 records, and each queue a line of a file size."""
    lines = run("ls", golden_path("rocketmq", "broker-5.3.3")).text.splitlines()
    heads = lines[3].split("  ")
    assert [head.strip() for head in heads if head.strip()] == [
        "topic", "queue", "messages", "min offset", "max offset", "first", "last", "lag"
    ]  # fmt: skip
    assert any(
        line.split()[:5] == ["gold_orders", "3", "38", "0", "38"] and line.endswith("3 gold_readers") for line in lines
    )
    topics = [line.split()[0] for line in lines[4:]]
    assert topics.index("gold_tx") < topics.index("SCHEDULE_TOPIC_XXXX")


def test_ambry_is_listed_by_partition_with_its_blobs(run: Any) -> None:
    lines = run("ls", golden_path("ambry", "store-ops")).text.splitlines()
    at = lines.index("ambry") + 1
    heads, line = lines[at], lines[at + 1]
    assert {"live", "deleted", "expired"} <= set(heads.split())
    states = [row["state"] for row in rawlog.rows(golden_path("ambry", "store-ops"), table="ambry.blobs")]
    for state in ("live", "deleted", "expired"):
        end = heads.index(state) + len(state)
        assert line[:end].split()[-1] == f"{states.count(state):,}"


def test_a_long_name_is_shortened_in_its_middle_on_a_terminal(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic of 236 characters made every line of `ls` and of `verify --complete` wrap."""
    name = "a" * 120 + "b" * 116
    shutil.copytree(SEGMENTS, tmp_path / f"{name}-0")
    assert f"{name}-0" in run("ls", tmp_path).text
    assert f"{name}-0" in run("verify", tmp_path, "--complete").text
    monkeypatch.setattr(ls.output, "is_terminal", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    for width in (80, 120, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        listed = run("ls", tmp_path).text
        assert max(map(len, listed.splitlines())) <= width
        accounts = [line for line in run("verify", tmp_path, "--complete").text.splitlines() if "…" in line]
        assert accounts
        assert max(map(len, accounts)) <= width
        for text in (listed, accounts[0]):
            assert "aa…" in text
            assert "bb-0" in text
