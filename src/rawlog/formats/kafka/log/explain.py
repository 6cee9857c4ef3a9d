"""What `explain` shows of a record batch, or of an entry of magic 0 or 1: its header, then every record to the last bit, decompressed
where needed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rawlog.formats.kafka.internal.codec import (
    FIXED,
    Codec,
    Message,
    Schema,
    SchemaField,
    codec,
    present,
    read_text,
    read_uvarint,
    uuid_text,
)
from rawlog.formats.kafka.internal.messages import (
    DIRECTORY_WORDS,
    KEYED,
    MASK,
    control_codec,
    control_type,
    frame_head,
    framed_types,
    is_secret,
    key_types,
    meaning,
    value_codec,
)
from rawlog.formats.kafka.log.layouts import (
    BATCH,
    CODEC_MASK,
    CODECS,
    ENTRY_V0,
    ENTRY_V1,
    MAGIC_V2,
    OUTLINE,
    SMALLEST_RECORD,
    Attributes,
    ControlType,
)
from rawlog.formats.kafka.log.segment import may_hold_secret
from rawlog.formats.kafka.paths import METADATA_TOPIC
from rawlog.io.checksums import crc32, crc32c
from rawlog.io.compression import DEFAULT_LIMIT, decompress
from rawlog.model.errors import CorruptError, DataError, TruncatedError, UnsupportedError
from rawlog.model.explain import Node, layout_nodes, leaf, milliseconds
from rawlog.model.format import File
from rawlog.model.frames import Bytes, Frames

# ----------------------------------------------------------------------------------------------------------------------
# What `explain` shows of a message: every field in its place, lengths and counts next to what they count, tagged fields by name.


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
    return any(part.secret is not None for _, part in node.walk())


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
        values: Message = {}
        for field in plain:
            field_nodes, at = self.field(field, at, values)
            nodes += field_nodes
        if self.flexible:
            field_nodes, at = self.tags(tagged, at, values)
            nodes += field_nodes
        return nodes, at

    def tags(self, tagged: dict[int, SchemaField], at: int, values: Message) -> tuple[list[Node], int]:
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
                field_nodes, end = self.field(tagged[tag], inside, values, in_tag=True)
                if end != stop:
                    raise CorruptError(f"tag {tag}: ends at {end}, its size says {stop}")
                children += field_nodes
            elif size:
                children.append(self.leaf(inside, stop, "content", "bytes", self.message[inside:stop], "kept as it is"))
            name = f"tagged field {tagged[tag].name}" if tag in tagged else f"unknown tagged field {tag}"
            nodes.append(self.node(at, stop, name, "tagged", children))
            at = stop
        return nodes, at

    def field(self, field: SchemaField, at: int, values: Message, *, in_tag: bool = False) -> tuple[list[Node], int]:
        nullable = self.version in field.nullable
        if field.is_array:
            return self.array(field, at, values)
        if field.struct is not None:
            return self.structure(field, at, nullable, in_tag)
        if field.type in FIXED:
            return self.fixed(field, at, values)
        return self.text(field, at, values)

    def structure(self, field: SchemaField, at: int, nullable: bool, in_tag: bool) -> tuple[list[Node], int]:
        assert field.struct is not None
        first, children = at, []
        if nullable:
            mark = self.message[at]
            absent = mark == (0 if in_tag else 0xFF)
            children.append(self.leaf(at, at + 1, "present", "int8", mark, "null" if absent else "follows"))
            at += 1
            if absent:
                return [self.node(first, at, field.name, field.type, children, "null")], at
        struct_nodes, at = self.struct(field.struct, at)
        return [self.node(first, at, field.name, field.type, children + struct_nodes)], at

    def fixed(self, field: SchemaField, at: int, values: Message, name: str | None = None) -> tuple[list[Node], int]:
        packed = struct.Struct(">" + FIXED[field.type])
        value = packed.unpack_from(self.message, at)[0]
        stop = at + packed.size
        text = meaning(self.name, field.name, value, values)
        if field.type == "uuid":
            number = int.from_bytes(value, "big")
            text = DIRECTORY_WORDS.get(number, "") if "irector" in field.name or "Dir" in field.name else ""
            value = uuid_text(value)
        elif field.type == "int64" and "imestamp" in field.name and value >= 0:
            text = milliseconds(value)
        if name is None:
            values[field.name] = value
        return [self.leaf(at, stop, name or field.name, field.type, value, text)], stop

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

    def text(self, field: SchemaField, at: int, values: Message, name: str | None = None) -> tuple[list[Node], int]:
        label = name or field.name
        size, node, at = self.length(at, f"{label} length", field.type != "string", "bytes")
        if size < 0:
            values[field.name] = None
            return [node], at
        stop = at + size
        if stop > len(self.message):
            raise TruncatedError(f"{label}: {size} bytes, {len(self.message) - at} are left")
        raw = self.message[at:stop]
        if is_secret(self.name, field.name, values):
            return [node, Node(self.base + self.start + at, size, label, field.type, MASK, "secret", secret=raw)], stop
        value: Any = raw
        if field.type == "string":
            value = read_text(raw)
        values[field.name] = value
        return [node, self.leaf(at, stop, label, field.type, value)], stop

    def array(self, field: SchemaField, at: int, values: Message) -> tuple[list[Node], int]:
        first = at
        count, node, at = self.length(at, "count", True, "elements")
        if count > len(self.message) - at:
            raise CorruptError(f"{field.name}: {count} elements, {len(self.message) - at} bytes are left")
        children = [node]
        for number in range(max(count, 0)):
            name = f"{field.name}[{number}]"
            start = at
            if field.struct is not None:
                element_nodes, at = self.struct(field.struct, at)
                element_nodes = [self.node(start, at, name, field.type, element_nodes)]
            elif field.type in FIXED:
                element_nodes, at = self.fixed(field, at, {}, name)
            else:
                element_nodes, at = self.text(field, at, {}, name)
            children += element_nodes
        return [self.node(first, at, field.name, f"array of {field.type}", children, "null" if count < 0 else "")], at


def try_nodes(codec: Codec, data: Bytes, start: int, stop: int, base: int) -> list[Node] | None:
    """The fields of a message, or None if it cannot be followed."""
    try:
        return message_nodes(codec, data, start, stop, base)
    except DataError:
        return None


MOST_HEADERS = 10_000
MOST_RECORDS = 1000
MOST_ENTRIES = 1000
LAYOUTS = (ENTRY_V0, ENTRY_V1)


def explain_batch(frames: Frames, file: File) -> list[Node]:
    """One batch as a tree of fields."""
    data, base = frames.data, frames.base
    start, stop = int(frames.starts[0]), int(frames.stops[0])
    magic = int(data[start + OUTLINE.at("magic")])
    if magic != MAGIC_V2 or stop - start < BATCH.size:
        return [explain_entry(data, start, stop, base)]
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
    _cover(head, base + start + BATCH.after("crc"), base + stop)
    batch = Node(base + start, stop - start, BATCH.name, children=head)
    payload = _payload(data, start, stop, base, value, batch)
    if payload is not None:
        content, offset, shift, inside = payload
        batch.children += _Records(content, value, file, shift, inside).nodes(offset)
    return [batch]


def _cover(nodes: list[Node], start: int, stop: int) -> None:
    """Say which bytes the checksum is of."""
    for node in nodes:
        if node.name == "crc":
            node.covers = (start, stop)


def _payload(
    data: Bytes, start: int, stop: int, base: int, value: dict[str, Any], batch: Node
) -> tuple[Bytes, int, int, str | None] | None:
    """The bytes of the records, their start, the shift of their positions, and the part they lie inside."""
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
        self.topic = file.place.topic
        #: Certain by its place; a log without one may be a metadata log too.
        self.certain = self.topic == METADATA_TOPIC or file.system != "kafka"
        self.metadata = self.certain or self.topic is None
        self.control_kind: int | None = None
        self.key_schemas: tuple[Schema, Schema] | None = None
        self.has_key = False
        self.headers = 0

    def nodes(self, position: int) -> list[Node]:
        nodes: list[Node] = []
        count = min(self.batch["record_count"], self.data.size // SMALLEST_RECORD + 1)
        for number in range(count):
            if number == MOST_RECORDS:
                nodes.append(Node(self.base + position, 0, f"… {count - number:,} more records", inside=self.inside))
                break
            try:
                node, position = self.record(position, number)
            except _BrokenRecord as broken:
                rest = leaf(
                    self.data, position, self.data.size - position, self.base, "rest", "bytes", None, str(broken)
                )
                nodes.append(rest)
                return nodes
            nodes.append(node)
        else:
            if position < self.data.size and count:
                rest_size = self.data.size - position
                nodes.append(
                    leaf(self.data, position, rest_size, self.base, "left over", "bytes", None, "nothing may follow")
                )
        if self.inside:
            for node in nodes:
                for _, part in node.walk():
                    part.inside = self.inside
        return nodes

    def record(self, start: int, number: int) -> tuple[Node, int]:
        record = Node(self.base + start, 0, f"record {number}")
        self.has_key, self.key_schemas, self.control_kind = False, None, None
        length, position = self.varint(record, start, "length", "bytes after this field")
        end = position + length
        if length < 1 or end > self.data.size:
            raise _BrokenRecord(f"record {number}: length {length} does not fit")
        record.children.append(
            leaf(self.data, position, 1, self.base, "attributes", "int8", int(self.data[position]), "unused")
        )
        delta, position = self.varint(record, position + 1, "timestamp_delta", "", 64)
        record.children[-1].meaning = self.time(delta)
        delta, position = self.varint(record, position, "offset_delta", "")
        record.offset = self.batch["base_offset"] + delta
        record.children[-1].meaning = f"offset {record.offset:,}"
        position = self.bytes(record, position, end, "key")
        position = self.bytes(record, position, end, "value")
        headers, position = self.varint(record, position, "header_count", "")
        for index in range(max(0, min(headers, end - position))):
            if self.headers == MOST_HEADERS:
                rest = f"… {headers - index:,} more headers"
                record.children.append(Node(self.base + position, end - position, rest, inside=self.inside))
                position = end
                break
            self.headers += 1
            position = self.bytes(record, position, end, f"header {index} key")
            position = self.bytes(record, position, end, f"header {index} value")
        if position != end:
            raise _BrokenRecord(
                f"record {number}: its fields end at byte {position - start}, its length says {end - start}"
            )
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
                raise _BrokenRecord(f"{name}: a number that does not end")
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
            raise _BrokenRecord(f"{name}: {size} bytes, {end - position} are left")
        content = bytes(self.data[position : position + size])
        node = leaf(self.data, position, size, self.base, name, "bytes", content)
        if self.control:
            if name == "key":
                self.control_kind = control_type(content)
                node.children = self.control_key(position, size)
            elif name == "value":
                node.children = self.control_value(position, size)
        elif name == "value" and self.metadata and not self.has_key:
            node.children = self.metadata_frame(position, size)
        elif name in ("key", "value") and self.topic in KEYED:
            node.children = self.internal(position, size, name)
        if name == "key":
            self.has_key = True
        if node.children and hides(node):
            node.hex, node.value, node.meaning, node.secret = "", None, "holds a secret", content
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
        """A metadata record: frame version, type and version, each a uvarint, then its fields.

        Of a file that may be any log, only what is metadata to its last byte.
        """
        value = bytes(self.data[position : position + size])
        nodes, at = [], 0
        try:
            for name in ("frame version", "record type", "record version"):
                number, stop = read_uvarint(value, at)
                nodes.append(leaf(self.data, position + at, stop - at, self.base, name, "uvarint", number))
                at = stop
            key, version, _ = frame_head(value)
            schema = framed_types().get(key)
            nodes[1].meaning = "not known" if schema is None else schema.name
            if schema is None:
                raise UnsupportedError(f"record type {key} is not known")
            body = message_nodes(codec(schema, version), self.data, position + at, position + size, self.base)
        except (IndexError, DataError) as error:
            if not self.certain or not nodes:
                return []
            why = error.message if isinstance(error, DataError) else "the bytes end inside the frame"
            record = leaf(self.data, position + at, size - at, self.base, "record", "bytes", None, why)
            if len(nodes) == 3 and may_hold_secret(nodes[1].meaning, value):
                record.hex, record.value, record.secret = "", MASK, value[at:]
            return [*nodes, record]
        return [*nodes, *body]

    def control_value(self, position: int, size: int) -> list[Node]:
        """The fields of a control record's value; its key came before."""
        value = bytes(self.data[position : position + size])
        try:
            _, schema_codec = control_codec(-1 if self.control_kind is None else self.control_kind, value)
        except DataError:
            return []
        return try_nodes(schema_codec, self.data, position, position + size, self.base) or []

    def internal(self, position: int, size: int, name: str) -> list[Node]:
        """Key or value of a record of an internal topic: a number, and the fields of what it names."""
        if size < 2 or self.topic is None:
            return []
        number = int.from_bytes(bytes(self.data[position : position + 2]), "big", signed=True)
        if name == "key":
            self.key_schemas = key_types(self.topic).get(number)
        if self.key_schemas is None:
            return []
        schema = self.key_schemas[name == "value"]
        try:
            schema_codec = codec(schema, number)
            if name == "value":
                schema_codec, _ = value_codec(schema, number, bytes(self.data[position : position + size]))
            nodes = message_nodes(schema_codec, self.data, position + 2, position + size, self.base)
        except DataError:
            return []
        kind = "key type" if name == "key" else "version"
        return [leaf(self.data, position, 2, self.base, kind, "int16", number, schema.name), *nodes]


class _BrokenRecord(Exception):
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


# Magic 0 and 1 -------------------------------------------------------------------------------------------------------


def explain_entry(data: Bytes, start: int, stop: int, base: int, inside: str | None = None) -> Node:
    """One entry; what a wrapper holds is below it, by its positions in the decompressed bytes."""
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
        "attributes": _entry_attributes,
        "timestamp": lambda value: "none" if value == -1 else milliseconds(value),
        "length": lambda value: f"{value + OUTLINE.after('length'):,} bytes with offset and length",
        "key_length": lambda value: "null" if value < 0 else "bytes",
    }
    entry.children = layout_nodes(layout, data, start, base, meanings, upto=stop)
    _cover(entry.children, base + start + layout.after("crc"), base + stop)
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
        _unwrap_entry(entry, data, position, min(size, stop - position), base, codec, magic)
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


def _unwrap_entry(entry: Node, data: Bytes, position: int, size: int, base: int, codec: int, magic: int) -> None:
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


def _entry_attributes(value: int) -> str:
    codec = value & CODEC_MASK
    name = CODECS[codec] if codec < len(CODECS) else f"unknown codec {codec}"
    return f"{name}, {'log append time' if value & Attributes.LOG_APPEND_TIME else 'create time'}"
