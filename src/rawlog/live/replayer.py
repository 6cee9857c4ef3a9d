"""`rawlog replay`: files into topics of a live cluster, every record acknowledged by all in-sync replicas, none of them twice.

Native partition directories at full speed are passed on as batches, with their transactions; everything else goes record by record, as
rows. What was acknowledged is kept in a checkpoint file, if one is named; the next replay looks into the topics for what came after it, so
it continues exactly.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from threading import Condition, Thread
from typing import Generic, Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rawlog.formats.kafka import LOG
from rawlog.formats.kafka.log.layouts import Attributes
from rawlog.io.output import writing
from rawlog.kernels import byte_view
from rawlog.kernels.hashes import murmur2_spans
from rawlog.live.client import BrokerError, Disconnected
from rawlog.live.cluster import Cancelled, Cluster, TopicPartition, interrupted_report
from rawlog.live.fetch import SEQUENCES, written_after
from rawlog.live.librdkafka import connect
from rawlog.live.options import ReplayOptions, Source
from rawlog.live.produce import Merger, OutgoingBatch
from rawlog.live.sending import Sending, Stop, Targets, TransactionPlan, check_topic_map
from rawlog.live.settings import Settings
from rawlog.live.sources import (
    NOT_TRANSACTIONAL,
    LakePartition,
    NativePartition,
    Omissions,
    RowStream,
    Stretch,
    by_time,
    first_repeated,
    in_turn,
    is_plain,
    magic_runs,
    up_to_damage,
)
from rawlog.model.errors import AccessError, DataError, EncodeError, OptionError, RawlogError
from rawlog.model.format import File, Place, Want
from rawlog.model.frames import Frames
from rawlog.model.job import Progress
from rawlog.model.report import Action, Report
from rawlog.model.table import RECORDS
from rawlog.model.text import counted, size_text
from rawlog.reading.select import limit_rows

# ----------------------------------------------------------------------------------------------------------------------
# The checkpoint file of a replay: what was acknowledged, and by whom it was sent, so that the next replay finds what came after it.


VERSION = 2


@dataclass(slots=True)
class PartitionProgress:
    """How far a partition of the target is. The keys are producers of the source, -1 for records of no transaction."""

    #: Records of the source, in their order.
    records: int
    #: The offset of the target after the last of them.
    end: int
    #: The sequence after the last record of each producer.
    sequences: dict[int, int] = field(default_factory=dict)
    #: The records of each transaction that is open.
    open: dict[int, int] = field(default_factory=dict)
    #: The records of aborted transactions that are still to be sent again.
    to_repeat: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class Checkpoint:
    """The state of one replay. `run` is part of its transactional ids; `writers` has the id and epoch of each of them."""

    replay: str
    source: str
    cluster: str | None
    run: str
    producer_id: int
    writers: dict[int, tuple[int, int]]
    partitions: dict[TopicPartition, PartitionProgress]

    def write(self, path: str) -> None:
        """Replace the file."""
        rows = [
            [
                partition.topic,
                partition.partition,
                state.records,
                state.end,
                *map(_pairs, (state.sequences, state.open, state.to_repeat)),
            ]
            for partition, state in sorted(self.partitions.items())
        ]
        state = {
            "version": VERSION,
            "replay": self.replay,
            "source": self.source,
            "cluster": self.cluster,
            "run": self.run,
            "producer_id": self.producer_id,
            "writers": [[source, *pair] for source, pair in self.writers.items()],
            "partitions": rows,
        }  # fmt: skip
        with writing(path, overwrite=True) as file:
            file.write(json.dumps(state).encode() + b"\n")

    @classmethod
    def read(cls, path: str) -> Checkpoint:
        """The state in a file. AccessError if it cannot be read, OptionError if it is something else."""
        try:
            state = json.loads(Path(path).read_bytes())
            if state["version"] != VERSION:
                raise OptionError(f"{path}: a checkpoint of another version of rawlog; remove it to begin again")
            return cls(
                replay=str(state["replay"]),
                source=str(state["source"]),
                cluster=None if state["cluster"] is None else str(state["cluster"]),
                run=str(state["run"]),
                producer_id=int(state["producer_id"]),
                writers={int(row[0]): (int(row[1]), int(row[2])) for row in state["writers"]},
                partitions={
                    TopicPartition(str(row[0]), int(row[1])): PartitionProgress(
                        int(row[2]), int(row[3]), *map(_dict, row[4:7])
                    )
                    for row in state["partitions"]
                },
            )
        except OSError as error:
            raise AccessError(f"{path}: {error.strerror or error}") from None
        except OptionError:  # which is a ValueError
            raise
        except (ValueError, KeyError, TypeError, IndexError):
            raise OptionError(f"{path}: not a checkpoint of a replay").advise(
                "name a new file with --checkpoint"
            ) from None

    def catch_up(self, cluster: Cluster, ids: Mapping[str, bytes]) -> None:
        """Take in what the target got after the checkpoint was written: its batches bear the ids of our producers.

        Those of transactional ids must have no open transaction any more. A marker with an epoch other than ours is an abort by the
        coordinator: the records of that transaction are sent again.
        """
        owners = {self.producer_id: (-1, None)} | {id: (source, epoch) for source, (id, epoch) in self.writers.items()}
        for partition, state in self.partitions.items():
            for fetched in written_after(cluster, partition, ids, state.end):
                head = fetched.head
                control, counts = head.has(Attributes.CONTROL).tolist(), head["record_count"].tolist()
                producers, epochs = head["producer_id"].tolist(), head["producer_epoch"].tolist()
                for index in range(len(head)):
                    source, epoch = owners.get(producers[index], (None, None))
                    if source is None or epoch not in (None, epochs[index]):
                        continue
                    if control[index]:
                        state.open.pop(source, None)
                    else:
                        stop = (int(head["base_sequence"][index]) + counts[index]) % SEQUENCES
                        _count(state, source, stop)
                state.end = max(state.end, fetched.stop_offset)


def _count(state: PartitionProgress, source: int, stop: int) -> None:
    """Records of a producer up to a sequence are in the target."""
    new = (stop - state.sequences.get(source, 0)) % SEQUENCES
    if new >= SEQUENCES // 2:
        return  # older than what is known
    state.sequences[source] = stop
    again = min(new, state.to_repeat.get(source, 0))
    if source >= 0:
        state.to_repeat[source] = state.to_repeat.get(source, 0) - again
        state.open[source] = state.open.get(source, 0) + new
    state.records += new - again


def _pairs(counts: Mapping[int, int]) -> list[list[int]]:
    return [[key, value] for key, value in sorted(counts.items()) if value]


def _dict(rows: list[list[int]]) -> dict[int, int]:
    return {int(key): int(value) for key, value in rows}


class Checkpoints:
    """Keeps the checkpoint file of a running replay, if one is named; without one, and in a dry run, nothing happens.

    `replay` says what the next replay must agree in to continue this one.
    """

    def __init__(self, sending: Sending, source: str, replay: Callable[[], str]) -> None:
        self.sending, self.source, self._replay = sending, source, replay
        self.path = None if sending.options.dry_run else sending.options.checkpoint
        self._before: dict[TopicPartition, int] = {}
        self._writer = ThreadPoolExecutor(1, "rawlog-checkpoint")  # starts its thread when it is used
        self._writing: Future[None] | None = None

    def close(self) -> None:
        self._writer.shutdown()

    @cached_property
    def replay(self) -> str:
        return self._replay()

    def announce(self, targets: Iterable[TopicPartition]) -> None:
        """Before anything is sent to a partition, the checkpoint says where it ended."""
        if self.path is not None:
            before = len(self.sending.producer.lanes)
            for partition in targets:
                self.sending.producer.lane(partition)
            if len(self.sending.producer.lanes) > before:
                self.save()

    def save(self, *, in_background: bool = False) -> None:
        """Write the checkpoint. In the background, unless the last one is still being written."""
        if self.path is None:
            return
        if self._writing is not None and (self._writing.done() or not in_background):
            self._writing.result()
            self._writing = None
        if self._writing is not None:
            return
        write = partial(self._checkpoint().write, self.path)
        if in_background:
            self._writing = self._writer.submit(write)
        else:
            write()

    def _checkpoint(self) -> Checkpoint:
        partitions = {}
        for partition in {*self.sending.producer.lanes, *self._before}:
            lane = self.sending.producer.lane(partition)
            records = self._before.get(partition, 0) + lane.acknowledged - lane.repeated
            partitions[partition] = PartitionProgress(
                records, lane.end_offset, dict(lane.sequences), dict(lane.open), dict(lane.to_repeat)
            )
        return Checkpoint(
            replay=self.replay,
            source=self.source,
            cluster=self.sending.cluster.id,
            run=self.sending.transactions.run,
            producer_id=self.sending.producer.plain.id,
            writers={source: (writer.id, writer.epoch) for source, writer in self.sending.transactions.writers.items()},
            partitions=partitions,
        )

    def resume(self) -> None:
        """Find out what an earlier replay sent. OptionError if the checkpoint is of another one."""
        named, sending = self.path, self.sending
        if named is None or not Path(named).exists():
            return
        checkpoint = Checkpoint.read(named)
        if checkpoint.replay != self.replay:
            raise OptionError(
                f"{named}: it belongs to another replay, of {checkpoint.source!r}; name another file, or remove it"
            )
        if checkpoint.cluster not in (None, sending.cluster.id):
            raise OptionError(f"{named}: it belongs to a replay into another cluster ({checkpoint.cluster})")
        sending.transactions.run = checkpoint.run
        for source in checkpoint.writers:
            sending.transactions.begin(source)
        for partition in checkpoint.partitions:
            sending.targets.need(partition.topic, partition.partition)
        checkpoint.catch_up(sending.cluster, sending.targets.ids)
        for partition, state in checkpoint.partitions.items():
            self._before[partition] = state.records
            again = Counter(state.open) + Counter(state.to_repeat)
            lane = sending.producer.lane(partition)
            lane.to_repeat, lane.end_offset = dict(again), max(lane.end_offset, state.end)
        sending.skip = {partition: count for partition, count in self._before.items() if count}
        sending.notes.append(f"{sum(self._before.values()):,} records were acknowledged before and are not sent again")


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
        self.options, self.transactions = sending.options, sending.transactions
        self._keeps, self._step = keeps, step
        self._plan = TransactionPlan(())
        self._early: Counter[tuple[TopicPartition, int]] = Counter()

    def run(self) -> bool:
        """One round, several partitions at a time; True if somebody stopped it. Those that come to the end of a transaction wait until all
        its partitions are there.
        """
        waiting = list(self.partitions)
        self.checkpoints.announce(map(self._lane, waiting))
        self.sending.find_shift(self._first_times(waiting))
        if self._keeps:
            self._plan = TransactionPlan(
                (self._lane(partition), marker) for partition in waiting for marker in partition.markers()
            )
        running: list[Iterator[Stop | None]] = []
        stopped: dict[Iterator[Stop | None], Stop] = {}
        while waiting or running or stopped:
            while waiting and len(running) < TOGETHER:
                running.append(self._partition(waiting.pop(0)))
            for replay in list(running):
                stop = next(replay, self)
                if stop is not None:
                    running.remove(replay)
                if isinstance(stop, Stop):
                    stopped[replay] = stop
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
        ready = [
            replay for replay, at in stopped.items() if not at.is_marker and self._plan.is_turn(at.producer, at.number)
        ]
        if not ready:
            at = self._plan.next_end(stopped.values(), self.transactions.open)
            if at is None:
                raise EncodeError(
                    "the transactions of the source cannot be repeated, because their markers contradict each other; "
                    "--isolation read_committed sends their records as plain records"
                )
            partitions = set(self.transactions.open.get(at.producer, ()))
            self.transactions.end(at.producer, is_commit=at.is_commit)
            for replay, stop in stopped.items():
                if stop.is_marker and (stop.producer, stop.number) == (at.producer, at.number):
                    ready.append(replay)
                    partitions.discard(stop.partition)
                    self._plan.passed(stop.partition, stop.producer, stop.number)
            self._early.update((partition, at.producer) for partition in partitions)
        for replay in ready:
            del stopped[replay]
        return ready

    def _partition(self, source: NativePartition | LakePartition) -> Iterator[Stop | None]:
        """Pass on a partition, a window of its file at a time. Yields where it has to wait for other partitions."""
        target, is_real = self._lane(source), not self.options.dry_run
        left = skipped = self.sending.skip.pop(target, 0)
        again = (
            first_repeated(source, left, self.sending.producer.lane(target).to_repeat)
            if self._keeps and is_real
            else {}
        )
        merger = Merger(
            self.sending.targets.limit(target.topic),
            named=str(source.partition),
            keep_batches=self.options.keep_batches,
            shift_ms=self.sending.shift or 0,
            skip=left,
        )
        sender, seen = NOT_TRANSACTIONAL, Counter[int]()
        damage: list[DataError] = []
        windows = source.windows(self.options.selection, self.sending.left, keep_transactions=self._keeps)
        for size, pieces in up_to_damage(windows, damage):
            merger.fixed_time = int(time.time() * 1000) if self.options.timestamps == "now" else None
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
                self._pass_on(source, target, piece, merger)
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

    def _at_marker(self, target: TopicPartition, number: int, piece: Stretch, *, is_new: bool) -> Iterator[Stop | None]:
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
        self, source: NativePartition | LakePartition, target: TopicPartition, piece: Stretch, merger: Merger
    ) -> None:
        """Send the data of a piece: batches of magic 2 as they are or put together, everything else as rows."""
        if piece.batches is None:
            assert piece.rows is not None
            self._put_rows(target, [piece.rows], piece.producer, merger)
            return
        for start, stop, is_newer in magic_runs(piece.batches[1]):
            run, run_head = piece.batches[0].slice(start, stop), piece.batches[1].slice(start, stop)
            if is_newer and int(run_head["base_offset"][0]) >= source.floor:
                self.sending.put(target, merger.add(run, run_head), piece.producer)
                self.sending.read += int(run_head["record_count"].sum())
            else:
                self.sending.put(target, merger.flush(), piece.producer)
                self._put_rows(target, self._decode(source.partition, run, source.floor), piece.producer, merger)

    def _put_rows(self, target: TopicPartition, batches: Iterable[pa.RecordBatch], sender: int, merger: Merger) -> None:
        """Send rows, without those that the merger is to skip."""
        for batch in batches:
            self.sending.read += batch.num_rows
            drop = min(merger.skip, batch.num_rows)
            merger.skip_next(merger.skip - drop)
            self.sending.put_rows(target, batch.slice(drop), sender)

    def _decode(self, partition: TopicPartition, frames: Frames, floor: int) -> Iterator[pa.RecordBatch]:
        """Batches that cannot be passed on as rows: of magic 0 and 1, and those that begin before the log start."""
        file = File(str(partition), 0, None, LOG.name, Place(partition.topic, partition.partition))
        for batch in LOG.codec.decode(frames, Want(RECORDS, file)):
            chosen = batch.filter(pc.greater_equal(batch.column("offset"), floor))
            if chosen.num_rows:
                yield chosen

    def _first_times(self, partitions: list[NativePartition | LakePartition]) -> list[int]:
        """The time of the first record of each partition, where they are needed, in microseconds."""
        if self.sending.shift is not None:
            return []
        first_times = []
        for partition in partitions:
            windows = partition.windows(self.options.selection, Omissions(), keep_transactions=self._keeps)
            times = (piece.first_time for _, pieces in windows for piece in pieces if not piece.is_control)
            first_times += [time for time in (next(times, None),) if time is not None]
        return first_times

    def _lane(self, source: NativePartition | LakePartition) -> TopicPartition:
        return self.options.lane_of(source.partition)


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
        for batch in limit_rows(batches, self.options.selection.limit):
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


SAVE_SECONDS, PROGRESS_SECONDS = 1.0, 0.2


def replay(
    settings: Settings,
    source: Source,
    options: ReplayOptions,
    *,
    is_stopped: Callable[[], bool] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Report:
    """Send the records of a source to a cluster. Returns a Report, which is whole if every record was acknowledged.

    An error in the middle is in the Report, with what was acknowledged before it; raised is what makes a replay impossible from the start.
    """
    with connect(settings, is_stopped) as cluster:
        try:
            return _Replay(cluster, source, options, is_stopped or (lambda: False), progress).run()
        except Cancelled:
            return interrupted_report("replay", source.named, settings.named)


class _Replay:
    """One replay: targets, what was sent before, the source in its rounds, and the summary."""

    def __init__(
        self,
        cluster: Cluster,
        source: Source,
        options: ReplayOptions,
        is_stopped: Callable[[], bool],
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self.cluster, self.source, self.options, self._progress = cluster, source, options, progress
        self._whole = self._partitions()
        self._keeps = self._may_keep and self._whole is not None
        self.sending = Sending(cluster, options, is_stopped, lambda: self.checkpoints.save())
        self.producer, self.transactions = self.sending.producer, self.sending.transactions
        self.checkpoints = Checkpoints(self.sending, source.named, self._fingerprint)
        self.rows = RowReplay(self.sending, self.checkpoints, source.streams, self._now_and_then)
        self.partitions = PartitionReplay(
            self.sending, self.checkpoints, self._whole or (), keeps=self._keeps, step=self._now_and_then
        )
        self.begun = time.monotonic()
        self._saved = self._shown = self.begun

    def run(self) -> Report:
        """Replay, and say what was done."""
        try:
            return self._replay()
        finally:
            self.sending.close()
            self.checkpoints.close()

    def _replay(self) -> Report:
        error: Exception | None = None
        was_stopped = False
        if whole := [*(self.source.native or ()), *(self.source.lake or ())]:
            check_topic_map(self.options.topic_map, {partition.partition.topic for partition in whole})
        self.cluster.retry(lambda: self.cluster.metadata([]))
        lanes = [self.options.lane_of(partition.partition) for partition in self._whole or self.source.native or ()]
        for target in sorted(lanes, key=lambda lane: -lane.partition):
            # The largest first: a topic that is created gets so many.
            needed = target.partition if self.options.partition_by == "original" else 0
            self.sending.targets.need(target.topic, needed, target.partition)
        if not self.options.dry_run:
            self.producer.begin()
            self.checkpoints.resume()
        try:
            was_stopped = self._rounds()
            self.producer.flush()
        except (Cancelled, KeyboardInterrupt):
            was_stopped = True
        except RawlogError as problem:
            if not any(lane.records for lane in self.producer.lanes.values()):
                raise  # nothing was sent
            error = problem
        if error is not None or was_stopped:
            self._wind_down(error)
        try:
            self.checkpoints.save()
        except RawlogError as problem:
            error = error or problem
        return self._summary(error, was_stopped)

    def _partitions(self) -> list[NativePartition | LakePartition] | None:
        """The partitions that are passed on whole, each to a partition that gets nothing else; None if rows have to be looked at."""
        options = self.options
        if options.is_paced or not is_plain(options.selection) or options.partition_by != "original":
            return None
        partitions = [*(self.source.native or ()), *(self.source.lake or () if self._may_keep else ())]
        return (
            partitions
            if partitions and len({options.lane_of(partition.partition) for partition in partitions}) == len(partitions)
            else None
        )

    @property
    def _may_keep(self) -> bool:
        """A checkpoint counts the records of all rounds together, so it does not say where a transaction of a round began."""
        return self.options.keep_transactions and (self.options.loop == 1 or not self.options.checkpoint)

    def _rounds(self) -> bool:
        rounds = 0
        while self.options.loop == 0 or rounds < self.options.loop:
            before = self.sending.read
            self.sending.schedule.restart()
            was_stopped = self.partitions.run() if self._whole else self.rows.run()
            if was_stopped:
                return True
            rounds += 1
            if self.sending.read == before:
                break  # nothing there: a loop over nothing would never end
        return False

    def _wind_down(self, error: Exception | None) -> None:
        """After a stop or an error: what is on its way is waited for as far as the brokers answer, open transactions are aborted."""
        if self.options.dry_run or isinstance(error, Disconnected):
            return
        self.cluster.is_stopped = None
        with contextlib.suppress(RawlogError, Cancelled):
            if not isinstance(error, BrokerError):
                self.producer.flush()
            self.transactions.abort_open()

    def _now_and_then(self) -> None:
        now = time.monotonic()
        if now - self._saved >= SAVE_SECONDS:
            self._saved = now
            self.checkpoints.save(in_background=self.options.is_paced)  # a slow disk must not delay what is due
        if self._progress is not None and now - self._shown >= PROGRESS_SECONDS:
            self._shown = now
            self._progress(Progress(size=self.sending.read_bytes, rows=self.sending.read, phase=self._state(now)))

    def _state(self, now: float) -> str:
        seconds = max(now - self.begun, 1e-9)
        acknowledged = self.producer.acknowledged
        words = [
            counted(acknowledged, "record"),
            f"{acknowledged / seconds:,.0f} records/s",
            size_text(self.sending.read_bytes),
        ]
        total = self.source.size * max(self.options.loop, 1)
        if total and self.sending.read_bytes and self.options.loop:
            words.append(f"{100 * self.sending.read_bytes // total} %")
            words.append(f"{seconds * max(0, total - self.sending.read_bytes) / self.sending.read_bytes:,.0f} s left")
        return "replaying  " + "  ".join(words)

    def _fingerprint(self) -> str:
        """What a checkpoint must agree in. Where the source has transactions, replays that repeat them send other records."""
        options = self.options
        keeps = self._keeps and any(partition.has_transactions for partition in self._whole or ())
        parts = (
            self.source.named,
            sorted(options.topic_map.items()),
            options.topic,
            options.partition_by,
            repr(options.selection),
            keeps,
        )
        return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()

    def _summary(self, error: Exception | None, was_stopped: bool) -> Report:
        report = Report("replay", self.source.named, self.cluster.settings.named, is_dry_run=self.options.dry_run)
        seconds = time.monotonic() - self.begun
        acknowledged, left = self.producer.acknowledged, self.sending.left
        put = sum(lane.records for lane in self.producer.lanes.values())
        failed = put - acknowledged
        report.counts |= {
            "records": self.sending.read,
            "bytes": self.sending.bytes,
            "acknowledged": acknowledged,
            "failed": failed,
        }
        report.notes += self.sending.notes + self.sending.targets.notes
        committed, aborted = self.transactions.ended[True], self.transactions.ended[False]
        if self._keeps:
            report.facts["transactions"] = {"committed": committed, "aborted": aborted}
            if committed or aborted:
                report.notes.append(
                    f"{counted(committed, 'transaction')} committed, {aborted:,} aborted, as in the source"
                )
            if left.markers:
                report.notes.append(f"{left.markers:,} markers of transactions without records are left out")
        elif left.markers or left.aborted:
            report.notes.append(
                f"transactions are replayed as plain records: {left.markers:,} markers and {left.aborted:,} records of "
                f"aborted or open transactions are left out"
            )
        if self.rows.assignment.unmapped and not self._whole:
            names = ", ".join(sorted(self.rows.assignment.unmapped))
            report.notes.append(f"--topic-map names topics that have no records: {names}")
        for text in left.damaged:
            report.add(Action.LOST, f"not sent: {text}")
        if error is not None or failed:
            where = "; ".join(
                f"{partition} has {lane.acknowledged:,} of {lane.records:,} that were sent"
                for partition, lane in sorted(self.producer.lanes.items())[:8]
            )
            report.add(
                Action.LOST,
                f"{error or 'not acknowledged'}; {acknowledged:,} records are acknowledged, nothing after them is: {where}",
            )
            report.facts["error"] = str(error)
        elif was_stopped and self.options.loop:
            report.add(Action.LOST, f"interrupted: {acknowledged:,} records are acknowledged, the rest was not sent")
            report.facts["interrupted"] = True
        report.facts |= {
            "seconds": round(seconds, 3),
            "skipped": self.sending.skipped,
            "retries": self.producer.retries,
        }
        if latencies := self.sending.latencies():
            report.facts["acknowledgement_ms"] = percentiles = latencies.summary()
            report.notes.append(f"acknowledged after {_percentiles(percentiles)}")
        if self.sending.schedule.errors:
            report.facts["pacing_error_ms"] = percentiles = self.sending.schedule.errors.summary()
            report.facts["most_in_100_ms"] = self.sending.schedule.most_in_window
            report.notes.append(f"error of the pace {_percentiles(percentiles)}")
        report.facts["throttled_ms"] = self.cluster.throttled_ms
        report.facts["end_offsets"] = {
            str(partition): lane.end_offset
            for partition, lane in sorted(self.producer.lanes.items())
            if lane.end_offset >= 0
        }
        if not self.options.dry_run:
            report.notes.append(f"{acknowledged / max(seconds, 1e-9):,.0f} records/s, {seconds:,.1f} s")
        return report


def _percentiles(percentiles: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:,.1f} ms" for name, value in percentiles.items())
