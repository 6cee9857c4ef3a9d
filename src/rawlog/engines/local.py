"""The local engine: a job's splits in threads of this process. Kernels, codecs and Arrow let go of the interpreter's lock."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import TypeVar

from rawlog.io.output import scratch
from rawlog.jobs.job import Done, Job, Progress, Split, Stage
from rawlog.reading.tree import Tree

D = TypeVar("D", bound=Done)
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
    done: list[D] = []
    with scratch() as folder:
        place = job.stage or folder
        while splits:
            count = max(1, min(threads or cores(), len(splits)))
            meter.expect(splits)
            with job.timed("work"):
                some = _threaded(job, splits, place, meter, count) if count > 1 else _in_turn(job, splits, place, meter)
            done += some
            done.sort(key=lambda one: one.number)
            with job.timed("plan"):
                splits = job.follow(done)
        meter.finish()
        with job.timed("commit"):
            return job.commit(done)


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _work(job: Job[D, O], split: Split, place: str, meter: _Meter) -> D:
    done = job.work(split, Stage(place, f"{split.number:05d}-local{next(_attempts)}", meter.tell))
    meter.split_done()
    return done


def _in_turn(job: Job[D, O], splits: list[Split], place: str, meter: _Meter) -> list[D]:
    return [_work(job, split, place, meter) for split in splits]


def _threaded(job: Job[D, O], splits: list[Split], place: str, meter: _Meter, count: int) -> list[D]:
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
