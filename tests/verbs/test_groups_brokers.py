"""`groups` and `transactions` compared with what Kafka's own tools say of a broker on the same files."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

import rawlog
from tests.conftest import running
from tests.data.golden import GOLDEN
from tests.services.kafka import KAFKA_4, START_SECONDS, KafkaBroker, run_tool, streams_application

pytestmark = pytest.mark.broker
STATE = "__transaction_state-"
#: Groups stay as the files have them: nobody's session ends and no transaction times out while the tools ask.
QUIET = {
    "log.cleaner.enable": "false",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "3600000",
    "offsets.retention.minutes": "100000000",
    "group.streams.initial.rebalance.delay.ms": "0",
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, KafkaBroker]]:
    """A copy of a golden directory whose coordinator has forgotten all transactions, and a broker on another copy of it."""
    scratch = tmp_path_factory.mktemp("groups")
    data = scratch / "data"
    shutil.copytree(GOLDEN / "kafka" / "broker-4.3.0" / "data", data)
    for partition in data.glob(f"{STATE}*"):
        for file in partition.iterdir():
            if file.name != "partition.metadata":
                file.unlink()
        (partition / f"{0:020}.log").touch()
    shutil.copytree(data, scratch / "served")
    with running(KafkaBroker(KAFKA_4, scratch / "served", QUIET)) as broker:
        yield data, broker


def test_groups_are_those_that_kafka_consumer_groups_describes(served: tuple[Path, KafkaBroker]) -> None:
    data, broker = served
    answer = run_tool(
        KAFKA_4,
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        *("--bootstrap-server", broker.bootstrap, "--describe", "--all-groups"),
    )
    theirs = {tuple(line.split()[:6]) for line in answer.splitlines() if re.match(r"group-\S+ +\S+ +[0-9]", line)}
    ours = {
        tuple(str(row[name]) for name in ("group", "topic", "partition", "committed_offset", "end_offset", "lag"))
        for row in rawlog.groups(data)
        if row["table"] == "offsets" and row["group"].startswith("group-")
    }
    assert len(ours) > 3
    assert ours == theirs


def test_share_groups_are_those_that_kafka_share_groups_describes(served: tuple[Path, KafkaBroker]) -> None:
    data, broker = served
    answer = run_tool(
        KAFKA_4,
        "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
        *("--bootstrap-server", broker.bootstrap, "--describe", "--all-groups"),
    )
    theirs = {tuple(line.split()[:5]) for line in answer.splitlines() if line.startswith("share-")}
    ours = {
        (
            row["group"],
            row["topic"],
            str(row["partition"]),
            *("-" if row[name] is None else str(row[name]) for name in ("committed_offset", "lag")),
        )
        for row in rawlog.groups(data)
        if row["table"] == "offsets" and row["group"].startswith("share-")
    }
    assert ours
    assert ours == theirs


def test_hanging_transactions_are_those_that_kafka_transactions_finds(served: tuple[Path, KafkaBroker]) -> None:
    data, broker = served
    answer = run_tool(
        KAFKA_4,
        "org.apache.kafka.tools.TransactionsCommand",
        *("--bootstrap-server", broker.bootstrap, "find-hanging", "--broker-id", "1"),
        *("--max-transaction-timeout", "1"),
    )
    theirs = {tuple(line.split()[:6]) for line in answer.splitlines() if re.match(r"\S+\s+[0-9]+\s+[0-9]+\s", line)}
    found = rawlog.transactions(data)
    ours = {
        (
            *(str(row[name]) for name in ("topic", "partition", "producer_id", "producer_epoch")),
            str(-1 if row["coordinator_epoch"] is None else row["coordinator_epoch"]),
            str(row["first_offset"]),
        )
        for row in found
        if row["table"] == "open" and row["is_hanging"]
    }
    assert ours
    assert ours == theirs
    assert found.has_findings


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_and_their_partitions_are_those_of_the_broker(served: tuple[Path, KafkaBroker], protocol: str) -> None:
    """A consumer that has joined is in the files at once; a partition without a commit has no lag."""
    _, broker = served
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": f"live-{protocol}", "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "group.protocol": protocol, "enable.auto.commit": "false", "client.id": "reader"})
    try:
        consumer.subscribe(["codec-zstd"])
        message = consumer.poll(60)
        assert message is not None
        consumer.commit(message=message, asynchronous=False)
        answer = run_tool(
            KAFKA_4,
            "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
            *("--bootstrap-server", broker.bootstrap, "--describe", "--group", f"live-{protocol}"),
        )
        rows = list(rawlog.groups(broker.data_dir, group=f"live-{protocol}"))
    finally:
        consumer.close()
    theirs = {tuple(line.split()[:9]) for line in answer.splitlines() if line.startswith("live-")}
    member = next(row for row in rows if row["table"] == "members")
    names = ("group", "topic", "partition", "committed_offset", "end_offset", "lag", "member")
    ours = {
        (*("-" if row[name] is None else str(row[name]) for name in names), member["host"], member["client_id"])
        for row in rows
        if row["table"] == "offsets"
    }
    assert ours == theirs
    assert next(row["state"] for row in rows if row["table"] == "groups") == "Stable"


def test_streams_groups_are_those_that_kafka_streams_groups_describes(
    served: tuple[Path, KafkaBroker], tmp_path: Path
) -> None:
    """The state of a member and its partitions are written in another way than for consumers: tasks of parts of a topology."""
    _, broker = served
    command = "org.apache.kafka.tools.streams.StreamsGroupCommand"
    asked = ("--bootstrap-server", broker.bootstrap, "--describe", "--group", "live-streams")
    with streams_application(broker, "live-streams", tmp_path, "codec-zstd", "segments-by-size"):
        deadline = time.monotonic() + START_SECONDS
        rows: list[dict[str, Any]] = []
        while not rows or any(row["lag"] != 0 for row in rows if row["table"] == "offsets"):
            assert time.monotonic() < deadline
            rows = list(rawlog.groups(broker.data_dir, group="live-streams"))
        offsets = run_tool(KAFKA_4, command, *asked)
        state = run_tool(KAFKA_4, command, *asked, "--state")
        members = run_tool(KAFKA_4, command, *asked, "--members")
    theirs = {tuple(line.split()[1:4]) for line in offsets.splitlines() if line.startswith("live-")}
    ours = [row for row in rows if row["table"] == "offsets"]
    assert {(row["topic"], str(row["partition"]), str(row["lag"])) for row in ours} == theirs
    [group] = [row for row in rows if row["table"] == "groups"]
    assert (group["protocol"], [group["state"]]) == (
        "streams",
        re.findall(r"^live-.* (\w+) +1 *$", state, re.MULTILINE),
    )
    [member] = [row for row in rows if row["table"] == "members"]
    assert f" {member['member']} " in members
    assert f" {member['client_id']} " in members
    assert member["assigned"] == ["codec-zstd-0", "codec-zstd-1", "segments-by-size-0"]
    assert {row["member"] for row in ours} == {member["member"]}
