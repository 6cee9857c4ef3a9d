"""Reading commit logs: entries found and taken apart, and what they cover. `decoder` turns them into columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog.core.errors import CorruptError, DataError
from rawlog.core.format import NO_TIME, File, Spans
from rawlog.core.frames import Bytes, Frames
from rawlog.core.status import Status
from rawlog.formats.rocketmq.kernels import entries as kernels
from rawlog.formats.rocketmq.layouts import (
    BATCH_MASK,
    CODEC_MASK,
    CODEC_SHIFT,
    CRC_MASK,
    CRC_PROPERTY,
    CRC_PROPERTY_SIZE,
    FILLER_FLAG,
    HEAD,
    HOST_V4,
    NAME_VALUE,
    SMALLEST_FRAME,
    SMALLEST_V1,
    SysFlag,
)
from rawlog.kernels import byte_view, columns

MOST_MS = ((1 << 63) - 1) // 1000
"""The latest millisecond that microseconds can hold."""
_FILLER_HOST = bytes([127, 0, 0, 1, 0, 0, 0, 0])


def scan(data: Bytes, kind: int) -> Frames:
    """The whole entries of a window: messages, blank ones, DLedger's."""
    room = data.size // SMALLEST_V1 + 1
    while True:
        starts, stops = np.empty(room, np.int64), np.empty(room, np.int64)
        count, reached, code = kernels.scan_entries(byte_view(data), 0, starts, stops)
        if code != Status.FULL:
            break
        room = data.size // SMALLEST_FRAME + 1  # blank entries can be smaller than messages
    status = Status(code)
    if status in (Status.BAD_MAGIC, Status.TRUNCATED) and not data[reached:].any():
        status = Status.PADDING
    return Frames(data, starts[:count], stops[:count], int(reached), status, kind=kind)


def resync(data: Bytes, position: int, kind: int) -> int:
    """The next position at which a message begins whose parts add up and whose body has its checksum, or -1."""
    return int(kernels.find_entry(byte_view(data), position))


def fault(frames: Frames) -> DataError:
    """What is wrong with the entry at which the scan stopped."""
    head = bytes(frames.data[frames.reached : frames.reached + HEAD.after("magic")])
    total = int.from_bytes(head[HEAD.at("total_size") : HEAD.after("total_size")], "big", signed=True)
    magic = head[HEAD.at("magic") : HEAD.after("magic")]
    if frames.status is Status.BAD_MAGIC:
        return CorruptError(
            f"magic {magic.hex(' ')}: no entry begins here; a broker that reads this far takes it for the end of the log",
            position=frames.reached_in_file,
            layout=HEAD.name,
            field="magic",
            expected="da a3 20 a7, da a3 20 ab or cb d4 31 94",
            found=magic.hex(" "),
        )
    return CorruptError(
        f"entry size {total:,} does not fit the parts of the entry",
        position=frames.reached_in_file,
        layout=HEAD.name,
        field="total_size",
        found=total,
    )


def first_address(file: File, kind: int) -> int:
    """The physical offset of a file's first byte: by its name, else by its first message; -1 if neither tells."""
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
        found: NDArray[np.int64] = self.fields[field]
        return found

    def cut(self, start: int, stop: int) -> Messages:
        return Messages(self.frames, self.data, self.fields[:, start:stop], self.start, self.odd)

    def moved(self, addresses: NDArray[np.int64]) -> Messages:
        """The same messages with other physical offsets."""
        fields = self.fields.copy()
        fields[kernels.F_PHYSICAL] = addresses
        return Messages(self.frames, self.data, fields, self.start, self.odd)

    def where(self, keep: NDArray[np.bool_]) -> Messages:
        return self if keep.all() else Messages(self.frames, self.data, self.fields[:, keep], self.start, self.odd)

    @property
    def crc_ok(self) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = self[kernels.F_CRC_OK] != 0
        return found

    @property
    def positions(self) -> NDArray[np.int64]:
        """Of the messages (not of DLedger's heads) in the file."""
        found: NDArray[np.int64] = self[kernels.F_START] + self.frames.base
        return found

    @property
    def stale(self) -> NDArray[np.bool_]:
        """Which messages say that they stand elsewhere."""
        if self.start < 0 or not self.odd[kernels.O_STALE]:
            return np.zeros(len(self), np.bool_)
        found: NDArray[np.bool_] = self[kernels.F_PHYSICAL] != self.positions + self.start
        return found

    @property
    def fillers(self) -> NDArray[np.bool_]:
        """Which entries only cover a hole that `repair` found: the flag of such, and a host without a port."""
        if not self.odd[kernels.O_FILLER]:
            return np.zeros(len(self), np.bool_)
        found: NDArray[np.bool_] = self[kernels.F_FLAG] == FILLER_FLAG
        if found.any():
            rows = np.flatnonzero(found)
            host = self.data[self[kernels.F_BORN_HOST][rows][:, None] + np.arange(HOST_V4.size)]
            found[rows] = (host == np.frombuffer(_FILLER_HOST, np.uint8)).all(axis=1)
        return found

    def entry_crcs(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The messages that end with a checksum of the whole entry (`__CRC32#`), the one each has, and the one it should have."""
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
        found = np.ones(len(self), np.bool_)
        which, sums, stored = self.entry_crcs()
        found[which] = sums == stored
        return found

    def frame_position(self, row: int) -> int:
        return int(self.frames.positions[self[kernels.F_FRAME][row]])

    @property
    def codecs(self) -> NDArray[np.int64]:
        """0 for none, else 1 and the compression type."""
        flags = self[kernels.F_SYS_FLAG]
        return np.where(flags & SysFlag.COMPRESSED, ((flags & CODEC_MASK) >> CODEC_SHIFT) + 1, 0)

    def _crc(self, row: int) -> tuple[int, int]:
        """The checksum that the body of one message has, and the one it should have."""
        from rawlog.io.checksums import crc32

        start, size = int(self[kernels.F_BODY][row]), int(self[kernels.F_BODY_SIZE][row])
        return crc32(self.data, start, start + size) & CRC_MASK, int(self[kernels.F_CRC][row])

    def has_crc(self, row: int) -> bool:
        """Whether the body of one message has its checksum."""
        found, stored = self._crc(row)
        return found == stored

    def crc_error(self, row: int) -> CorruptError:
        found, stored = self._crc(row)
        return CorruptError(
            f"body crc {found:08x}, stored {stored & 0xFFFF_FFFF:08x}",
            position=self.frame_position(row),
            layout=HEAD.name,
            field="body_crc",
            expected=f"{stored & 0xFFFF_FFFF:08x}",
            found=f"{found:08x}",
        )


def micros(milliseconds: NDArray[np.int64]) -> pa.Array:
    """A timestamp column; null for a number beyond what it can hold."""
    if not milliseconds.size or (int(milliseconds.max()) <= MOST_MS and int(milliseconds.min()) >= -MOST_MS):
        return columns.timestamps(milliseconds * 1000)
    valid = (milliseconds <= MOST_MS) & (milliseconds >= -MOST_MS)
    return columns.timestamps(np.where(valid, milliseconds, 0) * 1000, None if valid.all() else valid)


def spans(frames: Frames, file: File) -> Spans:
    """Times and number of records of each frame. Raises as decode does for a wrong checksum.

    A row's time is that of birth in `records`, that of storing in `rocketmq.messages`: the frame covers both. Queue offsets are no
    offsets of the file, so none are given.
    """
    rows = Messages.take(frames, file)
    stale = rows.stale
    wrong = np.flatnonzero(~rows.crc_ok & ~stale)
    if wrong.size:
        raise rows.crc_error(int(wrong[0]))
    count = len(frames)
    low, high = np.full(count, NO_TIME), np.full(count, NO_TIME)
    born, stored = rows[kernels.F_BORN_TIME], rows[kernels.F_STORE_TIME]
    at = rows[kernels.F_FRAME]
    fits = (np.abs(born) <= MOST_MS) & (np.abs(stored) <= MOST_MS) & (born != NO_TIME) & (stored != NO_TIME)
    low[at[fits]] = np.minimum(born, stored)[fits] * 1000
    high[at[fits]] = np.maximum(born, stored)[fits] * 1000
    records = np.zeros(count, np.int64)
    packed = (rows[kernels.F_SYS_FLAG] & BATCH_MASK) == BATCH_MASK
    records[at] = np.where(stale | rows.fillers, 0, np.where(packed, -1, 1))
    return Spans(min_time=low, max_time=high, records=records)


def context(file: File, group: object, options: dict[str, str]) -> str | None:
    """The isolation asked for: decoding needs no other fact of the store."""
    return options.get("isolation")
