"""A slow, obvious decoder of Kafka's messages and of metadata batches. Imports nothing of rawlog; the schemas are Kafka's own JSON.

`decode(schema, version, data)` gives (message, position behind it) with Kafka's JSON names; ids and bytes stay bytes. It raises
`Bad` for everything that is not a message.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from tests.reference.kafka import java_string

FOLDER = Path(__file__).parents[2] / "src" / "rawlog" / "formats" / "kafka" / "internal" / "schemas"
SIZES = {"bool": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint16": 2, "uint32": 4, "float64": 8, "uuid": 16}


class Bad(Exception):
    pass


def _load() -> dict[str, Any]:
    found = {}
    for name in ("metadata", "internal"):
        for group in json.loads((FOLDER / f"{name}.json").read_text()).values():
            for raw in group if isinstance(group, list) else []:
                if isinstance(raw, dict) and "validVersions" in raw:
                    found[raw["name"]] = raw
    return found


SCHEMAS = _load()
API_KEYS = {
    raw["apiKey"]: raw
    for group in ("records", "laterRecords")
    for raw in json.loads((FOLDER / "metadata.json").read_text())[group]
}


def versions(text: str | None) -> range:
    if text is None or text == "none":
        return range(0)
    if text.endswith("+"):
        return range(int(text[:-1]), 32768)
    low, _, high = text.partition("-")
    return range(int(low), int(high or low) + 1)


class Reader:
    def __init__(self, data: bytes, position: int, version: int, flexible: bool, common: dict[str, Any]) -> None:
        self.data, self.at, self.version, self.flexible, self.common = data, position, version, flexible, common

    def take(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self.data):
            raise Bad("too short")
        self.at += size
        return self.data[self.at - size : self.at]

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
            if shift > 28:
                raise Bad("endless number")
        if value > 0xFFFFFFFF:
            raise Bad("number too large")
        return value

    def fixed(self, type: str) -> Any:
        raw = self.take(SIZES[type])
        if type == "uuid":
            return raw
        if type == "bool":
            return raw != b"\0"
        if type == "float64":
            return struct.unpack(">d", raw)[0]
        return int.from_bytes(raw, "big", signed=type[0] == "i")

    def length(self, type: str, nullable: bool) -> int | None:
        size = (
            self.uvarint() - 1
            if self.flexible
            else int.from_bytes(self.take(2 if type == "string" else 4), "big", signed=True)
        )
        if size < -1 or (size == -1 and not nullable):
            raise Bad("length")
        return None if size == -1 else size

    def value(self, field: dict[str, Any], in_tag: bool = False) -> Any:
        type = field["type"]
        nullable = self.version in versions(field.get("nullableVersions"))
        if type.startswith("[]"):
            count = self.length("array", nullable)
            if count is None:
                return None
            element = type[2:]
            inner = field.get("fields") or self.common.get(element)
            least = 1 if inner else SIZES.get(element, 1)
            if count * least > len(self.data) - self.at:
                raise Bad("count")
            return [self.one(element, inner) for _ in range(count)]
        inner = field.get("fields") or self.common.get(type)
        if inner is not None and nullable:
            mark = self.take(1)[0]
            if mark == (0 if in_tag else 255):
                return None
            if mark != 1:
                raise Bad("mark")
        return self.one(type, inner, nullable)

    def one(self, type: str, inner: Any, nullable: bool = False) -> Any:
        if inner is not None:
            return self.struct(inner)
        if type in SIZES:
            return self.fixed(type)
        size = self.length(type, nullable)
        if size is None:
            return None
        raw = self.take(size)
        if type == "bytes":
            return raw
        return java_string(raw)

    def struct(self, fields: list[dict[str, Any]]) -> dict[str, Any]:
        message: dict[str, Any] = {}
        tagged: dict[int, dict[str, Any]] = {}
        elsewhere = set()
        for field in fields:
            name = field["name"][0].lower() + field["name"][1:]
            if self.version not in versions(field["versions"]):
                if "tag" in field:
                    elsewhere.add(field["tag"])
                continue
            if self.flexible and "tag" in field and self.version in versions(field.get("taggedVersions")):
                tagged[field["tag"]] = field
                continue
            message[name] = self.value(field)
        if self.flexible:
            previous = -1
            for _ in range(self.uvarint()):
                tag, size = self.uvarint(), self.uvarint()
                end = self.at + size
                if end > len(self.data) or tag <= previous:
                    raise Bad("tag")
                previous = tag
                if tag in tagged:
                    name = tagged[tag]["name"]
                    message[name[0].lower() + name[1:]] = self.value(tagged[tag], in_tag=True)
                    if self.at != end:
                        raise Bad("tag size")
                elif tag in elsewhere:
                    raise Bad("tag of another version")
                else:
                    message.setdefault("unknownTaggedFields", []).append((tag, self.take(size)))
        return message


def decode(name: str, version: int, data: bytes, position: int = 0) -> tuple[dict[str, Any], int]:
    """The message at `position`; tagged fields that are absent are left out."""
    raw = SCHEMAS[name]
    if version not in versions(raw["validVersions"]):
        raise Bad("version")
    common = {one["name"]: one["fields"] for one in raw.get("commonStructs", [])}
    reader = Reader(data, position, version, version in versions(raw["flexibleVersions"]), common)
    message = reader.struct(raw["fields"])
    return message, reader.at


def decode_frame(value: bytes) -> tuple[str, int, dict[str, Any]]:
    """Name, version and message of a metadata record in its frame."""
    reader = Reader(value, 0, 0, True, {})
    if reader.uvarint() != 1:
        raise Bad("frame")
    key, version = reader.uvarint(), reader.uvarint()
    if key not in API_KEYS:
        raise Bad("type")
    message, end = decode(API_KEYS[key]["name"], version, value, reader.at)
    if end != len(value):
        raise Bad("left over")
    return API_KEYS[key]["name"], version, message


MIGRATING = bytes(16)
LISTS = ("isr", "replicas", "removingReplicas", "addingReplicas", "eligibleLeaderReplicas", "lastKnownElr")


class Cluster:
    """What the records of a metadata log add up to, record by record: topics with their partitions, and settings."""

    def __init__(self) -> None:
        self.names: dict[bytes, str] = {}
        self.partitions: dict[tuple[bytes, int], dict[str, Any]] = {}
        self.settings: dict[tuple[int, str, str], str] = {}
        #: The numbers of records that a controller would not replay.
        self.refused: list[int] = []
        self.transaction: list[tuple[int, str, dict[str, Any]]] | None = None

    def add(self, number: int, value: bytes) -> None:
        try:
            name, _, message = decode_frame(value)
        except Bad:
            self.refused.append(number)
            return
        if name == "BeginTransactionRecord":
            if self.transaction is not None:
                self.refused.append(number)
            else:
                self.transaction = []
        elif name in ("EndTransactionRecord", "AbortTransactionRecord"):
            if self.transaction is None:
                self.refused.append(number)
                return
            records, self.transaction = self.transaction, None
            for record in records if name == "EndTransactionRecord" else ():
                self.apply(*record)
        elif self.transaction is not None:
            self.transaction.append((number, name, message))
        else:
            self.apply(number, name, message)

    def apply(self, number: int, name: str, message: dict[str, Any]) -> None:
        topic_id = message.get("topicId")
        if name == "ConfigRecord":
            key = message["resourceType"], message["resourceName"], message["name"]
            self.settings.pop(key, None)
            if message["value"] is not None:
                self.settings[key] = message["value"]
        elif name == "TopicRecord":
            self.forget(message["topicId"])
            self.names[message["topicId"]] = message["name"]
        elif name == "ClearElrRecord":
            wanted = message["topicName"]
            if wanted and wanted not in self.names.values():
                self.refused.append(number)
                return
            for (topic, _), partition in self.partitions.items():
                if not wanted or self.names[topic] == wanted:
                    partition["eligibleLeaderReplicas"] = partition["lastKnownElr"] = []
        elif topic_id is not None and topic_id not in self.names:
            self.refused.append(number)
        elif name == "RemoveTopicRecord":
            assert topic_id is not None
            gone = self.names[topic_id]
            self.forget(topic_id)
            for key in [key for key in self.settings if key[:2] == (2, gone)]:
                del self.settings[key]
        elif name == "PartitionRecord":
            assert topic_id is not None
            directories = message.get("directories") or []
            if not any(map(any, directories)):
                directories = [MIGRATING] * len(message["replicas"])
            if len(directories) != len(message["replicas"]):
                self.refused.append(number)
                return
            lists = {key: message.get(key) or [] for key in LISTS}
            more = {"leaderRecoveryState": 0, **message, **lists, "directories": directories}
            self.partitions[topic_id, message["partitionId"]] = more
        elif name == "PartitionChangeRecord":
            assert topic_id is not None
            if (topic_id, message["partitionId"]) not in self.partitions:
                self.refused.append(number)
            else:
                self.change(number, self.partitions[topic_id, message["partitionId"]], message)

    def change(self, number: int, partition: dict[str, Any], change: dict[str, Any]) -> None:
        replicas, directories = change.get("replicas"), change.get("directories")
        if replicas is not None and directories is not None and len(replicas) != len(directories):
            self.refused.append(number)
            return
        if directories is None and replicas is not None and not any(map(any, partition["directories"])):
            directories = [MIGRATING] * len(replicas)
        for key in LISTS:
            if change.get(key) is not None:
                partition[key] = change[key]
        if directories is not None:
            partition["directories"] = directories
        if change.get("leader", -2) != -2:
            partition["leader"] = change["leader"]
            partition["leaderEpoch"] += 1
        if change.get("leaderRecoveryState", -1) != -1:
            partition["leaderRecoveryState"] = change["leaderRecoveryState"]
        partition["partitionEpoch"] += 1

    def forget(self, topic_id: bytes) -> None:
        self.names.pop(topic_id, None)
        self.partitions = {key: value for key, value in self.partitions.items() if key[0] != topic_id}
