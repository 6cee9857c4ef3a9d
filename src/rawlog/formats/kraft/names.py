"""What a cluster's metadata is named by: directories, levels, versions by level. What single numbers mean is Kafka's `meanings`."""

from __future__ import annotations

from rawlog.formats.kafka.codec import Message
from rawlog.formats.kafka.meanings import MASK, SECRETS, is_secret_config

METADATA_VERSION, KRAFT_VERSION = "metadata.version", "kraft.version"

MIGRATING, UNASSIGNED, LOST = bytes(16), bytes(15) + b"\x01", bytes(15) + b"\x02"
DIRECTORIES = {MIGRATING: "MIGRATING", UNASSIGNED: "UNASSIGNED", LOST: "LOST"}
"""Directory ids that name no directory."""
NO_LEADER, SAME_LEADER = -1, -2


def masked(schema: str, shown: Message) -> Message:
    """A record's JSON without its secrets."""
    hidden = [name for name in SECRETS.get(schema, ()) if name in shown]
    if schema == "ConfigRecord" and is_secret_config(str(shown.get("name"))) and shown.get("value") is not None:
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
    ("UnregisterControllerRecord", 0): 33,
}  # fmt: skip
"""The metadata.version from which on a record of that version may be written; others always."""
