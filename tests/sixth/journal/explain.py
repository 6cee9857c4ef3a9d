"""What `explain` shows of journals: every byte, with its name and value."""

from __future__ import annotations

import numpy as np

from rawlog.model.explain import Node, layout_nodes, leaf
from rawlog.model.format import File
from rawlog.model.frames import Frames
from rawlog.model.text import plain_time
from tests.sixth.journal.layouts import ENTRY, FILE_HEADER, NO_TIME, POSITION
from tests.sixth.journal.reader import is_sound, sums


def explain_header(head: bytes, file: File) -> list[Node]:
    """The bytes before the first entry; an empty file has none."""
    if not file.size:
        return []
    nodes = layout_nodes(FILE_HEADER, np.frombuffer(head, np.uint8), 0, 0)
    return [Node(0, FILE_HEADER.size, FILE_HEADER.name, children=nodes)]


def explain_entry(frames: Frames, file: File) -> list[Node]:
    """One entry: its fixed fields, key, value and padding."""
    start, stop = int(frames.starts[0]), int(frames.stops[0])
    right = "right" if is_sound(frames)[0] else f"wrong: {int(sums(frames)[0]):08x} expected"
    meanings = {
        "crc": lambda value: f"{value:08x}, {right}",
        "timestamp": lambda value: "no time" if value == NO_TIME else plain_time(value),
    }
    nodes = layout_nodes(ENTRY, frames.data, start, frames.base, meanings)
    position = start + ENTRY.size
    for name, size in [(node.name.removesuffix("_size"), node.value) for node in nodes if node.name.endswith("_size")]:
        if size > 0:
            content = bytes(frames.data[position : position + size])
            nodes.append(leaf(frames.data, position, size, frames.base, name, "bytes", content))
            position += size
    if stop > position:
        nodes.append(leaf(frames.data, position, stop - position, frames.base, "padding", "bytes", None))
    return [Node(frames.base + start, stop - start, f"{ENTRY.name}, frame {frames.first}", children=nodes)]


def explain_position(frames: Frames, file: File) -> list[Node]:
    """One entry of an index."""
    start = int(frames.starts[0])
    nodes = layout_nodes(POSITION, frames.data, start, frames.base)
    return [Node(frames.base + start, POSITION.size, f"{POSITION.name}, frame {frames.first}", children=nodes)]
