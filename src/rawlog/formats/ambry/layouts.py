"""The bytes of an Ambry store.

Authority: linkedin/ambry at 367375cd (2026-08-07), modules ambry-messageformat, ambry-store and ambry-commons; checked
against files that those classes wrote. All integers are big-endian and signed. A checksum field is eight bytes: zeros in
its upper half, CRC-32 (IEEE) of the structure's own bytes in its lower half.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

from rawlog.model.layout import Field, Layout

NONE = -1
"""No such record, no such time, no such account: upstream's -1 everywhere."""
CRC_SIZE = 8
LARGEST_CONTENT = (1 << 31) - 1

# LogSegment: only in files named `*_log`; `log_current` has none.
SEGMENT_HEADER = Layout(
    "log segment header",
    Field("version", ">i2", "0"),
    Field("capacity_in_bytes", ">i8", "of the segment, this header included"),
    Field("crc", ">i8", "over the bytes before it"),
)
SEGMENT_VERSION = 0

# MessageFormatRecord.MessageHeader_Format_V1. Offsets count from the first byte of the message header; -1 is absent.
HEADER_V1 = Layout(
    "message header V1",
    Field("version", ">i2", "1"),
    Field("payload_size", ">i8", "of all records; header and key do not count"),
    Field("blob_properties_offset", ">i4", "from the start of the message, -1 in updates"),
    Field("update_offset", ">i4", "upstream once said delete offset; -1 in PUTs"),
    Field("user_metadata_offset", ">i4", "from the start of the message, -1 in updates"),
    Field("blob_offset", ">i4", "from the start of the message, -1 in updates"),
    Field("crc", ">i8", "over the header before it; key and records have their own"),
)

# MessageFormatRecord.MessageHeader_Format_V2, written from 2017-11.
HEADER_V2 = Layout(
    "message header V2",
    Field("version", ">i2", "2"),
    Field("payload_size", ">i8", "of all records; header and key do not count"),
    Field("encryption_key_offset", ">i4", "from the start of the message, -1 for none"),
    Field("blob_properties_offset", ">i4", "from the start of the message, -1 in updates"),
    Field("update_offset", ">i4", "-1 in PUTs"),
    Field("user_metadata_offset", ">i4", "from the start of the message, -1 in updates"),
    Field("blob_offset", ">i4", "from the start of the message, -1 in updates"),
    Field("crc", ">i8", "over the header before it; key and records have their own"),
)

# MessageFormatRecord.MessageHeader_Format_V3, written from 2020-03 to this day.
HEADER_V3 = Layout(
    "message header V3",
    Field("version", ">i2", "3"),
    Field("life_version", ">i2", "raised by every undelete"),
    Field("payload_size", ">i8", "of all records; header and key do not count"),
    Field("encryption_key_offset", ">i4", "from the start of the message, -1 for none"),
    Field("blob_properties_offset", ">i4", "from the start of the message, -1 in updates"),
    Field("update_offset", ">i4", "-1 in PUTs"),
    Field("user_metadata_offset", ">i4", "from the start of the message, -1 in updates"),
    Field("blob_offset", ">i4", "from the start of the message, -1 in updates"),
    Field("crc", ">i8", "over the header before it; key and records have their own"),
)
HEADERS = {1: HEADER_V1, 2: HEADER_V2, 3: HEADER_V3}

# BlobId. The key follows the header, without a length of its own.
KEY_V1 = Layout(
    "blob id V1",
    Field("version", ">i2", "1"),
    Field("partition_version", ">i2", "1"),
    Field("partition", ">i8", "number of the partition"),
    Field("uuid_size", ">i4", "bytes of the text that follows"),
)
KEY_V2 = Layout(
    "blob id V2 to V5",
    Field("version", ">i2", "2 to 5"),
    Field("flags", "u1", "id type, encrypted (V4), data type (V5)"),
    Field("datacenter_id", "i1", "-1 unknown"),
    Field("account_id", ">i2", "-1 unknown"),
    Field("container_id", ">i2", "-1 unknown"),
    Field("partition_version", ">i2", "1"),
    Field("partition", ">i8", "number of the partition"),
    Field("uuid_size", ">i4", "bytes of the text that follows"),
)
KEY_V6 = Layout(
    "blob id V6 and V7",
    Field("version", ">i2", "6 or 7"),
    Field("flags", "u1", "id type, encrypted, data type, migration destination (V7)"),
    Field("datacenter_id", "i1", "-1 unknown"),
    Field("account_id", ">i2", "-1 unknown"),
    Field("container_id", ">i2", "-1 unknown"),
    Field("partition_version", ">i2", "1"),
    Field("partition", ">i8", "number of the partition"),
    Field("uuid", "S16", "most significant half first"),
)
KEYS = {1: KEY_V1, 2: KEY_V2, 3: KEY_V2, 4: KEY_V2, 5: KEY_V2, 6: KEY_V6, 7: KEY_V6}
PARTITION_VERSION = 1
SMALLEST_KEY = KEY_V1.size


class KeyFlag(IntFlag):
    """The flag byte of keys from V2 on."""

    ID_TYPE = 0x03
    ENCRYPTED = 0x04
    DATA_TYPE = 0x18
    NON_AMBRY = 0x80


ID_TYPES = ("NATIVE", "CRAFTED")
DATA_TYPES = ("SIMPLE", "METADATA", "DATACHUNK")

# MessageFormatRecord.BlobEncryptionKey_Format_V1 and UserMetadata_Format_V1: a size, bytes, a checksum.
ENCRYPTION_KEY = Layout(
    "encryption key record",
    Field("version", ">i2", "1"),
    Field("size", ">i4", "of the key that follows; a checksum field closes the record"),
)
USER_METADATA = Layout(
    "user metadata record",
    Field("version", ">i2", "1"),
    Field("size", ">i4", "of the bytes that follow; a checksum field closes the record"),
)

# MessageFormatRecord.BlobProperties_Format_V1 with BlobPropertiesSerDe inside; strings and more follow.
PROPERTIES = Layout(
    "blob properties record",
    Field("version", ">i2", "of the record: 1"),
    Field("serde_version", ">i2", "of what it holds: 1 to 5"),
    Field("time_to_live", ">i8", "seconds, -1 for ever"),
    Field("is_private", "i1", "1 is true"),
    Field("creation_time", ">i8", "milliseconds"),
    Field("blob_size", ">i8", "of the blob as its user sees it"),
)
TEXT_SIZE = 4  # i32 in front of every string

# MessageFormatRecord.Blob_Format_V1 to V3.
BLOB_V1 = Layout(
    "blob record V1",
    Field("version", ">i2", "1"),
    Field("size", ">i8", "of the content that follows; a checksum field closes the record"),
)
BLOB_V2 = Layout(
    "blob record V2",
    Field("version", ">i2", "2"),
    Field("blob_type", ">i2", "0 data, 1 metadata"),
    Field("size", ">i8", "of the content that follows; a checksum field closes the record"),
)
BLOB_V3 = Layout(
    "blob record V3",
    Field("version", ">i2", "3"),
    Field("blob_type", ">i2", "0 data, 1 metadata"),
    Field("is_compressed", "u1", "1: the content is an envelope with compressed bytes"),
    Field("size", ">i8", "of the content that follows; a checksum field closes the record"),
)
BLOBS = {1: BLOB_V1, 2: BLOB_V2, 3: BLOB_V3}
BLOB_TYPES = ("DataBlob", "MetadataBlob")

# MessageFormatRecord.Update_Format_V1 to V3, and the sub-records of V3.
UPDATE_V1 = Layout(
    "update record V1",
    Field("version", ">i2", "1"),
    Field("delete_byte", "u1", "written 1, ignored: always a DELETE"),
    Field("crc", ">i8", "over the bytes before it"),
)
UPDATE_V2 = Layout(
    "update record V2",
    Field("version", ">i2", "2"),
    Field("account_id", ">i2", "-1 unknown"),
    Field("container_id", ">i2", "-1 unknown"),
    Field("update_time", ">i8", "milliseconds"),
    Field("crc", ">i8", "over the bytes before it"),
)
UPDATE_V3 = Layout(
    "update record V3",
    Field("version", ">i2", "3"),
    Field("account_id", ">i2", "-1 unknown"),
    Field("container_id", ">i2", "-1 unknown"),
    Field("update_time", ">i8", "milliseconds"),
    Field("type", ">i2", "0 DELETE, 1 TTL_UPDATE, 2 UNDELETE"),
    Field("sub_version", ">i2", "1; a TTL_UPDATE's new expiry follows, then a checksum field"),
)
NEW_EXPIRY_SIZE = 8


class Kind(IntEnum):
    """What a message does to its blob. The numbers are those of the reset key in index files."""

    TTL_UPDATE = 0
    PUT = 1
    DELETE = 2
    UNDELETE = 3


KIND_OF_UPDATE = (Kind.DELETE, Kind.TTL_UPDATE, Kind.UNDELETE)
"""By the type in an update record, which numbers them otherwise."""

# MetadataContentSerDe. Keys follow without length; V1 (removed upstream) began with a count.
METADATA_V2 = Layout(
    "metadata content V2",
    Field("version", ">i2", "2"),
    Field("chunk_size", ">i4", "of every chunk but the last"),
    Field("total_size", ">i8", "of the blob; the keys of its chunks follow"),
)
METADATA_V3 = Layout(
    "metadata content V3",
    Field("version", ">i2", "3"),
    Field("total_size", ">i8", "of the blob"),
    Field("count", ">i4", "of chunks: each a size of eight bytes and a key"),
)
CHUNK_SIZE = 8

# The router's envelope round compressed content: version, size of the name, name, size when decompressed, bytes.
ENVELOPE = Layout(
    "compression envelope", Field("version", "u1", "1"), Field("name_size", "u1", "of the algorithm's name: 1 to 10")
)
ORIGINAL_SIZE = 4
LONGEST_NAME = 10

# IndexSegment: the header of a file, by version. A reset key of its own size follows from V1 on.
INDEX_V0 = Layout(
    "index header V0",
    Field("version", ">i2", "0"),
    Field("key_size", ">i4", "of every key"),
    Field("value_size", ">i4", "33"),
    Field("log_end_offset", ">i8", "end of the last message covered"),
)
INDEX_V1 = Layout(
    "index header V1",
    Field("version", ">i2", "1"),
    Field("key_size", ">i4", "of every key"),
    Field("value_size", ">i4", "37"),
    Field("log_end_offset", ">i8", "end of the last message covered"),
    Field("last_modified", ">i8", "seconds; the reset key and its kind follow"),
)
INDEX_V2 = Layout(
    "index header V2 to V4",
    Field("version", ">i2", "2, 3 or 4"),
    Field("entry_size", ">i4", "of every entry: the longest key and a value"),
    Field("value_size", ">i4", "37 in V2, 39 after"),
    Field("log_end_offset", ">i8", "end of the last message covered"),
    Field("last_modified", ">i8", "seconds; the reset key, its kind and in V4 its life version follow"),
)
INDEXES = {0: INDEX_V0, 1: INDEX_V1, 2: INDEX_V2, 3: INDEX_V2, 4: INDEX_V2}
RESET_KIND_SIZE, RESET_LIFE_SIZE = 2, 2

# IndexValue.
VALUE_V0 = Layout(
    "index value V0",
    Field("size", ">i8", "of the message"),
    Field("offset", ">i8", "in the log segment"),
    Field("flags", "u1", "1 DELETE, 2 TTL_UPDATE, 4 UNDELETE; 0 is a PUT"),
    Field("expires_at", ">i8", "milliseconds, -1 never"),
    Field("original_message_offset", ">i8", "of the PUT, -1 unknown"),
)
VALUE_V1 = Layout(
    "index value V1 and V2",
    Field("size", ">i8", "of the message"),
    Field("offset", ">i8", "in the log segment"),
    Field("flags", "u1", "1 DELETE, 2 TTL_UPDATE, 4 UNDELETE; 0 is a PUT"),
    Field("expires_at", ">i4", "seconds, -1 never"),
    Field("original_message_offset", ">i8", "of the PUT, -1 unknown"),
    Field("operation_time", ">i4", "seconds, -1 unknown"),
    Field("account_id", ">i2", "-1 unknown"),
    Field("container_id", ">i2", "-1 unknown"),
)
VALUE_V3 = Layout(
    "index value V3 and V4",
    Field("size", ">i8", "of the message"),
    Field("offset", ">i8", "in the log segment"),
    Field("flags", "u1", "1 DELETE, 2 TTL_UPDATE, 4 UNDELETE; 0 is a PUT"),
    Field("expires_at", ">i4", "seconds, -1 never"),
    Field("original_message_offset", ">i8", "of the PUT, -1 unknown"),
    Field("operation_time", ">i4", "seconds, -1 unknown"),
    Field("account_id", ">i2", "-1 unknown"),
    Field("container_id", ">i2", "-1 unknown"),
    Field("life_version", ">i2", "0 before the first undelete"),
)
VALUES = {0: VALUE_V0, 1: VALUE_V1, 2: VALUE_V1, 3: VALUE_V3, 4: VALUE_V3}


class Flag(IntFlag):
    """The flags of an index value; they accumulate."""

    DELETE = 1
    TTL_UPDATE = 2
    UNDELETE = 4


# BloomFilter, as Cassandra once wrote it: words of eight bytes follow, then a checksum field.
BLOOM = Layout(
    "bloom filter",
    Field("hash_count", ">i4", "bits set for a key"),
    Field("word_count", ">i4", "words of 64 bits that follow"),
)
BLOOM_TABLE = {0.01: (5, 10), 0.1: (3, 5), 0.05: (3, 7), 0.001: (7, 15), 0.0001: (10, 20)}
"""Hash count and buckets an element, by the wanted share of false positives."""
BLOOM_SPARE = 20

SMALLEST_PAYLOAD = UPDATE_V1.size
SMALLEST_MESSAGE = HEADER_V1.size + SMALLEST_KEY + SMALLEST_PAYLOAD
