"""Where a recording goes: native partition directories, or a kafka-replay file. Both are valid whenever it ends.

What a recording needs to be continued is in its own files (native), or in a small file next to it (`.offsets.json`).
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable, Iterator, Mapping
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
from rawlog.io.output import Folder, writing
from rawlog.io.storage import read_regular
from rawlog.live.client import UNKNOWN_TOPIC
from rawlog.live.cluster import END, Cluster, Leader, TopicMetadata, TopicPartition, ids_of
from rawlog.live.fetch import Aborts, FetchedBatches
from rawlog.live.options import RecordOptions
from rawlog.model.errors import AccessError, CorruptError, OptionError, unknown
from rawlog.model.format import File, Place, Want
from rawlog.model.frames import Frames
from rawlog.model.table import RECORDS, Table
from rawlog.model.text import counted
from rawlog.reading.select import Selection

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


# ----------------------------------------------------------------------------------------------------------------------
# The topics that a replay or a mirror writes to: their partitions, their settings, and where they ended before.


DEFAULT_LIMIT = 1_048_588
"""A topic's max.message.bytes unless it says otherwise."""
DAY_MS = 86_400_000


def check_topic_map(topic_map: Mapping[str, str], topics: Iterable[str]) -> None:
    """OptionError for a topic that is to get another name and that the source does not have: with a typing error in the map, records would
    go to the topic of their own name.
    """
    names = sorted(topics)
    for name in topic_map:
        if name not in names:
            raise unknown("topic in the topic map", name, names)


class Targets:
    """The topics that records go to, looked up when they are first needed, and what they take.

    With `create` a topic that does not exist is created, with `partitions` partitions if that is given.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        create: bool = False,
        partitions: int | None = None,
        timestamps: str = "original",
        dry_run: bool = False,
    ) -> None:
        self.cluster, self.timestamps, self.dry_run = cluster, timestamps, dry_run
        self.create, self.partitions = create, partitions
        self.topics: dict[str, TopicMetadata] = {}
        self.notes: list[str] = []
        self._limits: dict[str, int] = {}
        self._numbers: dict[str, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self.ids: dict[str, bytes] = {}

    def exists(self, name: str) -> bool:
        """Whether the cluster has a topic now. Nothing is created."""
        answer = self.cluster.retry(lambda: self.cluster.metadata([name]))
        return any(row["name"] == name and row["errorCode"] != UNKNOWN_TOPIC for row in answer["topics"])

    def need(self, name: str, partition: int = 0, largest: int | None = None) -> TopicMetadata:
        """A topic that has a partition. OptionError if it does not exist or has too few. One that is created gets so many that `largest`
        is among them, or what the cluster gives by default (-1).
        """
        topic = self.topics.get(name)
        if topic is None:
            topic = self._find(name, partition if largest is None else largest)
        if partition not in topic.partitions:
            raise OptionError(
                f"topic {name} has {counted(len(topic.partitions), 'partition')}, the source has records of partition {partition}"
            ).advise("--partition-by key or round-robin, or --topic-map OLD=NEW to name a topic with more partitions")
        return topic

    def _find(self, name: str, partition: int) -> TopicMetadata:
        if self.create and not self.dry_run:
            self.cluster.create_topic(name, self.partitions or partition + 1 or -1)
        try:
            topic = self.cluster.topics([name])[name]
        except OptionError as error:
            if not (self.create and self.dry_run):
                raise error.advise("--create-topic to create it, or --topic-map OLD=NEW to name another") from None
            return self._imagine(name, self.partitions or partition + 1 or 1)
        self.topics[name], self._numbers[name] = topic, len(self._numbers)
        self.ids |= ids_of({name: topic})
        names = ("max.message.bytes", "message.timestamp.type", "cleanup.policy", "retention.ms")
        configs = self.cluster.configs(name, names)
        self._limits[name] = int(configs.get("max.message.bytes", DEFAULT_LIMIT))
        if configs.get("message.timestamp.type") == "LogAppendTime" and self.timestamps != "now":
            self.notes.append(
                f"topic {name}: message.timestamp.type is LogAppendTime; the broker gives records its own time"
            )
        retention = int(configs.get("retention.ms", -1))
        if "delete" in configs.get("cleanup.policy", "delete") and retention >= 0 and self.timestamps == "original":
            self.notes.append(
                f"topic {name}: retention.ms is {retention:,} ({retention / DAY_MS:,.1f} days); the broker deletes records that are older"
            )
        lanes = [TopicPartition(name, number) for number in topic.partitions]
        self._ends |= self.cluster.offsets(dict.fromkeys(lanes, END), self.ids)
        return topic

    def _imagine(self, name: str, count: int) -> TopicMetadata:
        """The topic that a dry run would create."""
        topic = TopicMetadata(name, bytes(16), False, {number: Leader(-1, -1) for number in range(count)})
        self.topics[name], self._numbers[name] = topic, len(self._numbers)
        self._limits[name] = DEFAULT_LIMIT
        self.notes.append(f"topic {name}: it does not exist and would be created with {counted(count, 'partition')}")
        return topic

    def limit(self, name: str) -> int:
        """The largest batch that a topic takes."""
        self.need(name)
        return self._limits[name]

    def end(self, partition: TopicPartition) -> int:
        """Where a partition ended when the replay began."""
        return self._ends.get(partition, 0)

    def number_of(self, name: str) -> int:
        return self._numbers[name]

    def key_of(self, partition: TopicPartition) -> int:
        return self._numbers[partition.topic] << 32 | partition.partition

    def lane(self, key: int) -> TopicPartition:
        names: dict[int, str] = {number: name for name, number in self._numbers.items()}
        return TopicPartition(names[key >> 32], key & 0xFFFF_FFFF)
