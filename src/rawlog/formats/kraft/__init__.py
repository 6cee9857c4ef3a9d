"""KRaft: a cluster's metadata. Its log is an ordinary Kafka log, read by Kafka's formats; here are the files next to it, what
their records mean, and the state they add up to.
"""

from __future__ import annotations

from rawlog.core.format import Deferred, Family, Format, Rewrite
from rawlog.formats.kafka.layouts import BATCH
from rawlog.formats.kafka.paths import file_named, unknown_file
from rawlog.formats.kraft import paths
from rawlog.formats.kraft.tables import METADATA, STATE
from rawlog.formats.kraft.verbs import CLUSTER

_KRAFT, _KAFKA = "rawlog.formats.kraft", "rawlog.formats.kafka"

CHECKPOINT = Format(
    name="kraft.checkpoint",
    title="snapshot of the cluster's metadata",
    files="<offset>-<epoch>.checkpoint, bootstrap.checkpoint",
    layouts=(BATCH,),
    tables=(METADATA,),
    match=paths.is_checkpoint,
    scan=Deferred(f"{_KAFKA}.log", "scan"),
    resync=Deferred(f"{_KAFKA}.log", "resync"),
    checked=True,
    fault=Deferred(f"{_KAFKA}.log", "fault"),
    decode=Deferred(f"{_KRAFT}.reader", "decode"),
    spans=Deferred(f"{_KRAFT}.reader", "spans"),
    explain=Deferred(f"{_KAFKA}.explain", "explain_batch"),
    summary=Deferred(f"{_KRAFT}.store.contents", "ContentsFold"),
    rules=Deferred(f"{_KRAFT}.checks", "checkpoint_rules"),
)

QUORUM = Format(
    name="kraft.quorum",
    title="election state of a controller",
    files="quorum-state",
    match=file_named("quorum-state"),
    whole=True,
    scan=Deferred(f"{_KRAFT}.reader", "scan_quorum"),
    fault=Deferred(f"{_KAFKA}.texts", "fault"),
    explain=Deferred(f"{_KAFKA}.texts", "explain_line"),
)


def _rewrite(verb: str, *options: str, stores: str = "directories") -> Rewrite:
    """A verb over metadata directories."""
    module = f"{_KRAFT}.store.rewrite"
    return Rewrite(
        do=Deferred(module, verb), options=options, stores=Deferred(module, stores), join=Deferred(module, "join")
    )


FAMILY = Family(
    name="kraft",
    title="Kafka KRaft metadata",
    formats=(CHECKPOINT, QUORUM),
    store_name=paths.store_name,
    unknown_files=unknown_file,
    copies=Deferred(f"{_KRAFT}.store.store", "copies"),
    folds={
        METADATA.name: Deferred(f"{_KRAFT}.reader", "metadata"),
        **{table.name: Deferred(f"{_KRAFT}.store.fold", table.name.split(".")[1]) for table in STATE},
    },
    fold_tables=(METADATA, *STATE),
    takes=paths.takes,
    host="kafka",
    summary=Deferred(f"{_KRAFT}.store.contents", "summary"),
    units=Deferred(f"{_KRAFT}.store.store", "units"),
    options=("atOffset", "atTimestamp", "showSecrets"),
    rewrites={
        "repair": _rewrite("repair", "policy"),
        "rebuild": _rewrite("rebuild", "segment_bytes", "segment_ms", "segment_index_bytes", "index_interval_bytes"),
        "compact": _rewrite("compact", "topic", stores="compacted_directories"),
        "erase": _rewrite("compact"),
    },
    verbs={"cluster": CLUSTER},
    accounts=Deferred(f"{_KRAFT}.store.complete", "accounts"),
    overview=Deferred(f"{_KRAFT}.overview", "overview"),
    restorer=Deferred(f"{_KRAFT}.store.restore", "Restorer"),
    rescuer=Deferred(f"{_KRAFT}.store.rescue", "Rescuer"),
    rescues=paths.is_of_brokers,
    group_rules=Deferred(f"{_KRAFT}.store.checks", "rules"),
    compare=Deferred(f"{_KRAFT}.store.history", "compare"),
    compared="kraft.topics",
)
