"""`rawlog record`: topics of a live cluster into files that grow in place, and are valid whenever the recording ends.

Native partition directories take the batches as the broker sent them; a kafka-replay recording takes the records.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from io import FileIO
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rawlog.formats.kafka import LOG
from rawlog.formats.kafka.checkpoints import LOG_START, checkpoint_text, offsets_in
from rawlog.formats.kafka.log.heads import Heads
from rawlog.formats.kafka.log.layouts import Attributes
from rawlog.formats.kafka.log.seek import skim
from rawlog.formats.kafka.partition.writer import GrowingPartition, SegmentLimits
from rawlog.formats.kafka.tables import KAFKA_RECORDS
from rawlog.formats.replay.layouts import FILE_HEADER
from rawlog.formats.replay.recording import entries, file_header
from rawlog.io.output import Folder, Output, unwritable, writing
from rawlog.io.storage import read_regular
from rawlog.live.client import BrokerError
from rawlog.live.cluster import END, Cancelled, Cluster, TopicMetadata, TopicPartition, ids_of, interrupted_report
from rawlog.live.fetch import Aborts, FetchedBatches
from rawlog.live.librdkafka import NOTE, connect, reader
from rawlog.live.options import RecordOptions, find_bounds, stops_at
from rawlog.live.settings import Settings
from rawlog.model.errors import AccessError, CorruptError, OptionError, RawlogError, unknown
from rawlog.model.format import File, Place, Want
from rawlog.model.frames import Frames
from rawlog.model.job import Progress
from rawlog.model.report import Action, Report
from rawlog.model.table import RECORDS, Table
from rawlog.model.text import counted, size_text
from rawlog.reading.select import Selection

# Where a recording goes ----------------------------------------------------------------------------------------------------------

SIDECAR = ".offsets.json"
REPLAY_VERSION = 2


class Sink(Protocol):
    """Where a recording goes."""

    #: Records and bytes that were stored.
    records: int
    bytes: int
    #: The next offset of partitions that were recorded before.
    resumed: dict[TopicPartition, int]

    def find(self, topics: Mapping[str, TopicMetadata]) -> None:
        """Open what an earlier recording left, to continue it."""
        ...

    def begin(
        self,
        starts: Mapping[TopicPartition, int],
        stops: Mapping[TopicPartition, int],
        topics: Mapping[str, TopicMetadata],
    ) -> None:
        """The partitions to come, their first offsets, and where they end; ends may be added later."""
        ...

    def add(self, fetched: FetchedBatches, records: int | None, size: int | None) -> int:
        """Store batches, at most so many records or bytes, cut where the form can be cut; the offset after what is stored."""
        ...

    def save(self, positions: Mapping[TopicPartition, int]) -> None:
        """Hand everything over to the system, and say how far it goes."""
        ...

    def recover(self) -> dict[TopicPartition, int]:
        """After a failed write: cut off what is not whole, and say how far each partition goes."""
        ...

    def close(self, positions: Mapping[TopicPartition, int]) -> None:
        """Write what belongs at the end."""
        ...

    def abandon(self) -> None:
        """Let go of open files; they are valid as they are."""
        ...

    def notes(self) -> list[str]:
        """What to say of the result."""
        ...


# Native partition directories ----------------------------------------------------------------------------------------------


class NativeSink:
    """Partition directories with the batches as they came. A count or an offset that is asked for may be exceeded by a part of a batch."""

    def __init__(self, folder: Folder, limits: SegmentLimits) -> None:
        self.folder, self.limits = folder, limits
        self.records = self.bytes = 0
        self.resumed: dict[TopicPartition, int] = {}
        self.writers: dict[TopicPartition, GrowingPartition] = {}
        self.starts: dict[TopicPartition, int] = {}
        self.cut: dict[TopicPartition, int] = {}

    def find(self, topics: Mapping[str, TopicMetadata]) -> None:
        """Open what an earlier recording left."""
        for topic in topics.values():
            for number in topic.partitions:
                partition = TopicPartition(topic.name, number)
                if (self.folder.path / str(partition)).is_dir():
                    writer = self._open(partition, topic.id, 0)
                    if writer.logs:
                        self.resumed[partition] = writer.end_offset
                    if writer.cut:
                        self.cut[partition] = writer.cut

    def _open(self, partition: TopicPartition, topic_id: bytes, start: int) -> GrowingPartition:
        self.writers[partition] = GrowingPartition(
            self.folder.folder(str(partition)), self.limits, topic_id=topic_id, start=start
        )
        return self.writers[partition]

    def begin(
        self,
        starts: Mapping[TopicPartition, int],
        stops: Mapping[TopicPartition, int],
        topics: Mapping[str, TopicMetadata],
    ) -> None:
        for partition, start in starts.items():
            if partition not in self.writers:
                self._open(partition, topics[partition.topic].id, start)
            self.starts[partition] = start

    def add(self, fetched: FetchedBatches, records: int | None, size: int | None) -> int:
        fetched = _enough_of(fetched, records, size)
        self.writers[fetched.partition].append(fetched.frames, fetched.head)
        self.records += _data_records(fetched.head)
        self.bytes += fetched.size
        return fetched.stop_offset

    def save(self, positions: Mapping[TopicPartition, int]) -> None:
        for writer in self.writers.values():
            writer.flush()

    def close(self, positions: Mapping[TopicPartition, int]) -> None:
        """Write indexes and snapshots of the last segments, and the log starts that lie inside a batch."""
        begins = dict(offsets_in(str(self.folder.path), LOG_START))
        for partition, writer in self.writers.items():
            writer.close()
            first = int(writer.logs[0].partition(".")[0])
            if partition not in self.resumed and self.starts.get(partition, 0) > first:
                begins[partition.topic, partition.partition] = self.starts[partition]
        if begins:
            self.folder.remove(LOG_START)
            self.folder.write(LOG_START, checkpoint_text(begins))

    def recover(self) -> dict[TopicPartition, int]:
        """Open the partitions once more, as after a crash, and count what they have."""
        ends = {}
        self.records = self.bytes = 0
        for partition, start in self.starts.items():
            self.writers[partition].abandon()
            again = self._open(partition, bytes(16), start)
            ends[partition] = max(again.end_offset, start)
            for name in again.logs:
                path = self.folder.path / str(partition) / name
                for window in skim(File(str(path), path.stat().st_size, None, LOG.name)):
                    new = window.head["last_offset"] >= start
                    self.records += _data_records(window.head.only(new))
                    self.bytes += int(window.sizes[new].sum())
        return ends

    def abandon(self) -> None:
        """Let go of open files; they are valid as they are."""
        for writer in self.writers.values():
            writer.abandon()

    def notes(self) -> list[str]:
        return [
            f"{partition}: {size:,} bytes of an unfinished batch were cut off" for partition, size in self.cut.items()
        ]


def _data_records(head: Heads) -> int:
    """The records in batches that are no control batches."""
    return int(_data_counts(head).sum())


def _data_counts(head: Heads) -> NDArray[np.int64]:
    """The records in each batch, 0 for a control batch."""
    count = head["record_count"]
    if head.any(Attributes.CONTROL):
        count = np.where(head.has(Attributes.CONTROL), 0, count)
    return np.where(count < 0, 1, count)


def _enough_of(fetched: FetchedBatches, records: int | None, size: int | None) -> FetchedBatches:
    """The batches up to the one with which so many records or bytes are there: a response may hold many more."""
    is_more = np.zeros(len(fetched.frames), np.bool_)
    for most, each in ((records, _data_counts(fetched.head)), (size, fetched.frames.sizes)):
        if most is not None:
            is_more |= np.cumsum(each) - each >= most
    return fetched.first(int(np.argmax(is_more))) if is_more.any() else fetched


# A kafka-replay recording ----------------------------------------------------------------------------------------------------


class ReplaySink:
    """A kafka-replay file of version 2: time in seconds, key and value. What else records have is counted as lost.

    Next to it, a file says up to where the recording goes: to continue it, what came after that is cut off.
    """

    def __init__(self, file: FileIO, path: str, options: RecordOptions) -> None:
        self.file, self.path, self.options = file, path, options
        self._size = 0
        self._saved: tuple[int, int, dict[TopicPartition, int]] = (0, 0, {})
        self.records = self.bytes = 0
        self.lost = dict.fromkeys(("headers", "milliseconds", "null values"), 0)
        self.resumed: dict[TopicPartition, int] = {}
        self._ids: dict[str, str] = {}
        self._aborts = Aborts()
        self.starts: Mapping[TopicPartition, int] = {}
        #: Where partitions end; records after it that came in the same batch are left out.
        self.stops: Mapping[TopicPartition, int] = {}
        #: Markers are rows only of the table that has them.
        self.table: Table = KAFKA_RECORDS if options.markers else RECORDS
        self.selection = Selection(key=options.selection.key, where=options.selection.where)
        names = ["key", "value", "timestamp", "headers"]
        self.needed = self.selection.replace(columns=tuple(names)).needed(self.table)

    def find(self, topics: Mapping[str, TopicMetadata]) -> None:
        """Continue a recording: cut it to what its offsets say. OptionError if it is of other topics."""
        size = os.fstat(self.file.fileno()).st_size
        if size == 0:
            return
        try:
            state = json.loads(read_regular(self.path + SIDECAR))
            stored, ids = int(state["size"]), dict(state["topics"])
            rows = [(TopicPartition(str(row[0]), int(row[1])), int(row[2])) for row in state["offsets"]]
        except OSError:
            raise AccessError(f"{self.path}: it cannot be resumed: {self.path}{SIDECAR} is missing") from None
        except (ValueError, KeyError, TypeError, IndexError):
            raise AccessError(f"{self.path}{SIDECAR}: not what a recording writes") from None
        if not FILE_HEADER.size <= stored <= size:
            raise CorruptError(f"{size:,} bytes, {stored:,} were recorded", path=self.path, position=size)
        for name, topic in topics.items():
            if ids.get(name, _id_text(topic.id)) != _id_text(topic.id) and any(topic.id):
                raise OptionError(
                    f"{self.path}: it holds another topic {name}, which was deleted since; record to another place"
                )
        self.resumed = dict(rows)
        self._ids = ids
        self.file.truncate(stored)
        self.file.seek(stored)
        self._size = stored

    def begin(
        self,
        starts: Mapping[TopicPartition, int],
        stops: Mapping[TopicPartition, int],
        topics: Mapping[str, TopicMetadata],
    ) -> None:
        if not self._size:
            self._write(file_header(REPLAY_VERSION))
        self._ids |= {name: _id_text(topic.id) for name, topic in topics.items()}
        self.starts, self.stops = starts, stops
        self.save(starts)

    def add(self, fetched: FetchedBatches, records: int | None, size: int | None) -> int:
        left = records
        is_committed = self.options.selection.isolation == "read_committed"
        frames = self._aborts.without_aborted(fetched)[0] if is_committed else fetched.frames
        for batch in self._rows(fetched.partition, frames):
            if left is not None and batch.num_rows >= left:
                batch = batch.slice(0, left)
            left = None if left is None else left - batch.num_rows
            self._count_lost(batch)
            batch = _with_go_times(batch)
            data = entries(batch, REPLAY_VERSION)
            self._write(data)
            self.records += batch.num_rows
            self.bytes += len(data)
            if left == 0:
                return int(batch.column("offset")[-1].as_py()) + 1
        return fetched.stop_offset

    def _rows(self, partition: TopicPartition, frames: Frames) -> Iterator[pa.RecordBatch]:
        file = File(str(partition), 0, None, LOG.name, Place(partition.topic, partition.partition))
        first = self.starts.get(partition, 0)
        needed = self.needed if "offset" in self.needed.names else self.table.subset((*self.needed.names, "offset"))
        for batch in LOG.codec.decode(frames, Want(needed, file)):
            mask = self.selection.mask(batch, self.table)
            offsets = batch.column("offset").to_numpy()
            mask &= (offsets >= first) & (offsets < self.stops.get(partition, 1 << 62))
            chosen = batch if mask.all() else batch.filter(pa.array(mask))
            if chosen.num_rows:
                yield chosen

    def _count_lost(self, batch: pa.RecordBatch) -> None:
        self.lost["null values"] += batch.column("value").null_count
        headers = batch.column("headers")
        self.lost["headers"] += int(pc.sum(pc.greater(pc.list_value_length(headers), 0)).as_py() or 0)
        times = batch.column("timestamp").cast(pa.int64()).fill_null(0).to_numpy()
        self.lost["milliseconds"] += int((times % 1_000_000 != 0).sum())

    def _write(self, data: bytes | bytearray | memoryview) -> None:
        left = memoryview(data)
        while left:
            left = left[self.file.write(left) :]
        self._size += len(data)

    def recover(self) -> dict[TopicPartition, int]:
        """Go back to what the offsets next to the file say."""
        self._size, self.records, positions = self._saved
        self.file.truncate(self._size)
        self.file.seek(self._size)
        return positions

    def save(self, positions: Mapping[TopicPartition, int]) -> None:
        os.fdatasync(self.file.fileno())
        state = {
            "size": self._size,
            "topics": self._ids,
            "offsets": [
                [partition.topic, partition.partition, offset]
                for partition, offset in sorted({**self.resumed, **positions}.items())
            ],
        }
        with writing(self.path + SIDECAR, overwrite=True) as file:
            file.write(json.dumps(state).encode() + b"\n")
        self._saved = self._size, self.records, dict(positions)

    def close(self, positions: Mapping[TopicPartition, int]) -> None:
        self.save(positions)

    def abandon(self) -> None:
        """Nothing to let go of."""

    def notes(self) -> list[str]:
        return [
            f"{count:,} records with {what}, which a recording cannot keep"
            for what, count in self.lost.items()
            if count
        ]


def _with_go_times(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows with the times that kafka-replay stores: its client takes 0 and less for no time."""
    column = batch.column("timestamp")
    is_none = pc.less_equal(column.cast(pa.int64()), 0)
    if not pc.any(is_none).as_py():
        return batch
    times = pc.if_else(is_none, pa.scalar(None, column.type), column)
    return batch.set_column(batch.schema.get_field_index("timestamp"), "timestamp", times)


def _id_text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


# A recording ---------------------------------------------------------------------------------------------------------------------

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
