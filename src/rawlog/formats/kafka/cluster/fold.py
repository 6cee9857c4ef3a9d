"""The folded state of a cluster as tables: one function per table, each from the same State."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

from rawlog.formats.kafka import tables
from rawlog.formats.kafka.cluster import metadata
from rawlog.formats.kafka.cluster.metadata_log import Moment, clusters
from rawlog.formats.kafka.cluster.state import State
from rawlog.formats.kafka.internal import messages
from rawlog.formats.kafka.internal.codec import Message, bytes_text, uuid_text
from rawlog.formats.kafka.internal.topics import as_batch, milliseconds
from rawlog.formats.kafka.log.segment import shows_secrets
from rawlog.model.format import File
from rawlog.model.table import Table

ROWS = 1 << 14
Rows = Iterator[dict[str, Any]]


@lru_cache(maxsize=2)
def _fold_clusters(files: tuple[File, ...], at: Moment, errors: str) -> tuple[tuple[str | None, State], ...]:
    """Kept, since several tables of one tree are often asked for in turn."""
    return tuple((store.cluster_id, store.fold(at, errors)) for store in clusters(files))


def states(files: Sequence[File], options: Mapping[str, str]) -> tuple[tuple[str | None, State], ...]:
    """The state of every cluster among the files, with its id, at the moment that the options name."""
    return _fold_clusters(tuple(files), Moment.of(options), options.get("errors", "raise"))


def _table(table: Table, rows: Callable[[State, bool], Rows]) -> Callable[..., Iterator[pa.RecordBatch]]:
    def fold(files: Sequence[File], options: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
        show = shows_secrets(options)
        batch: list[dict[str, Any]] = []
        for cluster, state in states(files, options):
            for row in rows(state, show):
                batch.append({**row, "cluster_id": cluster})
                if len(batch) == ROWS:
                    yield as_batch(table, batch)
                    batch = []
        if batch:
            yield as_batch(table, batch)

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
            "configs": sorted(
                (setting_name, setting(setting_name, value, show)) for setting_name, value in settings.items()
            ),
        }


def _partitions(state: State, show: bool) -> Rows:
    for name, key in sorted(state.topic_ids.items()):
        for number, partition in sorted(state.topics[key].partitions.items()):
            recovery = partition["leaderRecoveryState"]
            yield {
                "topic": name,
                "partition": number,
                "topic_id": uuid_text(key),
                "leader": None if is_offline(partition) else partition["leader"],
                "leader_epoch": partition["leaderEpoch"],
                "partition_epoch": partition["partitionEpoch"],
                "replicas": partition["replicas"],
                "isr": partition["isr"],
                "removing_replicas": partition["removingReplicas"],
                "adding_replicas": partition["addingReplicas"],
                "eligible_leader_replicas": partition["eligibleLeaderReplicas"],
                "last_known_elr": partition["lastKnownElr"],
                "leader_recovery_state": messages.RECOVERY_STATES.get(recovery, str(recovery)),
                "directories": [directory_text(raw) for raw in partition["directories"]],
            }


def _endpoints(message: Message) -> list[dict[str, Any]]:
    return [
        {
            "name": endpoint["name"],
            "host": endpoint["host"],
            "port": endpoint["port"],
            "security_protocol": messages.SECURITY_PROTOCOLS.get(
                endpoint["securityProtocol"], str(endpoint["securityProtocol"])
            ),
        }
        for endpoint in sorted(message["endPoints"], key=lambda endpoint: str(endpoint["name"]))
    ]


def _features_of(message: Message) -> list[dict[str, Any]]:
    return [
        {"name": feature["name"], "min": feature["minSupportedVersion"], "max": feature["maxSupportedVersion"]}
        for feature in sorted(message["features"], key=lambda feature: str(feature["name"]))
    ]


def _brokers(state: State, show: bool) -> Rows:
    for number, broker in sorted(state.brokers.items()):
        cordoned = broker["cordonedLogDirs"]
        yield {
            "broker": number,
            "epoch": broker["brokerEpoch"],
            "incarnation_id": uuid_text(broker["incarnationId"]),
            "fenced": broker["fenced"],
            "in_controlled_shutdown": broker["inControlledShutdown"],
            "rack": broker["rack"],
            "endpoints": _endpoints(broker),
            "features": _features_of(broker),
            "log_dirs": [uuid_text(raw) for raw in broker["logDirs"]],
            "cordoned_log_dirs": None if cordoned is None else [uuid_text(raw) for raw in cordoned],
            "is_migrating_zk_broker": broker["isMigratingZkBroker"],
        }


def _controllers(state: State, show: bool) -> Rows:
    for number, controller in sorted(state.controllers.items()):
        yield {
            "controller": number,
            "incarnation_id": uuid_text(controller["incarnationId"]),
            "endpoints": _endpoints(controller),
            "features": _features_of(controller),
            "zk_migration_ready": controller["zkMigrationReady"],
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
    for key, acl in sorted(state.acls.items()):
        yield {
            "id": uuid_text(key),
            "resource_type": messages.ACL_RESOURCES.get(acl["resourceType"], str(acl["resourceType"])),
            "resource_name": acl["resourceName"],
            "pattern_type": messages.ACL_PATTERNS.get(acl["patternType"], str(acl["patternType"])),
            "principal": acl["principal"],
            "host": acl["host"],
            "operation": messages.ACL_OPERATIONS.get(acl["operation"], str(acl["operation"])),
            "permission": messages.ACL_PERMISSIONS.get(acl["permissionType"], str(acl["permissionType"])),
        }


def _quotas(state: State, show: bool) -> Rows:
    for entity, quotas in sorted(state.quotas.items(), key=lambda item: [(kind, name or "") for kind, name in item[0]]):
        for key, value in sorted(quotas.items()):
            yield {"entity": [{"type": kind, "name": name} for kind, name in entity], "key": key, "value": value}


def level_text(name: str, level: int) -> str | None:
    """The release that a level of metadata.version means."""
    has_meaning = name == metadata.METADATA_VERSION and 0 < level <= messages.NEWEST_LEVEL
    return messages.LEVELS[level] if has_meaning else None


def _features(state: State, show: bool) -> Rows:
    levels = dict(state.features)
    if state.kraft_version is not None:
        levels[metadata.KRAFT_VERSION] = state.kraft_version
    for name, level in sorted(levels.items()):
        yield {"name": name, "level": level, "meaning": level_text(name, level)}


def _users(state: State, show: bool) -> Rows:
    for (mechanism, name), credential in sorted(state.users.items(), key=lambda item: (item[0][1], item[0][0])):
        yield {
            "name": name,
            "mechanism": messages.MECHANISMS.get(mechanism, str(mechanism)),
            "iterations": credential["iterations"],
            "salt": bytes_text(credential["salt"]) if show else messages.MASK,
            "stored_key": bytes_text(credential["storedKey"]) if show else messages.MASK,
            "server_key": bytes_text(credential["serverKey"]) if show else messages.MASK,
        }


def _tokens(state: State, show: bool) -> Rows:
    for key, token in sorted(state.tokens.items()):
        yield {
            "token_id": key,
            "owner": token["owner"],
            "requester": token["requester"],
            "renewers": token["renewers"],
            "issue_timestamp": milliseconds(token["issueTimestamp"]),
            "max_timestamp": milliseconds(token["maxTimestamp"]),
            "expiration_timestamp": milliseconds(token["expirationTimestamp"]),
        }


def _voters(state: State, show: bool) -> Rows:
    for voter in sorted(state.voters, key=lambda voter: int(voter["voterId"])):
        feature = voter.get("kRaftVersionFeature") or {}
        endpoints = voter.get("endpoints")
        yield {
            "voter": voter["voterId"],
            "is_leader": voter["voterId"] == state.leader,
            "directory_id": uuid_text(voter["voterDirectoryId"]) if "voterDirectoryId" in voter else None,
            "endpoints": None
            if endpoints is None
            else [
                {"name": endpoint["name"], "host": endpoint["host"], "port": endpoint["port"]} for endpoint in endpoints
            ],
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
