"""Contents: what one pass over a segment of a metadata log, or over a snapshot, finds for everybody who compares files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rawlog.core.errors import DataError
from rawlog.core.findings import Few, Mark
from rawlog.core.format import MAX_DECOMPRESSED, MAX_HEADERS, NO_TIME, File, Want
from rawlog.core.frames import Frames
from rawlog.formats.kafka.heads import Heads, heads
from rawlog.formats.kafka.internal import read_records
from rawlog.formats.kafka.layouts import NONE, Attributes, ControlType
from rawlog.formats.kafka.log import decode, decode_bounded, only
from rawlog.formats.kafka.tables import KAFKA_RECORDS
from rawlog.formats.kraft.paths import is_metadata_log
from rawlog.formats.kraft.reader import COLUMNS
from rawlog.io.walk import walk

#: Contents keep so many compressed bytes of records for one file; of a larger file the records are read again where they are needed.
MOST_KEPT = 32 << 20
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd")


@dataclass(frozen=True, slots=True)
class Rows:
    """Records of one file, in order, as lists; control records are among them, and marked. Times are microseconds."""

    file: File
    values: list[bytes | None]
    offsets: list[int]
    times: list[int | None]
    epochs: list[int]
    controls: list[bool]
    kinds: list[int | None]
    positions: list[int]

    @classmethod
    def of(cls, file: File, batch: pa.RecordBatch) -> Rows:
        """The rows of a batch that has COLUMNS of `kafka.records`."""
        lists = {name: batch.column(name).to_pylist() for name in COLUMNS if name != "timestamp"}
        times = batch.column("timestamp").cast(pa.int64()).to_pylist()
        return cls(
            file,
            lists["value"],
            lists["offset"],
            times,
            lists["leader_epoch"],
            lists["is_control"],
            lists["control_type"],
            lists["batch_position"],
        )


def read_rows(files: Sequence[File], errors: str) -> Iterator[Rows]:
    """The records of segments or of snapshots of one kind, read from the files."""
    for one in files:
        for file, batch in read_records([one], COLUMNS, errors, format=str(one.format)):
            yield Rows.of(file, batch)


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
    #: Runs of offsets that are missing between batches of the file.
    missing: list[tuple[int, int]] = field(default_factory=list)
    shapes: Few = field(default_factory=Few)

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
        self.missing += following.missing
        self.shapes.join(following.shapes)
        return self

    def meet(self, following: Contents) -> None:
        """Note a gap between these and what follows, in the same file or in the next one."""
        if self.following is None or following.first is None or self.following == following.first:
            return
        mark = _gap(self.following, following.first, position=following.first_position, path=following.file.path)
        self.gaps.append(mark)
        if following.first > self.following:
            self.missing.append((self.following, following.first))

    def rows(self) -> Iterator[Rows]:
        """The records that were kept."""
        for piece in self.pieces or ():
            with pa.ipc.open_stream(piece) as stream:
                for batch in stream:
                    yield Rows.of(self.file, batch)


def _gap(expected: int, found: int, *, position: int, path: str) -> Mark:
    message = f"offset {found} follows {expected - 1}"
    return Mark(message, position, offset=found, expected=expected, found=found, path=path)


class ContentsFold:
    """One pass over a file, or over a split of it: `see` every window, then `close`."""

    def __init__(self, file: File, files: Sequence[File] = (), start: int = 0, stop: int | None = None) -> None:
        self.made = Contents(file)
        self.want = Want(KAFKA_RECORDS.subset((*COLUMNS, "key", "headers")), file)
        self.reached = start
        self.size = 0
        #: Where the batch of the last record is, and the time of that record.
        self.previous = (NONE, NO_TIME)

    def see(self, frames: Frames) -> None:
        """Take in the next window."""
        made, head = self.made, heads(frames)
        made.is_damaged |= frames.base > self.reached
        good = int(np.argmin(head.sound)) if not head.all_sound else len(frames)
        if good and not made.is_damaged:
            made.end = int(head["leader_epoch"][good - 1]), int(head["last_offset"][good - 1]) + 1
        made.is_damaged |= good < len(frames) or frames.status.is_damage
        sound = frames if head.all_sound else only(frames, head.sound)
        self._follow(sound, head if head.all_sound else head.only(head.sound))
        self._decode(sound)
        self.reached = frames.reached_in_file

    def _follow(self, frames: Frames, head: Heads) -> None:
        """Find the gaps between sound batches."""
        if not len(frames):
            return
        base, stop, made = head["base_offset"], head["last_offset"] + 1, self.made
        here = Contents(made.file, first=int(base[0]), first_position=int(frames.positions[0]))
        made.meet(here)
        if made.first is None:
            made.first, made.first_position = here.first, here.first_position
        made.following = int(stop[-1])
        made.controls += int(head["record_count"][head.has(Attributes.CONTROL)].sum())
        for index in (np.flatnonzero(base[1:] != stop[:-1]) + 1).tolist():
            expected, found = int(stop[index - 1]), int(base[index])
            made.gaps.append(_gap(expected, found, position=int(frames.positions[index]), path=made.file.path))
            if found > expected:
                made.missing.append((expected, found))

    def _decode(self, frames: Frames) -> None:
        """Keep the records of sound batches; one that cannot be decoded is skipped."""
        while len(frames):
            try:
                for batch in decode(frames, self.want):
                    self._shapes(batch)
                    self._keep(batch.select(list(COLUMNS)))
                return
            except DataError as error:
                self.made.is_damaged = True
                if error.position is None:
                    return
                bad = int(np.searchsorted(frames.positions, error.position, side="right")) - 1
                frames = frames.slice(max(bad, 0) + 1, len(frames))

    def _keep(self, batch: pa.RecordBatch) -> None:
        made = self.made
        kinds = batch.column("control_type").fill_null(NONE).to_numpy(zero_copy_only=False)
        if kinds.size:
            made.kinds = (int(kinds[0]) if made.kinds is None else made.kinds[0], int(kinds[-1]))
            made.footers += int(np.count_nonzero(kinds == ControlType.SNAPSHOT_FOOTER))
        if made.pieces is None:
            return
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema, options=_COMPRESSED) as stream:
            stream.write_batch(batch)
        made.pieces.append(sink.getvalue().to_pybytes())
        self.size += len(made.pieces[-1])
        if self.size > MOST_KEPT:
            made.pieces = None

    def _shapes(self, batch: pa.RecordBatch) -> None:
        """Note records that no controller writes: with a key, headers, no value, or another time than their batch."""
        ordinary = ~_array(batch, "is_control")
        odd = ~batch.column("key").is_null().to_numpy(zero_copy_only=False)
        odd |= _sizes(batch.column("headers")) > 0
        odd |= _sizes(batch.column("value")) == 0
        positions, offsets = _array(batch, "batch_position"), _array(batch, "offset")
        times = batch.column("timestamp").cast(pa.int64()).fill_null(NO_TIME).to_numpy()
        same_batch = np.diff(positions, prepend=self.previous[0]) == 0
        differs = same_batch & (np.diff(times, prepend=self.previous[1]) != 0)
        for index in np.flatnonzero(ordinary & (odd | differs)).tolist():
            message = "records of one batch have different times"
            if odd[index]:
                message = "a metadata record has a value, no key and no headers"
            place = {"position": int(positions[index]), "offset": int(offsets[index])}
            self.made.shapes.append(Mark(message, **place, path=self.made.file.path))  # type: ignore[arg-type]
        if positions.size:
            self.previous = (int(positions[-1]), int(times[-1]))

    def close(self) -> Contents:
        """What was found."""
        return self.made


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


def sound_batches(frames: Frames) -> NDArray[np.bool_]:
    """Which batches have the right checksum and records that can be decoded."""
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
