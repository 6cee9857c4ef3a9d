"""Which partition each row of a replay goes to."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rawlog.core.errors import EncodeError
from rawlog.kernels import byte_view
from rawlog.kernels.hashes import murmur2_spans
from rawlog.live.cluster import TopicPartition
from rawlog.live.replay_request import Asked
from rawlog.live.targets import Targets


class Assignment:
    """Gives each row the number of its target: by its own partition, by its key as Java's default partitioner does, or in turn."""

    def __init__(self, asked: Asked, targets: Targets) -> None:
        self.asked, self.targets = asked, targets
        #: Topics of the map that no record is of, so far.
        self.unmapped = set(asked.topic_map)
        self._turn = 0

    def targets_of(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        """The number of the target of each row. OptionError for a topic that does not exist or has too few partitions."""
        topics = batch.column("topic").dictionary_encode()
        self.unmapped.difference_update(topics.dictionary.to_pylist())
        names = [self.asked.target_of(name) for name in topics.dictionary.to_pylist()]
        codes = pc.fill_null(topics.indices, -1).to_numpy(zero_copy_only=False)
        if (codes < 0).any():
            names.append(self.asked.target_of(None))
            codes = np.where(codes < 0, len(names) - 1, codes)
        largest = -1
        if self.asked.partition_by == "original" and batch.num_rows:
            largest = pc.max(batch.column("partition")).as_py() or 0
        counts = np.array([len(self.targets.need(name, 0, largest).partitions) for name in names], np.int64)
        room = counts[codes] if counts.size else np.zeros(0, np.int64)
        numbers = self._numbers(batch, room)
        if numbers.size and ((numbers < 0) | (numbers >= room)).any():
            at = int(np.argmax((numbers < 0) | (numbers >= room)))
            self.targets.need(names[int(codes[at])], int(numbers[at]))
        keys: NDArray[np.int64] = (
            np.array([self.targets.number_of(name) for name in names], np.int64)[codes] << 32 | numbers
        )
        return keys

    def _numbers(self, batch: pa.RecordBatch, room: NDArray[np.int64]) -> NDArray[np.int64]:
        """The partition of each row."""
        turns = (self._turn + np.arange(batch.num_rows)) % np.maximum(room, 1)
        by = self.asked.partition_by
        column = batch.column("partition")
        if by == "round-robin" or (by == "original" and column.null_count == batch.num_rows):
            self._turn += batch.num_rows
            return turns
        if by == "original":
            if column.null_count:
                raise EncodeError(
                    "some records have a partition, others have none; choose --partition-by key or round-robin"
                )
            numbers: NDArray[np.int64] = column.to_numpy().astype(np.int64)
            return numbers
        self._turn += batch.num_rows
        hashes = _murmur2(batch.column("key"))
        known = batch.column("key").is_valid().to_numpy(zero_copy_only=False)
        return np.where(known, (hashes & 0x7FFF_FFFF) % np.maximum(room, 1), turns)

    def divided(
        self, batch: pa.RecordBatch, keys: NDArray[np.int64]
    ) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
        """The rows of each target."""
        for key in np.unique(keys).tolist():
            chosen = np.flatnonzero(keys == key)
            part = batch if chosen.size == batch.num_rows else batch.take(pa.array(chosen))
            yield self.targets.lane(key), part


def _murmur2(keys: pa.Array) -> NDArray[np.int64]:
    """The hash of each key as Java's default partitioner computes it; of a null it has no meaning."""
    filled = pc.fill_null(keys, b"")
    _, offsets, values = filled.buffers()
    ends = np.frombuffer(offsets, np.int32)[filled.offset : filled.offset + len(filled) + 1].astype(np.int64)
    out = np.empty(len(filled), np.int64)
    murmur2_spans(byte_view(values if values is not None else b""), ends[:-1].copy(), ends[1:].copy(), out)
    return out


__all__ = ["Assignment"]
