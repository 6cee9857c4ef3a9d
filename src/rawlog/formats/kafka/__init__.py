"""Kafka: what a broker leaves in its log directories."""

from __future__ import annotations

from collections.abc import Callable

from rawlog.formats.kafka import paths
from rawlog.formats.kafka.tables import (
    BATCHES,
    CHECKPOINTS,
    EPOCHS,
    GROUPS,
    INDEX,
    KAFKA_RECORDS,
    OFFSETS,
    PRODUCERS,
    REMOTE,
    SHARES,
    TIMEINDEX,
    TRANSACTIONS,
    TXNINDEX,
)
from rawlog.io.storage import VIEWS
from rawlog.model.format import Deferred, Family, Format, Place
from rawlog.model.table import RECORDS

LOG = Format(
    name="kafka.log",
    has_rules=True,
    title="log segment: record batches v2, message sets v0 and v1",
    files="<20 digits>.log",
    module=f"{__name__}.log.segment",
    tables=(RECORDS, BATCHES, KAFKA_RECORDS),
    carries=frozenset(RECORDS.names),
    match=paths.segment_file("log"),
    sniff=paths.sniff_log,
    ordered=True,
    checked=True,
    appended=True,
    near=("kafka.index", "kafka.timeindex", "kafka.epochs"),
)

INDEX_FILE = Format(
    name="kafka.index",
    has_rules=True,
    title="offset index of a segment",
    files="<20 digits>.index",
    module=f"{__name__}.index",
    tables=(INDEX,),
    match=paths.segment_file("index"),
)

TIME_INDEX_FILE = Format(
    name="kafka.timeindex",
    has_rules=True,
    title="time index of a segment",
    files="<20 digits>.timeindex",
    module=f"{__name__}.timeindex",
    tables=(TIMEINDEX,),
    match=paths.segment_file("timeindex"),
)

TXN_INDEX_FILE = Format(
    name="kafka.txnindex",
    has_rules=True,
    title="aborted transactions of a segment",
    files="<20 digits>.txnindex",
    module=f"{__name__}.txnindex",
    tables=(TXNINDEX,),
    match=paths.segment_file("txnindex"),
)

SNAPSHOT = Format(
    name="kafka.snapshot",
    title="producer state up to an offset",
    files="<20 digits>.snapshot",
    module=f"{__name__}.snapshot",
    tables=(PRODUCERS,),
    match=paths.segment_file("snapshot"),
    whole=True,
)

EPOCH_FILE = Format(
    name="kafka.epochs",
    has_rules=True,
    title="leader epochs of a partition",
    files="leader-epoch-checkpoint",
    module=f"{__name__}.epochs",
    tables=(EPOCHS,),
    match=paths.epoch_file,
    whole=True,
)

CHECKPOINT = Format(
    name="kafka.checkpoint",
    title="offsets of all partitions of a log directory",
    files=", ".join(paths.OFFSET_CHECKPOINTS),
    module=f"{__name__}.checkpoints",
    tables=(CHECKPOINTS,),
    match=paths.top_file(*paths.OFFSET_CHECKPOINTS),
    whole=True,
)


def _text(
    kind: str,
    title: str,
    name: str,
    module: str,
    matcher: Callable[..., Callable[[str], Place | None]] = paths.top_file,
) -> Format:
    """A text that is checked and explained; it has no rows."""
    return Format(
        name=f"kafka.{kind}",
        title=title,
        files=name,
        module=f"{__name__}.texts:{module}",
        match=matcher(name),
        whole=True,
    )


MANIFEST = Format(
    name="kafka.manifest",
    title="how a segment is stored by Aiven's tiered storage",
    files="<20 digits>-<segment id>.rsm-manifest",
    module=f"{__name__}.manifest",
    match=paths.copy_file("rsm-manifest"),
    whole=True,
)

CHUNKS = Format(
    name="kafka.chunks",
    title="a segment or its indexes in chunks, read as the manifest says",
    files="<20 digits>-<segment id>.log, <20 digits>-<segment id>.indexes",
    match=paths.copy_file("indexes"),
)
VIEWS["segment"] = Deferred("rawlog.formats.kafka.manifest", "open_member")


FAMILY = Family(
    name="kafka",
    title="Apache Kafka",
    store=f"{__name__}.partition:Partition",
    folds=(OFFSETS, GROUPS, TRANSACTIONS, SHARES, REMOTE),
    groups=Deferred("rawlog.formats.kafka.partition.coordinators", "groups"),
    transactions=Deferred("rawlog.formats.kafka.partition.coordinators", "transactions_of"),
    formats=(
        LOG,
        INDEX_FILE,
        TIME_INDEX_FILE,
        TXN_INDEX_FILE,
        SNAPSHOT,
        EPOCH_FILE,
        CHECKPOINT,
        _text("partition", "topic id of a partition", "partition.metadata", "PARTITION", paths.file_named),
        _text("meta", "identity of a log directory", "meta.properties", "META"),
        _text("cleanshutdown", "mark of a clean stop", paths.MARK, "CLEAN_SHUTDOWN"),
        Format(
            name="kafka.lock",
            title="lock of a running broker, never read",
            files=".lock",
            match=paths.top_file(".lock"),
        ),
        MANIFEST,
        CHUNKS,
    ),
)
