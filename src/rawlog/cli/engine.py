"""The options of verbs that run jobs: where they run, and with which settings; and their progress on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from rawlog.cli import logs
from rawlog.cli.progress import Bar

F = TypeVar("F", bound=Callable[..., Any])

ENGINES = ("local", "spark")
NAMES = ("engine", "master", "conf", "threads")


def spark(function: F) -> F:
    """Where Spark runs, and its settings."""
    function = click.option("--conf", multiple=True, metavar="K=V", help="A setting of Spark; may be given again.")(
        function
    )
    return click.option(
        "--master",
        metavar="URL",
        help="Where Spark runs: local[*], spark://…, sc://… [default: $SPARK_REMOTE, $SPARK_MASTER, else local[*]]",
    )(function)


def engine(function: F) -> F:
    """What runs the job: Spark by default, where it is installed."""
    return click.option(
        "--engine",
        type=click.Choice(ENGINES),
        help="local: in this process, without a JVM.  [default: $RAWLOG_ENGINE, else spark where it is installed]",
    )(_threads(spark(logs.option(function))))


def engine_by_size(function: F) -> F:
    """What runs the job: this process by default, and Spark if it is large."""
    return click.option(
        "--engine",
        type=click.Choice(ENGINES),
        help="local: in this process, without a JVM.  [default: $RAWLOG_ENGINE, else local; from 8 GiB on spark, where it is installed]",
    )(_threads(spark(logs.option(function))))


def _threads(function: F) -> F:
    return click.option(
        "--threads", type=click.IntRange(1), metavar="N", help="Threads of --engine local.  [default: one per core]"
    )(function)


@contextmanager
def running(given: dict[str, Any], what: str) -> Iterator[dict[str, Any]]:
    """Take the options of the engine out of `given`, as keywords; the progress of the job is drawn meanwhile."""
    found = chosen(given)
    with Bar(what) as bar:
        yield {**found, "progress": bar}


def chosen(given: dict[str, Any]) -> dict[str, Any]:
    """Take the options of the engine out of `given`, as keywords."""
    return {name: given.pop(name) for name in NAMES if name in given}


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show on a terminal what takes a moment, until it is done."""
    shown = sys.stderr.isatty() and not logs.is_json()
    if shown:
        sys.stderr.write(f"\r\x1b[K{what} …")
        sys.stderr.flush()
    try:
        yield
    finally:
        if shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
