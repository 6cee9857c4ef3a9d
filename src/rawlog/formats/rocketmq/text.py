"""Text columns and property columns from spans of bytes that a kernel found.

RocketMQ defines topics and properties as UTF-8 and checks nowhere that they are. Bytes that are not stay visible as `\\xNN`, as
Python's `backslashreplace` writes them, so that no row is refused and nothing vanishes; a finding tells of them, and the column
`headers` of `records` has the values' own bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog import columns
from rawlog.formats.rocketmq.kernels import text as kernels
from rawlog.formats.rocketmq.layouts import SysFlag
from rawlog.frames import Bytes
from rawlog.kernels.gather import SLACK
from rawlog.status import Status
from rawlog.tables import HEADERS, arrow_type

USUAL = 12
MAP = arrow_type("map<string,string>")
_KIND = arrow_type(HEADERS)


def as_text(array: pa.Array) -> pa.Array:
    """A binary array as strings; what is not UTF-8 is escaped."""
    text = pa.Array.from_buffers(pa.string(), len(array), array.buffers(), array.null_count, array.offset)
    values = array.buffers()[2]
    if not values or not values.size or int(np.frombuffer(values, np.uint8).max()) < 0x80:
        return text  # ASCII throughout: no need to look at each
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return pa.array([None if raw is None else escaped(raw) for raw in array.to_pylist()], pa.string())
    return text


def escaped(raw: bytes) -> str:
    """Bytes as text, with `\\xNN` for what is not UTF-8."""
    return raw.decode("utf-8", "backslashreplace")


def texts(
    data: Bytes, starts: NDArray[np.int64], sizes: NDArray[np.int64], valid: NDArray[np.bool_] | None = None
) -> pa.Array:
    """A string column of runs of `data`."""
    return as_text(columns.spans(data, starts, sizes, valid))


@dataclass(slots=True)
class Pairs:
    """Where the properties of a run of messages stand, and the well-known ones among them."""

    data: Bytes
    row_offsets: pa.Buffer
    pairs: NDArray[np.int32]
    count: int
    rows: int
    special: NDArray[np.int64]

    @classmethod
    def find(cls, data: Bytes, starts: NDArray[np.int64], sizes: NDArray[np.int64], *, every: bool) -> Pairs:
        """All pieces in stored order, or (not `every`) what RocketMQ shows: of a repeated name the last, no empty values."""
        rows, total = starts.size, int(sizes.sum())
        offsets = pa.allocate_buffer((rows + 1) * 4)
        special = np.empty((kernels.SPECIAL, rows), np.int64)
        marks = np.empty((int(sizes.max()) if rows else 0) + kernels.MARKS_MORE, np.int32)
        # Room for properties of a usual size first: memory that is never touched costs too. Then for as many as there can be.
        for room in (total // USUAL + rows, total + rows + 1):
            block = pa.allocate_buffer(max(room, 1) * 16)
            pairs = np.frombuffer(block, np.int32).reshape(4, max(room, 1))
            count, _, status = kernels.find_pairs(
                data, starts, sizes, every, marks, special, np.frombuffer(offsets, np.int32), pairs
            )
            if status == Status.OK:
                break
        assert status == Status.OK, "room for fewer properties than their bytes can hold"
        return cls(data, offsets, pairs, int(count), rows, special)

    def special_text(self, start: int) -> pa.Array:
        """A well-known property (`kernels.S_KEYS` …) as text, null where a message has none."""
        sizes = self.special[start + 1]
        return texts(self.data, self.special[start], sizes, sizes >= 0)

    def special_bytes(self, start: int) -> pa.Array:
        sizes = self.special[start + 1]
        return columns.spans(self.data, self.special[start], sizes, sizes >= 0)

    def _gather(self) -> tuple[pa.Array, pa.Array]:
        """Names and values, both binary."""
        count = self.count
        sizes = self.pairs[1, :count]
        value_sizes = np.maximum(self.pairs[3, :count], 0)
        total, value_total = int(sizes.sum(dtype=np.int64)), int(value_sizes.sum(dtype=np.int64))
        made = [pa.allocate_buffer((count + 1) * 4), pa.allocate_buffer(total + SLACK)]
        made += [pa.allocate_buffer((count + 1) * 4), pa.allocate_buffer(value_total + SLACK)]
        valid = np.full((count + 7) // 8, 0xFF, np.uint8)
        nulls = kernels.gather_pairs(
            self.data,
            self.pairs,
            count,
            np.frombuffer(made[0], np.int32),
            np.frombuffer(made[1], np.uint8),
            np.frombuffer(made[2], np.int32),
            np.frombuffer(made[3], np.uint8),
            valid,
        )
        names = pa.Array.from_buffers(pa.binary(), count, [None, made[0], made[1].slice(0, total)], 0)
        mask = pa.py_buffer(valid) if nulls else None
        values = pa.Array.from_buffers(pa.binary(), count, [mask, made[2], made[3].slice(0, value_total)], int(nulls))
        return names, values

    def map(self) -> pa.Array:
        names, values = self._gather()
        return pa.MapArray.from_arrays(
            pa.Array.from_buffers(pa.int32(), self.rows + 1, [None, self.row_offsets]),
            as_text(names),
            as_text(values),
            type=MAP,
        )

    def headers(self) -> pa.Array:
        names, values = self._gather()
        pairs = pa.StructArray.from_arrays([as_text(names), values], fields=list(_KIND.value_type))
        return pa.ListArray.from_buffers(_KIND, self.rows, [None, self.row_offsets], 0, 0, [pairs])


def hosts(data: Bytes, positions: NDArray[np.int64], flags: NDArray[np.int64], mask: SysFlag) -> pa.Array:
    """Addresses and ports as text, as Java shows them."""
    room = positions.size * kernels.LARGEST_HOST + SLACK
    return _formatted(
        positions.size, room, lambda offsets, out: kernels.format_hosts(data, positions, flags, int(mask), offsets, out)
    )


def message_ids(
    data: Bytes, positions: NDArray[np.int64], flags: NDArray[np.int64], physical: NDArray[np.int64]
) -> pa.Array:
    """Upstream offsetMsgId: store host and physical offset in hex."""
    room, scratch = positions.size * 56 + SLACK, np.empty(8, np.uint8)
    mask = int(SysFlag.STOREHOST_V6)
    return _formatted(
        positions.size,
        room,
        lambda offsets, out: kernels.format_ids(data, positions, flags, mask, physical, scratch, offsets, out),
    )


def _formatted(count: int, room: int, fill: Any) -> pa.Array:
    offsets, out = pa.allocate_buffer((count + 1) * 4), pa.allocate_buffer(room, resizable=True)
    written = int(fill(np.frombuffer(offsets, np.int32), np.frombuffer(out, np.uint8)))
    return pa.Array.from_buffers(pa.string(), count, [None, offsets, out.slice(0, written)], 0)
