"""Rows of `records` into a log directory: each row to the partition it names, in batches of a chosen size.

Several writers may take shares of the rows: each writes partition directories of its own, which are joined where the rows of one
partition came in several.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rawlog.formats.kafka.log.heads import Heads, heads
from rawlog.formats.kafka.log.layouts import BATCH, MAGIC_V2, NONE
from rawlog.formats.kafka.log.writer import (
    BATCH_BYTES,
    NO_LIMIT,
    Batching,
    RowBuffers,
    encode_rows,
)
from rawlog.formats.kafka.partition.rewrite import NewSegment, rewrite
from rawlog.formats.kafka.partition.writer import (
    METADATA,
    Derivation,
    PartitionWriter,
    SegmentLimits,
    check_topic_id,
    metadata_file,
    new_topic_id,
    topic_id_in,
    whole_number,
)
from rawlog.formats.kafka.paths import LARGEST_OFFSET
from rawlog.io.output import Folder, Output
from rawlog.io.walk import walk
from rawlog.model.errors import EncodeError, OptionError, unknown
from rawlog.model.format import File, Judge
from rawlog.model.frames import Frames

TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
PENDING_BYTES = 4 << 20
"""What is gathered of a partition before it is encoded."""
PENDING_TOTAL = 256 << 20
"""What is gathered of all partitions; then all of them are encoded."""
OPTIONS = (
    "topic", "partition", "topic_id", "offsets", "codec", "level", "batch_bytes", "batch_records", "magic", "leader_epoch", "start_offset",
    "max_message_bytes", "segment_bytes", "segment_ms", "segment_index_bytes", "index_interval_bytes",
)  # fmt: skip
INT32 = (1 << 31) - 1
KEEP, NEW = "keep", "new"
"""What becomes of rows' offsets."""


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """The settings of a sink, from options."""

    batching: Batching
    limits: SegmentLimits
    topic: str | None = None
    partition: int | None = None
    topic_id: str | None = None
    start_offset: int = 0
    max_message_bytes: int = NO_LIMIT
    renumbers: bool = False

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> SinkSettings:
        """OptionError for unknown options, or invalid values."""
        for name in options:
            if name not in OPTIONS:
                raise unknown("option of kafka", name, OPTIONS)

        def number(name: str, default: int, least: int = 0, most: int = INT32) -> int:
            return whole_number(options, name, least, most) if name in options else default

        limits = SegmentLimits.from_options(options)
        magic = number("magic", MAGIC_V2, 0, MAGIC_V2)
        batching = Batching(
            codec=options.get("codec", "none"),
            level=whole_number(options, "level", -131072, 22) if "level" in options else None,
            records=number("batch_records", NO_LIMIT, 1),
            bytes=number("batch_bytes", min(BATCH_BYTES, max(limits.segment_bytes // 2, 1)), 1),
            most_time=limits.segment_ms,
            magic=magic,
            leader_epoch=number("leader_epoch", 0, NONE),
        ).check()
        if options.get("offsets", KEEP) not in (KEEP, NEW):
            raise unknown("value of offsets", options["offsets"], (KEEP, NEW))
        topic = options.get("topic")
        if topic is not None and not is_topic(topic):
            raise OptionError(f"topic {topic!r}: 1 to 249 of the characters A-Z a-z 0-9 . _ - expected")
        return cls(
            batching,
            limits,
            topic,
            number("partition", NONE) if "partition" in options else None,
            check_topic_id(options),
            number("start_offset", 0, 0, LARGEST_OFFSET),
            number("max_message_bytes", NO_LIMIT, 1),
            options.get("offsets") == NEW,
        )


def is_topic(name: str) -> bool:
    """Whether Kafka takes a topic of this name."""
    return TOPIC.fullmatch(name) is not None and name not in (".", "..")


@dataclass(slots=True)
class Partition:
    """One partition on its way: rows that wait for their batch to fill, and the writer."""

    writer: PartitionWriter
    pending: list[pa.RecordBatch] = field(default_factory=list)
    waiting: int = 0
    rows: int = 0
    first_offset: int = NONE
    last_offset: int = NONE
    numbered: bool | None = None


def write(batches: Iterable[pa.RecordBatch], output: Output, options: Mapping[str, str]) -> int:
    """Write rows as partition directories in a log directory, which may exist; the number of rows.

    `topic` and `partition` among the options overrule what rows say. EncodeError for rows that name no partition, whose offsets do not
    rise, or that no batch can hold; AccessError if a partition directory exists already and may not be replaced. Partitions are staged
    next to the log directory: a broker would refuse to start on a directory whose name it does not know.
    """
    settings = SinkSettings.from_options(options)
    with output.additions() as stage:
        sink = Sink(stage, settings, output)
        try:
            for batch in batches:
                sink.add(batch)
            return sink.close()
        finally:
            sink.abandon()


class TopicIds:
    """The id of every topic that is written."""

    def __init__(self, settings: SinkSettings) -> None:
        self.requested = settings.topic_id
        self.ids: dict[str, str] = {}

    def of(self, topic: str, target: Path) -> str:
        """The requested id, the id of the topic at the target, or a new one."""
        if self.requested is not None:
            if self.ids and topic not in self.ids:
                raise OptionError(f"one topic_id for several topics: {', '.join(self.ids)}, {topic}")
            self.ids[topic] = self.requested
        elif topic not in self.ids:
            self.ids[topic] = topic_id_in(target, topic) or new_topic_id()
        return self.ids[topic]


class Sink:
    """All partitions that rows were seen of."""

    def __init__(self, stage: Folder, settings: SinkSettings, output: Output | None = None) -> None:
        """`output` is the log directory that partitions will be in. Without it, the caller looks at what exists and at topic ids."""
        self.stage, self.settings, self.output = stage, settings, output
        self.partitions: dict[tuple[str, int], Partition] = {}
        self.topic_ids = TopicIds(settings)
        self.rows = self.waiting = 0
        if settings.topic is not None and settings.partition is not None:
            self.partition(settings.topic, settings.partition)

    def add(self, batch: pa.RecordBatch) -> None:
        """Take in rows, each to its partition."""
        if not batch.num_rows:
            return
        for topic, number, part in self.split(batch):
            partition = self.partition(topic, number)
            most = max(PENDING_BYTES, 2 * self.settings.batching.bytes)
            step = max(1, most * part.num_rows // max(part.nbytes, 1))
            for at in range(0, part.num_rows, step):
                piece = part.slice(at, step)
                partition.pending.append(piece)
                partition.waiting += piece.nbytes
                self.waiting += piece.nbytes
                if partition.waiting >= most:
                    self.flush(partition)
        if self.waiting >= PENDING_TOTAL:
            for partition in self.partitions.values():
                self.flush(partition)
        self.rows += batch.num_rows

    def split(self, batch: pa.RecordBatch) -> Iterable[tuple[str, int, pa.RecordBatch]]:
        """The rows of every partition in a batch, in order."""
        settings = self.settings
        topic: Any = batch.column("topic") if settings.topic is None else pa.repeat(settings.topic, batch.num_rows)
        number: Any = batch.column("partition")
        if settings.partition is not None:
            number = pa.repeat(pa.scalar(settings.partition, pa.int32()), batch.num_rows)
        for name, column in (("topic", topic), ("partition", number)):
            if column.null_count:
                row = self.rows + int(pc.index(column.is_null(), True).as_py())
                raise EncodeError(f"row {row:,} has no {name}; give it as an option: {name}=…")
        topics = topic.dictionary_encode()
        codes = topics.indices.to_numpy().astype(np.int64) << 32 | number.to_numpy().astype(np.int64) & 0xFFFFFFFF
        for code in np.unique(codes).tolist():
            chosen = codes == code
            part = batch if chosen.all() else batch.filter(pa.array(chosen))
            bits = code & 0xFFFFFFFF
            yield topics.dictionary[code >> 32].as_py(), bits - (1 << 32) if bits > INT32 else bits, part

    def partition(self, topic: str, number: int) -> Partition:
        """The partition of that name, begun when it is first met."""
        key = (topic, number)
        if key not in self.partitions:
            if not is_topic(topic):
                raise EncodeError(f"topic {topic!r}: 1 to 249 of the characters A-Z a-z 0-9 . _ - expected")
            if number < 0:
                raise EncodeError(f"partition {number} of topic {topic}: 0 or more expected")
            name = f"{topic}-{number}"
            if self.output is not None:
                self.output.refuse_existing(name)
            folder, settings = self.stage.folder(name), self.settings
            writer = PartitionWriter(
                folder,
                settings.limits,
                topic_id=None if self.output is None else self.topic_ids.of(topic, Path(self.output.path)),
                log_start=settings.start_offset,
            )
            self.partitions[key] = Partition(writer)
        return self.partitions[key]

    def flush(self, partition: Partition, *, whole: bool = False) -> None:
        """Encode what waits; without `whole` the rows of an unfilled last batch go on waiting."""
        if not partition.pending:
            return
        batch = partition.pending[0] if len(partition.pending) == 1 else pa.concat_batches(partition.pending)
        self.waiting -= partition.waiting
        first = None
        if partition.numbered is None:
            partition.numbered = not self.settings.renumbers and batch.column("offset").null_count < batch.num_rows
        try:
            if not partition.numbered:
                if batch.column("offset").null_count < batch.num_rows and not self.settings.renumbers:
                    raise EncodeError("some rows have an offset, others have none; give all or none")
                first = max(partition.last_offset + 1, self.settings.start_offset)
            encoded = encode_rows(
                RowBuffers.of(batch, first), self.settings.batching, partition.last_offset, whole=whole
            )
            self.check_sizes(encoded)
        except EncodeError as error:
            raise EncodeError(f"{partition.writer.folder.path.name}: {error}") from None
        partition.writer.append(encoded.frames, encoded.head)
        if len(encoded.head):
            if not partition.rows:
                partition.first_offset = int(encoded.head["base_offset"][0])
            partition.last_offset = int(encoded.head["last_offset"][-1])
            partition.rows += encoded.rows
        # A copy, so that the few rows left do not keep all that came with them in memory.
        rest = batch.take(pa.array(np.arange(encoded.rows, batch.num_rows)))
        partition.pending = [rest] if rest.num_rows else []
        partition.waiting = rest.nbytes if rest.num_rows else 0
        self.waiting += partition.waiting

    def check_sizes(self, encoded: Any) -> None:
        """EncodeError for a batch above what the topic would take."""
        sizes, most = encoded.frames.sizes, self.settings.max_message_bytes
        if sizes.size and int(sizes.max()) > most:
            at = int(np.argmax(sizes))
            offset = int(encoded.head["base_offset"][at])
            raise EncodeError(f"offset {offset:,}: a batch of {int(sizes[at]):,} bytes, max_message_bytes is {most:,}")

    def close(self) -> int:
        for partition in self.partitions.values():
            self.flush(partition, whole=True)
            partition.writer.close()
        return self.rows

    def abandon(self) -> None:
        for partition in self.partitions.values():
            partition.writer.abandon()


def losses(options: Mapping[str, str]) -> Judge:
    """What rows of `records` would read back otherwise than they are. OptionError for unknown options."""
    settings = SinkSettings.from_options(options)
    magic = settings.batching.magic

    def judge(batch: pa.RecordBatch) -> dict[str, NDArray[np.bool_]]:
        lost = of_columns(batch)
        if settings.renumbers:
            lost["offset"] = batch.column("offset").is_valid().to_numpy(zero_copy_only=False)
        return lost

    def of_columns(batch: pa.RecordBatch) -> dict[str, NDArray[np.bool_]]:
        time, kind = batch.column("timestamp"), batch.column("timestampType")
        micros = pc.fill_null(time.cast(pa.int64()), 0).to_numpy()
        kinds = pc.fill_null(kind, NONE if magic == 0 else 0).to_numpy()
        if magic == 0:
            return {
                "timestamp": time.is_valid().to_numpy(zero_copy_only=False),
                "timestampType": kinds != NONE,
                "headers": _has_headers(batch),
            }
        lost = {"timestamp": (micros % 1000 != 0) | (micros == -1000), "timestampType": (kinds != 0) & (kinds != 1)}
        return lost if magic == MAGIC_V2 else lost | {"headers": _has_headers(batch)}

    return judge


def _has_headers(batch: pa.RecordBatch) -> NDArray[np.bool_]:
    counts: NDArray[np.int64] = pc.fill_null(pc.list_value_length(batch.column("headers")), 0).to_numpy()
    return counts > 0


# Shares of the rows --------------------------------------------------------------------------------------------------

ADVICE = 'df.repartition("topic", "partition").sortWithinPartitions("topic", "partition", "offset")'


@dataclass(frozen=True, slots=True)
class SharedPartition:
    """The part of a partition in one share. `numbered`: its rows came with offsets."""

    topic: str
    partition: int
    rows: int
    first_offset: int
    last_offset: int
    numbered: bool

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"


def write_share(batches: Iterable[pa.RecordBatch], folder: Folder, options: Mapping[str, str]) -> list[SharedPartition]:
    """Write rows as partition directories below an empty directory; what it then holds. Raises as `write`."""
    sink = Sink(folder, SinkSettings.from_options(options))
    try:
        for batch in batches:
            sink.add(batch)
        sink.close()
    except EncodeError as error:
        if "offsets must rise" in str(error):
            advice = (
                f"sort them (in Spark: {ADVICE}), leave out what no transaction committed with isolation=read_committed, "
                "or number them again with offsets=new"
            )
            raise EncodeError(f"{error}; {advice}") from None
        raise
    finally:
        sink.abandon()
    return [
        SharedPartition(
            topic, number, partition.rows, partition.first_offset, partition.last_offset, bool(partition.numbered)
        )
        for (topic, number), partition in sink.partitions.items()
    ]


def join_shares(shares: Sequence[tuple[str, list[SharedPartition]]], output: Output, options: Mapping[str, str]) -> int:
    """Make the partitions of all shares appear in a log directory; the number of rows.

    The rows of a partition that came in several shares are put together by their offsets, or, if they have none, in the order of the
    shares. EncodeError if their ranges of offsets overlap.
    """
    settings, final = SinkSettings.from_options(options), Path(output.path)
    by_name: dict[str, list[tuple[Path, SharedPartition]]] = {}
    for folder, pieces in shares:
        for piece in pieces:
            by_name.setdefault(piece.name, []).append((Path(folder) / piece.name, piece))
    ids = TopicIds(settings)
    with output.additions() as stage:
        for name, parts in sorted(by_name.items()):
            output.refuse_existing(name)
            metadata = metadata_file(ids.of(parts[0][1].topic, final))
            filled = [part for part in parts if part[1].rows] or parts[:1]
            if len(filled) == 1:
                stage.take(filled[0][0], name)
                stage.write(f"{name}/{METADATA}", metadata)
            else:
                rewrite(
                    stage.folder(name),
                    Joining(_sort_parts(filled), settings, metadata),
                    log_start=settings.start_offset,
                )
    return sum(piece.rows for _, pieces in shares for piece in pieces)


def _sort_parts(parts: list[tuple[Path, SharedPartition]]) -> list[tuple[Path, SharedPartition]]:
    if any(piece.numbered != parts[0][1].numbered for _, piece in parts):
        raise EncodeError(f"{parts[0][1].name}: some rows have an offset, others have none; give all or none")
    if not parts[0][1].numbered:
        return parts
    parts = sorted(parts, key=lambda part: part[1].first_offset)
    for (_, piece), (_, other) in pairwise(parts):
        if other.first_offset <= piece.last_offset:
            raise EncodeError(
                f"{piece.name}: offsets {piece.first_offset} to {piece.last_offset} and {other.first_offset} to {other.last_offset} "
                f"came in different tasks; bring them together: {ADVICE}"
            )
    return parts


class Joining:
    """The policy that makes one partition of several: batches as they are, except for the offsets of rows that came without."""

    interval = 0
    derivation: Derivation | None = None

    def __init__(self, parts: list[tuple[Path, SharedPartition]], settings: SinkSettings, metadata: bytes) -> None:
        self.parts = parts
        self.limits: SegmentLimits | None = settings.limits
        self.metadata: bytes | None = metadata

    def segments(self, writer: PartitionWriter) -> Iterator[NewSegment]:
        """All batches; the limits say where a segment ends."""
        yield NewSegment(None, self._batches())

    def _batches(self) -> Iterator[tuple[Frames, Heads]]:
        from rawlog.formats.kafka import LOG

        after = NONE
        for source, piece in self.parts:
            last = NONE
            shift = 0 if piece.numbered or after == NONE else after + 1 - piece.first_offset
            for path in sorted(source.glob("*.log")):
                file = File(str(path), path.stat().st_size, None, LOG.name)
                for frames in walk(file, LOG, errors="raise"):
                    if len(frames):
                        frames, head = _shift(frames, heads(frames, check_crc=False), shift)
                        start = piece.first_offset + shift if last == NONE else last + 1
                        yield frames, _from_first_offset(head, start)
                        last = int(head["last_offset"][-1])
            after = piece.last_offset + shift


def _from_first_offset(head: Heads, start: int) -> Heads:
    """The same, where a compressed entry of magic 0 or 1 begins after the one before it: by itself it says only where it ends, and a
    segment that is named for its end would hide the records in it.
    """
    is_wrapper = (head["magic"] < MAGIC_V2) & (head.codec > 0)
    if not is_wrapper.any():
        return head
    corrected, last = Heads(head.values.copy()), head["last_offset"]
    after = np.concatenate(([start], last[:-1] + 1))
    corrected["base_offset"][:] = np.where(is_wrapper, after, head["base_offset"])
    return corrected


def _shift(frames: Frames, head: Heads, shift: int) -> tuple[Frames, Heads]:
    """The same batches at offsets so many further on: no checksum covers the first offset of a batch."""
    if not shift:
        return frames, head
    if ((head["magic"] == 0) & (head.codec > 0)).any():
        raise EncodeError(
            "compressed entries of magic 0 contain their offsets: add an offset column to the rows, or write them in one task"
        )
    moved, data = Heads(head.values.copy()), frames.data.copy()
    moved["base_offset"][:] += shift
    moved["last_offset"][:] += shift
    raw = moved["base_offset"].astype(">i8").view(np.uint8).reshape(-1, 8)
    at = frames.starts[:, None] + BATCH.at("base_offset") + np.arange(8)
    data[at] = raw
    assert (moved["magic"] <= MAGIC_V2).all()
    return replace(frames, data=data), moved
