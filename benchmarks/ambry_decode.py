"""How fast a log segment becomes Arrow columns: scanned, every checksum compared, every record read.

python benchmarks/ambry_decode.py --mb 500 [--sizes mixed|1024] [--table records] [--columns key,value] [--window 4]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from rawlog import registry
from rawlog.formats.ambry import keys
from rawlog.formats.ambry.writer import Properties, put_message, segment_header
from rawlog.io.walk import walk
from rawlog.model.format import Want
from rawlog.reading.tree import open_tree


def make_log(path: Path, size: int, sizes: str) -> int:
    """A segment of PUTs with random content: of one size, or of 0 to 64 KiB, 9 KB in the mean."""
    rng = np.random.default_rng(1)
    noise = rng.bytes(1 << 18)
    written = count = 0
    with path.open("wb") as out:
        out.write(segment_header(1 << 40))
        while written < size:
            length = min(65536, int(rng.exponential(9300))) if sizes == "mixed" else int(sizes)
            start = int(rng.integers(0, len(noise) - length))
            reported = Properties(
                blob_size=length,
                creation_time=1_700_000_000_000 + count,
                content_type="image/png",
                owner_id="own",
                service_id="svc",
                account_id=101,
                container_id=7,
            )
            key = keys.make(6, 9, rng.bytes(16).hex(), datacenter_id=2, account_id=101, container_id=7)
            message = put_message(key, reported, noise[start : start + length], user_metadata=b"um")
            out.write(message)
            written += len(message)
            count += 1
    return count


def main() -> None:
    """Make a log, read it a few times, and print the best."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=500)
    parser.add_argument("--sizes", default="mixed", help="mixed, or the size of every blob")
    parser.add_argument("--table", default="records")
    parser.add_argument("--columns", help="all by default")
    parser.add_argument("--window", type=float, default=4, help="MiB at a time; 4 is what readers take")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--dir", help="where to keep the log")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.dir) as folder:
        path = Path(folder) / "0_0_log"
        count = make_log(path, given.mb * 1_000_000, given.sizes)
        [file] = open_tree(path).files
        format = registry.formats()["ambry.log"]
        table = registry.table_named(given.table)
        if given.columns:
            table = table.subset(given.columns.split(","))
        best_wall = best_cpu = float("inf")
        for _ in range(given.runs + 1):
            wall, cpu, rows = time.perf_counter(), time.process_time(), 0
            for frames in walk(file, format, window=int(given.window * (1 << 20))):
                rows += sum(batch.num_rows for batch in format.codec.decode(frames, Want(table, file)))
            assert rows == count
            best_wall = min(best_wall, time.perf_counter() - wall)
            best_cpu = min(best_cpu, time.process_time() - cpu)
        for name, seconds in (("wall", best_wall), ("cpu", best_cpu)):
            rate = f"{file.size / seconds / 1e9:.2f} GB/s, {count / seconds / 1e3:,.0f} k messages/s"
            print(f"{given.sizes:>6} {given.table} ({len(table.names)} columns) {name:>4}: {rate}")


if __name__ == "__main__":
    main()
