"""The files of a partition compared with one another: what its batches add up to, and every file next to them.

A segment is folded, whole or in splits, into a `SegmentFold`: a small value that splits of one segment merge into. What segments say
together is known from their folds in order. What is found is sorted by the code of the rule that reports it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rawlog.formats.kafka.log.heads import Heads, heads
from rawlog.formats.kafka.log.layouts import (
    BATCH,
    INDEX_ENTRY,
    MAGIC_V2,
    NONE,
    OUTLINE,
    SNAPSHOT_ENTRY,
    TIME_INDEX_ENTRY,
    TXN_INDEX_ENTRY,
)
from rawlog.formats.kafka.log.records import open_wrappers
from rawlog.formats.kafka.log.seek import index_entries, time_entries
from rawlog.formats.kafka.partition.outline import (
    UNDECIDED,
    BatchRange,
    Outline,
    Side,
    outline,
)
from rawlog.formats.kafka.partition.segment_outline import (
    Correction,
    Extent,
    PlainExtent,
    batches_of,
    bytes_of,
    epochs_in,
)
from rawlog.formats.kafka.partition.state import AbortedTxn, Producers, Tally
from rawlog.formats.kafka.paths import MARK, METADATA_TOPIC, split
from rawlog.io.storage import exists
from rawlog.io.walk import walk
from rawlog.model.finding import (
    MOST,
    Few,
    Mark,
    Severity,
)
from rawlog.model.format import File
from rawlog.model.frames import Frames
from rawlog.model.outline import Patch, Piece, Reading
from rawlog.model.report import Action, Entry
from rawlog.model.status import Status
from rawlog.model.store import Store
from rawlog.model.text import counted, missing_text, plain_time


def survey(files: Sequence[File]) -> dict[str, list[Mark]]:
    """All findings on a partition's files together, by code. Segments whose folds the store does not have yet are read."""
    survey = survey_of(files)
    if survey is None:
        return {}
    return {code: [mark for few in by_path.values() for mark in few] for code, by_path in survey.marks.items()}


def survey_of(files: Sequence[File]) -> Survey | None:
    """A partition's segments put together, computed once for everybody who asks; None if it has none."""
    return Store.of(files).share(_survey)


def settled_outline(store: Store) -> Outline:
    """The outline of a partition that has segments. Those of which the store has folds without damage are not read again."""
    survey = store.shared(_survey)
    if survey is not None and survey.log is not None:
        return survey.log
    folds = [fold for fold in store.summaries.values() if isinstance(fold, SegmentFold)]
    return outline(store.files, {fold.file.path: extent for fold in folds if (extent := fold.extent()) is not None})


def _survey(store: Store) -> Survey | None:
    segments = [
        file for file in store if file.format == "kafka.log" and file.place.state is None and file.problem is None
    ]
    if not segments:
        return None
    survey = Survey(store)
    for segment in sorted(segments, key=lambda file: file.place.start_offset or 0):
        fold = store.summaries.get(segment.path)
        survey.segment(segment, fold if isinstance(fold, SegmentFold) else fold_segment(segment, store))
    survey.end()
    return survey


# One segment, or a split of it ----------------------------------------------------------------------------------------


def fold_segment(file: File, files: Sequence[File], floor: int = 0) -> SegmentFold:
    """The fold of a whole segment; `floor` is the first offset that is counted."""
    from rawlog.formats.kafka import LOG

    fold = SegmentFold(file, files, floor=floor)
    for frames in walk(file, LOG, errors="skip"):
        fold.see(frames)
    return fold.close()


class FirstBatch(NamedTuple):
    """The first sound batch of a split. Of a wrapper that cannot be opened, `base` is the last offset.

    `before` is the last offset of the damaged batch in front of it in the split, or -1.
    """

    base: int
    last: int
    time: int
    magic: int
    is_wrapper: bool
    before: int


class SegmentFold:
    """What the batches from byte `start` to `stop` of a segment tell of it. It sees every window once; `close` makes it small.

    Folds of neighbouring splits merge in order: `merge` gives the same as one fold over both.
    """

    def __init__(
        self, file: File, files: Sequence[File], start: int = 0, stop: int | None = None, floor: int = 0
    ) -> None:
        """`floor` is the first offset that is counted."""
        store = Store.of(files)
        self.file, self.start, self.stop = file, start, stop
        self.producers, self.tally = Producers(), Tally(floor)
        self.plain: PlainExtent | None = PlainExtent(file, inside=start > 0)
        self.first: FirstBatch | None = None
        self.last_offset = NONE
        #: The last offset of the batch that was seen last, sound or damaged: what a damaged one had was not compacted away.
        self.previous = NONE
        self.latest = NONE
        #: Where an unfinished last batch begins.
        self.unfinished: int | None = None
        self.compacted = False
        #: Where the sound batches end that it begins with, and the offset after them; and whether nothing else was seen.
        self.sound_position, self.is_sound = start, True
        self.sound_offset: int | None = None
        #: Whether offsets rise. Where they do not, splits cannot be merged: the segment must be folded in one.
        self.rises = True
        #: Marks of rules, by code. Those of `absent` hold only if the log is not compacted.
        self.marks: dict[str, Few] = defaultdict(Few)
        #: The batches with a mark for their epoch: base offset and epoch.
        self.epochs_named: set[tuple[int, int]] = set()
        #: Entries of the offset index: number, offset, position, first and last offset there. The first is not known of a wrapper that
        #: begins a split, nor the last of the last entry, which is for all that was appended after it.
        self.pending: list[tuple[int, int, int, int | None, int | None]] = []
        #: Entries of the time index, by number: runs of those that a batch holds (start and stop), and of old batches what they name
        #: and what was largest so far. The entries themselves are not kept: every split would carry all those of its segment.
        self.held: list[tuple[int, int]] = []
        self.old_times: list[tuple[int, int, int]] = []
        #: Wrappers that begin a split: the offset before them, their last offset, the largest time so far, their own, and their version.
        self.wrappers: list[tuple[int, int, int, int, int]] = []
        self._index = store.find("kafka.index", file.place.start_offset)
        self._index_rows = index_entries(file, store) if self._index is not None else np.empty((0, 2), np.int64)
        self._times = store.find("kafka.timeindex", file.place.start_offset)
        self._time_rows = time_entries(file, store) if self._times is not None else np.empty((0, 2), np.int64)
        self._time_count = len(self._time_rows)
        self._epochs = store.share(epochs_in)
        self._rows: list[NDArray[np.int64]] = []

    @property
    def end_offset(self) -> int | None:
        """The offset after the last sound batch; None if there is none."""
        return None if self.last_offset == NONE else self.last_offset + 1

    def see(self, frames: Frames) -> None:
        """Take in a window."""
        head = open_wrappers(frames, heads(frames))
        file, unfinished = self.file, frames.last and frames.status is Status.TRUNCATED
        if self.plain is not None and head.all_sound and not frames.status.is_damage and not unfinished:
            self.plain.add(frames, head)
        else:
            self.plain = None
        if self.is_sound:
            self._follow_sound(frames, head)
        if len(frames):
            self._batches(frames, head)
        self.unfinished = frames.reached_in_file if unfinished else None
        if unfinished and file.place.sealed:
            left = file.size - frames.reached_in_file
            message = f"the last {left:,} bytes are an unfinished batch, although another segment follows"
            self._mark("truncated", Mark(message, frames.reached_in_file, left, path=file.path))

    def _follow_sound(self, frames: Frames, head: Heads) -> None:
        """Follow the sound batches up to the first that is not."""
        good = len(frames) if head.all_sound else int(np.argmin(head.sound))
        if frames.base > self.sound_position:
            good = 0
        if good:
            self.sound_position = int(frames.positions[good - 1] + frames.sizes[good - 1])
            self.sound_offset = int(head["last_offset"][good - 1]) + 1
        self.is_sound = good == len(frames) and not frames.status.is_damage

    def _mark(self, code: str, mark: Mark) -> None:
        self.marks[code].append(mark)

    def _batches(self, frames: Frames, head: Heads) -> None:
        """Order, gaps, epochs and producers of one window."""
        sound = head.sound
        base, last = head["base_offset"], head["last_offset"]
        wrapped = head["record_count"] < 0
        before = np.concatenate(([self.previous], last[:-1]))
        # That of a wrapper that cannot be opened is not known: take the one after the frame before it.
        base = np.where(wrapped & (before >= 0), np.minimum(base, before + 1), base)
        if self.first is None and sound.any():
            at = int(np.argmax(sound))
            base[at] = head["base_offset"][at]
            fields = int(base[at]), int(last[at]), int(head["max_timestamp"][at]), int(head["magic"][at])
            self.first = FirstBatch(*fields, bool(wrapped[at]), int(before[at]))
            before[: at + 1] = NONE
        # What is missing between segments is for the outline to judge; what is missing inside of one was taken out of it.
        self.compacted |= bool((sound & (base > before + 1) & (before >= 0)).any())
        self.compacted |= bool((sound & head.cleaned).any())
        self.producers.add(frames, head, self.file.path)
        self.tally.add(frames, head)
        self._leader_epochs(frames, head)
        self.rises &= bool((last[sound] > np.concatenate(([self.last_offset], last[sound][:-1]))).all())
        self.rises &= bool((last[sound] >= head["base_offset"][sound]).all())
        if sound.any():
            self.last_offset = max(self.last_offset, int(last[sound].max()))
        self.previous = int(last[-1])
        if len(self._index_rows) or len(self._time_rows):
            rows = [frames.positions, base, last, head["max_timestamp"], head["magic"]]
            self._rows.append(np.stack(rows)[:, sound])

    def _leader_epochs(self, frames: Frames, head: Heads) -> None:
        """Compare every batch's epoch with the ranges of the checkpoint."""
        table, epoch = self._epochs, head["leader_epoch"]
        if table is None or not len(table):
            return
        stamped = np.flatnonzero((epoch >= 0) & (head["magic"] == MAGIC_V2) & head.sound)
        base = head["base_offset"][stamped]
        at = np.searchsorted(table[:, 1], base, side="right") - 1
        stated = np.where(at >= 0, table[np.maximum(at, 0), 0], NONE)
        trimmed = (base < table[0, 1]) & (epoch[stamped] == table[0, 0])
        for hit in np.flatnonzero((stated != epoch[stamped]) & ~trimmed).tolist():
            index = int(stamped[hit])
            stored, expected = int(epoch[index]), int(stated[hit])
            message = (
                f"a batch at offset {int(base[hit])} has epoch {stored}, "
                f"the checkpoint says {expected if expected >= 0 else 'none'}"
            )
            place = int(frames.positions[index]), int(frames.sizes[index]), int(base[hit])
            if len(self.epochs_named) < MOST:
                self.epochs_named.add((int(base[hit]), stored))
            self._mark("epochs", Mark(message, *place, expected, stored, self.file.path))

    def close(self) -> SegmentFold:
        """Compare the indexes with the batches that were seen, and forget the batches."""
        table = np.concatenate(self._rows, axis=1) if self._rows else np.empty((5, 0), np.int64)
        self._offset_index(table)
        self._time_index(table)
        if self.plain is not None:
            self.plain.close()
        self._rows, self._epochs = [], None
        self._index_rows = self._time_rows = np.empty((0, 2), np.int64)
        return self

    def _offset_index(self, table: NDArray[np.int64]) -> None:
        """Every entry points at a batch, and names an offset of what was appended there."""
        entries = self._index_rows
        inside = entries[:, 1] >= self.start
        if self.stop is not None:
            inside &= entries[:, 1] < self.stop
        numbers = np.flatnonzero(inside)
        if self._index is None or not numbers.size:
            return
        rows = entries[numbers]
        position, base, last = table[0], table[1], table[2]
        at = np.searchsorted(position, rows[:, 1])
        hits = np.zeros(at.size, np.bool_)
        if position.size:
            hits = (at < position.size) & (position[np.minimum(at, position.size - 1)] == rows[:, 1])
        # A set that was appended at once reaches up to the next entry's batch.
        until = np.concatenate((at[1:], [position.size]))
        first = base[np.minimum(at, position.size - 1)] if position.size else at
        final = (
            last[np.clip(np.minimum(until, position.size) - 1, at, max(position.size - 1, 0))] if position.size else at
        )
        is_last = numbers == len(entries) - 1
        wrong = ~hits | (rows[:, 0] < first) | (rows[:, 0] > final) | is_last
        size, path = INDEX_ENTRY.size, self._index.path
        for index in np.flatnonzero(wrong).tolist():
            offset, target = rows[index].tolist()
            if not hits[index]:
                message = f"the entry for offset {offset} points at byte {target}, where no sound batch begins"
                mark = Mark(message, int(numbers[index]) * size, size, offset, found=target, path=path)
                self._mark("index", mark)
                continue
            begins = self.start and self.first is not None and self.first.is_wrapper and not at[index]
            start, stop = None if begins else int(first[index]), None if is_last[index] else int(final[index])
            self._entry(int(numbers[index]), offset, target, start, stop)

    def _entry(self, number: int, offset: int, target: int, first: int | None, final: int | None) -> None:
        """Report an entry whose offset is not one of its batches; keep it if those are not known yet."""
        assert self._index is not None
        if first is None or final is None:
            self.pending.append((number, offset, target, first, final))
        elif not first <= offset <= final:
            span, size = f"{first} to {final}", INDEX_ENTRY.size
            message = f"the entry at byte {target} names offset {offset}, the batches there have {span}"
            self._mark("index", Mark(message, number * size, size, offset, span, offset, self._index.path))

    def _time_index(self, table: NDArray[np.int64]) -> None:
        """Every entry names a time, and the batch that has it."""
        base, last, times, magic = table[1], table[2], table[3], table[4]
        self.latest = int(times.max()) if times.size else NONE
        if self._times is None or not len(self._time_rows) or not last.size:
            return
        largest = np.maximum.accumulate(times)
        at = np.searchsorted(last, self._time_rows[:, 1])
        inside = at < last.size
        inside[inside] = base[at[inside]] <= self._time_rows[inside, 1]
        edges = np.flatnonzero(np.diff(np.concatenate(([0], inside.view(np.int8), [0])))).tolist()
        self.held = list(zip(edges[::2], edges[1::2], strict=True))
        has_time = inside.copy()
        has_time[inside] = magic[at[inside]] != 0  # such a broker took the time from the producer and stored none
        is_new = np.zeros(at.size, np.bool_)
        is_new[inside] = magic[at[inside]] == MAGIC_V2
        wrong = is_new.copy()
        wrong[is_new] = times[at[is_new]] != self._time_rows[is_new, 0]
        for index in np.flatnonzero(wrong).tolist():
            self._wrong_time(index, self._time_rows, f"that batch has {int(times[at[index]])}")
        # Old brokers named the last offset of what they appended, not that of the record with the time.
        old = np.flatnonzero(has_time & ~is_new)
        self.old_times = list(zip(old.tolist(), largest[at[old]].tolist(), times[at[old]].tolist(), strict=True))

    def _wrong_time(self, index: int, entries: NDArray[np.int64], what: str, code: str = "timeindex") -> None:
        assert self._times is not None
        time, offset = entries[index].tolist()
        size = TIME_INDEX_ENTRY.size
        message = f"the entry says {plain_time(time * 1000)} at offset {offset:,}, but {what}"
        self._mark(code, Mark(message, index * size, size, offset, found=time, path=self._times.path))

    def merge(self, following: SegmentFold) -> SegmentFold:
        """Take in the fold of the split that follows, both closed. What comes out is right only if it still `rises`."""
        if self.plain is not None and following.plain is not None:
            self.plain.join(following.plain)
        else:
            self.plain = None
        if self.is_sound and following.start == self.sound_position:
            self.sound_position, self.is_sound = following.sound_position, following.is_sound
            self.sound_offset = self.sound_offset if following.sound_offset is None else following.sound_offset
        else:
            self.is_sound = False
        self.producers.merge(following.producers)
        self.tally.merge(following.tally)
        self.compacted |= following.compacted
        self.rises &= following.rises
        self.held += following.held
        if following.first is not None:
            first = following.first
            self.rises &= first.base > self.last_offset
            previous = self.previous if first.before == NONE else first.before
            self.compacted |= self.first is not None and not first.is_wrapper and 0 <= previous < first.base - 1
            before = None if self.first is None else self.last_offset + 1
            for number, offset, target, low, high in following.pending:
                self._entry(number, offset, target, before if low is None else low, high)
            if first.is_wrapper and self.first is not None:
                self.wrappers.append(
                    (self.last_offset, first.last, max(self.latest, first.time), first.time, first.magic)
                )
            self.first = self.first or first._replace(before=previous)
        self.last_offset = max(self.last_offset, following.last_offset)
        self.previous = self.previous if following.previous == NONE else following.previous
        for code, marks in following.marks.items():
            self.marks[code].join(marks)
        self.epochs_named |= following.epochs_named
        self.old_times += [(index, max(top, self.latest), time) for index, top, time in following.old_times]
        self.wrappers += [
            (low, high, max(top, self.latest), time, magic) for low, high, top, time, magic in following.wrappers
        ]
        self.latest = max(self.latest, following.latest)
        self.stop, self.unfinished = following.stop, following.unfinished
        return self

    def finish(self, files: Sequence[File]) -> SegmentFold:
        """Say that all splits of the segment are in: entries of the time index that no batch holds are known now. The time index is read
        again if there are any, or if old batches name entries.
        """
        pending, self.pending = self.pending, []
        for number, offset, target, low, _ in pending:
            self._entry(number, offset, target, offset if low is None else low, self.last_offset)
        held = np.zeros(self._time_count, np.bool_)
        for start, stop in self.held:
            held[start:stop] = True
        if self.old_times or not held.all():
            self._finish_times(time_entries(self.file, files)[: self._time_count], held)
        self.old_times, self.wrappers, self.held, self._time_count = [], [], [], 0
        return self

    def _finish_times(self, entries: NDArray[np.int64], held: NDArray[np.bool_]) -> None:
        held = held[: len(entries)]
        old = [entry for entry in self.old_times if entry[0] < len(entries)]
        for low, high, top, time, magic in self.wrappers:
            inside = ~held & (entries[:, 1] > low) & (entries[:, 1] <= high)
            held |= inside
            if magic:
                old += [(index, top, time) for index in np.flatnonzero(inside).tolist()]
        for index, top, time in old:
            if top != int(entries[index, 0]):
                self._wrong_time(index, entries, f"that batch has {time}")
        for index in np.flatnonzero(~held).tolist():
            is_before = int(entries[index, 1]) < (self.file.place.start_offset or 0)  # compaction does not explain that
            self._wrong_time(index, entries, "no batch holds it", "timeindex" if is_before else "absent")

    def extent(self) -> Extent | None:
        """What the segment covers, if it is without damage."""
        return None if self.plain is None else self.plain.extent()


# The segments together --------------------------------------------------------------------------------------------------


class Survey:
    """The segments so far, in order."""

    def __init__(self, store: Store) -> None:
        self.store = store
        #: The counts of each segment, in order; and the segments put together, at the end.
        self.tallies: list[tuple[File, Tally]] = []
        self.log: Outline | None = None
        #: By code, then by path.
        self.marks: dict[str, dict[str | None, Few]] = defaultdict(lambda: defaultdict(Few))
        self.producers = Producers()
        self.epochs_named: set[tuple[int, int]] = set()
        #: The segments by the base offset of their first sound batch.
        self.bases: list[tuple[int, str]] = []
        self.last_offset = NONE
        self.start_offset: int | None = None
        self.last_file: File | None = None
        #: What segments without damage cover, by path.
        self.extents: dict[str, Extent] = {}
        self.compacted = False
        #: Offsets are missing between segments or inside of them: that breaks the sequences of producers, too.
        self.has_gaps = False
        self.snapshots = {file.place.start_offset: file for file in store if _is_loaded(file, "kafka.snapshot")}
        #: Where the batches of the last segment end, if it is without damage.
        self.end_position: int | None = None
        self.unfinished: int | None = None

    def mark(self, code: str, mark: Mark) -> None:
        self.marks[code][mark.path].append(mark)

    def segment(self, file: File, fold: SegmentFold) -> None:
        """One segment: compared with those before it, then with the files of the same name."""
        base = file.place.start_offset or 0
        if base <= self.last_offset and self.last_file is not None:
            message = f"begins at {base}, although {self.last_file.path} reaches {self.last_offset}"
            expected = f"above {self.last_offset}"
            self.mark("overlap", Mark(message, 0, offset=base, expected=expected, found=base, path=file.path))
        if self.start_offset is None:
            self.start_offset = base
        self.snapshot(base)
        fold.finish(self.store)
        extent = fold.extent()
        if extent is not None:
            self.extents[file.path] = extent
        if fold.first is not None and self.last_offset >= 0:
            following = self.last_offset + 1
            self.compacted |= not fold.first.is_wrapper and fold.first.base > following >= base
            self.has_gaps |= not fold.first.is_wrapper and fold.first.base > following
        self.compacted |= fold.compacted
        self.last_offset = max(self.last_offset, fold.last_offset)
        for code, marks in fold.marks.items():
            path = next((mark.path for mark in marks), None)
            if code != "absent" or not self.compacted:
                self.marks["timeindex" if code == "absent" else code][path].join(marks)
        self.epochs_named |= fold.epochs_named
        self.tallies.append((file, fold.tally))
        if fold.first is not None:
            self.bases.append((fold.first.base, file.path))
        count = len(self.producers.aborts)
        self.producers.merge(fold.producers)
        rows = [row for part in self.producers.aborts[count:] for row in part.tolist()]
        self.transaction_index(file, rows)
        self.last_file = file
        self.unfinished = fold.unfinished
        self.end_position = fold.plain.end if fold.plain is not None and fold.plain.is_plain else None

    def transaction_index(self, file: File, aborts: Sequence[Sequence[int]]) -> None:
        """Every abort of the segment is listed, and nothing else."""
        index = self.store.find("kafka.txnindex", file.place.start_offset)
        listed = list(aborted_in(index)) if index is not None else []
        expected = {(row[0], row[2]): AbortedTxn(*row[:4]) for row in aborts if row[1] != NONE}
        abort_markers = {(row[0], row[2]) for row in aborts}
        size = TXN_INDEX_ENTRY.size
        for position, entry in listed:
            key = (entry.producer_id, entry.last_offset)
            seen = expected.pop(key, None)
            assert index is not None
            if seen is None and key not in abort_markers:
                message = f"producer {entry.producer_id} has no abort marker at offset {entry.last_offset}"
                self.mark("txnindex", Mark(message, position, size, entry.last_offset, path=index.path))
            elif seen is not None and seen.first_offset != entry.first_offset and not self.compacted:
                if entry.first_offset < (self.start_offset or 0):
                    continue
                message = f"the transaction begins at offset {seen.first_offset}"
                offsets = seen.first_offset, entry.first_offset
                self.mark("txnindex", Mark(message, position, size, entry.last_offset, *offsets, index.path))
        if index is None and self.store.find("kafka.index", file.place.start_offset) is None:
            return  # the log alone was asked for: what is next to it is not known
        for missing in expected.values():
            message = (
                f"producer {missing.producer_id}'s transaction from offset {missing.first_offset} was aborted at "
                f"{missing.last_offset}, and is not listed"
            )
            path = index.path if index is not None else file.path
            self.mark("txnindex", Mark(message, offset=missing.last_offset, path=path))

    def snapshot(self, offset: int) -> None:
        """Compare the snapshot taken at an offset with the state that the log gives up to there."""
        file = self.snapshots.pop(offset, None)
        if file is None:
            return
        states = self.producers.states
        for position, row in snapshot_rows(file):
            state = states.get(row["producer_id"])
            if state is None:
                continue
            earlier = row["last_offset"] != NONE and row["last_offset"] < state.last_offset
            if earlier or row["epoch"] < state.epoch:
                message = (
                    f"producer {row['producer_id']} is at epoch {row['epoch']}, offset {row['last_offset']}; "
                    f"the log says epoch {state.epoch}, offset {state.last_offset}"
                )
                size = SNAPSHOT_ENTRY.size
                self.mark("snapshot", Mark(message, position, size, row["last_offset"], path=file.path))

    def mark_fallen_epochs(self, corrections: Sequence[Correction]) -> None:
        """Mark epochs contradicted by the batches around them, if the checkpoint does not have them."""
        for correction in corrections:
            if (correction.first, correction.wrong) in self.epochs_named:
                continue
            path = next((path for base, path in reversed(self.bases) if base <= correction.first), None)
            message = (
                f"a batch at offset {correction.first} has epoch {correction.wrong}, "
                f"the batches around it have epoch {correction.right}"
            )
            self.mark(
                "epochs",
                Mark(message, offset=correction.first, expected=correction.right, found=correction.wrong, path=path),
            )

    def mark_undecided(self, log: Outline) -> None:
        """Mark missing offsets inside the log that compaction may have removed: one mark for all of them."""
        if log.undecided:
            [(first, last), *others] = log.undecided
            more = f", and {counted(len(others), 'more range')} after them" if others else ""
            message = f"{missing_text(first, last)}{more}: {UNDECIDED}"
            path = self.last_file.path if self.last_file is not None else None
            self.mark("gap", Mark(message, offset=first, path=path, severity=Severity.INFO))

    def mark_displaced(self, log: Outline) -> None:
        """Mark sound batches that are not at their place."""
        for number, extent in enumerate(log.extents):
            for at, fate in log.fates(number).items():
                assert extent.sound is not None
                start, stop = int(extent.sound.starts[at]), int(extent.sound.stops[at])
                mark = Mark(fate.reason, start, stop - start, fate.base, path=extent.file.path)
                self.mark("displaced", mark)
        for piece in log.pieces:
            extent = log.extents[piece.segment]
            if piece.start != extent.first:
                message = f"offsets {piece.first} to {piece.last} belong to a segment named {piece.start}"
                names = piece.start, extent.first
                self.mark("displaced", Mark(message, 0, None, piece.first, *names, path=extent.file.path))

    def mark_zeros(self) -> None:
        """Zeros after the last batch of the log: preallocated, or left by a crash, unless the broker was stopped cleanly."""
        file, position = self.last_file, self.end_position
        if file is None or position is None or position >= file.size or file.place.topic is None:
            return
        size = file.size - position
        folder = split(split(file.path)[0])[0]
        if file.place.topic == METADATA_TOPIC or not exists(f"{folder}/{MARK}"):
            what, severity = "a broker cuts them off", Severity.INFO
        else:
            is_fatal = size > OUTLINE.size
            what = f"although {MARK} is there: a broker {'does not start' if is_fatal else 'appends after them'}"
            severity = Severity.ERROR
        message = f"{counted(size, 'zero byte')} after the last batch, {what}"
        self.mark("zeros", Mark(message, position, size, path=file.path, severity=severity))

    def mark_tail(self) -> None:
        """An unfinished batch at the end of a log whose broker was stopped cleanly."""
        file, position = self.last_file, self.unfinished
        if file is None or position is None or file.place.sealed or file.place.topic in (None, METADATA_TOPIC):
            return
        if exists(f"{split(split(file.path)[0])[0]}/{MARK}"):
            size = file.size - position
            message = f"the last {size:,} bytes are not a batch, although {MARK} exists: a broker does not start, or appends after them"
            self.mark("truncated", Mark(message, position, size, path=file.path))

    def end(self) -> None:
        """What only the whole log tells."""
        self.mark_zeros()
        self.mark_tail()
        end = self.last_offset + 1
        for offset in sorted(offset for offset in self.snapshots if offset is not None):
            if offset == end:
                self.snapshot(offset)
        self.log = log = outline(self.store.files, self.extents)
        for gap in log.gaps:
            if not gap.is_undecided:
                position = gap.file.size if gap.side is Side.END else 0
                severity = Severity.INFO if gap.is_remote else None
                self.mark("gap", Mark(str(gap), position, offset=gap.first, path=gap.file.path, severity=severity))
        self.mark_undecided(log)
        self.mark_displaced(log)
        assert self.last_file is not None
        # A coordinator writes on behalf of producers, and no sequence is checked.
        if not (self.compacted or self.has_gaps) and not (self.last_file.place.topic or "").startswith("__"):
            for oddity in sorted(self.producers.finish().oddities, key=lambda oddity: (oddity.offset, oddity.position)):
                mark = Mark(
                    oddity.message,
                    oddity.position,
                    oddity.size,
                    oddity.offset,
                    oddity.expected,
                    oddity.found,
                    oddity.path,
                )
                self.mark(oddity.code, mark)
        self.mark_fallen_epochs(log.corrections)
        for number, first in sorted(self.producers.open_transactions().items()):
            message = f"producer {number}'s transaction from offset {first} has neither been committed nor aborted"
            self.mark("open-transaction", Mark(message, offset=first, path=self.last_file.path))


def _is_loaded(file: File, format: str) -> bool:
    return file.format == format and file.place.state is None and file.problem is None


def aborted_in(file: File) -> Iterator[tuple[int, AbortedTxn]]:
    """The entries of a transaction index, each with its position, up to the first that is invalid."""
    from rawlog.formats.kafka import TXN_INDEX_FILE

    for frames in walk(file, TXN_INDEX_FILE, errors="stop"):
        raw = TXN_INDEX_ENTRY.take(frames.data, frames.starts)
        for index in range(len(frames)):
            fields = [
                int(raw[name][index]) for name in ("producer_id", "first_offset", "last_offset", "last_stable_offset")
            ]
            yield int(frames.positions[index]), AbortedTxn(*fields)


def snapshot_rows(file: File) -> Iterator[tuple[int, dict[str, int]]]:
    """The entries of a producer snapshot, each with its position; none if it is not sound."""
    from rawlog.formats.kafka import SNAPSHOT

    for frames in walk(file, SNAPSHOT, errors="stop"):
        raw = SNAPSHOT_ENTRY.take(frames.data, frames.starts)
        for index in range(len(frames)):
            yield int(frames.positions[index]), {name: int(raw[name][index]) for name in raw.dtype.names or ()}


# What verbs that read everything get ----------------------------------------------------------------------------------


def reading(store: Store) -> Reading:
    """The batches that `salvage` keeps. Segments that a pass found to be without damage are not read again."""
    segments = [
        file for file in store if file.format == "kafka.log" and file.place.state is None and file.problem is None
    ]
    if not segments:
        return Reading()
    log = settled_outline(store)
    lost = tuple(_lost(log))
    notes = tuple(str(gap) for gap in log.gaps if not gap.is_lost)
    if log.is_as_stored:
        return Reading(entries=lost, notes=notes)
    settled = _Settlement(log)
    for piece in log.pieces:
        settled.add(piece)
    for number in range(len(log.extents)):
        settled.report(number)
    patches = {path: tuple(sorted(path_patches)) for path, path_patches in settled.patches.items()}
    return Reading(tuple(settled.pieces), patches, (*settled.entries, *lost), notes)


def _lost(log: Outline) -> Iterator[Entry]:
    for first, last in log.lost:
        gap = next((gap for gap in log.gaps if gap.first <= first and last == gap.last), None)
        reason, path = ("", log.extents[0].file.place.group) if gap is None else (gap.trace, gap.file.path)
        stop = None if last is None else last + 1
        yield Entry(Action.LOST, reason, path, first_offset=first, stop_offset=stop)


class _Settlement:
    """The pieces of a log in order, the patches to their batches, and the report entries."""

    def __init__(self, log: Outline) -> None:
        self.log = log
        self.pieces: list[Piece] = []
        self.patches: dict[str, list[Patch]] = {}
        self.entries: list[Entry] = []

    def add(self, piece: BatchRange) -> None:
        """Batches that follow one another in the log."""
        extent = self.log.extents[piece.segment]
        path = extent.file.path
        sound, choice = batches_of(extent, bytes_of(extent.file))
        order = np.array(choice.order if piece.numbers is None else piece.numbers, np.int64)
        if not order.size:
            return
        starts, stops = sound.starts[order], sound.stops[order]
        edges = np.concatenate(([0], np.flatnonzero(starts[1:] != stops[:-1]) + 1, [order.size])).tolist()
        self.pieces += [Piece(path, int(starts[low]), int(stops[high - 1])) for low, high in pairwise(edges)]
        if piece.start != extent.first:
            reason = f"offsets {piece.first} to {piece.last} belong to a segment named {piece.start}"
            self._entry(Action.MOVED, reason, path, 0, extent.file.size, piece.first, piece.last)
        head = Heads(np.ascontiguousarray(sound.head.values[:, order]))
        bases, lasts = (values[order] for values in extent.offsets())
        for at in np.flatnonzero([number in choice.rebased for number in order.tolist()]).tolist():
            is_new = head["magic"][at] == MAGIC_V2
            # Of magic 0 and 1 the last offset is the one that is written.
            self._patch(path, int(starts[at]), "base_offset", int(bases[at] if is_new else lasts[at]))
        for correction, start, stop, first, last in self.log.epoch_changes(piece, (sound, choice)):
            self._patch(path, start, "leader_epoch", correction.right)
            self._entry(Action.CHANGED, correction.reason, path, start, stop, first, last)

    def report(self, number: int) -> None:
        """Report the bytes of a segment that are dropped or changed."""
        extent = self.log.extents[number]
        if extent.choice is None or extent.sound is None:
            return
        sound, path = extent.sound, extent.file.path
        for hole in sound.holes:
            is_tail = extent.is_crash_tail(hole)
            self.entries.append(Entry(Action.DROPPED, hole.reason, path, hole.start, hole.stop, is_expected=is_tail))
        head = sound.head
        for at, fate in self.log.fates(number).items():
            offsets = int(head["base_offset"][at]), int(head["last_offset"][at])
            self._entry(fate.action, fate.reason, path, int(sound.starts[at]), int(sound.stops[at]), *offsets)

    def _entry(self, action: Action, reason: str, path: str, start: int, stop: int, first: int, last: int) -> None:
        self.entries.append(Entry(action, reason, path, start, stop, first, last + 1))

    def _patch(self, path: str, position: int, field: str, value: int) -> None:
        size = BATCH.after(field) - BATCH.at(field)
        patch = position + BATCH.at(field), value.to_bytes(size, "big", signed=True)
        self.patches.setdefault(path, []).append(patch)
