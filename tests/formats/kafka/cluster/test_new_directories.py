"""Directories for several brokers: which node has what, identical copies, and what each directory says of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

import rawlog
from rawlog.formats.kafka.cluster.new_cluster import NewTopic, node_ids, place_replicas
from rawlog.formats.kafka.cluster.state import State
from rawlog.model.errors import OptionError
from tests.data.dead_cluster import Partition, write_disks
from tests.data.trees import contents


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    partitions = {("wide", number): Partition(number) for number in range(3)}
    partitions |= {("single", number): Partition(9 + number, (1 + number,)) for number in range(3)}
    for one in partitions.values():
        for _ in range(6):
            one.produce()
    made = write_disks(tmp_path_factory.mktemp("dead"), partitions, configs={"min.insync.replicas": "2"})
    return list(made.values())


@pytest.mark.parametrize("brokers", [2, 3])
def test_every_broker_has_its_share_and_copies_are_the_same(brokers: int, disks: list[Path], tmp_path: Path) -> None:
    target = tmp_path / "new"
    report = rawlog.rescue(disks, to=target, brokers=brokers)
    homes = {node: target / f"broker-{node}" for node in range(1, brokers + 1)}
    assert sorted(path.name for path in target.iterdir()) == sorted(home.name for home in homes.values())
    assert report.facts["nodes"] == list(homes)
    rows = rawlog.read(homes[1], table="kraft.partitions").to_pylist()
    assert {len(row["replicas"]) for row in rows if row["topic"] == "wide"} == {brokers}
    assert {len(row["replicas"]) for row in rows if row["topic"] == "single"} == {1}
    for row in rows:
        name = f"{row['topic']}-{row['partition']}"
        there = [node for node, home in homes.items() if (home / name).is_dir()]
        assert there == sorted(row["replicas"]) == sorted(row["isr"]), name
        assert len({str(contents(homes[node] / name)) for node in there}) == 1
    snapshots = [list((home / "__cluster_metadata-0").iterdir()) for home in homes.values()]
    assert len({(name.name, name.read_bytes()) for [name] in snapshots}) == 1
    ids = set()
    for node, home in homes.items():
        lines = dict(line.split("=") for line in (home / "meta.properties").read_text().split())
        assert (lines["node.id"], lines["cluster.id"]) == (str(node), report.facts["cluster_id"])
        ids.add(lines["directory.id"])
        assert not [one for one in rawlog.verify(home) if str(one.severity) == "error"]
        assert f"log.dirs={home}" in report.facts["server_properties"][str(node)]
        marks = (home / "replication-offset-checkpoint").read_text().splitlines()[2:]
        assert len(marks) == sum(1 for path in home.iterdir() if path.is_dir()) - 1
    assert len(ids) == brokers
    kept = [
        row for row in rawlog.read(homes[1], table="kraft.configs").to_pylist() if row["name"] == "min.insync.replicas"
    ]
    assert [row["resource_name"] for row in kept] == ["wide"]
    assert any("single: min.insync.replicas=2 is left out" in note for note in report.notes)


def test_a_rescued_cluster_can_be_rescued_again(disks: list[Path], tmp_path: Path) -> None:
    rawlog.rescue(disks, to=tmp_path / "one", brokers=3)
    homes = sorted((tmp_path / "one").iterdir())
    rawlog.rescue(homes, to=tmp_path / "two", brokers=3)
    for home in homes:
        one, two = contents(home), contents(tmp_path / "two" / home.name)
        assert {name: one[name] for name in one if name.endswith(".log")} == {
            name: two[name] for name in two if name.endswith(".log")
        }


def test_replicas_stay_where_they_were_if_those_nodes_exist() -> None:
    topic = NewTopic("t", "t", b"t" * 16, 3)
    assert place_replicas(topic, [1, 2, 3], {0: [3, 1], 1: [9, 1], 2: [2, 3]}, shift=1) == 2
    assert topic.replicas == {0: [3, 1], 1: [3, 1], 2: [2, 3]}
    assert place_replicas(topic, [1], {0: [3, 1]}) == 1
    assert topic.replicas == {0: [1], 1: [1], 2: [1]}


def test_nodes_are_the_old_ones_if_there_are_as_many() -> None:
    old = State(brokers={101: {}, 102: {}})
    assert node_ids(2, 1, old) == [101, 102]
    assert node_ids(3, 1, old) == [1, 2, 3]
    assert node_ids(2, 5, old) == [5, 6]
    assert node_ids(1, 1, old) == [1]
    with pytest.raises(OptionError):
        node_ids(0, 1, None)
