"""KRaft: a cluster's metadata. Its log is an ordinary Kafka log, read by Kafka's formats; here are the files next to it, what
their records mean, and the state they add up to.
"""

from __future__ import annotations

from rawlog.formats.kafka.cluster import paths
from rawlog.formats.kafka.cluster.tables import METADATA, STATE
from rawlog.formats.kafka.cluster.verbs import CLUSTER
from rawlog.formats.kafka.paths import file_named
from rawlog.model.format import Family, Format

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
)

QUORUM = Format(
    name="kraft.quorum",
    title="election state of a controller",
    files="quorum-state",
    module="rawlog.formats.kafka.properties:QUORUM",
    match=file_named("quorum-state"),
    whole=True,
)


FAMILY = Family(
    name="kraft",
    title="Kafka KRaft metadata",
    formats=(CHECKPOINT, QUORUM),
    store=f"{_KRAFT}.store:MetadataLog",
    folds=(METADATA, *STATE),
    host="kafka",
    options=("atOffset", "atTimestamp", "showSecrets"),
    verbs={"cluster": CLUSTER},
)
