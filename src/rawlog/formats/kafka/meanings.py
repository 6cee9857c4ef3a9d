"""What the numbers in messages stand for, and which of their fields are secret.

Authority: ResourceType, AclOperation, SecurityProtocol, MetadataVersion and others at apache/kafka 1eb7644349cb; levels from 26 on by
the 4.3.0 and 4.4.0 jars.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CONFIG_RESOURCES = {2: "topic", 4: "broker", 8: "broker-logger", 16: "client-metrics", 32: "group"}
MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
ACL_RESOURCES = {2: "topic", 3: "group", 4: "cluster", 5: "transactional-id", 6: "delegation-token", 7: "user"}
ACL_PATTERNS = {3: "literal", 4: "prefixed"}
ACL_PERMISSIONS = {2: "deny", 3: "allow"}
ACL_OPERATIONS = {
    2: "all", 3: "read", 4: "write", 5: "create", 6: "delete", 7: "alter", 8: "describe", 9: "cluster-action",
    10: "describe-configs", 11: "alter-configs", 12: "idempotent-write", 13: "create-tokens", 14: "describe-tokens",
    15: "two-phase-commit",
}  # fmt: skip
SECURITY_PROTOCOLS = {0: "PLAINTEXT", 1: "SSL", 2: "SASL_PLAINTEXT", 3: "SASL_SSL"}
MIGRATION_STATES = {0: "none", 1: "migration", 2: "pre-migration", 3: "post-migration", 4: "zk"}
RECOVERY_STATES = {0: "recovered", 1: "recovering"}

LEVELS = (
    "", "3.0-IV1", "3.1-IV0", "3.2-IV0", "3.3-IV0", "3.3-IV1", "3.3-IV2", "3.3-IV3", "3.4-IV0", "3.5-IV0", "3.5-IV1", "3.5-IV2",
    "3.6-IV0", "3.6-IV1", "3.6-IV2", "3.7-IV0", "3.7-IV1", "3.7-IV2", "3.7-IV3", "3.7-IV4", "3.8-IV0", "3.9-IV0", "4.0-IV0",
    "4.0-IV1", "4.0-IV2", "4.0-IV3", "4.1-IV0", "4.1-IV1", "4.2-IV0", "4.2-IV1", "4.3-IV0", "4.4-IV0",
    "4.4-IV1", "4.4-IV2", "4.5-IV0",
)  # fmt: skip
"""Releases by level of metadata.version."""
NEWEST_LEVEL = len(LEVELS) - 1
TRANSACTION_STATUSES = {
    0: "Empty", 1: "Ongoing", 2: "PrepareCommit", 3: "PrepareAbort", 4: "CompleteCommit", 5: "CompleteAbort", 6: "Dead",
    7: "PrepareEpochFence",
}  # fmt: skip
DIRECTORY_WORDS = {0: "MIGRATING", 1: "UNASSIGNED", 2: "LOST"}
MASK = "********"
SECRET_CONFIGS = ("password", "secret", "sasl.jaas.config", "keystore.key", "credentials")
SECRETS = {"UserScramCredentialRecord": ("salt", "storedKey", "serverKey")}
"""Fields of metadata records that nobody should see in passing, by schema."""


def is_secret_config(name: str) -> bool:
    """Whether a setting holds a password (the metadata log has them in the clear)."""
    return any(name.endswith(end) for end in SECRET_CONFIGS)


def is_secret(schema: str, field: str, message: Mapping[str, Any]) -> bool:
    """Whether a field is not to be shown; `message` has the fields in front of it."""
    if schema == "ConfigRecord" and field == "value":
        return is_secret_config(str(message.get("name")))
    return field in SECRETS.get(schema, ())


_BY_FIELD: dict[tuple[str, str], Mapping[int, str]] = {
    ("ConfigRecord", "resourceType"): CONFIG_RESOURCES,
    ("UserScramCredentialRecord", "mechanism"): MECHANISMS,
    ("RemoveUserScramCredentialRecord", "mechanism"): MECHANISMS,
    ("AccessControlEntryRecord", "resourceType"): ACL_RESOURCES,
    ("AccessControlEntryRecord", "patternType"): ACL_PATTERNS,
    ("AccessControlEntryRecord", "operation"): ACL_OPERATIONS,
    ("AccessControlEntryRecord", "permissionType"): ACL_PERMISSIONS,
    ("ZkMigrationStateRecord", "zkMigrationState"): MIGRATION_STATES,
    ("PartitionRecord", "leaderRecoveryState"): RECOVERY_STATES,
    ("PartitionRecord", "leader"): {-1: "none"},
    ("PartitionChangeRecord", "leaderRecoveryState"): RECOVERY_STATES,
    ("PartitionChangeRecord", "leader"): {-1: "none"},
    ("BrokerRegistrationChangeRecord", "fenced"): {-1: "unfenced", 0: "no change", 1: "fenced"},
    ("BrokerRegistrationChangeRecord", "inControlledShutdown"): {0: "no change", 1: "shutting down"},
    ("TransactionLogValue", "transactionStatus"): TRANSACTION_STATUSES,
}


def meaning(schema: str, field: str, value: Any, message: Mapping[str, Any]) -> str:
    """What a value means, where its number alone does not tell; `message` has the fields in front of it."""
    if field == "securityProtocol":
        return SECURITY_PROTOCOLS.get(value, "")
    if (schema, field) in _BY_FIELD:
        return _BY_FIELD[schema, field].get(value, "")
    if schema == "FeatureLevelRecord" and field == "featureLevel" and message.get("name") == "metadata.version":
        return LEVELS[value] if 0 < value < len(LEVELS) else f"newer than {LEVELS[-1]}"
    return ""
