"""How fast a broker's directory is written again, next to producing the same records through a client, and to copying its files."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from data import records, size_of
from harness import Bench, Limit, Peer, Way, Work, case, main
from kafka_encode import librdkafka

import rawlog
from rawlog.engines import choice
from rawlog.model.recovery import RestoreOptions
from rawlog.reading.tree import open_tree
from rawlog.verbs.repair import RewriteJob
from rawlog.verbs.restore import Restore

STEP, PARTITIONS, SHARE = 50_000, 2, 200_000


def make_logs(bench: Bench) -> Path:
    """A directory of two partitions."""
    source = bench.folder / "source"
    rows = min(STEP, bench.size * 1_000_000 // 240)
    steps = max(1, bench.size * 1_000_000 // PARTITIONS // (rows * 120))
    for number in range(PARTITIONS):
        parts = (records(rows, first=step * rows) for step in range(steps))
        reader = pa.RecordBatchReader.from_batches(records(1).schema, parts)
        bench.rows += rawlog.write(source, reader, format="kafka", topic="orders", partition=number)
    bench.bytes = size_of(source)
    return source


def copy(bench: Bench, source: Path, target: Path) -> Limit:
    """Copying the files, as they are."""

    def run() -> int:
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target)
        return bench.rows

    return Limit("copying the files", run)


@case("restore", size=256, rounds=3)
def restore(bench: Bench) -> Iterator[Way]:
    """A directory of two partitions as one that a broker starts on; the client produces some of its records."""
    source, target = make_logs(bench), bench.folder / "target"

    def run() -> int:
        shutil.rmtree(target, ignore_errors=True)
        with Restore(str(target), RestoreOptions()) as job:
            return int(choice.run(job, open_tree(source)).counts["records"])

    some = records(min(SHARE, bench.rows))
    client = lambda: librdkafka(bench.folder / "broker", some)  # noqa: E731
    yield Work("rawlog restore", run)
    yield Peer("librdkafka to a broker", start=client, rows=some.num_rows)
    yield copy(bench, source, target)


def rewrite(verb: str) -> None:
    """Declare the case of a verb that writes partitions again."""

    @case(verb, size=256, rounds=3)
    def body(bench: Bench) -> Iterator[Way]:
        """Two partitions without damage written again, with all that is derived from them."""
        source, target = make_logs(bench), bench.folder / "target"

        def run() -> int:
            shutil.rmtree(target, ignore_errors=True)
            with RewriteJob(verb, str(target)) as job:
                choice.run(job, open_tree(source))
            assert size_of(target) == bench.bytes
            return bench.rows

        yield Work(f"rawlog {verb}", run)
        yield copy(bench, source, target)


for name in ("repair", "rebuild"):
    rewrite(name)


if __name__ == "__main__":
    main(__doc__)
