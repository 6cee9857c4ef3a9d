"""The time index of a segment: the largest time up to an offset. A file that is in use ends in zeros.

`partition/survey.py` checks it against the log. No rewrite copies it:
`partition/writer.py:SegmentIndex.timeindex` makes it again from the batches that are kept.

Authority: org.apache.kafka.storage.internals.log.TimeIndex at apache/kafka 1eb7644349cb (4.0.0-SNAPSHOT).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from rawlog.formats.kafka.entries import column, decode_entries, explain_entry, fault, rising, scan_padded, with_base
from rawlog.formats.kafka.log.layouts import TIME_INDEX_ENTRY
from rawlog.model.explain import Node
from rawlog.model.finding import Mark, Rule, Severity, rule
from rawlog.model.format import File, Inspection, Origin, Want
from rawlog.model.frames import Bytes, Frames

__all__ = ["LAYOUTS", "begin", "decode", "explain", "fault", "rules", "scan"]

LAYOUTS = (TIME_INDEX_ENTRY,)
ZERO_IS_REAL = 1
"""The kind of a time index of exactly one entry: only there is an entry of zeros no padding."""


def begin(head: bytes, size: int) -> Origin:
    """A time index of one entry may say time 0 at offset 0."""
    return Origin(0, ZERO_IS_REAL if size == TIME_INDEX_ENTRY.size else 0)


def scan(data: Bytes, kind: int) -> Frames:
    """The entries, up to the zeros of an index in use."""
    return scan_padded(data, TIME_INDEX_ENTRY, kind == ZERO_IS_REAL)


def decode(frames: Frames, want: Want) -> Iterator[pa.RecordBatch]:
    """Entries as rows of `kafka.timeindex`."""
    return decode_entries(frames, want, TIME_INDEX_ENTRY, with_base)


def explain(frames: Frames, file: File) -> list[Node]:
    """The fields of one entry."""
    return explain_entry(frames, file, TIME_INDEX_ENTRY)


@rule("kafka.timeindex.order", Severity.ERROR)
def order(seen: Inspection) -> Iterator[Mark]:
    """Times of a time index must rise and offsets must not fall. Look-ups by time and retention go wrong otherwise.

    Delete both index files of the segment: a broker rebuilds them only if the offset index is missing.
    """
    yield from rising(seen, column(seen, TIME_INDEX_ENTRY, "timestamp"), "time")
    offsets = column(seen, TIME_INDEX_ENTRY, "relative_offset")
    yield from rising(seen, offsets, "relative offset", strictly=False)


def rules() -> Sequence[Rule[Inspection]]:
    """Checks over the file."""
    return (order,)
