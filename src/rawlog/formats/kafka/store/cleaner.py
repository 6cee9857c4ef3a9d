"""One round of log compaction: the map of keys, and the fate of every batch and record (Cleaner, CleanedTransactionMetadata).

Which segments are cleaned, and where what is left is written, is for `compact` to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawlog.core.errors import CorruptError, DataError, LimitError
from rawlog.core.format import File
from rawlog.core.frames import Bytes, Frames
from rawlog.core.status import OK, Status
from rawlog.formats.kafka.heads import Heads, heads
from rawlog.formats.kafka.kernels import compact as kernels
from rawlog.formats.kafka.layouts import BATCH, CODECS, MAGIC_V2, NONE, SMALLEST_RECORD, Attributes, ControlType
from rawlog.formats.kafka.legacy import decode_legacy
from rawlog.formats.kafka.log import TOTAL, only, pieces
from rawlog.formats.kafka.reader import WHOLE_ROWS, TooMuch
from rawlog.formats.kafka.store.filtering import Filtered, keep_records
from rawlog.formats.kafka.store.state import Aborted, Producer, marker_fields
from rawlog.io import compression
from rawlog.io.walk import walk
from rawlog.kernels import byte_view
from rawlog.kernels.blocks import SCRATCH
from rawlog.kernels.gather import SLACK

SLOT_BYTES = 8 * kernels.SLOT
LOAD = 0.9
"""How much of the map may be in use (log.cleaner.io.buffer.load.factor)."""
FIRST_SLOTS, GROWTH = 1 << 14, 4
"""A map begins small, so that the caches hold it where there are few keys, and grows while it is half full."""


class KeyMap:
    """The latest offset of every key, in slots of 24 bytes, never more than `memory` holds."""

    def __init__(self, memory: int) -> None:
        self.slots = max(1, memory // SLOT_BYTES)
        self.most = int(self.slots * LOAD)
        self.table = np.zeros((min(self.slots, FIRST_SLOTS), kernels.SLOT), np.int64)
        self.state = np.array([0, NONE], np.int64)
        self.scratch = np.zeros(SCRATCH, np.uint8)

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

    def put(self, located: Located, last_offsets: NDArray[np.int64], first_dirty: int) -> bool:
        """Take in the keys of batches; whether the map is full."""
        digests, lasts, row = self._digests(located), np.ascontiguousarray(last_offsets), 0
        while True:
            is_largest = len(self.table) == self.slots
            most = self.most if is_largest else len(self.table) // 2
            _, row, status = kernels.map_keys(
                digests,
                located.sizes,
                located.offsets,
                located.firsts,
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

    def judge(self, located: Located, keeps_deletes: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], int]:
        """Which records stay, and how many go because they have no key."""
        keep = np.empty(located.offsets.size, np.bool_)
        _, without, _ = kernels.judge_records(
            self._digests(located), located.sizes, located.offsets, located.firsts, keeps_deletes, located.nulls,
            self.table, self.latest, keep,
        )  # fmt: skip
        return keep, int(without)

    def _digests(self, located: Located) -> NDArray[np.int64]:
        made = np.empty((2, located.keys.size), np.int64)
        kernels.digest_keys(located.data, located.keys, located.sizes, self.scratch, made)
        return made


@dataclass(frozen=True, slots=True)
class Located:
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


def locate(frames: Frames, head: Heads, limit: int) -> Located:
    """The records of frames that are all of magic 2, or all older. TooMuch if they decompress to more than is meant to be in memory,
    LimitError for a batch with more records than that.
    """
    if len(frames) and head["magic"][0] != MAGIC_V2:
        return _locate_legacy(frames, head, limit)
    counts = np.ascontiguousarray(head["record_count"])
    if (large := np.flatnonzero(counts > WHOLE_ROWS)).size:
        what = f"{int(counts[large[0]]):,} records in one batch, more than the {WHOLE_ROWS:,} that can be rewritten"
        raise LimitError(what, position=int(frames.starts[large[0]]), layout=BATCH.name, field="record_count")
    data, starts, stops = _laid_bare(frames, head, limit)
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
    return Located(data, np.concatenate((np.zeros(1, np.int64), np.cumsum(counts))), offsets, keys, sizes, nulls)


def _laid_bare(frames: Frames, head: Heads, limit: int) -> tuple[Bytes, NDArray[np.int64], NDArray[np.int64]]:
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
    ends = np.cumsum(np.array([len(one) for one in contents], np.int64))
    begins = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
    return byte_view(b"".join((*contents, bytes(SLACK)))), begins, ends


def _locate_legacy(frames: Frames, head: Heads, limit: int) -> Located:
    found = decode_legacy(
        frames.data, frames.starts, frames.stops, {"key", "value", "offset"}, head=head, limit=limit, total=TOTAL
    )
    keys = found.arrays["key"]
    _, ends, content = keys.buffers()
    edges = np.frombuffer(ends, np.int32)[: found.count + 1].astype(np.int64)
    sizes = np.where(keys.is_null().to_numpy(zero_copy_only=False), NONE, np.diff(edges))
    return Located(
        byte_view(content if content is not None else b""),
        np.concatenate((np.zeros(1, np.int64), np.cumsum(found.counts))),
        np.ascontiguousarray(found.arrays["offset"].to_numpy()),
        np.ascontiguousarray(edges[:-1]),
        sizes,
        np.ascontiguousarray(found.arrays["value"].is_null().to_numpy(zero_copy_only=False)),
    )


class Tracker:
    """The transactions that a walk over batches in log order meets."""

    def __init__(self, aborted: Sequence[Aborted], producers: NDArray[np.int64]) -> None:
        self.aborted = sorted(aborted, key=lambda one: one.first_offset)
        self.producers = producers
        firsts = [one.first_offset for one in self.aborted]
        self._firsts = np.array(firsts, np.int64)
        self._owners = self.number(np.array([one.producer_id for one in self.aborted], np.int64))
        self._state = np.zeros(1, np.int64)
        self._ongoing = np.zeros(producers.size, np.int64)
        self._committed = np.zeros(producers.size, np.bool_)
        self._seen, self._kept = np.zeros(len(firsts), np.bool_), np.zeros(len(firsts), np.bool_)

    def number(self, producers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The place of every producer id among those that are known, -1 for one that is not."""
        at = np.searchsorted(self.producers, producers)
        at[at == self.producers.size] = 0
        known = self.producers[at] == producers if self.producers.size else np.zeros(at.size, np.bool_)
        return np.where(known, at, NONE)

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

    def take_kept(self) -> list[Aborted]:
        """The aborted transactions whose markers were met since the last call and stay, in the order of the markers."""
        chosen = [self.aborted[index] for index in np.flatnonzero(self._kept).tolist()]
        self._kept[:] = False
        return sorted(chosen, key=lambda one: one.last_offset)


def _kinds(frames: Frames, attributes: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """What every batch is to the cleaner: data, an empty control batch, the type of the marker it holds, or another control batch."""
    control = attributes & int(Attributes.CONTROL) != 0
    kinds = np.where(control, np.where(counts <= 0, kernels.EMPTY, kernels.OTHER), kernels.DATA).astype(np.int64)
    full = np.flatnonzero(control & (counts > 0))
    if full.size:
        types, _, _ = marker_fields(frames, full)
        known = np.isin(types, (ControlType.ABORT, ControlType.COMMIT))
        kinds[full[known]] = types[known]
    return kinds


@dataclass(slots=True)
class Counts:
    """What rounds read, kept and dropped."""

    records_read: int = 0
    records_kept: int = 0
    without_key: int = 0
    batches_read: int = 0
    batches_kept: int = 0
    bytes_read: int = 0
    bytes_kept: int = 0


@dataclass(slots=True)
class Round:
    """What one round goes by: times in ms, the range of offsets, who is active, what was aborted."""

    now: int
    delete_retention_ms: int
    first_dirty: int
    first_uncleanable: int
    active: Mapping[int, Producer]
    aborted: Sequence[Aborted]
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
            np.array([-2 if one is None else one.last_offset for one in states], np.int64),
            np.array([-2 if one is None else one.epoch for one in states], np.int64),
        )

    def build(self, segments: Sequence[tuple[File, int]]) -> None:
        """Fill the map from dirty segments, each with the offset at which the next one begins."""
        tracker = Tracker([one for one in self.aborted if one.last_offset >= self.first_dirty], self.producers)
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
            located = _located(only(frames, opened), head.only(opened), self.limit, segment)
        except TooMuch as full:
            cut = int(np.flatnonzero(opened)[full.fits])
            if self._put(frames.slice(0, cut), head.slice(0, cut), skip[:cut], segment):
                return True
            return self._put(frames.slice(cut, len(frames)), head.slice(cut, len(head)), skip[cut:], segment)
        counts = np.zeros(len(head), np.int64)
        counts[opened] = located.counts
        spread = Located(
            located.data,
            np.concatenate((np.zeros(1, np.int64), np.cumsum(counts))),
            located.offsets,
            located.keys,
            located.sizes,
            located.nulls,
        )
        return self.keys.put(spread, head["last_offset"], self.first_dirty)

    def clean(self, segment: File, *, keeps_old_deletes: bool) -> Iterator[Filtered]:
        """What is left of a segment's batches."""
        for frames, head in _windows(segment):
            discard = self.tracker.discards(frames, head)
            for start, stop in pieces(frames, head):
                run = frames.slice(start, stop), head.slice(start, stop), discard[start:stop]
                yield from self._clean(*run, keeps_old_deletes, segment)

    def _clean(
        self, frames: Frames, head: Heads, discard: NDArray[np.bool_], keeps_old_deletes: bool, segment: File
    ) -> Iterator[Filtered]:
        control, horizon = head.has(Attributes.CONTROL), head.has(Attributes.DELETE_HORIZON)
        expired = horizon & (head["base_timestamp"] <= self.now)
        dropped = discard & (~control | expired)
        retain = self._is_last(head, control) | (head["last_offset"] + 1 == self.first_uncleanable)
        opened = ~control & ~dropped
        try:
            located = _located(only(frames, opened), head.only(opened), self.limit, segment)
        except TooMuch as full:
            cut = int(np.flatnonzero(opened)[full.fits])
            yield from self._clean(frames.slice(0, cut), head.slice(0, cut), discard[:cut], keeps_old_deletes, segment)
            yield from self._clean(
                frames.slice(cut, len(frames)), head.slice(cut, len(head)), discard[cut:], keeps_old_deletes, segment
            )
            return
        keeps_deletes = np.where(head["magic"] == MAGIC_V2, ~expired, keeps_old_deletes)[opened]
        judged, without = self.keys.judge(located, keeps_deletes)
        counts = np.clip(head["record_count"], 0, None)
        counts[opened] = located.counts
        own = np.repeat(opened, counts)
        keep = np.repeat(control & ~dropped, counts)
        keep[own] = judged
        batch = np.repeat(np.arange(len(head)), counts)
        deletes = np.zeros(len(head), np.bool_)
        deletes[batch[own][judged & located.nulls]] = True
        wants_horizon = (head["magic"] == MAGIC_V2) & ~horizon & (deletes | (control & discard))
        horizons = np.where(wants_horizon, self.now + self.delete_retention_ms, NONE)
        left = keep_records(frames, head, counts, keep, retain=retain, horizons=horizons, limit=self.limit)
        self._count(frames, counts, keep, left, without)
        yield left

    def _is_last(self, head: Heads, control: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which batches hold an active producer's last sequence, or, where it has none, its epoch."""
        number = self.tracker.number(head["producer_id"])
        if not self.producers.size:
            return np.zeros(len(head), np.bool_)
        known = (number >= 0) & (head["producer_id"] >= 0)
        last, epoch = self._last[0][number], self._last[1][number]
        by_data = (last >= 0) & (head["last_offset"] == last)
        by_epoch = (last == NONE) & control & (head["producer_epoch"] == epoch)
        test: NDArray[np.bool_] = known & (by_data | by_epoch)
        return test

    def _count(
        self, frames: Frames, counts: NDArray[np.int64], keep: NDArray[np.bool_], left: Filtered, without: int
    ) -> None:
        total = self.counts
        total.records_read += int(counts.sum())
        total.records_kept += int(keep.sum())
        total.without_key += without
        total.batches_read += len(frames)
        total.batches_kept += len(left.frames)
        total.bytes_read += int(frames.sizes.sum())
        total.bytes_kept += int(left.frames.sizes.sum())


def _windows(segment: File) -> Iterator[tuple[Frames, Heads]]:
    """The batches of a segment, whose checksums have been checked."""
    from rawlog.formats.kafka import LOG

    for frames in walk(segment, LOG, errors="raise"):
        if len(frames):
            yield frames, heads(frames, check_crc=False)


def _located(frames: Frames, head: Heads, limit: int, segment: File) -> Located:
    try:
        return locate(frames, head, limit)
    except DataError as error:
        bad = max(int(np.searchsorted(frames.starts, error.position or 0, side="right")) - 1, 0)
        error.position = int(frames.positions[bad])
        raise error.at(path=segment.path, format="kafka.log") from None
