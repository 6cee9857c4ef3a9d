from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rawlog.kernels import byte_view, hashes


def joined(words: tuple[int, ...]) -> bytes:
    return b"".join(int(one).to_bytes(4, "big") for one in words)


def room() -> Any:
    return np.zeros(hashes.SCRATCH, np.uint8), np.zeros(hashes.STEPS, np.int64)


@given(st.binary(max_size=300), st.binary(max_size=3))
def test_it_is_the_librarys(data: bytes, before: bytes) -> None:
    found = hashes.sha1(byte_view(before + data), len(before), len(data), *room())
    assert joined(found) == hashlib.sha1(data).digest()


@pytest.mark.parametrize("size", [0, 1, 55, 56, 57, 63, 64, 65, 119, 120, 128, 1000])
def test_every_way_a_message_can_end(plain: Any, size: int) -> None:
    data = bytes(number % 251 for number in range(size))
    reported = hashlib.sha1(data).digest()
    assert joined(hashes.sha1(byte_view(data), 0, size, *room())) == reported
    assert joined(plain("rawlog.kernels.hashes", "sha1", byte_view(data), 0, size, *room())[0]) == reported
