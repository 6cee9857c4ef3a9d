"""Kafka: what a broker leaves in its log directories."""

from __future__ import annotations

from rawlog.format import Deferred, Family, Format
from rawlog.formats.kafka import paths
from rawlog.formats.kafka.layouts import BATCH
from rawlog.formats.kafka.tables import BATCHES, KAFKA_RECORDS
from rawlog.tables import RECORDS

_LOG = "rawlog.formats.kafka.log"

LOG = Format(
    name="kafka.log",
    title="log segment of record batches v2",
    files="<20 digits>.log",
    layouts=(BATCH,),
    tables=(RECORDS, BATCHES, KAFKA_RECORDS),
    carries=frozenset(RECORDS.names),
    match=paths.segment_file("log"),
    sniff=paths.sniff_log,
    scan=Deferred(_LOG, "scan"),
    decode=Deferred(_LOG, "decode"),
    spans=Deferred(_LOG, "spans"),
    resync=Deferred(_LOG, "resync"),
    fault=Deferred(_LOG, "fault"),
    context=Deferred("rawlog.formats.kafka.transactions", "context"),
    floor=Deferred("rawlog.formats.kafka.checkpoints", "log_start"),
    seek=Deferred("rawlog.formats.kafka.seek", "seek"),
    cuts=Deferred("rawlog.formats.kafka.seek", "cuts"),
    explain=Deferred("rawlog.formats.kafka.explanation", "explain_batch"),
    rules=Deferred("rawlog.formats.kafka.checks", "rules"),
)


def _listed(kind: str, title: str, files: str, match: object) -> Format:
    """A file that is recognised and shown, and not read yet."""
    return Format(name=f"kafka.{kind}", title=title, files=files, match=match)  # type: ignore[arg-type]


FAMILY = Family(
    name="kafka",
    title="Apache Kafka",
    formats=(
        LOG,
        _listed("index", "offset index", "<20 digits>.index", paths.segment_file("index")),
        _listed("timeindex", "time index", "<20 digits>.timeindex", paths.segment_file("timeindex")),
        _listed("txnindex", "aborted transactions", "<20 digits>.txnindex", paths.segment_file("txnindex")),
        _listed("snapshot", "producer state", "<20 digits>.snapshot", paths.segment_file("snapshot")),
        _listed(
            "epochs",
            "leader epochs of a partition",
            "leader-epoch-checkpoint",
            paths.file_named("leader-epoch-checkpoint"),
        ),
        _listed("partition", "topic id of a partition", "partition.metadata", paths.file_named("partition.metadata")),
        _listed(
            "checkpoint",
            "offsets of all partitions of a log directory",
            ", ".join(paths.OFFSET_CHECKPOINTS),
            paths.file_named(*paths.OFFSET_CHECKPOINTS),
        ),
        _listed("meta", "identity of a log directory", "meta.properties", paths.file_named("meta.properties")),
        _listed(
            "cleanshutdown",
            "mark of a clean stop",
            ".kafka_cleanshutdown",
            paths.file_named(".kafka_cleanshutdown"),
        ),
        _listed("lock", "lock of a running broker", ".lock", paths.file_named(".lock")),
    ),
)
