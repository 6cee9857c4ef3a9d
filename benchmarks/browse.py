"""`rawlog browse` on a large directory: the first page, jumps, a search that finds nothing, and memory.

The directory has ten partitions of 1 GB; nine of them are hard links to the first, so that it takes 1 GB of the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa

import rawlog

ROWS = 50_000


def make(folder: Path, megabytes: int, partitions: int) -> None:
    """Partitions of one topic, with segments of 100 MB and their indexes."""
    noise = np.random.default_rng(1).bytes(1000)
    first = range(0, megabytes * 1_000, ROWS)
    batches = [
        pa.record_batch(
            {
                "key": pa.array([f"key-{number}".encode() for number in range(at, at + ROWS)], pa.binary()),
                "value": pa.array([str(number).encode() + noise for number in range(at, at + ROWS)], pa.binary()),
                "timestamp": pa.array(
                    [1_700_000_000_000_000 + number * 1000 for number in range(at, at + ROWS)],
                    pa.timestamp("us", "UTC"),
                ),
            }
        )
        for at in first
    ]
    rows = pa.Table.from_batches(batches)
    rawlog.write(folder, rows, format="kafka", topic="orders", partition=0, segment_bytes=100 << 20)
    for number in range(1, partitions):
        shutil.copytree(folder / "orders-0", folder / f"orders-{number}", copy_function=os.link)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=int, default=1000, help="of one partition")
    parser.add_argument("--partitions", type=int, default=10)
    parser.add_argument("--keep", help="where the files are kept for the next run")
    options = parser.parse_args()
    folder = Path(options.keep or tempfile.mkdtemp(prefix="rawlog-browse-"))
    try:
        if not any(folder.rglob("*.log")):
            make(folder, options.mb, options.partitions)
        measure(folder, options.mb * 1_000)
    finally:
        if not options.keep:
            shutil.rmtree(folder)


def measure(folder: Path, rows: int) -> None:
    """Start the command and ask it."""
    size = sum(one.stat().st_size for one in folder.rglob("*.log"))
    print(f"{size / 1e9:.1f} GB, load {psutil.getloadavg()[0]:.1f}")
    start = time.perf_counter()
    command = [sys.executable, "-m", "rawlog", "browse", str(folder), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        base = json.loads(server.stdout.readline())["url"].removesuffix("at")
        seconds = time.perf_counter() - start
        process = psutil.Process(server.pid)

        def ask(what: str, page: str, times: int = 5) -> None:
            took = []
            for _ in range(times):
                began = time.perf_counter()
                urllib.request.urlopen(base + page).read()
                took.append(time.perf_counter() - began)
            used = process.memory_info().rss >> 20
            print(f"{what:34} {min(took):6.3f} s, the first time {took[0]:6.3f} s; memory {used} MB")

        print(f"{'start of the command':34} {seconds:6.3f} s")
        place = f"in={folder.name}%2Forders-3"
        ask("first page", "at")
        ask("jump to an offset", f"rows?{place}&from={rows * 7 // 9}")
        ask("jump to a time", f"rows?{place}&since={1_700_000_000_000 + rows // 3}")
        ask("last rows", f"rows?{place}&last=1")
        ask("a page of a search without hits", "rows?text=nowhere", 1)
        server.send_signal(signal.SIGINT)


if __name__ == "__main__":
    main()
