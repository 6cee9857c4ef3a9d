"""The folded state of a cluster as tables: one function per table, each from the same State."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

from rawlog.formats.kafka.cluster import metadata, tables
from rawlog.formats.kafka.cluster.metadata_log import At, clusters
from rawlog.formats.kafka.cluster.state import State
from rawlog.formats.kafka.internal import messages
from rawlog.formats.kafka.internal.codec import Message, bytes_text, uuid_text
from rawlog.formats.kafka.internal.topics import as_batch, milliseconds
from rawlog.formats.kafka.log.secrets import shows_secrets
from rawlog.model.format import File
from rawlog.model.table import Table

ROWS = 1 << 14
Rows = Iterator[dict[str, Any]]


@lru_cache(maxsize=2)
def _folded(files: tuple[File, ...], at: At, errors: str) -> tuple[tuple[str | None, State], ...]:
    """Kept, since several tables of one tree are often asked for in turn."""
    return tuple((one.cluster_id, one.fold(at, errors)) for one in clusters(files))


def states(files: Sequence[File], options: Mapping[str, str]) -> tuple[tuple[str | None, State], ...]:
    """The state of every cluster among the files, with its id, at the moment that the options name."""
    return _folded(tuple(files), At.of(options), options.get("errors", "raise"))


def _table(table: Table, rows: Callable[[State, bool], Rows]) -> Callable[..., Iterator[pa.RecordBatch]]:
    def fold(files: Sequence[File], options: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
        show = shows_secrets(options)
        made: list[dict[str, Any]] = []
        for cluster, state in states(files, options):
            for row in rows(state, show):
                made.append({**row, "cluster_id": cluster})
                if len(made) == ROWS:
                    yield as_batch(table, made)
                    made = []
        if made:
            yield as_batch(table, made)

    return fold


def is_offline(partition: Message) -> bool:
    """Whether a partition has no leader."""
    return bool(partition["leader"] == metadata.NO_LEADER)


def is_under_replicated(partition: Message) -> bool:
    """Whether replicas are not in sync (those on their way in do not count)."""
    wanted = set(partition["replicas"]) - set(partition["addingReplicas"])
    return not wanted <= set(partition["isr"])


def directory_text(raw: bytes) -> str:
    """A directory's id, or the word for one of the reserved ids."""
    return metadata.DIRECTORIES.get(raw) or uuid_text(raw)


def setting(name: str, value: str, show: bool) -> str:
    """A setting's value, masked if it is a password."""
    return messages.MASK if not show and messages.is_secret_config(name) else value


def _topics(state: State, show: bool) -> Rows:
    for name, key in sorted(state.topic_ids.items()):
        partitions = state.topics[key].partitions
        first = partitions.get(0)
        settings = state.configs.get((2, name), {})
        yield {
            "topic": name,
            "topic_id": uuid_text(key),
            "partitions": len(partitions),
            "replication_factor": None if first is None else len(first["replicas"]),
            "offline": sum(map(is_offline, partitions.values())),
            "under_replicated": sum(map(is_under_replicated, partitions.values())),
            "configs": sorted((one, setting(one, value, show)) for one, value in settings.items()),
        }


def _partitions(state: State, show: bool) -> Rows:
    for name, key in sorted(state.topic_ids.items()):
        for number, one in sorted(state.topics[key].partitions.items()):
            recovery = one["leaderRecoveryState"]
            yield {
                "topic": name,
                "partition": number,
                "topic_id": uuid_text(key),
                "leader": None if is_offline(one) else one["leader"],
                "leader_epoch": one["leaderEpoch"],
                "partition_epoch": one["partitionEpoch"],
                "replicas": one["replicas"],
                "isr": one["isr"],
                "removing_replicas": one["removingReplicas"],
                "adding_replicas": one["addingReplicas"],
                "eligible_leader_replicas": one["eligibleLeaderReplicas"],
                "last_known_elr": one["lastKnownElr"],
                "leader_recovery_state": messages.RECOVERY_STATES.get(recovery, str(recovery)),
                "directories": [directory_text(raw) for raw in one["directories"]],
            }


def _endpoints(message: Message) -> list[dict[str, Any]]:
    return [
        {
            "name": one["name"],
            "host": one["host"],
            "port": one["port"],
            "security_protocol": messages.SECURITY_PROTOCOLS.get(one["securityProtocol"], str(one["securityProtocol"])),
        }
        for one in sorted(message["endPoints"], key=lambda one: str(one["name"]))
    ]


def _features_of(message: Message) -> list[dict[str, Any]]:
    return [
        {"name": one["name"], "min": one["minSupportedVersion"], "max": one["maxSupportedVersion"]}
        for one in sorted(message["features"], key=lambda one: str(one["name"]))
    ]


def _brokers(state: State, show: bool) -> Rows:
    for number, one in sorted(state.brokers.items()):
        cordoned = one["cordonedLogDirs"]
        yield {
            "broker": number,
            "epoch": one["brokerEpoch"],
            "incarnation_id": uuid_text(one["incarnationId"]),
            "fenced": one["fenced"],
            "in_controlled_shutdown": one["inControlledShutdown"],
            "rack": one["rack"],
            "endpoints": _endpoints(one),
            "features": _features_of(one),
            "log_dirs": [uuid_text(raw) for raw in one["logDirs"]],
            "cordoned_log_dirs": None if cordoned is None else [uuid_text(raw) for raw in cordoned],
            "is_migrating_zk_broker": one["isMigratingZkBroker"],
        }


def _controllers(state: State, show: bool) -> Rows:
    for number, one in sorted(state.controllers.items()):
        yield {
            "controller": number,
            "incarnation_id": uuid_text(one["incarnationId"]),
            "endpoints": _endpoints(one),
            "features": _features_of(one),
            "zk_migration_ready": one["zkMigrationReady"],
        }


def _configs(state: State, show: bool) -> Rows:
    for (kind, resource), settings in sorted(state.configs.items()):
        for name, value in sorted(settings.items()):
            yield {
                "resource_type": messages.CONFIG_RESOURCES.get(kind, str(kind)),
                "resource_name": resource,
                "name": name,
                "value": setting(name, value, show),
            }


def _acls(state: State, show: bool) -> Rows:
    for key, one in sorted(state.acls.items()):
        yield {
            "id": uuid_text(key),
            "resource_type": messages.ACL_RESOURCES.get(one["resourceType"], str(one["resourceType"])),
            "resource_name": one["resourceName"],
            "pattern_type": messages.ACL_PATTERNS.get(one["patternType"], str(one["patternType"])),
            "principal": one["principal"],
            "host": one["host"],
            "operation": messages.ACL_OPERATIONS.get(one["operation"], str(one["operation"])),
            "permission": messages.ACL_PERMISSIONS.get(one["permissionType"], str(one["permissionType"])),
        }


def _quotas(state: State, show: bool) -> Rows:
    for entity, quotas in sorted(state.quotas.items(), key=lambda item: [(kind, name or "") for kind, name in item[0]]):
        for key, value in sorted(quotas.items()):
            yield {"entity": [{"type": kind, "name": name} for kind, name in entity], "key": key, "value": value}


def level_text(name: str, level: int) -> str | None:
    """The release that a level of metadata.version means."""
    known = name == metadata.METADATA_VERSION and 0 < level <= messages.NEWEST_LEVEL
    return messages.LEVELS[level] if known else None


def _features(state: State, show: bool) -> Rows:
    found = dict(state.features)
    if state.kraft_version is not None:
        found[metadata.KRAFT_VERSION] = state.kraft_version
    for name, level in sorted(found.items()):
        yield {"name": name, "level": level, "meaning": level_text(name, level)}


def _users(state: State, show: bool) -> Rows:
    for (mechanism, name), one in sorted(state.users.items(), key=lambda item: (item[0][1], item[0][0])):
        yield {
            "name": name,
            "mechanism": messages.MECHANISMS.get(mechanism, str(mechanism)),
            "iterations": one["iterations"],
            "salt": bytes_text(one["salt"]) if show else messages.MASK,
            "stored_key": bytes_text(one["storedKey"]) if show else messages.MASK,
            "server_key": bytes_text(one["serverKey"]) if show else messages.MASK,
        }


def _tokens(state: State, show: bool) -> Rows:
    for key, one in sorted(state.tokens.items()):
        yield {
            "token_id": key,
            "owner": one["owner"],
            "requester": one["requester"],
            "renewers": one["renewers"],
            "issue_timestamp": milliseconds(one["issueTimestamp"]),
            "max_timestamp": milliseconds(one["maxTimestamp"]),
            "expiration_timestamp": milliseconds(one["expirationTimestamp"]),
        }


def _voters(state: State, show: bool) -> Rows:
    for one in sorted(state.voters, key=lambda voter: int(voter["voterId"])):
        feature = one.get("kRaftVersionFeature") or {}
        endpoints = one.get("endpoints")
        yield {
            "voter": one["voterId"],
            "is_leader": one["voterId"] == state.leader,
            "directory_id": uuid_text(one["voterDirectoryId"]) if "voterDirectoryId" in one else None,
            "endpoints": None
            if endpoints is None
            else [{"name": each["name"], "host": each["host"], "port": each["port"]} for each in endpoints],
            "kraft_version_min": feature.get("minSupportedVersion"),
            "kraft_version_max": feature.get("maxSupportedVersion"),
        }


#: The rows of each table; `cluster_id` is added to all of them.
ROWS_OF: dict[str, Callable[[State, bool], Rows]] = {
    "topics": _topics,
    "partitions": _partitions,
    "brokers": _brokers,
    "controllers": _controllers,
    "configs": _configs,
    "acls": _acls,
    "quotas": _quotas,
    "features": _features,
    "users": _users,
    "tokens": _tokens,
    "voters": _voters,
}

FOLDS: dict[str, Callable[..., Iterator[pa.RecordBatch]]] = {
    tables.METADATA.name: metadata.metadata,
    **{table.name: _table(table, ROWS_OF[table.name.split(".")[1]]) for table in tables.STATE},
}
"""The tables that are made of metadata directories, by name."""

topics, partitions, brokers, controllers, configs, acls, quotas, features, users, tokens, voters = (
    FOLDS[table.name] for table in tables.STATE
)
