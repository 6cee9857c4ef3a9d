"""What `explain` shows of a log segment: its header, and a message to the last byte."""

from __future__ import annotations

from rawlog.core.errors import DataError
from rawlog.core.explain import Node, milliseconds
from rawlog.core.format import File
from rawlog.core.frames import Frames
from rawlog.core.layout import Layout
from rawlog.formats.ambry.content import read_envelope, read_metadata
from rawlog.formats.ambry.layouts import (
    BLOB_TYPES,
    BLOBS,
    CRC_SIZE,
    ENCRYPTION_KEY,
    HEADERS,
    NONE,
    SEGMENT_HEADER,
    UPDATE_V1,
    UPDATE_V2,
    UPDATE_V3,
    USER_METADATA,
)
from rawlog.formats.ambry.structures import Cursor, update_name

_TIMES = frozenset({"creation_time", "update_time"})


def explain_header(head: bytes, file: File) -> list[Node]:
    """The segment header; none in `log_current`."""
    from rawlog.formats.ambry.paths import begin

    if not begin(head, file.size).position:
        return []
    cursor = Cursor(head)
    cursor.number("version", "i16")
    cursor.number("capacity_in_bytes", "i64", SEGMENT_HEADER.field("capacity_in_bytes").note)
    cursor.crc()
    return [Node(0, SEGMENT_HEADER.size, SEGMENT_HEADER.name, children=cursor.nodes)]


def explain_message(frames: Frames, file: File) -> list[Node]:
    """One message: header, key, and every record with all its fields."""
    start, stop = int(frames.starts[0]), int(frames.stops[0])
    cursor = Cursor(frames.data[start:stop].tobytes(), base=frames.base + start)
    version = int.from_bytes(cursor.data[:2], "big")
    layout = HEADERS[version]
    offsets = {}
    with cursor.group(layout.name):
        for item in layout.fields[:-1]:
            note = item.note if item.name != "payload_size" else "bytes of all records"
            offsets[item.name] = cursor.number(item.name, f"i{item.size * 8}", note)
        cursor.crc()
    cursor.key()
    is_put = offsets["blob_properties_offset"] > 0
    what = "PUT"
    try:
        if is_put:
            _explain_put(cursor, has_key=offsets.get("encryption_key_offset", NONE) != NONE)
        else:
            what = _explain_update(cursor)
    except DataError as error:
        what += f"; {error.message}"
    if cursor.left:
        cursor.raw("not part of a record", cursor.left)
    return [
        Node(frames.base + start, stop - start, f"message, number {frames.first}", meaning=what, children=cursor.nodes)
    ]


def _fields(cursor: Cursor, layout: Layout, *leave: str) -> dict[str, int]:
    values = {}
    for item in layout.fields:
        if item.name in leave:
            continue
        meaning: object = milliseconds if item.name in _TIMES else item.note
        values[item.name] = cursor.number(item.name, f"i{item.size * 8}", meaning)  # type: ignore[arg-type]
    return values


def _sized(cursor: Cursor, layout: Layout, name: str) -> None:
    start = cursor.position
    with cursor.group(layout.name):
        size = _fields(cursor, layout)["size"]
        cursor.raw(name, size)
        cursor.crc(start)


def _explain_put(cursor: Cursor, *, has_key: bool) -> None:
    if has_key:
        _sized(cursor, ENCRYPTION_KEY, "encryption_key")
    start = cursor.position
    with cursor.group("blob properties record"):
        cursor.version((1,))
        serde = cursor.version((1, 2, 3, 4, 5), "serde_version")
        cursor.number("time_to_live", "i64", lambda value: "for ever" if value == NONE else "seconds")
        cursor.number("is_private", "i8")
        cursor.number("creation_time", "i64", milliseconds)
        cursor.number("blob_size", "i64", "of the blob as its user sees it")
        for name in ("content_type", "owner_id", "service_id"):
            cursor.text(name)
        if serde >= 2:
            cursor.number("account_id", "i16")
            cursor.number("container_id", "i16")
        if serde >= 3:
            cursor.number("is_encrypted", "i8")
        for name, since in (("content_encoding", 4), ("filename", 4), ("reserved_metadata_blob_id", 5)):
            if serde >= since:
                cursor.text(name)
        cursor.crc(start)
    _sized(cursor, USER_METADATA, "user_metadata")
    _explain_blob(cursor)


def _explain_blob(cursor: Cursor) -> None:
    start = cursor.position
    version = int.from_bytes(cursor.data[start : start + 2], "big", signed=True)
    layout = BLOBS.get(version)
    if layout is None:
        cursor.version(tuple(BLOBS))
        return
    with cursor.group(layout.name):
        cursor.version(tuple(BLOBS))
        kind = compressed = 0
        if version >= 2:
            kind = cursor.number("blob_type", "i16", lambda value: BLOB_TYPES[value] if 0 <= value < 2 else "unknown")
        if version >= 3:
            compressed = cursor.number("is_compressed", "i8", "1: the content is an envelope with compressed bytes")
        size = cursor.number("size", "i64")
        content = cursor.data[cursor.position : cursor.position + max(size, 0)]
        inner = _inside(content, cursor.base + cursor.position, kind, compressed)
        cursor.raw("content", size)
        cursor.nodes[-1].children = inner
        cursor.crc(start)


def _inside(content: bytes, base: int, kind: int, compressed: int) -> list[Node]:
    """The parts of content that is a list of chunks or an envelope; nothing where it is neither."""
    inner = Cursor(content, base=base)
    try:
        if compressed == 1:
            name, size, start = read_envelope(content)
            inner.number("version", "i8")
            inner.number("name_size", "i8")
            inner.raw("algorithm", len(name), "text", name)
            inner.number("original_size", "i32", f"{size:,} bytes when decompressed")
            inner.raw("compressed", len(content) - start)
        elif kind == 1:
            read_metadata(inner)
    except DataError:
        return []
    return inner.nodes


def _explain_update(cursor: Cursor) -> str:
    start = cursor.position
    version = int.from_bytes(cursor.data[start : start + 2], "big", signed=True)
    kind = "DELETE"
    with cursor.group(f"update record V{version}"):
        if version == 1:
            _fields(cursor, UPDATE_V1, "crc")
        elif version == 2:
            _fields(cursor, UPDATE_V2, "crc")
        elif version == 3:
            _fields(cursor, UPDATE_V3, "type", "sub_version")
            kind = update_name(cursor.number("type", "i16", update_name))
            with cursor.group("sub-record"):
                cursor.number("version", "i16")
                if kind == "TTL_UPDATE":
                    cursor.number("new_expiry", "i64", lambda value: "never" if value == NONE else milliseconds(value))
        else:
            cursor.version((1, 2, 3))
        if cursor.left >= CRC_SIZE:
            cursor.crc(start)
    return kind
