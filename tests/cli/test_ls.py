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


def test_offsets_are_inclusive_in_text_and_half_open_in_json(run: Any) -> None:
    rows = [row for row in run("ls", SEGMENTS, "--json").rows if row["format"] == "kafka.log"]
    stop = max(row["end_offset"] for row in rows)
    assert f"  0 to {stop - 1:,}  " in run("ls", SEGMENTS).text


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
    assert f"{best}: 1 of 2 replicas, the best; leader epoch 0" in shown.text
    assert f"{disks}/disk1/orders-0: 1 of 2 replicas, the best is {best}" in shown.text
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
