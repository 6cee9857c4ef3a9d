"""Stores of RocketMQ 5.4 and later: tags in the key index, the sixth field of the checkpoint, and RocksDB databases next to the log."""

from __future__ import annotations

from pathlib import Path

import pytest

import rawlog
from rawlog.formats.rocketmq.layouts import CHECKPOINT
from rawlog.formats.rocketmq.store.rewrite import DATABASES
from rawlog.model.errors import AccessError
from rawlog.model.report import Action
from tests.data.rocketmq_rewriting import rebuilt, repaired, rewritten, said, written
from tests.data.rocketmq_stores import BROKERS_55, answers, copy, log_files, store
from tests.formats.rocketmq.test_checks import flip_body

ROCKSDB = ("broker-5.5.1-rocksdb", "broker-5.5.1-rocksdb-crashed", "broker-5.5.1-rocksdb-v2")
LOGICS = CHECKPOINT.at("logics_physical_offset")
QUEUES = ("consumequeue", "consumequeue_rocksdb")


def database_files(root: Path) -> dict[str, bytes]:
    return {
        str(Path(file.path).relative_to(root)): Path(file.path).read_bytes()
        for file in rawlog.open(root).files
        if file.format in DATABASES
    }


def index_files(root: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((root / "index").iterdir())]


def databases(root: Path) -> set[str]:
    return {str(Path(name).parent) for name in database_files(root)}


@pytest.mark.parametrize("name", BROKERS_55)
def test_a_healthy_store_is_clean(name: str) -> None:
    """Byte 40 of the checkpoint was damage, and every tag in the key index an entry of no key."""
    found = rawlog.verify(store(name))
    assert found.verdict == "clean", [one.message for one in found]
    assert not [one for one in found if one.code == "rawlog.file.unknown"]


@pytest.mark.parametrize("name", [name for name in BROKERS_55 if not name.endswith("crashed")])
def test_every_message_is_read_as_the_broker_gave_it_out(name: str) -> None:
    rows = rawlog.read(
        store(name), table="rocketmq.messages", columns=["physical_offset", "size", "topic", "queue_offset"]
    )
    there = {row["physical_offset"]: row for row in rows.to_pylist()}
    for one in answers(name)["messages"]:
        row = there[one["physicalOffset"]]
        assert (row["size"], row["topic"], row["queue_offset"]) == (one["size"], one["topic"], one["queueOffset"])


@pytest.mark.parametrize("verb", ["rebuild", "repair"])
@pytest.mark.parametrize("name", BROKERS_55)
def test_nothing_of_a_whole_store_is_left_out(name: str, verb: str, tmp_path: Path) -> None:
    """Databases were dropped without a word and the result was called whole. The index had no tags: look-ups by tag found nothing."""
    root = store(name)
    report = rewritten(verb, root, tmp_path / "out")
    assert report.is_whole, said(report)
    assert database_files(tmp_path / "out") == database_files(root) != {}
    assert index_files(tmp_path / "out") == index_files(root)
    assert (tmp_path / "out" / "abort").exists() == (name in ROCKSDB and (root / "abort").exists())
    if not name.endswith("crashed"):
        assert (tmp_path / "out" / "checkpoint").read_bytes() == (root / "checkpoint").read_bytes()
    has_files = any((root / "consumequeue").glob("*/*/0000*")) if (root / "consumequeue").exists() else False
    assert any((tmp_path / "out").glob("consumequeue/*/*/0000*")) == has_files
    assert rawlog.verify(tmp_path / "out").verdict == "clean"


@pytest.mark.parametrize("name", BROKERS_55)
def test_databases_with_addresses_are_left_out_where_a_message_is_lost(name: str, tmp_path: Path) -> None:
    root = copy(name, tmp_path)
    flip_body(root)
    report = repaired(root, tmp_path / "out")
    assert not report.is_whole
    addressed = {one for one in databases(root) if one in (*QUEUES, "rocksdbstore")}
    assert databases(tmp_path / "out") == databases(root) - addressed
    named = {Path(str(one.path)).name for one in report.with_action(Action.DROPPED) if "RocksDB" in one.reason}
    assert named == addressed
    carried = {one: data for one, data in database_files(root).items() if str(Path(one).parent) not in addressed}
    assert database_files(tmp_path / "out") == carried
    point = (tmp_path / "out" / "checkpoint").read_bytes()
    assert not any(point[LOGICS : LOGICS + 8])
    assert ("commitLogRecoverMaxNum=" in said(report)) == (name in ROCKSDB)
    assert (tmp_path / "out" / "abort").exists() == (name in ROCKSDB)
    assert any((tmp_path / "out").glob("consumequeue/*/*/0000*")) == (name not in ROCKSDB)
    again = repaired(tmp_path / "out", tmp_path / "again")
    assert again.is_whole, said(again)
    for path in (tmp_path / "out").rglob("*"):
        if path.is_file():
            assert (tmp_path / "again" / path.relative_to(tmp_path / "out")).read_bytes() == path.read_bytes(), path


def test_a_store_of_an_older_broker_gets_no_tags(tmp_path: Path) -> None:
    root = store("broker-5.3.3")
    rebuilt(root, tmp_path / "out")
    assert index_files(tmp_path / "out") == index_files(root)


def test_what_is_popped_and_configured_is_not_erased_unread(tmp_path: Path) -> None:
    """A database cannot be read, so nobody knows what is in it: erase leaves it out and says so."""
    report = rawlog.erase(store("broker-5.5.1-rocksdb"), tmp_path / "out", find="no such text")
    assert not report.is_whole
    assert not databases(tmp_path / "out")
    named = {Path(str(one.path)).name for one in report.with_action(Action.DROPPED)}
    assert {"consumequeue", "rocksdbstore", "kvStore", "topics"} <= named


@pytest.mark.parametrize("change", [7, 1 << 40])
def test_a_checkpoint_that_names_no_message_is_told(change: int, tmp_path: Path) -> None:
    """A broker with enableAcceleratedRecovery begins to read there: 54 of 703 messages were cut off, or it did not start."""
    root = copy("broker-5.5.1", tmp_path)
    data = bytearray((root / "checkpoint").read_bytes())
    address = int.from_bytes(data[LOGICS : LOGICS + 8], "big") + change
    data[LOGICS : LOGICS + 8] = address.to_bytes(8, "big")
    (root / "checkpoint").write_bytes(data)
    [found] = rawlog.verify(root)
    assert (found.code, found.severity, found.position) == ("rocketmq.store.checkpoint", "warning", LOGICS)


@pytest.mark.parametrize("name", ROCKSDB)
def test_groups_in_a_database_cannot_be_read(name: str) -> None:
    """It said that none were found."""
    with pytest.raises(AccessError, match="RocksDB database, which cannot be read yet"):
        rawlog.groups(store(name))


def test_groups_in_files_are_those_of_the_broker() -> None:
    rows = rawlog.groups(store("broker-5.5.1"))
    offsets = {
        (row["group"], row["topic"], row["partition"]): row["committed_offset"]
        for row in rows
        if row["table"] == "offsets"
    }
    wanted = {
        (key.partition("@")[2], key.partition("@")[0], int(queue)): offset
        for key, queues in answers("broker-5.5.1")["consumerOffsets"].items()
        for queue, offset in queues.items()
    }
    assert wanted.items() <= offsets.items()


def test_a_long_log_without_queues_needs_a_setting(tmp_path: Path) -> None:
    """A broker from 5.4.0 on builds queues from the last ten files alone: it served 148 of 400 messages."""
    root = copy("4.9.8", tmp_path)
    for folder in ("consumequeue", "index", "checkpoint"):
        path = root / folder
        for file in sorted(path.rglob("*"), reverse=True) if path.is_dir() else [path]:
            file.rmdir() if file.is_dir() else file.unlink()
    report = repaired(root, tmp_path / "few")
    assert "commitLogRecoverMaxNum" not in said(report)
    many = tmp_path / "many"
    written(rawlog.read(store("4.9.8")).to_batches(), many, {"commitlog_size": "8192", "derived": "none"})
    assert len(log_files(many)) > 10
    report = repaired(many, tmp_path / "out")
    assert f"commitLogRecoverMaxNum={len(log_files(many))}" in said(report)
