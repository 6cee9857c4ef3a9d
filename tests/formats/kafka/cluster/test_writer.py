"""What is written: batches and bootstrap files as Kafka's own bytes, snapshots that read back, new clusters, repaired directories."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import rawlog
from rawlog.formats.kafka.cluster.metadata_log import MetadataStore, clusters
from rawlog.formats.kafka.cluster.writer import (
    encode_batch,
    encode_bootstrap,
    encode_checkpoint,
    encode_controls,
    write_checkpoint,
)
from rawlog.formats.kafka.internal.messages import encode_framed
from rawlog.formats.kafka.log.layouts import ControlType
from rawlog.formats.kafka.paths import takes
from rawlog.io.output import Folder
from rawlog.model.errors import EncodeError, RawlogError
from rawlog.model.report import Report
from tests.data.golden import golden_path
from tests.data.kraft import data_dir
from tests.data.new_cluster import NewCluster
from tests.data.rewriting import rewritten

SEED = bytes.fromhex(
    "00000000000000000000004f0000000102b069457c00000000000000000191e05af81800000191e05af818ffffffffffffffffffffffffffff00000001"
    "3a000000012e010c00116d657461646174612e76657273696f6e00140000"
)


def replica_of(folder: Path) -> MetadataStore:
    [found] = clusters([file for file in rawlog.open(folder).files if takes("kraft.topics", file)])
    return found


def test_the_batch_of_seed_001_is_written_byte_for_byte() -> None:
    record = encode_framed("FeatureLevelRecord", {"name": "metadata.version", "featureLevel": 20})
    assert encode_batch(0, 1, 1726045943832, [(None, record)]) == SEED


def test_a_leader_change_is_written_byte_for_byte() -> None:
    """The example of the specification, made by Kafka's own classes."""
    voters = [{"voterId": 1}]
    made = encode_controls(
        0, 1, 0x18BCFE56800, [(ControlType.LEADER_CHANGE, {"leaderId": 1, "voters": voters, "grantingVoters": voters})]
    )
    assert made.hex() == (
        "00000000000000000000004f00000001021154eaf900200000000000000"
        "18bcfe568000000018bcfe56800ffffffffffffffffffffffffffff00000001"
        "3a00000008000000022600000000000102000000010002000000010000"
        "00"
    )


def test_a_bootstrap_file_has_kafkas_bytes() -> None:
    """Kafka's own, of 3.9-IV0, in the golden directory of the crashed broker: the same but for the times of its batches."""
    golden = golden_path("kafka", "broker-3.9.2-crashed", "data", "bootstrap.checkpoint").read_bytes()
    made = b"".join(encode_bootstrap(21))
    assert len(made) == len(golden)
    table = [
        [(row["type"], row["value"]) for row in rawlog.read(path, table="kraft.metadata").to_pylist()]
        for path in (golden_path("kafka", "broker-3.9.2-crashed", "data", "bootstrap.checkpoint"),)
    ]
    assert [kind for kind, _ in table[0]] == ["SNAPSHOT_HEADER", "FEATURE_LEVEL_RECORD", "SNAPSHOT_FOOTER"]


@pytest.mark.parametrize("broker", ["broker-3.9.2", "broker-4.3.0"])
def test_a_snapshot_written_is_the_state_read_back(broker: str, tmp_path: Path) -> None:
    state = replica_of(data_dir(broker)).fold()
    folder = Folder(tmp_path / "__cluster_metadata-0")
    path = folder.path / write_checkpoint(folder, state)
    assert rawlog.verify(path).verdict == "clean"
    again = replica_of(tmp_path).fold()
    assert list(again.image()) == list(state.image())
    assert (again.end_offset, again.epoch, again.timestamp) == (state.end_offset, state.epoch, state.timestamp)
    assert (again.kraft_version, again.voters) == (state.kraft_version, state.voters if state.kraft_version else [])


def test_large_snapshots_have_several_batches(tmp_path: Path) -> None:
    records = [
        encode_framed("TopicRecord", {"name": f"t{number}", "topicId": number.to_bytes(16, "big")})
        for number in range(5000)
    ]
    path = tmp_path / "00000000000000005000-0000000000.checkpoint"
    path.write_bytes(b"".join(encode_checkpoint(records, 0, 0)))
    assert rawlog.verify(path).verdict == "clean"
    assert rawlog.read(path, table="kraft.metadata").column("offset").to_pylist() == list(range(5002))


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EncodeError):
        encode_batch(0, 1, 0, [])
    with pytest.raises(EncodeError, match="offset 0"):
        write_checkpoint(Folder(tmp_path), replica_of(data_dir("broker-4.3.0")).fold().__class__())
    with pytest.raises(EncodeError, match="at least 4"):
        list(encode_bootstrap(3))


def test_a_new_cluster_is_a_log_that_folds_to_what_was_given(tmp_path: Path) -> None:
    topic = bytes(range(16))
    partition = {
        "partitionId": 0, "topicId": topic, "replicas": [1], "isr": [1], "removingReplicas": [], "addingReplicas": [],
        "leader": 1, "leaderEpoch": 5, "partitionEpoch": 0, "directories": [b"d" * 16],
    }  # fmt: skip
    cluster = NewCluster(
        1, 25, 1_700_000_000_000, directory_id=b"d" * 16, endpoints=(("CONTROLLER", "localhost", 9093),), features={"group.version": 1},
        records=[("TopicRecord", None, {"name": "demo", "topicId": topic}), ("PartitionRecord", None, partition)],
    )  # fmt: skip
    cluster.write(Folder(tmp_path), "abcdefghijklmnopqrstuv")
    assert serious_codes(tmp_path) == {
        "kafka.partition.missing"
    }  # the cluster knows a partition that has no directory yet
    state = replica_of(tmp_path).fold()
    assert (state.features, state.leader, state.kraft_version) == ({"metadata.version": 25, "group.version": 1}, 1, 1)
    assert state.topics[topic].partitions[0]["leaderEpoch"] == 5
    assert [row["cluster_id"] for row in rawlog.read(tmp_path, table="kraft.topics").to_pylist()] == [
        "abcdefghijklmnopqrstuv"
    ]


def serious_codes(path: Path) -> set[str]:
    """The codes of the errors and warnings that `verify` finds."""
    return {one.code for one in rawlog.verify(path) if str(one.severity) != "info"}


def copy_of(broker: str, folder: Path) -> Path:
    target = folder / "__cluster_metadata-0"
    shutil.copytree(data_dir(broker) / "__cluster_metadata-0", target)
    for path in (target, *target.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return target


def repaired(source: Path, target: Path, policy: str = "salvage") -> Report:
    source = source / "__cluster_metadata-0"
    planned = rewritten("repair", source, target, dry_run=True, policy=policy)
    assert not target.exists()
    report = rewritten("repair", source, target, policy=policy)
    assert (planned.entries, planned.counts, planned.facts) == (report.entries, report.counts, report.facts)
    found = rawlog.verify(target.parent)
    assert found.verdict == "clean", list(found)
    again = target.parent.parent / "again" / "__cluster_metadata-0"
    twice = rewritten("repair", target, again, policy=policy)
    assert twice.is_whole, twice.lines()
    shutil.rmtree(again.parent)
    return report


def image_of(folder: Path) -> list[str]:
    return list(map(str, replica_of(folder).fold().image()))


def test_a_sound_directory_is_copied_as_it_is(tmp_path: Path) -> None:
    source = copy_of("broker-4.3.0", tmp_path / "source")
    report = repaired(tmp_path / "source", tmp_path / "repaired" / "__cluster_metadata-0")
    assert report.is_whole
    for path in (tmp_path / "repaired" / "__cluster_metadata-0").iterdir():
        assert path.read_bytes() == (source / path.name).read_bytes()


def test_a_bad_tail_is_cut(tmp_path: Path) -> None:
    source = copy_of("broker-4.3.0", tmp_path / "source")
    for path in source.glob("*.checkpoint"):
        path.unlink()
    segment = max(source.glob("*.log"))
    segment.write_bytes(segment.read_bytes()[:-10])
    report = repaired(tmp_path / "source", tmp_path / "repaired" / "__cluster_metadata-0")
    assert not report.is_whole
    end = report.facts["end_offset"]
    assert report.lost == [(end, end)]  # a snapshot of the producers was taken after it
    assert "fresh_snapshot" not in report.facts
    assert image_of(tmp_path / "repaired") == list(
        map(str, replica_of(tmp_path / "source").fold(errors="stop").image())
    )
    with pytest.raises(RawlogError, match="strict"):
        rewritten("repair", source, tmp_path / "strict", policy="strict")


def damaged(tmp_path: Path, *, snapshots: bool) -> Path:
    """A log with a flipped bit in its second segment, and perhaps the snapshots after it."""
    source = copy_of("broker-4.3.0", tmp_path / "source")
    if not snapshots:
        for path in source.glob("*.checkpoint"):
            path.unlink()
    path = sorted(source.glob("*.log"))[1]
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    return tmp_path / "source"


def test_a_snapshot_after_the_damage_saves_the_state(tmp_path: Path) -> None:
    """What the newest snapshot and the log after it say is kept whole, although something before them is damaged. The offset whose record
    is gone is named.
    """
    source = damaged(tmp_path, snapshots=True)
    report = repaired(source, tmp_path / "repaired" / "__cluster_metadata-0")
    assert report.counts["bytes_cut"]
    assert report.lost == [(23, 23)]
    assert image_of(tmp_path / "repaired") == list(map(str, replica_of(data_dir("broker-4.3.0")).fold().image()))
    cut = repaired(source, tmp_path / "cut" / "__cluster_metadata-0", "broker")
    assert cut.counts["bytes_cut"] > report.counts["bytes_cut"]


def test_a_base_offset_that_does_not_fit_is_set_right(tmp_path: Path) -> None:
    """No checksum covers it: the one batch was kept as the end of the log, and all the others were dropped."""
    source = copy_of("broker-4.3.0", tmp_path / "source")
    for path in source.glob("*.checkpoint"):
        path.unlink()
    path = max(source.glob("*.log"), key=lambda one: one.stat().st_size)
    before = path.read_bytes()
    at = 12 + int.from_bytes(before[8:12], "big")  # the second batch
    data = bytearray(before)
    data[at + 3] ^= 4
    path.write_bytes(data)
    report = repaired(tmp_path / "source", tmp_path / "repaired" / "__cluster_metadata-0")
    assert (report.counts["batches_changed"], report.counts["bytes_cut"], report.lost) == (1, 0, [])
    assert not report.is_whole
    assert image_of(tmp_path / "repaired") == list(map(str, replica_of(data_dir("broker-4.3.0")).fold().image()))
    assert rawlog.verify(tmp_path / "repaired").verdict == "clean"
    logs = sorted((tmp_path / "repaired").rglob("*.log"))
    assert before in b"".join(one.read_bytes() for one in logs)


def test_without_a_snapshot_one_is_made_of_all_that_can_be_read(tmp_path: Path) -> None:
    source = damaged(tmp_path, snapshots=False)
    report = repaired(source, tmp_path / "repaired" / "__cluster_metadata-0")
    assert report.facts["fresh_snapshot"] == "00000000000000000411-0000000002.checkpoint"
    assert len(report.lost) == 1
    topics = {row["topic"] for row in rawlog.read(tmp_path / "repaired", table="kraft.topics").to_pylist()}
    assert len(topics) >= 23
    cut = repaired(source, tmp_path / "cut" / "__cluster_metadata-0", "broker")
    assert "fresh_snapshot" not in cut.facts
    assert cut.facts["end_offset"] == report.lost[0][0]


def test_a_snapshot_from_before_a_sound_log_stays(tmp_path: Path) -> None:
    """A controller may not have removed it yet, and `verify` finds nothing wrong; it was left out, and not reported as lost."""
    source = copy_of("broker-4.3.0", tmp_path / "source")
    snapshots = sorted(int(path.name[:20]) for path in source.glob("*.checkpoint"))
    starts = [int(path.name[:20]) for path in sorted(source.glob("*.log"))]
    start = max(one for one in starts if one <= snapshots[-1])
    assert 0 < snapshots[1] < start
    for path in source.glob("*"):
        if path.suffix not in (".checkpoint", ".log") or (path.suffix == ".log" and int(path.name[:20]) < start):
            path.unlink()
    assert rawlog.verify(tmp_path / "source").verdict == "clean"
    report = repaired(tmp_path / "source", tmp_path / "repaired" / "__cluster_metadata-0")
    assert report.is_whole
    names = sorted(path.name for path in (tmp_path / "repaired" / "__cluster_metadata-0").iterdir())
    assert names == sorted(path.name for path in source.iterdir())


def test_a_log_without_its_beginning_gets_a_snapshot_of_what_can_be_read(tmp_path: Path) -> None:
    source = copy_of("broker-4.3.0", tmp_path / "source")
    for path in [*source.glob("*.checkpoint"), *sorted(source.glob("*.log"))[:2]]:
        path.unlink()
    assert "kraft.checkpoint.missing" in {one.code for one in rawlog.verify(tmp_path / "source", rule=["kraft"])}
    for policy in ("salvage", "broker"):
        report = repaired(tmp_path / "source", tmp_path / policy / "__cluster_metadata-0", policy)
        assert "fresh_snapshot" in report.facts
        assert report.lost[0][0] == 0


def test_the_verb_repairs_partitions_and_metadata_each_in_its_way(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from rawlog.cli import cli

    source = damaged(tmp_path, snapshots=True)
    shutil.copytree(data_dir("broker-4.3.0") / "codec-none-0", source / "codec-none-0")
    done = CliRunner().invoke(cli, ["repair", str(source), str(tmp_path / "repaired"), "--json"])
    assert done.exit_code == 1, done.output + done.stderr
    parts = json.loads(done.output)["parts"]
    assert parts["codec-none-0"]["is_whole"]
    assert not parts["__cluster_metadata-0"]["is_whole"]
    assert sorted(path.name for path in (tmp_path / "repaired").iterdir()) == ["__cluster_metadata-0", "codec-none-0"]
    assert serious_codes(tmp_path / "repaired") == {"kafka.directory.no-identity"}  # the source has no meta.properties
    alone = CliRunner().invoke(cli, ["repair", str(source / "__cluster_metadata-0"), str(tmp_path / "alone")])
    assert alone.exit_code == 1, alone.output + alone.stderr
    assert "something was lost" in alone.output
    assert (tmp_path / "alone" / "quorum-state").is_file()
    policy = CliRunner().invoke(
        cli, ["repair", str(source / "__cluster_metadata-0"), str(tmp_path / "x"), "--policy", "no"]
    )
    assert policy.exit_code == 2
    assert not (tmp_path / "x").exists()
