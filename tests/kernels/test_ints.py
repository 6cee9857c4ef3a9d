from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rawlog.kernels import byte_view


def expected_reads(data: bytes, position: int, names: tuple[str, ...]) -> list[int]:
    return [int(np.frombuffer(data, name, 1, position)[0]) for name in names]


@settings(deadline=None)
@given(data=st.binary(min_size=8, max_size=24), at=st.data())
def test_readers_agree_with_numpy_compiled_or_not(plain: Any, wrappers: Any, data: bytes, at: st.DataObject) -> None:
    position = at.draw(st.integers(0, len(data) - 8))
    out = np.zeros(12, np.int64)
    wrappers.read_all(byte_view(data), position, out)
    expected = expected_reads(data, position, wrappers.READERS)
    assert out.tolist() == expected
    _, arguments = plain(None, "read_all", byte_view(data), position, np.zeros(12, np.int64))
    assert arguments[2].tolist() == expected


@settings(deadline=None)
@given(value=st.integers(-(1 << 63), (1 << 63) - 1))
def test_writers_store_the_low_bits_compiled_or_not(plain: Any, wrappers: Any, value: int) -> None:
    out = np.zeros(60, np.uint8)
    wrappers.write_all(out, 3, value)
    for index, name in enumerate(wrappers.WRITERS):
        size = np.dtype(name).itemsize
        low = (value & (1 << 8 * size) - 1).to_bytes(size, "big" if name[0] == ">" else "little")
        assert out[3 + 8 * index :][:size].tobytes() == low
    _, arguments = plain(None, "write_all", np.zeros(60, np.uint8), 3, value)
    assert arguments[0].tobytes() == out.tobytes()


def test_positions_beyond_two_gibibytes(tmp_path: Path, wrappers: Any) -> None:
    """A sparse file of more than 2**32 bytes: nothing may be counted in 32 bits."""
    position = (1 << 32) + 11
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.seek(position)
        file.write(bytes(range(200, 216)))
    data = byte_view(np.memmap(path, np.uint8, "r"))
    out = np.zeros(12, np.int64)
    wrappers.read_all(data, position, out)
    assert out.tolist() == expected_reads(bytes(range(200, 216)), 0, wrappers.READERS)
    assert wrappers.read_varint(byte_view(data), position - 1, data.size) == (0, position)
    target = np.zeros(16, np.uint8)
    wrappers.copy(target, 0, data, position, 16)
    assert target.tobytes() == bytes(range(200, 216))
