"""The state a log adds up to: the rules of replay, metadata transactions, moments, and which snapshot counts."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import rawlog
from rawlog.formats.kafka.cluster.metadata import MIGRATING
from rawlog.formats.kafka.cluster.metadata_log import MetadataStore, Moment, clusters
from rawlog.formats.kafka.cluster.state import State
from rawlog.formats.kafka.cluster.writer import (
    Voter,
    checkpoint_name,
    encode_batch,
    encode_bootstrap,
    encode_checkpoint,
    encode_controls,
)
from rawlog.formats.kafka.internal.messages import encode_framed
from rawlog.formats.kafka.log.layouts import ControlType
from rawlog.formats.kafka.paths import takes
from rawlog.model.errors import OptionError
from tests.data.golden import golden_path

TOPIC, OTHER = bytes(range(16)), bytes(range(16, 32))
LEVEL = ("FeatureLevelRecord", {"name": "metadata.version", "featureLevel": 25})
PARTITION: dict[str, Any] = {
    "partitionId": 0, "topicId": TOPIC, "replicas": [1, 2], "isr": [1, 2], "removingReplicas": [], "addingReplicas": [],
    "leader": 1, "leaderEpoch": 0, "partitionEpoch": 0,
}  # fmt: skip
SCRAM: dict[str, Any] = {
    "name": "a",
    "mechanism": 1,
    "salt": b"s",
    "storedKey": b"k",
    "serverKey": b"k",
    "iterations": 4096,
}
Record = tuple[str, dict[str, Any]]
DEMO: list[Record] = [LEVEL, ("TopicRecord", {"name": "demo", "topicId": TOPIC}), ("PartitionRecord", PARTITION)]


def replayed(*records: Record) -> State:
    state = State()
    for offset, (name, message) in enumerate(records):
        state.add(offset, encode_framed(name, message))
    return state


def change(**fields: Any) -> Record:
    return "PartitionChangeRecord", {"partitionId": 0, "topicId": TOPIC, **fields}


def partition(state: State) -> dict[str, Any]:
    return state.topics[TOPIC].partitions[0]


def test_a_leader_given_raises_the_epoch_even_if_it_is_the_same() -> None:
    assert partition(replayed(*DEMO, change(isr=[1])))["leaderEpoch"] == 0
    same = partition(replayed(*DEMO, change(leader=1)))
    assert (same["leader"], same["leaderEpoch"], same["partitionEpoch"]) == (1, 1, 1)
    none = partition(replayed(*DEMO, change(leader=-1, isr=[])))
    assert (none["leader"], none["leaderEpoch"], none["isr"]) == (-1, 1, [])


def test_directories_grow_with_replicas_while_none_is_known() -> None:
    assert partition(replayed(*DEMO))["directories"] == [MIGRATING] * 2
    assert partition(replayed(*DEMO, change(replicas=[1, 2, 3])))["directories"] == [MIGRATING] * 3
    given = change(replicas=[1, 3], directories=[b"a" * 16, b"b" * 16])
    assert partition(replayed(*DEMO, given, change(replicas=[1, 3])))["directories"] == [b"a" * 16, b"b" * 16]


def test_removing_a_topic_takes_its_settings_along() -> None:
    config = ("ConfigRecord", {"resourceType": 2, "resourceName": "demo", "name": "retention.ms", "value": "1"})
    state = replayed(*DEMO, config, ("RemoveTopicRecord", {"topicId": TOPIC}))
    assert (state.topics, state.topic_ids, state.configs, state.problems) == ({}, {}, {}, [])


def test_a_setting_without_value_and_a_quota_removed_disappear() -> None:
    config = {"resourceType": 4, "resourceName": "", "name": "x", "value": "1"}
    quota = {"entity": [{"entityType": "user", "entityName": None}], "key": "rate", "value": 2.5, "remove": False}
    state = replayed(LEVEL, ("ConfigRecord", config), ("ClientQuotaRecord", quota))
    assert state.quotas == {(("user", None),): {"rate": 2.5}}
    state.add(3, encode_framed("ConfigRecord", {**config, "value": None}))
    state.add(4, encode_framed("ClientQuotaRecord", {**quota, "remove": True}))
    assert (state.configs, state.quotas) == ({}, {})


def test_brokers_are_changed_only_in_their_epoch() -> None:
    broker = {"brokerId": 1, "brokerEpoch": 7, "endPoints": [], "features": [], "rack": None, "fenced": True}
    state = replayed(LEVEL, ("RegisterBrokerRecord", broker))
    state.add(2, encode_framed("BrokerRegistrationChange", {"brokerId": 1, "brokerEpoch": 7, "fenced": -1}))
    state.add(3, encode_framed("BrokerRegistrationChange", {"brokerId": 1, "brokerEpoch": 7, "logDirs": [TOPIC]}))
    state.add(
        4, encode_framed("BrokerRegistrationChange", {"brokerId": 1, "brokerEpoch": 7, "inControlledShutdown": 1})
    )
    assert (state.brokers[1]["fenced"], state.brokers[1]["logDirs"], state.brokers[1]["inControlledShutdown"]) == (
        False,
        [TOPIC],
        True,
    )
    state.add(5, encode_framed("FenceBrokerRecord", {"id": 1, "epoch": 8}))
    assert [problem.offset for problem in state.problems] == [5]
    assert not state.brokers[1]["fenced"]


def test_what_a_controller_would_refuse_is_reported_and_not_applied() -> None:
    state = replayed(
        *DEMO, ("RemoveTopicRecord", {"topicId": OTHER}), ("RemoveAccessControlEntryRecord", {"id": OTHER})
    )
    state.add(5, encode_framed("PartitionChangeRecord", {"partitionId": 9, "topicId": TOPIC}))
    state.add(6, bytes.fromhex("01020900"))
    assert [(one.offset, one.kind) for one in state.problems] == [
        (3, "refused"),
        (4, "refused"),
        (5, "refused"),
        (6, "unknown"),
    ]
    assert "demo" in state.topic_ids


def test_clearing_eligible_leaders_is_for_one_topic_or_all() -> None:
    elr = change(eligibleLeaderReplicas=[2], lastKnownElr=[1])
    assert partition(replayed(*DEMO, elr))["eligibleLeaderReplicas"] == [2]
    assert partition(replayed(*DEMO, elr, ("ClearElrRecord", {"topicName": "demo"})))["eligibleLeaderReplicas"] == []
    assert partition(replayed(*DEMO, elr, ("ClearElrRecord", {"topicName": ""})))["lastKnownElr"] == []


def test_records_of_a_transaction_count_when_it_ends() -> None:
    begin, end, abort = ("BeginTransactionRecord", {}), ("EndTransactionRecord", {}), ("AbortTransactionRecord", {})
    assert replayed(begin, *DEMO).topics == {}
    assert replayed(begin, *DEMO).open_transaction == 0
    assert TOPIC in replayed(begin, *DEMO, end).topics
    assert replayed(begin, *DEMO, abort).topics == {}
    assert [one.kind for one in replayed(end, abort, begin, begin).problems] == ["bracket"] * 3


def test_an_image_replayed_is_the_same_state() -> None:
    state = replayed(*DEMO, change(leader=2, isr=[2]))
    again = State()
    for offset, (name, version, message) in enumerate(state.image()):
        again.add(offset, encode_framed(name, message, version))
    assert list(again.image()) == list(state.image())


# ------------------------------------------------------------------ directories


def write_log(folder: Path, records: Sequence[Record], *, base: int = 0, epoch: int = 1) -> Path:
    path = folder / "__cluster_metadata-0" / f"{base:020d}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    data = b""
    for number, (name, message) in enumerate(records):
        data += encode_batch(
            base + number, epoch, 1_700_000_000_000 + base + number, [(None, encode_framed(name, message))]
        )
    path.write_bytes(data)
    return path


def write_snapshot(folder: Path, records: Sequence[Record], offset: int, epoch: int) -> Path:
    path = folder / "__cluster_metadata-0" / checkpoint_name(offset, epoch)
    path.parent.mkdir(parents=True, exist_ok=True)
    framed = [encode_framed(name, message) for name, message in records]
    path.write_bytes(b"".join(encode_checkpoint(framed, epoch, 1_700_000_000_000 + offset - 1)))
    return path


def replica_of(folder: Path) -> MetadataStore:
    [found] = clusters([file for file in rawlog.open(folder).files if takes("kraft.topics", file)])
    return found


def test_a_snapshot_without_footer_is_not_used(tmp_path: Path) -> None:
    write_log(tmp_path, DEMO)
    snapshot = write_snapshot(tmp_path, [LEVEL], 3, 1)
    assert replica_of(tmp_path).fold().topics == {}
    snapshot.write_bytes(snapshot.read_bytes()[:-75])
    assert "demo" in replica_of(tmp_path).fold().topic_ids


def test_a_log_of_an_older_epoch_than_the_snapshot_is_left_out(tmp_path: Path) -> None:
    write_log(tmp_path, [*DEMO, ("TopicRecord", {"name": "late", "topicId": OTHER})])
    write_snapshot(tmp_path, DEMO, 3, 2)
    assert set(replica_of(tmp_path).fold().topic_ids) == {"demo"}
    assert [one.code for one in rawlog.verify(tmp_path, rule=["kraft.checkpoint.ahead"])] == ["kraft.checkpoint.ahead"]


def test_a_moment_before_the_oldest_snapshot_is_refused(tmp_path: Path) -> None:
    write_log(tmp_path, [("TopicRecord", {"name": "late", "topicId": OTHER})], base=3)
    write_snapshot(tmp_path, DEMO, 3, 1)
    assert set(replica_of(tmp_path).fold(Moment(offset=2)).topic_ids) == {"demo"}
    assert set(replica_of(tmp_path).fold(Moment(offset=3)).topic_ids) == {"demo", "late"}
    with pytest.raises(OptionError, match="no snapshot is old enough"):
        replica_of(tmp_path).fold(Moment(offset=1))


def test_a_moment_has_the_epoch_of_its_last_record(tmp_path: Path) -> None:
    """A fold that ended inside of a window had the epoch of the window before; one inside of a batch ended after the batch."""
    path = write_log(tmp_path, DEMO)
    data = path.read_bytes()
    for base, epoch in ((3, 2), (6, 3)):
        leader = {"version": 0, "leaderId": 1, "voters": [{"voterId": 1}], "grantingVoters": [{"voterId": 1}]}
        data += encode_controls(base, epoch, 1_700_000_001_000, [(ControlType.LEADER_CHANGE, leader)])
        data += encode_batch(base + 1, epoch, 1_700_000_001_000, [(None, encode_framed(*LEVEL))] * 2)
    path.write_bytes(data)
    for offset, epoch in enumerate([1, 1, 1, 2, 2, 2, 3, 3, 3]):
        for state in (
            replica_of(tmp_path).fold(Moment(offset=offset)),
            replica_of(tmp_path).fold_kept(Moment(offset=offset), "raise"),
        ):
            assert (state.end_offset, state.epoch) == (offset + 1, epoch)


def test_a_log_that_begins_in_the_middle_needs_a_snapshot(tmp_path: Path) -> None:
    write_log(tmp_path, [("TopicRecord", {"name": "late", "topicId": OTHER})], base=3)
    codes = {one.code for one in rawlog.verify(tmp_path, rule=["kraft"])}
    assert "kraft.checkpoint.missing" in codes


def test_a_bootstrap_file_alone_is_the_state_of_a_new_cluster(tmp_path: Path) -> None:
    framed = [encode_framed(name, message) for name, message in DEMO]
    (tmp_path / "bootstrap.checkpoint").write_bytes(b"".join(encode_checkpoint(framed, 0, 0)))
    assert set(replica_of(tmp_path).fold().topic_ids) == {"demo"}


def test_of_two_controllers_the_one_that_knows_more_is_asked(tmp_path: Path) -> None:
    for node, records in ((1, DEMO[:1]), (2, DEMO)):
        write_log(tmp_path / str(node), records)
        (tmp_path / str(node) / "meta.properties").write_text(f"version=1\ncluster.id=abc\nnode.id={node}\n")
    assert set(replica_of(tmp_path).fold().topic_ids) == {"demo"}


def test_a_record_of_a_newer_version_is_shown_raw_with_a_finding(tmp_path: Path) -> None:
    path = write_log(tmp_path, DEMO)
    newer = encode_batch(3, 1, 1_700_000_000_003, [(None, bytes.fromhex("01020900"))])
    unknown = encode_batch(4, 1, 1_700_000_000_004, [(None, bytes.fromhex("013f0000"))])
    path.write_bytes(path.read_bytes() + newer + unknown)
    rows = rawlog.read(tmp_path, table="kraft.metadata").to_pylist()[3:]
    assert [(row["type"], row["version"], row["value"]) for row in rows] == [
        ("TOPIC_RECORD", 9, '{"raw": "AQIJAA=="}'),
        ("63", 0, '{"raw": "AT8AAA=="}'),
    ]
    assert rawlog.read(tmp_path, table="kraft.topics").num_rows == 1
    found = rawlog.verify(tmp_path, rule=["kraft.metadata.unknown"])
    assert [(one.offset, one.severity) for one in found] == [(3, "warning"), (4, "warning")]


BAD: dict[str, tuple[str, list[Record]]] = {
    "refused": ("kraft.metadata.refused", [*DEMO, ("RemoveTopicRecord", {"topicId": OTHER})]),
    "bracket": ("kraft.metadata.transaction", [*DEMO, ("EndTransactionRecord", {})]),
    "level": (
        "kraft.metadata.level",
        [("FeatureLevelRecord", {"name": "metadata.version", "featureLevel": 4}), ("NoOpRecord", {})],
    ),
    "early": ("kraft.metadata.level", [("NoOpRecord", {}), LEVEL]),
    "isr": ("kraft.metadata.partition", [*DEMO, change(isr=[1, 9])]),
    "leader": ("kraft.metadata.partition", [*DEMO, change(isr=[2], leader=1)]),
    "both": ("kraft.metadata.partition", [*DEMO, change(eligibleLeaderReplicas=[1])]),
}


@pytest.mark.parametrize("case", BAD)
def test_rules_find_invalid_states(case: str, tmp_path: Path) -> None:
    code, records = BAD[case]
    write_log(tmp_path, records)
    assert {one.code for one in rawlog.verify(tmp_path, rule=["kraft"])} == {code}


def test_gaps_shapes_and_old_elections_are_found(tmp_path: Path) -> None:
    path = write_log(tmp_path, DEMO)
    keyed = encode_batch(5, 2, 1_700_000_000_005, [(b"key", encode_framed("NoOpRecord", {}))])
    path.write_bytes(path.read_bytes() + keyed)
    (path.parent / "quorum-state").write_text('{"leaderId":1,"leaderEpoch":1,"votedId":-1,"data_version":1}')
    found = {one.code for one in rawlog.verify(tmp_path, rule=["kraft"])}
    assert found == {"kraft.metadata.gap", "kraft.metadata.shape", "kraft.quorum.epoch"}


def test_a_snapshot_of_another_state_is_found(tmp_path: Path) -> None:
    write_log(tmp_path, DEMO)
    write_snapshot(tmp_path, DEMO[:2], 3, 1)
    assert {one.code for one in rawlog.verify(tmp_path, rule=["kraft"])} == {"kraft.checkpoint.differs"}


def test_an_open_transaction_at_the_end_is_information(tmp_path: Path) -> None:
    write_log(tmp_path, [*DEMO, ("BeginTransactionRecord", {"name": "x"})])
    found = list(rawlog.verify(tmp_path, rule=["kraft"]))
    assert [(one.code, one.severity) for one in found] == [("kraft.metadata.transaction", "info")]


def test_snapshots_with_odd_content_are_found(tmp_path: Path) -> None:
    path = write_snapshot(tmp_path, DEMO, 3, 1)
    data = encode_controls(0, 9, 0, [(ControlType.SNAPSHOT_HEADER, {"lastContainedLogTimestamp": 0})])
    data += encode_batch(1, 9, 0, [(b"key", encode_framed("NoOpRecord", {})), (None, b"\x01\x02\x00\x05")])
    path.write_bytes(data)
    found = [one.code for one in rawlog.verify(path)]
    expected = [
        "kraft.checkpoint.content",
        "kraft.checkpoint.epoch",
        "kraft.checkpoint.incomplete",
        "kraft.checkpoint.record",
        "kraft.checkpoint.record",
    ]
    assert sorted(found) == expected


def test_snapshots_of_invalid_versions_are_found(tmp_path: Path) -> None:
    old = ("FeatureLevelRecord", {"name": "metadata.version", "featureLevel": 5})
    path = write_snapshot(tmp_path, [old, ("UserScramCredentialRecord", SCRAM)], 3, 1)
    assert [one.code for one in rawlog.verify(path)] == ["kraft.checkpoint.level"]
    path = write_snapshot(tmp_path / "x", [*DEMO, change(leader=-1)], 3, 1)
    assert [one.code for one in rawlog.verify(path)] == ["kraft.checkpoint.content"]


def test_a_bootstrap_file_needs_a_level_to_start_with(tmp_path: Path) -> None:
    path = tmp_path / "bootstrap.checkpoint"
    path.write_bytes(b"".join(encode_bootstrap(21)))
    assert rawlog.verify(path).verdict == "clean"
    path.write_bytes(b"".join(encode_checkpoint([encode_framed("NoOpRecord", {})], 0, 0)))
    found = [(one.code, one.severity) for one in rawlog.verify(path)]
    assert ("kraft.checkpoint.level", "error") in found


def test_a_cluster_that_never_ran_is_what_its_bootstrap_file_says(tmp_path: Path) -> None:
    """A dynamic quorum is formatted with a snapshot of its voters alone; the rest is still in the bootstrap file."""
    voters = [Voter(1, b"d" * 16, (("CONTROLLER", "localhost", 9093),)).message()]
    folder = tmp_path / "__cluster_metadata-0"
    folder.mkdir()
    snapshot = b"".join(encode_checkpoint([], 0, 0, kraft_version=1, voters=voters))
    (folder / "00000000000000000000-0000000000.checkpoint").write_bytes(snapshot)
    (tmp_path / "bootstrap.checkpoint").write_bytes(b"".join(encode_bootstrap(21)))
    state = replica_of(tmp_path).fold()
    assert (state.features, state.kraft_version, len(state.voters)) == ({"metadata.version": 21}, 1, 1)
    (folder / f"{0:020d}.log").touch()
    assert replica_of(tmp_path).fold().features == {"metadata.version": 21}


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"data_version":7}', '{"leaderId":true,"leaderEpoch":1,"votedId":1,"data_version":1}', "[" * 9999],
)
def test_an_invalid_election_state_is_an_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "quorum-state").write_text(text)
    found = rawlog.verify(tmp_path)
    assert found.errors == 1 or not text


@pytest.mark.parametrize(
    ("tail", "severity"),
    [
        (bytes(11), "info"),
        (b"\xaa" * 5, "info"),
        (bytes(8) + b"\x7f\xff\xff\xf0" + bytes(4) + b"\x02" + bytes(20), "info"),
        (bytes(13), "error"),
        (bytes(400), "error"),
        (bytes(8) + b"\x7f\xff\xff\xf0" + bytes(4) + b"\x91" + bytes(20), "error"),
    ],
)
def test_bytes_after_the_footer_of_a_snapshot(tail: bytes, severity: str, tmp_path: Path) -> None:
    """Tried with a broker of 4.3: it starts on the first three, and ends at the others, which verify did not mention."""
    folder = tmp_path / "__cluster_metadata-0"
    shutil.copytree(golden_path("kafka", "broker-4.3.0", "data", folder.name), folder, copy_function=shutil.copyfile)
    path = folder / "00000000000000000337-0000000002.checkpoint"
    whole = path.read_bytes()
    path.write_bytes(whole + tail)
    found = list(rawlog.verify(folder))
    assert {str(one.severity) for one in found} >= {severity}
    assert {one.position for one in found} == {len(whole)}
    assert any(one.severity == "error" for one in found) == (severity == "error")
    rawlog.repair(folder, tmp_path / "out" / folder.name)
    assert (tmp_path / "out" / folder.name / path.name).read_bytes() == whole


def test_the_version_of_a_record_does_not_change_the_image() -> None:
    """A cluster that was upgraded has partitions in records of version 0, its snapshots have them in a later version. Their fields were
    compared in the order of the records, and `verify` said that the snapshot is not what the log adds up to.
    """
    old, new = (State() for _ in range(2))
    for state, version in ((old, 0), (new, 1)):
        for offset, (name, message) in enumerate(DEMO):
            message = (
                {**message, "directories": [MIGRATING] * 2} if (name, version) == ("PartitionRecord", 1) else message
            )
            state.add(offset, encode_framed(name, message, version if name == "PartitionRecord" else None))
    assert old == new
    assert old.image_lines() == new.image_lines()
