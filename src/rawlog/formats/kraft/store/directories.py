"""The data directories of a rescued cluster: one for each of its brokers, with the partitions placed on them.

Every copy of a partition is the same to the last byte, so every one is in sync, and any may lead.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rawlog.core.errors import OptionError
from rawlog.core.report import Report
from rawlog.formats.kafka.checkpoints import LOG_START
from rawlog.formats.kafka.checkpoints import write as offset_checkpoint
from rawlog.formats.kafka.meanings import LEVELS
from rawlog.formats.kraft.store.blueprint import Blueprint, Topic
from rawlog.formats.kraft.store.state import State
from rawlog.io.output import Folder

HIGH_WATERMARK = "replication-offset-checkpoint"
COPIES = "copies"


@dataclass(frozen=True, slots=True)
class Part:
    """A partition that was written: `folder` has its directory, and maybe more copies of it (see `duplicate`)."""

    topic: str
    partition: int
    folder: str
    end_offset: int = 0
    log_start: int | None = None

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    @classmethod
    def of(cls, topic: str, partition: int, folder: str, report: Report) -> Part:
        """A partition by the report of the one that carried it."""
        return cls(topic, partition, folder, report.facts.get("end_offset", 0), report.facts.get("log_start"))


# Which nodes have what -----------------------------------------------------------------------------------------------------


def node_ids(brokers: int, first: int, old: State | None) -> list[int]:
    """The ids of new brokers: those of the old ones if there are as many, else numbers from `first` on. OptionError for no broker."""
    if brokers < 1:
        raise OptionError(f"{brokers} brokers: at least one is needed")
    if brokers > 1 and first == 1 and old is not None and len(old.brokers) == brokers:
        return sorted(old.brokers)
    return list(range(first, first + brokers))


def replicas_of(topic: str, old: State | None) -> dict[int, list[int]]:
    """The nodes that had the partitions of a topic."""
    key = None if old is None else old.topic_ids.get(topic)
    if old is None or key is None:
        return {}
    return {number: list(one["replicas"]) for number, one in old.topics[key].partitions.items()}


def place_replicas(topic: Topic, nodes: Sequence[int], old: Mapping[int, Sequence[int]], shift: int = 0) -> int:
    """Place the partitions of a topic: where they were, if those nodes exist, else on one node after the other; on how many each is. They
    get as many replicas as they had, if there are as many nodes.
    """
    count = max(1, min(len(nodes), max(map(len, old.values()), default=1)))
    for number in range(topic.partitions):
        before = list(old.get(number, ()))
        if len(before) == count and set(before) <= set(nodes):
            topic.replicas[number] = before
        else:
            first = shift + number
            topic.replicas[number] = [nodes[(first + other) % len(nodes)] for other in range(count)]
    return count


# Writing them ------------------------------------------------------------------------------------------------------------


def duplicate(folder: Folder, name: str, number: int) -> None:
    """Make so many more copies of a partition directory that was written below `folder`; `write_directories` uses them."""
    for copy in range(1, number + 1):
        _copy(folder.path / name, folder.folder(f"{COPIES}/{copy}/{name}"))


def _copy(source: Path, folder: Folder) -> None:
    for file in sorted(source.iterdir()):
        folder.copy(str(file), file.name)
        if not folder.dry_run:
            times = file.stat()  # retention goes by them where records have no time
            os.utime(folder.path / file.name, ns=(times.st_atime_ns, times.st_mtime_ns))


def write_directories(folder: Folder, cluster: Blueprint, parts: Sequence[Part], now: int) -> None:
    """Write the directory of every broker: of a single one into `folder` itself, of several as `broker-<id>` below it. Partitions that
    were written are moved there, and copied where there are not enough copies; what is missing is created empty by the broker.
    """
    homes = {node.id: folder.folder(home(node.id)) if len(cluster.nodes) > 1 else folder for node in cluster.nodes}
    topics = {topic.name: topic for topic in cluster.topics}
    placed: dict[int, list[Part]] = {node.id: [] for node in cluster.nodes}
    for part in parts:
        replicas = cluster.replicas(topics[part.topic], part.partition)
        made = Path(part.folder) / part.name
        for number, node in enumerate(replicas[1:], 1):
            copy = Path(part.folder) / COPIES / str(number) / part.name
            if copy.is_dir():
                homes[node].take(copy, part.name)
            else:
                _copy(made, homes[node].folder(part.name))
        if homes[replicas[0]].path != Path(part.folder):
            homes[replicas[0]].take(made, part.name)
        for node in replicas:
            placed[node].append(part)
    for one in cluster.nodes:
        _write_offsets(homes[one.id], placed[one.id], is_replicated=len(cluster.nodes) > 1)
        cluster.write(homes[one.id], now, one)


def home(node: int) -> str:
    """The name of a broker's directory where there are several."""
    return f"broker-{node}"


def _write_offsets(folder: Folder, parts: Sequence[Part], *, is_replicated: bool) -> None:
    """Write the first offsets that consumers get. Of several brokers also the high watermarks: a leader does not have to wait for others
    to know that all have everything.
    """
    starts = {(one.topic, one.partition): one.log_start for one in parts if one.log_start is not None}
    if starts:
        folder.write(LOG_START, offset_checkpoint(starts))
    if is_replicated:
        folder.write(HIGH_WATERMARK, offset_checkpoint({(one.topic, one.partition): one.end_offset for one in parts}))


# How to start them ---------------------------------------------------------------------------------------------------------

PROPERTIES = ".server.properties"
"""What the name of a file of settings ends with; it begins with that of the data directory."""
FIRST_OF_4 = LEVELS.index("4.0-IV0")


def server_properties(cluster: Blueprint, target: str) -> dict[str, list[str]]:
    """The settings that the broker of each node starts with, by node id. Of several nodes the names of hosts are for the operator to fill
    in.
    """
    many = len(cluster.nodes) > 1
    factor = min(3, len(cluster.nodes))
    hosts = {node.id: f"host-{node.id}" if many else "localhost" for node in cluster.nodes}
    voters = ",".join(f"{number}@{host}:9093" for number, host in hosts.items())
    shared = ["share.coordinator.state.topic"] if cluster.level >= FIRST_OF_4 else []
    return {
        str(node.id): [
            "process.roles=broker,controller",
            f"node.id={node.id}",
            f"listeners=PLAINTEXT://{hosts[node.id]}:9092,CONTROLLER://{hosts[node.id]}:9093",
            "controller.listener.names=CONTROLLER",
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            f"controller.quorum.voters={voters}",
            f"log.dirs={os.path.join(target, home(node.id)) if many else target}",
            f"offsets.topic.replication.factor={factor}",
            *(
                f"{name}.{setting}"
                for name in ("transaction.state.log", *shared)
                for setting in (f"replication.factor={factor}", f"min.isr={min(2, factor)}")
            ),
        ]
        for node in cluster.nodes
    }


def properties_names(nodes: Sequence[int]) -> dict[str, str]:
    """What the names of the files of settings end with, by node id; each begins with that of the target."""
    return {str(node): f".{home(node)}{PROPERTIES}" if len(nodes) > 1 else PROPERTIES for node in nodes}


def properties_file(lines: Sequence[str]) -> str:
    """The text of a file of settings, one on each line. Java reads it as Latin-1, and backslashes as escapes."""
    made = [
        "# Written by `rawlog rescue`. Put in the names of your hosts, and settings of your own. Do not format the directory."
    ]
    for line in lines:
        text = line.replace("\\", "\\\\").encode("utf-16-be", "surrogatepass")
        codes = [int.from_bytes(text[at : at + 2], "big") for at in range(0, len(text), 2)]
        made.append("".join(chr(code) if code < 127 else f"\\u{code:04x}" for code in codes))
    return "\n".join(made) + "\n"


def start_notes(nodes: Sequence[int], target: str) -> list[str]:
    """How the new cluster is started, one line for each node."""
    names = properties_names(nodes).items()
    return [f"start node {node} with its settings: kafka-server-start.sh {target}{name}" for node, name in names]
