"""What `explain` shows of a record batch: its header, then every record to the last bit, decompressed where need be."""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.checksums import crc32c
from rawlog.compression import DEFAULT_LIMIT, decompress
from rawlog.errors import DataError
from rawlog.explain import Node, layout_nodes, leaf, milliseconds
from rawlog.format import File
from rawlog.formats.kafka.layouts import (
    BATCH,
    CODEC_MASK,
    CODECS,
    MAGIC_V2,
    OUTLINE,
    SMALLEST_RECORD,
    Attributes,
    ControlType,
)
from rawlog.formats.kafka.paths import METADATA_TOPIC
from rawlog.frames import Bytes, Frames

MOST_RECORDS = 1000


def explain_batch(frames: Frames, file: File) -> list[Node]:
    """One batch as a tree of fields."""
    data, base = frames.data, frames.base
    start, stop = int(frames.starts[0]), int(frames.stops[0])
    magic = int(data[start + OUTLINE.at("magic")])
    if magic != MAGIC_V2 or stop - start < BATCH.size:
        fields = layout_nodes(OUTLINE, data, start, base)
        rest = leaf(data, start + OUTLINE.size, stop - start - OUTLINE.size, base, "content", "bytes", None)
        return [Node(base + start, stop - start, f"message set entry, magic {magic}", children=[*fields, rest])]
    computed = crc32c(data, start + BATCH.after("crc"), stop)
    head = layout_nodes(
        BATCH,
        data,
        start,
        base,
        {
            "crc": lambda value: "right" if value == computed else f"WRONG, the bytes give {computed} ({computed:08x})",
            "attributes": _attributes,
            "base_timestamp": _time,
            "max_timestamp": _time,
            "length": lambda value: f"{value + BATCH.after('length'):,} bytes with offset and length",
            "producer_id": _none,
            "producer_epoch": _none,
            "base_sequence": _none,
            "leader_epoch": _none,
        },
    )
    value = {node.name: node.value for node in head}
    batch = Node(base + start, stop - start, BATCH.name, children=head)
    payload = _payload(data, start, stop, base, value, batch)
    if payload is not None:
        content, offset, shift, inside = payload
        batch.children += _Records(content, value, file, shift, inside).nodes(offset)
    return [batch]


def _payload(
    data: Bytes, start: int, stop: int, base: int, value: dict[str, Any], batch: Node
) -> tuple[Bytes, int, int, str | None] | None:
    """The bytes of the records, where they begin, what to add to a position in them, and what they lie inside."""
    codec = value["attributes"] & CODEC_MASK
    if codec == 0:
        return data[:stop], start + BATCH.size, base, None
    name = CODECS[codec] if codec < len(CODECS) else f"codec {codec}"
    packed = leaf(data, start + BATCH.size, stop - start - BATCH.size, base, "records", name, None)
    batch.children.append(packed)
    if codec >= len(CODECS):
        packed.meaning = "unknown compression"
        return None
    try:
        content = decompress(name, memoryview(data)[start + BATCH.size : stop], limit=DEFAULT_LIMIT)  # type: ignore[arg-type]
    except DataError as error:
        packed.meaning = f"does not decompress: {error.message}"
        return None
    packed.meaning = f"{len(content):,} bytes decompressed, shown below by their positions in there"
    return np.frombuffer(content, np.uint8), 0, 0, name


class _Records:
    """Walks the records of one batch."""

    def __init__(self, data: Bytes, batch: dict[str, Any], file: File, base: int, inside: str | None) -> None:
        self.data, self.batch, self.base, self.inside = data, batch, base, inside
        self.control = bool(batch["attributes"] & Attributes.CONTROL)
        self.metadata = file.place.topic == METADATA_TOPIC

    def nodes(self, position: int) -> list[Node]:
        nodes: list[Node] = []
        count = min(self.batch["record_count"], self.data.size // SMALLEST_RECORD + 1)
        for number in range(count):
            if number == MOST_RECORDS:
                nodes.append(Node(self.base + position, 0, f"… {count - number:,} more records", inside=self.inside))
                break
            try:
                node, position = self.record(position, number)
            except _Broken as broken:
                rest = leaf(
                    self.data, position, self.data.size - position, self.base, "rest", "bytes", None, str(broken)
                )
                nodes.append(rest)
                return nodes
            nodes.append(node)
        else:
            if position < self.data.size and count:
                left = self.data.size - position
                nodes.append(
                    leaf(self.data, position, left, self.base, "left over", "bytes", None, "nothing may follow")
                )
        if self.inside:
            for node in nodes:
                for _, one in node.walk():
                    one.inside = self.inside
        return nodes

    def record(self, start: int, number: int) -> tuple[Node, int]:
        record = Node(self.base + start, 0, f"record {number}")
        length, position = self.varint(record, start, "length", "bytes behind this field")
        end = position + length
        if length < 1 or end > self.data.size:
            raise _Broken(f"record {number}: length {length} does not fit")
        record.children.append(
            leaf(self.data, position, 1, self.base, "attributes", "int8", int(self.data[position]), "unused")
        )
        delta, position = self.varint(record, position + 1, "timestamp_delta", "", 64)
        record.children[-1].meaning = self.time(delta)
        delta, position = self.varint(record, position, "offset_delta", "")
        record.children[-1].meaning = f"offset {self.batch['base_offset'] + delta:,}"
        position = self.bytes(record, position, end, "key")
        position = self.bytes(record, position, end, "value")
        headers, position = self.varint(record, position, "header_count", "")
        for index in range(max(0, min(headers, end - position))):
            position = self.bytes(record, position, end, f"header {index} key")
            position = self.bytes(record, position, end, f"header {index} value")
        if position != end:
            raise _Broken(f"record {number}: its fields end at byte {position - start}, its length says {end - start}")
        record.size = end - start
        return record, end

    def time(self, delta: int) -> str:
        if self.batch["attributes"] & Attributes.LOG_APPEND_TIME:
            return f"not used; log append time {milliseconds(self.batch['max_timestamp'])}"
        return milliseconds(self.batch["base_timestamp"] + delta)

    def varint(self, parent: Node, position: int, name: str, meaning: str, bits: int = 32) -> tuple[int, int]:
        value, shift, at = 0, 0, position
        while True:
            if at >= self.data.size or shift > bits + 5:
                raise _Broken(f"{name}: a number that does not end")
            byte = int(self.data[at])
            value |= (byte & 0x7F) << shift
            at += 1
            shift += 7
            if not byte & 0x80:
                break
        value &= (1 << bits) - 1
        value = (value >> 1) ^ -(value & 1)
        kind = "varint" if bits == 32 else "varlong"
        parent.children.append(leaf(self.data, position, at - position, self.base, name, kind, value, meaning))
        return value, at

    def bytes(self, parent: Node, position: int, end: int, name: str) -> int:
        size, position = self.varint(parent, position, f"{name} length", "")
        parent.children[-1].meaning = "null" if size < 0 else "bytes"
        if size < 0:
            return position
        if end - position < size:
            raise _Broken(f"{name}: {size} bytes, {end - position} are left")
        content = bytes(self.data[position : position + size])
        node = leaf(self.data, position, size, self.base, name, "bytes", content, _text(content))
        if self.control and name == "key":
            node.children = self.control_key(position, size)
        elif self.metadata and name == "value" and not self.control:
            node.children = self.metadata_frame(position, size)
        parent.children.append(node)
        return position + size

    def control_key(self, position: int, size: int) -> list[Node]:
        if size < 4:
            return []
        kind = int.from_bytes(bytes(self.data[position + 2 : position + 4]), "big", signed=True)
        name = ControlType(kind).name if kind in set(ControlType) else "unknown"
        version = int.from_bytes(bytes(self.data[position : position + 2]), "big", signed=True)
        return [
            leaf(self.data, position, 2, self.base, "version", "int16", version),
            leaf(self.data, position + 2, 2, self.base, "type", "int16", kind, name),
        ]

    def metadata_frame(self, position: int, size: int) -> list[Node]:
        """What stands in front of every metadata record: frame version, record type and version, each a uvarint."""
        nodes: list[Node] = []
        at = position
        for name in ("frame version", "record type", "record version"):
            value, shift, start = 0, 0, at
            while True:
                if at >= position + size or shift > 28:
                    return nodes
                byte = int(self.data[at])
                value |= (byte & 0x7F) << shift
                at += 1
                shift += 7
                if not byte & 0x80:
                    break
            nodes.append(leaf(self.data, start, at - start, self.base, name, "uvarint", value))
        nodes.append(leaf(self.data, at, position + size - at, self.base, "record", "bytes", None))
        return nodes


class _Broken(Exception):
    """The records cannot be followed any further."""


def _attributes(value: int) -> str:
    codec = value & CODEC_MASK
    parts = [CODECS[codec] if codec < len(CODECS) else f"unknown codec {codec}"]
    parts.append("log append time" if value & Attributes.LOG_APPEND_TIME else "create time")
    names = {Attributes.TRANSACTIONAL: "transactional", Attributes.CONTROL: "control"}
    parts += [name for bit, name in names.items() if value & bit]
    if value & Attributes.DELETE_HORIZON:
        parts.append("the base timestamp is a delete horizon")
    return ", ".join(parts)


def _time(value: int) -> str:
    return "none" if value == -1 else milliseconds(value)


def _none(value: int) -> str:
    return "none" if value == -1 else ""


def _text(content: bytes) -> str:
    """Bytes as text where they are some; control characters escaped."""
    try:
        text = content[:80].decode()
    except UnicodeDecodeError:
        return ""
    shown = text if text.isprintable() else ascii(text)[1:-1]
    return shown + ("…" if len(content) > 80 else "")
