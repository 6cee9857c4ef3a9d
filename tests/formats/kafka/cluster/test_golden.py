"""Metadata directories of real brokers: every record as Kafka's dump has it, the folded state as Kafka's own image."""

from __future__ import annotations

import json
from typing import Any

import pytest

import rawlog
from rawlog.formats.kafka.cluster.metadata_log import MetadataStore, Moment, clusters
from rawlog.formats.kafka.cluster.state import State
from rawlog.formats.kafka.internal.messages import decode_control as control_of
from rawlog.formats.kafka.internal.messages import decode_framed, encode_control, encode_framed
from rawlog.formats.kafka.paths import takes
from rawlog.model.errors import RawlogError
from tests.data.kraft import BROKERS, data_dir, dumped_metadata, image, unordered

SECRETS = {"showSecrets": "true"}


def replica_of(broker: str) -> MetadataStore:
    [found] = clusters([file for file in rawlog.open(data_dir(broker)).files if takes("kraft.topics", file)])
    return found


def image_of(state: State) -> list[dict[str, Any]]:
    found = []
    for name, version, message in state.image():
        record = decode_framed(encode_framed(name, message, version))
        found.append(unordered({"type": name, "apiKey": record.key, "version": version, "data": record.to_json()}))
    return found


def same_records(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert sorted(json.dumps(one, sort_keys=True) for one in found) == sorted(
        json.dumps(one, sort_keys=True) for one in expected
    )


@pytest.mark.parametrize("broker", BROKERS)
def test_every_record_is_what_the_dump_says(broker: str) -> None:
    for name, expected in dumped_metadata(broker).items():
        found = rawlog.read(data_dir(broker) / name, table="kraft.metadata", option=SECRETS).to_pylist()
        assert len(found) == len(expected)
        for row, dumped in zip(found, expected, strict=True):
            assert (row["offset"], row["type"], row["is_control"]) == (
                dumped["offset"],
                dumped["type"],
                dumped["is_control"],
            )
            assert dumped["version"] in (None, row["version"])
            assert dumped["value"] is None or json.loads(row["value"]) == dumped["value"]


@pytest.mark.parametrize("broker", BROKERS)
def test_every_record_is_encoded_byte_for_byte(broker: str) -> None:
    table = rawlog.read(
        data_dir(broker) / "__cluster_metadata-0",
        table="kafka.records",
        columns=["key", "value", "is_control", "control_type"],
    )
    for row in table.to_pylist():
        if row["is_control"]:
            _, _, message = control_of(row["control_type"], row["value"])
            assert encode_control(row["control_type"], message) == (row["key"], row["value"])
        else:
            found = decode_framed(row["value"])
            assert encode_framed(found.key, found.message, found.version) == row["value"]


@pytest.mark.parametrize("broker", BROKERS)
def test_the_folded_state_is_kafkas_image(broker: str) -> None:
    head, expected = image(broker)
    state = replica_of(broker).fold()
    same_records(image_of(state), expected)
    assert (state.end_offset - 1, state.epoch, state.records) == (
        head["last_offset"],
        head["epoch"],
        head["records_replayed"],
    )
    assert not state.problems
    assert state.leader == 1


@pytest.mark.parametrize("broker", BROKERS)
def test_the_log_alone_leads_to_the_same_state(broker: str) -> None:
    _, expected = image(broker, "metadata-image-from-log-only")
    replica = replica_of(broker)
    replica.snapshots = []
    same_records(image_of(replica.fold()), expected)


@pytest.mark.parametrize("broker", ["broker-3.9.2", "broker-4.3.0"])
def test_every_snapshot_is_the_state_of_its_offset(broker: str) -> None:
    """The log up to a snapshot's offset, folded without it, holds what the snapshot holds. Its epoch was that of the window before."""
    from rawlog.formats.kafka.paths import snapshot_id

    replica = replica_of(broker)
    compared = 0
    for snapshot in replica.snapshots:
        offset, epoch = snapshot_id(snapshot.path) or (0, 0)
        if offset == 0:
            continue
        grown = MetadataStore(replica.segments).fold(Moment(offset=offset - 1))
        loaded = MetadataStore([snapshot]).fold()
        same_records(image_of(loaded), image_of(grown))
        assert (loaded.end_offset, loaded.epoch, loaded.timestamp) == (grown.end_offset, epoch, grown.timestamp)
        assert grown.epoch == epoch
        compared += 1
    assert compared >= 3


@pytest.mark.parametrize("broker", BROKERS)
def test_metadata_directories_of_real_brokers_are_clean(broker: str) -> None:
    found = rawlog.verify(data_dir(broker), rule=["kraft", "kafka.partition"])
    assert [(one.code, one.message) for one in found] == []


@pytest.mark.parametrize("broker", BROKERS)
def test_metadata_logs_are_records_too(broker: str) -> None:
    found = rawlog.read(data_dir(broker), topic="__cluster_metadata")
    dumped = [row for name, rows in dumped_metadata(broker).items() if name.endswith(".log") for row in rows]
    assert found.num_rows == sum(not row["is_control"] for row in dumped)


def test_tables_of_the_state_have_what_the_image_has() -> None:
    log = rawlog.open(data_dir("broker-4.3.0"))
    _, expected = image("broker-4.3.0")
    count = {name: sum(one["type"] == name for one in expected) for name in {one["type"] for one in expected}}
    for table, name in {
        "topics": "TopicRecord",
        "partitions": "PartitionRecord",
        "brokers": "RegisterBrokerRecord",
        "controllers": "RegisterControllerRecord",
        "configs": "ConfigRecord",
        "acls": "AccessControlEntryRecord",
        "quotas": "ClientQuotaRecord",
        "users": "UserScramCredentialRecord",
        "tokens": "DelegationTokenRecord",
    }.items():
        rows = log.table(f"kraft.{table}").to_arrow()
        rows.validate(full=True)
        assert rows.num_rows == count[name], table
        assert set(rows.column("cluster_id").to_pylist()) == {"rawlogGolden430AAAAAAA"}
    levels = {row["name"]: row["level"] for row in log.table("kraft.features").to_arrow().to_pylist()}
    assert (levels["metadata.version"], levels["kraft.version"]) == (30, 1)
    [voter] = log.table("kraft.voters").to_arrow().to_pylist()
    assert (voter["voter"], voter["is_leader"], voter["endpoints"][0]["port"]) == (1, True, 19097)


def test_a_past_state_is_read_by_offset_and_by_time() -> None:
    path = data_dir("broker-4.3.0")

    def topics(**options: str) -> set[str]:
        return set(rawlog.read(path, table="kraft.topics", option=options).column("topic").to_pylist())

    assert topics(atOffset="24") == {"codec-none"}
    assert topics(at_offset="23") == set()
    assert topics(ATOFFSET="28") == {"codec-none", "codec-gzip"}
    assert topics(atTimestamp="2026-11-15T21:50:05.211Z") == {"codec-none"}
    assert topics(atTimestamp="1794779405210") == set()
    assert len(topics(atOffset="410")) == 25
    with pytest.raises(RawlogError, match="exclude"):
        topics(atOffset="1", atTimestamp="1794779405210")
    with pytest.raises(RawlogError, match="an offset expected"):
        topics(atOffset="soon")


def test_secrets_are_masked_unless_asked_for() -> None:
    path = data_dir("broker-4.3.0")
    secret = "NAZSe3JgWhjjADe7y6NWHhR2ETwEvZLoKXfaMOt37ZU="
    for table in ("kraft.users", "kraft.metadata"):
        assert secret not in str(rawlog.read(path, table=table).to_pylist())
        assert secret in str(rawlog.read(path, table=table, option=SECRETS).to_pylist())


def test_the_state_of_several_clusters_is_kept_apart() -> None:
    found = rawlog.read([data_dir(broker) for broker in BROKERS], table="kraft.topics").to_pylist()
    assert len({row["cluster_id"] for row in found}) == 4
