"""KRaft: a cluster's metadata. Its log is an ordinary Kafka log, read by Kafka's formats; here are the files next to it, what
their records mean, and the state they add up to.
"""

from __future__ import annotations

from rawlog.formats.kafka.cluster import paths
from rawlog.formats.kafka.cluster.tables import METADATA, STATE
from rawlog.formats.kafka.paths import file_named, unknown_file
from rawlog.model.format import (
    Deferred,
    Family,
    Format,
    Rewrite,
)

_KRAFT = "rawlog.formats.kafka.cluster"

CHECKPOINT = Format(
    name="kraft.checkpoint",
    has_rules=True,
    title="snapshot of the cluster's metadata",
    files="<offset>-<epoch>.checkpoint, bootstrap.checkpoint",
    module=f"{_KRAFT}.metadata",
    tables=(METADATA,),
    match=paths.is_checkpoint,
    checked=True,
    more={"summary": Deferred(f"{_KRAFT}.metadata_log", "ContentsFold")},
)

QUORUM = Format(
    name="kraft.quorum",
    title="election state of a controller",
    files="quorum-state",
    module="rawlog.formats.kafka.properties:QUORUM",
    match=file_named("quorum-state"),
    whole=True,
)


def _rewrite(verb: str, *options: str, stores: str = "directories") -> Rewrite:
    """A verb over metadata directories."""
    module = f"{_KRAFT}.rewrite"
    return Rewrite(
        do=Deferred(module, verb), options=options, stores=Deferred(module, stores), join=Deferred(module, "join")
    )


FAMILY = Family(
    name="kraft",
    title="Kafka KRaft metadata",
    formats=(CHECKPOINT, QUORUM),
    store_name=paths.store_name,
    unknown_files=unknown_file,
    copies=Deferred(f"{_KRAFT}.metadata_log", "copies"),
    folds={
        METADATA.name: Deferred(f"{_KRAFT}.metadata", "metadata"),
        **{table.name: Deferred(f"{_KRAFT}.fold", table.name.split(".")[1]) for table in STATE},
    },
    fold_tables=(METADATA, *STATE),
    takes=paths.takes,
    host="kafka",
    summary=Deferred(f"{_KRAFT}.metadata_log", "summary"),
    units=Deferred(f"{_KRAFT}.metadata_log", "units"),
    options=("atOffset", "atTimestamp", "showSecrets"),
    rewrites={
        "repair": _rewrite("repair", "policy"),
        "rebuild": _rewrite("rebuild", "segment_bytes", "segment_ms", "segment_index_bytes", "index_interval_bytes"),
        "compact": _rewrite("compact", "topic", stores="compacted_directories"),
        "erase": _rewrite("compact"),
    },
    accounts=Deferred(f"{_KRAFT}.rules", "accounts"),
    reading=Deferred(f"{_KRAFT}.rewrite", "reading"),
    overview=Deferred(f"{_KRAFT}.view", "overview"),
    restorer=Deferred(f"{_KRAFT}.restore", "Restorer"),
    rescuer=Deferred(f"{_KRAFT}.rescue", "Rescuer"),
    rescues=paths.is_of_brokers,
    group_rules=Deferred(f"{_KRAFT}.rules", "rules"),
    compare=Deferred(f"{_KRAFT}.history", "compare"),
    compared="kraft.topics",
)
