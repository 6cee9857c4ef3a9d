"""What one pass over a segment or snapshot finds: the same for any cut of the file, and enough for all checks of the directory."""

from __future__ import annotations

import pickle
import random
from itertools import pairwise
from pathlib import Path

import pytest

import rawlog
from rawlog.formats.kafka import LOG
from rawlog.formats.kafka.cluster import metadata_log
from rawlog.formats.kafka.cluster.metadata_log import (
    Contents,
    ContentsFold,
    read_contents,
)
from rawlog.formats.kafka.cluster.writer import encode_batch
from rawlog.formats.kafka.internal.messages import encode_framed
from rawlog.io.walk import walk
from rawlog.model.format import File
from tests.data.kraft import data_dir


def shown(found: Contents) -> tuple[object, ...]:
    """Everything that contents say; records batch by batch, since splits are compressed alone."""
    lists = [row for rows in found.rows() for row in rows.batch.to_pylist()]
    ends = (found.first, found.first_position, found.following, found.end, found.is_damaged, found.kinds, found.footers)
    extent = None if found.plain is None else found.plain.extent()
    assert extent is not None
    log = (extent.covered.tolist(), extent.runs, extent.last_base)
    return (*ends, list(found.gaps), log, list(found.shapes), lists)


def in_splits(file: File, cuts: list[int]) -> Contents:
    made: Contents | None = None
    edges = [0, *cuts, file.size]
    for start, stop in pairwise(edges):
        fold = ContentsFold(file, (), start, stop)
        for frames in walk(file, LOG, start=start, stop=stop, errors="skip"):
            fold.see(frames)
        split = pickle.loads(pickle.dumps(fold.close()))
        made = split if made is None else made.merge(split)
    assert made is not None
    return made


def segment(tmp_path: Path, rng: random.Random) -> tuple[File, list[int]]:
    """A segment with gaps and odd records, and where its batches begin."""
    data, starts, offset = b"", [], 0
    for number in range(30):
        starts.append(len(data))
        offset += rng.choice((0, 0, 0, 5))
        key = rng.choice((None, None, None, b"k"))
        values = [(key, encode_framed("NoOpRecord", {})) for _ in range(rng.randint(1, 4))]
        data += encode_batch(offset, 1, 1_700_000_000_000 + number, values)
        offset += len(values)
    path = tmp_path / "__cluster_metadata-0" / f"{0:020d}.log"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    [file] = rawlog.open(path).files
    return file, starts


def test_contents_are_the_same_for_any_cut(tmp_path: Path) -> None:
    rng = random.Random(5)
    for _ in range(20):
        file, starts = segment(tmp_path, rng)
        whole = read_contents(file)
        assert whole.gaps.count
        for count in (1, 3, 10):
            cuts = sorted(rng.sample(starts[1:], count))
            assert shown(in_splits(file, cuts)) == shown(whole), cuts


def test_contents_of_a_large_file_keep_no_records_and_checks_read_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_log, "MOST_KEPT", 1000)
    file, starts = segment(tmp_path, random.Random(1))
    assert read_contents(file).pieces is None
    assert in_splits(file, [starts[9]]).pieces is None
    codes = {one.code for one in rawlog.verify(tmp_path, rule=["kraft"])}
    assert codes == {"kraft.metadata.gap", "kraft.metadata.shape"}
    assert rawlog.verify(data_dir("broker-4.3.0") / "__cluster_metadata-0").verdict == "clean"
