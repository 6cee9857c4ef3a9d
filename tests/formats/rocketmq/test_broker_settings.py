"""Settings that are not in the store, or not readable there: what rawlog finds out, keeps, rebuilds and reports."""

from __future__ import annotations

import contextlib
import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rawlog
from rawlog.formats.rocketmq import config
from rawlog.formats.rocketmq.store.configs import delivered_offsets
from rawlog.formats.rocketmq.store.settings import sizes_of
from rawlog.model.errors import RawlogError
from tests.data.rocketmq_rewriting import rebuilt, repaired, said
from tests.data.rocketmq_stores import copy, log_files, queues, store
from tests.formats.rocketmq.test_checks import findings, patch
from tests.reference import rocketmq as reference

TABLES = [
    f"rocketmq.{name}" for name in ("topics", "groups", "offsets", "delays", "transactions", "scheduled", "retries")
]
SCHEDULE = "consumequeue/SCHEDULE_TOPIC_XXXX"


def serious(root: Path) -> list[Any]:
    return [each for each in rawlog.verify(root) if each.severity != "info"]


# ------------------------------------------------------------------ delay levels


def other_levels(root: Path, factor: int) -> None:
    """The store as if its broker had had levels that are `factor` times as long."""
    times = {
        one.physical_offset: one.stored for path in log_files(root) for one in reference.messages(path.read_bytes())
    }
    for path in (root / SCHEDULE).rglob("0000*"):
        for number, (address, _, due) in enumerate(reference.units(path.read_bytes())):
            delay = (due - times[address]) * factor
            patch(path, 20 * number + 12, struct.pack(">q", times[address] + delay))


@pytest.mark.parametrize("name", ["broker-4.9.7", "broker-5.3.3"])
def test_a_healthy_store_with_other_delay_levels_is_clean(name: str, tmp_path: Path) -> None:
    """It was called damaged, and `rebuild` and `repair` gave its messages the due times of the default levels: 1 h became 2 min."""
    root = copy(name, tmp_path)
    other_levels(root, 30)
    assert not serious(root)
    theirs = queues(root)
    for number, work in enumerate((repaired, rebuilt)):
        report = work(root, tmp_path / str(number))
        assert queues(tmp_path / str(number)) == theirs
        assert "assumed" not in said(report)
    rows = rawlog.read(root, table="rocketmq.scheduled").to_pylist()
    due = {round(row["due_timestamp"].timestamp() * 1000) for row in rows if row["kind"] == "delay"}
    units = [data for path, data in theirs.items() if path.startswith(SCHEDULE)]
    assert due == {tag for data in units for _, _, tag in reference.units(data)}


def test_due_times_stay_when_messages_move(tmp_path: Path) -> None:
    root = copy("broker-5.3.3", tmp_path)
    other_levels(root, 30)
    first = next(iter(reference.messages(log_files(root)[0].read_bytes())))
    patch(log_files(root)[0], first.position, bytes(8))
    repaired(root, tmp_path / "out", {"move": "true"})

    def due(store_root: Path) -> dict[str, list[int]]:
        return {
            name: [tag for _, _, tag in reference.units(data)] for name, data in queues(store_root, SCHEDULE).items()
        }

    assert due(tmp_path / "out") == due(root)


def test_a_damaged_due_time_is_found_and_follows_from_the_other_units_of_its_level(tmp_path: Path) -> None:
    root = copy("broker-5.3.3", tmp_path)
    other_levels(root, 30)
    theirs = queues(root)
    path = max((root / SCHEDULE).rglob("0000*"), key=lambda path: len(reference.units(path.read_bytes())))
    assert len(reference.units(path.read_bytes())) > 1
    raw = path.read_bytes()
    patch(path, 12 + 3, bytes([raw[12 + 3] ^ 0x10]))
    [found] = findings(root, "rocketmq.store.queue-differs")
    assert found.path == str(path)
    repaired(root, tmp_path / "out")
    assert queues(tmp_path / "out") == theirs


def test_delay_levels_that_nothing_shows_are_an_assumption_that_is_reported(tmp_path: Path) -> None:
    root = copy("broker-5.3.3", tmp_path)
    shutil.rmtree(root / SCHEDULE)
    for work in (repaired, rebuilt):
        report = work(root, tmp_path / work.__name__)
        assert [note for note in report.lines() if "defaults are assumed" in note], report.lines()
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "broker.conf").write_text("messageDelayLevel=1m 2m 3m\nstorePathRootDir=/nowhere/store\n")
    report = repaired(root, tmp_path / "listed")
    assert not [note for note in report.lines() if "assumed" in note]
    times = {one.physical_offset: one for path in log_files(root) for one in reference.messages(path.read_bytes())}
    for path in (tmp_path / "listed" / SCHEDULE).rglob("0000*"):
        for address, _, due in reference.units(path.read_bytes()):
            level = min(3, int(times[address].shown[b"DELAY"]))
            assert due == times[address].stored + 60_000 * level


def test_a_broker_conf_of_another_store_is_not_taken(tmp_path: Path) -> None:
    root = copy("4.9.8", tmp_path)
    (tmp_path / "other").mkdir()
    conf = tmp_path / "broker.conf"
    conf.write_text(f"mappedFileSizeConsumeQueue=4000\nstorePathRootDir={tmp_path / 'other'}\n")
    shutil.rmtree(root / "consumequeue")
    assert "queue" not in sizes_of(rawlog.open(root).files).known_fields
    conf.write_text(f"mappedFileSizeConsumeQueue=4000\nstorePathRootDir={root}\n")
    sizes = sizes_of(rawlog.open(root).files)
    assert (sizes.queue, "queue" in sizes.known_fields) == (4000, True)


# ------------------------------------------------------------------ sizes


def test_what_no_file_shows_the_size_of_is_left_to_the_broker(tmp_path: Path) -> None:
    """Queue files of the default size kept a broker with another setting from starting; index files it would have misread."""
    root = copy("5.1.4", tmp_path)
    for folder in ("consumequeue", "batchconsumequeue", "index"):
        shutil.rmtree(root / folder)
    outcome = repaired(root, tmp_path / "out")
    for folder in ("consumequeue", "batchconsumequeue", "index"):
        assert f"{folder}: nothing shows the size of its files" in said(outcome)
        assert not list((tmp_path / "out").glob(f"{folder}/*"))
    assert (tmp_path / "out" / "abort").exists()
    assert not (tmp_path / "out" / "checkpoint").exists()
    assert outcome.is_whole, outcome
    sized = {"queue_size": "2000", "batch_queue_size": "4600", "index_slots": "50", "index_entries": "150"}
    repaired(root, tmp_path / "sized", sized)
    assert queues(tmp_path / "sized") == queues(store("5.1.4"))
    assert (tmp_path / "sized" / "checkpoint").exists()


def test_a_lone_short_file_does_not_show_the_size_of_the_log(tmp_path: Path) -> None:
    root = copy("4.9.8", tmp_path)
    first, *others = log_files(root)
    for path in others:
        path.unlink()
    assert "commit_log" in sizes_of(rawlog.open(root).files).known_fields, "a blank entry says how large the file is"
    first.write_bytes(first.read_bytes()[:30_001])
    assert "commit_log" not in sizes_of(rawlog.open(root).files).known_fields
    report = repaired(root, tmp_path / "out", dry_run=True)
    assert "commitlog_size" in said(report)
    report = repaired(root, tmp_path / "out", {"commitlog_size": "65536"})
    assert "commitlog_size" not in said(report)


# ------------------------------------------------------------------ settings that cannot be read


def garbage(path: Path) -> None:
    path.write_bytes(b"\xff" + path.read_bytes())
    path.with_name(f"{path.name}.bak").unlink(missing_ok=True)


def test_topics_are_made_again_from_queues_and_messages(tmp_path: Path) -> None:
    """They were left out: 5.3.3 does not start on a store with queues of batches then ("should be BatchCQ")."""
    root = copy("broker-5.3.3", tmp_path)
    garbage(root / "config" / "topics.json")
    outcome = repaired(root, tmp_path / "out")
    assert not outcome.is_whole
    assert not outcome.remaining
    assert [note for note in outcome.lines() if "topics.json: made again" in note]
    made = json.loads((tmp_path / "out" / "config" / "topics.json").read_text())["topicConfigTable"]
    real = config.parse((store("broker-5.3.3") / "config" / "topics.json").read_bytes())["topicConfigTable"]
    mine = {name for name in made if name.startswith("gold")}
    assert mine == {name for name in real if name.startswith("gold") and (any_queue(root, name))}
    for name in mine:
        assert made[name]["attributes"] == real[name]["attributes"]
        assert made[name]["readQueueNums"] <= real[name]["readQueueNums"]
    assert not any(name.startswith(("rmq_sys", "RMQ_SYS", "SCHEDULE")) for name in made), "a broker makes these"
    # No broker makes this one when it starts: messages in it could not be pulled.
    assert made["TRANS_CHECK_MAX_TIME_TOPIC"]["readQueueNums"] == 1


def any_queue(root: Path, topic: str) -> bool:
    return any((root / kind / topic).exists() for kind in ("consumequeue", "batchconsumequeue"))


def test_a_broker_takes_the_backup_with_the_queue_types_that_it_lacks(tmp_path: Path) -> None:
    root = copy("broker-5.3.3", tmp_path)
    path = root / "config" / "topics.json"
    path.with_name("topics.json.bak").write_text(path.read_text().replace("BatchCQ", "SimpleCQ"))
    path.write_bytes(b"{")
    outcome = repaired(root, tmp_path / "out")
    assert not outcome.remaining
    made = json.loads((tmp_path / "out" / "config" / "topics.json").read_text())["topicConfigTable"]
    assert made["gold_bcq"]["attributes"]["queue.type"] == "BatchCQ"


@pytest.mark.parametrize("name", ["broker-4.9.7", "broker-5.3.3"])
def test_delay_offsets_follow_from_what_was_delivered(name: str, tmp_path: Path) -> None:
    """Left out, they made a broker deliver every delayed message again."""
    root = copy(name, tmp_path)
    table = config.parse((root / "config" / "delayOffset.json").read_bytes())["offsetTable"]
    real = {int(level): offset for level, offset in table.items() if offset}
    assert delivered_offsets(rawlog.open(root).files) == real
    garbage(root / "config" / "delayOffset.json")
    outcome = repaired(root, tmp_path / "out")
    assert not outcome.remaining
    assert json.loads((tmp_path / "out" / "config" / "delayOffset.json").read_text())["offsetTable"] == {
        str(level): offset for level, offset in real.items()
    }


@pytest.mark.parametrize("name", ["consumerOffset.json", "consumerFilter.json", "subscriptionGroup.json"])
def test_what_cannot_be_made_again_is_reported(name: str, tmp_path: Path) -> None:
    root = copy("broker-4.9.7", tmp_path)
    garbage(root / "config" / name)
    outcome = repaired(root, tmp_path / "out")
    assert not outcome.is_whole
    assert not outcome.remaining
    assert [note for note in outcome.lines() if name in note and ("lost" in note or "made again" in note)]
    if name == "subscriptionGroup.json":
        groups = json.loads((tmp_path / "out" / "config" / name).read_text())["subscriptionGroupTable"]
        assert groups


SHAPES = {
    '{"topicConfigTable":[1,2,3]}': "topicConfigTable: a list is not a table",
    '{"topicConfigTable":null}': "topicConfigTable: null is not a table",
    '{"topicConfigTable":{"a":null,"T":{"perm":6}}}': "topicConfigTable.a: null is not a table",
    '{"topicConfigTable":{"a":3,"T":{"perm":6}}}': "topicConfigTable.a: 3 is not a table",
    '{"topicConfigTable":{"T":{"readQueueNums":"x"}}}': 'topicConfigTable.T.readQueueNums: "x" is not a whole number',
    '{"topicConfigTable":{"T":{"readQueueNums":1e400}}}': "topicConfigTable.T.readQueueNums: Infinity is not a whole number",
    '{"topicConfigTable":{"T":{"readQueueNums":1000000000000000000000}}}': "is not a whole number",
    '{"topicConfigTable":{"T":{"order":"yes"}}}': "is neither true nor false",
    '{"topicConfigTable":{"T":{"attributes":[1]}}}': "topicConfigTable.T.attributes: a list is not a table",
    '{"dataVersion":{"counter":1e400},"topicConfigTable":{"T":{}}}': "dataVersion.counter: Infinity is not a whole number",
    '{"topicConfigTable":{"T":{"perm":6},"T":{"perm":4}}}': '"T" occurs twice in one table; the last one counts',
    "[1,2,3]": "a list is not a table",
    "null": "null is not a table",
    "[" * 500 + "]" * 500: "nested more than",
}


@pytest.mark.parametrize("text", SHAPES)
def test_settings_of_another_shape_are_a_finding_and_the_rest_is_read(text: str, tmp_path: Path) -> None:
    """5.3.3 refuses each of these files but the one with a name twice. `verify` said nothing, and the table failed."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text(text)
    found = findings(tmp_path, "rocketmq.store.config")
    assert SHAPES[text] in found[0].message, found
    assert found[0].severity == ("warning" if "twice" in SHAPES[text] else "error")
    if "nested" in SHAPES[text]:
        with pytest.raises(RawlogError, match="nested"):
            rawlog.read(tmp_path, table="rocketmq.topics")
        return
    rows = rawlog.read(tmp_path, table="rocketmq.topics").to_pylist()
    assert [row["topic"] for row in rows] == (["T"] if '"T"' in text else [])


@pytest.mark.parametrize(
    "fields",
    [
        '"readQueueNums":"4"', '"readQueueNums":null', '"readQueueNums":4.5', '"readQueueNums":true', '"readQueueNums":9999999999',
        '"order":7', '"topicName":["T"]', '"attributes":{"x":null}', '"attributes":{"x":3}', '"topicFilterType":"WHAT"', '"more":[1]',
    ],
)  # fmt: skip
def test_what_a_broker_takes_is_no_finding(fields: str, tmp_path: Path) -> None:
    """5.3.3 started on each of these and knew the topic."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text('{"dataVersion":null,"topicConfigTable":{"T":{' + fields + "}}}")
    assert not serious(tmp_path)
    assert [row["topic"] for row in rawlog.read(tmp_path, table="rocketmq.topics").to_pylist()] == ["T"]


def test_entries_that_a_broker_refuses_are_left_out_and_taken_from_the_backup(tmp_path: Path) -> None:
    root = copy("broker-4.9.7", tmp_path)
    path = root / "config" / "consumerOffset.json"
    whole = config.parse(path.read_bytes())
    names = sorted(whole["offsetTable"])
    damaged = json.loads(json.dumps(whole))
    damaged["offsetTable"][names[0]] = None
    damaged["offsetTable"]["new@group"] = {"0": "x", "1": 7}
    path.write_text(json.dumps(damaged))
    outcome = repaired(root, tmp_path / "out")
    assert not outcome.remaining
    assert not outcome.is_whole
    made = json.loads((tmp_path / "out" / "config" / "consumerOffset.json").read_text())
    assert made["offsetTable"] == whole["offsetTable"] | {"new@group": {"1": 7}}


@pytest.mark.parametrize("text", ["[1,2,3]", '{"topicConfigTable":[1]}', '{"topicConfigTable":{"a":null}}', "garbage"])
def test_topics_that_cannot_be_read_at_all_are_rebuilt_whatever_the_file_contains(text: str, tmp_path: Path) -> None:
    """JSON of the wrong shape was taken as a table of no topics: the repaired store had one topic, although 14 have queues."""
    root = copy("broker-5.3.3", tmp_path)
    (root / "config" / "topics.json").write_text(text)
    (root / "config" / "topics.json.bak").unlink(missing_ok=True)
    outcome = repaired(root, tmp_path / "out")
    assert not outcome.is_whole
    assert not outcome.remaining
    table = json.loads((tmp_path / "out" / "config" / "topics.json").read_text())["topicConfigTable"]
    assert len(table) == 14
    assert table["gold_bcq"]["attributes"] == {"queue.type": "BatchCQ"}
    assert any("made again from queues and messages, with 14 topics" in note for note in outcome.lines())


KEYS = st.sampled_from(
    ["topicConfigTable", "subscriptionGroupTable", "offsetTable", "lmqOffsetTable", "forbiddenTable", "dataVersion", "counter", "T@g",
     "0", "1", "99999999999", "readQueueNums", "perm", "order", "attributes", "queue.type", "groupName", "retryMaxTimes", "\ud800"]
)  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
TEXTS = st.one_of(
    VALUES.map(lambda value: json.dumps(value).encode()),
    st.binary(max_size=60),
    st.builds(
        lambda value, at, new: json.dumps(value).encode()[: at % 50] + new + json.dumps(value).encode()[at % 50 :],
        VALUES, st.integers(0, 50), st.sampled_from([b"[", b"}", b"1e400", b"-", b"0:", b'"\\ud800"', b"9" * 5000, b"[" * 3000]),
    ),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from([*config.SHAPES, "consumerFilter.json"]), TEXTS, min_size=1, max_size=4))
def test_whatever_settings_contain_only_errors_of_ours_come_out(tmp_path_factory: Any, files: dict[str, bytes]) -> None:
    """Every table, `verify` and `repair`: they read what can be read, or raise RawlogError. The repaired store is clean."""
    root = tmp_path_factory.mktemp("settings")
    (root / "store" / "config").mkdir(parents=True)
    (root / "store" / "commitlog").mkdir()
    (root / "store" / "commitlog" / f"{0:020}").write_bytes(SMALL_LOG)
    for name, raw in files.items():
        (root / "store" / "config" / name).write_bytes(raw)
    for name in TABLES:
        with contextlib.suppress(RawlogError):
            rawlog.read(root / "store", table=name)
    list(rawlog.verify(root / "store"))
    for number, source in enumerate(("store", "0")):
        report = repaired(root / source, root / str(number), {"commitlog_size": "4096"})
        assert not serious(root / str(number))
    assert report.is_whole
    assert {path.name: path.read_bytes() for path in (root / "0" / "config").glob("*")} == {
        path.name: path.read_bytes() for path in (root / "1" / "config").glob("*")
    }
    shutil.rmtree(root)


SMALL_LOG = reference.encode(
    reference.Message(0, 0, 1, 0, 0, 0, 0, 0, 0, 1, bytes(8), 1, bytes(8), 0, 0, b"body", b"orders", b"")
).ljust(4096, b"\0")


# ------------------------------------------------------------------ what repair acts on


def test_the_timers_checkpoint_is_freed_of_foreign_bytes(tmp_path: Path) -> None:
    """`repair` copied it as it was and ended with 0; `verify` of the result complained: `timercheck.framing`."""
    root = copy("broker-5.3.3", tmp_path)
    whole = (root / "config" / "timercheck").read_bytes()
    patch(root / "config" / "timercheck", 200, b"foreign")
    outcome = repaired(root, tmp_path / "out")
    assert not outcome.remaining
    assert not outcome.is_whole
    assert (tmp_path / "out" / "config" / "timercheck").read_bytes() == whole


def test_a_message_lost_in_a_compaction_log_is_taken_from_the_commit_log(tmp_path: Path) -> None:
    """`repair` copied the log as it was and ended with 0; `verify` of the result complained: `compactionlog.framing`."""
    root = copy("broker-5.3.3", tmp_path)
    path = next((root / "compaction" / "compactionLog").rglob("0" * 20))
    whole = path.read_bytes()
    third = list(reference.messages(whole))[3]
    patch(path, third.position, bytes(30))
    assert findings(root, "rocketmq.compactionlog.framing")
    outcome = repaired(root, tmp_path / "out")
    assert not outcome.remaining
    assert (tmp_path / "out" / path.relative_to(root)).read_bytes() == whole
    assert "restored from the commit log" in said(outcome)


def test_the_queue_of_a_compaction_topic_is_rebuilt_from_its_log(tmp_path: Path) -> None:
    root = copy("broker-5.3.3", tmp_path)
    path = next((root / "compaction" / "compactionCq").rglob("0" * 20))
    whole = path.read_bytes()
    patch(path, 46 * 5, b"\xff" * 46)
    assert findings(root, "rocketmq.compactioncq.framing")
    outcome = repaired(root, tmp_path / "out")
    assert not outcome.remaining
    assert (tmp_path / "out" / path.relative_to(root)).read_bytes() == whole


def test_what_a_compaction_log_lost_for_good_leaves_its_queue(tmp_path: Path) -> None:
    root = copy("broker-5.3.3", tmp_path)
    path = next((root / "compaction" / "compactionLog").rglob("0" * 20))
    third = list(reference.messages(path.read_bytes()))[3]
    patch(path, third.position, bytes(30))
    for log in log_files(root):
        for message in reference.messages(log.read_bytes()):
            if message.topic == b"gold_compact" and message.queue_offset == third.queue_offset:
                patch(log, message.position + 90, bytes([message.body[2] ^ 1]))
    outcome = repaired(root, tmp_path / "out")
    assert not outcome.remaining
    assert not outcome.is_whole
    rows = rawlog.read(tmp_path / "out", table="rocketmq.compacted").to_pylist()
    assert third.queue_offset not in {row["queue_offset"] for row in rows if row["topic"] == "gold_compact"}
    queue = next((tmp_path / "out" / "compaction" / "compactionCq").rglob("0" * 20))
    assert third.queue_offset not in {unit[4] for unit in reference.batch_units(queue.read_bytes())}


def test_a_changed_topic_is_set_right_by_the_consume_queue(tmp_path: Path) -> None:
    """No checksum covers it. A topic that is not UTF-8 stayed: `repair` ended with 0 and `verify` complained: `commitlog.text`."""
    root = copy("broker-4.9.7", tmp_path)
    whole = [path.read_bytes() for path in log_files(root)]
    message = next(each for each in list(reference.messages(whole[0]))[10:] if each.topic == b"gold4_one")
    at = whole[0].index(b"gold4_one", message.position)
    patch(log_files(root)[0], at + 2, b"\xfe")
    patch(log_files(root)[0], message.position + 20, struct.pack(">q", 77))
    outcome = repaired(root, tmp_path / "out")
    assert not outcome.remaining
    assert [path.read_bytes() for path in log_files(tmp_path / "out")] == whole


def test_text_that_is_not_utf8_stays_and_is_not_damage(tmp_path: Path) -> None:
    """Brokers take such text and clients show U+FFFD: it is no more than information."""
    from tests.formats.rocketmq.test_checks import break_text

    root = copy("broker-4.9.7", tmp_path)
    break_text(root)
    outcome = repaired(root, tmp_path / "out")
    assert not outcome.remaining
    assert [each.severity for each in rawlog.verify(tmp_path / "out")] == ["info"]


def test_numbers_of_lost_messages_are_kept_free_without_queues(tmp_path: Path) -> None:
    """With the consume queues gone too, a hole was covered by one filler: every later message of its queues got another number."""
    root = copy("broker-4.9.7", tmp_path)
    before = {
        (one.topic, one.queue_id, one.queue_offset)
        for path in log_files(root)
        for one in reference.messages(path.read_bytes())
    }
    patch(log_files(root)[0], 4096, bytes(4096))
    shutil.rmtree(root / "consumequeue")
    outcome = repaired(root, tmp_path / "out", {"queue_size": "2000"})
    assert not outcome.remaining
    after = {
        (one.topic, one.queue_id, one.queue_offset)
        for path in log_files(tmp_path / "out")
        for one in reference.messages(path.read_bytes())
        if one.topic != b"_"
    }
    assert after == before
    assert not findings(tmp_path / "out", "rocketmq.store.queue-gap")


@pytest.mark.parametrize("names", [(0, 1), (0, 2), (1, 2)])
def test_swapped_files_of_the_log_are_put_back(names: tuple[int, int], tmp_path: Path) -> None:
    """Every message of both was taken for a stale one and lost."""
    root = copy("broker-4.9.7", tmp_path)
    whole = [path.read_bytes() for path in log_files(root)]
    one, other = (log_files(root)[number] for number in names)
    one.write_bytes(whole[names[1]])
    other.write_bytes(whole[names[0]])
    outcome = repaired(root, tmp_path / "out")
    assert outcome.is_whole, outcome.lines()
    assert [path.read_bytes() for path in log_files(tmp_path / "out")] == whole
