"""Real brokers judge what `repair` and `rebuild` do about settings that are not in the store: delay levels, file sizes, lost topics."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import rawlog
from tests.conftest import needed
from tests.data.rocketmq_rewriting import rebuilt, repaired, said
from tests.data.rocketmq_stores import copy, log_files, queues, store
from tests.formats.rocketmq.test_broker import CONFIG, VERSIONS, entries, start
from tests.formats.rocketmq.test_checks import patch
from tests.reference import rocketmq as reference
from tests.services.rocketmq import ROCKETMQ_5, BrokerError, RocketBroker

pytestmark = [pytest.mark.broker, pytest.mark.slow]
LEVELS = {"messageDelayLevel": "1s 1h 2h"}
SCHEDULE = "consumequeue/SCHEDULE_TOPIC_XXXX"


def delayed(level: int) -> str:
    return f"DELAY\x01{level}\x02"


def bodies(broker: RocketBroker, topic: str) -> list[bytes]:
    return [found.body for raw in broker.pull(topic, 0) for found in reference.messages(raw)]


def wait_for(broker: RocketBroker, topic: str, body: bytes) -> list[bytes]:
    """The bodies of a queue, once that one is among them."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        found = bodies(broker, topic)
        if body in found:
            return found
        time.sleep(0.5)
    raise AssertionError(f"{body!r} was not delivered; {bodies(broker, topic)}")


@pytest.mark.parametrize("version", VERSIONS)
def test_other_delay_levels_are_kept(version: str, tmp_path: Path) -> None:
    """With `messageDelayLevel` other than the default, 1 h became the default's 5 s: the broker then delivered the message at once.
    The healthy store was called damaged, one `queue-differs` for each delayed message.
    """
    root = tmp_path / "made" / "store"
    root.mkdir(parents=True)
    with needed(), RocketBroker(version, root, CONFIG | LEVELS) as broker:
        broker.send("delays", 0, b"in an hour", delayed(2))
        broker.send("delays", 0, b"soon", delayed(1))
        assert wait_for(broker, "delays", b"soon") == [b"soon"]
        broker.stop()
    theirs = queues(root)
    assert any(name.startswith(SCHEDULE) for name in theirs)
    assert rawlog.verify(root).verdict == "clean", list(rawlog.verify(root))
    for number, work in enumerate((repaired, rebuilt)):
        report = work(root, tmp_path / f"out{number}")
        assert queues(tmp_path / f"out{number}") == theirs
        assert "delay" not in said(report)
    # Without units, settings near the store or an option tell.
    bare = tmp_path / "made" / "bare"
    shutil.copytree(root, bare)
    shutil.rmtree(bare / SCHEDULE)
    (tmp_path / "listed").mkdir()
    shutil.copytree(bare, tmp_path / "listed" / "store")
    (tmp_path / "listed" / "broker.conf").write_text(
        "# settings\nmessageDelayLevel = 1s 1h 2h\nmappedFileSizeConsumeQueue=2000\n"
    )
    rebuilt(tmp_path / "listed" / "store", tmp_path / "by-conf")
    rebuilt(bare, tmp_path / "by-option", {"delay_levels": LEVELS["messageDelayLevel"]})
    assert queues(tmp_path / "by-conf") == queues(tmp_path / "by-option") == theirs
    guessed = rebuilt(bare, tmp_path / "guessed")
    assert "defaults are assumed" in said(guessed)
    for out in ("out0", "out1"):
        with RocketBroker(version, tmp_path / out, CONFIG | LEVELS) as broker:
            broker.send("delays", 0, b"again", delayed(1))
            assert wait_for(broker, "delays", b"again") == [b"soon", b"again"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_lost_delayed_message_does_not_hold_up_its_level(version: str, tmp_path: Path) -> None:
    """A placeholder in the schedule topic had no real topic: 4.9.7 failed on it, and never delivered the messages after it."""
    root = tmp_path / "store"
    root.mkdir()
    with needed(), RocketBroker(version, root, CONFIG | {"messageDelayLevel": "10s 1h"}) as broker:
        broker.send("delays", 0, b"the lost one", delayed(1))
        broker.send("delays", 0, b"the next one", delayed(1))
        broker.kill()
    [log, *_] = log_files(root)
    at = log.read_bytes().index(b"the lost one")
    patch(log, at, b"X")
    (root / "abort").unlink(missing_ok=True)
    report = repaired(root, tmp_path / "out")
    assert report.counts["messages_lost"] == 1
    with RocketBroker(version, tmp_path / "out", CONFIG | {"messageDelayLevel": "10s 1h"}) as broker:
        assert wait_for(broker, "delays", b"the next one") == [b"the next one"]


def test_a_lost_timer_message_does_not_hold_up_the_timer(tmp_path: Path) -> None:
    """Its placeholder had neither a due time nor a real queue: the timer failed on it again and again, and others waited."""
    root = tmp_path / "store"
    root.mkdir()
    settings = CONFIG | {"timerWheelEnable": "true", "mappedFileSizeTimerLog": "65536"}
    with needed(), RocketBroker(ROCKETMQ_5, root, settings) as broker:
        for body in (b"the lost one", b"the next one"):
            broker.send("timers", 0, body, "TIMER_DELAY_SEC\x0110\x02UNIQ_KEY\x01" + body[4:8].decode() + "\x02")
        broker.kill()
    [log, *_] = log_files(root)
    patch(log, log.read_bytes().index(b"the lost one"), b"X")
    report = repaired(root, tmp_path / "out")
    assert report.counts["messages_lost"] == 1
    with RocketBroker(ROCKETMQ_5, tmp_path / "out", settings) as broker:
        assert set(wait_for(broker, "timers", b"the next one")) == {b"the next one"}, "perhaps twice: after a crash"


@pytest.mark.parametrize("version", VERSIONS)
def test_files_of_a_size_that_nothing_shows_are_left_to_the_broker(version: str, tmp_path: Path) -> None:
    """`repair` of a store without consume queues wrote files of the default size: a broker with another setting died with 253, although
    it would have started on the store as it was.
    """
    root = copy("broker-4.9.7", tmp_path)
    for folder in ("consumequeue", "index"):
        shutil.rmtree(root / folder)
    report = repaired(root, tmp_path / "out")
    assert "consumequeue: nothing shows the size" in said(report)
    assert not (tmp_path / "out" / "consumequeue").exists()
    assert rawlog.verify(tmp_path / "out").verdict == "clean"
    wanted = entries(tmp_path / "out")
    broker = start(version, tmp_path / "out")
    try:
        for (topic, queue_id), rows in wanted.items():
            assert broker.pull(topic, queue_id)[: len(rows)] == [row["bytes"] for row in rows], (topic, queue_id)
        row = next(row for rows in wanted.values() for row in rows if row["keys"])
        assert row["bytes"] in broker.by_key(row["topic"], row["keys"].split(" ")[0])
    finally:
        broker.__exit__(None, None, None)


def test_queues_of_another_size_keep_a_broker_from_starting(tmp_path: Path) -> None:
    """What the note of `rebuild` warns of: it writes what was asked for, with the default size."""
    root = copy("broker-4.9.7", tmp_path)
    shutil.rmtree(root / "consumequeue")
    report = rebuilt(root, tmp_path / "out")
    assert "a broker with another setting does not start" in said(report)
    with pytest.raises(BrokerError, match="ended with"):
        start(ROCKETMQ_5, tmp_path / "out")


def garbage(raw: bytes) -> bytes:
    return raw[: len(raw) // 2] + b"\xff" + raw[len(raw) // 2 :]


def null_entry(raw: bytes) -> bytes:
    return raw.replace(b'Table":{', b'Table":{"nothing":null,', 1)


@pytest.mark.parametrize("damage", [garbage, null_entry])
def test_lost_topics_are_made_again(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    """An unreadable `topics.json` without `.bak` was left out: 5.3.3 then did not start ("should be BatchCQ"). One of the wrong shape was
    copied as it is, to the same end.
    """
    root = copy("broker-5.3.3", tmp_path)
    for path in (root / "config").glob("*.bak"):
        path.unlink()
    names = ("topics.json", "subscriptionGroup.json", "delayOffset.json")
    for name in names:
        path = root / "config" / name
        path.write_bytes(damage(path.read_bytes()))
    repaired(root, tmp_path / "out")
    assert not [each for each in rawlog.verify(tmp_path / "out") if each.severity != "info"]
    made = json.loads((tmp_path / "out" / "config" / "topics.json").read_text())["topicConfigTable"]
    assert made["gold_bcq"]["attributes"] == {"queue.type": "BatchCQ"}
    assert made["gold_compact"]["attributes"] == {"cleanup.policy": "COMPACTION"}
    wanted = entries(store("broker-5.3.3"))
    broker = start(ROCKETMQ_5, tmp_path / "out")
    try:
        for (topic, queue_id), rows in wanted.items():
            if topic not in ("gold_compact", "gold_bcq"):
                assert broker.pull(topic, queue_id)[: len(rows)] == [row["bytes"] for row in rows], (topic, queue_id)
        for queue_id in (0, 1):
            low, high = broker.offsets("gold_bcq", queue_id)
            assert (low, high > 0) == (0, True)
    finally:
        broker.__exit__(None, None, None)
