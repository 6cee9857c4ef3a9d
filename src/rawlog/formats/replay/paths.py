"""How a recording is recognised: by its first bytes, since its name says nothing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rawlog.core.errors import TruncatedError, UnsupportedError
from rawlog.core.format import Origin
from rawlog.core.layout import Layout
from rawlog.formats.replay.layouts import ENTRIES, FILE_HEADER, LARGEST, VERSIONS

if TYPE_CHECKING:
    from rawlog.io.storage import Source

_TIME_V0 = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


def sniff(head: bytes, size: int) -> bool:
    """Whether a file that begins with `head` is a recording: by its header, or by an entry where that is not sure."""
    if _TIME_V0.match(head):
        return _credible(head, 0, ENTRIES[0], size, whole=False)
    version = int.from_bytes(head[: FILE_HEADER.after("version")], "big", signed=True)
    reserved_is_zero = not any(head[FILE_HEADER.at("reserved") : FILE_HEADER.size])
    if version not in VERSIONS:
        # A version of tomorrow, or one with a wrong bit: still a recording if what follows the zeros is an entry.
        layouts = [ENTRIES[known] for known in VERSIONS]
        return (
            reserved_is_zero
            and (-1 <= version <= 15 or any((version ^ known).bit_count() == 1 for known in VERSIONS))
            and any(_credible(head, FILE_HEADER.size, layout, size, whole=True) for layout in layouts)
            and _credible_time(head)
        )
    if len(head) < FILE_HEADER.size:
        return reserved_is_zero and len(head) > FILE_HEADER.after("version")
    if size == FILE_HEADER.size:
        return reserved_is_zero
    # Its own header is enough, whatever damage follows; with another's reserved bytes the first entry must bear it out.
    return reserved_is_zero or _credible(head, FILE_HEADER.size, ENTRIES[version], size, whole=True)


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
    raw = head[FILE_HEADER.size : FILE_HEADER.size + ENTRIES[1].field("timestamp").size]
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
