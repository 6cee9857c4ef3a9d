"""A real Kafka cluster on loopback that can be made to die in every way: single nodes killed, paused, started again.

Each node is broker and controller, with a static quorum and one or more log directories of its own. Node N has its directories in
`<folder>/<N>/<number>`. A cluster starts on directories that exist, too: those of a test, or what `rawlog rescue` wrote.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.services import free_ports
from tests.services.kafka import BrokerError, KafkaBroker, run_tool

UP_SECONDS = 120

CLUSTER = {
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "1",
    "replica.lag.time.max.ms": "4000",
    "broker.session.timeout.ms": "5000",
    "broker.heartbeat.interval.ms": "1000",
    "replica.fetch.wait.max.ms": "100",  # acks=all waits for it
    "controlled.shutdown.enable": "false",
    "log.cleaner.backoff.ms": "500",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "num.recovery.threads.per.data.dir": "1",
    "num.network.threads": "2",
    "num.io.threads": "4",
}
"""Over the settings of a single broker."""

JUDGE = {"log.cleaner.enable": "false", "log.retention.ms": "-1", "auto.create.topics.enable": "false"}
"""For a broker that is to show its files as they are."""


def new_id() -> str:
    """An id as Kafka writes them: 22 characters of base64."""
    return base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=").replace("-", "x")


class KafkaNode(KafkaBroker):
    """One node of a cluster: its ports and its directories stay the same through its whole life."""

    def __init__(
        self,
        version: str,
        node: int,
        directories: Sequence[Path],
        ports: Mapping[int, tuple[int, int]],
        properties: Mapping[str, str],
    ) -> None:
        super().__init__(version, directories[0], {**properties, "node.id": str(node)})
        self.node, self.directories, self.ports = node, list(directories), dict(ports)
        broker, controller = self.ports[node]
        self.bootstrap = f"127.0.0.1:{broker}"
        self._own = {
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "log.dirs": ",".join(map(str, self.directories)),
            "controller.quorum.voters": ",".join(f"{n}@127.0.0.1:{two[1]}" for n, two in sorted(self.ports.items())),
        }

    def _configure(self) -> None:
        text = "".join(f"{key}={value}\n" for key, value in (self.properties | self._own).items())
        (self._home / "server.properties").write_text(text)

    def launch(self) -> None:
        """Start the process; `wait` waits until it serves, which it does once most of the nodes run."""
        self._configure()
        self._launch()

    def wait(self) -> None:
        """Wait until it serves. BrokerError if it ends before that."""
        self._wait()

    def pause(self) -> None:
        """SIGSTOP: for the others it is as if the machine hung."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT after `pause`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


class KafkaCluster:
    """Nodes 1 to `count`, running inside a `with`. `bootstrap` is for clients; `nodes[N]` is a node.

    `folders` gives the directories of each node where they exist already; all others are formatted here.
    """

    def __init__(
        self,
        version: str,
        folder: Path,
        *,
        count: int = 3,
        disks: int = 1,
        properties: Mapping[str, str] | None = None,
        folders: Mapping[int, Sequence[Path]] | None = None,
    ) -> None:
        self.version, self.folder, self.cluster_id = version, folder, new_id()
        numbers = sorted(folders) if folders else list(range(1, count + 1))
        ports = free_ports(2 * len(numbers))
        self.ports = {node: (ports[2 * at], ports[2 * at + 1]) for at, node in enumerate(numbers)}
        settings = CLUSTER | dict(properties or {})
        self.nodes = {
            node: KafkaNode(
                version,
                node,
                folders[node] if folders else [folder / str(node) / str(disk) for disk in range(disks)],
                self.ports,
                settings,
            )
            for node in numbers
        }
        self.bootstrap = ",".join(node.bootstrap for node in self.nodes.values())

    def __enter__(self) -> Self:
        try:
            self.format()
            self.start(*self.nodes)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self.nodes.values():
            node.kill()
        for node in self.nodes.values():
            node.__exit__(None, None, None)

    @property
    def running(self) -> list[int]:
        """The nodes that have a process."""
        return [number for number, node in self.nodes.items() if node.running]

    def format(self) -> None:
        """Make the directories of a new cluster, unless they exist. Kafka's tool runs once: the nodes differ in their ids alone."""
        new = [node for node in self.nodes.values() if not (node.data_dir / "meta.properties").is_file()]
        if not new:
            return
        first = new[0]
        first._configure()
        for directory in first.directories:
            directory.mkdir(parents=True, exist_ok=True)
        properties = str(first._home / "server.properties")
        run_tool(self.version, "kafka.tools.StorageTool", "format", "-t", self.cluster_id, "-c", properties)
        for node in new[1:]:
            for directory in node.directories:
                shutil.copytree(first.data_dir, directory)
                about = f"version=1\ncluster.id={self.cluster_id}\nnode.id={node.node}\ndirectory.id={new_id()}\n"
                (directory / "meta.properties").write_text(about)

    def start(self, *numbers: int) -> None:
        """Start these nodes and wait until they serve."""
        for number in numbers:
            self.nodes[number].launch()
        for number in numbers:
            self.nodes[number].wait()

    def kill(self, *numbers: int) -> None:
        """`kill -9`, one after the other, without a pause; all nodes if none is named."""
        for number in numbers or tuple(self.nodes):
            self.nodes[number].kill()

    def admin(self) -> Any:
        """An AdminClient for the nodes that run."""
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.alive(), "socket.timeout.ms": 10_000, "log_level": 0})

    def alive(self) -> str:
        """The addresses of the nodes that run."""
        return ",".join(self.nodes[number].bootstrap for number in self.running)

    def wait_until(self, what: str, holds: Callable[[], bool], seconds: float = UP_SECONDS) -> None:
        """Ask again until it holds; BrokerError after `seconds`. Errors of clients mean "not yet"."""
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + seconds
        while True:
            try:
                if holds():
                    return
            except KafkaException:
                pass
            if time.monotonic() > deadline:
                tails = "\n\n".join(f"node {n}: {self.nodes[n].output_tail(15)}" for n in self.running)
                raise BrokerError(f"Kafka {self.version}: {what} did not happen in {seconds} s\n{tails}")
            time.sleep(0.2)

    def partitions(
        self, topics: Sequence[str] | None = None
    ) -> dict[tuple[str, int], tuple[int, list[int], list[int]]]:
        """(leader or -1, in-sync replicas, replicas) of each partition, as the running nodes tell it."""
        found = self.admin().list_topics(timeout=10).topics
        return {
            (name, number): (one.leader, sorted(one.isrs), list(one.replicas))
            for name, topic in found.items()
            if topics is None or name in topics
            for number, one in topic.partitions.items()
        }

    def wait_for_leaders(self, topics: Sequence[str] | None = None) -> None:
        """Until each partition that has a replica on a running node has a leader, and that is one of them."""

        def holds() -> bool:
            running = set(self.running)
            found = self.partitions(topics)
            return bool(found) and all(
                leader in running for leader, isr, _ in found.values() if running.intersection(isr)
            )

        self.wait_until("an election", holds)

    def wait_in_sync(self, topics: Sequence[str] | None = None) -> None:
        """Until all replicas on running nodes are in sync."""

        def holds() -> bool:
            running = set(self.running)
            return all(set(replicas) & running <= set(isr) for _, isr, replicas in self.partitions(topics).values())

        self.wait_until("replication", holds)

    def move(self, node: int, topic: str, partition: int, directory: Path) -> None:
        """AlterReplicaLogDirs: move a replica to another directory of its broker. The Python client cannot ask for it."""
        name, path, client = topic.encode(), str(directory).encode(), b"tests"
        body = struct.pack(">hhih", 34, 1, 7, len(client)) + client
        body += struct.pack(">ih", 1, len(path)) + path + struct.pack(">ih", 1, len(name)) + name
        body += struct.pack(">ii", 1, partition)
        (code,) = struct.unpack(">h", self._ask(node, body)[-2:])
        if code:
            raise BrokerError(f"AlterReplicaLogDirs of {topic}-{partition} on node {node}: error {code}")

    def lead(self, topic: str, partition: int, node: int) -> None:
        """Make a node the leader of a partition, while all nodes run: it becomes the first of the replicas, and those are preferred."""
        from confluent_kafka import ElectionType, KafkaException, TopicPartition

        _, _, replicas = self.partitions([topic])[topic, partition]
        order = [node, *(one for one in replicas if one != node)]
        name, client = topic.encode(), b"tests"
        body = struct.pack(">hhih", 45, 0, 7, len(client)) + client + b"\0"  # AlterPartitionReassignments
        body += struct.pack(">iBB", 30_000, 2, len(name) + 1) + name + struct.pack(">BiB", 2, partition, len(order) + 1)
        body += struct.pack(f">{len(order)}i", *order) + bytes(3)
        self._ask(node, body)

        def holds() -> bool:
            chosen, admin = [TopicPartition(topic, partition)], self.admin()
            try:
                admin.elect_leaders(ElectionType.PREFERRED, chosen).result(30)
            except KafkaException:
                return False
            return self.partitions([topic])[topic, partition][0] == node

        self.wait_until(f"node {node} as the leader of {topic}-{partition}", holds)

    def _ask(self, node: int, body: bytes) -> bytes:
        """Send a request of one's own to a node; the response."""
        with socket.create_connection(("127.0.0.1", self.ports[node][0]), timeout=30) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            answer = connection.makefile("rb")
            (size,) = struct.unpack(">i", answer.read(4))
            return answer.read(size)
