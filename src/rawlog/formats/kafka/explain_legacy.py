"""What `explain` shows of an entry of magic 0 or 1: its fields, and the entries inside a compressed one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rawlog.core.errors import DataError
from rawlog.core.explain import Node, layout_nodes, leaf, milliseconds
from rawlog.core.frames import Bytes
from rawlog.formats.kafka.layouts import CODEC_MASK, CODECS, ENTRY_V0, ENTRY_V1, OUTLINE, Attributes
from rawlog.io.checksums import crc32
from rawlog.io.compression import DEFAULT_LIMIT, decompress

LAYOUTS = (ENTRY_V0, ENTRY_V1)
MOST_ENTRIES = 1000


def explain_entry(data: Bytes, start: int, stop: int, base: int, inside: str | None = None) -> Node:
    """One entry; what a wrapper holds stands below it, by its positions in the decompressed bytes."""
    magic = int(data[start + OUTLINE.at("magic")])
    entry = Node(base + start, stop - start, f"message, magic {magic}", inside=inside)
    if magic >= len(LAYOUTS):
        entry.children = layout_nodes(OUTLINE, data, start, base, upto=stop)
        rest = start + OUTLINE.size
        entry.children.append(leaf(data, rest, stop - rest, base, "content", "bytes", None, "of an unknown magic"))
        return entry
    layout = LAYOUTS[magic]
    computed = crc32(data, start + layout.after("crc"), stop)
    meanings: dict[str, Callable[[int], str]] = {
        "crc": lambda value: "right" if value == computed else f"WRONG, the bytes give {computed} ({computed:08x})",
        "attributes": _attributes,
        "timestamp": lambda value: "none" if value == -1 else milliseconds(value),
        "length": lambda value: f"{value + OUTLINE.after('length'):,} bytes with offset and length",
        "key_length": lambda value: "null" if value < 0 else "bytes",
    }
    entry.children = layout_nodes(layout, data, start, base, meanings, upto=stop)
    fields = {node.name: node.value for node in entry.children}
    position = start + layout.size
    position = _bytes(entry, data, position, stop, base, "key", fields.get("key_length", -1))
    if stop - position < 4:
        return entry
    size = int.from_bytes(bytes(data[position : position + 4]), "big", signed=True)
    meaning = "null" if size < 0 else "bytes"
    entry.children.append(leaf(data, position, 4, base, "value_length", "int32", size, meaning))
    position += 4
    codec = int(fields["attributes"]) & CODEC_MASK
    if codec and size >= 0:
        _unwrapped(entry, data, position, min(size, stop - position), base, codec, magic)
    else:
        _bytes(entry, data, position, stop, base, "value", size)
    return entry


def _bytes(entry: Node, data: Bytes, position: int, stop: int, base: int, name: str, size: int) -> int:
    if size < 0:
        return position
    size = min(size, stop - position)
    content = bytes(data[position : position + size])
    entry.children.append(leaf(data, position, size, base, name, "bytes", content))
    return position + size


def _unwrapped(entry: Node, data: Bytes, position: int, size: int, base: int, codec: int, magic: int) -> None:
    name = CODECS[codec] if codec < len(CODECS) else f"codec {codec}"
    packed = leaf(data, position, size, base, "value", name, None)
    entry.children.append(packed)
    if codec >= len(CODECS):
        packed.meaning = "unknown compression"
        return
    try:
        whole = decompress(
            name, bytes(data[position : position + size]), limit=DEFAULT_LIMIT, broken_lz4_header=magic == 0
        )
    except DataError as error:
        packed.meaning = f"does not decompress: {error.message}"
        return
    packed.meaning = f"{len(whole):,} bytes decompressed, shown below by their positions in there"
    content = np.frombuffer(whole, np.uint8)
    at = 0
    while content.size - at > OUTLINE.size and len(entry.children) < MOST_ENTRIES:
        length = int.from_bytes(
            bytes(content[at + OUTLINE.at("length") : at + OUTLINE.after("length")]), "big", signed=True
        )
        stop = at + OUTLINE.after("length") + length
        if length < 14 or stop > content.size:
            break
        inner = explain_entry(content, at, stop, 0, name)
        for _, node in inner.walk():
            node.inside = name
        entry.children.append(inner)
        at = stop


def _attributes(value: int) -> str:
    codec = value & CODEC_MASK
    name = CODECS[codec] if codec < len(CODECS) else f"unknown codec {codec}"
    return f"{name}, {'log append time' if value & Attributes.LOG_APPEND_TIME else 'create time'}"
