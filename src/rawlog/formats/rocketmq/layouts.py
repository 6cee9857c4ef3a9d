"""The bytes of a RocketMQ store.

Authority: apache/rocketmq 8fc57f1 (5.3.4-SNAPSHOT) with the releases 4.2.0 to 5.3.3, and stores that the engine and whole brokers wrote
(4.9.7 to 5.3.x). All integers are big-endian. A physical offset is the address of a byte in the whole commit log, not in one file.
"""

from __future__ import annotations

from enum import IntFlag

from rawlog.model.layout import Field, Layout

MAGIC_V1 = -626843481
"""`DA A3 20 A7`: a message whose topic length has one byte."""
MAGIC_V2 = -626843477
"""`DA A3 20 AB`: a message whose topic length has two bytes (5.1.0 on)."""
MAGIC_BLANK = -875286124
"""`CB D4 31 94`: the rest of this file is unused."""


class SysFlag(IntFlag):
    """Bits of one 32-bit number (MessageSysFlag)."""

    COMPRESSED = 0x001
    MULTI_TAGS = 0x002
    PREPARED = 0x004
    COMMIT = 0x008
    BORNHOST_V6 = 0x010
    STOREHOST_V6 = 0x020
    NEED_UNWRAP = 0x040
    INNER_BATCH = 0x080


TRANSACTION_MASK = 0x00C
TRANSACTIONS = ("none", "prepared", "commit", "rollback")
CODEC_MASK, CODEC_SHIFT = 0x700, 8
CODECS = ("zlib", "lz4", "zstd", "zlib")
"""By compression type; 0 is what clients before 4.9.4 wrote, 4 to 7 do not exist."""
CODEC_TYPES = {"zlib": 3, "lz4": 1, "zstd": 2}
BATCH_MASK = 0x0C0

CRC_MASK = 0x7FFF_FFFF
"""Checksums are CRC-32 with the top bit cleared."""

# MessageExtEncoder, CommitLog.checkMessageAndReturnSize (4.2.0 to 5.3.4). A message is HEAD, born host, STORED, store host, TAIL, body,
# topic length (1 or 2 bytes), topic, properties length (2 bytes), properties.
HEAD = Layout(
    "message head",
    Field("total_size", ">i4", "upstream TOTALSIZE: the whole entry, this field included"),
    Field("magic", ">i4", "upstream MAGICCODE"),
    Field("body_crc", ">i4", "CRC-32 of the body as stored, top bit cleared; 0 for an empty one"),
    Field("queue_id", ">i4"),
    Field("flag", ">i4", "the application's own number"),
    Field("queue_offset", ">i8", "number of the message in its queue; 0 for prepared and rolled back"),
    Field("physical_offset", ">i8", "address of this entry in the whole commit log"),
    Field("sys_flag", ">i4", "bits: compression, transaction, host sizes, inner batch"),
    Field("born_timestamp", ">i8", "milliseconds, the producer's clock"),
)
HOST_V4 = Layout("host, IPv4", Field("address", "S4"), Field("port", ">i4"))
HOST_V6 = Layout("host, IPv6", Field("address", "S16"), Field("port", ">i4"))
STORED = Layout("store time", Field("store_timestamp", ">i8", "milliseconds, the broker's clock, never falling"))
TAIL = Layout(
    "message tail",
    Field("reconsume_times", ">i4", "four bytes, whatever older texts say"),
    Field("prepared_transaction_offset", ">i8", "physical offset of the half message that was committed, else 0"),
    Field("body_length", ">i4", "bytes of the body as stored"),
)
TOPIC_V1 = Layout("topic length, version 1", Field("topic_length", "i1", "0 to 127"))
TOPIC_V2 = Layout("topic length, version 2", Field("topic_length", ">i2"))
PROPERTIES = Layout("properties length", Field("properties_length", ">i2", "0 to 32 767"))

BLANK = Layout(
    "blank entry",
    Field("total_size", ">i4", "all bytes to the end of the file"),
    Field("magic", ">i4"),
)
FIXED_V4 = HEAD.size + HOST_V4.size + STORED.size + HOST_V4.size + TAIL.size
V6_MORE = HOST_V6.size - HOST_V4.size
SMALLEST_V1 = FIXED_V4 + TOPIC_V1.size + PROPERTIES.size
SMALLEST_V2 = FIXED_V4 + TOPIC_V2.size + PROPERTIES.size
SMALLEST_FRAME = BLANK.size
LARGEST_PROPERTIES = 32767
LARGEST_TOPIC_V1 = 127
LARGEST_BODY = 4_194_304
LARGEST_FILE = (1 << 31) - 1

NAME_VALUE, PAIR_END = 0x01, 0x02
"""The bytes between name and value of a property, and after each pair (the last one may lack it)."""
CRC_PROPERTY = b"__CRC32#"
CRC_PROPERTY_SIZE = len(CRC_PROPERTY) + 12

# openmessaging/dledger DLedgerEntryCoder; store/dledger/DLedgerCommitLog.
DLEDGER = Layout(
    "DLedger entry head",
    Field("magic", ">i4", "1"),
    Field("size", ">i4", "this head and the message"),
    Field("index", ">i8"),
    Field("term", ">i8"),
    Field("position", ">i8", "upstream pos: address of this head in the whole log"),
    Field("channel", ">i4"),
    Field("chain_crc", ">i4"),
    Field("body_crc", ">i4"),
    Field("body_size", ">i4"),
)
DLEDGER_MAGIC = 1
DLEDGER_BLANK = Layout(
    "DLedger blank entry", Field("magic", ">i4", "-1"), Field("size", ">i4", "bytes to the end of the file")
)
DLEDGER_BLANK_MAGIC = -1
DLEDGER_INDEX = Layout(
    "DLedger index unit",
    Field("magic", ">i4"),
    Field("position", ">i8", "upstream pos"),
    Field("size", ">i4"),
    Field("index", ">i8"),
    Field("term", ">i8"),
)

# MessageDecoder.encodeMessage: a message inside a client batch or an inner batch.
INNER = Layout(
    "inner message",
    Field("size", ">i4", "this head, body and properties"),
    Field("magic", ">i4", "0"),
    Field("body_crc", ">i4", "0"),
    Field("flag", ">i4"),
    Field("body_length", ">i4"),
)

# ConsumeQueue (CQ_STORE_UNIT_SIZE = 20), 4.2.0 to 5.3.4.
UNIT = Layout(
    "consume queue unit",
    Field("physical_offset", ">i8", "address of the message in the whole commit log, not in one file"),
    Field("size", ">i4", "upstream says Body Size; it is that of the whole message"),
    Field(
        "tag_hash", ">i8", "upstream Tag HashCode; a time in the schedule topic, an address where an ext file is used"
    ),
)
PRE_BLANK_SIZE = 0x7FFF_FFFF
"""The size in units that only fill the front of a queue's first file."""
LARGEST_EXT_ADDRESS = -2147483649
"""A tag hash at or below this is an address in the ext files."""

# BatchConsumeQueue (5.0.0 on), also the queue of a compaction topic.
BATCH_UNIT = Layout(
    "batch consume queue unit",
    Field("physical_offset", ">i8"),
    Field("size", ">i4", "of the whole message"),
    Field("tag_hash", ">i8"),
    Field("store_timestamp", ">i8"),
    Field("base_offset", ">i8", "queue offset of the first message in the batch"),
    Field("batch_size", ">i2", "messages in the batch"),
    Field("compacted_offset", ">i4", "-1"),
    Field("reserved", ">i4", "0"),
)

# ConsumeQueueExt.
EXT_UNIT = Layout(
    "ext unit",
    Field("size", ">i2", "20 and the bytes of the bitmap; -1 ends a file"),
    Field("tag_hash", ">i8"),
    Field("store_timestamp", ">i8"),
    Field("bitmap_length", ">i2"),
)
EXT_END = -1
EXT_END_SIZE = 4
"""Bytes that always stay free at the end of an ext file."""

# IndexFile, IndexHeader.
INDEX_HEADER = Layout(
    "key index header",
    Field("begin_timestamp", ">i8"),
    Field("end_timestamp", ">i8"),
    Field("begin_physical_offset", ">i8"),
    Field("end_physical_offset", ">i8"),
    Field("used_slots", ">i4"),
    Field("index_count", ">i4", "one more than there are entries: number 0 is never used"),
)
SLOT = Layout("hash slot", Field("entry", ">i4", "number of the newest entry of this slot, 0 for none"))
INDEX_ENTRY = Layout(
    "key index entry",
    Field("key_hash", ">i4", "of `topic#key`, its sign dropped"),
    Field("physical_offset", ">i8"),
    Field("seconds", ">i4", "after the header's begin_timestamp"),
    Field("previous", ">i4", "number of the next older entry of the slot, 0 for none"),
)
DEFAULT_SLOTS, DEFAULT_ENTRIES = 5_000_000, 20_000_000

# StoreCheckpoint.
CHECKPOINT = Layout(
    "checkpoint",
    Field("physic_timestamp", ">i8", "upstream physicMsgTimestamp: the commit log is on disk up to there"),
    Field("logics_timestamp", ">i8", "upstream logicsMsgTimestamp: the consume queues are"),
    Field("index_timestamp", ">i8", "upstream indexMsgTimestamp: end of the last full key index file"),
    Field("master_flushed_offset", ">i8", "5.0.0 on"),
    Field("confirm_physical_offset", ">i8", "upstream confirmPhyOffset, 5.1.1 on"),
    Field(
        "logics_physical_offset",
        ">i8",
        "upstream logicsPhysicalOffset, 5.5.0 on: last message in the consume queues on disk; 0 where these are in RocksDB",
    ),
)
CHECKPOINT_SIZE = 4096

# TimerLog, TimerWheel, TimerCheckpoint (5.0.0 on).
TIMER_UNIT = Layout(
    "timer log unit",
    Field("size", ">i4", "52"),
    Field("previous_position", ">i8", "upstream prevPos, -1 for none"),
    Field("magic", ">i4", "1, with 2 for a rolled and 4 for a deleting unit"),
    Field("write_timestamp", ">i8", "upstream currWriteTime"),
    Field("delay_ms", ">i4", "due = write_timestamp + delay_ms"),
    Field("physical_offset", ">i8"),
    Field("message_size", ">i4"),
    Field("topic_hash", ">i4", "of the real topic"),
    Field("reserved", ">i8"),
)
TIMER_BLANK = Layout(
    "timer log blank",
    Field("size", ">i4"),
    Field("zero", ">i8"),
    Field("magic", ">i4", "as that of a commit log's blank entry"),
)
WHEEL_SLOT = Layout(
    "timer wheel slot",
    Field("time", ">i8", "due time in steps of 1000 ms"),
    Field("first_position", ">i8"),
    Field("last_position", ">i8"),
    Field("count", ">i4", "upstream num"),
    Field("magic", ">i4"),
)
TIMER_PRECISION_MS = 1000
TIMER_CHECK = Layout(
    "timer checkpoint",
    Field("last_read_timestamp", ">i8", "upstream lastReadTimeMs"),
    Field("last_flush_position", ">i8", "upstream lastTimerLogFlushPos"),
    Field("last_queue_offset", ">i8", "upstream lastTimerQueueOffset"),
    Field("master_queue_offset", ">i8", "upstream masterTimerQueueOffset"),
    Field("state_version", ">i8"),
    Field("version_timestamp", ">i8"),
    Field("version_counter", ">i8"),
)

FILLER_TOPIC, FILLER_FLAG, FILLER_HOST = "_", int.from_bytes(b"rawl", "big"), "127.0.0.1:0"
"""What `repair` writes over a hole: messages of this flag, born at and stored by this host, which has no port."""

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECK_MAX_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC = "rmq_sys_wheel_timer"
RETRY_PREFIX, DLQ_PREFIX, LMQ_PREFIX = "%RETRY%", "%DLQ%", "%LMQ%"

DELAY_LEVELS_MS = tuple(
    int(text[:-1]) * {"s": 1000, "m": 60_000, "h": 3_600_000}[text[-1]]
    for text in ("1s", "5s", "10s", "30s", *(f"{minutes}m" for minutes in range(1, 11)), "20m", "30m", "1h", "2h")
)
"""The default delay of level 1, 2 …"""
