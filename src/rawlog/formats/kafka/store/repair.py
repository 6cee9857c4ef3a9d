"""A mended copy of a partition, with a report of every byte that was kept, cut or changed. The source is never touched.

`salvage` keeps every whole batch whose checksum is right, also behind damage, at its own offset. `broker` cuts where a broker's recovery
would: at the first damage, and all later segments with it. `strict` refuses.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog.core.errors import CorruptError, OptionError, TruncatedError
from rawlog.core.format import File
from rawlog.core.frames import Bytes, Frames
from rawlog.core.report import Account
from rawlog.core.status import Status
from rawlog.core.tables import RECORDS
from rawlog.formats.kafka.batch_writer import BatchFields, encode_batch, encode_marker
from rawlog.formats.kafka.heads import Heads
from rawlog.formats.kafka.layouts import BATCH, MAGIC_V2, NONE
from rawlog.formats.kafka.paths import split
from rawlog.formats.kafka.store.continuity import Continuity, Extent, Piece, bytes_of, continuity, in_order
from rawlog.formats.kafka.store.derived import Limits
from rawlog.formats.kafka.store.identity import Identity, identity
from rawlog.formats.kafka.store.leader_epochs import Correction, EpochRuns
from rawlog.formats.kafka.store.lost_markers import COMMITTED, Judge, Ledger, Transaction
from rawlog.formats.kafka.store.partition_writer import METADATA, PartitionWriter, Pretence, segment_name, staged
from rawlog.formats.kafka.store.quarantine import Quarantine
from rawlog.formats.kafka.store.rebuild import segments_of
from rawlog.formats.kafka.store.salvage import HUGE, PADDING, UNFINISHED, Chosen, Found, find_sound, patched
from rawlog.io.output import new_directory
from rawlog.io.storage import local_path

POLICIES = ("salvage", "broker", "strict")
MOST = (1 << 31) - 1  # how far an offset may lie behind its segment's base


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes of a source file and what became of them: kept, cut, moved, changed, or added to; or of the file as a whole: renamed.
    `offsets` is first and last, where known.
    """

    path: str
    start: int
    stop: int
    action: str
    reason: str = ""
    offsets: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What only the whole log tells: transactions whose markers are put back, and leader epochs that are set right."""

    transactions: tuple[Transaction, ...] = ()
    epochs: tuple[Correction, ...] = ()


@dataclass(slots=True)
class Report(Account):
    """All that was done."""

    target: str = ""
    policy: str = "salvage"
    ranges: list[Range] = field(default_factory=list)
    #: First and last of every run of offsets that was there, or must have been, and is not any more; the last is None where nothing tells.
    lost: list[tuple[int, int | None]] = field(default_factory=list)
    #: Transactions whose marker is, or may be, among the lost offsets: what is known of them, and which markers were put back.
    transactions: list[Transaction] = field(default_factory=list)
    #: The files that were made anew from the log.
    rebuilt: list[str] = field(default_factory=list)
    #: Records that can still be read in what was cut, put aside.
    records_aside: int = 0
    bytes_kept: int = 0
    bytes_cut: int = 0
    bytes_added: int = 0
    batches: int = 0
    end_offset: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether nothing had to be dropped or changed."""
        return (
            not self.lost
            and not self.transactions
            and all(one.action == "kept" or one.reason == PADDING for one in self.ranges)
        )

    def lines(self) -> list[str]:
        """The report as text."""
        made = []
        for one in self.ranges:
            which = f", offsets {one.offsets[0]} to {one.offsets[1]}" if one.offsets is not None else ""
            why = f": {one.reason}" if one.reason else ""
            place = f" bytes {one.start:,} to {one.stop:,}" if one.action != "renamed" else ""
            made.append(f"{one.action} {one.path}{place}{which}{why}")
        for first, last in self.lost:
            made.append(
                f"lost offsets {first} to {last}" if last is not None else f"lost offsets from {first} on, perhaps"
            )
        made += [one.line() for one in self.transactions]
        if self.rebuilt:
            made.append(f"rebuilt {', '.join(self.rebuilt)}")
        if self.records_aside:
            made.append(f"{self.records_aside:,} records of what was cut can be read, and are put aside")
        made.append(f"{self.bytes_kept:,} bytes kept, {self.bytes_cut:,} cut")
        return made


def repair_partition(
    files: Sequence[File],
    target: str | os.PathLike[str],
    options: Mapping[str, str] | None = None,
    *,
    policy: str = "salvage",
    overwrite: bool = False,
    dry_run: bool = False,
    quarantine: str | os.PathLike[str] | None = None,
) -> Report:
    """Write a mended copy of a partition's directory to `target`, everything derived made anew.

    `quarantine` is a new directory for the bytes that were cut, and for the records in them that can be read. With `dry_run` nothing is
    written. CorruptError under the policy `strict` if anything would be cut or changed.
    """
    if policy not in POLICIES:
        raise OptionError(f"policy {policy!r}: {', '.join(POLICIES)} expected")
    limits = Limits.told(options or {})
    path = Path(local_path(os.fspath(target))).absolute()
    report = Report(str(path), policy)
    segments = segments_of(files)
    whose = identity(files)
    if policy == "strict" and whose is not None and whose.change is not None:
        raise CorruptError(f"{whose.change}; the policy is strict", path=whose.path)
    interval, start = limits.index_interval_bytes, segments[0].place.start_offset or 0
    if dry_run:
        pretence = Pretence(log_start=start, interval=interval)
        _, plan = _mend(files, segments, pretence, report, None)
        if plan is not None:
            report = Report(str(path), policy)
            pretence = Pretence(log_start=start, interval=interval)
            _mend(files, segments, pretence, report, None, plan)
        _tell_identity(whose, report)
        report.rebuilt = sorted(pretence.names)
        return report
    with ExitStack() as stack:
        apart = None if quarantine is None else stack.enter_context(new_directory(quarantine))
        stage = stack.enter_context(staged(path.parent, overwrite=overwrite))
        folder = stage / path.name
        folder.mkdir()
        times, plan = _mend(files, segments, _writer(folder, start, interval), report, _quarantine(apart))
        if plan is not None:
            report = Report(str(path), policy)
            _empty(folder)
            times, _ = _mend(files, segments, _writer(folder, start, interval), report, _quarantine(apart), plan)
        report.rebuilt = sorted(one.name for one in folder.iterdir() if one.suffix != ".log")
        _tell_identity(whose, report)
        if whose is not None and whose.data is not None:
            (folder / METADATA).write_bytes(whose.data)
        for base, modified in times.items():  # retention goes by them where records have no time of their own
            os.utime(folder / segment_name(base, "log"), (modified, modified))
    return report


def _writer(folder: Path, start: int, interval: int) -> PartitionWriter:
    return PartitionWriter(folder, None, interval=interval, log_start=start)


def _quarantine(folder: Path | None) -> Quarantine | None:
    """A directory for what is cut, emptied of what another attempt left."""
    if folder is None:
        return None
    _empty(folder)
    return Quarantine(folder)


def _empty(folder: Path) -> None:
    for one in folder.iterdir():
        one.unlink()


def _tell_identity(whose: Identity | None, report: Report) -> None:
    """What became of `partition.metadata`, if it is not what it was."""
    if whose is not None and whose.change is not None:
        action = "changed" if whose.data is not None else "cut"
        report.ranges.append(Range(whose.path, 0, whose.size, action, whose.change))
        report.bytes_cut += whose.size if whose.data is None else 0


def _mend(
    files: Sequence[File],
    segments: list[File],
    writer: PartitionWriter,
    report: Report,
    aside: Quarantine | None,
    plan: Plan | None = None,
) -> tuple[dict[int, float], Plan | None]:
    """Repair every segment; the times of those that are written, by the offset in their name, and what only the whole log tells: if
    there is such a plan, everything is to be done once more by it.
    """
    mend = _Mend(writer, report, aside, continuity(files), plan)
    try:
        if report.policy == "broker":
            mend.cut(segments)
        else:
            mend.salvage()
        writer.close()
    finally:
        writer.abandon()
    report.batches, report.end_offset = writer.batches, writer.end_offset
    report.bytes_kept = writer.bytes - report.bytes_added
    mend.end()
    if plan is not None:
        report.transactions = list(plan.transactions)
        return mend.times, None
    found = mend.judge(files)
    wrong = mend.epochs.corrections(files) if report.policy != "broker" else []
    if report.policy == "strict" and wrong:
        text = (
            f"leader epoch {wrong[0].wrong} at offset {wrong[0].first}, {wrong[0].right} expected; the policy is strict"
        )
        raise CorruptError(text, path=segments[0].path)
    if wrong or (report.policy == "salvage" and any(one.marker_offset is not None for one in found)):
        return mend.times, Plan(tuple(found), tuple(wrong))
    report.transactions = [one.without_marker() for one in found]
    return mend.times, None


class _Mend:
    """A partition on its way, segment by segment."""

    def __init__(
        self,
        writer: PartitionWriter,
        report: Report,
        aside: Quarantine | None,
        whole: Continuity,
        plan: Plan | None = None,
    ) -> None:
        self.writer, self.report, self.aside, self.whole = writer, report, aside, whole
        self.ledger, self.epochs, self.plan = Ledger(), EpochRuns(), plan or Plan()
        #: Transactions whose markers are to be put back, those with the highest offsets first.
        self.markers = sorted(
            (one for one in self.plan.transactions if one.marker_offset is not None),
            key=lambda one: -(one.marker_offset or 0),
        )
        self.restored: list[int] = []
        #: When the segments that are written were last changed, by the offset in their new names.
        self.times: dict[int, float] = {}
        #: The leader epoch of the batch that was written last.
        self.written_epoch = NONE
        self.damage: list[tuple[int, int | None]] = []

    def salvage(self) -> None:
        """Every sound batch at its own offset."""
        whole = self.whole
        if self.report.policy == "strict":
            self._refuse()
        self.damage += whole.lost
        noted: set[int] = set()
        for piece in whole.pieces:
            extent = whole.extents[piece.segment]
            data = bytes_of(extent.file)
            found, chosen = _found(extent, data)
            if piece.segment not in noted:
                self._note(extent.file, data, found, chosen, self._displaced(piece.segment, extent))
                noted.add(piece.segment)
            order = chosen.order if piece.numbers is None else list(piece.numbers)
            self.put_back(piece.start, extent.file)
            self._begin(extent.file, self._base(extent, piece))
            self._write(extent.file, data, found, Chosen(order, chosen.rebased, [], []), extent.bases)
        for number, extent in enumerate(whole.extents):
            if number not in noted:
                data = bytes_of(extent.file)
                self._note(extent.file, data, *_found(extent, data), {})
        self._end_with(whole.extents[-1], len(whole.extents) - 1 in noted)
        self.put_back(HUGE, whole.extents[-1].file)
        places = {extent.file.path: number for number, extent in enumerate(whole.extents)}
        self.report.ranges.sort(key=lambda one: (places.get(one.path, -1), one.start))

    def _displaced(self, number: int, extent: Extent) -> dict[int, str]:
        """What becomes of batches outside of their segment's range that have a place in the log."""
        placed = self.whole.placed.get(number, set())
        kept = set(in_order(extent, placed)) if placed else set()
        return {one: "kept" if one in kept else "moved" for one in placed}

    def _end_with(self, last: Extent, is_written: bool) -> None:
        """The segment to append to is there, although nothing is left in it."""
        if is_written or last.has_batches or (self.writer.batches and self.writer.end_offset > last.first):
            return
        self.put_back(last.first, last.file)
        self._hold_end(last.file, last.first)
        self._begin(last.file, last.first)

    def _begin(self, file: File, base: int) -> None:
        self.writer.begin(base)
        if file.modified is not None:
            self.times[base] = file.modified

    def _base(self, extent: Extent, piece: Piece) -> int:
        """Where a segment begins: with the offsets that were lost before it, or whoever looks misses a segment."""
        end, name, file = self.writer.end_offset, extent.first, extent.file
        is_after_loss = self.writer.batches and any(
            first < piece.start and (last is None or last >= end) for first, last in self.whole.lost
        )
        if end < piece.start and is_after_loss and piece.last - end <= MOST:
            reason = f"its name is {end} now, because these offsets before it are lost"
            self._range(file, 0, 0, "renamed", reason, (end, piece.start - 1))
            return end
        if piece.start != name:
            reason = f"offsets {piece.first} to {piece.last} of it are in a segment named {piece.start} now"
            self._range(file, 0, 0, "renamed", reason, (piece.first, piece.last))
        return piece.start

    def _refuse(self) -> None:
        """CorruptError if anything would be cut or changed."""
        for number, extent in enumerate(self.whole.extents):
            found, chosen = extent.found, extent.chosen
            if chosen is None or found is None:
                continue
            harmless = not extent.has_damage and not chosen.dropped and not chosen.rebased
            if not harmless or chosen.order != list(range(len(found.head))) or number in self.whole.placed:
                raise _refusal(extent.file, found, chosen)
        for piece in self.whole.pieces:
            extent = self.whole.extents[piece.segment]
            if piece.start != extent.first:
                raise CorruptError("a name that does not fit its offsets; the policy is strict", path=extent.file.path)
        for gap in self.whole.gaps:
            what = (
                f"{gap}; the policy is strict"
                if gap.is_end
                else "a segment before this one is gone; the policy is strict"
            )
            raise CorruptError(what, path=gap.file.path)

    def cut(self, segments: Sequence[File]) -> None:
        """As a broker: the log ends at the first damage."""
        bases = [one.place.start_offset or 0 for one in segments]
        ended = False
        for number, segment in enumerate(segments):
            if ended:
                self._range(segment, 0, segment.size, "cut", "after the first damage")
                if self.aside is not None:
                    self.put_aside(segment)
                continue
            data = bytes_of(segment)
            found = find_sound(data, sealed=segment.place.sealed)
            ended = self._cut(
                segment, data, found, bases[number], HUGE if number + 1 == len(bases) else bases[number + 1]
            )

    def _cut_base(self, file: File, first: int) -> int:
        """Where a segment begins that a broker keeps."""
        end = self.writer.end_offset
        is_gap = any(gap.file.path == file.path and not gap.is_end for gap in self.whole.gaps)
        if not self.writer.batches or end >= first or not is_gap:
            return first
        self.damage.append((end, first - 1))
        reason = f"its name is {end} now, because these offsets before it are lost"
        self._range(file, 0, 0, "renamed", reason, (end, first - 1))
        return end

    def _cut(self, file: File, data: Bytes, found: Found, first: int, stop: int) -> bool:
        """As a broker: everything up to the first hole, and nothing behind it."""
        end = found.holes[0].start if found.holes else data.size
        reason = found.holes[0].reason if found.holes else ""
        count = int(np.searchsorted(found.starts, end))
        base, last_offset = found.head["base_offset"][:count], found.head["last_offset"][:count]
        # Such a log a broker does not start on at all.
        wrong = (base < first) | (last_offset - first > MOST) | (last_offset >= stop)
        wrong[1:] |= base[1:] <= last_offset[:-1]
        if wrong.any():
            count = int(np.argmax(wrong))
            end, reason = int(found.starts[count]), "offsets that cannot be"
        kept = Chosen(list(range(count)), {}, [], [])
        self._begin(file, self._cut_base(file, first))
        self._write(file, data, found, kept)
        last = int(found.head["last_offset"][count - 1]) if count else first - 1
        if count:
            self._range(file, 0, int(found.stops[count - 1]), "kept", offsets=(int(found.head["base_offset"][0]), last))
        if end < data.size:
            self._range(file, end, data.size, "cut", reason)
            self._aside(file, data, end, data.size)
            self.damage.append((last + 1, None))
        return end < data.size

    def _note(self, file: File, data: Bytes, found: Found, chosen: Chosen, displaced: Mapping[int, str]) -> None:
        """What becomes of every byte of a segment."""
        head = found.head
        odd = dict.fromkeys(chosen.dropped, "cut")
        odd |= dict.fromkeys(chosen.moved, "moved")
        odd |= dict.fromkeys(chosen.rebased, "changed")
        odd |= displaced
        reasons = {
            "cut": "offsets that are there already, or cannot be",
            "moved": "out of order",
            "changed": "a base offset that does not fit",
        }
        rows: list[tuple[int, int, str, str, tuple[int, int] | None]] = []
        rows += [(one.start, one.stop, "cut", one.reason, None) for one in found.holes]
        for number in range(len(head)):
            action = odd.get(number, "kept")
            offsets = (int(head["base_offset"][number]), int(head["last_offset"][number]))
            start, end = int(found.starts[number]), int(found.stops[number])
            rows.append((start, end, action, reasons.get(action, ""), offsets))
        reached = 0
        for start, end, action, reason, held in sorted(rows, key=lambda one: one[0]):
            self.report.bytes_added += max(reached - start, 0)  # bytes that two batches share are written twice
            reached = end
            self._range(file, start, end, action, reason, held)
            if action == "cut":
                self._aside(file, data, start, end)

    def _range(
        self, file: File, start: int, stop: int, action: str, reason: str = "", offsets: tuple[int, int] | None = None
    ) -> None:
        if action == "cut":
            self.report.bytes_cut += stop - start
        ranges = self.report.ranges
        before = ranges[-1] if ranges else None
        follows = before is not None and (before.path, before.stop, before.action) == (file.path, start, "kept")
        if follows and action == "kept" and before is not None and before.offsets is not None and offsets is not None:
            ranges[-1] = Range(file.path, before.start, stop, action, "", (before.offsets[0], offsets[1]))
            return
        ranges.append(Range(file.path, start, stop, action, reason, offsets))

    def put_aside(self, file: File) -> None:
        """Keep a whole segment that is cut."""
        data = bytes_of(file)
        self._aside(file, data, 0, data.size)

    def _aside(self, file: File, data: Bytes, start: int, stop: int) -> None:
        """Keep what was cut, never mixed in."""
        self.ledger.cut(data[start:stop])
        if self.aside is not None:
            self.aside.keep(split(file.path)[1], data, start, stop, file.place)
            self.report.records_aside = self.aside.records

    def _write(
        self, file: File, data: Bytes, found: Found, chosen: Chosen, bases: NDArray[np.int64] | None = None
    ) -> None:
        """Batches in their order, a run that stands together at a time. `bases` are their first offsets, as their content says."""
        order = np.array(chosen.order, np.int64)
        if not order.size:
            return
        starts, stops = found.starts[order], found.stops[order]
        head = Heads(np.ascontiguousarray(found.head.values[:, order]))
        for at, number in enumerate(chosen.order):
            if number in chosen.rebased:
                known = head["base_offset"][at] if bases is None else bases[number]
                head["last_offset"][at] += chosen.rebased[number] - known
                is_wrapper = (
                    head["magic"][at] != MAGIC_V2
                )  # of magic 0 and 1 the last offset is the one that is written
                head["base_offset"][at] = head["last_offset"][at] if is_wrapper else chosen.rebased[number]
        changed = {at for at, number in enumerate(chosen.order) if number in chosen.rebased}
        changed |= set(self._set_epochs(file, head, starts, stops))
        if not changed:
            self._append(file, Frames(data, starts, stops, data.size, Status.OK), head)
            return
        for at in range(order.size):
            frames = Frames(data, starts[at : at + 1], stops[at : at + 1], data.size, Status.OK)
            if at in changed:
                piece = data[starts[at] : stops[at]].copy()
                patched(piece, 0, "base_offset", int(head["base_offset"][at]))
                if head["magic"][at] == MAGIC_V2:
                    patched(piece, 0, "leader_epoch", int(head["leader_epoch"][at]))
                ends = np.array([0], np.int64), np.array([piece.size], np.int64)
                frames = Frames(piece, *ends, piece.size, Status.OK)
            self._append(file, frames, head.slice(at, at + 1))

    def _hold_end(self, file: File, end: int) -> None:
        """An empty batch up to the log's end, where nothing else is left there: a consumer would wait for ever before a gap at the end."""
        start = self.writer.end_offset
        if not self.writer.batches or start >= end:
            return
        fields = BatchFields(base_offset=start, last_offset=end - 1, leader_epoch=self.written_epoch)
        made = encode_batch(pa.RecordBatch.from_pylist([], schema=RECORDS.schema), fields)
        self.writer.append(made.frames, made.head)
        self.report.bytes_added += int(made.frames.sizes.sum())
        self._range(file, 0, 0, "added", "an empty batch before the end of the log", (start, end - 1))

    def _append(self, file: File, frames: Frames, head: Heads) -> None:
        """Write batches, with the markers that belong between them."""
        done = 0
        while self.markers and int(head["base_offset"][-1]) > (offset := self.markers[-1].marker_offset or 0):
            at = int(np.searchsorted(head["base_offset"], offset))
            if at > done:
                self.writer.append(frames.slice(done, at), head.slice(done, at))
                done = at
            epoch = int(head["leader_epoch"][max(at - 1, 0)]) if at else None
            self.put_back(offset + 1, file, epoch)
        self.writer.append(frames.slice(done, len(frames)), head.slice(done, len(head)))
        self.ledger.add(frames, head)
        self.epochs.add(head)
        self.written_epoch = int(head["leader_epoch"][-1])

    def put_back(self, limit: int, file: File, leader_epoch: int | None = None) -> None:
        """Write the lost transaction markers whose offsets are below a limit."""
        while self.markers and (self.markers[-1].marker_offset or 0) < limit:
            one = self.markers.pop()
            assert one.marker_offset is not None
            made = encode_marker(
                one.marker_offset,
                one.timestamp,
                producer_id=one.producer_id,
                producer_epoch=one.marker_epoch,
                commit=one.outcome == COMMITTED,
                coordinator_epoch=one.coordinator_epoch,
                leader_epoch=self.written_epoch if leader_epoch is None else leader_epoch,
            )
            self.writer.append(made.frames, made.head)
            self.report.bytes_added += int(made.frames.sizes.sum())
            self.restored.append(one.marker_offset)
            reason = f"the lost marker of producer {one.producer_id}, epoch {one.epoch}: {one.outcome}"
            self._range(file, 0, 0, "added", reason, (one.marker_offset, one.marker_offset))

    def _set_epochs(self, file: File, head: Heads, starts: Any, stops: Any) -> list[int]:
        """Set right the leader epochs that an attempt before found to be wrong; the batches that it changed."""
        bases, epochs = head["base_offset"], head["leader_epoch"]
        changed = []
        for one in self.plan.epochs:
            wrong = (bases >= one.first) & (bases <= one.last) & (epochs == one.wrong) & (head["magic"] == MAGIC_V2)
            for at in np.flatnonzero(wrong).tolist():
                epochs[at] = one.right
                changed.append(at)
                offsets = (int(bases[at]), int(head["last_offset"][at]))
                reason = (
                    f"leader epoch {one.wrong} set to {one.right}, by the batches around it or the epoch checkpoint"
                )
                self._range(file, int(starts[at]), int(stops[at]), "changed", reason, offsets)
        return changed

    def judge(self, files: Sequence[File]) -> list[Transaction]:
        """The transactions whose markers are, or may be, lost."""
        return Judge(self.ledger, self.damage, files).decide() if self.damage else []

    def end(self) -> None:
        """The offsets that are lost: all that damage took and that was not put back."""
        lost = sorted(set(self.damage), key=lambda one: (one[0], one[1] if one[1] is not None else HUGE))
        for offset in self.restored:
            lost = [part for one in lost for part in _without(one, offset)]
        self.report.lost = lost


def _without(lost: tuple[int, int | None], offset: int) -> list[tuple[int, int | None]]:
    """A run of lost offsets without one of them."""
    first, last = lost
    if offset < first or (last is not None and offset > last):
        return [lost]
    parts: list[tuple[int, int | None]] = [(first, offset - 1), (offset + 1, last)]
    return [one for one in parts if one[1] is None or one[0] <= one[1]]


def _found(extent: Extent, data: Bytes) -> tuple[Found, Chosen]:
    """The sound batches of a segment, and which of them are of the log."""
    found = extent.found if extent.found is not None else find_sound(data, sealed=extent.file.place.sealed)
    return found, extent.chosen or Chosen(list(range(len(found.head))), {}, [], [])


def _refusal(file: File, found: Found, chosen: Chosen) -> CorruptError | TruncatedError:
    for hole in found.holes:
        if hole.reason != PADDING:
            what = TruncatedError if hole.reason == UNFINISHED else CorruptError
            return what(
                f"{hole.stop - hole.start:,} bytes are no sound batch ({hole.reason}); the policy is strict",
                path=file.path,
                position=hole.start,
                format="kafka.log",
                layout=BATCH.name,
            )
    number = min([*chosen.dropped, *chosen.rebased, *chosen.moved], default=0)
    return CorruptError(
        f"a batch at offset {int(found.head['base_offset'][number])} out of order; the policy is strict",
        path=file.path,
        position=int(found.starts[number]),
        format="kafka.log",
        layout=BATCH.name,
        field="base_offset",
    )
