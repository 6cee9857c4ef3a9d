"""A store as a whole: what its commit log contains, where it ends, what a broker derives from it.

What one pass over a commit-log file finds is a `LogSummary`: where a broker's scan of the file ends, and the queue units and index keys
that its messages give. Summaries of neighbouring bytes merge, in order; those of all files are what the rules over a store compare the
other files with, so that the log is read once.

Units and keys are kept small: differences of neighbouring values in as few bytes as they take, compressed. A message takes about 3 bytes,
and 5 more for each key: 100 million messages with two keys are 1.3 GB of summaries. Rules unpack one queue at a time (48 bytes per message
of that queue), and the keys of 262,144 messages at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog.formats.rocketmq import COMMIT_LOG
from rawlog.formats.rocketmq.kernels import entries as kernels
from rawlog.formats.rocketmq.layouts import (
    BLANK,
    CHECKPOINT,
    DLEDGER_BLANK_MAGIC,
    MAGIC_BLANK,
)
from rawlog.formats.rocketmq.messages import Messages
from rawlog.formats.rocketmq.store import dispatch, state
from rawlog.formats.rocketmq.store.dispatch import (
    COLUMNS,
    D_PHYSICAL,
    K_ADDRESS,
    K_HASH,
    K_OF_TAG,
    DerivedEntries,
    Pending,
    Queue,
)
from rawlog.formats.rocketmq.store.settings import Settings, settings_of
from rawlog.io.storage import Source
from rawlog.io.walk import walk
from rawlog.model.errors import RawlogError
from rawlog.model.format import File
from rawlog.model.frames import Frames
from rawlog.model.status import Status
from rawlog.model.store import Look, Panel, Store
from rawlog.model.text import plain_time
from rawlog.model.verb import Line, Section, Tone

PACKED_AT = 1 << 18
"""Messages after which a summary packs their units and keys: the most that are in memory unpacked."""
_SMALL = (np.int8, np.int16, np.int32)


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Compressed rows of whole numbers: per row its first value, the type of the rest, whether these are differences, and the bytes."""

    count: int
    rows: tuple[tuple[int, str, bool, bytes], ...]

    @classmethod
    def of(cls, values: NDArray[np.int64]) -> PackedRows:
        return cls(int(values.shape[1]), tuple(_pack_row(row) for row in values) if values.shape[1] else ())

    def unpack(self) -> NDArray[np.int64]:
        values = np.empty((len(self.rows), self.count), np.int64)
        for row, (first, type, is_difference, data) in zip(values, self.rows, strict=True):
            kind = np.dtype(type)
            raw = pa.decompress(data, (self.count - 1) * kind.itemsize, "zstd") if self.count > 1 else b""
            row[0], row[1:] = first, np.frombuffer(raw, kind)
            if is_difference:
                np.cumsum(row, out=row)
        return values

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        return sum(len(data) for _, _, _, data in self.rows)


def _pack_row(row: NDArray[np.int64]) -> tuple[int, str, bool, bytes]:
    differences = row[1:] - row[:-1]  # may wrap, and wraps back when it is unpacked
    plain, steps = _narrow(row[1:]), _narrow(differences)
    is_difference = steps.itemsize <= plain.itemsize
    narrow = steps if is_difference else plain
    data = bytes(pa.compress(narrow.tobytes(), "zstd", asbytes=True)) if narrow.size else b""
    return int(row[0]), narrow.dtype.str, is_difference, data


def _narrow(values: NDArray[np.int64]) -> NDArray[np.signedinteger]:
    low, high = (int(values.min()), int(values.max())) if values.size else (0, 0)
    for type in _SMALL:
        if np.iinfo(type).min <= low and high <= np.iinfo(type).max:
            return values.astype(type)
    return values


@dataclass(slots=True)
class LogSummary:
    """A commit-log file or a part of it: where a broker's scan ends and why, sound messages after that, units and keys."""

    file: File
    start: int
    end: int = 0
    ends_with: str = "zeros"  # blank, zeros, damage, checksum, stale, torn
    is_ended: bool = False
    first_time: int = 0
    last_time: int = 0
    messages: int = 0
    #: Sound messages after the end.
    after: int = 0
    #: Whether a message contradicts the checksum of the whole entry.
    has_wrong_entry: bool = False
    is_dledger: bool = False
    fillers: list[int] = field(default_factory=list)
    units: dict[Queue, list[PackedRows]] = field(default_factory=dict)
    keys: list[PackedRows] = field(default_factory=list)
    delayed: list[PackedRows] = field(default_factory=list)
    #: Transactions that are open at its end, and messages whose time has not come.
    pending: Pending = field(default_factory=Pending)
    is_seen: bool = False
    status: Status = Status.OK
    _derived: DerivedEntries = field(default_factory=DerivedEntries)

    def __post_init__(self) -> None:
        self._derived.pending = self.pending

    @property
    def stop(self) -> int:
        return self.start + self.file.size

    @property
    def rises(self) -> bool:
        """Whether summaries merged in order: always, as a split begins where the one before ends."""
        return True

    def see(self, frames: Frames) -> None:
        """Take in the next window."""
        rows = Messages.take(frames, self.file)
        sound = rows.crc_ok & ~rows.stale
        self.is_seen, self.status = True, frames.status
        if self.is_ended:
            self.after += int(sound.sum())
        elif sound.all():
            self._add(rows, frames.reached_in_file)
        else:
            bad = int(np.argmin(sound))
            self.is_ended, self.ends_with = True, "stale" if rows.stale[bad] else "checksum"
            self._add(rows.cut(0, bad), rows.frame_position(bad))
            self.after += int(sound[bad:].sum())
        good = rows.where(sound)
        self.has_wrong_entry |= not bool(good.entry_crc_ok.all()) or bool(good.are_properties_cut.any())
        self.is_dledger |= bool((rows[kernels.F_START] != frames.starts[rows[kernels.F_FRAME]]).any())
        dispatch.derive_from(good, self._derived)
        self.fillers += good[kernels.F_PHYSICAL][good.fillers].tolist()
        if not self.is_ended and len(frames):
            last = int(frames.starts[-1])
            first, second = np.frombuffer(bytes(frames.data[last : last + BLANK.size]), ">i4").tolist()
            if second == MAGIC_BLANK or first == DLEDGER_BLANK_MAGIC:
                self.is_ended, self.ends_with, self.end = True, "blank", frames.base + last
        if not self.is_ended and frames.status.is_damage:
            self.is_ended, self.ends_with = True, "damage"
        if self._derived.messages >= PACKED_AT:
            self._pack()

    def _add(self, rows: Messages, end: int) -> None:
        if len(rows):
            times = rows[kernels.F_STORE_TIME]
            self.first_time = self.first_time or int(times[0])
            self.last_time = int(times[-1])
            self.messages += len(rows)
        self.end = end

    def _pack(self) -> None:
        derived, self._derived = self._derived, DerivedEntries(pending=self.pending)
        for queue in derived.units:
            self.units.setdefault(queue, []).append(PackedRows.of(derived.queue(queue)))
        keys = derived.keys(with_tags=True)
        if keys.shape[1]:
            self.keys.append(PackedRows.of(keys[[K_HASH, K_ADDRESS, K_OF_TAG]]))
        if derived.delayed:
            self.delayed.append(PackedRows.of(np.concatenate(derived.delayed, axis=1)))

    def close(self) -> LogSummary:
        """The same, small."""
        self._pack()
        self._derived = DerivedEntries()
        if not self.is_seen and self.file.size:
            self.ends_with = "damage"  # the walk failed at once: a finding of its own
        elif not self.is_ended and self.status is Status.TRUNCATED:
            self.ends_with = "torn"
        return self

    def merge(self, following: LogSummary) -> LogSummary:
        """Take in the summary of the bytes that follow."""
        if self.is_ended:
            self.after += following.messages + following.after
        else:
            self.first_time = self.first_time or following.first_time
            self.last_time = following.last_time or self.last_time
            self.messages, self.after = self.messages + following.messages, following.after
            # Bytes without a message, such as zeros up to the end of the file, move no end.
            self.end = following.end if following.messages else self.end
            self.ends_with, self.is_ended = following.ends_with, following.is_ended
        self.has_wrong_entry |= following.has_wrong_entry
        self.is_dledger |= following.is_dledger
        self.status = following.status
        self.fillers += following.fillers
        for queue, pieces in following.units.items():
            self.units.setdefault(queue, []).extend(pieces)
        self.keys += following.keys
        self.delayed += following.delayed
        self.pending.merge(following.pending)
        return self

    @property
    def size(self) -> int:
        """Bytes that the units and keys take."""
        pieces = [piece for parts in self.units.values() for piece in parts]
        return sum(piece.size for piece in (*pieces, *self.keys, *self.delayed))


def summary(file: File, group: Sequence[File], start: int, stop: int | None) -> LogSummary:
    """The summary of a commit-log file from one byte to another, to be shown each window."""
    return LogSummary(file, file.place.start_offset or 0, end=start)


def summarise(file: File) -> LogSummary:
    """The summary of a file that no pass has seen."""
    log = summary(file, (), 0, None)
    try:
        for frames in walk(file, COMMIT_LOG, errors="skip"):
            log.see(frames)
    except RawlogError:
        log.ends_with = "damage"
        log.is_ended = True
    return log.close()


class View:
    """The files of one store, and what they must contain by its commit log."""

    def __init__(self, files: Store) -> None:
        self.files = files
        self.root = str(files[0].place.group)
        self.logs: list[LogSummary] = []
        for file in dispatch.commit_logs(self.of(COMMIT_LOG.name)):
            self.logs.append(files.summaries.get(file.path) or summarise(file))
        self.fillers = [address for log in self.logs for address in log.fillers]
        self._delayed: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    @property
    def settings(self) -> Settings:
        return self.files.share(settings_of)

    @property
    def begin(self) -> int:
        return self.logs[0].start if self.logs else 0

    @property
    def end(self) -> int:
        """The address after the last sound message of the whole log."""
        return max((log.start + log.end for log in self.logs if log.messages), default=self.begin)

    def of(self, format: str) -> list[File]:
        """The readable files of a format that the broker loads."""
        return [
            file for file in self.files if file.format == format and file.place.state is None and file.problem is None
        ]

    @property
    def is_unclean(self) -> bool:
        return bool(self.of("rocketmq.abort"))

    def log_at(self, address: int) -> tuple[str, int] | None:
        """The commit-log file with an address, and the position there."""
        logs = (log for log in self.logs if log.start <= address < log.stop)
        return next(((log.file.path, address - log.start) for log in logs), None)

    # What the log gives

    def derived_queues(self) -> list[Queue]:
        """The queues that the log has messages of, sorted."""
        return sorted({queue for log in self.logs for queue in log.units})

    def units(self, queue: Queue) -> NDArray[np.int64]:
        """The units that a queue must have (`dispatch.U_…`), in order."""
        pieces = [piece.unpack() for log in self.logs for piece in log.units.get(queue, ())]
        units = np.concatenate(pieces, axis=1) if pieces else np.empty((COLUMNS, 0), np.int64)
        if units.size and dispatch.is_scheduled(queue):
            dispatch.set_tags(units, *self._due())
        return units

    def _due(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The addresses of delayed messages, and when these are due."""
        if self._delayed is None:
            pieces = [piece.unpack() for log in self.logs for piece in log.delayed if piece.count]
            if pieces:
                delayed = np.concatenate(pieces, axis=1)
                self._delayed = delayed[D_PHYSICAL], dispatch.due_times(delayed, self.settings.delays)[0]
            else:
                self._delayed = np.empty(0, np.int64), np.empty(0, np.int64)
        return self._delayed

    @cached_property
    def pending(self) -> Pending:
        """What the whole log leaves undecided."""
        pending = Pending()
        for log in self.logs:
            pending.merge(log.pending)
        return pending

    def key_runs(self) -> Iterator[NDArray[np.int64]]:
        """The hashes of index keys, the addresses of their messages, and whether each is a tag, in order, in parts."""
        for log in self.logs:
            for piece in log.keys:
                yield piece.unpack()

    # What the files next to it have

    def queues(self, format: str) -> dict[Queue, list[File]]:
        """The files of each queue, in order."""
        by_queue: dict[Queue, list[File]] = {}
        for file in self.of(format):
            by_queue.setdefault((str(file.place.topic), int(file.place.partition or 0)), []).append(file)
        for files in by_queue.values():
            files.sort(key=lambda file: file.place.start_offset or 0)
        return by_queue

    def checkpoint(self) -> dict[str, int] | None:
        """The values of the checkpoint by name."""
        for file in self.of("rocketmq.checkpoint"):
            with Source(file.path) as source:
                raw = source.read(0, CHECKPOINT.size)
            if len(raw) == CHECKPOINT.size:
                row = np.frombuffer(raw, CHECKPOINT.dtype)[0]
                return {name: int(row[name]) for name in CHECKPOINT.dtype.names or ()}
        return None


def views(files: Sequence[File]) -> Iterator[View]:
    """The view of a store, computed once for all rules; none for files without a store."""
    if files and files[0].place.group is not None:
        yield Store.of(files).share(View)


# ----------------------------------------------------------------------------------------------------------------------
# What `report` shows of a RocketMQ store: kinds of messages, queues, delayed messages.


MOST = 500


def inventory(files: Store) -> Section | None:
    """The queues with their messages, offsets and times, and how far the group is that is furthest behind."""
    queues = sorted(state.queues_of(files).items(), key=lambda item: (state.is_system(item[0][1]), *item[0][1:]))
    if not queues:
        return None
    logs = dispatch.commit_logs(files)
    lags: dict[tuple[str, int], tuple[int, str]] = {}
    for group in state.consumer_groups(files, "skip"):
        for position in group.positions:
            key = position.topic, position.partition
            if position.lag is not None and (key not in lags or position.lag > lags[key][0]):
                lags[key] = position.lag, group.name
    rows = []
    for (_, topic, queue), bounds in queues:
        lag = lags.get((topic, queue))
        rows.append(
            (
                topic,
                str(queue),
                f"{bounds.high - bounds.low:,}",
                f"{bounds.low:,}",
                f"{bounds.high:,}",
                _stored_at(logs, bounds.first),
                _stored_at(logs, bounds.last),
                "" if lag is None else f"{lag[0]:,} {lag[1]}",
            )
        )
    head = ("topic", "queue", "messages", "min offset", "max offset", "first", "last", "lag")
    return Section("queues", rows, None, head)


def _stored_at(logs: Sequence[File], address: int | None) -> str:
    """When a message was stored; empty if it cannot be read."""
    try:
        message = None if address is None else dispatch.message_at(logs, address)
    except RawlogError:
        return ""
    return "" if message is None else plain_time(int(message[kernels.F_STORE_TIME][0]) * 1000)


def overview(files: Store) -> Iterator[Panel]:
    """The queues with their offsets, and the delay levels with what waits in them."""
    queues = [
        (topic, str(queue), f"{low:,}", f"{high:,}", f"{high - low:,}")
        for (_, topic, queue), (low, high) in sorted(state.queue_bounds(files).items(), key=lambda item: item[0][1:])
    ]
    head = ("topic", "queue", "first offset", "next offset", "messages")
    about = "As the consume queues have them. Messages whose commit log was deleted do not count."
    yield Panel("rocketmq", Section("Queues", queues, MOST, head), about, path=files.path)
    delays = [
        (
            str(row["level"]),
            Line(f"{row['pending'] or 0:,}", Tone.CHANGED if row["pending"] else None),
            "" if row["delay_ms"] is None else _duration(row["delay_ms"]),
            f"{row['offset']:,}",
            "" if row["max_offset"] is None else f"{row['max_offset']:,}",
        )
        for batch in state.delays(files, {})
        for row in batch.to_pylist()
    ]
    head = ("delay level", "waiting", "delay", "delivered up to", "next offset")
    about = "Delayed messages that were not delivered yet. They are delivered when a broker runs on the store and their time has come."
    yield Panel("rocketmq", Section("Delayed messages", delays, None, head), about, Look.BARS, files.path)


def _duration(milliseconds: int) -> str:
    for unit, size in (("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if milliseconds >= size and milliseconds % size == 0:
            return f"{milliseconds // size} {unit}"
    return f"{milliseconds:,} ms"
