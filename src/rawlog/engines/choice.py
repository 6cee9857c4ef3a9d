"""Which engine runs a job: options, the environment, the size of the input; and running it there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from rawlog.core.errors import AccessError, OptionError
from rawlog.jobs.job import Job, Progress
from rawlog.reading.tree import Tree

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

R = TypeVar("R")

ENGINES = ("local", "spark")
#: From so many bytes on, Spark is worth its start.
LARGE = 8 << 30
#: What spark-submit sets for the driver that it starts: Spark is there already.
SUBMITTED = "PYSPARK_GATEWAY_PORT"


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine with its settings: `local` runs jobs in threads of this process, `spark` in tasks."""

    name: str
    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    threads: int | None = None

    @property
    def at_once(self) -> int:
        """How many splits run at once on one machine."""
        from rawlog.engines.local import cores

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
            from rawlog.engines import local

            return local.run(job, tree, threads=self.threads, progress=progress)
        from rawlog.engines import spark

        return spark.run(job, tree, session, progress=progress)

    def start(self, progress: Callable[[Progress], None] | None = None, *, brief: bool = False) -> SparkSession:
        """A Spark session as the settings ask for it; a `brief` one is for little work. AccessError if it does not start."""
        from rawlog.spark.session import session

        if progress is not None:
            progress(Progress(phase="starting Spark"))
        try:
            return session(self.master, dict(self.conf), brief=brief)
        except OSError as error:  # its JVM ended while it started
            raise AccessError(f"Spark did not start: {error.strerror or error}") from None


def choose(
    size: int | None = None,
    *,
    engine: str | None = None,
    master: str | None = None,
    conf: Mapping[str, str] | Iterable[str] | None = None,
    threads: int | None = None,
) -> Engine:
    """The engine for a job over `size` bytes. Without a size it is a job that Spark runs by default, where it is installed.

    Options that only one engine has choose it; a driver that spark-submit started has Spark already; then $RAWLOG_ENGINE decides, then
    the size and what is installed. OptionError for options that contradict one another.
    """
    given = settings(conf or {})
    if engine is None:
        if master or given:
            engine = "spark"
        elif threads:
            engine = "local"
        elif SUBMITTED in os.environ:
            engine = "spark"
        else:
            is_for_spark = (size is None or size >= LARGE) and has_spark()
            engine = default() or ("spark" if is_for_spark else "local")
    if engine != "spark" and (master or given):
        raise OptionError(f"--master and --conf are Spark's: leave --engine {engine} out")
    if engine == "spark" and threads:
        raise OptionError("--threads goes with --engine local; Spark's is --master 'local[N]'")
    return Engine(engine, master, given, threads)


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
