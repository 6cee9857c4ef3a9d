"""The table of docs/wounds.md: kind of wound and class of verb -> exit code."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tests.wounds.verbs import CLASSES, Verb

PAGE = Path(__file__).parents[2] / "docs" / "wounds.md"
REPLICA = "replica"


@cache
def table() -> dict[str, dict[str, int | None]]:
    """The codes by kind and column, or verb where a cell names one; None where the page has a dash."""
    text = PAGE.read_text().partition("<!-- wounds -->")[2].partition("<!-- /wounds -->")[0]
    head, _, *lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.strip().splitlines()]
    codes: dict[str, dict[str, int | None]] = {}
    for kind, _, *cells in lines:
        row = codes[kind.strip("`")] = {}
        for name, cell in zip(head[2:], cells, strict=True):
            code, _, exceptions = cell.partition(" (")
            row[name] = _code(code)
            for exception in exceptions.strip(")").split(", ") if exceptions else ():
                verb, code = exception.split()
                row[verb.strip("`")] = _code(code)
    return codes


def _code(text: str) -> int | None:
    return None if text == "–" else int(text)


def code(kinds: list[str], verb: Verb) -> int | None:
    """The code of a verb for wounds of these kinds: the highest one; None if the page does not say."""
    assert verb.cls in CLASSES
    column, name = (REPLICA, "") if verb.name == "rescue-replica" else (verb.cls, verb.command)
    codes = [table()[kind].get(name, table()[kind][column]) for kind in kinds]
    known = [code for code in codes if code is not None]
    return max(known) if known and (len(known) == len(codes) or max(known) > 0) else None
