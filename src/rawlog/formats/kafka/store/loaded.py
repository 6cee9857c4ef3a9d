"""A partition as a broker knows it once it has loaded the directory: segments, end, producers, aborted transactions, epochs.

The log itself is the authority; what is next to it is used where the log no longer tells, as after compaction: producers whose batches
are gone, the first offset of an aborted transaction, the start of a leader epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from rawlog.core.errors import CorruptError, RawlogError
from rawlog.core.format import File
from rawlog.core.frames import Frames
from rawlog.core.status import Status
from rawlog.formats.kafka.checkpoints import LARGEST, log_start, parse_epochs
from rawlog.formats.kafka.heads import Heads, heads
from rawlog.formats.kafka.layouts import INDEX_ENTRY, NONE, OUTLINE, TIME_INDEX_ENTRY
from rawlog.formats.kafka.log import sound
from rawlog.formats.kafka.store.derived import Derivation
from rawlog.formats.kafka.store.rewrite import segments_of
from rawlog.formats.kafka.store.state import Aborted, Producer, Producers
from rawlog.formats.kafka.store.survey import aborted_in, snapshot_rows
from rawlog.io.storage import Source
from rawlog.io.walk import describe, walk


@dataclass(frozen=True, slots=True)
class Segment:
    """A log segment, with what its batches and the files next to it tell."""

    file: File
    base: int
    index_bytes: int = 0
    timeindex_bytes: int = 0
    max_timestamp: int = NONE

    @property
    def size(self) -> int:
        return self.file.size

    @property
    def modified_ms(self) -> int:
        """When the file was last changed; a broker goes by it where records have no time."""
        return int((self.file.modified or 0) * 1000)

    @property
    def largest_timestamp(self) -> int:
        return self.max_timestamp if self.max_timestamp >= 0 else self.modified_ms


@dataclass(slots=True)
class Loaded:
    """What is known of a partition. `end_offset` is the offset that its next record would have."""

    segments: list[Segment] = field(default_factory=list)
    start_offset: int = 0
    end_offset: int = 0
    producers: dict[int, Producer] = field(default_factory=dict)
    producer_ids: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    aborted: list[Aborted] = field(default_factory=list)
    epochs: bytes = b""
    #: Producer snapshots by their offsets.
    snapshots: dict[int, bytes] = field(default_factory=dict)

    @property
    def last_stable_offset(self) -> int:
        """Up to where everything is decided, taking everything for replicated."""
        undecided = [one.current_txn_first_offset for one in self.producers.values()]
        return min((one for one in undecided if one != NONE), default=self.end_offset)

    def expire(self, now: int, after_ms: int) -> None:
        """Forget producers that have been silent for so long, as a broker does (§7.3)."""
        self.producers = {
            number: one
            for number, one in self.producers.items()
            if one.current_txn_first_offset != NONE or now - one.timestamp < after_ms
        }


def load(files: Sequence[File]) -> Loaded:
    """Walk a partition's log. DataError for damage, which `repair` handles; an unfinished batch at the end is passed over."""
    loaded = Loaded()
    files = [one for one in files if one.place.state is None and one.problem is None]
    walker = _Walker(loaded, files)
    segments = segments_of(files)
    for segment in segments:
        walker.segment(segment, is_last=segment is segments[-1])
    loaded.start_offset = max(log_start(segments[0], files) or 0, loaded.segments[0].base)
    loaded.aborted = _with_listed(walker.derivation.producers, files)
    loaded.producer_ids = np.array(sorted(walker.ids), np.int64)
    loaded.epochs = _epochs(files) or walker.derivation.epochs_file()
    loaded.producers = _producers(files, loaded, walker)
    for file in files:
        if file.format == "kafka.snapshot" and file.place.start_offset in loaded.snapshots:
            data = _sound_snapshot(file)
            if data is not None:
                loaded.snapshots[file.place.start_offset or 0] = data
    return loaded


class _Walker:
    def __init__(self, loaded: Loaded, files: Sequence[File]) -> None:
        self.loaded, self.derivation = loaded, Derivation()
        self.others = {(one.format, one.place.start_offset): one for one in files}
        self.ids: set[int] = set()
        self.end = 0

    def segment(self, file: File, *, is_last: bool) -> None:
        from rawlog.formats.kafka import LOG

        base = file.place.start_offset or 0
        if base:
            self.loaded.snapshots[base] = self.derivation.snapshot(base)
        if base < self.end:
            raise CorruptError(
                f"offset {base:,} in front of the one before, {self.end:,}", path=file.path, format=LOG.name
            )
        self.end = max(self.end, base)
        top = NONE
        for frames in walk(file, LOG, errors="raise"):
            head = heads(frames)
            _, error = sound(frames, head)
            if error is not None:
                raise error.at(path=file.path, format=LOG.name)
            if frames.status is Status.TRUNCATED and frames.last and not is_last:
                raise describe(LOG, frames, file.path)
            if len(frames):
                self._in_order(file, frames, head)
                self.derivation.add(frames, head)
                self.ids.update(np.unique(head["producer_id"]).tolist())
                top = max(top, int(head["max_timestamp"].max()))
        self.loaded.end_offset = self.end
        if is_last and self.end:
            self.loaded.snapshots[self.end] = self.derivation.snapshot(self.end)
        made = Segment(file, base, max_timestamp=top)
        index, times = self.others.get(("kafka.index", base)), self.others.get(("kafka.timeindex", base))
        size = index.size if index is not None else file.size // 4096 * INDEX_ENTRY.size
        time_size = times.size if times is not None else file.size // 4096 * TIME_INDEX_ENTRY.size
        self.loaded.segments.append(replace(made, index_bytes=size, timeindex_bytes=time_size))

    def _in_order(self, file: File, frames: Frames, head: Heads) -> None:
        base, last = head["base_offset"], head["last_offset"]
        wrong = base < np.concatenate(([self.end], last[:-1] + 1))
        wrong |= last < base
        if wrong.any():
            at = int(np.argmax(wrong))
            raise CorruptError(
                f"a batch of offsets {int(base[at]):,} to {int(last[at]):,} out of order",
                path=file.path,
                position=int(frames.positions[at]),
                format="kafka.log",
                layout=OUTLINE.name,
                field="base_offset",
            )
        self.end = int(last[-1]) + 1


def _with_listed(state: Producers, files: Sequence[File]) -> list[Aborted]:
    """Aborted transactions as the log tells them, and what only the index still knows after a compaction: their first offsets, and those
    of which nothing but the marker is left.
    """
    aborted = {(one.producer_id, one.last_offset): one for one in state.aborted}
    markers = {(row[0], row[2]) for rows in state.aborts for row in rows.tolist()}
    for file in files:
        if file.format != "kafka.txnindex":
            continue
        for _, entry in aborted_in(file):
            key = (entry.producer_id, entry.last_offset)
            found = aborted.get(key)
            if key in markers and (found is None or entry.first_offset <= found.first_offset):
                aborted[key] = entry
    return sorted(aborted.values(), key=lambda one: one.last_offset)


def _epochs(files: Sequence[File]) -> bytes | None:
    for file in files:
        if file.format == "kafka.epochs":
            with Source(file.path) as source:
                data = source.read(0, min(source.size, LARGEST))
            return bytes(data) if parse_epochs(data) is not None else None
    return None


def _sound_snapshot(file: File) -> bytes | None:
    """The bytes of a snapshot if they are one."""
    from rawlog.formats.kafka import SNAPSHOT

    try:
        for frames in walk(file, SNAPSHOT, errors="raise"):
            if frames.status is Status.OK:
                return bytes(frames.data)
    except RawlogError:
        pass
    return None


def _producers(files: Sequence[File], loaded: Loaded, walker: _Walker) -> dict[int, Producer]:
    """The newest snapshot that a broker would load, and every batch after it."""
    snapshots = [one for one in files if one.format == "kafka.snapshot"]
    usable = [one for one in snapshots if loaded.start_offset < (one.place.start_offset or 0) <= loaded.end_offset]
    for file in sorted(usable, key=lambda one: -(one.place.start_offset or 0)):
        if _sound_snapshot(file) is not None:
            return _replayed(file, loaded)
    return walker.derivation.producers.states


def _replayed(file: File, loaded: Loaded) -> dict[int, Producer]:
    from rawlog.formats.kafka import LOG

    offset = file.place.start_offset or 0
    state = Producers.of({row.pop("producer_id"): Producer(**row) for _, row in snapshot_rows(file)})
    ends = [one.base for one in loaded.segments[1:]] + [loaded.end_offset]
    for segment, end in zip(loaded.segments, ends, strict=True):
        if end <= offset:
            continue
        for frames in walk(segment.file, LOG, errors="raise"):
            head = heads(frames, check_crc=False)
            first = int(np.searchsorted(head["base_offset"], offset))
            state.add(frames.slice(first, len(frames)), head.slice(first, len(head)))
    return state.states
