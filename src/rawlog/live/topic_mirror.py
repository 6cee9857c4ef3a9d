"""`rawlog mirror`: topics of one cluster to topics of another, or of the same one, without a file in between.

What is fetched is passed on as in a replay of native directories: idempotent, acknowledged, aborted transactions left out. With `exact`
every record gets the offset that it has in the source; a partition where that is impossible is left from there on, and named.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from rawlog.formats.kafka.log.heads import Heads
from rawlog.formats.kafka.log.layouts import MAGIC_V2, Attributes
from rawlog.formats.kafka.log.segment import only
from rawlog.live.client import BrokerError
from rawlog.live.cluster import (
    Cancelled,
    Cluster,
    TopicMetadata,
    TopicPartition,
    ids_of,
    interrupted_report,
)
from rawlog.live.fetch import Aborts, FetchedBatches, record_at
from rawlog.live.librdkafka import connect, reader, writer
from rawlog.live.options import Bounds, RecordOptions, find_bounds
from rawlog.live.produce import Merger, SentBatch
from rawlog.live.sending import Histogram, Targets, check_topic_map
from rawlog.live.settings import Settings
from rawlog.model.errors import EncodeError, OptionError, RawlogError
from rawlog.model.frames import Frames
from rawlog.model.job import Progress
from rawlog.model.report import Action, Report
from rawlog.model.text import counted, size_text

COMMIT_SECONDS, PROGRESS_SECONDS = 5.0, 0.2


@dataclass(frozen=True, slots=True)
class MirrorOptions:
    """What to mirror: the topics and bounds of a recording; the topics that get other names."""

    source: RecordOptions
    topic_map: Mapping[str, str] = field(default_factory=dict)
    exact: bool = False
    create_topics: bool = False


def mirror(
    settings: Settings,
    target: Settings,
    options: MirrorOptions,
    *,
    is_stopped: Callable[[], bool] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Report:
    """Copy topics until what was asked for is there, or until `is_stopped` says so. Returns a Report."""
    try:
        with connect(settings, is_stopped) as source, connect(target, is_stopped) as other:
            return _mirror(source, other, options, is_stopped, progress)
    except Cancelled:
        return interrupted_report("mirror", settings.named, target.named)


def _mirror(
    source: Cluster,
    other: Cluster,
    options: MirrorOptions,
    is_stopped: Callable[[], bool] | None,
    progress: Callable[[Progress], None] | None,
) -> Report:
    topics = source.topics(options.source.topics)
    if not topics:
        raise OptionError(f"no topic matches {', '.join(options.source.topics)}")
    check_topic_map(options.topic_map, topics)
    other.retry(lambda: other.metadata([]))
    if source.id == other.id:
        same = [name for name in topics if options.topic_map.get(name, name) == name]
        if same:
            raise OptionError(f"topic {same[0]}: source and target are the same; give it another name with --topic-map")
    return _Mirror(source, other, topics, options, is_stopped or (lambda: False), progress).run()


class _Mirror:
    def __init__(
        self,
        source: Cluster,
        other: Cluster,
        topics: Mapping[str, TopicMetadata],
        options: MirrorOptions,
        is_stopped: Callable[[], bool],
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self.source, self.other, self.topics, self.options = source, other, topics, options
        self.is_stopped, self._progress = is_stopped, progress
        self.targets = Targets(other, create=options.create_topics)
        #: The partitions that are not mirrored, or not to their end, and why.
        self.refused: dict[TopicPartition, RawlogError] = {}
        self.lanes = self._lanes()
        self.bounds = self._bounds()
        self.fetcher = reader(source, self.bounds.starts, ids_of(topics), stops=self.bounds.stops, isolation=1)
        self.producer = writer(other, self.targets.ids, end_of=self.targets.end, on_acknowledged=self._on_acknowledged)
        self.aborts, self.latencies = Aborts(), Histogram()
        self.mergers: dict[TopicPartition, Merger] = {}
        self.expected = dict(self.bounds.starts)
        self.read = self.bytes = self.left_out = 0
        self.begun = self._shown = self._committed_at = time.monotonic()
        self._committed: dict[TopicPartition, int] = {}

    def _lanes(self) -> dict[TopicPartition, TopicPartition]:
        """Where each partition goes. OptionError for a topic that has too few partitions, or does not exist and is not to be created.

        A topic is created when the first records for it were read and can be sent: one that nothing can be copied to does not appear.
        """
        lanes: dict[TopicPartition, TopicPartition] = {}
        for name, topic in self.topics.items():
            target = self.options.topic_map.get(name, name)
            lanes |= {
                TopicPartition(name, number): TopicPartition(target, number) for number in sorted(topic.partitions)
            }
        if len(set(lanes.values())) < len(lanes) and (self.options.exact or self.options.source.group is not None):
            option = "--exact" if self.options.exact else "--group"
            raise OptionError(f"{option} needs a different target for each topic: two topics have the same target")
        for target in dict.fromkeys(lane.topic for lane in lanes.values()):
            if not self.options.create_topics or self.targets.exists(target):
                self.targets.need(target, max(lane.partition for lane in lanes.values() if lane.topic == target))
        return lanes

    def _create(self, target: str) -> None:
        """Create the target of a topic, if it is not there, with as many partitions."""
        if target not in self.targets.topics:
            self.targets.need(target, max(lane.partition for lane in self.lanes.values() if lane.topic == target))

    def _bounds(self) -> Bounds:
        """Where each partition begins and ends. The reason of the first one, if none of them can be mirrored."""
        resumed: dict[TopicPartition, int] = {}
        if self.options.exact:  # the target says how far it is
            resumed = {partition: self.targets.end(lane) for partition, lane in self.lanes.items()}
        bounds = find_bounds(self.source, self.topics, self.options.source, resumed)
        self.refused |= bounds.refused
        if self.options.exact:
            for partition, (wanted, first) in bounds.late.items():
                self.refused[partition] = OptionError(
                    f"partition {partition} begins at offset {first:,}, its target would continue at {wanted:,}: offsets cannot be kept; "
                    f"`rawlog record` and `rawlog restore` can"
                )
            for partition in bounds.starts.keys() - self.refused.keys():
                try:
                    self._check_continued(partition, resumed[partition])
                except OptionError as error:
                    self.refused[partition] = error
        if bounds.starts and bounds.starts.keys() <= self.refused.keys():
            raise self.refused[min(bounds.starts)]
        for partition in self.refused:
            del bounds.starts[partition]
            bounds.stops.pop(partition, None)
        return bounds

    def _check_continued(self, partition: TopicPartition, end: int) -> None:
        """OptionError if the last record of the target is another one than the source has there: it is no copy of it."""
        lane = self.lanes[partition]
        target_record = record_at(self.other, lane, self.targets.ids, end - 1) if end else None
        source_record = (
            None if target_record is None else record_at(self.source, partition, ids_of(self.topics), end - 1)
        )
        if target_record is None or source_record is None:  # deleted, or compacted
            return
        names = ["key", "value", "headers"]
        if source_record["timestampType"] == target_record["timestampType"]:
            names.append("timestamp")
        if any(source_record[name] != target_record[name] for name in names):
            raise OptionError(
                f"partition {lane} is not empty, and not a copy of {partition}: their records at offset {end - 1:,} differ; "
                f"offsets can be kept in an empty topic"
            )

    def run(self) -> Report:
        error: Exception | None = None
        was_stopped = False
        self.producer.begin()
        try:
            was_stopped = self._loop()
            self.producer.flush()
        except (Cancelled, KeyboardInterrupt):
            was_stopped = True
        except RawlogError as problem:
            error = problem
        try:
            if error is None and not was_stopped:
                self._create_empty()
            self.source.is_stopped = self.other.is_stopped = None
            if not isinstance(error, BrokerError):
                self.producer.flush()
            self._commit()
        except Cancelled:
            pass  # stopped while no broker answered
        except RawlogError as problem:
            error = error or problem
        return self._summary(error, was_stopped)

    def _create_empty(self) -> None:
        """Create the targets of topics that have no records: whoever lists the topics finds them all."""
        failed = {self.lanes[partition].topic for partition in self.refused}
        for target in dict.fromkeys(lane.topic for lane in self.lanes.values()):
            if target not in failed:
                self._create(target)

    def _loop(self) -> bool:
        seconds = self.options.source.seconds
        while self.fetcher.active:
            if self.is_stopped():
                return True
            if seconds is not None and time.monotonic() - self.begun >= seconds:
                break
            for fetched in self.fetcher.poll(0.0 if self.producer.unfinished else 0.2):
                try:
                    self._pass_on(fetched)
                except EncodeError as error:  # the other partitions go on
                    self.refused[fetched.partition] = error
                    self.fetcher.remove(fetched.partition)
            self.producer.pump(0.02 if self.producer.unfinished else 0.0)
            self._now_and_then()
        return False

    def _pass_on(self, fetched: FetchedBatches) -> None:
        """Send what was fetched. EncodeError where the target cannot get what follows; what comes before it is sent."""
        lane = self.lanes[fetched.partition]
        frames, head = self._data(fetched)
        whole = self._count_continued(fetched, head) if self.options.exact else len(frames)
        if whole:
            self._send(fetched.partition, lane, frames.slice(0, whole), head.slice(0, whole))
        if self.options.exact and self.expected[fetched.partition] != fetched.stop_offset:
            raise EncodeError(
                f"partition {fetched.partition}: from offset {self.expected[fetched.partition]:,} on offsets cannot be kept: records are "
                f"missing there (compaction), or it is a transaction; mirror without --exact, or use `rawlog record` and `rawlog restore`"
            )

    def _send(self, partition: TopicPartition, lane: TopicPartition, frames: Frames, head: Heads) -> None:
        if (head["magic"] != MAGIC_V2).any():
            raise EncodeError(f"partition {partition}: batches of magic 0 or 1; record them and replay the recording")
        self._create(lane.topic)
        merger = self.mergers.get(partition)
        if merger is None:
            merger = self.mergers[partition] = Merger(self.targets.limit(lane.topic), named=str(partition))
            merger.skip = max(0, self.bounds.starts[partition] - int(head["base_offset"][0]))
        for batches in (merger.add(frames, head), merger.flush()):
            for batch in batches:
                self.bytes += len(batch)
                self.producer.put(lane, batch)
        self.read += int(head["record_count"].sum())

    def _data(self, fetched: FetchedBatches) -> tuple[Frames, Heads]:
        """The batches to send."""
        frames, head = self.aborts.without_aborted(fetched)
        self.left_out += len(fetched.frames) - len(frames)
        control = head.has(Attributes.CONTROL)
        if control.any():
            self.left_out += int(control.sum())
            frames, head = only(frames, ~control), head.only(~control)
        return frames, head

    def _count_continued(self, fetched: FetchedBatches, head: Heads) -> int:
        """How many batches follow one another without a gap, and so keep their offsets; `expected` is set to the end of them."""
        starts, stops = head["base_offset"], head["last_offset"] + 1
        expected = np.concatenate(([self.expected[fetched.partition]], stops))
        is_bad = (starts > expected[:-1]) | (stops - starts != head["record_count"])
        whole = int(np.argmax(is_bad)) if is_bad.any() else len(head)
        self.expected[fetched.partition] = int(expected[whole])
        return whole

    def _on_acknowledged(self, sent: SentBatch, base_offset: int, now: float) -> None:
        self.latencies.add(np.array([(now - sent.sent_at) * 1000]))
        expected = sent.batch.next_offset - sent.batch.count
        if self.options.exact and base_offset >= 0 and base_offset != expected:
            raise EncodeError(
                f"partition {sent.partition}: a record of offset {expected:,} got {base_offset:,}: somebody else writes to the target"
            )

    def _now_and_then(self) -> None:
        now = time.monotonic()
        if now - self._committed_at >= COMMIT_SECONDS:
            self._committed_at = now
            self._commit()
        if self._progress is not None and now - self._shown >= PROGRESS_SECONDS:
            self._shown = now
            done = self.producer.acknowledged
            rate = done / max(now - self.begun, 1e-9)
            words = [
                counted(done, "record"),
                size_text(self.bytes),
                f"{rate:,.0f} records/s",
                f"lag {self.fetcher.lag:,}",
            ]
            self._progress(Progress(size=self.bytes, rows=self.read, phase="mirroring  " + "  ".join(words)))

    def _commit(self) -> None:
        """Commit what is acknowledged for the group that the mirror reads as."""
        group = self.options.source.group
        if group is None:
            return
        lanes = self.producer.lanes
        offsets = {partition: lanes[lane].source_offset for partition, lane in self.lanes.items() if lane in lanes}
        changed = {
            partition: offset
            for partition, offset in offsets.items()
            if offset >= 0 and self._committed.get(partition) != offset
        }
        self.source.commit(group, changed)
        self._committed |= changed

    def _summary(self, error: Exception | None, was_stopped: bool) -> Report:
        report = Report("mirror", self.source.settings.named, self.other.settings.named)
        seconds, acknowledged = time.monotonic() - self.begun, self.producer.acknowledged
        failed = sum(lane.records for lane in self.producer.lanes.values()) - acknowledged
        report.counts |= {"records": self.read, "bytes": self.bytes, "acknowledged": acknowledged, "failed": failed}
        for gap in self.fetcher.gaps:
            reason = "deleted by the broker before it was read"
            report.add(Action.LOST, reason, str(gap.partition), first_offset=gap.start, stop_offset=gap.stop)
        for partition, refusal in sorted(self.refused.items()):
            report.add(Action.LOST, str(refusal), str(partition), first_offset=self.expected.get(partition))
            report.facts.setdefault("error", str(refusal))
        if self.left_out:
            report.notes.append(f"{self.left_out:,} batches are left out: transaction markers and aborted transactions")
        if error is not None or failed:
            report.add(
                Action.LOST,
                f"{error or 'not acknowledged'}; {acknowledged:,} records are acknowledged, nothing after them is",
            )
            report.facts["error"] = str(error)
        elif was_stopped and self.options.source.has_end:
            report.add(Action.LOST, f"interrupted: {acknowledged:,} records are acknowledged, the rest was not sent")
            report.facts["interrupted"] = True
        report.facts |= {"seconds": round(seconds, 3), "retries": self.producer.retries, "lag": self.fetcher.lag}
        if self.latencies:
            report.facts["acknowledgement_ms"] = self.latencies.summary()
        report.notes += [*self.targets.notes, f"{acknowledged / max(seconds, 1e-9):,.0f} records/s, {seconds:,.1f} s"]
        return report
