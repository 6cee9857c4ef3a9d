"""Kafka's record batches and message sets on disk.

Authority: org.apache.kafka.common.record.DefaultRecordBatch, LegacyRecord and Records at apache/kafka 1eb7644349cb
(4.0.0-SNAPSHOT), compared with brokers 0.8.2 to 4.3.0.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

from rawlog.model.layout import Field, Layout

# Records: what all magics have in common, so that a log can be walked before anything else is known.
OUTLINE = Layout(
    "batch outline",
    Field("base_offset", ">i8", "magic 0 and 1: offset of the entry, of a wrapper that of its last record"),
    Field("length", ">i4", "bytes after this field, at least 14"),
    Field("leader_epoch", ">i4", "magic 0 and 1: crc"),
    Field("magic", "i1", "0, 1 or 2; decides what the rest means"),
)

# DefaultRecordBatch
BATCH = Layout(
    "record batch",
    Field("base_offset", ">i8", "offset of the first record of the original batch, kept by compaction"),
    Field("length", ">i4", "upstream batchLength: bytes after this field, at least 49"),
    Field("leader_epoch", ">i4", "upstream partitionLeaderEpoch; -1 none; outside the crc"),
    Field("magic", "i1", "2"),
    Field("crc", ">u4", "CRC-32C of attributes up to the end of the batch"),
    Field("attributes", ">i2", "bits 0-2 codec, 3 log append time, 4 transactional, 5 control, 6 delete horizon"),
    Field("last_offset_delta", ">i4", "last offset less base offset, also of a record since compacted away"),
    Field("base_timestamp", ">i8", "of the first record appended, in ms; with a delete horizon that horizon"),
    Field("max_timestamp", ">i8", "in ms; with log append time the timestamp of every record"),
    Field("producer_id", ">i8", "-1 none"),
    Field("producer_epoch", ">i2", "-1 none"),
    Field("base_sequence", ">i4", "-1 none; wraps from 2147483647 to 0"),
    Field("record_count", ">i4", "upstream recordsCount: records present now; 0: what follows is not looked at"),
)

# LegacyRecord, magic 0: up to the key's length
ENTRY_V0 = Layout(
    "message, magic 0",
    Field("offset", ">i8", "of a wrapper: that of its last record"),
    Field("length", ">i4", "upstream size: bytes after this field, at least 14"),
    Field("crc", ">u4", "CRC-32 (IEEE) of magic up to the end"),
    Field("magic", "i1", "0"),
    Field("attributes", "i1", "bits 0-2 codec; with a codec the value holds compressed entries"),
    Field("key_length", ">i4", "negative: null; then the key, the value's length (>i4), the value"),
)

# LegacyRecord, magic 1
ENTRY_V1 = Layout(
    "message, magic 1",
    Field("offset", ">i8", "of a wrapper: that of its last record; of an inner entry: relative"),
    Field("length", ">i4", "upstream size: bytes after this field, at least 22"),
    Field("crc", ">u4", "CRC-32 (IEEE) of magic up to the end"),
    Field("magic", "i1", "1"),
    Field("attributes", "i1", "bits 0-2 codec, 3 log append time"),
    Field("timestamp", ">i8", "in ms; -1 none"),
    Field("key_length", ">i4", "negative: null; then the key, the value's length (>i4), the value"),
)


class Attributes(IntFlag):
    """Bits of a batch's attributes above the codec's three."""

    LOG_APPEND_TIME = 0x08
    TRANSACTIONAL = 0x10
    CONTROL = 0x20
    DELETE_HORIZON = 0x40


CODEC_MASK = 0x07
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
"""Codecs by the number in the attributes; 5 to 7 are invalid."""

NONE = -1
"""No timestamp, producer, epoch or sequence."""
SMALLEST_LENGTH = 14
"""Of any magic: less than this many bytes after the length is damage."""
SMALLEST_RECORD = 7
"""A record of magic 2 has at least a byte each of length, attributes, two deltas, two lengths and header count."""
MAGIC_V2 = 2
SMALLEST_BATCH = BATCH.size - BATCH.after("length")
"""The least length of a batch of magic 2: its header alone."""


class ControlType(IntEnum):
    """What a control record is for (ControlRecordType)."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


# OffsetIndex, TimeIndex
INDEX_ENTRY = Layout(
    "offset index entry",
    Field("relative_offset", ">i4", "offset less the segment's base; of the last record of the batch at the position"),
    Field("position", ">i4", "where that batch begins in the log"),
)

TIME_INDEX_ENTRY = Layout(
    "time index entry",
    Field("timestamp", ">i8", "in ms: the largest in the segment up to here"),
    Field("relative_offset", ">i4", "offset less the segment's base, of the batch that has it"),
)

# AbortedTxn
TXN_INDEX_ENTRY = Layout(
    "aborted transaction",
    Field("version", ">i2", "0; Kafka looks at the first byte only"),
    Field("producer_id", ">i8"),
    Field("first_offset", ">i8", "base offset of the transaction's first batch, perhaps in an earlier segment"),
    Field("last_offset", ">i8", "offset of the abort marker"),
    Field("last_stable_offset", ">i8", "when this abort completed"),
)

# ProducerStateManager
SNAPSHOT_HEADER = Layout(
    "producer snapshot",
    Field("version", ">i2", "1"),
    Field("crc", ">u4", "CRC-32C of everything from the count on"),
    Field("count", ">i4", "entries that follow"),
)

SNAPSHOT_ENTRY = Layout(
    "producer state",
    Field("producer_id", ">i8"),
    Field("epoch", ">i2", "-1 none"),
    Field("last_sequence", ">i4", "of the newest batch; -1 none"),
    Field("last_offset", ">i8", "of the newest batch; -1 none"),
    Field("offset_delta", ">i4", "last offset of that batch less its first"),
    Field("timestamp", ">i8", "in ms: of the producer's last batch or marker"),
    Field("coordinator_epoch", ">i4", "of the last marker; -1 none"),
    Field("current_txn_first_offset", ">i8", "of the open transaction; -1 none"),
)
