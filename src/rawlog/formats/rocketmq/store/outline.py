"""The outline of a commit log: which messages are sound, where each message and file belongs, where the log ends, what is missing.

Every verb that says or does something about damage goes by it. The evidence is what still knows something: the messages before and after,
the names of files, consume queues and key index. No checksum covers the head of a message. A queue file may have been renamed, or swapped
with another, so each is first compared with some of the messages that it points to.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from rawlog.formats.rocketmq import COMMIT_LOG, parts
from rawlog.formats.rocketmq.commitlog import scan
from rawlog.formats.rocketmq.index import Index
from rawlog.formats.rocketmq.kernels import entries as fields
from rawlog.formats.rocketmq.layouts import (
    BLANK,
    DLEDGER_BLANK_MAGIC,
    HEAD,
    LMQ_PREFIX,
    MAGIC_BLANK,
    PRE_BLANK_SIZE,
    SMALLEST_V1,
    UNIT,
    SysFlag,
)
from rawlog.formats.rocketmq.messages import Messages
from rawlog.formats.rocketmq.store import dispatch
from rawlog.formats.rocketmq.store.comparison import comparison_of
from rawlog.formats.rocketmq.store.dispatch import (
    U_BATCH,
    U_OFFSET,
    U_PHYSICAL,
    U_TIME,
    DerivedEntries,
)
from rawlog.formats.rocketmq.store.placeholders import (
    LAYOUTS,
    Slot,
)
from rawlog.formats.rocketmq.store.rewrite import drop
from rawlog.formats.rocketmq.store.store import views
from rawlog.io.storage import Source
from rawlog.io.walk import walk
from rawlog.model.errors import DataError, OptionError
from rawlog.model.finding import Severity
from rawlog.model.format import File
from rawlog.model.report import Action, Report
from rawlog.model.store import Store
from rawlog.model.text import java_text

SAMPLE = 16
"""Messages with which a queue file is compared."""


@dataclass(slots=True)
class QueueFile:
    """The units of a queue file that point to messages, by address, and the real queue of these messages."""

    topic: str
    queue_id: int
    addresses: NDArray[np.int64]
    sizes: NDArray[np.int64]
    numbers: NDArray[np.int64]
    counts: NDArray[np.int64]
    path: str = ""

    def slot(self, row: int) -> Slot:
        return Slot(
            int(self.addresses[row]),
            int(self.sizes[row]),
            self.topic,
            self.queue_id,
            int(self.numbers[row]),
            int(self.counts[row]),
            self.path,
        )


class Slots:
    """The units of all plain and batch consume queues of a store, by address. Read when they are first asked for.

    Light queues are passed over: they name messages that have a queue already.
    """

    def __init__(self, files: Sequence[File]) -> None:
        self.files = [
            file
            for file in files
            if file.format in LAYOUTS and file.problem is None and not str(file.place.topic).startswith(LMQ_PREFIX)
        ]
        self.logs = dispatch.commit_logs(files)
        self._starts = [file.place.start_offset or 0 for file in self.logs]
        self._queues: list[QueueFile] | None = None
        #: Of every unit its address, its queue file and its row there, by address.
        self._addresses = self._numbers = self._rows = np.empty(0, np.int64)

    @property
    def queues(self) -> list[QueueFile]:
        if self._queues is None:
            queue_files = [_units(file) for file in self.files]
            self._queues = [queue for queue_file in queue_files if (queue := self._identify(queue_file)) is not None]
            if self._queues:
                addresses = np.concatenate([queue.addresses for queue in self._queues])
                sizes = [queue.addresses.size for queue in self._queues]
                order = np.argsort(addresses, kind="stable")
                self._addresses = addresses[order]
                self._numbers = np.repeat(np.arange(len(sizes)), sizes)[order]
                self._rows = np.concatenate([np.arange(size) for size in sizes])[order]
        return self._queues

    def _inside(self, start: int, stop: int) -> Iterator[tuple[QueueFile, NDArray[np.int64]]]:
        """The queue files with units in a stretch of the log, and the rows of these."""
        queues = self.queues
        low, high = np.searchsorted(self._addresses, (start, stop)).tolist()
        numbers, rows = self._numbers[low:high], self._rows[low:high]
        for number in np.unique(numbers).tolist():
            yield queues[number], rows[numbers == number]

    def between(self, start: int, stop: int) -> list[Slot]:
        """The messages that queues have in a stretch of the log, in order, one per address."""
        slots: dict[int, Slot] = {}
        for queue, rows in self._inside(start, stop):
            for row in rows.tolist():
                slots.setdefault(int(queue.addresses[row]), queue.slot(row))
        return [slots[address] for address in sorted(slots)]

    def message_at(self, address: int, size: int) -> Messages | None:
        """The sound message of that size at an address of the log, or None."""
        stop = bisect.bisect_right(self._starts, address)
        start = bisect.bisect_left(self._starts, self._starts[stop - 1]) if stop else 0
        for file in self.logs[start:stop]:  # copies of one file
            position = address - (file.place.start_offset or 0)
            if position < file.size:
                with Source(file.path) as source:
                    data = np.frombuffer(source.read(position, size), np.uint8)
                message = _message(data, address)
                if message is not None:
                    return message
        return None

    def _identify(self, queue: QueueFile) -> QueueFile | None:
        """A queue file under the name of the queue that most of its messages have; None without a majority."""
        count = queue.addresses.size
        votes: Counter[tuple[str, int, int]] = Counter()
        for row in sorted({int(row) for row in np.linspace(0, count - 1, min(count, SAMPLE))}) if count else ():
            message = self.message_at(int(queue.addresses[row]), int(queue.sizes[row]))
            if message is not None:
                topic, queue_id, number = place_of(message)
                votes[topic, queue_id, number - int(queue.numbers[row])] += 1
        if not votes:
            return queue
        queues: Counter[tuple[str, int]] = Counter()
        for (topic, queue_id, _), support in votes.items():
            queues[topic, queue_id] += support
        (name, support), total = queues.most_common(1)[0], votes.total()
        if 2 * support <= total:
            return queue if (queue.topic, queue.queue_id) in queues else None
        shift, number = Counter({vote[2]: times for vote, times in votes.items() if vote[:2] == name}).most_common(1)[0]
        numbers = queue.numbers + (shift if 2 * number > total else 0)
        return replace(queue, topic=name[0], queue_id=name[1], numbers=numbers)

    def misplaced(self, rows: Messages) -> Iterator[tuple[int, Slot]]:
        """Messages that contradict the unit that points to them in topic, queue or number, while the units around it fit: the message was
        changed where no checksum covers it.
        """
        if not len(rows):
            return
        addresses, sizes = rows[fields.F_PHYSICAL], rows[fields.F_SIZE]
        for queue, unit_rows in self._inside(int(addresses[0]), int(addresses[-1]) + 1):
            at = np.minimum(np.searchsorted(addresses, queue.addresses[unit_rows]), addresses.size - 1)
            same = (addresses[at] == queue.addresses[unit_rows]) & (sizes[at] == queue.sizes[unit_rows])
            same &= (rows[fields.F_SYS_FLAG][at] & SysFlag.INNER_BATCH) == 0
            differs = (rows[fields.F_QUEUE_ID][at] != queue.queue_id) | (
                rows[fields.F_QUEUE_OFFSET][at] != queue.numbers[unit_rows]
            )
            topic = queue.topic.encode()
            starts, lengths = rows[fields.F_TOPIC][at], rows[fields.F_TOPIC_SIZE][at]
            differs |= lengths != len(topic)
            fits = np.flatnonzero(same & (lengths == len(topic)))
            if fits.size and topic:
                text = rows.data[starts[fits][:, None] + np.arange(len(topic))]
                differs[fits] |= (text != np.frombuffer(topic, np.uint8)).any(axis=1)
            for index in np.flatnonzero(same & differs).tolist():
                if self._agrees_around(queue, int(unit_rows[index])):
                    yield int(at[index]), queue.slot(int(unit_rows[index]))

    def _agrees_around(self, queue: QueueFile, row: int) -> bool:
        """Whether the messages of the neighbouring units agree with these units."""
        agreeing = 0
        for neighbour in (row - 1, row + 1):
            if 0 <= neighbour < queue.addresses.size:
                message = self.message_at(int(queue.addresses[neighbour]), int(queue.sizes[neighbour]))
                if message is not None:
                    if place_of(message) != (queue.topic, queue.queue_id, int(queue.numbers[neighbour])):
                        return False
                    agreeing += 1
        return agreeing > 0


def place_of(message: Messages) -> tuple[str, int, int]:
    """The topic, queue and number that a message says it has."""
    start, size = int(message[fields.F_TOPIC][0]), int(message[fields.F_TOPIC_SIZE][0])
    topic = java_text(bytes(message.data[start : start + size]))
    return topic, int(message[fields.F_QUEUE_ID][0]), int(message[fields.F_QUEUE_OFFSET][0])


def _message(data: NDArray[np.uint8], address: int) -> Messages | None:
    frames = scan(data, 0)
    if len(frames) != 1 or int(frames.stops[0]) != data.size:
        return None
    rows = Messages.take(frames, File("", 0, None, COMMIT_LOG.name))
    return rows if len(rows) == 1 and rows.crc_ok[0] and int(rows[fields.F_PHYSICAL][0]) == address else None


def _units(file: File) -> QueueFile:
    layout, is_batch = LAYOUTS[str(file.format)], file.format != "rocketmq.consumequeue"
    with Source(file.path) as source:
        rows = layout.view(np.frombuffer(source.read(0, source.size), np.uint8))
    valid = (rows["physical_offset"] >= 0) & (rows["size"] > 0) & (rows["size"] != PRE_BLANK_SIZE)
    if is_batch:
        valid &= (rows["base_offset"] >= 0) & (rows["batch_size"] > 0)
    which = np.flatnonzero(valid)
    rows = rows[which]
    numbers = rows["base_offset"] if is_batch else (file.place.start_offset or 0) // UNIT.size + which
    counts = rows["batch_size"] if is_batch else np.ones(which.size, np.int64)
    addresses = rows["physical_offset"].astype(np.int64)
    order = np.argsort(addresses, kind="stable")
    return QueueFile(
        str(file.place.topic),
        int(file.place.partition or 0),
        addresses[order],
        rows["size"].astype(np.int64)[order],
        numbers.astype(np.int64)[order],
        counts.astype(np.int64)[order],
        file.path,
    )


def correct_numbers(derived: DerivedEntries, sealed: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Messages whose queue offset contradicts their neighbours: address and right offset, which is also set in `derived`.

    A broker numbers the messages of a queue without a gap: a single one out of line, between two that fit each other, was changed. Those
    at the addresses `sealed` have a checksum of the whole entry, so that all of them is true.
    """
    for queue, pieces in derived.units.items():
        if queue[0].startswith(LMQ_PREFIX):
            continue
        units = derived.queue(queue)
        numbers = units[U_OFFSET]
        if numbers.size < 3 or (units[U_BATCH] != 1).any():
            continue
        wrong = np.zeros(numbers.size, np.bool_)
        wrong[1:-1] = (numbers[1:-1] != numbers[:-2] + 1) & (numbers[2:] == numbers[:-2] + 2)
        wrong &= ~np.isin(units[U_PHYSICAL], sealed)
        rows = np.flatnonzero(wrong)
        if rows.size:
            units[U_OFFSET, rows] = numbers[rows - 1] + 1
            pieces[:] = [units]
            yield from zip(units[U_PHYSICAL, rows].tolist(), units[U_OFFSET, rows].tolist(), strict=True)


def set_times(derived: DerivedEntries, changed: dict[int, int]) -> None:
    """Other store times of messages, by address, wherever something was derived from the old ones."""
    if not changed:
        return
    addresses = np.array(list(changed), np.int64)
    rows = [(piece[U_PHYSICAL], piece[U_TIME]) for pieces in derived.units.values() for piece in pieces]
    rows += [(piece[dispatch.D_PHYSICAL], piece[dispatch.D_TIME]) for piece in derived.delayed]
    for where, times in (*rows, *zip(derived.addresses, derived.times, strict=True)):
        for row in np.flatnonzero(np.isin(where, addresses)).tolist():
            times[row] = changed[int(where[row])]


# Messages ---------------------------------------------------------------------------------------------------------------

MOST_WAITING = 16
"""Neighbouring messages with wrong addresses that wait for the next sound ones to decide about them."""


class Placement:
    """The sound messages of one commit-log file, where they belong.

    Every message names its address. One that is elsewhere is there because bytes before it were added or removed: then those after it are
    as far away, and all are put back where they say. Or its address was changed, which no checksum covers: then it lies exactly between
    messages that leave no other place, and gets the right one.
    """

    def __init__(self, file: File, size: int) -> None:
        self.file, self.first, self.size = file, file.place.start_offset or 0, size
        #: How far the messages of the last group were from where they belong, where it ends in the file, and its end in the log.
        self.shift, self.position, self.end = 0, self.first, self.first
        self.waiting: list[Messages] = []

    def groups(self) -> Iterator[tuple[Messages, bool]]:
        """Messages next to one another as if they were at their addresses, in order; and whether their addresses were corrected."""
        for frames in walk(self.file, COMMIT_LOG, errors="skip"):
            rows = Messages.take(frames, self.file)
            if not len(rows):
                continue
            good = rows.crc_ok & (rows.stale | rows.entry_crc_ok)
            if frames.status.is_damage and has_foreign_end(rows):
                good[-1] = False
            rows = rows.where(good)
            for group in _alike(rows):
                yield from self._take(group)
        yield from self._settle(None)

    def _take(self, group: Messages) -> Iterator[tuple[Messages, bool]]:
        shift = shift_of(group)
        if len(group) == 1 and shift and shift != self.shift and len(self.waiting) < MOST_WAITING:
            self.waiting.append(_copy_rows(group))
            return
        yield from self._settle(group)
        yield from self._put(group, shift)

    def _settle(self, following: Messages | None) -> Iterator[tuple[Messages, bool]]:
        """Decide about the waiting messages by those before and after them."""
        waiting, self.waiting = self.waiting, []
        if not waiting:
            return
        begin, stop = int(edges(waiting[0])[0][0]), int(edges(waiting[-1])[1][-1])
        fits = all(int(edges(a)[1][-1]) == int(edges(b)[0][0]) for a, b in itertools.pairwise(waiting))
        after = None if following is None else (int(edges(following)[0][0]), shift_of(following))
        follows = begin == self.position
        if fits and after == (stop, self.shift) and (follows or begin + self.shift >= self.end):
            is_corrected = True
        elif after is None and follows and len(waiting) == 1:
            is_corrected = not waiting[0].leftovers(self.file)[0] and not self._is_moved(waiting[0])
        else:
            is_corrected = False
        for rows in waiting:
            if is_corrected:
                yield from self._put(correct_address(rows, self.shift), self.shift, is_corrected=True)
            else:
                yield from self._put(rows, shift_of(rows))

    def _is_moved(self, rows: Messages) -> bool:
        """Whether the last message of a file lies where it does because others before it were removed."""
        named_address, actual_address = int(edges(rows)[0][0]) + shift_of(rows), int(edges(rows)[0][0]) + self.shift
        return (
            self._has_room(rows, shift_of(rows))
            and named_address - actual_address >= SMALLEST_V1
            and (named_address ^ actual_address).bit_count() > 1
        )

    def _has_room(self, rows: Messages, shift: int) -> bool:
        starts, stops = edges(rows)
        return bool(int(starts[0]) + shift >= self.end and int(stops[-1]) + shift <= self.first + self.size)

    def _put(self, rows: Messages, shift: int, *, is_corrected: bool = False) -> Iterator[tuple[Messages, bool]]:
        """Yield messages at their addresses if there is room; else they are copies, or of another file."""
        starts, stops = edges(rows)
        room = (starts + shift >= self.end) & (stops + shift <= self.first + self.size)
        if shift and not room.all():
            return
        rows = rows.where(room)
        if not len(rows) or ((shift or is_corrected) and not rows.entry_crc_ok.all()):
            return
        self.shift, self.position, self.end = shift, int(edges(rows)[1][-1]), int(edges(rows)[1][-1]) + shift
        yield replace(rows, start=rows.start + shift), is_corrected


def _alike(rows: Messages) -> Iterator[Messages]:
    """Messages in groups: neighbours at the same distance from the addresses they name."""
    if not len(rows):
        return
    starts, stops = edges(rows)
    shifts = rows[fields.F_PHYSICAL] - rows.positions - rows.start
    breaks = np.flatnonzero((starts[1:] != stops[:-1]) | (shifts[1:] != shifts[:-1])) + 1
    for start, stop in itertools.pairwise([0, *breaks.tolist(), len(rows)]):
        yield rows.cut(start, stop)


def shift_of(rows: Messages) -> int:
    """The distance of the first message from the address it names."""
    return int(rows[fields.F_PHYSICAL][0] - rows.positions[0]) - rows.start


def _copy_rows(rows: Messages) -> Messages:
    """A copy of a message that stays valid when the next window is read."""
    return replace(rows, data=rows.data.copy(), fields=rows.fields.copy())


def correct_address(rows: Messages, shift: int) -> Messages:
    """A message with the address of its place plus the shift of its neighbours."""
    rows = _copy_rows(rows)
    address = int(rows.positions[0]) + rows.start + shift
    at = int(rows[fields.F_START][0]) + HEAD.at("physical_offset")
    rows.data[at : at + 8] = np.frombuffer(address.to_bytes(8, "big", signed=True), np.uint8)
    rows[fields.F_PHYSICAL][0] = address
    return rows


def has_foreign_end(rows: Messages) -> bool:
    """Whether the last message before damage reaches into something else: bytes are gone from it, or too many, and its end is not text."""
    start, size = int(rows[fields.F_PROPERTIES][-1]), int(rows[fields.F_PROPERTIES_SIZE][-1])
    try:
        bytes(rows.data[start : start + size]).decode("utf-8")
    except UnicodeDecodeError:
        return int(rows[fields.F_FRAME][-1]) == len(rows.frames) - 1
    return False


def edges(rows: Messages) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The addresses at which the entries of messages begin and end, DLedger's heads included."""
    frames, at = rows.frames, rows[fields.F_FRAME]
    return rows.start + frames.positions[at], rows.start + frames.positions[at] + frames.sizes[at]


# What queue files know of a stretch of the log --------------------------------------------------------------------------

MOST_SLOTS = 100_000
"""Messages that queue files name at once."""


def slots_between(queues: Sequence[File], holes: Sequence[tuple[int, int]]) -> list[Slot]:
    """The messages that queue files have in holes of the log, one per address, in order. Reads only these units."""
    slots: dict[int, Slot] = {}
    for file in queues:
        if file.format not in LAYOUTS or file.problem is not None or str(file.place.topic).startswith(LMQ_PREFIX):
            continue
        with Source(file.path) as source:
            for start, stop in holes:
                for slot in _slots(file, source, start, stop):
                    if len(slots) < MOST_SLOTS:
                        slots.setdefault(slot.address, slot)
    return [slots[address] for address in sorted(slots)]


def _slots(file: File, source: Source, start: int, stop: int) -> Iterator[Slot]:
    layout, is_batch = LAYOUTS[str(file.format)], file.format != "rocketmq.consumequeue"
    first = _first_from(source, layout.size, start)
    while True:
        raw = source.read(first * layout.size, layout.size << 12)
        rows = layout.view(np.frombuffer(raw, np.uint8))
        for number, row in enumerate(rows, first):
            address, size = int(row["physical_offset"]), int(row["size"])
            if address >= stop or size <= 0:
                return
            if address >= start and size != PRE_BLANK_SIZE:
                offset = int(row["base_offset"]) if is_batch else (file.place.start_offset or 0) // UNIT.size + number
                count = max(1, int(row["batch_size"])) if is_batch else 1
                queue_id = int(file.place.partition or 0)
                yield Slot(address, size, str(file.place.topic), queue_id, offset, count, file.path)
        if not len(rows):
            return
        first += len(rows)


def _first_from(source: Source, unit: int, address: int) -> int:
    """The number of the first unit of a queue file that points to an address or after it; addresses rise."""
    low, high = 0, source.size // unit
    while low < high:
        middle = (low + high) // 2
        raw = source.read(middle * unit, UNIT.at("tag_hash"))
        at, size = int.from_bytes(raw[:8], "big", signed=True), int.from_bytes(raw[8:], "big", signed=True)
        is_before = size == PRE_BLANK_SIZE or (size > 0 and at < address)
        low, high = (middle + 1, high) if is_before else (low, middle)
    return low


# Files ------------------------------------------------------------------------------------------------------------------

VOTES = 32
"""Messages that say where their file belongs."""


def recognise(files: Sequence[File]) -> list[File]:
    """The files; a commit-log file under a wrong name is placed by its first message."""
    return [_recognise(file) for file in files]


def _recognise(file: File) -> File:
    if file.format != "rocketmq.stray" or file.problem is not None or parts(file.path)[1] != "commitlog":
        return file
    start = claim_of(file, 1).base
    place = replace(file.place, start_offset=start, state=None)
    return file if start < 0 else replace(file, format=COMMIT_LOG.name, place=place)


@dataclass(frozen=True, slots=True)
class Claim:
    """A commit-log file under its own name, and where it belongs by most of its first messages: `base`, -1 if they do not say, with their
    number. `agreeing` and `differing` are how many units of each queue file are of these messages, and how many are of others there.
    """

    file: File
    base: int = -1
    votes: int = 0
    agreeing: Mapping[str, int] = field(default_factory=dict)
    differing: Mapping[str, int] = field(default_factory=dict)

    def placed(self, size: int) -> File:
        """The file where its messages belong, or else where its name says."""
        if self.base < 0 or self.base % size:
            return self.file
        return replace(self.file, place=replace(self.file.place, start_offset=self.base))


MOST_QUEUES = 64
"""Queue files with which a commit-log file is compared."""


def claim_of(file: File, size: int, queues: Sequence[File] = ()) -> Claim:
    """Where a file belongs, by its first messages, and what queue files know of these.

    Where bytes were added or removed, messages after them say otherwise; only a multiple of the size of a file can be right.
    """
    votes: Counter[int] = Counter()
    sizes: dict[int, int] = {}
    with contextlib.suppress(DataError):
        for frames in walk(file, COMMIT_LOG, errors="skip"):
            rows = Messages.take(frames, file)
            sound = np.flatnonzero(rows.crc_ok & (rows[fields.F_PHYSICAL] >= rows.positions))
            votes.update((rows[fields.F_PHYSICAL] - rows.positions)[sound].tolist())
            sizes |= zip(rows[fields.F_PHYSICAL][sound].tolist(), rows[fields.F_SIZE][sound].tolist(), strict=True)
            if sum(count for base, count in votes.items() if base % size == 0) >= VOTES:
                break
    likely = Counter({base: count for base, count in votes.items() if base % size == 0}) or votes
    base, count = likely.most_common(1)[0] if likely else (-1, 0)
    agreeing: Counter[str] = Counter()
    differing: Counter[str] = Counter()
    addresses = [address for address in sizes if base <= address < base + max(size, file.size)]
    if addresses and queues:
        some = queues[:: len(queues) // MOST_QUEUES + 1]
        for slot in slots_between(some, [(min(addresses), max(addresses) + 1)]):
            (agreeing if sizes.get(slot.address) == slot.size else differing)[slot.path] += 1
    return Claim(file, base, count, dict(agreeing), dict(differing))


LEAST_DIFFERING = 3
"""Units that show that a file is of another store, if there is none that fits it."""


def _are_foreign(claims: Sequence[Claim]) -> list[bool]:
    """Which files are of another store: queue files that fit other files of the log have other messages at their addresses.

    A queue file that fits no other file says nothing: it may itself be of another store.
    """
    fitting = {
        path for claim in claims for path, count in claim.agreeing.items() if count > claim.differing.get(path, 0)
    }
    return [
        not claim.agreeing and sum(claim.differing.get(path, 0) for path in fitting) >= LEAST_DIFFERING
        for claim in claims
    ]


def settle(claims: Sequence[Claim], size: int, report: Report, *, move: bool = False) -> list[File]:
    """The files of a log, each where its messages belong: a renamed or swapped one must fill a gap of the log, or lie at an end.

    What finds no place is left out, and reported.
    """
    kept, renamed, silent = [], [], []
    for claim, is_foreign in zip(claims, _are_foreign(claims), strict=True):
        file, start = claim.file, claim.file.place.start_offset or 0
        is_named = parts(file.path)[0] == f"{start:020}"
        if is_foreign:
            reason = "set aside: of another store, the consume queues have other messages at its addresses"
            drop(report, reason, file.path, 0, file.size)
        elif is_named and start % size == 0 and (claim.base == -1 or claim.base % size):
            silent.append(file)
        elif is_named and start == claim.base and (move or start % size == 0):
            kept.append(file)
        else:
            renamed.append(claim)
    taken = {file.place.start_offset or 0 for file in kept}
    ends = taken | {file.place.start_offset or 0 for file in silent}
    is_known = any(claim.agreeing for claim in claims)
    for claim in sorted(renamed, key=lambda claim: (claim.base, -claim.votes)):
        file, start = claim.file, claim.base
        # Far from the others a single message may be wrong about itself, and a file of which no queue knows is of another store.
        is_near = not ends or min(ends) - size <= start <= max(ends) + size
        is_likely = claim.votes > 1 and bool(claim.agreeing or not is_known)
        if start >= 0 and start % size == 0 and start not in taken and (is_near or is_likely):
            taken.add(start)
            kept.append(claim.placed(size))
            reason = f"taken as the commit-log file {start:020}, where its messages belong"
            report.add(Action.MOVED, reason, file.path, is_expected=True)
        else:
            drop(report, "left out, it has no place in the commit log", file.path, 0, file.size)
    for file in silent:  # nothing in them says where they belong but their names
        if file.place.start_offset in taken:
            drop(report, "left out, another file has its place in the commit log", file.path, 0, file.size)
        else:
            kept.append(file)
    return kept


def locate(files: Sequence[File], size: int, report: Report, *, move: bool) -> list[File]:
    """The files of a store, each commit-log file where its messages belong (`settle`).

    OptionError if files are where they say and only the size is not known.
    """
    logs = [file for file in files if file.format == COMMIT_LOG.name and file.problem is None]
    others = [file for file in files if file.format != COMMIT_LOG.name or file.problem is not None]
    claims = [claim_of(file, size, [other for other in others if other.format in LAYOUTS]) for file in logs]
    for claim in claims:
        file, base = claim.file, claim.base
        if base % size and not move and parts(file.path)[0] == f"{base:020}":
            raise OptionError(
                f"{file.path}: its name is not a multiple of the size of a file, {size:,}: give commitlog_size, or repair with move"
            )
    return [*others, *settle(claims, size, report, move=move)]


# The whole log --------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class MessageRun:
    """Whole, sound messages, each directly after the one before, at their addresses; `stop` is the address after the last.

    In their file they are `shift` bytes before these. `is_corrected`: their addresses were wrong and are corrected.
    """

    rows: Messages
    start: int
    stop: int
    shift: int = 0
    is_corrected: bool = False


def runs_of(file: File, *, skip: bool, size: int) -> Iterator[MessageRun]:
    """The sound messages of a file of `size` bytes, in runs without a hole; nothing after the first one unless `skip`."""
    if not skip:
        yield from _runs_before_damage(file, size)
        return
    first = file.place.start_offset or 0
    for rows, is_corrected in Placement(file, size).groups():
        yield replace(run_of(rows), shift=rows.start - first, is_corrected=is_corrected)


def _runs_before_damage(file: File, size: int) -> Iterator[MessageRun]:
    for frames in walk(file, COMMIT_LOG, stop=size, errors="stop"):
        rows = Messages.take(frames, file)
        good = rows.sound
        if not len(rows):
            continue
        if frames.status.is_damage and has_foreign_end(rows):
            good[-1] = False
        stop = len(rows) if good.all() else int(np.argmin(good))
        if stop:
            yield run_of(rows.cut(0, stop))
        if stop < len(rows):
            return


def run_of(rows: Messages) -> MessageRun:
    """Messages without a hole as a run."""
    starts, stops = edges(rows)
    return MessageRun(rows, int(starts[0]), int(stops[-1]))


def is_sound(store: Store) -> bool:
    """Whether a broker's scan meets every message of the log, and queues and index know of no others. Files of which a pass has left a
    summary are not read again.
    """
    if any(file.format == "rocketmq.stray" or file.problem is not None for file in store):
        return False
    for view in views(store):
        used = [log for log in view.logs if log.messages or log.ends_with != "zeros"]
        ends = ["blank"] * len(used[:-1]) + ["zeros" if used and used[-1] is view.logs[-1] else "blank"] * len(
            used[-1:]
        )
        if not used or [log.ends_with for log in used] != ends or any(log.after or log.has_wrong_entry for log in used):
            return False
        if len({log.file.size for log in view.logs}) > 1:
            return False
        if any(log.stop != following.start for log, following in itertools.pairwise(view.logs)):
            return False
        comparison = comparison_of(store)
        marks = (*comparison.differing, *comparison.dangling, *comparison.missing, *comparison.gaps)
        if any((mark.severity or Severity.ERROR) is not Severity.INFO for mark in marks):
            return False
        for file in view.of("rocketmq.index"):
            with contextlib.suppress(DataError), Index(file.path) as index:
                if index.last_address() >= view.end:
                    return False
    return True


FARTHEST = (1 << 63) - 1


CUT = "cut"


def indexed_between(files: Sequence[File], start: int, stop: int) -> dict[str, int]:
    """How many new addresses in a stretch of the log each file of the key index adds to those before it."""
    earlier: set[int] = set()
    counts: dict[str, int] = {}
    for file in files:
        if file.format != "rocketmq.index" or file.problem is not None:
            continue
        with contextlib.suppress(DataError), Index(file.path) as opened:
            addresses = opened.table()["physical_offset"].astype(np.int64)
            fresh = set(addresses[(addresses >= start) & (addresses < stop)].tolist()) - earlier
            earlier |= fresh
            if fresh:
                counts[file.path] = len(fresh)
    return counts


def is_begun(file: File) -> bool:
    """Whether anything was written to the front of a file: a broker makes the next one before it needs it."""
    with Source(file.path) as source:
        return any(source.read(0, BLANK.size))


def tail_of(file: File, position: int, size: int, shift: int = 0) -> str:
    """What follows the last sound message of a file: `blank`, `zeros`, CUT if it ends there and should not, or the number of other bytes.
    The messages before it are `shift` bytes before their place.
    """
    with Source(file.path) as source:
        if 0 < source.size <= position and position + shift < size:
            return CUT
        head = source.read(position, BLANK.size)
        if len(head) == BLANK.size:
            room, magic = np.frombuffer(head, ">i4").tolist()
            left = size - position - shift
            if (room, magic) == (left, MAGIC_BLANK):
                return "blank"
            if (room, magic) == (DLEDGER_BLANK_MAGIC, left):
                return "blank"
        last, at, end = 0, position, min(max(size, size - shift), source.size)
        while at < end:
            piece = source.read(at, min(4 << 20, end - at))
            if not piece:
                break
            written = np.frombuffer(piece, np.uint8)
            if written.any():
                last = at + int(np.flatnonzero(written)[-1]) + 1 - position
            at += len(piece)
    return str(last) if last else "zeros"
