"""The messages in Kafka's records: metadata records in their frame, control records, the keys and values of internal topics.

Each is found by the number in front of it; `codec` has the bytes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from rawlog.formats.kafka.internal.codec import (
    Codec,
    Message,
    Schema,
    codec,
    document,
    read_uvarint,
    schemas,
    write_uvarint,
)
from rawlog.formats.kafka.log.layouts import NONE
from rawlog.formats.kafka.log.records import decode_columns, milliseconds
from rawlog.model.errors import CorruptError, DataError, EncodeError, TruncatedError, UnsupportedError, unknown
from rawlog.model.frames import Frames

# ----------------------------------------------------------------------------------------------------------------------
# What the numbers in messages stand for, and which of their fields are secret.
# Authority: ResourceType, AclOperation, SecurityProtocol, MetadataVersion and others at apache/kafka 1eb7644349cb; levels from 26 on by
# the 4.3.0 and 4.4.0 jars.


CONFIG_RESOURCES = {2: "topic", 4: "broker", 8: "broker-logger", 16: "client-metrics", 32: "group"}
MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
ACL_RESOURCES = {2: "topic", 3: "group", 4: "cluster", 5: "transactional-id", 6: "delegation-token", 7: "user"}
ACL_PATTERNS = {3: "literal", 4: "prefixed"}
ACL_PERMISSIONS = {2: "deny", 3: "allow"}
ACL_OPERATIONS = {
    2: "all", 3: "read", 4: "write", 5: "create", 6: "delete", 7: "alter", 8: "describe", 9: "cluster-action",
    10: "describe-configs", 11: "alter-configs", 12: "idempotent-write", 13: "create-tokens", 14: "describe-tokens",
    15: "two-phase-commit",
}  # fmt: skip
SECURITY_PROTOCOLS = {0: "PLAINTEXT", 1: "SSL", 2: "SASL_PLAINTEXT", 3: "SASL_SSL"}
MIGRATION_STATES = {0: "none", 1: "migration", 2: "pre-migration", 3: "post-migration", 4: "zk"}
RECOVERY_STATES = {0: "recovered", 1: "recovering"}

LEVELS = (
    "", "3.0-IV1", "3.1-IV0", "3.2-IV0", "3.3-IV0", "3.3-IV1", "3.3-IV2", "3.3-IV3", "3.4-IV0", "3.5-IV0", "3.5-IV1", "3.5-IV2",
    "3.6-IV0", "3.6-IV1", "3.6-IV2", "3.7-IV0", "3.7-IV1", "3.7-IV2", "3.7-IV3", "3.7-IV4", "3.8-IV0", "3.9-IV0", "4.0-IV0",
    "4.0-IV1", "4.0-IV2", "4.0-IV3", "4.1-IV0", "4.1-IV1", "4.2-IV0", "4.2-IV1", "4.3-IV0", "4.4-IV0",
    "4.4-IV1", "4.4-IV2", "4.5-IV0",
)  # fmt: skip
"""Releases by level of metadata.version."""
NEWEST_LEVEL = len(LEVELS) - 1
TRANSACTION_STATUSES = {
    0: "Empty", 1: "Ongoing", 2: "PrepareCommit", 3: "PrepareAbort", 4: "CompleteCommit", 5: "CompleteAbort", 6: "Dead",
    7: "PrepareEpochFence",
}  # fmt: skip
DIRECTORY_WORDS = {0: "MIGRATING", 1: "UNASSIGNED", 2: "LOST"}
MASK = "********"
SECRET_CONFIGS = (
    "password", "passphrase", "secret", "credentials", "token", "sasl.jaas.config", "keystore.key", "private.key", "secret.key",
    "master.key",
)  # fmt: skip
SECRETS = {"UserScramCredentialRecord": ("salt", "storedKey", "serverKey")}
"""Fields of metadata records that nobody should see in passing, by schema."""


def is_secret_config(name: str) -> bool:
    """Whether a setting holds a password (the metadata log has them in the clear)."""
    return any(name.endswith(end) for end in SECRET_CONFIGS)


def is_secret(schema: str, field: str, message: Mapping[str, Any]) -> bool:
    """Whether a field is not to be shown; `message` has the fields in front of it."""
    if schema == "ConfigRecord" and field == "value":
        return is_secret_config(str(message.get("name")))
    return field in SECRETS.get(schema, ())


_BY_FIELD: dict[tuple[str, str], Mapping[int, str]] = {
    ("ConfigRecord", "resourceType"): CONFIG_RESOURCES,
    ("UserScramCredentialRecord", "mechanism"): MECHANISMS,
    ("RemoveUserScramCredentialRecord", "mechanism"): MECHANISMS,
    ("AccessControlEntryRecord", "resourceType"): ACL_RESOURCES,
    ("AccessControlEntryRecord", "patternType"): ACL_PATTERNS,
    ("AccessControlEntryRecord", "operation"): ACL_OPERATIONS,
    ("AccessControlEntryRecord", "permissionType"): ACL_PERMISSIONS,
    ("ZkMigrationStateRecord", "zkMigrationState"): MIGRATION_STATES,
    ("PartitionRecord", "leaderRecoveryState"): RECOVERY_STATES,
    ("PartitionRecord", "leader"): {-1: "none"},
    ("PartitionChangeRecord", "leaderRecoveryState"): RECOVERY_STATES,
    ("PartitionChangeRecord", "leader"): {-1: "none"},
    ("BrokerRegistrationChangeRecord", "fenced"): {-1: "unfenced", 0: "no change", 1: "fenced"},
    ("BrokerRegistrationChangeRecord", "inControlledShutdown"): {0: "no change", 1: "shutting down"},
    ("TransactionLogValue", "transactionStatus"): TRANSACTION_STATUSES,
}


def meaning(schema: str, field: str, value: Any, message: Mapping[str, Any]) -> str:
    """What a value means, where its number alone does not tell; `message` has the fields in front of it."""
    if field == "securityProtocol":
        return SECURITY_PROTOCOLS.get(value, "")
    if (schema, field) in _BY_FIELD:
        return _BY_FIELD[schema, field].get(value, "")
    if schema == "FeatureLevelRecord" and field == "featureLevel" and message.get("name") == "metadata.version":
        return LEVELS[value] if 0 < value < len(LEVELS) else f"newer than {LEVELS[-1]}"
    return ""


FRAME_VERSION = 1
#: Fields of share groups that 4.1 added or widened without a new version, and what they were in 4.0: a type, or nothing. Authority: the
#: generated classes of 4.0.1, and the directory of a real one.
_EARLY_FIELDS: dict[str, dict[str, str | None]] = {
    "ShareGroupMetadataValue": {"metadataHash": None},
    "ShareGroupStatePartitionMetadataValue": {"initializingTopics": None},
    "ShareSnapshotValue": {"snapshotEpoch": "uint16", "createTimestamp": None, "writeTimestamp": None},
    "ShareUpdateValue": {"snapshotEpoch": "uint16"},
}
_INT16 = struct.Struct(">h")
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@dataclass(frozen=True, slots=True)
class FramedRecord:
    """A metadata record: its type by number and name, its version, and the message."""

    key: int
    name: str
    codec: Codec
    version: int
    message: Message

    def to_json(self) -> dict[str, Any]:
        return self.codec.to_json(self.message)


def type_name(schema: str) -> str:
    """The name Kafka's dump tool gives a record type: `FeatureLevelRecord` is FEATURE_LEVEL_RECORD."""
    return _WORD.sub("_", schema).upper()


@lru_cache(maxsize=2)
def framed_types(kind: str = "metadata") -> dict[int, Schema]:
    """Schemas by the number in the frame: of the `metadata` log, or of the `remote` log metadata topic."""
    if kind == "metadata":
        groups = document("metadata")
        raws = [*groups["records"], *groups.get("laterRecords", ())]
    else:
        raws = document("internal")["remoteLogMetadataRecords"]
    return {raw["apiKey"]: schemas()[raw["name"]] for raw in raws}


@lru_cache(maxsize=1)
def type_numbers() -> dict[str, int]:
    """Numbers of metadata records by every name they go by: `TopicRecord`, `Topic`, `TOPIC_RECORD`."""
    numbers: dict[str, int] = {}
    for key, schema in framed_types().items():
        for name in (schema.name, schema.name.removesuffix("Record"), type_name(schema.name)):
            numbers[name] = key
    return numbers


def frame_head(value: bytes) -> tuple[int, int, int]:
    """The type and version in a frame, and where its body begins. DataError if it is no frame."""
    try:
        frame, position = read_uvarint(value, 0)
        if frame != FRAME_VERSION:
            raise UnsupportedError(
                f"frame version {frame}, 1 expected", position=0, expected=1, found=frame, field="frame version"
            )
        key, position = read_uvarint(value, position)
        version, position = read_uvarint(value, position)
    except IndexError:
        raise TruncatedError("the bytes end inside the frame", position=len(value)) from None
    if key > 0x7FFF or version > 0x7FFF:
        raise CorruptError(f"type {key}, version {version}: at most 32767 expected", position=0)
    return key, version, position


@lru_cache(maxsize=512)
def _framed_codec(kind: str, key: int, version: int) -> tuple[str, Codec]:
    schema = framed_types(kind).get(key)
    if schema is None:
        raise UnsupportedError(f"record type {key}, which is not known", found=key, field="record type")
    return type_name(schema.name), codec(schema, version)


def decode_record(value: bytes, kind: str = "metadata") -> tuple[int, int, Message]:
    """The type, version and message of the record in a frame. UnsupportedError for types and versions that are not known,
    CorruptError and TruncatedError for the rest.
    """
    # Nearly every number is one byte: this is the inner loop of a fold.
    if len(value) > 3 and value[0] == FRAME_VERSION and value[1] < 0x80 and value[2] < 0x80:
        key, version, position = value[1], value[2], 3
    else:
        key, version, position = frame_head(value)
    return key, version, _framed_codec(kind, key, version)[1].decode_all(value, position)


def decode_framed(value: bytes, kind: str = "metadata") -> FramedRecord:
    """The record in a frame, with its name and codec. Raises as `decode_record` does."""
    key, version, message = decode_record(value, kind)
    return FramedRecord(key, *_framed_codec(kind, key, version), version=version, message=message)


def encode_framed(type: int | str, message: Mapping[str, Any], version: int | None = None) -> bytes:
    """A metadata record in its frame, by default in the lowest version that holds what is given.

    OptionError for an unknown type; EncodeError for what does not fit.
    """
    if isinstance(type, str):
        if type not in type_numbers():
            raise unknown("metadata record", type, type_numbers())
        type = type_numbers()[type]
    schema = framed_types().get(type)
    if schema is None:
        raise EncodeError(f"metadata record type {type} is not known")
    if version is None:
        version = lowest_version(schema, message)
    elif version not in schema.valid:
        raise EncodeError(f"{schema.name} version {version}; {schema.valid.low} to {schema.valid.high} are known")
    else:
        _refuse_absent(schema, message, version)
    head = write_uvarint(FRAME_VERSION) + write_uvarint(type) + write_uvarint(version)
    return head + codec(schema, version).encode(message)


def lowest_version(schema: Schema, message: Mapping[str, Any]) -> int:
    """The lowest version that has every field with another value than its default."""
    for version in range(schema.valid.low, schema.valid.high + 1):
        if not _absent(schema, message, version):
            return version
    raise EncodeError(f"{schema.name}: no version holds {', '.join(sorted(message))}")


def _absent(schema: Schema, message: Mapping[str, Any], version: int) -> list[str]:
    fields = {field.name: field for field in schema.fields}
    return [
        name
        for name, value in message.items()
        if name in fields and version not in fields[name].versions and value != fields[name].default
    ]


def _refuse_absent(schema: Schema, message: Mapping[str, Any], version: int) -> None:
    lost = _absent(schema, message, version)
    if lost:
        raise EncodeError(f"{schema.name} version {version} has no {', '.join(lost)}")


# ------------------------------------------------------------------ control records


@lru_cache(maxsize=1)
def control_types() -> dict[int, tuple[str, Schema]]:
    """Names and schemas of control records by their type."""
    rows = document("internal")["controlTypes"]
    return {row["controlType"]: (row["controlName"], schemas()[row["valueSchema"]]) for row in rows}


def control_codec(type: int, value: bytes) -> tuple[str, Codec]:
    """The name and codec of a control record's value, whose first field is its version. DataError if there is none."""
    if type not in control_types():
        raise UnsupportedError(f"control record type {type}, which is not known", found=type)
    if len(value) < _INT16.size:
        raise TruncatedError("a control record without a version", position=0)
    name, schema = control_types()[type]
    return name, codec(schema, _INT16.unpack_from(value)[0])


def decode_control(type: int, value: bytes) -> tuple[str, Codec, Message]:
    """The name, codec and message of a control record. DataError if it is not known."""
    name, schema_codec = control_codec(type, value)
    message, _ = schema_codec.decode(value)
    return name, schema_codec, message


def encode_control(type: int, message: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """Key and value of a control record. EncodeError for what does not fit."""
    if type not in control_types():
        raise EncodeError(f"control record type {type} is not known")
    key = codec(schemas()["ControlRecordKey"], 0).encode({"version": 0, "type": type})
    return key, codec(control_types()[type][1], int(message.get("version", 0))).encode(message)


# ------------------------------------------------------------------ internal topics

CONSUMER_OFFSETS, TRANSACTION_STATE, SHARE_STATE = "__consumer_offsets", "__transaction_state", "__share_group_state"
_KEY_TYPES = {
    CONSUMER_OFFSETS: ("consumerOffsetsKeyTypes", "laterConsumerOffsetsKeyTypes"),
    TRANSACTION_STATE: ("transactionStateKeyTypes",),
    SHARE_STATE: ("shareGroupStateKeyTypes",),
}
KEYED = frozenset(_KEY_TYPES)
"""The internal topics whose records `decode_keyed` knows."""


@dataclass(frozen=True, slots=True)
class KeyedRecord:
    """A record of an internal topic: the schemas' names without Key and Value, both messages; `value` None deletes the key."""

    type: int
    name: str
    key: Message
    key_codec: Codec
    version: int | None
    value: Message | None
    value_codec: Codec | None


@lru_cache(maxsize=4)
def key_types(topic: str) -> dict[int, tuple[Schema, Schema]]:
    """Schemas of keys and values of an internal topic by the number in front of the key."""
    types = {}
    for name in _KEY_TYPES[topic]:
        for row in document("internal")[name]:
            types[row["keyType"]] = (schemas()[row["keySchema"]], schemas()[row["valueSchema"]])
    return types


@lru_cache(maxsize=8)
def _early_schema(schema: Schema) -> Schema | None:
    """A value as the early access release wrote it under the same version number; None if that was the same."""
    if schema.name not in _EARLY_FIELDS:
        return None
    early_types = {field.name: _EARLY_FIELDS[schema.name].get(field.name, field.type) for field in schema.fields}
    kept = ((field, early_types[field.name]) for field in schema.fields)
    return replace(schema, fields=tuple(replace(field, type=type) for field, type in kept if type is not None))


def value_codec(schema: Schema, version: int, value: bytes) -> tuple[Codec, Message]:
    """The codec of a value of an internal topic, and the decoded message. DataError if it cannot be decoded."""
    schema_codec = codec(schema, version)
    try:
        return schema_codec, schema_codec.decode_all(value, _INT16.size)
    except (CorruptError, TruncatedError):
        if (early := _early_schema(schema)) is None:
            raise
    schema_codec = codec(early, version)
    return schema_codec, schema_codec.decode_all(value, _INT16.size)


def decode_keyed(topic: str, key: bytes | None, value: bytes | None) -> KeyedRecord:
    """A record of `__consumer_offsets`, `__transaction_state` or `__share_group_state`. DataError if it is not one."""
    if key is None or len(key) < _INT16.size:
        raise CorruptError("no key, or none that names its type")
    number = _INT16.unpack_from(key)[0]
    if number not in key_types(topic):
        raise UnsupportedError(f"key type {number}, which is not known in {topic}", found=number)
    key_schema, value_schema = key_types(topic)[number]
    key_codec = codec(key_schema, number)
    key_message = key_codec.decode_all(key, _INT16.size)
    name = key_schema.name.removesuffix("Key")
    if value is None:
        return KeyedRecord(number, name, key_message, key_codec, None, None, None)
    if len(value) < _INT16.size:
        raise TruncatedError("a value without a version")
    version = _INT16.unpack_from(value)[0]
    schema_codec, message = value_codec(value_schema, version, value)
    return KeyedRecord(number, name, key_message, key_codec, version, message, schema_codec)


def encode_keyed(record: KeyedRecord) -> tuple[bytes, bytes | None]:
    """Key and value of a record of an internal topic."""
    key = _INT16.pack(record.type) + record.key_codec.encode(record.key)
    if record.value is None or record.value_codec is None:
        return key, None
    return key, _INT16.pack(record.value_codec.version) + record.value_codec.encode(record.value)


def decode_embedded(name: str, raw: bytes) -> dict[str, Any] | None:
    """The subscription or assignment inside a classic group's member, as JSON; None if the bytes are another protocol's.

    A version above those known is read as the newest known, as consumers do.
    """
    if len(raw) < _INT16.size:
        return None
    schema = schemas()[name]
    version = min(_INT16.unpack_from(raw)[0], schema.valid.high)
    try:
        schema_codec = codec(schema, version)
        message, _ = schema_codec.decode(raw, _INT16.size)
    except (CorruptError, TruncatedError, UnsupportedError):
        return None
    return schema_codec.to_json(message)


# ----------------------------------------------------------------------------------------------------------------------
# Control records: what a transaction marker, or another record of a broker's own, says of itself.


def read_marker(frames: Frames, index: int) -> tuple[int | None, int, int]:
    """The type, coordinator epoch and time (ms) of a control batch's first record; type None if it cannot be read."""
    batch = frames.slice(index, index + 1)
    try:
        decoded = decode_columns(batch.data, batch.starts, batch.stops, {"key", "value", "timestamp"}, limit=1 << 16)
    except DataError:
        return None, NONE, NONE
    if not decoded.count:
        return None, NONE, NONE
    value = decoded.arrays["value"][0].as_py() or b""
    epoch = int.from_bytes(value[2:6], "big", signed=True) if len(value) >= 6 else NONE
    timestamp = int(milliseconds(decoded.arrays["timestamp"])[0])
    return control_type(decoded.arrays["key"][0].as_py()), epoch, timestamp


def control_type(key: bytes | None) -> int | None:
    """The type that a control record's key names: int16 version, int16 type. None for a key too short, or of a version below 0."""
    if key is None or len(key) < 4 or key[0] & 0x80:
        return None
    return int.from_bytes(key[2:4], "big", signed=True)
