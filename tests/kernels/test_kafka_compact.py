from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.formats.kafka.kernels import compact as kernels
from rawlog.kernels import byte_view


def test_a_map_that_is_full_ends_in_front_of_the_next_key(plain: Any) -> None:
    data = byte_view(b"abcabd")
    firsts, lasts = np.array([0, 3, 6]), np.array([12, 15])
    offsets, keys = np.array([10, 11, 12, 13, 14, 15]), np.arange(6)
    sizes = np.array([1, 1, -1, 1, 1, 1])
    tables, states = np.zeros((7, 3), np.int64), np.array([0, -1], np.int64)
    arguments = (data, firsts, lasts, offsets, keys, sizes, 10, 2, tables, states, np.zeros(96, np.uint8))
    before = tuple(one.copy() if isinstance(one, np.ndarray) else one for one in arguments)
    assert kernels.map_keys(*arguments)[1:] == (3, 1)  # the map has a and b: the record at offset 13 has to wait
    assert states.tolist() == [2, 12]
    result, left = plain("rawlog.formats.kafka.kernels.compact", "map_keys", *before)
    assert tuple(result) == (1, 3, 1)
    assert left[9].tolist() == [2, 12]
    assert np.array_equal(left[8], tables)
