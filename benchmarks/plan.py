"""Planning at scale: the real planning code of `ingest` with a listing that does not exist; and small files that do exist.

    python benchmarks/plan.py --files 1000000 --small 20000

A listing of a cluster of Kafka brokers: partitions with segments, each with its indexes. Nothing of it is on a disk. Measured are the
CPU time of recognising, of planning a first run and one of the next day (the lake knows all files, one in a hundred has grown), the number
and size of splits, the state in the lake, and the memory of the process. Each phase runs in a process of its own, so that memory is
that of the phase.

Small files are partitions with a segment of 50 records each. Measured are the CPU time of all processes of `ls` and of a whole `ingest`,
with threads and on Spark, and the memory of the driver; of Spark also that of its largest other process, which is the JVM.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

import rawlog
from rawlog.io.storage import ListedFile
from rawlog.lakes.ingest import Ingest
from rawlog.lakes.state import SourceProgress
from rawlog.model.table import FILES, FINDINGS
from rawlog.reading import tree as trees

ROOT = "/synthetic/kafka-logs"
SUFFIXES = ("log", "index", "timeindex", "snapshot")
SEGMENTS = 25
SEGMENT = 64 << 20
SIZES = {"log": SEGMENT, "index": 128 << 10, "timeindex": 192 << 10, "snapshot": 10}


def entries(count: int, grown: bool = False) -> Iterator[ListedFile]:
    """So many files, as a listing gives them; with `grown`, the last segment of one partition in four is larger and newer."""
    partitions = max(1, count // (SEGMENTS * len(SUFFIXES)))
    for number in range(partitions):
        folder = f"{ROOT}/topic-{number // 32:05d}-{number % 32}"
        for segment in range(SEGMENTS):
            is_active = grown and number % 4 == 0 and segment == SEGMENTS - 1
            for suffix in SUFFIXES:
                size = SIZES[suffix] + (1 << 20 if is_active and suffix == "log" else 0)
                path = f"{folder}/{segment * 1_000_000:020d}.{suffix}"
                yield ListedFile(path, size, 1_700_000_000.0 + segment + (86_400 if is_active else 0))


def peak() -> int:
    """The most memory that this process had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def plan(lake: Path, count: int, grown: bool) -> dict[str, float]:
    """List, recognise and plan; nothing is done."""
    trees.listing = lambda root: entries(count, grown)  # type: ignore[assignment]
    begun = time.process_time()
    tree = trees.open_tree([ROOT])
    listed = time.process_time()
    with Ingest(str(lake)) as job:
        splits = job.plan(tree)
        planned = time.process_time()
        largest = max((len(pickle.dumps(split)) for split in splits), default=0)
    return {
        "files": len(tree),
        "recognise_cpu_s": round(listed - begun, 1),
        "plan_cpu_s": round(planned - listed, 1),
        "splits": len(splits),
        "largest_split_kb": largest >> 10,
        "peak_mb": peak(),
    }


def fill(lake: Path, count: int) -> dict[str, float]:
    """Record in the lake that all files are ingested, as a run of them would."""
    trees.listing = lambda root: entries(count)  # type: ignore[assignment]
    tree = trees.open_tree([ROOT])
    begun = time.process_time()
    with Ingest(str(lake)) as job:
        assert job.lake is not None
        tables = job._tables(tree)
        run = job.lake.writer.new_run()  # type: ignore[union-attr]
        for table in (*tables, FILES, FINDINGS):
            from rawlog import registry

            able = registry.formats_with(table)
            about_files = table.name in (FILES.name, FINDINGS.name)
            taken = {
                file.path: SourceProgress(file.size, file.modified, file.size, 1000, 0)
                for file in tree
                if about_files or file.format in able
            }
            rows = {path: [(f"{at // 2:024x}", at, at + 1000)] for at, path in enumerate(taken)}
            job.lake.commit(table, run, [], taken, rows=rows if table.name == "records" else None)
    size = sum(path.stat().st_size for path in lake.rglob("*") if path.is_file())
    return {"commit_cpu_s": round(time.process_time() - begun, 1), "metadata_mb": size >> 20, "peak_mb": peak()}


def make_small(folder: Path, count: int) -> Path:
    """So many small files, of one partition after another."""
    rows = [
        {"key": b"k%d" % n, "value": b"value %d" % n * 5, "timestamp": (1_700_000_000_000 + n) * 1000}
        for n in range(50)
    ]
    rawlog.write(folder / "one", rows, format="kafka", topic="t", partition=0)
    contents = {path.name: path.read_bytes() for path in (folder / "one" / "t-0").iterdir()}
    kept = {name: data for name, data in contents.items() if name.endswith(tuple(f".{one}" for one in SUFFIXES))}
    for number in range(count // len(kept)):
        partition = folder / "logs" / f"topic-{number // 32:05d}-{number % 32}"
        partition.mkdir(parents=True)
        for name, data in kept.items():
            (partition / name).write_bytes(data)
    return folder / "logs"


def measured(*arguments: str) -> dict[str, float]:
    """CPU time of a command and of all processes below it, and the most memory of the command itself and of any other."""
    command = [sys.executable, "-m", "rawlog", *arguments]
    running = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    seconds: dict[int, float] = {}
    memory = {"driver_mb": 0, "largest_other_mb": 0}
    while True:
        with contextlib.suppress(psutil.Error):
            for process in (running, *running.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    used, held = process.cpu_times(), process.memory_info().rss >> 20
                    seconds[process.pid] = used.user + used.system
                    whose = "driver_mb" if process.pid == running.pid else "largest_other_mb"
                    memory[whose] = max(memory[whose], held)
        with contextlib.suppress(psutil.TimeoutExpired):
            code = running.wait(0.1)
            assert code == 0, (arguments, code)
            return {"cpu_s": round(sum(seconds.values()), 1), **memory}


def small(count: int) -> Iterator[dict[str, object]]:
    """`ls` and whole runs over small files."""
    with tempfile.TemporaryDirectory(prefix="rawlog-small-") as name:
        folder = Path(name)
        logs = str(make_small(folder, count))
        yield {"phase": "ls", "files": count, **measured("ls", logs)}
        for engine in ("local", "spark"):
            lake = str(folder / f"lake-{engine}")
            for phase in ("ingest", "ingest again"):
                ran = measured("ingest", logs, "--to", lake, "--engine", engine)
                yield {"phase": phase, "engine": engine, "files": count, **ran}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--small", type=int, default=20_000)
    parser.add_argument("--phase", choices=("first", "fill", "next"))
    parser.add_argument("--lake")
    given = parser.parse_args()
    if given.phase is None:
        with tempfile.TemporaryDirectory(prefix="rawlog-plan-") as folder:
            for phase in ("first", "fill", "next"):
                own = ["--files", str(given.files), "--phase", phase, "--lake", f"{folder}/lake"]
                subprocess.run([sys.executable, __file__, *own], check=True)
        for row in small(given.small):
            print(json.dumps(row), flush=True)
        return
    lake = Path(given.lake)
    made = fill(lake, given.files) if given.phase == "fill" else plan(lake, given.files, given.phase == "next")
    print(json.dumps({"phase": given.phase, **made}), flush=True)


if __name__ == "__main__":
    main()
