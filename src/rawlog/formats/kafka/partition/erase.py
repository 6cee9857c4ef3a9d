"""A copy of a partition without some of its records: the same batches at the same offsets, only emptier.

Nothing but the chosen records goes: batches keep their first and last offset, epochs, producers and transactions, control batches
stay as they are, and a batch that loses all its records stays as a bare header, so that producers and offsets go on where they were.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog.formats.kafka.checkpoints import log_start
from rawlog.formats.kafka.internal.messages import CONSUMER_OFFSETS, TRANSACTION_STATE
from rawlog.formats.kafka.log.heads import Heads
from rawlog.formats.kafka.log.kernels import encode
from rawlog.formats.kafka.log.kernels import encode as filter
from rawlog.formats.kafka.log.kernels.records import NO_APPEND_TIME
from rawlog.formats.kafka.log.layouts import BATCH, CODEC_MASK, CODECS, MAGIC_V2, NONE, Attributes
from rawlog.formats.kafka.log.records import COLUMNS, WHOLE_ROWS, TooMuch, decode_legacy, holds_older, milliseconds
from rawlog.formats.kafka.log.segment import decode_bounded, only, pieces
from rawlog.formats.kafka.log.writer import Batching, RowBuffers, encode_legacy
from rawlog.formats.kafka.partition.outline import BatchRange, Outline
from rawlog.formats.kafka.partition.rewrite import NewSegment, new_report, rewrite, settled_log, topic_id_of
from rawlog.formats.kafka.partition.segment_outline import PADDING
from rawlog.formats.kafka.partition.writer import Derivation, PartitionWriter, SegmentLimits
from rawlog.io import compression
from rawlog.io.output import Folder
from rawlog.kernels import byte_view, columns
from rawlog.kernels.columns import batch, constant
from rawlog.kernels.gather import SLACK
from rawlog.model.errors import CorruptError, DataError, EncodeError, LimitError
from rawlog.model.format import File, Keep
from rawlog.model.frames import Frames
from rawlog.model.report import Action, Report
from rawlog.model.status import OK, Status
from rawlog.model.store import Store
from rawlog.model.table import RECORDS
from rawlog.model.text import counted

# ----------------------------------------------------------------------------------------------------------------------
# Batches without some of their records, rewritten as Kafka's log cleaner does (RecordBatch by RecordBatch, none merged or split).
# What is to stay is the caller's choice: compaction keeps the latest of every key, erasing all but chosen ones.


TOTAL = 64 << 20
"""Decompressed bytes that are in memory at a time, unless one batch alone holds more."""
KNOWN_BITS = CODEC_MASK | sum(Attributes)


@dataclass(frozen=True, slots=True)
class FilterResult:
    """The frames that are left, end to end, with their headers. `sources` are their numbers among the input frames."""

    frames: Frames
    head: Heads
    sources: NDArray[np.int64]
    rebuilt: int = 0


def keep_records(
    frames: Frames,
    head: Heads,
    counts: NDArray[np.int64],
    keep: NDArray[np.bool_],
    *,
    retain: NDArray[np.bool_] | None = None,
    horizons: NDArray[np.int64] | None = None,
    limit: int = compression.DEFAULT_LIMIT,
) -> FilterResult:
    """The frames with only the records that `keep` marks, by the rules of the log cleaner (kafka-log.md §6.6).

    `frames` are sound ones of any magic, `head` their headers. `counts` says how many records each holds (what decoding gave,
    `Columns.counts`; for magic 2 the header's own record count), and `keep` has a value for every one of them, in order, those of
    control batches included. `horizons` gives a frame of magic 2 a delete horizon in ms (-1: as it is), which rewrites it even if
    all of its records stay. `retain` says which frames of magic 2 are left as a bare header when no record of theirs stays (default:
    all); other frames that lose everything vanish.

    A frame that keeps all is copied byte for byte, also one that was empty before and is retained; a wrapper of magic 1 with entries of
    magic 0 inside is the exception. A frame that is rewritten keeps its base and last offset, leader epoch, producer id and epoch,
    base sequence, codec, and kind of time; its base time is the horizon, else the time of the first record that stays, and its largest
    time that of those that stay. Magic 0 and 1: the wrapper's offset is that of the last record that stays.
    Raises CorruptError for records that cannot be walked and LimitError for a batch with more records than can be rewritten, with the
    frame's position in `frames.data`; EncodeError for what grows past 2 GiB.
    """
    count = len(frames)
    assert counts.size == count == len(head)
    firsts = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
    assert keep.size == firsts[-1], (keep.size, int(firsts[-1]))
    kept = np.zeros(count, np.int64)
    filled = np.flatnonzero(counts)
    if filled.size:
        kept[filled] = np.add.reduceat(keep, firsts[filled], dtype=np.int64)
    v2 = head["magic"] == MAGIC_V2
    retain = np.ones(count, np.bool_) if retain is None else retain
    horizons = np.full(count, NONE, np.int64) if horizons is None else horizons
    stays = (kept > 0) | (v2 & retain)
    changed = stays & ((kept < counts) | (v2 & (horizons != NONE) & (kept > 0)))
    for index in np.flatnonzero(stays & ~changed & (head["magic"] == 1) & (head.codec > 0)).tolist():
        changed[index] = holds_older(frames.slice(index, index + 1), head.slice(index, index + 1), limit)
    if stays.all() and not changed.any():
        return FilterResult(frames, head, np.arange(count))

    if (large := np.flatnonzero(changed & (kept > 0) & (counts > WHOLE_ROWS))).size:
        what = f"{int(counts[large[0]]):,} records in one batch, more than the {WHOLE_ROWS:,} that can be rewritten"
        raise LimitError(what, position=int(frames.starts[large[0]]), layout=BATCH.name, field="record_count")
    new_head = Heads(head.values.copy())
    pieces: dict[int, Any] = {}
    empty = changed & (kept == 0)
    _make_empty(new_head, empty)
    pieces |= dict.fromkeys(np.flatnonzero(empty).tolist(), bytes(BATCH.size))
    job = _Job(frames, new_head, firsts, keep, kept, horizons, limit)
    for index, piece in job.rebuild_batches(np.flatnonzero(changed & ~empty & v2)):
        pieces[index] = piece
    for index in np.flatnonzero(changed & ~v2).tolist():
        pieces[index] = job.rewrap(index)
    return _put_together(frames, new_head, np.flatnonzero(stays), changed, pieces)


def _make_empty(head: Heads, empty: NDArray[np.bool_]) -> None:
    """Set the headers of batches without records: no codec, no horizon, no base time."""
    bits = int(Attributes.LOG_APPEND_TIME | Attributes.TRANSACTIONAL | Attributes.CONTROL)
    head["attributes"][empty] &= bits
    head["base_timestamp"][empty] = NONE
    head["record_count"][empty] = 0


@dataclass(slots=True)
class _Job:
    """Frames on their way; `head` is changed to what is written."""

    frames: Frames
    head: Heads
    firsts: NDArray[np.int64]
    keep: NDArray[np.bool_]
    kept: NDArray[np.int64]
    horizons: NDArray[np.int64]
    limit: int

    def rebuild_batches(self, chosen: NDArray[np.int64]) -> Iterator[tuple[int, Any]]:
        """The batches of magic 2 that are rewritten, with room for their headers."""
        for group, data, starts, stops in self.open_batches(chosen):
            yield from self.filter_batches(group, data, starts, stops)

    def open_batches(self, chosen: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], Any, Any, Any]]:
        """The records of batches laid bare, as many batches at a time as memory is meant for."""
        frames, codecs = self.frames, self.head.codec
        plain = codecs[chosen] == 0
        if plain.all():
            if chosen.size:
                yield chosen, byte_view(frames.data), frames.starts[chosen] + BATCH.size, frames.stops[chosen]
            return
        window: Any = memoryview(byte_view(frames.data))  # type: ignore[arg-type]
        group: list[int] = []
        contents: list[Any] = []
        total = 0
        for index in chosen.tolist():
            start, stop = int(frames.starts[index]), int(frames.stops[index])
            try:
                content = compression.decompress(
                    CODECS[int(codecs[index])], window[start + BATCH.size : stop], limit=self.limit
                )
            except DataError as error:
                raise error.at(position=start, layout=BATCH.name) from None
            if group and total + len(content) > TOTAL:
                yield _join_contents(group, contents)
                group, contents, total = [], [], 0
            group.append(index)
            contents.append(content)
            total += len(content)
        yield _join_contents(group, contents)

    def filter_batches(
        self, group: NDArray[np.int64], data: Any, starts: NDArray[np.int64], stops: NDArray[np.int64]
    ) -> Iterator[tuple[int, Any]]:
        head, count = self.head, group.size
        numbers = np.diff(self.firsts)[group]
        rows = np.repeat(self.firsts[:-1][group] - (np.cumsum(numbers) - numbers), numbers) + np.arange(numbers.sum())
        firsts = np.concatenate((np.zeros(1, np.int64), np.cumsum(numbers)))
        appended = head.has(Attributes.LOG_APPEND_TIME)[group]
        had = head.has(Attributes.DELETE_HORIZON)[group]
        horizons = self.horizons[group]
        bases = np.where(had, head["base_timestamp"][group], np.int64(filter.FIRST_KEPT))
        bases = np.where(horizons != NONE, horizons, bases)
        room = int((stops - starts).sum()) + (filter.GROWTH + 2) * int(self.kept[group].sum())
        out = np.empty(room + SLACK, np.uint8)
        tops, begins, ends = (np.empty(count, np.int64) for _ in range(3))
        reached, _, status = filter.filter_records_v2(
            data,
            np.ascontiguousarray(starts),
            np.ascontiguousarray(stops),
            firsts,
            self.keep[rows],
            head["base_timestamp"][group],
            np.where(appended, head["max_timestamp"][group], np.int64(NO_APPEND_TIME)),
            bases,
            tops,
            out,
            begins,
            ends,
        )
        if status != OK:
            at = int(self.frames.starts[group[reached]])
            raise CorruptError("records that do not fill their batch", position=at, layout=BATCH.name)
        horizon = int(Attributes.DELETE_HORIZON)
        head["attributes"][group] = (head["attributes"][group] & KNOWN_BITS) | np.where(horizons != NONE, horizon, 0)
        head["base_timestamp"][group] = bases
        head["max_timestamp"][group] = np.where(appended, head["max_timestamp"][group], tops)
        head["record_count"][group] = self.kept[group]
        window: Any = memoryview(out)  # type: ignore[arg-type]
        header = bytes(BATCH.size)
        for index, codec, begin, end in zip(
            group.tolist(), head.codec[group].tolist(), begins.tolist(), ends.tolist(), strict=True
        ):
            yield index, b"".join((header, compression.compress(CODECS[codec], window[begin:end])))

    def rewrap(self, index: int) -> bytes:
        """A wrapper of magic 0 or 1 with only the entries that stay."""
        frame, head = self.frames.slice(index, index + 1), self.head.slice(index, index + 1)
        try:
            decoded = decode_legacy(
                frame.data, frame.starts, frame.stops, COLUMNS, head=head, limit=self.limit, total=self.limit
            )
        except TooMuch:  # pragma: no cover - one frame always fits
            raise AssertionError from None
        arrays = dict(decoded.arrays)
        for name in ("topic", "partition"):
            arrays[name] = constant(None, RECORDS.column(name).type, decoded.count)
        mask = self.keep[self.firsts[index] : self.firsts[index + 1]]
        rows = RowBuffers.of(batch(RECORDS, arrays, decoded.count).filter(pa.array(mask)))
        if decoded.far:  # null in the column
            rows = replace(rows, times=np.ascontiguousarray(milliseconds(arrays["timestamp"])[mask]))
        batching = Batching(CODECS[int(head.codec[0])], magic=int(head["magic"][0]))
        wrapper = encode_legacy(rows, batching, np.array([0, rows.offsets.size], np.int64))
        self.head.values[:, index] = wrapper.head.values[:, 0]
        return bytes(wrapper.frames.data)


def _join_contents(group: list[int], contents: list[Any]) -> tuple[NDArray[np.int64], Any, Any, Any]:
    stops = np.cumsum(np.array([len(content) for content in contents], np.int64))
    starts = np.concatenate((np.zeros(1, np.int64), stops[:-1]))
    # The spare bytes let every copy out of it be a wide one.
    return np.array(group, np.int64), byte_view(b"".join((*contents, bytes(SLACK)))), starts, stops


def _put_together(
    frames: Frames, head: Heads, chosen: NDArray[np.int64], changed: NDArray[np.bool_], pieces: dict[int, Any]
) -> FilterResult:
    """All that stays end to end, runs of untouched frames in one piece; then the headers of rewritten batches."""
    window: Any = memoryview(byte_view(frames.data))  # type: ignore[arg-type]
    sizes = frames.sizes[chosen]
    parts: list[Any] = []
    run: tuple[int, int] | None = None
    for at, index in enumerate(chosen.tolist()):
        if index in pieces:
            if run is not None:
                parts.append(window[run[0] : run[1]])
                run = None
            parts.append(pieces[index])
            sizes[at] = len(pieces[index])
            continue
        start, stop = int(frames.starts[index]), int(frames.stops[index])
        if run is not None and run[1] == start:
            run = (run[0], stop)
            continue
        if run is not None:
            parts.append(window[run[0] : run[1]])
        run = (start, stop)
    if run is not None:
        parts.append(window[run[0] : run[1]])
    out = np.frombuffer(bytearray().join(parts), np.uint8)
    stops = np.cumsum(sizes)
    starts = stops - sizes
    left = Heads(np.ascontiguousarray(head.values[:, chosen]))
    fresh = changed[chosen] & (left["magic"] == MAGIC_V2)
    sealed, _, status = encode.seal_batches(
        out, starts[fresh], stops[fresh], np.ascontiguousarray(left.values[:, fresh])
    )
    if status != OK:
        offset = int(left["base_offset"][fresh][sealed])
        raise EncodeError(f"offset {offset:,}: a batch longer than 2 GiB")
    return FilterResult(Frames(out, starts, stops, out.size, Status.OK), left, chosen, int(changed.sum()))


MOST_RANGES, SHOWN = 100_000, 50
"""So many runs of removed offsets are reported, and so many are shown to people."""


def erase(store: Store, folder: Folder, options: Mapping[str, str], keep: Keep | None = None) -> Report:
    """The verb `erase`: a partition without the records that `keep` says no to. What that means for a coordinator is noted."""
    report = sift(store, folder, keep or Keep((), lambda batch: np.ones(batch.num_rows, np.bool_)), options)
    means = COORDINATED.get(str(store[0].place.topic))
    if means is not None and report.counts["removed"]:
        report.notes.append(means)
    return report


COORDINATED = {
    CONSUMER_OFFSETS: "committed offsets or groups were removed: these groups go on from an earlier commit, if there is one",
    TRANSACTION_STATE: "states of transactions were removed: a transaction of theirs that is open stays open until it times out",
}
"""What it means if records of the topics of coordinators are erased."""


def sift(store: Store, folder: Folder, keep: Keep, options: Mapping[str, str]) -> Report:
    """Fill an empty directory with a partition, less the records that `keep` says no to.

    `index_interval_bytes` among the options is the topic's. DataError for damage, which `repair` handles.
    """
    report = new_report(records=0, removed=0, batches_rewritten=0, gaps=0, bytes_lost=0)
    log = settled_log(store, report)
    for extent in log.extents:
        for hole in extent.sound.holes if extent.sound is not None else ():
            place = {"start": hole.start, "stop": hole.stop, "is_expected": True}
            report.add(Action.DROPPED, hole.reason, extent.file.path, **place)
            report.count("bytes_lost", 0 if hole.reason == PADDING else hole.stop - hole.start)
    policy = ErasePolicy(store, log, report, keep, SegmentLimits.from_options(options).index_interval_bytes)
    writer = rewrite(folder, policy)
    if policy.removed:
        report.add(Action.REMOVED, policy.text())
    report.counts |= {"batches": writer.batches, "bytes": writer.bytes}
    report.facts |= {"end_offset": writer.end_offset, "offsets": [list(run) for run in policy.removed]}
    return report


class ErasePolicy:
    """The policy of erasing: every batch, without the records that are not to stay."""

    limits: SegmentLimits | None = None
    derivation: Derivation | None = None

    def __init__(self, files: Sequence[File], log: Outline, report: Report, keep: Keep, interval: int) -> None:
        self.files, self.log, self.report, self.keep, self.interval = files, log, report, keep, interval
        self.metadata = topic_id_of(files)
        #: First and last of the runs of offsets that were removed.
        self.removed: list[tuple[int, int]] = []

    def text(self) -> str:
        """How many records were removed, and the first of their offsets."""
        runs = [f"{first:,}" if first == last else f"{first:,} to {last:,}" for first, last in self.removed[:SHOWN]]
        more = f" and {len(self.removed) - SHOWN:,} more runs" if len(self.removed) > SHOWN else ""
        return f"{counted(self.report.counts['removed'], 'record')}: offsets {', '.join(runs)}{more}"

    def segments(self, writer: PartitionWriter) -> Iterator[NewSegment]:
        """Each segment of the source that has anything left. An empty segment at the end says where the log ends."""
        for piece in self.log.pieces:
            file = self.log.extents[piece.segment].file
            is_last = piece is self.log.pieces[-1] and piece.segment == len(self.log.extents) - 1
            yield NewSegment(
                piece.start, self._batches(piece, file), file.modified, not is_last or self.keep.stop is not None
            )
        last = self.log.extents[-1]
        if not last.has_batches and last.first >= writer.end_offset and self.keep.stop is None:
            yield NewSegment(last.first, (), last.file.modified)

    def _batches(self, piece: BatchRange, file: File) -> Iterator[tuple[Frames, Heads]]:
        keep, floor = self.keep, log_start(file, self.files)
        start = max((offset for offset in (keep.start, floor) if offset is not None), default=None)
        for frames, head in self.log.batches(piece):
            inside = np.ones(len(frames), np.bool_)
            if start is not None:
                inside &= head["last_offset"] >= start
            if keep.stop is not None:
                inside &= head["base_offset"] < keep.stop
            if not inside.all():
                frames, head = only(frames, inside), head.only(inside)
            try:
                yield from self._erase_records(frames, head, file, start)
            except DataError as fault:
                fault.position = None if fault.position is None else fault.position + frames.base
                raise fault.at(path=file.path, format="kafka.log") from None

    def _erase_records(
        self, frames: Frames, head: Heads, file: File, start: int | None
    ) -> Iterator[tuple[Frames, Heads]]:
        """The frames with what stays of them, some at a time."""
        for first, stop in pieces(frames, head):
            part, part_head = frames.slice(first, stop), head.slice(first, stop)
            counts, mask = self._choose_records(part, part_head, file, start)
            result = keep_records(part, part_head, counts, mask)
            self.report.count("batches_rewritten", result.rebuilt)
            yield result.frames, result.head

    def _choose_records(
        self, frames: Frames, head: Heads, file: File, start: int | None
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """How many records each frame holds, and which of all stay. Control records always do."""
        keep, control = self.keep, head.has(Attributes.CONTROL)
        data, data_head = (only(frames, ~control), head.only(~control)) if control.any() else (frames, head)
        counts = np.where(control, head["record_count"], 0)
        if not len(data):
            return counts, np.ones(int(counts.sum()), np.bool_)
        data_head = Heads(np.ascontiguousarray(data_head.values))
        names = (set(keep.columns) & _OF_RECORDS) | {"offset"}
        numbers, masks = np.zeros(len(data), np.int64), []
        for part, _, decoded in decode_bounded(data, data_head, names, keep.limit, keep.max_headers):
            at = int(np.searchsorted(data.starts, part.starts[0]))
            numbers[at : at + len(part)] += decoded.counts
            arrays: dict[str, Any] = dict(decoded.arrays)
            for name, value in (("topic", file.place.topic), ("partition", file.place.partition)):
                arrays[name] = columns.constant(value, RECORDS.column(name).type, decoded.count)
            offsets = decoded.arrays["offset"].to_numpy()
            stays = keep.test(columns.batch(RECORDS.subset(keep.columns), arrays, decoded.count))
            trimmed = offsets < start if start is not None else np.zeros(offsets.size, np.bool_)
            removed = ~stays & ~trimmed
            if removed.any():
                self._remove(offsets[removed])
            masks.append(stays & ~trimmed)
            self.report.count("records", int(masks[-1].sum()))
        counts[~control] = numbers
        mask = np.ones(int(counts.sum()), np.bool_)
        if masks:
            mask[np.repeat(~control, counts)] = np.concatenate(masks)
        assert head["magic"].max(initial=0) <= MAGIC_V2
        return counts, mask

    def _remove(self, offsets: NDArray[np.int64]) -> None:
        """Note offsets that rise."""
        self.report.count("removed", offsets.size)
        edges = np.flatnonzero(offsets[1:] - offsets[:-1] != 1)[:MOST_RANGES]
        firsts, lasts = offsets[np.concatenate(([0], edges + 1))], offsets[np.concatenate((edges, [offsets.size - 1]))]
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
            if self.removed and self.removed[-1][1] + 1 == first:
                self.removed[-1] = (self.removed[-1][0], last)
            elif len(self.removed) < MOST_RANGES:
                self.removed.append((first, last))


_OF_RECORDS = frozenset({"key", "value", "offset", "timestamp", "timestampType", "headers"})
