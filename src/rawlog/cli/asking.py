"""What `query` and `sql` share: their options, and the printing of answers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rawlog.cli import options, output
from rawlog.cli import options as engine
from rawlog.cli.output import Notes

if TYPE_CHECKING:
    from rawlog.verbs.ask import Answer

F = TypeVar("F", bound=Callable[..., Any])


def asking(function: F) -> F:
    """The options of a verb that takes SQL."""
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
        "  [default: $RAWLOG_ENGINE, else spark where it is installed]",
    )(function)
    function = click.option(
        "--catalog",
        metavar="NAME",
        help="The lake in a catalog of PyIceberg's configuration, or in a file NAME.db; it needs no PATH.",
    )(function)
    return options.output(engine.spark(options.replicas(options.decode(function))))


@contextmanager
def engine_options(given: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Take the options that choose the engine out of `given`, as keywords; a terminal shows what takes a moment."""
    found = {name: given.pop(name) for name in ("catalog", "engine", "master", "conf", "errors", "replicas", "schemas")}
    found["decode"] = given.pop("decode") or None
    found["note"] = Notes()
    with engine.waiting("starting"):
        yield found


def show(given: dict[str, Any], answer: Answer, stopped: Callable[[], bool] = bool) -> int:
    """Print an answer as the options say until it ends or is `stopped`; the number of rows."""
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
