"""The tables of a cluster's metadata: its records, and the state they fold into."""

from __future__ import annotations

from rawlog.model.table import Column, Table

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
