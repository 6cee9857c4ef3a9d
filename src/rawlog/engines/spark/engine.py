"""The Spark engine: a job's splits as the rows of a tiny DataFrame that is written through a sink of our own.

So Spark places the tasks, tries failed ones again and lets one attempt of each win; what the winners did comes back as commit
messages. The data itself never passes through the JVM.
"""

from __future__ import annotations

import base64
import gc
import os
import pickle
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from rawlog.engines.spark import daemon
from rawlog.engines.spark.session import check_endpoint, reason
from rawlog.engines.spark.shipping import ship
from rawlog.io.output import scratch
from rawlog.model.errors import AccessError, RawlogError
from rawlog.model.job import (
    Job,
    Progress,
    Split,
    SplitResult,
    Stage,
)
from rawlog.model.text import counted, size_text
from rawlog.reading.tree import Tree

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

D = TypeVar("D", bound=SplitResult)
O = TypeVar("O")  # noqa: E741

INTERVAL = 0.25
daemon.hush()
#: What a task tells of itself: bytes, frames and rows that are done.
TOLD = struct.Struct("<3q")


def run(job: Job[D, O], tree: Tree, spark: SparkSession, *, progress: Callable[[Progress], None] | None = None) -> O:
    """Run a job to its end with tasks on Spark, and return the result.

    Raises what the first failing split raised, or AccessError if Spark itself failed.
    """
    check_endpoint(spark, tree.roots)
    with job.timed("plan"):
        splits = job.plan(tree)
    results: list[D] = []
    before = latest = Progress()

    def add(now: Progress) -> None:
        nonlocal latest
        latest = before + now
        if progress is not None:
            progress(latest)

    rounds = 0
    while splits:
        rounds += 1
        with job.timed("work"), _describe(spark, _description(job, splits, rounds)):
            results += _round(job, splits, spark, None if progress is None else add)
        before = latest
        results.sort(key=lambda result: result.number)
        with job.timed("plan"):
            splits = job.follow(results)
    with job.timed("commit"):
        return job.commit(results)


def _description(job: Job[D, O], splits: list[Split], rounds: int) -> str:
    """What Spark's UI shows of a round."""
    size = size_text(sum(split.size for split in splits))
    return f"rawlog {job.name}: round {rounds}, {counted(len(splits), 'split')}, {size}"


@contextmanager
def _describe(spark: SparkSession, text: str) -> Iterator[None]:
    """Give the jobs and stages that run inside a description. A Connect session has none to give."""
    names = ("spark.job.description", "callSite.short")
    try:
        context: Any = spark.sparkContext
        before = {name: context.getLocalProperty(name) for name in names}
    except Exception:
        yield
        return
    for name in names:
        context.setLocalProperty(name, text)
    try:
        yield
    finally:
        with suppress(Exception):  # a JVM that has ended, which the jobs inside report
            for name, value in before.items():
                context.setLocalProperty(name, value)


def _round(
    job: Job[D, O], splits: list[Split], spark: SparkSession, progress: Callable[[Progress], None] | None
) -> list[D]:
    """Splits that do not depend on one another, as one write of Spark's."""
    with scratch() as folder:
        answers, reports = Path(folder) / "answers", Path(folder) / "reports"
        reports.mkdir(mode=0o700)
        try:
            with _watching(spark, splits, progress, reports):
                _write(job, splits, spark, answers, reports)
        except Exception as error:
            raise AccessError(f"the job failed on Spark: {reason(error)}") from error
        # Our own driver process wrote them a moment ago.
        results: list[_Answer] = pickle.loads(answers.read_bytes())  # noqa: S301
    for answer in sorted(results, key=lambda answered: answered.number):
        if isinstance(answer.result, BaseException):
            raise answer.result
    return [answer.result for answer in results]


def _write(job: Job[D, O], splits: list[Split], spark: SparkSession, answers: Path, reports: Path) -> None:
    import pyarrow as pa

    ship(spark)
    spark.dataSource.register(JobSink)
    # Tasks start in the order of their numbers: the largest first, so that none is left to run alone at the end.
    order = sorted(splits, key=lambda split: (-split.size, split.number))
    rows = pa.table(
        {
            "task": pa.array(range(len(order)), pa.int32()),
            "split": pa.array([pickle.dumps(split) for split in order], pa.binary()),
        }
    )
    frame = spark.createDataFrame(rows).repartitionById(len(order), "task")
    writer = frame.write.format(JobSink.name()).mode("append")
    writer = writer.option("job", base64.b64encode(pickle.dumps(job)).decode()).option("answers", str(answers))
    writer.option("reports", str(reports)).option("attempts", str(_attempts(spark))).save()


def _attempts(spark: SparkSession) -> int:
    """How often Spark tries a task before it gives up."""
    master = spark.conf.get("spark.master", "") or ""
    if master == "local" or (master.startswith("local[") and "," not in master):
        return 1
    return int(spark.conf.get("spark.task.maxFailures", "4") or 4)


@dataclass(frozen=True, slots=True)
class _Answer:
    """The result of a split: its SplitResult, or the error that it ended with."""

    number: int
    result: Any


@dataclass
class _Message(WriterCommitMessage):
    answers: list[_Answer] = field(default_factory=list)


class JobSink(DataSource):
    """The sink that a DataFrame of splits is written to: each task does its splits. For this module's use."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "rawlog_job"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """The writer, made on the driver."""
        options = self.options
        return _JobWriter(options["job"], options["answers"], options["reports"], int(options["attempts"]))


class _JobWriter(DataSourceArrowWriter):
    def __init__(self, job: str, answers: str, reports: str, attempts: int) -> None:
        self.job, self.answers, self.reports, self.attempts = job, answers, reports, attempts

    def write(self, iterator: Iterator[pa.RecordBatch]) -> _Message:
        from pyspark import TaskContext

        gc.freeze()  # the collection that Spark asks for after each task then costs nothing
        context = TaskContext.get()
        number, last = (0, True)
        if context is not None:
            number, last = context.taskAttemptId(), context.attemptNumber() + 1 >= self.attempts
        # Both were pickled by the driver for its own tasks.
        job: Job[Any, Any] = pickle.loads(base64.b64decode(self.job))  # noqa: S301
        message = _Message()
        for batch in iterator:
            for pickled in batch.column("split").to_pylist():
                split: Split = pickle.loads(pickled)  # noqa: S301
                message.answers.append(_Answer(split.number, _work(job, split, number, last, self.reports)))
        return message

    def commit(self, messages: list[_Message | None]) -> None:  # type: ignore[override]
        """Hand what the winning attempts did to the process that asked; the job's own commit is done there."""
        answers = [answer for message in messages if message is not None for answer in message.answers]
        Path(self.answers).write_bytes(pickle.dumps(answers))

    def abort(self, messages: list[_Message | None]) -> None:  # type: ignore[override]
        """Nothing counts before the job's own commit, so there is nothing to take back."""


def _work(job: Job[Any, Any], split: Split, attempt: int, last: bool, reports: str = "") -> Any:
    """Do a split. An error about the input is an answer: trying again would not change it, unless a path could not be reached."""
    with scratch() as folder:
        teller = _Teller(f"{reports}/{split.number}-{attempt}") if os.path.isdir(reports) else None
        stage = Stage(job.stage or folder, f"{split.number:05d}-{attempt}", teller)
        try:
            return job.work(split, stage)
        except RawlogError as error:
            if isinstance(error, AccessError) and not last:
                raise
            return error
        finally:
            if teller is not None:
                teller.write()


class _Teller:
    """Writes how far a task is where the driver looks for it, if they are on one machine."""

    def __init__(self, path: str) -> None:
        self.path, self.sums, self.last = path, [0, 0, 0], 0.0

    def __call__(self, *more: int) -> None:
        self.sums = [total + added for total, added in zip(self.sums, more, strict=True)]
        now = time.monotonic()
        if now - self.last >= INTERVAL:
            self.last = now
            self.write()

    def write(self) -> None:
        """Tell it."""
        with suppress(OSError), open(self.path, "wb") as file:
            file.write(TOLD.pack(*self.sums))


def _read_reports(folder: Path) -> tuple[int, int, int]:
    """What all tasks have reported so far; of several attempts at a split, what the furthest did."""
    furthest: dict[str, tuple[int, int, int]] = {}
    with suppress(OSError):
        for path in folder.iterdir():
            with suppress(OSError, struct.error):
                split, sums = path.name.partition("-")[0], TOLD.unpack(path.read_bytes())
                furthest[split] = max(furthest.get(split, (0, 0, 0)), sums)
    size, frames, rows = (sum(column) for column in zip((0, 0, 0), *furthest.values(), strict=True))
    return size, frames, rows


@contextmanager
def _watching(
    spark: SparkSession, splits: list[Split], progress: Callable[[Progress], None] | None, reports: Path
) -> Iterator[None]:
    """Tell `progress` now and then how far the tasks are.

    Those on other machines only say when they have ended; Spark does not say which, so their bytes are a fair share.
    """
    if progress is None:
        yield
        return
    total, count = sum(split.size for split in splits), len(splits)
    ended = threading.Event()

    def watch() -> None:
        tracker = _tracker(spark)
        while tracker is not None and not ended.wait(INTERVAL):
            try:
                done = _tasks_done(tracker, count)
            except Exception:  # a JVM that has ended, which the job itself reports
                return
            size, frames, rows = _read_reports(reports)
            progress(Progress(min(max(total * done // count, size), total), total, done, count, frames, rows))

    thread = threading.Thread(target=watch, name="rawlog-progress", daemon=True)
    progress(Progress(0, total, 0, count))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    progress(Progress(total, total, count, count, *_read_reports(reports)[1:]))


def _tracker(spark: SparkSession) -> Any:
    """Spark's status tracker; a Connect session has none."""
    try:
        return spark.sparkContext.statusTracker()
    except Exception:
        return None


def _tasks_done(tracker: Any, count: int) -> int:
    done = 0
    for stage in tracker.getActiveStageIds():
        info = tracker.getStageInfo(stage)
        if info is not None and info.numTasks == count:
            done = max(done, info.numCompletedTasks)
    return min(done, count)
