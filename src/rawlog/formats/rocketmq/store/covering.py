"""What `repair` writes over a hole of the commit log: placeholders with the numbers of lost messages, and fillers that no queue shows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rawlog.formats.rocketmq.encoder import Entries, host_bytes
from rawlog.formats.rocketmq.kernels import encode as kernels
from rawlog.formats.rocketmq.layouts import (
    BATCH_UNIT,
    FILLER_FLAG,
    FILLER_HOST,
    FILLER_TOPIC,
    FIXED_V4,
    HALF_TOPIC,
    LARGEST_BODY,
    LARGEST_TOPIC_V1,
    PROPERTIES,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TOPIC_V1,
    TOPIC_V2,
    UNIT,
    SysFlag,
)

SMALLEST_FILLER = FIXED_V4 + TOPIC_V1.size + len(FILLER_TOPIC) + PROPERTIES.size
LARGEST_FILLER = LARGEST_BODY
LAYOUTS = {"rocketmq.consumequeue": UNIT, "rocketmq.batchconsumequeue": BATCH_UNIT}


def joined(pieces: list[tuple[int, Slot | None]], stop: int) -> list[tuple[int, Slot | None]]:
    """Pieces of a hole, those too small for an entry of their own given to the one before them, the first to the one behind it."""
    kept: list[tuple[int, Slot | None]] = []
    for number, (begin, slot) in enumerate(pieces):
        end = pieces[number + 1][0] if number + 1 < len(pieces) else stop
        if slot is None and end - begin < SMALLEST_FILLER and kept:
            continue
        is_behind_rest = number == 1 and pieces[0][1] is None and begin - pieces[0][0] < SMALLEST_FILLER
        if is_behind_rest:
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
    """An entry of exactly `size` bytes, zeros inside: with the number of a lost message, else one that no queue shows.

    For a lost batch it has all the batch's numbers and is one empty message to a consumer: nothing tells it to unpack.
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
