from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rawlog.kernels import byte_view

VECTORS = {
    0: "00",
    -1: "01",
    1: "02",
    63: "7e",
    -64: "7f",
    64: "8001",
    2147483647: "feffffff0f",
    -2147483648: "ffffffff0f",
}


def reference(data: bytes, position: int, bits: int, signed: bool) -> tuple[int, int]:
    """Kafka's rules, in words of Python: 5 or 10 bytes, then an error; bits beyond the width are dropped."""
    value = 0
    for index in range(5 if bits == 32 else 10):
        if position + index >= len(data):
            return 0, -1
        byte = data[position + index]
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            value &= (1 << bits) - 1
            return ((value >> 1) ^ -(value & 1) if signed else value), position + index + 1
    return 0, -1


READERS = {"read_varint": (32, True), "read_varlong": (64, True), "read_uvarint": (32, False)}
groups = st.lists(st.sampled_from([0x80, 0xFF, 0x81, 0x00, 0x01, 0x7F, 0x0F, 0x10]), max_size=12).map(bytes)


@pytest.mark.parametrize("name", READERS)
@settings(deadline=None, max_examples=60)
@given(data=st.one_of(groups, st.binary(max_size=12)), position=st.integers(0, 2))
def test_readers_follow_kafkas_rules_compiled_or_not(
    plain: Any, wrappers: Any, name: str, data: bytes, position: int
) -> None:
    expected = reference(data, position, *READERS[name])
    value, after = getattr(wrappers, name)(byte_view(data), position, len(data))
    assert (value if after >= 0 else 0, after) == expected
    (value, after), _ = plain(None, name, byte_view(data), position, len(data))
    assert (value if after >= 0 else 0, after) == expected


@pytest.mark.parametrize("value", VECTORS)
def test_vectors_of_the_specification(wrappers: Any, value: int) -> None:
    data = bytes.fromhex(VECTORS[value])
    assert wrappers.read_varint(byte_view(data), 0, len(data)) == (value, len(data))
    out = np.zeros(16, np.uint8)
    assert wrappers.write_varint(out, value) == (len(data), len(data))
    assert out[: len(data)].tobytes() == data


def test_long_forms() -> None:
    from rawlog.kernels import ints

    def read(text: str) -> Any:
        return ints.read_varint(byte_view(bytes.fromhex(text)), 0, len(text) // 2)

    assert read("8080808000") == (0, 5)  # not the shortest form: accepted
    assert read("80808080f0")[1] < 0  # bit 7 of the fifth byte
    assert read("8080808070") == (0, 5)  # bits 4 to 6 of it are dropped
    assert read("808080")[1] < 0


@pytest.mark.parametrize(
    ("name", "low", "high", "bits", "signed"),
    [
        ("varint", -(1 << 31), (1 << 31) - 1, 32, True),
        ("varlong", -(1 << 63), (1 << 63) - 1, 64, True),
        ("uvarint", 0, (1 << 32) - 1, 32, False),
    ],
)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_written_numbers_read_back_and_have_the_size_announced(
    plain: Any, wrappers: Any, name: str, low: int, high: int, bits: int, signed: bool, data: st.DataObject
) -> None:
    value = data.draw(st.one_of(st.integers(low, high), st.sampled_from([low, high]), st.integers(0, 200)))
    out = np.zeros(16, np.uint8)
    position, size = getattr(wrappers, f"write_{name}")(out, value)
    assert position == size
    assert reference(out[:size].tobytes(), 0, bits, signed) == (value, size)
    (result, arguments) = plain(None, f"write_{name}", np.zeros(16, np.uint8), value)
    assert tuple(result) == (size, size)
    assert arguments[0].tobytes() == out.tobytes()
