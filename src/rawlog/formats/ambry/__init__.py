"""Ambry: the blob store of one partition replica, as its directory holds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rawlog.formats.ambry import layouts, paths
from rawlog.formats.ambry.tables import (
    BLOBS,
    CHUNKS,
    INDEX,
    MESSAGES,
)
from rawlog.model.format import (
    Deferred,
    Family,
    Format,
    Lookup,
    Place,
    Rewrite,
)
from rawlog.model.table import RECORDS

_AMBRY = "rawlog.formats.ambry"
_READER, _INDEX = f"{_AMBRY}.log", f"{_AMBRY}.index"

LOG = Format(
    name="ambry.log",
    has_rules=True,
    title="log segment of a blob store, message header V1 to V3",
    files="<position>_<generation>_log, log_current",
    module=_READER,
    tables=(RECORDS, MESSAGES),
    carries=frozenset(
        {"value"}
    ),  # a key that is a blob id, headers that are the properties: everything else may change
    match=paths.is_log,
    sniff=paths.sniff_log,
    by_position=True,
    more={
        "LAYOUTS": (
            layouts.SEGMENT_HEADER,
            layouts.HEADER_V3,
            layouts.HEADER_V2,
            layouts.HEADER_V1,
            layouts.KEY_V6,
            layouts.KEY_V2,
            layouts.KEY_V1,
            layouts.ENCRYPTION_KEY,
            layouts.PROPERTIES,
            layouts.USER_METADATA,
            layouts.BLOB_V3,
            layouts.BLOB_V2,
            layouts.BLOB_V1,
            layouts.UPDATE_V3,
            layouts.UPDATE_V2,
            layouts.UPDATE_V1,
            layouts.METADATA_V3,
            layouts.METADATA_V2,
            layouts.ENVELOPE,
        ),
        "presume": paths.presume,
        "contradicted": Deferred(f"{_AMBRY}.store.store", "contradicted"),
        "context": Deferred(f"{_AMBRY}.store.store", "context"),
        "summary": Deferred(f"{_AMBRY}.store.state", "summary"),
        "tally": Deferred(f"{_AMBRY}.store.store", "tally"),
        "encode": Deferred(f"{_AMBRY}.writer", "encode"),
        "write": Deferred(f"{_AMBRY}.store.rewrite", "write"),
        "losses": Deferred(f"{_AMBRY}.writer", "losses"),
        "rules": Deferred(f"{_AMBRY}.rules", "log_rules"),
    },
)

INDEX_SEGMENT = Format(
    name="ambry.index",
    has_rules=True,
    title="index segment, version 0 to 4",
    files="<position>_<generation>_<start>_index, <start>_index",
    module=_INDEX,
    tables=(INDEX,),
    match=paths.indexed("index"),
    more={
        "LAYOUTS": (
            layouts.INDEX_V2,
            layouts.INDEX_V1,
            layouts.INDEX_V0,
            layouts.VALUE_V3,
            layouts.VALUE_V1,
            layouts.VALUE_V0,
        ),
        "summary": Deferred(_INDEX, "IndexSummary"),
        "rules": Deferred(f"{_AMBRY}.rules", "index_rules"),
    },
)


def _whole(
    kind: str, title: str, files: str, match: Callable[[str], Place | None], implementation: str, **more: Any
) -> Format:
    """A file that is one structure: an object of a module implements it."""
    return Format(
        name=f"ambry.{kind}", title=title, files=files, module=f"{_AMBRY}.{implementation}", match=match, more=more
    )


def _rewrite(verb: str, module: str, *options: str, stores: str = "stores_of", **more: Any) -> Rewrite:
    """A verb over stores."""
    do = Deferred(f"{_AMBRY}.store.{module}", verb)
    return Rewrite(do=do, stores=Deferred(f"{_AMBRY}.store.rewrite", stores), options=options, **more)


FAMILY = Family(
    name="ambry",
    options=("now",),
    lookup=Lookup(
        named="blobs", columns=Deferred(f"{_AMBRY}.keys", "id_columns"), by_id=Deferred(f"{_AMBRY}.keys", "rows_by_id")
    ),
    copy_ids=Deferred(f"{_AMBRY}.structures", "copy_ids"),
    part_ids=Deferred(f"{_AMBRY}.structures", "part_ids"),
    rewrites={
        "rebuild": _rewrite("rebuild", "repair", "max_entries", "probability"),
        "repair": _rewrite(
            "repair",
            "repair",
            "max_entries",
            "probability",
            "capacity",
            unrepaired=("ambry.log.time", "ambry.log.envelope", "ambry.log.metadata"),
        ),
        "compact": _rewrite(
            "compact",
            "compact",
            "filter",
            "segments",
            "now",
            "retention_hours",
            "reference_time",
            "purge_tombstones",
            "max_entries",
            "probability",
        ),
        "erase": _rewrite("erase", "erase", "blobs", "now", keeps=True, content_only=True),
    },
    reading=Deferred(f"{_AMBRY}.store.repair", "reading"),
    title="LinkedIn Ambry",
    formats=(
        LOG,
        INDEX_SEGMENT,
        _whole(
            "bloom",
            "bloom filter of an index segment",
            "<segment>_<start>_bloom",
            paths.indexed("bloom"),
            "index:BLOOM",
            LAYOUTS=(layouts.BLOOM,),
            summary=Deferred(f"{_AMBRY}.index", "BloomSummary"),
        ),
        _whole(
            "descriptor",
            "identity of a store",
            "StoreDescriptor",
            paths.file_named("StoreDescriptor"),
            "structures:DESCRIPTOR",
        ),
        _whole(
            "cleanup", "progress of hard delete", "cleanuptoken", paths.file_named("cleanuptoken"), "structures:CLEANUP"
        ),
        _whole(
            "compaction",
            "log of a compaction",
            "<store>_compactionLog*",
            paths.is_compaction_log,
            "structures:COMPACTION",
        ),
        _whole(
            "tracker",
            "tokens of peers",
            "remoteTokenTracker",
            paths.file_named("remoteTokenTracker"),
            "structures:TRACKER",
        ),
        _whole(
            "tokens",
            "tokens of a disk's replicas",
            "replicaTokens",
            paths.file_named("replicaTokens"),
            "structures:REPLICA_TOKENS",
        ),
        Format(
            name="ambry.policy",
            title="when to compact all",
            files="compactionPolicyInfoV2.json, compactionPolicyInfo.json",
            match=paths.file_named("compactionPolicyInfoV2.json", "compactionPolicyInfo.json"),
        ),
        Format(
            name="ambry.marker",
            title="marks of a clean stop and of moves",
            files=", ".join(paths.MARKERS),
            match=paths.file_named(*paths.MARKERS),
        ),
    ),
    folds={
        "ambry.blobs": Deferred(f"{_AMBRY}.store.store", "blobs"),
        "ambry.chunks": Deferred(f"{_AMBRY}.store.store", "chunks"),
    },
    fold_tables=(BLOBS, CHUNKS),
    rescuer=Deferred(f"{_AMBRY}.store.rescue", "Rescue"),
    accounts=Deferred(f"{_AMBRY}.store.rules", "accounts"),
    overview=Deferred(f"{_AMBRY}.store.store", "overview"),
    settle=Deferred(f"{_AMBRY}.store.store", "settle"),
    group_rules=Deferred(f"{_AMBRY}.store.rules", "group_rules"),
    replica_rules=Deferred(f"{_AMBRY}.store.replicas", "rules"),
    store_name=paths.store_name,
    copies=Deferred(f"{_AMBRY}.store.replicas", "copies"),
    compare=Deferred(f"{_AMBRY}.store.replicas", "compare"),
)
