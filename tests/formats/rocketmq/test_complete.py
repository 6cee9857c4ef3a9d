"""`verify --complete` of RocketMQ stores: every queue offset has a class, and what nothing explains is found with its place."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

import rawlog
from rawlog.model.finding import CLASSES, Account, Findings
from tests.data.rocketmq_stores import ALL, copy, log_files, store


def verified(path: Path) -> tuple[Findings, dict[str, Account]]:
    found = rawlog.verify(path, complete=True)
    for one in found.accounts:
        assert sum(getattr(one, name) or 0 for name in CLASSES) == one.stop, one
    return found, {f"{one.topic}-{one.partition}": one for one in found.accounts}


def of(found: Findings, code: str) -> list[Any]:
    return [item for item in found if item.code == f"rocketmq.complete.{code}"]


def offsets(path: Path) -> dict[str, set[int]]:
    """The offsets of each queue, as its units say."""
    made: dict[str, set[int]] = {}
    for row in units(path):
        last = row["queue_offset"] + (row["batch_size"] or 1)
        made.setdefault(f"{row['topic']}-{row['queue_id']}", set()).update(range(row["queue_offset"], last))
    return made


def units(root: Path) -> list[dict[str, Any]]:
    """The units of all consume queues, in the order of the commit log."""
    rows = rawlog.read(root, table="rocketmq.queues").to_pylist()
    return sorted((row for row in rows if row["kind"] != "ext"), key=lambda row: row["physical_offset"])


@pytest.mark.parametrize("name", ALL)
def test_what_real_brokers_wrote_is_complete(name: str) -> None:
    found, accounts = verified(store(name))
    assert not of(found, "unexplained")
    assert not of(found, "committed")
    assert all(one.present == one.stop and not one.unexplained for one in accounts.values())
    for queue, numbers in offsets(store(name)).items():
        assert accounts[queue].stop == max(numbers) + 1
    states = [row["state"] for row in rawlog.read(store(name), table="rocketmq.transactions").to_pylist()]
    assert len(of(found, "transaction")) == states.count("pending")
    assert sum(one.open_transactions or 0 for one in accounts.values()) == states.count("pending")
    if "crashed" not in name:  # how far delivery has come is saved every few seconds
        waiting = rawlog.read(store(name), table="rocketmq.scheduled").to_pylist()
        assert sum(one.delayed or 0 for one in accounts.values()) == sum(row["state"] == "pending" for row in waiting)
        assert len(of(found, "delayed")) == sum(row["state"] == "pending" for row in waiting)
    assert found.verdict == "clean"  # also with an open half message: nothing is missing


def messages_in(path: Path, root: Path) -> dict[str, set[int]]:
    """The queue offsets of the messages in one commit-log file that consumers get."""
    made: dict[str, set[int]] = {}
    size, start = path.stat().st_size, int(path.name)
    for row in units(root):
        if start <= row["physical_offset"] < start + size:
            made.setdefault(f"{row['topic']}-{row['queue_id']}", set()).add(row["queue_offset"])
    return made


@pytest.mark.parametrize("which", [0, 1])
def test_a_commit_log_file_that_is_gone_is_unexplained(which: int, tmp_path: Path) -> None:
    """In the middle it is missing; at the end, the consume queues know what it had; the first one has expired, for a broker deletes the
    log from its start."""
    root = copy("4.9.8" if which else "broker-5.3.3-crashed", tmp_path)
    path = log_files(root)[which]
    gone = messages_in(path, root)
    assert gone
    path.unlink()
    found, accounts = verified(root)
    for queue, numbers in gone.items():
        assert accounts[queue].unexplained == (len(numbers) if which else 0), queue
        assert accounts[queue].expired == (0 if which else len(numbers)), queue
    if which:
        assert {item.offset for item in of(found, "unexplained")} == {min(numbers) for numbers in gone.values()}
        assert found.verdict == "damaged"


@pytest.mark.parametrize("seed", range(4))
def test_a_stretch_in_the_middle_of_the_log_is_unexplained_with_its_place(seed: int, tmp_path: Path) -> None:
    root = copy("broker-4.9.7", tmp_path)
    rng = random.Random(seed)
    path = log_files(root)[0]
    rows = [row for row in units(root) if row["physical_offset"] < path.stat().st_size]
    first = rng.randrange(len(rows) // 4, len(rows) // 2)
    lost = rows[first : first + rng.randrange(1, 9)]
    start, stop = lost[0]["physical_offset"], lost[-1]["physical_offset"] + lost[-1]["size"]
    raw = bytearray(path.read_bytes())
    raw[start:stop] = rng.randbytes(stop - start)
    path.write_bytes(raw)
    found, accounts = verified(root)
    wanted: dict[str, list[int]] = {}
    for row in rows:
        if start <= row["physical_offset"] < stop:
            wanted.setdefault(f"{row['topic']}-{row['queue_id']}", []).append(row["queue_offset"])
    assert {queue: one.unexplained for queue, one in accounts.items() if one.unexplained} == {
        queue: len(numbers) for queue, numbers in wanted.items()
    }
    items = of(found, "unexplained")
    assert {item.position for item in items} <= {row["physical_offset"] for row in lost}
    assert str(path) in {item.path for item in items}


def test_offsets_without_a_consume_queue_are_known_from_the_messages(tmp_path: Path) -> None:
    """No consume queue is there, and a log file in the middle is gone: the messages around it say which offsets it had."""
    root = copy("broker-4.9.7", tmp_path)
    shutil.rmtree(root / "consumequeue")
    _, before = verified(root)
    assert before["gold4_one-0"].present == 140
    path = log_files(root)[0]
    raw = bytearray(path.read_bytes())
    middle = len(raw) // 2
    raw[middle : middle + 200_000] = bytes(b"\xff" * 200_000)
    path.write_bytes(raw)
    _, after = verified(root)
    assert sum(one.unexplained for one in after.values()) > 0
    assert all(
        after[name].stop == one.stop for name, one in before.items() if name in after and after[name].unexplained
    )


def test_a_placeholder_of_a_repair_is_reported_and_explained(tmp_path: Path) -> None:
    root = copy("broker-4.9.7", tmp_path)
    path = log_files(root)[0]
    row = next(
        row for row in units(root) if (row["topic"], row["queue_id"], row["queue_offset"]) == ("gold4_one", 0, 20)
    )
    raw = bytearray(path.read_bytes())
    at = row["physical_offset"]
    raw[at : at + row["size"]] = bytes(range(1, 200)) * (row["size"] // 199) + bytes(row["size"] % 199)
    path.write_bytes(raw)
    _, damaged = verified(root)
    assert damaged["gold4_one-0"].unexplained == 1
    rawlog.repair(root, tmp_path / "repaired")
    found, repaired = verified(tmp_path / "repaired")
    one = repaired["gold4_one-0"]
    assert (one.unexplained, one.control, one.present) == (0, 1, 139)
    assert [item.message for item in of(found, "placeholder")] == [
        "gold4_one queue 0: 1 of its messages are placeholders"
    ]


def test_consumer_offsets_must_be_in_range(tmp_path: Path) -> None:
    root = copy("broker-5.3.3", tmp_path)
    config = root / "config" / "consumerOffset.json"
    table = {"offsetTable": {"gold_one@readers": {"0": 141}, "gold_tx@others": {"0": 3}, "gone@others": {"0": 7}}}
    config.write_text(json.dumps(table))
    found, _ = verified(root)
    [item] = of(found, "committed")
    assert (item.offset, item.path) == (141, str(config))
    assert "which ends at 140" in item.message
    assert found.verdict == "suspect"


def test_rules_run_only_if_asked_for() -> None:
    assert not [item for item in rawlog.verify(store("broker-4.9.7")) if ".complete." in item.code]
    [item] = rawlog.verify(store("broker-4.9.7"), rule="rocketmq.complete.transaction")
    assert item.offset == 20
