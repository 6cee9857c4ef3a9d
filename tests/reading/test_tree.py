"""Trees: what is found at some paths, recognised, in reading order."""

from __future__ import annotations

import os
import pickle
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import rawlog
from rawlog.io.output import refuse_nested
from rawlog.model.errors import AccessError, OptionError, UnknownFormatError
from rawlog.model.format import File, Place
from rawlog.reading.parts import Part
from rawlog.reading.tree import open_tree
from rawlog.testing.formats import plain
from tests.data.golden import GOLDEN, golden_path

FIND = golden_path("replay", "v2", "find.log")


def test_files_are_recognised_by_place_name_or_first_bytes(tmp_path: Path) -> None:
    shutil.copy(FIND, tmp_path / "any name at all")
    partition = tmp_path / "orders-7"
    partition.mkdir()
    (partition / f"{42:020}.log").write_bytes(b"")
    (partition / f"{42:020}.index").write_bytes(b"\0" * 8)
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "nothing").write_bytes(b"")
    tree = open_tree(tmp_path)
    assert {Path(file.path).name: file.format for file in tree} == {
        "any name at all": "replay.recording",
        f"{42:020}.log": "kafka.log",
        f"{42:020}.index": "kafka.index",
        "notes.txt": None,
        "nothing": None,
    }
    segment = next(file for file in tree if file.format == "kafka.log")
    assert (segment.place.topic, segment.place.partition, segment.place.start_offset) == ("orders", 7, 42)
    assert [Path(file.path).suffix for file in tree.group_of(segment)] == [".index", ".log"]
    assert tree.group_of(next(file for file in tree if file.system == "replay"))[0].size == 102


def test_a_recording_called_log_is_no_segment_and_a_segment_of_any_name_is_one(tmp_path: Path) -> None:
    shutil.copy(FIND, tmp_path / "messages.log")
    source = next((GOLDEN / "kafka" / "broker-4.3.0" / "data" / "codec-mixed-0").glob("*.log"))
    shutil.copy(source, tmp_path / "mystery.bin")
    assert {Path(file.path).name: file.format for file in open_tree(tmp_path)} == {
        "messages.log": "replay.recording",
        "mystery.bin": "kafka.log",
    }


def test_reading_order_is_by_topic_partition_and_offset(tmp_path: Path) -> None:
    for name in ("b-0", "a-10", "a-2"):
        (tmp_path / name).mkdir()
        for start in (1000, 0):
            (tmp_path / name / f"{start:020}.log").write_bytes(b"")
    found = [(file.place.topic, file.place.partition, file.place.start_offset) for file in open_tree(tmp_path)]
    assert found == [("a", 2, 0), ("a", 2, 1000), ("a", 10, 0), ("a", 10, 1000), ("b", 0, 0), ("b", 0, 1000)]


def test_several_paths_make_one_tree_and_a_file_counts_once(tmp_path: Path) -> None:
    shutil.copy(FIND, tmp_path / "x.log")
    tree = open_tree([tmp_path, tmp_path / "x.log", str(tmp_path / "*.log")])
    assert len(tree) == 1
    assert tree.roots == (str(tmp_path), str(tmp_path / "x.log"), str(tmp_path / "*.log"))


def test_a_directory_that_is_named_twice_is_read_once_however_it_is_spelled(tmp_path: Path) -> None:
    """By another spelling every recording was read twice, and `verify` found each partition "also in" the same directory."""
    (tmp_path / "wide" / "logs").mkdir(parents=True)
    shutil.copy(FIND, tmp_path / "wide" / "logs" / "a.log")
    (tmp_path / "link").symlink_to(tmp_path / "wide")
    rows = rawlog.count(tmp_path / "wide")
    wide, logs = os.path.relpath(tmp_path / "wide"), tmp_path / "wide" / "logs"
    for paths in ([wide, tmp_path / "wide"], [logs, wide], [wide, logs / "a.log"], [tmp_path / "link", wide, logs]):
        assert len(open_tree(paths)) == 1
        assert rawlog.count(paths) == rows


def test_a_format_can_be_forced(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"")
    assert [file.format for file in open_tree(tmp_path, format="replay.recording")] == ["replay.recording"]
    assert [file.format for file in open_tree(tmp_path, format="replay")] == ["replay.recording"]
    with pytest.raises(UnknownFormatError, match=r"did you mean replay\.recording"):
        open_tree(tmp_path, format="replay.recordin")


def test_tables_are_those_that_something_here_has(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    assert open_tree(tmp_path).tables == ("files", "findings")
    shutil.copy(FIND, tmp_path / "x.log")
    assert open_tree(tmp_path).tables == ("records", "files", "findings", "replay.entries")
    with pytest.raises(UnknownFormatError, match="nothing here can be read as kafka.batches; this can: records"):
        rawlog.read(tmp_path, table="kafka.batches")


def test_an_empty_directory_is_an_empty_tree(tmp_path: Path) -> None:
    tree = rawlog.open(tmp_path)
    assert (len(tree), tree.tables) == (0, ("files", "findings"))
    assert tree.table("files").to_arrow().num_rows == 0
    assert rawlog.verify(tmp_path).verdict == "unknown"
    with pytest.raises(UnknownFormatError, match="nothing here"):
        rawlog.read(tmp_path)


def test_a_missing_path_is_an_access_error_even_among_others(tmp_path: Path) -> None:
    shutil.copy(FIND, tmp_path / "x.log")
    with pytest.raises(AccessError, match=r"gone\.log: no such file"):
        rawlog.open([tmp_path / "x.log", tmp_path / "gone.log"])


@pytest.fixture
def troubled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree with everything in it that cannot be read, and one file that can."""
    shutil.copy(FIND, tmp_path / "good.log")
    shutil.copy(FIND, tmp_path / "closed.log")
    (tmp_path / "dangling.log").symlink_to(tmp_path / "nowhere")
    (tmp_path / "orders-0").mkdir()
    (tmp_path / "orders-0" / f"{0:020}.log").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    real_access, real_open = os.access, os.open

    def refused(path: Any) -> bool:
        return str(path).endswith("closed.log")

    def access(path: Any, mode: int, **how: Any) -> bool:
        return not refused(path) and real_access(path, mode, **how)

    def open_file(path: Any, flags: int, *more: Any, **how: Any) -> int:
        if refused(path):
            raise PermissionError(13, "Permission denied", str(path))
        return real_open(path, flags, *more, **how)

    monkeypatch.setattr(os, "access", access)
    monkeypatch.setattr(os, "open", open_file)
    return tmp_path


def test_what_cannot_be_read_is_listed_with_its_problem(troubled: Path) -> None:
    files = {Path(file.path).name: (file.format, file.problem) for file in open_tree(troubled)}
    assert files == {
        "good.log": ("replay.recording", None),
        "closed.log": (None, "permission denied"),
        "dangling.log": (None, "dangling symbolic link"),
        f"{0:020}.log": ("kafka.log", "dangling symbolic link"),
        "pipe": (None, "is a named pipe, not a regular file"),
    }


def test_verify_finds_what_cannot_be_read(troubled: Path) -> None:
    findings = rawlog.verify(troubled)
    assert findings.verdict == "damaged"
    unreadable = {Path(str(f.path)).name: f.message for f in findings if f.code == "rawlog.file.unreadable"}
    assert unreadable == {
        "closed.log": "permission denied",
        "dangling.log": "dangling symbolic link",
        f"{0:020}.log": "dangling symbolic link",
        "pipe": "is a named pipe, not a regular file",
    }


def test_the_files_table_shows_them_all(troubled: Path) -> None:
    rows = {Path(row["path"]).name: row["state"] for row in plain(rawlog.read(troubled, table="files"))}
    assert rows == {
        "good.log": "ok", "closed.log": "unknown", "dangling.log": "unknown", f"{0:020}.log": "damaged", "pipe": "unknown",
    }  # fmt: skip


def test_reading_rows_of_an_unreadable_file_says_so(troubled: Path) -> None:
    assert rawlog.read(troubled / "good.log").num_rows == 2
    with pytest.raises(AccessError, match=r"0\.log: dangling symbolic link"):
        rawlog.read(troubled)
    with pytest.raises(AccessError, match="permission denied"):
        rawlog.read(troubled / "closed.log", format="replay")


def test_a_file_that_vanishes_is_an_access_error_or_a_finding(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    shutil.copy(FIND, path)
    log = rawlog.open(path)
    path.unlink()
    with pytest.raises(AccessError, match="No such file"):
        log.table("records").to_arrow()
    from rawlog.reading.inspect import inspect_file

    [finding] = inspect_file(log.files[0])
    assert finding.code == "rawlog.file.unreadable"
    [row] = plain(log.table("files").to_arrow())
    assert row["state"] == "damaged"


def test_a_file_that_grows_or_shrinks_while_it_is_read_is_no_crash(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    shutil.copy(FIND, path)
    log = rawlog.open(path)
    path.write_bytes(FIND.read_bytes()[:-10])
    assert log.table("records").to_arrow().num_rows == 1
    path.write_bytes(FIND.read_bytes() + FIND.read_bytes()[20:])
    assert log.table("records").to_arrow().num_rows == 4


def test_directories_that_are_symbolic_links_are_read_and_guarded(tmp_path: Path) -> None:
    """A commit log on another disk, linked into its store, was left out in silence: `verify` said clean, `rebuild` wrote a store without
    messages, and `rebuild store linked-directory --force` deleted the commit log.
    """
    disk, store = tmp_path / "disk", tmp_path / "store"
    shutil.copytree(golden_path("rocketmq", "5.1.4", "store"), store)
    (store / "commitlog").rename(disk)
    (store / "commitlog").symlink_to(disk)
    (store / "index" / "again").symlink_to(store / "index")
    (store / "up").symlink_to(tmp_path)
    tree = open_tree(store)
    names = [os.path.relpath(file.path, store) for file in tree]
    assert any(name.startswith("commitlog/") for name in names)
    assert not any("again" in name or name.startswith("up") for name in names)
    assert len(names) == len(set(names))
    with pytest.raises(OptionError, match="same or lie inside"):
        refuse_nested(disk, tree.sources)
    refuse_nested(tmp_path / "new", tree.sources)


@pytest.mark.parametrize("kind", [Place, File, Part])
def test_what_splits_carry_has_all_its_fields_on_the_other_side(kind: type[Any]) -> None:
    made = kind(*range(len(fields(kind))))
    assert pickle.loads(pickle.dumps(made)) == made


LOGS = ("kafka.log", "ambry.log")


@pytest.mark.parametrize("system", ["kafka/segments-by-size-0", "ambry/9"])
def test_a_copy_of_a_log_next_to_it_is_no_part_of_the_store(system: str, tmp_path: Path) -> None:
    """`….log.bak` was known by its first bytes: `count`, `convert` and `ingest` gave its rows a second time, and nobody said so."""
    source = Path(__file__).parents[2] / "samples" / system
    folder = tmp_path / source.name
    shutil.copytree(source, folder)
    rows, log = rawlog.count(folder), next(file for file in open_tree(folder) if file.format in LOGS)
    unknown = [file.path for file in open_tree(folder) if file.format is None]
    copy = shutil.copy(log.path, f"{log.path}.bak")
    assert rawlog.count(folder) == rows
    assert sorted(file.path for file in open_tree(folder) if file.format is None) == sorted([*unknown, copy])
    assert open_tree(copy).files[0].format == log.format, "named alone, it is what it looks like"


def test_a_recording_next_to_a_log_of_another_system_is_read(tmp_path: Path) -> None:
    """A file of Ambry in the directory of a recording made it a file of no known format, whose entries nobody counted."""
    samples = Path(__file__).parents[1] / "golden"
    shutil.copy(samples / "replay" / "v2" / "basic.log", tmp_path / "basic.log")
    alone = rawlog.count(tmp_path)
    shutil.copy(samples / "ambry" / "store-small" / "0_0_log", tmp_path / "0_0_log")
    assert rawlog.count(tmp_path) == alone + rawlog.count(tmp_path / "0_0_log")
