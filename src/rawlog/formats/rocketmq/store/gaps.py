"""Placeholders for messages that no consume queue remembers: a hole of the commit log and a gap in the numbers around it tell of them.

A plain consume queue has no place for a gap: without placeholders every later message of the queue would get another number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from rawlog.formats.rocketmq.layouts import BLANK, LARGEST_TOPIC_V1, LMQ_PREFIX
from rawlog.formats.rocketmq.store.covering import SMALLEST_FILLER, Slot, covering, placeholder_size
from rawlog.formats.rocketmq.store.dispatch import (
    COLUMNS,
    U_BATCH,
    U_OFFSET,
    U_PHYSICAL,
    U_SIZE,
    U_TIME,
    Derived,
    Queue,
)
from rawlog.formats.rocketmq.store.stage import Report
from rawlog.formats.rocketmq.store.writer import blank


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
class Gap:
    """Numbers of a queue that no message has, and the stretch of the log in which they were."""

    queue: Queue
    first: int
    count: int
    start: int
    stop: int


def close_gaps(
    derived: Derived,
    fillers: list[Filler],
    begin: int,
    batch_topics: frozenset[str],
    put: Callable[[int, bytes], None],
    report: Report,
) -> None:
    """Give the numbers that are missing around a hole to placeholders in it, in the log just written and in what derives from it.

    `begin` is where the log begins: at 0 no message can have expired, so every queue begins with number 0.
    """
    fillers = sorted(fillers, key=lambda filler: filler.address)
    for gap in sorted(_gaps(derived, begin), key=lambda gap: gap.start):
        here = [one for one in fillers if gap.start <= one.address and one.address + one.size <= gap.stop]
        taken = _placed(gap, here, gap.queue[0] in batch_topics) if here else None
        if taken is None:
            continue
        for filler, slot in taken:
            filler.slots.append(slot)
        topic, queue_id = gap.queue
        last = gap.first + gap.count - 1
        which = f"message {last} is" if gap.count == 1 else f"messages {gap.first} to {last} are"
        report.messages_lost += gap.count
        report.notes.append(f"{topic} queue {queue_id}: {which} lost; placeholders have their numbers")
    for filler in fillers:
        if filler.slots:
            _write(filler, derived, put)


def _gaps(derived: Derived, begin: int) -> Iterator[Gap]:
    for queue in sorted(derived.units):
        topic = queue[0]
        if topic.startswith(LMQ_PREFIX) or "\\x" in topic or len(topic.encode()) > LARGEST_TOPIC_V1:
            continue
        units = derived.queue(queue)
        numbers, addresses = units[U_OFFSET], units[U_PHYSICAL]
        if begin == 0 and numbers[0] > 0:
            yield Gap(queue, 0, int(numbers[0]), 0, int(addresses[0]))
        following = numbers + units[U_BATCH]
        for row in np.flatnonzero(numbers[1:] > following[:-1]).tolist():
            first, count = int(following[row]), int(numbers[row + 1] - following[row])
            yield Gap(queue, first, count, int(addresses[row] + units[U_SIZE][row]), int(addresses[row + 1]))


def _placed(gap: Gap, fillers: list[Filler], is_batch: bool) -> list[tuple[Filler, Slot]] | None:
    """Room for placeholders of a gap; None if there is not enough of it for all, which then are not all of these messages."""
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


def _write(filler: Filler, derived: Derived, put: Callable[[int, bytes], None]) -> None:
    """Placeholders one after the other, and a filler over the rest; a rest too small for one is the last placeholder's."""
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


def _insert(derived: Derived, slot: Slot, address: int, size: int, time: int) -> None:
    unit = np.zeros((COLUMNS, 1), np.int64)
    unit[U_OFFSET], unit[U_PHYSICAL], unit[U_SIZE] = slot.number, address, size
    unit[U_TIME], unit[U_BATCH] = time, slot.count
    units = derived.queue((slot.topic, slot.queue_id))
    at = int(np.searchsorted(units[U_PHYSICAL], address))
    derived.units[slot.topic, slot.queue_id] = [np.concatenate((units[:, :at], unit, units[:, at:]), axis=1)]
