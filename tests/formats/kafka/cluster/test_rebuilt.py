"""A cluster without metadata: what the directories of its partitions tell, and what is listed as unknown."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import rawlog
from rawlog.formats.kafka.cluster.broker_disks import Disk
from rawlog.formats.kafka.cluster.internal_topics import partition_of
from rawlog.formats.kafka.cluster.metadata_replicas import (
    ClusterMetadata,
    PartitionDirectory,
    derive_topic_id,
    partition_count,
    rebuild,
)
from rawlog.formats.kafka.cluster.state import State
from rawlog.formats.kafka.internal.codec import uuid_text
from tests.data.golden import golden_path
from tests.data.kraft import data_dir

ONE, TWO = b"1" * 16, b"2" * 16


def rebuilt(*found: PartitionDirectory, metadata: ClusterMetadata | None = None) -> ClusterMetadata:
    made = metadata or ClusterMetadata(State())
    rebuild(made, found, [], "cluster")
    return made


def test_topics_have_the_ids_and_replicas_of_their_directories() -> None:
    made = rebuilt(
        PartitionDirectory("a", 0, ONE, "disk1/a-0", 1, 3),
        PartitionDirectory("a", 0, ONE, "disk2/a-0", 2, 4),
        PartitionDirectory("a", 2, ONE, "disk2/a-2", 2),
    )
    assert made.is_rebuilt
    assert made.state.topic_ids == {"a": ONE}
    assert made.partitions["a", 0]["replicas"] == [1, 2]
    assert made.partitions["a", 0]["leaderEpoch"] == 4
    assert sorted(number for _, number in made.partitions) == [0, 1, 2]
    nameless = rebuilt(PartitionDirectory("a", 0, ONE, "disk1/a-0"), PartitionDirectory("a", 0, ONE, "disk2/a-0"))
    assert len(nameless.partitions["a", 0]["replicas"]) == 2
    assert any("a: 1 partition on no disk (1)" in one for one in made.notes)
    assert any("settings of topics" in one for one in made.unknown)


def test_of_a_topic_that_was_created_again_the_newest_counts() -> None:
    made = rebuilt(
        PartitionDirectory("a", 0, ONE, "disk1/a-0", 1, newest=500),
        PartitionDirectory("a", 0, TWO, "disk2/a-0", 2, newest=900),
        PartitionDirectory("a", 1, TWO, "disk3/a-1", 3, newest=100),
    )
    assert made.state.topic_ids == {"a": TWO}
    assert made.verdict("a", ONE) == "replaced"
    assert made.partitions["a", 0]["replicas"] == [2]
    assert any("it has 2 ids" in one and "disk1/a-0" in one for one in made.unknown)


def test_a_topic_without_an_id_gets_one_that_stays() -> None:
    made = rebuilt(PartitionDirectory("a", 0, None, "disk1/a-0", 1))
    assert made.state.topic_ids == {"a": derive_topic_id("cluster", "a")}
    assert derive_topic_id("cluster", "a") != derive_topic_id("cluster", "b")
    assert any("ids of 1 topic (a)" in one for one in made.unknown)
    partly = rebuilt(PartitionDirectory("a", 0, None, "disk1/a-0", 1), PartitionDirectory("a", 1, ONE, "disk1/a-1", 1))
    assert partly.state.topic_ids == {"a": ONE}


def test_metadata_that_may_be_too_old_is_completed() -> None:
    metadata = rebuilt(PartitionDirectory("known", 0, ONE, "disk1/known-0", 1))
    metadata.path, metadata.is_rebuilt, metadata.guessed = "disk1/__cluster_metadata-0", False, set()
    metadata.unknown.clear()
    made = rebuilt(
        PartitionDirectory("known", 0, ONE, "x", 1), PartitionDirectory("new", 0, TWO, "y", 2), metadata=metadata
    )
    assert set(made.state.topic_ids) == {"known", "new"}
    assert made.guessed == {"new"}
    assert not made.is_rebuilt
    [text] = made.unknown
    assert "1 topic not in the metadata" in text


@pytest.mark.parametrize(("newest", "used"), [(900, TWO), (100, ONE)])
def test_of_a_topic_that_the_metadata_knows_with_another_id_the_newest_counts(newest: int, used: bytes) -> None:
    """The records of deletion and of the new topic were lost: the directories of the new topic were left out as those of an older one."""
    metadata = rebuilt(PartitionDirectory("a", 0, ONE, "disk1/a-0", 1, newest=500))
    metadata.path, metadata.is_rebuilt, metadata.guessed = "disk1/__cluster_metadata-0", False, set()
    found = (
        PartitionDirectory("a", 0, ONE, "disk1/a-0", 1, newest=500),
        PartitionDirectory("a", 0, TWO, "disk2/a-0", 2, newest=newest),
    )
    made = rebuilt(*found, metadata=metadata)
    assert made.state.topic_ids == {"a": used}
    assert {made.verdict("a", one) for one in (ONE, TWO) if one != used} == {"replaced"}
    assert any("which topic a existed last" in one for one in made.unknown)


@pytest.mark.parametrize("count", [3, 50])
def test_the_number_of_partitions_of_groups_is_known_from_where_they_are(count: int) -> None:
    """A group is looked for in the partition that a hash of its name gives, so a number that is too small loses it."""
    groups = [f"group-{number}" for number in range(40)]
    places = [(partition_of(name, count), [name]) for name in groups if partition_of(name, count) < 2]
    assert partition_count("__consumer_offsets", places) == count
    assert partition_count("plain", places) == 2
    assert partition_count("__consumer_offsets", [(0, ["a", "b", "c", "d"]), (1, ["a"])]) is None


def test_a_compacted_topic_is_named(tmp_path: Path) -> None:
    (tmp_path / "cleaner-offset-checkpoint").write_text("0\n1\na 0 17\n")
    made = ClusterMetadata(State())
    rebuild(made, [PartitionDirectory("a", 0, ONE, "x", 1)], [Disk(str(tmp_path), 1)], None)
    assert any("cleanup.policy=compact" in one for one in made.unknown)


def test_a_disk_without_metadata_is_rescued_with_its_ids_and_records(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    shutil.copytree(data_dir("broker-4.3.0"), disk)
    before = {row["topic"]: row["topic_id"] for row in rawlog.read(disk, table="kraft.topics").to_pylist()}
    shutil.rmtree(disk / "__cluster_metadata-0")
    (disk / "bootstrap.checkpoint").unlink()
    (disk / "meta.properties").unlink()
    report = rawlog.rescue([disk], to=tmp_path / "new")
    after = {row["topic"]: row["topic_id"] for row in rawlog.read(tmp_path / "new", table="kraft.topics").to_pylist()}
    assert {name: before[name] for name in after} == after
    configs = rawlog.read(tmp_path / "new", table="kraft.configs").to_pylist()
    assert {row["value"] for row in configs if row["name"] == "retention.ms"} == {"-1"}
    assert any("no metadata could be read" in one for one in report.notes)
    plain = {"topic": "codec-none"}
    assert rawlog.read(tmp_path / "new", **plain).equals(rawlog.read(disk, **plain))
    assert not [one for one in rawlog.verify(tmp_path / "new") if str(one.severity) == "error"]


def test_directories_of_the_time_of_zookeeper_become_a_kraft_cluster(tmp_path: Path) -> None:
    """No KRaft metadata, no topic ids, `version=0` with a broker id; messages of the old formats."""
    source = golden_path("kafka", "legacy")
    logs = sorted(source.rglob("*.log"))
    assert logs
    disk = tmp_path / "disk"
    for number, log in enumerate(logs[:3]):
        folder = disk / f"old-{number}"
        folder.mkdir(parents=True)
        shutil.copy(log, folder / log.name)
    (disk / "meta.properties").write_text("version=0\nbroker.id=5\ncluster.id=AAAAAAAAAAAAAAAAAAAAAA\n")
    report = rawlog.rescue([disk], to=tmp_path / "new")
    [topic] = rawlog.read(tmp_path / "new", table="kraft.topics").to_pylist()
    assert (topic["topic"], topic["partitions"]) == ("old", 3)
    assert topic["topic_id"] == uuid_text(derive_topic_id("AAAAAAAAAAAAAAAAAAAAAA", "old"))
    assert (tmp_path / "new" / "old-0" / "partition.metadata").read_text().endswith(topic["topic_id"])
    assert rawlog.count(tmp_path / "new") == rawlog.count(disk)
    assert report.facts["metadata_version"] == 21
