"""Kafka's message schemas as its own generator reads them: fields, versions, tags. What they mean in bytes is `codec`'s.

Authority: the message JSON files of apache/kafka 1eb7644349cb, brought up to the SCHEMAS of the 4.3.1 jars and to what is known of 4.4;
`schemas/*.json` hold them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

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
    struct = None if inner is None else tuple(_field(one, common) for one in inner)
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
    common = {one["name"]: one["fields"] for one in raw.get("commonStructs", ())}
    fields = tuple(_field(one, common) for one in raw["fields"])
    return Schema(raw["name"], _versions(raw["validVersions"]), _versions(raw["flexibleVersions"]), fields)


@lru_cache(maxsize=4)
def document(name: str) -> dict[str, Any]:
    """One of the JSON files of schemas, as it is."""
    text = resources.files("rawlog.formats.kafka").joinpath("schemas", f"{name}.json").read_text("utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


@lru_cache(maxsize=1)
def schemas() -> dict[str, Schema]:
    """All schemas by name."""
    found: dict[str, Schema] = {}
    for name in ("metadata", "internal"):
        for group in document(name).values():
            for raw in group if isinstance(group, list) else ():
                if isinstance(raw, dict) and "validVersions" in raw:
                    found[raw["name"]] = _schema(raw)
    return found


def present(
    fields: Sequence[SchemaField], version: int, flexible: bool
) -> tuple[list[SchemaField], dict[int, SchemaField]]:
    """The fields of a version: those in their places, and the tagged ones by tag."""
    here = [one for one in fields if version in one.versions]
    tagged = {one.tag: one for one in here if one.is_tagged(version, flexible) and one.tag is not None}
    return [one for one in here if not one.is_tagged(version, flexible)], dict(sorted(tagged.items()))


def default_of(one: SchemaField, version: int) -> Any:
    """What a field has that is not given: its default, for a structure that of its fields."""
    if one.struct is not None and isinstance(one.default, dict):
        return {field.name: default_of(field, version) for field in one.struct if version in field.versions}
    return one.default.copy() if isinstance(one.default, list) else one.default


def is_default(one: SchemaField, value: Any, version: int) -> bool:
    """Whether a tagged field need not be written.

    Kafka writes a structure that may be null in any case: even as a null where that is the declared default.
    """
    if one.struct is not None and not one.is_array and version in one.nullable:
        return False
    return bool(value == default_of(one, version)) and (value is None) == (default_of(one, version) is None)
