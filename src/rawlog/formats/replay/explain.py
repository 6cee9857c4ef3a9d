"""What `explain` shows of recordings."""

from __future__ import annotations

import numpy as np

from rawlog.core.explain import Node, layout_nodes, leaf
from rawlog.core.format import File
from rawlog.core.frames import Frames
from rawlog.core.text import plain_time
from rawlog.formats.replay.layouts import ENTRIES, FILE_HEADER, NO_TIME_SECONDS


def explain_header(head: bytes, file: File) -> list[Node]:
    """The 20 bytes in front of the entries; none in version 0."""
    from rawlog.formats.replay.paths import begin

    if begin(head, file.size).kind == 0:
        return []
    data = np.frombuffer(head, np.uint8)
    nodes = layout_nodes(FILE_HEADER, data, 0, 0)
    return [Node(0, FILE_HEADER.size, FILE_HEADER.name, children=nodes)]


def explain_entry(frames: Frames, file: File) -> list[Node]:
    """One entry: its fixed fields, key and value."""
    layout = ENTRIES[frames.kind]
    start, stop = int(frames.starts[0]), int(frames.stops[0])
    nodes = layout_nodes(layout, frames.data, start, frames.base, {"timestamp": _seconds})
    position = start + layout.size
    for node in list(nodes):
        if node.name.endswith("_size"):
            name = node.name.removesuffix("_size")
            content = bytes(frames.data[position : position + node.value])
            nodes.append(leaf(frames.data, position, node.value, frames.base, name, "bytes", content))
            position += node.value
    return [Node(frames.base + start, stop - start, f"{layout.name}, number {frames.first}", children=nodes)]


def _seconds(value: int) -> str:
    if value == NO_TIME_SECONDS:
        return "no time: Go's zero time"
    return plain_time(value * 1_000_000)
