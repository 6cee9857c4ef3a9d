"""A replay of whole partitions: batches are passed on as they are, or put together, with the transactions of the source."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from rawlog.formats.kafka import LOG
from rawlog.formats.kafka.log.layouts import Attributes
from rawlog.io.output import writing
from rawlog.live.cluster import Cluster, TopicPartition
from rawlog.live.fetch import SEQUENCES, written_after
from rawlog.live.produce import Merger
from rawlog.live.sending import Sending, Stop, TransactionPlan
from rawlog.live.sources import (
    NOT_TRANSACTIONAL,
    LakePartition,
    NativePartition,
    Omissions,
    Stretch,
    first_repeated,
    magic_runs,
    up_to_damage,
)
from rawlog.model.errors import AccessError, DataError, EncodeError, OptionError
from rawlog.model.format import File, Place, Want
from rawlog.model.frames import Frames
from rawlog.model.table import RECORDS
from rawlog.model.text import counted

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
