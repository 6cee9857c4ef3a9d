"""What consume queues say of places in the commit log, for `repair`: which message was there, and to which queue it belonged.

A queue file may have been renamed, or swapped with another. So each is first compared with some of the messages that it points to.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rawlog.core.format import File
from rawlog.core.text import java_text
from rawlog.formats.rocketmq import COMMIT_LOG
from rawlog.formats.rocketmq.kernels import entries as fields
from rawlog.formats.rocketmq.layouts import LMQ_PREFIX, PRE_BLANK_SIZE, UNIT, SysFlag
from rawlog.formats.rocketmq.reader import Messages, scan
from rawlog.formats.rocketmq.store import dispatch
from rawlog.formats.rocketmq.store.covering import LAYOUTS, Slot
from rawlog.io.storage import Source

SAMPLE = 16
"""Messages with which a queue file is compared."""


@dataclass(slots=True)
class QueueFile:
    """The units of a queue file that point to messages, by address, and the queue that they really are of."""

    topic: str
    queue_id: int
    addresses: NDArray[np.int64]
    sizes: NDArray[np.int64]
    numbers: NDArray[np.int64]
    counts: NDArray[np.int64]

    def slot(self, row: int) -> Slot:
        return Slot(
            int(self.addresses[row]),
            int(self.sizes[row]),
            self.topic,
            self.queue_id,
            int(self.numbers[row]),
            int(self.counts[row]),
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
            found = [_units(file) for file in self.files]
            self._queues = [queue for each in found if (queue := self._identified(each)) is not None]
            if self._queues:
                every = np.concatenate([queue.addresses for queue in self._queues])
                sizes = [queue.addresses.size for queue in self._queues]
                order = np.argsort(every, kind="stable")
                self._addresses = every[order]
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
        """The messages that queues know in a stretch of the log, in order; one for each address."""
        found: dict[int, Slot] = {}
        for queue, rows in self._inside(start, stop):
            for row in rows.tolist():
                found.setdefault(int(queue.addresses[row]), queue.slot(row))
        return [found[address] for address in sorted(found)]

    def message_at(self, address: int, size: int) -> Messages | None:
        """The sound message of that size at an address of the log; None if there is none."""
        number = bisect.bisect_right(self._starts, address) - 1
        if number < 0 or address >= self._starts[number] + self.logs[number].size:
            return None
        with Source(self.logs[number].path) as source:
            data = np.frombuffer(source.read(address - self._starts[number], size), np.uint8)
        return _message(data, address)

    def _identified(self, queue: QueueFile) -> QueueFile | None:
        """A queue file under the name of the queue that most of its messages have; None if they are of no one queue."""
        count = queue.addresses.size
        votes: Counter[tuple[str, int, int]] = Counter()
        for row in sorted({int(row) for row in np.linspace(0, count - 1, min(count, SAMPLE))}) if count else ():
            found = self.message_at(int(queue.addresses[row]), int(queue.sizes[row]))
            if found is not None:
                topic, queue_id, number = place_of(found)
                votes[topic, queue_id, number - int(queue.numbers[row])] += 1
        if not votes:
            return queue
        queues: Counter[tuple[str, int]] = Counter()
        for (topic, queue_id, _), support in votes.items():
            queues[topic, queue_id] += support
        (name, support), total = queues.most_common(1)[0], votes.total()
        if 2 * support <= total:
            return queue if (queue.topic, queue.queue_id) in queues else None
        if name == (queue.topic, queue.queue_id):
            return queue
        shift, number = Counter({one[2]: each for one, each in votes.items() if one[:2] == name}).most_common(1)[0]
        numbers = queue.numbers + (shift if 2 * number > total else 0)
        return replace(queue, topic=name[0], queue_id=name[1], numbers=numbers)

    def misplaced(self, rows: Messages) -> Iterator[tuple[int, Slot]]:
        """Messages whose topic, queue or number is not that of the unit which points to them, although the units around it agree with
        theirs: what the message says of itself was changed. No checksum covers it.
        """
        if not len(rows):
            return
        addresses, sizes = rows[fields.F_PHYSICAL], rows[fields.F_SIZE]
        for queue, mine in self._inside(int(addresses[0]), int(addresses[-1]) + 1):
            at = np.minimum(np.searchsorted(addresses, queue.addresses[mine]), addresses.size - 1)
            same = (addresses[at] == queue.addresses[mine]) & (sizes[at] == queue.sizes[mine])
            same &= (rows[fields.F_SYS_FLAG][at] & SysFlag.INNER_BATCH) == 0
            other = (rows[fields.F_QUEUE_ID][at] != queue.queue_id) | (
                rows[fields.F_QUEUE_OFFSET][at] != queue.numbers[mine]
            )
            topic = queue.topic.encode()
            starts, lengths = rows[fields.F_TOPIC][at], rows[fields.F_TOPIC_SIZE][at]
            other |= lengths != len(topic)
            fits = np.flatnonzero(same & (lengths == len(topic)))
            if fits.size and topic:
                text = rows.data[starts[fits][:, None] + np.arange(len(topic))]
                other[fits] |= (text != np.frombuffer(topic, np.uint8)).any(axis=1)
            for index in np.flatnonzero(same & other).tolist():
                if self._agrees_around(queue, int(mine[index])):
                    yield int(at[index]), queue.slot(int(mine[index]))

    def _agrees_around(self, queue: QueueFile, row: int) -> bool:
        """Whether the messages of the units before and after one say of themselves what the units do."""
        seen = 0
        for other in (row - 1, row + 1):
            if 0 <= other < queue.addresses.size:
                found = self.message_at(int(queue.addresses[other]), int(queue.sizes[other]))
                if found is not None:
                    if place_of(found) != (queue.topic, queue.queue_id, int(queue.numbers[other])):
                        return False
                    seen += 1
        return seen > 0


def place_of(message: Messages) -> tuple[str, int, int]:
    """The topic, queue and number that a message has by its own account."""
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
    )
