"""Messages: the fields of the messages in a window of a commit log, a NumPy array per field."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog.formats.rocketmq.kernels import entries as kernels
from rawlog.formats.rocketmq.layouts import (
    CODEC_MASK,
    CODEC_SHIFT,
    CRC_MASK,
    CRC_PROPERTY,
    CRC_PROPERTY_SIZE,
    FILLER_FLAG,
    HEAD,
    HOST_V4,
    NAME_VALUE,
    SysFlag,
)
from rawlog.kernels import byte_view, columns
from rawlog.model.errors import CorruptError, RawlogError
from rawlog.model.format import File
from rawlog.model.frames import Bytes, Frames
from rawlog.model.status import Status

MOST_MS = ((1 << 63) - 1) // 1000
"""The latest millisecond that microseconds can hold."""
_FILLER_HOST = bytes([127, 0, 0, 1, 0, 0, 0, 0])


def first_address(file: File, kind: int) -> int:
    """The physical offset of a file's first byte: by its name, else by its first message; -1 if neither says it."""
    return kind if file.place.start_offset is None else file.place.start_offset


CUT_PROPERTIES = 2
"""Zero bytes at the end of properties that show that something was written over them."""


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
    def are_properties_cut(self) -> NDArray[np.bool_]:
        """Whose properties end in zero bytes: a broker writes none there, and only the body has a checksum that all messages carry."""
        sizes = self[kernels.F_PROPERTIES_SIZE]
        rows = np.flatnonzero(sizes >= CUT_PROPERTIES)
        ends = (self[kernels.F_PROPERTIES] + sizes)[rows]
        is_cut = np.zeros(len(self), np.bool_)
        is_cut[rows] = (self.data[ends[:, None] - np.arange(1, CUT_PROPERTIES + 1)] == 0).all(axis=1)
        return is_cut

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
