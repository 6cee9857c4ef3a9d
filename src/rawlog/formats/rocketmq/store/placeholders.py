"""What `repair` writes over a hole of the commit log: placeholders with the numbers of lost messages, and fillers that no queue shows.

A plain consume queue has no place for a gap: without placeholders every later message of the queue would get another number. Where no
queue remembers a lost message, a hole of the log and a gap in the numbers around it show that there was one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from rawlog.formats.rocketmq.kernels import encode as kernels
from rawlog.formats.rocketmq.layouts import (
    BATCH_UNIT,
    BLANK,
    FILLER_FLAG,
    FILLER_HOST,
    FILLER_TOPIC,
    FIXED_V4,
    HALF_TOPIC,
    LARGEST_BODY,
    LARGEST_TOPIC_V1,
    LMQ_PREFIX,
    PROPERTIES,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TOPIC_V1,
    TOPIC_V2,
    UNIT,
    SysFlag,
)
from rawlog.formats.rocketmq.store.dispatch import (
    COLUMNS,
    U_BATCH,
    U_OFFSET,
    U_PHYSICAL,
    U_SIZE,
    U_TIME,
    DerivedEntries,
    Queue,
)
from rawlog.formats.rocketmq.writer import Entries, blank, host_bytes

SMALLEST_FILLER = FIXED_V4 + TOPIC_V1.size + len(FILLER_TOPIC) + PROPERTIES.size
LARGEST_FILLER = LARGEST_BODY
LAYOUTS = {"rocketmq.consumequeue": UNIT, "rocketmq.batchconsumequeue": BATCH_UNIT}


def join_pieces(pieces: list[tuple[int, Slot | None]], stop: int) -> list[tuple[int, Slot | None]]:
    """Pieces of a hole; one too small for an entry joins the piece before it, the first one the piece after it."""
    kept: list[tuple[int, Slot | None]] = []
    for number, (begin, slot) in enumerate(pieces):
        end = pieces[number + 1][0] if number + 1 < len(pieces) else stop
        if slot is None and end - begin < SMALLEST_FILLER and kept:
            continue
        follows_rest = number == 1 and pieces[0][1] is None and begin - pieces[0][0] < SMALLEST_FILLER
        if follows_rest:
            kept = [(pieces[0][0], slot)]
        else:
            kept.append((begin, slot))
    return kept


def placeholder_size(slot: Slot) -> int:
    """The fewest bytes that a placeholder takes."""
    topic = slot.topic.encode()
    length = TOPIC_V1.size if len(topic) <= LARGEST_TOPIC_V1 else TOPIC_V2.size
    return FIXED_V4 + length + len(topic) + PROPERTIES.size + len(_properties(slot))


def _properties(slot: Slot) -> bytes:
    """What a broker must find in a placeholder: the numbers of a batch; in the schedule and timer topics, where it is to be delivered.

    Without that a broker fails on it, tries again for ever, and delivers none of those after it (4.9.7 delayed messages, 5.3.3 timer
    messages). A delayed message for the topic of half messages it drops. A timer message goes to the topic of its self tests, if its own
    timer log has it already; else it is taken for one that cancels another.
    """
    pairs: tuple[tuple[str, object], ...] = ()
    if slot.topic == SCHEDULE_TOPIC:
        pairs = (("REAL_TOPIC", HALF_TOPIC), ("REAL_QID", 0))
    elif slot.topic == TIMER_TOPIC:
        pairs = (("TIMER_OUT_MS", 1), ("TIMER_DEL_UNIQKEY", "-"), ("REAL_TOPIC", "SELF_TEST_TOPIC"), ("REAL_QID", 0))
    elif slot.count > 1:
        pairs = (("INNER_NUM", slot.count), ("INNER_BASE", slot.number))
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()


def covering(address: int, size: int, store_time: int, slot: Slot | None) -> bytes:
    """An entry of exactly `size` bytes, filled with zeros: with the number of a lost message, or for no queue.

    For a lost batch it has all the batch's numbers and is one empty message to a consumer: nothing says that it is to be unpacked.
    """
    topic = FILLER_TOPIC if slot is None else slot.topic
    numbers = np.zeros((kernels.NUMBERS, 1), np.int64)
    numbers[kernels.N_SYS_FLAG] = int(SysFlag.PREPARED | SysFlag.COMMIT)
    numbers[kernels.N_BORN_TIME] = numbers[kernels.N_STORE_TIME] = store_time
    numbers[kernels.N_VERSION] = 1 if len(topic.encode()) <= LARGEST_TOPIC_V1 else 2
    numbers[kernels.N_FLAG] = FILLER_FLAG
    if slot is not None:
        numbers[kernels.N_SYS_FLAG] = 0 if slot.count == 1 else int(SysFlag.INNER_BATCH)
        numbers[kernels.N_QUEUE_ID], numbers[kernels.N_QUEUE_OFFSET] = slot.queue_id, slot.number
    host, _ = host_bytes(FILLER_HOST)
    head = SMALLEST_FILLER if slot is None else placeholder_size(slot)
    entries = Entries(
        numbers,
        host[None, :].copy(),
        host[None, :].copy(),
        pa.array([bytes(size - head)], pa.binary()),
        pa.array([topic.encode()], pa.binary()),
        pa.array([b"" if slot is None else _properties(slot)], pa.binary()),
    )
    sizes = entries.sizes()
    assert int(sizes[0]) == size
    return entries.encode(sizes, np.array([address], np.int64), address, address + size).tobytes()


@dataclass(frozen=True, slots=True)
class Slot:
    """What a consume queue says of a place in the commit log: the first number there, and how many."""

    address: int
    size: int
    topic: str
    queue_id: int
    number: int
    count: int = 1
    #: The file of the queue.
    path: str = ""


@dataclass(slots=True)
class Filler:
    """An entry of our own over lost bytes, and the placeholders that are to share its room.

    Where `is_end`, it is the free room at the end of a file instead, which a blank entry closes.
    """

    address: int
    size: int
    time: int
    is_end: bool = False
    slots: list[Slot] = field(default_factory=list)

    @property
    def room(self) -> int:
        return self.size - sum(slot.size for slot in self.slots)


@dataclass(frozen=True, slots=True)
class QueueGap:
    """Numbers of a queue without messages, and the stretch of the log where they were."""

    queue: Queue
    first: int
    count: int
    start: int
    stop: int


def close_gaps(
    derived: DerivedEntries,
    fillers: list[Filler],
    begin: int,
    batch_topics: frozenset[str],
    put: Callable[[int, bytes], None],
) -> Iterator[tuple[QueueGap, Filler]]:
    """Give missing numbers around a hole to placeholders in it, in the written log and its derived entries; yields each closed gap with its
    filler.

    `begin` is where the log begins: at 0 no message can have expired, so every queue begins with number 0.
    """
    fillers = sorted(fillers, key=lambda filler: filler.address)
    for gap in sorted(_gaps(derived, begin), key=lambda gap: gap.start):
        inside = [
            filler for filler in fillers if gap.start <= filler.address and filler.address + filler.size <= gap.stop
        ]
        taken = _place(gap, inside, gap.queue[0] in batch_topics) if inside else None
        if taken is None:
            continue
        for filler, slot in taken:
            filler.slots.append(slot)
        yield gap, taken[0][0]
    for filler in fillers:
        if filler.slots:
            _write(filler, derived, put)


def _gaps(derived: DerivedEntries, begin: int) -> Iterator[QueueGap]:
    for queue in sorted(derived.units):
        topic = queue[0]
        if topic.startswith(LMQ_PREFIX) or "\\x" in topic or len(topic.encode()) > LARGEST_TOPIC_V1:
            continue
        units = derived.queue(queue)
        numbers, addresses = units[U_OFFSET], units[U_PHYSICAL]
        if begin == 0 and numbers[0] > 0:
            yield QueueGap(queue, 0, int(numbers[0]), 0, int(addresses[0]))
        following = numbers + units[U_BATCH]
        for row in np.flatnonzero(numbers[1:] > following[:-1]).tolist():
            first, count = int(following[row]), int(numbers[row + 1] - following[row])
            yield QueueGap(queue, first, count, int(addresses[row] + units[U_SIZE][row]), int(addresses[row + 1]))


def _place(gap: QueueGap, fillers: list[Filler], is_batch: bool) -> list[tuple[Filler, Slot]] | None:
    """Room for the placeholders of a gap; None if they do not all fit: then these were not the missing messages."""
    topic, queue_id = gap.queue
    largest = (1 << 15) - 1 if is_batch else 1
    rooms = {filler.address: filler.room for filler in fillers}
    smallest = placeholder_size(Slot(0, 0, topic, queue_id, gap.first))
    if -(-gap.count // largest) * smallest > sum(rooms.values()):
        return None
    taken, number = [], gap.first
    for filler in fillers:
        while number < gap.first + gap.count:
            count = min(largest, gap.first + gap.count - number)
            slot = Slot(0, 0, topic, queue_id, number, count)
            size = placeholder_size(slot)
            if rooms[filler.address] < size:
                break
            rooms[filler.address] -= size
            taken.append((filler, Slot(0, size, topic, queue_id, number, count)))
            number += count
    return taken if number == gap.first + gap.count else None


def _write(filler: Filler, derived: DerivedEntries, put: Callable[[int, bytes], None]) -> None:
    """Write placeholders in a row, and a filler over the rest; the last placeholder takes a rest too small for a filler."""
    at, left = filler.address, filler.room
    for number, slot in enumerate(filler.slots):
        size = slot.size
        if number == len(filler.slots) - 1 and left < SMALLEST_FILLER and not filler.is_end:
            size, left = size + left, 0
        put(at, covering(at, size, filler.time, slot))
        _insert(derived, slot, at, size, filler.time)
        at += size
    if filler.is_end:
        derived.messages += len(filler.slots)
        put(at, blank(left + BLANK.size))
        return
    derived.messages += len(filler.slots) - (0 if left else 1)
    if left:
        put(at, covering(at, left, filler.time, None))


def _insert(derived: DerivedEntries, slot: Slot, address: int, size: int, time: int) -> None:
    unit = np.zeros((COLUMNS, 1), np.int64)
    unit[U_OFFSET], unit[U_PHYSICAL], unit[U_SIZE] = slot.number, address, size
    unit[U_TIME], unit[U_BATCH] = time, slot.count
    units = derived.queue((slot.topic, slot.queue_id))
    at = int(np.searchsorted(units[U_PHYSICAL], address))
    derived.units[slot.topic, slot.queue_id] = [np.concatenate((units[:, :at], unit, units[:, at:]), axis=1)]
