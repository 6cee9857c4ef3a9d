"""How fast a store of many small messages of Ambry is folded to the states of its blobs, and its index rebuilt."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from data import START_MS, size_of
from harness import Bench, Limit, Way, Work, case, main

import rawlog
from rawlog.engines import choice
from rawlog.formats.ambry import keys
from rawlog.formats.ambry.layouts import HEADER_V3, KEY_V6, Kind
from rawlog.formats.ambry.writer import Properties, put_message, segment_header, update_message
from rawlog.reading.tree import open_tree
from rawlog.verbs.repair import RewriteJob

PIECE, SEGMENTS = 100_000, 4


def make_store(bench: Bench) -> Path:
    """PUTs of a few bytes; every fifth message deletes a blob that was put before it in the same piece."""
    folder = bench.folder / "9"
    folder.mkdir()
    random = np.random.default_rng(1)
    key = keys.make(6, 9, "0" * 32, datacenter_id=2, account_id=101, container_id=7)
    properties = Properties(blob_size=5, creation_time=START_MS, account_id=101, container_id=7)
    put = np.frombuffer(put_message(key, properties, b"hello"), np.uint8)
    update = update_message(Kind.DELETE, key, time=START_MS + 100_000, account_id=101, container_id=7)
    delete = np.frombuffer(update, np.uint8)
    at = HEADER_V3.size + KEY_V6.at("uuid")
    for segment in range(SEGMENTS):
        with (folder / f"{segment}_0_log").open("wb") as out:
            out.write(segment_header(1 << 40))
            left = bench.size // SEGMENTS
            while left > 0:
                piece = min(PIECE, left)
                names = random.integers(0, 256, (piece - piece // 5, 16), np.uint8)
                for template, chosen in ((put, names), (delete, names[: piece // 5])):
                    rows = np.tile(template, (len(chosen), 1))
                    rows[:, at : at + 16] = chosen
                    out.write(rows.tobytes())
                left -= piece
    bench.rows, bench.bytes = bench.size // SEGMENTS * SEGMENTS, size_of(folder, "*_log")
    return folder


def read_all(folder: Path, rows: int) -> Limit:
    def run() -> int:
        for path in folder.glob("*_log"):
            np.fromfile(path, np.uint8)
        return rows

    return Limit("reading the files", run)


@case("fold", size=1_000_000, tiny=2_000, unit="messages", rows="messages", rounds=3)
def fold(bench: Bench) -> Iterator[Way]:
    """The state of every blob, by all messages about it."""
    folder = make_store(bench)

    def run() -> int:
        assert rawlog.open(folder).table("ambry.blobs").count() == sum(
            min(PIECE, left) - min(PIECE, left) // 5
            for _ in range(SEGMENTS)
            for left in range(bench.size // SEGMENTS, 0, -PIECE)
        )
        return bench.rows

    yield Work("rawlog count", run)
    yield read_all(folder, bench.rows)


@case("rebuild", size=1_000_000, tiny=2_000, unit="messages", rows="messages", rounds=3)
def rebuild(bench: Bench) -> Iterator[Way]:
    """The store written again with its index."""
    folder, target = make_store(bench), bench.folder / "rebuilt"

    def run() -> int:
        shutil.rmtree(target, ignore_errors=True)
        with RewriteJob("rebuild", str(target)) as job:
            return int(choice.run(job, open_tree(folder)).counts["messages"])

    yield Work("rawlog rebuild", run)
    yield read_all(folder, bench.rows)


if __name__ == "__main__":
    main(__doc__)
