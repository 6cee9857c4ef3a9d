"""`rawlog mirror`: topics of one cluster to topics of another, or of the same one, without a file in between.

What is fetched is passed on as in a replay of native directories: idempotent, acknowledged, aborted transactions left out. With `exact`
every record gets the offset that it has in the source, or the mirror stops.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from rawlog.core.errors import EncodeError, OptionError, RawlogError
from rawlog.core.frames import Frames
from rawlog.core.report import Action, Report
from rawlog.core.text import counted, size_text
from rawlog.formats.kafka.heads import Heads
from rawlog.formats.kafka.layouts import MAGIC_V2, Attributes
from rawlog.formats.kafka.log import only
from rawlog.jobs.job import Progress
from rawlog.live.batches import Merger
from rawlog.live.bounds import Asked as Recorded
from rawlog.live.bounds import Bounds, find_bounds
from rawlog.live.cluster import Cancelled, Cluster, Topic, TopicPartition, ids_of, interrupted
from rawlog.live.errors import BrokerError
from rawlog.live.fetching import Aborts, Fetched, record_at
from rawlog.live.librdkafka import connected, reader, writer
from rawlog.live.pacing import Histogram
from rawlog.live.producing import Sent
from rawlog.live.settings import Settings
from rawlog.live.targets import Targets, check_topic_map

COMMIT_SECONDS, PROGRESS_SECONDS = 5.0, 0.2


@dataclass(frozen=True, slots=True)
class Asked:
    """What to mirror: the topics and bounds of a recording; the topics that get other names."""

    source: Recorded
    topic_map: Mapping[str, str] = field(default_factory=dict)
    exact: bool = False
    create_topics: bool = False


def mirror(
    settings: Settings,
    target: Settings,
    asked: Asked,
    *,
    is_stopped: Callable[[], bool] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Report:
    """Copy topics until what was asked for is there, or until `is_stopped` says so. Returns a Report."""
    try:
        with connected(settings, is_stopped) as source, connected(target, is_stopped) as other:
            return _mirror(source, other, asked, is_stopped, progress)
    except Cancelled:
        return interrupted("mirror", settings.named, target.named)


def _mirror(
    source: Cluster,
    other: Cluster,
    asked: Asked,
    is_stopped: Callable[[], bool] | None,
    progress: Callable[[Progress], None] | None,
) -> Report:
    topics = source.topics(asked.source.topics)
    if not topics:
        raise OptionError(f"no topic matches {', '.join(asked.source.topics)}")
    check_topic_map(asked.topic_map, topics)
    other.retried(lambda: other.metadata([]))
    if source.id == other.id:
        same = [name for name in topics if asked.topic_map.get(name, name) == name]
        if same:
            raise OptionError(f"topic {same[0]}: source and target are the same; give it another name with --topic-map")
    return _Mirror(source, other, topics, asked, is_stopped or (lambda: False), progress).run()


class _Mirror:
    def __init__(
        self,
        source: Cluster,
        other: Cluster,
        topics: Mapping[str, Topic],
        asked: Asked,
        is_stopped: Callable[[], bool],
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self.source, self.other, self.topics, self.asked = source, other, topics, asked
        self.is_stopped, self._progress = is_stopped, progress
        self.targets = Targets(other, create=asked.create_topics)
        self.lanes = self._lanes()
        self.bounds = self._bounds()
        self.fetcher = reader(source, self.bounds.starts, ids_of(topics), stops=self.bounds.stops, isolation=1)
        self.producer = writer(other, self.targets.ids, end_of=self.targets.end, on_acknowledged=self._acknowledged)
        self.aborts, self.latencies = Aborts(), Histogram()
        self.mergers: dict[TopicPartition, Merger] = {}
        self.expected = dict(self.bounds.starts)
        self.read = self.bytes = self.left_out = 0
        self.begun = self._shown = self._committed_at = time.monotonic()
        self._committed: dict[TopicPartition, int] = {}

    def _lanes(self) -> dict[TopicPartition, TopicPartition]:
        """Where each partition goes. OptionError for a topic that does not exist or has too few partitions."""
        found = {}
        for name, topic in self.topics.items():
            target = self.asked.topic_map.get(name, name)
            for number in sorted(topic.partitions, reverse=True):
                self.targets.need(target, number)
                found[TopicPartition(name, number)] = TopicPartition(target, number)
        if len(set(found.values())) < len(found) and (self.asked.exact or self.asked.source.group is not None):
            option = "--exact" if self.asked.exact else "--group"
            raise OptionError(f"{option} needs a target of its own for each topic: two of them have the same one")
        return found

    def _bounds(self) -> Bounds:
        resumed: dict[TopicPartition, int] = {}
        if self.asked.exact:  # the target says how far it is
            resumed = {one: self.targets.end(lane) for one, lane in self.lanes.items()}
        bounds = find_bounds(self.source, self.topics, self.asked.source, resumed)
        for one, (wanted, first) in bounds.late.items():
            if self.asked.exact:
                raise OptionError(
                    f"partition {one} begins at offset {first:,}, its target would continue at {wanted:,}: offsets cannot be kept; "
                    f"`rawlog record` and `rawlog restore` can"
                )
        if self.asked.exact:
            for one in bounds.starts:
                self._check_continued(one, resumed[one])
        return bounds

    def _check_continued(self, one: TopicPartition, end: int) -> None:
        """OptionError if the last record of the target is another one than the source has there: it is no copy of it."""
        lane = self.lanes[one]
        last = record_at(self.other, lane, self.targets.ids, end - 1) if end else None
        own = None if last is None else record_at(self.source, one, ids_of(self.topics), end - 1)
        if last is None or own is None:  # deleted, or compacted
            return
        names = ["key", "value", "headers"]
        if own["timestampType"] == last["timestampType"]:
            names.append("timestamp")
        if any(own[name] != last[name] for name in names):
            raise OptionError(
                f"partition {lane} is not empty, and not a copy of {one}: their records at offset {end - 1:,} differ; offsets can be kept "
                f"in an empty topic"
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
        except RawlogError as found:
            error = found
        try:
            self.source.is_stopped = self.other.is_stopped = None
            if not isinstance(error, BrokerError):
                self.producer.flush()
            self._commit()
        except Cancelled:
            pass  # stopped while no broker answered
        except RawlogError as found:
            error = error or found
        return self._summary(error, was_stopped)

    def _loop(self) -> bool:
        seconds = self.asked.source.seconds
        while self.fetcher.active:
            if self.is_stopped():
                return True
            if seconds is not None and time.monotonic() - self.begun >= seconds:
                break
            for one in self.fetcher.poll(0.0 if self.producer.unfinished else 0.2):
                self._pass_on(one)
            self.producer.pump(0.02 if self.producer.unfinished else 0.0)
            self._now_and_then()
        return False

    def _pass_on(self, one: Fetched) -> None:
        lane = self.lanes[one.partition]
        frames, head = self._data(one)
        if not len(frames):
            return
        if (head["magic"] != MAGIC_V2).any():
            raise EncodeError(
                f"partition {one.partition}: batches of magic 0 or 1; record them and replay the recording"
            )
        merger = self.mergers.get(one.partition)
        if merger is None:
            merger = self.mergers[one.partition] = Merger(self.targets.limit(lane.topic), named=str(one.partition))
            start = self.bounds.starts[one.partition]
            merger.skip = max(0, start - int(head["base_offset"][0]))
        for batches in (merger.add(frames, head), merger.flush()):
            for batch in batches:
                self.bytes += len(batch)
                self.producer.put(lane, batch)
        self.read += int(head["record_count"].sum())

    def _data(self, one: Fetched) -> tuple[Frames, Heads]:
        """The batches to send. With `exact`, EncodeError where one is missing: all after it would get other offsets."""
        frames, head = self.aborts.committed(one)
        self.left_out += len(one.frames) - len(frames)
        control = head.has(Attributes.CONTROL)
        if control.any():
            self.left_out += int(control.sum())
            frames, head = only(frames, ~control), head.only(~control)
        if self.asked.exact:
            self._check_offsets(one.partition, head, one.stop_offset)
        return frames, head

    def _check_offsets(self, partition: TopicPartition, head: Heads, stop: int) -> None:
        starts, stops = head["base_offset"], head["last_offset"] + 1
        expected = np.concatenate(([self.expected[partition]], stops[:-1])) if len(head) else starts
        bad = (starts > expected) | (stops - starts != head["record_count"])
        if bad.any() or (len(head) and int(stops[-1]) != stop) or (not len(head) and stop > self.expected[partition]):
            at = int(starts[np.argmax(bad)]) if bad.any() else self.expected[partition]
            raise EncodeError(
                f"partition {partition}: from offset {at:,} on offsets cannot be kept: records are missing there (compaction), or it is a "
                f"transaction; mirror without --exact, or use `rawlog record` and `rawlog restore`"
            )
        self.expected[partition] = stop

    def _acknowledged(self, sent: Sent, base_offset: int, now: float) -> None:
        self.latencies.add(np.array([(now - sent.sent_at) * 1000]))
        expected = sent.batch.next_offset - sent.batch.count
        if self.asked.exact and base_offset >= 0 and base_offset != expected:
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
        group = self.asked.source.group
        if group is None:
            return
        lanes = self.producer.lanes
        found = {one: lanes[lane].source_offset for one, lane in self.lanes.items() if lane in lanes}
        changed = {one: offset for one, offset in found.items() if offset >= 0 and self._committed.get(one) != offset}
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
        if self.left_out:
            report.notes.append(f"{self.left_out:,} batches are left out: transaction markers and aborted transactions")
        if error is not None or failed:
            report.add(
                Action.LOST,
                f"{error or 'not acknowledged'}; {acknowledged:,} records are acknowledged, nothing after them is",
            )
            report.facts["error"] = str(error)
        elif was_stopped and self.asked.source.has_end:
            report.add(Action.LOST, f"interrupted: {acknowledged:,} records are acknowledged, the rest was not sent")
            report.facts["interrupted"] = True
        report.facts |= {"seconds": round(seconds, 3), "retries": self.producer.retries, "lag": self.fetcher.lag}
        if self.latencies:
            report.facts["acknowledgement_ms"] = self.latencies.summary()
        report.notes += [*self.targets.notes, f"{acknowledged / max(seconds, 1e-9):,.0f} records/s, {seconds:,.1f} s"]
        return report


__all__ = ["Asked", "mirror"]
