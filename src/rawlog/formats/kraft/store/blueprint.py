"""The cluster that a restored directory starts as: its topics and settings, as the records of a bootstrap file.

Some settings of the old cluster would harm the new one, which has one broker and old data; they are left out or changed, and each of
them is reported.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rawlog.formats.kafka.messages import CONSUMER_OFFSETS, SHARE_STATE, TRANSACTION_STATE
from rawlog.formats.kafka.showing import uuid_bytes, uuid_text
from rawlog.formats.kraft.names import KRAFT_VERSION, METADATA_VERSION
from rawlog.formats.kraft.paths import BOOTSTRAP
from rawlog.formats.kraft.store.state import State
from rawlog.formats.kraft.writer import Record, encode_bootstrap
from rawlog.io.output import Folder

DEFAULT_LEVEL = 21
"""metadata.version 3.9-IV0, which brokers of 3.9 and of 4.x start on."""
TOPIC, GROUP, CLIENT_METRICS = 2, 32, 16
LITERAL = 3
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
    "min.insync.replicas": "one broker has one replica: producers that wait for all would wait forever",
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


@dataclass(slots=True)
class Topic:
    """A topic of the new cluster; `source` is its name in the old one. `epochs` are the leader epochs of its partitions."""

    name: str
    source: str
    id: bytes
    partitions: int
    configs: dict[str, str] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)

    @property
    def is_internal(self) -> bool:
        return self.source in INTERNAL_CONFIGS


@dataclass(slots=True)
class Blueprint:
    """A cluster of one node that does not exist yet. `old` is the state whose settings it takes over."""

    node: int
    cluster_id: str
    topics: Sequence[Topic]
    old: State | None = None
    level: int = DEFAULT_LEVEL
    next_producer_id: int = 0
    directory_id: bytes = field(default_factory=lambda: new_id())
    #: Users, access, quotas and groups of the old cluster are taken over as well.
    whole: bool = True

    def write(self, folder: Folder, timestamp: int) -> None:
        """Write `meta.properties`, `bootstrap.checkpoint` and the mark of a clean stop into a directory."""
        with folder.create(BOOTSTRAP) as file:
            for piece in encode_bootstrap(self.level, self.records(), timestamp=timestamp):
                file.write(piece)
        text = f"version=1\ncluster.id={self.cluster_id}\nnode.id={self.node}\ndirectory.id={uuid_text(self.directory_id)}\n"
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

    def _partition(self, topic: Topic, number: int) -> dict[str, object]:
        made: dict[str, object] = {
            "partitionId": number,
            "topicId": topic.id,
            "replicas": [self.node],
            "isr": [self.node],
            "removingReplicas": [],
            "addingReplicas": [],
            "leader": self.node,
            "leaderEpoch": topic.epochs.get(number, 0),
            "partitionEpoch": 0,
        }
        if self.level >= 17:
            made["directories"] = [self.directory_id]
        return made

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


def safe_configs(topic: str, configs: Mapping[str, str], *, keep_retention: bool) -> tuple[dict[str, str], list[str]]:
    """The settings of a topic in its new cluster, and a note on each that has changed.

    Old data must survive: unless `keep_retention` is set, nothing is deleted by age or size any more.
    """
    made, notes = dict(configs), []
    for name, why in DROPPED.items():
        if name in made and made[name] != HARMLESS.get(name):
            notes.append(f"topic {topic}: {name}={made.pop(name)} is left out: {why}")
    deletes = "delete" in made.get("cleanup.policy", "delete")
    if not keep_retention and deletes:
        for name in ("retention.ms", "retention.bytes"):
            if made.get(name, NO_LIMIT) != NO_LIMIT:
                notes.append(
                    f"topic {topic}: {name} was {made[name]}, is {NO_LIMIT} now, so that no old record is deleted"
                )
                made[name] = NO_LIMIT
        made["retention.ms"] = NO_LIMIT
    return made, notes
