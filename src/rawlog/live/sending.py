"""The way of a replay or a mirror into the cluster: its topics; and rows as batches, with times and in transactions, for the producer."""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rawlog.formats.kafka.internal.codec import Message
from rawlog.formats.kafka.log.layouts import BATCH, Attributes
from rawlog.formats.kafka.log.writer import Batching, RowBuffers, encode_rows
from rawlog.live import client
from rawlog.live.client import (
    CONCURRENT_TRANSACTIONS,
    INVALID_TRANSACTION_TIMEOUT,
    NOT_AUTHORIZED,
    UNKNOWN_TOPIC,
    Api,
    refusal,
)
from rawlog.live.cluster import (
    END,
    TRANSACTION,
    Cancelled,
    Cluster,
    Leader,
    TopicMetadata,
    TopicPartition,
    ids_of,
)
from rawlog.live.fetch import Fetcher
from rawlog.live.librdkafka import connect, writer
from rawlog.live.options import ReplayOptions
from rawlog.live.produce import TARGET_BYTES, OutgoingBatch, Producer, SentBatch, Writer, outgoing
from rawlog.live.sources import NOT_TRANSACTIONAL, Marker, Omissions
from rawlog.model.errors import EncodeError, OptionError, unknown
from rawlog.model.table import RECORDS
from rawlog.model.text import counted

# ----------------------------------------------------------------------------------------------------------------------
# The topics that a replay or a mirror writes to: their partitions, their settings, and where they ended before.


DEFAULT_LIMIT = 1_048_588
"""A topic's max.message.bytes unless it says otherwise."""
DAY_MS = 86_400_000


def check_topic_map(topic_map: Mapping[str, str], topics: Iterable[str]) -> None:
    """OptionError for a topic that is to get another name and that the source does not have: with a typing error in the map, records would
    go to the topic of their own name.
    """
    names = sorted(topics)
    for name in topic_map:
        if name not in names:
            raise unknown("topic in the topic map", name, names)


class Targets:
    """The topics that records go to, looked up when they are first needed, and what they take.

    With `create` a topic that does not exist is created, with `partitions` partitions if that is given.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        create: bool = False,
        partitions: int | None = None,
        timestamps: str = "original",
        dry_run: bool = False,
    ) -> None:
        self.cluster, self.timestamps, self.dry_run = cluster, timestamps, dry_run
        self.create, self.partitions = create, partitions
        self.topics: dict[str, TopicMetadata] = {}
        self.notes: list[str] = []
        self._limits: dict[str, int] = {}
        self._numbers: dict[str, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self.ids: dict[str, bytes] = {}

    def exists(self, name: str) -> bool:
        """Whether the cluster has a topic now. Nothing is created."""
        answer = self.cluster.retry(lambda: self.cluster.metadata([name]))
        return any(row["name"] == name and row["errorCode"] != UNKNOWN_TOPIC for row in answer["topics"])

    def need(self, name: str, partition: int = 0, largest: int | None = None) -> TopicMetadata:
        """A topic that has a partition. OptionError if it does not exist or has too few. One that is created gets so many that `largest`
        is among them, or what the cluster gives by default (-1).
        """
        topic = self.topics.get(name)
        if topic is None:
            topic = self._find(name, partition if largest is None else largest)
        if partition not in topic.partitions:
            raise OptionError(
                f"topic {name} has {counted(len(topic.partitions), 'partition')}, the source has records of partition {partition}"
            ).advise("--partition-by key or round-robin, or --topic-map OLD=NEW to name a topic with more partitions")
        return topic

    def _find(self, name: str, partition: int) -> TopicMetadata:
        if self.create and not self.dry_run:
            self.cluster.create_topic(name, self.partitions or partition + 1 or -1)
        try:
            topic = self.cluster.topics([name])[name]
        except OptionError as error:
            if not (self.create and self.dry_run):
                raise error.advise("--create-topic to create it, or --topic-map OLD=NEW to name another") from None
            return self._imagine(name, self.partitions or partition + 1 or 1)
        self.topics[name], self._numbers[name] = topic, len(self._numbers)
        self.ids |= ids_of({name: topic})
        names = ("max.message.bytes", "message.timestamp.type", "cleanup.policy", "retention.ms")
        configs = self.cluster.configs(name, names)
        self._limits[name] = int(configs.get("max.message.bytes", DEFAULT_LIMIT))
        if configs.get("message.timestamp.type") == "LogAppendTime" and self.timestamps != "now":
            self.notes.append(
                f"topic {name}: message.timestamp.type is LogAppendTime; the broker gives records its own time"
            )
        retention = int(configs.get("retention.ms", -1))
        if "delete" in configs.get("cleanup.policy", "delete") and retention >= 0 and self.timestamps == "original":
            self.notes.append(
                f"topic {name}: retention.ms is {retention:,} ({retention / DAY_MS:,.1f} days); the broker deletes records that are older"
            )
        lanes = [TopicPartition(name, number) for number in topic.partitions]
        self._ends |= self.cluster.offsets(dict.fromkeys(lanes, END), self.ids)
        return topic

    def _imagine(self, name: str, count: int) -> TopicMetadata:
        """The topic that a dry run would create."""
        topic = TopicMetadata(name, bytes(16), False, {number: Leader(-1, -1) for number in range(count)})
        self.topics[name], self._numbers[name] = topic, len(self._numbers)
        self._limits[name] = DEFAULT_LIMIT
        self.notes.append(f"topic {name}: it does not exist and would be created with {counted(count, 'partition')}")
        return topic

    def limit(self, name: str) -> int:
        """The largest batch that a topic takes."""
        self.need(name)
        return self._limits[name]

    def end(self, partition: TopicPartition) -> int:
        """Where a partition ended when the replay began."""
        return self._ends.get(partition, 0)

    def number_of(self, name: str) -> int:
        return self._numbers[name]

    def key_of(self, partition: TopicPartition) -> int:
        return self._numbers[partition.topic] << 32 | partition.partition

    def lane(self, key: int) -> TopicPartition:
        names: dict[int, str] = {number: name for name, number in self._numbers.items()}
        return TopicPartition(names[key >> 32], key & 0xFFFF_FFFF)


# ----------------------------------------------------------------------------------------------------------------------
# Transactions of a source, repeated in the target: which records and markers of several partitions belong together, and who sends them.
#
# Every producer of the source gets a transactional id of its own in the target. Its records are sent in a
# transaction, and the transaction is
# ended when the source has its markers, in all its partitions at once. Nothing that follows a marker is sent before the marker is in the
# target, so records and markers get the same order, and the same offsets in an empty topic.

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


class TargetTransactions:
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


BIN_MS, BINS = 0.1, 200_000
"""Times are counted in bins of this width; what is longer than all of them counts in the last."""
WINDOW = 0.1
"""No window of so many seconds gets more than its share of a steady rate, and a little."""
EXCESS = 1.15
TICK, LONGEST_TICK, LONGEST_OF_RATE = 0.008, 0.03, 0.01
"""Records that are due within the same tick, in seconds, are sent in one batch per partition. Where acknowledgements take long, ticks are
longer, because few batches may be on their way. At a rate, many of them fit into a window, so that it can be filled."""
SPARE = 2.5
"""So many times more ticks could be sent than are needed, to catch up after a pause."""
MOST_ROWS = 10_000
"""In one batch, where many are due at the same time."""


class Histogram:
    """Percentiles of many times in little memory."""

    def __init__(self) -> None:
        self.counts = np.zeros(BINS, np.int64)
        self.most = 0.0

    def add(self, milliseconds: NDArray[np.float64]) -> None:
        """Take in times; those below 0 count as 0."""
        if milliseconds.size:
            bins = np.clip(milliseconds / BIN_MS, 0, BINS - 1).astype(np.int64)
            np.add.at(self.counts, bins, 1)
            self.most = max(self.most, float(milliseconds.max()))

    def percentile(self, share: float) -> float:
        """The time that this share of all did not exceed."""
        total = int(self.counts.sum())
        if not total:
            return 0.0
        return min(round(float(np.searchsorted(np.cumsum(self.counts), share * total) + 1) * BIN_MS, 3), self.most)

    def summary(self) -> dict[str, float]:
        """For the Report."""
        percentiles = {name: self.percentile(share) for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))}
        return {**{name: round(value, 3) for name, value in percentiles.items()}, "max": round(self.most, 3)}

    def __bool__(self) -> bool:
        return bool(self.counts.any())


class Schedule:
    """When rows are due, in seconds after the start: at a `rate` of rows per second, or as recorded, `speed` times faster."""

    def __init__(
        self, *, rate: float | None = None, speed: float = 1.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.rate, self.speed, self.clock = rate, speed, clock
        self.errors = Histogram()
        self._start: float | None = None
        self._rows = 0
        self._first: int | None = None
        self._latest = 0.0
        self._recent: deque[tuple[float, int]] = deque()
        self._in_window = 0
        #: The most rows that were sent in any window.
        self.most_in_window = 0
        self.tick = TICK
        self._latency = 0.0

    def restart(self) -> None:
        """The next row is due at once: the source begins again."""
        self._start, self._rows, self._first, self._latest = None, 0, None, 0.0

    def due(self, times_us: NDArray[np.int64], has_time: NDArray[np.bool_]) -> NDArray[np.float64]:
        """When each of the rows that follow is due. Times that go back, and rows without one, are due with the row before them."""
        count = times_us.size
        if self.rate is not None:
            due = (self._rows + np.arange(count)) / self.rate
            self._rows += count
            return due
        if self._first is None and has_time.any():
            self._first = int(times_us[has_time][0])
        relative = np.where(has_time, (times_us - (self._first or 0)) / 1e6 / self.speed, 0.0)
        due = np.maximum.accumulate(np.concatenate(([self._latest], relative)))[1:]
        self._latest = float(due[-1]) if count else self._latest
        return due

    @property
    def elapsed(self) -> float:
        """Seconds since the first row was due."""
        now = self.clock()
        if self._start is None:
            self._start = now
        return now - self._start

    def ticks(self, due: NDArray[np.float64]) -> Iterator[tuple[int, int]]:
        """Runs of rows that are sent together: those that are due within one tick, and not too many."""
        start = 0
        while start < due.size:
            tick = self.tick  # another thread may change it
            if self.rate is None and self._start is not None and self.clock() - self._start > due[start]:
                tick = LONGEST_TICK  # it is late already: fewer batches take less time
            end = (np.floor(due[start] / tick) + 1) * tick
            stop = min(max(start + 1, int(np.searchsorted(due, end))), start + self._most)
            yield start, stop
            start = stop

    def acknowledged(self, seconds: float, in_flight: int) -> None:
        """A batch was acknowledged after so long; so many may be on their way at a time."""
        self._latency += 0.05 * (seconds - self._latency)
        longest = LONGEST_TICK if self.rate is None else LONGEST_OF_RATE
        self.tick = min(max(TICK, SPARE * self._latency / in_flight), longest)

    @property
    def _most(self) -> int:
        """Rows that may be sent at a time."""
        return MOST_ROWS if self.rate is None else max(1, int(EXCESS * self.rate * WINDOW))

    def wait(self, due: NDArray[np.float64]) -> float:
        """In how many seconds rows of one tick are to be sent: when they are due on average, and no window gets too many."""
        now = self.elapsed
        wait = float(due.mean()) - now
        if self.rate is None:
            return max(0.0, wait)
        self._forget(now)
        if self._in_window and self._in_window + due.size > self._most:
            wait = max(wait, self._recent[0][0] + WINDOW - now)
        return max(0.0, wait)

    def sent(self, due: NDArray[np.float64]) -> None:
        """These rows are on their way now."""
        now = self.elapsed
        self._forget(now)
        self._recent.append((now, due.size))
        self._in_window += due.size
        self.most_in_window = max(self.most_in_window, self._in_window)
        self.errors.add(np.abs(now - due) * 1000)

    def _forget(self, now: float) -> None:
        while self._recent and self._recent[0][0] <= now - WINDOW:
            self._in_window -= self._recent.popleft()[1]


class Sending:
    """The topics, the producer and its transactions, and what was read, left out and sent. `close` ends their connections.

    `on_new` is called when a producer of transactions got its id, before it sends anything.
    """

    def __init__(
        self, cluster: Cluster, options: ReplayOptions, is_stopped: Callable[[], bool], on_new: Callable[[], None]
    ) -> None:
        self.cluster, self.options, self.is_stopped = cluster, options, is_stopped
        #: Whether whoever looks up topics in another thread shall give up.
        self.is_ending = False
        self._lookups = cluster  # of another thread, where records are due at a time
        if options.is_paced:
            self._lookups = connect(cluster.settings, lambda: self.is_ending or is_stopped())
        self.targets = Targets(
            self._lookups,
            create=options.create_topics,
            partitions=options.partitions,
            timestamps=options.timestamps,
            dry_run=options.dry_run,
        )
        self.producer = writer(
            cluster, self.targets.ids, end_of=self.targets.end, on_acknowledged=self._on_acknowledged
        )
        self.transactions = TargetTransactions(self.producer, uuid.uuid4().hex[:16], on_new)
        self.schedule = Schedule(rate=options.rate, speed=options.speed)
        self.left = Omissions()
        self.notes: list[str] = []
        self.read = self.read_bytes = self.bytes = self.skipped = 0
        #: Records of each partition that were sent before and are to be left out.
        self.skip: dict[TopicPartition, int] = {}
        #: Milliseconds that are added to the times of records; None until the first record is known.
        self.shift: int | None = 0 if options.timestamps != "shift" else None
        self._latencies: list[float] = []
        self._counted = Histogram()

    def close(self) -> None:
        self.transactions.close()
        self._lookups.close()

    def put(self, target: TopicPartition, batches: Iterator[OutgoingBatch], sender: int = NOT_TRANSACTIONAL) -> None:
        """Send batches; `sender` is the producer of the source, if they belong to a transaction."""
        for batch in batches:
            self.bytes += len(batch)
            if not self.options.dry_run:
                writer = None if sender == NOT_TRANSACTIONAL else self.transactions.writer(sender, target)
                self.producer.put(target, batch, writer)

    def put_rows(self, target: TopicPartition, batch: pa.RecordBatch, sender: int = NOT_TRANSACTIONAL) -> None:
        """Send rows, with the times that they are to have."""
        self.put(target, self.encode(target, self.retime(batch)), sender)

    def find_shift(self, times_us: list[int]) -> None:
        """The records with the earliest of these times are as if created now, if times are to be shifted."""
        if self.shift is None and times_us:
            self.shift = int(time.time() * 1000) - min(times_us) // 1000

    def retime(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows with the times that they are to have; all of them are times of creation."""
        column = batch.column("timestamp")
        if self.options.timestamps == "now":
            column = pa.array(np.full(batch.num_rows, int(time.time() * 1000) * 1000), pa.int64()).cast(column.type)
        elif self.shift:
            column = pc.add(column.cast(pa.int64()), self.shift * 1000).cast(column.type)
        arrays = {name: batch.column(name) for name in batch.schema.names}
        arrays["timestamp"] = column
        arrays["timestampType"] = pa.array(np.zeros(batch.num_rows, np.int32))
        return pa.RecordBatch.from_arrays([arrays[name] for name in RECORDS.names], schema=RECORDS.schema)

    def encode(self, target: TopicPartition, batch: pa.RecordBatch) -> Iterator[OutgoingBatch]:
        """Batches of rows. EncodeError for a record that is larger than the topic takes."""
        if not batch.num_rows:
            return
        most = self.targets.limit(target.topic)
        room = min(TARGET_BYTES, most) - BATCH.size
        encoded = encode_rows(RowBuffers.of(batch, 0), Batching(bytes=room))
        for ready in outgoing(encoded.frames, encoded.head):
            if len(ready) > most:
                offset = batch.column("offset")[ready.next_offset - 1].as_py()
                where = "" if offset is None else f"offset {offset:,}: "
                raise EncodeError(
                    f"{where}a record of {len(ready):,} bytes in its batch; topic {target.topic} takes {most:,}"
                )
            yield ready

    def _on_acknowledged(self, sent: SentBatch, base_offset: int, now: float) -> None:
        self._latencies.append((now - sent.sent_at) * 1000)
        self.schedule.acknowledged(now - sent.sent_at, self.producer.in_flight)
        if len(self._latencies) >= 1000:
            self.latencies()

    def latencies(self) -> Histogram:
        """The milliseconds from sending to acknowledgement, so far."""
        self._counted.add(np.array(self._latencies, np.float64))
        self._latencies.clear()
        return self._counted
