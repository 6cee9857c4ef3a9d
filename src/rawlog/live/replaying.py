"""`rawlog replay`: files into topics of a live cluster, every record acknowledged by all in-sync replicas, none of them twice.

Native partition directories at full speed are passed on as batches, with their transactions; everything else goes record by record, as
rows. What was acknowledged is kept in a checkpoint file, if one is named; the next replay looks into the topics for what came after it, so
it continues exactly.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rawlog.core.errors import DataError, EncodeError, OptionError, RawlogError, unknown
from rawlog.core.format import File, Place, Want
from rawlog.core.frames import Frames
from rawlog.core.report import Action, Report
from rawlog.core.tables import RECORDS
from rawlog.core.text import counted, size_text
from rawlog.formats.kafka import LOG
from rawlog.formats.kafka.layouts import BATCH
from rawlog.formats.kafka.writer import Batching, encode_rows
from rawlog.formats.kafka.writer import Rows as RowBuffers
from rawlog.jobs.job import Progress
from rawlog.kernels import byte_view
from rawlog.kernels.hashes import murmur2_spans
from rawlog.live.ahead import Ahead
from rawlog.live.batches import TARGET_BYTES, Merger, Outgoing, outgoing
from rawlog.live.checkpoint import Checkpoint, Reached
from rawlog.live.cluster import Cancelled, Cluster, TopicPartition, interrupted
from rawlog.live.errors import BrokerError, Disconnected
from rawlog.live.librdkafka import connected, writer
from rawlog.live.pacing import Histogram, Schedule
from rawlog.live.producing import Sent
from rawlog.live.settings import Settings
from rawlog.live.sources import (
    NOT_TRANSACTIONAL,
    LakePartition,
    Left,
    NativePartition,
    Piece,
    RowStream,
    by_time,
    first_repeated,
    in_turn,
    is_plain,
    magic_runs,
    up_to_damage,
)
from rawlog.live.targets import Targets, check_topic_map
from rawlog.live.transactions import Plan, Stop, Transactions
from rawlog.reading.select import Selection

PARTITIONING = ("original", "key", "round-robin")
TIMESTAMPS = ("original", "now", "shift")
PACES = ("max", "recorded")
TOGETHER = 8
"""Partitions whose files are read at the same time."""
SAVE_SECONDS, PROGRESS_SECONDS = 1.0, 0.2
AHEAD_BYTES, TICK_BYTES = 32 << 20, 256 << 10
"""How much is made ready before it is due; a tick counts as so much more than its batches."""
SHORT_WAIT, LONGEST_WAIT = 0.002, 0.05
FILL_SECONDS = 2.0
"""The first record waits for so long until others are ready."""


@dataclass(frozen=True, slots=True)
class Asked:
    """How to replay. `topic` is the target of all records whose topic is not in `topic_map`.

    With `keep_transactions` those of native partitions are repeated where batches are passed on; elsewhere the selection says which
    records of transactions are sent, as plain records.
    """

    topic_map: Mapping[str, str] = field(default_factory=dict)
    topic: str | None = None
    partition_by: Literal["original", "key", "round-robin"] = "original"
    timestamps: Literal["original", "now", "shift"] = "original"
    pace: Literal["max", "recorded"] = "max"
    speed: float = 1.0
    rate: float | None = None
    loop: int = 1
    keep_batches: bool = False
    keep_transactions: bool = False
    checkpoint: str | None = None
    create_topics: bool = False
    partitions: int | None = None
    dry_run: bool = False
    selection: Selection = field(default_factory=lambda: Selection(isolation="read_committed"))

    def __post_init__(self) -> None:
        for what, value, known in (
            ("partitioning", self.partition_by, PARTITIONING),
            ("kind of timestamps", self.timestamps, TIMESTAMPS),
            ("pace", self.pace, PACES),
        ):
            if value not in known:
                raise unknown(what, value, known)
        if self.rate is not None and not self.rate > 0:
            raise OptionError(f"rate {self.rate}: more than 0 expected")
        if not self.speed > 0:
            raise OptionError(f"speed {self.speed}: more than 0 expected")
        if self.rate is not None and self.pace == "recorded":
            raise OptionError("--rate and --pace recorded (or --speed) exclude one another")
        if self.loop < 0:
            raise OptionError("loop: 0 (for ever) or a number of rounds expected")

    @property
    def is_paced(self) -> bool:
        return self.rate is not None or self.pace == "recorded"

    def target_of(self, topic: str | None) -> str:
        """The topic that records of a topic go to."""
        if topic is not None and topic in self.topic_map:
            return self.topic_map[topic]
        found = self.topic or topic
        if found is None:
            raise OptionError("the records have no topic of their own: name one with --to-topic")
        return found


@dataclass(frozen=True, slots=True)
class Source:
    """What is replayed: partitions whose batches are passed on, or streams of rows. `named` says where it is from.

    `lake` are the partitions of a lake that has transactions.
    """

    named: str
    native: list[NativePartition] | None
    streams: list[RowStream]
    lake: list[LakePartition] | None = None

    @property
    def size(self) -> int:
        return sum(one.size for one in self.native or ())


@dataclass(frozen=True, slots=True)
class Tick:
    """Rows that are sent at the same time: when each of them is due, and their batches."""

    due: NDArray[np.float64]
    batches: list[tuple[TopicPartition, Outgoing]]

    @property
    def size(self) -> int:
        return TICK_BYTES + sum(len(batch) for _, batch in self.batches)


def replay(
    settings: Settings,
    source: Source,
    asked: Asked,
    *,
    is_stopped: Callable[[], bool] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Report:
    """Send the records of a source to a cluster. Returns a Report, which is whole if every record was acknowledged.

    An error in the middle is in the Report, with what was acknowledged before it; raised is what makes a replay impossible from the start.
    """
    with connected(settings, is_stopped) as cluster:
        try:
            return _Replay(cluster, source, asked, is_stopped or (lambda: False), progress).run()
        except Cancelled:
            return interrupted("replay", source.named, settings.named)


class _Replay:
    """One replay: targets, what was sent before, the source in its rounds, and the summary."""

    def __init__(
        self,
        cluster: Cluster,
        source: Source,
        asked: Asked,
        is_stopped: Callable[[], bool],
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self.cluster, self.source, self.asked = cluster, source, asked
        self.is_stopped, self._progress = is_stopped, progress
        self._is_ending = False
        self._lookups = cluster  # of another thread, where records are due at a time
        if asked.is_paced:
            self._lookups = connected(cluster.settings, lambda: self._is_ending or is_stopped())
        self.targets = Targets(
            self._lookups,
            create=asked.create_topics,
            partitions=asked.partitions,
            timestamps=asked.timestamps,
            dry_run=asked.dry_run,
        )
        self.latencies = Histogram()
        self.producer = writer(cluster, self.targets.ids, end_of=self.targets.end, on_acknowledged=self._acknowledged)
        self.schedule = Schedule(rate=asked.rate, speed=asked.speed)
        self.left = Left()
        self._whole = self._partitions()
        self._keeps = self._may_keep and self._whole is not None
        self.report = Report("replay", source.named, cluster.settings.named, is_dry_run=asked.dry_run)
        self.read = self.read_bytes = self.bytes = self.skipped = 0
        self._shift: int | None = 0 if asked.timestamps != "shift" else None
        self._skip: dict[TopicPartition, int] = {}
        self._before: dict[TopicPartition, int] = {}
        self._turn = 0
        self._unmapped = set(asked.topic_map)
        self.transactions = Transactions(self.producer, uuid.uuid4().hex[:16], self._save)
        self._plan = Plan(())
        self._writer = ThreadPoolExecutor(1, "rawlog-checkpoint")  # starts its thread when it is used
        self._writing: Future[None] | None = None
        self._early: Counter[tuple[TopicPartition, int]] = Counter()
        self.begun = time.monotonic()
        self._saved = self._shown = self.begun
        self._latencies: list[float] = []

    # The run ------------------------------------------------------------------------------------------------------------

    def run(self) -> Report:
        """Replay, and say what was done."""
        try:
            return self._replay()
        finally:
            self.transactions.close()
            self._lookups.close()
            self._writer.shutdown()

    def _replay(self) -> Report:
        error: Exception | None = None
        was_stopped = False
        if whole := [*(self.source.native or ()), *(self.source.lake or ())]:
            check_topic_map(self.asked.topic_map, {one.partition.topic for one in whole})
        self.cluster.retried(lambda: self.cluster.metadata([]))
        for target in sorted(
            map(self._target_of, self._whole or self.source.native or ()), key=lambda one: -one.partition
        ):
            # The largest first: a topic that is created gets so many.
            needed = target.partition if self.asked.partition_by == "original" else 0
            self.targets.need(target.topic, needed, target.partition)
        if not self.asked.dry_run:
            self.producer.begin()
            self._resume()
        try:
            was_stopped = self._rounds()
            self.producer.flush()
        except (Cancelled, KeyboardInterrupt):
            was_stopped = True
        except RawlogError as found:
            if not any(lane.records for lane in self.producer.lanes.values()):
                raise  # nothing was sent
            error = found
        if error is not None or was_stopped:
            self._wind_down(error)
        try:
            self._save()
        except RawlogError as found:
            error = error or found
        return self._summary(error, was_stopped)

    def _target_of(self, one: NativePartition | LakePartition) -> TopicPartition:
        return TopicPartition(self.asked.target_of(one.partition.topic), one.partition.partition)

    def _partitions(self) -> list[NativePartition | LakePartition] | None:
        """The partitions that are passed on whole, each to a partition that gets nothing else; None if rows have to be looked at."""
        asked = self.asked
        if asked.is_paced or not is_plain(asked.selection) or asked.partition_by != "original":
            return None
        found = [*(self.source.native or ()), *(self.source.lake or () if self._may_keep else ())]
        return found if found and len({self._target_of(one) for one in found}) == len(found) else None

    @property
    def _may_keep(self) -> bool:
        """A checkpoint counts the records of all rounds together, so it does not say where a transaction of a round began."""
        return self.asked.keep_transactions and (self.asked.loop == 1 or not self.asked.checkpoint)

    def _rounds(self) -> bool:
        rounds = 0
        while self.asked.loop == 0 or rounds < self.asked.loop:
            before = self.read
            self.schedule.restart()
            was_stopped = self._pass_on_all(self._whole) if self._whole else self._by_rows()
            if was_stopped:
                return True
            rounds += 1
            if self.read == before:
                break  # nothing there: a loop over nothing would never end
        return False

    def _wind_down(self, error: Exception | None) -> None:
        """After a stop or an error: what is on its way is waited for as far as the brokers answer, open transactions are aborted."""
        if self.asked.dry_run or isinstance(error, Disconnected):
            return
        self.cluster.is_stopped = None
        with contextlib.suppress(RawlogError, Cancelled):
            if not isinstance(error, BrokerError):
                self.producer.flush()
            self.transactions.abort_open()

    # Batches, as they are ---------------------------------------------------------------------------------------------------

    def _pass_on_all(self, partitions: list[NativePartition | LakePartition]) -> bool:
        """Pass on whole partitions, several at a time. Those that come to the end of a transaction wait until all its partitions are
        there.
        """
        waiting = list(partitions)
        self._announce(map(self._target_of, waiting))
        self._find_shift(self._first_times(waiting))
        if self._keeps:
            self._plan = Plan((self._target_of(one), marker) for one in waiting for marker in one.markers())
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
                if self.is_stopped():
                    return True
                self._now_and_then()
            if not running and not waiting and stopped:
                running = self._go_on(stopped)
        self.producer.flush()
        if count := self.transactions.abort_open():
            self.report.notes.append(f"{counted(count, 'transaction')} that the source does not end: aborted")
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
        target, is_real = self._target_of(one), not self.asked.dry_run
        left = skipped = self._skip.pop(target, 0)
        again = first_repeated(one, left, self.producer.lane(target).to_repeat) if self._keeps and is_real else {}
        merger = Merger(
            self.targets.limit(target.topic),
            named=str(one.partition),
            keep_batches=self.asked.keep_batches,
            shift_ms=self._shift or 0,
            skip=left,
        )
        sender, seen = NOT_TRANSACTIONAL, Counter[int]()
        damage: list[DataError] = []
        windows = one.windows(self.asked.selection, self.left, keep_transactions=self._keeps)
        for size, pieces in up_to_damage(windows, damage):
            merger.fixed_time = int(time.time() * 1000) if self.asked.timestamps == "now" else None
            for piece in pieces:
                producer = piece.producer
                if producer != sender or piece.is_control or again:
                    self._put_all(target, merger.flush(), sender)
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
            self.read_bytes += size
            yield None
        self._put_all(target, merger.flush(), sender)
        if damage:
            raise damage[0]
        self.skipped += skipped - left
        if left:
            self._skip[target] = left  # of a loop: the next round has more to skip
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
            self.left.markers += 1

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
                self._put_all(target, merger.add(some, own), piece.producer)
                self.read += int(own["record_count"].sum())
            else:
                self._put_all(target, merger.flush(), piece.producer)
                self._put_rows(target, self._decoded(one.partition, some, one.floor), piece.producer, merger)

    def _put_rows(self, target: TopicPartition, batches: Iterable[pa.RecordBatch], sender: int, merger: Merger) -> None:
        """Send rows, without those that the merger is to skip."""
        for batch in batches:
            self.read += batch.num_rows
            drop = min(merger.skip, batch.num_rows)
            merger.skip_next(merger.skip - drop)
            self._put_all(target, self._encoded(target, self._retimed(batch.slice(drop))), sender)

    def _decoded(self, partition: TopicPartition, frames: Frames, floor: int) -> Iterator[pa.RecordBatch]:
        """Batches that cannot be passed on as rows: of magic 0 and 1, and those that begin before the log start."""
        assert LOG.decode is not None
        file = File(str(partition), 0, None, LOG.name, Place(partition.topic, partition.partition))
        for batch in LOG.decode(frames, Want(RECORDS, file)):
            chosen = batch.filter(pc.greater_equal(batch.column("offset"), floor))
            if chosen.num_rows:
                yield chosen

    def _put_all(self, target: TopicPartition, batches: Iterator[Outgoing], sender: int = NOT_TRANSACTIONAL) -> None:
        """Send batches; `sender` is the producer of the source, if they belong to a transaction."""
        for batch in batches:
            self.bytes += len(batch)
            if not self.asked.dry_run:
                writer = None if sender == NOT_TRANSACTIONAL else self.transactions.writer(sender, target)
                self.producer.put(target, batch, writer)

    def _first_times(self, partitions: list[NativePartition | LakePartition]) -> list[int]:
        """The time of the first record of each partition, where they are needed, in microseconds."""
        if self._shift is not None:
            return []
        found = []
        for one in partitions:
            windows = one.windows(self.asked.selection, Left(), keep_transactions=self._keeps)
            times = (piece.first_time for _, pieces in windows for piece in pieces if not piece.is_control)
            found += [time for time in (next(times, None),) if time is not None]
        return found

    def _find_shift(self, times_us: list[int]) -> None:
        if self._shift is None and times_us:
            self._shift = int(time.time() * 1000) - min(times_us) // 1000

    # Rows -------------------------------------------------------------------------------------------------------------------

    def _by_rows(self) -> bool:
        """Send rows: each batch is divided by target, each row when it is due."""
        if self.asked.is_paced:
            return self._paced()
        for batch, keys in self._rows(in_turn(self.source.streams, self.left)):
            if self.is_stopped():
                return True
            self._announce(map(self.targets.lane, np.unique(keys).tolist()))
            for target, part in self._by_target(batch, keys):
                self._put_all(target, self._encoded(target, self._retimed(part)))
            self._now_and_then()
        return False

    def _rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, NDArray[np.int64]]]:
        """Rows that are to be sent, and the number of the target of each."""
        left = self.asked.selection.limit
        for batch in batches:
            if left is not None:
                batch = batch.slice(0, left)
                left -= batch.num_rows
            self.read += batch.num_rows
            self.read_bytes += batch.nbytes
            batch, keys = self._assigned(batch)
            if self.asked.timestamps == "shift":
                times = batch.column("timestamp").drop_null().cast(pa.int64())
                self._find_shift(times.slice(0, 1).to_pylist())
            if batch.num_rows:
                yield batch, keys
            if left == 0:
                break

    def _by_target(
        self, batch: pa.RecordBatch, keys: NDArray[np.int64]
    ) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
        for key in np.unique(keys).tolist():
            chosen = np.flatnonzero(keys == key)
            part = batch if chosen.size == batch.num_rows else batch.take(pa.array(chosen))
            yield self.targets.lane(key), part

    def _assigned(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, NDArray[np.int64]]:
        """Rows that were not sent before, and the number of the target of each."""
        topics = batch.column("topic").dictionary_encode()
        self._unmapped.difference_update(topics.dictionary.to_pylist())
        names = [self.asked.target_of(name) for name in topics.dictionary.to_pylist()]
        codes = pc.fill_null(topics.indices, -1).to_numpy(zero_copy_only=False)
        if (codes < 0).any():
            names.append(self.asked.target_of(None))
            codes = np.where(codes < 0, len(names) - 1, codes)
        largest = -1
        if self.asked.partition_by == "original" and batch.num_rows:
            largest = pc.max(batch.column("partition")).as_py() or 0
        counts = np.array([len(self.targets.need(name, 0, largest).partitions) for name in names], np.int64)
        room = counts[codes] if counts.size else np.zeros(0, np.int64)
        numbers = self._numbers(batch, room)
        if numbers.size and ((numbers < 0) | (numbers >= room)).any():
            at = int(np.argmax((numbers < 0) | (numbers >= room)))
            self.targets.need(names[int(codes[at])], int(numbers[at]))
        keys = np.array([self.targets.number_of(name) for name in names], np.int64)[codes] << 32 | numbers
        if self._skip:
            batch, keys = self._without_skipped(batch, keys)
        return batch, keys

    def _numbers(self, batch: pa.RecordBatch, room: NDArray[np.int64]) -> NDArray[np.int64]:
        """The partition of each row."""
        turns = (self._turn + np.arange(batch.num_rows)) % np.maximum(room, 1)
        by = self.asked.partition_by
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
        known = batch.column("key").is_valid().to_numpy(zero_copy_only=False)
        return np.where(known, (hashes & 0x7FFF_FFFF) % np.maximum(room, 1), turns)

    def _without_skipped(
        self, batch: pa.RecordBatch, keys: NDArray[np.int64]
    ) -> tuple[pa.RecordBatch, NDArray[np.int64]]:
        keep = np.ones(keys.size, np.bool_)
        for lane, count in list(self._skip.items()):
            own = np.flatnonzero(keys == self.targets.key_of(lane))[:count]
            keep[own] = False
            self.skipped += own.size
            self._skip[lane] = count - own.size
            if not self._skip[lane]:
                del self._skip[lane]
        return batch.filter(pa.array(keep)), keys[keep]

    # Rows at a pace -----------------------------------------------------------------------------------------------------------

    def _ticks(self) -> Iterator[Tick]:
        """Rows that are due together, encoded. This runs ahead, in a thread of its own, and talks to the cluster by other connections."""
        for batch, keys in self._rows(by_time(self.source.streams, self.left)):
            times = batch.column("timestamp")
            known = times.is_valid().to_numpy(zero_copy_only=False)
            due = self.schedule.due(pc.fill_null(times.cast(pa.int64()), 0).to_numpy(), known)
            batch = self._retimed(batch)
            for start, stop in self.schedule.ticks(due):
                parts = self._by_target(batch.slice(start, stop - start), keys[start:stop])
                made = [(target, one) for target, part in parts for one in self._encoded(target, part)]
                yield Tick(due[start:stop], made)

    def _paced(self) -> bool:
        """Send each tick when it is due; the time in between goes to answers."""
        self._is_ending = False
        with Ahead(self._ticks(), lambda tick: tick.size, AHEAD_BYTES) as ahead:
            try:
                return self._send_ticks(ahead)
            finally:
                self._is_ending = True  # the other thread may be waiting for a broker

    def _send_ticks(self, ahead: Ahead[Tick]) -> bool:
        ahead.fill(FILL_SECONDS, self.is_stopped)
        while not ahead.is_done:
            tick = ahead.take(0.0 if self.producer.unfinished else LONGEST_WAIT)
            if tick is None:
                self.producer.pump(SHORT_WAIT)
            elif not self.asked.dry_run:
                for target in {target for target, _ in tick.batches} - self.producer.lanes.keys():
                    self._announce([target])
                    self.producer.find_leader(target)
                self._wait_for(tick)
                if not self.is_stopped():
                    self._send(tick)
            if self.is_stopped():
                return True
            self._now_and_then()
        return False

    def _wait_for(self, tick: Tick) -> None:
        """Until a tick is due, and all before it are on their way: what has to wait for acknowledgements would be sent in a burst."""
        while not self.is_stopped():
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
            self._put_all(target, iter((batch,)))
        self.producer.pump(0.0)
        self.schedule.sent(tick.due)

    def _retimed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows with the times that they are to have; all of them are times of creation."""
        column = batch.column("timestamp")
        if self.asked.timestamps == "now":
            column = pa.array(np.full(batch.num_rows, int(time.time() * 1000) * 1000), pa.int64()).cast(column.type)
        elif self._shift:
            column = pc.add(column.cast(pa.int64()), self._shift * 1000).cast(column.type)
        arrays = {name: batch.column(name) for name in batch.schema.names}
        arrays["timestamp"] = column
        arrays["timestampType"] = pa.array(np.zeros(batch.num_rows, np.int32))
        return pa.RecordBatch.from_arrays([arrays[name] for name in RECORDS.names], schema=RECORDS.schema)

    def _encoded(self, target: TopicPartition, batch: pa.RecordBatch) -> Iterator[Outgoing]:
        """Batches of rows. EncodeError for a record that is larger than the topic takes."""
        if not batch.num_rows:
            return
        most = self.targets.limit(target.topic)
        room = min(TARGET_BYTES, most) - BATCH.size
        made = encode_rows(RowBuffers.of(batch, 0), Batching(bytes=room))
        for one in outgoing(made.frames, made.head):
            if len(one) > most:
                offset = batch.column("offset")[one.next_offset - 1].as_py()
                where = "" if offset is None else f"offset {offset:,}: "
                raise EncodeError(
                    f"{where}a record of {len(one):,} bytes in its batch; topic {target.topic} takes {most:,}"
                )
            yield one

    # Now and then -------------------------------------------------------------------------------------------------------------

    def _acknowledged(self, sent: Sent, base_offset: int, now: float) -> None:
        self._latencies.append((now - sent.sent_at) * 1000)
        self.schedule.acknowledged(now - sent.sent_at, self.producer.in_flight)
        if len(self._latencies) >= 1000:
            self._count_latencies()

    def _count_latencies(self) -> None:
        self.latencies.add(np.array(self._latencies, np.float64))
        self._latencies.clear()

    def _now_and_then(self) -> None:
        now = time.monotonic()
        if now - self._saved >= SAVE_SECONDS:
            self._saved = now
            self._save(in_background=self.asked.is_paced)  # a slow disk must not delay what is due
        if self._progress is not None and now - self._shown >= PROGRESS_SECONDS:
            self._shown = now
            self._progress(Progress(size=self.read_bytes, rows=self.read, phase=self._state(now)))

    def _state(self, now: float) -> str:
        seconds = max(now - self.begun, 1e-9)
        done = self.producer.acknowledged
        words = [counted(done, "record"), f"{done / seconds:,.0f} records/s", size_text(self.read_bytes)]
        total = self.source.size * max(self.asked.loop, 1)
        if total and self.read_bytes and self.asked.loop:
            words.append(f"{100 * self.read_bytes // total} %")
            words.append(f"{seconds * max(0, total - self.read_bytes) / self.read_bytes:,.0f} s left")
        return "replaying  " + "  ".join(words)

    # The checkpoint -----------------------------------------------------------------------------------------------------------

    @cached_property
    def _fingerprint(self) -> str:
        """What a checkpoint must agree in. Where the source has transactions, replays that repeat them send other records."""
        asked = self.asked
        keeps = self._keeps and any(one.has_transactions for one in self._whole or ())
        parts = (
            self.source.named,
            sorted(asked.topic_map.items()),
            asked.topic,
            asked.partition_by,
            repr(asked.selection),
            keeps,
        )
        return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()

    def _announce(self, targets: Iterable[TopicPartition]) -> None:
        """Before anything is sent to a partition, the checkpoint says where it ended."""
        if self.asked.checkpoint is not None and not self.asked.dry_run:
            before = len(self.producer.lanes)
            for one in targets:
                self.producer.lane(one)
            if len(self.producer.lanes) > before:
                self._save()

    def _save(self, *, in_background: bool = False) -> None:
        """Write the checkpoint. In the background, unless the last one is still being written."""
        if self.asked.checkpoint is None or self.asked.dry_run:
            return
        if self._writing is not None and (self._writing.done() or not in_background):
            self._writing.result()
            self._writing = None
        if self._writing is not None:
            return
        write = partial(self._checkpoint().write, self.asked.checkpoint)
        if in_background:
            self._writing = self._writer.submit(write)
        else:
            write()

    def _checkpoint(self) -> Checkpoint:
        partitions = {}
        for one in {*self.producer.lanes, *self._before}:
            lane = self.producer.lane(one)
            records = self._before.get(one, 0) + lane.acknowledged - lane.repeated
            partitions[one] = Reached(
                records, lane.end_offset, dict(lane.sequences), dict(lane.open), dict(lane.to_repeat)
            )
        return Checkpoint(
            replay=self._fingerprint,
            source=self.source.named,
            cluster=self.cluster.id,
            run=self.transactions.run,
            producer_id=self.producer.plain.id,
            writers={source: (one.id, one.epoch) for source, one in self.transactions.writers.items()},
            partitions=partitions,
        )

    def _resume(self) -> None:
        """Find out what an earlier replay sent. OptionError if the checkpoint is of another one."""
        named = self.asked.checkpoint
        if named is None or not Path(named).exists():
            return
        found = Checkpoint.read(named)
        if found.replay != self._fingerprint:
            raise OptionError(
                f"{named}: it belongs to another replay, of {found.source!r}; name another file, or remove it"
            )
        if found.cluster not in (None, self.cluster.id):
            raise OptionError(f"{named}: it belongs to a replay into another cluster ({found.cluster})")
        self.transactions.run = found.run
        for source in found.writers:
            self.transactions.begin(source)
        for one in found.partitions:
            self.targets.need(one.topic, one.partition)
        found.catch_up(self.cluster, self.targets.ids)
        for one, state in found.partitions.items():
            self._before[one] = state.records
            again = Counter(state.open) + Counter(state.to_repeat)
            lane = self.producer.lane(one)
            lane.to_repeat, lane.end_offset = dict(again), max(lane.end_offset, state.end)
        self._skip = {one: count for one, count in self._before.items() if count}
        self.report.notes.append(
            f"{sum(self._before.values()):,} records were acknowledged before and are not sent again"
        )

    # The summary --------------------------------------------------------------------------------------------------------------

    def _summary(self, error: Exception | None, was_stopped: bool) -> Report:
        self._count_latencies()
        report, seconds = self.report, time.monotonic() - self.begun
        acknowledged = self.producer.acknowledged
        put = sum(lane.records for lane in self.producer.lanes.values())
        failed = put - acknowledged
        report.counts |= {"records": self.read, "bytes": self.bytes, "acknowledged": acknowledged, "failed": failed}
        report.notes += self.targets.notes
        committed, aborted = self.transactions.ended[True], self.transactions.ended[False]
        if self._keeps:
            report.facts["transactions"] = {"committed": committed, "aborted": aborted}
            if committed or aborted:
                report.notes.append(
                    f"{counted(committed, 'transaction')} committed, {aborted:,} aborted, as in the source"
                )
            if self.left.markers:
                report.notes.append(f"{self.left.markers:,} markers of transactions without records are left out")
        elif self.left.markers or self.left.aborted:
            report.notes.append(
                f"transactions are replayed as plain records: {self.left.markers:,} markers and {self.left.aborted:,} records of "
                f"aborted or open transactions are left out"
            )
        if self._unmapped and not self._whole:
            names = ", ".join(sorted(self._unmapped))
            report.notes.append(f"no record is of a topic that --topic-map gives another name: {names}")
        for text in self.left.damaged:
            report.add(Action.LOST, f"not sent: {text}")
        if error is not None or failed:
            where = "; ".join(
                f"{one} has {lane.acknowledged:,} of {lane.records:,} that were sent"
                for one, lane in sorted(self.producer.lanes.items())[:8]
            )
            report.add(
                Action.LOST,
                f"{error or 'not acknowledged'}; {acknowledged:,} records are acknowledged, nothing after them is: {where}",
            )
            report.facts["error"] = str(error)
        elif was_stopped and self.asked.loop:
            report.add(Action.LOST, f"interrupted: {acknowledged:,} records are acknowledged, the rest was not sent")
            report.facts["interrupted"] = True
        report.facts |= {"seconds": round(seconds, 3), "skipped": self.skipped, "retries": self.producer.retries}
        if self.latencies:
            report.facts["acknowledgement_ms"] = found = self.latencies.summary()
            report.notes.append(f"acknowledged after {_percentiles(found)}")
        if self.schedule.errors:
            report.facts["pacing_error_ms"] = found = self.schedule.errors.summary()
            report.facts["most_in_100_ms"] = self.schedule.most_in_window
            report.notes.append(f"error of the pace {_percentiles(found)}")
        report.facts["throttled_ms"] = self.cluster.throttled_ms
        report.facts["end_offsets"] = {
            str(one): lane.end_offset for one, lane in sorted(self.producer.lanes.items()) if lane.end_offset >= 0
        }
        if not self.asked.dry_run:
            report.notes.append(f"{acknowledged / max(seconds, 1e-9):,.0f} records/s, {seconds:,.1f} s")
        return report


def _percentiles(found: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:,.1f} ms" for name, value in found.items())


def _murmur2(keys: pa.Array) -> NDArray[np.int64]:
    """The hash of each key as Java's default partitioner computes it; of a null it has no meaning."""
    filled = pc.fill_null(keys, b"")
    _, offsets, values = filled.buffers()
    ends = np.frombuffer(offsets, np.int32)[filled.offset : filled.offset + len(filled) + 1].astype(np.int64)
    out = np.empty(len(filled), np.int64)
    murmur2_spans(byte_view(values if values is not None else b""), ends[:-1].copy(), ends[1:].copy(), out)
    return out


__all__ = ["Asked", "Source", "replay"]
