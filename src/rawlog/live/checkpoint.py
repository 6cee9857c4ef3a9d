"""The checkpoint file of a replay: what was acknowledged, and by whom it was sent, so that the next replay finds what came after it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

from rawlog.core.errors import AccessError, OptionError
from rawlog.formats.kafka.layouts import Attributes
from rawlog.io.files import writing
from rawlog.live.cluster import Cluster, TopicPartition
from rawlog.live.fetching import SEQUENCES, written_after
from rawlog.live.sending import Sending

VERSION = 2


@dataclass(slots=True)
class Reached:
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
    partitions: dict[TopicPartition, Reached]

    def write(self, path: str) -> None:
        """Replace the file."""
        rows = [
            [
                one.topic,
                one.partition,
                state.records,
                state.end,
                *map(_pairs, (state.sequences, state.open, state.to_repeat)),
            ]
            for one, state in sorted(self.partitions.items())
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
                    TopicPartition(str(row[0]), int(row[1])): Reached(int(row[2]), int(row[3]), *map(_dict, row[4:7]))
                    for row in state["partitions"]
                },
            )
        except OSError as error:
            raise AccessError(f"{path}: {error.strerror or error}") from None
        except (ValueError, KeyError, TypeError, IndexError):
            raise OptionError(f"{path}: not a checkpoint of a replay") from None

    def catch_up(self, cluster: Cluster, ids: Mapping[str, bytes]) -> None:
        """Take in what the target got after the checkpoint was written: its batches bear the ids of our producers.

        Those of transactional ids must have no open transaction any more. A marker with an epoch other than ours is an abort by the
        coordinator: the records of that transaction are sent again.
        """
        owners = {self.producer_id: (-1, None)} | {id: (source, epoch) for source, (id, epoch) in self.writers.items()}
        for partition, state in self.partitions.items():
            for one in written_after(cluster, partition, ids, state.end):
                head = one.head
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
                state.end = max(state.end, one.stop_offset)


def _count(state: Reached, source: int, stop: int) -> None:
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


def _pairs(found: Mapping[int, int]) -> list[list[int]]:
    return [[key, value] for key, value in sorted(found.items()) if value]


def _dict(rows: list[list[int]]) -> dict[int, int]:
    return {int(key): int(value) for key, value in rows}


class Checkpoints:
    """Keeps the checkpoint file of a running replay, if one is named; without one, and in a dry run, nothing happens.

    `replay` says what the next replay must agree in to continue this one.
    """

    def __init__(self, sending: Sending, source: str, replay: Callable[[], str]) -> None:
        self.sending, self.source, self._replay = sending, source, replay
        self.path = None if sending.asked.dry_run else sending.asked.checkpoint
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
            for one in targets:
                self.sending.producer.lane(one)
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
        for one in {*self.sending.producer.lanes, *self._before}:
            lane = self.sending.producer.lane(one)
            records = self._before.get(one, 0) + lane.acknowledged - lane.repeated
            partitions[one] = Reached(
                records, lane.end_offset, dict(lane.sequences), dict(lane.open), dict(lane.to_repeat)
            )
        return Checkpoint(
            replay=self.replay,
            source=self.source,
            cluster=self.sending.cluster.id,
            run=self.sending.transactions.run,
            producer_id=self.sending.producer.plain.id,
            writers={source: (one.id, one.epoch) for source, one in self.sending.transactions.writers.items()},
            partitions=partitions,
        )

    def resume(self) -> None:
        """Find out what an earlier replay sent. OptionError if the checkpoint is of another one."""
        named, sending = self.path, self.sending
        if named is None or not Path(named).exists():
            return
        found = Checkpoint.read(named)
        if found.replay != self.replay:
            raise OptionError(
                f"{named}: it belongs to another replay, of {found.source!r}; name another file, or remove it"
            )
        if found.cluster not in (None, sending.cluster.id):
            raise OptionError(f"{named}: it belongs to a replay into another cluster ({found.cluster})")
        sending.transactions.run = found.run
        for source in found.writers:
            sending.transactions.begin(source)
        for one in found.partitions:
            sending.targets.need(one.topic, one.partition)
        found.catch_up(sending.cluster, sending.targets.ids)
        for one, state in found.partitions.items():
            self._before[one] = state.records
            again = Counter(state.open) + Counter(state.to_repeat)
            lane = sending.producer.lane(one)
            lane.to_repeat, lane.end_offset = dict(again), max(lane.end_offset, state.end)
        sending.skip = {one: count for one, count in self._before.items() if count}
        sending.notes.append(f"{sum(self._before.values()):,} records were acknowledged before and are not sent again")


__all__ = ["Checkpoint", "Checkpoints", "Reached"]
