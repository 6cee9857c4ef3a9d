"""`rawlog diff`: which records, offsets, blobs and settings two places do not agree on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rawlog.cli import options, output
from rawlog.cli import options as engine
from rawlog.model.text import (
    counted,
    offset_range,
    printable,
    to_json,
)

if TYPE_CHECKING:
    from rawlog.model.difference import Difference, Tally

SIGNS = {
    "only_in_a": ("-", "red", "only in A"),
    "only_in_b": ("+", "green", "only in B"),
    "differs": ("~", "yellow", "differs"),
}
#: So many differences of one partition or store are shown to people; --json shows as many as --limit lists.
SHOWN = 20


@click.command(
    epilog=options.examples(
        "rawlog diff kafka-logs/ restored/",
        "rawlog diff a/orders-0 b/orders-0 --columns value --limit 5 --json",
        more="Exit codes: 0 the same; 1 differences or damage; 2 wrong usage; 3 cannot be read.",
    )
)
@click.argument("a", type=options.PATH)
@click.argument("b", type=options.PATH)
@click.option("--as", "as_format", metavar="FORMAT", help="Read every file as this format, whatever it looks like.")
@options.selection(limit=False)
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    metavar="N",
    help="Differences listed for each partition or store; all are counted.",
)
@options.html
@engine.engine_by_size
@options.json_flag
@click.pass_context
def command(
    ctx: click.Context, /, a: str, b: str, as_format: str | None, limit: int, as_json: bool, **given: Any
) -> None:
    """Show what A and B do not agree on.

    Records are compared by topic, partition and offset, whatever their batches and compression: what only one side has, as ranges
    of offsets, and which columns differ (--columns chooses). Blob stores are compared blob by blob, clusters by their settings. If
    each side is one partition, its name does not matter.
    """
    from rawlog.cli.output import Notes
    from rawlog.verbs import functions

    notes = Notes()
    with engine.running(given, "comparing") as running:
        page = given.pop("html")
        asked = options.selecting(given)
        found = functions.diff(a, b, format=as_format, limit=limit, html=page, note=notes, **asked, **running)
    if as_json:
        output.json_rows(item.as_json() for item in found)
        output.json_line(found.summary())
    else:
        _show(found.tally, bool(found.damage))
    output.flush()
    ctx.exit(notes.code or found.exit_code)


def _show(tally: Tally, has_damage: bool) -> None:
    shown: dict[tuple[str, str], int] = {}
    heading: tuple[str, str] | None = None
    for item in tally.items:
        key = ("record", item.name) if item.what == "record" else (item.what, "")
        shown[key] = shown.get(key, 0) + 1
        if shown[key] > SHOWN:
            continue
        if key != heading:
            heading = key
            output.line(output.style(printable(key[1] or item.what), bold=True))
        sign, colour, _ = SIGNS[item.change]
        output.line("  " + output.style(f"{sign} {printable(_line(item))}", fg=colour))
    for (what, name), count in shown.items():
        if count > SHOWN:
            output.line(f"  … and {count - SHOWN:,} more of {printable(name or what)}; --json lists them")
    if tally.unlisted:
        output.line(f"  … and {tally.unlisted:,} more that --limit left out")
    counts = [f"{tally.alike:,} alike"]
    for name, (_, _, words) in SIGNS.items():
        if getattr(tally, name):
            counts.append(f"{getattr(tally, name):,} {words if name != 'differs' else 'differ'}")
    verdict = (
        output.style("same", fg="green", bold=True) if tally.is_same else output.style("different", fg="red", bold=True)
    )
    output.line(f"{verdict}: {', '.join(counts)}{'; damage was passed over' if has_damage else ''}")


def _line(item: Difference) -> str:
    words = SIGNS[item.change][2]
    if item.start is None or item.stop is None:
        place = "" if item.what == "record" else item.name
    elif item.count == 1:
        place = f"offset {item.start:,}"
    else:
        place = f"{offset_range(item.start, item.stop)}, {counted(item.count, item.what)}"
    facts = []
    for name in item.columns:
        if item.a is None or item.b is None:
            facts.append(name)
        else:
            facts.append(f"{name} {_value(item.a.get(name))} / {_value(item.b.get(name))}")
    more = ": " + ", ".join(facts) if facts else ""
    if facts and item.count > 1 and item.a is not None:
        more += " (the first)"
    return f"{words:<9}  {place}{more}"


def _value(value: object) -> str:
    text = to_json(value)
    return text if len(text) <= 60 else text[:57] + "…"
