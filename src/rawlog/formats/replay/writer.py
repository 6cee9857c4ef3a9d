"""Writing recordings: rows of `records` become a file that kafka-replay reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rawlog.formats.replay import kernels
from rawlog.formats.replay.layouts import FILE_HEADER, LARGEST, NO_TIME_SECONDS
from rawlog.kernels import byte_view
from rawlog.kernels.gather import SLACK
from rawlog.model.errors import EncodeError, OptionError, unknown
from rawlog.model.format import Judge
from rawlog.model.status import Status

OPTIONS = ("version",)


def version_of(options: Mapping[str, str]) -> int:
    """The file version asked for, 2 by default. OptionError if there is no such version, or for another option."""
    for name in options:
        if name not in OPTIONS:
            raise unknown("option of replay", name, OPTIONS)
    text = options.get("version", "2")
    if text not in ("0", "1", "2"):
        raise OptionError(f"version {text!r} of replay.recording: 0, 1 or 2 expected")
    return int(text)


def encode(batches: Iterable[pa.RecordBatch], options: Mapping[str, str]) -> Iterator[bytes]:
    """The bytes of a recording: its header, then the entries of each batch. EncodeError for what no entry can hold."""
    version = version_of(options)
    if version:
        yield file_header(version)
    for batch in batches:
        if batch.num_rows:
            yield entries(batch, version)


def file_header(version: int) -> bytes:
    """What a recording of version 1 or 2 begins with."""
    return version.to_bytes(FILE_HEADER.after("version"), "big").ljust(FILE_HEADER.size, b"\0")


def entries(batch: pa.RecordBatch, version: int) -> bytes:
    """The encoded entries of rows. EncodeError for a row that no entry can hold."""
    key_offsets, keys = _binary(batch.column("key"))
    value_offsets, values = _binary(batch.column("value"))
    past, size = kernels.measure_entries(version, key_offsets, value_offsets)
    if past >= 0:
        raise EncodeError(
            f"row {past:,}: a key or value above {LARGEST:,} bytes, the most that a recording is read with"
        )
    out = np.empty(size + SLACK, np.uint8)
    done, _, status = kernels.encode_entries(
        version, _times(batch, version), key_offsets, keys, value_offsets, values, out
    )
    if status != Status.OK:
        raise EncodeError(f"row {done:,}: a time outside the years 0 to 9999, which version 0 cannot hold")
    return out[:size].tobytes()


def _binary(array: pa.Array) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Offsets and bytes of a binary column, nulls as empty."""
    array = pc.fill_null(array, b"") if array.null_count else array
    _, offsets, values = array.buffers()
    ends = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    return ends, byte_view(values if values is not None else b"")


def _times(batch: pa.RecordBatch, version: int) -> NDArray[np.int64]:
    """Seconds (microseconds for version 0); no time is what kafka-replay writes for it."""
    micros = batch.column("timestamp").cast(pa.int64())
    absent = NO_TIME_SECONDS * 1_000_000
    stored: NDArray[np.int64] = pc.fill_null(micros, absent).to_numpy()
    return stored if version == 0 else stored // 1_000_000


def losses(options: Mapping[str, str]) -> Judge:
    """What rows of `records` would read back otherwise than they are. OptionError for invalid options."""
    version = version_of(options)
    seen = 0

    def judge(batch: pa.RecordBatch) -> dict[str, NDArray[np.bool_]]:
        nonlocal seen
        key, time = batch.column("key"), batch.column("timestamp")
        numbers = pa.array(np.arange(seen, seen + batch.num_rows))
        seen += batch.num_rows
        times = _mask(time.is_null())
        if version:
            times |= pc.fill_null(time.cast(pa.int64()), 0).to_numpy() % 1_000_000 != 0
        return {
            "key": _mask(pc.equal(pc.binary_length(key), 0) if version == 2 else key.is_valid()),
            "value": _mask(batch.column("value").is_null()),
            "topic": _mask(batch.column("topic").is_valid()),
            "partition": _mask(batch.column("partition").is_valid()),
            "offset": _mask(pc.not_equal(batch.column("offset"), numbers)),
            "timestamp": times,
            "timestampType": _mask(pc.not_equal(batch.column("timestampType"), 0)),
            "headers": _mask(pc.greater(pc.list_value_length(batch.column("headers")), 0)),
        }

    return judge


def _mask(test: Any) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = pc.fill_null(test, False).to_numpy(zero_copy_only=False)
    return mask.copy()
