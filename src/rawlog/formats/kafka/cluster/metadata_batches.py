"""The batches of a metadata log, each at the offset and of the epoch that the log's outline gives it; and those of a snapshot."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog.formats.kafka.cluster import kernels
from rawlog.formats.kafka.cluster.metadata import MIGRATING
from rawlog.formats.kafka.cluster.state import State
from rawlog.formats.kafka.internal.codec import Message
from rawlog.formats.kafka.internal.messages import control_type
from rawlog.formats.kafka.log.heads import Heads, heads
from rawlog.formats.kafka.log.layouts import BATCH, MAGIC_V2, NONE, Attributes
from rawlog.formats.kafka.log.segment import decode_bounded, decode_run
from rawlog.formats.kafka.partition.outline import Outline
from rawlog.formats.kafka.partition.segment_outline import SoundBatches, bytes_of, count_offsets, find_sound
from rawlog.io.storage import Source
from rawlog.kernels import byte_view
from rawlog.kernels.gather import gather_spans
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
Choice = slice | NDArray[np.int64]
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
        run = ReplayRun(self.data, self.starts[start : stop + 1], self.table[start:stop], self.state)
        self._replay_records((start + np.flatnonzero(run.needed)).tolist())
        run.settle_partitions()

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
    """Records that are replayed at once: which of them the state needs, and what the others leave of partitions."""

    def __init__(
        self, data: NDArray[np.uint8], starts: NDArray[np.int64], table: NDArray[np.int64], state: State
    ) -> None:
        self.data, self.starts, self.table, self.state = data, starts, table, state
        self.bytes = memoryview(data)  # type: ignore[arg-type]
        count = len(table)
        kinds = table[:, kernels.KIND]
        self.topics, self.parts = np.empty((2, count), np.int64)
        has_topic, has_part = (kinds >= kernels.TOPIC) & (kinds < kernels.SETTING), kinds >= kernels.PARTITION
        first_of_topic, first = np.empty((2, count), np.int64)
        topic_slots, slots = _slots(has_topic), _slots(has_part)
        topics, parts, _ = kernels.assign_numbers(
            data, table, topic_slots, slots, self.topics, self.parts, first_of_topic, first
        )
        self.first = first[:parts]
        ids = table[first_of_topic[:topics], kernels.START].tolist()
        self.ids = [bytes(self.bytes[start : start + 16]) for start in ids]
        self.needed, effective = np.empty((2, count), np.bool_)
        self.superseded = np.zeros((parts, 2), np.int64)
        exists, self.places = self._before()
        lives = np.zeros(topics, np.int64)
        kernels.mark_needed(
            table, self.topics, self.parts, exists, lives, self.places, self.needed, effective, self.superseded
        )
        topic = self.topics[self.first]
        has_place = np.flatnonzero(topic >= 0)
        topic, place = topic[has_place], self.places[has_place]
        is_there = (exists[topic] > 0) & (place[:, kernels.EXISTS] > 0) & (place[:, kernels.LIFE] == lives[topic])
        is_there &= (place[:, kernels.BASE] >= 0) | (self.superseded[has_place, kernels.CHANGES] > 0)
        #: The partitions that are there after the run, and that it changes.
        self.changed = has_place[is_there]

    def _before(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Which topics exist before the run, and what is kept of each partition: whether it exists."""
        state = self.state
        exists = np.fromiter((topic in state.topics for topic in self.ids), np.int64, len(self.ids))
        places = np.full((self.first.size, kernels.PLACES), NONE)
        places[:, : kernels.BASE] = 0
        topics = self.topics[self.first]
        chosen = np.flatnonzero((topics >= 0) & (exists[topics] > 0 if exists.size else False))
        numbers = self.table[self.first[chosen], kernels.NUMBER].tolist()
        topics_of = map(self.ids.__getitem__, topics[chosen].tolist())
        places[chosen, kernels.EXISTS] = [
            number in state.topics[topic].partitions for topic, number in zip(topics_of, numbers, strict=True)
        ]
        return exists, places

    def settle_partitions(self) -> None:
        """Take what the run leaves of its partitions into the state, and count the records that the state did not need."""
        self.state.records += int(np.count_nonzero(~self.needed))
        is_forced = self.places[self.changed, kernels.FORCED] > 0
        self._raise_epochs(self.changed[is_forced])
        parts = self.changed[~is_forced]
        is_new = self.places[parts, kernels.BASE] >= 0
        self._create(parts[is_new])
        self._change(parts[~is_new])

    def _partitions(self, parts: NDArray[np.int64]) -> Iterator[tuple[bytes, dict[int, Message], int]]:
        """Of each partition the id of its topic, the topic's partitions, and its number."""
        numbers = self.table[self.first[parts], kernels.NUMBER].tolist()
        for topic, number in zip(self.topics[self.first[parts]].tolist(), numbers, strict=True):
            topic_id = self.ids[topic]
            yield topic_id, self.state.topics[topic_id].partitions, number

    def _raise_epochs(self, parts: NDArray[np.int64]) -> None:
        """Raise the epochs of partitions by the changes that the state did not see."""
        superseded = self.superseded[parts].tolist()
        for (_, partitions, number), (changes, leaders) in zip(self._partitions(parts), superseded, strict=True):
            partition = partitions[number]
            partition["partitionEpoch"] += changes
            partition["leaderEpoch"] += leaders

    def _create(self, parts: NDArray[np.int64]) -> None:
        """Put partitions that the run creates into the state."""
        fields = PartitionFields(self, parts)
        superseded = self.superseded[parts]
        columns = (
            *map(fields.numbers, (kernels.REPLICAS, kernels.ISR, kernels.REMOVING, kernels.ADDING)),
            fields.values[kernels.LEADER].tolist(),
            (fields.epochs[kernels.LEADER_EPOCH] + superseded[:, kernels.LEADERS]).tolist(),
            (fields.epochs[kernels.PARTITION_EPOCH] + superseded[:, kernels.CHANGES]).tolist(),
            fields.counts[kernels.DIRECTORIES].tolist(),
            fields.directories(),
            fields.values[kernels.RECOVERY].tolist(),
            *map(fields.numbers, (kernels.ELIGIBLE, kernels.LAST_ELIGIBLE)),
        )
        for (topic_id, partitions, number), (
            replicas, isr, removing, adding, leader, leader_epoch, epoch, count, directories, recovery, eligible, last_eligible
        ) in zip(self._partitions(parts), zip(*columns, strict=True), strict=True):  # fmt: skip
            partitions[number] = {
                "partitionId": number,
                "topicId": topic_id,
                "replicas": replicas,
                "isr": isr,
                "removingReplicas": removing,
                "addingReplicas": adding,
                "leader": leader,
                "leaderEpoch": leader_epoch,
                "partitionEpoch": epoch,
                "directories": directories if count >= 0 else [MIGRATING] * len(replicas),
                "leaderRecoveryState": recovery,
                "eligibleLeaderReplicas": eligible,
                "lastKnownElr": last_eligible,
            }

    def _change(self, parts: NDArray[np.int64]) -> None:
        """Change partitions that the state had before the run."""
        self._raise_epochs(parts)
        fields = PartitionFields(self, parts)
        changed = [partitions[number] for _, partitions, number in self._partitions(parts)]
        for field, name in _NUMBERS.items():
            chosen = np.flatnonzero(fields.counts[field] >= 0)
            for index, numbers in zip(chosen.tolist(), fields.numbers(field, chosen), strict=True):
                changed[index][name] = numbers
        for field, name in ((kernels.LEADER, "leader"), (kernels.RECOVERY, "leaderRecoveryState")):
            chosen = np.flatnonzero(fields.counts[field] >= 0)
            for index, value in zip(chosen.tolist(), fields.values[field, chosen].tolist(), strict=True):
                changed[index][name] = value
        counts = fields.counts[kernels.DIRECTORIES]
        chosen = np.flatnonzero((counts != NONE) | (fields.counts[kernels.REPLICAS] >= 0))
        columns = chosen.tolist(), counts[chosen].tolist(), fields.directories(chosen)
        for index, count, directories in zip(*columns, strict=True):
            partition = changed[index]
            if count >= 0:
                partition["directories"] = directories
            elif count == kernels.MIGRATED or all(known == MIGRATING for known in partition["directories"]):
                partition["directories"] = [MIGRATING] * len(partition["replicas"])


_NUMBERS = {
    kernels.REPLICAS: "replicas", kernels.ISR: "isr", kernels.REMOVING: "removingReplicas", kernels.ADDING: "addingReplicas",
    kernels.ELIGIBLE: "eligibleLeaderReplicas", kernels.LAST_ELIGIBLE: "lastKnownElr",
}  # fmt: skip
"""The fields of a partition that are lists of numbers, with their names."""


class PartitionFields:
    """What a run leaves of the fields of some partitions, in columns, as `read_partitions` has them."""

    def __init__(self, run: ReplayRun, parts: NDArray[np.int64]) -> None:
        self.data = run.data
        self.values, self.counts = np.empty((2, kernels.FIELDS, parts.size), np.int64)
        self.epochs = np.zeros((kernels.EPOCHS, parts.size), np.int64)
        kernels.read_partitions(run.data, run.starts, run.places, parts, self.epochs, self.values, self.counts)

    def numbers(self, field: int, chosen: Choice = slice(None)) -> list[list[int]]:
        """The numbers in a field of each partition, or of the chosen ones; none where it is not set."""
        items, stops = self._items(field, 4, chosen)
        numbers = np.frombuffer(items, ">i4").tolist()
        return [numbers[start >> 2 : stop >> 2] for start, stop in pairwise(stops)]

    def directories(self, chosen: Choice = slice(None)) -> list[list[bytes]]:
        """The ids of the directories of each partition, or of the chosen ones; none where they are not set."""
        items, stops = self._items(kernels.DIRECTORIES, 16, chosen)
        return [[items[at : at + 16] for at in range(start, stop, 16)] for start, stop in pairwise(stops)]

    def _items(self, field: int, size: int, chosen: Choice) -> tuple[bytes, list[int]]:
        """The items of a field one after the other, and where those of each partition end, after 0."""
        starts, sizes = self.values[field, chosen], np.maximum(self.counts[field, chosen], 0) * size
        items, stops = np.empty(int(sizes.sum()), np.uint8), np.empty(sizes.size + 1, np.int32)
        gather_spans(self.data, starts, sizes, items, stops)
        return items.tobytes(), stops.tolist()


def _slots(present: NDArray[np.bool_]) -> NDArray[np.int64]:
    """A hash table for so many things, more than half of it free."""
    return np.full(1 << int(np.count_nonzero(present) * 2).bit_length(), NONE)
