"""Committed offsets in a new cluster: which ones are current, under which names, and written so that a broker keeps them.

A broker deletes the offsets of a group without members some days after they were committed, or after the group became empty. They are
therefore committed again, at the time of the restore.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from rawlog.formats.kafka.internal.codec import codec
from rawlog.formats.kafka.internal.messages import (
    CONSUMER_OFFSETS,
    KeyedRecord,
    encode_keyed,
    key_types,
)
from rawlog.formats.kafka.internal.topics import entries, partitions
from rawlog.formats.kafka.log.layouts import NONE
from rawlog.formats.kafka.log.writer import Batching, Rows, encode_rows
from rawlog.formats.kafka.partition.writer import PartitionWriter
from rawlog.model.format import File
from rawlog.model.table import RECORDS

OFFSET_TYPES, OFFSET_TYPE, GROUP_TYPE = (0, 1), 1, 2
VALUE_VERSION = 3
"""Of an offset's value: the lowest without a time of its own to expire at."""
DEFAULT_PARTITIONS = 50


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A current record of `__consumer_offsets`: a commit, or the state of a classic group."""

    group: str
    record: KeyedRecord

    @property
    def topic(self) -> str | None:
        """The topic that a commit is of."""
        topic = self.record.key.get("topic")
        return None if topic is None else str(topic)


def current(files: Sequence[File], errors: str = "raise", *, skip_pending: bool = False) -> list[GroupRecord]:
    """The current commits and classic groups at the end of partitions of `__consumer_offsets`.

    With `skip_pending` those are left out for which a transaction that is still open has another commit: it may be committed later, and a
    commit that is written again now would replace it.
    """
    latest: dict[tuple[Any, ...], GroupRecord] = {}
    for segments in partitions(files):
        for _, entry in entries(segments, CONSUMER_OFFSETS, errors, lambda kind: kind <= GROUP_TYPE):
            if entry.state == "aborted" or (entry.state == "pending" and not skip_pending):
                continue
            key = entry.record.key
            name = tuple(key.values()) if entry.record.type in OFFSET_TYPES else (key["group"],)
            if entry.record.value is None or entry.state == "pending":
                latest.pop(name, None)
            else:
                latest[name] = GroupRecord(key["group"], entry.record)
    return list(latest.values())


def recommit(
    commits: Iterable[GroupRecord],
    now: int,
    rename: Callable[[str], str | None],
    ends: Mapping[tuple[str, int], int] | None = None,
) -> Iterator[GroupRecord]:
    """The commits as if they were made now (ms), with topics renamed; those of a topic without a new name are left out.

    `ends` are the end offsets of logs that are shorter than before. A consumer that had read further starts at the end.
    """
    key_schema, value_schema = key_types(CONSUMER_OFFSETS)[OFFSET_TYPE]
    for commit in commits:
        record, value = commit.record, dict(commit.record.value or {})
        assert record.value_codec is not None
        if commit.topic is None:
            if "currentStateTimestamp" in value:
                yield replace(commit, record=replace(record, value={**value, "currentStateTimestamp": now}))
            continue
        name = rename(commit.topic)
        if name is None:
            continue
        version = record.version or 0
        if ends is not None:
            value["offset"] = min(value["offset"], ends.get((name, record.key["partition"]), value["offset"]))
        value_codec = codec(value_schema, max(version, VALUE_VERSION))
        if version < VALUE_VERSION:
            value.pop("expireTimestamp", None)
            value.setdefault("leaderEpoch", NONE)
        record = KeyedRecord(
            OFFSET_TYPE,
            record.name,
            {**record.key, "topic": name},
            codec(key_schema, OFFSET_TYPE),
            value_codec.version,
            {**value, "commitTimestamp": now},
            value_codec,
        )
        yield replace(commit, record=record)


def move_note(before: GroupRecord, after: GroupRecord) -> str | None:
    """A sentence on a commit with a new offset; None if the offset is the same."""
    old, new = ((commit.record.value or {}).get("offset") for commit in (before, after))
    if old == new or before.topic is None:
        return None
    place = f"{before.topic}-{before.record.key['partition']}"
    return f"group {before.group}: the committed offset {old:,} of {place} is {new:,} now, where its log ends"


def partition_of(group: str, count: int) -> int:
    """The partition of `__consumer_offsets` that a group's coordinator looks into."""
    value = 0
    raw = group.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(raw), 2):
        value = (value * 31 + int.from_bytes(raw[at : at + 2], "big")) & 0xFFFF_FFFF
    value = value - (1 << 32) if value >= 1 << 31 else value
    return 0 if value == -(1 << 31) else abs(value) % count


def append(writer: PartitionWriter, commits: Iterable[GroupRecord], now: int) -> int:
    """Write records after those of a partition; how many."""
    return append_rows(writer, (encode_keyed(commit.record) for commit in commits), now)


def append_rows(writer: PartitionWriter, pairs: Iterable[tuple[bytes, bytes | None]], now: int) -> int:
    """Write keys and values after the records of a partition, with a time (ms); how many."""
    rows: list[dict[str, Any]] = []
    for number, (key, value) in enumerate(pairs):
        offset = writer.end_offset + number
        rows.append(
            {"key": key, "value": value, "offset": offset, "timestamp": now * 1000, "timestampType": 0, "headers": []}
        )
    if not rows:
        return 0
    batch = pa.RecordBatch.from_pylist(rows, schema=RECORDS.schema)
    epochs = writer.derivation.epochs.rows
    batching = Batching(leader_epoch=epochs[-1][0] if epochs else 0)
    batches = encode_rows(Rows.of(batch), batching, writer.end_offset - 1)
    writer.append(batches.frames, batches.head)
    return len(rows)
