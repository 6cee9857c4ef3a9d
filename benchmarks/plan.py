"""Planning at scale: the real planning code of `ingest` with a listing that does not exist; and small files that do exist.

A listing of a cluster of Kafka brokers: partitions with segments, each with its indexes. Nothing of it is on a disk. The memory is that of
the process. Small files are partitions with a segment of 50 records each; whole commands run over them. All times include the start of a
process.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

from harness import Bench, Limit, Run, Way, Work, case, command, main, rawlog_command

import rawlog
from rawlog import registry
from rawlog.io.storage import ListedFile
from rawlog.lakes.ingest import Ingest
from rawlog.lakes.state import SourceProgress
from rawlog.model.table import FILES, FINDINGS
from rawlog.reading import tree as trees

LISTED = "/synthetic/kafka-logs"
SUFFIXES = ("log", "index", "timeindex", "snapshot")
SEGMENTS = 25
SEGMENT = 64 << 20
SIZES = {"log": SEGMENT, "index": 128 << 10, "timeindex": 192 << 10, "snapshot": 10}


def entries(count: int, grown: bool = False) -> Iterator[ListedFile]:
    """So many files, as a listing gives them; with `grown`, the last segment of one partition in four is larger and newer."""
    partitions = max(1, count // (SEGMENTS * len(SUFFIXES)))
    for number in range(partitions):
        folder = f"{LISTED}/topic-{number // 32:05d}-{number % 32}"
        for segment in range(SEGMENTS):
            is_active = grown and number % 4 == 0 and segment == SEGMENTS - 1
            for suffix in SUFFIXES:
                size = SIZES[suffix] + (1 << 20 if is_active and suffix == "log" else 0)
                path = f"{folder}/{segment * 1_000_000:020d}.{suffix}"
                yield ListedFile(path, size, 1_700_000_000.0 + segment + (86_400 if is_active else 0))


# Phases: each is a process of its own ---------------------------------------------------------------------------------------


def listing(lake: str, count: int) -> None:
    """The listing itself."""
    assert sum(1 for _ in entries(count))


def recognise(lake: str, count: int) -> None:
    """List and recognise."""
    trees.listing = lambda root, folders: entries(count)  # type: ignore[assignment]
    assert len(trees.open_tree([LISTED]))


def plan(lake: str, count: int, grown: bool = False) -> None:
    """List, recognise and plan; nothing is done."""
    trees.listing = lambda root, folders: entries(count, grown)  # type: ignore[assignment]
    tree = trees.open_tree([LISTED])
    with Ingest(lake) as job:
        splits = job.plan(tree)
        largest = max((len(pickle.dumps(split)) for split in splits), default=0)
    print(f"{len(tree):,} files, {len(splits):,} splits, the largest {largest >> 10} kB")


def plan_again(lake: str, count: int) -> None:
    """The plan of the next day: the lake knows all files, one segment in a hundred has grown."""
    plan(lake, count, grown=True)


def fill(lake: str, count: int) -> None:
    """Record in the lake that all files are ingested, as a run of them would."""
    trees.listing = lambda root, folders: entries(count)  # type: ignore[assignment]
    tree = trees.open_tree([LISTED])
    with Ingest(lake) as job:
        assert job.lake is not None
        tables = job._tables(tree)
        run = job.lake.writer.new_run()  # type: ignore[union-attr]
        for table in (*tables, FILES, FINDINGS):
            able = registry.formats_with(table)
            about_files = table.name in (FILES.name, FINDINGS.name)
            taken = {
                file.path: SourceProgress(file.size, file.modified, file.size, 1000, 0)
                for file in tree
                if about_files or file.format in able
            }
            rows = {path: [(f"{at // 2:024x}", at, at + 1000)] for at, path in enumerate(taken)}
            job.lake.commit(table, run, [], taken, rows=rows if table.name == "records" else None)


PHASES = {phase.__name__: phase for phase in (listing, recognise, plan, plan_again, fill)}


def phase(name: str, lake: Path, files: int) -> Run:
    return command([sys.executable, __file__, "--phase", name, lake, files], files)


def planning(name: str, title: str) -> None:
    """Declare the case of a phase."""

    @case(title, size=100_000, tiny=100, unit="files", rows="files", rounds=2)
    def body(bench: Bench) -> Iterator[Way]:
        """The plan of a run over files that are only listed: recognised, grouped, split; the limit is their listing."""
        partitions = max(1, bench.size // (SEGMENTS * len(SUFFIXES)))
        bench.rows = partitions * SEGMENTS * len(SUFFIXES)
        bench.bytes = sum(SIZES.values()) * partitions * SEGMENTS
        lake = bench.folder / "lake"
        if name == "plan_again":
            phase("fill", lake, bench.rows)
        yield Work("rawlog", lambda: phase(name, lake, bench.rows))
        yield Limit("listing alone", lambda: phase("listing", lake, bench.rows))


for name, title in (
    ("recognise", "recognise"), ("plan", "plan, first run"), ("plan_again", "plan, next run"), ("fill", "record all sources"),
):  # fmt: skip
    planning(name, title)


# Small files ----------------------------------------------------------------------------------------------------------------


def make_small(bench: Bench) -> Path:
    """So many small files, of one partition after another."""
    rows = [
        {"key": b"k%d" % n, "value": b"value %d" % n * 5, "timestamp": (1_700_000_000_000 + n) * 1000}
        for n in range(50)
    ]
    rawlog.write(bench.folder / "first", rows, format="kafka", topic="t", partition=0)
    contents = {path.name: path.read_bytes() for path in (bench.folder / "first" / "t-0").iterdir()}
    kept = {name: data for name, data in contents.items() if name.endswith(tuple(f".{suffix}" for suffix in SUFFIXES))}
    for number in range(max(1, bench.size // len(kept))):
        partition = bench.folder / "logs" / f"topic-{number // 32:05d}-{number % 32}"
        partition.mkdir(parents=True)
        for name, data in kept.items():
            (partition / name).write_bytes(data)
        bench.rows += len(kept)
        bench.bytes += sum(map(len, kept.values()))
    return bench.folder / "logs"


def small(title: str, *arguments: str, is_second: bool = False, default: bool = True) -> None:
    """Declare the case of a command."""

    @case(title, size=4_000, tiny=40, unit="files", rows="files", rounds=2, default=default)
    def body(bench: Bench) -> Iterator[Way]:
        """A command over small files, all of its processes; the limit is opening and reading each."""
        folder = make_small(bench)
        verb, *more = arguments
        lakes = (bench.folder / f"lake-{number}" for number in range(100))
        lake = next(lakes)

        def run() -> Run:
            target = ["--to", lake if is_second else next(lakes)] if verb == "ingest" else []
            return rawlog_command(verb, folder, *target, *more, rows=bench.rows)

        def read() -> int:
            for parent, _, names in os.walk(folder):
                for name in names:
                    with open(os.path.join(parent, name), "rb") as file:
                        file.read()
            return bench.rows

        yield Work(f"rawlog {verb}", run, tree=True)
        yield Limit("reading the files", read)


small("small files, ls", "ls")
small("small files, ingest", "ingest", "--engine", "local")
small("small files, ingest again", "ingest", "--engine", "local", is_second=True)
small("small files, ingest on Spark", "ingest", "--engine", "spark", default=False)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--phase"]:
        _, _, name, lake, files = sys.argv
        PHASES[name](lake, int(files))
    else:
        main(__doc__)
