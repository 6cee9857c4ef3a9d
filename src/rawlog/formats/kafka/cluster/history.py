"""What happened in a cluster, as sentences; and what differs between two moments, or between two clusters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from rawlog.formats.kafka.cluster.fold import ROWS_OF, level_text
from rawlog.formats.kafka.cluster.metadata import NO_LEADER, SAME_LEADER, option
from rawlog.formats.kafka.cluster.metadata_log import MetadataStore, Moment, clusters
from rawlog.formats.kafka.cluster.paths import METADATA_DIRECTORY
from rawlog.formats.kafka.cluster.state import State
from rawlog.formats.kafka.internal.codec import Message, uuid_text
from rawlog.formats.kafka.internal.messages import (
    ACL_OPERATIONS,
    ACL_PATTERNS,
    ACL_PERMISSIONS,
    ACL_RESOURCES,
    CONFIG_RESOURCES,
    MASK,
    MECHANISMS,
    MIGRATION_STATES,
    decode_control,
    decode_framed,
    is_secret_config,
)
from rawlog.formats.kafka.log.layouts import ControlType
from rawlog.model import difference as core
from rawlog.model.errors import DataError, OptionError
from rawlog.model.format import File

NO_OP = "NO_OP_RECORD"
CHANGES = {"removed": core.Change.ONLY_A, "added": core.Change.ONLY_B, "changed": core.Change.DIFFERS}
CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Event:
    """One record of the log in words. `leader` is the controller that wrote it; `topic` the one it is about, if it is about one."""

    offset: int
    timestamp: int | None
    epoch: int
    leader: int | None
    type: str
    topic: str | None
    text: str


class Narrator:
    """Describes records in the order of the log: it remembers the names of topics, also of those that are gone."""

    def __init__(self, show_secrets: bool = False) -> None:
        self.names: dict[bytes, str] = {}
        self.leader: int | None = None
        self.show_secrets = show_secrets

    def learn(self, state: State) -> None:
        """Take the names of topics from a snapshot."""
        self.names.update((key, topic.name) for key, topic in state.topics.items())
        self.leader = state.leader

    def control(self, kind: int | None, value: bytes) -> tuple[str, str]:
        """Type and sentence of a control record."""
        try:
            name, _, message = decode_control(-1 if kind is None else kind, value)
        except DataError as error:
            return str(kind), error.message
        if kind == ControlType.LEADER_CHANGE:
            self.leader = message["leaderId"]
            voters = ", ".join(str(voter["voterId"]) for voter in message["voters"])
            return name, f"controller {self.leader} leads (voters {voters})"
        if kind == ControlType.KRAFT_VERSION:
            return name, f"kraft.version is {message['kRaftVersion']}"
        if kind == ControlType.KRAFT_VOTERS:
            return name, f"voters are {', '.join(str(voter['voterId']) for voter in message['voters'])}"
        return name, name.lower().replace("_", " ")

    def record(self, value: bytes) -> tuple[str, str | None, str]:
        """Type, topic and sentence of a metadata record."""
        try:
            framed = decode_framed(value)
        except DataError as error:
            return "?", None, f"cannot be decoded: {error.message}"
        message = framed.message
        topic = self.names.get(message["topicId"], uuid_text(message["topicId"])) if "topicId" in message else None
        if framed.name == "TOPIC_RECORD":
            topic = self.names[message["topicId"]] = message["name"]
        elif framed.name == "CONFIG_RECORD" and message["resourceType"] == 2:
            topic = message["resourceName"]
        describe = _TEXTS.get(framed.name)
        return (
            framed.name,
            topic,
            framed.name.lower().replace("_", " ") if describe is None else describe(self, message, topic),
        )

    def _config(self, message: Message, topic: str | None) -> str:
        kind = CONFIG_RESOURCES.get(message["resourceType"], str(message["resourceType"]))
        resource = message["resourceName"] or "(default)"
        if message["value"] is None:
            return f"{kind} {resource}: {message['name']} is back to its default"
        value = MASK if not self.show_secrets and is_secret_config(message["name"]) else message["value"]
        return f"{kind} {resource}: {message['name']} = {value}"

    def _change(self, message: Message, topic: str | None) -> str:
        parts = []
        if message["leader"] != SAME_LEADER:
            parts.append("no leader" if message["leader"] == NO_LEADER else f"leader {message['leader']}")
        names = {"isr": "in sync", "replicas": "replicas", "removingReplicas": "removing", "addingReplicas": "adding"}
        names |= {"eligibleLeaderReplicas": "eligible to lead", "lastKnownElr": "last eligible"}
        parts += [f"{word} {message[name]}" for name, word in names.items() if message.get(name) is not None]
        if message.get("directories") is not None:
            parts.append("new directories")
        if message["leaderRecoveryState"] != -1:
            parts.append("recovering" if message["leaderRecoveryState"] else "recovered")
        return f"{topic}-{message['partitionId']}: {', '.join(parts) or 'nothing changed'}"

    def _broker_change(self, message: Message, topic: str | None) -> str:
        parts = {1: ["fenced"], -1: ["unfenced"]}.get(message["fenced"], [])
        parts = [*parts, *(["shutting down"] if message.get("inControlledShutdown") else [])]
        if message.get("logDirs"):
            parts.append(f"log directories {', '.join(map(uuid_text, message['logDirs']))}")
        if message.get("cordonedLogDirs") is not None:
            parts.append(f"cordoned {', '.join(map(uuid_text, message['cordonedLogDirs'])) or 'none'}")
        return f"broker {message['brokerId']} is {', '.join(parts) or 'unchanged'}"

    def _feature(self, message: Message, topic: str | None) -> str:
        meaning = level_text(message["name"], message["featureLevel"])
        return f"{message['name']} is {message['featureLevel']}" + (f" ({meaning})" if meaning else "")

    def _acl(self, message: Message, topic: str | None) -> str:
        permission = ACL_PERMISSIONS.get(message["permissionType"], str(message["permissionType"]))
        operation = ACL_OPERATIONS.get(message["operation"], str(message["operation"]))
        resource = ACL_RESOURCES.get(message["resourceType"], str(message["resourceType"]))
        pattern = ACL_PATTERNS.get(message["patternType"], str(message["patternType"]))
        name = f"{message['resourceName']}{'*' if pattern == 'prefixed' else ''}"
        return f"{permission} {message['principal']} from {message['host']} to {operation} {resource} {name}"

    def _quota(self, message: Message, topic: str | None) -> str:
        entity = ", ".join(f"{part['entityType']} {part['entityName'] or '(default)'}" for part in message["entity"])
        change = "has no limit any more" if message["remove"] else f"= {message['value']:g}"
        return f"{entity}: {message['key']} {change}"


_Text = Callable[[Narrator, Message, str | None], str]
_TEXTS: dict[str, _Text] = {
    "TOPIC_RECORD": lambda self, m, t: f"topic {t} is created ({uuid_text(m['topicId'])})",
    "REMOVE_TOPIC_RECORD": lambda self, m, t: f"topic {t} is deleted",
    "PARTITION_RECORD": lambda self, m, t: (
        f"{t}-{m['partitionId']}: replicas {m['replicas']}, in sync {m['isr']}, "
        + ("no leader" if m["leader"] == NO_LEADER else f"leader {m['leader']}")
    ),
    "PARTITION_CHANGE_RECORD": Narrator._change,
    "CONFIG_RECORD": Narrator._config,
    "FEATURE_LEVEL_RECORD": Narrator._feature,
    "REGISTER_BROKER_RECORD": lambda self, m, t: (
        f"broker {m['brokerId']} registers at "
        + ", ".join(f"{endpoint['host']}:{endpoint['port']}" for endpoint in m["endPoints"])
        + (" (fenced)" if m["fenced"] else "")
    ),
    "UNREGISTER_BROKER_RECORD": lambda self, m, t: f"broker {m['brokerId']} is unregistered",
    "FENCE_BROKER_RECORD": lambda self, m, t: f"broker {m['id']} is fenced",
    "UNFENCE_BROKER_RECORD": lambda self, m, t: f"broker {m['id']} is unfenced",
    "BROKER_REGISTRATION_CHANGE_RECORD": Narrator._broker_change,
    "REGISTER_CONTROLLER_RECORD": lambda self, m, t: f"controller {m['controllerId']} registers",
    "UNREGISTER_CONTROLLER_RECORD": lambda self, m, t: f"controller {m['controllerId']} is unregistered",
    "ACCESS_CONTROL_ENTRY_RECORD": Narrator._acl,
    "REMOVE_ACCESS_CONTROL_ENTRY_RECORD": lambda self, m, t: f"access control entry {uuid_text(m['id'])} is removed",
    "CLIENT_QUOTA_RECORD": Narrator._quota,
    "PRODUCER_IDS_RECORD": lambda self, m, t: (
        f"broker {m['brokerId']} takes producer ids up to {m['nextProducerId'] - 1}"
    ),
    "USER_SCRAM_CREDENTIAL_RECORD": lambda self, m, t: (
        f"user {m['name']} has a password for {MECHANISMS.get(m['mechanism'], m['mechanism'])}"
    ),
    "REMOVE_USER_SCRAM_CREDENTIAL_RECORD": lambda self, m, t: (
        f"user {m['name']} has none for {MECHANISMS.get(m['mechanism'], m['mechanism'])} any more"
    ),
    "DELEGATION_TOKEN_RECORD": lambda self, m, t: f"{m['owner']} has the token {m['tokenId']}",
    "REMOVE_DELEGATION_TOKEN_RECORD": lambda self, m, t: f"token {m['tokenId']} is removed",
    "ZK_MIGRATION_STATE_RECORD": lambda self, m, t: (
        f"the migration from ZooKeeper is at: {MIGRATION_STATES.get(m['zkMigrationState'], m['zkMigrationState'])}"
    ),
    "BEGIN_TRANSACTION_RECORD": lambda self, m, t: f"a metadata transaction begins: {m['name'] or 'no name'}",
    "END_TRANSACTION_RECORD": lambda self, m, t: "the metadata transaction ends",
    "ABORT_TRANSACTION_RECORD": lambda self, m, t: f"the metadata transaction is aborted: {m['reason'] or 'no reason'}",
    "CLEAR_ELR_RECORD": lambda self, m, t: f"eligible leaders of {m['topicName'] or 'all topics'} are cleared",
    NO_OP: lambda self, m, t: "nothing",
}


def events(
    store: MetadataStore, *, errors: str = "raise", show_secrets: bool = False, no_ops: bool = False
) -> Iterator[Event]:
    """Every record of the log as an event, in order."""
    narrator = Narrator(show_secrets)
    if store.start and store.snapshots:
        narrator.learn(MetadataStore(store.newest_first[-1:]).fold(errors="skip"))
    for rows in store.rows(store.segments, errors):
        for index, offset in enumerate(rows.offsets):
            value, topic = rows.values[index] or b"", None
            if rows.controls[index]:
                type, text = narrator.control(rows.kinds[index], value)
            else:
                type, topic, text = narrator.record(value)
            if type != NO_OP or no_ops:
                yield Event(offset, rows.times[index], rows.epochs[index], narrator.leader, type, topic, text)


@dataclass(frozen=True, slots=True)
class Difference:
    """What only one of two states has, or has with another value: `change` is added, removed or changed."""

    table: str
    key: str
    change: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None

    @property
    def fields(self) -> dict[str, tuple[Any, Any]]:
        """The columns that changed, with both values."""
        before, after = self.before or {}, self.after or {}
        changed = {
            name: (before[name], after[name]) for name in before if name in after and before[name] != after[name]
        }
        changed.pop("configs", None)  # the settings have rows of their own
        return changed


_KEYS: dict[str, tuple[str, ...]] = {
    "topics": ("topic", "topic_id"),
    "partitions": ("topic", "partition", "topic_id"),
    "brokers": ("broker",),
    "controllers": ("controller",),
    "configs": ("resource_type", "resource_name", "name"),
    "acls": ("id",),
    "quotas": ("entity", "key"),
    "features": ("name",),
    "users": ("name", "mechanism"),
    "tokens": ("token_id",),
    "voters": ("voter",),
}


def differences(before: State, after: State, *, show_secrets: bool = False) -> Iterator[Difference]:
    """What happened between two states, table by table. Secrets are compared even where they are masked."""
    for table, keys in _KEYS.items():
        old, new = (_rows_by_key(ROWS_OF[table](state, True), keys) for state in (before, after))
        old_shown, new_shown = (_rows_by_key(ROWS_OF[table](state, show_secrets), keys) for state in (before, after))
        for key in sorted({*old, *new}):
            if old.get(key) == new.get(key):
                continue
            change = "added" if key not in old else "removed" if key not in new else "changed"
            yield Difference(table, key, change, old_shown.get(key), new_shown.get(key))


def _rows_by_key(rows: Iterator[dict[str, Any]], keys: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    by_key = {}
    for row in rows:
        parts = []
        for name in keys:
            value = row[name]
            if name == "resource_name" and not value:
                value = "(default)"
            if name == "entity":
                value = ",".join(f"{part['type']}={part['name'] or '(default)'}" for part in value)
            if name != "topic_id":
                parts.append(str(value))
        key = "-".join(parts) if "topic" in keys else " ".join(parts)
        by_key[key if key not in by_key else f"{key} {row.get('topic_id')}"] = row
    return by_key


# Two clusters -----------------------------------------------------------------------------------------------------------


def compare(a: Sequence[File], b: Sequence[File], selection: Any) -> Iterator[core.Difference | int]:
    """What the clusters of both sides do not agree on: topics, partitions, brokers, settings … A number says how many rows are alike.

    The options atOffset, atTimestamp and showSecrets count for both. OptionError if a side holds several clusters.
    """
    store_a, store_b = _only(a, "A"), _only(b, "B")
    if store_a is None or store_b is None:
        only_store = store_a or store_b
        if only_store is not None and not _narrowed(selection):
            change = core.Change.ONLY_B if store_a is None else core.Change.ONLY_A
            yield core.Difference(change, CLUSTER, only_store.cluster_id or only_store.folder)
        return
    at = Moment.of(selection.options)
    before, after = (store.fold(at, selection.errors) for store in (store_a, store_b))
    shown = (option(selection.options, "showSecrets") or "").lower() in ("true", "1", "yes")
    unlike = 0
    for difference in differences(before, after, show_secrets=shown):
        row = difference.after or difference.before or {}
        only_settings = difference.change == "changed" and not difference.fields and difference.table == "topics"
        if only_settings or not _wanted(difference.table, row, selection):
            continue  # settings have rows of their own
        unlike += difference.before is not None
        columns = tuple(difference.fields) if difference.change == "changed" else ()
        sides = [
            None if side is None else _shown_columns(side, columns) for side in (difference.before, difference.after)
        ]
        yield core.Difference(
            CHANGES[difference.change], difference.table, difference.key, columns=columns, a=sides[0], b=sides[1]
        )
    rows = sum(_wanted(table, row, selection) for table, make in ROWS_OF.items() for row in make(before, False))
    yield max(0, rows - unlike)
    if at == Moment() and not _narrowed(selection) and store_a.cluster_id == store_b.cluster_id:
        yield from _lost_records(store_a.settled, store_b.settled, core.Change.ONLY_B)
        yield from _lost_records(store_b.settled, store_a.settled, core.Change.ONLY_A)


def _lost_records(damaged: MetadataStore, intact: MetadataStore, change: core.Change) -> Iterator[core.Difference]:
    """The records that one log has lost, as its outline says, and the other one has: they may have left no trace in the state."""
    for first, stop in intact.present.intersection(damaged.missing):
        yield core.Difference(change, "record", METADATA_DIRECTORY, first, stop, stop - first)


def _only(files: Sequence[File], side: str) -> MetadataStore | None:
    """The one cluster of a side: of its replicas the one that knows most."""
    stores = clusters(files)
    if len({store.cluster_id for store in stores}) > 1:
        raise OptionError(f"{side} holds the metadata of {len(stores)} clusters: name the directory of one")
    return max(stores, key=lambda store: store.furthest, default=None)


def _narrowed(selection: Any) -> bool:
    """Whether only some topics are asked for: whether there is a cluster is not the question then."""
    return bool(selection.topics or selection.topic_pattern or selection.partitions)


def _wanted(table: str, row: dict[str, Any], selection: Any) -> bool:
    if not selection.topics:
        return True
    topic = row.get("topic") if table != "configs" or row["resource_type"] != "topic" else row["resource_name"]
    return topic is not None and any(fnmatchcase(topic, glob) for glob in selection.topics)


def _shown_columns(row: dict[str, Any], columns: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if (not columns or name in columns) and name != "configs"}
