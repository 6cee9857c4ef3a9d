from __future__ import annotations

import zlib
from typing import Any

import crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rawlog.kernels import byte_view, crc
from rawlog.model.status import Status

SIZES = [0, 1, 7, 8, 9, 15, 16, 17, 383, 384, 385, 767, 3071, 3072, 3073, 3456, 10000]
LIBRARY = {"crc32c": crc32c.crc32c, "crc32": zlib.crc32}


def test_check_values() -> None:
    data = byte_view(b"123456789")
    assert crc.sum_crc32c(data, 0, 9) == crc.sum_crc32c_by_tables(data, 0, 9) == 0xE3069283
    assert crc.sum_crc32(data, 0, 9) == 0xCBF43926


@pytest.mark.parametrize("size", SIZES)
def test_every_way_gives_the_librarys_sum(plain: Any, size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size + 5, np.uint8)
    part = data[3 : 3 + size].tobytes()
    assert crc.sum_crc32c(byte_view(data), 3, 3 + size) == crc32c.crc32c(part)
    assert crc.sum_crc32c_by_tables(byte_view(data), 3, 3 + size) == crc32c.crc32c(part)
    assert crc.sum_crc32(byte_view(data), 3, 3 + size) == zlib.crc32(part)
    assert plain("rawlog.kernels.crc", "sum_crc32c", data, 3, 3 + size)[0] == crc32c.crc32c(part)


@pytest.mark.parametrize("name", LIBRARY)
@settings(deadline=None, max_examples=60)
@given(data=st.binary(max_size=600), draw=st.data())
def test_sums_of_spans_compiled_or_not(plain: Any, name: str, data: bytes, draw: st.DataObject) -> None:
    bound = st.integers(-1, len(data) + 1)
    spans = draw.draw(st.lists(st.tuples(bound, bound), max_size=6))
    starts = np.array([start for start, _ in spans], np.int64)
    stops = np.array([stop for _, stop in spans], np.int64)
    out = np.zeros(len(spans), np.int64)
    count, position, status = getattr(crc, f"{name}_spans")(byte_view(data), starts, stops, out)
    good = 0
    while good < len(spans) and 0 <= spans[good][0] <= spans[good][1] <= len(data):
        good += 1
    assert count == good
    assert status == (Status.OK if good == len(spans) else Status.BAD_LENGTH)
    assert out[:count].tolist() == [LIBRARY[name](data[start:stop]) for start, stop in spans[:good]]
    result, arguments = plain("rawlog.kernels.crc", f"{name}_spans", byte_view(data), starts, stops, out * 0)
    assert tuple(result) == (count, position, status)
    assert arguments[3].tolist() == out.tolist()


def test_multiplication_gives_the_tables_sum_at_every_size() -> None:
    """Steps of 64 bytes, lanes of 16 and the rest: each combination, at every alignment."""
    data = np.random.default_rng(5).integers(0, 256, 1000, np.uint8)
    for size in [*range(340), 700, 960]:
        for start in (0, 1, 13):
            wanted = zlib.crc32(data[start : start + size].tobytes())
            assert crc.sum_crc32(byte_view(data), start, start + size) == wanted
            assert crc.sum_crc32_by_tables(byte_view(data), start, start + size) == wanted
