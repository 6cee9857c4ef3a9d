"""`rawlog cat`: the rows of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rawlog.cli import options, output

if TYPE_CHECKING:
    from collections.abc import Callable

    from rawlog.reading.rows import Rows

TEMPLATE_HELP = r"""\b
--format prints each row by a pattern, as rpk's does:
  \t \n \r \\ \xNN             tab, line end, carriage return, backslash, any byte
  %t %k %v  %T %K %V           topic, key, value; their lengths (kcat's %s %S: value)
  %p %o %d %i                  partition, offset, timestamp in ms, number of the row
  %h{%k=%v } %H                headers, each by a pattern of its own; their number
  %e %x %y %a{compression}     leader epoch, producer id and epoch, attributes
                               (with --table kafka.records)
  %% %{ %}                     the characters themselves
  text:     {hex} {base64} {base64raw} {unpack[>iq$]}
  numbers:  {ascii} {hex} {hex64}…{hex4} {big64}…{big8} {little64}… {byte} {bool}
  time:     {strftime[%F %T]} {go[2006-01-02T15:04:05Z07:00]}
  A null text prints nothing; a null number is -1.

""".replace(r"\b", "\b", 1)  # click's mark for "leave these lines as they are"

EXIT_HELP = """
Files that cannot be opened, and paths without a file of a known format, are reported on stderr and the rest is read; the exit code is 3
then. Damage ends the run with exit code 1 and its place, unless --errors says otherwise; rows lost by stop or skip give exit code 1 as
well. An unfinished last frame is normal in a live log and only noted, unless another file follows it. Exit code 1 is also for rows that
are not at their place, whose offsets do not rise or belong into another file, and with --decode for keys and values that were not decoded.
"""


def run(given: dict[str, Any], read: Callable[..., Rows], missing: str | None = None, **more: Any) -> int:
    """Print the rows that a function of `rawlog` reads with the given options; the exit code. `missing` is noted if there are none."""
    from rawlog.cli.logs import say
    from rawlog.cli.output import Notes

    printer = prepare(given)
    notes = Notes()
    rows = read(note=notes, **reading(given, printer), **more)
    count = 0
    with printer:
        printer.begin(rows.schema)
        for batch in rows.batches():
            printer.write(batch)
            count += batch.num_rows
    output.flush()
    if missing is not None and not count:
        say(missing, "note")
    return notes.code


def prepare(given: dict[str, Any]) -> output.Printer:
    """The printer that the output options ask for. OptionError if they contradict one another."""
    from rawlog import registry
    from rawlog.verbs.options import transforms_of

    given["decode"] = options.as_written(given.get("decode") or ())
    table = registry.table_named(given["table"])
    for one in transforms_of({"decode": given["decode"]}):
        table = one.table(table)
    return output.printer(given, table)


def reading(given: dict[str, Any], printer: output.Printer) -> dict[str, Any]:
    """The keywords for a function that reads rows."""
    found = {"table": given["table"], "format": given["as_format"], **options.selecting(given)}
    if printer.columns is not None:
        found["columns"] = printer.columns
    return found


@click.command(
    epilog=options.examples(
        "rawlog cat kafka-logs/ --topic 'orders*' --since -2h",
        "rawlog cat kafka-logs/orders-0 -o -10 --format '%p@%o %k %v\\n'",
        "rawlog cat kafka-logs/ --topic orders --decode value=auto --where \"value.status = 'PAID'\" --json",
        "rawlog cat s3://backup/store --table rocketmq.messages --where \"tags = 'paid'\" --json",
        more=TEMPLATE_HELP + EXIT_HELP,
    )
)
@options.paths
@options.table
@options.selection()
@options.decode
@options.output
@click.pass_context
def command(ctx: click.Context, /, paths: tuple[str, ...], **given: Any) -> None:
    """Print the rows of a table of PATHs: files, directories, globs or URLs."""
    from rawlog.verbs import functions

    ctx.exit(run(given, functions.cat, paths=paths))
