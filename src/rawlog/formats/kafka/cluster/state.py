"""The state of a cluster: what the records of its metadata log add up to, exactly as a controller replays them.

Memory is bounded by the state (and by one open metadata transaction). What a controller would refuse is
kept as a problem, and not applied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from rawlog.formats.kafka.cluster.metadata import (
    METADATA_VERSION,
    MIGRATING,
    SAME_LEADER,
    record_version,
)
from rawlog.formats.kafka.internal.codec import UNKNOWN, Message, uuid_text
from rawlog.formats.kafka.internal.messages import decode_control, decode_record, framed_types
from rawlog.formats.kafka.log.layouts import ControlType
from rawlog.model.errors import DataError
from rawlog.model.text import counted

MOST_PROBLEMS = 1000
_LISTS = ("isr", "replicas", "removingReplicas", "addingReplicas", "eligibleLeaderReplicas", "lastKnownElr")
_BEGIN, _END, _ABORT = 23, 24, 25
#: Types of records with structures in them: brokers, quotas, controllers.
_NESTED = frozenset({0, 14, 27})
IMAGED = (
    "RegisterBrokerRecord", "RegisterControllerRecord", "PartitionRecord", "AccessControlEntryRecord", "UserScramCredentialRecord",
    "DelegationTokenRecord",
)  # fmt: skip
"""The records of a state that keep fields which no schema knows."""


class Refusal(Exception):
    """A record that a controller would not replay on this state."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something a controller would have stopped at."""

    offset: int
    message: str
    kind: str = "refused"


@dataclass(slots=True)
class Topic:
    """A topic: its name, and its partitions as their records have them."""

    name: str
    partitions: dict[int, Message] = field(default_factory=dict)


Entity = tuple[tuple[str, str | None], ...]


@dataclass(slots=True)
class State:
    """A cluster's metadata after all records that were applied. Values are messages by Kafka's names."""

    features: dict[str, int] = field(default_factory=dict)
    migration_state: int | None = None
    brokers: dict[int, Message] = field(default_factory=dict)
    controllers: dict[int, Message] = field(default_factory=dict)
    topics: dict[bytes, Topic] = field(default_factory=dict)
    topic_ids: dict[str, bytes] = field(default_factory=dict)
    #: Topics that records of the log removed, with their names.
    removed: dict[bytes, str] = field(default_factory=dict)
    #: Topics that were created with another id while they existed: no controller does that.
    replaced: set[str] = field(default_factory=set)
    configs: dict[tuple[int, str], dict[str, str]] = field(default_factory=dict)
    quotas: dict[Entity, dict[str, float]] = field(default_factory=dict)
    next_producer_id: int | None = None
    acls: dict[bytes, Message] = field(default_factory=dict)
    users: dict[tuple[int, str], Message] = field(default_factory=dict)
    tokens: dict[str, Message] = field(default_factory=dict)
    kraft_version: int | None = None
    voters: list[Message] = field(default_factory=list)
    leader: int | None = None
    #: The offset after the last record, its epoch and time (ms).
    end_offset: int = 0
    epoch: int = -1
    timestamp: int = -1
    records: int = 0
    problems: list[Problem] = field(default_factory=list)
    #: How many records have a tagged field that their schemas do not know, by name of the record and tag.
    unknown_tags: Counter[tuple[str, int]] = field(default_factory=Counter)
    _open: list[tuple[int, int, Message]] | None = None
    _began: int = -1

    # ------------------------------------------------------------------ taking records in

    def add(self, offset: int, value: bytes) -> None:
        """Replay a record of the log or of a snapshot."""
        try:
            key, _, message = decode_record(value)
        except DataError as error:
            self.add_problem(offset, error.message, "unknown")
            return
        self.records += 1
        if UNKNOWN in message or key in _NESTED:
            self.unknown_tags.update((framed_types()[key].name, tag) for tag in _unknown_tags(message))
        if _BEGIN <= key <= _ABORT:
            self._bracket(offset, key)
        elif self._open is not None:
            self._open.append((offset, key, message))
        else:
            self.apply(offset, key, message)

    def apply(self, offset: int, key: int, message: Message) -> None:
        """Apply a decoded record, outside of any transaction."""
        replay = _REPLAY.get(key)
        if replay is None:
            self.add_problem(offset, f"record type {key} is not replayed", "unknown")
            return
        try:
            replay(self, message)
        except Refusal as refused:
            self.add_problem(offset, str(refused))

    def _bracket(self, offset: int, key: int) -> None:
        if key == _BEGIN:
            if self._open is not None:
                self.add_problem(
                    offset, f"a metadata transaction begins inside that of offset {self._began}", "bracket"
                )
                return
            self._open, self._began = [], offset
            return
        if self._open is None:
            what = "ends" if key == _END else "is aborted"
            self.add_problem(offset, f"a metadata transaction {what} that has not begun", "bracket")
            return
        records, self._open = self._open, None
        if key == _END:
            for at, kind, message in records:
                self.apply(at, kind, message)

    def add_control(self, offset: int, kind: int, value: bytes) -> None:
        """Take in what a control record says of the quorum; it changes no metadata."""
        if kind not in (ControlType.LEADER_CHANGE, ControlType.KRAFT_VERSION, ControlType.KRAFT_VOTERS):
            return
        try:
            _, _, message = decode_control(kind, value)
        except DataError as error:
            self.add_problem(offset, error.message, "unknown")
            return
        if kind == ControlType.LEADER_CHANGE:
            self.leader = message["leaderId"]
            if not self.kraft_version:
                self.voters = [{"voterId": voter["voterId"]} for voter in message["voters"]]
        elif kind == ControlType.KRAFT_VERSION:
            self.kraft_version = message["kRaftVersion"]
        else:
            self.voters = message["voters"]

    @property
    def open_transaction(self) -> int | None:
        """The offset of the beginning of a metadata transaction without an end: its records do not count."""
        return self._began if self._open is not None else None

    def add_problem(self, offset: int, message: str, kind: str = "refused") -> None:
        """Keep something that a controller would have stopped at, unless there are very many already."""
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(Problem(offset, message, kind))

    @property
    def level(self) -> int:
        """The metadata.version in force; 1 before it is set (3.0 had no record of it)."""
        return self.features.get(METADATA_VERSION, 1)

    # ------------------------------------------------------------------ replaying, one method per record type

    def _feature(self, message: Message) -> None:
        if message["featureLevel"] == 0 and message["name"] != METADATA_VERSION:
            self.features.pop(message["name"], None)
        else:
            self.features[message["name"]] = message["featureLevel"]

    def _migration(self, message: Message) -> None:
        self.migration_state = message["zkMigrationState"]

    def _register_broker(self, message: Message) -> None:
        message.setdefault("isMigratingZkBroker", False)
        message.setdefault("inControlledShutdown", False)
        message.setdefault("logDirs", [])
        message.setdefault("cordonedLogDirs", None)
        self.brokers[message["brokerId"]] = message

    def _unregister_broker(self, message: Message) -> None:
        self.brokers.pop(message["brokerId"], None)

    def _broker(self, number: int, epoch: int) -> Message:
        broker = self.brokers.get(number)
        if broker is None:
            raise Refusal(f"broker {number} is changed, but is not registered")
        if broker["brokerEpoch"] != epoch:
            raise Refusal(f"broker {number} is changed in epoch {epoch}, but is registered in {broker['brokerEpoch']}")
        return broker

    def _fence(self, message: Message) -> None:
        self._broker(message["id"], message["epoch"])["fenced"] = True

    def _unfence(self, message: Message) -> None:
        self._broker(message["id"], message["epoch"])["fenced"] = False

    def _change_broker(self, message: Message) -> None:
        broker = self._broker(message["brokerId"], message["brokerEpoch"])
        fenced, shutdown = message["fenced"], message.get("inControlledShutdown", 0)
        if fenced not in (-1, 0, 1) or shutdown not in (0, 1):
            raise Refusal(f"fenced {fenced}, inControlledShutdown {shutdown}: an invalid change")
        if fenced:
            broker["fenced"] = fenced == 1
        if shutdown:
            broker["inControlledShutdown"] = True
        if message.get("logDirs"):
            broker["logDirs"] = message["logDirs"]
        if message.get("cordonedLogDirs") is not None:
            broker["cordonedLogDirs"] = message["cordonedLogDirs"]

    def _register_controller(self, message: Message) -> None:
        self.controllers[message["controllerId"]] = message

    def _unregister_controller(self, message: Message) -> None:
        if self.controllers.pop(message["controllerId"], None) is None:
            raise Refusal(f"the unknown controller {message['controllerId']} is unregistered")

    def _topic(self, message: Message) -> None:
        if self.topic_ids.get(message["name"], message["topicId"]) != message["topicId"]:
            self.replaced.add(message["name"])
        self.topics[message["topicId"]] = Topic(message["name"])
        self.topic_ids[message["name"]] = message["topicId"]

    def _partition(self, message: Message) -> None:
        topic = self.topics.get(message["topicId"])
        if topic is None:
            raise Refusal(f"partition {message['partitionId']} of the unknown topic {uuid_text(message['topicId'])}")
        count = len(message["replicas"])
        directories = message.get("directories")
        if not directories or all(directory == MIGRATING for directory in directories):
            message["directories"] = [MIGRATING] * count
        elif len(directories) != count:
            raise Refusal(f"{topic.name}-{message['partitionId']}: {len(directories)} directories for {count} replicas")
        for name in ("eligibleLeaderReplicas", "lastKnownElr"):
            if message.get(name) is None:
                message[name] = []
        topic.partitions[message["partitionId"]] = message

    def _change_partition(self, change: Message) -> None:
        topic = self.topics.get(change["topicId"])
        if topic is None:
            raise Refusal(
                f"partition {change['partitionId']} of the unknown topic {uuid_text(change['topicId'])} is changed"
            )
        partition = topic.partitions.get(change["partitionId"])
        if partition is None:
            raise Refusal(f"{topic.name}-{change['partitionId']} is changed, but is not there")
        replicas, directories = change["replicas"], change.get("directories")
        if replicas is not None and directories is not None and len(replicas) != len(directories):
            raise Refusal(
                f"{topic.name}-{change['partitionId']}: {len(directories)} directories for {len(replicas)} replicas"
            )
        for name in _LISTS:
            value = change.get(name)
            if value is not None:
                partition[name] = value
        if directories is not None:
            partition["directories"] = directories
        elif replicas is not None and all(directory == MIGRATING for directory in partition["directories"]):
            partition["directories"] = [MIGRATING] * len(replicas)
        if change["leader"] != SAME_LEADER:
            partition["leader"] = change["leader"]
            partition["leaderEpoch"] += 1
        if change["leaderRecoveryState"] != -1:
            partition["leaderRecoveryState"] = change["leaderRecoveryState"]
        partition["partitionEpoch"] += 1

    def _remove_topic(self, message: Message) -> None:
        topic = self.topics.pop(message["topicId"], None)
        if topic is None:
            raise Refusal(f"the unknown topic {uuid_text(message['topicId'])} is removed")
        self.removed[message["topicId"]] = topic.name
        if self.topic_ids.get(topic.name) == message["topicId"]:
            del self.topic_ids[topic.name]
        self.configs.pop((2, topic.name), None)

    def _config(self, message: Message) -> None:
        resource = (message["resourceType"], message["resourceName"])
        if message["value"] is not None:
            self.configs.setdefault(resource, {})[message["name"]] = message["value"]
            return
        settings = self.configs.get(resource)
        if settings is not None:
            settings.pop(message["name"], None)
            if not settings:
                del self.configs[resource]

    def _quota(self, message: Message) -> None:
        entity = tuple(
            sorted(((part["entityType"], part["entityName"]) for part in message["entity"]), key=lambda e: e[0])
        )
        if not message["remove"]:
            self.quotas.setdefault(entity, {})[message["key"]] = message["value"]
            return
        quotas = self.quotas.get(entity)
        if quotas is not None:
            quotas.pop(message["key"], None)
            if not quotas:
                del self.quotas[entity]

    def _producer_ids(self, message: Message) -> None:
        self.next_producer_id = message["nextProducerId"]

    def _acl(self, message: Message) -> None:
        self.acls[message["id"]] = message

    def _remove_acl(self, message: Message) -> None:
        if self.acls.pop(message["id"], None) is None:
            raise Refusal(f"the unknown access control entry {uuid_text(message['id'])} is removed")

    def _user(self, message: Message) -> None:
        self.users[(message["mechanism"], message["name"])] = message

    def _remove_user(self, message: Message) -> None:
        self.users.pop((message["mechanism"], message["name"]), None)

    def _token(self, message: Message) -> None:
        self.tokens[message["tokenId"]] = message

    def _remove_token(self, message: Message) -> None:
        self.tokens.pop(message["tokenId"], None)

    def _nothing(self, message: Message) -> None:
        pass

    def _clear_elr(self, message: Message) -> None:
        name = message["topicName"]
        if name and name not in self.topic_ids:
            raise Refusal(f"eligible leaders of the unknown topic {name} are cleared")
        chosen = [self.topics[self.topic_ids[name]]] if name else list(self.topics.values())
        for topic in chosen:
            for partition in topic.partitions.values():
                partition["eligibleLeaderReplicas"], partition["lastKnownElr"] = [], []

    # ------------------------------------------------------------------ giving it out again

    def image_lines(self) -> list[str]:
        """The records of `image` as texts to compare, without fields that no schema knows: a controller that does not know them either
        leaves them out of its snapshots.
        """
        return [str((name, version, _known_fields(message))) for name, version, message in self.image()]

    def uncarried_tags(self, carried: Collection[str]) -> str | None:
        """A sentence on the unknown tagged fields of records of other types than these; None if there are none."""
        tags = sorted((key, count) for key, count in self.unknown_tags.items() if key[0] not in carried)
        named = ", ".join(f"{name} tag {tag} ({counted(count, 'record')})" for (name, tag), count in tags)
        return f"tagged fields that are not known are lost: {named}" if tags else None

    def image(self) -> Iterator[tuple[str, int, Message]]:
        """The state as the records of a snapshot (name, version, message).

        The order is the one in which a controller writes them, each group sorted.
        """
        level = self.level

        def record(name: str, message: Message) -> tuple[str, int, Message]:
            return name, record_version(name, level), message

        if METADATA_VERSION in self.features:
            yield record("FeatureLevelRecord", {"name": METADATA_VERSION, "featureLevel": level})
        for name, feature in sorted(self.features.items()):
            if name != METADATA_VERSION:
                yield record("FeatureLevelRecord", {"name": name, "featureLevel": feature})
        if self.migration_state is not None and 8 <= level < 22:
            yield record("ZkMigrationStateRecord", {"zkMigrationState": self.migration_state})
        for _, broker in sorted(self.brokers.items()):
            yield record("RegisterBrokerRecord", _sorted(_at_level(broker, "RegisterBrokerRecord", level)))
        for _, controller in sorted(self.controllers.items()):
            if level >= 15:
                yield record("RegisterControllerRecord", _sorted(controller))
        for name, key in sorted(self.topic_ids.items()):
            yield record("TopicRecord", {"name": name, "topicId": key})
            for _, partition in sorted(self.topics[key].partitions.items()):
                shown = {
                    field_name: value
                    for field_name, value in partition.items()
                    if value != [] or field_name not in _LISTS[4:]
                }
                yield record("PartitionRecord", _at_level(shown, "PartitionRecord", level))
        for (kind, resource), settings in sorted(self.configs.items()):
            for name, value in sorted(settings.items()):
                message = {"resourceType": kind, "resourceName": resource, "name": name, "value": value}
                yield record("ConfigRecord", message)
        for entity, quotas in sorted(
            self.quotas.items(), key=lambda item: [(kind, name or "", name is not None) for kind, name in item[0]]
        ):
            for key_name, amount in sorted(quotas.items()):
                named = [{"entityType": kind, "entityName": name} for kind, name in entity]
                yield record("ClientQuotaRecord", {"entity": named, "key": key_name, "value": amount, "remove": False})
        if self.next_producer_id is not None:
            message = {"brokerId": -1, "brokerEpoch": -1, "nextProducerId": self.next_producer_id}
            yield record("ProducerIdsRecord", message)
        for _, acl in sorted(self.acls.items()):
            yield record("AccessControlEntryRecord", acl)
        for _, user in sorted(self.users.items()):
            yield record("UserScramCredentialRecord", user)
        for _, token in sorted(self.tokens.items()):
            yield record("DelegationTokenRecord", token)


def _sorted(message: Message) -> Message:
    """A registration with its endpoints and features in the order of their names: a controller keeps them in none."""
    named = {name: sorted(message[name], key=lambda part: str(part["name"])) for name in ("endPoints", "features")}
    return {**message, **named}


def _at_level(message: Message, name: str, level: int) -> Message:
    """A message without the fields that its version at this level does not have."""
    version = record_version(name, level)
    fields = next(schema for schema in framed_types().values() if schema.name == name).fields
    present = {schema_field.name for schema_field in fields if version in schema_field.versions}
    return {key: value for key, value in message.items() if key in present or key == UNKNOWN}


def _unknown_tags(message: Message) -> set[int]:
    """The tags of a record, and of the structures in it, that its schema does not know."""
    tags = {tag for tag, _ in message.get(UNKNOWN, ())}
    for value in message.values():
        for item in value if isinstance(value, list) else ():
            tags |= _unknown_tags(item) if isinstance(item, dict) else set()
    return tags


def _known_fields(message: Message) -> Message:
    """A record without the tagged fields that its schema does not know, its fields in the order of their names: versions of a record have
    them in different orders.
    """
    fields = {}
    for name, value in sorted(message.items()):
        if name != UNKNOWN:
            is_list = isinstance(value, list) and value and isinstance(value[0], dict)
            fields[name] = [_known_fields(item) for item in value] if is_list else value
    return fields


_REPLAY: dict[int, Callable[[State, Any], None]] = {
    0: State._register_broker,
    1: State._unregister_broker,
    2: State._topic,
    3: State._partition,
    4: State._config,
    5: State._change_partition,
    7: State._fence,
    8: State._unfence,
    9: State._remove_topic,
    10: State._token,
    11: State._user,
    12: State._feature,
    14: State._quota,
    15: State._producer_ids,
    17: State._change_broker,
    18: State._acl,
    19: State._remove_acl,
    20: State._nothing,
    21: State._migration,
    22: State._remove_user,
    26: State._remove_token,
    27: State._register_controller,
    28: State._clear_elr,
    29: State._unregister_controller,
}
