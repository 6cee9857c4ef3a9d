"""Text columns and property columns from spans of bytes that a kernel found.

RocketMQ defines topics and properties as UTF-8 and checks nowhere that they are. Bytes that are not read as in Java, where brokers and
clients show U+FFFD for them, so that no row is refused; a finding reports them, and the column `headers` of `records` has the values' own
bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog.core.frames import Bytes
from rawlog.core.status import Status
from rawlog.core.tables import HEADERS, arrow_type
from rawlog.core.text import java_text
from rawlog.formats.rocketmq.kernels import fill
from rawlog.formats.rocketmq.kernels import text as kernels
from rawlog.formats.rocketmq.layouts import SysFlag
from rawlog.kernels.gather import SLACK

USUAL = 12
MAP = arrow_type("map<string,string>")
_KIND = arrow_type(HEADERS)


def string_view(array: pa.Array) -> pa.Array:
    """A binary array as strings, which it is known to hold."""
    return pa.Array.from_buffers(pa.string(), len(array), array.buffers(), array.null_count, array.offset)


def as_text(array: pa.Array) -> tuple[pa.Array, frozenset[str]]:
    """A binary array as strings. What is not UTF-8 reads as in Java; those texts are also returned."""
    text, values = string_view(array), array.buffers()[2]
    if not values or not values.size or int(np.frombuffer(values, np.uint8).max()) < 0x80:
        return text, frozenset()  # ASCII throughout: no need to look at each
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        pairs = [(raw, None if raw is None else java_text(raw)) for raw in array.to_pylist()]
        odd = frozenset(read for raw, read in pairs if read is not None and "\ufffd" in read and read.encode() != raw)
        return pa.array([read for _, read in pairs], pa.string()), odd
    return text, frozenset()


class Filled:
    """The columns of any size of a run of messages, filled by one pass over them.

    `numbers` are positions and sizes by place (`kernels.fill.N_…`), `wanted` says which columns (`W_…`). Of properties `every` takes
    all pieces in stored order; else what RocketMQ shows: of a repeated name the last, no empty values. `replaced` has the texts of each
    column whose bytes are not UTF-8.
    """

    def __init__(
        self, data: Bytes, bodies: Bytes, numbers: Sequence[NDArray[np.int64]], wanted: int, *, every: bool
    ) -> None:
        self.rows = numbers[0].size
        assert not self.rows or data.size >= kernels.BLOCK, "less than a message"
        strings = int(numbers[fill.N_PROPERTIES_SIZE].sum()) if wanted & fill.W_PROPERTIES else 0
        # Room for properties of a usual size first: memory that is never touched costs too. Then for as many as there can be.
        for pairs in (strings // USUAL + self.rows, strings + self.rows + 1):
            self._allocate(numbers, wanted, strings, pairs)
            status = fill.fill_rows(
                data,
                bodies,
                tuple(numbers),
                wanted,
                every,
                tuple(_bytes_of(text) for text in self._texts),
                tuple(_numbers_of(offsets) for offsets in self._offsets),
                self._valid,
                self.good,
                self._totals,
            )[2]
            if status == Status.OK:
                break
        assert status == Status.OK, "room for fewer properties than their bytes can hold"
        self.totals = self._totals.tolist()
        self.replaced: dict[int, frozenset[str]] = {}

    def _allocate(self, numbers: Sequence[NDArray[np.int64]], wanted: int, strings: int, pairs: int) -> None:
        rows = self.rows
        self._totals = np.zeros(fill.TOTALS, np.int64)
        self.good = np.empty(rows if wanted & fill.W_CRC else 0, np.bool_)
        sizes, counts = [0] * (fill.COLUMNS + 1), [-1] * (fill.COLUMNS + 1)
        for column, bit in _WANTED:
            if wanted & bit:
                sizes[column], counts[column] = strings, rows
        if wanted & fill.W_PAIRS:
            counts[fill.C_NAME] = counts[fill.C_VALUE] = pairs
        for column, bit, number in (
            (fill.C_BODY, fill.W_BODY, fill.N_BODY_SIZE),
            (fill.C_TOPIC, fill.W_TOPIC, fill.N_TOPIC_SIZE),
        ):
            if wanted & bit:
                sizes[column] = int(numbers[number].sum())
        hosts = ((fill.C_BORN_HOST, SysFlag.BORNHOST_V6), (fill.C_STORE_HOST, SysFlag.STOREHOST_V6))
        for column, mask in (*hosts, (fill.C_ID, SysFlag.STOREHOST_V6)):
            if counts[column] >= 0:
                v4, v6 = _ID if column == fill.C_ID else _HOST
                sizes[column] = rows * v4 + int(np.count_nonzero(numbers[fill.N_SYS_FLAG] & mask)) * (v6 - v4)
        self._texts = [
            pa.allocate_buffer(sizes[column] + SLACK) if counts[column] >= 0 else None for column in range(fill.COLUMNS)
        ]
        self._offsets = [pa.allocate_buffer((count + 1) * 4) if count >= 0 else None for count in counts]
        self._valid = tuple(
            np.full((counts[column] + 7) // 8, 0xFF, np.uint8) if column in _NULLABLE else _NO_BYTES
            for column in range(fill.COLUMNS)
        )

    def bytes(self, column: int) -> pa.Array:
        """A column as it is (`kernels.fill.C_…`), null where a message has none."""
        count = self.totals[fill.T_PAIRS] if column in (fill.C_NAME, fill.C_VALUE) else self.rows
        nulls = self.totals[fill.T_NULLS + column]
        mask = pa.py_buffer(self._valid[column]) if nulls else None
        text, size = self._texts[column], self.totals[column]
        assert text is not None
        return pa.Array.from_buffers(pa.binary(), count, [mask, self._offsets[column], text.slice(0, size)], nulls)

    def text(self, column: int) -> pa.Array:
        """A column as strings; what is not UTF-8 reads as in Java."""
        known = column not in (fill.C_BODY, fill.C_TOPIC) and not self.totals[fill.T_HIGH]
        if known or column >= fill.C_BORN_HOST:
            return string_view(self.bytes(column))
        text, self.replaced[column] = as_text(self.bytes(column))
        return text

    def map(self) -> pa.Array:
        """The properties as a map."""
        names, values = self.text(fill.C_NAME), self.text(fill.C_VALUE)
        pairs = pa.StructArray.from_arrays([names, values], fields=[MAP.key_field, MAP.item_field])
        return pa.Array.from_buffers(MAP, self.rows, [None, self._offsets[fill.C_ROW]], 0, 0, [pairs])

    def headers(self) -> pa.Array:
        """The properties as headers."""
        names, values = self.text(fill.C_NAME), self.bytes(fill.C_VALUE)
        pairs = pa.StructArray.from_arrays([names, values], fields=list(_KIND.value_type))
        return pa.ListArray.from_buffers(_KIND, self.rows, [None, self._offsets[fill.C_ROW]], 0, 0, [pairs])


_WANTED = (
    (fill.C_BODY, fill.W_BODY),
    (fill.C_TOPIC, fill.W_TOPIC),
    (fill.C_NAME, fill.W_PAIRS),
    (fill.C_VALUE, fill.W_PAIRS),
    (fill.C_ROW, fill.W_PAIRS),
    (fill.C_KEYS, fill.W_KEYS),
    (fill.C_TAGS, fill.W_TAGS),
    (fill.C_UNIQUE, fill.W_UNIQUE),
    (fill.C_BORN_HOST, fill.W_BORN_HOST),
    (fill.C_STORE_HOST, fill.W_STORE_HOST),
    (fill.C_ID, fill.W_ID),
)
_NULLABLE = frozenset({fill.C_VALUE, fill.C_KEYS, fill.C_TAGS, fill.C_UNIQUE})
_HOST, _ID = (kernels.HOST_TEXT_V4, kernels.HOST_TEXT_V6), (kernels.ID_V4, kernels.ID_V6)
_NO_BYTES, _NO_NUMBERS = np.empty(0, np.uint8), np.empty(0, np.int32)


def _bytes_of(buffer: pa.Buffer | None) -> Bytes:
    return _NO_BYTES if buffer is None else np.frombuffer(buffer, np.uint8)


def _numbers_of(buffer: pa.Buffer | None) -> NDArray[np.int32]:
    return _NO_NUMBERS if buffer is None else np.frombuffer(buffer, np.int32)
