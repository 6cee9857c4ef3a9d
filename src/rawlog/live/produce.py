"""Batches made and sent to the leaders of partitions: idempotent, acknowledged by all in-sync replicas, at most five requests on their way.

What is not acknowledged is kept. After a lost connection or an error that passes by itself, exactly the same batches are sent again in
order; the broker recognises those that it has already, so nothing is lost and nothing is there twice. A broker that restarts forgets
producers whose records are older than a day (producer.id.expiration.ms goes by the times of records), as replayed ones mostly are:
therefore we first look into the partition for what it has of us.
"""

from __future__ import annotations

import select
import struct
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawlog.formats.kafka.internal.codec import Message
from rawlog.formats.kafka.log.heads import Heads
from rawlog.formats.kafka.log.kernels import encode
from rawlog.formats.kafka.log.kernels.records import NO_APPEND_TIME
from rawlog.formats.kafka.log.layouts import (
    BATCH,
    CODEC_MASK,
    CODECS,
    MAGIC_V2,
    NONE,
    Attributes,
)
from rawlog.formats.kafka.log.records import TooMuch, payloads_of
from rawlog.formats.kafka.log.segment import only
from rawlog.io import compression
from rawlog.io.checksums import crc32c
from rawlog.kernels import byte_view
from rawlog.kernels.gather import SLACK
from rawlog.live import client
from rawlog.live.client import (
    DUPLICATE,
    RETRIABLE,
    BrokerError,
    Connection,
    Disconnected,
    refusal,
)
from rawlog.live.cluster import Cluster, TopicPartition
from rawlog.live.fetch import SEQUENCES, written_by
from rawlog.model.errors import CorruptError, EncodeError
from rawlog.model.frames import Bytes, Frames
from rawlog.model.status import FULL, OK

# ----------------------------------------------------------------------------------------------------------------------
# Batches for a produce request: those of a log passed on as they are, or put together in larger ones, or made of rows.
#
# A broker takes one batch per partition and request, so small ones are put together up to what the topic takes. A batch is passed on as it
# is where its bytes need no change; only its header gets new producer fields, which no record has to be looked at for.

TARGET_BYTES = 900 << 10
"""Small batches are put together up to this size, or to what the topic takes."""
LARGEST_UNPACKED = 64 << 20
_HEAD = struct.Struct(">qiibIhiqqqhii")
_PRODUCER = struct.Struct(">qhi")
_COVERED = BATCH.after("crc")
_TIMES = struct.Struct(">qq")
assert _HEAD.size == BATCH.size


@dataclass(slots=True)
class OutgoingBatch:
    """A batch of magic 2 that only lacks its producer: bytes, records in it, and the next source offset after it."""

    data: Bytes
    count: int
    next_offset: int = NONE
    #: The time of its last record, in ms.
    max_timestamp: int = NONE

    def __len__(self) -> int:
        return self.data.size

    def set_time(self, now: int) -> None:
        """Replace the time (ms) of its records, which all have the same."""
        _TIMES.pack_into(memoryview(self.data), BATCH.at("base_timestamp"), now, now)  # type: ignore[arg-type]
        self.max_timestamp = now


def stamp(data: Bytes, producer_id: int, epoch: int, sequence: int, *, is_transactional: bool = False) -> None:
    """Give a batch its producer and its checksum; the offset and bits that a client must not send are cleared."""
    view = memoryview(data)  # type: ignore[arg-type]
    view[0:8] = bytes(8)
    struct.pack_into(">i", view, BATCH.at("leader_epoch"), NONE)
    at = BATCH.at("attributes")
    attributes = struct.unpack_from(">h", view, at)[0] & CODEC_MASK
    struct.pack_into(">h", view, at, attributes | (int(Attributes.TRANSACTIONAL) if is_transactional else 0))
    _PRODUCER.pack_into(view, BATCH.at("producer_id"), producer_id, epoch, sequence)
    struct.pack_into(">I", view, BATCH.at("crc"), crc32c(view[_COVERED:]))


class Merger:
    """Makes batches of one partition ready to send, in order. `most` is what the topic takes.

    With `keep_batches` all that can be passed on as it is stays a batch of its own. `fixed_time` replaces all times, `shift_ms` moves
    them. `skip` records at the start are left out: they were sent before. `named` is the partition that errors name.
    """

    def __init__(
        self,
        most: int,
        *,
        named: str = "",
        keep_batches: bool = False,
        fixed_time: int | None = None,
        shift_ms: int = 0,
        skip: int = 0,
    ) -> None:
        self.most, self.keep_batches, self.fixed_time, self.shift_ms = most, keep_batches, fixed_time, shift_ms
        self.skip, self._named = skip, named
        self._room = min(TARGET_BYTES, most) - BATCH.size
        self._state = np.zeros(encode.STATE, np.int64)
        self._out: Bytes | None = None
        self._codec = 0
        self._next = NONE

    def skip_next(self, count: int) -> None:
        """Leave out so many of the records that come next. Only when nothing waits to be put together."""
        assert self._out is None or not self._state[encode.COUNT]
        self._out, self.skip = None, count

    def add(self, frames: Frames, head: Heads) -> Iterator[OutgoingBatch]:
        """Sound batches of data that follow those before them; what is ready."""
        kinds: NDArray[np.int64] = self._as_is(frames, head)
        start = 0
        while start < len(frames):
            stop = start + 1
            while stop < len(frames) and kinds[stop] == kinds[start]:
                stop += 1
            run, run_head = frames.slice(start, stop), head.slice(start, stop)
            yield from (
                self._pass_on(run, run_head) if kinds[start] < 0 else self._merge(run, run_head, int(kinds[start]))
            )
            start = stop

    def _as_is(self, frames: Frames, head: Heads) -> NDArray[np.int64]:
        """For each batch -1 if it is passed on as it is, else the codec that its records get in another one."""
        codec = head.codec
        count, span = head["record_count"], head["last_offset"] - head["base_offset"] + 1
        same = (count == span) & (frames.sizes <= self.most) & (codec < len(CODECS))
        if self.fixed_time is not None:
            same[:] = False
        if head.any(Attributes.LOG_APPEND_TIME | Attributes.DELETE_HORIZON):
            same &= ~(head.has(Attributes.LOG_APPEND_TIME) | head.has(Attributes.DELETE_HORIZON))
        if not self.keep_batches:
            same &= (codec > 0) | (frames.sizes > self._room // 2)
        if self.skip:
            same[np.cumsum(count) - count < self.skip] = False
        return np.where(same, -1, np.where(codec < len(CODECS), codec, 0))

    def _pass_on(self, frames: Frames, head: Heads) -> Iterator[OutgoingBatch]:
        yield from self.flush()
        starts, stops = frames.starts.tolist(), frames.stops.tolist()
        counts, nexts, tops = (
            head["record_count"].tolist(),
            (head["last_offset"] + 1).tolist(),
            head["max_timestamp"].tolist(),
        )
        for start, stop, count, following, top in zip(starts, stops, counts, nexts, tops, strict=True):
            data = frames.data[start:stop].copy()
            if self.shift_ms:
                at = BATCH.at("base_timestamp")
                view = memoryview(data)  # type: ignore[arg-type]
                times = _TIMES.unpack_from(view, at)
                _TIMES.pack_into(view, at, *(time if time == NONE else time + self.shift_ms for time in times))
            yield OutgoingBatch(data, count, following, top)

    def _merge(self, frames: Frames, head: Heads, codec: int) -> Iterator[OutgoingBatch]:
        if codec != self._codec:
            yield from self.flush()
            self._codec = codec
        filled = head["record_count"] > 0
        if not filled.all():
            frames, head = only(frames, filled), head.only(filled)
        for start, stop in _unpackable(frames, head):
            yield from self._unpack(frames.slice(start, stop), head.slice(start, stop))

    def _unpack(self, frames: Frames, head: Heads) -> Iterator[OutgoingBatch]:
        try:
            payloads = payloads_of(frames, head, LARGEST_UNPACKED)
        except TooMuch:  # only of several batches
            for index in range(len(frames)):
                yield from self._unpack(frames.slice(index, index + 1), head.slice(index, index + 1))
            return
        yield from self._take(*payloads, frames, head)

    def _take(
        self,
        data: Bytes,
        starts: NDArray[np.int64],
        stops: NDArray[np.int64],
        append_times: NDArray[np.int64],
        frames: Frames,
        head: Heads,
    ) -> Iterator[OutgoingBatch]:
        state = self._state
        state[[encode.BATCH_INDEX, encode.POSITION, encode.ROW]] = 0
        counts, base_times = np.ascontiguousarray(head["record_count"]), np.ascontiguousarray(head["base_timestamp"])
        while True:
            if self._out is None:
                self._begin()
            assert self._out is not None
            done, position, status = encode.merge_records_v2(
                byte_view(data), starts, stops, counts, base_times, append_times, self._out[BATCH.size :], state
            )
            self.skip = int(state[encode.SKIP])
            if status == OK:
                self._next = int(head["last_offset"][-1]) + 1
                return
            if status != FULL:
                raise CorruptError(
                    f"a record that cannot be read, in the batch at offset {int(head['base_offset'][done]):,}",
                    position=int(frames.positions[done]),
                )
            if not state[encode.COUNT]:
                size = int(stops[done]) - int(position)
                offset = int(head["base_offset"][done]) + int(state[encode.ROW])
                raise EncodeError(
                    f"{self._named}: offset {offset:,}: a record that is larger than a batch of {self.most:,} bytes, the most that the "
                    f"topic takes (at most {size:,} bytes)"
                )
            self._next = int(head["base_offset"][done]) + int(state[encode.ROW])
            yield from self.flush()

    def _begin(self) -> None:
        self._out = np.empty(BATCH.size + self._room + SLACK, np.uint8)
        state = self._state
        state[[encode.FILLED, encode.COUNT, encode.BASE_TIME, encode.MAX_TIME]] = 0
        state[encode.MOST_MERGED], state[encode.SHIFT], state[encode.SKIP] = self._room, self.shift_ms, self.skip
        state[encode.FIXED_TIME] = NO_APPEND_TIME if self.fixed_time is None else self.fixed_time

    def flush(self) -> Iterator[OutgoingBatch]:
        """What was put together so far."""
        state, out = self._state, self._out
        if out is None or not state[encode.COUNT]:
            return
        self._out = None
        filled, count = int(state[encode.FILLED]), int(state[encode.COUNT])
        base, top = int(state[encode.BASE_TIME]), int(state[encode.MAX_TIME])
        data = out[: BATCH.size + filled]
        if self._codec:
            packed = compression.compress(CODECS[self._codec], memoryview(data)[BATCH.size :], None)  # type: ignore[arg-type]
            data = np.frombuffer(bytearray(BATCH.size) + packed, np.uint8)
        _put_head(data, self._codec, count, base, top)
        yield OutgoingBatch(data, count, self._next, top)


def _put_head(data: Any, codec: int, count: int, base_time: int, max_time: int) -> None:
    """The header of a new batch without a producer; `stamp` completes it."""
    length = data.size - BATCH.after("length")
    _HEAD.pack_into(
        memoryview(data),
        0,
        0,
        length,
        NONE,
        MAGIC_V2,
        0,
        codec,
        count - 1,
        base_time,
        max_time,
        NONE,
        NONE,
        NONE,
        count,
    )


def _unpackable(frames: Frames, head: Heads) -> Iterator[tuple[int, int]]:
    """Runs of batches that are unpacked at a time: all at once if they are not compressed, else few."""
    if not head.any(CODEC_MASK):
        if len(frames):
            yield 0, len(frames)
        return
    start, size = 0, 0
    for index, batch_size in enumerate(frames.sizes.tolist()):
        if size + batch_size > 1 << 20 and index > start:
            yield start, index
            start, size = index, 0
        size += batch_size
    if start < len(frames):
        yield start, len(frames)


def outgoing(frames: Frames, head: Heads) -> Iterator[OutgoingBatch]:
    """Batches that rows were encoded to, ready to stamp."""
    for index in range(len(frames)):
        data = frames.data[int(frames.starts[index]) : int(frames.stops[index])].copy()
        yield OutgoingBatch(
            data,
            int(head["record_count"][index]),
            int(head["last_offset"][index]) + 1,
            int(head["max_timestamp"][index]),
        )


# ----------------------------------------------------------------------------------------------------------------------
# Sending batches to the leaders of partitions: idempotent, acknowledged by all in-sync replicas, at most five requests on their way.
#
# What is not acknowledged is kept. After a lost connection or an error that passes by itself, exactly the same batches are sent again in
# order; the broker recognises those that it has already, so nothing is lost and nothing is there twice. A broker that restarts forgets
# producers whose records are older than a day (producer.id.expiration.ms goes by the times of records), as replayed ones mostly are:
# therefore we first look into the partition for what it has of us.

IN_FLIGHT = 5
"""Requests on their way to one broker: it remembers the last five batches of a producer in each partition."""
REQUEST_BYTES = 8 << 20
WAITING_BYTES = 32 << 20
"""When so much waits to be sent, `put` blocks."""
TOPIC_IDS = 13
TRANSACTIONAL_MOST = 11
"""The newest version of Produce in which transactions are announced by AddPartitionsToTxn."""


@dataclass(slots=True, eq=False)
class Writer:
    """The producer that batches bear: an idempotent one, or one with a transactional id."""

    transactional_id: str | None = None
    id: int = -1
    epoch: int = -1
    #: The producer of the source whose transactions it repeats; -1 for records of no transaction.
    source: int = -1
    #: The sequence of the next record in each partition.
    sequences: dict[TopicPartition, int] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class SentBatch:
    """A batch that is waiting or on its way."""

    partition: TopicPartition
    batch: OutgoingBatch
    writer: Writer
    sequence: int
    sent_at: float = 0.0


@dataclass(slots=True)
class Lane:
    """One partition with its waiting, unacknowledged and acknowledged batches."""

    waiting: deque[SentBatch] = field(default_factory=deque)
    unacknowledged: deque[SentBatch] = field(default_factory=deque)
    acknowledged: int = 0
    records: int = 0
    #: By `Writer.source`: the sequence after the last record that was acknowledged.
    sequences: dict[int, int] = field(default_factory=dict)
    #: The records of open transactions.
    open: dict[int, int] = field(default_factory=dict)
    #: Records that an earlier replay sent in a transaction that is aborted since: how many are still to be sent again, and how many were.
    to_repeat: dict[int, int] = field(default_factory=dict)
    repeated: int = 0
    #: The offset after the last record that was acknowledged, in the target.
    end_offset: int = -1
    #: The offset of the source after it.
    source_offset: int = -1
    has_failed: bool = False


class Producer:
    """An idempotent producer. `put` takes batches in the order of each partition; `flush` waits until all are acknowledged.

    `end_of` tells where a partition ended before the first batch was sent to it.

    BrokerError for what does not pass by itself; what was acknowledged until then is in `lanes`.
    """

    def __init__(
        self,
        cluster: Cluster,
        ids: Mapping[str, bytes],
        *,
        end_of: Callable[[TopicPartition], int],
        on_acknowledged: Callable[[SentBatch, int, float], None] | None = None,
        in_flight: int = IN_FLIGHT,
    ) -> None:
        self.cluster, self.ids, self.in_flight = cluster, ids, in_flight
        self.lanes: dict[TopicPartition, Lane] = {}
        self.plain = Writer()
        self.retries = 0
        self.waiting_bytes = 0
        self._on_acknowledged, self._end_of = on_acknowledged, end_of
        self._leaders: dict[TopicPartition, int] = {}
        self._flights: dict[int, deque[list[SentBatch]]] = {}
        self._backoff = cluster.backoff()
        self._turn: deque[TopicPartition] = deque()

    def begin(self) -> None:
        """Get an id from the cluster."""

        def ask() -> Message:
            answer = self.cluster.any().ask(
                client.INIT_PRODUCER_ID, {"transactionalId": None, "transactionTimeoutMs": 60_000}
            )
            if answer["errorCode"]:
                raise refusal("producer id", answer["errorCode"])
            return answer

        answer = self.cluster.retry(ask)
        self.plain = Writer(None, answer["producerId"], answer["producerEpoch"])

    # What callers do --------------------------------------------------------------------------------------------------------

    def lane(self, partition: TopicPartition) -> Lane:
        """What is known of a partition."""
        if partition not in self.lanes:
            self.lanes[partition] = Lane(end_offset=self._end_of(partition))
        return self.lanes[partition]

    def put(self, partition: TopicPartition, batch: OutgoingBatch, writer: Writer | None = None) -> None:
        """Send a batch when its turn comes, as the idempotent producer unless another one is given. Blocks while much is waiting."""
        lane, writer = self.lane(partition), writer or self.plain
        sequence = writer.sequences.get(partition, 0)
        stamp(batch.data, writer.id, writer.epoch, sequence, is_transactional=writer.transactional_id is not None)
        writer.sequences[partition] = (sequence + batch.count) % SEQUENCES
        lane.records += batch.count
        if not lane.waiting:
            self._turn.append(partition)
        lane.waiting.append(SentBatch(partition, batch, writer, sequence))
        self.waiting_bytes += len(batch)
        if self.waiting_bytes >= WAITING_BYTES:
            while self.waiting_bytes >= WAITING_BYTES // 2:
                self.pump(1.0)
        elif self.waiting_bytes >= REQUEST_BYTES // 2:
            self.pump(0.0)

    def pump(self, timeout: float) -> None:
        """Send what may be sent, and take in the answers that are there; wait for one for up to `timeout` seconds."""
        try:
            self._send_waiting()
            self._receive(timeout)
            self._resend_failed()
        except BrokerError as error:
            if not isinstance(error, Disconnected) and error.code not in RETRIABLE:
                raise
            self._begin_again(error)

    def flush(self, partitions: Collection[TopicPartition] | None = None) -> None:
        """Wait until everything is acknowledged, or what was sent to some partitions."""
        lanes = self.lanes.values() if partitions is None else [self.lane(partition) for partition in partitions]
        while any(lane.waiting or lane.unacknowledged for lane in lanes):
            self.pump(1.0)

    @property
    def unfinished(self) -> int:
        """The batches that are not acknowledged."""
        return sum(len(lane.waiting) + len(lane.unacknowledged) for lane in self.lanes.values())

    @property
    def is_full(self) -> bool:
        """Whether batches wait that may not be sent yet."""
        return bool(self._turn)

    @property
    def acknowledged(self) -> int:
        """The records that are acknowledged."""
        return sum(lane.acknowledged for lane in self.lanes.values())

    def find_leader(self, partition: TopicPartition) -> None:
        """Connect to the leader of a partition, before there is something to send."""
        self._find_leaders([partition])
        self.cluster.retry(lambda: self.cluster.node(self._leaders[partition]))

    # Sending ----------------------------------------------------------------------------------------------------------------

    def _find_leaders(self, partitions: Iterable[TopicPartition]) -> None:
        missing = [partition for partition in partitions if partition not in self._leaders]
        if missing:
            leaders = self.cluster.leaders(missing, self.ids)
            self._leaders |= {partition: leader.node for partition, leader in leaders.items()}

    def _send_waiting(self) -> None:
        """Requests for the brokers that may get one, each with at most one batch per partition, partitions taking turns."""
        while True:
            waiting = list(self._turn)
            self._find_leaders(waiting)
            requests: dict[int, list[SentBatch]] = {}
            sizes: dict[int, int] = {}
            for partition in waiting:
                node, lane = self._leaders[partition], self.lanes[partition]
                first, before = lane.waiting[0], lane.unacknowledged
                flights = self._flights.get(node, ())
                if lane.has_failed or len(flights) >= self.in_flight or len(before) >= self.in_flight:
                    continue
                if before and before[-1].writer is not first.writer:
                    continue  # brokers keep the order of one producer only
                size = len(first.batch)
                if node in requests and (
                    sizes[node] + size > REQUEST_BYTES or requests[node][0].writer is not first.writer
                ):
                    continue
                requests.setdefault(node, []).append(first)
                sizes[node] = sizes.get(node, 0) + size
            if not requests:
                return
            for node, batches in requests.items():
                connection = self.cluster.node(node)
                if connection.wants_login and self._flights.get(node):
                    continue  # nothing may be on its way
                self._send(node, connection, batches)
            if all(self.cluster.node(node).wants_login for node in requests):
                return

    def _send(self, node: int, connection: Connection, batches: list[SentBatch]) -> None:
        named = batches[0].writer.transactional_id
        version = connection.version_of(client.PRODUCE, TRANSACTIONAL_MOST if named is not None else None)
        if version >= TOPIC_IDS and not all(any(self.ids.get(sent.partition.topic, b"")) for sent in batches):
            version = TOPIC_IDS - 1
        topics: dict[str, list[Message]] = {}
        now = time.monotonic()
        for sent in batches:
            rows = topics.setdefault(sent.partition.topic, [])
            rows.append({"index": sent.partition.partition, "records": memoryview(sent.batch.data)})  # type: ignore[arg-type]
        request = {
            "transactionalId": named,
            "timeoutMs": min(30_000, int(self.cluster.settings.timeout * 500)),
            "topicData": [
                {**({"topicId": self.ids[name]} if version >= TOPIC_IDS else {"name": name}), "partitionData": rows}
                for name, rows in topics.items()
            ],
        }
        for sent in batches:  # before it is sent: if that fails, it may have been sent all the same
            lane = self.lanes[sent.partition]
            lane.waiting.popleft()
            lane.unacknowledged.append(sent)
            sent.sent_at = now
            self.waiting_bytes -= len(sent.batch)
            self._turn.remove(sent.partition)
            if lane.waiting:
                self._turn.append(sent.partition)
        self._flights.setdefault(node, deque()).append(batches)
        connection.send(client.PRODUCE, request, version)

    # Answers ----------------------------------------------------------------------------------------------------------------

    def _receive(self, timeout: float) -> None:
        """Take in answers: one after waiting, and all that are there already."""
        while True:
            waiting = {node: self.cluster.node(node) for node, flights in self._flights.items() if flights}
            if not waiting:
                return
            ready = [node for node, connection in waiting.items() if connection.has_buffered]
            if not ready:
                poller = select.poll()
                nodes = {connection.fileno(): node for node, connection in waiting.items()}
                for number in nodes:
                    poller.register(number, select.POLLIN)
                ready = [nodes[number] for number, _ in poller.poll(timeout * 1000)]
            if not ready:
                self._check_time()
                return
            for node in ready:
                self._take(self._flights[node], waiting[node].receive())
            timeout = 0.0

    def _check_time(self) -> None:
        """Disconnected for a broker that has not answered for longer than the settings allow."""
        for node, flights in self._flights.items():
            if flights and time.monotonic() - flights[0][0].sent_at > self.cluster.settings.timeout:
                raise Disconnected(f"{self.cluster.node(node).named}: no answer in time")

    def _take(self, flights: deque[list[SentBatch]], answer: Message) -> None:
        batches = {sent.partition: sent for sent in flights.popleft()}
        names = {bytes(number): name for name, number in dict(self.ids).items()}  # another thread may add some
        now = time.monotonic()
        for topic in answer["responses"]:
            name = topic["name"] if "name" in topic else names.get(bytes(topic["topicId"]), "")
            for row in topic["partitionResponses"]:
                sent = batches.pop(TopicPartition(name, row["index"]), None)
                if sent is not None:
                    self._settle(sent, row, now)
        for sent in batches.values():
            raise BrokerError(f"partition {sent.partition}: the broker did not say whether it took a batch")

    def _settle(self, sent: SentBatch, row: Message, now: float) -> None:
        lane, code = self.lanes[sent.partition], row["errorCode"]
        if lane.has_failed:
            return  # it is sent again, after the one that failed
        if code in (0, DUPLICATE):
            if lane.unacknowledged[0] is not sent:
                raise BrokerError(f"partition {sent.partition}: the broker acknowledged batches out of order")
            if 0 <= row["baseOffset"] < lane.end_offset:
                raise BrokerError(
                    f"partition {sent.partition}: a batch is stored at offset {row['baseOffset']:,}, although those before it ended at "
                    f"{lane.end_offset:,}: the log was cut back, or the topic was deleted and created again"
                )
            lane.unacknowledged.popleft()
            self._finish(
                lane, sent, row["baseOffset"] + sent.batch.count if row["baseOffset"] >= 0 else lane.end_offset
            )
            self._backoff.progress()
            if self._on_acknowledged is not None:
                self._on_acknowledged(sent, row["baseOffset"], now)
            return
        errors = "; ".join(str(error["batchIndexErrorMessage"]) for error in row["recordErrors"][:3])
        text = " ".join(part for part in (row["errorMessage"], errors) if part) or None
        if code not in RETRIABLE:
            what = f"partition {sent.partition}: a batch of {sent.batch.count:,} records ({len(sent.batch):,} bytes)"
            raise refusal(what, code, text)
        lane.has_failed = True
        self._failure = refusal(f"partition {sent.partition}", code, text)

    def _finish(self, lane: Lane, sent: SentBatch, end_offset: int) -> None:
        lane.acknowledged += sent.batch.count
        source, count = sent.writer.source, sent.batch.count
        lane.sequences[source] = (sent.sequence + count) % SEQUENCES
        if sent.writer.transactional_id is not None:
            lane.open[source] = lane.open.get(source, 0) + count
            again = min(count, lane.to_repeat.get(source, 0))
            lane.to_repeat[source] = lane.to_repeat.get(source, 0) - again
            lane.repeated += again
        lane.source_offset = sent.batch.next_offset
        lane.end_offset = end_offset

    # Trying again -----------------------------------------------------------------------------------------------------------

    _failure: BrokerError | None = None

    def _resend_failed(self) -> None:
        """Partitions with an error: once nothing is on its way to their brokers, send what is not acknowledged again."""
        failed = [partition for partition, lane in self.lanes.items() if lane.has_failed]
        if not failed or any(
            self._flights.get(self._leaders[partition]) for partition in failed if partition in self._leaders
        ):
            return
        assert self._failure is not None
        self._begin_again(self._failure, failed)

    def _begin_again(self, error: BrokerError, partitions: list[TopicPartition] | None = None) -> None:
        """Put what is not acknowledged back in front, and look for the leaders once more."""
        self.retries += 1
        if partitions is None:  # a connection is gone: begin again with all
            for node in list(self._flights):
                self.cluster.drop(node)
            self._flights.clear()
            partitions = list(self.lanes)
        self._backoff.wait(error)
        doubtful = [partition for partition in partitions if self.lanes[partition].unacknowledged]
        if doubtful:
            self._settle_written(doubtful)
        for partition in partitions:
            lane = self.lanes[partition]
            lane.has_failed = False
            self._leaders.pop(partition, None)
            for sent in reversed(lane.unacknowledged):
                lane.waiting.appendleft(sent)
                self.waiting_bytes += len(sent.batch)
            lane.unacknowledged.clear()
            if lane.waiting and partition not in self._turn:
                self._turn.append(partition)

    def _settle_written(self, partitions: list[TopicPartition]) -> None:
        """Acknowledge what is in the partitions although no answer said so: their batches bear our id and sequence."""
        with Cluster(
            self.cluster.settings, self.cluster.is_stopped
        ) as other:  # other answers may be on their way in ours
            other.brokers = dict(self.cluster.brokers)
            for partition in partitions:
                lane = self.lanes[partition]
                writer = lane.unacknowledged[0].writer
                end = written_by(other, partition, self.ids, writer.id, lane.end_offset)
                if end is None:
                    continue
                written = (end[0] - lane.unacknowledged[0].sequence) % SEQUENCES
                if written > sum(sent.batch.count for sent in lane.unacknowledged):
                    continue  # the last that it has of us was acknowledged before
                while lane.unacknowledged and written >= lane.unacknowledged[0].batch.count:
                    sent = lane.unacknowledged.popleft()
                    written -= sent.batch.count
                    self._finish(lane, sent, end[1])
