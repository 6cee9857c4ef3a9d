"""What coordinators wrote about consumer groups and transactions, compared with the partitions that are there."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rawlog.formats.kafka.checkpoints import log_start
from rawlog.formats.kafka.internal import topics
from rawlog.formats.kafka.internal.codec import uuid_text
from rawlog.formats.kafka.log.heads import heads
from rawlog.formats.kafka.log.layouts import NONE
from rawlog.formats.kafka.log.seek import seek
from rawlog.formats.kafka.partition import transactions
from rawlog.formats.kafka.partition.state import ProducerState
from rawlog.formats.kafka.paths import INTERNAL, METADATA_TOPIC
from rawlog.formats.kafka.tables import (
    GROUPS,
    OFFSETS,
    SHARES,
    TRANSACTIONS,
)
from rawlog.formats.kafka.texts import topic_id
from rawlog.io.storage import Source
from rawlog.io.walk import walk
from rawlog.model.errors import RawlogError
from rawlog.model.format import File
from rawlog.model.groups import (
    AbortedTransaction,
    Group,
    Member,
    OpenTransaction,
    Position,
    TransactionalId,
    Transactions,
)
from rawlog.model.store import Store

SYSTEM = "kafka"
LARGEST_TEXT = 1 << 20
PROTOCOLS = {"Consumer": "consumer", "Share": "share", "Streams": "streams"}
#: The number of the state in which a member has what it was assigned.
SETTLED = {"Consumer": 0, "Streams": 1}
#: While the coordinator ends a transaction it is in one of these; it writes the markers itself once a broker starts.
ENDING = {"PrepareCommit": "committed", "PrepareAbort": "aborted"}
Row = dict[str, Any]


class Partitions:
    """The partitions among some files that a broker would load: where each begins and ends. Replicas count as one, with the longest end."""

    def __init__(self, files: Sequence[File]) -> None:
        self.files = files
        self._logs: dict[tuple[str, int], dict[str, list[File]]] = defaultdict(lambda: defaultdict(list))
        for file in files:
            place = file.place
            if file.format == "kafka.log" and place.state is None and file.problem is None and place.topic is not None:
                self._logs[place.topic, place.partition or 0][str(place.group)].append(file)
        self._bounds: dict[tuple[str, int], tuple[int | None, int | None]] = {}

    def __iter__(self) -> Iterator[tuple[str, int, Store]]:
        """Every partition of a topic that is not Kafka's own, once for each directory."""
        for (topic, partition), folders in sorted(self._logs.items()):
            if topic != METADATA_TOPIC:
                yield from ((topic, partition, self.store(folder)) for folder in sorted(folders))

    def store(self, folder: str) -> Store:
        """All files of a partition directory."""
        return self._stores[folder]

    @cached_property
    def _stores(self) -> dict[str, Store]:
        groups: dict[str, list[File]] = defaultdict(list)
        for file in self.files:
            groups[str(file.place.group)].append(file)
        return {folder: Store(files) for folder, files in groups.items()}

    @cached_property
    def topics(self) -> dict[str, str]:
        """The names of topics by their ids, as `partition.metadata` of their partitions has them."""
        names: dict[str, str] = {}
        for file in self.files:
            if file.format != "kafka.partition" or file.problem is not None or file.place.topic is None:
                continue
            try:
                with Source(file.path) as source:
                    names[uuid_text(topic_id(source.read(0, min(source.size, LARGEST_TEXT))))] = file.place.topic
            except (RawlogError, ValueError):
                continue
        return names

    def numbers(self, topic: str) -> set[int]:
        """The partitions of a topic that are there."""
        return self._numbers.get(topic, set())

    @cached_property
    def _numbers(self) -> dict[str, set[int]]:
        numbers: dict[str, set[int]] = defaultdict(set)
        for topic, number in self._logs:
            numbers[topic].add(number)
        return numbers

    def bounds(self, topic: str, partition: int) -> tuple[int | None, int | None]:
        """The first offset that a consumer gets and the one after the last record; None, None if no directory of it is there."""
        key = topic, partition
        if key not in self._bounds:
            both = [_bounds(sorted(logs, key=_start), self.store(folder)) for folder, logs in self._logs[key].items()]
            self._bounds[key] = max(both, key=lambda bounds: bounds[1], default=(None, None))
        return self._bounds[key]


def _start(file: File) -> int:
    return file.place.start_offset or 0


def _bounds(logs: Sequence[File], store: Store) -> tuple[int, int]:
    first = _start(logs[0])
    start = max((log_start(segment, store.files) or first for segment in logs), default=first)
    for segment in reversed(logs):
        end = _end_of(segment, store)
        if end is not None:
            return min(start, end), end
    return start, first


def _end_of(segment: File, store: Store) -> int | None:
    """The offset after the last sound batch of a segment, looked for from its last index entry on."""
    from rawlog.formats.kafka import LOG

    for position in dict.fromkeys((seek(segment, store.files, transactions.NO_OFFSET, None), 0)):
        end: int | None = None
        for frames in walk(segment, LOG, start=position, errors="skip"):
            head = heads(frames)
            if head.sound.any():
                end = max(end or 0, int(head["last_offset"][head.sound].max()) + 1)
        if end is not None:
            return end
    return None


def _current_rows(table: Any, files: Sequence[File], fold: Any, errors: str) -> Iterator[Row]:
    """The rows of a folded table that count now."""
    chosen = [
        file
        for file in files
        if file.format == "kafka.log" and file.place.state is None and file.place.topic == INTERNAL[table.name]
    ]
    for batch in fold(chosen, {"errors": errors}):
        rows: pa.RecordBatch = batch.filter(pc.and_(batch["is_current"], pc.invert(batch["deleted"])))
        times = {field.name for field in rows.schema if pa.types.is_timestamp(field.type)}
        columns = {
            field.name: (rows[field.name].cast(pa.int64()) if field.name in times else rows[field.name]).to_pylist()
            for field in rows.schema
        }
        yield from (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))


# Groups -----------------------------------------------------------------------------------------------------------------


def groups(files: Sequence[File], errors: str) -> list[Group]:
    """Every consumer group that `__consumer_offsets` and `__share_group_state` know."""
    partitions = Partitions(files)
    records_of: dict[str, _Records] = defaultdict(_Records)
    for row in _current_rows(GROUPS, files, topics.groups, errors):
        records_of[row["group"]].add(row)
    by_name = {name: records.group(name, partitions) for name, records in records_of.items()}
    for row in _current_rows(OFFSETS, files, topics.offsets, errors):
        group = by_name.setdefault(row["group"], Group(SYSTEM, row["group"], "classic", "Empty", []))
        start, end = partitions.bounds(row["topic"], row["partition"])
        group.positions.append(
            Position(
                row["topic"],
                row["partition"],
                row["committed_offset"],
                start,
                end,
                row["commit_timestamp"],
                row["leader_epoch"],
                row["metadata"],
                _owner(group, row["topic"], row["partition"]),
            )
        )
    for name, positions in _share_positions(files, partitions, errors).items():
        group = by_name.setdefault(name, Group(SYSTEM, name, "share", "Empty", []))
        group.positions += positions
    for group in by_name.values():
        _add_uncommitted(group, partitions)
    return list(by_name.values())


class _Records:
    """The records about one group, by type; those about a member by its id."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.members: dict[str, dict[str, Row]] = defaultdict(dict)

    def add(self, row: Row) -> None:
        value = json.loads(row["value"] or "{}")
        if row["member"] is None:
            self.rows[row["type"]] = value
        else:
            self.members[row["member"]][row["type"]] = value

    def group(self, name: str, partitions: Partitions) -> Group:
        classic = self.rows.get("GroupMetadata")
        if classic is not None:
            members = [_classic_member(member) for member in classic["members"]]
            return Group(SYSTEM, name, "classic", "Stable" if members else "Empty", members)
        kinds = (*self.rows, *(kind for records in self.members.values() for kind in records))
        prefix = next(
            (protocol for protocol in PROTOCOLS if any(kind.startswith(f"{protocol}Group") for kind in kinds)),
            "Consumer",
        )
        members = []
        for number, records in sorted(self.members.items()):
            about = records.get(f"{prefix}GroupMemberMetadata")
            if about is not None:
                current = records.get(f"{prefix}GroupCurrentMemberAssignment", {})
                names = (
                    self._tasks(current, partitions)
                    if prefix == "Streams"
                    else _assigned_partitions(current, partitions)
                )
                assigned = tuple(sorted(set(names)))
                members.append(Member(number, about.get("clientId"), about.get("clientHost"), assigned))
        return Group(SYSTEM, name, PROTOCOLS[prefix], self._state(prefix), members)

    def _tasks(self, current: Row, partitions: Partitions) -> Iterator[str]:
        """The partitions of a member's active tasks, of all topics that its part of the topology reads."""
        parts = {
            subtopology["subtopologyId"]: subtopology
            for subtopology in self.rows.get("StreamsGroupTopology", {}).get("subtopologies") or ()
        }
        for task in current.get("activeTasks") or ():
            part = parts.get(task["subtopologyId"], {})
            repartitioned = (source["name"] for source in part.get("repartitionSourceTopics") or ())
            for topic in (*(part.get("sourceTopics") or ()), *repartitioned):
                numbers = partitions.numbers(topic)
                yield from (f"{topic}-{number}" for number in task["partitions"] if not numbers or number in numbers)

    def _state(self, prefix: str) -> str:
        """As a coordinator names it that has read these records."""
        current = [records.get(f"{prefix}GroupCurrentMemberAssignment") for records in self.members.values()]
        if not any(f"{prefix}GroupMemberMetadata" in records for records in self.members.values()):
            return "Empty"
        if prefix == "Share":
            return "Stable"
        if prefix == "Streams" and "StreamsGroupTopology" not in self.rows:
            return "NotReady"
        epoch = self.rows.get(f"{prefix}GroupMetadata", {}).get("epoch", 0)
        assigned = self.rows.get(f"{prefix}GroupTargetAssignmentMetadata", {}).get("assignmentEpoch", 0)
        if epoch > assigned:
            return "Assigning"
        settled = SETTLED[prefix]
        is_settled = all(
            assignment and assignment.get("memberEpoch") == assigned and assignment.get("state") == settled
            for assignment in current
        )
        return "Stable" if is_settled else "Reconciling"


def _classic_member(row: Row) -> Member:
    assignment = row.get("assignment")
    parts = assignment.get("assignedPartitions", ()) if isinstance(assignment, dict) else ()
    names = (f"{part['topic']}-{number}" for part in parts for number in part["partitions"])
    return Member(row["memberId"], row["clientId"], row["clientHost"], tuple(sorted(names)))


def _assigned_partitions(current: Row, partitions: Partitions) -> Iterator[str]:
    """The partitions that a member has, by the ids of their topics."""
    for part in current.get("assignedPartitions") or ():
        topic = partitions.topics.get(part["topicId"], part["topicId"])
        yield from (f"{topic}-{number}" for number in part["partitions"])


def _owner(group: Group, topic: str, partition: int) -> str | None:
    return next((member.member for member in group.members or () if f"{topic}-{partition}" in member.assigned), None)


def _add_uncommitted(group: Group, partitions: Partitions) -> None:
    """Add the partitions that are assigned to a member and have no committed offset."""
    committed = {f"{position.topic}-{position.partition}" for position in group.positions}
    for member in group.members or ():
        for name in member.assigned:
            topic, _, number = name.rpartition("-")
            if name not in committed:
                start, end = partitions.bounds(topic, int(number))
                group.positions.append(Position(topic, int(number), None, start, end, member=member.member))


def _share_positions(files: Sequence[File], partitions: Partitions, errors: str) -> dict[str, list[Position]]:
    """Where share groups are: the newest update of each partition counts, and what it leaves open the snapshot before it says."""
    newest: dict[tuple[str, str, int], Row] = {}
    for row in _current_rows(SHARES, files, topics.shares, errors):
        key = row["group"], row["topic_id"], row["partition"]
        before = newest.get(key)
        older, newer = (row, before) if before and before["offset_in_log"] > row["offset_in_log"] else (before, row)
        merged = {**(older or {}), **{name: value for name, value in (newer or {}).items() if value is not None}}
        if older and newer and newer["start_offset"] == NONE:
            merged["start_offset"] = older["start_offset"]
        newest[key] = merged
    positions: dict[str, list[Position]] = defaultdict(list)
    for (group, number, partition), row in newest.items():
        topic = partitions.topics.get(number, number)
        start, end = partitions.bounds(topic, partition)
        at = row["start_offset"] if row["start_offset"] >= 0 else None
        done = row["delivery_complete_count"]
        unread = None if at is None or end is None or done is None or done < 0 else end - at - done
        written = row.get("write_timestamp") or row["timestamp"]
        positions[group].append(Position(topic, partition, at, start, end, written, unread=unread))
    return positions


# Transactions -----------------------------------------------------------------------------------------------------------


def transactions_of(files: Sequence[File], errors: str) -> Transactions:
    """The transactions of every partition, with what their coordinator wrote about them."""
    result = Transactions(SYSTEM)
    states: dict[int, Row] = {}
    for row in _current_rows(TRANSACTIONS, files, topics.transaction_states, errors):
        partitions = tuple(
            sorted(f"{partition['topic']}-{partition['partition']}" for partition in row["partitions"] or ())
        )
        states[row["producer_id"]] = {**row, "named": partitions}
        about = (row["transactional_id"], row["producer_id"], row["producer_epoch"], row["status"], row["timeout_ms"])
        result.ids.append(TransactionalId(*about, partitions, row["start_timestamp"], row["update_timestamp"]))
    is_known = any(file.place.topic == INTERNAL[TRANSACTIONS.name] for file in files)
    for topic, partition, store in Partitions(files):
        opened, aborted = transactions.of_store(store)
        result.aborted += [
            AbortedTransaction(
                topic, partition, transaction.producer_id, transaction.first_offset, transaction.last_offset + 1
            )
            for transaction in aborted
        ]
        for number, producer in sorted(opened.items()):
            result.open.append(
                _open_transaction(topic, partition, number, producer, states.get(number), is_known=is_known)
            )
    if result.open and not is_known:
        result.notes.append("__transaction_state is not among the files: nothing tells which open transactions hang")
    return result


def _open_transaction(
    topic: str, partition: int, number: int, producer: ProducerState, state: Row | None, *, is_known: bool
) -> OpenTransaction:
    knows = state is not None and f"{topic}-{partition}" in state["named"]
    status = None if state is None else state["status"]
    is_hanging = is_known and not knows
    start = producer.current_txn_first_offset
    if is_hanging:
        advice = (
            f"{topic}-{partition}: nobody will end the transaction at offset {start:,}. With a broker: "
            f"kafka-transactions.sh abort --topic {topic} --partition {partition} --start-offset {start}; "
            "without: rawlog restore ends it"
        )
    elif status in ENDING:
        advice = (
            f"{topic}-{partition}: the transaction at offset {start:,} is {ENDING[status]} as soon as a broker starts"
        )
    else:
        advice = ""
    return OpenTransaction(
        topic,
        partition,
        number,
        producer.epoch,
        start,
        producer.last_offset,
        None if producer.timestamp < 0 else topics.milliseconds(producer.timestamp),
        None if producer.coordinator_epoch == NONE else producer.coordinator_epoch,
        None if state is None else state["transactional_id"],
        status,
        None if state is None else state["timeout_ms"],
        is_hanging,
        advice,
    )
