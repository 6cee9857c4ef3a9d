from __future__ import annotations

from typing import Any

import pytest

from rawlog.kernels import byte_view, hashes

# by the C library, through the PyPI package xxhash; seed 0
VECTORS = {
    b"": 0x02CC5D05,
    b"a": 0x550D7456,
    b"abc": 0x32D153FF,
    b"\x60\x40": 0x301A8268,
    b"123456789": 0x937BAD67,
    b"sixteen bytes ok": 0xBFCC4550,
    bytes(range(250)): 0x25CB4263,
    bytes(255) * 300: 0x41E1BDAC,
}


@pytest.mark.parametrize("data", VECTORS)
def test_known_values(plain: Any, data: bytes) -> None:
    assert hashes.sum_xxh32(byte_view(data), 0, len(data)) == VECTORS[data]
    assert plain("rawlog.kernels.hashes", "sum_xxh32", byte_view(data), 0, len(data))[0] == VECTORS[data]
