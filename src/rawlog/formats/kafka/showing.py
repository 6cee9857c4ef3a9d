"""Messages as Kafka's own JSON converters show them: ids and bytes in base64, tagged fields only where they are not the default."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rawlog.formats.kafka.schema import UNKNOWN, SchemaField, default_of, is_default


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
    here = [
        (one, one.is_tagged(version, flexible), _value_shower(one, version, flexible))
        for one in fields
        if version in one.versions
    ]

    def show(message: Mapping[str, Any]) -> dict[str, Any]:
        shown: dict[str, Any] = {}
        for one, tagged, show_one in here:
            value = message[one.name] if one.name in message else default_of(one, version)
            if not tagged or not is_default(one, value, version):
                shown[one.name] = value if show_one is None else show_one(value)
        if UNKNOWN in message:
            shown[UNKNOWN] = [{"tag": tag, "data": bytes_text(raw)} for tag, raw in message[UNKNOWN]]
        return shown

    return show


def _value_shower(one: SchemaField, version: int, flexible: bool) -> Callable[[Any], Any] | None:
    show: Callable[[Any], Any] | None = None
    if one.struct is not None:
        show = struct_shower(one.struct, version, flexible)
    elif one.type == "uuid":
        show = uuid_text
    elif one.type == "bytes":
        show = bytes_text
    if show is None:
        return None
    each = show
    if one.is_array:
        return lambda value: None if value is None else [each(item) for item in value]
    return lambda value: None if value is None else each(value)
