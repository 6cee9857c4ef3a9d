"""Which engine runs a job: options, the environment, the size of the input; and running it with threads here."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from rawlog.io.output import scratch
from rawlog.model.errors import AccessError, OptionError
from rawlog.model.job import Job, Progress, Split, SplitResult, Stage
from rawlog.reading.tree import Tree

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# ----------------------------------------------------------------------------------------------------------------------
# Which engine runs a job: options, the environment, the size of the input; and running it there.


R = TypeVar("R")

ENGINES = ("local", "spark")
#: From so many bytes on, Spark is worth its start.
LARGE = 8 << 30
#: What spark-submit sets for the driver that it starts: Spark is there already.
SUBMITTED = "PYSPARK_GATEWAY_PORT"


@dataclass(frozen=True, slots=True)
class JobEngine:
    """An engine with its settings: `local` runs jobs in threads of this process, `spark` in tasks."""

    name: str
    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    threads: int | None = None

    @property
    def at_once(self) -> int:
        """How many splits run at once on one machine."""
        return self.threads or cores()

    def run(
        self,
        job: Job[Any, R],
        tree: Tree,
        progress: Callable[[Progress], None] | None = None,
        session: SparkSession | None = None,
    ) -> R:
        """Run a job and return its result. `session` is a Spark session that was started before."""
        if self.name == "spark" and session is None:
            session = self.start(progress)
        if session is None:
            return run(job, tree, threads=self.threads, progress=progress)
        from rawlog.engines.spark import engine as spark

        return spark.run(job, tree, session, progress=progress)

    def start(self, progress: Callable[[Progress], None] | None = None, *, brief: bool = False) -> SparkSession:
        """A Spark session as the settings ask for it; a `brief` one is for little work. AccessError if it does not start."""
        from rawlog.engines.spark.session import session

        if progress is not None:
            progress(Progress(phase="starting Spark"))
        try:
            return session(self.master, dict(self.conf), brief=brief)
        except AccessError:
            raise
        except OSError as error:  # its JVM ended while it started
            raise AccessError(f"Spark did not start: {error.strerror or error}") from None


def choose(
    size: int | None = None,
    *,
    engine: str | None = None,
    master: str | None = None,
    conf: Mapping[str, str] | Iterable[str] | None = None,
    threads: int | None = None,
) -> JobEngine:
    """The engine for a job over `size` bytes. Without a size it is a job that Spark runs by default, where it is installed.

    Options that only one engine has choose it; a driver that spark-submit started has Spark already; then $RAWLOG_ENGINE decides, then
    the size and what is installed. OptionError for options that contradict one another.
    """
    spark_settings = settings(conf or {})
    if engine is None:
        if master or spark_settings:
            engine = "spark"
        elif threads:
            engine = "local"
        elif SUBMITTED in os.environ:
            engine = "spark"
        else:
            is_for_spark = (size is None or size >= LARGE) and has_spark()
            engine = default() or ("spark" if is_for_spark else "local")
    if engine != "spark" and (master or spark_settings):
        raise OptionError(f"--master and --conf are Spark's: leave --engine {engine} out")
    if engine == "spark" and threads:
        raise OptionError("--threads goes with --engine local; Spark's is --master 'local[N]'")
    return JobEngine(engine, master, spark_settings, threads)


def has_spark() -> bool:
    """Whether Spark is installed; it is not started."""
    return find_spec("pyspark") is not None


def default() -> str | None:
    """The engine that $RAWLOG_ENGINE names. OptionError if there is no such engine."""
    named = os.environ.get("RAWLOG_ENGINE", "").strip()
    if named and named not in ENGINES:
        raise OptionError(f"$RAWLOG_ENGINE is {named!r}: {' or '.join(ENGINES)} expected")
    return named or None


def settings(conf: Mapping[str, str] | Iterable[str]) -> dict[str, str]:
    """Settings of Spark from a dict, or from texts `K=V`. OptionError for one without `=`."""
    if isinstance(conf, Mapping):
        return {str(key): str(value) for key, value in conf.items()}
    pairs = [text.partition("=") for text in conf]
    for key, mark, _ in pairs:
        if not mark or not key.strip():
            raise OptionError(f"--conf {key!r}: K=V expected")
    return {key.strip(): value for key, _, value in pairs}


# ----------------------------------------------------------------------------------------------------------------------
# The local engine: a job's splits in threads of this process. Kernels, codecs and Arrow let go of the interpreter's lock.


D = TypeVar("D", bound=SplitResult)
O = TypeVar("O")  # noqa: E741

#: Seconds between two calls of `progress`.
INTERVAL = 0.1
_attempts = itertools.count()


def run(
    job: Job[D, O], tree: Tree, *, threads: int | None = None, progress: Callable[[Progress], None] | None = None
) -> O:
    """Run a job to its end and return the result. Raises what the first failing split raised.

    `threads` is one per core unless said otherwise; `progress` is called now and then, from any thread, with how far the job is.
    """
    with job.timed("plan"):
        splits = job.plan(tree)
    meter = _Meter(progress)
    results: list[D] = []
    with scratch() as folder:
        place = job.stage or folder
        while splits:
            count = max(1, min(threads or cores(), len(splits)))
            meter.expect(splits)
            with job.timed("work"):
                round_results = (
                    _in_threads(job, splits, place, meter, count) if count > 1 else _in_turn(job, splits, place, meter)
                )
            results += round_results
            results.sort(key=lambda result: result.number)
            with job.timed("plan"):
                splits = job.follow(results)
        meter.finish()
        with job.timed("commit"):
            return job.commit(results)


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _work(job: Job[D, O], split: Split, place: str, meter: _Meter) -> D:
    done = job.work(split, Stage(place, f"{split.number:05d}-local{next(_attempts)}", meter.tell))
    meter.split_done()
    return done


def _in_turn(job: Job[D, O], splits: list[Split], place: str, meter: _Meter) -> list[D]:
    return [_work(job, split, place, meter) for split in splits]


def _in_threads(job: Job[D, O], splits: list[Split], place: str, meter: _Meter, count: int) -> list[D]:
    """Large splits first, so that none of them is left to run alone at the end."""
    with ThreadPoolExecutor(count, thread_name_prefix="rawlog") as pool:
        order = sorted(splits, key=lambda split: (-split.size, split.number))
        futures: list[Future[D]] = [pool.submit(_work, job, split, place, meter) for split in order]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            for future in futures:
                future.cancel()
    failed = [(split.number, future) for split, future in zip(order, futures, strict=True) if not future.cancelled()]
    for _, future in sorted(failed, key=lambda pair: pair[0]):
        if (error := future.exception()) is not None:
            raise error
    return [future.result() for future in futures]


class _Meter:
    """Adds up what the threads tell and passes it on at most a few times a second."""

    def __init__(self, progress: Callable[[Progress], None] | None) -> None:
        self.total = self.count = 0
        self.progress = progress
        self.size = self.frames = self.rows = self.splits = 0
        self.last = 0.0
        self.lock = threading.Lock()

    def expect(self, splits: list[Split]) -> None:
        self.total += sum(split.size for split in splits)
        self.count += len(splits)

    def tell(self, size: int, frames: int, rows: int) -> None:
        if self.progress is None:
            return
        with self.lock:
            self.size += size
            self.frames += frames
            self.rows += rows
            now = time.monotonic()
            if now - self.last >= INTERVAL:
                self.last = now
                self.progress(self._now())

    def split_done(self) -> None:
        with self.lock:
            self.splits += 1

    def finish(self) -> None:
        if self.progress is not None:
            self.size = self.total
            self.progress(self._now())

    def _now(self) -> Progress:
        return Progress(min(self.size, self.total), self.total, self.splits, self.count, self.frames, self.rows)
