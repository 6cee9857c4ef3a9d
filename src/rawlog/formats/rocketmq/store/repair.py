"""The policy of `repair`: what a broker would cut off or delete is kept, or moved, and every loss is reported.

`salvage` (the default) keeps all that can be read: a hole is covered, so that every later message stays at its physical offset. Where a
consume queue still says what was there, a placeholder takes the lost message's number, so that no later one of its queue moves (a
consumer is handed an empty message with the flag `rawl`); elsewhere a filler does, which no queue shows. `cut` ends the log at
the first damage, as a broker would. With `move` the messages after a hole close up: their physical offsets and ids change, and nothing is
filled in.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rawlog.formats.rocketmq import COMMIT_LOG, below_root
from rawlog.formats.rocketmq.kernels import entries as fields
from rawlog.formats.rocketmq.layouts import (
    BLANK,
    CHECKPOINT_SIZE,
    DLEDGER,
    DLEDGER_MAGIC,
    HEAD,
    TIMER_CHECK,
)
from rawlog.formats.rocketmq.messages import Messages, out_of_line
from rawlog.formats.rocketmq.store import dispatch
from rawlog.formats.rocketmq.store.configs import Configs
from rawlog.formats.rocketmq.store.outline import (
    CUT,
    FARTHEST,
    MessageRun,
    Slots,
    correct_numbers,
    indexed_between,
    is_begun,
    is_sound,
    locate,
    recognise,
    runs_of,
    set_times,
    tail_of,
)
from rawlog.formats.rocketmq.store.placeholders import (
    LARGEST_FILLER,
    SMALLEST_FILLER,
    Filler,
    Slot,
    close_gaps,
    covering,
    join_pieces,
    placeholder_size,
)
from rawlog.formats.rocketmq.store.rewrite import (
    DATABASES,
    DERIVED,
    FORMATS,
    NEVER_COPIED,
    QUEUE_DATABASE,
    STORE_DATABASE,
    Log,
    carry_databases,
    copy,
    drop,
    new_report,
    write_compacted,
    write_derived,
    write_sized,
)
from rawlog.formats.rocketmq.store.settings import (
    Settings,
    Sizes,
    settings_of,
    sizes_of,
)
from rawlog.formats.rocketmq.writer import from_messages
from rawlog.io.output import Folder
from rawlog.io.storage import Source
from rawlog.io.walk import walk
from rawlog.model.errors import CorruptError, OptionError
from rawlog.model.format import File
from rawlog.model.outline import Piece, Reading
from rawlog.model.report import Action, Entry, Report
from rawlog.model.store import Store
from rawlog.model.text import counted

POLICIES = ("salvage", "cut")
MOST_MISSING = 10_000
OWN_WAY = (
    *DERIVED, *NEVER_COPIED, *DATABASES, *FORMATS, COMMIT_LOG.name, "rocketmq.config", "rocketmq.timercheck", "rocketmq.dledgerindex",
    "rocketmq.dledgerstate",
)  # fmt: skip
"""Files that are not copied as they are."""


def repair(store: Store, folder: Folder, options: Mapping[str, str]) -> Report:
    """Write a store that a broker starts on, with all that could be kept.

    Options: `policy` = salvage or cut, `move` = true, and those of `rebuild`. Consume queues and index are rebuilt. OptionError for a
    store whose log DLedger wrote, unless its messages may move into a plain one, or whose files have no sizes in common.
    """
    policy, move = options.get("policy", "salvage"), options.get("move", "false") == "true"
    if policy not in POLICIES:
        raise OptionError(f"policy {policy!r}: {' or '.join(POLICIES)} expected")
    report = new_report()
    files = recognise(store)
    sizes = sizes_of(files).with_options(options)
    if "commit_log" not in sizes.known_fields and dispatch.commit_logs(files):
        report.notes.append(
            f"commitlog: neither its files nor a broker.conf show their full size (commitlog_size): {sizes.commit_log:,} is assumed; "
            "a broker with another setting does not start"
        )
    files = locate(files, sizes.commit_log, report, move=move)
    salvage = Salvage(files, folder, sizes.commit_log, report, move=move)
    salvage.take_all(skip=policy == "salvage")
    write_around(salvage, sizes, options)
    return report


def write_around(salvage: Salvage, sizes: Sizes, options: Mapping[str, str]) -> None:
    """End a log whose messages were all taken, and write every other file of its store."""
    files, folder, report = salvage.files, salvage.folder, salvage.report
    derived, settings = salvage.derived, settings_of(files, options)
    batch_topics = settings.batch_topics | derived.batch_topics
    salvage.close(batch_topics)
    is_intact = salvage.is_intact
    for file in files:
        if file.format == "rocketmq.stray":
            report.add(Action.DROPPED, "not a file of the store; a broker would not start", file.path, is_expected=True)
        if file.format not in OWN_WAY and file.format is not None and file.problem is None:
            copy(folder, file, report)
    _write_timer_check(files, folder, report)
    write_compacted(files, folder, salvage.message, report)
    configs = Configs(files, folder, report, salvage.other_settings, cuts_offsets=salvage.is_rescue)
    configs.write(derived, batch_topics)
    has_addresses = () if is_intact else (QUEUE_DATABASE, STORE_DATABASE)
    carry_databases(files, folder, report, [format for format in DATABASES if format not in has_addresses])
    write_derived(derived, files, folder, sizes, settings, report, only_known=True, is_intact=is_intact)


def check_log(
    store: Store, settings: Settings, options: Mapping[str, str]
) -> tuple[dispatch.DerivedEntries, dict[str, int]]:
    """What the messages of a store give, and where its log ends in files with other bytes after it, by path. CorruptError if `repair`
    would change the log, or report a loss of it.

    What a crash leaves after the last message is no damage: no queue and no index has it. An option says how large the files of the log
    are only if they do not show it: they stay as they are.
    """
    report = new_report()
    files = recognise(store)
    sizes = sizes_of(files)
    if "commit_log" not in sizes.known_fields:
        sizes = sizes.with_options(options)
    files = locate(files, sizes.commit_log, report, move=False)
    salvage = Salvage(files, Folder("nowhere", dry_run=True), sizes.commit_log, report, move=False)
    salvage.may_be_dledger = True
    salvage.take_all(skip=True)
    is_added = any(entry.action is Action.REBUILT for entry in report.entries)  # a blank entry
    salvage.close(settings.batch_topics | salvage.derived.batch_topics)
    for entry in report.entries:
        if entry.action is Action.MOVED or is_added or (entry.action is not Action.REBUILT and entry.is_loss):
            raise CorruptError(
                f"the commit log is damaged: {entry.reason or entry.action}; nothing was written, use `rawlog repair`",
                path=entry.path,
                position=entry.start,
                format=COMMIT_LOG.name,
            )
    tails = [entry for entry in report.entries if entry.action is Action.DROPPED and entry.path is not None]
    return salvage.derived, {str(entry.path): entry.start or 0 for entry in tails}


def reading(store: Store) -> Reading:
    """The messages that `repair` would keep, and its report; empty for a sound store.

    A log whose holes `repair` cannot cover in place is read as it is stored, with the reason.
    """
    if is_sound(store):
        return Reading()
    report = new_report()
    files = recognise(store)
    sizes, settings = sizes_of(files), settings_of(files)
    salvage: Salvage | None = None
    try:
        files = locate(files, sizes.commit_log, report, move=False)
        salvage = Salvage(files, Folder("nowhere", dry_run=True), sizes.commit_log, report, move=False)
        salvage.may_be_dledger = True
        salvage.take_all(skip=True)
        salvage.close(settings.batch_topics | salvage.derived.batch_topics)
    except OptionError as error:
        report.add(Action.LOST, str(error), store.path)
        return Reading(entries=_of_log(report))
    return Reading(tuple(salvage.pieces), salvage.patches_by_path(), _of_log(report))


def _of_log(report: Report) -> tuple[Entry, ...]:
    """The report entries about rows, without fillers. Misplaced messages are not read as stored."""
    covers = (Action.REBUILT, Action.ADDED)
    return tuple(
        replace(entry, is_expected=entry.is_expected and entry.action is not Action.MOVED)
        for entry in report.entries
        if entry.action not in covers
    )


# The commit log --------------------------------------------------------------------------------------------------------


class Salvage:
    """A new commit log from a damaged one: runs at their addresses, holes covered; and its derived entries."""

    def __init__(self, files: Sequence[File], folder: Folder, file_size: int, report: Report, *, move: bool) -> None:
        self.files, self.file_size, self.report, self.move = files, file_size, report, move
        self.logs = dispatch.commit_logs(files)
        self.slots, self.derived = Slots(files), dispatch.DerivedEntries()
        self.folder = folder
        self.log: Log | None = None
        self.here: File
        self.sealed: list[NDArray[np.int64]] = []
        self.fillers: list[Filler] = []
        #: What was taken of the source, each with its first address; and bytes of it that were wrong, by address.
        self.pieces: list[Piece] = []
        self.addresses: list[int] = []
        self.patches: list[tuple[int, bytes]] = []
        #: Of the messages of the file that is being read: their addresses, store times, and whether these are certain.
        self.times: list[NDArray[np.int64]] = []
        self.late: dict[int, int] = {}
        self.present: dict[int, File] = {}
        #: The last file that was used, if it ends with a blank entry.
        self.blank_end: File | None = None
        #: The last file, and its end, if it was cut right after a message.
        self.cut: tuple[File, int] | None = None
        self.unread: list[File] = []
        #: Entries of DLedger can only be moved into a plain log, or be looked at.
        self.may_be_dledger = move
        #: Consumer offsets of other copies of the store, and whether those beyond the end of a queue are corrected.
        self.other_settings: list[File] = []
        self.is_rescue = False

    # What the log is taken from

    def runs(self, file: File, *, skip: bool) -> Iterator[MessageRun]:
        """The sound messages at the place of a file."""
        yield from runs_of(file, skip=skip, size=self.file_size)

    def tail(self, file: File, position: int, shift: int) -> str:
        """What follows the last sound message of a file (`tail_of`)."""
        return tail_of(file, position, self.file_size, shift)

    def growth(self, file: File, shift: int) -> int:
        """By how many bytes a file is longer because of what was put into it; its last messages are `shift` bytes before their place."""
        return max(0, -shift)

    def is_begun(self, file: File) -> bool:
        """Whether anything was written to the front of a file: a broker makes the next one before it needs it."""
        return is_begun(file)

    def describe_hole(self, run: MessageRun) -> str:
        """Why bytes before a run are not in the result."""
        return "could not be kept"

    def take_all(self, *, skip: bool) -> None:
        """Add the messages of every file; unless `skip`, nothing after the first damage."""
        last = max((number for number, file in enumerate(self.logs) if self.is_begun(file)), default=0)
        for number, file in enumerate(self.logs):
            if not self.take(file, skip=skip, is_last=number >= last) and not skip:
                for later in self.logs[number + 1 :]:
                    drop(self.report, "left out, it follows the damage", later.path, 0, later.size)
                return

    def take(self, file: File, *, skip: bool, is_last: bool) -> bool:
        """Add the messages of a file; whether nothing of it was lost or changed."""
        first = file.place.start_offset or 0
        self.present[first], self.here = file, file
        before = len(self.report.entries)
        end, position, shift = first, 0, 0
        for run in self.runs(file, skip=skip):
            if not self.may_be_dledger:
                _refuse_dledger(run)
            self.reach(run)
            begin = run.start - run.shift - first
            if run.start > end:
                drop(self.report, self.describe_hole(run), file.path, position, max(begin, position))
                self.report.count("bytes_lost", run.start - end - max(begin - position, 0))
                if begin <= position:
                    self.report.add(
                        Action.LOST, f"{run.start - end:,} bytes are missing here", file.path, start=position
                    )
                if not self.move:
                    self.fill(end, run.start, self._time(run))
            elif begin > position:
                reason = "no message; those around it follow one another: left out"
                self.report.add(Action.DROPPED, reason, file.path, start=position, stop=begin, is_expected=True)
            if run.shift != shift:
                reason = f"messages from here on are {abs(run.shift):,} bytes from their place; put back"
                self.report.add(Action.MOVED, reason, file.path, start=begin, stop=begin, is_expected=True)
            self.add(run)
            end, position, shift = run.stop, run.stop - run.shift - first, run.shift
        self._judge_times()
        return self._end(file, position, shift, end > first, is_last) and len(self.report.entries) == before

    def _end(self, file: File, position: int, shift: int, has_messages: bool, is_last: bool) -> bool:
        """What follows the last sound message, at a position of a file: a blank entry, zeros, or something lost."""
        tail = self.tail(file, position, shift)
        if file.size > self.file_size + self.growth(file, shift):
            drop(self.report, "past the size of a file: cut off", file.path, self.file_size, file.size)
        if has_messages or tail != "zeros":  # one that was allocated and never used says nothing
            self.blank_end = file if tail == "blank" else None
        if tail == CUT:
            tail = "zeros"
            self.cut = (file, position) if is_last else None
        if tail == "blank" or (tail == "zeros" and is_last):
            return True
        if tail == "zeros" and not has_messages:
            self.unread.append(file)
            return True  # allocated, never used, unless messages follow
        if tail == "zeros":
            self.report.add(
                Action.REBUILT, "no blank entry at the end; one was added", file.path, start=position, stop=position
            )
            return True
        stop = position + int(tail)
        is_crash_tail = is_last and (position > 0 or not _is_garbage(file))
        if is_crash_tail and not self._is_confirmed(position + shift + (file.place.start_offset or 0)):
            # What a crash leaves: nothing shows that it ever was a message.
            reason = "after the last message; nothing shows that it was one: cut off"
            self.report.add(Action.DROPPED, reason, file.path, start=position, stop=stop, is_expected=True)
        else:
            drop(self.report, "at the end could not be read", file.path, position, stop)
        return False

    def _is_confirmed(self, address: int) -> bool:
        """Whether queues or the key index know of a message at an address or after it."""
        return bool(self.slots.between(address, FARTHEST) or indexed_between(self.files, address, FARTHEST))

    def reach(self, run: MessageRun) -> None:
        """Get to the file of a run, however much is lost between the last message and it: a broker must find a way through."""
        size = self.file_size
        for other in self.unread:
            self.report.add(Action.LOST, "nothing is in it, although messages follow", other.path)
            self.report.count("bytes_lost", size)
        self.unread.clear()
        if self.log is None:
            start = 0 if self.move and run.start < size else run.start // size * size
            self.log = Log(self.folder.folder("commitlog"), size, start)
        at = self.log.end
        if self.move:
            return
        if run.start // size - at // size > MOST_MISSING:
            raise OptionError(
                f"files are missing before {self.here.path}, more than {MOST_MISSING:,}: repair with move"
            )
        while at // size < run.start // size:
            stop = (at // size + 1) * size
            if at % size == 0 and at not in self.present:
                self.report.add(Action.LOST, f"the commit-log file {at:020} before it is missing", self.here.path)
                self.report.count("bytes_lost", size)
            slots = [slot for slot in self.slots.between(at, stop) if slot.size >= placeholder_size(slot)]
            ends = [slot.address + slot.size for slot in slots if slot.address + slot.size <= stop - BLANK.size]
            covered = max([at if at % size else at + SMALLEST_FILLER, *ends])
            if covered > at:
                self.fill(at, covered, self._time(run))
            self.fillers.append(Filler(covered, stop - BLANK.size - covered, self._time(run), is_end=True))
            at = stop

    def add(self, run: MessageRun) -> None:
        """Write a run of messages: where it was, or at the end."""
        assert self.log is not None
        self._note_piece(run)
        rows = self._identify(run.rows)
        if self.move:
            addresses = self.log.append(from_messages(rows, moves=True))
        elif rows is run.rows:
            addresses, first = rows[fields.F_PHYSICAL], int(rows[fields.F_START][0])
            self.log.write(run.start, rows.data[first : first + run.stop - run.start].data)
        else:
            addresses, entries = rows[fields.F_PHYSICAL], from_messages(rows, moves=False)
            self.log.write(run.start, entries.encode(entries.sizes(), addresses.copy(), run.start, run.stop).data)
        for address in rows[fields.F_PHYSICAL][rows.are_properties_cut].tolist():
            self._change(address, "its properties end in zero bytes: a part of them is lost")
        if run.is_corrected:
            for address in rows[fields.F_PHYSICAL].tolist():
                self._patch(address, "physical_offset", address)
                self._change(address, "its physical offset was another; the messages around it leave only this place")
        run = replace(run, rows=rows)
        dispatch.derive_from(run.rows, self.derived, addresses=addresses)
        sealed = np.zeros(len(run.rows), np.bool_)
        sealed[run.rows.entry_crcs()[0]] = True
        self.sealed.append(addresses[sealed])
        fillers = run.rows.fillers
        self.times.append(np.stack((addresses, run.rows[fields.F_STORE_TIME], sealed.astype(np.int64)))[:, ~fillers])

    def _identify(self, rows: Messages) -> Messages:
        """Messages with the topic, queue and number of their consume queue, where they were changed."""
        sealed = set(rows.entry_crcs()[0].tolist())
        changes = {
            row: slot for row, slot in self.slots.misplaced(rows) if row not in sealed
        }  # once, if several copies say it
        if not changes:
            return rows
        rows = replace(rows, fields=rows.fields.copy(), data=rows.data.copy())
        for row, slot in changes.items():
            topic, start = slot.topic.encode(), int(rows[fields.F_TOPIC][row])
            if len(topic) != int(rows[fields.F_TOPIC_SIZE][row]):
                continue
            rows.data[start : start + len(topic)] = np.frombuffer(topic, np.uint8)
            rows[fields.F_QUEUE_ID][row], rows[fields.F_QUEUE_OFFSET][row] = slot.queue_id, slot.number
            self.patches.append((slot.address + start - int(rows[fields.F_START][row]), topic))
            self._patch(slot.address, "queue_id", slot.queue_id)
            self._patch(slot.address, "queue_offset", slot.number)
            what = f"consume queues have it as {slot.topic} queue {slot.queue_id}, {slot.number}"
            self._change(slot.address, f"its topic, queue or number was changed; {what}")
        return rows

    def _note_piece(self, run: MessageRun) -> None:
        """Remember the place of a run in the source; a run directly after the last one extends it."""
        start, stop = (address - run.shift - (self.here.place.start_offset or 0) for address in (run.start, run.stop))
        last = self.pieces[-1] if self.pieces else None
        follows = last is not None and (last.path, last.stop) == (self.here.path, start)
        if last is not None and follows and self.addresses[-1] + start - last.start == run.start:
            self.pieces[-1] = replace(last, stop=stop)
            return
        self.pieces.append(Piece(self.here.path, start, stop))
        self.addresses.append(run.start)

    def _patch(self, address: int, field: str, value: int) -> None:
        """Another number in the head of the message at an address."""
        size = HEAD.after(field) - HEAD.at(field)
        self.patches.append((address + HEAD.at(field), value.to_bytes(size, "big", signed=True)))

    def patches_by_path(self) -> dict[str, tuple[tuple[int, bytes], ...]]:
        """The corrected bytes, by file and position in the source."""
        by_path: dict[str, list[tuple[int, bytes]]] = {}
        for address, data in self.patches:
            number = bisect.bisect_right(self.addresses, address) - 1
            piece = self.pieces[number]
            by_path.setdefault(piece.path, []).append((piece.start + address - self.addresses[number], data))
        return {path: tuple(sorted(patches)) for path, patches in by_path.items()}

    def _change(self, address: int, reason: str) -> None:
        """Report a message that is not as it was, by its address."""
        path, position = self._place(address)
        what = f"the message at address {address:,}: {reason}"
        self.report.add(Action.CHANGED, what, path, start=position, stop=position)

    def _place(self, address: int) -> tuple[str | None, int | None]:
        """The source file of an address and the position in it; without a position: the file after a missing one."""
        start = address // self.file_size * self.file_size
        if self.move:
            return None, None
        if start in self.present:
            return self.present[start].path, address - start
        later = [first for first in self.present if first > address]
        return self.present[min(later)].path if later else self.here.path, None

    def _judge_times(self) -> None:
        """Note store times that contradict their neighbours: each such message gets the time before it."""
        if not self.times:
            return
        addresses, times, sealed = np.concatenate(self.times, axis=1)
        self.times.clear()
        for row in np.flatnonzero(out_of_line(times) & (sealed == 0)).tolist():
            self.late[int(addresses[row])] = int(times[row - 1] if row else times[1])

    def _time(self, run: MessageRun) -> int:
        """A time for the filler before a run: the earlier of its neighbours, as the later one may be damaged."""
        following = int(run.rows[fields.F_STORE_TIME][0])
        return max(1, min(following, self.derived.last_time) if self.derived.messages else following)

    # Holes

    def _put(self, address: int, entry: bytes) -> None:
        """An entry of our own at an address."""
        assert self.log is not None
        dispatch.derive_bytes(np.frombuffer(entry, np.uint8), address, self.derived)
        self.log.write(address, entry)

    def fill(self, start: int, stop: int, time: int) -> None:
        """Cover a hole: a broker reads across it, and every queue keeps its numbers.

        Where a consume queue still knows what was there, a placeholder takes its number; the rest is covered by fillers.
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
        pieces = join_pieces(pieces, stop)
        for (begin, piece_slot), end in zip(pieces, [*(begin for begin, _ in pieces[1:]), stop], strict=True):
            self._cover(begin, end, piece_slot, time)
        self._report_covered([(begin, slot) for begin, slot in pieces if slot is not None])

    def _cover(self, start: int, stop: int, slot: Slot | None, time: int) -> None:
        if slot is not None:
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

    def _report_covered(self, pieces: Sequence[tuple[int, Slot]]) -> None:
        """Report the messages that placeholders stand for, one entry per run of numbers of a queue."""
        runs: dict[dispatch.Queue, list[list[int]]] = {}
        for address, slot in pieces:
            spans = runs.setdefault((slot.topic, slot.queue_id), [])
            if spans and spans[-1][1] == slot.number:
                spans[-1][1] += slot.count
                spans[-1][3] = address + slot.size
            else:
                spans.append([slot.number, slot.number + slot.count, address, address + slot.size])
        for (topic, queue_id), spans in runs.items():
            for first, stop, address, end in spans:
                self._lose(topic, queue_id, first, stop - first, address, "placeholders have the places", end - address)

    def _lose(self, topic: str, queue_id: int, first: int, count: int, address: int, then: str, size: int = 0) -> None:
        """Report lost messages of a queue at or after an address; `size` is 0 if unknown."""
        path, position = self._place(address)
        self.report.count("messages_lost", count)
        self.report.add(
            Action.LOST,
            f"{topic} queue {queue_id}: lost; {then}",
            path,
            start=position,
            stop=None if position is None else position + size,
            first_offset=first,
            stop_offset=first + count,
        )

    # The end

    @property
    def is_intact(self) -> bool:
        """Whether every message of the source is in the result as it was, at its address."""
        changed = (Action.DROPPED, Action.LOST, Action.CHANGED)
        lost = [
            entry
            for entry in self.report.entries
            if entry.action in changed and not (entry.action is Action.DROPPED and entry.is_expected)
        ]
        return not self.move and not lost

    def close(self, batch_topics: frozenset[str]) -> None:
        """End the log and correct it; a log without readable messages is an empty file."""
        if self.log is None and self.present:
            start = min(self.present) // self.file_size * self.file_size
            self.log = Log(self.folder.folder("commitlog"), self.file_size, start)
            self.log.seek(start)
        if self.log is None:
            self._report_evidence(0, FARTHEST, "the file of the commit log that has it is not here")
            return
        self.log.close()
        self.report.count("files", self.log.files)
        self._report_lost_end(self.log.end)
        for address, number in correct_numbers(self.derived, np.concatenate([*self.sealed, _NO_ADDRESSES])):
            self.log.change_number(address, number)
            self._patch(address, "queue_offset", number)
            self._change(address, f"its queue offset does not fit those around it; it is {number}")
        for address, time in self.late.items():
            self.log.change_time(address, time)
            self._change(address, f"its store time does not fit those around it and is lost; it is now {time}")
            self.report.count("bytes_lost", 8)
        set_times(self.derived, self.late)
        begin = min(self.present)
        for gap, filler in close_gaps(self.derived, self.fillers, begin, batch_topics, self.log.change):
            self._lose(*gap.queue, gap.first, gap.count, filler.address, "placeholders have their numbers")

    def _report_lost_end(self, end: int) -> None:
        """Report messages after the end of the log, of which queues, the key index or a blank entry at its very end still know."""
        next_file = -(-end // self.file_size) * self.file_size
        if self.blank_end is not None and next_file not in self.present:
            self.report.count("bytes_lost", self.file_size)
            reason = f"the commit-log file {next_file:020} after it is missing: this one ends with a blank entry"
            self.report.add(Action.LOST, reason, self.blank_end.path)
        is_known = not self.move and self._report_evidence(end, end + 2 * self.file_size, "after the end of the log")
        if self.cut is not None and not is_known and not self._is_dispatched():
            file, position = self.cut
            reason = (
                "the rest of the file is missing, and neither queues nor the key index tell whether it had messages"
            )
            self.report.add(Action.LOST, reason, file.path, start=position, stop=self.file_size)

    def _is_dispatched(self) -> bool:
        """Whether queues or the key index know the last message: then they would know of one after it, too."""
        addresses = [
            int(piece[dispatch.U_PHYSICAL].max()) for pieces in self.derived.units.values() for piece in pieces
        ]
        last = max(addresses, default=-1)
        return bool(self.slots.between(last, last + 1) or indexed_between(self.files, last, last + 1))

    def _report_evidence(self, start: int, stop: int, where: str) -> bool:
        """Report messages in a missing stretch of the log that queues or the key index have; whether there are any."""
        lost: dict[str, list[Slot]] = {}
        for slot in self.slots.between(start, stop):
            lost.setdefault(slot.path, []).append(slot)
        lost = {path: slots for path, slots in lost.items() if not self._contradicts(slots)}
        for path, slots in lost.items():
            count = sum(slot.count for slot in slots)
            self.report.count("messages_lost", count)
            log, position = self._place(slots[0].address) if self.present else (None, None)
            size = slots[-1].address + slots[-1].size - slots[0].address
            self.report.add(
                Action.LOST,
                f"{counted(count, 'message')} of {slots[0].topic} queue {slots[0].queue_id} {where}: the queue lists them",
                path if position is None else log,
                start=position,
                stop=None if position is None else position + size,
                first_offset=min(slot.number for slot in slots),
                stop_offset=max(slot.number + slot.count for slot in slots),
            )
        if not lost:
            for path, count in indexed_between(self.files, start, stop).items():
                self.report.count("messages_lost", count)
                what = f"{counted(count, 'message')} {where}: the key index lists them"
                self.report.add(Action.LOST, what, path)
                lost[path] = []
        return bool(lost)

    def _contradicts(self, slots: Sequence[Slot]) -> bool:
        """Whether the log has messages with the numbers of these units of a queue file: then it is damaged, or of another store."""
        numbers = self.derived.queue((slots[0].topic, slots[0].queue_id))[dispatch.U_OFFSET]
        return bool(np.isin([slot.number for slot in slots], numbers).any())

    def message(self, queue: dispatch.Queue, number: int) -> bytes | None:
        """The bytes of a message of the source's log, by its queue and number; None if they are lost."""
        units = self.derived.queue(queue)
        for row in np.flatnonzero(units[dispatch.U_OFFSET] == number).tolist():
            address, size = int(units[dispatch.U_PHYSICAL][row]), int(units[dispatch.U_SIZE][row])
            message = self.slots.message_at(address, size)
            if message is not None:
                return bytes(message.data[:size])
        return None


_NO_ADDRESSES = np.empty(0, np.int64)


def _is_garbage(file: File) -> bool:
    """Whether a file begins with bytes that are not even the beginning of a message."""
    return any(frames.status.is_damage for frames in walk(file, COMMIT_LOG, errors="stop"))


def _refuse_dledger(run: MessageRun) -> None:
    rows = run.rows
    start = int(rows.frames.starts[rows[fields.F_FRAME][0]])
    if int.from_bytes(bytes(rows.data[start : start + 4]), "big") == DLEDGER_MAGIC and start != int(
        rows[fields.F_START][0]
    ):
        raise OptionError(
            f"a log of DLedger entries ({DLEDGER.name}) cannot be repaired in place; with move its messages go into a plain commit log"
        )


def _write_timer_check(files: Sequence[File], folder: Folder, report: Report) -> None:
    """Write `config/timercheck` without foreign bytes: its fields are at the front, followed by zeros."""
    for file in files:
        if file.format != "rocketmq.timercheck" or file.problem is not None:
            continue
        with Source(file.path) as source:
            head, rest = source.read(0, TIMER_CHECK.size), source.read(TIMER_CHECK.size, CHECKPOINT_SIZE)
        if len(head) < TIMER_CHECK.size:
            drop(
                report,
                "cut within its numbers and left out; the timer starts from its own log",
                file.path,
                0,
                file.size,
            )
            continue
        if any(rest) or file.size > CHECKPOINT_SIZE:
            stop = TIMER_CHECK.size + (len(rest.rstrip(b"\0")) or 1)
            drop(report, "after the numbers of the timer; set to zero", file.path, TIMER_CHECK.size, stop)
        write_sized(folder, below_root(file), [head], CHECKPOINT_SIZE)
        report.count("files")
