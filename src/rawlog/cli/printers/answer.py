"""Prints answers of SQL."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from rawlog.cli import output
from rawlog.cli.command import Call
from rawlog.cli.logs import waiting
from rawlog.cli.printers import Printing

if TYPE_CHECKING:
    from rawlog.verbs.query import Answer


def show(call: Call, **printing: Unpack[Printing]) -> int:
    """Print the answer of a question; `-` is read from standard input."""
    if call.given["sql"] == "-":
        call.given["sql"] = sys.stdin.read()
    with waiting("starting"):
        answer = call.function()
    with answer:
        print_answer(printing, answer)
    output.flush()
    return call.notes.code


def print_answer(given: Mapping[str, Any], answer: Answer, stopped: Callable[[], bool] = bool) -> int:
    """Print an answer as the options say until it ends or is `stopped`; the number of rows."""
    printer = output.printer(given, answer.table)
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
