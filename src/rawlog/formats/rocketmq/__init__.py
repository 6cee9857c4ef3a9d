"""RocketMQ: what a broker leaves in its store directory."""

from __future__ import annotations

from rawlog.formats.rocketmq import paths
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
)
from rawlog.model.table import RECORDS

_HERE = "rawlog.formats.rocketmq"


def _in(module: str, name: str) -> Deferred:
    return Deferred(f"{_HERE}.{module}", name)


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
    module=f"{_HERE}.commitlog",
)
COMPACTION_LOG = Format(
    name="rocketmq.compactionlog",
    has_rules=True,
    title="log of a compaction topic: copies of its messages",
    files="compaction/compactionLog/<topic>/<queue>/<20 digits>",
    tables=(COMPACTED,),
    match=paths.queue_file("compactionLog", 5, "compaction"),
    module=f"{_HERE}.commitlog:CompactionLog",
)
CONSUME_QUEUE = Format(
    name="rocketmq.consumequeue",
    has_rules=True,
    title="consume queue: where the messages of one queue are",
    files="consumequeue/<topic>/<queue>/<20 digits>",
    tables=(QUEUES,),
    match=paths.queue_file("consumequeue"),
    module=f"{_HERE}.units:CONSUME_QUEUE",
)
BATCH_QUEUE = Format(
    name="rocketmq.batchconsumequeue",
    has_rules=True,
    title="consume queue of batches",
    files="batchconsumequeue/<topic>/<queue>/<20 digits>",
    tables=(QUEUES,),
    match=paths.queue_file("batchconsumequeue"),
    module=f"{_HERE}.units:BATCH_QUEUE",
)
COMPACTION_QUEUE = Format(
    name="rocketmq.compactioncq",
    title="consume queue of a compaction topic",
    files="compaction/compactionCq/<topic>/<queue>/<20 digits>",
    match=paths.queue_file("compactionCq", 5, "compaction"),
    module=f"{_HERE}.units:COMPACTION_QUEUE",
)
EXT_QUEUE = Format(
    name="rocketmq.consumequeueext",
    title="additions to consume queue units",
    files="consumequeue_ext/<topic>/<queue>/<20 digits>",
    tables=(QUEUES,),
    match=paths.queue_file("consumequeue_ext"),
    module=f"{_HERE}.units:EXT_QUEUE",
)
INDEX = Format(
    name="rocketmq.index",
    has_rules=True,
    title="key index: messages by the hash of their keys",
    files="index/<17 digits>",
    tables=(KEYS,),
    match=paths.is_index,
    module=f"{_HERE}.index",
)
CHECKPOINT = Format(
    name="rocketmq.checkpoint",
    title="up to where a store is on disk",
    files="checkpoint",
    tables=(CHECKPOINTS,),
    match=paths.file_named("checkpoint"),
    module=f"{_HERE}.units:CHECKPOINT_FILE",
)
CONFIG = Format(
    name="rocketmq.config",
    title="topics, groups, offsets and other settings, as lenient JSON",
    files=", ".join(f"config/{name}" for name in paths.CONFIGS),
    match=paths.is_config,
    module=f"{_HERE}.config",
)
TIMER_LOG = Format(
    name="rocketmq.timerlog",
    title="timer messages as they were scheduled",
    files="timerlog/<20 digits>",
    tables=(TIMERS,),
    match=paths.is_timer_log,
    module=f"{_HERE}.units:TIMER_LOG",
)
TIMER_WHEEL = Format(
    name="rocketmq.timerwheel",
    title="timer messages by the second in which they are due",
    files="timerwheel",
    tables=(WHEEL,),
    match=paths.file_named("timerwheel"),
    module=f"{_HERE}.units:TIMER_WHEEL",
)
TIMER_CHECK = Format(
    name="rocketmq.timercheck",
    title="up to where the timer has come",
    files="config/timercheck",
    match=paths.file_named("timercheck", folder="config"),
    module=f"{_HERE}.units:TIMER_CHECK_FILE",
)
DLEDGER_INDEX = Format(
    name="rocketmq.dledgerindex",
    title="index of a DLedger commit log",
    files="dledger-<id>/index/<20 digits>",
    match=paths.is_dledger_index,
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
)
