"""Replicas compared by their leader epochs, and what is decided on a partition from outlines of them alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rawlog.formats.kafka import LOG
from rawlog.formats.kafka.cluster.rescue import ReplicaFiles, outline_replica
from rawlog.formats.kafka.partition.lineage import Copy, Lineage, LogOutline, common_end, unite
from rawlog.formats.kafka.partition.replicas import Assignment, decide
from rawlog.model.format import File, Place
from rawlog.model.outline import Run
from tests.data.dead_cluster import Batch, Log, Partition, damage, write_log


def run(path: str, base: int, start: int, stop: int, first: int, end: int, epoch: int, *more: int) -> Run:
    """Batches of a segment that is named by an offset."""
    file = File(path, stop, None, LOG.name, Place(start_offset=base))
    return Run(file, start, stop, first, end, epoch, *(more or (1, 1, 1)))


def copy(number: int, runs: tuple[Run, ...], start: int = 0, **more: Any) -> Copy:
    """A copy that has these runs and nothing else."""
    return Copy(number, "d", "", LogOutline(runs, start=start), **more)


def copy_of(number: int, log: Log, node: int) -> Copy:
    """A copy as it is outlined in a log without damage."""
    runs: list[Run] = []
    for batch in log.batches:
        if runs and runs[-1].lineage == batch.epoch:
            last = runs[-1]
            runs[-1] = run("s", 0, 0, last.stop + 1, last.first, batch.end, batch.epoch, last.count + 1, 1, 1)
        else:
            start = runs[-1].stop if runs else 0
            runs.append(run("s", 0, start, start + 1, batch.base, batch.end, batch.epoch))
    epochs = tuple(log.epochs)
    return copy(number, tuple(runs), node=node, checkpoint=epochs, high_watermark=log.high_watermark)


def assignment(one: Partition) -> Assignment:
    return Assignment(one.leader, one.epoch, tuple(sorted(one.isr)), one.nodes)


def same_batches(a: list[Batch], b: list[Batch]) -> int:
    """The offset up to which two logs have the same batches."""
    end = 0
    for mine, theirs in zip(a, b, strict=False):
        if mine != theirs:
            break
        end = mine.end
    return end


# Lineage ----------------------------------------------------------------------------------------------------------------


def test_epochs_tell_where_logs_part_in_any_life() -> None:
    for seed in range(300):
        one = Partition(seed, unclean=seed % 2 == 0)
        one.live(80)
        decides = one.logs[one.decides]
        leader = copy_of(0, decides, one.decides)
        for node in one.nodes:
            other = copy_of(1, one.logs[node], node)
            found = common_end(leader.epochs, leader.end, other.epochs, other.end)
            assert found == same_batches(decides.batches, one.logs[node].batches), (seed, node)


def test_the_decision_is_the_history_at_death_in_any_life() -> None:
    for seed in range(300):
        one = Partition(seed, unclean=seed % 2 == 0)
        one.live(80)
        copies = [copy_of(number, one.logs[node], node) for number, node in enumerate(one.nodes)]
        plan = decide("p-0", copies, assignment(one)).plan
        history = one.logs[one.decides]
        assert not plan.lost, seed
        taken = [
            (batch.number, batch.base)
            for piece in plan.pieces
            for batch in one.logs[one.nodes[piece.copy]].batches
            if piece.start <= batch.base < piece.stop
        ]
        assert taken[: len(history.batches)] == [(batch.number, batch.base) for batch in history.batches], seed
        # Whatever is more than the history was not committed, and is reported so.
        assert all(span.start >= 0 for span in plan.undecided)
        if plan.end > history.end:
            assert plan.undecided[0].start <= history.end
        # Batches that are not in the result are divergent ones: on some disk they are at an offset that the result has otherwise.
        aside = {(number, span.start, span.stop) for number, span in plan.divergent}
        for number, node in enumerate(one.nodes):
            parted = same_batches(history.batches, one.logs[node].batches)
            if parted < one.logs[node].end and parted < history.end:
                assert (number, parted, one.logs[node].end) in aside, seed


def test_a_follower_without_a_common_epoch_has_nothing_in_common() -> None:
    assert common_end(((5, 0), (8, 600)), 700, ((7, 500),), 650) == 500
    assert common_end(((9, 1000),), 1200, ((3, 0), (7, 400)), 800) == 800
    assert common_end((), 10, ((3, 0),), 7) == 7


def test_an_end_of_an_older_epoch_does_not_extend_a_newer_leader() -> None:
    lineage = Lineage(((0, 0), (6, 100)), 100)
    older = copy(1, (run("s", 0, 0, 1, 0, 120, 0, 1, 1, 1),), checkpoint=((0, 0),))
    assert not lineage.extend(older)
    newer = copy(1, (run("s", 0, 0, 1, 0, 100, 0, 1, 1, 1), run("s", 0, 1, 2, 100, 130, 6, 1, 1, 1)))
    assert lineage.extend(newer)
    assert lineage.end == 130


def test_without_metadata_everything_above_the_high_watermark_is_undecided() -> None:
    only = run("s", 0, 0, 1, 0, 50, 0, 5, 1, 1)
    plan = decide("p-0", [copy(0, (only,), high_watermark=30)], None).plan
    assert [(span.start, span.stop) for span in plan.undecided] == [(30, 50)]
    assert not plan.lost


def test_a_high_watermark_after_the_end_of_all_logs_is_a_loss() -> None:
    only = run("s", 0, 0, 1, 0, 50, 0, 5, 1000, 2000)
    plan = decide("p-0", [copy(0, (only,), high_watermark=70)], None).plan
    assert [(span.start, span.stop, span.since) for span in plan.lost] == [(50, 70, 2000)]


def test_of_compacted_replicas_that_are_alike_the_one_with_the_most_batches_is_taken() -> None:
    """A batch that is lost in the cleaned part of a log looks as if compaction had removed it: the first replica was taken."""
    fewer, more = (copy(number, (run("s", 0, 0, 9, 0, 50, 0, count, 1, 1),)) for number, count in enumerate((4, 5)))
    assert [piece.copy for piece in decide("p-0", [fewer, more], None, is_compacted=True).plan.pieces] == [1]
    leader = Assignment(1, 0, (1, 2), (1, 2))
    led = [replace(fewer, node=1), replace(more, node=2)]
    assert [piece.copy for piece in decide("p-0", led, leader, is_compacted=True).plan.pieces] == [0]


def test_metadata_that_is_older_than_the_logs_does_not_decide() -> None:
    old = copy(0, (run("s", 0, 0, 1, 0, 50, 2, 5, 1, 1),), node=1)
    new = copy(1, (run("s", 0, 0, 1, 0, 40, 2, 4, 1, 1), run("s", 0, 1, 2, 40, 60, 4, 2, 1, 1)), node=2)
    plan = decide("p-0", [old, new], Assignment(1, 3, (1,), (1, 2))).plan
    assert plan.pieces[0].copy == 1
    assert [number for number, _ in plan.divergent] == [0]
    assert any("older" in text for text in plan.unknown)


def test_a_wrong_epoch_that_no_checksum_covers_does_not_decide() -> None:
    flipped = (
        run("s", 0, 0, 5, 0, 50, 2, 5, 1, 1),
        replace(run("s", 0, 5, 6, 50, 60, 2, 1, 1, 1), stored_lineage=2 + 65536),
        run("s", 0, 6, 9, 60, 90, 2, 3, 1, 1),
    )
    whole = (run("t", 0, 0, 9, 0, 90, 2, 9, 1, 1),)
    copies = [copy(0, flipped, node=1, checkpoint=((2, 0),)), copy(1, whole, node=2)]
    plan = decide("p-0", copies, Assignment(1, 2, (1, 2), (1, 2))).plan
    assert [(piece.copy, piece.start, piece.stop) for piece in plan.pieces] == [(0, 0, 50), (1, 50, 60), (0, 60, 90)]
    assert not plan.divergent


def test_offsets_below_the_first_segment_are_not_called_lost() -> None:
    """One replica was trimmed by retention; a stale one has an older part, which does not reach up to it."""
    stale = copy(0, (run("s", 0, 0, 1, 0, 100, 0, 5, 1, 1),), node=1)
    runs = (run("t", 500, 0, 1, 500, 600, 1, 5, 1, 1),)
    leader = copy(1, runs, node=2, start=500, checkpoint=((0, 500), (1, 500)))
    plan = decide("p-0", [stale, leader], Assignment(2, 1, (2,), (1, 2))).plan
    assert not plan.lost
    assert any("retention" in text for text in plan.unknown)
    assert [(piece.start, piece.stop) for piece in plan.pieces] == [(0, 100), (500, 600)]


def test_many_damaged_places_are_united_quickly() -> None:
    count = 20_000
    holes = tuple((2 * n + 1, 2 * n + 2) for n in range(count))
    runs = tuple(run("s", 0, 2 * n, 2 * n + 1, 2 * n, 2 * n + 1, 0) for n in range(count))
    other = (run("t", 0, 0, 1, 0, 2 * count, 0),)
    damaged = Copy(0, "d", "", LogOutline(runs, missing=holes))
    union = unite([(damaged, 2 * count), (copy(1, other), 2 * count)], 0, 2 * count, is_compacted=False)
    assert not union.missing
    assert len(union.pieces) == 2 * count


# The outline of a replica -------------------------------------------------------------------------------------------------


def outlined(folder: Path) -> LogOutline:
    assert LOG.match is not None
    files = []
    for path in sorted(folder.glob("*.log")):
        place = LOG.match(str(path))
        assert place is not None
        files.append(File(str(path), path.stat().st_size, None, LOG.name, place))
    return outline_replica(ReplicaFiles(str(folder), tuple(files), is_loaded=False), lambda size: None)


def offsets(log: LogOutline) -> set[int]:
    return {offset for part in log.runs for offset in range(part.first, part.end)}


def some_log(tmp_path: Path, count: int = 12, segment: int = 6) -> tuple[Path, list[Batch]]:
    one = Partition(3)
    for number in range(count):
        if number == count // 2:
            one.kill(1)
        one.produce()
    batches = one.logs[2].batches
    write_log(tmp_path / "p-0", batches, segment=segment)
    return tmp_path / "p-0", batches


def test_a_sound_log_is_one_run_for_each_epoch_and_segment(tmp_path: Path) -> None:
    folder, batches = some_log(tmp_path, segment=8)
    log = outlined(folder)
    assert not log.missing
    assert not log.damage
    assert not log.is_compacted
    assert [(part.lineage, part.first) for part in log.runs] == [(0, 0), (1, batches[6].base), (1, batches[8].base)]
    assert log.end == batches[-1].end
    assert sum(part.count for part in log.runs) == 12


@pytest.mark.parametrize("at", [40, 9, 16])
@pytest.mark.parametrize("number", [0, 3, 5, 6, 11])
def test_a_flipped_byte_costs_one_batch_wherever_it_is(number: int, at: int, tmp_path: Path) -> None:
    """Also in the length and the magic, which no checksum covers."""
    folder, batches = some_log(tmp_path)
    chosen = batches[number]
    damage(folder, batches, chosen, at)
    log = outlined(folder)
    assert offsets(log) == {offset for batch in batches if batch is not chosen for offset, _ in batch.records()}
    assert not log.is_compacted
    if number < 11:
        assert log.missing == ((chosen.base, chosen.end),)
        [place] = log.damage
        assert (place.first, place.end) == (chosen.base, chosen.end)


@pytest.mark.parametrize("at", [7, 6, 2, 0])
@pytest.mark.parametrize("number", [0, 3, 5, 6])
def test_a_batch_with_a_wrong_offset_is_found_in_its_place(number: int, at: int, tmp_path: Path) -> None:
    folder, batches = some_log(tmp_path)
    chosen = batches[number]
    damage(folder, batches, chosen, at)
    log = outlined(folder)
    assert not log.missing
    assert [(part.first, part.end) for part in log.runs if part.stored is not None] == [(chosen.base, chosen.end)]
    assert offsets(log) == set(range(batches[-1].end))


def test_a_replica_that_ends_in_the_gap_before_the_last_batch_shows_that_its_offset_is_wrong(tmp_path: Path) -> None:
    """The last batch of the leader's log once took a log to offset 84 that ended at 20: nothing after it contradicted it, and the gap
    before it looked as if the log was compacted.
    """
    folder, batches = some_log(tmp_path)
    last = max(folder.glob("*.log"))
    last.write_bytes(b"".join(batch.data() for batch in (*batches[6:9], batches[-1])))
    log = outlined(folder)
    assert log.settle([]).end == log.settle([batches[8].end]).end == batches[-1].end
    part = log.settle([batches[9].end]).runs[-1]
    assert (part.first, part.stored, part.count) == (batches[9].base, batches[-1].base, 1)


@pytest.mark.parametrize("number", [0, 3, 6, 9])
def test_a_length_that_is_a_little_too_long_hides_no_batch(number: int, tmp_path: Path) -> None:
    """The search for the next batch began after the length, inside of the sound batch that follows, which was lost."""
    folder, batches = some_log(tmp_path)
    path = next(log for log in sorted(folder.glob("*.log"), reverse=True) if int(log.name[:20]) <= batches[number].base)
    position = sum(len(one.data()) for one in batches if int(path.name[:20]) <= one.base < batches[number].base)
    data = bytearray(path.read_bytes())
    data[position + 11] += 2
    path.write_bytes(bytes(data))
    log = outlined(folder)
    lost = (batches[number].base, batches[number].end)
    assert log.missing == (lost,)
    assert offsets(log) == set(range(batches[-1].end)) - set(range(*lost))


def test_a_batch_cut_at_the_end_of_the_log_is_no_damage(tmp_path: Path) -> None:
    folder, batches = some_log(tmp_path)
    last = max(folder.glob("*.log"))
    last.write_bytes(last.read_bytes()[:-7])
    log = outlined(folder)
    assert not log.damage
    assert log.end == batches[-2].end


def test_a_cut_segment_in_the_middle_is_damage_up_to_the_next_one(tmp_path: Path) -> None:
    folder, batches = some_log(tmp_path)
    first = min(folder.glob("*.log"))
    first.write_bytes(first.read_bytes()[:-7])
    [place] = outlined(folder).damage
    assert (place.first, place.end) == (batches[5].base, batches[6].base)


def test_a_replica_of_one_batch_that_contradicts_its_checkpoint_does_not_decide(tmp_path: Path) -> None:
    """A flipped bit of its leader epoch once made a replica with one batch win over two whole ones: its checkpoint has no such epoch."""
    folder, batches = some_log(tmp_path)
    for path in sorted(folder.glob("*.log"))[1:]:
        path.unlink()
    segment = min(folder.glob("*.log"))
    data = bytearray(batches[0].data())
    data[15] = 4
    segment.write_bytes(data)
    checkpoint = folder / "leader-epoch-checkpoint"
    checkpoint.write_text("0\n1\n0 0\n")
    assert LOG.match is not None
    files = [
        File(str(segment), len(data), None, LOG.name, LOG.match(str(segment)) or Place()),
        File(str(checkpoint), checkpoint.stat().st_size, None, "kafka.epochs", Place()),
    ]
    [part] = outline_replica(ReplicaFiles(str(folder), tuple(files), is_loaded=False), lambda size: None).runs
    assert (part.lineage, part.stored_lineage) == (0, 4)
