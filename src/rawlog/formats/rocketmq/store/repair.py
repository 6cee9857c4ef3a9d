"""A mended copy of a store: what a broker would cut off or delete is kept, or moved, and every loss is told.

`salvage` (the default) keeps all that can be read: a hole is covered, so that every later message stays at its physical offset. Where a
consume queue still says what stood there, a placeholder takes the lost message's number, so that no later one of its queue moves (a
consumer is handed an empty message with the flag `rawl`); elsewhere a filler does, which no queue shows. `cut` ends the log at
the first damage, as a broker would. With `move` the messages behind a hole close up: their physical offsets and ids change, and nothing is
filled in.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rawlog.core.errors import DataError, OptionError
from rawlog.core.format import File
from rawlog.formats.rocketmq import COMMIT_LOG
from rawlog.formats.rocketmq.encoder import from_messages
from rawlog.formats.rocketmq.index import Index
from rawlog.formats.rocketmq.kernels import entries as fields
from rawlog.formats.rocketmq.layouts import BLANK, DLEDGER, DLEDGER_BLANK_MAGIC, DLEDGER_MAGIC, MAGIC_BLANK
from rawlog.formats.rocketmq.paths import below_root
from rawlog.formats.rocketmq.reader import Messages, scan
from rawlog.formats.rocketmq.store import configs, dispatch, outliers, sidefiles
from rawlog.formats.rocketmq.store.compaction import FORMATS, write_compacted
from rawlog.formats.rocketmq.store.covering import (
    LARGEST_FILLER,
    SMALLEST_FILLER,
    Slot,
    covering,
    joined,
    placeholder_size,
)
from rawlog.formats.rocketmq.store.gaps import Filler, close_gaps
from rawlog.formats.rocketmq.store.rebuild import DERIVED, NEVER_COPIED, write_from
from rawlog.formats.rocketmq.store.sizes import sizes_of
from rawlog.formats.rocketmq.store.slots import Slots
from rawlog.formats.rocketmq.store.stage import Nowhere, Report, copy_file
from rawlog.formats.rocketmq.store.writer import LogWriter
from rawlog.io.output import descendant, new_directory
from rawlog.io.storage import Source
from rawlog.io.walk import walk

POLICIES = ("salvage", "cut")
MOST_MISSING = 10_000
OWN_WAY = (
    *DERIVED, *NEVER_COPIED, *FORMATS, COMMIT_LOG.name, "rocketmq.config", "rocketmq.timercheck", "rocketmq.dledgerindex",
    "rocketmq.dledgerstate",
)  # fmt: skip
"""Files that are not copied as they are."""


@dataclass(slots=True)
class Run:
    """Whole, sound messages one behind the other in a file; `stop` is the address behind the last."""

    rows: Messages
    start: int
    stop: int


def runs_of(file: File, *, skip: bool, size: int) -> Iterator[Run]:
    """The sound messages in the first `size` bytes of a file, in runs without a hole; nothing behind the first one unless `skip`."""
    for frames in walk(file, COMMIT_LOG, stop=size, errors="skip" if skip else "stop"):
        rows = Messages.take(frames, file)
        good = rows.crc_ok & ~rows.stale & rows.entry_crc_ok
        if not len(rows):
            continue
        if frames.status.is_damage and _has_foreign_end(rows):
            good[-1] = False
        if not good.all() and not skip:
            bad = int(np.argmin(good))
            if bad:
                yield _run(rows.cut(0, bad))
            return
        rows = rows.where(good)
        starts, stops = _edges(rows)
        edges = np.flatnonzero(starts[1:] != stops[:-1]) + 1
        for start, stop in zip([0, *edges.tolist()], [*edges.tolist(), len(rows)], strict=True):
            if stop > start:
                yield _run(rows.cut(start, stop))


def _has_foreign_end(rows: Messages) -> bool:
    """Whether the last message before damage reaches into something else: bytes are gone from it, or too many, and its text is none."""
    start, size = int(rows[fields.F_PROPERTIES][-1]), int(rows[fields.F_PROPERTIES_SIZE][-1])
    try:
        bytes(rows.data[start : start + size]).decode("utf-8")
    except UnicodeDecodeError:
        return int(rows[fields.F_FRAME][-1]) == len(rows.frames) - 1
    return False


def _edges(rows: Messages) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The addresses at which the entries of messages begin and end, DLedger's heads included."""
    frames, at = rows.frames, rows[fields.F_FRAME]
    return rows.start + frames.positions[at], rows.start + frames.positions[at] + frames.sizes[at]


def _run(rows: Messages) -> Run:
    starts, stops = _edges(rows)
    return Run(rows, int(starts[0]), int(stops[-1]))


def repair_store(
    files: Sequence[File], target: str | os.PathLike[str], options: Mapping[str, str] | None = None
) -> Report:
    """A copy of a store on which a broker starts and serves all that could be kept. The source is not touched.

    Options: `policy` = salvage or cut, `move` = true, `dry_run` = true (the same report, and nothing is written), and those of
    `rebuild_store`. Consume queues and index are rebuilt. OptionError for a store whose log DLedger wrote, unless its messages may
    move into a plain one, or whose files have no sizes in common.
    """
    options = options or {}
    policy, move = options.get("policy", "salvage"), options.get("move", "false") == "true"
    if policy not in POLICIES:
        raise OptionError(f"policy {policy!r}: {' or '.join(POLICIES)} expected")
    with nullcontext(Nowhere()) if options.get("dry_run", "false") == "true" else new_directory(target) as stage:
        report = Report(os.fspath(target))
        files = sidefiles.recognised(files)
        sizes = sizes_of(files).told(options)
        if "commit_log" not in sizes.known and dispatch.commit_logs(files):
            report.notes.append(
                f"commitlog: neither its files nor a broker.conf show their full size (commitlog_size): {sizes.commit_log:,} is assumed; "
                "a broker with another setting does not start"
            )
        files = sidefiles.located(files, sizes.commit_log, report, move=move)
        settings = dispatch.settings_of(files, options)
        indexes = [file for file in files if file.format == "rocketmq.index" and file.problem is None]
        mended = _Mended(
            stage / "commitlog", sizes.commit_log, report, Slots(files), settings, move=move, indexes=indexes
        )
        logs = dispatch.commit_logs(files)
        last = max((number for number, file in enumerate(logs) if _is_begun(file)), default=0)
        for number, file in enumerate(logs):
            clean = mended.take(file, skip=policy == "salvage", is_last=number >= last)
            if not clean and policy == "cut":
                for later in logs[number + 1 :]:
                    report.notes.append(f"{later.path}: left out, it follows the damage")
                    report.bytes_lost += later.size
                break
        mended.close()
        report.files += mended.files
        for file in files:
            if file.format not in OWN_WAY and file.format is not None and file.problem is None:
                copy_file(file, descendant(stage, below_root(file)))
                report.files += 1
        sidefiles.write_checked(files, stage, report)
        write_compacted(files, stage, mended.message, report)
        configs.Settings(files, stage, report).write(
            mended.derived, settings.batch_topics | mended.derived.batch_topics
        )
        write_from(mended.derived, files, stage, sizes, settings, report, only_known=True)
    return report


class _Mended:
    """The commit log on its way: runs written where they were, holes covered; and what derives from it."""

    def __init__(
        self,
        folder: Path | Nowhere,
        file_size: int,
        report: Report,
        slots: Slots,
        settings: dispatch.Settings,
        *,
        move: bool,
        indexes: Sequence[File] = (),
    ) -> None:
        self.indexes = indexes
        self.slots, self.settings, self.derived = slots, settings, dispatch.Derived()
        self.file_size, self.report, self.move = file_size, report, move
        self.log: LogWriter
        self.folder = folder
        self.started = False
        self.sealed: list[NDArray[np.int64]] = []
        self.covers: list[NDArray[np.int64]] = []
        self.fillers: list[Filler] = []
        self.present: set[int] = set()
        self.ends_blank = False
        self.unread: list[File] = []

    def take(self, file: File, *, skip: bool, is_last: bool) -> bool:
        """Add the messages of a file; whether nothing of it was lost."""
        first = file.place.start_offset or 0
        self.present.add(first)
        lost_before, notes_before = self.report.bytes_lost, len(self.report.notes)
        end, seen = first, False
        for run in runs_of(file, skip=skip, size=self.file_size):
            if not self.move:
                _refuse_dledger(run)
            self.reach(run, file)
            hole = run.start - end
            if hole:
                self.report.bytes_lost += hole
                self.report.notes.append(f"{file.path}: byte {end - first:,}: {hole:,} bytes could not be kept")
                if not self.move:
                    self.fill(end, run.start, self._time(run))
            self.add(run)
            end, seen = run.stop, True
        ended = self._end(file, first, end, seen, is_last)
        return ended and self.report.bytes_lost == lost_before and len(self.report.notes) == notes_before

    def _end(self, file: File, first: int, end: int, seen: bool, is_last: bool) -> bool:
        """What stands behind the last sound message: a blank entry, zeros, or something lost."""
        excess, tail = max(0, file.size - self.file_size), _tail(file, end - first, self.file_size)
        if excess:
            self.report.bytes_lost += excess
            self.report.notes.append(f"{file.path}: {excess:,} bytes past the size of a file were cut off")
        self.ends_blank = tail == "blank"
        if tail == "blank" or (tail == "zeros" and is_last):
            return True
        if tail == "zeros" and not seen:
            self.unread.append(file)
            return True  # allocated, never used, unless messages follow
        if tail == "zeros":
            self.report.notes.append(f"{file.path}: byte {end - first:,}: no blank entry at the end; one was added")
            return True
        kept = f"{file.path}: byte {end - first:,}: {tail} bytes at the end could not be read"
        self.report.notes.append(kept)
        self.report.bytes_lost += int(tail.replace(",", ""))
        return False

    def reach(self, run: Run, file: File) -> None:
        """Get to the file of a run, however much is lost between the last message and it: a broker must find a way through."""
        size = self.file_size
        for other in self.unread:
            self.report.notes.append(f"{other.path}: nothing is in it, although messages follow")
            self.report.bytes_lost += size
        self.unread.clear()
        if not self.started:
            start = 0 if self.move and run.start < size else run.start // size * size
            self.log, self.started = LogWriter(self.folder, size, start), True
        at = self.log.end
        if self.move:
            return
        if run.start // size - at // size > MOST_MISSING:
            raise OptionError(f"files are missing before {file.path}, more than {MOST_MISSING:,}: repair with move")
        while at // size < run.start // size:
            stop = (at // size + 1) * size
            if at % size == 0 and at not in self.present:
                self.report.notes.append(f"the commit-log file {at:020} is missing")
                self.report.bytes_lost += size
            known = [slot for slot in self.slots.between(at, stop) if slot.size >= placeholder_size(slot)]
            ends = [slot.address + slot.size for slot in known if slot.address + slot.size <= stop - BLANK.size]
            covered = max([at if at % size else at + SMALLEST_FILLER, *ends])
            if covered > at:
                self.fill(at, covered, self._time(run))
            self.fillers.append(Filler(covered, stop - BLANK.size - covered, self._time(run), is_end=True))
            at = stop

    def add(self, run: Run) -> None:
        run = replace(run, rows=self._identified(run.rows))
        entries = from_messages(run.rows, moves=self.move)
        if self.move:
            addresses = self.log.append(entries)
            delays = self.settings.delays.moved(run.rows[fields.F_PHYSICAL], addresses)
            self._derive(run.rows.moved(addresses), replace(self.settings, delays=delays))
            return
        self._derive(run.rows)
        sizes = entries.sizes()
        data = entries.encode(sizes, run.rows[fields.F_PHYSICAL].copy(), run.start, run.stop)
        self.log.write(run.start, data.data)

    def _identified(self, rows: Messages) -> Messages:
        """Messages with the topic, queue and number that the consume queues have for them, where one was changed."""
        sealed = set(rows.entry_crcs()[0].tolist())
        changes = [(row, slot) for row, slot in self.slots.misplaced(rows) if row not in sealed]
        if not changes:
            return rows
        rows = replace(rows, fields=rows.fields.copy(), data=rows.data.copy())
        for row, slot in changes:
            topic, start = slot.topic.encode(), int(rows[fields.F_TOPIC][row])
            if len(topic) != int(rows[fields.F_TOPIC_SIZE][row]):
                continue
            rows.data[start : start + len(topic)] = np.frombuffer(topic, np.uint8)
            rows[fields.F_QUEUE_ID][row], rows[fields.F_QUEUE_OFFSET][row] = slot.queue_id, slot.number
            self.report.notes.append(
                f"the message at address {slot.address:,}: its topic, queue or number was changed; consume queues have it as "
                f"{slot.topic} queue {slot.queue_id}, {slot.number}"
            )
        return rows

    def _time(self, run: Run) -> int:
        """A time for what covers the hole before a run: the earlier of those around it, for the later may be damaged."""
        following = int(run.rows[fields.F_STORE_TIME][0])
        return max(1, min(following, self.derived.last_time) if self.derived.messages else following)

    def _report_lost_end(self) -> None:
        """Report messages after the end of the log, of which queues, the key index or a blank entry at its very end still know."""
        next_file = -(-self.log.end // self.file_size) * self.file_size
        if self.ends_blank and next_file not in self.present:
            self.report.bytes_lost += self.file_size
            self.report.notes.append(
                f"the commit-log file {next_file:020} is missing: the one before ends with a blank entry"
            )
        if self.move:
            return
        stop = self.log.end + 2 * self.file_size
        known = self.slots.between(self.log.end, stop)
        lost, who = sum(slot.count for slot in known), "queues know"
        if not lost:
            lost, who = len(_indexed(self.indexes, self.log.end, stop)), "the key index knows"
        if lost:
            self.report.messages_lost += lost
            self.report.notes.append(f"{lost:,} messages that {who} after the end of the log are lost")

    def _derive(self, rows: Messages, settings: dispatch.Settings | None = None) -> None:
        self.sealed.append(rows[fields.F_PHYSICAL][rows.entry_crcs()[0]])
        self.covers.append(rows[fields.F_PHYSICAL][rows.fillers])
        dispatch.derive_from(rows, settings or self.settings, self.derived)

    def _put(self, address: int, entry: bytes) -> None:
        """An entry of our own at an address."""
        frames = replace(scan(np.frombuffer(entry, np.uint8), 0), base=address)
        self._derive(Messages.take(frames, File("", 0, None, COMMIT_LOG.name), with_crc=False))
        self.log.write(address, memoryview(entry))

    def fill(self, start: int, stop: int, time: int) -> None:
        """Cover a hole so that a broker reads across it, and so that every queue keeps its numbers.

        Where a consume queue still knows what stood there, a placeholder takes its number; the rest is covered by fillers.
        """
        pieces: list[tuple[int, Slot | None]] = []
        at = start
        for slot in self.slots.between(start, stop):
            if slot.address < at or slot.size < placeholder_size(slot) or slot.address + slot.size > stop:
                continue
            if slot.address > at:
                pieces.append((at, None))
            pieces.append((slot.address, slot))
            at = slot.address + slot.size
        if at < stop:
            pieces.append((at, None))
        pieces = joined(pieces, stop)
        for (begin, known), end in zip(pieces, [*(begin for begin, _ in pieces[1:]), stop], strict=True):
            self._cover(begin, end, known, time)

    def _cover(self, start: int, stop: int, slot: Slot | None, time: int) -> None:
        if slot is not None:
            self.report.messages_lost += slot.count
            lost = (
                f"message {slot.number} is" if slot.count == 1 else f"{slot.count} messages from {slot.number} on are"
            )
            self.report.notes.append(f"{slot.topic} queue {slot.queue_id}: {lost} lost; a placeholder has the place")
            self._put(start, covering(start, stop - start, time, slot))
            return
        while start < stop:
            size = min(stop - start, LARGEST_FILLER)
            if 0 < stop - start - size < SMALLEST_FILLER:
                size -= SMALLEST_FILLER
            if size < SMALLEST_FILLER:
                raise OptionError(
                    f"a hole of {stop - start} bytes at address {start:,} is too small for an entry ({SMALLEST_FILLER} bytes): "
                    "repair with move, which closes it"
                )
            self._put(start, covering(start, size, time, None))
            self.fillers.append(Filler(start, size, time))
            start += size

    def message(self, queue: dispatch.Queue, number: int) -> bytes | None:
        """The bytes of a message of the source's log, by its queue and number; None if they are lost."""
        units = self.derived.queue(queue)
        for row in np.flatnonzero(units[dispatch.U_OFFSET] == number).tolist():
            address, size = int(units[dispatch.U_PHYSICAL][row]), int(units[dispatch.U_SIZE][row])
            found = self.slots.message_at(address, size)
            if found is not None:
                return bytes(found.data[:size])
        return None

    @property
    def files(self) -> int:
        return self.log.files if self.started else 0

    def close(self) -> None:
        """End the log; one of which nothing could be read is an empty file."""
        if not self.started and self.present:
            start = min(self.present) // self.file_size * self.file_size
            self.log, self.started = LogWriter(self.folder, self.file_size, start), True
            self.log.seek(start)
        if self.started:
            self.log.close()
            self._report_lost_end()
            sealed, covers = (np.concatenate([*found, np.empty(0, np.int64)]) for found in (self.sealed, self.covers))
            log = outliers.Log(self.folder, self.file_size)
            outliers.mend(self.derived, sealed, covers, log, self.report)
            batch_topics = self.settings.batch_topics | self.derived.batch_topics
            close_gaps(self.derived, self.fillers, min(self.present), batch_topics, log.put_entry, self.report)


def _indexed(files: Sequence[File], start: int, stop: int) -> set[int]:
    """The addresses in a stretch of the log that the key index has."""
    found: set[int] = set()
    for file in files:
        with contextlib.suppress(DataError), Index(file.path) as opened:
            addresses = opened.table()["physical_offset"].astype(np.int64)
            found.update(addresses[(addresses >= start) & (addresses < stop)].tolist())
    return found


def _is_begun(file: File) -> bool:
    """Whether anything was written to the front of a file: a broker makes the next one before it needs it."""
    with Source(file.path) as source:
        return any(source.read(0, BLANK.size))


def _tail(file: File, position: int, size: int) -> str:
    """What follows the last sound message of a file: `blank`, `zeros`, or the number of other bytes."""
    with Source(file.path) as source:
        head = source.read(position, BLANK.size)
        if len(head) == BLANK.size:
            room, magic = np.frombuffer(head, ">i4").tolist()
            if (room, magic) == (size - position, MAGIC_BLANK):
                return "blank"
            if (room, magic) == (DLEDGER_BLANK_MAGIC, size - position):
                return "blank"
        last, at, end = 0, position, min(size, source.size)
        while at < end:
            piece = source.read(at, min(4 << 20, end - at))
            if not piece:
                break
            used = len(piece.rstrip(b"\0"))
            last = at + used - position if used else last
            at += len(piece)
    return "zeros" if not last else f"{last:,}"


def _refuse_dledger(run: Run) -> None:
    rows = run.rows
    start = int(rows.frames.starts[rows[fields.F_FRAME][0]])
    if int.from_bytes(bytes(rows.data[start : start + 4]), "big") == DLEDGER_MAGIC and start != int(
        rows[fields.F_START][0]
    ):
        raise OptionError(
            f"a log of DLedger entries ({DLEDGER.name}) cannot be mended in place; with move its messages go into a plain commit log"
        )
