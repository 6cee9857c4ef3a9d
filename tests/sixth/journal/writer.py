"""Writing journals: rows of `records` become entries. Lengths and checksums are computed here; nobody can pass them in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rawlog.kernels import byte_view
from rawlog.kernels.gather import SLACK
from rawlog.model.errors import EncodeError, OptionError, unknown
from rawlog.model.format import Judge
from rawlog.model.status import Status
from tests.sixth.journal import kernels
from tests.sixth.journal.layouts import (
    ALIGNMENT,
    ENTRY,
    FILE_HEADER,
    FILE_MAGIC,
    LARGEST,
    NO_TIME,
    POSITION,
    STEP,
    VERSION,
)

OPTIONS = ("segment_bytes",)
SEGMENT_BYTES = 64 << 20


def segment_bytes(options: Mapping[str, str]) -> int:
    """From which size on a new segment is begun. OptionError for another option, or a value that is not a number."""
    for name in options:
        if name not in OPTIONS:
            raise unknown("option of journal", name, OPTIONS)
    text = options.get("segment_bytes", str(SEGMENT_BYTES))
    if not text.isdecimal() or not int(text):
        raise OptionError(f"segment_bytes {text!r} of journal: a number of bytes above 0 expected")
    return int(text)


def file_header(first_number: int, previous_stop: int) -> bytes:
    """What a segment begins with."""
    return np.array([(FILE_MAGIC, VERSION, first_number, previous_stop)], FILE_HEADER.dtype).tobytes()


def encode(batch: pa.RecordBatch, numbers: NDArray[np.int64]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The entries of a batch of `records`, end to end, and where each begins. EncodeError for rows that no entry can hold."""
    (key_ends, keys, has_key), (value_ends, values, has_value) = (
        _binary(batch.column(name)) for name in ("key", "value")
    )
    sizes = ENTRY.size + np.diff(key_ends).astype(np.int64) + np.diff(value_ends)
    stops = np.cumsum(-(-sizes // ALIGNMENT) * ALIGNMENT)
    room = int(stops[-1])
    times = pc.fill_null(batch.column("timestamp").cast(pa.int64()), NO_TIME).to_numpy()
    out = np.empty(room + SLACK, np.uint8)
    done, _, status = kernels.encode_entries(
        numbers, times, key_ends, keys, has_key, value_ends, values, has_value, out
    )
    if status != Status.OK:
        raise EncodeError(f"row {done:,}: a key or value above {LARGEST:,} bytes, the most that an entry holds")
    return out[:room], np.append(0, stops[:-1])


def _binary(array: pa.Array) -> tuple[NDArray[np.int32], NDArray[np.uint8], NDArray[np.bool_]]:
    """Offsets and bytes of a binary column, and which rows are not null."""
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    array = pc.fill_null(array, b"") if array.null_count else array
    _, offsets, values = array.buffers()
    found = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    return found, byte_view(values if values is not None else b""), valid


def encode_positions(numbers: NDArray[np.int64], positions: NDArray[np.int64]) -> bytes:
    """The index of a segment whose entries have these numbers and positions."""
    chosen = numbers % STEP == 0
    rows = np.empty(int(chosen.sum()), POSITION.dtype)
    rows["number"], rows["position"] = numbers[chosen], positions[chosen]
    return rows.tobytes()


def losses(options: Mapping[str, str]) -> Judge:
    """Which rows of `records` would read back differently, by column. OptionError for an option that does not exist.

    Where a row has nothing (null), there is nothing to lose.
    """
    segment_bytes(options)
    numbering = Numbering()

    def judge(batch: pa.RecordBatch) -> dict[str, NDArray[np.bool_]]:
        given, written = batch.column("offset"), pa.array(numbering.of(batch))
        return {
            "partition": _mask(pc.not_equal(batch.column("partition"), 0)),
            "offset": _mask(pc.not_equal(given, written)),
            "timestampType": _mask(pc.not_equal(batch.column("timestampType"), 0)),
            "headers": _mask(pc.greater(pc.list_value_length(batch.column("headers")), 0)),
        }

    return judge


def _mask(test: Any) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = pc.fill_null(test, False).to_numpy(zero_copy_only=False)
    return found.copy()


class Numbering:
    """The numbers that rows get: their offsets, as long as these rise in each journal, else the next number."""

    def __init__(self) -> None:
        self.last: dict[str | None, int] = {}

    def of(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        """The numbers of the rows of a batch, which follows those that were asked for before."""
        numbers = np.empty(batch.num_rows, np.int64)
        rows = zip(batch.column("topic").to_pylist(), batch.column("offset").to_pylist(), strict=True)
        for row, (topic, offset) in enumerate(rows):
            last = self.last.get(topic, -1)
            numbers[row] = self.last[topic] = offset if offset is not None and offset > last else last + 1
        return numbers
