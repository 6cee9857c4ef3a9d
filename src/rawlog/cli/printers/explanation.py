"""Prints an explanation: the bytes of a frame, field by field."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rawlog.cli import output
from rawlog.cli.command import Call
from rawlog.cli.grid import cut, pad
from rawlog.cli.printers import Json
from rawlog.model.text import printable, to_json, width_of

if TYPE_CHECKING:
    from rawlog.model.explain import Node

#: So many bytes of a field are shown to people; --json and --html show all.
HEX_BYTES = 16
#: So many cells of a value are shown where the output is no terminal, and on the widest one.
TEXT_CELLS, MOST_CELLS = 60, 400
HEX, NAME, TYPE, VALUE, MEANING = range(1, 6)
#: The columns that are shortened on a narrow terminal, and the fewest cells of each, one step after the other.
STEPS = (
    *((VALUE, 60), (HEX, 23), (VALUE, 24), (MEANING, 24), (HEX, 12), (VALUE, 13), (TYPE, 0)),
    *((NAME, 18), (HEX, 9), (MEANING, 12)),
)
#: What a still narrower terminal does without.
LEFT_OUT = (HEX,)


def show(call: Call, *, as_json: Json = False) -> int:
    """Print the fields of a frame."""
    explanation = call.run()
    if as_json:
        output.json_rows(explanation.as_json())
    else:
        _show(_ordered(explanation.nodes, call.value("offset")))
    output.flush()
    return call.notes.code


def _ordered(nodes: Sequence[Node], offset: int | None) -> list[Node]:
    """The nodes, after the record with the offset that was asked for: its frame may have thousands before it."""
    if offset is None:
        return list(nodes)
    return [*(node for top in nodes for _, node in top.walk() if node.offset == offset), *nodes]


def _show(nodes: Sequence[Node]) -> None:
    lines: list[tuple[str, str, str, str, str, str]] = []
    for top in nodes:
        for depth, node in top.walk():
            lines.append(
                (
                    f"{node.position:,}",
                    _hex(node),
                    "  " * depth + printable(node.name),
                    node.type,
                    cut(value_text(node.value), MOST_CELLS if output.is_terminal() else TEXT_CELLS),
                    printable(node.meaning),
                )
            )
    if not lines:
        output.line("no frame")
        return
    heads = ("position", "hex", "name", "type", "value", "meaning")
    widths = [max(width_of(row[column]) for row in (heads, *lines)) for column in range(len(heads))]
    if output.is_terminal():
        _fit(widths, shutil.get_terminal_size().columns)
    output.line(output.style(_line(heads, widths), bold=True))
    for line in lines:
        output.line(_line(line, widths))


def _fit(widths: list[int], columns: int) -> None:
    """Shorten columns until a line fits; --json and --html have everything."""

    def excess() -> int:
        shown = [width for width in widths if width]
        return max(0, sum(shown) + 2 * (len(shown) - 1) - columns)

    for column, least in STEPS:
        if excess():
            widths[column] = 0 if not least else max(min(widths[column], least), widths[column] - excess())
    for column in LEFT_OUT:
        if excess():
            widths[column] = 0
    widths[-1] = max(1, widths[-1] - excess())


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    texts = [
        pad(cut(text, width), width, right=index == 0)
        for index, (text, width) in enumerate(zip(row, widths, strict=True))
        if width
    ]
    return "  ".join(texts).rstrip()


def _hex(node: Node) -> str:
    if node.children and not node.hex:
        return f"({node.size:,} bytes)" + (f" {node.inside}" if node.inside else "")
    pairs = node.hex.split()
    if len(pairs) <= HEX_BYTES:
        return node.hex
    return " ".join(pairs[: HEX_BYTES - 1]) + f" … ({len(pairs):,} bytes)"


def value_text(value: Any) -> str:
    """A node's value for people."""
    if value is None:
        return ""
    if isinstance(value, (bytes, str)):
        return f'"{printable(value)}"'
    return printable(value if isinstance(value, str) else to_json(value))
