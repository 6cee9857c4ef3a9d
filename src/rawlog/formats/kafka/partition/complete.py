"""Is anything missing? Every offset of a partition is accounted for, from 0 to its end: `rawlog verify --complete`.

An offset is in one class:

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

from rawlog.formats.kafka.checkpoints import LOG_START, offsets_in
from rawlog.formats.kafka.internal.topics import offsets
from rawlog.formats.kafka.log.layouts import NONE
from rawlog.formats.kafka.partition import Partition
from rawlog.formats.kafka.partition.evidence import judge_gaps
from rawlog.formats.kafka.partition.identity import parent_of
from rawlog.formats.kafka.partition.outline import Outline
from rawlog.formats.kafka.partition.state import Tally
from rawlog.formats.kafka.partition.survey import Survey, fold_segment, survey_of
from rawlog.formats.kafka.paths import (
    LARGEST_OFFSET,
    METADATA_TOPIC,
    split,
)
from rawlog.model.finding import (
    Account,
    Few,
    Mark,
    Rule,
    Severity,
    rule,
)
from rawlog.model.format import File
from rawlog.model.outline import (
    Intervals,
    Ranges,
    between,
    clipped,
    intersected,
    total,
)
from rawlog.model.store import Store


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
        message = f"offsets {first} to {last} are missing, {last - first + 1:,} in all: {why}"
        few.append(Mark(message, offset=first, path=result.account.path))
    yield from few
    for first in result.unknown:
        message = "damaged bytes follow; nothing says how many offsets are missing"
        yield Mark(message, offset=first, path=result.account.path)


@rule("kafka.complete.transaction", Severity.INFO)
def open_transaction(files: Sequence[File]) -> Iterator[Mark]:
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
    from rawlog.formats.kafka.partition.rules import end_offset

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


def rules() -> Sequence[Rule[Sequence[File]]]:
    """The rules over one partition."""
    return (unexplained, open_transaction)
