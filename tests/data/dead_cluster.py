"""A model of a Kafka cluster that dies: leaders, followers, epochs and in-sync replicas, the disks that they leave, and the truth.

Every batch has a number of its own, so that records of two histories at the same offset differ. Imports of rawlog only to write files.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

from rawlog.formats.kafka.cluster.writer import encode_batch
from rawlog.formats.kafka.internal.codec import uuid_text
from rawlog.io.output import Folder
from tests.data.new_cluster import NewCluster

CLUSTER = "rEsCuEcLuStErAAAAAAAAA"
TOPIC_ID = bytes(range(1, 17))
START_MS = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as a leader wrote it."""

    number: int
    epoch: int
    base: int
    count: int

    @property
    def end(self) -> int:
        return self.base + self.count

    def records(self) -> list[tuple[int, bytes]]:
        return [(self.base + at, b"batch %d record %d" % (self.number, at)) for at in range(self.count)]

    def data(self) -> bytes:
        pairs = [(b"k%d" % at, value) for at, (_, value) in enumerate(self.records())]
        return encode_batch(self.base, self.epoch, START_MS + self.number, pairs)


@dataclass
class Log:
    """The log of one replica."""

    batches: list[Batch] = field(default_factory=list)
    epochs: list[tuple[int, int]] = field(default_factory=list)
    high_watermark: int = 0

    @property
    def end(self) -> int:
        return self.batches[-1].end if self.batches else 0

    def append(self, batch: Batch) -> None:
        if not self.epochs or self.epochs[-1][0] < batch.epoch:
            self.epochs.append((batch.epoch, batch.base))
        self.batches.append(batch)

    def follow(self, leader: Log) -> None:
        """Truncate to what the leader has too."""
        same = 0
        for mine, theirs in zip(self.batches, leader.batches, strict=False):
            if mine != theirs:
                break
            same += 1
        self.batches = self.batches[:same]
        self.epochs = [(epoch, start) for epoch, start in self.epochs if start < self.end]
        self.high_watermark = min(self.high_watermark, self.end)


class Partition:
    """One partition in a cluster of brokers that come and go."""

    def __init__(self, seed: int, nodes: tuple[int, ...] = (1, 2, 3), *, unclean: bool = False) -> None:
        self.random = random.Random(seed)
        self.nodes, self.unclean = nodes, unclean
        self.logs = {node: Log() for node in nodes}
        self.alive, self.isr = set(nodes), set(nodes)
        self.leader, self.epoch, self.numbers = nodes[0], 0, 0
        self.logs[self.leader].epochs.append((0, 0))
        #: The batches that were acknowledged to a producer with acks=all.
        self.acknowledged: list[Batch] = []

    # What brokers do --------------------------------------------------------------------------------------------------

    def produce(self, *, acks_all: bool = True) -> Batch | None:
        if self.leader < 0:
            return None
        log = self.logs[self.leader]
        self.numbers += 1
        batch = Batch(self.numbers, self.epoch, log.end, self.random.randint(1, 4))
        log.append(batch)
        if acks_all:
            for node in sorted(self.isr):
                self.fetch(node)
            self.mark()
            self.acknowledged.append(batch)
        return batch

    def fetch(self, node: int, most: int | None = None) -> None:
        """Copy what the leader has."""
        if node == self.leader or node not in self.alive or self.leader < 0:
            return
        mine, theirs = self.logs[node], self.logs[self.leader]
        for batch in theirs.batches[len(mine.batches) :][:most]:
            mine.append(batch)
        if mine.end == theirs.end:
            self.isr.add(node)
        self.mark()

    def mark(self) -> None:
        """Move the high watermark up to what all in-sync replicas have."""
        mark = min(self.logs[node].end for node in self.isr)
        self.logs[self.leader].high_watermark = max(self.logs[self.leader].high_watermark, mark)

    def kill(self, node: int) -> None:
        self.alive.discard(node)
        if len(self.isr) > 1:
            self.isr.discard(node)
        if node == self.leader:
            self.elect()
        elif self.leader >= 0:
            self.mark()

    def start(self, node: int) -> None:
        self.alive.add(node)
        if self.leader < 0:
            self.elect()
        elif node != self.leader:
            self.logs[node].follow(self.logs[self.leader])

    def elect(self) -> None:
        """A new leader from those in sync; without one from anybody, where that is allowed."""
        able = sorted(self.isr & self.alive) or (sorted(self.alive) if self.unclean else [])
        self.epoch += 1
        if not able:
            self.leader = -1
            return
        self.leader = self.random.choice(able)
        if self.leader not in self.isr:
            self.isr = {self.leader}
        log = self.logs[self.leader]
        log.epochs = [(epoch, start) for epoch, start in log.epochs if start < log.end]
        log.epochs.append((self.epoch, log.end))
        for node in self.alive - {self.leader}:
            self.logs[node].follow(log)

    def live(self, steps: int = 40) -> None:
        """A random life, and death."""
        for _ in range(steps):
            what = self.random.random()
            if what < 0.5:
                self.produce()
            elif what < 0.65:
                self.produce(acks_all=False)
            elif what < 0.8:
                self.fetch(self.random.choice(self.nodes), self.random.choice((1, None)))
            elif what < 0.9 and self.alive:
                self.kill(self.random.choice(sorted(self.alive)))
            else:
                self.start(self.random.choice(self.nodes))

    # The truth --------------------------------------------------------------------------------------------------------

    @property
    def decides(self) -> int:
        """The replica whose log is the history at death: that of the leader, or of the last one in sync."""
        return self.leader if self.leader >= 0 else min(self.isr)

    def history(self) -> list[Batch]:
        return self.logs[self.decides].batches

    def committed(self) -> list[Batch]:
        """What producers were promised, and the history at death still has."""
        there = set(self.history())
        return [one for one in self.acknowledged if one in there]

    def message(self, number: int, topic_id: bytes = TOPIC_ID) -> dict[str, object]:
        """The record of the partition in the metadata log."""
        return {
            "partitionId": number,
            "topicId": topic_id,
            "replicas": list(self.nodes),
            "isr": sorted(self.isr),
            "removingReplicas": [],
            "addingReplicas": [],
            "leader": self.leader,
            "leaderEpoch": self.epoch,
            "partitionEpoch": 0,
        }


# Disks ----------------------------------------------------------------------------------------------------------------


def write_log(folder: Path, batches: list[Batch], *, segment: int = 5, topic_id: bytes | None = TOPIC_ID) -> None:
    """A partition directory with these batches, so many in a segment."""
    folder.mkdir(parents=True, exist_ok=True)
    if not batches:
        (folder / f"{0:020d}.log").write_bytes(b"")
    for first in range(0, len(batches), segment):
        part = batches[first : first + segment]
        (folder / f"{part[0].base:020d}.log").write_bytes(b"".join(one.data() for one in part))
    if topic_id is not None:
        (folder / "partition.metadata").write_text(f"version: 0\ntopic_id: {uuid_text(topic_id)}")


def write_epochs(folder: Path, epochs: list[tuple[int, int]]) -> None:
    lines = "".join(f"{epoch} {start}\n" for epoch, start in epochs)
    (folder / "leader-epoch-checkpoint").write_text(f"0\n{len(epochs)}\n{lines}")


def write_checkpoint(disk: Path, name: str, offsets: dict[tuple[str, int], int]) -> None:
    lines = "".join(f"{topic} {number} {offset}\n" for (topic, number), offset in sorted(offsets.items()))
    (disk / name).write_text(f"0\n{len(offsets)}\n{lines}")


def write_disks(
    root: Path,
    partitions: dict[tuple[str, int], Partition],
    *,
    metadata: bool = True,
    cluster: str = CLUSTER,
    configs: dict[str, str] | None = None,
) -> dict[int, Path]:
    """The log directory of each broker at death."""
    nodes = sorted({node for one in partitions.values() for node in one.nodes})
    topics = sorted({topic for topic, _ in partitions})
    ids = {topic: bytes([number + 1]) * 16 for number, topic in enumerate(topics)}
    records = [("TopicRecord", None, {"name": topic, "topicId": ids[topic]}) for topic in topics]
    records += [
        ("PartitionRecord", None, one.message(number, ids[topic]))
        for (topic, number), one in sorted(partitions.items())
    ]
    for topic in topics:
        for name, value in (configs or {}).items():
            fields = {"resourceType": 2, "resourceName": topic, "name": name, "value": value}
            records.append(("ConfigRecord", None, fields))
    disks = {}
    for node in nodes:
        disk = disks[node] = root / f"disk{node}"
        disk.mkdir(parents=True)
        if metadata:
            # One controller on the disk of broker 1; the others have the same log as observers.
            NewCluster(1, 10, START_MS, records).write(Folder(disk), cluster)
        own = f"version=1\ncluster.id={cluster}\nnode.id={node}\ndirectory.id={uuid_text(bytes([64 + node]) * 16)}\n"
        (disk / "meta.properties").write_text(own)
        for (topic, number), one in partitions.items():
            if node in one.nodes:
                folder = disk / f"{topic}-{number}"
                write_log(folder, one.logs[node].batches, segment=3 + node, topic_id=ids[topic])
                write_epochs(folder, one.logs[node].epochs)
        marks = {key: one.logs[node].high_watermark for key, one in partitions.items() if node in one.nodes}
        write_checkpoint(disk, "replication-offset-checkpoint", marks)
    return disks


def damage(path: Path, batches: list[Batch], chosen: Batch, at: int = 40) -> None:
    """Flip a byte of one batch in a partition directory."""
    for log in sorted(path.glob("*.log"), reverse=True):
        if int(log.name[:20]) <= chosen.base:
            before = [one for one in batches if int(log.name[:20]) <= one.base < chosen.base]
            position = sum(len(one.data()) for one in before) + at
            data = bytearray(log.read_bytes())
            data[position] ^= 0xFF
            log.write_bytes(bytes(data))
            return
    raise AssertionError("no such segment")


__all__ = ["Batch", "Log", "Partition", "damage", "write_checkpoint", "write_disks", "write_epochs", "write_log"]
