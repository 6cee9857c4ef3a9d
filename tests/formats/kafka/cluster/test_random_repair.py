"""Metadata directories damaged at random and repaired: every sound record that the state needs survives, every loss is reported.

What must come out is known by the test itself: it wrote the batches, and looks for their bytes in the damaged files. `RAWLOG_CASES` sets
the number of cases.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

import rawlog
from rawlog.formats.kafka.cluster.metadata_log import MetadataStore, clusters
from rawlog.formats.kafka.cluster.state import State
from rawlog.formats.kafka.cluster.writer import encode_batch, encode_controls
from rawlog.formats.kafka.internal.messages import encode_framed
from rawlog.formats.kafka.log.layouts import ControlType
from rawlog.formats.kafka.paths import takes
from rawlog.model.finding import Finding, Severity
from rawlog.model.report import Action, Entry
from tests.data.random_repair import Damage, RandomRepair, Repair
from tests.data.rewriting import rewritten
from tests.data.trees import contents

NAME = "__cluster_metadata-0"
TIME = 1_706_868_930_000


@dataclass(frozen=True)
class Batch:
    """A batch as it was written: `values` are its records, None in place of all of a control batch."""

    first: int
    epoch: int
    time: int
    data: bytes
    values: tuple[bytes, ...]
    control: tuple[tuple[int, dict[str, Any]], ...] = ()

    @property
    def count(self) -> int:
        return len(self.values) or len(self.control)

    @property
    def end(self) -> int:
        return self.first + self.count


@dataclass
class Cluster:
    """A metadata directory as it was written."""

    batches: list[Batch]
    segments: dict[str, list[Batch]]
    snapshots: dict[str, tuple[int, int, list[Batch]]] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        for name, batches in self.segments.items():
            (folder / name).write_bytes(b"".join(one.data for one in batches))
        for name, (_, _, batches) in self.snapshots.items():
            (folder / name).write_bytes(b"".join(one.data for one in batches))


def value_batch(first: int, epoch: int, time: int, values: list[bytes]) -> Batch:
    return Batch(first, epoch, time, encode_batch(first, epoch, time, [(None, one) for one in values]), tuple(values))


def control_batch(first: int, epoch: int, time: int, *controls: tuple[int, dict[str, Any]]) -> Batch:
    return Batch(first, epoch, time, encode_controls(first, epoch, time, controls), (), controls)


def topic_id(number: int) -> bytes:
    return number.to_bytes(8, "big") + b"topic-id"


def records(rng: random.Random) -> Iterator[list[bytes]]:
    """The records of batches: each of them changes the state, and fits what is there."""
    yield [encode_framed("FeatureLevelRecord", {"name": "metadata.version", "featureLevel": 21})]
    alive: dict[int, int] = {}
    made = 0
    while True:
        kind = rng.random()
        if kind < 0.3 or not alive:
            made += 1
            partitions = rng.randint(1, 3)
            alive[made] = partitions
            yield [
                encode_framed("TopicRecord", {"name": f"topic-{made}", "topicId": topic_id(made)}),
                *(encode_framed("PartitionRecord", partition(made, at), 1) for at in range(partitions)),
            ]
        elif kind < 0.6:
            number = rng.choice(list(alive))
            change = {
                "partitionId": rng.randrange(alive[number]),
                "topicId": topic_id(number),
                "leader": rng.choice((1, 2)),
            }
            yield [encode_framed("PartitionChangeRecord", change, 1)]
        elif kind < 0.75:
            setting = {
                "resourceType": 2,
                "resourceName": f"topic-{rng.choice(list(alive))}",
                "name": rng.choice(("a", "b")),
            }
            yield [encode_framed("ConfigRecord", {**setting, "value": str(rng.randrange(1000))})]
        elif kind < 0.8 and len(alive) > 2:
            number = rng.choice(list(alive))
            del alive[number]
            yield [encode_framed("RemoveTopicRecord", {"topicId": topic_id(number)})]
        elif kind < 0.9:
            yield [
                encode_framed(
                    "ProducerIdsRecord", {"brokerId": 1, "brokerEpoch": 7, "nextProducerId": rng.randrange(1 << 40)}
                )
            ]
        else:
            yield [encode_framed("NoOpRecord", {})]


def partition(topic: int, number: int) -> dict[str, Any]:
    return {
        "partitionId": number, "topicId": topic_id(topic), "replicas": [1, 2], "isr": [1, 2], "removingReplicas": [], "addingReplicas": [],
        "leader": 1, "leaderEpoch": 0, "partitionEpoch": 0, "leaderRecoveryState": 0, "directories": [bytes(16)] * 2,
    }  # fmt: skip


def make(rng: random.Random) -> Cluster:
    """A log in segments, with snapshots of some of its offsets; what a snapshot covers may be gone, as in a real one."""
    batches: list[Batch] = []
    source = records(rng)
    epoch, first = 0, 0
    changes = {0, *rng.sample(range(4, 28), rng.randint(0, 2))}
    for number in range(rng.randint(12, 36)):
        time = TIME + 500 * number
        if number in changes:
            epoch += 1
            voters = [{"voterId": 1}]
            leader = {"version": 0, "leaderId": 1, "voters": voters, "grantingVoters": voters}
            batches.append(control_batch(first, epoch, time, (ControlType.LEADER_CHANGE, leader)))
        else:
            batches.append(value_batch(first, epoch, time, next(source)))
        first = batches[-1].end
    cuts = sorted({0, *rng.sample(range(1, len(batches)), rng.randint(0, 5))})
    segments = {}
    for start, stop in zip(cuts, [*cuts[1:], len(batches)], strict=True):
        segments[f"{batches[start].first:020d}.log"] = batches[start:stop]
    cluster = Cluster(batches, segments)
    for at in rng.sample(range(3, len(batches)), rng.randint(0, 3)):
        add_snapshot(cluster, at)
    if cluster.snapshots and rng.random() < 0.5:
        newest = max(offset for offset, _, _ in cluster.snapshots.values())
        for name in list(segments)[:-1]:
            if segments[name][-1].end <= newest:
                del segments[name]
        start = next(iter(segments.values()))[0].first
        for name, (offset, _, _) in list(cluster.snapshots.items()):
            if offset < start:
                del cluster.snapshots[name]
    return cluster


def add_snapshot(cluster: Cluster, at: int) -> None:
    last = cluster.batches[at - 1]
    state = State()
    replay(state, cluster.batches[:at])
    made = [
        control_batch(
            0,
            last.epoch,
            last.time,
            (ControlType.SNAPSHOT_HEADER, {"version": 0, "lastContainedLogTimestamp": last.time}),
        )
    ]
    held = [encode_framed(name, message, version) for name, version, message in state.image()]
    for start in range(0, len(held), 3):
        made.append(value_batch(made[-1].end, last.epoch, last.time + start, held[start : start + 3]))
    made.append(control_batch(made[-1].end, last.epoch, last.time, (ControlType.SNAPSHOT_FOOTER, {"version": 0})))
    cluster.snapshots[f"{last.end:020d}-{last.epoch:010d}.checkpoint"] = (last.end, last.epoch, made)


def replay(state: State, batches: list[Batch]) -> None:
    for one in batches:
        for number, value in enumerate(one.values):
            state.add(one.first + number, value)


# Damage ---------------------------------------------------------------------------------------------------------------


def flip(rng: random.Random, folder: Path) -> None:
    """A few bits."""
    path = chosen(rng, folder)
    data = bytearray(path.read_bytes())
    for _ in range(rng.randint(1, 3)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def flip_base(rng: random.Random, folder: Path) -> None:
    """A bit of a base offset or an epoch, which no checksum covers."""
    path = chosen(rng, folder)
    data = bytearray(path.read_bytes())
    starts = heads(bytes(data))
    at = rng.choice(starts) + rng.choice((*range(8), 12, 13, 14, 15))
    data[at] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def cut(rng: random.Random, folder: Path) -> None:
    path = chosen(rng, folder)
    data = path.read_bytes()
    path.write_bytes(data[: rng.randrange(len(data))])


def delete(rng: random.Random, folder: Path) -> None:
    chosen(rng, folder).unlink()


def rename(rng: random.Random, folder: Path) -> None:
    """Another offset in the name."""
    path = chosen(rng, folder)
    offset = max(0, int(path.name[:20]) + rng.randint(-9, 9))
    if not (folder / f"{offset:020d}{path.name[20:]}").exists():
        path.rename(folder / f"{offset:020d}{path.name[20:]}")


def swap(rng: random.Random, folder: Path) -> None:
    suffix = rng.choice((".log", ".log", ".checkpoint"))
    names = sorted(folder.glob(f"*{suffix}"))
    if len(names) > 1:
        one, other = rng.sample(names, 2)
        held = one.read_bytes()
        one.write_bytes(other.read_bytes())
        other.write_bytes(held)


def double(rng: random.Random, folder: Path) -> None:
    """A batch is there twice."""
    path = chosen(rng, folder)
    data = path.read_bytes()
    starts = [*heads(data), len(data)]
    at = rng.randrange(len(starts) - 1)
    path.write_bytes(data[: starts[at + 1]] + data[starts[at] :])


def insert(rng: random.Random, folder: Path) -> None:
    path = chosen(rng, folder)
    data = path.read_bytes()
    at = rng.randrange(len(data) + 1)
    path.write_bytes(data[:at] + rng.randbytes(rng.randint(1, 200)) + data[at:])


def remove(rng: random.Random, folder: Path) -> None:
    path = chosen(rng, folder)
    data = path.read_bytes()
    at = rng.randrange(len(data))
    path.write_bytes(data[:at] + data[at + rng.randint(1, 300) :])


DAMAGES: list[Callable[[random.Random, Path], None]] = [
    flip,
    flip,
    flip_base,
    flip_base,
    cut,
    delete,
    rename,
    swap,
    double,
    insert,
    remove,
]


def chosen(rng: random.Random, folder: Path) -> Path:
    return rng.choice([path for path in sorted(folder.iterdir()) if path.stat().st_size > 61])


def heads(data: bytes) -> list[int]:
    """Where batches begin, as far as lengths lead."""
    starts, at = [], 0
    while at + 61 <= len(data):
        starts.append(at)
        at += 12 + max(49, struct.unpack_from(">i", data, at + 8)[0])
    return starts


# Truth ----------------------------------------------------------------------------------------------------------------


@dataclass
class Truth:
    """What is left of a directory: batches at their own offset, those under another, snapshots by what they are of."""

    sound: list[Batch]
    shifted: list[Batch]
    whole: list[tuple[int, list[Batch]]]
    parts: list[tuple[int, list[Batch]]]
    is_doubtful: bool

    @property
    def base(self) -> int:
        return max((offset for offset, _ in self.whole), default=0)

    def states(self) -> Iterator[list[str]]:
        """The states that may come out: with each of the batches whose offset is damaged, or without it."""
        for count in range(len(self.shifted) + 1):
            for some in combinations(self.shifted, count):
                yield self.state([*self.sound, *(one for one in self.shifted if one not in some)])

    def state(self, left: list[Batch]) -> list[str]:
        left = sorted(left, key=lambda one: one.first)
        state = State()
        reached = self.base
        if self.whole:
            replay(state, max(self.whole)[1])
        for offset, batches in sorted(self.parts, key=lambda one: one[0]):
            if offset <= reached:
                continue
            ahead = reached
            for one in left:
                ahead = one.end if one.first <= ahead < one.end else ahead
            if ahead < offset:
                replay(state, [one for one in left if reached <= one.first and one.end <= offset])
                load(state, batches)
                reached = offset
        replay(state, [one for one in left if one.first >= reached])
        return list(map(str, state.image()))


def load(state: State, batches: list[Batch]) -> None:
    """What is left of a snapshot, on top of an older state: a topic that is there keeps its partitions."""
    for one in batches:
        for value in one.values:
            if value[1] != 2 or not any(topic in value for topic in state.topics):
                state.add(0, value)


def find(batch: Batch, data: bytes) -> list[int]:
    """Where a batch is, whatever its base offset and epoch say there."""
    found, at = [], data.find(batch.data[16:])
    while at >= 0:
        if at >= 16 and data[at - 8 : at - 4] == batch.data[8:12]:
            found.append(at - 16)
        at = data.find(batch.data[16:], at + 1)
    return found


def truth(cluster: Cluster, folder: Path) -> Truth:
    logs = [path.read_bytes() for path in sorted(folder.glob("*.log"))]
    sound, shifted = [], []
    for number, one in enumerate(cluster.batches):
        places = [(data, at) for data in logs for at in find(one, data)]
        if any(data[at : at + 8] == one.data[:8] for data, at in places) or any(
            is_between(cluster.batches, number, data, at) for data, at in places
        ):
            sound.append(one)
        elif places:
            shifted.append(one)
    whole, parts = [], []
    doubtful = False
    known = {
        (path.name): (offset, batches)
        for path, (offset, _, batches) in ((Path(n), s) for n, s in cluster.snapshots.items())
    }
    for path in sorted(folder.glob("*.checkpoint")):
        data, named = path.read_bytes(), int(path.name[:20])
        of, batches = max(
            known.values(), key=lambda one: sum(bool(find(each, data)) for each in one[1]), default=(0, [])
        )
        left = [one for one in batches if find(one, data)]
        order = [find(one, data)[0] for one in left]
        if not left:
            continue
        doubtful |= of != named or order != sorted(order)
        if len(left) == len(batches):
            whole.append((of, batches))
            doubtful |= any(
                data[find(one, data)[0] :][:8] != one.data[:8] and not tight(batches, one, data) for one in batches
            )
        elif any(one.values for one in left):
            parts.append((named, left))
    return Truth(sound, shifted, whole, parts, doubtful)


def is_between(batches: list[Batch], number: int, data: bytes, at: int) -> bool:
    """Whether a batch is between its own neighbours, both of which say their offsets."""
    if not 0 < number < len(batches) - 1:
        return False
    before, one, after = batches[number - 1 : number + 2]
    return (
        data[at - len(before.data) : at - len(before.data) + 8] == before.data[:8]
        and at - len(before.data) in find(before, data)
        and (at + len(one.data) in find(after, data) and data[at + len(one.data) :][:8] == after.data[:8])
    )


def tight(batches: list[Batch], one: Batch, data: bytes) -> bool:
    """Whether a batch of a snapshot follows the one before it byte for byte, and another follows it."""
    number = batches.index(one)
    at = find(one, data)[0]
    follows = (number == 0 and at == 0) or (
        number > 0 and at == find(batches[number - 1], data)[0] + len(batches[number - 1].data)
    )
    return (
        follows
        and number + 1 < len(batches)
        and data[find(batches[number + 1], data)[0] :][:8] == batches[number + 1].data[:8]
    )


# The test -------------------------------------------------------------------------------------------------------------


def folded(folder: Path) -> list[str]:
    found = clusters([file for file in rawlog.open(folder).files if takes("kraft.topics", file)])
    return list(map(str, (found[0] if found else MetadataStore((), str(folder))).fold(errors="skip").image()))


def covers(lost: list[tuple[int, int | None]], one: Batch) -> bool:
    return all(
        any(low <= offset and (high is None or offset <= high) for low, high in lost)
        for offset in range(one.first, one.end)
    )


#: Findings that make other parts of a directory useless to a controller: a log before a gap, a snapshot that leads into nothing.
APART = {
    f"kraft.{name}" for name in ("metadata.gap", "checkpoint.missing", "checkpoint.ahead", "checkpoint.incomplete")
}


def is_found(entry: Entry, findings: list[Finding]) -> bool:
    if entry.action is Action.ADDED:
        return bool(findings)  # a snapshot of what is left
    is_part = entry.action in (Action.DROPPED, Action.LOST, Action.MOVED)
    return any(is_at(entry, one) or (is_part and one.code in APART) for one in findings)


def is_at(entry: Entry, finding: Finding) -> bool:
    """Whether a finding is in the bytes of an entry, at its offsets, or on its file as a whole."""
    if finding.path == entry.path:
        start = finding.position or 0
        stop = start + max(finding.size or 1, 1)
        if entry.start is None or (finding.position is None and finding.offset is None):
            return True
        if start < (entry.stop or 0) and stop > entry.start:
            return True
    if finding.offset is None or entry.first_offset is None:
        return False
    return entry.first_offset <= finding.offset <= (entry.stop_offset or finding.offset)


#: Cases that failed once, each with what was wrong.
STORIES = {
    712: "of many batches of a snapshot with another epoch than its name, verify named only the first",
    782: "of the last segment under a higher name, repair lost the offsets before that name: its batches have their place",
    1030: "a snapshot named for an offset inside of a batch was kept, and differed from the log for ever",
    1151: "a snapshot of an older offset counted as one that leads up to the log; repair left it out, verify did not miss it",
}


class TestMetadataLog(RandomRepair):
    @pytest.mark.parametrize("number", STORIES)
    def test_cases_that_failed(self, number: int, scratch: Path) -> None:
        self.check(number, scratch / str(number))

    def damage(self, number: int, folder: Path) -> Damage | None:
        rng = random.Random(number)
        cluster = make(rng)
        source = folder / "source" / NAME
        cluster.write(source)
        for _ in range(rng.randint(1, 4)):
            if any(path.stat().st_size > 61 for path in source.iterdir()):
                rng.choice(DAMAGES)(rng, source)
        if not list(source.iterdir()):
            return None
        return Damage(source, "a metadata log", (cluster, truth(cluster, source)))

    def is_found(self, entry: Entry, repair: Repair) -> bool:
        """In the same bytes, in the same file, or, for offsets and for what their gaps make useless, in the directory."""
        return is_found(entry, serious(repair))

    def judge(self, damage: Damage, repair: Repair) -> None:
        report, (cluster, left) = repair.report, damage.truth
        if not serious(repair):  # what verification finds nothing in is kept byte for byte
            assert report.is_whole, report.lines()
            zeros = {Path(str(one.path)).name for one in report.with_action(Action.DROPPED)}
            kept, copy = (
                {name: data for name, data in contents(folder).items() if name not in zeros}
                for folder in (repair.source, repair.target)
            )
            assert kept == copy
        if not left.is_doubtful:
            assert folded(repair.target) in list(left.states()), report.lines()
            known = [one for one in left.sound if one.first >= left.base]
            end = max((one.end for one in known), default=0)
            present = {one.first for one in (*left.sound, *left.shifted)}
            for one in cluster.batches:
                if left.base <= one.first and one.end <= end and one.first not in present:
                    assert covers(report.lost, one), (one.first, report.lost, report.lines())
                    assert not report.is_whole


def serious(repair: Repair) -> list[Finding]:
    return [one for one in repair.findings if one.severity is not Severity.INFO or "unfinished" in one.code]


def test_the_truth_of_an_undamaged_directory_is_all_of_it(tmp_path: Path) -> None:
    for seed in range(5):
        cluster = make(random.Random(seed))
        folder = tmp_path / str(seed) / NAME
        cluster.write(folder)
        assert rawlog.verify(folder).verdict == "clean"
        left = truth(cluster, folder)
        assert left.state(left.sound) == folded(folder)
        report = rewritten("repair", folder, tmp_path / f"{seed}-copy" / NAME)
        assert report.is_whole, report.lines()
        assert contents(tmp_path / f"{seed}-copy" / NAME) == contents(folder)
