"""The checkpoint file of a replay: what was acknowledged, and by whom it was sent, so that the next replay finds what came after it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rawlog.core.errors import AccessError, OptionError
from rawlog.formats.kafka.layouts import Attributes
from rawlog.io.files import writing
from rawlog.live.cluster import Cluster, TopicPartition
from rawlog.live.fetching import SEQUENCES, written_after

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


__all__ = ["Checkpoint", "Reached"]
