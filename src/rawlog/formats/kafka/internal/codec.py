"""Messages to bytes and back by their schemas: every type, flexible versions and older ones, tagged fields.

A decoded message is a dict by Kafka's JSON names: a uuid is its 16 bytes, an array a list, tagged fields that are absent have their
defaults, and tags that the schema does not know are kept under UNKNOWN. Fields that a version does not have are not there. Record batches
(type `records`) are views of the bytes.
The functions for a schema at a version are put together once (runs of fixed fields become one struct) and kept.
"""

from __future__ import annotations

import base64
import json
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from rawlog.model.errors import CorruptError, DataError, EncodeError, LimitError, TruncatedError, UnsupportedError
from rawlog.model.text import java_text

# ----------------------------------------------------------------------------------------------------------------------
# Kafka's message schemas as its own generator reads them: fields, versions, tags. What they mean in bytes is `codec`'s.
# Authority: the message JSON files of apache/kafka 1eb7644349cb, brought up to the SCHEMAS of the 4.3.1 jars and to what is known of 4.4;
# `schemas/*.json` hold them.


MOST = 0x7FFF
"""No version is above this."""
_ABSENT = object()
UNKNOWN = "unknownTaggedFields"
"""Where a message keeps the tags that its schema does not know: a list of (tag, bytes), in order."""


@dataclass(frozen=True, slots=True)
class Versions:
    """A range of versions, both ends included; empty if `low` is above `high`."""

    low: int
    high: int

    def __contains__(self, version: int) -> bool:
        return self.low <= version <= self.high


def _versions(text: str | None) -> Versions:
    """`3`, `1-4`, `2+` or `none`."""
    if text is None or text == "none":
        return Versions(1, 0)
    if text.endswith("+"):
        return Versions(int(text[:-1]), MOST)
    low, _, high = text.partition("-")
    return Versions(int(low), int(high or low))


_ZEROS: dict[str, Any] = {"bool": False, "string": "", "bytes": b"", "uuid": bytes(16), "float64": 0.0}


@dataclass(frozen=True, slots=True, eq=False)
class SchemaField:
    """One field. `type` is that of an element if `is_array`; `struct` its fields if that is a structure.

    A `default` of `{}` is a structure of defaults, which a nullable one may have too: null is then written out.
    """

    name: str
    type: str
    is_array: bool
    versions: Versions
    nullable: Versions
    tagged: Versions
    tag: int | None
    default: Any
    struct: tuple[SchemaField, ...] | None = None

    def is_tagged(self, version: int, flexible: bool) -> bool:
        return flexible and self.tag is not None and version in self.tagged


@dataclass(frozen=True, slots=True, eq=False)
class Schema:
    """A message: its fields in the order of the wire, and which versions there are."""

    name: str
    valid: Versions
    flexible: Versions
    fields: tuple[SchemaField, ...]


def json_name(name: str) -> str:
    """A field's name in Kafka's own JSON, which is also its name in a decoded message: `BrokerId` is `brokerId`."""
    return name[:1].lower() + name[1:]


def _field(raw: Mapping[str, Any], common: Mapping[str, Any]) -> SchemaField:
    type = raw["type"]
    is_array = type.startswith("[]")
    type = type.removeprefix("[]")
    inner = raw.get("fields") or common.get(type)
    default = raw.get("default", _ABSENT)
    struct = None if inner is None else tuple(_field(raw_field, common) for raw_field in inner)
    if default is _ABSENT:
        default = [] if is_array else _ZEROS.get(type, {} if struct is not None else 0)
    return SchemaField(
        json_name(raw["name"]),
        type,
        is_array,
        _versions(raw["versions"]),
        _versions(raw.get("nullableVersions")),
        _versions(raw.get("taggedVersions")),
        raw.get("tag"),
        default,
        struct,
    )


def _schema(raw: Mapping[str, Any]) -> Schema:
    common = {common_struct["name"]: common_struct["fields"] for common_struct in raw.get("commonStructs", ())}
    fields = tuple(_field(raw_field, common) for raw_field in raw["fields"])
    return Schema(raw["name"], _versions(raw["validVersions"]), _versions(raw["flexibleVersions"]), fields)


@lru_cache(maxsize=4)
def document(name: str) -> dict[str, Any]:
    """One of the JSON files of schemas, as it is."""
    text = resources.files("rawlog.formats.kafka.internal").joinpath("schemas", f"{name}.json").read_text("utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


@lru_cache(maxsize=1)
def schemas() -> dict[str, Schema]:
    """All schemas by name."""
    by_name: dict[str, Schema] = {}
    for name in ("metadata", "internal"):
        for group in document(name).values():
            for raw in group if isinstance(group, list) else ():
                if isinstance(raw, dict) and "validVersions" in raw:
                    by_name[raw["name"]] = _schema(raw)
    return by_name


def present(
    fields: Sequence[SchemaField], version: int, flexible: bool
) -> tuple[list[SchemaField], dict[int, SchemaField]]:
    """The fields of a version: those in their places, and the tagged ones by tag."""
    present_fields = [field for field in fields if version in field.versions]
    tagged = {
        field.tag: field for field in present_fields if field.is_tagged(version, flexible) and field.tag is not None
    }
    return [field for field in present_fields if not field.is_tagged(version, flexible)], dict(sorted(tagged.items()))


def default_of(schema_field: SchemaField, version: int) -> Any:
    """What a field has that is not given: its default, for a structure that of its fields."""
    if schema_field.struct is not None and isinstance(schema_field.default, dict):
        return {field.name: default_of(field, version) for field in schema_field.struct if version in field.versions}
    return schema_field.default.copy() if isinstance(schema_field.default, list) else schema_field.default


def is_default(field: SchemaField, value: Any, version: int) -> bool:
    """Whether a tagged field need not be written.

    Kafka always writes a nullable structure, even a null that is the declared default.
    """
    if field.struct is not None and not field.is_array and version in field.nullable:
        return False
    return bool(value == default_of(field, version)) and (value is None) == (default_of(field, version) is None)


# ----------------------------------------------------------------------------------------------------------------------
# Messages as Kafka's own JSON converters show them: ids and bytes in base64, tagged fields only where they are not the default.


def uuid_text(raw: bytes) -> str:
    """An id as Kafka writes it: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def uuid_bytes(text: str) -> bytes:
    """The 16 bytes of an id as Kafka writes it. ValueError if it is not one."""
    raw = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    if len(raw) != 16:
        raise ValueError(f"{text!r} is no id")
    return raw


def bytes_text(raw: bytes) -> str:
    """Bytes as Kafka's JSON has them."""
    return base64.b64encode(raw).decode()


def struct_shower(fields: Sequence[SchemaField], version: int, flexible: bool) -> Callable[[Any], Any]:
    """A function that shows a message as Kafka's own JSON converter does."""
    present_fields = [
        (field, field.is_tagged(version, flexible), _value_shower(field, version, flexible))
        for field in fields
        if version in field.versions
    ]

    def show(message: Mapping[str, Any]) -> dict[str, Any]:
        shown: dict[str, Any] = {}
        for field, tagged, show_field in present_fields:
            value = message[field.name] if field.name in message else default_of(field, version)
            if not tagged or not is_default(field, value, version):
                shown[field.name] = value if show_field is None else show_field(value)
        if UNKNOWN in message:
            shown[UNKNOWN] = [{"tag": tag, "data": bytes_text(raw)} for tag, raw in message[UNKNOWN]]
        return shown

    return show


def _value_shower(field: SchemaField, version: int, flexible: bool) -> Callable[[Any], Any] | None:
    show: Callable[[Any], Any] | None = None
    if field.struct is not None:
        show = struct_shower(field.struct, version, flexible)
    elif field.type == "uuid":
        show = uuid_text
    elif field.type == "bytes":
        show = bytes_text
    if show is None:
        return None
    show_item = show
    if field.is_array:
        return lambda value: None if value is None else [show_item(item) for item in value]
    return lambda value: None if value is None else show_item(value)


FIXED = {
    "bool": "?", "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint16": "H", "uint32": "I", "float64": "d", "uuid": "16s"
}  # fmt: skip
LONGEST_STRING = 0x7FFF
LARGEST_MESSAGE, MOST_ELEMENTS = 16 << 20, 1 << 19
"""The most bytes of a message, and the most structures, strings and tags in it: a controller writes batches of at most 8 MiB. Numbers in
arrays count for a sixteenth."""
SHORT = 16
"""Arrays below this many elements, nearly all, are unpacked by structs made beforehand."""

Message = dict[str, Any]
Step = Callable[[Any, int, Message], int]
Read = Callable[[Any, int], tuple[Any, int]]
Write = Callable[[Any, list[bytes]], None]


_room = threading.local()


def _take_room(count: int, position: int) -> None:
    """LimitError if a message has more elements than are meant to be in memory."""
    _room.left -= count
    if _room.left < 0:
        raise LimitError(
            f"more than {MOST_ELEMENTS:,} elements in one message", position=position, expected=MOST_ELEMENTS
        )


def read_uvarint(data: bytes, position: int) -> tuple[int, int]:
    """An unsigned LEB128 number of at most 32 bits, and the position after it. CorruptError if it does not end."""
    value = data[position]
    if value < 0x80:
        return value, position + 1
    value, shift = 0, 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 28:
            raise CorruptError("a number that does not end", position=position)
    if value > 0xFFFF_FFFF:
        raise CorruptError("a number beyond 32 bits", position=position)
    return value, position


def write_uvarint(value: int) -> bytes:
    """An unsigned number as LEB128."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class ReplacedText(str):
    """Text whose bytes are not UTF-8, as Kafka reads it: `raw` are the bytes, which are written again."""

    __slots__ = ("raw",)
    raw: bytes

    def __reduce__(self) -> tuple[Any, ...]:
        return read_text, (self.raw,)


def read_text(raw: bytes) -> str:
    """A string of a message. Kafka takes any bytes and shows U+FFFD for what is not UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        text = ReplacedText(java_text(raw))
        text.raw = raw
        return text


def write_text(text: str) -> bytes:
    """The bytes of a string: those that it was read from, if they are not UTF-8."""
    return text.raw if isinstance(text, ReplacedText) else text.encode()


@dataclass(frozen=True, slots=True)
class Codec:
    """What can be done with a schema at one version."""

    schema: Schema
    version: int
    flexible: bool
    _read: Read
    _write: Write
    _show: Callable[[Any], Any]

    def decode(self, data: bytes | memoryview, position: int = 0, *, most: int | None = None) -> tuple[Message, int]:
        """The message at `position`, and the position after it. DataError, with a position in `data`, if it cannot be read; LimitError
        for one that is larger than `most` bytes, or has more elements, than any that a broker writes.
        """
        most = LARGEST_MESSAGE if most is None else most
        if len(data) - position > most:
            raise LimitError(
                f"{self.schema.name} version {self.version}: {len(data) - position:,} bytes, more than the limit of {most:,}",
                position=position,
                expected=most,
                found=len(data) - position,
            )
        _room.left = MOST_ELEMENTS
        try:
            return self._read(data, position)
        except (struct.error, IndexError):
            raise TruncatedError(
                f"{self.schema.name} version {self.version}: the bytes end inside it", position=len(data)
            ) from None
        except DataError as error:
            error.message = f"{self.schema.name} version {self.version}: {error.message}"
            raise

    def decode_all(self, data: bytes | memoryview, position: int = 0, *, most: int | None = None) -> Message:
        """The message that fills `data` from `position` to the end. DataError if it does not."""
        message, end = self.decode(data, position, most=most)
        if end != len(data):
            rest_size = len(data) - end
            raise CorruptError(f"{self.schema.name} version {self.version}: {rest_size} bytes follow it", position=end)
        return message

    def encode(self, message: Mapping[str, Any]) -> bytes:
        """The bytes of a message; fields that are not given have their defaults. EncodeError for what does not fit."""
        return b"".join(self.encode_parts(message))

    def encode_parts(self, message: Mapping[str, Any]) -> list[bytes]:
        """The same as pieces that follow one another; record batches are not copied."""
        out: list[bytes] = []
        try:
            self._write(message, out)
        except (struct.error, TypeError, AttributeError, UnicodeEncodeError) as error:
            raise EncodeError(f"{self.schema.name} version {self.version}: {error}") from None
        return out

    def to_json(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """The message as Kafka's own JSON converter shows it: ids and bytes in base64, absent tagged fields left out."""
        return self._show(message)  # type: ignore[no-any-return]


@lru_cache(maxsize=512)
def codec(schema: Schema, version: int) -> Codec:
    """The codec of a schema at a version; UnsupportedError if there is no such version."""
    if version not in schema.valid:
        versions = f"{schema.valid.low} to {schema.valid.high}"
        raise UnsupportedError(
            f"{schema.name} version {version}; {versions} are known", expected=versions, found=version, field="version"
        )
    flexible = version in schema.flexible
    fields = schema.fields
    return Codec(
        schema,
        version,
        flexible,
        _struct_reader(fields, version, flexible),
        _struct_writer(fields, version, flexible),
        struct_shower(fields, version, flexible),
    )


# ------------------------------------------------------------------ reading


def _struct_reader(fields: Sequence[SchemaField], version: int, flexible: bool) -> Read:
    plain, tagged = present(fields, version, flexible)
    steps: list[Step] = []
    run: list[SchemaField] = []
    for field in plain:
        if not field.is_array and field.type in FIXED:
            run.append(field)
            continue
        if run:
            steps.append(_run_step(run))
            run = []
        steps.append(_field_step(field.name, _field_reader(field, version, flexible)))
    if run:
        steps.append(_run_step(run))
    if flexible:
        steps.append(_tags_step(fields, tagged, version))

    def read(data: bytes, position: int) -> tuple[Any, int]:
        message: Message = {}
        for step in steps:
            position = step(data, position, message)
        return message, position

    return read


def _run_step(run: list[SchemaField]) -> Step:
    names = [field.name for field in run]
    packed = struct.Struct(">" + "".join(FIXED[field.type] for field in run))
    unpack, size = packed.unpack_from, packed.size
    if len(names) == 1:
        name = names[0]

        def single_step(data: bytes, position: int, message: Message) -> int:
            message[name] = unpack(data, position)[0]
            return position + size

        return single_step

    def step(data: bytes, position: int, message: Message) -> int:
        message.update(zip(names, unpack(data, position), strict=True))
        return position + size

    return step


def _field_step(name: str, read: Read) -> Step:
    def step(data: bytes, position: int, message: Message) -> int:
        message[name], position = read(data, position)
        return position

    return step


def _length_reader(flexible: bool, wide: bool) -> Read:
    """Reads a length or count, -1 for null: a uvarint less one, or int16 for old strings and int32 for the rest."""
    if flexible:

        def compact(data: bytes, position: int) -> tuple[int, int]:
            value = data[position]
            if value < 0x80:
                return value - 1, position + 1
            value, position = read_uvarint(data, position)
            return value - 1, position

        return compact
    unpack, size = (struct.Struct(">i").unpack_from, 4) if wide else (struct.Struct(">h").unpack_from, 2)

    def plain(data: bytes, position: int) -> tuple[int, int]:
        value = unpack(data, position)[0]
        if value < -1:
            raise CorruptError(f"length {value}", position=position)
        return value, position + size

    return plain


def _field_reader(field: SchemaField, version: int, flexible: bool, *, in_tag: bool = False) -> Read:
    nullable = version in field.nullable
    if field.is_array:
        return _array_reader(field, version, flexible, nullable)
    if field.struct is not None:
        read = _struct_reader(field.struct, version, flexible)
        return _nullable_struct_reader(read, in_tag) if nullable else read
    if field.type in FIXED:
        return _fixed_reader(field.type)
    return _text_reader(field, flexible, nullable)


def _fixed_reader(type: str) -> Read:
    packed = struct.Struct(">" + FIXED[type])
    unpack, size = packed.unpack_from, packed.size

    def read(data: bytes, position: int) -> tuple[Any, int]:
        return unpack(data, position)[0], position + size

    return read


def _text_reader(field: SchemaField, flexible: bool, nullable: bool) -> Read:
    name, is_text, is_view = field.name, field.type == "string", field.type == "records"
    length = _length_reader(flexible, wide=not is_text)

    def read(data: bytes, position: int) -> tuple[Any, int]:
        size, position = length(data, position)
        if size < 0:
            if nullable:
                return None, position
            raise CorruptError(f"{name}: null, which it may not be", position=position)
        stop = position + size
        if stop > len(data):
            raise TruncatedError(f"{name}: {size} bytes, {len(data) - position} are left", position=position)
        if is_text:
            return read_text(bytes(data[position:stop])), stop
        return memoryview(data)[position:stop] if is_view else bytes(data[position:stop]), stop

    return read


def _array_reader(field: SchemaField, version: int, flexible: bool, nullable: bool) -> Read:
    name, length = field.name, _length_reader(flexible, wide=True)
    element = FIXED.get(field.type)
    size = struct.calcsize(">" + element) if element else 1
    short = [struct.Struct(f">{count}{element}").unpack_from for count in range(SHORT)] if element else []
    read_element = (
        _struct_reader(field.struct, version, flexible)
        if field.struct is not None
        else _text_reader(field, flexible, nullable=False)
        if element is None
        else None
    )

    def read(data: bytes, position: int) -> tuple[Any, int]:
        count, position = length(data, position)
        if count < 0:
            if nullable:
                return None, position
            raise CorruptError(f"{name}: null, which it may not be", position=position)
        if count * size > len(data) - position:
            raise CorruptError(f"{name}: {count} elements, {len(data) - position} bytes are left", position=position)
        if count >= SHORT:
            _take_room(count if element is None else count >> 4, position)
        if read_element is None:
            assert element is not None
            if element == "16s":
                stop = position + count * 16
                return [data[at : at + 16] for at in range(position, stop, 16)], stop
            unpack = short[count] if count < SHORT else struct.Struct(f">{count}{element}").unpack_from
            return list(unpack(data, position)), position + count * size
        items = []
        for _ in range(count):
            item, position = read_element(data, position)
            items.append(item)
        return items, position

    return read


def _nullable_struct_reader(read: Read, in_tag: bool) -> Read:
    def read_nullable(data: bytes, position: int) -> tuple[Any, int]:
        mark = data[position]
        if mark == (0 if in_tag else 0xFF):
            return None, position + 1
        if mark != 1:
            raise CorruptError(f"mark {mark} of a structure, null or 1 expected", position=position)
        return read(data, position + 1)

    return read_nullable


def _tags_step(fields: Sequence[SchemaField], tagged: Mapping[int, SchemaField], version: int) -> Step:
    readers = {tag: (field.name, _field_reader(field, version, True, in_tag=True)) for tag, field in tagged.items()}
    elsewhere = {field.tag for field in fields if field.tag is not None} - set(tagged)
    defaults = {field.name: default_of(field, version) for field in tagged.values()}
    fresh = [name for name, value in defaults.items() if isinstance(value, (list, dict))]

    def step(data: bytes, position: int, message: Message) -> int:
        if defaults:
            message.update(defaults)
            for name in fresh:
                message[name] = defaults[name].copy()
        count = data[position]
        if count == 0:
            return position + 1
        count, position = read_uvarint(data, position)
        previous = -1
        if count >= SHORT:
            _take_room(count, position)
        for _ in range(count):
            tag, size = data[position], data[position + 1]
            if tag < 0x80 and size < 0x80:
                position += 2
            else:
                tag, position = read_uvarint(data, position)
                size, position = read_uvarint(data, position)
            stop = position + size
            if stop > len(data):
                raise TruncatedError(f"tag {tag}: {size} bytes, {len(data) - position} are left", position=position)
            if tag <= previous:
                raise CorruptError(f"tag {tag} follows tag {previous}, a higher one expected", position=position)
            previous = tag
            if tag in readers:
                name, read = readers[tag]
                message[name], position = read(data, position)
                if position != stop:
                    raise CorruptError(
                        f"{name}: ends {position - stop:+d} bytes from where its size says", position=stop
                    )
            elif tag in elsewhere:
                raise CorruptError(f"tag {tag} is not one of version {version}", position=position)
            else:
                message.setdefault(UNKNOWN, []).append((tag, data[position:stop]))
                position = stop
        return position

    return step


# ------------------------------------------------------------------ writing


def _struct_writer(fields: Sequence[SchemaField], version: int, flexible: bool) -> Write:
    plain, tagged = present(fields, version, flexible)
    writers = [(field, _field_writer(field, version, flexible)) for field in plain]
    tag_writers = [(tag, field, _field_writer(field, version, True, in_tag=True)) for tag, field in tagged.items()]
    names = {field.name for field in fields} | {UNKNOWN}

    def write(message: Mapping[str, Any], out: list[bytes]) -> None:
        if not names >= message.keys():
            raise EncodeError(f"no such field: {', '.join(sorted(message.keys() - names))}")
        for field, write_field in writers:
            write_field(message[field.name] if field.name in message else default_of(field, version), out)
        if flexible:
            tags: dict[int, bytes] = dict(message.get(UNKNOWN, ()))
            for tag, field, write_field in tag_writers:
                if field.name in message and not is_default(field, message[field.name], version):
                    content: list[bytes] = []
                    write_field(message[field.name], content)
                    tags[tag] = b"".join(content)
            out.append(write_uvarint(len(tags)))
            for tag, raw in sorted(tags.items()):
                out += (write_uvarint(tag), write_uvarint(len(raw)), raw)

    return write


def _length_writer(flexible: bool, wide: bool) -> Callable[[int], bytes]:
    if flexible:
        return lambda size: write_uvarint(size + 1)
    return struct.Struct(">i" if wide else ">h").pack


def _field_writer(field: SchemaField, version: int, flexible: bool, *, in_tag: bool = False) -> Write:
    nullable = version in field.nullable
    if not field.is_array and field.struct is None and field.type in FIXED:
        return _fixed_writer(field)
    if field.is_array:
        return _array_writer(field, version, flexible, nullable)
    if field.struct is None:
        return _text_writer(field, flexible, nullable)
    write_struct = _struct_writer(field.struct, version, flexible)

    def write(value: Any, out: list[bytes]) -> None:
        if nullable:
            out.append((b"\0" if in_tag else b"\xff") if value is None else b"\x01")
        if value is not None or not nullable:
            write_struct(value, out)

    return write


def _fixed_writer(field: SchemaField) -> Write:
    pack, name, is_id = struct.Struct(">" + FIXED[field.type]).pack, field.name, field.type == "uuid"

    def write(value: Any, out: list[bytes]) -> None:
        if is_id and len(value) != 16:
            raise EncodeError(f"{name}: {len(value)} bytes, 16 expected")
        out.append(pack(value))

    return write


def _text_writer(field: SchemaField, flexible: bool, nullable: bool) -> Write:
    name, is_text, is_view = field.name, field.type == "string", field.type == "records"
    length = _length_writer(flexible, wide=not is_text)

    def write(value: Any, out: list[bytes]) -> None:
        if value is None:
            if not nullable:
                raise EncodeError(f"{name}: may not be null")
            out.append(length(-1))
            return
        raw = write_text(value) if is_text else value if is_view else bytes(value)
        if is_text and len(raw) > LONGEST_STRING:
            raise EncodeError(f"{name}: {len(raw)} bytes of text, at most {LONGEST_STRING} expected")
        out += (length(len(raw)), raw)

    return write


def _array_writer(field: SchemaField, version: int, flexible: bool, nullable: bool) -> Write:
    name, length = field.name, _length_writer(flexible, wide=True)
    write_element: Write
    if field.struct is not None:
        write_element = _struct_writer(field.struct, version, flexible)
    elif field.type in FIXED:
        write_element = _fixed_writer(field)
    else:
        write_element = _text_writer(field, flexible, nullable=False)

    def write(value: Any, out: list[bytes]) -> None:
        if value is None:
            if not nullable:
                raise EncodeError(f"{name}: may not be null")
            out.append(length(-1))
            return
        out.append(length(len(value)))
        for item in value:
            write_element(item, out)

    return write
