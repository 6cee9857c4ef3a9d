"""What a correct rescue serves and lists, from the disks as they were at the death and as they are now. Imports nothing of rawlog.

The log of a partition at the death is that of the replica with the latest leader epoch, and of these the longest. A record of it survives
if at least one replica that is left has it in a batch whose bytes are as they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.reference import disks
from tests.reference.kafka import Batch, Record
from tests.rescue.damage import Damage
from tests.rescue.life import Journal, Sent

UNCOVERED = 21
"""Bytes of a batch that its checksum does not cover."""
Key = tuple[str, int]
Row = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int]


def row_of(record: Record) -> Row:
    """What a consumer gets of a record."""
    headers = tuple((name, value) for name, value in record.headers)
    return (record.key, record.value, headers, -1 if record.timestamp is None else record.timestamp)


@dataclass
class Expected:
    """What is expected of one partition. Offsets to records of data; control records are in none of these.

    `must` is served; `may` can be served instead or as well, at these offsets one of these rows. `visible` says for what is served
    whether a reader of committed records sees it, None where either is right. `lost` is listed; `lost_or_not` may be listed. `aside` is
    what a later epoch contradicts; it is not served, and kept next to the result. `replicas` is the number that is left.
    """

    topic: str
    partition: int
    topic_id: str
    must: dict[int, Row] = field(default_factory=dict)
    may: dict[int, set[Row]] = field(default_factory=dict)
    visible: dict[int, bool | None] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)
    lost_or_not: set[int] = field(default_factory=set)
    aside: dict[int, Row] = field(default_factory=dict)
    replicas: int = 0


@dataclass
class Truth:
    """Expectations by topic and partition; committed offsets of groups, None where either a value or another is right.

    `deleted` are topics of whose deletion some disk still tells.
    """

    partitions: dict[Key, Expected] = field(default_factory=dict)
    ambiguous: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    groups: dict[tuple[str, str, int], int] = field(default_factory=dict)
    unsure_groups: set[tuple[str, str, int]] = field(default_factory=set)


class Cluster:
    """The disks of a cluster at its death, before anything happened to them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.disks = sorted(root.glob("*/*"))
        self.metadata = disks.read_metadata(self.disks)
        self.replicas: dict[tuple[str, int, str], list[disks.Replica]] = {}
        for one in disks.read_replicas(self.disks):
            self.replicas.setdefault((one.topic, one.partition, one.topic_id), []).append(one)

    def living(self) -> dict[tuple[str, int, str], list[disks.Replica]]:
        """Replicas of topics that existed at the death."""
        return {key: found for key, found in self.replicas.items() if self.metadata.topics.get(key[2]) == key[0]}

    def log(self, replicas: Sequence[disks.Replica]) -> disks.Replica:
        """The log of a partition at the death."""
        return max(replicas, key=lambda one: (not one.is_future, one.rank))

    def check(self, journal: Journal) -> list[str]:
        """What Kafka acknowledged and the disks do not have: then the test is wrong, or Kafka. Empty if all is right."""
        wrong = []
        rows: dict[tuple[str, int], dict[bytes, tuple[int, str]]] = {}
        for (topic, partition, _), replicas in self.living().items():
            batches = [one.batch for one in self.log(replicas).batches]
            ends = disks.outcomes(batches)
            rows[topic, partition] = {
                record.value or b"": (record.offset, ends.get(record.offset, ("", None))[0])
                for batch in batches
                for record in batch.records
                if not batch.is_control
            }
        for sent in journal.sent:
            if (problem := self._problem(sent, journal, rows)) is not None:
                wrong.append(problem)
        return wrong

    def _problem(
        self, sent: Sent, journal: Journal, rows: dict[tuple[str, int], dict[bytes, tuple[int, str]]]
    ) -> str | None:
        about = journal.topics.get(sent.topic)
        if not sent.acked or sent.acks != -1 or about is None or sent.generation != about["generation"]:
            return None
        if sent.topic == "unclean" or about["compact"]:
            return None
        found = rows.get((sent.topic, sent.partition), {}).get(sent.value.encode())
        if found is None:
            return f"acknowledged, and on no disk: {sent}"
        offset, end = found
        if sent.offset not in (None, offset):
            return f"acknowledged at another offset than {offset}: {sent}"
        said = journal.outcomes.get(sent.transaction) if sent.transaction is not None else None
        if (said, end) in (("commit", "abort"), ("abort", "commit"), ("open", "commit")):
            return f"transaction ended with {said}, on disk it is {end}: {sent}"
        return None


class Judgement:
    """Works out the truth for one damaged copy of the disks."""

    def __init__(self, cluster: Cluster, damaged: Damage) -> None:
        self.cluster, self.damaged = cluster, damaged
        self._bytes: dict[Path, tuple[bytes, bytes | None]] = {}
        self.states: dict[int, tuple[str, set[tuple[str, int]]]] = {}
        self.states_left: dict[int, tuple[str, set[tuple[str, int]]]] = {}

    def truth(self) -> Truth:
        made = Truth()
        living = self.cluster.living()
        for (topic, _, _), replicas in living.items():
            if topic == disks.TRANSACTIONS:
                log = self.cluster.log(replicas)
                self.states |= disks.read_transactions([one.batch for one in log.batches])
                self.states_left |= disks.read_transactions(self.united(log, replicas))
        for (topic, partition, topic_id), replicas in living.items():
            if topic == disks.GROUPS:
                self._groups(made, partition, replicas)
            elif topic != disks.TRANSACTIONS:
                made.partitions[topic, partition] = self._expected(topic, partition, topic_id, replicas)
        known = {topic for topic, _, _ in living}
        gone = {topic_id: topic for topic, _, topic_id in self.cluster.replicas if topic not in known}
        made.deleted = {
            gone[topic_id] for topic_id in disks.read_removed(self.cluster.disks, self._is_left) if topic_id in gone
        }
        if not self.damaged.has_metadata:
            names: dict[str, set[str]] = {}
            for (topic, _, topic_id), replicas in self.cluster.replicas.items():
                if any(self._path(one.path).is_dir() for one in replicas):
                    names.setdefault(topic, set()).add(topic_id)
            made.ambiguous = {topic for topic, ids in names.items() if len(ids) > 1}
        return made

    def _path(self, path: Path) -> Path:
        return self.damaged.folder / path.relative_to(self.cluster.root)

    def state(self, one: disks.Placed) -> str:
        """`whole`, `gone`, or `header`: only bytes have changed that the checksum does not cover."""
        if one.file not in self._bytes:
            left = self._path(one.file)
            self._bytes[one.file] = (one.file.read_bytes(), left.read_bytes() if left.is_file() else None)
        before, after = self._bytes[one.file]
        start, stop = one.batch.position, one.batch.position + one.batch.size
        if after is None or before[start + UNCOVERED : stop] != after[start + UNCOVERED : stop]:
            return "gone"
        return "whole" if before[start:stop] == after[start:stop] else "header"

    def _is_left(self, file: Path, batch: Batch | None) -> bool:
        return self._path(file).is_file() if batch is None else self.state(disks.Placed(file, batch)) == "whole"

    def _moved(self, one: disks.Placed) -> int:
        """By how much the offset in the header of a damaged batch is wrong."""
        _, after = self._bytes[one.file]
        assert after is not None
        return int.from_bytes(after[one.batch.position : one.batch.position + 8], "big", signed=True) - one.first

    def whole(self, replica: disks.Replica) -> list[disks.Placed]:
        return [one for one in replica.batches if self.state(one) == "whole"]

    def united(self, log: disks.Replica, replicas: Sequence[disks.Replica]) -> list[Batch]:
        """The batches of the log at the death that some replica still has. Of compacted logs, those of the log itself where it has them."""
        found: dict[int, Batch] = {}
        for replica in [log, *replicas]:
            for one in self.whole(replica):
                if self._epoch(log, one.first) == one.batch.leader_epoch and one.batch.last_offset < log.end:
                    found.setdefault(one.first, one.batch)
        return [found[first] for first in sorted(found)]

    def _epoch(self, log: disks.Replica, offset: int) -> int:
        return max((epoch for epoch, start in log.epochs if start <= offset), default=-1)

    def _expected(self, topic: str, partition: int, topic_id: str, replicas: Sequence[disks.Replica]) -> Expected:
        log = self.cluster.log(replicas)
        made = Expected(topic, partition, topic_id)
        left = {id(one): self.whole(one) for one in replicas}
        made.replicas = sum(self._path(one.path).is_dir() for one in replicas)
        ours = {
            record.offset: row_of(record)
            for one in log.batches
            for record in one.batch.records
            if not one.batch.is_control
        }
        found: dict[int, set[Row]] = {}
        aside: dict[int, Row] = {}
        contradicted = self._contradicted(replicas, left)
        is_compacted = self._is_compacted(replicas)
        for replica in replicas:
            for one in left[id(replica)]:
                for record in [] if one.batch.is_control else one.batch.records:
                    row = row_of(record)
                    if ours.get(record.offset) != row and contradicted(one.batch.leader_epoch, record.offset):
                        aside[record.offset] = row
                    else:
                        found.setdefault(record.offset, set()).add(row)
            for one in replica.batches:
                if self.state(one) == "header" and self._epoch(log, one.first) == one.batch.leader_epoch:
                    # Where compaction left gaps, nothing in a log tells that an offset is wrong.
                    moved = self._moved(one) if is_compacted else 0
                    for record in one.batch.records:
                        made.lost_or_not.add(record.offset)
                        made.may.setdefault(record.offset, set()).add(row_of(record))
                        made.may.setdefault(record.offset + moved, set()).add(row_of(record))
        made.aside = aside
        last = {record.key: record.offset for one in log.batches for record in one.batch.records}
        agreed = [offset for offset, rows in found.items() if ours.get(offset) in rows]
        known = max([-1, *agreed, *self._known(topic, partition, replicas)])
        for one in log.batches:
            for record in [] if one.batch.is_control else one.batch.records:
                row = row_of(record)
                if row in found.get(record.offset, ()):
                    if is_compacted and last[record.key] != record.offset:
                        made.may.setdefault(record.offset, set()).add(row)
                    else:
                        made.must[record.offset] = row
                        made.lost_or_not.discard(record.offset)
                elif (
                    (is_compacted and last[record.key] != record.offset)
                    or record.offset > known
                    or record.offset in found
                ):
                    made.lost_or_not.add(record.offset)
                elif record.offset not in made.lost_or_not:
                    made.lost.add(record.offset)
        for offset, rows in found.items():
            if offset not in made.must:
                made.may.setdefault(offset, set()).update(rows)
        self._visible(made, log, replicas)
        return made

    @staticmethod
    def _contradicted(replicas, left):  # type: ignore[no-untyped-def]
        """Whether something left on the disks shows that a batch of an epoch at an offset is not of the log: a later epoch began before it.

        The checkpoint file of a replica that is there counts, too.
        """
        starts: dict[int, int] = {}
        for replica in replicas:
            batches = left[id(replica)]
            checkpoint = replica.checkpoint if batches else []
            for epoch, start in disks.epochs_of(batches, checkpoint):
                starts[epoch] = min(starts.get(epoch, start), start)
        return lambda epoch, offset: any(later > epoch and start <= offset for later, start in starts.items())

    def _known(self, topic: str, partition: int, replicas: Sequence[disks.Replica]) -> list[int]:
        """The last offsets that the high watermarks of the disks tell."""
        found = []
        for disk in self.damaged.disks:
            marks = disks.read_checkpoint(disk, "replication-offset-checkpoint")
            if any(self._path(one.path).parent == disk for one in replicas) and (topic, partition) in marks:
                found.append(marks[topic, partition] - 1)
        return found

    @staticmethod
    def _is_compacted(replicas: Sequence[disks.Replica]) -> bool:
        return replicas[0].topic == "compacted"

    def _visible(self, made: Expected, log: disks.Replica, replicas: Sequence[disks.Replica]) -> None:
        batches = [one.batch for one in log.batches]
        there = {batch.last_offset for batch in self.united(log, replicas) if batch.is_control}
        producers = {record.offset: batch.producer_id for batch in batches for record in batch.records}
        for offset, (outcome, marker) in disks.outcomes(batches).items():
            if outcome == "open":
                made.visible[offset] = self.will_commit(producers[offset], (made.topic, made.partition))
            else:
                made.visible[offset] = outcome == "commit" if marker in there else None

    def will_commit(self, producer: int, place: tuple[str, int]) -> bool | None:
        """Whether the coordinator would commit the transaction that is open here. None if what it knew is lost."""
        known = self.states.get(producer)
        if known is None or known != self.states_left.get(producer):
            return None
        state, places = known
        if state == "prepare_commit" and place in places:
            return True
        return False if state in ("ongoing", "prepare_abort") else None

    def _groups(self, made: Truth, partition: int, replicas: Sequence[disks.Replica]) -> None:
        log = self.cluster.log(replicas)
        whole, left = [one.batch for one in log.batches], self.united(log, replicas)
        ended: dict[int, bool] = {}
        unsure: set[int] = set()
        for producer in {batch.producer_id for batch in whole if batch.is_transactional}:
            end = self.will_commit(producer, (disks.GROUPS, partition))
            if end is None:
                unsure.add(producer)
            ended[producer] = bool(end)
        offsets = disks.read_group_offsets(left, ended)
        made.groups |= offsets
        if unsure:
            for other in (dict.fromkeys(unsure, True), dict.fromkeys(unsure, False)):
                for key, offset in disks.read_group_offsets(left, ended | other).items():
                    if offsets.get(key) != offset:
                        made.unsure_groups.add(key)
        for one in (one for replica in replicas for one in replica.batches if self.state(one) == "header"):
            made.unsure_groups |= set(disks.read_group_offsets([one.batch], {one.batch.producer_id: True}))
        markers = {batch.last_offset for batch in whole if batch.is_control}
        if markers - {
            batch.last_offset for batch in left if batch.is_control
        }:  # a marker is lost: its offsets may count or not
            for batch in left:
                if batch.is_transactional and not batch.is_control:
                    made.unsure_groups |= set(disks.read_group_offsets([batch], {batch.producer_id: True}))
