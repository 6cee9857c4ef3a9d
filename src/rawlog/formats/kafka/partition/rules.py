"""What verification looks for in several files at once: in a partition, and in the log directory around partitions.

`rawlog verify --complete` answers whether anything is missing: every offset of a partition is accounted for, from 0 to its end. An offset
is in one class:

- `present`: there is a record that consumers get, or will get if its transaction is committed;
- `control`: a marker of a transaction, or another record of the broker's own;
- `aborted`: a record of a transaction that was aborted;
- `compacted`: compaction took it out;
- `expired`: before the start of the log: deleted by retention or on request;
- `remote`: before the start of the log, in remote storage that is not among the paths;
- `undecided`: nothing tells whether compaction took it out;
- `unexplained`: none of these. It was there, or must have been.

What the outline of the log has as lost is unexplained; `evidence.judge_gaps` decides about the rest. All of it is computed from what the
one pass over the segments leaves, so it is the same for any cut of them. Only a segment in which the log starts is read once more, for
what comes after that start.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from rawlog.formats.kafka.checkpoints import LOG_START, offsets_in, parse
from rawlog.formats.kafka.internal.topics import offsets
from rawlog.formats.kafka.log.heads import heads
from rawlog.formats.kafka.log.layouts import NONE
from rawlog.formats.kafka.partition import Partition
from rawlog.formats.kafka.partition.evidence import judge_gaps
from rawlog.formats.kafka.partition.identity import parent_of
from rawlog.formats.kafka.partition.log_directories import MissingPartition, has_segment, missing_partitions, nodes
from rawlog.formats.kafka.partition.outline import Outline
from rawlog.formats.kafka.partition.state import Tally
from rawlog.formats.kafka.partition.survey import Survey, fold_segment, survey, survey_of
from rawlog.formats.kafka.paths import LARGEST_OFFSET, METADATA_TOPIC, split
from rawlog.formats.kafka.texts import properties, topic_id
from rawlog.io.storage import Source
from rawlog.io.walk import walk
from rawlog.model.errors import RawlogError
from rawlog.model.finding import Account, Few, Mark, Rule, Severity, rule
from rawlog.model.format import File, Place
from rawlog.model.outline import Intervals, Ranges, between, clipped, intersected, total
from rawlog.model.store import Store
from rawlog.model.text import missing_text

Files = Sequence[File]
LARGEST = 64 << 20

# A partition ---------------------------------------------------------------------------------------------------------


@rule("kafka.partition.overlap", Severity.ERROR)
def overlap(files: Files) -> Iterator[Mark]:
    """A segment begins at or before the last offset of the previous one: some offsets are there twice.

    A broker never leaves that. Segments of two replicas, or of before and after a restore, were put together.
    """
    yield from survey(files).get("overlap", ())


@rule("kafka.partition.gap", Severity.WARNING)
def gap(files: Files) -> Iterator[Mark]:
    """Offsets are missing between two segments, and compaction does not explain it: a segment, or the end of one, is gone. Or they are
    missing at the end of the log, although a high watermark, a recovery point, a snapshot of the producers or an index of their segment
    says that they were there. Or they are missing at its beginning, and retention does not explain it.

    Retention deletes the indexes of a segment with it, and leaves no log start and no leader epoch before the first segment. Without the
    mark of a clean stop the last two may only be old, and nothing tells which. Of a topic with remote storage it is a remark.

    Compaction explains a gap if `cleaner-offset-checkpoint` or the topic's settings say that the topic is compacted, or if batches show it.
    Where nothing tells the topic's cleanup policy, and nothing contradicts compaction, it is a remark: "cannot tell compaction from loss".
    Look for the records in a backup or on another replica. Consumers skip the gap without an error.
    """
    yield from survey(files).get("gap", ())


@rule("kafka.partition.displaced", Severity.ERROR)
def displaced(files: Files) -> Iterator[Mark]:
    """A batch whose checksum is right is not where its offsets belong: they exist already, or are outside of the range of its segment, or
    its base offset, which no checksum covers, does not fit between the batches around it.

    `rawlog repair` gives a batch its base offset back where the batches around it leave room for exactly one, puts others where their
    offsets are missing, and drops those whose offsets exist already.
    """
    yield from survey(files).get("displaced", ())


@rule("kafka.partition.truncated", Severity.WARNING)
def truncated(files: Files) -> Iterator[Mark]:
    """A segment ends inside a batch, or in zeros, although another segment follows it: the end of the segment is lost. Or the last one ends
    inside a batch or in other bytes, although `.kafka_cleanshutdown` says that its broker was stopped cleanly: a broker does not start on
    some of these, and appends after others.

    A broker finishes a segment before it begins the next, and preallocates only the one that it appends to. If it has to recover the log,
    it deletes every later segment. `rawlog repair` keeps them.
    """
    yield from survey(files).get("truncated", ())


@rule("kafka.index.mismatch", Severity.ERROR)
def index_mismatch(files: Files) -> Iterator[Mark]:
    """An entry of the offset index does not point at the batch it names.

    After a clean stop a broker trusts the index: records cannot be found, or the end of the log is taken for its beginning.
    Delete the file, or `rebuild`.
    """
    yield from survey(files).get("index", ())


@rule("kafka.timeindex.mismatch", Severity.ERROR)
def timeindex_mismatch(files: Files) -> Iterator[Mark]:
    """An entry of the time index names a time that the batch at its offset does not have.

    Look-ups by time begin in the wrong place, and retention by time keeps or deletes the segment wrongly.
    """
    yield from survey(files).get("timeindex", ())


@rule("kafka.txnindex.mismatch", Severity.ERROR)
def txnindex_mismatch(files: Files) -> Iterator[Mark]:
    """The transaction index and the markers in the log disagree on what was aborted.

    read_committed consumers are given aborted records, or lose committed ones. `rebuild` writes it again from the log.
    """
    yield from survey(files).get("txnindex", ())


@rule("kafka.snapshot.mismatch", Severity.WARNING)
def snapshot_mismatch(files: Files) -> Iterator[Mark]:
    """A snapshot of producer state is older than the log up to its offset.

    A broker that starts from it may take a duplicate for new. Delete the file: the broker replays the log instead.
    """
    yield from survey(files).get("snapshot", ())


@rule("kafka.epochs.mismatch", Severity.WARNING)
def epochs_mismatch(files: Files) -> Iterator[Mark]:
    """A batch's leader epoch differs from the leader epoch checkpoint; or it is higher than the epochs of later
    batches, or negative, although leader epochs never fall.

    Followers use the checkpoint to find where they diverge, and may truncate too much or too little.
    """
    yield from survey(files).get("epochs", ())


@rule("kafka.log.producer-epoch", Severity.WARNING)
def producer_epoch(files: Files) -> Iterator[Mark]:
    """A producer's epoch goes back: a producer that had been fenced off could still write."""
    yield from survey(files).get("epoch", ())


@rule("kafka.log.sequence", Severity.WARNING)
def sequence(files: Files) -> Iterator[Mark]:
    """The sequence numbers of an idempotent producer do not follow one another: batches are missing, doubled or out of order.

    Leaders refuse that, so bytes were lost or copied after they were written. Logs with holes are not looked at: a hole breaks
    the numbers, too, and is found by itself.
    """
    yield from survey(files).get("sequence", ())


@rule("kafka.log.open-transaction", Severity.INFO, former=("kafka.log.hanging-transaction",))
def open_transaction(files: Files) -> Iterator[Mark]:
    """A transaction has no marker. That is normal while it goes on; long after, it holds back every read_committed consumer of
    the partition at its first offset.

    If the producer is gone, abort it with Kafka's own transaction tool.
    """
    yield from survey(files).get("open-transaction", ())


@rule("kafka.partition.zeros", Severity.ERROR)
def zeros(files: Files) -> Iterator[Mark]:
    """Zeros follow the last batch of a log, although `.kafka_cleanshutdown` says that its broker was stopped cleanly. A broker does not
    start on it (record size 0).

    A broker that preallocates segments cuts the zeros off when it stops. `rawlog repair` cuts them; or remove `.kafka_cleanshutdown`: a
    broker then checks its logs and cuts them itself. Without that file the zeros are normal, and only information.
    """
    yield from survey(files).get("zeros", ())


def partition_rules() -> Sequence[Rule[Files]]:
    """The rules over the files of one partition."""
    return (
        overlap,
        gap,
        displaced,
        truncated,
        index_mismatch,
        timeindex_mismatch,
        txnindex_mismatch,
        snapshot_mismatch,
        epochs_mismatch,
        producer_epoch,
        sequence,
        open_transaction,
        zeros,
        unexplained,
        open_at_end,
    )


# A log directory -----------------------------------------------------------------------------------------------------


def _text(file: File) -> bytes:
    with Source(file.path) as source:
        return source.read(0, min(source.size, LARGEST))


def _partitions(files: Files) -> dict[str, list[File]]:
    """The segments of every partition directory that a broker would load, by directory, in order."""
    by_directory: dict[str, list[File]] = defaultdict(list)
    for file in files:
        if (
            file.format == "kafka.log"
            and file.place.state is None
            and file.place.topic is not None
            and file.problem is None
        ):
            by_directory[str(file.place.group)].append(file)
    for segments in by_directory.values():
        segments.sort(key=lambda file: file.place.start_offset or 0)
    return by_directory


def end_offset(segments: Sequence[File], files: Files = ()) -> int:
    """The offset after a partition's last sound batch. Segments that a pass has seen already are not read again."""
    summaries = Store.of(files).summaries
    for segment in reversed(segments):
        seen = summaries.get(segment.path)
        end = _end_of(segment) if seen is None else seen.end_offset
        if end is not None:
            return int(end)
    return (segments[0].place.start_offset or 0) if segments else 0


def _end_of(segment: File) -> int | None:
    from rawlog.formats.kafka import LOG

    end: int | None = None
    for frames in walk(segment, LOG, errors="skip"):
        head = heads(frames)
        if head.sound.any():
            end = max(end or 0, int(head["last_offset"][head.sound].max()) + 1)
    return end


def _checkpoints(files: Files) -> Iterator[tuple[File, str, dict[tuple[str, int], int]]]:
    for file in files:
        if file.format == "kafka.checkpoint" and file.problem is None:
            try:
                yield file, split(file.path)[1], parse(_text(file))
            except RawlogError:
                continue


@rule("kafka.checkpoint.log-start", Severity.ERROR)
def log_start(files: Files) -> Iterator[Mark]:
    """The checkpointed log start is after the end of the log: at its next start a broker deletes every segment.

    Take the partition's line out of `log-start-offset-checkpoint` before starting a broker on this directory.
    """
    yield from _beyond(files, "log-start-offset-checkpoint", "a broker would delete the whole log")


@rule("kafka.checkpoint.beyond", Severity.WARNING, follows="kafka.partition.gap", above=1)
def beyond(files: Files) -> Iterator[Mark]:
    """A recovery point, high watermark or cleaner offset is after the end of the log: records that were there are gone.

    A broker corrects the checkpoint silently, so this may be the only trace of a loss.
    """
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint", "cleaner-offset-checkpoint"):
        yield from _beyond(files, name, "records up to there are missing")


def _beyond(files: Files, wanted: str, what: str) -> Iterator[Mark]:
    partitions = _partitions(files)
    for file, name, checkpoint in _checkpoints(files):
        if name != wanted:
            continue
        folder = split(file.path)[0]
        for (topic, partition), offset in sorted(checkpoint.items()):
            segments = partitions.get(f"{folder}/{topic}-{partition}")
            if not segments:
                continue
            base = segments[-1].place.start_offset or 0
            if offset <= base:
                continue
            end = end_offset(segments, files)
            if offset > end:
                message = f"{topic}-{partition} ends at offset {end}, the checkpoint says {offset}: {what}"
                yield Mark(message, offset=end, expected=f"at most {end}", found=offset, path=file.path)


@rule("kafka.partition.no-segment", Severity.WARNING)
def no_segment(files: Files) -> Iterator[Mark]:
    """A partition has no segment, although its directory has other files of it.

    A broker creates an empty log instead, without a message. Look for the partition in a backup or on another replica.
    """
    for missing in _missing(files):
        if missing.has_directory and missing.directory not in _partitions(files):
            yield Mark(str(missing), offset=missing.first, path=missing.directory)
    for group, place in _without_segment(files).items():
        yield Mark(f"{place.topic}-{place.partition} has no segment: its records are gone", path=group)


def _without_segment(files: Files) -> dict[str, Place]:
    """The directories that have other files of a partition and no segment, where no checkpoint says what is missing."""
    partitions, counted = _partitions(files), {missing.directory for missing in _missing(files)}
    empty: dict[str, Place] = {}
    for file in files:
        place, group = file.place, str(file.place.group)
        if place.topic in (None, METADATA_TOPIC) or place.partition is None or place.state is not None or place.remote:
            continue
        if group not in partitions and group not in counted and group not in empty and file.system == "kafka":
            empty[group] = place
    return {group: place for group, place in empty.items() if not has_segment(group)}


@rule("kafka.partition.missing", Severity.WARNING)
def missing_partition(files: Files) -> Iterator[Mark]:
    """A partition that should be in this log directory is not: a checkpoint in it lists the partition, or the cluster's metadata assigns
    it to this directory.

    A broker creates an empty partition instead, without a message. Look for the directory in a backup or on another replica
    (`rawlog rescue`). It is only information where the cluster is about to add the replica, where the broker had not made it yet when it
    was stopped, and where, without a metadata log, it had no records or more partitions are gone than are here. Nothing is reported of
    directories that were copied without `meta.properties` and metadata log, and of partitions that are assigned to another directory of
    the node.
    """
    for missing in _missing(files):
        if not missing.has_directory and missing.is_expected:
            severity = None if missing.is_lost else Severity.INFO
            offset = None if missing.checkpoint is None else missing.first
            yield Mark(str(missing), offset=offset, path=missing.directory, severity=severity)


def _missing(files: Files) -> list[MissingPartition]:
    return Store.of(files).share(_missing_in)


def _missing_in(store: Store) -> list[MissingPartition]:
    return [missing for node in nodes(store) for missing in missing_partitions(node)]


def absent_offsets(files: Files) -> dict[tuple[str, int], tuple[int, int]]:
    """The offsets of partitions of which no segment is here, start and stop, as far as checkpoints count them. Of several nodes the one
    that counts most decides.
    """
    offsets: dict[tuple[str, int], tuple[int, int]] = {}
    for missing in _missing(files):
        if missing.is_lost and missing.stop > max(missing.first, offsets.get(missing.key, (0, 0))[1]):
            offsets[missing.key] = missing.first, missing.stop
    return offsets


def absent(files: Files) -> list[Account]:
    """The accounts of partitions of which no segment is here: all offsets that a checkpoint counts are unexplained."""
    lost = [
        (missing.key, missing.directory, missing.first, missing.stop) for missing in _missing(files) if missing.is_lost
    ]
    lost += [
        ((str(place.topic), place.partition or 0), group, 0, 0) for group, place in _without_segment(files).items()
    ]
    return [
        Account(
            system="kafka",
            topic=topic,
            partition=partition,
            path=directory,
            start=first,
            stop=stop,
            present=0,
            control=0,
            aborted=0,
            compacted=0,
            expired=first,
            unexplained=stop - first,
            broken_sequences=0,
            open_transactions=0,
        )
        for (topic, partition), directory, first, stop in lost
    ]


@rule("kafka.partition.topic-id", Severity.ERROR)
def topic_ids(files: Files) -> Iterator[Mark]:
    """Partitions of one topic have different topic ids, or two topics share one.

    A broker serves only those whose id is the one in the cluster's metadata, and puts the others aside as strays.
    """
    by_topic: dict[tuple[str, str], dict[bytes, File]] = defaultdict(dict)
    by_id: dict[tuple[str, bytes], dict[str, File]] = defaultdict(dict)
    for file in files:
        if file.format != "kafka.partition" or file.place.state is not None or file.place.topic is None:
            continue
        try:
            uuid = topic_id(_text(file))
        except (ValueError, RawlogError):
            continue
        folder = split(str(file.place.group))[0]
        by_topic[(folder, file.place.topic)].setdefault(uuid, file)
        by_id[(folder, uuid)].setdefault(file.place.topic, file)
    for (_, topic), ids in by_topic.items():
        if len(ids) > 1:
            values = sorted(uuid.hex() for uuid in ids)
            yield Mark(f"topic {topic} has several ids", found=", ".join(values), path=list(ids.values())[-1].path)
    for (_, uuid), topics in by_id.items():
        if len(topics) > 1:
            names = ", ".join(sorted(topics))
            yield Mark(f"topics {names} share an id", found=uuid.hex(), path=list(topics.values())[-1].path)


@rule("kafka.partition.no-topic-id", Severity.WARNING)
def no_topic_id(files: Files) -> Iterator[Mark]:
    """A partition of a KRaft log directory has no readable `partition.metadata`.

    A broker treats it as a stray: it renames the directory and serves an empty partition instead.
    """
    kraft = set()
    for file in files:
        if file.format == "kafka.meta" and file.problem is None:
            try:
                if properties(_text(file)).get("version") == "1":
                    kraft.add(split(file.path)[0])
            except (ValueError, RawlogError):
                continue
    named = {str(file.place.group) for file in files if file.format == "kafka.partition" and file.size}
    for folder, segments in sorted(_partitions(files).items()):
        if split(folder)[0] in kraft and folder not in named and segments[0].place.topic != METADATA_TOPIC:
            yield Mark("no partition.metadata: a broker would put this partition aside", path=folder)


@rule("kafka.directory.duplicate-partition", Severity.ERROR)
def duplicate_partitions(files: Files) -> Iterator[Mark]:
    """Two log directories of one broker have the same partition. The broker refuses to start on them.

    Keep the directory with the higher end offset, and move the other out of the way. Replicas on other brokers are normal. Two
    directories belong to one broker if both `meta.properties` have the same cluster and node id; brokers before 2.4 write no cluster id.
    """
    owner: dict[str, str] = {}
    for file in files:
        if file.format == "kafka.meta" and file.problem is None:
            try:
                meta = properties(_text(file))
            except (ValueError, RawlogError):
                continue
            number = meta.get("node.id", meta.get("broker.id"))
            if number is not None and "cluster.id" in meta:
                owner[split(file.path)[0]] = f"{meta['cluster.id']}/{number}"
    places: dict[tuple[str, str | None, int | None], list[str]] = defaultdict(list)
    for folder, segments in sorted(_partitions(files).items()):
        broker = owner.get(split(folder)[0])
        if broker is not None and segments[0].place.topic != METADATA_TOPIC:
            places[(broker, segments[0].place.topic, segments[0].place.partition)].append(folder)
    for (_, topic, partition), folders in places.items():
        if len(folders) > 1:
            yield Mark(f"{topic}-{partition} is also in {folders[0]}", path=folders[-1])


@rule("kafka.directory.no-identity", Severity.ERROR)
def no_identity(files: Files) -> Iterator[Mark]:
    """A log directory has no `meta.properties`, or that of another node. A broker with KRaft does not start on it.

    Restore the file from a backup, or write it: `version=1`, `cluster.id` as in the other directories of the cluster, `node.id` and
    `directory.id` as the broker's registration in the metadata log has them (`rawlog cluster`). `kafka-storage.sh format
    --ignore-formatted -t CLUSTER-ID` writes one with a new `directory.id`, and keeps what is in the directory. It is only information
    where the directory may be of a cluster with ZooKeeper, whose brokers write the file themselves. The file is of another node where the
    metadata has registered its `directory.id` for a node other than its `node.id`: set the right one.
    """
    registered: dict[tuple[str | None, bytes], set[int]] = defaultdict(set)
    for node in nodes(files):
        for number, ids in (node.assignments.directories if node.assignments is not None else {}).items():
            for directory_id in ids:
                registered[node.directories[0].cluster, directory_id].add(number)
    for node in nodes(files):
        for directory in node.directories:
            if directory.meta is not None:
                owners = registered.get((directory.cluster, directory.id or b""))
                if owners and directory.node is not None and directory.node not in owners:
                    contradiction = f"the cluster's metadata has this directory.id for node {min(owners)}"
                    effect = "a broker does not start, or renames its partitions to -stray"
                    yield Mark(
                        f"meta.properties says node {directory.node}, and {contradiction}: {effect}",
                        path=directory.path,
                    )
                continue
            if directory.is_kraft:
                message = "no meta.properties: a broker does not start; restore it, or format the directory with the id of its cluster"
                yield Mark(message, path=directory.path)
            elif any(
                file.format == "kafka.partition" and split(str(file.place.group))[0] == directory.path for file in files
            ):
                message = "no meta.properties: a broker with KRaft does not start; one with ZooKeeper writes it"
                yield Mark(message, path=directory.path, severity=Severity.INFO)


@rule("kafka.directory.no-metadata", Severity.INFO)
def no_metadata(files: Files) -> Iterator[Mark]:
    """No log directory of a node with KRaft has the metadata log, `__cluster_metadata-0`.

    It is in the directory that `metadata.log.dir` names, else in the first of `log.dirs`. If it is in none of the directories of the
    node, and no other controller has it, a broker knows no topic: it renames all partition directories to `-stray`. So do not start one
    on this directory alone. A warning if several directories of one node are here, and none of them has it.
    """
    for node in nodes(files):
        if not node.is_kraft or node.is_zookeeper or not any(directory.loaded for directory in node.directories):
            continue
        if node.assignments is None and all(directory.meta is not None for directory in node.directories):
            is_there = any(directory.has_metadata for directory in node.directories)
            what = "has no record" if is_there else "is not here"
            message = f"__cluster_metadata-0 {what}: a broker that has it nowhere else renames all partition directories to -stray"
            severity = Severity.WARNING if len(node.directories) > 1 or is_there else Severity.INFO
            yield Mark(message, path=node.directories[0].path, severity=severity)


@rule("kafka.directory.unknown-name", Severity.ERROR)
def unknown_name(files: Files) -> Iterator[Mark]:
    """A log directory has a sub-directory whose name is not that of a partition, `lost+found` for example. A broker does not start on it.

    Move it out of the log directory. Where that is the root of a file system, use a directory below it as the log directory.
    """
    for node in nodes(files):
        for directory in node.directories:
            for name in directory.unknown_folders:
                message = f"{name} is not a valid name of a partition directory: a broker does not start"
                yield Mark(message, path=f"{directory.path}/{name}")


def directory_rules() -> Sequence[Rule[Files]]:
    """The rules over a whole log directory."""
    from rawlog.formats.kafka.partition import tiers

    directory_only = (
        no_metadata,
        no_identity,
        unknown_name,
        log_start,
        beyond,
        missing_partition,
        no_segment,
        topic_ids,
        no_topic_id,
        duplicate_partitions,
    )
    return (*directory_only, *tiers.rules(), committed_out_of_range)


# Is anything missing? ------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class PartitionAccount:
    """The account of a partition, and what is not explained in it."""

    account: Account
    #: Runs of unexplained offsets, first and last, each with what is known of the reason.
    runs: list[tuple[int, int, str]] = field(default_factory=list)
    #: Offsets after which bytes are damaged, and nothing says how many offsets are lost.
    unknown: list[int] = field(default_factory=list)
    #: Open transactions: producer and first offset.
    open: list[tuple[int, int]] = field(default_factory=list)


def account_for(files: Sequence[File]) -> PartitionAccount | None:
    """The account of a partition's offsets, computed once; None if it has no segments, or is a metadata log, which snapshots are a
    part of: KRaft accounts for that.
    """
    return Store.of(files).share(_account_for)


def accounts(files: Sequence[File]) -> list[Account]:
    """The account of a partition; none if it has no segments."""
    result = account_for(files)
    return [] if result is None else [result.account]


def _account_for(store: Store) -> PartitionAccount | None:
    survey = survey_of(store)
    if survey is None or survey.log is None or store[0].place.topic == METADATA_TOPIC:
        return None
    partition = _Partition(store, survey, survey.log)
    start, stop = partition.start(), partition.stop()
    rows = clipped(partition.covered, start, stop)
    missing = between(rows, start, stop)
    tally = partition.tally(start)
    explained, undecided, left = partition.judge(missing)
    present, unexplained = total(rows), total(left) + tally.kept_places
    place, aborted = store[0].place, tally.aborted
    opened = sorted(survey.producers.open_transactions().items())
    remote = sum(gap.last + 1 - gap.first for gap in survey.log.gaps if gap.is_remote and gap.last + 1 == start)
    account = Account(
        system="kafka",
        topic=place.topic,
        partition=place.partition,
        path=store.path,
        start=start,
        stop=stop,
        present=max(0, present - tally.control - aborted - tally.removed - tally.kept_places),
        control=tally.control,
        aborted=aborted,
        compacted=total(explained) + tally.removed,
        expired=start - remote,
        remote=remote or None,
        undecided=total(undecided) or None,
        unexplained=unexplained,
        broken_sequences=sum(few.count for few in survey.marks.get("sequence", {}).values()),
        open_transactions=len(opened),
    )
    runs = [(first, last, partition.reason(first, last)) for first, last in left.tolist()]
    runs += [(first, last, "an empty batch of a repair keeps their place") for first, last in tally.places]
    unknown = [first for first, last in survey.log.lost if last is None and first >= stop]
    return PartitionAccount(account, runs, unknown, opened)


class _Partition:
    """The expected start and end of a log, and the reach of compaction in it."""

    def __init__(self, store: Store, survey: Survey, log: Outline) -> None:
        self.store, self.survey, self.log = store, survey, log
        place = store[0].place
        self.folder = parent_of(store.path)
        self.key = (str(place.topic), int(place.partition or 0))
        self.base = log.extents[0].first if log.extents else 0
        rows = [extent.covered for extent in log.extents]
        strays = [log.extents[at].strays[number] for at, numbers in log.placed.items() for number in numbers]
        self.covered = np.concatenate([*rows, np.array(strays, np.int64).reshape(-1, 2)])
        self.covered = self.covered[np.argsort(self.covered[:, 0], kind="stable")]

    def start(self) -> int:
        """The first offset that should be there: by the checkpoint of log starts, else that of the first segment, or an earlier one that
        retention does not explain.
        """
        stored = self.checkpoint(LOG_START)
        if stored is not None and stored >= self.base:
            return stored
        return min([self.base, *(gap.first for gap in self.log.gaps if gap.is_lost)])

    def stop(self) -> int:
        """The end of the log, or what is known to have been its end."""
        ends = [self.base, *(extent.first for extent in self.log.extents), *(gap.last + 1 for gap in self.log.gaps)]
        ends += [int(self.covered[:, 1].max()) + 1] if len(self.covered) else []
        return min(max(ends), LARGEST_OFFSET)

    def checkpoint(self, name: str) -> int | None:
        """What a checkpoint file of the log directory says of the partition."""
        return offsets_in(self.folder, name).get(self.key)

    def tally(self, start: int) -> Tally:
        """The counts of all segments from an offset on."""
        summed = Tally(start)
        for (file, tally), extent in zip(self.survey.tallies, self.log.extents, strict=True):
            if len(extent.covered) and int(extent.covered[-1][1]) < start:
                continue
            if (file.place.start_offset or 0) < start:
                tally = fold_segment(file, self.store, start).tally
            summed.merge(tally)
        return summed

    def judge(self, missing: Ranges) -> tuple[Ranges, Ranges, Ranges]:
        """Runs of missing offsets that compaction explains, those that are undecided, and those that nothing explains."""
        lost = Intervals.closed((first, last) for first, last in self.log.lost if last is not None)
        at_loss, rest = intersected(missing, lost)
        cleaned = max((extent.cleaned for extent in self.log.extents), default=NONE)
        compacted, undecided = judge_gaps(self.store.files, rest, cleaned, has_damage=self.log.has_damage)
        left = np.concatenate((at_loss, rest[~(compacted | undecided)]))
        return rest[compacted], rest[undecided], left[np.argsort(left[:, 0], kind="stable")]

    def reason(self, first: int, last: int) -> str:
        """What is known of why offsets are missing."""
        for gap in self.log.gaps:
            if gap.trace and gap.first <= first and last <= gap.last:
                return gap.trace
        for low, high in self.log.lost:
            if low <= first and (high is None or last <= high) and not self._is_gap(first):
                return "the bytes there are damaged"
        return "no batch has them"

    def _is_gap(self, first: int) -> bool:
        return any(gap.first <= first <= gap.last for gap in self.log.gaps)


# Rules ---------------------------------------------------------------------------------------------------------------


@rule("kafka.complete.unexplained", Severity.ERROR)
def unexplained(files: Sequence[File]) -> Iterator[Mark]:
    """Offsets between the start and the end of a partition are missing, and neither compaction nor retention explains it: records are
    lost. (With `--complete` only.)

    Compaction explains what is missing before the point that the cleaner has reached, if the topic is compacted: according to
    `cleaner-offset-checkpoint`, the settings of the topic, or the batches themselves. Retention explains what is before the start of
    the log: `log-start-offset-checkpoint`, else the beginning of `leader-epoch-checkpoint` or of the first segment. Look for the records
    on other replicas (`rawlog rescue`), in remote storage (give its path, too), or in a backup.
    """
    result = account_for(files)
    if result is None:
        return
    few = Few()
    for first, last, why in result.runs:
        message = f"{missing_text(first, last, counts=True)}: {why}"
        few.append(Mark(message, offset=first, path=result.account.path))
    yield from few
    for first in result.unknown:
        message = "damaged bytes follow; nothing says how many offsets are missing"
        yield Mark(message, offset=first, path=result.account.path)


@rule("kafka.complete.transaction", Severity.INFO)
def open_at_end(files: Sequence[File]) -> Iterator[Mark]:
    """A transaction is still open at the end of the partition: nothing tells whether it will be committed or aborted.
    (With `--complete` only.)

    That is normal in a copy of a running broker's directory, and nothing is missing. `rawlog transactions` shows its id, and
    what to do about it.
    """
    result = account_for(files)
    for number, first in result.open if result is not None else ():
        message = f"the transaction of producer {number} from offset {first} on is open"
        yield Mark(message, offset=first, path=result.account.path if result is not None else None)


@rule("kafka.complete.committed", Severity.WARNING)
def committed_out_of_range(files: Sequence[File]) -> Iterator[Mark]:
    """A consumer group has committed an offset that is not in the range of its partition. (With `--complete` only.)

    After the end: the group has consumed records that are not there any more. Before the start (only information): the group has not
    consumed records that have expired. In both cases it continues where `auto.offset.reset` says.
    """
    ranges = _ranges(files)
    newest: dict[tuple[str, str, int], tuple[int, int, str]] = {}
    logs = [file for file in files if Partition.takes("kafka.offsets", file) and file.problem is None]
    for batch in offsets(logs, {"errors": "skip"}) if logs else ():
        for row in batch.to_pylist():
            if not row["is_current"] or row["deleted"] or row["committed_offset"] is None:
                continue
            when = row["commit_timestamp"]
            key = (row["group"], row["topic"], row["partition"])
            commit = (0 if when is None else int(when.timestamp() * 1e6), row["committed_offset"], row["path"])
            newest[key] = max(newest.get(key, commit), commit)
    for (group, topic, number), (_, offset, path) in sorted(newest.items()):
        if (topic, number) not in ranges:
            continue
        start, stop = ranges[topic, number]
        what = f"group {group} has committed offset {offset} of {topic}-{number}"
        if offset > stop:
            message = f"{what}, which ends at {stop}"
            yield Mark(message, offset=offset, expected=f"at most {stop}", found=offset, path=path)
        elif offset < start:
            message = f"{what}, which starts at {start}"
            expected = f"at least {start}"
            yield Mark(message, offset=offset, expected=expected, found=offset, path=path, severity=Severity.INFO)


def _ranges(files: Sequence[File]) -> dict[tuple[str, int], tuple[int, int]]:
    """Where each partition starts and ends; of several replicas, the earliest start and the latest end."""
    groups: dict[str, list[File]] = defaultdict(list)
    for file in files:
        place = file.place
        if file.format == "kafka.log" and place.state is None and place.topic is not None and file.problem is None:
            groups[str(place.group)].append(file)
    ranges: dict[tuple[str, int], tuple[int, int]] = {}
    for folder, segments in groups.items():
        segments.sort(key=lambda file: file.place.start_offset or 0)
        key = (str(segments[0].place.topic), int(segments[0].place.partition or 0))
        first = segments[0].place.start_offset or 0
        start = max(first, offsets_in(split(folder)[0], LOG_START).get(key, first))
        stop = end_offset(segments, files)
        before = ranges.get(key, (start, stop))
        ranges[key] = (min(start, before[0]), max(stop, before[1]))
    return ranges
