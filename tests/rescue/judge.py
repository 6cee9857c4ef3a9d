"""Judges a rescue: real brokers start on the result, real consumers read it, and the answers are compared with the truth."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.reference import disks, kafka
from tests.rescue.damage import Damage
from tests.rescue.truth import Expected, Key, Row, Truth, row_of
from tests.services.cluster import JUDGE, KafkaCluster
from tests.services.kafka import BrokerError

RESCUE_SECONDS = 300
READ_SECONDS = 90
END_SECONDS = 12
MOST = 6
"""How many examples of one kind of failure are printed."""


@dataclass
class Served:
    """What consumers got: rows by partition and offset, under each isolation level; the ends of the logs; offsets of groups."""

    rows: dict[str, dict[Key, dict[int, Row]]] = field(default_factory=dict)
    ends: dict[str, dict[Key, tuple[int, int]]] = field(default_factory=dict)
    groups: dict[tuple[str, str, int], int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


def consume(
    bootstrap: str, partitions: Iterable[Key], isolation: str
) -> tuple[dict[Key, dict[int, Row]], dict[Key, tuple[int, int]]]:
    """Everything that a consumer gets, up to the end that it is given; and those ends."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "rescue-judge",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "check.crcs": True,
            "fetch.wait.max.ms": 100,
            "log_level": 0,
        }
    )
    found: dict[Key, dict[int, Row]] = {key: {} for key in partitions}
    ends: dict[Key, tuple[int, int]] = {}
    waiting = set(found)
    try:
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for topic, number in found])
        left = READ_SECONDS
        while waiting and left > 0:
            messages = consumer.consume(5000, 1)
            left -= not messages
            for message in messages:
                key = (message.topic(), message.partition())
                if message.error():
                    if message.error().code() != KafkaError._PARTITION_EOF:
                        raise BrokerError(f"{key}: {message.error()}")
                    waiting.discard(key)
                    continue
                kind, time = message.timestamp()
                headers = tuple(message.headers() or [])
                found[key][message.offset()] = (message.key(), message.value(), headers, time if kind else -1)
        if waiting:
            raise BrokerError(f"the consumer ({isolation}) waits in vain for {sorted(waiting)[:MOST]}")
        for key in found:
            ends[key] = consumer.get_watermark_offsets(TopicPartition(*key), timeout=20)
    finally:
        consumer.close()
    return found, ends


def ends_of(bootstrap: str, partitions: Iterable[Key], isolation: str) -> dict[Key, tuple[int, int]]:
    """The first offset and the end of each partition, as a consumer with this isolation level sees them."""
    from confluent_kafka import Consumer, TopicPartition

    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "rescue-judge",
        "isolation.level": isolation,
        "log_level": 0,
    }
    consumer = Consumer(settings)
    try:
        return {key: consumer.get_watermark_offsets(TopicPartition(*key), timeout=20) for key in partitions}
    finally:
        consumer.close()


def wait_for_ends(bootstrap: str, partitions: Sequence[Key]) -> None:
    """Give the coordinator the time to complete what it has decided; a transaction that is left open stays so."""
    from confluent_kafka import KafkaException

    deadline = time.monotonic() + END_SECONDS
    while time.monotonic() < deadline:
        try:
            ends = [ends_of(bootstrap, partitions, isolation) for isolation in ("read_uncommitted", "read_committed")]
            if ends[0] == ends[1]:
                return
        except KafkaException:  # a partition that is just being led
            pass
        time.sleep(0.5)


def ask_groups(cluster: KafkaCluster, groups: Iterable[str]) -> dict[tuple[str, str, int], int]:
    """The committed offsets of groups."""
    from confluent_kafka import ConsumerGroupTopicPartitions

    found = {}
    admin = cluster.admin()
    for group in sorted(set(groups)):
        [answer] = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
        for one in answer.result(60).topic_partitions:
            if one.offset >= 0:
                found[group, one.topic, one.partition] = one.offset
    return found


def go_on(bootstrap: str, ends: Mapping[Key, tuple[int, int]], transactional_ids: Iterable[str]) -> list[str]:
    """Write to each partition, and in transactions of known ids: the brokers go on where the log ends. What is wrong, in words."""
    from confluent_kafka import KafkaException, Producer

    settings = {"bootstrap.servers": bootstrap, "acks": 1, "message.timeout.ms": 30_000, "log_level": 0}
    wrong = []
    producer = Producer(settings)
    answers: dict[Key, Any] = {}
    for key in ends:
        topic, partition = key
        note = lambda error, message, key=key: answers.update({key: error or message.offset()})  # noqa: E731
        producer.produce(topic, b"new", b"new", partition, on_delivery=note)
    producer.flush(40)
    for key, (_, end) in ends.items():
        if answers.get(key) != end:
            wrong.append(f"{key[0]}-{key[1]}: a new record gets offset {answers.get(key)}, the log ends at {end}")
    for name in transactional_ids:
        producer = Producer(settings | {"transactional.id": name, "acks": -1})
        try:
            producer.init_transactions(40)
        except KafkaException as error:
            wrong.append(f"transactional id {name} cannot be used: {error}")
    return wrong


def serve(version: str, folders: Mapping[int, Sequence[Path]], groups: Iterable[str], is_final: bool = True) -> Served:
    """Start brokers on these directories and read everything; `is_final`: write to them after that."""
    from confluent_kafka import KafkaException

    made = Served()
    first = next(iter(folders.values()))[0]
    alone = (
        {}
        if len(folders) > 1
        else {"offsets.topic.replication.factor": "1", "transaction.state.log.replication.factor": "1"}
    )
    with KafkaCluster(version, first.parent, folders=folders, properties=JUDGE | alone) as cluster:
        try:
            cluster.wait_for_leaders()
            partitions = [key for key in cluster.partitions() if not key[0].startswith("__")]
            wait_for_ends(cluster.bootstrap, partitions)
            for isolation in ("read_uncommitted", "read_committed"):
                made.rows[isolation], made.ends[isolation] = consume(cluster.bootstrap, partitions, isolation)
            made.groups = ask_groups(cluster, groups)
            if is_final:
                made.wrong = go_on(cluster.bootstrap, made.ends["read_uncommitted"], ["hanging", "first"])
        except (BrokerError, KafkaException) as error:
            logs = "\n".join(f"node {n}: {node.output_tail(25)}" for n, node in cluster.nodes.items())
            raise BrokerError(f"{error}\n{logs}") from error
    return made


def read_served(folders: Mapping[int, Sequence[Path]]) -> Served:
    """What brokers would serve of these directories, by the reference reader. It knows less than they do, and is quick."""
    made = Served()
    rows: dict[Key, dict[int, Row]] = {}
    committed: dict[Key, dict[int, Row]] = {}
    ends: tuple[dict[Key, tuple[int, int]], dict[Key, tuple[int, int]]] = ({}, {})
    for replica in disks.read_replicas([disk for those in folders.values() for disk in those]):
        key = (replica.topic, replica.partition)
        batches = [one.batch for one in replica.batches]
        if not all(batch.crc_ok for batch in batches):
            made.wrong.append(f"{key[0]}-{key[1]}: damaged batches are in the result")
        if any(one.batch.last_offset >= other.first for one, other in pairwise(replica.batches)):
            made.wrong.append(f"{key[0]}-{key[1]}: offsets do not rise")
        if key[0] == disks.GROUPS:
            made.groups |= disks.read_group_offsets(batches, {})
        elif key[0] != disks.TRANSACTIONS:
            data = [record for batch in batches if not batch.is_control for record in batch.records]
            known = disks.outcomes(batches)
            is_open = [offset for offset, (outcome, _) in known.items() if outcome == "open"]
            rows[key] = {record.offset: row_of(record) for record in data}
            committed[key] = {
                record.offset: row_of(record)
                for record in data
                if known.get(record.offset, ("commit", None))[0] == "commit"
                and record.offset < min(is_open, default=record.offset + 1)
            }
            ends[0][key] = (0, replica.end)
            ends[1][key] = (0, min(is_open, default=replica.end))
    made.rows = {"read_uncommitted": rows, "read_committed": committed}
    made.ends = {"read_uncommitted": ends[0], "read_committed": ends[1]}
    return made


# Comparing ------------------------------------------------------------------------------------------------------------------


def short(items: Iterable[Any]) -> str:
    listed = list(items)
    return f"{listed[:MOST]}{f' and {len(listed) - MOST} more' if len(listed) > MOST else ''}"


def compare_partition(expected: Expected, served: Served, key: Key) -> list[str]:
    """What is wrong with one partition, in words."""
    name = f"{key[0]}-{key[1]}"
    rows = served.rows["read_uncommitted"].get(key)
    if rows is None:
        if not expected.must:
            return []
        return [f"{name}: not served; {len(expected.must)} records from offset {min(expected.must)} survive"]
    wrong = []
    missing = [offset for offset in expected.must if offset not in rows]
    if missing:
        wrong.append(f"{name}: {len(missing)} surviving records are not served, at offsets {short(missing)}")
    other = [offset for offset, row in expected.must.items() if offset in rows and rows[offset] != row]
    if other:
        at = other[0]
        wrong.append(
            f"{name}: {len(other)} offsets serve another record, at {short(other)}; at {at}: {rows[at]!r}, expected {expected.must[at]!r}"
        )
    more = [
        offset
        for offset, row in rows.items()
        if offset not in expected.must and row not in expected.may.get(offset, ())
    ]
    if more:
        held = [offset for offset in more if expected.aside.get(offset) == rows[offset]]
        note = f", {len(held)} of them of the divergent tail" if held else ""
        wrong.append(f"{name}: {len(more)} records are served that are not of the log, at {short(more)}{note}")
    return wrong + compare_committed(expected, served, key, name)


def compare_committed(expected: Expected, served: Served, key: Key, name: str) -> list[str]:
    wrong = []
    rows, committed = served.rows["read_uncommitted"][key], served.rows["read_committed"].get(key, {})
    hidden = [
        offset
        for offset in rows
        if offset in expected.must and expected.visible.get(offset, True) is True and offset not in committed
    ]
    if hidden:
        wrong.append(f"{name}: {len(hidden)} committed records are not seen with read_committed, at {short(hidden)}")
    shown = [offset for offset in committed if expected.visible.get(offset) is False]
    if shown:
        wrong.append(f"{name}: {len(shown)} aborted records are seen with read_committed, at {short(shown)}")
    if strange := [offset for offset, row in committed.items() if rows.get(offset) != row]:
        wrong.append(f"{name}: read_committed gives what read_uncommitted does not, at {short(strange)}")
    ends = served.ends["read_uncommitted"][key], served.ends["read_committed"][key]
    if ends[0][1] != ends[1][1]:
        wrong.append(f"{name}: a transaction is open at {ends[1][1]}, the log ends at {ends[0][1]}")
    return wrong


def compare(truth: Truth, served: Served, has_metadata: bool) -> list[str]:
    """What is wrong with what is served, in words."""
    wrong = []
    for key, expected in truth.partitions.items():
        if key[0] not in truth.ambiguous:
            wrong += compare_partition(expected, served, key)
    for topic in {key[0] for key in served.rows["read_uncommitted"]} & truth.deleted:
        if has_metadata:
            wrong.append(f"{topic}: was deleted and is served")
    for key in sorted(truth.groups.keys() | served.groups.keys()):
        if key in truth.unsure_groups:
            continue
        expected, found = truth.groups.get(key), served.groups.get(key)
        _, end = served.ends["read_uncommitted"].get(key[1:], (0, 0))
        last = max(served.rows["read_uncommitted"].get(key[1:], {}), default=-1)
        if found == expected or (expected is not None and found is not None and last < found <= min(expected, end)):
            continue  # a group that was after the end of what is left is at the end
        wrong.append(f"group {key}: offset {found}, expected {expected}, the log ends at {end}")
    return wrong


def compare_losses(truth: Truth, plan: Sequence[Mapping[str, Any]], served: Served, has_metadata: bool) -> list[str]:
    """What is wrong with the list of losses, in words."""
    wrong = []
    units = {str(unit["name"]): unit for unit in plan}
    for (topic, partition), expected in truth.partitions.items():
        name = f"{topic}-{partition}"
        if topic in truth.ambiguous:
            continue
        unit = units.get(name)
        if unit is None:
            if has_metadata or expected.replicas:
                wrong.append(f"{name}: is not in the plan")
            continue
        rows = served.rows.get("read_uncommitted", {}).get((topic, partition), {})
        everything = {*expected.must, *expected.lost, *expected.lost_or_not, *expected.may, *rows}
        listed = {
            offset
            for span in unit["lost"]
            for offset in everything
            if span["start"] <= offset and (span["stop"] is None or offset < span["stop"])
        }
        if unlisted := sorted(expected.lost - listed):
            wrong.append(
                f"{name}: {len(unlisted)} lost records are not listed, at {short(unlisted)}; listed {unit['lost']}"
            )
        if false := sorted(listed & set(rows)):
            wrong.append(
                f"{name}: {len(false)} records are listed as lost and served, at {short(false)}; listed {unit['lost']}"
            )
        if not expected.replicas and has_metadata and not (unit["action"] == "lost" or unit["lost"]):
            wrong.append(f"{name}: no replica is left, and it is not listed as lost")
    return wrong


def compare_aside(truth: Truth, folder: Path) -> list[str]:
    """What of the divergent tails is not readable next to the result."""
    wrong = []
    for (topic, partition), expected in truth.partitions.items():
        if not expected.aside or topic in truth.ambiguous:
            continue
        kept = {
            (record.offset, row_of(record))
            for log in sorted(folder.glob(f"**/{topic}-{partition}/*.log"))
            for batch in kafka.decode(log.read_bytes())
            for record in batch.records
        }
        if missing := sorted(offset for offset, row in expected.aside.items() if (offset, row) not in kept):
            wrong.append(f"{topic}-{partition}: {len(missing)} divergent records are not kept, at {short(missing)}")
    return wrong


# Rescuing -------------------------------------------------------------------------------------------------------------------


def digest(folders: Sequence[Path]) -> dict[str, tuple[str, int, int]]:
    """Content, size and time of every file."""
    found = {}
    for disk in folders:
        for path in sorted(disk.rglob("*")):
            about = path.lstat()
            content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
            found[str(path)] = (content, about.st_size if path.is_file() else 0, about.st_mtime_ns)
    return found


@dataclass
class Rescued:
    """What the command did."""

    code: int
    output: str
    messages: str
    folders: dict[int, list[Path]]
    facts: dict[str, Any]

    @property
    def plan(self) -> list[dict[str, Any]]:
        return list(self.facts.get("plan", []))


def run_rescue(sources: Sequence[Path], target: Path, *options: str, kill_after: float | None = None) -> Rescued:
    """The command `rawlog rescue` in a process of its own; `kill -9` for it after so many seconds."""
    command = [sys.executable, "-m", "rawlog", "rescue", *map(str, sources), "--to", str(target), "--json", *options]
    environment = os.environ | {"RAWLOG_ENGINE": "local"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        output, messages = process.communicate(timeout=RESCUE_SECONDS if kill_after is None else kill_after)
    except subprocess.TimeoutExpired:
        process.kill()
        output, messages = process.communicate()
    facts: dict[str, Any] = {}
    for line in output.splitlines():
        if line.startswith("{"):
            reported = json.loads(line)
            facts |= reported.get("facts", reported if "plan" in reported else {})
    return Rescued(process.returncode, output, messages, folders_of(target), facts)


def folders_of(target: Path) -> dict[int, list[Path]]:
    """The log directories that were written, by node."""
    found: dict[int, list[Path]] = {}
    for about in sorted([*target.glob("meta.properties"), *target.glob("*/meta.properties")]):
        words = dict(line.split("=", 1) for line in about.read_text().splitlines() if "=" in line)
        found.setdefault(int(words["node.id"]), []).append(about.parent)
    return found


@dataclass
class Verdict:
    """What is wrong, in words; nothing if the rescue is right."""

    wrong: list[str]
    damage: list[str]
    records: int = 0
    lost: int = 0

    def __str__(self) -> str:
        names = {line.partition(":")[0] for line in self.wrong}
        reported = [line for line in self.damage if "/" not in line or any(f"/{name}" in line for name in names)]
        head = f"{self.records} records survive, {self.lost} are lost; {len(self.damage)} damages"
        return "\n  ".join([head, *reported[:40], *(["WRONG:"] if self.wrong else []), *self.wrong])


@dataclass(frozen=True)
class Way:
    """How a rescue is run: for how many brokers, killed once before, planned before."""

    brokers: int = 1
    kill_after: float | None = None
    is_planned: bool = False

    @classmethod
    def of(cls, seed: int) -> Way:
        """One of the ways, by chance."""
        chance = random.Random(seed)
        kill_after = chance.uniform(0.5, 4) if chance.random() < 0.3 else None
        return cls(3 if chance.random() < 0.2 else 1, kill_after, chance.random() < 0.3)


def judge(version: str, truth: Truth, damaged: Damage, target: Path, way: Way) -> Verdict:
    """Rescue, start brokers on the result, and compare."""
    verdict = Verdict([], [*damaged.done, f"rescued for {way}"])
    verdict.records = sum(len(one.must) for one in truth.partitions.values())
    verdict.lost = sum(len(one.lost) for one in truth.partitions.values())
    before = digest(damaged.disks)
    options = ["--brokers", str(way.brokers)] if way.brokers > 1 else []
    planned = run_rescue(damaged.disks, target, "--plan", *options) if way.is_planned else None
    if planned is not None and target.exists():
        verdict.wrong.append("--plan has written something")
    if way.kill_after is not None:
        run_rescue(damaged.disks, target, *options, kill_after=way.kill_after)
        if not target.exists():
            options.append("--resume")
        else:
            options.append("--force")
    rescued = run_rescue(damaged.disks, target, *options)
    if digest(damaged.disks) != before:
        verdict.wrong.append("a source was changed")
    if rescued.code not in (0, 1) or len(rescued.folders) != way.brokers:
        verdict.wrong.append(f"rescue ended with {rescued.code}: {rescued.messages[-2000:]}{rescued.output[-500:]}")
        return verdict
    if rescued.code == 0 and verdict.lost:
        verdict.wrong.append(f"rescue ended with 0 and {verdict.lost} records are lost")
    if planned is not None and planned.plan != rescued.plan:
        verdict.wrong.append(f"--plan ({planned.code}) gives another plan: {planned.messages[-500:]}")
    try:
        served = serve(version, rescued.folders, {group for group, _, _ in truth.groups})
    except BrokerError as error:
        verdict.wrong.append(f"the brokers: {error}")
        return verdict
    verdict.wrong += served.wrong
    verdict.wrong += compare(truth, served, damaged.has_metadata)
    verdict.wrong += compare_losses(truth, rescued.plan, served, damaged.has_metadata)
    verdict.wrong += compare_aside(truth, target.with_name(f"{target.name}.divergent"))
    return verdict
