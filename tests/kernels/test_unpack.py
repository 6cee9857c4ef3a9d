"""Blocks decompressed in kernels are what the libraries make of them, and nothing is taken that they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cramjam
import lz4.block
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rawlog.kernels import byte_view
from rawlog.kernels.gather import SLACK
from rawlog.kernels.unpack import NOT_TAKEN, unpack_lz4, unpack_snappy

MOST = 65536
LIBRARIES: dict[str, tuple[Any, Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    "snappy": (
        unpack_snappy,
        lambda data: bytes(cramjam.snappy.compress_raw(data)),
        lambda block: bytes(cramjam.snappy.decompress_raw(block)),
    ),
    "lz4": (
        unpack_lz4,
        lambda data: lz4.block.compress(data, store_size=False),
        lambda block: lz4.block.decompress(block, uncompressed_size=MOST),
    ),
}


def contents() -> st.SearchStrategy[bytes]:
    """Noise, runs, patterns of every period, and mixtures: literals and matches of all lengths, near and far."""
    piece = st.one_of(
        st.binary(max_size=90),
        st.tuples(st.binary(min_size=1, max_size=40), st.integers(1, 60)).map(lambda two: two[0] * two[1]),
        st.sampled_from([bytes(5000), bytes(range(256)) * 9]),
    )
    return st.lists(piece, min_size=1, max_size=8).map(b"".join).filter(bool)


def unpacked(kernel: Any, block: bytes, room: int, to: int = 3) -> bytes | None:
    out = np.zeros(to + room + SLACK, np.uint8)
    count = int(kernel(byte_view(block), 0, len(block), out, to, MOST))
    assert not out[:to].any()
    return None if count == NOT_TAKEN else out[to : to + count].tobytes()


@pytest.mark.parametrize("codec", LIBRARIES)
@settings(deadline=None)
@given(data=contents(), short=st.integers(1, 50))
def test_blocks_come_back_where_there_is_room(codec: str, data: bytes, short: int) -> None:
    kernel, compress, _ = LIBRARIES[codec]
    block = compress(data)
    assert unpacked(kernel, block, len(data)) == data
    assert unpacked(kernel, block, max(len(data) - short, 0)) is None


@pytest.mark.parametrize("codec", LIBRARIES)
@settings(deadline=None)
@given(
    data=contents(), damage=st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=3), cut=st.integers(0, 9)
)
def test_what_is_taken_is_what_the_library_takes(
    codec: str, data: bytes, damage: list[tuple[int, int]], cut: int
) -> None:
    kernel, compress, decompress = LIBRARIES[codec]
    block = bytearray(compress(data))
    for place, byte in damage:
        block[place % len(block)] = byte
    del block[len(block) - min(cut, len(block)) :]
    found = unpacked(kernel, bytes(block), MOST)
    if found is not None:
        assert decompress(bytes(block)) == found


@pytest.mark.parametrize("codec", LIBRARIES)
@settings(deadline=None)
@given(data=st.one_of(st.binary(max_size=60), contents().filter(lambda one: len(one) < 2000)), whole=st.booleans())
def test_any_bytes_stay_inside_the_arrays_compiled_or_not(plain: Any, codec: str, data: bytes, whole: bool) -> None:
    """The plain twins of the copies assert their places."""
    kernel, compress, _ = LIBRARIES[codec]
    block = compress(data) if whole and data else data
    out = np.zeros(2000 + SLACK, np.uint8)
    count = int(kernel(byte_view(block), 0, len(block), out, 3, MOST))
    result, arguments = plain(
        "rawlog.kernels.unpack", kernel.__name__, byte_view(block), 0, len(block), np.zeros_like(out), 3, MOST
    )
    assert int(result) == count
    if count != NOT_TAKEN:
        assert arguments[3][3 : 3 + count].tobytes() == out[3 : 3 + count].tobytes()
