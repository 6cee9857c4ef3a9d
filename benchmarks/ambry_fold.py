"""How fast, and in how much memory, a store of many small messages is folded to the states of its blobs, and its index rebuilt.

python benchmarks/ambry_fold.py --messages 10000000 [--segments 4] [--work fold,rebuild]
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np

import rawlog
from rawlog.engines import choice
from rawlog.formats.ambry import keys
from rawlog.formats.ambry.layouts import HEADER_V3, KEY_V6, Kind
from rawlog.formats.ambry.writer import (
    Properties,
    put_message,
    segment_header,
    update_message,
)
from rawlog.reading.tree import open_tree
from rawlog.verbs.repair import RewriteJob

PIECE = 100_000


def make_store(folder: Path, messages: int, segments: int) -> None:
    """PUTs of a few bytes; every fifth message deletes a blob that was put before it in the same piece."""
    rng = np.random.default_rng(1)
    key = keys.make(6, 9, "0" * 32, datacenter_id=2, account_id=101, container_id=7)
    reported = Properties(blob_size=5, creation_time=1_700_000_000_000, account_id=101, container_id=7)
    put = np.frombuffer(put_message(key, reported, b"hello"), np.uint8)
    gone = update_message(Kind.DELETE, key, time=1_700_000_100_000, account_id=101, container_id=7)
    delete = np.frombuffer(gone, np.uint8)
    at = HEADER_V3.size + KEY_V6.at("uuid")
    for segment in range(segments):
        with (folder / f"{segment}_0_log").open("wb") as out:
            out.write(segment_header(1 << 40))
            left = messages // segments
            while left > 0:
                puts, deletes = min(PIECE, left) * 4 // 5, min(PIECE, left) // 5
                names = rng.integers(0, 256, (puts, 16), np.uint8)
                for template, chosen in ((put, names), (delete, names[:deletes])):
                    rows = np.tile(template, (len(chosen), 1))
                    rows[:, at : at + 16] = chosen
                    out.write(rows.tobytes())
                left -= puts + deletes


def main() -> None:
    """Make a store, fold it, rebuild it, and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--segments", type=int, default=4)
    parser.add_argument("--work", default="fold,rebuild")
    parser.add_argument("--dir", help="where to keep the store")
    given = parser.parse_args()
    warm = Path(__file__).parents[1] / "samples"
    for path in warm.rglob("*_log"):
        rawlog.read(path.parent, table="ambry.blobs")
    with tempfile.TemporaryDirectory(dir=given.dir) as folder:
        store = Path(folder) / "9"
        store.mkdir()
        make_store(store, given.messages, given.segments)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for work in given.work.split(","):
            cpu, wall = time.process_time(), time.perf_counter()
            if work == "fold":
                done = rawlog.open(store).table("ambry.blobs").count()
            else:
                with RewriteJob(work, str(Path(folder) / work)) as job:
                    done = choice.run(job, open_tree(store)).counts["messages"]
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            print(
                f"{work:>8}: {given.messages:,} messages, {done:,} done, {cpu:.1f} s of CPU, {wall:.1f} s, "
                f"peak {peak / 1024:,.0f} MB ({(peak - before) * 1024 / given.messages:,.0f} bytes a message over {before / 1024:,.0f} MB)"
            )


if __name__ == "__main__":
    main()
