"""Prints differences: what two places do not agree on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rawlog.cli import output
from rawlog.cli.command import Call
from rawlog.cli.printers import Json
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


def show(call: Call, *, as_json: Json = False) -> int:
    """Print what two places do not agree on."""
    differences = call.run()
    if as_json:
        output.json_rows(item.as_json() for item in differences)
        output.json_line(differences.summary())
    else:
        _show(differences.tally, bool(differences.damage))
    output.flush()
    return int(call.notes.code or differences.exit_code)


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
