"""A reader sees what a broker would load: its start-up rules, on directories caught in the middle of a compaction."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import rawlog
from tests.data.golden import golden_path

SOURCE = golden_path("kafka", "broker-4.3.0", "data", "segments-by-size-0")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    target = tmp_path / "segments-by-size-0"
    shutil.copytree(SOURCE, target)
    return target


def offsets(folder: Path) -> list[int]:
    return rawlog.read(folder, columns=["offset"])["offset"].to_pylist()


def rename(folder: Path, base: str, suffix: str) -> None:
    for path in list(folder.glob(f"{base}.*")):
        if path.suffix != ".snapshot":
            path.rename(path.with_name(path.name + suffix))


def bases(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.log"))


def test_deleted_segments_are_gone(folder: Path) -> None:
    first, second = bases(folder)[:2]
    rename(folder, first, ".deleted")
    assert min(offsets(folder)) == int(second)
    assert rawlog.read(folder / f"{first}.log.deleted", columns=["offset"]).num_rows == int(second), "asked for by name"


def test_cleaned_files_are_ignored(folder: Path) -> None:
    whole = offsets(folder)
    first = bases(folder)[0]
    shutil.copy(folder / f"{first}.log", folder / f"{first}.log.cleaned")
    assert offsets(folder) == whole


def test_a_finished_compaction_replaces_what_it_was_made_of(folder: Path) -> None:
    whole = offsets(folder)
    first, second, third = bases(folder)[:3]
    merged = (folder / f"{first}.log").read_bytes() + (folder / f"{second}.log").read_bytes()
    (folder / f"{first}.log.swap").write_bytes(merged)
    log = rawlog.open(folder)
    assert log.table(columns=["offset"]).to_arrow()["offset"].to_pylist() == whole, "nothing twice"
    states = {Path(file.path).name: file.place.state for file in log if file.path.endswith((".log", ".swap"))}
    assert states[f"{first}.log.swap"] is None
    assert states[f"{first}.log"] == states[f"{second}.log"] == "replaced"
    assert states[f"{third}.log"] is None


def test_a_swap_that_came_as_far_as_the_logs_is_finished(folder: Path) -> None:
    """The log has its name; its index is still on the way, and replaces one of before that has the name."""
    first, second = bases(folder)[:2]
    (folder / f"{first}.index").rename(folder / f"{first}.index.swap")
    shutil.copy(folder / f"{second}.index", folder / f"{second}.index.swap")
    states = {Path(file.path).name: file.place.state for file in rawlog.open(folder)}
    assert states[f"{first}.index.swap"] is states[f"{second}.index.swap"] is None
    assert states[f"{second}.index"] == "replaced"
    assert states[f"{first}.log"] is states[f"{second}.log"] is None


def test_an_interrupted_split_is_undone(folder: Path) -> None:
    whole = offsets(folder)
    first = bases(folder)[0]
    shutil.copy(folder / f"{first}.log", folder / f"{first}.log.swap")
    shutil.copy(folder / f"{first}.log", folder / f"{first}.log.cleaned")
    assert offsets(folder) == whole


@pytest.mark.parametrize("suffix", ["-delete", "-stray", "-future"])
def test_directories_on_their_way_are_not_read(suffix: str, folder: Path) -> None:
    folder.rename(folder.parent / f"segments-by-size-0.{'ab' * 16}{suffix}")
    log = rawlog.open(folder.parent)
    assert {file.place.topic for file in log if file.format == "kafka.log"} == {"segments-by-size"}
    assert log.table().count() == 0
