"""A repaired copy of a partition, with a report on every byte that was kept, dropped or changed. The source is never changed.

`salvage` keeps every whole batch whose checksum is right, also after damage, at its own offset. `broker` ends the log where a broker's
recovery would: at the first damage, and all later segments with it. `strict` refuses. All act on what `outline` finds, as `verify` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rawlog.formats.kafka.log.heads import Heads, take
from rawlog.formats.kafka.log.kernels.compact import locate_records_v2
from rawlog.formats.kafka.log.kernels.encode import seal_batches
from rawlog.formats.kafka.log.layouts import BATCH, CODEC_MASK, CODECS, MAGIC_V2, NONE, OUTLINE, SMALLEST_RECORD
from rawlog.formats.kafka.log.records import COLUMNS, Columns, TooMuch, decode_columns, decode_legacy
from rawlog.formats.kafka.log.writer import BatchFields, encode_batch, encode_marker
from rawlog.formats.kafka.partition.identity import Identity, identity
from rawlog.formats.kafka.partition.markers import COMMITTED, UNKNOWN, Judge, Ledger, Transaction
from rawlog.formats.kafka.partition.outline import (
    BatchRange,
    Fate,
    MissingOffsets,
    Outline,
    Side,
    outline,
    refuse_damage,
)
from rawlog.formats.kafka.partition.rewrite import NewSegment, new_report, rewrite, segments_of
from rawlog.formats.kafka.partition.segment_outline import (
    FARTHEST,
    HUGE,
    BatchOrder,
    Extent,
    SoundBatches,
    batches_of,
    bytes_of,
    find_sound,
)
from rawlog.formats.kafka.partition.writer import Derivation, PartitionWriter, SegmentLimits
from rawlog.formats.kafka.paths import split
from rawlog.io import compression
from rawlog.io.output import Folder
from rawlog.kernels import byte_view
from rawlog.kernels.columns import batch, constant
from rawlog.model.errors import DataError, OptionError
from rawlog.model.format import File, Place
from rawlog.model.frames import Bytes, Frames
from rawlog.model.report import Action, Report
from rawlog.model.status import OK, Status
from rawlog.model.store import Store
from rawlog.model.table import RECORDS

# ----------------------------------------------------------------------------------------------------------------------
# What a repair cuts, kept aside: the bytes as they were, and as Parquet the records in them that can still be read.
# No checksum protects such records: the checksum of their batch does not match, so any byte of them may be wrong, their offsets too.


LIMIT = compression.DEFAULT_LIMIT


class Quarantine:
    """A directory, empty at first, for what is cut."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.records = 0
        self._names: list[str] = []

    def keep(self, name: str, data: Bytes, start: int, stop: int, place: Place) -> None:
        """Put bytes aside under the name of their file and their place in it, and next to them what can be read of them."""
        if not data[start:stop].any():
            return
        stem = f"{name}.{start}-{stop}"
        self._names.append(f"{stem}.cut")
        self.folder.write(self._names[-1], data[start:stop].tobytes())
        batches = [_rows(columns, place) for columns in readable(data[start:stop])]
        if batches:
            table = pa.Table.from_batches(batches)
            self._names.append(f"{stem}.parquet")
            with self.folder.create(self._names[-1]) as file:
                pq.write_table(table, file)
            self.records += table.num_rows

    def discard(self) -> None:
        """Remove what was put aside: it is to be done again."""
        for name in self._names:
            self.folder.remove(name)
        self._names, self.records = [], 0


def _rows(columns: Columns, place: Place) -> pa.RecordBatch:
    arrays = dict(columns.arrays)
    for name, value in (("topic", place.topic), ("partition", place.partition)):
        arrays[name] = constant(value, RECORDS.column(name).type, columns.count)
    return batch(RECORDS, arrays, columns.count)


def readable(data: Bytes) -> Iterator[Columns]:
    """The records of a batch with a wrong checksum. The batch is at the start of the data."""
    if data.size <= OUTLINE.size:
        return
    length = int.from_bytes(data[OUTLINE.at("length") : OUTLINE.after("length")].tobytes(), "big", signed=True)
    stop = min(OUTLINE.after("length") + length, data.size) if length > 0 else data.size
    head = take(byte_view(data), np.zeros(1, np.int64), np.array([stop], np.int64), check_crc=False)
    if not head.sound.all() or head.codec[0] >= len(CODECS):
        return
    try:
        if head["magic"][0] == MAGIC_V2:
            yield from _survivors(data[BATCH.size : stop], head)
        else:
            ends = np.zeros(1, np.int64), np.array([stop], np.int64)
            yield decode_legacy(data, *ends, COLUMNS, head=head, limit=LIMIT, total=LIMIT)
    except (DataError, TooMuch):
        return


def _survivors(payload: Bytes, head: Heads) -> Iterator[Columns]:
    """Runs of whole records of a batch. A broken record is skipped if its length is credible."""
    plain = byte_view(compression.decompress(CODECS[int(head.codec[0])], payload, limit=LIMIT))
    position = 0
    while plain.size - position >= SMALLEST_RECORD:
        rest = plain[position:]
        room = rest.size // SMALLEST_RECORD
        offsets, keys, sizes = (np.empty(room, np.int64) for _ in range(3))
        span = np.zeros(1, np.int64), np.array([rest.size], np.int64)
        wanted, base = np.array([room], np.int64), np.ascontiguousarray(head["base_offset"])
        count, reached, status = locate_records_v2(
            rest, *span, wanted, base, offsets, keys, sizes, np.empty(room, np.bool_)
        )
        yield from _decode_runs(rest[: int(reached) if status != OK else rest.size], head, int(count))
        if status == OK:
            return
        skipped = _length(rest, int(reached))
        if skipped is None:
            return
        position += int(reached) + skipped


def _length(data: Bytes, position: int) -> int | None:
    """How many bytes the record at a position says it takes, if they are there."""
    value = shift = 0
    for number, byte in enumerate(data[position : position + 5].tolist()):
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            size = (value >> 1) ^ -(value & 1)
            total = number + 1 + size
            return total if 0 < size <= data.size - position - number - 1 else None
        shift += 7
    return None


def _decode_runs(records: Bytes, head: Heads, count: int) -> Iterator[Columns]:
    """So many records as columns; where one among them cannot be read, those on both sides of it."""
    if not count:
        return
    plain_head = Heads(head.values.copy())
    plain_head["attributes"][:] &= ~CODEC_MASK
    plain_head["record_count"][:] = count
    data = np.concatenate((np.zeros(BATCH.size, np.uint8), records))
    ends = np.zeros(1, np.int64), np.array([data.size], np.int64)
    seal_batches(data, *ends, plain_head.values)
    try:
        yield decode_columns(data, *ends, COLUMNS, limit=LIMIT)
    except DataError:
        middle = _position_of(records, count // 2)
        if count > 1 and middle is not None:
            yield from _decode_runs(records[:middle], head, count // 2)
            yield from _decode_runs(records[middle:], head, count - count // 2)


def _position_of(records: Bytes, number: int) -> int | None:
    """Where a record begins, by its number."""
    position = 0
    for _ in range(number):
        size = _length(records, position)
        if size is None:
            return None
        position += size
    return position


SALVAGE, BROKER, STRICT = POLICIES = ("salvage", "broker", "strict")
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
    interval = SegmentLimits.from_options(options).index_interval_bytes
    log_start = segments_of(store)[0].place.start_offset or 0
    owner, log = identity(store), outline(store)
    if policy == STRICT:
        refuse_damage(owner, log, "the policy is strict", allows_tail=False)
    metadata = None if owner is None else owner.data
    quarantine = None if aside is None else Quarantine(aside)

    def attempt(transactions: Sequence[Transaction] = ()) -> tuple[Repair, PartitionWriter]:
        """Write everything, with the markers of these transactions."""
        if quarantine is not None:
            quarantine.discard()
        policy_class = BrokerCut if policy == BROKER else Salvage
        work = policy_class(log, interval, metadata, quarantine, transactions)
        return work, rewrite(folder, work, log_start=log_start)

    work, writer, transactions = write_with_markers(attempt, [store])
    return _report(work, writer, policy, transactions, owner)


def write_with_markers(
    attempt: Callable[[Sequence[Transaction]], tuple[Repair, PartitionWriter]], evidence: Sequence[Sequence[File]]
) -> tuple[Repair, PartitionWriter, list[Transaction]]:
    """Write a partition, and write it again with the markers of transactions that damage took, if it took some. `evidence` are the files of
    each replica; the one that leaves the fewest transactions undecided is asked.
    """
    work, writer = attempt(())
    verdicts = (Judge(work.ledger, work.damage, files).decide() for files in evidence if work.damage)
    transactions = min(
        verdicts, key=lambda verdict: sum(transaction.outcome == UNKNOWN for transaction in verdict), default=[]
    )
    if not isinstance(work, BrokerCut) and any(transaction.marker_offset is not None for transaction in transactions):
        writer.discard()
        work, writer = attempt(transactions)
    else:
        transactions = [transaction.without_marker() for transaction in transactions]
    return work, writer, transactions


def _report(
    work: Repair, writer: PartitionWriter, policy: str, transactions: Sequence[Transaction], owner: Identity | None
) -> Report:
    """What was done to the batches, and all the rest: the offsets that are lost, their transactions, the files around the log."""
    report = work.report
    work.report_losses(transactions)
    if owner is not None and owner.change is not None:
        action = Action.CHANGED if owner.data is not None else Action.DROPPED
        report.add(action, owner.change, owner.path, start=0, stop=owner.size)
        report.count("bytes_cut", owner.size if owner.data is None else 0)
    report.add(Action.REBUILT, f"{len(writer.derived):,} files from the log")
    report.count("bytes_kept", writer.bytes - report.counts["bytes_added"])
    report.count("batches", writer.batches)
    report.facts |= {"policy": policy, "end_offset": writer.end_offset, "rebuilt": sorted(writer.derived)}
    report.facts["transactions"] = [asdict(transaction) for transaction in transactions]
    return report


# The policies --------------------------------------------------------------------------------------------------------


class Repair:
    """The common part of all that writes a log with damage: the report, the cut bytes, the lost offsets, the markers to put back."""

    #: The leader epoch of the batch that was written last.
    written_epoch = NONE

    def __init__(self, aside: Quarantine | None = None, transactions: Sequence[Transaction] = ()) -> None:
        self.aside = aside
        self.report = new_report(bytes_kept=0, bytes_cut=0, bytes_added=0, records_aside=0, batches=0)
        self.ledger = Ledger()
        self.gaps: Sequence[MissingOffsets] = ()
        #: Runs of offsets that damage took; those of markers that were put back.
        self.damage: list[Lost] = []
        self.restored: list[int] = []
        #: Transactions whose markers are to be put back, those with the highest offsets first.
        self.markers = sorted(
            (transaction for transaction in transactions if transaction.marker_offset is not None),
            key=lambda transaction: -(transaction.marker_offset or 0),
        )

    def segments(self, writer: PartitionWriter) -> Iterator[NewSegment]:
        """The segments of the result."""
        raise NotImplementedError

    def lost(self) -> list[Lost]:
        """The lost offsets: those in damage, without restored markers."""
        lost = sorted(set(self.damage), key=lambda span: (span[0], span[1] if span[1] is not None else HUGE))
        for offset in self.restored:
            lost = [part for span in lost for part in _remove_offset(span, offset)]
        return lost

    def report_losses(self, transactions: Sequence[Transaction], end: int | None = None) -> None:
        """Report lost offsets and transactions; with an `end`, at which the log was cut on purpose, only losses before it."""
        self.report.notes += [str(gap) for gap in self.gaps if not gap.is_lost]
        for first, last in self.lost():
            if end is not None and (last is None or last >= end):
                continue
            reason = next((gap.trace for gap in self.gaps if gap.first <= first and last == gap.last), "")
            self.report.add(Action.LOST, reason, first_offset=first, stop_offset=None if last is None else last + 1)
        for transaction in transactions:
            if transaction.marker_offset is None:
                self.report.add(Action.LOST, transaction.line())

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

    # What is put back ---------------------------------------------------------------------------------------------------

    def insert_markers(self, file: File, frames: Frames, head: Heads) -> Iterator[tuple[Frames, Heads]]:
        """Batches, with the lost markers that belong between them."""
        done = 0
        while self.markers and int(head["base_offset"][-1]) > (offset := self.markers[-1].marker_offset or 0):
            at = int(np.searchsorted(head["base_offset"], offset))
            if at > done:
                yield frames.slice(done, at), head.slice(done, at)
                done = at
            epoch = int(head["leader_epoch"][max(at - 1, 0)]) if at else None
            yield from self.markers_before(offset + 1, file, epoch)
        yield frames.slice(done, len(frames)), head.slice(done, len(head))
        self.ledger.add(frames, head)
        self.written_epoch = int(head["leader_epoch"][-1])

    def markers_before(self, limit: int, file: File, leader_epoch: int | None = None) -> Iterator[tuple[Frames, Heads]]:
        """The lost transaction markers whose offsets are below a limit."""
        while self.markers and (self.markers[-1].marker_offset or 0) < limit:
            transaction = self.markers.pop()
            assert transaction.marker_offset is not None
            marker = encode_marker(
                transaction.marker_offset,
                transaction.timestamp,
                producer_id=transaction.producer_id,
                producer_epoch=transaction.marker_epoch,
                commit=transaction.outcome == COMMITTED,
                coordinator_epoch=transaction.coordinator_epoch,
                leader_epoch=self.written_epoch if leader_epoch is None else leader_epoch,
            )
            self.restored.append(transaction.marker_offset)
            self._add_batch(
                file, marker.frames, transaction.line(), (transaction.marker_offset, transaction.marker_offset)
            )
            yield marker.frames, marker.head

    def _add_batch(self, file: File, frames: Frames, reason: str, offsets: tuple[int, int]) -> None:
        self.report.count("bytes_added", int(frames.sizes.sum()))
        self.add(Action.ADDED, file, reason=reason, offsets=offsets)


class OutlineRepair(Repair):
    """What is written of one log, by its outline."""

    limits: SegmentLimits | None = None
    derivation: Derivation | None = None

    def __init__(
        self,
        log: Outline,
        interval: int,
        metadata: bytes | None,
        aside: Quarantine | None,
        transactions: Sequence[Transaction] = (),
    ) -> None:
        super().__init__(aside, transactions)
        self.log, self.interval, self.metadata = log, interval, metadata
        self.gaps = log.gaps


def _kept_runs(sound: SoundBatches, fates: Mapping[int, Fate]) -> list[tuple[int, int]]:
    """The runs of batches that follow one another in the file and have no fate: the numbers of the first and the last of each."""
    kept = np.ones(sound.starts.size, np.bool_)
    kept[list(fates)] = False
    follows = kept[1:] & kept[:-1] & (sound.starts[1:] == sound.stops[:-1])
    begins = np.flatnonzero(kept & np.concatenate(([True], ~follows))[: kept.size])
    ends = np.flatnonzero(kept & np.concatenate((~follows, [True]))[: kept.size])
    return list(zip(begins.tolist(), ends.tolist(), strict=True))


def _remove_offset(lost: Lost, offset: int) -> list[Lost]:
    """A run of lost offsets without one of them."""
    first, last = lost
    if offset < first or (last is not None and offset > last):
        return [lost]
    parts: list[Lost] = [(first, offset - 1), (offset + 1, last)]
    return [span for span in parts if span[1] is None or span[0] <= span[1]]


class BrokerCut(OutlineRepair):
    """The policy `broker`: the log ends at the first damage."""

    def segments(self, writer: PartitionWriter) -> Iterator[NewSegment]:
        """Each segment up to the damaged one."""
        ended = False
        extents = self.log.extents
        self.damage += [(gap.first, gap.last) for gap in self.log.gaps if gap.trace and gap.is_lost]
        for number, extent in enumerate(extents):
            file, data = extent.file, bytes_of(extent.file)
            if ended:
                self.add(Action.DROPPED, file, 0, file.size, AFTER_DAMAGE)
                self.put_aside(file, data, 0, data.size)
                continue
            sound = extent.sound or find_sound(data, sealed=file.place.sealed)
            stop = HUGE if number + 1 == len(extents) else extents[number + 1].first
            count, end, reason = _sound_prefix(sound, data.size, extent.first, stop)
            self._note_gap(file, extent.first, writer)
            head = sound.head.slice(0, count)
            last = int(head["last_offset"][-1]) if count else extent.first - 1
            if count:
                offsets = (int(head["base_offset"][0]), last)
                self.add(Action.KEPT, file, 0, int(sound.stops[count - 1]), offsets=offsets)
            if ended := end < data.size:
                is_tail = bool(sound.holes) and sound.holes[0].start == end and extent.is_crash_tail(sound.holes[0])
                self.add(Action.DROPPED, file, end, data.size, reason, is_expected=is_tail)
                self.put_aside(file, data, end, data.size)
                if not is_tail:
                    self.damage.append((last + 1, None))
            frames = Frames(data, sound.starts[:count], sound.stops[:count], data.size, Status.OK)
            self.ledger.add(frames, head)
            yield NewSegment(extent.first, [(frames, head)], file.modified)

    def _note_gap(self, file: File, first: int, writer: PartitionWriter) -> None:
        """Note the offsets that are lost before a segment that a broker keeps."""
        between = [gap for gap in self.log.gaps if gap.side is Side.BETWEEN and gap.is_lost]
        if writer.batches and writer.end_offset < first and any(gap.file.path == file.path for gap in between):
            self.damage.append((writer.end_offset, first - 1))


def _sound_prefix(sound: SoundBatches, size: int, first: int, stop: int) -> tuple[int, int, str]:
    """The number of batches of a segment that a broker keeps, the start of the cut, and the reason."""
    end, reason = (sound.holes[0].start, sound.holes[0].reason) if sound.holes else (size, "")
    count = int(np.searchsorted(sound.starts, end))
    base, last = sound.head["base_offset"][:count], sound.head["last_offset"][:count]
    # A broker does not start at all on such a log.
    wrong = (base < first) | (last - first > FARTHEST) | (last >= stop)
    wrong[1:] |= base[1:] <= last[:-1]
    if wrong.any():
        count = int(np.argmax(wrong))
        return count, int(sound.starts[count]), "invalid offsets"
    return count, end, reason


class Salvage(OutlineRepair):
    """The policy `salvage`: every sound batch at its own offset. Also that of `strict`, which refused whatever has damage."""

    def segments(self, writer: PartitionWriter) -> Iterator[NewSegment]:
        """The log in the order of its offsets."""
        extents, noted = self.log.extents, set()
        self.damage += self.log.lost
        for piece in self.log.pieces:
            extent = extents[piece.segment]
            file, data = extent.file, bytes_of(extent.file)
            known = batches_of(extent, data)
            if piece.segment not in noted:
                self._report_segment(piece.segment, data)
                noted.add(piece.segment)
            yield NewSegment(None, self.markers_before(piece.start, file))
            yield NewSegment(self._base(extent, piece), self._batches(piece, known), file.modified)
        for number, extent in enumerate(extents):
            if number not in noted:
                self._report_segment(number, bytes_of(extent.file))
        last = extents[-1]
        is_written = len(extents) - 1 in noted or last.has_batches
        if not is_written and not (writer.batches and writer.end_offset > last.first):
            # The segment to append to exists, although nothing is left in it.
            yield NewSegment(None, self._fill_to_end(last, writer))
            yield NewSegment(last.first, (), last.file.modified)
        yield NewSegment(None, self.markers_before(HUGE, last.file))
        places = {extent.file.path: number for number, extent in enumerate(extents)}
        self.report.entries.sort(key=lambda entry: (places.get(entry.path or "", -1), entry.start or 0))

    def _base(self, extent: Extent, piece: BatchRange) -> int:
        """Where a segment begins."""
        if piece.start != extent.first:
            reason = f"offsets {piece.first} to {piece.last} of it are in a segment named {piece.start} now"
            self.add(Action.MOVED, extent.file, reason=reason, offsets=(piece.first, piece.last))
        return piece.start

    def _report_segment(self, number: int, data: Bytes) -> None:
        """Report what becomes of every byte of a segment."""
        extent = self.log.extents[number]
        sound, fates = batches_of(extent, data)[0], self.log.fates(number)
        rows: list[tuple[int, int, Action, str, tuple[int, int] | None]] = []
        rows += [(hole.start, hole.stop, Action.DROPPED, hole.reason, None) for hole in sound.holes]
        tails = {hole.start for hole in sound.holes if extent.is_crash_tail(hole)}
        firsts, lasts = sound.head["base_offset"], sound.head["last_offset"]
        for first, last in _kept_runs(sound, fates):
            held = int(firsts[first]), int(lasts[last])
            rows.append((int(sound.starts[first]), int(sound.stops[last]), Action.KEPT, "", held))
        for at, fate in fates.items():
            held = int(firsts[at]), int(lasts[at])
            if fate.action is Action.CHANGED:
                held = fate.base, fate.base + held[1] - held[0]
            rows.append((int(sound.starts[at]), int(sound.stops[at]), fate.action, fate.reason, held))
        reached = 0
        for start, end, action, reason, offsets in sorted(rows, key=lambda row: row[0]):
            self.report.count("bytes_added", max(reached - start, 0))  # bytes that two batches share are written twice
            reached = end
            is_tail = action is Action.DROPPED and start in tails
            self.add(action, extent.file, start, end, reason, offsets, is_expected=is_tail)
            if action is Action.DROPPED:
                self.put_aside(extent.file, data, start, end)

    # What is written --------------------------------------------------------------------------------------------------

    def _batches(self, piece: BatchRange, known: tuple[SoundBatches, BatchOrder]) -> Iterator[tuple[Frames, Heads]]:
        """The batches of a piece, with the lost markers between them."""
        file = self.log.extents[piece.segment].file
        for correction, start, stop, *offsets in self.log.epoch_changes(piece, known):
            self.add(Action.CHANGED, file, start, stop, correction.reason, (offsets[0], offsets[1]))
        for frames, head in self.log.batches(piece, known):
            yield from self.insert_markers(file, frames, head)

    def _fill_to_end(self, last: Extent, writer: PartitionWriter) -> Iterator[tuple[Frames, Heads]]:
        """The markers before an empty last segment, then an empty batch up to it: a consumer would wait for ever at a gap at the end."""
        yield from self.markers_before(last.first, last.file)
        start = writer.end_offset
        if not writer.batches or start >= last.first:
            return
        fields = BatchFields(base_offset=start, last_offset=last.first - 1, leader_epoch=self.written_epoch)
        empty = encode_batch(pa.RecordBatch.from_pylist([], schema=RECORDS.schema), fields)
        self._add_batch(last.file, empty.frames, "an empty batch before the end of the log", (start, last.first - 1))
        yield empty.frames, empty.head
