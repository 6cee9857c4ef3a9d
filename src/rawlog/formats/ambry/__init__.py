"""Ambry: the blob store of one partition replica, as its directory holds it."""

from __future__ import annotations

from collections.abc import Callable

from rawlog.formats.ambry import paths
from rawlog.formats.ambry.tables import (
    BLOBS,
    CHUNKS,
    INDEX,
    MESSAGES,
)
from rawlog.model.format import (
    Family,
    Format,
    Place,
)
from rawlog.model.table import RECORDS

_AMBRY = "rawlog.formats.ambry"

LOG = Format(
    name="ambry.log",
    has_rules=True,
    title="log segment of a blob store, message header V1 to V3",
    files="<position>_<generation>_log, log_current",
    module=f"{_AMBRY}.log",
    tables=(RECORDS, MESSAGES),
    carries=frozenset(
        {"value"}
    ),  # a key that is a blob id, headers that are the properties: everything else may change
    match=paths.is_log,
    sniff=paths.sniff_log,
    by_position=True,
)

INDEX_SEGMENT = Format(
    name="ambry.index",
    has_rules=True,
    title="index segment, version 0 to 4",
    files="<position>_<generation>_<start>_index, <start>_index",
    module=f"{_AMBRY}.index",
    tables=(INDEX,),
    match=paths.indexed("index"),
)


def _whole(kind: str, title: str, files: str, match: Callable[[str], Place | None], implementation: str) -> Format:
    """A file that is one structure: an object of a module implements it."""
    return Format(name=f"ambry.{kind}", title=title, files=files, module=f"{_AMBRY}.{implementation}", match=match)


FAMILY = Family(
    name="ambry",
    options=("now",),
    store=f"{_AMBRY}.store:BlobStore",
    folds=(BLOBS, CHUNKS),
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
)
