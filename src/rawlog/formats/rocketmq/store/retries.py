"""Messages that were sent back and dead letters, followed to the message that each began as."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rawlog.core.format import File
from rawlog.formats.rocketmq import config, tables
from rawlog.formats.rocketmq.kernels import entries as fields
from rawlog.formats.rocketmq.layouts import DLQ_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC, TIMER_TOPIC
from rawlog.formats.rocketmq.store import dispatch
from rawlog.formats.rocketmq.store.folds import Batches, Entry, Options, batch_of, entries_of, guarded, time_of
from rawlog.kernels import columns

FIRST_POP = "1ST_POP_TIME"
"""The property that a message has once it was popped and not acknowledged."""


@guarded
def retries(files: Sequence[File], options: Options) -> Batches:
    """Messages that were sent back, and dead letters, with the message that each began as."""
    names = _Names.of(files)
    rows = [row for entry in entries_of(files) if (row := _row(entry, names)) is not None]
    searched = {(row["source_topic"], row["unique_key"]) for row in rows if row["source_physical_offset"] is None}
    found = _found(files, {(topic, key) for topic, key in searched if topic and key})
    for row in rows:
        if row["source_physical_offset"] is None:
            row["source_physical_offset"] = found.get((row["source_topic"], row["unique_key"]))
    return batch_of(tables.RETRIES, rows)


def _row(entry: Entry, names: _Names) -> dict[str, Any] | None:
    topic, real = entry.topic, entry.properties.get("REAL_TOPIC", "")
    if topic in (SCHEDULE_TOPIC, TIMER_TOPIC) and real.startswith(RETRY_PREFIX):
        kind, group = "scheduled retry", real.removeprefix(RETRY_PREFIX)
    elif topic.startswith(RETRY_PREFIX):
        kind, group = "retry", topic.removeprefix(RETRY_PREFIX)
    elif topic.startswith(DLQ_PREFIX):
        kind, group = "dead letter", topic.removeprefix(DLQ_PREFIX)
    else:
        return None
    source = entry.properties.get("DLQ_ORIGIN_TOPIC") or entry.properties.get("RETRY_TOPIC")
    if kind != "dead letter":
        group, popped = names.apart(group, was_popped=FIRST_POP in entry.properties)
        source = source or popped
    source_id = entry.properties.get("DLQ_ORIGIN_MESSAGE_ID") or entry.properties.get("ORIGIN_MESSAGE_ID")
    return {
        "kind": kind,
        "group": group,
        "source_topic": source,
        "source_physical_offset": _address(source_id),
        "source_message_id": source_id,
        "reconsume_times": entry.reconsumed,
        "unique_key": entry.unique_key,
        "topic": topic,
        "queue_offset": entry.queue_offset,
        "physical_offset": entry.physical,
        "store_timestamp": time_of(entry.stored),
    }


def _address(message_id: str | None) -> int | None:
    """The physical offset at the end of a message id."""
    if message_id is None or len(message_id) not in (32, 56):
        return None
    try:
        return int(message_id[-16:], 16)
    except ValueError:
        return None


@dataclass(slots=True)
class _Names:
    """The groups and topics that a store knows."""

    groups: set[str] = field(default_factory=set)
    topics: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, files: Sequence[File]) -> _Names:
        names = cls()
        for _, value in config.load(files, "subscriptionGroup.json"):
            names.groups.update(value.get("subscriptionGroupTable") or {})
        for _, value in config.load(files, "topics.json"):
            names.topics.update(value.get("topicConfigTable") or {})
        names.topics.update(file.place.topic for file in files if file.place.topic is not None)
        return names

    def apart(self, name: str, *, was_popped: bool) -> tuple[str, str | None]:
        """The group of a retry topic and, where messages are popped, the topic they came from: `group_topic`, on request `group+topic`.

        Both names may hold a `_`, so the groups and topics that the store knows decide.
        """
        group, plus, topic = name.partition("+")
        if plus:
            return group, topic
        if name in self.groups and not was_popped:
            return name, None
        pairs = [(name[:at], name[at + 1 :]) for at, letter in enumerate(name) if letter == "_"]
        known = [pair for pair in pairs if pair[1] in self.topics]
        certain = [pair for pair in known if pair[0] in self.groups]
        if certain or (known and was_popped):
            return (certain or known)[0]
        return name, None


def _found(files: Sequence[File], wanted: set[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """Where the one message of a topic with a unique key stands. Those of a batch may all have the same: then nobody can tell."""
    found: dict[tuple[str, str], int] = {}
    if not wanted:
        return found
    several: set[tuple[str, str]] = set()
    topics = pa.array(sorted({topic.encode() for topic, _ in wanted}), pa.binary())
    keys = pa.array(sorted({key.encode() for _, key in wanted}), pa.binary())
    for rows in dispatch.loaded_messages(files):
        starts, sizes = dispatch.property_spans(rows, "UNIQ_KEY")
        topic = columns.spans(rows.data, rows[fields.F_TOPIC], rows[fields.F_TOPIC_SIZE])
        key = columns.spans(rows.data, np.maximum(starts, 0), np.maximum(sizes, 0))
        for row in np.flatnonzero(pc.and_(pc.is_in(topic, topics), pc.is_in(key, keys))).tolist():
            pair = (topic[row].as_py().decode(), key[row].as_py().decode())
            if pair in found:
                several.add(pair)
            found[pair] = int(rows[fields.F_PHYSICAL][row])
    return {pair: address for pair, address in found.items() if pair not in several}
