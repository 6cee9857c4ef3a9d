"""Node: one field of a frame as `explain` shows it, with its bytes, its value and what that means."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rawlog.model.layout import Layout
from rawlog.model.text import plain_time

if TYPE_CHECKING:
    from rawlog.model.frames import Bytes


@dataclass(slots=True)
class Node:
    """A run of bytes with a name. A node with children covers them; a leaf holds a value.

    `position` is that in the file, or, below a node whose content is compressed, that in the decompressed bytes (`inside`).
    """

    position: int
    size: int
    name: str
    type: str = ""
    value: Any = None
    meaning: str = ""
    hex: str = ""
    children: list[Node] = field(default_factory=list)
    inside: str | None = None
    #: What is not to be shown unless asked for; `value` and `hex` stand in for it.
    secret: bytes | None = None
    #: Of a checksum: first and last position (half-open) of the bytes that it covers, where `position` counts too.
    covers: tuple[int, int] | None = None
    #: Of one record of several in a frame: its offset.
    offset: int | None = None

    def reveal(self) -> None:
        """Show what is hidden here and below."""
        for _, node in self.walk():
            if node.secret is not None:
                node.value, node.hex, node.secret = node.secret, node.secret.hex(" "), None

    def walk(self, depth: int = 0) -> Iterator[tuple[int, Node]]:
        """This node and all below it, each with its depth."""
        yield depth, self
        for child in self.children:
            yield from child.walk(depth + 1)

    def as_dict(self) -> dict[str, Any]:
        row: dict[str, Any] = {"position": self.position, "size": self.size, "name": self.name}
        for name in ("type", "value", "meaning", "hex", "inside"):
            value = getattr(self, name)
            if value not in (None, ""):
                row[name] = value.hex() if isinstance(value, bytes) else value
        if self.children:
            row["children"] = [child.as_dict() for child in self.children]
        return row


def leaf(data: Bytes, start: int, size: int, base: int, name: str, type: str, value: Any, meaning: str = "") -> Node:
    """A node over `data[start:start + size]`, which is `base` bytes further in the file."""
    return Node(base + start, size, name, type, value, meaning, bytes(data[start : start + size]).hex(" "))


def layout_nodes(
    layout: Layout,
    data: Bytes,
    start: int,
    base: int,
    meanings: Mapping[str, Callable[[int], str]] | None = None,
    upto: int | None = None,
) -> list[Node]:
    """The fields of a layout at `data[start]`, as far as they are whole before `upto`."""
    meanings = meanings or {}
    end = len(data) if upto is None else upto
    nodes = []
    for item in layout.fields:
        at = start + layout.at(item.name)
        if at + item.size > end:
            break
        raw = bytes(data[at : at + item.size])
        value: Any = raw
        if not item.type.startswith("S"):
            signed = item.type.lstrip("<>|")[0] == "i"
            value = int.from_bytes(raw, "little" if item.type.startswith("<") else "big", signed=signed)
        meaning = meanings[item.name](value) if item.name in meanings else item.note
        nodes.append(leaf(data, at, item.size, base, item.name, _type_name(item.type), value, meaning))
    return nodes


def _type_name(type: str) -> str:
    if type.startswith("S"):
        return f"bytes[{type[1:]}]"
    body = type.lstrip("<>|")
    return f"{'u' if body[0] == 'u' else ''}int{int(body[1:]) * 8}"


def milliseconds(value: int) -> str:
    """A time in milliseconds as a person reads it."""
    return plain_time(value * 1000)


def json_node(value: Any, position: int, size: int, name: str) -> Node:
    """A JSON text of so many bytes, with its values by their path."""
    children = [Node(position, size, path, type(child).__name__, child) for path, child in _flat(value, "")]
    return Node(position, size, name, "JSON", children=children)


def _flat(value: Any, path: str) -> list[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        return [pair for key, inner in value.items() for pair in _flat(inner, f"{path}.{key}" if path else str(key))]
    return [(path, value)]


def text_nodes(data: bytes) -> list[Node] | None:
    """A file that is text, as JSON or line by line; None for one that is not."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    if not all(character.isprintable() or character in "\r\n\t" for character in text):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        return [json_node(value, 0, len(data), "settings")]
    nodes, position = [], 0
    for line in data.splitlines(keepends=True):
        nodes.append(Node(position, len(line), "line", "text", line.decode().rstrip("\r\n"), "", line.hex(" ")))
        position += len(line)
    return nodes
