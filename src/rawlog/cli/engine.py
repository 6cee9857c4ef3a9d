"""The options of verbs that run jobs: where, and with which settings."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rawlog.cli.progress import Progress
from rawlog.core.errors import AccessError, OptionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rawlog.jobs.job import Job
    from rawlog.jobs.job import Progress as Told
    from rawlog.reading.tree import Tree

F = TypeVar("F", bound=Callable[..., Any])
O = TypeVar("O")  # noqa: E741

ENGINES = ("local", "spark")
#: Seconds in which a path that is not there is noticed.
PATIENCE = 0.3
#: From so many bytes on, Spark is worth its start.
LARGE = 8 << 30
#: What spark-submit sets for the driver that it starts: Spark is there already.
SUBMITTED = "PYSPARK_GATEWAY_PORT"


def spark(function: F) -> F:
    """Where Spark runs, and its settings."""
    function = click.option("--conf", multiple=True, metavar="K=V", help="A setting of Spark's; may be given again.")(
        function
    )
    return click.option(
        "--master",
        metavar="URL",
        help="Where Spark runs: local[*], spark://…, sc://… [default: $SPARK_REMOTE, $SPARK_MASTER, else local[*]]",
    )(function)


def engine(function: F) -> F:
    """What runs the job: Spark by default."""
    return click.option(
        "--engine",
        type=click.Choice(ENGINES),
        help="local: in this process, without a JVM.  [default: $RAWLOG_ENGINE, else spark]",
    )(_threads(spark(function)))


def engine_by_size(function: F) -> F:
    """What runs the job: this process by default, and Spark if it is large."""
    return click.option(
        "--engine",
        type=click.Choice(ENGINES),
        help="local: in this process, without a JVM.  [default: $RAWLOG_ENGINE, else local below 8 GiB and spark above]",
    )(_threads(spark(function)))


def _threads(function: F) -> F:
    return click.option(
        "--threads", type=click.IntRange(1), metavar="N", help="Threads of --engine local.  [default: one per core]"
    )(function)


def settings(conf: Sequence[str]) -> dict[str, str]:
    """The settings of `--conf K=V`. OptionError for one without `=`."""
    pairs = [text.partition("=") for text in conf]
    for key, mark, _ in pairs:
        if not mark or not key.strip():
            raise OptionError(f"--conf {key!r}: K=V expected")
    return {key.strip(): value for key, _, value in pairs}


def choose(given: dict[str, Any], size: int | None = None) -> None:
    """Settle the engine of a job over `size` bytes where the options leave it open; `check` them.

    Without a size it is a job that is Spark's by default. Options that only one engine has choose it; a driver that spark-submit started
    has Spark already; then $RAWLOG_ENGINE is asked.
    """
    if given["engine"] is None:
        if given["master"] or given["conf"]:
            given["engine"] = "spark"
        elif given.get("threads"):
            given["engine"] = "local"
        elif SUBMITTED in os.environ:
            given["engine"] = "spark"
        else:
            given["engine"] = default() or ("spark" if size is None or size >= LARGE else "local")
    check(given)


def default() -> str | None:
    """The engine that $RAWLOG_ENGINE names. OptionError if there is no such engine."""
    named = os.environ.get("RAWLOG_ENGINE", "").strip()
    if named and named not in ENGINES:
        raise OptionError(f"$RAWLOG_ENGINE is {named!r}: {' or '.join(ENGINES)} expected")
    return named or None


def check(given: dict[str, Any]) -> None:
    """OptionError for options of the engine that was not chosen."""
    if given["engine"] not in (None, "spark") and (given["master"] or given["conf"]):
        raise OptionError(f"--master and --conf are Spark's: leave --engine {given['engine']} out")
    if given["engine"] == "spark" and given.get("threads"):
        raise OptionError("--threads goes with --engine local; Spark's is --master 'local[N]'")


def start(given: dict[str, Any], *, bare: bool = False, brief: bool = False) -> SparkSession:
    """A session as the options ask for it, with a word to whoever waits for it.

    A `bare` one has nothing of ours registered yet; a `brief` one is for little work.
    """
    from rawlog.spark import register
    from rawlog.spark.session import session

    conf = settings(given["conf"])
    with waiting("starting Spark"):
        try:
            made = session(given["master"], conf, brief=brief)
            return made if bare else register(made)
        except OSError as error:  # its JVM died on the way
            raise AccessError(f"Spark did not start: {error.strerror or error}") from None


def quick(looking: Future[Any]) -> None:
    """Wait a moment for a result, so that an error in it is told before a JVM is started for nothing."""
    with suppress(TimeoutError):
        looking.result(timeout=PATIENCE)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Say on a terminal what takes a moment; gone when it is there."""
    shown = sys.stderr.isatty()
    if shown:
        sys.stderr.write(f"\r\x1b[K{what} …")
        sys.stderr.flush()
    try:
        yield
    finally:
        if shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def run(given: dict[str, Any], what: str, job: Job[Any, O], tree: Tree, session: SparkSession | None = None) -> O:
    """Run a job with the engine that the options name, its progress drawn on a terminal.

    `session` is one that was started before; None: Spark is started now if it is to run the job.
    """
    if session is None and given["engine"] == "spark":
        session = start(given, bare=True)
    with Progress(what, 0) as bar:

        def told(now: Told) -> None:
            bar.total = now.total_size
            bar.at(now.size, now.rows)

        if session is None:
            from rawlog.engines import local

            return local.run(job, tree, threads=given["threads"], progress=told)
        from rawlog.engines import spark as on_spark

        return on_spark.run(job, tree, session, progress=told)
