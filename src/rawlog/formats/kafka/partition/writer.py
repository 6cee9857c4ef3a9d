"""Partition directories as a broker leaves them: segments rolled by size and time, and next to them all that is derived from them.

Batches come in encoded, with their headers; the data of a segment is written before anything that points at it.
"""

from __future__ import annotations

import base64
import contextlib
import os
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from rawlog.formats.kafka.epochs import parse_epochs
from rawlog.formats.kafka.log.heads import Heads, heads
from rawlog.formats.kafka.log.kernels import heads as kernels
from rawlog.formats.kafka.log.layouts import (
    INDEX_ENTRY,
    MAGIC_V2,
    NONE,
    SNAPSHOT_ENTRY,
    SNAPSHOT_HEADER,
    TIME_INDEX_ENTRY,
    TXN_INDEX_ENTRY,
)
from rawlog.formats.kafka.log.segment import sound
from rawlog.formats.kafka.partition.state import AbortedTxn, Producers, ProducerState
from rawlog.formats.kafka.paths import directory_place, segment_file
from rawlog.formats.kafka.texts import topic_id as read_topic_id
from rawlog.io.checksums import crc32c
from rawlog.io.output import Folder
from rawlog.io.storage import read_regular
from rawlog.io.walk import walk
from rawlog.model.errors import AccessError, DataError, EncodeError, OptionError, RawlogError
from rawlog.model.format import File
from rawlog.model.frames import Frames
from rawlog.model.status import Status

# ----------------------------------------------------------------------------------------------------------------------
# What a broker derives from the bytes of a log: the two indexes, aborted transactions, producer snapshots, leader epochs.
# Everything here is computed as a broker's own recovery does it (LogSegment.recover), from frames and their headers alone, and comes as
# the bytes of the files. Which files there are, and where, is for others to say.


UNBOUNDED = 1 << 62


@dataclass(frozen=True, slots=True)
class SegmentLimits:
    """When a segment is full, as a broker's topic settings say it; the defaults are Kafka's."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 604_800_000
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> SegmentLimits:
        """The limits in the options. OptionError for an invalid number."""
        least = {"segment_bytes": 14, "segment_ms": 1, "segment_index_bytes": 24, "index_interval_bytes": 0}
        changed = {
            limit.name: whole_number(options, limit.name, least[limit.name])
            for limit in fields(cls)
            if limit.name in options
        }
        limits = replace(cls(), **changed)
        if limits.segment_bytes > kernels.MOST:
            raise OptionError(f"segment_bytes {limits.segment_bytes:,}, at most {kernels.MOST:,} expected")
        return limits

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
        self.state = np.zeros(kernels.INDEXING_STATE, np.int64)
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
        entries = np.empty(rows.shape[1], INDEX_ENTRY.dtype)
        entries["relative_offset"], entries["position"] = rows
        return entries.tobytes()

    def timeindex(self) -> bytes:
        """The time index, with the closing entry of a segment that will not grow."""
        rows = np.concatenate([np.empty((2, 0), np.int64), *self._times], axis=1)
        time, offset = int(self.state[kernels.MAX_TIME]), int(self.state[kernels.MAX_TIME_OFFSET]) - self.base
        if time > self.state[kernels.LAST_TIME]:
            rows = np.concatenate([rows, [[time], [offset]]], axis=1)
        entries = np.empty(rows.shape[1], TIME_INDEX_ENTRY.dtype)
        entries["timestamp"], entries["relative_offset"] = rows
        return entries.tobytes()


class LeaderEpochs:
    """The leader epochs that the batches of magic 2 tell."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int]] = []

    def add(self, head: Heads) -> None:
        has_epoch = (head["magic"] == MAGIC_V2) & (head["leader_epoch"] >= 0)
        epochs, bases = head["leader_epoch"][has_epoch], head["base_offset"][has_epoch]
        if not epochs.size:
            return
        latest = self.rows[-1][0] if self.rows else NONE
        before = np.maximum(np.concatenate(([latest], np.maximum.accumulate(epochs)[:-1])), latest)
        for index in np.flatnonzero(epochs > before).tolist():
            self.rows.append((int(epochs[index]), int(bases[index])))

    def file(self) -> bytes:
        lines = "".join(f"{epoch} {start}\n" for epoch, start in self.rows)
        return f"0\n{len(self.rows)}\n{lines}".encode()


def txnindex(aborted: Iterable[AbortedTxn]) -> bytes:
    """The file of the transactions whose abort markers a segment holds."""
    rows = [
        (0, transaction.producer_id, transaction.first_offset, transaction.last_offset, transaction.last_stable_offset)
        for transaction in aborted
    ]
    return np.array(rows, TXN_INDEX_ENTRY.dtype).tobytes()


def snapshot(states: Mapping[int, ProducerState]) -> bytes:
    """The file of what is known of every producer. Kafka's own order has no meaning: this one is by producer id."""
    rows = [
        (
            number,
            state.epoch,
            state.last_sequence,
            state.last_offset,
            state.offset_delta,
            state.timestamp,
            state.coordinator_epoch,
            state.current_txn_first_offset,
        )
        for number, state in sorted(states.items())
    ]
    entries = np.array(rows, SNAPSHOT_ENTRY.dtype).tobytes()
    covered = len(rows).to_bytes(SNAPSHOT_HEADER.size - SNAPSHOT_HEADER.at("count"), "big") + entries
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
        """The snapshot of the producers at an offset, the end of the batches so far."""
        return snapshot(self.producers.states)

    def epochs_file(self) -> bytes:
        """The leader epoch checkpoint."""
        return self.epochs.file()


EPOCHS, METADATA = "leader-epoch-checkpoint", "partition.metadata"


def segment_name(offset: int, extension: str) -> str:
    """The name of a segment's file: 20 digits and what it is."""
    return f"{offset:020d}.{extension}"


def metadata_file(topic_id: str) -> bytes:
    """The content of `partition.metadata`."""
    return f"version: 0\ntopic_id: {topic_id}".encode()


def new_topic_id() -> str:
    """A topic id as Kafka makes them: random, in 22 characters that do not begin with a dash."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


class PartitionWriter:
    """One partition in a directory that exists and is empty. `close` writes what only the end tells.

    Without `limits` a segment ends only where `begin` is called for the next. `log_start` names the first segment of a partition
    that has no batches at all. `derivation` derives what no segment alone tells, by default from the batches that are appended.
    """

    def __init__(
        self,
        folder: Folder | Path,
        limits: SegmentLimits | None,
        *,
        topic_id: str | None = None,
        metadata: bytes | None = None,
        log_start: int = 0,
        interval: int = 4096,
        derivation: Derivation | None = None,
    ) -> None:
        """`metadata` is the content of `partition.metadata`; with a `topic_id` it is made."""
        self.folder = folder if isinstance(folder, Folder) else Folder(folder)
        self.limits, self.topic_id, self.metadata = limits, topic_id, metadata
        if limits is None:
            self._limits = np.array([UNBOUNDED, UNBOUNDED, UNBOUNDED, UNBOUNDED, interval], np.int64)
        else:
            self._limits = limits.array
        self.derivation = Derivation() if derivation is None else derivation
        self.end_offset = log_start
        self.batches = self.bytes = self.segments = 0
        #: The files that were written: log segments, and what is derived from them.
        self.logs: list[str] = []
        self.derived: dict[str, None] = {}
        self._has_v2 = False
        self._file: IO[bytes] | None = None
        self._index: SegmentIndex | None = None
        self._modified: float | None = None
        self._log_start = log_start

    def append(self, frames: Frames, head: Heads) -> None:
        """Batches that follow those before them. EncodeError for one that is larger than a segment."""
        if self.limits is not None and len(frames) and int(frames.sizes.max()) > self.limits.segment_bytes:
            at = int(np.argmax(frames.sizes))
            raise EncodeError(
                f"offset {int(head['base_offset'][at]):,}: a batch of {int(frames.sizes[at]):,} bytes, "
                f"segments hold {self.limits.segment_bytes:,}"
            )
        done = 0
        while done < len(frames):
            if self._index is None:
                self.begin(int(head["base_offset"][done]))
            assert self._index is not None
            rest, rest_head = frames.slice(done, len(frames)), head.slice(done, len(head))
            taken = self._index.add(rest.sizes, rest_head)
            if taken:
                self._take(rest.slice(0, taken), rest_head.slice(0, taken))
                done += taken
            if done < len(frames):
                base = int(head["base_offset"][done])
                if self.limits is None:
                    raise EncodeError(f"offset {base:,} is too far from the segment's first, {self._index.base:,}")
                self.begin(base)

    def _take(self, frames: Frames, head: Heads) -> None:
        assert self._file is not None
        start, stop = int(frames.starts[0]), int(frames.stops[-1])
        if (frames.starts[1:] == frames.stops[:-1]).all():
            self._file.write(memoryview(frames.data[start:stop]))  # type: ignore[arg-type]
        else:
            for first, last in zip(frames.starts.tolist(), frames.stops.tolist(), strict=True):
                self._file.write(memoryview(frames.data[first:last]))  # type: ignore[arg-type]
        self.derivation.add(frames, head)
        self._has_v2 |= bool((head["magic"] == MAGIC_V2).any())
        self.end_offset = int(head["last_offset"][-1]) + 1
        self.batches += len(frames)
        self.bytes += int(frames.sizes.sum())

    def begin(self, base: int, modified: float | None = None) -> None:
        """End the segment that is open, and begin one named by an offset. `modified` is the time its file gets: retention goes by
        it where records have no time of their own.
        """
        if self._file is not None:
            self._end_segment()
            self._write(segment_name(base, "snapshot"), self.derivation.snapshot(base))
        self._index, self._modified = SegmentIndex(base, self._limits), modified
        self.logs.append(segment_name(base, "log"))
        self._file = self.folder.create(self.logs[-1])
        self.segments += 1
        self.end_offset = max(self.end_offset, base)

    def _end_segment(self) -> None:
        assert self._file is not None
        assert self._index is not None
        self._file.close()
        if self._modified is not None and not self.folder.dry_run:
            os.utime(self.folder.path / self.logs[-1], (self._modified, self._modified))
        base = self._index.base
        self._write(segment_name(base, "index"), self._index.index())
        self._write(segment_name(base, "timeindex"), self._index.timeindex())
        aborted = self.derivation.end_segment()
        if aborted:
            self._write(segment_name(base, "txnindex"), aborted)
        self._file = self._index = None

    def flush(self) -> None:
        """Hand what was appended to the system: others can read it, and it outlives the process."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Write what is left."""
        if self._file is None:
            self.begin(self._log_start)
        self._end_segment()
        if self.end_offset > 0:
            self._write(segment_name(self.end_offset, "snapshot"), self.derivation.snapshot(self.end_offset))
        if self._has_v2 or not self.batches:
            self._write(EPOCHS, self.derivation.epochs_file())
        metadata = self.metadata if self.topic_id is None else metadata_file(self.topic_id)
        if metadata is not None:
            self.folder.write(METADATA, metadata)

    def abandon(self) -> None:
        """Let go of the open file; what was written is for the caller to remove."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def discard(self) -> None:
        """Remove what was written: it is to be written again in another way."""
        for name in (*self.logs, *self.derived, METADATA):
            self.folder.remove(name)

    def _write(self, name: str, data: bytes) -> None:
        if name in self.derived:  # the snapshot at the end of a log whose last segment is empty
            self.folder.remove(name)
        self.folder.write(name, data)
        self.derived[name] = None


def topic_id_in(target: Path, topic: str) -> str | None:
    """The id that partitions of a topic have in a log directory."""
    from rawlog.formats.kafka.texts import topic_id

    if not target.is_dir():
        return None
    for folder in sorted(target.glob(f"{topic}-*")):
        place = directory_place(str(folder))
        if place.topic != topic or place.state is not None:
            continue
        try:
            uuid = topic_id(read_regular(folder / METADATA))
        except (OSError, ValueError):
            continue
        return base64.urlsafe_b64encode(uuid).decode().rstrip("=")
    return None


def check_topic_id(options: Mapping[str, str]) -> str | None:
    """The topic id among options; OptionError if it is invalid."""
    from rawlog.model.errors import OptionError

    text = options.get("topic_id")
    if text is None:
        return None
    try:
        raw = base64.urlsafe_b64decode(f"{text}==")
    except ValueError:
        raw = b""
    if len(text) != 22 or len(raw) != 16 or not any(raw):
        raise OptionError(f"topic_id {text!r}: 22 characters of URL-safe base64 expected")
    return text


# ----------------------------------------------------------------------------------------------------------------------
# A partition directory that grows in place, as a broker's own does, and can be continued after any end of the process.
# At every moment its files are what a broker that was killed leaves: whole segments with their indexes and snapshots, and a last segment
# that may end inside a batch. To continue, that tail is cut off and what the last segment tells is derived again.


DERIVED = ("index", "timeindex", "txnindex")


class GrowingPartition(PartitionWriter):
    """A PartitionWriter that continues the content of its directory. `start` names the first segment of an empty one.

    OptionError if the directory belongs to another topic; DataError if it is damaged before its end.
    """

    def __init__(self, folder: Folder, limits: SegmentLimits, *, topic_id: bytes, start: int = 0) -> None:
        super().__init__(folder, limits, log_start=start)
        self.cut = 0
        """The bytes of an unfinished batch that were cut off."""
        names = sorted(os.listdir(folder.path))
        text = base64.urlsafe_b64encode(topic_id).decode().rstrip("=")
        if METADATA in names:
            self._check_id(topic_id)
        elif any(topic_id):
            folder.write(METADATA, metadata_file(text))
        segments = [name for name in names if name.endswith(".log") and segment_file("log")(name) is not None]
        if segments:
            self._continue(names, segments)

    def close(self) -> None:
        """As always. If there is no room for what is derived from the last segment, it is left out: whoever continues derives it again."""
        base = "" if self._index is None else segment_name(self._index.base, "")
        try:
            super().close()
        except OSError:
            for name in sorted(os.listdir(self.folder.path)):
                if base and name.startswith(base) and not name.endswith(".log"):
                    self.folder.remove(name)
            raise

    def abandon(self) -> None:
        """Let go of the open file, also if the end of it cannot be written any more."""
        with contextlib.suppress(OSError):
            super().abandon()
        self._file = None

    def append(self, frames: Frames, head: Heads) -> None:
        """As always; the epochs are written as soon as there are new ones, as a broker does."""
        count = len(self.derivation.epochs.rows)
        super().append(frames, head)
        if len(self.derivation.epochs.rows) > count or EPOCHS not in self.derived:
            self._write(EPOCHS, self.derivation.epochs_file())

    def _check_id(self, wanted: bytes) -> None:
        path = self.folder.path / METADATA
        try:
            uuid = read_topic_id(read_regular(path))
        except (OSError, ValueError) as error:
            raise AccessError(f"{path}: {error}") from None
        if any(wanted) and any(uuid) and uuid != wanted:
            raise OptionError(
                f"{self.folder.named}: it holds another topic of the same name, which was deleted since; record to another place"
            )

    def _continue(self, names: list[str], segments: list[str]) -> None:
        """Take in what is there: all but the last segment by its files, that one by its batches."""
        self.logs, base = list(segments), int(segments[-1].partition(".")[0])
        self.segments = len(segments)
        if not self._load_state(base, names):
            self.derivation = Derivation()
            for name in segments[:-1]:
                self._walk(name, None)
                self.derivation.end_segment()
        for name in names:
            stem, _, kind = name.partition(".")
            if (kind in DERIVED and stem == segment_name(base, "").rstrip(".")) or (
                kind == "snapshot" and int(stem) > base
            ):
                self.folder.remove(name)
            elif kind in (*DERIVED, "snapshot") or name == EPOCHS:
                self.derived[name] = None
        self._index = SegmentIndex(base, self._limits)
        self.end_offset = base
        whole = self._walk(segments[-1], self._index)
        self._has_v2 = self._has_v2 or len(segments) > 1
        size = (self.folder.path / segments[-1]).stat().st_size
        self._file = self.folder.change(segments[-1])
        self.cut = size - whole
        self._file.truncate(whole)
        self._file.seek(whole)

    def _load_state(self, base: int, names: list[str]) -> bool:
        """The producers and epochs where the last segment begins; False if its files do not say it."""
        snapshot = segment_name(base, "snapshot")
        if self.logs[0] == segment_name(base, "log"):
            return True  # the only segment: nothing comes before it
        if snapshot not in names or EPOCHS not in names:
            return False
        try:
            states = _producers_at(self.folder.path / snapshot)
            epochs = parse_epochs(read_regular(self.folder.path / EPOCHS))
        except (RawlogError, OSError):
            return False
        if epochs is None or states is None:
            return False
        self.derivation.producers = Producers.of(states)
        self.derivation.epochs.rows = [(epoch, start) for epoch, start in epochs if start < base]
        return True

    def _walk(self, name: str, index: SegmentIndex | None) -> int:
        """Take in the batches of a segment; where its last whole one ends."""
        from rawlog.formats.kafka import LOG

        path = self.folder.path / name
        file = File(str(path), path.stat().st_size, None, LOG.name)
        reached = 0
        for frames in walk(file, LOG, errors="stop" if index is not None else "raise"):
            head = heads(frames)
            good, error = sound(frames, head)
            if error is not None and index is None:
                raise error.at(path=str(path), format=LOG.name)
            frames, head = frames.slice(0, good), head.slice(0, good)
            if len(frames):
                if index is not None and index.add(frames.sizes, head) < len(frames):
                    raise DataError("a segment that holds more than its limits allow", path=str(path), format=LOG.name)
                self.derivation.add(frames, head)
                self._has_v2 |= bool((head["magic"] == MAGIC_V2).any())
                self.end_offset = int(head["last_offset"][-1]) + 1
                reached = frames.base + int(frames.stops[-1])
            if error is not None:
                break
        return reached


def _producers_at(path: Path) -> dict[int, ProducerState] | None:
    """The producers of a snapshot; None if it is cut."""
    from rawlog.formats.kafka import SNAPSHOT

    states: dict[int, ProducerState] = {}
    for frames in walk(File(str(path), path.stat().st_size, None, SNAPSHOT.name), SNAPSHOT, errors="raise"):
        if frames.status is not Status.OK:
            return None
        raw = SNAPSHOT_ENTRY.take(frames.data, frames.starts)
        states |= {number: ProducerState(*fields) for number, *fields in raw.tolist()}
    return states
