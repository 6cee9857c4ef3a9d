from __future__ import annotations

import zlib

import crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rawlog.io import checksums

DATA = np.random.default_rng(7).integers(0, 256, 100_000, np.uint8)
LIBRARY = {"crc32c": crc32c.crc32c, "crc32": zlib.crc32}


def test_check_values() -> None:
    assert checksums.crc32c(b"123456789") == 0xE3069283
    assert checksums.crc32(b"123456789") == 0xCBF43926
    assert checksums.crc32(b"xx123456789yy", 2, 11) == 0xCBF43926
    assert checksums.crc32c(memoryview(b"xx123456789yy"), 2, 11) == 0xE3069283


@pytest.mark.parametrize("name", LIBRARY)
@settings(deadline=None, max_examples=40)
@given(draw=st.data())
def test_spans_short_and_long_equal_the_library(name: str, draw: st.DataObject) -> None:
    size = st.one_of(st.integers(0, 50), st.integers(300, 400), st.integers(16_000, 17_000))
    spans = draw.draw(st.lists(st.tuples(st.integers(0, 80_000), size), max_size=6))
    starts = np.array([start for start, _ in spans], np.int64)
    stops = np.array([start + size for start, size in spans], np.int64)
    sums = getattr(checksums, f"{name}_spans")(DATA, starts, stops)
    expected = [LIBRARY[name](DATA[start : start + size].tobytes()) for start, size in spans]
    assert sums.dtype == np.int64
    assert sums.tolist() == expected
