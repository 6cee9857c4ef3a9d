"""The tables of Ambry stores beyond `records`."""

from __future__ import annotations

from rawlog.model.table import Column, Table

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
