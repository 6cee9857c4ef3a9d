"""RocketMQ: what a broker leaves in its store directory."""

from __future__ import annotations

from rawlog.formats.rocketmq import layouts, paths
from rawlog.formats.rocketmq.tables import (
    CHECKPOINTS,
    COMPACTED,
    FOLDS,
    KEYS,
    MESSAGES,
    QUEUES,
    TIMERS,
    WHEEL,
)
from rawlog.model.format import (
    Deferred,
    Family,
    Format,
    Lookup,
    Rewrite,
)
from rawlog.model.table import RECORDS

_HERE = "rawlog.formats.rocketmq"


def _in(module: str, name: str) -> Deferred:
    return Deferred(f"{_HERE}.{module}", name)


_ENTRY = (
    layouts.HEAD,
    layouts.HOST_V4,
    layouts.HOST_V6,
    layouts.STORED,
    layouts.TAIL,
    layouts.TOPIC_V1,
    layouts.TOPIC_V2,
    layouts.PROPERTIES,
    layouts.INNER,
    layouts.BLANK,
)

COMMIT_LOG = Format(
    name=paths.COMMIT_LOG_NAME,
    has_rules=True,
    title="commit log: all messages of all topics, in order of arrival",
    files="commitlog/<20 digits>, dledger-<id>/data/<20 digits>",
    tables=(RECORDS, MESSAGES),
    carries=frozenset({"key", "topic", "partition", "headers"}),
    match=paths.is_commit_log,
    sniff=paths.sniff_commit_log,
    appended=True,
    more={
        "LAYOUTS": (*_ENTRY, layouts.DLEDGER, layouts.DLEDGER_BLANK),
        "begin": paths.begin_commit_log,
        "scan": _in("commitlog", "scan"),
        "decode": _in("commitlog", "decode"),
        "decode_together": _in("commitlog", "decode_together"),
        "spans": _in("commitlog", "spans"),
        "resync": _in("commitlog", "resync"),
        "fault": _in("commitlog", "fault"),
        "offsets": _in("commitlog", "addresses"),
        "is_lost": _in("commitlog", "is_lost"),
        "misplaced": _in("commitlog", "misplaced"),
        "context": _in("commitlog", "context"),
        "pick": _in("lookup", "pick"),
        "explain": _in("explain", "explain_entry"),
        "summary": _in("store.store", "summary"),
        "tally": _in("store.store", "tally"),
        "write": _in("store.rewrite", "write"),
        "losses": _in("store.rewrite", "losses"),
        "rules": _in("rules", "commit_log"),
    },
)
COMPACTION_LOG = Format(
    name="rocketmq.compactionlog",
    has_rules=True,
    title="log of a compaction topic: copies of its messages",
    files="compaction/compactionLog/<topic>/<queue>/<20 digits>",
    tables=(COMPACTED,),
    match=paths.queue_file("compactionLog", 5, "compaction"),
    more={
        "LAYOUTS": _ENTRY,
        "begin": paths.begin_commit_log,
        "scan": _in("commitlog", "scan"),
        "decode": _in("commitlog", "decode"),
        "decode_together": _in("commitlog", "decode_together"),
        "spans": _in("commitlog", "spans"),
        "resync": _in("commitlog", "resync"),
        "fault": _in("commitlog", "fault"),
        "context": _in("commitlog", "context"),
        "explain": _in("explain", "explain_entry"),
        "rules": _in("rules", "compaction_log"),
    },
)
CONSUME_QUEUE = Format(
    name="rocketmq.consumequeue",
    has_rules=True,
    title="consume queue: where the messages of one queue are",
    files="consumequeue/<topic>/<queue>/<20 digits>",
    tables=(QUEUES,),
    match=paths.queue_file("consumequeue"),
    more={
        "LAYOUTS": (layouts.UNIT,),
        "scan": _in("messages", "scan_plain"),
        "decode": _in("messages", "decode_plain"),
        "spans": _in("messages", "spans_plain"),
        "resync": _in("messages", "resync_plain"),
        "fault": _in("messages", "fault"),
        "explain": _in("explain", "explain_unit"),
        "rules": _in("rules", "consume_queue"),
    },
)
BATCH_QUEUE = Format(
    name="rocketmq.batchconsumequeue",
    has_rules=True,
    title="consume queue of batches",
    files="batchconsumequeue/<topic>/<queue>/<20 digits>",
    tables=(QUEUES,),
    match=paths.queue_file("batchconsumequeue"),
    more={
        "LAYOUTS": (layouts.BATCH_UNIT,),
        "scan": _in("messages", "scan_batch"),
        "decode": _in("messages", "decode_batch"),
        "spans": _in("messages", "spans_batch"),
        "resync": _in("messages", "resync_batch"),
        "fault": _in("messages", "fault"),
        "explain": _in("explain", "explain_batch_unit"),
        "rules": _in("rules", "batch_queue"),
    },
)
COMPACTION_QUEUE = Format(
    name="rocketmq.compactioncq",
    title="consume queue of a compaction topic",
    files="compaction/compactionCq/<topic>/<queue>/<20 digits>",
    match=paths.queue_file("compactionCq", 5, "compaction"),
    more={
        "LAYOUTS": (layouts.BATCH_UNIT,),
        "scan": _in("messages", "scan_batch"),
        "fault": _in("messages", "fault"),
        "explain": _in("explain", "explain_batch_unit"),
    },
)
EXT_QUEUE = Format(
    name="rocketmq.consumequeueext",
    title="additions to consume queue units",
    files="consumequeue_ext/<topic>/<queue>/<20 digits>",
    tables=(QUEUES,),
    match=paths.queue_file("consumequeue_ext"),
    more={
        "LAYOUTS": (layouts.EXT_UNIT,),
        "scan": _in("messages", "scan_ext"),
        "decode": _in("messages", "decode_ext"),
        "fault": _in("messages", "fault"),
        "explain": _in("explain", "explain_ext_unit"),
    },
)
INDEX = Format(
    name="rocketmq.index",
    has_rules=True,
    title="key index: messages by the hash of their keys",
    files="index/<17 digits>",
    tables=(KEYS,),
    match=paths.is_index,
    more={
        "LAYOUTS": (layouts.INDEX_HEADER, layouts.SLOT, layouts.INDEX_ENTRY),
        "survey": _in("index", "survey"),
        "presume": _in("index", "presume"),
        "scan": _in("index", "scan"),
        "decode": _in("index", "decode"),
        "resync": _in("index", "resync"),
        "fault": _in("index", "fault"),
        "context": _in("index", "context"),
        "explain": _in("explain", "explain_index_entry"),
        "explain_header": _in("explain", "explain_index_header"),
        "rules": _in("rules", "key_index"),
    },
)
CHECKPOINT = Format(
    name="rocketmq.checkpoint",
    title="up to where a store is on disk",
    files="checkpoint",
    tables=(CHECKPOINTS,),
    match=paths.file_named("checkpoint"),
    more={
        "LAYOUTS": (layouts.CHECKPOINT,),
        "scan": _in("messages", "scan_checkpoint"),
        "decode": _in("messages", "decode_checkpoint"),
        "fault": _in("messages", "foreign_bytes"),
        "explain": _in("explain", "explain_checkpoint"),
    },
)
CONFIG = Format(
    name="rocketmq.config",
    title="topics, groups, offsets and other settings, as lenient JSON",
    files=", ".join(f"config/{name}" for name in paths.CONFIGS),
    match=paths.is_config,
    more={"scan": _in("config", "scan"), "fault": _in("config", "fault"), "explain": _in("explain", "explain_config")},
)
TIMER_LOG = Format(
    name="rocketmq.timerlog",
    title="timer messages as they were scheduled",
    files="timerlog/<20 digits>",
    tables=(TIMERS,),
    match=paths.is_timer_log,
    more={
        "LAYOUTS": (layouts.TIMER_UNIT, layouts.TIMER_BLANK),
        "scan": _in("messages", "scan_timer_log"),
        "decode": _in("messages", "decode_timer_log"),
        "fault": _in("messages", "foreign_bytes"),
        "explain": _in("explain", "explain_timer_unit"),
    },
)
TIMER_WHEEL = Format(
    name="rocketmq.timerwheel",
    title="timer messages by the second in which they are due",
    files="timerwheel",
    tables=(WHEEL,),
    match=paths.file_named("timerwheel"),
    more={
        "LAYOUTS": (layouts.WHEEL_SLOT,),
        "scan": _in("messages", "scan_wheel"),
        "decode": _in("messages", "decode_wheel"),
        "explain": _in("explain", "explain_wheel_slot"),
    },
)
TIMER_CHECK = Format(
    name="rocketmq.timercheck",
    title="up to where the timer has come",
    files="config/timercheck",
    match=paths.file_named("timercheck", folder="config"),
    more={
        "LAYOUTS": (layouts.TIMER_CHECK,),
        "scan": _in("messages", "scan_timer_check"),
        "fault": _in("messages", "foreign_bytes"),
        "explain": _in("explain", "explain_timer_check"),
    },
)
DLEDGER_INDEX = Format(
    name="rocketmq.dledgerindex",
    title="index of a DLedger commit log",
    files="dledger-<id>/index/<20 digits>",
    match=paths.is_dledger_index,
    more={
        "LAYOUTS": (layouts.DLEDGER_INDEX,),
        "scan": _in("messages", "scan_dledger_index"),
        "fault": _in("messages", "foreign_bytes"),
        "explain": _in("explain", "explain_dledger_index"),
    },
)


def _listed(kind: str, title: str, files: str, match: object) -> Format:
    """A file whose presence says all."""
    return Format(name=f"rocketmq.{kind}", title=title, files=files, match=match)  # type: ignore[arg-type]


_SIZES = (
    "commitlog", "commitlog_size", "queue_size", "batch_queue_size", "ext_size", "index_slots", "index_entries",
    "delay_levels",
)  # fmt: skip

FAMILY = Family(
    name="rocketmq",
    title="Apache RocketMQ",
    restore=_in("writer", "restore"),
    lookup=Lookup(
        named="messages",
        columns=_in("lookup", "columns"),
        by_id=_in("lookup", "by_id"),
        by_key=_in("lookup", "by_key"),
        frames=_in("lookup", "frames"),
    ),
    topics=_in("lookup", "known_topics"),
    rewrites={
        "rebuild": Rewrite(do=_in("store.rewrite", "rebuild"), stores=_in("store.rewrite", "stores"), options=_SIZES),
        "repair": Rewrite(
            do=_in("store.repair", "repair"),
            stores=_in("store.rewrite", "stores"),
            options=("policy", "move", *_SIZES),
            unrepaired=(
                "rocketmq.commitlog.body",
                "rocketmq.commitlog.inner-batch",
                "rocketmq.timerlog.framing",
            ),
        ),
        "erase": Rewrite(
            do=_in("store.erase", "erase"), stores=_in("store.rewrite", "stores"), options=_SIZES[1:], keeps=True
        ),
    },
    reading=_in("store.repair", "reading"),
    copy_ids=_in("lookup", "copy_ids"),
    rescuer=_in("store.rescue", "Rescue"),
    settle=paths.settle,
    groups=_in("store.state", "consumer_groups"),
    unread_groups=_in("store.state", "unread_groups"),
    transactions=_in("store.state", "transactions_of"),
    accounts=_in("store.rules", "accounts"),
    overview=_in("store.store", "overview"),
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
            paths.is_dledger_state,
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
            paths.is_queue_database,
        ),
        _listed(
            "configdatabase",
            "topics, groups or offsets as a RocksDB database",
            ", ".join(f"config/{name}/<file of RocksDB>" for name in paths.CONFIG_DATABASES),
            paths.is_config_database,
        ),
        _listed(
            "storedatabase",
            "key index, timers and open transactions as a RocksDB database; most brokers leave it empty (5.4 on)",
            "rocksdbstore/<file of RocksDB>",
            paths.in_database("rocksdbstore"),
        ),
        _listed(
            "popdatabase",
            "messages that were popped and not acknowledged, as a RocksDB database",
            "kvStore/<file of RocksDB>",
            paths.in_database("kvStore"),
        ),
        _listed("position", "up to where compaction has come", "compaction/position-checkpoint", paths.is_position),
        _listed("abort", "mark of a broker that runs or died", "abort", paths.file_named("abort")),
        _listed("lock", "lock of a running broker", "lock", paths.file_named("lock")),
        _listed("epochs", "epochs of a controller", "epochFileCheckpoint", paths.file_named("epochFileCheckpoint")),
        _listed("identity", "identity of a broker", "brokerIdentity", paths.file_named("brokerIdentity")),
        _listed(
            "stray", "a file that keeps a broker from starting", "anything else next to a log's files", paths.is_stray
        ),
    ),
    folds={table.name: _in("store.state", table.name.split(".")[1]) for table in FOLDS},
    fold_tables=FOLDS,
    group_rules=_in("store.rules", "rules"),
    store_name=paths.store_name,
    copies=_in("store.replicas", "copies"),
)
