"""`rawlog ls`: ranges, plurals, and directories with very many files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rawlog.cli.commands import ls
from rawlog.core.format import File
from tests.golden_data import golden_path

SEGMENTS = golden_path("kafka", "broker-4.3.0", "data", "segments-by-size-0")


def test_offsets_are_inclusive_in_text_and_half_open_in_json(run: Any) -> None:
    rows = [row for row in run("ls", SEGMENTS, "--json").rows if row["format"] == "kafka.log"]
    stop = max(row["end_offset"] for row in rows)
    assert f"offsets 0 to {stop - 1:,}," in run("ls", SEGMENTS).text


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
    assert ran.code == 0, ran.err
    assert batches == [1000, 1000, 500]
    assert ran.text.splitlines()[-1] == "2,500 files, 0 B, 0 records"
