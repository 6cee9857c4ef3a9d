"""What a broker derives from the bytes of a log: the two indexes, aborted transactions, producer snapshots, leader epochs.

Everything here is computed as a broker's own recovery does it (LogSegment.recover), from frames and their headers alone, and comes
as the bytes of the files. Which files there are, and where, is for others to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from rawlog.core.errors import OptionError
from rawlog.core.frames import Frames
from rawlog.formats.kafka.heads import Heads
from rawlog.formats.kafka.kernels import indexing as kernels
from rawlog.formats.kafka.layouts import (
    INDEX_ENTRY,
    MAGIC_V2,
    NONE,
    SNAPSHOT_ENTRY,
    SNAPSHOT_HEADER,
    TIME_INDEX_ENTRY,
    TXN_INDEX_ENTRY,
)
from rawlog.formats.kafka.store.state import Aborted, Producer, Producers
from rawlog.io.checksums import crc32c

UNBOUNDED = 1 << 62


@dataclass(frozen=True, slots=True)
class Limits:
    """When a segment is full, as a broker's topic settings say it; the defaults are Kafka's."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 604_800_000
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Limits:
        """The limits that options of these names say. OptionError for what is not a number, or not one that a broker takes."""
        least = {"segment_bytes": 14, "segment_ms": 1, "segment_index_bytes": 24, "index_interval_bytes": 0}
        changed = {
            one.name: whole_number(options, one.name, least[one.name]) for one in fields(cls) if one.name in options
        }
        made = replace(cls(), **changed)
        if made.segment_bytes > kernels.MOST:
            raise OptionError(f"segment_bytes {made.segment_bytes:,}, at most {kernels.MOST:,} expected")
        return made

    @property
    def array(self) -> NDArray[np.int64]:
        entries = self.segment_index_bytes // INDEX_ENTRY.size, self.segment_index_bytes // TIME_INDEX_ENTRY.size
        return np.array([self.segment_bytes, self.segment_ms, *entries, self.index_interval_bytes], np.int64)


def whole_number(options: Mapping[str, str], name: str, least: int, most: int = (1 << 63) - 1) -> int:
    """A number among options; OptionError for anything else."""
    try:
        number = int(options[name])
    except ValueError:
        raise OptionError(f"{name} {options[name]!r}: a whole number expected") from None
    if not least <= number <= most:
        raise OptionError(f"{name} {number:,}: {least:,} to {most:,} expected")
    return number


class SegmentIndex:
    """The indexes of one segment, batch by batch."""

    def __init__(self, base: int, limits: NDArray[np.int64]) -> None:
        self.base, self.limits = base, limits
        self.state = np.zeros(kernels.STATE, np.int64)
        self.state[[kernels.MAX_TIME, kernels.MAX_TIME_OFFSET, kernels.LAST_TIME, kernels.FIRST_TIME]] = NONE
        self._offsets: list[NDArray[np.int64]] = []
        self._times: list[NDArray[np.int64]] = []

    @property
    def size(self) -> int:
        """The bytes of the batches so far."""
        return int(self.state[kernels.POSITION])

    def add(self, sizes: NDArray[np.int64], head: Heads) -> int:
        """Take in batches that follow; how many the segment has room for."""
        out = np.empty((4, sizes.size), np.int64)
        before = self.state[[kernels.ENTRIES, kernels.TIME_ENTRIES]].tolist()
        last, time = np.ascontiguousarray(head["last_offset"]), np.ascontiguousarray(head["max_timestamp"])
        taken, _, _ = kernels.index_batches(
            self.base, np.ascontiguousarray(sizes), last, time, self.limits, self.state, out
        )
        self._offsets.append(out[:2, : int(self.state[kernels.ENTRIES]) - before[0]])
        self._times.append(out[2:, : int(self.state[kernels.TIME_ENTRIES]) - before[1]])
        return int(taken)

    def index(self) -> bytes:
        """The offset index, trimmed to its entries."""
        rows = np.concatenate([np.empty((2, 0), np.int64), *self._offsets], axis=1)
        made = np.empty(rows.shape[1], INDEX_ENTRY.dtype)
        made["relative_offset"], made["position"] = rows
        return made.tobytes()

    def timeindex(self) -> bytes:
        """The time index, with the closing entry of a segment that will not grow."""
        rows = np.concatenate([np.empty((2, 0), np.int64), *self._times], axis=1)
        time, offset = int(self.state[kernels.MAX_TIME]), int(self.state[kernels.MAX_TIME_OFFSET]) - self.base
        if time > self.state[kernels.LAST_TIME]:
            rows = np.concatenate([rows, [[time], [offset]]], axis=1)
        made = np.empty(rows.shape[1], TIME_INDEX_ENTRY.dtype)
        made["timestamp"], made["relative_offset"] = rows
        return made.tobytes()


class LeaderEpochs:
    """The leader epochs that the batches of magic 2 tell."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int]] = []

    def add(self, head: Heads) -> None:
        known = (head["magic"] == MAGIC_V2) & (head["leader_epoch"] >= 0)
        epochs, bases = head["leader_epoch"][known], head["base_offset"][known]
        if not epochs.size:
            return
        latest = self.rows[-1][0] if self.rows else NONE
        before = np.maximum(np.concatenate(([latest], np.maximum.accumulate(epochs)[:-1])), latest)
        for index in np.flatnonzero(epochs > before).tolist():
            self.rows.append((int(epochs[index]), int(bases[index])))

    def file(self) -> bytes:
        lines = "".join(f"{epoch} {start}\n" for epoch, start in self.rows)
        return f"0\n{len(self.rows)}\n{lines}".encode()


def txnindex(aborted: Iterable[Aborted]) -> bytes:
    """The file of the transactions whose abort markers a segment holds."""
    rows = [(0, one.producer_id, one.first_offset, one.last_offset, one.last_stable_offset) for one in aborted]
    return np.array(rows, TXN_INDEX_ENTRY.dtype).tobytes()


def snapshot(states: Mapping[int, Producer]) -> bytes:
    """The file of what is known of every producer. Kafka's own order has no meaning: this one is by producer id."""
    rows = [
        (
            number,
            one.epoch,
            one.last_sequence,
            one.last_offset,
            one.offset_delta,
            one.timestamp,
            one.coordinator_epoch,
            one.current_txn_first_offset,
        )
        for number, one in sorted(states.items())
    ]
    made = np.array(rows, SNAPSHOT_ENTRY.dtype).tobytes()
    covered = len(rows).to_bytes(SNAPSHOT_HEADER.size - SNAPSHOT_HEADER.at("count"), "big") + made
    return b"\0\1" + crc32c(covered).to_bytes(4, "big") + covered


class Derivation:
    """Producers, transactions and epochs of a partition, over all of its segments in order."""

    def __init__(self) -> None:
        self.producers = Producers()
        self.epochs = LeaderEpochs()
        self._aborted_before = 0

    def add(self, frames: Frames, head: Heads) -> None:
        """Take in sound batches that follow those before them."""
        self.epochs.add(head)
        self.producers.add(frames, head)

    def end_segment(self) -> bytes:
        """The transaction index of the segment that ends here."""
        aborted = self.producers.aborted
        before, self._aborted_before = self._aborted_before, len(aborted)
        return txnindex(aborted[before:])

    def snapshot(self, offset: int) -> bytes:
        """The snapshot of the producers up to an offset, which is where the batches so far end."""
        return snapshot(self.producers.states)

    def epochs_file(self) -> bytes:
        """The leader epoch checkpoint."""
        return self.epochs.file()
