"""Transactions of a source, repeated in the target: which records and markers of several partitions belong together, and who sends them.

Every producer of the source gets a transactional id of its own in the target. Its records are sent in a transaction, and the transaction is
ended when the source has its markers, in all its partitions at once. Nothing that follows a marker is sent before the marker is in the
target, so records and markers get the same order, and the same offsets in an empty topic.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from rawlog.formats.kafka.internal.codec import Message
from rawlog.formats.kafka.log.layouts import Attributes
from rawlog.live import client
from rawlog.live.client import (
    CONCURRENT_TRANSACTIONS,
    INVALID_TRANSACTION_TIMEOUT,
    NOT_AUTHORIZED,
    Api,
    refusal,
)
from rawlog.live.cluster import (
    TRANSACTION,
    Cancelled,
    Cluster,
    TopicPartition,
)
from rawlog.live.fetch import Fetcher
from rawlog.live.produce import Producer, Writer
from rawlog.live.sources import Marker

TIMEOUT_MS, SHORT_TIMEOUT_MS = 900_000, 60_000
"""How long a transaction may take: what brokers allow by default, and what every broker allows."""
TOGETHER_MS = 2000
"""Markers of one producer that are further apart belong to different transactions."""
FIRST_PAUSE, LONGEST_PAUSE = 0.001, 0.1


@dataclass(frozen=True, slots=True)
class Stop:
    """Where a partition waits for others: at the marker of a transaction, or before the first record of one whose turn has not come."""

    partition: TopicPartition
    producer: int
    number: int
    is_marker: bool = False
    is_commit: bool = False
    time: int = 0


class TransactionPlan:
    """Which markers belong to one transaction, and which transaction of each producer is being repeated.

    Markers have no number of their transaction. But a producer's next transaction begins only when all markers of the last one are written:
    the markers of all partitions, by their times, show which belong together. If two transactions are taken for one, because they have no
    partition in common, each partition still has the same records and markers.
    """

    def __init__(self, markers: Iterable[tuple[TopicPartition, Marker]]) -> None:
        self._numbers: dict[tuple[TopicPartition, int], list[int]] = {}
        self._left: dict[tuple[int, int], set[TopicPartition]] = {}
        self._last: dict[int, int] = {}
        self._current: dict[int, int] = {}
        by_producer: dict[int, list[tuple[int, int, TopicPartition, bool]]] = {}
        latest: dict[TopicPartition, int] = {}
        for partition, marker in markers:
            when = latest[partition] = max(latest.get(partition, marker.time), marker.time)  # clocks go back
            by_producer.setdefault(marker.producer, []).append((marker.epoch, when, partition, marker.is_commit))
        for producer, of_producer in by_producer.items():
            of_producer.sort(key=lambda entry: entry[:2])
            self._number(producer, of_producer)

    def _number(self, producer: int, markers: list[tuple[int, int, TopicPartition, bool]]) -> None:
        for number, group in enumerate(_together(markers)):
            self._left[producer, number] = {partition for _, _, partition, _ in group}
            for _, _, partition, _ in group:
                self._numbers.setdefault((partition, producer), []).append(number)
            self._last[producer] = number

    def number(self, partition: TopicPartition, producer: int, seen: int) -> int:
        """The number of the transaction that a producer's records belong to after so many of its markers in a partition."""
        numbers = self._numbers.get((partition, producer), [])
        return numbers[seen] if seen < len(numbers) else self._last.get(producer, -1) + 1

    def is_turn(self, producer: int, number: int) -> bool:
        """Whether all earlier transactions of the producer are ended, so that records of this one may be sent."""
        return number <= self._current.get(producer, 0)

    def next_end(self, stops: Iterable[Stop], open_in: Mapping[int, Collection[TopicPartition]]) -> Stop | None:
        """The transaction to end next, the one with the oldest marker of the best: whose partitions have all come to its marker; else,
        whose records so far are only in such partitions, so that no other one gets a marker too early. There may be neither: two
        transactions that ended at the same time have their markers in different orders. `open_in` says where a producer has records.
        """
        arrived: dict[tuple[int, int], set[TopicPartition]] = {}
        chosen: dict[tuple[int, int], Stop] = {}
        for stop in stops:
            if stop.is_marker:
                key = stop.producer, stop.number
                arrived.setdefault(key, set()).add(stop.partition)
                chosen[key] = min(chosen.get(key, stop), stop, key=lambda other: other.time)
        safe = [key for key in chosen if arrived[key].issuperset(open_in.get(key[0], ()))]
        complete = [key for key in safe if arrived[key].issuperset(self._left.get(key, ()))]
        return min((chosen[key] for key in complete or safe or chosen), key=lambda other: other.time, default=None)

    def passed(self, partition: TopicPartition, producer: int, number: int) -> None:
        """A partition has the marker of a transaction."""
        self._left.get((producer, number), set()).discard(partition)
        current = self._current.get(producer, 0)
        while current <= self._last.get(producer, -1) and not self._left[producer, current]:
            current += 1
        self._current[producer] = current


def _together(
    markers: list[tuple[int, int, TopicPartition, bool]],
) -> Iterator[list[tuple[int, int, TopicPartition, bool]]]:
    """Markers of one producer, by epoch and time, divided into those of one transaction each. Where a partition comes again, a new one
    began in between: where the time between two markers is longest.
    """
    group: list[tuple[int, int, TopicPartition, bool]] = []
    for marker in markers:
        epoch, when, partition, is_commit = marker
        if group and ((group[0][0], group[0][3]) != (epoch, is_commit) or when - group[0][1] > TOGETHER_MS):
            yield group
            group = []
        again = next((index for index, other in enumerate(group) if other[2] == partition), None)
        if again is not None:
            times = [other[1] for other in group] + [when]
            longest = max(range(again + 1, len(times)), key=lambda index: times[index] - times[index - 1])
            yield group[:longest]
            group = group[longest:]
        group.append(marker)
    if group:
        yield group


class Transactions:
    """The transactions of the target. Requests to coordinators have connections of their own. `close` ends them.

    `on_new` is called when a producer got its id, before it sends anything.
    """

    def __init__(self, producer: Producer, run: str, on_new: Callable[[], None]) -> None:
        self.producer, self.run, self._on_new = producer, run, on_new
        #: By the producer id of the source.
        self.writers: dict[int, Writer] = {}
        #: The partitions of open transactions.
        self.open: dict[int, set[TopicPartition]] = {}
        self.ended = {True: 0, False: 0}
        self._ending: tuple[int, bool] | None = None
        self._timeout_ms = TIMEOUT_MS
        self._cluster = Cluster(producer.cluster.settings, producer.cluster.is_stopped)

    def close(self) -> None:
        """End the connections."""
        self._cluster.close()

    def name_of(self, source: int) -> str:
        """The transactional id for a producer of the source."""
        return f"rawlog-{self.run}-{source}"

    def begin(self, source: int) -> Writer:
        """Get an id for a producer of the source. A transaction that is open under its transactional id is aborted."""
        name = self.name_of(source)
        request = {"transactionalId": name, "transactionTimeoutMs": self._timeout_ms}
        answer = self._ask(name, client.INIT_PRODUCER_ID, request, lambda answer: answer["errorCode"])
        if answer["errorCode"] == INVALID_TRANSACTION_TIMEOUT:
            self._timeout_ms = SHORT_TIMEOUT_MS
            return self.begin(source)
        self.open.pop(source, None)
        writer = self.writers[source] = Writer(name, answer["producerId"], answer["producerEpoch"], source)
        return writer

    def writer(self, source: int, partition: TopicPartition) -> Writer:
        """Who sends the records of a producer; the partition is part of its transaction from now on."""
        writer = self.writers.get(source)
        if writer is None:
            writer = self.begin(source)
            self._on_new()
        if partition not in self.open.get(source, ()):
            request = {
                "transactionalId": writer.transactional_id,
                "producerId": writer.id,
                "producerEpoch": writer.epoch,
                "topics": [{"name": partition.topic, "partitions": [partition.partition]}],
            }
            self._ask(self.name_of(source), client.ADD_PARTITIONS_TO_TXN, request, _partition_error)
            self.open.setdefault(source, set()).add(partition)
        return writer

    def end(self, source: int, *, is_commit: bool) -> None:
        """End the open transaction of a producer, and wait until its markers are in all its partitions."""
        partitions = self.open.get(source)
        if not partitions:
            return
        self.producer.flush(partitions)
        self._ending = source, is_commit
        self._finish_ending()

    def _finish_ending(self) -> None:
        """End a transaction. That is not stopped in the middle, so that we know whether it is ended; asking twice does no harm."""
        if self._ending is None:
            return
        source, is_commit = self._ending
        writer = self.writers[source]
        request = {
            "transactionalId": writer.transactional_id,
            "producerId": writer.id,
            "producerEpoch": writer.epoch,
            "committed": is_commit,
        }
        self._ask(self.name_of(source), client.END_TXN, request, lambda answer: answer["errorCode"], stoppable=False)
        self._wait_for_markers(writer, self.open[source])
        del self.open[source]
        self.ended[is_commit] += 1
        self._ending = None

    def abort_open(self) -> int:
        """Abort all open transactions, and return how many there were. New ids are asked for, so that a replay which continues this one
        can tell these aborts from those of the source.
        """
        self._finish_ending()
        sources = [source for source, partitions in self.open.items() if partitions]
        for source in sources:
            self.begin(source)
        return len(sources)

    def _ask(
        self, name: str, api: Api, request: Message, code_of: Callable[[Message], int], *, stoppable: bool = True
    ) -> Message:
        """Ask the coordinator; while it is still busy with the last transaction of the same id, ask again."""

        def ask() -> Message:
            answer = self._cluster.coordinator(name, TRANSACTION).ask(api, request)
            code = code_of(answer)
            if code not in (0, CONCURRENT_TRANSACTIONS, INVALID_TRANSACTION_TIMEOUT):
                hint = "--isolation read_committed needs no transactions" if code in NOT_AUTHORIZED else None
                raise refusal(f"transactional id {name!r}: {api.name}", code, hint)
            return answer

        is_stopped = self._cluster.is_stopped = self.producer.cluster.is_stopped if stoppable else None
        if not self._cluster.brokers:
            self._cluster.brokers = dict(self.producer.cluster.brokers)
        pause, stop = FIRST_PAUSE, time.monotonic() + self._cluster.settings.patience
        while True:
            answer = self._cluster.retry(ask)
            if code_of(answer) != CONCURRENT_TRANSACTIONS:
                return answer
            if time.monotonic() > stop:
                raise refusal(f"transactional id {name!r}: {api.name}", CONCURRENT_TRANSACTIONS)
            if is_stopped is not None and is_stopped():
                raise Cancelled
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _wait_for_markers(self, writer: Writer, partitions: Iterable[TopicPartition]) -> None:
        lanes = {partition: self.producer.lane(partition) for partition in partitions}
        starts = {partition: lane.end_offset for partition, lane in lanes.items()}
        fetcher = Fetcher(self._cluster, starts, self.producer.ids, ahead=False)
        while fetcher.active:
            for fetched in fetcher.poll(1.0):
                is_marker = fetched.head.has(Attributes.CONTROL) & (fetched.head["producer_id"] == writer.id)
                if is_marker.any():
                    lane = lanes[fetched.partition]
                    lane.end_offset = int(fetched.head["last_offset"][np.argmax(is_marker)]) + 1
                    lane.open.pop(writer.source, None)
                    fetcher.remove(fetched.partition)
            for gap in fetcher.gaps:  # retention deleted the marker already
                lanes[gap.partition].open.pop(writer.source, None)
                fetcher.remove(gap.partition)


def _partition_error(answer: Message) -> int:
    """The first error code of an answer to AddPartitionsToTxn."""
    codes = [row["errorCode"] for topic in answer["results"] for row in topic["results"]]
    return next((code for code in codes if code), 0)


__all__ = ["Stop", "TransactionPlan", "Transactions"]
