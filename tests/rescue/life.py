"""The life and death of a random cluster: what is written to it, what happens to it, and how it dies. Imports nothing of rawlog.

`live(folder, seed, version)` leaves `disks/<node>/<disk>` as `kill -9` left them, and `journal.json`: every record that was sent, with what
was acknowledged. Random choices come from the seed; the moments at which things happen are the machine's, so a seed gives the same kind of
life and not the same bytes. The directory of a life can be kept and judged again.
"""

from __future__ import annotations

import json
import random
import threading
import time
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.services.cluster import KafkaCluster

ENDS = ("together", "stale", "divergent", "unclean")
TRANSACTION_MS = 900_000
"""Longer than any life and judgement: who waits for the end of an open transaction waits in vain."""


@dataclass
class Sent:
    """A record that was sent. `acks` is 1 or -1; `transaction` the number of its transaction; `offset` once acknowledged."""

    topic: str
    generation: int
    value: str
    acks: int
    transaction: int | None = None
    partition: int = -1
    offset: int | None = None
    acked: bool = False
    error: str = ""


@dataclass
class Journal:
    """What the clients know of the cluster."""

    version: str
    seed: int
    end: str
    topics: dict[str, dict[str, Any]] = field(default_factory=dict)
    sent: list[Sent] = field(default_factory=list)
    outcomes: dict[int, str] = field(default_factory=dict)
    committed: list[tuple[str, str, int, int]] = field(default_factory=list)  # group, topic, partition, offset
    events: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)

    def save(self, path: Path) -> None:
        """Write it. A thread that waits for a dead cluster may still write to the original."""
        kept = Journal(self.version, self.seed, self.end)
        for name in ("topics", "outcomes", "sent", "committed", "events", "replaced", "deleted"):
            setattr(kept, name, getattr(self, name).copy())
        path.write_text(json.dumps(asdict(kept), indent=1))

    @classmethod
    def load(cls, path: Path) -> Journal:
        raw = json.loads(path.read_text())
        raw["sent"] = [Sent(**one) for one in raw["sent"]]
        raw["outcomes"] = {int(number): outcome for number, outcome in raw["outcomes"].items()}
        raw["committed"] = [tuple(one) for one in raw["committed"]]
        return cls(**raw)


class Clients:
    """Producers, transactions and groups that write down what they did. One per thread: the journal's lists only grow."""

    def __init__(self, cluster: KafkaCluster, journal: Journal, seed: int) -> None:
        self.cluster, self.journal, self.chance = cluster, journal, random.Random(seed)
        self.producers: dict[tuple[int, str, bool], Any] = {}
        self.numbers = seed * 1_000_000

    def producer(self, acks: int, codec: str, idempotent: bool) -> Any:
        from confluent_kafka import Producer

        key = (acks, codec, idempotent)
        if key not in self.producers:
            settings = {
                "bootstrap.servers": self.cluster.bootstrap,
                "acks": acks,
                "compression.type": codec,
                "enable.idempotence": idempotent,
                "linger.ms": self.chance.choice([0, 5, 20]),
                "batch.num.messages": self.chance.choice([3, 10, 100]),
                "message.timeout.ms": 30_000,
                "request.timeout.ms": 6_000,
                "reconnect.backoff.max.ms": 1_000,
                "sticky.partitioning.linger.ms": 0,
                "log_level": 0,
            }
            if acks == 1:
                settings["message.timeout.ms"] = 8_000
            self.producers[key] = Producer(settings)
        return self.producers[key]

    def make(self, topic: str, acks: int, transaction: int | None = None) -> tuple[Sent, dict[str, Any]]:
        self.numbers += 1
        chance = self.chance
        about = self.journal.topics[topic]
        filling = uuid.UUID(int=chance.getrandbits(128)).hex * chance.choice([0, 1, 1, 3, 10])
        value = f"{self.journal.seed}.{self.numbers}|{filling}"
        key = f"k{chance.randrange(12)}" if about["compact"] else chance.choice([None, "", f"k{chance.randrange(99)}"])
        record = Sent(topic, about["generation"], value, acks, transaction, chance.randrange(about["partitions"]))
        headers = [("h", b"1"), ("h", None), ("n", str(self.numbers).encode())] if chance.random() < 0.3 else None
        message = {"key": key, "value": value, "partition": record.partition, "headers": headers}
        if chance.random() < 0.2:
            message["timestamp"] = int(time.time() * 1000) - chance.randrange(100_000_000)
        if headers is None:
            del message["headers"]
        return record, message

    def send(self, producer: Any, topic: str, count: int, acks: int, transaction: int | None = None) -> None:
        for _ in range(count):
            record, message = self.make(topic, acks, transaction)
            self.journal.sent.append(record)

            def delivered(error: Any, answer: Any, record: Sent = record) -> None:
                record.error = str(error) if error else ""
                record.acked = not error
                if not error and answer.offset() is not None and answer.offset() >= 0:
                    record.offset = answer.offset()

            while True:
                try:
                    producer.produce(topic, on_delivery=delivered, **message)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.poll(0)

    def write(self, topic: str, count: int, acks: int = -1, seconds: float = 40) -> None:
        """Send and wait for the answers."""
        idempotent = acks == -1 and self.chance.random() < 0.7
        producer = self.producer(acks, self.chance.choice(["none", "lz4", "zstd", "gzip", "snappy"]), idempotent)
        self.send(producer, topic, count, acks)
        producer.flush(seconds)

    def transact(self, name: str, topics: list[str], outcomes: list[str], group: str | None = None) -> Any:
        """Transactions of one transactional id, one after the other; a last outcome `open` is left so. Gives the producer."""
        from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

        producer = Producer(
            {
                "bootstrap.servers": self.cluster.bootstrap,
                "transactional.id": name,
                "transaction.timeout.ms": TRANSACTION_MS,
                "linger.ms": 5,
                "compression.type": self.chance.choice(["none", "lz4", "zstd"]),
                "reconnect.backoff.max.ms": 1_000,
                "log_level": 0,
            }
        )
        number = -1
        try:
            producer.init_transactions(40)
            for outcome in outcomes:
                number = hash_of(name, len(self.journal.outcomes))
                self.journal.outcomes[number] = "unknown"
                producer.begin_transaction()
                for topic in topics:
                    self.send(producer, topic, self.chance.randint(1, 6), -1, number)
                pending = []
                if group is not None:
                    topic = self.chance.choice(topics)
                    place = self.chance.randrange(self.journal.topics[topic]["partitions"])
                    offset = self.chance.randrange(20)
                    consumer = Consumer(
                        {"bootstrap.servers": self.cluster.bootstrap, "group.id": group, "log_level": 0}
                    )
                    try:
                        wanted = [TopicPartition(topic, place, offset)]
                        producer.send_offsets_to_transaction(wanted, consumer.consumer_group_metadata(), 40)
                    finally:
                        consumer.close()
                    pending = [(group, topic, place, offset)]
                producer.flush(30)
                if outcome == "commit":
                    producer.commit_transaction(40)
                    self.journal.committed += pending
                elif outcome == "abort":
                    producer.abort_transaction(40)
                self.journal.outcomes[number] = outcome
        except KafkaException as error:
            self.journal.events.append(f"transaction {number} of {name}: {error}")
        return producer

    def commit(self, group: str, topic: str, partition: int, offset: int) -> None:
        """Commit an offset of a group without members."""
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        settings = {"bootstrap.servers": self.cluster.bootstrap, "group.id": group, "log_level": 0}
        consumer = Consumer(settings | {"enable.auto.commit": False})
        try:
            done = consumer.commit(offsets=[TopicPartition(topic, partition, offset)], asynchronous=False)
            if not any(one.error for one in done):
                self.journal.committed.append((group, topic, partition, offset))
        except KafkaException as error:
            self.journal.committed.append((group, topic, partition, -1))  # sent, and perhaps written
            self.journal.events.append(f"commit of {group}: {error}")
        finally:
            consumer.close()

    def flush(self, seconds: float = 30) -> None:
        for producer in self.producers.values():
            producer.flush(seconds)


def hash_of(name: str, count: int) -> int:
    return sum(map(ord, name)) * 1000 + count


class Load(threading.Thread):
    """Writes to topics until it is stopped, whatever happens to the nodes."""

    def __init__(self, clients: Clients, topics: list[str]) -> None:
        super().__init__(daemon=True)
        self.clients, self.topics, self.is_over = clients, topics, threading.Event()
        self.start()

    def run(self) -> None:
        clients, chance = self.clients, self.clients.chance
        while not self.is_over.is_set():
            acks = chance.choice([-1, -1, -1, 1])
            codec = chance.choice(["none", "lz4", "zstd"])
            producer = clients.producer(acks, codec, acks == -1 and chance.random() < 0.7)
            if len(producer) < 200:
                clients.send(producer, chance.choice(self.topics), chance.randint(1, 8), acks)
            for one in list(clients.producers.values()):
                one.poll(0)
            self.is_over.wait(chance.choice([0.0, 0.01, 0.05]))

    def finish(self, seconds: float = 30) -> None:
        """Stop, and wait for the answers that still come."""
        self.is_over.set()
        self.join()
        self.clients.flush(seconds)


class Life:
    """One cluster from its start to its death. `small`: quick, for CI."""

    def __init__(self, folder: Path, seed: int, version: str, end: str | None = None, small: bool = False) -> None:
        self.chance = random.Random(seed)
        self.folder, self.small = folder, small
        self.end = end or self.chance.choice(ENDS)
        self.disks = 2 if small or self.chance.random() < 0.5 else 1
        self.journal = Journal(version, seed, self.end)
        properties = {"replica.fetch.max.bytes": "4096"}  # a move between disks is fetched in as small pieces
        if self.chance.random() < 0.4:
            properties |= {
                "metadata.log.max.record.bytes.between.snapshots": "3000",
                "metadata.log.segment.ms": "8000",
                "metadata.max.retention.bytes": "20000",
            }
        self.cluster = KafkaCluster(version, folder / "disks", disks=self.disks, properties=properties)
        self.clients = Clients(self.cluster, self.journal, 1)
        self.open: list[Any] = []

    def run(self) -> Journal:
        """Live and die."""
        begun = time.monotonic()
        with self.cluster:
            self.note("started")
            self.create_topics()
            self.write_first()
            if self.disks > 1:
                self.begin_move()
            if not self.small and self.chance.random() < 0.7:
                self.roll()
            getattr(self, f"end_{self.end}")()
            self.note(f"dead after {time.monotonic() - begun:.0f} s")
        self.open.clear()
        self.journal.save(self.folder / "journal.json")
        return self.journal

    def note(self, text: str) -> None:
        self.journal.events.append(text)

    # Topics ------------------------------------------------------------------------------------------------------

    def create_topics(self) -> None:
        chance = self.chance
        nodes = list(self.cluster.nodes)
        chance.shuffle(nodes)
        #: The node that stays down at the end, if one does.
        self.victim, self.other, self.third = nodes
        small = "segment.bytes" if self.cluster.version.startswith("3.") else "internal.segment.bytes"
        segments = {small: str(chance.choice([16384, 40000]))}

        def replicas(count: int) -> list[list[int]]:
            return [chance.sample(nodes, count) for _ in range(chance.randint(1, 2 if self.small else 3))]

        wanted = {
            "three": (replicas(3), {"min.insync.replicas": chance.choice("12"), **segments}),
            "two": (replicas(2), {"min.insync.replicas": "1", **segments}),
            "one": ([[node] for node in nodes], segments),
            "compacted": (replicas(3), {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", **segments}),
            "exact": (replicas(3), {"min.insync.replicas": chance.choice("12"), **segments}),
            "gone": (replicas(3), {}),
            "again": (replicas(3), {}),
            "split": ([[self.victim, self.other, self.third]], {"min.insync.replicas": chance.choice("12")}),
            "unclean": ([[self.victim, self.other]], {"unclean.leader.election.enable": "true"}),
            "moved": ([[self.victim, self.other], [self.other, self.third]], segments),
        }
        self.make_topics(wanted)

    def make_topics(self, wanted: dict[str, tuple[list[list[int]], dict[str, str]]]) -> None:
        from confluent_kafka.admin import NewTopic

        new = []
        for name, (replicas, config) in wanted.items():
            made = self.journal.topics.get(name, {"generation": -1})
            self.journal.topics[name] = {
                "partitions": len(replicas),
                "compact": config.get("cleanup.policy") == "compact",
                "generation": made["generation"] + 1,
                "config": config,
                "replicas": replicas,
            }
            new.append(NewTopic(name, len(replicas), replica_assignment=replicas, config=config))
        self._create(new)
        self.cluster.wait_for_leaders(list(wanted))

    def _create(self, new: list[Any]) -> None:
        """Create topics. Asked again if the client lost the broker that it asked: a topic that exists then was created."""
        from confluent_kafka import KafkaError, KafkaException

        for attempt in range(5):
            lost = []
            admin = self.cluster.admin()
            for topic, done in zip(new, admin.create_topics(new).values(), strict=True):
                try:
                    done.result(60)
                except KafkaException as error:
                    code = error.args[0].code()
                    if code == KafkaError.TOPIC_ALREADY_EXISTS and attempt:
                        continue
                    if code >= 0 or attempt == 4:  # those of the client are below 0
                        raise
                    lost.append(topic)
            if not lost:
                return
            new = lost

    def replace_topics(self) -> None:
        """One topic is deleted, another deleted and created again; what is down keeps the old directories."""
        admin = self.cluster.admin()
        for done in admin.delete_topics(["gone", "again"], operation_timeout=30).values():
            done.result(60)
        self.journal.deleted.append("gone")
        self.journal.replaced.append("again")
        about = self.journal.topics.pop("gone")
        self.journal.topics["gone (deleted)"] = about
        alive = self.cluster.running
        self.cluster.wait_until("deletion", lambda: not self.cluster.partitions(["gone", "again"]))
        self.make_topics({"again": ([self.chance.sample(alive, 2)], {})})
        self.clients.write("again", self.chance.randint(1, 20))
        self.note("gone deleted, again created again")

    # What happens ------------------------------------------------------------------------------------------------

    def write_first(self) -> None:
        chance, clients = self.chance, self.clients
        most = 60 if self.small else 400
        for topic in self.journal.topics:
            for _ in range(chance.randint(1, 3)):
                clients.write(topic, chance.randint(5, most), chance.choice([-1, -1, -1, 1]))
        for _ in range(3):
            clients.write("compacted", most, -1)
        outcomes = [chance.choice(["commit", "abort"]) for _ in range(3 if self.small else 8)]
        clients.transact("first", ["exact", "three"], [*outcomes, "commit"], "group-t")
        self.open.append(clients.transact("hanging", ["exact", "one"], ["commit", "open"], "group-t"))
        for number in range(4 if self.small else 10):
            topic = chance.choice(["three", "two", "one", "exact"])
            place = chance.randrange(self.journal.topics[topic]["partitions"])
            clients.commit(f"group-{number % 3}", topic, place, chance.randrange(20))
        clients.write("exact", 10, -1)  # after the open transaction
        self.note("first records")

    def begin_move(self) -> None:
        """A replica on its way from one disk to another, slowly."""
        from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

        self.clients.write("moved", 150, -1)
        node = self.chance.choice([self.victim, self.other])
        admin = self.cluster.admin()
        entry = ConfigEntry(
            "replica.alter.log.dirs.io.max.bytes.per.second", "1", incremental_operation=AlterConfigOpType.SET
        )
        throttle = ConfigResource(ResourceType.BROKER, str(node), incremental_configs=[entry])
        for done in admin.incremental_alter_configs([throttle]).values():
            done.result(30)
        directories = self.cluster.nodes[node].directories
        at = next(one for one in directories if (one / "moved-0").is_dir())
        time.sleep(0.5)
        self.cluster.move(node, "moved", 0, next(one for one in directories if one != at))
        target = next(one for one in directories if one != at)
        self.cluster.wait_until(
            "a move", lambda: bool(list(target.glob("moved-0.*-future"))) or (target / "moved-0").is_dir()
        )
        self.note(f"moved-0 moves on node {node}")

    def roll(self) -> None:
        """Nodes are killed and started again under load: leaders change."""
        load = Load(Clients(self.cluster, self.journal, 2), ["three", "two", "compacted", "exact"])
        for number in self.chance.sample(list(self.cluster.nodes), self.chance.randint(1, 2)):
            time.sleep(self.chance.random())
            self.cluster.kill(number)
            self.cluster.wait_for_leaders()
            time.sleep(self.chance.random())
            self.cluster.start(number)
            self.cluster.wait_in_sync()
            self.note(f"node {number} killed and started")
        load.finish()

    def die(self, load: Load | None = None) -> None:
        """All nodes that run, in any order, at any moment, some with a pause between them."""
        numbers = self.cluster.running
        self.chance.shuffle(numbers)
        long = self.chance.random() < 0.3 and not self.small
        time.sleep(self.chance.random() * (0.5 if self.small else 2))
        stopped = numbers[0] if self.chance.random() < 0.2 else None
        for number in numbers:
            if number == stopped:  # one that had the time to stop
                self.cluster.nodes[number].stop()
                self.note(f"node {number} stopped")
            else:
                self.cluster.kill(number)
            time.sleep(self.chance.choice([0, 0.01, 0.1, 8 if long else 0.3]))
        if load is not None:
            load.is_over.set()
            load.join()
            for producer in load.clients.producers.values():
                producer.poll(0)
                producer.purge()
                producer.poll(0.1)
        self.note(f"killed in the order {numbers}")

    def last_load(self) -> Load:
        return Load(Clients(self.cluster, self.journal, 3), ["three", "two", "one", "compacted", "exact", "again"])

    def last_transactions(self) -> None:
        """On their way when the cluster dies: the answers may never come."""
        outcomes = [self.chance.choice(["commit", "abort"]) for _ in range(200)]
        arguments = ("last", ["exact", "three", "two"], outcomes, "group-u")
        clients, before = Clients(self.cluster, self.journal, 4), len(self.journal.outcomes)
        threading.Thread(target=clients.transact, args=arguments, daemon=True).start()
        deadline = time.monotonic() + 15
        while len(self.journal.outcomes) < before + 2 and time.monotonic() < deadline:
            time.sleep(0.05)

    # How it ends -------------------------------------------------------------------------------------------------

    def end_together(self) -> None:
        load = self.last_load()
        self.last_transactions()
        self.die(load)

    def end_stale(self) -> None:
        """One node dies first; what is acknowledged after that is not on its disks."""
        self.cluster.kill(self.victim)
        self.cluster.wait_for_leaders()
        self.replace_topics()
        for topic in ("three", "two", "exact", "split"):
            self.clients.write(topic, self.chance.randint(5, 80), -1)
        self.clients.transact("later", ["exact"], ["commit", "abort"], "group-t")
        load = self.last_load()
        self.last_transactions()
        self.die(load)

    def end_divergent(self) -> None:
        """The leader takes records that nobody copies, dies, and another one takes its place."""
        lone = Clients(self.cluster, self.journal, 5)
        producer = lone.producer(1, "none", False)
        for topic in ("split", "three", "exact"):  # connected before the others hang
            lone.send(producer, topic, 4, 1)
        lone.flush(10)
        time.sleep(0.5)
        for number in (self.other, self.third):
            self.cluster.nodes[number].pause()
        for topic in ("split", "three", "exact"):
            lone.send(producer, topic, self.chance.randint(5, 40), 1)
        lone.flush(2)
        self.cluster.kill(self.victim)
        for number in (self.other, self.third):
            self.cluster.nodes[number].resume()
        self.cluster.wait_for_leaders()
        lone.flush(10)
        self.note("divergent tail")
        for topic in ("split", "three"):
            self.clients.write(topic, self.chance.randint(1, 30), -1)
        if self.chance.random() < 0.5:
            self.replace_topics()
        load = self.last_load()
        self.last_transactions()
        self.die(load)

    def end_unclean(self) -> None:
        """The only node with acknowledged records dies; one without them becomes leader."""
        self.cluster.kill(self.other)
        self.cluster.wait_until(
            "a smaller in-sync set", lambda: self.cluster.partitions(["unclean"])["unclean", 0][1] == [self.victim]
        )
        self.clients.write("unclean", self.chance.randint(5, 40), -1)
        self.cluster.kill(self.victim)
        self.cluster.start(self.other)
        self.cluster.wait_for_leaders()
        self.cluster.wait_until(
            "an unclean election", lambda: self.cluster.partitions(["unclean"])["unclean", 0][0] == self.other
        )
        self.clients.write("unclean", self.chance.randint(1, 20), -1)
        self.note("unclean election")
        load = self.last_load()
        self.last_transactions()
        self.die(load)


def live(folder: Path, seed: int, version: str, end: str | None = None, small: bool = False) -> Journal:
    """A cluster below `folder`, from start to death."""
    folder.mkdir(parents=True, exist_ok=True)
    return Life(folder, seed, version, end, small).run()
