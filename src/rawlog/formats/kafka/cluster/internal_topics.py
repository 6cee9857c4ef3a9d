"""Internal topics of a new cluster: committed offsets that are current, and transactions that were open when a cluster died."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

import pyarrow as pa

from rawlog.formats.kafka.internal.codec import codec
from rawlog.formats.kafka.internal.messages import (
    CONSUMER_OFFSETS,
    TRANSACTION_STATE,
    KeyedRecord,
    encode_keyed,
    key_types,
)
from rawlog.formats.kafka.internal.topics import entries, partitions
from rawlog.formats.kafka.log.heads import Heads
from rawlog.formats.kafka.log.layouts import NONE
from rawlog.formats.kafka.log.writer import Batching, RowBuffers, encode_marker, encode_rows
from rawlog.formats.kafka.partition.writer import PartitionWriter
from rawlog.model.format import File
from rawlog.model.frames import Frames
from rawlog.model.report import Report
from rawlog.model.table import RECORDS

# ----------------------------------------------------------------------------------------------------------------------
# Committed offsets in a new cluster: which ones are current, under which names, and written so that a broker keeps them.
#
# A broker deletes the offsets of a group without members some days after they were committed, or after the group became empty. They are
# therefore committed again, at the time of the restore.

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


def current(files: Sequence[File], *, skip_pending: bool = False) -> list[GroupRecord]:
    """The current commits and classic groups at the end of partitions of `__consumer_offsets`.

    With `skip_pending` those are left out for which a transaction that is still open has another commit: it may be committed later, and a
    commit that is written again now would replace it.
    """
    latest: dict[tuple[Any, ...], GroupRecord] = {}
    for segments in partitions(files):
        for _, entry in entries(segments, CONSUMER_OFFSETS, "raise", lambda kind: kind <= GROUP_TYPE):
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
    batches = encode_rows(RowBuffers.of(batch), batching, writer.end_offset - 1)
    writer.append(batches.frames, batches.head)
    return len(rows)


# ----------------------------------------------------------------------------------------------------------------------
# Transactions that were open when a cluster died, ended as their coordinator would have.
#
# `__transaction_state` has the decision: a transaction whose commit was prepared is committed everywhere, any other is aborted. A marker is
# written in each partition where one is missing, and the completed state next to the others, so that no coordinator has to do it again.

LARGEST_EPOCH = (1 << 15) - 2
#: From this version of the protocol on, every transaction of a producer has an epoch of its own, and its marker the next one.
OWN_EPOCHS = 2
#: Of each transactional id so many states are remembered: the last ones may be in a part of a log that is not used.
KEPT = 4
#: Of transactions that have ended so many are remembered, the latest ones: the marker of one may be lost.
MOST_DONE = 10_000


class TransactionStatus(IntEnum):
    """The status of a transaction in `__transaction_state`."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7


OPEN = (
    TransactionStatus.ONGOING,
    TransactionStatus.PREPARE_COMMIT,
    TransactionStatus.PREPARE_ABORT,
    TransactionStatus.PREPARE_EPOCH_FENCE,
)


@dataclass(frozen=True, slots=True)
class TransactionState:
    """A state of a transactional id, at its offset in `__transaction_state`. `updated` is in ms."""

    id: str
    offset: int
    status: int
    producer: int
    epoch: int
    updated: int
    version: int = 0
    previous: int = NONE
    next: int = NONE

    @property
    def marker_epoch(self) -> int:
        """The epoch that markers of this transaction carry. A producer that did not end its transaction is fenced by a higher one."""
        return min(self.epoch + 1, LARGEST_EPOCH) if self.status == TransactionStatus.ONGOING else self.epoch

    def commits(self, epoch: int, newest: int) -> bool:
        """Whether it says that records of its producer, in this epoch and not newer than a time (ms), are committed."""
        if self.status == TransactionStatus.PREPARE_COMMIT:
            return epoch in (self.epoch, self.epoch - 1)
        if self.status != TransactionStatus.COMPLETE_COMMIT:
            return False
        if self.version >= OWN_EPOCHS:
            return epoch == self.epoch - 1
        return epoch == self.epoch and newest <= self.updated


@dataclass(frozen=True, slots=True)
class Endings:
    """How transactions end, by producer. A transaction of which nothing is known is aborted."""

    by_producer: Mapping[int, TransactionState] = field(default_factory=dict)

    @classmethod
    def of(cls, states: Iterable[TransactionState]) -> Endings:
        """Those of the newest state of each transactional id."""
        newest: dict[str, TransactionState] = {}
        for state in states:
            if state.id not in newest or newest[state.id].offset < state.offset:
                newest[state.id] = state
        by_producer: dict[int, TransactionState] = {}
        ended = [state for state in newest.values() if state.status not in OPEN]
        latest = sorted(ended, key=lambda state: state.updated)[-MOST_DONE:]
        for state in sorted(
            [*latest, *(state for state in newest.values() if state.status in OPEN)], key=lambda state: state.updated
        ):
            by_producer |= {number: state for number in (state.previous, state.producer) if number >= 0}
        return cls(by_producer)

    def markers(self, writer: PartitionWriter, now: int, report: Report) -> Iterator[tuple[Frames, Heads]]:
        """A marker for every written transaction without one."""
        producers = writer.derivation.producers
        rows = writer.derivation.epochs.rows
        for number in sorted(producers.open_transactions()):
            transaction, state = producers.states[number], self.by_producer.get(number)
            epoch = transaction.epoch
            commit = state is not None and state.commits(epoch, transaction.timestamp)
            if state is not None and state.producer == number:
                epoch = max(epoch, state.marker_epoch)
            marker = encode_marker(
                writer.end_offset,
                now,
                producer_id=number,
                producer_epoch=epoch,
                commit=commit,
                coordinator_epoch=max(transaction.coordinator_epoch, 0),
                leader_epoch=rows[-1][0] if rows else 0,
            )
            report.count("transactions_committed" if commit else "transactions_aborted")
            yield marker.frames, marker.head


# What the log of the coordinator says ------------------------------------------------------------------------------------


def states_in(segments: Sequence[File]) -> Iterator[tuple[TransactionState, KeyedRecord]]:
    """The states in segments of a partition of `__transaction_state`, in order; damaged records are skipped."""
    for _, entry in entries(segments, TRANSACTION_STATE, "skip", lambda kind: True):
        value = entry.record.value
        if value is None:
            continue
        yield (
            TransactionState(
                entry.record.key["transactionalId"],
                entry.offset,
                value["transactionStatus"],
                value["producerId"],
                value["producerEpoch"],
                value["transactionLastUpdateTimestampMs"],
                value.get("clientTransactionVersion", 0),
                value.get("previousProducerId", NONE),
                value.get("nextProducerId", NONE),
            ),
            entry.record,
        )


def last_states(segments: Sequence[File]) -> tuple[TransactionState, ...]:
    """The last few states of every transactional id."""
    last: dict[str, list[TransactionState]] = {}
    for state, _ in states_in(segments):
        last_of_id = last.setdefault(state.id, [])
        last_of_id.append(state)
        del last_of_id[:-KEPT]
    return tuple(state for last_of_id in last.values() for state in last_of_id)


@dataclass(frozen=True, slots=True)
class InternalContents:
    """What a copy of a partition of an internal topic says of others: the names of groups or transactional ids in it, and the last states
    of transactions.
    """

    names: frozenset[str] = frozenset()
    states: tuple[TransactionState, ...] = ()


def look(topic: str, segments: Sequence[File]) -> InternalContents:
    """Look into segments of `__consumer_offsets` or `__transaction_state`."""
    if topic == TRANSACTION_STATE:
        states = last_states(segments)
        return InternalContents(frozenset(state.id for state in states), states)
    records = entries(segments, topic, "skip", lambda kind: kind <= GROUP_TYPE)
    return InternalContents(frozenset(str(entry.record.key["group"]) for _, entry in records))


def largest_producer(states: Iterable[TransactionState]) -> int:
    """The largest producer id that a coordinator has given out, -1 if none."""
    return max((number for state in states for number in (state.producer, state.previous, state.next)), default=NONE)


def complete(writer: PartitionWriter, segments: Sequence[File], now: int) -> int:
    """Append the end of every open transaction to a partition of `__transaction_state` with these segments; how many."""
    newest: dict[str, tuple[TransactionState, KeyedRecord]] = {}
    for state, record in states_in(segments):
        newest[state.id] = state, record
    completed = [_completed_record(state, record, now) for state, record in newest.values() if state.status in OPEN]
    return append_rows(writer, map(encode_keyed, completed), now)


def _completed_record(state: TransactionState, record: KeyedRecord, now: int) -> KeyedRecord:
    value = dict(record.value or {})
    commit = state.status == TransactionStatus.PREPARE_COMMIT
    value |= {
        "transactionStatus": int(TransactionStatus.COMPLETE_COMMIT if commit else TransactionStatus.COMPLETE_ABORT),
        "producerEpoch": state.marker_epoch,
        "transactionPartitions": [],
        "transactionLastUpdateTimestampMs": now,
    }
    if state.next >= 0:
        following = max(value.get("nextProducerEpoch", NONE), 0)
        value |= {"previousProducerId": state.producer, "producerId": state.next, "producerEpoch": following}
        value |= {"nextProducerId": NONE, "nextProducerEpoch": NONE}
    return replace(record, value=value)
