"""The way of a replay into the cluster: rows become batches with the times that they are to have, and go to the producer."""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rawlog.formats.kafka.log.layouts import BATCH
from rawlog.formats.kafka.log.writer import Batching, encode_rows
from rawlog.formats.kafka.log.writer import Rows as RowBuffers
from rawlog.live.batches import TARGET_BYTES, OutgoingBatch, outgoing
from rawlog.live.cluster import Cluster, TopicPartition
from rawlog.live.librdkafka import connect, writer
from rawlog.live.options import ReplayOptions
from rawlog.live.produce import SentBatch
from rawlog.live.sinks import Targets
from rawlog.live.sources import NOT_TRANSACTIONAL, Omissions
from rawlog.live.transactions import Transactions
from rawlog.model.errors import EncodeError
from rawlog.model.table import RECORDS

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
        self.transactions = Transactions(self.producer, uuid.uuid4().hex[:16], on_new)
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


__all__ = ["Sending"]
