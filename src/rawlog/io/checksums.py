"""Checksums over spans of a buffer: long spans by the libraries, many short ones in one kernel call."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawlog.kernels import byte_view, crc
from rawlog.model.status import Status

LONG_CRC32C = 16384
"""From this many bytes a span on, a call of the library costs less than it wins."""
LONG_CRC32 = 384


def crc32c(data: Any, start: int = 0, stop: int | None = None) -> int:
    """CRC-32C (Castagnoli) of `data[start:stop]`."""
    return _library_crc32c()(_part(data, start, stop))


def crc32(data: Any, start: int = 0, stop: int | None = None) -> int:
    """CRC-32 (IEEE 802.3, as zlib's) of `data[start:stop]`."""
    return _library_crc32()(_part(data, start, stop))


def crc32c_spans(data: Any, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[np.int64]:
    """CRC-32C of every span `data[starts[i]:stops[i]]`."""
    return _spans(data, starts, stops, crc.crc32c_spans, _library_crc32c, LONG_CRC32C)


def crc32_spans(data: Any, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[np.int64]:
    """CRC-32 of every span `data[starts[i]:stops[i]]`."""
    return _spans(data, starts, stops, crc.crc32_spans, _library_crc32, LONG_CRC32)


@cache
def _library_crc32c() -> Callable[[Any], int]:
    """Imported when first used: it costs more than all else that reading a small file imports of ours."""
    import crc32c

    return crc32c.crc32c


@cache
def _library_crc32() -> Callable[[Any], int]:
    import deflate

    return deflate.crc32


def _part(data: Any, start: int, stop: int | None) -> Any:
    view = byte_view(data)
    stop = view.size if stop is None else stop
    assert 0 <= start <= stop <= view.size, (start, stop, view.size)
    return view[start:stop]


def _spans(
    data: Any,
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    kernel: Callable[..., tuple[int, int, int]],
    library: Callable[[], Callable[[Any], int]],
    long: int,
) -> NDArray[np.int64]:
    view = byte_view(data)
    starts, stops = np.ascontiguousarray(starts, np.int64), np.ascontiguousarray(stops, np.int64)
    assert starts.size == stops.size
    out = np.empty(starts.size, np.int64)
    sizes = stops - starts
    is_long = sizes >= long
    if not is_long.any():
        _, _, status = kernel(view, starts, stops, out)
        assert status == Status.OK, "a span outside the data"
        return out
    assert min(starts.min(), sizes.min()) >= 0, "a span outside the data"
    assert stops.max() <= view.size, "a span outside the data"
    short = np.flatnonzero(~is_long)
    if short.size:
        part = np.empty(short.size, np.int64)
        kernel(view, starts[short], stops[short], part)
        out[short] = part
    window: Any = memoryview(view)  # type: ignore[arg-type]
    sum_of = library()
    for index in np.flatnonzero(is_long).tolist():
        out[index] = sum_of(window[starts[index] : stops[index]])
    return out
