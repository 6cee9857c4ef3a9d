"""Keyed hashes and permutations of texts by kernels: those of hashlib, and of the masker's own Python."""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rawlog.kernels import byte_view, hashes, keyed
from rawlog.values.masker import Masker

SIZES = [0, 1, 51, 52, 55, 56, 60, 64, 100, 119, 120, 128, 300]


def room() -> Any:
    return np.zeros(hashes.SCRATCH, np.uint8), np.zeros(keyed.ROOM, np.int64)


class Plain(Masker):
    """A masker that uses no kernels."""

    _many = None  # type: ignore[assignment]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("secret", [b"a secret of a test", b"", b"k" * 64, b"k" * 65])
def test_a_stream_is_the_librarys(size: int, secret: bytes) -> None:
    message = bytes(number % 251 for number in range(size))
    block, numbers = room()
    keyed.keyed_stream(byte_view(message), size, keyed.key_pads(secret), block, numbers)
    wanted = hashlib.shake_256(hmac.digest(secret, message, "sha256")).digest(keyed.RATE)
    assert numbers[72 : 72 + keyed.RATE // 8].tobytes() == wanted


def test_the_compiler_changes_nothing(plain: Any) -> None:
    pads, data = keyed.key_pads(b"secret of a test"), byte_view(b"4111-1111 Ab")
    edges = np.array([0, 9, 12], np.int64)
    given = (data, edges[:-1], edges[1:], False, pads, np.zeros(200, np.uint8), *room(), *np.zeros((3, 20), np.int64))
    compiled, other = data.copy(), data.copy()
    keyed.permute_texts(*given, compiled)
    made = plain("rawlog.kernels.keyed", "permute_texts", *given, other)[1][-1]
    assert made.tobytes() == compiled.tobytes()
    assert compiled.tobytes() != data.tobytes()
    wanted = np.array([300, 7], np.int64)
    asked = (
        data,
        edges[:-1],
        np.diff(edges),
        wanted,
        pads,
        np.frombuffer(b"hash".ljust(100), np.uint8).copy(),
        *room(),
    )
    out = np.zeros(307, np.uint8)
    keyed.hash_texts(*asked, out)
    assert (
        plain("rawlog.kernels.keyed", "hash_texts", *asked, np.zeros(307, np.uint8))[1][-1].tobytes() == out.tobytes()
    )


@given(st.lists(st.binary(max_size=150), max_size=4), st.booleans())
def test_hashes_are_the_maskers(texts: list[bytes], keep_sizes: bool) -> None:
    many, one = Masker(b"secret of a test", keep_sizes=keep_sizes), Plain(b"secret of a test")
    one.keep_sizes = keep_sizes
    assert many.hash_all(texts) == [one.hash(text) for text in texts]


LETTERS = st.text("0123456789abzAZ -.@é٣", max_size=12) | st.text("01a", min_size=60, max_size=90)


@given(st.lists(LETTERS.map(str.encode) | st.binary(max_size=5), max_size=4))
@example([b"", b"1", b"ab", b"\xff1"])
def test_digits_are_the_maskers(texts: list[bytes]) -> None:
    assert Masker(b"secret of a test").digits_all(texts) == Plain(b"secret of a test").digits_all(texts)


NUMBERS = st.integers().map(str) | st.floats(allow_nan=False, allow_infinity=False).map(repr)


@given(NUMBERS)
@example("-0.5")
@example("1E5")
@example("10")
@example("-7")
@example("-0")
def test_numbers_are_the_maskers(text: str) -> None:
    found = Masker(b"secret of a test").number(text.encode())
    assert found == Plain(b"secret of a test").number(text.encode())
    float(found)
