"""The metadata of several controllers: which log counts, what is taken from others, and what is said of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rawlog.formats.kafka.cluster.broker_disks import find_disks
from rawlog.formats.kafka.cluster.metadata_replicas import ClusterMetadata, elect
from rawlog.reading.tree import open_tree
from tests.data.quorum_model import Quorum, id_of


def elected(*disks: Path) -> ClusterMetadata:
    tree = open_tree(list(disks))
    return elect(tree.files, find_disks(tree.roots, tree.files))


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(bytes(data))


def logs(disk: Path) -> list[Path]:
    return sorted((disk / "__cluster_metadata-0").glob("*.log"))


@pytest.mark.parametrize("seed", range(12))
def test_the_furthest_log_counts_whatever_others_have(seed: int, tmp_path: Path) -> None:
    quorum = Quorum(seed, count=3 if seed % 2 else 5)
    quorum.live()
    made = elected(*quorum.write(tmp_path).values())
    best = quorum.furthest
    assert set(made.state.topic_ids) == quorum.topics(best)
    assert made.end == (quorum.logs[best][-1].epoch, quorum.end(best))
    assert made.is_newest
    assert made.committed == quorum.end(best, quorum.committed())
    assert any("perhaps they were not committed" in one for one in made.notes) == (made.committed < made.end[1])
    divergent = [node for node, log in quorum.logs.items() if quorum.shared(log, quorum.logs[best]) < len(log)]
    assert sum("did not have them" in one for one in made.notes) == len(divergent)


@pytest.mark.parametrize("seed", range(12))
def test_damage_is_filled_from_other_copies_of_the_same_history(seed: int, tmp_path: Path) -> None:
    quorum = Quorum(seed)
    quorum.live(60)
    for node in quorum.nodes:
        quorum.fetch(node)
    quorum.append()  # on one disk alone
    disks = quorum.write(tmp_path)
    best, other = quorum.furthest, next(node for node in quorum.nodes if node != quorum.furthest)
    hurt = logs(disks[best])
    flip(hurt[seed % (len(hurt) - 1)], 70)
    flip(hurt[(seed + 2) % (len(hurt) - 1)], 7)  # an offset, which no checksum covers
    flip(logs(disks[other])[(seed + 1) % (len(hurt) - 1)], 80)
    made = elected(*disks.values())
    assert set(made.state.topic_ids) == quorum.topics(best)
    assert not made.missing
    assert any("are taken from" in one for one in made.notes)
    alone = elected(disks[best])
    assert alone.missing
    assert any("on no disk" in one for one in alone.unknown)
    assert not alone.is_newest
    assert any("undamaged logs of 0 of 3 controllers were found" in one for one in alone.unknown)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("trim", [False, True])
def test_a_damaged_snapshot_falls_back_to_another_copy_or_to_the_log(seed: int, trim: bool, tmp_path: Path) -> None:
    quorum = Quorum(seed)
    quorum.live(60)
    for node in quorum.nodes:
        quorum.fetch(node)
    length = len(quorum.logs[1]) * 2 // 3
    disks = quorum.write(tmp_path, snapshot=length, trim=trim)
    best = quorum.furthest
    expected = quorum.topics(best)
    assert set(elected(*disks.values()).state.topic_ids) == expected
    for disk in list(disks.values())[:2]:
        [snapshot] = (disk / "__cluster_metadata-0").glob("*.checkpoint")
        flip(snapshot, 150)
    made = elected(*disks.values())
    assert set(made.state.topic_ids) == expected
    assert not made.missing
    assert sum("snapshot of the metadata is damaged" in one for one in made.notes) == 2
    assert made.committed >= quorum.end(best, length)


def test_a_snapshot_in_a_later_epoch_than_all_logs_counts(tmp_path: Path) -> None:
    quorum = Quorum(3)
    quorum.live(60)
    for node in quorum.nodes:
        quorum.fetch(node)
    disks = quorum.write(tmp_path / "later", snapshot=len(quorum.logs[1]), trim=True)
    for log in logs(disks[1]):
        log.unlink()
    old = Quorum(3)
    old.live(8)
    made = elected(disks[1], old.write(tmp_path / "old")[2])
    assert set(made.state.topic_ids) == quorum.topics(1)
    assert made.end[1] == quorum.end(1)


def test_a_directory_of_a_deleted_topic_is_told_from_one_of_a_topic_that_is_too_new(tmp_path: Path) -> None:
    quorum = Quorum(5)
    quorum.live(80)
    for node in quorum.nodes:
        quorum.fetch(node)
    disks = quorum.write(tmp_path)
    gone = {one.topic[1:] for one in quorum.logs[1] if one.topic is not None and one.topic.startswith("-")}
    assert gone
    some = min(quorum.topics(1))
    newest, stale = elected(*disks.values()), elected(disks[1])
    assert newest.verdict(some, b"x" * 16) == "replaced"
    assert stale.verdict(some, b"x" * 16) == "unknown"
    for made in (newest, stale):
        assert made.verdict(some, id_of(some)) == "known"
        assert {made.verdict(name, id_of(name)) for name in gone} == {"deleted"}
    assert newest.verdict("never", b"y" * 16) == "deleted"
    assert stale.verdict("never", b"y" * 16) == "unknown"


def test_a_snapshot_without_a_topic_of_the_log_before_it_says_that_it_was_deleted(tmp_path: Path) -> None:
    """The record that removed the topic was damaged; only the snapshot after it was used, which names no deleted topic, so the topic was
    served again.
    """
    quorum = Quorum(5)
    quorum.live(80)
    quorum.fetch(1)
    length = len(quorum.logs[1])
    gone = {one.topic[1:] for one in quorum.logs[1] if one.topic is not None and one.topic.startswith("-")}
    assert gone
    made = elected(quorum.write(tmp_path, snapshot=length)[1])
    assert not made.is_newest
    assert {made.verdict(name, id_of(name)) for name in gone} == {"deleted"}
    assert made.verdict("never", b"y" * 16) == "unknown"


def test_without_any_metadata_nothing_is_found_and_nothing_raises(tmp_path: Path) -> None:
    quorum = Quorum(1)
    quorum.live()
    disks = quorum.write(tmp_path)
    for disk in disks.values():
        shutil.rmtree(disk / "__cluster_metadata-0")
    made = elected(*disks.values())
    assert not made.is_found
    assert not made.partitions
