"""Offsets and leader epochs, which no checksum covers: one that is wrong is set right where the batches around it and the epoch
checkpoint leave no other choice, and is reported.
"""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

import rawlog
from rawlog.model.errors import CorruptError
from rawlog.model.report import Action
from tests.data.golden import golden_path
from tests.data.kafka_rewriting import rewritten
from tests.formats.kafka.partition.test_lost_markers import batches, overwrite, repaired

EPOCH = 12
V2 = "idempotent-0"


def logs(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))


def copy(original: Path, folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    return Path(shutil.copytree(original, folder / original.name))


# Leader epochs -----------------------------------------------------------------------------------------------------


def with_epochs(source: Path, epochs: list[int]) -> None:
    """Give the batches of a partition's first segment these leader epochs, and the checkpoint accordingly."""
    path = min(source.glob("*.log"))
    data = bytearray(path.read_bytes())
    rows: list[tuple[int, int]] = []
    for (at, _), epoch in zip(list(batches(bytes(data))), epochs, strict=True):
        struct.pack_into(">i", data, at + EPOCH, epoch)
        if not rows or rows[-1][0] != epoch:
            rows.append((epoch, struct.unpack_from(">q", data, at)[0]))
    path.write_bytes(data)
    lines = "".join(f"{epoch} {start}\n" for epoch, start in rows)
    (source / "leader-epoch-checkpoint").write_text(f"0\n{len(rows)}\n{lines}")


def one_segment(tmp_path: Path) -> tuple[Path, int]:
    """A golden partition of one segment and of one leader epoch, and how many batches it has."""
    source = copy(golden_path("kafka", "broker-4.3.0", "data", V2), tmp_path / "source")
    assert len(list(source.glob("*.log"))) == 1
    count = len(list(batches(logs(source))))
    with_epochs(source, [0] * count)
    return source, count


@pytest.mark.parametrize("value", [1, 7, 1 << 24, -5])
@pytest.mark.parametrize("checkpoint", [True, False])
def test_one_leader_epoch_is_outvoted(value: int, checkpoint: bool, tmp_path: Path) -> None:
    """A flipped epoch in the first batch was copied into the seven sound ones after it and into the epoch checkpoint."""
    source, count = one_segment(tmp_path)
    expected = logs(source)
    last = count - 1
    for number in (
        (0, 1, last // 2, last - 1, last) if checkpoint else (0, 1, last - 1)
    ):  # nothing else speaks against the last one
        broken = copy(source, tmp_path / "broken")
        if not checkpoint:
            (broken / "leader-epoch-checkpoint").unlink()
        at = list(batches(expected))[number][0]
        overwrite(min(broken.glob("*.log")), at + EPOCH, struct.pack(">i", value))
        target = tmp_path / "out" / V2
        report = repaired(broken, target)
        assert logs(target) == expected, (number, report.lines())
        assert (target / "leader-epoch-checkpoint").read_text() == (source / "leader-epoch-checkpoint").read_text()
        [changed] = report.with_action(Action.CHANGED)
        assert f"leader epoch {value} set to 0" in changed.reason
        assert changed.start == at
        assert not report.is_whole
        assert not [one for one in rawlog.verify(target) if str(one.severity) != "info"]
        with pytest.raises(CorruptError, match="strict"):
            rewritten("repair", broken, tmp_path / "strict", policy="strict")


def test_epochs_that_change_are_kept_and_one_among_them_is_outvoted(tmp_path: Path) -> None:
    source, count = one_segment(tmp_path)
    epochs = [2, 2, 3, 5, 5, *[9] * (count - 5)]
    with_epochs(source, epochs)
    expected = logs(source)
    assert repaired(source, tmp_path / "whole" / V2).is_whole
    for number in range(8):
        for wrong in (0, 4, 12):
            broken = copy(source, tmp_path / "broken")
            at = list(batches(expected))[number][0]
            overwrite(min(broken.glob("*.log")), at + EPOCH, struct.pack(">i", wrong))
            report = repaired(broken, tmp_path / "out" / V2)
            assert logs(tmp_path / "out" / V2) == expected, (number, wrong, report.lines())


def test_batches_outvote_a_checkpoint_that_is_wrong(tmp_path: Path) -> None:
    source, _ = one_segment(tmp_path)
    expected = logs(source)
    (source / "leader-epoch-checkpoint").write_text("0\n1\n8 0\n")
    report = repaired(source, tmp_path / "out" / V2)
    assert logs(tmp_path / "out" / V2) == expected
    assert (tmp_path / "out" / V2 / "leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"
    assert not report.with_action(Action.CHANGED)


# Offsets of message sets -------------------------------------------------------------------------------------------


LEGACY = [
    ("broker-0.8.2.2", "plain-0"),  # magic 0
    ("broker-0.8.2.2", "codecs-0"),  # magic 0, compressed
    ("broker-0.10.2.2", "plain-0"),  # magic 1
    ("broker-0.10.2.2", "codecs-0"),  # magic 1, compressed
    ("broker-2.8.2", "mixed-0"),
]


@pytest.mark.parametrize(("broker", "name"), LEGACY)
def test_one_wrong_offset_of_a_message_set_is_set_right(broker: str, name: str, tmp_path: Path) -> None:
    """A sound entry of magic 0 or 1 between offsets 77 and 79 whose own offset was wrong was cut, although the documentation said that
    it is set right.
    """
    original = golden_path("kafka", "legacy", broker, "data", name)
    everything = rawlog.read(original, columns=["offset", "key", "value"]).to_pylist()
    tried = 0
    for path in sorted(original.glob("*.log")):
        data = path.read_bytes()
        spans = list(batches(data))
        step = max(1, len(spans) // 12)
        for at, _ in spans[1:-1:step]:
            offset = struct.unpack_from(">q", data, at)[0]
            for wrong in (offset ^ (1 << 20), offset ^ (1 << 5), 3):
                source = copy(original, tmp_path / "source")
                overwrite(source / path.name, at, struct.pack(">q", wrong))
                target = tmp_path / "out" / name
                report = repaired(source, target)
                assert (target / path.name).read_bytes() == data, (offset, wrong, report.lines())
                assert not report.lost
                assert report.is_whole == (wrong == offset)
                tried += 1
    assert rawlog.read(target, columns=["offset", "key", "value"]).to_pylist() == everything
    assert tried > 10


@pytest.mark.parametrize("wrong", [7, -5])
def test_verify_sees_a_leader_epoch_that_repair_sets_right(tmp_path: Path, wrong: int) -> None:
    """Without a checkpoint, or with a negative epoch, verify said clean and repair changed the batch."""
    folder = tmp_path / "segments-by-size-0"
    shutil.copytree(golden_path("kafka", "broker-4.3.0", "data", "segments-by-size-0"), folder)
    (folder / "leader-epoch-checkpoint").unlink()
    segment = folder / f"{0:020}.log"
    data = bytearray(segment.read_bytes())
    data[12:16] = struct.pack(">i", wrong)
    segment.write_bytes(data)
    [found] = rawlog.verify(folder)
    assert (found.code, found.offset, found.path) == ("kafka.epochs.mismatch", 0, str(segment))
    assert found.message == f"a batch at offset 0 has epoch {wrong}, the batches around it have epoch 0"
