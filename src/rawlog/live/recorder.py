"""`rawlog record`: topics of a live cluster into files that grow in place, and are valid whenever the recording ends.

Native partition directories take the batches as the broker sent them; a kafka-replay recording takes the records.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields

from rawlog.formats.kafka import LOG
from rawlog.formats.kafka.partition.writer import SegmentLimits
from rawlog.io.output import Output, unwritable
from rawlog.live.client import BrokerError
from rawlog.live.cluster import (
    END,
    Cancelled,
    Cluster,
    TopicMetadata,
    TopicPartition,
    ids_of,
    interrupted_report,
)
from rawlog.live.fetch import FetchedBatches
from rawlog.live.librdkafka import NOTE, connect, reader
from rawlog.live.options import RecordOptions, find_bounds, stops_at
from rawlog.live.settings import Settings
from rawlog.live.sinks import NativeSink, ReplaySink, Sink
from rawlog.model.errors import (
    CorruptError,
    OptionError,
    RawlogError,
    unknown,
)
from rawlog.model.job import Progress
from rawlog.model.report import Action, Report
from rawlog.model.text import counted, size_text

FORMS = ("native", "replay")
NATIVE = LOG.family
"""What `convert` calls native directories."""
WAIT = 0.2
SAVE_SECONDS = 5.0
PROGRESS_SECONDS = 0.2


def record(
    settings: Settings,
    options: RecordOptions,
    to: str,
    *,
    form: str = "native",
    limits: SegmentLimits | None = None,
    is_stopped: Callable[[], bool] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Report:
    """Record topics into `to` until what was asked for is there, or until `is_stopped` says so. Returns a Report.

    An error in the middle is in the Report, with what was stored before it; raised is what makes a recording impossible from the start.
    """
    if form not in FORMS:
        raise unknown("form of a recording", form, FORMS)
    if form == "native" and options.filters_rows:
        raise OptionError("native recordings take whole batches").advise(
            "--format replay, or choose records later with `rawlog convert`"
        )
    try:
        with connect(settings, is_stopped) as cluster:
            topics = cluster.topics(options.topics)
            if not topics:
                raise OptionError(f"no topic matches {', '.join(options.topics)}")
            with _open_sink(to, form, limits or SegmentLimits(), options) as sink:
                return _Recording(cluster, topics, options, sink, to, is_stopped, progress).run()
    except Cancelled:
        return interrupted_report("record", ",".join(options.topics), to)


@contextlib.contextmanager
def _open_sink(to: str, form: str, limits: SegmentLimits, options: RecordOptions) -> Iterator[Sink]:
    """Where a recording of a form goes, open as long as the block lasts."""
    output = Output(to)
    sink: Sink
    with contextlib.ExitStack() as open_files:
        if form == "native":
            sink = NativeSink(open_files.enter_context(output.growing(resume=options.resume)), limits)
        else:
            sink = ReplaySink(
                open_files.enter_context(output.growing_file(resume=options.resume)), output.path, options
            )
        open_files.callback(sink.abandon)
        yield sink


class _Recording:
    """The loop: fetch, store, save, until it is enough."""

    def __init__(
        self,
        cluster: Cluster,
        topics: Mapping[str, TopicMetadata],
        options: RecordOptions,
        sink: Sink,
        to: str,
        is_stopped: Callable[[], bool] | None,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self.cluster, self.options, self.sink, self.to = cluster, options, sink, to
        self.ids = ids_of(topics)
        if options.resume:
            sink.find(topics)
        self.bounds = bounds = find_bounds(cluster, topics, options, sink.resumed)
        for refusal in bounds.refused.values():
            raise refusal
        self.fetcher = reader(
            cluster,
            bounds.starts,
            self.ids,
            stops=bounds.stops,
            isolation=int(options.selection.isolation == "read_committed"),
        )
        sink.begin(bounds.starts, self.fetcher.stops, topics)
        self._is_stopped, self._progress = is_stopped or (lambda: False), progress
        self.stored = dict(bounds.starts)
        self.begun = time.monotonic()
        self._saved = self._shown = self.begun
        self._committed: dict[TopicPartition, int] = {}

    def run(self) -> Report:
        report = Report("record", ",".join(sorted({partition.topic for partition in self.stored})), self.to)
        error: Exception | None = None
        was_stopped = False
        try:
            was_stopped = self._loop()
        except Cancelled:
            was_stopped = True
        except (BrokerError, CorruptError) as problem:
            error = problem
        except OSError as problem:  # the disk is full, or gone
            error = unwritable(self.to, problem)
            self._recover()
        self._finish(report, error)
        return self._summary(report, error, was_stopped)

    def _recover(self) -> None:
        """Find out how much was stored when a write failed."""
        with contextlib.suppress(OSError, RawlogError):
            self.stored |= self.sink.recover()

    def _loop(self) -> bool:
        """Record until it is enough; True if somebody stopped it before."""
        while self.fetcher.active:
            if self._is_stopped():
                return True
            if self.options.seconds is not None and time.monotonic() - self.begun >= self.options.seconds:
                return False
            self._meet_time()
            for fetched in self.fetcher.poll(self._patience()):
                self._store(fetched)
                if self._is_enough():
                    return False
            self._now_and_then()
        return False

    def _store(self, fetched: FetchedBatches) -> None:
        limit, most = self.options.selection.limit, self.options.max_bytes
        left = None if limit is None else limit - self.sink.records
        if left is not None and left <= 0:
            return
        size = None if most is None else most - self.sink.bytes
        self.stored[fetched.partition] = self.sink.add(fetched, left, size)

    def _is_enough(self) -> bool:
        limit, most = self.options.selection.limit, self.options.max_bytes
        return (limit is not None and self.sink.records >= limit) or (most is not None and self.sink.bytes >= most)

    def _patience(self) -> float:
        if self.options.seconds is None:
            return WAIT
        return max(0.0, min(WAIT, self.begun + self.options.seconds - time.monotonic()))

    def _meet_time(self) -> None:
        """A time to stop at that lay in the future when we began is now."""
        until = self.options.selection.until
        if until is None or self.fetcher.stops.keys() >= self.fetcher.active or time.time() * 1_000_000 < until:
            return
        partitions = list(self.fetcher.active)
        end = self.cluster.offsets(dict.fromkeys(partitions, END), self.ids)
        self.fetcher.stop_at(stops_at(self.cluster, until, {}, end, self.ids))

    def _now_and_then(self) -> None:
        now = time.monotonic()
        if now - self._saved >= SAVE_SECONDS:
            self._saved = now
            self.sink.save(self.stored)
            self._commit()
        if self._progress is not None and now - self._shown >= PROGRESS_SECONDS:
            self._shown = now
            self._progress(Progress(size=self.sink.bytes, rows=self.sink.records, phase=self._state(now)))

    def _state(self, now: float) -> str:
        seconds = max(now - self.begun, 1e-9)
        lag, rate = self.fetcher.lag, self.sink.records / seconds
        words = [
            counted(self.sink.records, "record"),
            size_text(self.sink.bytes),
            f"{rate:,.0f} records/s",
            f"lag {lag:,}",
        ]
        if self.options.until_end and rate:
            words.append(f"{lag / rate:,.0f} s left")
        return "recording  " + "  ".join(words)

    def _commit(self) -> None:
        if self.options.group is not None:
            changed = {
                partition: offset
                for partition, offset in self.stored.items()
                if self._committed.get(partition) != offset
            }
            self.cluster.commit(self.options.group, changed)
            self._committed |= changed

    def _finish(self, report: Report, error: Exception | None) -> None:
        """Close what was written, and only then say in the group that it is stored."""
        try:
            self.sink.close(self.stored)
            self._commit()
        except (OSError, Cancelled) as problem:
            if error is None:
                report.add(Action.LOST, f"the end of the recording could not be written: {problem}", self.to)

    def _summary(self, report: Report, error: Exception | None, was_stopped: bool) -> Report:
        seconds = time.monotonic() - self.begun
        report.counts |= {"records": self.sink.records, "bytes": self.sink.bytes}
        for gap in self.fetcher.gaps:
            reason = "deleted by the broker before it was read"
            report.add(Action.LOST, reason, str(gap.partition), first_offset=gap.start, stop_offset=gap.stop)
        for partition, (wanted, first) in self.bounds.late.items():
            if partition in self.sink.resumed:
                reason = "deleted by the broker since the last recording"
                report.add(Action.LOST, reason, str(partition), first_offset=wanted, stop_offset=first)
            else:
                report.notes.append(f"{partition}: the log begins at offset {first:,}, after offset {wanted:,}")
        if self.cluster.settings.uses_library:
            report.notes.append(NOTE)
        report.notes += [
            f"{partition}: the log ends at offset {end:,}, before offset {wanted:,}"
            for partition, (wanted, end) in self.bounds.short.items()
        ]
        report.notes += self.sink.notes()
        missing = {partition: self.fetcher.stops.get(partition) for partition in self.fetcher.active}
        if error is not None:
            missing |= {
                partition: None
                for partition in self.stored
                if self.stored[partition] < self.fetcher.positions[partition]
            }
            where = ", ".join(
                f"{partition} from offset {self.stored[partition]:,} on" for partition in sorted(missing)[:8]
            )
            report.add(Action.LOST, f"{error}; not recorded: {where}; --resume continues", self.to)
            report.facts["error"] = str(error)
        elif was_stopped and self.options.has_end:
            report.add(Action.LOST, "interrupted before all was recorded; --resume continues", self.to)
            report.facts["interrupted"] = True
        report.facts |= {
            "acknowledged": self.sink.records,
            "failed": 0,
            "seconds": round(seconds, 3),
            "partitions": len(self.stored),
            "lag": self.fetcher.lag,
            "reconnects": self.fetcher.reconnects,
            "throttled_ms": self.cluster.throttled_ms,
            "offsets": {
                str(partition): [self.bounds.starts[partition], stop] for partition, stop in sorted(self.stored.items())
            },
        }
        report.notes.append(f"{self.sink.records / max(seconds, 1e-9):,.0f} records/s, {seconds:,.1f} s")
        return report


def segment_limits(options: Mapping[str, object] | None) -> SegmentLimits:
    """When a segment of a native recording is full: segment_bytes, segment_ms … OptionError for other options."""
    texts = {name.replace(".", "_"): str(value) for name, value in (options or {}).items()}
    names = [field.name for field in fields(SegmentLimits)]
    for name in texts:
        if name not in names:
            raise unknown("option of a recording", name, names)
    return SegmentLimits.from_options(texts)


__all__ = ["FORMS", "NATIVE", "record", "segment_limits"]
