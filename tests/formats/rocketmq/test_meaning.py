"""What became of transactions, delayed messages and retries, and how far consumers are."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import rawlog
from rawlog.formats.rocketmq import config
from rawlog.model.errors import CorruptError, UnknownFormatError
from tests.data.rocketmq_stores import BROKERS, expected, store

#: What the producer of the golden stores did with the half messages of each key.
DONE = {"commit-": "committed", "late-commit-": "committed", "rollback-": "rolled_back", "late-roll-": "rolled_back"}


def rows(name: str, table: str) -> list[dict[str, object]]:
    return rawlog.read(store(name), table=f"rocketmq.{table}").to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", BROKERS)
def test_transactions_end_as_the_producer_ended_them(name: str) -> None:
    keys = {each["physical_offset"]: each["keys"] for each in expected(name, "messages")}
    for row in rows(name, "transactions"):
        kind = keys[row["half_physical_offset"]].rstrip("0123456789")
        if kind == "pending-":
            # In the clean 5.3.3 store the broker gave up asking.
            assert row["state"] == ("discarded" if name == "broker-5.3.3" else "pending")
        else:
            assert row["state"] == DONE[kind]
        assert (row["commit_physical_offset"] is not None) == (row["state"] == "committed")


@pytest.mark.parametrize("name", BROKERS)
def test_delayed_messages_are_delivered_or_pending(name: str) -> None:
    states = Counter((row["kind"], row["level"], row["state"]) for row in rows(name, "scheduled"))
    assert states["delay", 18, "pending"] == 2
    assert not [key for key in states if key[1] in (1, 2) and key[2] == "pending"]
    if "5.3.3" in name:
        assert (states["timer", None, "delivered"], states["timer", None, "pending"]) == (4, 2)


@pytest.mark.parametrize("name", ["broker-5.3.3", "broker-4.9.7"])
def test_retries_and_dead_letters_lead_to_their_source(name: str) -> None:
    messages = {each["physical_offset"]: each for each in expected(name, "messages")}
    kinds = Counter()
    for row in rows(name, "retries"):
        source = messages[row["source_physical_offset"]]
        assert source["topic"] == row["source_topic"]
        assert source["uniq_key"] == row["unique_key"]
        kinds[row["kind"]] += 1
    assert kinds == {"scheduled retry": 4, "retry": 4, "dead letter": 2}


@pytest.mark.parametrize("name", BROKERS)
def test_lag_is_counted_from_the_queues(name: str) -> None:
    units = Counter(
        (each["topic"], each["queue_id"]) for each in expected(name, "consumequeue") if each["kind"] == "consumequeue"
    )
    found = rows(name, "offsets")
    assert found
    for row in found:
        if row["max_offset"] is not None:
            assert row["max_offset"] == units[row["topic"], row["queue_id"]]
            assert row["lag"] == row["max_offset"] - row["offset"]


def test_topics_groups_and_delay_levels_are_read() -> None:
    topics = {row["topic"]: row for row in rows("broker-5.3.3", "topics")}
    assert dict(topics["gold_bcq"]["attributes"])["queue.type"] == "BatchCQ"
    assert topics["gold_events"]["read_queues"] == 8
    assert topics["gold_events"]["permission"] == "rw-"
    assert {row["group"] for row in rows("broker-5.3.3", "groups")} >= {"gold_rtgroup", "lab_puller"}
    assert [(row["level"], row["offset"], row["pending"]) for row in rows("broker-5.3.3", "delays")] == [
        (1, 2, 0), (2, 1, 0), (3, 5, 0), (18, 0, 2),
    ]  # fmt: skip


def test_config_keys_that_are_bare_numbers_are_read() -> None:
    assert config.parse(b'{"t":{0:250,1:-3,\n\t18:0},"s":"{1:2,"}') == {"t": {"0": 250, "1": -3, "18": 0}, "s": "{1:2,"}


@pytest.mark.parametrize("raw", [b"", b"{", b'{"a":', b"\xff{}", b"nonsense", b'{"a" 1}'])
def test_config_that_is_no_json_is_an_error(raw: bytes) -> None:
    with pytest.raises(CorruptError):
        config.parse(raw)


def test_text_files_without_frames_are_explained(tmp_path: Path) -> None:
    """Their text, as JSON values or line by line; a file that is not text is named."""
    [settings] = rawlog.explain(store("broker-5.3.3") / "compaction" / "position-checkpoint").nodes
    assert [(one.name, one.value) for one in settings.children] == [("empty", True), ("queueOffsetMap", {})]
    path = tmp_path / "epochFileCheckpoint"
    path.write_text("2\n0\n1-0\n2-500\n")
    assert [(one.position, one.value) for one in rawlog.explain(path)] == [(0, "2"), (2, "0"), (4, "1-0"), (8, "2-500")]
    path.write_bytes(b"\xff\x00")
    with pytest.raises(UnknownFormatError, match=r"recognised as rocketmq\.epochs, which cannot be explained"):
        rawlog.explain(path)


@pytest.mark.parametrize("name", ["broker-5.3.3", "broker-4.9.7-crashed"])
def test_transactions_are_those_of_the_table(name: str) -> None:
    """The verb said that none were found, while the table had rows."""
    wanted = [(row["unique_key"], row["state"], row["topic"]) for row in rows(name, "transactions")]
    shown = [
        (row["transactional_id"], row["status"], row["partitions"][0].rpartition("-")[0])
        for row in rawlog.transactions(store(name))
    ]
    assert wanted
    assert sorted(shown) == sorted(wanted)
    states = [state for _, state, _ in shown]
    assert states == sorted(states, key=lambda state: state != "pending")
