"""MetadataStore: the files of one metadata directory, and the state that a controller would load from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rawlog.core.errors import AccessError, DataError, OptionError, RawlogError
from rawlog.core.findings import Few
from rawlog.core.format import File
from rawlog.core.store import Copies, Store
from rawlog.formats.kafka.control import control_type
from rawlog.formats.kafka.heads import heads
from rawlog.formats.kafka.layouts import Attributes, ControlType
from rawlog.formats.kafka.log import decode_run, only
from rawlog.formats.kafka.messages import decode_control
from rawlog.formats.kafka.paths import METADATA_TOPIC, split
from rawlog.formats.kafka.reader import TooMuch
from rawlog.formats.kafka.texts import properties
from rawlog.formats.kraft.paths import BOOTSTRAP, CHECKPOINT_FORMAT, LOG_FORMAT, METADATA_DIRECTORY, snapshot_id
from rawlog.formats.kraft.reader import option
from rawlog.formats.kraft.store.contents import Contents, Rows, read_contents, read_rows, sound_batches
from rawlog.formats.kraft.store.state import State
from rawlog.io.storage import Source, exists
from rawlog.io.walk import walk

LARGEST_TEXT = 1 << 20


@dataclass(frozen=True, slots=True)
class At:
    """A moment: up to an offset or a time (microseconds), both included; the end if neither is given."""

    offset: int | None = None
    time: int | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> At:
        """The moment that the options atOffset and atTimestamp name. OptionError if they are invalid, or both are given."""
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


# One directory -----------------------------------------------------------------------------------------------------------


class MetadataStore(Store):
    """A metadata directory: the segments of its log, its snapshots, and the bootstrap file next to it."""

    def __init__(
        self, files: Sequence[File], folder: str | None = None, summaries: Mapping[str, Contents] | None = None
    ) -> None:
        super().__init__(files)
        self.folder = folder if folder is not None else split(self.files[0].path)[0]
        self.summaries = dict(summaries or {})
        logs = [file for file in self.files if file.format == LOG_FORMAT]
        self.segments = sorted(logs, key=lambda one: one.place.start_offset or 0)
        self.bootstrap = next((file for file in self.files if split(file.path)[1] == BOOTSTRAP), None)
        self.snapshots = [one for one in self.files if one.format == CHECKPOINT_FORMAT and one is not self.bootstrap]

    def __reduce__(self) -> tuple[object, ...]:
        return (MetadataStore, (self.files, self.folder, self.summaries))

    # Asking it ---------------------------------------------------------------------------------------------------------

    @cached_property
    def cluster_id(self) -> str | None:
        """The cluster that the log directory says it belongs to."""
        return self.identity.get("cluster.id")

    @cached_property
    def identity(self) -> dict[str, str]:
        """The `meta.properties` next to the metadata directory; empty if it is missing or cannot be read."""
        path = f"{split(self.folder)[0]}/meta.properties"
        try:
            if not exists(path):
                return {}
            with Source(path) as source:
                return properties(source.read(0, LARGEST_TEXT))
        except (RawlogError, ValueError):
            return {}

    def contents(self, file: File) -> Contents:
        """What a pass over one of the files found; the file is read if there was none yet."""
        found = self.summaries.get(file.path)
        if found is None:
            found = self.summaries[file.path] = read_contents(file)
        return found

    def is_whole(self, snapshot: File) -> bool:
        """Whether a snapshot can be read to its end, begins with its header and ends with its footer."""
        try:
            return self.contents(snapshot).is_whole
        except AccessError:
            return False

    def rows(self, files: Sequence[File], errors: str) -> Iterator[Rows]:
        """The records of files, from what a pass kept where there was one."""
        for file in files:
            seen: Contents | None = self.summaries.get(file.path)
            if seen is None or seen.pieces is None or (seen.is_damaged and errors != "skip"):
                yield from read_rows([file], errors)
            else:
                yield from seen.rows()

    @cached_property
    def end(self) -> tuple[int, int]:
        """The last epoch and the end offset of the log, without decoding it; (-1, 0) if it is empty."""
        for segment in reversed(self.segments):
            seen: Contents | None = self.summaries.get(segment.path)
            found = _end_of(segment) if seen is None else seen.end
            if found is not None:
                return found
        return -1, self.start

    @property
    def start(self) -> int:
        """The first offset that the log may hold."""
        return (self.segments[0].place.start_offset or 0) if self.segments else 0

    @property
    def first(self) -> int:
        """The offset of the first sound batch of the log; where it may begin, if there is none."""
        found = (self.contents(segment).first for segment in self.segments)
        return next((one for one in found if one is not None), self.start)

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
        """How far this directory's knowledge goes: epoch, offset."""
        ids = [(epoch, offset) for offset, epoch in (snapshot_id(one.path) or (0, 0) for one in self.snapshots)]
        return max([self.end, *ids])

    def missing(self, traced: int = 0) -> list[tuple[int, int]]:
        """The runs of offsets (half-open) that neither the log nor, before its beginning or after its end, a whole snapshot has. `traced`
        is an offset that the log had reached.
        """
        whole = [snapshot_id(one.path) or (0, 0) for one in self.snapshots if self.is_whole(one)]
        found: list[tuple[int, int]] = []
        if self.first > 0 and not any(offset >= self.first for offset, _ in whole):
            found.append((max((offset for offset, _ in whole), default=0), self.first))
        reached = max([self.end[1], *(offset for offset, _ in whole)])
        found += [(reached, traced)] if reached < traced else []
        return sorted([*found, *self.gaps[1]])

    @cached_property
    def gaps(self) -> tuple[Few, list[tuple[int, int]]]:
        """Where the offsets of the log do not follow one another, and the runs of offsets that are missing there."""
        marks, missing = Few(), []
        end: int | None = None
        for segment in self.segments:
            seen = self.contents(segment)
            before = Contents(segment, following=end)
            before.meet(seen)
            for one in (before, seen):
                marks.join(one.gaps)
                missing += one.missing
            end = end if seen.following is None else seen.following
        return marks, missing

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

    # The state ---------------------------------------------------------------------------------------------------------

    def fold(self, at: At | None = None, errors: str = "raise") -> State:
        """The state at a moment. DataError at damage unless `errors` says otherwise; OptionError for a moment that is not known any
        more.
        """
        at = at or At()
        state = State()
        base = self._base(at)
        if base is not None:
            offset, epoch = snapshot_id(base.path) or (0, 0)
            self.load(state, base, errors)
            state.end_offset, state.epoch = offset, epoch
        if state.end_offset == 0 and self.is_empty and self.bootstrap is not None:
            self.load(state, self.bootstrap, errors)
        elif base is None and self.start > 0 and (at.offset is not None or at.time is not None):
            raise OptionError(f"{self.folder}: no snapshot is old enough: the log begins at offset {self.start}")
        if base is not None and state.leader is None:
            self._find_leader(state)
        if base is not None and self.end[0] < state.epoch:
            return state  # a controller empties a log that ends in an older epoch than its snapshot
        self._replay(state, at, errors)
        return state

    def _base(self, at: At) -> File | None:
        """The newest snapshot that is not after the moment."""
        for one in self.newest_first:
            offset, _ = snapshot_id(one.path) or (0, 0)
            if at.offset is not None and offset > at.offset + 1:
                continue
            if at.time is not None and (last_time(one, self) or 0) * 1000 > at.time:
                continue
            if offset < self.start:
                break  # the log does not reach back to it
            if self.is_whole(one):
                return one
        return None

    def load(self, state: State, file: File, errors: str) -> None:
        """Take the records of a snapshot or bootstrap file into a state."""
        state.timestamp = -1
        for rows in self.rows([file], errors):
            for value, offset, control, kind in zip(rows.values, rows.offsets, rows.controls, rows.kinds, strict=True):
                if not control:
                    state.add(offset, value or b"")
                    continue
                state.add_control(offset, -1 if kind is None else kind, value or b"")
                if kind == ControlType.SNAPSHOT_HEADER and state.timestamp < 0:
                    state.timestamp = _last_contained(value or b"")

    def _find_leader(self, state: State) -> None:
        """A snapshot does not say who led: the last change of leader before its end does, if the log still has it."""
        from rawlog.formats.kafka import LOG

        for segment in reversed(self.segments):
            if (segment.place.start_offset or 0) >= state.end_offset or segment.path in self.summaries:
                continue  # whoever has summaries checks the state, of which the leader is no part
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
        for rows in self.rows(self._from(start), errors):
            if not rows.offsets or rows.offsets[-1] < start:
                continue
            if rows.offsets[0] > last:
                break
            for index, offset in enumerate(rows.offsets):
                if offset < start:
                    continue
                time = rows.times[index]
                if offset > last or (at.time is not None and time is not None and time > at.time):
                    return
                value = rows.values[index]
                if rows.controls[index]:
                    kind = rows.kinds[index]
                    add_control(offset, -1 if kind is None else kind, value or b"")
                else:
                    add(offset, value or b"")
                state.end_offset = offset + 1
                if time is not None:
                    state.timestamp = time // 1000
            state.epoch = rows.epochs[-1]

    def _from(self, offset: int) -> list[File]:
        """The segments that may hold an offset or what follows it."""
        first = 0
        for number, segment in enumerate(self.segments):
            if (segment.place.start_offset or 0) <= offset:
                first = number
        return self.segments[first:]


def _end_of(segment: File) -> tuple[int, int] | None:
    """The last epoch and the offset after the last batch before any damage; None if there is no such batch."""
    from rawlog.formats.kafka import LOG

    found: tuple[int, int] | None = None
    for frames in walk(segment, LOG, errors="stop"):
        head = heads(frames)
        good = len(frames) if head.all_sound else int(np.argmin(head.sound))
        if good:
            found = int(head["leader_epoch"][good - 1]), int(head["last_offset"][good - 1]) + 1
        if good < len(frames):
            break
    return found


def last_time(snapshot: File, store: MetadataStore | None = None) -> int | None:
    """The time (ms) of the last record that went into a snapshot, as its first record says; None if it cannot be read."""
    try:
        for rows in read_rows([snapshot], "raise") if store is None else store.rows([snapshot], "raise"):
            if rows.controls and rows.controls[0] and rows.kinds[0] == ControlType.SNAPSHOT_HEADER:
                time = _last_contained(rows.values[0] or b"")
                return None if time < 0 else time
            return None
    except RawlogError:
        return None
    return None


def is_misnamed(offset: int, time: int | None, last: int) -> bool:
    """Whether a snapshot is of another offset than its name says: the last record before that offset has another time (`last`) than the
    one that the snapshot has of its last record. Times are milliseconds.
    """
    return offset > 0 and time is not None and time != last


def _last_contained(header: bytes) -> int:
    """The time (ms) in the header of a snapshot; -1 if it cannot be read."""
    try:
        _, _, message = decode_control(ControlType.SNAPSHOT_HEADER, header)
    except DataError:
        return -1
    return int(message["lastContainedLogTimestamp"])


# Several directories -----------------------------------------------------------------------------------------------------


def stores(files: Sequence[File]) -> list[MetadataStore]:
    """The metadata directories among some files that hold a log or a snapshot. AccessError for a file that cannot be read."""
    found: dict[str, list[File]] = {}
    for file in files:
        if file.place.state is not None or file.format not in (LOG_FORMAT, CHECKPOINT_FORMAT):
            continue
        if file.problem is not None:
            raise AccessError(f"{file.path}: {file.problem}")
        found.setdefault(_folder_of(file), []).append(file)
    summaries = Store.of(files).summaries
    return [MetadataStore(own, folder, summaries) for folder, own in found.items()]


def _folder_of(file: File) -> str:
    """The metadata directory that a file is in; of a bootstrap file, the one next to it."""
    folder, name = split(file.path)
    if name != BOOTSTRAP:
        return folder
    return f"{folder}/{METADATA_DIRECTORY}" if folder else METADATA_DIRECTORY


def units(table: str, files: Sequence[File]) -> dict[str, list[File]]:
    """The files of each cluster, whose replicas hold one state; for the table of records, those of each directory."""
    found: dict[str, list[File]] = {}
    names: dict[str, str] = {}
    for file in files:
        name = split(file.path)[0]
        if table != "kraft.metadata":
            folder = _folder_of(file)
            names[folder] = names[folder] if folder in names else MetadataStore((), folder).cluster_id or folder
            name = names[folder]
        found.setdefault(name, []).append(file)
    return found


def clusters(files: Sequence[File]) -> list[MetadataStore]:
    """Of each cluster the directory that knows most; directories that do not say whose they are count for themselves."""
    best: dict[str, MetadataStore] = {}
    for store in stores(files):
        name = store.cluster_id or store.folder
        if name not in best or best[name].furthest < store.furthest:
            best[name] = store
    return list(best.values())


def copies(stores: Sequence[Store]) -> list[Copies]:
    """The metadata directories of the controllers of one cluster, the best first. A snapshot's name says how far it goes."""
    from rawlog.formats.kafka.store.copies import copies as partition_copies

    return partition_copies(stores, _snapshot_end)


def _snapshot_end(store: Store) -> tuple[int, int]:
    """The epoch and the offset that the last snapshot of a directory reaches."""
    ids = [snapshot_id(file.path) for file in store if file.format == CHECKPOINT_FORMAT and file.place.state is None]
    return max(((epoch, offset) for offset, epoch in filter(None, ids)), default=(-1, 0))


def traced_end(files: Sequence[File]) -> int:
    """An offset that the log of a metadata directory had reached at least, as other files in it say; 0 if none does."""
    ends = [0]
    for file in files:
        if file.problem is not None or file.place.topic != METADATA_TOPIC or file.place.state is not None:
            continue
        if file.format == "kafka.snapshot":
            ends.append(file.place.start_offset or 0)
        elif file.format == "kafka.epochs":
            with Source(file.path) as source:
                ends.append(int(source.read(0, LARGEST_TEXT).split() not in ([], [b"0", b"0"])))
    return max(ends)
