"""A repaired copy of a partition, with a report on every byte that was kept, dropped or changed. The source is never changed.

`salvage` keeps every whole batch whose checksum is right, also after damage, at its own offset. `broker` ends the log where a broker's
recovery would: at the first damage, and all later segments with it. `strict` refuses. All act on what `continuity` finds, as `verify` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog.core.errors import OptionError
from rawlog.core.format import File
from rawlog.core.frames import Bytes, Frames
from rawlog.core.report import Action, Report
from rawlog.core.status import Status
from rawlog.core.store import Store
from rawlog.core.tables import RECORDS
from rawlog.formats.kafka.batch_writer import BatchFields, encode_batch, encode_marker
from rawlog.formats.kafka.heads import Heads
from rawlog.formats.kafka.layouts import MAGIC_V2, NONE
from rawlog.formats.kafka.paths import split
from rawlog.formats.kafka.store.continuity import Continuity, Piece, Side, continuity, refuse_damage
from rawlog.formats.kafka.store.derived import Derivation, Limits
from rawlog.formats.kafka.store.extents import Extent, batches_of, bytes_of
from rawlog.formats.kafka.store.identity import Identity, identity
from rawlog.formats.kafka.store.lost_markers import COMMITTED, Judge, Transaction
from rawlog.formats.kafka.store.marker_ledger import Ledger
from rawlog.formats.kafka.store.partition_writer import PartitionWriter
from rawlog.formats.kafka.store.quarantine import Quarantine
from rawlog.formats.kafka.store.rewrite import NewSegment, new_report, rewrite, segments_of
from rawlog.formats.kafka.store.salvage import HUGE, Found, find_sound, patched
from rawlog.io.output import Folder

SALVAGE, BROKER, STRICT = POLICIES = ("salvage", "broker", "strict")
MOST = (1 << 31) - 1  # how far an offset may lie after its segment's base
Lost = tuple[int, int | None]

AFTER_DAMAGE = "after the first damage"


def repair(store: Store, folder: Folder, options: Mapping[str, str], aside: Folder | None = None) -> Report:
    """Write a repaired copy of a partition, with everything derived from the log made again.

    `aside` is a directory for the bytes that were dropped, and for the records in them that can be read. CorruptError under the policy
    `strict` if anything would be dropped or changed.
    """
    policy = options.get("policy", SALVAGE)
    if policy not in POLICIES:
        raise OptionError(f"policy {policy!r}: {', '.join(POLICIES)} expected")
    interval = Limits.from_options(options).index_interval_bytes
    log_start = segments_of(store)[0].place.start_offset or 0
    whose, found = identity(store), continuity(store)
    if policy == STRICT:
        refuse_damage(whose, found, "the policy is strict", allows_tail=False)
    metadata = None if whose is None else whose.data
    quarantine = None if aside is None else Quarantine(aside)

    def attempt(transactions: Sequence[Transaction] = ()) -> tuple[Repair, PartitionWriter]:
        """Write everything, with the markers of these transactions."""
        made = Cutting if policy == BROKER else Salvage
        work = made(found, interval, metadata, quarantine, transactions)
        return work, rewrite(folder, work, log_start=log_start)

    work, writer = attempt()
    transactions = Judge(work.ledger, work.damage, store).decide() if work.damage else []
    if policy == SALVAGE and any(one.marker_offset is not None for one in transactions):
        writer.discard()
        if quarantine is not None:
            quarantine.discard()
        work, writer = attempt(transactions)
    else:
        transactions = [one.without_marker() for one in transactions]
    return _report(work, writer, policy, transactions, whose)


def _report(
    work: Repair, writer: PartitionWriter, policy: str, transactions: Sequence[Transaction], whose: Identity | None
) -> Report:
    """What was done to the batches, and all the rest: the offsets that are lost, their transactions, the files around the log."""
    report = work.report
    report.notes += [str(gap) for gap in work.found.gaps if not gap.is_lost]
    for first, last in work.lost():
        reason = next((gap.trace for gap in work.found.gaps if gap.first <= first and last == gap.last), "")
        report.add(Action.LOST, reason, first_offset=first, stop_offset=None if last is None else last + 1)
    for one in transactions:
        if one.marker_offset is None:
            report.add(Action.LOST, one.line())
    if whose is not None and whose.change is not None:
        action = Action.CHANGED if whose.data is not None else Action.DROPPED
        report.add(action, whose.change, whose.path, start=0, stop=whose.size)
        report.count("bytes_cut", whose.size if whose.data is None else 0)
    report.add(Action.REBUILT, f"{len(writer.derived):,} files from the log")
    report.count("bytes_kept", writer.bytes - report.counts["bytes_added"])
    report.count("batches", writer.batches)
    report.facts |= {"policy": policy, "end_offset": writer.end_offset, "rebuilt": sorted(writer.derived)}
    report.facts["transactions"] = [asdict(one) for one in transactions]
    return report


# The policies --------------------------------------------------------------------------------------------------------


class Repair:
    """What the policies share: the report, what was cut, and what is known of transactions."""

    limits: Limits | None = None
    derivation: Derivation | None = None

    def __init__(
        self,
        found: Continuity,
        interval: int,
        metadata: bytes | None,
        aside: Quarantine | None,
        transactions: Sequence[Transaction] = (),
    ) -> None:
        self.found, self.interval, self.metadata, self.aside = found, interval, metadata, aside
        self.report = new_report(bytes_kept=0, bytes_cut=0, bytes_added=0, records_aside=0, batches=0)
        self.ledger = Ledger()
        #: Runs of offsets that damage took; those of markers that were put back.
        self.damage: list[Lost] = []
        self.restored: list[int] = []
        #: Transactions whose markers are to be put back, those with the highest offsets first.
        self.markers = sorted(
            (one for one in transactions if one.marker_offset is not None), key=lambda one: -(one.marker_offset or 0)
        )

    def segments(self, writer: PartitionWriter) -> Iterator[NewSegment]:
        """The segments of the result."""
        raise NotImplementedError

    def lost(self) -> list[Lost]:
        """The offsets that are lost: all that damage took and that was not put back."""
        lost = sorted(set(self.damage), key=lambda one: (one[0], one[1] if one[1] is not None else HUGE))
        for offset in self.restored:
            lost = [part for one in lost for part in _without(one, offset)]
        return lost

    def add(
        self,
        action: Action,
        file: File,
        start: int = 0,
        stop: int = 0,
        reason: str = "",
        offsets: tuple[int, int] | None = None,
        *,
        is_expected: bool = False,
    ) -> None:
        """Report what became of bytes, or of the file as a whole. `offsets` are the first and the last."""
        if action is Action.DROPPED:
            self.report.count("bytes_cut", stop - start)
        place: dict[str, Any] = {} if offsets is None else {"first_offset": offsets[0], "stop_offset": offsets[1] + 1}
        self.report.add(action, reason, file.path, start=start, stop=stop, is_expected=is_expected, **place)

    def put_aside(self, file: File, data: Bytes, start: int, stop: int) -> None:
        """Keep what was dropped, never mixed in."""
        self.ledger.cut(data[start:stop])
        if self.aside is not None:
            self.aside.keep(split(file.path)[1], data, start, stop, file.place)
            self.report.counts["records_aside"] = self.aside.records


def _without(lost: Lost, offset: int) -> list[Lost]:
    """A run of lost offsets without one of them."""
    first, last = lost
    if offset < first or (last is not None and offset > last):
        return [lost]
    parts: list[Lost] = [(first, offset - 1), (offset + 1, last)]
    return [one for one in parts if one[1] is None or one[0] <= one[1]]


class Cutting(Repair):
    """The policy `broker`: the log ends at the first damage."""

    def segments(self, writer: PartitionWriter) -> Iterator[NewSegment]:
        """Each segment up to the damaged one."""
        ended = False
        extents = self.found.extents
        self.damage += [(gap.first, gap.last) for gap in self.found.gaps if gap.trace and gap.is_lost]
        for number, extent in enumerate(extents):
            file, data = extent.file, bytes_of(extent.file)
            if ended:
                self.add(Action.DROPPED, file, 0, file.size, AFTER_DAMAGE)
                self.put_aside(file, data, 0, data.size)
                continue
            found = extent.found or find_sound(data, sealed=file.place.sealed)
            stop = HUGE if number + 1 == len(extents) else extents[number + 1].first
            count, end, reason = _up_to_damage(found, data.size, extent.first, stop)
            base = self._base(file, extent.first, writer)
            head = found.head.slice(0, count)
            last = int(head["last_offset"][-1]) if count else extent.first - 1
            if count:
                offsets = (int(head["base_offset"][0]), last)
                self.add(Action.KEPT, file, 0, int(found.stops[count - 1]), offsets=offsets)
            if ended := end < data.size:
                is_tail = bool(found.holes) and found.holes[0].start == end and extent.is_crash_tail(found.holes[0])
                self.add(Action.DROPPED, file, end, data.size, reason, is_expected=is_tail)
                self.put_aside(file, data, end, data.size)
                if not is_tail:
                    self.damage.append((last + 1, None))
            frames = Frames(data, found.starts[:count], found.stops[:count], data.size, Status.OK)
            self.ledger.add(frames, head)
            yield NewSegment(base, [(frames, head)], file.modified)

    def _base(self, file: File, first: int, writer: PartitionWriter) -> int:
        """Where a segment begins that a broker keeps."""
        end = writer.end_offset
        between = [gap for gap in self.found.gaps if gap.side is Side.BETWEEN and gap.is_lost]
        is_gap = any(gap.file.path == file.path for gap in between)
        if not writer.batches or end >= first or not is_gap:
            return first
        self.damage.append((end, first - 1))
        reason = f"its name is {end} now, because these offsets before it are lost"
        self.add(Action.MOVED, file, reason=reason, offsets=(end, first - 1))
        return end


def _up_to_damage(found: Found, size: int, first: int, stop: int) -> tuple[int, int, str]:
    """How many batches of a segment a broker keeps, where what it cuts begins, and why."""
    end, reason = (found.holes[0].start, found.holes[0].reason) if found.holes else (size, "")
    count = int(np.searchsorted(found.starts, end))
    base, last = found.head["base_offset"][:count], found.head["last_offset"][:count]
    # A broker does not start at all on such a log.
    wrong = (base < first) | (last - first > MOST) | (last >= stop)
    wrong[1:] |= base[1:] <= last[:-1]
    if wrong.any():
        count = int(np.argmax(wrong))
        return count, int(found.starts[count]), "invalid offsets"
    return count, end, reason


class Salvage(Repair):
    """The policy `salvage`: every sound batch at its own offset. Also that of `strict`, which refused whatever has damage."""

    #: The leader epoch of the batch that was written last.
    written_epoch = NONE

    def segments(self, writer: PartitionWriter) -> Iterator[NewSegment]:
        """The log in the order of its offsets."""
        extents, noted = self.found.extents, set()
        self.damage += self.found.lost
        for piece in self.found.pieces:
            extent = extents[piece.segment]
            file, data = extent.file, bytes_of(extent.file)
            found, chosen = batches_of(extent, data)
            if piece.segment not in noted:
                self._note(piece.segment, data)
                noted.add(piece.segment)
            yield NewSegment(None, self._markers(piece.start, file))
            order = chosen.order if piece.numbers is None else list(piece.numbers)
            batches = self._batches(file, data, found, order, chosen.rebased, extent.bases)
            yield NewSegment(self._base(extent, piece, writer), batches, file.modified)
        for number, extent in enumerate(extents):
            if number not in noted:
                self._note(number, bytes_of(extent.file))
        last = extents[-1]
        is_written = len(extents) - 1 in noted or last.has_batches
        if not is_written and not (writer.batches and writer.end_offset > last.first):
            # The segment to append to exists, although nothing is left in it.
            yield NewSegment(None, self._up_to_end(last, writer))
            yield NewSegment(last.first, (), last.file.modified)
        yield NewSegment(None, self._markers(HUGE, last.file))
        places = {extent.file.path: number for number, extent in enumerate(extents)}
        self.report.entries.sort(key=lambda one: (places.get(one.path or "", -1), one.start or 0))

    def _base(self, extent: Extent, piece: Piece, writer: PartitionWriter) -> int:
        """Where a segment begins: with the offsets that were lost before it, else a segment seems to be missing."""
        end, name, file = writer.end_offset, extent.first, extent.file
        is_after_loss = writer.batches and any(
            first < piece.start and (last is None or last >= end) for first, last in self.found.lost
        )
        if end < piece.start and is_after_loss and piece.last - end <= MOST:
            reason = f"its name is {end} now, because these offsets before it are lost"
            self.add(Action.MOVED, file, reason=reason, offsets=(end, piece.start - 1))
            return end
        if piece.start != name:
            reason = f"offsets {piece.first} to {piece.last} of it are in a segment named {piece.start} now"
            self.add(Action.MOVED, file, reason=reason, offsets=(piece.first, piece.last))
        return piece.start

    def _note(self, number: int, data: Bytes) -> None:
        """Report what becomes of every byte of a segment."""
        extent = self.found.extents[number]
        found, fates = batches_of(extent, data)[0], self.found.fates(number)
        rows: list[tuple[int, int, Action, str, tuple[int, int] | None]] = []
        rows += [(one.start, one.stop, Action.DROPPED, one.reason, None) for one in found.holes]
        tails = {one.start for one in found.holes if extent.is_crash_tail(one)}
        places = zip(found.starts.tolist(), found.stops.tolist(), strict=True)
        offsets = zip(found.head["base_offset"].tolist(), found.head["last_offset"].tolist(), strict=True)
        for at, (place, held) in enumerate(zip(places, offsets, strict=True)):
            fate = fates.get(at)
            rows.append((*place, Action.KEPT, "", held) if fate is None else (*place, fate.action, fate.reason, held))
        reached = 0
        for start, end, action, reason, span in sorted(rows, key=lambda one: one[0]):
            self.report.count("bytes_added", max(reached - start, 0))  # bytes that two batches share are written twice
            reached = end
            is_tail = action is Action.DROPPED and start in tails
            self.add(action, extent.file, start, end, reason, span, is_expected=is_tail)
            if action is Action.DROPPED:
                self.put_aside(extent.file, data, start, end)

    # What is written --------------------------------------------------------------------------------------------------

    def _batches(
        self,
        file: File,
        data: Bytes,
        found: Found,
        numbers: Sequence[int],
        rebased: Mapping[int, int],
        bases: NDArray[np.int64] | None,
    ) -> Iterator[tuple[Frames, Heads]]:
        """Batches of a segment in their order, those that are changed one by one. `bases` are their first offsets, as their content
        says.
        """
        order = np.array(numbers, np.int64)
        if not order.size:
            return
        starts, stops = found.starts[order], found.stops[order]
        head = Heads(np.ascontiguousarray(found.head.values[:, order]))
        changed = {at for at, number in enumerate(numbers) if number in rebased}
        for at in changed:
            number = numbers[at]
            known = head["base_offset"][at] if bases is None else bases[number]
            head["last_offset"][at] = rebased[number] + (head["last_offset"][at] - known)
            # Of magic 0 and 1 the last offset is the one that is written.
            is_wrapper = head["magic"][at] != MAGIC_V2
            head["base_offset"][at] = head["last_offset"][at] if is_wrapper else rebased[number]
        changed |= set(self._set_epochs(file, head, starts, stops))
        done = 0
        for at in sorted(changed):
            if at > done:
                frames = Frames(data, starts[done:at], stops[done:at], data.size, Status.OK)
                yield from self._with_markers(file, frames, head.slice(done, at))
            piece = data[starts[at] : stops[at]].copy()
            patched(piece, 0, "base_offset", int(head["base_offset"][at]))
            if head["magic"][at] == MAGIC_V2:
                patched(piece, 0, "leader_epoch", int(head["leader_epoch"][at]))
            frames = Frames(piece, np.array([0], np.int64), np.array([piece.size], np.int64), piece.size, Status.OK)
            yield from self._with_markers(file, frames, head.slice(at, at + 1))
            done = at + 1
        if done < order.size:
            frames = Frames(data, starts[done:], stops[done:], data.size, Status.OK)
            yield from self._with_markers(file, frames, head.slice(done, order.size))

    def _set_epochs(self, file: File, head: Heads, starts: Any, stops: Any) -> list[int]:
        """Set right the leader epochs that are wrong; the batches that it changed."""
        bases, epochs = head["base_offset"], head["leader_epoch"]
        changed = []
        for one in self.found.corrections:
            for at in np.flatnonzero(one.is_wrong(head)).tolist():
                epochs[at] = one.right
                changed.append(at)
                offsets = (int(bases[at]), int(head["last_offset"][at]))
                how = "by the batches around it or the epoch checkpoint"
                reason = f"leader epoch {one.wrong} set to {one.right}, {how}"
                self.add(Action.CHANGED, file, int(starts[at]), int(stops[at]), reason, offsets)
        return changed

    def _with_markers(self, file: File, frames: Frames, head: Heads) -> Iterator[tuple[Frames, Heads]]:
        """Batches, with the lost markers that belong between them."""
        done = 0
        while self.markers and int(head["base_offset"][-1]) > (offset := self.markers[-1].marker_offset or 0):
            at = int(np.searchsorted(head["base_offset"], offset))
            if at > done:
                yield frames.slice(done, at), head.slice(done, at)
                done = at
            epoch = int(head["leader_epoch"][max(at - 1, 0)]) if at else None
            yield from self._markers(offset + 1, file, epoch)
        yield frames.slice(done, len(frames)), head.slice(done, len(head))
        self.ledger.add(frames, head)
        self.written_epoch = int(head["leader_epoch"][-1])

    def _markers(self, limit: int, file: File, leader_epoch: int | None = None) -> Iterator[tuple[Frames, Heads]]:
        """The lost transaction markers whose offsets are below a limit."""
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
            self.restored.append(one.marker_offset)
            self._add_batch(file, made.frames, one.line(), (one.marker_offset, one.marker_offset))
            yield made.frames, made.head

    def _up_to_end(self, last: Extent, writer: PartitionWriter) -> Iterator[tuple[Frames, Heads]]:
        """The markers before an empty last segment, then an empty batch up to it: a consumer would wait for ever at a gap at the end."""
        yield from self._markers(last.first, last.file)
        start = writer.end_offset
        if not writer.batches or start >= last.first:
            return
        fields = BatchFields(base_offset=start, last_offset=last.first - 1, leader_epoch=self.written_epoch)
        made = encode_batch(pa.RecordBatch.from_pylist([], schema=RECORDS.schema), fields)
        self._add_batch(last.file, made.frames, "an empty batch before the end of the log", (start, last.first - 1))
        yield made.frames, made.head

    def _add_batch(self, file: File, frames: Frames, reason: str, offsets: tuple[int, int]) -> None:
        self.report.count("bytes_added", int(frames.sizes.sum()))
        self.add(Action.ADDED, file, reason=reason, offsets=offsets)
