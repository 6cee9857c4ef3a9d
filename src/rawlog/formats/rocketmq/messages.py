"""Messages: the fields of the messages in a window of a commit log, a NumPy array per field."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog.formats.rocketmq.kernels import entries as kernels
from rawlog.formats.rocketmq.layouts import (
    BATCH_UNIT,
    CHECKPOINT,
    CODEC_MASK,
    CODEC_SHIFT,
    CRC_MASK,
    CRC_PROPERTY,
    CRC_PROPERTY_SIZE,
    DLEDGER_INDEX,
    EXT_END,
    EXT_UNIT,
    FILLER_FLAG,
    HEAD,
    HOST_V4,
    MAGIC_BLANK,
    NAME_VALUE,
    TIMER_BLANK,
    TIMER_CHECK,
    TIMER_PRECISION_MS,
    TIMER_UNIT,
    UNIT,
    WHEEL_SLOT,
    SysFlag,
)
from rawlog.kernels import byte_view, columns
from rawlog.model.errors import CorruptError, DataError, RawlogError
from rawlog.model.format import NO_TIME, File, Spans, Want
from rawlog.model.frames import Bytes, Frames
from rawlog.model.layout import Layout
from rawlog.model.status import Status

# ----------------------------------------------------------------------------------------------------------------------
# Files of fixed units: consume queues, timer log and wheel, checkpoints, DLedger's index.


SIZES = {UNIT.size: UNIT, BATCH_UNIT.size: BATCH_UNIT}


def fixed_frames(data: Bytes, layout: Layout, valid: NDArray[np.bool_], kind: int = 0) -> Frames:
    """Units of one size up to the first invalid one; zeros up to the end are padding, other bytes are damage."""
    count = int(np.argmin(valid)) if not valid.all() else int(valid.size)
    reached = count * layout.size
    starts = np.arange(count, dtype=np.int64) * layout.size
    if reached == data.size:
        status = Status.OK
    elif not data[reached:].any():
        status = Status.PADDING
    elif count == valid.size:
        status = Status.TRUNCATED
    else:
        status = Status.BAD_VALUE
    return Frames(data, starts, starts + layout.size, reached, status, kind=kind)


def units(data: Bytes, layout: Layout) -> NDArray[Any]:
    """The whole units of a stretch of bytes."""
    return layout.view(np.ascontiguousarray(data))


def scan_plain(data: Bytes, kind: int) -> Frames:
    """Units with a non-negative address and a positive size; the first other one ends the queue."""
    rows = units(data, UNIT)
    return fixed_frames(data, UNIT, (rows["physical_offset"] >= 0) & (rows["size"] > 0), kind)


def scan_batch(data: Bytes, kind: int) -> Frames:
    """Units of batches; the first that points to nothing ends the queue."""
    rows = units(data, BATCH_UNIT)
    valid = (rows["physical_offset"] >= 0) & (rows["size"] > 0) & (rows["base_offset"] >= 0) & (rows["batch_size"] > 0)
    frames = fixed_frames(data, BATCH_UNIT, valid, kind)
    at = frames.reached // BATCH_UNIT.size
    if frames.status is Status.BAD_VALUE and int(rows["physical_offset"][at]) == -1 and int(rows["size"][at]) == 0:
        # The mark after the last unit of a compaction topic's queue.
        frames = Frames(
            data, frames.starts, frames.stops, frames.reached, _end_of(data, frames.reached + BATCH_UNIT.size), kind
        )
    return frames


def _end_of(data: Bytes, position: int) -> Status:
    return Status.BAD_VALUE if data[position:].any() else Status.PADDING


def scan_ext(data: Bytes, kind: int) -> Frames:
    """Units, each directly after the one before; a size of -1 ends the file."""
    starts: list[int] = []
    stops: list[int] = []
    position, status = 0, Status.OK
    while position < data.size:
        left = data.size - position
        size = int.from_bytes(bytes(data[position : position + 2]), "big", signed=True)
        if size == 0 and not data[position:].any():
            status = Status.PADDING
            break
        if size == EXT_END and left >= 2:
            starts.append(position)
            position += 2
            stops.append(position)
            # What follows the mark is whatever was there; nobody reads it.
            status = Status.OK if position == data.size else Status.PADDING
            break
        if size < EXT_UNIT.size:
            status = Status.TRUNCATED if left < 2 else Status.BAD_LENGTH
            break
        if left < size:
            status = Status.TRUNCATED
            break
        starts.append(position)
        position += size
        stops.append(position)
    return Frames(data, np.array(starts, np.int64), np.array(stops, np.int64), position, status, kind=kind)


def fault(frames: Frames) -> DataError:
    """An invalid unit, with sound or foreign bytes after it."""
    return CorruptError(
        "a unit that points to nothing, with other bytes after it; a broker ends the queue here and cuts the rest off",
        position=frames.reached_in_file,
        found=bytes(frames.data[frames.reached : frames.reached + UNIT.size]).hex(" "),
    )


def resync_plain(data: Bytes, position: int, kind: int) -> int:
    """The next unit that can be, or -1."""
    return _resync(data, position, UNIT, ("physical_offset", "size"))


def resync_batch(data: Bytes, position: int, kind: int) -> int:
    """The next unit that can be, or -1."""
    return _resync(data, position, BATCH_UNIT, ("physical_offset", "size", "batch_size"))


def _resync(data: Bytes, position: int, layout: Layout, names: tuple[str, ...]) -> int:
    """The next possible unit at a multiple of the unit size."""
    first = -(-position // layout.size)
    rows = units(data[first * layout.size :], layout)
    valid = np.ones(len(rows), np.bool_)
    for name in names:
        valid &= rows[name] >= (0 if name == "physical_offset" else 1)
    hits = np.flatnonzero(valid)
    return int(first + hits[0]) * layout.size if hits.size else -1


def decode_plain(frames: Frames, want: Want) -> Iterator[pa.RecordBatch]:
    """Rows of `rocketmq.queues`."""
    rows = UNIT.take(frames.data, frames.starts)
    numbers = ((want.file.place.start_offset or 0) + frames.positions) // UNIT.size
    yield _batch(frames, want, "plain", rows, numbers)


def decode_batch(frames: Frames, want: Want) -> Iterator[pa.RecordBatch]:
    """Rows of `rocketmq.queues`."""
    rows = BATCH_UNIT.take(frames.data, frames.starts)
    yield _batch(frames, want, "batch", rows, rows["base_offset"].astype(np.int64))


def decode_ext(frames: Frames, want: Want) -> Iterator[pa.RecordBatch]:
    """Rows of `rocketmq.queues`; the mark that ends a file gives no row."""
    whole = EXT_UNIT.take(np.concatenate((frames.data, np.zeros(EXT_UNIT.size, np.uint8))), frames.starts)
    keep = whole["size"] != EXT_END
    frames = Frames(
        frames.data, frames.starts[keep], frames.stops[keep], frames.reached, frames.status, base=frames.base
    )
    if len(frames):
        yield _batch(frames, want, "ext", whole[keep], None)


def _batch(
    frames: Frames, want: Want, kind: str, rows: NDArray[Any], numbers: NDArray[np.int64] | None
) -> pa.RecordBatch:
    count, fields = len(frames), rows.dtype.names or ()

    def number(name: str, type: str) -> pa.Array:
        return (
            columns.integers(rows[name].astype(np.int64), type)
            if name in fields
            else columns.constant(None, type, count)
        )

    arrays = {
        "topic": columns.constant(want.file.place.topic, "string", count),
        "queue_id": columns.constant(want.file.place.partition, "int", count),
        "queue_offset": columns.constant(None, "bigint", count)
        if numbers is None
        else columns.integers(numbers, "bigint"),
        "physical_offset": number("physical_offset", "bigint"),
        "size": number("size", "int"),
        "tag_hash": number("tag_hash", "bigint"),
        "kind": columns.constant(kind, "string", count),
        "batch_size": number("batch_size", "int"),
        "path": columns.constant(want.file.path, "string", count),
        "store_timestamp": columns.constant(None, "timestamp", count),
    }
    if "store_timestamp" in fields:
        arrays["store_timestamp"] = micros(rows["store_timestamp"].astype(np.int64))
    return columns.batch(want.table, arrays, count)


def spans_plain(frames: Frames, file: File) -> Spans:
    """The number of each unit."""
    numbers = ((file.place.start_offset or 0) + frames.positions) // UNIT.size
    return Spans(numbers, numbers + 1, records=np.zeros(len(frames), np.int64))


def spans_batch(frames: Frames, file: File) -> Spans:
    """The offsets and the time of each unit."""
    rows = BATCH_UNIT.take(frames.data, frames.starts)
    base, times = rows["base_offset"].astype(np.int64), rows["store_timestamp"].astype(np.int64)
    fits = (times <= MOST_MS) & (times >= -MOST_MS)
    stored = np.where(fits, np.where(fits, times, 0) * 1000, NO_TIME)
    return Spans(base, base + rows["batch_size"], stored, stored, np.zeros(len(frames), np.int64))


def scan_timer_log(data: Bytes, kind: int) -> Frames:
    """Units of 52 bytes; a blank one covers the rest of the file."""
    rows = TIMER_UNIT.view(np.ascontiguousarray(data))
    # A blank one may be as large as a unit; its magic is at the same place.
    frames = fixed_frames(data, TIMER_UNIT, (rows["size"] == TIMER_UNIT.size) & (rows["magic"] != MAGIC_BLANK), kind)
    left = data[frames.reached :]
    if frames.status in (Status.BAD_VALUE, Status.TRUNCATED) and left.size >= TIMER_BLANK.size:
        blank = np.frombuffer(bytes(left[: TIMER_BLANK.size]), TIMER_BLANK.dtype)[0]
        size = int(blank["size"])
        if int(blank["magic"]) == MAGIC_BLANK and size >= TIMER_BLANK.size:
            if size > left.size:
                return replace(frames, status=Status.TRUNCATED)
            stop = frames.reached + size
            status = Status.OK if stop == data.size else Status.BAD_VALUE if data[stop:].any() else Status.PADDING
            return replace(
                frames,
                starts=np.append(frames.starts, frames.reached),
                stops=np.append(frames.stops, stop),
                reached=stop,
                status=status,
            )
    return frames


def decode_timer_log(frames: Frames, want: Want) -> Iterator[pa.RecordBatch]:
    """Rows of `rocketmq.timers`."""
    keep = frames.sizes == TIMER_UNIT.size
    keep[keep] = TIMER_UNIT.take(frames.data, frames.starts[keep])["magic"] != MAGIC_BLANK
    rows, count = TIMER_UNIT.take(frames.data, frames.starts[keep]), int(keep.sum())
    written = rows["write_timestamp"].astype(np.int64)
    positions = frames.positions[keep] + (want.file.place.start_offset or 0)
    arrays = {
        "path": columns.constant(want.file.path, "string", count),
        "timer_position": columns.integers(positions, "bigint"),
        "previous_position": columns.integers(rows["previous_position"].astype(np.int64), "bigint"),
        "magic": columns.integers(rows["magic"].astype(np.int64), "int"),
        "write_timestamp": micros(written),
        "due_timestamp": micros(_clip_times(written, MOST_MS + (1 << 32)) + rows["delay_ms"]),
        "physical_offset": columns.integers(rows["physical_offset"].astype(np.int64), "bigint"),
        "size": columns.integers(rows["message_size"].astype(np.int64), "int"),
        "topic_hash": columns.integers(rows["topic_hash"].astype(np.int64), "int"),
    }
    yield columns.batch(want.table, arrays, count)


def _clip_times(times: NDArray[np.generic], most: int) -> NDArray[np.int64]:
    """Times cut to `most`, so that the next step does not overflow; a column cannot hold them either way."""
    return np.clip(times.astype(np.int64), -most, most)


def scan_wheel(data: Bytes, kind: int) -> Frames:
    """The used slots; those between were never used."""
    whole = data.size // WHEEL_SLOT.size * WHEEL_SLOT.size
    words = np.ascontiguousarray(data[:whole]).view(np.int64).reshape(-1, WHEEL_SLOT.size // 8)
    starts = np.flatnonzero(words.any(axis=1)).astype(np.int64) * WHEEL_SLOT.size
    status = Status.OK if whole == data.size else Status.TRUNCATED
    return Frames(data, starts, starts + WHEEL_SLOT.size, whole, status, kind=kind)


def decode_wheel(frames: Frames, want: Want) -> Iterator[pa.RecordBatch]:
    """Rows of `rocketmq.wheel`."""
    rows, count = WHEEL_SLOT.take(frames.data, frames.starts), len(frames)
    arrays = {
        "path": columns.constant(want.file.path, "string", count),
        "position": columns.integers(frames.positions, "bigint"),
        "due_timestamp": micros(_clip_times(rows["time"], MOST_MS // TIMER_PRECISION_MS + 1) * TIMER_PRECISION_MS),
        "first_position": columns.integers(rows["first_position"].astype(np.int64), "bigint"),
        "last_position": columns.integers(rows["last_position"].astype(np.int64), "bigint"),
        "count": columns.integers(rows["count"].astype(np.int64), "int"),
        "magic": columns.integers(rows["magic"].astype(np.int64), "int"),
    }
    yield columns.batch(want.table, arrays, count)


def _whole_file(layout: Layout) -> Callable[[Bytes, int], Frames]:
    """One frame at the front of the file, the rest of which is zeros."""

    def scan(data: Bytes, kind: int) -> Frames:
        if data.size < layout.size:
            status = Status.TRUNCATED if data.size else Status.OK
            return Frames(data, np.empty(0, np.int64), np.empty(0, np.int64), 0, status, kind=kind)
        status = Status.OK
        if data.size > layout.size:
            status = Status.BAD_VALUE if data[layout.size :].any() else Status.PADDING
        return Frames(data, np.zeros(1, np.int64), np.full(1, layout.size, np.int64), layout.size, status, kind=kind)

    return scan


scan_checkpoint = _whole_file(CHECKPOINT)
scan_timer_check = _whole_file(TIMER_CHECK)


def scan_dledger_index(data: Bytes, kind: int) -> Frames:
    """Units of 32 bytes up to the zeros."""
    rows = DLEDGER_INDEX.view(np.ascontiguousarray(data))
    return fixed_frames(data, DLEDGER_INDEX, (rows["magic"] == 1) & (rows["size"] > 0), kind)


def foreign_bytes(frames: Frames) -> DataError:
    """Bytes where zeros or another unit belong."""
    return CorruptError("bytes that are no unit of this file", position=frames.reached_in_file)


def decode_checkpoint(frames: Frames, want: Want) -> Iterator[pa.RecordBatch]:
    """The row of `rocketmq.checkpoint`."""
    rows, count = CHECKPOINT.take(frames.data, frames.starts), len(frames)
    arrays = {"path": columns.constant(want.file.path, "string", count)}
    for field in CHECKPOINT.fields:
        values = rows[field.name].astype(np.int64)
        arrays[field.name] = micros(values) if field.name.endswith("timestamp") else columns.integers(values, "bigint")
    yield columns.batch(want.table, arrays, count)


MOST_MS = ((1 << 63) - 1) // 1000
"""The latest millisecond that microseconds can hold."""
_FILLER_HOST = bytes([127, 0, 0, 1, 0, 0, 0, 0])


def first_address(file: File, kind: int) -> int:
    """The physical offset of a file's first byte: by its name, else by its first message; -1 if neither says it."""
    return kind if file.place.start_offset is None else file.place.start_offset


@dataclass(slots=True)
class Messages:
    """The messages among some frames, a row of `fields` (`kernels.F_…`) a field; positions are in `data`.

    `odd` counts what most messages are not (`kernels.O_…`), among these and perhaps others of the same window.
    """

    frames: Frames
    data: Bytes
    fields: NDArray[np.int64]
    start: int
    odd: NDArray[np.int64]

    @classmethod
    def take(cls, frames: Frames, file: File, *, with_crc: bool = True) -> Messages:
        count = len(frames)
        block = pa.allocate_buffer(max(count, 1) * kernels.FIELDS * 8)
        fields = np.frombuffer(block, np.int64).reshape(kernels.FIELDS, max(count, 1))
        data = byte_view(frames.data)
        odd, start = np.zeros(kernels.ODD, np.int64), first_address(file, frames.kind)
        address = start + frames.base if start >= 0 else -1
        rows, _, status = kernels.decode_entries(data, frames.starts, frames.stops, with_crc, address, fields, odd)
        assert status == Status.OK
        return cls(frames, data, fields[:, :rows], start, odd)

    def __len__(self) -> int:
        return int(self.fields.shape[1])

    def __getitem__(self, field: int) -> NDArray[np.int64]:
        values: NDArray[np.int64] = self.fields[field]
        return values

    def cut(self, start: int, stop: int) -> Messages:
        return Messages(self.frames, self.data, self.fields[:, start:stop], self.start, self.odd)

    def with_addresses(self, addresses: NDArray[np.int64]) -> Messages:
        """The same messages with other physical offsets."""
        fields = self.fields.copy()
        fields[kernels.F_PHYSICAL] = addresses
        return Messages(self.frames, self.data, fields, self.start, self.odd)

    def where(self, keep: NDArray[np.bool_]) -> Messages:
        if keep.all():
            return self
        fields = np.ascontiguousarray(
            self.fields[:, keep]
        )  # numpy turns the order of the axes round; kernels take rows
        return Messages(self.frames, self.data, fields, self.start, self.odd)

    @property
    def crc_ok(self) -> NDArray[np.bool_]:
        is_right: NDArray[np.bool_] = self[kernels.F_CRC_OK] != 0
        return is_right

    @property
    def positions(self) -> NDArray[np.int64]:
        """Of the messages (not of DLedger's heads) in the file."""
        positions: NDArray[np.int64] = self[kernels.F_START] + self.frames.base
        return positions

    @property
    def stale(self) -> NDArray[np.bool_]:
        """Which messages say that they are at another place."""
        if self.start < 0 or not self.odd[kernels.O_STALE]:
            return np.zeros(len(self), np.bool_)
        is_stale: NDArray[np.bool_] = self[kernels.F_PHYSICAL] != self.positions + self.start
        return is_stale

    def leftovers(self, file: File) -> NDArray[np.bool_]:
        """Which messages are left after the end of a truncated log: each names another address, and the same message is there. Any other
        message with a wrong address was moved or changed.
        """
        is_leftover = self.stale
        if is_leftover.any():
            starts = self[kernels.F_START][is_leftover].tolist()
            heads = [bytes(self.data[start : start + HEAD.size]) for start in starts]
            is_leftover[is_leftover] = are_copies(file, self.start, self[kernels.F_PHYSICAL][is_leftover], heads)
        return is_leftover

    @property
    def fillers(self) -> NDArray[np.bool_]:
        """Which entries only cover a hole that `repair` left: by their flag and a host without a port."""
        if not self.odd[kernels.O_FILLER]:
            return np.zeros(len(self), np.bool_)
        is_filler: NDArray[np.bool_] = self[kernels.F_FLAG] == FILLER_FLAG
        if is_filler.any():
            rows = np.flatnonzero(is_filler)
            host = self.data[self[kernels.F_BORN_HOST][rows][:, None] + np.arange(HOST_V4.size)]
            is_filler[rows] = (host == np.frombuffer(_FILLER_HOST, np.uint8)).all(axis=1)
        return is_filler

    def entry_crcs(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The messages with a checksum of the whole entry (`__CRC32#`), the computed and the stored checksums."""
        from rawlog.io.checksums import crc32_spans

        none = np.empty(0, np.int64)
        which = np.flatnonzero(self[kernels.F_PROPERTIES_SIZE] >= CRC_PROPERTY_SIZE)
        at = (self[kernels.F_PROPERTIES] + self[kernels.F_PROPERTIES_SIZE])[which] - CRC_PROPERTY_SIZE
        name = CRC_PROPERTY + bytes([NAME_VALUE])
        if not which.size:
            return none, none, none
        same = (self.data[at[:, None] + np.arange(len(name))] == np.frombuffer(name, np.uint8)).all(axis=1)
        which, at = which[same], at[same]
        if not which.size:
            return none, none, none
        sums = crc32_spans(self.data, self[kernels.F_START][which], at) & CRC_MASK
        digits = self.data[(at + len(name))[:, None] + np.arange(10)].astype(np.int64) - ord("0")
        return which, sums, (digits * 10 ** np.arange(10)).sum(axis=1)

    @property
    def entry_crc_ok(self) -> NDArray[np.bool_]:
        """False where a checksum of the whole entry is there and wrong."""
        is_right = np.ones(len(self), np.bool_)
        which, sums, stored = self.entry_crcs()
        is_right[which] = sums == stored
        return is_right

    @property
    def sound(self) -> NDArray[np.bool_]:
        """Which messages are at their place with all checksums right: those that `repair` keeps."""
        return self.crc_ok & ~self.stale & self.entry_crc_ok

    def frame_position(self, row: int) -> int:
        return int(self.frames.positions[self[kernels.F_FRAME][row]])

    @property
    def codecs(self) -> NDArray[np.int64]:
        """0 for none, else 1 and the compression type."""
        flags = self[kernels.F_SYS_FLAG]
        return np.where(flags & SysFlag.COMPRESSED, ((flags & CODEC_MASK) >> CODEC_SHIFT) + 1, 0)

    def _crc(self, row: int) -> tuple[int, int]:
        """The computed and the stored checksum of the body of a message."""
        from rawlog.io.checksums import crc32

        start, size = int(self[kernels.F_BODY][row]), int(self[kernels.F_BODY_SIZE][row])
        return crc32(self.data, start, start + size) & CRC_MASK, int(self[kernels.F_CRC][row])

    def has_crc(self, row: int) -> bool:
        """Whether the body of one message has its checksum."""
        computed, stored = self._crc(row)
        return computed == stored

    def crc_error(self, row: int) -> CorruptError:
        computed, stored = self._crc(row)
        return CorruptError(
            f"body crc {computed:08x}, stored {stored & 0xFFFF_FFFF:08x}",
            position=self.frame_position(row),
            layout=HEAD.name,
            field="body_crc",
            expected=f"{stored & 0xFFFF_FFFF:08x}",
            found=f"{computed:08x}",
        )


def are_copies(file: File, start: int, addresses: NDArray[np.int64], heads: Sequence[bytes]) -> NDArray[np.bool_]:
    """Which messages, by their heads, are also at the address they name. `file` begins at the address `start`; other files of the log are
    next to it.
    """
    from rawlog.io.storage import Source

    copies = np.zeros(addresses.size, np.bool_)
    if not file.size:
        return copies
    starts = np.where((addresses >= start) & (addresses < start + file.size), start, addresses // file.size * file.size)
    for first in np.unique(starts[addresses >= 0]).tolist():
        path = file.path if first == start else f"{file.path.rpartition('/')[0]}/{first:020}"
        try:
            with Source(path) as source:
                for row in np.flatnonzero(starts == first).tolist():
                    copies[row] = source.read(int(addresses[row]) - first, HEAD.size) == heads[row]
        except (RawlogError, OSError):
            continue  # no such file
    return copies


def micros(milliseconds: NDArray[np.int64]) -> pa.Array:
    """A timestamp column; null for a number beyond what it can hold."""
    if not milliseconds.size or (int(milliseconds.max()) <= MOST_MS and int(milliseconds.min()) >= -MOST_MS):
        return columns.timestamps(milliseconds * 1000)
    valid = (milliseconds <= MOST_MS) & (milliseconds >= -MOST_MS)
    return columns.timestamps(np.where(valid, milliseconds, 0) * 1000, None if valid.all() else valid)


def out_of_line(times: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which store times contradict both neighbours, while these fit each other.

    A broker takes store times from a clock that does not fall, and no checksum covers them. The last one has nothing after it to judge by.
    """
    wrong = np.zeros(times.size, np.bool_)
    if times.size > 2:
        before, current, after = times[:-2], times[1:-1], times[2:]
        wrong[1:-1] = (before <= after) & ((current < before) | (current > after))
        wrong[0] = times[1] <= times[2] < times[0]
    return wrong
