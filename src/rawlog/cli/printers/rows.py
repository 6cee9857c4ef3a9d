"""Prints rows: those of `cat`, `head`, `tail`, `find` and of SQL; and their number."""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from rawlog.cli import output
from rawlog.cli.command import Call
from rawlog.cli.logs import say, waiting
from rawlog.cli.printers import Json, Printing
from rawlog.model.errors import DONE
from rawlog.model.verb import Option

if TYPE_CHECKING:
    from rawlog.verbs.query import Answer


def show(call: Call, **printing: Unpack[Printing]) -> int:
    """Print rows as the options say; the exit code."""
    _show(call, printing)
    return call.notes.code


def show_found(call: Call, **printing: Unpack[Printing]) -> int:
    """Print the rows that have a text, or a note that there are none."""
    if not _show(call, printing, "records"):
        say(f"{call.arguments['text']!r} was not found", "note")
    return call.notes.code


def show_last(
    call: Call,
    *,
    follow: Annotated[
        bool, Option("Continue as rows are added, in growing and in new files; Ctrl-C ends it.", "-f", "--follow")
    ] = False,
    limit: Annotated[
        int | None, Option("The same as -n; with -f: end after N rows in all.", least=0, metavar="N")
    ] = None,
    **printing: Unpack[Printing],
) -> int:
    """Print the last rows; with `follow` also those that are added, until Ctrl-C or the limit."""
    if follow:
        return _follow(call, limit, printing)
    if limit is not None:
        call.arguments["lines"] = min(call.arguments.get("lines", limit), limit)
    return show(call, **printing)


def show_count(call: Call, *, as_json: Json = False) -> int:
    """Print a number of rows."""
    call.arguments["decode"] = as_written(call.arguments.get("decode") or ())
    number = call.run()
    if as_json:
        output.json_line({"count": number})
    else:
        output.line(str(number))
    output.flush()
    return call.notes.code


def _show(call: Call, printing: Printing, table: str | None = None) -> int:
    """Print rows; their number."""
    printer = prepare(call, printing, table)
    rows, number = call.function(), 0
    with call.progress() as bar, printer:
        printer.begin(rows.schema)
        for batch in rows.batches():
            printer.write(batch)
            number += batch.num_rows
            call.track(bar, number)
    output.flush()
    return number


def prepare(call: Call, printing: Printing, table: str | None = None) -> output.Printer:
    """The printer that the output options ask for; the call reads the columns that it needs. OptionError if they contradict one another."""
    from rawlog import registry
    from rawlog.verbs.options import transforms_of

    options = call.arguments
    if options.get("decode"):
        options["decode"] = as_written(options["decode"])
    shown_table = registry.table_named(table or call.value("table"))
    for change in transforms_of({"decode": options.get("decode")}):
        shown_table = change.table(shown_table)
    printer = output.printer({**printing, "columns": options.get("columns")}, shown_table)
    if printer.columns is not None:
        options["columns"] = printer.columns
    return printer


def as_written(texts: Iterable[str]) -> tuple[str, ...]:
    """What `--decode` asks for, with JSON text where it does not ask for columns: for rows that are printed."""
    parts = [part.strip() for text in texts for part in text.split(",")]
    return tuple(
        f"{part}@written" if part.rpartition("=")[2] in ("auto", "avro", "protobuf") else part for part in parts
    )


def _follow(call: Call, limit: int | None, printing: Printing) -> int:
    """Print the last rows, then those that are added, until Ctrl-C or the limit."""
    from rawlog.verbs.cat import follow

    printer = prepare(call, printing)

    def wait(seconds: float) -> None:
        printer.flush()
        _pause(seconds)

    following: Any = follow(**{"lines": 10, **call.arguments, "limit": limit, "note": call.notes})
    following.pause = wait
    with printer, _ended_by_interrupt():
        printer.begin(following.schema)
        for batch in following.batches():
            printer.write(batch)
    output.flush()
    return DONE


def _pause(seconds: float) -> None:
    """Wait, unless the reader of our output ends."""
    try:
        import select

        watch = select.poll()
        watch.register(sys.stdout.fileno(), 0)
    except (ImportError, AttributeError, OSError, ValueError):
        time.sleep(seconds)
        return
    if watch.poll(seconds * 1000):
        raise BrokenPipeError


@contextlib.contextmanager
def _ended_by_interrupt() -> Iterator[None]:
    """Ctrl-C ends following."""
    with contextlib.suppress(KeyboardInterrupt):
        yield


def show_answer(call: Call, **printing: Unpack[Printing]) -> int:
    """Print the answer of a question; `-` is read from standard input."""
    if call.arguments["sql"] == "-":
        call.arguments["sql"] = sys.stdin.read()
    with waiting("starting"):
        answer = call.function()
    with answer:
        print_answer(printing, answer)
    output.flush()
    return call.notes.code


def print_answer(printing: Mapping[str, Any], answer: Answer, stopped: Callable[[], bool] = bool) -> int:
    """Print an answer as the options say until it ends or is `stopped`; the number of rows."""
    printer = output.printer(printing, answer.table)
    schema, count = answer.schema, 0
    if printer.columns is not None:
        import pyarrow as pa

        schema = pa.schema([schema.field(name) for name in printer.columns])
    batches = answer.batches()
    with waiting("asking"):
        first = next(batches, None)
    with printer:
        printer.begin(schema)
        for batch in itertools.chain(() if first is None else (first,), batches):
            if stopped():
                break
            count += batch.num_rows
            printer.write(batch if printer.columns is None else batch.select(list(printer.columns)))
    return count
