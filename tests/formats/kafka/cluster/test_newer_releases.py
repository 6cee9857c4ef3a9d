"""Metadata of releases newer than the one at hand: what 4.4 adds, levels that are not known, tagged fields that no schema has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rawlog
from rawlog.formats.kafka.cluster.state import IMAGED, State
from rawlog.formats.kafka.internal.codec import UNKNOWN
from rawlog.formats.kafka.internal.messages import LEVELS, encode_framed
from rawlog.io.output import Folder
from rawlog.model.report import Action, Report
from tests.data.dead_cluster import CLUSTER, Batch, write_log
from tests.data.new_cluster import NewCluster
from tests.formats.kafka.cluster.test_state import DEMO, PARTITION, TOPIC, replayed

CONTROLLER = {
    "controllerId": 3001,
    "incarnationId": bytes(15) + b"\1",
    "zkMigrationReady": False,
    "endPoints": [],
    "features": [],
}
ACL = {
    "id": bytes(15) + b"\7", "resourceType": 2, "resourceName": "demo", "patternType": 3, "principal": "User:a", "host": "192.168.1.0/24",
    "operation": 15, "permissionType": 3,
}  # fmt: skip
TAG = (102, b"vendor")


def cluster(folder: Path, *records: tuple[str, dict[str, Any]], level: int = 33) -> Path:
    """The directory of a node of a release, with one topic."""
    folder.mkdir()
    every = [*DEMO[1:2], ("PartitionRecord", {**PARTITION, "replicas": [1], "isr": [1]}), *records]
    NewCluster(1, level, 1_700_000_000_000, [(name, None, message) for name, message in every]).write(
        Folder(folder), CLUSTER
    )
    write_log(folder / "demo-0", [Batch(0, 0, 0, 3)], topic_id=TOPIC)
    return folder


def restored(source: Path, target: Path, **options: Any) -> Report:
    return rawlog.restore(source, target, **options)


def test_a_controller_that_left_is_gone() -> None:
    """Record type 29 was not known: the controller stayed registered."""
    data = encode_framed("UnregisterControllerRecord", {"controllerId": 3001})
    assert bytes(data) == bytes.fromhex("011d0000000bb900")
    state = replayed(("RegisterControllerRecord", CONTROLLER), ("UnregisterControllerRecord", {"controllerId": 3001}))
    assert (state.controllers, state.problems) == ({}, [])
    again = replayed(("UnregisterControllerRecord", {"controllerId": 7}))
    assert "the unknown controller 7 is unregistered" in again.problems[0].message


def test_levels_and_operations_of_4_4_have_names(tmp_path: Path) -> None:
    source = cluster(tmp_path / "source", ("AccessControlEntryRecord", ACL))
    assert LEVELS[31:] == ("4.4-IV0", "4.4-IV1", "4.4-IV2", "4.5-IV0")
    [row] = rawlog.read(source, table="kraft.acls").to_pylist()
    assert (row["operation"], row["host"]) == ("two-phase-commit", "192.168.1.0/24")
    report = restored(source, tmp_path / "new")
    assert report.facts["release"] == "4.4-IV2"
    assert report.is_whole
    assert restored(source, tmp_path / "named", metadata_version="4.4").facts["metadata_version"] == 33
    lower = restored(source, tmp_path / "lower", metadata_version="4.3")
    assert any("192.168.1.0/24" in note for note in lower.notes)


def test_a_record_of_4_4_at_a_lower_level_is_found(tmp_path: Path) -> None:
    records = [("RegisterControllerRecord", CONTROLLER), ("UnregisterControllerRecord", {"controllerId": 3001})]
    findings = {
        level: {one.code for one in rawlog.verify(cluster(tmp_path / str(level), *records, level=level))}
        for level in (30, 33)
    }
    assert findings[30] - findings[33] == {"kraft.metadata.level"}


def test_a_level_that_is_not_known_is_noted_by_restore(tmp_path: Path) -> None:
    """It was restored without a word, in records of an older release."""
    report = restored(cluster(tmp_path / "source", level=40), tmp_path / "new")
    assert report.facts["metadata_version"] == 40
    assert any("metadata.version 40 is newer than 4.5-IV0" in note for note in report.notes)


def test_tagged_fields_that_are_not_known_are_carried_or_named(tmp_path: Path) -> None:
    """Vendors add such fields to partitions; they were dropped without a word."""
    partition = ("PartitionRecord", {**PARTITION, "partitionId": 1, "replicas": [1], "isr": [1], UNKNOWN: [TAG]})
    acl = ("AccessControlEntryRecord", {**ACL, "host": "*", UNKNOWN: [TAG]})
    source = cluster(tmp_path / "source", partition, acl)
    report = restored(source, tmp_path / "new")
    [lost] = [entry for entry in report.entries if entry.action is Action.LOST and "tagged" in entry.reason]
    assert lost.reason == "tagged fields that are not known are lost: PartitionRecord tag 102 (1 record)"
    assert not report.is_whole
    assert b"vendor" in (tmp_path / "new" / "bootstrap.checkpoint").read_bytes()


@pytest.mark.parametrize("name", ["PartitionRecord", "RegisterControllerRecord", "AccessControlEntryRecord"])
def test_a_snapshot_of_a_state_keeps_tagged_fields_that_are_not_known(name: str) -> None:
    message = {"PartitionRecord": PARTITION, "RegisterControllerRecord": CONTROLLER, "AccessControlEntryRecord": ACL}[
        name
    ]
    state = replayed(*DEMO[:2], (name, {**message, UNKNOWN: [TAG]}))
    [found] = [each for kind, _, each in state.image() if kind == name]
    assert found[UNKNOWN] == [TAG]
    assert state.uncarried_tags(IMAGED) is None
    assert state.image_lines() == replayed(*DEMO[:2], (name, dict(message))).image_lines()


def test_tags_in_other_records_are_counted() -> None:
    state = State()
    for offset in range(2):
        state.add(offset, encode_framed("TopicRecord", {"name": "demo", "topicId": TOPIC, UNKNOWN: [TAG]}))
    quota = {
        "entity": [{"entityType": "user", "entityName": "a", UNKNOWN: [(5, b"x")]}],
        "key": "k",
        "value": 1.0,
        "remove": False,
    }
    state.add(2, encode_framed("ClientQuotaRecord", quota))
    text = state.uncarried_tags(IMAGED)
    assert (
        text
        == "tagged fields that are not known are lost: ClientQuotaRecord tag 5 (1 record), TopicRecord tag 102 (2 records)"
    )
