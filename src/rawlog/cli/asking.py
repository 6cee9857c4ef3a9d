"""What `query` and `sql` share: their options, the engine that these ask for, and the printing of answers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rawlog.cli import engine, options, output

if TYPE_CHECKING:
    from rawlog.sql.engine import Answer, Engine
    from rawlog.sql.views import View

F = TypeVar("F", bound=Callable[..., Any])


def asking(function: F) -> F:
    """The options of a verb that asks in SQL."""
    function = click.option(
        "--errors",
        type=click.Choice(["raise", "skip"]),
        default="raise",
        show_default=True,
        help="At damage in a file: end with exit code 1, or continue after it.",
    )(function)
    function = click.option(
        "--engine",
        type=click.Choice(["spark", "duckdb", "local"]),
        help="duckdb (or local): in this process, without a JVM, in DuckDB's SQL; the extra `duckdb`."
        "  [default: $RAWLOG_ENGINE, else spark]",
    )(function)
    return options.output(engine.spark(function))


def open_engine(given: dict[str, Any], paths: Sequence[str], first: str | None = None) -> Engine:
    """The engine that the options ask for, with the views of the paths; what the `first` question wants is made ready meanwhile.

    OptionError for options that contradict one another, AccessError for a path that is not there.
    """
    from rawlog.sql.views import sources, views

    asked = sources(paths)

    def found() -> list[View]:
        return [view for source in asked for view in views(source, given["errors"])]

    engine.choose(given)
    if given["engine"] != "spark":
        from rawlog.sql.duck import DuckEngine

        return DuckEngine(found())
    engine.settings(given["conf"])
    from rawlog.spark.query import SparkEngine
    from rawlog.spark.session import is_embedded

    embedded = is_embedded(given["master"])
    started: list[Any] = []

    def look() -> SparkEngine:
        made = SparkEngine(lambda: started[0], found(), embedded=embedded)
        if first is not None:
            made.prepare(first)
        return made

    # Looking at the paths, and decoding what is small, takes as long as the JVM needs to start: both at once, but a bad path is told first.
    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        engine.quick(looking)
        brief = first is not None and _are_small(path for source in asked for path in source.paths)
        started.append(engine.start(given, bare=True, brief=brief))
        return looking.result()


def _are_small(paths: Iterable[str]) -> bool:
    """Whether all files at some paths together are little, without looking further than that."""
    from rawlog.io.storage import is_remote, listing
    from rawlog.spark.staging import SMALL

    size = 0
    for path in paths:
        if is_remote(path):
            return False
        for entry in listing(path):
            size += entry.size
            if size > SMALL:
                return False
    return True


def show(given: dict[str, Any], ask: Callable[[], Answer], stopped: Callable[[], bool] = bool) -> int:
    """Ask, and print the answer as the options say until it ends or is `stopped`; the number of rows."""
    with engine.waiting("asking"):
        answer = ask()
    printer = output.printer(given, answer.table)
    schema, count = answer.schema, 0
    if printer.columns is not None:
        import pyarrow as pa

        schema = pa.schema([schema.field(name) for name in printer.columns])
    batches = answer.batches()
    with engine.waiting("asking"):
        first = next(batches, None)
    with printer:
        printer.begin(schema)
        for batch in itertools.chain(() if first is None else (first,), batches):
            if stopped():
                break
            count += batch.num_rows
            printer.write(batch if printer.columns is None else batch.select(list(printer.columns)))
    return count
