"""RocketMQ: what a broker leaves in its store directory."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rawlog.formats.rocketmq.layouts import (
    BLANK,
    DLEDGER,
    DLEDGER_MAGIC,
    HEAD,
    LARGEST_FILE,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    SMALLEST_V1,
)
from rawlog.model.errors import RawlogError
from rawlog.model.format import Deferred, Family, File, Format, Origin, Place
from rawlog.model.table import RECORDS, Column, Table

if TYPE_CHECKING:
    from rawlog.model.store import Store


# Tables.


_MESSAGE = (
    Column("path", "string"),
    Column("position", "bigint", "of the entry in its file"),
    Column("physical_offset", "bigint"),
    Column("size", "int", "of the whole entry"),
    Column("version", "int", "1 or 2"),
    Column("body_crc", "bigint"),
    Column("crc_ok", "boolean", "whether the body as stored has that checksum"),
    Column("queue_id", "int"),
    Column("flag", "int"),
    Column("queue_offset", "bigint"),
    Column("sys_flag", "int"),
    Column("born_timestamp", "timestamp"),
    Column("born_host", "string", "address:port"),
    Column("store_timestamp", "timestamp"),
    Column("store_host", "string", "address:port"),
    Column("reconsume_times", "int"),
    Column("prepared_transaction_offset", "bigint"),
    Column("codec", "string", "none, zlib, lz4, zstd"),
    Column("body", "binary", "decompressed"),
    Column("topic", "string"),
    Column("properties", "map<string,string>", "as RocketMQ shows them: of a repeated name the last"),
    Column("keys", "string", "property KEYS"),
    Column("tags", "string", "property TAGS"),
    Column("message_id", "string", "upstream offsetMsgId: store host and physical offset"),
    Column("unique_key", "string", "property UNIQ_KEY"),
    Column("transaction", "string", "none, prepared, commit, rollback"),
    Column("stale", "boolean", "after the logical end: a copy of the message at the physical offset that it names"),
)

MESSAGES = Table(
    "rocketmq.messages",
    *_MESSAGE,
    about="one row per entry of the commit log",
    offsets=("queue_offset", "queue_offset"),
    times=("store_timestamp", "store_timestamp"),
    payload={"body": "value"},
    row_key={"topic": "topic", "queue_id": "partition", "queue_offset": "offset"},
)
COMPACTED = Table(
    "rocketmq.compacted",
    *_MESSAGE,
    about="one row per entry of a compaction topic's own log (copies of messages in the commit log)",
    offsets=("queue_offset", "queue_offset"),
    times=("store_timestamp", "store_timestamp"),
)
QUEUES = Table(
    "rocketmq.queues",
    Column("topic", "string"),
    Column("queue_id", "int"),
    Column("queue_offset", "bigint", "plain: number of the unit; batch: first of its messages; ext: null"),
    Column("physical_offset", "bigint"),
    Column("size", "int", "of the whole message; ext: of the unit"),
    Column("tag_hash", "bigint"),
    Column("kind", "string", "plain, batch, ext"),
    Column("store_timestamp", "timestamp", "batch and ext"),
    Column("batch_size", "int", "messages; batch"),
    Column("path", "string"),
    about="one row per unit of a consume queue",
    offsets=("queue_offset", "queue_offset"),
)
KEYS = Table(
    "rocketmq.keys",
    Column("path", "string"),
    Column("key_hash", "int"),
    Column("physical_offset", "bigint"),
    Column("timestamp", "timestamp", "store time in whole seconds after the file's first"),
    Column("previous", "int", "number of the next older entry of the slot"),
    Column("number", "int", "of the entry in its file, from 1"),
    about="one row per entry of the key index",
    times=("timestamp", "timestamp"),
)
CHECKPOINTS = Table(
    "rocketmq.checkpoint",
    Column("path", "string"),
    Column("physic_timestamp", "timestamp"),
    Column("logics_timestamp", "timestamp"),
    Column("index_timestamp", "timestamp"),
    Column("master_flushed_offset", "bigint"),
    Column("confirm_physical_offset", "bigint"),
    Column("logics_physical_offset", "bigint", "5.5.0 on: the last message in the consume queues; 0 if none is known"),
    about="up to where a store is on disk",
)
TIMERS = Table(
    "rocketmq.timers",
    Column("path", "string"),
    Column("timer_position", "bigint", "of the unit in the whole timer log"),
    Column("previous_position", "bigint"),
    Column("magic", "int"),
    Column("write_timestamp", "timestamp"),
    Column("due_timestamp", "timestamp"),
    Column("physical_offset", "bigint"),
    Column("size", "int", "of the message"),
    Column("topic_hash", "int"),
    about="one row per unit of the timer log",
    times=("write_timestamp", "due_timestamp"),
)
WHEEL = Table(
    "rocketmq.wheel",
    Column("path", "string"),
    Column("position", "bigint"),
    Column("due_timestamp", "timestamp"),
    Column("first_position", "bigint", "in the timer log"),
    Column("last_position", "bigint"),
    Column("count", "int"),
    Column("magic", "int"),
    about="one row per used slot of the timer wheel",
    times=("due_timestamp", "due_timestamp"),
)
TOPICS = Table(
    "rocketmq.topics",
    Column("path", "string"),
    Column("topic", "string"),
    Column("read_queues", "int"),
    Column("write_queues", "int"),
    Column("permission", "string", "of r, w and i (inherited)"),
    Column("is_ordered", "boolean"),
    Column("filter_type", "string"),
    Column("sys_flag", "int"),
    Column("attributes", "map<string,string>"),
    about="one row per topic of config/topics.json",
)
GROUPS = Table(
    "rocketmq.groups",
    Column("path", "string"),
    Column("group", "string"),
    Column("is_enabled", "boolean"),
    Column("is_orderly", "boolean"),
    Column("retry_queues", "int"),
    Column("retry_max_times", "int"),
    Column("settings", "map<string,string>", "everything the file says of the group"),
    about="one row per consumer group of config/subscriptionGroup.json",
)
OFFSETS = Table(
    "rocketmq.offsets",
    Column("path", "string"),
    Column("group", "string"),
    Column("topic", "string"),
    Column("queue_id", "int"),
    Column("offset", "bigint", "the next one to consume"),
    Column("min_offset", "bigint", "of the queue, as its files show"),
    Column("max_offset", "bigint", "of the queue, exclusive"),
    Column("lag", "bigint", "max_offset - offset"),
    about="one row per group and queue of config/consumerOffset.json or lmqConsumerOffset.json",
    offsets=("offset", "offset"),
)
DELAYS = Table(
    "rocketmq.delays",
    Column("path", "string"),
    Column("level", "int"),
    Column("delay_ms", "bigint", "by broker.conf, by existing units, else by default settings"),
    Column("offset", "bigint", "the next one to deliver of queue level - 1 of SCHEDULE_TOPIC_XXXX"),
    Column("max_offset", "bigint"),
    Column("pending", "bigint"),
    about="one row per delay level of config/delayOffset.json",
    offsets=("offset", "offset"),
)
TRANSACTIONS = Table(
    "rocketmq.transactions",
    Column("unique_key", "string"),
    Column("topic", "string", "the real one"),
    Column("queue_id", "int", "the real one"),
    Column("producer_group", "string"),
    Column("state", "string", "committed, rolled_back, discarded, pending"),
    Column("half_offset", "bigint", "queue offset of the newest copy in the half topic"),
    Column("half_physical_offset", "bigint", "of the first copy"),
    Column("copies", "int", "of the half message: the first and one per check"),
    Column("checks", "int"),
    Column("commit_physical_offset", "bigint"),
    Column("born_timestamp", "timestamp"),
    about="one row per transactional message, with its outcome",
    offsets=("half_offset", "half_offset"),
    times=("born_timestamp", "born_timestamp"),
)
SCHEDULED = Table(
    "rocketmq.scheduled",
    Column("kind", "string", "delay or timer"),
    Column("topic", "string", "the real one"),
    Column("queue_id", "int", "the real one"),
    Column("unique_key", "string"),
    Column("level", "int", "of a delayed message"),
    Column("store_timestamp", "timestamp"),
    Column("due_timestamp", "timestamp"),
    Column("state", "string", "delivered, pending, cancelled"),
    Column("physical_offset", "bigint"),
    Column("delivered_physical_offset", "bigint"),
    about="one row per delayed or timer message: due when, delivered or not",
    times=("due_timestamp", "due_timestamp"),
)
RETRIES = Table(
    "rocketmq.retries",
    Column("kind", "string", "retry, scheduled retry, dead letter"),
    Column("group", "string"),
    Column("source_topic", "string"),
    Column("source_physical_offset", "bigint", "of the message first consumed, by its id"),
    Column("source_message_id", "string"),
    Column("reconsume_times", "int"),
    Column("unique_key", "string"),
    Column("topic", "string", "where the entry is"),
    Column("queue_offset", "bigint"),
    Column("physical_offset", "bigint"),
    Column("store_timestamp", "timestamp"),
    about="one row per retried message or dead letter, followed to its source",
    times=("store_timestamp", "store_timestamp"),
)
FOLDS = (TOPICS, GROUPS, OFFSETS, DELAYS, TRANSACTIONS, SCHEDULED, RETRIES)


# Names and first bytes: what says which file one is.


_LOG_NAME = re.compile(r"\d{20}")
_INDEX_NAME = re.compile(r"\d{17}")
_ROCKSDB_NAME = re.compile(r"CURRENT|IDENTITY|LOCK|LOG(\.old\.\d+)?|(MANIFEST|OPTIONS)-\d+|\d{6,}\.(sst|log|blob)")
_LARGEST = (1 << 63) - 1
COMMIT_LOG_NAME = "rocketmq.commitlog"

CONFIGS = (
    "topics.json",
    "subscriptionGroup.json",
    "consumerOffset.json",
    "lmqConsumerOffset.json",
    "delayOffset.json",
    "consumerFilter.json",
    "consumerOrderInfo.json",
    "topicQueueMapping.json",
    "messageRequestMode.json",
    "tieredStoreMetadata.json",
    "timermetrics",
    "transactionMetrics",
)

CONFIG_DATABASES = ("topics", "subscriptionGroups", "consumerOffsets", "metadata", "rdb")


def parts(path: str) -> list[str]:
    """The names of a path or URL, the last first."""
    path = path.partition("?")[0] if "://" in path else path
    return path.split("/")[::-1]


def above(path: str, levels: int) -> str:
    """The path so many levels up."""
    path = path.partition("?")[0] if "://" in path else path
    for _ in range(levels):
        path = path.rpartition("/")[0]
    return path


def _number(name: str) -> int | None:
    return int(name) if _LOG_NAME.fullmatch(name) and int(name) <= _LARGEST else None


def is_commit_log(path: str) -> Place | None:
    """`commitlog/<20 digits>`, also of a directory such as commitlog2, and `dledger-<id>/data/<20 digits>`."""
    names = parts(path)
    start = _number(names[0])
    if start is None or len(names) < 2:
        return None
    if names[1].lower().startswith("commitlog"):
        return Place(start_offset=start, group=above(path, 2))
    if len(names) > 2 and names[1] == "data" and names[2].startswith("dledger-"):
        return Place(start_offset=start, group=above(path, 3))
    return None


def is_dledger_index(path: str) -> Place | None:
    """`dledger-<id>/index/<20 digits>`."""
    names = parts(path)
    start = _number(names[0])
    if start is not None and len(names) > 2 and names[1] == "index" and names[2].startswith("dledger-"):
        return Place(start_offset=start, group=above(path, 3))
    return None


def below_root(file: File) -> str:
    """The path of a file below its store's root; commit-log files of all disks are in one directory."""
    names = parts(file.path)
    if (
        file.format == COMMIT_LOG_NAME
        and _number(names[0]) is not None
        and not "".join(names[2:3]).startswith("dledger-")
    ):
        return f"commitlog/{names[0]}"
    root = file.place.group or above(file.path, 1)
    return file.path[len(root) :].lstrip("/")


def store_name(store: Store) -> str | None:
    """What a store may be called by other files than its name: by its DLedger group, or by its `brokerIdentity`, which has to be read."""
    for file in store:
        if file.format == COMMIT_LOG_NAME and "".join(parts(file.path)[2:3]).startswith("dledger-"):
            return parts(file.path)[2]
    return "broker" if any(file.format == "rocketmq.identity" for file in store) else None


def is_dledger_state(path: str) -> Place | None:
    """`dledger-<id>/checkpoint` and `currterm`: text, and not what a store's own `checkpoint` is."""
    names = parts(path)
    if (
        len(names) > 1
        and names[1].startswith("dledger-")
        and names[0].removesuffix(".bak") in ("checkpoint", "currterm")
    ):
        return Place(group=above(path, 2), state="backup" if names[0].endswith(".bak") else None)
    return None


def queue_file(folder: str, levels: int = 4, parent: str | None = None) -> Callable[[str], Place | None]:
    """A matcher for `<folder>/<topic>/<queue id>/<20 digits>`."""

    def match(path: str) -> Place | None:
        names = parts(path)
        start = _number(names[0])
        if start is None or len(names) < 4 or names[3] != folder or not names[1].isdecimal():
            return None
        if parent is not None and (len(names) < 5 or names[4] != parent):
            return None
        if int(names[1]) > 0x7FFF_FFFF:
            return None
        return Place(names[2], int(names[1]), start, above(path, levels))

    return match


def is_index(path: str) -> Place | None:
    """`index/<17 digits>`."""
    names = parts(path)
    if len(names) > 1 and names[1] == "index" and _INDEX_NAME.fullmatch(names[0]):
        return Place(group=above(path, 2))
    return None


def file_named(*wanted: str, folder: str | None = None) -> Callable[[str], Place | None]:
    """A matcher for fixed names, in a folder of the root or in the root itself. A `.bak` next to it is the copy before."""

    def match(path: str) -> Place | None:
        names = parts(path)
        name = names[0].removesuffix(".bak")
        if name not in wanted or (folder is not None and (len(names) < 2 or names[1] != folder)):
            return None
        state = "backup" if names[0].endswith(".bak") else None
        return Place(group=above(path, 1 if folder is None else 2), state=state)

    return match


def is_timer_log(path: str) -> Place | None:
    """`timerlog/<20 digits>`."""
    names = parts(path)
    start = _number(names[0])
    if start is not None and len(names) > 1 and names[1] == "timerlog":
        return Place(start_offset=start, group=above(path, 2))
    return None


def is_stray(path: str) -> Place | None:
    """Any other file where a broker expects its own only: it will not start with it there."""
    names = parts(path)
    if len(names) > 1 and names[1] == "commitlog":
        return Place(group=above(path, 2), state="stray")
    if len(names) > 3 and names[1].isdecimal() and names[3] in ("consumequeue", "batchconsumequeue"):
        return Place(group=above(path, 4), state="stray")
    return None


def _int(head: bytes, position: int) -> int:
    return int.from_bytes(head[position : position + 4], "big", signed=True)


def _is_dledger(head: bytes) -> bool:
    """Whether bytes begin with the head of a DLedger entry that a message follows."""
    if len(head) < DLEDGER.size + BLANK.size or _int(head, DLEDGER.at("magic")) != DLEDGER_MAGIC:
        return False
    size, body = _int(head, DLEDGER.at("size")), _int(head, DLEDGER.at("body_size"))
    total, magic = (_int(head, DLEDGER.size + HEAD.at(name)) for name in ("total_size", "magic"))
    return size == DLEDGER.size + body and total == body and magic in (MAGIC_V1, MAGIC_V2)


def sniff_commit_log(head: bytes, size: int) -> bool:
    """Whether bytes begin with a message, a blank entry, or a message inside of a DLedger entry."""
    if len(head) < BLANK.size:
        return False
    if _is_dledger(head):
        head = head[DLEDGER.size :]
    total, magic = _int(head, HEAD.at("total_size")), _int(head, HEAD.at("magic"))
    if magic == MAGIC_BLANK:
        return BLANK.size <= total <= LARGEST_FILE
    return magic in (MAGIC_V1, MAGIC_V2) and SMALLEST_V1 <= total <= LARGEST_FILE


def begin_commit_log(head: bytes, size: int) -> Origin:
    """Frames begin at once; the kind is the address of the file's first byte as its first message says, -1 if it does not."""
    if _is_dledger(head):
        at = DLEDGER.at("position")
        return Origin(0, max(-1, int.from_bytes(head[at : at + 8], "big", signed=True)))
    if len(head) >= HEAD.size and _int(head, HEAD.at("magic")) in (MAGIC_V1, MAGIC_V2):
        at = HEAD.at("physical_offset")
        return Origin(0, max(-1, int.from_bytes(head[at : at + 8], "big", signed=True)))
    return Origin(0, -1)


def settle(files: Sequence[File]) -> list[File]:
    """Commit-log files in the places that a broker has them in; all but the one that it appends to are sealed.

    Those known by their first bytes begin where their names say, whatever their directory is called. Directories of nothing else belong to
    the one store that has the rest, unless it has files of the same names.
    """
    files = _group_logs([_number_log(file) for file in files])
    logs: dict[str, list[File]] = {}
    for file in files:
        if file.format == COMMIT_LOG_NAME and file.place.group is not None and file.place.start_offset is not None:
            logs.setdefault(file.place.group, []).append(file)
    last = {group: _last_used(group_logs) for group, group_logs in logs.items()}
    return [
        replace(file, place=replace(file.place, sealed=True))
        if file.format == COMMIT_LOG_NAME and (file.place.start_offset or 0) < last.get(str(file.place.group), 0)
        else file
        for file in files
    ]


def _last_used(logs: Sequence[File]) -> int:
    """Where the last file of a commit log begins that is not empty: a broker makes files of zeros before it needs them."""
    from rawlog.io.storage import Source  # only a store with several files needs it

    starts = sorted(logs, key=lambda file: file.place.start_offset or 0)
    for file in reversed(starts[1:]):
        try:
            with Source(file.path) as source:
                if any(source.read(0, LOOKED_AT)):
                    return file.place.start_offset or 0
        except (RawlogError, OSError):
            continue  # `problem` of the file, or a finding
    return 0


LOOKED_AT = 64 << 10
"""Zeros at the beginning of a file that are more than a damaged block: the file is not used yet."""


def _group_logs(files: list[File]) -> list[File]:
    """Assign commit-log directories on other disks to the one store that has the rest."""
    starts: dict[str, set[int | None]] = {}
    roots = {file.place.group for file in files if file.format != COMMIT_LOG_NAME and file.place.group is not None}
    for file in files:
        if file.format == COMMIT_LOG_NAME and file.place.group is not None:
            starts.setdefault(file.place.group, set()).add(file.place.start_offset)
    if len(roots) != 1:
        return files
    (root,) = roots
    taken, others = starts.pop(root, set()), set()
    for group, group_starts in sorted(starts.items()):
        if taken.isdisjoint(group_starts):
            taken |= group_starts
            others.add(group)
    return [
        replace(file, place=replace(file.place, group=root)) if file.place.group in others else file for file in files
    ]


def _number_log(file: File) -> File:
    start = _number(parts(file.path)[0])
    if file.format != COMMIT_LOG_NAME or file.place.start_offset is not None or start is None:
        return file
    return replace(file, place=replace(file.place, start_offset=start, group=above(file.path, 2)))


def is_queue_database(path: str) -> Place | None:
    """All consume queues in one RocksDB database (5.2 on): in `consumequeue/` next to files of other names, or in a directory of its own
    (5.5 on, `useSeparateStorePathForRocksdbCQ`).
    """
    names = parts(path)
    if len(names) > 1 and names[1] == "consumequeue" and _ROCKSDB_NAME.fullmatch(names[0]):
        return Place(group=above(path, 2))
    return in_database("consumequeue_rocksdb")(path)


def in_database(*folders: str, parent: str | None = None) -> Callable[[str], Place | None]:
    """A matcher for the files of RocksDB databases in directories of these names."""
    levels = 2 if parent is None else 3

    def match(path: str) -> Place | None:
        names = parts(path)
        if len(names) <= levels - 1 or names[1] not in folders or not _ROCKSDB_NAME.fullmatch(names[0]):
            return None
        return Place(group=above(path, levels)) if parent is None or names[2] == parent else None

    return match


_HERE = "rawlog.formats.rocketmq"


def _in(module: str, name: str) -> Deferred:
    return Deferred(f"{_HERE}.{module}", name)


COMMIT_LOG = Format(
    name=COMMIT_LOG_NAME,
    has_rules=True,
    title="commit log: all messages of all topics, in order of arrival",
    files="commitlog/<20 digits>, dledger-<id>/data/<20 digits>",
    tables=(RECORDS, MESSAGES),
    carries=frozenset({"key", "topic", "partition", "headers"}),
    match=is_commit_log,
    sniff=sniff_commit_log,
    appended=True,
    module=f"{_HERE}.commitlog",
)
COMPACTION_LOG = Format(
    name="rocketmq.compactionlog",
    has_rules=True,
    title="log of a compaction topic: copies of its messages",
    files="compaction/compactionLog/<topic>/<queue>/<20 digits>",
    tables=(COMPACTED,),
    match=queue_file("compactionLog", 5, "compaction"),
    module=f"{_HERE}.commitlog:CompactionLog",
)
CONSUME_QUEUE = Format(
    name="rocketmq.consumequeue",
    has_rules=True,
    title="consume queue: where the messages of one queue are",
    files="consumequeue/<topic>/<queue>/<20 digits>",
    tables=(QUEUES,),
    match=queue_file("consumequeue"),
    module=f"{_HERE}.units:CONSUME_QUEUE",
)
BATCH_QUEUE = Format(
    name="rocketmq.batchconsumequeue",
    has_rules=True,
    title="consume queue of batches",
    files="batchconsumequeue/<topic>/<queue>/<20 digits>",
    tables=(QUEUES,),
    match=queue_file("batchconsumequeue"),
    module=f"{_HERE}.units:BATCH_QUEUE",
)
COMPACTION_QUEUE = Format(
    name="rocketmq.compactioncq",
    title="consume queue of a compaction topic",
    files="compaction/compactionCq/<topic>/<queue>/<20 digits>",
    match=queue_file("compactionCq", 5, "compaction"),
    module=f"{_HERE}.units:COMPACTION_QUEUE",
)
EXT_QUEUE = Format(
    name="rocketmq.consumequeueext",
    title="additions to consume queue units",
    files="consumequeue_ext/<topic>/<queue>/<20 digits>",
    tables=(QUEUES,),
    match=queue_file("consumequeue_ext"),
    module=f"{_HERE}.units:EXT_QUEUE",
)
INDEX = Format(
    name="rocketmq.index",
    has_rules=True,
    title="key index: messages by the hash of their keys",
    files="index/<17 digits>",
    tables=(KEYS,),
    match=is_index,
    module=f"{_HERE}.index",
)
CHECKPOINT = Format(
    name="rocketmq.checkpoint",
    title="up to where a store is on disk",
    files="checkpoint",
    tables=(CHECKPOINTS,),
    match=file_named("checkpoint"),
    module=f"{_HERE}.units:CHECKPOINT_FILE",
)
CONFIG = Format(
    name="rocketmq.config",
    title="topics, groups, offsets and other settings, as lenient JSON",
    files=", ".join(f"config/{name}" for name in CONFIGS),
    match=file_named(*CONFIGS, folder="config"),
    module=f"{_HERE}.config",
)
TIMER_LOG = Format(
    name="rocketmq.timerlog",
    title="timer messages as they were scheduled",
    files="timerlog/<20 digits>",
    tables=(TIMERS,),
    match=is_timer_log,
    module=f"{_HERE}.units:TIMER_LOG",
)
TIMER_WHEEL = Format(
    name="rocketmq.timerwheel",
    title="timer messages by the second in which they are due",
    files="timerwheel",
    tables=(WHEEL,),
    match=file_named("timerwheel"),
    module=f"{_HERE}.units:TIMER_WHEEL",
)
TIMER_CHECK = Format(
    name="rocketmq.timercheck",
    title="up to where the timer has come",
    files="config/timercheck",
    match=file_named("timercheck", folder="config"),
    module=f"{_HERE}.units:TIMER_CHECK_FILE",
)
DLEDGER_INDEX = Format(
    name="rocketmq.dledgerindex",
    title="index of a DLedger commit log",
    files="dledger-<id>/index/<20 digits>",
    match=is_dledger_index,
    module=f"{_HERE}.units:DLEDGER_INDEX_FILE",
)


def _listed(kind: str, title: str, files: str, match: object) -> Format:
    """A file whose presence says all."""
    return Format(name=f"rocketmq.{kind}", title=title, files=files, match=match)  # type: ignore[arg-type]


FAMILY = Family(
    name="rocketmq",
    title="Apache RocketMQ",
    restore=_in("writer", "restore"),
    store=f"{_HERE}.store:MessageStore",
    folds=FOLDS,
    groups=_in("store.state", "consumer_groups"),
    unread_groups=_in("store.state", "unread_groups"),
    transactions=_in("store.state", "transactions_of"),
    formats=(
        COMMIT_LOG,
        CONSUME_QUEUE,
        BATCH_QUEUE,
        EXT_QUEUE,
        INDEX,
        _listed(
            "dledgerstate",
            "term and committed index of a DLedger commit log",
            "dledger-<id>/checkpoint, dledger-<id>/currterm",
            is_dledger_state,
        ),
        CHECKPOINT,
        CONFIG,
        COMPACTION_LOG,
        COMPACTION_QUEUE,
        TIMER_LOG,
        TIMER_WHEEL,
        TIMER_CHECK,
        DLEDGER_INDEX,
        _listed(
            "queuedatabase",
            "all consume queues as a RocksDB database; the commit log has the same",
            "consumequeue/<file of RocksDB>, consumequeue_rocksdb/<file of RocksDB>",
            is_queue_database,
        ),
        _listed(
            "configdatabase",
            "topics, groups or offsets as a RocksDB database",
            ", ".join(f"config/{name}/<file of RocksDB>" for name in CONFIG_DATABASES),
            in_database(*CONFIG_DATABASES, parent="config"),
        ),
        _listed(
            "storedatabase",
            "key index, timers and open transactions as a RocksDB database; most brokers leave it empty (5.4 on)",
            "rocksdbstore/<file of RocksDB>",
            in_database("rocksdbstore"),
        ),
        _listed(
            "popdatabase",
            "messages that were popped and not acknowledged, as a RocksDB database",
            "kvStore/<file of RocksDB>",
            in_database("kvStore"),
        ),
        _listed(
            "position",
            "up to where compaction has come",
            "compaction/position-checkpoint",
            file_named("position-checkpoint", folder="compaction"),
        ),
        _listed("abort", "marks a broker that is running or has crashed", "abort", file_named("abort")),
        _listed("lock", "lock of a running broker", "lock", file_named("lock")),
        _listed("epochs", "epochs of a controller", "epochFileCheckpoint", file_named("epochFileCheckpoint")),
        _listed("identity", "identity of a broker", "brokerIdentity", file_named("brokerIdentity")),
        _listed("stray", "a file that keeps a broker from starting", "anything else next to a log's files", is_stray),
    ),
)
