"""Rescue of RocketMQ stores: the union of a master's store and its slaves', judged by the golden stores that the copies were made of."""

from __future__ import annotations

import json
import pickle
import random
import shutil
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import rawlog
from rawlog.formats.rocketmq.store.rescue import QueuesWithoutLog, Rescue
from rawlog.io.output import Folder
from rawlog.model.errors import OptionError
from rawlog.model.recovery import RescueOptions, SurveyResult
from rawlog.model.report import Action, Report
from rawlog.reading.tree import open_tree
from tests.data.rocketmq_stores import log_files, store
from tests.data.trees import digests
from tests.formats.rocketmq.test_conformance import blank, message
from tests.formats.rocketmq.test_dledger import dledger
from tests.reference import rocketmq as reference

NAMES = ["physical_offset", "size", "path", "position", "topic", "queue_id", "queue_offset", "transaction", "body"]
FILE = 4096
SIZES = {"commitlog_size": FILE, "queue_size": 2000, "index_slots": 50, "index_entries": 150}
Place = tuple[str, int, int]

#: Files of golden stores that no broker wrote.
NOTES = shutil.ignore_patterns("timerwheel.gz")


def copies(name: str, to: Path, count: int = 2) -> list[Path]:
    """Copies of a golden store that a test may change, each in the directory of a broker."""
    made = []
    for number in range(count):
        made.append(to / f"broker{number}" / "store")
        shutil.copytree(store(name), made[-1], copy_function=shutil.copyfile, ignore=NOTES)
    return made


def rescued(stores: Sequence[Path], target: Path, **options: Any) -> Report:
    """Rescue, which must leave its sources as they are and a store that verifies clean."""
    before = digests(*stores)
    report = rawlog.rescue([str(one.parent) for one in stores], to=target, engine="local", **options)
    assert digests(*stores) == before
    assert not [one for one in rawlog.verify(target) if one.severity != "info"]
    return report


def entries(root: Path) -> dict[int, tuple[dict[str, Any], bytes]]:
    """The messages of a store by address, each with its bytes."""
    files = {path.name: path.read_bytes() for path in log_files(root)}
    rows = rawlog.read(root, table="rocketmq.messages", columns=NAMES, errors="skip").to_pylist()
    found = {}
    for row in rows:
        raw = files[Path(row["path"]).name][row["position"] : row["position"] + row["size"]]
        found[row["physical_offset"]] = (row, raw)
    return found


def change(root: Path, address: int, size: int, data: bytes) -> None:
    """Other bytes at an address of a commit log whose files have this size."""
    path = root / "commitlog" / f"{address // size * size:020}"
    with path.open("r+b") as file:
        file.seek(address % size)
        file.write(data)


def file_size(root: Path) -> int:
    return log_files(root)[0].stat().st_size


def flip(root: Path, row: dict[str, Any]) -> None:
    """Change a byte of a body, which its checksum shows."""
    path = root / "commitlog" / Path(row["path"]).name
    raw = bytearray(path.read_bytes())
    flags = int.from_bytes(raw[row["position"] + 36 : row["position"] + 40], "big")
    raw[row["position"] + 88 + 12 * (flags & 0x30).bit_count()] ^= 0x5A
    path.write_bytes(raw)


def lost(report: Report) -> set[Place]:
    """The messages that a report calls lost: topic, queue, queue offset."""
    found = set()
    for one in report.with_action(Action.LOST):
        if one.first_offset is not None and one.stop_offset is not None:
            topic, _, rest = one.reason.partition(" queue ")
            queue = int(rest.partition(":")[0])
            found |= {(topic, queue, number) for number in range(one.first_offset, one.stop_offset)}
    return found


def check_result(name: str, target: Path, report: Report, gone: set[int]) -> None:
    """Every message of the golden store is there byte for byte, except those that are gone, which are reported."""
    wanted, found = entries(store(name)), entries(target)
    assert {address for address, (_, raw) in wanted.items() if found.get(address, ({}, b""))[1] != raw} == gone
    places = {(row["topic"], row["queue_id"], row["queue_offset"]) for row, _ in (wanted[address] for address in gone)}
    assert lost(report) == places
    assert report.is_whole == (not gone)


# Damage ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "count", "seed"),
    [("4.9.8", 2, 1), ("5.3.4S-propcrc", 3, 2), ("broker-4.9.7", 2, 3), ("broker-5.3.3-crashed", 3, 4)],
)
def test_what_survives_in_one_copy_is_in_the_result(name: str, count: int, seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    stores = copies(name, tmp_path, count)
    rows = [row for row, _ in entries(store(name)).values() if len(row["body"] or b"") and row["transaction"] == "none"]
    rows = [row for row in rows if not row["topic"].startswith(("%LMQ%", "SCHEDULE", "rmq_sys", "RMQ_SYS"))]
    everywhere = rng.sample(rows, 2)
    damaged = [{row["physical_offset"] for row in everywhere} for _ in stores]
    for root, addresses in zip(stores, damaged, strict=True):
        chosen = [*everywhere, *rng.sample(rows, max(2, len(rows) // 10))]
        for row in {row["physical_offset"]: row for row in chosen}.values():
            flip(root, row)
            addresses.add(row["physical_offset"])
    gone = set.intersection(*damaged)
    report = rescued(stores, tmp_path / "out")
    check_result(name, tmp_path / "out", report, gone)
    spans = report.facts["plan"][0]["lost"]
    assert all(any(span["start"] <= address < span["stop"] for span in spans) for address in gone)
    assert all(span["since"] or span["until"] for span in spans)


@pytest.mark.parametrize("seed", [21, 22, 23])
def test_random_bytes_in_two_copies(seed: int, tmp_path: Path) -> None:
    """Damage anywhere, also where no checksum covers it: what one copy has as it was is in the result as it was."""
    rng, name = random.Random(seed), "broker-4.9.7"
    stores = copies(name, tmp_path)
    for root in stores:
        for path in log_files(root):
            raw = bytearray(path.read_bytes())
            used = len(bytes(raw).rstrip(b"\0"))
            for _ in range(3 if used else 0):
                at = rng.randrange(used)
                raw[at : at + 40] = rng.randbytes(len(raw[at : at + 40]))
            path.write_bytes(raw)
    wanted, size = entries(store(name)), file_size(store(name))
    logs = [{int(path.name): path.read_bytes() for path in log_files(root)} for root in stores]
    report = rescued(stores, tmp_path / "out")
    found = entries(tmp_path / "out")
    for address, (row, raw) in wanted.items():
        start, at = address // size * size, address % size
        if any(log[start][at : at + len(raw)] == raw for log in logs):
            assert found[address][1] == raw, row
        elif report.total("messages_undecided") == 0:
            assert (row["topic"], row["queue_id"], row["queue_offset"]) in lost(report), row


def test_whole_copies_give_the_store_as_it_is(tmp_path: Path) -> None:
    stores = copies("broker-5.3.3", tmp_path)
    report = rescued(stores, tmp_path / "out")
    assert report.is_whole
    for path in log_files(stores[0]):
        assert (tmp_path / "out" / "commitlog" / path.name).read_bytes() == path.read_bytes()
    for path in (stores[0] / "consumequeue").rglob("0" * 20):
        assert (tmp_path / "out" / path.relative_to(stores[0])).read_bytes() == path.read_bytes()


def test_a_lost_file_a_slave_that_is_not_up_to_date_and_a_cut_tail(tmp_path: Path) -> None:
    """The master lost its first file; a slave has nothing of the last one; another slave's last file is cut."""
    name = "broker-4.9.7"
    stores = copies(name, tmp_path, 3)
    log_files(stores[0])[0].unlink()
    log_files(stores[1])[-1].unlink()
    shutil.rmtree(stores[1] / "consumequeue")
    shutil.rmtree(stores[1] / "config")
    last = log_files(stores[2])[-1]
    last.write_bytes(last.read_bytes()[:70_000])
    report = rescued(stores, tmp_path / "out")
    check_result(name, tmp_path / "out", report, set())


def test_a_file_that_no_copy_has_is_reported(tmp_path: Path) -> None:
    name = "broker-4.9.7"
    stores = copies(name, tmp_path)
    for root in stores:
        log_files(root)[1].unlink()
    report = rescued(stores, tmp_path / "out")
    size = file_size(store(name))
    wanted = entries(store(name))
    missing = [row for address, (row, _) in wanted.items() if address // size == 1]
    assert lost(report) == {(row["topic"], row["queue_id"], row["queue_offset"]) for row in missing}
    [span] = report.facts["plan"][0]["lost"]
    assert (span["start"], span["stop"]) == (size, 2 * size)
    assert span["since"] is not None
    assert span["until"] is not None


@pytest.mark.parametrize("count", [2, 3])
def test_a_change_that_no_checksum_shows_is_judged(count: int, tmp_path: Path) -> None:
    """The queue offset of a message is changed in the copy that would be taken first: other copies or the consume queues know better."""
    name = "broker-4.9.7"
    stores = copies(name, tmp_path, count)
    wanted = entries(store(name))
    row = [row for row, _ in wanted.values() if row["topic"] == "gold4_orders"][5]
    for root in stores[:1]:
        change(root, row["physical_offset"] + 20, file_size(root), struct.pack(">q", row["queue_offset"] + 1000))
    report = rescued(stores, tmp_path / "out")
    check_result(name, tmp_path / "out", report, set())
    assert report.total("messages_judged") == 1
    assert report.total("messages_undecided") == 0


# Histories ---------------------------------------------------------------------------------------------------------------------


def plain_store(root: Path, bodies: Sequence[bytes], times: Sequence[int], *, with_queues: bool = True) -> list[int]:
    """A small store of one topic with two queues; the addresses of its messages."""
    data, made, addresses = b"", [], []
    for number, (body, stored) in enumerate(zip(bodies, times, strict=True)):
        one = message(queue_id=number % 2, queue_offset=number // 2, body=body, stored=stored, born=stored - 1)
        size, room = len(reference.encode(one)), FILE - len(data) % FILE
        if size + 8 > room:
            data += blank(room)
        one.physical_offset = len(data)
        addresses.append(len(data))
        data += reference.encode(one)
        made.append(one)
    data += bytes(-len(data) % FILE)
    (root / "commitlog").mkdir(parents=True)
    for start in range(0, len(data), FILE):
        (root / "commitlog" / f"{start:020}").write_bytes(data[start : start + FILE])
    for queue in (0, 1) if with_queues else ():
        units = [
            struct.pack(">qiq", one.physical_offset, len(reference.encode(one)), reference.java_hash("TagA"))
            for one in made
            if one.queue_id == queue
        ]
        path = root / "consumequeue" / "OrderTopic" / str(queue) / ("0" * 20)
        path.parent.mkdir(parents=True)
        path.write_bytes(b"".join(units).ljust(2000, b"\0"))
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": {}}))
    return addresses


def bodies_of(root: Path) -> list[bytes]:
    rows = rawlog.read(root, table="rocketmq.messages", columns=["physical_offset", "body"]).to_pylist()
    return [row["body"] for row in sorted(rows, key=lambda row: row["physical_offset"])]


COMMON = [b"common-%d" % number for number in range(30)]
OLD, NEW = [b"old-%d" % number for number in range(25)], [b"newer-%d" % number for number in range(15)]
AT = 1_700_000_000_000


@pytest.mark.parametrize("by_epoch", [False, True])
def test_the_newer_history_counts_and_the_other_is_kept_aside(by_epoch: bool, tmp_path: Path) -> None:
    """Two copies part after 30 messages. The longer one is the older one, unless the epochs of a controller say otherwise."""
    times = [AT + number for number in range(100)]
    addresses = plain_store(tmp_path / "a" / "store", COMMON + OLD, times[:55])
    plain_store(tmp_path / "b" / "store", COMMON + NEW, times[:30] + [one + 10_000 for one in times[:15]])
    if by_epoch:
        lines = ["1-0", f"2-{addresses[30]}"]
        for name, count in (("a", 2), ("b", 1)):
            text = "\n".join([str(count), "0", *lines[:count], ""])
            (tmp_path / name / "store" / "epochFileCheckpoint").write_text(text)
    report = rescued([tmp_path / "a" / "store", tmp_path / "b" / "store"], tmp_path / "out", option=SIZES)
    assert bodies_of(tmp_path / "out") == COMMON + (OLD if by_epoch else NEW)
    [unit] = report.facts["plan"]
    [span] = unit["divergent"]
    assert addresses[29] < span["start"] <= addresses[30]
    kept = list((tmp_path / "out.divergent").glob("*/copy-1"))
    assert len(kept) == 1
    assert set(NEW if by_epoch else OLD) <= set(bodies_of(kept[0]))


def test_holes_are_not_filled_from_another_history(tmp_path: Path) -> None:
    times = [AT + number for number in range(100)]
    addresses = plain_store(tmp_path / "a" / "store", COMMON + OLD, times[:55])
    plain_store(tmp_path / "b" / "store", COMMON + NEW, times[:30] + [one + 10_000 for one in times[:15]])
    change(tmp_path / "b" / "store", addresses[10] + 90, FILE, b"????")
    change(tmp_path / "b" / "store", addresses[31] + 100, FILE, bytes(200))
    rescued([tmp_path / "a" / "store", tmp_path / "b" / "store"], tmp_path / "out", option=SIZES)
    found = set(bodies_of(tmp_path / "out"))
    assert set(COMMON) <= found
    assert not found & set(OLD)


def test_stores_of_different_brokers_are_rescued_each(tmp_path: Path) -> None:
    times = [AT + number for number in range(60)]
    for name, bodies in (("a", COMMON), ("b", COMMON), ("c", OLD), ("d", OLD)):
        plain_store(tmp_path / name / "store", bodies, times[: len(bodies)])
        broker = "first" if name in "ab" else "second"
        (tmp_path / name / "broker.conf").write_text(
            f"brokerName={broker}\nbrokerId={int(name in 'bd')}\nmappedFileSizeCommitLog={FILE}\nmappedFileSizeConsumeQueue=2000\n"
            "maxHashSlotNum=50\nmaxIndexNum=150\n"
        )
    change(tmp_path / "a" / "store", 90, FILE, b"????")
    stores = [tmp_path / name / "store" for name in "abcd"]
    report = rescued(stores, tmp_path / "out")
    assert report.is_whole
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["first", "second"]
    assert bodies_of(tmp_path / "out" / "first") == COMMON
    assert bodies_of(tmp_path / "out" / "second") == OLD


# Settings ----------------------------------------------------------------------------------------------------------------------


def test_settings_are_the_newest_and_consumer_offsets_those_of_all_copies(tmp_path: Path) -> None:
    name = "broker-4.9.7"
    stores = copies(name, tmp_path)
    for root in stores:
        for path in (root / "config").glob("*.bak"):
            path.unlink()
    (stores[0] / "config" / "topics.json").write_bytes(b"{ damaged")
    offsets = [
        {"gold4_orders@readers": {"0": 10, "1": 20}},
        {"gold4_orders@readers": {"0": 12}, "gold4_one@late": {"0": 1}},
    ]
    for root, table in zip(stores, offsets, strict=True):
        (root / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": table}))
    rescued(stores, tmp_path / "out")
    topics = (tmp_path / "out" / "config" / "topics.json").read_bytes()
    assert topics == (stores[1] / "config" / "topics.json").read_bytes()
    found = json.loads((tmp_path / "out" / "config" / "consumerOffset.json").read_text())["offsetTable"]
    assert found == {"gold4_orders@readers": {"0": 12, "1": 20}, "gold4_one@late": {"0": 1}}


def test_topics_that_no_copy_has_are_made_of_the_messages(tmp_path: Path) -> None:
    stores = copies("broker-4.9.7", tmp_path)
    for root in stores:
        for path in (root / "config").glob("topics.json*"):
            path.unlink()
    rescued(stores, tmp_path / "out")
    table = json.loads((tmp_path / "out" / "config" / "topics.json").read_text())["topicConfigTable"]
    assert table["gold4_orders"]["readQueueNums"] == 4


# DLedger -----------------------------------------------------------------------------------------------------------------------


def test_members_of_a_dledger_group_become_a_plain_store(tmp_path: Path) -> None:
    made = dledger(tmp_path / "a" / "store")
    for name in ("b", "c"):
        shutil.copytree(tmp_path / "a", tmp_path / name)
    for name, number in (("a", 5), ("b", 20), ("c", 40)):
        one = made[number]
        start = one.physical_offset // FILE * FILE
        path = tmp_path / name / "store" / "dledger-n0" / "data" / f"{start:020}"
        raw = bytearray(path.read_bytes())
        raw[one.physical_offset - start + 90] ^= 1
        path.write_bytes(raw)
    stores = [tmp_path / name / "store" for name in "abc"]
    report = rescued(stores, tmp_path / "out", option=SIZES)
    rows = rawlog.read(tmp_path / "out", table="rocketmq.messages", columns=["queue_id", "queue_offset", "body"])
    found = [(row["queue_id"], row["queue_offset"], row["body"]) for row in rows.to_pylist()]
    assert found == [(one.queue_id, one.queue_offset, one.body) for one in made]
    assert report.is_whole, report.lines()


@pytest.mark.parametrize("name", ["broker-5.3.3-dledger", "broker-4.9.7-dledger-crashed", "broker-5.3.3-disks"])
def test_logs_of_real_brokers_with_dledger_and_on_several_disks(name: str, tmp_path: Path) -> None:
    """Random bytes in three copies: whatever two of them have alike is in the result."""
    rng, roots = random.Random(5), []
    for number in range(3):
        roots.append(tmp_path / f"member{number}")
        shutil.copytree(store(name).parent, roots[-1], copy_function=shutil.copyfile, ignore=NOTES)
        logs = [path for path in sorted(roots[-1].rglob("0*")) if path.parent.name.startswith(("data", "commitlog"))]
        for path in (path for path in logs if path.is_file()):
            raw = bytearray(path.read_bytes())
            used = len(bytes(raw).rstrip(b"\0"))
            for _ in range(2 if used > 500 else 0):
                at = rng.randrange(used)
                raw[at : at + 30] = rng.randbytes(len(raw[at : at + 30]))
            path.write_bytes(raw)
    report = rawlog.rescue([str(root) for root in roots], to=tmp_path / "out", engine="local")
    assert report.is_whole, report.lines()
    assert not [one for one in rawlog.verify(tmp_path / "out") if one.severity != "info"]
    names = ["topic", "queue_id", "queue_offset", "body"]
    wanted, found = (
        sorted(
            tuple(row[one] or b"" if one == "body" else row[one] for one in names)
            for row in rawlog.read(path, table="rocketmq.messages", columns=names).to_pylist()
        )
        for path in (store(name).parent, tmp_path / "out")
    )
    assert found == wanted


# The plan ----------------------------------------------------------------------------------------------------------------------


def test_a_plan_writes_nothing_and_names_what_is_lost(tmp_path: Path) -> None:
    stores = copies("broker-4.9.7", tmp_path)
    row = [row for row, _ in entries(stores[0]).values() if row["topic"] == "gold4_orders"][7]
    for root in stores:
        flip(root, row)
    report = rawlog.rescue([str(one.parent) for one in stores], plan=True, engine="local")
    [unit] = report.facts["plan"]
    [span] = unit["lost"]
    assert (span["start"], span["stop"]) == (row["physical_offset"], row["physical_offset"] + row["size"])
    assert f"gold4_orders queue {row['queue_id']}: {row['queue_offset']}" in span["reason"]
    assert [copy["damage"][0]["start"] for copy in unit["copies"]] == [row["physical_offset"]] * 2
    assert not report.is_whole
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broker0", "broker1"]


# Sources -----------------------------------------------------------------------------------------------------------------------


def test_consumer_offsets_beyond_the_end_show_what_is_lost(tmp_path: Path) -> None:
    """Only a slave is left. It has the offsets of the master's consumers, but not yet the last messages that they read."""
    times = [AT + number for number in range(60)]
    plain_store(tmp_path / "a" / "store", COMMON, times[:30])
    table = {"OrderTopic@readers": {"0": 15, "1": 19}, "OrderTopic@others": {"1": 17}}
    (tmp_path / "a" / "store" / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": table}))
    report = rescued([tmp_path / "a" / "store"], tmp_path / "out", option=SIZES)
    assert lost(report) == {("OrderTopic", 1, number) for number in range(15, 19)}
    found = json.loads((tmp_path / "out" / "config" / "consumerOffset.json").read_text())["offsetTable"]
    assert found == {"OrderTopic@readers": {"0": 15, "1": 15}, "OrderTopic@others": {"1": 15}}


def test_placeholders_of_an_earlier_repair_give_way_to_the_messages(tmp_path: Path) -> None:
    name = "broker-4.9.7"
    stores = copies(name, tmp_path)
    row = [row for row, _ in entries(stores[0]).values() if row["topic"] == "gold4_orders"][7]
    flip(stores[0], row)
    rawlog.repair(stores[0], tmp_path / "repaired" / "store")
    report = rescued([tmp_path / "repaired" / "store", stores[1]], tmp_path / "out")
    check_result(name, tmp_path / "out", report, set())


def test_a_store_that_is_named_twice_is_used_once(tmp_path: Path) -> None:
    [one] = copies("4.9.8", tmp_path, 1)
    (tmp_path / "link").symlink_to(one.parent)
    (tmp_path / "empty").mkdir()
    roots = [str(one.parent), str(tmp_path / "link"), str(tmp_path / "empty")]
    report = rawlog.rescue(roots, to=tmp_path / "out", engine="local")
    assert len(report.facts["plan"][0]["copies"]) == 1
    said = " ".join(report.lines())
    assert "is the same directory as" in said
    assert f"{tmp_path / 'empty'}: no commit log is here" in said


def test_a_store_that_a_broker_has_locked_is_refused(tmp_path: Path) -> None:
    [one] = copies("4.9.8", tmp_path, 1)
    code = "import fcntl, sys; file = open(sys.argv[1], 'r+b'); fcntl.lockf(file, fcntl.LOCK_EX); print(1, flush=True); sys.stdin.read()"
    (one / "lock").write_bytes(b"lock")
    with subprocess.Popen(
        [sys.executable, "-c", code, str(one / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(OptionError, match=f"process {holder.pid} has it locked"):
            rawlog.rescue(str(one), to=tmp_path / "out", engine="local")
        holder.kill()


@pytest.mark.parametrize(
    "options", [{"topic": "a"}, {"brokers": 2}, {"option": {"unknown": 1}}, {"option": {"commitlog_size": "x"}}]
)
def test_options_that_mean_nothing_here_are_refused(options: dict[str, Any], tmp_path: Path) -> None:
    [one] = copies("4.9.8", tmp_path, 1)
    with pytest.raises(OptionError):
        rawlog.rescue(str(one), to=tmp_path / "out", engine="local", **options)


def test_every_round_runs_in_other_processes(tmp_path: Path) -> None:
    """What is sent to tasks can be pickled, is small, and names the same result in every run."""
    stores = copies("broker-4.9.7", tmp_path)
    tree = open_tree([str(one.parent) for one in stores])
    rescue = Rescue(RescueOptions(), tmp_path / "out")
    splits = rescue.plan(tree.roots, tree.files, [])
    found = []
    for split in splits:
        other, own = pickle.loads(pickle.dumps((rescue, split)))
        raw = pickle.dumps(other.survey(own, lambda _: None))
        assert len(raw) < 100_000
        found.append(SurveyResult(split, pickle.loads(raw)))
    [unit] = rescue.decide(found)
    assert "frozenset" not in repr(unit.content)
    other, own = pickle.loads(pickle.dumps((rescue, unit)))
    report = other.carry(own, Folder(tmp_path / "made").make(), Folder(tmp_path / "aside"), lambda _: None)
    assert report.is_whole


def test_a_file_without_a_place_is_reported(tmp_path: Path) -> None:
    """Repair named the file that it left out, exit 1; rescue left it out and said nothing."""
    [root] = copies("broker-4.9.7", tmp_path, 1)
    (root / "commitlog" / f"{1 << 30:020}").write_bytes(log_files(store("5.3.4S-propcrc"))[1].read_bytes())
    report = rescued([root], tmp_path / "out")
    assert entries(tmp_path / "out").keys() == entries(store("broker-4.9.7")).keys()
    assert any(f"{1 << 30:020}" in str(one.path) for one in report.with_action(Action.DROPPED))
    assert not report.is_whole


def test_a_replica_whose_only_file_is_cut_takes_the_size_of_the_others(tmp_path: Path) -> None:
    """Nothing in it shows how large its files were: with the default size rescue refused both, although the other one is sound."""
    wounded, sound = copies("broker-5.5.1-doublewrite", tmp_path)
    [log] = log_files(wounded)
    log.write_bytes(log.read_bytes()[:87295])
    whole = entries(sound)
    rescued([wounded, sound], tmp_path / "out")
    assert entries(tmp_path / "out").keys() == whole.keys()


# Directories without a commit log ----------------------------------------------------------------------------------------------


def without_log(root: Path, units: bytes, *, topic: str = "OrderTopic") -> Path:
    """A directory with a checkpoint and one queue, whose commit log is gone."""
    path = root / "consumequeue" / topic / "0" / ("0" * 20)
    path.parent.mkdir(parents=True)
    path.write_bytes(units.ljust(2000, b"\0"))
    (root / "checkpoint").write_bytes(bytes(4096))
    return root


def units_at(*addresses: int) -> bytes:
    return b"".join(struct.pack(">qiq", address, 200, reference.java_hash("TagA")) for address in addresses)


PRE_BLANK = struct.pack(">qiq", 0, 0x7FFFFFFF, 0)


def test_units_that_fill_the_front_of_a_queue_are_no_lost_messages(tmp_path: Path) -> None:
    """Rescue and verify counted them: "queues know 1 message", exit code 1, although nothing was lost."""
    plain_store(tmp_path / "a" / "store", COMMON, [AT + number for number in range(30)])
    gone = without_log(tmp_path / "b" / "store", PRE_BLANK * 3, topic="Empty")
    report = rescued([tmp_path / "a" / "store", gone], tmp_path / "out", option=SIZES)
    assert report.is_whole, report.lines()
    assert "rocketmq.store.missing-file" not in {finding.code for finding in rawlog.verify(gone)}
    shutil.rmtree(gone)
    without_log(gone, PRE_BLANK * 3 + units_at(8000, 8200), topic="Empty")
    report = rawlog.rescue([str(tmp_path / "a"), str(tmp_path / "b")], plan=True, engine="local", option=SIZES)
    [loss] = report.with_action(Action.LOST)
    assert (loss.path, loss.reason) == (
        str(gone),
        "the commit log is missing; its consume queues list 2 messages that no other copy lists",
    )
    [finding] = [finding for finding in rawlog.verify(gone) if finding.code == "rocketmq.store.missing-file"]
    assert "the commit log is missing; the consume queues list 2 messages" in finding.message


def test_copies_without_a_commit_log_are_counted_together(tmp_path: Path) -> None:
    """Two copies of one store both reported its messages, twice as many as there were."""
    plain_store(tmp_path / "a" / "store", COMMON, [AT + number for number in range(30)])
    whole = (tmp_path / "a" / "store" / "consumequeue" / "OrderTopic" / "0" / ("0" * 20)).read_bytes()[: 15 * 20]
    roots = [
        without_log(tmp_path / "b" / "store", whole + units_at(8000, 8200, 8400)),
        without_log(tmp_path / "c" / "store", whole + units_at(8000, 8200, 8400, 8600)),
        without_log(tmp_path / "d" / "store", whole),  # the copy with a log lists all of these
    ]
    names = [str(tmp_path / name) for name in "abcd"]
    report = rawlog.rescue(names, plan=True, engine="local", option=SIZES)
    [loss] = report.with_action(Action.LOST)
    assert loss.path == str(roots[0])
    assert loss.reason == (
        f"the commit log is missing, also in {roots[1]}; their consume queues list 4 messages that no other copy lists"
    )


def test_queues_without_a_log_are_read_a_file_at_a_time(tmp_path: Path) -> None:
    """All queue files of all other stores were in memory at once, also those of topics that the directory does not have."""
    size = 1 << 20
    plain_store(tmp_path / "a" / "store", COMMON, [AT + number for number in range(30)])
    for queue in range(2, 14):
        units = units_at(*range(queue * size, queue * size + size // 20))
        for name in "ab":
            path = tmp_path / name / "store" / "consumequeue" / "OrderTopic" / str(queue) / ("0" * 20)
            path.parent.mkdir(parents=True)
            path.write_bytes(units)
    other = tmp_path / "a" / "store" / "consumequeue" / "OtherTopic" / "0" / ("0" * 20)
    other.parent.mkdir(parents=True)
    other.write_bytes(units_at(1, 2))
    tree = open_tree([str(tmp_path / "a"), str(tmp_path / "b")])
    rescue = Rescue(RescueOptions(options={name: str(value) for name, value in SIZES.items()}), tmp_path / "out")
    [split] = [
        split for split in rescue.plan(tree.roots, tree.files, []) if isinstance(split.content, QueuesWithoutLog)
    ]
    other.unlink()  # an error for who reads it
    tracemalloc.start()
    try:
        found = rescue.survey(split, lambda _: None)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found == (0, ())
    assert peak < 8 * size
