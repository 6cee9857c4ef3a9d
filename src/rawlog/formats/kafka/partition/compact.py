"""Log compaction of a partition, as Kafka's cleaner would do it (§6): which segments, in which groups, in how many rounds.

`cleaner` decides on each record. The source is never changed: what is left is written as a new partition directory.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawlog.formats.kafka.checkpoints import CLEANER, LARGEST, log_start, offsets_in
from rawlog.formats.kafka.epochs import parse_epochs
from rawlog.formats.kafka.log.heads import Heads, heads
from rawlog.formats.kafka.log.kernels import compact as kernels
from rawlog.formats.kafka.log.kernels.heads import MOST
from rawlog.formats.kafka.log.layouts import (
    BATCH,
    CODECS,
    INDEX_ENTRY,
    MAGIC_V2,
    NONE,
    OUTLINE,
    SMALLEST_RECORD,
    TIME_INDEX_ENTRY,
    Attributes,
    ControlType,
)
from rawlog.formats.kafka.log.records import WHOLE_ROWS, TooMuch, decode_legacy
from rawlog.formats.kafka.log.segment import TOTAL, only, pieces, sound
from rawlog.formats.kafka.partition.erase import FilterResult, keep_records
from rawlog.formats.kafka.partition.outline import refuse_misplaced
from rawlog.formats.kafka.partition.rewrite import (
    NewSegment,
    new_report,
    partitions,
    rewrite,
    segments_of,
    settled_log,
    topic_id_of,
    whole_batches,
)
from rawlog.formats.kafka.partition.segment_outline import Correction
from rawlog.formats.kafka.partition.state import AbortedTxn, Producers, ProducerState, marker_fields
from rawlog.formats.kafka.partition.survey import aborted_in, snapshot_rows
from rawlog.formats.kafka.partition.writer import (
    Derivation,
    PartitionWriter,
    SegmentLimits,
    segment_name,
    txnindex,
    whole_number,
)
from rawlog.formats.kafka.paths import METADATA_TOPIC, split
from rawlog.io import compression
from rawlog.io.output import Folder, scratch
from rawlog.io.storage import Source, local_path
from rawlog.io.walk import describe, walk
from rawlog.kernels import byte_view
from rawlog.kernels.gather import SLACK
from rawlog.model.errors import CorruptError, DataError, LimitError, OptionError, RawlogError, unknown
from rawlog.model.format import File
from rawlog.model.frames import Bytes, Frames
from rawlog.model.report import Action, Report
from rawlog.model.status import OK, Status
from rawlog.model.store import Store
from rawlog.model.text import counted, parse_now

# ----------------------------------------------------------------------------------------------------------------------
# A partition as a broker knows it once it has loaded the directory: segments, end, producers, aborted transactions, epochs.
# The log itself is the authority; what is next to it is used where the log no longer tells, as after compaction: producers whose batches
# are gone, the first offset of an aborted transaction, the start of a leader epoch.


@dataclass(frozen=True, slots=True)
class Segment:
    """A log segment, with what its batches and the files next to it tell."""

    file: File
    base: int
    index_bytes: int = 0
    timeindex_bytes: int = 0
    max_timestamp: int = NONE

    @property
    def size(self) -> int:
        return self.file.size

    @property
    def modified_ms(self) -> int:
        """When the file was last changed; a broker goes by it where records have no time."""
        return int((self.file.modified or 0) * 1000)

    @property
    def largest_timestamp(self) -> int:
        return self.max_timestamp if self.max_timestamp >= 0 else self.modified_ms


@dataclass(slots=True)
class LoadedPartition:
    """A partition as loaded by a broker. `end_offset` is the offset of its next record."""

    segments: list[Segment] = field(default_factory=list)
    start_offset: int = 0
    end_offset: int = 0
    producers: dict[int, ProducerState] = field(default_factory=dict)
    producer_ids: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    aborted: list[AbortedTxn] = field(default_factory=list)
    epochs: bytes = b""
    #: Producer snapshots by their offsets.
    snapshots: dict[int, bytes] = field(default_factory=dict)

    @property
    def last_stable_offset(self) -> int:
        """Up to where everything is decided, taking everything for replicated."""
        undecided = [producer.current_txn_first_offset for producer in self.producers.values()]
        return min((offset for offset in undecided if offset != NONE), default=self.end_offset)

    def expire(self, now: int, after_ms: int) -> None:
        """Forget producers that have been silent for so long, as a broker does (§7.3)."""
        self.producers = {
            number: producer
            for number, producer in self.producers.items()
            if producer.current_txn_first_offset != NONE or now - producer.timestamp < after_ms
        }


def load(files: Sequence[File]) -> LoadedPartition:
    """Walk a partition's log. DataError for damage, which `repair` handles; an unfinished batch at the end is passed over."""
    partition = LoadedPartition()
    files = [file for file in files if file.place.state is None and file.problem is None]
    walker = _Walker(partition, files)
    segments = segments_of(files)
    for segment in segments:
        walker.segment(segment, is_last=segment is segments[-1])
    partition.start_offset = max(log_start(segments[0], files) or 0, partition.segments[0].base)
    partition.aborted = _merge_listed(walker.derivation.producers, files)
    partition.producer_ids = np.array(sorted(walker.ids), np.int64)
    partition.epochs = _epochs(files) or walker.derivation.epochs_file()
    partition.producers = _producers(files, partition, walker)
    for file in files:
        if file.format == "kafka.snapshot" and file.place.start_offset in partition.snapshots:
            data = _sound_snapshot(file)
            if data is not None:
                partition.snapshots[file.place.start_offset or 0] = data
    return partition


class _Walker:
    def __init__(self, partition: LoadedPartition, files: Sequence[File]) -> None:
        self.partition, self.derivation = partition, Derivation()
        self.others = {(file.format, file.place.start_offset): file for file in files}
        self.ids: set[int] = set()
        self.end = 0

    def segment(self, file: File, *, is_last: bool) -> None:
        from rawlog.formats.kafka import LOG

        base = file.place.start_offset or 0
        if base:
            self.partition.snapshots[base] = self.derivation.snapshot(base)
        if base < self.end:
            raise CorruptError(
                f"offset {base:,} in front of the one before, {self.end:,}", path=file.path, format=LOG.name
            )
        self.end = max(self.end, base)
        top = NONE
        for frames in walk(file, LOG, errors="raise"):
            head = heads(frames)
            _, error = sound(frames, head)
            if error is not None:
                raise error.at(path=file.path, format=LOG.name)
            if frames.status is Status.TRUNCATED and frames.last and not is_last:
                raise describe(LOG, frames, file.path)
            if len(frames):
                self._check_order(file, frames, head)
                self.derivation.add(frames, head)
                self.ids.update(np.unique(head["producer_id"]).tolist())
                top = max(top, int(head["max_timestamp"].max()))
        self.partition.end_offset = self.end
        if is_last and self.end:
            self.partition.snapshots[self.end] = self.derivation.snapshot(self.end)
        segment = Segment(file, base, max_timestamp=top)
        index, times = self.others.get(("kafka.index", base)), self.others.get(("kafka.timeindex", base))
        size = index.size if index is not None else file.size // 4096 * INDEX_ENTRY.size
        time_size = times.size if times is not None else file.size // 4096 * TIME_INDEX_ENTRY.size
        self.partition.segments.append(replace(segment, index_bytes=size, timeindex_bytes=time_size))

    def _check_order(self, file: File, frames: Frames, head: Heads) -> None:
        base, last = head["base_offset"], head["last_offset"]
        wrong = base < np.concatenate(([self.end], last[:-1] + 1))
        wrong |= last < base
        if wrong.any():
            at = int(np.argmax(wrong))
            raise CorruptError(
                f"a batch of offsets {int(base[at]):,} to {int(last[at]):,} out of order",
                path=file.path,
                position=int(frames.positions[at]),
                format="kafka.log",
                layout=OUTLINE.name,
                field="base_offset",
            )
        self.end = int(last[-1]) + 1


def _merge_listed(state: Producers, files: Sequence[File]) -> list[AbortedTxn]:
    """Aborted transactions as the log tells them, and what only the index still knows after a compaction: their first offsets, and those
    of which nothing but the marker is left.
    """
    aborted = {(entry.producer_id, entry.last_offset): entry for entry in state.aborted}
    markers = {(row[0], row[2]) for rows in state.aborts for row in rows.tolist()}
    for file in files:
        if file.format != "kafka.txnindex":
            continue
        for _, entry in aborted_in(file):
            key = (entry.producer_id, entry.last_offset)
            derived = aborted.get(key)
            if key in markers and (derived is None or entry.first_offset <= derived.first_offset):
                aborted[key] = entry
    return sorted(aborted.values(), key=lambda entry: entry.last_offset)


def _epochs(files: Sequence[File]) -> bytes | None:
    for file in files:
        if file.format == "kafka.epochs":
            with Source(file.path) as source:
                data = source.read(0, min(source.size, LARGEST))
            return bytes(data) if parse_epochs(data) is not None else None
    return None


def _sound_snapshot(file: File) -> bytes | None:
    """The bytes of a snapshot if they are one."""
    from rawlog.formats.kafka import SNAPSHOT

    try:
        for frames in walk(file, SNAPSHOT, errors="raise"):
            if frames.status is Status.OK:
                return bytes(frames.data)
    except RawlogError:
        pass
    return None


def _producers(files: Sequence[File], partition: LoadedPartition, walker: _Walker) -> dict[int, ProducerState]:
    """The newest snapshot that a broker would load, and every batch after it."""
    snapshots = [file for file in files if file.format == "kafka.snapshot"]
    usable = [
        file for file in snapshots if partition.start_offset < (file.place.start_offset or 0) <= partition.end_offset
    ]
    for file in sorted(usable, key=lambda file: -(file.place.start_offset or 0)):
        if _sound_snapshot(file) is not None:
            return _replay_snapshot(file, partition)
    return walker.derivation.producers.states


def _replay_snapshot(file: File, partition: LoadedPartition) -> dict[int, ProducerState]:
    from rawlog.formats.kafka import LOG

    offset = file.place.start_offset or 0
    state = Producers.of({row.pop("producer_id"): ProducerState(**row) for _, row in snapshot_rows(file)})
    ends = [segment.base for segment in partition.segments[1:]] + [partition.end_offset]
    for segment, end in zip(partition.segments, ends, strict=True):
        if end <= offset:
            continue
        for frames in walk(segment.file, LOG, errors="raise"):
            head = heads(frames, check_crc=False)
            first = int(np.searchsorted(head["base_offset"], offset))
            state.add(frames.slice(first, len(frames)), head.slice(first, len(head)))
    return state.states


# ----------------------------------------------------------------------------------------------------------------------
# One round of log compaction: the map of keys, and the fate of every batch and record (Cleaner, CleanedTransactionMetadata).
# Which segments are cleaned, and where what is left is written, is for `compact` to say.


SLOT_BYTES = 8 * kernels.SLOT
LOAD = 0.9
"""How much of the map may be in use (log.cleaner.io.buffer.load.factor)."""
FIRST_SLOTS, GROWTH = 1 << 14, 2
"""A map begins small, so that the caches hold it where there are few keys, and grows while it is half full."""


class KeyMap:
    """The latest offset of every key, in slots of 24 bytes, never more than `memory` holds."""

    def __init__(self, memory: int) -> None:
        self.slots = max(1, memory // SLOT_BYTES)
        self.most = int(self.slots * LOAD)
        self.table = np.zeros((min(self.slots, FIRST_SLOTS), kernels.SLOT), np.int64)
        self.state = np.array([0, NONE], np.int64)
        self.secret: tuple[int, int] = struct.unpack("<qq", os.urandom(16))

    @property
    def size(self) -> int:
        return int(self.state[kernels.SIZE])

    @property
    def latest(self) -> int:
        """The last offset that the map covers."""
        return int(self.state[kernels.LATEST])

    def reach(self, offset: int) -> None:
        """Cover everything up to an offset: there is nothing more in front of it."""
        self.state[kernels.LATEST] = offset

    def put(self, locations: RecordLocations, last_offsets: NDArray[np.int64], first_dirty: int) -> bool:
        """Take in the keys of batches; whether the map is full."""
        digests, lasts, row = self._digests(locations), np.ascontiguousarray(last_offsets), 0
        while True:
            is_largest = len(self.table) == self.slots
            most = self.most if is_largest else len(self.table) // 2
            _, row, status = kernels.map_keys(
                digests,
                locations.sizes,
                locations.offsets,
                locations.firsts,
                lasts,
                row,
                first_dirty,
                most,
                self.table,
                self.state,
            )
            if status != Status.FULL or is_largest:
                return bool(status == Status.FULL)
            larger = np.zeros((min(self.slots, len(self.table) * GROWTH), kernels.SLOT), np.int64)
            kernels.move_keys(self.table, larger)
            self.table = larger

    def judge(self, locations: RecordLocations, keeps_deletes: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], int]:
        """Which records stay, and how many go because they have no key."""
        keep = np.empty(locations.offsets.size, np.bool_)
        _, without, _ = kernels.judge_records(
            self._digests(locations), locations.sizes, locations.offsets, locations.firsts, keeps_deletes, locations.nulls,
            self.table, self.latest, keep,
        )  # fmt: skip
        return keep, int(without)

    def _digests(self, locations: RecordLocations) -> NDArray[np.int64]:
        digests = np.empty((2, locations.keys.size), np.int64)
        kernels.digest_keys(locations.data, locations.keys, locations.sizes, *self.secret, digests)
        return digests


@dataclass(frozen=True, slots=True)
class RecordLocations:
    """Where the keys of records are: rows firsts[i] to firsts[i + 1] are those of batch i. A size of -1 is no key."""

    data: Bytes
    firsts: NDArray[np.int64]
    offsets: NDArray[np.int64]
    keys: NDArray[np.int64]
    sizes: NDArray[np.int64]
    nulls: NDArray[np.bool_]

    @property
    def counts(self) -> NDArray[np.int64]:
        return np.diff(self.firsts)


def locate(frames: Frames, head: Heads, limit: int) -> RecordLocations:
    """The records of frames that are all of magic 2, or all older. TooMuch if they decompress to more than is meant to be in memory,
    LimitError for a batch with more records than that.
    """
    if len(frames) and head["magic"][0] != MAGIC_V2:
        return _locate_legacy(frames, head, limit)
    counts = np.ascontiguousarray(head["record_count"])
    if (large := np.flatnonzero(counts > WHOLE_ROWS)).size:
        what = f"{int(counts[large[0]]):,} records in one batch, more than the {WHOLE_ROWS:,} that can be rewritten"
        raise LimitError(what, position=int(frames.starts[large[0]]), layout=BATCH.name, field="record_count")
    data, starts, stops = _decompress(frames, head, limit)
    room = int(np.clip(np.minimum(counts, (stops - starts) // SMALLEST_RECORD), 0, None).sum())
    offsets, keys, sizes = (np.empty(room, np.int64) for _ in range(3))
    nulls = np.empty(room, np.bool_)
    count, _, status = kernels.locate_records_v2(
        data, starts, stops, counts, np.ascontiguousarray(head["base_offset"]), offsets, keys, sizes, nulls
    )
    if status != OK:
        ends = np.cumsum(np.clip(counts, 0, None))
        bad = min(
            int(np.searchsorted(ends, count, side="left" if status == Status.TRAILING else "right")), len(head) - 1
        )
        raise CorruptError(
            "records that do not fill their batch", position=int(frames.starts[bad]), layout=BATCH.name, field="records"
        )
    return RecordLocations(
        data, np.concatenate((np.zeros(1, np.int64), np.cumsum(counts))), offsets, keys, sizes, nulls
    )


def _decompress(frames: Frames, head: Heads, limit: int) -> tuple[Bytes, NDArray[np.int64], NDArray[np.int64]]:
    """The records' bytes, decompressed where they must be."""
    starts, codecs = frames.starts + BATCH.size, head.codec
    if not codecs.any():
        return byte_view(frames.data), starts, np.ascontiguousarray(frames.stops)
    window: Any = memoryview(byte_view(frames.data))  # type: ignore[arg-type]
    contents: list[Any] = []
    total = 0
    for index, (start, stop, codec) in enumerate(
        zip(starts.tolist(), frames.stops.tolist(), codecs.tolist(), strict=True)
    ):
        if codec >= len(CODECS):
            raise CorruptError(f"codec {codec}", position=start - BATCH.size, layout=BATCH.name, field="attributes")
        try:
            contents.append(compression.decompress(CODECS[codec], window[start:stop], limit=limit))
        except DataError as error:
            raise error.at(position=start - BATCH.size, layout=BATCH.name) from None
        total += len(contents[-1])
        if total > TOTAL and index:
            raise TooMuch(index)
    ends = np.cumsum(np.array([len(content) for content in contents], np.int64))
    begins = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
    return byte_view(b"".join((*contents, bytes(SLACK)))), begins, ends


def _locate_legacy(frames: Frames, head: Heads, limit: int) -> RecordLocations:
    columns = decode_legacy(
        frames.data, frames.starts, frames.stops, {"key", "value", "offset"}, head=head, limit=limit, total=TOTAL
    )
    keys = columns.arrays["key"]
    _, ends, content = keys.buffers()
    edges = np.frombuffer(ends, np.int32)[: columns.count + 1].astype(np.int64)
    sizes = np.where(keys.is_null().to_numpy(zero_copy_only=False), NONE, np.diff(edges))
    return RecordLocations(
        byte_view(content if content is not None else b""),
        np.concatenate((np.zeros(1, np.int64), np.cumsum(columns.counts))),
        np.ascontiguousarray(columns.arrays["offset"].to_numpy()),
        np.ascontiguousarray(edges[:-1]),
        sizes,
        np.ascontiguousarray(columns.arrays["value"].is_null().to_numpy(zero_copy_only=False)),
    )


class Tracker:
    """The transactions that a walk over batches in log order meets."""

    def __init__(self, aborted: Sequence[AbortedTxn], producers: NDArray[np.int64]) -> None:
        self.aborted = sorted(aborted, key=lambda transaction: transaction.first_offset)
        self.producers = producers
        firsts = [transaction.first_offset for transaction in self.aborted]
        self._firsts = np.array(firsts, np.int64)
        self._owners = self.number(np.array([transaction.producer_id for transaction in self.aborted], np.int64))
        self._state = np.zeros(1, np.int64)
        self._ongoing = np.zeros(producers.size, np.int64)
        self._committed = np.zeros(producers.size, np.bool_)
        self._seen, self._kept = np.zeros(len(firsts), np.bool_), np.zeros(len(firsts), np.bool_)

    def number(self, producers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The place of every producer id among the known ones, -1 if it is not among them."""
        at = np.searchsorted(self.producers, producers)
        at[at == self.producers.size] = 0
        is_known = self.producers[at] == producers if self.producers.size else np.zeros(at.size, np.bool_)
        return np.where(is_known, at, NONE)

    def discards(self, frames: Frames, head: Heads) -> NDArray[np.bool_]:
        """Which batches their transactions let go of: the data of aborted ones, markers of those that have no data left."""
        attributes = np.where(head["magic"] == MAGIC_V2, head["attributes"], 0)
        kinds = _kinds(frames, attributes, head["record_count"])
        discard = np.empty(len(head), np.bool_)
        kernels.judge_batches(
            np.ascontiguousarray(head["last_offset"]), attributes, kinds, self.number(head["producer_id"]), self._firsts,
            self._owners, self._state, self._ongoing, self._committed, self._seen, self._kept, discard,
        )  # fmt: skip
        return discard

    def take_kept(self) -> list[AbortedTxn]:
        """The aborted transactions whose markers were met since the last call and stay, in the order of the markers."""
        chosen = [self.aborted[index] for index in np.flatnonzero(self._kept).tolist()]
        self._kept[:] = False
        return sorted(chosen, key=lambda transaction: transaction.last_offset)


def _kinds(frames: Frames, attributes: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """What every batch is to the cleaner: data, an empty control batch, the type of the marker it holds, or another control batch."""
    control = attributes & int(Attributes.CONTROL) != 0
    kinds = np.where(control, np.where(counts <= 0, kernels.EMPTY, kernels.OTHER), kernels.DATA).astype(np.int64)
    full = np.flatnonzero(control & (counts > 0))
    if full.size:
        types, _, _ = marker_fields(frames, full)
        is_marker = np.isin(types, (ControlType.ABORT, ControlType.COMMIT))
        kinds[full[is_marker]] = types[is_marker]
    return kinds


@dataclass(slots=True)
class Counts:
    """What rounds read, kept and dropped."""

    records_read: int = 0
    records_kept: int = 0
    without_key: int = 0
    batches_read: int = 0
    batches_kept: int = 0


@dataclass(slots=True)
class Round:
    """The input of one round: times in ms, a range of offsets, active producers, aborted transactions."""

    now: int
    delete_retention_ms: int
    first_dirty: int
    first_uncleanable: int
    active: Mapping[int, ProducerState]
    aborted: Sequence[AbortedTxn]
    producers: NDArray[np.int64]
    keys: KeyMap
    limit: int = compression.DEFAULT_LIMIT
    counts: Counts = field(default_factory=Counts)
    tracker: Tracker = field(init=False)
    _last: tuple[NDArray[np.int64], NDArray[np.int64]] = field(init=False)

    def __post_init__(self) -> None:
        self.tracker = Tracker(self.aborted, self.producers)
        states = [self.active.get(number) for number in self.producers.tolist()]
        self._last = (
            np.array([-2 if state is None else state.last_offset for state in states], np.int64),
            np.array([-2 if state is None else state.epoch for state in states], np.int64),
        )

    def build(self, segments: Sequence[tuple[File, int]]) -> None:
        """Fill the map from dirty segments, each with the offset at which the next one begins."""
        tracker = Tracker(
            [transaction for transaction in self.aborted if transaction.last_offset >= self.first_dirty], self.producers
        )
        for segment, next_offset in segments:
            for frames, head in _windows(segment):
                skip = tracker.discards(frames, head) | head.has(Attributes.CONTROL)
                for start, stop in pieces(frames, head):
                    if self._put(frames.slice(start, stop), head.slice(start, stop), skip[start:stop], segment):
                        return
            self.keys.reach(next_offset - 1)

    def _put(self, frames: Frames, head: Heads, skip: NDArray[np.bool_], segment: File) -> bool:
        """Put the keys of a run of batches into the map; whether it is full."""
        # A batch in front of the dirty part, or without anything to put, still moves the covered end: it counts as one of no records.
        skip = skip | (head["last_offset"] < self.first_dirty)
        opened = ~skip
        try:
            locations = _locate_in_segment(only(frames, opened), head.only(opened), self.limit, segment)
        except TooMuch as full:
            cut = int(np.flatnonzero(opened)[full.fits])
            if self._put(frames.slice(0, cut), head.slice(0, cut), skip[:cut], segment):
                return True
            return self._put(frames.slice(cut, len(frames)), head.slice(cut, len(head)), skip[cut:], segment)
        counts = np.zeros(len(head), np.int64)
        counts[opened] = locations.counts
        spread = RecordLocations(
            locations.data,
            np.concatenate((np.zeros(1, np.int64), np.cumsum(counts))),
            locations.offsets,
            locations.keys,
            locations.sizes,
            locations.nulls,
        )
        return self.keys.put(spread, head["last_offset"], self.first_dirty)

    def clean(self, segment: File, *, keeps_old_deletes: bool) -> Iterator[FilterResult]:
        """What is left of a segment's batches."""
        for frames, head in _windows(segment):
            discard = self.tracker.discards(frames, head)
            for start, stop in pieces(frames, head):
                run = frames.slice(start, stop), head.slice(start, stop), discard[start:stop]
                yield from self._clean(*run, keeps_old_deletes, segment)

    def _clean(
        self, frames: Frames, head: Heads, discard: NDArray[np.bool_], keeps_old_deletes: bool, segment: File
    ) -> Iterator[FilterResult]:
        control, horizon = head.has(Attributes.CONTROL), head.has(Attributes.DELETE_HORIZON)
        expired = horizon & (head["base_timestamp"] <= self.now)
        dropped = discard & (~control | expired)
        retain = self._is_last(head, control) | (head["last_offset"] + 1 == self.first_uncleanable)
        opened = ~control & ~dropped
        try:
            locations = _locate_in_segment(only(frames, opened), head.only(opened), self.limit, segment)
        except TooMuch as full:
            cut = int(np.flatnonzero(opened)[full.fits])
            yield from self._clean(frames.slice(0, cut), head.slice(0, cut), discard[:cut], keeps_old_deletes, segment)
            yield from self._clean(
                frames.slice(cut, len(frames)), head.slice(cut, len(head)), discard[cut:], keeps_old_deletes, segment
            )
            return
        keeps_deletes = np.where(head["magic"] == MAGIC_V2, ~expired, keeps_old_deletes)[opened]
        judged, without = self.keys.judge(locations, keeps_deletes)
        counts = np.clip(head["record_count"], 0, None)
        counts[opened] = locations.counts
        in_opened = np.repeat(opened, counts)
        keep = np.repeat(control & ~dropped, counts)
        keep[in_opened] = judged
        batch = np.repeat(np.arange(len(head)), counts)
        deletes = np.zeros(len(head), np.bool_)
        deletes[batch[in_opened][judged & locations.nulls]] = True
        wants_horizon = (head["magic"] == MAGIC_V2) & ~horizon & (deletes | (control & discard))
        horizons = np.where(wants_horizon, self.now + self.delete_retention_ms, NONE)
        left = keep_records(frames, head, counts, keep, retain=retain, horizons=horizons, limit=self.limit)
        self._count(frames, counts, keep, left, without)
        yield left

    def _is_last(self, head: Heads, control: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which batches hold the last sequence of an active producer; its epoch if it has no sequence."""
        number = self.tracker.number(head["producer_id"])
        if not self.producers.size:
            return np.zeros(len(head), np.bool_)
        is_known = (number >= 0) & (head["producer_id"] >= 0)
        last, epoch = self._last[0][number], self._last[1][number]
        by_data = (last >= 0) & (head["last_offset"] == last)
        by_epoch = (last == NONE) & control & (head["producer_epoch"] == epoch)
        test: NDArray[np.bool_] = is_known & (by_data | by_epoch)
        return test

    def _count(
        self, frames: Frames, counts: NDArray[np.int64], keep: NDArray[np.bool_], left: FilterResult, without: int
    ) -> None:
        total = self.counts
        total.records_read += int(counts.sum())
        total.records_kept += int(keep.sum())
        total.without_key += without
        total.batches_read += len(frames)
        total.batches_kept += len(left.frames)


def _windows(segment: File) -> Iterator[tuple[Frames, Heads]]:
    """The batches of a segment, whose checksums have been checked."""
    from rawlog.formats.kafka import LOG

    for frames in walk(segment, LOG, errors="raise"):
        if len(frames):
            yield frames, heads(frames, check_crc=False)


def _locate_in_segment(frames: Frames, head: Heads, limit: int, segment: File) -> RecordLocations:
    try:
        return locate(frames, head, limit)
    except DataError as error:
        bad = max(int(np.searchsorted(frames.starts, error.position or 0, side="right")) - 1, 0)
        error.position = int(frames.positions[bad])
        raise error.at(path=segment.path, format="kafka.log") from None


SMALLEST_MEMORY = 1 << 10
FLAGS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True, slots=True)
class Settings:
    """A topic's settings and a cleaner's, under Kafka's names with underscores; the defaults are Kafka's.

    `now` is in ms (default: the clock). `memory` bounds the map of keys; `first_dirty` replaces the cleaner checkpoint's line.
    `roll` takes the active segment for one that is full, so that it is compacted too.
    """

    delete_retention_ms: int = 86_400_000
    min_compaction_lag_ms: int = 0
    segment_bytes: int = 1 << 30
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    producer_id_expiration_ms: int = 86_400_000
    memory: int = 128 << 20
    now: int = -1
    first_dirty: int = -1
    roll: bool = False

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Settings:
        """What options say: `delete.retention.ms` and `delete_retention_ms` are the same. OptionError for an invalid value."""
        values = {name.replace(".", "_").replace("-", "_"): text for name, text in options.items()}
        names = [setting.name for setting in fields(cls)]
        for name in values:
            if name not in names:
                raise unknown("option of kafka", name, names)
        SegmentLimits.from_options({name: values[name] for name in values if name.startswith(("segment_", "index_"))})
        least = {"memory": SMALLEST_MEMORY}
        numbers = {
            name: whole_number(values, name, least.get(name, 0)) for name in values if name not in ("now", "roll")
        }
        if values.get("roll", "false").lower() not in FLAGS:
            raise OptionError(f"roll {values['roll']!r}: true or false expected")
        return replace(
            cls(), **numbers, now=parse_now(values.get("now")), roll=FLAGS[values.get("roll", "false").lower()]
        )


class _CarriedDerivation(Derivation):
    """The files next to a compacted log, carried over from the log before: the compacted one no longer tells them."""

    def __init__(self, partition: LoadedPartition) -> None:
        super().__init__()
        self.partition = partition
        self.entries: list[AbortedTxn] = []

    def add(self, frames: Frames, head: Heads) -> None:
        pass

    def end_segment(self) -> bytes:
        entries, self.entries = self.entries, []
        return txnindex(entries)

    def snapshot(self, offset: int) -> bytes:
        # Of a round between, whose end is not that of a segment, nobody asks for one.
        return self.partition.snapshots.get(offset, b"")

    def epochs_file(self) -> bytes:
        return self.partition.epochs


# The verb ------------------------------------------------------------------------------------------------------------


def stores(files: Sequence[File], options: Mapping[str, str]) -> list[Store]:
    """A store for each partition of the topics that `topic` names: a glob, or several with commas between."""
    globs = [glob for glob in options.get("topic", "*").split(",") if glob]
    Settings.from_options(_cleaner_options(options))
    return partitions([file for file in files if _is_compacted(file.place.topic, globs)], options)


def _is_compacted(topic: str | None, globs: Iterable[str]) -> bool:
    return topic != METADATA_TOPIC and any(glob == "*" or fnmatchcase(topic or "", glob) for glob in globs)


def _cleaner_options(options: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if name not in ("topic", "at_once")}


def compact(store: Store, folder: Folder, options: Mapping[str, str]) -> Report:
    """Write a compacted copy of a partition. Options as in `Settings`; `at_once` partitions share the memory. DataError for damage."""
    settings = Settings.from_options(_cleaner_options(options))
    shared = max(SMALLEST_MEMORY, settings.memory // int(options.get("at_once", "1")))
    settings = replace(settings, memory=shared)
    partition = load(store)
    partition.expire(settings.now, settings.producer_id_expiration_ms)
    names = ("rounds", "segments_before", "segments", "records_read", "records_kept", "records_without_key")
    report = new_report(**dict.fromkeys((*names, "batches_read", "batches_kept", "bytes_before", "bytes", "gaps"), 0))
    report.facts["end_offset"] = partition.end_offset
    report.count("segments_before", len(partition.segments))
    report.count("bytes_before", sum(segment.size for segment in partition.segments))
    log = settled_log(store, report)
    refuse_misplaced(log, "`rawlog repair` handles it")
    compaction = Compaction(partition, settings, report, topic_id_of(store), log.corrections)
    with contextlib.ExitStack() as stack:
        # What a round between leaves is read by the next one, also in a dry run.
        rounds = Folder(stack.enter_context(scratch("compact-"))) if folder.dry_run else folder
        compaction.run(folder, rounds)
    # The line of the cleaner would show that it has not come to what is missing after it: nothing tells that.
    if any(last >= report.facts["first_dirty"] for _, last in log.undecided):
        del report.facts["first_dirty"]
    return report


class Compaction:
    """A partition on its way through its rounds, and the policy of the one it is in: each group of segments becomes one, what is not
    compacted yet stays as it is.
    """

    limits: SegmentLimits | None = None

    def __init__(
        self,
        partition: LoadedPartition,
        settings: Settings,
        report: Report,
        metadata: bytes | None,
        corrections: Sequence[Correction] = (),
    ) -> None:
        self.partition, self.settings, self.report, self.metadata = partition, settings, report, metadata
        #: The leader epochs to set right.
        self.corrections = corrections
        self.interval = settings.index_interval_bytes
        self.derivation: Derivation | None = None
        self.source = list(partition.segments)
        self.aborted = list(partition.aborted)
        self.active = partition.end_offset if settings.roll else self.source[-1].base
        self.round: Round | None = None
        #: Where the round ends, and whether others follow.
        self.end, self.stop, self.is_last = 0, 0, True

    def run(self, folder: Folder, rounds: Folder) -> None:
        """Write the result; what the rounds between leave goes below `rounds`, and is removed."""
        self.end = self._first_dirty()
        self.stop = self._first_uncleanable(self.end)
        if not self._dirty_segments(self.end):
            self.report.notes.append("nothing to compact: no closed segment has anything new")
        names: list[str] = []
        while self._dirty_segments(self.end):
            self.round = self._prepare(self.end)
            self.end = self.round.keys.latest + 1
            self.is_last = not self._dirty_segments(self.end)
            if self.is_last:
                break
            names.append(f"round-{len(names)}")
            self._write(rounds.folder(names[-1]))
            self.source = [
                _measure(segment) if segment not in self.partition.segments else segment for segment in self.source
            ]
        self.is_last = True
        writer = self._write(folder)
        for name in names:
            rounds.remove(name)
        self.report.counts |= {"segments": writer.segments, "bytes": writer.bytes}
        self.report.facts |= {"first_dirty": self.end, "first_uncleanable": self.stop}
        without = self.report.counts["records_without_key"]
        if without:
            self.report.add(Action.REMOVED, f"{counted(without, 'record')} without a key, as Kafka's cleaner does")
        if removed := self.report.counts["records_read"] - self.report.counts["records_kept"] - without:
            self.report.add(Action.REMOVED, f"{counted(removed, 'record')} that later ones replace")

    def _write(self, folder: Folder) -> PartitionWriter:
        self.derivation = _CarriedDerivation(self.partition)
        writer = rewrite(folder, self, corrections=self.corrections)
        if self.round is not None:
            self._count(self.round.counts)
            self.round = None
        return writer

    def _count(self, counts: Counts) -> None:
        """Count a round: the next one reads again what this one left."""
        totals = self.report.counts
        records, batches = (
            totals["records_read"] - totals["records_kept"],
            totals["batches_read"] - totals["batches_kept"],
        )
        totals |= {"records_read": counts.records_read + records, "batches_read": counts.batches_read + batches}
        totals |= {"records_kept": counts.records_kept, "batches_kept": counts.batches_kept}
        self.report.count("records_without_key", counts.without_key)
        self.report.count("rounds")

    # Which part of the log ---------------------------------------------------------------------------------------

    def _first_dirty(self) -> int:
        """The end of the last compaction; the start of the log if the end is unknown or invalid."""
        start, dirty = self.partition.start_offset, self.settings.first_dirty
        place = self.source[0].file.place
        if dirty < 0 and place.topic is not None and place.partition is not None and place.group is not None:
            dirty = offsets_in(split(place.group)[0], CLEANER).get((place.topic, place.partition), start)
        return dirty if start <= dirty <= self.partition.end_offset else start

    def _first_uncleanable(self, first_dirty: int) -> int:
        """The base of the first segment that must stay: the active one, one with undecided transactions, one that is too new."""
        bound = min(self.partition.last_stable_offset, self.active)
        lag = self.settings.min_compaction_lag_ms
        if lag > 0:
            young = [
                segment.base
                for segment in self._closed_segments(first_dirty, self.active)
                if segment.largest_timestamp > self.settings.now - lag
            ]
            bound = min([bound, *young])
        return max(
            (segment.base for segment in self.source if segment.base <= bound < self.active), default=self.active
        )

    def _closed_segments(self, start: int, stop: int) -> list[Segment]:
        """The segments that hold offsets from `start` on and begin before `stop`."""
        floor = max((segment.base for segment in self.source if segment.base <= start), default=start)
        return [segment for segment in self.source if floor <= segment.base < stop] if start < stop else []

    def _dirty_segments(self, first_dirty: int) -> list[Segment]:
        dirty = self._closed_segments(first_dirty, self.stop)
        return dirty if sum(segment.size for segment in dirty) else []

    # A round -----------------------------------------------------------------------------------------------------

    def _prepare(self, first_dirty: int) -> Round:
        """A round with its map of keys."""
        dirty = self._dirty_segments(first_dirty)
        round = Round(
            self.settings.now,
            self.settings.delete_retention_ms,
            first_dirty,
            self.stop,
            self.partition.producers,
            self.aborted,
            self.partition.producer_ids,
            KeyMap(self.settings.memory),
        )
        ends = [segment.base for segment in dirty[1:]] + [self.stop]
        round.build([(segment.file, end) for segment, end in zip(dirty, ends, strict=True)])
        return round

    def segments(self, writer: PartitionWriter) -> Iterator[NewSegment]:
        """Each group of segments below the end of the round as one; in the last round also all others."""
        rest = self.source
        if self.round is not None:
            rest = [segment for segment in self.source if segment.base >= self.end]
            groups = _groups([segment for segment in self.source if segment.base < self.end], self.settings, self.stop)
            before = [segment for segment in self.source if segment.base < self.round.first_dirty]
            horizon = before[-1].modified_ms - self.settings.delete_retention_ms if before else 0
            cleaned_segments: list[Segment] = []
            aborted: list[AbortedTxn] = []
            for group in groups:
                cleaned = self._clean_group(group, self.round, horizon, writer, cleaned_segments, aborted)
                yield NewSegment(group[0].base, cleaned, group[-1].file.modified)
            following = rest[0].base if rest else self.partition.end_offset
            self.source = cleaned_segments + rest
            self.aborted = aborted + [
                transaction for transaction in self.aborted if transaction.last_offset >= following
            ]
        if not self.is_last:
            return
        for number, segment in enumerate(rest):
            stop = rest[number + 1].base if number + 1 < len(rest) else self.partition.end_offset + 1
            copied = self._copy(segment, stop, is_last=number + 1 == len(rest))
            yield NewSegment(segment.base, copied, segment.file.modified)
        if self.settings.roll and self.source[-1].base < self.partition.end_offset:
            yield NewSegment(self.partition.end_offset)

    def _clean_group(
        self,
        group: Sequence[Segment],
        round: Round,
        horizon: int,
        writer: PartitionWriter,
        cleaned_segments: list[Segment],
        aborted: list[AbortedTxn],
    ) -> Iterator[tuple[Frames, Heads]]:
        """The batches left of a group of segments. Adds the new segment and its aborted transactions to the lists."""
        size, top = writer.bytes, -1
        for segment in group:
            for left in round.clean(segment.file, keeps_old_deletes=segment.modified_ms > horizon):
                if len(left.frames):
                    yield left.frames, left.head
                    top = max(top, int(left.head["max_timestamp"].max()))
        entries = round.tracker.take_kept()
        self._list_aborted(entries)
        aborted += entries
        file, base = group[-1].file, group[0].base
        path = str(writer.folder.path / segment_name(base, "log"))
        file = replace(file, path=path, size=writer.bytes - size, place=replace(file.place, start_offset=base))
        cleaned_segments.append(Segment(file, base, max_timestamp=top))

    def _copy(self, segment: Segment, stop: int, *, is_last: bool) -> Iterator[tuple[Frames, Heads]]:
        """A segment as it is, whose offsets end before `stop`."""
        yield from whole_batches(segment.file, self.report, is_last=is_last)
        self._list_aborted(
            [transaction for transaction in self.aborted if segment.base <= transaction.last_offset < stop]
        )

    def _list_aborted(self, entries: list[AbortedTxn]) -> None:
        """Say what the transaction index of the open segment lists."""
        assert isinstance(self.derivation, _CarriedDerivation)
        self.derivation.entries = entries


def _measure(segment: Segment) -> Segment:
    """The same, with the sizes of the indexes that are next to it now."""
    path = Path(local_path(segment.file.path))
    sizes = [path.with_suffix(suffix) for suffix in (".index", ".timeindex")]
    index, times = (index_file.stat().st_size if index_file.exists() else 0 for index_file in sizes)
    return replace(segment, index_bytes=index, timeindex_bytes=times)


def _groups(segments: Sequence[Segment], settings: Settings, first_uncleanable: int) -> list[list[Segment]]:
    """Segments that become one: as many as fit, left to right."""
    groups: list[list[Segment]] = []
    sizes = [0, 0, 0]
    for number, segment in enumerate(segments):
        segment_sizes = [segment.size, segment.index_bytes, segment.timeindex_bytes]
        last = (segments[number + 1].base if number + 1 < len(segments) else first_uncleanable) - 1
        fits = (
            groups
            and sizes[0] + segment_sizes[0] <= settings.segment_bytes
            and sizes[1] + segment_sizes[1] <= settings.segment_index_bytes
            and sizes[2] + segment_sizes[2] <= settings.segment_index_bytes
            and (segment.size == 0 or last - groups[-1][0].base <= MOST)
        )
        if fits:
            groups[-1].append(segment)
            sizes = [before + more for before, more in zip(sizes, segment_sizes, strict=True)]
        else:
            groups.append([segment])
            sizes = segment_sizes
    return groups
