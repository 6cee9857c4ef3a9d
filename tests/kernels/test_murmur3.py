from __future__ import annotations

from typing import Any

import mmh3
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rawlog.kernels import byte_view, hashes


@given(values=st.lists(st.binary(max_size=40), max_size=8))
def test_spans_hash_as_iceberg_does_compiled_or_not(plain: Any, values: list[bytes]) -> None:
    """mmh3 is the library that PyIceberg hashes with."""
    stops = np.cumsum([len(one) for one in values], dtype=np.int64)
    starts = stops - np.array([len(one) for one in values], np.int64)
    out = np.zeros(len(values), np.int64)
    given_ = byte_view(b"".join(values)), starts, stops
    assert hashes.murmur3_spans(*given_, out)[0] == len(values)
    assert out.tolist() == [mmh3.hash(one, signed=False) for one in values]
    result, arrays = plain("rawlog.kernels.hashes", "murmur3_spans", *given_, np.zeros_like(out))
    assert result[0] == len(values)
    assert arrays[-1].tolist() == out.tolist()
