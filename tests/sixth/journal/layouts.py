"""The bytes of journals. All integers are big-endian.

Authority: tests/sixth/reference.py, which stands for the source code of the system. Name the class and version that you checked here.
"""

from __future__ import annotations

from rawlog.model.layout import Field, Layout

FILE_MAGIC = b"JRNL"
VERSION = 1
ENTRY_MAGIC = 0x4A454E54  # "JENT": not zero, so zeros are never an entry
ALIGNMENT = 8
LARGEST = 1_000_000  # bytes of a key or value
STEP = 8  # the index has the entries whose number is a multiple of this
NONE = -1
NO_TIME = -(1 << 63)

FILE_HEADER = Layout(
    "file header",
    Field("magic", "S4", "`JRNL`"),
    Field("version", ">i4", "1"),
    Field(
        "first_number", ">i8", "entries of this segment have this number or a higher one; it is in the file's name too"
    ),
    Field(
        "previous_stop", ">i8", "the number after the last entry of the segment before; -1: there was no segment before"
    ),
)

ENTRY = Layout(
    "entry",
    Field("magic", ">u4", "0x4a454e54, `JENT`"),
    Field("crc", ">u4", "CRC-32C of all that follows this field, up to the end of the value"),
    Field("key_size", ">i4", "-1: no key; 0 is an empty key"),
    Field("value_size", ">i4", "-1: no value"),
    Field("number", ">i8", "higher than that of the entry before; numbers may be skipped"),
    Field("timestamp", ">i8", "microseconds since 1970; -2^63: none"),
)

POSITION = Layout(
    "position",
    Field("number", ">i8", "number of an entry, a multiple of 8"),
    Field("position", ">i8", "where it begins in the segment"),
)
