"""The stored schemas compared with those in the newest released jars: of 4.4.0 where there are any, else of 4.3.1."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from rawlog.formats.kafka.internal.codec import (
    Schema,
    SchemaField,
    _schema,
    schemas,
)
from rawlog.formats.kafka.internal.messages import ACL_OPERATIONS, LEVELS, framed_types
from tests.conftest import needed
from tests.services.jars import class_path

pytestmark = pytest.mark.broker

#: Of 4.4, and in no jar yet. Take them out of here when the jars have them.
AHEAD = {"UnregisterControllerRecord", "storedDescriptionTopologyEpoch", "failedDescriptionTopologyEpoch"}
#: In the jars and not stored: covered by versions of others, or never in a log.
NOT_STORED = {
    "ControlRecordTypeSchema",
    "DefaultPrincipalData",
    "LegacyOffsetCommitKey",
    "LegacyOffsetCommitValue",
    "AbortedTxn",
}
#: Their frame is read by other means: the version is a field of the stored schema, or is the type of the key.
OTHER_FRAME = {"EndTxnMarker"}
#: The log holds these control records; the clients' jar has requests and responses besides.
CONTROL = {
    "LeaderChangeMessage",
    "SnapshotHeaderRecord",
    "SnapshotFooterRecord",
    "KRaftVersionRecord",
    "VotersRecord",
    "EndTxnMarker",
}


@cache
def jars() -> tuple[zipfile.ZipFile, ...]:
    with needed():
        return tuple(zipfile.ZipFile(path) for path in class_path("kafka-schemas-4.4.0").split(":"))


def released() -> Iterator[Schema]:
    """The schemas of what Kafka writes to disk."""
    for jar in jars():
        for name in jar.namelist():
            if re.fullmatch(r"(common/)?(metadata|message)/\w+\.json", name):
                text = re.sub(r"^\s*//.*$", "", jar.read(name).decode(), flags=re.MULTILINE)
                raw: dict[str, Any] = json.loads(text)
                is_wire = raw["type"] in ("request", "response", "header")
                if not is_wire and ("kafka-clients" not in str(jar.filename) or raw["name"] in CONTROL):
                    complete(raw["fields"])
                    yield _schema(raw)


def complete(fields: list[dict[str, Any]]) -> None:
    """Kafka's generator takes the versions of the tag where a field has none of its own."""
    for one in fields:
        one.setdefault("versions", one.get("taggedVersions"))
        complete(one.get("fields", []))


def fields_of(fields: tuple[SchemaField, ...], version: int, *, ahead: frozenset[str]) -> list[Any]:
    """What of fields decides on bytes in a version: those in their places, then the tagged ones."""
    found = [one for one in fields if version in one.versions and one.name not in ahead]
    rows = []
    for one in found:
        is_tagged = one.tag is not None and version in one.tagged
        inner = None if one.struct is None else fields_of(one.struct, version, ahead=ahead)
        type = "struct" if one.struct is not None else one.type
        row = (one.name.lower(), type, one.is_array, version in one.nullable, one.tag if is_tagged else None, inner)
        rows.append((is_tagged, one.tag if is_tagged else -1, row))
    plain = [row for is_tagged, _, row in rows if not is_tagged]
    return plain + [row for _, _, row in sorted((one for one in rows if one[0]), key=lambda one: one[1])]


def test_every_released_schema_is_stored_as_it_is() -> None:
    """A record type or a tagged field of a new release was unknown until somebody met it."""
    stored = schemas()
    different, missing, seen = [], [], set()
    for schema in released():
        if schema.name in NOT_STORED:
            continue
        if schema.name not in stored:
            missing.append(schema.name)
            continue
        seen.add(schema.name)
        mine = stored[schema.name]
        ahead = frozenset(AHEAD)
        is_key = schema.name.endswith("Key")  # of a coordinator: the number is the type, not a version
        versions = range(schema.valid.low, schema.valid.high + 1)
        for version in versions if schema.name not in OTHER_FRAME else ():
            own = mine.valid.low if is_key and version not in mine.valid else version
            if own not in mine.valid or (version in schema.flexible) != (own in mine.flexible):
                different.append((schema.name, version, "not valid, or encoded otherwise"))
            elif fields_of(schema.fields, version, ahead=ahead) != fields_of(mine.fields, own, ahead=ahead):
                different.append((schema.name, version, "other fields"))
    assert not missing
    assert not different
    assert len(seen) > 60
    metadata = {schema.name for schema in framed_types().values()}
    assert metadata - seen <= AHEAD, "a record of the metadata log that no release has"


def constants(name: str) -> str:
    """The names in a class file."""
    for jar in jars():
        if name in jar.namelist():
            return jar.read(name).decode("latin-1")
    raise AssertionError(f"no {name}")


def test_levels_and_operations_are_those_of_the_newest_release() -> None:
    """Levels 31 to 34 had no name, and operation 15 of an access rule was shown as a number."""
    found = set(
        re.findall(r"IBP_(\d+)_(\d+)_IV(\d+)", constants("org/apache/kafka/server/common/MetadataVersion.class"))
    )
    names = {f"{major}.{minor}-IV{number}" for major, minor, number in found}
    assert names == set(LEVELS[LEVELS.index("3.3-IV3") :])
    text = constants("org/apache/kafka/common/acl/AclOperation.class")
    known = {name.upper().replace("-", "_") for name in ACL_OPERATIONS.values()}
    assert all(name in text for name in known)
    assert set(re.findall(r"[A-Z]{3,}(?:_[A-Z]+)*", text)) & {"TWO_PHASE_COMMIT", "DESCRIBE_TOKENS"} <= known
