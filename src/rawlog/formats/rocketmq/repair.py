"""A mended copy of a store: what a broker would cut off or delete is kept, or moved, and every loss is told.

`salvage` (the default) keeps all that can be read: a hole is covered, so that every later message stays at its physical offset. Where a
consume queue still says what stood there, a placeholder takes the lost message's number, so that no later one of its queue moves (a
consumer is handed an empty message with the flag `rawl`); elsewhere a filler does, which no queue shows. `cut` ends the log at
the first damage, as a broker would. With `move` the messages behind a hole close up: their physical offsets and ids change, and nothing is
filled in.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog.errors import OptionError
from rawlog.format import File
from rawlog.formats.rocketmq import COMMIT_LOG, dispatch
from rawlog.formats.rocketmq.encoder import Entries, from_messages, host_bytes
from rawlog.formats.rocketmq.kernels import encode as kernels
from rawlog.formats.rocketmq.kernels import entries as fields
from rawlog.formats.rocketmq.layouts import (
    BLANK,
    DLEDGER,
    DLEDGER_BLANK_MAGIC,
    DLEDGER_MAGIC,
    FILLER_FLAG,
    FILLER_HOST,
    FILLER_TOPIC,
    FIXED_V4,
    LARGEST_BODY,
    LARGEST_TOPIC_V1,
    LMQ_PREFIX,
    MAGIC_BLANK,
    PRE_BLANK_SIZE,
    PROPERTIES,
    TOPIC_V1,
    TOPIC_V2,
    UNIT,
    SysFlag,
)
from rawlog.formats.rocketmq.paths import below_root
from rawlog.formats.rocketmq.reader import Messages, scan
from rawlog.formats.rocketmq.rebuild import DERIVED, NEVER_COPIED, sizes_of, write_from
from rawlog.formats.rocketmq.stage import Nowhere, Report, copy_file
from rawlog.formats.rocketmq.writer import LogWriter
from rawlog.storage import Source, new_directory
from rawlog.walk import walk

POLICIES = ("salvage", "cut")
SMALLEST_FILLER = FIXED_V4 + TOPIC_V1.size + len(FILLER_TOPIC) + PROPERTIES.size
LARGEST_FILLER = LARGEST_BODY


@dataclass(slots=True)
class Run:
    """Whole, sound messages one behind the other in a file; `stop` is the address behind the last."""

    rows: Messages
    start: int
    stop: int


def runs_of(file: File, *, skip: bool) -> Iterator[Run]:
    """The sound messages of a file in runs without a hole; nothing behind the first one unless `skip`."""
    for frames in walk(file, COMMIT_LOG, errors="skip" if skip else "stop"):
        rows = Messages.take(frames, file)
        good = rows.crc_ok & ~rows.stale
        if not len(rows):
            continue
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
    `rebuild_store`. Consume queues and index are made anew. OptionError for a store whose log DLedger wrote, unless its messages may
    move into a plain one, or whose files have no sizes in common.
    """
    options = options or {}
    policy, move = options.get("policy", "salvage"), options.get("move", "false") == "true"
    if policy not in POLICIES:
        raise OptionError(f"policy {policy!r}: {' or '.join(POLICIES)} expected")
    with nullcontext(Nowhere()) if options.get("dry_run", "false") == "true" else new_directory(target) as stage:
        report = Report(os.fspath(target))
        sizes, settings = sizes_of(files).told(options), dispatch.settings_of(files, options)
        mended = _Mended(stage / "commitlog", sizes.commit_log, report, Slots(files), settings, move=move)
        logs = dispatch.commit_logs(files)
        for number, file in enumerate(logs):
            clean = mended.take(file, skip=policy == "salvage", is_last=number == len(logs) - 1)
            if not clean and policy == "cut":
                for later in logs[number + 1 :]:
                    report.notes.append(f"{later.path}: left out, it follows the damage")
                    report.bytes_lost += later.size
                break
        mended.close()
        report.files += mended.files
        unwanted = (*DERIVED, *NEVER_COPIED, COMMIT_LOG.name, "rocketmq.dledgerindex", "rocketmq.dledgerstate")
        for file in files:
            if file.format not in unwanted and file.format is not None and file.problem is None:
                copy_file(file, stage / below_root(file))
                report.files += 1
        write_from(mended.derived, files, stage, sizes, settings, report)
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
    ) -> None:
        self.slots, self.settings, self.derived = slots, settings, dispatch.Derived()
        self.file_size, self.report, self.move = file_size, report, move
        self.log: LogWriter
        self.folder = folder
        self.started = False
        self.expected = 0

    def take(self, file: File, *, skip: bool, is_last: bool) -> bool:
        """Add the messages of a file; whether nothing of it was lost."""
        first = file.place.start_offset or 0
        if self.started and first > self.expected:
            missing = (first - self.expected) // self.file_size
            self.report.notes.append(f"{missing} file(s) missing before {file.path}: a broker passes over them")
        self.expected = first + self.file_size
        if not self.started:
            start = 0 if self.move and first < self.file_size else first // self.file_size * self.file_size
            self.log, self.started = LogWriter(self.folder, self.file_size, start), True
        lost_before, notes_before = self.report.bytes_lost, len(self.report.notes)
        end, seen = first, False
        for run in runs_of(file, skip=skip):
            if not self.move:
                _refuse_dledger(run)
            hole = run.start - end
            if hole:
                self.report.bytes_lost += hole
                self.report.notes.append(f"{file.path}: byte {end - first:,}: {hole:,} bytes could not be kept")
                if not self.move:
                    self.fill(end, run.start, run)
            self.add(run)
            end, seen = run.stop, True
        ended = self._end(file, first, end, seen, is_last)
        return ended and self.report.bytes_lost == lost_before and len(self.report.notes) == notes_before

    def _end(self, file: File, first: int, end: int, seen: bool, is_last: bool) -> bool:
        """What stands behind the last sound message: a blank entry, zeros, or something lost."""
        tail = _tail(file, end - first)
        if tail == "blank" or (tail == "zeros" and is_last):
            return True
        if tail == "zeros" and not seen:
            return True  # allocated, never used
        if tail == "zeros":
            self.report.notes.append(f"{file.path}: byte {end - first:,}: no blank entry at the end; one was added")
            return True
        kept = f"{file.path}: byte {end - first:,}: {tail} bytes at the end could not be read"
        self.report.notes.append(kept)
        self.report.bytes_lost += int(tail.replace(",", ""))
        return False

    def add(self, run: Run) -> None:
        entries = from_messages(run.rows, moves=self.move)
        if self.move:
            self._derive(run.rows.moved(self.log.append(entries)))
            return
        self._derive(run.rows)
        sizes = entries.sizes()
        data = entries.encode(sizes, run.rows[fields.F_PHYSICAL].copy(), run.start, run.stop)
        self.log.write(run.start, data.data)

    def _derive(self, rows: Messages) -> None:
        dispatch.derive_from(rows, self.settings, self.derived)

    def _put(self, address: int, entry: bytes) -> None:
        """An entry of our own at an address."""
        frames = replace(scan(np.frombuffer(entry, np.uint8), 0), base=address)
        self._derive(Messages.take(frames, File("", 0, None, COMMIT_LOG.name), with_crc=False))
        self.log.write(address, memoryview(entry))

    def fill(self, start: int, stop: int, run: Run) -> None:
        """Cover a hole so that a broker reads across it, and so that every queue keeps its numbers.

        Where a consume queue still knows what stood there, a placeholder takes its number; the rest is covered by fillers.
        """
        time = max(1, int(run.rows[fields.F_STORE_TIME][0]))
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
            self.report.messages_lost += 1
            self.report.notes.append(
                f"{slot.topic} queue {slot.queue_id}: message {slot.number} is lost; a placeholder has its number"
            )
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
            start += size

    @property
    def files(self) -> int:
        return self.log.files if self.started else 0

    def close(self) -> None:
        if self.started:
            if not self.log.files:
                self.log.seek(self.log.end)
            self.log.close()


def joined(pieces: list[tuple[int, Slot | None]], stop: int) -> list[tuple[int, Slot | None]]:
    """Pieces of a hole, those too small for an entry of their own given to the one before them."""
    kept: list[tuple[int, Slot | None]] = []
    for number, (begin, slot) in enumerate(pieces):
        end = pieces[number + 1][0] if number + 1 < len(pieces) else stop
        if slot is None and end - begin < SMALLEST_FILLER and kept:
            continue
        kept.append((begin, slot))
    return kept


def placeholder_size(slot: Slot) -> int:
    """The fewest bytes that a placeholder takes."""
    topic = slot.topic.encode()
    return (
        FIXED_V4 + (TOPIC_V1.size if len(topic) <= LARGEST_TOPIC_V1 else TOPIC_V2.size) + len(topic) + PROPERTIES.size
    )


def covering(address: int, size: int, store_time: int, slot: Slot | None) -> bytes:
    """An entry of exactly `size` bytes, zeros inside: with the number of a lost message, else one that no queue shows."""
    topic = FILLER_TOPIC if slot is None else slot.topic
    numbers = np.zeros((kernels.NUMBERS, 1), np.int64)
    numbers[kernels.N_SYS_FLAG] = int(SysFlag.PREPARED | SysFlag.COMMIT) if slot is None else 0
    numbers[kernels.N_BORN_TIME] = numbers[kernels.N_STORE_TIME] = store_time
    numbers[kernels.N_VERSION], numbers[kernels.N_FLAG] = 1, FILLER_FLAG
    if slot is not None:
        numbers[kernels.N_QUEUE_ID], numbers[kernels.N_QUEUE_OFFSET] = slot.queue_id, slot.number
    host, _ = host_bytes(FILLER_HOST)
    head = SMALLEST_FILLER if slot is None else placeholder_size(slot)
    entries = Entries(
        numbers,
        host[None, :].copy(),
        host[None, :].copy(),
        pa.array([bytes(size - head)], pa.binary()),
        pa.array([topic.encode()], pa.binary()),
        pa.array([b""], pa.binary()),
    )
    sizes = entries.sizes()
    assert int(sizes[0]) == size
    return entries.encode(sizes, np.array([address], np.int64), address, address + size).tobytes()


@dataclass(frozen=True, slots=True)
class Slot:
    """What a consume queue says of a place in the commit log."""

    address: int
    size: int
    topic: str
    queue_id: int
    number: int


class Slots:
    """The units of all plain consume queues of a store, by address."""

    def __init__(self, files: Sequence[File]) -> None:
        self.queues = [file for file in files if file.format == "rocketmq.consumequeue" and file.problem is None]

    def between(self, start: int, stop: int) -> list[Slot]:
        """The messages that queues know in a stretch of the log, in order. Light queues name messages that have a queue already."""
        found = []
        for file in self.queues:
            topic = str(file.place.topic)
            if topic.startswith(LMQ_PREFIX):
                continue
            with Source(file.path) as source:
                rows = UNIT.view(np.frombuffer(source.read(0, source.size), np.uint8))
            inside = (rows["physical_offset"] >= start) & (rows["physical_offset"] < stop) & (rows["size"] > 0)
            for row in np.flatnonzero(inside & (rows["size"] != PRE_BLANK_SIZE)).tolist():
                number = (file.place.start_offset or 0) // UNIT.size + row
                found.append(
                    Slot(
                        int(rows["physical_offset"][row]),
                        int(rows["size"][row]),
                        topic,
                        int(file.place.partition or 0),
                        number,
                    )
                )
        return sorted(found, key=lambda slot: slot.address)


def _tail(file: File, position: int) -> str:
    """What follows the last sound message of a file: `blank`, `zeros`, or the number of other bytes."""
    with Source(file.path) as source:
        head = source.read(position, BLANK.size)
        if len(head) == BLANK.size:
            room, magic = np.frombuffer(head, ">i4").tolist()
            if (room, magic) == (source.size - position, MAGIC_BLANK):
                return "blank"
            if (room, magic) == (DLEDGER_BLANK_MAGIC, source.size - position):
                return "blank"
        last, at = 0, position
        while at < source.size:
            piece = source.read(at, 4 << 20)
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
