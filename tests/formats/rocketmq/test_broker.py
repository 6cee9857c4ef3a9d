"""Real brokers judge: they start on stores that rawlog wrote or repaired, serve every message byte for byte, and go on taking messages."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rawlog
from tests.conftest import needed
from tests.data.golden import golden_path
from tests.data.rocketmq_rewriting import repaired, rewritten, said, written
from tests.data.rocketmq_stores import copy, log_files, store
from tests.formats.rocketmq.test_checks import drop_blank, flip_body, leave_stale_entry, tear_last_entry, zero_page
from tests.reference import rocketmq as reference
from tests.services.rocketmq import FOUND, ROCKETMQ_4, ROCKETMQ_5, ROCKETMQ_55, RocketBroker, split

pytestmark = [pytest.mark.broker, pytest.mark.slow]
SIZES = {
    "commitlog_size": "524288",
    "queue_size": "2000",
    "index_slots": "500",
    "index_entries": "600",
    "batch_queue_size": "4600",
}
CONFIG = {
    "mappedFileSizeCommitLog": "524288", "mappedFileSizeConsumeQueue": "2000", "maxHashSlotNum": "500", "maxIndexNum": "600",
    "mapperFileSizeBatchConsumeQueue": "4600",
}  # fmt: skip
VERSIONS = (ROCKETMQ_4, ROCKETMQ_5, ROCKETMQ_55)
GET_CONSUME_STATS = 208
#: What is said of each queue; the answer is not JSON, for its names are objects.
STATS = re.compile(r'"queueId":(\d+),"topic":"([^"]+)"}:{"brokerOffset":(\d+),"consumerOffset":(\d+)')
NAMES = ("group", "topic", "partition", "committed_offset", "end_offset", "lag")


def start(version: str, root: Path) -> RocketBroker:
    with needed():
        return RocketBroker(version, root, CONFIG).__enter__()


def entries(root: Path) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """The messages that a broker must serve, by queue, each with its bytes."""
    files = {int(path.name): path.read_bytes() for path in log_files(root)}
    queues: dict[tuple[str, int], list[dict[str, Any]]] = {}
    names = ["physical_offset", "size", "topic", "queue_id", "path", "position", "keys", "transaction", "message_id"]
    for row in rawlog.read(root, table="rocketmq.messages", columns=names).to_pylist():
        if row["transaction"] in ("none", "commit") and not row["topic"].startswith(
            ("RMQ_SYS", "SCHEDULE", "TRANS", "%", "rmq_sys")
        ):
            data = files[int(Path(row["path"]).name)]
            row["bytes"] = data[row["position"] : row["position"] + row["size"]]
            queues.setdefault((row["topic"], row["queue_id"]), []).append(row)
    return queues


def judge(broker: RocketBroker, queues: dict[tuple[str, int], list[dict[str, Any]]]) -> None:
    for (topic, queue_id), rows in queues.items():
        assert broker.pull(topic, queue_id) == [row["bytes"] for row in rows], (topic, queue_id)
    every = [row for rows in queues.values() for row in rows]
    for row in every[:: max(1, len(every) // 25)]:
        assert broker.by_address(row["physical_offset"]) == row["bytes"]
        if row["keys"]:
            assert row["bytes"] in broker.by_key(row["topic"], row["keys"].split(" ")[0])
    (topic, queue_id), rows = next(iter(queues.items()))
    assert broker.send(topic, queue_id, b"one more", "KEYS\x01extra\x02") == len(rows)
    assert len(broker.pull(topic, queue_id)) == len(rows) + 1


@pytest.mark.parametrize("derived", ["full", "none"])
@pytest.mark.parametrize("version", VERSIONS)
def test_broker_serves_a_store_that_rawlog_wrote(version: str, derived: str, tmp_path: Path) -> None:
    """Messages of its own, and a Kafka partition whose offsets begin at 57: the queue begins there too."""
    late = rawlog.read(golden_path("kafka", "broker-4.3.0", "data", "trimmed-0"))
    rows = pa.concat_tables([rawlog.read(store("broker-4.9.7"), topic="gold4_*"), late])
    written(rows.to_batches(), tmp_path / "store", SIZES | {"derived": derived})
    queues = entries(tmp_path / "store")
    assert sum(map(len, queues.values())) == len(rows)
    broker = start(version, tmp_path / "store")
    try:
        judge(broker, queues)
        assert broker.offsets("trimmed", 0) == (57, 57 + len(late))
    finally:
        broker.__exit__(None, None, None)


@pytest.mark.parametrize("version", VERSIONS)
def test_broker_leaves_what_rawlog_wrote_as_it_is(version: str, tmp_path: Path) -> None:
    rows = rawlog.read(store("broker-4.9.7"), topic="gold4_*")
    written(rows.to_batches(), tmp_path / "store", SIZES)
    before = {
        path: path.read_bytes()
        for path in (tmp_path / "store").rglob("*")
        if path.is_file() and path.parent.name != "config"
    }
    broker = start(version, tmp_path / "store")
    try:
        broker.stop()
        for path, data in before.items():
            if path.name not in ("checkpoint", "abort", "lock"):
                assert path.read_bytes() == data, path
        assert not rawlog.verify(tmp_path / "store").errors
    finally:
        broker.__exit__(None, None, None)


def damaged_everywhere(root: Path) -> None:
    """All at once: a page of zeros, a wrong checksum and no blank entry in the first file, a stale entry after the last."""
    for damage in (drop_blank, flip_body, zero_page, leave_stale_entry):
        damage(root)


@pytest.mark.parametrize("damage", [damaged_everywhere, tear_last_entry])
@pytest.mark.parametrize("version", VERSIONS)
def test_broker_serves_a_repaired_store(version: str, damage: Any, tmp_path: Path) -> None:
    """A broker on the damaged store itself would have deleted all that follows the damage (the tests below)."""
    root = copy("broker-4.9.7", tmp_path)
    damage(root)
    repaired(root, tmp_path / "repaired")
    queues = entries(tmp_path / "repaired")
    assert sum(map(len, queues.values())) > 440
    end = log_end(tmp_path / "repaired")
    broker = start(version, tmp_path / "repaired")
    try:
        for (topic, queue_id), rows in queues.items():
            # Delayed messages that are due by now are delivered after what was there.
            assert broker.pull(topic, queue_id)[: len(rows)] == [row["bytes"] for row in rows], (topic, queue_id)
        row = next(row for rows in queues.values() for row in rows if row["keys"])
        assert row["bytes"] in broker.by_key(row["topic"], row["keys"].split(" ")[0])
        assert broker.by_address(row["physical_offset"]) == row["bytes"]
        assert sent_to(broker) >= end
        assert broker.by_address(end) is not None, "what was sent or delivered first does not follow the last message"
    finally:
        broker.__exit__(None, None, None)


def log_end(root: Path) -> int:
    """The address after the last message that is at its own place."""
    path = [path for path in log_files(root) if path.read_bytes().strip(b"\0")][-1]
    end = int(path.name)
    with contextlib.suppress(reference.Bad):
        for one in reference.messages(path.read_bytes()):
            if one.physical_offset != int(path.name) + one.position or not one.crc_ok:
                break
            end = one.physical_offset + one.size
    return end


def sent_to(broker: RocketBroker) -> int:
    """Send one message more; its physical offset."""
    broker.send("gold4_one", 0, b"one more")
    entry = broker.pull("gold4_one", 0)[-1]
    return int.from_bytes(entry[28:36], "big")


@pytest.mark.parametrize("damage", [flip_body, drop_blank, zero_page])
def test_broker_alone_deletes_what_the_finding_says(damage: Any, tmp_path: Path) -> None:
    root = copy("broker-4.9.7", tmp_path)
    damage(root)
    [found] = [
        each for each in rawlog.verify(root) if each.code == "rocketmq.store.next-start" and "4.x" in each.message
    ]
    names = [path.name for path in log_files(root)]
    broker = start(ROCKETMQ_4, root)
    broker.__exit__(None, None, None)
    left = [path.name for path in log_files(root) if path.read_bytes().strip(b"\0")]
    assert left == names[:1]
    assert all(name in found.message for name in names[1:])


def test_broker_cuts_off_a_torn_last_entry(tmp_path: Path) -> None:
    """What it takes next, a message sent or a delayed one delivered, is where the torn entry began."""
    root = copy("broker-4.9.7", tmp_path)
    tear_last_entry(root)
    torn = log_end(root)
    [found] = [each for each in rawlog.verify(root) if each.code == "rocketmq.store.next-start"]
    assert "would cut the log" in found.message
    assert torn == int(Path(found.path).name) + (found.position or 0)
    broker = start(ROCKETMQ_4, root)
    try:
        sent_to(broker)
        there = broker.by_address(torn)
        assert there is not None
        assert int.from_bytes(there[28:36], "big") == torn
    finally:
        broker.__exit__(None, None, None)


def test_broker_takes_up_a_stale_entry_as_the_finding_says(tmp_path: Path) -> None:
    """It does not compare physical offsets: the log goes on after the stale entry, which no broker ever repairs."""
    root = copy("broker-4.9.7", tmp_path)
    end = log_end(root)
    leave_stale_entry(root)
    [found] = [each for each in rawlog.verify(root) if each.code == "rocketmq.commitlog.stale"]
    assert "serves them" in found.message
    broker = start(ROCKETMQ_4, root)
    try:
        # Delayed messages that are due may come first, but there is nothing where the log really ends but the stale entry.
        assert sent_to(broker) >= end + (found.size or 0) > end
        stale = broker.by_address(end)
        assert stale is None or int.from_bytes(stale[28:36], "big") != end
    finally:
        broker.__exit__(None, None, None)


@pytest.mark.parametrize("damage", ["stray", "size"])
def test_broker_does_not_start_where_a_finding_says_so(damage: str, tmp_path: Path) -> None:
    from tests.services.rocketmq import BrokerError

    root = copy("broker-4.9.7", tmp_path)
    path = log_files(root)[-1]
    if damage == "stray":
        path.with_name("_SUCCESS").touch()
    else:
        path.write_bytes(path.read_bytes()[:-4096])
    assert any("would not start" in each.message for each in rawlog.verify(root))
    with pytest.raises(BrokerError, match="ended with"):
        start(ROCKETMQ_4, root)


def test_broker_serves_what_was_rescued_from_three_copies(tmp_path: Path) -> None:
    """A master and two slaves, each damaged elsewhere: the broker serves every message that one of them still has, and goes on."""
    roots = []
    for name, damage in (("a", flip_body), ("b", zero_page), ("c", tear_last_entry)):
        roots.append(copy("broker-4.9.7", tmp_path / name))
        damage(roots[-1])
    log_files(roots[2])[0].unlink()
    report = rawlog.rescue([str(root) for root in roots], to=tmp_path / "rescued", engine="local")
    assert report.is_whole, report.lines()
    queues = entries(store("broker-4.9.7"))
    broker = start(ROCKETMQ_5, tmp_path / "rescued")
    try:
        for (topic, queue_id), rows in queues.items():
            # Delayed messages that are due by now are delivered after what was there.
            assert broker.pull(topic, queue_id)[: len(rows)] == [row["bytes"] for row in rows], (topic, queue_id)
        row = next(row for rows in queues.values() for row in rows if row["keys"])
        assert row["bytes"] in broker.by_key(row["topic"], row["keys"].split(" ")[0])
        assert sent_to(broker) >= log_end(store("broker-4.9.7"))
    finally:
        broker.__exit__(None, None, None)


def test_groups_are_those_that_the_admin_tools_show(tmp_path: Path) -> None:
    """What `mqadmin consumerProgress` prints is the broker's answer to this request. A queue without messages has no file and ends at 0."""
    root = copy("broker-4.9.7", tmp_path)
    rows = [row for row in rawlog.groups(store("broker-4.9.7")) if row["table"] == "offsets"]
    ours = {tuple(row[name] for name in NAMES) for row in rows if row["group"].startswith("gold4_")}
    broker, theirs = start(ROCKETMQ_4, root), set()
    try:
        for group in {row["group"] for row in rows if row["group"].startswith("gold4_")}:
            _, answer = broker.call(GET_CONSUME_STATS, consumerGroup=group, topic="")
            for queue, topic, end, offset in STATS.findall(answer.decode()):
                theirs.add((group, topic, int(queue), int(offset), int(end), int(end) - int(offset)))
    finally:
        broker.__exit__(None, None, None)
    assert len(ours) == 15
    assert ours == theirs


# 5.5.1 ------------------------------------------------------------------------------------------------------------------------

PLACES = ("namesrvAddr", "listenPort", "haListenPort", "storePathRootDir", "storePathCommitLog")


def settings(name: str) -> dict[str, str]:
    """What the broker of a store was configured with, but not where it ran."""
    lines = (store(name).parent / "broker.conf").read_text().splitlines()
    pairs = [line.split("=", 1) for line in lines if "=" in line]
    return {key: value for key, value in pairs if key not in PLACES} | {"timerWheelEnable": "false"}


def serves_all(broker: RocketBroker, root: Path) -> int:
    """Whether a broker gives out every message of a log, and finds each by its tag; how many tags."""
    tags: dict[tuple[str, str], set[bytes]] = {}
    alike: dict[tuple[str, int], set[bytes]] = {}  # the index has hashes alone: AaAa finds BBBB, too
    by_address = {
        row["physical_offset"]: row["tags"]
        for row in rawlog.read(root, table="rocketmq.messages", columns=["physical_offset", "tags"]).to_pylist()
    }
    for (topic, queue_id), rows in entries(root).items():
        if topic.endswith("bcq"):
            continue  # 5.5.1 itself cannot serve a topic of batches from RocksDB
        # Delayed messages that are due by now are delivered after what was there.
        assert broker.pull(topic, queue_id)[: len(rows)] == [row["bytes"] for row in rows], (topic, queue_id)
        for row in rows:
            if tag := by_address[row["physical_offset"]]:
                tags.setdefault((topic, tag), set()).add(row["bytes"])
                alike.setdefault((topic, reference.java_hash(f"{topic}#T#{tag}")), set()).add(row["bytes"])
    for (topic, tag), wanted in tags.items():
        answer, body = broker.call(
            12, topic=topic, key=tag, maxNum=64, beginTimestamp=0, endTimestamp=(1 << 63) - 1, indexType="T"
        )
        assert answer["code"] == FOUND, (topic, tag, answer)
        answers, same = split(body), alike[topic, reference.java_hash(f"{topic}#T#{tag}")]
        # What the broker has delivered since it started is after the end. After a crash an answer may have a message twice.
        found = {raw for raw in answers if int.from_bytes(raw[28:36], "big") <= max(by_address)}
        assert found <= same, (topic, tag)
        assert found == same >= wanted or (len(same) > 64 and len(answers) == 64), (topic, tag)
    return len(tags)


@pytest.mark.parametrize("verb", ["rebuild", "repair"])
@pytest.mark.parametrize(
    "name", ["broker-5.5.1", "broker-5.5.1-rocksdb", "broker-5.5.1-rocksdb-crashed", "broker-5.5.1-rocksdb-v2"]
)
def test_a_55_broker_serves_what_was_written_again(name: str, verb: str, tmp_path: Path) -> None:
    """Look-ups by tag found 0 of 17, and the first message of a store with queues in RocksDB was in no queue."""
    report = rewritten(verb, store(name), tmp_path / "out")
    assert report.is_whole, said(report)
    with needed(), RocketBroker(ROCKETMQ_55, tmp_path / "out", settings(name)) as broker:
        assert serves_all(broker, store(name)) > 10


@pytest.mark.parametrize("name", ["broker-5.5.1", "broker-5.5.1-rocksdb", "broker-5.5.1-doublewrite"])
def test_a_55_broker_serves_what_was_kept_of_a_damaged_store(name: str, tmp_path: Path) -> None:
    root = copy(name, tmp_path)
    flip_body(root)
    report = repaired(root, tmp_path / "out")
    assert not report.is_whole
    told = re.search(r"commitLogRecoverMaxNum=\d+", said(report))
    config = settings(name) | (dict([told[0].split("=")]) if told else {})
    with needed(), RocketBroker(ROCKETMQ_55, tmp_path / "out", config) as broker:
        assert serves_all(broker, tmp_path / "out") > 10


def test_a_55_broker_builds_the_queues_of_a_long_log_with_the_setting_that_is_named(tmp_path: Path) -> None:
    """It served 148 of 400 messages: it reads the last ten files alone."""
    rows = rawlog.read(store("broker-4.9.7"), topic="gold4_*").slice(0, 200)
    small = {"commitlog_size": "4096"}
    rows = rows.filter([len(value) < 1000 for value in rows["value"].to_pylist()])
    written(rows.to_batches(), tmp_path / "store", small | {"derived": "none"})
    report = repaired(tmp_path / "store", tmp_path / "out")
    told = re.search(r"commitLogRecoverMaxNum=\d+", said(report))
    assert told is not None
    config = {"mappedFileSizeCommitLog": "4096"} | dict([told[0].split("=")])
    queues = entries(tmp_path / "out")
    assert len(log_files(tmp_path / "out")) > 10
    with needed(), RocketBroker(ROCKETMQ_55, tmp_path / "out", config) as broker:
        for (topic, queue_id), wanted in queues.items():
            assert broker.pull(topic, queue_id) == [row["bytes"] for row in wanted], (topic, queue_id)
