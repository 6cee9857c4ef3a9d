"""How much two threads of the local engine gain over one: verifying, and decoding to Arrow, several big Kafka segments.

python benchmarks/local_engine.py [--mb 1024] [--files 8] [--value 100] [--codec none] [--times 5]

The runs with one and with two threads take turns. The figure to trust on a machine that does other work too is the last: how busy the
two threads kept their cores, (CPU of both) / (CPU of one), says what is lost to overhead; waiting for a lock shows in the wall clock.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_count import make_segments

from rawlog.engines import local
from rawlog.jobs import Done, Job, Outcome, Split, Stage
from rawlog.jobs.verify import Verify
from rawlog.rows import plan, read
from rawlog.select import Selection
from rawlog.tables import RECORDS
from rawlog.tree import Tree, open_tree


@dataclass(frozen=True, slots=True)
class Counted(Done):
    """The rows of a split."""

    rows: int


@dataclass(frozen=True, slots=True)
class Total(Outcome):
    """The rows of all of them."""

    rows: int


class Decode(Job[Counted, Total]):
    """Decode every record into Arrow columns, and drop them."""

    def plan(self, tree: Tree) -> list[Split]:
        """A split a file."""
        parts = plan(tree, RECORDS, Selection())
        return [Split(number, part.size, part) for number, part in enumerate(parts)]

    def work(self, split: Split, stage: Stage) -> Counted:
        """Read all columns of a segment."""
        return Counted(split.number, sum(batch.num_rows for batch in read(split.task, RECORDS, Selection())))

    def commit(self, done: Sequence[Counted]) -> Total:
        """Add up."""
        return Total(sum(one.rows for one in done))


def measure(job: Job[Any, Any], tree: Tree, threads: int) -> tuple[float, float]:
    """Wall and CPU seconds of a run."""
    wall, cpu = time.perf_counter(), time.process_time()
    local.run(job, tree, threads=threads)
    return time.perf_counter() - wall, time.process_time() - cpu


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=int, default=1024)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--value", type=int, default=100)
    parser.add_argument("--codec", default="none")
    parser.add_argument("--times", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        size = make_segments(Path(folder), given.mb << 20, given.value, given.codec, given.files)
        tree = open_tree(folder)
        for name, job in (("verify", Verify()), ("decode", Decode())):
            measure(job, tree, 2)
            one, two = [], []
            for _ in range(given.times):
                one.append(measure(job, tree, 1))
                two.append(measure(job, tree, 2))
            walls = min(wall for wall, _ in one), min(wall for wall, _ in two)
            pairs = statistics.median(a[0] / b[0] for a, b in zip(one, two, strict=True))
            work = min(cpu for _, cpu in two) / min(cpu for _, cpu in one)
            print(
                f"{name}: one thread {walls[0]:.2f} s ({size / walls[0] / 1e9:.2f} GB/s), two {walls[1]:.2f} s: "
                f"{walls[0] / walls[1]:.2f} times (best of {given.times}), {pairs:.2f} (median of pairs), CPU {work:.2f} times"
            )


if __name__ == "__main__":
    main()
