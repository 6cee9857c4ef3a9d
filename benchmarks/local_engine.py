"""How much two threads of the local engine gain over one, next to what the machine gives a loop that holds no lock.

Only the wall clock says it. The gain is the ratio of one thread to two; the limits are the loop with two threads and with one, and what two
threads of it gain is all that the machine, which may do other work too, has to give at the moment.
"""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from data import kafka_segments, size_of
from harness import Bench, Limit, Peer, Way, Work, case, main

from rawlog.engines import choice
from rawlog.lakes.ingest import Ingest
from rawlog.model.job import Job, Outcome, Split, SplitResult, Stage
from rawlog.model.table import RECORDS
from rawlog.reading.parts import plan
from rawlog.reading.rows import read
from rawlog.reading.select import Selection
from rawlog.reading.tree import Tree, open_tree
from rawlog.verbs.repair import RewriteJob
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
        return Total(sum(result.rows for result in done))


class Ceiling(Job[Counted, Total]):
    """Checksums of memory: nothing but work without a lock."""

    def __init__(self, size: int) -> None:
        self.data, self.passes = bytes(min(size, 16 << 20)), max(1, size // 8 // (16 << 20))

    def plan(self, tree: Tree) -> list[Split]:
        """Eight pieces of about the same time."""
        return [Split(number, 1, None) for number in range(8)]

    def work(self, split: Split, stage: Stage) -> Counted:
        """A few checksums."""
        for _ in range(3 * self.passes):
            zlib.crc32(self.data)
        return Counted(split.number, 0)

    def commit(self, done: Sequence[Counted]) -> Total:
        """Nothing to add up."""
        return Total(0)


def gain(name: str, make: Callable[[Bench], Callable[[Tree, int], object]]) -> None:
    """Declare the case of a job."""

    @case(f"two threads, {name}", size=256)
    def body(bench: Bench) -> Iterator[Way]:
        """A job over eight segments with two threads, and with one."""
        folder = bench.folder / "logs"
        bench.rows = kafka_segments(folder, bench.size * 1_000_000)
        bench.bytes = size_of(folder)
        tree, job, ceiling = open_tree(folder), make(bench), Ceiling(bench.bytes)

        def run(threads: int) -> Callable[[], int]:
            return lambda: job(tree, threads) and bench.rows

        def loop(threads: int) -> Callable[[], int]:
            return lambda: choice.run(ceiling, tree, threads=threads) and bench.rows

        yield Work("two threads", run(2))
        yield Peer("one thread", run(1))
        yield Limit("lock-free loop, two threads", loop(2))
        yield Limit("lock-free loop, one thread", loop(1))


def verify(bench: Bench) -> Callable[[Tree, int], object]:
    return lambda tree, threads: choice.run(Verify(), tree, threads=threads)


def decode(bench: Bench) -> Callable[[Tree, int], object]:
    return lambda tree, threads: choice.run(Decode(), tree, threads=threads)


def ingest(bench: Bench) -> Callable[[Tree, int], object]:
    lake = bench.folder / "lake"

    def run(tree: Tree, threads: int) -> Any:
        shutil.rmtree(lake, ignore_errors=True)
        with Ingest(str(lake), tables=["records"]) as job:
            return job.complete(lambda: choice.run(job, tree, threads=threads))

    return run


def rebuild(bench: Bench) -> Callable[[Tree, int], object]:
    target = bench.folder / "rebuilt"

    def run(tree: Tree, threads: int) -> Any:
        shutil.rmtree(target, ignore_errors=True)
        with RewriteJob("rebuild", str(target)) as job:
            return choice.run(job, tree, threads=threads)

    return run


for name, make in (("verify", verify), ("decode", decode), ("ingest", ingest), ("rebuild", rebuild)):
    gain(name, make)


if __name__ == "__main__":
    main(__doc__)
