"""What `explain` shows of a message: every field in its place, lengths and counts next to what they count, tagged fields by name."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from rawlog.core.errors import CorruptError, DataError, TruncatedError
from rawlog.core.explain import Node, leaf, milliseconds
from rawlog.core.frames import Bytes
from rawlog.formats.kafka.codec import FIXED, Codec, Message, read_text, read_uvarint
from rawlog.formats.kafka.meanings import DIRECTORY_WORDS, MASK, is_secret, meaning
from rawlog.formats.kafka.schema import SchemaField, present
from rawlog.formats.kafka.showing import uuid_text

MOST_ELEMENTS = 1000


def message_nodes(codec: Codec, data: Bytes, start: int, stop: int, base: int) -> list[Node]:
    """The fields of a message that fills `data[start:stop]`, which is `base` bytes further in the file.

    DataError if it cannot be followed to its end.
    """
    walk = _Walk(codec, bytes(data[start:stop]), data, start, base)
    try:
        nodes, end = walk.struct(codec.schema.fields, 0)
    except (struct.error, IndexError):
        raise TruncatedError("the bytes end inside it") from None
    if end != stop - start:
        raise CorruptError(f"{stop - start - end} bytes follow it")
    return nodes


def hides(node: Node) -> bool:
    """Whether something below a node is not to be shown."""
    return any(one.secret is not None for _, one in node.walk())


class _Walk:
    """Positions are those in the message, and moved only when a node is made."""

    def __init__(self, codec: Codec, message: bytes, data: Bytes, start: int, base: int) -> None:
        self.codec, self.message = codec, message
        self.data, self.start, self.base = data, start, base
        self.name, self.version, self.flexible = codec.schema.name, codec.version, codec.flexible

    def leaf(self, at: int, stop: int, name: str, type: str, value: Any, meaning: str = "") -> Node:
        return leaf(self.data, self.start + at, stop - at, self.base, name, type, value, meaning)

    def node(self, at: int, stop: int, name: str, type: str, children: list[Node], meaning: str = "") -> Node:
        return Node(self.base + self.start + at, stop - at, name, type, None, meaning, children=children)

    def struct(self, fields: Sequence[SchemaField], at: int) -> tuple[list[Node], int]:
        plain, tagged = present(fields, self.version, self.flexible)
        nodes: list[Node] = []
        seen: Message = {}
        for one in plain:
            made, at = self.field(one, at, seen)
            nodes += made
        if self.flexible:
            made, at = self.tags(tagged, at, seen)
            nodes += made
        return nodes, at

    def tags(self, tagged: dict[int, SchemaField], at: int, seen: Message) -> tuple[list[Node], int]:
        count, stop = read_uvarint(self.message, at)
        nodes = [self.leaf(at, stop, "tagged field count", "uvarint", count)]
        at = stop
        for _ in range(count):
            tag, behind_tag = read_uvarint(self.message, at)
            size, inside = read_uvarint(self.message, behind_tag)
            stop = inside + size
            if stop > len(self.message):
                raise TruncatedError(f"tag {tag}: {size} bytes, {len(self.message) - inside} are left")
            children = [
                self.leaf(at, behind_tag, "tag", "uvarint", tag, tagged[tag].name if tag in tagged else "unknown"),
                self.leaf(behind_tag, inside, "size", "uvarint", size),
            ]
            if tag in tagged:
                made, end = self.field(tagged[tag], inside, seen, in_tag=True)
                if end != stop:
                    raise CorruptError(f"tag {tag}: ends at {end}, its size says {stop}")
                children += made
            elif size:
                children.append(self.leaf(inside, stop, "content", "bytes", self.message[inside:stop], "kept as it is"))
            name = f"tagged field {tagged[tag].name}" if tag in tagged else f"unknown tagged field {tag}"
            nodes.append(self.node(at, stop, name, "tagged", children))
            at = stop
        return nodes, at

    def field(self, one: SchemaField, at: int, seen: Message, *, in_tag: bool = False) -> tuple[list[Node], int]:
        nullable = self.version in one.nullable
        if one.is_array:
            return self.array(one, at, seen)
        if one.struct is not None:
            return self.structure(one, at, nullable, in_tag)
        if one.type in FIXED:
            return self.fixed(one, at, seen)
        return self.text(one, at, seen)

    def structure(self, one: SchemaField, at: int, nullable: bool, in_tag: bool) -> tuple[list[Node], int]:
        assert one.struct is not None
        first, children = at, []
        if nullable:
            mark = self.message[at]
            absent = mark == (0 if in_tag else 0xFF)
            children.append(self.leaf(at, at + 1, "present", "int8", mark, "null" if absent else "follows"))
            at += 1
            if absent:
                return [self.node(first, at, one.name, one.type, children, "null")], at
        made, at = self.struct(one.struct, at)
        return [self.node(first, at, one.name, one.type, children + made)], at

    def fixed(self, one: SchemaField, at: int, seen: Message, name: str | None = None) -> tuple[list[Node], int]:
        packed = struct.Struct(">" + FIXED[one.type])
        value = packed.unpack_from(self.message, at)[0]
        stop = at + packed.size
        text = meaning(self.name, one.name, value, seen)
        if one.type == "uuid":
            number = int.from_bytes(value, "big")
            text = DIRECTORY_WORDS.get(number, "") if "irector" in one.name or "Dir" in one.name else ""
            value = uuid_text(value)
        elif one.type == "int64" and "imestamp" in one.name and value >= 0:
            text = milliseconds(value)
        if name is None:
            seen[one.name] = value
        return [self.leaf(at, stop, name or one.name, one.type, value, text)], stop

    def length(self, at: int, name: str, wide: bool, what: str) -> tuple[int, Node, int]:
        """A length or count, -1 for null."""
        if self.flexible:
            raw, stop = read_uvarint(self.message, at)
            size, type = raw - 1, "uvarint"
        else:
            packed = struct.Struct(">i" if wide else ">h")
            raw = size = packed.unpack_from(self.message, at)[0]
            stop, type = at + packed.size, "int32" if wide else "int16"
        text = "null" if size < 0 else f"{size:,} {what}" + (", stored one higher" if self.flexible else "")
        return size, self.leaf(at, stop, name, type, raw, text), stop

    def text(self, one: SchemaField, at: int, seen: Message, name: str | None = None) -> tuple[list[Node], int]:
        called = name or one.name
        size, node, at = self.length(at, f"{called} length", one.type != "string", "bytes")
        if size < 0:
            seen[one.name] = None
            return [node], at
        stop = at + size
        if stop > len(self.message):
            raise TruncatedError(f"{called}: {size} bytes, {len(self.message) - at} are left")
        raw = self.message[at:stop]
        if is_secret(self.name, one.name, seen):
            return [node, Node(self.base + self.start + at, size, called, one.type, MASK, "secret", secret=raw)], stop
        value: Any = raw
        if one.type == "string":
            value = read_text(raw)
        seen[one.name] = value
        return [node, self.leaf(at, stop, called, one.type, value)], stop

    def array(self, one: SchemaField, at: int, seen: Message) -> tuple[list[Node], int]:
        first = at
        count, node, at = self.length(at, "count", True, "elements")
        if count > len(self.message) - at:
            raise CorruptError(f"{one.name}: {count} elements, {len(self.message) - at} bytes are left")
        children = [node]
        for number in range(max(count, 0)):
            name = f"{one.name}[{number}]"
            begun = at
            if one.struct is not None:
                made, at = self.struct(one.struct, at)
                made = [self.node(begun, at, name, one.type, made)]
            elif one.type in FIXED:
                made, at = self.fixed(one, at, {}, name)
            else:
                made, at = self.text(one, at, {}, name)
            children += made
        return [self.node(first, at, one.name, f"array of {one.type}", children, "null" if count < 0 else "")], at


def try_nodes(codec: Codec, data: Bytes, start: int, stop: int, base: int) -> list[Node] | None:
    """The fields of a message, or None if it cannot be followed."""
    try:
        return message_nodes(codec, data, start, stop, base)
    except DataError:
        return None
