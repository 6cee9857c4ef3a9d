"""Reading partitions from their leaders: one connection per broker, the next request sent before the last response is worked on.

A response is record batches as the broker stores them. Whole batches are handed on as frames with their headers and checksums checked;
the batch that a response cuts off at its end comes again with the next one.
"""

from __future__ import annotations

import select
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow.compute as pc

from rawlog.formats.kafka import LOG
from rawlog.formats.kafka.internal.codec import Message
from rawlog.formats.kafka.log.heads import Heads, heads
from rawlog.formats.kafka.log.layouts import MAGIC_V2, Attributes
from rawlog.formats.kafka.log.segment import only, scan, sound
from rawlog.kernels import byte_view
from rawlog.live import client
from rawlog.live.client import (
    OUT_OF_RANGE,
    RETRIABLE,
    BrokerError,
    Buffer,
    Connection,
    Disconnected,
    refusal,
)
from rawlog.live.cluster import (
    BEGINNING,
    END,
    Cluster,
    Leader,
    TopicPartition,
)
from rawlog.model.errors import DataError
from rawlog.model.format import File, Place, Want
from rawlog.model.frames import Frames
from rawlog.model.status import Status
from rawlog.model.table import RECORDS

TOPIC_IDS = 13
"""The first version of Fetch that names topics by their id."""
SEQUENCES = 1 << 31
"""Sequences count up to this many, then from 0 again."""
EMPTY = frozenset({Status.OK, Status.TRUNCATED, Status.PADDING, Status.FULL})


@dataclass(frozen=True, slots=True)
class FetchedBatches:
    """Batches of one partition, in a buffer that the next `poll` overwrites."""

    partition: TopicPartition
    frames: Frames
    head: Heads
    #: With read_committed: first offset and producer of the aborted transactions among them.
    aborted: tuple[tuple[int, int], ...] = ()

    @property
    def size(self) -> int:
        return int(self.frames.sizes.sum())

    @property
    def stop_offset(self) -> int:
        """The offset after the last batch."""
        return int(self.head["last_offset"][-1]) + 1

    def first(self, count: int) -> FetchedBatches:
        """Only the first batches."""
        return replace(self, frames=self.frames.slice(0, count), head=self.head.slice(0, count))


@dataclass(frozen=True, slots=True)
class DeletedRange:
    """Offsets that the broker had deleted before we came to them."""

    partition: TopicPartition
    start: int
    stop: int


class Fetcher:
    """Partitions that are read from given offsets on; those with a stop are done when they reach it.

    `positions` are the next offsets, `ends` the high watermarks as last seen, `gaps` what retention deleted in between. `remove` ends a
    partition. With `ahead` the next request is sent before what came is worked on. BrokerError for what does not pass by itself.
    """

    def __init__(
        self,
        cluster: Cluster,
        positions: Mapping[TopicPartition, int],
        ids: Mapping[str, bytes],
        *,
        stops: Mapping[TopicPartition, int] | None = None,
        isolation: int = 0,
        ahead: bool = True,
    ) -> None:
        self.cluster, self.ids, self.isolation = cluster, ids, isolation
        self._ahead = ahead
        self.positions, self.stops = dict(positions), dict(stops or {})
        self.ends: dict[TopicPartition, int] = {}
        self.gaps: list[DeletedRange] = []
        self.reconnects = 0
        self._names = {bytes(number): name for name, number in ids.items() if any(number)}
        self._epochs: dict[TopicPartition, int] = {}
        self._leaders: dict[TopicPartition, Leader] = {}
        #: The partitions of each broker, in the order in which they are asked for; a dict, because members are found and moved at once.
        self._orders: dict[int, dict[TopicPartition, None]] = {}
        self._buffer = Buffer()
        self._backoff = cluster.backoff()
        self._active = {partition for partition in self.positions if not self._is_done(partition)}

    @property
    def active(self) -> frozenset[TopicPartition]:
        """The partitions that are not done."""
        return frozenset(self._active)

    @property
    def lag(self) -> int:
        """How many offsets the active partitions are away from their ends, as far as that is known."""
        ends = {partition: min(self.stops.get(partition, end), end) for partition, end in self.ends.items()}
        return sum(
            max(0, end - self.positions[partition]) for partition, end in ends.items() if partition in self._active
        )

    def remove(self, partition: TopicPartition) -> None:
        """Read no more of a partition."""
        self._active.discard(partition)

    def stop_at(self, stops: Mapping[TopicPartition, int]) -> None:
        """Give partitions a stop."""
        self.stops |= stops
        self._active = {partition for partition in self._active if not self._is_done(partition)}

    def _is_done(self, partition: TopicPartition) -> bool:
        return partition in self.stops and self.positions[partition] >= self.stops[partition]

    # Polling ------------------------------------------------------------------------------------------------------------

    def poll(self, timeout: float) -> list[FetchedBatches]:
        """What one broker sent; empty if nothing came in time. Cancelled if we are asked to stop during a retry."""
        try:
            waiting = self._ask_all()
            if not waiting:
                return []
            ready = self._ready(waiting, timeout)
            for node, connection in waiting.items():
                if node != ready:
                    connection.check_time()
            return [] if ready is None else self._receive(ready, waiting[ready])
        except BrokerError as error:
            if not isinstance(error, Disconnected) and error.code not in RETRIABLE:
                raise
            self._retry(error)
            return []

    def _retry(self, error: BrokerError) -> None:
        self.reconnects += 1
        self._backoff.wait(error)
        for node in list(self._orders):
            self._forget(node)

    def _forget(self, node: int) -> None:
        self._orders.pop(node, None)
        self.cluster.drop(node)
        self._leaders = {partition: leader for partition, leader in self._leaders.items() if leader.node != node}

    def _ask_all(self) -> dict[int, Connection]:
        """The connections that a response is expected on, after every idle leader was asked."""
        missing = self._active - self._leaders.keys()
        if missing:
            leaders = self.cluster.leaders(missing, self.ids)
            self._leaders |= leaders
            for partition, leader in sorted(leaders.items()):
                self._orders.setdefault(leader.node, {})[partition] = None
        waiting: dict[int, Connection] = {}
        for node, order in list(self._orders.items()):
            try:
                connection = self.cluster.node(node)
                if not connection.pending:
                    self._ask(connection, order)
            except Disconnected:
                self._forget(node)
                raise
            if connection.pending:
                waiting[node] = connection
        return waiting

    def _ask(self, connection: Connection, order: dict[TopicPartition, None]) -> None:
        """Ask for what comes next of a broker's partitions, if any are left."""
        for partition in [partition for partition in order if partition not in self._active]:
            del order[partition]
        if not order:
            return
        version, settings = connection.version_of(client.FETCH), self.cluster.settings
        by_id = version >= TOPIC_IDS
        if by_id and not all(any(self.ids.get(partition.topic, b"")) for partition in order):
            version, by_id = TOPIC_IDS - 1, False
        topics: dict[str, list[Message]] = {}
        for partition in order:
            row: dict[str, Any] = {
                "partition": partition.partition,
                "currentLeaderEpoch": self._leaders[partition].epoch,
                "fetchOffset": self.positions[partition],
                "partitionMaxBytes": settings.partition_bytes,
            }
            if version >= TOPIC_IDS - 1:
                row["lastFetchedEpoch"] = self._epochs.get(partition, -1)
            topics.setdefault(partition.topic, []).append(row)
        request = {
            "maxWaitMs": settings.fetch_wait_ms,
            "minBytes": 1,
            "maxBytes": settings.fetch_bytes,
            "isolationLevel": self.isolation,
            "topics": [
                {**({"topicId": self.ids[name]} if by_id else {"topic": name}), "partitions": rows}
                for name, rows in topics.items()
            ],
        }
        connection.send(client.FETCH, request, version)

    def _ready(self, waiting: Mapping[int, Connection], timeout: float) -> int | None:
        for node, connection in waiting.items():
            if connection.has_buffered:
                return node
        poller = select.poll()
        nodes = {connection.fileno(): node for node, connection in waiting.items()}
        for number in nodes:
            poller.register(number, select.POLLIN)
        ready = poller.poll(timeout * 1000)
        return nodes[ready[0][0]] if ready else None

    def _receive(self, node: int, connection: Connection) -> list[FetchedBatches]:
        try:
            answer = connection.receive(self._buffer, self.cluster.settings.largest_response)
        except BrokerError:
            self._forget(node)
            raise
        if answer["errorCode"]:
            raise refusal(f"{connection.named}: Fetch", answer["errorCode"])
        self._check_topics(answer)
        fetched: list[FetchedBatches] = []
        problem: BrokerError | None = None
        for topic in answer["responses"]:
            name = topic["topic"] if "topic" in topic else self._names.get(bytes(topic["topicId"]))
            for row in topic["partitions"]:
                partition = TopicPartition(name or "", row["partitionIndex"])
                if partition not in self._active:
                    continue  # done since we asked
                try:
                    fetched += self._take(partition, row)
                except BrokerError as error:
                    if error.code not in RETRIABLE:
                        raise
                    problem = problem or error
                    self._leaders.pop(partition, None)
                    self._orders.get(node, {}).pop(partition, None)
        if fetched:
            self._backoff.progress()
            order = self._orders[node]
            for batches in fetched:  # those that were served go to the back
                if batches.partition in order:
                    del order[batches.partition]
                    order[batches.partition] = None
        if problem is not None:
            if not fetched:
                self._retry(problem)
            return fetched
        self._backoff.progress()
        if not self._ahead:
            return fetched
        try:
            self._ask(connection, self._orders[node])
        except Disconnected:
            self._forget(node)
            if not fetched:
                raise
        return fetched

    def _check_topics(self, answer: Message) -> None:
        """BrokerError if a topic that we asked for by name was deleted and created again.

        If its id is unchanged after the records came, it was the same before.
        """
        named = {
            TopicPartition(topic["topic"], row["partitionIndex"])
            for topic in answer["responses"]
            for row in topic["partitions"]
            if "topic" in topic and row["records"]
        }
        if named & self._active:
            self.cluster.leaders(named & self._active, self.ids)

    # One partition ------------------------------------------------------------------------------------------------------

    def _take(self, partition: TopicPartition, row: Message) -> Iterable[FetchedBatches]:
        code = row["errorCode"]
        if code == OUT_OF_RANGE:
            self._skip_deleted(partition)
            return ()
        if code:
            raise refusal(f"partition {partition}", code)
        diverging = row.get("divergingEpoch")
        if diverging is not None and diverging["epoch"] >= 0:
            raise BrokerError(
                f"partition {partition}: its log was cut back to offset {diverging['endOffset']:,} by an election of a leader without all "
                f"records; what was read from there on, up to offset {self.positions[partition]:,}, is not in the topic any more"
            )
        self.ends[partition] = row["highWatermark"]
        records = row["records"]
        if records is None or not len(records):
            return ()
        frames, head = self._whole(partition, records)
        before = int((head["base_offset"] < self.stops.get(partition, 1 << 62)).sum())
        if before < len(frames):  # a response may hold many batches after the stop
            frames, head = frames.slice(0, before), head.slice(0, before)
            self._active.discard(partition)
        if not len(frames):
            return ()
        self.positions[partition] = int(head["last_offset"][-1]) + 1
        if int(head["magic"][-1]) == MAGIC_V2:
            self._epochs[partition] = int(head["leader_epoch"][-1])
        if self._is_done(partition):
            self._active.discard(partition)
        aborted = tuple(
            (transaction["firstOffset"], transaction["producerId"]) for transaction in row["abortedTransactions"] or ()
        )
        return (FetchedBatches(partition, frames, head, aborted),)

    def _whole(self, partition: TopicPartition, records: memoryview) -> tuple[Frames, Heads]:
        """The whole batches of a response, checked; those that we have already are left out."""
        position = self.positions[partition]
        frames = scan(byte_view(records), 0)
        head = heads(frames)
        good, error = sound(frames, head)
        if frames.status not in EMPTY and error is None:
            error = DataError("a batch length that is too small")
        last, base = head["last_offset"], head["base_offset"]
        is_rising = bool((base[:good] <= last[:good]).all() and (base[1:good] > last[: max(good, 1) - 1]).all())
        if error is not None or not is_rising:
            what = "batches whose offsets do not rise" if error is None else error
            raise BrokerError(
                f"partition {partition}: after offset {position - 1:,} the broker sent damaged data: {what}"
            )
        earlier = int((last < position).sum())
        return (frames.slice(earlier, len(frames)), head.slice(earlier, len(frames))) if earlier else (frames, head)

    def _skip_deleted(self, partition: TopicPartition) -> None:
        """Our offset is outside of the log: go on at its first one and keep the gap; a log that is now shorter is an error."""
        ids = {partition.topic: self.ids.get(partition.topic, b"")}
        first = self.cluster.offsets({partition: BEGINNING}, ids)[partition]
        position = self.positions[partition]
        if position > first:
            end = self.cluster.offsets({partition: END}, ids)[partition]
            raise BrokerError(
                f"partition {partition}: offset {position:,} does not exist, the log ends at {end:,}: the broker truncated it, or "
                "the topic "
                f"was created again",
                OUT_OF_RANGE,
            )
        self.gaps.append(DeletedRange(partition, position, first))
        self.positions[partition] = first
        if self._is_done(partition):
            self._active.discard(partition)


class Aborts:
    """Leaves out the batches of aborted transactions, which brokers send a list of with read_committed."""

    def __init__(self) -> None:
        self._open: dict[TopicPartition, set[int]] = {}

    def without_aborted(self, fetched: FetchedBatches) -> tuple[Frames, Heads]:
        """The batches without those of aborted transactions; markers stay."""
        open_aborts, waiting = self._open.setdefault(fetched.partition, set()), sorted(fetched.aborted)
        if not waiting and not open_aborts:
            return fetched.frames, fetched.head
        keep = np.ones(len(fetched.frames), np.bool_)
        producers, control = fetched.head["producer_id"].tolist(), fetched.head.has(Attributes.CONTROL).tolist()
        transactional, last = fetched.head.has(Attributes.TRANSACTIONAL).tolist(), fetched.head["last_offset"].tolist()
        for index in range(len(fetched.frames)):
            while waiting and waiting[0][0] <= last[index]:
                open_aborts.add(waiting.pop(0)[1])
            if control[index]:
                open_aborts.discard(producers[index])
            elif transactional[index] and producers[index] in open_aborts:
                keep[index] = False
        return only(fetched.frames, keep), fetched.head.only(keep)


def written_after(
    cluster: Cluster, partition: TopicPartition, ids: Mapping[str, bytes], start: int
) -> Iterator[FetchedBatches]:
    """What a partition has from an offset on up to where it ends now."""
    stop = cluster.offsets({partition: END}, {partition.topic: ids.get(partition.topic, b"")})[partition]
    fetcher = Fetcher(cluster, {partition: start}, ids, stops={partition: stop})
    while fetcher.active:
        yield from fetcher.poll(1.0)


def record_at(
    cluster: Cluster, partition: TopicPartition, ids: Mapping[str, bytes], offset: int
) -> dict[str, Any] | None:
    """The record at an offset, as a row; None if it is a marker or not there any more."""
    file = File(str(partition), 0, None, LOG.name, Place(partition.topic, partition.partition))
    fetcher = Fetcher(cluster, {partition: offset}, ids, stops={partition: offset + 1}, ahead=False)
    while fetcher.active:
        for fetched in fetcher.poll(1.0):
            for batch in LOG.codec.decode(fetched.frames, Want(RECORDS, file)):
                chosen = batch.filter(pc.equal(batch.column("offset"), offset))
                if chosen.num_rows:
                    record: dict[str, Any] = chosen.to_pylist()[0]
                    return record
    return None


def written_by(
    cluster: Cluster, partition: TopicPartition, ids: Mapping[str, bytes], producer_id: int, start: int
) -> tuple[int, int] | None:
    """The sequence and the offset after the last record that a partition has of a producer, from an offset on; None if it has none."""
    end: tuple[int, int] | None = None
    for fetched in written_after(cluster, partition, ids, start):
        is_of_producer = (fetched.head["producer_id"] == producer_id) & ~fetched.head.has(Attributes.CONTROL)
        if is_of_producer.any():
            at = int(is_of_producer.nonzero()[0][-1])
            sequence = (int(fetched.head["base_sequence"][at]) + int(fetched.head["record_count"][at])) % SEQUENCES
            end = sequence, int(fetched.head["last_offset"][at]) + 1
    return end
