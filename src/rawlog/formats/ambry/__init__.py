"""Ambry: the blob store of one partition replica, as its directory holds it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from zlib import crc32

from rawlog.formats.ambry.layouts import CRC_SIZE, HEADERS, SEGMENT_HEADER, SEGMENT_VERSION
from rawlog.model.errors import CorruptError, TruncatedError
from rawlog.model.format import Family, Format, Origin, Place
from rawlog.model.table import RECORDS, Column, Table

if TYPE_CHECKING:
    from rawlog.io.storage import Source
    from rawlog.model.store import Store


# Tables.


MESSAGES = Table(
    "ambry.messages",
    Column("path", "string"),
    Column("position", "bigint", "of the message in its file"),
    Column("size", "bigint"),
    Column("kind", "string", "PUT, DELETE, TTL_UPDATE or UNDELETE"),
    Column("header_version", "int"),
    Column("life_version", "int", "0 before header V3"),
    Column("key", "binary"),
    Column("blob_id", "string", "the key as its users write it"),
    Column("key_version", "int"),
    Column("partition", "bigint", "as the key says"),
    Column("account_id", "int", "as the record says, else the key; -1 unknown"),
    Column("container_id", "int", "as the record says, else the key; -1 unknown"),
    Column("uuid", "string"),
    Column("crc_ok", "boolean", "every record's checksum is right (a wrong one of the header is damage)"),
    Column("operation_timestamp", "timestamp", "PUT: creation; else of the update"),
    Column("expires_timestamp", "timestamp", "PUT: creation and time to live; null is never, or not known here"),
    Column("properties_version", "int", "upstream's serde version, 1 to 5; null in updates, as all of these"),
    Column("time_to_live", "bigint", "seconds, -1 for ever"),
    Column("is_private", "boolean"),
    Column("creation_time", "timestamp"),
    Column("properties_blob_size", "bigint", "upstream blobSize: of the whole blob as its user sees it"),
    Column("content_type", "string"),
    Column("owner_id", "string"),
    Column("service_id", "string"),
    Column("is_encrypted", "boolean"),
    Column("content_encoding", "string"),
    Column("filename", "string"),
    Column("reserved_metadata_blob_id", "string"),
    Column("user_metadata", "binary"),
    Column("encryption_key", "binary", "null: no such record"),
    Column("blob_type", "string", "DataBlob or MetadataBlob"),
    Column("is_compressed", "boolean"),
    Column("blob_size", "bigint", "bytes in the blob record"),
    Column("content", "binary", "as stored"),
    Column("hard_deleted", "boolean", "zeroed in place after a delete, as far as that is known"),
    Column("new_expiry", "bigint", "of a TTL_UPDATE, milliseconds; -1 never"),
    about="one row per message of a log segment",  # its offset in the whole log is in `records`
    times=("operation_timestamp", "operation_timestamp"),
    payload={"content": "value"},
    row_key={"key": "key", "operation_timestamp": "timestamp"},
)

INDEX = Table(
    "ambry.index",
    Column("path", "string"),
    Column("key", "binary", "as the file has it: that of the first entry of its blob"),
    Column("kind", "string", "PUT, DELETE, TTL_UPDATE or UNDELETE"),
    Column("position", "bigint", "upstream offset: of the message in its log segment"),
    Column("size", "bigint", "of the message"),
    Column("flags", "int", "1 DELETE, 2 TTL_UPDATE, 4 UNDELETE; they accumulate"),
    Column("expires", "bigint", "seconds (V0: milliseconds, cut), -1 never"),
    Column("original_offset", "bigint", "of the PUT in the same log segment, -1 unknown"),
    Column("operation_time", "bigint", "seconds, -1 unknown"),
    Column("account_id", "int"),
    Column("container_id", "int"),
    Column("life_version", "int"),
    about="one row per entry of an index segment",
    offsets=("position", "position"),
)

BLOBS = Table(
    "ambry.blobs",
    Column("blob_id", "string"),
    Column("key", "binary", "of the blob's first message"),
    Column("state", "string", "live, deleted or expired"),
    Column("life_version", "int"),
    Column("ttl_updated", "boolean"),
    Column("expires_timestamp", "timestamp", "whole seconds, null never"),
    Column("account_id", "int"),
    Column("container_id", "int"),
    Column("last_operation", "timestamp", "when the state was last changed; whole seconds"),
    Column("path", "string", "of the log segment that has the content"),
    Column("position", "bigint", "of the PUT in it"),
    Column("blob_size", "bigint", "bytes in the blob record"),
    Column("in_log", "boolean", "the PUT is there"),
    about="one row per blob, folded as the store would answer; option `now`",
)

CHUNKS = Table(
    "ambry.chunks",
    Column("blob_id", "string", "of the metadata blob"),
    Column("number", "int", "from 0"),
    Column("chunk_blob_id", "string"),
    Column("size", "bigint"),
    about="one row per chunk of a metadata blob",
)


# Names and first bytes of files. Which log segments count while a compaction is under way is in its log, not in names: see `store.settle`.


_LOG = re.compile(r"(?:(\d{1,18})_(\d{1,18})_log|log_current)(_temp)?")
_INDEXED = re.compile(r"(?:(\d{1,18})_(\d{1,18})_)?(\d{1,18})_(index|bloom)")
_COMPACTION_LOG = re.compile(r"(.+)_compactionLog(?:_(\d+)_.*)?")
#: Below a store: a replica that is being copied from another server, which the store does not read.
COPYING = "fileCopyTempDirectory"
MARKERS = (
    "cleanshutdown",
    "compactor_clean_shutdown",
    "bootstrap_in_progress",
    "decommission_in_progress",
    "file_copy_in_progress",
    "file_copy_completed",
)


@dataclass(frozen=True, slots=True)
class Segment:
    """Which log segment a file belongs to: position and generation; both -1 for `log_current`."""

    position: int = -1
    generation: int = -1

    @property
    def name(self) -> str:
        """As tokens and compaction logs write it: empty for `log_current`."""
        return "" if self.position < 0 else f"{self.position}_{self.generation}"

    @property
    def order(self) -> tuple[int, int]:
        return self.position, self.generation

    def log_name(self) -> str:
        return f"{self.name}_log" if self.name else "log_current"

    def index_name(self, start: int, kind: str = "index") -> str:
        return f"{self.name}_{start}_{kind}" if self.name else f"{start}_{kind}"


def split(path: str) -> tuple[str, str]:
    """The directory and the name of a path or URL."""
    path = path.partition("?")[0] if "://" in path else path
    folder, _, name = path.rpartition("/")
    return folder, name


def segment_of(path: str) -> Segment | None:
    """The log segment that a log, index or bloom file belongs to."""
    name = split(path)[1]
    match = _LOG.fullmatch(name) or _INDEXED.fullmatch(name)
    if match is None:
        return None
    return Segment() if match.group(1) is None else Segment(int(match.group(1)), int(match.group(2)))


def start_of(path: str) -> int:
    """Where the messages begin that an index or bloom file is for."""
    match = _INDEXED.fullmatch(split(path)[1])
    assert match is not None, path
    return int(match.group(3))


def store_place(folder: str, state: str | None = None) -> Place:
    """What a store's directory says: its name is the number of the partition."""
    name = split(folder)[1]
    number = int(name) if re.fullmatch(r"\d{1,10}", name) else None
    return Place(None, number if number is not None and number <= 0x7FFF_FFFF else None, None, folder, state)


def store_name(store: Store) -> str | None:
    """The number of a partition, if its directory has such a name and a log; else None."""
    for file in store:
        if file.format == "ambry.log" and file.place.state is None and file.place.partition is not None:
            return str(file.place.partition)
    return None


def is_log(path: str) -> Place | None:
    """Match a log segment; the target of an uncommitted compaction has the state `temp`."""
    folder, name = split(path)
    match = _LOG.fullmatch(name)
    return None if match is None else store_place(folder, "temp" if match.group(3) else None)


def indexed(kind: str) -> Callable[[str], Place | None]:
    """A matcher for index segments or blooms."""

    def match(path: str) -> Place | None:
        folder, name = split(path)
        name_match = _INDEXED.fullmatch(name)
        return store_place(folder) if name_match is not None and name_match.group(4) == kind else None

    return match


def is_compaction_log(path: str) -> Place | None:
    """Match the log of a compaction: running, or finished (with a time in its name)."""
    folder, name = split(path)
    return store_place(folder) if _COMPACTION_LOG.fullmatch(name) else None


def is_current_compaction(path: str) -> bool:
    """Whether a compaction log is of a running compaction."""
    match = _COMPACTION_LOG.fullmatch(split(path)[1])
    return match is not None and match.group(2) is None


def file_named(*names: str) -> Callable[[str], Place | None]:
    """A matcher for files of fixed names."""

    def match(path: str) -> Place | None:
        folder, name = split(path)
        return store_place(folder) if name in names else None

    return match


def sniff_log(head: bytes, size: int) -> bool:
    """Whether bytes begin as a log segment: a segment header, or a message header, with a right checksum."""
    return _is_segment_header(head) or _is_message_header(head)


def _is_segment_header(head: bytes) -> bool:
    return int.from_bytes(head[:2], "big") == SEGMENT_VERSION and _is_sealed(head, SEGMENT_HEADER.size)


def _is_message_header(head: bytes) -> bool:
    layout = HEADERS.get(int.from_bytes(head[:2], "big"))
    return layout is not None and _is_sealed(head, layout.size)


def _is_sealed(head: bytes, size: int) -> bool:
    """Whether the last eight of `size` bytes are the checksum of those before."""
    return len(head) >= size and int.from_bytes(head[size - CRC_SIZE : size], "big") == crc32(head[: size - CRC_SIZE])


def presume(source: Source) -> list[Origin]:
    """Where messages begin if the header of a segment is damaged."""
    return [Origin(SEGMENT_HEADER.size)]


def begin(head: bytes, size: int) -> Origin:
    """Where messages begin: after the segment header, if there is one. DataError for a damaged header."""
    if size == 0 or _is_message_header(head):
        return Origin(0)
    if _is_segment_header(head):
        return Origin(SEGMENT_HEADER.size)
    version = int.from_bytes(head[:2], "big", signed=True)
    if version in HEADERS:  # a damaged message of a log_current, or a cut one
        return Origin(0)
    if version == SEGMENT_VERSION and size < SEGMENT_HEADER.size:
        raise TruncatedError(
            f"segment header of {size} bytes, {SEGMENT_HEADER.size} expected",
            position=0,
            layout=SEGMENT_HEADER.name,
            expected=SEGMENT_HEADER.size,
            found=size,
        )
    if version != SEGMENT_VERSION and not _is_message_header(head[SEGMENT_HEADER.size :]):
        return Origin(0)
    at = SEGMENT_HEADER.at("crc")
    stored, computed = int.from_bytes(head[at : at + CRC_SIZE], "big"), crc32(head[:at])
    raise CorruptError(
        f"segment header: version {version}, checksum {stored:016x}; version 0 and {computed:016x} expected",
        position=0,
        layout=SEGMENT_HEADER.name,
        field="crc",
        expected=f"{computed:016x}",
        found=f"{stored:016x}",
    )


def capacity(head: bytes) -> int | None:
    """The capacity that a segment header names; None for a log without header."""
    if not _is_segment_header(head):
        return None
    return int.from_bytes(
        head[SEGMENT_HEADER.at("capacity_in_bytes") : SEGMENT_HEADER.after("capacity_in_bytes")], "big"
    )


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
    match=is_log,
    sniff=sniff_log,
    by_position=True,
)

INDEX_SEGMENT = Format(
    name="ambry.index",
    has_rules=True,
    title="index segment, version 0 to 4",
    files="<position>_<generation>_<start>_index, <start>_index",
    module=f"{_AMBRY}.index",
    tables=(INDEX,),
    match=indexed("index"),
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
            indexed("bloom"),
            "index:BLOOM",
        ),
        _whole(
            "descriptor",
            "identity of a store",
            "StoreDescriptor",
            file_named("StoreDescriptor"),
            "structures:DESCRIPTOR",
        ),
        _whole("cleanup", "progress of hard delete", "cleanuptoken", file_named("cleanuptoken"), "structures:CLEANUP"),
        _whole(
            "compaction",
            "log of a compaction",
            "<store>_compactionLog*",
            is_compaction_log,
            "structures:COMPACTION",
        ),
        _whole(
            "tracker",
            "tokens of peers",
            "remoteTokenTracker",
            file_named("remoteTokenTracker"),
            "structures:TRACKER",
        ),
        _whole(
            "tokens",
            "tokens of a disk's replicas",
            "replicaTokens",
            file_named("replicaTokens"),
            "structures:REPLICA_TOKENS",
        ),
        Format(
            name="ambry.policy",
            title="when to compact all",
            files="compactionPolicyInfoV2.json, compactionPolicyInfo.json",
            match=file_named("compactionPolicyInfoV2.json", "compactionPolicyInfo.json"),
        ),
        Format(
            name="ambry.marker",
            title="marks of a clean stop and of moves",
            files=", ".join(MARKERS),
            match=file_named(*MARKERS),
        ),
    ),
)
