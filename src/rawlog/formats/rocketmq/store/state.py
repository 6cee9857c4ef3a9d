"""What a store as a whole shows: settings with their lag, and what became of transactions, delayed messages and retries.

A message's TOPIC says where it is; REAL_TOPIC and its like where it belongs, and stay in the copy that was delivered. So the state of a
message follows from the topic it is in, never from its properties alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rawlog.formats.rocketmq import (
    DELAYS,
    GROUPS,
    OFFSETS,
    RETRIES,
    SCHEDULED,
    TOPICS,
    TRANSACTIONS,
    above,
    config,
    parts,
)
from rawlog.formats.rocketmq.kernels import entries as fields
from rawlog.formats.rocketmq.layouts import (
    BATCH_UNIT,
    CHECK_MAX_TOPIC,
    DELAY_LEVELS_MS,
    DLQ_PREFIX,
    HALF_TOPIC,
    NAME_VALUE,
    OP_TOPIC,
    PAIR_END,
    PRE_BLANK_SIZE,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_CHECK,
    TIMER_TOPIC,
    TRANSACTION_MASK,
    UNIT,
    SysFlag,
)
from rawlog.formats.rocketmq.messages import Messages
from rawlog.formats.rocketmq.store import dispatch
from rawlog.formats.rocketmq.store.settings import delays_of
from rawlog.io.storage import Source
from rawlog.kernels import columns
from rawlog.model.errors import CorruptError, RawlogError
from rawlog.model.format import File
from rawlog.model.groups import Group, Position, TransactionalId, Transactions
from rawlog.model.table import Table
from rawlog.model.text import java_text

Batches = Iterator[pa.RecordBatch]
Options = Mapping[str, str]
COMMITTED_MASK = int(SysFlag.COMMIT)
#: The most queues without a message that are listed for a topic.
MOST_QUEUES = 1 << 12


Fold = Callable[[Sequence[File], Options], Batches]


def guarded(fold: Fold) -> Fold:
    """A fold that raises only RawlogError: CorruptError for values that no column can hold."""

    @wraps(fold)
    def run(files: Sequence[File], options: Options) -> Batches:
        try:
            yield from fold(files, options)
        except RawlogError:
            raise
        except (
            ArithmeticError,
            AttributeError,
            KeyError,
            RecursionError,
            TypeError,
            ValueError,
            pa.ArrowException,
        ) as error:
            raise CorruptError(f"settings of an unexpected shape: {error}", format="rocketmq.config") from None

    return run


def batch_of(table: Table, rows: list[dict[str, Any]]) -> Batches:
    """The rows of a fold, if there are any."""
    if rows:
        yield pa.RecordBatch.from_pylist(rows, schema=table.schema)


def _text(value: Any) -> str:
    """A value of settings as text that a column can hold."""
    text = value if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
    return text.encode("utf-8", "backslashreplace").decode()


def _texts(table: Mapping[str, Any]) -> list[tuple[str, str]]:
    return sorted((_text(key), _text(each)) for key, each in table.items())


def _optional(value: Any) -> str | None:
    return None if value is None else _text(value)


def _permission(value: Any) -> str:
    number = value if isinstance(value, int) else 0
    return "".join(letter if number & bit else "-" for letter, bit in (("r", 4), ("w", 2), ("i", 1)))


@guarded
def topics(files: Sequence[File], options: Options) -> Batches:
    """`config/topics.json`."""
    rows = []
    for file, value in config.load(files, "topics.json"):
        for name, topic in sorted((value.get("topicConfigTable") or {}).items()):
            rows.append(
                {
                    "path": file.path,
                    "topic": _text(name),
                    "read_queues": topic.get("readQueueNums"),
                    "write_queues": topic.get("writeQueueNums"),
                    "permission": _permission(topic.get("perm")),
                    "is_ordered": topic.get("order"),
                    "filter_type": _optional(topic.get("topicFilterType")),
                    "sys_flag": topic.get("topicSysFlag"),
                    "attributes": _texts(topic.get("attributes") or {}),
                }
            )
    return batch_of(TOPICS, rows)


@guarded
def groups(files: Sequence[File], options: Options) -> Batches:
    """`config/subscriptionGroup.json`."""
    rows = []
    for file, value in config.load(files, "subscriptionGroup.json"):
        for name, group in sorted((value.get("subscriptionGroupTable") or {}).items()):
            rows.append(
                {
                    "path": file.path,
                    "group": _text(name),
                    "is_enabled": group.get("consumeEnable"),
                    "is_orderly": group.get("consumeMessageOrderly"),
                    "retry_queues": group.get("retryQueueNums"),
                    "retry_max_times": group.get("retryMaxTimes"),
                    "settings": _texts(group),
                }
            )
    return batch_of(GROUPS, rows)


def queues_of(files: Iterable[File]) -> dict[tuple[str | None, str, int], Bounds]:
    """The bounds of every queue, as its files show, by store, topic and queue id."""
    first_log: dict[str | None, int] = {}
    queues: dict[tuple[str | None, str, int], list[File]] = {}
    for file in files:
        place = file.place
        if place.state is not None or file.problem is not None:
            continue
        if file.format == "rocketmq.commitlog" and place.start_offset is not None:
            first_log[place.group] = min(place.start_offset, first_log.get(place.group, place.start_offset))
        elif file.format in ("rocketmq.consumequeue", "rocketmq.batchconsumequeue"):
            queues.setdefault((place.group, str(place.topic), int(place.partition or 0)), []).append(file)
    return {key: _bounds(queue_files, first_log.get(key[0], 0)) for key, queue_files in queues.items()}


def queue_bounds(files: Iterable[File]) -> dict[tuple[str | None, str, int], tuple[int, int]]:
    """First and next offset of every queue, as its files show, by store, topic and queue id."""
    return {key: (bounds.low, bounds.high) for key, bounds in queues_of(files).items()}


@dataclass(frozen=True, slots=True)
class Bounds:
    """First and next offset of a queue, and where its first and last message are in the commit log."""

    low: int
    high: int
    first: int | None = None
    last: int | None = None


def _bounds(files: list[File], log_start: int) -> Bounds:
    files = sorted(files, key=lambda file: file.place.start_offset or 0)
    batch = files[0].format == "rocketmq.batchconsumequeue"
    layout = BATCH_UNIT if batch else UNIT
    low, first, last = None, None, None
    high = 0
    for file in files:
        with Source(file.path) as source:
            rows = layout.view(np.frombuffer(source.read(0, source.size), np.uint8))
        valid = (rows["physical_offset"] >= 0) & (rows["size"] > 0)
        count = int(np.argmin(valid)) if not valid.all() else len(rows)
        rows = rows[:count]
        numbers = (
            rows["base_offset"].astype(np.int64)
            if batch
            else (file.place.start_offset or 0) // UNIT.size + np.arange(count)
        )
        if count:
            high = int(numbers[-1]) + (int(rows["batch_size"][-1]) if batch else 1)
            served = np.flatnonzero((rows["physical_offset"] >= log_start) & (rows["size"] != PRE_BLANK_SIZE))
            if low is None and served.size:
                low, first = int(numbers[served[0]]), int(rows["physical_offset"][served[0]])
            if served.size:
                last = int(rows["physical_offset"][served[-1]])
    return Bounds(high if low is None else low, high, first, last)


@guarded
def offsets(files: Sequence[File], options: Options) -> Batches:
    """Consumer offsets with the lag of each queue; with light queues on, ordinary offsets are in the other file."""
    bounds, empty = queue_bounds(files), _unused_queues(files)
    rows = []
    for file, group, (topic, queue_id), offset in committed_offsets(files):
        key = (file.place.group, topic, queue_id)
        low, high = bounds.get(key, (0, 0) if key in empty else (None, None))
        rows.append(_offset_row(file, group, topic, queue_id, offset, low, high))
    return batch_of(OFFSETS, rows)


def _unused_queues(files: Sequence[File]) -> set[tuple[str | None, str, int]]:
    """The queues of known topics, in stores whose consume queues are files: a broker makes no file for a queue before its first message."""
    stores = {
        file.place.group for file in files if file.format in ("rocketmq.consumequeue", "rocketmq.batchconsumequeue")
    }
    unused: set[tuple[str | None, str, int]] = set()
    for file, value in config.load(files, "topics.json"):
        if file.place.group in stores:
            for name, topic in (value.get("topicConfigTable") or {}).items():
                queues = range(min(topic.get("readQueueNums") or 0, MOST_QUEUES))
                unused.update((file.place.group, name, number) for number in queues)
    return unused


def committed_offsets(files: Sequence[File]) -> Iterator[tuple[File, str, dispatch.Queue, int]]:
    """The committed offsets of consumer groups, each with its file. ValueError and the like for settings of an unexpected shape."""
    for name in ("consumerOffset.json", "lmqConsumerOffset.json"):
        for file, value in config.load(files, name):
            for key, queues in sorted((value.get("offsetTable") or {}).items()):
                topic, _, group = key.partition("@")
                for queue_id, offset in sorted(queues.items(), key=lambda pair: int(pair[0])):
                    yield file, group, (topic, int(queue_id)), offset
            for key, offset in sorted((value.get("lmqOffsetTable") or {}).items()):
                topic, _, group = key.partition("@")
                yield file, group, (topic, 0), offset


def consumer_groups(files: Sequence[File], errors: str) -> list[Group]:
    """Every consumer group with a setting or an offset. Settings are small files: they are readable or not."""
    by_name: dict[str, Group] = {}
    for batch in groups(files, {"errors": errors}):
        for name in batch["group"].to_pylist():
            by_name.setdefault(name, Group("rocketmq", name))
    for batch in offsets(files, {"errors": errors}):
        for row in batch.to_pylist():
            group = by_name.setdefault(row["group"], Group("rocketmq", row["group"]))
            bounds = row["min_offset"], row["max_offset"]
            group.positions.append(Position(row["topic"], row["queue_id"], row["offset"], *bounds))
    return list(by_name.values())


def unread_groups(files: Sequence[File]) -> Iterator[str]:
    """Signs of consumer groups that cannot be read."""
    folders = {above(file.path, 1) for file in files if file.format == "rocketmq.configdatabase"}
    for folder in sorted(folders):
        if parts(folder)[0] in GROUP_DATABASES:
            yield f"{folder}: consumer groups and offsets are in a RocksDB database, which cannot be read yet"


GROUP_DATABASES = ("subscriptionGroups", "consumerOffsets", "metadata", "rdb")
"""The databases of settings that have groups, offsets or both."""


def _offset_row(
    file: File, group: str, topic: str, queue_id: int, offset: int, low: int | None, high: int | None
) -> dict[str, Any]:
    return {
        "path": file.path,
        "group": _text(group),
        "topic": _text(topic),
        "queue_id": queue_id,
        "offset": offset,
        "min_offset": low,
        "max_offset": high,
        "lag": _difference(high, offset),
    }


def _difference(high: int | None, offset: int) -> int | None:
    """How far an offset is from the end of its queue; None if there is no queue, or no number can say it."""
    lag = None if high is None else high - offset
    return lag if lag is not None and abs(lag) < 1 << 63 else None


@guarded
def delays(files: Sequence[File], options: Options) -> Batches:
    """`config/delayOffset.json`."""
    bounds = queue_bounds(files)
    lengths = delays_of(files, options)
    rows = []
    for file, value in config.load(files, "delayOffset.json"):
        for key, offset in sorted((value.get("offsetTable") or {}).items(), key=lambda pair: int(pair[0])):
            level = int(key)
            _, high = bounds.get((file.place.group, SCHEDULE_TOPIC, level - 1), (None, None))
            delay = lengths.of_level(level)[0] if 0 < level <= max(len(DELAY_LEVELS_MS), lengths.highest) else None
            pending = _difference(high, offset)
            rows.append(
                {
                    "path": file.path,
                    "level": level,
                    "delay_ms": delay,
                    "offset": offset,
                    "max_offset": high,
                    "pending": pending,
                }
            )
    return batch_of(DELAYS, rows)


@dataclass(slots=True)
class StoredMessage:
    """A message of interest, as plain values."""

    topic: str
    queue_id: int
    queue_offset: int
    physical: int
    sys_flag: int
    prepared: int
    born: int
    stored: int
    reconsumed: int
    properties: dict[str, str]
    body: bytes

    @property
    def unique_key(self) -> str | None:
        return self.properties.get("UNIQ_KEY")

    @property
    def real(self) -> tuple[str | None, int | None]:
        number = _number(self.properties.get("REAL_QID", ""))
        return self.properties.get("REAL_TOPIC"), number if number is not None and abs(number) < 1 << 31 else None


def _number(text: str) -> int | None:
    """A whole number of at most 18 digits, which every column holds."""
    return int(text) if text.isascii() and len(text) <= 19 and text.removeprefix("-").isdecimal() else None


def is_system(topic: str) -> bool:
    """Whether a topic is one that brokers make for themselves."""
    return topic in (HALF_TOPIC, OP_TOPIC, CHECK_MAX_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC) or topic.startswith(
        (RETRY_PREFIX, DLQ_PREFIX)
    )


def entries_of(files: Sequence[File], options: Options) -> Iterator[StoredMessage]:
    """The messages in system topics, and those that came from one (with REAL_TOPIC or a commit). DataError at damage unless the options say
    otherwise.
    """
    for rows in dispatch.loaded_messages(files, options.get("errors", "raise")):
        yield from entries_in(rows)


def entries_in(rows: Messages) -> Iterator[StoredMessage]:
    """The entries of system topics among messages."""
    if not len(rows):
        return
    topics = columns.spans(rows.data, rows[fields.F_TOPIC], rows[fields.F_TOPIC_SIZE]).dictionary_encode()
    names = [java_text(name) for name in topics.dictionary.to_pylist()]
    codes = np.asarray(topics.indices)
    system = np.array([is_system(name) for name in names])[codes]
    _, sizes = dispatch.property_spans(rows, "REAL_TOPIC")
    for row in np.flatnonzero((system | (sizes >= 0)) & ~rows.fillers).tolist():
        yield _entry(rows, row, names[codes[row]])


def _entry(rows: Messages, row: int, topic: str) -> StoredMessage:
    def number(field: int) -> int:
        return int(rows[field][row])

    start, size = number(fields.F_PROPERTIES), number(fields.F_PROPERTIES_SIZE)
    body, body_size = number(fields.F_BODY), number(fields.F_BODY_SIZE)
    return StoredMessage(
        topic,
        number(fields.F_QUEUE_ID),
        number(fields.F_QUEUE_OFFSET),
        number(fields.F_PHYSICAL),
        number(fields.F_SYS_FLAG),
        number(fields.F_PREPARED),
        number(fields.F_BORN_TIME),
        number(fields.F_STORE_TIME),
        number(fields.F_RECONSUME),
        _properties(bytes(rows.data[start : start + size])),
        bytes(rows.data[body : body + body_size]),
    )


def _properties(raw: bytes) -> dict[str, str]:
    pairs = {}
    for piece in raw.split(bytes([PAIR_END])):
        name, _, value = piece.partition(bytes([NAME_VALUE]))
        if name and value:
            pairs[java_text(name)] = java_text(value)
    return pairs


def time_of(ms: int) -> int | None:
    """Microseconds; None for a number that is no time."""
    return ms * 1000 if abs(ms) < 1 << 50 else None


@guarded
def transactions(files: Sequence[File], options: Options) -> Batches:
    """Half messages, copies grouped, with their end: committed before rolled back before discarded before pending."""
    halves: dict[str, list[StoredMessage]] = {}
    commits: dict[int, int] = {}
    committed_keys: dict[tuple[str, str], int] = {}
    finished: set[tuple[int, int]] = set()
    discarded: set[str] = set()
    for entry in entries_of(files, options):
        if entry.topic == HALF_TOPIC:
            halves.setdefault(entry.unique_key or f"@{entry.physical}", []).append(entry)
        elif entry.topic == OP_TOPIC:
            numbers = (piece for piece in entry.body.split(b",") if piece.isdigit() and len(piece) <= 19)
            finished.update((entry.queue_id, int(piece)) for piece in numbers)
        elif entry.topic == CHECK_MAX_TOPIC:
            discarded.add(entry.unique_key or "")
        elif entry.sys_flag & TRANSACTION_MASK == COMMITTED_MASK:
            commits[entry.prepared] = entry.physical
            if entry.unique_key:
                committed_keys[entry.topic, entry.unique_key] = entry.physical
    rows = []
    for key, copies in halves.items():
        first, newest = copies[0], copies[-1]
        topic, queue_id = first.real
        commit = next((commits[copy.physical] for copy in copies if copy.physical in commits), None)
        commit = commit if commit is not None else committed_keys.get((topic or "", key))
        state = "pending"
        if commit is not None:
            state = "committed"
        elif any((copy.queue_id, copy.queue_offset) in finished for copy in copies):
            state = "rolled_back"
        elif key in discarded:
            state = "discarded"
        checks = _number(newest.properties.get("TRANSACTION_CHECK_TIMES", "0"))
        rows.append(
            {
                "unique_key": first.unique_key,
                "topic": topic,
                "queue_id": queue_id,
                "producer_group": first.properties.get("PGROUP"),
                "state": state,
                "half_offset": newest.queue_offset,
                "half_physical_offset": first.physical,
                "copies": len(copies),
                "checks": checks if checks is not None and 0 <= checks < 1 << 31 else None,
                "commit_physical_offset": commit,
                "born_timestamp": time_of(first.born),
            }
        )
    return batch_of(TRANSACTIONS, rows)


def transactions_of(files: Sequence[File], errors: str) -> Transactions:
    """The transactions of all stores, by the unique key of the half message; open ones first."""
    result = Transactions("rocketmq")
    for batch in transactions(files, {"errors": errors}):
        for row in batch.cast(_with_numbers(batch.schema)).to_pylist():
            queue = "" if row["topic"] is None else f"{row['topic']}-{row['queue_id']}"
            name = row["unique_key"] or f"@{row['half_physical_offset']}"
            places = (queue,) if queue else ()
            result.ids.append(TransactionalId(name, None, None, row["state"], None, places, row["born_timestamp"]))
    result.ids.sort(key=lambda transaction: transaction.status != "pending")
    return result


def _with_numbers(schema: pa.Schema) -> pa.Schema:
    """The same with times as microseconds."""
    return pa.schema(
        [pa.field(column.name, pa.int64() if pa.types.is_timestamp(column.type) else column.type) for column in schema]
    )


@guarded
def scheduled(files: Sequence[File], options: Options) -> Batches:
    """Delayed and timer messages: due when, delivered or not."""
    waiting: list[StoredMessage] = []
    delivered: dict[tuple[str, str], int] = {}
    cancelled: set[str] = set()
    for entry in entries_of(files, options):
        if entry.topic in (SCHEDULE_TOPIC, TIMER_TOPIC):
            waiting.append(entry)
            if "TIMER_DEL_UNIQKEY" in entry.properties:
                cancelled.add(entry.properties["TIMER_DEL_UNIQKEY"].rpartition("+")[2])
        elif entry.unique_key:
            delivered[entry.topic, entry.unique_key] = entry.physical
    done = {}
    for file, value in config.load(files, "delayOffset.json"):
        done.update(
            {(file.place.group, int(level)): int(offset) for level, offset in (value.get("offsetTable") or {}).items()}
        )
    reached = max(read_until(files), default=0)
    lengths = delays_of(files, options)
    rows = []
    for entry in waiting:
        topic, queue_id = entry.real
        copy = delivered.get((topic or "", entry.unique_key or ""))
        copy = copy if copy is not None and copy > entry.physical else None
        if entry.topic == SCHEDULE_TOPIC:
            level = entry.queue_id + 1
            due, _ = lengths.due_at(entry.physical, entry.stored, max(1, level))
            was_read = any(
                entry.queue_offset < offset for (_, delay_level), offset in done.items() if delay_level == level
            )
            state = "delivered" if copy is not None or was_read else "pending"
        else:
            level, text = None, entry.properties.get("TIMER_OUT_MS", "")
            due = entry.stored if (time := _number(text)) is None else time
            state = "delivered" if copy is not None else "cancelled" if entry.unique_key in cancelled else "pending"
            if state == "pending" and reached and due <= reached and "TIMER_DEL_UNIQKEY" in entry.properties:
                state = "cancelled"
        rows.append(
            {
                "kind": "delay" if entry.topic == SCHEDULE_TOPIC else "timer",
                "topic": topic,
                "queue_id": queue_id,
                "unique_key": entry.unique_key,
                "level": level,
                "store_timestamp": time_of(entry.stored),
                "due_timestamp": time_of(due),
                "state": state,
                "physical_offset": entry.physical,
                "delivered_physical_offset": copy,
            }
        )
    return batch_of(SCHEDULED, rows)


def read_until(files: Iterable[File]) -> Iterator[int]:
    """The time up to which each store's timer has come."""
    for file in files:
        if file.format == "rocketmq.timercheck" and file.problem is None:
            with Source(file.path) as source:
                head = source.read(0, TIMER_CHECK.size)
            yield int.from_bytes(head[: TIMER_CHECK.after("last_read_timestamp")], "big", signed=True)


FIRST_POP = "1ST_POP_TIME"
"""The property that a message has once it was popped and not acknowledged."""


@guarded
def retries(files: Sequence[File], options: Options) -> Batches:
    """Messages that were sent back, and dead letters, with their original message."""
    names = _Names.of(files)
    rows = [row for entry in entries_of(files, options) if (row := _row(entry, names)) is not None]
    searched = {(row["source_topic"], row["unique_key"]) for row in rows if row["source_physical_offset"] is None}
    addresses = _find_messages(files, {(topic, key) for topic, key in searched if topic and key}, options)
    for row in rows:
        if row["source_physical_offset"] is None:
            row["source_physical_offset"] = addresses.get((row["source_topic"], row["unique_key"]))
    return batch_of(RETRIES, rows)


def _row(entry: StoredMessage, names: _Names) -> dict[str, Any] | None:
    topic, real = entry.topic, entry.properties.get("REAL_TOPIC", "")
    if topic in (SCHEDULE_TOPIC, TIMER_TOPIC) and real.startswith(RETRY_PREFIX):
        kind, group = "scheduled retry", real.removeprefix(RETRY_PREFIX)
    elif topic.startswith(RETRY_PREFIX):
        kind, group = "retry", topic.removeprefix(RETRY_PREFIX)
    elif topic.startswith(DLQ_PREFIX):
        kind, group = "dead letter", topic.removeprefix(DLQ_PREFIX)
    else:
        return None
    source = entry.properties.get("DLQ_ORIGIN_TOPIC") or entry.properties.get("RETRY_TOPIC")
    if kind != "dead letter":
        group, popped = names.split_retry_name(group, was_popped=FIRST_POP in entry.properties)
        source = source or popped
    source_id = entry.properties.get("DLQ_ORIGIN_MESSAGE_ID") or entry.properties.get("ORIGIN_MESSAGE_ID")
    return {
        "kind": kind,
        "group": group,
        "source_topic": source,
        "source_physical_offset": _address(source_id),
        "source_message_id": source_id,
        "reconsume_times": entry.reconsumed,
        "unique_key": entry.unique_key,
        "topic": topic,
        "queue_offset": entry.queue_offset,
        "physical_offset": entry.physical,
        "store_timestamp": time_of(entry.stored),
    }


def _address(message_id: str | None) -> int | None:
    """The physical offset at the end of a message id."""
    if message_id is None or len(message_id) not in (32, 56):
        return None
    try:
        return int(message_id[-16:], 16)
    except ValueError:
        return None


@dataclass(slots=True)
class _Names:
    """The groups and topics that a store knows."""

    groups: set[str] = field(default_factory=set)
    topics: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, files: Sequence[File]) -> _Names:
        names = cls()
        for _, value in config.load(files, "subscriptionGroup.json"):
            names.groups.update(value.get("subscriptionGroupTable") or {})
        for _, value in config.load(files, "topics.json"):
            names.topics.update(value.get("topicConfigTable") or {})
        names.topics.update(file.place.topic for file in files if file.place.topic is not None)
        return names

    def split_retry_name(self, name: str, *, was_popped: bool) -> tuple[str, str | None]:
        """The group of a retry topic and, where messages are popped, the topic they came from: `group_topic`, on request `group+topic`.

        Both names may have a `_`, so the groups and topics that the store knows decide.
        """
        group, plus, topic = name.partition("+")
        if plus:
            return group, topic
        if name in self.groups and not was_popped:
            return name, None
        pairs = [(name[:at], name[at + 1 :]) for at, letter in enumerate(name) if letter == "_"]
        with_topic = [pair for pair in pairs if pair[1] in self.topics]
        certain = [pair for pair in with_topic if pair[0] in self.groups]
        if certain or (with_topic and was_popped):
            return (certain or with_topic)[0]
        return name, None


def _find_messages(
    files: Sequence[File], identities: set[tuple[str, str]], options: Options
) -> dict[tuple[str, str], int]:
    """Where the one message of a topic with a unique key is. Those of a batch may all have the same: then none is given."""
    addresses: dict[tuple[str, str], int] = {}
    if not identities:
        return addresses
    several: set[tuple[str, str]] = set()
    topics = pa.array(sorted({topic.encode() for topic, _ in identities}), pa.binary())
    keys = pa.array(sorted({key.encode() for _, key in identities}), pa.binary())
    for rows in dispatch.loaded_messages(files, options.get("errors", "raise")):
        starts, sizes = dispatch.property_spans(rows, "UNIQ_KEY")
        topic = columns.spans(rows.data, rows[fields.F_TOPIC], rows[fields.F_TOPIC_SIZE])
        key = columns.spans(rows.data, np.maximum(starts, 0), np.maximum(sizes, 0))
        for row in np.flatnonzero(pc.and_(pc.is_in(topic, topics), pc.is_in(key, keys))).tolist():
            pair = (topic[row].as_py().decode(), key[row].as_py().decode())
            if pair in addresses:
                several.add(pair)
            addresses[pair] = int(rows[fields.F_PHYSICAL][row])
    return {pair: address for pair, address in addresses.items() if pair not in several}


FOLDS: dict[str, Callable[[Sequence[File], Options], Batches]] = {
    TOPICS.name: topics,
    GROUPS.name: groups,
    OFFSETS.name: offsets,
    DELAYS.name: delays,
    TRANSACTIONS.name: transactions,
    SCHEDULED.name: scheduled,
    RETRIES.name: retries,
}
"""The tables that are made of a whole store, by name."""
