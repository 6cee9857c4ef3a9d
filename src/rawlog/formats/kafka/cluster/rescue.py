"""What `rescue` does for Kafka: one data directory from the log directories of the brokers of a dead cluster.

The replicas of each partition are surveyed, the decision on each partition is made from that and from the cluster's metadata, and what was
decided is written by `restore`'s own writer, with the metadata next to it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rawlog.formats.kafka import LOG
from rawlog.formats.kafka.checkpoints import CLEANER, HIGH_WATERMARK, LOG_START, offsets_in
from rawlog.formats.kafka.cluster.broker_disks import (
    Disk,
    Disks,
    find_disks,
    infer_nodes,
)
from rawlog.formats.kafka.cluster.copy_partition import (
    PartitionUnion,
    PlainBatches,
    copy_directory,
    copy_union,
    runs_between,
    runs_of_pieces,
)
from rawlog.formats.kafka.cluster.internal_topics import (
    Endings,
    InternalContents,
    TransactionState,
    largest_producer,
    look,
)
from rawlog.formats.kafka.cluster.metadata_replicas import HASHED, ClusterMetadata, PartitionDirectory, elect, rebuild
from rawlog.formats.kafka.cluster.new_cluster import (
    COPIES,
    INTERNAL_CONFIGS,
    TOPIC,
    duplicate,
    properties_file,
    properties_names,
)
from rawlog.formats.kafka.cluster.restore import NEVER, PartitionOptions, Restorer, topic_id_of
from rawlog.formats.kafka.internal.codec import uuid_text
from rawlog.formats.kafka.internal.messages import CONSUMER_OFFSETS, TRANSACTION_STATE
from rawlog.formats.kafka.log.heads import heads
from rawlog.formats.kafka.log.layouts import NONE
from rawlog.formats.kafka.log.segment import scan
from rawlog.formats.kafka.partition.evidence import first_trace
from rawlog.formats.kafka.partition.identity import is_known_topic
from rawlog.formats.kafka.partition.lineage import Copy, DamagedBytes, LogOutline
from rawlog.formats.kafka.partition.markers import LARGEST_STRETCH
from rawlog.formats.kafka.partition.outline import Outline, Side, outline
from rawlog.formats.kafka.partition.replicas import (
    FUTURE,
    NOT_ASSIGNED,
    NOT_LOADED,
    Assignment,
    Decision,
    decide,
)
from rawlog.formats.kafka.partition.rules import absent_offsets
from rawlog.formats.kafka.partition.segment_outline import HUGE, bytes_of, epochs_in
from rawlog.formats.kafka.paths import directory_place, split
from rawlog.io.output import Folder
from rawlog.io.storage import is_remote, is_view, local_path
from rawlog.model.errors import AccessError, DataError, OptionError, UnknownFormatError
from rawlog.model.format import File
from rawlog.model.outline import Intervals, Run
from rawlog.model.recovery import (
    CopyPlan,
    Offer,
    RescuedUnit,
    RescueOptions,
    RescueSplit,
    RestoredPartition,
    RestoreOptions,
    RestoreSplit,
    Span,
    SurveyResult,
    SurveySplit,
    TopicFacts,
    UnitPlan,
    plan_facts,
)
from rawlog.model.report import Action, Entry, Report
from rawlog.model.store import Store
from rawlog.model.text import counted, missing_topics, offset_range, plain_time

OFFSETS = (HIGH_WATERMARK, LOG_START)
#: A damaged batch is not believed to have more offsets than this.
MOST_CLAIMED = 1 << 20
Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class ReplicaFiles:
    """The files of a replica to look at. `is_loaded`: its broker would load it, so that the checkpoints next to it are of it."""

    group: str
    files: tuple[File, ...]
    is_loaded: bool = True


@dataclass(frozen=True, slots=True)
class InternalReplica:
    """Segments of a copy of an internal topic, to learn what it says of other partitions."""

    group: str
    topic: str
    files: tuple[File, ...]


@dataclass(slots=True)
class Replica:
    """A directory of a partition that was found. `why` says why it is left out, if it is."""

    key: Key
    disk: Disk
    files: Sequence[File]
    state: str | None
    topic_id: bytes | None
    rank: int = 0
    why: str | None = None

    @property
    def group(self) -> str:
        return self.files[0].place.group or ""

    @property
    def name(self) -> str:
        return f"{self.key[0]}-{self.key[1]}"

    @property
    def segments(self) -> list[File]:
        """The log segments, without those that are on their way in or out."""
        segments = [file for file in self.files if file.format == LOG.name and file.place.state == self.state]
        return sorted(segments, key=lambda file: file.place.start_offset or 0)

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)


class Rescuer:
    """Kafka's half of a rescue. See `rawlog.model.recovery.Rescuer`."""

    def __init__(self, options: RescueOptions, target: Path) -> None:
        """OptionError for options that are invalid for Kafka."""
        self.options = options
        self.restorer = Restorer(
            RestoreOptions(
                topics=options.topics,
                errors="skip",
                keep_retention=options.keep_retention,
                brokers=options.brokers,
                node=options.node,
                cluster_id=options.cluster_id,
                level=options.level,
                overwrite=options.overwrite,
            ),
            target,
        )
        self.restorer.report = self.report = Report("rescue", target=str(target), is_dry_run=options.is_plan)
        self.disks = Disks({})
        self.cluster: ClusterMetadata | None = None
        self.replicas: list[Replica] = []
        #: Partitions of topics that other disks have marked as deleted: the directories that say so.
        self.doubtful: dict[Key, list[str]] = {}
        #: Partitions that a cleaner has worked on.
        self.cleaned: set[Key] = set()
        #: The offsets that checkpoints count of partitions missing on a disk, start and stop.
        self.absent: dict[Key, tuple[int, int]] = {}
        #: The directories of partitions without a segment.
        self.empty: dict[Key, str] = {}
        self.decisions: dict[str, Decision] = {}

    def __getstate__(self) -> dict[str, Any]:
        kept = {"report": Report(), "disks": Disks({}), "cluster": None, "replicas": []}
        kept |= {"doubtful": {}, "cleaned": set(), "decisions": {}, "absent": {}, "empty": {}}
        return {**self.__dict__, **kept}

    # What is there ------------------------------------------------------------------------------------------------------

    def plan(self, roots: Sequence[str], files: Sequence[File], stores: Sequence[Store]) -> list[SurveySplit]:
        """The segments of all replicas that are used. OptionError for directories that do not belong together."""
        self.disks = find_disks(roots, files)
        self.cluster = elect(files, self.disks)
        infer_nodes(self.disks, self.cluster.state, partitions_on(self.disks, stores))
        self._check_topics(stores)
        self.replicas = list(self._replicas(stores))
        self._doubt_deleted()
        self.absent = absent_offsets(files)
        self.empty = dict(self._empty_directories(stores))
        if not self.replicas and not self.cluster.partitions:
            raise UnknownFormatError(f"{', '.join(roots)}: no partition is here")
        used = [replica for replica in self.replicas if replica.why is None]
        looks = [
            SurveySplit(
                replica.name, replica.size, InternalReplica(replica.group, replica.key[0], tuple(replica.segments))
            )
            for replica in used
            if replica.key[0] in HASHED
        ]
        return [*looks, *(SurveySplit(replica.name, replica.size, _files_of(replica)) for replica in used)]

    def _check_topics(self, stores: Sequence[Store]) -> None:
        """OptionError for a requested topic that is neither on disk nor in the metadata."""
        assert self.cluster is not None
        named = {directory_place(store[0].place.group or "").topic for store in stores} - {None}
        topics = sorted({str(name) for name in named} | set(self.cluster.state.topic_ids))
        for problem in missing_topics(self.options.topics, topics) if topics else ():
            if isinstance(problem, OptionError):
                raise problem
            self.report.notes.append(problem)

    def _replicas(self, stores: Sequence[Store]) -> Iterator[Replica]:
        assert self.cluster is not None
        for store in stores:
            place = directory_place(store[0].place.group or "")
            disk = self.disks.of(store[0])
            if disk is None or place.topic is None or place.partition is None or place.topic in NEVER:
                continue
            if not self.options.wants(place.topic) and place.topic not in HASHED:
                continue
            replica = Replica((place.topic, place.partition), disk, list(store), place.state, topic_id_of(store))
            if replica.segments:
                replica.rank, replica.why = self._judge(replica)
                yield replica

    def _empty_directories(self, stores: Sequence[Store]) -> Iterator[tuple[Key, str]]:
        """The directories of partitions that have other files, and no segment."""
        filled = {replica.key for replica in self.replicas}
        for store in stores:
            place = store[0].place
            if place.topic is None or place.partition is None or place.state is not None or place.remote:
                continue
            if (place.topic, place.partition) not in filled:
                yield (place.topic, place.partition), place.group or ""

    def _doubt_deleted(self) -> None:
        """Find topics that a disk marks as deleted and the metadata log does not mention."""
        assert self.cluster is not None
        marked: dict[bytes, list[str]] = {}
        for replica in self.replicas:
            if replica.state == "delete" and replica.topic_id is not None and "delete" not in self.options.include:
                marked.setdefault(replica.topic_id, []).append(replica.group)
        for replica in self.replicas:
            paths = marked.get(replica.topic_id or b"", [])
            if (
                not paths
                or replica.state is not None
                or self.cluster.verdict(replica.key[0], replica.topic_id) != "unknown"
            ):
                continue
            if self.options.exclude_deleted:
                replica.why = f"{paths[0]} is marked -delete and has the same topic id"
            else:
                self.doubtful[replica.key] = paths

    def _judge(self, replica: Replica) -> tuple[int, str | None]:
        """How much a replica counts, and why it does not count at all."""
        assert self.cluster is not None
        verdict, include = self.cluster.verdict(replica.key[0], replica.topic_id), self.options.include
        if replica.state in ("stray", "delete"):
            if replica.state not in include:
                return NOT_LOADED, f"marked -{replica.state}; --include {replica.state} uses it"
            if verdict == "replaced":
                return NOT_LOADED, "of an older topic of the same name"
            return NOT_LOADED, None
        if verdict == "replaced":
            return 0, "of an older topic of the same name, which was deleted"
        if verdict == "deleted" and "delete" not in include:
            return 0, "its topic was deleted; --include delete uses it"
        if replica.state == "future":
            return FUTURE, None
        assignment = self._assignment(replica.key)
        if assignment is not None and replica.disk.node is not None and replica.disk.node not in assignment.replicas:
            return NOT_ASSIGNED, None
        return 0, None

    def _record(self, key: Key) -> Mapping[str, Any] | None:
        """The record of a partition in the metadata."""
        assert self.cluster is not None
        topic_id = self.cluster.state.topic_ids.get(key[0])
        return None if topic_id is None else self.cluster.state.topics[topic_id].partitions.get(key[1])

    def _assignment(self, key: Key) -> Assignment | None:
        """What the cluster knew of a partition."""
        assert self.cluster is not None
        record = None if self.cluster.is_rebuilt else self._record(key)
        if record is None or key[0] in self.cluster.guessed:
            return None
        synced = record["isr"] or record.get("eligibleLeaderReplicas") or record.get("lastKnownElr") or ()
        return Assignment(record["leader"], record["leaderEpoch"], tuple(synced), tuple(record["replicas"]))

    def survey(self, split: SurveySplit, advance: Callable[[int], None]) -> LogOutline | InternalContents:
        """Read a replica."""
        if isinstance(split.content, InternalReplica):
            return look(split.content.topic, split.content.files)
        return outline_replica(split.content, advance)

    # What is decided ----------------------------------------------------------------------------------------------------

    def decide(self, results: Sequence[SurveyResult]) -> list[RescueSplit]:
        """Decide on every partition, and plan the cluster around them."""
        assert self.cluster is not None
        looks = {
            result.split.content.group: result.found
            for result in results
            if isinstance(result.split.content, InternalReplica)
        }
        results = [result for result in results if not isinstance(result.split.content, InternalReplica)]
        refuse_changed(file for result in results for file in result.split.content.files if file.format == LOG.name)
        surveyed: dict[str, LogOutline] = {result.split.content.group: result.found for result in results}
        self._rebuild(surveyed, looks)
        self.cleaned = {key for disk in self.disks for key in offsets_in(disk.path, CLEANER)}
        copies = self._copies(surveyed)
        keys = sorted(
            {replica.key for replica in self.replicas} | set(filter(self._is_wanted, self.cluster.partitions))
        )
        offer = self._offer()
        left_out: dict[Key, list[CopyPlan]] = {}
        for replica in self.replicas:
            if replica.why is not None:
                left_out.setdefault(replica.key, []).append(_left_out_plan(replica))
        for key in keys:
            name = f"{key[0]}-{key[1]}"
            decision = self.decisions[name] = self._decide(key, copies.get(key, []), left_out.get(key, []))
            if decision.plan.action == "rescue":
                offer.partitions[key] = self._content(decision, copies[key])
        self._report_plans()
        self._end_transactions(looks, copies)
        wanted = [topic for topic in offer.topics if self.restorer.wants(topic, offer)]
        return [self._split(restore_split) for restore_split in self.restorer.plan(offer, wanted)]

    def adjacent_files(self) -> dict[str, str | None]:
        """The settings that each broker starts with."""
        names = properties_names([node.id for node in self.restorer.nodes])
        settings: Mapping[str, Sequence[str]] = self.report.facts.get("server_properties", {})
        return {name: properties_file(settings[node]) if node in settings else None for node, name in names.items()}

    def _cleanup_policy(self, topic: str) -> str:
        """The setting of a topic, empty if it is not known."""
        assert self.cluster is not None
        configs = self.cluster.state.configs.get((TOPIC, topic), {})
        return configs.get("cleanup.policy", INTERNAL_CONFIGS.get(topic, {}).get("cleanup.policy", ""))

    def _is_wanted(self, key: Key) -> bool:
        return key[0] not in NEVER and self.options.wants(key[0])

    def _decide(self, key: Key, copies: Sequence[Copy], left_out: Sequence[CopyPlan]) -> Decision:
        assert self.cluster is not None
        policy = self._cleanup_policy(key[0])
        is_compacted: bool | None = "compact" in policy
        if not policy:
            is_compacted = key in self.cleaned or any(copy.log.is_compacted for copy in copies) or None
        if not copies and self._record(key) is None:
            plan = UnitPlan(f"{key[0]}-{key[1]}", "leave", 0, 0, left_out[0].use, tuple(left_out))
            return Decision(plan)
        assignment, name = self._assignment(key), f"{key[0]}-{key[1]}"
        nodes = self.disks.nodes
        known = self.absent.get(key, (0, None))
        return decide(name, copies, assignment, is_compacted=is_compacted, left_out=left_out, nodes=nodes, known=known)

    def _rebuild(self, surveyed: Mapping[str, LogOutline], looks: Mapping[str, InternalContents]) -> None:
        """Add to the metadata what only directories tell, and leave out directories of topics that were created again."""
        assert self.cluster is not None
        used = [replica for replica in self.replicas if replica.why is None]
        directories = []
        for replica in used:
            runs = surveyed.get(replica.group, LogOutline()).runs
            times = [*(run.until for run in runs), *(int((file.modified or 0) * 1000) for file in replica.segments)]
            look = looks.get(replica.group, InternalContents())
            directories.append(
                PartitionDirectory(
                    *replica.key,
                    replica.topic_id,
                    replica.group,
                    replica.disk.node,
                    max((run.lineage for run in runs if run.lineage > 0), default=0),
                    max(times, default=NONE),
                    look.names,
                )
            )
        rebuild(self.cluster, directories, self.disks, self.disks.cluster_id)
        for replica in used:
            if self.cluster.verdict(replica.key[0], replica.topic_id) == "replaced":
                replica.why = "of another topic of the same name, with older records"

    def _end_transactions(self, looks: Mapping[str, InternalContents], copies: Mapping[Key, Sequence[Copy]]) -> None:
        """Decide how open transactions end, by the states in those parts of the coordinators' logs that are used."""
        assert self.cluster is not None
        used: list[TransactionState] = []
        for key, partition_copies in copies.items():
            if key[0] != TRANSACTION_STATE:
                continue
            paths = {copy.number: copy.path for copy in partition_copies}
            for piece in self.decisions[f"{key[0]}-{key[1]}"].pieces:
                states = looks.get(paths[piece.copy], InternalContents()).states
                used += [state for state in states if piece.start <= state.offset < piece.stop]
        self.restorer.endings = Endings.of(used)
        self.restorer.largest_producer = largest_producer(used)
        plans = {key: self.decisions[f"{key[0]}-{key[1]}"].plan for key in copies}
        self.restorer.ends = {
            **{key: 0 for key in self.cluster.partitions if self._is_wanted(key)},
            **{key: plan.end for key, plan in plans.items()},
        }

    def _copies(self, surveyed: Mapping[str, LogOutline]) -> dict[Key, list[Copy]]:
        """The usable replicas of each partition, with their outlines."""
        assert self.cluster is not None
        offsets = {(disk.path, name): offsets_in(disk.path, name) for disk in self.disks for name in OFFSETS}
        copies_by_key: dict[Key, list[Copy]] = {}
        used = [replica for replica in self.replicas if replica.why is None]
        ends: dict[Key, dict[str, int]] = {}
        for replica in used:
            log = surveyed.get(replica.group, LogOutline())
            ends.setdefault(replica.key, {})[replica.group] = log.end if log.tail is None else log.tail[1]
        for replica in used:
            other_ends = (end for group, end in ends[replica.key].items() if group != replica.group)
            log = surveyed.get(replica.group, LogOutline()).settle(other_ends)
            table = epochs_in(tuple(replace(file, place=replace(file.place, state=None)) for file in replica.files))
            # The checkpoints are of the directory that the broker loads.
            checkpoints = (
                {}
                if replica.state is not None
                else {name: offsets[replica.disk.path, name].get(replica.key) for name in OFFSETS}
            )
            copies = copies_by_key.setdefault(replica.key, [])
            copies.append(
                Copy(
                    len(copies),
                    replica.disk.name,
                    replica.group,
                    log,
                    replica.disk.node,
                    replica.state or "",
                    replica.rank,
                    () if table is None else tuple((epoch, offset) for epoch, offset in table.tolist()),
                    checkpoints.get(LOG_START),
                    checkpoints.get(HIGH_WATERMARK),
                    replica.size,
                    first_trace(replica.files) if replica.state is None else None,
                )
            )
        return copies_by_key

    def _offer(self) -> Offer:
        """What `restore` is given: the topics of the cluster, their ids and settings."""
        assert self.cluster is not None
        state = self.cluster.state
        offer = Offer({}, state=state if self.cluster.is_found or self.cluster.is_rebuilt else None, absent=self.absent)
        for replica in self.replicas:
            if replica.why is None and replica.topic_id is not None:
                offer.ids.setdefault(replica.key[0], replica.topic_id)
        offer.ids |= state.topic_ids
        for name, topic_id in state.topic_ids.items():
            epochs = {
                number: partition["leaderEpoch"] for number, partition in state.topics[topic_id].partitions.items()
            }
            if self._is_wanted((name, 0)) or name == CONSUMER_OFFSETS:
                offer.known[name] = TopicFacts(epochs, state.configs.get((TOPIC, name), {}))
        return offer

    def _content(self, decision: Decision, copies: Sequence[Copy]) -> PartitionUnion:
        by_number = {copy.number: copy for copy in copies}
        aside = tuple(
            (
                f"disk-{self._disk_number(by_number[number])}",
                tuple(runs_between(by_number[number], span.start, span.stop or 0)),
            )
            for number, span in decision.plan.divergent
        )
        if len(copies) == 1 and not copies[0].state and not aside and copies[0].log.is_readable:
            [files] = [replica.files for replica in self.replicas if replica.group == copies[0].path]
            return PartitionUnion((), decision.start, decision.floor, files=tuple(files))
        runs = runs_of_pieces(by_number, decision.pieces)
        if not decision.plan.lost:
            return PartitionUnion(runs, decision.start, decision.floor, aside)
        lost = Intervals((span.start, HUGE if span.stop is None else span.stop) for span in decision.plan.lost)
        agreeing = [copy for copy in copies if copy.number not in dict(decision.plan.divergent)]
        damage = tuple(
            damaged
            for copy in agreeing
            for damaged in copy.damage
            if lost.intersection([(damaged.first, HUGE if damaged.end is None else damaged.end)])
            and damaged.stop - damaged.start <= LARGEST_STRETCH
        )
        paths = {copy.path for copy in agreeing if not copy.state}
        evidence = tuple(tuple(replica.files) for replica in self.replicas if replica.group in paths)
        ends = tuple((start, None if stop == HUGE else stop - 1) for start, stop in lost)
        return PartitionUnion(runs, decision.start, decision.floor, aside, (), ends, damage, evidence)

    def _disk_number(self, copy: Copy) -> int:
        return 1 + list(self.disks.by_path).index(split(copy.path)[0])

    def _split(self, restore_split: RestoreSplit) -> RescueSplit:
        size = restore_split.content.size + sum(
            part.stop - part.start for _, parts in restore_split.content.aside for part in parts
        )
        return RescueSplit(restore_split.name, size, restore_split)

    # The report ---------------------------------------------------------------------------------------------------------

    def _report_plans(self) -> None:
        """What is known, decided, lost and not known, for people and machines."""
        report, cluster = self.report, self.cluster
        assert cluster is not None
        report.notes += self.disks.notes
        report.notes += [*cluster.notes, *cluster.unknown]
        plans = [decision.plan for decision in self.decisions.values()]
        report.facts["disks"] = [
            {"number": number, "path": disk.path, "node": disk.node} for number, disk in enumerate(self.disks, 1)
        ]
        report.facts["plan"] = plan_facts(plans)
        report.facts["unknown"] = list(cluster.unknown)
        for plan in plans:
            if plan.action == "leave":
                report.not_loaded += [copy.path for copy in plan.copies]
            elif plan.action == "rescue":
                report.parts[plan.name] = part_report(plan)
                self._report_doubt(plan, report.parts[plan.name])
        lost = [*self._report_missing(), *(span for plan in plans for span in plan.lost)]
        report.counts["offsets_lost"] = sum(span.stop - span.start for span in lost if span.stop is not None)

    def _report_missing(self) -> Iterator[Span]:
        """Report partitions that neither a replica nor the metadata shows: only an empty directory, or a checkpoint. The lost offsets."""
        missing = {**dict.fromkeys(self.absent), **self.empty}
        for key in sorted(filter(self._is_wanted, missing)):
            name = f"{key[0]}-{key[1]}"
            if name in self.decisions:
                continue
            what = "a checkpoint lists it" if missing[key] is None else "its directory has no segment"
            start, stop = self.absent.get(key, (0, None))
            reason = f"{name}: {what}, and no replica is here"
            self.report.add(Action.LOST, reason, missing[key], first_offset=start, stop_offset=stop)
            yield Span(start, stop, reason)

    def _report_doubt(self, plan: UnitPlan, report: Report) -> None:
        """Report that a partition is kept although its topic was perhaps deleted."""
        topic, _, number = plan.name.rpartition("-")
        paths = self.doubtful.get((topic, int(number)))
        if paths is not None:
            rest = f" and {len(paths) - 1:,} more" if len(paths) > 1 else ""
            reason = (
                f"kept, but {paths[0]}{rest} with the same topic id is marked -delete: the topic was deleted while a disk was away, or its "
                "replicas were moved to other disks; no metadata log tells. --exclude-deleted leaves it out"
            )
            report.add(Action.UNDECIDED, reason, first_offset=plan.start, stop_offset=plan.end)

    # One partition, and the whole -----------------------------------------------------------------------------------------

    def carry(self, split: RescueSplit, folder: Folder, aside: Folder, advance: Callable[[int], None]) -> Report:
        """Write the union of a partition, and the divergent ends of its replicas next to it."""
        restore_split: RestoreSplit = split.content
        options: PartitionOptions = restore_split.how
        for label, runs in restore_split.content.aside:
            copying = replace(options.copying, abort_open=False)
            parts = PartitionUnion(runs, runs[0].first if runs else 0)
            copy_union(parts, aside.folder(f"{label}/{restore_split.name}").path, copying, advance)
        place = folder.folder(restore_split.name).path
        closing = self.restorer.closing(options)
        if restore_split.content.files:
            report = copy_directory(restore_split.content.files, place, options.copying, advance, closing)
        else:
            report = copy_union(restore_split.content, place, options.copying, advance, closing)
        if not restore_split.is_scratch:
            duplicate(folder, restore_split.name, options.copies)
        return report

    def finish(self, units: Sequence[RescuedUnit], folder: Folder) -> None:
        """Put the partitions into one directory, with the cluster's metadata next to them."""
        decided = dict(self.report.parts)
        partitions = [
            RestoredPartition(unit.split.content, f"{unit.folder}/{unit.split.name}", unit.report) for unit in units
        ]
        for partition in partitions:
            if not partition.split.is_scratch:
                folder.take(partition.folder, partition.split.name)
            for copy in range(1, partition.split.how.copies + 1):
                inner = f"{COPIES}/{copy}/{partition.split.name}"
                if not partition.split.is_scratch:
                    folder.take(f"{os.path.dirname(partition.folder)}/{inner}", inner)
        self.restorer.finish(partitions, folder)
        folder.remove(COPIES)
        self._note_lost_coordinators()
        for name, planned in decided.items():
            report = self.report.parts.get(name)
            if report is None:
                continue
            lost = [(entry.first_offset or 0, entry.stop_offset) for entry in planned.with_action(Action.LOST)]
            rest = [entry for entry in report.entries if not _is_named(entry, lost)]
            put_back = Intervals(
                (entry.first_offset or 0, entry.stop_offset or 0) for entry in rest if entry.action is Action.ADDED
            )
            self.report.counts["offsets_lost"] -= sum(stop - start for start, stop in put_back)
            report.entries[:] = [*(entry for each in planned.entries for entry in _without(each, put_back)), *rest]
            report.notes[:0] = planned.notes

    def _note_lost_coordinators(self) -> None:
        """Where the log of a coordinator is not whole, a transaction that it had decided to commit may have been aborted."""
        aborted = self.report.counts.get("transactions_aborted", 0)
        plans = [decision.plan for name, decision in self.decisions.items() if name.startswith(f"{TRANSACTION_STATE}-")]
        if aborted and not (plans and all(plan.is_whole for plan in plans)):
            text = f"whether {counted(aborted, 'open transaction')} had been decided: {TRANSACTION_STATE} is not whole; aborted"
            self.report.notes.append(text)
            self.report.facts["unknown"] = [*self.report.facts.get("unknown", ()), text]


def partitions_on(disks: Disks, stores: Sequence[Store]) -> dict[str, list[tuple[bytes | None, str, int]]]:
    """The partitions on each disk whose node is unknown, by the path of the disk."""
    partitions: dict[str, list[tuple[bytes | None, str, int]]] = {}
    for store in stores:
        place, disk = directory_place(store[0].place.group or ""), disks.of(store[0])
        is_loaded = place.topic is not None and place.partition is not None and place.state is None
        if disk is not None and disk.node is None and is_loaded:
            partitions.setdefault(disk.path, []).append((topic_id_of(store), place.topic or "", place.partition or 0))
    return partitions


def _files_of(replica: Replica) -> ReplicaFiles:
    """The files of a replica as those of a directory that a broker would load; the checkpoints next to another one do not count."""
    is_loaded = replica.state is None
    files = [file for file in replica.files if file.place.state == replica.state]
    if not is_loaded:
        files = [replace(file, place=replace(file.place, state=None, group=None)) for file in files]
    return ReplicaFiles(replica.group, tuple(files), is_loaded)


def outline_replica(replica: ReplicaFiles, advance: Callable[[int], None]) -> LogOutline:
    """The outline of a replica. A segment that the disk cannot read any more is damaged as a whole."""
    plain, unread = _read_plain(replica.files, advance)
    log = outline([file for file in replica.files if file.path not in unread], plain.extents)
    place = replica.files[0].place
    folder = split(replica.group)[0]
    key = (place.topic or "", place.partition or 0)
    knows_policy = replica.is_loaded and (key in offsets_in(folder, CLEANER) or is_known_topic(folder, key[0]))
    sizes = {file.path: file.size for file in replica.files}
    damage = [*_damage_of(log), *(DamagedBytes(path, 0, sizes[path], *span) for path, span in unread.items())]
    gaps = [(first, last + 1) for first, last in log.undecided]
    if (
        not knows_policy
    ):  # what the cluster's metadata says of the topic may still explain them; damage does not need it
        between = [(gap.first, gap.last + 1) for gap in log.gaps if gap.side is Side.BETWEEN and gap.is_lost]
        gaps += [
            (a, b) for a, b in between if not any(damaged.first < b and (damaged.end or b) > a for damaged in damage)
        ]
    missing = Intervals.closed((first, last) for first, last in log.lost if last is not None).subtract(gaps)
    missing = missing.union((start, stop) for start, stop in unread.values() if stop is not None)
    start = log.pieces[0].start if log.pieces else min((extent.first for extent in log.extents), default=0)
    is_open = any(last is None for _, last in log.lost) or any(stop is None for _, stop in unread.values())
    claimed = _claimed_end(log) if is_open and not unread else 0
    return LogOutline(
        tuple(log.runs()),
        tuple(damage),
        start,
        max((gap.last + 1 for gap in log.gaps if gap.side is Side.END), default=0),
        missing,
        Intervals(gaps),
        tuple(log.undecided),
        any(extent.cleaned != NONE for extent in log.extents),
        is_open and not claimed,
        claimed,
        not unread,
        _tail_of(log, plain),
    )


def _tail_of(log: Outline, plain: PlainBatches) -> tuple[int, int, int] | None:
    """The last batch of a log without damage at its end, if offsets are missing before it."""
    extent = log.extents[-1] if log.extents else None
    if extent is None or extent.file.path not in plain.extents or len(extent.covered) < 2:
        return None
    position, first, end = plain.last_batch
    before, last = int(extent.covered[-2][1]) + 1, extent.covered[-1]
    is_alone = (int(last[0]), int(last[1]) + 1) == (first, end) and log.end == end
    return (position, before, first) if is_alone else None


def _read_plain(
    files: Sequence[File], advance: Callable[[int], None]
) -> tuple[PlainBatches, dict[str, tuple[int, int | None]]]:
    """Read the segments of a replica; the offsets of those that cannot be read."""
    segments = sorted(
        (file for file in files if file.format == LOG.name), key=lambda file: file.place.start_offset or 0
    )
    plain, unread = PlainBatches(segments), dict[str, tuple[int, int | None]]()
    for number, file in enumerate(segments):
        following = segments[number + 1].place.start_offset if number + 1 < len(segments) else None
        try:
            for frames, _ in plain.batches(file, following):
                advance(int(frames.sizes.sum()))
        except DataError:
            continue  # it is read as a damaged one
        except AccessError:
            unread[file.path] = (file.place.start_offset or 0, following)
    return plain, unread


def _claimed_end(log: Outline) -> int:
    """Where the damaged batches at the end of a log end by their own headers, if those follow the log and one another; else 0."""
    extent, end = log.extents[-1], log.end
    hole = extent.sound.holes[-1] if extent.sound is not None and extent.sound.holes else None
    if hole is None or hole.stop < extent.file.size:
        return 0
    frames = scan(bytes_of(extent.file)[hole.start : hole.stop], 0)
    head = heads(frames, check_crc=False)
    firsts, stops = head["base_offset"], head["last_offset"] + 1
    follows = (firsts == np.concatenate(([end], stops[:-1]))) & (stops > firsts) & (stops - firsts <= MOST_CLAIMED)
    follows &= (head["record_count"] >= 0) & (head["record_count"] <= stops - firsts)
    is_whole = len(frames) > 0 and frames.reached == hole.stop - hole.start
    return int(stops[-1]) if is_whole and bool(follows.all()) else 0


def _damage_of(log: Outline) -> Iterator[DamagedBytes]:
    """The damaged bytes of each segment, with the offsets between the runs around them."""
    runs: dict[str, list[Run]] = {}
    for run in log.runs():
        runs.setdefault(run.file.path, []).append(run)
    for extent in log.extents:
        path = extent.file.path
        around = sorted(runs.get(path, ()), key=lambda run: run.start)
        for hole in extent.sound.holes if extent.sound is not None else ():
            if extent.is_crash_tail(hole):
                continue
            first = max((run.end for run in around if run.stop <= hole.start), default=extent.first)
            end = min((run.first for run in around if run.start >= hole.stop), default=extent.stop)
            yield DamagedBytes(path, hole.start, hole.stop, first, None if end == HUGE else end)
    for part in log.aside:
        yield DamagedBytes(part.file.path, part.start, part.stop, part.first, part.end)


def refuse_changed(files: Iterable[File]) -> None:
    """AccessError for a file that changed since the search: somebody writes to it."""
    for file in files:
        if is_remote(file.path) or is_view(file.path) or file.problem is not None:
            continue
        try:
            now = os.stat(local_path(file.path))
        except OSError as error:
            raise AccessError(f"{file.path}: {error.strerror or error}: it was there a moment ago") from None
        if now.st_size != file.size or (file.modified is not None and now.st_mtime != file.modified):
            raise AccessError(f"{file.path}: it is being written: stop the broker, or rescue a copy of the directory")


def part_report(plan: UnitPlan) -> Report:
    """What is decided on a partition, as entries of a report."""
    report = Report()
    for span in plan.lost:
        report.add(
            Action.LOST, _with_times(span, "after", "and before"), first_offset=span.start, stop_offset=span.stop
        )
    for number, span in plan.divergent:
        reason = f"kept next to the result: {_with_times(span)}"
        where = plan.copies[number].path
        report.add(Action.MOVED, reason, where, first_offset=span.start, stop_offset=span.stop)
    for span in plan.undecided:
        if all(copy.end >= (span.stop or 0) for copy in plan.copies if not copy.state):
            # That nothing tells more is no contradiction: every replica that is here has them.
            report.notes.append(f"{offset_range(span.start, span.stop or 0)}: kept: {_with_times(span)}")
            continue
        reason = f"kept: {_with_times(span)}"
        report.add(Action.UNDECIDED, reason, first_offset=span.start, stop_offset=span.stop)
    report.notes += plan.unknown
    return report


def _is_named(entry: Entry, lost: Sequence[tuple[int, int | None]]) -> bool:
    """Whether an entry is the loss of offsets that others name already."""
    first, stop = entry.first_offset, entry.stop_offset
    if entry.action is not Action.LOST or first is None:
        return False
    return any(start <= first and (end is None or (stop is not None and stop <= end)) for start, end in lost)


def _without(entry: Entry, put_back: Intervals) -> Iterator[Entry]:
    """What is left of a loss without the markers that were put back."""
    if entry.action is not Action.LOST or entry.first_offset is None:
        yield entry
        return
    stop = HUGE if entry.stop_offset is None else entry.stop_offset
    for first, end in Intervals([(entry.first_offset, stop)]).subtract(put_back):
        yield replace(entry, first_offset=first, stop_offset=None if end == HUGE else end)


def _with_times(span: Span, first: str = "from", last: str = "to") -> str:
    """The reason with the times."""
    times = [f"{first} {plain_time(span.since * 1000)}"] if span.since is not None else []
    times += [f"{last if times else 'before'} {plain_time(span.until * 1000)}"] if span.until is not None else []
    return f"{span.reason} ({' '.join(times)})" if times else span.reason


def _left_out_plan(replica: Replica) -> CopyPlan:
    """A directory that is not used, as the plan lists it: what is in it is known only by the names of its files."""
    bases = [segment.place.start_offset or 0 for segment in replica.segments]
    id_text = "" if replica.topic_id is None else f" (topic id {uuid_text(replica.topic_id)})"
    use = f"left out: {replica.why}{id_text}"
    return CopyPlan(replica.disk.name, replica.group, bases[0], bases[-1], replica.size, replica.state or "", use=use)
