"""Kill an ingest with `kill -9` at random moments, start it again, and look at the lake each time.

The source grows from round to round, at bytes where no frame ends, as a live log does. Victims are the process itself and, on Spark, its
JVM, its executors and their Python workers.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

import rawlog
from rawlog.lakes.lake import Lake
from tests.data import duck
from tests.data.changing_logs import Changing
from tests.data.recordings import expected, held, ordered, stored

TOPICS = ("orders", "payments", "__consumer_offsets")
BASE_MS = 1_700_000_000_000


@dataclass
class Round:
    """What happened in one round."""

    victim: str
    after: float
    code: int | None
    rows: int


@dataclass
class Harness:
    """A source that grows, a lake, and the command that takes the one into the other."""

    folder: Path
    seed: int
    arguments: tuple[str, ...]
    rounds: list[Round] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.source, self.lake, self.whole = (self.folder / name for name in ("source", "lake", "whole"))
        #: What the lake is named to `ingest`; it is read by `lake`, which may be the catalog of one that is elsewhere.
        self.target = str(self.lake)

    def make(self, records: int) -> None:
        """Write the logs that the source will be a growing part of."""
        for number, topic in enumerate(TOPICS):
            numbers = range(records)
            table = pa.table(
                {
                    "key": pa.array([b"%d-%d" % (number, each) for each in numbers], pa.binary()),
                    "value": pa.array([self.random.randbytes(80) for _ in numbers], pa.binary()),
                    "timestamp": pa.array([(BASE_MS + each) * 1000 for each in numbers], pa.timestamp("us", "UTC")),
                }
            )
            rawlog.write(self.whole, table, format="kafka", topic=topic, partition=0)

    def grow(self, share: float) -> None:
        """Let the source hold this share of every log: cut anywhere, as bytes arrive."""
        for log in sorted(self.whole.rglob("*.log")):
            target = self.source / log.parent.name / log.name
            target.parent.mkdir(parents=True, exist_ok=True)
            data = log.read_bytes()
            size = len(data) if share >= 1 else max(int(len(data) * share), _size(target))
            with target.open("ab") as file:
                file.write(data[_size(target) : size])

    def start(self) -> subprocess.Popen[bytes]:
        """Begin an ingest of the source as it is now."""
        command = [sys.executable, "-m", "rawlog", "ingest", str(self.source), "--to", self.target, *self.arguments]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        with (self.folder / "output").open("ab") as output:
            return subprocess.Popen(command, stdout=output, stderr=output, env=environment, start_new_session=True)

    def run(self) -> float:
        """One ingest that nobody disturbs; how long it took."""
        begun = time.monotonic()
        code = self.start().wait()
        assert code in (0, 1), (self.folder / "output").read_text()[-4000:]
        return time.monotonic() - begun

    def kill(self, victim: str, after: float) -> Round:
        """Start, kill the victim when so many seconds have passed, and wait until everything of this run is gone."""
        running = self.start()
        family = psutil.Process(running.pid)
        deadline = time.monotonic() + after
        known: dict[int, psutil.Process] = {}
        while time.monotonic() < deadline and running.poll() is None:
            known |= {one.pid: one for one in _children(family)}
            time.sleep(0.02)
        found = [running.pid] if victim == "driver" else [p.pid for p in known.values() if _kind(p) == victim]
        if running.poll() is None and found:
            with _quiet():
                psutil.Process(self.random.choice(found)).kill()
        if victim in ("driver", "jvm"):
            running.wait()
        code = running.wait()
        for one in known.values():  # what a dead driver leaves ends by itself, a little later
            with _quiet():
                one.wait(30)
        return Round(victim, after, code, self.check())

    def check(self) -> int:
        """The lake can be read, and holds nothing twice; the number of records in it."""
        if not ((self.lake / "catalog.db").exists() or self.lake.is_file()):
            return 0
        try:
            rows = held(self.lake)
        except AssertionError:  # died before it made the table
            return 0
        count = Counter((row["topic"], row["partition"], row["offset"]) for row in rows)
        assert max(count.values(), default=0) <= 1, [key for key, times in count.items() if times > 1][:5]
        files = _files(self.lake) if self.lake.is_dir() else []
        if files:
            assert sorted((self.lake / "rawlog/records/metadata").glob("*.metadata.json"))
            found = duck.ask(
                f'SELECT count(*), count(DISTINCT (topic, partition, "offset")) FROM read_parquet({files})'
            )
            assert found == [(len(rows), len(rows))]
        with contextlib.suppress(AssertionError):  # died before it made the table
            held(self.lake, "kafka.records")  # every reference finds its payload
        return len(rows)

    def finish(self) -> None:
        """Let the rest arrive, ingest undisturbed, and compare everything with the files."""
        self.grow(1)
        self.run()
        self.compare()

    def compare(self) -> None:
        """The lake has the rows that the files have, and no others."""
        for name, table in {
            "rawlog.records": "records",
            "rawlog.files": "files",
            "rawlog.findings": "findings",
        }.items():
            assert held(self.lake, name) == expected(self.source, table=table), name
        for table in ("kafka.records", "kafka.batches", "kafka.offsets"):
            if table not in rawlog.open(str(self.source)).tables:
                continue
            raw: list[dict[str, Any]] = rawlog.read(str(self.source), table=table, errors="skip").to_pylist()
            assert stored(self.lake, table) == ordered(raw), table

    def play(self, kills: int, victims: tuple[str, ...]) -> list[Round]:
        """All rounds, each with more to do than the one before, then an undisturbed end."""
        self.grow(0.5 / (kills + 1))
        whole = self.run()
        for number in range(kills):
            self.grow((number + 1.5) / (kills + 1))
            victim = victims[number % len(victims)]
            self.rounds.append(self.kill(victim, self.random.uniform(0.1, 1.0) * whole))
        self.finish()
        return self.rounds


class Rewriting(Harness):
    """A harness whose source is truncated, compacted and created again, too."""

    def make(self, records: int) -> None:
        """Begin with some records in each partition."""
        work = self.folder / "work"
        self.logs = [Changing(self.source, work, topic, self.random, records) for topic in TOPICS[:2]]

    def grow(self, share: float) -> None:
        """Change each partition."""
        for log in self.logs:
            log.change()

    def check(self) -> int:
        """Rows of kafka.records may refer to payloads in an older snapshot: rawlog finds them there."""
        if not ((self.lake / "catalog.db").exists() or self.lake.is_file()):
            return 0
        names = Lake(str(self.lake)).tables()
        rows = held(self.lake) if "rawlog.records" in names else []
        count = Counter((row["topic"], row["partition"], row["offset"]) for row in rows)
        assert max(count.values(), default=0) <= 1, [key for key, times in count.items() if times > 1][:5]
        if "kafka.records" in names:
            stored(self.lake, "kafka.records")
        return len(rows)

    def compare(self) -> None:
        super().compare()
        for table in ("kafka.index", "kafka.timeindex", "kafka.epochs"):
            raw: list[dict[str, Any]] = rawlog.read(str(self.source), table=table, errors="skip").to_pylist()
            assert stored(self.lake, table) == ordered(raw), table


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _files(lake: Path) -> list[str]:
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("rawlog", type="sql", uri=f"sqlite:///{lake}/catalog.db")
    table = catalog.load_table("rawlog.records")
    return [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]


def _children(process: psutil.Process) -> list[psutil.Process]:
    with _quiet():
        return process.children(recursive=True)
    return []


def _kind(process: psutil.Process) -> str:
    """What a process of a Spark run is: the driver's JVM, an executor, or one of its Python workers."""
    with _quiet():
        words = " ".join(process.cmdline())
        if "CoarseGrainedExecutorBackend" in words:
            return "executor"
        if "SparkSubmit" in words:
            return "jvm"
        if "daemon" in words:
            return "worker"
    return ""


class _quiet:
    """A process that is gone is no error."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is not None and issubclass(kind, (psutil.Error, OSError))
