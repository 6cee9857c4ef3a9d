"""A replay of whole partitions: batches are passed on as they are, or put together, with the transactions of the source."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from rawlog.core.errors import DataError, EncodeError
from rawlog.core.format import File, Place, Want
from rawlog.core.frames import Frames
from rawlog.core.tables import RECORDS
from rawlog.core.text import counted
from rawlog.formats.kafka import LOG
from rawlog.live.batches import Merger
from rawlog.live.checkpoint import Checkpoints
from rawlog.live.cluster import TopicPartition
from rawlog.live.sending import Sending
from rawlog.live.sources import (
    NOT_TRANSACTIONAL,
    LakePartition,
    Left,
    NativePartition,
    Piece,
    first_repeated,
    magic_runs,
    up_to_damage,
)
from rawlog.live.transactions import Plan, Stop

TOGETHER = 8
"""Partitions whose files are read at the same time."""


class PartitionReplay:
    """Passes on whole partitions, each to a partition that gets nothing else. With `keeps` their transactions are repeated.

    `step` is called between windows of files.
    """

    def __init__(
        self,
        sending: Sending,
        checkpoints: Checkpoints,
        partitions: Sequence[NativePartition | LakePartition],
        *,
        keeps: bool,
        step: Callable[[], None],
    ) -> None:
        self.sending, self.checkpoints, self.partitions = sending, checkpoints, partitions
        self.asked, self.transactions = sending.asked, sending.transactions
        self._keeps, self._step = keeps, step
        self._plan = Plan(())
        self._early: Counter[tuple[TopicPartition, int]] = Counter()

    def run(self) -> bool:
        """One round, several partitions at a time; True if somebody stopped it. Those that come to the end of a transaction wait until all
        its partitions are there.
        """
        waiting = list(self.partitions)
        self.checkpoints.announce(map(self._lane, waiting))
        self.sending.find_shift(self._first_times(waiting))
        if self._keeps:
            self._plan = Plan((self._lane(one), marker) for one in waiting for marker in one.markers())
        running: list[Iterator[Stop | None]] = []
        stopped: dict[Iterator[Stop | None], Stop] = {}
        while waiting or running or stopped:
            while waiting and len(running) < TOGETHER:
                running.append(self._partition(waiting.pop(0)))
            for one in list(running):
                found = next(one, self)
                if found is not None:
                    running.remove(one)
                if isinstance(found, Stop):
                    stopped[one] = found
                if self.sending.is_stopped():
                    return True
                self._step()
            if not running and not waiting and stopped:
                running = self._go_on(stopped)
        self.sending.producer.flush()
        if count := self.transactions.abort_open():
            self.sending.notes.append(f"{counted(count, 'transaction')} that the source does not end: aborted")
        return False

    def _go_on(self, stopped: dict[Iterator[Stop | None], Stop]) -> list[Iterator[Stop | None]]:
        """When all partitions wait: end a transaction, and return the partitions that can go on. EncodeError if none can."""
        ready = [one for one, at in stopped.items() if not at.is_marker and self._plan.is_turn(at.producer, at.number)]
        if not ready:
            at = self._plan.next_end(stopped.values(), self.transactions.open)
            if at is None:
                raise EncodeError(
                    "the transactions of the source cannot be repeated, because their markers contradict each other; "
                    "--isolation read_committed sends their records as plain records"
                )
            partitions = set(self.transactions.open.get(at.producer, ()))
            self.transactions.end(at.producer, is_commit=at.is_commit)
            for one, other in stopped.items():
                if other.is_marker and (other.producer, other.number) == (at.producer, at.number):
                    ready.append(one)
                    partitions.discard(other.partition)
                    self._plan.passed(other.partition, other.producer, other.number)
            self._early.update((one, at.producer) for one in partitions)
        for one in ready:
            del stopped[one]
        return ready

    def _partition(self, one: NativePartition | LakePartition) -> Iterator[Stop | None]:
        """Pass on a partition, a window of its file at a time. Yields where it has to wait for other partitions."""
        target, is_real = self._lane(one), not self.asked.dry_run
        left = skipped = self.sending.skip.pop(target, 0)
        again = (
            first_repeated(one, left, self.sending.producer.lane(target).to_repeat) if self._keeps and is_real else {}
        )
        merger = Merger(
            self.sending.targets.limit(target.topic),
            named=str(one.partition),
            keep_batches=self.asked.keep_batches,
            shift_ms=self.sending.shift or 0,
            skip=left,
        )
        sender, seen = NOT_TRANSACTIONAL, Counter[int]()
        damage: list[DataError] = []
        windows = one.windows(self.asked.selection, self.sending.left, keep_transactions=self._keeps)
        for size, pieces in up_to_damage(windows, damage):
            merger.fixed_time = int(time.time() * 1000) if self.asked.timestamps == "now" else None
            for piece in pieces:
                producer = piece.producer
                if producer != sender or piece.is_control or again:
                    self.sending.put(target, merger.flush(), sender)
                    sender = producer
                number = self._plan.number(target, producer, seen[producer])
                if piece.is_control:
                    seen[producer] += 1
                    yield from self._at_marker(target, number, piece, is_new=is_real and not left)
                    continue
                is_again = producer in again and piece.first_offset >= again[producer]
                if producer != NOT_TRANSACTIONAL and is_real and (is_again or piece.count > left):
                    while not self._plan.is_turn(producer, number):
                        yield Stop(target, producer, number)
                if again:
                    merger.skip_next(0 if is_again else left)
                self._pass_on(one, target, piece, merger)
                left = max(0, left - piece.count) if is_again else merger.skip
            self.sending.read_bytes += size
            yield None
        self.sending.put(target, merger.flush(), sender)
        if damage:
            raise damage[0]
        self.sending.skipped += skipped - left
        if left:
            self.sending.skip[target] = left  # of a loop: the next round has more to skip
        yield None

    def _at_marker(self, target: TopicPartition, number: int, piece: Piece, *, is_new: bool) -> Iterator[Stop | None]:
        """Wait until the transaction is ended. A marker of a transaction that has no records in the partition is left out."""
        producer, marker = piece.producer, piece.marker
        if marker is not None and target in self.transactions.open.get(producer, ()):
            yield Stop(target, producer, number, is_marker=True, is_commit=marker.is_commit, time=marker.time)
            return
        self._plan.passed(target, producer, number)
        if self._early[target, producer]:
            self._early[target, producer] -= 1
        elif is_new:
            self.sending.left.markers += 1

    def _pass_on(
        self, one: NativePartition | LakePartition, target: TopicPartition, piece: Piece, merger: Merger
    ) -> None:
        """Send the data of a piece: batches of magic 2 as they are or put together, everything else as rows."""
        if piece.batches is None:
            assert piece.rows is not None
            self._put_rows(target, [piece.rows], piece.producer, merger)
            return
        for start, stop, is_newer in magic_runs(piece.batches[1]):
            some, own = piece.batches[0].slice(start, stop), piece.batches[1].slice(start, stop)
            if is_newer and int(own["base_offset"][0]) >= one.floor:
                self.sending.put(target, merger.add(some, own), piece.producer)
                self.sending.read += int(own["record_count"].sum())
            else:
                self.sending.put(target, merger.flush(), piece.producer)
                self._put_rows(target, self._decoded(one.partition, some, one.floor), piece.producer, merger)

    def _put_rows(self, target: TopicPartition, batches: Iterable[pa.RecordBatch], sender: int, merger: Merger) -> None:
        """Send rows, without those that the merger is to skip."""
        for batch in batches:
            self.sending.read += batch.num_rows
            drop = min(merger.skip, batch.num_rows)
            merger.skip_next(merger.skip - drop)
            self.sending.put_rows(target, batch.slice(drop), sender)

    def _decoded(self, partition: TopicPartition, frames: Frames, floor: int) -> Iterator[pa.RecordBatch]:
        """Batches that cannot be passed on as rows: of magic 0 and 1, and those that begin before the log start."""
        assert LOG.decode is not None
        file = File(str(partition), 0, None, LOG.name, Place(partition.topic, partition.partition))
        for batch in LOG.decode(frames, Want(RECORDS, file)):
            chosen = batch.filter(pc.greater_equal(batch.column("offset"), floor))
            if chosen.num_rows:
                yield chosen

    def _first_times(self, partitions: list[NativePartition | LakePartition]) -> list[int]:
        """The time of the first record of each partition, where they are needed, in microseconds."""
        if self.sending.shift is not None:
            return []
        found = []
        for one in partitions:
            windows = one.windows(self.asked.selection, Left(), keep_transactions=self._keeps)
            times = (piece.first_time for _, pieces in windows for piece in pieces if not piece.is_control)
            found += [time for time in (next(times, None),) if time is not None]
        return found

    def _lane(self, one: NativePartition | LakePartition) -> TopicPartition:
        return self.asked.lane_of(one.partition)


__all__ = ["PartitionReplay"]
