"""The transaction index of a segment: the transactions that were aborted in it.

`partition/survey.py` checks it against the log. No rewrite copies it:
`partition/writer.py:txnindex` makes it again from the aborted transactions of the log.

Authority: org.apache.kafka.storage.internals.log.AbortedTxn at apache/kafka 1eb7644349cb (4.0.0-SNAPSHOT).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from rawlog.formats.kafka.entries import column, decode_entries, explain_entry, fault, frames_of, rising
from rawlog.formats.kafka.log.layouts import TXN_INDEX_ENTRY
from rawlog.model.explain import Node
from rawlog.model.finding import Mark, Rule, Severity, rule
from rawlog.model.format import File, Inspection, Want
from rawlog.model.frames import Bytes, Frames
from rawlog.model.status import Status

__all__ = ["LAYOUTS", "decode", "explain", "fault", "rules", "scan"]

LAYOUTS = (TXN_INDEX_ENTRY,)


def scan(data: Bytes, kind: int) -> Frames:
    """The entries. The file is never padded."""
    count = data.size // TXN_INDEX_ENTRY.size
    status = Status.OK if data.size % TXN_INDEX_ENTRY.size == 0 else Status.TRUNCATED
    frames = frames_of(data, TXN_INDEX_ENTRY, 0, count, status)
    versions = data[frames.starts]  # Kafka takes the version to be the first byte
    if versions.any():
        bad = int(np.argmax(versions != 0))
        return frames_of(data, TXN_INDEX_ENTRY, 0, bad, Status.BAD_MAGIC)
    return frames


def decode(frames: Frames, want: Want) -> Iterator[pa.RecordBatch]:
    """Entries as rows of `kafka.txnindex`."""
    return decode_entries(frames, want, TXN_INDEX_ENTRY, lambda raw, file: {})


def explain(frames: Frames, file: File) -> list[Node]:
    """The fields of one entry."""
    return explain_entry(frames, file, TXN_INDEX_ENTRY)


@rule("kafka.txnindex.order", Severity.ERROR)
def order(seen: Inspection) -> Iterator[Mark]:
    """Aborted transactions are listed in the order of their markers, each from its first offset to its marker.

    A read_committed consumer may be given aborted records. Delete the segment's index files to have them rebuilt.
    """
    first, last = (column(seen, TXN_INDEX_ENTRY, name) for name in ("first_offset", "last_offset"))
    yield from rising(seen, last, "last offset")
    for index in np.flatnonzero(first > last).tolist():
        position = int(seen.frames.positions[index])
        yield Mark("first offset after the last", position, TXN_INDEX_ENTRY.size, int(last[index]))


def rules() -> Sequence[Rule[Inspection]]:
    """Checks over the file."""
    return (order,)
