"""What `restore` does for Kafka: a data directory that a single-node broker starts on.

The job finds the sources and runs the splits; here is what partitions and a cluster are: which topics are restored and under which names,
how one partition is written, and the metadata and committed offsets next to them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rawlog.formats.kafka import LOG
from rawlog.formats.kafka.checkpoints import LOG_START, offsets_in
from rawlog.formats.kafka.cluster import internal_topics
from rawlog.formats.kafka.cluster.broker_disks import read_disk
from rawlog.formats.kafka.cluster.copy_partition import Closing, CopyOptions, copy_directory, partition_report
from rawlog.formats.kafka.cluster.fold import level_text
from rawlog.formats.kafka.cluster.internal_topics import Endings, complete
from rawlog.formats.kafka.cluster.metadata import METADATA_VERSION
from rawlog.formats.kafka.cluster.metadata_log import MetadataStore, Moment, clusters
from rawlog.formats.kafka.cluster.new_cluster import (
    INTERNAL_CONFIGS,
    PRODUCER_BLOCK,
    TOPIC,
    Blueprint,
    NewBroker,
    NewTopic,
    Part,
    is_id,
    new_id,
    node_ids,
    place_replicas,
    replicas_of,
    safe_configs,
    server_properties,
    settings_of_brokers,
    start_notes,
    write_directories,
)
from rawlog.formats.kafka.cluster.state import State
from rawlog.formats.kafka.internal.codec import uuid_bytes, uuid_text
from rawlog.formats.kafka.internal.messages import CONSUMER_OFFSETS, LEVELS, NEWEST_LEVEL, TRANSACTION_STATE
from rawlog.formats.kafka.log.layouts import NONE, ControlType
from rawlog.formats.kafka.log.writer import Batching
from rawlog.formats.kafka.partition.rules import absent_offsets
from rawlog.formats.kafka.partition.segment_outline import epochs_in
from rawlog.formats.kafka.partition.sink import Sink, SinkSettings, is_topic
from rawlog.formats.kafka.partition.writer import PartitionWriter, SegmentLimits, topic_id_in
from rawlog.formats.kafka.paths import METADATA_TOPIC, split, takes
from rawlog.formats.kafka.texts import topic_id
from rawlog.io.output import Folder
from rawlog.io.storage import Source
from rawlog.model.errors import OptionError, RawlogError
from rawlog.model.format import File
from rawlog.model.recovery import (
    Offer,
    RestoredPartition,
    RestoreOptions,
    RestoreSplit,
    TopicFacts,
)
from rawlog.model.report import Action, Report, SeriousNote
from rawlog.model.store import Store
from rawlog.model.text import offset_range, whole_number

if TYPE_CHECKING:
    from rawlog.model.recovery import RowContent

# ----------------------------------------------------------------------------------------------------------------------
# What log directories offer to a restore: their partitions, and what their cluster knew at a time.

LARGEST_TEXT = 1 << 20


@dataclass(frozen=True, slots=True)
class Directory:
    """A partition directory of the source."""

    files: tuple[File, ...]

    @property
    def path(self) -> str:
        return str(self.files[0].place.group)

    @property
    def segments(self) -> list[File]:
        """The log segments that a broker would load."""
        return [file for file in self.files if file.format == LOG.name and file.place.state is None]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files if file.format == LOG.name)


def read_offer(files: Sequence[File], stores: Sequence[Sequence[File]], options: RestoreOptions) -> Offer:
    """The partitions of log directories and the state of their cluster, as of a time. Topics asked for by name are always included.

    OptionError for a partition that was found more than once, or for several clusters.
    """
    offer = Offer({})
    directories: dict[tuple[str, int], list[Directory]] = {}
    #: Partitions whose directories have other files, and no segment.
    empty: dict[str, list[int]] = {}
    for group in stores:
        place, content = group[0].place, Directory(tuple(group))
        if content.segments and place.topic not in (None, METADATA_TOPIC) and place.partition is not None:
            directories.setdefault((str(place.topic), place.partition), []).append(content)
        elif place.topic not in (None, METADATA_TOPIC) and place.partition is not None and place.state is None:
            empty.setdefault(str(place.topic), []).append(place.partition)
    offer.state = _state(files, options, offer)
    offer.partitions = {key: _only(key, candidates, offer) for key, candidates in directories.items()}
    if options.until is None:
        offer.absent = absent_offsets(Store(files))
    if offer.state is None:  # what else says which partitions there were
        for topic, number in sorted(offer.absent):
            empty.setdefault(topic, []).append(number)
        offer.known = {topic: TopicFacts(dict.fromkeys(numbers, 0), {}) for topic, numbers in empty.items()}
    on_disk = {key: topic_id_of(content.files) for key, content in offer.partitions.items()}
    _leave_strays(offer, on_disk, options)
    if offer.state is not None:
        offer.ids |= offer.state.topic_ids
        for name, topic_id in offer.state.topic_ids.items():
            epochs = {
                number: partition["leaderEpoch"]
                for number, partition in offer.state.topics[topic_id].partitions.items()
            }
            offer.known[name] = TopicFacts(epochs, offer.state.configs.get((TOPIC, name), {}))
    return offer


def _only(key: tuple[str, int], directories: Sequence[Directory], offer: Offer) -> Directory:
    """The directory of a partition. If several are not replicas of one another, the cluster's topic id decides; OptionError if it does
    not.
    """
    if len(directories) == 1:
        return directories[0]
    known_id = None if offer.state is None else offer.state.topic_ids.get(key[0])
    fitting = [
        directory for directory in directories if known_id is not None and topic_id_of(directory.files) == known_id
    ]
    if len(fitting) != 1:
        paths = ", ".join(directory.path for directory in directories)
        raise OptionError(
            f"{key[0]}-{key[1]} was found more than once ({paths}); name the directory to use, or give all to `rawlog rescue`"
        )
    for directory in directories:
        if directory is not fitting[0]:
            offer.notes.append(
                f"{directory.path} is left out: its topic was deleted, and created again under the same name"
            )
    return fitting[0]


def _leave_strays(offer: Offer, on_disk: Mapping[tuple[str, int], bytes | None], options: RestoreOptions) -> None:
    """Leave out partitions that the cluster does not know, and partitions of deleted topics."""
    later: set[str] = set()
    for (topic, number), disk_id in on_disk.items():
        if disk_id is not None:
            offer.ids.setdefault(topic, disk_id)
        if offer.state is None or topic in options.topics:
            continue
        known_id = offer.state.topic_ids.get(topic)
        if known_id is None and options.until is not None:
            later.add(topic)
        elif known_id is None or (disk_id is not None and disk_id != known_id):
            why = "the cluster does not know the topic" if known_id is None else "its topic was deleted"
            offer.notes.append(f"{topic}-{number} is left out: {why}; --topic {topic} restores it nevertheless")
        else:
            continue
        del offer.partitions[topic, number]
    if later:
        offer.notes.append(f"{len(later):,} topics were created after that time: {', '.join(sorted(later))}")


def topic_id_of(group: Sequence[File]) -> bytes | None:
    """The id of the topic that a partition directory is of, as its own file says; None if that is missing or damaged."""
    for file in group:
        if file.format == "kafka.partition" and file.problem is None:
            try:
                with Source(file.path) as source:
                    return topic_id(source.read(0, LARGEST_TEXT))
            except (RawlogError, ValueError):
                return None
    return None


def _is_blank(replica: MetadataStore, errors: str) -> bool:
    """Whether there is only what a new cluster starts from, without a topic: the metadata log is elsewhere, or does not exist yet.

    A directory that was restored and not started yet has its topics there.
    """
    return not replica.segments and not replica.snapshots and not replica.fold(errors=errors).topic_ids


def _state(files: Sequence[File], options: RestoreOptions, offer: Offer) -> State | None:
    """What the cluster knew at that time, if its metadata log is among the files."""
    errors = options.errors
    stores: list[MetadataStore] = clusters([file for file in files if takes(None, file)])
    filled_stores = [store for store in stores if not _is_blank(store, errors)]
    if not filled_stores:
        offer.notes.append(
            "no metadata log: the number of partitions comes from the directories, and settings are the defaults"
        )
        return None
    if len(filled_stores) > 1:
        names = ", ".join(str(store.cluster_id or store.folder) for store in filled_stores)
        raise OptionError(f"metadata of several clusters was found ({names}); name the directories of one")
    [store], at = filled_stores, None
    if options.until is not None:
        at = Moment(time=options.until - 1)
    try:
        state = store.fold(at, errors)
    except OptionError:
        offer.notes.append(
            "the metadata log does not reach back to that time: topics and settings are those at its end"
        )
        at = None
        state = store.fold(errors=errors)
    offer.notes += [
        SeriousNote(f"{offset_range(start, stop)} of the metadata log: missing; what was changed there is not known")
        for start, stop in store.settled.lost_for(state, at)
    ]
    return state


# ----------------------------------------------------------------------------------------------------------------------
# Replicas that may lack records: what the cluster's metadata says of the broker whose directory was given.


SHOWN = 20
ADVICE = "records that were committed may be missing; `rawlog rescue` with the disks of all brokers takes them from the others"


def stale_replicas(partitions: Mapping[tuple[str, int], Any], state: State) -> dict[str, str]:
    """Why these directories may lack records, by the name of the partition: their broker was not in sync when the metadata ended."""
    node_of = lru_cache(maxsize=None)(lambda folder: read_disk(folder)[0].node)
    reasons: dict[str, str] = {}
    for (topic, number), content in sorted(partitions.items()):
        key = state.topic_ids.get(topic)
        partition = None if key is None else state.topics[key].partitions.get(number)
        if partition is None:
            continue
        node = node_of(split(content.files[0].place.group or "")[0])
        # The last broker that stops leaves the in-sync replicas too, and stays eligible to lead.
        synced = [*partition["isr"], *(partition["eligibleLeaderReplicas"] or ())] or list(
            partition["lastKnownElr"] or ()
        )
        if node is None or node in synced or not synced:
            continue
        why = f"this replica comes from node {node}, which was not in sync ({_numbers(synced)})"
        if node not in partition["replicas"]:
            why = f"this replica comes from node {node}, which is not assigned to the partition ({_numbers(partition['replicas'])})"
        epochs = epochs_in(content.files)
        if epochs is not None and int(epochs[-1][0]) < partition["leaderEpoch"]:
            why += f"; its log ends in leader epoch {int(epochs[-1][0])}, the cluster was in {partition['leaderEpoch']}"
        reasons[f"{topic}-{number}"] = why
    return reasons


def stale_notes(stale: Mapping[str, str]) -> Iterator[str]:
    """A line for each, but not for thousands."""
    for name, why in list(stale.items())[:SHOWN]:
        yield f"{name}: {why}: {ADVICE}"
    if len(stale) > SHOWN:
        yield f"{len(stale) - SHOWN:,} more partitions whose replica here was not in sync"


def passed_end(name: str, committed: int, end: int) -> str:
    """A sentence on a log that ends before an offset that a group has committed."""
    return f"{name}: a group has committed offset {committed:,}, this log ends at {end:,}: {ADVICE}"


def _numbers(nodes: Sequence[int]) -> str:
    many = "nodes" if len(nodes) > 1 else "node"
    return f"{many} {', '.join(map(str, sorted(nodes)))}"


#: So many partitions of a topic may be missing; a higher number comes from a name that only looks like that of a partition.
MOST_MISSING = 10_000
#: Topics that are never restored: a new cluster creates its own.
NEVER = (METADATA_TOPIC, "__remote_log_metadata")
#: The lowest metadata.version that a cluster can start with.
LEAST_LEVEL = 4
#: The metadata.version from which on access rules may name ranges of addresses.
CIDR_LEVEL = LEVELS.index("4.4-IV1")
#: Records of a cluster that are written again as they are, or that say nothing of the new one, whose nodes are others.
CARRIED = (
    "AccessControlEntryRecord", "UserScramCredentialRecord", "DelegationTokenRecord", "RegisterBrokerRecord", "UnregisterBrokerRecord",
    "FenceBrokerRecord", "UnfenceBrokerRecord", "BrokerRegistrationChangeRecord", "RegisterControllerRecord", "UnregisterControllerRecord",
)  # fmt: skip
COMMIT, ABORT = int(ControlType.COMMIT), int(ControlType.ABORT)
SUMS = (
    "records", "bytes", "records_cut", "transactions_aborted", "transactions_committed", "offsets_committed", "bytes_lost",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PartitionOptions:
    """How a partition is written. With `commits_again`, its committed offsets are committed again at the end, none of them after the end
    of its log in `ends`. With `completes`, the transactions that are open in it are recorded as ended.
    """

    copying: CopyOptions
    commits_again: bool = False
    completes: bool = False
    ends: Mapping[tuple[str, int], int] | None = None
    #: How many more copies of the partition the new cluster has.
    copies: int = 0


class Restorer:
    """Kafka's and KRaft's half of a restore. See `rawlog.model.recovery.Restorer`."""

    written = LOG.name
    records_table, topics_table = "kafka.records", "kraft.topics"
    row_columns: tuple[str, ...] = ("producer_id", "is_transactional", "is_control", "control_type")
    merged: tuple[str, ...] = (LOG_START,)

    def __init__(self, options: RestoreOptions, target: Path) -> None:
        """OptionError for options that are invalid for Kafka."""
        self.options, self.target = check_options(options), target
        self.now = int(time.time() * 1000)
        self.report = Report("restore", target=str(target))
        self.topics: list[NewTopic] = []
        self.nodes: list[NewBroker] = []
        #: How open transactions end; None: what the source says of them is carried along, and the new coordinator ends them.
        self.endings: Endings | None = None
        #: Where the logs of the result end, if some are known to be shorter than they were.
        self.ends: Mapping[tuple[str, int], int] | None = None
        #: A producer id that is in use, beyond those of records.
        self.largest_producer = NONE
        self._offer = Offer({})

    def __getstate__(self) -> dict[str, Any]:
        planned: dict[str, Any] = {"topics": [], "endings": None, "ends": None, "_offer": Offer({}), "report": Report()}
        return {**self.__dict__, **planned}

    # What is restored -------------------------------------------------------------------------------------------------

    def offer(self, files: Sequence[File], stores: Sequence[Sequence[File]]) -> Offer | None:
        """The partitions of log directories and the state of their cluster, at the time that was asked for; None if there are none.

        OptionError for a partition that was found more than once, or for several clusters.
        """
        if not any(file.format == LOG.name and file.place.topic is not None for file in files):
            return None
        offer = read_offer(files, stores, self.options)
        if offer.state is not None and self.options.until is None:
            wanted = {key: content for key, content in offer.partitions.items() if self.wants(key[0], offer)}
            stale = stale_replicas(wanted, offer.state)
            offer.notes += stale_notes(stale)
            self.report.facts |= {"stale": sorted(stale)} if stale else {}
        return offer

    def add_topics(self, offer: Offer, rows: Sequence[Mapping[str, Any]]) -> None:
        """Take over what rows of `kraft.topics` say, if they are of one cluster."""
        if len({row["cluster_id"] for row in rows}) > 1:
            offer.notes.append("the lake has the metadata of several clusters: settings of topics are not restored")
            return
        for row in rows:
            offer.known[row["topic"]] = TopicFacts(
                dict.fromkeys(range(row["partitions"]), 0), dict(row["configs"] or ())
            )
            offer.ids[row["topic"]] = uuid_bytes(row["topic_id"])

    def wants(self, topic: str, offer: Offer) -> bool:
        """Whether a topic is restored; those of the cluster itself are only together with everything else."""
        if topic in NEVER:
            return False
        if topic in INTERNAL_CONFIGS:
            left_out = topic == CONSUMER_OFFSETS and not self.options.offsets
            return self.options.is_everything and _has_batches(offer) and not left_out
        return self.options.wants(topic)

    def plan(self, offer: Offer, wanted: Sequence[str]) -> list[RestoreSplit]:
        """A split for each partition. OptionError for names of topics that are invalid or used twice."""
        self._offer = offer
        self.nodes = [NewBroker(number) for number in node_ids(self.options.brokers, self.options.node, offer.state)]
        self.topics = [self._topic(topic, offer, shift) for shift, topic in enumerate(wanted)]
        names = [topic.name for topic in self.topics]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise OptionError(f"two topics would be named {', '.join(sorted(twice))}")
        splits = [split for topic in self.topics for split in self._splits(topic, offer)]
        return [*splits, *self._offset_splits(offer)]

    def _topic(self, source: str, offer: Offer, shift: int) -> NewTopic:
        """A topic of the new cluster with its partitions, nodes and settings."""
        options = self.options
        name = options.rename.get(source, source)
        if not is_topic(name):
            raise OptionError(
                f"topic {name!r}: Kafka takes no such name; `restore --rename` gives it another, --topic leaves it out"
            )
        facts = offer.known.get(source, TopicFacts({}, {}))
        numbers = {number for topic, number in offer.partitions if topic == source} | set(facts.epochs)
        count = max(numbers, default=-1) + 1
        if count > len(numbers) + MOST_MISSING:
            raise OptionError(f"topic {source}: partition {count - 1:,}, although there are only {len(numbers):,}")
        target_id = topic_id_in(self.target, name) if options.partitions_only else None
        topic_id = uuid_bytes(target_id) if target_id is not None else offer.ids.get(source) or new_id()
        new_topic = NewTopic(name, source, topic_id, count, {}, dict(facts.epochs))
        copies = place_replicas(new_topic, [node.id for node in self.nodes], replicas_of(source, offer.state), shift)
        configs = {**INTERNAL_CONFIGS.get(source, {}), **facts.configs}
        new_topic.configs, notes = safe_configs(name, configs, keep_retention=options.keep_retention, replicas=copies)
        self.report.notes += notes
        return new_topic

    def _splits(self, topic: NewTopic, offer: Offer) -> Iterator[RestoreSplit]:
        carries_state = self.options.is_everything and any(name == TRANSACTION_STATE for name, _ in offer.partitions)
        interval = whole_number(topic.configs.get("index.interval.bytes", ""))
        copying = self._copy_options(topic.id, abort_open=not carries_state or self.endings is not None)
        partition_options = PartitionOptions(
            copying if interval is None else replace(copying, index_interval=interval),
            commits_again=topic.source == CONSUMER_OFFSETS,
            completes=topic.source == TRANSACTION_STATE and self.endings is not None,
            ends=self.ends if topic.source == CONSUMER_OFFSETS else None,
            copies=len(next(iter(topic.replicas.values()), [0])) - 1,
        )
        for number in range(topic.partitions):
            content = offer.partitions.get((topic.source, number))
            if content is not None:
                yield RestoreSplit(f"{topic.name}-{number}", topic.name, number, content, partition_options)
            elif _has_batches(offer):  # rows do not show that a partition without any exists
                name, (first, stop) = f"{topic.name}-{number}", offer.absent.get((topic.source, number), (None, None))
                reason = "not in the source; it will be empty"
                self.report.add(Action.LOST, reason, name, first_offset=first, stop_offset=stop)
                self.report.facts.setdefault("missing", []).append(name)

    def _copy_options(self, topic_id: bytes, *, abort_open: bool) -> CopyOptions:
        options = self.options
        until = None if options.until is None else -(-options.until // 1000)
        return CopyOptions(uuid_text(topic_id), until, abort_open, options.errors, endings=self.endings or Endings())

    def _offset_splits(self, offer: Offer) -> Iterator[RestoreSplit]:
        """Partitions of committed offsets that are only read: what is wanted of them is written to new ones."""
        options = self.options
        if (
            not options.offsets
            or options.partitions_only
            or any(topic.source == CONSUMER_OFFSETS for topic in self.topics)
        ):
            return
        partition_options = PartitionOptions(self._copy_options(new_id(), abort_open=True))
        for (topic, number), content in offer.partitions.items():
            if topic == CONSUMER_OFFSETS:
                yield RestoreSplit(f"{topic}-{number}", topic, number, content, partition_options, is_scratch=True)

    # One partition ----------------------------------------------------------------------------------------------------

    def carry(self, split: RestoreSplit, folder: Folder, advance: Callable[[int], None]) -> Report:
        """Write one partition directory: batch by batch from a directory, or in new batches from rows."""
        partition_options: PartitionOptions = split.how
        if not isinstance(split.content, Directory):
            return write_rows(split, split.content, folder, advance)
        place = folder.folder(split.name).path
        return copy_directory(
            split.content.files, place, partition_options.copying, advance, self.closing(partition_options)
        )

    def closing(self, options: PartitionOptions) -> Closing:
        """A function that appends to a partition what the new cluster needs: committed offsets, ended transactions."""

        def close(writer: PartitionWriter, report: Report) -> None:
            if not options.commits_again and not options.completes:
                return
            writer.flush()
            written = list(files_in(str(writer.folder.path)))
            if options.completes:
                complete(writer, written, self.now)
                return
            all_commits: list[internal_topics.GroupRecord] = []
            reached: dict[str, int] = report.facts.setdefault("reached", {})
            for commit in internal_topics.current(written, skip_pending=True):
                if commit.topic is not None:
                    name = f"{commit.topic}-{commit.record.key['partition']}"
                    reached[name] = max(reached.get(name, 0), (commit.record.value or {})["offset"])
                new_commits = list(internal_topics.recommit([commit], self.now, lambda topic: topic, options.ends))
                all_commits += new_commits
                report.notes += [
                    note
                    for new_commit in new_commits
                    if (note := internal_topics.move_note(commit, new_commit)) is not None
                ]
            internal_topics.append(writer, all_commits, self.now)
            report.count("offsets_committed", sum(commit.topic is not None for commit in all_commits))

        return close

    def marks(self, rows: pa.Table) -> Iterator[tuple[int, int, bool, int]]:
        """The ends of transactions among the rows of a partition: offset, producer, whether it is a commit, time (ms)."""
        markers = rows.filter(pc.fill_null(rows.column("is_control"), False))
        times = markers.column("timestamp").cast(pa.timestamp("us")).cast(pa.int64()).to_pylist()
        named = markers.select(["offset", "producer_id", "control_type"]).to_pylist()
        for row, micros in zip(named, times, strict=True):
            if row["control_type"] in (COMMIT, ABORT):
                is_commit = row["control_type"] == COMMIT
                yield row["offset"], row["producer_id"], is_commit, NONE if micros is None else micros // 1000

    # The whole --------------------------------------------------------------------------------------------------------

    def finish(self, partitions: Sequence[RestoredPartition], folder: Folder) -> None:
        """Write the committed offsets, where logs start, and, unless only partitions are wanted, the cluster's metadata."""
        report = self.report
        restored = [partition for partition in partitions if not partition.split.is_scratch]
        report.parts |= {partition.split.name: partition.report for partition in restored}
        report.counts |= {name: sum(partition.report.counts.get(name, 0) for partition in restored) for name in SUMS}
        self._note_passed_ends(restored)
        parts = [
            Part.of(partition.split.topic, partition.split.partition, str(folder.path), partition.report)
            for partition in restored
        ]
        parts += self._write_offsets(
            [partition for partition in partitions if partition.split.is_scratch], restored, folder
        )
        if self.options.partitions_only:
            self._write_log_starts(folder, restored, offsets_in(str(self.target), LOG_START))
        else:
            write_directories(folder, self._cluster(restored), parts, self.now)
        report.counts = {"topics": len(self.topics), "partitions_restored": len(restored), **report.counts}

    def _note_passed_ends(self, partitions: Sequence[RestoredPartition]) -> None:
        """Note the logs that end before a committed offset: unless topics are created again, they lack records."""
        ends = {partition.split.name: partition.report.facts["end_offset"] for partition in partitions}
        for partition in partitions:
            reached = partition.report.facts.pop("reached", {})
            if self.ends is None:
                passed = ((name, offset) for name, offset in sorted(reached.items()) if offset > ends.get(name, offset))
                self.report.notes += [passed_end(name, offset, ends[name]) for name, offset in passed]

    def _cluster(self, partitions: Sequence[RestoredPartition]) -> Blueprint:
        """The new cluster, with no epoch or producer id below those in the logs."""
        old: State | None = self._offer.state
        by_name = {topic.name: topic for topic in self.topics}
        for partition in partitions:
            epochs, number = by_name[partition.split.topic].epochs, partition.split.partition
            epochs[number] = max(epochs.get(number, 0), partition.report.facts.get("largest_epoch", 0))
        largest = max(
            [
                0 if old is None else (old.next_producer_id or 0) - 1,
                self.largest_producer,
                *(partition.report.facts.get("largest_producer", NONE) for partition in partitions),
            ]
        )
        blueprint = Blueprint(
            self.nodes,
            self.options.cluster_id or uuid_text(new_id()),
            self.topics,
            old,
            next_producer_id=(largest // PRODUCER_BLOCK + 1) * PRODUCER_BLOCK if largest >= 0 else 0,
            whole=self._takes_settings,
        )
        if old is not None and old.kraft_version:
            self.report.notes.append(
                "the quorum of the source is dynamic, that of the result is static: keep controller.quorum.voters in server.properties. "
                "With controller.quorum.bootstrap.servers the broker waits forever"
            )
        if old is not None and (names := settings_of_brokers(old)):
            self.report.notes.append(
                f"settings of brokers are not copied: {', '.join(names)}; add them to server.properties, or set them again"
            )
        if isinstance(self.options.level, int):
            blueprint.level = self.options.level
        elif old is not None:
            blueprint.level = max(old.level, LEAST_LEVEL)
        if old is not None:
            self._report_uncarried(old, blueprint.level)
        release = level_text(METADATA_VERSION, blueprint.level)
        facts: dict[str, Any] = {
            "cluster_id": blueprint.cluster_id,
            "node_id": blueprint.nodes[0].id,
            "metadata_version": blueprint.level,
        }
        if self.report.verb != "restore":
            facts["nodes"] = [node.id for node in blueprint.nodes]
            facts["server_properties"] = server_properties(blueprint, str(self.target))
            self.report.notes += start_notes(facts["nodes"], str(self.target))
        self.report.facts |= {**facts, **({} if release is None else {"release": release})}
        return blueprint

    def _report_uncarried(self, old: State, level: int) -> None:
        """Report settings of newer releases that the new cluster does not get, or gets unchecked."""
        if level > NEWEST_LEVEL:
            self.report.notes.append(
                f"metadata.version {level} is newer than {LEVELS[-1]}, the newest that is known here: records are written as that one has "
                "them. Start a broker of the same release as before, or choose a known one with --metadata-version"
            )
        ranges = sorted({acl["host"] for acl in old.acls.values() if "/" in acl["host"]})
        if ranges and level < CIDR_LEVEL and self._takes_settings:
            self.report.notes.append(
                f"access rules name ranges of addresses ({', '.join(ranges[:3])}), which brokers below {LEVELS[CIDR_LEVEL]} do not match: "
                "write these rules again"
            )
        lost = old.uncarried_tags(CARRIED if self._takes_settings else ())
        if lost is not None:
            self.report.add(Action.LOST, lost)

    @property
    def _takes_settings(self) -> bool:
        """Whether users, access rules and quotas of the old cluster are taken over."""
        return not self.options.topics

    def _write_offsets(
        self, scratch: Sequence[RestoredPartition], partitions: Sequence[RestoredPartition], folder: Folder
    ) -> list[Part]:
        """Write new partitions of `__consumer_offsets` with the commits for restored topics."""
        if not scratch:
            return []
        names = {topic.source: topic.name for topic in self.topics}
        ends = {
            (partition.split.topic, partition.split.partition): partition.report.facts["end_offset"]
            for partition in partitions
        }
        current = internal_topics.current([file for partition in scratch for file in files_in(partition.folder)])
        commits_of_topics = [
            commit
            for commit in internal_topics.recommit(current, self.now, names.get, ends)
            if commit.topic is not None
        ]
        facts = self._offer.known.get(CONSUMER_OFFSETS, TopicFacts({}, {}))
        count = max(len(facts.epochs), *(partition.split.partition + 1 for partition in scratch))
        topic = NewTopic(CONSUMER_OFFSETS, CONSUMER_OFFSETS, new_id(), count, dict(INTERNAL_CONFIGS[CONSUMER_OFFSETS]))
        place_replicas(topic, [node.id for node in self.nodes], replicas_of(CONSUMER_OFFSETS, self._offer.state))
        self.topics.append(topic)
        parts: list[Part] = []
        self.report.count("offsets_committed", len(commits_of_topics))
        for number in range(count):
            partition_folder = folder.folder(f"{CONSUMER_OFFSETS}-{number}")
            writer = PartitionWriter(partition_folder.path, None, topic_id=uuid_text(topic.id))
            try:
                commits = (
                    commit
                    for commit in commits_of_topics
                    if internal_topics.partition_of(commit.group, count) == number
                )
                internal_topics.append(writer, commits, self.now)
                writer.close()
            finally:
                writer.abandon()
            parts.append(Part(CONSUMER_OFFSETS, number, str(folder.path), writer.end_offset))
        return parts

    def _write_log_starts(
        self, folder: Folder, partitions: Sequence[RestoredPartition], old_starts: Mapping[tuple[str, int], int]
    ) -> None:
        """Write the first offsets that consumers get; an old line for a new log would make a broker delete its records."""
        lines = dict(old_starts)
        for partition in partitions:
            key = (partition.split.topic, partition.split.partition)
            lines.pop(key, None)
            if "log_start" in partition.report.facts:
                lines[key] = partition.report.facts["log_start"]
        if lines or old_starts:
            text = "".join(f"{topic} {number} {offset}\n" for (topic, number), offset in sorted(lines.items()))
            folder.write(LOG_START, f"0\n{len(lines)}\n{text}")


def check_options(options: RestoreOptions) -> RestoreOptions:
    """The same with the number of its metadata.version. OptionError for names, ids or releases that are invalid."""
    for old, new in options.rename.items():
        if not is_topic(new) or new in INTERNAL_CONFIGS or new in NEVER:
            raise OptionError(f"rename {old}={new}: not a valid name for a topic")
    if len(set(options.rename.values())) < len(options.rename):
        raise OptionError("rename: two topics under one name")
    if options.cluster_id is not None and not is_id(options.cluster_id):
        raise OptionError(f"cluster id {options.cluster_id!r}: 22 characters of URL-safe base64 expected")
    return replace(options, level=metadata_level(options.level)) if isinstance(options.level, str) else options


def metadata_level(text: str) -> int:
    """A level of metadata.version by its number, by its name, or by a release, which means its last level: 21, 3.9-IV0, 3.9."""
    number = whole_number(text)
    if number is not None and LEAST_LEVEL <= number <= NEWEST_LEVEL:
        return number
    levels = [level for level, name in enumerate(LEVELS) if name and (name == text or name.startswith(f"{text}-"))]
    if not levels or max(levels) < LEAST_LEVEL:
        raise OptionError(
            f"metadata version {text}: a release such as 3.9-IV0 or 4.4 expected; the newest known one is {LEVELS[-1]}"
        )
    return max(levels)


def _has_batches(offer: Offer) -> bool:
    """Whether a source is of a broker or a controller, and not only rows."""
    return offer.state is not None or any(not hasattr(content, "batches") for content in offer.partitions.values())


def files_in(folder: str) -> Iterator[File]:
    """The log segments of a partition directory that was just written."""
    assert LOG.match is not None
    for path in sorted(Path(folder).glob("*.log")):
        place = LOG.match(str(path))
        if place is not None:
            yield File(str(path), path.stat().st_size, None, LOG.name, place)


# Rows of tables ---------------------------------------------------------------------------------------------------------


def write_rows(split: RestoreSplit, content: RowContent, folder: Folder, advance: Callable[[int], None]) -> Report:
    """Write rows of one partition, whatever their topic is called, in batches of our own."""
    copying: CopyOptions = split.how.copying
    settings = SinkSettings(
        Batching(leader_epoch=0),
        SegmentLimits(index_interval_bytes=copying.index_interval),
        split.topic,
        split.partition,
    )

    def keeps(table: pa.Table, offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
        return select_rows(table, offsets, content, copying.until)

    out = Sink(folder, settings)
    partition = out.partition(split.topic, split.partition)
    partition.writer.topic_id = copying.topic_id
    try:
        for batch in content.batches(keeps, advance):
            out.add(batch)
        out.close()
    finally:
        out.abandon()
    report, writer = partition_report(), partition.writer
    report.counts |= {
        "segments": writer.segments,
        "batches": writer.batches,
        "records": partition.rows,
        "bytes": writer.bytes,
    }
    report.facts["end_offset"] = writer.end_offset
    return report


def select_rows(
    table: pa.Table, offsets: NDArray[np.int64], content: RowContent, until: int | None
) -> NDArray[np.bool_]:
    """Which rows are restored: records before the time (ms), without those of transactions that were not committed before it."""
    keep = offsets >= content.floor
    if until is not None:
        times = pc.fill_null(table.column("timestamp").cast(pa.timestamp("us")).cast(pa.int64()), NONE).to_numpy()
        keep &= times < until * 1000
    if "is_control" not in table.column_names:
        return keep
    keep &= ~pc.fill_null(table.column("is_control"), False).to_numpy()
    part = pc.fill_null(table.column("is_transactional"), False).to_numpy()
    producers = pc.fill_null(table.column("producer_id"), NONE).to_numpy()
    for producer in np.unique(producers[part]).tolist():
        ends = [mark for mark in content.marks if mark[1] == producer]
        places = np.array([mark[0] for mark in ends], np.int64)
        good = np.array([mark[2] and (until is None or mark[3] < until) for mark in ends] + [False], np.bool_)
        row_indexes = np.flatnonzero(part & (producers == producer))
        keep[row_indexes] &= good[np.searchsorted(places, offsets[row_indexes])]
    return keep
