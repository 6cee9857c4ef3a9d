"""Values that are JSON texts: checked, and on one line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rawlog.core.text import safe_json
from rawlog.kernels.columns import spans
from rawlog.kernels.documents import check_documents

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: How deeply texts are nested that the kernel checks; Python's parser takes about as much.
DEPTH = 500
SPACE = 0x20
_SPACES = bytes.maketrans(b"\r\n\t", b"   ")
_SPACE_TABLE = np.frombuffer(_SPACES, np.uint8)


def texts(
    data: NDArray[np.uint8], starts: NDArray[np.int64], stops: NDArray[np.int64]
) -> tuple[NDArray[np.int64], pa.Array]:
    """The runs of bytes that are JSON, by number, and their texts. Python's parser decides what the kernel is not sure of."""
    begins, ends = np.empty(starts.size, np.int64), np.empty(starts.size, np.int64)
    check_documents(data, starts, stops, np.empty(DEPTH, np.uint8), begins, ends)
    sure = np.flatnonzero(ends >= 0)
    found = spans(data, begins[sure], ends[sure] - begins[sure])
    numbers, parts = [sure], [_on_one_line(found)]
    slow, more = [], []
    for number in np.flatnonzero(ends < 0).tolist():
        try:
            more.append(to_json(data[starts[number] : stops[number]].tobytes()))
            slow.append(number)
        except ValueError:
            continue
    if slow:
        numbers.append(np.array(slow, np.int64))
        parts.append(pa.array(more, pa.string()))
    return np.concatenate(numbers), pa.concat_arrays(parts)


def _on_one_line(found: pa.Array) -> pa.Array:
    """Texts without line ends and tabs. Inside strings these are escaped, so that all of them are white space between values."""
    _, offsets, values = found.buffers()
    data = np.frombuffer(values or b"", np.uint8)
    if data.size and data.min() < SPACE:
        values = pa.py_buffer(_SPACE_TABLE[data])
    return pa.Array.from_buffers(pa.string(), len(found), [None, offsets, values], 0, found.offset)


def to_json(body: bytes) -> str:
    """A JSON text on one line, its numbers as they are written. ValueError if it is not JSON in UTF-8."""
    text = body.decode("utf-8")
    try:
        json.loads(text, parse_float=str, parse_int=str, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return safe_json(body.translate(_SPACES).decode("utf-8").strip())


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
