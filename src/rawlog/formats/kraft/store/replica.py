"""Replica: one metadata directory, its log and snapshots, and the state that a controller would load from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog.core.errors import AccessError, DataError, OptionError, RawlogError
from rawlog.core.format import MAX_DECOMPRESSED, MAX_HEADERS, File
from rawlog.core.frames import Frames
from rawlog.formats.kafka.control import control_type
from rawlog.formats.kafka.heads import heads
from rawlog.formats.kafka.internal import read_records
from rawlog.formats.kafka.layouts import Attributes, ControlType
from rawlog.formats.kafka.log import decode_bounded, decode_run, only
from rawlog.formats.kafka.messages import decode_control
from rawlog.formats.kafka.paths import split
from rawlog.formats.kafka.reader import TooMuch
from rawlog.formats.kafka.texts import properties
from rawlog.formats.kraft.paths import BOOTSTRAP, CHECKPOINT_FORMAT, LOG_FORMAT, METADATA_DIRECTORY, snapshot_id
from rawlog.formats.kraft.reader import option
from rawlog.formats.kraft.store.state import State
from rawlog.io.storage import Source, exists
from rawlog.io.walk import walk

COLUMNS = ("value", "offset", "timestamp", "leader_epoch", "is_control", "control_type")
LARGEST_TEXT = 1 << 20


@dataclass(frozen=True, slots=True)
class At:
    """A moment: up to an offset or a time (microseconds), both included; the end if neither is given."""

    offset: int | None = None
    time: int | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> At:
        """The moment that the options atOffset and atTimestamp name. OptionError if they do not, or both are given."""
        offset, time = option(options, "atOffset"), option(options, "atTimestamp")
        if offset is not None and time is not None:
            raise OptionError("atOffset and atTimestamp exclude one another")
        if offset is not None:
            if not offset.strip().isdecimal() or len(offset) > 19:
                raise OptionError(f"atOffset {offset!r}: an offset expected")
            return cls(offset=int(offset))
        return cls() if time is None else cls(time=microseconds(time))


def microseconds(text: str) -> int:
    """A time of an option: ISO 8601 (UTC unless it says otherwise) or epoch milliseconds. OptionError if it is neither."""
    from datetime import UTC, datetime, timedelta

    text = text.strip()
    if text.lstrip("-").isdecimal() and len(text) > 4:
        return int(text) * 1000
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(f"atTimestamp {text!r}: ISO 8601 or epoch milliseconds expected") from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Batch:
    """Records of one file, in order, as lists; what is no metadata is there too, and marked."""

    file: File
    values: list[bytes | None]
    offsets: list[int]
    times: list[int | None]
    epochs: list[int]
    controls: list[bool]
    kinds: list[int | None]


def batches(files: Sequence[File], errors: str) -> Iterator[Batch]:
    """The records of segments or of snapshots of one kind."""
    for one in files:
        for file, batch in read_records([one], COLUMNS, errors, format=str(one.format)):
            times = batch.column("timestamp").cast(pa.int64()).to_pylist()
            rest = [batch.column(name).to_pylist() for name in COLUMNS if name != "timestamp"]
            values, offsets, epochs, controls, kinds = rest
            yield Batch(file, values, offsets, times, epochs, controls, kinds)


@dataclass
class Replica:
    """A metadata directory."""

    folder: str
    segments: list[File] = field(default_factory=list)
    snapshots: list[File] = field(default_factory=list)
    bootstrap: File | None = None

    @cached_property
    def cluster_id(self) -> str | None:
        """The cluster that the log directory says it belongs to."""
        return self.identity.get("cluster.id")

    @cached_property
    def identity(self) -> dict[str, str]:
        """The `meta.properties` beside the metadata directory; empty if there is none to read."""
        path = f"{split(self.folder)[0]}/meta.properties"
        try:
            if not exists(path):
                return {}
            with Source(path) as source:
                return properties(source.read(0, LARGEST_TEXT))
        except (RawlogError, ValueError):
            return {}

    @cached_property
    def end(self) -> tuple[int, int]:
        """The last epoch and the end offset of the log, without decoding it; (-1, 0) if it is empty."""
        from rawlog.formats.kafka import LOG

        for segment in reversed(self.segments):
            found: tuple[int, int] | None = None
            for frames in walk(segment, LOG, errors="stop"):
                head = heads(frames)
                sound = head.sound
                if sound.any():
                    found = int(head["leader_epoch"][sound][-1]), int(head["last_offset"][sound][-1]) + 1
                if not sound.all():
                    break
            if found is not None:
                return found
        return -1, (self.segments[0].place.start_offset or 0) if self.segments else 0

    @property
    def start(self) -> int:
        """The first offset that the log may hold."""
        return (self.segments[0].place.start_offset or 0) if self.segments else 0

    @property
    def is_empty(self) -> bool:
        """Whether the log holds nothing yet, so that a controller would begin it with what the bootstrap file says."""
        return self.end == (-1, 0)

    @property
    def newest_first(self) -> list[File]:
        """The snapshots, whole or not."""
        return sorted(self.snapshots, key=lambda one: snapshot_id(one.path) or (0, 0), reverse=True)

    @property
    def furthest(self) -> tuple[int, int]:
        """How far this replica's knowledge goes: epoch, offset."""
        ids = [(epoch, offset) for offset, epoch in (snapshot_id(one.path) or (0, 0) for one in self.snapshots)]
        return max([self.end, *ids])

    def fold(self, at: At | None = None, errors: str = "raise") -> State:
        """The state at a moment. DataError at damage unless told otherwise; OptionError for a moment that is not known any more."""
        at = at or At()
        state = State()
        base = self._base(at)
        if base is not None:
            offset, epoch = snapshot_id(base.path) or (0, 0)
            self._load(state, base, errors)
            state.end_offset, state.epoch = offset, epoch
        if state.end_offset == 0 and self.is_empty and self.bootstrap is not None:
            self._load(state, self.bootstrap, errors)
        elif base is None and self.start > 0 and (at.offset is not None or at.time is not None):
            raise OptionError(f"{self.folder}: no snapshot is old enough: the log begins at offset {self.start}")
        if base is not None and state.leader is None:
            self._find_leader(state)
        if base is not None and self.end[0] < state.epoch:
            return state  # a controller empties a log that ends in an older epoch than its snapshot
        self._replay(state, at, errors)
        return state

    def _base(self, at: At) -> File | None:
        """The newest snapshot that is not behind the moment."""
        for one in self.newest_first:
            offset, _ = snapshot_id(one.path) or (0, 0)
            if at.offset is not None and offset > at.offset + 1:
                continue
            if at.time is not None and (last_time(one) or 0) * 1000 > at.time:
                continue
            if offset < self.start:
                break  # the log does not reach back to it
            if is_whole(one):
                return one
        return None

    def _load(self, state: State, file: File, errors: str) -> None:
        for batch in batches([file], errors):
            for value, offset, control, kind in zip(
                batch.values, batch.offsets, batch.controls, batch.kinds, strict=True
            ):
                if control:
                    state.add_control(offset, -1 if kind is None else kind, value or b"")
                else:
                    state.add(offset, value or b"")
        time = last_time(file)
        state.timestamp = -1 if time is None else time

    def _find_leader(self, state: State) -> None:
        """A snapshot does not tell who led: the last change of leader in front of its end does, if the log still has it."""
        from rawlog.formats.kafka import LOG

        for segment in reversed(self.segments):
            if (segment.place.start_offset or 0) >= state.end_offset:
                continue
            for frames in walk(segment, LOG, errors="skip"):
                head = heads(frames)
                mask = head.sound & head.has(Attributes.CONTROL) & (head["base_offset"] < state.end_offset)
                chosen, chosen_head = only(frames, mask), head.only(mask)
                if not len(chosen):
                    continue
                try:
                    found = decode_run(chosen, chosen_head, {"key", "value"}, 1 << 24)
                except (DataError, TooMuch):
                    continue
                for key, value in zip(found.arrays["key"].to_pylist(), found.arrays["value"].to_pylist(), strict=True):
                    if control_type(key) == ControlType.LEADER_CHANGE:
                        state.add_control(0, ControlType.LEADER_CHANGE, value or b"")
            if state.leader is not None:
                return

    def _replay(self, state: State, at: At, errors: str) -> None:
        start = state.end_offset
        last = at.offset if at.offset is not None else (1 << 63) - 1
        add, add_control = state.add, state.add_control
        for batch in batches(self._from(start), errors):
            if not batch.offsets or batch.offsets[-1] < start:
                continue
            if batch.offsets[0] > last:
                break
            for index, offset in enumerate(batch.offsets):
                if offset < start:
                    continue
                time = batch.times[index]
                if offset > last or (at.time is not None and time is not None and time > at.time):
                    return
                value = batch.values[index]
                if batch.controls[index]:
                    kind = batch.kinds[index]
                    add_control(offset, -1 if kind is None else kind, value or b"")
                else:
                    add(offset, value or b"")
                state.end_offset = offset + 1
                if time is not None:
                    state.timestamp = time // 1000
            state.epoch = batch.epochs[-1]

    def _from(self, offset: int) -> list[File]:
        """The segments that may hold an offset or what follows it."""
        first = 0
        for number, segment in enumerate(self.segments):
            if (segment.place.start_offset or 0) <= offset:
                first = number
        return self.segments[first:]

    def damage(self) -> Iterator[str]:
        """Every place of the log and the snapshots that cannot be read, in a sentence."""
        from rawlog.formats.kafka import LOG

        for file in [*self.segments, *self.snapshots, *([] if self.bootstrap is None else [self.bootstrap])]:
            reached = 0
            for frames in walk(file, LOG, errors="skip"):
                if frames.base > reached:
                    yield f"{file.path}: byte {reached:,}: {frames.base - reached:,} damaged bytes"
                for index in np.flatnonzero(~sound_batches(frames)).tolist():
                    yield f"{file.path}: byte {int(frames.positions[index]):,}: a batch that cannot be read"
                reached = frames.reached_in_file
                if frames.last and frames.status.is_damage:
                    yield f"{file.path}: byte {reached:,}: {file.size - reached:,} damaged bytes"


def sound_batches(frames: Frames) -> NDArray[np.bool_]:
    """Which batches are what they say, and hold records that can be followed."""
    head = heads(frames)
    found = head.sound.copy()
    for index in np.flatnonzero(found).tolist():
        try:
            one, own = frames.slice(index, index + 1), head.slice(index, index + 1)
            for _ in decode_bounded(one, own, {"offset"}, MAX_DECOMPRESSED, MAX_HEADERS):
                pass
        except DataError:
            found[index] = False
    return found


def last_time(snapshot: File) -> int | None:
    """The time (ms) of the last record that went into a snapshot, as its first record tells; None if it cannot be read."""
    try:
        for batch in batches([snapshot], "raise"):
            if batch.controls and batch.controls[0] and batch.kinds[0] == ControlType.SNAPSHOT_HEADER:
                _, _, message = decode_control(ControlType.SNAPSHOT_HEADER, batch.values[0] or b"")
                return int(message["lastContainedLogTimestamp"])
            return None
    except RawlogError:
        return None
    return None


def is_whole(snapshot: File) -> bool:
    """Whether a snapshot can be read to its end, begins with its header and ends with its footer."""
    first = last = None
    footers = 0
    try:
        for batch in batches([snapshot], "raise"):
            for control, kind in zip(batch.controls, batch.kinds, strict=True):
                last = kind if control else -1
                first = last if first is None else first
                footers += last == ControlType.SNAPSHOT_FOOTER
    except (DataError, AccessError):
        return False
    return first == ControlType.SNAPSHOT_HEADER and last == ControlType.SNAPSHOT_FOOTER and footers == 1


def replicas(files: Sequence[File]) -> list[Replica]:
    """The metadata directories among some files. AccessError for a file that cannot be read."""
    found: dict[str, Replica] = {}
    for file in files:
        if file.place.state is not None or file.format not in (LOG_FORMAT, CHECKPOINT_FORMAT):
            continue
        if file.problem is not None:
            raise AccessError(f"{file.path}: {file.problem}")
        folder, name = split(file.path)
        if name == BOOTSTRAP:
            folder = f"{folder}/{METADATA_DIRECTORY}" if folder else METADATA_DIRECTORY
            found.setdefault(folder, Replica(folder)).bootstrap = file
        elif file.format == LOG_FORMAT:
            found.setdefault(folder, Replica(folder)).segments.append(file)
        else:
            found.setdefault(folder, Replica(folder)).snapshots.append(file)
    for replica in found.values():
        replica.segments.sort(key=lambda one: one.place.start_offset or 0)
    return list(found.values())


def units(table: str, files: Sequence[File]) -> dict[str, list[File]]:
    """The files of each cluster, whose replicas tell one state; for the table of records, those of each directory."""
    found: dict[str, list[File]] = {}
    names: dict[str, str] = {}
    for file in files:
        folder = split(file.path)[0]
        if table != "kraft.metadata":
            home = f"{folder}/{METADATA_DIRECTORY}" if split(file.path)[1] == BOOTSTRAP else folder
            names[home] = names[home] if home in names else Replica(home).cluster_id or home
            folder = names[home]
        found.setdefault(folder, []).append(file)
    return found


def clusters(files: Sequence[File]) -> list[Replica]:
    """Of each cluster the replica that knows most; directories that do not say whose they are count for themselves."""
    best: dict[str, Replica] = {}
    for replica in replicas(files):
        name = replica.cluster_id or replica.folder
        if name not in best or best[name].furthest < replica.furthest:
            best[name] = replica
    return list(best.values())
