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

_PLACE = (Column("topic", "string"), Column("partition", "int"), Column("path", "string"))

INDEX = Table(
    "kafka.index",
    *_PLACE,
    Column("relative_offset", "int", "as stored"),
    Column("offset", "bigint", "with the segment's base added"),
    Column("position", "bigint", "of a batch in the log"),
    about="one row an entry of an offset index",
    offsets=("offset", "offset"),
)

TIMEINDEX = Table(
    "kafka.timeindex",
    *_PLACE,
    Column("timestamp", "timestamp", "the largest up to here"),
    Column("relative_offset", "int", "as stored"),
    Column("offset", "bigint", "with the segment's base added"),
    about="one row an entry of a time index",
    offsets=("offset", "offset"),
    times=("timestamp", "timestamp"),
)

TXNINDEX = Table(
    "kafka.txnindex",
    *_PLACE,
    Column("version", "int"),
    Column("producer_id", "bigint"),
    Column("first_offset", "bigint"),
    Column("last_offset", "bigint", "of the abort marker"),
    Column("last_stable_offset", "bigint"),
    about="one row an aborted transaction",
    offsets=("first_offset", "last_offset"),
)

PRODUCERS = Table(
    "kafka.producers",
    *_PLACE,
    Column("snapshot_offset", "bigint", "the state is that before this offset"),
    Column("producer_id", "bigint"),
    Column("epoch", "int"),
    Column("last_sequence", "int"),
    Column("last_offset", "bigint"),
    Column("offset_delta", "int"),
    Column("timestamp", "timestamp"),
    Column("coordinator_epoch", "int"),
    Column("current_txn_first_offset", "bigint", "-1: no transaction is open"),
    about="one row a producer in a snapshot of producer state",
    offsets=("last_offset", "last_offset"),
    times=("timestamp", "timestamp"),
)

EPOCHS = Table(
    "kafka.epochs",
    Column("path", "string"),
    Column("topic", "string"),
    Column("partition", "int"),
    Column("epoch", "int"),
    Column("start_offset", "bigint"),
    about="one row a leader epoch of a partition",
    offsets=("start_offset", "start_offset"),
)

CHECKPOINTS = Table(
    "kafka.checkpoints",
    Column("path", "string"),
    Column("topic", "string"),
    Column("partition", "int"),
    Column("checkpoint", "string", "recovery-point, replication, log-start or cleaner"),
    Column("offset", "bigint"),
    about="one row a partition in an offset checkpoint of a log directory",
    offsets=("offset", "offset"),
)
