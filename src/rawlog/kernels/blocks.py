"""What MD5 and SHA-1 share: messages taken in by blocks of 64 bytes, the last of them filled up, and words of 32 bits turned round."""

from __future__ import annotations

from typing import Any

import numpy as np

from rawlog.kernels import inline
from rawlog.kernels.gather import SLACK, copy
from rawlog.kernels.ints import write_i8

BLOCK = 64
SCRATCH = BLOCK + SLACK
"""Bytes that a digest needs for a block of the message."""
LENGTH = BLOCK - 8
"""Where the last block has the length of the message."""
LOW = 0xFFFFFFFF
_END = 0x80


@inline
def turn(value: Any, bits: Any) -> Any:
    """A word turned to the left."""
    return ((value << bits) | (value >> (32 - bits))) & LOW


@inline
def fill_block(scratch: Any, data: Any, position: Any, left: Any) -> None:
    """Put the next block into `scratch`: of a message with so many bytes left, below zero if its end is marked already."""
    taken = max(min(left, np.int64(BLOCK)), np.int64(0))
    copy(scratch, 0, data, position, taken)
    for index in range(taken, BLOCK):
        write_i8(scratch, index, 0)
    if 0 <= left < BLOCK:
        write_i8(scratch, left, _END)
