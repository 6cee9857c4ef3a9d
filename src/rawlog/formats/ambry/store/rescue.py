"""The policy of `rescue`: one store for each partition, from all its replicas (`union.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rawlog.core.errors import OptionError, RawlogError
from rawlog.core.format import File
from rawlog.core.report import Action, Report
from rawlog.core.rescue import (
    CopyPlan,
    RescueAsked,
    RescuedUnit,
    RescueSplit,
    Span,
    Surveyed,
    SurveySplit,
    UnitPlan,
    plan_facts,
)
from rawlog.core.store import Store
from rawlog.core.text import counted
from rawlog.formats.ambry import keys
from rawlog.formats.ambry.index import read_index
from rawlog.formats.ambry.kernels.messages import find_message
from rawlog.formats.ambry.layouts import NONE
from rawlog.formats.ambry.reader import Messages, scan
from rawlog.formats.ambry.store.evidence import elect_partition, most_named
from rawlog.formats.ambry.store.rewrite import carry_out, file_name, number_option, probability_option
from rawlog.formats.ambry.store.store import BlobStore, blob_stores
from rawlog.formats.ambry.store.union import Replica, Union
from rawlog.io.output import Folder
from rawlog.io.storage import Places, Source, refuse_locked
from rawlog.kernels import byte_view

OPTIONS = ("max_entries", "probability", "capacity")
HEAD = 64 << 10
"""So many bytes of a log segment are searched for a blob id that says whose partition it is."""
MOST_SPANS = 10_000


@dataclass(frozen=True, slots=True)
class ReplicaFiles:
    """A replica: the directory that was named, its own, and its files."""

    disk: str
    folder: str
    files: tuple[File, ...]


@dataclass(frozen=True, slots=True)
class Partition:
    """The replicas of one partition, and options."""

    number: int
    replicas: tuple[ReplicaFiles, ...]
    options: tuple[tuple[str, str], ...] = ()


class Rescue:
    """Ambry's half of `rescue`."""

    def __init__(self, asked: RescueAsked, target: Path) -> None:
        asked.check_plain("ambry", OPTIONS)
        probability_option(asked.options)
        for name in ("max_entries", "capacity"):
            number_option(asked.options, name, None)
        self.asked = asked
        self.report = Report(verb="rescue", target=str(target))

    # Which replicas there are

    def plan(self, roots: Sequence[str], files: Sequence[File], stores: Sequence[Store]) -> list[SurveySplit]:
        """A split for each partition: its replicas are compared with one another."""
        found: dict[int, list[ReplicaFiles]] = {}
        places = Places(self.report.notes)
        for store in blob_stores([file for file in files if file.place.state != "copying"]):
            if not store.logs and not store.lost_segments():
                continue
            refuse_locked(store.folder, ".lock", "server")
            if not places.is_new(store.folder):
                continue
            number = partition_of(store)
            if number is None:
                self.report.notes.append(
                    f"{store.folder}: left out: neither its name nor a blob id tells its partition"
                )
                continue
            disk = max((root for root in roots if store.folder.startswith(root.rstrip("/"))), key=len, default=roots[0])
            found.setdefault(number, []).append(ReplicaFiles(disk, store.folder, store.files))
        if not found:
            raise OptionError(f"{', '.join(roots)}: no Ambry store is here")
        used = [one.disk for replicas in found.values() for one in replicas]
        empty = [root for root in dict.fromkeys(roots) if root not in used]
        self.report.notes += [f"{root}: nothing of it is used" for root in empty]
        options = tuple(sorted(self.asked.options.items()))
        made = [Partition(number, tuple(replicas), options) for number, replicas in sorted(found.items())]
        return [SurveySplit(str(one.number), _size(one), one) for one in made]

    def survey(self, split: SurveySplit, advance: Callable[[int], None]) -> Any:
        """What a partition will be; the replicas in order of preference."""
        replicas, union = unite(split.content)
        advance(split.size)
        return _ordered(split.content, replicas), _unit_plan(split.content, replicas, union)

    # What is decided

    def decide(self, found: Sequence[Surveyed]) -> list[RescueSplit]:
        """One store for each partition."""
        plans = [one.found[1] for one in found]
        self.report.facts["plan"] = plan_facts(plans)
        if self.asked.is_plan:
            for plan in plans:
                for span in plan.lost:
                    self.report.add(Action.LOST, f"partition {plan.name}: {span.reason}")
                for text in plan.unknown:
                    self.report.add(Action.UNDECIDED, f"partition {plan.name}: {text}")
        return [RescueSplit(one.split.unit, one.split.size, one.found[0]) for one in found]

    # What is written

    def adjacent_files(self) -> Mapping[str, str | None]:
        """No file next to the target is needed."""
        return {}

    def carry(self, split: RescueSplit, folder: Folder, aside: Folder, advance: Callable[[int], None]) -> Report:
        """Write one partition."""
        replicas, union = unite(split.content)
        report = carry_out(union.plan, folder.folder(split.name), union.report)
        for one in replicas:
            report.notes.append(f"{counted(len(one.messages.merged), 'sound message')} in {one.store.folder}")
        for number, one in enumerate(replicas):
            for segment in sorted({segment for segment, _ in one.aside}):
                file = one.store.logs[segment]
                aside.folder(f"{split.name}/copy-{number}").copy(file.path, file_name(file))
        advance(split.size)
        return report

    def finish(self, done: Sequence[RescuedUnit], folder: Folder) -> None:
        """The partitions next to one another, each in the directory that its number names."""
        for unit in done:
            self.report.parts[unit.split.name] = unit.report
            folder.take(Path(unit.folder) / unit.split.name, unit.split.name)


def unite(partition: Partition) -> tuple[list[Replica], Union]:
    """Diagnose the replicas of a partition and decide what it becomes. The replica with the most sound messages comes first."""
    options = dict(partition.options)
    replicas = [Replica(BlobStore(one.folder, one.files), options) for one in partition.replicas]
    replicas.sort(key=lambda one: (-len(one.messages.merged), len(one.damages)))
    return replicas, Union(replicas, options).decide()


def _ordered(partition: Partition, replicas: Sequence[Replica]) -> Partition:
    order = {one.store.folder: number for number, one in enumerate(replicas)}
    ordered = tuple(sorted(partition.replicas, key=lambda one: order[one.folder]))
    return Partition(partition.number, ordered, partition.options)


def _size(partition: Partition) -> int:
    return sum(file.size for one in partition.replicas for file in one.files)


def _unit_plan(partition: Partition, replicas: Sequence[Replica], union: Union) -> UnitPlan:
    disks = {one.folder: one.disk for one in partition.replicas}
    copies = []
    for one in replicas:
        starts = np.cumsum([0, *(file.size for file in one.store.logs)]).tolist()
        damage = [
            Span(starts[number] + damage.start, starts[number] + damage.stop, damage.reason)
            for number, damage in one.damages[:MOST_SPANS]
        ]
        use = f"{counted(len(one.messages.merged), 'sound message')}, {len(one.losses):,} known to be lost"
        folder = one.store.folder
        copies.append(CopyPlan(disks[folder], folder, 0, starts[-1], starts[-1], damage=tuple(damage), use=use))
    lost = tuple(Span(loss.start, loss.stop, f"{loss.reason} ({loss.path})") for loss in union.lost[:MOST_SPANS])
    size = int(union.plan.catalog.size.sum())
    reason = f"union of {counted(len(replicas), 'replica')}, {counted(len(union.plan.catalog), 'message')}"
    return UnitPlan(
        str(partition.number),
        "rescue" if len(union.plan.catalog) else "lost",
        0,
        size,
        reason,
        tuple(copies),
        lost=lost,
        unknown=tuple(union.undecided[:MOST_SPANS]),
    )


# Whose replica a store is ------------------------------------------------------------------------------------------------------


def partition_of(store: BlobStore) -> int | None:
    """The partition that the directory of a store and the first blob ids of its index and log files name."""
    directory = next((file.place.partition for file in store.files if file.place.partition is not None), None)
    return elect_partition(directory, _named(store))


def _named(store: BlobStore) -> Iterator[int | None]:
    """What each file names."""
    orphans = [file for files in store.lost_segments().values() for file in files]
    for file in [*store.index_files, *orphans][:8]:
        try:
            index = read_index(file.path)
        except RawlogError:
            continue
        if index.crc_ok and len(index.entries):
            yield keys.parse(index.entries.key(0), 0).partition
    for file in store.logs[:8]:
        try:
            with Source(file.path) as source:
                data = byte_view(source.read(0, HEAD))
        except RawlogError:
            continue
        at = int(find_message(data, 0, data.size))
        messages = Messages(scan(data[at:], 0)) if at != NONE else None
        if messages is not None:
            rows = [row for row in range(min(8, len(messages))) if messages.sound[row]]
            yield most_named(np.array([keys.parse(messages.key(row), 0).partition for row in rows], np.int64))


__all__ = ["Rescue", "partition_of", "unite"]
