"""Using the index files beside a log segment: to cut it for several readers, and to begin near an offset.

An index file is only trusted where a sound message header stands at the position its name gives.
"""

from __future__ import annotations

from collections.abc import Sequence

from rawlog.core.errors import RawlogError
from rawlog.core.format import File
from rawlog.core.status import OK
from rawlog.formats.ambry.kernels.messages import check_header
from rawlog.formats.ambry.layouts import HEADER_V3
from rawlog.formats.ambry.paths import begin, segment_of, start_of
from rawlog.io.storage import Source
from rawlog.kernels import byte_view

INDEX = "ambry.index"


def starts(file: File, group: Sequence[File]) -> list[int]:
    """Where the index files of a log segment begin, in order."""
    segment = segment_of(file.path)
    found = {start_of(other.path) for other in group if other.format == INDEX and segment_of(other.path) == segment}
    return sorted(start for start in found if 0 < start < file.size)


def stands(source: Source, position: int) -> bool:
    """Whether a sound message header begins there."""
    head = source.read(position, HEADER_V3.size)
    return int(check_header(byte_view(head), 0)) == OK if head else False


def cuts(file: File, group: Sequence[File], size: int) -> list[int]:
    """Positions about `size` bytes apart at which index files say that a message begins; none if one of them is wrong."""
    marks: list[int] = []
    wanted = size
    try:
        with Source(file.path) as source:
            for position in starts(file, group):
                if position >= wanted:
                    if not stands(source, position):
                        return []
                    marks.append(position)
                    wanted = position + size
    except RawlogError:
        return []
    return marks if marks and file.size - marks[-1] <= 4 * size else []


def seek(file: File, group: Sequence[File], offset: int | None, time: int | None) -> int:
    """A position from which all messages at or behind an offset are read: the index file before it, else the first message."""
    with Source(file.path) as source:
        first = begin(source.read(0, 4096), source.size).position
        if offset is None:
            return first
        wanted = offset - (file.place.start_offset or 0)
        for position in reversed(starts(file, group)):
            if first < position <= wanted and stands(source, position):
                return position
    return first
