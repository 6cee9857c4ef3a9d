"""Rescue: the disks of a dead cluster in, one directory out. Real brokers judge the same in tests/rescue."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rawlog
from rawlog.formats.kafka.partition.writer import snapshot
from rawlog.model.errors import AccessError, OptionError, UnknownFormatError
from rawlog.model.report import Action, Entry, Report
from tests.data import dead_cluster as model
from tests.data.dead_cluster import Partition, damage, write_disks, write_epochs, write_log
from tests.data.golden import golden_path
from tests.data.trees import digests
from tests.reference import kafka

KEY = ("orders", 0)


def records(path: Path, topic: str = "orders") -> dict[int, bytes]:
    rows = rawlog.read(path, topic=topic) if any(path.glob(f"{topic}-*")) else None
    if rows is None:
        return {}
    return dict(zip(rows["offset"].to_pylist(), rows["value"].to_pylist(), strict=True))


def expected(batches: list[model.Batch]) -> dict[int, bytes]:
    return dict(record for batch in batches for record in batch.records())


def plan_of(report: Report, name: str = "orders-0") -> dict[str, Any]:
    return next(one for one in report.facts["plan"] if one["name"] == name)


def lost_in(report: Report, name: str = "orders-0") -> list[tuple[int, int | None]]:
    return [(one["start"], one["stop"]) for one in plan_of(report, name)["lost"]]


def filled(count: int = 12) -> Partition:
    """A partition with everything on all three brokers."""
    one = Partition(1)
    for _ in range(count):
        one.produce()
    return one


# Random lives -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(24))
def test_everything_acknowledged_that_survives_is_there_and_losses_are_the_truth(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    one = Partition(seed, unclean=seed % 3 == 0)
    one.live(60)
    disks = write_disks(tmp_path / "disks", {KEY: one})
    gone = chance.choice([*one.nodes, None, None])
    harmed: dict[int, set[model.Batch]] = {node: set() for node in one.nodes}
    for node in one.nodes:
        for _ in range(chance.randint(0, 2) if one.logs[node].batches else 0):
            batch = chance.choice(one.logs[node].batches)
            if batch not in harmed[node]:
                harmed[node].add(batch)
                # In the records, or in the offset, the length or the epoch, which no checksum covers.
                at = chance.choice((40, 40, 6, 7, 9, 13, 15))
                damage(disks[node] / "orders-0", one.logs[node].batches, batch, at)
    if gone is not None:
        shutil.rmtree(disks.pop(gone))
    before = digests(tmp_path / "disks")
    report = rawlog.rescue(sorted(disks.values()), to=tmp_path / "out", engine="local")
    assert digests(tmp_path / "disks") == before

    found = records(tmp_path / "out")
    alive = {node: [b for b in one.logs[node].batches if b not in harmed[node]] for node in one.nodes if node != gone}
    surviving = {batch for batches in alive.values() for batch in batches}
    synced = one.isr - {gone}
    promised = one.committed() if synced else [b for b in one.committed() if b in surviving]
    for batch in promised:
        if batch in surviving:
            assert all(found.get(offset) == value for offset, value in batch.records()), (batch, plan_of(report))
    if synced and one.leader != gone:
        # The result is the history at death; after its end there may be what nothing contradicts.
        truth = expected(one.history())
        end = one.logs[one.decides].end
        wrong = {offset for offset, value in found.items() if offset < end and truth.get(offset) != value}
        assert not wrong, (wrong, plan_of(report))
        lost = {offset for start, stop in lost_in(report) for offset in range(start, end if stop is None else stop)}
        missing = {offset for offset in truth if offset not in found}
        assert missing <= lost, plan_of(report)
        assert lost.isdisjoint(found)
    rawlog_findings = [one for one in rawlog.verify(tmp_path / "out") if str(one.severity) != "info"]
    assert not rawlog_findings or lost_in(report), rawlog_findings


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_marker_that_no_replica_has_is_put_back_as_repair_puts_it_back(number: int, tmp_path: Path) -> None:
    """Damage took the same marker from both replicas. Rescue of the two left it out, so that a committed transaction was aborted; repair
    and rescue of one of them put it back.
    """
    name, log = "transactions-0", "00000000000000000088.log"
    for node in (1, 2):
        shutil.copytree(golden_path("kafka/broker-4.3.0/data") / name, tmp_path / str(node) / name)
        (tmp_path / str(node) / "meta.properties").write_text(
            f"version=0\nbroker.id={node}\ncluster.id=rawlogRescueAAAAAAAAAA\n"
        )
        file = tmp_path / str(node) / name / log
        data = bytearray(file.read_bytes())
        marker = [batch for batch in kafka.decode(bytes(data)) if batch.is_control][number]
        data[marker.position + 40] ^= 1
        file.write_bytes(data)
    report = rawlog.rescue([tmp_path / "1", tmp_path / "2"], to=tmp_path / "out")
    [put_back] = report.parts[name].with_action(Action.ADDED)
    assert put_back.first_offset == marker.last_offset
    assert not report.parts[name].with_action(Action.LOST)
    rawlog.repair(tmp_path / "1", tmp_path / "repaired")
    batches = {side: list(kafka.decode((tmp_path / side / name / log).read_bytes())) for side in ("out", "repaired")}
    assert marker.last_offset in [batch.last_offset for batch in batches["out"] if batch.is_control]
    assert batches["out"] == batches["repaired"]


# The choice -------------------------------------------------------------------------------------------------------------


def test_a_longer_divergent_log_loses_against_the_leader_and_is_kept_next_to_the_result(tmp_path: Path) -> None:
    one = filled(4)
    for _ in range(6):
        one.produce(acks_all=False)  # only the leader, 1, has them
    one.kill(1)
    for _ in range(2):
        one.produce()
    disks = write_disks(tmp_path / "disks", {KEY: one})
    assert one.logs[1].end > one.logs[2].end
    report = rawlog.rescue(list(disks.values()), to=tmp_path / "out")
    assert records(tmp_path / "out") == expected(one.history())
    assert report.is_whole
    aside = tmp_path / "out.divergent"
    tail = one.logs[1].batches[4:]
    assert records(aside / "disk-1") == expected(tail)
    [(start, stop)] = [(span["start"], span["stop"]) for span in plan_of(report)["divergent"]]
    assert (start, stop) == (tail[0].base, tail[-1].end)


def test_a_new_leader_that_wrote_nothing_still_cuts_the_old_one(tmp_path: Path) -> None:
    """The checkpoint of leader epochs has the epoch of a leader that wrote nothing; records of the old leader after it are divergent."""
    one = filled(3)
    one.produce(acks_all=False)
    one.kill(1)
    disks = write_disks(tmp_path / "disks", {KEY: one}, metadata=False)
    report = rawlog.rescue(list(disks.values()), to=tmp_path / "out")
    assert records(tmp_path / "out") == expected(one.history())
    assert len(plan_of(report)["divergent"]) == 1


def test_records_that_nothing_contradicts_are_kept_and_reported_as_undecided(tmp_path: Path) -> None:
    one = filled(4)
    extra = [one.produce(acks_all=False) for _ in range(2)]
    disks = write_disks(tmp_path / "disks", {KEY: one})
    report = rawlog.rescue(list(disks.values()), to=tmp_path / "out")
    assert records(tmp_path / "out") == expected(one.logs[1].batches)
    assert extra[0] is not None
    assert [(span["start"], span["stop"]) for span in plan_of(report)["undecided"]] == [
        (extra[0].base, one.logs[1].end)
    ]
    [entry] = report.with_action(Action.UNDECIDED)
    assert (entry.first_offset, entry.stop_offset) == (extra[0].base, one.logs[1].end)
    assert report.is_lossless
    assert report.exit_code == 1


def test_that_nothing_tells_who_was_in_sync_is_only_noted_where_all_replicas_agree(tmp_path: Path) -> None:
    """The directory of a partition alone is healthy: there is no evidence of what was committed, and none against it."""
    disks = write_disks(tmp_path / "disks", {KEY: filled(4)})
    for number in (1, 2):
        shutil.copytree(disks[number] / "orders-0", tmp_path / f"bare-{number}" / "orders-0")
    report = rawlog.rescue([tmp_path / "bare-1", tmp_path / "bare-2"], to=tmp_path / "out")
    assert plan_of(report)["undecided"]
    assert report.exit_code == 0, report.lines()


def test_after_an_unclean_election_the_history_at_death_counts(tmp_path: Path) -> None:
    one = Partition(1, (1, 2), unclean=True)
    for _ in range(3):
        one.produce()
    one.kill(2)
    for _ in range(5):
        one.produce()  # in sync is 1 alone
    one.kill(1)
    one.start(2)
    one.produce()
    disks = write_disks(tmp_path / "disks", {KEY: one})
    report = rawlog.rescue(list(disks.values()), to=tmp_path / "out")
    assert records(tmp_path / "out") == expected(one.logs[2].batches)
    [span] = plan_of(report)["divergent"]
    assert span["stop"] == one.logs[1].end
    assert "unclean election" in span["reason"]


def test_the_only_in_sync_replica_has_acknowledged_records_that_others_lack(tmp_path: Path) -> None:
    one = filled(3)
    one.kill(2)
    one.kill(3)
    for _ in range(4):
        one.produce()
    disks = write_disks(tmp_path / "disks", {KEY: one})
    report = rawlog.rescue(list(disks.values()), to=tmp_path / "out")
    assert records(tmp_path / "out") == expected(one.logs[1].batches)
    assert not plan_of(report)["undecided"]
    shutil.rmtree(disks.pop(1))
    report = rawlog.rescue(list(disks.values()), to=tmp_path / "without")
    assert lost_in(report) == [(one.logs[2].end, None)]
    assert not report.is_whole
    assert "broker 1" in plan_of(report)["lost"][0]["reason"]


def test_a_batch_that_is_damaged_in_one_copy_comes_from_another(tmp_path: Path) -> None:
    one = filled(12)
    disks = write_disks(tmp_path / "disks", {KEY: one})
    for node, number in ((1, 0), (1, 5), (1, 11), (2, 3), (3, 5)):
        damage(disks[node] / "orders-0", one.logs[node].batches, one.logs[node].batches[number])
    report = rawlog.rescue(list(disks.values()), to=tmp_path / "out")
    assert records(tmp_path / "out") == expected(one.history())
    assert report.is_whole
    assert {piece["copy"] for piece in plan_of(report)["pieces"]} > {0}
    assert not [found for found in rawlog.verify(tmp_path / "out") if str(found.severity) != "info"]


def test_what_is_damaged_in_all_copies_is_lost_with_offsets_and_times(tmp_path: Path) -> None:
    one = filled(12)
    disks = write_disks(tmp_path / "disks", {KEY: one})
    chosen = one.history()[6]
    for node in one.nodes:
        damage(disks[node] / "orders-0", one.logs[node].batches, chosen)
    report = rawlog.rescue(list(disks.values()), to=tmp_path / "out")
    assert records(tmp_path / "out") == expected([batch for batch in one.history() if batch != chosen])
    [span] = plan_of(report)["lost"]
    assert (span["start"], span["stop"]) == (chosen.base, chosen.end)
    assert span["since"] <= model.START_MS + chosen.number <= span["until"]
    assert report.lost == [(chosen.base, chosen.end - 1)]
    assert not report.is_whole


def test_a_wrong_offset_that_no_checksum_covers_comes_from_another_copy(tmp_path: Path) -> None:
    one = filled(12)
    disks = write_disks(tmp_path / "disks", {KEY: one})
    damage(disks[1] / "orders-0", one.logs[1].batches, one.logs[1].batches[5], at=6)
    damage(disks[1] / "orders-0", one.logs[1].batches, one.logs[1].batches[9], at=2)
    report = rawlog.rescue(list(disks.values()), to=tmp_path / "out")
    assert records(tmp_path / "out") == expected(one.history())
    assert report.is_whole


@pytest.mark.parametrize("number", [0, 5, 11])
def test_a_batch_whose_offset_is_wrong_in_the_only_copy_is_put_into_its_place(number: int, tmp_path: Path) -> None:
    """The offset was corrected in silence, with exit code 0, where repair reported it as changed."""
    one = Partition(1, (1,))
    for _ in range(12):
        one.produce()
    disks = write_disks(tmp_path / "disks", {KEY: one})
    chosen = one.history()[number]
    damage(disks[1] / "orders-0", one.history(), chosen, at=7)
    # Nothing follows the last batch: only what a broker leaves when it stops tells where it belongs.
    (disks[1] / "orders-0" / f"{one.history()[-1].end:020}.snapshot").write_bytes(snapshot({}))
    report = rawlog.rescue(disks[1], to=tmp_path / "out")
    assert records(tmp_path / "out") == expected(one.history())
    [entry] = report.with_action(Action.CHANGED)
    assert (entry.first_offset, entry.stop_offset) == (chosen.base, chosen.end)
    assert "a base offset that does not fit" in entry.reason
    assert report.exit_code == 1


def test_a_batch_whose_epoch_is_wrong_in_the_only_copy_gets_the_right_one(tmp_path: Path) -> None:
    one = Partition(1, (1,))
    for _ in range(12):
        one.produce()
    disks = write_disks(tmp_path / "disks", {KEY: one})
    damage(disks[1] / "orders-0", one.history(), one.history()[5], at=13)
    report = rawlog.rescue(disks[1], to=tmp_path / "out")
    assert records(tmp_path / "out") == expected(one.history())
    assert report.parts["orders-0"].facts["largest_epoch"] == 0
    [entry] = report.with_action(Action.CHANGED)
    assert entry.reason.startswith("leader epoch 16711680 set to 0")
    assert report.exit_code == 1


def test_files_on_the_disks_that_nobody_knows_are_named(tmp_path: Path) -> None:
    """They were dropped without a word. A copy of each would need one name for several files, so none is made."""
    disks = write_disks(tmp_path / "disks", {KEY: filled()})
    (disks[1] / "orders-0" / "notes.txt").write_text("of the operator")
    (disks[2] / "lost+found").mkdir()
    (disks[2] / "lost+found" / "#1").write_text("somebody's")
    report = rawlog.rescue(list(disks.values()), to=tmp_path / "out")
    unknown = [str(disks[1] / "orders-0" / "notes.txt"), str(disks[2] / "lost+found" / "#1")]
    assert sorted(report.left_out) == sorted(unknown)
    assert report.exit_code == 1
    assert sorted(rawlog.rescue(list(disks.values()), plan=True).left_out) == sorted(unknown)


def test_a_disk_that_cannot_be_read_everywhere_counts_as_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rawlog.formats.kafka.cluster import copy_partition

    one = filled(12)
    disks = write_disks(tmp_path / "disks", {KEY: one})
    walk = copy_partition.walk

    def failing(file: Any, *more: Any, **named: Any) -> Any:
        if "disk1" in file.path and not file.path.endswith("00000000000000000000.log"):
            raise AccessError(f"{file.path}: Input/output error")
        yield from walk(file, *more, **named)

    monkeypatch.setattr(copy_partition, "walk", failing)
    report = rawlog.rescue(list(disks.values()), to=tmp_path / "out")
    assert records(tmp_path / "out") == expected(one.history())
    assert plan_of(report)["copies"][0]["damage"]


def test_a_missing_segment_comes_from_another_copy(tmp_path: Path) -> None:
    one = filled(14)
    disks = write_disks(tmp_path / "disks", {KEY: one})
    for path in sorted((disks[1] / "orders-0").glob("*.log"))[:2]:
        path.unlink()
    max((disks[1] / "orders-0").glob("*.log")).unlink()
    report = rawlog.rescue(list(disks.values()), to=tmp_path / "out")
    assert records(tmp_path / "out") == expected(one.history())
    assert report.is_lossless  # but nothing tells whether the records that the leader lacks were committed
    assert report.with_action(Action.UNDECIDED)


def test_the_result_ends_before_a_tail_that_is_lost(tmp_path: Path) -> None:
    """Groups that had read further are set to the end of the log; the plan once gave an end that included what was lost."""
    one = filled(6)
    disks = write_disks(tmp_path / "disks", {KEY: one})
    for node in one.nodes:
        damage(disks[node] / "orders-0", one.history(), one.history()[-1])
    report = rawlog.rescue(list(disks.values()), to=tmp_path / "out")
    assert plan_of(report)["end"] == one.history()[-1].base == report.parts["orders-0"].facts["end_offset"]
    assert lost_in(report) == [(one.history()[-1].base, one.history()[-1].end)]


def test_two_partitions_and_a_topic_without_any_replica(tmp_path: Path) -> None:
    first, second = filled(3), Partition(2, (3,))
    second.produce()
    disks = write_disks(tmp_path / "disks", {KEY: first, ("single", 0): second})
    shutil.rmtree(disks.pop(3))
    report = rawlog.rescue(list(disks.values()), to=tmp_path / "out")
    assert plan_of(report, "single-0")["action"] == "lost"
    assert records(tmp_path / "out") == expected(first.history())
    assert not report.is_whole


# Directories that are not what their names say --------------------------------------------------------------------------


def test_directories_of_a_topic_that_was_created_again_are_left_out(tmp_path: Path) -> None:
    one = filled(3)
    disks = write_disks(tmp_path / "disks", {KEY: one})
    old = filled(9)
    shutil.rmtree(disks[3] / "orders-0")
    write_log(disks[3] / "orders-0", old.history(), topic_id=b"\x77" * 16)
    write_log(disks[2] / "gone-0", old.history(), topic_id=b"\x78" * 16)
    report = rawlog.rescue(list(disks.values()), to=tmp_path / "out")
    assert records(tmp_path / "out") == expected(one.history())
    assert not (tmp_path / "out" / "gone-0").exists()
    assert plan_of(report, "gone-0")["action"] == "leave"
    assert any("older topic of the same name" in copy["use"] for copy in plan_of(report)["copies"])
    again = rawlog.rescue(list(disks.values()), to=tmp_path / "again", include="delete")
    assert records(tmp_path / "again", "gone") == expected(old.history())
    assert records(tmp_path / "again") == expected(one.history())
    assert plan_of(again, "gone-0")["action"] == "rescue"


def test_a_future_directory_is_used_only_for_what_nothing_else_has(tmp_path: Path) -> None:
    one = Partition(1, (1,))
    for _ in range(8):
        one.produce()
    disks = write_disks(tmp_path / "disks", {KEY: one})
    second = tmp_path / "disks" / "disk1b"
    second.mkdir()
    own = (disks[1] / "meta.properties").read_text()
    (second / "meta.properties").write_text(own.partition("directory.id=")[0])
    folder = second / f"orders-0.{'a' * 32}-future"
    write_log(folder, one.history()[:5], topic_id=b"\x01" * 16)
    damage(disks[1] / "orders-0", one.history(), one.history()[2])
    report = rawlog.rescue([disks[1], second], to=tmp_path / "out")
    assert records(tmp_path / "out") == expected(one.history())
    assert report.is_whole
    assert [piece["copy"] for piece in plan_of(report)["pieces"]] == [0, 1, 0]


def test_stray_directories_are_used_on_request(tmp_path: Path) -> None:
    one = filled(5)
    disks = write_disks(tmp_path / "disks", {KEY: one})
    for node in (1, 2, 3):
        (disks[node] / "orders-0").rename(disks[node] / f"orders-0.{'b' * 32}-stray")
    report = rawlog.rescue(list(disks.values()), plan=True)
    assert plan_of(report)["action"] == "lost"
    report = rawlog.rescue(list(disks.values()), to=tmp_path / "out", include=["stray"])
    assert records(tmp_path / "out") == expected(one.history())
    with pytest.raises(OptionError, match="strays"):
        rawlog.rescue(list(disks.values()), plan=True, include="strays")


def deleted_elsewhere(folder: Path, *, metadata: bool) -> tuple[Partition, dict[int, Path]]:
    """Disks 1 and 2 have marked the directory of a topic as deleted, disk 3 has it under its plain name."""
    one = filled(5)
    disks = write_disks(folder, {KEY: one}, metadata=metadata)
    for node in (1, 2):
        (disks[node] / "orders-0").rename(disks[node] / f"orders-0.{'c' * 32}-delete")
    return one, disks


def doubts(report: Report) -> list[Entry]:
    """What is undecided because it is deleted elsewhere."""
    return [entry for entry in report.with_action(Action.UNDECIDED) if "-delete" in entry.reason]


def test_a_topic_that_is_deleted_on_some_disks_is_undecided_without_metadata(tmp_path: Path) -> None:
    """It was rescued as live without a word. Whether the topic was deleted or its replicas were moved, no file tells."""
    one, disks = deleted_elsewhere(tmp_path / "disks", metadata=False)
    report = rawlog.rescue(list(disks.values()), to=tmp_path / "out")
    assert records(tmp_path / "out") == expected(one.history())
    [entry] = doubts(report)
    assert (entry.first_offset, entry.stop_offset) == (0, one.history()[-1].end)
    assert "was deleted while a disk was away, or its replicas were moved" in entry.reason
    assert "disk1/orders-0" in entry.reason
    assert "--exclude-deleted" in entry.reason
    assert not report.is_whole
    left = rawlog.rescue(list(disks.values()), to=tmp_path / "left", exclude_deleted=True)
    assert not (tmp_path / "left" / "orders-0").exists()
    assert plan_of(left)["action"] == "leave"
    assert not doubts(left)


def test_a_metadata_log_decides_whether_a_topic_was_deleted(tmp_path: Path) -> None:
    """Where the metadata knows the topic, replicas were moved; where it does not, the topic is left out."""
    one, disks = deleted_elsewhere(tmp_path / "known", metadata=True)
    report = rawlog.rescue(list(disks.values()), to=tmp_path / "moved")
    assert records(tmp_path / "moved") == expected(one.history())
    assert not doubts(report)
    gone = write_disks(tmp_path / "removed", {("other", 0): filled(1)})
    write_log(gone[3] / "orders-0", one.history(), topic_id=b"\x78" * 16)
    write_log(gone[1] / f"orders-0.{'c' * 32}-delete", one.history(), topic_id=b"\x78" * 16)
    report = rawlog.rescue(list(gone.values()), to=tmp_path / "out")
    assert plan_of(report)["action"] == "leave"
    assert not doubts(report)


def test_a_leader_whose_directory_is_missing_is_not_a_missing_disk(tmp_path: Path) -> None:
    """The plan said that the disk of the leader was not here, and people looked for a disk that was in their hands."""
    disks = write_disks(tmp_path / "disks", {KEY: filled(5)})
    shutil.rmtree(disks[1] / "orders-0")
    report = rawlog.rescue(list(disks.values()), plan=True)
    assert "the leader: the directory is missing on the disk of broker 1" in plan_of(report)["reason"]
    shutil.rmtree(disks.pop(1))
    report = rawlog.rescue(list(disks.values()), plan=True)
    assert "the leader: no disk of broker 1 is here" in plan_of(report)["reason"]


def test_the_systems_that_can_be_rescued_are_named(tmp_path: Path) -> None:
    """The list had Kafka's metadata, and not Kafka."""
    shutil.copy(next(golden_path("replay", "v2").glob("*.log")), tmp_path)
    with pytest.raises(UnknownFormatError, match=r"these systems can be: .*Apache Kafka"):
        rawlog.rescue([tmp_path], plan=True)


@pytest.mark.parametrize("cleaned", [True, False])
def test_what_compaction_took_before_the_first_batch_of_an_old_log_is_not_lost(cleaned: bool, tmp_path: Path) -> None:
    """The first segment of a log of magic 1 was compacted down to its last batch, and rescue reported the offsets before it as lost.
    Nothing in such batches shows compaction.
    """
    name = "mixed-compacted-0"
    source = golden_path("kafka", "legacy", "broker-0.10.2.2", "data")
    disk = tmp_path / "disk"
    (disk / name).mkdir(parents=True)
    shutil.copy(source / name / f"{0:020}.log", disk / name)
    if cleaned:
        shutil.copy(source / "cleaner-offset-checkpoint", disk)
    report = rawlog.rescue(disk, to=tmp_path / "out")
    assert lost_in(report, name) == []
    assert report.is_lossless
    assert any("0 to 95" in text for text in plan_of(report, name)["unknown"]) == (not cleaned)


def test_the_settings_for_the_broker_are_written_next_to_the_result(tmp_path: Path) -> None:
    """The settings that were printed lacked listeners: a broker ended at once with exactly these."""
    disks = list(write_disks(tmp_path / "disks", {KEY: filled(2)}).values())
    report = rawlog.rescue(disks, to=tmp_path / "new ü\nx=1")
    text = (tmp_path / "new ü\nx=1.server.properties").read_text("ascii")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert lines[6] == f"log.dirs={tmp_path}/new \\u00fc\\u000ax=1"
    assert [line.partition("=")[0] for line in lines] == [
        line.partition("=")[0] for line in report.facts["server_properties"]["1"]
    ]
    assert {"listeners", "controller.listener.names", "listener.security.protocol.map"} <= {
        line.partition("=")[0] for line in lines
    }
    rawlog.rescue(disks, to=tmp_path / "two", brokers=2)
    assert sorted(path.name for path in tmp_path.glob("two.*")) == [
        "two.broker-1.server.properties",
        "two.broker-2.server.properties",
    ]
    assert not list(tmp_path.glob("*plan*"))
    (tmp_path / "taken.server.properties").write_text("mine")
    with pytest.raises(AccessError, match=r"taken\.server\.properties: exists already"):
        rawlog.rescue(disks, to=tmp_path / "taken")
    assert (tmp_path / "taken.server.properties").read_text() == "mine"
    rawlog.rescue(disks, to=tmp_path / "taken", force=True)
    assert "node.id=1" in (tmp_path / "taken.server.properties").read_text()


def test_replicas_of_a_compacted_log_are_not_mixed_but_where_one_is_damaged(tmp_path: Path) -> None:
    """Each broker compacts by itself: what one of them still has and the one that decides does not was removed, not lost."""
    one = filled(12)
    disks = write_disks(tmp_path / "disks", {KEY: one}, configs={"cleanup.policy": "compact"})
    kept = [batch for number, batch in enumerate(one.history()) if number not in (1, 2, 6)]
    shutil.rmtree(disks[1] / "orders-0")
    write_log(disks[1] / "orders-0", kept, topic_id=b"\x01" * 16)
    write_epochs(disks[1] / "orders-0", [(0, 0)])
    harmed = kept[5]
    damage(disks[1] / "orders-0", kept, harmed)
    report = rawlog.rescue(list(disks.values()), to=tmp_path / "out")
    found = records(tmp_path / "out")
    assert set(expected(kept)) <= set(found)
    assert not set(found) & set(expected([one.history()[1], one.history()[2]]))
    assert report.is_whole
    (plan,) = (unit for unit in report.facts["plan"] if unit["name"] == "orders-0")
    assert any("may have an older value again" in text for text in plan["unknown"])


def test_records_deleted_by_request_do_not_come_back(tmp_path: Path) -> None:
    one = filled(10)
    disks = write_disks(tmp_path / "disks", {KEY: one})
    floor = one.history()[6].base
    model.write_checkpoint(disks[1], "log-start-offset-checkpoint", {KEY: floor})
    rawlog.rescue(list(disks.values()), to=tmp_path / "out")
    assert min(records(tmp_path / "out")) == floor


# Without metadata -------------------------------------------------------------------------------------------------------


def test_without_a_metadata_log_the_highest_epoch_decides(tmp_path: Path) -> None:
    one = filled(4)
    for _ in range(5):
        one.produce(acks_all=False)
    one.kill(1)
    one.produce()
    disks = write_disks(tmp_path / "disks", {KEY: one}, metadata=False)
    report = rawlog.rescue(list(disks.values()), to=tmp_path / "out")
    assert records(tmp_path / "out") == expected(one.history())
    assert "highest leader epoch" in plan_of(report)["reason"]
    assert any("no metadata" in note for note in report.notes)


# Disks that are refused ---------------------------------------------------------------------------------------------------


def test_disks_of_two_clusters_are_refused(tmp_path: Path) -> None:
    one = write_disks(tmp_path / "a", {KEY: filled(2)})
    other = write_disks(tmp_path / "b", {KEY: filled(2)}, cluster="oThErClUsTeRAAAAAAAAAA")
    with pytest.raises(OptionError, match="clusters"):
        rawlog.rescue([one[1], other[2]], plan=True)


def test_a_disk_named_twice_is_used_once(tmp_path: Path) -> None:
    disks = write_disks(tmp_path / "disks", {KEY: filled(3)})
    link = tmp_path / "link"
    link.symlink_to(disks[1])
    report = rawlog.rescue([disks[1], link, disks[2]], plan=True)
    assert len(plan_of(report)["copies"]) == 2
    assert any("same directory" in note for note in report.notes)


def test_an_empty_disk_is_reported(tmp_path: Path) -> None:
    disks = write_disks(tmp_path / "disks", {KEY: filled(3)})
    (tmp_path / "empty").mkdir()
    report = rawlog.rescue([disks[1], tmp_path / "empty"], plan=True)
    assert any("empty" in note for note in report.notes)
    with pytest.raises(rawlog.errors.RawlogError):
        rawlog.rescue([tmp_path / "empty"], plan=True)


def test_partitions_that_only_a_controller_names_are_lost(tmp_path: Path) -> None:
    """A rescue of a controller's directory alone listed all partitions of the cluster as lost, and ended with 0."""
    source = golden_path("kafka", "broker-4.3.0", "data")
    shutil.copytree(source / "__cluster_metadata-0", tmp_path / "controller" / "__cluster_metadata-0")
    shutil.copy(source / "meta.properties", tmp_path / "controller")
    for report in (
        rawlog.rescue(tmp_path / "controller", plan=True),
        rawlog.rescue(tmp_path / "controller", to=tmp_path / "out"),
    ):
        assert "segments-by-size-0" in {entry.path for entry in report.with_action(Action.LOST)}
        assert report.exit_code == 1


def test_a_directory_that_is_being_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rawlog.formats.kafka.cluster import rescue

    disks = write_disks(tmp_path / "disks", {KEY: filled(3)})
    survey = rescue.outline_replica

    def growing(replica: Any, *more: Any) -> Any:
        found = survey(replica, *more)
        with open(next(file.path for file in replica.files if file.path.endswith(".log")), "ab") as log:
            log.write(b"\0")
        return found

    monkeypatch.setattr(rescue, "outline_replica", growing)
    with pytest.raises(AccessError, match="being written"):
        rawlog.rescue(list(disks.values()), to=tmp_path / "out", threads=1)
    assert not (tmp_path / "out").exists()


def test_a_target_inside_a_disk_is_refused(tmp_path: Path) -> None:
    disks = write_disks(tmp_path / "disks", {KEY: filled(3)})
    with pytest.raises(OptionError, match="inside"):
        rawlog.rescue(list(disks.values()), to=disks[1] / "out")


# Runs that end early ------------------------------------------------------------------------------------------------------


def test_a_run_that_failed_is_resumed_with_what_it_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rawlog.formats.kafka.cluster import rescue

    parts = {("orders", number): Partition(number, (1, 2)) for number in range(4)}
    for one in parts.values():
        for _ in range(4):
            one.produce()
    disks = write_disks(tmp_path / "disks", parts)
    carry, carried = rescue.Rescuer.carry, []

    def failing(self: Any, split: Any, *more: Any) -> Any:
        if len(carried) == 2 and not done:
            raise AccessError("the machine went away")
        carried.append(split.name)
        return carry(self, split, *more)

    done: list[bool] = []
    monkeypatch.setattr(rescue.Rescuer, "carry", failing)
    with pytest.raises(AccessError, match="went away"):
        rawlog.rescue(list(disks.values()), to=tmp_path / "out", threads=1)
    assert not (tmp_path / "out").exists()
    done.append(True)
    report = rawlog.rescue(list(disks.values()), to=tmp_path / "out", threads=1, resume=True)
    assert len(carried) == 4
    assert report.counts["units_resumed"] == 2
    assert len(records(tmp_path / "out")) == max(len(expected(one.history())) for one in parts.values())
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    whole = rawlog.rescue(list(disks.values()), to=tmp_path / "fresh", threads=1)
    assert whole.counts["records"] == report.counts["records"]


def test_a_run_without_resume_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rawlog.formats.kafka.cluster import rescue

    disks = write_disks(tmp_path / "disks", {KEY: filled(3)})
    monkeypatch.setattr(rescue.Rescuer, "finish", lambda *_: (_ for _ in ()).throw(AccessError("no room")))
    with pytest.raises(AccessError, match="no room"):
        rawlog.rescue(list(disks.values()), to=tmp_path / "out", threads=1)
    monkeypatch.undo()
    report = rawlog.rescue(list(disks.values()), to=tmp_path / "out", threads=1)
    assert "units_resumed" not in report.counts
    assert report.is_whole


KILLED = """
import os, signal, sys
import rawlog
from rawlog.formats.kafka.cluster import rescue

carry, carried = rescue.Rescuer.carry, []

def killed(self, split, *more):
    if len(carried) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    carried.append(split.name)
    return carry(self, split, *more)

rescue.Rescuer.carry = killed
rawlog.rescue(sys.argv[2:], to=sys.argv[1], threads=1)
"""


def test_a_killed_run_leaves_nothing_under_the_name_of_the_target_and_can_be_repeated(tmp_path: Path) -> None:
    parts = {("orders", number): Partition(number, (1, 2)) for number in range(4)}
    for one in parts.values():
        for _ in range(4):
            one.produce()
    disks = sorted(write_disks(tmp_path / "disks", parts).values())
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", KILLED, str(tmp_path / "out"), *map(str, disks)]
    assert subprocess.run(command, env=environment, check=False).returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "out.divergent").exists()
    report = rawlog.rescue(disks, to=tmp_path / "out", resume=True)
    assert report.counts["units_resumed"] == 2
    assert report.is_whole
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    assert (
        subprocess.run([*command[:3], str(tmp_path / "again"), *command[4:]], env=environment, check=False).returncode
        < 0
    )
    again = rawlog.rescue(disks, to=tmp_path / "again")
    assert "units_resumed" not in again.counts
    assert {path.name: path.read_bytes() for path in (tmp_path / "again").rglob("*.log")} == {
        path.name: path.read_bytes() for path in (tmp_path / "out").rglob("*.log")
    }
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_source_that_changed_between_two_runs_is_not_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rawlog.formats.kafka.cluster import rescue

    one = filled(6)
    disks = write_disks(tmp_path / "disks", {KEY: one})
    monkeypatch.setattr(rescue.Rescuer, "finish", lambda *_: (_ for _ in ()).throw(AccessError("no room")))
    with pytest.raises(AccessError, match="no room"):
        rawlog.rescue(list(disks.values()), to=tmp_path / "out")
    monkeypatch.undo()
    damage(disks[1] / "orders-0", one.history(), one.history()[2])
    report = rawlog.rescue(list(disks.values()), to=tmp_path / "out", resume=True)
    assert "units_resumed" not in report.counts
    assert records(tmp_path / "out") == expected(one.history())


def test_spark_rescues_the_same(spark: Any, tmp_path: Path) -> None:
    from rawlog.engines.spark import engine as on_spark
    from rawlog.model.recovery import RescueOptions
    from rawlog.reading.tree import open_tree
    from rawlog.verbs.rescue import Rescue

    one = filled(8)
    for _ in range(2):
        one.produce(acks_all=False)
    one.kill(1)
    one.produce()
    disks = write_disks(tmp_path / "disks", {KEY: one, ("other", 0): filled(3)})
    damage(disks[2] / "orders-0", one.logs[2].batches, one.logs[2].batches[3])
    damage(disks[3] / "orders-0", one.logs[3].batches, one.logs[3].batches[4])
    here = rawlog.rescue(list(disks.values()), to=tmp_path / "here")
    with Rescue(str(tmp_path / "there"), RescueOptions()) as job:
        there = on_spark.run(job, open_tree(sorted(disks.values())), spark)
    assert here.facts["plan"] == there.facts["plan"]
    assert digests(tmp_path / "here" / "orders-0") == digests(tmp_path / "there" / "orders-0")
    assert digests(tmp_path / "here.divergent") == digests(tmp_path / "there.divergent")
