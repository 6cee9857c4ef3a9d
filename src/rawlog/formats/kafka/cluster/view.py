"""`rawlog cluster`: the cluster as its metadata log describes it, at the end or at any time before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any

from rawlog.formats.kafka.cluster import fold
from rawlog.formats.kafka.cluster.broker_disks import compare
from rawlog.formats.kafka.cluster.fold import ROWS_OF, level_text
from rawlog.formats.kafka.cluster.metadata import METADATA_VERSION, NO_LEADER, SAME_LEADER, option
from rawlog.formats.kafka.cluster.metadata_log import MetadataStore, Moment, clusters
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
from rawlog.formats.kafka.paths import METADATA_DIRECTORY, takes
from rawlog.model import difference as core
from rawlog.model.errors import AccessError, DataError, OptionError
from rawlog.model.format import File
from rawlog.model.outline import Intervals
from rawlog.model.store import Look, Panel, Store
from rawlog.model.text import counted, matches, missing_topics, offset_range, parse_time, plain_time
from rawlog.model.verb import Item, Line, Section, Tone

# ----------------------------------------------------------------------------------------------------------------------
# What happened in a cluster, as sentences; and what differs between two moments, or between two clusters.

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


def events(store: MetadataStore, *, errors: str = "raise", show_secrets: bool = False) -> Iterator[Event]:
    """Every record of the log that says something as an event, in order."""
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
            if type != NO_OP:
                yield Event(offset, rows.times[index], rows.epochs[index], narrator.leader, type, topic, text)


@dataclass(frozen=True, slots=True)
class StateDifference:
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


def differences(before: State, after: State, *, show_secrets: bool = False) -> Iterator[StateDifference]:
    """What happened between two states, table by table. Secrets are compared even where they are masked."""
    for table, keys in _KEYS.items():
        old, new = (_rows_by_key(ROWS_OF[table](state, True), keys) for state in (before, after))
        old_shown, new_shown = (_rows_by_key(ROWS_OF[table](state, show_secrets), keys) for state in (before, after))
        for key in sorted({*old, *new}):
            if old.get(key) == new.get(key):
                continue
            change = "added" if key not in old else "removed" if key not in new else "changed"
            yield StateDifference(table, key, change, old_shown.get(key), new_shown.get(key))


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


def compare_metadata(a: Sequence[File], b: Sequence[File], selection: Any) -> Iterator[core.Difference | int]:
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
    before, after = (store.fold_kept(at, selection.errors) for store in (store_a, store_b))
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


SHOWN = 20
Row = dict[str, Any]
Cells = list[str | Line]


def describe(files: Sequence[File], roots: Sequence[str], options: Mapping[str, Any]) -> Iterator[Item]:
    """What is known of every cluster whose metadata is among the files. AccessError if there is none.

    OptionError for options that contradict one another, and for a topic that does not exist.
    """
    if options["at_offset"] is not None and options["at_time"] is not None:
        raise OptionError("--at-offset and --at-time exclude one another")
    if options["log"] and options["diff"] is not None:
        raise OptionError("--log and --diff exclude one another")
    stores = clusters([file for file in files if takes(None, file)])
    if not stores:
        raise AccessError(f"{', '.join(roots)}: no metadata log (__cluster_metadata-0) is here, and no snapshot of one")
    return _describe_stores(files, stores, _Description(files, options))


def _describe_stores(
    files: Sequence[File], stores: Sequence[MetadataStore], description: _Description
) -> Iterator[Item]:
    yield from _check_topics(files, stores, description)
    for number, replica in enumerate(stores):
        if number:
            yield Item(text=Line())
        if description.errors != "raise":
            for count, text in enumerate(replica.damage()):
                yield Item(note=f"{text}, passed over" if count < SHOWN else None, is_finding=True)
        if description.options["log"]:
            yield from _missing_items(replica, replica.settled.missing)
            yield from description.history(replica)
        elif description.options["diff"] is not None:
            yield from _missing_items(replica, replica.settled.missing)
            yield from description.differences(replica, description.options["diff"])
        else:
            yield from description.overview(replica)


def _missing_items(replica: MetadataStore, missing: Intervals) -> Iterator[Item]:
    """A finding for each range of missing offsets, of which only the first have a note."""
    for count, (start, stop) in enumerate(missing):
        note = f"{replica.folder}: {offset_range(start, stop)} of the metadata log: missing"
        yield Item(note=note if count < SHOWN else None, is_finding=True)


def _check_topics(files: Sequence[File], stores: Sequence[MetadataStore], description: _Description) -> Iterator[Item]:
    """OptionError for a topic that does not exist; a note if it may have existed before, or for a pattern that matches nothing."""
    if not description.topics:
        return
    topics = {file.place.topic for file in files if file.place.topic is not None}
    if any(True for _ in missing_topics(description.topics, topics)):
        topics |= {name for replica in stores for name in replica.fold(errors=description.errors).topic_ids}
    for problem in missing_topics(description.topics, topics):
        if isinstance(problem, OptionError) and description.is_at_end:
            raise problem
        yield Item(note=str(problem))


class _Description:
    """What is shown of each cluster."""

    def __init__(self, files: Sequence[File], options: Mapping[str, Any]) -> None:
        self.files, self.options = files, options
        self.at = Moment(options["at_offset"], options["at_time"])
        self.topics: tuple[str, ...] = tuple(options["topic"])
        self.show_secrets: bool = options["show_secrets"]
        self.errors: str = options["errors"]

    @property
    def is_at_end(self) -> bool:
        """Whether only the state at the end of the log is asked for."""
        is_past = self.at.offset is not None or self.at.time is not None
        return not is_past and not self.options["log"] and self.options["diff"] is None

    # ------------------------------------------------------------------ the state

    def overview(self, replica: MetadataStore) -> Iterator[Item]:
        """The cluster at the time that was asked for, one row for each thing in it."""
        state = replica.fold(self.at, self.errors)
        yield from _missing_items(replica, replica.settled.lost_for(state, self.at))
        for problem in state.problems[:SHOWN]:
            yield Item(note=f"{replica.folder}: offset {problem.offset:,}: {problem.message}")
        mismatches = self._mismatches(replica, state) if self.is_at_end else []
        head = _head(replica, state)
        rows_of = {name: list(rows(state, self.show_secrets)) for name, rows in ROWS_OF.items()}
        tables = {name: [row for row in rows if self._wanted(name, row)] for name, rows in rows_of.items()}
        yield Item({"table": "cluster", **head})
        for name, rows in tables.items():
            yield from (Item({"table": name, **_plain(row)}) for row in rows)
        yield from (Item({"table": mismatch["kind"], **mismatch}) for mismatch in mismatches)
        yield from (Item(text=text) for text in self._text(head, tables, mismatches))

    def _wanted(self, table: str, row: Row) -> bool:
        if not self.topics:
            return True
        if "topic" in row:
            return matches(row["topic"], self.topics)
        is_topic = table == "configs" and row["resource_type"] == "topic"
        return is_topic and matches(row["resource_name"], self.topics)

    def _mismatches(self, replica: MetadataStore, state: State) -> list[Row]:
        mismatches = compare(self.files, state, replica.cluster_id)
        return [asdict(mismatch) for mismatch in mismatches if matches(mismatch.topic, self.topics)]

    def _text(self, head: Row, tables: dict[str, list[Row]], mismatches: list[Row]) -> Iterator[Line | Section]:
        yield Line(f"cluster {head['cluster_id'] or head['path']}", Tone.TITLE)
        quorum = ", ".join(f"{voter['voter']}{' (leader)' if voter['is_leader'] else ''}" for voter in tables["voters"])
        yield Line(
            f"  as of offset {head['end_offset'] - 1:,}, epoch {head['epoch']}, {head['timestamp'] or 'no time'}"
        )
        release = head["release"] or "not set"
        yield Line(f"  metadata.version {head['metadata_version']} ({release}), controllers {quorum or 'unknown'}")
        if head["open_transaction"] is not None:
            yield Line(f"  a metadata transaction is open from offset {head['open_transaction']:,} on: not shown")
        if not self.topics:
            yield Section("Brokers", [_broker(row) for row in tables["brokers"]])
        yield Section("Topics", [_topic(row) for row in tables["topics"]])
        yield from self._partitions(tables["partitions"])
        yield Section(
            "Strays: on disk, unknown to the cluster",
            [_mismatch_cells(mismatch) for mismatch in mismatches if mismatch["kind"] == "stray"],
        )
        yield Section(
            "Missing on disk", [_mismatch_cells(mismatch) for mismatch in mismatches if mismatch["kind"] == "missing"]
        )
        yield Section("Settings", [_setting(row) for row in tables["configs"]])
        if not self.topics:
            yield from _others(tables)

    def _partitions(self, rows: list[Row]) -> Iterator[Section]:
        if self.topics:
            yield Section("Partitions", [_partition(row) for row in rows])
            return
        yield Section("Offline partitions", [_partition(row) for row in rows if row["leader"] is None], SHOWN)
        lagging = [row for row in rows if row["leader"] is not None and _is_under_replicated(row)]
        yield Section("Under-replicated partitions", [_partition(row) for row in lagging], SHOWN)

    # ------------------------------------------------------------------ history and differences

    def history(self, replica: MetadataStore) -> Iterator[Item]:
        """What happened, one sentence for each record."""
        for event in events(replica, errors=self.errors, show_secrets=self.show_secrets):
            if self.at.offset is not None and event.offset > self.at.offset:
                break
            if self.at.time is not None and event.timestamp is not None and event.timestamp > self.at.time:
                break
            if not matches(event.topic, self.topics):
                continue
            row = {
                "offset": event.offset,
                "timestamp": _time(event.timestamp),
                "epoch": event.epoch,
                "leader": event.leader,
                "type": event.type,
                "topic": event.topic,
                "text": event.text,
            }
            yield Item(row, Line(f"{event.offset:>10,}  {row['timestamp']}  {event.text}"))

    def differences(self, replica: MetadataStore, between: str) -> Iterator[Item]:
        """What changed between two offsets or times."""
        first, second = _moments(between)
        before, after = replica.fold(first, self.errors), replica.fold(second, self.errors)
        for difference in differences(before, after, show_secrets=self.show_secrets):
            if not self._wanted(difference.table, difference.after or difference.before or {}):
                continue
            row = {
                "table": difference.table,
                "key": difference.key,
                "change": difference.change,
                "before": difference.before and _plain(difference.before),
                "after": difference.after and _plain(difference.after),
            }
            yield Item(row, _difference_line(difference), is_finding=True)


SIGNS = {"added": "+", "removed": "-", "changed": "~"}
TONES = {"added": Tone.GOOD, "removed": Tone.BAD, "changed": Tone.CHANGED}


def _difference_line(difference: StateDifference) -> Line | None:
    """A difference as a line; None for a topic of which only the settings differ: each of them is shown itself."""
    if difference.change == "changed" and not difference.fields and difference.table == "topics":
        return None
    what = difference.table.removesuffix("s") if difference.table != "acls" else "acl"
    details = ""
    if difference.change == "changed":
        details = ": " + ", ".join(f"{name} {old} -> {new}" for name, (old, new) in difference.fields.items())
    elif difference.table in ("configs", "quotas"):
        details = f" = {(difference.after or difference.before or {})['value']}"
    return Line(f"{SIGNS[difference.change]} {what} {difference.key}{details}", TONES[difference.change])


def _moments(between: str) -> tuple[Moment, Moment]:
    first, dots, second = between.partition("..")
    if not dots or not first or not second:
        raise OptionError(f"--diff {between!r}: two offsets or times with .. between them expected")
    return _moment(first), _moment(second)


def _moment(text: str) -> Moment:
    """A number of at most 11 digits is an offset; anything else is a time."""
    if text.isdecimal() and len(text) <= 11:
        return Moment(offset=int(text))
    return Moment(time=parse_time(text))


def _head(replica: MetadataStore, state: State) -> Row:
    level = state.features.get(METADATA_VERSION)
    return {
        "cluster_id": replica.cluster_id,
        "path": replica.folder,
        "end_offset": state.end_offset,
        "epoch": state.epoch,
        "timestamp": _time(None if state.timestamp < 0 else state.timestamp * 1000),
        "leader": state.leader,
        "metadata_version": level,
        "release": None if level is None else level_text(METADATA_VERSION, level),
        "kraft_version": state.kraft_version,
        "brokers": len(state.brokers),
        "topics": len(state.topics),
        "partitions": sum(len(topic.partitions) for topic in state.topics.values()),
        "next_producer_id": state.next_producer_id,
        "records": state.records,
        "problems": len(state.problems),
        "open_transaction": state.open_transaction,
    }


def _broker(row: Row) -> Cells:
    state = "fenced" if row["fenced"] else "shutting down" if row["in_controlled_shutdown"] else "live"
    places = ", ".join(f"{endpoint['name']} {endpoint['host']}:{endpoint['port']}" for endpoint in row["endpoints"])
    rack = f"rack {row['rack']}" if row["rack"] else ""
    return [str(row["broker"]), Line(state, Tone.GOOD if state == "live" else Tone.BAD), places, rack]


def _topic(row: Row) -> Cells:
    notes = [f"{row['offline']} offline"] if row["offline"] else []
    notes += [f"{row['under_replicated']} under-replicated"] if row["under_replicated"] else []
    partitions = counted(row["partitions"], "partition")
    factor = row["replication_factor"]
    replicas = "" if factor is None else counted(factor, "replica")
    return [row["topic"], partitions, replicas, ", ".join(notes), row["topic_id"]]


def _partition(row: Row) -> Cells:
    leader = "no leader" if row["leader"] is None else f"leader {row['leader']}"
    eligible = f"eligible {row['eligible_leader_replicas']}" if row["eligible_leader_replicas"] else ""
    name = f"{row['topic']}-{row['partition']}"
    return [name, leader, f"replicas {row['replicas']}", f"in sync {row['isr']}", eligible]


def _is_under_replicated(row: Row) -> bool:
    return not set(row["replicas"]) - set(row["adding_replicas"]) <= set(row["isr"])


def _mismatch_cells(mismatch: Row) -> Cells:
    return [f"{mismatch['topic']}-{mismatch['partition']}", mismatch["path"], mismatch["why"]]


def _setting(row: Row) -> Cells:
    return [row["resource_type"], row["resource_name"] or "(default)", row["name"], row["value"]]


def _others(tables: dict[str, list[Row]]) -> Iterator[Section]:
    """What belongs to the cluster and not to a topic."""
    yield Section("Features", [[row["name"], str(row["level"]), row["meaning"] or ""] for row in tables["features"]])
    yield Section("Users", [_user(row) for row in tables["users"]])
    yield Section("Quotas", [[_entity(row["entity"]), row["key"], f"{row['value']:,.12g}"] for row in tables["quotas"]])
    yield Section("Access", [_access(row) for row in tables["acls"]])
    yield Section("Tokens", [_token(row) for row in tables["tokens"]])


def _user(row: Row) -> Cells:
    secrets = [f"{name} {row[name]}" for name in ("salt", "stored_key", "server_key")]
    return [row["name"], row["mechanism"], f"{row['iterations']:,} iterations", *secrets]


def _access(row: Row) -> Cells:
    resource = row["resource_name"] + ("*" if row["pattern_type"] == "prefixed" else "")
    return [row["permission"], row["principal"], row["host"], row["operation"], row["resource_type"], resource]


def _token(row: Row) -> Cells:
    return [row["token_id"], row["owner"], f"expires {_time(row['expiration_timestamp']) or 'never'}"]


def _entity(entity: list[Row]) -> str:
    return ", ".join(f"{part['type']} {'(default)' if part['name'] is None else part['name']}" for part in entity)


def _time(microseconds: int | None) -> str | None:
    return None if microseconds is None else plain_time(microseconds)


def _plain(row: Row) -> Row:
    """A row as JSON has it: times as text, settings as an object."""
    shown: Row = {name: _time(value) if name.endswith("_timestamp") else value for name, value in row.items()}
    if isinstance(shown.get("configs"), list):
        shown["configs"] = dict(shown["configs"])
    return shown


# ----------------------------------------------------------------------------------------------------------------------
# What `report` shows of a cluster: its brokers, and a map of partitions and the brokers that have them.


MOST = 2000
StateRow = Mapping[str, Any]


def overview(files: Store) -> Iterator[Panel]:
    """Brokers, and partitions by broker."""
    options = {"errors": "skip"}
    brokers = [row for batch in fold.brokers(files, options) for row in batch.to_pylist()]
    partitions = [row for batch in fold.partitions(files, options) for row in batch.to_pylist()]
    partitions.sort(key=lambda row: (row["topic"], row["partition"]))
    broker_ids = sorted(
        {row["broker"] for row in brokers} | {broker_id for row in partitions for broker_id in row["replicas"]}
    )
    rows = [_broker_line(row, partitions) for row in sorted(brokers, key=lambda row: row["broker"])]
    head = ("broker", "partitions", "leads", "out of sync", "state", "rack", "endpoints")
    about = "As the metadata log describes the cluster at its end. rawlog cluster shows settings, history and earlier states."
    yield Panel("kraft", Section("Brokers", rows, None, head), about, Look.BARS, files.path)
    cells = [(_name(row), *(_cell(row, broker_id) for broker_id in broker_ids)) for row in partitions]
    about = (
        "One row per partition, one column per broker. Leader: serves the partition. In sync: a replica that has everything. "
        "Out of sync: a replica that lags behind. Offline: no broker leads the partition."
    )
    brokers_head = ("partition", *(f"broker {broker_id}" for broker_id in broker_ids))
    yield Panel("kraft", Section("Cluster map", cells, MOST, brokers_head), about, Look.MAP, files.path)


def _broker_line(row: StateRow, partitions: list[StateRow]) -> tuple[str | Line, ...]:
    number = row["broker"]
    hosted = [partition for partition in partitions if number in partition["replicas"]]
    lost = sum(number not in partition["isr"] for partition in hosted)
    state = Line("fenced", Tone.BAD) if row["fenced"] else Line("active", Tone.GOOD)
    places = ", ".join(f"{endpoint['host']}:{endpoint['port']}" for endpoint in row["endpoints"] or ())
    leads = sum(partition["leader"] == number for partition in hosted)
    out = Line(f"{lost:,}", Tone.BAD if lost else None)
    return str(number), f"{len(hosted):,}", f"{leads:,}", out, state, row["rack"] or "", places


def _name(row: StateRow) -> str | Line:
    text = f"{row['topic']}-{row['partition']}"
    return Line(f"{text}: offline", Tone.BAD) if row["leader"] is None else text


def _cell(row: StateRow, broker: int) -> str | Line:
    if broker not in row["replicas"]:
        return ""
    if row["leader"] == broker:
        return Line("leader", Tone.TITLE)
    return Line("in sync", Tone.GOOD) if broker in row["isr"] else Line("out of sync", Tone.BAD)
