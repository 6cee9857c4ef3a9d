"""The tables of Kafka's directories beyond `records`: those of logs, and those of a cluster's metadata and of the state it folds into."""

from __future__ import annotations

from rawlog.model.table import RECORDS, Column, Table

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
    about="one row per record batch",
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
    about="one row per record, control records too, with what its batch says",
    offsets=("offset", "offset"),
    times=("timestamp", "timestamp"),
    payload={"key": "key", "value": "value", "headers": "headers"},
    row_key={"topic": "topic", "partition": "partition", "offset": "offset"},
)

_PLACE = (Column("topic", "string"), Column("partition", "int"), Column("path", "string"))

INDEX = Table(
    "kafka.index",
    *_PLACE,
    Column("relative_offset", "int", "as stored"),
    Column("offset", "bigint", "with the segment's base added"),
    Column("position", "bigint", "of a batch in the log"),
    about="one row per entry of an offset index",
    offsets=("offset", "offset"),
)

TIMEINDEX = Table(
    "kafka.timeindex",
    *_PLACE,
    Column("timestamp", "timestamp", "the largest up to here"),
    Column("relative_offset", "int", "as stored"),
    Column("offset", "bigint", "with the segment's base added"),
    about="one row per entry of a time index",
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
    about="one row per aborted transaction",
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
    about="one row per producer in a snapshot of producer state",
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
    about="one row per leader epoch of a partition",
    offsets=("start_offset", "start_offset"),
)

CHECKPOINTS = Table(
    "kafka.checkpoints",
    Column("path", "string"),
    Column("topic", "string"),
    Column("partition", "int"),
    Column("checkpoint", "string", "recovery-point, replication, log-start or cleaner"),
    Column("offset", "bigint"),
    about="one row per partition in an offset checkpoint of a log directory",
    offsets=("offset", "offset"),
)

_WHERE = (
    Column("is_current", "boolean", "the newest that counts for its key"),
    Column("deleted", "boolean", "a tombstone: its key is gone"),
    Column("state", "string", "committed; or, of a transaction, aborted, or pending: it does not count"),
    Column("log_partition", "int", "of the internal topic"),
    Column("path", "string"),
)

OFFSETS = Table(
    "kafka.offsets",
    Column("offset_in_log", "bigint"),
    Column("group", "string"),
    Column("topic", "string"),
    Column("partition", "int"),
    Column("committed_offset", "bigint"),
    Column("leader_epoch", "int", "null: the committer did not know it"),
    Column("metadata", "string"),
    Column("commit_timestamp", "timestamp"),
    Column("expire_timestamp", "timestamp", "only in records of version 1"),
    *_WHERE,
    about="one row per offset commit in __consumer_offsets; rows with is_current and without deleted are the positions of groups",
    times=("commit_timestamp", "commit_timestamp"),
)

GROUPS = Table(
    "kafka.groups",
    Column("offset_in_log", "bigint"),
    Column("timestamp", "timestamp"),
    Column("group", "string"),
    Column("type", "string", "what the record is of: GroupMetadata, ConsumerGroupMemberMetadata …"),
    Column("member", "string", "where the record is one member's"),
    Column("version", "int"),
    Column("value", "string", "as JSON, with Kafka's own names"),
    *_WHERE,
    about="one row per record about a group in __consumer_offsets: classic, consumer, share and streams groups",
    times=("timestamp", "timestamp"),
)

TRANSACTIONS = Table(
    "kafka.transactions",
    Column("offset_in_log", "bigint"),
    Column("timestamp", "timestamp"),
    Column("transactional_id", "string"),
    Column("producer_id", "bigint"),
    Column("producer_epoch", "int"),
    Column(
        "status",
        "string",
        "Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort, Dead, PrepareEpochFence",
    ),
    Column("timeout_ms", "int"),
    Column("partitions", "array<struct<topic:string,partition:int>>", "taking part"),
    Column("start_timestamp", "timestamp"),
    Column("update_timestamp", "timestamp"),
    Column("previous_producer_id", "bigint"),
    Column("next_producer_id", "bigint"),
    Column("next_producer_epoch", "int"),
    Column("client_transaction_version", "int"),
    Column("version", "int"),
    *_WHERE,
    about="one row per state of a transactional id in __transaction_state",
    times=("timestamp", "timestamp"),
)

SHARES = Table(
    "kafka.shares",
    Column("offset_in_log", "bigint"),
    Column("timestamp", "timestamp"),
    Column("group", "string"),
    Column("topic_id", "string"),
    Column("partition", "int"),
    Column("type", "string", "ShareSnapshot, or ShareUpdate of the snapshot before it"),
    Column("snapshot_epoch", "bigint"),
    Column("state_epoch", "int"),
    Column("leader_epoch", "int"),
    Column("start_offset", "bigint"),
    Column("delivery_complete_count", "int"),
    Column("batches", "array<struct<first_offset:bigint,last_offset:bigint,delivery_state:int,delivery_count:int>>"),
    Column("create_timestamp", "timestamp"),
    Column("write_timestamp", "timestamp"),
    *_WHERE,
    about="one row per state of a share group's partition in __share_group_state",
    times=("timestamp", "timestamp"),
)

REMOTE = Table(
    "kafka.remote",
    Column("offset_in_log", "bigint"),
    Column("timestamp", "timestamp"),
    Column("type", "string"),
    Column("version", "int"),
    Column("value", "string", "as JSON, with Kafka's own names"),
    Column("log_partition", "int", "of the internal topic"),
    Column("path", "string"),
    about="one row per record about tiered storage in __remote_log_metadata",
    times=("timestamp", "timestamp"),
)


# A cluster's metadata ------------------------------------------------------------------------------------------------------------

METADATA = Table(
    "kraft.metadata",
    Column("offset", "bigint", "in a snapshot: that inside the file, which means nothing outside it"),
    Column("epoch", "int", "of the controller that led when it was written"),
    Column("timestamp", "timestamp"),
    Column("path", "string"),
    Column(
        "type", "string", "as Kafka's dump tool names it: TOPIC_RECORD, LEADER_CHANGE; a number where it is not known"
    ),
    Column("version", "int"),
    Column("value", "string", 'as JSON, with Kafka\'s own names; {"raw": base64} where the version is not known'),
    Column("is_control", "boolean"),
    about="one row per record of the metadata log and its snapshots",
    offsets=("offset", "offset"),
    times=("timestamp", "timestamp"),
)

_ENDPOINTS = "array<struct<name:string,host:string,port:int,security_protocol:string>>"
_FEATURES = "array<struct<name:string,min:int,max:int>>"
_CLUSTER = Column("cluster_id", "string")

TOPICS = Table(
    "kraft.topics",
    Column("topic", "string"),
    Column("topic_id", "string"),
    Column("partitions", "int"),
    Column("replication_factor", "int", "of partition 0"),
    Column("offline", "int", "partitions without a leader"),
    Column("under_replicated", "int", "partitions with replicas out of sync"),
    Column("configs", "map<string,string>", "what is set for the topic itself"),
    _CLUSTER,
    about="one row per topic",
)

PARTITIONS = Table(
    "kraft.partitions",
    Column("topic", "string"),
    Column("partition", "int"),
    Column("topic_id", "string"),
    Column("leader", "int", "null: none, the partition is offline"),
    Column("leader_epoch", "int"),
    Column("partition_epoch", "int"),
    Column("replicas", "array<int>"),
    Column("isr", "array<int>"),
    Column("removing_replicas", "array<int>"),
    Column("adding_replicas", "array<int>"),
    Column("eligible_leader_replicas", "array<int>"),
    Column("last_known_elr", "array<int>"),
    Column("leader_recovery_state", "string", "recovered, recovering"),
    Column(
        "directories",
        "array<string>",
        "of the replicas, in their order; MIGRATING, UNASSIGNED or LOST where no directory is known",
    ),
    _CLUSTER,
    about="one row per partition",
)

BROKERS = Table(
    "kraft.brokers",
    Column("broker", "int"),
    Column("epoch", "bigint"),
    Column("incarnation_id", "string"),
    Column("fenced", "boolean"),
    Column("in_controlled_shutdown", "boolean"),
    Column("rack", "string"),
    Column("endpoints", _ENDPOINTS),
    Column("features", _FEATURES),
    Column("log_dirs", "array<string>"),
    Column("cordoned_log_dirs", "array<string>"),
    Column("is_migrating_zk_broker", "boolean"),
    _CLUSTER,
    about="one row per registered broker",
)

CONTROLLERS = Table(
    "kraft.controllers",
    Column("controller", "int"),
    Column("incarnation_id", "string"),
    Column("endpoints", _ENDPOINTS),
    Column("features", _FEATURES),
    Column("zk_migration_ready", "boolean"),
    _CLUSTER,
    about="one row per registered controller",
)

CONFIGS = Table(
    "kraft.configs",
    Column("resource_type", "string", "topic, broker, broker-logger, client-metrics, group"),
    Column("resource_name", "string", "of a broker: empty for the default of all"),
    Column("name", "string"),
    Column("value", "string", "passwords are masked unless the option showSecrets is true"),
    _CLUSTER,
    about="one row per setting that is not the built-in default",
)

ACLS = Table(
    "kraft.acls",
    Column("id", "string"),
    Column("resource_type", "string"),
    Column("resource_name", "string"),
    Column("pattern_type", "string"),
    Column("principal", "string"),
    Column("host", "string"),
    Column("operation", "string"),
    Column("permission", "string"),
    _CLUSTER,
    about="one row per entry of the access control lists",
)

QUOTAS = Table(
    "kraft.quotas",
    Column(
        "entity",
        "array<struct<type:string,name:string>>",
        "type user, client-id or ip; a null name is the default of its type",
    ),
    Column("key", "string"),
    Column("value", "double"),
    _CLUSTER,
    about="one row per client quota",
)

FEATURES = Table(
    "kraft.features",
    Column("name", "string"),
    Column("level", "int"),
    Column("meaning", "string", "of metadata.version: the release"),
    _CLUSTER,
    about="one row per finalised feature",
)

USERS = Table(
    "kraft.users",
    Column("name", "string"),
    Column("mechanism", "string"),
    Column("iterations", "int"),
    Column("salt", "string", "base64; masked unless the option showSecrets is true"),
    Column("stored_key", "string", "likewise"),
    Column("server_key", "string", "likewise"),
    _CLUSTER,
    about="one row per SCRAM credential",
)

TOKENS = Table(
    "kraft.tokens",
    Column("token_id", "string"),
    Column("owner", "string"),
    Column("requester", "string"),
    Column("renewers", "array<string>"),
    Column("issue_timestamp", "timestamp"),
    Column("max_timestamp", "timestamp"),
    Column("expiration_timestamp", "timestamp"),
    _CLUSTER,
    about="one row per delegation token",
)

VOTERS = Table(
    "kraft.voters",
    Column("voter", "int"),
    Column("is_leader", "boolean"),
    Column("directory_id", "string", "null in a static quorum"),
    Column("endpoints", "array<struct<name:string,host:string,port:int>>"),
    Column("kraft_version_min", "int"),
    Column("kraft_version_max", "int"),
    _CLUSTER,
    about="one row per voter of the metadata quorum",
)

STATE = (TOPICS, PARTITIONS, BROKERS, CONTROLLERS, CONFIGS, ACLS, QUOTAS, FEATURES, USERS, TOKENS, VOTERS)
