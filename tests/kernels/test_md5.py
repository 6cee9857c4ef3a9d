from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rawlog.kernels import byte_view, hashes


def joined(pair: tuple[int, int]) -> bytes:
    return b"".join(int(one).to_bytes(8, "little", signed=True) for one in pair)


def scratch() -> Any:
    return np.zeros(hashes.SCRATCH, np.uint8)


@given(st.binary(max_size=300), st.binary(max_size=3))
def test_it_is_the_librarys(data: bytes, before: bytes) -> None:
    found = hashes.md5(byte_view(before + data), len(before), len(data), scratch())
    assert joined(found) == hashlib.md5(data).digest()


@pytest.mark.parametrize("size", [0, 1, 55, 56, 57, 63, 64, 65, 119, 120, 128, 1000])
def test_every_way_a_message_can_end(plain: Any, size: int) -> None:
    data = bytes(number % 251 for number in range(size))
    assert joined(hashes.md5(byte_view(data), 0, size, scratch())) == hashlib.md5(data).digest()
    assert (
        joined(plain("rawlog.kernels.hashes", "md5", byte_view(data), 0, size, scratch())[0])
        == hashlib.md5(data).digest()
    )
