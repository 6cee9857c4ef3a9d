"""What `explain` shows of the files of a store."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Any

import numpy as np

from rawlog.formats.rocketmq import layouts
from rawlog.formats.rocketmq.index import read_header
from rawlog.formats.rocketmq.layouts import (
    BATCH_MASK,
    CODEC_MASK,
    CODEC_SHIFT,
    CODECS,
    CRC_MASK,
    HEAD,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    NAME_VALUE,
    PAIR_END,
    TRANSACTION_MASK,
    TRANSACTIONS,
    SysFlag,
)
from rawlog.formats.rocketmq.messages import first_address
from rawlog.io import compression
from rawlog.io.checksums import crc32
from rawlog.io.storage import Source
from rawlog.model.errors import DataError
from rawlog.model.explain import (
    Node,
    json_node,
    layout_nodes,
    leaf,
    milliseconds,
)
from rawlog.model.format import File
from rawlog.model.frames import Bytes, Frames
from rawlog.model.layout import Layout
from rawlog.model.text import java_text

_MAGICS = {
    MAGIC_V1: "message, topic length of one byte",
    MAGIC_V2: "message, topic length of two bytes",
    MAGIC_BLANK: "blank: the rest of the file is unused",
}


def sys_flag_words(value: int) -> str:
    """The bits of a sysflag in words."""
    words = []
    if value & SysFlag.COMPRESSED:
        kind = (value & CODEC_MASK) >> CODEC_SHIFT
        words.append(f"compressed, {CODECS[kind] if kind < len(CODECS) else f'unknown type {kind}'}")
    if value & SysFlag.MULTI_TAGS:
        words.append("multi tags")
    if value & TRANSACTION_MASK:
        words.append(f"transaction {TRANSACTIONS[(value & TRANSACTION_MASK) >> 2]}")
    words += [
        word
        for bit, word in (
            (SysFlag.BORNHOST_V6, "born host IPv6"),
            (SysFlag.STOREHOST_V6, "store host IPv6"),
            (SysFlag.NEED_UNWRAP, "to be unpacked"),
            (SysFlag.INNER_BATCH, "inner batch"),
        )
        if value & bit
    ]
    return ", ".join(words) or "plain"


def explain_entry(frames: Frames, file: File) -> list[Node]:
    """One entry of a commit log, field by field, to the last property."""
    data, start, stop, base = frames.data, int(frames.starts[0]), int(frames.stops[0]), frames.base
    magic = _int(data, start + 4, 4)
    if magic == MAGIC_BLANK:
        nodes = layout_nodes(layouts.BLANK, data, start, base, {"magic": _MAGICS.__getitem__})
        nodes += _unread(base + start + layouts.BLANK.size, base + stop)
        return [Node(base + start, stop - start, "blank entry", children=nodes)]
    if magic in (MAGIC_V1, MAGIC_V2):
        return [_message(frames, file, start, stop)]
    if _int(data, start, 4) == layouts.DLEDGER_BLANK_MAGIC:
        nodes = layout_nodes(layouts.DLEDGER_BLANK, data, start, base)
        nodes += _unread(base + start + layouts.DLEDGER_BLANK.size, base + stop)
        return [Node(base + start, stop - start, layouts.DLEDGER_BLANK.name, children=nodes)]
    head = Node(
        base + start,
        layouts.DLEDGER.size,
        layouts.DLEDGER.name,
        children=layout_nodes(layouts.DLEDGER, data, start, base),
    )
    inner = [_message(frames, file, start + layouts.DLEDGER.size, stop)] if stop - start > layouts.DLEDGER.size else []
    return [Node(base + start, stop - start, "DLedger entry", children=[head, *inner])]


def _unread(start: int, stop: int) -> list[Node]:
    """What follows the head of a blank entry, if anything."""
    return (
        [Node(start, stop - start, "rest", "bytes", meaning=f"{stop - start:,} bytes that are never read")]
        if stop > start
        else []
    )


def _int(data: Bytes, at: int, size: int) -> int:
    return int.from_bytes(bytes(data[at : at + size]), "big", signed=True)


def _message(frames: Frames, file: File, start: int, stop: int) -> Node:
    data, base = frames.data, frames.base
    flag = _int(data, start + HEAD.at("sys_flag"), 4)
    magic = _int(data, start + HEAD.at("magic"), 4)
    address = first_address(file, frames.kind)
    meanings: dict[str, Callable[[int], str]] = {
        "magic": lambda value: _MAGICS[value],
        "sys_flag": sys_flag_words,
        "born_timestamp": milliseconds,
        "store_timestamp": milliseconds,
        "physical_offset": lambda value: _place(value, address + base + start, address),
    }
    nodes = layout_nodes(HEAD, data, start, base, meanings)
    at = start + HEAD.size
    for name, bit in (("born_host", SysFlag.BORNHOST_V6), ("store_host", SysFlag.STOREHOST_V6)):
        layout = layouts.HOST_V6 if flag & bit else layouts.HOST_V4
        raw = bytes(data[at : at + layout.at("port")])
        shown = f"{ipaddress.ip_address(raw)} port {_int(data, at + layout.at('port'), 4)}"
        nodes.append(Node(base + at, layout.size, name, value=shown, children=layout_nodes(layout, data, at, base)))
        at += layout.size
        if name == "born_host":
            nodes += layout_nodes(layouts.STORED, data, at, base, meanings)
            at += layouts.STORED.size
    nodes += layout_nodes(layouts.TAIL, data, at, base)
    size = _int(data, at + layouts.TAIL.at("body_length"), 4)
    at += layouts.TAIL.size
    nodes.append(_body(data, at, size, base, flag, _int(data, start + HEAD.at("body_crc"), 4)))
    for node in nodes:
        if node.name == "body_crc":
            node.covers = (base + at, base + at + size)
    at += size
    length = layouts.TOPIC_V2 if magic == MAGIC_V2 else layouts.TOPIC_V1
    nodes += layout_nodes(length, data, at, base)
    size, at = _int(data, at, length.size), at + length.size
    topic = java_text(bytes(data[at : at + size]))
    nodes.append(leaf(data, at, size, base, "topic", "string", topic))
    at += size
    nodes += layout_nodes(layouts.PROPERTIES, data, at, base)
    at += layouts.PROPERTIES.size
    nodes.append(Node(base + at, stop - at, "properties", children=_properties(data, at, stop, base)))
    where = f"{topic}, queue {_int(data, start + HEAD.at('queue_id'), 4)}"
    title = f"message {_int(data, start + HEAD.at('queue_offset'), 8)} of {where}"
    return Node(base + start, stop - start, title, children=nodes)


def _place(value: int, here: int, address: int) -> str:
    if address < 0 or value == here:
        return "its own place" if address >= 0 else ""
    return f"not its own place, {here}: stale bytes, or moved"


def _body(data: Bytes, at: int, size: int, base: int, flag: int, stored: int) -> Node:
    crc = crc32(data, at, at + size) & CRC_MASK
    meaning = "checksum right" if crc == stored else f"checksum wrong: {crc:08x}, {stored & 0xFFFFFFFF:08x} stored"
    node = leaf(data, at, size, base, "body", "bytes", bytes(data[at : at + size]), meaning)
    content: Any = data[at : at + size]
    if flag & SysFlag.COMPRESSED:
        kind = (flag & CODEC_MASK) >> CODEC_SHIFT
        try:
            content = np.frombuffer(compression.decompress(CODECS[kind], content), np.uint8)
        except (DataError, IndexError) as error:
            node.meaning += f"; cannot be decompressed: {error}"
            return node
        node.children.append(
            Node(
                0, content.size, "decompressed", "bytes", bytes(content), f"{content.size:,} bytes", inside=CODECS[kind]
            )
        )
    if flag & BATCH_MASK == BATCH_MASK:
        node.children += _inner(content, base + at if not flag & SysFlag.COMPRESSED else 0)
    return node


def _inner(content: Bytes, base: int) -> list[Node]:
    nodes: list[Node] = []
    position = 0
    layout = layouts.INNER
    while content.size - position >= layout.size + layouts.PROPERTIES.size:
        size, body = _int(content, position, 4), _int(content, position + layout.at("body_length"), 4)
        if not layout.size + layouts.PROPERTIES.size + body <= size <= content.size - position or body < 0:
            break
        parts = layout_nodes(layout, content, position, base)
        at = position + layout.size
        parts.append(leaf(content, at, body, base, "body", "bytes", bytes(content[at : at + body])))
        parts += layout_nodes(layouts.PROPERTIES, content, at + body, base)
        at += body + layouts.PROPERTIES.size
        stop = position + size
        parts.append(Node(base + at, stop - at, "properties", children=_properties(content, at, stop, base)))
        nodes.append(Node(base + position, size, f"inner message {len(nodes)}", children=parts))
        position += size
    return nodes


def _properties(data: Bytes, start: int, stop: int, base: int) -> list[Node]:
    nodes, at = [], start
    for piece in bytes(data[start:stop]).split(bytes([PAIR_END])):
        if piece:
            name, mark, value = piece.partition(bytes([NAME_VALUE]))
            size = len(piece) + (1 if at + len(piece) < stop else 0)
            meaning = "" if mark and name and value else "RocketMQ passes over it: no name or no value"
            nodes.append(leaf(data, at, size, base, java_text(name), "string", java_text(value), meaning))
        elif at < stop:
            nodes.append(leaf(data, at, 1, base, "nothing", "string", "", "a separator after another one"))
        at += len(piece) + 1
    return nodes


def _fixed(
    layout: Layout, name: str, meanings: dict[str, Callable[[int], str]] | None = None
) -> Callable[[Frames, File], list[Node]]:
    """Explain a frame that is one layout."""

    def explain(frames: Frames, file: File) -> list[Node]:
        start, stop = int(frames.starts[0]), int(frames.stops[0])
        children = layout_nodes(layout, frames.data, start, frames.base, meanings, stop)
        if stop - start > layout.size:
            at = start + layout.size
            children.append(leaf(frames.data, at, stop - at, frames.base, "rest", "bytes", bytes(frames.data[at:stop])))
        return [Node(frames.base + start, stop - start, f"{name}, number {frames.first}", children=children)]

    return explain


def _size(value: int) -> str:
    return (
        "pre-blank: fills the front of the queue's first file"
        if value == layouts.PRE_BLANK_SIZE
        else "of the whole message"
    )


def _tag(value: int) -> str:
    if value <= layouts.LARGEST_EXT_ADDRESS:
        return f"address {value + (1 << 63)} in the ext files"
    return (
        "no tag" if value == 0 else "hash of the tag" if -(1 << 31) <= value < 1 << 31 else f"due {milliseconds(value)}"
    )


_TIMES = {
    field.name: milliseconds
    for layout in (
        layouts.CHECKPOINT,
        layouts.BATCH_UNIT,
        layouts.EXT_UNIT,
        layouts.TIMER_UNIT,
        layouts.TIMER_CHECK,
        layouts.INDEX_HEADER,
    )
    for field in layout.fields
    if field.name.endswith("timestamp")
}
_WORDS: dict[str, Callable[[int], str]] = {**_TIMES, "tag_hash": _tag}

explain_unit = _fixed(layouts.UNIT, "unit", {**_WORDS, "size": _size})
explain_batch_unit = _fixed(layouts.BATCH_UNIT, "batch unit", _WORDS)
explain_ext_unit = _fixed(layouts.EXT_UNIT, "ext unit", _WORDS)
"""The two bytes that end a file are a unit of which only the size is there."""
explain_index_entry = _fixed(layouts.INDEX_ENTRY, "key index entry")
explain_checkpoint = _fixed(layouts.CHECKPOINT, "checkpoint", _WORDS)
_explain_timer_unit = _fixed(layouts.TIMER_UNIT, "timer unit", _WORDS)
explain_wheel_slot = _fixed(
    layouts.WHEEL_SLOT, "slot", {"time": lambda value: milliseconds(value * layouts.TIMER_PRECISION_MS)}
)
explain_timer_check = _fixed(layouts.TIMER_CHECK, "timer checkpoint", _WORDS)
explain_dledger_index = _fixed(layouts.DLEDGER_INDEX, "index unit")


def explain_timer_unit(frames: Frames, file: File) -> list[Node]:
    """One unit of a timer log, or the blank one that closes a file."""
    start, stop, base = int(frames.starts[0]), int(frames.stops[0]), frames.base
    if _int(frames.data, start + layouts.TIMER_BLANK.at("magic"), 4) != MAGIC_BLANK:
        return _explain_timer_unit(frames, file)
    nodes = layout_nodes(layouts.TIMER_BLANK, frames.data, start, base, {"magic": _MAGICS.__getitem__})
    nodes += _unread(base + start + layouts.TIMER_BLANK.size, base + stop)
    return [Node(base + start, stop - start, layouts.TIMER_BLANK.name, children=nodes)]


def explain_index_header(head: bytes, file: File) -> list[Node]:
    """The forty bytes before the slots, the slots, and the entry that is never used."""
    nodes = layout_nodes(layouts.INDEX_HEADER, np.frombuffer(head, np.uint8), 0, 0, _WORDS)
    header = Node(0, layouts.INDEX_HEADER.size, layouts.INDEX_HEADER.name, children=nodes)
    with Source(file.path) as source:
        index_header = read_header(source)
    slots = Node(
        header.size,
        index_header.slots * layouts.SLOT.size,
        "slots",
        value=index_header.slots,
        meaning=f"{index_header.used_slots:,} of them used",
    )
    unused = Node(index_header.entries_at, layouts.INDEX_ENTRY.size, "entry 0", meaning="never used")
    return [header, slots, unused]


def explain_config(frames: Frames, file: File) -> list[Node]:
    """The values of a config file, by their path."""
    from rawlog.formats.rocketmq.config import parse

    raw = bytes(frames.data[int(frames.starts[0]) : int(frames.stops[0])])
    return [json_node(parse(raw), frames.base, len(raw), "config")]
