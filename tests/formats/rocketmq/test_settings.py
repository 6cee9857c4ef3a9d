"""Stores of brokers with settings that few use: DLedger, a commit log on several disks, popped and timer messages, a compaction pass."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import rawlog
from rawlog.cli import cli
from rawlog.formats.rocketmq import COMMIT_LOG, writer
from rawlog.formats.rocketmq.kernels import entries as fields
from rawlog.formats.rocketmq.messages import Messages
from rawlog.io.walk import walk
from tests.data.rocketmq_rewriting import rebuilt, repaired
from tests.data.rocketmq_stores import store
from tests.reference import rocketmq as reference

DISKS, DLEDGER, DLEDGER_CRASHED = "broker-5.3.3-disks", "broker-5.3.3-dledger", "broker-4.9.7-dledger-crashed"
ALL = (DISKS, DLEDGER, DLEDGER_CRASHED)
DLEDGER_HEAD = struct.Struct(">iiqqqiiii")


def roots(name: str) -> list[Path]:
    """The store, and the other directories of its commit log."""
    top = store(name).parent
    return [store(name), *(top / other for other in ("commitlog2", "disk3") if (top / other).exists())]


def logs(name: str) -> list[Path]:
    found = [path for root in roots(name) for path in root.rglob("0000*") if path.parent.name in LOG_FOLDERS]
    return sorted(found, key=lambda path: path.name)


LOG_FOLDERS = ("commitlog", "commitlog2", "data")


def messages_of(name: str) -> Iterator[reference.Message]:
    """The messages as the reference reads them; those of DLedger follow heads of its own."""
    for path in logs(name):
        data = path.read_bytes()
        if path.parent.name != "data":
            yield from reference.messages(data)
            continue
        position = 0
        while True:
            if struct.unpack_from(">i", data, position)[0] != 1:
                assert data[position : position + 4] in (bytes(4), b"\xff" * 4)
                break
            _, size, _, _, address, _, _, _, body = DLEDGER_HEAD.unpack_from(data, position)
            assert (address, body) == (int(path.name) + position, size - DLEDGER_HEAD.size)
            [one] = reference.messages(data[position + DLEDGER_HEAD.size : position + size])
            assert one.physical_offset == address + DLEDGER_HEAD.size
            yield one
            position += size


@pytest.mark.parametrize("name", ALL)
def test_every_message_is_what_the_reference_reads(name: str) -> None:
    rows = rawlog.read(roots(name), table="rocketmq.messages").to_pylist()
    wanted = list(messages_of(name))
    assert len(rows) == len(wanted) > 400
    for row, message in zip(rows, wanted, strict=True):
        assert (row["physical_offset"], row["size"], row["queue_offset"], row["body_crc"]) == (
            message.physical_offset, message.size, message.queue_offset, message.body_crc,
        )  # fmt: skip
        assert (row["crc_ok"], row["stale"], row["topic"]) == (True, False, message.topic.decode())
        assert dict(row["properties"]) == {name.decode(): value.decode() for name, value in message.shown.items()}


@pytest.mark.parametrize("name", ALL)
def test_such_stores_are_clean(name: str) -> None:
    findings = list(rawlog.verify(roots(name)))
    notes = {"rocketmq.store.abort"} if "crashed" in name else {"rawlog.file.unknown"} if name == DISKS else set()
    assert {each.code for each in findings} == notes, findings


@pytest.mark.parametrize("name", ALL)
def test_every_entry_is_written_again_byte_for_byte(name: str) -> None:
    count = 0
    for file in rawlog.open(roots(name)):
        if file.format not in ("rocketmq.commitlog", "rocketmq.compactionlog"):
            continue
        for frames in walk(file, COMMIT_LOG):
            rows = Messages.take(frames, file)
            for row in range(len(rows)):
                entry = writer.from_messages(rows.cut(row, row + 1))
                start, size = int(rows[fields.F_START][row]), int(rows[fields.F_SIZE][row])
                address = rows[fields.F_PHYSICAL][row : row + 1].copy()
                again = entry.encode(entry.sizes(), address, int(address[0]), int(address[0]) + size)
                assert bytes(again) == bytes(frames.data[start : start + size])
                count += 1
    assert count >= len(list(messages_of(name)))


@pytest.mark.parametrize("name", ALL)
def test_rebuilt_queues_and_index_are_the_brokers_own(name: str, tmp_path: Path) -> None:
    source, target = store(name), tmp_path / "rebuilt"
    unknown = source / "timerwheel.gz"  # packed in the golden data: no file of a broker
    notes = [f"{unknown}: copied unchanged: rawlog does not know what it is"] if unknown.exists() else []
    assert rebuilt(roots(name), target).notes == notes
    for folder in ("consumequeue", "batchconsumequeue", "consumequeue_ext"):
        theirs = {path.relative_to(source): path.read_bytes() for path in (source / folder).rglob("0000*")}
        assert {path.relative_to(target): path.read_bytes() for path in (target / folder).rglob("0000*")} == theirs
    ours = {path.name: path.read_bytes() for path in sorted(target.glob("commitlog/*"))}
    assert ours == ({path.name: path.read_bytes() for path in logs(name)} if name == DISKS else {}), (
        "one disk is enough"
    )
    theirs_in_order = [path.read_bytes() for path in sorted((source / "index").iterdir())]
    assert [path.read_bytes() for path in sorted((target / "index").iterdir())] == theirs_in_order


@pytest.mark.parametrize("name", [DLEDGER, DLEDGER_CRASHED])
def test_a_dledger_log_moves_into_a_plain_one(name: str, tmp_path: Path) -> None:
    report = repaired(store(name), tmp_path / "out", {"move": "true"})
    assert report.is_whole, report.lines()
    assert [row["body"] for row in rawlog.read(tmp_path / "out", table="rocketmq.messages").to_pylist()] == [
        one.body for one in messages_of(name)
    ]
    assert rawlog.verify(tmp_path / "out").verdict == "clean"


def test_a_lone_file_of_dledger_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    """It begins with a one and zeros, as a recording does."""
    path = shutil.copy(logs(DLEDGER)[0], tmp_path / "kept.bin")
    [file] = rawlog.open(path).files
    assert file.format == "rocketmq.commitlog"
    rows = rawlog.read(path, table="rocketmq.messages", columns=["physical_offset", "stale"]).to_pylist()
    assert rows[0] == {"physical_offset": DLEDGER_HEAD.size, "stale": False}
    assert not any(row["stale"] for row in rows)


def test_a_directory_of_the_commit_log_may_have_any_name(tmp_path: Path) -> None:
    shutil.copytree(store(DISKS).parent, tmp_path / "all")
    (tmp_path / "all" / "disk3" / "commitlog").rename(tmp_path / "all" / "disk3" / "messages")
    assert rawlog.read(tmp_path / "all").equals(rawlog.read(roots(DISKS)))
    assert not [each for each in rawlog.verify(tmp_path / "all") if each.severity != "info"]


def test_a_file_missing_on_one_disk_is_found(tmp_path: Path) -> None:
    """The neighbours of a file lie on other disks."""
    shutil.copytree(store(DISKS).parent, tmp_path / "all")
    lost = min((tmp_path / "all" / "disk3" / "commitlog").iterdir())
    lost.unlink()
    [found] = [each for each in rawlog.verify(tmp_path / "all") if each.code == "rocketmq.store.missing-file"]
    assert found.expected == lost.name


def test_popped_messages_are_followed_to_their_source() -> None:
    """Their retry topic is named after the group and the topic; nothing else tells where they came from but the unique key."""
    rows = rawlog.read(roots(DISKS), table="rocketmq.retries").to_pylist()
    assert {(row["kind"], row["group"], row["source_topic"]) for row in rows} == {
        ("retry", "popg", topic) for topic in ("T1", "T2", "B")
    }
    messages = {one.physical_offset: one for one in messages_of(DISKS)}
    followed = [row for row in rows if row["source_physical_offset"] is not None]
    assert followed
    for row in followed:
        source, retry = messages[row["source_physical_offset"]], messages[row["physical_offset"]]
        assert (source.topic.decode(), source.body) == (row["source_topic"], retry.body)
    for row in rows:
        keys = [one for one in messages.values() if one.topic.decode() == row["source_topic"]
                and one.shown.get(b"UNIQ_KEY") == row["unique_key"].encode()]  # fmt: skip
        assert (row["source_physical_offset"] is None) == (len(keys) != 1)


def test_timer_units_are_those_of_their_messages() -> None:
    """Over several timer-log files, each closed by a blank one; a message due after the roll window is scheduled again."""
    messages = {one.physical_offset: one for one in messages_of(DISKS)}
    units = rawlog.read(roots(DISKS), table="rocketmq.timers").to_pylist()
    assert len({row["path"] for row in units}) > 1
    assert {row["physical_offset"] for row in units} == {
        address for address, one in messages.items() if one.topic == b"rmq_sys_wheel_timer"
    }
    positions = {row["timer_position"] for row in units}
    for row in units:
        shown = messages[row["physical_offset"]].shown
        assert row["topic_hash"] == reference.java_hash(shown[b"REAL_TOPIC"].decode())
        assert row["size"] == messages[row["physical_offset"]].size
        due = int(shown[b"TIMER_OUT_MS"])
        assert (row["due_timestamp"].timestamp() * 1000 == due) == (row["magic"] == 1)
        assert row["magic"] in (1, 3)
        assert row["previous_position"] in positions | {-1}
    states = rawlog.read(roots(DISKS), table="rocketmq.scheduled").to_pylist()
    for row in states:
        is_late = (row["due_timestamp"] - row["store_timestamp"]).total_seconds() > 60
        assert row["state"] == ("pending" if is_late else "delivered")
    assert {row["state"] for row in states} == {"pending", "delivered"}


def test_a_compaction_pass_leaves_the_newest_of_each_key() -> None:
    """The pass took the closed files; the units of the queue point to the messages that are left, with gaps in their numbers."""
    rows = rawlog.read(store(DISKS), table="rocketmq.compacted").to_pylist()
    every = [one for one in messages_of(DISKS) if one.topic == b"C"]
    for queue_id in (0, 1):
        here = [row for row in rows if row["queue_id"] == queue_id]
        units = [
            (address, offset)
            for path in sorted((store(DISKS) / "compaction" / "compactionCq" / "C" / str(queue_id)).iterdir())
            for address, _, _, _, offset, _ in reference.batch_units(path.read_bytes())
        ]
        assert [(row["physical_offset"], row["queue_offset"]) for row in here] == units
        sent = {one.queue_offset: one for one in every if one.queue_id == queue_id}
        assert len(here) < len(sent)
        newest = {one.shown[b"KEYS"].decode(): number for number, one in sent.items()}
        kept = {row["queue_offset"] for row in here}
        assert set(newest.values()) <= kept
        assert all(row["body"] == sent[row["queue_offset"]].body for row in here)


@pytest.mark.parametrize("table", ["rocketmq.messages", "rocketmq.queues"])
def test_a_partition_is_a_queue_id(table: str) -> None:
    where = [str(root) for root in roots(DISKS)]
    whole = rawlog.read(where, table=table, columns=["topic", "queue_id", "physical_offset"]).to_pylist()
    wanted = [row for row in whole if row["queue_id"] == 1]
    assert 0 < len(wanted) < len(whole)
    names = ["topic", "queue_id", "physical_offset"]
    assert rawlog.read(where, table=table, columns=names, partition=1).to_pylist() == wanted
    assert rawlog.read(where, table=table, columns=["physical_offset"], partition=[1]).to_pylist() == [
        {"physical_offset": row["physical_offset"]} for row in wanted
    ]
    result = CliRunner().invoke(cli, ["count", *where, "--table", table, "--partition", "1"])
    assert (result.exit_code, result.stdout.strip()) == (0, str(len(wanted)))


def test_queues_as_a_database_are_no_missing_queues(tmp_path: Path) -> None:
    """`storeType=defaultRocksDB`: its broker reads no files of queues. None are written, and the databases stay as they are."""
    root = tmp_path / "store"
    shutil.copytree(store("broker-4.9.7"), root)
    shutil.rmtree(root / "consumequeue")
    bare = [each.code for each in rawlog.verify(root) if each.severity != "info"]
    assert bare == ["rocketmq.store.queue-missing"]
    for folder in ("consumequeue", "config/topics"):
        (root / folder).mkdir()
        for name in ("CURRENT", "IDENTITY", "LOCK", "MANIFEST-000005", "OPTIONS-000007", "000004.log", "000010.sst"):
            (root / folder / name).write_bytes(b"RocksDB")
    assert rawlog.verify(root).verdict == "clean", list(rawlog.verify(root))
    assert rebuilt(root, tmp_path / "out").is_whole
    assert rawlog.verify(tmp_path / "out").verdict == "clean"
    for folder in ("consumequeue", "config/topics"):
        theirs = {path.name: path.read_bytes() for path in (root / folder).iterdir() if path.name != "LOCK"}
        ours = {path.name: path.read_bytes() for path in (tmp_path / "out" / folder).iterdir() if path.name != "LOCK"}
        assert ours == theirs


def test_a_copy_of_the_log_next_to_a_store_is_not_taken_for_another_disk(tmp_path: Path) -> None:
    shutil.copytree(store("4.9.8"), tmp_path / "all" / "store")
    shutil.copytree(store("4.9.8") / "commitlog", tmp_path / "all" / "backup" / "commitlog")
    groups = {file.place.group for file in rawlog.open(tmp_path / "all") if file.format == "rocketmq.commitlog"}
    assert groups == {str(tmp_path / "all" / name) for name in ("store", "backup")}
    assert rawlog.verify(tmp_path / "all").verdict == "clean"
