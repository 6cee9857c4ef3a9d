"""A replay of rows: each goes to the partition that it is assigned to, as fast as possible or when it is due."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rawlog.live.ahead import Ahead
from rawlog.live.assignment import Assignment
from rawlog.live.batches import Outgoing
from rawlog.live.checkpoint import Checkpoints
from rawlog.live.cluster import TopicPartition
from rawlog.live.sending import Sending
from rawlog.live.sources import RowStream, by_time, in_turn
from rawlog.reading.select import limited

AHEAD_BYTES, TICK_BYTES = 32 << 20, 256 << 10
"""How much is made ready before it is due; a tick counts as so much more than its batches."""
SHORT_WAIT, LONGEST_WAIT = 0.002, 0.05
FILL_SECONDS = 2.0
"""The first record waits for so long until others are ready."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Rows that are sent at the same time: when each of them is due, and their batches."""

    due: NDArray[np.float64]
    batches: list[tuple[TopicPartition, Outgoing]]

    @property
    def size(self) -> int:
        return TICK_BYTES + sum(len(batch) for _, batch in self.batches)


class RowReplay:
    """Sends rows of streams. `step` is called between batches of rows, or ticks."""

    def __init__(
        self, sending: Sending, checkpoints: Checkpoints, streams: list[RowStream], step: Callable[[], None]
    ) -> None:
        self.sending, self.checkpoints, self.streams = sending, checkpoints, streams
        self.asked, self.producer, self.schedule = sending.asked, sending.producer, sending.schedule
        self.assignment = Assignment(sending.asked, sending.targets)
        self._step = step

    def run(self) -> bool:
        """One round; True if somebody stopped it."""
        if self.asked.is_paced:
            return self._paced()
        for batch, keys in self._rows(in_turn(self.streams, self.sending.left)):
            if self.sending.is_stopped():
                return True
            self.checkpoints.announce(map(self.sending.targets.lane, np.unique(keys).tolist()))
            for target, part in self.assignment.divided(batch, keys):
                self.sending.put_rows(target, part)
            self._step()
        return False

    def _rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, NDArray[np.int64]]]:
        """Rows that are to be sent, and the number of the target of each."""
        for batch in limited(batches, self.asked.selection.limit):
            self.sending.read += batch.num_rows
            self.sending.read_bytes += batch.nbytes
            keys = self.assignment.targets_of(batch)
            if self.sending.skip:
                batch, keys = self._without_skipped(batch, keys)
            if self.asked.timestamps == "shift":
                times = batch.column("timestamp").drop_null().cast(pa.int64())
                self.sending.find_shift(times.slice(0, 1).to_pylist())
            if batch.num_rows:
                yield batch, keys

    def _without_skipped(
        self, batch: pa.RecordBatch, keys: NDArray[np.int64]
    ) -> tuple[pa.RecordBatch, NDArray[np.int64]]:
        keep = np.ones(keys.size, np.bool_)
        for lane, count in list(self.sending.skip.items()):
            own = np.flatnonzero(keys == self.sending.targets.key_of(lane))[:count]
            keep[own] = False
            self.sending.skipped += own.size
            self.sending.skip[lane] = count - own.size
            if not self.sending.skip[lane]:
                del self.sending.skip[lane]
        return batch.filter(pa.array(keep)), keys[keep]

    def _ticks(self) -> Iterator[Tick]:
        """Rows that are due together, encoded. This runs ahead, in a thread of its own, and talks to the cluster by other connections."""
        for batch, keys in self._rows(by_time(self.streams, self.sending.left)):
            times = batch.column("timestamp")
            known = times.is_valid().to_numpy(zero_copy_only=False)
            due = self.schedule.due(pc.fill_null(times.cast(pa.int64()), 0).to_numpy(), known)
            batch = self.sending.retimed(batch)
            for start, stop in self.schedule.ticks(due):
                parts = self.assignment.divided(batch.slice(start, stop - start), keys[start:stop])
                made = [(target, one) for target, part in parts for one in self.sending.encoded(target, part)]
                yield Tick(due[start:stop], made)

    def _paced(self) -> bool:
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
            elif not self.asked.dry_run:
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
        now = int(time.time() * 1000) if self.asked.timestamps == "now" else None
        for target, batch in tick.batches:
            if now is not None:
                batch.set_time(now)
            self.sending.put(target, iter((batch,)))
        self.producer.pump(0.0)
        self.schedule.sent(tick.due)


__all__ = ["RowReplay"]
