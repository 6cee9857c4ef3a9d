"""Transactions that were open when a cluster died, ended as their coordinator would have.

`__transaction_state` has the decision: a transaction whose commit was prepared is committed everywhere, any other is aborted. A marker is
written in each partition where one is missing, and the completed state next to the others, so that no coordinator has to do it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

from rawlog.formats.kafka.cluster.consumer_offsets import GROUP_TYPE, append_rows
from rawlog.formats.kafka.internal.messages import TRANSACTION_STATE, KeyedRecord, encode_keyed
from rawlog.formats.kafka.internal.topics import entries
from rawlog.formats.kafka.log.heads import Heads
from rawlog.formats.kafka.log.layouts import NONE
from rawlog.formats.kafka.log.writer import encode_marker
from rawlog.formats.kafka.partition.writer import PartitionWriter
from rawlog.model.format import File
from rawlog.model.frames import Frames
from rawlog.model.report import Report

LARGEST_EPOCH = (1 << 15) - 2
#: From this version of the protocol on, every transaction of a producer has an epoch of its own, and its marker the next one.
OWN_EPOCHS = 2
#: Of each transactional id so many states are remembered: the last ones may be in a part of a log that is not used.
KEPT = 4
#: Of transactions that have ended so many are remembered, the latest ones: the marker of one may be lost.
MOST_DONE = 10_000


class Status(IntEnum):
    """The status of a transaction in `__transaction_state`."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7


OPEN = (Status.ONGOING, Status.PREPARE_COMMIT, Status.PREPARE_ABORT, Status.PREPARE_EPOCH_FENCE)


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
        return min(self.epoch + 1, LARGEST_EPOCH) if self.status == Status.ONGOING else self.epoch

    def commits(self, epoch: int, newest: int) -> bool:
        """Whether it says that records of its producer, in this epoch and not newer than a time (ms), are committed."""
        if self.status == Status.PREPARE_COMMIT:
            return epoch in (self.epoch, self.epoch - 1)
        if self.status != Status.COMPLETE_COMMIT:
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
    commit = state.status == Status.PREPARE_COMMIT
    value |= {
        "transactionStatus": int(Status.COMPLETE_COMMIT if commit else Status.COMPLETE_ABORT),
        "producerEpoch": state.marker_epoch,
        "transactionPartitions": [],
        "transactionLastUpdateTimestampMs": now,
    }
    if state.next >= 0:
        following = max(value.get("nextProducerEpoch", NONE), 0)
        value |= {"previousProducerId": state.producer, "producerId": state.next, "producerEpoch": following}
        value |= {"nextProducerId": NONE, "nextProducerEpoch": NONE}
    return replace(record, value=value)
