"""`verify --complete` of metadata logs: every offset from a snapshot's end to the end of the log."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import rawlog
from rawlog.model.finding import CLASSES, Account, Findings
from tests.data.kraft import data_dir
from tests.reference import kafka as reference

BROKERS = ("broker-3.9.2", "broker-4.3.0", "broker-4.3.0-crashed")


def verified(path: Path) -> tuple[Findings, Account]:
    found = rawlog.verify(path, complete=True)
    [one] = [account for account in found.accounts if account.system == "kraft"]
    assert sum(getattr(one, name) or 0 for name in CLASSES) == one.stop
    assert not [account for account in found.accounts if account.system == "kafka"]
    return found, one


def copied(broker: str, folder: Path) -> Path:
    target = folder / "__cluster_metadata-0"
    shutil.copytree(data_dir(broker) / "__cluster_metadata-0", target)
    return target


def bases(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in folder.glob("*.log"))


def snapshots(folder: Path) -> list[int]:
    return sorted(int(path.name.split("-")[0]) for path in folder.glob("*.checkpoint"))


@pytest.mark.parametrize("broker", BROKERS)
def test_what_real_controllers_wrote_is_complete(broker: str) -> None:
    folder = data_dir(broker) / "__cluster_metadata-0"
    found, one = verified(folder)
    rows = rawlog.read(folder, table="kafka.records", columns=["offset", "is_control"]).to_pylist()
    assert one.unexplained == 0
    assert one.stop == rows[-1]["offset"] + 1
    assert (one.present, one.control) == (len(rows) - one.control, sum(row["is_control"] for row in rows))
    assert found.errors == 0


def test_a_segment_in_the_middle_is_missing_although_a_snapshot_covers_it(tmp_path: Path) -> None:
    folder = copied("broker-4.3.0", tmp_path)
    every = bases(folder)
    (folder / f"{every[2]:020d}.log").unlink()
    found, one = verified(folder)
    assert one.unexplained == every[3] - every[2]
    [item] = [item for item in found if item.code == "kraft.complete.unexplained"]
    assert (item.offset, item.path) == (every[2], str(folder))
    covering = next(offset for offset in snapshots(folder) if offset >= every[3])
    assert item.message.endswith(f"no sound batch has them; the snapshot at offset {covering} covers them")
    assert found.verdict == "damaged"


def test_a_segment_in_the_middle_is_missing_and_no_snapshot_covers_it(tmp_path: Path) -> None:
    folder = copied("broker-4.3.0", tmp_path)
    base = next(base for base in bases(folder) if base > snapshots(folder)[-1])
    (folder / f"{base:020d}.log").unlink()
    [item] = [item for item in verified(folder)[0] if item.code == "kraft.complete.unexplained"]
    assert item.message.endswith("no sound batch has them, and no whole snapshot covers them")


@pytest.mark.parametrize("segment", [0, -1], ids=["first", "last"])
def test_a_damaged_batch_is_missing(segment: int, tmp_path: Path) -> None:
    """Its records were counted as present. In the last segment the log seemed to end at the damage: the classes added up to more offsets
    than there are, and the finding said that another file had told of the missing ones.
    """
    folder = copied("broker-4.3.0", tmp_path)
    end = rawlog.read(folder, table="kafka.records", columns=["offset"])["offset"][-1].as_py() + 1
    path = folder / f"{bases(folder)[segment]:020d}.log"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    found, one = verified(folder)
    read = rawlog.read(folder, table="kafka.records", columns=["offset"], errors="skip").to_pylist()
    assert sum(getattr(one, name) or 0 for name in CLASSES) == one.stop == end
    assert (one.present + one.control, one.expired, one.unexplained) == (len(read), 0, end - len(read))
    [item] = [item for item in found if item.code == "kraft.complete.unexplained"]
    assert ": no sound batch has them" in item.message


def test_a_copy_of_a_control_batch_counts_once(tmp_path: Path) -> None:
    """It was counted among the control records, and a record less was present."""
    folder = copied("broker-4.3.0", tmp_path)
    _, before = verified(folder)
    first, last = (folder / f"{bases(folder)[at]:020d}.log" for at in (0, -1))
    batch = next(batch for batch in reference.decode(first.read_bytes()) if batch.attributes & 0x20)
    copy = first.read_bytes()[batch.position : batch.position + batch.size]
    last.write_bytes(last.read_bytes() + copy)
    _, after = verified(folder)
    assert (after.present, after.control, after.stop) == (before.present, before.control, before.stop)


def test_what_a_snapshot_has_may_be_gone_from_the_beginning_of_the_log(tmp_path: Path) -> None:
    folder = copied("broker-4.3.0", tmp_path)
    last = snapshots(folder)[-1]
    kept = max(base for base in bases(folder) if base <= last)
    for path in folder.glob("*.*"):
        if path.suffix != ".checkpoint" and path.stem.isdigit() and int(path.stem) < kept:
            path.unlink()
    _, one = verified(folder)
    assert (one.start, one.expired, one.unexplained) == (kept, kept, 0)
    for path in folder.glob("*.checkpoint"):
        path.unlink()
    found, one = verified(folder)
    assert (one.start, one.unexplained) == (0, kept)
    assert "no whole snapshot" in next(item.message for item in found if item.code == "kraft.complete.unexplained")


def test_a_log_that_was_longer_lacks_its_end(tmp_path: Path) -> None:
    """Of the last segments only the snapshots of their producers are left."""
    folder = copied("broker-4.3.0", tmp_path)
    every, end = bases(folder), max(int(path.stem) for path in folder.glob("*.snapshot"))
    for path in folder.glob("*.checkpoint"):
        path.unlink()
    for base in every[-2:]:
        for kind in ("log", "index", "timeindex"):
            (folder / f"{base:020d}.{kind}").unlink()
    _, one = verified(folder)
    assert (one.stop, one.unexplained) == (end, end - every[-2])
