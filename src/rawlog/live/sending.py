"""The way of a replay into the cluster: rows become batches with the times that they are to have, and go to the producer."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rawlog.formats.kafka.log.layouts import BATCH
from rawlog.formats.kafka.log.writer import Batching, encode_rows
from rawlog.formats.kafka.log.writer import Rows as RowBuffers
from rawlog.live.batches import TARGET_BYTES, OutgoingBatch, outgoing
from rawlog.live.cluster import Cluster, TopicPartition
from rawlog.live.librdkafka import connect, writer
from rawlog.live.pacing import Histogram, Schedule
from rawlog.live.produce import SentBatch
from rawlog.live.replay_options import ReplayOptions
from rawlog.live.sinks import Targets
from rawlog.live.sources import NOT_TRANSACTIONAL, Omissions
from rawlog.live.transactions import Transactions
from rawlog.model.errors import EncodeError
from rawlog.model.table import RECORDS


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
