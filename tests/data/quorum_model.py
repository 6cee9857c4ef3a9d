"""A model of a Raft quorum whose controllers come and go, and the metadata logs that it leaves on their disks."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

from rawlog.formats.kafka.cluster.state import State
from rawlog.formats.kafka.cluster.writer import encode_batch, encode_controls, write_checkpoint
from rawlog.formats.kafka.internal.codec import uuid_text
from rawlog.formats.kafka.internal.messages import encode_framed
from rawlog.formats.kafka.log.layouts import ControlType
from rawlog.io.output import Folder

CLUSTER = "qUoRuMcLuStErAAAAAAAAA"
START_MS = 1_700_000_000_000


def id_of(topic: str) -> bytes:
    return topic.encode().rjust(16, b"t")


@dataclass(frozen=True)
class Entry:
    """One batch of the log: the beginning of an epoch, or a topic that is created (or deleted, with a `-` before its name)."""

    epoch: int
    leader: int
    topic: str | None = None

    def records(self) -> list[bytes]:
        assert self.topic is not None
        if self.topic.startswith("-"):
            return [encode_framed("RemoveTopicRecord", {"topicId": id_of(self.topic[1:])})]
        return [
            encode_framed("TopicRecord", {"name": self.topic, "topicId": id_of(self.topic)}),
            encode_framed("PartitionRecord", {**PARTITION, "topicId": id_of(self.topic)}),
        ]

    @property
    def count(self) -> int:
        return 1 if self.topic is None else len(self.records())

    def data(self, offset: int, voters: list[int]) -> bytes:
        if self.topic is not None:
            return encode_batch(offset, self.epoch, START_MS + offset, [(None, one) for one in self.records()])
        named = [{"voterId": one} for one in voters]
        message = {"version": 0, "leaderId": self.leader, "voters": named, "grantingVoters": named}
        return encode_controls(offset, self.epoch, START_MS + offset, [(ControlType.LEADER_CHANGE, message)])


PARTITION = {
    "partitionId": 0, "replicas": [1, 2, 3], "isr": [1, 2, 3], "removingReplicas": [], "addingReplicas": [], "leader": 1,
    "leaderEpoch": 0, "partitionEpoch": 0,
}  # fmt: skip


@dataclass
class Quorum:
    """Controllers 1 to `count`."""

    seed: int
    count: int = 3
    logs: dict[int, list[Entry]] = field(default_factory=dict)
    epoch: int = 0
    leader: int = 1
    numbers: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.logs = {node: [] for node in range(1, self.count + 1)}
        self.elect()

    @property
    def nodes(self) -> list[int]:
        return list(self.logs)

    @property
    def majority(self) -> int:
        return self.count // 2 + 1

    def elect(self) -> None:
        """A leader that no one of a majority is further than."""
        voters = self.random.sample(self.nodes, self.majority)
        self.leader = max(voters, key=lambda node: self.rank(node))
        self.epoch += 1
        self.logs[self.leader].append(Entry(self.epoch, self.leader))

    def rank(self, node: int) -> tuple[int, int]:
        log = self.logs[node]
        return (log[-1].epoch if log else -1, len(log))

    def append(self) -> None:
        self.numbers += 1
        there = sorted(self.topics(self.leader))
        gone = there and self.random.random() < 0.2
        name = f"-{self.random.choice(there)}" if gone else f"topic{self.numbers}"
        self.logs[self.leader].append(Entry(self.epoch, self.leader, name))

    def fetch(self, node: int, most: int | None = None) -> None:
        """Truncate to what the leader has too, and copy what follows."""
        mine, theirs = self.logs[node], self.logs[self.leader]
        same = next(
            (at for at, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), min(len(mine), len(theirs))
        )
        self.logs[node] = [*mine[:same], *theirs[same : None if most is None else same + most]]

    def live(self, steps: int = 40) -> None:
        for _ in range(steps):
            what = self.random.random()
            if what < 0.45:
                self.append()
            elif what < 0.9:
                self.fetch(self.random.choice(self.nodes), self.random.choice((1, None)))
            else:
                self.elect()

    # The truth ----------------------------------------------------------------------------------------------------------

    @property
    def furthest(self) -> int:
        return max(self.nodes, key=self.rank)

    def topics(self, node: int, length: int | None = None) -> set[str]:
        found: set[str] = set()
        for entry in self.logs[node][:length]:
            if entry.topic is not None and entry.topic.startswith("-"):
                found.discard(entry.topic[1:])
            elif entry.topic is not None:
                found.add(entry.topic)
        return found

    def end(self, node: int, length: int | None = None) -> int:
        return sum(entry.count for entry in self.logs[node][:length])

    def committed(self) -> int:
        """The entries that a majority has of the furthest log."""
        best = self.logs[self.furthest]
        held = sorted((self.shared(log, best) for log in self.logs.values()), reverse=True)
        return held[self.majority - 1]

    @staticmethod
    def shared(one: list[Entry], other: list[Entry]) -> int:
        pairs = zip(one, other, strict=False)
        return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))

    # Disks --------------------------------------------------------------------------------------------------------------

    def write(
        self, root: Path, *, segment: int = 7, snapshot: int | None = None, trim: bool = False
    ) -> dict[int, Path]:
        """A disk for each controller. With `snapshot`, those that have so many entries have a snapshot of them, and with `trim` no
        segment that is all before it.
        """
        disks = {}
        for node, log in self.logs.items():
            disk = disks[node] = root / f"disk{node}"
            folder = disk / "__cluster_metadata-0"
            folder.mkdir(parents=True)
            own = uuid_text(bytes([64 + node]) * 16)
            (disk / "meta.properties").write_text(
                f"version=1\ncluster.id={CLUSTER}\nnode.id={node}\ndirectory.id={own}\n"
            )
            offset, start = 0, 0
            for first in range(0, len(log), segment):
                part = log[first : first + segment]
                start, data = offset, b""
                for entry in part:
                    data += entry.data(offset, self.nodes)
                    offset += entry.count
                is_old = snapshot is not None and snapshot <= len(log) and first + segment <= snapshot
                if not (trim and is_old):
                    (folder / f"{start:020d}.log").write_bytes(data)
            if snapshot is not None and 0 < snapshot <= len(log):
                write_checkpoint(Folder(folder), self.state(node, snapshot))
        return disks

    def state(self, node: int, length: int) -> State:
        state = State()
        offset = 0
        for entry in self.logs[node][:length]:
            for record in entry.records() if entry.topic is not None else ():
                state.add(offset, record)
            offset += entry.count
            state.epoch, state.timestamp = entry.epoch, START_MS + offset
        state.end_offset = offset
        return state
