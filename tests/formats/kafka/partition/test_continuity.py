"""Segments that are gone, misnamed or unfinished: verify, repair and restore say the same of them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import rawlog
from rawlog.model.report import Action
from tests.data.golden import golden_path
from tests.data.kafka_rewriting import rewritten
from tests.reference import kafka

DATA = golden_path("kafka", "broker-4.3.0", "data")
NAME = "segments-by-size-0"
CHECKPOINT = "cleaner-offset-checkpoint"


def copy(tmp_path: Path, name: str = NAME) -> Path:
    """A partition directory of a real broker, to be damaged."""
    target = tmp_path / "data" / name
    shutil.copytree(DATA / name, target)
    return target


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))


def codes(path: Path) -> set[str]:
    return {one.code for one in rawlog.verify(path) if one.severity != "info"}


def stretch(path: Path, first: int, count: int) -> tuple[int, int]:
    """Overwrite several batches of a segment, headers and all; their first and last offsets."""
    data = bytearray(path.read_bytes())
    frames = kafka.frames(bytes(data))[0][first : first + count]
    found = list(kafka.headers(bytes(data), check_crc=False))[first : first + count]
    start, stop = frames[0][0], frames[-1][0] + frames[-1][1]
    data[start:stop] = b"\x99" * (stop - start)
    path.write_bytes(data)
    return int(found[0].base_offset or 0), found[-1].last_offset


def rows(path: Path) -> list[dict[str, Any]]:
    return rawlog.read(path, columns=["offset", "timestamp", "key", "value"]).to_pylist()


@pytest.mark.parametrize("harm", ["stretch", "truncated", "truncated to a batch", "zeros", "nothing"])
def test_a_segment_that_is_gone_is_reported_whatever_else_is_damaged(harm: str, tmp_path: Path) -> None:
    """A stretch of damaged batches made the log look compacted: neither verify nor repair mentioned a segment that was deleted."""
    folder = copy(tmp_path)
    before, gone, after = segments(folder)[1:4]
    first, last = int(gone.stem), int(after.stem) - 1
    data = before.read_bytes()
    if harm == "stretch":
        stretch(before, 1, 2)
    elif harm == "truncated":
        before.write_bytes(data[: len(data) // 2])
    elif harm == "truncated to a batch":
        before.write_bytes(data[: kafka.frames(data)[0][3][0]])
    elif harm == "zeros":
        before.write_bytes(data[: kafka.frames(data)[0][3][0]] + bytes(900))
    gone.unlink()
    found = [one for one in rawlog.verify(folder) if one.code == "kafka.partition.gap"]
    assert len(found) == 1
    assert found[0].path == str(after)
    assert found[0].message.endswith(f"to {last} are missing")
    assert (found[0].offset == first) == (harm in ("stretch", "nothing"))
    report = rewritten("repair", folder, tmp_path / "out" / NAME)
    assert not report.is_whole
    assert any(low <= first and high == last for low, high in report.lost)
    assert rawlog.verify(tmp_path / "out" / NAME).verdict == "clean"


def test_damage_is_no_compaction_for_the_topic_of_the_metadata_log(tmp_path: Path) -> None:
    """Where the metadata log says that a topic is compacted, a gap is normal."""
    shutil.copytree(DATA / "__cluster_metadata-0", tmp_path / "data" / "__cluster_metadata-0")
    for topic, expected in ((NAME, {"kafka.partition.gap"}), ("compacted-0", set())):
        folder = tmp_path / "data" / topic
        shutil.copytree(DATA / NAME, folder)
        for path in folder.glob(f"{segments(folder)[2].stem}.*"):
            path.unlink()
        assert codes(folder) - {"kafka.partition.topic-id"} == expected, topic


def test_a_gap_below_the_cleaners_checkpoint_is_compaction(tmp_path: Path) -> None:
    """A clean compacted partition was suspect, although `cleaner-offset-checkpoint` names it; beyond the checkpoint nothing was cleaned. A
    line for another partition says nothing of this one.
    """
    gone, after = segments(DATA / NAME)[2:4]
    cases = [
        ("segments-by-size 0", after, set()),
        ("segments-by-size 1", after, set()),
        ("segments-by-size 0", gone, {"kafka.partition.gap"}),
    ]
    for number, (line, until, expected) in enumerate(cases):
        folder = copy(tmp_path / f"{number}")
        for path in folder.glob(f"{gone.stem}.*"):
            path.unlink()
        (folder.parent / CHECKPOINT).write_text(f"0\n1\n{line} {int(until.stem)}\n")
        assert codes(folder) == expected, (line, until)
        report = rewritten("repair", folder, tmp_path / "out" / NAME, overwrite=True)
        assert any(one.is_loss for one in report.entries) == bool(expected), (line, until)


@pytest.mark.parametrize("new", [-1, 3, 7, 100_000])
def test_a_renamed_segment_keeps_its_batches(new: int, tmp_path: Path) -> None:
    """A segment that was named too high lost the batches before its new name, although they are nowhere else."""
    folder, target = copy(tmp_path), tmp_path / "out" / NAME
    expected, data = rows(folder), b"".join(path.read_bytes() for path in segments(folder))
    base = int(segments(folder)[2].stem)
    for path in folder.glob(f"{base:020d}.*"):
        path.rename(folder / f"{base + new:020d}{path.suffix}")
    assert rawlog.verify(folder).errors
    assert "kafka.partition.gap" not in codes(folder)
    report = rewritten("repair", folder, target)
    assert not report.lost
    assert not report.counts["bytes_cut"]
    assert [one.action for one in report.entries if one.is_alteration] == ["moved"]
    assert report.exit_code == 0, "its bytes are unchanged"
    assert rows(target) == expected
    assert b"".join(path.read_bytes() for path in segments(target)) == data
    assert [int(path.stem) for path in segments(target)] == [int(path.stem) for path in segments(DATA / NAME)]
    assert rawlog.verify(target).verdict == "clean"


@pytest.mark.parametrize("name", [NAME, "transactions-0"])
@pytest.mark.parametrize("with_indexes", [True, False])
def test_swapped_segments_keep_their_batches(name: str, with_indexes: bool, tmp_path: Path) -> None:
    """Of two segments with each other's names 42 of 199 records were lost."""
    whole = segments(DATA / name)
    expected = rows(DATA / name)
    for number, (one, other) in enumerate(((1, 3), (0, 1), (0, len(whole) - 1), (len(whole) - 2, len(whole) - 1))):
        folder, target = copy(tmp_path / f"{number}", name), tmp_path / f"{number}" / "out" / name
        pair = whole[one].stem, whole[other].stem
        for suffix in (".log", ".index", ".timeindex") if with_indexes else (".log",):
            for old, new in (pair, pair[::-1]):
                shutil.copy(DATA / name / f"{old}{suffix}", folder / f"{new}{suffix}")
        report = rewritten("repair", folder, target)
        assert not report.lost
        assert not report.counts["bytes_cut"]
        assert rows(target) == expected
        assert {path.name: path.read_bytes() for path in segments(target)} == {
            path.name: path.read_bytes() for path in whole
        }
        assert rawlog.verify(folder).errors
        assert rawlog.verify(target).verdict == "clean"


@pytest.mark.parametrize("size", [1, 17, 18, 61, 9000])
def test_zeros_at_the_end_of_a_segment_are_preallocation_only_in_the_last_one(size: int, tmp_path: Path) -> None:
    """A half-written batch of zeros in a segment that others follow was taken for preallocation, and `ls` said ok."""
    folder = copy(tmp_path)
    middle, last = segments(folder)[2], segments(folder)[-1]
    for path in (middle, last):
        path.write_bytes(path.read_bytes() + bytes(size))
    states = {row["path"]: row["state"] for row in rawlog.read(folder, table="files").to_pylist()}
    assert states[str(middle)] == "truncated"
    assert states[str(last)] == "ok"
    found = [one for one in rawlog.verify(folder) if one.code == "kafka.partition.truncated"]
    assert [one.path for one in found] == [str(middle)]
    report = rewritten("repair", folder, tmp_path / "out" / NAME)
    assert not report.is_whole
    assert not report.lost, "the next segment goes on where this one ends"
    assert rows(tmp_path / "out" / NAME) == rows(DATA / NAME)
    assert rawlog.verify(tmp_path / "out" / NAME).verdict == "clean"


@pytest.mark.parametrize("broker", ["broker-2.8.2", "broker-0.10.2.2", "broker-0.10.0.1", "broker-0.9.0.1"])
def test_compressed_message_sets_show_compaction_inside(broker: str, tmp_path: Path) -> None:
    """Only the content of a compressed entry of magic 0 or 1 tells which of its offsets were compacted away."""
    for source in sorted(golden_path("kafka", "legacy", broker, "data").glob("*compacted-0")):
        folder = tmp_path / source.name
        shutil.copytree(source, folder)
        assert "kafka.partition.gap" not in codes(folder), source


def test_a_last_segment_that_is_gone_is_reported(tmp_path: Path) -> None:
    """The snapshot of the producers that a clean stop leaves says where the log ended."""
    folder = copy(tmp_path)
    gone = segments(folder)[-1]
    first, end = int(gone.stem), max(int(path.stem) for path in folder.glob("*.snapshot"))
    for path in folder.glob(f"{gone.stem}.*"):
        path.unlink()
    assert codes(folder) == {"kafka.partition.gap"}
    report = rewritten("repair", folder, tmp_path / "out" / NAME)
    assert report.lost == [(first, end - 1)]
    assert not report.is_whole
    assert rawlog.verify(tmp_path / "out" / NAME).verdict == "clean"


@pytest.mark.parametrize("left", ["index", "timeindex"])
def test_an_index_without_its_segment_shows_what_is_missing_at_the_end(left: str, tmp_path: Path) -> None:
    """The newest segment was gone, and no snapshot was taken after it: verify and repair reported nothing. A broker deletes the index."""
    folder = copy(tmp_path)
    for path in (*folder.glob("*240.*"), folder / f"{288:020}.snapshot"):
        if path.name != f"{240:020}.{left}":
            path.unlink()
    [finding] = rawlog.verify(folder)
    assert (finding.code, finding.offset) == ("kafka.partition.gap", 240)
    assert f"{240:020}.{left} is there without its segment" in finding.message
    report = rawlog.repair(folder, tmp_path / "out" / NAME)
    [entry] = report.with_action(Action.LOST)
    assert entry.first_offset == 240
    assert entry.stop_offset is not None
    assert entry.stop_offset > 240
    assert codes(tmp_path / "out") == set()


def test_an_index_of_junk_without_its_segment_is_not_believed(tmp_path: Path) -> None:
    folder = copy(tmp_path)
    (folder / f"{288:020}.index").write_bytes(b"\x7f\xff\xff\xff" * 3 + b"\x00" * 3 + b"\x01" + b"\x11" * 8)
    assert codes(folder) <= {"kafka.index.order"}
