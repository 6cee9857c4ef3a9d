"""The cluster's metadata when several disks have some: what a leader would know that is elected from all of them.

Raft: of two logs the one with the higher last epoch is further, of equal epochs the longer one; an offset with the same epoch in two logs
has the same batch in both, and so has everything before it. Snapshots have only what was committed. So the log that is furthest is used to
its end, what is damaged in it is taken from others, and a log that goes on in an older epoch is left out from there on.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from rawlog.formats.kafka import LOG
from rawlog.formats.kafka.cluster.broker_disks import LARGEST_TEXT, Disks
from rawlog.formats.kafka.cluster.metadata_log import MetadataStore, stores
from rawlog.formats.kafka.cluster.paths import QUORUM_FORMAT, snapshot_id, takes
from rawlog.formats.kafka.cluster.placing import Batch, place_batches
from rawlog.formats.kafka.cluster.state import State
from rawlog.formats.kafka.internal.codec import Message
from rawlog.formats.kafka.log.heads import heads
from rawlog.io.storage import Source
from rawlog.io.walk import walk
from rawlog.model.errors import RawlogError
from rawlog.model.format import File
from rawlog.model.report import SeriousNote
from rawlog.model.text import counted

End = tuple[int, int]
"""How far a log goes: its last epoch, and the offset after its last batch."""
Run = tuple[int, int]
"""Offsets, half-open."""
EMPTY: End = (-1, 0)


@dataclass(slots=True)
class ClusterMetadata:
    """What is known of a dead cluster, and how certain it is.

    `path` is the metadata directory that goes furthest; None if no metadata could be read: then `state` is empty until it is rebuilt from
    the directories of the partitions. `end` is how far it goes, and below the offset `committed` all of it was certainly committed.
    """

    state: State
    path: str | None = None
    end: End = EMPTY
    committed: int = 0
    #: A majority of the voters' logs was there, so the cluster knew nothing more: a topic that is not in it was deleted.
    is_newest: bool = False
    #: It was put together from the directories of partitions: nothing in it says who led or was in sync.
    is_rebuilt: bool = False
    #: Topics of which only directories tell.
    guessed: set[str] = field(default_factory=set)
    #: Offsets of the metadata log that no disk has.
    missing: list[Run] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    #: What cannot be known, in sentences.
    unknown: list[str] = field(default_factory=list)

    @property
    def is_found(self) -> bool:
        """Whether any metadata could be read."""
        return self.path is not None

    @property
    def partitions(self) -> dict[tuple[str, int], Message]:
        """Every partition that the cluster has, with the fields of a PartitionRecord (`replicas`, `isr`, `leader`, `leaderEpoch` …)."""
        return {
            (name, number): one
            for name, key in self.state.topic_ids.items()
            for number, one in self.state.topics[key].partitions.items()
        }

    def verdict(self, topic: str, topic_id: bytes | None) -> str:
        """What the cluster says of a directory: its topic is `known`, was `deleted`, or was `replaced` by one of the same name with
        another id; `unknown` if the metadata may be older than that topic.
        """
        if topic_id is None:
            return "known" if topic in self.state.topic_ids else "deleted" if self.is_newest else "unknown"
        if topic_id in self.state.topics:
            return "known"
        if not self.is_newest and topic_id not in self.state.removed:
            return "unknown"
        return "replaced" if topic in self.state.topic_ids else "deleted"


# One log ------------------------------------------------------------------------------------------------------------------


class Trail:
    """One metadata log: its epochs with their offsets, and its batches where they are asked for."""

    def __init__(self, store: MetadataStore, node: int | None) -> None:
        self.store, self.node = store, node
        columns = [np.empty((3, 0), np.int64)]
        self.is_damaged = False
        for segment in store.segments:
            reached = 0
            for frames in walk(segment, LOG, errors="skip"):
                head = heads(frames)
                self.is_damaged |= frames.base > reached or frames.status.is_damage or not head.all_sound
                head = head if head.all_sound else head.only(head.sound)
                columns.append(np.stack([head["base_offset"], head["last_offset"] + 1, head["leader_epoch"]]))
                reached = frames.reached_in_file
        starts, stops, epochs = np.concatenate(columns, axis=1)
        self.is_damaged |= bool((starts[1:] != stops[:-1]).any() or (np.diff(epochs) < 0).any())
        self.is_damaged |= bool(starts.size and starts[0] != store.start)
        if self.is_damaged:
            starts, stops, epochs = np.array(
                [(one.first, one.end, one.epoch) for one in self.batches], np.int64
            ).reshape(-1, 3).T  # fmt: skip
        self.end: End = (int(epochs[-1]), int(stops[-1])) if starts.size else EMPTY
        changes = np.flatnonzero(np.diff(epochs, prepend=-2) != 0).tolist()
        #: The first offset of each epoch.
        self.epochs = {int(epochs[at]): int(starts[at]) for at in changes}

    @cached_property
    def batches(self) -> list[Batch]:
        """The sound batches, each at the offset where it belongs."""
        return place_batches(self.store.segments).batches

    def end_of(self, epoch: int) -> int:
        """The offset after the last batch of an epoch."""
        return next((start for later, start in self.epochs.items() if later > epoch), self.end[1])

    def agrees_until(self, other: Trail) -> int:
        """The offset up to which this log is the same as another one; what is after it, a follower of the other would truncate."""
        common = max((epoch for epoch in self.epochs if epoch in other.epochs), default=None)
        return 0 if common is None else min(self.end_of(common), other.end_of(common))


# All of them -------------------------------------------------------------------------------------------------------------


def elect(files: Sequence[File], disks: Disks) -> ClusterMetadata:
    """The metadata that a leader elected from these disks would have. Damage is noted and never raises; `path` of the result is None if
    there is no metadata at all.
    """
    notes: list[str] = []
    own: list[File] = []
    for file in files:
        if not takes("kraft.topics", file) or disks.of(file) is None:
            continue
        if file.problem is None:
            own.append(file)
        else:
            notes.append(f"{file.path}: {file.problem}: not used")
    every = stores(own)
    for one in every:
        notes += [SeriousNote(f"{path}: of another metadata log, not used: {why}") for path, why in one.foreign.items()]
    trails = [
        Trail(one.settled, getattr(disks.of(one.segments[0] if one.segments else one.snapshots[0]), "node", None))
        for one in every
        if one.segments or one.snapshots
    ]
    snapshots = [one for trail in trails for one in trail.store.snapshots]
    if not any(trail.end != EMPTY for trail in trails) and not any(
        snapshot_id(one.path) != (0, 0) for one in snapshots
    ):
        return _from_bootstrap(every, notes)
    best = max(trails, key=lambda one: (one.end, not one.is_damaged))
    made = _folded(best, [one for one in trails if one is not best])
    made.notes[:0] = notes
    _judge(made, best, trails, _voters(made.state, files, disks))
    if not made.is_newest:
        _recall_removed(made, trails)
    return made


def _from_bootstrap(every: Iterable[MetadataStore], notes: list[str]) -> ClusterMetadata:
    """The metadata of a cluster that was restored and not started yet, if there is any."""
    for one in every:
        if one.bootstrap is None:
            continue
        state = State()
        try:
            one.load(state, one.bootstrap, "skip")
        except RawlogError as error:
            notes.append(str(error))
            continue
        if state.topic_ids:
            return ClusterMetadata(state, one.folder, is_newest=True, notes=notes)
    return ClusterMetadata(State(), notes=notes)


def _folded(best: Trail, others: Sequence[Trail]) -> ClusterMetadata:
    """The state after the furthest log, from the newest whole snapshot on any disk."""
    store, made = best.store, ClusterMetadata(State(), best.store.folder)
    snapshots = [one for trail in (best, *others) for one in trail.store.snapshots]
    joined = MetadataStore([*store.segments, *snapshots], store.folder)
    whole = next((one for one in joined.newest_first if joined.is_whole(one)), None)
    named = max((snapshot_id(one.path) or (0, 0) for one in snapshots), default=(0, 0))
    made.notes += [
        f"{one.path}: this snapshot of the metadata is damaged: not used"
        for one in snapshots
        if not joined.is_whole(one)
    ]
    start = (snapshot_id(whole.path) or (0, 0))[0] if whole is not None else 0
    if not best.is_damaged and start >= store.start:
        made.state = joined.fold(errors="skip")
    else:
        _replay(made, joined, whole, best, others)
    made.end = (made.state.epoch, made.state.end_offset)
    if (named[1], named[0]) > made.end:
        made.missing.append((made.end[1], named[0]))
    return made


def _replay(
    made: ClusterMetadata, joined: MetadataStore, whole: File | None, best: Trail, others: Sequence[Trail]
) -> None:
    """Fold the union of all logs: that of the best one, and where it is damaged, batches of the others that belong to the same history."""
    state = made.state
    batches = _union(best, others)
    base = whole
    if base is None and (not batches or batches[0].first > 0):
        base = next(iter(joined.newest_first), None)
        if base is not None:
            made.notes.append(
                f"{base.path}: no snapshot of the metadata is whole: what can be read of this one is used"
            )
    if base is not None:
        offset, epoch = snapshot_id(base.path) or (0, 0)
        joined.load(state, base, "skip")
        state.end_offset, state.epoch = offset, epoch
        if best.end[0] < epoch:
            return  # the logs end before the snapshot
    borrowed: dict[str, list[Batch]] = {}
    for one in batches:
        if one.end <= state.end_offset:
            continue
        if one.first > state.end_offset:
            made.missing.append((state.end_offset, one.first))
        for number, (control, kind, value) in enumerate(one.records()):
            if one.first + number < state.end_offset:
                continue
            if control:
                state.add_control(one.first + number, -1 if kind is None else kind, value or b"")
            else:
                state.add(one.first + number, value or b"")
        state.end_offset, state.epoch, state.timestamp = one.end, one.epoch, one.time
        if one.file not in best.store.segments:
            borrowed.setdefault(one.file.path, []).append(one)
    for path, taken in borrowed.items():
        many = counted(len(taken), "batch", "batches")
        made.notes.append(
            f"{best.store.folder} is damaged: {many} from offset {taken[0].first:,} on are taken from {path}"
        )


def _union(best: Trail, others: Sequence[Trail]) -> list[Batch]:
    """The batches of the best log, and between them those of others up to where each agrees with it."""
    chosen = list(best.batches)
    for other in sorted(others, key=lambda one: one.end, reverse=True):
        limit = other.agrees_until(best) if best.epochs else other.end[1]
        starts = [one.first for one in chosen]

        def is_free(one: Batch, starts: Sequence[int] = starts, chosen: Sequence[Batch] = chosen) -> bool:
            at = bisect_right(starts, one.first)
            before = chosen[at - 1] if at else None
            after = chosen[at] if at < len(chosen) else None
            if before is not None and (before.end > one.first or before.epoch > one.epoch):
                return False
            return after is None or (one.end <= after.first and one.epoch <= after.epoch)

        chosen = sorted(
            [*chosen, *(one for one in other.batches if one.end <= limit and is_free(one))], key=lambda one: one.first
        )
    return chosen


def _recall_removed(made: ClusterMetadata, trails: Sequence[Trail]) -> None:
    """Note the topics as deleted that existed before the snapshot that the state begins with, and are not in it.

    The record that removed such a topic is before the snapshot, and perhaps on no disk.
    """
    whole = [one for trail in trails for one in trail.store.snapshots if trail.store.is_whole(one)]
    begun = max(((snapshot_id(one.path) or (0, 0))[0] for one in whole), default=0)
    before = State()
    for store in (trail.store for trail in trails):
        for one in store.snapshots:
            if one in whole and (snapshot_id(one.path) or (0, 0))[0] < begun:
                store.load(before, one, "skip")
        for rows in store.rows(store.segments, "skip"):
            for value, offset, control in zip(rows.values, rows.offsets, rows.controls, strict=True):
                if not control and offset < begun:
                    before.add(offset, value or b"")
    known = {**before.removed, **{key: topic.name for key, topic in before.topics.items()}}
    made.state.removed |= {key: name for key, name in known.items() if key not in made.state.topics}


# How certain it is ---------------------------------------------------------------------------------------------------------


def _voters(state: State, files: Sequence[File], disks: Disks) -> set[int]:
    """The controllers that vote, as the log says, or the files with the state of the election; those also tell of later elections."""
    if state.voters:
        return {int(one["voterId"]) for one in state.voters}
    found = (_quorum_state(file) for file in files if file.format == QUORUM_FORMAT and disks.of(file) is not None)
    return {int(one["voterId"]) for fields in found for one in fields.get("currentVoters") or ()}


def _quorum_state(file: File) -> dict[str, list[dict[str, int]]]:
    try:
        with Source(file.path) as source:
            found = json.loads(source.read(0, LARGEST_TEXT))
    except (RawlogError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _judge(made: ClusterMetadata, best: Trail, trails: Sequence[Trail], voters: set[int]) -> None:
    """Say how much of the metadata was committed, which part was left out, and what the cluster may have known beyond it."""
    reached: dict[int, int] = {}
    sound = {trail.node for trail in trails if not trail.is_damaged}
    for trail in trails:
        agreed = trail.end[1] if trail is best else trail.agrees_until(best)
        if agreed < trail.end[1] and trail.epochs:
            made.notes.append(
                f"{trail.store.folder}: offsets {agreed:,} to {trail.end[1] - 1:,} of the metadata log, epoch {trail.end[0]}, are left "
                f"out: a later leader (epoch {best.end[0]}) did not have them"
            )
        if trail.node is not None:
            newest = (
                max((snapshot_id(one.path) or (0, 0))[0] for one in trail.store.snapshots)
                if trail.store.snapshots
                else 0
            )
            reached[trail.node] = max(reached.get(trail.node, 0), agreed, newest)
    snapshots = [snapshot_id(one.path) or (0, 0) for trail in trails for one in trail.store.snapshots]
    made.committed = min(made.end[1], max((offset for offset, _ in snapshots), default=0))
    if voters:
        majority = len(voters) // 2 + 1
        present = [one for node, one in reached.items() if node in voters]
        made.is_newest = len(voters & sound) >= majority
        if made.is_newest:
            held = sorted(present, reverse=True)[majority - 1]
            made.committed = max(made.committed, min(held, made.end[1]))
        else:
            made.unknown.append(
                f"undamaged logs of {len(voters & sound)} of {counted(len(voters), 'controller')} were found: what the cluster "
                f"changed after offset {made.end[1]:,} of its metadata is not known"
            )
        if made.committed < made.end[1] and made.is_newest:
            made.notes.append(
                f"offsets {made.committed:,} to {made.end[1] - 1:,} of the metadata log are on fewer than {majority} of "
                f"{len(voters)} controllers: perhaps they were not committed. They are used, as a leader elected from these disks would"
            )
    else:
        made.unknown.append("which controllers voted is not known, so the cluster may have known more than these disks")
    for start, stop in made.missing:
        made.unknown.append(
            f"offsets {start:,} to {stop - 1:,} of the metadata log are on no disk: what they changed is not known"
        )
    if made.state.problems:
        first = made.state.problems[0]
        made.notes.append(
            f"{counted(len(made.state.problems), 'metadata record')} could not be applied; the first at offset {first.offset:,}: "
            f"{first.message}"
        )
    if made.state.open_transaction is not None:
        made.notes.append(
            f"a metadata transaction was open from offset {made.state.open_transaction:,} on: its changes are left out, as by a new leader"
        )
