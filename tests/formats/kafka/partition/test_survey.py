"""The checks of a partition give the same answer for any cut of its segments."""

from __future__ import annotations

import pickle
import random
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import rawlog
from rawlog.formats.kafka import LOG
from rawlog.formats.kafka.log.seek import index_entries
from rawlog.formats.kafka.log.segment import scan
from rawlog.formats.kafka.partition.survey import SegmentFold, fold_segment, survey
from rawlog.io.walk import walk
from rawlog.model.format import File
from rawlog.model.store import Store
from tests.data.golden import KafkaCase, kafka_cases

CASES = [case for case in kafka_cases() if len(list(case.path.glob("*.log"))) >= 1]


def cuts(file: File, store: Store, rng: random.Random) -> list[int]:
    """Positions to cut a segment at: entries of its index, where it has one, else any batches."""
    batches = scan(np.fromfile(file.path, np.uint8), 0).positions[1:].tolist()
    entries = set(index_entries(file, store)[:, 1].tolist())
    inside = [one for one in batches if one in entries] if entries else batches
    return sorted(rng.sample(inside, min(len(inside), rng.randrange(1, 4)))) if inside else []


def in_splits(file: File, store: Store, rng: random.Random) -> SegmentFold:
    edges = [0, *cuts(file, store, rng), None]
    folds = []
    for start, stop in pairwise(edges):
        fold = SegmentFold(file, store, start or 0, stop)
        for frames in walk(file, LOG, start=start, stop=stop, errors="skip", window=1 << 14):
            fold.see(frames)
        folds.append(pickle.loads(pickle.dumps(fold.close())))
    while len(folds) > 1:
        at = rng.randrange(len(folds) - 1)
        folds[at].merge(folds.pop(at + 1))
    return folds[0]


def spoil(folder: Path, rng: random.Random) -> None:
    """Make the files of a partition disagree: entries of indexes, and fields that no checksum covers."""
    for path in folder.iterdir():
        if path.suffix in (".index", ".timeindex", ".txnindex") and path.stat().st_size and rng.random() < 0.5:
            data = bytearray(path.read_bytes())
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(3)
            path.write_bytes(data)
        if path.suffix == ".log" and path.stat().st_size:
            data = bytearray(path.read_bytes())
            for start in rng.sample(scan(np.frombuffer(bytes(data), np.uint8), 0).positions.tolist(), 1):
                data[start + rng.choice([7, 15])] ^= 1 << rng.randrange(2)
            path.write_bytes(data)


@pytest.mark.parametrize("spoilt", [False, True])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_any_cut_of_a_segment_gives_the_same_findings(case: KafkaCase, spoilt: bool, tmp_path: Path) -> None:
    folder = tmp_path / case.path.name
    shutil.copytree(case.path, folder)
    rng = random.Random(str(case))
    if spoilt:
        spoil(folder, rng)
    files = rawlog.open(folder).files
    expected = survey(Store(files))
    for _ in range(3):
        store = Store(files)
        for file in files:
            if file.format == "kafka.log" and file.place.state is None:
                fold = in_splits(file, store, rng)
                store.summaries[file.path] = fold if fold.rises else fold_segment(file, store)
        found = survey(store)
        assert {code: sorted(map(str, marks)) for code, marks in found.items() if marks} == {
            code: sorted(map(str, marks)) for code, marks in expected.items() if marks
        }


def test_a_fold_is_small(tmp_path: Path) -> None:
    """What a split tells is shipped to the driver: it must not grow with the number of batches."""
    case = next(case for case in CASES if "segments-by-size" in str(case))
    files = rawlog.open(case.path).files
    for file in files:
        if file.format == "kafka.log":
            assert len(pickle.dumps(fold_segment(file, files))) < 20_000


def test_a_fold_stays_small_however_many_entries_the_indexes_have(tmp_path: Path) -> None:
    """Each split carried the whole time index of its segment to the driver: 45 GB of them for a partition of 1 TB."""
    values = [b"%07d " % number * 500 for number in range(4000)]
    rows = [{"value": value, "timestamp": number * 1000} for number, value in enumerate(values)]
    rawlog.write(tmp_path, rows, format="kafka", topic="t", partition=0, batch_bytes=4096)
    files = rawlog.open(tmp_path).files
    [log] = [file for file in files if file.format == "kafka.log"]
    store = Store(files)
    assert len(index_entries(log, store)) > 1000
    fold = in_splits(log, store, random.Random(1))
    assert len(pickle.dumps(fold)) < 8000
    store.summaries[log.path] = fold
    assert not any(survey(store).values())
