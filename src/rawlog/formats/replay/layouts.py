"""The bytes of kafka-replay recordings.

Authority: kafka-replay v2.3.0 (pkg/transcoder) for versions 1 and 2, v0.10.0 for the headerless version 0; checked
against recordings those releases made. All integers are big-endian.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rawlog.model.errors import TruncatedError, UnsupportedError
from rawlog.model.format import Origin
from rawlog.model.layout import Field, Layout
from rawlog.model.table import Column, Table

if TYPE_CHECKING:
    from rawlog.io.storage import Source


VERSIONS = (1, 2)
LARGEST = 104_857_600  # bytes of a key or value that the original reads (100 MiB)
NO_TIME_SECONDS = -62_135_596_800  # Go's zero time: the record had no timestamp, or one not above 0
LATEST_CREDIBLE = 10**11  # seconds; beyond it milliseconds were stored by mistake

FILE_HEADER = Layout(
    "file header",
    Field("version", ">i4", "1 or 2; version 0 has no header"),
    Field("reserved", "S16", "written as zeros, not looked at by the original reader"),
)

ENTRY_V2 = Layout(
    "entry v2",
    Field("timestamp", ">i8", "the Kafka record's timestamp in whole seconds"),
    Field("key_size", ">i8", "0 to 104 857 600; 0 is no key or an empty one"),
    Field("value_size", ">i8", "0 to 104 857 600; 0 is not a value or an empty one"),
)

ENTRY_V1 = Layout(
    "entry v1",
    Field("timestamp", ">i8", "the Kafka record's timestamp in whole seconds"),
    Field("value_size", ">i8", "0 to 104 857 600"),
)

TIME_V0_SIZE = 27

ENTRY_V0 = Layout(
    "entry v0",
    Field("time", f"S{TIME_V0_SIZE}", "YYYY-MM-DDTHH:MM:SS.ffffffZ, the clock of the recording machine"),
    Field("value_size", ">i8", "0 to 104 857 600"),
)

ENTRY_LAYOUTS = {0: ENTRY_V0, 1: ENTRY_V1, 2: ENTRY_V2}


# ----------------------------------------------------------------------------------------------------------------------
# The tables of recordings beyond `records`.


ENTRIES = Table(
    "replay.entries",
    Column("path", "string"),
    Column("version", "int", "of the file: 0, 1 or 2"),
    Column("position", "bigint"),
    Column("size", "bigint"),
    Column("number", "bigint", "counted from 0"),
    Column("timestamp", "timestamp"),
    Column("key", "binary"),
    Column("value", "binary"),
    about="one row per entry of a recording",
    offsets=("number", "number"),
    times=("timestamp", "timestamp"),
    payload={"key": "key", "value": "value"},
    row_key={"number": "offset"},
)


# ----------------------------------------------------------------------------------------------------------------------
# How a recording is recognised: by its first bytes, since its name says nothing.


_TIME_V0 = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


def sniff(head: bytes, size: int) -> bool:
    """Whether a file that begins with `head` is a recording: by its header, or by its first entry if the header is not certain."""
    if _TIME_V0.match(head):
        return _credible(head, 0, ENTRY_LAYOUTS[0], size, whole=False)
    version = int.from_bytes(head[: FILE_HEADER.after("version")], "big", signed=True)
    reserved_is_zero = not any(head[FILE_HEADER.at("reserved") : FILE_HEADER.size])
    if version not in VERSIONS:
        # A version of tomorrow, or one with a wrong bit: still a recording if what follows the zeros is an entry.
        layouts = [ENTRY_LAYOUTS[supported] for supported in VERSIONS]
        return (
            reserved_is_zero
            and (-1 <= version <= 15 or any((version ^ supported).bit_count() == 1 for supported in VERSIONS))
            and any(_credible(head, FILE_HEADER.size, layout, size, whole=True) for layout in layouts)
            and _credible_time(head)
        )
    if len(head) < FILE_HEADER.size:
        return reserved_is_zero and len(head) > FILE_HEADER.after("version")
    if size == FILE_HEADER.size:
        return reserved_is_zero
    # Its own header is enough, whatever damage follows; with another's reserved bytes the first entry must bear it out.
    return reserved_is_zero or _credible(head, FILE_HEADER.size, ENTRY_LAYOUTS[version], size, whole=True)


def _credible(head: bytes, start: int, layout: Layout, size: int, *, whole: bool) -> bool:
    """Whether the lengths of the entry at `start` are valid; `whole` asks for the entry to be there to its last byte."""
    end = start + layout.size
    if len(head) < end:
        return not whole
    for field in layout.fields:
        if field.name.endswith("_size"):
            at = start + layout.at(field.name)
            length = int.from_bytes(head[at : at + field.size], "big", signed=True)
            if not 0 <= length <= LARGEST:
                return False
            end += length
    return not whole or end <= size


def _credible_time(head: bytes) -> bool:
    """Whether the first entry's time lies between 2000 and 2100: only then is a header of no known version taken for one."""
    raw = head[FILE_HEADER.size : FILE_HEADER.size + ENTRY_LAYOUTS[1].field("timestamp").size]
    return 946_684_800 <= int.from_bytes(raw, "big", signed=True) < 4_102_444_800


def presume(source: Source) -> list[Origin]:
    """Where entries begin if the header does not say their version: of the newest version first."""
    return [Origin(FILE_HEADER.size, version) for version in sorted(VERSIONS, reverse=True)]


def begin(head: bytes, size: int) -> Origin:
    """Where the entries begin and of which version they are; DataError if the header is cut or of no known version."""
    if size == 0 or _TIME_V0.match(head):
        return Origin(0, 0)
    if size < FILE_HEADER.size:
        raise TruncatedError(
            f"file header of {size} bytes, {FILE_HEADER.size} expected",
            position=0,
            layout=FILE_HEADER.name,
            expected=FILE_HEADER.size,
            found=size,
        )
    version = int.from_bytes(head[: FILE_HEADER.after("version")], "big", signed=True)
    if version not in VERSIONS:
        raise UnsupportedError(
            f"unsupported protocol version: {version} (supported versions: 1, 2)",
            position=0,
            layout=FILE_HEADER.name,
            field="version",
            expected="1 or 2",
            found=version,
        )
    return Origin(FILE_HEADER.size, version)
