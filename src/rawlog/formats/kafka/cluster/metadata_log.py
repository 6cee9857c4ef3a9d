"""MetadataStore: the files of one metadata directory, and the state that a controller would load from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rawlog.formats.kafka.cluster.metadata import COLUMNS, option
from rawlog.formats.kafka.cluster.metadata_batches import LogBatches, Replay, can_decode
from rawlog.formats.kafka.cluster.state import State
from rawlog.formats.kafka.internal.messages import (
    control_type,
    decode_control,
    decode_record,
    frame_head,
    framed_types,
)
from rawlog.formats.kafka.internal.topics import read_records
from rawlog.formats.kafka.log.heads import Heads, heads
from rawlog.formats.kafka.log.layouts import NONE, Attributes, ControlType
from rawlog.formats.kafka.log.records import TooMuch
from rawlog.formats.kafka.log.segment import decode_run, decode_stored, only
from rawlog.formats.kafka.partition.outline import Outline, Side, outline
from rawlog.formats.kafka.partition.segment_outline import PlainExtent
from rawlog.formats.kafka.paths import (
    BOOTSTRAP,
    CHECKPOINT_FORMAT,
    LARGEST_OFFSET,
    LOG_FORMAT,
    METADATA_DIRECTORY,
    METADATA_TOPIC,
    is_metadata_log,
    snapshot_id,
    split,
)
from rawlog.formats.kafka.tables import KAFKA_RECORDS
from rawlog.formats.kafka.texts import properties
from rawlog.io.storage import Source, exists
from rawlog.io.walk import walk
from rawlog.model.errors import AccessError, DataError, OptionError, RawlogError
from rawlog.model.finding import Few, Mark
from rawlog.model.format import NO_TIME, File, Want
from rawlog.model.frames import Frames
from rawlog.model.outline import Intervals
from rawlog.model.status import Status
from rawlog.model.store import Copies, Store
from rawlog.model.text import counted, parse_time

# ----------------------------------------------------------------------------------------------------------------------
# Contents: what one pass over a segment of a metadata log, or over a snapshot, finds for everybody who compares files.


#: Contents keep so many compressed bytes of records for one file; of a larger file the records are read again where they are needed.
MOST_KEPT = 32 << 20
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd")


@dataclass(frozen=True)
class MetadataRows:
    """Records of one file in order, with COLUMNS of `kafka.records`; control records are among them, and marked. Times are microseconds."""

    file: File
    batch: pa.RecordBatch

    @cached_property
    def values(self) -> list[bytes | None]:
        return self._list("value")

    @cached_property
    def offsets(self) -> list[int]:
        return self._list("offset")

    @cached_property
    def times(self) -> list[int | None]:
        return self.batch.column("timestamp").cast(pa.int64()).to_pylist()  # type: ignore[no-any-return]

    @cached_property
    def epochs(self) -> list[int]:
        return self._list("leader_epoch")

    @cached_property
    def controls(self) -> list[bool]:
        return self._list("is_control")

    @cached_property
    def kinds(self) -> list[int | None]:
        return self._list("control_type")

    @cached_property
    def positions(self) -> list[int]:
        return self._list("batch_position")

    def _list(self, name: str) -> list[Any]:
        return self.batch.column(name).to_pylist()  # type: ignore[no-any-return]


def read_rows(files: Sequence[File], errors: str) -> Iterator[MetadataRows]:
    """The records of segments or of snapshots of one kind, read from the files."""
    for log_file in files:
        for file, batch in read_records([log_file], COLUMNS, errors, format=str(log_file.format)):
            yield MetadataRows(file, batch)


@dataclass(slots=True)
class Contents:
    """What a pass over a segment or a snapshot found. That of the split that follows merges into it."""

    file: File
    #: The records, compressed; None if they are too large to keep.
    pieces: list[bytes] | None = field(default_factory=list)
    #: Where the sound batches begin and end: first offset, its place in the file, and the offset after the last.
    first: int | None = None
    first_position: int = 0
    following: int | None = None
    #: The records in control batches.
    controls: int = 0
    #: The last epoch and the offset after the last batch before any damage; None: no batch is there.
    end: tuple[int, int] | None = None
    is_damaged: bool = False
    #: The first and last record by type (-1: not a control record), and how many footers there are.
    kinds: tuple[int, int] | None = None
    footers: int = 0
    gaps: Few = field(default_factory=Few)
    shapes: Few = field(default_factory=Few)
    #: Its batches for the outline of the log; None if bytes of the file are no batch.
    plain: PlainExtent | None = None

    @property
    def rises(self) -> bool:
        """Whether merging splits gives what one pass would: always."""
        return True

    @property
    def is_whole(self) -> bool:
        """Whether a snapshot can be read to its end, begins with its header and ends with its footer."""
        ends = (int(ControlType.SNAPSHOT_HEADER), int(ControlType.SNAPSHOT_FOOTER))
        return not self.is_damaged and self.kinds == ends and self.footers == 1

    def merge(self, following: Contents) -> Contents:
        """Take in the split that follows."""
        both = None if self.pieces is None or following.pieces is None else [*self.pieces, *following.pieces]
        self.pieces = both if both is not None and sum(map(len, both)) <= MOST_KEPT else None
        self.meet(following)
        if following.first is not None:
            if self.first is None:
                self.first, self.first_position = following.first, following.first_position
            self.following = following.following
        self.controls += following.controls
        if not self.is_damaged and following.end is not None:
            self.end = following.end
        self.is_damaged |= following.is_damaged
        if following.kinds is not None:
            self.kinds = following.kinds if self.kinds is None else (self.kinds[0], following.kinds[1])
        self.footers += following.footers
        self.gaps.join(following.gaps)
        self.shapes.join(following.shapes)
        if self.plain is not None and following.plain is not None:
            self.plain.join(following.plain)
        else:
            self.plain = None
        return self

    def meet(self, following: Contents) -> None:
        """Note a gap between these and what follows, in the same file or in the next one."""
        if self.following is None or following.first is None or self.following == following.first:
            return
        mark = _gap(self.following, following.first, position=following.first_position, path=following.file.path)
        self.gaps.append(mark)

    def rows(self) -> Iterator[MetadataRows]:
        """The records that were kept."""
        for piece in self.pieces or ():
            with pa.ipc.open_stream(piece) as stream:
                for batch in stream:
                    yield MetadataRows(self.file, batch)


def _gap(expected: int, offset: int, *, position: int, path: str) -> Mark:
    message = f"offset {offset} follows {expected - 1}"
    return Mark(message, position, offset=offset, expected=expected, found=offset, path=path)


class ContentsFold:
    """One pass over a file, or over a split of it: `see` every window, then `close`."""

    def __init__(self, file: File, files: Sequence[File] = (), start: int = 0, stop: int | None = None) -> None:
        self.contents = Contents(file, plain=PlainExtent(file, inside=start > 0))
        self.want = Want(KAFKA_RECORDS.subset((*COLUMNS, "key", "headers")), file)
        self.reached = start
        self.size = 0
        #: Where the batch of the last record is, and the time of that record.
        self.previous = (NONE, NO_TIME)

    def see(self, frames: Frames) -> None:
        """Take in the next window."""
        contents, head = self.contents, heads(frames)
        contents.is_damaged |= frames.base > self.reached
        is_plain = head.all_sound and not frames.status.is_damage
        if contents.plain is not None and is_plain and not (frames.last and frames.status is Status.TRUNCATED):
            contents.plain.add(frames, head)
        else:
            contents.plain = None
        good = int(np.argmin(head.sound)) if not head.all_sound else len(frames)
        if good and not contents.is_damaged:
            contents.end = int(head["leader_epoch"][good - 1]), int(head["last_offset"][good - 1]) + 1
        contents.is_damaged |= good < len(frames) or frames.status.is_damage
        sound = frames if head.all_sound else only(frames, head.sound)
        self._follow(sound, head if head.all_sound else head.only(head.sound))
        self._decode(sound)
        self.reached = frames.reached_in_file

    def _follow(self, frames: Frames, head: Heads) -> None:
        """Find the gaps between sound batches."""
        if not len(frames):
            return
        base, stop, contents = head["base_offset"], head["last_offset"] + 1, self.contents
        window = Contents(contents.file, first=int(base[0]), first_position=int(frames.positions[0]))
        contents.meet(window)
        if contents.first is None:
            contents.first, contents.first_position = window.first, window.first_position
        contents.following = int(stop[-1])
        contents.controls += int(head["record_count"][head.has(Attributes.CONTROL)].sum())
        for index in (np.flatnonzero(base[1:] != stop[:-1]) + 1).tolist():
            expected, offset = int(stop[index - 1]), int(base[index])
            contents.gaps.append(_gap(expected, offset, position=int(frames.positions[index]), path=contents.file.path))

    def _decode(self, frames: Frames) -> None:
        """Keep the records of sound batches; one that cannot be decoded is skipped."""
        while len(frames):
            try:
                for batch in decode_stored(frames, self.want):
                    self._shapes(batch)
                    self._keep(batch.select(list(COLUMNS)))
                return
            except DataError as error:
                self.contents.is_damaged = True
                if error.position is None:
                    return
                bad = int(np.searchsorted(frames.positions, error.position, side="right")) - 1
                frames = frames.slice(max(bad, 0) + 1, len(frames))

    def _keep(self, batch: pa.RecordBatch) -> None:
        contents = self.contents
        kinds = batch.column("control_type").fill_null(NONE).to_numpy(zero_copy_only=False)
        if kinds.size:
            contents.kinds = (int(kinds[0]) if contents.kinds is None else contents.kinds[0], int(kinds[-1]))
            contents.footers += int(np.count_nonzero(kinds == ControlType.SNAPSHOT_FOOTER))
        if contents.pieces is None:
            return
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema, options=_COMPRESSED) as stream:
            stream.write_batch(batch)
        contents.pieces.append(sink.getvalue().to_pybytes())
        self.size += len(contents.pieces[-1])
        if self.size > MOST_KEPT:
            contents.pieces = None

    def _shapes(self, batch: pa.RecordBatch) -> None:
        """Note records that no controller writes: with a key, headers, no value, or another time than their batch."""
        ordinary = ~_array(batch, "is_control")
        misshapen = ~batch.column("key").is_null().to_numpy(zero_copy_only=False)
        misshapen |= _sizes(batch.column("headers")) > 0
        misshapen |= _sizes(batch.column("value")) == 0
        positions, offsets = _array(batch, "batch_position"), _array(batch, "offset")
        times = batch.column("timestamp").cast(pa.int64()).fill_null(NO_TIME).to_numpy()
        same_batch = np.diff(positions, prepend=self.previous[0]) == 0
        differs = same_batch & (np.diff(times, prepend=self.previous[1]) != 0)
        for index in np.flatnonzero(ordinary & (misshapen | differs)).tolist():
            message = "records of one batch have different times"
            if misshapen[index]:
                message = "a metadata record has a value, no key and no headers"
            place = {"position": int(positions[index]), "offset": int(offsets[index])}
            self.contents.shapes.append(Mark(message, **place, path=self.contents.file.path))  # type: ignore[arg-type]
        if positions.size:
            self.previous = (int(positions[-1]), int(times[-1]))

    def close(self) -> Contents:
        """What was found."""
        if self.contents.plain is not None:
            self.contents.plain.close()
        return self.contents


def summary(file: File, files: Sequence[File], start: int, stop: int | None) -> ContentsFold | None:
    """The pass over a segment of a metadata log; None for other files of Kafka's."""
    return ContentsFold(file, files, start, stop) if is_metadata_log(file) else None


def _array(batch: pa.RecordBatch, name: str) -> NDArray[Any]:
    return batch.column(name).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _sizes(column: pa.Array) -> NDArray[np.int64]:
    """The sizes of values, 0 for those that are null."""
    sizes = pc.list_value_length(column) if pa.types.is_list(column.type) or pa.types.is_map(column.type) else None
    sizes = pc.binary_length(column) if sizes is None else sizes
    return sizes.fill_null(0).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def read_contents(file: File) -> Contents:
    """The contents of a segment or snapshot that no pass has seen yet."""
    from rawlog.formats.kafka import LOG

    fold = ContentsFold(file)
    for frames in walk(file, LOG, errors="skip"):
        fold.see(frames)
    return fold.close()


LARGEST_TEXT = 1 << 20


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment: up to an offset or a time (microseconds), both included; the end if neither is given."""

    offset: int | None = None
    time: int | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Moment:
        """The moment that the options atOffset and atTimestamp name. OptionError if they are invalid, or both are given."""
        offset, time = option(options, "atOffset"), option(options, "atTimestamp")
        if offset is not None and time is not None:
            raise OptionError("atOffset and atTimestamp exclude one another")
        if offset is not None:
            if not offset.strip().isdecimal() or len(offset) > 19:
                raise OptionError(f"atOffset {offset!r}: an offset expected")
            return cls(offset=int(offset))
        return cls() if time is None else cls(time=parse_time(time, name="atTimestamp"))


# Segments of another log -------------------------------------------------------------------------------------------------


#: A segment with so much against it is of another log.
CERTAIN = 2
#: So many records that do not fit the state are as much as that.
MANY = 3


class SegmentSequence:
    """The log as its segments tell it, one after another: what a segment of another cluster contradicts.

    No record has the id of its cluster. But epochs never fall, an epoch has one change of leader, a voter keeps its directory, a broker is
    registered in the epoch that is the offset of the record, a topic has one id at a time, and records change only what is there.
    """

    def __init__(self, state: State, start: int, *, is_joined: bool) -> None:
        self.state, self.following = state, start
        self.epoch = -1
        self.leaders: set[int] = set()
        #: Whether no offset was missing so far: else records may well not fit.
        self.is_joined = is_joined

    def follow(self, segments: Iterable[MetadataRows]) -> list[str]:
        """Continue with the records of a segment; the contradictions, which together make it certain that it is foreign."""
        state, before = self.state, len(self.state.problems)
        batches: Counter[int] = Counter()
        changes: list[int] = []
        collisions, strangers, refusals = set[str](), set[int](), 0
        voters = {voter["voterId"]: voter.get("voterDirectoryId") for voter in state.voters}
        last, position = -1, -1
        first: int | None = None
        for rows in segments:
            for index, offset in enumerate(rows.offsets):
                value, last = rows.values[index] or b"", rows.epochs[index]
                if rows.positions[index] != position:
                    position = rows.positions[index]
                    batches[last] += 1
                first = last if first is None else first
                self.is_joined &= offset == self.following
                self.following = offset + 1
                if rows.controls[index]:
                    kind = rows.kinds[index] or 0
                    if kind == ControlType.LEADER_CHANGE:
                        changes.append(last)
                    state.add_control(offset, kind, value)
                elif offset >= state.end_offset:
                    name, number = _creation(value, offset)
                    collisions |= {name} if name in state.topic_ids and self.is_joined else set()
                    strangers |= set() if number is None else {number}
                    state.add(offset, value)
                    if not self.is_joined:
                        del state.problems[before:]
        refusals = len(state.problems) - before
        del state.problems[before:]
        moved = [
            voter
            for voter in state.voters
            if voters.get(voter["voterId"], voter.get("voterDirectoryId")) != voter.get("voterDirectoryId")
        ]
        against: list[str] = []
        if first is not None and first < self.epoch and batches[first] > 1:
            against += [f"it begins in epoch {first}, the log before it ends in {self.epoch}"] * CERTAIN
        twice = [epoch for epoch in changes if epoch in self.leaders and batches[epoch] > 1]
        if twice:
            against += [f"another leader begins epoch {twice[0]}"] * CERTAIN
        if moved and len(moved) == len(state.voters):
            against += ["its voters have other directories"] * CERTAIN
        if refusals:
            against += [f"{counted(refusals, 'record')} do not fit the state before them"] * (1 + (refusals >= MANY))
        if collisions:
            topics = f"{counted(len(collisions), 'topic')} get another id: {', '.join(sorted(collisions)[:MANY])}"
            against += [topics] * (1 + (len(collisions) >= MANY))
        if strangers:
            against.append(f"broker {min(strangers)} is registered in an epoch of another log")
        self.epoch = max(self.epoch, last) if batches[last] > 1 else self.epoch
        self.leaders |= set(changes)
        return against


def _creation(value: bytes, offset: int) -> tuple[str | None, int | None]:
    """The name of the topic that a record creates; or the broker that it registers in another epoch than its offset."""
    try:
        if framed_types()[frame_head(value)[0]].name not in ("TopicRecord", "RegisterBrokerRecord"):
            return None, None
        _, _, message = decode_record(value)
    except (DataError, KeyError):
        return None, None
    if "name" in message:
        return str(message["name"]), None
    return None, int(message["brokerId"]) if message["brokerEpoch"] != offset else None


# One directory -----------------------------------------------------------------------------------------------------------


class MetadataStore(Store):
    """A metadata directory: the segments of its log, its snapshots, and the bootstrap file next to it."""

    def __init__(
        self, files: Sequence[File], folder: str | None = None, summaries: Mapping[str, Contents] | None = None
    ) -> None:
        super().__init__(files)
        self.folder = folder if folder is not None else split(self.files[0].path)[0]
        self.summaries = dict(summaries or {})
        #: The files that somebody's pass has seen.
        self.passed = frozenset(self.summaries)
        logs = [file for file in self.files if file.format == LOG_FORMAT]
        self.segments = sorted(logs, key=lambda file: file.place.start_offset or 0)
        self.bootstrap = next((file for file in self.files if split(file.path)[1] == BOOTSTRAP), None)
        self.snapshots = [
            file for file in self.files if file.format == CHECKPOINT_FORMAT and file is not self.bootstrap
        ]

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
        contents = self.summaries.get(file.path)
        if contents is None:
            contents = self.summaries[file.path] = read_contents(file)
        return contents

    def is_whole(self, snapshot: File) -> bool:
        """Whether a snapshot can be read to its end, begins with its header and ends with its footer."""
        try:
            return self.contents(snapshot).is_whole
        except AccessError:
            return False

    def rows(self, files: Sequence[File], errors: str) -> Iterator[MetadataRows]:
        """The records of files, from the summary of an earlier pass if there is one."""
        for file in files:
            contents: Contents | None = self.summaries.get(file.path)
            if contents is None or contents.pieces is None or (contents.is_damaged and errors != "skip"):
                yield from read_rows([file], errors)
            else:
                yield from contents.rows()

    @cached_property
    def end(self) -> tuple[int, int]:
        """The last epoch and the end offset of the log, without decoding it; (-1, 0) if it is empty."""
        for segment in reversed(self.segments):
            contents: Contents | None = self.summaries.get(segment.path)
            end = _end_of(segment) if contents is None else contents.end
            if end is not None:
                return end
        return -1, self.start

    @cached_property
    def foreign(self) -> dict[str, str]:
        """The segments of another log, by path, each with the reason: its records contradict the segments before it. None if most segments
        would be foreign: then nothing tells which log is the right one.
        """
        reasons: dict[str, str] = {}
        if len(self.segments) < 2:
            return reasons
        named = [
            segment for segment in self.segments if self.contents(segment).first == (segment.place.start_offset or 0)
        ]
        number, sequence = 0, self._sequence()
        while number < len(named):
            segment = named[number]
            if segment.path not in reasons:
                against = sequence.follow(self.rows([segment], "skip"))
                if number and len(against) >= CERTAIN:
                    reasons[segment.path] = "; ".join(dict.fromkeys(against))
                    number, sequence = -1, self._sequence()  # once more without it
            number += 1
        return reasons if len(reasons) * 2 <= len(self.segments) else {}

    def _sequence(self) -> SegmentSequence:
        """The beginning of the log: nothing, or the oldest snapshot that it goes on from."""
        state = State()
        offsets = {snapshot.path: (snapshot_id(snapshot.path) or (0, 0))[0] for snapshot in self.snapshots}
        usable = [
            snapshot for snapshot in self.snapshots if offsets[snapshot.path] >= self.start and self.is_whole(snapshot)
        ]
        if self.start and usable:
            base = min(usable, key=lambda snapshot: offsets[snapshot.path])
            self.load(state, base, "skip")
            state.end_offset = offsets[base.path]
        return SegmentSequence(state, self.start, is_joined=not self.start or bool(usable))

    @cached_property
    def settled(self) -> MetadataStore:
        """This directory without the segments that are of another log."""
        if not self.foreign:
            return self
        files = [file for file in self.files if file.path not in self.foreign]
        log = MetadataStore(files, self.folder, self.summaries)
        log.passed = self.passed
        return log

    @cached_property
    def outline(self) -> Outline:
        """The batches of the log in order, and the gaps between them."""
        plain = {path: contents.plain for path, contents in self.summaries.items() if isinstance(contents, Contents)}
        extents = {path: plain.extent() for path, plain in plain.items() if plain is not None}
        return outline(self.files, {path: extent for path, extent in extents.items() if extent is not None})

    @cached_property
    def log(self) -> LogBatches:
        """The batches of the log, each at its offset."""
        seen = {path: seen for path, seen in self.summaries.items() if isinstance(seen, Contents)}
        return LogBatches.of(self.outline, {path for path, contents in seen.items() if not contents.is_damaged})

    @property
    def traced(self) -> int:
        """An offset that the log had reached at least, as other files say; 0 if none does."""
        return traced_end(self.files)

    @property
    def start(self) -> int:
        """The first offset that the log may hold."""
        return (self.segments[0].place.start_offset or 0) if self.segments else 0

    @property
    def first(self) -> int:
        """The offset of the first sound batch of the log; where it may begin, if there is none."""
        return self.outline.pieces[0].first if self.outline.pieces else self.start

    @property
    def is_empty(self) -> bool:
        """Whether the log is empty, so that a controller would begin with the bootstrap file."""
        return self.end == (-1, 0)

    @property
    def newest_first(self) -> list[File]:
        """The snapshots, whole or not."""
        return sorted(self.snapshots, key=lambda snapshot: snapshot_id(snapshot.path) or (0, 0), reverse=True)

    @property
    def furthest(self) -> tuple[int, int]:
        """How far this directory's knowledge goes: epoch, offset."""
        ids = [
            (epoch, offset) for offset, epoch in (snapshot_id(snapshot.path) or (0, 0) for snapshot in self.snapshots)
        ]
        return max([self.end, *ids])

    @property
    def present(self) -> Intervals:
        """The offsets that the log has."""
        return Intervals((run.first, run.end) for run in self.outline.runs()).subtract(self.missing)

    @cached_property
    def leading(self) -> list[str]:
        """The paths of the snapshots that have the state at the offset in their names."""
        return [file.path for file in self.snapshots if self.is_whole(file) and self.misnamed(file) is None]

    def misnamed(self, snapshot: File) -> str | None:
        """What shows that a snapshot is not of the offset in its name: the log has that offset inside of a batch, or the record before it
        has another time. None if nothing shows it.
        """
        offset, time = (snapshot_id(snapshot.path) or (0, 0))[0], last_time(snapshot, self)
        for rows in self.rows(self._from(offset - 1)[:1], "skip"):
            at = int(np.searchsorted(_array(rows.batch, "offset"), offset - 1))
            if at < len(rows.offsets) and rows.offsets[at] == offset - 1:
                there = (rows.times[at] or 0) // 1000
                is_inside = rows.positions[at + 1 : at + 2] == rows.positions[at : at + 1]
                if is_misnamed(offset, time, there, is_inside=is_inside):
                    what = f"and is in a batch with offset {offset}" if is_inside and time == there else ""
                    return f"its last record has time {time}, the record at offset {offset - 1} has {there} {what}".rstrip()
        return None

    @cached_property
    def covered(self) -> list[int]:
        """The offsets up to which a whole snapshot has the state, in order."""
        return sorted((snapshot_id(path) or (0, 0))[0] for path in self.leading)

    @cached_property
    def missing(self) -> Intervals:
        """The offsets that the log does not have; before its beginning and after its end, only those that no whole snapshot covers. Gaps
        inside the log count even if a snapshot covers them: `lost_for` says which of all these a state lacks.
        """
        ends = self.covered
        missing: list[tuple[int, int]] = []
        if self.first > 0 and not any(end >= self.first for end in ends):
            missing.append((max(ends, default=0), self.first))
        reached = max([self.outline.end, *ends])
        missing.append((reached, self.traced))
        gaps = (gap for gap in self.outline.gaps if gap.side in (Side.BETWEEN, Side.INSIDE))
        return Intervals((*missing, *((gap.first, gap.last + 1) for gap in gaps)))

    def lost_for(self, state: State, at: Moment | None = None) -> Intervals:
        """The missing offsets whose changes a state at a moment lacks, or may lack: those after the snapshot that it begins with. Nothing
        tells the times of missing records, so those that follow the last record before a time may be of that time, too.
        """
        at = at or Moment()
        base = self._base(at)
        start = 0 if base is None else (snapshot_id(base.path) or (0, 0))[0]
        last = LARGEST_OFFSET
        if at != Moment():
            last = state.end_offset if at.offset is None else at.offset
        return Intervals((max(start, first), stop) for first, stop in self.missing if first <= last)

    @cached_property
    def gaps(self) -> Few:
        """Where the offsets of the log, as they are stored, do not follow one another."""
        marks = Few()
        end: int | None = None
        for segment in self.segments:
            contents = self.contents(segment)
            before = Contents(segment, following=end)
            before.meet(contents)
            for part in (before, contents):
                marks.join(part.gaps)
            end = end if contents.following is None else contents.following
        return marks

    @property
    def is_as_written(self) -> bool:
        """Whether the outline leaves the log as it is, and nothing is missing in it. What a crash leaves at its end does not count."""
        return self.outline.is_as_stored and not self.outline.lost

    def damage(self) -> Iterator[str]:
        """Every place of the log and the snapshots that cannot be read, in a sentence."""
        from rawlog.formats.kafka import LOG

        for file in [*self.segments, *self.snapshots, *([] if self.bootstrap is None else [self.bootstrap])]:
            reached = 0
            for frames in walk(file, LOG, errors="skip"):
                if frames.base > reached:
                    yield f"{file.path}: byte {reached:,}: {frames.base - reached:,} damaged bytes"
                head = heads(frames)
                for index in range(len(frames)):
                    batch = frames.slice(index, index + 1), head.slice(index, index + 1)
                    if head.sound[index] and can_decode(*batch):
                        continue
                    yield f"{file.path}: byte {int(frames.positions[index]):,}: a batch that cannot be read"
                reached = frames.reached_in_file
                if frames.last and frames.status.is_damage:
                    yield f"{file.path}: byte {reached:,}: {file.size - reached:,} damaged bytes"

    # The state ---------------------------------------------------------------------------------------------------------

    def fold(self, at: Moment | None = None, errors: str = "raise") -> State:
        """The state at a moment. DataError at damage unless `errors` says otherwise; OptionError for a moment that is not known any
        more. Segments of another log do not count; they are looked for only where records do not fit.
        """
        at = at or Moment()
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
        fits = self._replay(state, at, errors) and not state.problems and not state.replaced
        return state if fits or self.settled is self else self.settled.fold(at, errors)

    def fold_kept(self, at: Moment, errors: str) -> State:
        """The same with every batch at the offset and of the epoch that `repair` would give it. DataError and OptionError as for `fold`."""
        log, state = self.settled, State()
        base = log._base(at)
        is_unreadable = errors != "skip" and any(extent.has_damage for extent in log.outline.extents)
        if log.outline.is_as_stored or is_unreadable or errors == "stop" or (base is None and log.first > 0):
            return self.fold(at, errors)
        if base is not None:
            log.load(state, base, errors)
            state.end_offset, state.epoch = snapshot_id(base.path) or (0, 0)
            leading = [batch for batch in log.log.batches if batch.is_control and batch.first < state.end_offset]
            for _, kind, value in chain.from_iterable(batch.records() for batch in leading):
                if kind == ControlType.LEADER_CHANGE:  # a snapshot does not say who led
                    state.add_control(0, kind, value or b"")
            if log.log.batches and log.log.batches[-1].epoch < state.epoch:
                return state
        stop = None if at.offset is None else at.offset + 1
        for batch in log.log.batches:
            if (stop is not None and batch.first >= stop) or (at.time is not None and batch.time * 1000 > at.time):
                break
            if batch.end > state.end_offset:
                batch.replay(state, stop)
        return state

    def _base(self, at: Moment) -> File | None:
        """The newest snapshot that is not after the moment."""
        for snapshot in self.newest_first:
            offset, _ = snapshot_id(snapshot.path) or (0, 0)
            if at.offset is not None and offset > at.offset + 1:
                continue
            if at.time is not None and (last_time(snapshot, self) or 0) * 1000 > at.time:
                continue
            if offset < self.start:
                break  # the log does not reach back to it
            if self.is_whole(snapshot):
                return snapshot
        return None

    def load(self, state: State, file: File, errors: str) -> None:
        """Take the records of a snapshot or bootstrap file into a state."""
        state.timestamp = -1
        replay = Replay(state)
        for rows in self.rows([file], errors):
            replay.add(rows.batch)
            if state.timestamp < 0 and ControlType.SNAPSHOT_HEADER in rows.kinds:
                state.timestamp = _last_contained(rows.values[rows.kinds.index(ControlType.SNAPSHOT_HEADER)] or b"")
        replay.flush()

    def _find_leader(self, state: State) -> None:
        """A snapshot does not say who led: the last change of leader before its end does, if the log still has it."""
        from rawlog.formats.kafka import LOG

        for segment in reversed(self.segments):
            if (segment.place.start_offset or 0) >= state.end_offset or segment.path in self.passed:
                continue  # whoever has made a pass checks the state, of which the leader is no part
            for frames in walk(segment, LOG, errors="skip"):
                head = heads(frames)
                mask = head.sound & head.has(Attributes.CONTROL) & (head["base_offset"] < state.end_offset)
                chosen, chosen_head = only(frames, mask), head.only(mask)
                if not len(chosen):
                    continue
                try:
                    decoded = decode_run(chosen, chosen_head, {"key", "value"}, 1 << 24)
                except (DataError, TooMuch):
                    continue
                for key, value in zip(
                    decoded.arrays["key"].to_pylist(), decoded.arrays["value"].to_pylist(), strict=True
                ):
                    if control_type(key) == ControlType.LEADER_CHANGE:
                        state.add_control(0, ControlType.LEADER_CHANGE, value or b"")
            if state.leader is not None:
                return

    def _replay(self, state: State, at: Moment, errors: str) -> bool:
        """Take in the log from the end of a state on; whether its epochs never fall."""
        start, epoch, rises = state.end_offset, state.epoch, True
        last = at.offset if at.offset is not None else LARGEST_OFFSET
        replay = Replay(state)
        for rows in self.rows(self._from(start), errors):
            offsets, epochs = _array(rows.batch, "offset"), _array(rows.batch, "leader_epoch")
            if not offsets.size or offsets[-1] < start:
                continue
            if offsets[0] > last:
                break
            times = rows.batch.column("timestamp").cast(pa.int64()).fill_null(NO_TIME).to_numpy()
            is_due = offsets >= start
            is_after = is_due & (offsets > last)
            if at.time is not None:
                is_after |= is_due & (times != NO_TIME) & (times > at.time)
            count = int(np.argmax(is_after)) if is_after.any() else offsets.size
            due = np.flatnonzero(is_due[:count])
            if due.size:
                replay.add(rows.batch.slice(0, count).filter(pa.array(is_due[:count])))
                state.end_offset = int(offsets[due[-1]]) + 1
                timed = due[times[due] != NO_TIME]
                state.timestamp = int(times[timed[-1]]) // 1000 if timed.size else state.timestamp
                rises &= epoch <= int(epochs[due].min())
                state.epoch = epoch = int(epochs[due[-1]])
            if count < offsets.size:
                break
        replay.flush()
        return rises

    def _from(self, offset: int) -> list[File]:
        """The segments that may hold this offset or later ones."""
        first = 0
        for number, segment in enumerate(self.segments):
            if (segment.place.start_offset or 0) <= offset:
                first = number
        return self.segments[first:]


def _end_of(segment: File) -> tuple[int, int] | None:
    """The last epoch and the offset after the last batch before any damage; None if there is no such batch."""
    from rawlog.formats.kafka import LOG

    end: tuple[int, int] | None = None
    for frames in walk(segment, LOG, errors="stop"):
        head = heads(frames)
        good = len(frames) if head.all_sound else int(np.argmin(head.sound))
        if good:
            end = int(head["leader_epoch"][good - 1]), int(head["last_offset"][good - 1]) + 1
        if good < len(frames):
            break
    return end


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


def is_misnamed(offset: int, time: int | None, last: int, *, is_inside: bool) -> bool:
    """Whether a snapshot is of another offset than its name says: the last record before that offset has another time (`last`) than the
    one that the snapshot has of its last record, or the offset `is_inside` of a batch. Controllers take snapshots between batches. Times
    are milliseconds.
    """
    return offset > 0 and time is not None and (time != last or is_inside)


def _last_contained(header: bytes) -> int:
    """The time (ms) in the header of a snapshot; -1 if it cannot be read."""
    try:
        _, _, message = decode_control(ControlType.SNAPSHOT_HEADER, header)
    except DataError:
        return -1
    return int(message["lastContainedLogTimestamp"])


# Several directories -----------------------------------------------------------------------------------------------------


def stores(files: Sequence[File]) -> list[MetadataStore]:
    """The metadata directories among some files that hold a log or a snapshot, with what else is in them. AccessError for a log or a
    snapshot that cannot be read.
    """
    groups: dict[str, list[File]] = {}
    evidence: dict[str, list[File]] = {}
    for file in files:
        if file.place.state is not None:
            continue
        if file.format not in (LOG_FORMAT, CHECKPOINT_FORMAT):
            if file.place.topic == METADATA_TOPIC and file.problem is None:
                evidence.setdefault(_folder_of(file), []).append(file)
        else:
            file.check_readable()
            groups.setdefault(_folder_of(file), []).append(file)
    summaries = Store.of(files).summaries
    return [MetadataStore([*group, *evidence.get(folder, ())], folder, summaries) for folder, group in groups.items()]


@lru_cache(maxsize=4)
def foreign_segments(files: tuple[File, ...]) -> dict[str, str]:
    """The segments of another log in a metadata directory, by path, each with the reason. A directory is read once for all its files."""
    return {path: reason for store in stores(files) for path, reason in store.foreign.items()}


def _folder_of(file: File) -> str:
    """The metadata directory that a file is in; of a bootstrap file, the one next to it."""
    folder, name = split(file.path)
    if name != BOOTSTRAP:
        return folder
    return f"{folder}/{METADATA_DIRECTORY}" if folder else METADATA_DIRECTORY


def units(table: str, files: Sequence[File]) -> dict[str, list[File]]:
    """The files of each cluster, whose replicas hold one state; for the table of records, those of each directory."""
    files_by_unit: dict[str, list[File]] = {}
    names: dict[str, str] = {}
    for file in files:
        name = split(file.path)[0]
        if table != "kraft.metadata":
            folder = _folder_of(file)
            names[folder] = names[folder] if folder in names else MetadataStore((), folder).cluster_id or folder
            name = names[folder]
        files_by_unit.setdefault(name, []).append(file)
    return files_by_unit


def clusters(files: Sequence[File]) -> list[MetadataStore]:
    """The directory of each cluster with the newest state; a directory without a cluster id counts for itself."""
    best: dict[str, MetadataStore] = {}
    for store in stores(files):
        name = store.cluster_id or store.folder
        if name not in best or best[name].settled.furthest < store.settled.furthest:
            best[name] = store
    return list(best.values())


def copies(stores: Sequence[Store]) -> list[Copies]:
    """The metadata directories of the controllers of one cluster, the best first. A snapshot's name says how far it goes."""
    from rawlog.formats.kafka.partition.replicas import copies as partition_copies

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
