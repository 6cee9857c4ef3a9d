"""Replaying many records of a metadata log at once: only those that later ones do not supersede reach the state."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog.formats.kafka.cluster import kernels
from rawlog.formats.kafka.cluster.state import State
from rawlog.formats.kafka.log.layouts import NONE
from rawlog.kernels import byte_view
from rawlog.model.format import lasting

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
        run = Run(self.data, self.table[start:stop], self.state)
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


class Run:
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
