"""How much two threads of the local engine gain over one: verifying, and decoding to Arrow, several big Kafka segments.

python benchmarks/local_engine.py [--mb 1024] [--files 8] [--value 100] [--codec none] [--times 5]

The runs with one and with two threads take turns, and with them a loop that holds no lock at all (`zlib.crc32`): what two threads of
that gain is all that the machine, which may do other work too, has to give at the moment.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_count import make_segments

from rawlog.engines import choice
from rawlog.model.job import (
    Job,
    Outcome,
    Split,
    SplitResult,
    Stage,
)
from rawlog.model.table import RECORDS
from rawlog.reading.parts import plan
from rawlog.reading.rows import read
from rawlog.reading.select import Selection
from rawlog.reading.tree import Tree, open_tree
from rawlog.verbs.verify import Verify


@dataclass(frozen=True, slots=True)
class Counted(SplitResult):
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
        return Counted(split.number, sum(batch.num_rows for batch in read(split.content, RECORDS, Selection())))

    def commit(self, done: Sequence[Counted]) -> Total:
        """Add up."""
        return Total(sum(one.rows for one in done))


def measure(job: Job[Any, Any], tree: Tree, threads: int) -> float:
    """Wall seconds of a run."""
    begun = time.perf_counter()
    choice.run(job, tree, threads=threads)
    return time.perf_counter() - begun


class Ceiling(Job[Counted, Total]):
    """Checksums of memory: nothing but work without a lock."""

    data = bytes(16 << 20)

    def plan(self, tree: Tree) -> list[Split]:
        """Eight pieces of about the same time."""
        return [Split(number, 1, None) for number in range(8)]

    def work(self, split: Split, stage: Stage) -> Counted:
        """A few checksums."""
        for _ in range(3):
            zlib.crc32(self.data)
        return Counted(split.number, 0)

    def commit(self, done: Sequence[Counted]) -> Total:
        """Nothing to add up."""
        return Total(0)


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
            runs: dict[tuple[bool, int], list[float]] = {}
            for _ in range(given.times):
                for ceiling in (False, True):
                    for threads in (1, 2):
                        wall = measure(Ceiling() if ceiling else job, tree, threads)
                        runs.setdefault((ceiling, threads), []).append(wall)
            one, two = min(runs[False, 1]), min(runs[False, 2])
            gain, most = (_gain(runs[kind, 1], runs[kind, 2]) for kind in (False, True))
            print(
                f"{name}: one thread {one:.2f} s ({size / one / 1e9:.2f} GB/s), two {two:.2f} s: {one / two:.2f} times at best, "
                f"{gain:.2f} in the median; the machine gives {most:.2f} now"
            )


def _gain(one: Sequence[float], two: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(one, two, strict=True))


if __name__ == "__main__":
    main()
