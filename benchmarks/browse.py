"""`rawlog browse` on a large directory: pages, jumps, a search that finds nothing, and memory.

The directory has ten partitions; nine of them are hard links to the first. A row is a page; the CPU time is that of the server.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pyarrow as pa
from data import START_MS, records, size_of, values
from harness import Bench, Limit, Run, Way, Work, case, main

import rawlog

ROWS, PARTITIONS, BYTES = 10_000, 10, 1000


def make(bench: Bench) -> Path:
    """Partitions of one topic, with segments of 100 MB and their indexes. A row has about 1 kB."""
    folder = bench.folder / "logs"
    steps = max(1, bench.size * 1000 // ROWS)
    parts = [records(ROWS, first=step * ROWS, value=values(ROWS, step, BYTES)) for step in range(steps)]
    rawlog.write(folder, pa.Table.from_batches(parts), format="kafka", segment_bytes=100 << 20)
    for number in range(1, PARTITIONS):
        shutil.copytree(folder / "orders-0", folder / f"orders-{number}", copy_function=os.link)
    bench.bytes, bench.rows = size_of(folder), 1
    return folder


@contextmanager
def server(folder: Path) -> Iterator[tuple[str, psutil.Process]]:
    """The command, started; its address."""
    command = [sys.executable, "-m", "rawlog", "browse", str(folder), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["url"].removesuffix("at"), psutil.Process(process.pid)
        finally:
            process.send_signal(signal.SIGINT)


def asking(name: str, query: str, rounds: int = 5) -> None:
    """Declare the case of a page."""

    @case(f"page: {name}", size=200, rows="pages", rounds=rounds)
    def body(bench: Bench) -> Iterator[Way]:
        """A page of a large directory, asked again and again, next to the smallest one, the list of directories."""
        folder = make(bench)
        count = max(1, bench.size * 1000 // ROWS) * ROWS
        place = query.format(place=f"in={folder.name}%2Forders-3", offset=count * 7 // 9, time=START_MS + count // 3)
        base, process = bench.enter(server(folder))

        def ask(page: str) -> Run:
            busy, began = process.cpu_times(), time.perf_counter()
            repeat = 10  # the clock of another process ticks a hundred times a second
            for _ in range(repeat):
                urllib.request.urlopen(base + page).read()
            wall, used = (time.perf_counter() - began) / repeat, process.cpu_times()
            cpu = max(0.01, used.user + used.system - busy.user - busy.system) / repeat
            return Run(1, cpu, wall, process.memory_info().rss / (1 << 20))

        yield Work(name, lambda: ask(place))
        yield Limit("list of directories", lambda: ask("at"))


asking("jump to an offset", "rows?{place}&from={offset}")
asking("jump to a time", "rows?{place}&since={time}")
asking("last rows", "rows?{place}&last=1")
asking("a search without hits", "rows?text=nowhere", 2)


if __name__ == "__main__":
    main(__doc__)
