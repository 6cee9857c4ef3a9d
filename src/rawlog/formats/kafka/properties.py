"""The texts that say what a directory is: `partition.metadata`, `meta.properties`, `.kafka_cleanshutdown`, `quorum-state`.

Authority: PartitionMetadataFile, MetaProperties and CleanShutdownFileHandler at apache/kafka 1eb7644349cb (4.0.0-SNAPSHOT).
"""

from __future__ import annotations

import base64
import binascii
import json
import re

from rawlog.formats.kafka.texts import WholeText


def topic_id(data: bytes) -> bytes:
    """The 16 bytes of the topic's id in `partition.metadata`. ValueError if the text is not one."""
    match = re.fullmatch(rb"version: *0\r?\ntopic_id: *([A-Za-z0-9_-]{22})\s*", data)
    if match is None:
        raise ValueError("not a partition.metadata")
    try:
        raw = base64.urlsafe_b64decode(match.group(1) + b"==")
    except binascii.Error:
        raise ValueError("not a topic id") from None
    if not any(raw):
        raise ValueError("the topic id is all zeros")
    return raw


def properties(data: bytes) -> dict[str, str]:
    """The settings of a Java properties file as Kafka writes it. ValueError for bytes that are no text."""
    settings: dict[str, str] = {}
    for text in data.decode("utf-8").splitlines():
        if text.strip() and not text.lstrip().startswith(("#", "!")):
            key, _, value = text.partition("=")
            settings[key.strip()] = value.strip()
    return settings


def check_meta(data: bytes) -> None:
    """ValueError for bytes that are no `meta.properties`."""
    settings = properties(data)
    if settings.get("version") not in ("0", "1"):
        raise ValueError("version")
    if settings["version"] == "1" and not {"node.id", "cluster.id"} <= settings.keys():
        raise ValueError("node.id and cluster.id")


def parse_quorum(data: bytes) -> dict[str, object]:
    """The election state in a `quorum-state`: epoch, vote and, in a static quorum, voters. ValueError if it is invalid."""
    try:
        state = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(state, dict) or state.get("data_version") not in (0, 1):
        raise ValueError("not an election state of version 0 or 1")
    for name in ("leaderId", "leaderEpoch", "votedId"):
        if not isinstance(state.get(name), int) or isinstance(state[name], bool):
            raise ValueError(name)
    return state


def _check_cleanshutdown(data: bytes) -> None:
    if data:
        json.loads(data)


def _check_topic_id(data: bytes) -> None:
    topic_id(data)


PARTITION = WholeText(_check_topic_id)
META = WholeText(check_meta)
CLEAN_SHUTDOWN = WholeText(_check_cleanshutdown)
QUORUM = WholeText(parse_quorum)
