"""What a kernel may answer. Kernels see the plain integers; everyone else the enumeration."""

from __future__ import annotations

from enum import IntEnum


class Status(IntEnum):
    """The outcome of a kernel, with the words an error or finding uses for it."""

    OK = 0
    FULL = 1
    TRUNCATED = 2
    BAD_LENGTH = 3
    BAD_MAGIC = 4
    BAD_COUNT = 5
    BAD_VARINT = 6
    BAD_CRC = 7
    BAD_CODEC = 8
    BAD_VALUE = 9
    TRAILING = 10
    PADDING = 11
    #: Only of a walk, not of a kernel: the header of the file cannot be read.
    BAD_HEADER = 12

    @property
    def is_damage(self) -> bool:
        """Whether the bytes contradict the format (an unfinished or zero-filled tail does not)."""
        return Status.TRUNCATED < self < Status.PADDING or self is Status.BAD_HEADER


OK = 0
FULL = 1
TRUNCATED = 2
BAD_LENGTH = 3
BAD_MAGIC = 4
BAD_COUNT = 5
BAD_VARINT = 6
BAD_CRC = 7
BAD_CODEC = 8
BAD_VALUE = 9
TRAILING = 10
PADDING = 11
