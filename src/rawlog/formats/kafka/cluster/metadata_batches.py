"""The batches of a metadata log, each at the offset and of the epoch that the log's outline gives it; and those of a snapshot."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog.formats.kafka.cluster import kernels
from rawlog.formats.kafka.cluster.state import State
from rawlog.formats.kafka.internal.messages import control_type
from rawlog.formats.kafka.log.heads import Heads, heads
from rawlog.formats.kafka.log.layouts import BATCH, MAGIC_V2, NONE, Attributes
from rawlog.formats.kafka.log.segment import decode_bounded, decode_run
from rawlog.formats.kafka.partition.outline import Outline
from rawlog.formats.kafka.partition.segment_outline import SoundBatches, bytes_of, count_offsets, find_sound
from rawlog.io.storage import Source
from rawlog.kernels import byte_view
from rawlog.model.errors import DataError
from rawlog.model.format import MAX_DECOMPRESSED, MAX_HEADERS, File, lasting
from rawlog.model.frames import Frames
from rawlog.model.report import Action
from rawlog.model.status import Status


@dataclass(slots=True)
class Batch:
    """A sound batch: its bytes in a file, its stored offset and epoch, and the right ones (`first`, `epoch`)."""

    file: File
    start: int
    stop: int
    stored: int
    count: int
    stored_epoch: int
    is_control: bool
    crc: int
    #: Of its last record, milliseconds.
    time: int
    first: int
    epoch: int

    def records(self) -> Iterator[tuple[bool, int | None, bytes | None]]:
        """Whether a record is a control record, then of which kind; and its value."""
        with Source(self.file.path) as source:
            data = byte_view(source.read(self.start, self.stop - self.start))
        stops = np.array([data.size], np.int64)
        frames = Frames(data, np.zeros(1, np.int64), stops, data.size, Status.OK)
        arrays = decode_run(frames, heads(frames), {"key", "value"}, 1 << 28).arrays
        for key, value in zip(*(arrays[name].to_pylist() for name in ("key", "value")), strict=True):
            yield self.is_control, control_type(key) if self.is_control else None, value

    def replay(self, state: State, stop: int | None = None) -> None:
        """Take its records into a state, from the end of the state on and up to an offset."""
        for number, (control, kind, value) in enumerate(self.records()):
            offset = self.first + number
            if offset < state.end_offset or (stop is not None and offset >= stop):
                continue
            if control:
                state.add_control(offset, -1 if kind is None else kind, value or b"")
            else:
                state.add(offset, value or b"")
        state.end_offset = self.end if stop is None else min(self.end, stop)
        state.epoch, state.timestamp = self.epoch, self.time

    def uncovered_fields(self) -> Iterator[tuple[str, bytes]]:
        """The fields that no checksum covers, as they should be."""
        for name, value in (("base_offset", self.first), ("leader_epoch", self.epoch)):
            yield name, value.to_bytes(BATCH.after(name) - BATCH.at(name), "big", signed=True)

    @property
    def end(self) -> int:
        return self.first + self.count

    @property
    def is_rebased(self) -> bool:
        return self.first != self.stored

    @property
    def is_changed(self) -> bool:
        return self.is_rebased or self.epoch != self.stored_epoch


@dataclass(slots=True)
class LogBatches:
    """The batches of a log in the order of their offsets, and those that are not of it, each with the reason."""

    batches: list[Batch]
    aside: list[tuple[Batch, str]]

    @classmethod
    def of(cls, log: Outline, decodable: Collection[str] = ()) -> LogBatches:
        """The batches of a metadata log by its outline. `decodable` are the paths of files whose records a pass has decoded."""
        log_batches = cls([], [])
        for piece in log.pieces:
            extent = log.extents[piece.segment]
            sound, choice = extent.sound_and_choice()
            firsts, _ = extent.offsets()
            numbers = choice.order if piece.numbers is None else piece.numbers
            for number, batch in _decodable_batches(extent.file, sound, numbers, extent.file.path in decodable):
                batch.first = int(firsts[number])
                batch.epoch = log.right_epoch(batch.first, batch.epoch)
                log_batches.batches.append(batch)
        for index, extent in enumerate(log.extents):
            fates = {number: fate for number, fate in log.fates(index).items() if fate.action is Action.DROPPED}
            if fates:
                sound, _ = extent.sound_and_choice()
                dropped = _decodable_batches(extent.file, sound, list(fates), extent.file.path in decodable)
                log_batches.aside += [(batch, fates[number].reason) for number, batch in dropped]
        return log_batches


def batches_in(file: File) -> list[Batch]:
    """The sound batches of a file as they are stored, also after damage."""
    sound = find_sound(bytes_of(file))
    return [batch for _, batch in _decodable_batches(file, sound, range(len(sound.head)), False)]


def _decodable_batches(
    file: File, sound: SoundBatches, numbers: Sequence[int], is_decodable: bool
) -> Iterator[tuple[int, Batch]]:
    """Sound batches by number, without those of older formats and those whose records cannot be decoded."""
    data = bytes_of(file)
    frames = Frames(data, sound.starts, sound.stops, data.size, Status.OK)
    is_control = sound.head.has(Attributes.CONTROL)
    for number in numbers:
        head = sound.head.slice(number, number + 1)
        if head["magic"][0] != MAGIC_V2 or not (is_decodable or can_decode(frames.slice(number, number + 1), head)):
            continue
        base, epoch = int(head["base_offset"][0]), int(head["leader_epoch"][0])
        count = count_offsets(base, int(head["last_offset"][0]))
        place = int(sound.starts[number]), int(sound.stops[number])
        crc, time = int(head["crc"][0]), int(head["max_timestamp"][0])
        yield number, Batch(file, *place, base, count, epoch, bool(is_control[number]), crc, time, base, epoch)


def can_decode(frames: Frames, head: Heads) -> bool:
    """Whether the records of a batch can be decoded."""
    try:
        for _ in decode_bounded(frames, head, {"offset"}, MAX_DECOMPRESSED, MAX_HEADERS):
            pass
    except DataError:
        return False
    return True


# ----------------------------------------------------------------------------------------------------------------------
# Replaying many records of a metadata log at once: only those that later ones do not supersede reach the state.

LEAST = 64
"""A run of fewer records is replayed one by one."""
MOST_BYTES, MOST_RECORDS = 64 << 20, 1 << 19
"""What is held before it is replayed."""


class Replay:
    """Takes records into a state in the order in which they come. What is held reaches the state with `flush`."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._batches: list[pa.RecordBatch] = []
        self._count = self._size = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take in the rows of a batch with value, offset, is_control and control_type, as `kafka.records` has them."""
        self._batches.append(batch)
        self._count += batch.num_rows
        self._size += batch.column("value").nbytes
        if self._count >= MOST_RECORDS or self._size >= MOST_BYTES:
            self.flush()

    def flush(self) -> None:
        """Replay what is held."""
        batches, self._batches, self._count, self._size = self._batches, [], 0, 0
        with lasting():
            for batch in pa.Table.from_batches(batches).combine_chunks().to_batches() if batches else ():
                Window(self.state, batch).replay()


class Window:
    """Some records that follow one another, as columns."""

    def __init__(self, state: State, batch: pa.RecordBatch) -> None:
        self.state = state
        self.offsets: NDArray[np.int64] = batch.column("offset").to_numpy()
        self.controls: NDArray[np.bool_] = batch.column("is_control").to_numpy(zero_copy_only=False)
        self.control_types: NDArray[np.int64] = (
            batch.column("control_type").cast(pa.int64()).fill_null(NONE).to_numpy(zero_copy_only=False)
        )
        values = batch.column("value").fill_null(b"")
        _, places, data = values.buffers()
        first = values.offset
        self.starts = np.frombuffer(places, np.int32)[first : first + len(values) + 1].astype(np.int64)
        self.data = byte_view(b"" if data is None else data)
        self.bytes = memoryview(self.data)  # type: ignore[arg-type]
        self.table = np.empty((len(values), kernels.COLUMNS), np.int64)
        kernels.parse_records(self.data, self.starts, self.controls, self.table)

    def replay(self) -> None:
        """Replay all of them: in runs, which end at records that only the state can tell the meaning of."""
        start = 0
        for barrier in np.flatnonzero(self.table[:, kernels.KIND] == kernels.BARRIER).tolist():
            self._replay_run(start, barrier)
            self._replay_records([barrier])
            start = barrier + 1
        self._replay_run(start, len(self.table))

    def _replay_run(self, start: int, stop: int) -> None:
        """Replay records among which no barrier is."""
        if stop - start < LEAST or self.state.open_transaction is not None:
            self._replay_records(range(start, stop))
            return
        run = ReplayRun(self.data, self.table[start:stop], self.state)
        self._replay_records((start + np.flatnonzero(run.needed)).tolist())
        run.count_superseded()

    def _replay_records(self, numbers: list[int] | range) -> None:
        """Take records into the state, one by one."""
        state = self.state
        for number in numbers:
            value, offset = bytes(self.bytes[self.starts[number] : self.starts[number + 1]]), int(self.offsets[number])
            if self.controls[number]:
                state.add_control(offset, int(self.control_types[number]), value)
            else:
                state.add(offset, value)


class ReplayRun:
    """Records that are replayed at once: which of them the state needs."""

    def __init__(self, data: NDArray[np.uint8], table: NDArray[np.int64], state: State) -> None:
        self.data, self.table, self.state = data, table, state
        count = len(table)
        kinds = table[:, kernels.KIND]
        self.topics, self.parts = np.empty((2, count), np.int64)
        has_topic, has_part = (kinds >= kernels.TOPIC) & (kinds < kernels.SETTING), kinds >= kernels.PARTITION
        first_of_topic, first = np.empty((2, count), np.int64)
        topic_slots, slots = _slots(has_topic), _slots(has_part)
        topics, parts, _ = kernels.assign_numbers(
            data, table, topic_slots, slots, self.topics, self.parts, first_of_topic, first
        )
        self.first_of_topic, self.first = first_of_topic[:topics], first[:parts]
        self.needed, effective = np.empty((2, count), np.bool_)
        self.superseded = np.zeros((parts, 2), np.int64)
        exists, places = self._before()
        lives = np.zeros(topics, np.int64)
        kernels.mark_needed(
            table, self.topics, self.parts, exists, lives, places, self.needed, effective, self.superseded
        )

    def _before(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Which topics exist before the run, and what is kept of each partition: whether it exists."""
        exists = np.zeros(self.first_of_topic.size, np.int64)
        for topic, number in enumerate(self.first_of_topic.tolist()):
            exists[topic] = self._id(number) in self.state.topics
        places = np.full((self.first.size, kernels.PLACES), NONE)
        places[:, : kernels.BASE] = 0
        topics = self.topics[self.first]
        for part in np.flatnonzero((topics >= 0) & (exists[topics] > 0 if exists.size else False)).tolist():
            number = int(self.first[part])
            partitions = self.state.topics[self._id(number)].partitions
            places[part, kernels.EXISTS] = int(self.table[number, kernels.NUMBER]) in partitions
        return exists, places

    def _id(self, number: int) -> bytes:
        """The id of the topic of a record."""
        start = int(self.table[number, kernels.START])
        return self.data[start : start + 16].tobytes()

    def count_superseded(self) -> None:
        """Count the records that the state did not need, and raise the epochs of partitions by their superseded changes."""
        state = self.state
        state.records += int(np.count_nonzero(~self.needed))
        for part in np.flatnonzero(self.superseded[:, kernels.CHANGES]).tolist():
            number = int(self.first[part])
            partition = state.topics[self._id(number)].partitions[int(self.table[number, kernels.NUMBER])]
            partition["partitionEpoch"] += int(self.superseded[part, kernels.CHANGES])
            partition["leaderEpoch"] += int(self.superseded[part, kernels.LEADERS])


def _slots(present: NDArray[np.bool_]) -> NDArray[np.int64]:
    """A hash table for so many things, more than half of it free."""
    return np.full(1 << int(np.count_nonzero(present) * 2).bit_length(), NONE)
