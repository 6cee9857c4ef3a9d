"""`repair`, `rebuild` and `compact` as a job: the same on any engine, a unit at a time, all of it or nothing."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

import rawlog
from rawlog.engines import choice
from rawlog.model.errors import AccessError, CorruptError, OptionError
from rawlog.model.job import Stage
from rawlog.reading.tree import open_tree
from rawlog.verbs.repair import RewriteJob, named_paths
from tests.data.ambry_stores import store_path
from tests.data.golden import golden_path
from tests.data.rocketmq_stores import store as rocketmq_store

KAFKA = golden_path("kafka", "broker-4.3.0", "data")
NOW = {"now": "1893456000000"}
SMALL = {"commitlog_size": "1048576", "queue_size": "2000", "index_slots": "100", "index_entries": "400"}


def log_directory(folder: Path) -> Path:
    """A few partitions of a real broker, with what their directory says of them."""
    folder.mkdir()
    for name in ("transactions-0", "codec-lz4-0", "segments-by-size-0"):
        shutil.copytree(KAFKA / name, folder / name)
    for one in KAFKA.iterdir():
        if one.is_file():
            shutil.copy2(one, folder)
    return folder


def wounded(folder: Path) -> Path:
    """The same with a batch damaged."""
    path = min((log_directory(folder) / "codec-lz4-0").glob("*.log"))
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    return folder


def content(folder: Path) -> dict[str, bytes | None]:
    """Every file and directory, by its name."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def rewrite(verb: str, source: Path, target: Path, options: dict[str, str] | None = None, **more: Any) -> Any:
    spark, tree = more.pop("spark", None), open_tree(str(source))
    with RewriteJob(verb, str(target), options, **more) as job:
        if spark is None:
            return choice.run(job, tree, threads=2)
        from rawlog.engines.spark import engine as on_spark

        return on_spark.run(job, tree, spark)


CASES = [
    ("rebuild", "kafka", {}),
    ("compact", "kafka", {"roll": "true", "first_dirty": "0", "memory": "4096", **NOW}),
    ("repair", "kafka", {}),
    ("rebuild", "rocketmq", SMALL),
    ("rebuild", "ambry", {}),
    ("compact", "ambry", {"segments": "0_0", **NOW}),
]


@pytest.mark.parametrize(("verb", "system", "options"), CASES)
def test_spark_leaves_the_same_bytes_and_the_same_report(
    verb: str, system: str, options: dict[str, str], spark: Any, tmp_path: Path
) -> None:
    if system == "kafka":
        source = (wounded if verb == "repair" else log_directory)(tmp_path / "source")
    else:
        source = rocketmq_store("5.1.4") if system == "rocketmq" else store_path("store-ops")
    before = content(source)
    accounts = {}
    for name, session in (("local", None), ("spark", spark)):
        reported = dict(options)
        if verb == "repair":
            reported["quarantine"] = str(tmp_path / name / "aside")
        accounts[name] = rewrite(verb, source, tmp_path / name / "out", reported, spark=session, at_once=2).as_json()
        assert sorted(os.listdir(tmp_path / name)) == [*(["aside"] if verb == "repair" else []), "out"]
    here, there = content(tmp_path / "local"), content(tmp_path / "spark")
    assert here == there
    assert any(data for data in here.values())
    assert str(accounts["local"]).replace(str(tmp_path / "local"), str(tmp_path / "spark")) == str(accounts["spark"])
    assert content(source) == before
    assert rawlog.verify(tmp_path / "spark" / "out").errors == 0


def test_damage_found_by_a_task_on_spark_is_told_as_here(spark: Any, tmp_path: Path) -> None:
    source = wounded(tmp_path / "source")
    reported = []
    for session in (None, spark):
        with pytest.raises(CorruptError) as caught:
            rewrite("rebuild", source, tmp_path / "out", spark=session)
        reported.append(str(caught.value))
    assert reported[0] == reported[1]
    assert "codec-lz4-0" in reported[0]
    assert os.listdir(tmp_path) == ["source"]


def test_an_attempt_that_was_made_before_changes_nothing(tmp_path: Path) -> None:
    """Spark may try a task again, or run two of it at once: what the loser wrote is not in the result, and not in its way."""
    source = wounded(tmp_path / "source")
    options = {"quarantine": str(tmp_path / "b" / "aside")}
    rewrite("repair", source, tmp_path / "a" / "out", {"quarantine": str(tmp_path / "a" / "aside")})
    with RewriteJob("repair", str(tmp_path / "b" / "out"), options) as job:
        splits = job.plan(open_tree(str(source)))
        task = pickle.loads(pickle.dumps(job))
        assert job.stage is not None
        for attempt in ("first", "second"):
            done = [task.work(split, Stage(job.stage, f"{split.number}-{attempt}")) for split in splits]
        job.commit(done)
    assert content(tmp_path / "a") == content(tmp_path / "b")


def test_partitions_done_at_once_share_the_memory(tmp_path: Path) -> None:
    source, options = log_directory(tmp_path / "source"), {"memory": "4096", **NOW}
    for at_once, share in ((1, 1), (2, 2), (64, 3)):
        with RewriteJob("compact", str(tmp_path / "out"), options, at_once=at_once) as job:
            splits = job.plan(open_tree(str(source)))
        assert {split.content.options["at_once"] for split in splits} == {str(share)}
        assert {split.content.options["now"] for split in splits} == {NOW["now"]}
    assert os.listdir(tmp_path) == ["source"]


@pytest.mark.parametrize("system", ["rocketmq", "ambry"])
def test_several_stores_are_done_one_by_one(system: str, tmp_path: Path) -> None:
    """They were taken for one store, whose files of the same name overwrote one another (RocketMQ), or refused (Ambry)."""
    stores = {
        "rocketmq": {"disk-1/store": rocketmq_store("4.9.8"), "disk-2/store": rocketmq_store("5.1.4")},
        "ambry": {"disk-1/9": store_path("store-small"), "disk-2/42": store_path("store-ops")},
    }[system]
    options = SMALL if system == "rocketmq" else {}
    for name, path in stores.items():
        shutil.copytree(path, tmp_path / "source" / name)
    account = rewrite("rebuild", tmp_path / "source", tmp_path / "out", options)
    assert list(account.parts) == list(stores)
    for name, path in stores.items():
        rewrite("rebuild", path, tmp_path / "alone" / name, options)
        assert content(tmp_path / "alone" / name) == content(tmp_path / "out" / name)


def test_a_commit_log_on_several_disks_is_one_store(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(rocketmq_store("5.1.4"), source / "disk-1")
    logs = sorted((source / "disk-1" / "commitlog").iterdir())
    assert len(logs) > 1, "one store that has several files"
    (source / "disk-2" / "commitlog").mkdir(parents=True)
    logs[-1].rename(source / "disk-2" / "commitlog" / logs[-1].name)
    rewrite("rebuild", rocketmq_store("5.1.4"), tmp_path / "whole", SMALL)
    rewrite("rebuild", source, tmp_path / "out", SMALL)
    assert content(tmp_path / "out") == content(tmp_path / "whole")


@pytest.mark.parametrize("place", ["", "out", ".."])
def test_the_source_is_never_the_target(place: str, tmp_path: Path) -> None:
    source = log_directory(tmp_path / "logs")
    before = content(tmp_path)
    with pytest.raises(OptionError, match="lie inside one another"):
        rewrite("rebuild", source, (source / place).resolve(), overwrite=True)
    with pytest.raises(OptionError, match="lie inside one another"):
        rewrite("repair", source, tmp_path / "out", {"quarantine": str(source / "aside")})
    assert content(tmp_path) == before


def test_what_is_put_aside_is_not_put_over_something(tmp_path: Path) -> None:
    source, aside = wounded(tmp_path / "source"), tmp_path / "aside"
    (aside / "codec-lz4-0").mkdir(parents=True)
    (aside / "codec-lz4-0" / "file").write_text("mine")
    with pytest.raises(AccessError, match="exists already"):
        rewrite("repair", source, tmp_path / "out", {"quarantine": str(aside)}, overwrite=True)
    assert sorted(os.listdir(tmp_path)) == ["aside", "source"]
    (aside / "codec-lz4-0" / "file").unlink()
    rewrite("repair", source, tmp_path / "out", {"quarantine": str(aside)})
    assert any((aside / "codec-lz4-0").iterdir())


def test_a_partition_next_to_a_metadata_log_keeps_the_files_of_its_directory(tmp_path: Path) -> None:
    """With one partition and a metadata log in it, a repaired log directory had no `meta.properties`: no broker would start on it."""
    source = tmp_path / "logs"
    source.mkdir()
    for name in ("transactions-0", "__cluster_metadata-0"):
        shutil.copytree(KAFKA / name, source / name)
    shutil.copy2(KAFKA / "meta.properties", source)
    account = rewrite("repair", source, tmp_path / "out")
    assert sorted(account.parts) == ["__cluster_metadata-0", "transactions-0"]
    assert sorted(os.listdir(tmp_path / "out")) == ["__cluster_metadata-0", "meta.properties", "transactions-0"]


def test_rebuild_refuses_what_its_report_would_call_lost(tmp_path: Path) -> None:
    """It wrote a copy without the records that the checkpoints count, whose own checkpoints were made to fit."""
    source = log_directory(tmp_path / "source")
    path = source / "recovery-point-offset-checkpoint"
    text = path.read_text().splitlines()
    lines = [f"codec-lz4 0 {10**6}" if line.startswith("codec-lz4 0 ") else line for line in text]
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(CorruptError, match=r"rawlog repair"):
        rewrite("rebuild", source, tmp_path / "target")
    assert not (tmp_path / "target").exists()
    assert not rewrite("repair", source, tmp_path / "target").is_lossless


# Files that no format knows -------------------------------------------------------------------------------------------------


def _with_unknown_files(folder: Path) -> Path:
    """A log directory with plain files and a directory that nobody knows."""
    log_directory(folder)
    (folder / "note.txt").write_text("of the operator")
    (folder / "transactions-0" / "extra.bin").write_bytes(b"\0\1\2")
    (folder / "lost+found").mkdir()
    (folder / "lost+found" / "#1").write_bytes(b"somebody's")
    shutil.copytree(folder / "codec-lz4-0", folder / "backup")
    return folder


@pytest.mark.parametrize("verb", ["repair", "rebuild", "compact"])
def test_every_file_of_a_log_directory_is_copied_or_named(verb: str, tmp_path: Path) -> None:
    """What no format knows was dropped without a word, and the result was called whole. A broker passes over plain files that it does not
    know, and ends at directories that it does not know: those must not be in the result.
    """
    source, target = _with_unknown_files(tmp_path / "source"), tmp_path / "target"
    report = rewrite(verb, source, target, dict(NOW) if verb == "compact" else {})
    made = content(target)
    assert made["note.txt"] == b"of the operator"
    assert made["transactions-0/extra.bin"] == b"\0\1\2"
    assert not any(name.startswith(("lost+found", "backup")) for name in made)
    [log] = (source / "backup").glob("*.log")
    assert {*report.all_left_out} == {str(source / "lost+found" / "#1"), str(log)}
    assert not report.is_whole
    assert any("note.txt: copied unchanged" in line for line in report.lines())
    shutil.rmtree(source / "lost+found")
    shutil.rmtree(source / "backup")
    assert rewrite(verb, source, tmp_path / "again", dict(NOW) if verb == "compact" else {}).is_whole


@pytest.mark.parametrize("verb", ["repair", "rebuild", "compact"])
def test_a_log_directory_may_be_named_like_a_partition(verb: str, tmp_path: Path) -> None:
    """`kafka-1`: its checkpoints were taken for files of partition 1 of a topic `kafka` that has lost its data, and `rebuild` refused."""
    reports = {}
    for name in ("kafka-1", "kafka"):
        source, options = log_directory(tmp_path / name), dict(NOW) if verb == "compact" else {}
        reports[name] = rewrite(verb, source, tmp_path / f"{name}-done", options)
    entries = {name: [(entry.action, entry.reason) for entry in report.entries] for name, report in reports.items()}
    assert entries["kafka-1"] == entries["kafka"]
    assert content(tmp_path / "kafka-1-done") == content(tmp_path / "kafka-done")


def test_what_a_broker_fetches_again_is_only_noted(tmp_path: Path) -> None:
    source = log_directory(tmp_path / "source")
    (source / "remote-log-index-cache").mkdir()
    (source / "remote-log-index-cache" / "0_abc").write_bytes(b"index")
    report = rewrite("repair", source, tmp_path / "target")
    assert report.is_whole
    assert not (tmp_path / "target" / "remote-log-index-cache").exists()
    assert any("creates it again" in line for line in report.notes)


def test_a_dry_run_names_what_would_be_left_out(tmp_path: Path) -> None:
    source = _with_unknown_files(tmp_path / "source")
    report = rewrite("repair", source, tmp_path / "target", dry_run=True)
    assert str(source / "lost+found" / "#1") in report.left_out
    assert not (tmp_path / "target").exists()


def test_a_file_that_cannot_be_opened_is_left_out(tmp_path: Path) -> None:
    source = log_directory(tmp_path / "source")
    (source / "transactions-0" / "dangling").symlink_to("nowhere")
    os.mkfifo(source / "pipe")
    report = rewrite("repair", source, tmp_path / "target")
    assert {str(source / "transactions-0" / "dangling"), str(source / "pipe")} <= named_paths(report)
    assert not report.is_whole


@pytest.mark.parametrize("verb", ["repair", "rebuild", "compact"])
def test_every_file_of_a_blob_store_is_copied(verb: str, tmp_path: Path) -> None:
    source = tmp_path / "9"
    shutil.copytree(store_path("store-small"), source)
    (source / "operator.txt").write_bytes(b"of the operator")
    report = rewrite(verb, source, tmp_path / "target", dict(NOW) if verb == "compact" else {})
    assert (tmp_path / "target" / "operator.txt").read_bytes() == b"of the operator"
    assert not report.all_left_out


def test_a_file_next_to_recordings_is_named(tmp_path: Path) -> None:
    """A recording with a damaged header is a file that no format knows: without it the result is not whole."""
    source = tmp_path / "source"
    source.mkdir()
    shutil.copy(golden_path("replay", "v2", "basic.log"), source / "sound.log")
    (source / "damaged.log").write_bytes(b"\xff" * 200)
    report = rewrite("repair", source, tmp_path / "target")
    assert report.left_out == [str(source / "damaged.log")]
    assert not report.is_whole
