"""What the numbers in metadata records stand for, and which of their fields are secret.

Authority: ResourceType, AclOperation, SecurityProtocol, MetadataVersion and others at apache/kafka 1eb7644349cb; levels from 26 on by
the 4.3.0 jar.
"""

from __future__ import annotations

from typing import Any

CONFIG_RESOURCES = {2: "topic", 4: "broker", 8: "broker-logger", 16: "client-metrics", 32: "group"}
MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
ACL_RESOURCES = {2: "topic", 3: "group", 4: "cluster", 5: "transactional-id", 6: "delegation-token", 7: "user"}
ACL_PATTERNS = {3: "literal", 4: "prefixed"}
ACL_PERMISSIONS = {2: "deny", 3: "allow"}
ACL_OPERATIONS = {
    2: "all", 3: "read", 4: "write", 5: "create", 6: "delete", 7: "alter", 8: "describe", 9: "cluster-action",
    10: "describe-configs", 11: "alter-configs", 12: "idempotent-write", 13: "create-tokens", 14: "describe-tokens",
}  # fmt: skip
SECURITY_PROTOCOLS = {0: "PLAINTEXT", 1: "SSL", 2: "SASL_PLAINTEXT", 3: "SASL_SSL"}
MIGRATION_STATES = {0: "none", 1: "migration", 2: "pre-migration", 3: "post-migration", 4: "zk"}
RECOVERY_STATES = {0: "recovered", 1: "recovering"}

LEVELS = (
    "", "3.0-IV1", "3.1-IV0", "3.2-IV0", "3.3-IV0", "3.3-IV1", "3.3-IV2", "3.3-IV3", "3.4-IV0", "3.5-IV0", "3.5-IV1", "3.5-IV2",
    "3.6-IV0", "3.6-IV1", "3.6-IV2", "3.7-IV0", "3.7-IV1", "3.7-IV2", "3.7-IV3", "3.7-IV4", "3.8-IV0", "3.9-IV0", "4.0-IV0",
    "4.0-IV1", "4.0-IV2", "4.0-IV3", "4.1-IV0", "4.1-IV1", "4.2-IV0", "4.2-IV1", "4.3-IV0",
)  # fmt: skip
"""Releases by level of metadata.version."""
NEWEST_LEVEL = len(LEVELS) - 1
METADATA_VERSION, KRAFT_VERSION = "metadata.version", "kraft.version"

MIGRATING, UNASSIGNED, LOST = bytes(16), bytes(15) + b"\x01", bytes(15) + b"\x02"
DIRECTORIES = {MIGRATING: "MIGRATING", UNASSIGNED: "UNASSIGNED", LOST: "LOST"}
"""Directory ids that name no directory."""
NO_LEADER, SAME_LEADER = -1, -2

MASK = "********"
_SECRET_CONFIGS = ("password", "secret", "sasl.jaas.config", "keystore.key", "credentials")
SECRETS = {"USER_SCRAM_CREDENTIAL_RECORD": ("salt", "storedKey", "serverKey")}
"""Fields of metadata records that nobody should see in passing."""


def is_secret_config(name: str) -> bool:
    """Whether a setting holds a password (the metadata log has them in the clear)."""
    return any(name.endswith(end) for end in _SECRET_CONFIGS)


def masked(type: str, shown: dict[str, Any]) -> dict[str, Any]:
    """A record's JSON without its secrets."""
    hidden = [name for name in SECRETS.get(type, ()) if name in shown]
    if type == "CONFIG_RECORD" and is_secret_config(str(shown.get("name"))) and shown.get("value") is not None:
        hidden.append("value")
    return {**shown, **dict.fromkeys(hidden, MASK)} if hidden else shown


def record_version(type: str, level: int) -> int:
    """The version of a record that a controller writes at a level of metadata.version."""
    if type == "RegisterBrokerRecord":
        return 4 if level >= 30 else 3 if level >= 17 else 2 if level >= 8 else 1 if level >= 7 else 0
    if type in ("PartitionRecord", "PartitionChangeRecord"):
        return 2 if level >= 23 else 1 if level >= 17 else 0
    return 0


LEAST_LEVEL: dict[tuple[str, int], int] = {
    ("RegisterBrokerRecord", 1): 7, ("RegisterBrokerRecord", 2): 8, ("RegisterBrokerRecord", 3): 17,
    ("RegisterBrokerRecord", 4): 30, ("PartitionRecord", 1): 17, ("PartitionRecord", 2): 23,
    ("PartitionChangeRecord", 1): 17, ("PartitionChangeRecord", 2): 23, ("BrokerRegistrationChangeRecord", 0): 6,
    ("BrokerRegistrationChangeRecord", 1): 7, ("BrokerRegistrationChangeRecord", 2): 17,
    ("BrokerRegistrationChangeRecord", 3): 30, ("NoOpRecord", 0): 5, ("UserScramCredentialRecord", 0): 11,
    ("RemoveUserScramCredentialRecord", 0): 11, ("BeginTransactionRecord", 0): 13, ("EndTransactionRecord", 0): 13,
    ("AbortTransactionRecord", 0): 13, ("DelegationTokenRecord", 0): 14, ("RemoveDelegationTokenRecord", 0): 14,
    ("RegisterControllerRecord", 0): 15, ("ZkMigrationStateRecord", 0): 8, ("ClearElrRecord", 0): 23,
}  # fmt: skip
"""The metadata.version from which on a record of that version may be written; others always."""
