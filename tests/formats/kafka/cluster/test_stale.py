"""A replica that was not in sync, given to `restore`: the report says so."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import rawlog
from rawlog.formats.kafka.internal.messages import CONSUMER_OFFSETS
from tests.data.dead_cluster import Partition, write_disks
from tests.data.kraft import data_dir
from tests.formats.kafka.cluster.test_endings import append, commit


@pytest.fixture
def disks(tmp_path: Path) -> dict[int, Path]:
    """Node 3 was down while the others went on, and a leader changed."""
    one = Partition(1)
    for _ in range(4):
        one.produce()
    one.kill(3)
    one.kill(one.leader)
    one.start(min(set(one.nodes) - one.alive - {3}))
    one.fetch(1)
    for _ in range(4):
        one.produce()
    return write_disks(tmp_path, {("t", 0): one})


def test_a_stale_replica_is_reported_against_the_metadata(disks: dict[int, Path], tmp_path: Path) -> None:
    """Reported from production: a replica with 100 of 167 records was restored in silence."""
    report = rawlog.restore(disks[3], tmp_path / "new")
    assert report.facts["stale"] == ["t-0"]
    [note] = [one for one in report.notes if one.startswith("t-0")]
    assert "node 3, which was not in sync (nodes 1, 2)" in note
    assert "its log ends in leader epoch 0, the cluster was in 1" in note
    assert "rawlog rescue" in note


def test_a_replica_in_sync_is_not_called_stale(disks: dict[int, Path], tmp_path: Path) -> None:
    report = rawlog.restore(disks[1], tmp_path / "new")
    assert "stale" not in report.facts
    assert not [one for one in report.notes if one.startswith("t-0")]


def test_a_replica_on_a_node_that_should_not_have_it_is_reported(disks: dict[int, Path], tmp_path: Path) -> None:
    meta = disks[3] / "meta.properties"
    meta.write_text(meta.read_text().replace("node.id=3", "node.id=9"))
    report = rawlog.restore(disks[3], tmp_path / "new")
    [note] = [one for one in report.notes if one.startswith("t-0")]
    assert "node 9, which is not assigned to the partition (nodes 1, 2, 3)" in note


def test_a_log_that_ends_before_a_committed_offset_is_reported(tmp_path: Path) -> None:
    from rawlog.formats.kafka.cluster.internal_topics import partition_of
    from rawlog.formats.kafka.log.writer import BatchFields

    disk = tmp_path / "disk"
    shutil.copytree(data_dir("broker-3.9.2"), disk)
    append(disk, CONSUMER_OFFSETS, partition_of("ahead", 3), commit("ahead", 1_000_000), BatchFields(leader_epoch=0))
    report = rawlog.restore(disk, tmp_path / "new")
    assert [
        one
        for one in report.notes
        if one.startswith("codec-none-0: a group has committed offset 1,000,000, this log ends at")
    ]
    rescued = rawlog.rescue([disk], to=tmp_path / "rescued")
    notes = [note for part in rescued.parts.values() for note in part.notes if "group ahead" in note]
    assert len(notes) == 1
    rows = rawlog.read(tmp_path / "rescued", table="kafka.offsets").to_pylist()
    [now] = [row["committed_offset"] for row in rows if row["group"] == "ahead" and row["is_current"]]
    assert now == rescued.parts["codec-none-0"].facts["end_offset"]
