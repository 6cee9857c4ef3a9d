"""Log directories of several brokers: whose they are, and which do not belong together."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rawlog.formats.kafka.cluster.broker_disks import Disks, find_disks, infer_nodes
from rawlog.formats.kafka.cluster.state import State, Topic
from rawlog.io.storage import lock_holder
from rawlog.model.errors import OptionError
from rawlog.reading.tree import open_tree

CLUSTER = "AAAAAAAAAAAAAAAAAAAAAA"
TOPIC = b"i" * 16


def directory_id(number: int) -> tuple[bytes, str]:
    from rawlog.formats.kafka.internal.codec import uuid_text

    raw = bytes([number]) * 16
    return raw, uuid_text(raw)


def write(disk: Path, text: str | None, *partitions: str) -> Path:
    disk.mkdir(parents=True)
    if text is not None:
        (disk / "meta.properties").write_text(text)
    for name in partitions:
        (disk / name).mkdir()
        (disk / name / f"{0:020d}.log").write_bytes(b"")
    return disk


def meta(node: int, cluster: str = CLUSTER, directory: int | None = None) -> str:
    own = "" if directory is None else f"directory.id={directory_id(directory)[1]}\n"
    return f"#\nversion=1\ncluster.id={cluster}\nnode.id={node}\n{own}"


def found(*roots: Path) -> Disks:
    tree = open_tree(list(roots))
    return find_disks(tree.roots, tree.files)


def test_disks_are_found_below_a_directory_with_nodes_and_ids(tmp_path: Path) -> None:
    write(tmp_path / "one", meta(1, directory=70), "a-0")
    write(tmp_path / "two", meta(1, directory=71), "a-1", "b-0")
    write(tmp_path / "three", meta(2, directory=72))
    disks = found(tmp_path)
    assert {disk.path.rpartition("/")[2]: disk.node for disk in disks} == {"one": 1, "two": 1, "three": 2}
    assert disks.cluster_id == CLUSTER
    assert disks.nodes == [1, 2]
    assert not disks.notes


def test_a_disk_of_the_time_of_zookeeper_has_its_broker_id(tmp_path: Path) -> None:
    write(tmp_path / "old", f"version=0\nbroker.id=7\ncluster.id={CLUSTER}\n", "a-0")
    [disk] = found(tmp_path)
    assert (disk.node, disk.is_zookeeper, disk.directory_id) == (7, True, None)


def test_disks_of_two_clusters_are_refused_with_their_paths(tmp_path: Path) -> None:
    write(tmp_path / "one", meta(1), "a-0")
    write(tmp_path / "two", meta(1, "BBBBBBBBBBBBBBBBBBBBBB"), "a-0")
    with pytest.raises(OptionError, match="belong to 2 clusters: cluster AAAA.*one; cluster BBBB.*two"):
        found(tmp_path)


def test_a_copy_of_a_disk_is_refused_and_a_link_to_one_is_used_once(tmp_path: Path) -> None:
    one = write(tmp_path / "one", meta(1, directory=70), "a-0")
    (tmp_path / "link").symlink_to(one)
    disks = found(one, tmp_path / "link")
    assert len(list(disks)) == 1
    write(tmp_path / "copy", meta(1, directory=70), "a-0")
    with pytest.raises(OptionError, match="copies of one disk"):
        found(one, tmp_path / "copy")


def test_an_empty_disk_is_noted_and_only_empty_ones_are_refused(tmp_path: Path) -> None:
    one, empty = write(tmp_path / "one", meta(1), "a-0"), tmp_path / "empty"
    empty.mkdir()
    disks = found(one, empty)
    assert len(list(disks)) == 1
    assert any(str(empty) in note and "nothing is used" in note for note in disks.notes)
    with pytest.raises(OptionError, match="no log directory"):
        found(empty)


def test_two_disks_of_a_node_with_the_same_partition_are_noted(tmp_path: Path) -> None:
    write(tmp_path / "one", meta(1), "a-0", "b-0", "__cluster_metadata-0")
    write(tmp_path / "two", meta(1), "a-0", "b-0", "__cluster_metadata-0")
    write(tmp_path / "three", meta(2), "a-0", "b-0")
    [note] = found(tmp_path).notes
    assert "both of node 1 and both have a-0" in note


@pytest.mark.parametrize("text", [None, "", "node.id=x\n", "\x00\xff\n"])
def test_a_disk_without_a_readable_identity_is_noted(text: str | None, tmp_path: Path) -> None:
    write(tmp_path / "one", meta(1), "a-0")
    write(tmp_path / "two", text, "a-0")
    disks = found(tmp_path)
    assert [disk.node for disk in disks] == [1, None]
    assert any("two" in note for note in disks.notes)


def test_a_directory_that_a_running_broker_has_locked_is_refused(tmp_path: Path) -> None:
    disk = write(tmp_path / "one", meta(1), "a-0")
    (disk / ".lock").write_bytes(b"")
    assert lock_holder(f"{disk}/.lock") is None
    code = f"import fcntl; f = open({str(disk / '.lock')!r}, 'wb'); fcntl.lockf(f, fcntl.LOCK_EX); print('locked', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        assert lock_holder(f"{disk}/.lock") == other.pid
        with pytest.raises(OptionError, match="a broker is running on it"):
            found(tmp_path)
        other.communicate(b"\n")
    assert len(list(found(tmp_path))) == 1


def state(*replicas: int, directories: dict[int, int]) -> State:
    made = State()
    one = Topic("a")
    ids = [directory_id(directories[node])[0] for node in replicas]
    one.partitions[0] = {"partitionId": 0, "topicId": TOPIC, "replicas": list(replicas), "directories": ids}
    made.topics[TOPIC], made.topic_ids["a"] = one, TOPIC
    made.brokers = {node: {"brokerId": node, "logDirs": [directory_id(own)[0]]} for node, own in directories.items()}
    return made


def test_the_only_node_that_can_have_a_disk_gets_it(tmp_path: Path) -> None:
    one, two = write(tmp_path / "one", meta(1, directory=70), "a-0"), write(tmp_path / "two", None, "a-0")
    disks = found(one, two)
    infer_nodes(disks, state(1, 2, directories={1: 70, 2: 71}), {str(two): [(TOPIC, "a", 0)]})
    assert (disks.by_path[str(two)].node, disks.by_path[str(two)].is_inferred) == (2, True)
    disks = found(one, two)
    infer_nodes(disks, state(1, 2, 3, directories={1: 70, 2: 71, 3: 72}), {str(two): [(TOPIC, "a", 0)]})
    assert disks.by_path[str(two)].node is None
    assert any("nodes 2, 3 can" in note for note in disks.notes)
