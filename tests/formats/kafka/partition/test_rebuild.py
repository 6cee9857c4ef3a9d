"""Derived files that are rebuilt are those that real brokers left, wherever the log alone can tell."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import rawlog
from rawlog.formats.kafka.partition.rewrite import rebuild
from rawlog.io.output import Folder
from rawlog.model.errors import AccessError, CorruptError
from rawlog.model.report import Action
from rawlog.model.store import Store
from tests.data.golden import KafkaCase, golden_path, kafka_cases
from tests.data.kafka_rewriting import rewritten

CLEAN = [case for case in kafka_cases() if case.broker in ("broker-3.9.2", "broker-4.3.0")]
INTERVALS = {"segments-by-size-0": "2048", "segments-by-time-0": "2048"}


def entries(snapshot: bytes) -> tuple[bytes, list[bytes]]:
    return snapshot[:2] + snapshot[6:10], sorted(snapshot[at : at + 46] for at in range(10, len(snapshot), 46))


def stops_of(case: KafkaCase) -> set[int]:
    """Where the broker was stopped in between: the ends that its snapshots name, which no segment begins at."""
    bases = {int(one.stem) for one in case.segments}
    return {int(one.stem) for one in case.path.glob("*.snapshot")} - bases - {case.end_offset or 0}


@pytest.mark.parametrize("case", CLEAN, ids=str)
def test_derived_files_are_those_of_a_real_broker(case: KafkaCase, tmp_path: Path) -> None:
    """An active segment that lived across a restart has other indexes (kafka-log.md §1.5), and epochs without a batch leave no trace."""
    target = tmp_path / case.partition
    report = rewritten("rebuild", case.path, target, index_interval_bytes=INTERVALS.get(case.partition, "4096"))
    assert (report.counts["segments"], report.counts["bytes_lost"]) == (len(case.segments), 0)
    mine = {path.name: path.read_bytes() for path in target.iterdir()}
    across = {one.stem for one in case.segments for stop in stops_of(case) if int(one.stem) < stop}
    compared = 0
    for path in case.path.iterdir():
        data = path.read_bytes()
        if path.suffix == ".deleted" or (path.suffix in (".index", ".timeindex") and path.stem in across):
            continue
        if path.name == "leader-epoch-checkpoint":
            theirs, own = (one.decode().splitlines()[2:] for one in (data, mine[path.name]))
            trimmed = [line.split()[0] for line in theirs]
            assert [line.split()[0] for line in own] == trimmed[: len(own)]
            continue
        if path.suffix == ".snapshot":
            if int(path.stem) in stops_of(case):
                assert path.name not in mine
                continue
            assert entries(mine[path.name]) == entries(data), path
        else:
            assert mine[path.name] == data, path
        compared += 1
    assert compared > 2
    assert {name for name in mine if not (case.path / name).exists()} == set()


def test_an_unfinished_batch_is_left_out_and_noted(tmp_path: Path) -> None:
    case = next(one for one in CLEAN if one.partition == "codec-none-0")
    folder = tmp_path / "codec-none-0"
    folder.mkdir()
    name = case.segments[0].name
    (folder / name).write_bytes(case.segments[0].read_bytes()[:-5])
    report = rewritten("rebuild", folder, tmp_path / "out" / "codec-none-0")
    assert report.counts["bytes_lost"]
    assert "unfinished" in report.with_action(Action.DROPPED)[0].reason
    assert rawlog.verify(tmp_path / "out").verdict == "clean"


def test_damage_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    case = next(one for one in CLEAN if one.partition == "codec-none-0")
    folder = tmp_path / "codec-none-0"
    folder.mkdir()
    data = bytearray(case.segments[0].read_bytes())
    data[100] ^= 1
    (folder / case.segments[0].name).write_bytes(bytes(data))
    with pytest.raises(CorruptError, match="checksum"):
        rewritten("rebuild", folder, tmp_path / "x-0")
    with pytest.raises(AccessError, match="no log segment"):
        rebuild(Store([]), Folder(tmp_path / "out", dry_run=True), {})
    assert sorted(one.name for one in tmp_path.iterdir()) == ["codec-none-0"]


def test_a_missing_segment_is_reported_by_compact_and_refused_by_rebuild(tmp_path: Path) -> None:
    """verify and repair named the 60 lost offsets, rebuild and compact ended with exit 0 and said nothing."""
    folder = tmp_path / "segments-by-size-0"
    shutil.copytree(golden_path("kafka", "broker-4.3.0", "data", "segments-by-size-0"), folder)
    metadata = "__cluster_metadata-0"  # it tells that the topic is not compacted
    shutil.copytree(golden_path("kafka", "broker-4.3.0", "data", metadata), tmp_path / metadata)
    for verb in ("rebuild", "compact"):
        assert rewritten(verb, folder, tmp_path / verb).is_whole
    for path in folder.glob(f"{120:020}.*"):
        path.unlink()
    with pytest.raises(CorruptError, match="offsets 120 to 179 are missing before this segment"):
        rewritten("rebuild", folder, tmp_path / "refused")
    assert not (tmp_path / "refused").exists()
    report = rewritten("compact", folder, tmp_path / "out")
    assert not report.is_whole
    assert report.lost == [(120, 179)]
    assert f"{180:020}.log, offsets 120 to 179: missing before this segment" in "\n".join(report.lines())


def test_swapped_segments_are_refused_by_rebuild(tmp_path: Path) -> None:
    folder = tmp_path / "segments-by-size-0"
    shutil.copytree(golden_path("kafka", "broker-4.3.0", "data", "segments-by-size-0"), folder)
    (folder / f"{60:020}.log").rename(folder / "moved")
    (folder / f"{120:020}.log").rename(folder / f"{60:020}.log")
    (folder / "moved").rename(folder / f"{120:020}.log")
    with pytest.raises(CorruptError, match="out of order"):
        rewritten("rebuild", folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()
