"""Sources that were compacted, truncated, replaced or created again since the last run: the lake has the rows of what is there now."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

import rawlog
from rawlog.lakes.ingest import Ingest
from rawlog.lakes.lake import Lake
from rawlog.lakes.state import history_of
from rawlog.model.errors import OptionError
from rawlog.model.report import Report
from tests.data.changing_logs import TOPIC, Changing, compacted, numbered, write
from tests.data.recordings import record, stored


def take(lake: Path, *paths: Path, **options: Any) -> Report:
    return rawlog.ingest(paths, lake, engine="local", **options)


def check(lake: Path, fresh: Path, *paths: Path) -> None:
    """The lake has the rows of a lake that is made of the files as they are now, row for row."""
    shutil.rmtree(fresh, ignore_errors=True)
    take(fresh, *paths)
    for name in Lake(str(fresh)).tables():
        if name != "rawlog.jobs":
            assert stored(lake, name) == stored(fresh, name), name
    report = take(lake, *paths)
    assert (report.counts["files"], report.counts["refused"]) == (0, 0), "nothing is left to do"


def values(lake: Path, table: str = "rawlog.records") -> list[bytes]:
    return [row["value"] for row in sorted(stored(lake, table), key=lambda row: row["offset"])]


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return tmp_path / "logs"


def test_a_log_that_was_truncated_and_grew_again(tmp_path: Path, lake: Path, logs: Path) -> None:
    """It was refused by every run from then on."""
    old = numbered(60)
    take(lake, write(logs, old))
    for kept, more in ((30, 3), (20, 60), (47, 30), (0, 9)):
        write(logs, [*old[:kept], *numbered(more, "other", kept)])
        report = take(lake, logs)
        assert report.counts["refused"] == 0
        check(lake, tmp_path / "fresh", logs)
        old = [*old[:kept], *numbered(more, "other", kept)]


def test_a_truncated_log_with_other_segments(tmp_path: Path, lake: Path, logs: Path) -> None:
    """Segments of the old log that the new one does not have are gone, and so are their rows."""
    take(lake, write(logs, numbered(90), segment=400))
    write(logs, [*numbered(40), *numbered(70, "other", 40)], segment=1500)
    take(lake, logs)
    check(lake, tmp_path / "fresh", logs)


def test_a_compacted_partition(tmp_path: Path, lake: Path, logs: Path) -> None:
    """Survivors of several segments are in one file: rows of the files that are gone stayed, or were there twice."""
    take(lake, write(logs, numbered(120)))
    before = values(lake)
    compacted(logs, tmp_path / "work")
    report = take(lake, logs)
    assert len(values(lake)) < len(before)
    assert any("rewritten since the last run: the rows were replaced" in note for note in report.notes)
    check(lake, tmp_path / "fresh", logs)


def test_segments_that_compaction_appends_to_another_one(tmp_path: Path, lake: Path, logs: Path) -> None:
    """Compaction that removes nothing from the first segment appends others to it. It looked like one that grew: rows were there twice."""
    take(lake, write(logs, numbered(90), segment=600, keys=1000))
    write(logs, numbered(90), segment=1 << 20, keys=1000)
    take(lake, logs)
    assert values(lake) == numbered(90)
    check(lake, tmp_path / "fresh", logs)


def test_a_topic_that_was_deleted_and_created_again(tmp_path: Path, lake: Path, logs: Path) -> None:
    take(lake, write(logs, numbered(90)))
    for count in (0, 5, 200):
        write(logs, numbered(count, "new"), id=f"id {count}")
        take(lake, logs)
        assert values(lake) == numbered(count, "new")
        check(lake, tmp_path / "fresh", logs)


def test_what_retention_deleted_and_what_a_disk_lost_stays(lake: Path, logs: Path) -> None:
    take(lake, write(logs, numbered(120)))
    first, second, third, *_ = sorted((logs / f"{TOPIC}-0").glob("*.log"))
    for log in (first, third):
        for one in log.parent.glob(f"{log.stem}.*"):
            one.unlink()
    second.touch()
    take(lake, logs)
    assert values(lake) == numbered(120)
    assert values(lake, "kafka.records") == numbered(120)


def test_the_old_snapshot_is_kept(lake: Path, logs: Path) -> None:
    take(lake, write(logs, numbered(60)))
    table: Any = Lake(str(lake)).load("rawlog.records")
    snapshot = table.current_snapshot().snapshot_id
    write(logs, numbered(30, "other"))
    take(lake, logs)
    table = Lake(str(lake)).load("rawlog.records")
    assert sorted(table.scan(snapshot_id=snapshot).to_arrow().column("value").to_pylist()) == sorted(numbered(60))


def test_other_sources_keep_their_rows(tmp_path: Path, lake: Path, logs: Path) -> None:
    """Rows of one data file come from several sources, with the same topic and offsets: only those of the rewritten one are replaced."""
    other = write(tmp_path / "another", numbered(50, "another"), id="another")
    record(tmp_path / "a.log", 10)
    paths = (write(logs, numbered(60)), other, tmp_path / "a.log")
    take(lake, *paths)
    write(logs, numbered(20, "new"))
    take(lake, *paths)
    check(lake, tmp_path / "fresh", *paths)
    record(tmp_path / "a.log", 7, first=100)
    take(lake, *paths)
    check(lake, tmp_path / "fresh", *paths)


def test_kept_rows_and_only_later_offsets(lake: Path, logs: Path) -> None:
    take(lake, write(logs, numbered(60)))
    write(logs, [*numbered(30), *numbered(45, "other", 30)])
    report = take(lake, logs, on_rewrite="keep")
    assert report.counts["refused"] == 0
    expected = [*numbered(60), *numbered(15, "other", 60)]
    assert values(lake) == values(lake, "kafka.records") == expected
    assert take(lake, logs, on_rewrite="keep").counts["files"] == 0
    compacted(logs, logs.parent / "work")
    take(lake, logs, on_rewrite="keep")
    assert values(lake) == expected


def test_kept_rows_of_a_topic_that_was_created_again(lake: Path, logs: Path) -> None:
    take(lake, write(logs, numbered(60)))
    write(logs, numbered(30, "new"), id="second")
    take(lake, logs, on_rewrite="keep")
    assert sorted(values(lake)) == sorted([*numbered(60), *numbered(30, "new")])
    assert sorted(values(lake, "kafka.records")) == sorted(values(lake))
    assert take(lake, logs, on_rewrite="keep").counts["files"] == 0


def test_a_topic_that_was_created_again_and_moved(tmp_path: Path, lake: Path, logs: Path) -> None:
    """The old directory was gone, so nothing contradicted that the new one was its replica: only its later offsets were taken."""
    take(lake, write(logs, numbered(60)))
    shutil.rmtree(logs)
    other = write(tmp_path / "other", numbered(30, "new"), id="second")
    take(lake, other)
    assert sorted(values(lake)) == sorted([*numbered(60), *numbered(30, "new")])


def test_a_partition_that_was_moved(tmp_path: Path, lake: Path, logs: Path) -> None:
    take(lake, write(logs, numbered(60)))
    shutil.rmtree(logs)
    take(lake, write(tmp_path / "other", numbered(75)))
    assert values(lake) == values(lake, "kafka.records") == numbered(75)


def test_refused_on_request(lake: Path, logs: Path) -> None:
    take(lake, write(logs, numbered(60)))
    write(logs, numbered(30, "other"))
    report = take(lake, logs, on_rewrite="refuse")
    assert report.counts["refused"]
    assert values(lake) == numbered(60)
    with pytest.raises(OptionError, match="policy"):
        take(lake, logs, on_rewrite="other")


def test_rows_are_not_replaced_by_those_of_a_damaged_file(lake: Path, logs: Path) -> None:
    take(lake, write(logs, numbered(60), segment=1 << 20))
    write(logs, numbered(80, "other"), segment=1 << 20)
    [log] = (logs / f"{TOPIC}-0").glob("*.log")
    data = bytearray(log.read_bytes())
    data[100] ^= 0xFF
    log.write_bytes(data)
    report = take(lake, logs)
    assert any("is damaged now" in one.reason for one in report.entries)
    assert values(lake) == numbered(60)


def test_a_narrower_selection_does_not_remove_rows(lake: Path, logs: Path) -> None:
    take(lake, write(logs, numbered(60)))
    write(logs, numbered(30, "other"))
    report = take(lake, logs, since="2001-01-01")
    assert any("with another selection" in one.reason for one in report.entries)
    assert values(lake) == numbered(60)
    take(lake, logs)
    assert values(lake) == numbered(30, "other")


def test_a_partitioned_table(tmp_path: Path, lake: Path, logs: Path) -> None:
    take(lake, write(logs, numbered(60)), partition_by="topic,day")
    write(logs, [*numbered(30), *numbered(15, "other", 30)])
    take(lake, logs)
    check(lake, tmp_path / "fresh", logs)


@pytest.mark.parametrize("name", ["linked", "relative/../logs", "relative"])
def test_the_same_directory_by_another_name(tmp_path: Path, lake: Path, logs: Path, name: str) -> None:
    """Through a symbolic link it was taken for a replica: rewritten files were not noticed."""
    (tmp_path / "linked").symlink_to(logs)
    (tmp_path / "relative").mkdir()
    (tmp_path / "relative" / f"{TOPIC}-0").symlink_to(logs / f"{TOPIC}-0")
    take(lake, write(logs, numbered(60)))
    assert take(lake, tmp_path / name / f"{TOPIC}-0").counts["files"] == 0
    write(logs, [*numbered(30), *numbered(45, "other", 30)])
    take(lake, tmp_path / name / f"{TOPIC}-0")
    assert values(lake) == [*numbered(30), *numbered(45, "other", 30)]
    take(lake, logs)
    check(lake, tmp_path / "fresh", logs)


def test_after_snapshots_expired_and_files_were_joined(tmp_path: Path, lake: Path, logs: Path) -> None:
    old = numbered(60)
    for count in (12, 24, 36, 48, 60):
        take(lake, write(logs, old[:count], segment=1 << 20))
    rawlog.lake(lake, compact=True, expire_snapshots=True, remove_orphans=True, older_than=0)
    write(logs, [*old[:30], *numbered(15, "other", 30)], segment=1 << 20)
    take(lake, logs)
    check(lake, tmp_path / "fresh", logs)


class Stopped(Exception):
    """A run that dies before a commit."""


@pytest.mark.parametrize("commits", range(0, 10, 2))
def test_a_run_that_died_between_two_commits(
    tmp_path: Path, lake: Path, logs: Path, commits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of kafka.records that refer to payloads which records has no more find them in the older snapshot, until the next run."""
    take(lake, write(logs, numbered(60)))
    write(logs, [*numbered(20), *numbered(15, "other", 20)], segment=500)
    left = [commits]
    commit = Lake.commit

    def dying(self: Lake, *given: Any, **more: Any) -> bool:
        if not left[0]:
            raise Stopped
        left[0] -= 1
        return commit(self, *given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Lake, "commit", dying)
        with pytest.raises(Stopped):
            take(lake, logs)
    for name in Lake(str(lake)).tables():
        stored(lake, name)
    assert values(lake, "kafka.records") in (numbered(60), [*numbered(20), *numbered(15, "other", 20)])
    take(lake, logs)
    check(lake, tmp_path / "fresh", logs)


def test_random_changes(tmp_path: Path, lake: Path, logs: Path) -> None:
    changing = Changing(logs, tmp_path / "work", TOPIC, random.Random(3))
    for _ in range(12):
        changing.change()
        take(lake, logs)
    check(lake, tmp_path / "fresh", logs)


def test_which_rows_came_from_a_source_is_recorded(lake: Path, logs: Path) -> None:
    take(lake, write(logs, numbered(60)))
    history = history_of(Lake(str(lake)).load("rawlog.records"))
    logs_of_it = {path for path in history.sources if path.endswith(".log")}
    assert set(history.rows) == logs_of_it
    assert sum(stop - first for ranges in history.rows.values() for _, first, stop in ranges) == 60


def test_an_option_of_the_job_is_checked(lake: Path) -> None:
    with pytest.raises(OptionError, match="replace"):
        Ingest(str(lake), on_rewrite="replac")
