"""The cluster that restored directories start as: its nodes, topics and settings, as the records of a bootstrap file.

Some settings of the old cluster would harm the new one, which has fewer brokers and old data; they are left out or changed, and each of
them is reported.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rawlog.formats.kafka.checkpoints import LOG_START, checkpoint_text
from rawlog.formats.kafka.cluster.metadata import KRAFT_VERSION, METADATA_VERSION, NO_LEADER
from rawlog.formats.kafka.cluster.state import State
from rawlog.formats.kafka.cluster.writer import (
    Record,
    checkpoint_name,
    encode_bootstrap,
    encode_checkpoint,
    framed_records,
)
from rawlog.formats.kafka.internal.codec import uuid_bytes, uuid_text
from rawlog.formats.kafka.internal.messages import CONSUMER_OFFSETS, LEVELS, SHARE_STATE, TRANSACTION_STATE
from rawlog.formats.kafka.paths import BOOTSTRAP, METADATA_DIRECTORY
from rawlog.io.output import Folder
from rawlog.model.errors import OptionError
from rawlog.model.report import Report
from rawlog.model.text import whole_number

DEFAULT_LEVEL = 21
"""metadata.version 3.9-IV0, which brokers of 3.9 and of 4.x start on."""
TOPIC, BROKER, BROKER_LOGGER, GROUP, CLIENT_METRICS = 2, 4, 8, 32, 16
LITERAL = 3
FIRST_EPOCH = 1
#: The metadata.version from which on partitions have eligible leader replicas.
ELIGIBLE_LEVEL = 23
PRODUCER_BLOCK = 1000
NO_LIMIT = "-1"
INTERNAL_CONFIGS = {
    CONSUMER_OFFSETS: {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": "104857600"},
    TRANSACTION_STATE: {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "segment.bytes": "104857600",
        "unclean.leader.election.enable": "false",
    },
    SHARE_STATE: {
        "cleanup.policy": "delete",
        "compression.type": "none",
        "retention.ms": NO_LIMIT,
        "segment.bytes": "104857600",
    },
}
"""What a broker creates its own topics with."""
DROPPED = {
    "min.insync.replicas": "there are fewer replicas: producers that wait for all would wait forever",
    "remote.storage.enable": "a new broker has no tiered storage",
    "remote.log.copy.disable": "a new broker has no tiered storage",
    "remote.log.delete.on.disable": "a new broker has no tiered storage",
    "local.retention.ms": "a new broker has no tiered storage",
    "local.retention.bytes": "a new broker has no tiered storage",
    "leader.replication.throttled.replicas": "it names replicas that do not exist",
    "follower.replication.throttled.replicas": "it names replicas that do not exist",
    "message.format.version": "newer brokers do not know it",
}

HARMLESS = {"min.insync.replicas": "1", "remote.storage.enable": "false"}


@dataclass(frozen=True, slots=True)
class NewBroker:
    """A broker of the new cluster, which is also a controller, and the id of its log directory."""

    id: int
    directory_id: bytes = field(default_factory=lambda: new_id())


@dataclass(slots=True)
class NewTopic:
    """A topic of the new cluster; `source` is its name in the old one. `epochs` are the leader epochs of its partitions, and `replicas`
    the nodes that have them; without any, the first node has all.
    """

    name: str
    source: str
    id: bytes
    partitions: int
    configs: dict[str, str] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    replicas: dict[int, list[int]] = field(default_factory=dict)

    @property
    def is_internal(self) -> bool:
        return self.source in INTERNAL_CONFIGS


@dataclass(slots=True)
class Blueprint:
    """A cluster that does not exist yet. `old` is the state whose settings it takes over."""

    nodes: Sequence[NewBroker]
    cluster_id: str
    topics: Sequence[NewTopic]
    old: State | None = None
    level: int = DEFAULT_LEVEL
    next_producer_id: int = 0
    #: Users, access, quotas and groups of the old cluster are taken over as well.
    whole: bool = True

    def replicas(self, topic: NewTopic, number: int) -> list[int]:
        """The nodes that have a partition, its leader first."""
        return topic.replicas.get(number) or [self.nodes[0].id]

    def write(self, folder: Folder, timestamp: int, node: NewBroker | None = None) -> None:
        """Write `meta.properties`, the metadata and the mark of a clean stop into the directory of a node, by default the first one.

        A single node starts from `bootstrap.checkpoint`. Of several, one would write that to the log, and a broker that asks for the
        metadata before it is there takes all its partitions for strays (seen on 3.9.2): so each has the same snapshot of the log.
        """
        node = self.nodes[0] if node is None else node
        if len(self.nodes) == 1:
            with folder.create(BOOTSTRAP) as file:
                file.writelines(encode_bootstrap(self.level, self.records(), timestamp=timestamp))
        else:
            records = list(framed_records(self.level, self.records()))
            with folder.create(f"{METADATA_DIRECTORY}/{checkpoint_name(len(records), FIRST_EPOCH)}") as file:
                file.writelines(encode_checkpoint(records, FIRST_EPOCH, timestamp))
        text = (
            f"version=1\ncluster.id={self.cluster_id}\nnode.id={node.id}\ndirectory.id={uuid_text(node.directory_id)}\n"
        )
        folder.write("meta.properties", text)
        folder.write(".kafka_cleanshutdown", '{"version":0,"brokerEpoch":-1}')

    def records(self) -> Iterator[Record]:
        """What the new cluster's log begins with, after its metadata.version."""
        if self.old is not None:
            for name, level in sorted(self.old.features.items()):
                if name not in (METADATA_VERSION, KRAFT_VERSION) and level > 0 and self.level == self.old.level:
                    yield "FeatureLevelRecord", None, {"name": name, "featureLevel": level}
        for topic in self.topics:
            yield "TopicRecord", None, {"name": topic.name, "topicId": topic.id}
            for number in range(topic.partitions):
                yield "PartitionRecord", None, self._partition(topic, number)
        for topic in self.topics:
            for name, value in sorted(topic.configs.items()):
                yield "ConfigRecord", None, _config(TOPIC, topic.name, name, value)
        if self.old is not None and self.whole:
            yield from self._settings(self.old)
        if self.next_producer_id > 0:
            message = {"brokerId": -1, "brokerEpoch": -1, "nextProducerId": self.next_producer_id}
            yield "ProducerIdsRecord", None, message

    def _partition(self, topic: NewTopic, number: int) -> dict[str, object]:
        replicas = self.replicas(topic, number)
        fields: dict[str, object] = {
            "partitionId": number,
            "topicId": topic.id,
            "replicas": replicas,
            "isr": replicas,
            "removingReplicas": [],
            "addingReplicas": [],
            "leader": replicas[0] if self._names_leaders else NO_LEADER,
            "leaderEpoch": topic.epochs.get(number, 0),
            "partitionEpoch": 0,
        }
        if self.level >= 17:
            directories = {node.id: node.directory_id for node in self.nodes}
            fields["directories"] = [directories[node] for node in replicas]
        return fields

    @property
    def _names_leaders(self) -> bool:
        """Whether partitions begin with a leader, or their controller elects one when a broker is up.

        Without eligible leader replicas a follower that learns of its leader before that one is up never fetches from it, until a new
        epoch begins. With them, a controller takes brokers that it does not know for crashed, removes them all from those in sync, and
        then elects the last leader: there must be one.
        """
        return len(self.nodes) == 1 or self.level >= ELIGIBLE_LEVEL

    def _settings(self, old: State) -> Iterator[Record]:
        """Users, access, quotas, tokens, and the settings of groups and client metrics."""
        names = {topic.source: topic.name for topic in self.topics}
        kinds = ("ClientQuotaRecord", "AccessControlEntryRecord", "UserScramCredentialRecord", "DelegationTokenRecord")
        for name, version, message in old.image():
            if name == "ConfigRecord" and message["resourceType"] in (GROUP, CLIENT_METRICS):
                yield name, version, message
            elif name in kinds:
                is_topic = name == "AccessControlEntryRecord" and message["resourceType"] == TOPIC
                if is_topic and message["patternType"] == LITERAL and message["resourceName"] in names:
                    message = {**message, "resourceName": names[message["resourceName"]]}
                yield name, version, message


def _config(kind: int, resource: str, name: str, value: str) -> dict[str, object]:
    return {"resourceType": kind, "resourceName": resource, "name": name, "value": value}


def settings_of_brokers(old: State) -> list[str]:
    """The names of settings of brokers that the old cluster had and the new one does not get."""
    kinds = (BROKER, BROKER_LOGGER)
    names = {
        name
        for (kind, _), settings in old.configs.items()
        for name, value in settings.items()
        if kind in kinds and value != HARMLESS.get(name)
    }
    return sorted(names)


def new_id() -> bytes:
    """A random id that Kafka accepts: not a reserved one, and its text does not begin with a dash."""
    while True:
        raw = os.urandom(16)
        if any(raw[:8]) and not uuid_text(raw).startswith("-"):
            return raw


def is_id(text: str) -> bool:
    """Whether a text is an id as Kafka writes it."""
    try:
        return len(text) == 22 and len(uuid_bytes(text)) == 16
    except (ValueError, base64.binascii.Error):  # type: ignore[attr-defined]
        return False


def safe_configs(
    topic: str, configs: Mapping[str, str], *, keep_retention: bool, replicas: int = 1
) -> tuple[dict[str, str], list[str]]:
    """The settings of a topic in its new cluster, where partitions have so many replicas, and a note on each that has changed.

    Old data must survive: unless `keep_retention` is set, nothing is deleted by age or size any more.
    """
    settings, notes = dict(configs), []
    for name, why in DROPPED.items():
        if name in settings and settings[name] != HARMLESS.get(name) and not _fits(name, settings[name], replicas):
            notes.append(f"topic {topic}: {name}={settings.pop(name)} is left out: {why}")
    deletes = "delete" in settings.get("cleanup.policy", "delete")
    if not keep_retention and deletes:
        for name in ("retention.ms", "retention.bytes"):
            if settings.get(name, NO_LIMIT) != NO_LIMIT:
                notes.append(
                    f"topic {topic}: {name} was {settings[name]}, is {NO_LIMIT} now, so that no old record is deleted"
                )
                settings[name] = NO_LIMIT
        settings["retention.ms"] = NO_LIMIT
    return settings, notes


def _fits(name: str, value: str, replicas: int) -> bool:
    """Whether the new cluster has as many replicas as a setting asks for."""
    number = whole_number(value)
    return name == "min.insync.replicas" and number is not None and number <= replicas


# ----------------------------------------------------------------------------------------------------------------------
# The data directories of a rescued cluster: one for each of its brokers, with the partitions placed on them.
# Every copy of a partition is the same to the last byte, so every one is in sync, and any may lead.


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
    return {number: list(partition["replicas"]) for number, partition in old.topics[key].partitions.items()}


def place_replicas(topic: NewTopic, nodes: Sequence[int], old: Mapping[int, Sequence[int]], shift: int = 0) -> int:
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
            topic.replicas[number] = [nodes[(first + step) % len(nodes)] for step in range(count)]
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
        written = Path(part.folder) / part.name
        for number, node in enumerate(replicas[1:], 1):
            copy = Path(part.folder) / COPIES / str(number) / part.name
            if copy.is_dir():
                homes[node].take(copy, part.name)
            else:
                _copy(written, homes[node].folder(part.name))
        if homes[replicas[0]].path != Path(part.folder):
            homes[replicas[0]].take(written, part.name)
        for node in replicas:
            placed[node].append(part)
    for broker in cluster.nodes:
        _write_offsets(homes[broker.id], placed[broker.id], is_replicated=len(cluster.nodes) > 1)
        cluster.write(homes[broker.id], now, broker)


def home(node: int) -> str:
    """The name of a broker's directory where there are several."""
    return f"broker-{node}"


def _write_offsets(folder: Folder, parts: Sequence[Part], *, is_replicated: bool) -> None:
    """Write the first offsets that consumers get. Of several brokers also the high watermarks: a leader does not have to wait for others
    to know that all have everything.
    """
    starts = {(part.topic, part.partition): part.log_start for part in parts if part.log_start is not None}
    if starts:
        folder.write(LOG_START, checkpoint_text(starts))
    if is_replicated:
        folder.write(HIGH_WATERMARK, checkpoint_text({(part.topic, part.partition): part.end_offset for part in parts}))


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
    text_lines = [
        "# Written by `rawlog rescue`. Put in the names of your hosts, and settings of your own. Do not format the directory."
    ]
    for line in lines:
        text = line.replace("\\", "\\\\").encode("utf-16-be", "surrogatepass")
        codes = [int.from_bytes(text[at : at + 2], "big") for at in range(0, len(text), 2)]
        text_lines.append("".join(chr(code) if 32 <= code < 127 else f"\\u{code:04x}" for code in codes))
    return "\n".join(text_lines) + "\n"


def start_notes(nodes: Sequence[int], target: str) -> list[str]:
    """How the new cluster is started, one line for each node."""
    names = properties_names(nodes).items()
    return [f"start node {node} with its settings: kafka-server-start.sh {target}{name}" for node, name in names]
