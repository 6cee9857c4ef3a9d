"""The page of `explain`: the bytes of a frame, coloured by field, next to a tree of the fields. Pointing at one lights up the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rawlog.model.explain import Node
from rawlog.model.format import File
from rawlog.model.text import printable, to_json
from rawlog.pages import frame
from rawlog.pages.frame import (
    Safe,
    details,
    joined,
    tag,
    text,
)

#: Bytes on a line; so many bytes of one block are drawn.
WIDTH, MOST = 16, 16 << 10
COLOURS = 6
#: Longer values fold away.
FOLDED = 120


@dataclass(slots=True)
class Block:
    """Bytes that follow one another: of the file, or of something decompressed. `of` has the number of its field for each byte."""

    title: str
    first: int
    data: bytearray = field(default_factory=bytearray)
    of: list[int] = field(default_factory=list)


@dataclass(slots=True)
class NumberedField:
    """A field with its number in the page: how deep it is, the number of the last field below it, and what it was decompressed from."""

    node: Node
    depth: int
    last: int
    inside: str | None


def explain_page(file: File, nodes: Sequence[Node]) -> str:
    """The header or frame of a file as a page."""
    title = f"{file.path} ({file.format})"
    return frame.document(title, frame.heading("explain", title), frame.main(bytes_and_fields(nodes)))


def bytes_and_fields(nodes: Sequence[Node]) -> Safe:
    """The bytes of a frame next to its fields, as a part of a page."""
    fields: list[NumberedField] = []
    for top in nodes:
        _number(top, 0, None, fields)
    if not fields:
        return frame.section("Bytes and fields", tag("p", "The file has no frame."))
    about = "Point at a field or at bytes, or move with the arrow keys: both light up. A checksum also shows which bytes it covers."
    tree = tag("div", _tree(fields), class_="tree")
    hexes = tag("div", *(_block(block) for block in _blocks(fields)), class_="hexes")
    return frame.section("Bytes and fields", tag("div", hexes, tree, class_="bytes_and_fields"), about=about)


def _number(node: Node, depth: int, inside: str | None, fields: list[NumberedField]) -> None:
    """Number a field and all below it, in order."""
    numbered = NumberedField(node, depth, 0, inside or node.inside)
    fields.append(numbered)
    for child in node.children:
        _number(child, depth + 1, numbered.inside, fields)
    numbered.last = len(fields) - 1


def _blocks(fields: Sequence[NumberedField]) -> list[Block]:
    """The bytes of all fields: those of the file first, then what was decompressed."""
    blocks: list[Block] = []
    for inside in dict.fromkeys([None, *(numbered.inside for numbered in fields)]):
        title = "In the file" if inside is None else f"Decompressed ({inside})"
        block: Block | None = None
        for at, numbered in enumerate(fields):
            node = numbered.node
            raw = bytes.fromhex(node.hex.replace(" ", "")) if node.hex else b""
            if not raw and inside is not None and isinstance(node.value, bytes):
                raw = node.value
            if (
                numbered.inside != inside
                or not raw
                or any(child.hex and child.inside is None for child in node.children)
            ):
                continue
            if block is None or block.first + len(block.data) != node.position:
                block = Block(title, node.position)
                blocks.append(block)
            block.data += raw
            block.of += [at] * len(raw)
    return blocks


def _block(block: Block) -> Safe:
    shown = min(len(block.data), MOST)
    lines = [_line(block, start, min(start + WIDTH, shown)) for start in range(0, shown, WIDTH)]
    more = f"{len(block.data) - shown:,} more bytes are not drawn" if len(block.data) > shown else ""
    label = f"{block.title}, from byte {block.first:,}"
    drawn = tag("pre", *lines, class_="hex", tabindex="0", role="group", aria_label=f"Bytes: {label}")
    return tag("div", tag("h3", label), drawn, tag("p", more, class_="about") if more else "")


def _line(block: Block, start: int, stop: int) -> Safe:
    """A line: position, hex digits, and the same as text."""
    digits: list[str] = []
    plain: list[str] = []
    at = start
    while at < stop:
        end = at
        while end < stop and block.of[end] == block.of[at]:
            end += 1
        raw, kind = bytes(block.data[at:end]), f'data-n="{block.of[at]}" class="c{block.of[at] % COLOURS}"'
        digits.append(f"<span {kind}>{raw.hex(' ')}</span>")
        plain.append(
            f"<span {kind}>{text(''.join(chr(byte) if 32 <= byte < 127 else '·' for byte in raw), None)}</span>"
        )
        at = end
    gap = "   " * (WIDTH - (stop - start))
    place = len(str(block.first + len(block.data)))
    return Safe(f'<span class="at">{block.first + start:>{place}}</span>  {" ".join(digits)}{gap}  {"".join(plain)}\n')


def _tree(fields: Sequence[NumberedField]) -> Safe:
    rows = joined(_row(at, numbered) for at, numbered in enumerate(fields))
    head = tag("tr", *(tag("th", name, scope="col") for name in ("field", "value", "meaning", "type", "byte", "size")))
    return tag("table", tag("caption", "Fields", class_="sr"), tag("thead", head), tag("tbody", rows), class_="fields")


def _row(at: int, numbered: NumberedField) -> Safe:
    node, value, depth = numbered.node, numbered.node.value, numbered.depth
    shown = "" if value is None else printable(value) if isinstance(value, (bytes, str)) else printable(to_json(value))
    covers = None if node.covers is None else f"{node.covers[0]}-{node.covers[1]}"
    wrong = node.meaning.startswith("WRONG")
    place = node.position if numbered.inside is None else None
    cells = (
        tag(
            "td",
            tag(
                "span",
                node.name,
                class_=f"name d{min(depth, 9)} c{at % COLOURS}" if not node.children else f"name d{min(depth, 9)}",
            ),
        ),
        tag("td", _fold(shown), class_="v"),
        tag("td", text(node.meaning, 400), class_="is-bad" if wrong else "m"),
        tag("td", node.type, class_="m"),
        tag("td", f"{node.position:,}", class_="n"),
        tag("td", f"{node.size:,}", class_="n"),
    )
    top = "top" if node.children else None
    return tag(
        "tr",
        *cells,
        data_n=at,
        data_last=numbered.last,
        data_at=place,
        data_covers=covers,
        tabindex="0" if at == 0 else "-1",
        class_=top,
    )


def _fold(shown: str) -> Safe:
    """Long text folds away, whole."""
    if len(shown) <= FOLDED:
        return text(shown, None)
    return details(text(shown[: FOLDED - 24] + "…", None), text(shown, None))
