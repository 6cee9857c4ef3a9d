"""The tables of Kafka's log directories beyond `records`."""

from __future__ import annotations

from rawlog.tables import RECORDS, Column, Table

BATCHES = Table(
    "kafka.batches",
    Column("topic", "string"),
    Column("partition", "int"),
    Column("path", "string"),
    Column("position", "bigint"),
    Column("size", "bigint"),
    Column("base_offset", "bigint"),
    Column("last_offset", "bigint"),
    Column("record_count", "int"),
    Column("magic", "int"),
    Column("codec", "string", "none, gzip, snappy, lz4, zstd"),
    Column("timestamp_type", "int", "0 create, 1 log append"),
    Column("base_timestamp", "timestamp"),
    Column("max_timestamp", "timestamp"),
    Column("delete_horizon", "timestamp"),
    Column("leader_epoch", "int"),
    Column("producer_id", "bigint"),
    Column("producer_epoch", "int"),
    Column("base_sequence", "int"),
    Column("is_transactional", "boolean"),
    Column("is_control", "boolean"),
    Column("crc", "bigint"),
    Column("crc_ok", "boolean"),
    about="one row a record batch",
    offsets=("base_offset", "last_offset"),
    times=("max_timestamp", "max_timestamp"),
)

KAFKA_RECORDS = Table(
    "kafka.records",
    *RECORDS.columns,
    Column("path", "string"),
    Column("batch_position", "bigint"),
    Column("magic", "int"),
    Column("codec", "string"),
    Column("leader_epoch", "int"),
    Column("producer_id", "bigint"),
    Column("producer_epoch", "int"),
    Column("sequence", "int"),
    Column("is_transactional", "boolean"),
    Column("is_control", "boolean"),
    Column("control_type", "int", "0 abort, 1 commit, 2 leader change, 3 and 4 snapshot ends, 5 version, 6 voters"),
    Column("aborted", "boolean", "of a transaction that was aborted"),
    about="one row a record, control records too, with what its batch says",
    offsets=("offset", "offset"),
    times=("timestamp", "timestamp"),
)
