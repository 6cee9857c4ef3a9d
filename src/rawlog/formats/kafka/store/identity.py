"""Whose a partition is: `partition.metadata`, and where else its topic's id can be found when that file is damaged or gone."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rawlog.core.errors import AccessError, DataError, RawlogError
from rawlog.core.format import File, Place
from rawlog.formats.kafka.internal import read_records
from rawlog.formats.kafka.messages import decode_record, framed_types
from rawlog.formats.kafka.paths import INTERNAL, METADATA_TOPIC, directory_place, split
from rawlog.formats.kafka.showing import uuid_text
from rawlog.formats.kafka.store.partition_writer import METADATA
from rawlog.formats.kafka.texts import properties, topic_id
from rawlog.io.storage import Source, exists, listing

LARGEST_TEXT = 1 << 20
META, BOOTSTRAP = "meta.properties", "bootstrap.checkpoint"
TOPIC = 2
"""The type of a topic among the resources that have settings."""
_METADATA_DIRECTORY = f"{METADATA_TOPIC}-0"


@dataclass(frozen=True, slots=True)
class Identity:
    """What a partition's `partition.metadata` is to hold, None for no such file; `change` tells why it is not what was there."""

    path: str
    size: int = 0
    data: bytes | None = None
    change: str | None = None


def identity(files: Sequence[File]) -> Identity | None:
    """Whose a partition is: as its own file says, or its topic's id as the log directory around it tells. None where nothing is to
    be said: brokers without KRaft do without.
    """
    place = next((one.place for one in files if one.place.group is not None), Place())
    own = next((one for one in files if one.format == "kafka.partition" and one.problem is None), None)
    path = f"{place.group}/{METADATA}" if own is None else own.path
    if own is not None:
        data = _text(own.path)
        try:
            topic_id(data)
        except ValueError:
            pass
        else:
            return Identity(path, own.size, data)
    source = parent_of(place.group or "")
    if own is None and (place.topic in (None, METADATA_TOPIC) or not _is_kraft(source)):
        return None
    found = None if place.topic is None else _told_elsewhere(source, place.topic)
    if found is not None:
        made = f"version: 0\ntopic_id: {uuid_text(found)}".encode()
        what = "missing" if own is None else "damaged"
        return Identity(path, 0 if own is None else own.size, made, f"{what}; the topic's id is known from elsewhere")
    if own is None:
        return None
    return Identity(path, own.size, None, "damaged, and the topic's id is not known from elsewhere")


def parent_of(folder: str) -> str:
    """The directory around another one."""
    return split(folder)[0] or ("/" if folder.startswith("/") else ".")


def _text(path: str) -> bytes:
    with Source(path) as source:
        return source.read(0, min(source.size, LARGEST_TEXT))


def _is_kraft(source: str) -> bool:
    """Whether a log directory is one of a cluster that goes by topic ids."""
    try:
        return exists(f"{source}/{META}") and properties(_text(f"{source}/{META}")).get("version") == "1"
    except (RawlogError, ValueError):
        return False


def _told_elsewhere(source: str, topic: str) -> bytes | None:
    """The id of a topic as the metadata log in a log directory has it; else as the topic's other partitions agree on it."""
    found = _in_metadata(f"{source}/{_METADATA_DIRECTORY}", topic)
    if found is not None:
        return found
    others = set(_in_partitions(source, topic))
    return others.pop() if len(others) == 1 else None


def _in_metadata(folder: str, topic: str) -> bytes | None:
    """The id of a topic after all that the snapshots and the log of a metadata directory hold."""
    types = {schema.name: key for key, schema in framed_types().items()}
    created, removed = types["TopicRecord"], types["RemoveTopicRecord"]
    found: bytes | None = None
    try:
        for key, message in _metadata_records(folder):
            if key == created and message["name"] == topic:
                found = bytes(message["topicId"])
            elif key == removed and message["topicId"] == found:
                found = None
    except RawlogError:
        return None
    return found


def is_known_topic(source: str, topic: str) -> bool:
    """Whether the metadata log in a log directory has a topic, and so its settings."""
    return _in_metadata(f"{source}/{_METADATA_DIRECTORY}", topic) is not None


def is_compacted_topic(source: str, topic: str) -> bool:
    """Whether the metadata log in a log directory says that a topic is compacted, or was."""
    return any("compact" in value.split(",") for value in _settings(source, topic, "cleanup.policy"))


def is_tiered_topic(source: str, topic: str) -> bool:
    """Whether a topic has segments in remote storage, or had: as the metadata log in a log directory says; without one, as the list of
    remote segments does, if the directory has a part of it.
    """
    if exists(f"{source}/{_METADATA_DIRECTORY}"):
        return "true" in _settings(source, topic, "remote.storage.enable")
    name = INTERNAL["kafka.remote"]
    try:
        return any(True for _ in listing(f"{glob.escape(source)}/{name}-*"))
    except AccessError:
        return False


def _settings(source: str, topic: str, name: str) -> list[str]:
    """All values that a setting of a topic has had, as the metadata log in a log directory says; up to damage."""
    changed = next(key for key, schema in framed_types().items() if schema.name == "ConfigRecord")
    values = []
    try:
        for key, message in _metadata_records(f"{source}/{_METADATA_DIRECTORY}"):
            if key == changed and (message["resourceType"], message["resourceName"]) == (TOPIC, topic):
                values += [message["value"] or ""] if message["name"] == name else []
    except RawlogError:
        pass
    return values


def _metadata_records(folder: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """All records that can be read in a metadata directory, those of its snapshots first."""
    if not exists(folder):
        return
    entries = [one for one in listing(folder) if one.problem is None and one.path.endswith((".log", ".checkpoint"))]
    # The log says what came after a snapshot; each kind is in the order of its offsets.
    entries.sort(key=lambda one: (one.path.endswith(".log"), one.path))
    files = [File(one.path, one.size, format="kafka.log", place=Place(start_offset=0, group=folder)) for one in entries]
    for _, batch in read_records(files, ("value", "is_control"), "skip"):
        for value, control in zip(*(batch.column(name).to_pylist() for name in ("value", "is_control")), strict=True):
            if control or not value:
                continue
            try:
                key, _, message = decode_record(value)
            except DataError:
                continue
            yield key, message


def _in_partitions(source: str, topic: str) -> Iterator[bytes]:
    """The ids in the other partitions of a topic, if this is a log directory."""
    if not exists(f"{source}/{META}"):
        return
    for entry in listing(source):
        folder, name = split(entry.path)
        place = directory_place(folder)
        if name != METADATA or place.topic != topic or place.state is not None:
            continue
        try:
            yield topic_id(_text(entry.path))
        except (RawlogError, ValueError):
            continue
