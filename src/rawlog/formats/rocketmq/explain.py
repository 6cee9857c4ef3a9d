"""What `explain` shows of an entry of a commit log."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Any

import numpy as np

from rawlog.formats.rocketmq import layouts
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
from rawlog.model.errors import DataError
from rawlog.model.explain import (
    Node,
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
        nodes = blank_nodes(layouts.BLANK, frames, start, stop)
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


def blank_nodes(layout: Layout, frames: Frames, start: int, stop: int) -> list[Node]:
    """The head of a blank entry or unit, and what follows it."""
    nodes = layout_nodes(layout, frames.data, start, frames.base, {"magic": _MAGICS.__getitem__})
    return nodes + _unread(frames.base + start + layout.size, frames.base + stop)


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


def _place(value: int, position: int, address: int) -> str:
    if address < 0 or value == position:
        return "its own place" if address >= 0 else ""
    return f"not its own place, {position}: stale bytes, or moved"


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
