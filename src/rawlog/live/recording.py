"""`rawlog record`: topics of a live cluster into files that grow in place, and are valid whenever the recording ends.

Native partition directories take the batches as the broker sent them; a kafka-replay recording takes the records. What a recording needs
to be continued is in its own files (native), or in a small file next to it (`.offsets.json`).
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from io import FileIO
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog.core.errors import AccessError, CorruptError, OptionError, RawlogError, unknown
from rawlog.core.format import File, Place, Want
from rawlog.core.frames import Frames
from rawlog.core.report import Action, Report
from rawlog.core.tables import RECORDS, Table
from rawlog.core.text import counted, size_text
from rawlog.formats.kafka import LOG
from rawlog.formats.kafka.checkpoints import LOG_START, offsets_in
from rawlog.formats.kafka.checkpoints import write as checkpoint_file
from rawlog.formats.kafka.heads import Heads
from rawlog.formats.kafka.layouts import Attributes
from rawlog.formats.kafka.seek import skim
from rawlog.formats.kafka.store.derived import Limits
from rawlog.formats.kafka.store.growing import GrowingPartition
from rawlog.formats.kafka.tables import KAFKA_RECORDS
from rawlog.formats.replay.layouts import FILE_HEADER
from rawlog.formats.replay.writer import entries, file_header
from rawlog.io.files import writing
from rawlog.io.output import Folder, Output, unwritable
from rawlog.jobs.job import Progress
from rawlog.live.cluster import BEGINNING, END, Cancelled, Cluster, Topic, TopicPartition, ids_of, interrupted
from rawlog.live.errors import OUT_OF_RANGE, BrokerError
from rawlog.live.fetching import Aborts, Fetched
from rawlog.live.librdkafka import NOTE, connected, reader
from rawlog.live.settings import Settings
from rawlog.reading.select import Selection

FORMS = ("native", "replay")
NATIVE = LOG.family
"""What `convert` calls native directories."""
WAIT = 0.2
SAVE_SECONDS = 5.0
PROGRESS_SECONDS = 0.2
SIDECAR = ".offsets.json"
REPLAY_VERSION = 2


@dataclass(frozen=True, slots=True)
class Asked:
    """What to record, and when it is enough. `rows` chooses records by key, text or expression; only some forms can do that."""

    topics: tuple[str, ...]
    selection: Selection = field(default_factory=Selection)
    until_end: bool = False
    group: str | None = None
    max_bytes: int | None = None
    seconds: float | None = None
    resume: bool = False
    markers: bool = False

    @property
    def filters_rows(self) -> bool:
        """Whether records are chosen by what they hold."""
        return self.selection.key is not None or self.selection.where is not None

    @property
    def has_end(self) -> bool:
        """Whether the recording ends by itself."""
        chosen = self.selection
        bounds = (chosen.to_offset, chosen.until, chosen.limit, self.max_bytes, self.seconds)
        return self.until_end or any(bound is not None for bound in bounds)


class Sink(Protocol):
    """Where a recording goes."""

    #: Records and bytes that were stored.
    records: int
    bytes: int
    #: The next offset of partitions that were recorded before.
    resumed: dict[TopicPartition, int]

    def begin(self, starts: Mapping[TopicPartition, int], topics: Mapping[str, Topic]) -> None:
        """The partitions to come, and their first offsets."""
        ...

    def add(self, one: Fetched, left: int | None) -> int:
        """Store batches, at most `left` records where the form can cut there; the offset after what is stored."""
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


# Native partition directories ----------------------------------------------------------------------------------------------


class NativeSink:
    """Partition directories with the batches as they came. A count or an offset that is asked for may be exceeded by a part of a batch."""

    def __init__(self, folder: Folder, limits: Limits) -> None:
        self.folder, self.limits = folder, limits
        self.records = self.bytes = 0
        self.resumed: dict[TopicPartition, int] = {}
        self.writers: dict[TopicPartition, GrowingPartition] = {}
        self.starts: dict[TopicPartition, int] = {}
        self.cut: dict[TopicPartition, int] = {}

    def find(self, topics: Mapping[str, Topic]) -> None:
        """Open what an earlier recording left."""
        for topic in topics.values():
            for number in topic.partitions:
                one = TopicPartition(topic.name, number)
                if (self.folder.path / str(one)).is_dir():
                    writer = self._open(one, topic.id, 0)
                    if writer.logs:
                        self.resumed[one] = writer.end_offset
                    if writer.cut:
                        self.cut[one] = writer.cut

    def _open(self, one: TopicPartition, topic_id: bytes, start: int) -> GrowingPartition:
        self.writers[one] = GrowingPartition(self.folder.folder(str(one)), self.limits, topic_id=topic_id, start=start)
        return self.writers[one]

    def begin(self, starts: Mapping[TopicPartition, int], topics: Mapping[str, Topic]) -> None:
        for one, start in starts.items():
            if one not in self.writers:
                self._open(one, topics[one.topic].id, start)
            self.starts[one] = start

    def add(self, one: Fetched, left: int | None) -> int:
        self.writers[one.partition].append(one.frames, one.head)
        self.records += _data_records(one.head)
        self.bytes += one.size
        return one.stop_offset

    def save(self, positions: Mapping[TopicPartition, int]) -> None:
        for writer in self.writers.values():
            writer.flush()

    def close(self, positions: Mapping[TopicPartition, int]) -> None:
        """Write indexes and snapshots of the last segments, and the log starts that lie inside a batch."""
        begins = dict(offsets_in(str(self.folder.path), LOG_START))
        for one, writer in self.writers.items():
            writer.close()
            first = int(writer.logs[0].partition(".")[0])
            if one not in self.resumed and self.starts.get(one, 0) > first:
                begins[one.topic, one.partition] = self.starts[one]
        if begins:
            self.folder.remove(LOG_START)
            self.folder.write(LOG_START, checkpoint_file(begins))

    def recover(self) -> dict[TopicPartition, int]:
        """Open the partitions once more, as after a crash, and count what they have."""
        found = {}
        self.records = self.bytes = 0
        for one, start in self.starts.items():
            self.writers[one].abandon()
            again = self._open(one, bytes(16), start)
            found[one] = max(again.end_offset, start)
            for name in again.logs:
                path = self.folder.path / str(one) / name
                for window in skim(File(str(path), path.stat().st_size, None, LOG.name)):
                    new = window.head["last_offset"] >= start
                    self.records += _data_records(window.head.only(new))
                    self.bytes += int(window.sizes[new].sum())
        return found

    def abandon(self) -> None:
        """Let go of open files; they are valid as they are."""
        for writer in self.writers.values():
            writer.abandon()


def _data_records(head: Heads) -> int:
    """The records in batches that are no control batches."""
    return int(_data_counts(head).sum())


def _data_counts(head: Heads) -> NDArray[np.int64]:
    """The records in each batch, 0 for a control batch."""
    count = head["record_count"]
    if head.any(Attributes.CONTROL):
        count = np.where(head.has(Attributes.CONTROL), 0, count)
    return np.where(count < 0, 1, count)


def _enough_of(one: Fetched, records: int | None, size: int | None) -> Fetched:
    """The batches up to the one with which so many records or bytes are there: a response may hold many more."""
    is_more = np.zeros(len(one.frames), np.bool_)
    for most, each in ((records, _data_counts(one.head)), (size, one.frames.sizes)):
        if most is not None:
            is_more |= np.cumsum(each) - each >= most
    return one.first(int(np.argmax(is_more))) if is_more.any() else one


# A kafka-replay recording ----------------------------------------------------------------------------------------------------


class ReplaySink:
    """A kafka-replay file of version 2: time in seconds, key and value. What else records have is counted as lost.

    Next to it, a file says up to where the recording goes: to continue it, what came after that is cut off.
    """

    def __init__(self, file: FileIO, path: str, asked: Asked) -> None:
        self.file, self.path, self.asked = file, path, asked
        self._size = 0
        self._saved: tuple[int, int, dict[TopicPartition, int]] = (0, 0, {})
        self.records = self.bytes = self.markers = 0
        self.lost = dict.fromkeys(("headers", "milliseconds", "null values"), 0)
        self.resumed: dict[TopicPartition, int] = {}
        self._ids: dict[str, str] = {}
        self._aborts = Aborts()
        self.starts: Mapping[TopicPartition, int] = {}
        #: Where partitions end; records after it that came in the same batch are left out.
        self.stops: Mapping[TopicPartition, int] = {}
        #: Markers are rows only of the table that has them.
        self.table: Table = KAFKA_RECORDS if asked.markers else RECORDS
        self.selection = Selection(key=asked.selection.key, where=asked.selection.where)
        names = ["key", "value", "timestamp", "headers"]
        self.needed = self.selection.replace(columns=tuple(names)).needed(self.table)

    def find(self, topics: Mapping[str, Topic]) -> None:
        """Continue a recording: cut it to what its offsets say. OptionError if it is of other topics."""
        size = os.fstat(self.file.fileno()).st_size
        if size == 0:
            return
        try:
            state = json.loads(Path(self.path + SIDECAR).read_bytes())
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

    def begin(self, starts: Mapping[TopicPartition, int], topics: Mapping[str, Topic]) -> None:
        if not self._size:
            self._write(file_header(REPLAY_VERSION))
        self._ids |= {name: _id_text(topic.id) for name, topic in topics.items()}
        self.starts = starts
        self.save(starts)

    def add(self, one: Fetched, left: int | None) -> int:
        is_committed = self.asked.selection.isolation == "read_committed"
        frames = self._aborts.committed(one)[0] if is_committed else one.frames
        for batch in self._rows(one.partition, frames):
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
        return one.stop_offset

    def _rows(self, partition: TopicPartition, frames: Frames) -> Iterator[pa.RecordBatch]:
        file = File(str(partition), 0, None, LOG.name, Place(partition.topic, partition.partition))
        assert LOG.decode is not None
        first = self.starts.get(partition, 0)
        needed = self.needed if "offset" in self.needed.names else self.table.subset((*self.needed.names, "offset"))
        for batch in LOG.decode(frames, Want(needed, file)):
            mask = self.selection.mask(batch, self.table)
            offsets = batch.column("offset").to_numpy()
            mask &= (offsets >= first) & (offsets < self.stops.get(partition, 1 << 62))
            chosen = batch if mask.all() else batch.filter(pa.array(mask))
            if chosen.num_rows:
                yield chosen

    def _count_lost(self, batch: pa.RecordBatch) -> None:
        import pyarrow.compute as pc

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
                [one.topic, one.partition, offset] for one, offset in sorted({**self.resumed, **positions}.items())
            ],
        }
        with writing(self.path + SIDECAR, overwrite=True) as file:
            file.write(json.dumps(state).encode() + b"\n")
        self._saved = self._size, self.records, dict(positions)

    def close(self, positions: Mapping[TopicPartition, int]) -> None:
        self.save(positions)

    def abandon(self) -> None:
        """Nothing to let go of."""


def _with_go_times(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows with the times that kafka-replay stores: its client takes 0 and less for no time."""
    import pyarrow.compute as pc

    column = batch.column("timestamp")
    is_none = pc.less_equal(column.cast(pa.int64()), 0)
    if not pc.any(is_none).as_py():
        return batch
    times = pc.if_else(is_none, pa.scalar(None, column.type), column)
    return batch.set_column(batch.schema.get_field_index("timestamp"), "timestamp", times)


def _id_text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


# The recording itself --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Bounds:
    """Where each partition begins and, where that is known, ends."""

    starts: dict[TopicPartition, int]
    stops: dict[TopicPartition, int]
    #: Partitions whose first offset was asked for and is deleted already.
    late: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    #: Partitions that end before the first offset that was asked for.
    short: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)


def record(
    settings: Settings,
    asked: Asked,
    to: str,
    *,
    form: str = "native",
    limits: Limits | None = None,
    is_stopped: Callable[[], bool] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Report:
    """Record topics into `to` until what was asked for is there, or until `is_stopped` says so. Returns a Report.

    An error in the middle is in the Report, with what was stored before it; raised is what makes a recording impossible from the start.
    """
    if form not in FORMS:
        raise unknown("form of a recording", form, FORMS)
    if form == "native" and asked.filters_rows:
        raise OptionError(
            "native recordings take whole batches: choose records with `rawlog convert` later, or record as replay"
        )
    try:
        with connected(settings, is_stopped) as cluster:
            return _record(cluster, asked, to, form, limits or Limits(), is_stopped, progress)
    except Cancelled:
        return interrupted("record", ",".join(asked.topics), to)


def _record(
    cluster: Cluster,
    asked: Asked,
    to: str,
    form: str,
    limits: Limits,
    is_stopped: Callable[[], bool] | None,
    progress: Callable[[Progress], None] | None,
) -> Report:
    output = Output(to)
    topics = cluster.topics(asked.topics)
    if not topics:
        raise OptionError(f"no topic matches {', '.join(asked.topics)}")
    if form == "native":
        with output.growing(resume=asked.resume) as folder:
            return _run(cluster, topics, asked, NativeSink(folder, limits), to, is_stopped, progress)
    with output.growing_file(resume=asked.resume) as file:
        return _run(cluster, topics, asked, ReplaySink(file, output.path, asked), to, is_stopped, progress)


def _run(
    cluster: Cluster,
    topics: Mapping[str, Topic],
    asked: Asked,
    sink: NativeSink | ReplaySink,
    to: str,
    is_stopped: Callable[[], bool] | None,
    progress: Callable[[Progress], None] | None,
) -> Report:
    try:
        if asked.resume:
            sink.find(topics)
        bounds = find_bounds(cluster, topics, asked, sink.resumed)
        sink.begin(bounds.starts, topics)
        return _Recording(cluster, topics, asked, sink, bounds, to, is_stopped, progress).run()
    finally:
        sink.abandon()


def find_bounds(
    cluster: Cluster, topics: Mapping[str, Topic], asked: Asked, resumed: Mapping[TopicPartition, int]
) -> Bounds:
    """The first and last offset of each partition that the options mean."""
    chosen = asked.selection
    partitions = [TopicPartition(name, number) for name, topic in topics.items() for number in sorted(topic.partitions)]
    if chosen.partitions:
        missing = set(chosen.partitions) - {one.partition for one in partitions}
        if missing:
            raise OptionError(f"partition {min(missing)}: {', '.join(topics)} has {len(partitions)} partitions")
        partitions = [one for one in partitions if one.partition in chosen.partitions]
    ids, isolation = ids_of(topics), int(chosen.isolation == "read_committed")
    first = cluster.offsets(dict.fromkeys(partitions, BEGINNING), ids)
    end = cluster.offsets(dict.fromkeys(partitions, END), ids, isolation=isolation)
    wanted: dict[TopicPartition, int] = dict(first)
    if chosen.from_offset is not None:
        wanted = dict.fromkeys(partitions, chosen.from_offset)
    elif chosen.last is not None:
        wanted = {one: max(first[one], end[one] - chosen.last) for one in partitions}
    elif chosen.since is not None:
        found = cluster.offsets(dict.fromkeys(partitions, chosen.since // 1000), ids)
        wanted = {one: found[one] if found[one] >= 0 else end[one] for one in partitions}
    elif asked.group is not None:
        wanted |= cluster.committed(asked.group, partitions)
    wanted |= {one: offset for one, offset in resumed.items() if one in wanted}
    late = {one: (offset, first[one]) for one, offset in wanted.items() if offset < first[one]}
    starts = {one: max(offset, first[one]) for one, offset in wanted.items()}
    short = _short(cluster, {one: offset for one, offset in starts.items() if offset > end[one]}, ids)
    for one, (wanted_offset, found_end) in short.items():
        if one in resumed or chosen.from_offset is None:
            raise BrokerError(
                f"partition {one}: offset {wanted_offset:,} is the next one, but the log ends at {found_end:,}: it was cut back, or this "
                f"belongs to another topic",
                OUT_OF_RANGE,
            )
        if not asked.until_end and chosen.to_offset is None:
            raise OptionError(f"partition {one}: offset {wanted_offset:,} is asked for, the log ends at {found_end:,}")
    stops: dict[TopicPartition, int] = {}
    if asked.until_end:
        stops = dict(end)
    if chosen.to_offset is not None:
        stops = {one: min(stops.get(one, chosen.to_offset), chosen.to_offset) for one in partitions}
    if chosen.until is not None and chosen.until <= time.time() * 1_000_000:
        stops = _stops_at(cluster, chosen.until, stops, end, ids)
    return Bounds(starts, stops, late, short)


def _short(
    cluster: Cluster, starts: Mapping[TopicPartition, int], ids: Mapping[str, bytes]
) -> dict[TopicPartition, tuple[int, int]]:
    """Partitions that end before an offset, also with their open transactions; the offset, and where they end."""
    ends = cluster.offsets(dict.fromkeys(starts, END), ids) if starts else {}
    return {one: (offset, ends[one]) for one, offset in starts.items() if offset > ends[one]}


def _stops_at(
    cluster: Cluster,
    until: int,
    stops: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    ids: Mapping[str, bytes],
) -> dict[TopicPartition, int]:
    """The offsets at which records of a time begin; the ends, where there are none."""
    found = cluster.offsets(dict.fromkeys(end, -(-until // 1000)), ids)
    return {one: min(stops.get(one, 1 << 62), found[one] if found[one] >= 0 else end[one]) for one in end}


class _Recording:
    """The loop: fetch, store, save, until it is enough."""

    def __init__(
        self,
        cluster: Cluster,
        topics: Mapping[str, Topic],
        asked: Asked,
        sink: NativeSink | ReplaySink,
        bounds: Bounds,
        to: str,
        is_stopped: Callable[[], bool] | None,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self.cluster, self.asked, self.sink, self.bounds, self.to = cluster, asked, sink, bounds, to
        self.ids = ids_of(topics)
        self.fetcher = reader(
            cluster,
            bounds.starts,
            self.ids,
            stops=bounds.stops,
            isolation=int(asked.selection.isolation == "read_committed"),
        )
        if isinstance(sink, ReplaySink):
            sink.stops = self.fetcher.stops
        self._is_stopped, self._progress = is_stopped or (lambda: False), progress
        self.stored = dict(bounds.starts)
        self.begun = time.monotonic()
        self._saved = self._shown = self.begun
        self._committed: dict[TopicPartition, int] = {}

    def run(self) -> Report:
        report = Report("record", ",".join(sorted({one.topic for one in self.stored})), self.to)
        error: Exception | None = None
        was_stopped = False
        try:
            was_stopped = self._loop()
        except Cancelled:
            was_stopped = True
        except (BrokerError, CorruptError) as found:
            error = found
        except OSError as found:  # the disk is full, or gone
            error = unwritable(self.to, found)
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
            if self.asked.seconds is not None and time.monotonic() - self.begun >= self.asked.seconds:
                return False
            self._meet_time()
            for one in self.fetcher.poll(self._patience()):
                self._store(one)
                if self._is_enough():
                    return False
            self._now_and_then()
        return False

    def _store(self, one: Fetched) -> None:
        limit, most = self.asked.selection.limit, self.asked.max_bytes
        left = None if limit is None else limit - self.sink.records
        if left is not None and left <= 0:
            return
        if isinstance(self.sink, NativeSink):
            one = _enough_of(one, left, None if most is None else most - self.sink.bytes)
        self.stored[one.partition] = self.sink.add(one, left)

    def _is_enough(self) -> bool:
        limit, most = self.asked.selection.limit, self.asked.max_bytes
        return (limit is not None and self.sink.records >= limit) or (most is not None and self.sink.bytes >= most)

    def _patience(self) -> float:
        if self.asked.seconds is None:
            return WAIT
        return max(0.0, min(WAIT, self.begun + self.asked.seconds - time.monotonic()))

    def _meet_time(self) -> None:
        """A time to stop at that lay in the future when we began is now."""
        until = self.asked.selection.until
        if until is None or self.fetcher.stops.keys() >= self.fetcher.active or time.time() * 1_000_000 < until:
            return
        partitions = list(self.fetcher.active)
        end = self.cluster.offsets(dict.fromkeys(partitions, END), self.ids)
        self.fetcher.stop_at(_stops_at(self.cluster, until, {}, end, self.ids))

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
        if self.asked.until_end and rate:
            words.append(f"{lag / rate:,.0f} s left")
        return "recording  " + "  ".join(words)

    def _commit(self) -> None:
        if self.asked.group is not None:
            changed = {one: offset for one, offset in self.stored.items() if self._committed.get(one) != offset}
            self.cluster.commit(self.asked.group, changed)
            self._committed |= changed

    def _finish(self, report: Report, error: Exception | None) -> None:
        """Close what was written, and only then say in the group that it is stored."""
        try:
            self.sink.close(self.stored)
            self._commit()
        except (OSError, Cancelled) as found:
            if error is None:
                report.add(Action.LOST, f"the end of the recording could not be written: {found}", self.to)

    def _summary(self, report: Report, error: Exception | None, was_stopped: bool) -> Report:
        seconds = time.monotonic() - self.begun
        report.counts |= {"records": self.sink.records, "bytes": self.sink.bytes}
        for gap in self.fetcher.gaps:
            reason = "deleted by the broker before it was read"
            report.add(Action.LOST, reason, str(gap.partition), first_offset=gap.start, stop_offset=gap.stop)
        for one, (wanted, first) in self.bounds.late.items():
            if one in self.sink.resumed:
                reason = "deleted by the broker since the last recording"
                report.add(Action.LOST, reason, str(one), first_offset=wanted, stop_offset=first)
            else:
                report.notes.append(f"{one}: the log begins at offset {first:,}; {wanted:,} was asked for")
        if self.cluster.settings.uses_library:
            report.notes.append(NOTE)
        report.notes += [
            f"{one}: the log ends at offset {end:,}; {wanted:,} was asked for"
            for one, (wanted, end) in self.bounds.short.items()
        ]
        if isinstance(self.sink, NativeSink):
            report.notes += [
                f"{one}: {size:,} bytes of an unfinished batch were cut off" for one, size in self.sink.cut.items()
            ]
        else:
            report.notes += [
                f"{count:,} records with {what}, which a recording cannot keep"
                for what, count in self.sink.lost.items()
                if count
            ]
        missing = {one: self.fetcher.stops.get(one) for one in self.fetcher.active}
        if error is not None:
            missing |= {one: None for one in self.stored if self.stored[one] < self.fetcher.positions[one]}
            where = ", ".join(f"{one} from offset {self.stored[one]:,} on" for one in sorted(missing)[:8])
            report.add(Action.LOST, f"{error}; not recorded: {where}; --resume continues", self.to)
            report.facts["error"] = str(error)
        elif was_stopped and self.asked.has_end:
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
            "offsets": {str(one): [self.bounds.starts[one], stop] for one, stop in sorted(self.stored.items())},
        }
        report.notes.append(f"{self.sink.records / max(seconds, 1e-9):,.0f} records/s, {seconds:,.1f} s")
        return report


def segment_limits(options: Mapping[str, object] | None) -> Limits:
    """When a segment of a native recording is full: segment_bytes, segment_ms … OptionError for other options."""
    given = {name.replace(".", "_"): str(value) for name, value in (options or {}).items()}
    known = [one.name for one in fields(Limits)]
    for name in given:
        if name not in known:
            raise unknown("option of a recording", name, known)
    return Limits.from_options(given)


__all__ = ["FORMS", "NATIVE", "Asked", "record", "segment_limits"]
