"""What other files know of a log's beginning and end is the same evidence for every verb."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

import rawlog
from rawlog.cli import cli
from rawlog.model.errors import DataError
from rawlog.model.report import Action
from tests.data.golden import golden_path
from tests.data.kafka_rewriting import rewritten
from tests.reference import kafka
from tests.wounds.kafka import whole

TOPIC, NAME = "segments-by-time", "segments-by-time-0"
MARK = ".kafka_cleanshutdown"
TIME = 1_700_000_000_000
CHECKPOINTS = (
    "replication-offset-checkpoint",
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "meta.properties",
)


def copied(target: Path, version: str = "broker-4.3.0", name: str = NAME) -> Path:
    """A log directory with one partition and what it says of itself; stopped cleanly."""
    source = golden_path("kafka", version, "data")
    shutil.copytree(source / name, target / name)
    for file in CHECKPOINTS:
        if (source / file).exists():
            shutil.copy(source / file, target / file)
    (target / MARK).touch()
    return target


def segments(disk: Path, name: str = NAME) -> list[Path]:
    return sorted((disk / name).glob("*.log"))


def cut(disk: Path, size: Callable[[int], int]) -> None:
    last = segments(disk)[-1]
    data = last.read_bytes()
    last.write_bytes(data[: size(len(data))])


def answers(disk: Path, target: Path, name: str = NAME) -> dict[str, list[tuple[int, int | None]] | str]:
    """What each verb that writes says is lost; "whole" if nothing is."""
    made: dict[str, list[tuple[int, int | None]] | str] = {}
    for verb, report in {
        "repair": rawlog.repair(disk, target / "repair"),
        "restore": rawlog.restore(disk, target / "restore"),
        "rescue": rawlog.rescue(disk, to=target / "rescue"),
    }.items():
        part = report.parts[name]
        losses = [entry for entry in part.all_entries() if entry.is_loss and entry.action is not Action.LOST]
        assert not losses or part.lost, (verb, losses)
        made[verb] = part.lost or "whole"
    return made


def alike(answer: list[tuple[int, int | None]] | str) -> dict[str, list[tuple[int, int | None]] | str]:
    """The same answer of every verb that writes."""
    return {verb: answer for verb in ("repair", "restore", "rescue")}  # noqa: C420


def verdict(disk: Path) -> set[int | None]:
    """The offsets at which verify finds something worse than a remark."""
    return {one.offset for one in rawlog.verify(disk) if str(one.severity) != "info"}


def refuses(disk: Path, target: Path) -> bool:
    """Whether rebuild refuses the directory, and leaves nothing."""
    try:
        report = rawlog.rebuild(disk, target)
    except DataError:
        assert not target.exists()
        return True
    assert report.is_whole
    return False


# The end ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", CHECKPOINTS[:2])
def test_a_log_cut_below_what_checkpoints_count_is_a_loss_for_every_verb(keep: str, tmp_path: Path) -> None:
    """restore ended with 0 and `is_whole`, 29 offsets below the high watermark; verify and rescue said 1."""
    disk = copied(tmp_path / "disk")
    for name in {*CHECKPOINTS[:2]} - {keep}:
        (disk / name).unlink()
    for file in (disk / NAME).glob("*.snapshot"):
        file.unlink()
    cut(disk, lambda size: size * 2 // 3)
    assert answers(disk, tmp_path) == alike([(192, 215)])
    assert 192 in verdict(disk)
    assert refuses(disk, tmp_path / "rebuild")


def test_a_restore_up_to_a_time_reports_a_lost_end_unless_the_time_is_before_it(tmp_path: Path) -> None:
    disk = copied(tmp_path / "disk")
    times = rawlog.read(disk)["timestamp"].to_pylist()
    cut(disk, lambda size: size * 2 // 3)
    late = rawlog.restore(disk, tmp_path / "late", until="2100-01-01T00:00:00Z")
    assert late.lost == [(192, 215)]
    assert rawlog.restore(disk, tmp_path / "early", until=times[40]).lost == []


@pytest.mark.parametrize("snapshots", [True, False])
def test_an_unfinished_batch_that_is_confirmed_is_a_loss(snapshots: bool, tmp_path: Path) -> None:
    """restore took every unfinished last batch for what a crash leaves, in 13 of 13 cases; an unfinished batch also hid the snapshot of
    the producers after it from verify and repair.
    """
    disk = copied(tmp_path / "disk")
    for name in CHECKPOINTS[:2] if snapshots else ():
        (disk / name).unlink()
    for file in (disk / NAME).glob("*.snapshot") if not snapshots else ():
        file.unlink()
    cut(disk, lambda size: size - 20)
    assert answers(disk, tmp_path) == alike([(204, 215)])
    assert 204 in verdict(disk)
    assert refuses(disk, tmp_path / "rebuild")


GARBAGE = {
    "random": random.Random(1).randbytes(500),
    "ones": b"\xff" * 500,
    "text": b"not a batch at all, " * 25,
    "zeros": bytes(500),
    "zeros, then bytes": bytes(40) + b"\xfe" * 60,
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_bytes_after_the_end_that_nothing_confirms_are_cut_with_a_note(kind: str, tmp_path: Path) -> None:
    """500 random bytes after the end of a log were "lost offsets from 51 on", and read by nobody."""
    disk = copied(tmp_path / "disk")
    (disk / MARK).unlink()  # with it a broker does not start on some of these
    with segments(disk)[-1].open("ab") as file:
        file.write(GARBAGE[kind])
    assert answers(disk, tmp_path) == alike("whole")
    assert verdict(disk) == set()
    assert not refuses(disk, tmp_path / "rebuild")
    assert rawlog.read(disk).num_rows == rawlog.read(golden_path("kafka", "broker-4.3.0", "data", NAME)).num_rows


def test_bytes_after_the_end_that_the_high_watermark_counts_are_a_loss(tmp_path: Path) -> None:
    disk = copied(tmp_path / "disk")
    checkpoint = disk / CHECKPOINTS[0]
    checkpoint.write_text(f"0\n1\n{TOPIC} 0 220\n")
    with segments(disk)[-1].open("ab") as file:
        file.write(GARBAGE["random"])
    assert answers(disk, tmp_path) == alike([(216, 219)])
    assert 216 in verdict(disk)
    assert refuses(disk, tmp_path / "rebuild")


def test_an_unfinished_batch_in_a_segment_that_another_follows_is_damage(tmp_path: Path) -> None:
    disk = copied(tmp_path / "disk")
    middle = segments(disk)[1]
    middle.write_bytes(middle.read_bytes()[:-20] + b"\xff" * 10)
    assert refuses(disk, tmp_path / "rebuild")
    assert rawlog.repair(disk, tmp_path / "repair").lost
    assert verdict(disk)


# The beginning ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stopped", [True, False])
@pytest.mark.parametrize("with_indexes", [True, False])
def test_a_first_segment_that_is_gone_is_a_loss_for_every_verb(
    stopped: bool, with_indexes: bool, tmp_path: Path
) -> None:
    """Only `verify --complete` found it: retention would have deleted the index too, and have cut the leader epochs."""
    disk = copied(tmp_path / "disk")
    first = segments(disk)[0]
    for file in (disk / NAME).glob(f"{first.stem}.*") if with_indexes else (first,):
        file.unlink()
    if not stopped:
        (disk / MARK).unlink()
    assert answers(disk, tmp_path) == alike([(0, 35)])
    assert verdict(disk) == {0}
    assert refuses(disk, tmp_path / "rebuild")
    [account] = rawlog.verify(disk, complete=True).accounts
    assert (account.start, account.unexplained) == (0, 36)
    findings = [str(one.message) for one in rawlog.verify(disk)]
    is_undecided = any("deleted by retention shortly before a crash" in one for one in findings)
    assert is_undecided == (with_indexes and not stopped)
    assert rawlog.repair(tmp_path / "repair", tmp_path / "again").is_whole


def test_an_index_without_its_segment_tells_of_the_first_one_of_an_old_log(tmp_path: Path) -> None:
    """Logs of old message formats have no leader epochs: even `verify --complete` said nothing."""
    name = "v1-create-0"
    disk = copied(tmp_path / "disk", "legacy/broker-2.8.2", name)
    first, second = segments(disk, name)[:2]
    first.unlink()
    lost = [(0, int(second.stem) - 1)]
    assert answers(disk, tmp_path, name) == alike(lost)
    assert rawlog.verify(disk, complete=True).accounts[0].unexplained == int(second.stem)


def test_a_log_start_before_the_first_segment_contradicts_retention(tmp_path: Path) -> None:
    disk = copied(tmp_path / "disk")
    first = segments(disk)[0]
    for file in [*(disk / NAME).glob(f"{first.stem}.*"), disk / NAME / "leader-epoch-checkpoint"]:
        file.unlink()
    assert verdict(disk) == set()
    (disk / "log-start-offset-checkpoint").write_text(f"0\n1\n{TOPIC} 0 10\n")
    assert verdict(disk) == {10}
    report = rawlog.repair(disk, tmp_path / "repair")
    assert report.lost == [(10, 35)]
    assert rawlog.repair(tmp_path / "repair", tmp_path / "again").is_whole


def test_a_segment_that_retention_was_deleting_explains_its_index(tmp_path: Path) -> None:
    """A broker renames the log first: a crash in between leaves the index under its own name."""
    disk = copied(tmp_path / "disk")
    first = segments(disk)[0]
    first.rename(first.with_name(f"{first.name}.deleted"))
    (disk / NAME / "leader-epoch-checkpoint").write_text("0\n1\n0 36\n")
    assert verdict(disk) == set()
    assert not refuses(disk, tmp_path / "rebuild")


def test_what_is_in_remote_storage_is_a_remark(tmp_path: Path) -> None:
    """`verify --complete` of a broker's directory alone called 240 offsets unexplained that remote storage has."""
    disk = golden_path("kafka", "tiered-4.3.0", "data")
    findings = rawlog.verify(disk, complete=True)
    assert findings.verdict == "clean"
    assert [one.message for one in findings if one.code == "kafka.partition.gap"] == [
        "offsets 0 to 119 are in remote storage, which is not among the paths"
    ] * 2
    assert rawlog.rescue(disk, to=tmp_path / "rescue").lost == []


# Holes --------------------------------------------------------------------------------------------------------------------


def batch(offset: int, *keys: bytes | None, producer: int = 7) -> bytes:
    """A batch of an idempotent producer that numbers its records by their offsets."""
    records = b"".join(kafka.encode_record(delta, 0, key, b"value") for delta, key in enumerate(keys))
    return kafka.encode_batch(
        records, record_count=len(keys), base_offset=offset, base_timestamp=TIME + offset, max_timestamp=TIME + offset, leader_epoch=0,
        producer_id=producer, producer_epoch=0, base_sequence=offset,
    )  # fmt: skip


def partition_of(folder: Path, *segment_batches: Sequence[bytes]) -> Path:
    """A partition directory with these segments, and nothing else."""
    folder.mkdir(parents=True)
    for batches in segment_batches:
        base = int.from_bytes(batches[0][:8], "big")
        (folder / f"{base:020}.log").write_bytes(b"".join(batches))
    return folder


def exit_codes(folder: Path, target: Path) -> dict[str, int]:
    verbs = {"verify": [], "cat": [], "count": [], "repair": [str(target / "repair" / folder.name)]}
    verbs["convert"] = [str(target / "rows.jsonl")]
    return {verb: CliRunner().invoke(cli, [verb, str(folder), *more]).exit_code for verb, more in verbs.items()}


@pytest.mark.parametrize("size", [1, 3])
def test_a_compacted_log_of_an_idempotent_producer_is_not_damaged(size: int, tmp_path: Path) -> None:
    """The sequences of producers break where the cleaner takes out whole batches, and that counted as proof that records are lost: verify
    and cat warned of healthy logs. Batches of which some records are left would have told, but none are: those of one record, and those
    that always have the same keys.
    """
    draw = random.Random(size)
    segment_batches = []
    for first in range(0, 120 * size, 30 * size):
        names = [draw.randrange(8) for _ in range(30)]
        if first == 60 * size:
            names[-1] = 8  # of the last batch that it cleans the cleaner would keep the header
        keys = [[b"%d of %d" % (name, number) for number in range(size)] for name in names]
        segment_batches.append([batch(first + number * size, *keys[number]) for number in range(30)])
    source = partition_of(tmp_path / "source" / "settings-0", *segment_batches)
    report = rewritten("compact", source, tmp_path / "compacted" / source.name, **{"segment.bytes": "500"})
    assert report.counts["batches_kept"] < report.counts["batches_read"] / 2
    compacted = tmp_path / "compacted" / source.name
    assert all(row["record_count"] == size for row in rawlog.read(compacted, table="kafka.batches").to_pylist())
    findings = rawlog.verify(compacted, complete=True)
    assert [(finding.code, finding.severity) for finding in findings] == [("kafka.partition.gap", "info")]
    [account] = findings.accounts
    assert account.undecided
    assert not account.unexplained
    names = [int(path.stem) for path in sorted(compacted.glob("*.log"))]
    ends = {row["last_offset"] + 1 for row in rawlog.read(compacted, table="kafka.batches").to_pylist()}
    assert not ends.issuperset(names[1:])  # something is missing between segments, too
    assert set(exit_codes(compacted, tmp_path).values()) == {0}


CUT = {
    "a record without a key": ([[b"a"], [None], [b"b"]], 1),
    "a key twice in batches of several records": ([[b"a", b"b"], [b"c", b"a"]], 1),
    "a key twice in one batch": ([[b"a", b"a"], [b"c", b"d"]], 1),
    "a key twice in batches of one record": ([[b"a"], [b"a"]], 0),
    "no key twice": ([[b"a", b"b"], [b"c", b"d"]], 0),
}


@pytest.mark.parametrize("case", CUT)
def test_records_that_the_cleaner_would_have_removed_before_a_hole_show_a_loss(case: str, tmp_path: Path) -> None:
    """A follower that was away may have a key twice and a hole after that: it copies what its leader has compacted meanwhile."""
    keys, expected = CUT[case]
    batches: list[bytes] = []
    end = 0
    for batch_keys in [*keys, [b"gone", b"gone too"], [b"x", b"y"], [None], [b"a", b"a"]]:
        batches.append(batch(end, *batch_keys))
        end += len(batch_keys)
    gone = batches.pop(len(keys))
    folder = partition_of(tmp_path / "disk" / "t-0", batches)
    assert set(exit_codes(folder, tmp_path).values()) == {expected}
    first = int.from_bytes(gone[:8], "big")
    findings = [
        (finding.severity, finding.offset) for finding in rawlog.verify(folder) if finding.code == "kafka.partition.gap"
    ]
    assert findings == [("warning" if expected else "info", first)]
    [account] = rawlog.verify(folder, complete=True).accounts
    assert (account.unexplained, account.undecided or 0) == ((2, 0) if expected else (0, 2))


# rebuild ------------------------------------------------------------------------------------------------------------------


def test_rebuild_refuses_a_wrong_base_offset_and_a_segment_that_is_there_twice(tmp_path: Path) -> None:
    """It copied both, in 48 cases, with exit code 0."""
    disk = copied(tmp_path / "disk")
    middle = segments(disk)[2]
    data = bytearray(middle.read_bytes())
    data[7] ^= 2
    middle.write_bytes(data)
    assert refuses(disk, tmp_path / "offset")
    assert CliRunner().invoke(cli, ["rebuild", str(disk), str(tmp_path / "exit")]).exit_code == 1
    other = copied(tmp_path / "other")
    copy = segments(other)[1]
    shutil.copy(copy, copy.with_name(f"{int(copy.stem) + 5:020d}.log"))
    assert refuses(other, tmp_path / "twice")


def test_rebuild_makes_derived_files_again_that_are_missing_or_wrong(tmp_path: Path) -> None:
    disk = copied(tmp_path / "disk")
    for number, file in enumerate([*(disk / NAME).glob("*.*index"), *(disk / NAME).glob("*.snapshot")]):
        file.unlink() if number % 2 and int(file.stem) > 0 else file.write_bytes(b"wrong")
    (disk / NAME / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    assert not refuses(disk, tmp_path / "rebuild")
    assert rawlog.verify(tmp_path / "rebuild").verdict == "clean"


def test_a_leader_epoch_that_begins_after_the_end_shows_a_loss(tmp_path: Path) -> None:
    """A broker drops such a line without a word; it was the only trace of the end, and every verb passed over it."""
    partition = tmp_path / "source" / "codec-mixed-0"
    shutil.copytree(golden_path("kafka", "broker-4.3.0", "data") / partition.name, partition)
    epochs = partition / "leader-epoch-checkpoint"
    version, _, *lines = epochs.read_text().splitlines()
    epochs.write_text("\n".join([version, str(len(lines) + 1), *lines, "7 250", ""]))
    found = [finding for finding in rawlog.verify(partition.parent) if finding.code == "kafka.partition.gap"]
    assert [finding.offset for finding in found] == [220]
    assert "leader epoch 7" in found[0].message
    assert answers(partition.parent, tmp_path, partition.name) == alike([(220, 249)])
    assert rawlog.verify(tmp_path / "repair").verdict == "clean"


def test_offsets_that_are_missing_at_the_beginning_of_a_segment_are_judged_like_others(tmp_path: Path) -> None:
    """The first batch of a segment that the cleaner had not reached was cut out: `verify --complete` missed it, other verbs did not."""
    name = "compacted-0"
    disk = copied(tmp_path / "source", "legacy/broker-0.10.0.1", name)
    (disk / "cleaner-offset-checkpoint").write_text("0\n1\ncompacted 0 202\n")
    last = segments(disk, name)[-1]
    first, second, *_ = kafka.decode(last.read_bytes())
    last.write_bytes(last.read_bytes()[second.position :])
    assert verdict(disk) == {202}
    assert answers(disk, tmp_path, name) == alike([(202, first.last_offset)])


def test_batches_that_share_zeros_are_read_as_repair_keeps_them(tmp_path: Path) -> None:
    """The last zeros of a batch are gone, and the next one begins with zeros: both are whole. `convert` lost the second one."""
    disk = copied(tmp_path / "source")
    log = segments(disk)[1]
    data = log.read_bytes()
    at = next(
        batch.position for batch in kafka.decode(data) if data[batch.position - 1 : batch.position + 1] == b"\0\0"
    )
    log.write_bytes(data[: at - 1] + data[at:])
    rawlog.repair(disk, tmp_path / "repaired")
    rows = {}
    for path in (disk, tmp_path / "repaired"):
        target = tmp_path / f"{path.name}.jsonl"
        rawlog.convert(path, target, errors="skip")
        rows[path.name] = target.read_text()
    assert rows["source"] == rows["repaired"]


def test_compaction_leaves_undecided_what_was_undecided(tmp_path: Path) -> None:
    """It wrote a line of the cleaner, by which the missing offsets were a loss: `verify` of the result of code 0 gave 1."""
    partition = tmp_path / "source" / "codec-mixed-0"
    shutil.copytree(golden_path("kafka", "broker-4.3.0", "data") / partition.name, partition)
    log = segments(partition.parent, partition.name)[0]
    data = log.read_bytes()
    batch = next(batch for batch in kafka.decode(data) if batch.base_offset == 147)
    log.write_bytes(data[: batch.position] + data[batch.position + batch.size :])
    assert rewritten("compact", partition.parent, tmp_path / "compacted").is_whole
    assert rawlog.verify(tmp_path / "compacted").verdict == "clean"


def test_a_restored_node_knows_which_topics_are_compacted(tmp_path: Path) -> None:
    """Its settings are in `bootstrap.checkpoint` until it starts: `verify` called a hole there a loss that the settings explain."""
    whole(tmp_path / "source")
    log = segments(tmp_path / "source", "sea.state-0")[0]
    data = log.read_bytes()
    batch = next(batch for batch in kafka.decode(data) if batch.base_offset == 17)
    log.write_bytes(data[: batch.position] + data[batch.position + batch.size :])
    assert rawlog.verify(tmp_path / "source").verdict == "clean"
    assert rawlog.restore(tmp_path / "source", tmp_path / "restored").is_whole
    assert rawlog.verify(tmp_path / "restored").verdict == "clean"


def test_restore_names_the_offsets_of_a_partition_that_is_not_there(tmp_path: Path) -> None:
    """verify and repair named them; restore said only that the partition is not in the source."""
    whole(tmp_path / "source")
    shutil.rmtree(tmp_path / "source" / "sea.orders-1")
    missing = next(
        finding for finding in rawlog.verify(tmp_path / "source") if finding.code == "kafka.partition.missing"
    )
    report = rawlog.restore(tmp_path / "source", tmp_path / "restored")
    [(first, last)] = report.lost
    assert first == missing.offset
    assert f"offsets {first} to {last} " in missing.message


@pytest.mark.parametrize("metadata", [True, False])
@pytest.mark.parametrize("name", ["sea.orders-1", "sea.audit-0"])
def test_rescue_names_the_offsets_of_a_partition_that_is_not_there(tmp_path: Path, name: str, metadata: bool) -> None:
    """It said that all offsets from 0 on are lost. Without the metadata neither it nor restore named a topic with one partition."""
    whole(tmp_path / "source")
    for gone in [name] + ([] if metadata else ["__cluster_metadata-0"]):
        shutil.rmtree(tmp_path / "source" / gone)
    found = next(finding for finding in rawlog.verify(tmp_path / "source") if finding.code == "kafka.partition.missing")
    report = rawlog.rescue(tmp_path / "source", to=tmp_path / "rescued")
    [(first, last)] = report.lost
    assert first == found.offset
    assert f"{name} is not here: offsets {first} to {last} " in found.message
    assert report.counts["offsets_lost"] == last - first + 1
    assert name in report.lines()[-1]
    assert rawlog.restore(tmp_path / "source", tmp_path / "restored").lost == report.lost


def test_what_a_dead_cleaner_left_does_not_stand_for_the_segment(tmp_path: Path) -> None:
    """The segment is gone, its index and an unfinished `.log.cleaned` of the same name are there: only rescue missed the segment."""
    name = "magic-mismatch-0"
    disk = copied(tmp_path / "source", "legacy/broker-0.10.0.1-kafka-4298", name)
    (disk / "cleaner-offset-checkpoint").write_text("0\n1\nmagic-mismatch 0 40\n")
    lost = disk / name / f"{40:020}.log"
    assert lost.with_suffix(".index").exists()
    assert lost.with_suffix(".log.cleaned").exists()
    lost.unlink()
    assert verdict(disk) == {39}
    assert answers(disk, tmp_path, name) == alike([(39, 77)])


def test_metadata_segments_with_swapped_names_are_reported_by_verbs_that_read_everything(tmp_path: Path) -> None:
    """convert gave the rows in their order with code 0, although verify finds damage; of other logs it said so."""
    folder = tmp_path / "__cluster_metadata-0"
    shutil.copytree(golden_path("kafka", "broker-4.3.0", "data") / folder.name, folder)
    first, second = segments(tmp_path, folder.name)[2:4]
    names, data = (first.name, second.name), (first.read_bytes(), second.read_bytes())
    first.write_bytes(data[1])
    second.write_bytes(data[0])
    ran = CliRunner().invoke(cli, ["convert", str(folder), str(tmp_path / "rows.jsonl"), "--errors", "skip", "--json"])
    assert ran.exit_code == 1
    assert all(name in ran.stdout + ran.stderr for name in names)


@pytest.mark.parametrize("errors", ["raise", "skip"])
def test_diff_compares_metadata_as_repair_would_keep_it(tmp_path: Path, errors: str) -> None:
    """The first and the last segment have one another's names: diff read them in that order, and found 65 differences."""
    sound = golden_path("kafka", "broker-4.3.0", "data") / "__cluster_metadata-0"
    folder = tmp_path / sound.name
    shutil.copytree(sound, folder)
    first, *_, last = segments(tmp_path, folder.name)
    data = first.read_bytes(), last.read_bytes()
    first.write_bytes(data[1])
    last.write_bytes(data[0])
    for options in ({}, {"atOffset": "100"}):
        compared = rawlog.diff(folder, sound, errors=errors, option=options)
        whole_log = rawlog.diff(sound, sound, option=options)
        assert list(compared) == list(whole_log) == []
        assert compared.tally == whole_log.tally


def test_a_first_segment_that_was_emptied_is_a_loss_as_any_other(tmp_path: Path) -> None:
    """Only its time index was found wrong: repair, restore and convert ended with 0."""
    disk = copied(tmp_path / "disk")
    first, second = segments(disk)[:2]
    first.write_bytes(b"")
    stop = int(second.stem)
    assert 0 in verdict(disk)
    assert answers(disk, tmp_path) == alike([(0, stop - 1)])
