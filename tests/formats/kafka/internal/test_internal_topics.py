"""Internal topics as tables: equal to what Kafka's own decoders say, and to what counts after transactions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import rawlog
from rawlog.formats.kafka.internal.messages import decode_keyed, encode_keyed
from rawlog.model.errors import RawlogError, UnknownFormatError
from tests.data.kraft import BROKERS, data_dir, dumped_keys

CLEAN = ("broker-3.9.2", "broker-4.3.0")


def rows(broker: str, table: str, **selection: Any) -> list[dict[str, Any]]:
    return rawlog.read(data_dir(broker), table=table, **selection).to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("broker", CLEAN)
def test_offsets_and_groups_are_what_the_dump_says(broker: str) -> None:
    dumped = dumped_keys(broker, "__consumer_offsets")
    seen = set()
    for row in rows(broker, "kafka.offsets"):
        place = (row["log_partition"], row["offset_in_log"])
        key, value = dumped[place]
        seen.add(place)
        assert key["data"] == {"group": row["group"], "topic": row["topic"], "partition": row["partition"]}
        assert row["deleted"] == (value is None)
        if value is not None:
            stated = value["data"]
            assert (stated["offset"], stated["metadata"]) == (row["committed_offset"], row["metadata"])
            assert stated.get("leaderEpoch", -1) == (-1 if row["leader_epoch"] is None else row["leader_epoch"])
            assert stated["commitTimestamp"] == round(row["commit_timestamp"].timestamp() * 1000)
    for row in rows(broker, "kafka.groups"):
        place = (row["log_partition"], row["offset_in_log"])
        key, value = dumped[place]
        seen.add(place)
        assert key["data"].get("groupId", key["data"].get("group")) == row["group"]
        assert row["deleted"] == (value is None)
        if value is not None:
            assert (json.loads(row["value"]), str(row["version"])) == (value["data"], value["version"])
    assert seen == set(dumped)


@pytest.mark.parametrize("broker", CLEAN)
def test_current_offsets_leave_out_what_was_aborted_or_deleted(broker: str) -> None:
    """The groups are those of the golden README: one commit of group-tx-group was aborted, group-doomed was deleted."""
    found = rows(broker, "kafka.offsets")
    current = {
        (row["group"], row["topic"], row["partition"]): row for row in found if row["is_current"] and not row["deleted"]
    }
    assert {group for group, _, _ in current} == {
        "group-next-gen",
        "group-classic",
        "group-classic-two",
        "group-tx-group",
    }
    assert current["group-tx-group", "codec-none", 0]["committed_offset"] == 11
    aborted = [row for row in found if row["state"] == "aborted"]
    assert [(row["group"], row["is_current"]) for row in aborted] == [("group-tx-group", False)]
    keys = [(row["group"], row["topic"], row["partition"]) for row in found if row["is_current"]]
    assert len(keys) == len(set(keys))


def test_a_topic_chosen_is_the_one_that_rows_tell_of() -> None:
    found = rows("broker-3.9.2", "kafka.offsets", topic="codec-z*", partition=1)
    assert {(row["topic"], row["partition"]) for row in found} == {("codec-zstd", 1)}


@pytest.mark.parametrize("broker", BROKERS)
def test_transactions_are_what_the_dump_says(broker: str) -> None:
    dumped = dumped_keys(broker, "__transaction_state")  # 3.9 prints another form: only the number of rows then
    found = rows(broker, "kafka.transactions")
    assert found
    for row in found:
        if (row["log_partition"], row["offset_in_log"]) not in dumped:
            assert broker.startswith("broker-3")
            continue
        key, value = dumped[row["log_partition"], row["offset_in_log"]]
        assert key["data"]["transactionalId"] == row["transactional_id"]
        assert value is not None
        stated = value["data"]
        assert (stated["producerId"], stated["producerEpoch"]) == (row["producer_id"], row["producer_epoch"])
        listed = None if stated["transactionPartitions"] is None else [
            {"topic": one["topic"], "partition": number} for one in stated["transactionPartitions"] for number in one["partitionIds"]
        ]  # fmt: skip
        assert row["partitions"] == listed
    ids = [row["transactional_id"] for row in found if row["is_current"]]
    assert sorted(ids) == sorted({row["transactional_id"] for row in found})


def test_the_open_transaction_is_ongoing() -> None:
    [row] = [
        one for one in rows("broker-4.3.0", "kafka.transactions") if one["is_current"] and one["status"] == "Ongoing"
    ]
    assert row["partitions"] == [{"topic": "transaction-open", "partition": 0}]


def test_share_groups_are_what_the_dump_says() -> None:
    dumped = dumped_keys("broker-4.3.0", "__share_group_state")
    found = rows("broker-4.3.0", "kafka.shares")
    assert len(found) == len(dumped)
    for row in found:
        key, value = dumped[row["log_partition"], row["offset_in_log"]]
        assert value is not None
        assert (key["data"]["groupId"], key["data"]["topicId"]) == (row["group"], row["topic_id"])
        assert value["data"]["startOffset"] == row["start_offset"]
        names = {"firstOffset": "first_offset", "lastOffset": "last_offset"}
        names |= {"deliveryState": "delivery_state", "deliveryCount": "delivery_count"}
        stated = [{names[name]: number for name, number in one.items()} for one in value["data"]["stateBatches"]]
        assert row["batches"] == stated


EARLY_SNAPSHOT_KEY = "0000000273670ba33099c81a4d8aa1ba6920d0fd977f00000001"
EARLY_BATCHES = "02 0000000000000005 0000000000000009 02 0001 00"


@pytest.mark.parametrize(
    ("topic", "key", "value", "message"),
    [
        ("__consumer_offsets", "000b00027367", "0000 00000002 00", {"epoch": 2}),
        ("__share_group_state", EARLY_SNAPSHOT_KEY, "0000 0000 00000000 00000000 ffffffffffffffff 01 00",
         {"snapshotEpoch": 0, "startOffset": -1, "stateBatches": []}),
        ("__share_group_state", EARLY_SNAPSHOT_KEY, f"0000 0003 00000001 00000002 0000000000000005 {EARLY_BATCHES} 00",
         {"snapshotEpoch": 3, "stateEpoch": 1, "leaderEpoch": 2, "startOffset": 5}),
        ("__share_group_state", f"0001{EARLY_SNAPSHOT_KEY[4:]}", f"0000 0003 00000002 0000000000000005 {EARLY_BATCHES} 00",
         {"snapshotEpoch": 3, "leaderEpoch": 2, "startOffset": 5}),
    ],
)  # fmt: skip
def test_share_groups_of_the_early_access_release_are_read(
    topic: str, key: str, value: str, message: dict[str, Any]
) -> None:
    """4.0 wrote fewer and narrower fields under the same version: its clean directories were called suspect. The first two are bytes of a
    real 4.0.1, the others follow its generated classes.
    """
    pair = (bytes.fromhex(key), bytes.fromhex(value))
    found = decode_keyed(topic, *pair)
    assert found.value is not None
    assert {name: found.value[name] for name in message} == message
    assert "createTimestamp" not in found.value
    assert encode_keyed(found) == pair


def test_a_directory_without_such_topics_has_no_such_table() -> None:
    with pytest.raises(UnknownFormatError, match=r"kafka\.offsets"):
        rows("broker-4.3.0-crashed", "kafka.offsets")


def test_damage_is_an_error_unless_it_is_to_be_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / "__consumer_offsets-1"
    shutil.copytree(data_dir("broker-4.3.0") / "__consumer_offsets-1", folder)
    segment = next(folder.glob("*.log"))
    segment.chmod(0o644)
    data = bytearray(segment.read_bytes())
    data[700] ^= 1
    segment.write_bytes(data)
    whole = rawlog.read(data_dir("broker-4.3.0") / "__consumer_offsets-1", table="kafka.offsets").num_rows
    with pytest.raises(RawlogError):
        rawlog.read(tmp_path, table="kafka.offsets")
    assert rawlog.read(tmp_path, table="kafka.offsets", errors="skip").num_rows == whole - 1


def test_a_record_that_is_none_of_the_topic_is_found(tmp_path: Path) -> None:
    from rawlog.formats.kafka.cluster.writer import encode_batch

    folder = tmp_path / "__consumer_offsets-0"
    folder.mkdir()
    records = [(b"hello", b"world"), (b"\0\x63", b"\0\0"), (None, b"x")]
    (folder / f"{0:020d}.log").write_bytes(encode_batch(0, 0, 1_700_000_000_000, records))
    found = rawlog.verify(tmp_path, rule=["kafka.log.internal-record"])
    assert [(one.offset, one.severity) for one in found] == [(0, "info"), (1, "info"), (2, "warning")]
    assert rawlog.read(tmp_path, table="kafka.offsets").num_rows == 0
