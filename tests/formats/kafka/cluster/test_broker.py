"""A real broker as the judge: random admin operations folded as the AdminClient sees them, snapshots of ours that it loads."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

import rawlog
from rawlog.io.output import Folder
from tests.conftest import needed
from tests.data.new_cluster import NewCluster
from tests.data.rewriting import rewritten
from tests.services.kafka import BrokerError, JavaAdmin, KafkaBroker

pytestmark = pytest.mark.broker

OPERATIONS = 200
ACLS = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer", "super.users": "User:ANONYMOUS",
        "allow.everyone.if.no.acl.found": "true"}  # fmt: skip


class Operations:
    """Random changes of a cluster through its AdminClient; those that the cluster refuses are not a failure."""

    def __init__(self, admin: Any, java: JavaAdmin, seed: int) -> None:
        self.admin, self.java, self.chance = admin, java, random.Random(seed)
        self.topics: dict[str, int] = {}
        self.done: dict[str, int] = {}

    def run(self, count: int) -> None:
        actions = [self.create, self.create, self.grow, self.delete, self.config, self.config, self.acl, self.scram]
        actions += [self.quota, self.quota, self.reassign, self.reassign]
        for _ in range(count):
            action = self.chance.choice(actions)
            if action():
                self.done[action.__name__] = self.done.get(action.__name__, 0) + 1

    def wait(self, futures: Any) -> bool:
        for future in futures.values() if isinstance(futures, dict) else [futures]:
            future.result(timeout=30)
        return True

    def name(self) -> str:
        return self.chance.choice(sorted(self.topics)) if self.topics else ""

    def create(self) -> bool:
        from confluent_kafka.admin import NewTopic

        name, count = f"t{self.chance.randrange(10**6)}", self.chance.randint(1, 4)
        config = {"retention.ms": str(self.chance.randint(1, 10**9))} if self.chance.random() < 0.5 else {}
        self.wait(self.admin.create_topics([NewTopic(name, count, 1, config=config)]))
        self.topics[name] = count
        return True

    def grow(self) -> bool:
        from confluent_kafka.admin import NewPartitions

        if name := self.name():
            self.topics[name] += 1
            return self.wait(self.admin.create_partitions([NewPartitions(name, self.topics[name])]))
        return False

    def quota(self) -> bool:
        kinds = self.chance.choice([["user"], ["client-id"], ["user", "client-id"], ["ip"]])
        names = ["10.0.0.1", "10.0.0.2", "<default>"] if kinds == ["ip"] else ["a", "b", "<default>"]
        keys = (
            ["connection_creation_rate"]
            if kinds == ["ip"]
            else ["producer_byte_rate", "consumer_byte_rate", "request_percentage"]
        )
        entity = ";".join(f"{kind}={self.chance.choice(names)}" for kind in kinds)
        value = "-" if self.chance.random() < 0.3 else self.chance.randint(1, 10**6)
        self.java.ask("quota", entity, self.chance.choice(keys), value)
        return True

    def reassign(self) -> bool:
        """Broker 2 never comes, so that what is begun goes on until it is cancelled."""
        if not (name := self.name()):
            return False
        target = self.chance.choice(["1,2", "2,1", "2", "1", "-"])
        try:
            self.java.ask("reassign", name, self.chance.randrange(self.topics[name]), target)
        except BrokerError as error:
            if "NoReassignmentInProgress" not in str(error):
                raise
            return False
        return True

    def delete(self) -> bool:
        if len(self.topics) < 5:
            return False
        name = self.name()
        del self.topics[name]
        return self.wait(self.admin.delete_topics([name]))

    def config(self) -> bool:
        from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

        kind, name = (ResourceType.TOPIC, self.name()) if self.chance.random() < 0.8 else (ResourceType.BROKER, "1")
        if not name:
            return False
        key = (
            self.chance.choice(["max.message.bytes", "retention.bytes"])
            if kind is ResourceType.TOPIC
            else "log.cleaner.threads"
        )
        operation = self.chance.choice([AlterConfigOpType.SET, AlterConfigOpType.SET, AlterConfigOpType.DELETE])
        value = str(self.chance.randint(1, 2)) if kind is ResourceType.BROKER else str(self.chance.randint(1000, 10**6))
        entry = ConfigEntry(
            key, None if operation is AlterConfigOpType.DELETE else value, incremental_operation=operation
        )
        return self.wait(
            self.admin.incremental_alter_configs([ConfigResource(kind, name, incremental_configs=[entry])])
        )

    def acl(self) -> bool:
        from confluent_kafka.admin import (
            AclBinding,
            AclBindingFilter,
            AclOperation,
            AclPermissionType,
            ResourcePatternType,
            ResourceType,
        )

        user = f"User:u{self.chance.randrange(5)}"
        pattern = self.chance.choice([ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED])
        operation = self.chance.choice([AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE])
        if self.chance.random() < 0.3:
            anything = AclBindingFilter(
                ResourceType.ANY, None, ResourcePatternType.ANY, user, None, AclOperation.ANY, AclPermissionType.ANY
            )
            return self.wait(self.admin.delete_acls([anything]))
        kind = self.chance.choice([ResourceType.TOPIC, ResourceType.GROUP])
        permission = self.chance.choice([AclPermissionType.ALLOW, AclPermissionType.DENY])
        return self.wait(
            self.admin.create_acls(
                [AclBinding(kind, f"r{self.chance.randrange(9)}", pattern, user, "*", operation, permission)]
            )
        )

    def scram(self) -> bool:
        from confluent_kafka.admin import (
            ScramCredentialInfo,
            ScramMechanism,
            UserScramCredentialDeletion,
            UserScramCredentialUpsertion,
        )

        user = f"s{self.chance.randrange(6)}"
        mechanism = self.chance.choice([ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512])
        change: Any = UserScramCredentialUpsertion(
            user, ScramCredentialInfo(mechanism, self.chance.randint(4096, 9000)), b"password"
        )
        if self.chance.random() < 0.3:
            change = UserScramCredentialDeletion(user, mechanism)
        try:
            return self.wait(self.admin.alter_user_scram_credentials([change]))
        except Exception as error:
            if not any(word in str(error).lower() for word in ("not exist", "resource_not_found", "deletion")):
                raise
            return False


def answers(admin: Any, java: JavaAdmin) -> dict[str, Any]:
    """What the AdminClient says of the cluster, in the words of our tables."""
    from confluent_kafka import TopicCollection
    from confluent_kafka.admin import (
        AclBindingFilter,
        AclOperation,
        AclPermissionType,
        ConfigResource,
        ConfigSource,
        ResourcePatternType,
        ResourceType,
    )

    names = sorted(name for name in admin.list_topics(timeout=30).topics)
    described = {
        name: future.result(timeout=30) for name, future in admin.describe_topics(TopicCollection(names)).items()
    }
    partitions = {
        (name, one.id): (
            None if one.leader is None else one.leader.id,
            sorted(r.id for r in one.replicas),
            sorted(r.id for r in one.isr),
        )
        for name, topic in described.items()
        for one in topic.partitions
    }
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names] + [
        ConfigResource(ResourceType.BROKER, "1")
    ]
    sources = (ConfigSource.DYNAMIC_TOPIC_CONFIG.value, ConfigSource.DYNAMIC_BROKER_CONFIG.value)
    configs = {}
    for resource, future in admin.describe_configs(resources).items():
        for entry in future.result(timeout=30).values():
            if entry.source in sources:
                configs[resource.restype.name.lower(), resource.name, entry.name] = entry.value
    everything = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    acls = sorted(
        (one.restype.name.lower(), one.name, one.resource_pattern_type.name.lower(), one.principal, one.host, one.operation.name.lower(),
         one.permission_type.name.lower())
        for one in admin.describe_acls(everything).result(timeout=30)
    )  # fmt: skip
    users = sorted(
        (user, info.mechanism.name.replace("_", "-"), info.iterations)
        for user, shown in admin.describe_user_scram_credentials().result(timeout=30).items()
        for info in shown.scram_credential_infos
    )
    moving = sorted(
        (topic, int(number), *map(json.loads, lists)) for topic, number, *lists in java.ask("reassignments")
    )
    quotas = sorted((entity, key, float(value)) for entity, key, value in java.ask("quotas"))
    found = {"partitions": partitions, "configs": configs, "acls": acls, "users": users}
    return found | {"reassignments": moving, "quotas": quotas}


def folded(folder: Path) -> dict[str, Any]:
    """The same from the files."""
    log = rawlog.open(folder)

    def rows(name: str) -> list[dict[str, Any]]:
        return log.table(f"kraft.{name}").to_arrow().to_pylist()  # type: ignore[no-any-return]

    return {
        "partitions": {
            (row["topic"], row["partition"]): (row["leader"], sorted(row["replicas"]), sorted(row["isr"]))
            for row in rows("partitions")
        },
        "configs": {
            (row["resource_type"], row["resource_name"], row["name"]): row["value"]
            for row in rows("configs")
            if row["resource_type"] == "topic" or row["resource_name"] == "1"
        },
        "acls": sorted(
            tuple(row[name] for name in ("resource_type", "resource_name", "pattern_type", "principal", "host", "operation", "permission"))
            for row in rows("acls")
        ),
        "users": sorted((row["name"], row["mechanism"], row["iterations"]) for row in rows("users")),
        "reassignments": sorted(
            (row["topic"], row["partition"], row["replicas"], row["adding_replicas"], row["removing_replicas"])
            for row in rows("partitions")
            if row["adding_replicas"] or row["removing_replicas"]
        ),
        "quotas": sorted(
            (";".join(f"{one['type']}={one['name'] or '<default>'}" for one in row["entity"]), row["key"], row["value"])
            for row in rows("quotas")
        ),
    }  # fmt: skip


def agreed(admin: Any, java: JavaAdmin, folder: Path, seconds: float = 20) -> tuple[dict[str, Any], dict[str, Any]]:
    """Both, once the broker has caught up with its own log. Until then it also lists topics that it has deleted."""
    from confluent_kafka import KafkaError, KafkaException

    deadline = time.monotonic() + seconds
    while True:
        try:
            expected, found = answers(admin, java), folded(folder)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART or time.monotonic() > deadline:
                raise
            time.sleep(0.5)
            continue
        if expected == found or time.monotonic() > deadline:
            return expected, found
        time.sleep(0.5)


def make_cluster(folder: Path, version: str) -> None:
    """What `kafka-storage format` would make, and a broker 2 that is known and never there: partitions can be on their way to it."""
    level, features = (21, {}) if version.startswith("3.") else (30, {"group.version": 1, "transaction.version": 2})
    missing = {
        "brokerId": 2, "isMigratingZkBroker": False, "incarnationId": b"2" * 16, "brokerEpoch": 1, "rack": None, "fenced": True,
        "endPoints": [{"name": "PLAINTEXT", "host": "127.0.0.1", "port": 9, "securityProtocol": 0}],
        "features": [{"name": name, "minSupportedVersion": least, "maxSupportedVersion": top}
                     for name, least, top in (("metadata.version", 7, level), ("group.version", 0, 1), ("transaction.version", 0, 2))],
        "inControlledShutdown": False, "logDirs": [b"d" * 16],
    }  # fmt: skip
    records = [("RegisterBrokerRecord", None, missing)]
    cluster = NewCluster(1, level, int(time.time() * 1000), records, features=features)
    cluster.write(Folder(folder), "abcdefghijklmnopqrstuv")


def break_idle_batch(folder: Path) -> None:
    """Flip a bit in a batch of the log's second half that changes nothing: the controller writes one whenever it is idle."""
    path = max(folder.glob("*.log"), key=lambda one: one.stat().st_size)
    rows = rawlog.read(path, table="kraft.metadata", columns=["offset", "type"]).to_pylist()
    batches = rawlog.read(path, table="kafka.batches", columns=["base_offset", "record_count", "position"]).to_pylist()
    idle = {row["offset"] for row in rows if row["type"] == "NO_OP_RECORD"}
    alone = [one["position"] for one in batches if one["record_count"] == 1 and one["base_offset"] in idle]
    data = bytearray(path.read_bytes())
    data[alone[len(alone) // 2] + 65] ^= 1
    path.write_bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.9.2", "4.3.0"])
def test_folded_state_equals_the_admin_client_and_what_we_write_is_loaded(version: str, tmp_path: Path) -> None:
    """A broker starts on a metadata log of ours, then on a repaired one with a snapshot of ours."""
    from confluent_kafka.admin import AdminClient

    data = tmp_path / "data"
    make_cluster(data, version)
    with needed():
        broker = KafkaBroker(version, data, ACLS).__enter__()
    try:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        with JavaAdmin(broker) as java:
            operations = Operations(admin, java, 7)
            operations.run(OPERATIONS)
            assert sum(operations.done.values()) > OPERATIONS * 0.7, operations.done
            assert set(operations.done) == {"create", "grow", "delete", "config", "acl", "scram", "quota", "reassign"}
            expected, found = agreed(admin, java, data)
            assert found == expected
            assert found["quotas"]
            assert found["reassignments"]
            assert rawlog.verify(data, rule=["kraft"]).verdict == "clean"
    finally:
        broker.stop()
    before = folded(data)
    metadata = data / "__cluster_metadata-0"
    metadata.rename(tmp_path / "broken")
    for path in (tmp_path / "broken").glob("*.checkpoint"):
        path.unlink()
    break_idle_batch(tmp_path / "broken")
    (tmp_path / "broken").rename(tmp_path / "__cluster_metadata-0")
    report = rewritten("repair", tmp_path / "__cluster_metadata-0", metadata)
    assert "fresh_snapshot" in report.facts
    try:
        broker.start()
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        with JavaAdmin(broker) as java:
            expected, found = agreed(admin, java, data)
        assert found == expected
        for name in ("configs", "acls", "users", "quotas", "reassignments"):
            assert found[name] == before[name]
        assert {key: value[1] for key, value in found["partitions"].items()} == {
            key: value[1] for key, value in before["partitions"].items()
        }
    finally:
        broker.__exit__(None, None, None)
