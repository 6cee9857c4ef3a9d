"""A replay of rows: each goes to the partition that it is assigned to, as fast as possible or when it is due."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import Condition, Thread
from typing import Generic, Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rawlog.kernels import byte_view
from rawlog.kernels.hashes import murmur2_spans
from rawlog.live.batches import OutgoingBatch
from rawlog.live.cluster import TopicPartition
from rawlog.live.partition_replay import Checkpoints
from rawlog.live.replay_options import ReplayOptions
from rawlog.live.sending import Sending
from rawlog.live.sinks import Targets
from rawlog.live.sources import RowStream, by_time, in_turn
from rawlog.model.errors import EncodeError
from rawlog.reading.select import limited

# ----------------------------------------------------------------------------------------------------------------------
# Reads ahead in a thread of its own, so that whoever sends records has them ready when they are due.


T = TypeVar("T")
CLOSE_SECONDS = 10.0
"""How long the end waits for an iterator that is in the middle of an item."""


class Ahead(Generic[T]):
    """The items of an iterator, up to `most` of their sizes ahead. An error of the iterator is raised where its item would come.

    Use as a context manager: the thread ends with it. One that waits for something that never comes is left to itself; it never keeps the
    process from ending.
    """

    def __init__(self, items: Iterator[T], size_of: Callable[[T], int], most: int) -> None:
        self._items, self._size_of, self._most = items, size_of, most
        self._ready: deque[T] = deque()
        self._size = 0
        self._error: BaseException | None = None
        self._is_done = self._is_closed = False
        self._changed = Condition()
        self._thread = Thread(target=self._read, name="rawlog-ahead", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(CLOSE_SECONDS)

    def _read(self) -> None:
        try:
            for item in self._items:
                with self._changed:
                    self._changed.wait_for(lambda: self._is_closed or self._size < self._most)
                    if self._is_closed:
                        return
                    self._ready.append(item)
                    self._size += self._size_of(item)
                    self._changed.notify_all()
        except BaseException as error:
            self._error = error
        finally:
            with self._changed:
                self._is_done = True
                self._changed.notify_all()

    def fill(self, timeout: float, is_stopped: Callable[[], bool]) -> None:
        """Wait until as much as possible is ready, but not longer than `timeout` seconds."""
        stop = time.monotonic() + timeout
        with self._changed:
            while self._size < self._most and not self._is_done and not is_stopped() and time.monotonic() < stop:
                self._changed.wait(0.1)

    def take(self, timeout: float) -> T | None:
        """The next item; None if none came in time, or if there are no more (`is_done`). Raises what ended the iterator."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._is_done, timeout)
            if self._ready:
                item = self._ready.popleft()
                self._size -= self._size_of(item)
                self._changed.notify_all()
                return item
            if self._error is not None:
                raise self._error
            return None

    @property
    def is_done(self) -> bool:
        """Whether all items were taken, and the iterator ended well: an error is raised by `take`."""
        return self._is_done and not self._ready and self._error is None


# ----------------------------------------------------------------------------------------------------------------------
# Which partition each row of a replay goes to.


class Assignment:
    """Gives each row the number of its target: by its own partition, by its key as Java's default partitioner does, or in turn."""

    def __init__(self, options: ReplayOptions, targets: Targets) -> None:
        self.options, self.targets = options, targets
        #: Topics of the map that no record is of, so far.
        self.unmapped = set(options.topic_map)
        self._turn = 0

    def targets_of(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        """The number of the target of each row. OptionError for a topic that does not exist or has too few partitions."""
        topics = batch.column("topic").dictionary_encode()
        self.unmapped.difference_update(topics.dictionary.to_pylist())
        names = [self.options.target_of(name) for name in topics.dictionary.to_pylist()]
        codes = pc.fill_null(topics.indices, -1).to_numpy(zero_copy_only=False)
        if (codes < 0).any():
            names.append(self.options.target_of(None))
            codes = np.where(codes < 0, len(names) - 1, codes)
        largest = -1
        if self.options.partition_by == "original" and batch.num_rows:
            largest = pc.max(batch.column("partition")).as_py() or 0
        counts = np.array([len(self.targets.need(name, 0, largest).partitions) for name in names], np.int64)
        room = counts[codes] if counts.size else np.zeros(0, np.int64)
        numbers = self._numbers(batch, room)
        if numbers.size and ((numbers < 0) | (numbers >= room)).any():
            at = int(np.argmax((numbers < 0) | (numbers >= room)))
            self.targets.need(names[int(codes[at])], int(numbers[at]))
        keys: NDArray[np.int64] = (
            np.array([self.targets.number_of(name) for name in names], np.int64)[codes] << 32 | numbers
        )
        return keys

    def _numbers(self, batch: pa.RecordBatch, room: NDArray[np.int64]) -> NDArray[np.int64]:
        """The partition of each row."""
        turns = (self._turn + np.arange(batch.num_rows)) % np.maximum(room, 1)
        by = self.options.partition_by
        column = batch.column("partition")
        if by == "round-robin" or (by == "original" and column.null_count == batch.num_rows):
            self._turn += batch.num_rows
            return turns
        if by == "original":
            if column.null_count:
                raise EncodeError(
                    "some records have a partition, others have none; choose --partition-by key or round-robin"
                )
            numbers: NDArray[np.int64] = column.to_numpy().astype(np.int64)
            return numbers
        self._turn += batch.num_rows
        hashes = _murmur2(batch.column("key"))
        has_key = batch.column("key").is_valid().to_numpy(zero_copy_only=False)
        return np.where(has_key, (hashes & 0x7FFF_FFFF) % np.maximum(room, 1), turns)

    def divide(self, batch: pa.RecordBatch, keys: NDArray[np.int64]) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
        """The rows of each target."""
        for key in np.unique(keys).tolist():
            chosen = np.flatnonzero(keys == key)
            part = batch if chosen.size == batch.num_rows else batch.take(pa.array(chosen))
            yield self.targets.lane(key), part


def _murmur2(keys: pa.Array) -> NDArray[np.int64]:
    """The hash of each key as Java's default partitioner computes it; of a null it has no meaning."""
    filled = pc.fill_null(keys, b"")
    _, offsets, values = filled.buffers()
    ends = np.frombuffer(offsets, np.int32)[filled.offset : filled.offset + len(filled) + 1].astype(np.int64)
    out = np.empty(len(filled), np.int64)
    murmur2_spans(byte_view(values if values is not None else b""), ends[:-1].copy(), ends[1:].copy(), out)
    return out


AHEAD_BYTES, TICK_BYTES = 32 << 20, 256 << 10
"""How much is made ready before it is due; a tick counts as so much more than its batches."""
SHORT_WAIT, LONGEST_WAIT = 0.002, 0.05
FILL_SECONDS = 2.0
"""The first record waits for so long until others are ready."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Rows that are sent at the same time: when each of them is due, and their batches."""

    due: NDArray[np.float64]
    batches: list[tuple[TopicPartition, OutgoingBatch]]

    @property
    def size(self) -> int:
        return TICK_BYTES + sum(len(batch) for _, batch in self.batches)


class RowReplay:
    """Sends rows of streams. `step` is called between batches of rows, or ticks."""

    def __init__(
        self, sending: Sending, checkpoints: Checkpoints, streams: list[RowStream], step: Callable[[], None]
    ) -> None:
        self.sending, self.checkpoints, self.streams = sending, checkpoints, streams
        self.options, self.producer, self.schedule = sending.options, sending.producer, sending.schedule
        self.assignment = Assignment(sending.options, sending.targets)
        self._step = step

    def run(self) -> bool:
        """One round; True if somebody stopped it."""
        if self.options.is_paced:
            return self._run_paced()
        for batch, keys in self._rows(in_turn(self.streams, self.sending.left)):
            if self.sending.is_stopped():
                return True
            self.checkpoints.announce(map(self.sending.targets.lane, np.unique(keys).tolist()))
            for target, part in self.assignment.divide(batch, keys):
                self.sending.put_rows(target, part)
            self._step()
        return False

    def _rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, NDArray[np.int64]]]:
        """Rows that are to be sent, and the number of the target of each."""
        for batch in limited(batches, self.options.selection.limit):
            self.sending.read += batch.num_rows
            self.sending.read_bytes += batch.nbytes
            keys = self.assignment.targets_of(batch)
            if self.sending.skip:
                batch, keys = self._without_skipped(batch, keys)
            if self.options.timestamps == "shift":
                times = batch.column("timestamp").drop_null().cast(pa.int64())
                self.sending.find_shift(times.slice(0, 1).to_pylist())
            if batch.num_rows:
                yield batch, keys

    def _without_skipped(
        self, batch: pa.RecordBatch, keys: NDArray[np.int64]
    ) -> tuple[pa.RecordBatch, NDArray[np.int64]]:
        keep = np.ones(keys.size, np.bool_)
        for lane, count in list(self.sending.skip.items()):
            skipped = np.flatnonzero(keys == self.sending.targets.key_of(lane))[:count]
            keep[skipped] = False
            self.sending.skipped += skipped.size
            self.sending.skip[lane] = count - skipped.size
            if not self.sending.skip[lane]:
                del self.sending.skip[lane]
        return batch.filter(pa.array(keep)), keys[keep]

    def _ticks(self) -> Iterator[Tick]:
        """Rows that are due together, encoded. This runs ahead, in a thread of its own, and talks to the cluster by other connections."""
        for batch, keys in self._rows(by_time(self.streams, self.sending.left)):
            times = batch.column("timestamp")
            has_time = times.is_valid().to_numpy(zero_copy_only=False)
            due = self.schedule.due(pc.fill_null(times.cast(pa.int64()), 0).to_numpy(), has_time)
            batch = self.sending.retime(batch)
            for start, stop in self.schedule.ticks(due):
                parts = self.assignment.divide(batch.slice(start, stop - start), keys[start:stop])
                outgoing = [
                    (target, encoded) for target, part in parts for encoded in self.sending.encode(target, part)
                ]
                yield Tick(due[start:stop], outgoing)

    def _run_paced(self) -> bool:
        """Send each tick when it is due; the time in between goes to answers."""
        self.sending.is_ending = False
        with Ahead(self._ticks(), lambda tick: tick.size, AHEAD_BYTES) as ahead:
            try:
                return self._send_ticks(ahead)
            finally:
                self.sending.is_ending = True  # the other thread may be waiting for a broker

    def _send_ticks(self, ahead: Ahead[Tick]) -> bool:
        ahead.fill(FILL_SECONDS, self.sending.is_stopped)
        while not ahead.is_done:
            tick = ahead.take(0.0 if self.producer.unfinished else LONGEST_WAIT)
            if tick is None:
                self.producer.pump(SHORT_WAIT)
            elif not self.options.dry_run:
                for target in {target for target, _ in tick.batches} - self.producer.lanes.keys():
                    self.checkpoints.announce([target])
                    self.producer.find_leader(target)
                self._wait_for(tick)
                if not self.sending.is_stopped():
                    self._send(tick)
            if self.sending.is_stopped():
                return True
            self._step()
        return False

    def _wait_for(self, tick: Tick) -> None:
        """Until a tick is due, and all before it are on their way: what has to wait for acknowledgements would be sent in a burst."""
        while not self.sending.is_stopped():
            wait = self.schedule.wait(tick.due)
            if self.producer.is_full:
                self.producer.pump(max(SHORT_WAIT, min(wait, LONGEST_WAIT)))
            elif wait <= 0:
                return
            elif self.producer.unfinished and wait > SHORT_WAIT:
                self.producer.pump(min(wait - SHORT_WAIT / 2, LONGEST_WAIT))
            else:
                time.sleep(min(wait, LONGEST_WAIT))

    def _send(self, tick: Tick) -> None:
        now = int(time.time() * 1000) if self.options.timestamps == "now" else None
        for target, batch in tick.batches:
            if now is not None:
                batch.set_time(now)
            self.sending.put(target, iter((batch,)))
        self.producer.pump(0.0)
        self.schedule.sent(tick.due)
