"""The offset index of a segment: where about every 4,096th byte's batch begins. A file that is in use ends in zeros.

`partition/survey.py` checks it against the log. No rewrite copies it:
`partition/writer.py:SegmentIndex.index` makes it again from the batches that are kept.

Authority: org.apache.kafka.storage.internals.log.OffsetIndex at apache/kafka 1eb7644349cb (4.0.0-SNAPSHOT).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from rawlog.formats.kafka.entries import column, decode_entries, explain_entry, fault, rising, scan_padded, with_base
from rawlog.formats.kafka.log.layouts import INDEX_ENTRY
from rawlog.model.explain import Node
from rawlog.model.finding import Mark, Rule, Severity, rule
from rawlog.model.format import File, Inspection, Want
from rawlog.model.frames import Bytes, Frames

__all__ = ["LAYOUTS", "decode", "explain", "fault", "rules", "scan"]

LAYOUTS = (INDEX_ENTRY,)


def scan(data: Bytes, kind: int) -> Frames:
    """The entries, up to the zeros of an index in use."""
    return scan_padded(data, INDEX_ENTRY, False)


def decode(frames: Frames, want: Want) -> Iterator[pa.RecordBatch]:
    """Entries as rows of `kafka.index`."""
    return decode_entries(frames, want, INDEX_ENTRY, with_base)


def explain(frames: Frames, file: File) -> list[Node]:
    """The fields of one entry."""
    return explain_entry(frames, file, INDEX_ENTRY)


@rule("kafka.index.order", Severity.ERROR)
def order(seen: Inspection) -> Iterator[Mark]:
    """Offsets and positions of an offset index must rise, and are never negative. A broker finds records through it by halving: it will
    look in the wrong place, and after a clean stop it does not check.

    Delete the file: a broker rebuilds it, and so does `rebuild`.
    """
    yield from rising(seen, column(seen, INDEX_ENTRY, "relative_offset"), "relative offset", floor=-1)
    yield from rising(seen, column(seen, INDEX_ENTRY, "position"), "position", floor=-1)


def rules() -> Sequence[Rule[Inspection]]:
    """Checks over the file."""
    return (order,)
