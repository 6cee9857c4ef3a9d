"""The log directories of Kafka brokers, read plainly: replicas, their batches and epochs, the metadata, offsets of groups, transactions.

Slow and obvious, on top of the reference decoders. Imports nothing of rawlog.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from . import kafka, kraft

METADATA = "__cluster_metadata-0"
GROUPS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"
FUTURE = re.compile(r"^(?P<name>.+-\d+)\.[0-9a-f]{32}-future$")
PLAIN = re.compile(r"^(?P<topic>[\w.-]+)-(?P<partition>\d+)$")


@dataclass(frozen=True)
class Placed:
    """A batch, and the file that holds it."""

    file: Path
    batch: kafka.Batch

    @property
    def first(self) -> int:
        assert self.batch.base_offset is not None
        return self.batch.base_offset


@dataclass
class Replica:
    """A directory of a partition. `epochs` are (epoch, first offset), of the checkpoint file and of the batches."""

    path: Path
    topic: str
    partition: int
    topic_id: str
    is_future: bool
    batches: list[Placed] = field(default_factory=list)
    checkpoint: list[tuple[int, int]] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.batches[-1].batch.last_offset + 1 if self.batches else 0

    @cached_property
    def epochs(self) -> list[tuple[int, int]]:
        return epochs_of(self.batches, self.checkpoint)

    @property
    def rank(self) -> tuple[int, int]:
        """The replica with the highest one is the log as it was at the end: the latest leader, and of those that follow it the longest."""
        return (max((epoch for epoch, _ in self.epochs), default=-1), self.end)


def epochs_of(batches: Iterable[Placed], checkpoint: Iterable[tuple[int, int]] = ()) -> list[tuple[int, int]]:
    """Where each epoch begins: the least offset that is known for it."""
    found = dict(checkpoint)
    for one in batches:
        epoch = one.batch.leader_epoch
        found[epoch] = min(found.get(epoch, one.first), one.first)
    return sorted(found.items())


def read_replicas(disks: Sequence[Path]) -> list[Replica]:
    """Every directory that a broker would load, and those of unfinished moves. The files must be whole."""
    found = []
    for disk in disks:
        for folder in sorted(disk.iterdir()):
            future = FUTURE.match(folder.name)
            plain = PLAIN.match(future["name"] if future else folder.name)
            if plain and folder.is_dir() and folder.name != METADATA:
                found.append(_replica(folder, plain["topic"], int(plain["partition"]), future is not None))
    return found


def _replica(folder: Path, topic: str, partition: int, is_future: bool) -> Replica:
    about = folder / "partition.metadata"
    topic_id = re.search(r"topic_id: (\S+)", about.read_text()) if about.is_file() else None
    made = Replica(folder, topic, partition, topic_id[1] if topic_id else "", is_future)
    for file in sorted(folder.glob("*.log")):
        made.batches += [Placed(file, batch) for batch in kafka.decode(file.read_bytes(), check_crc=False)]
    history = folder / "leader-epoch-checkpoint"
    if history.is_file():
        for line in history.read_text().split("\n")[2:]:
            if line:
                epoch, start = map(int, line.split())
                made.checkpoint.append((epoch, start))
    return made


def read_checkpoint(disk: Path, name: str) -> dict[tuple[str, int], int]:
    """A file of offsets per partition, such as replication-offset-checkpoint."""
    path = disk / name
    found = {}
    for line in path.read_text().split("\n")[2:] if path.is_file() else []:
        if line:
            topic, partition, offset = line.split()
            found[topic, int(partition)] = int(offset)
    return found


# Metadata ---------------------------------------------------------------------------------------------------------------


@dataclass
class Metadata:
    """Topics by id (in Kafka's text form), and the replicas of their partitions."""

    topics: dict[str, str] = field(default_factory=dict)
    partitions: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)


def id_text(raw: bytes) -> str:
    """A topic id as `partition.metadata` has it."""
    import base64

    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def read_metadata(disks: Sequence[Path]) -> Metadata:
    """The state of the furthest metadata log."""
    furthest: tuple[tuple[int, int], Metadata] | None = None
    for disk in disks:
        if (disk / METADATA).is_dir():
            found = _fold(disk / METADATA)
            if furthest is None or found[0] > furthest[0]:
                furthest = found
    assert furthest is not None, "no metadata log"
    return furthest[1]


def _fold(folder: Path) -> tuple[tuple[int, int], Metadata]:
    state, start, rank = Metadata(), 0, (0, 0)
    if snapshots := sorted(folder.glob("*-*.checkpoint")):
        start = int(snapshots[-1].name[:20])
        for batch in kafka.decode(snapshots[-1].read_bytes(), check_crc=False):
            _apply(state, batch)
    for file in sorted(folder.glob("*.log")):
        for batch in kafka.decode(file.read_bytes(), check_crc=False):
            rank = max(rank, (batch.leader_epoch, batch.last_offset))
            if batch.last_offset >= start:
                _apply(state, batch)
    return rank, state


def _apply(state: Metadata, batch: kafka.Batch) -> None:
    if batch.is_control:
        return
    for record in batch.records:
        assert record.value is not None
        name, _, message = kraft.decode_frame(record.value)
        if name == "TopicRecord":
            state.topics[id_text(message["topicId"])] = message["name"]
        elif name == "RemoveTopicRecord":
            gone = id_text(message["topicId"])
            state.topics.pop(gone, None)
            state.partitions = {key: one for key, one in state.partitions.items() if key[0] != gone}
        elif name == "PartitionRecord":
            state.partitions[id_text(message["topicId"]), message["partitionId"]] = message
        elif name == "PartitionChangeRecord":
            key = id_text(message["topicId"]), message["partitionId"]
            state.partitions.setdefault(key, {}).update(
                {field: value for field, value in message.items() if value is not None and field != "topicId"}
            )


def read_removed(disks: Sequence[Path], is_left: Callable[[Path, kafka.Batch | None], bool]) -> set[str]:
    """Ids of topics of whose deletion something is left: a record that removed them, or a later snapshot that does not have them.

    `is_left` says whether a batch is left as it was; without a batch, whether the file is left.
    """
    removed: set[str] = set()
    for folder in [disk / METADATA for disk in disks if (disk / METADATA).is_dir()]:
        seen: dict[str, int] = {}
        for file in sorted(folder.glob("*.log")):
            for batch in kafka.decode(file.read_bytes(), check_crc=False):
                for record in [] if batch.is_control or not is_left(file, batch) else batch.records:
                    name, _, message = kraft.decode_frame(record.value or b"")
                    if name == "TopicRecord":
                        seen.setdefault(id_text(message["topicId"]), batch.last_offset)
                    elif name == "RemoveTopicRecord":
                        removed.add(id_text(message["topicId"]))
        for snapshot in [one for one in folder.glob("*-*.checkpoint") if is_left(one, None)]:
            state = Metadata()
            for batch in kafka.decode(snapshot.read_bytes(), check_crc=False):
                _apply(state, batch)
            removed |= {one for one, at in seen.items() if at < int(snapshot.name[:20]) and one not in state.topics}
    return removed


# Internal topics --------------------------------------------------------------------------------------------------------


def read_group_offsets(batches: Sequence[kafka.Batch], ended: dict[int, bool]) -> dict[tuple[str, str, int], int]:
    """Committed offsets of one partition of __consumer_offsets. Those of a transaction count once it is committed.

    `ended`: whether the open transaction of a producer is committed in the end; without an entry it is aborted.
    """
    offsets: dict[tuple[str, str, int], int] = {}
    pending: dict[int, dict[tuple[str, str, int], int]] = {}
    for batch in batches:
        if batch.is_control:
            waiting = pending.pop(batch.producer_id, {})
            if batch.records and batch.records[0].control_type == 1:
                offsets.update(waiting)
            continue
        for record in batch.records:
            assert record.key is not None
            (version,) = struct.unpack_from(">h", record.key)
            if version > 1:  # of groups and their members
                continue
            key, _ = kraft.decode("OffsetCommitKey", version, record.key, 2)
            place = (key["group"], key["topic"], key["partition"])
            if record.value is None:
                offsets.pop(place, None)
                continue
            (version,) = struct.unpack_from(">h", record.value)
            value, _ = kraft.decode("OffsetCommitValue", version, record.value, 2)
            target = pending.setdefault(batch.producer_id, {}) if batch.is_transactional else offsets
            target[place] = value["offset"]
    for producer, waiting in pending.items():
        if ended.get(producer):
            offsets.update(waiting)
    return offsets


STATES = ("empty", "ongoing", "prepare_commit", "prepare_abort", "complete_commit", "complete_abort", "dead", "fence")


def read_transactions(batches: Sequence[kafka.Batch]) -> dict[int, tuple[str, set[tuple[str, int]]]]:
    """Per producer id the last state of its transactional id, with the partitions in the transaction."""
    states: dict[str, tuple[int, str, set[tuple[str, int]]]] = {}
    for batch in batches:
        for record in [] if batch.is_control else batch.records:
            assert record.key is not None
            key, _ = kraft.decode("TransactionLogKey", 0, record.key, 2)
            name = key["transactionalId"]
            if record.value is None:
                states.pop(name, None)
                continue
            (version,) = struct.unpack_from(">h", record.value)
            value, _ = kraft.decode("TransactionLogValue", version, record.value, 2)
            places = {
                (one["topic"], number)
                for one in value.get("transactionPartitions") or []
                for number in one["partitionIds"]
            }
            states[name] = (value["producerId"], STATES[value["transactionStatus"]], places)
    return {producer: (state, places) for producer, state, places in states.values()}


def outcomes(batches: Sequence[kafka.Batch]) -> dict[int, tuple[str, int | None]]:
    """For each offset of a transactional record: `commit` or `abort` and the offset of its marker, or `open` and None."""
    found: dict[int, tuple[str, int | None]] = {}
    waiting: dict[int, list[int]] = {}
    for batch in batches:
        if batch.is_control:
            kind = "commit" if batch.records and batch.records[0].control_type == 1 else "abort"
            for offset in waiting.pop(batch.producer_id, []):
                found[offset] = (kind, batch.last_offset)
        elif batch.is_transactional:
            waiting.setdefault(batch.producer_id, []).extend(record.offset for record in batch.records)
    for offsets in waiting.values():
        found.update(dict.fromkeys(offsets, ("open", None)))
    return found
