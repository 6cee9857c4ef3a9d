"""SipHash with 128 bits: against the vectors that its authors publish, and against the algorithm in plain Python."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rawlog.kernels import byte_view, hashes

MASK = (1 << 64) - 1
#: Of the key 00 01 … 0f and of messages of none, one and two of the bytes 00 01.
VECTORS = ("a3817f04ba25a8e66df67214c7550293", "da87c1d86b99af44347659119b22fc45", "8177228da4a45dc7fca38bdef60affe4")


def signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def joined(pair: tuple[int, int]) -> bytes:
    return b"".join(int(number).to_bytes(8, "little", signed=True) for number in pair)


def turned(number: int, bits: int) -> int:
    return (number << bits | number >> (64 - bits)) & MASK


def reference(message: bytes, first: int, second: int, rounds: int, closing: int) -> bytes:
    a, b = first ^ 0x736F6D6570736575, second ^ 0x646F72616E646F6D ^ 0xEE
    c, d = first ^ 0x6C7967656E657261, second ^ 0x7465646279746573

    def mix(times: int) -> None:
        nonlocal a, b, c, d
        for _ in range(times):
            a = (a + b) & MASK
            b = turned(b, 13) ^ a
            a = turned(a, 32)
            c = (c + d) & MASK
            d = turned(d, 16) ^ c
            a = (a + d) & MASK
            d = turned(d, 21) ^ a
            c = (c + b) & MASK
            b = turned(b, 17) ^ c
            c = turned(c, 32)

    padded = message + bytes(-(len(message) + 1) % 8) + bytes([len(message) & 0xFF])
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        d ^= word
        mix(rounds)
        a ^= word
    c ^= 0xEE
    mix(closing)
    low = a ^ b ^ c ^ d
    b ^= 0xDD
    mix(closing)
    return low.to_bytes(8, "little") + (a ^ b ^ c ^ d).to_bytes(8, "little")


@pytest.mark.parametrize("size", range(len(VECTORS)))
def test_published_vectors(plain: Any, size: int) -> None:
    first, second = (int.from_bytes(bytes(range(start, start + 8)), "little") for start in (0, 8))
    arguments = byte_view(bytes(range(size))), 0, size, first, second, 2, 4
    assert joined(hashes.siphash(*arguments)).hex() == VECTORS[size]
    assert joined(plain("rawlog.kernels.hashes", "siphash", *arguments)[0]).hex() == VECTORS[size]


numbers = st.integers(0, MASK)


@given(st.binary(max_size=300), st.binary(max_size=3), numbers, numbers)
def test_it_is_the_algorithm(data: bytes, before: bytes, first: int, second: int) -> None:
    view = byte_view(before + data)
    result = hashes.siphash(view, len(before), len(data), signed(first), signed(second), 1, 3)
    assert joined(result) == reference(data, first, second, 1, 3)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 63, 64, 255, 256, 1000])
def test_every_way_a_message_can_end(plain: Any, size: int) -> None:
    data = bytes(number % 251 for number in range(size))
    arguments = byte_view(data), 0, size, -5, 7, 1, 3
    assert joined(hashes.siphash(*arguments)) == reference(data, MASK - 4, 7, 1, 3)
    assert joined(plain("rawlog.kernels.hashes", "siphash", *arguments)[0]) == reference(data, MASK - 4, 7, 1, 3)
