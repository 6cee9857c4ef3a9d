from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.formats.kafka.log.kernels import compact as kernels
from rawlog.kernels import byte_view
from rawlog.model.status import FULL, OK


def test_a_map_that_is_full_ends_in_front_of_the_next_key(plain: Any) -> None:
    data, keys, sizes = byte_view(b"abcabd"), np.arange(6), np.array([1, 1, -1, 1, 1, 1])
    digests = np.zeros((2, 6), np.int64)
    kernels.digest_keys(data, keys, sizes, 3, 4, digests)
    _, left = plain(
        "rawlog.formats.kafka.log.kernels.compact",
        "digest_keys",
        data,
        keys,
        sizes,
        3,
        4,
        np.zeros((2, 6), np.int64),
    )
    assert np.array_equal(left[5], digests)

    offsets, firsts, lasts = np.arange(10, 16), np.array([0, 3, 6]), np.array([12, 15])
    table, state = np.zeros((7, 3), np.int64), np.array([0, -1], np.int64)
    arguments = (digests, sizes, offsets, firsts, lasts, 0, 10, 2, table, state)
    before = tuple(one.copy() if isinstance(one, np.ndarray) else one for one in arguments)
    # The map has a and b. A third key would not fit, so the next record with a key has to wait, although it is an a.
    assert kernels.map_keys(*arguments) == (1, 3, FULL)
    assert state.tolist() == [2, 12]
    result, left = plain("rawlog.formats.kafka.log.kernels.compact", "map_keys", *before)
    assert tuple(result) == (1, 3, FULL)
    assert np.array_equal(left[8], table)
    assert np.array_equal(left[9], state)

    larger = np.zeros((50, 3), np.int64)
    assert kernels.move_keys(table, larger) == (7, 2, OK)
    assert sorted(larger[larger[:, 2] > 0].tolist()) == sorted(table[table[:, 2] > 0].tolist())
    assert kernels.map_keys(digests, sizes, offsets, firsts, lasts, 3, 10, 40, larger, state)[2] == OK
    assert state.tolist() == [3, 15]
    keep = np.zeros(6, np.bool_)
    nulls = np.array([False, False, False, False, True, False])
    judged = (digests, sizes, offsets, firsts, np.array([True, False]), nulls, larger, 15, keep)
    before = tuple(one.copy() if isinstance(one, np.ndarray) else one for one in judged)
    assert kernels.judge_records(*judged) == (2, 1, OK)
    assert keep.tolist() == [False, False, False, True, False, True]
    result, left = plain("rawlog.formats.kafka.log.kernels.compact", "judge_records", *before)
    assert tuple(result) == (2, 1, OK)
    assert np.array_equal(left[8], keep)
